"""New pets are added, pets that differ are changed, and a run can be repeated, also after it was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from csv_sync import Row, missing, sync
from petstore_client import AsyncPetstore, Attempt, Pet, Petstore

shop = Petstore()


def new_rows(count: int) -> list[Row]:
    till = uuid.uuid4()
    return [Row(f"{till}-{number}", f"Rex {number}", "3", f"{number}.99") for number in range(count)]


def run(rows: list[Row], on_attempt: Callable[[Attempt], None] | None = None) -> Counter[str]:
    async def once() -> Counter[str]:
        async with AsyncPetstore(on_attempt=on_attempt) as shop:
            return await sync(shop, rows)

    return asyncio.run(once())


def stored(rows: list[Row]) -> dict[str, Pet]:
    return {pet.reference or "": pet for pet in shop.pets.list(references=[row.number for row in rows])}


def as_rows(pets: dict[str, Pet]) -> list[Row]:
    return [Row(number, pet.name, str(pet.category_id), pet.metadata["price"]) for number, pet in pets.items()]


def by_number(row: Row) -> str:
    return row.number


def assert_matches(rows: list[Row]) -> None:
    assert sorted(as_rows(stored(rows)), key=by_number) == sorted(rows, key=by_number)


def test_new_pets_are_added_and_those_that_differ_are_changed() -> None:
    rows = new_rows(120)
    assert run(rows) == {"added": 120}
    assert_matches(rows)
    assert {pet.status for pet in stored(rows).values()} == {"available"}

    photographed, sold = stored(rows)[rows[0].number], stored(rows)[rows[1].number]
    shop.pets.update(photographed.id, metadata={"photo": "https://shop.example/rex.jpg"})
    shop.orders.complete(shop.orders.place(pet_id=sold.id).id)
    rows[0] = replace(rows[0], price="1.00")
    rows[1] = replace(rows[1], name="Max")
    rows[2] = replace(rows[2], category="4")
    more = new_rows(1)
    assert run(rows + more) == {"added": 1, "changed": 3, "unchanged": 117}
    assert_matches(rows + more)
    assert shop.pets.get(photographed.id).metadata == {"price": "1.00", "photo": "https://shop.example/rex.jpg"}
    assert shop.pets.get(sold.id).status == "sold"


def test_a_second_run_changes_nothing() -> None:
    rows = new_rows(80)
    run(rows)
    ids, position = {pet.id for pet in stored(rows).values()}, shop.events.position()
    assert run(rows) == {"unchanged": 80}
    assert [event for event in shop.events.list(after=position) if event.pet_id in ids] == []


def test_a_pet_that_the_file_no_longer_contains_is_left_alone_and_listed() -> None:
    async def listed(rows: list[Row]) -> list[str]:
        async with AsyncPetstore() as shop:
            return [pet.reference or "" for pet in await missing(shop, rows)]

    rows = new_rows(3)
    run(rows)
    before = stored(rows)
    shop.pets.update(before[rows[1].number].id, status="sold")
    run(rows[:1])
    assert stored(rows).keys() == before.keys()
    numbers = [row.number for row in rows]
    assert [number for number in asyncio.run(listed(rows[:1])) if number in numbers] == [rows[2].number]


def test_a_run_that_was_killed_can_be_repeated() -> None:
    rows = new_rows(150)

    def kill_itself_when_half_is_stored() -> None:
        added = 0

        def count(attempt: Attempt) -> None:
            nonlocal added
            added += attempt.status == 201
            if added == 75:
                os.kill(os.getpid(), signal.SIGKILL)

        run(rows, count)

    process = get_context("fork").Process(target=kill_itself_when_half_is_stored)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert 75 <= len(stored(rows)) < 150
    outcomes = run(rows)
    assert outcomes.keys() == {"added", "unchanged"}
    assert outcomes["unchanged"] >= 75
    assert_matches(rows)


def test_a_row_that_the_service_refuses_does_not_stop_the_others() -> None:
    rows = new_rows(150)
    for bad in ["N" * 300, "N" * 100_000, "a\tb", " "]:
        assert run([*rows, replace(rows[0], number=bad)])["refused"] == 1, bad[:5]
    assert run(rows) == {"unchanged": 150}
    assert run([replace(row, category="9" * 30) for row in rows[:3]] + rows[3:]) == {"refused": 3, "unchanged": 147}


def test_the_program_reports_what_it_did_and_what_the_service_refused(tmp_path: Path) -> None:
    good, nameless, misplaced = new_rows(3)
    file = tmp_path / "till.csv"
    rows = [good, replace(nameless, name=" "), replace(misplaced, category="dogs")]
    lines = [f"{row.number},{row.name},{row.category},{row.price}" for row in rows]
    file.write_text("number,name,category,price\n" + "\n".join(lines) + "\n")
    command = [sys.executable, str(Path(__file__).with_name("csv_sync.py")), str(file)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1, process.stderr
    *refusals, summary = process.stdout.splitlines()[:3]
    assert [refusal.split(" ")[0] for refusal in sorted(refusals)] == [nameless.number, misplaced.number]
    assert "`/name` must" in refusals[0] + refusals[1]
    assert summary == "1 added, 0 changed, 0 unchanged, 2 refused"
    file.write_text(file.read_text() + lines[0] + "\n")
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stderr == f"{file}: each row needs its own number, but there are 2 with the number '{good.number}'\n"
