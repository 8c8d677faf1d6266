/* SPDX-License-Identifier: BSD-3-Clause */

/* What of a routing passes, and the private memory for it. */
#include "normal_nodes.h"

#include <string.h>

/* ---- private memory ---- */

/* The same in both passes, and the first knows no nodes yet. */
static normal_nodes_t count_nodes(const xep_shape_t *shape)
{
    uint32_t locals = shape->node_ranks[shape->node[shape->rank]];
    return (normal_nodes_t){.who.locals = locals,
                            .who.upstreams = xep_forwarders_count(shape, shape->rank, shape->nranks),
                            .most_locals = xep_least(shape->topk, locals),
                            .most_nodes = xep_least(shape->topk, shape->nodes - 1)};
}

static normal_passing_t *lay_passing(const normal_t *mode, const normal_nodes_t *nodes, xep_carve_t *arena)
{
    const xep_shape_t *shape = mode->kit.shape;
    const uint64_t tokens = shape->tokens, upstreams = nodes->who.upstreams;
    normal_passing_t measured, *laid = xep_carve_array(arena, 1, sizeof *laid),
                               *passing = laid != NULL ? laid : &measured;
    passing->tokens = xep_carve_array(arena, tokens * nodes->most_nodes, sizeof *passing->tokens);
    passing->begin = xep_carve_array(arena, shape->nodes + UINT64_C(1), sizeof *passing->begin);
    passing->term_first = xep_carve_array(arena, tokens + 1, sizeof *passing->term_first);
    passing->terms = xep_carve_array(arena, tokens * mode->layout.max_dests, sizeof *passing->terms);
    passing->feeds = xep_carve_array(arena, upstreams, sizeof *passing->feeds);
    passing->begins = xep_carve_array(arena, upstreams * nodes->who.locals, sizeof *passing->begins);
    passing->dest_first = xep_carve_array(arena, upstreams * (tokens + 1), sizeof *passing->dest_first);
    passing->dests = xep_carve_array(arena, upstreams * tokens * nodes->most_locals, sizeof *passing->dests);
    return laid;
}

static normal_traffic_t *lay_traffic(const xep_shape_t *shape, const normal_nodes_t *nodes, xep_carve_t *arena)
{
    normal_traffic_t measured, *laid = xep_carve_array(arena, 1, sizeof *laid),
                               *traffic = laid != NULL ? laid : &measured;
    traffic->feeds = xep_carve_array(arena, nodes->who.upstreams, sizeof *traffic->feeds);
    traffic->passed = xep_carve_array(arena, shape->nranks, sizeof *traffic->passed);
    traffic->next = xep_carve_array(arena, (uint64_t)nodes->who.upstreams * nodes->who.locals, sizeof *traffic->next);
    traffic->targets = xep_carve_array(arena, nodes->who.locals, sizeof *traffic->targets);
    traffic->sources = xep_carve_array(arena, nodes->who.locals, sizeof *traffic->sources);
    traffic->tails = xep_carve_array(arena, shape->nodes, sizeof *traffic->tails);
    traffic->staged = xep_carve_array(arena, shape->tokens * nodes->most_nodes, normal_most_metadata(shape));
    return laid;
}

/* While it is only measured, what is found goes nowhere. */
void normal_lay_nodes(normal_t *mode, xep_carve_t *arena)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_nodes_t measured, *nodes = xep_carve_array(arena, 1, sizeof *nodes);
    mode->nodes = nodes;
    if (nodes == NULL) nodes = &measured;
    *nodes = count_nodes(shape);
    xep_forwarders_lay(shape, arena, &nodes->who);
    nodes->seen = xep_carve_array(arena, shape->nodes, sizeof *nodes->seen);
    nodes->list = xep_carve_array(arena, nodes->most_nodes + UINT64_C(1), sizeof *nodes->list);
    nodes->metadata = xep_carve_array(arena, NORMAL_BATCH_ROWS, normal_most_metadata(shape));
    nodes->found = xep_carve_array(arena, nodes->most_locals, sizeof *nodes->found);
    if (shape->sums_by_selection)
        mode->own_sums = xep_carve_array(arena, mode->kit.env->threads, mode->layout.common.combine_stride);
    for (uint32_t s = 0; s < shape->slots; s++) {
        normal_slot(mode, s)->own.passing = lay_passing(mode, nodes, arena);
        normal_slot(mode, s)->traffic = lay_traffic(shape, nodes, arena);
    }
}

/*
 * A record that came over the wire is for all ranks of the node, and has the selections of all experts. Of the outputs
 * for readers of other nodes this rank sums those that it forwards for; others of its node pull the rest.
 */
