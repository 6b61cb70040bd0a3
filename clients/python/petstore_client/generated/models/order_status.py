from typing import Literal

OrderStatus = Literal["cancelled", "completed", "placed"]

ORDER_STATUS_VALUES: set[OrderStatus] = {
    "cancelled",
    "completed",
    "placed",
}


def check_order_status(value: str) -> OrderStatus:
    if value in ORDER_STATUS_VALUES:
        return value
    raise TypeError(
        f"Unexpected value {value!r}. Expected one of {ORDER_STATUS_VALUES!r}"
    )
