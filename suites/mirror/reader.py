"""Reads the file of a mirror as a shop does, and checks each moment that it sees. Records every change for check.py.

    reader.py FILE NAME LOG

It has its own index, view and full-text table on `pets`. Runs until SIGTERM; exits with 1 if something is wrong.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

OBJECTS = """
BEGIN IMMEDIATE;
CREATE INDEX IF NOT EXISTS by_status_{name} ON pets (status);
CREATE VIEW IF NOT EXISTS of_category_{name} AS SELECT category_id, count(*) AS number FROM pets GROUP BY category_id;
CREATE VIRTUAL TABLE IF NOT EXISTS search_{name} USING fts5 (name, content = 'pets', content_rowid = 'id');
CREATE TRIGGER IF NOT EXISTS insert_{name} AFTER INSERT ON pets BEGIN
  INSERT INTO search_{name} (rowid, name) VALUES (NEW.id, NEW.name);
END;
CREATE TRIGGER IF NOT EXISTS delete_{name} AFTER DELETE ON pets BEGIN
  INSERT INTO search_{name} (search_{name}, rowid, name) VALUES ('delete', OLD.id, OLD.name);
END;
CREATE TRIGGER IF NOT EXISTS update_{name} AFTER UPDATE ON pets BEGIN
  INSERT INTO search_{name} (search_{name}, rowid, name) VALUES ('delete', OLD.id, OLD.name);
  INSERT INTO search_{name} (rowid, name) VALUES (NEW.id, NEW.name);
END;
INSERT INTO search_{name} (search_{name}) VALUES ('rebuild');
COMMIT;
"""
# The service has so many pets of this category from the beginning to the end. SQL renames them all in one transaction.
CONSTANT_CATEGORY, CONSTANT = 999, 1_000


def wrong(what: str) -> None:
    sys.exit(f"reader: {what}")


class Reader:
    def __init__(self, file: str, name: str) -> None:
        self.name = name
        self.connection = sqlite3.connect(file, timeout=60, isolation_level=None)
        self.pets: dict[int, tuple[Any, ...]] = {}
        self.generations: set[str] = set()

    def create_objects(self) -> None:
        while not self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'petstore_mirror'").fetchone():
            time.sleep(0.001)
        self.connection.executescript(OBJECTS.format(name=self.name))

    def look(self) -> list[Any]:
        """Checks what is there at one moment. Returns the pets that are different from those of the last one."""
        execute = self.connection.execute
        execute("BEGIN")
        pets = {row[0]: row for row in execute("SELECT * FROM pets")}
        [in_view] = execute(f"SELECT coalesce(sum(number), 0) FROM of_category_{self.name}").fetchone()
        [in_index] = execute(f"SELECT count(*) FROM pets INDEXED BY by_status_{self.name} WHERE status > ''").fetchone()
        [in_search] = execute(f"SELECT count(*) FROM search_{self.name}_docsize").fetchone()
        if pets:
            pet_id = random.choice(list(pets))
            name = pets[pet_id][1].replace('"', '""')
            found = execute(f"SELECT rowid FROM search_{self.name} WHERE search_{self.name} MATCH ?", [f'"{name}"'])
            if (pet_id,) not in found.fetchall():
                wrong(f"the full-text table does not find {pets[pet_id]}")
        execute("COMMIT")
        with_status = sum(row[3] is not None for row in pets.values())
        if (in_view, in_index, in_search) != (len(pets), with_status, len(pets)):
            wrong(f"{len(pets)} pets, {with_status} with a status; {in_view} in the view, {in_index}, {in_search}")
        self.check_constant([row[1].split()[1] for row in pets.values() if row[2] == CONSTANT_CATEGORY], len(pets))
        changes = [row for pet_id, row in pets.items() if self.pets.get(pet_id) != row]
        changes += [(pet_id,) for pet_id in self.pets.keys() - pets.keys()]
        self.pets = pets
        return changes

    def check_constant(self, generations: list[str], pets: int) -> None:
        if len(generations) != CONSTANT and (pets or self.generations):
            wrong(f"{pets} pets, but {len(generations)} of {CONSTANT} constant ones: half a copy")
        # Changes may arrive pet by pet, but a restored backup takes all of them back at once.
        now = set(generations)
        if self.generations == {"2"} and now not in ({"2"}, {"1"}):
            wrong(f"a restored backup can be seen in part: {now}")
        self.generations = now


def main() -> None:
    file, name, log = sys.argv[1:]
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    while not Path(file).exists():
        time.sleep(0.001)
    reader = Reader(file, name)
    reader.create_objects()
    looks = changes = 0
    with open(log, "w") as lines:
        while True:
            last = bool(stopped)
            changed = reader.look()
            looks, changes = looks + 1, changes + len(changed)
            if changed:
                lines.write(json.dumps(changed) + "\n")
            if last:
                break
            time.sleep(0.03)
    reader.connection.execute(f"INSERT INTO search_{name} (search_{name}) VALUES ('integrity-check')")
    print(f"reader {name}: looked {looks} times, saw {changes} changed pets")


if __name__ == "__main__":
    main()
