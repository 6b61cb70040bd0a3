#!/usr/bin/env python3
"""Tests the alert rules and the dashboard on a real Prometheus, with real faults.

    tests/alerts/run.py

Starts a PostgreSQL with two standbys, three nodes of the service (target/release/petstore), a Prometheus that scrapes them
every second, and clients that send a few dozen requests a second. Then:

1. every expression of every panel of deploy/grafana/petstore.json and of every rule of deploy/prometheus/rules.yaml is
   evaluated and must not fail; each panel must have data;
2. without a fault, no alert may keep firing except the one about getPet, which the clients call;
3. each fault is injected: its alert must fire, and must resolve after the fault. Then no other alert may fire, except those on
   the objectives, whose windows are longer than a fault.

The rules wait for minutes and look back for hours. Prometheus gets a copy with all durations divided by FACTOR; thresholds
stay. So the seconds in the printed table are those of this run.

What Prometheus recorded of the database outage is kept in target/alerts/outage.json, for tests/alerts/picture.py.
Needs prometheus, PostgreSQL's server and eight minutes. All started processes are stopped, also on failure.
"""

import contextlib
import glob
import http.client
import http.server
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import check

ROOT = Path(__file__).resolve().parents[2]
PETSTORE = ROOT / "target/release/petstore"
RECORDED = ROOT / "target/alerts/outage.json"
JOB = "petstore"
# Divisor of the durations in the rules: five minutes become five seconds.
FACTOR = 60
# For panels: five samples at a scrape interval of one second.
RATE_INTERVAL = "5s"
# Seconds that an alert may take to fire or to resolve.
TIMEOUT = 45
# The same for alerts whose shortest duration is half an hour, or an hour.
LONG_TIMEOUT = 100
# Alerts that fire without a fault: the clients call getPet.
EXPECTED = {"PetstoreDeprecatedCalls"}
# Alerts on the objectives: each fault with 5xx responses or slow ones leaves them firing for minutes.
OBJECTIVES = {"PetstoreErrors", "PetstoreSlow"}
# For the picture: the length of the outage, and of the time shown before and after it, in seconds.
OUTAGE = 20
MARGIN = 12
SLOW = "PERFORM pg_sleep(0.8); RETURN NULL"
DELAYED = "PERFORM pg_sleep(0.3); RETURN NULL"  # so that requests overlap on a fast machine too
BROKEN = "RAISE EXCEPTION 'injected fault'"


