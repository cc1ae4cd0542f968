# Two commands do everything: `make demo` and `make test`. The first run makes .venv and installs the package into it;
# what the tests need comes with the first that needs it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LINKS  := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
INSTALL = $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(if $(LINKS),--find-links $(LINKS)) \
          -c constraints.txt

.PHONY: demo test slow mutants tables check docs format clean

demo: $(VENV)/.demo
	$(BIN)/firefly demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

mutants: $(VENV)/.installed
	$(BIN)/python tests/mutants.py --jobs 2

tables: $(VENV)/.installed
	$(BIN)/python benchmarks/tables.py

check: $(VENV)/.installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo build/site/index.html

format: $(VENV)/.installed
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(INSTALL) -e '.[test,check]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .ruff_cache .mypy_cache
