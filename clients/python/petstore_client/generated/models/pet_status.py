from typing import Literal

PetStatus = Literal["available", "pending", "sold"]
