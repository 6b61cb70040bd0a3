"""The schemas of the OpenAPI document."""

from .error import Error
from .event import Event
from .new_order import NewOrder
from .new_pet import NewPet
from .order import Order
from .order_status import OrderStatus
from .pet import Pet
from .pet_patch import PetPatch
from .pet_status import PetStatus

__all__ = (
    "Error",
    "Event",
    "NewOrder",
    "NewPet",
    "Order",
    "OrderStatus",
    "Pet",
    "PetPatch",
    "PetStatus",
)
