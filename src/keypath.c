/*
 * keypath.c - the paths that name keys of a JSON document.
 *
 * One grammar for what people write in a definition and for what messages show, so
 * that the one can be copied into the other.  What is shown is made for logs: it is short, on one line, and
 * holds no more of a hostile key than a person needs to find it.
 */
#include "outbox.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"

#include "keypath.h"
#include "sensitive.h"

#define SHOWN_KEY_MAX	48		/* bytes of a key */
#define SHOWN_PATH_MAX	200		/* bytes of a path */
#define SHOWN_DIGITS_MAX 4		/* longer runs are masked */

/* ---------------------------------------------------------------- reading */

static bool
is_special(char c)
{
	return c != '\0' && strchr(".[]*\"", c) != NULL;
}

/* A key in quotes, the position behind the first of them; -1: never closed. */
static int
read_quoted(const char *text, int len, int at, OutboxKeyStep *step)
{
	char	   *key = palloc(len - at + 1);

	step->key = key;
	step->len = 0;
	for (; at < len && text[at] != '"'; at++)
	{
		if (text[at] == '\\' && at + 1 < len)
			at++;
		key[step->len++] = text[at];
	}
	key[step->len] = '\0';
	return at < len ? at + 1 : -1;
}

static int
read_bare(const char *text, int len, int at, OutboxKeyStep *step)
{
	int			start = at;

	while (at < len && !is_special(text[at]))
		at++;
	step->key = pnstrdup(text +start, at - start);
	step->len = at - start;
	return at;
}

static bool
has_control_character(const char *text, int len)
{
	for (int i = 0; i < len; i++)
	{
		if ((unsigned char) text[i] < 0x20 || text[i] == 0x7f)
			return true;
	}
	return false;
}

/* The key at *at, and the "[]" behind it. */
static const char *
read_step(const char *text, int len, int *at, OutboxKeyPath *path)
{
	OutboxKeyStep step = {NULL, 0};

	if (text[*at] == '"')
	{
		*at = read_quoted(text, len, *at + 1, &step);
		if (*at < 0)
			return "A quote is not closed.";
	}
	else if (text[*at] != '[' || path->nsteps > 0)
	{
		*at = read_bare(text, len, *at, &step);
		if (step.len == 0)
			return "A key is missing; a key that holds a dot, a bracket or an asterisk stands in double quotes.";
	}
	if (step.key != NULL)
		path->steps[path->nsteps++] = step;
	while (*at + 1 < len && text[*at] == '[' && text[*at + 1] == ']' && path->nsteps < OUTBOX_KEYPATH_STEPS_MAX)
	{
		path->steps[path->nsteps].key = NULL;
		path->steps[path->nsteps++].len = 0;
		*at += 2;
	}
	if (*at < len && text[*at] != '.')
		return "Keys are joined by dots; \"[]\" stands for the elements of an array, and \".*\" at the end for all that is below.";
	return NULL;
}

const char *
outbox_keypath_parse(const char *text, int len, OutboxKeyPath *path)
{
	int			at = 0;

	path->nsteps = 0;
	path->below = false;
	if (len == 0)
		return "It must not be empty.";
	if (len > OUTBOX_KEYPATH_BYTES_MAX)
		return "It must not be longer than 1000 bytes.";
	if (has_control_character(text, len))
		return "It must not contain control characters.";
	while (at < len)
	{
		const char *reason;

		if (path->nsteps > 0 && strncmp(text +at, "*", len - at) == 0 && at == len - 1)
		{
			path->below = true;
			return NULL;
		}
		if (path->nsteps == OUTBOX_KEYPATH_STEPS_MAX)
			return "It must not be deeper than 32 steps.";
		reason = read_step(text, len, &at, path);
		if (reason != NULL)
			return reason;
		if (at < len && ++at == len)
			return "It must not end with a dot.";
	}
	return NULL;
}

int
outbox_keypath_compare_keys(const char *a, int alen, const char *b, int blen)
{
	if (alen != blen)
		return alen < blen ? -1 : 1;
	return memcmp(a, b, alen);
}

/* ---------------------------------------------------------------- showing */

static bool
needs_quotes(const char *key, int len)
{
	if (len == 0)
		return true;
	for (int i = 0; i < len; i++)
	{
		if (is_special(key[i]) || key[i] == '\\' || key[i] == ' ')
			return true;
	}
	return has_control_character(key, len);
}

static int
count_digits(const char *key, int len)
{
	int			n = 0;

	while (n < len && key[n] >= '0' && key[n] <= '9')
		n++;
	return n;
}

static void
append_characters(StringInfo out, const char *key, int len, bool quoted)
{
	for (int i = 0; i < len; i++)
	{
		int			digits = count_digits(key + i, len - i);

		if (digits > SHOWN_DIGITS_MAX)
		{
			for (int j = 0; j < digits; j++)
				appendStringInfoChar(out, '#');
			i += digits - 1;
		}
		else if (has_control_character(key + i, 1))
			appendStringInfo(out, "\\u%04x", (unsigned char) key[i]);
		else
		{
			if (quoted && (key[i] == '"' || key[i] == '\\'))
				appendStringInfoChar(out, '\\');
			appendStringInfoChar(out, key[i]);
		}
	}
}

static void
append_key(StringInfo out, const char *key, int len)
{
	bool		quoted = needs_quotes(key, len);
	int			shown = len > SHOWN_KEY_MAX ? pg_mbcliplen(key, len, SHOWN_KEY_MAX) : len;

	if (outbox_sensitive_check_text(key, len, 0, OUTBOX_DETECT_ALL) != DETECTED_NOTHING)
	{
		appendStringInfoString(out, "\"...\"");
		return;
	}
	if (quoted)
		appendStringInfoChar(out, '"');
	append_characters(out, key, shown, quoted);
	if (shown < len)
		appendStringInfoString(out, "...");
	if (quoted)
		appendStringInfoChar(out, '"');
}

char *
outbox_keypath_show(const OutboxKeyStep *steps, int nsteps)
{
	StringInfoData out;
	int			first = nsteps;
	int			bytes = 0;

	/* from the end, which is what the message is about */
	while (first > 0 && bytes < SHOWN_PATH_MAX)
	{
		first--;
		bytes += steps[first].key == NULL ? 2 : Min(steps[first].len, SHOWN_KEY_MAX) + 3;
	}
	initStringInfo(&out);
	if (first > 0)
		appendStringInfoString(&out, "...");
	for (int i = first; i < nsteps; i++)
	{
		if (steps[i].key == NULL)
			appendStringInfoString(&out, "[]");
		else
		{
			if (i > 0)
				appendStringInfoChar(&out, '.');
			append_key(&out, steps[i].key, steps[i].len);
		}
	}
	return out.data;
}

char *
outbox_keypath_quote(const char *path)
{
	return psprintf(strchr(path, '"') != NULL ? "'%s'" : "\"%s\"", path);
}
