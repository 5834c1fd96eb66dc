# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# wal.sh - bytes of WAL an event costs, to publish and to consume.
#
# One transaction publishes all, so commit records count for nothing there; they do where batches are
# consumed.  Autovacuum's part is not counted.

bench_wal() {
    sql -o /dev/null -c "select outbox.subscribe('noop', array['noop.*'], 'bench.do_nothing')" \
        -c "alter system set autovacuum = off" -c "select pg_reload_conf()" </dev/null
    set_dispatch on
    wal_ours
    sql -c "truncate bench.result" </dev/null
    wal_ours
    wal_baseline update_table "$here/baseline_update_claim.pgbench"
    wal_baseline delete_table "$here/baseline_delete_claim.pgbench"
    sql -o /dev/null -c "alter system reset autovacuum" -c "select pg_reload_conf()" </dev/null
    compare "WAL to publish an event, against the update table" bytes "$(kept ours_publish)" "$(kept update_table_publish)"
    compare "WAL to publish an event, against the delete table" bytes "$(kept ours_publish)" "$(kept delete_table_publish)"
    compare "WAL to route, run and receipt it, against the update table" bytes "$(kept ours_consume)" "$(kept update_table_consume)"
    compare "WAL to route, run and receipt it, against the delete table" bytes "$(kept ours_consume)" "$(kept delete_table_consume)"
}

position() { value "select pg_current_wal_insert_lsn() - '0/0'"; }

# keep_bytes NAME FROM
keep_bytes() { keep "$1" "$(calculate "($(position) - $2) / $WAL_EVENTS")"; }

wal_ours() {
    local wanted from
    set_dispatch off
    wanted=$(value "select bench.completed('noop') + $WAL_EVENTS")
    from=$(position)
    sql -c "call bench.load_log('noop.done', $WAL_EVENTS)" </dev/null
    keep_bytes ours_publish "$from"
    from=$(position)
    set_dispatch on
    sql -c "call bench.wait_for('noop', $wanted)" </dev/null
    keep_bytes ours_consume "$from"
}

wal_baseline() {
    local from
    sql -c "truncate bench.$1" </dev/null
    from=$(position)
    sql -c "call bench.load_baseline('$1', $WAL_EVENTS)" </dev/null
    keep_bytes "$1_publish" "$from"
    sql -c "analyze bench.$1" </dev/null
    from=$(position)
    rate_of_pgbench -c 1 -t $((WAL_EVENTS / 100)) -f "$2" "$database" >/dev/null
    keep_bytes "$1_consume" "$from"
}
