# What a developer runs; `.ci/run` runs the same. `make help` lists the targets.

SHELL := bash
PATH := $(CURDIR)/target/tools/bin:$(PATH)
SCHEMATHESIS := target/tools/python/bin/schemathesis
PYTHON := target/tools/python/bin/python

.PHONY: help ci tools release fmt fmt-check lint deny audit test document contract contract-long browser screenshots \
  openapi states run demo-picture \
  clients clients-build clients-check guide \
  bench bench-smoke bench-stale bench-protect bench-once crash crash-short sell sell-short \
  bench-import import-short deb deb-check deploy-check licences rolling rolling-short sbom settings \
  cluster cluster-down alerts outage-picture backup backup-short observe attack attack-short crowd crowd-short \
  fuzz fuzz-short faults faults-short faults-cost soak failover-picture scale scale-short

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

ci: fmt-check lint deny test document contract browser clients-check guide bench-smoke crash-short sell-short \
  import-short rolling-short attack-short crowd-short fuzz-short backup-short deb-check deploy-check alerts faults-short \
  scale-short ## every check

tools: ## install what the checks need and this machine lacks
	scripts/install-tools

fmt: ## format the code
	cargo fmt --all

fmt-check:
	cargo fmt --all -- --check

lint: ## look for mistakes; warnings are errors
	cargo clippy --workspace --all-targets --locked -- --deny warnings

deny: ## look at the licences and sources of dependencies
	cargo deny --locked check bans licenses sources

# Not in `ci`: it needs the network, and its outcome changes without a change to the code.
audit: ## look for dependencies with known vulnerabilities, unmaintained or yanked; needs the network
	cargo deny --locked check advisories

test: ## run the tests, on a PostgreSQL of their own or the one at TEST_DATABASE_URL
	cargo nextest run --workspace --locked --no-fail-fast

document: ## look for mistakes in the interface document; warnings are errors
	REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true target/tools/redocly/node_modules/.bin/redocly lint \
	  --config scripts/redocly/redocly.yaml openapi.json

contract: ## hold the running service against its own document
	cargo build --locked
	scripts/postgres with scripts/serve-for scripts/contract $(SCHEMATHESIS)

contract-long: ## the same with many more requests
	cargo build --locked
	scripts/postgres with scripts/serve-for scripts/contract $(SCHEMATHESIS) --max-examples 500

browser: ## look at the page at /docs with Chromium, and use it
	cargo build --locked
	scripts/postgres with scripts/serve-for $(PYTHON) -B -m pytest -p no:cacheprovider --quiet tests/browser

screenshots: ## take the picture of the page anew; writes docs/img/docs.png
	cargo build --locked
	PETSTORE_PUBLIC_BASE_URL=https://petstore.example/v1 \
	  scripts/postgres with scripts/serve-for $(PYTHON) -B tests/browser/take_screenshot.py docs/img/docs.png

openapi: ## write the interface document anew
	cargo run --quiet --locked -- openapi > openapi.json

states: ## draw the states of an animal anew, from the table in docs/orders.md
	INSTA_UPDATE=always cargo nextest run --locked -E 'test(the_picture_is_drawn_from_the_table)'

demo-picture: ## run the demonstration and draw what it says; writes docs/img/demo.svg
	cargo build --locked --profile quick
	scripts/demo-picture target/quick/petstore docs/img/demo.svg

clients: ## make the clients anew from the interface document
	scripts/clients generate

clients-build:
	scripts/clients build

clients-check: clients-build ## look for drift and wrong types in the clients, and run their examples
	scripts/clients drift
	scripts/clients types
	cargo build --locked
	scripts/postgres with scripts/serve-for scripts/clients examples

guide: clients-build ## run every example of docs/guide.md and compare what it prints
	cargo build --locked
	tests/guide/run.py

# With the durability of a real shop, and memory for its pets.
MEASURED := POSTGRES_OPTIONS='-c fsync=on -c full_page_writes=on -c max_connections=200 -c shared_buffers=2GB' \
  scripts/postgres with target/release/petstore-bench

release:
	cargo build --release --workspace --locked

bench: tools release ## measure against the bare engine and against peers; writes docs/performance.md
	scripts/install-tools peers
	$(MEASURED) compare

bench-smoke: release ## a short comparison that fails when something became much slower
	$(MEASURED) smoke

bench-stale: release ## look for stale answers on two nodes
	$(MEASURED) stale

bench-protect: release ## how keys and limits hold on two nodes under load
	$(MEASURED) protect

bench-once: release ## what an Idempotency-Key costs
	$(MEASURED) once

crash: release ## kill service and database 200 times under clients that send again
	target/release/petstore-bench crash

crash-short: release
	target/release/petstore-bench crash --rounds 10

sell: release ## sell 1,000 animals on two nodes that are killed meanwhile, and check the whole history
	$(MEASURED) sell

sell-short: release
	$(MEASURED) sell --operations 30000 --contests 20

bench-import: release ## imports and exports: against \copy, killed, and beside the service; an hour, and 4 GB of disk
	$(MEASURED) trade copy
	$(MEASURED) trade kill
	$(MEASURED) trade beside

