/*
 * rights.c - who may publish which event types, work which subscription, and act as an operator.
 *
 * EXECUTE on a function opens the door; what lies behind it, outbox.role_grant says: which types, which
 * subscription.  A right counts for the role it was given to and for all who have its
 * privileges, as with any GRANT.  Superusers and the extension's owner have every right.
 *
 * What a role may do is read once and kept until a role, a membership, the grants or the
 * owner change.  A refusal is never kept: before saying no, the tables are read again, so that what
 * no message tells of (a restore that copies rows) refuses nobody for longer than it takes.
 *
 * Rows carry the name under which a role was known when they were written, since that is all
 * that means something in a restored database; outbox.granted_role, which no dump carries, says whose
 * name it was.  So a role that takes the name of another one inherits nothing.
 */
#include "outbox.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "extension.h"
#include "pattern.h"
#include "rights.h"
#include "session.h"
#include "settings.h"
#include "store.h"

#define PROFILES_MAX	16		/* roles that a session has acted as */
#define ALLOWED_TYPES	64		/* remembered event types of a role */

/* columns of outbox.role_grant */
typedef enum GrantColumn
{
	GRANT_ROLE_NAME,
	GRANT_KIND,
	GRANT_SCOPE
} GrantColumn;

/* a row of outbox.granted_role */
typedef struct BoundRole
{
	Oid			role;
	char	   *name;
} BoundRole;

/* what one role may do */
typedef struct RightsProfile
{
	Oid			role;
	bool		owner;			/* or superuser: all of it */
	bool		is_operator;
	bool		spans_tenants;
	int			npatterns;
	char	  **patterns;
	int			nsubscriptions;
	char	  **subscriptions;
	char		allowed[ALLOWED_TYPES][OUTBOX_EVENT_TYPE_MAX + 1];	/* by hash; empty: none */
} RightsProfile;

static MemoryContext cache_context = NULL;
static RightsProfile *profiles[PROFILES_MAX];
static int	nprofiles = 0;
static uint64 changes = 0;		/* counts what was invalidated */
static Oid	grant_relid = InvalidOid;
static Oid	bound_relid = InvalidOid;
static Oid	log_relid = InvalidOid; /* its owner is the extension's */

/* ---------------------------------------------------------------- cache */

static void
forget_profiles(void)
{
	nprofiles = 0;
	changes++;
}

static void
forget_by_relation(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == grant_relid || relid == bound_relid || relid == log_relid)
		forget_profiles();
}

static void
forget_by_role(Datum arg, int cacheid, uint32 hashvalue)
{
	forget_profiles();
}

static void
prepare_cache(void)
{
	if (cache_context == NULL)
	{
		cache_context = AllocSetContextCreate(TopMemoryContext, "outbox rights", ALLOCSET_DEFAULT_SIZES);
		CacheRegisterRelcacheCallback(forget_by_relation, (Datum) 0);
		CacheRegisterSyscacheCallback(AUTHOID, forget_by_role, (Datum) 0);
		CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, forget_by_role, (Datum) 0);
	}
	grant_relid = outbox_extension_relid("role_grant");
	bound_relid = outbox_extension_relid("granted_role");
	log_relid = outbox_extension_relid("event_log");
}

/* ---------------------------------------------------------------- reading the tables */

/*
 * Rows are read as they are now, whatever the transaction's snapshot, as PostgreSQL does with its own
 * rights; and without predicate locks, on which publishers would meet.  Parallel queries allow no newer snapshot.
 */
static void
begin_reading(OutboxScan *scan, Oid relid, Snapshot *snapshot)
{
	*snapshot = IsolationIsSerializable() || IsInParallelMode() ? SnapshotSelf : RegisterSnapshot(GetLatestSnapshot());
	outbox_store_begin_scan(scan, relid, outbox_store_primary_key(relid), *snapshot, 0);
	outbox_store_rescan(scan);
}

