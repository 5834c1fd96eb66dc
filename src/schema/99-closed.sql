-- ---------------------------------------------------------------------------
-- Default privileges, of whoever installs the extension, have opened nothing.
-- ---------------------------------------------------------------------------

do $$
declare
    statement text;
begin
    for statement in
        select pg_catalog.format('revoke all on %s %s from %s', o.kind, o.name,
                                 case a.grantee when 0 then 'public' else pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) end)
        from (select 'schema' as kind, pg_catalog.quote_ident(n.nspname) as name, n.nspacl as acl, n.nspowner as owner
              from pg_catalog.pg_namespace n
              where n.nspname operator(pg_catalog.=) 'outbox'
              union all
              select 'table', c.oid::pg_catalog.regclass::pg_catalog.text, c.relacl, c.relowner
              from pg_catalog.pg_class c
              where c.relnamespace operator(pg_catalog.=) 'outbox'::pg_catalog.regnamespace and c.relkind in ('r', 'v', 'S')
              union all
              select 'routine', p.oid::pg_catalog.regprocedure::pg_catalog.text, p.proacl, p.proowner
              from pg_catalog.pg_proc p
              where p.pronamespace operator(pg_catalog.=) 'outbox'::pg_catalog.regnamespace) o
        cross join lateral pg_catalog.aclexplode(o.acl) a
        where a.grantee operator(pg_catalog.<>) o.owner
    loop
        execute statement;
    end loop;
end
$$;
