/* turn.h - which subscription a worker serves next, and which of its lanes have work. */
#ifndef OUTBOX_TURN_H
#define OUTBOX_TURN_H

#include "outbox.h"
#include "round.h"

typedef enum OutboxTurn
{
	TURN_NONE,
	TURN_OURS,
	TURN_OTHER_ROLE
} OutboxTurn;

/* the next subscription with work, after the one served last: in the round.  In SPI. */
extern OutboxTurn outbox_turn_choose(OutboxRound *round);

/* look first at those that come after this one */
extern void outbox_turn_note_served(int32 subscription_id);

/* has something happened in any of its lanes since the last look? */
extern bool outbox_turn_has_news(OutboxRound *round, const OutboxSubscription *s);

/* is the lane held by nobody else? */
extern bool outbox_turn_is_free(OutboxRound *round, const OutboxLane *lane);

#endif							/* OUTBOX_TURN_H */
