/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Sets only grow, and the words of a suspect are not listened to any more: so what all have said alike stays true.
 */
#include "shrink_state.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "log.h"

/* All that a rank says fits into one letter, so that nobody ever sees half of it. */
static size_t state_bytes(const xep_shrink_t *shrink)
{
    return sizeof(xep_state_t) + 2 * (size_t)shrink->words * sizeof(uint64_t);
}

static uint64_t *ready_of(const xep_shrink_t *shrink, xep_state_t *state)
{
    return state->bits + shrink->words;
}

static void set_bit(uint64_t *bits, uint32_t rank)
{
    bits[rank / 64] |= UINT64_C(1) << rank % 64;
}

xep_status_t xep_shrink_open(xep_shrink_t *shrink, xep_group_t *group)
{
    *shrink = (xep_shrink_t){.group = group, .nranks = group->nranks, .words = (group->nranks + 63) / 64};
    if (state_bytes(shrink) > XEP_MAIL_BYTES)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "a group of %u ranks is too large to shrink: %zu bytes of mail (at most %d)", group->nranks,
                        state_bytes(shrink), XEP_MAIL_BYTES);
    shrink->mine = calloc(1, state_bytes(shrink));
    shrink->of = calloc(group->nranks, sizeof *shrink->of);
    shrink->gone = calloc(group->nranks, sizeof *shrink->gone);
    shrink->late = calloc(group->nranks, sizeof *shrink->late);
    shrink->fresh = calloc(group->nranks, sizeof *shrink->fresh);
    if (shrink->mine != NULL && shrink->of != NULL && shrink->gone != NULL && shrink->late != NULL &&
        shrink->fresh != NULL) {
        shrink->mine->phase = XEP_SHRINK_AGREE;
        shrink->changed = 1;
        return XEP_OK;
    }
    xep_shrink_close(shrink);
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory to shrink a group of %u ranks", group->nranks);
}

void xep_shrink_close(xep_shrink_t *shrink)
{
    for (xep_letter_t *fragment = shrink->fragments, *next; fragment != NULL; fragment = next) {
        next = fragment->next;
        free(fragment);
    }
    for (uint32_t r = 0; shrink->of != NULL && r < shrink->nranks; r++) free(shrink->of[r]);
    free(shrink->fresh);
    free(shrink->late);
    free(shrink->gone);
    free(shrink->of);
    free(shrink->mine);
}

void xep_shrink_suspect(xep_shrink_t *shrink, uint32_t rank)
{
    if (xep_shrink_suspects(shrink, rank)) return;
    set_bit(shrink->mine->bits, rank);
    shrink->mine->phase = XEP_SHRINK_AGREE; /* whatever it was ready for is in doubt */
    shrink->changed = 1;
}

uint32_t xep_shrink_count(const xep_shrink_t *shrink)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < shrink->nranks; r++) count += (uint32_t)xep_shrink_suspects(shrink, r);
    return count;
}

/*
 * FNV-1a of the set of suspects, so that ranks that leave out the same ones give their attempt the same name without
 * a word. Never 0, which is no attempt.
 */
uint64_t xep_shrink_name(const xep_shrink_t *shrink)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (uint32_t r = 0; r < shrink->nranks; r++)
        hash = (hash ^ (uint64_t)(1 + xep_shrink_suspects(shrink, r))) * UINT64_C(1099511628211);
    return hash | 1;
}

/* The own ready bits of an earlier attempt go: what was ready then was another group. */
void xep_shrink_try(xep_shrink_t *shrink)
{
    shrink->mine->tried = xep_shrink_name(shrink);
    shrink->mine->tried_count = xep_shrink_count(shrink);
    memset(ready_of(shrink, shrink->mine), 0, shrink->words * sizeof(uint64_t));
    shrink->built = 0;
}

void xep_shrink_say_ready(xep_shrink_t *shrink)
{
    set_bit(ready_of(shrink, shrink->mine), shrink->group->rank);
    shrink->built = shrink->mine->tried;
    shrink->mine->phase = XEP_SHRINK_READY;
    shrink->changed = 1;
}

/* Those of the attempt are all but its suspects, and only these can be ready. */
int xep_shrink_all_ready(const xep_shrink_t *shrink)
{
    const uint64_t *ready = ready_of(shrink, shrink->mine);
    uint32_t count = 0;
    for (uint32_t r = 0; r < shrink->nranks; r++) count += (uint32_t)xep_bit_is_set(ready, r);
    return shrink->mine->tried != 0 && count == shrink->nranks - shrink->mine->tried_count;
}

int xep_shrink_is_ready(const xep_shrink_t *shrink, uint32_t rank)
{
    return xep_bit_is_set(ready_of(shrink, shrink->mine), rank);
}

int xep_shrink_is_same(const xep_shrink_t *shrink, const xep_state_t *theirs)
{
    return theirs->tried == shrink->mine->tried &&
           memcmp(theirs->bits, shrink->mine->bits, 2 * shrink->words * sizeof(uint64_t)) == 0;
}

