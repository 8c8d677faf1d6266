/* SPDX-License-Identifier: BSD-3-Clause */

/* A newcomer has a seat from its hello on until it gives up or is gone, and its rank once all seats are taken. */
#include "newcomers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "log.h"
#include "rest.h"

enum { MORE = 1024 /* so many may come and go again */, LEAVE_MS = 500 /* most time for a last word to arrive */ };

typedef struct seat {
    uint32_t to; /* of frames */
    int32_t pid;
} seat_t;

struct xep_newcomers {
    xep_meeting_t meeting;
    uint32_t nranks; /* of the group that grows */
    int published, told;
    xep_address_t address;
    xep_frames_t *frames;
    uint32_t wanted, count;
    seat_t seats[]; /* [wanted], of which the first count are taken */
};

/* ---- where ---- */

static xep_status_t publish(xep_newcomers_t *newcomers)
{
    newcomers->published = 1;
    return newcomers->meeting.ops->publish(&newcomers->meeting, &newcomers->address);
}

static void unpublish(xep_newcomers_t *newcomers)
{
    if (!newcomers->published) return;
    newcomers->published = 0;
    newcomers->meeting.ops->unpublish(&newcomers->meeting, &newcomers->address);
}

/* A group of one host lets in only processes of that host, unless args say otherwise. */
static int is_everywhere(const xep_group_t *group, const xep_grow_args_t *args)
{
    int apart = (args->flags & XEP_GROW_ANYWHERE) != 0;
    for (uint32_t r = 0; r < group->nranks; r++) apart |= group->peers[r].host != group->peers[group->rank].host;
    return apart;
}

xep_status_t xep_newcomers_open(const xep_group_t *group, const xep_grow_args_t *args, const xep_meeting_t *meeting,
                                xep_transport_open_fn open_transport, xep_newcomers_t **newcomers_p)
{
    uint32_t wanted = args->newcomers;
    xep_newcomers_t *newcomers = calloc(1, sizeof *newcomers + wanted * sizeof newcomers->seats[0]);
    if (newcomers == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u newcomers", wanted);
    newcomers->meeting = *meeting;
    newcomers->nranks = group->nranks;
    newcomers->wanted = wanted;
    xep_status_t status = xep_frames_open(&group->config, open_transport, is_everywhere(group, args), wanted + MORE,
                                          &newcomers->address, &newcomers->frames);
    if (status == XEP_OK) status = publish(newcomers);
    if (status == XEP_OK) *newcomers_p = newcomers;
    else xep_newcomers_close(newcomers);
    return status;
}

/*
 * A connection that closes with unread bytes drops what it has not sent: so after the verdict, its last word, rank 0
 * waits until the others have closed theirs.
 */
static void part(xep_newcomers_t *newcomers)
{
    xep_rest_t rest;
    xep_rest_begin(&rest, XEP_REST_RARE, xep_deadline(LEAVE_MS));
    for (uint32_t i = 0, is_time = 1; i < newcomers->count && is_time;) {
        (void)xep_frames_peek(newcomers->frames, newcomers->seats[i].to);
        if (xep_frames_is_gone(newcomers->frames, newcomers->seats[i].to)) i++;
        else is_time = (uint32_t)xep_rest_round(&rest, 0);
    }
}

void xep_newcomers_close(xep_newcomers_t *newcomers)
{
    if (newcomers == NULL) return;
    unpublish(newcomers);
    if (newcomers->told) part(newcomers);
    xep_frames_close(newcomers->frames);
    free(newcomers);
}

/* ---- who ---- */

/* A newcomer with a useless address is ignored. */
static void seat(xep_newcomers_t *newcomers, const xep_message_t *hello)
{
    seat_t *next = &newcomers->seats[newcomers->count];
    xep_status_t status = xep_frames_admit(newcomers->frames, hello, &next->to);
    if (status == XEP_OK)
        status = xep_frames_send(newcomers->frames, next->to, (xep_frame_t){.kind = XEP_FRAME_HEARD}, NULL, NULL);
    if (status != XEP_OK) {
        xep_log(XEP_LOG_WARN, "a newcomer was not let in: %s", xep_last_error());
        return;
    }
    next->pid = hello->frame.pid;
    newcomers->count++;
}

/* They say nothing until they are welcome: any message means that one has given up. */
static void drop_gone(xep_newcomers_t *newcomers)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < newcomers->count; i++) {
        const seat_t one = newcomers->seats[i];
        if (xep_frames_peek(newcomers->frames, one.to) == NULL && !xep_frames_is_gone(newcomers->frames, one.to))
            newcomers->seats[kept++] = one;
    }
    newcomers->count = kept;
}

uint32_t xep_newcomers_look(xep_newcomers_t *newcomers)
{
    xep_message_t *hello;
    drop_gone(newcomers);
    while (newcomers->count < newcomers->wanted && (hello = xep_frames_hello(newcomers->frames)) != NULL) {
        seat(newcomers, hello);
        free(hello);
    }
    return newcomers->count;
}

