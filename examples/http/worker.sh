#!/bin/sh
# Process events with curl: one after the other, COUNT of them, or forever.
#
#     penstock serve                    # in another terminal
#     sh examples/http/worker.sh
#
# PENSTOCK_URL is the server's address, PENSTOCK_TOKEN a token with the scope work.
set -eu
url=${PENSTOCK_URL:-http://127.0.0.1:8000}
worker="$(hostname):$$"
left=${COUNT:--1}

set -- --silent --show-error --fail-with-body --header 'Content-Type: application/json'
if [ -n "${PENSTOCK_TOKEN:-}" ]; then
    set -- "$@" --header "Authorization: Bearer $PENSTOCK_TOKEN"
fi

# A number in a JSON document; enough for this answer, whose first fields are numbers and texts.
number() {
    printf '%s' "$2" | sed -n "s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p"
}

while [ "$left" -ne 0 ]; do
    # The server answers as soon as there is an event, and with nothing after 30 seconds.
    event=$(curl "$@" "$url/events/subscribe" \
        --data "{\"tags\": [\"email\"], \"worker_id\": \"$worker\", \"wait\": 30}") || {
            echo "$event" >&2
            exit 1
        }
    [ -n "$event" ] || continue
    # The payload may hold fields of the same names: what is wanted stands outside it.
    outside=$(printf '%s' "$event" | sed 's/"payload":.*"retry_count"/"retry_count"/')
    id=$(number id "$outside")
    token=$(number token "$outside")

    echo "working on event $id: $event"

    # The token says which hold is meant, so that a repeated or late report does no harm.
    curl "$@" --retry 5 --retry-connrefused "$url/events/$id/complete" \
        --data "{\"worker_id\": \"$worker\", \"token\": $token, \"status_code\": 200}"
    echo
    left=$((left - 1))
done
