/*
 * tenant.c - whose an event is, where a setting tells the tenant of a session.
 *
 * The rule, the same in publish(), in consume_once() and in the views (api_tenant.c): a session whose setting has a value is that
 * tenant's, whoever it is.  Without a value it is of all tenants when its role is one that works or watches all
 * of them, and else of none: then it publishes nothing and sees nothing.  So who forgets to set
 * it gets an error, and nobody's rows.
 */
#include "outbox.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "event_log.h"
#include "rights.h"
#include "settings.h"
#include "tenant.h"

static bool
is_text(Datum value, const char *string)
{
	text	   *t = DatumGetTextPP(value);

	return VARSIZE_ANY_EXHDR(t) == strlen(string) && memcmp(VARDATA_ANY(t), string, strlen(string)) == 0;
}

static void
refuse_without_tenant(Oid role, const char *what)
{
	if (!outbox_settings_has_tenants() || outbox_rights_spans_tenants(role, true))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OUTBOX_REFUSED),
			 errmsg("setting \"%s\" must name the tenant of the %s", outbox_tenant_setting, what),
			 errhint("The connection layer sets it once per transaction.")));
}

void
outbox_tenant_apply(Oid role, OutboxDraft *draft)
{
	const char *tenant = outbox_settings_tenant();
	const char *context = outbox_settings_context(CTX_TENANT_ID);
	bool		given = !draft->nulls[EV_TENANT_ID];

	if (tenant == NULL)
	{
		refuse_without_tenant(role, "events");
		return;
	}
	if (given ? !is_text(draft->values[EV_TENANT_ID], tenant) : context != NULL && strcmp(context, tenant) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_REFUSED),
				 errmsg("%s is not the tenant of this session", given ? "tenant_id" : "setting \"outbox.tenant_id\""),
				 errdetail("The setting \"%s\" names it.", outbox_tenant_setting),
				 errhint("Leave tenant_id out.")));
	draft->values[EV_TENANT_ID] = CStringGetTextDatum(tenant);
	draft->nulls[EV_TENANT_ID] = false;
}

Datum
outbox_tenant_of_messages(Oid role)
{
	const char *tenant = outbox_settings_tenant();

	if (tenant == NULL)
		refuse_without_tenant(role, "messages");
	else if (strlen(tenant) > OUTBOX_CONTEXT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_REFUSED),
				 errmsg("the tenant of this session is too long"),
				 errdetail("It has %zu bytes; at most %d are allowed.", strlen(tenant), OUTBOX_CONTEXT_MAX)));
	return CStringGetTextDatum(tenant == NULL ? "" : tenant);
}

bool
outbox_tenant_sees_all(void)
{
	if (!outbox_settings_has_tenants())
		return true;
	return outbox_settings_tenant() == NULL && outbox_rights_spans_tenants(GetUserId(), false);
}

bool
outbox_tenant_is_visible(Datum tenant)
{
	const char *own = outbox_settings_tenant();

	if (own == NULL)
		return outbox_tenant_sees_all();
	return DatumGetPointer(tenant) != NULL && is_text(tenant, own);
}

Datum
outbox_tenant_find(const pg_uuid_t *id)
{
	Datum		tenant;

	return outbox_event_log_read(id, EV_TENANT_ID, false, &tenant) ? tenant : 0;
}

bool
outbox_tenant_event_is_visible(const pg_uuid_t *id)
{
	if (outbox_settings_tenant() == NULL)
		return outbox_tenant_sees_all();
	return outbox_tenant_is_visible(outbox_tenant_find(id));
}
