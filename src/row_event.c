/*
 * row_event.c - the event that a changed row makes, as the arguments of its trigger say.
 *
 * Only the columns that are named leave the table: one that is added later stays in it until somebody
 * names it.  Values become JSON as to_jsonb() makes it, and text as a cast does, but under settings of
 * our own: what a consumer gets, and which key an event has, must not depend on the TimeZone of
 * the session that wrote the row.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#include "row_event.h"

typedef enum RowOperation
{
	ROW_CREATED,
	ROW_UPDATED,
	ROW_DELETED
} RowOperation;

static const char *const operation_names[] = {"created", "updated", "deleted"};

/* some columns of the table */
typedef struct ColumnList
{
	int			count;
	AttrNumber *numbers;
} ColumnList;

/* the arguments of a trigger, which name columns of one table */
typedef struct RowRule
{
	Oid			trigger;
	const char *event_type;		/* may have {op} in it */
	const char *payload_version;
	const char *aggregate_type;
	ColumnList	columns;
	ColumnList	key;
	ColumnList	aggregate;
	ColumnList	tenant;
	ColumnList	changed;
	bool		old;			/* the payload has "old" and "new" */
	bool		depends;		/* on settings: the text of some value */
	FmgrInfo	build_columns;	/* jsonb_build_object() for the columns */
	FmgrInfo	build_both;		/* and for "old" and "new" */
} RowRule;

/* what the text of a value may depend on, and what we have instead */
static const char *const settings[][2] = {
	{"TimeZone", "UTC"},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"extra_float_digits", "1"},
	{"bytea_output", "hex"},
};

/* ---------------------------------------------------------------- arguments */

OUTBOX_NORETURN static void
refuse_argument(const TriggerData *trigger, const char *reason, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("trigger \"%s\" of table \"%s\": %s", trigger->tg_trigger->tgname,
					RelationGetRelationName(trigger->tg_relation), reason),
			 errhint("%s", hint)));
}

static AttrNumber
find_column(const TriggerData *trigger, const char *name, const char *argument)
{
	TupleDesc	columns = RelationGetDescr(trigger->tg_relation);

	for (int i = 0; i < columns->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, i);

		if (column->attisdropped || strcmp(NameStr(column->attname), name) != 0)
			continue;
		if (column->attgenerated != '\0' && column->attgenerated != ATTRIBUTE_GENERATED_STORED)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("column \"%s\" of table \"%s\" cannot be published", name,
							RelationGetRelationName(trigger->tg_relation)),
					 errdetail("Trigger \"%s\" names it in \"%s\". It is generated when it is read, and has no value in a trigger.",
							   trigger->tg_trigger->tgname, argument)));
		return column->attnum;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("column \"%s\" of table \"%s\" does not exist", name, RelationGetRelationName(trigger->tg_relation)),
			 errdetail("Trigger \"%s\" names it in \"%s\".", trigger->tg_trigger->tgname, argument),
			 errhint("Create the trigger again when columns were renamed or dropped.")));
	pg_unreachable();
}

static bool
is_listed(const ColumnList *list, AttrNumber number)
{
	for (int i = 0; i < list->count; i++)
	{
		if (list->numbers[i] == number)
			return true;
	}
	return false;
}

/* a,b,"C": identifiers as SQL writes them, each once; at most so many */
static ColumnList
read_columns(const TriggerData *trigger, const char *argument, const char *value, int most)
{
	ColumnList	list = {0};
	List	   *names;
	ListCell   *cell;

	if (!SplitIdentifierString(pstrdup(value), ',', &names) || names == NIL)
		refuse_argument(trigger, psprintf("\"%s\" must name columns", argument),
						"Write their names with commas in between, in double quotes where SQL needs them.");
	list.numbers = palloc(list_length(names) * sizeof(AttrNumber));
	foreach(cell, names)
	{
		AttrNumber	number = find_column(trigger, lfirst(cell), argument);

		if (is_listed(&list, number))
			refuse_argument(trigger, psprintf("\"%s\" names a column twice", argument), "Name each column once.");
		list.numbers[list.count++] = number;
	}
	if (list.count > most)
		refuse_argument(trigger, psprintf("\"%s\" must name one column", argument), "Only \"columns\", \"key\" and \"changed\" name several.");
	return list;
}

