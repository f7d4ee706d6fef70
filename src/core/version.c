/* SPDX-License-Identifier: MIT
 *
 * version.c: how far an order key has come by versions. See version.h for the table.
 */
#include "core/version.h"

#include <string.h>

#include "base/error.h"
#include "base/str.h"

/* The index of `version` in the list, or where to insert it. */
static size_t place_of(const struct semel_key *key, int64_t version)
{
    size_t low = 0, high = key->n_skipped;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (key->skipped[mid] < version)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool skips(const struct semel_key *key, int64_t version)
{
    size_t at = place_of(key, version);
    return at < key->n_skipped && key->skipped[at] == version;
}

/* `last`, or the highest skipped version that follows it without a gap. */
static int64_t step_over(const struct semel_key *key, int64_t last)
{
    for (size_t i = place_of(key, last + 1); i < key->n_skipped && key->skipped[i] == last + 1; i++)
        last++;
    return last;
}

int64_t semel__version_last(const struct semel_policy *policy, const struct semel_key *key)
{
    if (key->last_version != SEMEL_NONE)
        return step_over(key, key->last_version);
    if (policy->first_version == SEMEL_FIRST_VERSION_ANY)
        return SEMEL_NONE;
    return step_over(key, policy->first_version - 1);
}

bool semel__version_full(const struct semel_policy *policy, const struct semel_key *key, int64_t version)
{
    int64_t last = semel__version_last(policy, key);
    return last != SEMEL_NONE && version > last + 1 && key->n_skipped >= SEMEL_SKIPPED_MAX && !skips(key, version);
}

#define RANGES_MAX 20

bool semel__version_missing(const struct semel_policy *policy, const struct semel_key *key, int64_t version,
                            struct semel_buf *text)
{
    int64_t last = semel__version_last(policy, key);
    if (last == SEMEL_NONE || version == SEMEL_NONE || version <= last + 1)
        return false;
    int64_t known = (int64_t)(place_of(key, version) - place_of(key, last + 1));
    semel__buf_addz(text, version - last - 1 - known == 1 ? "version " : "versions ");
    int ranges = 0;
    for (size_t i = place_of(key, last + 1); last + 1 < version; i++) {
        int64_t end = i < key->n_skipped && key->skipped[i] < version ? key->skipped[i] : version;
        if (end > last + 1 && ++ranges > RANGES_MAX) {
            semel__buf_addz(text, " and more");
            return true;
        }
        if (end > last + 1)
            semel__buf_addf(text, "%s%lld", ranges > 1 ? ", " : "", (long long)last + 1);
        if (end > last + 2)
            semel__buf_addf(text, " to %lld", (long long)end - 1);
        last = end;
    }
    return true;
}

static void move_to(struct semel_key *key, int64_t version)
{
    key->last_version = step_over(key, version);
    size_t passed = place_of(key, key->last_version + 1);
    if (passed > 0)
        key->skipped += passed;
    key->n_skipped -= passed;
}

void semel__version_applied(const struct semel_policy *policy, struct semel_key *key, int64_t version)
{
    int64_t last = semel__version_last(policy, key);
    if (version != SEMEL_NONE && (last == SEMEL_NONE || version > last))
        move_to(key, version);
}

/* The list with `version` inserted or removed. */
static bool rewrite(struct semel_key *key, int64_t version, bool put, struct semel_arena *arena)
{
    size_t at = place_of(key, version), n = put ? key->n_skipped + 1 : key->n_skipped - 1;
    int64_t *list = semel__arena_alloc(arena, n + 1, sizeof *list);
    if (list == NULL)
        return false;
    if (at > 0)
        memcpy(list, key->skipped, at * sizeof *list);
    if (put)
        list[at] = version;
    if (n > at + put)
        memcpy(list + at + put, key->skipped + at + !put, (n - at - put) * sizeof *list);
    key->skipped = list;
    key->n_skipped = n;
    return true;
}

static bool skip(const struct semel_policy *policy, struct semel_key *key, int64_t version, struct semel_arena *arena)
{
    int64_t last = semel__version_last(policy, key);
    if (version == SEMEL_NONE || last == SEMEL_NONE || version <= last)
        return true;
    bool next = version == last + 1;
#ifdef SEMEL_MUTANT_SKIP_GAPS
    next = true;
#endif
    if (next) {
        move_to(key, version);
        return true;
    }
    if (skips(key, version) || semel__version_full(policy, key, version))
        return true;
    return rewrite(key, version, true, arena);
}

bool semel__version_move(const struct semel_policy *policy, struct semel_key *key, int64_t version,
                         enum semel_row_status state, bool fresh, struct semel_arena *arena)
{
    switch (state) {
    case SEMEL_ROW_COMPLETED:
        semel__version_applied(policy, key, version);
        return true;
    case SEMEL_ROW_REJECTED:
    case SEMEL_ROW_PREVENTED:
        return skip(policy, key, version, arena);
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_PROCESSING:
    case SEMEL_ROW_FAILED:
    case SEMEL_ROW_WAITING:
    case SEMEL_ROW_UNKNOWN:
    case SEMEL_ROW_DEAD:
        return !fresh || !skips(key, version) || rewrite(key, version, false, arena);
    case SEMEL_ROW_STALE:
    case SEMEL_ROW_QUARANTINED:
    case SEMEL_ROW_COUNT:
        return true;
    }
    return true;
}

/* ---- the stored form ------------------------------------------------------------------------------ */

void semel__version_write(const int64_t *skipped, size_t n, struct semel_buf *buf)
{
    for (size_t i = 0; i < n; i++)
        semel__buf_addf(buf, "%s%lld", i > 0 ? "," : "", (long long)skipped[i]);
}

semel_status semel__version_read(struct semel_str text, struct semel_arena *arena, struct semel_key *key,
                                 struct semel_error *err)
{
    key->skipped = NULL;
    key->n_skipped = 0;
    if (!semel__str_given(text))
        return SEMEL_OK;
    if (text.n > SEMEL_SKIPPED_TEXT_MAX)
        return semel__version_damaged(err);
    int64_t *list = semel__arena_alloc(arena, SEMEL_SKIPPED_MAX, sizeof *list);
    if (list == NULL)
        return semel__fail_memory(err);
    for (size_t n = 0; n < SEMEL_SKIPPED_MAX; n++) {
        const char *comma = memchr(text.p, ',', text.n);
        struct semel_str number = {text.p, comma != NULL ? (size_t)(comma - text.p) : text.n};
        if (!semel__str_int64(number, &list[n]))
            break;
        if (comma == NULL) {
            key->skipped = list;
            key->n_skipped = n + 1;
            return SEMEL_OK;
        }
        text = (struct semel_str){comma + 1, text.n - number.n - 1};
    }
    return semel__version_damaged(err);
}

semel_status semel__version_damaged(struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "damaged order key: last_version must be a whole number from 0, and skipped at most %d versions "
                       "above it in ascending order",
                       SEMEL_SKIPPED_MAX);
}

semel_status semel__version_check(const struct semel_key *key, struct semel_error *err)
{
    int64_t before = key->last_version != SEMEL_NONE ? key->last_version : -1;
    bool fits = key->n_skipped <= SEMEL_SKIPPED_MAX && before >= -1 && before < INT64_MAX;
    for (size_t i = 0; fits && i < key->n_skipped; i++) {
        fits = key->skipped[i] > before && key->skipped[i] < INT64_MAX;
        before = key->skipped[i];
    }
    return fits ? SEMEL_OK : semel__version_damaged(err);
}
