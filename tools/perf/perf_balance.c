/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The toy expert is a matrix of bf16 by each row: a row of it is widened once and multiplied by all rows of the expert,
 * as a GEMM would. What matters is that it reads all weights of an expert once, and that its time goes with the rows.
 */
#include "perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/experts.h>

#include "oracle_alloc.h"
#include "perf_machine.h"
#include "perf_say.h"
#include "perf_time.h"

enum { LANES = 8, OWNERS = 0, EVEN = 1, KINDS = 2 };
typedef float lanes_t __attribute__((vector_size(LANES * sizeof(float))));

typedef struct perf_layer {
    perf_t *perf;
    xep_buffer_t *buffer[KINDS];
    xep_weights_t *weights;
    uint64_t matrix_rows; /* of an expert's matrix */
    size_t width;         /* hidden, rounded up to lanes */
    float *wide, *x, *y;  /* a row of the matrix; rows of an expert; their outputs */
    uint64_t room;        /* rows that there is memory for in x and y */
} layer_t;

/* ---- the expert ---- */

static void widen(const uint16_t *from, uint64_t count, float *to)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

/* Toward zero: nobody looks at it. */
static uint16_t narrow(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float multiply(const float *a, const float *b, size_t width)
{
    lanes_t sum[2] = {{0}, {0}}, x, y;
    float total = 0;

    for (size_t i = 0; i < width; i += LANES) {
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        sum[i / LANES % 2] += x * y;
    }
    sum[0] += sum[1];
    for (int i = 0; i < LANES; i++) total += sum[0][i];
    return total;
}

static void run_expert(layer_t *layer, const uint16_t *matrix, uint64_t rows)
{
    const uint64_t hidden = layer->perf->shape.hidden;

    memset(layer->y, 0, rows * layer->width * sizeof *layer->y);
    for (uint64_t j = 0; j < layer->matrix_rows; j++) {
        widen(matrix + j * hidden, hidden, layer->wide);
        for (uint64_t i = 0; i < rows; i++)
            layer->y[i * layer->width + j % hidden] += multiply(layer->wide, layer->x + i * layer->width, layer->width);
    }
}

/* which: scratch. Where a row selects several experts of this rank, the last one's output stays. */
static void serve(layer_t *layer, const xep_recv_t *recv, uint32_t local, uint64_t *which, char *out, size_t stride)
{
    const int64_t *idx = recv->topk_idx;
    const void *matrix;
    uint64_t rows = 0;

    for (uint64_t i = 0; i < recv->rows * recv->topk; i++)
        if (idx[i] == (int64_t)local) which[rows++] = i / recv->topk;
    if (rows == 0) return;
    perf_must(layer->perf, xep_weights_of(layer->weights, recv->experts[local], &matrix));
    for (uint64_t i = 0; i < rows; i++)
        widen((const uint16_t *)(const void *)((const char *)recv->x + which[i] * recv->x_stride), recv->hidden,
              layer->x + i * layer->width);
    run_expert(layer, matrix, rows);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t h = 0; h < recv->hidden; h++)
            ((uint16_t *)(void *)(out + which[i] * stride))[h] = narrow(layer->y[i * layer->width + h]);
}

static void make_room(layer_t *layer, uint64_t rows)
{
    if (rows <= layer->room) return;
    layer->room = rows;
    layer->x = oracle_realloc(layer->x, rows * layer->width * sizeof *layer->x);
    layer->y = oracle_realloc(layer->y, rows * layer->width * sizeof *layer->y);
    memset(layer->x, 0, rows * layer->width * sizeof *layer->x); /* behind hidden they stay so */
}

/* Experts one after the other; to look for the rows of each is little beside a matrix. */
static void run_experts(layer_t *layer, xep_handle_t *handle)
{
    const xep_recv_t *recv;
    size_t stride;
    void *out;

    perf_must(layer->perf, xep_handle_recv(handle, &recv));
    perf_must(layer->perf, xep_handle_combine_input(handle, &out, &stride));
    make_room(layer, recv->rows * recv->topk);
    uint64_t *which = oracle_alloc(recv->rows * recv->topk * sizeof *which);
    for (uint32_t local = 0; local < recv->local_experts; local++)
        if (recv->expert_rows[local] != 0) serve(layer, recv, local, which, out, stride);
    free(which);
}

/* ---- a layer ---- */

