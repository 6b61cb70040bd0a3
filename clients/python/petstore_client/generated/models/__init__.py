"""The schemas of the OpenAPI document."""

from .error import Error
from .event import Event
from .list_orders_sort import ListOrdersSort
from .list_pets_sort import ListPetsSort
from .metadata import Metadata
from .metadata_patch import MetadataPatch
from .new_metadata import NewMetadata
from .new_order import NewOrder
from .new_pet import NewPet
from .order import Order
from .order_patch import OrderPatch
from .order_status import OrderStatus
from .pet import Pet
from .pet_patch import PetPatch
from .pet_status import PetStatus

__all__ = (
    "Error",
    "Event",
    "ListOrdersSort",
    "ListPetsSort",
    "Metadata",
    "MetadataPatch",
    "NewMetadata",
    "NewOrder",
    "NewPet",
    "Order",
    "OrderPatch",
    "OrderStatus",
    "Pet",
    "PetPatch",
    "PetStatus",
)
