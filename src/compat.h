/*
 * compat.h - the only file that knows server versions (15 to 18).
 *
 * Each shim names what changed upstream, and in which release.
 */
#ifndef OUTBOX_COMPAT_H
#define OUTBOX_COMPAT_H

#include "access/genam.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "executor/executor.h"
#include "utils/acl.h"
#include "utils/wait_event.h"

/* libpq/libpq.h, which declares it, wants the headers of Kerberos where the server was built with it */
extern bool pq_check_connection(void);

/* 16: ExecInsertIndexTuples() learned about summarizing indexes */
#if PG_VERSION_NUM >= 160000
#define outbox_compat_insert_index_tuples(rri, slot, estate, no_dup_err, conflict, arbiters) \
	ExecInsertIndexTuples(rri, slot, estate, false, no_dup_err, conflict, arbiters, false)
#else
#define outbox_compat_insert_index_tuples(rri, slot, estate, no_dup_err, conflict, arbiters) \
	ExecInsertIndexTuples(rri, slot, estate, false, no_dup_err, conflict, arbiters)
#endif

/* 18: index_beginscan() takes a place for instrumentation */
#if PG_VERSION_NUM >= 180000
#define outbox_compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define outbox_compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

/* 16: tuplesort_getdatum() may give what it has not copied */
#if PG_VERSION_NUM >= 160000
#define outbox_compat_tuplesort_getdatum(sort, value, isnull) tuplesort_getdatum(sort, true, false, value, isnull, NULL)
#else
#define outbox_compat_tuplesort_getdatum(sort, value, isnull) tuplesort_getdatum(sort, true, value, isnull, NULL)
#endif

/* 16: the per-catalog ownership and privilege checks became generic ones */
#if PG_VERSION_NUM >= 160000
#define outbox_compat_owns_database(db, role) object_ownercheck(DatabaseRelationId, db, role)
#define outbox_compat_owns_extension(ext, role) object_ownercheck(ExtensionRelationId, ext, role)
#define outbox_compat_owns_schema(nsp, role) object_ownercheck(NamespaceRelationId, nsp, role)
#define outbox_compat_may_execute(fn, role) \
	(object_aclcheck(ProcedureRelationId, fn, role, ACL_EXECUTE) == ACLCHECK_OK)
#define outbox_compat_may_use_schema(nsp, role) \
	(object_aclcheck(NamespaceRelationId, nsp, role, ACL_USAGE) == ACLCHECK_OK)
#else
#define outbox_compat_owns_database(db, role) pg_database_ownercheck(db, role)
#define outbox_compat_owns_extension(ext, role) pg_extension_ownercheck(ext, role)
#define outbox_compat_owns_schema(nsp, role) pg_namespace_ownercheck(nsp, role)
#define outbox_compat_may_execute(fn, role) \
	(pg_proc_aclcheck(fn, role, ACL_EXECUTE) == ACLCHECK_OK)
#define outbox_compat_may_use_schema(nsp, role) \
	(pg_namespace_aclcheck(nsp, role, ACL_USAGE) == ACLCHECK_OK)
#endif

/* 16: membership came apart into ADMIN, INHERIT and SET; what counts is SET ROLE */
#if PG_VERSION_NUM >= 160000
#define outbox_compat_may_become(member, role) member_can_set_role(member, role)
#else
#define outbox_compat_may_become(member, role) is_member_of_role(member, role)
#endif

/* 16: stringToQualifiedNameList() takes a place for soft errors */
#if PG_VERSION_NUM >= 160000
#define outbox_compat_qualified_names(name) stringToQualifiedNameList(name, NULL)
#else
#define outbox_compat_qualified_names(name) stringToQualifiedNameList(name)
#endif

/* 16: force_parallel_mode became debug_parallel_query */
#if PG_VERSION_NUM >= 160000
#define OUTBOX_COMPAT_FORCE_PARALLEL "debug_parallel_query"
#else
#define OUTBOX_COMPAT_FORCE_PARALLEL "force_parallel_mode"
#endif

