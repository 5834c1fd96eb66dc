# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# wait.sh - from a commit to the return of outbox.wait(); and what a thousand sessions in it cost the publishers.

bench_wait() {
    sql -o /dev/null <<'END'
select outbox.subscribe('waited', array['waited.*']), outbox.subscribe('published', array['published.*']);
create table bench.returned (n integer, at timestamptz, kind text);

create procedure bench.publish_slowly(events integer) language plpgsql as $$
begin
    for i in 1 .. events loop
        perform outbox.publish('waited.now', bench.payload());
        commit;
        insert into bench.returned values (i, clock_timestamp(), 'commit');
        commit;
        while not exists (select from bench.returned where n = i and kind = 'wait') loop
            commit;
            perform pg_sleep(0.005);
        end loop;
    end loop;
end $$;

create procedure bench.wait_and_claim(events integer) language plpgsql as $$
declare
    ready boolean;
    token uuid;
begin
    for i in 1 .. events loop
        call outbox.wait(array['waited'], '1 min', ready);
        insert into bench.returned values (i, clock_timestamp(), 'wait');
        select lease_token into token from outbox.claim('waited');
        commit;
        perform outbox.ack_all(token);
        commit;
    end loop;
end $$;
END
    set_dispatch on
    measure_wait_latency
    measure_waiters
}

measure_wait_latency() {
    local events=$((LATENCY_SECONDS * 50)) p50 p99 most
    sql -c "call bench.wait_and_claim($events)" </dev/null &
    until_true 30 "select count(*) = 1 from pg_stat_activity where query like 'call bench.wait_and_claim%' and wait_event_type = 'Extension'"
    sql -c "call bench.publish_slowly($events)" </dev/null
    wait $!
    read -r p50 p99 most < <(value "
        select round(p[1]::numeric, 3) || ' ' || round(p[2]::numeric, 3) || ' ' || round(p[3]::numeric, 3)
        from (select percentile_cont(array[0.5, 0.99, 1]) within group (order by extract(epoch from w.at - c.at) * 1000) as p
              from bench.returned w join bench.returned c using (n) where w.kind = 'wait' and c.kind = 'commit' and n > 20) as m")
    limit "from COMMIT's return to outbox.wait()'s, p50" ms "$p50" 2
    limit "from COMMIT's return to outbox.wait()'s, p99" ms "$p99" 10
    limit "from COMMIT's return to outbox.wait()'s, longest" ms "$most"
}

# beside WHAT STATEMENT: as many sessions that run it, in the background
beside() {
    echo "$1" > "$WORK/tmp/beside"
    chmod a+r "$WORK/tmp/beside"
    as_user "$PGBIN/pgbench" -n -c "$WAITERS" -j 1 -T 3600 -f "$WORK/tmp/beside" "$database" >/dev/null 2>&1 </dev/null &
    crowd=$!
    until_true 60 "select count(*) >= $WAITERS from pg_stat_activity where backend_type = 'client backend' and wait_event_type in ('Client', 'Extension')"
}

go_away() {
    # shellcheck disable=SC2046
    kill $(pgrep -P "$crowd") "$crowd"
    wait "$crowd" 2>/dev/null
    sql -o /dev/null -c "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()" </dev/null
    until_true 30 "select count(*) = 0 from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
}

rate_beside() {
    local rate
    beside "$1"
    rate=$(rate_of_pgbench -c 4 -j 1 -T "$SECONDS_EACH" -f "$WORK/tmp/publisher" "$database")
    go_away
    echo "$rate"
}

# of all client backends, in seconds
cpu_of_waiters() {
    local pid sum=0
    while read -r pid; do
        sum=$((sum + $(awk '{ print $14 + $15 }' "/proc/$pid/stat")))
    done < <(value "select pid from pg_stat_activity where query like 'call outbox.wait%' and pid <> pg_backend_pid()")
    calculate "$sum / $(getconf CLK_TCK)"
}

measure_waiters() {
    local i before
    echo "select outbox.publish('published.now', '$(value "select bench.payload()")');" > "$WORK/tmp/publisher"
    chmod a+r "$WORK/tmp/publisher"
    for ((i = 0; i < ROUNDS; i++)); do
        keep wait_idle "$(rate_beside '\sleep 2000 s')"
        keep wait_crowd "$(rate_beside "call outbox.wait(array['waited'], '1 hour');")"
    done
    compare "publishers beside $WAITERS sessions in outbox.wait(), against idle ones" "tx/s" "$(kept wait_crowd)" "$(kept wait_idle)" ge 0.95

    beside "call outbox.wait(array['waited'], '1 hour');"
    before=$(cpu_of_waiters)
    sleep "$IDLE_SECONDS"
    limit "idle: processor time of $WAITERS sessions in outbox.wait()" "% of one" \
        "$(calculate "($(cpu_of_waiters) - $before) * 100 / $IDLE_SECONDS")"
    go_away
}
