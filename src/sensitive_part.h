/*
 * sensitive_part.h - what the files that look for sensitive data share.
 *
 * sensitive_key.c puts keys into classes, sensitive_token.c finds tokens and keys in a text, sensitive_number.c
 * numbers of people and cards, sensitive_fold.c makes other ways to write the same alike; sensitive.c walks over a value.
 *
 * A text is as long as a publisher makes it: whatever looks at one takes a time that grows with its length, and no faster.
 */
#ifndef OUTBOX_SENSITIVE_PART_H
#define OUTBOX_SENSITIVE_PART_H

#include "outbox.h"
#include "sensitive.h"

#define KEY_BYTES_MAX 128		/* of a key that is classified */

#define FIND(detector, condition) \
	do { \
		if ((enabled & OUTBOX_DETECT(detector)) && (condition)) \
			return detector; \
	} while (0)

/* does the parameter of a URL that is called so hold a token, or a signature? */
extern bool outbox_sensitive_key_is_token(const char *name, int len);

/* one text that is read from its beginning to its end, and what is remembered so that no part of it is read again and again */
typedef struct OutboxTextScan
{
	const char *text;
	int			len;
	uint32		classes;
	uint32		enabled;
	bool		asked;			/* whether it speaks of residents is known */
	bool		speaks_of_residents;
	int			no_jwt_before;	/* none begins before this place */
} OutboxTextScan;

/* does a token or key stand at the mark at i? */
extern OutboxDetector outbox_sensitive_token_check(OutboxTextScan *scan, int i);

/* do the digits at *at belong to a number of a person or card?  Moves *at to the last of them. */
extern OutboxDetector outbox_sensitive_number_check(OutboxTextScan *scan, int *at);

/*
 * The plain form of what looks the same: full-width letters and digits, dashes, blanks of all kinds; what has no width is left
 * out.  UTF-8 into UTF-8, never longer; the same place may be given for both.  Returns the length.
 */
extern int	outbox_sensitive_fold(const char *text, int len, char *folded);

static inline bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static inline bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static inline bool
is_word(char c)
{
	return is_digit(c) || is_letter(c) || c == '_';
}

static inline char
to_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
}

static inline bool
is_base64url(char c)
{
	return is_word(c) || c == '-';
}

static inline int
count_digits(const char *text, int len)
{
	int			n = 0;

	while (n < len && is_digit(text[n]))
		n++;
	return n;
}

static inline int
count_base64url(const char *text, int len)
{
	int			n = 0;

	while (n < len && is_base64url(text[n]))
		n++;
	return n;
}

/* Does the text begin with a word in lower case, whatever its own case? */
static inline bool
begins_with(const char *text, int len, const char *word)
{
	int			n = strlen(word);

	if (len < n)
		return false;
	for (int i = 0; i < n; i++)
	{
		if (to_lower(text[i]) != word[i])
			return false;
	}
	return true;
}

static inline bool
ends_with(const char *text, int len, const char *end)
{
	int			n = strlen(end);

	return len >= n && memcmp(text +len - n, end, n) == 0;
}

static inline bool
is_one_of(const char *word, const char *const *list, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (strcmp(word, list[i]) == 0)
			return true;
	}
	return false;
}

#define ONE_OF(word, list) is_one_of(word, list, lengthof(list))

static inline bool
has_high_bit(const char *text, int len)
{
	for (int i = 0; i < len; i++)
	{
		if (IS_HIGHBIT_SET(text[i]))
			return true;
	}
	return false;
}

#endif							/* OUTBOX_SENSITIVE_PART_H */
