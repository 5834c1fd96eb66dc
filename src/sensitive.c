/*
 * sensitive.c - what looks like something that must not travel in an event.
 *
 * Every publish() asks about every key and every text of it, so ordinary ones must cost
 * next to nothing: classes of keys are remembered, and a text is read once, with a table that says which of
 * its bytes may begin something.  Only there is it looked at closely.
 *
 * A refusal stops a business transaction.  So each rule asks for a form that ordinary ids,
 * times, amounts, hashes and order numbers do not have, or for a key that says what the value is.
 */
#include "outbox.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "sensitive.h"
#include "sensitive_part.h"

static const char *const names[OUTBOX_DETECTORS] = {
	[DETECTED_NOTHING] = "nothing",
	[DETECTED_JWT] = "jwt",
	[DETECTED_PRIVATE_KEY] = "private_key",
	[DETECTED_CREDENTIALS] = "credentials",
	[DETECTED_SECRET_KEY_NAME] = "secret_key_name",
	[DETECTED_RESIDENT_NUMBER] = "resident_number",
	[DETECTED_PASSPORT] = "passport",
	[DETECTED_BANK_ACCOUNT] = "bank_account",
	[DETECTED_PHONE] = "phone",
	[DETECTED_PAYMENT_CARD] = "payment_card",
	[DETECTED_URL_TOKEN] = "url_token",
	[DETECTED_PROMPT] = "prompt",
};

const char *
outbox_sensitive_name(OutboxDetector detector)
{
	return names[detector];
}

