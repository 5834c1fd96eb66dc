# shellcheck shell=bash
# stage.sh - sourced by the shows beside it (demo, task-workflow, time-machine): a private server, chapters, SQL that is
# shown and its result.  The script sets `here`, its own folder, first.

# shellcheck source=test/tools/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../test/tools/lib.sh"

chapter=0
bold='' plain=''
if [[ -t 1 ]]; then
    bold=$'\e[1m' plain=$'\e[0m'
fi
title() { chapter=$((chapter + 1)); printf '\n%s%s. %s%s\n\n' "$bold" "$chapter" "$*" "$plain"; }
tell() { fold -s -w 100 <<< "$*" | sed 's/ *$//'; }
fail() { say "FAILED: $*"; tail -n 30 "$WORK/log/server"; exit 1; }

# run a file, or a text, with its SQL shown
play() { as_user "$PGBIN/psql" -X -q -e -v ON_ERROR_STOP=1 -P pager=off -P footer=off < "$1" || fail "$1"; }
# shellcheck disable=SC2154
reconcile() { sql -P pager=off -P footer=off -f - < "$here/90_reconcile.sql" || fail "the books do not balance"; }
ask() { printf '\n=> %s\n' "$1"; sql -P pager=off -P footer=off -c "$1" </dev/null || fail "$1"; }
quietly() { sql -o /dev/null -c "$1" </dev/null || fail "$1"; }

# all that has been committed so far is handled, or waits for a person
wait_settled() {
    sql -c "call outbox.drain(timeout => '60 seconds')" </dev/null || { sql -c 'select * from outbox.delivery where status <> $$COMPLETED$$' </dev/null; fail "not settled"; }
}

# a private server with outbox, and this configuration
open_stage() {          # NAME
    title "A private server"
    tell "Building outbox and starting a PostgreSQL of its own in a temporary folder. Nothing is installed for it but" \
        "Debian packages that are missing, and no other server is touched."
    work_setup "$1" build
    cluster_init "$here/postgresql.conf"
    cluster_start
    sql -c 'create extension outbox' </dev/null
    ask "select extname, extversion, current_setting('server_version') as server from pg_extension where extname = 'outbox'"
}