/* The processor time of the experts is told as that of a device would be. */
static void run_layer(perf_t *perf, int kind)
{
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;

    args.tokens = perf->tokens, args.x = perf->x, args.topk_idx = perf->idx, args.topk_weights = perf->weights;
    args.flags = kind == EVEN ? XEP_DISPATCH_BALANCE : 0;
    back.out = perf->out;
    perf_must(perf, xep_dispatch(perf->layer->buffer[kind], &args, &handle, NULL));
    const uint64_t begin = perf_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    run_experts(perf->layer, handle);
    perf->device_ns = perf_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
    perf_must(perf, xep_combine(handle, &back, NULL));
    xep_handle_release(handle);
}

void perf_layer_at_owners(perf_t *perf)
{
    run_layer(perf, OWNERS);
}

void perf_layer_even(perf_t *perf)
{
    run_layer(perf, EVEN);
}

/* Times of the rank that has most. */
void perf_layer_report(const perf_t *perf)
{
    static const char *const names[] = {"owners", "even"};
    const perf_time_t *time = &perf->times[PERF_DISPATCH];
    xep_loads_t loads = XEP_LOADS_INIT;

    /* a check that fails before the timing leaves nothing to tell */
    if (perf->layer == NULL || !time->timed || xep_buffer_loads(perf->layer->buffer[EVEN], &loads) != XEP_OK) return;
    printf("%-10s %10s %12s %12s %8s\n", "balance", "imbalance", "layer us", "experts us", "ratio");
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        const uint64_t most = kind == EVEN ? loads.most_after : loads.most_before;
        printf("%-10s %10.3f %12.1f %12.1f %8.3f\n", names[kind],
               loads.selections == 0 ? 0 : (double)most * perf->info.nranks / (double)loads.selections,
               time->layer[kind], time->experts[kind], time->layer[kind] / time->layer[OWNERS]);
    }
    fflush(stdout);
}

/* ---- buffers and weights ---- */

static void fill_weights(layer_t *layer)
{
    perf_t *perf = layer->perf;
    const uint64_t elements = layer->matrix_rows * perf->shape.hidden;

    for (uint32_t e = 0; e < perf->options.experts; e++) {
        void *base;
        if (oracle_owner(perf->routing, e) != perf->info.rank) continue;
        perf_must(perf, xep_weights_change(layer->weights, e, &base));
        for (uint64_t i = 0; i < elements; i++) ((uint16_t *)base)[i] = (uint16_t)(0x3a00 + (i * 7 + e) % 256);
        perf_must(perf, xep_weights_publish(layer->weights, e));
    }
    perf_must(perf, xep_group_barrier(perf->group));
}

static void open_layer(layer_t *layer)
{
    perf_t *perf = layer->perf;
    xep_buffer_params_t params;
    xep_weights_params_t weights = XEP_WEIGHTS_PARAMS_INIT;

    perf_buffer_params(perf, 0, &params);
    params.recv_rows = 0; /* a balanced dispatch may bring any of them */
    params.slots = 1;
    params.flags = 0;
    perf_must(perf, xep_buffer_create(perf->group, &params, &layer->buffer[OWNERS]));
    params.balance = XEP_BALANCE_EVEN;
    perf_must(perf, xep_buffer_create(perf->group, &params, &layer->buffer[EVEN]));
    weights.experts = params.experts;
    weights.owners = params.owners;
    weights.bytes = layer->matrix_rows * perf->shape.hidden * sizeof(uint16_t);
    perf_must(perf, xep_weights_create(perf->group, &weights, &layer->weights));
    fill_weights(layer);
}

void perf_layer_open(perf_t *perf)
{
    const uint64_t bytes = perf->options.balance * 1024, row = perf->shape.hidden * sizeof(uint16_t);
    layer_t *layer = perf->layer = oracle_alloc(sizeof *layer);

    layer->perf = perf;
    layer->matrix_rows = bytes > row ? bytes / row : 1;
    layer->width = ((size_t)perf->shape.hidden + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    layer->wide = oracle_alloc(layer->width * sizeof *layer->wide);
    open_layer(layer);
}

void perf_layer_close(layer_t *layer)
{
    if (layer == NULL) return;
    xep_weights_destroy(layer->weights);
    for (int kind = 0; kind < KINDS; kind++) xep_buffer_destroy(layer->buffer[kind]);
    free(layer->wide);
    free(layer->x);
    free(layer->y);
    free(layer);
}