static bool
read_flag(const TriggerData *trigger, const char *argument, const char *value)
{
	bool		flag;

	if (!parse_bool(value, &flag))
		refuse_argument(trigger, psprintf("\"%s\" must be true or false", argument), "Leave it out for false.");
	return flag;
}

/* One argument, name=value. */
static void
read_argument(const TriggerData *trigger, RowRule *rule, const char *name, const char *value)
{
	if (strcmp(name, "event_type") == 0)
		rule->event_type = value;
	else if (strcmp(name, "payload_version") == 0)
		rule->payload_version = value;
	else if (strcmp(name, "aggregate_type") == 0)
		rule->aggregate_type = value;
	else if (strcmp(name, "columns") == 0)
		rule->columns = read_columns(trigger, name, value, MaxHeapAttributeNumber);
	else if (strcmp(name, "key") == 0)
		rule->key = read_columns(trigger, name, value, MaxHeapAttributeNumber);
	else if (strcmp(name, "changed") == 0)
		rule->changed = read_columns(trigger, name, value, MaxHeapAttributeNumber);
	else if (strcmp(name, "aggregate") == 0)
		rule->aggregate = read_columns(trigger, name, value, 1);
	else if (strcmp(name, "tenant") == 0)
		rule->tenant = read_columns(trigger, name, value, 1);
	else if (strcmp(name, "old") == 0)
		rule->old = read_flag(trigger, name, value);
	else if (strcmp(name, "when") == 0)
		refuse_argument(trigger, "unknown argument \"when\"", "Use the WHEN clause of CREATE TRIGGER.");
	else
		refuse_argument(trigger, psprintf("unknown argument \"%s\"", name),
						"The arguments are event_type, columns, key, aggregate_type, aggregate, tenant, changed, old and payload_version.");
}

static void
read_arguments(const TriggerData *trigger, RowRule *rule)
{
	List	   *seen = NIL;

	for (int i = 0; i < trigger->tg_trigger->tgnargs; i++)
	{
		char	   *name = pstrdup(trigger->tg_trigger->tgargs[i]);
		char	   *value = strchr(name, '=');
		ListCell   *cell;

		if (value == NULL)
			refuse_argument(trigger, psprintf("argument %d has no \"=\"", i + 1), "Write each argument as 'name=value'.");
		*value++ = '\0';
		foreach(cell, seen)
		{
			if (strcmp(lfirst(cell), name) == 0)
				refuse_argument(trigger, psprintf("argument \"%s\" is given twice", name), "Give each argument once.");
		}
		seen = lappend(seen, name);
		read_argument(trigger, rule, name, value);
	}
	if (rule->event_type == NULL)
		refuse_argument(trigger, "argument \"event_type\" is missing", "For example: 'event_type=task.{op}'.");
	if (rule->columns.count == 0)
		refuse_argument(trigger, "argument \"columns\" is missing", "Name the columns that may leave the table: 'columns=id,title'.");
	if (rule->aggregate.count > 0 && rule->aggregate_type == NULL)
		refuse_argument(trigger, "argument \"aggregate\" needs \"aggregate_type\"", "For example: 'aggregate_type=task', 'aggregate=id'.");
}

/* ---------------------------------------------------------------- types */

/* May the text of such a value depend on settings?  Of those in daily use, these do not. */
static bool
type_depends(Oid type)
{
	type = getBaseType(type);
	switch (type)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case UUIDOID:
		case JSONOID:
		case JSONBOID:
			return false;
		default:
			return !type_is_enum(type);
	}
}

static bool
list_depends(TupleDesc row, const ColumnList *list)
{
	for (int i = 0; i < list->count; i++)
	{
		if (type_depends(TupleDescAttr(row, list->numbers[i] - 1)->atttypid))
			return true;
	}
	return false;
}

/* jsonb_build_object() asks its call's expression for the types of its arguments: pairs of a name and one of these. */
static void
prepare_build_object(FmgrInfo *build, int count, const Oid *types)
{
	List	   *args = NIL;

	for (int i = 0; i < count; i++)
	{
		args = lappend(args, makeNullConst(TEXTOID, -1, InvalidOid));
		args = lappend(args, makeNullConst(types[i], -1, InvalidOid));
	}
	fmgr_info(F_JSONB_BUILD_OBJECT_ANY, build);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_JSONB_BUILD_OBJECT_ANY, JSONBOID, args, InvalidOid, InvalidOid,
											 COERCE_EXPLICIT_CALL), build);
}

