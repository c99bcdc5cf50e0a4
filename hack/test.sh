#!/usr/bin/env bash
# Runs every test of every module on real engines, with the race detector. Extra arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
# Packages that start engines are heavy: two at a time keep a machine of two cores busy without starving any.
for module in schemas producer . e2e; do
  echo "== $module"
  race=(-race)
  # The end-to-end tests drive processes; those are built as they are shipped.
  [ "$module" = e2e ] && race=()
  # The tag arms the named points at which tests kill a stage; without KANJO_FAILPOINTS they do nothing.
  (cd "$module" && go test -tags failpoints "${race[@]}" -p 2 -timeout 20m "$@" ./...)
done
