/*
 * payload.c - one pass over a payload.
 *
 * The document's keys are followed through the type's tree of keys (event_type.c), and each key and
 * value is shown to the detectors (sensitive.c).  jsonb keeps the keys of an object in the order in which the
 * tree keeps them, so the two are merged and nothing is searched for.
 *
 * What is wrong is told by its path, never by its value; the path is made only then.
 */
#include "outbox.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#include "payload.h"

/* bytes of a stored number that may have 13 digits; shorter ones are not looked at closely */
#define LONG_NUMBER_BYTES	(VARHDRSZ + 2 + 4 * (int) sizeof(int16))

/* what is known of a place in the document, before its value is read */
typedef struct Place
{
	const OutboxKeyNode *node;	/* NULL: the type does not know it */
	bool		anything;		/* nothing is asked of it, nor of what is below */
	uint32		enabled;		/* detectors that look here */
	uint32		enabled_below;
	uint32		classes;		/* of its key */
} Place;

/* an object or array that is open */
typedef struct Level
{
	Place		place;
	bool		is_array;
	int			next_child;		/* of the node's children, where the merge is */
	uint64		missing;		/* required children not seen yet */
	OutboxKeyStep step;			/* the key at hand; {NULL, 0}: an element */
} Level;

#define LEVELS_AT_ONCE 8

typedef struct Walk
{
	const OutboxEventType *type;
	bool		closed;			/* keys must be known */
	bool		detect;
	OutboxFinding *wrong;
	OutboxFinding *sensitive;
	int			depth;
	int			room;
	Level	   *levels;
	Level		first_levels[LEVELS_AT_ONCE];
} Walk;

/* ---------------------------------------------------------------- findings */

/* The way to the place at hand: the steps of all open levels, and perhaps one more. */
static char *
make_path(const Walk *walk, const OutboxKeyStep *last)
{
	OutboxKeyStep *steps = palloc((walk->depth + 1) * sizeof(OutboxKeyStep));
	int			n = 0;
	int			levels = last != NULL ? walk->depth - 1 : walk->depth;

	for (int i = 0; i < levels; i++)
		steps[n++] = walk->levels[i].step;
	if (last != NULL)
		steps[n++] = *last;
	return outbox_keypath_show(steps, n);
}

static void
note_wrong(Walk *walk, OutboxFault fault, const OutboxKeyNode *node)
{
	if (walk->wrong->fault != FAULT_NONE)
		return;
	walk->wrong->fault = fault;
	if (fault == FAULT_SCALAR)
		walk->wrong->type = node->object ? TYPE_OBJECT : TYPE_ARRAY;
	else
		walk->wrong->type = node != NULL ? node->type : TYPE_ANY;
	walk->wrong->max_length = node != NULL && node->max_length > 0 ? node->max_length :
		(walk->type != NULL ? walk->type->max_length : 0);
	walk->wrong->path = make_path(walk, NULL);
}

static void
note_sensitive(Walk *walk, OutboxDetector detector)
{
	if (detector == DETECTED_NOTHING || walk->sensitive->fault != FAULT_NONE)
		return;
	walk->sensitive->fault = FAULT_SENSITIVE;
	walk->sensitive->detector = detector;
	walk->sensitive->path = make_path(walk, NULL);
}

/* ---------------------------------------------------------------- places */

static void
enter_node(Place *place, const OutboxKeyNode *node)
{
	place->node = node;
	if (node == NULL)
		return;
	place->anything |= node->anything;
	place->enabled_below &= ~node->exempt_below;
	place->enabled = place->enabled_below & ~node->exempt;
}

/* Forward to the child of that name, which comes later in the same order. */
static const OutboxKeyNode *
advance_to(Level *level, const OutboxKeyStep *key)
{
	const OutboxKeyNode *node = level->place.node;

	while (node != NULL && level->next_child < node->nchildren)
	{
		const OutboxKeyNode *child = node->children[level->next_child];
		int			order = outbox_keypath_compare_keys(child->step.key, child->step.len, key->key, key->len);

		if (order > 0)
			return NULL;
		level->next_child++;
		if (order == 0)
			return child;
	}
	return NULL;
}

/* Keys and elements come within something that is open. */
static Level *
innermost(Walk *walk)
{
	if (walk->depth == 0)
		pg_unreachable();
	return &walk->levels[walk->depth - 1];
}

static void
open_place(const Level *level, Place *place)
{
	place->anything = level->place.anything;
	place->enabled = place->enabled_below = level->place.enabled_below;
	place->classes = 0;
}

