/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Operations here are called as a user would: nothing of the library but xep.h, and the data prepared before the clock
 * starts.
 */
#include "perf_ops.h"

#include <stdlib.h>
#include <string.h>

#include <xep/pieces.h>

#include "oracle_alloc.h"
#include "oracle_pieces.h"
#include "perf_cuda.h"
#include "perf_machine.h"
#include "perf_say.h"

/* The same for every slot: they differ in what is received, not in what is sent. */
void perf_dispatch_args(const perf_t *perf, xep_dispatch_args_t *args_p)
{
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;

    args.tokens = perf->tokens;
    args.x = perf_there(perf, perf->x);
    args.topk_idx = perf_there(perf, perf->idx);
    args.topk_weights = perf_there(perf, perf->weights);
    args.scales = perf_there(perf, perf->scales);
    args.stream = perf_stream(perf);
    args.nscales = perf->shape.nscales;
    args.arrangement = !perf->options.by_expert ? XEP_ROWS_BY_RANK
                       : perf->options.padded   ? XEP_ROWS_BY_EXPERT_PADDED
                                                : XEP_ROWS_BY_EXPERT_COMPACT; /* a mode without says so */
    if (perf->shape.npayloads != 0) args.payloads = perf->payloads, args.npayloads = perf->shape.npayloads;
    args.quant = perf->options.quant;
    args.quant_scale = perf->shape.quant_scale;
    args.wait_ns = perf->wait_ns;
    if (perf->sends != NULL) {
        args.x = perf->sends;
        args.x_stride = perf->sends_stride;
    }
    if (perf->in_place) args.flags = XEP_DISPATCH_IN_PLACE;
    if (perf->options.sum_at_owner) args.flags |= XEP_DISPATCH_SEND_WEIGHTS;
    if (perf->base != NULL) {
        args.cached = perf->base;
        args.topk_idx = NULL;
        args.topk_weights = NULL;
    }
    *args_p = args;
}

/* Each slot has sums of its own, so that operations in flight do not write to one place. */
void perf_combine_args(const perf_t *perf, uint32_t slot, xep_combine_args_t *args_p)
{
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;

    args.x = perf->options.copy_in ? perf_there(perf, perf->area) : NULL;
    args.out = perf_there(perf, perf->out + slot * perf->tokens * perf->sum_bytes);
    args.stream = perf_stream(perf);
    args.wait_ns = perf->wait_ns;
    args.quant = perf->options.combine_quant;
    args.quant_scale = perf->shape.combine_scale;
    if (perf->options.sum_at_owner) args.flags = XEP_COMBINE_SUM_AT_OWNER;
    *args_p = args;
}

/* Dependent multiplications and additions on what stays in the cache: it takes what it takes, and no memory's time. */
void perf_compute(uint64_t rounds)
{
    static const float factor = 0.999f;
    float values[256];

    for (size_t i = 0; i < 256; i++) values[i] = (float)i;
    for (uint64_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < 256; i++) values[i] = values[i] * factor + 1.0f;
    __asm__ volatile("" ::"r"(values) : "memory"); /* the values are needed, says this */
}

/* Waits for all. */
static void finish(perf_t *perf)
{
    perf->sent_ns = perf_clock_ns(CLOCK_MONOTONIC);
    if (perf->computing) perf_compute(perf->computing);
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) perf_must(perf, xep_request_wait(perf->request[slot]));
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) xep_request_free(perf->request[slot]);
}

/*
 * Only then a call does all of an operation; else it is begun, and waited for in finish(), with the computing between.
 */
static int is_blocking(const perf_t *perf)
{
    return perf->options.slots == 1 && !perf->options.split && !perf->computing;
}

/*
 * Unless it blocks, all slots are in flight before the first is waited for. The same rows are sent in each. On a device
 * an operation is over when its stream is.
 */
void perf_dispatch(perf_t *perf)
{
    const int blocks = is_blocking(perf);
    xep_dispatch_args_t args;

    perf_device_begin(perf);
    perf_dispatch_args(perf, &args);
    for (uint32_t slot = 0; slot < perf->options.slots; slot++)
        perf_must(perf, xep_dispatch(perf->buffer, &args, &perf->handle[slot], blocks ? NULL : &perf->request[slot]));
    if (!blocks) finish(perf);
    perf_device_end(perf);
}

