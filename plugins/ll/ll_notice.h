/* SPDX-License-Identifier: BSD-3-Clause */

/** What a source tells every rank in a dispatch, the same for processors and for devices; and its packet. */
#ifndef XEP_LL_NOTICE_H
#define XEP_LL_NOTICE_H

#include <stddef.h>
#include <stdint.h>

/** One line per (ring entry, rank); written by that rank, read by the heap's owner. */
typedef struct ll_notice {
    /* xep_rows_word() of the dispatch and of tokens whose rows are here; of a device the epoch. All else was written
     * before */
    uint64_t word;
    uint32_t capacity; /* rows the writer itself has room for */
    uint32_t rows_at;  /* where its rows are read in place (kit_in_place.h); 0: they are copied */
    uint32_t piece;    /* 1 + the piece that it brings (ll_pieces.h); 0: it is not in pieces */
    uint32_t tokens;
    uint32_t most;      /* rows of the expert that gets most of them; of a next piece 0 */
    uint32_t alignment; /* of its experts' first rows */
    uint32_t hidden;
    uint32_t topk;
    uint32_t nscales;
    /* of a next piece: of the outputs of the one before; 0 where there are none. Of a dispatch the digest of its
     * payloads */
    uint32_t outputs_hidden;
    uint32_t refused; /* calls, by the writer */
    uint16_t slot;    /* of the writer */
    uint8_t dtype;    /* of x */
    uint8_t quant;
    uint8_t scales_dtype;
    uint8_t sends_weights;
    uint8_t padded;                     /* its own rows are arranged so */
    uint8_t wrong;                      /* 1: its topk_idx has what is no expert; where the device finds that out */
    uint8_t in_place;                   /* rows of mapped ranks may stay where they are */
    uint8_t has_outputs, outputs_dtype; /* of a next piece: as outputs_hidden */
    uint8_t reserved;
} ll_notice_t;
#ifndef __cplusplus
_Static_assert(sizeof(ll_notice_t) == 64, "a cache line, as all notices");
#endif

/**
 * What a source says to all in one dispatch: a head of indices and weights, and an item for each token: its row and
 * what travels beside it (fields.h), its scales first. The offsets follow from its notice.
 */
typedef struct ll_packet {
    const char *head;  /* topk_idx [T][K] int32_t, and the weights */
    const char *items; /* [T] */
    uint64_t weights;  /* in the head: [T][K] float, where they are sent */
    uint64_t head_bytes;
    size_t row_bytes;
    size_t beside; /* where what travels beside the row begins in an item */
    size_t stride; /* of items */
    int stays;     /* this rank reads the rows where they are (ll_in_place.h) */
} ll_packet_t;

#endif
