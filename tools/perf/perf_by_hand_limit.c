/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Planned, stored and summed by the same processes at the same time. By rank in each one's private memory, with no word
 * to each other: no metadata, no signals, no waiting. A row that is cast stays in the cache until it is stored, which
 * is what a program by hand does. By expert rows and outputs go from core to core, and a word tells of them: no program
 * is without one.
 */

#include "perf_by_hand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_say.h"

/*
 * ---- packets: rows by expert of ranks that share memory and take what is theirs, as in mode ll ----
 *
 * Rows go from core to core, both ways: of a dispatch once cast, for all who take them; outputs where their experts
 * write them.
 */

/** A row of this rank: one of its experts was selected. */
typedef struct selected {
    uint32_t source, expert;
    uint64_t token, row; /* row: where it goes, expert by expert */
} selected_t;

typedef struct perf_packets {
    perf_by_hand_t *hand;
    char *memory;        /* packets of all ranks, then the outputs */
    char *outputs;       /* rows of all ranks, by expert, then by source, then by token */
    uint64_t *first;     /* [experts + 1] the first output of an expert */
    uint64_t *own;       /* [experts] that of this rank as a source */
    size_t each, stride; /* of a packet, and of an item in it: the row, and its scales on a line of their own */
    size_t beside;       /* in an item */
    uint32_t ring, turn; /* as many packets of a rank as mode ll has, so that they are as cold */
    uint64_t rows;
    selected_t *selected; /* [rows] by source, this rank first, then by token */
} packets_t;

/* ---- open and close ---- */

static int is_wanted(const perf_t *perf)
{
    return perf->options.by_expert && !perf->options.cuda && !perf->options.check_only &&
           perf->host_ranks == perf->info.nranks && perf->routing->tokens != 0;
}

static packets_t lay_out(const perf_t *perf)
{
    packets_t packets = {.ring = 2 * ((uint32_t)perf->options.slots + 1), .beside = perf_line_up(perf->placed_bytes)};

    packets.stride = packets.beside + perf_line_up(perf->placed_scales);
    packets.each = perf->routing->tokens * packets.stride;
    return packets;
}

uint64_t perf_limit_bytes(const perf_t *perf)
{
    const packets_t packets = lay_out(perf);

    return is_wanted(perf) ? packets.ring * packets.each + perf->recv_rows * perf_line_up(perf->sum_bytes) : 0;
}

size_t perf_limit_taken_bytes(const perf_t *perf)
{
    return is_wanted(perf) ? perf->recv_rows * (perf_line_up(perf->placed_bytes) + perf->placed_scales) : 0;
}

/* Of any rank's expert: first and own count until place_rows(). */
static void add_selection(packets_t *packets, uint32_t source, uint64_t token, uint32_t expert)
{
    const perf_t *perf = packets->hand->perf;

    packets->first[expert + 1]++;
    packets->own[expert] += source < perf->info.rank;
    if (oracle_owner(perf->routing, expert) == perf->info.rank)
        packets->selected[packets->rows++] = (selected_t){.source = source, .token = token, .expert = expert};
}

static void list_rows(packets_t *packets)
{
    const perf_t *perf = packets->hand->perf;
    const uint32_t nranks = perf->info.nranks, topk = (uint32_t)perf->options.topk;
    int32_t *idx = oracle_alloc(topk * sizeof *idx);
    float *weights = oracle_alloc(topk * sizeof *weights);

    packets->first = oracle_alloc((packets->hand->ndest + 1) * sizeof *packets->first);
    packets->own = oracle_alloc(packets->hand->ndest * sizeof *packets->own);
    packets->selected = oracle_alloc(perf->recv_rows * sizeof *packets->selected);
    for (uint32_t i = 0; i < nranks; i++) {
        const uint32_t source = (perf->info.rank + i) % nranks;
        for (uint64_t token = 0; token < perf->routing->tokens_of[source]; token++) {
            oracle_route(perf->routing, source, token, idx, weights);
            for (uint32_t k = 0; k < topk; k++)
                if (idx[k] >= 0) add_selection(packets, source, token, (uint32_t)idx[k]);
        }
    }
    free(idx);
    free(weights);
}

