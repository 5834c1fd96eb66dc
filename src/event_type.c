/*
 * event_type.c - definitions of event types: their rules, and their compiled form.
 *
 * A backend reads all definitions at its first publish() and keeps them compiled in one memory
 * context, until the table's relcache entry is invalidated: whoever changes a row sends that message with
 * the change, so that the change counts in its own transaction from the next command on, elsewhere
 * from the commit on, and nowhere after a rollback.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "nodes/bitmapset.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "event_type.h"
#include "extension.h"
#include "guard.h"
#include "operator.h"
#include "pattern.h"
#include "sensitive.h"
#include "store.h"

#define PATHS_MAX			1000	/* of one list */
#define PAYLOAD_BYTES_MAX	(64 * 1024 * 1024)
#define STRING_LENGTH_MAX	(64 * 1024 * 1024)
#define DESCRIPTION_MAX		2000	/* bytes */

static const char *const column_names[OUTBOX_TYPE_COLUMNS] = {
	[ET_EVENT_TYPE] = "event_type",
	[ET_PAYLOAD_VERSION] = "payload_version",
	[ET_ALLOWED_KEYS] = "allowed_keys",
	[ET_REQUIRED_KEYS] = "required_keys",
	[ET_KEY_TYPES] = "key_types",
	[ET_IMPORTANCE] = "importance",
	[ET_MAX_PAYLOAD_BYTES] = "max_payload_bytes",
	[ET_EXEMPT_KEYS] = "exempt_keys",
	[ET_DESCRIPTION] = "description",
};

static const char *const type_names[] = {
	[TYPE_ANY] = "any",
	[TYPE_STRING] = "string",
	[TYPE_NUMBER] = "number",
	[TYPE_INTEGER] = "integer",
	[TYPE_BOOLEAN] = "boolean",
	[TYPE_UUID] = "uuid",
	[TYPE_TIMESTAMP] = "timestamp",
	[TYPE_ARRAY] = "array",
	[TYPE_OBJECT] = "object",
};

const char *
outbox_event_type_value_name(OutboxValueType type)
{
	return type_names[type];
}

/* ---------------------------------------------------------------- the tree */

static int
find_child(const OutboxKeyNode *node, const OutboxKeyStep *step)
{
	int			low = 0;
	int			high = node->nchildren;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (outbox_keypath_compare_keys(node->children[middle]->step.key, node->children[middle]->step.len,
										step->key, step->len) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool
is_child(const OutboxKeyNode *node, int i, const OutboxKeyStep *step)
{
	return i < node->nchildren &&
		outbox_keypath_compare_keys(node->children[i]->step.key, node->children[i]->step.len, step->key, step->len) == 0;
}

static OutboxKeyNode *
add_child(OutboxKeyNode *node, const OutboxKeyStep *step)
{
	int			i = find_child(node, step);
	OutboxKeyNode *child;

	if (is_child(node, i, step))
		return node->children[i];
	child = palloc0(sizeof(OutboxKeyNode));
	child->step = *step;
	if (node->nchildren == 0)
		node->children = palloc(sizeof(OutboxKeyNode *));
	else
		node->children = repalloc(node->children, (node->nchildren + 1) * sizeof(OutboxKeyNode *));
	memmove(&node->children[i + 1], &node->children[i], (node->nchildren - i) * sizeof(OutboxKeyNode *));
	node->children[i] = child;
	node->nchildren++;
	return child;
}

static OutboxKeyNode *
add_step(OutboxKeyNode *node, const OutboxKeyStep *step)
{
	if (step->key != NULL)
		return add_child(node, step);
	if (node->element == NULL)
		node->element = palloc0(sizeof(OutboxKeyNode));
	return node->element;
}

/* The node of a path, made when it is missing. */
static OutboxKeyNode *
add_path(OutboxKeyNode *root, const OutboxKeyPath *path)
{
	OutboxKeyNode *node = root;

	for (int i = 0; i < path->nsteps; i++)
		node = add_step(node, &path->steps[i]);
	return node;
}

/* ---------------------------------------------------------------- lists of paths */

OUTBOX_NORETURN static void
refuse_path(OutboxTypeColumn column, const char *path, const char *reason)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid path in %s: %s", column_names[column], outbox_keypath_quote(path)),
			 errdetail("%s", reason)));
}

static void
parse_path(OutboxTypeColumn column, const char *text, OutboxKeyPath *path)
{
	const char *reason = outbox_keypath_parse(text, strlen(text), path);

	if (reason != NULL)
		refuse_path(column, text, reason);
}

static int
compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

