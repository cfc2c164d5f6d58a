# The whole vocabulary: install, demo, test, check, tiny-policy, clean.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Nothing here needs a hub, an account or telemetry, and small models are fastest on few threads.
export HF_HUB_OFFLINE ?= 1
export WANDB_MODE ?= offline
export GRADIO_ANALYTICS_ENABLED ?= False
export TOKENIZERS_PARALLELISM ?= false
export OMP_NUM_THREADS ?= $(shell $(PYTHON) -c 'import os; print(max(1, min(8, (os.cpu_count() or 1) // 2)))')

.PHONY: install demo test check format tiny-policy clean

install: $(STAMP)  ## Make .venv with all that the other targets need; does nothing when it is up to date.

# torch comes first and alone: it is by far the largest, and its exact version decides what the others resolve to.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: install  ## Train the embedded policy on this machine; ends with the before/after table and the run folder.
	$(BIN)/finqa train --model embedded --engine transformers --sandbox local $(ARGS)

test: install  ## All tests that need no GPU, no account and less than a minute each.
	$(BIN)/python -m pytest $(ARGS)

check: install  ## Format, lint, types and architecture.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture

format: install  ## Rewrite files into shape.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tiny-policy: install  ## Train the embedded policy again from nothing, as shipped.
	PATH="$(CURDIR)/$(BIN):$$PATH" bash recipes/tiny_policy.sh $(ARGS)

clean:  ## Remove the environment and caches; runs are kept.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
