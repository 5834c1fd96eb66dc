/*
 * api_place.c - outbox.delivery, of one event, without reading all that is open.
 *
 * Three of the tables behind that view have no index on the event's id, since an index entry would cost the hot path.  What they have is an
 * order in which an event has its place (event_place.c).  So the view asks of each of their rows whether it may_be_there: that
 * is always true, but the function's support tells the planner what follows from it when the query fixes the event: that
 * rows of no other place need be read.  As a condition on an index, which is taken or left; a query that does
 * not fix the event goes on as if nothing had been asked.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "nodes/supportnodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "parser/parse_func.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "event_place.h"
#include "open_scan.h"
#include "tenant.h"

PG_FUNCTION_INFO_V1(outbox_may_be_there);
PG_FUNCTION_INFO_V1(outbox_place_support);
PG_FUNCTION_INFO_V1(outbox_lane_to_search);
PG_FUNCTION_INFO_V1(outbox_gates_to_search);
PG_FUNCTION_INFO_V1(outbox_due_times_to_search);

#define READ_EVENTS_MAX		1000	/* of as many the rows are read; more may be anywhere */

/* ---------------------------------------------------------------- planning */

/* A value that does not change while the table is scanned. */
static bool
is_fixed(Node *value, Oid type)
{
	return exprType(value) == type && !contain_var_clause(value) && !contain_volatile_functions(value) && !contain_subplans(value);
}

static Expr *
make_array(Node *id)
{
	ArrayExpr  *array = makeNode(ArrayExpr);

	array->array_typeid = UUIDARRAYOID;
	array->element_typeid = UUIDOID;
	array->elements = list_make1(copyObject(id));
	array->location = -1;
	return (Expr *) array;
}

/* An array of the ids that the condition leaves to event_id, or NULL. */
static Expr *
ids_of_condition(Node *condition, Node *event_id)
{
	if (IsA(condition, OpExpr) && list_length(((OpExpr *) condition)->args) == 2 &&
		get_opcode(((OpExpr *) condition)->opno) == F_UUID_EQ)
	{
		Node	   *left = linitial(((OpExpr *) condition)->args);
		Node	   *right = lsecond(((OpExpr *) condition)->args);

		if (equal(left, event_id) && is_fixed(right, UUIDOID))
			return make_array(right);
		if (equal(right, event_id) && is_fixed(left, UUIDOID))
			return make_array(left);
	}
	if (IsA(condition, ScalarArrayOpExpr) && ((ScalarArrayOpExpr *) condition)->useOr &&
		get_opcode(((ScalarArrayOpExpr *) condition)->opno) == F_UUID_EQ)
	{
		Node	   *left = linitial(((ScalarArrayOpExpr *) condition)->args);
		Node	   *right = lsecond(((ScalarArrayOpExpr *) condition)->args);

		if (equal(left, event_id) && is_fixed(right, UUIDARRAYOID))
			return copyObject((Expr *) right);
	}
	return NULL;
}

/* Among the conditions of the table are those that follow from equalities elsewhere in the query. */
static Expr *
ids_in_query(RelOptInfo * rel, Node *event_id)
{
	ListCell   *cell;

	foreach(cell, rel->baserestrictinfo)
	{
		Expr	   *ids = ids_of_condition((Node *) lfirst_node(RestrictInfo, cell)->clause, event_id);

		if (ids != NULL)
			return ids;
	}
	return NULL;
}

/* What the column must be: one value, or one of an array; NULL when the extension is of another version. */
static Node *
make_condition(SupportRequestIndexCondition *request, Node *column, const char *function, List *args, Oid result)
{
	Oid			type = exprType(column);
	Oid			operator = get_opfamily_member(request->opfamily, type, type, BTEqualStrategyNumber);
	ScalarArrayOpExpr *any;
	Oid			argtypes[3];
	Oid			funcid;
	Expr	   *value;

	for (int i = 0; i < list_length(args); i++)
		argtypes[i] = exprType(list_nth(args, i));
	funcid = LookupFuncName(list_make2(makeString(pstrdup(OUTBOX_SCHEMA)), makeString(pstrdup(function))),
							list_length(args), argtypes, true);
	if (!OidIsValid(funcid) || get_func_rettype(funcid) != result || !OidIsValid(operator))
		return NULL;
	value = (Expr *) makeFuncExpr(funcid, result, args, InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL);
	if (result == type)
		return (Node *) make_opclause(operator, BOOLOID, false, copyObject((Expr *) column), value, InvalidOid, InvalidOid);
	any = makeNode(ScalarArrayOpExpr);
	any->opno = operator;
	any->opfuncid = get_opcode(operator);
	any->useOr = true;
	any->args = list_make2(copyObject(column), value);
	any->location = -1;
	return (Node *) any;
}

