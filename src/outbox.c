/*
 * outbox.c - where the server meets the library: what is set up, in order.
 */
#include "outbox.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "extension.h"
#include "launcher.h"
#include "planner_statistics.h"
#include "settings.h"
#include "shmem.h"
#include "utility_hook.h"
#include "waiters.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static void require_preload(void);

void
_PG_init(void)
{
	require_preload();
	outbox_settings_define();
	outbox_shmem_init();
	outbox_waiters_init();

	/* pg_upgrade's servers must find nobody connected, and nothing done behind its back */
	if (IsBinaryUpgrade)
	{
		outbox_extension_mark_upgrade();
		return;
	}
	outbox_launcher_register();
	outbox_utility_hook_install();
	outbox_planner_statistics_install();
}

static void
require_preload(void)
{
	if (process_shared_preload_libraries_in_progress)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s must be loaded by \"shared_preload_libraries\"", OUTBOX_LIBRARY),
			 errhint("Add \"%s\" to \"shared_preload_libraries\" in postgresql.conf, and restart the server.", OUTBOX_LIBRARY)));
}
