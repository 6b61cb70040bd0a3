"""Makes the shop match the CSV file that a till writes every night.

    csv_sync.py FILE      with the columns number, name, category and price

The number becomes the pet's `reference`, and the price is stored in its metadata. Pets that are new in the file are
added, and pets that differ are changed. Pets that the file no longer contains are only listed, because somebody has to
decide what happens to them. After a crash, run the program again. A second run with the same file changes nothing.
"""

from __future__ import annotations

import asyncio
import csv
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from petstore_client import AsyncPetstore, BadRequestError, ConflictError, NotFoundError, Pet

AT_ONCE = 64  # the service stores pets that arrive at the same time in one statement


@dataclass(frozen=True)
class Row:
    number: str
    name: str
    category: str
    price: str


def read(file: str) -> list[Row]:
    with open(file, newline="", encoding="utf-8-sig") as lines:
        found = csv.DictReader(lines, restval="")
        if absent := {"number", "name", "category", "price"} - set(found.fieldnames or ()):
            sys.exit(f"{file}: these columns are missing: {', '.join(sorted(absent))}")
        rows = [Row(row["number"], row["name"], row["category"], row["price"]) for row in found]
    for number, count in Counter(row.number for row in rows).items():
        if count > 1 or not number.strip():
            sys.exit(f"{file}: each row needs its own number, but there are {count} with the number {number!r}")
    return rows


async def sync(shop: AsyncPetstore, rows: Sequence[Row]) -> Counter[str]:
    """Returns how many pets were added, changed, left unchanged or refused."""
    known = await find(shop, [row.number for row in rows])
    outcomes: Counter[str] = Counter()
    slots = asyncio.Semaphore(AT_ONCE)

    async def sync_row(row: Row) -> None:
        async with slots:
            try:
                outcomes[await apply(shop, row, known.get(row.number))] += 1
            except (BadRequestError, ConflictError, NotFoundError, ValueError) as error:  # the other rows continue
                outcomes["refused"] += 1
                print(f"{row.number} {row.name}: {error}")

    await asyncio.gather(*map(sync_row, rows))
    return outcomes


async def find(shop: AsyncPetstore, numbers: Sequence[str]) -> dict[str | None, Pet]:
    """Returns the pets with these numbers, also if the service refuses some of the numbers."""
    try:
        return {pet.reference: pet async for pet in shop.pets.list(references=numbers)}
    except (BadRequestError, ValueError):
        if len(numbers) == 1:
            return {}  # `apply` is refused, too, and says why
        middle = len(numbers) // 2
        return {**await find(shop, numbers[:middle]), **await find(shop, numbers[middle:])}


async def apply(shop: AsyncPetstore, row: Row, pet: Pet | None) -> str:
    category_id, metadata = int(row.category), {"price": row.price}
    if pet is None:
        await shop.pets.create(
            name=row.name, category_id=category_id, status="available", reference=row.number, metadata=metadata
        )
        return "added"
    if (row.name, category_id, row.price) == (pet.name, pet.category_id, pet.metadata.get("price")):
        return "unchanged"
    await shop.pets.update(pet.id, name=row.name, category_id=category_id, metadata=metadata)
    return "changed"


async def missing(shop: AsyncPetstore, rows: Sequence[Row]) -> list[Pet]:
    """Returns the pets that are for sale and have a number that the file does not contain."""
    numbers = {None, *(row.number for row in rows)}
    return [pet async for pet in shop.pets.list(status="available") if pet.reference not in numbers]


async def main(file: str) -> None:
    rows = read(file)
    async with AsyncPetstore() as shop:
        outcomes = await sync(shop, rows)
        print(", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ["added", "changed", "unchanged", "refused"]))
        for pet in await missing(shop, rows):
            print(f"not in the file: {pet.reference} {pet.name}")
    if outcomes["refused"]:
        sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1]))
