/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What is sent: a shape, and the contents of every rank's rows as pure functions of (rank, token), so that a rank
 * knows what all others sent without asking them.
 */
#ifndef ORACLE_DATA_H
#define ORACLE_DATA_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

#include "oracle_routing.h"

typedef struct oracle_shape oracle_shape_t;

/**
 * Where the contents come from. The generator of oracle_data.c is one source; a test that wants other routings, NaN
 * among its numbers or rows that are small integers brings its own, all of it.
 */
typedef struct oracle_source {
    /** Selections [K], each an expert or -1, repeated ones too, and weights [K] of a token. */
    void (*route)(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights);

    /** Its row [H] of dtype and its scales [nscales]. */
    void (*row)(const oracle_shape_t *shape, uint32_t rank, uint64_t token, void *row);
    void (*scales)(const oracle_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *scales);

    /** Bias 0 or 1 [H] of combine_dtype. */
    void (*bias)(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *row);

    /**
     * Its row as the experts of rank "maker" return it, or with by_expert or instances as expert "maker" does: of
     * combine_dtype.
     */
    void (*output)(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, void *row);

    /** Weights [K] that combine is given: by rank those "maker" sends back, by expert those of the token's rank. */
    void (*returned)(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, float *weights);
} oracle_source_t;

/** Change payload between operations, so that stale rows are found. */
struct oracle_shape {
    const oracle_routing_t *routing; /* ranks, tokens of each, experts, top-k, who selects what */
    const oracle_source_t *source;   /* NULL: the generator's */
    const void *source_arg;          /* the source's own */
    uint32_t without;                /* ranks whose experts nobody has selected, by the bits of their numbers */
    /*
     * [E] ranks that have each expert, by the bits of their numbers; NULL: its owner alone. Whichever of them gets a
     * selection is right; outputs of a rank are sums of its experts', of fp32 that any order adds up to the same bits.
     */
    const uint32_t *instances;
    const uint8_t *missing; /* [T][K] selections that the sums of the rank that combines lack; NULL: none */
    uint64_t payload;       /* seed of rows, scales, biases and expert outputs */
    uint32_t hidden;
    uint32_t nscales;
    xep_dtype_t dtype;         /* of rows sent */
    xep_dtype_t combine_dtype; /* of expert outputs, biases and sums */
    xep_dtype_t idx_dtype;     /* XEP_INT64 or XEP_INT32 */
    xep_dtype_t scales_dtype;
    const xep_payload_t *payloads; /* [npayloads] bytes and alignment of each */
    uint32_t npayloads;
    int weights;        /* by rank: dispatch sends weights; by expert: they travel with the rows */
    int by_expert;      /* rows are one per selection, in expert order, and combine weighs them by routing's weights */
    int unweighted;     /* by expert: combine does not, because it was told or because they went with the rows */
    int padded;         /* by expert: expert e begins at row e * R * room */
    int by_column;      /* by expert: received scales are [nscales][rows] */
    uint64_t room;      /* padded: most tokens of a rank, of the buffer */
    xep_quant_t quant;  /* by expert: what x is cast to on the way */
    float quant_scale;  /* as in the arguments of the dispatch */
    uint32_t alignment; /* of received expert counts; 0: 1 */
    /* in pieces, by expert: [R] alignment of each rank; NULL: they all have the same */
    const uint32_t *alignments;
    uint64_t capacity; /* fixed capacity; 0: exact */
    /* by rank: [R] node of each, where what another node has for a token comes back as one row; NULL: one of each */
    const uint32_t *node;
    xep_quant_t combine_quant;   /* by expert: of outputs that come from those ranks, bf16 */
    float combine_scale;         /* as in the arguments of the combine */
    const uint8_t *encoded_from; /* [R] 1: so from that rank; NULL: from none */
    int sum_at_owner;            /* by expert, unweighted: a rank sums what its experts have for a token */
};

/** What a shape without a source has; a test that routes by itself takes the rest from here. */
extern const oracle_source_t oracle_generator;

/** By the shape's source. */
void oracle_route_token(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights);
void oracle_fill_row(const oracle_shape_t *shape, uint32_t rank, uint64_t token, void *row);
void oracle_fill_scales(const oracle_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *scales);
void oracle_fill_bias(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *row);
void oracle_fill_output(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, void *row);
void oracle_fill_returned(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, float *weights);

/** Dense inputs of a whole rank: [T][H], [T][K], [T][K], [T][nscales]; NULL leaves one out. */
void oracle_fill_inputs(const oracle_shape_t *shape, uint32_t rank, void *x, void *idx, float *weights,
                        uint32_t *scales);
void oracle_fill_biases(const oracle_shape_t *shape, uint32_t which, uint32_t rank, void *bias);

/** Selection k of a received row: a local expert, or -1. */
int64_t oracle_idx_at(const xep_recv_t *recv, uint64_t row, uint32_t k);

/** Outputs of this rank's experts for all rows received, by the received places and src_token. */
void oracle_fill_outputs(const oracle_shape_t *shape, uint32_t rank, const xep_recv_t *recv, void *y, size_t y_stride);

#endif
