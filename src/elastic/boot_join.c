/* SPDX-License-Identifier: BSD-3-Clause */

#include "boot_join.h"

#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"

typedef struct join_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_join_t *join;
    uint32_t number; /* of the last allgather */
} join_boot_t;

static int is_interrupted(const xep_join_t *join)
{
    const xep_join_params_t *params = join->params;
    return params->interrupted != NULL && params->interrupted(params->interrupted_ctx) != 0;
}

static xep_status_t look(void *arg)
{
    if (!is_interrupted(arg)) return XEP_OK;
    return xep_fail(XEP_ERR_ABORTED, "the caller stopped waiting for a group");
}

xep_patience_t xep_join_patience(xep_join_t *join, uint64_t deadline_ns)
{
    return (xep_patience_t){.deadline_ns = deadline_ns, .look = look, .arg = join};
}

/*
 * Rank 0 may say instead that there will be no group, and why; that reason becomes this process's. An unknown status is
 * not passed on as it is.
 */
static xep_status_t judge(const xep_frame_t *frame, xep_frame_kind_t kind)
{
    if (frame->status < 0)
        return xep_fail(frame->status >= XEP_ERR_BROKEN ? (xep_status_t)frame->status : XEP_ERR_PEER, "%s",
                        frame->text[0] != '\0' ? frame->text : "rank 0 gave no reason");
    if (frame->kind == kind) return XEP_OK;
    return xep_fail(XEP_ERR_PROTOCOL, "unexpected message from rank 0: kind %u (kind %u)", frame->kind, (uint32_t)kind);
}

xep_status_t xep_join_hear(xep_join_t *join, xep_frame_kind_t kind, const xep_patience_t *patience,
                           xep_message_t **message_p)
{
    *message_p = NULL;
    xep_status_t status = xep_frames_recv(join->frames, 0, patience, message_p);
    return status == XEP_OK ? judge(&(*message_p)->frame, kind) : status;
}

/* Rank 0 has both ends: a joiner gives its bytes, and gets those of all, itself and the group's ranks among them. The
 * number keeps an answer of an exchange that was given up from being taken for this one's. */
static xep_status_t join_allgather(xep_boot_t *base, const void *send, void *recv, size_t bytes)
{
    join_boot_t *boot = (join_boot_t *)base;
    xep_message_t *all = NULL;
    xep_frame_t give = {.kind = XEP_FRAME_GIVE, .exchange = ++boot->number, .bytes = bytes};
    xep_patience_t patience = xep_join_patience(boot->join, xep_deadline(boot->join->timeout_ms));
    xep_status_t status = xep_frames_send(boot->join->frames, 0, give, NULL, send);
    if (status == XEP_OK) status = xep_join_hear(boot->join, XEP_FRAME_ALL, &patience, &all);
    if (status == XEP_OK && (all->frame.exchange != boot->number || all->frame.bytes != base->nranks * bytes))
        status = xep_fail(XEP_ERR_PROTOCOL, "unexpected bytes from rank 0: %llu of exchange %u (%llu of exchange %u)",
                          (unsigned long long)all->frame.bytes, all->frame.exchange,
                          (unsigned long long)(base->nranks * bytes), boot->number);
    else if (status == XEP_OK) memcpy(recv, all->data, all->frame.bytes);
    free(all);
    return status;
}

/* A joiner knows rank 0 alone, of whose death its frames tell; it cannot tell of the others. */
static const xep_boot_ops_t join_ops = {.name = "grow",
                                        .allgather = join_allgather,
                                        .dead_rank = xep_boot_knows_no_dead,
                                        .close = xep_boot_free};

/* Interrupts waits over the new group's own connections: rank 0 sends nothing then, unless it has failed. */
static int interrupted(void *ctx)
{
    const xep_join_t *join = ((const join_boot_t *)ctx)->join;
    return xep_frames_peek(join->frames, 0) != NULL || xep_frames_is_gone(join->frames, 0) || is_interrupted(join);
}

xep_status_t xep_boot_join_open(xep_join_t *join, int32_t timeout_ms, xep_boot_t **boot_p)
{
    join_boot_t *boot = xep_boot_new(sizeof *boot, &join_ops, join->rank, join->nranks, timeout_ms);
    if (boot == NULL) return XEP_ERR_NO_MEMORY;
    boot->boot.interrupted = interrupted;
    boot->boot.interrupted_ctx = boot;
    boot->join = join;
    *boot_p = &boot->boot;
    return XEP_OK;
}

void xep_boot_join_end(xep_boot_t *base)
{
    join_boot_t *boot = (join_boot_t *)base;
    base->interrupted = boot->join->params->interrupted;
    base->interrupted_ctx = boot->join->params->interrupted_ctx;
    boot->join = NULL;
}
