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

#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "sensitive.h"
#include "settings.h"

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

/* ---------------------------------------------------------------- characters */

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool
is_word(char c)
{
	return is_digit(c) || is_letter(c) || c == '_';
}

static char
to_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
}

static bool
is_base64url(char c)
{
	return is_word(c) || c == '-';
}

static int
count_digits(const char *text, int len)
{
	int			n = 0;

	while (n < len && is_digit(text[n]))
		n++;
	return n;
}

static int
count_base64url(const char *text, int len)
{
	int			n = 0;

	while (n < len && is_base64url(text[n]))
		n++;
	return n;
}

/* Does the text begin with a word in lower case, whatever its own case? */
static bool
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

static bool
ends_with(const char *text, int len, const char *end)
{
	int			n = strlen(end);

	return len >= n && memcmp(text +len - n, end, n) == 0;
}

static bool
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

/* ---------------------------------------------------------------- keys: words */

#define WORDS_MAX	8
#define WORD_BYTES	24

/* the last words of a key, in lower case: "userPhone-No2" is user, phone, no */
typedef struct Words
{
	int			count;
	char		word[WORDS_MAX][WORD_BYTES];
} Words;

static const char *const generic_words[] = {
	"number", "numbers", "no", "nos", "num", "nr", "value", "values", "text", "raw", "plain", "digits", "string"
};
static const char *const secret_words[] = {
	"password", "passwords", "passwd", "pwd", "passphrase", "passcode", "secret", "secrets", "token", "authorization",
	"credential", "credentials", "apikey", "accesskey", "secretkey", "privatekey", "otp", "cvv", "cvv2", "cvc",
	"cookie", "cookies"
};
static const char *const secret_ends[] = {"password", "passwd", "passphrase", "secret", "token", "apikey"};
static const char *const password_words[] = {"password", "passwd", "pwd", "passphrase"};
static const char *const digest_words[] = {"hash", "digest", "salt", "encrypted"};
static const char *const secret_key_kinds[] = {
	"api", "access", "private", "secret", "signing", "encryption", "auth", "session"
};

/* tokens that say where a list goes on, or who came first, and open nothing */
static const char *const harmless_tokens[] = {
	"page", "next", "previous", "continuation", "sync", "resume", "fencing", "idempotency"
};
static const char *const resident_words[] = {"rrn", "jumin", "resident", "juminno", "residentno"};
static const char *const resident_kinds[] = {"resident", "alien", "foreigner", "foreign", "citizen", "national"};
static const char *const resident_nouns[] = {"registration", "id"};
static const char *const phone_words[] = {
	"phone", "phones", "mobile", "mobiles", "cell", "cellphone", "telephone", "tel", "msisdn", "handphone", "hp",
	"landline", "phonenumber", "phoneno", "mobileno", "mobilenumber", "mobilephone", "smartphone"
};
static const char *const account_words[] = {"iban", "bankaccount", "accountnumber", "accountno"};
static const char *const card_words[] = {"card", "cards", "pan", "creditcard", "debitcard", "cardnumber", "cardno"};
static const char *const serial_words[] = {
	"order", "invoice", "receipt", "tracking", "shipment", "waybill", "parcel", "barcode", "gtin", "ean", "isbn",
	"serial", "transaction", "trace", "traceparent", "tracestate", "span", "b3", "sku", "imei", "imeisv", "ticket", "booking",
	"reservation", "approval", "timestamp", "epoch", "nonce", "hash", "checksum", "digest"
};
static const char *const prompt_words[] = {"prompt", "prompts", "completion", "completions"};

/* Where does a new word begin?  At a capital after a small letter, and at the last of several capitals. */
static bool
begins_word(const char *key, int len, int i)
{
	if (!(key[i] >= 'A' && key[i] <= 'Z') || i == 0)
		return false;
	if ((key[i - 1] >= 'a' && key[i - 1] <= 'z') || is_digit(key[i - 1]))
		return true;
	return key[i - 1] >= 'A' && key[i - 1] <= 'Z' && i + 1 < len && key[i + 1] >= 'a' && key[i + 1] <= 'z';
}

