-- ---------------------------------------------------------------------------
-- Tenants: which rows a session may see.
--
-- The tables are closed by row-level security without a policy: nobody but
-- their owner sees a row, whatever is granted.  (A policy here would be dumped
-- as well, and be there twice after a restore.)  The views read them with the
-- owner's rights, and each asks first whether the row is for this session.
-- ---------------------------------------------------------------------------

do $$
declare
    relation text;
begin
    for relation in
        select c.oid::pg_catalog.regclass::pg_catalog.text
        from pg_catalog.pg_class c
        where c.relnamespace operator(pg_catalog.=) 'outbox'::pg_catalog.regnamespace and c.relkind operator(pg_catalog.=) 'r'
    loop
        execute 'alter table ' operator(pg_catalog.||) relation operator(pg_catalog.||) ' enable row level security';
    end loop;
end
$$;

-- The planner takes them to cost nothing, so that they come before everything
-- else that is asked of a row; see src/api_tenant.c.
create function outbox.tenant_support(internal)
returns internal
language c strict immutable
as 'MODULE_PATHNAME', 'outbox_tenant_support';
revoke all on function outbox.tenant_support(internal) from public;
comment on function outbox.tenant_support(internal) is
'Internal: tells the planner what the functions of the views cost.';

create function outbox.tenant_is_visible(tenant_id text)
returns boolean
language c
stable parallel safe
support outbox.tenant_support
as 'MODULE_PATHNAME', 'outbox_tenant_is_visible_sql';
revoke all on function outbox.tenant_is_visible(text) from public;
comment on function outbox.tenant_is_visible(text) is
'Internal: whether this session may see what is of the tenant; null or empty: of none. See outbox.tenant_setting.';

create function outbox.event_is_visible(event_id uuid)
returns boolean
language c
stable parallel safe
support outbox.tenant_support
as 'MODULE_PATHNAME', 'outbox_event_is_visible';
revoke all on function outbox.event_is_visible(uuid) from public;
comment on function outbox.event_is_visible(uuid) is
'Internal: whether this session may see what is of the tenant of the event; one that is not in the log (any more) is nobody''s. One index probe, and none where no setting tells the tenant.';

create function outbox.sees_all_tenants()
returns boolean
language c
stable parallel safe
support outbox.tenant_support
as 'MODULE_PATHNAME', 'outbox_sees_all_tenants';
revoke all on function outbox.sees_all_tenants() from public;
comment on function outbox.sees_all_tenants() is
'Internal: whether this session may see what is of no tenant in particular.';

create function outbox.require_all_tenants(function_name text)
returns boolean
language c
volatile parallel safe
as 'MODULE_PATHNAME', 'outbox_require_all_tenants';
revoke all on function outbox.require_all_tenants(text) from public;
comment on function outbox.require_all_tenants(text) is
'Internal: raises 42501 in a session of one tenant, in the name of a function that tells of all tenants together; else true.';
