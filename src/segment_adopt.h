/* segment_adopt.h - a segment's table that a restore has brought, without the row that tells of it. */
#ifndef OUTBOX_SEGMENT_ADOPT_H
#define OUTBOX_SEGMENT_ADOPT_H

#include "outbox.h"

/* what one of the two tables of a segment is made of, but for its range */
typedef struct OutboxTableRecipe
{
	const char *parent;
	const char *key[4];			/* columns of the primary key */
	const char *second_index;	/* column of a further index, or NULL */
} OutboxTableRecipe;

/*
 * Look at the table, and lock it as a publisher does; an error when it may not become the table of segment `name`,
 * for the ids [from, to), as it is.  In our own settings.
 */
extern void outbox_segment_adopt_check(Oid relid, const OutboxTableRecipe *recipe, const char *name,
									   const pg_uuid_t *from, const pg_uuid_t *to);

#endif							/* OUTBOX_SEGMENT_ADOPT_H */
