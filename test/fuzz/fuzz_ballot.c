/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Ballots of a rank that lies, with the right sum. What the input says goes into lists that are well made as often as
 * not, since hardly any other comes past the first checks. Whatever is taken leaves the own ballot sound: lists ascend
 * and have room, operations are with the ranks that either ballot has them with, and the same ballot changes nothing
 * when it comes again. Then the own one is written: it is read as it was, and refused when it is torn or cut.
 */
#include <stdlib.h>
#include <string.h>

#include "ballot.h"
#include "fuzz_target.h"

const fuzz_target_t fuzz_target = {.name = "ballot", .unit = "ballots", .runs = 20000};

enum { MOST_TURNS = 32, MOST_RANKS = 5, MOST_MISSING = 6, EPOCHS = 64 };

/* As ballot.h lays them out. */
enum { SUM, SUSPECTS, DECISIONS, FORGOTTEN, HEAD_WORDS, DECISION_WORDS = 3, SUSPECT_WORDS = 4 };

/* A rank whose ballot is mine, and that reads theirs. */
typedef struct reader {
    xep_ballot_t mine, theirs;
} reader_t;

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL) fuzz_fail("no memory");
    return memory;
}

static void reader_open(reader_t *reader, fuzz_input_t *input)
{
    uint32_t nranks = 2 + (uint32_t)fuzz_below(input, MOST_RANKS - 1);
    uint32_t most = 1 + (uint32_t)fuzz_below(input, MOST_MISSING);
    if (!xep_ballot_open(&reader->mine, nranks, most) || !xep_ballot_open(&reader->theirs, nranks, most))
        fuzz_fail("no memory");
}

static void reader_close(reader_t *reader)
{
    xep_ballot_close(&reader->mine);
    xep_ballot_close(&reader->theirs);
}

/* ---- what the other rank says ---- */

/* Epochs that begin anywhere and ascend; now and then one does not, or comes behind top. Returns top. */
static uint64_t make_list(fuzz_input_t *input, uint64_t *missing, uint64_t count)
{
    uint64_t epoch = fuzz_below(input, EPOCHS / 2);
    for (uint64_t i = 0; i < count; i++) missing[i] = epoch, epoch += fuzz_below(input, 4);
    return epoch + fuzz_below(input, 4) - 1;
}

/* One more than there may be comes as often as any other number. */
static uint64_t make_count(fuzz_input_t *input, uint32_t most)
{
    return fuzz_below(input, 8) == 0 ? fuzz_number(input) : fuzz_below(input, most + UINT64_C(2));
}

static uint64_t make_reason(fuzz_input_t *input)
{
    return fuzz_below(input, 8) == 0 ? fuzz_number(input) : fuzz_below(input, 4) + 256 * fuzz_below(input, 2);
}

static void seal(uint64_t *words, uint64_t count)
{
    uint64_t sum = count;
    for (uint64_t i = 1; i < count; i++) sum = (sum ^ words[i]) * UINT64_C(0x100000001b3) + (sum >> 29);
    words[SUM] = sum;
}

/* A ballot in words, as long as there is room for one: the sum is of what it says it has. Whether it was taken. */
static int tell_words(reader_t *reader, fuzz_input_t *input)
{
    uint32_t nranks = reader->mine.nranks, most = reader->mine.most;
    uint64_t capacity = xep_ballot_words(nranks, most), at = HEAD_WORDS, scratch[MOST_MISSING + 1];
    uint64_t *words = allocate(capacity, sizeof *words);
    words[FORGOTTEN] = fuzz_below(input, 16) == 0 ? fuzz_number(input) : fuzz_below(input, 4);
    words[DECISIONS] = make_count(input, most);
    for (uint64_t i = 0; i < words[DECISIONS] && at + DECISION_WORDS <= capacity; i++, at += DECISION_WORDS) {
        words[at] = fuzz_below(input, EPOCHS);
        words[at + 1] = fuzz_below(input, 16); /* the number of an error, as a rank gets it or not */
        words[at + 2] = fuzz_number(input);
    }
    words[SUSPECTS] = make_count(input, nranks);
    for (uint64_t i = 0; i < words[SUSPECTS] && at + SUSPECT_WORDS <= capacity; i++) {
        uint64_t *suspect = words + at, count = make_count(input, most), kept = count <= most ? count : most + 1;
        suspect[0] = fuzz_below(input, nranks + UINT64_C(1));
        suspect[1] = make_reason(input);
        suspect[2] = make_list(input, scratch, kept);
        suspect[3] = count;
        at += SUSPECT_WORDS;
        for (uint64_t k = 0; k < kept && at < capacity; k++) words[at++] = scratch[k];
    }
    seal(words, at);
    int taken = xep_ballot_read(&reader->theirs, words, capacity);
    free(words);
    return taken;
}

