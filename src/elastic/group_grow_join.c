/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Until rank 0 has heard its hello a joiner tries again and again: the group may not be there yet, may have ended and
 * left its address, or may have had enough joiners. An address that makes no sense, or that somebody else could have
 * written, is an error at once.
 */
#include "group_grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backoff.h"
#include "error.h"
#include "group.h"
#include "group_abort.h"
#include "log.h"

enum { AGAIN_NS = 50 * 1000 * 1000, HEARD_MS = 2000, MOST_RANKS = 1 << 20 };

/* ---- what rank 0 says ---- */

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
 * Rank 0 may say instead that there will be no group, and why; that reason becomes this process's.
 */
static xep_status_t judge(const xep_frame_t *frame, xep_frame_kind_t kind)
{
    if (frame->status < 0)
        return xep_fail(xep_status_told(frame->status, XEP_ERR_PEER), "%s",
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

/* ---- finding the group ---- */

/* Whoever is now at the place of a group that has ended does not have the key, and so what it says is not heard. */
static xep_status_t greet(xep_join_t *join, const xep_address_t *address)
{
    xep_message_t *heard = NULL;
    xep_patience_t patience = xep_join_patience(join, xep_deadline(HEARD_MS));
    xep_status_t status = xep_frames_call(join->config, join->open_transport, address, &join->frames);
    if (status == XEP_OK) status = xep_join_hear(join, XEP_FRAME_HEARD, &patience, &heard);
    free(heard);
    return status;
}

static xep_status_t await_welcome(xep_join_t *join, uint64_t deadline_ns)
{
    xep_message_t *welcome = NULL;
    xep_patience_t patience = xep_join_patience(join, deadline_ns);
    xep_status_t status = xep_join_hear(join, XEP_FRAME_WELCOME, &patience, &welcome);
    if (status == XEP_OK) {
        join->rank = welcome->frame.rank;
        join->nranks = welcome->frame.nranks;
    }
    free(welcome);
    if (status != XEP_OK || (join->rank < join->nranks && join->nranks <= MOST_RANKS)) return status;
    return xep_fail(XEP_ERR_PROTOCOL, "rank 0 gives this process rank %u of %u", join->rank, join->nranks);
}

static void hang_up(xep_join_t *join)
{
    xep_frames_close(join->frames);
    join->frames = NULL;
}

/* XEP_INPROGRESS: not now. Errors that may go with the group that comes next are kept for the deadline. */
static xep_status_t try_once(xep_join_t *join, uint64_t deadline_ns, char *why, size_t bytes)
{
    xep_address_t address;
    xep_status_t status = join->rendezvous->ops->lookup(join->rendezvous, &address);
    if (status == XEP_INPROGRESS) {
        snprintf(why, bytes, "there is no address of a group");
        return status;
    }
    if (status != XEP_OK) return status;
    status = greet(join, &address);
    if (status == XEP_OK) status = await_welcome(join, deadline_ns);
    if (status == XEP_OK || status == XEP_ERR_ABORTED || status == XEP_ERR_MISMATCH) return status;
    snprintf(why, bytes, "%s", xep_last_error());
    hang_up(join);
    return XEP_INPROGRESS;
}

static xep_status_t knock(xep_join_t *join)
{
    const struct timespec again = {.tv_nsec = AGAIN_NS};
    uint64_t deadline_ns = xep_deadline(join->timeout_ms);
    char why[400] = "";
    for (;;) {
        xep_status_t status = try_once(join, deadline_ns, why, sizeof why);
        if (status != XEP_INPROGRESS) return status;
        if ((status = look(join)) != XEP_OK) return status;
        if (xep_clock_ns() >= deadline_ns)
            return xep_fail(XEP_ERR_TIMEOUT, "no group accepted this process in %d ms, by the %s%s%.300s: %s",
                            join->timeout_ms, join->rendezvous->kind, join->rendezvous->name[0] == '\0' ? "" : " ",
                            join->rendezvous->name, why);
        nanosleep(&again, NULL);
    }
}

/* ---- the bootstrap of the new group ---- */

typedef struct join_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_join_t *join;
    uint32_t number; /* of the last allgather */
} join_boot_t;

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

/* Interrupts waits over the new group's own connections: rank 0 sends nothing then, unless it has failed. */
static int interrupted(void *ctx)
{
    const xep_join_t *join = ctx;
    return xep_frames_peek(join->frames, 0) != NULL || xep_frames_is_gone(join->frames, 0) || is_interrupted(join);
}

/* A joiner knows rank 0 alone, of whose death its frames tell; it cannot tell of the others. */
static xep_status_t build(xep_join_t *join, int32_t timeout_ms, xep_group_t **made_p)
{
    join_boot_t *boot = xep_boot_new(sizeof *boot, (xep_boot_t){.name = "grow",
                                                                .allgather = join_allgather,
                                                                .rank = join->rank,
                                                                .nranks = join->nranks,
                                                                .timeout_ms = timeout_ms,
                                                                .interrupted = interrupted,
                                                                .interrupted_ctx = join});
    if (boot == NULL) return XEP_ERR_NO_MEMORY;
    boot->join = join;
    return xep_group_open(join->config, timeout_ms, &boot->boot, join->open_transport, made_p);
}

/* ---- becoming a rank ---- */

/*
 * Rank 0 knows best why there is no group; if it is gone, what this process has come to itself is all there is.
 * *in_doubt_p: it has made the group, and does not know whether others have taken it: rank 0 may have said that there
 * is none because it is in doubt itself, and then have died before it could tell the members.
 */
static xep_status_t settle(xep_join_t *join, xep_status_t built, int *in_doubt_p)
{
    char reason[XEP_REASON_BYTES] = "";
    xep_message_t *verdict = NULL;
    xep_frame_t settled = {.kind = XEP_FRAME_SETTLED, .status = built};
    xep_patience_t patience = xep_join_patience(join, xep_deadline(join->timeout_ms));
    if (built != XEP_OK) snprintf(reason, sizeof reason, "%s", xep_last_error());
    xep_status_t status = xep_frames_send(join->frames, 0, settled, reason, NULL);
    if (status == XEP_OK || xep_frames_peek(join->frames, 0) != NULL)
        status = xep_join_hear(join, XEP_FRAME_VERDICT, &patience, &verdict);
    *in_doubt_p = built == XEP_OK && status != XEP_OK;
    int told = verdict != NULL && verdict->frame.kind == XEP_FRAME_VERDICT;
    free(verdict);
    if (built == XEP_OK || (told && status != XEP_OK)) return status;
    return xep_fail(built, "%s", reason);
}

/* The new group's waits are shorter until it is made, as those of the members. */
static xep_status_t become(xep_join_t *join, xep_group_t **group_p)
{
    xep_group_t *made = NULL;
    int in_doubt = 0;
    int32_t timeout_ms = join->timeout_ms < 0 ? join->timeout_ms : join->timeout_ms / 2 + 1;
    xep_status_t status = settle(join, build(join, timeout_ms, &made), &in_doubt);
    if (status != XEP_OK) {
        char reason[XEP_REASON_BYTES];
        snprintf(reason, sizeof reason, "%s", xep_last_error());
        if (in_doubt) xep_group_end_in_doubt(made);
        xep_group_drop(made);
        (void)xep_fail(status, "%s", reason);
        xep_log_rank(-1);
        return status;
    }
    made->boot->interrupted = join->params->interrupted;
    made->boot->interrupted_ctx = join->params->interrupted_ctx;
    made->timeout_ms = join->timeout_ms;
    *group_p = made;
    return XEP_OK;
}

xep_status_t xep_group_come(const xep_config_t *config, const xep_join_params_t *params,
                            const xep_rendezvous_t *rendezvous, int32_t timeout_ms,
                            xep_transport_open_fn open_transport, xep_group_t **group_p)
{
    xep_join_t join = {.config = config,
                       .params = params,
                       .rendezvous = rendezvous,
                       .open_transport = open_transport,
                       .timeout_ms = timeout_ms};
    xep_status_t status = knock(&join);
    if (status == XEP_OK) status = become(&join, group_p);
    hang_up(&join);
    return status;
}
