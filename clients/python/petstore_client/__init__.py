"""SDK of the Pet Store service: `Petstore`, and `AsyncPetstore` for asyncio. All failures are `PetstoreError`s."""

from ._client import AsyncItems, AsyncOrders, AsyncPets, AsyncPetstore, Items, Orders, Pets, Petstore
from ._core import Attempt, Page
from .errors import (
    APIConnectionError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    PetstoreError,
    PreconditionFailedError,
    RateLimitError,
    ServiceUnavailableError,
)
from .generated import VERSION as __version__
from .models import Order, OrderStatus, Pet, PetStatus

__all__ = [
    "APIConnectionError",
    "AsyncItems",
    "AsyncOrders",
    "AsyncPets",
    "AsyncPetstore",
    "Attempt",
    "AuthenticationError",
    "BadRequestError",
    "ConflictError",
    "InternalServerError",
    "Items",
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
    "ServiceUnavailableError",
    "__version__",
]
