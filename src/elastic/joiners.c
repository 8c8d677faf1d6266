/* SPDX-License-Identifier: BSD-3-Clause */

/* A joiner has a seat from its hello on until it gives up or is gone, and its rank once all seats are taken. */
#include "joiners.h"

#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "log.h"

enum { MORE = 1024 /* so many may come and go again */, LEAVE_MS = 500 /* most time for a last word to arrive */ };

typedef struct seat {
    uint32_t to; /* of frames */
    int32_t pid;
} seat_t;

struct xep_joiners {
    xep_rendezvous_t rendezvous;
    uint32_t nranks; /* of the group that grows */
    int published, told;
    xep_address_t address;
    xep_frames_t *frames;
    uint32_t wanted, count;
    seat_t seats[]; /* [wanted], of which the first count are taken */
};

/* ---- where ---- */

static xep_status_t publish(xep_joiners_t *joiners)
{
    joiners->published = 1;
    return joiners->rendezvous.ops->publish(&joiners->rendezvous, &joiners->address);
}

static void unpublish(xep_joiners_t *joiners)
{
    if (!joiners->published) return;
    joiners->published = 0;
    joiners->rendezvous.ops->unpublish(&joiners->rendezvous, &joiners->address);
}

/* A group of one host lets in only processes of that host, unless args say otherwise. */
static int is_everywhere(const xep_group_t *group, const xep_grow_args_t *args)
{
    int apart = (args->flags & XEP_GROW_ANYWHERE) != 0;
    for (uint32_t r = 0; r < group->nranks; r++) apart |= group->peers[r].host != group->peers[group->rank].host;
    return apart;
}

xep_status_t xep_joiners_open(const xep_group_t *group, const xep_grow_args_t *args, const xep_rendezvous_t *rendezvous,
                              xep_transport_open_fn open_transport, xep_joiners_t **joiners_p)
{
    uint32_t wanted = args->joiners;
    xep_joiners_t *joiners = calloc(1, sizeof *joiners + wanted * sizeof joiners->seats[0]);
    if (joiners == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u joiners", wanted);
    joiners->rendezvous = *rendezvous;
    joiners->nranks = group->nranks;
    joiners->wanted = wanted;
    xep_status_t status = xep_frames_open(&group->config, open_transport, is_everywhere(group, args), wanted + MORE,
                                          &joiners->address, &joiners->frames);
    if (status == XEP_OK) status = publish(joiners);
    if (status == XEP_OK) *joiners_p = joiners;
    else xep_joiners_close(joiners);
    return status;
}

/*
 * A connection that closes with unread bytes drops what it has not sent: so after the verdict, its last word, rank 0
 * waits until the others have closed theirs.
 */
static void part(xep_joiners_t *joiners)
{
    xep_backoff_t backoff;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, xep_deadline(LEAVE_MS));
    for (uint32_t i = 0, is_time = 1; i < joiners->count && is_time;) {
        (void)xep_frames_peek(joiners->frames, joiners->seats[i].to);
        if (xep_frames_is_gone(joiners->frames, joiners->seats[i].to)) i++;
        else is_time = (uint32_t)xep_backoff_wait(&backoff, 0);
    }
}

void xep_joiners_close(xep_joiners_t *joiners)
{
    if (joiners == NULL) return;
    unpublish(joiners);
    if (joiners->told) part(joiners);
    xep_frames_close(joiners->frames);
    free(joiners);
}

/* ---- who ---- */

/* A joiner with a useless address is ignored. */
static void seat(xep_joiners_t *joiners, const xep_message_t *hello)
{
    seat_t *next = &joiners->seats[joiners->count];
    xep_status_t status = xep_frames_admit(joiners->frames, hello, &next->to);
    if (status == XEP_OK)
        status = xep_frames_send(joiners->frames, next->to, (xep_frame_t){.kind = XEP_FRAME_HEARD}, NULL, NULL);
    if (status != XEP_OK) {
        xep_log(XEP_LOG_WARN, "a joiner was not let in: %s", xep_last_error());
        return;
    }
    next->pid = hello->frame.pid;
    joiners->count++;
}

/* They say nothing until they are welcome: any message means that one has given up. */
static void drop_gone(xep_joiners_t *joiners)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < joiners->count; i++) {
        const seat_t one = joiners->seats[i];
        if (xep_frames_peek(joiners->frames, one.to) == NULL && !xep_frames_is_gone(joiners->frames, one.to))
            joiners->seats[kept++] = one;
    }
    joiners->count = kept;
}

