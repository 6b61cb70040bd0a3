#!/bin/sh
# Adds a pet exactly once, however many attempts it takes: add-pet.sh NAME CATEGORY_ID
# Reads the service's address from PETSTORE_URL and the API key from PETSTORE_KEY. NAME goes into JSON as it is.
set -eu
exec curl --silent --show-error --fail-with-body --max-time 10 \
  --retry 20 --retry-max-time 60 --retry-all-errors --retry-connrefused \
  --header "Authorization: Bearer $PETSTORE_KEY" --header 'Content-Type: application/json' \
  --header "Idempotency-Key: $(cat /proc/sys/kernel/random/uuid)" \
  --data "{\"name\": \"$1\", \"categoryId\": $2}" "$PETSTORE_URL/v1/pets"
