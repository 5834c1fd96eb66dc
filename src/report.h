/*
 * report.h - what was published and completed in a time, by parts of it of equal length.
 */
#ifndef OUTBOX_REPORT_H
#define OUTBOX_REPORT_H

#include "outbox.h"

#include "utils/timestamp.h"

#define OUTBOX_REPORT_PARTS	48

typedef struct OutboxReportPart
{
	int64		published;		/* events */
	int64		completed;		/* deliveries */
	int64		waiting;		/* at its begin: deliveries of events published before, completed then or later */
	double		p50_ms;			/* from publish to done, of those completed */
	double		p95_ms;
} OutboxReportPart;

/* The parts of [from, to); longest: how long a call of a handler may take. */
extern void outbox_report_read(TimestampTz from, TimestampTz to, int64 longest, OutboxReportPart *parts);

#endif							/* OUTBOX_REPORT_H */
