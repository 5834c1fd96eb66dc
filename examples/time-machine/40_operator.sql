-- What the person on duty has: the failed ones with what is needed to decide, and the decision.

create view tm.failed as
select r.subscription, r.event_id, r.event_type, r.importance, r.aggregate_id as user_id, r.attempts, r.error_code, r.blocked_events,
       case when r.error_code = 'rollback_to_nowhere' then 'publish a corrected one'
            when exists (select from tm.calendar_down c where c.user_id = r.aggregate_id) then 'wait for the calendar'
            else 'try again' end as advice
from outbox.review_required as r;

-- Tries again what the check finds ready.
create function tm.retry_ready() returns bigint
begin atomic
    select count(*) from (
        select outbox.retry(subscription, event_id) as retried from tm.failed where advice = 'try again') as tried
    where retried;
end;

-- A corrected event in place of one that can never work: published again with its cause, the old one given up.
create function tm.publish_corrected(failed_event uuid, rollback_to integer) returns uuid
language plpgsql
set search_path = tm, pg_temp
as $$
declare
    old outbox.event;
    changed clock;
    new_id uuid;
begin
    select * into strict old from outbox.event where event_id = failed_event;
    update clock set version = version + 1 where user_id = old.aggregate_id returning * into strict changed;
    new_id := outbox.publish(old.event_type,
        payload => old.payload || jsonb_build_object('version', changed.version, 'rollbackTo', rollback_to, 'reasonCode', 'CORRECTED'),
        aggregate_type => old.aggregate_type, aggregate_id => old.aggregate_id,
        trace_id => old.trace_id, correlation_id => old.correlation_id, causation_id => old.event_id);
    perform outbox.discard(subscription, event_id, 'published again, corrected')
    from outbox.review_required where event_id = failed_event;
    return new_id;
end
$$;
