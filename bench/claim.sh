# shellcheck shell=bash disable=SC2154  # the variables are those of run, which sources this
# claim.sh - external workers over libpq, batches of 100, against claimers of the two hand-written outboxes; one and four of
# them, one by one, and under an old snapshot.

# shellcheck source=bench/old_snapshot.sh
source "$here/old_snapshot.sh"

bench_claim() {
    local i
    sql -o /dev/null -c "select outbox.subscribe('claimed', array['claimed.*'])"
    set_dispatch on
    say "    (a backlog of $BACKLOG, routed before the clock starts; claim, acknowledgement, receipt and progress of each event are included)"
    # the first time is not kept: files grow, and nothing has been read yet
    BACKLOG=20000 claim_round
    sql -c "truncate bench.result" </dev/null
    for ((i = 0; i < ROUNDS; i++)); do
        claim_round
    done
    compare "claim and acknowledge 100, one claimer, against the update table" "events/s" "$(kept claim_ours)" "$(kept claim_update)" ge 2
    compare "  four claimers, against one" "events/s" "$(kept claim_four)" "$(kept claim_ours)" ge 1.5
    compare "  under an old snapshot, against our own rate without it" "events/s" "$(kept claim_held)" "$(kept claim_ours)" ge 0.95
    compare "the next claim acknowledges: one commit each, against the delete table" "events/s" "$(kept chained_ours)" "$(kept claim_delete)" ge 1
    compare "acknowledge one by one, the flush left to the server, against the update table" "events/s" "$(kept unflushed_ours)" "$(kept single_update)" ge 2
    compare "  which leaves it too" "events/s" "$(kept unflushed_ours)" "$(kept unflushed_update)"
    compare "  a flush each on both sides" "events/s" "$(kept single_ours)" "$(kept single_update)"
}

# each of them once
claim_round() {
    keep chained_ours "$(drain_claimed 1 "$here/claim_chained.pgbench")"
    keep claim_delete "$(drain_baseline delete_table "$here/baseline_delete_claim.pgbench")"
    keep claim_ours "$(drain_claimed 1 "$here/claim.pgbench")"
    hold_snapshot
    keep claim_held "$(drain_claimed 1 "$here/claim.pgbench")"
    let_go
    keep claim_update "$(drain_baseline update_table "$here/baseline_update_claim.pgbench")"
    keep claim_four "$(drain_claimed 4 "$here/claim.pgbench")"
    keep single_ours "$(drain_singly on)"
    keep single_update "$(drain_singly_update on)"
    keep unflushed_ours "$(drain_singly off)"
    keep unflushed_update "$(drain_singly_update off)"
}

# load_claimed N: a backlog in the lanes.  The checkpoint comes before it, as in drain_baseline: its pages have been written to the log
# in full when the clock starts, on both sides.
load_claimed() {
    sql -o /dev/null <<END
checkpoint;
call bench.load_log('claimed.done', $1);
call outbox.drain(array['claimed'], '10 min');
END
}

# finish_claimed: what is left, and what a client held that went away
finish_claimed() {
    sql -o /dev/null -c "call bench.finish_claimed()"
}

# drain_claimed CLIENTS SCRIPT: events/s
drain_claimed() {
    local rate
    load_claimed "$BACKLOG"
    rate=$(rate_of_pgbench -c "$1" -j "$1" -t $((BACKLOG / 100 / $1 * 9 / 10)) -D holds=false -f "$2" "$database")
    finish_claimed
    calculate "$rate * 100"
}

# one_by_one SCRIPT ID STATEMENT FLUSHES: events/s of a claimer that claims 100 as the script does, keeps their ids (column ID)
# apart, as a client would, and settles them one by one.  Its acknowledgements flush, or leave that to the server and only claims wait
# for the disk.
one_by_one() {
    local n rate columns=
    for ((n = 1; n <= 100; n++)); do
        columns+=", (array_agg($2))[$n] as id$n"
    done
    echo "set synchronous_commit = $4;" > "$WORK/one_by_one"
    sed -n "/\\\\gset/{s/ from \([a-z_.(', 0-9)]*\) \\\\gset/$columns from \1, set_config('synchronous_commit', 'on', true) \\\\gset/;p;q};p" "$1" >> "$WORK/one_by_one"
    for ((n = 1; n <= 100; n++)); do
        echo "${3//ID/:id$n}" >> "$WORK/one_by_one"
    done
    chmod a+r "$WORK/one_by_one"
    rate=$(rate_of_pgbench -c 1 -t "$((BACKLOG / 4000))" -f "$WORK/one_by_one" "$database")
    calculate "$rate * 100"
}

# drain_singly on|off: acknowledged events/s, a transaction each, which flushes or does not
drain_singly() {
    load_claimed "$((BACKLOG / 40))"
    one_by_one "$here/claim.pgbench" event_id "select outbox.ack_one(:token, ID);" "$1"
    finish_claimed
}

# drain_singly_update on|off: the update table's, claimed by 100 too
drain_singly_update() {
    sql -c checkpoint -c "call bench.load_baseline('update_table', $((BACKLOG / 40)))" -c "analyze bench.update_table" </dev/null
    one_by_one "$here/baseline_update_claim.pgbench" id "update bench.update_table set status = 'COMPLETED', completed_at = now() where id = ID;" "$1"
    sql -c "truncate bench.update_table" </dev/null
}
