# Everything a checkout needs, from Python alone. Settable: PYTHON (which interpreter), TORCH (whose build: cpu), PORT (of the dashboard),
# WORKERS (processes that run tests, of one thread and about 3 GB each), MINUTES (that a GPU is at hand), OUT (what gets its results).
PORT ?= 8501
WORKERS ?= 2
MINUTES ?= 30
BIN := .venv/bin
export PYTHON TORCH

.PHONY: app test lint dev docs docs-links suites constraints grid gpu notebooks screenshots animation drive wheel release clean
.NOTPARALLEL: # two at once would make the same environment

app:
	@tools/environment.sh app
	@$(BIN)/diffscope app --port $(PORT)

# Bytecode is written even if the environment says not to: each process that a test starts would compile the package again.
test: dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=1

dev:
	@tools/environment.sh dev

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# The whole suite on every Python from 3.11 on that is at hand, and on the lowest versions that pyproject.toml allows.
suites:
	tools/suites.sh

# The newest versions that fit together on every platform and Python, into constraints.txt.
constraints: dev
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/constraints.sh --upgrade

# Whether everything resolves, Python by platform; installs nothing.
grid: dev
	$(BIN)/python tools/grid.py

# Everything that waits for a GPU, with whatever Python is at hand: nothing is installed. MINUTES: how long at most.
gpu:
	$(or $(PYTHON),python3) -m benchmarks.gpu --minutes $(MINUTES) $(if $(OUT),--copy $(OUT))

# Every notebook of analyses/ executed in place; with MODEL=FOLDER OUT=FOLDER copies of them, of that model.
notebooks: dev
	$(BIN)/python -m tools.notebooks $(if $(MODEL),--model $(MODEL) --out $(OUT))

# The pictures of the dashboard that docs show, taken anew; needs Chromium.
screenshots: dev
	$(BIN)/python -m tools.screenshots

# The animation at the top of README; needs Chromium.
animation: dev
	$(BIN)/python -m tools.animation

# Every control of every page used once, with what the address of each brings back; needs Chromium.
drive: dev
	$(BIN)/python -m tools.drive_dashboard

# The site, into docs/_build/html: figures drawn, every warning an error, every link within it followed, nothing fetched.
docs:
	@tools/environment.sh docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Whether pages elsewhere that the site links to are there; needs a network.
docs-links:
	@tools/environment.sh docs
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/links

wheel: dev
	$(BIN)/python -m build --wheel

# Both distributions, checked, and tried in an environment that holds nothing else; nothing is uploaded.
release: dev
	$(BIN)/python -m tools.release

clean:
	rm -rf .venv .venvs build dist docs/_build docs/api docs/project docs/tutorials docs/gallery/*.md .pytest_cache .hypothesis .ruff_cache .import_linter_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