/* 15.4: a DROP DATABASE that was interrupted leaves this in datconnlimit */
#ifdef DATCONNLIMIT_INVALID_DB
#define OUTBOX_COMPAT_INVALID_DATABASE DATCONNLIMIT_INVALID_DB
#else
#define OUTBOX_COMPAT_INVALID_DATABASE (-2)
#endif

/* 16: declared in commands/tablespace.h; before, in no header */
extern PGDLLIMPORT char *default_tablespace;

/* 18: pg_attribute_noreturn() became pg_noreturn, which stands in front */
#if PG_VERSION_NUM >= 180000
#define OUTBOX_NORETURN pg_noreturn
#else
#define OUTBOX_NORETURN pg_attribute_noreturn()
#endif

/* 17: LockHeldByMe() can look for stronger locks too */
#if PG_VERSION_NUM >= 170000
#define outbox_compat_lock_held(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define outbox_compat_lock_held(tag, mode) LockHeldByMe(tag, mode)
#endif

/* 17: extensions name wait events of their own */
#if PG_VERSION_NUM >= 170000
#define outbox_compat_wait_event(name) WaitEventExtensionNew(name)
#else
#define outbox_compat_wait_event(name) PG_WAIT_EXTENSION
#endif

/* 17: MyBackendId became MyProcNumber, and transaction_timeout came */
#if PG_VERSION_NUM >= 170000
#define OUTBOX_HAS_TRANSACTION_TIMEOUT 1
#endif

/* 16: what a check hook hands on as "extra" comes from the settings' own allocator */
#if PG_VERSION_NUM >= 160000
#define outbox_compat_guc_malloc(size) guc_malloc(LOG, size)
#else
#define outbox_compat_guc_malloc(size) malloc(size)
#endif

/* 16: DefineIndex() takes the number of partitions */
#if PG_VERSION_NUM >= 160000
#define outbox_compat_define_index(relid, stmt) \
	DefineIndex(relid, stmt, InvalidOid, InvalidOid, InvalidOid, -1, false, false, false, false, true)
#else
#define outbox_compat_define_index(relid, stmt) \
	DefineIndex(relid, stmt, InvalidOid, InvalidOid, InvalidOid, false, false, false, false, true)
#endif

/* 18: a check constraint may be not enforced, and is unless told otherwise */
#if PG_VERSION_NUM >= 180000
#define outbox_compat_enforce(constraint) ((constraint)->is_enforced = true)
#else
#define outbox_compat_enforce(constraint) ((void) (constraint))
#endif

/* 16: an update tells which indexes need an entry, not only whether any does; ExecInsertIndexTuples() as above */
#if PG_VERSION_NUM >= 160000
#define OUTBOX_COMPAT_UPDATE_INDEXES TU_UpdateIndexes
#define outbox_compat_update_index_tuples(rri, slot, estate, which) \
	((which) == TU_None ? NIL : \
	 ExecInsertIndexTuples(rri, slot, estate, true, false, NULL, NIL, (which) == TU_Summarizing))
#else
#define OUTBOX_COMPAT_UPDATE_INDEXES bool
#define outbox_compat_update_index_tuples(rri, slot, estate, which) \
	((which) ? ExecInsertIndexTuples(rri, slot, estate, true, false, NULL, NIL) : NIL)
#endif

/* 18: ExecCheckIndexConstraints() can pass over a row */
#if PG_VERSION_NUM >= 180000
#define outbox_compat_check_index_constraints(rri, slot, estate, conflict) \
	ExecCheckIndexConstraints(rri, slot, estate, conflict, NULL, NIL)
#else
#define outbox_compat_check_index_constraints(rri, slot, estate, conflict) \
	ExecCheckIndexConstraints(rri, slot, estate, conflict, NIL)
#endif

#endif							/* OUTBOX_COMPAT_H */