/* The elements of a list, sorted and each once; none when the list is null. */
static char **
read_list(OutboxTypeDefinition *definition, OutboxTypeColumn column, int *count)
{
	Datum	   *elements;
	char	  **list;
	int			n;

	*count = 0;
	if (definition->nulls[column])
		return palloc0(sizeof(char *));
	deconstruct_array(outbox_operator_check_list(definition->values[column], column_names[column]),
					  TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, &n);
	if (n > PATHS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too many paths in %s", column_names[column]),
				 errdetail("It has %d; at most %d are allowed.", n, PATHS_MAX)));
	list = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
		list[i] = TextDatumGetCString(elements[i]);
	qsort(list, n, sizeof(char *), compare_strings);
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || strcmp(list[i], list[*count - 1]) != 0)
			list[(*count)++] = list[i];
	}
	for (int i = 0; i < *count; i++)
		elements[i] = CStringGetTextDatum(list[i]);
	definition->values[column] = PointerGetDatum(construct_array(elements, *count, TEXTOID, -1, false, TYPALIGN_INT));
	return list;
}

/* ---------------------------------------------------------------- compiling: allowed_keys */

static void
allow_path(OutboxKeyNode *root, const OutboxKeyPath *path)
{
	OutboxKeyNode *node = root;

	for (int i = 0; i < path->nsteps; i++)
	{
		if (path->steps[i].key != NULL)
			node->object = true;
		else
			node->array = true;
		node = add_step(node, &path->steps[i]);
	}
	if (path->below)
		node->anything = true;
	else
		node->scalar = true;
}

static void
compile_allowed(OutboxEventType *type, OutboxTypeDefinition *definition)
{
	OutboxKeyPath path;
	char	  **list;
	int			n;

	list = read_list(definition, ET_ALLOWED_KEYS, &n);
	type->closed = !definition->nulls[ET_ALLOWED_KEYS];
	for (int i = 0; i < n; i++)
	{
		parse_path(ET_ALLOWED_KEYS, list[i], &path);
		allow_path(&type->root, &path);
	}
	/* "[].x" is for payloads that are arrays, and no list is for {} */
	if (type->closed && !type->root.array)
		type->root.object = true;
}

/* The node of a path, unless the list does not let it be. */
static OutboxKeyNode *
find_allowed(OutboxEventType *type, OutboxTypeColumn column, const char *text, const OutboxKeyPath *path)
{
	OutboxKeyNode *node = &type->root;
	bool		anything = !type->closed;

	for (int i = 0; i < path->nsteps; i++)
	{
		const OutboxKeyStep *step = &path->steps[i];
		bool		known = step->key == NULL ? node->element != NULL : is_child(node, find_child(node, step), step);

		anything |= node->anything;
		if (!known && !anything)
			refuse_path(column, text, "allowed_keys does not allow it.");
		node = add_step(node, step);
		/* not in the list itself: whatever it is, it is allowed */
		node->anything |= anything && !known;
	}
	return node;
}

/* ---------------------------------------------------------------- compiling: required_keys */

static void
require_child(OutboxKeyNode *parent, OutboxKeyNode *child, const char *text)
{
	if (child->required)
		return;
	for (int bit = 0; bit < OUTBOX_REQUIRED_MAX; bit++)
	{
		if (parent->required_children & (UINT64CONST(1) << bit))
			continue;
		child->required = true;
		child->required_bit = bit;
		parent->required_children |= UINT64CONST(1) << bit;
		return;
	}
	refuse_path(ET_REQUIRED_KEYS, text, "An object may have at most 64 required keys.");
}

/*
 * Each key of the path is required of the object above it, back to the payload, or to the
 * elements of an array: how many of these there are is not said.
 */
static void
require_path(OutboxEventType *type, const char *text, const OutboxKeyPath *path)
{
	OutboxKeyNode *node = &type->root;
	int			first = 0;

	if (path->below || path->steps[path->nsteps - 1].key == NULL)
		refuse_path(ET_REQUIRED_KEYS, text, "It must end with a key.");
	(void) find_allowed(type, ET_REQUIRED_KEYS, text, path);
	for (int i = 0; i < path->nsteps; i++)
	{
		if (path->steps[i].key == NULL)
			first = i + 1;
	}
	for (int i = 0; i < path->nsteps; i++)
	{
		OutboxKeyNode *next = add_step(node, &path->steps[i]);

		if (i >= first)
			require_child(node, next, text);
		node = next;
	}
}

