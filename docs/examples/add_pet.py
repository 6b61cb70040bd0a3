#!/usr/bin/env python3
"""Adds a pet exactly once, however many attempts it takes: add_pet.py NAME CATEGORY_ID

Reads the service's address from PETSTORE_URL and the API key from PETSTORE_KEY.
"""
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
import uuid


def add_pet(url, api_key, pet, patience=60):
    headers = {
        "Authorization": f"Bearer {api_key}",
        "Content-Type": "application/json",
        "Idempotency-Key": str(uuid.uuid4()),  # one for all attempts
    }
    deadline, pause = time.monotonic() + patience, 0.1
    while True:
        request = urllib.request.Request(f"{url}/v1/pets", json.dumps(pet).encode(), headers)
        wait = 0
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            problem = json.load(error)
            if error.code not in (408, 409, 429, 500, 503):
                raise SystemExit(f"rejected: {problem['message']}") from error
            wait = int(error.headers.get("Retry-After", 0))
        except OSError as error:  # no response: connection refused, broken or timed out
            problem = error
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up: {problem}")
        time.sleep(max(wait, pause / 2 + random.uniform(0, pause / 2)))
        pause = min(2 * pause, 10)


if __name__ == "__main__":
    new = {"name": sys.argv[1], "categoryId": int(sys.argv[2])}
    print(json.dumps(add_pet(os.environ["PETSTORE_URL"], os.environ["PETSTORE_KEY"], new)))
