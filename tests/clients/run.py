#!/usr/bin/env python3
"""Calls the service at PETSTORE_URL through a proxy that injects one fault at a time (proxy.py): with each SDK, with
the programs in docs/examples, and with those of docs/quickstart.md.

    scripts/postgres with scripts/serve-for tests/clients/run.py [FAULT …]

Fails unless each call took effect exactly once and the caller saw the right result. Prints a table: how many attempts
at adding pets were made, how many pets the service stored, and what the caller saw.

An example adds one pet. A program of the guide must print what the page shows, fault or not. The page shows ids, so
each gets its own service. The guide's commands for curl are left out: each is a single attempt. docs/examples/add-pet.sh is
the one that retries.

Each SDK has a driver, a small program. It reads PETSTORE_KEY, and from its standard input a JSON array of runs:

    {"name": NAME, "url": the address of a proxy, "timeout": seconds for an attempt, "max_time": seconds for a call}

It does all runs at the same time. In each, it creates three available pets in category 1, named `NAME 0`, `NAME 1` and
`NAME 2`, with their names as references; moves the first to category 2, with its `etag`; orders the last, and completes the
order; and lists all pets, 50 per page. It continues after a failure as far as it can. Then it prints a JSON array with the
result of each run:

    {"created": [IDS], "order": {"id": ID, "status": STATUS} or null, "listed": [IDS], "failures": [FAILURES]}

A failure is `STEP: CLASS CODE` of the error, followed by `, outcome unknown` if the error says so. The steps are
create, update, place, complete and list.

With the argument `follow`, a driver first takes a position in the feed of events in each run, and prints the line `ready`
when it has all of them. Then it follows the feed in each run until it has seen as many events as `count` of the run says,
and prints a JSON array of what each run saw: `[[TYPE, ID OF THE PET], …]`. Meanwhile, pets are created without faults. Every
follower must see each of them once, in order.

Needs target/clients (scripts/clients build, and types, which compiles the driver in TypeScript).
"""

import asyncio
import json
import os
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy import FAULTS, FINAL, Proxy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROJECT = ROOT / "target/clients"
PYTHON = ROOT / "target/tools/clients/python/bin/python"

sys.path.insert(0, str(HERE.parent))
from guide import run as guide  # noqa: E402

DRIVERS = {
    "Python": [PYTHON, HERE / "driver.py", "Petstore"],
    "Python asyncio": [PYTHON, HERE / "driver.py", "AsyncPetstore"],
    "TypeScript": ["node", PROJECT / "out/driver.js"],
}
EXAMPLES = {
    "add_pet.py": [PYTHON, ROOT / "docs/examples/add_pet.py"],
    "add-pet.sh": [ROOT / "docs/examples/add-pet.sh"],
}
GUIDE = {"guide, Python": "python", "guide, TypeScript": "ts"}

PETS = 3
# Part of the names and references that the SDKs send and read: it looks like other things, and must stay as it is.
HOSTILE = """HTTP/1.1 400 </script> =1+1 "\\u0000' %0d%0a \u202e🐕"""


@dataclass(frozen=True)
class Case:
    """A fault, and how every call must fail if the fault is permanent.

    `attempts` is how many attempts each call must make; None means more than `times`.
    """

    fault: str
    times: int = 1
    timeout: float = 30
    max_time: float = 60
    delay: float = 3
    permanent: str = ""
    outcome_unknown: bool = True
    attempts: int | None = None

    @property
    def name(self) -> str:
        return f"{self.fault}, always" if self.permanent else self.fault


CASES = [
    *(Case(fault) for fault in FAULTS if fault not in ("delay", "mixed", *FINAL)),
    Case("delay", timeout=1),
    Case("mixed", times=2, timeout=1),
    # On a busy machine, a connection can take more than a second.
    Case("html-503", times=0, max_time=10, permanent="ServiceUnavailableError unexpected_response"),
    Case("lost-answer", times=0, max_time=10, permanent="APIConnectionError no_response"),
    # The response comes too late: `max_time` has to end even the first attempt.
    Case("delay", times=0, max_time=10, delay=15, permanent="APIConnectionError no_response"),
    Case("html-403", 0, permanent="PermissionDeniedError unexpected_response", outcome_unknown=False, attempts=1),
    Case("bug-500", 0, permanent="InternalServerError internal_error", attempts=1),
    Case("long-rate-limit", 0, permanent="RateLimitError rate_limited", outcome_unknown=False, attempts=1),
]
# Each page of the feed gets the faults. That a follower outlives them however long they last is tested with a fake clock,
# in the tests of the packages.
FOLLOWER_CASES = [
    *(Case(fault, times=2) for fault in FAULTS if fault not in ("mixed", *FINAL)),
    Case("mixed", times=3),
]
FOLLOWED_PETS = 50
# The examples have no options, so a permanent fault is one that ends the call at once.
EXAMPLE_CASES = [case for case in CASES if not case.permanent or case.attempts == 1]
# An attempt of an example times out after 10 s.
EXAMPLE_DELAY = 12
GUIDE_FAULTS = ("html-502", "html-503", "html-504", "rate-limit", "reset", "lost-answer")
GUIDE_CASES = [case for case in CASES if case.fault in GUIDE_FAULTS and not case.permanent]