static void
end_word(Words *words, int *n)
{
	char	   *word = words->word[words->count];

	/* "phone2" */
	while (*n > 0 && is_digit(word[*n - 1]) && strncmp(word, "b3", *n) != 0 && strncmp(word, "cvv2", *n) != 0)
		(*n)--;
	word[*n] = '\0';
	if (*n > 0 && ++words->count == WORDS_MAX)
	{
		memmove(words->word[0], words->word[1], (WORDS_MAX - 1) * WORD_BYTES);
		words->count--;
	}
	*n = 0;
}

static void
split_words(const char *key, int len, Words *words)
{
	int			n = 0;

	words->count = 0;
	for (int i = 0; i < len; i++)
	{
		bool		part = is_letter(key[i]) || is_digit(key[i]) || IS_HIGHBIT_SET(key[i]);

		if (!part || begins_word(key, len, i))
			end_word(words, &n);
		if (part && n < WORD_BYTES - 1)
			words->word[words->count][n++] = to_lower(key[i]);
	}
	end_word(words, &n);
}

/* Word number `back` from the end, or "". */
static const char *
word_at(const Words *words, int back)
{
	return back < words->count ? words->word[words->count - 1 - back] : "";
}

static bool
is_secret(const Words *words)
{
	const char *last = word_at(words, 0);
	const char *before = word_at(words, 1);

	if (ONE_OF(last, digest_words) && ONE_OF(before, password_words))
		return true;
	if (strcmp(last, "key") == 0)
		return ONE_OF(before, secret_key_kinds);
	if (strcmp(last, "code") == 0)
		return strcmp(before, "security") == 0;
	if (strcmp(last, "token") == 0 && ONE_OF(before, harmless_tokens))
		return false;
	if (ONE_OF(last, secret_words))
		return true;
	for (int i = 0; i < lengthof(secret_ends); i++)
	{
		if (ends_with(last, strlen(last), secret_ends[i]))
			return true;
	}
	return false;
}

static bool
has_serial_word(const Words *words)
{
	for (int i = 0; i < words->count; i++)
	{
		if (ONE_OF(words->word[i], serial_words))
			return true;
	}
	return false;
}

/* The classes that the words without "number", "value", ... at their end speak for. */
static uint32
classify_subject(const Words *words, bool stripped)
{
	const char *last = word_at(words, 0);
	const char *before = word_at(words, 1);
	uint32		classes = 0;

	if (is_secret(words))
		classes |= KEY_SECRET;
	if (ONE_OF(last, resident_words) || (ONE_OF(last, resident_nouns) && ONE_OF(before, resident_kinds)))
		classes |= KEY_RESIDENT;
	if (ends_with(last, strlen(last), "passport") || strncmp(last, "passportn", 9) == 0 ||
		(strcmp(last, "id") == 0 && strcmp(before, "passport") == 0))
		classes |= KEY_PASSPORT;
	if (ONE_OF(last, phone_words) || (stripped && strcmp(last, "contact") == 0))
		classes |= KEY_PHONE;
	if (strcmp(last, "account") == 0 || strcmp(last, "accounts") == 0 || strcmp(last, "acct") == 0)
		classes |= stripped || strcmp(before, "bank") == 0 ? KEY_ACCOUNT : KEY_ACCOUNT_MAYBE;
	if (ONE_OF(last, account_words))
		classes |= KEY_ACCOUNT;
	if (ONE_OF(last, card_words))
		classes |= KEY_CARD;
	else if (has_serial_word(words))
		classes |= KEY_SERIAL;
	if (ONE_OF(last, prompt_words))
		classes |= KEY_PROMPT;
	if (strcmp(last, "messages") == 0)
		classes |= KEY_PROMPT | KEY_MESSAGES;
	return classes;
}

