# Every target works alone on a machine that has make, Python 3.11 or newer with venv, and for what
# is compiled a C compiler and Python's headers. Set-up is kept in stamp files and repeated only
# when what it depends on has changed, which includes the interpreter and the compiler.
#
#   .venv        pinned tools, semel's dependencies, and (make install) the wheel
#   .venv-wheel  the wheel as a user installs it, and links to what .venv has; never the sources
#   .venv-run    the wheel and what running it needs (make run, make demo); no tools
#   .venv-docs   what builds the site of the documentation (make docs), and nothing else
#   .build       stamps, the build's log, coverage data, the site

PYTHON ?= python3
ARGS ?=
# 1: what `make run` and `make demo` run is compiled.
COMPILE ?=
# Schedules of `make simulate`.
SEEDS ?= 100000
# Schedules with two brokers and a bridge, which follow unless ARGS is set.
BRIDGE_SEEDS ?= 5000
# Processes that share a run of the suite. Tests of processes wait much, so that two processors can
# serve three. ARGS="-n0 -s" runs it in one, with its output.
WORKERS ?= 3
# Each of these starts a Spark of its own. They wait much, too: for Spark to start, and to be killed.
SPARK_WORKERS ?= 3

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
# Targets run in the order they are listed, also under make -j.
.NOTPARALLEL:

PIP := -m pip --disable-pip-version-check --quiet
PIN := -c constraints.txt
# The source tree, never a compiled file: what the interpreted runs import.
SOURCES := PYTHONPATH=$(CURDIR)/src
INTERPRETED := env $(SOURCES) SEMEL_TEST_MODE=interpreted .venv/bin/python
COMPILED := env -u PYTHONPATH SEMEL_TEST_MODE=compiled .venv-wheel/bin/python
# Each worker measures itself from its first import on, into a file of its own.
MEASURED := env COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml $(INTERPRETED)
# Each worker begins with its share of the files in their order, and takes from the others' when it
# has done them.
SHARED := -n $(WORKERS) --dist worksteal

# Tests that wait for nothing: no process, no socket, no sleep (tests/conftest.py refuses them).
CORE := tests/mqtt tests/simulation $(wildcard tests/*/core)
# What is compiled is tested in both forms, by the tests that run it in their own process. All that
# starts others, or is not compiled, is tested once: on the wheel, as users have it.
BOTH_FORMS := tests/mqtt tests/simulation tests/broker/core tests/broker/network \
    tests/client/core tests/store/core
# Each worker that gets one of these starts a Spark of its own.
SPARK := $(wildcard tests/*/spark)

# What the suite must cover to the last branch. The broker's network shell runs in processes of
# its own, where nobody counts.
COVERED := --include='src/semel/mqtt/*,src/semel/broker/*' \
    --omit='src/semel/broker/network/server.py,src/semel/broker/network/peers.py'

TOOLS := .venv/.tools
INSTALLED := .venv/.semel
WHEEL := .build/wheel
WHEEL_TOOLS := .venv-wheel/.tools
WHEEL_INSTALLED := .venv-wheel/.semel
RUN_TOOLS := .venv-run/.tools
DOCS_TOOLS := .venv-docs/.tools
ifeq ($(COMPILE),1)
RUN_INSTALLED := .venv-run/.semel-compiled
RUN_NEEDS := .build/compiler
PURE := env SEMEL_PURE=0
BUILDING := compiled, which takes minutes
else
RUN_INSTALLED := .venv-run/.semel
RUN_NEEDS :=
PURE := env SEMEL_PURE=1
BUILDING := uncompiled (make run COMPILE=1 compiles it, which takes minutes)
endif

.PHONY: help
help: ## Say what can be made (the default)
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: install
install: $(INSTALLED) ## Make .venv with pinned tools and the compiled package
	@echo "installed: .venv/bin/semel"

.PHONY: quick
quick: $(TOOLS) | .build ## Check format, lint and types, and run the tests that wait for nothing
	.venv/bin/ruff format --check --quiet .
	.venv/bin/ruff check --quiet .
	@# Types beside tests: mypy takes one processor, and is done before them.
	.venv/bin/python -m mypy > .build/mypy.log & types=$$!; \
	    $(INTERPRETED) -m pytest -q --no-header -n 2 --dist worksteal -m "not slow and not long" \
	        $(CORE) $(ARGS); \
	    wait $$types || { cat .build/mypy.log; exit 1; }

