/*
 * outbox.h - types, names and limits that every file of the extension shares.
 *
 * Floor 0: knows nothing of the files above it.  Each file has a header of its
 * own beside it, which says what it offers; this one holds only what has no
 * better home.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"

#define OUTBOX_SCHEMA "outbox"
#define OUTBOX_LIBRARY "outbox"

/* SQLSTATEs of our own (class OB) */
#define ERRCODE_OUTBOX_LEASE_LOST			MAKE_SQLSTATE('O', 'B', '0', '0', '1')
#define ERRCODE_OUTBOX_REFUSED				MAKE_SQLSTATE('O', 'B', '0', '0', '2')
#define ERRCODE_OUTBOX_FAIL_PERMANENTLY		MAKE_SQLSTATE('O', 'B', '0', '0', '3')
#define ERRCODE_OUTBOX_RETRY_AFTER			MAKE_SQLSTATE('O', 'B', '0', '0', '4')
#define ERRCODE_OUTBOX_DRAIN_TIMEOUT		MAKE_SQLSTATE('O', 'B', '0', '0', '5')
#define ERRCODE_OUTBOX_HELD					MAKE_SQLSTATE('O', 'B', '0', '0', '6')

/* limits of the public contract, in bytes where nothing else is said */
#define OUTBOX_EVENT_TYPE_MAX		200
#define OUTBOX_CONTEXT_MAX			255 /* tenant, actor, request, trace, ... */
#define OUTBOX_ID_MAX				512 /* aggregate_id, dedup_key */
#define OUTBOX_KEY_MAX				1024	/* event_key */
#define OUTBOX_SUBSCRIPTION_MAX		200
#define OUTBOX_ERROR_CODE_MAX		64
#define OUTBOX_LANES_MAX			1024
#define OUTBOX_BATCH_SIZE_MAX		10000

/* due times, times of facts and of reports lie between these */
#define OUTBOX_TIME_MIN	(-(int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)	/* 1970-01-01 */
#define OUTBOX_TIME_MAX	((int64) 73049 * USECS_PER_DAY) /* 2200-01-01 */

/* columns of outbox.event_log; the first OUTBOX_EVENT_COLUMNS are outbox.event */
typedef enum OutboxEventColumn
{
	EV_EVENT_ID,
	EV_EVENT_TYPE,
	EV_PAYLOAD_VERSION,
	EV_AGGREGATE_TYPE,
	EV_AGGREGATE_ID,
	EV_EVENT_KEY,
	EV_TENANT_ID,
	EV_ACTOR_TYPE,
	EV_ACTOR_ID,
	EV_REQUEST_ID,
	EV_TRACE_ID,
	EV_CORRELATION_ID,
	EV_CAUSATION_ID,
	EV_SOURCE,
	EV_OCCURRED_AT,
	EV_PUBLISHED_AT,
	EV_DELIVER_AT,
	EV_DEDUP_KEY,
	EV_HEADERS,
	EV_PAYLOAD,
	OUTBOX_EVENT_COLUMNS,
	EV_XID = OUTBOX_EVENT_COLUMNS,
	EV_INCARNATION,
	OUTBOX_LOG_COLUMNS
} OutboxEventColumn;

#endif							/* OUTBOX_H */
