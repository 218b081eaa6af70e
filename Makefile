# Everything runs in .venv, made on first use from the pinned requirements; a second call starts
# at once. PYTHON may name any interpreter from 3.11 on.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV   := .venv
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev

# Compiled programs are kept between runs; several fake CPU devices need NPROC (docs/install.md, "Traps").
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.5
export NPROC ?= 16

.PHONY: quickstart quickstart-short smollm2 test test-all faults fuzz parity harness tables docs kernels-aot lint format clean

quickstart: $(STAMP)
	@$(RUN) -m sbdjax quickstart

quickstart-short: $(STAMP)
	@$(RUN) -m sbdjax quickstart --short --workdir=quickstart/short

# A small chat model, SmolLM2-135M-Instruct (98 MB), for --checkpoint=smollm2-135m.
smollm2: $(STAMP)
	@$(RUN) -m sbdjax.interop.install_smollm2

test: $(DEV)
	$(RUN) -m pytest -n 2 --dist loadfile -m "not long" tests

test-all: $(DEV)
	$(RUN) -m pytest -n 2 --dist loadfile tests
	$(MAKE) faults

# Kills, full disks, damaged files, two processes at once: a table, and ends that are bit-identical.
FAULTS ?= --runs=100
faults: $(DEV)
	$(RUN) -m tests.faults $(FAULTS)

# Damaged inputs of every parser, new ones each time; each target takes so many.
FUZZ_EXAMPLES ?= 2000
fuzz: $(DEV)
	SBDJAX_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(RUN) -m pytest -n 2 tests/fuzz

# Beside torch and transformers, which the other targets do not install (a GB; PARITY_INDEX may name an
# index of smaller builds of torch). Nothing is skipped for want of them.
PARITY       := $(VENV)/.installed-parity
PARITY_INDEX ?=
PARITY_TESTS := tests/interop tests/data/test_vocabulary_files.py tests/data/test_chat.py \
  tests/bench/test_flex.py tests/bench/test_torch_llama.py tests/cli/test_bench.py tests/cli/test_bench_peers.py \
  tests/cli/test_finetune_live.py tests/experiments/test_smollm2.py

parity: $(PARITY)
	SBDJAX_PARITY=1 $(RUN) -m pytest -n 2 --dist loadfile $(PARITY_TESTS)

$(PARITY): $(DEV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check \
	  $(if $(PARITY_INDEX),--extra-index-url $(PARITY_INDEX)) --editable ".[dev,parity]"
	@touch $@

# Beside lm-evaluation-harness and math-verify, which the other targets do not install. IFEval counts
# sentences with data of nltk.
HARNESS       := $(VENV)/.installed-harness
HARNESS_TESTS := tests/evals/tasks tests/evals/test_lm_eval_adapter.py tests/evals/test_sandbox.py \
  tests/cli/test_evaluate_tasks.py

harness: $(HARNESS)
	SBDJAX_HARNESS=1 $(RUN) -m pytest -n 2 --dist loadfile $(HARNESS_TESTS)

$(HARNESS): $(DEV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --editable ".[dev,eval]"
	@$(RUN) -m nltk.downloader -q punkt_tab
	@touch $@

# Every table of the READMEs anew, from the records; says what else differs.
tables: $(STAMP)
	@$(RUN) experiments/tables.py --write

# The pages, in docs/_build/html: notebooks are executed, warnings are errors, and every link inside
# of the pages is followed (those that lead outside are listed in docs/_build/external.txt). Offline.
DOCS := $(VENV)/.installed-docs
docs: $(DOCS)
	$(RUN) -m sphinx -W --keep-going -b html docs docs/_build/html
	$(RUN) docs/_ext/check_links.py docs/_build/html docs/_build/external.txt

$(DOCS): $(STAMP) requirements-docs.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

# Kernels compiled for TPUs and GPUs that are not here; skipped where their clients are not installed.
# AOT_PYTHON: an interpreter that has the clients.
AOT_PYTHON ?= $(RUN)
kernels-aot: $(if $(filter $(RUN),$(AOT_PYTHON)),$(STAMP))
	$(AOT_PYTHON) experiments/kernels/aot.py

lint: $(DEV)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(DEV)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(STAMP): requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || \
	  { echo "error: found no Python >= 3.11: install one, or name it: make PYTHON=..."; exit 2; }
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned requirements into $(VENV) (once) ..."
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(DEV): $(STAMP)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) docs/_build docs/generated .jax_cache .mypy_cache .pytest_cache .ruff_cache build dist quickstart *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
