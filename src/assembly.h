/* assembly.h - what a batch is to run. */
#ifndef OUTBOX_ASSEMBLY_H
#define OUTBOX_ASSEMBLY_H

#include "outbox.h"
#include "batch.h"

/*
 * Lock the batch's lanes (those that are lost are no longer held), and fill in its deliveries and what is
 * parked between them.  In the batch's transaction and memory context, in SPI.
 */
extern void outbox_assembly_read(OutboxBatch *batch, OutboxEventReader *events);

#endif							/* OUTBOX_ASSEMBLY_H */
