/* SPDX-License-Identifier: BSD-3-Clause */

/* Flows as a receiver: where packets are, and whose an item is. */
#include "ll_flow.h"

/* ---- where packets are ---- */

uint64_t ll_delivered_entry(const ll_t *mode, const xep_op_t *op, uint32_t line)
{
    return xep_notices_entry(&mode->kit, op->turn) * xep_forwarders_most(mode->kit.shape) + line;
}

uint64_t ll_delivery_entry(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    return ll_delivered_entry(mode, op, mode->nodes.line[mode->nodes.node_of[rank]]);
}

/* ---- the head ---- */

const _Atomic uint64_t *ll_rows_word(const void *mode, const xep_op_t *op, uint32_t source, uint64_t *value_p)
{
    const _Atomic uint64_t *word = xep_notices_word(mode, op, source, value_p);
    *value_p = xep_rows_word(op->epoch, ll_slot(mode, op->slot)->from[source].tokens);
    return word;
}

uint64_t ll_tokens_here(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    uint64_t value, here = atomic_load_explicit(ll_rows_word(mode, op, source, &value), memory_order_acquire);
    return here >= value ? ll_slot(mode, op->slot)->from[source].tokens : xep_rows_of(here, op->epoch);
}

/* ---- whose an item is ---- */

/* Whether a token has an item here, by the rule of its source (list_tokens() in ll_flow_send.c). */
static int comes_here(const ll_t *mode, const int32_t *idx, uint32_t topk)
{
    const xep_forwarders_t *nodes = &mode->nodes;
    for (uint32_t k = 0; k < topk; k++)
        if ((uint32_t)idx[k] < mode->kit.shape->experts && nodes->node_of[mode->kit.owner[idx[k]]] == nodes->node)
            return 1;
    return 0;
}

/* Items of tokens that any rank of this node needs. The head is memory of others: no pick is left without an item. */
static uint64_t place_items(const ll_t *mode, const ll_list_t *list, uint32_t source, const ll_notice_t *notice,
                            uint64_t i, uint64_t end)
{
    const int32_t *idx = (const int32_t *)(const void *)list->packets[source].head;
    const uint64_t room = ll_recv_ring_room(mode, &list->packets[source]);
    uint64_t items = 0;
    for (uint32_t t = 0; t < notice->tokens; t++, idx += notice->topk) {
        for (; i < end && list->picks[i].token == t; i++) list->item[i] = (uint32_t)(items % room);
        items += (uint64_t)comes_here(mode, idx, notice->topk);
    }
    return items;
}

/*
 * If there are more items than room, the last ones come only when this rank has taken the first, which it has not yet.
 */
xep_status_t ll_note_items(const ll_t *mode, xep_op_t *op, uint32_t source, uint64_t items)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t room = ll_recv_ring_room(mode, &slot->list.packets[source]);
    const int crowds = mode->kit.base[source] == NULL && items > room;
    slot->recv_rings[source] = (ll_recv_ring_t){.crowded = crowds};
    if (!crowds || ll_tokens_here(mode, op, source) < slot->from[source].tokens) return XEP_OK;
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                               "rank %u sends %llu rows at once (there is room for %llu)", source,
                               (unsigned long long)items, (unsigned long long)room);
}

/* A mapped source has an item for each token, in its own memory: it never crowds a receive ring, and items stays 0. */
static xep_status_t place_source(const ll_t *mode, xep_op_t *op, uint32_t source)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_list_t *list = &slot->list;
    const uint64_t begin = list->begin[source], end = list->begin[source + 1];
    uint64_t items = 0;
    if (mode->kit.base[source] != NULL)
        for (uint64_t i = begin; i < end; i++) list->item[i] = list->picks[i].token;
    else items = place_items(mode, list, source, &slot->from[source], begin, end);
    return ll_note_items(mode, op, source, items);
}

xep_status_t ll_find_items(void *mode, xep_op_t *op)
{
    xep_status_t status = XEP_OK;
    for (uint32_t s = 0; s < ((ll_t *)mode)->kit.shape->nranks && status == XEP_OK; s++)
        status = place_source(mode, op, s);
    return status;
}
