/*
 * passage.c - to the lanes of a subscription: for those who work them, side by side, and for one who wants them all.
 *
 * Who works a lane locks its row for a transaction, and again in the next one, passing over what is locked.
 * Who waits for such a row is woken by the end of that transaction, and comes too late: for seconds, or as
 * long as there is work.  So each transaction that takes work from lanes goes through here first, and whoever
 * changes what all lanes rest on closes the passage, and waits until those within have left.  From when it waits
 * nobody enters, so it waits for the calls under way and for no other.
 *
 * It is a lock of the server's, so that no error, kill or crash leaves it closed: it ends with its transaction, and so does
 * the wait for it.  Nobody waits to enter.
 */
#include "outbox.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/snapmgr.h"

#include "passage.h"

#define LOCK_CLASS_PASSAGE	6	/* an advisory lock that no SQL function can name */

static void
set_tag(LOCKTAG *tag, int32 subscription_id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, (uint32) subscription_id, LOCK_CLASS_PASSAGE);
}

bool
outbox_passage_enter(int32 subscription_id)
{
	LOCKTAG		tag;

	set_tag(&tag, subscription_id);
	return LockAcquire(&tag, ShareLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
outbox_passage_close(int32 subscription_id)
{
	LOCKTAG		tag;

	set_tag(&tag, subscription_id);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

bool
outbox_passage_is_open(int32 subscription_id)
{
	LOCKTAG		tag;

	set_tag(&tag, subscription_id);
	if (LockAcquire(&tag, ShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	LockRelease(&tag, ShareLock, false);
	return true;
}

/*
 * By the snapshot that the entries are read by: what was published after a pause() is not delivered by what was known
 * before it.
 */
bool
outbox_passage_enter_as_handler(const OutboxSubscription *s)
{
	return outbox_passage_enter(s->id) && outbox_subscription_holds(s, GetActiveSnapshot());
}
