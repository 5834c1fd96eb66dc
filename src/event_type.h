/*
 * event_type.h - what the payloads of a defined event type may hold.
 *
 * A definition is compiled into a tree of keys.  A key of the payload is followed through the tree
 * step by step, so that one pass over the payload checks all of it (payload.c).
 */
#ifndef OUTBOX_EVENT_TYPE_H
#define OUTBOX_EVENT_TYPE_H

#include "outbox.h"
#include "keypath.h"

#define OUTBOX_REQUIRED_MAX	64	/* required keys of one object */

typedef enum OutboxValueType
{
	TYPE_ANY,
	TYPE_STRING,
	TYPE_NUMBER,
	TYPE_INTEGER,
	TYPE_BOOLEAN,
	TYPE_UUID,
	TYPE_TIMESTAMP,
	TYPE_ARRAY,
	TYPE_OBJECT
} OutboxValueType;

typedef struct OutboxKeyNode OutboxKeyNode;

struct OutboxKeyNode
{
	OutboxKeyStep step;
	int			nchildren;
	OutboxKeyNode **children;	/* of an object, in jsonb's order of keys */
	OutboxKeyNode *element;		/* of an array; NULL: not known */

	/* what may stand here, when the type has a list */
	bool		scalar;
	bool		object;
	bool		array;
	bool		anything;		/* also below */

	bool		required;
	int			required_bit;	/* of the object's required_children */
	uint64		required_children;
	OutboxValueType type;
	int			max_length;		/* characters of a string; 0: no limit */

	/* detectors that do not look here, or here and below */
	uint32		exempt;
	uint32		exempt_below;
};

typedef struct OutboxEventType
{
	const char *event_type;
	int			event_type_len;
	const char *payload_version;
	int			payload_version_len;
	bool		closed;			/* has a list of keys: others are refused */
	int			max_payload_bytes;	/* 0: only the setting counts */
	int			max_length;		/* of strings that have no limit of their own; 0: none */
	OutboxKeyNode root;			/* of the payload */
	OutboxKeyNode headers;		/* exemptions only */
	uint32		exempt_columns[OUTBOX_EVENT_COLUMNS];
} OutboxEventType;

/* a definition as it is given and stored */
typedef enum OutboxTypeColumn
{
	ET_EVENT_TYPE,
	ET_PAYLOAD_VERSION,
	ET_ALLOWED_KEYS,
	ET_REQUIRED_KEYS,
	ET_KEY_TYPES,
	ET_IMPORTANCE,
	ET_MAX_PAYLOAD_BYTES,
	ET_EXEMPT_KEYS,
	ET_DESCRIPTION,
	OUTBOX_TYPE_COLUMNS
} OutboxTypeColumn;

typedef struct OutboxTypeDefinition
{
	Datum		values[OUTBOX_TYPE_COLUMNS];
	bool		nulls[OUTBOX_TYPE_COLUMNS];
} OutboxTypeDefinition;

/* in place: lists sorted, each element once; raises 22023 and 22004 for what is no definition */
extern void outbox_event_type_check(OutboxTypeDefinition *definition);

/* the words of a name for people */
extern const char *outbox_event_type_value_name(OutboxValueType type);

typedef enum OutboxTypeFound
{
	TYPE_FOUND,
	TYPE_UNKNOWN,				/* no version of it is defined */
	TYPE_OTHER_VERSION			/* but not this one */
} OutboxTypeFound;

/* from the definitions of this database as they are committed, and as this transaction has changed them */
extern OutboxTypeFound outbox_event_type_find(const char *type, int type_len, const char *version, int version_len,
											  const OutboxEventType **found);

/* announce a change of the table, in the transaction that makes it */
extern void outbox_event_type_changed(void);

#endif							/* OUTBOX_EVENT_TYPE_H */