static void
compile_required(OutboxEventType *type, OutboxTypeDefinition *definition)
{
	OutboxKeyPath path;
	char	  **list;
	int			n;

	list = read_list(definition, ET_REQUIRED_KEYS, &n);
	for (int i = 0; i < n; i++)
	{
		parse_path(ET_REQUIRED_KEYS, list[i], &path);
		require_path(type, list[i], &path);
	}
}

/* ---------------------------------------------------------------- compiling: key_types */

/* "string", "string(200)", ... ; false when it is no type */
static bool
parse_type(const char *name, OutboxValueType *type, int *max_length)
{
	char	   *end;
	long		length;

	*max_length = 0;
	for (int i = TYPE_STRING; i < lengthof(type_names); i++)
	{
		*type = i;
		if (strcmp(name, type_names[i]) == 0)
			return true;
	}
	*type = TYPE_STRING;
	if (strncmp(name, "string(", 7) != 0 || name[7] < '1' || name[7] > '9')
		return false;
	errno = 0;
	length = strtol(name + 7, &end, 10);
	if (errno != 0 || length > STRING_LENGTH_MAX || strcmp(end, ")") != 0)
		return false;
	*max_length = (int) length;
	return true;
}

static void
check_fits_list(const OutboxKeyNode *node, const char *text, OutboxValueType type)
{
	bool		fits;

	if (node->anything)
		return;
	if (type == TYPE_OBJECT)
		fits = node->object;
	else if (type == TYPE_ARRAY)
		fits = node->array;
	else
		fits = node->scalar;
	if (!fits)
		refuse_path(ET_KEY_TYPES, text, type == TYPE_OBJECT ? "allowed_keys allows no object there: list its keys, or \".*\"." :
					type == TYPE_ARRAY ? "allowed_keys allows no array there: list it with \"[]\"." :
					"allowed_keys allows only what is below it.");
}

static void
type_path(OutboxEventType *type, const char *text, OutboxValueType value_type, int max_length)
{
	OutboxKeyPath path;
	OutboxKeyNode *node;

	if (strcmp(text, "*") == 0)
	{
		if (value_type != TYPE_STRING || max_length == 0)
			refuse_path(ET_KEY_TYPES, text, "\"*\" is for all strings, and takes \"string(<characters>)\".");
		type->max_length = max_length;
		return;
	}
	parse_path(ET_KEY_TYPES, text, &path);
	if (path.below)
		refuse_path(ET_KEY_TYPES, text, "It must not end with \".*\".");
	node = find_allowed(type, ET_KEY_TYPES, text, &path);
	if (type->closed)
		check_fits_list(node, text, value_type);
	node->type = value_type;
	node->max_length = max_length;
}

static void
compile_key_types(OutboxEventType *type, OutboxTypeDefinition *definition)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	Jsonb	   *json;
	const char *key = "";

	if (definition->nulls[ET_KEY_TYPES])
		return;
	json = DatumGetJsonbP(definition->values[ET_KEY_TYPES]);
	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("key_types must be a JSON object of paths and types")));
	it = JsonbIteratorInit(&json->root);
	(void) JsonbIteratorNext(&it, &value, false);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_END_OBJECT)
	{
		OutboxValueType value_type;
		int			max_length;

		if (token == WJB_KEY)
		{
			key = pnstrdup(value.val.string.val, value.val.string.len);
			continue;
		}
		if (value.type != jbvString ||
			!parse_type(pnstrdup(value.val.string.val, value.val.string.len), &value_type, &max_length))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unknown type in key_types for %s", outbox_keypath_quote(key)),
					 errhint("The types are string, string(<characters>), number, integer, boolean, uuid, timestamp, array and object.")));
		type_path(type, key, value_type, max_length);
	}
}

/* ---------------------------------------------------------------- compiling: exempt_keys */

static const OutboxEventColumn exemptible_columns[] = {
	EV_ACTOR_ID, EV_AGGREGATE_ID, EV_EVENT_KEY, EV_DEDUP_KEY, EV_REQUEST_ID, EV_CORRELATION_ID
};

static bool
exempt_column(OutboxEventType *type, const char *name, uint32 detectors)
{
	for (int i = 0; i < lengthof(exemptible_columns); i++)
	{
		if (strcmp(name, outbox_guard_column_name(exemptible_columns[i])) == 0)
		{
			type->exempt_columns[exemptible_columns[i]] |= detectors;
			return true;
		}
	}
	return false;
}