/* may_be_there(column, ..., event_id): a condition on the column, or NULL. */
static Node *
condition_of_place(SupportRequestIndexCondition *request)
{
	List	   *args = ((FuncExpr *) request->node)->args;
	Node	   *column = linitial(args);
	Expr	   *ids;

	if (request->indexarg != 0 || request->index->relam != BTREE_AM_OID)
		return NULL;
	ids = ids_in_query(request->index->rel, llast(args));
	if (ids == NULL)
		return NULL;
	switch (exprType(column))
	{
		case INT4OID:
			if (contain_var_clause(lsecond(args)) || contain_var_clause(lthird(args)))
				return NULL;
			return make_condition(request, column, "lane_to_search",
								  list_make3(copyObject(lsecond(args)), copyObject(lthird(args)), ids), INT4OID);
		case INT8OID:
			return make_condition(request, column, "gates_to_search", list_make1(ids), INT8ARRAYOID);
		case TIMESTAMPTZOID:
			return make_condition(request, column, "due_times_to_search", list_make1(ids), TIMESTAMPTZARRAYOID);
		default:
			return NULL;
	}
}

/* of the functions below that are called may_be_there */
Datum
outbox_place_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);
	Node	   *condition = NULL;

	if (IsA(request, SupportRequestIndexCondition) && is_funcclause(((SupportRequestIndexCondition *) request)->node))
		condition = condition_of_place((SupportRequestIndexCondition *) request);
	PG_RETURN_POINTER(condition == NULL ? NULL : list_make1(condition));
}

/* may_be_there(lane, subscription_id, its_lane, event_id), (gate_id, event_id), (due_at, event_id) */
Datum
outbox_may_be_there(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(true);
}

/* ---------------------------------------------------------------- looking */

/* the events that a query asks for */
typedef struct Asked
{
	ArrayType  *ids;
	bool		too_many;		/* their rows are not read: they may be anywhere */
	int			n;
	OutboxEventPlace *places;
	OutboxGeneration *generations;
	int			ngenerations;
} Asked;

static int
ids_of_array(ArrayType *array, Datum **ids, bool **nulls)
{
	int			n;

	deconstruct_array(array, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, ids, nulls, &n);
	return n;
}

static void
read_places(ArrayType *array, Asked *asked)
{
	Datum	   *ids;
	bool	   *nulls;
	int			n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));

	*asked = (Asked)
	{
		.too_many = n > READ_EVENTS_MAX
	};
	if (!asked->too_many)
	{
		n = ids_of_array(array, &ids, &nulls);
		asked->places = palloc(Max(1, n) * sizeof(OutboxEventPlace));
		for (int i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (!nulls[i])
				outbox_event_place_read(DatumGetUUIDP(ids[i]), &asked->places[asked->n++]);
		}
		asked->ngenerations = outbox_event_place_generations(GetActiveSnapshot(), &asked->generations);
	}
	asked->ids = array;
}

/* what an expression asked for last */
typedef struct Remembered
{
	MemoryContext context;
	Asked		asked;
} Remembered;

/* A query asks of each lane: the events' rows are read once. */
static const Asked *
remember_places(FmgrInfo *flinfo, ArrayType *ids)
{
	Remembered *last = flinfo->fn_extra;
	MemoryContext caller;

	if (last == NULL)
	{
		last = flinfo->fn_extra = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(Remembered));
		last->context = AllocSetContextCreate(flinfo->fn_mcxt, "outbox places of events", ALLOCSET_SMALL_SIZES);
	}
	if (last->asked.ids != NULL && VARSIZE(last->asked.ids) == VARSIZE(ids) && memcmp(last->asked.ids, ids, VARSIZE(ids)) == 0)
		return &last->asked;
	last->asked.ids = NULL;
	MemoryContextReset(last->context);
	caller = MemoryContextSwitchTo(last->context);
	read_places(DatumGetArrayTypePCopy(PointerGetDatum(ids)), &last->asked);
	MemoryContextSwitchTo(caller);
	return &last->asked;
}

/* lane_to_search(subscription_id, lane, event_ids): the lane, or null when none of the events can be in it */
Datum
outbox_lane_to_search(PG_FUNCTION_ARGS)
{
	int32		subscription_id = PG_GETARG_INT32(0);
	int32		lane = PG_GETARG_INT32(1);
	const Asked *asked = remember_places(fcinfo->flinfo, PG_GETARG_ARRAYTYPE_P(2));

	if (asked->too_many)
		PG_RETURN_INT32(lane);
	for (int i = 0; i < asked->n; i++)
	{
		const OutboxEventPlace *place = &asked->places[i];

		if (outbox_tenant_is_visible(place->tenant_id) &&
			outbox_event_place_may_be_in(place, asked->generations, asked->ngenerations, subscription_id, lane))
			PG_RETURN_INT32(lane);
	}
	PG_RETURN_NULL();
}

