-- What must agree, counted from the application's own tables, the log and the deliveries.

create temp table line on commit preserve rows as
with published as (
    select count(*) as events from outbox.event where event_type like 'task.%'
), business as (
    select count(*) + count(*) filter (where status = 'CANCELLED') as changes from tw.task
), delivered as (
    select subscription,
           count(*) filter (where status = 'COMPLETED') as completed,
           count(*) filter (where status = 'REVIEW_REQUIRED') as in_review
    from outbox.delivery
    where subscription in ('audit', 'notification')
    group by subscription
), effect as (
    select 'audit' as subscription, count(*) as effects, count(distinct event_id) as events from tw.audit
    union all
    select 'notification', count(*), count(distinct event_id) from tw.notification
)
select d.subscription, b.changes, p.events as published, d.completed, d.in_review, e.effects,
       b.changes = p.events as nothing_unpublished,
       p.events = d.completed + d.in_review as nothing_lost,
       e.effects = d.completed and e.events = e.effects as nothing_double
from published p, business b, delivered d join effect e using (subscription)
order by d.subscription;

select * from line;

do $$
begin
    if (select count(*) filter (where nothing_unpublished and nothing_lost and nothing_double) from line) <> 2 then
        raise exception 'the books do not balance';
    end if;
    if exists (select from tw.audit a join outbox.event e using (event_id) where a.company_id is distinct from e.tenant_id) then
        raise exception 'an event of one company in the books of another';
    end if;
end
$$;