/* Args anew for each slot, whose outputs are its own. */
void perf_combine(perf_t *perf)
{
    const int blocks = is_blocking(perf);
    xep_combine_args_t args;

    perf_device_begin(perf);
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        perf_combine_args(perf, slot, &args);
        perf_must(perf, xep_combine(perf->handle[slot], &args, blocks ? NULL : &perf->request[slot]));
    }
    if (!blocks) finish(perf);
    perf_device_end(perf);
}

/* The same rows of memory that a combine reads, made here and put there; what nobody compares may be anything. */
static void put_outputs(perf_t *perf, uint32_t slot, void *y, size_t stride)
{
    const size_t bytes = perf_received(perf->handle[slot])->rows * stride;

    if (perf->timing) {
        perf_fill(perf, y, 0x3e, bytes);
        return;
    }
    char *outputs = oracle_alloc(bytes + 1);
    memset(outputs, 0x3e, bytes);
    oracle_fill_outputs(&perf->shape, perf->info.rank, perf_recv(perf, slot), outputs, stride);
    perf_copy(perf, y, outputs, bytes);
    free(outputs);
}

/*
 * What the combine reads is written in the rows' own places where that is what is measured. combine_input() waits for
 * the readers of the last combine.
 */
void perf_experts(perf_t *perf)
{
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        size_t stride = perf->sum_bytes;
        void *y = perf_there(perf, perf->area);
        if (!perf->options.copy_in) perf_must(perf, xep_handle_combine_input(perf->handle[slot], &y, &stride));
        if (perf->cuda != NULL) put_outputs(perf, slot, y, stride);
        else oracle_fill_outputs(&perf->shape, perf->info.rank, perf_received(perf->handle[slot]), y, stride);
    }
}

/* Every slot, also one that has no handle. */
void perf_release(perf_t *perf)
{
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        xep_handle_release(perf->handle[slot]);
        perf->handle[slot] = NULL;
    }
}

/* The handle whose routing the cached dispatches use; it takes the one slot more that the buffer has. */
void perf_open_base(perf_t *perf)
{
    xep_dispatch_args_t args;

    perf_dispatch_args(perf, &args);
    perf_must(perf, xep_dispatch(perf->buffer, &args, &perf->base, NULL));
}

/* ---- in place ---- */

/* The layer before has just written them, in place or not, so that all ways find the same caches. */
void perf_in_place_rows(perf_t *perf)
{
    void *rows;

    perf_must(perf, xep_buffer_send_memory(perf->buffer, &rows, &perf->sends_stride));
    for (uint64_t token = 0; token < perf->tokens; token++)
        memcpy((char *)rows + token * perf->sends_stride, (const char *)perf->x + token * perf->row_bytes,
               perf->row_bytes);
    perf->sends = rows;
}

/*
 * Meanwhile the next row comes into the cache, where rows have gaps between them, which the processor does not foresee:
 * with 8 ranks of 512 tokens a rank reads its rows in 2.6 ms without, in 1.8 with it, and copied rows, which have no
 * gaps, in 1.4 and 1.9.
 */
static uint64_t read_row(const char *row, const char *next, size_t bytes)
{
    uint64_t words[8], sums[8] = {0};
    size_t at = 0;

    for (; at + sizeof words <= bytes; at += sizeof words) {
        __builtin_prefetch(next + at);
        memcpy(words, row + at, sizeof words);
        for (int i = 0; i < 8; i++) sums[i] += words[i];
    }
    for (; at < bytes; at++) sums[0] += (unsigned char)row[at];
    for (int i = 1; i < 8; i++) sums[0] ^= sums[i];
    return sums[0];
}

/* The last row, and rows of x, have themselves as next: there is nothing to fetch ahead. */
static uint64_t read_range(const xep_recv_t *recv, uint64_t begin, uint64_t count)
{
    const size_t bytes = recv->hidden * xep_dtype_size(recv->dtype);
    const void *const *rows = recv->row;
    const uint64_t end = begin + count;
    uint64_t sum = 0;

    for (uint64_t i = begin; i < end; i++) {
        const char *row = rows != NULL ? rows[i] : (const char *)recv->x + i * recv->x_stride;
        const char *next = rows != NULL && i + 1 < end ? rows[i + 1] : row;
        sum += read_row(row, next, bytes);
    }
    return sum;
}

