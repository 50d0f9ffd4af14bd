# Every target sets up its own private Python environment in .venv; nothing else on the machine is touched.
#   make PYTHON=python3.12 …   choose the interpreter (3.11 or later)
#   make VENV=folder …         put the environment elsewhere
#   make test WORKERS=1        one test at a time (most of a test is waiting, so three suit two cores)
PYTHON ?=
VENV ?= .venv
PYTEST_ARGS ?=
WORKERS ?= 3
PINS := pyproject.toml constraints.txt scripts/venv.sh
RUN := $(VENV)/bin

.PHONY: help demo test test-deep check bench

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 16

demo: $(VENV)/.demo ## lose a reply on purpose and watch one ticket come out
	@$(RUN)/settled demo

test: $(VENV)/.dev ## run the tests (PYTEST_ARGS="-k name", --postgres=debian)
	@$(RUN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

test-deep: $(VENV)/.dev ## run the long searches of crash points and interleavings
	@$(RUN)/python -m pytest -m deep $(PYTEST_ARGS)

check: $(VENV)/.dev ## lint, format, types, import rules, tidiness
	@$(RUN)/ruff check --quiet
	@$(RUN)/ruff format --check --quiet
	@$(RUN)/mypy --no-error-summary
	@said=$$($(RUN)/lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }
	@$(RUN)/python scripts/tidy.py

bench: $(VENV)/.dev ## measure what the safety costs, beside the same without it
	@$(RUN)/python bench/bench.py

$(VENV)/.demo: $(PINS)
	@PYTHON="$(PYTHON)" sh scripts/venv.sh "$(VENV)" demo
	@touch $@

$(VENV)/.dev: $(PINS)
	@PYTHON="$(PYTHON)" sh scripts/venv.sh "$(VENV)" dev
	@touch $@ $(VENV)/.demo
