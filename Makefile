# Everything here works on a fresh machine with make and Python 3.11 or newer; what is missing is set up first.

ifndef PYTHON
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11 python3.14; do \
	command -v $$name >/dev/null 2>&1 && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$name && break; done)
endif
SETUP = $(PYTHON) -I apps/config/local/install.py
ARGS ?=

.PHONY: run test check bench kill-test python
.DEFAULT_GOAL := run

# Starts everything and prints one address. Ctrl-C stops it; the data stays in ./data (PACELINE_DATA_DIR).
run: python
	@$(SETUP) local -- -m apps.config.local

# All tests, browser tests included. Some of them: make test ARGS="tests/config -x"
test: python
	@$(SETUP) local,dev --browser -- -m pytest -n 2 --dist loadfile $(ARGS)

# Format, lint, types, the direction of imports, and whether a migration is missing.
check: python
	@$(SETUP) local,dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy apps
	cd client && ../.venv/bin/mypy
	.venv/bin/lint-imports --cache-dir .import_linter_cache
	.venv/bin/python manage.py makemigrations --check --dry-run

# What the README calls measured, one script after the other. One of them: make bench BENCH=tests/benchmarks/bench_tiles.py
BENCH ?= $(shell grep -l '^if __name__ == "__main__"' tests/benchmarks/bench_*.py client/bench/bench_*.py)
bench: python
	@$(SETUP) local,dev
	@for script in $(BENCH); do echo "== $$script"; \
		PYTHONPATH=.:client/src .venv/bin/python -m $$(echo "$${script%.py}" | tr / .) $(ARGS) || exit 1; done

# Kills every process of an installation at every stage of an action; goes on from where it stopped. make kill-test SEEDS=1000
SEEDS ?= 1000
kill-test: python
	@$(SETUP) local,dev
	@DJANGO_SETTINGS_MODULE=apps.config.settings .venv/bin/python -m tests.kill $(SEEDS) $(ARGS)

python:
	@test -n "$(PYTHON)" || { echo "Paceline needs Python 3.11 or newer, and none was found. Install one (Debian and \
	Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3 run"; exit 1; }