static void
end_reading(OutboxScan *scan, Snapshot snapshot)
{
	outbox_store_end_scan(scan);
	if (snapshot != SnapshotSelf)
		UnregisterSnapshot(snapshot);
}

static int
read_bound_roles(BoundRole **roles)
{
	OutboxScan	scan;
	Snapshot	snapshot;
	int			room = 16;
	int			n = 0;
	bool		isnull;

	*roles = palloc(room * sizeof(BoundRole));
	begin_reading(&scan, bound_relid, &snapshot);
	while (outbox_store_next(&scan, true))
	{
		if (n == room)
		{
			room *= 2;
			*roles = repalloc(*roles, room * sizeof(BoundRole));
		}
		(*roles)[n].role = DatumGetObjectId(slot_getattr(scan.slot, 1, &isnull));
		(*roles)[n++].name = TextDatumGetCString(slot_getattr(scan.slot, 2, &isnull));
	}
	end_reading(&scan, snapshot);
	return n;
}

/* Whose name it is; InvalidOid for nobody's. */
static Oid
find_grantee(const char *name, const BoundRole *roles, int n)
{
	Oid			role;

	for (int i = 0; i < n; i++)
	{
		if (strcmp(roles[i].name, name) == 0)
			return roles[i].role;
	}
	/* not bound yet: restored.  Who had another name when it was given rights is somebody else */
	role = get_role_oid(name, true);
	for (int i = 0; i < n; i++)
	{
		if (roles[i].role == role)
			return InvalidOid;
	}
	return role;
}

static void
add_scope(char ***scopes, int *n, const char *scope)
{
	MemoryContext caller = MemoryContextSwitchTo(cache_context);

	/* doubled at each power of two */
	if (*n == 0)
		*scopes = palloc(sizeof(char *));
	else if ((*n & (*n - 1)) == 0)
		*scopes = repalloc(*scopes, 2 * *n * sizeof(char *));
	(*scopes)[(*n)++] = pstrdup(scope);
	MemoryContextSwitchTo(caller);
}

static void
add_grant(RightsProfile *profile, const char *kind, const char *scope)
{
	if (strcmp(kind, "publisher") == 0)
	{
		add_scope(&profile->patterns, &profile->npatterns, scope);
		return;
	}
	profile->spans_tenants = true;
	if (strcmp(kind, "operator") == 0)
		profile->is_operator = true;
	else if (strcmp(kind, "worker") == 0)
		add_scope(&profile->subscriptions, &profile->nsubscriptions, scope);
}

static void
read_grants(RightsProfile *profile)
{
	OutboxScan	scan;
	Snapshot	snapshot;
	BoundRole  *roles;
	int			n = read_bound_roles(&roles);
	bool		isnull;

	begin_reading(&scan, grant_relid, &snapshot);
	while (outbox_store_next(&scan, true))
	{
		char	   *name = TextDatumGetCString(slot_getattr(scan.slot, GRANT_ROLE_NAME + 1, &isnull));
		Oid			grantee = find_grantee(name, roles, n);

		if (OidIsValid(grantee) && has_privs_of_role(profile->role, grantee))
			add_grant(profile,
					  TextDatumGetCString(slot_getattr(scan.slot, GRANT_KIND + 1, &isnull)),
					  TextDatumGetCString(slot_getattr(scan.slot, GRANT_SCOPE + 1, &isnull)));
	}
	end_reading(&scan, snapshot);
}

