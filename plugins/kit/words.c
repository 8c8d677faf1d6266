/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * In the common case all words are there at the first look, and nothing is noted. Later looks check only the late
 * ranks.
 */
#include "words.h"

#include <stdio.h>

/* Acquire: what the word announces is loaded after it. */
static int has_arrived(xep_word_fn word, const void *mode, const xep_op_t *op, uint32_t rank)
{
    uint64_t value;
    const _Atomic uint64_t *seen = word(mode, op, rank, &value);
    return atomic_load_explicit(seen, memory_order_acquire) >= value;
}

int xep_words_are_through(const uint32_t *through, uint32_t self, uint32_t rank)
{
    return through[rank] != XEP_NO_RANK && through[rank] != self;
}

static int is_listed(const xep_late_t *late, uint32_t rank)
{
    uint32_t i = 0;
    while (i < late->count && late->ranks[i] != rank) i++;
    return i < late->count;
}

/* Checks only the late ranks again. The clock is read once for all words that came in this look. */
static void look_again(const xep_env_t *env, xep_word_fn word, const void *mode, xep_op_t *op)
{
    xep_late_t *late = &op->late;
    uint64_t waited = 0;
    uint32_t left = 0;
    for (uint32_t i = 0; i < late->count; i++) {
        uint32_t rank = late->ranks[i];
        if (!has_arrived(word, mode, op, rank)) {
            late->ranks[left++] = rank;
            continue;
        }
        if (late->since_ns == 0) continue;
        if (waited == 0) waited = env->now_ns(env) - late->since_ns;
        late->wait_ns[rank] += waited;
        if (env->tracing) env->span(env, op, NULL, rank, late->since_ns, late->since_ns + waited);
    }
    late->count = left;
    if (left == 0) late->since_ns = 0;
}

/* If all words are there, as is usual, neither reads the clock nor makes a list. */
int xep_words_arrived(const xep_env_t *env, xep_word_fn word, const void *mode, xep_op_t *op)
{
    xep_late_t *late = &op->late;
    if (late->count != 0) {
        look_again(env, word, mode, op);
        return late->count == 0;
    }
    for (uint32_t i = 0; i < op->with.count; i++)
        if (!has_arrived(word, mode, op, op->with.rank[i])) late->ranks[late->count++] = op->with.rank[i];
    return late->count == 0;
}

int xep_words_arrive_soon(xep_word_fn word, const void *mode, const xep_op_t *op, uint32_t looks)
{
    for (uint32_t i = 0; i < op->with.count; i++)
        while (!has_arrived(word, mode, op, op->with.rank[i]))
            if (looks-- == 0) return 0;
    return 1;
}

/*
 * Checks first the ranks that are heard directly. A rank heard through one of these is skipped only if that one is in
 * the list: its word may come at any moment, and a second look might differ from the first. Ranks heard through a late
 * rank are checked when its word has come.
 */
int xep_words_arrived_through(const xep_env_t *env, xep_word_fn word, const uint32_t *through, const void *mode,
                              xep_op_t *op)
{
    xep_late_t *late = &op->late;
    if (late->count != 0) look_again(env, word, mode, op);
    if (late->count != 0) return 0;
    for (int others = 0; others <= 1; others++)
        for (uint32_t i = 0; i < op->with.count; i++) {
            const uint32_t r = op->with.rank[i];
            if (xep_words_are_through(through, env->shape->rank, r) == others && !has_arrived(word, mode, op, r) &&
                !(others && is_listed(late, through[r])))
                late->ranks[late->count++] = r;
        }
    return late->count == 0;
}

/* Writes "at 5 of 7" or, for words that count rows, "at row 12 of 40"; a word of an older epoch has no rows. */
static int tell_word(const xep_words_wait_t *wait, uint64_t seen, uint64_t value, char *text, size_t bytes)
{
    const uint64_t epoch = wait->counts_rows ? xep_rows_epoch(value) : value, rows = xep_rows_of(value, epoch);
    if (wait->counts_rows && rows != 0)
        return snprintf(text, bytes, " at row %llu of %llu", (unsigned long long)xep_rows_of(seen, epoch),
                        (unsigned long long)rows);
    return snprintf(text, bytes, " at %llu of %llu",
                    (unsigned long long)(wait->counts_rows ? xep_rows_epoch(seen) : seen), (unsigned long long)epoch);
}

static int tell_through(const xep_words_wait_t *wait, uint32_t rank, char *text, size_t bytes)
{
    if (wait->through == NULL || !xep_words_are_through(wait->through, wait->rank, rank)) return 0;
    return snprintf(text, bytes, " (through rank %u)", wait->through[rank]);
}

/* For the sentence of a timeout: it must fit, and may be cut. */
void xep_words_explain(const xep_words_wait_t *wait, const void *mode, const xep_op_t *op, char *text, size_t bytes)
{
    const char *before = ":";
    uint64_t value;
    int used = snprintf(text, bytes, "epoch %llu waits for %s", (unsigned long long)op->epoch, wait->what);
    for (uint32_t r = 0; wait->word != NULL && r < wait->nranks && used >= 0 && (size_t)used < bytes; r++) {
        uint64_t seen = atomic_load_explicit(wait->word(mode, op, r, &value), memory_order_relaxed);
        if (seen >= value || xep_op_is_without(op, r)) continue;
        used += snprintf(text + used, bytes - (size_t)used, "%s rank %u", before, r);
        if ((size_t)used < bytes) used += tell_word(wait, seen, value, text + used, bytes - (size_t)used);
        if ((size_t)used < bytes) used += tell_through(wait, r, text + used, bytes - (size_t)used);
        before = ",";
    }
}
