# The targets share one private Python environment, .venv, which is made when it is first needed. `make demo` keeps its
# actions in the private Postgres of `settled` (under SETTLED_HOME) or in the one of SETTLED_DATABASE_URL; tests make
# a server of their own and remove it.
#   make PYTHON=python3.12 …   choose the interpreter (3.11 or later); a .venv of another version is made anew
#   make VENV=folder …         put the environment elsewhere
#   make test WORKERS=1        one test at a time (half of a test is waiting, so five suit two cores)
PYTHON ?=
VENV ?= .venv
PYTEST_ARGS ?=
NOTEBOOKS_ARGS ?=
WORKERS ?= 5
PINS := pyproject.toml constraints.txt scripts/venv.sh
RUN := $(VENV)/bin
VERSION = $(shell "$(1)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

.PHONY: help demo test test-deep check bench notebooks

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 16

demo: $(VENV)/.demo ## lose a reply on purpose and watch one ticket come out
	@$(RUN)/settled demo

test: $(VENV)/.dev ## run the tests (PYTEST_ARGS="-k name", --postgres=debian)
	@$(RUN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-deep: $(VENV)/.dev ## run the long searches of crash points and interleavings
	@$(RUN)/python -m pytest -m deep $(PYTEST_ARGS)

check: $(VENV)/.dev ## lint, format, types, import rules, tidiness
	@$(RUN)/ruff check --quiet
	@$(RUN)/ruff format --check --quiet
	@$(RUN)/mypy --no-error-summary
	@$(RUN)/python scripts/pages.py
	@said=$$($(RUN)/lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }
	@$(RUN)/python scripts/tidy.py

bench: $(VENV)/.dev ## measure what the safety costs, beside the same without it
	@$(RUN)/python bench/bench.py

notebooks: $(VENV)/.notebooks ## run the notebooks and keep their outputs (NOTEBOOKS_ARGS=--check: change nothing)
	@PATH="$(abspath $(RUN)):$$PATH" $(RUN)/python scripts/notebooks.py $(NOTEBOOKS_ARGS)

ifneq ($(PYTHON),)
ifneq ($(call VERSION,$(PYTHON)),$(call VERSION,$(VENV)/bin/python))
$(VENV)/.demo $(VENV)/.dev $(VENV)/.notebooks: other-version
endif
endif
.PHONY: other-version
other-version:

$(VENV)/.demo: $(PINS)
	@PYTHON="$(PYTHON)" sh scripts/venv.sh "$(VENV)" demo
	@touch $@

$(VENV)/.dev: $(PINS)
	@PYTHON="$(PYTHON)" sh scripts/venv.sh "$(VENV)" dev
	@touch $@ $(VENV)/.demo

$(VENV)/.notebooks: $(PINS)
	@PYTHON="$(PYTHON)" sh scripts/venv.sh "$(VENV)" dev,notebooks
	@touch $@ $(VENV)/.dev $(VENV)/.demo
