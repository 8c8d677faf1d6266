/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a mode is: one shared object xep_<name>.so that exports one const object, xep_plugin,
 * and imports nothing of xep. All it may use arrives in its xep_env_t. It has no mutable
 * globals, reads no environment, prints nothing, starts no thread.
 *
 * In-tree and out-of-tree modes are built against exactly the library they are loaded by:
 * abi and size must match, no adapters.
 */
#ifndef XEP_PLUGIN_H
#define XEP_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include <xep/wire.h>
#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Changes with any change of meaning here; a change of layout also shows in the sizes. */
#define XEP_PLUGIN_ABI 1u

/** The shape of a buffer: params with every default filled in, and this rank's place. */
typedef struct xep_shape {
    uint32_t rank, nranks;
    uint32_t experts;                     /* E */
    uint32_t first_expert, local_experts; /* of this rank */
    uint32_t topk;                        /* most selections of a token */
    uint32_t hidden;                      /* most elements of a row */
    uint32_t scales;                      /* most 4-byte scales of a token */
    uint32_t elem_bytes;                  /* of a dispatched element, at most */
    uint32_t combine_elem_bytes;          /* of a combined element, at most */
    uint32_t slots;
    uint64_t tokens;                      /* most tokens a rank dispatches */
    uint64_t recv_rows;                   /* params.recv_rows; 0: the mode's worst case */
} xep_shape_t;

/** Instruction sets a kernel may use; each includes the ones before. */
typedef enum { XEP_SIMD_SCALAR, XEP_SIMD_AVX2, XEP_SIMD_AVX512 } xep_simd_t;

#define XEP_NO_SLOT UINT32_MAX

/** Whom an operation waits for, and for how long it did. A mode that leaves it alone is never seen to wait. */
typedef struct xep_late {
    uint32_t count;    /* the mode: ranks whose word it did not find when it looked last; 0: it waits for nobody's */
    uint32_t *ranks;   /* [R] the mode: which */
    uint64_t since_ns; /* the core: when a caller began to wait for them; 0: nobody waits. The mode: 0 as soon as count is */
    uint64_t *wait_ns; /* [R] the mode: now - since_ns is added for a rank whose word has come, unless nobody waits */
} xep_late_t;

/** One operation: the core fills all but state, recv and late, and owns the memory. */
typedef struct xep_op {
    xep_op_kind_t kind;
    uint32_t slot;         /* of this rank, 0 .. slots-1; peers may use another for the same epoch */
    uint32_t cached_slot;  /* dispatch: slot of the handle whose routing is used again, or XEP_NO_SLOT */
    uint64_t epoch;        /* 1, 2, ... over the operations of the buffer; the same on every rank */
    uint64_t turn;         /* 0, 1, ... over its dispatches; the core begins turn n only after turn
                              n - slots is complete here. Combine: that of the handle's dispatch */
    const xep_dispatch_args_t *dispatch; /* checked, defaults filled in, strides never 0 */
    const xep_combine_args_t *combine;   /* checked likewise; x is NULL for zero copy */
    xep_recv_t *recv;      /* of the slot: zeroed before dispatch, which fills all of it at once, size too, when
                              the rows are counted; combine reads it */
    void *state;           /* op_size bytes, zeroed before dispatch or combine */
    xep_late_t late;
} xep_op_t;

typedef struct xep_env xep_env_t;
typedef void (*xep_parallel_fn)(void *arg, uint32_t thread, uint32_t nthreads);

/** Everything a mode may use. Valid from open to close. */
struct xep_env {
    size_t size;              /* of this struct */
    const xep_shape_t *shape;
    void *heap;               /* this rank's region, heap_bytes long, all zero at open after create (not
                                 touched yet where the system allows: see prefault); after a reset as
                                 it was, and epochs go on */
    uint64_t heap_bytes;
    xep_wire_t *wire;
    uint32_t threads;         /* of the team */
    xep_simd_t simd;          /* kernels to use */
    uint64_t stream_bytes;    /* an operation that writes at least this much does so past the caches; UINT64_MAX:
                                 nothing ever */

    /** Runs fn(arg, 0 .. threads-1, threads) on the team, returns when all are done. Not nested. */
    void (*parallel)(const xep_env_t *env, xep_parallel_fn fn, void *arg);

    /** Makes the pages present that this process will touch: of the own region or of a mapped peer's. May do nothing. */
    void (*prefault)(const xep_env_t *env, void *base, uint64_t bytes);

    /** Nanoseconds of a monotonic clock, never 0. */
    uint64_t (*now_ns)(const xep_env_t *env);

    /**
     * Makes the sentence xep_last_error() tells for op's (NULL: this call's) error; returns status. An
     * error of the wire is returned as it is: the wire has told the core its reason.
     */
    xep_status_t (*fail)(const xep_env_t *env, xep_op_t *op, xep_status_t status, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

    /** Logs, with rank and mode put before it. */
    void (*log)(const xep_env_t *env, xep_log_level_t level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
};

typedef struct xep_plugin {
    uint32_t abi;      /* XEP_PLUGIN_ABI */
    uint32_t size;     /* sizeof(xep_plugin_t) */
    uint32_t env_size; /* sizeof(xep_env_t) */
    uint32_t op_bytes; /* sizeof(xep_op_t) */
    uint32_t wire_ops_size; /* sizeof(xep_wire_ops_t) */
    uint32_t op_size;  /* bytes of private state of one operation */
    const char *name;  /* as in the file name xep_<name>.so */
    const char *brief; /* one line for xep_info */

    /** Bytes of the region this shape needs, and rows a slot will hold. Pure; rank is not looked at. */
    xep_status_t (*heap_size)(const xep_shape_t *shape, uint64_t *bytes_p, uint64_t *recv_rows_p);

    /** Prepares a buffer: allocates all it will ever need, connects to every peer. Local. */
    xep_status_t (*open)(const xep_env_t *env, void **mode_p);

    /** Frees what open made. No operation is in flight. */
    void (*close)(void *mode);

    /**
     * Begins an operation: checks what only the mode can check, posts what can be posted. XEP_OK:
     * begun. An error: nothing was sent and nothing remembered, the epoch was not used.
     */
    xep_status_t (*dispatch)(void *mode, xep_op_t *op);
    xep_status_t (*combine)(void *mode, xep_op_t *op);

    /**
     * Takes the operation as far as it goes without waiting. XEP_INPROGRESS: call again. XEP_OK: done.
     * XEP_ERR_OVERFLOW and XEP_ERR_MISMATCH: done, nothing was moved, every rank gets the same;
     * any other error: this operation cannot be ended and the buffer is broken.
     * Operations of different slots make progress in any order.
     */
    xep_status_t (*progress)(void *mode, xep_op_t *op);

    /**
     * Where slot's combine input is, and its stride. XEP_INPROGRESS: a peer still reads what an
     * earlier combine left there; call again.
     */
    xep_status_t (*input)(void *mode, uint32_t slot, void **base_p, size_t *stride_p);

    /** What op waits for, as text: phase, ranks, counts expected and seen. For timeouts. */
    void (*explain)(void *mode, const xep_op_t *op, char *text, size_t bytes);
} xep_plugin_t;

#ifdef __cplusplus
}
#endif

#endif
