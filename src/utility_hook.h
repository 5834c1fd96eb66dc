/* utility_hook.h - clears the way for statements that need a database, or the extension, for themselves. */
#ifndef OUTBOX_UTILITY_HOOK_H
#define OUTBOX_UTILITY_HOOK_H

#include "outbox.h"

extern void outbox_utility_hook_install(void);

#endif							/* OUTBOX_UTILITY_HOOK_H */