def say(text: str) -> None:
    print(text, flush=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what: str, condition, timeout: float = TIMEOUT, interval: float = 0.2):
    """Polls the condition until its result is true, and returns that. Fails after the timeout."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {timeout} seconds: {what}")
        time.sleep(interval)
    return value


class Cluster:
    """A PostgreSQL server that runs as long as the context, and can be stopped and started within it."""

    def __init__(self, directory: Path, primary: "Cluster | None" = None):
        self.directory = directory
        self.url = ""
        if primary:
            self._copy(primary)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self) -> None:
        options = "-c shared_buffers=32MB -c wal_retrieve_retry_interval=1s -c archive_mode=on"
        self.url = subprocess.run(
            [ROOT / "scripts/postgres", "start", self.directory],
            env=os.environ | {"POSTGRES_OPTIONS": options},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()

    def stop(self) -> None:
        if self.url:
            subprocess.run([ROOT / "scripts/postgres", "stop", self.directory, "immediate"], check=True)
            self.url = ""

    def execute(self, *statements: str) -> None:
        commands = [argument for statement in statements for argument in ("--command", statement)]
        subprocess.run([*self.psql(), *commands], stdout=subprocess.DEVNULL, check=True)

    def psql(self) -> list:
        return [program("psql"), self.url, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]

    @contextlib.contextmanager
    def trigger(self, body: str):
        """Runs this PL/pgSQL on every insert of pets."""
        self.execute(
            f"CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$",
            "CREATE TRIGGER fault BEFORE INSERT ON pets FOR EACH STATEMENT EXECUTE FUNCTION fault()",
        )
        yield
        self.execute("DROP TRIGGER fault ON pets")

    @contextlib.contextmanager
    def few_partitions(self):
        """Leaves partitions of events for today and two more days, as if no node had created any for days."""
        self.execute(
            "DO $$ DECLARE partition regclass; BEGIN"
            " FOR partition IN SELECT inhrelid FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = 'events'::regclass AND relname >="
            " to_char((now() AT TIME ZONE 'UTC')::date + 3, '\"events_\"YYYYMMDD')"
            " LOOP EXECUTE format('DROP TABLE %s', partition); END LOOP; END $$"
        )
        yield
        self.execute("SELECT create_event_partitions()")

    @contextlib.contextmanager
    def failing_archive(self):
        """Lets every attempt to archive a WAL file fail."""
        archive = "SELECT pg_reload_conf()", "SELECT pg_sleep(1)", "SELECT pg_switch_wal()"
        self.execute("ALTER SYSTEM SET archive_command = 'false'", *archive)
        yield
        self.execute("ALTER SYSTEM SET archive_command = 'true'", *archive)

    @contextlib.contextmanager
    def new_epoch(self):
        """Restarts the feed of events, as after a recovery."""
        self.execute("SELECT start_event_epoch()")
        yield

    def lock(self):
        """Locks the pets against reads and writes."""
        return self.session("BEGIN; LOCK TABLE pets IN ACCESS EXCLUSIVE MODE;")

    def long_transaction(self):
        """Keeps a transaction open that has written."""
        return self.session("BEGIN; CREATE TEMPORARY TABLE written ();")

    @contextlib.contextmanager
    def stuck_order(self):
        """Leaves an order open that is due, because somebody is changing its pet."""
        self.execute(
            "INSERT INTO pets (id, name, category_id, status) OVERRIDING SYSTEM VALUE VALUES (9000000000, 'Rex', 1, 'pending')"
        )
        with self.session("SELECT pg_advisory_lock(1885697139, hashint8(9000000000));"):
            self.execute(
                "INSERT INTO orders (pet_id, status, created_at, updated_at, expires_at)"
                " VALUES (9000000000, 'placed', now(), now(), now() + interval '1 second')"
            )
            yield

    @contextlib.contextmanager
    def session(self, statements: str):
        """Runs statements in a session that stays open."""
        session = subprocess.Popen(self.psql(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            session.stdin.write(f"{statements}\n")
            session.stdin.flush()
            yield
        finally:
            session.stdin.close()
            session.wait()

    def _copy(self, primary: "Cluster") -> None:
        self.directory.mkdir()
        as_server = []
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self.directory, "postgres")
            as_server = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        backup = [program("pg_basebackup"), "--dbname", primary.url, "--pgdata", self.directory / "data"]
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        subprocess.run([*as_server, *backup, *options], cwd="/", check=True)


def program(name: str) -> str:
    """Returns the path of a program of the newest PostgreSQL, as scripts/postgres does."""
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    return os.path.join(os.environ.get("PGBIN") or (installed or [""])[-1], name)


class Process:
    """A process that runs as long as the context, and can be killed and started within it."""

    def __init__(self, command: list, log: Path, environment: dict | None = None, files: int | None = None):
        self.command, self.log, self.files = command, log, files
        self.environment = os.environ | (environment or {})
        self.running = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self.running:
            self.running.terminate()
            try:
                self.running.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self) -> None:
        with open(self.log, "a") as log:
            self.running = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        if self.files:
            resource.prlimit(self.running.pid, resource.RLIMIT_NOFILE, (self.files, self.files))

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()


class Node(Process):
    """A node of the service."""

    def __init__(self, name: str, directory: Path, database: Cluster, *options: str, files: int | None = None):
        self.name, self.port, self.admin = name, free_port(), free_port()
        addresses = ["--listen", f"127.0.0.1:{self.port}", "--admin-listen", f"127.0.0.1:{self.admin}"]
        command = [PETSTORE, "serve", *addresses, "--drain-delay", "0s", *options]
        # Twice the same server, for the panels of a cluster.
        host = database.url.split("@")[1].split("/")[0]
        url = database.url.replace("@", f"@{host},", 1)
        super().__init__(command, directory / f"{name}.log", {"DATABASE_URL": url}, files)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=2) as response:
                return response.status == 200
        except OSError:
            return False

    def restart(self) -> None:
        self.start()
        wait_for(f"{self.name} is ready", self.ready)


class OldNode:
    """A target that becomes a node of another version as long as a context."""

    def __init__(self):
        self.metrics = ""
        parent = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(parent.metrics.encode())

            def log_message(self, *_):
                pass

        self.name, self.server = "old", http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.admin = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @contextlib.contextmanager
    def running(self):
        self.metrics = 'petstore_build_info{version="0.9.0",commit="unknown"} 1\n'
        yield
        self.metrics = ""


class Clients:
    """Sends `rate` requests a second to a node as long as the context; the share `adds` of them adds a pet."""

    def __init__(self, node: Node, key: str, rate: float, threads: int, adds: float = 0.15):
        self.node, self.key, self.interval, self.adds = node, key, threads / rate, adds
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self._send, args=(n,), daemon=True) for n in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join(10)

    def _send(self, number: int) -> None:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=20)
        # Spread the threads over the interval.
        self.done.wait(self.interval * number / len(self.threads))
        while not self.done.is_set():
            started = time.monotonic()
            method, path, body = self._request()
            try:
                connection.request(method, path, body, headers)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request reconnects
            self.done.wait(max(0.0, self.interval - (time.monotonic() - started)))

    def _request(self) -> tuple:
        chance = random.random()
        if chance < self.adds:
            pet = {"name": "Rex", "categoryId": 3, "status": random.choice(["available", "pending", "sold"])}
            return "POST", "/v1/pets", json.dumps(pet)
        if chance < 0.3:
            return "GET", "/v1/pets/1", None
        if chance < 0.5:
            return "GET", f"/v1/pets?id={random.randint(1, 20)}", None
        return "GET", "/v1/pets?status=available&limit=10", None


class Prometheus(Process):
    """Scrapes the nodes every second, and evaluates the rules with their durations divided by FACTOR."""

    def __init__(self, directory: Path, nodes: list):
        (directory / "rules.yaml").write_text(with_short_durations(check.RULES.read_text()))
        targets = [{"targets": [f"127.0.0.1:{node.admin}"], "labels": {"instance": node.name}} for node in nodes]
        config = {  # JSON is valid YAML
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": JOB, "static_configs": targets}],
        }
        (directory / "prometheus.yaml").write_text(json.dumps(config))
        self.port = free_port()
        options = ["--config.file", directory / "prometheus.yaml", "--storage.tsdb.path", directory / "prometheus"]
        listen = ["--web.listen-address", f"127.0.0.1:{self.port}", "--log.level", "warn"]
        super().__init__(["prometheus", *options, *listen], directory / "prometheus.log")

    def get(self, path: str, **parameters) -> dict:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=20) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"Prometheus rejected {parameters}: {json.load(error)['error']}") from None

    def is_ready(self) -> bool:
        try:
            # Until it is ready, the API answers 503 with plain text.
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=20).close()
            return bool(self.get("rules")["groups"])
        except OSError:
            return False

    def query(self, expression: str) -> list[dict]:
        return self.get("query", query=expression)["result"]

    def query_range(self, expression: str, start: float, end: float) -> list[dict]:
        return self.get("query_range", query=expression, start=start, end=end, step=1)["result"]

    def rules(self) -> list[dict]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> list[dict]:
        return [alert["labels"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"]

    def has_no_unexpected_alerts(self, expected: set[str] = EXPECTED) -> bool:
        return {labels["alertname"] for labels in self.firing()} <= expected

    def pages_no_one(self) -> bool:
        return all(labels["severity"] != "critical" for labels in self.firing())


def with_short_durations(rules: str) -> str:
    """Returns the rules with each duration divided by FACTOR."""
    milliseconds = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

    def divide(match: re.Match) -> str:
        return f"{match[1]}{int(match[2]) * milliseconds[match[3]] // FACTOR}ms"

    rules = re.sub(r"(\[|\boffset |\bfor: )(\d+)([smhd])\b", divide, rules)
    return re.sub(r"(\btime\(\) - )(\d+)\b", lambda match: f"{match[1]}{int(match[2]) / FACTOR}", rules)


def with_variables(expression: str) -> str:
    """Returns a panel's expression as Grafana would send it, for all nodes."""
    variables = {"$job": JOB, "$instance": ".*", "$__rate_interval": RATE_INTERVAL, "$__range": "30s"}
    for name, value in variables.items():
        expression = expression.replace(name, value)
    return expression


