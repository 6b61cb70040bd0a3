#!/usr/bin/env python3
"""Calls the service at PETSTORE_URL with each SDK, through a proxy that injects one fault at a time (proxy.py).

    scripts/postgres with scripts/serve-for tests/clients/run.py [FAULT …]

Fails unless each call took effect exactly once and the caller saw the right result. Prints a table: how many attempts
the SDK made, what the service stored, and what the caller saw.

Each SDK has a driver, a small program. It reads PETSTORE_KEY, and from its standard input a JSON array of runs:

    {"name": NAME, "url": the address of a proxy, "timeout": seconds for an attempt, "max_time": seconds for a call}

It does all runs at the same time. In each, it creates three available pets in category 1, named `NAME 0`, `NAME 1` and
`NAME 2`; moves the first to category 2, with its `etag`; orders the last, and completes the order; and lists all pets,
50 per page. It continues after a failure as far as it can. Then it prints a JSON array with the result of each run:

    {"created": [IDS], "order": {"id": ID, "status": STATUS} or null, "listed": [IDS], "failures": [FAILURES]}

A failure is `STEP: CLASS CODE` of the error, followed by `, outcome unknown` if the error says so. The steps are
create, update, place, complete and list.

Needs target/clients (scripts/clients build, and types, which compiles the driver in TypeScript).
"""

import asyncio
import json
import os
import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy import FAULTS, Proxy

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1] / "target/clients"
PYTHON = HERE.parents[1] / "target/tools/clients/python/bin/python"

DRIVERS = {
    "Python": [PYTHON, HERE / "driver.py", "Petstore"],
    "Python asyncio": [PYTHON, HERE / "driver.py", "AsyncPetstore"],
    "TypeScript": ["node", PROJECT / "out/driver.js"],
}

PETS = 3
# Faults after which the service has done what it was asked to do, so a retry of a conditional update gets 412.
AFTER_EFFECT = {"html-504", "lost-answer", "half-answer", "half-head", "delay"}
LOST_UPDATE = "update: PreconditionFailedError precondition_failed, outcome unknown"


@dataclass(frozen=True)
class Case:
    """A fault, and how every call must fail if the fault is permanent."""

    fault: str
    times: int = 1
    timeout: float = 30
    max_time: float = 60
    permanent: str = ""

    @property
    def name(self) -> str:
        return f"{self.fault}, always" if self.permanent else self.fault


CASES = [
    *(Case(fault) for fault in FAULTS if fault not in ("delay", "mixed")),
    Case("delay", timeout=1),
    Case("mixed", times=2, timeout=1),
    Case("html-503", times=0, max_time=1, permanent="ServiceUnavailableError unexpected_response"),
    Case("lost-answer", times=0, max_time=1, permanent="APIConnectionError no_response"),
]


@dataclass(frozen=True)
class Run:
    """A case with a package: what the driver printed, and how many attempts at each call the proxy counted."""

    case: Case
    package: str
    name: str
    seen: dict[str, Any]
    attempts: Counter[str]


def get(path: str) -> list[dict[str, Any]]:
    """Returns all pages of a list, from the service itself."""
    found: list[dict[str, Any]] = []
    while path:
        url = os.environ["PETSTORE_URL"] + path
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['PETSTORE_KEY']}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            found += json.load(response)
            link = response.headers.get("Link", "")
        path = link[link.index("<") + 1 : link.index(">")] if 'rel="next"' in link else ""
    return found


def create_pets(count: int) -> None:
    """Adds pets, so that there is more than one page."""
    headers = {"Authorization": f"Bearer {os.environ['PETSTORE_KEY']}", "Content-Type": "application/json"}
    for _ in range(count):
        body = b'{"name": "Other", "categoryId": 1}'
        urllib.request.urlopen(urllib.request.Request(os.environ["PETSTORE_URL"] + "/v1/pets", body, headers)).read()


async def drive(package: str, cases: list[Case]) -> list[Run]:
    """Runs the driver of a package, with one proxy for each case."""
    upstream = os.environ["PETSTORE_URL"].removeprefix("http://")
    proxies = [Proxy(upstream, case.fault, case.times) for case in cases]
    runs = [
        {
            "name": f"{case.name}, {package},",
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


def check(run: Run, stored: list[dict[str, Any]]) -> list[str]:
    """Returns what is wrong with a run, after which these pets are stored."""
    case, seen = run.case, run.seen
    wrong: list[str] = []

    def expect(what: str, actual: object, expected: object) -> None:
        if actual != expected:
            wrong.append(f"{run.name} {what}: {actual} instead of {expected}")

    names = Counter(pet["name"] for pet in stored)
    if case.permanent:
        creates = [f"create: {case.permanent}, outcome unknown"] * PETS
        expect("failures", seen["failures"], [*creates, f"list: {case.permanent}"])
        expect("pets", max(names.values(), default=1), 1)
        return wrong
    expect("pets", names, Counter(f"{run.name} {number}" for number in range(PETS)))
    expect("created", seen["created"], [pet["id"] for pet in stored])
    expect("categories", [pet["categoryId"] for pet in stored], [2, 1, 1])
    orders = get(f"/v1/store/orders?petId={seen['created'][-1]}") if seen["created"] else []
    expect("orders", [seen["order"]], [{"id": order["id"], "status": "completed"} for order in orders])
    expect("listed", [id for id in seen["listed"] if id in seen["created"]], seen["created"])
    expect("repeated in the list", [id for id, count in Counter(seen["listed"]).items() if count > 1], [])
    if case.fault == "mixed":
        expect("failures", set(seen["failures"]) - {LOST_UPDATE}, set())
    else:
        expect("failures", seen["failures"], [LOST_UPDATE] if case.fault in AFTER_EFFECT else [])
    # A busy machine may cause further attempts.
    faulty = 0 if case.fault == "none" else case.times
    expect("attempts", [call for call, count in run.attempts.items() if count <= faulty], [])
    return wrong


async def main(faults: list[str]) -> int:
    create_pets(60)
    cases = [case for case in CASES if not faults or case.fault in faults]
    runs = await asyncio.gather(*(drive(package, cases) for package in DRIVERS))
    pets = get("/v1/pets?limit=100")

    wrong: list[str] = []
    rows = [["fault", "package", "attempts", "pets", "what the caller saw"]]
    for run in (run for same_case in zip(*runs) for run in same_case):
        stored = [pet for pet in pets if pet["name"].startswith(run.name)]
        wrong += check(run, stored)
        attempts = sum(count for call, count in run.attempts.items() if call.startswith("POST /v1/pets "))
        saw = [f"{len(run.seen['created'])} pets"] if run.seen["created"] else []
        saw += [f"order {run.seen['order']['status']}"] if run.seen["order"] else []
        for failure, count in Counter(run.seen["failures"]).items():
            saw.append(failure if count == 1 else f"{count} × {failure}")
        rows.append([run.case.name, run.package, str(attempts), str(len(stored)), "; ".join(saw)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"For each fault and package, {PETS} calls of pets.create: the attempts, and the pets stored")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
