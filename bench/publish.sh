# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# publish.sh - what publishing costs, against a plain INSERT into the update table.
#
# The same information is written either way.

# the values of an event, as named arguments and as columns
publish_arguments="event_type => 'task.created', payload => p, aggregate_type => 'task', aggregate_id => i::text, tenant_id => 'tenant-1', actor_type => 'user', actor_id => 'anna', request_id => 'req-1004', trace_id => '4bf92f3577b34da6a3ce929d0e0e4736', correlation_id => 'order-77', source => 'bench'"
insert_columns="event_type, payload, aggregate_type, aggregate_id, event_key, tenant_id, actor_type, actor_id, request_id, trace_id, correlation_id, source"
insert_values="'task.created', p, 'task', i::text, 'task:' || i, 'tenant-1', 'user', 'anna', 'req-1004', '4bf92f3577b34da6a3ce929d0e0e4736', 'order-77', 'bench'"

bench_publish() {
    set_dispatch off
    in_server_cost
    guard_cost
    batch_cost
    transaction_rate "alone"
    set_dispatch on
    transaction_rate "router awake"
    sql -c "select outbox.subscribe('audit', array['task.*'], 'bench.do_nothing')" -o /dev/null </dev/null
    transaction_rate "delivered meanwhile"
}

# ------------------------------------------------------------ one call

# loop_of NAME STATEMENT: a DO block that times CALLS of it, i counting
loop_of() {
    cat <<END
do \$do\$
declare
    p jsonb := bench.payload();
    t0 timestamptz := clock_timestamp();
begin
    for i in 1 .. $CALLS loop
        $2;
    end loop;
    insert into bench.result values ('$1', extract(epoch from clock_timestamp() - t0) * 1e6 / $CALLS);
end \$do\$;
END
}

in_server_cost() {
    local i
    for ((i = 0; i <= ROUNDS; i++)); do
        loop_of call_ours "perform outbox.publish($publish_arguments)"
        loop_of call_insert "insert into bench.update_table ($insert_columns) values ($insert_values)"
        # the first round warms up
        ((i)) || echo "truncate bench.result;"
    done | sql
    compare "publish(): in the server, $CALLS calls in one DO block" "us/call" "$(kept call_ours)" "$(kept call_insert)" le 0.9
}

# ------------------------------------------------------------ what the checks cost

# The same event under a type with a list of ten keys, and without anybody looking for sensitive data.
guard_cost() {
    local i CALLS=$((CALLS / 10))
    # what is compared differs by a hundredth: many short turns, so that the machine's moods meet all of them alike
    for ((i = 0; i <= ROUNDS * 10; i++)); do
        loop_of call_checked "perform outbox.publish($publish_arguments)"
        loop_of call_listed "perform outbox.publish(${publish_arguments/task.created/task.listed})"
        echo "set outbox.sensitive_data = off;"
        loop_of call_unchecked "perform outbox.publish($publish_arguments)"
        echo "reset outbox.sensitive_data;"
        ((i)) || echo "delete from bench.result where name in ('call_checked', 'call_listed', 'call_unchecked');"
    done | { echo "do 'begin perform outbox.define_event_type(''task.listed'', required_keys => ''{title}'',
        allowed_keys => ''{title,owner,due,priority,note,room,seats,floor,starts_at,ends_at}''); end';" && cat; } | sql
    compare "publish() with a list of ten keys, against without" "us/call" "$(kept call_listed)" "$(kept call_checked)" le 1.053
    compare "publish() with sensitive_data = reject, against off" "us/call" "$(kept call_checked)" "$(kept call_unchecked)"
}

# ------------------------------------------------------------ a thousand at once

# Both as a client sends them: one statement with the values in its text.
batch_cost() {
    local i
    sql <<'END'
create table bench.statement as
select 'select count(*) from outbox.publish_batch(' || quote_literal(jsonb_agg(jsonb_build_object(
        'event_type', 'task.created', 'payload', bench.payload(), 'aggregate_type', 'task', 'aggregate_id', n::text,
        'tenant_id', 'tenant-1', 'actor_type', 'user', 'actor_id', 'anna', 'request_id', 'req-1004',
        'trace_id', '4bf92f3577b34da6a3ce929d0e0e4736', 'correlation_id', 'order-77', 'source', 'bench') order by n)) || ')' as publish,
    'insert into bench.update_table (event_type, payload, aggregate_type, aggregate_id, event_key, tenant_id, actor_type, actor_id,'
    ' request_id, trace_id, correlation_id, source) values ' || string_agg(format(
        '(''task.created'', %L, ''task'', %L, %L, ''tenant-1'', ''user'', ''anna'', ''req-1004'', ''4bf92f3577b34da6a3ce929d0e0e4736'', ''order-77'', ''bench'')',
        bench.payload(), n, 'task:' || n), ', ' order by n) as insert
from generate_series(1, 1000) as n;
END
    for ((i = 0; i <= ROUNDS; i++)); do
        loop_of_batches batch_ours publish
        loop_of_batches batch_insert insert
        ((i)) || echo "delete from bench.result where name like 'batch%';"
    done | sql
    compare "publish_batch() of 1,000, against one INSERT of 1,000 rows" "events/s" "$(kept batch_ours)" "$(kept batch_insert)" ge 1.0
}

loop_of_batches() {
    cat <<END
do \$do\$
declare
    statement text := (select $2 from bench.statement);
    t0 timestamptz := clock_timestamp();
begin
    for i in 1 .. $BATCHES loop
        execute statement;
    end loop;
    insert into bench.result values ('$1', 1000 * $BATCHES / extract(epoch from clock_timestamp() - t0));
end \$do\$;
END
}

# ------------------------------------------------------------ a business transaction

# script NAME STATEMENT: one insert of the application, and the statement
script() {
    as_user tee "$WORK/tmp/$1" >/dev/null <<END
\\set i random(1, 1000000)
begin;
insert into bench.task (title, owner) values ('Book the hall', 'anna');
$2;
commit;
END
}

# p and i of a statement, as a client passes them
for_client() {
    local payload
    payload=$(value "select bench.payload()")
    sed -e "s/=> p,/=> '$payload',/; s/', p, /', '$payload', /; s/=> i::text/=> :i/; s/i::text/:i/; s/|| i\b/|| :i/" <<< "$1"
}

transaction_rate() {
    local i clients variant
    local -a target=()
    [[ $1 != alone ]] || target=(ge 0.95)
    script ours "$(for_client "select outbox.publish($publish_arguments)")"
    script insert "$(for_client "insert into bench.update_table ($insert_columns) values ($insert_values)")"
    for clients in 1 4 16; do
        sql -c "delete from bench.result where name like 'transaction%'" </dev/null
        # three short turns for a round: the disk is not the same from one second to the next
        for ((i = 0; i <= 3 * ROUNDS; i++)); do
            for variant in $( ((i % 2)) && echo ours insert || echo insert ours); do
                keep "transaction_$variant" "$(rate_of_pgbench -c "$clients" -j 1 -T "$SECONDS_EACH" -f "$WORK/tmp/$variant" "$database")"
            done
            ((i)) || sql -c "delete from bench.result where name like 'transaction%'" </dev/null
        done
        compare "transaction of one insert and publish(), $clients clients, $1" "tx/s" \
            "$(kept transaction_ours)" "$(kept transaction_insert)" "${target[@]}"
    done
}
