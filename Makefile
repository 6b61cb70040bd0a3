# The commands of a developer; `.ci/run` calls the same. `make help` lists them.

SHELL := bash
PATH := $(CURDIR)/target/tools/bin:$(PATH)
PYTHON := target/tools/python/bin/python
REDOCLY := REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true target/tools/redocly/node_modules/.bin/redocly
SERVED := scripts/postgres with scripts/serve-for
export SEED

.PHONY: help tools run fmt test check contract browser clients ci release-in-background generate deb sbom audit bench matrix suites suite \
  cluster cluster-down

help:
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p; s/^##@ (.*)/\n\1/p' $(MAKEFILE_LIST) | expand -t 16

##@ Every day

tools: ## install the tools that the checks need and this machine lacks
	scripts/install-tools

run: ## serve on http://127.0.0.1:8080 with a temporary database
	cargo build --locked
	scripts/postgres with scripts/run

fmt: ## format the code
	cargo fmt --all

test: ## run the tests, on a private PostgreSQL or on the server at TEST_DATABASE_URL
	cargo nextest run --workspace --locked --no-fail-fast

##@ Before a push

check: ## format, lint, dependencies, OpenAPI document and tests: a few minutes
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	cargo deny --locked check bans licenses sources
	$(REDOCLY) lint --config scripts/redocly/redocly.yaml openapi.json
	$(MAKE) test

contract: ## test the running service against its own OpenAPI document; EXAMPLES=500 for more requests
	cargo build --workspace --locked
	$(SERVED) scripts/contract target/tools/python/bin/schemathesis --max-examples $(or $(EXAMPLES),50)

browser: ## test the pages at /docs in Chromium: behaviour, accessibility, and every sample that they show
	cargo build --workspace --locked
	scripts/clients build
	$(SERVED) $(PYTHON) -B -m pytest -p no:cacheprovider --quiet --numprocesses 2 tests/browser

clients: ## check the SDKs: drift from openapi.json, types, tests, the examples in README.md and docs/, and retries through injected faults
	cargo build --workspace --locked
	scripts/clients build
	scripts/clients drift
	scripts/clients types
	scripts/clients test
	$(SERVED) scripts/clients examples
	$(SERVED) tests/clients/run.py
	tests/guide/run.py

ci: export NEXTEST_PROFILE := ci
ci: check release-in-background contract browser clients ## everything that CI checks: those above, and every suite in its short form
	scripts/suite --ci

# What the suites need, while other checks leave the machine idle. The suites wait for it, and report what is wrong with it.
release-in-background:
	nice -n 19 cargo build --release --workspace --locked >target/release-build.log 2>&1 &

##@ Generated files

generate: ## regenerate openapi.json, the tables in docs/ and the clients; NAME=demo, screenshot, outage, failover: a picture
	scripts/generate $(NAME)

##@ Packages

deb: ## build the Debian package in target/debian
	cargo build --release --workspace --locked
	scripts/deb

sbom: ## list the packages in the binary (CycloneDX) and their licences, in target/
	scripts/sbom
	scripts/licences >target/licences.txt

# Not in `ci`: it needs the network, and its result changes without a change to the code.
audit: ## check dependencies for known vulnerabilities, unmaintained and yanked versions; needs the network
	cargo deny --locked check advisories

##@ Long suites

bench: ## measure against pgbench, the thinnest server and three peers; writes docs/performance.md
	scripts/suite compare

matrix: ## run the tests on every supported version of PostgreSQL, and compare the throughput
	scripts/suite matrix

suites: ## list the long suites and how long each takes
	@scripts/suite

suite: ## run a long suite: NAME=fuzz; SHORT=1 as CI runs it, SEED=… to repeat a run
	scripts/suite $(or $(NAME),$(error NAME=… names a suite; `make suites` lists them)) $(if $(SHORT),--short)

cluster: ## start three PostgreSQL nodes under Patroni on this machine, to break them; needs root
	tests/cluster/install
	tests/cluster/cluster up

cluster-down: ## stop them
	tests/cluster/cluster down
