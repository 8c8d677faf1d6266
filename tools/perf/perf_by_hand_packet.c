/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that go from core to core without a word between ranks: nobody waits until an item is there, so a rank that is
 * ahead reads what the source left there before. That is one item or the other, and nobody looks at it.
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

struct perf_packets {
    const perf_by_hand_t *hand;
    char *memory;        /* of all ranks: packets */
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
    return packets.ring * packets.each + 2 * perf->recv_rows * (packets.beside + perf->placed_scales);
}

perf_packets_t *perf_packets_open(perf_t *perf, const perf_by_hand_t *hand)
{
    const uint32_t nranks = perf->info.nranks;

    if (!is_wanted(perf) || perf->mapped < nranks) return NULL;
    perf_packets_t *packets = oracle_alloc(sizeof *packets);
    *packets = lay_out(perf);
    packets->hand = hand;
    packets->memory = perf_share(perf, nranks * packets->ring * packets->each);
    if (packets->memory == NULL) {
        perf_say(perf, "no %.1f MiB of shared memory in /dev/shm (%s): the limit stores rows in private memory",
                 (double)nranks * packets->ring * (double)packets->each / 0x1p20, strerror(errno));
        free(packets);
        return NULL;
    }
    list_rows(packets, perf);
    place_rows(packets, (uint32_t)perf->options.experts);
    perf_stop_if(perf, map_rows(packets) ? "no memory for the rows of the limit" : NULL, PERF_EXIT_FAILED);
    return packets;
}

void perf_packets_close(perf_packets_t *packets)
{
    if (packets == NULL) return;
    munmap(packets->memory, packets->hand->perf->info.nranks * packets->ring * packets->each);
    for (int streaming = 0; streaming < 2; streaming++) munmap(packets->to[streaming], row_bytes(packets));
    free(packets->selected);
    free(packets);
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
        copy(to + at->row * packets->beside, item, perf->placed_bytes, item_of(packets, next->source, next->token));
        if (perf->placed_scales != 0)
            memcpy(beside + at->row * perf->placed_scales, item + packets->beside, perf->placed_scales);
    }
    xep_stores_fence();
}

void perf_packets_move(perf_packets_t *packets, int streaming)
{
    fill_items(packets);
    fetch_items(packets, streaming);
    packets->turn = (packets->turn + 1) % packets->ring;
}
