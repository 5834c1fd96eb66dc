-- What must agree: the log, the deliveries, and the moves that the calendar has seen.

create temp table line on commit preserve rows as
with published as (
    select count(*) as events from outbox.event where event_type like 'time\_machine.%'
), delivered as (
    select count(*) filter (where status = 'COMPLETED') as completed,
           count(*) filter (where status = 'REVIEW_REQUIRED') as in_review
    from outbox.delivery where subscription = 'calendar'
), effect as (
    select count(*) as moves, count(distinct event_id) as events from tm.move
), disorder as (
    select count(*) as n
    from (select version, lag(version) over (partition by user_id order by move_id) as before from tm.move where user_id <> '*') as m
    where version <= before
)
select p.events as published, d.completed, d.in_review, e.moves,
       p.events = d.completed + d.in_review as nothing_lost,
       e.moves = d.completed and e.events = e.moves as nothing_double,
       o.n = 0 as in_order_per_user
from published p, delivered d, effect e, disorder o;

select * from line;

do $$
begin
    if not (select nothing_lost and nothing_double and in_order_per_user from line) then
        raise exception 'the books do not balance';
    end if;
end
$$;
