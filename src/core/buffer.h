/* SPDX-License-Identifier: BSD-3-Clause */

/** One MoE shape on a group: its shared memory, its mode, its slots (handles) and requests. */
#ifndef XEP_CORE_BUFFER_H
#define XEP_CORE_BUFFER_H

#include <stdatomic.h>

#include <xep/plugin.h>

#include "error.h"
#include "group.h"
#include "plugin_loader.h"
#include "team.h"

enum { XEP_OP_KINDS = 2 };

typedef enum {
    XEP_HANDLE_FREE,    /* the slot may be taken */
    XEP_HANDLE_SENT,    /* its dispatch is in flight */
    XEP_HANDLE_COUNTED, /* likewise, and the user was told how many rows there will be, and where */
    XEP_HANDLE_READY,   /* rows are here */
    XEP_HANDLE_FAILED   /* its dispatch failed; waits for the release */
} xep_handle_state_t;

struct xep_handle {
    xep_buffer_t *buffer;
    uint32_t slot;             /* index in buffer->handles */
    xep_handle_state_t state;
    int released;              /* by the user while an operation is in flight or awaits its routing */
    uint32_t awaited;          /* by dispatches that will use its routing and have not begun */
    xep_request_t *in_flight;  /* dispatch or combine, or NULL */
    uint64_t turn;
    uint64_t tokens;           /* T of the dispatch */
    uint32_t topk;             /* K of the routing */
    xep_dtype_t topk_idx_dtype;
    const void *combine_input; /* what the user was told it is, or NULL */
    xep_recv_t recv;
};

typedef enum {
    XEP_REQUEST_FREE,
    XEP_REQUEST_WAITING, /* for the request it comes after */
    XEP_REQUEST_ACTIVE,
    XEP_REQUEST_DONE
} xep_request_state_t;

struct xep_request {
    xep_buffer_t *buffer;
    _Atomic int state;       /* xep_request_state_t; read by requests of other buffers that come after this one */
    int kept;                /* by the user: freed when it is dropped and done */
    atomic_uint followers;   /* requests that have still to see how this one ended: it is not used again before */
    xep_status_t status;     /* when done */
    xep_handle_t *handle;
    xep_handle_t *cached;    /* whose routing it will use, while it waits */
    xep_request_t *after;    /* what it waits for, while it waits */
    int32_t timeout_ms;
    uint64_t test_deadline_ns; /* 0: not tested yet */
    uint64_t test_peers_ns;  /* when a test looks next whether a peer has died */
    int peer_gone;           /* it had when a test looked last */
    xep_op_t op;
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
    char reason[XEP_REASON_BYTES];
};

/** For whom a kind of operation waited; added to by the thread that is in the buffer, read by any. */
typedef struct xep_rank_waits {
    _Atomic uint64_t count, sum_ns, max_ns;
} xep_rank_waits_t;

typedef struct xep_lateness {
    uint64_t *wait_ns;                 /* [nrequests][R] of each in flight; 0 while it is free */
    uint32_t *ranks;                   /* [nrequests][R] */
    xep_rank_waits_t *waits[XEP_OP_KINDS]; /* [R] */
    _Atomic uint64_t operations[XEP_OP_KINDS]; /* that have ended */
} xep_lateness_t;

struct xep_buffer {
    xep_group_t *group;
    xep_buffer_t *next;       /* in group->buffers */
    atomic_flag entered;      /* held by the thread that is in a call on this buffer, or makes its progress */
    xep_plugin_ref_t plugin;
    void *mode;               /* the plugin's */
    xep_shape_t shape;
    xep_env_t env;
    xep_heap_wire_t *heap;    /* [the mode's bytes | fence words, one u64 per rank, written by that rank] */
    uint64_t fence_offset;
    uint64_t fences;          /* done so far */
    xep_team_t *team;
    xep_dtype_t dtype, combine_dtype;
    int32_t timeout_ms;
    uint64_t epoch, turn;     /* of the next operation, of the next dispatch */
    uint32_t active;          /* requests waiting or active */
    int broken;               /* until reset */
    char broken_reason[XEP_REASON_BYTES];
    xep_handle_t *handles;    /* [slots] */
    xep_request_t *requests;  /* [nrequests] */
    uint32_t nrequests;
    char *states;             /* [nrequests][op_size], of the mode */
    xep_lateness_t lateness;
    uint64_t prefault_left;   /* bytes of XEP_PREFAULT not used yet */
};

/* ---- buffer.c: all arguments checked, defaults filled in ---- */

xep_status_t xep_buffer_measure(const xep_config_t *config, const xep_buffer_params_t *params, uint32_t nranks,
                                xep_buffer_size_t *size);
/** status: what checking params gave on this rank; params is looked at only when XEP_OK. */
xep_status_t xep_buffer_open(xep_group_t *group, const xep_buffer_params_t *params, xep_status_t status,
                             xep_buffer_t **buffer_p);

/** Frees all a buffer has, as far as it was made; tells nobody. */
void xep_buffer_free(xep_buffer_t *buffer);

/** Claims the buffer for this thread; leave gives it back. Not recursive. */
void xep_buffer_enter(xep_buffer_t *buffer);
void xep_buffer_leave(xep_buffer_t *buffer);

/* ---- buffer_end.c ---- */

/** xep_buffer_destroy() and xep_buffer_reset(). */
void xep_buffer_close(xep_buffer_t *buffer);
xep_status_t xep_buffer_restart(xep_buffer_t *buffer);

/* ---- request.c ---- */

/** Progress of all its requests, unless another thread is in the buffer. */
void xep_buffer_try_progress(xep_buffer_t *buffer);

/* ---- handle.c: called inside enter and leave ---- */

/** A free slot, the one given back last (its memory is in the caches); NULL: none. */
xep_handle_t *xep_handle_take(xep_buffer_t *buffer);
void xep_handle_give_back(xep_handle_t *handle);

/** Gives the slot of a released handle back, unless an operation still needs it. */
void xep_handle_settle(xep_handle_t *handle);

#endif