/* ---- what the reader makes of it ---- */

/* What is said of ranks that nobody suspects is not looked at. */
static void check_sound(const xep_ballot_t *ballot)
{
    for (uint32_t r = 0; r < ballot->nranks; r++) {
        const xep_suspect_t *suspect = &ballot->suspects[r];
        if (!xep_ballot_suspects(ballot, r)) continue;
        if (suspect->reason > XEP_OUT_ASKED || suspect->gone > 1) fuzz_fail("rank %u: what nobody says", r);
        if (suspect->count > ballot->most) fuzz_fail("rank %u: %llu missing", r, (unsigned long long)suspect->count);
        for (uint64_t i = 0; i < suspect->count; i++)
            if (suspect->missing[i] > suspect->top || (i > 0 && suspect->missing[i] <= suspect->missing[i - 1]))
                fuzz_fail("rank %u: epoch %llu is not in order", r, (unsigned long long)suspect->missing[i]);
    }
}

/* As members.c does: with the words that are here, of all but the last few operations. */
static void suspect_too(reader_t *reader, fuzz_input_t *input)
{
    uint64_t missing[MOST_MISSING];
    for (uint32_t r = 0; r < reader->mine.nranks; r++) {
        if (!xep_ballot_suspects(&reader->theirs, r) || xep_ballot_suspects(&reader->mine, r)) continue;
        uint32_t count = (uint32_t)fuzz_below(input, reader->mine.most + UINT64_C(1));
        uint64_t top = count + fuzz_below(input, EPOCHS / 2);
        for (uint32_t i = 0; i < count; i++) missing[i] = top - i;
        xep_ballot_suspect(&reader->mine, r, (xep_out_reason_t)reader->theirs.suspects[r].reason, top, missing, count);
    }
}

/* Of each suspect, the operations that are with it, as bits. */
static void note_with(const xep_ballot_t *ballot, uint64_t *with)
{
    for (uint32_t r = 0; r < ballot->nranks; r++) {
        with[r] = 0;
        for (uint32_t epoch = 0; epoch < EPOCHS && xep_ballot_suspects(ballot, r); epoch++)
            with[r] |= (uint64_t)xep_ballot_is_with(ballot, r, epoch) << epoch;
    }
}

static void adopt(reader_t *reader)
{
    uint64_t before[MOST_RANKS], told[MOST_RANKS], after[MOST_RANKS];
    note_with(&reader->mine, before);
    note_with(&reader->theirs, told);
    int changed = xep_ballot_adopt(&reader->mine, &reader->theirs);
    note_with(&reader->mine, after);
    for (uint32_t r = 0; r < reader->mine.nranks; r++) {
        if (after[r] != (before[r] | told[r])) fuzz_fail("rank %u: it is with neither's operations", r);
        if (before[r] != after[r] && !changed) fuzz_fail("rank %u: changed, and nobody was told", r);
    }
    if (xep_ballot_adopt(&reader->mine, &reader->theirs)) fuzz_fail("the same ballot changes it once more");
}

