/*
 * run_as.c - which role of this server a subscription runs as.
 *
 * A subscription's row has the role's name, since that is all that means something in a restored database;
 * outbox.run_as_role, which no dump carries, says whose name it was.  So a role that is renamed goes on, and one that
 * takes the name of another, which was dropped, inherits no handler: as with rights (rights.c), but that
 * the subscription stays, and stands still until somebody names another role.
 *
 * So in a restored database as well: of outbox.run_as_gone, which has a row for each binding, a dump carries those
 * whose role does not bear the name any more.  What is decided when the dump reads it needs nobody to have noticed.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "utils/acl.h"
#include "utils/syscache.h"

#include "run_as.h"
#include "store.h"
#include "subscription.h"

static OutboxStatement select_bound = {
	"select coalesce((select b.role_id from outbox.run_as_role b where b.subscription_id = $1),"
	" (select " OUTBOX_RUN_AS_GONE " from outbox.run_as_gone g where g.subscription_id = $1))",
	1, {INT4OID}
};

static OutboxStatement upsert_bound = {
	"insert into outbox.run_as_role (subscription_id, role_id) values ($1, $2)"
	" on conflict (subscription_id) do update set role_id = excluded.role_id where run_as_role.role_id <> excluded.role_id",
	2, {INT4OID, OIDOID}
};

static OutboxStatement insert_gone = {
	"insert into outbox.run_as_gone (subscription_id) values ($1) on conflict (subscription_id) do nothing",
	1, {INT4OID}
};

static OutboxStatement any_stale = {
	"select 1 where exists (select from outbox.subscription s join outbox.run_as_role b on b.subscription_id = s.subscription_id"
	" join pg_catalog.pg_roles a on a.oid = b.role_id where a.rolname::text <> s.run_as)"
	" or exists (select from outbox.subscription s join pg_catalog.pg_roles a on a.rolname::text = s.run_as"
	" where not exists (select from outbox.run_as_role b where b.subscription_id = s.subscription_id)"
	" and not exists (select from outbox.run_as_gone g where g.subscription_id = s.subscription_id))"
};

static OutboxStatement follow_names = {
	"update outbox.subscription s set run_as = stale.rolname from (select t.subscription_id, a.rolname::text as rolname"
	" from outbox.subscription t join outbox.run_as_role b on b.subscription_id = t.subscription_id"
	" join pg_catalog.pg_roles a on a.oid = b.role_id where a.rolname::text <> t.run_as"
	" for no key update of t skip locked) stale where s.subscription_id = stale.subscription_id"
};

static OutboxStatement bind_restored = {
	"with bound as (insert into outbox.run_as_role (subscription_id, role_id) select free.subscription_id, free.oid from (select t.subscription_id, a.oid"
	" from outbox.subscription t join pg_catalog.pg_roles a on a.rolname::text = t.run_as"
	" where not exists (select from outbox.run_as_role b where b.subscription_id = t.subscription_id)"
	" and not exists (select from outbox.run_as_gone g where g.subscription_id = t.subscription_id)"
	" for no key update of t skip locked) free on conflict (subscription_id) do nothing returning subscription_id)"
	" insert into outbox.run_as_gone (subscription_id) select b.subscription_id from bound b on conflict (subscription_id) do nothing"
};

OutboxRunAsState
outbox_run_as_find(Oid bound, const char *name, Oid *role)
{
	if (!OidIsValid(bound))
	{
		*role = get_role_oid(name, true);
		return OidIsValid(*role) ? RUN_AS_KNOWN : RUN_AS_NOBODY;
	}
	*role = SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(bound)) ? bound : InvalidOid;
	return OidIsValid(*role) ? RUN_AS_KNOWN : RUN_AS_DROPPED;
}

Oid
outbox_run_as_read(int32 subscription_id)
{
	Datum		id = Int32GetDatum(subscription_id);
	Datum		role;
	bool		isnull;

	(void) outbox_store_run_latest(&select_bound, &id, NULL, 1);
	role = outbox_store_value(0, 1, &isnull);
	return isnull ? InvalidOid : DatumGetObjectId(role);
}

void
outbox_run_as_bind(int32 subscription_id, Oid role)
{
	Datum		values[2] = {Int32GetDatum(subscription_id), ObjectIdGetDatum(role)};

	(void) outbox_store_run(&upsert_bound, values, NULL, 0);
	(void) outbox_store_run(&insert_gone, values, NULL, 0);
}

void
outbox_run_as_refresh(void)
{
	if (outbox_store_run(&any_stale, NULL, NULL, 1) == 0)
		return;
	(void) outbox_store_run(&follow_names, NULL, NULL, 0);
	(void) outbox_store_run(&bind_restored, NULL, NULL, 0);
	outbox_subscription_changed();
}
