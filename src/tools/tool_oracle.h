/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The oracle: what every dispatch and combine must give, worked out from scratch.
 *
 * Every input is a pure function of (seed, rank, token, column), so a rank knows what
 * all others sent without asking them. Plain loops, one row at a time, no code of the
 * library. Used by xep_perf --check and by tests:
 *
 *   fill x, idx, weights, scales with tool_fill_*;  xep_dispatch();  tool_check_recv()
 *   y with tool_expert_rows();                      xep_combine();   tool_check_combine()
 *
 * Each check returns 0 when all is as it must be, else 1 and the first difference.
 */
#ifndef TOOL_ORACLE_H
#define TOOL_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

#include "tool_routing.h"

/** What is sent. Change payload between operations, so that stale rows are found. */
typedef struct tool_shape {
    const tool_routing_t *routing; /* ranks, tokens of each, experts, top-k, who selects what */
    uint64_t payload;              /* seed of rows, scales, biases and expert outputs */
    uint32_t hidden;
    uint32_t nscales;
    xep_dtype_t dtype;         /* of rows sent */
    xep_dtype_t combine_dtype; /* of expert outputs, biases and sums */
    xep_dtype_t idx_dtype;     /* XEP_INT64 or XEP_INT32 */
    xep_dtype_t scales_dtype;  /* XEP_FP32 or XEP_INT32 */
    int weights;               /* dispatch sends weights */
    int by_expert;             /* rows are one per selection, in expert order, and combine weighs them by routing's weights */
    int padded;                /* by expert: expert e begins at row e * R * room */
    uint64_t room;             /* padded: most tokens of a rank, of the buffer */
    xep_quant_t quant;         /* by expert: what x is cast to on the way */
    const uint8_t *logfmt_from; /* [R] 1: outputs of that rank's experts come to this one as LogFMT, bf16; NULL: none do */
    uint32_t alignment;        /* of received expert counts; 0: 1 */
    uint64_t capacity;         /* fixed capacity; 0: exact */
} tool_shape_t;

/** The first thing that is wrong; plain bytes, so that ranks can exchange it. */
typedef struct tool_difference {
    uint64_t found;      /* 0: nothing is wrong and the rest is not set */
    uint64_t row;        /* of the array; 0 for a single value */
    uint64_t column;
    uint32_t rank;       /* that holds it */
    uint32_t src_rank;   /* of the row, with has_source */
    uint64_t src_token;
    uint64_t has_source;
    char array[24];      /* "x", "topk_idx", ..: the field of xep_recv_t or of the args */
    char expected[32], got[32];
} tool_difference_t;

/** As a sentence: "rank 2: x row 17 column 4095 is .., expected .. (rank 1 token 33)". */
void tool_difference_text(const tool_difference_t *difference, char *text, size_t bytes);

/* ---- inputs -------------------------------------------------------------------- */

/** The row, the scales, and a bias (0 or 1) of a token. */
void tool_fill_row(const tool_shape_t *shape, uint32_t rank, uint64_t token, void *row);
void tool_fill_scales(const tool_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *scales);
void tool_fill_bias(const tool_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *row);

/** Dense inputs of a whole rank: [T][H], [T][K], [T][K], [T][nscales]; NULL leaves one out. */
void tool_fill_inputs(const tool_shape_t *shape, uint32_t rank, void *x, void *idx, float *weights, uint32_t *scales);
void tool_fill_biases(const tool_shape_t *shape, uint32_t which, uint32_t rank, void *bias);

/** What the experts of expert_rank make of a token: differs from rank to rank, so that swapped rows are found. */
void tool_fill_expert(const tool_shape_t *shape, uint32_t expert_rank, uint32_t rank, uint64_t token, void *row);

/** The same of one expert, by expert: differs from expert to expert. */
void tool_fill_expert_row(const tool_shape_t *shape, uint32_t expert, uint32_t rank, uint64_t token, void *row);

/** Bytes of a row as it is received, and its scales: with quant, what the cast makes. */
size_t tool_received_bytes(const tool_shape_t *shape);
uint32_t tool_received_scales(const tool_shape_t *shape);

/** The cast of shape->quant in plain loops: q [H], scales [tool_received_scales()]. */
void tool_cast_row(const tool_shape_t *shape, const void *row, uint8_t *q, uint32_t *scales);

/** Outputs of this rank's experts for all rows received, by the received src_begin and src_token. */
void tool_expert_rows(const tool_shape_t *shape, uint32_t rank, const xep_recv_t *recv, void *y, size_t y_stride);

/* ---- outputs ------------------------------------------------------------------- */

/** xep_layout() of this rank's tokens; arrays that are NULL are left out. */
int tool_check_layout(const tool_shape_t *shape, uint32_t rank, uint32_t ranks_per_node, const xep_layout_t *layout,
                      tool_difference_t *difference_p);

/** All that a dispatch brought to this rank. */
int tool_check_recv(const tool_shape_t *shape, uint32_t rank, const xep_recv_t *recv, tool_difference_t *difference_p);

/** The same where rows are by expert: called by it. */
int tool_check_recv_by_expert(const tool_shape_t *shape, uint32_t rank, const xep_recv_t *recv,
                              tool_difference_t *difference_p);

/**
 * Sums [T][H]: +0, bias 0 with bit 0 of biases, bias 1 with bit 1, then the outputs of
 * tool_fill_expert() by ascending rank, in fp32, rounded once to nearest even. By expert: biases, then
 * fma(weight, tool_fill_expert_row(), sum) by ascending k, of rows as LogFMT leaves them where logfmt_from says so.
 */
int tool_check_combine(const tool_shape_t *shape, uint32_t rank, unsigned biases, const void *out, size_t out_stride,
                       tool_difference_t *difference_p);

/** Weights [T][K] after combining the weights received: those sent, 0 where nothing was selected. */
int tool_check_weights(const tool_shape_t *shape, uint32_t rank, const float *out, size_t out_stride,
                       tool_difference_t *difference_p);

/* ---- hashes -------------------------------------------------------------------- */

/** Independent of the order of rows, not of their contents or owners: sum of row hashes. */
uint64_t tool_hash_row(const void *row, size_t bytes, uint64_t key);
uint64_t tool_hash_recv(const xep_recv_t *recv, uint32_t nranks);
uint64_t tool_hash_rows(const void *rows, size_t stride, size_t row_bytes, uint64_t count);

#endif