.PHONY: test
test: .build/compiler $(TOOLS) ## Run the suite in all its parts; check coverage
	@# The compiler takes one processor for minutes: beside the first tests, which do without it.
	@$(MAKE) --no-print-directory $(WHEEL_INSTALLED) > .build/installed.log 2>&1 & compiling=$$!; \
	    $(MAKE) --no-print-directory test-interpreted || { kill $$compiling; exit 1; }; \
	    wait $$compiling || { cat .build/installed.log; exit 1; }
	@$(MAKE) --no-print-directory test-compiled
	@$(MAKE) --no-print-directory test-spark
	.venv/bin/python -m coverage report $(COVERED) --fail-under=100

.PHONY: test-interpreted
test-interpreted: $(TOOLS) | .build ## Test what is compiled on the source tree, with coverage
	rm -f .build/coverage .build/coverage.*
	$(MEASURED) -m pytest $(SHARED) -m "not long" $(BOTH_FORMS) $(ARGS)
	.venv/bin/python -m coverage combine --quiet

.PHONY: test-compiled
test-compiled: $(WHEEL_INSTALLED) ## Run all but the pipeline's tests on the installed wheel
	$(COMPILED) -m pytest $(SHARED) -m "not long" $(SPARK:%=--ignore=%) $(ARGS)

.PHONY: test-without-epoll
test-without-epoll: $(WHEEL_INSTALLED) ## Test the broker's network as on a system without epoll
	TEST_EPOLL=0 $(COMPILED) -m pytest $(SHARED) tests/broker/live $(ARGS)

.PHONY: test-spark
test-spark: $(WHEEL_INSTALLED) ## Run the tests of the pipeline, on the installed wheel
	@# A file whose test ends its process is begun again; once is enough.
	$(COMPILED) -m pytest -n $(SPARK_WORKERS) --dist worksteal --max-worker-restart 1 \
	    -m "not long" $(SPARK) $(ARGS)

.PHONY: test-marked-long
test-marked-long: $(WHEEL_INSTALLED) ## Run the tests that are marked long, which make test leaves out
	$(COMPILED) -m pytest -n $(WORKERS) --dist worksteal -m long $(ARGS)

.PHONY: test-elsewhere
test-elsewhere: ## Run make test on another release of Debian, as root (RELEASE=trixie)
	@.ci/elsewhere $(RELEASE)

.PHONY: check
check: $(TOOLS) ## Check format, lint, types, the import graph and security
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/python -m mypy
	$(INTERPRETED) -m pytest -q tests/test_imports.py
	@mkdir -p .build
	.venv/bin/python -m bandit --quiet --recursive --configfile pyproject.toml src \
	    2> .build/bandit.log || { cat .build/bandit.log; exit 1; }
	@if .venv/bin/python -c "$$ASK_PYPI"; then \
	    echo .venv/bin/python -m pip_audit $(AUDIT); .venv/bin/python -m pip_audit $(AUDIT); \
	else \
	    echo "make: pip-audit is SKIPPED: pypi.org does not answer with vulnerabilities"; \
	fi

# All pinned versions, and nothing else: neither resolved nor installed. A package that cannot be
# audited is an error.
AUDIT := --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off

# Exits with 1 unless PyPI's own interface, which lists vulnerabilities, answers. A mirror that does
# not have them would make pip-audit report that there are none.
define ASK_PYPI
import json, sys, urllib.request
try:
    with urllib.request.urlopen('https://pypi.org/pypi/requests/2.5.0/json', timeout=10) as answer:
        sys.exit(0 if json.load(answer)['vulnerabilities'] else 1)
except (OSError, ValueError, LookupError, TypeError):
    sys.exit(1)
endef
export ASK_PYPI

.PHONY: format
format: $(TOOLS) ## Format the sources and apply the linter's safe fixes
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: docs
docs: $(DOCS_TOOLS) | .build ## Build the site of the documentation into .build/site
	@# Material says at each run that mkdocs 2 will not support it.
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs --quiet build --strict
	@echo "built: .build/site/index.html"

.PHONY: reference
reference: $(TOOLS) ## Write the pages that are generated from the code: commands, API
	env $(SOURCES) .venv/bin/python -m tests.reference

.PHONY: screenshots
screenshots: $(TOOLS) ## Take the pictures of the page in docs/images (ARGS=--fake: without semel up)
	env $(SOURCES) .venv/bin/python -m tests.web.page_screenshots $(ARGS)

.PHONY: recording
recording: $(TOOLS) ## Record semel demo as the moving picture docs/images/demo.svg
	env $(SOURCES) .venv/bin/python -m tests.lab.demo_recording $(ARGS)

.PHONY: extra-sizes
extra-sizes: $(TOOLS) ## Measure what each extra installs; downloads about 1 GB (ARGS="web sql")
	env $(SOURCES) .venv/bin/python -m tests.reference.extra_sizes $(ARGS)