/* ---------------------------------------------------------------- keys: Korean */

typedef struct KoreanEnd
{
	const char *end;			/* in UTF-8; as code points, for tools that know ASCII only */
	uint32		classes;
} KoreanEnd;

static const KoreanEnd korean_ends[] = {
	{"\uBE44\uBC00\uBC88\uD638", KEY_SECRET},	/* password */
	{"\uD328\uC2A4\uC6CC\uB4DC", KEY_SECRET},	/* password */
	{"\uC554\uD638", KEY_SECRET},	/* password */
	{"\uD1A0\uD070", KEY_SECRET},	/* token */
	{"\uC778\uC99D\uD0A4", KEY_SECRET}, /* authentication key */
	{"\uBE44\uBC00\uD0A4", KEY_SECRET}, /* secret key */
	{"\uAC1C\uC778\uD0A4", KEY_SECRET}, /* private key */
	{"\uC8FC\uBBFC\uB4F1\uB85D\uBC88\uD638", KEY_RESIDENT}, /* resident registration number */
	{"\uC8FC\uBBFC\uBC88\uD638", KEY_RESIDENT}, /* the same, short */
	{"\uC678\uAD6D\uC778\uB4F1\uB85D\uBC88\uD638", KEY_RESIDENT},	/* alien registration number */
	{"\uC678\uAD6D\uC778\uBC88\uD638", KEY_RESIDENT},	/* the same, short */
	{"\uAC70\uC18C\uC2E0\uACE0\uBC88\uD638", KEY_RESIDENT}, /* domestic residence number */
	{"\uC5EC\uAD8C\uBC88\uD638", KEY_PASSPORT}, /* passport number */
	{"\uC5EC\uAD8C", KEY_PASSPORT}, /* passport */
	{"\uACC4\uC88C\uBC88\uD638", KEY_ACCOUNT},	/* account number */
	{"\uACC4\uC88C", KEY_ACCOUNT},	/* account */
	{"\uC804\uD654\uBC88\uD638", KEY_PHONE},	/* phone number */
	{"\uC804\uD654", KEY_PHONE},	/* phone */
	{"\uC5F0\uB77D\uCC98", KEY_PHONE},	/* contact */
	{"\uD734\uB300\uD3F0", KEY_PHONE},	/* mobile phone */
	{"\uD734\uB300\uD3F0\uBC88\uD638", KEY_PHONE},	/* its number */
	{"\uD734\uB300\uC804\uD654", KEY_PHONE},	/* mobile phone */
	{"\uD578\uB4DC\uD3F0", KEY_PHONE},	/* mobile phone */
	{"\uD578\uB4DC\uD3F0\uBC88\uD638", KEY_PHONE},	/* its number */
	{"\uD329\uC2A4\uBC88\uD638", KEY_PHONE},	/* fax number */
	{"\uCE74\uB4DC\uBC88\uD638", KEY_CARD}, /* card number */
	{"\uD504\uB86C\uD504\uD2B8", KEY_PROMPT},	/* prompt */
	{"\uC8FC\uBB38\uBC88\uD638", KEY_SERIAL},	/* order number */
	{"\uC1A1\uC7A5\uBC88\uD638", KEY_SERIAL},	/* invoice, or parcel, number */
	{"\uC2B9\uC778\uBC88\uD638", KEY_SERIAL},	/* approval number */
	{"\uAC70\uB798\uBC88\uD638", KEY_SERIAL},	/* transaction number */
	{"\uC608\uC57D\uBC88\uD638", KEY_SERIAL},	/* booking number */
	{"\uBC14\uCF54\uB4DC", KEY_SERIAL}	/* barcode */
};

/* Without blanks, and the digits at its end. */
static int
squeeze(const char *key, int len, char *squeezed)
{
	int			n = 0;

	for (int i = 0; i < len; i++)
	{
		if (key[i] != ' ' && key[i] != '_' && key[i] != '-')
			squeezed[n++] = key[i];
	}
	while (n > 0 && is_digit(squeezed[n - 1]))
		n--;
	return n;
}

