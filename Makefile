# Thin names for commands that also work by hand. Each makes what it needs and says how long it takes.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PACKAGES := handler operator client devcluster
ARGS ?=
APT_INSTALL = $(if $(filter 0,$(shell id -u)),,sudo) sh -c 'apt-get update --quiet && apt-get install --yes --no-install-recommends "$$@"' apt

.PHONY: help demo sandbox test test-slow test-guides test-kueue test-gang test-nodes test-monitoring test-screens lint matrix matrix-kubernetes bench bench-scale bench-jobs bench-peers bench-rivals histories histories-checkpoints histories-peers chaos kills oncall images controlplane format clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

demo: $(READY) controlplane ## train a real model through an ElasticJob, and kill rank 0 while it trains (90 s)
	@$(BIN)/python -m examples.demo $(ARGS)

sandbox: $(READY) controlplane ## a cluster on this machine to try your own script on, until Ctrl-C
	@$(BIN)/python -m examples.sandbox $(ARGS)

test: $(READY) controlplane ## what a change must pass (ARGS="-k name" for some; devcluster's own: ARGS=devcluster/tests)
	@echo "== tests: pure ones and conformance, then real control planes and real torchruns (half an hour on 2 cores)"
ifeq ($(ARGS),)
	@rm -rf build/operator-rights
	@$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder tests/conformance tests/simulation tests/peers tests/memory tests/unit tests/scenarios
	@$(BIN)/pytest -q -n 3 --max-worker-restart 0 --dist loadfile devcluster/tests
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder tests/chart tests/e2e tests/chaos tests/integration
	@$(BIN)/python -m tests.operator_rights
else
	@$(BIN)/pytest $(ARGS)
endif

test-slow: $(READY) controlplane ## the tests that make test leaves out: minutes each, or variants (an hour)
ifeq ($(ARGS),)
	@$(BIN)/pytest -n 2 -m slow tests/unit tests/scenarios tests/simulation tests/peers tests/memory
	@$(BIN)/pytest -m slow tests/integration tests/conformance tests/chart tests/e2e tests/chaos
	@$(BIN)/pytest -m slow devcluster/tests
else
	@$(BIN)/pytest -m slow $(ARGS)
endif

test-guides: $(READY) controlplane ## the guides' scripts with the real libraries, which get an environment of their own (15 minutes; needs g++)
	@$(BIN)/pytest tests/guides $(ARGS)

test-kueue: $(READY) controlplane ## jobs in queues of the real Kueue (10 minutes; 15 more the first time, which builds it; DEVCLUSTER_KUEUE=v0.18.3 for another version; ARGS="--operations 500" or "-m slow")
	@$(BIN)/pytest tests/kueue $(ARGS)

test-gang: $(READY) controlplane ## jobs whose pods a scheduler places together, by PodGroups (10 minutes, 20 more the first time; DEVCLUSTER_KUBERNETES=1.37 for another version)
	@$(BIN)/pytest tests/gang $(ARGS)

test-nodes: $(READY) ## the product on two nodes with kubelet and containerd, from built images (45 minutes, an hour the first time; root, installs packages)
	@$(BIN)/python -m devcluster packages --install
	@$(MAKE) --no-print-directory controlplane
	@$(BIN)/pytest -m nodes devcluster/tests
	@$(BIN)/pytest -m nodes tests/nodes $(ARGS)

test-monitoring: $(READY) controlplane ## alerts and dashboard with promtool and with a real Prometheus that scrapes a real operator (10 minutes; 5 more the first time)
	@$(BIN)/pytest tests/monitoring $(ARGS)

test-screens: $(READY) controlplane ## what people see, in a browser and in a terminal: the report and top (5 minutes; installs Chromium and tmux by apt-get)
	@command -v tmux >/dev/null || $(APT_INSTALL) tmux
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || $(APT_INSTALL) chromium
	@$(BIN)/pytest tests/screens $(ARGS)

lint: $(READY) ## ruff, mypy --strict, import-linter, actionlint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy crds/generate.py crds/reference.py client/unasync.py
	@$(BIN)/mypy --python-version 3.10 -p elasticjob -p elasticjob_client # what goes into training images, and where people work, whatever Python is there
	@cd devcluster && ../$(BIN)/mypy
	@cd examples/digits && ../../$(BIN)/mypy --config-file ../../pyproject.toml train.py checkpoint.py
	@$(BIN)/python -m tests.workflows
	@$(BIN)/lint-imports --no-cache >$(VENV)/lint-imports.log || (cat $(VENV)/lint-imports.log; exit 1)

