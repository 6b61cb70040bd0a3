"""One generator per list operation, and one for asyncio: every item of all pages."""

from collections.abc import AsyncGenerator, Generator

from .generated import AuthenticatedClient
from .generated.api.animals import list_pets
from .generated.api.store import list_orders
from .generated.models import Order, OrderStatus, Pet, PetStatus
from .generated.types import UNSET, Unset
from .pages import async_walk, walk

__all__ = ["all_orders", "all_pets", "async_all_orders", "async_all_pets"]


def all_pets(
    client: AuthenticatedClient,
    *,
    status: PetStatus | Unset = UNSET,
    id: list[int] | Unset = UNSET,
    limit: int | Unset = UNSET,
) -> Generator[Pet]:
    """Yields every matching pet, in ascending order of id. `limit` is the page size, not the total.

    A pet that exists at the start, and still matches, appears exactly once. Raises the same exceptions as `walk`.
    """
    return walk(
        client,
        lambda: list_pets.sync_detailed(client=client, status=status, id=id, limit=limit),
        Pet.from_dict,
    )


def async_all_pets(
    client: AuthenticatedClient,
    *,
    status: PetStatus | Unset = UNSET,
    id: list[int] | Unset = UNSET,
    limit: int | Unset = UNSET,
) -> AsyncGenerator[Pet]:
    """Like `all_pets`, for `async for`."""
    return async_walk(
        client,
        lambda: list_pets.asyncio_detailed(client=client, status=status, id=id, limit=limit),
        Pet.from_dict,
    )


def all_orders(
    client: AuthenticatedClient,
    *,
    status: OrderStatus | Unset = UNSET,
    pet_id: int | Unset = UNSET,
    limit: int | Unset = UNSET,
) -> Generator[Order]:
    """Yields every matching order, in the order of placement. Otherwise like `all_pets`."""
    return walk(
        client,
        lambda: list_orders.sync_detailed(client=client, status=status, pet_id=pet_id, limit=limit),
        Order.from_dict,
    )


def async_all_orders(
    client: AuthenticatedClient,
    *,
    status: OrderStatus | Unset = UNSET,
    pet_id: int | Unset = UNSET,
    limit: int | Unset = UNSET,
) -> AsyncGenerator[Order]:
    """Like `all_orders`, for `async for`."""
    return async_walk(
        client,
        lambda: list_orders.asyncio_detailed(client=client, status=status, pet_id=pet_id, limit=limit),
        Order.from_dict,
    )
