from __future__ import annotations

from collections.abc import Mapping

NewMetadata = Mapping[str, str]
"""Your own data: up to 20 strings, with names of 1 to 40 characters (`A-Za-z0-9_-`). Names and values together have
at most 4,096 bytes of UTF-8. A string keeps a price exact."""
