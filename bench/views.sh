# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# views.sh - what reading the views costs beside a large log: LOG_ROWS events over 30 segments, REVIEW_ROWS deliveries in review, each
# with the gate of its key, and all else that a server holds which has lived for a month (views.sql).
#
# Each view is read five times, in a session that has just come: whole or, where it lists deliveries or events, in the part that a
# person asks for.  As monitoring does it: under its role where that may, and in a read-only transaction.

bench_views() {
    local view id waiting finished
    local -a of_monitor=() of_owner=()
    fill_log
    id=$(value "select event_id from outbox.delivery_exception where status = 'REVIEW_REQUIRED' order by event_id offset 1000 limit 1")
    waiting=$(value "select e.event_id from outbox.lane_entry e join bench.of o on e.subscription_id = o.works order by e.lane desc, e.position desc limit 1")
    finished=$(value "select bench.id_in(from_id, $((LOG_ROWS / 30 * 4 / 5))) from bench.segment where i = 15")
    sql -o /dev/null -c "create role bench_monitor" -c "select outbox.grant_monitor('bench_monitor')" </dev/null

    local -A part=(
        [operator_log]="the 50 newest|order by at desc limit 50"
        [blocked_key]="the 20 that have waited longest|order by since limit 20"
        [review_required]="the 50 newest|order by failed_at desc limit 50"
        [delivery]="of an event|where event_id = '$id'"
        [attempt]="of an event|where event_id = '$id'"
        [event]="by its id|where event_id = '$id'"
        [event_history]="of an event|where event_id = '$id'"
    )
    mapfile -t of_monitor < <(views_that may)
    mapfile -t of_owner < <(views_that "may not")
    ((${#of_monitor[@]} >= 15 && ${#of_monitor[@]} + ${#of_owner[@]} == $(value "select count(*) from pg_views where schemaname = 'outbox'"))) ||
        die "not all views are timed: ${of_monitor[*]} ${of_owner[*]}"
    as='set role bench_monitor; begin isolation level repeatable read, read only;'
    for view in "${of_monitor[@]}"; do time_part "$view" "${part[$view]-}"; done
    time_view "review_required, the 20 newest of a subscription" "select * from outbox.review_required where subscription = 'fails' order by failed_at desc limit 20"
    time_view "blocked_key, the 20 of a subscription" "select * from outbox.blocked_key where subscription = 'fails' order by since limit 20"
    time_view "blocked_key, one key" "select * from outbox.blocked_key where event_key = 'task:7:70'"
    time_view "delivery, of an event that waits" "select * from outbox.delivery where event_id = '$waiting'"
    time_view "outbox.status() (for information)" "select * from outbox.status()" none
    time_view "outbox.report(), the last hour (for information)" "select outbox.report(outbox.clock() - interval '1 hour')" none
    as='begin isolation level repeatable read, read only;'
    for view in "${of_owner[@]}"; do time_part "$view" "${part[$view]-}"; done
    time_view "event_history, of an event that is done" "select * from outbox.event_history where event_id = '$finished'"
    time_view "event_history, of an event that waits" "select * from outbox.event_history where event_id = '$waiting'"
}

# those that the monitoring role "may" read, or "may not"
views_that() {
    value "select relname from pg_class where relnamespace = 'outbox'::regnamespace and relkind = 'v' and has_table_privilege('bench_monitor', oid, 'select') = ('$1' = 'may') order by 1"
}

fill_log() {
    sql -o /dev/null -c "select outbox.subscribe(name, array['bench.#']) from unnest(array['fails', 'works', 'claimed']) name" </dev/null
    set_dispatch on
    sql -o /dev/null -c "select outbox.publish('bench.first')" </dev/null
    until_true 120 "select count(*) >= 30 from outbox.segment"
    # upkeep would remove what lies behind the cursors
    set_dispatch off
    sql -o /dev/null -v rows="$LOG_ROWS" -v review="$REVIEW_ROWS" -f "$here/views.sql" </dev/null
    sql -c "vacuum analyze" </dev/null
}

# time_part VIEW [WHAT|CONDITION]
time_part() {
    time_view "$1${2:+, ${2%%|*}}" "select * from outbox.$1 ${2#*|}"
}

# time_view NAME QUERY [none]: the median of five, in a session that begins with $as
time_view() {
    printf '%s\n\\timing on\n%s;\n%s;\n%s;\n%s;\n%s;\n' "$as" "$2" "$2" "$2" "$2" "$2" | sql -o /dev/null | sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' > "$WORK/log/times"
    limit "$1" ms "$(median < "$WORK/log/times")" "$([[ -n ${3-} ]] || echo 20)"
}
