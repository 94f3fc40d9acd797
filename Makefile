# `make` lists the targets. Needs: Rust ≥ 1.89, Go ≥ 1.26, make. `make demo CLUSTER=kind|kubeconfig` does without Go.
#
# One profile (dev) and one choice of packages (the whole workspace, with what its tests need) for every target, so that
# dependencies are compiled once: `cargo run -p …` would choose other features for them and compile them again.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Where the demo and the playground run: local (built and started here), kind, kubeconfig (the current context).
CLUSTER ?= local
# More arguments for the program behind a target: `make demo ARGS=--help`, `make test ARGS='-p muster-engine'`.
ARGS ?=

RUST_NEEDED := 1.89
GO_NEEDED := 1.26
BIN := $(or $(CARGO_TARGET_DIR),target)/debug
PLAYGROUND := $(BIN)/playground

# $(call need,program,version,how to ask it,where to get it): ends with a sentence where it is missing or too old.
define need
@command -v $(1) >/dev/null || { echo "$(1) is not installed: Muster needs $(1) $(2) or newer: $(4)" >&2; exit 1; }
@found=$$($(3) | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1); \
  [[ $$(printf '%s\n' $(2) "$$found" | sort -V | head -n 1) == $(2) ]] || \
  { echo "$(1) is too old: $$found is installed, Muster needs $(2) or newer: $(4)" >&2; exit 1; }
endef

.PHONY: help
help: ## What there is to do (this list)
	@echo "Needs: Rust ≥ $(RUST_NEEDED), Go ≥ $(GO_NEEDED), make"
	@echo
	@grep -hE '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS=: read -r name rest; do printf '  make %-12s %s\n' "$$name" "$${rest#*## }"; done

.PHONY: demo
demo: need-cluster build ## A cluster with simulated GPU nodes, jobs, a failure and a recovery (CLUSTER=local|kind|kubeconfig)
	$(PLAYGROUND) demo --cluster $(CLUSTER) $(ARGS)

.PHONY: playground
playground: need-cluster build ## The demo's cluster, left running for you (CLUSTER=local|kind|kubeconfig)
	$(PLAYGROUND) up --cluster $(CLUSTER) $(ARGS)

.PHONY: test
test: need-go build ## Every test, on the in-memory API and on a real control plane that is started for them
	cargo test --workspace --no-run
	$(PLAYGROUND) test -- cargo test --workspace $(ARGS)

.PHONY: e2e
e2e: need-kubeconfig build ## The end-to-end suite on the cluster of KUBECONFIG=…; it installs Muster there and adds simulated nodes
	KUBECONFIG="$(abspath $(KUBECONFIG))" $(PLAYGROUND) test --cluster kubeconfig -- cargo test --workspace --test cluster $(ARGS)

.PHONY: e2e-kind
e2e-kind: need-cargo ## The end-to-end suite on a kind cluster that is made for it (needs Docker, kind, kubectl)
	e2e/kind/run.sh make e2e ARGS="$(ARGS)"

.PHONY: storm
storm: need-cargo ## Random storms over the operator in virtual time: SEEDS=10000 FIRST=0; what fails is printed as a trace, made small
	cargo run --release -p muster-e2e --bin storm -- --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),0) $(ARGS)

.PHONY: bench
bench: need-go build ## Pods placed per second as a share of what the API server can create, and writes per pod
	cargo build --release -p muster-e2e -p muster-operator --bin bench --bin muster
	$(dir $(BIN))release/bench $(ARGS)

.PHONY: lint
lint: need-cargo need-go ## Format, clippy, go vet, the chart
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cd e2e/cluster && CGO_ENABLED=0 GOWORK=off go vet -mod=readonly -trimpath ./internal/...
	charts/test.sh "$$(e2e/tools/helm.sh)"

.PHONY: fmt
fmt: need-cargo ## Formats the Rust code
	cargo fmt --all

.PHONY: crds
crds: need-cargo ## Writes crds/ from the Rust types
	cargo build --workspace --example crds
	$(BIN)/examples/crds

.PHONY: manifests
manifests: need-go ## Writes deploy/ from the chart
	deploy/generate.sh "$$(e2e/tools/helm.sh)"

.PHONY: clean
clean: need-cargo ## Removes what cargo built; the cache with Kubernetes and helm stays
	cargo clean

# Not for calling by hand.
.PHONY: build need-cargo need-go need-cluster need-kubeconfig
# Examples, because cargo then takes the features that the tests need, too.
build: need-cargo
	cargo build --workspace --bins --examples

need-kubeconfig:
	@[[ -r "$(KUBECONFIG)" ]] || { echo "make e2e needs KUBECONFIG=path/of/a/kubeconfig" >&2; exit 1; }

need-cargo:
	$(call need,cargo,$(RUST_NEEDED),cargo --version,https://rustup.rs)

need-go:
	$(call need,go,$(GO_NEEDED),go env GOVERSION,https://go.dev/dl (or$(comma) for the demo$(comma) CLUSTER=kind or CLUSTER=kubeconfig))

need-cluster:
	@case "$(CLUSTER)" in local | kind | kubeconfig) ;; *) \
	  echo "CLUSTER=$(CLUSTER) is none of local, kind, kubeconfig" >&2; exit 1 ;; esac
ifeq ($(CLUSTER),local)
need-cluster: need-go
endif

comma := ,