static void place_rows(packets_t *packets)
{
    const perf_t *perf = packets->hand->perf;
    uint64_t *next = oracle_alloc(packets->hand->ndest * sizeof *next), taken = 0;

    for (uint32_t e = 0; e < packets->hand->ndest; e++) {
        next[e] = taken;
        if (oracle_owner(perf->routing, e) == perf->info.rank) taken += packets->first[e + 1];
        packets->first[e + 1] += packets->first[e];
        packets->own[e] += packets->first[e];
    }
    for (uint64_t i = 0; i < packets->rows; i++) packets->selected[i].row = next[packets->selected[i].expert]++;
    free(next);
}

static void packets_close(packets_t *packets)
{
    if (packets == NULL) return;
    free(packets->first);
    free(packets->own);
    free(packets->selected);
    free(packets);
}

static packets_t *packets_open(perf_by_hand_t *hand)
{
    perf_t *perf = hand->perf;

    if (!is_wanted(perf) || perf->mapped < perf->info.nranks) return NULL;
    packets_t *packets = oracle_alloc(sizeof *packets);
    *packets = lay_out(perf);
    packets->hand = hand;
    list_rows(packets);
    place_rows(packets);
    const size_t rows = perf->info.nranks * packets->ring * packets->each;
    const size_t bytes = rows + packets->first[hand->ndest] * perf_line_up(perf->sum_bytes);
    if (perf_by_hand_share(hand, bytes)) {
        perf_say(perf, "no %.1f MiB of shared memory in /dev/shm (%s): the limit stores rows in private memory",
                 (double)bytes / 0x1p20, strerror(errno));
        packets_close(packets);
        return NULL;
    }
    packets->memory = hand->memory;
    packets->outputs = hand->memory = packets->memory + rows;
    hand->first = packets->own;
    return packets;
}

/* ---- a dispatch ---- */

static char *item_of(const packets_t *packets, uint32_t source, uint64_t token)
{
    return packets->memory + ((size_t)source * packets->ring + packets->turn) * packets->each + token * packets->stride;
}

static void fill_items(const packets_t *packets)
{
    const perf_by_hand_t *hand = packets->hand;
    const perf_t *perf = hand->perf;
    const char *x = perf->x;

    for (uint64_t token = 0; token < perf->tokens; token++, x += perf->row_bytes) {
        char *item = item_of(packets, perf->info.rank, token);
        if (hand->copies[token] == 0) continue;
        if (hand->row != NULL)
            hand->cast.row(&hand->cast, item, item + packets->beside, x, perf->shape.hidden,
                           token + 1 < perf->tokens ? x + perf->row_bytes : x);
        else memcpy(item, x, perf->placed_bytes);
        if (perf->scales != NULL)
            memcpy(item + packets->beside, (const char *)perf->scales + token * perf->scale_bytes, perf->scale_bytes);
    }
}

/* The first item behind that of i that is another one, or the last. */
static uint64_t next_item(const packets_t *packets, uint64_t i)
{
    const selected_t *rows = packets->selected;
    uint64_t next = i;

    while (next + 1 < packets->rows && rows[next].token == rows[i].token && rows[next].source == rows[i].source) next++;
    return next;
}