/* The place of a key of the innermost object. */
static void
enter_key(Walk *walk, const JsonbValue *key, Place *place)
{
	Level	   *level = innermost(walk);
	OutboxDetector in_key;

	level->step.key = key->val.string.val;
	level->step.len = key->val.string.len;
	open_place(level, place);
	enter_node(place, advance_to(level, &level->step));
	if (place->node == NULL && walk->closed && !place->anything)
		note_wrong(walk, FAULT_NOT_ALLOWED, NULL);
	if (!walk->detect)
		return;
	place->classes = outbox_sensitive_key(level->step.key, level->step.len, &in_key);
	if (place->classes & KEY_GENERIC)
		place->classes |= level->place.classes;
	if (in_key != DETECTED_NOTHING && (place->enabled & OUTBOX_DETECT(in_key)))
		note_sensitive(walk, in_key);
}

/* The place of the elements of the innermost array: their key is the array's. */
static void
enter_element(Walk *walk, Place *place)
{
	const Level *level = innermost(walk);

	open_place(level, place);
	enter_node(place, level->place.node != NULL ? level->place.node->element : NULL);
	place->classes = level->place.classes;
}

/* ---------------------------------------------------------------- types of values */

static int
count_digits(const char *text, int len)
{
	int			n = 0;

	while (n < len && text[n] >= '0' && text[n] <= '9')
		n++;
	return n;
}

static bool
is_uuid(const char *text, int len)
{
	if (len != 36)
		return false;
	for (int i = 0; i < 36; i++)
	{
		bool		hyphen = i == 8 || i == 13 || i == 18 || i == 23;

		if (hyphen ? text[i] != '-' : !isxdigit((unsigned char) text[i]))
			return false;
	}
	return true;
}

/* Moves *at over n digits, whose value must lie in the range. */
static bool
take_number(const char *text, int len, int *at, int n, int min, int max, int *value)
{
	*value = 0;
	if (*at + n > len || count_digits(text +*at, n) < n)
		return false;
	for (int i = 0; i < n; i++)
		*value = *value * 10 + text[(*at)++] - '0';

	return *value >= min && *value <= max;
}

static bool
take_character(const char *text, int len, int *at, const char *set)
{
	if (*at >= len || text[*at] == '\0' || strchr(set, text[*at]) == NULL)
		return false;
	(*at)++;
	return true;
}

static bool
take_zone(const char *text, int len, int *at)
{
	int			value;

	if (*at == len || take_character(text, len, at, "Zz"))
		return true;
	if (!take_character(text, len, at, "+-") || !take_number(text, len, at, 2, 0, 15, &value))
		return false;
	if (*at == len)
		return true;
	(void) take_character(text, len, at, ":");
	return take_number(text, len, at, 2, 0, 59, &value);
}

/* ISO 8601: 2026-03-01T12:30[:15[.25]][Z|+09:00], with a T or a blank. */
static bool
is_timestamp(const char *text, int len)
{
	int			at = 0;
	int			year;
	int			month;
	int			day;
	int			value;

	if (!take_number(text, len, &at, 4, 1, 9999, &year) || !take_character(text, len, &at, "-") ||
		!take_number(text, len, &at, 2, 1, 12, &month) || !take_character(text, len, &at, "-") ||
		!take_number(text, len, &at, 2, 1, 31, &day) || day > day_tab[isleap(year)][month - 1] ||
		!take_character(text, len, &at, "Tt ") ||
		!take_number(text, len, &at, 2, 0, 24, &value) || !take_character(text, len, &at, ":") ||
		!take_number(text, len, &at, 2, 0, 59, &value))
		return false;
	if (take_character(text, len, &at, ":"))
	{
		if (!take_number(text, len, &at, 2, 0, 60, &value))
			return false;
		if (take_character(text, len, &at, ".,"))
		{
			int			digits = count_digits(text +at, len - at);

			if (digits == 0)
				return false;
			at += digits;
		}
	}
	return take_zone(text, len, &at) && at == len;
}

static bool
is_integer(Numeric number)
{
	Datum		value = NumericGetDatum(number);

	if (DatumGetInt32(DirectFunctionCall1(numeric_scale, value)) == 0)
		return true;
	return DatumGetInt32(DirectFunctionCall1(numeric_scale, DirectFunctionCall1(numeric_trim_scale, value))) == 0;
}