/* Read what the role may do; what was known of others is forgotten when there are too many. */
static RightsProfile *
load_profile(Oid role)
{
	RightsProfile *profile;
	uint64		before;
	MemoryContext reading = AllocSetContextCreate(CurrentMemoryContext, "outbox rights", ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(reading);

	prepare_cache();
	before = changes;
	if (nprofiles == 0 || nprofiles == PROFILES_MAX)
	{
		MemoryContextReset(cache_context);
		nprofiles = 0;
	}
	profile = MemoryContextAllocZero(cache_context, sizeof(RightsProfile));
	profile->role = role;
	profile->owner = has_privs_of_role(role, outbox_session_owner());
	profile->spans_tenants = profile->owner;
	if (!profile->owner)
		read_grants(profile);
	/* what was invalidated meanwhile is good for this question only */
	if (before == changes)
		profiles[nprofiles++] = profile;
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(reading);
	return profile;
}

static RightsProfile *
find_profile(Oid role)
{
	for (int i = 0; i < nprofiles; i++)
	{
		if (profiles[i]->role == role)
			return profiles[i];
	}
	return load_profile(role);
}

static RightsProfile *
reload_profile(Oid role)
{
	forget_profiles();
	return load_profile(role);
}

/* ---------------------------------------------------------------- questions */

static bool
may_publish(RightsProfile *profile, const char *event_type)
{
	int			len = strlen(event_type);
	char	   *known = profile->allowed[hash_bytes((const unsigned char *) event_type, len) % ALLOWED_TYPES];

	if (profile->owner || strcmp(known, event_type) == 0)
		return true;
	for (int i = 0; i < profile->npatterns; i++)
	{
		if (outbox_pattern_matches(profile->patterns[i], strlen(profile->patterns[i]), event_type, len))
		{
			strlcpy(known, event_type, OUTBOX_EVENT_TYPE_MAX + 1);
			return true;
		}
	}
	return false;
}

static bool
may_work(const RightsProfile *profile, const char *subscription)
{
	for (int i = 0; i < profile->nsubscriptions; i++)
	{
		if (strcmp(profile->subscriptions[i], subscription) == 0)
			return true;
	}
	return profile->owner;
}

static bool
may_operate(const RightsProfile *profile)
{
	return profile->owner || profile->is_operator;
}

/* Lanes, and the rows that people change, are of all tenants. */
static void
refuse_one_tenant(void)
{
	if (outbox_settings_tenant() != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("a session of one tenant may not act for all tenants"),
				 errdetail("The setting \"%s\" names a tenant.", outbox_tenant_setting),
				 errhint("Set it to an empty string first.")));
}

void
outbox_rights_require_publisher(Oid role, const char *event_type)
{
	if (may_publish(find_profile(role), event_type) || may_publish(reload_profile(role), event_type))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to publish events of type \"%s\"", event_type),
			 errdetail("Role \"%s\" has no such grant.", GetUserNameFromId(role, false)),
			 errhint("The extension's owner gives it with outbox.grant_publisher().")));
}

void
outbox_rights_require_worker(Oid role, int32 subscription_id, const char *subscription)
{
	if (!may_work(find_profile(role), subscription) && !may_work(reload_profile(role), subscription))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to work subscription \"%s\"", subscription),
				 errdetail("Role \"%s\" has no such grant.", GetUserNameFromId(role, false)),
				 errhint("The extension's owner gives it with outbox.grant_worker().")));
	refuse_one_tenant();
}

void
outbox_rights_require_operator(Oid role)
{
	if (!may_operate(find_profile(role)) && !may_operate(reload_profile(role)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: only an operator may do this"),
				 errdetail("Role \"%s\" has no such grant.", GetUserNameFromId(role, false)),
				 errhint("The extension's owner gives it with outbox.grant_operator().")));
	refuse_one_tenant();
}

void
outbox_rights_require_owner(Oid role)
{
	if (!has_privs_of_role(role, outbox_session_owner()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: only the extension's owner may give and take rights")));
}

bool
outbox_rights_spans_tenants(Oid role, bool look_again)
{
	return find_profile(role)->spans_tenants || (look_again && reload_profile(role)->spans_tenants);
}

void
outbox_rights_changed(void)
{
	CacheInvalidateRelcacheByRelid(outbox_extension_relid("role_grant"));
}
