from typing import Literal

ListPetsSort = Literal["-id", "id"]
