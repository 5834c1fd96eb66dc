# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# old_snapshot.sh - the drain of a backlog while another session holds a snapshot from before its first event.

# shellcheck source=bench/drain.sh
source "$here/drain.sh"

bench_old_snapshot() {
    local i
    subscribe_all
    drain_ours noop >/dev/null
    for ((i = 0; i < ROUNDS; i++)); do
        keep free_ours "$(drain_ours noop)"
        keep free_update "$(drain_baseline update_table "$here/baseline_update_claim.pgbench")"
        keep free_delete "$(drain_baseline delete_table "$here/baseline_delete_claim.pgbench")"
        keep free_one "$(drain_ours one)"
        keep free_set "$(drain_ours set)"
        hold_snapshot
        keep held_ours "$(drain_ours noop)"
        show_course
        keep held_one "$(drain_ours one)"
        keep held_set "$(drain_ours set)"
        keep held_update "$(drain_baseline update_table "$here/baseline_update_claim.pgbench")"
        keep held_delete "$(drain_baseline delete_table "$here/baseline_delete_claim.pgbench")"
        let_go
    done
    compare "with the old snapshot, against our own rate without it" "events/s" "$(kept held_ours)" "$(kept free_ours)" ge 0.95
    compare "  with a handler of one insert" "events/s" "$(kept held_one)" "$(kept free_one)" ge 0.95
    compare "  with a batch handler" "events/s" "$(kept held_set)" "$(kept free_set)" ge 0.95
    compare "the last $WINDOW events, against the first $WINDOW" "events/s" "$(kept last_window)" "$(kept first_window)" ge 0.95
    compare "  against the update table under one" "events/s" "$(kept held_ours)" "$(kept held_update)"
    compare "  against the delete table under one" "events/s" "$(kept held_ours)" "$(kept held_delete)"
    compare "  the update table, against its own rate without one" "events/s" "$(kept held_update)" "$(kept free_update)"
    compare "  the delete table, against its own rate without one" "events/s" "$(kept held_delete)" "$(kept free_delete)"
}

# Another session takes a snapshot, and keeps it until let_go.
hold_snapshot() {
    coproc HOLDER { sql -A -t; }
    holder=$HOLDER_PID
    exec {holder_in}>&"${HOLDER[1]}" {holder_out}<&"${HOLDER[0]}"
    echo "begin isolation level repeatable read; select 'held';" >&"$holder_in"
    read -r _ <&"$holder_out"
}

let_go() {
    echo "commit;" >&"$holder_in"
    exec {holder_in}>&- {holder_out}<&-
    eval "exec ${HOLDER[1]}>&-" 2>/dev/null || true
    wait "$holder" 2>/dev/null || true
}

# The rate over the drain that ended last, a window of events each.
show_course() {
    sql -A -t -F ' ' > "$WORK/log/course" <<END
with batches as (
    select b.completed_at, b.started_at, b.events, sum(b.events) over (order by b.batch_id desc) as from_end
    from outbox.batch b join outbox.subscription using (subscription_id) where subscription = 'noop'
), windows as (
    select greatest(0, ($BACKLOG - from_end) / $WINDOW) as n, min(started_at) as begun, max(completed_at) as ended, sum(events) as events
    from batches where from_end <= $BACKLOG group by 1
)
select (events / extract(epoch from ended - begun))::bigint from windows order by n
END
    say "    events/s of each $WINDOW under the old snapshot: $(paste -sd ' ' "$WORK/log/course")"
    keep first_window "$(head -n 1 "$WORK/log/course")"
    keep last_window "$(tail -n 1 "$WORK/log/course")"
}
