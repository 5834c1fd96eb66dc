# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# retention.sh - what publishers notice while expired events are removed: the p99 of a publishing transaction at 500
# a second, beside RETENTION_EVENTS old events and while they are removed with their receipts, lane entries, cursors,
# batches and keys of deduplication: by the router, and by outbox.maintain() at once.
#
# The events are made to be old: published, delivered, and then the extension's clock goes on by more than the
# retention. Latencies are pgbench's, from the time each transaction was due, so that waiting in line counts.

bench_retention() {
    sql -o /dev/null -c "create function bench.note(e outbox.event[]) returns void language sql begin atomic end" </dev/null
    sql -o /dev/null -c "select outbox.subscribe('retention', array['retention.*'], 'bench.note')" </dev/null
    printf '%s\n' "outbox.retention = '1000d'" >> "$WORK/data/postgresql.conf"
    set_dispatch on
    sql -o /dev/null -c "select outbox.publish('fresh.first')" </dev/null
    until_true 60 "select count(*) > 30 from outbox.segment"
    fill_log
    # what is thirty days old has long been on the disk
    sql -c checkpoint </dev/null
    as_user sync
    publish_for before "$RETENTION_SECONDS"
    remove_old &
    local run=$! slice=0
    while kill -0 "$run" 2>/dev/null; do
        publish_for "during.$((slice++))" 10
    done
    wait "$run" || die "not all of it was removed in 10 minutes"
    # what the file system does with the files that are gone comes after them
    publish_for "during.$slice" 10
    sql -A -t -F ' ' -c "select '  removed: ' || string_agg(task || ' ' || removed_total, ', ' order by task) from outbox.maintenance_status where removed_total > 0" </dev/null
    local before during
    before=$(percentile 0.99 before) during=$(percentile 0.99 during)
    say "    median $(percentile 0.5 during) ms, without it $(percentile 0.5 before); longest $(percentile 1 during) ms, without it $(percentile 1 before)"
    compare "publishing while $RETENTION_EVENTS events are removed, p99" ms "$during" "$before" le 2
}

# The clock goes on, and what is past its time then is removed; that may take longer than the measurement.
remove_old() {
    local begin=$SECONDS end=$((SECONDS + 600))
    printf '%s\n' "outbox.test_clock_offset = '32d'" "outbox.retention = '30d'" >> "$WORK/data/postgresql.conf"
    value "select pg_reload_conf()" >/dev/null
    until_true 600 "select bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')"
    until value "call outbox.maintain()" && [[ $(value "select (select count(*) from outbox.event where event_type = 'retention.old') = 0 and (select count(*) < 1000 from outbox.lane_entry) and not exists (select from pg_class where relname like 'retired\\_%')") == t ]]; do
        ((SECONDS < end)) || return 1
        sleep 0.5
    done
    say "    removed after $((SECONDS - begin)) s"
}

fill_log() {
    local left=$RETENTION_EVENTS part=100000
    while ((left > 0)); do
        sql -o /dev/null -c "select count(outbox.publish('retention.old', bench.payload()::jsonb, event_key => 'k' || n, dedup_key => case when n % 100 = 0 then gen_random_uuid()::text end)) from generate_series(1, $((left < part ? left : part))) n" </dev/null
        left=$((left - part))
    done
    until_true 1200 "select coalesce(sum(backlog), 0) = 0 and not bool_or(catching_up) from outbox.subscription_status where subscription = 'retention'"
}

# publish_for NAME SECONDS: at 500 a second; the latencies go to tmp/retention_NAME.*
publish_for() {
    as_user tee "$WORK/tmp/retention" >/dev/null <<'END'
\set i random(1, 1000000)
begin;
insert into bench.task (title, owner) values ('Book the hall', 'anna');
select outbox.publish(event_type => 'fresh.event', payload => '{"room": 12}', aggregate_type => 'task', aggregate_id => :i::text);
commit;
END
    rate_of_pgbench -c 4 -j 1 --rate=500 -T "$2" -l --log-prefix="$WORK/tmp/retention_$1" -f "$WORK/tmp/retention" "$database" >/dev/null
}

# percentile P NAME: of the latencies of NAME, in ms
percentile() {
    awk '{ print $3 / 1000 }' "$WORK/tmp/retention_$2".* | sort -g | awk -v p="$1" '{ v[NR] = $1 } END { n = int(NR * p); print v[n ? n : 1] }'
}