static bool
is_of_type(const JsonbValue *value, OutboxValueType type)
{
	const char *text = value->val.string.val;
	int			len = value->val.string.len;

	switch (type)
	{
		case TYPE_ANY:
			return true;
		case TYPE_STRING:
			return value->type == jbvString;
		case TYPE_NUMBER:
			return value->type == jbvNumeric;
		case TYPE_INTEGER:
			return value->type == jbvNumeric && is_integer(value->val.numeric);
		case TYPE_BOOLEAN:
			return value->type == jbvBool;
		case TYPE_UUID:
			return value->type == jbvString && is_uuid(text, len);
		case TYPE_TIMESTAMP:
			return value->type == jbvString && is_timestamp(text, len);
		case TYPE_ARRAY:
		case TYPE_OBJECT:
			return false;
	}
	return false;
}

/* ---------------------------------------------------------------- scalars */

static void
check_against_type(Walk *walk, const JsonbValue *value, const Place *place)
{
	const OutboxKeyNode *node = place->node;
	int			max_length = walk->type->max_length;

	if (walk->closed && !place->anything && (node == NULL || !node->scalar))
		note_wrong(walk, node != NULL && (node->object || node->array) ? FAULT_SCALAR : FAULT_NOT_ALLOWED, node);
	if (node != NULL && !is_of_type(value, node->type))
		note_wrong(walk, FAULT_TYPE, node);
	if (node != NULL && node->max_length > 0)
		max_length = node->max_length;
	if (max_length > 0 && value->type == jbvString && value->val.string.len > max_length &&
		pg_mbstrlen_with_len(value->val.string.val, value->val.string.len) > max_length)
		note_wrong(walk, FAULT_LENGTH, node);
}

/* 10^20: a number of more digits is nobody's */
static Datum
get_digits_limit(void)
{
	static Datum limit = 0;

	if (limit == 0)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		Datum		root = NumericGetDatum(int64_to_numeric(INT64CONST(10000000000)));

		limit = DirectFunctionCall2(numeric_mul, root, root);
		pfree(DatumGetPointer(root));
		MemoryContextSwitchTo(old);
	}
	return limit;
}

/*
 * The digits of a whole number, without its sign and a scale of zeros; empty when it is none, or too long: 1e131071
 * is ten bytes here, and would be a hundred thousand digits.
 */
static char *
get_whole_digits(Numeric number)
{
	Datum		value = DirectFunctionCall1(numeric_abs, NumericGetDatum(number));

	if (!is_integer(number) || !DatumGetBool(DirectFunctionCall2(numeric_lt, value, get_digits_limit())))
		return pstrdup("");
	return DatumGetCString(DirectFunctionCall1(numeric_out, DirectFunctionCall1(numeric_trim_scale, value)));
}

static OutboxDetector
detect_in_number(Numeric number, const Place *place)
{
	const uint32 telling = KEY_SECRET | KEY_RESIDENT | KEY_PASSPORT | KEY_ACCOUNT | KEY_PHONE;
	char	   *digits;
	OutboxDetector found;

	if ((int) VARSIZE(number) < LONG_NUMBER_BYTES && !(place->classes & telling))
		return DETECTED_NOTHING;
	digits = get_whole_digits(number);
	found = outbox_sensitive_check_number(digits, strlen(digits), place->classes, place->enabled);
	pfree(digits);
	return found;
}

static void
check_scalar(Walk *walk, const JsonbValue *value, const Place *place)
{
	/* null holds nothing: it may stand wherever something may, but does not count as being there */
	if (value->type == jbvNull)
		return;
	if (walk->type != NULL)
		check_against_type(walk, value, place);
	if (!walk->detect)
		return;
	if (value->type == jbvString)
		note_sensitive(walk, outbox_sensitive_check_text(value->val.string.val, value->val.string.len,
														 place->classes, place->enabled));
	else if (value->type == jbvNumeric)
		note_sensitive(walk, detect_in_number(value->val.numeric, place));
}

/* Is the required key there?  Then the object does not miss it any more. */
static void
count_required(Level *level, const Place *place, bool is_null)
{
	if (place->node != NULL && place->node->required && !is_null)
		level->missing &= ~(UINT64CONST(1) << place->node->required_bit);
}

/* ---------------------------------------------------------------- objects and arrays */

static void
check_container(Walk *walk, bool is_array, bool is_empty, const Place *place)
{
	const OutboxKeyNode *node = place->node;

	if (walk->type != NULL && node != NULL)
	{
		if (node->type != TYPE_ANY && node->type != (is_array ? TYPE_ARRAY : TYPE_OBJECT))
			note_wrong(walk, FAULT_TYPE, node);
	}
	if (walk->closed && !place->anything && (node == NULL || !(is_array ? node->array : node->object)))
		note_wrong(walk, node == NULL || !(node->scalar || node->object || node->array) ? FAULT_NOT_ALLOWED :
				   is_array ? FAULT_ARRAY : FAULT_OBJECT, node);
	if (walk->detect && !is_empty)
		note_sensitive(walk, outbox_sensitive_check_container(is_array, place->classes, place->enabled));
}

