# The commands of a developer; `.ci/run` calls the same. `make help` lists them.

SHELL := bash
PATH := $(CURDIR)/target/tools/bin:$(PATH)
PYTHON := target/tools/python/bin/python
REDOCLY := REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true target/tools/redocly/node_modules/.bin/redocly
SERVED := scripts/postgres with scripts/serve-for
export SEED

.PHONY: help tools tools-all run shop fmt build test check lint workflows contract sdks browser clients short-suites ci generate \
  examples generated-clients deb sbom release verify-release release-check audit bench matrix nightly suites suite cluster cluster-down

help:
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p; s/^##@ (.*)/\n\1/p' $(MAKEFILE_LIST) | expand -t 21

##@ Every day

tools: ## install what `make check` needs and this machine lacks
	scripts/install-tools

tools-all: ## install what all other targets need, too: Chromium, axe, wrk, Prometheus, the client generators, …
	scripts/install-tools all

run: build ## serve on http://127.0.0.1:8080 with a temporary database
	scripts/postgres with scripts/run

shop: ## try the shop in examples/shop, with a temporary service, on free ports
	scripts/install-tools shop
	cargo build --locked
	scripts/shop

fmt: ## format the code
	cargo fmt --all

# One build for everything that is not measured. With --all-targets, dependencies have the features that tests need, so
# `cargo nextest` does not compile them again.
build: ## build the program, the suites and the tests
	cargo build --workspace --all-targets --locked

test: ## run the tests, on a private PostgreSQL or on the server at TEST_DATABASE_URL
	cargo nextest run --workspace --locked --no-fail-fast
	cargo test --doc --quiet --locked --package petstore-batcher --package petstore-read-quorum

##@ Before a push

check: lint test ## format, lints, dependencies, documents and tests: a few minutes

lint: ## what needs no running service: format, clippy, rustdoc, dependencies, the OpenAPI document, .github
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	RUSTDOCFLAGS='--deny warnings --allow rustdoc::private_intra_doc_links' cargo doc --workspace --no-deps --document-private-items --locked --quiet
	cargo deny --locked check bans licenses sources
	cargo machete
	$(REDOCLY) lint --config scripts/redocly/redocly.yaml openapi.json
	$(MAKE) --no-print-directory workflows

workflows: ## check .github: actionlint for mistakes, zizmor for ways to attack
	scripts/workflows-check

contract: build ## test the running service against its own OpenAPI document; EXAMPLES=500 for more requests
	PETSTORE_ORDER_HOLD=168h $(SERVED) scripts/contract target/tools/python/bin/schemathesis --max-examples $(or $(EXAMPLES),50)

# The SDKs as users install them, in a project at target/clients.
sdks:
	scripts/clients build

browser: build sdks ## test the pages at /docs in Chromium: behaviour, accessibility, and every sample that they show
	PETSTORE_ORDER_HOLD=15m $(SERVED) $(PYTHON) -B -m pytest -p no:cacheprovider --quiet --numprocesses 2 tests/browser

clients: build sdks ## check the SDKs: generated files, types, tests, the examples in README.md and docs/, and retries through injected faults
	scripts/clients drift
	scripts/clients types
	scripts/clients test
	$(SERVED) scripts/clients examples
	$(SERVED) tests/clients/run.py
	tests/guide/run.py

examples: build sdks ## check the programs in examples/: their types, and what they do while requests fail; NAME=mailer for one
	scripts/examples $(NAME)

short-suites: build
	scripts/suite --ci

# Two at a time: each of these waits for something most of the time.
ci: check ## everything that CI checks on every change: those above, and two suites in their short form
	$(MAKE) --jobs 2 --output-sync=target contract browser clients examples short-suites

##@ Generated files

generate: ## regenerate openapi.json, the tables in docs/ and the clients; NAME=demo, screenshot, shop, outage, failover: a picture
	scripts/generate $(NAME)

##@ Packages

deb: ## build the Debian package in target/debian
	cargo build --release --workspace --locked
	scripts/deb

sbom: ## list the packages in the binary (CycloneDX) and their licences, in target/
	scripts/sbom x86_64-unknown-linux-musl target/petstore.cdx.json
	scripts/licences >target/licences.txt

release: ## build everything that a release publishes, in target/dist; MINISIGN_KEY=… signs it
	scripts/release

verify-release: ## check, install and run each file of a release, and upgrade to it; DIR=target/dist, MINISIGN_PUBLIC_KEY=…; root
	cargo build --quiet --release --locked --package petstore-suites
	scripts/verify-release $(DIR)

release-check: ## check that this commit can be released and tagged
	scripts/release-check

# Not in `ci`: it needs the network, and its result changes without a change to the code.
audit: ## check dependencies for known vulnerabilities, unmaintained and yanked versions; OFFLINE=1 with the advisories of the last run
	cargo deny --locked $(if $(OFFLINE),--offline) check advisories

##@ Long suites

# Not in `ci`: it needs compilers for three more languages.
generated-clients: build ## generate clients for Go, Java and PHP from openapi.json, and run them
	scripts/install-tools generators
	$(SERVED) scripts/generated-clients

bench: ## measure against pgbench and three peers; writes docs/performance.md and its charts
	scripts/suite compare

matrix: ## run the tests on every supported version of PostgreSQL, and compare the throughput
	scripts/suite matrix

nightly: ## run every suite that CI does not, each in its short form; ends with a summary
	scripts/suite --nightly

suites: ## list the suites, how long each takes, and whether CI or `make nightly` runs its short form
	@scripts/suite

suite: ## run a suite: NAME=fuzz; SHORT=1 for its short form, SEED=… to repeat a run
	scripts/suite $(or $(NAME),$(error NAME=… names a suite; `make suites` lists them)) $(if $(SHORT),--short)

cluster: ## start three PostgreSQL nodes under Patroni on this machine, to break them; needs root
	tests/cluster/install
	tests/cluster/cluster up

cluster-down: ## stop them
	tests/cluster/cluster down
