"""The SQLite file of a `Mirror`: its tables, its lock, and its transactions.

- Readers see all of a transaction or nothing. Pets and the position in the feed are stored in the same one.
- A build fills a temporary table, which one transaction then merges into `pets`. The table `pets` is never dropped or
  renamed, so the indexes, views and triggers that others have put on it stay. A build that does not end leaves nothing.
- The file has one writer. It holds a lock of the operating system, which ends with its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .models import Pet

FORMAT = 1
OLDEST_SQLITE = (3, 24, 0)  # for ON CONFLICT … DO UPDATE
# How long a statement waits for the transaction of another process, which may be creating an index.
BUSY_SECONDS = 60.0
# Readers that overlap keep SQLite from reusing its write-ahead log. When the log has this size, the writer waits for
# the readers, but not for long and not often: one of them may never end.
LARGE_WAL_BYTES = 32 * 1024 * 1024
CHECKPOINT_BUSY_SECONDS = 1.0
CHECKPOINT_INTERVAL_SECONDS = 10.0

PETS = """(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  category_id INTEGER NOT NULL,
  status TEXT,
  reference TEXT,
  metadata TEXT NOT NULL -- a JSON object: {} if the pet has none
)"""
MIRROR = """(
  format INTEGER NOT NULL,
  base_url TEXT NOT NULL,
  position TEXT, -- in the event feed; NULL until the first build has ended
  current_at REAL -- the Unix time at which the copy was last known to be current
)"""
COLUMNS = "(id, name, category_id, status, reference, metadata)"
# Leaves rows that stay the same alone: triggers on UPDATE fire only for changes.
OR_UPDATE = """
ON CONFLICT (id) DO UPDATE SET name = excluded.name, category_id = excluded.category_id, status = excluded.status,
  reference = excluded.reference, metadata = excluded.metadata
