/* candidate.h - the events that a tick, or a catch-up, has to route. */
#ifndef OUTBOX_CANDIDATE_H
#define OUTBOX_CANDIDATE_H

#include "outbox.h"

#include "executor/tuptable.h"
#include "storage/itemptr.h"

#include "segment.h"
#include "snapshot.h"

typedef struct OutboxCandidate
{
	pg_uuid_t	id;
	ItemPointerData tid;		/* where its row was */
	int16		segment;		/* in the list's segments */
} OutboxCandidate;

/* sorted by event id, at most OUTBOX_CANDIDATES_MAX of them */
typedef struct OutboxCandidateList
{
	OutboxCandidate *items;
	int			count;
	int			room;
	bool		truncated;		/* there are more, all above the last one */
	int			nsegments;
	OutboxSegment *segments;
} OutboxCandidateList;

#define OUTBOX_CANDIDATES_MAX 200000

/* which events to look for: rows of this incarnation that */
typedef struct OutboxCandidateRange
{
	int			incarnation;
	const OutboxSnapshot *seen; /* does not see */
	const OutboxSnapshot *target;	/* but this one does */
	const pg_uuid_t *through;	/* above this one; NULL: all */
} OutboxCandidateRange;

/* those in segments that may still be written to; into the current memory context */
extern void outbox_candidate_collect(OutboxCandidateList *list, const OutboxCandidateRange *range);

/* the whole log from a time on, rows of earlier incarnations too */
extern void outbox_candidate_collect_history(OutboxCandidateList *list, const OutboxCandidateRange *range,
											 TimestampTz start_at);

/* the row of a candidate; false when it is not there any more */
extern bool outbox_candidate_fetch(const OutboxSegment *segment, Relation rel, const OutboxCandidate *candidate,
								   TupleTableSlot *slot);

#endif							/* OUTBOX_CANDIDATE_H */