/* As UTF-8, whatever the database's encoding; what cannot be converted has no class. */
static int
convert_key(const char *key, int len, char *converted, int room)
{
	int			encoding = GetDatabaseEncoding();

	if (encoding == PG_UTF8 || encoding == PG_SQL_ASCII)
	{
		memcpy(converted, key, len);
		return len;
	}
	{
		Oid			proc = FindDefaultConversionProc(encoding, PG_UTF8);

		if (!OidIsValid(proc) ||
			pg_do_encoding_conversion_buf(proc, encoding, PG_UTF8, (unsigned char *) unconstify(char *, key), len,
										  (unsigned char *) converted, room, true) != len)
			return 0;
		return strlen(converted);
	}
}

#define KEY_BYTES_MAX 128

static uint32
classify_korean(const char *key, int len)
{
	char		converted[KEY_BYTES_MAX * MAX_CONVERSION_GROWTH + 1] = "";
	char		squeezed[sizeof(converted)];
	int			n = convert_key(key, len, converted, sizeof(converted));

	n = squeeze(converted, n, squeezed);

	for (int i = 0; i < lengthof(korean_ends); i++)
	{
		if (ends_with(squeezed, n, korean_ends[i].end))
			return korean_ends[i].classes;
	}
	return 0;
}

/* ---------------------------------------------------------------- keys */

static bool
has_high_bit(const char *text, int len)
{
	for (int i = 0; i < len; i++)
	{
		if (IS_HIGHBIT_SET(text[i]))
			return true;
	}
	return false;
}

static uint32
classify(const char *key, int len)
{
	Words		words;
	uint32		classes = 0;
	bool		stripped = false;

	if (len > KEY_BYTES_MAX)
		return 0;
	if (has_high_bit(key, len))
		classes = classify_korean(key, len);
	split_words(key, len, &words);
	while (words.count > 0 && ONE_OF(word_at(&words, 0), generic_words))
	{
		words.count--;
		stripped = true;
	}
	if (words.count == 0)
		return classes | (stripped ? KEY_GENERIC : 0);
	return classes | classify_subject(&words, stripped);
}

/* keys seen before, by their hash; a newer one takes the place of an older one */
#define SEEN_KEYS		256
#define SEEN_BYTES_MAX	40

typedef struct SeenKey
{
	int8		len;			/* 0: none */
	uint8		in_key;
	uint16		classes;
	char		key[SEEN_BYTES_MAX];
} SeenKey;

static SeenKey seen_keys[SEEN_KEYS];

static SeenKey *
seen_slot(const char *key, int len)
{
	uint32		hash = len;

	for (int i = 0; i < len; i++)
		hash = hash * 31 + (unsigned char) key[i];
	hash ^= hash >> 15;
	return &seen_keys[(hash ^ (hash >> 8)) % SEEN_KEYS];
}

uint32
outbox_sensitive_key(const char *key, int len, OutboxDetector *in_key)
{
	SeenKey    *seen;

	if (len == 0 || len > SEEN_BYTES_MAX)
	{
		*in_key = outbox_sensitive_check_text(key, len, 0, OUTBOX_DETECT_ALL);
		return classify(key, len);
	}
	seen = seen_slot(key, len);
	if (seen->len != len || memcmp(seen->key, key, len) != 0)
	{
		seen->len = 0;
		seen->classes = classify(key, len);
		seen->in_key = outbox_sensitive_check_text(key, len, 0, OUTBOX_DETECT_ALL);
		memcpy(seen->key, key, len);
		seen->len = len;
	}
	*in_key = seen->in_key;
	return seen->classes;
}

/* ---------------------------------------------------------------- tokens and keys in a text */

