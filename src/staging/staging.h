/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows in device memory where some rank is not mapped: the mode is that of host memory, and works on copies. Every slot
 * has memory of the host for what an operation is given, behind the lines of the heap, and memory of the device
 * for what it brings.
 *
 *  take  when an operation is called: its stream is put behind the buffer's mark, copies of what the caller gave are
 *        enqueued, and the mark. The call waits until the stream has come as far as to the rows, or behind them where
 *        the mode does not begin early. The operation then begins as on the host.
 *  look  while it goes on: rows come in parts, behind each of which there is a note. Those that are not there yet are
 *        op.coming, and the mode does without them. The biases of a combine are there with the last part.
 *        In a mode that begins in the call (XEP_BEGINS_IN_CALL) the call goes on with this until all are there.
 *  came  when all rows of a rank are there, which the mode tells while it waits for others: their copies to the device
 *        are enqueued.
 *  show  when the mode has ended it: copies of what came, to the memory of the slot and to the caller's, are enqueued
 *        on the same stream, and then the mark.
 *
 * So when an operation begins, all copies of those that have ended before are done: nothing of a slot is read by the
 * device any more when the host, or a peer that has seen the operation's first word, writes there again.
 */
#ifndef XEP_STAGING_H
#define XEP_STAGING_H

#include "buffer.h"

/** Whether a buffer in such memory is made so, by a group on so many nodes. */
static inline int xep_staging_is_needed(xep_memory_t memory, uint32_t nodes)
{
    return memory != XEP_MEMORY_HOST && nodes != 1;
}

/** Adds what it takes to the bytes of a heap, and sets those of the device. The same on every rank. */
xep_status_t xep_staging_measure(const xep_shape_t *shape, uint64_t recv_rows, uint64_t *bytes_p,
                                 uint64_t *device_bytes_p);

/** For a buffer whose heap is open. Local. close: does nothing where it was not opened; nothing is enqueued. */
xep_status_t xep_staging_open(xep_buffer_t *buffer);
void xep_staging_close(xep_buffer_t *buffer);

#endif