/* Suspects hear it too where they may live, so that they know that they are out. */
void xep_shrink_publish(xep_shrink_t *shrink)
{
    if (!shrink->changed) return;
    shrink->changed = 0;
    shrink->mine->sequence++;
    for (uint32_t r = 0; r < shrink->nranks; r++)
        if (r != shrink->group->rank && !shrink->gone[r])
            (void)xep_mail_send(shrink->group, r, XEP_MAIL_STATE, shrink->mine, state_bytes(shrink));
}

/* ---- what others say ---- */

/* Ready bits of the same attempt are put together; of a later attempt, they replace those of an earlier one. */
static void adopt_attempt(xep_shrink_t *shrink, xep_state_t *theirs)
{
    xep_state_t *mine = shrink->mine;
    uint64_t *to = ready_of(shrink, mine), *from = ready_of(shrink, theirs);
    if (theirs->tried_count > mine->tried_count || (theirs->tried != 0 && mine->tried == 0)) {
        mine->tried = theirs->tried;
        mine->tried_count = theirs->tried_count;
        memset(to, 0, shrink->words * sizeof *to);
        shrink->changed = 1;
    }
    for (uint32_t i = 0; theirs->tried == mine->tried && i < shrink->words; i++) {
        if ((from[i] & ~to[i]) != 0) shrink->changed = 1;
        to[i] |= from[i];
    }
}

/* What ends the waiting, in the order in which it counts. That this rank is out comes first: whatever else is said by
 * those who go on without it does not concern it any more. A DONE counts only if this rank has built the same group. */
static xep_status_t check_phase(xep_shrink_t *shrink, uint32_t rank, const xep_state_t *theirs)
{
    shrink->left_out = xep_bit_is_set(theirs->bits, shrink->group->rank);
    if (shrink->left_out) return xep_group_fail_out(rank);
    if (theirs->phase == XEP_SHRINK_FAILED)
        return xep_fail(theirs->status < 0 && theirs->status >= XEP_ERR_BROKEN ? (xep_status_t)theirs->status
                                                                               : XEP_ERR_PEER,
                        "rank %u has given up making a smaller group: %.*s", rank, XEP_SHRINK_TEXT - 1, theirs->text);
    if (theirs->phase == XEP_SHRINK_DONE && shrink->built != 0 && theirs->tried == shrink->built) return XEP_OK;
    return XEP_INPROGRESS;
}

/* Everybody adopts everybody's suspects, so the sets of all who go on become equal, or one of them is suspected. */
static xep_status_t adopt(xep_shrink_t *shrink, uint32_t rank, xep_state_t *theirs)
{
    xep_status_t status = check_phase(shrink, rank, theirs);
    for (uint32_t r = 0; status == XEP_INPROGRESS && r < shrink->nranks; r++)
        if (xep_bit_is_set(theirs->bits, r)) xep_shrink_suspect(shrink, r);
    if (status == XEP_INPROGRESS) adopt_attempt(shrink, theirs);
    return status;
}

/* The transport may deliver in any order. */
static void take_state(xep_shrink_t *shrink, const xep_letter_t *letter)
{
    xep_state_t **of = &shrink->of[letter->from];
    uint64_t sequence;
    if (letter->bytes != state_bytes(shrink)) {
        xep_log(XEP_LOG_WARN, "invalid mail from rank %u was dropped: %zu bytes (%zu)", letter->from, letter->bytes,
                state_bytes(shrink));
        return;
    }
    memcpy(&sequence, letter->data, sizeof sequence);
    /* each letter has all that its rank says: an older one that comes later has nothing to add */
    if (*of != NULL && (*of)->sequence >= sequence) return;
    if (*of == NULL) *of = malloc(state_bytes(shrink));
    if (*of != NULL) memcpy(*of, letter->data, letter->bytes);
    shrink->fresh[letter->from] = 1;
}

/* At the end: the fragments of an exchange are taken in the order in which they came. */
static void keep_fragment(xep_shrink_t *shrink, xep_letter_t *letter)
{
    xep_letter_t **last = &shrink->fragments;
    while (*last != NULL) last = &(*last)->next;
    letter->next = NULL;
    *last = letter;
}

xep_status_t xep_shrink_hear(xep_shrink_t *shrink)
{
    for (xep_letter_t *letter = xep_mail_take(shrink->group), *next; letter != NULL; letter = next) {
        next = letter->next;
        if (letter->kind == XEP_MAIL_FRAGMENT) {
            keep_fragment(shrink, letter);
            continue;
        }
        if (!xep_shrink_suspects(shrink, letter->from)) take_state(shrink, letter);
        free(letter);
    }
    xep_status_t status = XEP_INPROGRESS;
    for (uint32_t r = 0; r < shrink->nranks && status == XEP_INPROGRESS; r++)
        if (shrink->of[r] != NULL && !xep_shrink_suspects(shrink, r)) status = adopt(shrink, r, shrink->of[r]);
    return status;
}
