/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a mode sees of the transport: one symmetric region per rank, in which the same
 * offset names the same thing on every rank, and ways to move bytes into the peers' regions.
 *
 * Nothing here blocks. Every call is made by the thread that runs the mode's op (thread 0
 * of a team); memory that map() returned may be used by any thread.
 *
 * Ordering. put and get complete in any order. A signal is an 8-byte word: whoever loads it
 * with acquire and sees the value also sees the put it came with and every earlier put and
 * signal of this wire to that rank. Nothing else is promised. A signal word has one writer
 * and is 8-byte aligned.
 */
#ifndef XEP_WIRE_H
#define XEP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <xep/status.h>

typedef struct xep_wire xep_wire_t;

typedef struct xep_wire_ops {
    size_t size; /* of this struct: exact match is part of the plugin ABI */

    /**
     * This process' address of rank's region, or NULL: then only put, put_signal and get reach it.
     * The answer for a rank never changes, and is mutual: a rank that is mapped maps this one; connects on first
     * use. Own rank: the own region.
     * Plain loads, stores and C11 atomics work on it; streaming stores need a fence before a signal.
     */
    void *(*map)(xep_wire_t *wire, uint32_t rank);

    /**
     * Copies bytes to offset in rank's region. XEP_OK: accepted; src must not change until flush
     * says XEP_OK. XEP_INPROGRESS: too much is in flight, nothing was done: progress and call again.
     * bytes may be 0. A mapped rank is reached too, by a copy done on return.
     */
    xep_status_t (*put)(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes);

    /**
     * put, then value into the word at signal_offset, ordered as above. bytes may be 0 (src is then
     * not read). Same returns as put; on XEP_INPROGRESS neither was done.
     */
    xep_status_t (*put_signal)(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                               uint64_t signal_offset, uint64_t value);

    /** Copies bytes from offset in rank's region to dst, which is whole when flush says XEP_OK. Same returns as put. */
    xep_status_t (*get)(xep_wire_t *wire, uint32_t rank, uint64_t offset, void *dst, size_t bytes);

    /**
     * XEP_OK: every earlier put's and signal's source is free again and every get's target is whole.
     * XEP_INPROGRESS: not yet; progress and ask again. Says nothing of what the peers see.
     * Also sends what the wire held back to make larger messages.
     */
    xep_status_t (*flush)(xep_wire_t *wire);

    /** Moves what can be moved. XEP_OK, or XEP_ERR_TRANSPORT once the wire is dead. */
    xep_status_t (*progress)(xep_wire_t *wire);
} xep_wire_ops_t;

struct xep_wire {
    const xep_wire_ops_t *ops;
};

#endif
