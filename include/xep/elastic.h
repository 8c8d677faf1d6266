/* SPDX-License-Identifier: BSD-3-Clause */

/** Groups and buffers that lose ranks or gain some: ranks that are out, groups that shrink and grow. */
#ifndef XEP_ELASTIC_H
#define XEP_ELASTIC_H

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranks that are out ----------------------------------------------------- */

/** Why a rank is out of a group. */
typedef enum {
    XEP_OUT_DIED = 1,  /* its process is gone */
    XEP_OUT_LATE = 2,  /* it did not answer within a deadline */
    XEP_OUT_ASKED = 3, /* xep_group_mask_set() */
    XEP_ENUM_IS_INT(XEP_OUT)
} xep_out_reason_t;

/** A rank that is out. */
typedef struct xep_mask {
    uint32_t rank;
    xep_out_reason_t reason; /* as this rank knows it: another may have waited for one that this one has seen die */
    uint64_t since_ns;       /* when this rank gave it up: CLOCK_MONOTONIC */
} xep_mask_t;

/**
 * Leaves a rank out from now on, as if it had died, in all buffers of XEP_ON_FAILURE_MASK and in barriers. One rank
 * calls it; all agree on it, and on the operations that are still with that rank, and tell it that it is out. It cannot
 * come back into this group. Local, does not block: the agreement is made in the next calls of all. Errors:
 * XEP_ERR_INVALID (also: this rank itself), XEP_ERR_UNSUPPORTED (the group has no buffer that goes on without ranks).
 */
XEP_API xep_status_t xep_group_mask_set(xep_group_t *group, uint32_t rank);

/**
 * Returns which ranks are out, as far as this rank knows by now, ascending; after a barrier all ranks know. The first
 * capacity of them go to masks, an array with stride bytes from one to the next: sizeof(xep_mask_t). It may be NULL if
 * capacity is 0. How many there are goes to *count_p. Local. Only
 * buffers with XEP_ON_FAILURE_MASK and xep_group_shrink() put ranks out: without them no rank is out, even if it has
 * died, and the sentence of the error names the rank.
 */
XEP_API xep_status_t xep_group_mask_query(const xep_group_t *group, xep_mask_t *masks, size_t stride, uint32_t capacity,
                                          uint32_t *count_p);

/* ---- a group of those that are left ------------------------------------------ */

typedef struct xep_shrink_args {
    size_t size;
    int32_t
        timeout_ms;    /* most time to wait for a rank that is not known to be gone; 0: as the group's; < 0: no limit */
    uint32_t least;    /* of ranks: with fewer, XEP_ERR_PEER on all. A cut network then leaves one group at most */
    uint32_t *origins; /* NULL, or [R of group]: the rank in group of each rank of the new group */
} xep_shrink_args_t;

#define XEP_SHRINK_ARGS_INIT XEP_INIT_(xep_shrink_args_t)

/**
 * Makes a new group of the ranks of this one that are left, in the same order, without gaps. Collective over these,
 * blocking; args may be NULL. No launcher, bootstrap or callback is asked: it goes over the group's own connections,
 * also when some of them have failed, the group was aborted, or the launcher has lost ranks.
 *
 * All ranks that are left get the same new group, or an error. It leaves out ranks that have died, ranks that are out
 * already (xep_group_mask_query()), and ranks that do not call this within the timeout. They are listed by
 * xep_group_mask_query() of this group afterwards. A rank that was left out for being late gets XEP_ERR_PEER; where the
 * others have left and no memory or connection tells it so, it finds itself alone, which args.least can refuse. Ranks
 * may die meanwhile, too.
 *
 * The call aborts this group, so that ranks that still wait in an operation return and call it as well. What they have
 * received stays readable until they destroy their buffers and this group, before or after the call; that waits for no
 * rank. New buffers are made on the new group. A group can be shrunk once; the new one can be, too.
 *
 * Errors: XEP_ERR_PEER (this rank is out, or fewer than args.least are left), XEP_ERR_ABORTED (params.interrupted),
 * XEP_ERR_TRANSPORT, XEP_ERR_NO_MEMORY, XEP_ERR_INVALID (also: called before). They leave this group aborted.
 */
XEP_API xep_status_t xep_group_shrink(xep_group_t *group, const xep_shrink_args_t *args, xep_group_t **group_p);

/* ---- a group with joiners ----------------------------------------------------- */

/** Most bytes of the address of a group that grows. */
enum { XEP_ADDRESS_BYTES = 2048 };

/**
 * Publishes the address of a group, as MPI_Publish_name() does: bytes of it, valid during the call; bytes 0: withdraws
 * it. Called inside xep_group_grow(), on rank 0. Returns 0, or anything else on failure. A process that has the address
 * can become a rank: show it to the same user alone.
 */
typedef int (*xep_publish_fn)(void *ctx, const void *address, size_t bytes);

/**
 * Finds what xep_publish_fn has published: writes at most capacity bytes to address, and how many to *bytes_p; 0: not
 * there yet, and xep asks again until the deadline. Called inside xep_group_join(). Returns 0, or anything else on
 * failure.
 */
typedef int (*xep_lookup_fn)(void *ctx, void *address, size_t capacity, size_t *bytes_p);

/** Bits of xep_grow_args_t.flags. */
enum {
    /* joiners may be on any host that reaches this one: without it, a group of one host is met over the loopback
     * interface alone. A group of several hosts is met over all interfaces */
    XEP_GROW_ANYWHERE = 1
};

