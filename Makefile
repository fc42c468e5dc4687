# Everything a developer needs. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
CLUSTER := $(BIN)/python -m e2e.cluster

$(VENV)/.installed: pyproject.toml tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

.PHONY: venv
venv: $(VENV)/.installed ## Install the locked dependencies into .venv

.PHONY: generate
generate: venv ## Regenerate the CRD from the models
	$(BIN)/python -m omni_operator.api.crd > crds/omnimodel.io_omnimodels.yaml
	cp crds/omnimodel.io_omnimodels.yaml charts/omni-operator/files/

.PHONY: lock
lock: ## Renew the lock files after a change of pyproject.toml
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header pyproject.toml -o operator/requirements.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --extra dev --extra cli pyproject.toml -o tests/requirements.txt
