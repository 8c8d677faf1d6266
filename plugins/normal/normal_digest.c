/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Whether all ranks were told the same. Places of rows follow from what lower ranks send, so a rank that tells one peer
 * 5 rows and another 6 makes one of them write over the rows of others, or leave rows as they were. A sum of products
 * is added to what is done with every count anyway, and compared when the rows are here: 64 counts of 8 ranks are 64
 * multiplications.
 */
#include <string.h>

#include "normal_shared.h"

/* splitmix64: neighbours have nothing in common, so that changes of several counts do not cancel out */
static uint64_t scramble(uint64_t value)
{
    value = (value + 1) * UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

void normal_make_factors(uint64_t *factors, uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++) factors[r] = scramble(r) | 1;
}

void normal_digest_add(const normal_t *mode, normal_routing_t *routing, uint32_t rank)
{
    uint32_t nranks = mode->kit.shape->nranks;
    const uint32_t *rows = routing->rank_rows + (size_t)rank * nranks;
    uint64_t hash = 0;
    for (uint32_t d = 0; d < nranks; d++) hash += rows[d] * mode->factors[d];
    routing->sum += hash;
    routing->places += (rank + UINT64_C(1)) * hash;
}

/* whether rows were counted before the verdict */
static int is_counted(const normal_digest_t *digest)
{
    return digest->verdict >> 1 == XEP_OK || (xep_status_t)(uint32_t)(digest->verdict >> 1) == XEP_ERR_OVERFLOW;
}

void normal_make_digest(normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    slot->digest = (normal_digest_t){.verdict = (uint64_t)(uint32_t)xep_kit_state(op)->verdict << 1};
    if (!is_counted(&slot->digest)) return;
    slot->digest.verdict |= normal_state(op)->weighted != 0;
    slot->digest.sum = slot->routing->sum;
    slot->digest.places = slot->routing->places;
}

/* The rank whose counts alone make the difference between two digests; nranks: there is none. */
static uint32_t find_source(const normal_digest_t *a, const normal_digest_t *b, uint32_t nranks)
{
    uint32_t source = 0;
    if (a->sum == b->sum || !is_counted(a) || !is_counted(b)) return nranks;
    while (source < nranks && (source + UINT64_C(1)) * (a->sum - b->sum) != a->places - b->places) source++;
    return source;
}

xep_status_t normal_tell_difference(const normal_t *mode, xep_op_t *op, uint32_t rank, const normal_digest_t *theirs)
{
    const xep_env_t *env = mode->kit.env;
    const normal_digest_t *own = &normal_slot(mode, op->slot)->digest;
    uint32_t nranks = mode->kit.shape->nranks, self = mode->kit.shape->rank;
    uint32_t low = rank < self ? rank : self, high = rank < self ? self : rank;
    uint32_t source = find_source(own, theirs, nranks);
    if (source < nranks)
        return env->fail(env, op, XEP_ERR_PROTOCOL, "rank %u and rank %u were told different counts of rows by rank %u",
                         low, high, source);
    return env->fail(env, op, XEP_ERR_PROTOCOL, "rank %u and rank %u were told different %s", low, high,
                     own->verdict == theirs->verdict ? "counts of rows" : "parameters");
}

/* Copied before it is looked at: a peer may still write. */
xep_status_t normal_compare_digests(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        const normal_digest_t theirs = normal_line(mode, normal_index(mode, op), r)->digest;
        if (memcmp(&theirs, &normal_slot(mode, op->slot)->digest, sizeof theirs) != 0)
            return normal_tell_difference(mode, op, r, &theirs);
    }
    return XEP_OK;
}
