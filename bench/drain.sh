# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# drain.sh - how fast one worker empties a backlog, against one claimer.
#
# Ours includes everything from the commit of the backlog to the last receipt: the router puts the events into
# lanes while the worker runs. old_snapshot.sh uses its functions.

bench_drain() {
    local i
    subscribe_all
    say "    (a backlog of $BACKLOG, committed at once; routing, handler, receipt and progress of each event are included)"
    for ((i = 0; i < ROUNDS; i++)); do
        keep noop_ours "$(drain_ours noop)"
        keep noop_update "$(drain_baseline update_table "$here/baseline_update_claim.pgbench")"
        keep noop_delete "$(drain_baseline delete_table "$here/baseline_delete_claim.pgbench")"
        keep set_ours "$(drain_ours set)"
        keep set_update "$(drain_baseline update_table "$here/baseline_update_insert.pgbench")"
        keep one_bare "$(bare_handler)"
        keep one_ours "$(calculate "1e6 / $(drain_ours one)")"
    done
    compare "handler that does nothing, called per event" "events/s" "$(kept noop_ours)" "$(kept noop_update)" ge 4
    compare "  the same, against the delete table" "events/s" "$(kept noop_ours)" "$(kept noop_delete)"
    compare "handler of one insert: what is added to its bare cost" "us/event" \
        "$(calculate "$(kept one_ours) - $(kept one_bare)")" "$(kept one_bare)" le 0.7
    compare "batch handler with one set-based insert" "events/s" "$(kept set_ours)" "$(kept set_update)" ge 5
}

subscribe_all() {
    sql -o /dev/null <<'END'
select outbox.subscribe('noop', array['noop.*'], 'bench.do_nothing');
select outbox.subscribe('one', array['one.*'], 'bench.insert_one');
select outbox.subscribe('set', array['set.*'], 'bench.insert_set');
END
    set_dispatch on
}

# drain_ours SUBSCRIPTION: events/s.  The checkpoint is for both sides: log files are there to be used again.
drain_ours() {
    sql -A -t <<END
checkpoint;
select bench.completed('$1') + $BACKLOG as wanted \\gset
truncate bench.effect;
call bench.load_log('$1.done', $BACKLOG);
select clock_timestamp() as begun \\gset
call bench.wait_for('$1', :wanted);
select $BACKLOG / extract(epoch from clock_timestamp() - :'begun'::timestamptz);
END
}

# drain_baseline TABLE SCRIPT: events/s.  What it leaves is nothing that others pay for: autovacuum would clear its dead rows away while
# they run.
drain_baseline() {
    local rate
    sql -c checkpoint -c "truncate bench.effect" -c "call bench.load_baseline('$1', $BACKLOG)" -c "analyze bench.$1" </dev/null
    rate=$(rate_of_pgbench -c 1 -t $((BACKLOG / 100)) -D holds=false -f "$2" "$database")
    sql -c "truncate bench.$1" </dev/null
    calculate "$rate * 100"
}

# what a call of the handler of one insert costs by itself, in microseconds
bare_handler() {
    sql -A -t <<END
truncate bench.effect;
select event_id as id from outbox.event where event_type = 'noop.done' limit 1 \\gset
select set_config('bench.id', :'id', false) \\g /dev/null
do \$do\$
declare
    e outbox.event := (select event from outbox.event where event_id = current_setting('bench.id')::uuid);
    t0 timestamptz := clock_timestamp();
begin
    for i in 1 .. $BACKLOG loop
        perform bench.insert_one(e);
    end loop;
    perform set_config('bench.us', (extract(epoch from clock_timestamp() - t0) * 1e6 / $BACKLOG)::text, false);
end \$do\$;
select current_setting('bench.us');
END
}
