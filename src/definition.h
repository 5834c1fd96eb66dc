/*
 * definition.h - what a subscription is defined by: the arguments of subscribe()
 * and alter_subscription(), their defaults and their rules.
 */
#ifndef OUTBOX_DEFINITION_H
#define OUTBOX_DEFINITION_H

#include "outbox.h"

#include "lib/stringinfo.h"

/* in the order of the arguments of subscribe(), and of the columns of outbox.subscription */
typedef enum OutboxDefinitionColumn
{
	DEF_EVENT_TYPES,
	DEF_HANDLER,
	DEF_ORDERING,
	DEF_LANES,
	DEF_MAX_ATTEMPTS,
	DEF_BACKOFF_BASE,
	DEF_BACKOFF_FACTOR,
	DEF_BACKOFF_MAX,
	DEF_LEASE_DURATION,
	DEF_HANDLER_TIMEOUT,
	DEF_BATCH_SIZE,
	DEF_START_AT,
	DEF_ON_REVIEW,
	DEF_PERMANENT_ERRORS,
	DEF_TRANSIENT_ERRORS,
	DEF_RUN_AS,
	OUTBOX_DEFINITION_COLUMNS
} OutboxDefinitionColumn;

typedef struct OutboxDefinition
{
	Datum		values[OUTBOX_DEFINITION_COLUMNS];
	bool		nulls[OUTBOX_DEFINITION_COLUMNS];
} OutboxDefinition;

/* the column of an argument's name, or -1 */
extern int	outbox_definition_find(const char *name);

/* put a column to its default; run_as: the caller.  event_types has none and becomes NULL */
extern void outbox_definition_reset(OutboxDefinition *definition, int column, Oid caller);

/*
 * Raise an error unless every rule holds; bring arrays and the handler's name
 * into the form in which they are stored.  start_at is looked at only when the
 * definition is new, the handler and the role it runs as only with `check_handler`.
 */
extern void outbox_definition_check(OutboxDefinition *definition, Oid caller, bool is_new, bool check_handler);

/* warn of what is allowed and yet seldom meant: a handler that will run as a superuser.  After it has been stored. */
extern void outbox_definition_warn(const OutboxDefinition *definition);

/* the patterns of an argument event_types, in their order: an error unless each is one and there is one; palloc'd */
extern char **outbox_definition_read_patterns(Datum event_types, int *count);

/* are they the same?  else the names of the columns that differ are appended, joined by commas */
extern bool outbox_definition_equals(const OutboxDefinition *a, const OutboxDefinition *b, StringInfo differing);

#endif							/* OUTBOX_DEFINITION_H */
