/* SPDX-License-Identifier: BSD-3-Clause */

/* By nodes: who is sent a parcel, where it is for the ranks of a node, and who tells them ("by nodes" in ll.h). */
#include <string.h>

#include "ll.h"

/* ---- places ---- */

/* Which of those delivered in a turn: flat, by source; by nodes, by feeder of the rank that has it. */
static uint64_t delivered_entry(const ll_t *mode, const xep_op_t *op, uint32_t line)
{
    const xep_shape_t *shape = mode->kit.shape;
    return xep_notices_entry(&mode->kit, op->turn) * (shape->by_nodes ? shape->feeders : shape->nranks) + line;
}

uint64_t ll_delivery_entry(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    const xep_shape_t *shape = mode->kit.shape;
    return delivered_entry(mode, op, shape->by_nodes ? mode->nodes.line[shape->node[rank]] : shape->rank);
}

const char *ll_delivered(const ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t *entry_p)
{
    int by_nodes = mode->kit.shape->by_nodes;
    *entry_p = delivered_entry(mode, op, by_nodes ? mode->nodes.fed[source] : source);
    return by_nodes ? mode->kit.base[mode->nodes.through[source]] : mode->kit.own;
}

int ll_delivers_to(const ll_t *mode, uint32_t rank)
{
    const xep_shape_t *shape = mode->kit.shape;
    return !shape->by_nodes || mode->nodes.forwarder[shape->node[rank]] == rank;
}

/* ---- a forwarder ---- */

void ll_begin_relay(const ll_t *mode, const xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    if (!mode->kit.shape->by_nodes) return;
    memset(slot->relayed, 0, mode->nodes.feeders);
    memset(slot->passed, 0, mode->nodes.feeders * sizeof *slot->passed);
}

static int has_come(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    uint64_t value;
    const _Atomic uint64_t *word = xep_notices_word(mode, op, source, &value);
    return atomic_load_explicit(word, memory_order_acquire) >= value;
}

/*
 * How far the rows of a feeder are here. Loaded with acquire and stored with release, so that a mate that sees the word
 * sees the rows, too. Mates may miss values between two looks: the last one says all that the others said.
 */
static void relay_passed(const ll_t *mode, const xep_op_t *op, uint32_t feed)
{
    const xep_forwarders_t *nodes = &mode->nodes;
    uint64_t *passed = &ll_slot(mode, op->slot)->passed[feed];
    uint64_t offset = ll_passed_offset(mode, op, nodes->feeder[feed]);
    const _Atomic uint64_t *own = xep_kit_own(&mode->kit, offset);
    uint64_t word = atomic_load_explicit(own, memory_order_acquire);
    if (xep_rows_of(word, op->epoch) == 0 || word == *passed) return;
    for (uint32_t p = 0; p < nodes->mates; p++)
        if (p != nodes->place) xep_kit_signal(&mode->kit, nodes->mate[p], offset, word);
    *passed = word;
}

/* Nothing of a notice or a word is looked at here: whoever takes it does. */
void ll_relay(const ll_t *mode, const xep_op_t *op)
{
    const xep_forwarders_t *nodes = &mode->nodes;
    uint8_t *relayed = ll_slot(mode, op->slot)->relayed;
    for (uint32_t f = 0; f < nodes->feeders; f++) {
        relay_passed(mode, op, f);
        if (relayed[f] || !has_come(mode, op, nodes->feeder[f])) continue;
        for (uint32_t p = 0; p < nodes->mates; p++)
            if (p != nodes->place) xep_notices_relay(&mode->kit, op, nodes->feeder[f], nodes->mate[p]);
        relayed[f] = 1;
    }
}

/* ---- rows in parts: by nodes, and where an inbox is crowded ---- */

uint64_t ll_passed_offset(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    return mode->layout.passed + xep_notices_entry_of(&mode->kit, op->turn, source) * sizeof(uint64_t);
}

static int is_parted(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    return mode->kit.base[source] == NULL && ll_slot(mode, op->slot)->from[source].in_parts;
}

const _Atomic uint64_t *ll_passed_word(const void *opaque, const xep_op_t *op, uint32_t source, uint64_t *value_p)
{
    const ll_t *mode = opaque;
    const _Atomic uint64_t *word = xep_notices_word(mode, op, source, value_p);
    *value_p = 0;
    if (!is_parted(mode, op, source)) return word;
    *value_p = xep_rows_word(op->epoch, ll_slot(mode, op->slot)->from[source].tokens);
    return xep_kit_own(&mode->kit, ll_passed_offset(mode, op, source));
}

uint64_t ll_tokens_here(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    uint64_t value, tokens = ll_slot(mode, op->slot)->from[source].tokens;
    const _Atomic uint64_t *word = ll_passed_word(mode, op, source, &value);
    /* value 0: its rows are not in parts, and were there before its notice */
    uint64_t here = value != 0 ? atomic_load_explicit(word, memory_order_acquire) : value;
    return here >= value ? tokens : xep_rows_of(here, op->epoch);
}
