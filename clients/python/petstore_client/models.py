"""The values that calls accept and return."""

from __future__ import annotations

from dataclasses import dataclass, field

from .generated import models
from .generated.models import Event as Event
from .generated.models import ListPetsSort
from .generated.models import Metadata as Metadata
from .generated.models import MetadataPatch as MetadataPatch
from .generated.models import OrderStatus as OrderStatus
from .generated.models import PetStatus as PetStatus

EventType = str
"""What happened, such as `pet.created`; `docs/events.md` lists the types. Types may be added, so ignore types that
you do not know."""

Sort = ListPetsSort
"""The order of a list: `id`, the oldest first, or `-id`, the newest first."""


@dataclass(frozen=True)
class Pet(models.Pet):
    """A pet in the inventory."""

    etag: str | None = field(default=None, repr=False, compare=False)
    """The version of the pet, for `if_match`. None for pets of a list: `pets.get` one to update it conditionally."""


@dataclass(frozen=True)
class Order(models.Order):
    """An order for one pet."""

    etag: str | None = field(default=None, repr=False, compare=False)
    """The version of the order, for `if_match`. Only `orders.get` and `orders.update` return it; otherwise None."""
