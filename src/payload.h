/*
 * payload.h - one pass over a payload, or headers: may all of it be published?
 */
#ifndef OUTBOX_PAYLOAD_H
#define OUTBOX_PAYLOAD_H

#include "outbox.h"
#include "utils/jsonb.h"

#include "event_type.h"
#include "sensitive.h"

typedef enum OutboxFault
{
	FAULT_NONE,
	FAULT_SENSITIVE,
	FAULT_NOT_ALLOWED,			/* a key that the type does not list */
	FAULT_OBJECT,				/* an object where the type lists a plain value */
	FAULT_ARRAY,
	FAULT_SCALAR,				/* a plain value where the type lists keys, or an array */
	FAULT_MISSING,
	FAULT_TYPE,
	FAULT_LENGTH
} OutboxFault;

/* the first fault of its kind */
typedef struct OutboxFinding
{
	OutboxFault fault;
	const char *path;			/* "" for the whole; made for messages */
	OutboxDetector detector;	/* of FAULT_SENSITIVE */
	OutboxValueType type;		/* of FAULT_TYPE; of FAULT_SCALAR, what should be there */
	int			max_length;		/* of FAULT_LENGTH */
} OutboxFinding;

/*
 * What is wrong with a document.  type: NULL when it has no definition.  *wrong is about the type's
 * rules (payload only), *sensitive about detectors; look for sensitive data only when asked to.
 */
extern void outbox_payload_check(Jsonb *document, const OutboxEventType *type, bool is_headers,
								 bool look_for_sensitive, OutboxFinding *wrong, OutboxFinding *sensitive);

#endif							/* OUTBOX_PAYLOAD_H */
