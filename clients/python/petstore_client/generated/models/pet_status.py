from typing import Literal

PetStatus = Literal["available", "pending", "sold"]

PET_STATUS_VALUES: set[PetStatus] = {
    "available",
    "pending",
    "sold",
}


def check_pet_status(value: str) -> PetStatus:
    if value in PET_STATUS_VALUES:
        return value
    raise TypeError(
        f"Unexpected value {value!r}. Expected one of {PET_STATUS_VALUES!r}"
    )
