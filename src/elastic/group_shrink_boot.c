/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An allgather: each rank sends its bytes to each other one, as one control message. It says to which attempt and to
 * which allgather of it it belongs, as ranks that are ahead, or in an attempt that was given up, send theirs when they
 * like.
 */
#include "group_shrink.h"

#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"

/** What a rank gives to an allgather; it writes it, the others check it. */
typedef struct share {
    uint64_t attempt, number;
    char data[];
} share_t;
_Static_assert(sizeof(share_t) == 16, "wire format");

typedef struct ctl_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_shrink_t *shrink;
    xep_status_t (*patience)(void *arg);
    void *arg;
    uint64_t attempt, number;
    uint32_t *old; /* [nranks] the rank in the group that carries the control messages */
    uint8_t *got;  /* [nranks] its bytes are here */
} ctl_boot_t;

static xep_status_t send_all(const ctl_boot_t *boot, const void *data, size_t bytes)
{
    share_t *share = malloc(sizeof *share + bytes);
    xep_status_t status = XEP_OK;
    if (share == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for an allgather of %zu bytes", bytes);
    *share = (share_t){boot->attempt, boot->number};
    if (bytes != 0) memcpy(share->data, data, bytes);
    for (uint32_t r = 0; status == XEP_OK && r < boot->boot.nranks; r++)
        if (r != boot->boot.rank)
            status = xep_ctl_send(boot->shrink->group, boot->old[r], XEP_CTL_SHARE, 0, share, sizeof *share + bytes);
    free(share);
    return status;
}

/*
 * The new rank of one in the old group; nranks: it is not in the new one, and what it sent belongs to another
 * attempt.
 */
static uint32_t rank_of(const ctl_boot_t *boot, uint32_t old)
{
    uint32_t r = 0;
    while (r < boot->boot.nranks && boot->old[r] != old) r++;
    return r;
}

/*
 * All shares of this allgather that are here. Those of the next one stay in the list, and so do those of another
 * attempt, until xep_shrink_close(): its number alone does not say whether that attempt is over or still to come.
 */
static xep_status_t take_shares(ctl_boot_t *boot, char *recv, size_t bytes)
{
    xep_msg_t **link = &boot->shrink->shares, *msg;
    while (*link != NULL) link = &(*link)->next;
    *link = xep_ctl_take(boot->shrink->group, XEP_CTL_SHARE, 0);
    for (link = &boot->shrink->shares; (msg = *link) != NULL;) {
        uint32_t rank = rank_of(boot, msg->from);
        share_t head = {0};
        if (msg->bytes >= sizeof head) memcpy(&head, msg->data, sizeof head);
        if (head.attempt != boot->attempt || head.number != boot->number || rank == boot->boot.nranks) {
            link = &msg->next;
            continue;
        }
        size_t given = msg->bytes - sizeof head;
        if (given != bytes)
            return xep_fail(XEP_ERR_MISMATCH, "rank %u gave %zu bytes to an allgather of %zu", rank, given, bytes);
        if (bytes != 0) memcpy(recv + rank * bytes, msg->data + sizeof head, bytes);
        boot->got[rank] = 1;
        *link = msg->next;
        free(msg);
    }
    return XEP_OK;
}

/* For the patience, should the deadline pass: whose bytes are not here. Returns whether there is any such rank. */
static int note_late(ctl_boot_t *boot)
{
    int is_late = 0;
    for (uint32_t r = 0; r < boot->boot.nranks; r++) {
        boot->shrink->of[boot->old[r]].late = !boot->got[r];
        is_late |= !boot->got[r];
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
    boot->number++;
    memset(boot->got, 0, base->nranks);
    boot->got[base->rank] = 1;
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

static void ctl_close(xep_boot_t *base)
{
    ctl_boot_t *boot = (ctl_boot_t *)base;
    free(boot->old);
    free(boot->got);
    free(boot);
}

/* Ranks of this host are looked up by the group; of others it hears by its transport. */
static const xep_boot_ops_t ctl_ops = {.name = "shrink",
                                       .allgather = ctl_allgather,
                                       .dead_rank = xep_boot_knows_no_dead,
                                       .close = ctl_close};

static int interrupted(void *ctx)
{
    ctl_boot_t *boot = ctx;
    return boot->patience(boot->arg) != XEP_OK;
}

uint32_t xep_boot_ctl_old(const xep_boot_t *boot, uint32_t rank)
{
    return ((const ctl_boot_t *)boot)->old[rank];
}

xep_status_t xep_boot_ctl_open(xep_shrink_t *shrink, int32_t timeout_ms, xep_status_t (*patience)(void *arg), void *arg,
                               xep_boot_t **boot_p)
{
    uint32_t nranks = shrink->nranks - xep_ballot_count(&shrink->agreement.mine), n = 0;
    ctl_boot_t *boot = xep_boot_new(sizeof *boot, &ctl_ops, 0, nranks, timeout_ms);
    if (boot == NULL) return XEP_ERR_NO_MEMORY;
    boot->shrink = shrink;
    boot->patience = patience;
    boot->arg = arg;
    boot->attempt = shrink->tried;
    boot->old = calloc(nranks, sizeof *boot->old);
    boot->got = calloc(nranks, 1);
    if (boot->old == NULL || boot->got == NULL) {
        ctl_close(&boot->boot);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the bootstrap");
    }
    for (uint32_t r = 0; r < shrink->nranks; r++) {
        if (xep_shrink_suspects(shrink, r)) continue;
        if (r == shrink->group->rank) boot->boot.rank = n;
        boot->old[n++] = r;
    }
    boot->boot.interrupted = interrupted; /* also in the waits of the new group, while it is made */
    boot->boot.interrupted_ctx = boot;
    *boot_p = &boot->boot;
    return XEP_OK;
}
