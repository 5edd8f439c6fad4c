# The commands of this repository; `make help` lists them.
TARGET := $(or $(CARGO_TARGET_DIR),target)

PREFIX ?= /usr/local

# The MPI shim, for the families of MPI that have a compiler here.
MPI := $(MAKE) --no-print-directory -C mpi CARGO_TARGET_DIR=$(abspath $(TARGET))

.PHONY: help demo test test-long bench figures build install uninstall fmt lint clean
help: ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: ## two competing jobs, in arrival order and then coordinated (some minutes)
	@tools/need demo
	cargo build --release -p tidegate-cli -p tidegate-preload
	@$(MPI)
	@tools/demo

test: ## everything that a change has to pass, as CI runs it
	@tools/need test fsx pjdfstest
	-@tools/need mpich-tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	cargo test --workspace --no-fail-fast --quiet
	cargo build --release -p tidegate-cli -p tidegate-preload
	@$(MPI)
	tests/run quick
	tools/instructions --check

test-long: ## 5,000 seeds of the fault test, and the long runs of every end-to-end suite (hours)
	@tools/need test-long fsx pjdfstest
	-@tools/need mpich-tests
	cargo build --release -p tidegate-cli -p tidegate-preload
	@$(MPI)
	TIDEGATE_SEEDS=0..5000 cargo test --release -p tidegate-sim --test faults every_answer_is_right
	tests/run long

bench: ## write the tables of docs/performance.md and docs/overlap.md from this machine
	@tools/need demo
	cargo build --release -p tidegate-cli -p tidegate-preload
	@$(MPI)
	$(TARGET)/release/tidegate bench performance --write docs/performance.md
	$(TARGET)/release/tidegate bench overlap --write docs/overlap.md

figures: ## write docs/figures.md: all scenarios beside their papers
	cargo build --release -p tidegate-cli -p tidegate-preload
	$(TARGET)/release/tidegate report --all --markdown docs/figures.md

build: ## the release build of the command `tidegate` and of what it loads into programs
	cargo build --release -p tidegate-cli -p tidegate-preload
	@$(MPI)

install: ## the scheduler's C library: PREFIX=/usr/local LIBDIR= INCLUDEDIR= DESTDIR=
	cargo build --release -p tidegate-capi
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' DESTDIR='$(DESTDIR)' \
		tools/install-capi install

uninstall: ## take it away again, with the same settings
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' DESTDIR='$(DESTDIR)' \
		tools/install-capi uninstall

fmt: ## format the Rust sources
	cargo fmt --all

lint: ## the lints that `make test` demands
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean: ## remove what was built
	cargo clean
