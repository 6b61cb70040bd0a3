from typing import Literal

EventType = Literal[
    "order.cancelled", "order.completed", "order.expired", "order.placed", "pet.created", "pet.updated", "pets.imported"
]