.PHONY: run
run: $(RUN_INSTALLED) ## Start broker, record and landing (ARGS="--port 1884"); Ctrl-C ends them
	@echo "make: semel up $(ARGS)"
	@exec .venv-run/bin/semel up $(ARGS)

.PHONY: demo
demo: $(RUN_INSTALLED) ## Land a simulated fleet while everything is killed; ends by itself
	@echo "make: semel demo $(ARGS)"
	@exec .venv-run/bin/semel demo $(ARGS)

.PHONY: bench
bench: $(WHEEL_INSTALLED) ## Measure the compiled package beside its peers
	env -u PYTHONPATH .venv-wheel/bin/python -m bench $(ARGS)

.PHONY: fuzz
fuzz: $(WHEEL_INSTALLED) ## Feed the compiled package random input for long (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.fuzz $(ARGS)

.PHONY: probe-mutants
probe-mutants: $(TOOLS) ## Examine every broker with a deliberate fault by every case
	env $(SOURCES) .venv/bin/python -m tests.long.probe_mutants $(ARGS)

.PHONY: probe-brokers
probe-brokers: $(WHEEL_INSTALLED) ## Examine semel's broker by every case over each transport, five times
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.broker_probe $(ARGS)

.PHONY: probe-clients
probe-clients: $(WHEEL_INSTALLED) ## Examine semel's client by every case, five times
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.client_probe $(ARGS)

.PHONY: mutants
mutants: $(TOOLS) ## Break the sources on purpose; the tests must notice (ARGS=...)
	env $(SOURCES) .venv/bin/python -m tests.long.mutants $(ARGS)

.PHONY: schedules
schedules: $(WHEEL_INSTALLED) ## Cut and crash two sessions at random for long (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.schedules $(ARGS)

.PHONY: histories
histories: $(WHEEL_INSTALLED) ## Compare the broker's hot and plain path for long (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.histories $(ARGS)

.PHONY: simulate
simulate: $(WHEEL_INSTALLED) ## Crash a simulated broker in every way (SEEDS=100000, ARGS=...); then a bridge
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.simulate --seeds $(SEEDS) $(ARGS)
	$(if $(ARGS),,env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.simulate_bridges --seeds $(BRIDGE_SEEDS))

.PHONY: kills
kills: $(WHEEL_INSTALLED) ## Kill the real broker under load again and again (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.kills $(ARGS)

.PHONY: connection-floods
connection-floods: $(WHEEL_INSTALLED) ## Open and drop thousands of connections (ARGS="--seconds 60")
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.connection_floods $(ARGS)

.PHONY: client-kills
client-kills: $(WHEEL_INSTALLED) ## Kill a client with an outbox again and again (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.client_kills $(ARGS)

.PHONY: client-schedules
client-schedules: $(WHEEL_INSTALLED) ## Cut and crash a client's core at random for long (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.client_schedules $(ARGS)

.PHONY: ingest-kills
ingest-kills: $(WHEEL_INSTALLED) ## Kill semel ingest under load again and again (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.ingest_kills $(ARGS)

.PHONY: bridge-kills
bridge-kills: $(WHEEL_INSTALLED) ## Kill two brokers and a bridge again and again (ARGS=...)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.bridge_kills $(ARGS)

.PHONY: pipeline-kills
pipeline-kills: $(WHEEL_INSTALLED) ## Kill everything from broker to Spark again and again (ARGS=--landing, --back)
	env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.pipeline_kills $(ARGS)
	$(if $(ARGS),,env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.pipeline_kills --landing --kills 30)
	$(if $(ARGS),,env -u PYTHONPATH .venv-wheel/bin/python -m tests.long.pipeline_kills --back --kills 20)

.PHONY: coverage
coverage: $(TOOLS) ## Check that each core module is covered by its own test file
	env $(SOURCES) .venv/bin/python -m tests.long.coverage

LONG := test-marked-long test-without-epoll coverage schedules histories client-schedules simulate connection-floods kills client-kills \
    ingest-kills bridge-kills pipeline-kills fuzz mutants probe-mutants probe-brokers \
    probe-clients

.PHONY: test-long
test-long: test $(LONG) ## Run everything, long runs too

