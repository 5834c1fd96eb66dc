/*
 * kept_error.h - what is kept of an error: its message when that is wanted, and the constraint's name.
 */
#ifndef OUTBOX_KEPT_ERROR_H
#define OUTBOX_KEPT_ERROR_H

#include "outbox.h"

#define OUTBOX_MESSAGE_MAX 1024 /* bytes of a message that are kept */

/* which constraint an error names; all NULL when none.  Not yet believed */
typedef struct OutboxConstraint
{
	char	   *schema_name;
	char	   *table_name;
	char	   *type_name;		/* of a domain */
	char	   *constraint_name;
} OutboxConstraint;

/* of a text of any length and content, what may be stored; NULL when nothing shall be kept.  palloc'd */
extern char *outbox_kept_error_message(const char *message, Size len);

/* the names that an error carries, cut to the length of names; palloc'd */
extern void outbox_kept_error_take_constraint(const ErrorData *error, OutboxConstraint *constraint);

/*
 * '23505: constraint "task_title_key"' when there is such a constraint, else NULL: handlers can put any text
 * into these fields of an error.  Needs a transaction.
 */
extern char *outbox_kept_error_constraint(const char *sqlstate, const OutboxConstraint *constraint);

#endif							/* OUTBOX_KEPT_ERROR_H */
