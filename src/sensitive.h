/*
 * sensitive.h - does a value look like something that must not travel in an event?  Pure rules.
 *
 * What a value looks like depends on its key: keys are put into classes first.  doc/sensitive-data.md is the
 * list of what is detected, and of what is let pass.
 */
#ifndef OUTBOX_SENSITIVE_H
#define OUTBOX_SENSITIVE_H

#include "outbox.h"

typedef enum OutboxDetector
{
	DETECTED_NOTHING,
	DETECTED_JWT,
	DETECTED_PRIVATE_KEY,
	DETECTED_CREDENTIALS,
	DETECTED_SECRET_KEY_NAME,
	DETECTED_RESIDENT_NUMBER,
	DETECTED_PASSPORT,
	DETECTED_BANK_ACCOUNT,
	DETECTED_PHONE,
	DETECTED_PAYMENT_CARD,
	DETECTED_URL_TOKEN,
	DETECTED_PROMPT,
	OUTBOX_DETECTORS
} OutboxDetector;

/* sets of detectors */
#define OUTBOX_DETECT(detector)	(1u << (detector))
#define OUTBOX_DETECT_ALL		((1u << OUTBOX_DETECTORS) - 2)

/* what a key says about its value: a set */
#define KEY_SECRET		0x0001
#define KEY_RESIDENT	0x0002
#define KEY_PASSPORT	0x0004
#define KEY_ACCOUNT		0x0008	/* of a bank, surely */
#define KEY_ACCOUNT_MAYBE 0x0010	/* "account" alone: of a bank, or of a user */
#define KEY_PHONE		0x0020
#define KEY_CARD		0x0040
#define KEY_PROMPT		0x0080	/* a text is one */
#define KEY_MESSAGES	0x0100	/* a list is one */
#define KEY_SERIAL		0x0200	/* numbers of orders, parcels, traces: long ones are no cards */
#define KEY_GENERIC		0x0400	/* "number", "value": the key above counts too */
#define KEY_COLUMN		0x0800	/* no key, but a column such as actor_id */

/* the name that definitions and messages use; DETECTED_NOTHING for an unknown one */
extern const char *outbox_sensitive_name(OutboxDetector detector);
extern OutboxDetector outbox_sensitive_find(const char *name, int len);

/*
 * The classes of a key; *in_key says what its own text looks like.  Remembers the keys it has seen.
 */
extern uint32 outbox_sensitive_key(const char *key, int len, OutboxDetector *in_key);

/* of the values that classes allow, which the enabled detectors find first */
extern OutboxDetector outbox_sensitive_check_text(const char *value, int len, uint32 classes, uint32 enabled);
extern OutboxDetector outbox_sensitive_check_number(const char *digits, int len, uint32 classes, uint32 enabled);

/* an object or array under such a key, with something in it */
extern OutboxDetector outbox_sensitive_check_container(bool is_array, uint32 classes, uint32 enabled);

#endif							/* OUTBOX_SENSITIVE_H */