static RowRule *
make_rule(const TriggerData *trigger)
{
	RowRule    *rule = palloc0(sizeof(RowRule));
	TupleDesc	row = RelationGetDescr(trigger->tg_relation);
	const Oid	both[] = {JSONBOID, JSONBOID};
	Oid		   *types;

	rule->trigger = trigger->tg_trigger->tgoid;
	read_arguments(trigger, rule);
	rule->depends = list_depends(row, &rule->columns) || list_depends(row, &rule->key) ||
		list_depends(row, &rule->aggregate) || list_depends(row, &rule->tenant);
	types = palloc(rule->columns.count * sizeof(Oid));
	for (int i = 0; i < rule->columns.count; i++)
		types[i] = TupleDescAttr(row, rule->columns.numbers[i] - 1)->atttypid;
	prepare_build_object(&rule->build_columns, rule->columns.count, types);
	prepare_build_object(&rule->build_both, lengthof(both), both);
	return rule;
}

static RowRule *
find_rule(const TriggerData *trigger, FmgrInfo *flinfo)
{
	RowRule    *rule = flinfo->fn_extra;

	if (rule == NULL || rule->trigger != trigger->tg_trigger->tgoid)
	{
		MemoryContext caller = MemoryContextSwitchTo(flinfo->fn_mcxt);

		flinfo->fn_extra = rule = make_rule(trigger);
		MemoryContextSwitchTo(caller);
	}
	return rule;
}

/* ---------------------------------------------------------------- values */

static Datum
build_object(FmgrInfo *build, int count, const Datum *names, const Datum *values, const bool *nulls)
{
	FunctionCallInfo call = palloc(SizeForFunctionCallInfo(2 * count));

	InitFunctionCallInfoData(*call, build, 2 * count, InvalidOid, NULL, NULL);
	for (int i = 0; i < count; i++)
	{
		call->args[2 * i].value = names[i];
		call->args[2 * i].isnull = false;
		call->args[2 * i + 1].value = values[i];
		call->args[2 * i + 1].isnull = nulls[i];
	}
	return FunctionCallInvoke(call);
}

/* The columns of a row as a JSON object. */
static Datum
row_object(RowRule *rule, TupleDesc row, HeapTuple tuple)
{
	int			n = rule->columns.count;
	Datum	   *names = palloc(n * sizeof(Datum));
	Datum	   *values = palloc(n * sizeof(Datum));
	bool	   *nulls = palloc(n * sizeof(bool));

	for (int i = 0; i < n; i++)
	{
		AttrNumber	number = rule->columns.numbers[i];

		names[i] = CStringGetTextDatum(NameStr(TupleDescAttr(row, number - 1)->attname));
		values[i] = heap_getattr(tuple, number, row, &nulls[i]);
	}
	return build_object(&rule->build_columns, n, names, values, nulls);
}

static Datum
make_payload(RowRule *rule, TupleDesc row, HeapTuple old, HeapTuple new)
{
	const Datum names[] = {CStringGetTextDatum("old"), CStringGetTextDatum("new")};
	Datum		values[2] = {0};
	bool		nulls[2] = {old == NULL, new == NULL};

	if (!rule->old)
		return row_object(rule, row, new != NULL ? new : old);
	if (old != NULL)
		values[0] = row_object(rule, row, old);
	if (new != NULL)
		values[1] = row_object(rule, row, new);
	return build_object(&rule->build_both, 2, names, values, nulls);
}

static char *
column_text(TupleDesc row, HeapTuple tuple, AttrNumber number)
{
	Oid			output;
	bool		is_varlena;
	bool		isnull;
	Datum		value = heap_getattr(tuple, number, row, &isnull);

	if (isnull)
		return NULL;
	getTypeOutputInfo(TupleDescAttr(row, number - 1)->atttypid, &output, &is_varlena);
	return OidOutputFunctionCall(output, value);
}

/*
 * The values as one text, NULL when one is null: joined by colons, with a backslash before a colon or backslash
 * in one of several, so that different values never make the same key.
 */