@dataclass(frozen=True)
class Run:
    """A case with a package: what the caller saw, and how many attempts at each call the proxy counted."""

    case: Case
    package: str
    name: str
    seen: dict[str, Any]
    attempts: Counter[str]


def get(path: str, environment: Mapping[str, str] = os.environ) -> list[dict[str, Any]]:
    """Returns all pages of a list, from the service itself."""
    found: list[dict[str, Any]] = []
    while path:
        url = environment["PETSTORE_URL"] + path
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {environment['PETSTORE_KEY']}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            found += json.load(response)
            link = response.headers.get("Link", "")
        path = link[link.index("<") + 1 : link.index(">")] if 'rel="next"' in link else ""
    return found


def create_pet() -> int:
    """Adds a pet, without faults, and returns its id."""
    headers = {"Authorization": f"Bearer {os.environ['PETSTORE_KEY']}", "Content-Type": "application/json"}
    body = b'{"name": "Other", "categoryId": 1}'
    request = urllib.request.Request(os.environ["PETSTORE_URL"] + "/v1/pets", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        id: int = json.load(response)["id"]
        return id


async def drive(package: str, cases: list[Case]) -> list[Run]:
    """Runs the driver of a package, with one proxy for each case."""
    upstream = os.environ["PETSTORE_URL"].removeprefix("http://")
    proxies = [Proxy(upstream, case.fault, case.times, case.delay) for case in cases]
    runs = [
        {
            "name": f"{case.name}, {package}, {HOSTILE}",
            "url": f"http://{await proxy.start()}",
            "timeout": case.timeout,
            "max_time": case.max_time,
        }
        for case, proxy in zip(cases, proxies)
    ]
    pipe = asyncio.subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "python")}
    driver = await asyncio.create_subprocess_exec(*DRIVERS[package], env=environment, stdin=pipe, stdout=pipe)
    printed, _ = await driver.communicate(json.dumps(runs).encode())
    for proxy in proxies:
        await proxy.stop()
    if driver.returncode != 0:
        raise RuntimeError(f"the driver for {package} exited with status {driver.returncode}")
    results = zip(cases, runs, json.loads(printed), proxies, strict=True)
    return [Run(case, package, run["name"], seen, proxy.attempts) for case, run, seen, proxy in results]


async def start_follower(package: str, cases: list[Case]) -> tuple[list[Proxy], asyncio.subprocess.Process]:
    """Starts the driver of a package, with one proxy for each case, and waits until it is ready."""
    upstream = os.environ["PETSTORE_URL"].removeprefix("http://")
    proxies = [Proxy(upstream, case.fault, case.times, delay=2) for case in cases]
    runs = [
        {
            "url": f"http://{await proxy.start()}",
            "timeout": case.timeout,
            "max_time": case.max_time,
            "count": FOLLOWED_PETS,
        }
        for case, proxy in zip(cases, proxies)
    ]
    pipe = asyncio.subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "python")}
    driver = await asyncio.create_subprocess_exec(*DRIVERS[package], "follow", env=environment, stdin=pipe, stdout=pipe)
    assert driver.stdin and driver.stdout
    driver.stdin.write(json.dumps(runs).encode())
    driver.stdin.close()
    if await driver.stdout.readline() != b"ready\n":
        raise RuntimeError(f"the driver for {package} did not get its positions")
    return proxies, driver


async def follow_feed(cases: list[Case]) -> tuple[list[Run], list[int]]:
    """Creates pets while each package follows the feed. Also returns the ids of the pets."""
    if not cases:
        return [], []
    followers = await asyncio.gather(*(start_follower(package, cases) for package in DRIVERS))
    created: list[int] = []
    for _ in range(FOLLOWED_PETS):
        created.append(await asyncio.to_thread(create_pet))
        await asyncio.sleep(0.1)  # so that there are many pages
    runs: list[Run] = []
    for package, (proxies, driver) in zip(DRIVERS, followers):
        try:
            printed, _ = await asyncio.wait_for(driver.communicate(), 120)
        except TimeoutError:
            driver.kill()
            raise RuntimeError(f"the driver for {package} does not see {FOLLOWED_PETS} events") from None
        if driver.returncode != 0:
            raise RuntimeError(f"the driver for {package} exited with status {driver.returncode}")
        for case, proxy, seen in zip(cases, proxies, json.loads(printed), strict=True):
            await proxy.stop()
            runs.append(Run(case, package, f"{case.name}, {package}, follower", {"events": seen}, proxy.attempts))
    return runs, created


