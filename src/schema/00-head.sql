-- The install script of outbox, joined at build time from src/schema/*.sql.
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

-- A schema of the name that was there before must be the installer's own, and empty: what
-- somebody else has put there, or may still put there, is not adopted.
do $$
begin
    if exists (
        select from pg_catalog.pg_namespace n
        where n.nspname operator(pg_catalog.=) 'outbox'
          and n.nspowner operator(pg_catalog.<>) (select r.oid from pg_catalog.pg_roles r where r.rolname operator(pg_catalog.=) current_user))
    then
        raise exception using errcode = 'duplicate_schema', message = 'schema "outbox" belongs to another role',
            hint = 'Drop or rename it, then run CREATE EXTENSION outbox again.';
    end if;
    if exists (select from pg_catalog.pg_class c where c.relnamespace operator(pg_catalog.=) 'outbox'::pg_catalog.regnamespace)
        or exists (select from pg_catalog.pg_proc p where p.pronamespace operator(pg_catalog.=) 'outbox'::pg_catalog.regnamespace)
        or exists (select from pg_catalog.pg_type t where t.typnamespace operator(pg_catalog.=) 'outbox'::pg_catalog.regnamespace)
    then
        raise exception using errcode = 'duplicate_object', message = 'schema "outbox" is not empty',
            hint = 'Drop or rename it, then run CREATE EXTENSION outbox again.';
    end if;
end
$$;

