"""Client of the Pet Store service.

The operations are modules (`create_pet`, `list_pets`, …) with four functions each: `sync` and `asyncio` return the
parsed body, `sync_detailed` and `asyncio_detailed` the status and the headers, too. The models are those of the
interface document. Walks over all pages are generators: `all_pets` and `all_orders`, and `async_all_pets` and
`async_all_orders` for asyncio.
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
