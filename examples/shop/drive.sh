# shellcheck shell=bash disable=SC2154
# drive.sh - sourced by examples/*/check: puts one language's clients through everything that can happen to an order,
# on a private server, and balances the books.
#
# The caller sets PUBLISH and WORKER, the commands of its two programs, and calls `drive`. Everything of
# test/tools/lib.sh is there.

LOST='lease lost'       # what a worker says that was too slow
CONFLICT_ATTEMPTS=1     # of an event whose transaction is ended by the server twice: a worker does it again by itself
declare -A leader=() job=()     # of each worker: its process id, and the shell job that it runs in

fail() { say "FAILED: $*"; exit 1; }

# ------------------------------------------------------------ the server and the clients

# As an application reaches one: over TCP, with passwords. Only the two roles of the shop may come this way.
shop_server() {
    PORT=$(free_port)
    PASSWORD=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    printf '%s\n' "shared_preload_libraries = 'outbox'" "listen_addresses = '127.0.0.1'" "port = $PORT" > "$WORK/tmp/shop.conf"
    cluster_init "$WORK/tmp/shop.conf"
    printf '%s\n' 'local all all trust' 'host all shop_app,shop_worker 127.0.0.1/32 scram-sha-256' | as_user tee "$WORK/data/pg_hba.conf" >/dev/null
    cluster_start
    sql -o /dev/null -f "$WORK/src/examples/shop/roles.sql" </dev/null
    sql -o /dev/null -f "$WORK/src/examples/shop/shop.sql" </dev/null
    sql -c "alter role shop_app password '$PASSWORD'; alter role shop_worker password '$PASSWORD'" </dev/null
}

# client ROLE COMMAND...: with the environment that the programs of the examples read
client() {
    local role=$1
    shift
    as_user PGHOST=127.0.0.1 PGUSER="$role" PGPASSWORD="$PASSWORD" JDBC_URL="jdbc:postgresql://127.0.0.1:$PORT/postgres" "$@"
}

# orders CUSTOMER ITEM...
orders() {
    say "$1 orders: ${*:2}"
    client shop_app "${PUBLISH[@]}" "$@" </dev/null
}

# start_worker NAME: a session of its own, so that it can be stopped with all that it has started
start_worker() {
    # shellcheck disable=SC2016
    client shop_worker setsid sh -c 'echo $$ > "$0" && exec "$@"' "$WORK/tmp/$1.pid" "${WORKER[@]}" "$1" >>"$WORK/log/worker_$1" 2>&1 </dev/null &
    job[$1]=$!
    until [[ -s $WORK/tmp/$1.pid ]]; do sleep 0.05; done
    leader[$1]=$(< "$WORK/tmp/$1.pid")
    rm -f "$WORK/tmp/$1.pid"
    say "worker $1 starts"
}

# stop_workers NAME...: SIGTERM, as systemd or Kubernetes sends it. (A JVM that ends by it says 143.)
stop_workers() {
    local name status
    for name; do
        kill -s TERM "${leader[$name]}"
    done
    for name; do
        status=0
        wait "${job[$name]}" || status=$?
        ((status == 0 || status == 143)) || fail "worker $name ended with $status at SIGTERM"
        say "worker $name has stopped"
    done
}

# ------------------------------------------------------------ what is expected

# eventually SQL WHY
eventually() { until_true 60 "$1" || fail "$2"; say "  $2"; }
is() { [[ $(value "$1") == "$2" ]] || fail "$3: $(value "$1")"; say "  $3"; }

# the status of the newest order of a customer
newest="select status, attempts, worker, event_id from outbox.delivery join outbox.event using (event_id)
    where subscription = 'shipping' and event_key = 'customer:%s' order by event_id desc limit 1"
newest() {
    # shellcheck disable=SC2059
    printf "select $2 from ($newest) as newest" "$1"
}

# ------------------------------------------------------------ the orders

