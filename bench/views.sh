# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# views.sh - what reading the views costs beside a large log: LOG_ROWS events over 30 segments, REVIEW_ROWS deliveries in review.
#
# The rows are written straight into the tables, as they would be after a month; each view is read five
# times, whole or, where it lists deliveries or events, in the part that a person asks for.

bench_views() {
    fill_log
    local id
    id=$(value "select event_id from outbox.delivery_exception order by event_id offset 1000 limit 1")
    # the plans of a session that has just come are part of it; read as monitoring does
    sql -o /dev/null -c "create role bench_monitor" -c "select outbox.grant_monitor('bench_monitor')" </dev/null
    local as='set role bench_monitor; begin isolation level repeatable read, read only;'
    time_view "metrics" "select * from outbox.metrics"
    time_view "server_metrics" "select * from outbox.server_metrics"
    time_view "review_metrics" "select * from outbox.review_metrics"
    time_view "failure_metrics" "select * from outbox.failure_metrics"
    time_view "unmatched_event_type" "select * from outbox.unmatched_event_type"
    time_view "snapshot_holder" "select * from outbox.snapshot_holder"
    time_view "subscription_status" "select * from outbox.subscription_status"
    time_view "worker_status" "select * from outbox.worker_status"
    time_view "blocked_key" "select * from outbox.blocked_key"
    time_view "review_required, the 20 newest of a subscription" \
        "select * from outbox.review_required where subscription = 'fails' order by failed_at desc limit 20"
    time_view "review_required, the 50 newest of all" "select * from outbox.review_required order by failed_at desc limit 50"
    time_view "maintenance_status" "select * from outbox.maintenance_status"
    time_view "delivery of an event" "select * from outbox.delivery where event_id = '$id'"
    time_view "attempt of an event" "select * from outbox.attempt where event_id = '$id'"
    as=
    time_view "event by its id" "select * from outbox.event where event_id = '$id'"
    time_view "event_history of an event" "select * from outbox.event_history where event_id = '$id'"
}

fill_log() {
    sql -o /dev/null -c "select outbox.subscribe('fails', array['bench.#'])" -c "select outbox.subscribe('works', array['bench.#'])" </dev/null
    set_dispatch on
    sql -o /dev/null -c "select outbox.publish('bench.first')" </dev/null
    until_true 120 "select count(*) >= 30 from outbox.segment"
    set_dispatch off
    sql -v rows="$LOG_ROWS" -v review="$REVIEW_ROWS" -f - <<'END'
-- an id in a segment: its first one's milliseconds, and n
create function bench.id_in(from_id uuid, n bigint) returns uuid language sql immutable return
    (lpad(to_hex(('x' || left(replace(from_id::text, '-', ''), 12))::bit(48)::bigint + n), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid;
select format('insert into outbox.event_log_%s select bench.id_in(%L, n), ''bench.type'' || n %% 5, ''1'', ''task'', n::text, ''task:'' || n, ''tenant-1'', null, null, ''r'', ''t'', null, null, null, now(), now(), null, null, null, bench.payload(), ''3''::xid8, 1 from generate_series(1, %s) n',
              name, from_id, :rows / 30)
from outbox.segment order by from_id limit 30
\gexec
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, tenant_id, event_key, error_code, first_failed_at, failed_at)
select s.subscription_id, bench.id_in(g.from_id, n), n % 16, n, 'REVIEW_REQUIRED', 6, 'tenant-1', 'task:' || n, '23514', now(), now()
from outbox.subscription s, (select from_id, name from outbox.segment order by from_id limit 30) g, generate_series(1, :review / 30) n
where s.subscription = 'fails';
do $$
declare
    segment text;
begin
    for segment in select name from outbox.segment order by from_id limit 30 loop
        execute format('insert into outbox.receipt_log_%s select event_id, 1, (select subscription_id from outbox.subscription where subscription = ''works''), 0, 1, 0, null from outbox.event_log_%s', segment, segment);
    end loop;
end $$;
END
    set_dispatch on
    until_true 300 "select count(*) < 100 from outbox.exception_count"
    set_dispatch off
    sql -c "vacuum analyze" </dev/null
}

# time_view NAME QUERY: the median of five, in a session that begins with $as
time_view() {
    printf '%s\n\\timing on\n%s;\n%s;\n%s;\n%s;\n%s;\n' "$as" "$2" "$2" "$2" "$2" "$2" | sql -o /dev/null | sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' > "$WORK/log/times"
    limit "$1" ms "$(median < "$WORK/log/times")" 20
}
