"""The operations of one tag, one module per operation."""

from . import create_pet, get_pet, list_pets, update_pet

__all__ = ["create_pet", "get_pet", "list_pets", "update_pet"]
