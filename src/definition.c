/*
 * definition.c - the rules for a subscription's definition.
 *
 * Everything that subscribe() and alter_subscription() accept passes through
 * here, and is stored in one form: lists sorted and without repetition,
 * intervals as plain time, the handler's name quoted as SQL would.  So the same definition is found the same
 * however it was written, and migrations can repeat it.
 *
 * Runs as the caller, before any of our own SQL: the catalogs are read
 * directly, and privileges are asked for by role.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#include "backoff.h"
#include "definition.h"
#include "extension.h"
#include "operator.h"
#include "pattern.h"
#include "settings.h"

#define SECONDS(n) ((n) * USECS_PER_SEC)
#define MAX_ATTEMPTS_MAX	1000
#define BACKOFF_FACTOR_MAX	1000

typedef struct Column
{
	const char *name;
	Oid			type;
} Column;

static const Column columns[OUTBOX_DEFINITION_COLUMNS] = {
	[DEF_EVENT_TYPES] = {"event_types", TEXTARRAYOID},
	[DEF_HANDLER] = {"handler", TEXTOID},
	[DEF_ORDERING] = {"ordering", TEXTOID},
	[DEF_LANES] = {"lanes", INT4OID},
	[DEF_MAX_ATTEMPTS] = {"max_attempts", INT4OID},
	[DEF_BACKOFF_BASE] = {"backoff_base", INTERVALOID},
	[DEF_BACKOFF_FACTOR] = {"backoff_factor", FLOAT8OID},
	[DEF_BACKOFF_MAX] = {"backoff_max", INTERVALOID},
	[DEF_LEASE_DURATION] = {"lease_duration", INTERVALOID},
	[DEF_HANDLER_TIMEOUT] = {"handler_timeout", INTERVALOID},
	[DEF_BATCH_SIZE] = {"batch_size", INT4OID},
	[DEF_START_AT] = {"start_at", TIMESTAMPTZOID},
	[DEF_ON_REVIEW] = {"on_review", TEXTOID},
	[DEF_PERMANENT_ERRORS] = {"permanent_errors", TEXTARRAYOID},
	[DEF_TRANSIENT_ERRORS] = {"transient_errors", TEXTARRAYOID},
	[DEF_RUN_AS] = {"run_as", TEXTOID},
};

int
outbox_definition_find(const char *name)
{
	for (int i = 0; i < OUTBOX_DEFINITION_COLUMNS; i++)
	{
		if (strcmp(columns[i].name, name) == 0)
			return i;
	}
	return -1;
}

/* ---------------------------------------------------------------- defaults */

static Datum
make_interval_value(int64 us)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return IntervalPGetDatum(interval);
}

/* The same as in the signature of subscribe(). */
static Datum
default_value(int column, Oid caller, bool *isnull)
{
	*isnull = false;
	switch (column)
	{
		case DEF_ORDERING:
			return CStringGetTextDatum("key");
		case DEF_LANES:
			return Int32GetDatum(16);
		case DEF_MAX_ATTEMPTS:
			return Int32GetDatum(6);
		case DEF_BACKOFF_BASE:
			return make_interval_value(SECONDS(5));
		case DEF_BACKOFF_FACTOR:
			return Float8GetDatum(5);
		case DEF_BACKOFF_MAX:
			return make_interval_value(SECONDS(SECS_PER_HOUR));
		case DEF_LEASE_DURATION:
			return make_interval_value(SECONDS(2 * SECS_PER_MINUTE));
		case DEF_HANDLER_TIMEOUT:
			return make_interval_value(SECONDS(30));
		case DEF_BATCH_SIZE:
			return Int32GetDatum(500);
		case DEF_ON_REVIEW:
			return CStringGetTextDatum("block");
		case DEF_RUN_AS:
			return CStringGetTextDatum(GetUserNameFromId(caller, false));
		default:
			*isnull = true;
			return (Datum) 0;
	}
}

void
outbox_definition_reset(OutboxDefinition *definition, int column, Oid caller)
{
	definition->values[column] = default_value(column, caller, &definition->nulls[column]);
}