/* header.payload.signature, from the "eyJ" (which is {" in base64) */
static bool
is_jwt(const char *text, int len)
{
	int			header = count_base64url(text, len);
	int			payload;

	if (header < 12 || header + 1 >= len || text[header] != '.')
		return false;
	payload = count_base64url(text +header + 1, len - header - 1);
	return header + 1 + payload < len && text[header + 1 + payload] == '.' &&
	(payload >= 8 || payload == 0);
}

/* -----BEGIN ... PRIVATE KEY, also of PGP and OpenSSH */
static bool
is_private_key(const char *text, int len)
{
	const char *begin = "-----BEGIN ";
	int			n = strlen(begin);

	if (len < n || memcmp(text, begin, n) != 0)
		return false;
	for (; n < len && n < 60 && text[n] != '-'; n++)
	{
		if (len - n >= 11 && memcmp(text +n, "PRIVATE KEY", 11) == 0)
			return true;
	}
	return false;
}

/* "Bearer" and a token: long, and with a digit, as words of prose are not */
static bool
is_bearer(const char *text, int len)
{
	int			n = 7;
	int			start;
	bool		digit = false;

	if (!begins_with(text, len, "bearer "))
		return false;
	while (n < len && text[n] == ' ')
		n++;
	for (start = n; n < len && (is_base64url(text[n]) || strchr("._~+/=", text[n]) != NULL) && text[n] != '\0'; n++)
		digit |= is_digit(text[n]);
	return digit && n - start >= 16;
}

static int
base64_value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (is_digit(c))
		return c - '0' + 52;
	return c == '+' ? 62 : (c == '/' ? 63 : -1);
}

/* "Basic" and base64 of printable characters with a colon among them */
static bool
is_basic(const char *text, int len)
{
	uint32		bits = 0;
	int			nbits = 0;
	int			decoded = 0;
	bool		colon = false;
	int			n = 6;

	if (!begins_with(text, len, "basic "))
		return false;
	while (n < len && text[n] == ' ')
		n++;
	for (; n < len && base64_value(text[n]) >= 0; n++)
	{
		bits = (bits << 6) | base64_value(text[n]);
		nbits += 6;
		if (nbits >= 8)
		{
			unsigned char c = (bits >> (nbits - 8)) & 0xff;

			nbits -= 8;
			if (c < 0x20 || c == 0x7f)
				return false;
			colon |= (c == ':');
			decoded++;
		}
	}
	return colon && decoded >= 3;
}

/* user:password@ of a URL, from behind its "://" */
static bool
has_userinfo(const char *text, int len)
{
	int			colon = -1;

	for (int i = 0; i < len && !strchr("/?# \t\r\n\"'<>", text[i]); i++)
	{
		if (text[i] == ':' && colon < 0)
			colon = i;
		if (text[i] == '@')
			return colon >= 0 && i > colon + 1;
	}
	return false;
}

static const char *const signature_words[] = {"signature", "sig", "hmac", "jwt", "auth", "credential"};

/* A parameter of a URL, whose "=" is at `at`: is it a token or a signature, and not empty? */
static bool
is_url_token(const char *text, int len, int at)
{
	int			start = at;
	Words		words;

	if (at + 1 >= len || !(is_word(text[at + 1]) || text[at + 1] == '%' || IS_HIGHBIT_SET(text[at + 1])))
		return false;
	while (start > 0 && at - start < KEY_BYTES_MAX && (is_base64url(text[start - 1]) || text[start - 1] == '.'))
		start--;
	if (start == at || start == 0 || !strchr("?&#;", text[start - 1]))
		return false;
	split_words(text +start, at - start, &words);
	return is_secret(&words) || ONE_OF(word_at(&words, 0), signature_words);
}

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

typedef struct Run
{
	const char *text;
	int			len;
	int			start;
	int			end;			/* behind the digits, and the groups that follow */
	int			ngroups;
	int			groups[5];		/* their lengths */
	char		separator;
	int			ndigits;
	char		digits[24];
} Run;