WHERE (name, category_id, status, reference, metadata)
  IS NOT (excluded.name, excluded.category_id, excluded.status, excluded.reference, excluded.metadata)"""
DELETE_GONE = "DELETE FROM main.pets WHERE id NOT IN (SELECT id FROM temp.built_pets)"
MERGE = f"INSERT INTO main.pets {COLUMNS} SELECT * FROM temp.built_pets WHERE true {OR_UPDATE}"
SET_POSITION = "UPDATE main.petstore_mirror SET position = ?, current_at = ?"

to_json = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would create an encoder for each pet


class MirrorFile:
    """A file, opened for writing. `position` and `current_at` are those of the last transaction."""

    def __init__(self, path: Path, base_url: str) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise RuntimeError(f"A mirror needs SQLite {oldest} or later. This Python has {sqlite3.sqlite_version}.")
        self._path, self._next_checkpoint = path, 0.0
        with contextlib.ExitStack() as opened:
            opened.enter_context(contextlib.closing(_lock(path)))
            self._connection = opened.enter_context(contextlib.closing(connect(path)))
            self.position, self.current_at = self._open(base_url)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def begin_build(self) -> None:
        """Starts a build. One that has not ended is thrown away."""
        self._connection.execute("DROP TABLE IF EXISTS temp.built_pets")
        self._connection.execute(f"CREATE TEMP TABLE built_pets {PETS}")

    def build(self, pets: Iterable[Pet], pet_ids: Iterable[int] = ()) -> None:
        """Stores pets in the build. Deletes those of the ids that are not among them."""
        with self._transaction("DEFERRED"):  # does not lock the file, because only the temporary table is written
            self._replace("temp.built_pets", pets, pet_ids)

    def end_build(self, position: str, current_at: float) -> None:
        """Makes `pets` equal to the build."""
        with self._transaction():
            self._connection.execute(DELETE_GONE)
            self._connection.execute(MERGE)
            self._set_position(position, current_at)
        self._connection.execute("DROP TABLE temp.built_pets")
        self._limit_wal()

    def store(self, pets: Iterable[Pet], pet_ids: Iterable[int], position: str, current_at: float | None) -> None:
        """Stores pets and the position after their events. Deletes those of the ids that are not among them."""
        with self._transaction():
            self._replace("main.pets", pets, pet_ids)
            self._set_position(position, current_at)
        self._limit_wal()

    def _open(self, base_url: str) -> tuple[str | None, float | None]:
        """Creates the tables of a new file, or checks those of an existing one. Returns how far the copy is."""
        execute = self._connection.execute
        with self._transaction():
            names = execute("SELECT name FROM sqlite_master WHERE name IN ('pets', 'petstore_mirror')").fetchall()
            if not names:
                execute(f"CREATE TABLE pets {PETS}")
                execute(f"CREATE TABLE petstore_mirror {MIRROR}")
                execute("INSERT INTO petstore_mirror (format, base_url) VALUES (?, ?)", [FORMAT, base_url])
            if len(names) == 1:
                raise ValueError(f"{self._path} is not a mirror, but has a table `{names[0][0]}`. Choose another file.")
            [found] = execute("SELECT format FROM petstore_mirror").fetchone()
            if found != FORMAT:
                problem = f"{self._path} has the format {found}. This version of petstore_client needs {FORMAT}."
                raise ValueError(f"{problem} Delete the file, or choose another one.")
            [found, position, current_at] = execute(
                "SELECT base_url, position, current_at FROM petstore_mirror"
            ).fetchone()
            if found != base_url:
                problem = f"{self._path} is a copy of {found}, not of {base_url}."
                raise ValueError(f"{problem} Delete the file, or choose another one.")
        # A power failure may undo the last transactions. The events after the position that is left are read again.
        execute("PRAGMA synchronous = NORMAL")
        execute("PRAGMA temp_store = FILE")
        [mode] = execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise RuntimeError(f"SQLite cannot use a write-ahead log for {self._path}. Is the file on a local disk?")
        return position, current_at

    def _replace(self, table: str, pets: Iterable[Pet], pet_ids: Iterable[int]) -> None:
        rows = [(pet.id, pet.name, pet.category_id, pet.status, pet.reference, to_json(pet.metadata)) for pet in pets]
        gone = set(pet_ids).difference(row[0] for row in rows)
        self._connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(pet_id,) for pet_id in gone])
        self._connection.executemany(f"INSERT INTO {table} {COLUMNS} VALUES (?, ?, ?, ?, ?, ?) {OR_UPDATE}", rows)

    def _set_position(self, position: str, current_at: float | None) -> None:
        self._connection.execute(SET_POSITION, [position, current_at])

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            self._connection.rollback()  # does nothing after a commit

    def _limit_wal(self) -> None:
        if os.path.getsize(f"{self._path}-wal") < LARGE_WAL_BYTES or time.monotonic() < self._next_checkpoint:
            return
        _set_busy_timeout(self._connection, CHECKPOINT_BUSY_SECONDS)
        self._connection.execute("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchall()
        _set_busy_timeout(self._connection, BUSY_SECONDS)
        self._next_checkpoint = time.monotonic() + CHECKPOINT_INTERVAL_SECONDS


def connect(path: Path, mode: str = "rwc") -> sqlite3.Connection:
    """Opens a file, for one thread at a time. `mode` is that of SQLite's URIs."""
    # With `isolation_level`, Python would begin transactions by itself.
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def _set_busy_timeout(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")


def _lock(path: Path) -> sqlite3.Connection:
    """Returns a connection that holds the lock until it is closed. It is on a second file, which stays empty."""
    connection = connect(path.with_name(path.name + ".lock"))
    try:
        _set_busy_timeout(connection, 0)
        connection.execute("PRAGMA journal_mode = MEMORY")  # no third file
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" not in str(error):
            raise
        problem = f"Another mirror keeps {path} current. A file has one mirror, and any number of readers."
        raise RuntimeError(problem) from None
    return connection
