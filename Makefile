# On a fresh machine with Python 3.11 or newer, pip and make: `make demo` and `make test` do all set-up.
PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
MANISKILL_VENV ?= .venv-maniskill
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-processors test-numeric fuzz torture lint format bench results reward-results workflow-results hacking clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

demo: $(VENV)/.lab ## install, then learn a reward from images, and train a policy on it alone
	$(BIN)/guerdon demo

test: $(VENV)/.dev ## install, then run the tests
	$(BIN)/pytest -n auto --dist worksteal

test-slow: $(VENV)/.dev $(VENV)/.slurm $(MANISKILL_VENV)/.maniskill ## the tests that take minutes
	$(BIN)/pytest -n auto --dist worksteal -m slow
	$(MANISKILL_VENV)/bin/pytest -m slow tests/envs/test_maniskill.py tests/training/test_maniskill_workflow.py

# Variables that select the kernels of other processors on any x86 machine.
BASELINE := ATEN_CPU_CAPABILITY=default
AVX2 := ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \
	NPY_DISABLE_CPU_FEATURES=X86_V4,AVX512_ICL,AVX512_SPR

test-processors: $(VENV)/.dev ## the tests with the kernels of other processors: three times as long as test
	@failed=; for kernels in "$(BASELINE)" "$(AVX2)" ""; do \
		echo "== $${kernels:-the kernels of this processor}"; \
		env $$kernels $(BIN)/pytest -n auto --dist worksteal || failed=1; \
	done; test -z "$$failed"

test-numeric: $(VENV)/.dev ## the tests of numeric code with the kernels of AVX2
	env $(AVX2) $(BIN)/pytest -n auto --dist worksteal tests/ops tests/nn tests/data tests/policy tests/reward

fuzz: $(VENV)/.dev ## read 10,000 damaged and forged files of every kind: up to 15 minutes
	$(BIN)/python -m tests.security.fuzz

torture: $(VENV)/.dev ## kill and interrupt runs at random, resume them, and compare with whole runs: minutes
	$(BIN)/python -m tests.security.torture

lint: $(VENV)/.dev ## formatting, style, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_VENV)/.peers .venv-diengine/.peer .venv-imitation/.peer .venv-rllib/.peer ## compare with other libraries, in separate virtual environments
	$(BENCH_VENV)/bin/python benchmarks/buffers.py --markdown docs/benchmarks.md
	$(BENCH_VENV)/bin/python benchmarks/training.py
	$(BENCH_VENV)/bin/python benchmarks/rewards.py
	$(BENCH_VENV)/bin/python benchmarks/workflow.py
	$(BENCH_VENV)/bin/python benchmarks/startup.py

results: reward-results workflow-results ## train missing runs of the result pages, and write the pages
	$(BIN)/python benchmarks/learning.py

reward-results: $(VENV)/.box2d ## the results of reward models alone
	$(BIN)/python benchmarks/reward_learning.py

workflow-results: $(VENV)/.dev ## the results of rewards from images alone
	$(BIN)/python benchmarks/workflow_learning.py

hacking: $(VENV)/.dev ## train on rewards that can be exploited, and count which runs the alarms find: 40 minutes on 16 cores
	$(BIN)/python benchmarks/hacking.py --jobs $$(nproc)

clean: ## remove virtual environments and caches
	rm -rf $(VENV) $(BENCH_VENV) $(MANISKILL_VENV) .venv-diengine .venv-imitation .venv-rllib .mypy_cache .pytest_cache .ruff_cache .hypothesis

# All installs, including build requirements, use constraints.txt. A stamp file is written last, so that a second
# call does nothing and an interrupted one starts again.
INSTALL = PIP_CONSTRAINT=constraints.txt $(1)/bin/python -m pip install --quiet

# Installs the Debian packages $(1) if run as root; otherwise prints $(2), which says what is skipped.
DEBIAN = dpkg -s $(1) >/dev/null 2>&1 || \
	{ test "$$(id -u)" = 0 && { apt-get update -qq && \
	apt-get install -y -qq --no-install-recommends $(1); } >/dev/null 2>&1; } || \
	echo "$(2): apt-get install $(1)"

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "guerdon needs Python 3.11 or newer: run make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $*

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing guerdon into $(VENV): a few minutes, once."
	$(call INSTALL,$(VENV)) --editable .
	@touch $@

$(VENV)/.lab: $(VENV)/.core
	$(call INSTALL,$(VENV)) --editable '.[lab]'
	@touch $@

# LunarLander, which no test needs.
$(VENV)/.box2d: $(VENV)/.dev
	$(call INSTALL,$(VENV)) --editable '.[box2d]'
	@touch $@

# EGL, OpenGL and Mesa's software renderer, with which MuJoCo renders without a screen.
DEV_NEEDS = libegl1 libopengl0 libgl1-mesa-dri
# Opens the pages of `guerdon report`.
BROWSER = chromium fonts-dejavu-core

$(VENV)/.dev: $(VENV)/.core
	@$(call DEBIAN,$(DEV_NEEDS),Tests that render robots are skipped)
	@$(call DEBIAN,$(BROWSER),Tests of HTML pages are skipped)
	@echo "Installing test tools into $(VENV)."
	$(call INSTALL,$(VENV)) --editable '.[dev]'
	@touch $@

# A Slurm, which a test starts. RUNLEVEL keeps its programs from starting as services.
SLURM_NEEDS = slurmctld slurmd slurm-client munge iproute2 procps

$(VENV)/.slurm: $(VENV)/.core
	@RUNLEVEL=1 && export RUNLEVEL && $(call DEBIAN,$(SLURM_NEEDS),Tests on a Slurm are skipped)
	@touch $@

# SwiftShader, which renders without a GPU, and libraries of OpenCV.
MANISKILL_NEEDS = chromium-common libvulkan1 libgl1 libglib2.0-0

$(MANISKILL_VENV)/.maniskill: pyproject.toml constraints.txt | $(MANISKILL_VENV)/bin/python
	@$(call DEBIAN,$(MANISKILL_NEEDS),Without a Vulkan device ManiSkill's tests are skipped)
	@echo "Installing ManiSkill into $(MANISKILL_VENV): a few minutes, once."
	$(call INSTALL,$(MANISKILL_VENV)) --editable '.[maniskill]' hypothesis pytest
	@touch $@

$(BENCH_VENV)/.peers: pyproject.toml constraints.txt benchmarks/requirements.txt | $(BENCH_VENV)/bin/python
	@echo "Installing guerdon and other libraries into $(BENCH_VENV): a few minutes, once."
	$(call INSTALL,$(BENCH_VENV)) --editable '.[box2d,mujoco]' --requirement benchmarks/requirements.txt
	@touch $@

.PRECIOUS: %/bin/python

# Libraries with old requirements have their own environments, and are skipped if they cannot be installed.
.venv-%/.peer: benchmarks/learners/%.txt | .venv-%/bin/python
	@echo "Installing $* into .venv-$*."
	@.venv-$*/bin/python -m pip install --quiet --no-deps --requirement $< && touch $@ || \
		{ echo "$* could not be installed and is skipped."; rm -rf .venv-$*; }
