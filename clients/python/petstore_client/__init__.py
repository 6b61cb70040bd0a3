"""SDK of the Pet Store service.

Each operation is a module (`create_pet`, `list_pets`, …) with four functions: `sync` and `asyncio` return the parsed
body, `sync_detailed` and `asyncio_detailed` also return the status and the headers. The models are those of the OpenAPI
document. The generators `all_pets` and `all_orders` iterate over all pages; `async_all_pets` and `async_all_orders` do
so with asyncio.
"""

from .generated import *
from .generated.api.animals import *
from .generated.api.store import *
from .generated.errors import *
from .generated.models import *
from .generated.types import UNSET as UNSET
from .generated.types import Response as Response
from .generated.types import Unset as Unset
from .lists import *
from .pages import *
