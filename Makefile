# SPDX-License-Identifier: Apache-2.0
# The commands of this project. `make help` lists them.

BUILD ?= build
# As many compilers at once as there are cores, and no more than one per 1.5 GB of memory.
JOBS ?= $(shell awk -v cores="$$(nproc)" '/MemAvailable/ { n = int($$2 / 1500000); \
          print (n < 1) ? 1 : (n < cores) ? n : cores }' /proc/meminfo)
# Arguments of the program that `make run`, `make test` and `make mpirun` start.
ARGS ?=
# ACCEPT=--accept: `make op-db` writes its page and baseline although an entry got worse.
ACCEPT ?=
# Options of scripts/bootstrap.sh.
BOOTSTRAP ?=
N ?= 2
APP ?= $(BUILD)/bin/global_field
CMAKE_BUILD = cmake --build $(BUILD) --parallel $(JOBS) --target

.DEFAULT_GOAL := help
.PHONY: help bootstrap configure run test bench conformance op-db gpu-test mpirun tidy format

help: ## this list
	@echo "make TARGET; JOBS=n limits parallel work, BUILD=folder builds elsewhere"
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

bootstrap: ## install what is missing: Debian packages, LibTorch, sample data
	@scripts/bootstrap.sh $(BOOTSTRAP)

configure: bootstrap
	@scripts/configure.sh $(BUILD)

run: configure ## train on the real global field: the main example (ARGS="--help" lists its options)
	@echo "[build] $(BUILD)/bin/global_field ..." >&2
	@$(CMAKE_BUILD) global_field
	$(BUILD)/bin/global_field $(ARGS)

test bench op-db: BOOTSTRAP = --python
test: configure ## build everything and run all tests (ARGS="-R comm" selects)
	@echo "[build] everything, tests included ..." >&2
	@$(CMAKE_BUILD) all
	@ctest --test-dir $(BUILD) --parallel $(JOBS) --output-on-failure $(ARGS)

bench: configure ## measure; one JSON object a line on stdout
	@echo "[build] benchmarks ..." >&2
	@$(CMAKE_BUILD) benchmarks >&2
	@scripts/bench.sh $(BUILD)

conformance: configure ## every op sample on every mesh and split
	@echo "[build] conformance tests ..." >&2
	@$(CMAKE_BUILD) all
	@SHARD_CONFORMANCE=full ctest --test-dir $(BUILD) --output-on-failure --label-regex conformance --no-tests=error $(ARGS)

op-db: configure ## every op of PyTorch's op database on ShardTensors (writes docs/ops.md; ARGS="--only sum" selects)
	@echo "[build] the Python module ..." >&2
	@$(CMAKE_BUILD) shard_python
	@scripts/python.sh $(BUILD) tests/python/op_db/runner.py --jobs $(JOBS) $(or $(ARGS),--docs docs/ops.md --update tests/python/op_db/baseline.json $(ACCEPT))

gpu-test: bootstrap ## the tests that need a GPU (SKIP where there is none)
	@scripts/gpu_test.sh $(JOBS)

mpirun: configure ## run APP on N processes: make mpirun N=4 APP="build/bin/global_field --steps 5"
	@$(CMAKE_BUILD) $(notdir $(firstword $(APP)))
	@scripts/mpirun.sh $(N) $(APP) $(ARGS)

tidy: configure ## clang-tidy on every source file
	@JOBS=$(JOBS) scripts/tidy.sh $(BUILD)

format: ## rewrite all sources in the project's format
	@scripts/format.sh
