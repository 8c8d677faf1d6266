/* SPDX-License-Identifier: BSD-3-Clause */

/* How far crowded receive rings are read: local ranks tell their forwarder, and it tells the source. */
#include "ll_flow.h"

uint64_t ll_taken_offset(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    return mode->layout.taken + xep_notices_entry_of(&mode->kit, op->turn, rank) * sizeof(uint64_t);
}

static uint64_t local_offset(const ll_t *mode, const xep_op_t *op, uint32_t feed, uint32_t place)
{
    uint64_t line = xep_notices_entry(&mode->kit, op->turn) * xep_forwarders_most(mode->kit.shape) + feed;
    return mode->layout.locals_taken + (line * mode->layout.most_locals + place) * sizeof(uint64_t);
}

/* How many of an upstream rank's tokens all local ranks have taken. */
static uint64_t taken_by_all(const ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t tokens)
{
    /*
     * acquire: the source may write over what local ranks have read. A word of an older operation counts as no tokens.
     */
    for (uint32_t p = 0; p < mode->nodes.locals; p++) {
        const _Atomic uint64_t *word = xep_kit_own(&mode->kit, local_offset(mode, op, mode->nodes.fed[source], p));
        uint64_t theirs = xep_rows_of(atomic_load_explicit(word, memory_order_acquire), op->epoch);
        if (p != mode->nodes.place && theirs < tokens) tokens = theirs;
    }
    return tokens;
}

/* Tells the source itself, or the forwarder, which is mapped. No part waits for the last tokens. */
static xep_status_t tell(const ll_t *mode, const xep_op_t *op, uint32_t source, ll_recv_ring_t *recv_ring)
{
    const uint32_t self = mode->kit.shape->rank, through = mode->nodes.through[source];
    uint64_t tokens = recv_ring->taken;
    xep_status_t status = XEP_OK;
    if (through == self) tokens = taken_by_all(mode, op, source, tokens);
    if (tokens == recv_ring->told || tokens >= ll_slot(mode, op->slot)->from[source].tokens) return XEP_OK;
    uint64_t word = xep_rows_word(op->epoch, tokens);
    if (through != self)
        xep_kit_signal(&mode->kit, through, local_offset(mode, op, mode->nodes.fed[source], mode->nodes.place), word);
    else
        status = mode->kit.env->wire->ops->put_signal(mode->kit.env->wire, source, 0, NULL, 0,
                                                      ll_taken_offset(mode, op, self), word);
    if (status == XEP_OK) recv_ring->told = tokens;
    return status;
}

/* If the wire is busy, tries again at the next look. */
xep_status_t ll_tell_taken(ll_t *mode, const xep_op_t *op)
{
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        ll_recv_ring_t *recv_ring = &ll_slot(mode, op->slot)->recv_rings[s];
        xep_status_t status = recv_ring->crowded ? tell(mode, op, s, recv_ring) : XEP_OK;
        if (status < 0) return status;
    }
    return XEP_OK;
}
