# Needs Python 3.11 or later with venv, and make; everything else is installed into .venv.
# PYTHON is the first supported version that is found; set it by `make PYTHON=...`.
PYTHON ?= $(or $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$each && break; \
	done),python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# For the tests of several workers; with `TORCH=` it is not installed, and they are skipped.
TORCH ?= torch==2.13.0
# Number of tests that run at the same time, with one thread each.
JOBS ?= 2
# Byte code of tests is cached, so that not every process compiles it again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: demo test test-slow test-all test-hosts test-python coverage work-counts chromium hooks lint format picture circuits docs figures bench \
	bench-index bench-sums bench-step bench-fit bench-scale bench-accuracy bench-nn bench-predict bench-solvers bench-memory bench-load bench-quantum bench-theory bench-compare bench-distributed adversary try-commands fuzz clean clean-kernels

demo: $(VENV)/.core
	@mkdir -p out
	$(BIN)/fireset demo --out out/fireset-demo.safetensors

# About two minutes: every part of the package and every engine, without long tests and those that start other programs.
test: $(VENV)/.test
	$(PYTEST) -m "not slow"

# Slow tests, and all examples of the tests of properties.
test-slow: $(VENV)/.docs chromium
	HYPOTHESIS_PROFILE=all $(PYTEST) -m "slow or hypothesis"

test-all: $(VENV)/.docs chromium
	HYPOTHESIS_PROFILE=all $(PYTEST)

# Three hosts as network namespaces: killed, paused, disconnected, with packet loss. Takes minutes; needs root and iproute2.
test-hosts: $(VENV)/.test
	FIRESET_TEST_HOSTS=1 $(BIN)/python -m pytest tests/distributed/test_hosts.py

# Fast tests with another Python, in a separate environment: make test-python PYTHON=python3.13
test-python:
	$(MAKE) test PYTHON="$(PYTHON)" VENV=.venv-$$("$(PYTHON)" -c 'import platform; print(platform.python_version())')

# Store the baseline of tests/test_work_counts.py, after a change that is meant to change the work.
work-counts: $(VENV)/.test
	cd tests && ../$(BIN)/python -m support.work_counts

coverage: $(VENV)/.test
	$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered

# The report is tested in Chromium. If it cannot be installed, these tests are skipped; in CI they fail.
chromium:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null || \
		echo "Chromium could not be installed: the report will not be tested in a browser"; \
	else echo "no Chromium on the path: the report will not be tested in a browser"; fi

# Run ruff and pyright before every commit.
hooks: $(VENV)/.test
	$(BIN)/pre-commit install

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

picture: $(VENV)/.core
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python docs/make_picture.py docs/fireset.png
	$(BIN)/python docs/make_gallery.py

circuits: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python docs/draw_circuits.py docs

docs: $(VENV)/.core
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python docs/make_commands.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Write the stored results of benchmarks into README and docs.
figures: $(VENV)/.core
	$(BIN)/python benchmarks/collect.py

bench: bench-step bench-fit bench-nn bench-predict bench-load bench-solvers bench-index bench-sums bench-compare bench-scale
	$(MAKE) figures

bench-compare bench-index bench-sums bench-step bench-accuracy bench-scale bench-theory: bench-%: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_$*.py

bench-fit bench-nn bench-predict bench-solvers bench-memory bench-load bench-quantum bench-distributed: bench-%: $(VENV)/.test
	$(BIN)/python benchmarks/bench_$*.py

# Random tests of training, settings, commands, threads, kills, files and extreme numbers:
# make adversary MINUTES=30, or ONLY=kills COUNT=100.
adversary: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m adversary $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

# Some 250 command lines over public and generated tables, each in a separate process: ten minutes on two cores.
try-commands: $(VENV)/.test
	$(BIN)/python tests/support/command_sweep.py $(JOBS)

fuzz:
	$(MAKE) adversary ONLY=files COUNT=100000 SEED=0

clean: clean-kernels
	rm -rf .venv .venv-* out .coverage .pytest_cache .hypothesis .ruff_cache

# Compile all kernels again. Kernels of changed sources are compiled again in any case (kernels/compiling.py).
clean-kernels:
	rm -rf src/fireset/kernels/__pycache__ "$${XDG_CACHE_HOME:-$$HOME/.cache}"/fireset/kernels-*

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fireset needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

# torch first, from the index of CPU builds: other builds install gigabytes of GPU libraries. If that index cannot be
# reached, from pip's default index.
$(VENV)/.test: $(VENV)/.core
	$(if $(TORCH),@$(PIP) install --retries 0 --timeout 20 --no-deps \
		--index-url https://download.pytorch.org/whl/cpu $(TORCH) 2>/dev/null || true)
	$(PIP) install --constraint constraints.txt $(TORCH) --editable ".[test,lint]"
	@touch $@

# For the tests of the built documentation.
$(VENV)/.docs: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	@touch $@
