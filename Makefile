# Everything a developer needs. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
CONTRACT := .cache/venvs/contract
STAGE := .cache/venvs/stage
AGAIN := --reruns 1 # of tests that wait for a real cluster: a machine may be too busy once; the summary names those
COMPILE := uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header

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
generate: venv ## Regenerate what is made from the models: CRD, the chart's copy, the reference, the CLI's schema
	$(BIN)/python -m omni_operator.api.crd > crds/omnimodel.io_omnimodels.yaml
	cp crds/omnimodel.io_omnimodels.yaml charts/omni-operator/files/
	$(BIN)/python -m omni_operator.api.reference > docs/omnimodel.md
	$(BIN)/python -m omni_operator.cli.schema_file > operator/omni_operator/cli/data/omnimodel-schema.json

.PHONY: golden
golden: venv ## Write the golden manifests of the examples anew; read the diff
	UPDATE_GOLDEN=1 $(BIN)/pytest -q tests/rendering/test_golden.py

.PHONY: lock
lock: ## Renew the lock files after a change of pyproject.toml (needs uv)
	$(COMPILE) pyproject.toml -o operator/requirements.txt
	$(COMPILE) --extra dev pyproject.toml -o tests/requirements.txt

.PHONY: lint
lint: venv ## Style, types, and the direction of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: check
check: lint ## What needs neither root nor Go, under a minute: the inner loop
	$(BIN)/pytest -q -n 2 --dist loadgroup -m "not api and not node and not stage"

.PHONY: test-api
test-api: venv ## The operator against a real kube-apiserver (Go; no root)
	$(BIN)/pytest -v -rR $(AGAIN) -m api

.PHONY: test-contract
test-contract: venv $(CONTRACT)/.installed ## Our planner, catalogue and exports against sglang-omni's own code
	PYTHONPATH=operator:stage_image:. $(CONTRACT)/bin/python -m pytest -q -p no:cacheprovider tests/contract
	$(BIN)/pytest -q tests/catalogue

.PHONY: test-stage
test-stage: venv $(STAGE)/.installed ## A whole tiny replica, real SGLang on the CPU, as processes on loopback
	$(BIN)/pytest -v -m stage tests/stage
	PYTHONPATH=operator:stage_image:. $(STAGE)/bin/python -m pytest -q -p no:cacheprovider tests/contract/test_export.py

.PHONY: test-node
test-node: venv ## End to end on a real node with invented GPUs (root, Go), or on the cluster of KUBECONFIG
	$(BIN)/pytest -v -s -rR $(AGAIN) -m node

.PHONY: test
test: check test-api test-contract test-stage test-node ## Every test

.PHONY: demo
demo: venv ## From nothing to an answer of a model whose stages share one GPU
	$(BIN)/python -m e2e.demo

.PHONY: cluster-up cluster-down
cluster-up: venv ## Start the one-node cluster with two invented H100s
	$(BIN)/python -m e2e.cluster up --gpus 2 --gpu-profile h100-80gb --feature-gates MPSSupport=true
cluster-down: venv ## Remove it
	$(BIN)/python -m e2e.cluster down

.PHONY: bench
bench: venv ## Figures, each beside a limit or a peer measured in the same run; JSON and a table
	$(BIN)/python -m e2e.bench --json .cache/bench.json
	$(BIN)/python -m tests.bench.planning --json .cache/bench-planning.json

$(CONTRACT)/.installed: tests/contract/requirements.txt tests/contract/requirements-small.txt
	$(PYTHON) -m venv $(CONTRACT)
	$(CONTRACT)/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/contract/requirements.txt -r tests/contract/requirements-small.txt
	touch $@

$(STAGE)/.installed: stage_image/requirements-cpu.txt | venv
	PATH=$(CURDIR)/$(BIN):$$PATH sh stage_image/build/dev_env.sh $(STAGE)
	touch $@
