/* SPDX-License-Identifier: BSD-3-Clause */

/** Handles: the slots of a buffer, each with one dispatch. Called between xep_buffer_enter() and leave. */
#ifndef XEP_REQUEST_HANDLE_H
#define XEP_REQUEST_HANDLE_H

#include <stdatomic.h>

#include <xep/xep.h>

typedef enum {
    XEP_HANDLE_FREE,    /* the slot may be taken */
    XEP_HANDLE_SENT,    /* its dispatch is in flight */
    XEP_HANDLE_COUNTED, /* likewise, and the user was told how many rows there will be, and where */
    XEP_HANDLE_READY,   /* rows are here */
    XEP_HANDLE_FAILED   /* its dispatch failed; waits for the release */
} xep_handle_state_t;

/** Of what kind the outputs of pieces are: the first that were taken have said it. */
typedef struct xep_outputs {
    enum { XEP_OUTPUTS_UNKNOWN, XEP_OUTPUTS_NONE, XEP_OUTPUTS_TAKEN } state;
    xep_dtype_t dtype;
    uint32_t hidden;
    int weighted; /* means nothing on a rank without rows */
} xep_outputs_t;

/** Of a dispatch whose payloads are packed behind the scales (packed_payloads.h). */
typedef struct xep_packed {
    uint32_t nscales, npayloads; /* the caller's; npayloads 0: none are */
    xep_recv_t shown;
} xep_packed_t;

struct xep_handle {
    xep_buffer_t *buffer;
    uint32_t slot;            /* index in buffer->handles */
    _Atomic int state;        /* xep_handle_state_t; looked at by calls that do not enter the buffer */
    int released;             /* by the user while an operation is in flight or awaits its routing */
    uint32_t awaited;         /* by dispatches that will use its routing and have not begun */
    xep_request_t *in_flight; /* dispatch or combine, or NULL */
    atomic_int abandoned;     /* whether its request was freed */
    uint64_t turn;
    uint64_t tokens; /* T of the dispatch */
    uint32_t topk;   /* K of the routing */
    xep_dtype_t topk_idx_dtype;
    const void *combine_input; /* what the user was told it is, or NULL */
    int has_input;             /* the user may have outputs there: it was asked for, and not overwritten since */
    xep_recv_t recv;
    xep_payload_t payloads[XEP_PAYLOADS_MOST]; /* of the dispatch, defaults filled in */
    xep_packed_t packed;
    xep_dispatch_args_t sent; /* of one in pieces: what the next ones are taken from */
    xep_outputs_t outputs;
    int combined;
};

/** Behind all that the state says is there: the user may see it at once. */
void xep_handle_set_state(xep_handle_t *handle, xep_handle_state_t state);

void xep_handle_give_back(xep_handle_t *handle);

/** Gives the slot of a released handle back, unless an operation still needs it. */
void xep_handle_give_back_if_unused(xep_handle_t *handle);

#endif