/* By expert there may be rows between those of two experts that are nothing. */
static uint64_t read_rows(const xep_recv_t *recv)
{
    uint64_t sum = 0;

    if (recv->expert_begin == NULL) return read_range(recv, 0, recv->rows);
    for (uint32_t e = 0; e < recv->local_experts; e++)
        sum += read_range(recv, recv->expert_begin[e], recv->expert_count[e]);
    return sum;
}

void perf_in_place_read(perf_t *perf)
{
    perf_dispatch(perf);
    const uint64_t sum = read_rows(perf_received(perf->handle[0]));
    __asm__ volatile("" ::"r"(sum)); /* it is needed, says this */
}

/* ---- in pieces: the handle is that of slot 0, so outputs, combine and release are those of above ---- */

/* For one handle: --cached and --slots do not go with this. */
void perf_pieces_open(perf_t *perf)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_buffer_params_t params;

    perf->pieces = oracle_alloc(sizeof *perf->pieces);
    perf_buffer_params(perf, 1, &params);
    perf_must(perf, xep_buffer_create(perf->group, &params, &perf->pieces->buffer));
    perf_must(perf, xep_buffer_query(perf->pieces->buffer, &info));
    perf->pieces->room = info.recv_rows;
}

void perf_pieces_close(perf_pieces_t *pieces)
{
    if (pieces == NULL) return;
    xep_buffer_destroy(pieces->buffer);
    free(pieces);
}

/*
 * The handle shows piece 0 then. The count is the same on all ranks, so that all of them go on as often, also
 * those that get no rows any more.
 */
static void begin_pieces(perf_t *perf)
{
    xep_dispatch_args_t args;
    void *y;

    perf_dispatch_args(perf, &args);
    args.flags |= XEP_DISPATCH_PIECES;
    perf_must(perf, xep_dispatch(perf->pieces->buffer, &args, &perf->handle[0], NULL));
    perf->pieces->count = perf_received(perf->handle[0])->pieces;
    if (!perf->options.copy_in) perf_must(perf, xep_handle_combine_input(perf->handle[0], &y, NULL));
}

/* Outputs are where the combine of a whole slot has them. */
static void next_piece(perf_t *perf)
{
    xep_combine_args_t combine;
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;

    perf_combine_args(perf, 0, &combine);
    args.x = combine.x;
    args.wait_ns = combine.wait_ns;
    perf_must(perf, xep_handle_next(perf->handle[0], &args, NULL));
}

/* What the experts of earlier pieces would write is not written, as it is not timed either: any outputs travel. */
void perf_pieces_dispatch(perf_t *perf)
{
    begin_pieces(perf);
    for (uint64_t piece = 1; piece < perf->pieces->count; piece++) next_piece(perf);
    perf->sent_ns = perf->device_ns = 0;
}

/* A difference stays with the rank that has found it until all have come to the last piece. */
static void check_pieces(perf_t *perf, oracle_difference_t *difference)
{
    oracle_pieces_t all = {0};

    begin_pieces(perf);
    for (uint64_t piece = 0; piece < perf->pieces->count; piece++) {
        if (piece > 0) perf_experts(perf);
        if (piece > 0) next_piece(perf);
        if (difference->found) continue;
        oracle_pieces_take(&all, &perf->shape, perf->info.rank, perf->pieces->room, perf_received(perf->handle[0]),
                           difference);
    }
    oracle_pieces_free(&all);
}

/* By the flat path, whatever that of the run's buffer is: sums have the order of ranks. */
void perf_pieces_check(perf_t *perf)
{
    oracle_shape_t shape = perf->shape;
    oracle_difference_t difference = {0};

    shape.node = NULL;
    check_pieces(perf, &difference);
    perf_compared(perf, "dispatch in pieces", &difference);
    memset(perf->out, 0xa5, perf->tokens * perf->sum_bytes);
    perf_experts(perf);
    perf_combine(perf);
    oracle_check_combine(&shape, perf->info.rank, 0, perf->out, perf->sum_bytes, &difference);
    perf_release(perf);
    perf_compared(perf, "combine of pieces", &difference);
}
