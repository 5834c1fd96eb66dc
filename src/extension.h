/* extension.h - is the extension installed in this database, and whose is it? */
#ifndef OUTBOX_EXTENSION_H
#define OUTBOX_EXTENSION_H

#include "outbox.h"

typedef struct OutboxExtension
{
	Oid			oid;			/* InvalidOid: not installed */
	Oid			schema;
	Oid			owner;
	char		version[32];
} OutboxExtension;

/* Fresh from the catalogs (a few syscache and one index probe); needs a transaction. */
extern bool outbox_extension_lookup(OutboxExtension *extension);

/* the oid of a relation or composite type of the schema; error XX000-free: undefined_table with a hint when missing */
extern Oid	outbox_extension_relid(const char *relname);

/* the incarnation of this cluster: see incarnation in the schema */
typedef struct OutboxIncarnation
{
	int			incarnation;	/* that rows written now carry */
	bool		held;			/* the newest known is another cluster's: activate() is due */
	bool		recorded;		/* there is a row: the database is in use, or is being restored */
} OutboxIncarnation;

/* reads outbox.incarnation directly; remembered per backend until its relcache entry is invalidated */
extern void outbox_extension_incarnation(OutboxIncarnation *incarnation);

/* write the first row of outbox.incarnation, when there is none: with whatever first keeps a transaction id */
extern void outbox_extension_record_incarnation(void);

#endif							/* OUTBOX_EXTENSION_H */