def has_data(series: list[dict]) -> bool:
    """Whether any value is a number; a quantile of nothing is NaN."""
    values = [value for one in series for _, value in one.get("values") or [one["value"]]]
    return any(not math.isnan(float(value)) for value in values)


def without_data(prometheus: Prometheus, since: float, except_for: tuple) -> list[str]:
    """Lists panels without data now and recorded series that never had any. Fails if an expression fails."""
    empty = []
    for panel in check.panels():
        for target in panel["targets"]:
            if not has_data(prometheus.query(with_variables(target["expr"]))):
                empty.append(f"{panel['title']}: no data for {target['expr']}")
    for rule in prometheus.rules():
        prometheus.query(rule["query"])
        recorded = rule["type"] == "recording" and rule["name"] not in except_for
        if recorded and not has_data(prometheus.query_range(rule["name"], since, time.time())):
            empty.append(f"{rule['name']}: no data")
    return empty


def check_data(prometheus: Prometheus, since: float, except_for: tuple = ()) -> None:
    """Checks that every panel and every recorded series has data, and that no expression fails."""
    deadline = time.monotonic() + TIMEOUT
    while empty := without_data(prometheus, since, except_for):  # rates need a few seconds
        if time.monotonic() > deadline:
            raise SystemExit("\n".join(empty))
        time.sleep(1)
    targets = sum(len(panel["targets"]) for panel in check.panels())
    rules = len(prometheus.rules())
    say(f"{targets} expressions of {len(check.panels())} panels have data; {rules} rules were evaluated")


class FaultTests:
    """Injects faults and checks that their alerts fire and resolve."""

    def __init__(self, prometheus: Prometheus):
        self.prometheus = prometheus
        self.table: list[tuple] = []
        self.tested: set[str] = set()

    def inject(
        self, alert: str, fault: str, context, at_least: float = 0, timeout: float = TIMEOUT, **labels: str
    ) -> tuple[float, float]:
        """Checks that the alert fires within the context and resolves after it. Returns the fault's start and end."""
        expected = {"alertname": alert, **labels}
        name = f"{alert} ({labels['severity']})" if "severity" in labels else alert
        others: set[str] = set()

        def fires() -> bool:
            firing = self.prometheus.firing()
            others.update(labels["alertname"] for labels in firing)
            return any(expected.items() <= labels.items() for labels in firing)

        wait_for(f"{name} does not fire before the fault: {fault}", lambda: not fires(), LONG_TIMEOUT)
        others.clear()
        started = time.time()
        with context:
            wait_for(f"{name} fires: {fault}", fires, timeout)
            to_fire = time.time() - started
            while time.time() < started + at_least:
                fires()
                time.sleep(0.2)
        ended = time.time()
        wait_for(f"{name} resolves after the fault: {fault}", lambda: not fires(), timeout)
        to_resolve = time.time() - ended
        is_quiet = lambda: self.prometheus.has_no_unexpected_alerts(EXPECTED | OBJECTIVES)
        wait_for(f"no other alert fires after the fault: {fault}", is_quiet)
        self.tested.add(alert)
        self.table.append((name, fault, to_fire, to_resolve, others - {alert} - EXPECTED))
        say(f"  {name}: fired after {to_fire:.1f} s, resolved after {to_resolve:.1f} s")
        return started, ended

    def fires(self, alert: str, fault: str, **labels: str) -> None:
        """Checks that the alert fires. It resolves hours or a day later, which only promtool tests."""
        expected, started = {"alertname": alert, **labels}, time.time()
        is_firing = lambda: any(expected.items() <= labels.items() for labels in self.prometheus.firing())
        wait_for(f"{alert} fires: {fault}", is_firing)
        self.tested.add(alert)
        name = f"{alert} ({labels['severity']})" if "severity" in labels else alert
        self.table.append((name, fault, time.time() - started, None, set()))

    def print_table(self) -> None:
        say(f"\n| alert | fault | fires after | resolves after | other alerts |  (durations of rules / {FACTOR})")
        say("|---|---|---|---|---|")
        for name, fault, to_fire, to_resolve, others in self.table:
            also = ", ".join(sorted(others))
            end = "not tested" if to_resolve is None else f"{to_resolve:.1f} s"
            say(f"| {name} | {fault} | {to_fire:.1f} s | {end} | {also} |")


@contextlib.contextmanager
def together(*contexts):
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextlib.contextmanager
def stopped(*clusters: Cluster):
    for cluster in clusters:
        cluster.stop()
    yield
    for cluster in clusters:
        cluster.start()


@contextlib.contextmanager
def killed(*nodes: Node):
    for node in nodes:
        node.kill()
    yield
    for node in nodes:
        node.restart()


@contextlib.contextmanager
def idle_connections(node: Node, count: int):
    with contextlib.ExitStack() as connections:
        for _ in range(count):
            connections.enter_context(socket.create_connection(("127.0.0.1", node.port)))
        yield


@contextlib.contextmanager
def brief_key(environment: dict):
    """Issues a key that expires in a week."""
    create = [PETSTORE, "keys", "create", "--name", "brief", "--expires", "7d"]
    subprocess.run(create, env=environment, stdout=subprocess.DEVNULL, check=True)
    listed = subprocess.run([PETSTORE, "keys", "list", "--json"], env=environment, stdout=subprocess.PIPE, check=True)
    key = max(key["id"] for key in json.loads(listed.stdout))
    yield
    subprocess.run([PETSTORE, "keys", "revoke", str(key)], env=environment, stdout=subprocess.DEVNULL, check=True)


def record(prometheus: Prometheus, node: Node, started: float, ended: float) -> None:
    """Saves what the dashboard shows of the outage."""
    start, end = round(started - MARGIN), round(ended + MARGIN)
    selector = f'{{job="{JOB}", instance="{node.name}"}}'
    requests = "http_server_request_duration_seconds"
    expressions = {
        "requests": f"sum by (http_response_status_code) (rate({requests}_count{selector}[3s]))",
        "p99": f"histogram_quantile(0.99, sum by (le) (rate({requests}_bucket{selector}[3s])))",
        "used": f'db_client_connections{{state="used", {selector[1:]}',
        "idle": f'db_client_connections{{state="idle", {selector[1:]}',
        "waiting": f"db_client_connection_pending_requests{selector}",
        "up": f"petstore_database_up{selector}",
        # Of the node, and of the whole service.
        "alerts": f'ALERTS{{alertstate="firing", severity="critical", instance=~"|{node.name}"}}',
    }
    data = {name: prometheus.query_range(expression, start, end) for name, expression in expressions.items()}
    outage = {"start": start, "end": end, "stopped": started, "started": ended, "factor": FACTOR, "series": data}
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text(json.dumps(outage))


def run(directory: Path, running: contextlib.ExitStack) -> None:
    started = time.time()
    primary = running.enter_context(Cluster(directory / "primary"))
    primary.execute("ALTER SYSTEM SET archive_command = 'true'", "SELECT pg_reload_conf()")
    environment = os.environ | {"DATABASE_URL": primary.url}
    subprocess.run([PETSTORE, "migrate"], env=environment, stdout=subprocess.DEVNULL, check=True)
    create = [PETSTORE, "keys", "create", "--name", "alerts"]
    key = subprocess.run(create, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    # So that the dashboard has a value, but no alert fires.
    subprocess.run([*create, "--expires", "60d"], env=environment, stdout=subprocess.DEVNULL, check=True)
    standbys = [running.enter_context(Cluster(directory / name, primary=primary)) for name in ("one", "two")]

    # The faults need a node with few database connections, and one with low limits.
    plain = Node("plain", directory, primary)
    narrow = Node("narrow", directory, primary, "--database-connections", "2", "--max-connections", "30")
    small = Node("small", directory, primary, "--max-requests", "1", "--header-timeout", "5m", files=120)
    nodes = [plain, narrow, small]
    for node in nodes:
        running.enter_context(node)
        wait_for(f"{node.name} is ready", node.ready)
    old = OldNode()
    prometheus = running.enter_context(Prometheus(directory, [*nodes, old]))
    wait_for("Prometheus is ready", prometheus.is_ready)
    for node, rate, threads in ((plain, 24, 12), (narrow, 12, 8), (small, 2, 1)):
        running.enter_context(Clients(node, key, rate, threads))
    say(f"started after {time.time() - started:.0f} s; the durations of the rules are divided by {FACTOR}")

    tests = FaultTests(prometheus)
    tests.fires("PetstoreDeprecatedCalls", "clients call getPet")
    time.sleep(6)
    primary.execute("ANALYZE pets")  # the number of pets is estimated from these statistics
    time.sleep(6)  # nodes check every five seconds
    wait_for("no alert fires without a fault", prometheus.has_no_unexpected_alerts)
    check_data(prometheus, started)

    # The objectives allow 0.1 % errors and 1 % slow requests: pages need a fault that many requests meet.
    slow = together(primary.trigger(SLOW), Clients(plain, key, 24, 24, adds=1))
    tests.inject("PetstoreSlow", "adding a pet takes 0.8 s", slow, timeout=LONG_TIMEOUT, severity="critical")
    tests.fires("PetstoreSlow", "adding a pet took 0.8 s", severity="warning")
    refused = primary.trigger(BROKEN)
    tests.inject("PetstoreErrors", "the database refuses to add pets", refused, timeout=LONG_TIMEOUT, severity="critical")
    tests.fires("PetstoreErrors", "the database refused to add pets", severity="warning")
    tests.inject("PetstoreKeyExpiring", "a key expires in a week", brief_key(environment))
    mixed = "a target is a node of another version"
    tests.inject("PetstoreVersionsMixed", mixed, old.running(), timeout=LONG_TIMEOUT)
    restarted = "the feed is restarted; fires for a minute"
    tests.inject("PetstoreEventFeedRestarted", restarted, primary.new_epoch(), timeout=LONG_TIMEOUT)
    tests.inject("PetstoreArchivingFailing", "archive_command fails", primary.failing_archive(), timeout=LONG_TIMEOUT)
    tests.inject("PetstoreFileDescriptors", "95 idle connections, 120 descriptors", idle_connections(small, 95))
    overload = together(primary.trigger(DELAYED), Clients(small, key, 60, 12, adds=1))
    tests.inject("PetstoreShedding", "12 clients, --max-requests 1", overload, reason="requests")
    too_many = idle_connections(narrow, 60)
    tests.inject("PetstoreShedding", "60 connections, --max-connections 30", too_many, reason="connections")
    partitions = "PetstoreIdempotencyPartitions"
    tests.inject(partitions, "no partitions for more than two days ahead", primary.few_partitions())
    held = "PetstoreEventsHeldBack"
    tests.inject(held, "a transaction that has written stays open", primary.long_transaction())
    tests.inject("PetstoreOrdersOverdue", "somebody is changing the pet of an order", primary.stuck_order())
    lost = "PetstoreReplicationLost"
    tests.inject(lost, "one of two standbys is stopped", stopped(standbys[0]), severity="warning")
    tests.inject(lost, "both standbys are stopped", stopped(*standbys), severity="critical")
    tests.inject("PetstorePoolExhausted", "a table is locked, two connections", primary.lock(), instance="narrow")
    wait_for("no alert pages before the outage", prometheus.pages_no_one, LONG_TIMEOUT)
    time.sleep(MARGIN)
    outage = stopped(primary)
    times = tests.inject("PetstoreDatabaseAway", "PostgreSQL is stopped", outage, OUTAGE, instance="plain")
    time.sleep(max(0.0, times[1] + MARGIN + 1 - time.time()))
    record(prometheus, plain, *times)
    tests.inject("PetstoreNodeDown", "a node is killed", killed(narrow), instance="narrow")
    tests.inject("PetstoreDown", "every node is killed", killed(*nodes))

    check_data(prometheus, started)
    rules = prometheus.rules()
    if failed := [rule for rule in rules if rule["health"] != "ok"]:
        raise SystemExit(f"rules failed: {failed}")
    if untested := {rule["name"] for rule in rules if rule["type"] == "alerting"} - tests.tested:
        raise SystemExit(f"no fault was injected for {untested}")
    tests.print_table()
    say(f"\nevery alert fired and resolved as expected, in {time.time() - started:.0f} s")


def main() -> None:
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    for name in ("prometheus", "setpriv"):
        if not shutil.which(name):
            raise SystemExit(f"{name} is missing: scripts/install-tools installs it")
    # So that SIGTERM stops the started processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    directory = Path(tempfile.mkdtemp(prefix="petstore-alerts-"))
    directory.chmod(0o755)
    try:
        with contextlib.ExitStack() as running:
            run(directory, running)
        for log in directory.glob("*.log"):
            if "panicked" in (text := log.read_text()):
                raise SystemExit(f"{log.name}: {text}")
    except BaseException:
        for log in sorted(directory.glob("*.log")):
            sys.stderr.write(f"\n{log.name} ends with:\n" + "".join(log.read_text().splitlines(True)[-5:]))
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
