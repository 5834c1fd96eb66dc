# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# latency.sh - from a commit to the start of the handler, at 500 events a second; and how often our processes wake
# when there is nothing to do.
#
# The handler's start is its own clock_timestamp().  The commit lies between two moments that are known, and both
# differences are shown: the call of publish() before it (published_at; this one has the publisher's flush in it), and the client's clock right
# after COMMIT has returned.

bench_latency() {
    sql -o /dev/null -c "select outbox.subscribe('latency', array['latency.*'], 'bench.record_start')" </dev/null
    set_dispatch on
    measure_latency
    measure_idle
}

measure_latency() {
    local rate=500 payload
    payload=$(value "select bench.payload()")
    as_user tee "$WORK/tmp/latency" >/dev/null <<END
\\set i random(1, 1000000)
begin;
insert into bench.task (title, owner) values ('Book the hall', 'anna');
select outbox.publish(event_type => 'latency.test', payload => '$payload', aggregate_type => 'task', aggregate_id => :i);
commit;
END
    rate_of_pgbench -c 1 --rate=$rate -T "$LATENCY_SECONDS" -l --log-prefix="$WORK/tmp/latency_log" -f "$WORK/tmp/latency" "$database" >/dev/null
    sql -c "call bench.wait_for('latency', $(value "select count(*) from outbox.event where event_type = 'latency.test'"))" </dev/null
    # one client: its transactions are the events, in order
    {
        echo "create table bench.committed (n bigint, at float8);"
        echo "copy bench.committed from stdin;"
        awk '{ printf "%d\t%d.%06d\n", NR, $5, $6 }' "$WORK"/tmp/latency_log.*
        echo '\.'
    } | sql
    sql -A -t -F ' ' > "$WORK/log/latency" <<'END'
with handled as (
    select row_number() over (order by event_id) as n,
        extract(epoch from h.started_at)::float8 as started_at, extract(epoch from e.published_at)::float8 as published_at
    from bench.handled h join outbox.event e using (event_id)
), measured as (
    select (started_at - at) * 1000 as after_return, (started_at - published_at) * 1000 as after_publish
    from handled join bench.committed using (n)
    where n > 100
)
select kind, percentile_cont(array[0.5, 0.99, 1]) within group (order by ms)
from measured, lateral (values ('return', after_return), ('publish', after_publish)) as v (kind, ms)
group by kind
END
    tr -d '{}' < "$WORK/log/latency" | tr ',' ' ' > "$WORK/log/latency.numbers"
    latency_line return "COMMIT's return" limits
    latency_line publish "the call of publish()" limits
}

# latency_line KIND WORDS [limits]
latency_line() {
    local p50 p99 most
    read -r p50 p99 most < <(sed -n "s/^$1 //p" "$WORK/log/latency.numbers")
    limit "from $2 to the handler's start, p50" ms "$p50" ${3:+1}
    limit "from $2 to the handler's start, p99" ms "$p99" ${3:+10}
    limit "from $2 to the handler's start, longest" ms "$most"
}

# Voluntary context switches of each of our processes, a poll interval.
measure_idle() {
    local pid kind interval
    local -A before=()
    interval=$(value "select extract(epoch from current_setting('outbox.poll_interval')::interval)")
    sleep 8
    sql -A -t -F ' ' -c "select pid, backend_type from pg_stat_activity where backend_type like 'outbox%'" </dev/null > "$WORK/log/processes"
    while read -r pid kind; do
        before[$pid]=$(switches "$pid")
    done < "$WORK/log/processes"
    sleep "$IDLE_SECONDS"
    while read -r pid kind; do
        limit "idle: wakes of the ${kind#outbox } in a poll interval" times \
            "$(calculate "($(switches "$pid") - ${before[$pid]}) * $interval / $IDLE_SECONDS")" 1.1
    done < "$WORK/log/processes"
}

switches() { awk '/^voluntary_ctxt_switches/ { print $2 }' "/proc/$1/status"; }
