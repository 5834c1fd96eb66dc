/*
 * keypath.h - the paths that name keys of a JSON document, as text and taken apart: pure.
 *
 * Keys are joined by dots; "[]" after a key stands for the elements of its array; ".*" at the end for
 * whatever is there and below.  A key that holds one of  . [ ] * "  stands in double quotes, with \" and \\ in it.
 *
 *     customer.id   items[].sku   matrix[][]   details.*   "odd.key".x
 */
#ifndef OUTBOX_KEYPATH_H
#define OUTBOX_KEYPATH_H

#include "outbox.h"

#define OUTBOX_KEYPATH_STEPS_MAX	32
#define OUTBOX_KEYPATH_BYTES_MAX	1000

typedef struct OutboxKeyStep
{
	const char *key;			/* NULL: the elements of an array */
	int			len;
} OutboxKeyStep;

typedef struct OutboxKeyPath
{
	int			nsteps;
	OutboxKeyStep steps[OUTBOX_KEYPATH_STEPS_MAX];
	bool		below;			/* ends with ".*" */
} OutboxKeyPath;

/* NULL when well-formed, else a constant English reason for errdetail(); keys are palloc'd */
extern const char *outbox_keypath_parse(const char *text, int len, OutboxKeyPath *path);

/*
 * As text for a message, palloc'd: made of keys only, each quoted or cut where it is odd, the whole cut
 * in front at a limit.  Long runs of digits, and keys that look like sensitive data themselves, are not shown.
 */
extern char *outbox_keypath_show(const OutboxKeyStep *steps, int nsteps);

/* In quotes for a message, palloc'd: in single ones when it holds double ones, as it would stand in a statement. */
extern char *outbox_keypath_quote(const char *path);

/* the order in which jsonb keeps the keys of an object */
extern int	outbox_keypath_compare_keys(const char *a, int alen, const char *b, int blen);

#endif							/* OUTBOX_KEYPATH_H */
