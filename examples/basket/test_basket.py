"""All pets or none: if one is not available, if two buyers want the same pets, and if the program crashes."""

import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from basket import reserve
from petstore_client import Attempt, Petstore

shop = Petstore()


def add_pets(count: int) -> list[int]:
    return [shop.pets.create(name="Rex", category_id=3, status="available").id for _ in range(count)]


def new_basket() -> str:
    return f"basket-{uuid.uuid4()}"


def status_of(pet_ids: list[int]) -> list[str]:
    return [str(pet.status) for pet in shop.pets.get_many(pet_ids)]


def test_all_pets_are_reserved_or_none() -> None:
    ada, bo, cy = add_pets(3)
    assert [order.pet_id for order in reserve(shop, new_basket(), [bo])] == [bo]
    assert reserve(shop, new_basket(), [cy, bo, ada]) == []
    assert status_of([ada, bo, cy]) == ["available", "pending", "available"]
    basket = new_basket()
    orders = reserve(shop, basket, [cy, ada])
    assert [(order.pet_id, order.status, order.reference) for order in orders] == [
        (ada, "placed", basket),
        (cy, "placed", basket),
    ]
    assert reserve(shop, basket, [ada, cy]) == orders  # the page was reloaded
    shop.orders.complete(orders[0].id)
    assert len(reserve(shop, basket, [ada, cy])) == 2  # and again, after the first of them was paid
    assert status_of([ada, cy]) == ["sold", "pending"]


def test_of_two_buyers_who_want_the_same_pets_one_gets_all() -> None:
    for _ in range(5):
        pets = add_pets(4)
        with ThreadPoolExecutor(2) as buyers:
            baskets = list(buyers.map(lambda wanted: reserve(shop, new_basket(), wanted), [pets, pets[::-1]]))
        assert sorted(len(orders) for orders in baskets) == [0, 4]
        assert status_of(pets) == ["pending"] * 4


class Crash(BaseException):
    pass


def test_a_crash_after_any_response_is_repaired_by_the_next_run() -> None:
    def crash_and_repeat(responses: int, taken: bool) -> None:
        pets, basket = add_pets(3), new_basket()
        if taken:
            reserve(shop, new_basket(), pets[-1:])
        left = responses

        def crash(_: Attempt) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash

        with suppress(Crash):
            reserve(Petstore(on_attempt=crash), basket, pets)
        assert len(reserve(shop, basket, pets)) == (0 if taken else 3), f"after {responses} responses"
        assert status_of(pets) == (["available", "available", "pending"] if taken else ["pending"] * 3)

    runs = [(responses, taken) for responses in range(1, 10) for taken in [False, True]]
    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(lambda run: crash_and_repeat(*run), runs))


def test_the_program_reserves_pets() -> None:
    pets = add_pets(2)
    for taken in [False, True]:
        command = [sys.executable, str(Path(__file__).with_name("basket.py")), new_basket(), *map(str, pets)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == (1 if taken else 0), run.stderr
        assert run.stdout.count("is reserved until") == (0 if taken else 2)
