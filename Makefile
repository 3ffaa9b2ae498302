# Needs Python 3.11 or later with venv, and make; everything else is installed into .venv.
# The first Python that the tests have run with; `make PYTHON=...` takes another.
PYTHON ?= $(or $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$each && break; \
	done),python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What the tests of several workers need; `TORCH=` leaves it out, and they are skipped.
TORCH ?= torch==2.13.0
# Tests at a time. Each has one thread.
JOBS ?= 2
# Compiled tests are cached: without, each of the processes compiles them again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: demo test test-slow test-all test-hosts test-python coverage work-counts chromium hooks lint format picture circuits docs bench \
	bench-index bench-sums bench-step bench-fit bench-scale bench-accuracy bench-nn bench-predict bench-memory bench-load bench-quantum bench-theory bench-compare bench-distributed adversary try-commands fuzz clean clean-kernels

demo: $(VENV)/.core
	@mkdir -p out
	$(BIN)/fireset demo --out out/fireset-demo.safetensors

# A minute: every part of the package and every engine, without what takes long or starts other programs.
test: $(VENV)/.test
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.docs chromium
	$(PYTEST) -m slow

test-all: $(VENV)/.docs chromium
	$(PYTEST)

# Three hosts as network namespaces, killed, paused, cut off, on a bad cable: minutes, root, and ip (iproute2).
test-hosts: $(VENV)/.test
	FIRESET_TEST_HOSTS=1 $(BIN)/python -m pytest tests/distributed/test_hosts.py

# The same with another Python, in an environment of its own: make test-python PYTHON=python3.13
test-python:
	$(MAKE) test PYTHON="$(PYTHON)" VENV=.venv-$$("$(PYTHON)" -c 'import platform; print(platform.python_version())')

# The baseline of tests/test_work_counts.py, after a change that is meant to change the work.
work-counts: $(VENV)/.test
	cd tests && ../$(BIN)/python -m support.work_counts

coverage: $(VENV)/.test
	$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered

# The report is tested in a real browser. Who may not install it goes without; in CI the tests then fail.
chromium:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null || \
		echo "Chromium could not be installed: the report will not be tested in a browser"; \
	else echo "no Chromium on the path: the report will not be tested in a browser"; fi

# ruff and pyright before every commit.
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

bench: bench-step bench-index bench-compare
	$(BIN)/python benchmarks/collect.py

bench-compare: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_compare.py

bench-index: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_index.py

bench-sums: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_sums.py

bench-step: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_step.py

bench-fit: $(VENV)/.test
	$(BIN)/python benchmarks/bench_fit.py

bench-accuracy: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_accuracy.py

bench-scale: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_scale.py

bench-nn: $(VENV)/.test
	$(BIN)/python benchmarks/bench_nn.py

bench-predict: $(VENV)/.test
	$(BIN)/python benchmarks/bench_predict.py

bench-memory: $(VENV)/.test
	$(BIN)/python benchmarks/bench_memory.py

bench-load: $(VENV)/.test
	$(BIN)/python benchmarks/bench_load.py

bench-quantum: $(VENV)/.test
	$(BIN)/python benchmarks/bench_quantum.py

bench-theory: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_theory.py

bench-distributed: $(VENV)/.test
	$(BIN)/python benchmarks/bench_distributed.py

# Random problems, settings, commands, threads, kills, files and extreme numbers against the package:
# make adversary MINUTES=30, or ONLY=kills COUNT=100.
adversary: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m adversary $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

# Some 250 command lines over public and generated tables, each in a process of its own: ten minutes on two cores.
try-commands: $(VENV)/.test
	$(BIN)/python tests/support/command_sweep.py $(JOBS)

fuzz:
	$(MAKE) adversary ONLY=files COUNT=100000 SEED=0

clean: clean-kernels
	rm -rf .venv .venv-* out .coverage .pytest_cache .hypothesis .ruff_cache

# To compile all kernels anew. Those of changed sources are compiled anew anyway (kernels/compiling.py).
clean-kernels:
	rm -rf src/fireset/kernels/__pycache__ "$${XDG_CACHE_HOME:-$$HOME/.cache}"/fireset/kernels-*

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fireset needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

# torch first, from where its builds without accelerator packages are, which take gigabytes; where that place cannot be
# reached, from where pip looks by itself.
$(VENV)/.test: $(VENV)/.core
	$(if $(TORCH),@$(PIP) install --retries 0 --timeout 20 --no-deps \
		--index-url https://download.pytorch.org/whl/cpu $(TORCH) 2>/dev/null || true)
	$(PIP) install --constraint constraints.txt $(TORCH) --editable ".[test,lint]"
	@touch $@

# The built pages are tested, too.
$(VENV)/.docs: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	@touch $@
