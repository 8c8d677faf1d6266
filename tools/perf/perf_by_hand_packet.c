/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that go from core to core, both ways: of a dispatch once cast, for all who take them; outputs where their
 * experts write them. A rank tells that with one word for each way, which it alone writes and which counts the steps:
 * stored with release behind the rows, loaded with acquire before them. Nobody writes over what another one still
 * reads, as the caller has a barrier between two steps.
 */

#include "perf_by_hand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "oracle_alloc.h"
#include "perf_say.h"

/** A row of this rank: one of its experts was selected. */
typedef struct selected {
    uint32_t source, expert;
    uint64_t token, row; /* row: where it goes, expert by expert */
} selected_t;

/** The words of a rank. */
typedef struct told {
    _Alignas(128) _Atomic uint64_t rows;    /* the packets of this step are there */
    _Alignas(128) _Atomic uint64_t outputs; /* likewise */
} told_t;

struct perf_packets {
    const perf_by_hand_t *hand;
    told_t *told;                  /* of all ranks; behind them are their packets, then the outputs */
    size_t bytes;                  /* of all that is shared */
    char *memory;                  /* packets */
    char *outputs;                 /* rows of all ranks, by expert, then by source */
    uint64_t *first;               /* [experts + 1] the first output of an expert; of all ranks */
    uint64_t *own;                 /* [experts] that of this rank as a source */
    uint64_t dispatched, combined; /* steps */
    size_t each, stride; /* of a packet, and of an item in it: the row, and its scales on a line of their own */
    size_t beside;       /* in an item */
    uint32_t ring, turn; /* as many packets of a rank as mode ll has, so that they are as cold */
    char *to[2];         /* private: where rows go through the caches and, as that leaves memory cold, past them */
    uint64_t rows;
    selected_t *selected; /* [rows] by source, this rank first, then by token */
};

/* ---- open and close ---- */

static void add_selected(perf_packets_t *packets, uint32_t source, uint64_t token, uint32_t expert)
{
    packets->selected[packets->rows++] = (selected_t){.source = source, .token = token, .expert = expert};
}

static void list_rows(perf_packets_t *packets, const perf_t *perf)
{
    const uint32_t nranks = perf->info.nranks, topk = (uint32_t)perf->options.topk;
    int32_t *idx = oracle_alloc(topk * sizeof *idx);
    float *weights = oracle_alloc(topk * sizeof *weights);

    packets->selected = oracle_alloc(perf->recv_rows * sizeof *packets->selected);
    for (uint32_t i = 0; i < nranks; i++) {
        const uint32_t source = (perf->info.rank + i) % nranks;
        for (uint64_t token = 0; token < perf->routing->tokens_of[source]; token++) {
            oracle_route(perf->routing, source, token, idx, weights);
            for (uint32_t k = 0; k < topk; k++)
                if (idx[k] >= 0 && oracle_owner(perf->routing, (uint32_t)idx[k]) == perf->info.rank)
                    add_selected(packets, source, token, (uint32_t)idx[k]);
        }
    }
    free(idx);
    free(weights);
}

static void place_rows(perf_packets_t *packets, uint32_t experts)
{
    uint64_t *next = oracle_alloc((experts + 1) * sizeof *next);

    for (uint64_t i = 0; i < packets->rows; i++) next[packets->selected[i].expert + 1]++;
    for (uint32_t e = 0; e < experts; e++) next[e + 1] += next[e];
    for (uint64_t i = 0; i < packets->rows; i++) packets->selected[i].row = next[packets->selected[i].expert]++;
    free(next);
}

/*
 * Where outputs are: each rank says how many rows it has for each expert. Those of one source are in the order of its
 * tokens.
 */
static void place_outputs(perf_packets_t *packets, perf_t *perf)
{
    const uint32_t experts = packets->hand->ndest, nranks = perf->info.nranks;
    uint64_t *counts = oracle_alloc((size_t)nranks * experts * sizeof *counts);
    uint64_t *mine = oracle_alloc(experts * sizeof *mine), rows = 0;

    for (uint32_t e = 0; e < experts; e++) mine[e] = packets->hand->begin[e + 1] - packets->hand->begin[e];
    perf_must(perf, xep_group_allgather(perf->group, mine, counts, experts * sizeof *mine));
    packets->first = oracle_alloc((experts + 1) * sizeof *packets->first);
    packets->own = oracle_alloc(experts * sizeof *packets->own);
    for (uint32_t e = 0; e < experts; e++) {
        packets->first[e] = rows;
        for (uint32_t source = 0; source < nranks; source++) {
            if (source == perf->info.rank) packets->own[e] = rows;
            rows += counts[(size_t)source * experts + e];
        }
    }
    packets->first[experts] = rows;
    free(counts);
    free(mine);
}

static size_t row_bytes(const perf_packets_t *packets)
{
    return packets->rows * (packets->beside + packets->hand->perf->placed_scales) + 1; /* a rank may have no rows */
}

