/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An allgather: each rank sends its bytes to each other one, in fragments of at most FRAGMENT_BYTES. One says to which
 * attempt and to which allgather of it it belongs, as ranks that are ahead, or in an attempt that was given up, send
 * theirs when they like.
 */
#include "group_shrink.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"

/** In front of the bytes of a fragment; the sender writes it, the receiver checks it. */
typedef struct fragment {
    uint64_t attempt, number;
    uint64_t bytes; /* of the rank, in all fragments together */
    uint64_t offset;
    uint64_t count; /* in this one; they follow */
} fragment_t;
_Static_assert(sizeof(fragment_t) == 40, "wire format");

enum { FRAGMENT_BYTES = XEP_CTL_BYTES - sizeof(fragment_t) };

typedef struct ctl_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_shrink_t *shrink;
    xep_status_t (*patience)(void *arg);
    void *arg;
    uint64_t attempt, number;
    uint32_t *old; /* [nranks] the rank in the group that carries the control messages */
    size_t *got;   /* [nranks] bytes that are here, plus 1 once there was a fragment */
} ctl_boot_t;

static xep_status_t send_all(ctl_boot_t *boot, const char *data, size_t bytes)
{
    struct {
        fragment_t fragment;
        char data[FRAGMENT_BYTES];
    } message;
    size_t done = 0;
    /* once at least: also for an allgather of no bytes each rank waits for a fragment of all others */
    do {
        size_t count = bytes - done < FRAGMENT_BYTES ? bytes - done : FRAGMENT_BYTES;
        message.fragment = (fragment_t){boot->attempt, boot->number, bytes, done, count};
        if (count != 0) memcpy(message.data, data + done, count);
        for (uint32_t r = 0; r < boot->boot.nranks; r++) {
            if (r == boot->boot.rank) continue;
            xep_status_t status = xep_ctl_send(boot->shrink->group, boot->old[r], XEP_CTL_FRAGMENT, 0, &message,
                                               sizeof message.fragment + count);
            if (status != XEP_OK) return status;
        }
        done += count;
    } while (done < bytes);
    return XEP_OK;
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

static xep_status_t take_fragment(ctl_boot_t *boot, uint32_t rank, const xep_msg_t *msg, char *recv, size_t bytes)
{
    fragment_t fragment;
    memcpy(&fragment, msg->data, sizeof fragment);
    if (fragment.bytes != bytes)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u gave %" PRIu64 " bytes to an allgather of %zu", rank, fragment.bytes,
                        bytes);
    if (fragment.count > bytes || fragment.offset > bytes - fragment.count ||
        fragment.count != msg->bytes - sizeof fragment)
        return xep_fail(XEP_ERR_PROTOCOL,
                        "invalid fragment of an allgather from rank %u: %" PRIu64 " bytes at %" PRIu64
                        " (of %zu), in control messages of %zu",
                        rank, fragment.count, fragment.offset, bytes, msg->bytes);
    if (fragment.count != 0) memcpy(recv + rank * bytes + fragment.offset, msg->data + sizeof fragment, fragment.count);
    boot->got[rank] += fragment.count + (boot->got[rank] == 0);
    return XEP_OK;
}

/*
 * All fragments of this allgather that are here, in the order in which they came. Those for the next one stay in the
 * list, and so do those of another attempt, until xep_shrink_close(): its number alone does not say whether that
 * attempt is over or still to come.
 */
static xep_status_t take_fragments(ctl_boot_t *boot, char *recv, size_t bytes)
{
    xep_status_t status = XEP_OK;
    xep_msg_t **link = &boot->shrink->fragments, *msg;
    while (*link != NULL) link = &(*link)->next;
    *link = xep_ctl_take(boot->shrink->group, XEP_CTL_FRAGMENT, 0);
    for (link = &boot->shrink->fragments; status == XEP_OK && (msg = *link) != NULL;) {
        uint32_t rank = rank_of(boot, msg->from);
        fragment_t fragment = {0};
        if (msg->bytes >= sizeof fragment) memcpy(&fragment, msg->data, sizeof fragment);
        if (fragment.attempt != boot->attempt || fragment.number != boot->number || rank == boot->boot.nranks) {
            link = &msg->next;
            continue;
        }
        status = take_fragment(boot, rank, msg, recv, bytes);
        *link = msg->next;
        free(msg);
    }
    return status;
}

static uint32_t find_missing(const ctl_boot_t *boot, size_t bytes)
{
    uint32_t r = 0;
    while (r < boot->boot.nranks && (r == boot->boot.rank || boot->got[r] == bytes + 1)) r++;
    return r;
}

/* For the patience, should the deadline pass: whose bytes are not here. */
static void note_late(ctl_boot_t *boot, size_t bytes)
{
    for (uint32_t r = 0; r < boot->boot.nranks; r++)
        boot->shrink->late[boot->old[r]] = r != boot->boot.rank && boot->got[r] != bytes + 1;
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
    memset(boot->got, 0, base->nranks * sizeof *boot->got);
    if (bytes != 0) memmove((char *)recv + base->rank * bytes, send, bytes);
    xep_status_t status = send_all(boot, send, bytes);
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, UINT64_MAX);
    while (status == XEP_OK) {
        status = take_fragments(boot, recv, bytes);
        if (status != XEP_OK || find_missing(boot, bytes) == base->nranks) break;
        note_late(boot, bytes);
        status = boot->patience(boot->arg);
        (void)xep_backoff_wait(&backoff, atomic_load(&boot->shrink->group->transport->moves));
    }
    memset(boot->shrink->late, 0, boot->shrink->nranks);
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
    boot->got = calloc(nranks, sizeof *boot->got);
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