def check_follower(run: Run, created: list[int]) -> list[str]:
    """Returns what is wrong with what a follower saw while these pets were created."""
    # A follower has the time for a delay, and does not retry.
    faulty = 0 if run.case.fault in ("none", "delay", "mixed") else run.case.times
    untested = [call for call, count in run.attempts.items() if count <= faulty]
    if run.seen["events"] == [["pet.created", id] for id in created] and not untested:
        return []
    return [f"{run.name} saw {run.seen['events']} of {created}, too few attempts at {untested}"]


async def run_program(command: list[Any], environment: Mapping[str, str], **options: Any) -> tuple[int, str, str]:
    """Returns the exit status of a program, and what it printed."""
    pipe = asyncio.subprocess.PIPE
    environment = environment | {"PYTHONPATH": str(PROJECT / "python")}
    program = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe, **options)
    printed, errors = await program.communicate()
    assert program.returncode is not None
    return program.returncode, printed.decode(), errors.decode()


async def run_example(package: str, case: Case) -> Run:
    """Adds one pet, `NAME 0`, with an example."""
    proxy = Proxy(os.environ["PETSTORE_URL"].removeprefix("http://"), case.fault, case.times, EXAMPLE_DELAY)
    environment = os.environ | {"PETSTORE_URL": f"http://{await proxy.start()}"}
    name = f"{case.name}, {package},"
    status, printed, errors = await run_program([*EXAMPLES[package], f"{name} 0", "1"], environment)
    await proxy.stop()
    seen = {"status": status, "printed": printed, "reason": (errors.splitlines() or [""])[-1]}
    return Run(case, package, name, seen, proxy.attempts)


def check_example(run: Run, stored: list[dict[str, Any]]) -> list[str]:
    """Returns what is wrong with a run of an example, after which these pets are stored."""
    case, seen = run.case, run.seen
    attempts = list(run.attempts.values())
    if case.permanent:
        # The status that the caller has to see: that of the fault.
        status = {"html-403": "403", "bug-500": "500", "long-rate-limit": "429"}[case.fault]
        good = seen["status"] != 0 and f"status {status}" in seen["reason"] and attempts == [case.attempts]
        good = good and len(stored) <= 1
    else:
        faulty = 0 if case.fault == "none" else case.times
        good = seen["status"] == 0 and f"{run.name} 0" in seen["printed"]
        # One call, with one key for all attempts, and one pet.
        good = good and len(attempts) == 1 and attempts[0] > faulty and len(stored) == 1
    return [] if good else [f"{run.name}: {seen}, {len(stored)} pets, attempts {attempts}"]


@asynccontextmanager
async def service() -> AsyncIterator[dict[str, str]]:
    """Starts another service with an empty database. The value is its environment, as scripts/serve-for sets it."""
    names = ["DATABASE_URL", "PETSTORE_URL", "PETSTORE_KEY"]
    wait = 'printf "%s\\n" "' + " ".join(f"${name}" for name in names) + '"; cat'
    pipe = asyncio.subprocess.PIPE
    command = [ROOT / "scripts/postgres", "with", *guide.SERVICE, "bash", "-c", wait]
    running = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert running.stdin and running.stdout
    try:
        values = (await running.stdout.readline()).decode().split()
        yield os.environ | dict(zip(names, values, strict=True))
    finally:
        running.stdin.close()
        await running.wait()


async def follow_guide(package: str, case: Case, command: list[str], limit: asyncio.Semaphore) -> tuple[Run, list[Any]]:
    """Runs the program of the guide in a language. Also returns the pets that are stored then."""
    page, language = "docs/quickstart.md", GUIDE[package]
    async with limit, service() as direct:
        proxy = Proxy(direct["PETSTORE_URL"].removeprefix("http://"), case.fault, case.times)
        environment = direct | {"PETSTORE_URL": f"http://{await proxy.start()}"}
        with tempfile.TemporaryDirectory() as directory:
            status, printed, errors = await run_program(command, environment, cwd=directory)
        await proxy.stop()
        good = guide.judge(page, language, guide.examples(page, language), printed, errors, status)
        return Run(case, package, f"{case.name}, {package},", {"good": good}, proxy.attempts), get("/v1/pets", direct)


def check_guide(run: Run, stored: list[dict[str, Any]]) -> list[str]:
    """Returns what is wrong with a run of the guide, after which these pets are stored."""
    names = [pet["name"] for pet in stored]
    untested = [call for call, count in run.attempts.items() if count <= run.case.times]
    if run.seen["good"] and names == ["Rex", "Ada"] and not untested:
        return []
    return [f"{run.name} {run.seen}, pets {names}, too few attempts at {untested}"]


