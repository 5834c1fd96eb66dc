-- Makes doc/reference.md of the comments in the database; "make check" compares the two.
--
--   psql -XAtq -f doc/reference.sql mydb > doc/reference.md
\pset format unaligned
\pset tuples_only on
select '# Reference

*Made from the comments in the database: `\df+ outbox.*`, `\d+ outbox.*` and `\dT+ outbox.*` show them too. Other pages: [what an outbox is](what-is-an-outbox.md) · [first steps](first-steps.md) · [testing](testing.md) · [drivers](drivers.md) · [running](running.md) · [runbook](runbook.md) · [rights](rights.md) · [tenants](tenants.md) · [sensitive data](sensitive-data.md)*

## Functions and procedures';
select format(E'\n### %s\n\n```\n%soutbox.%s(%s)%s\n```\n\n%s',
              p.proname, case p.prokind when 'p' then 'call ' else '' end, p.proname,
              case when length(pg_get_function_arguments(p.oid)) > 60 then E'\n    ' || replace(pg_get_function_arguments(p.oid), ', ', E',\n    ') else pg_get_function_arguments(p.oid) end,
              case p.prokind when 'p' then '' else ' returns ' || pg_get_function_result(p.oid) end,
              replace(replace(d.description, '<', '&lt;'), E'\n', E'\n\n'))
from pg_proc p
join pg_description d on d.objoid = p.oid and d.classoid = 'pg_proc'::regclass
where p.pronamespace = 'outbox'::regnamespace and d.description not like 'Internal%'
order by p.proname collate "C", pg_get_function_identity_arguments(p.oid) collate "C";
select E'\n## Views';
select format(E'\n### outbox.%s\n\n%s\n\n| column | type | |\n| --- | --- | --- |\n%s', c.relname, replace(replace(d.description, '<', '&lt;'), E'\n', E'\n\n'),
              (select string_agg(format('| `%s` | %s | %s |', a.attname, format_type(a.atttypid, null), coalesce(replace(col_description(c.oid, a.attnum), '|', '\|'), '')), E'\n' order by a.attnum)
               from pg_attribute a where a.attrelid = c.oid and a.attnum > 0))
from pg_class c
join pg_description d on d.objoid = c.oid and d.classoid = 'pg_class'::regclass and d.objsubid = 0
where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v' and d.description not like 'Internal%'
order by c.relname collate "C";
select E'\n## Types';
select format(E'\n### outbox.%s\n\n%s', t.typname, d.description)
from pg_type t
join pg_class c on c.oid = t.typrelid and c.relkind = 'c'
join pg_description d on d.objoid = t.oid and d.classoid = 'pg_type'::regclass
where t.typnamespace = 'outbox'::regnamespace
order by t.typname collate "C";
select E'\n## Settings\n\n| setting | default | unit | |\n| --- | --- | --- | --- |';
select format('| `%s` | %s | %s | %s%s |', s.name, case when s.boot_val = '' then '' else '`' || s.boot_val || '`' end, coalesce(s.unit, ''), replace(s.short_desc, '|', '\|'),
              coalesce(' ' || replace(s.extra_desc, '|', '\|'), ''))
from pg_settings s
where s.name like 'outbox.%' and s.name <> 'outbox.test_clock_offset'
order by s.name collate "C";
select E'\n## Error codes\n\n| SQLSTATE | meaning |\n| --- | --- |
| `OB001` | the lease is lost: it expired and its events were taken back |
| `OB002` | a payload, a header or the context was refused |
| `OB003`, `OB004` | raised by `outbox.fail_permanently()` and `outbox.retry_after()`; they must leave the handler |
| `OB005` | `outbox.drain()` ran out of time |
| `OB006` | deliveries are held until `outbox.activate()` |';
