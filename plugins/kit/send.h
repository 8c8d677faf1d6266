/* SPDX-License-Identifier: BSD-3-Clause */

/** Sending to every rank: by stores if it is mapped, else by puts that resume where the wire stopped. */
#ifndef XEP_SEND_H
#define XEP_SEND_H

#include <xep/plugin.h>

typedef struct xep_kit xep_kit_t; /* kit.h */
typedef struct xep_cursor xep_cursor_t;

/** One put of rows of a transfer. */
typedef struct xep_put {
    const char *src;
    uint64_t offset; /* in the rank's heap */
    size_t bytes;
    uint64_t rows; /* of the transfer, that it brings */
} xep_put_t;

/** The put of transfer "number" that brings the first row at or after *row_p; 0: there is none, all is sent. */
typedef int (*xep_cut_fn)(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, uint64_t *row_p,
                          xep_put_t *put);

/** Rows of one array to put to a rank; or the signal that follows them, which may bring bytes itself. */
typedef struct xep_transfer {
    int signal;  /* value goes to the word at signal_offset, after bytes of src to offset; no rows */
    int later;   /* of a signal without bytes: no rank waits for it yet */
    int blocked; /* cannot be sent yet */
    const char *src;
    size_t src_stride;
    const uint32_t *index; /* [rows] source rows; NULL: 0, 1, ... */
    uint64_t rows;
    uint64_t coming; /* of them, at the end, that cannot be sent yet */
    size_t bytes;    /* of a row; 0: there are none to send */
    uint64_t offset; /* in the rank's heap */
    size_t stride;
    /* NULL: rows that lie one behind the other on both sides are a put; else it knows all of the above */
    xep_cut_fn cut;
    uint64_t signal_offset, value;
} xep_transfer_t;

/** Describes transfer "number" to a rank that is not mapped; 0 when there is no such transfer. */
typedef int (*xep_transfer_fn)(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                               xep_transfer_t *transfer);

/** Stores what a mapped rank gets, its signal last. */
typedef void (*xep_store_fn)(const void *mode, const xep_op_t *op, uint32_t rank);

/** Contiguous rows are put together up to so many bytes, but at least one row: between two puts the wire progresses. */
enum { XEP_PUT_BYTES = 256 * 1024 };

/**
 * Stores to mapped ranks, once in a step, and puts transfers to all others, from op's cursor on. store NULL: transfers
 * to all ranks, and those to mapped ones are copied by the wire. XEP_INPROGRESS: one is blocked, or much is in flight.
 */
xep_status_t xep_send(xep_kit_t *kit, xep_op_t *op, xep_store_fn store, xep_transfer_fn transfers);

/** Stores to mapped ranks alone. */
void xep_send_stores(xep_kit_t *kit, const xep_op_t *op, xep_store_fn store);

/** Transfers alone, as far as they can be sent before mapped ranks are told. */
xep_status_t xep_send_transfers(xep_kit_t *kit, xep_op_t *op, xep_transfer_fn transfers);

/** All transfers to one rank, from op's cursor on. The cursor is zero before the first call, and after XEP_OK. */
xep_status_t xep_send_to(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, xep_transfer_fn transfers);

/**
 * Transfers alone, to each rank up to the first that is blocked. at: [R], zero at first: how far each is.
 * XEP_INPROGRESS: some are blocked.
 */
xep_status_t xep_send_each(xep_kit_t *kit, xep_op_t *op, xep_transfer_fn transfers, xep_cursor_t *at);

#endif
