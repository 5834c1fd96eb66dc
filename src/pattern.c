/*
 * pattern.c - event types, the patterns of subscriptions, and codes.
 *
 * Pure: bytes in, an answer out; no server state, no memory.  Everything
 * compares byte by byte, so that neither locale nor collation can make two
 * names one.  Whoever takes a name from outside checks it here; the matching
 * itself trusts that both sides are well-formed.
 */
#include "outbox.h"

#include "pattern.h"

/* a name taken apart: the words between the dots, one after the other */
typedef struct Words
{
	const char *at;				/* the current word; NULL: none left */
	int			len;
	const char *end;
} Words;

static void
find_word(Words *words, const char *at)
{
	const char *dot;

	words->at = at;
	if (at == NULL)
		return;
	dot = memchr(at, '.', words->end - at);
	words->len = (dot != NULL ? dot : words->end) - at;
}

static void
start_words(Words *words, const char *name, int len)
{
	words->end = name + len;
	words->len = 0;
	find_word(words, len > 0 ? name : NULL);
}

static void
next_word(Words *words)
{
	const char *dot = words->at + words->len;

	find_word(words, dot < words->end ? dot + 1 : NULL);
}

static bool
is_wildcard(const Words *words, char wildcard)
{
	return words->at != NULL && words->len == 1 && words->at[0] == wildcard;
}

/* The extension's own event types begin with this word. */
static bool
is_reserved(const char *name, int len)
{
	static const char reserved[] = OUTBOX_SCHEMA;
	const int	n = sizeof(reserved) - 1;

	return len >= n && memcmp(name, reserved, n) == 0 && (len == n || name[n] == '.');
}

static bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool
is_alphanumeric(char c)
{
	return is_letter(c) || is_digit(c);
}

static const char *
check_word(const char *word, int len, bool pattern)
{
	if (len == 0)
		return "Words must not be empty: no dot at either end, and no two dots together.";
	if (pattern && len == 1 && (word[0] == '*' || word[0] == '#'))
		return NULL;
	for (int i = 0; i < len; i++)
	{
		if (pattern && (word[i] == '*' || word[i] == '#'))
			return "A wildcard stands for whole words: \"*\" for one, \"#\" for any number of them.";
		if (!is_alphanumeric(word[i]) && word[i] != '_' && word[i] != '-' && word[i] != '$')
			return "Words consist of the letters A-Z and a-z, digits, \"_\", \"-\" and \"$\", and are joined by dots.";
	}
	return NULL;
}

static const char *
check_words(const char *name, int len, bool pattern)
{
	Words		words;
	const char *reason = NULL;

	if (len == 0)
		return "It must not be empty.";
	if (len > OUTBOX_EVENT_TYPE_MAX)
		return "It must not be longer than 200 characters.";
	for (start_words(&words, name, len); words.at != NULL && reason == NULL; next_word(&words))
		reason = check_word(words.at, words.len, pattern);
	return reason;
}

const char *
outbox_pattern_check_type(const char *type, int len)
{
	return check_words(type, len, false);
}

const char *
outbox_pattern_check(const char *pattern, int len)
{
	return check_words(pattern, len, true);
}

static bool
is_code_character(char c)
{
	return is_alphanumeric(c) || c == '_' || c == '.' || c == ':' || c == '-';
}

bool
outbox_pattern_is_sqlstate(const char *code, int len)
{
	if (len != 5)
		return false;
	for (int i = 0; i < len; i++)
	{
		if (!is_alphanumeric(code[i]) || (code[i] >= 'a' && code[i] <= 'z'))
			return false;
	}
	return true;
}

/*
 * Codes are shown where payloads never are: in views, as labels of metrics, in the log.  So that nobody passes a
 * person's number along as one, a code begins as a name does and has few digits.
 */
