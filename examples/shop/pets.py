"""What the shop knows about a pet beyond its name, category and status: it is in the metadata of the pet."""

from __future__ import annotations

import json
import re
from sqlite3 import Row

from petstore_client import Pet

CATEGORIES = dict(enumerate(("Dogs", "Cats", "Rabbits", "Guinea pigs", "Hamsters", "Birds", "Fish", "Reptiles"), 1))
DETAILS = ("price", "photo", "born", "about")  # the members of the metadata that the shop uses


def pet_from(row: Row) -> Pet:
    """Converts a row of the mirror to a pet of the SDK."""
    columns = {name: row[name] for name in ("id", "name", "category_id", "status", "reference")}
    return Pet(**columns, metadata=json.loads(row["metadata"]))


# Other programs can write metadata, too, so these check it whenever a page shows it.
def price_of(pet: Pet) -> str | None:
    """Returns None if the pet has no price: it is not for sale here."""
    price = pet.metadata.get("price", "")
    return price if is_price(price) else None


def photo_of(pet: Pet) -> str:
    photo = pet.metadata.get("photo", "")
    return photo if is_photo(photo) else "/static/photos/none.svg"


def is_price(price: str) -> bool:
    return re.fullmatch(r"[0-9]{1,7}\.[0-9]{2}", price) is not None


# The same in SQL, so that a page of the shop has as many pets as it should.
IS_PRICE = "text GLOB '*[0-9].[0-9][0-9]' AND text NOT GLOB '*[^0-9.]*' AND text NOT GLOB '*.*.*' AND length(text) < 11"


def is_photo(photo: str) -> bool:
    """Accepts our own pictures and https, but not `javascript:`, nor anything that could end an attribute."""
    return re.fullmatch(r"/static/photos/[a-z0-9-]+\.svg|https://[^\s\"'<>\\]+", photo) is not None
