-- When a failed delivery is tried again.
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;

create function pg_temp.delay(attempt integer, base bigint, factor float8, max bigint, spread float8) returns bigint
language c strict as '$libdir/outbox', 'outbox_test_backoff_delay';

-- the default: 5 s, 25 s, 2 min, 10 min, 52 min, then the cap
select attempt, make_interval(secs => pg_temp.delay(attempt, 5000000, 5, 3600000000, 0.5) / 1e6) as delay
from generate_series(1, 8) attempt;

-- spread by 20 % either way
select spread, pg_temp.delay(1, 1000000, 5, 3600000000, spread) as microseconds
from unnest(array[0, 0.25, 0.5, 0.75, 0.9999999]::float8[]) spread;

-- the cap holds before the spread, and from the first attempt on
select pg_temp.delay(1, 10000000, 5, 1000000, 0) as lowest, pg_temp.delay(9, 10000000, 5, 1000000, 0.5) as middle;

-- factor 1: always the same
select distinct pg_temp.delay(attempt, 7000000, 1, 3600000000, 0.5) from generate_series(1, 1000) attempt;

-- grows with the attempts, and never overflows
select count(*) filter (where delay < before) as shrinks, count(*) filter (where delay not between 0 and 1.2 * 31536000000000) as out_of_range
from (select delay, lag(delay) over (partition by factor order by attempt) as before
      from unnest(array[1, 1.0000001, 1.5, 5, 1000]::float8[]) factor,
           generate_series(1, 1000) attempt,
           pg_temp.delay(attempt, 1, factor, 31536000000000, 0.5) delay) d;

-- whatever is passed in: not negative, and not above the cap by more than 20 %
select count(*) as tried, count(*) filter (where not coalesce(delay >= 0 and delay <= greatest(max, 0) * 1.2::numeric, false)) as wrong
from unnest(array[-2147483648, -1, 0, 1, 2, 64, 65, 1000, 2147483647]) attempt,
     unnest(array[-9223372036854775808, -1, 0, 1, 5000000, 9223372036854775807]) base,
     unnest(array['-Infinity', -5, 0, 0.5, 1, 5, 1e300, 'Infinity', 'NaN']::float8[]) factor,
     unnest(array[-9223372036854775808, -1, 0, 1, 3600000000, 9223372036854775807]) max,
     unnest(array['-Infinity', -1, 0, 0.5, 1, 2, 'Infinity', 'NaN']::float8[]) spread,
     pg_temp.delay(attempt, base, factor, max, spread) delay;