/* bigints, or times */
typedef struct Found
{
	int			n;
	int			capacity;
	Datum	   *values;
} Found;

static void
add_value(Found *found, int64 value)
{
	if (found->n == found->capacity)
	{
		found->capacity = Max(16, found->capacity * 2);
		found->values = found->values == NULL ? palloc(found->capacity * sizeof(Datum)) :
			repalloc(found->values, found->capacity * sizeof(Datum));
	}
	found->values[found->n++] = Int64GetDatum(value);
}

static bool
add_gate(int64 gate_id, void *argument)
{
	add_value(argument, gate_id);
	return true;
}

/* The events whose rows are not in the log, or were not read; NULL: there is none. */
static HTAB *
collect_unknown(const Asked *asked)
{
	HASHCTL		ctl = {.keysize = sizeof(pg_uuid_t), .entrysize = sizeof(pg_uuid_t), .hcxt = CurrentMemoryContext};
	HTAB	   *unknown = hash_create("outbox unknown events", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	Datum	   *ids;
	bool	   *nulls;
	int			n = asked->too_many ? ids_of_array(asked->ids, &ids, &nulls) : 0;

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!nulls[i])
			(void) hash_search(unknown, DatumGetUUIDP(ids[i]), HASH_ENTER, NULL);
	}
	for (int i = 0; i < asked->n; i++)
	{
		if (!asked->places[i].known && outbox_tenant_is_visible((Datum) 0))
			(void) hash_search(unknown, &asked->places[i].event_id, HASH_ENTER, NULL);
	}
	if (hash_get_num_entries(unknown) > 0)
		return unknown;
	hash_destroy(unknown);
	return NULL;
}

/* The first column of the rows that have them. */
static void
add_rows_of_unknown(const Asked *asked, const char *relname, const char *index, int id_column, Found *found)
{
	HTAB	   *unknown = collect_unknown(asked);
	OutboxScan	scan;

	if (unknown == NULL)
		return;
	outbox_open_scan_begin(&scan, relname, index, GetActiveSnapshot(), 1);
	outbox_open_scan_seek(&scan, 0, BTGreaterEqualStrategyNumber, Int64GetDatum(PG_INT64_MIN));
	while (outbox_store_next(&scan, true))
	{
		bool		isnull;
		pg_uuid_t  *id = DatumGetUUIDP(slot_getattr(scan.slot, id_column, &isnull));

		CHECK_FOR_INTERRUPTS();
		if (hash_search(unknown, id, HASH_FIND, NULL) != NULL && outbox_tenant_event_is_visible(id))
			add_value(found, outbox_open_scan_int64(&scan, 1));
	}
	outbox_store_end_scan(&scan);
	hash_destroy(unknown);
}

/* gates_to_search(event_ids): behind which the events may be parked */
Datum
outbox_gates_to_search(PG_FUNCTION_ARGS)
{
	Asked		asked;
	Found		gates = {0};

	read_places(PG_GETARG_ARRAYTYPE_P(0), &asked);
	for (int i = 0; i < asked.n; i++)
	{
		if (asked.places[i].known && outbox_tenant_is_visible(asked.places[i].tenant_id))
			outbox_event_place_walk_gates(&asked.places[i], asked.generations, asked.ngenerations, GetActiveSnapshot(), add_gate, &gates);
	}
	add_rows_of_unknown(&asked, "parked", "parked_pkey", 3, &gates);
	PG_RETURN_ARRAYTYPE_P(construct_array(gates.values, gates.n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* due_times_to_search(event_ids): at which the events may be put aside; due_at is a copy of the event's deliver_at */
Datum
outbox_due_times_to_search(PG_FUNCTION_ARGS)
{
	Asked		asked;
	Found		times = {0};

	read_places(PG_GETARG_ARRAYTYPE_P(0), &asked);
	for (int i = 0; i < asked.n; i++)
	{
		if (asked.places[i].known && !TIMESTAMP_IS_NOBEGIN(asked.places[i].due_at) && outbox_tenant_is_visible(asked.places[i].tenant_id))
			add_value(&times, asked.places[i].due_at);
	}
	add_rows_of_unknown(&asked, "delayed", "delayed_pkey", 2, &times);
	PG_RETURN_ARRAYTYPE_P(construct_array(times.values, times.n, TIMESTAMPTZOID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}
