"""One function a list, and one for asyncio: every item of all its pages."""

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
    """Every animal that matches, in the order of their identifiers; `limit` is the length of a page, not of the walk.

    One that was there when the walk began comes exactly once. Raises as `walk` does.
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
    """As `all_pets`, for `async for`."""
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
    """Every order that matches, in the order in which they were placed, as `all_pets` walks over animals."""
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
    """As `all_orders`, for `async for`."""
    return async_walk(
        client,
        lambda: list_orders.asyncio_detailed(client=client, status=status, pet_id=pet_id, limit=limit),
        Order.from_dict,
    )