OutboxDetector
outbox_sensitive_find(const char *name, int len)
{
	for (int i = 1; i < OUTBOX_DETECTORS; i++)
	{
		if ((int) strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
			return i;
	}
	return DETECTED_NOTHING;
}

/* ---------------------------------------------------------------- values under a key that tells */

/* What is left when blanks, hyphens, dots and brackets are taken out: all digits?  Returns how many, or -1. */
static int
strip_to_digits(const char *text, int len, char *digits, int room, bool *plus)
{
	int			n = 0;

	*plus = false;
	for (int i = 0; i < len; i++)
	{
		if (is_digit(text[i]))
		{
			if (n == room)
				return -1;
			digits[n++] = text[i];
		}
		else if (text[i] == '+' && n == 0 && !*plus)
			*plus = true;
		else if (text[i] == '\0' || !strchr(" -.()/", text[i]))
			return -1;
	}
	return n;
}

/* Korean ones, and E.164; under a key that says so any number of that length. */
static bool
is_phone(const char *text, int len)
{
	char		digits[24];
	bool		plus;
	int			n = strip_to_digits(text, len, digits, sizeof(digits), &plus);

	return n >= 8 && n <= 15 && (plus || digits[0] == '0' || n >= 9);
}

/* One sign between groups of digits: where the next begins, or -1. */
static int
next_group(const char *text, int len, int at, const char *separators)
{
	return at + 1 < len && text[at] != '\0' && strchr(separators, text[at]) != NULL && is_digit(text[at + 1]) ? at + 1 : -1;
}

/* May a number begin at `at`: not within a word, a date or another number? */
static bool
begins_number(const char *text, int at)
{
	if (at == 0)
		return true;
	if (text[at - 1] == '-' || text[at - 1] == '.')
		return at == 1 || !(is_word(text[at - 2]));
	return !is_word(text[at - 1]);
}

/* +821012345678, +82 10-1234-5678, from behind the plus: its end, or -1. */
static int
read_international(const char *text, int len, int at)
{
	int			digits = 0;

	for (int group = 0; group < 5 && digits <= 15; group++)
	{
		int			n = count_digits(text +at, len - at);
		int			next;

		digits += n;
		at += n;
		next = next_group(text, len, at, " -.");
		if (n == 0 || next < 0)
			break;
		at = next;
	}
	return digits >= 10 && digits <= 15 ? at : -1;
}

/* 01012345678, 010-1234-5678, 02 123 4567: its end, or -1. */
static int
read_domestic(const char *text, int len, int at)
{
	int			first = count_digits(text +at, len - at);
	int			lengths[2];

	if (first < 2 || text[at] != '0' || text[at + 1] == '0')
		return -1;
	if (first >= 9)
		return first <= 11 ? at + first : -1;
	if (first > 4 || (first == 2 && text[at + 1] != '2'))
		return -1;
	at += first;
	for (int i = 0; i < 2; i++)
	{
		at = next_group(text, len, at, " -.");
		if (at < 0)
			return -1;
		lengths[i] = count_digits(text +at, len - at);
		at += lengths[i];
	}
	return (lengths[0] == 3 || lengths[0] == 4) && lengths[1] == 4 ? at : -1;
}

/* Among words, or other numbers: "010-1234-5678 (home)".  Here the form must tell. */
static bool
holds_phone(const char *text, int len)
{
	for (int i = 0; i < len; i++)
	{
		int			end;

		if (!is_digit(text[i]))
			continue;
		if (i > 0 && text[i - 1] == '+')
			end = read_international(text, len, i);
		else
			end = begins_number(text, i) ? read_domestic(text, len, i) : -1;
		if (end >= 0 && (end == len || !(is_word(text[end]) || text[end] == '*' || next_group(text, len, end, "-.") >= 0)))
			return true;
		i += count_digits(text +i, len - i) - 1;
	}
	return false;
}

/* In a column, which no key explains: 010-1234-5678 and +821012345678, perhaps behind "phone:" */
static bool
is_phone_column(const char *text, int len)
{
	char		digits[24];
	bool		plus;
	int			n;

	for (int i = len - 1; i >= 0; i--)
	{
		if (text[i] == ':')
		{
			text	  +=i + 1;

			len -= i + 1;
			break;
		}
	}
	n = strip_to_digits(text, len, digits, sizeof(digits), &plus);
	if (n < 0)
		return false;
	if (plus)
		return n >= 10 && n <= 15 && digits[0] != '0';
	return (n == 10 || n == 11) && n < len && text[3] == '-' && digits[0] == '0' && digits[1] == '1' &&
	strchr("016789", digits[2]) != NULL;
}

static bool
is_iban(const char *text, int len)
{
	int			n = 0;
	int			rest = 0;
	char		letters[40];

	for (int i = 0; i < len; i++)
	{
		if (text[i] == ' ' || text[i] == '-')
			continue;
		if (n == 34 || !(is_digit(text[i]) || (text[i] >= 'A' && text[i] <= 'Z')))
			return false;
		letters[n++] = text[i];
	}
	if (n < 15 || is_digit(letters[0]) || is_digit(letters[1]) || !is_digit(letters[2]) || !is_digit(letters[3]))
		return false;
	for (int i = 0; i < n; i++)
	{
		char		c = letters[(i + 4) % n];

		rest = is_digit(c) ? (rest * 10 + c - '0') % 97 : (rest * 100 + c - 'A' + 10) % 97;
	}
	return rest == 1;
}

static bool
is_bank_account(const char *text, int len, uint32 classes)
{
	char		digits[24];
	bool		plus;
	int			n;

	if (is_iban(text, len))
		return true;
	n = strip_to_digits(text, len, digits, sizeof(digits), &plus);
	if (plus || n < 7 || n > 20)
		return false;
	/* 110-123-456789 is a bank's, 4711081512 may be a user's */
	return (classes & KEY_ACCOUNT) || (n >= 10 && memchr(text, '-', len) != NULL);
}

/* Among words, such as the bank's name: "110-123-456789 (KB)" */
static bool
holds_bank_account(const char *text, int len)
{
	for (int i = 0; i < len; i++)
	{
		int			start = i;
		int			groups = 0;
		int			digits = 0;
		int			next = i;

		if (!is_digit(text[i]))
			continue;
		while (next >= 0)
		{
			int			n = count_digits(text +next, len - next);

			groups++;
			digits += n;
			i = next + n;
			next = next_group(text, len, i, "-");
		}
		if (digits >= 10 && digits <= (groups > 1 ? 16 : 14) && begins_number(text, start) &&
			(i == len || !(is_word(text[i]) || text[i] == '*' || text[i] == '-' || next_group(text, len, i, ".,") >= 0)))
			return true;
	}
	return false;
}

/* One or two letters and seven or eight digits, M123A4567, nine digits: five digits at least, and capitals. */
static bool
is_passport(const char *text, int len)
{
	int			digits = 0;
	int			letters = 0;

	for (int i = 0; i < len; i++)
	{
		if (is_digit(text[i]))
			digits++;
		else if (is_letter(text[i]))
			letters++;
		else if (text[i] != ' ' && text[i] != '-')
			return false;
	}
	return digits >= 5 && letters <= 3 && digits + letters >= 6 && digits + letters <= 12;
}

/* Prose: words, or anything that is not a plain mark such as "done", "2026-03-01". */
static bool
is_prose(const char *text, int len)
{
	return len > 32 || has_high_bit(text, len) || memchr(text, ' ', len) != NULL || memchr(text, '\n', len) != NULL;
}

/* "", "*****" */
static bool
is_masked(const char *text, int len)
{
	for (int i = 0; i < len; i++)
	{
		if (text[i] != '*')
			return false;
	}
	return true;
}

static OutboxDetector
check_by_key(const char *value, int len, uint32 classes, uint32 enabled)
{
	if (classes & KEY_SECRET)
		FIND(DETECTED_SECRET_KEY_NAME, !is_masked(value, len));
	if (classes & KEY_PHONE)
		FIND(DETECTED_PHONE, is_phone(value, len) || holds_phone(value, len));
	if (classes & KEY_COLUMN)
		FIND(DETECTED_PHONE, is_phone_column(value, len));
	if (classes & (KEY_ACCOUNT | KEY_ACCOUNT_MAYBE))
		FIND(DETECTED_BANK_ACCOUNT, is_bank_account(value, len, classes) ||
			 ((classes & KEY_ACCOUNT) && holds_bank_account(value, len)));
	if (classes & KEY_PASSPORT)
		FIND(DETECTED_PASSPORT, is_passport(value, len));
	if (classes & KEY_PROMPT)
		FIND(DETECTED_PROMPT, is_prose(value, len));
	return DETECTED_NOTHING;
}

/* ---------------------------------------------------------------- values */

/* bytes at which something may begin, or end */
static const uint8 may_begin[256] = {
	['J'] = 1,['-'] = 1,['B'] = 1,['b'] = 1,[':'] = 1,['='] = 1,
	['0'] = 2,['1'] = 2,['2'] = 2,['3'] = 2,['4'] = 2,['5'] = 2,['6'] = 2,['7'] = 2,['8'] = 2,['9'] = 2,
};

/* so many bytes of a text are looked at between two questions whether to go on */
#define BYTES_AT_ONCE 8192

static OutboxDetector
scan_text(OutboxTextScan *scan)
{
	OutboxDetector found = DETECTED_NOTHING;
	int			i = 0;

	while (i < scan->len && found == DETECTED_NOTHING)
	{
		int			end = Min(scan->len - i, BYTES_AT_ONCE) + i;

		for (; i < end && found == DETECTED_NOTHING; i++)
		{
			uint8		kind = may_begin[(unsigned char) scan->text[i]];

			if (kind == 2)
				found = outbox_sensitive_number_check(scan, &i);
			else if (kind == 1)
				found = outbox_sensitive_token_check(scan, i);
		}
		if (i < scan->len)
			CHECK_FOR_INTERRUPTS();
	}
	return found;
}

static OutboxDetector
check_as_it_is(const char *value, int len, uint32 classes, uint32 enabled)
{
	OutboxTextScan scan = {.text = value, .len = len, .classes = classes, .enabled = enabled};
	OutboxDetector found = DETECTED_NOTHING;

	if (classes & ~(KEY_SERIAL | KEY_GENERIC | KEY_CARD | KEY_RESIDENT))
		found = check_by_key(value, len, classes, enabled);
	return found != DETECTED_NOTHING ? found : scan_text(&scan);
}

/* What a key says to be a number is looked at in its plain form; other texts are not worth that. */
OutboxDetector
outbox_sensitive_check_text(const char *value, int len, uint32 classes, uint32 enabled)
{
	const uint32 numbers = KEY_RESIDENT | KEY_PASSPORT | KEY_ACCOUNT | KEY_ACCOUNT_MAYBE | KEY_PHONE | KEY_CARD;
	OutboxDetector found;
	char	   *folded;

	if (!(classes & numbers) || !has_high_bit(value, len) ||
		(GetDatabaseEncoding() != PG_UTF8 && GetDatabaseEncoding() != PG_SQL_ASCII))
		return check_as_it_is(value, len, classes, enabled);
	folded = palloc(len);
	found = check_as_it_is(folded, outbox_sensitive_fold(value, len, folded), classes, enabled);
	pfree(folded);
	return found;
}

OutboxDetector
outbox_sensitive_check_container(bool is_array, uint32 classes, uint32 enabled)
{
	/* the elements of an array are looked at one by one, with the class of its key */
	if (!is_array && (classes & KEY_SECRET))
		FIND(DETECTED_SECRET_KEY_NAME, true);
	if ((classes & KEY_MESSAGES) || (!is_array && (classes & KEY_PROMPT)))
		FIND(DETECTED_PROMPT, true);
	return DETECTED_NOTHING;
}
