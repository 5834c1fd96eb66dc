/*
 * kept_error.c - what is kept of an error.
 *
 * An error's texts are the handler's, and may hold anything: personal data, bytes that are no characters of
 * the database's encoding, hundreds of megabytes.  Its code is always kept; its primary message only when the
 * setting outbox.keep_error_message says so, and never its detail, hint or context.  The name of a
 * constraint tells people what happened and holds no data, so it is kept; but an error only claims that
 * there is such a constraint, and this looks whether it is true.
 */
#include "outbox.h"

#include "catalog/namespace.h"
#include "catalog/index.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "kept_error.h"
#include "settings.h"

char *
outbox_kept_error_message(const char *message, Size len)
{
	int			kept;

	if (outbox_keep_error_message != KEEP_MESSAGE_PRIMARY || message == NULL)
		return NULL;
	/* a character that is cut must still be seen whole */
	len = Min(len, OUTBOX_MESSAGE_MAX + MAX_MULTIBYTE_CHAR_LEN);
	kept = pg_mbcliplen(message, (int) len, OUTBOX_MESSAGE_MAX);
	if (!pg_verify_mbstr(GetDatabaseEncoding(), message, kept, true))
		return NULL;
	return pnstrdup(message, kept);
}

static char *
take_name(const char *name)
{
	return name == NULL ? NULL : pnstrdup(name, NAMEDATALEN);
}

void
outbox_kept_error_take_constraint(const ErrorData *error, OutboxConstraint *constraint)
{
	constraint->schema_name = take_name(error->schema_name);
	constraint->table_name = take_name(error->table_name);
	constraint->type_name = take_name(error->datatype_name);
	constraint->constraint_name = take_name(error->constraint_name);
}

/* Names that are too long are no names; what is no text would be an error in a lookup. */
static bool
is_name(const char *name)
{
	return name != NULL && name[0] != '\0' && strlen(name) < NAMEDATALEN &&
		pg_verify_mbstr(GetDatabaseEncoding(), name, strlen(name), true);
}

/* A constraint of the table, or a unique index of it that no constraint made. */
static bool
table_has(Oid schema, const char *table_name, const char *name)
{
	Oid			table = get_relname_relid(table_name, schema);
	Oid			index = get_relname_relid(name, schema);

	if (!OidIsValid(table))
		return false;
	if (OidIsValid(get_relation_constraint_oid(table, name, true)))
		return true;
	return OidIsValid(index) && IndexGetRelation(index, true) == table;
}

static bool
domain_has(Oid schema, const char *type_name, const char *name)
{
	Oid			type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum(type_name), ObjectIdGetDatum(schema));

	return OidIsValid(type) && OidIsValid(get_domain_constraint_oid(type, name, true));
}

char *
outbox_kept_error_constraint(const char *sqlstate, const OutboxConstraint *constraint)
{
	Oid			schema;
	bool		there;

	if (!is_name(constraint->constraint_name) || !is_name(constraint->schema_name))
		return NULL;
	schema = get_namespace_oid(constraint->schema_name, true);
	if (!OidIsValid(schema))
		return NULL;
	there = (is_name(constraint->table_name) && table_has(schema, constraint->table_name, constraint->constraint_name)) ||
		(is_name(constraint->type_name) && domain_has(schema, constraint->type_name, constraint->constraint_name));
	return there ? psprintf("%s: constraint \"%s\"", sqlstate, constraint->constraint_name) : NULL;
}