# Two workers at once: most orders go well, a vase fails twice, a dragon for good, a piano takes longer than a lease.
a_mixed_day() {
    orders anna book lamp book
    orders ben vase book
    orders carla dragon book
    orders dora piano
    if orders emil book unicorn book; then fail "a unicorn was sold"; fi
    is "select count(*) from shop.orders" 9 "what cannot be sold leaves no order ..."
    is "select count(*) from outbox.event" 9 "... and no event"
    start_worker A
    start_worker B
    eventually "select count(*) = 7 from shop.shipment" "seven are shipped"
    eventually "select count(*) = 1 and min(error_code) = 'not_carried' and min(attempts) = 1 from outbox.review_required" \
        "one waits for a person after its first attempt"
    eventually "$(newest carla "status = 'BLOCKED'")" "the order behind it waits"
    is "select string_agg(attempt || ' ' || error_code, ', ' order by failed_at) from outbox.attempt where error_code <> 'not_carried'" \
        '1 carrier_timeout, 2 carrier_timeout' "one was tried three times, all others once, the slow one too"
    value "select outbox.discard(subscription, event_id, 'we told the customer') from outbox.review_required" >/dev/null
    eventually "$(newest carla "status = 'COMPLETED'")" "a person gives it up, and the order behind it goes"
    stop_workers A B
}

# A worker that stands still for longer than its lease: another one takes over, and what the first one does then counts for nothing.
a_lost_lease() {
    start_worker C
    orders frank piano
    eventually "$(newest frank "status = 'IN_PROGRESS'")" "worker C has it in work"
    kill -s STOP -- "-${leader[C]}"
    start_worker D
    eventually "$(newest frank "status = 'COMPLETED'")" "C stands still; D takes it over when the lease has run out"
    kill -s CONT -- "-${leader[C]}"
    until_log C "$LOST"
    say "  C goes on, and is told that it is too late"
    is "select count(*) || ' ' || min(worker) from shop.shipment where customer = 'frank'" '1 D' "it is shipped once, by D"
}

# SIGTERM in the middle of the work: the other one has it at once, and no attempt is lost.
a_shutdown() {
    local holder='' other deadline=$((SECONDS + 60))
    orders gina piano
    # both is asked at once: in four seconds the work is done
    until [[ -n $holder ]]; do
        ((SECONDS < deadline)) || fail "nobody has it in work"
        holder=$(value "$(newest gina "case when status = 'IN_PROGRESS' then worker end")")
    done
    say "  somebody has it in work"
    [[ $holder == C ]] && other=D || other=C
    stop_workers "$holder"
    until_log "$holder" 'released 1'
    eventually "$(newest gina "status = 'COMPLETED'")" "it is released, and done by the other one"
    is "select worker from shop.shipment where customer = 'gina'" "$other" "it is shipped by the other one"
    is "$(newest gina attempts)" 1 "one attempt was counted"
    stop_workers "$other"
}

# Twice a transaction is ended by the server for the sake of another: it is done again, and no attempt is lost.
a_conflict() {
    # a sequence goes on whatever is rolled back
    sql -o /dev/null -f - <<'SQL'
create sequence shop.conflict;
create function shop.raise_conflict() returns trigger language plpgsql security definer as $$
begin
    if nextval('shop.conflict') <= 2 then
        raise serialization_failure;
    end if;
    return new;
end
$$;
create trigger conflict before insert on shop.shipment for each row execute function shop.raise_conflict();
SQL
    start_worker E
    orders hugo book
    eventually "$(newest hugo "status = 'COMPLETED'")" "the transaction of an order is ended twice, and done again"
    is "$(newest hugo attempts)" "$CONFLICT_ATTEMPTS" "attempts that were counted: $CONFLICT_ATTEMPTS"
    stop_workers E
}

until_log() {
    local deadline=$((SECONDS + 30))
    until grep -q "$2" "$WORK/log/worker_$1"; do
        ((SECONDS < deadline)) || fail "worker $1 does not say: $2"
        sleep 0.1
    done
}

books_balance() {
    local broken
    broken=$(sql -A -t -f "$WORK/src/examples/shop/reconcile.sql" </dev/null)
    [[ -z $broken ]] || fail "the books do not balance: $broken"
    is "select count(*) from shop.shipment" 11 "the books balance: 12 orders, 11 shipped, 1 given up, none lost, none double"
}

drive() {
    a_mixed_day
    a_lost_lease
    a_shutdown
    a_conflict
    books_balance
}