const char *
outbox_pattern_check_error_code(const char *code, int len)
{
	int			run = 0;
	int			digits = 0;

	if (len < 1 || len > OUTBOX_ERROR_CODE_MAX)
		return "It has 1 to 64 characters.";
	if (outbox_pattern_is_sqlstate(code, len))
		return NULL;
	for (int i = 0; i < len; i++)
	{
		if (!is_code_character(code[i]))
			return "It consists of the letters A-Z and a-z, digits, \"_\", \".\", \":\" and \"-\".";
	}
	if (!is_letter(code[0]))
		return "It begins with a letter, or is an SQLSTATE.";
	for (int i = 0; i < len; i++)
	{
		run = is_digit(code[i]) ? run + 1 : 0;
		digits += is_digit(code[i]);
		if (run > OUTBOX_CODE_DIGITS_IN_A_ROW || digits > OUTBOX_CODE_DIGITS)
			return "It has at most 6 digits, and at most 5 of them in a row.";
	}
	return NULL;
}

const char *
outbox_pattern_check_error_rule(const char *rule, int len)
{
	if (len == 2 && is_alphanumeric(rule[0]) && is_alphanumeric(rule[1]))
		return NULL;
	return outbox_pattern_check_error_code(rule, len);
}

const char *
outbox_pattern_check_name(const char *subscription, int len)
{
	if (len < 1 || len > OUTBOX_SUBSCRIPTION_MAX)
		return "It has 1 to 200 bytes.";
	for (int i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) subscription[i];

		if (c < 0x20 || c == 0x7f)
			return "It must not contain control characters.";
	}
	return NULL;
}

/*
 * Word by word.  After a `#`, on a mismatch, the last `#` takes one word more
 * and the rest is tried again: earlier ones need no second look, so the time
 * is bounded by the product of the two lengths.
 */
bool
outbox_pattern_matches(const char *pattern, int pattern_len, const char *type, int type_len)
{
	Words		p;
	Words		t;
	Words		p_after = {0};	/* behind the last `#`; and where it began to take */
	Words		t_taken = {0};
	bool		any = false;

	if (is_reserved(type, type_len) && !is_reserved(pattern, pattern_len))
		return false;

	start_words(&p, pattern, pattern_len);
	start_words(&t, type, type_len);
	while (t.at != NULL || p.at != NULL)
	{
		if (is_wildcard(&p, '#'))
		{
			next_word(&p);
			p_after = p;
			t_taken = t;
			any = true;
		}
		else if (p.at != NULL && t.at != NULL &&
				 (is_wildcard(&p, '*') || (p.len == t.len && memcmp(p.at, t.at, p.len) == 0)))
		{
			next_word(&p);
			next_word(&t);
		}
		else if (any && t_taken.at != NULL)
		{
			next_word(&t_taken);
			p = p_after;
			t = t_taken;
		}
		else
			return false;
	}
	return true;
}

static uint64
add_bytes(uint64 hash, const char *bytes, int len)
{
	for (int i = 0; i < len; i++)
		hash = (hash ^ (unsigned char) bytes[i]) * UINT64CONST(0x100000001b3);
	return hash;
}

/*
 * Which lane a key falls into is stored with its events: this function must
 * never change.  The two parts are joined by a zero byte, which no text holds;
 * no tenant is the same as an empty one, as in the tables.
 */
uint64
outbox_pattern_key_hash(const char *tenant, int tenant_len, const char *key, int key_len)
{
	uint64		hash = UINT64CONST(0xcbf29ce484222325);

	if (tenant != NULL)
		hash = add_bytes(hash, tenant, tenant_len);
	hash = add_bytes(hash, "", 1);
	hash = add_bytes(hash, key, key_len);

	/* FNV leaves the high bits poor: mix them, so that any modulus is even */
	hash ^= hash >> 33;
	hash *= UINT64CONST(0xff51afd7ed558ccd);
	hash ^= hash >> 33;
	hash *= UINT64CONST(0xc4ceb9fe1a85ec53);
	hash ^= hash >> 33;
	return hash;
}
