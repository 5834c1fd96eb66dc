/*
 * sensitive_key.c - what a key says about its value, from its words.
 *
 * "userPhone-No2" is user, phone, no; Korean keys are told by their ends.  Keys come again and again, so
 * their classes are remembered.
 */
#include "outbox.h"

#include "catalog/namespace.h"
#include "mb/pg_wchar.h"

#include "sensitive.h"
#include "sensitive_part.h"

/* ---------------------------------------------------------------- words */

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
static const char *const repeated_words[] = {"confirmation", "confirm", "repeat", "again", "retype", "new", "old", "current"};
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

	if ((ONE_OF(last, digest_words) || ONE_OF(last, repeated_words)) && ONE_OF(before, password_words))
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

/* ---------------------------------------------------------------- Korean */

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

#define CONVERTED_BYTES_MAX (KEY_BYTES_MAX * MAX_CONVERSION_GROWTH)

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

/* A key in UTF-8. */
static uint32
classify_korean(const char *key, int len)
{
	char		squeezed[CONVERTED_BYTES_MAX + 1];
	int			n = squeeze(key, len, squeezed);

	for (int i = 0; i < lengthof(korean_ends); i++)
	{
		if (ends_with(squeezed, n, korean_ends[i].end))
			return korean_ends[i].classes;
	}
	return 0;
}

/* ---------------------------------------------------------------- keys */

static uint32
classify(const char *key, int len)
{
	Words		words;
	char		converted[CONVERTED_BYTES_MAX + 1] = "";
	uint32		classes = 0;
	bool		stripped = false;

	if (len > KEY_BYTES_MAX)
		return 0;
	if (has_high_bit(key, len))
	{
		int			n = convert_key(key, len, converted, sizeof(converted));

		if (n > 0)
		{
			len = outbox_sensitive_fold(converted, n, converted);
			key = converted;
			classes = classify_korean(key, len);
		}
	}
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

/* ---------------------------------------------------------------- parameters of a URL */

static const char *const signature_words[] = {"signature", "sig", "hmac", "jwt", "auth", "credential"};

bool
outbox_sensitive_key_is_token(const char *name, int len)
{
	Words		words;

	split_words(name, len, &words);
	return is_secret(&words) || ONE_OF(word_at(&words, 0), signature_words);
}