static char *
columns_text(const ColumnList *list, TupleDesc row, HeapTuple tuple)
{
	StringInfoData joined;

	if (list->count == 1)
		return column_text(row, tuple, list->numbers[0]);
	initStringInfo(&joined);
	for (int i = 0; i < list->count; i++)
	{
		char	   *text = column_text(row, tuple, list->numbers[i]);

		if (text == NULL)
			return NULL;
		if (i > 0)
			appendStringInfoChar(&joined, ':');
		for (char *c = text; *c != '\0'; c++)
		{
			if (*c == ':' || *c == '\\')
				appendStringInfoChar(&joined, '\\');
			appendStringInfoChar(&joined, *c);
		}
	}
	return joined.data;
}

static void
set_text(OutboxDraft *draft, OutboxEventColumn column, const char *value)
{
	if (value == NULL)
		return;
	draft->values[column] = CStringGetTextDatum(value);
	draft->nulls[column] = false;
}

static void
set_columns(OutboxDraft *draft, OutboxEventColumn column, const ColumnList *list, TupleDesc row, HeapTuple tuple)
{
	if (list->count > 0)
		set_text(draft, column, columns_text(list, row, tuple));
}

/* ---------------------------------------------------------------- the event */

/* {op} is what has happened to the row. */
static char *
make_event_type(const char *event_type, RowOperation operation)
{
	StringInfoData type;
	const char *place;

	initStringInfo(&type);
	while ((place = strstr(event_type, "{op}")) != NULL)
	{
		appendBinaryStringInfo(&type, event_type, place - event_type);
		appendStringInfoString(&type, operation_names[operation]);
		event_type = place + strlen("{op}");
	}
	appendStringInfoString(&type, event_type);
	return type.data;
}

/* Is one of these columns another one now?  By their bytes: 1.0 and 1.00 differ. */
static bool
has_changed(const ColumnList *list, TupleDesc row, HeapTuple old, HeapTuple new)
{
	for (int i = 0; i < list->count; i++)
	{
		Form_pg_attribute column = TupleDescAttr(row, list->numbers[i] - 1);
		bool		old_null;
		bool		new_null;
		Datum		old_value = heap_getattr(old, list->numbers[i], row, &old_null);
		Datum		new_value = heap_getattr(new, list->numbers[i], row, &new_null);

		if (old_null != new_null ||
			(!old_null && !datum_image_eq(old_value, new_value, column->attbyval, column->attlen)))
			return true;
	}
	return false;
}

static int
begin_own_settings(void)
{
	int			level = NewGUCNestLevel();

	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i][0], settings[i][1], PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return level;
}

static void
fill_draft(RowRule *rule, TupleDesc row, HeapTuple old, HeapTuple new, OutboxDraft *draft)
{
	HeapTuple	current = new != NULL ? new : old;
	RowOperation operation = old == NULL ? ROW_CREATED : new == NULL ? ROW_DELETED : ROW_UPDATED;

	memset(draft->values, 0, sizeof(draft->values));
	memset(draft->nulls, true, sizeof(draft->nulls));
	set_text(draft, EV_EVENT_TYPE, make_event_type(rule->event_type, operation));
	set_text(draft, EV_PAYLOAD_VERSION, rule->payload_version);
	set_text(draft, EV_AGGREGATE_TYPE, rule->aggregate_type);
	set_columns(draft, EV_AGGREGATE_ID, &rule->aggregate, row, current);
	set_columns(draft, EV_EVENT_KEY, &rule->key, row, current);
	set_columns(draft, EV_TENANT_ID, &rule->tenant, row, current);
	draft->values[EV_PAYLOAD] = make_payload(rule, row, old, new);
	draft->nulls[EV_PAYLOAD] = false;
}

bool
outbox_row_event_fill(const TriggerData *trigger, FmgrInfo *flinfo, OutboxDraft *draft)
{
	RowRule    *rule = find_rule(trigger, flinfo);
	TupleDesc	row = RelationGetDescr(trigger->tg_relation);
	HeapTuple	old = TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ? NULL : trigger->tg_trigtuple;
	HeapTuple	new = trigger->tg_trigtuple;
	int			level = 0;

	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		new = trigger->tg_newtuple;
	else if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		new = NULL;
	if (old != NULL && new != NULL && rule->changed.count > 0 && !has_changed(&rule->changed, row, old, new))
		return false;
	if (rule->depends)
		level = begin_own_settings();
	fill_draft(rule, row, old, new, draft);
	if (rule->depends)
		AtEOXact_GUC(true, level);
	return true;
}