/* [detector:]path, [detector:]@headers.path, [detector:]@column */
static void
exempt_path(OutboxEventType *type, const char *text)
{
	const char *path_text = text;
	const char *colon = strchr(text, ':');
	uint32		detectors = OUTBOX_DETECT_ALL;
	OutboxKeyNode *root = &type->root;
	OutboxKeyPath path;
	OutboxKeyNode *node;

	if (colon != NULL)
	{
		OutboxDetector detector = outbox_sensitive_find(text, colon - text);

		if (detector != DETECTED_NOTHING)
		{
			detectors = OUTBOX_DETECT(detector);
			path_text = colon + 1;
		}
		else if (text[0] != '"')
			refuse_path(ET_EXEMPT_KEYS, text, "There is no detector of that name; a key that begins with a word and a colon stands in double quotes.");
	}
	if (strncmp(path_text, "@headers.", 9) == 0)
	{
		path_text += 9;
		root = &type->headers;
	}
	else if (path_text[0] == '@')
	{
		if (!exempt_column(type, path_text + 1, detectors))
			refuse_path(ET_EXEMPT_KEYS, text, "\"@\" stands before headers, actor_id, aggregate_id, event_key, dedup_key, request_id or correlation_id; a key that begins with it stands in double quotes.");
		return;
	}
	parse_path(ET_EXEMPT_KEYS, path_text, &path);
	node = add_path(root, &path);
	if (path.below)
		node->exempt_below |= detectors;
	else
		node->exempt |= detectors;
}

static void
compile_exempt(OutboxEventType *type, OutboxTypeDefinition *definition)
{
	char	  **list;
	int			n;

	list = read_list(definition, ET_EXEMPT_KEYS, &n);
	for (int i = 0; i < n; i++)
		exempt_path(type, list[i]);
}

/* ---------------------------------------------------------------- the whole definition */

/* In the current memory context; raises errors for what is no definition. */
static void
compile(OutboxEventType *type, OutboxTypeDefinition *definition)
{
	memset(type, 0, sizeof(*type));
	type->event_type = TextDatumGetCString(definition->values[ET_EVENT_TYPE]);
	type->event_type_len = strlen(type->event_type);
	type->payload_version = TextDatumGetCString(definition->values[ET_PAYLOAD_VERSION]);
	type->payload_version_len = strlen(type->payload_version);
	if (!definition->nulls[ET_MAX_PAYLOAD_BYTES])
		type->max_payload_bytes = DatumGetInt32(definition->values[ET_MAX_PAYLOAD_BYTES]);
	compile_allowed(type, definition);
	compile_required(type, definition);
	compile_key_types(type, definition);
	compile_exempt(type, definition);
}

static void
check_names(const OutboxTypeDefinition *definition)
{
	char	   *type;
	char	   *version;
	const char *reason;

	for (int i = ET_EVENT_TYPE; i <= ET_PAYLOAD_VERSION; i++)
	{
		if (definition->nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not be null", column_names[i])));
	}
	type = TextDatumGetCString(definition->values[ET_EVENT_TYPE]);
	version = TextDatumGetCString(definition->values[ET_PAYLOAD_VERSION]);
	reason = outbox_pattern_check_type(type, strlen(type));
	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid event_type"),
				 errdetail("%s", reason)));
	if (strncmp(type, OUTBOX_SCHEMA, strlen(OUTBOX_SCHEMA)) == 0 &&
		(type[strlen(OUTBOX_SCHEMA)] == '\0' || type[strlen(OUTBOX_SCHEMA)] == '.'))
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("event types that begin with \"%s\" are reserved", OUTBOX_SCHEMA)));
	if (version[0] == '\0' || strlen(version) > OUTBOX_CONTEXT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload_version must have 1 to %d bytes", OUTBOX_CONTEXT_MAX)));
}

static void
check_rest(const OutboxTypeDefinition *definition)
{
	char	   *importance = TextDatumGetCString(definition->values[ET_IMPORTANCE]);
	int			bytes = definition->nulls[ET_MAX_PAYLOAD_BYTES] ? 1 : DatumGetInt32(definition->values[ET_MAX_PAYLOAD_BYTES]);

	if (strcmp(importance, "high") != 0 && strcmp(importance, "medium") != 0 && strcmp(importance, "low") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for importance: \"%s\"", importance),
				 errhint("It must be 'high', 'medium' or 'low'.")));
	if (bytes < 1 || bytes > PAYLOAD_BYTES_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_payload_bytes must be between 1 and %d, not %d", PAYLOAD_BYTES_MAX, bytes)));
	if (!definition->nulls[ET_DESCRIPTION] &&
		VARSIZE_ANY_EXHDR(DatumGetTextPP(definition->values[ET_DESCRIPTION])) > DESCRIPTION_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("description must not be longer than %d bytes", DESCRIPTION_MAX)));
}

