# The main commands:
#   make demo    sets everything up and runs the main job on this machine
#   make test    sets everything up and runs the tests; make test-all also runs the slow ones
# TF=2.15 (or any supported minor) before either selects that TensorFlow, in a separate virtual environment.

NEWEST := 2.21
TF ?= $(NEWEST)
SUPPORTED := 2.15 2.16 2.17 2.18 2.19 2.20 2.21

ifeq ($(filter $(TF),$(SUPPORTED)),)
$(error TF=$(TF) is not supported; choose one of: $(SUPPORTED))
endif

VENV := $(if $(filter $(NEWEST),$(TF)),.venv,.venv-$(TF))
BIN := $(VENV)/bin
# The name of the stamp has a checksum: a change of setup.py or packages.txt leads to a new installation.
STAMP := $(VENV)/.installed-$(shell cat setup.py tests/programs/packages.txt | cksum | cut -d ' ' -f 1)
# Without bytecode each process of a test would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE
# A new directory for each run: in an existing one training resumes from the latest checkpoint.
RUN ?= runs/demo-tf$(TF)-$(shell date +%Y%m%d-%H%M%S)
PYTEST_ARGS ?=
# A process for each core, up to four; tests/conftest.py has the groups of tests.
PYTEST_PARALLEL ?= -n logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder

.PHONY: venv demo test test-all test-slurm bench faults lint docs docs-serve release messages promises clean help

help:
	@sed -n '1,4p' Makefile | cut -c3-

$(STAMP):
	@sh tools/make_venv.sh "$(VENV)" "$(TF)"
	@rm -f $(VENV)/.installed-*
	@touch $@

venv: $(STAMP)

demo: $(STAMP)
	@$(BIN)/estimator-pipeline launch legacy_configs/digits_cnn_two_workers.yaml --set run.model_dir=$(RUN)

# Failed tests are retried at the end, in separate processes; those that pass are printed as FLAKY. A test compares the
# installed TensorFlow with EXPECTED_TENSORFLOW.
# AREA=parity: the tests of that part of the package and of the parts that import it. BUDGET=FILE: fail if they take
# longer.
SELECTED = --unit-first $(if $(AREA),--area $(AREA)) $(if $(BUDGET),--budget $(BUDGET))
RUN_TESTS = EXPECTED_TENSORFLOW=$(TF) $(BIN)/python tools/run_tests.py

test: $(STAMP)
	@$(RUN_TESTS) $(SELECTED) $(PYTEST_PARALLEL) -m "not nightly" $(PYTEST_ARGS)

test-all: $(STAMP)
	@$(RUN_TESTS) $(SELECTED) $(PYTEST_PARALLEL) $(PYTEST_ARGS)

# The tests start a real Slurm on this machine, which is installed if it is missing.
test-slurm: $(STAMP)
	@sh tools/install_slurm.sh
	@$(RUN_TESTS) -p no:xdist tests/launch/slurm $(PYTEST_ARGS)

# Ratios to plain code; docs/internals/benchmarks.md explains the figures. BENCH_ARGS=--quick for a short run;
# BENCH=DIR of an interrupted run resumes it.
BENCH ?= runs/bench-tf$(TF)-$(shell date +%Y%m%d-%H%M%S)
BENCH_ARGS ?=
bench: $(STAMP)
	$(BIN)/python -m benchmarks.suite --output $(BENCH) $(BENCH_ARGS)
	$(BIN)/python benchmarks/allocator.py
	$(BIN)/python benchmarks/evaluation_memory.py
	$(BIN)/python benchmarks/exec_startup.py
	$(BIN)/python benchmarks/ledger_cost.py
	$(BIN)/python benchmarks/migrate_scan.py
	$(BIN)/python benchmarks/mirrored_evaluation.py
	$(BIN)/python benchmarks/record_checksums.py
	$(BIN)/python benchmarks/restart_time.py
	$(BIN)/python benchmarks/sparse_gradients.py
	$(BIN)/python benchmarks/steps_per_execution.py
	$(BIN)/python benchmarks/tables.py

# Hundreds of faults: kills, hangs, damaged checkpoints; about an hour. FAULTS=20 for a short run; SEED from the report.
FAULTS ?= 200
SEED ?= $(shell date +%Y%m%d)
faults: $(STAMP)
	$(BIN)/python tests/faults/campaign.py --faults $(FAULTS) --seed $(SEED) --report docs/internals/fault-campaign.md

# Accepts the current messages: tests/messages/texts, and docs/reference/errors.md with its examples.
messages: $(STAMP)
	ESTIMATOR_PIPELINE_ACCEPT_MESSAGES=1 $(BIN)/python -m pytest -q -p no:xdist tests/messages
	$(BIN)/python tools/error_codes.py

# Accepts the current promises: tests/promises, what the product gives its users, a line each.
promises: $(STAMP)
	ESTIMATOR_PIPELINE_ACCEPT_PROMISES=1 $(BIN)/python -m pytest -q -p no:xdist tests/promises

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --warn-unused-ignores tests/support/typed_calls.py
	$(MKDOCS) build --strict --site-dir $(VENV)/site

# The site in site/; `make docs-serve` serves it on http://127.0.0.1:8000 while you write.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
docs: $(STAMP)
	$(MKDOCS) build --strict

docs-serve: $(STAMP)
	$(MKDOCS) serve

# Builds and checks the wheel and the source distribution in dist/, and installs the wheel in a new environment.
release: $(STAMP)
	$(BIN)/python tools/release.py

clean:
	rm -rf .venv .venv-2.* build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache
