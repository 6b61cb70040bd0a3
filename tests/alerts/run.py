#!/usr/bin/env python3
"""Runs the rules and the dashboard on a real Prometheus while real faults happen.

    tests/alerts/run.py

Starts a PostgreSQL with two standbys, three nodes of the service (target/release/petstore), a Prometheus that reads them
every second, and clients that send a few dozen requests a second. Then:

1. every expression of every panel of deploy/grafana/petstore.json and of every rule of deploy/prometheus/rules.yaml is
   asked for, and must not fail; each panel must have data;
2. no alert may go on firing while all is well, but for the one about getPet, which the clients do call;
3. each fault is caused for real: its alert must fire, and must end after the fault has. Then all must be well again.

The rules wait for minutes, and look back for hours. Here Prometheus gets a copy in which each of their times is divided by
FACTOR; what they compare is as it is. So the seconds in the table that is printed are those of this run.

What Prometheus saw of the time without a database is kept in target/alerts/outage.json, for tests/alerts/picture.py.
Needs prometheus, PostgreSQL's server and three minutes. Everything that is started is ended, also on failure.
"""

import contextlib
import glob
import http.client
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
# By which the times of the rules are divided: five minutes become five seconds.
FACTOR = 60
# For panels: five values of a Prometheus that looks every second.
RATE_INTERVAL = "5s"
# How long an alert may take to fire or to end, and all to be well again.
PATIENCE = 45
# Which alerts fire while all is well: the clients call getPet.
EXPECTED = {"PetstoreDeprecatedCalls"}
# For the picture: how long the database stays away, and what is shown of the time before and after.
OUTAGE = 20
MARGIN = 12
SLOW = "PERFORM pg_sleep(0.8); RETURN NULL"
UNHURRIED = "PERFORM pg_sleep(0.3); RETURN NULL"  # so that requests meet, however fast the machine is
BROKEN = "RAISE EXCEPTION 'a fault that was asked for'"


def say(text: str) -> None:
    print(text, flush=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what: str, condition, patience: float = PATIENCE, pause: float = 0.2):
    """What the condition returns once that is true. Fails if it takes too long."""
    end = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {patience} seconds")
        time.sleep(pause)
    return value


class Cluster:
    """A PostgreSQL that is there while the context is, and can be stopped and started meanwhile."""

    def __init__(self, directory: Path, of: "Cluster | None" = None):
        self.directory = directory
        self.url = ""
        if of:
            self._copy(of)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self) -> None:
        options = "-c shared_buffers=32MB -c wal_retrieve_retry_interval=1s"
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
        """Adding animals does this as well."""
        self.execute(
            f"CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$",
            "CREATE TRIGGER fault BEFORE INSERT ON pets FOR EACH STATEMENT EXECUTE FUNCTION fault()",
        )
        yield
        self.execute("DROP TRIGGER fault ON pets")

    @contextlib.contextmanager
    def few_partitions(self):
        """What is left for keys of requests if no node created partitions for days: today and two more."""
        self.execute(
            "DO $$ DECLARE partition regclass; BEGIN"
            " FOR partition IN SELECT inhrelid FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = 'idempotency_keys'::regclass AND relname >= 'idempotency_keys_' ||"
            " to_char((now() AT TIME ZONE 'UTC')::date + 3, 'YYYYMMDD')"
            " LOOP EXECUTE format('DROP TABLE %s', partition); END LOOP; END $$"
        )
        yield
        self.execute("SELECT create_idempotency_partitions()")

    @contextlib.contextmanager
    def lock(self):
        """Nobody can read or write animals."""
        session = subprocess.Popen(self.psql(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            session.stdin.write("BEGIN; LOCK TABLE pets IN ACCESS EXCLUSIVE MODE;\n")
            session.stdin.flush()
            yield
        finally:
            session.stdin.close()
            session.wait()

    def _copy(self, primary: "Cluster") -> None:
        self.directory.mkdir()
        as_server = []
        if os.getuid() == 0:  # which the server refuses to run as
            shutil.chown(self.directory, "postgres")
            as_server = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        backup = [program("pg_basebackup"), "--dbname", primary.url, "--pgdata", self.directory / "data"]
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        subprocess.run([*as_server, *backup, *options], cwd="/", check=True)


def program(name: str) -> str:
    """A program of the newest PostgreSQL, as scripts/postgres finds it."""
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    return os.path.join(os.environ.get("PGBIN") or (installed or [""])[-1], name)


class Process:
    """A program that runs while the context does, and can be killed and started meanwhile."""

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
        super().__init__(command, directory / f"{name}.log", {"DATABASE_URL": database.url}, files)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def restart(self) -> None:
        self.start()
        wait_for(f"{self.name} is ready", self.ready)


class Clients:
    """Sends so many requests a second to a node while the context is there, this share of which adds an animal."""

    def __init__(self, node: Node, key: str, rate: float, threads: int, adds: float = 0.15):
        self.node, self.key, self.pause, self.adds = node, key, threads / rate, adds
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
        # Not all at once.
        self.done.wait(self.pause * number / len(self.threads))
        while not self.done.is_set():
            begun = time.monotonic()
            method, path, body = self._request()
            try:
                connection.request(method, path, body, headers)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request opens it anew
            self.done.wait(max(0.0, self.pause - (time.monotonic() - begun)))

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
    """Reads the nodes every second, and has the rules with their times divided."""

    def __init__(self, directory: Path, nodes: list[Node]):
        (directory / "rules.yaml").write_text(shortened(check.RULES.read_text()))
        targets = [{"targets": [f"127.0.0.1:{node.admin}"], "labels": {"instance": node.name}} for node in nodes]
        config = {  # JSON is YAML, too
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": JOB, "static_configs": targets}],
        }
        (directory / "prometheus.yaml").write_text(json.dumps(config))
        self.port = free_port()
        options = ["--config.file", directory / "prometheus.yaml", "--storage.tsdb.path", directory / "prometheus"]
        listen = ["--web.listen-address", f"127.0.0.1:{self.port}", "--log.level", "warn"]
        super().__init__(["prometheus", *options, *listen], directory / "prometheus.log")

    def ask(self, path: str, **parameters) -> dict:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"Prometheus refuses {parameters}: {json.load(error)['error']}") from None

    def is_there(self) -> bool:
        try:
            return bool(self.ask("rules")["groups"])
        except OSError:
            return False

    def now(self, expression: str) -> list[dict]:
        return self.ask("query", query=expression)["result"]

    def between(self, expression: str, start: float, end: float) -> list[dict]:
        return self.ask("query_range", query=expression, start=start, end=end, step=1)["result"]

    def rules(self) -> list[dict]:
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> list[dict]:
        return [alert["labels"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"]

    def all_is_well(self) -> bool:
        return {labels["alertname"] for labels in self.firing()} <= EXPECTED


def shortened(rules: str) -> str:
    """The rules with each of their times divided by FACTOR."""
    milliseconds = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

    def divide(match: re.Match) -> str:
        return f"{match[1]}{int(match[2]) * milliseconds[match[3]] // FACTOR}ms"

    return re.sub(r"(\[|\boffset |\bfor: )(\d+)([smhd])\b", divide, rules)


def with_variables(expression: str) -> str:
    """A panel's expression as Grafana would send it, for all nodes."""
    variables = {"$job": JOB, "$instance": ".*", "$__rate_interval": RATE_INTERVAL, "$__range": "30s"}
    for name, value in variables.items():
        expression = expression.replace(name, value)
    return expression


def has_data(series: list[dict]) -> bool:
    """Whether there is a number among the values; a quantile of nothing is NaN."""
    values = [value for one in series for _, value in one.get("values") or [one["value"]]]
    return any(not math.isnan(float(value)) for value in values)


def without_data(prometheus: Prometheus, since: float, unless: tuple) -> list[str]:
    """Which panels have no data now, and which recorded series never had any. Fails if any expression of either does."""
    empty = []
    for panel in check.panels():
        for target in panel["targets"]:
            if not has_data(prometheus.now(with_variables(target["expr"]))):
                empty.append(f"{panel['title']}: no data for {target['expr']}")
    for rule in prometheus.rules():
        prometheus.now(rule["query"])
        recorded = rule["type"] == "recording" and rule["name"] not in unless
        if recorded and not has_data(prometheus.between(rule["name"], since, time.time())):
            empty.append(f"{rule['name']}: no data")
    return empty


def ask_everything(prometheus: Prometheus, since: float, unless: tuple = ()) -> None:
    """Every panel has data, every series that is recorded has some, and no expression fails."""
    end = time.monotonic() + PATIENCE
    while empty := without_data(prometheus, since, unless):  # rates need a few seconds
        if time.monotonic() > end:
            raise SystemExit("\n".join(empty))
        time.sleep(1)
    targets = sum(len(panel["targets"]) for panel in check.panels())
    rules = len(prometheus.rules())
    say(f"{targets} expressions of {len(check.panels())} panels have data; {rules} rules were asked for")


class Trial:
    """Causes faults, and watches."""

    def __init__(self, prometheus: Prometheus):
        self.prometheus = prometheus
        self.table: list[tuple] = []
        self.seen: set[str] = set()

    def sees(self, alert: str, fault: str, context, at_least: float = 0, **labels: str) -> tuple[float, float]:
        """The alert fires while the context is there, and ends afterwards. Returns when the fault began and ended."""
        wanted = {"alertname": alert, **labels}
        name = f"{alert} ({labels['severity']})" if "severity" in labels else alert
        others: set[str] = set()

        def fires() -> bool:
            firing = self.prometheus.firing()
            others.update(labels["alertname"] for labels in firing)
            return any(wanted.items() <= labels.items() for labels in firing)

        wait_for(f"{name} does not fire before: {fault}", lambda: not fires())
        others.clear()
        begun = time.time()
        with context:
            wait_for(f"{name} fires: {fault}", fires)
            to_fire = time.time() - begun
            while time.time() < begun + at_least:
                fires()
                time.sleep(0.2)
        ended = time.time()
        wait_for(f"{name} ends after: {fault}", lambda: not fires())
        to_resolve = time.time() - ended
        wait_for(f"all is well after: {fault}", self.prometheus.all_is_well)
        self.seen.add(alert)
        self.table.append((name, fault, to_fire, to_resolve, others - {alert} - EXPECTED))
        say(f"  {name}: fired after {to_fire:.1f} s, ended after {to_resolve:.1f} s")
        return begun, ended

    def sees_deprecated_calls(self) -> None:
        """The clients call getPet from the start. The alert ends a day later, which only promtool tries."""
        alert, begun = "PetstoreDeprecatedCalls", time.time()
        wait_for(f"{alert} fires", lambda: any(labels["alertname"] == alert for labels in self.prometheus.firing()))
        self.seen.add(alert)
        self.table.append((alert, "clients call getPet", time.time() - begun, None, set()))

    def print_table(self) -> None:
        say(f"\n| alert | fault | fires after | ends after | fired as well |  (times of rules / {FACTOR})")
        say("|---|---|---|---|---|")
        for name, fault, to_fire, to_resolve, others in self.table:
            also = ", ".join(sorted(others))
            end = "not tried" if to_resolve is None else f"{to_resolve:.1f} s"
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


def record(prometheus: Prometheus, node: Node, begun: float, ended: float) -> None:
    """Keeps what the dashboard would show of the outage."""
    start, end = round(begun - MARGIN), round(ended + MARGIN)
    mine = f'{{job="{JOB}", instance="{node.name}"}}'
    requests = "http_server_request_duration_seconds"
    expressions = {
        "requests": f"sum by (http_response_status_code) (rate({requests}_count{mine}[3s]))",
        "p99": f"histogram_quantile(0.99, sum by (le) (rate({requests}_bucket{mine}[3s])))",
        "used": f'db_client_connection_count{{state="used", {mine[1:]}',
        "idle": f'db_client_connection_count{{state="idle", {mine[1:]}',
        "waiting": f"db_client_connection_pending_requests{mine}",
        "up": f"petstore_database_up{mine}",
        "alerts": f'ALERTS{{alertstate="firing", severity!="info", instance="{node.name}"}}',
    }
    data = {name: prometheus.between(expression, start, end) for name, expression in expressions.items()}
    outage = {"start": start, "end": end, "stopped": begun, "started": ended, "factor": FACTOR, "series": data}
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text(json.dumps(outage))


def run(directory: Path, running: contextlib.ExitStack) -> None:
    begun = time.time()
    primary = running.enter_context(Cluster(directory / "primary"))
    environment = os.environ | {"DATABASE_URL": primary.url}
    subprocess.run([PETSTORE, "migrate"], env=environment, stdout=subprocess.DEVNULL, check=True)
    create = [PETSTORE, "keys", "create", "--name", "alerts"]
    key = subprocess.run(create, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    standbys = [running.enter_context(Cluster(directory / name, of=primary)) for name in ("one", "two")]

    # The faults need a node with few connections to the database, and one with room for little.
    plain = Node("plain", directory, primary)
    narrow = Node("narrow", directory, primary, "--database-connections", "2", "--max-connections", "30")
    small = Node("small", directory, primary, "--max-requests", "1", "--header-timeout", "5m", files=120)
    nodes = [plain, narrow, small]
    for node in nodes:
        running.enter_context(node)
        wait_for(f"{node.name} is ready", node.ready)
    prometheus = running.enter_context(Prometheus(directory, nodes))
    wait_for("Prometheus is there", prometheus.is_there)
    for node, rate, threads in ((plain, 24, 12), (narrow, 12, 8), (small, 2, 1)):
        running.enter_context(Clients(node, key, rate, threads))
    say(f"all is there after {time.time() - begun:.0f} s; the times of the rules are divided by {FACTOR}")

    trial = Trial(prometheus)
    trial.sees_deprecated_calls()
    time.sleep(6)
    primary.execute("ANALYZE pets")  # what the numbers of animals come from
    time.sleep(6)  # a node looks every five seconds
    wait_for("no alert fires while all is well", prometheus.all_is_well)
    ask_everything(prometheus, begun, unless=("instance:petstore_errors:increase5m",))  # there are none yet

    trial.sees("PetstoreSlow", "adding an animal takes 0.8 s", primary.trigger(SLOW))
    trial.sees("PetstoreErrors", "the database refuses to add animals", primary.trigger(BROKEN))
    trial.sees("PetstoreFileDescriptors", "95 idle connections, 120 descriptors", idle_connections(small, 95))
    crowd = together(primary.trigger(UNHURRIED), Clients(small, key, 60, 12, adds=1))
    trial.sees("PetstoreShedding", "12 clients, --max-requests 1", crowd, reason="requests")
    turned_away = idle_connections(narrow, 60)
    trial.sees("PetstoreShedding", "60 connections, --max-connections 30", turned_away, reason="connections")
    partitions = "PetstoreIdempotencyPartitions"
    trial.sees(partitions, "no partitions for more than two days ahead", primary.few_partitions())
    lost = "PetstoreReplicationLost"
    trial.sees(lost, "one of two standbys is stopped", stopped(standbys[0]), severity="warning")
    trial.sees(lost, "both standbys are stopped", stopped(*standbys), severity="critical")
    trial.sees("PetstorePoolExhausted", "a table is locked, two connections", primary.lock(), instance="narrow")
    time.sleep(MARGIN)
    outage = stopped(primary)
    times = trial.sees("PetstoreDatabaseAway", "PostgreSQL is stopped", outage, OUTAGE, instance="plain")
    time.sleep(max(0.0, times[1] + MARGIN + 1 - time.time()))
    record(prometheus, plain, *times)
    trial.sees("PetstoreNodeDown", "a node is killed", killed(narrow), instance="narrow")
    trial.sees("PetstoreDown", "every node is killed", killed(*nodes))

    ask_everything(prometheus, begun)
    rules = prometheus.rules()
    if failed := [rule for rule in rules if rule["health"] != "ok"]:
        raise SystemExit(f"rules failed: {failed}")
    if unseen := {rule["name"] for rule in rules if rule["type"] == "alerting"} - trial.seen:
        raise SystemExit(f"no fault was tried for {unseen}")
    trial.print_table()
    say(f"\nevery alert fired and ended as it should, in {time.time() - begun:.0f} s")


def main() -> None:
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    for name in ("prometheus", "setpriv"):
        if not shutil.which(name):
            raise SystemExit(f"{name} is missing: scripts/install-tools installs it")
    # So that what was started is ended then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
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
