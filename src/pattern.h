/*
 * pattern.h - event types, the patterns of subscriptions, and codes: pure rules.
 *
 * A type is words joined by dots; in a pattern `*` stands for one word and `#`
 * for any number of words, also none.  Neither reaches the extension's own types
 * (first word "outbox") unless the pattern begins with that word.
 */
#ifndef OUTBOX_PATTERN_H
#define OUTBOX_PATTERN_H

#include "outbox.h"

/* in an error code that is no SQLSTATE */
#define OUTBOX_CODE_DIGITS				6
#define OUTBOX_CODE_DIGITS_IN_A_ROW		5

#define OUTBOX_CODE_HINT	"A code names a kind of failure, such as card_declined, HTTP_503 or 23505. It is shown in views, metrics and the log, so it must not hold data."

/* NULL when well-formed, else a constant English reason for errdetail() */
extern const char *outbox_pattern_check_type(const char *type, int len);
extern const char *outbox_pattern_check(const char *pattern, int len);
extern const char *outbox_pattern_check_error_code(const char *code, int len);

/* what a subscription's lists of errors hold: a code, or a class of SQLSTATEs */
extern const char *outbox_pattern_check_error_rule(const char *rule, int len);
extern const char *outbox_pattern_check_name(const char *subscription, int len);

/* by its form */
extern bool outbox_pattern_is_sqlstate(const char *code, int len);

extern bool outbox_pattern_matches(const char *pattern, int pattern_len, const char *type, int type_len);

/* the lane of a key, by a hash that never changes (FNV-1a, 64 bit, mixed); tenant may be NULL */
extern uint64 outbox_pattern_key_hash(const char *tenant, int tenant_len, const char *key, int key_len);

#endif							/* OUTBOX_PATTERN_H */
