/*
 * api_test.c - the pure rules, callable from SQL, and a second router.
 *
 * The install script declares none of these functions: the tests
 * do, as superuser, to try the rules without a delivery around them.
 */
#include "outbox.h"

#include "commands/dbcommands.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "backoff.h"
#include "children.h"
#include "histogram.h"
#include "pattern.h"

PG_FUNCTION_INFO_V1(outbox_test_backoff_delay);
PG_FUNCTION_INFO_V1(outbox_test_check);
PG_FUNCTION_INFO_V1(outbox_test_matches);
PG_FUNCTION_INFO_V1(outbox_test_key_hash);
PG_FUNCTION_INFO_V1(outbox_test_quantile);
PG_FUNCTION_INFO_V1(outbox_test_start_router);

/* (attempt integer, base bigint, factor float8, max bigint, spread float8) returns bigint */
Datum
outbox_test_backoff_delay(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(outbox_backoff_delay(PG_GETARG_INT32(0), PG_GETARG_INT64(1), PG_GETARG_FLOAT8(2),
										 PG_GETARG_INT64(3), PG_GETARG_FLOAT8(4)));
}

/* (rule text, value text) returns text: the reason, or null when it is well-formed */
Datum
outbox_test_check(PG_FUNCTION_ARGS)
{
	char	   *rule = text_to_cstring(PG_GETARG_TEXT_PP(0));
	text	   *value = PG_GETARG_TEXT_PP(1);
	const char *data = VARDATA_ANY(value);
	int			len = VARSIZE_ANY_EXHDR(value);
	const char *reason;

	if (strcmp(rule, "type") == 0)
		reason = outbox_pattern_check_type(data, len);
	else if (strcmp(rule, "pattern") == 0)
		reason = outbox_pattern_check(data, len);
	else if (strcmp(rule, "error code") == 0)
		reason = outbox_pattern_check_error_code(data, len);
	else
		reason = outbox_pattern_check_name(data, len);
	if (reason == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(reason));
}

/* (pattern text, type text) returns boolean */
Datum
outbox_test_matches(PG_FUNCTION_ARGS)
{
	text	   *pattern = PG_GETARG_TEXT_PP(0);
	text	   *type = PG_GETARG_TEXT_PP(1);

	PG_RETURN_BOOL(outbox_pattern_matches(VARDATA_ANY(pattern), VARSIZE_ANY_EXHDR(pattern),
										  VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type)));
}

/* (tenant text, key text) returns bigint */
Datum
outbox_test_key_hash(PG_FUNCTION_ARGS)
{
	text	   *tenant = PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0);
	text	   *key = PG_GETARG_TEXT_PP(1);

	PG_RETURN_INT64((int64) outbox_pattern_key_hash(tenant ? VARDATA_ANY(tenant) : NULL,
													tenant ? VARSIZE_ANY_EXHDR(tenant) : 0,
													VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)));
}

/* (us bigint[], fraction float8) returns float8: the quantile of a histogram of these times */
Datum
outbox_test_quantile(PG_FUNCTION_ARGS)
{
	ArrayType  *times = PG_GETARG_ARRAYTYPE_P(0);
	uint64		counts[OUTBOX_HISTOGRAM_BUCKETS] = {0};
	int			n = ArrayGetNItems(ARR_NDIM(times), ARR_DIMS(times));

	for (int i = 0; i < n; i++)
		counts[outbox_histogram_bucket(((int64 *) ARR_DATA_PTR(times))[i])]++;
	PG_RETURN_FLOAT8(outbox_histogram_quantile(counts, PG_GETARG_FLOAT8(1)));
}

/* () returns integer: the pid of a router beside the launcher's, or null while none can be had */
Datum
outbox_test_start_router(PG_FUNCTION_ARGS)
{
	OutboxChild *child = MemoryContextAllocZero(TopMemoryContext, sizeof(OutboxChild));
	pid_t		pid;

	if (outbox_children_start(child, MyDatabaseId, get_database_name(MyDatabaseId), OUTBOX_ROUTER) != START_DONE ||
		WaitForBackgroundWorkerStartup(child->handle, &pid) != BGWH_STARTED)
		PG_RETURN_NULL();
	PG_RETURN_INT32(pid);
}
