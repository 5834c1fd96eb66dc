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

/*
 * Reads outbox.incarnation directly; remembered per backend until its relcache entry is invalidated.  Everything that
 * publishes, routes or delivers comes by here, hence an error when library and extension are of different versions.
 */
extern void outbox_extension_incarnation(OutboxIncarnation *incarnation);

/* write the first row of outbox.incarnation, when there is none: with whatever first keeps a transaction id */
extern void outbox_extension_record_incarnation(void);

/*
 * pg_upgrade makes a cluster with another system identifier, in which transaction ids go on to mean what
 * they meant. Its server leaves a mark in the new data folder; what is found there under the mark of its own is the
 * same incarnation. In _PG_init of such a server:
 */
extern void outbox_extension_mark_upgrade(void);

/* write the new identifier down, for standbys and copies that do not have the mark; in SPI */
extern void outbox_extension_settle_upgrade(void);

/* is the extension as installed the one that this library is made for? */
extern bool outbox_extension_is_current(const OutboxExtension *extension);

/* is it of a later version? */
extern bool outbox_extension_is_newer(const OutboxExtension *extension);

/* the error that says so, or a line in the log */
extern void outbox_extension_report_version(int elevel, const OutboxExtension *extension);

#endif							/* OUTBOX_EXTENSION_H */
