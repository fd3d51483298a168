#!/bin/sh
# Publish an event with curl, and print it as it was stored.
#
#     penstock serve                    # in another terminal
#     sh examples/http/publish.sh
#
# PENSTOCK_URL is the server's address, PENSTOCK_TOKEN a token with the scope publish.
set -eu
url=${PENSTOCK_URL:-http://127.0.0.1:8000}

set -- --silent --show-error --fail-with-body --header 'Content-Type: application/json'
if [ -n "${PENSTOCK_TOKEN:-}" ]; then
    set -- "$@" --header "Authorization: Bearer $PENSTOCK_TOKEN"
fi

# Under its dedupe key the call can be repeated: while the event is unfinished there is no second.
curl "$@" --retry 5 --retry-connrefused "$url/events" --data '{
  "title": "Send a welcome",
  "tags": ["email"],
  "payload": {"to": "ada@example.com"},
  "dedupe": "welcome/ada@example.com"
}'
echo
