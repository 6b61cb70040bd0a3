#!/usr/bin/env bash
# Adds a pet exactly once, however many attempts it takes: add-pet.sh NAME CATEGORY_ID
#
# Reads the service's address from PETSTORE_URL and the API key from PETSTORE_KEY. NAME goes into JSON as it is. Prints
# the pet, or the reason for the failure to standard error. Gives up after about 60 s. Needs bash and curl 7.84 or later.
set -euo pipefail
key=$(cat /proc/sys/kernel/random/uuid) # the same for every attempt, so the pet is added once
body=$(mktemp)
trap 'rm -f "$body"' EXIT

for ((pause = 100; ; pause = pause < 5000 ? 2 * pause : 10000)); do
  : >"$body"
  left=$((60 - SECONDS))
  failed=0
  # The API key is read from standard input because other users could see it on the command line.
  response=$(curl --silent --show-error --max-time $((left < 10 ? left : 10)) --header @- \
    --header 'Content-Type: application/json' --header "Idempotency-Key: $key" \
    --data "{\"name\": \"$1\", \"categoryId\": $2}" --output "$body" \
    --write-out '%{http_code} %header{retry-after}' "$PETSTORE_URL/v1/pets" \
    <<<"Authorization: Bearer $PETSTORE_KEY") || failed=$?
  read -r status retry_after <<<"$response"

  # Any other status, 500 included, would be the same again. So would other failures of curl, such as a bad address.
  case $failed:$status in
    0:201) if [ -s "$body" ]; then cat "$body" && exit; fi ;; # without a body, the response was cut off
    0:408 | 0:429 | 0:502 | 0:503 | 0:504) ;;
    0:409) grep -q '"idempotency_in_progress"' "$body" || break ;;
    [567]:* | 18:* | 28:* | 35:* | 52:* | 55:* | 56:*) ;; # no connection, or no complete response
    *) break ;;
  esac

  # Half of the pause is random, so that clients do not retry in lockstep.
  wait=$((pause / 2 + RANDOM % (pause / 2)))
  if [[ $retry_after =~ ^[0-9]{1,6}$ && $((1000 * 10#$retry_after)) -gt $wait ]]; then
    wait=$((1000 * 10#$retry_after))
  fi
  [ $((1000 * SECONDS + wait)) -lt 59000 ] || break
  sleep "$((wait / 1000)).$(printf %03d $((wait % 1000)))"
done

echo "failed with status $status (curl exited with $failed): $(cat "$body")" >&2
exit 1
