/*
 * sensitive_number.c - numbers that are a person's or a card's: by their check digits, and how they are grouped.
 */
#include "outbox.h"

#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "sensitive.h"
#include "sensitive_part.h"
#include "settings.h"

/* ---------------------------------------------------------------- numbers of people and cards */

static int
two_digits(const char *text)
{
	return (text[0] - '0') *10 + (text[1] - '0');
}

static bool
is_date(int year, int month, int day)
{
	return month >= 1 && month <= 12 && day >= 1 && day <= day_tab[isleap(year)][month - 1];
}

typedef struct Resident
{
	int			year;
	int			month;
	int			day;
	bool		alien;
	bool		checked;		/* the check digit is right */
} Resident;

/*
 * Thirteen digits, YYMMDDGNNNNNC; false when they are no person's.  A day of this decade with a 1 or
 * 2 behind it is an order's date rather than somebody's of a hundred years.
 */
static bool
read_resident(const char *digits, Resident *person)
{
	static const int weights[] = {2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5};
	int			kind = digits[6] - '0';
	int			sum = 0;
	int			today;
	int			year;
	int			month;
	int			day;

	if (kind < 1 || kind > 8)
		return false;
	person->alien = kind >= 5;
	person->year = ((kind - 1) % 4 < 2 ? 1900 : 2000) + two_digits(digits);
	person->month = two_digits(digits + 2);
	person->day = two_digits(digits + 4);
	if (!is_date(person->year, person->month, person->day))
		return false;
	today = (int) (outbox_settings_now() / USECS_PER_DAY) + POSTGRES_EPOCH_JDATE;
	j2date(today, &year, &month, &day);
	if (date2j(person->year, person->month, person->day) > today + 1 || person->year < year - 99)
		return false;
	for (int i = 0; i < 12; i++)
		sum += (digits[i] - '0') * weights[i];
	person->checked = ((person->alien ? 13 : 11) - sum % 11) % 10 == digits[12] - '0';
	return true;
}

/* Numbers issued since October 2020 have no check digit. */
static bool
may_be_unchecked(const Resident *person)
{
	return person->alien || person->year > 2020 || (person->year == 2020 && person->month >= 10);
}

/*
 * 900101-1234568.  The check digit must be right where there is one; whoever was born before and got
 * a new number has none either, but so have the order numbers of a day: there the key must tell.
 */
static bool
is_hyphenated_resident(const char *digits, uint32 classes)
{
	Resident	person;

	return read_resident(digits, &person) &&
		(person.checked || may_be_unchecked(&person) || (classes & KEY_RESIDENT));
}

static bool
passes_luhn(const char *digits, int len)
{
	int			sum = 0;

	for (int i = 0; i < len; i++)
	{
		int			d = digits[len - 1 - i] - '0';

		if (i % 2 == 1)
			d = d * 2 > 9 ? d * 2 - 9 : d * 2;
		sum += d;
	}
	return sum % 10 == 0;
}

static int
leading(const char *digits, int n)
{
	int			value = 0;

	for (int i = 0; i < n; i++)
		value = value * 10 + digits[i] - '0';
	return value;
}

/* Of a brand that is in use, in its length? */
static bool
is_card(const char *digits, int len)
{
	int			two = leading(digits, 2);
	int			three = leading(digits, 3);
	int			four = leading(digits, 4);
	bool		known = false;

	if (len == 16)
		known = digits[0] == '4' || (two >= 51 && two <= 55) || (four >= 2221 && four <= 2720) ||
			four == 6011 || two == 65 || (three >= 644 && three <= 649) ||
			(four >= 3528 && four <= 3589) || two == 62 || two == 94;
	else if (len == 15)
		known = two == 34 || two == 37;
	else if (len == 19)
		known = two == 62;
	else if (len == 14)
		known = two == 36 || two == 38 || two == 39 || (three >= 300 && three <= 305);
	return known && passes_luhn(digits, len);
}

/* ---------------------------------------------------------------- digits in a text */

/* a card of four groups, the month, year and code behind it, and one that is too many */
#define GROUPS_MAX	8

typedef struct Run
{
	const char *text;
	int			len;
	int			start;
	int			end;			/* behind the digits, and the groups that follow */
	int			ngroups;
	int			groups[GROUPS_MAX]; /* their lengths */
	char		separator;
	int			ndigits;
	char		digits[24];
} Run;

