# Two commands for everybody:
#   make demo    sets everything up and runs the main job on this machine
#   make test    sets everything up and passes the tests
# TF=2.15 (or any supported minor) before either chooses that TensorFlow, in a virtual environment of its own.

NEWEST := 2.21
TF ?= $(NEWEST)
SUPPORTED := 2.15 2.16 2.17 2.18 2.19 2.20 2.21

ifeq ($(filter $(TF),$(SUPPORTED)),)
$(error TF=$(TF) is not supported; choose one of: $(SUPPORTED))
endif

VENV := $(if $(filter $(NEWEST),$(TF)),.venv,.venv-$(TF))
BIN := $(VENV)/bin
# The stamp bears what decides about the content: a changed setup.py installs anew.
STAMP := $(VENV)/.installed-$(shell cksum < setup.py | cut -d ' ' -f 1)
# A run of its own each time: training goes on from the latest checkpoint of a directory that exists.
RUN ?= runs/demo-tf$(TF)-$(shell date +%Y%m%d-%H%M%S)
PYTEST_ARGS ?=

.PHONY: demo test test-ci lint clean help

help:
	@sed -n '1,5p' Makefile | cut -c3-

$(STAMP):
	@sh tools/make_venv.sh "$(VENV)" "$(TF)"
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)
	@$(BIN)/estimator-pipeline launch legacy_configs/digits_cnn_two_workers.yaml --set run.model_dir=$(RUN)

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-2.* build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
