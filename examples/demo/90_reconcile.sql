-- What must agree, counted from the application's own tables, the event log and the receipts.

create temp table line on commit preserve rows as
with published as (
    select count(*) as events from outbox.event
), delivered as (
    select subscription,
           count(*) filter (where status = 'COMPLETED') as completed,
           count(*) filter (where status = 'REVIEW_REQUIRED') as in_review,
           count(*) filter (where status not in ('COMPLETED', 'REVIEW_REQUIRED')) as open
    from outbox.delivery
    group by subscription
), effect as (
    select 'audit' as subscription, count(*) as effects, count(distinct event_id) as once from demo.audit
    union all
    select 'notification', count(*), count(distinct event_id) from demo.notification
)
select subscription, events as published, completed, in_review, open, effects, effects - once as double
from published cross join delivered join effect using (subscription);

select * from line order by subscription;

create temp table promise on commit preserve rows as
select 'every committed change has its event: tasks + cancellations = events' as promise,
       (select count(*) + count(*) filter (where status = 'CANCELLED') from demo.task)
           = (select count(*) from outbox.event) as kept
union all
select 'what was rolled back has none', not exists (select from outbox.event where request_id = 'req-1004')
union all
select format('%s: published = completed + in review', subscription), published = completed + in_review and open = 0
from line
union all
select format('%s: effects = completed, none double', subscription), effects = completed and double = 0
from line
union all
select format('%s: nothing lost', subscription), not exists (
    select from outbox.event as e
    where not exists (
        select from outbox.delivery as d
        where d.subscription = line.subscription and d.event_id = e.event_id
            and d.status in ('COMPLETED', 'REVIEW_REQUIRED')))
from line
union all
select 'no effect without a completed delivery', not exists (
    select 'audit', event_id from demo.audit
    union all
    select 'notification', event_id from demo.notification
    except
    select subscription, event_id from outbox.delivery where status = 'COMPLETED')
union all
select 'both subscriptions are counted', (select count(*) from line) = 2;

select promise, case when kept then 'yes' else 'NO' end as kept from promise;

-- an error ends psql, and with it the demo
do $$
begin
    if exists (select from promise where kept is not true) then
        raise exception 'the books do not balance';
    end if;
end
$$;