/* ---------------------------------------------------------------- single values */

static void
check_integer(const OutboxDefinition *definition, int column, int max)
{
	int32		value = DatumGetInt32(definition->values[column]);

	if (value < 1 || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between 1 and %d, not %d", columns[column].name, max, value)));
}

static void
check_factor(const OutboxDefinition *definition)
{
	double		factor = DatumGetFloat8(definition->values[DEF_BACKOFF_FACTOR]);

	if (!(factor >= 1 && factor <= BACKOFF_FACTOR_MAX))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("backoff_factor must be between 1 and %d", BACKOFF_FACTOR_MAX),
				 errhint("With 1, the delay is the same after every failed attempt.")));
}

/* Stored without days and months, which other readers might count differently. */
static void
check_interval(OutboxDefinition *definition, int column, int64 min, int64 max, const char *range)
{
	int64		us = outbox_backoff_interval_us(DatumGetIntervalP(definition->values[column]));

	if (us < min || us > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", columns[column].name),
				 errhint("It must be %s. A month counts 30 days.", range)));
	definition->values[column] = make_interval_value(us);
}

static void
check_word(const OutboxDefinition *definition, int column, const char *first, const char *second)
{
	char	   *word = TextDatumGetCString(definition->values[column]);

	if (strcmp(word, first) != 0 && strcmp(word, second) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for %s: \"%s\"", columns[column].name, word),
				 errhint("It must be '%s' or '%s'.", first, second)));
}

static void
check_start(const OutboxDefinition *definition)
{
	TimestampTz start_at;

	if (definition->nulls[DEF_START_AT])
		return;
	start_at = DatumGetTimestampTz(definition->values[DEF_START_AT]);
	if (start_at > outbox_settings_now())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("start_at must not be in the future"),
				 errhint("Leave it out for the events committed from now on; '-infinity' is for all that are still in the log.")));
}

/* ---------------------------------------------------------------- lists */

static int
compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

static char **
read_texts(Datum array, const char *name, int *count)
{
	Datum	   *elements;
	char	  **texts;

	deconstruct_array(outbox_operator_check_list(array, name), TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, count);
	texts = palloc(sizeof(char *) * Max(*count, 1));
	for (int i = 0; i < *count; i++)
		texts[i] = TextDatumGetCString(elements[i]);
	return texts;
}

/* Sorted, and each once. */
static void
sort_list(char **list, int *count)
{
	int			n = *count;

	qsort(list, n, sizeof(char *), compare_strings);
	*count = 0;
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || strcmp(list[i], list[*count - 1]) != 0)
			list[(*count)++] = list[i];
	}
}

static void
store_list(OutboxDefinition *definition, int column, char **list, int count)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(count, 1));

	for (int i = 0; i < count; i++)
		elements[i] = CStringGetTextDatum(list[i]);
	definition->values[column] = PointerGetDatum(construct_array(elements, count, TEXTOID, -1, false, TYPALIGN_INT));
}

static void
check_patterns(char **patterns, int count)
{
	if (count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("event_types must not be empty"),
				 errhint("Name event types or patterns, like '{task.created}' or '{task.*}'; '{#}' is for all.")));
	for (int i = 0; i < count; i++)
	{
		const char *reason = outbox_pattern_check(patterns[i], strlen(patterns[i]));

		if (reason != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid event type pattern: \"%s\"", patterns[i]),
					 errdetail("%s", reason)));
	}
}

char **
outbox_definition_read_patterns(Datum event_types, int *count)
{
	char	  **patterns = read_texts(event_types, columns[DEF_EVENT_TYPES].name, count);

	check_patterns(patterns, *count);
	return patterns;
}

static void
check_event_types(OutboxDefinition *definition)
{
	char	  **patterns = NULL;
	int			count = 0;

	if (!definition->nulls[DEF_EVENT_TYPES])
	{
		patterns = read_texts(definition->values[DEF_EVENT_TYPES], columns[DEF_EVENT_TYPES].name, &count);
		sort_list(patterns, &count);
	}
	check_patterns(patterns, count);
	store_list(definition, DEF_EVENT_TYPES, patterns, count);
}

