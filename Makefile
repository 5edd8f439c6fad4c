# The commands of this repository; `make help` lists them.
TARGET := $(or $(CARGO_TARGET_DIR),target)

PREFIX ?= /usr/local

# The MPI shim, for the families of MPI that have a compiler here.
MPI := $(MAKE) --no-print-directory -C mpi CARGO_TARGET_DIR=$(abspath $(TARGET))

.PHONY: help demo check test test-long bench figures build libraries mpi install install-libraries uninstall \
	uninstall-libraries deb fmt clean
help: ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: ## two competing jobs, in arrival order and then coordinated (some minutes)
	@tools/need demo
	@$(MAKE) --no-print-directory build
	@tools/demo

check: ## format, lints and unit tests, in under 3 minutes
	@tools/parts check

test: ## everything that a change has to pass, as CI runs it; names at its end what failed
	@tools/need test
	@tools/parts test

test-long: ## 5,000 seeds of the fault test, the long runs of every end-to-end suite, fuzzing (hours)
	@tools/need test-long fsx pjdfstest cargo-deny
	-@tools/need mpich-tests applications
	@tools/parts test-long

bench: ## write the tables of docs/performance.md and docs/overlap.md from this machine
	@tools/need demo
	@$(MAKE) --no-print-directory build
	$(TARGET)/release/tidegate bench performance --write docs/performance.md
	$(TARGET)/release/tidegate bench names --write docs/performance.md
	$(TARGET)/release/tidegate bench encryption --write docs/performance.md
	$(TARGET)/release/tidegate bench overlap --write docs/overlap.md

figures: build ## write docs/figures.md and the pictures of docs/when.md
	$(TARGET)/release/tidegate report --all --markdown docs/figures.md
	$(TARGET)/release/tidegate report when-clocks when-depth when-forwarders when-places when-start-spread --svg docs/when

build: ## the release build of `tidegate`, of `tidegate-lab` and of what is loaded into programs
	cargo build --release -p tidegate-cli -p tidegate-lab -p tidegate-preload
	@tools/strip $(addprefix $(TARGET)/release/,tidegate tidegate-lab libtidegate_preload.so)
	@$(MPI)

mpi:
	@$(MPI)

install: build install-libraries ## all of it: PREFIX=/usr/local DESTDIR= UNITDIR= (unit files), and as below
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' UNITDIR='$(UNITDIR)' tools/install-programs install

libraries: ## the release build of the C libraries of client and scheduler
	cargo build --release -p tidegate-capi
	cargo rustc --release -p tidegate-client --lib --crate-type staticlib,cdylib -- \
		-C link-arg=-Wl,-soname,libtidegate_client.so.0

install-libraries: libraries ## the C libraries alone: PREFIX= LIBDIR= INCLUDEDIR= DESTDIR=
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' DESTDIR='$(DESTDIR)' \
		tools/install-capi install

uninstall: uninstall-libraries ## take it away again, with the same settings
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' UNITDIR='$(UNITDIR)' tools/install-programs uninstall

uninstall-libraries:
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' DESTDIR='$(DESTDIR)' \
		tools/install-capi uninstall

deb: ## target/debian/tidegate_VERSION_ARCHITECTURE.deb, of what `install` puts; MAINTAINER= names who made it
	@rm -rf $(TARGET)/debian/root
	@$(MAKE) --no-print-directory install DESTDIR=$(abspath $(TARGET))/debian/root PREFIX=/usr LIBDIR= INCLUDEDIR= UNITDIR=
	@MAINTAINER='$(MAINTAINER)' tools/debian $(TARGET)/debian/root $(TARGET)/debian

fmt: ## format the Rust sources
	cargo fmt --all

clean: ## remove what was built
	cargo clean
