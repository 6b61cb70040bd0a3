from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from ..._remove import Remove

MetadataPatch = Mapping[str, Union[str, Remove]]
"""Changes to your own data, as in a JSON merge patch: a string adds or replaces a member, and `null` removes it. The
result must keep to the limits of `NewMetadata`."""
