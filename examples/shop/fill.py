"""Adds a dozen pets with a price and a photo, once, however often you run it."""

from __future__ import annotations

from contextlib import suppress

from petstore_client import ConflictError, Petstore

# The newest pet is last: name, category, price, photo, date of birth, description.
PETS = [
    ("Pip", 6, "24.50", "canary", "2026-03-02", "Sings at sunrise, and again when the kettle boils."),
    ("Truffle", 4, "32.00", "guinea-pig", "2026-05-20", "Three colours, one passion: cucumber."),
    ("Ash", 2, "140.00", "cat-grey", "2025-11-08", "Watches you from the highest shelf, and approves of little."),
    ("Bubbles", 7, "8.90", "goldfish", "2026-06-01", "Remembers you for months, whatever people say."),
    ("Clover", 3, "39.00", "rabbit", "2026-04-11", "Gentle, house-trained, and faster than she looks."),
    ("Domino", 1, "260.00", "dog-spotted", "2026-02-14", "All legs and optimism. Needs a long walk before breakfast."),
    ("Zest", 8, "64.00", "gecko", "2026-01-30", "Licks his own eyes. Excellent company at night."),
    ("Hazel", 3, "42.00", "rabbit-brown", "2026-04-11", "Digs. Then looks at you as if it had been somebody else."),
    ("Captain", 6, "185.00", "parrot", "2021-08-19", "Speaks two languages, and swears in neither. So far."),
    ("Nutmeg", 5, "19.00", "hamster", "2026-07-05", "Keeps a walnut for bad times. Runs six kilometres a night."),
    ("Marmalade", 2, "129.00", "cat-ginger", "2026-03-27", "Purrs before you touch him. Likes laps and Sundays."),
    ("Rex", 1, "240.00", "dog-brown", "2026-01-09", "Sits, stays and smiles. Good with children, bad at secrets."),
]


def main() -> None:
    store = Petstore()
    for name, category, price, photo, born, about in PETS:
        with suppress(ConflictError):  # another run has added the pet: its reference is taken
            metadata = {"price": price, "photo": f"/static/photos/{photo}.svg", "born": born, "about": about}
            reference = f"shop-{name.lower()}"
            store.pets.create(
                name=name, category_id=category, status="available", reference=reference, metadata=metadata
            )


if __name__ == "__main__":
    main()
