/*
 * api_publish_row.c - outbox.publish_row(), a trigger function: each change of a row is an event.
 *
 * The event is written as publish() writes it, in the transaction of whoever changes the row. The right that counts
 * is that of the table's owner: what happens when a row changes is part of the table, as a foreign key is.
 */
#include "outbox.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "admission.h"
#include "event_log.h"
#include "guard.h"
#include "row_event.h"

PG_FUNCTION_INFO_V1(outbox_publish_row);

static void
check_call(FunctionCallInfo fcinfo)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.publish_row() can only be called as a trigger")));
	if (!TRIGGER_FIRED_AFTER(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" of table \"%s\": outbox.publish_row() must be fired AFTER, FOR EACH ROW",
						trigger->tg_trigger->tgname, RelationGetRelationName(trigger->tg_relation)),
				 errhint("Before, another trigger may still change the row, or prevent it.")));
}

static void
name_trigger(void *arg)
{
	TriggerData *trigger = arg;

	errcontext("trigger \"%s\" of table \"%s\"", trigger->tg_trigger->tgname, RelationGetRelationName(trigger->tg_relation));
}

/* What publish() would refuse is refused, and says whose doing it is. */
static void
publish(TriggerData *trigger, OutboxDraft *draft)
{
	ErrorContextCallback context = {.callback = name_trigger, .arg = trigger, .previous = error_context_stack};
	pg_uuid_t	id;

	error_context_stack = &context;
	outbox_admission_check(trigger->tg_relation->rd_rel->relowner, draft);
	(void) outbox_event_log_append(draft, &id);
	error_context_stack = context.previous;
}

Datum
outbox_publish_row(PG_FUNCTION_ARGS)
{
	OutboxDraft draft;

	check_call(fcinfo);
	if (outbox_row_event_fill((TriggerData *) fcinfo->context, fcinfo->flinfo, &draft))
		publish((TriggerData *) fcinfo->context, &draft);
	return PointerGetDatum(NULL);
}