static void
push_level(Walk *walk, bool is_array, const Place *place)
{
	Level	   *level;

	if (walk->depth == walk->room)
	{
		Level	   *more = palloc(2 * walk->room * sizeof(Level));

		memcpy(more, walk->levels, walk->depth * sizeof(Level));
		walk->room *= 2;
		walk->levels = more;
	}
	level = &walk->levels[walk->depth++];
	level->place = *place;
	level->is_array = is_array;
	level->next_child = 0;
	level->missing = place->node != NULL && !is_array ? place->node->required_children : 0;
	level->step.key = NULL;
	level->step.len = 0;
}

static void
note_missing(Walk *walk, const OutboxKeyNode *node, uint64 missing)
{
	if (walk->wrong->fault != FAULT_NONE)
		return;
	for (int i = 0; i < node->nchildren; i++)
	{
		const OutboxKeyNode *child = node->children[i];

		if (!child->required || !(missing & (UINT64CONST(1) << child->required_bit)))
			continue;
		walk->wrong->fault = FAULT_MISSING;
		walk->wrong->path = make_path(walk, &child->step);
		return;
	}
}

static void
pop_level(Walk *walk)
{
	Level	   *level = innermost(walk);

	if (level->missing != 0)
		note_missing(walk, level->place.node, level->missing);
	walk->depth--;
}

/* A scalar or an array where an object with required keys should be misses them all. */
static void
check_stands_for_object(Walk *walk, const Place *place)
{
	if (place->node == NULL || place->node->required_children == 0 || walk->wrong->fault != FAULT_NONE)
		return;
	push_level(walk, false, place);
	note_missing(walk, place->node, place->node->required_children);
	walk->depth--;
}

/* ---------------------------------------------------------------- the pass */

static void
walk_document(Walk *walk, Jsonb *document, const Place *root)
{
	JsonbIterator *it = JsonbIteratorInit(&document->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	Place		place = *root;

	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		bool		is_array = token == WJB_BEGIN_ARRAY;

		CHECK_FOR_INTERRUPTS();
		switch (token)
		{
			case WJB_KEY:
				enter_key(walk, &value, &place);
				break;
			case WJB_BEGIN_ARRAY:
			case WJB_BEGIN_OBJECT:
				/* a document that is a scalar comes as an array that is none */
				if (is_array && value.val.array.rawScalar)
					break;
				if (walk->depth > 0 && walk->levels[walk->depth - 1].is_array)
					enter_element(walk, &place);
				if (walk->depth > 0)
					count_required(&walk->levels[walk->depth - 1], &place, false);
				check_container(walk, is_array, (is_array ? value.val.array.nElems : value.val.object.nPairs) == 0, &place);
				if (is_array)
					check_stands_for_object(walk, &place);
				push_level(walk, is_array, &place);
				break;
			case WJB_ELEM:
				if (walk->depth > 0)
					enter_element(walk, &place);
				check_scalar(walk, &value, &place);
				check_stands_for_object(walk, &place);
				break;
			case WJB_VALUE:
				count_required(innermost(walk), &place, value.type == jbvNull);
				check_scalar(walk, &value, &place);
				if (value.type != jbvNull || place.node == NULL || place.node->required)
					check_stands_for_object(walk, &place);
				break;
			default:
				if (walk->depth > 0)
					pop_level(walk);
				break;
		}
		if (walk->wrong->fault != FAULT_NONE)
			return;
	}
}

void
outbox_payload_check(Jsonb *document, const OutboxEventType *type, bool is_headers,
					 bool look_for_sensitive, OutboxFinding *wrong, OutboxFinding *sensitive)
{
	Walk		walk;
	Place		root = {.enabled = OUTBOX_DETECT_ALL, .enabled_below = OUTBOX_DETECT_ALL};

	wrong->fault = sensitive->fault = FAULT_NONE;
	walk.type = is_headers ? NULL : type;
	walk.closed = walk.type != NULL && type->closed;
	walk.detect = look_for_sensitive;
	walk.wrong = wrong;
	walk.sensitive = sensitive;
	walk.depth = 0;
	walk.room = LEVELS_AT_ONCE;
	walk.levels = walk.first_levels;
	if (type != NULL)
		enter_node(&root, is_headers ? &type->headers : &type->root);
	walk_document(&walk, document, &root);
}
