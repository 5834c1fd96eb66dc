/*
 * sensitive_token.c - tokens and keys that stand anywhere in a text, by the marks that they all have.
 */
#include "outbox.h"

#include "sensitive.h"
#include "sensitive_part.h"

/*
 * header.payload.signature, from the "eyJ" (which is {" in base64).  If none begins here, none does
 * further on in the same header either, which would only be shorter.
 */
static bool
is_jwt(OutboxTextScan *scan, int start)
{
	const char *text = scan->text +start;
	int			len = scan->len - start;
	int			header;
	int			payload;

	if (start < scan->no_jwt_before)
		return false;
	header = count_base64url(text, len);
	scan->no_jwt_before = start + header;
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

/* A parameter of a URL, whose "=" is at `at`: is it a token or a signature, and not empty? */
static bool
is_url_token(const char *text, int len, int at)
{
	int			start = at;

	if (at + 1 >= len || !(is_word(text[at + 1]) || text[at + 1] == '%' || IS_HIGHBIT_SET(text[at + 1])))
		return false;
	while (start > 0 && at - start < KEY_BYTES_MAX && (is_base64url(text[start - 1]) || text[start - 1] == '.'))
		start--;
	if (start == at || start == 0 || !strchr("?&#;", text[start - 1]))
		return false;
	return outbox_sensitive_key_is_token(text +start, at - start);
}

OutboxDetector
outbox_sensitive_token_check(OutboxTextScan *scan, int i)
{
	const char *value = scan->text;
	int			len = scan->len;
	uint32		enabled = scan->enabled;

	switch (value[i])
	{
		case 'J':
			if (i >= 2 && value[i - 1] == 'y' && value[i - 2] == 'e')
				FIND(DETECTED_JWT, is_jwt(scan, i - 2));
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
