from typing import Literal

EventType = Literal[
    "order.cancelled",
    "order.completed",
    "order.deleted",
    "order.expired",
    "order.placed",
    "order.updated",
    "pet.created",
    "pet.deleted",
    "pet.updated",
    "pets.imported",
]
