/*
 * round.h - a round of a worker: what its parts share, and what is remembered between rounds.
 *
 * turn.c picks the subscription and its lanes, attempt.c runs a batch and draws the conclusions, dispatch.c puts
 * the parts in their order.
 */
#ifndef OUTBOX_ROUND_H
#define OUTBOX_ROUND_H

#include "outbox.h"
#include "handler.h"
#include "lease.h"
#include "settle.h"
#include "shmem.h"
#include "subscription.h"

#define PROBLEM_PAUSE_US	USECS_PER_SEC	/* before a stopped subscription is tried again */

/* what this process remembers of a subscription */
typedef struct OutboxMemo
{
	int32		subscription_id;	/* the key */
	int64		listed_at;		/* the last round in which it was there, and not paused: its outbox_settings_ticks() */
	int64		next_full_look; /* outbox_settings_ticks() */
	TimestampTz next_due;		/* the first retry known, or DT_NOEND */
	int64		not_before;		/* outbox_settings_ticks(): stopped, or the outage guard's distance */
	bool		look_again;		/* there was more when the last round ended */
	bool		cannot_run;		/* its handler, when it was last looked up: so it was noted */
	bool		check_receipts;
	int			batch_limit;	/* events of a transaction; grows while all goes well */
	int			limit_once;		/* 0: none; the part of a failed batch that went well */
	int			single_left;	/* deliveries to run one by one after a failed batch */
	int			single_after;	/* the same after limit_once: those of the failed call */
	int32		front_lane;		/* the lane to read first */
	int32		front_after;	/* and after limit_once: that of the failed delivery, or -1 */
	int			conflicts;		/* of the delivery at the front */
	bool		block_on_review;	/* these two as they were at the last look */
	int32		first_lane;
	double		average_us;		/* of a handler call, 0: not known */
} OutboxMemo;

/* a round at hand */
typedef struct OutboxRound
{
	OutboxProcess *self;
	OutboxDatabase *db;
	OutboxSubscription *subscription;
	OutboxMemo *memo;
	OutboxHandler handler;
	OutboxGuard guard;
	TimestampTz now;
	int64		ticks;			/* outbox_settings_ticks() */
	int64		part_ticks;		/* the same at the beginning of the part of the round at hand */
	int			nlanes;
	OutboxLane **lanes;			/* with work */
	int			nheld;
	OutboxLane **held;			/* of these, ours */
	bool		did_something;
	bool		barred;			/* from the lanes of the subscription: the round is over */
	bool		recheck;		/* kept out of a subscription, perhaps for a moment only */
	bool		unserved_first; /* no role yet: first those that no other process serves */
} OutboxRound;

/* what a round needs, across its transactions */
extern MemoryContext outbox_round_context;

extern OutboxMemo *outbox_round_memo(int32 subscription_id);

/* somebody wants the subscription's lanes: not before a moment has passed */
extern void outbox_round_leave_alone(OutboxMemo *memo);

/* with a snapshot and SPI */
extern void outbox_round_begin_transaction(void);
extern void outbox_round_commit_transaction(void);

/* say where we are, or are about to be */
extern void outbox_round_announce(OutboxRound *round);

/*
 * Before a lane's row is locked to take work from it, in its transaction (passage.h).  False: nothing more is taken in this
 * round, and the subscription is left alone for a moment.
 */
extern bool outbox_round_enter(OutboxRound *round);
extern void outbox_round_note_barred(OutboxRound *round);

/* milliseconds until something known is due */
extern long outbox_round_sleep_time(OutboxRound *round);

#endif							/* OUTBOX_ROUND_H */
