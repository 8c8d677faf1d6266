/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An allgather: each rank sends its bytes to each other one, as one control message. It says which attempt and which
 * allgather of it it is about, as ranks that are ahead, or in an attempt that was given up, send theirs when they like.
 * Those wait in the inbox until they, or later ones, are asked for: at most two of a rank for an attempt, as nobody
 * begins an allgather before the one before is over.
 */
#include "group_shrink.h"

#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"

enum { ATTEMPT_SHIFT = 32 /* below it: which allgather of the attempt */ };

typedef struct ctl_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_shrink_t *shrink;
    xep_status_t (*patience)(void *arg);
    void *arg;
    uint64_t about; /* of the last allgather's messages */
    struct {
        uint32_t old; /* the rank in the group that carries the control messages */
        int got;      /* its bytes are here */
    } of[];           /* [nranks] */
} ctl_boot_t;

static xep_status_t send_all(const ctl_boot_t *boot, const void *data, size_t bytes)
{
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0; status == XEP_OK && r < boot->boot.nranks; r++)
        if (r != boot->boot.rank)
            status = xep_ctl_send(boot->shrink->group, boot->of[r].old, XEP_CTL_SHARE, boot->about, data, bytes);
    return status;
}

/* The new rank of one in the old group; nranks: it is not in the new one, and has tried to make another one. */
static uint32_t rank_of(const ctl_boot_t *boot, uint32_t old)
{
    uint32_t r = 0;
    while (r < boot->boot.nranks && boot->of[r].old != old) r++;
    return r;
}

static xep_status_t take_share(ctl_boot_t *boot, const xep_msg_t *msg, char *recv, size_t bytes)
{
    uint32_t rank = rank_of(boot, msg->from);
    if (msg->about != boot->about || rank == boot->boot.nranks) return XEP_OK;
    if (msg->bytes != bytes)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u gave %zu bytes to an allgather of %zu", rank, msg->bytes, bytes);
    if (bytes != 0) memcpy(recv + rank * bytes, msg->data, bytes);
    boot->of[rank].got = 1;
    return XEP_OK;
}

/* All of this allgather that are here, and what is left of attempts that were given up: nobody asks for that again. */
static xep_status_t take_shares(ctl_boot_t *boot, char *recv, size_t bytes)
{
    xep_status_t status = XEP_OK;
    xep_msg_t *all = xep_ctl_take(boot->shrink->group, XEP_CTL_SHARE, 0, boot->about);
    for (const xep_msg_t *msg = all; msg != NULL && status == XEP_OK; msg = msg->next)
        status = take_share(boot, msg, recv, bytes);
    xep_ctl_free(all);
    return status;
}

/* For the patience, should the deadline pass: whose bytes are not here. Returns whether there is any such rank. */
static int note_late(ctl_boot_t *boot)
{
    int is_late = 0;
    for (uint32_t r = 0; r < boot->boot.nranks; r++) {
        boot->shrink->of[boot->of[r].old].late = !boot->of[r].got;
        is_late |= !boot->of[r].got;
    }
    return is_late;
}

/*
 * A deadline is the patience's business, as all else that ends the wait: it knows whom to suspect. So this is no
 * xep_group_wait(): the group that carries the control messages has ended, and its dead are left out.
 */
static xep_status_t ctl_allgather(xep_boot_t *base, const void *send, void *recv, size_t bytes)
{
    ctl_boot_t *boot = (ctl_boot_t *)base;
    xep_backoff_t backoff;
    boot->about++;
    for (uint32_t r = 0; r < base->nranks; r++) boot->of[r].got = r == base->rank;
    if (bytes != 0) memmove((char *)recv + base->rank * bytes, send, bytes);
    xep_status_t status = send_all(boot, send, bytes);
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, UINT64_MAX);
    while (status == XEP_OK) {
        status = take_shares(boot, recv, bytes);
        if (status != XEP_OK || !note_late(boot)) break;
        status = boot->patience(boot->arg);
        (void)xep_backoff_wait(&backoff, atomic_load(&boot->shrink->group->transport->moves));
    }
    for (uint32_t r = 0; r < boot->shrink->nranks; r++) boot->shrink->of[r].late = 0;
    return status;
}

/* Also in the waits of the new group, while it is made. */
static int interrupted(void *ctx)
{
    ctl_boot_t *boot = ctx;
    return boot->patience(boot->arg) != XEP_OK;
}

uint32_t xep_boot_ctl_old(const xep_boot_t *boot, uint32_t rank)
{
    return ((const ctl_boot_t *)boot)->of[rank].old;
}

/* Ranks of this host are looked up by the group; of others it hears by its transport. */
xep_status_t xep_boot_ctl_open(xep_shrink_t *shrink, int32_t timeout_ms, xep_status_t (*patience)(void *arg), void *arg,
                               xep_boot_t **boot_p)
{
    uint32_t nranks = shrink->nranks - xep_ballot_count(&shrink->agreement.mine), n = 0;
    ctl_boot_t *boot =
        xep_boot_new(sizeof *boot + nranks * sizeof boot->of[0], (xep_boot_t){.name = "shrink",
                                                                              .allgather = ctl_allgather,
                                                                              .nranks = nranks,
                                                                              .timeout_ms = timeout_ms,
                                                                              .interrupted = interrupted});
    if (boot == NULL) return XEP_ERR_NO_MEMORY;
    boot->boot.interrupted_ctx = boot;
    boot->shrink = shrink;
    boot->patience = patience;
    boot->arg = arg;
    boot->about = shrink->tried << ATTEMPT_SHIFT;
    for (uint32_t r = 0; r < shrink->nranks; r++) {
        if (xep_shrink_suspects(shrink, r)) continue;
        if (r == shrink->group->rank) boot->boot.rank = n;
        boot->of[n++].old = r;
    }
    *boot_p = &boot->boot;
    return XEP_OK;
}