uint32_t xep_joiners_poll(xep_joiners_t *joiners)
{
    xep_message_t *hello;
    drop_gone(joiners);
    while (joiners->count < joiners->wanted && (hello = xep_frames_hello(joiners->frames)) != NULL) {
        seat(joiners, hello);
        free(hello);
    }
    return joiners->count;
}

/* ---- what they say and hear ---- */

/* Names a joiner by its process, as it has no rank yet, and by the rank that it would have had. */
static xep_status_t blame(const xep_joiners_t *joiners, uint32_t i, xep_status_t status, const char *text)
{
    return xep_fail(status, "process %d, which was to be rank %u: %.600s", joiners->seats[i].pid, joiners->nranks + i,
                    text);
}

static xep_status_t say(xep_joiners_t *joiners, uint32_t i, xep_frame_t frame, const char *text, const void *data)
{
    xep_status_t status = xep_frames_send(joiners->frames, joiners->seats[i].to, frame, text, data);
    return status == XEP_OK ? XEP_OK : blame(joiners, i, status, xep_last_error());
}

/* Later joiners find no address in place of a full group. */
xep_status_t xep_joiners_welcome(xep_joiners_t *joiners)
{
    xep_status_t status = XEP_OK;
    unpublish(joiners);
    for (uint32_t i = 0; status == XEP_OK && i < joiners->count; i++) {
        xep_frame_t frame = {.kind = XEP_FRAME_WELCOME,
                             .rank = joiners->nranks + i,
                             .nranks = joiners->nranks + joiners->count};
        status = say(joiners, i, frame, NULL, NULL);
    }
    return status;
}

/* The next frame of one of them, which may be that it has given up. */
static xep_status_t hear(xep_joiners_t *joiners, uint32_t i, xep_frame_kind_t kind, const xep_patience_t *patience,
                         xep_message_t **message_p)
{
    xep_message_t *message;
    xep_status_t status = xep_frames_recv(joiners->frames, joiners->seats[i].to, patience, &message);
    if (status != XEP_OK) return blame(joiners, i, status, xep_last_error());
    const xep_frame_t *frame = &message->frame;
    if (frame->kind == XEP_FRAME_SETTLED && frame->status < 0) {
        status = blame(joiners, i, xep_status_told(frame->status, XEP_ERR_PEER), frame->text);
    } else if (frame->kind != kind) {
        status = blame(joiners, i, XEP_ERR_PROTOCOL, "it sent an unexpected message");
    }
    if (status == XEP_OK) *message_p = message;
    else free(message);
    return status;
}

/* One joiner after the other: their frames wait here, so the order costs nothing. */
xep_status_t xep_joiners_take(xep_joiners_t *joiners, uint32_t number, void *recv, size_t bytes,
                              const xep_patience_t *patience)
{
    for (uint32_t i = 0; i < joiners->count; i++) {
        xep_message_t *message = NULL;
        xep_status_t status = hear(joiners, i, XEP_FRAME_GIVE, patience, &message);
        if (status != XEP_OK) return status;
        if (message->frame.exchange != number || message->frame.bytes != bytes)
            status = blame(joiners, i, XEP_ERR_MISMATCH, "it gives other bytes to the exchange than the group");
        else memcpy((char *)recv + i * bytes, message->data, bytes);
        free(message);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

xep_status_t xep_joiners_give(xep_joiners_t *joiners, uint32_t number, const void *all, size_t bytes)
{
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; status == XEP_OK && i < joiners->count; i++)
        status = say(joiners, i, (xep_frame_t){.kind = XEP_FRAME_ALL, .exchange = number, .bytes = bytes}, NULL, all);
    return status;
}

xep_status_t xep_joiners_settle(xep_joiners_t *joiners, const xep_patience_t *patience)
{
    for (uint32_t i = 0; i < joiners->count; i++) {
        xep_message_t *message = NULL;
        xep_status_t status = hear(joiners, i, XEP_FRAME_SETTLED, patience, &message);
        if (status != XEP_OK) return status;
        free(message);
    }
    return XEP_OK;
}

/* One may be ahead and have made the group already. */
int xep_joiners_have_failed(const xep_joiners_t *joiners)
{
    for (uint32_t i = 0; i < joiners->count; i++) {
        const xep_message_t *message = xep_frames_peek(joiners->frames, joiners->seats[i].to);
        if (message == NULL ? xep_frames_is_gone(joiners->frames, joiners->seats[i].to) : message->frame.status < 0)
            return 1;
    }
    return 0;
}

void xep_joiners_tell(xep_joiners_t *joiners, xep_status_t status, const char *text)
{
    joiners->told = 1;
    for (uint32_t i = 0; i < joiners->count; i++)
        (void)say(joiners, i, (xep_frame_t){.kind = XEP_FRAME_VERDICT, .status = status}, text, NULL);
}
