/*
 * waiters.h - sessions in outbox.wait(), and how they are woken.
 *
 * A session enters with the subscriptions it waits for, and then, again and again, begins a look,
 * looks, and sleeps until its latch is set.  What is announced after the look was begun is news
 * after it, so nothing is missed between the two.
 */
#ifndef OUTBOX_WAITERS_H
#define OUTBOX_WAITERS_H

#include "outbox.h"

/* in _PG_init: the shared memory hooks */
extern void outbox_waiters_init(void);

/* wait for these; left by outbox_waiters_leave(), which an error must call too, or when the session ends */
extern void outbox_waiters_enter(int n, const int32 *subscription_ids);

/* satisfied: it goes away with something to claim; else a wake-up that was meant for it goes to another one */
extern void outbox_waiters_leave(bool satisfied);

/* from here on, what is announced is news */
extern void outbox_waiters_begin_look(void);

/* has something been announced for our subscriptions?  and were we chosen to see to it? */
extern bool outbox_waiters_have_news(void);
extern bool outbox_waiters_are_chosen(void);

/*
 * Once it is committed that there is something to claim in a subscription of this database: wake up to `most` of those
 * who wait for it, the longest first.  The others learn of it at their poll interval.  Costs one atomic
 * addition when nobody waits for it.  May run in a transaction callback: raises no error.
 */
extern void outbox_waiters_wake(int32 subscription_id, int most);

/* the same for all subscriptions of this database, and all who wait */
extern void outbox_waiters_wake_all(void);

#endif							/* OUTBOX_WAITERS_H */
