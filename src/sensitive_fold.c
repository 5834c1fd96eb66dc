/*
 * sensitive_fold.c - one form for what people see as the same.
 *
 * Korean input methods write digits in full width, editors make dashes of hyphens, and what is copied from a
 * web page has blanks that do not break.  A key or number is still what it is.
 */
#include "outbox.h"

#include "sensitive.h"
#include "sensitive_part.h"

/* The code point of a character of two or three bytes; 0: it is none. */
static int
read_character(const char *text, int len, int *bytes)
{
	const unsigned char *c = (const unsigned char *) text;

	if (len >= 2 && (c[0] & 0xe0) == 0xc0 && (c[1] & 0xc0) == 0x80)
	{
		*bytes = 2;
		return (c[0] & 0x1f) << 6 | (c[1] & 0x3f);
	}
	if (len >= 3 && (c[0] & 0xf0) == 0xe0 && (c[1] & 0xc0) == 0x80 && (c[2] & 0xc0) == 0x80)
	{
		*bytes = 3;
		return (c[0] & 0x0f) << 12 | (c[1] & 0x3f) << 6 | (c[2] & 0x3f);
	}
	return 0;
}

static bool
has_no_width(int code)
{
	return code == 0x00ad || (code >= 0x200b && code <= 0x200f) || code == 0x2060 || code == 0xfeff;
}

/* The ASCII character that it stands for, or 0. */
static char
plain_form(int code)
{
	if (code >= 0xff01 && code <= 0xff5e)
		return code - 0xff01 + '!';
	if ((code >= 0x2010 && code <= 0x2015) || code == 0x2212 || code == 0x2043 || code == 0xfe63)
		return '-';
	if (code == 0x00a0 || (code >= 0x2000 && code <= 0x200a) || code == 0x202f || code == 0x205f || code == 0x3000)
		return ' ';
	return 0;
}

int
outbox_sensitive_fold(const char *text, int len, char *folded)
{
	int			n = 0;

	for (int i = 0; i < len;)
	{
		int			bytes = 1;
		int			code = IS_HIGHBIT_SET(text[i]) ? read_character(text +i, len - i, &bytes) : 0;
		char		plain = plain_form(code);

		if (plain != 0)
			folded[n++] = plain;
		else if (!has_no_width(code))
		{
			memmove(folded + n, text +i, bytes);
			n += bytes;
		}
		i += bytes;
	}
	return n;
}
