/* SPDX-License-Identifier: BSD-3-Clause */

/** What ranks tell each other at the start of a dispatch: the same for processors and for devices. */
#ifndef XEP_NORMAL_RECORD_H
#define XEP_NORMAL_RECORD_H

#include <stdint.h>

/** Collective parameters; normal_records.c compares them. */
enum {
    NORMAL_QUANT,
    NORMAL_DTYPE,
    NORMAL_HIDDEN,
    NORMAL_HAS_WEIGHTS, /* 1, 0, or XEP_AGREE_ANY where there are no tokens to weigh */
    NORMAL_TOPK,
    NORMAL_IDX_DTYPE,
    NORMAL_SCALES,
    NORMAL_SCALES_DTYPE,
    NORMAL_PAYLOADS, /* a digest of their bytes and alignments; 0: there are none */
    NORMAL_CACHED,
    NORMAL_IN_PLACE, /* whether rows of mapped ranks may stay where they are */
    NORMAL_PIECES,   /* 0, or, where rows may come in pieces, 1 + that which comes (normal_pieces.h) */
    NORMAL_REFUSED,  /* calls, by the writer: compared before all others */
    NORMAL_PARAMS,
    NORMAL_HAS_OUTPUTS = NORMAL_CACHED /* of a next piece, in its place: it has the parameters of outputs, if any */
};

/**
 * What a rank tells another at the start of a dispatch; written by that rank into the ring, read by
 * the heap's owner. Followed by uint32_t rows[R], to each rank, and selections[L], of each
 * expert of the heap's owner (both absent from a cached dispatch, and from a next piece). What a
 * forwarder gets has more, and all its node reads it: normal_nodes.h.
 */
typedef struct normal_record {
    uint64_t epoch;
    uint64_t routing; /* epoch of the dispatch this routing was made for: epoch, or that of the cached one; of a next
                       * piece that of the dispatch */
    uint64_t tokens;
    uint64_t capacity; /* rows the writer has room for */
    uint32_t slot;     /* of the writer, for this dispatch and its combines */
    uint32_t wrong;    /* 1: the writer's topk_idx has what is no expert; where the device finds that out */
    uint32_t params[NORMAL_PARAMS];
    uint32_t first;   /* tokens whose rows a device tells of first, in two parts; 0: of all at once */
    uint64_t rows_at; /* where its rows are read in place (kit_in_place.h); 0: they are copied */
} normal_record_t;
#ifndef __cplusplus
_Static_assert(sizeof(normal_record_t) == 104, "wire-visible");
#endif

#endif