/* One blank or hyphen between groups, always the same; " - " counts as a hyphen. */
static int
separator_at(const char *text, int len, int at, char *separator)
{
	if (at + 3 < len && memcmp(text +at, " - ", 3) == 0 && is_digit(text[at + 3]))
	{
		*separator = '-';
		return 3;
	}
	if (at + 1 < len && (text[at] == '-' || text[at] == ' ') &&is_digit(text[at + 1]))
	{
		*separator = text[at];

		return 1;
	}
	return 0;
}

/* From `start`, all groups of digits, as far as they may matter. */
static void
read_run(Run *run, const char *text, int len, int start)
{
	int			at = start;

	run->text = text;

	run->len = len;
	run->start = start;
	run->ngroups = 0;
	run->ndigits = 0;
	run->separator = '\0';
	while (true)
	{
		int			n = count_digits(text +at, len - at);
		char		separator = '\0';
		int			skip;

		if (run->ngroups < lengthof(run->groups))
			run->groups[run->ngroups] = n;
		run->ngroups++;
		for (int i = 0; i < n && run->ndigits < sizeof(run->digits); i++)
			run->digits[run->ndigits++] = text[at + i];

		at += n;
		run->end = at;
		skip = separator_at(text, len, at, &separator);
		if (skip == 0 || (run->separator != '\0' && separator != run->separator))
			return;
		run->separator = separator;
		at += skip;
	}
}

/* Not a part of a longer word or number. */
static bool
stands_alone(const Run *run, bool hyphens_too)
{
	char		before = run->start > 0 ? run->text[run->start - 1] : ' ';
	char		after = run->end < run->len ? run->text[run->end] : ' ';
	bool		number_goes_on = (after == '.' || after == ',') && run->end + 1 < run->len && is_digit(run->text[run->end + 1]);

	if (is_word(before) || is_word(after) || number_goes_on)
		return false;
	if ((before == '.' || before == ',') && run->start > 1 && is_digit(run->text[run->start - 2]))
		return false;
	return !hyphens_too || (before != '-' && after != '-');
}

static bool
has_groups(const Run *run, int count, const int *lengths)
{
	return run->ngroups == count && memcmp(run->groups, lengths, count * sizeof(int)) == 0;
}

/* Does the text around it say that it is one? */
static bool
speaks_of_residents(const char *text, int len)
{
	static const char *const hints[] = {"\uC8FC\uBBFC", "\uC678\uAD6D\uC778\uB4F1\uB85D", "resident", "rrn"};

	for (int i = 0; i < len; i++)
	{
		for (int j = 0; j < lengthof(hints); j++)
		{
			if (begins_with(text +i, len - i, hints[j]))
				return true;
		}
	}
	return false;
}

static bool
is_resident_run(const Run *run, uint32 classes)
{
	static const int grouped[] = {6, 7};
	Resident	person;

	if (has_groups(run, 2, grouped))
		return !(classes & KEY_SERIAL) && stands_alone(run, true) &&
			(run->separator == '-' || (classes & KEY_RESIDENT)) && is_hyphenated_resident(run->digits, classes);
	if (run->ngroups != 1 || run->groups[0] != 13 || !stands_alone(run, true) || !read_resident(run->digits, &person))
		return false;
	return (classes & KEY_RESIDENT) || (person.checked && speaks_of_residents(run->text, run->len));
}

static bool
is_card_run(const Run *run, uint32 classes)
{
	static const int four[] = {4, 4, 4, 4};
	static const int amex[] = {4, 6, 5};
	static const int diners[] = {4, 6, 4};

	if (has_groups(run, 4, four) || has_groups(run, 3, amex) || has_groups(run, 3, diners))
		return stands_alone(run, true) && is_card(run->digits, run->ndigits);
	if (run->ngroups != 1 || run->groups[0] < 14 || run->groups[0] > 19 || (classes & KEY_SERIAL))
		return false;
	if (run->groups[0] == 14 && !(classes & KEY_CARD))
		return false;
	return stands_alone(run, false) && is_card(run->digits, run->groups[0]);
}