.PHONY: wheel
wheel: $(WHEEL) ## Build the wheel into dist/
	@ls dist/*.whl

.PHONY: clean
clean: ## Remove everything that make made
	rm -rf .venv .venv-wheel .venv-run .venv-docs .build build dist src/*.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# --- set-up ---------------------------------------------------------------------------------------

.build:
	@mkdir -p $@

# What there is to build with, rewritten only when it differs: what another Python or compiler has
# made is made anew, and a machine that lacks something is told so in one sentence.
.build/python .build/compiler: .build/%: FORCE | .build
	@command -v $(PYTHON) > /dev/null \
	    || { echo "make: this needs Python 3.11 or newer (Debian's package python3)" >&2; exit 1; }
	@# Beside another make, as in `make test`.
	@$(PYTHON) .ci/needs.py $* > $@.$$PPID
	@if cmp -s $@.$$PPID $@; then rm $@.$$PPID; else mv $@.$$PPID $@; fi

$(TOOLS): pyproject.toml constraints.txt .build/python
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python $(PIP) install $(PIN) pip
	.venv/bin/python $(PIP) install $(PIN) --group dev
	.venv/bin/python $(PIP) install $(PIN) --no-build-isolation --only-deps .
	@touch $@

# A list of the sources with their checksums, rewritten only when it differs, so that adding,
# changing or removing any file rebuilds the wheel and nothing else does.
.build/sources: FORCE | .build
	@find src setup.py pyproject.toml README.md LICENSE -type f \
	    ! -path '*/__pycache__/*' ! -path '*.egg-info/*' \
	    | LC_ALL=C sort | xargs cksum > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.PHONY: FORCE
FORCE:

# Compiled, or not at all: tests of a wheel that is not would say nothing about it.
$(WHEEL): .build/sources .build/compiler $(TOOLS)
	@rm -rf dist
	SEMEL_PURE=0 .venv/bin/python -m build --wheel --no-isolation . > .build/wheel.log 2>&1 \
	    || { cat .build/wheel.log; exit 1; }
	@touch $@

$(INSTALLED): $(WHEEL) $(TOOLS)
	.venv/bin/python $(PIP) install --force-reinstall --no-deps dist/*.whl
	@touch $@

# Links to the files that pip has installed into .venv: a second installation takes longer, and half
# a gigabyte.
$(WHEEL_TOOLS): $(TOOLS)
	$(PYTHON) -m venv --clear --without-pip .venv-wheel
	cp --archive --link --force .venv/lib/. .venv-wheel/lib
	@touch $@

$(WHEEL_INSTALLED): $(WHEEL) $(WHEEL_TOOLS)
	.venv-wheel/bin/python $(PIP) install --force-reinstall --no-deps dist/*.whl
	.venv-wheel/bin/python $(PIP) check
	@touch $@

$(DOCS_TOOLS): pyproject.toml constraints.txt .build/python
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python $(PIP) install $(PIN) pip
	.venv-docs/bin/python $(PIP) install $(PIN) --group docs
	@touch $@

# Each step says what it does: the first one downloads hundreds of megabytes. The requirements are
# read from pyproject.toml, so that they are there before the wheel is, and stay when it changes.
$(RUN_TOOLS): pyproject.toml constraints.txt .build/python
	@echo "make: making .venv-run, an environment for running semel"
	@$(PYTHON) -m venv --clear .venv-run
	@.venv-run/bin/python $(PIP) install $(PIN) pip
	@echo "make: installing what semel runs with: PySpark, a Java, DuckDB, … (1.2 GB on disk, once)"
	@.venv-run/bin/python -c "$$REQUIREMENTS" > .build/requirements.txt
	@.venv-run/bin/python $(PIP) install $(PIN) -r .build/requirements.txt
	@touch $@

# All that the extra `all` brings, and what semel itself depends on.
define REQUIREMENTS
import re, tomllib
project = tomllib.load(open('pyproject.toml', 'rb'))['project']
def extra(name):
    for each in project['optional-dependencies'][name]:
        included = re.fullmatch(r'semel\[(.+)\]', each)
        if included:
            for other in included[1].split(','):
                yield from extra(other)
        else:
            yield each
print(*project['dependencies'], *extra('all'), sep='\n')
endef
export REQUIREMENTS

# pip builds the wheel with tools that it throws away. Compiling takes minutes, and is for those who
# measure: without COMPILE=1 the package runs as Python, unless a wheel of these very sources is
# there already (make wheel, make test).
$(RUN_INSTALLED): .build/sources $(RUN_NEEDS) $(RUN_TOOLS)
	@rm -rf .build/run .venv-run/.semel*
	@if [ .build/wheel -nt .build/sources ] && [ .build/wheel -nt .build/python ] \
	    && ls dist/*.whl > /dev/null 2>&1; then \
	    echo "make: installing semel from dist/"; \
	    cp -r dist .build/run; \
	else \
	    echo "make: building semel, $(BUILDING)"; \
	    $(PURE) .venv-run/bin/python $(PIP) wheel --build-constraint constraints.txt --no-deps \
	        -w .build/run . > .build/run.log 2>&1 || { cat .build/run.log; exit 1; }; \
	fi
	@.venv-run/bin/python $(PIP) install --force-reinstall --no-deps .build/run/*.whl
	@touch $@
