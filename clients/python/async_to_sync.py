"""Turns the source of `AsyncPetstore` on standard input into that of `Petstore`; `scripts/clients generate` calls it.

ruff then removes the imports that are no longer used, and lays the lines out again.
"""

from __future__ import annotations

import re
import sys

HEADER = '"""`Petstore`. Generated from _async_client.py by `make generate NAME=clients`: do not edit."""'

RULES = [
    (r'\A""".*?"""', HEADER),
    (r"\basync (?=def |for |with )", ""),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"Async(?=[A-Z])", ""),
    (r"__a(?=(enter|exit|next)__)", "__"),
    # By default, the transport waits until the client is closed, which `time.sleep` cannot do.
    (r" = asyncio\.sleep\b", " | None = None"),
    # What the docstrings say about tasks.
    (r" for asyncio: [^.]*", ""),
    (r"\bthe tasks of an event loop\b", "threads"),
    (r"\bEach event loop, and each process of a fork,", "Each process of a fork"),
    (r" and the event loop\b(?=\s+of the first call)", ""),
    (r"\bAny task\b", "Any thread"),
    (r"\bin another task\b", "in another thread"),
    (r"\n *You can also cancel the task\b.*", ""),
]


def main() -> None:
    source = sys.stdin.read()
    for pattern, replacement in RULES:
        source, count = re.subn(pattern, replacement, source)
        if count == 0:
            sys.exit(f"async_to_sync.py: nothing matches the rule {pattern!r}: correct or remove it")
    sys.stdout.write(source)


if __name__ == "__main__":
    main()
