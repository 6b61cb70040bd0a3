"""Compares a mirror with the table that it copies.

    check.py equal FILE PETS                  whether the file has exactly these pets
    check.py history LOG BEFORE AFTER PLACE   whether a reader saw only rows of the table, each pet's in their order

PETS has a pet on each line, as a JSON array. BEFORE and AFTER have every version of every pet, in order, until a backup
is restored and from then on: `[place, pet]`. AFTER begins with those that were in the backup, up to PLACE.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import sys
from collections import defaultdict
from typing import Any


def content(row: list[Any] | tuple[Any, ...]) -> str:
    """Returns a pet in the form in which pets are compared. Its metadata is an object, or JSON in a string."""
    *fields, metadata = row
    return json.dumps([*fields, json.loads(metadata) if isinstance(metadata, str) else metadata], sort_keys=True)


def equal(file: str, pets: str) -> None:
    with open(pets) as lines:
        expected = {content(json.loads(line)) for line in lines if line.strip()}
    with contextlib.closing(sqlite3.connect(file)) as connection:
        found = {content(row) for row in connection.execute("SELECT * FROM pets")}
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    if found != expected:
        missing, wrong = sorted(expected - found)[:1], sorted(found - expected)[:1]
        sys.exit(f"{len(expected)} pets, {len(found)} in the copy; missing: {missing}, wrong: {wrong}")
    print(f"{len(found)} pets are equal")


class Versions:
    """The versions of all pets, by pet and content: their places, in ascending order."""

    def __init__(self, file: str, restored: int = 0) -> None:
        self.places: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.last: dict[int, float] = {}
        with open(file) as lines:
            for line in lines:
                if line.strip():
                    place, pet = json.loads(line)
                    self.places[pet[0]][content(pet)].append(place)
                    if place <= restored:
                        self.last[pet[0]] = place

    def accepts(self, change: list[Any]) -> bool:
        """Returns whether this can be the next that is seen of the pet. A pet that was deleted does not come back."""
        pet_id = change[0]
        if len(change) == 1:
            self.last[pet_id] = math.inf
            return True
        last = self.last.get(pet_id, 0)
        place = next((place for place in self.places[pet_id].get(content(change), []) if place >= last), None)
        if place is None:
            return False
        self.last[pet_id] = place
        return True


def history(log: str, before: str, after: str, restored: str) -> None:
    versions, is_restored, pets, seen = Versions(before), False, {}, 0
    with open(log) as lines:
        for number, line in enumerate(lines, 1):
            changes = json.loads(line)
            seen += len(changes)
            for change in changes:
                pets[change[0]] = change
            refused = [change for change in changes if not versions.accepts(change)]
            if refused and not is_restored:
                # Then this is the first look at the restored table, and all of it.
                versions, is_restored = Versions(after, int(restored)), True
                refused = [pet for pet in pets.values() if len(pet) > 1 and not versions.accepts(pet)]
            if refused:
                places = dict(versions.places[refused[0][0]])
                last = versions.last.get(refused[0][0])
                sys.exit(f"{log}:{number}: {refused[0]} was never in the table, or before {last}: {places}")
    if not is_restored:
        sys.exit(f"{log}: the restored table was not seen")
    print(f"{log}: {seen} changes of {len(pets)} pets, all of them versions of the table in their order")


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    equal(*arguments) if command == "equal" else history(*arguments)