void normal_open_nodes(normal_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    for (uint32_t r = 0; r < shape->nranks; r++) {
        if (mode->kit.base[r] != NULL) continue;
        mode->skips[r] = mode->kit.first_expert[shape->rank];
        mode->kit.pulls[r] = mode->nodes->who.through[r] != shape->rank;
    }
}

/* ---- the plan ---- */

/*
 * The nodes of a token in the order of sums: ascending, as they are few sorted as they come; or as the last ranks of
 * each come, which are found from the last one on. Its own is among them, so that sums know when its ranks are due.
 * seen has the token plus 1, so that zeros are no token, and is cleared once for a plan and not for every token.
 * Returns how many.
 */
static uint32_t list_nodes(const normal_t *mode, const normal_routing_t *routing, uint64_t token, uint32_t *list)
{
    const int by_selection = mode->kit.shape->sums_by_selection;
    uint64_t *seen = mode->nodes->seen;
    uint32_t count = 0;
    for (uint64_t i = routing->first[token + 1]; i > routing->first[token]; i--) {
        uint32_t node = mode->kit.shape->node[routing->dests[i - 1].rank], at = count;
        if (seen[node] == token + 1) continue;
        seen[node] = token + 1;
        for (; at > 0 && (by_selection || list[at - 1] > node); at--) list[at] = list[at - 1];
        list[at] = node;
        count++;
    }
    return count;
}

/* Ranks of the own node one by one, and of every other node the next row that passes to it; returns the end of terms.
 */
static uint64_t add_terms(const normal_t *mode, normal_routing_t *routing, uint64_t token, uint64_t end)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_passing_t *passing = routing->passing;
    uint64_t *next = passing->begin + 1; /* counts, for now */
    uint32_t *list = mode->nodes->list, count = list_nodes(mode, routing, token, list);
    for (uint32_t n = 0; n < count; n++) {
        if (list[n] != mode->nodes->who.node) {
            passing->terms[end++] = (normal_dest_t){mode->nodes->who.forwarder[list[n]], (uint32_t)next[list[n]]++};
            continue;
        }
        for (uint64_t i = routing->first[token]; i < routing->first[token + 1]; i++)
            if (shape->node[routing->dests[i].rank] == list[n]) passing->terms[end++] = routing->dests[i];
    }
    return end;
}

/* Terms first, which number the rows of each node; then the tokens by node, as a counting sort. */
static void plan_passing(const normal_t *mode, normal_routing_t *routing)
{
    const uint32_t nnodes = mode->kit.shape->nodes;
    normal_passing_t *passing = routing->passing;
    uint64_t end = 0;
    memset(passing->begin, 0, (nnodes + UINT64_C(1)) * sizeof *passing->begin);
    memset(mode->nodes->seen, 0, nnodes * sizeof *mode->nodes->seen);
    for (uint64_t t = 0; t < routing->tokens; t++) {
        passing->term_first[t] = end;
        end = add_terms(mode, routing, t, end);
    }
    passing->term_first[routing->tokens] = end;
    /* from here on where the rows to a node begin, and no more how many there are */
    for (uint32_t n = 0; n < nnodes; n++) passing->begin[n + 1] += passing->begin[n];
    for (uint64_t t = 0; t < routing->tokens; t++)
        for (uint64_t i = passing->term_first[t]; i < passing->term_first[t + 1]; i++) {
            normal_dest_t term = passing->terms[i];
            const uint32_t node = mode->kit.shape->node[term.rank];
            if (node != mode->nodes->who.node) passing->tokens[passing->begin[node] + term.row] = (uint32_t)t;
        }
}

xep_status_t normal_begin_traffic(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const normal_nodes_t *nodes = mode->nodes;
    normal_traffic_t *traffic = normal_slot(mode, op->slot)->traffic;
    if (op->cached_slot == XEP_NO_SLOT) plan_passing(mode, normal_slot(mode, op->slot)->routing);
    for (uint32_t f = 0; f < nodes->who.upstreams; f++) traffic->feeds[f] = (normal_feed_t){.token = -1};
    memset(traffic->passed, 0, mode->kit.shape->nranks * sizeof *traffic->passed);
    traffic->turn = 0;
    memset(traffic->next, 0, (size_t)nodes->who.upstreams * nodes->who.locals * sizeof *traffic->next);
    return XEP_OK;
}

/* ---- the metadata of a row ---- */

size_t normal_passing_bytes(const normal_t *mode, const xep_op_t *op, int weighted)
{
    const uint32_t beside = (normal_slot(mode, op->slot)->fields.bytes + 3) / 4;
    return sizeof(int32_t) * (1 + (weighted ? 2 : 1) * (size_t)op->dispatch->topk + beside);
}