/* The latest ones are kept, as many as there is room for; of an older one it is known that it may be missing. */
static void check_forgetting(uint32_t most, fuzz_input_t *input)
{
    xep_decision_t list[MOST_MISSING];
    xep_decisions_t decisions = {.list = list, .most = most};
    uint64_t given = 0;
    uint32_t found = 0;
    for (uint64_t i = 0; i < 2 * MOST_MISSING; i++) {
        const uint64_t epoch = 1 + i + fuzz_below(input, 5);
        xep_decisions_add(&decisions, (xep_decision_t){epoch, XEP_ERR_MISMATCH, 0});
        given |= UINT64_C(1) << epoch;
    }
    for (uint64_t epoch = EPOCHS - 1; epoch > 0; epoch--) {
        const int was_given = given >> epoch & 1, is_kept = was_given && found < most;
        const int is_there = xep_decisions_find(&decisions, epoch) != NULL;
        if (is_there != is_kept || (is_kept < was_given && epoch > decisions.forgotten))
            fuzz_fail("decision %llu of %u that are kept", (unsigned long long)epoch, most);
        found += (uint32_t)is_kept;
    }
}

static void check_decisions(const xep_decisions_t *decisions)
{
    if (decisions->count > decisions->most) fuzz_fail("%u adopted decisions", decisions->count);
    for (uint32_t i = 0; i < decisions->count; i++)
        if (!xep_decision_is_due(decisions->list[i].status))
            fuzz_fail("adopted decision %d", decisions->list[i].status);
}

/* ---- words ---- */

static void check_same(const xep_ballot_t *one, const xep_ballot_t *other)
{
    const xep_decisions_t *mine = &one->decisions, *same = &other->decisions;
    if (!xep_ballot_is_same(one, other) || mine->count != same->count || mine->forgotten != same->forgotten)
        fuzz_fail("a ballot is not read as it was written");
    for (uint32_t i = 0; i < mine->count; i++) {
        const xep_decision_t *found = xep_decisions_find(same, mine->list[i].epoch);
        if (found == NULL || found->status != mine->list[i].status || found->refused != mine->list[i].refused)
            fuzz_fail("a decision is not read as it was written");
    }
}

/* The reader has exactly the words it may read, so that a sanitizer sees one too many. */
static void check_words(reader_t *reader, fuzz_input_t *input)
{
    const uint64_t capacity = xep_ballot_words(reader->mine.nranks, reader->mine.most);
    uint64_t *whole = allocate(capacity, sizeof *whole);
    const uint64_t length = xep_ballot_write(&reader->mine, whole, capacity);
    if (length == 0 || xep_ballot_write(&reader->mine, whole, length - 1) != 0) fuzz_fail("it has no room");
    const uint64_t at = fuzz_below(input, length);
    uint64_t *words = allocate(length, sizeof *words), *cut = allocate(at + 1, sizeof *cut);
    memcpy(words, whole, length * sizeof *words);
    if (!xep_ballot_read(&reader->theirs, words, length)) fuzz_fail("a ballot is refused");
    check_same(&reader->mine, &reader->theirs);
    words[at] ^= UINT64_C(1) << fuzz_below(input, 64);
    if (xep_ballot_read(&reader->theirs, words, length)) fuzz_fail("word %llu is torn", (unsigned long long)at);
    memcpy(cut, whole, at * sizeof *cut);
    if (xep_ballot_read(&reader->theirs, cut, at)) fuzz_fail("it ends at word %llu", (unsigned long long)at);
    free(cut);
    free(words);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = {data, data + size};
    reader_t reader;
    reader_open(&reader, &input);
    for (int i = 0; i < MOST_TURNS && input.at < input.end; i++) {
        if (tell_words(&reader, &input)) {
            check_sound(&reader.theirs);
            suspect_too(&reader, &input);
            adopt(&reader);
            check_sound(&reader.mine);
            check_decisions(&reader.mine.decisions);
            if (xep_ballot_count(&reader.mine) < reader.mine.nranks) check_words(&reader, &input); /* not itself */
        }
        fuzz_count(1);
    }
    input.at = data;
    check_forgetting(reader.mine.most, &input);
    reader_close(&reader);
    return 0;
}