matrix: $(READY) controlplane ## end to end with torch 2.4, 2.6, 2.8 and the newest in pods (20 minutes; ARGS="2.4", or ARGS="--python 3.10")
	@$(BIN)/python -m tests.matrix $(ARGS)

matrix-kubernetes: $(READY) ## API server's tests with the oldest Kubernetes, 1.36 and the newest (15 minutes each; built once, in 5 to 30 minutes; ARGS="1.30")
	@$(BIN)/python -m tests.matrix.kubernetes $(ARGS)

bench: $(READY) controlplane ## ours against torch's c10d, in one run (under 40 minutes; ARGS="--what rejoin --n 2,8 --runs 3" for a part)
	@$(BIN)/python -m benchmarks $(ARGS)

oncall: $(READY) controlplane ## 26 faults, and what kubectl shows of each, for a reader on call (25 minutes; ARGS=FOLDER, or ARGS="FOLDER --only quota,hang")
	@$(BIN)/python -m tests.oncall $(ARGS)

histories: $(READY) ## 100,000 simulated histories on all cores (20 minutes; ARGS="--trace 7" prints one)
	@$(BIN)/python -m tests.simulation $(or $(ARGS),--histories 100000)

histories-checkpoints: $(READY) ## 10,000 histories of a directory of checkpoints under kills, errors and full disks (10 minutes; ARGS="--trace 7" prints one)
	@$(BIN)/python -m tests.checkpoints $(ARGS)

histories-peers: $(READY) ## 10,000 simulated histories of runs without an operator on all cores (15 minutes; ARGS="--trace 7" prints one)
	@$(BIN)/python -m tests.peers $(ARGS)

bench-scale: $(READY) controlplane ## joining up to 4,000 participants, c10d beside it (25 minutes; ARGS="--n 256,1000 --others ''")
	@$(BIN)/python -m benchmarks.scale $(ARGS)

bench-jobs: $(READY) controlplane ## one operator and 10 to 1,000 jobs of 8: start, steady state, losses, takeover, memory (40 minutes; ARGS="--jobs 10,100")
	@$(BIN)/python -m benchmarks.jobs $(ARGS)

bench-peers: $(READY) controlplane ## rounds without an operator beside operator mode and c10d (not timed; 44 minutes with ARGS="--runs 3 --window 20"; needs an idle machine)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-rivals: $(READY) controlplane ## one training under six faults, by ours, c10d, torchft, NVRx and DLRover in turns (half an hour; ARGS="--systems ours,torchft")
	@$(BIN)/python -m benchmarks.rivals $(ARGS)

chaos: $(READY) controlplane ## 8 torchruns under a fault every 10-20 s for 10 minutes (20 minutes in all; ARGS="--seed 7 --minutes 10 --pods 8")
	@$(BIN)/python -m tests.chaos.run $(ARGS)

kills: $(READY) controlplane ## 1,000 kills of single pods that save each step to memory, one after another (ARGS="--kills 5 --jobs 1")
	@$(BIN)/python -m tests.chaos.kill_series $(ARGS)

images: ## both images, built without Docker and pushed: make images REGISTRY=registry.example/ml (2 minutes; ARGS="--platform linux/arm64")
	@test -n "$(REGISTRY)" || { echo "where are they to go? make images REGISTRY=registry.example/ml"; exit 1; }
	@PYTHONPATH=handler:devcluster/src $(PYTHON) -m charts.images "$(REGISTRY)" $(ARGS)

controlplane: $(READY) # etcd, kube-apiserver and the rest from their Go modules; cached
	@$(BIN)/python -m devcluster build >/dev/null

format: $(READY) ## ruff's formatting and safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and caches of tools
	rm -rf $(VENV) $(VENV)-torch* $(VENV)-python* $(VENV)-stock* $(VENV)-guides* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

$(READY): pyproject.toml $(PACKAGES:=/pyproject.toml)
	@command -v $(PYTHON) >/dev/null || { echo "needs $(PYTHON) (or PYTHON=python3.12 ...; 3.11 or later)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11"; exit 1; }
	@echo "== virtual environment $(VENV) with torch and the rest: some gigabytes, 1-3 minutes when new"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check uv
	@start=$$(date +%s); UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 $(BIN)/uv pip install --quiet --python $(BIN)/python $(PACKAGES:%=--editable ./%) --editable '.[dev]' \
	  && echo "   done in $$(( $$(date +%s) - start )) s"
	@touch $@
