/* SPDX-License-Identifier: BSD-3-Clause */

/** How the ranks of a job find one another: one allgather, whoever provides it. */
#ifndef XEP_GROUP_BOOT_H
#define XEP_GROUP_BOOT_H

#include <stdatomic.h>

#include <xep/xep.h>

typedef struct xep_boot xep_boot_t;

/** The begin of one block of memory: whoever makes a bootstrap has what it needs behind it. free() ends it. */
struct xep_boot {
    const char *name; /* "callback", "pmix", "single" */

    /** recv[nranks * bytes] in rank order. Collective, blocking, a barrier too; on error sets the reason. */
    xep_status_t (*allgather)(xep_boot_t *boot, const void *send, void *recv, size_t bytes);

    const _Atomic uint32_t *dead; /* rank known to be dead, or UINT32_MAX; NULL: nobody tells of deaths */
    uint32_t rank, nranks;
    int32_t timeout_ms;            /* of one allgather; < 0: none */
    int (*interrupted)(void *ctx); /* the caller's, or NULL: whether to stop waiting */
    void *interrupted_ctx;
    int ignores_processes; /* XEP_LIVENESS=heartbeat: the kernel is not asked who has died */
};

/** Rank known to be dead, or UINT32_MAX. Cheap, never blocks. */
static inline uint32_t xep_boot_dead_rank(const xep_boot_t *boot)
{
    return boot->dead == NULL ? UINT32_MAX : atomic_load_explicit(boot->dead, memory_order_relaxed);
}

static inline int xep_boot_interrupted(const xep_boot_t *boot)
{
    return boot->interrupted != NULL && boot->interrupted(boot->interrupted_ctx) != 0;
}

/** Of a group that was made over another one (grow, shrink): from now on that one's caller stops its waits, too. */
static inline void xep_boot_follow(xep_boot_t *boot, const xep_boot_t *other)
{
    boot->interrupted = other->interrupted;
    boot->interrupted_ctx = other->interrupted_ctx;
}

/** A block of so many bytes, which begin with boot; zeros follow. NULL: there is no memory, as the reason says. */
void *xep_boot_new(size_t bytes, xep_boot_t boot);

/* ---- boot_callback.c ---- */

/* Bootstrap over the caller's own allgather, which is tested before it is relied on. */

/** params->allgather is not NULL. Collective. */
xep_status_t xep_boot_callback_open(const xep_group_params_t *params, int32_t timeout_ms, xep_boot_t **boot_p);

/* ---- a group of one, and whether the environment lets a process be one ---- */

xep_status_t xep_boot_single_open(int32_t timeout_ms, xep_boot_t **boot_p);

/**
 * XEP_OK, or XEP_ERR_BOOT with the remedy as reason when the environment says that the job
 * has more ranks than the one a singleton would have (a launcher without PMIx).
 */
xep_status_t xep_boot_single_allowed(void);

#endif
