"""The operations of one tag, one module per operation."""

from . import cancel_order, complete_order, get_order, list_orders, place_order

__all__ = ["cancel_order", "complete_order", "get_order", "list_orders", "place_order"]
