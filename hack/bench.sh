#!/usr/bin/env bash
# Measures every hot path beside a bare loop and writes bench.json. Arguments go to the bench program:
#   make bench BENCH='-only pipeline -events 5000000'
set -euo pipefail
cd "$(dirname "$0")/.."
go run ./e2e/bench "$@"
