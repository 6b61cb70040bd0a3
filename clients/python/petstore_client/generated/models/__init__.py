"""Contains all the data models used in inputs/outputs"""

from .error import Error
from .new_pet import NewPet
from .pet import Pet
from .pet_status import PetStatus

__all__ = (
    "Error",
    "NewPet",
    "Pet",
    "PetStatus",
)
