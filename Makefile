# Two commands for everybody:
#   make demo    sets everything up and runs the main job on this machine
#   make test    sets everything up and passes the tests; make test-all has those that take longer as well
# TF=2.15 (or any supported minor) before either chooses that TensorFlow, in a virtual environment of its own.

NEWEST := 2.21
TF ?= $(NEWEST)
SUPPORTED := 2.15 2.16 2.17 2.18 2.19 2.20 2.21

ifeq ($(filter $(TF),$(SUPPORTED)),)
$(error TF=$(TF) is not supported; choose one of: $(SUPPORTED))
endif

VENV := $(if $(filter $(NEWEST),$(TF)),.venv,.venv-$(TF))
BIN := $(VENV)/bin
# The stamp bears what decides about the content: a changed setup.py or packages.txt installs anew.
STAMP := $(VENV)/.installed-$(shell cat setup.py tests/programs/packages.txt | cksum | cut -d ' ' -f 1)
# Without bytecode each of a test's processes would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE
# A run of its own each time: training goes on from the latest checkpoint of a directory that exists.
RUN ?= runs/demo-tf$(TF)-$(shell date +%Y%m%d-%H%M%S)
PYTEST_ARGS ?=
# A process for each core, up to four; what belongs together is said in tests/conftest.py.
PYTEST_PARALLEL ?= -n logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder

.PHONY: venv demo test test-all test-slurm bench faults lint docs docs-serve release messages clean help

help:
	@sed -n '1,4p' Makefile | cut -c3-

$(STAMP):
	@sh tools/make_venv.sh "$(VENV)" "$(TF)"
	@rm -f $(VENV)/.installed-*
	@touch $@

venv: $(STAMP)

demo: $(STAMP)
	@$(BIN)/estimator-pipeline launch legacy_configs/digits_cnn_two_workers.yaml --set run.model_dir=$(RUN)

# What fails is run once more, alone, at the end; what passes then is printed as FLAKY. A test holds the installed
# TensorFlow against EXPECTED_TENSORFLOW.
# AREA=parity: the tests of that part of the package and of what imports it. BUDGET=FILE: red where they take longer.
SELECTED = --unit-first $(if $(AREA),--area $(AREA)) $(if $(BUDGET),--budget $(BUDGET))
RUN_TESTS = EXPECTED_TENSORFLOW=$(TF) $(BIN)/python tools/run_tests.py --durations=25 --durations-min=5

test: $(STAMP)
	$(RUN_TESTS) $(SELECTED) $(PYTEST_PARALLEL) -m "not nightly" $(PYTEST_ARGS)

test-all: $(STAMP)
	$(RUN_TESTS) $(SELECTED) $(PYTEST_PARALLEL) $(PYTEST_ARGS)

# On a real Slurm, started by the tests on this machine; installed where it is missing.
test-slurm: $(STAMP)
	@sh tools/install_slurm.sh
	$(RUN_TESTS) -p no:xdist tests/launch/slurm $(PYTEST_ARGS)

# Side by side, as ratios; docs/internals/benchmarks.md tells what the figures mean. BENCH_ARGS=--quick for a short one;
# BENCH=DIR of a run that was broken off, and it goes on.
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

# Some hundred faults: kills, hangs, torn checkpoints; about an hour. FAULTS=20 for a short one; SEED as the report says.
FAULTS ?= 200
SEED ?= $(shell date +%Y%m%d)
faults: $(STAMP)
	$(BIN)/python tests/faults/campaign.py --faults $(FAULTS) --seed $(SEED) --report docs/internals/fault-campaign.md

# Takes the words of messages as they are now: tests/messages/texts, and docs/reference/errors.md with its examples.
messages: $(STAMP)
	ESTIMATOR_PIPELINE_ACCEPT_MESSAGES=1 $(BIN)/python -m pytest -q -p no:xdist tests/messages
	$(BIN)/python tools/error_codes.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MKDOCS) build --strict --quiet --site-dir $(VENV)/site

# The site in site/; `make docs-serve` serves it on http://127.0.0.1:8000 while you write.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
docs: $(STAMP)
	$(MKDOCS) build --strict

docs-serve: $(STAMP)
	$(MKDOCS) serve

# The wheel and the source distribution in dist/, checked, and installed in a fresh environment.
release: $(STAMP)
	$(BIN)/python tools/release.py

clean:
	rm -rf .venv .venv-2.* build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache
