# Octavo's tasks; `make` alone lists them.
# Everything is installed into .venv. Stamp files in it remember what is there, so a second run starts at once
# and only a change of pyproject.toml installs again.

PYTHON ?= python3
MODEL   = smollm2
PROMPT  = Why is the sky blue?
ARGS    =
# Read from the environment, a prompt reaches the program with its quotes as they were typed.
export MODEL PROMPT

VENV   := .venv
PIP    := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check --no-input
CPP     = $(shell find csrc tests -name '*.h' -o -name '*.cpp')

# pip would put these into a new folder for every build. At one place, a change recompiles only what it touches.
BUILD_TOOLS := $(shell sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | sed 's/, / /g') cmake ninja
INSTALL     := $(PIP) install --no-build-isolation -e

TEST_MODELS := smollm2 gemma3-270m

# On Linux the torch that PyPI offers is a CUDA build of several GB. The tests need the CPU build alone, which only a
# "+cpu" version is sure to name; PyTorch's own index has it.
TORCH       := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)$(if $(filter Linux,$(shell uname -s)),+cpu)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# A worker that has nothing left takes tests from another. The workers use all processors, so numpy needs no threads.
PYTEST = OPENBLAS_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses=auto --dist=worksteal

# $(call stage,title,command): one line on the screen; the command's own output is shown only if it fails.
stage = echo '$(1)' >&2; log=$$({ $(2); } 2>&1) || { printf '%s\n' "$$log" >&2; exit 1; }

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: run test test-all sanitize check format clean help

run: $(VENV)/.runtime  ## answer one question: make run PROMPT="..." MODEL=smollm2
	@$(VENV)/bin/octavo run "$$MODEL" -- "$$PROMPT"

test: $(VENV)/.runtime $(VENV)/.test $(VENV)/.models  ## run the tests: make test ARGS="tests/scheduler -k fcfs"
	@$(PYTEST) $(ARGS)

test-all: $(VENV)/.runtime $(VENV)/.test $(VENV)/.models  ## run the slow tests too: every instruction set, large searches
	@$(PYTEST) --all $(ARGS)

sanitize: $(VENV)/.runtime $(VENV)/.test  ## run the native backend's tests with the compiler's sanitizers
	@.ci/sanitize $(VENV)/bin/python

check: $(VENV)/.check  ## formatting, lint and types, changing nothing
	@$(call stage,Formatting,$(VENV)/bin/ruff format --check .)
	@$(if $(CPP),$(call stage,C++ formatting,$(VENV)/bin/clang-format --dry-run --Werror $(CPP)))
	@$(call stage,Lint,$(VENV)/bin/ruff check .)
	@$(call stage,Types,$(VENV)/bin/mypy)

format: $(VENV)/.check  ## format the code and mend what lint can mend
	@$(VENV)/bin/ruff check --quiet --fix-only .
	@$(VENV)/bin/ruff format --quiet .
	@$(if $(CPP),$(VENV)/bin/clang-format -i $(CPP))

clean:  ## remove .venv, caches and build results
	@rm -rf $(VENV) build dist octavo/backends/native/_native*.so octavo/backends/native/_native.pyi .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find octavo tests -name __pycache__ -prune -exec rm -rf {} +

help:  ## this list
	@echo 'usage: make TARGET [PYTHON=python3.12]    (PYTHON counts when .venv is made: after make clean)'
	@sed -n 's/^\([a-z-]*\):[^#]*##  *\(.*\)/  \1\t\2/p' $(MAKEFILE_LIST)

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo 'There is no $(PYTHON) here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Octavo needs Python 3.11 or newer and $(PYTHON) is $$($(PYTHON) --version). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '$(PYTHON) cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv' >&2; exit 1; }
	@$(call stage,Making $(VENV),$(PYTHON) -m venv --clear $(VENV))
	@touch $@

$(VENV)/.build: $(VENV)/.created pyproject.toml
	@$(call stage,Installing the build tools,$(PIP) install $(BUILD_TOOLS))
	@touch $@

$(VENV)/.runtime: $(VENV)/.build csrc/CMakeLists.txt $(CPP)
	@$(call stage,Compiling and installing Octavo,$(INSTALL) .)
	@$(VENV)/bin/python -c 'import octavo.backends.native._native' 2>/dev/null || \
	  echo 'There is no C++ compiler here, so models will run slowly. Install one (g++ or clang++), then: make clean' >&2
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.runtime
	@$(call stage,Installing $(TORCH),$(PIP) install $(TORCH) || $(PIP) install --extra-index-url $(TORCH_INDEX) $(TORCH) \
	  || { echo 'No $(TORCH) for this Python; name an index that has it: make test TORCH_INDEX=...'; false; })
	@$(call stage,Installing the test tools,$(INSTALL) '.[test]')
	@touch $@

$(VENV)/.models: | $(VENV)/.runtime
	@$(call stage,Fetching the models that tests use,for name in $(TEST_MODELS); do $(VENV)/bin/octavo pull $$name || exit; done)
	@touch $@

$(VENV)/.check: pyproject.toml | $(VENV)/.runtime
	@$(call stage,Installing the check tools,$(INSTALL) '.[check]')
	@touch $@
