# Every target sets up what it needs; a second run is quick. `make` lists them.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
PY := $(BIN)/python
DOCS := .venv-docs

.DEFAULT_GOAL := help
.PHONY: help demo test test-stack lint format types docs bench wheel setup clean

help:
	@echo "make demo        the main job on the real 25.09 wheels, in a temporary folder"
	@echo "make test        the tests; ARGS='-k ledger -x' goes to pytest"
	@echo "make test-stack  the tests that import the real stacks (heavy)"
	@echo "make lint types  ruff and mypy; make format puts right what ruff can"
	@echo "make docs        the documentation, in site/; python -m docs.generate writes its generated pages"
	@echo "make bench       the benchmarks"
	@echo "make wheel       the wheel and the sdist, in dist/"
	@echo "make clean       remove the virtual environment and what was built"

demo: $(VENV)/.installed
	@PYTHON=$(PY) bash scripts/demo.sh

test: $(VENV)/.dev
	$(PY) fixtures/fetch.py
	$(PY) -m pytest -n $(JOBS) --dist loadgroup --timeout 600 --ignore tests/stack $(ARGS)

test-stack: $(VENV)/.dev
	@if [ -n "$(wildcard tests/stack/test_*.py)" ]; then \
		$(PY) fixtures/fetch.py && $(PY) -m pytest tests/stack --timeout 1200 $(ARGS); \
	else echo "tests/stack: no tests yet"; fi

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The new code of each project's patches is checked by itself: the folders' names are no package names, and
# files of one name may be in two of them.
types: $(VENV)/.dev
	$(PY) -m mypy $(sort $(dir $(wildcard migrator/*.py fixtures/*.py bench/*.py docs/*.py)))
	@for folder in $(sort $(dir $(wildcard patches/*/*.py))); do \
		echo "mypy $$folder"; MYPYPATH=$$folder $(PY) -m mypy $$folder || exit 1; done

docs: $(VENV)/.installed $(DOCS)/.installed
	$(PY) -m docs.generate --check
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

bench: $(VENV)/.dev
	$(PY) fixtures/fetch.py
	$(PY) bench/bench_cli.py $(ARGS)

wheel: $(VENV)/.dev
	$(PY) -m build --no-isolation

setup: $(VENV)/.dev

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "cpfix needs Python 3.10 or newer: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian: python3-venv)"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml migrator/__init__.py requirements/base.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements/base.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed requirements/dev.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@touch $@

$(DOCS)/.installed: $(VENV)/.created requirements/docs.txt
	$(PY) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