/* One blank or hyphen between groups, always the same; " - " counts as a hyphen; of a card that is called one a dot too. */
static int
separator_at(const OutboxTextScan *scan, int at, char *separator)
{
	const char *text = scan->text +at;
	int			len = scan->len - at;

	if (len > 3 && memcmp(text, " - ", 3) == 0 && is_digit(text[3]))
	{
		*separator = '-';
		return 3;
	}
	if (len > 1 && (text[0] == '-' || text[0] == ' ' || (text[0] == '.' && (scan->classes & KEY_CARD))) &&is_digit(text[1]))
	{
		*separator = text[0];

		return 1;
	}
	return 0;
}

/* From `start`, the groups of digits that may matter: no more than that, as the next group is read from anew. */
static void
read_run(Run *run, const OutboxTextScan *scan, int start)
{
	const char *text = scan->text;
	int			at = start;

	run->text = text;

	run->len = scan->len;
	run->start = start;
	run->ngroups = 0;
	run->ndigits = 0;
	run->separator = '\0';
	while (true)
	{
		int			n = count_digits(text +at, scan->len - at);
		char		separator = '\0';
		int			skip;

		run->groups[run->ngroups++] = n;
		for (int i = 0; i < n && run->ndigits < sizeof(run->digits); i++)
			run->digits[run->ndigits++] = text[at + i];

		at += n;
		run->end = at;
		skip = separator_at(scan, at, &separator);
		if (run->ngroups == GROUPS_MAX || skip == 0 || (run->separator != '\0' && separator != run->separator))
			return;
		run->separator = separator;
		at += skip;
	}
}

/* ".0", which serializers of floats add to a whole number */
static bool
is_zero_scale(const char *text, int len)
{
	return len >= 2 && text[0] == '.' && text[1] == '0' &&
	(len == 2 || !(is_word(text[2]) || ((text[2] == '.' || text[2] == ',') &&len > 3 && is_digit(text[3]))));
}

/* A sign, or the mark of an item, rather than a hyphen within something. */
static bool
is_sign(const Run *run)
{
	return run->text[run->start - 1] == '-' && (run->start == 1 || run->text[run->start - 2] == ' ');
}

/* Not a part of a longer word or number. */
static bool
stands_alone(const Run *run, bool hyphens_too)
{
	char		before = run->start > 0 ? run->text[run->start - 1] : ' ';
	char		after = run->end < run->len ? run->text[run->end] : ' ';
	bool		number_goes_on = (after == '.' || after == ',') && run->end + 1 < run->len && is_digit(run->text[run->end + 1]);

	if (is_word(before) || is_word(after) ||
		(number_goes_on && !is_zero_scale(run->text +run->end, run->len - run->end)))
		return false;
	if ((before == '.' || before == ',') && run->start > 1 && is_digit(run->text[run->start - 2]))
		return false;
	return !hyphens_too || ((before != '-' || is_sign(run)) && after != '-');
}

static bool
has_groups(const Run *run, int count, const int *lengths)
{
	return run->ngroups == count && memcmp(run->groups, lengths, count * sizeof(int)) == 0;
}

/* Does the text around it say that it is one?  Asked once a text. */
static bool
speaks_of_residents(OutboxTextScan *scan)
{
	static const char *const hints[] = {"\uC8FC\uBBFC", "\uC678\uAD6D\uC778\uB4F1\uB85D", "resident", "rrn"};

	if (scan->asked)
		return scan->speaks_of_residents;
	scan->asked = true;
	for (int i = 0; i < scan->len && !scan->speaks_of_residents; i++)
	{
		/* what each of them begins with */
		if (to_lower(scan->text[i]) != 'r' && scan->text[i] != hints[0][0])
			continue;
		for (int j = 0; j < lengthof(hints); j++)
			scan->speaks_of_residents |= begins_with(scan->text +i, scan->len - i, hints[j]);
	}
	return scan->speaks_of_residents;
}

static bool
is_resident_run(const Run *run, OutboxTextScan *scan)
{
	static const int grouped[] = {6, 7};
	uint32		classes = scan->classes;
	Resident	person;

	if (has_groups(run, 2, grouped))
		return !(classes & KEY_SERIAL) && stands_alone(run, true) &&
			(run->separator == '-' || (classes & KEY_RESIDENT)) && is_hyphenated_resident(run->digits, classes);
	if (run->ngroups != 1 || run->groups[0] != 13 || !stands_alone(run, true) || !read_resident(run->digits, &person))
		return false;
	return (classes & KEY_RESIDENT) || (person.checked && speaks_of_residents(scan));
}

