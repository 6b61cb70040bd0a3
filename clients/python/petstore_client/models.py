"""The values that calls accept and return."""

from __future__ import annotations

from dataclasses import dataclass, field

from .generated import models
from .generated.models import Event as Event
from .generated.models import Order as Order
from .generated.models import OrderStatus as OrderStatus
from .generated.models import PetStatus as PetStatus

EventType = str
"""What happened, such as `pet.created`; `docs/events.md` lists the types. Types may be added, so ignore types that
you do not know."""


@dataclass(frozen=True)
class Pet(models.Pet):
    """A pet in the inventory."""

    etag: str | None = field(default=None, repr=False, compare=False)
    """The version of the pet, for `if_match`. None for pets of a list: `pets.get` one to update it conditionally."""