/* Touched, and of large pages as all other memory of the program. */
static int map_rows(perf_packets_t *packets)
{
    for (int streaming = 0; streaming < 2; streaming++) {
        void *rows = mmap(NULL, row_bytes(packets), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (rows == MAP_FAILED) return -1;
        madvise(rows, row_bytes(packets), MADV_HUGEPAGE);
        memset(rows, 0x3e, row_bytes(packets));
        packets->to[streaming] = rows;
    }
    return 0;
}

static int is_wanted(const perf_t *perf)
{
    return perf->options.by_expert && !perf->options.cuda && perf->host_ranks == perf->info.nranks &&
           perf->routing->tokens != 0;
}

static perf_packets_t lay_out(const perf_t *perf)
{
    perf_packets_t packets = {.ring = 2 * ((uint32_t)perf->options.slots + 1),
                              .beside = perf_line_up(perf->placed_bytes)};

    packets.stride = packets.beside + perf_line_up(perf->placed_scales);
    packets.each = perf->routing->tokens * packets.stride;
    return packets;
}

uint64_t perf_packets_bytes(const perf_t *perf)
{
    const perf_packets_t packets = lay_out(perf);

    if (!is_wanted(perf) || perf->options.check_only) return 0;
    return packets.ring * packets.each + perf->recv_rows * perf_line_up(perf->sum_bytes) +
           2 * perf->recv_rows * (packets.beside + perf->placed_scales);
}

/* NULL: not all ranks have it. */
static char *share_memory(perf_packets_t *packets, perf_t *perf)
{
    const uint32_t nranks = perf->info.nranks;
    const size_t rows = nranks * packets->ring * packets->each;
    const size_t outputs = packets->first[packets->hand->ndest] * perf_line_up(perf->sum_bytes);

    packets->bytes = nranks * sizeof *packets->told + rows + outputs;
    packets->told = perf_share(perf, packets->bytes);
    if (packets->told == NULL) return NULL;
    packets->memory = (char *)(packets->told + nranks);
    packets->outputs = packets->memory + rows;
    return packets->memory;
}

static void free_lists(perf_packets_t *packets)
{
    free(packets->first);
    free(packets->own);
    free(packets->selected);
    free(packets);
}

perf_packets_t *perf_packets_open(perf_t *perf, perf_by_hand_t *hand)
{
    const uint32_t nranks = perf->info.nranks;

    if (!is_wanted(perf) || perf->mapped < nranks) return NULL;
    perf_packets_t *packets = oracle_alloc(sizeof *packets);
    *packets = lay_out(perf);
    packets->hand = hand;
    place_outputs(packets, perf);
    if (share_memory(packets, perf) == NULL) {
        perf_say(perf, "no %.1f MiB of shared memory in /dev/shm (%s): the limit stores rows in private memory",
                 (double)packets->bytes / 0x1p20, strerror(errno));
        free_lists(packets);
        return NULL;
    }
    hand->memory = packets->outputs;
    hand->first = packets->own;
    list_rows(packets, perf);
    place_rows(packets, (uint32_t)perf->options.experts);
    perf_stop_if(perf, map_rows(packets) ? "no memory for the rows of the limit" : NULL, PERF_EXIT_FAILED);
    return packets;
}

void perf_packets_close(perf_packets_t *packets)
{
    if (packets == NULL) return;
    munmap(packets->told, packets->bytes);
    for (int streaming = 0; streaming < 2; streaming++) munmap(packets->to[streaming], row_bytes(packets));
    free_lists(packets);
}

/* ---- a dispatch ---- */

static char *item_of(const perf_packets_t *packets, uint32_t source, uint64_t token)
{
    return packets->memory + ((size_t)source * packets->ring + packets->turn) * packets->each + token * packets->stride;
}

static void fill_items(const perf_packets_t *packets)
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
static uint64_t next_item(const perf_packets_t *packets, uint64_t i)
{
    const selected_t *rows = packets->selected;
    uint64_t next = i;

    while (next + 1 < packets->rows && rows[next].token == rows[i].token && rows[next].source == rows[i].source) next++;
    return next;
}

static void fetch_items(const perf_packets_t *packets, int streaming)
{
    const perf_by_hand_t *hand = packets->hand;
    const perf_t *perf = hand->perf;
    const xep_copy_fn copy = streaming ? hand->copy_streaming : hand->copy_fetching;
    char *to = packets->to[streaming], *beside = to + packets->rows * packets->beside;

    for (uint64_t i = 0; i < packets->rows; i++) {
        const selected_t *at = &packets->selected[i], *next = &packets->selected[next_item(packets, i)];
        const char *item = item_of(packets, at->source, at->token);
        if (i == 0 || at[-1].source != at->source) perf_await(&packets->told[at->source].rows, packets->dispatched);
        copy(to + at->row * packets->beside, item, perf->placed_bytes, item_of(packets, next->source, next->token));
        if (perf->placed_scales != 0)
            memcpy(beside + at->row * perf->placed_scales, item + packets->beside, perf->placed_scales);
    }
    xep_stores_fence();
}

void perf_packets_move(perf_packets_t *packets, int streaming)
{
    packets->dispatched++;
    fill_items(packets);
    atomic_store_explicit(&packets->told[packets->hand->perf->info.rank].rows, packets->dispatched,
                          memory_order_release);
    fetch_items(packets, streaming);
    packets->turn = (packets->turn + 1) % packets->ring;
}

/* ---- a combine ---- */

void perf_packets_experts(const perf_packets_t *packets)
{
    const perf_t *perf = packets->hand->perf;
    const size_t stride = perf_line_up(perf->sum_bytes);

    for (uint32_t e = 0; e < packets->hand->ndest; e++)
        if (oracle_owner(perf->routing, e) == perf->info.rank)
            memset(packets->outputs + packets->first[e] * stride, 0x3e,
                   (packets->first[e + 1] - packets->first[e]) * stride);
}

void perf_packets_sum(perf_packets_t *packets, char *sums, int streaming)
{
    const perf_t *perf = packets->hand->perf;

    packets->combined++;
    atomic_store_explicit(&packets->told[perf->info.rank].outputs, packets->combined, memory_order_release);
    for (uint32_t rank = 0; rank < perf->info.nranks; rank++)
        perf_await(&packets->told[rank].outputs, packets->combined);
    perf_by_hand_sum(packets->hand, sums, streaming);
}