/* Moves *at to the last byte of the digits. */
static OutboxDetector
check_digits(const char *text, int len, int *at, uint32 classes, uint32 enabled)
{
	int			start = *at;
	int			n = count_digits(text +start, len - start);
	Run			run;

	*at = start + n - 1;
	if (n != 4 && n != 6 && n < 13)
		return DETECTED_NOTHING;
	read_run(&run, text, len, start);
	if ((enabled & OUTBOX_DETECT(DETECTED_RESIDENT_NUMBER)) && is_resident_run(&run, classes))
		return DETECTED_RESIDENT_NUMBER;
	if ((enabled & OUTBOX_DETECT(DETECTED_PAYMENT_CARD)) && is_card_run(&run, classes))
		return DETECTED_PAYMENT_CARD;
	/* a long number among others: "1 4111111111111111" */
	if (run.ngroups > 1 && n >= 13)
	{
		run.ngroups = 1;
		run.end = start + n;
		run.ndigits = Min(n, (int) sizeof(run.digits));
		if ((enabled & OUTBOX_DETECT(DETECTED_PAYMENT_CARD)) && is_card_run(&run, classes))
			return DETECTED_PAYMENT_CARD;
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

#define FIND(detector, condition) \
	do { \
		if ((enabled & OUTBOX_DETECT(detector)) && (condition)) \
			return detector; \
	} while (0)

static OutboxDetector
check_by_key(const char *value, int len, uint32 classes, uint32 enabled)
{
	if (classes & KEY_SECRET)
		FIND(DETECTED_SECRET_KEY_NAME, !is_masked(value, len));
	if (classes & KEY_PHONE)
		FIND(DETECTED_PHONE, is_phone(value, len));
	if (classes & KEY_COLUMN)
		FIND(DETECTED_PHONE, is_phone_column(value, len));
	if (classes & (KEY_ACCOUNT | KEY_ACCOUNT_MAYBE))
		FIND(DETECTED_BANK_ACCOUNT, is_bank_account(value, len, classes));
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

static OutboxDetector
check_mark(const char *value, int len, int i, uint32 enabled)
{
	switch (value[i])
	{
		case 'J':
			if (i >= 2 && value[i - 1] == 'y' && value[i - 2] == 'e')
				FIND(DETECTED_JWT, is_jwt(value + i - 2, len - i + 2));
			break;
		case '-':
			if (i + 1 < len && value[i + 1] == '-')
				FIND(DETECTED_PRIVATE_KEY, is_private_key(value + i, len - i));
			break;
		case 'B':
		case 'b':
			if (i == 0 || !is_word(value[i - 1]))
				FIND(DETECTED_CREDENTIALS, is_bearer(value + i, len - i) || is_basic(value + i, len - i));
			break;
		case ':':
			if (i + 3 < len && value[i + 1] == '/' && value[i + 2] == '/')
				FIND(DETECTED_CREDENTIALS, has_userinfo(value + i + 3, len - i - 3));
			break;
		case '=':
			FIND(DETECTED_URL_TOKEN, is_url_token(value, len, i));
			break;
		default:
			break;
	}
	return DETECTED_NOTHING;
}

OutboxDetector
outbox_sensitive_check_text(const char *value, int len, uint32 classes, uint32 enabled)
{
	OutboxDetector found = DETECTED_NOTHING;

	if (classes & ~(KEY_SERIAL | KEY_GENERIC | KEY_CARD | KEY_RESIDENT))
		found = check_by_key(value, len, classes, enabled);
	for (int i = 0; i < len && found == DETECTED_NOTHING; i++)
	{
		uint8		kind = may_begin[(unsigned char) value[i]];

		if (kind == 2)
			found = check_digits(value, len, &i, classes, enabled);
		else if (kind == 1)
			found = check_mark(value, len, i, enabled);
	}
	return found;
}

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