/* Through the caches to one array, past them, which leaves memory cold, to another. */
static void fetch_items(const packets_t *packets, int streaming)
{
    const perf_by_hand_t *hand = packets->hand;
    const perf_t *perf = hand->perf;
    const xep_copy_fn copy = streaming ? hand->copy_streaming : hand->copy_fetching;
    char *to = perf->limit_rows[streaming], *beside = to + packets->rows * packets->beside;

    for (uint64_t i = 0; i < packets->rows; i++) {
        const selected_t *at = &packets->selected[i], *next = &packets->selected[next_item(packets, i)];
        const char *item = item_of(packets, at->source, at->token);
        if (i == 0 || at[-1].source != at->source) perf_by_hand_await(hand, at->source, PERF_ROWS);
        copy(to + at->row * packets->beside, item, perf->placed_bytes, item_of(packets, next->source, next->token));
        if (perf->placed_scales != 0)
            memcpy(beside + at->row * perf->placed_scales, item + packets->beside, perf->placed_scales);
    }
    xep_stores_fence();
}

static void packets_move(packets_t *packets, int streaming)
{
    packets->hand->step++;
    fill_items(packets);
    perf_by_hand_tell(packets->hand, PERF_ROWS);
    fetch_items(packets, streaming);
    packets->turn = (packets->turn + 1) % packets->ring;
}

/* ---- between dispatch and combine ---- */

static void packets_experts(const packets_t *packets)
{
    const perf_t *perf = packets->hand->perf;
    const size_t stride = perf_line_up(perf->sum_bytes);

    for (uint32_t e = 0; e < packets->hand->ndest; e++)
        if (oracle_owner(perf->routing, e) == perf->info.rank)
            memset(packets->outputs + packets->first[e] * stride, 0x3e,
                   (packets->first[e + 1] - packets->first[e]) * stride);
}

/* ---- the limit ---- */

struct perf_limit {
    perf_by_hand_t hand;
    packets_t *packets;            /* NULL, or how rows move */
    perf_cuda_limit_t *of_devices; /* NULL without --memory cuda; else it is the limit */
};

void perf_limit_open(perf_t *perf)
{
    perf->limit = oracle_alloc(sizeof *perf->limit);
    perf_by_hand_open(&perf->limit->hand, perf);
    perf->limit->packets = packets_open(&perf->limit->hand);
    perf->limit->of_devices = perf_cuda_limit_open(&perf->limit->hand);
}

void perf_limit_close(perf_t *perf)
{
    perf_cuda_limit_close(perf->limit->of_devices);
    packets_close(perf->limit->packets);
    perf_by_hand_close(&perf->limit->hand);
    free(perf->limit);
    perf->limit = NULL;
}

/* A cached handle needs no plan, so the limit is not charged with one either. */
void perf_limit_dispatch(perf_t *perf)
{
    perf_limit_t *limit = perf->limit;

    if (limit->of_devices != NULL) {
        perf_cuda_limit_run(limit->of_devices, PERF_DISPATCH, perf->streaming);
        return;
    }
    if (!perf->options.cached) perf_by_hand_plan(&limit->hand);
    if (limit->packets != NULL) packets_move(limit->packets, perf->streaming);
    else perf_by_hand_store(&limit->hand, perf->streaming);
}

/*
 * Where dispatched rows cannot be read as outputs, or outputs are elsewhere, numbers are put there that can: outputs
 * were just written, as those of the operations were.
 */
void perf_limit_experts(perf_t *perf)
{
    const perf_limit_t *limit = perf->limit;

    if (limit->packets != NULL) packets_experts(limit->packets);
    else if (limit->of_devices == NULL &&
             (perf->shape.dtype != perf->shape.combine_dtype || perf->placed_bytes != perf->sum_bytes))
        memset(perf->area, 0x3e, perf->sent_rows * perf_line_up(perf->sum_bytes));
}

void perf_limit_combine(perf_t *perf)
{
    const perf_limit_t *limit = perf->limit;
    char *sums = perf->limit_sums[perf->streaming];

    if (limit->of_devices == NULL) perf_by_hand_sum(&limit->hand, sums, perf->streaming);
    else perf_cuda_limit_run(limit->of_devices, PERF_COMBINE, perf->streaming);
}
