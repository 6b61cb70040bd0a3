from __future__ import annotations

from collections.abc import Mapping

Metadata = Mapping[str, str]
"""Your own data: strings by name."""