/** Those of rank 0 count; of other ranks only size is used. */
typedef struct xep_grow_args {
    size_t size;
    uint32_t joiners;   /* processes to wait for, at most 1024; 0: 1 */
    int32_t timeout_ms; /* most time until they are here; 0: the group's timeout; < 0: none */
    /* of the address file, which rank 0 makes and removes; or "pmix:" and a name of 1 to 127 bytes, which the launcher
     * keeps meanwhile; NULL without publish: "pmix:xep" */
    const char *path;
    xep_publish_fn publish; /* instead of path */
    void *publish_ctx;      /* passed to publish */
    uint32_t flags;         /* XEP_GROW_* */
    uint32_t reserved;      /* must be 0 */
} xep_grow_args_t;

#define XEP_GROW_ARGS_INIT XEP_INIT_(xep_grow_args_t)

/**
 * Makes a new group of all ranks of this one, with the numbers that they have, and of processes that call
 * xep_group_join(): these are the ranks behind them, in the order in which they came. Collective, blocking, and an
 * operation boundary: all have called it before any of them returns. No launcher takes part, unless path is a name.
 *
 * Rank 0 waits for the joiners; all ranks come to the same new group or to the same error, after which this group and
 * its buffers are as before, so the call can be made again: XEP_ERR_TIMEOUT (fewer joiners than asked for have come,
 * which none of them is told: they go on looking for a group), XEP_ERR_PEER (a joiner has died in the middle),
 * XEP_ERR_MISMATCH (a joiner has other settings; or a rank comes late to a call that others have given up and made
 * again), XEP_ERR_INVALID, XEP_ERR_BOOT (the address file cannot be written, publish failed, or the name is taken),
 * XEP_ERR_UNSUPPORTED (the launcher keeps no names), XEP_ERR_ABORTED (params.interrupted), XEP_ERR_TRANSPORT,
 * XEP_ERR_NO_MEMORY. A joiner of another version of xep is told so and not let in, and the others go on waiting.
 *
 * When a rank of this group dies or does not call this within the group's timeout, the errors are those of
 * xep_group_allgather(), XEP_ERR_PEER and XEP_ERR_TIMEOUT, and name it; then xep_group_shrink() makes a group that can
 * grow. The same applies while ranks are out (XEP_ERR_PEER).
 *
 * Both groups can be used then. If a rank of this group died at the last moment, others may have got an error; then
 * every call on the new group, xep_group_shrink() too, ends with XEP_ERR_ABORTED, and all go on with this one: keep it
 * until a call on the new one has succeeded. Buffers do not move: xep_buffer_follow() makes one of the same shape on
 * the new group, and this group and its buffers are destroyed as always, by its ranks.
 */
XEP_API xep_status_t xep_group_grow(xep_group_t *group, const xep_grow_args_t *args, xep_group_t **group_p);

typedef struct xep_join_params {
    size_t size;
    const char *path;     /* of the address file, or "pmix:" and the name; NULL without lookup: "pmix:xep" */
    xep_lookup_fn lookup; /* instead of path */
    void *lookup_ctx;     /* passed to lookup */
    /* most time until a group has taken this process in, then deadline of each wait in calls on the group; 0:
     * XEP_TIMEOUT; < 0: none */
    int32_t timeout_ms;
    uint32_t reserved;             /* must be 0 */
    int (*interrupted)(void *ctx); /* as in xep_group_params_t */
    void *interrupted_ctx;         /* passed to interrupted */
} xep_join_params_t;

#define XEP_JOIN_PARAMS_INIT XEP_INIT_(xep_join_params_t)

/**
 * Makes this process a rank of a group whose ranks call xep_group_grow(), now or before the deadline. Blocking. The
 * process may come from anywhere: no launcher and no PMIx is asked, unless path is a name, which processes of the same
 * launcher find (xep_run, mpirun, prterun; Slurm's PMIx keeps no names). It needs the same user and the same settings
 * (XEP_MAP and so on). The address file is read only if it belongs to this user and nobody else can use it.
 *
 * It waits while there is no address file, or no group answers at the address in an old one. Errors, after which
 * nothing is left to free: XEP_ERR_TIMEOUT (the sentence says what was missing last), XEP_ERR_PROTOCOL (the file has no
 * valid address), XEP_ERR_BOOT (the file belongs to somebody else), XEP_ERR_MISMATCH (another version of xep, other
 * settings), XEP_ERR_PEER (a rank died in the middle), XEP_ERR_ABORTED (params.interrupted), XEP_ERR_INVALID,
 * XEP_ERR_UNSUPPORTED (no launcher that keeps names), XEP_ERR_TRANSPORT, XEP_ERR_NO_MEMORY. It may be called again.
 */
XEP_API xep_status_t xep_group_join(const xep_join_params_t *params, xep_group_t **group_p);

/* ---- buffers on the new group --------------------------------------------------- */

/**
 * Makes a buffer on a group that xep_group_shrink() or xep_group_grow() has made of another one, as xep_buffer_create()
 * with the params of an old buffer: those of the lowest rank that has one. old is this rank's buffer, or NULL on ranks
 * that have none, which are joiners; it stays as it is. The new group has other ranks, so ranks have other experts
 * (xep_expert_range()), and recv_rows 0 is another worst case; what is per rank is that of the rank's own buffer.
 * Collective, blocking. Errors: as of xep_buffer_create(); XEP_ERR_INVALID also if no rank has a buffer.
 */
XEP_API xep_status_t xep_buffer_follow(const xep_buffer_t *old, xep_group_t *group, xep_buffer_t **buffer_p);

#ifdef __cplusplus
}
#endif

#endif
