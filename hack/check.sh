#!/usr/bin/env bash
# Checks that need no engine. Each failure says what to run.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
  printf 'not formatted (run make fmt):\n%s\n' "$unformatted" >&2
  exit 1
fi
for module in . schemas producer e2e; do
  echo "== $module"
  (
    cd "$module"
    go vet ./...
    go vet -tags failpoints ./...
    go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
    GOWORK=off go build ./...
    if ! GOWORK=off go mod tidy -diff; then
      echo "go.mod or go.sum of $module is not tidy: run GOWORK=off go mod tidy there" >&2
      exit 1
    fi
  )
done
echo "check: ok"