# Wide bars here and below: a service that waits for an import, or a statement that reads the whole table, is slower by
# far more than that, and a busy machine is not.
import-short: release
	$(MEASURED) trade copy --rows 300000 --rounds 3 --bar 0.3
	$(MEASURED) trade kill --rows 100000 --kills 5
	$(MEASURED) trade beside --rows 200000 --rounds 2 --seconds 10 --bar 50

# Enough memory for all pets, in huge pages, and room for what is written while they are loaded.
SCALED := POSTGRES_OPTIONS='-c fsync=on -c full_page_writes=on -c shared_buffers=16GB -c huge_pages=on \
  -c max_wal_size=8GB -c maintenance_work_mem=1GB -c log_autovacuum_min_duration=0' target/release/petstore-bench scale

scale: release ## how far it goes, to 100 million pets; an hour, 24 GB of memory, 40 of disk, as root; writes docs/scaling.md
	before=$$(cat /proc/sys/vm/nr_hugepages) && trap "sysctl vm.nr_hugepages=$$before" EXIT && \
	  sync && sysctl vm.drop_caches=3 vm.compact_memory=1 vm.nr_hugepages=8600 && $(SCALED) --page docs/scaling.md

scale-short: release
	target/release/petstore-bench scale --pets 10000,100000 --rounds 1 --seconds 1 --bar 0.3 --without-model

observe: release ## what the log and the metrics cost
	$(MEASURED) observe

attack: release ## a good client beside one whose bodies never arrive and one with made-up keys; ten minutes
	$(MEASURED) attack

attack-short: release
	$(MEASURED) attack --rounds 1 --requests 40 --bar 20

crowd: release ## ten thousand idle connections, two thousand slow clients: what each costs, and who notices
	$(MEASURED) crowd

crowd-short: release
	$(MEASURED) crowd --idle 2000 --slow 200 --rounds 3 --seconds 4 --bar 10

fuzz: release ## attack the service with random requests and bytes for ten minutes; SEED=… to repeat a run
	$(MEASURED) fuzz --seconds 600 $(if $(SEED),--seed $(SEED))

fuzz-short: release
	$(MEASURED) fuzz --seconds 20 $(if $(SEED),--seed $(SEED))

backup: release ## back up a million animals in two ways, restore each into a new cluster, and compare
	scripts/backup-check 1000000

backup-short: release
	scripts/backup-check

faults: release ## break a cluster under load in every way; quarter of an hour, as root
	tests/cluster/faults --disk-megabytes 700 -- --kill 3 --postmaster 3 --switchover 3 --pause 1 --cut 2 --disk 1

faults-short: release
	tests/cluster/faults -- --kill 1 --postmaster 1 --switchover 1 --pause 0 --cut 0 --etcd 0 --service 2 --slack 2

faults-cost: release ## what the cluster costs, against a single server
	POSTGRES_OPTIONS='-c fsync=on -c full_page_writes=on' tests/cluster/faults -- --cost

soak: release ## random faults for an hour; SEED=… for others
	tests/cluster/faults -- --soak-minutes 60 --seed $(or $(SEED),1)

rolling: release ## restart two nodes in turn behind HAProxy under load; no request may fail
	$(MEASURED) rolling

rolling-short: release
	$(MEASURED) rolling --restarts 2

settings: ## write the table of settings in docs/operations.md anew
	INSTA_UPDATE=always cargo nextest run --locked -E 'test(the_table_of_settings_is_made_from_the_command_line)'

deb: release ## make the Debian package in target/debian
	scripts/deb

deb-check: release ## install the package in a fresh Debian, serve, upgrade, remove and purge; needs root
	scripts/postgres with scripts/deb-check

deploy-check: release ## look at what is in deploy/, and serve from a tree that nobody can write to
	scripts/postgres with scripts/deploy-check

alerts: release ## cause each fault that an alert is for; it must fire and end, and every panel must have data
	python3 -B tests/alerts/run.py

outage-picture: alerts ## draw what was seen of the database's outage; writes docs/img/outage.svg
	python3 -B tests/alerts/picture.py target/alerts/outage.json docs/img/outage.svg

sbom: ## list what the binary is made of as CycloneDX, in target/petstore.cdx.json
	scripts/sbom

licences: ## gather the licences of what the binary is made of, in target/licences.txt
	scripts/licences >target/licences.txt

run: ## serve on http://127.0.0.1:8080 with a database that is gone afterwards
	cargo build --locked
	scripts/postgres with scripts/run

cluster: ## bring up three PostgreSQL nodes under Patroni on this machine, to break them; needs root
	tests/cluster/install
	tests/cluster/cluster up

failover-picture: release ## draw the failover in docs/reliability.md anew
	tests/cluster/faults -- --kill 1 --postmaster 0 --switchover 0 --pause 0 --cut 0 --etcd 0 --service 0 --network 0
	tests/cluster/picture.py target/faults/timeline.csv docs/img/failover.svg

cluster-down: ## end them
	tests/cluster/cluster down
