/* SPDX-License-Identifier: BSD-3-Clause */

/* Inboxes that may be crowded, as a receiver: which item is whose, and what was taken of them ("inboxes" in ll.h). */
#include "ll.h"

/* ---- whose an item is ---- */

/* By nodes: whether a token has an item here, by the rule of its source (list_tokens() in ll_parts.c). */
static int comes_here(const ll_t *mode, const int32_t *idx, uint32_t topk)
{
    const xep_shape_t *shape = mode->kit.shape;
    for (uint32_t k = 0; k < topk; k++)
        if ((uint32_t)idx[k] < shape->experts && shape->node[mode->kit.owner[idx[k]]] == mode->nodes.node) return 1;
    return 0;
}

/* Items of tokens that any rank of this node needs. The head is memory of others: no pick is left without an item. */
static uint64_t place_of_node(ll_t *mode, uint32_t source, const ll_notice_t *notice, uint64_t i, uint64_t end)
{
    const ll_parcel_t *parcel = &mode->parcels[source];
    const int32_t *idx = (const int32_t *)(const void *)parcel->head;
    uint64_t items = 0;
    for (uint32_t t = 0; t < notice->tokens; t++, idx += notice->topk) {
        for (; i < end && mode->picks[i].token == t; i++) mode->pick_item[i] = (uint32_t)(items % parcel->room);
        items += (uint64_t)comes_here(mode, idx, notice->topk);
    }
    return items;
}

/* Items of tokens that this rank needs. */
static uint64_t place_own(ll_t *mode, uint32_t source, uint64_t begin, uint64_t end)
{
    uint64_t items = 0;
    for (uint64_t i = begin; i < end; i++) {
        items += i == begin || mode->picks[i].token != mode->picks[i - 1].token;
        mode->pick_item[i] = (uint32_t)((items - 1) % mode->parcels[source].room);
    }
    return items;
}

/* More items than there is room for must come in parts: all at once, the last ones would lie over the first. */
xep_status_t ll_note_items(ll_t *mode, xep_op_t *op, uint32_t source, uint64_t items)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t room = mode->parcels[source].room;
    slot->crowded[source] = mode->pick_item != NULL && mode->kit.base[source] == NULL && items > room;
    if (!slot->crowded[source] || slot->from[source].in_parts) return XEP_OK;
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                               "rank %u sends %llu rows at once (there is room for %llu)", source,
                               (unsigned long long)items, (unsigned long long)room);
}

/* A mapped source has an item for each token, in its own memory: it never crowds an inbox, and items stays 0. */
xep_status_t ll_place_items(ll_t *mode, xep_op_t *op, uint32_t source, uint64_t begin, uint64_t end)
{
    uint64_t items = 0;
    if (mode->pick_item == NULL) return XEP_OK;
    if (mode->kit.base[source] != NULL)
        for (uint64_t i = begin; i < end; i++) mode->pick_item[i] = mode->picks[i].token;
    else if (mode->kit.shape->by_nodes)
        items = place_of_node(mode, source, &ll_slot(mode, op->slot)->from[source], begin, end);
    else items = place_own(mode, source, begin, end);
    return ll_note_items(mode, op, source, items);
}

/* ---- what was taken ---- */

uint64_t ll_taken_offset(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    return mode->layout.taken + xep_notices_entry_of(&mode->kit, op->turn, rank) * sizeof(uint64_t);
}

static uint64_t mate_offset(const ll_t *mode, const xep_op_t *op, uint32_t feed, uint32_t place)
{
    uint64_t line = xep_notices_entry(&mode->kit, op->turn) * mode->kit.shape->feeders + feed;
    return mode->layout.mates_taken + (line * mode->layout.most_mates + place) * sizeof(uint64_t);
}

/* By nodes, of a feeder: what all mates have. */
static uint64_t taken_by_all(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    uint64_t tokens = ll_slot(mode, op->slot)->tokens_out[source];
    /* acquire: the source may write over what mates have read. A word of an older operation counts as no tokens. */
    for (uint32_t p = 0; p < mode->nodes.mates; p++) {
        const _Atomic uint64_t *word = xep_kit_own(&mode->kit, mate_offset(mode, op, mode->nodes.fed[source], p));
        uint64_t theirs = xep_rows_of(atomic_load_explicit(word, memory_order_acquire), op->epoch);
        if (p != mode->nodes.place && theirs < tokens) tokens = theirs;
    }
    return tokens;
}

/* The source itself, or by nodes the forwarder, which is mapped. The last tokens keep nobody out. */
static xep_status_t tell(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint32_t through = mode->kit.shape->by_nodes ? mode->nodes.through[source] : mode->kit.shape->rank;
    uint64_t tokens = slot->tokens_out[source];
    xep_status_t status = XEP_OK;
    if (through == mode->kit.shape->rank && mode->kit.shape->by_nodes) tokens = taken_by_all(mode, op, source);
    if (tokens == slot->taken_told[source] || tokens >= slot->from[source].tokens) return XEP_OK;
    uint64_t word = xep_rows_word(op->epoch, tokens);
    if (through != mode->kit.shape->rank)
        xep_kit_signal(&mode->kit, through, mate_offset(mode, op, mode->nodes.fed[source], mode->nodes.place), word);
    else
        status = mode->kit.env->wire->ops->put_signal(mode->kit.env->wire, source, 0, NULL, 0,
                                                      ll_taken_offset(mode, op, mode->kit.shape->rank), word);
    if (status == XEP_OK) slot->taken_told[source] = tokens;
    return status;
}

/* What a busy wire does not take is said at the next look. */
xep_status_t ll_tell_taken(ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    for (uint32_t i = 0; i < op->with.count && mode->pick_item != NULL; i++) {
        uint32_t s = op->with.rank[i];
        if (!slot->crowded[s]) continue;
        xep_status_t status = tell(mode, op, s);
        if (status < 0) return status;
    }
    return XEP_OK;
}
