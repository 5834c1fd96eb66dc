# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# retention.sh - what publishers notice while expired events are removed: the p99 of a publishing transaction at 500
# a second, beside RETENTION_EVENTS old events and while they are removed with their receipts, lane entries, cursors,
# batches and keys of deduplication: by the router, and by outbox.maintain() at once. One payload in a hundred is 20 kB, which
# lies out of line: what leaves the disk with a segment is two tables, of which the other one is about as large.
#
# The events are made to be old: published, delivered, and then the extension's clock goes on by more than the
# retention. Latencies are pgbench's, from the time each transaction was due, so that waiting in line counts.

bench_retention() {
    local round
    sql -o /dev/null -c "create function bench.note(e outbox.event[]) returns void language sql begin atomic end" </dev/null
    sql -o /dev/null -c "select outbox.subscribe('retention', array['retention.*'], 'bench.note')" </dev/null
    large_payloads
    set_dispatch on
    sql -o /dev/null -c "select outbox.publish('fresh.first')" </dev/null
    for ((round = 1; round <= (ROUNDS < 3 ? ROUNDS : 3); round++)); do
        until_true 60 "select count(*) > 30 from outbox.segment where not sealed"
        fill_log
        # what is thirty days old has long been vacuumed, and on the disk
        sql -c vacuum -c checkpoint </dev/null
        as_user sync
        say "    round $round: $(value "select pg_size_pretty(sum(pg_table_size(c.oid) - coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0))) || ' of events, and out of line ' || pg_size_pretty(sum(coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0))) from outbox.segment s join pg_class c on c.oid = ('outbox.event_log_' || s.name)::regclass")"
        publish_for before "$RETENTION_SECONDS"
        publish_while_removing "$round"
        keep before "$(percentile 0.99 before)"
        keep during "$(percentile 0.99 during)"
        say "    round $round: p99 $(percentile 0.99 during) ms, without it $(percentile 0.99 before); median $(percentile 0.5 during), without it $(percentile 0.5 before); longest $(percentile 1 during), without it $(percentile 1 before)"
        as_user rm -f "$WORK"/tmp/retention_*
    done
    sql -A -t -F ' ' -c "select '    removed: ' || string_agg(task || ' ' || removed_total, ', ' order by task) from outbox.maintenance_status where removed_total > 0" </dev/null
    compare "publishing while $RETENTION_EVENTS events are removed, p99" ms "$(kept during)" "$(kept before)" le 2
}

# publish_while_removing ROUND: until all of it is gone, and what the file system does with the files may come after them
publish_while_removing() {
    local run slice=0
    remove_old "$1" &
    run=$!
    while kill -0 "$run" 2>/dev/null; do
        publish_for "during.$((slice++))" 5
    done
    wait "$run" || die "not all of it was removed in 10 minutes"
    publish_for "during.$slice" 5
}

# The clock goes on, and what is past its time then is removed.
remove_old() {
    local begin=$SECONDS end=$((SECONDS + 600))
    printf '%s\n' "outbox.test_clock_offset = '$(($1 * 32))d'" >> "$WORK/data/postgresql.conf"
    value "select pg_reload_conf()" >/dev/null
    until_true 600 "select bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')"
    until value "call outbox.maintain()" && [[ $(value "select not exists (select from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '31 days', 'YYYYMMDD')) and not exists (select from pg_class where relname like 'retired\\_%') and (select removed_total >= $1 * $RETENTION_EVENTS from outbox.maintenance_status where task = 'lanes')") == t ]]; do
        ((SECONDS < end)) || return 1
        sleep 0.5
    done
    say "    removed after $((SECONDS - begin)) s"
}

# a hundred payloads of 20 kB, of words that hardly compress
large_payloads() {
    sql -c "create table bench.large as select n, (select jsonb_build_object('text', string_agg(substr(translate(md5(n || ' ' || m), '0123456789', 'ghijklmnop'), 1, 8), ' ')) from generate_series(1, 2250) m) as payload from generate_series(0, 99) n" </dev/null
}

fill_log() {
    local left=$RETENTION_EVENTS part=100000
    while ((left > 0)); do
        sql -o /dev/null -c "select count(outbox.publish('retention.old', case when g.n % 100 = 1 then (select l.payload from bench.large l where l.n = g.n / 100 % 100) else bench.payload() end, event_key => 'k' || g.n, dedup_key => case when g.n % 100 = 0 then gen_random_uuid()::text end)) from generate_series(1, $((left < part ? left : part))) g (n)" </dev/null
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
