from typing import Literal

OrderStatus = Literal["cancelled", "completed", "expired", "placed"]