/*
 * The month and year, or the code, that people write behind the groups of a card: "12/27", "12 27", "123",
 * "12 27 123", "1227 123".  A list of numbers is none: nothing may stand in front of the card's.
 */
static bool
is_card_tail(const Run *run, int count, int card_digits)
{
	const int  *groups = run->groups + count;
	const char *digits = run->digits + card_digits;
	int			rest = run->ngroups - count;
	int			at = run->end;
	bool		month;

	if (run->separator != ' ' || rest > 3 || (run->start > 1 && run->text[run->start - 1] == ' ' && is_digit(run->text[run->start - 2])))
		return false;
	if (rest == 1 && groups[0] == (card_digits == 15 ? 4 : 3))
		return true;
	if (groups[0] != 2 && groups[0] != 4)
		return false;
	month = two_digits(digits) >= 1 && two_digits(digits) <= 12;
	if (groups[0] == 4)
		return month && rest == 2 && groups[1] == 3;
	if (rest > 1)
		return month && groups[1] == 2 && (rest == 2 || groups[2] == 3);
	if (at < run->len && run->text[at] == ' ')
		at++;
	return month && at < run->len && run->text[at] == '/';
}

static bool
is_card_run(const Run *run, uint32 classes)
{
	static const int forms[][4] = {{4, 4, 4, 4}, {4, 6, 5}, {4, 6, 4}};

	for (int i = 0; i < lengthof(forms); i++)
	{
		int			count = i == 0 ? 4 : 3;
		int			n = i == 0 ? 16 : (i == 1 ? 15 : 14);

		if (run->ngroups >= count && memcmp(run->groups, forms[i], count * sizeof(int)) == 0 &&
			(run->ngroups == count || is_card_tail(run, count, n)))
			return stands_alone(run, true) && is_card(run->digits, n);
	}
	if (run->ngroups != 1 || run->groups[0] < 14 || run->groups[0] > 19 || (classes & KEY_SERIAL))
		return false;
	if (run->groups[0] == 14 && !(classes & KEY_CARD))
		return false;
	return stands_alone(run, false) && is_card(run->digits, run->groups[0]);
}

OutboxDetector
outbox_sensitive_number_check(OutboxTextScan *scan, int *at)
{
	uint32		enabled = scan->enabled;
	int			start = *at;
	int			n = count_digits(scan->text +start, scan->len - start);
	Run			run;

	*at = start + n - 1;
	if (n != 4 && n != 6 && n < 13)
		return DETECTED_NOTHING;
	read_run(&run, scan, start);
	FIND(DETECTED_RESIDENT_NUMBER, is_resident_run(&run, scan));
	FIND(DETECTED_PAYMENT_CARD, is_card_run(&run, scan->classes));
	/* a long number among others: "1 4111111111111111" */
	if (run.ngroups > 1 && n >= 13)
	{
		run.ngroups = 1;
		run.end = start + n;
		run.ndigits = Min(n, (int) sizeof(run.digits));
		FIND(DETECTED_PAYMENT_CARD, is_card_run(&run, scan->classes));
	}
	return DETECTED_NOTHING;
}

/* ---------------------------------------------------------------- JSON numbers */

OutboxDetector
outbox_sensitive_check_number(const char *digits, int len, uint32 classes, uint32 enabled)
{
	if (classes & KEY_SECRET)
		FIND(DETECTED_SECRET_KEY_NAME, true);
	if (classes & (KEY_RESIDENT | KEY_PHONE | KEY_ACCOUNT | KEY_PASSPORT))
	{
		Resident	person;

		if (count_digits(digits, len) != len)
			return DETECTED_NOTHING;
		if (classes & KEY_RESIDENT)
		{
			/* the zeros in front are lost */
			char		padded[14] = "0000000000000";

			if (len >= 10 && len <= 13)
			{
				memcpy(padded + 13 - len, digits, len);
				FIND(DETECTED_RESIDENT_NUMBER, read_resident(padded, &person));
			}
		}
		if (classes & KEY_PHONE)
			FIND(DETECTED_PHONE, len >= 9 && len <= 15);
		if (classes & KEY_ACCOUNT)
			FIND(DETECTED_BANK_ACCOUNT, len >= 7 && len <= 20);
		if (classes & KEY_PASSPORT)
			FIND(DETECTED_PASSPORT, len >= 7 && len <= 9);
	}
	if (!(classes & KEY_SERIAL))
		FIND(DETECTED_PAYMENT_CARD, count_digits(digits, len) == len && len >= ((classes & KEY_CARD) ? 14 : 15) && is_card(digits, len));
	return DETECTED_NOTHING;
}
