from typing import Literal

ListOrdersSort = Literal["-id", "id"]