static char **
check_errors(OutboxDefinition *definition, int column, int *count)
{
	char	  **codes;

	*count = 0;
	if (definition->nulls[column])
		return NULL;
	codes = read_texts(definition->values[column], columns[column].name, count);
	sort_list(codes, count);
	for (int i = 0; i < *count; i++)
	{
		const char *reason = outbox_pattern_check_error_rule(codes[i], strlen(codes[i]));

		if (reason != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid error code in %s: \"%s\"", columns[column].name, codes[i]),
					 errdetail("%s", reason),
					 errhint("Name an SQLSTATE such as 23514, a class of them such as 23, or an error code of the handler's.")));
	}
	store_list(definition, column, codes, *count);
	return codes;
}

static void
check_error_lists(OutboxDefinition *definition)
{
	int			npermanent;
	int			ntransient;
	char	  **permanent = check_errors(definition, DEF_PERMANENT_ERRORS, &npermanent);
	char	  **transient = check_errors(definition, DEF_TRANSIENT_ERRORS, &ntransient);

	for (int i = 0; i < npermanent && ntransient > 0; i++)
	{
		if (bsearch(&permanent[i], transient, ntransient, sizeof(char *), compare_strings) != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("error code \"%s\" is in permanent_errors and in transient_errors", permanent[i])));
	}
}

/* ---------------------------------------------------------------- handler and role */

/* The function of that name whose one argument is of that type, or InvalidOid. */
static Oid
find_function(const char *name, Oid schema, Oid argument)
{
	oidvector  *arguments = buildoidvector(&argument, 1);

	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
						   PointerGetDatum(arguments), ObjectIdGetDatum(schema));
}

static void
check_function_kind(Oid function, const char *handler)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		plain;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	plain = form->prokind == PROKIND_FUNCTION && !form->proretset;
	ReleaseSysCache(tuple);
	if (!plain)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("handler %s is not a plain function", handler),
				 errhint("Procedures, aggregates, window functions and functions that return sets cannot be handlers.")));
}

/* 'schema.function' taken apart as SQL would, and back with quotes where they are needed. */
static char *
parse_handler(const char *given, char **schema, char **function)
{
	List	   *names;

	if (!SplitIdentifierString(pstrdup(given), '.', &names) || list_length(names) != 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid handler name: \"%s\"", given),
				 errhint("Name it with its schema and without arguments: 'schema.function'.")));
	*schema = linitial(names);
	*function = lsecond(names);
	return quote_qualified_identifier(*schema, *function);
}

/* Find the function; exactly one of the two forms must be there. */
static Oid
find_handler(const char *handler, const char *schema_name, const char *function_name, Oid *schema)
{
	Oid			event = get_rel_type_id(outbox_extension_relid("event"));
	Oid			single = InvalidOid;
	Oid			batch = InvalidOid;

	*schema = get_namespace_oid(schema_name, true);
	if (OidIsValid(*schema))
	{
		single = find_function(function_name, *schema, event);
		batch = find_function(function_name, *schema, get_array_type(event));
	}
	if (OidIsValid(single) && OidIsValid(batch))
		ereport(ERROR,
				(errcode(ERRCODE_AMBIGUOUS_FUNCTION),
				 errmsg("handler %s is there twice", handler),
				 errdetail("There is %s(outbox.event) and %s(outbox.event[]).", handler, handler),
				 errhint("Give them different names.")));
	if (!OidIsValid(single) && !OidIsValid(batch))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("handler function %s does not exist", handler),
				 errhint("Create %s(outbox.event), called for each event, or %s(outbox.event[]), called for a batch.",
						 handler, handler)));
	return OidIsValid(single) ? single : batch;
}

static void
check_handler_privileges(const char *handler, Oid function, Oid schema, Oid role, const char *role_name)
{
	bool		schema_missing = !outbox_compat_may_use_schema(schema, role);

	if (schema_missing || !outbox_compat_may_execute(function, role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not run handler %s", role_name, handler),
				 schema_missing ?
				 errhint("Grant it USAGE on the schema.") :
				 errhint("Grant it EXECUTE on the function.")));
}

