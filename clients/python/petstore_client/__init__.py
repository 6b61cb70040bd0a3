"""SDK of the Pet Store service: `Petstore`, and `AsyncPetstore` for asyncio. All failures are `PetstoreError`s."""

from typing import TYPE_CHECKING

from ._async_client import AsyncEvents, AsyncItems, AsyncOrders, AsyncPets, AsyncPetstore
from ._client import Events, Items, Orders, Pets, Petstore
from ._core import Attempt, CallOptions, ClientOptions, Page, ResponseInfo
from ._remove import REMOVE, Remove
from ._version import __version__
from .errors import (
    APIConnectionError,
    AuthenticationError,
    BadRequestError,
    ClientClosedError,
    ClientMovedError,
    ConflictError,
    CursorExpiredError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    PetstoreError,
    PreconditionFailedError,
    RateLimitError,
    RouteNotFoundError,
    ServiceUnavailableError,
)
from .models import Event, EventType, Metadata, MetadataPatch, Order, OrderStatus, Pet, PetStatus, Sort

if TYPE_CHECKING:
    from .mirror import Mirror
else:

    def __getattr__(name: str) -> object:
        # Not before it is used, because a Python can lack SQLite.
        if name == "Mirror":
            from .mirror import Mirror

            return Mirror
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "REMOVE",
    "APIConnectionError",
    "AsyncEvents",
    "AsyncItems",
    "AsyncOrders",
    "AsyncPets",
    "AsyncPetstore",
    "Attempt",
    "AuthenticationError",
    "BadRequestError",
    "CallOptions",
    "ClientClosedError",
    "ClientMovedError",
    "ClientOptions",
    "ConflictError",
    "CursorExpiredError",
    "Event",
    "EventType",
    "Events",
    "InternalServerError",
    "Items",
    "Metadata",
    "MetadataPatch",
    "Mirror",
    "NotFoundError",
    "Order",
    "OrderStatus",
    "Orders",
    "Page",
    "PermissionDeniedError",
    "Pet",
    "PetStatus",
    "Pets",
    "Petstore",
    "PetstoreError",
    "PreconditionFailedError",
    "RateLimitError",
    "Remove",
    "ResponseInfo",
    "RouteNotFoundError",
    "ServiceUnavailableError",
    "Sort",
    "__version__",
]
