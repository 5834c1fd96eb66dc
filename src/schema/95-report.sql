-- ---------------------------------------------------------------------------
-- A report as one HTML page: charts in SVG, no script, nothing loaded from elsewhere, no payload.
--
--   psql -Atc "select outbox.report()" > report.html
-- ---------------------------------------------------------------------------

create function outbox.html(value text)
returns text
language sql immutable
return
    replace(replace(replace(replace(coalesce(value, ''), '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;');
revoke all on function outbox.html(text) from public;
comment on function outbox.html(text) is 'Internal: a text as HTML.';

-- One chart: a bar for each value, with its moment and value as a tooltip; without any it says so.
create function outbox.chart(title text, unit text, moments timestamptz[], bars float8[], until_at timestamptz)
returns text
language sql stable
begin atomic
    with bar as (
        select n, at, coalesce(value, 0) as value
        from unnest(moments, bars) with ordinality as given (at, value, n)
    ), scale as (
        select max(value) as top, count(*) as n, min(at) as from_at,
               case when until_at - min(at) < interval '2 hours' then 'HH24:MI:SS' else 'YYYY-MM-DD HH24:MI' end as form
        from bar
    )
    select format('<figure><figcaption>%s</figcaption><svg viewBox="0 0 720 160" role="img" aria-label="%s">', outbox.html(title), outbox.html(title))
        || case when top > 0
                then format('<text x="4" y="12">%s %s</text>', trim_scale(round(top::numeric, case when top < 10 then 2 else 0 end)), outbox.html(unit))
                     || (select string_agg(format('<rect x="%s" y="%s" width="%s" height="%s"><title>%s: %s %s</title></rect>',
                                                  round((720.0 * (bar.n - 1) / scale.n)::numeric, 1), round((140 - 120 * value / top)::numeric, 1),
                                                  round((720.0 / scale.n * 0.9)::numeric, 1), round((120 * value / top)::numeric, 1),
                                                  to_char(at, form), trim_scale(round(value::numeric, 2)), outbox.html(unit)), '' order by bar.n)
                         from bar)
                else '<text x="360" y="85" text-anchor="middle">nothing in this time</text>' end
        || format('<line x1="0" y1="140" x2="720" y2="140"/><text x="0" y="155">%s</text><text x="720" y="155" text-anchor="end">%s</text></svg></figure>',
                  to_char(from_at, form), to_char(until_at, form))
    from scale;
end;
revoke all on function outbox.chart(text, text, timestamptz[], float8[], timestamptz) from public;
comment on function outbox.chart(text, text, timestamptz[], float8[], timestamptz) is 'Internal: a bar chart as SVG.';

create function outbox.check_report_times(from_time timestamptz, to_time timestamptz)
returns boolean
language c volatile
as 'MODULE_PATHNAME', 'outbox_check_report_times';
revoke all on function outbox.check_report_times(timestamptz, timestamptz) from public;
comment on function outbox.check_report_times(timestamptz, timestamptz) is 'Internal: raises 22023 unless a report can be of these times (null: not given); else true.';

create function outbox.traffic(
    from_time timestamptz,
    to_time timestamptz,
    longest interval,
    out n integer,
    out published bigint,
    out completed bigint,
    out waiting bigint,
    out p50_ms float8,
    out p95_ms float8)
returns setof record
language c volatile strict
as 'MODULE_PATHNAME', 'outbox_traffic';
revoke all on function outbox.traffic(timestamptz, timestamptz, interval) from public;
comment on function outbox.traffic(timestamptz, timestamptz, interval) is
'Internal: a time in 48 parts of equal length, and for each how many events were published and deliveries completed, how many of the completed ones waited at its begin, and how long they took from publish to done (milliseconds). longest: how long a call of a handler may take. Reads the events and batches of the time, two hours beside it, and the receipts between the first and the last event of each batch.';

create function outbox.report(from_time timestamptz default null, to_time timestamptz default null)
returns text
language sql volatile
security definer set search_path = pg_catalog, pg_temp
begin atomic
    select outbox.require_all_tenants('outbox.report()'), outbox.check_report_times(from_time, to_time);
    with span as materialized (
        select least(coalesce(from_time, until_at - interval '1 day'), until_at - interval '1 minute') as from_at, until_at
        from (select coalesce(to_time, outbox.clock()) as until_at) given
    ), bucket as materialized (
        select n, from_at + (until_at - from_at) / 48 * (n - 1) as at, extract(epoch from (until_at - from_at) / 48) as seconds
        from span, generate_series(1, 48) as n
    ), traffic as materialized (
        select t.*
        from span
        cross join lateral outbox.traffic(from_at, until_at, coalesce((select max(s.handler_timeout) from outbox.subscription s), interval '0')) t
    ), waiting as materialized (
        select s.oldest_waiting_at, s.backlog from outbox.subscription_status s
    ), line as materialized (
        select k.n, k.at,
               t.published / k.seconds as published,
               t.completed / k.seconds as completed,
               t.p50_ms as p50, t.p95_ms as p95,
               t.waiting + coalesce(o.waiting, 0) as backlog
        from bucket k
        join traffic t on t.n = k.n
        left join lateral (select sum(w.backlog) as waiting from waiting w where w.oldest_waiting_at < k.at) o on true
    ), scale as materialized (
        -- in which units the numbers are readable
        select case when rate >= 1 or rate is null or rate = 0 then 'a second' when rate * 60 >= 1 then 'a minute' when rate * 3600 >= 1 then 'an hour' else 'a day' end as per,
               case when rate >= 1 or rate is null or rate = 0 then 1 when rate * 60 >= 1 then 60 when rate * 3600 >= 1 then 3600 else 86400 end as seconds,
               case when delay < 10000 or delay is null then 'ms' when delay < 600000 then 's' when delay < 36000000 then 'min' else 'h' end as unit,
               case when delay < 10000 or delay is null then 1 when delay < 600000 then 1000 when delay < 36000000 then 60000 else 3600000 end as ms
        from (select max(greatest(published, completed)) as rate, max(p95) as delay from line) most
    ), chart as materialized (
        select outbox.chart('Events published', min(per), array_agg(at order by n), array_agg(published * seconds order by n), min(until_at)) as published,
               outbox.chart('Deliveries completed', min(per), array_agg(at order by n), array_agg(completed * seconds order by n), min(until_at)) as completed,
               outbox.chart('From publish to done, median', min(unit), array_agg(at order by n), array_agg(p50 / ms order by n), min(until_at)) as p50,
               outbox.chart('From publish to done, 95th percentile', min(unit), array_agg(at order by n), array_agg(p95 / ms order by n), min(until_at)) as p95,
               outbox.chart('Deliveries that wait', 'deliveries', array_agg(at order by n), array_agg(backlog order by n), min(until_at)) as backlog
        from line, scale, span
    ), failure as (
        select s.subscription, a.error_code, count(*) as attempts, max(a.failed_at) as last_at
        from span
        join outbox.attempt_log a on a.failed_at >= from_at and a.failed_at < until_at
        join outbox.subscription s on s.subscription_id = a.subscription_id
        group by s.subscription, a.error_code
        order by attempts desc
        limit 50
    )
    select '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>outbox report</title><style>'
        || 'body{font:15px/1.5 system-ui,sans-serif;max-width:920px;margin:2em auto;padding:0 1em;color:#222}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}'
        || 'table{border-collapse:collapse;width:100%;font-size:13px}td,th{border-bottom:1px solid #ddd;padding:4px 8px;text-align:left}td.n,th.n{text-align:right}'
        || 'figure{margin:1em 0}figcaption{font-weight:600}svg{width:100%;height:auto}rect{fill:#336791}rect:hover{fill:#e07b39}line{stroke:#999}text{font-size:11px;fill:#555}td.w{overflow-wrap:anywhere}pre{background:#f6f6f6;padding:1em;overflow-x:auto;font-size:11px}pre span{display:inline-block;white-space:pre-wrap;padding-left:2em;text-indent:-2em}'
        || '</style></head><body>'
        || (select format('<h1>outbox in database %s</h1><p>From %s to %s, made at %s.</p>', outbox.html(current_database()),
                          to_char(from_at, 'YYYY-MM-DD HH24:MI:SS TZ'), to_char(until_at, 'YYYY-MM-DD HH24:MI:SS TZ'), to_char(outbox.clock(), 'YYYY-MM-DD HH24:MI:SS TZ')) from span)
        || '<h2>Now</h2><pre>' || (select string_agg(case when now_line ~ '^[0-9]+[.] ' then '<span>' || outbox.html(now_line) || '</span>' else outbox.html(now_line) end, chr(10)) from outbox.status() as now_line) || '</pre>'
        || (select '<h2>Throughput</h2>' || published || completed || '<h2>Delays</h2>' || p50 || p95 || '<h2>Backlog</h2>' || backlog from chart)
        || '<h2>Failures by code</h2>'
        || coalesce((select '<table><tr><th>subscription</th><th>code</th><th class="n">failed attempts</th><th>last</th></tr>'
                            || string_agg(format('<tr><td class="w">%s</td><td>%s</td><td class="n">%s</td><td>%s</td></tr>', outbox.html(subscription), outbox.html(error_code), attempts,
                                                 to_char(last_at, 'YYYY-MM-DD HH24:MI:SS')), '' order by attempts desc, subscription, error_code) || '</table>' from failure), '<p>None.</p>')
        || '<h2>To be reviewed</h2>'
        || coalesce((select '<table><tr><th>subscription</th><th>event</th><th>type</th><th>request</th><th>trace</th><th class="n">attempts</th><th>code</th><th>failed</th></tr>'
                            || string_agg(format('<tr><td class="w">%s</td><td class="w">%s</td><td class="w">%s</td><td class="w">%s</td><td class="w">%s</td><td class="n">%s</td><td>%s</td><td>%s</td></tr>', outbox.html(subscription), event_id,
                                                 outbox.html(event_type), outbox.html(request_id), outbox.html(trace_id), attempts, outbox.html(error_code), to_char(failed_at, 'YYYY-MM-DD HH24:MI:SS')), '' order by failed_at desc) || '</table>'
                     from (select * from outbox.review_required order by failed_at desc limit 100) newest), '<p>None.</p>')
        || '<h2>Upkeep</h2>'
        || coalesce((select '<table><tr><th>task</th><th>last done</th><th class="n">removed</th><th class="n">kept</th><th>why</th><th>failing</th></tr>'
                            || string_agg(format('<tr><td>%s</td><td>%s</td><td class="n">%s</td><td class="n">%s</td><td class="w">%s</td><td>%s</td></tr>', outbox.html(task),
                                                 to_char(last_success, 'YYYY-MM-DD HH24:MI:SS'), removed_total, kept, outbox.html(left(kept_why, 300)),
                                                 case when failing then outbox.html(last_error) end), '' order by task) || '</table>'
                     from outbox.maintenance_status), '<p>Not done yet.</p>')
        || '</body></html>';
end;
revoke all on function outbox.report(timestamptz, timestamptz) from public;
comment on function outbox.report(timestamptz, timestamptz) is
'A report as one HTML page that needs nothing else: throughput, delays, backlog, failures by code, what is to be reviewed, what upkeep removed and what it keeps. No payloads. from_time: default a day before to_time; to_time: default now. For a file: psql -Atc "select outbox.report()" > report.html.
Cost: reads the events that were published, and the deliveries that were completed or failed, in that time and about two hours around it, whatever else there is; and it asks outbox.status().
Errors: 22023 from_time after to_time, or a time that is not between the years 1970 and 2200; 42501 in a session of one tenant (outbox.tenant_setting).';
