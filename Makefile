# Kanjo. `make help` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help

GO      ?= go
BIN     := bin/kanjo
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)
MODULES := . schemas producer e2e


include hack/engines.mk

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## build bin/kanjo
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/kanjo

.PHONY: demo
demo: engines build ## fetch what is needed, start everything, replay an hour of real LLM traffic, close the month
	$(BIN) demo --dir .kanjo/demo --fresh

.PHONY: dev
dev: engines build ## run the whole pipeline here; its state is in .kanjo/dev
	$(BIN) dev --dir .kanjo/dev

.PHONY: test
test: engines ## run every test, on real engines, with the race detector
	./hack/test.sh

.PHONY: bench
bench: engines build ## measure every hot path beside a bare loop; writes bench.json
	./hack/bench.sh $(BENCH)

.PHONY: check
check: ## what is checked without engines: format, vet, lint, tidy, builds without the workspace
	./hack/check.sh

.PHONY: fmt
fmt: ## format the Go files
	gofmt -w $(MODULES)

.PHONY: clean
clean: ## remove what was built and the state of demo and dev
	rm -rf bin .kanjo bench.json