/* ---- what they say and hear ---- */

/* Names a newcomer by its process, as it has no rank yet, and by the rank that it would have had. */
static xep_status_t blame(const xep_newcomers_t *newcomers, uint32_t i, xep_status_t status, const char *text)
{
    char reason[XEP_REASON_BYTES];
    snprintf(reason, sizeof reason, "%.600s", text);
    return xep_fail(status, "process %d, which was to be rank %u: %s", newcomers->seats[i].pid, newcomers->nranks + i,
                    reason);
}

static xep_status_t say(xep_newcomers_t *newcomers, uint32_t i, xep_frame_t frame, const char *text, const void *data)
{
    xep_status_t status = xep_frames_send(newcomers->frames, newcomers->seats[i].to, frame, text, data);
    return status == XEP_OK ? XEP_OK : blame(newcomers, i, status, xep_last_error());
}

/* Later newcomers find no address in place of a full group. */
xep_status_t xep_newcomers_welcome(xep_newcomers_t *newcomers)
{
    xep_status_t status = XEP_OK;
    unpublish(newcomers);
    for (uint32_t i = 0; status == XEP_OK && i < newcomers->count; i++) {
        xep_frame_t frame = {.kind = XEP_FRAME_WELCOME,
                             .rank = newcomers->nranks + i,
                             .nranks = newcomers->nranks + newcomers->count};
        status = say(newcomers, i, frame, NULL, NULL);
    }
    return status;
}

/* The next frame of one of them, which may be that it has given up. */
static xep_status_t hear(xep_newcomers_t *newcomers, uint32_t i, xep_frame_kind_t kind, const xep_patience_t *patience,
                         xep_message_t **message_p)
{
    xep_message_t *message;
    xep_status_t status = xep_frames_recv(newcomers->frames, newcomers->seats[i].to, patience, &message);
    if (status != XEP_OK) return blame(newcomers, i, status, xep_last_error());
    const xep_frame_t *frame = &message->frame;
    if (frame->kind == XEP_FRAME_SETTLED && frame->status < 0) {
        status = frame->status >= XEP_ERR_BROKEN ? (xep_status_t)frame->status : XEP_ERR_PEER;
        status = blame(newcomers, i, status, frame->text);
    } else if (frame->kind != kind) {
        status = blame(newcomers, i, XEP_ERR_PROTOCOL, "it sent an unexpected message");
    }
    if (status == XEP_OK) *message_p = message;
    else free(message);
    return status;
}

/* One newcomer after the other: their frames wait here, so the order costs nothing. */
xep_status_t xep_newcomers_take(xep_newcomers_t *newcomers, uint32_t number, void *recv, size_t bytes,
                                const xep_patience_t *patience)
{
    for (uint32_t i = 0; i < newcomers->count; i++) {
        xep_message_t *message = NULL;
        xep_status_t status = hear(newcomers, i, XEP_FRAME_GIVE, patience, &message);
        if (status != XEP_OK) return status;
        if (message->frame.exchange != number || message->frame.bytes != bytes)
            status = blame(newcomers, i, XEP_ERR_MISMATCH, "it gives other bytes to the exchange than the group");
        else memcpy((char *)recv + i * bytes, message->data, bytes);
        free(message);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

xep_status_t xep_newcomers_give(xep_newcomers_t *newcomers, uint32_t number, const void *all, size_t bytes)
{
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; status == XEP_OK && i < newcomers->count; i++)
        status = say(newcomers, i, (xep_frame_t){.kind = XEP_FRAME_ALL, .exchange = number, .bytes = bytes}, NULL, all);
    return status;
}

xep_status_t xep_newcomers_settle(xep_newcomers_t *newcomers, const xep_patience_t *patience)
{
    for (uint32_t i = 0; i < newcomers->count; i++) {
        xep_message_t *message = NULL;
        xep_status_t status = hear(newcomers, i, XEP_FRAME_SETTLED, patience, &message);
        if (status != XEP_OK) return status;
        free(message);
    }
    return XEP_OK;
}

/* One may be ahead and have made the group already. */
int xep_newcomers_have_failed(const xep_newcomers_t *newcomers)
{
    for (uint32_t i = 0; i < newcomers->count; i++) {
        const xep_message_t *message = xep_frames_peek(newcomers->frames, newcomers->seats[i].to);
        if (message == NULL ? xep_frames_is_gone(newcomers->frames, newcomers->seats[i].to) : message->frame.status < 0)
            return 1;
    }
    return 0;
}

void xep_newcomers_tell(xep_newcomers_t *newcomers, xep_status_t status, const char *text)
{
    newcomers->told = 1;
    for (uint32_t i = 0; i < newcomers->count; i++)
        (void)say(newcomers, i, (xep_frame_t){.kind = XEP_FRAME_VERDICT, .status = status}, text, NULL);
}