void
outbox_event_type_check(OutboxTypeDefinition *definition)
{
	OutboxEventType compiled;

	if (definition->nulls[ET_IMPORTANCE])
	{
		definition->values[ET_IMPORTANCE] = CStringGetTextDatum("medium");
		definition->nulls[ET_IMPORTANCE] = false;
	}
	check_names(definition);
	check_rest(definition);
	compile(&compiled, definition);
}

/* ---------------------------------------------------------------- the definitions of this database */

static MemoryContext cache_context = NULL;
static OutboxEventType **cache = NULL;	/* sorted by type and version */
static int	cache_count = 0;
static bool cache_valid = false;
static Oid	cache_relid = InvalidOid;

static void
forget_cache(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == cache_relid)
		cache_valid = false;
}

static int
compare_bytes(const char *a, int alen, const char *b, int blen)
{
	int			order = memcmp(a, b, Min(alen, blen));

	return order != 0 ? order : alen - blen;
}

static int
compare_types(const void *a, const void *b)
{
	const OutboxEventType *x = *(OutboxEventType *const *) a;
	const OutboxEventType *y = *(OutboxEventType *const *) b;
	int			order = compare_bytes(x->event_type, x->event_type_len, y->event_type, y->event_type_len);

	if (order != 0)
		return order;
	return compare_bytes(x->payload_version, x->payload_version_len, y->payload_version, y->payload_version_len);
}

/*
 * All rows, by direct access: publishers have no rights on the table.  What is there now counts, not
 * what the transaction's snapshot may see.
 */
static void
read_definitions(void)
{
	Relation	rel = outbox_store_open(cache_relid, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	int			room = 16;

	cache = palloc(room * sizeof(OutboxEventType *));
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		OutboxTypeDefinition definition;

		for (int i = 0; i < OUTBOX_TYPE_COLUMNS; i++)
			definition.values[i] = slot_getattr(slot, i + 1, &definition.nulls[i]);
		if (cache_count == room)
			cache = repalloc(cache, (room *= 2) * sizeof(OutboxEventType *));
		cache[cache_count] = palloc(sizeof(OutboxEventType));
		compile(cache[cache_count], &definition);
		cache_count++;
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

static void
load_cache(void)
{
	MemoryContext caller;

	if (cache_context == NULL)
	{
		cache_context = AllocSetContextCreate(TopMemoryContext, "outbox event types", ALLOCSET_DEFAULT_SIZES);
		CacheRegisterRelcacheCallback(forget_cache, (Datum) 0);
	}
	MemoryContextReset(cache_context);
	cache = NULL;
	cache_count = 0;
	cache_relid = outbox_extension_relid("event_type_definition");
	cache_valid = true;			/* before reading: an invalidation meanwhile counts */
	caller = MemoryContextSwitchTo(cache_context);
	PG_TRY();
	{
		read_definitions();
		qsort(cache, cache_count, sizeof(OutboxEventType *), compare_types);
	}
	PG_CATCH();
	{
		cache_valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
}

/* The first one that is not below. */
static int
find_from(const OutboxEventType *wanted)
{
	int			low = 0;
	int			high = cache_count;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (compare_types(&cache[middle], &wanted) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool
has_type(int i, const char *type, int len)
{
	return i >= 0 && i < cache_count &&
		compare_bytes(cache[i]->event_type, cache[i]->event_type_len, type, len) == 0;
}

OutboxTypeFound
outbox_event_type_find(const char *type, int type_len, const char *version, int version_len,
					   const OutboxEventType **found)
{
	OutboxEventType wanted;
	int			i;

	*found = NULL;
	/* what was committed a moment ago counts, also late in a long transaction */
	AcceptInvalidationMessages();
	if (!cache_valid)
		load_cache();
	if (cache_count == 0)
		return TYPE_UNKNOWN;
	wanted.event_type = type;
	wanted.event_type_len = type_len;
	wanted.payload_version = version;
	wanted.payload_version_len = version_len;
	i = find_from(&wanted);
	if (has_type(i, type, type_len) &&
		compare_bytes(cache[i]->payload_version, cache[i]->payload_version_len, version, version_len) == 0)
	{
		*found = cache[i];
		return TYPE_FOUND;
	}
	return has_type(i, type, type_len) || has_type(i - 1, type, type_len) ? TYPE_OTHER_VERSION : TYPE_UNKNOWN;
}

void
outbox_event_type_changed(void)
{
	CacheInvalidateRelcacheByRelid(outbox_extension_relid("event_type_definition"));
	CommandCounterIncrement();
}
