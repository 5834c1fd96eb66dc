/* planner_statistics.h - the planner's statistics of our tables are not for functions that tell. */
#ifndef OUTBOX_PLANNER_STATISTICS_H
#define OUTBOX_PLANNER_STATISTICS_H

/* at the library's load */
extern void outbox_planner_statistics_install(void);

#endif							/* OUTBOX_PLANNER_STATISTICS_H */
