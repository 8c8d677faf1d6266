/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a mode sees of the transport: a heap on each rank, laid out the same everywhere, so that an offset means the
 * same thing on every rank; and ways to move bytes into the heaps of the peers.
 *
 * Nothing here blocks. All calls are made by the thread that runs the mode's operation (thread 0 of the team); memory
 * that map() returned may be used by any thread.
 *
 * Ordering. Puts and gets complete in any order. A signal is an 8-byte word, 8-byte aligned, with one writer. A thread
 * that loads it with acquire and sees the value also sees the put that came with it, and every earlier put and signal
 * of this wire to that rank: a thread of that rank, or of another one that has mapped its heap. Nothing else is
 * promised.
 *
 * Errors. Every call but map returns XEP_ERR_TRANSPORT or XEP_ERR_PEER once the wire has failed, and has then set the
 * reason in this thread; a mode returns such an error as it is.
 */
#ifndef XEP_WIRE_H
#define XEP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <xep/status.h>

typedef struct xep_wire xep_wire_t;

typedef struct xep_wire_ops {
    size_t size; /* of this struct; must be equal in mode and library */

    /**
     * Address of rank's heap in this process; NULL if it is not mapped, and then only put, put_signal and get reach it.
     * The mapped ranks are those of this rank's node, this rank included; the answer for a rank never changes. The
     * first call connects to the rank. Plain loads and stores and C11 atomics work on the memory; after streaming
     * stores a fence is needed before a signal.
     */
    void *(*map)(xep_wire_t *wire, uint32_t rank);

    /**
     * Copies bytes (0 or more) from src to offset in rank's heap. XEP_OK: accepted; src must not change until flush
     * returns XEP_OK. XEP_INPROGRESS: too much is in flight and nothing was done; make progress and call again. To a
     * mapped rank the copy is complete on return.
     */
    xep_status_t (*put)(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes);

    /**
     * A put, and then a signal: value goes into the word at signal_offset, ordered as above. With bytes 0 there is only
     * the signal, and src is not read. Returns as put does; on XEP_INPROGRESS neither was done.
     */
    xep_status_t (*put_signal)(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                               uint64_t signal_offset, uint64_t value);

    /**
     * A signal alone, ordered as above, that no rank waits for yet: it may stay here until the next put or signal to
     * the rank takes it along, or flush is called. Returns as put does.
     */
    xep_status_t (*signal_later)(xep_wire_t *wire, uint32_t rank, uint64_t signal_offset, uint64_t value);

    /** Copies bytes from offset in rank's heap to dst, which is complete when flush returns XEP_OK. Returns as put. */
    xep_status_t (*get)(xep_wire_t *wire, uint32_t rank, uint64_t offset, void *dst, size_t bytes);

    /**
     * Sends what the wire has held back to make larger messages, and returns the state. XEP_OK: the sources of all
     * earlier puts and signals may change again, and the targets of all gets are complete. XEP_INPROGRESS: not yet;
     * make progress and call again. It says nothing about what the peers have seen.
     */
    xep_status_t (*flush)(xep_wire_t *wire);

    /** Names all puts, signals and gets so far, for flush_to. It only grows; 0: there was none. */
    uint64_t (*mark)(xep_wire_t *wire);

    /** As flush, but only for what a mark names: later ones may still be on their way, or held back. */
    xep_status_t (*flush_to)(xep_wire_t *wire, uint64_t mark);

    /** Moves what can be moved now. XEP_OK, or the error of a wire that has failed. */
    xep_status_t (*progress)(xep_wire_t *wire);
} xep_wire_ops_t;

struct xep_wire {
    const xep_wire_ops_t *ops;
};

#endif