static Oid
check_role(const char *role_name, Oid caller)
{
	Oid			role = get_role_oid(role_name, false);

	if (!outbox_compat_may_become(caller, role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be a member of role \"%s\" to let a handler run as it", role_name)));
	return role;
}

static void
check_handler_and_role(OutboxDefinition *definition, Oid caller)
{
	char	   *role_name = TextDatumGetCString(definition->values[DEF_RUN_AS]);
	Oid			role = check_role(role_name, caller);
	Oid			function;
	Oid			schema;
	char	   *schema_name;
	char	   *function_name;
	char	   *handler;

	if (definition->nulls[DEF_HANDLER])
		return;
	handler = parse_handler(TextDatumGetCString(definition->values[DEF_HANDLER]), &schema_name, &function_name);
	function = find_handler(handler, schema_name, function_name, &schema);
	check_function_kind(function, handler);
	check_handler_privileges(handler, function, schema, role, role_name);
	definition->values[DEF_HANDLER] = CStringGetTextDatum(handler);
}

void
outbox_definition_warn(const OutboxDefinition *definition)
{
	char	   *role_name = TextDatumGetCString(definition->values[DEF_RUN_AS]);

	if (!definition->nulls[DEF_HANDLER] && superuser_arg(get_role_oid(role_name, false)))
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("handler %s will run as superuser \"%s\"",
						TextDatumGetCString(definition->values[DEF_HANDLER]), role_name),
				 errhint("Name a role that may do no more than the handler has to: run_as => '...'.")));
}

/* ---------------------------------------------------------------- the whole */

void
outbox_definition_check(OutboxDefinition *definition, Oid caller, bool is_new, bool check_handler)
{
	check_event_types(definition);
	check_word(definition, DEF_ORDERING, "key", "none");
	check_integer(definition, DEF_LANES, OUTBOX_LANES_MAX);
	check_integer(definition, DEF_MAX_ATTEMPTS, MAX_ATTEMPTS_MAX);
	check_interval(definition, DEF_BACKOFF_BASE, 1, 365 * SECONDS(SECS_PER_DAY), "above 0 and at most 365 days");
	check_factor(definition);
	check_interval(definition, DEF_BACKOFF_MAX, 1, 365 * SECONDS(SECS_PER_DAY), "above 0 and at most 365 days");
	check_interval(definition, DEF_LEASE_DURATION, SECONDS(1), SECONDS(SECS_PER_DAY), "between 1 second and 1 day");
	check_interval(definition, DEF_HANDLER_TIMEOUT, SECONDS(1) / 10, SECONDS(SECS_PER_DAY), "between 100 milliseconds and 1 day");
	check_integer(definition, DEF_BATCH_SIZE, OUTBOX_BATCH_SIZE_MAX);
	if (is_new)
		check_start(definition);
	check_word(definition, DEF_ON_REVIEW, "block", "continue");
	check_error_lists(definition);
	if (check_handler)
		check_handler_and_role(definition, caller);
}

static bool
equal_values(const OutboxDefinition *a, const OutboxDefinition *b, int column)
{
	TypeCacheEntry *type;

	if (a->nulls[column] || b->nulls[column])
		return a->nulls[column] == b->nulls[column];
	type = lookup_type_cache(columns[column].type, TYPECACHE_EQ_OPR_FINFO);
	return DatumGetBool(FunctionCall2Coll(&type->eq_opr_finfo, C_COLLATION_OID, a->values[column], b->values[column]));
}

bool
outbox_definition_equals(const OutboxDefinition *a, const OutboxDefinition *b, StringInfo differing)
{
	int			length = differing->len;

	for (int i = 0; i < OUTBOX_DEFINITION_COLUMNS; i++)
	{
		if (!equal_values(a, b, i))
			appendStringInfo(differing, "%s%s", differing->len > length ? ", " : "", columns[i].name);
	}
	return differing->len == length;
}
