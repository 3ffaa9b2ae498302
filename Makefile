# Needs Python 3.11 or later with venv; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint format picture circuits docs bench bench-index bench-sums bench-step bench-quantum bench-theory \
	bench-compare bench-distributed fuzz clean

demo: $(VENV)/.core
	@mkdir -p out
	$(BIN)/fireset demo --out out/fireset-demo.safetensors

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

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

circuits: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python docs/draw_circuits.py docs

docs: $(VENV)/.core
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
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

bench-quantum: $(VENV)/.test
	$(BIN)/python benchmarks/bench_quantum.py

bench-theory: $(VENV)/.test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/bench_theory.py

bench-distributed: $(VENV)/.test
	$(BIN)/python benchmarks/bench_distributed.py

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzzing.py

clean:
	rm -rf $(VENV) out .pytest_cache .hypothesis .ruff_cache

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fireset needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

# torch by its pinned version: a range would fetch the newest build with all its accelerator packages.
$(VENV)/.test: $(VENV)/.core
	$(PIP) install --constraint constraints.txt torch==2.13.0 --editable ".[test,lint]"
	@touch $@
