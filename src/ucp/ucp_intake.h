/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Messages that arrive for one heap: their bytes are stored as they come, their signals in the sender's order.
 *
 * A sender numbers its messages to a heap 0, 1, 2, ... A message has at most one signal that was held for it, runs of
 * bytes, then at most one signal; signals are stored when every message with a smaller number was. UCX may deliver in
 * any order (several lanes, messages of several fragments): early messages wait here, without their bytes.
 *
 * Knows nothing of UCX. Every number a message holds is checked before it is used.
 */
#ifndef XEP_UCP_INTAKE_H
#define XEP_UCP_INTAKE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include <xep/status.h>

#define XEP_UCP_NO_SIGNAL UINT64_MAX
#define XEP_UCP_NO_HEAP   UINT64_MAX
#define XEP_UCP_GOODBYE   (UINT64_MAX - 1)
#define XEP_UCP_CTL       (UINT64_MAX - 2)

/**
 * Header of a message; the sender writes it, the receiver reads it. Native byte order: the magic of keys shows a
 * foreign one.
 */
typedef struct xep_ucp_message {
    /* as the receiver named it in its key; XEP_UCP_NO_HEAP: nothing to store, XEP_UCP_GOODBYE: the sender leaves,
     * and does not wait for anything of the receiver; XEP_UCP_CTL: for the core */
    uint64_t heap;
    uint64_t sequence;    /* of this sender's messages to this heap */
    uint64_t offset;      /* nruns 0: the payload is one run that goes here */
    uint64_t held_offset; /* a signal from before this message; XEP_UCP_NO_SIGNAL: none */
    uint64_t held_value;
    uint64_t signal_offset; /* likewise, from behind its bytes */
    uint64_t signal_value;
    uint64_t taken; /* what the sender took from the receiver so far: see xep_ucp_message_settle */
    uint32_t sender;
    uint32_t nruns; /* xep_ucp_run_t in front of the bytes; 0: see offset */
} xep_ucp_message_t;
static_assert(sizeof(xep_ucp_message_t) == 72, "wire format");

/** Where a run of bytes goes; the bytes of all runs follow the last one, in order. */
typedef struct xep_ucp_run {
    uint64_t offset, bytes;
} xep_ucp_run_t;
static_assert(sizeof(xep_ucp_run_t) == 16, "wire format");

typedef struct xep_ucp_intake xep_ucp_intake_t;

/**
 * stream_bytes: once a sender has sent stream_bytes / nranks bytes since its last signal, they are stored by streaming
 * copies.
 */
xep_status_t xep_ucp_intake_open(void *base, uint64_t bytes, uint32_t nranks, uint64_t stream_bytes,
                                 xep_ucp_intake_t **intake_p);
void xep_ucp_intake_close(xep_ucp_intake_t *intake);

/** Changes stream_bytes. */
void xep_ucp_intake_stream(xep_ucp_intake_t *intake, uint64_t stream_bytes);

/** From now on nothing of this sender is stored: its messages are dropped. */
void xep_ucp_intake_refuse(xep_ucp_intake_t *intake, uint32_t sender);

/**
 * Takes one message. XEP_ERR_PROTOCOL, with the reason: it is malformed, nothing was stored. One thread
 * at a time; a thread that sees a signal (acquire) sees the bytes of its message and of all before it.
 */
xep_status_t xep_ucp_intake_deliver(xep_ucp_intake_t *intake, const xep_ucp_message_t *message, const void *payload,
                                    size_t bytes);

#endif