def check(run: Run, stored: list[dict[str, Any]]) -> list[str]:
    """Returns what is wrong with a run, after which these pets are stored."""
    case, seen = run.case, run.seen
    wrong: list[str] = []

    def expect(what: str, actual: object, expected: object) -> None:
        if actual != expected:
            wrong.append(f"{run.name} {what}: {actual} instead of {expected}")

    names = Counter(pet["name"] for pet in stored)
    if case.permanent:
        unknown = ", outcome unknown" if case.outcome_unknown else ""
        creates = [f"create: {case.permanent}{unknown}"] * PETS
        expect("failures", seen["failures"], [*creates, f"list: {case.permanent}"])
        expect("pets", max(names.values(), default=1), 1)
        if case.attempts:
            expect("attempts", set(run.attempts.values()), {case.attempts})
        return wrong
    expect("pets", names, Counter(f"{run.name} {number}" for number in range(PETS)))
    expect("created", seen["created"], [pet["id"] for pet in stored])
    expect("references", [pet.get("reference") for pet in stored], [pet["name"] for pet in stored])
    expect("categories", [pet["categoryId"] for pet in stored], [2, 1, 1])
    orders = get(f"/v1/store/orders?petId={seen['created'][-1]}") if seen["created"] else []
    expect("orders", [seen["order"]], [{"id": order["id"], "status": "completed"} for order in orders])
    expect("listed", [id for id in seen["listed"] if id in seen["created"]], seen["created"])
    expect("repeated in the list", [id for id, count in Counter(seen["listed"]).items() if count > 1], [])
    expect("failures", seen["failures"], [])
    # A busy machine may cause further attempts.
    faulty = 0 if case.fault == "none" else case.times
    expect("attempts", [call for call, count in run.attempts.items() if count <= faulty], [])
    return wrong


def row(run: Run, pets: int, saw: list[str]) -> list[str]:
    attempts = sum(count for call, count in run.attempts.items() if call.startswith("POST /v1/pets "))
    return [run.case.name, run.package, str(attempts), str(pets), "; ".join(saw)]


async def main(faults: list[str]) -> int:
    def chosen(cases: list[Case]) -> list[Case]:
        return [case for case in cases if not faults or case.fault in faults]

    for _ in range(60):  # so that there is more than one page
        create_pet()
    runs = await asyncio.gather(*(drive(package, chosen(CASES)) for package in DRIVERS))
    tries = [run_example(package, case) for case in chosen(EXAMPLE_CASES) for package in EXAMPLES]
    examples = await asyncio.gather(*tries)
    pets = get("/v1/pets?limit=100")

    wrong: list[str] = []
    rows: list[list[str]] = []
    for run in (run for same_package in runs for run in same_package):
        stored = [pet for pet in pets if pet["name"].startswith(run.name)]
        wrong += check(run, stored)
        saw = [f"{len(run.seen['created'])} pets"] if run.seen["created"] else []
        saw += [f"order {run.seen['order']['status']}"] if run.seen["order"] else []
        for failure, count in Counter(run.seen["failures"]).items():
            saw.append(failure if count == 1 else f"{count} × {failure}")
        rows.append(row(run, len(stored), saw))
    for run in examples:
        stored = [pet for pet in pets if pet["name"].startswith(run.name)]
        wrong += check_example(run, stored)
        rows.append(row(run, len(stored), ["the pet" if run.seen["status"] == 0 else run.seen["reason"]]))

    followers, created = await follow_feed(chosen(FOLLOWER_CASES))
    for run in followers:
        wrong += check_follower(run, created)
        attempts = f"{sum(run.attempts.values())} for {len(run.attempts)} pages"
        rows.append([run.case.name, f"follow, {run.package}", "", "", f"{len(run.seen['events'])} events, {attempts}"])

    limit = asyncio.Semaphore(2)  # services at the same time
    with tempfile.TemporaryDirectory() as directory:
        commands = {
            package: guide.LANGUAGES[language](guide.examples("docs/quickstart.md", language), Path(directory))
            for package, language in GUIDE.items()
        }
        follow = [
            follow_guide(package, case, commands[package], limit) for case in chosen(GUIDE_CASES) for package in GUIDE
        ]
        for run, stored in await asyncio.gather(*follow):
            wrong += check_guide(run, stored)
            rows.append(row(run, len(stored), ["what the page shows" if run.seen["good"] else "something else"]))

    names = [case.name for case in CASES]
    rows.sort(key=lambda row: names.index(row[0]))
    rows.insert(0, ["fault", "package", "attempts", "pets", "what the caller saw"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print("For each fault and program: the attempts at adding pets, and the pets stored. The driver of an SDK adds 3")
    print("pets, an example 1, and the guide 3, one of which it deletes. A follower of the feed adds none.")
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
