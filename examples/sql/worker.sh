#!/bin/sh
# worker.sh - ships orders, with nothing but psql:  ./worker.sh NAME
#
# Runs worker.sql round after round, each in a session of its own: a lease is data, and needs no session to keep
# it. Start as many as you like. SIGTERM: gives back what it holds, and ends.
# Where: PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD.

worker=${1:-psql-$$}
token_file=$(mktemp)
round=

stop() {
    trap '' TERM INT
    kill "$round" 2>/dev/null
    wait "$round"
    if [ -s "$token_file" ]; then
        # No attempt is used up; another worker has it at once. (When it is done already, there is nothing to give back.)
        echo "select 'released ' || outbox.release_all(:'token')" |
            psql -X -q -A -t -v token="$(cat "$token_file")"
    fi
    rm -f "$token_file"
    exit 0
}
trap stop TERM INT

while :; do
    : > "$token_file"
    psql -X -q -v worker="$worker" -v token_file="$token_file" -f "$(dirname "$0")/worker.sql" &
    round=$!
    wait "$round" || sleep 1
done
