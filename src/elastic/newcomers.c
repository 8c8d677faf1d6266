/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Anybody may connect, so a connection is nobody until its hello is here and right. It may come in pieces: nobody is
 * waited for until all are let in.
 */
#include "newcomers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu.h"
#include "error.h"
#include "log.h"

/* So many strangers at a time: more wait in the queue of the socket and cost this process nothing. */
enum { DOOR = 16, SHY_NS = 2000 * 1000 * 1000 /* most time for a hello */ };

/* What a newcomer sends first; it comes in pieces. */
typedef struct opening {
    xep_frame_t frame;
    xep_hello_t hello;
} opening_t;
_Static_assert(sizeof(opening_t) == sizeof(xep_frame_t) + sizeof(xep_hello_t), "no padding");

typedef struct guest {
    int stream; /* -1: none */
    size_t got;
    uint64_t since_ns;
    opening_t opening;
} guest_t;

struct xep_newcomers {
    xep_meeting_t meeting;
    uint32_t nranks; /* of the group that grows */
    int listener;    /* -1: nobody is let in any more */
    int published;
    xep_address_t address;
    uint32_t wanted, count;
    guest_t door[DOOR]; /* who has not said who it is */
    guest_t seats[];    /* [wanted], of which the first count are taken */
};

static xep_status_t no_patience(void *arg)
{
    (void)arg;
    return XEP_OK;
}

/* A frame of a few hundred bytes fits into any socket: it is sent now or not at all. */
static const xep_patience_t now = {.look = no_patience};

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

/* A group of one host lets in who is on it, unless args say otherwise. */
static int is_everywhere(const xep_group_t *group, const xep_grow_args_t *args)
{
    int apart = (args->flags & XEP_GROW_ANYWHERE) != 0;
    for (uint32_t r = 0; r < group->nranks; r++) apart |= group->peers[r].host != group->peers[group->rank].host;
    return apart;
}

xep_status_t xep_newcomers_open(const xep_group_t *group, const xep_grow_args_t *args, const xep_meeting_t *meeting,
                                xep_newcomers_t **newcomers_p)
{
    uint32_t wanted = args->newcomers;
    xep_newcomers_t *newcomers = calloc(1, sizeof *newcomers + wanted * sizeof newcomers->seats[0]);
    if (newcomers == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u newcomers", wanted);
    newcomers->meeting = *meeting;
    newcomers->nranks = group->nranks;
    newcomers->listener = -1;
    newcomers->wanted = wanted;
    for (int i = 0; i < DOOR; i++) newcomers->door[i].stream = -1;
    xep_status_t status = xep_address_open(&newcomers->address);
    if (status == XEP_OK)
        status = xep_stream_listen(is_everywhere(group, args), &newcomers->address, &newcomers->listener);
    xep_address_seal(&newcomers->address);
    if (status == XEP_OK) status = publish(newcomers);
    if (status == XEP_OK) *newcomers_p = newcomers;
    else xep_newcomers_close(newcomers);
    return status;
}

/* May be called twice. */
static void leave(guest_t *guest)
{
    if (guest->stream >= 0) close(guest->stream);
    guest->stream = -1;
}

/* Also takes back what was published: whoever comes later finds nobody instead of a group that is full. */
static void close_door(xep_newcomers_t *newcomers)
{
    for (int i = 0; i < DOOR; i++) leave(&newcomers->door[i]);
    if (newcomers->listener >= 0) close(newcomers->listener);
    newcomers->listener = -1;
    unpublish(newcomers);
}

void xep_newcomers_close(xep_newcomers_t *newcomers)
{
    if (newcomers == NULL) return;
    close_door(newcomers);
    for (uint32_t i = 0; i < newcomers->count; i++) leave(&newcomers->seats[i]);
    free(newcomers);
}

/* ---- who ---- */

/* The first half is what the newcomer read in the address; it gets the second half back, so that it knows, too, with
 * whom it speaks. */
static int has_key(const xep_newcomers_t *newcomers, const opening_t *opening)
{
    return opening->frame.kind == XEP_FRAME_HELLO && opening->frame.bytes == sizeof opening->hello &&
           memcmp(opening->hello.key, newcomers->address.key, sizeof opening->hello.key) == 0;
}

/* Reads on; 1: the hello is complete, -1: it is gone, or has taken too long. */
static int listen_to(guest_t *guest)
{
    while (guest->got < sizeof guest->opening) {
        ssize_t done = read(guest->stream, (char *)&guest->opening + guest->got, sizeof guest->opening - guest->got);
        if (done > 0) guest->got += (size_t)done;
        else if (done == 0 || (errno != EAGAIN && errno != EINTR)) return -1;
        else return xep_clock_ns() - guest->since_ns > SHY_NS ? -1 : 0;
    }
    return 1;
}

/* One with the key and another version is told; a process without the key is nobody. */
static xep_status_t answer(const xep_newcomers_t *newcomers, const guest_t *guest)
{
    char text[XEP_FRAME_TEXT] = "";
    xep_frame_t frame = {.kind = XEP_FRAME_HEARD};
    uint32_t version = guest->opening.hello.version;
    if (!has_key(newcomers, &guest->opening)) {
        xep_log(XEP_LOG_INFO, "a connection without the key of this group was closed");
        return XEP_ERR_PROTOCOL;
    }
    if (version == xep_address_version()) {
        frame.bytes = XEP_ADDRESS_KEY / 2;
        return xep_stream_send(guest->stream, frame, "", newcomers->address.key + XEP_ADDRESS_KEY / 2, &now);
    }
    frame.status = XEP_ERR_MISMATCH;
    snprintf(text, sizeof text, "this process has another version of xep than the group: %x, %x", version,
             xep_address_version());
    xep_log(XEP_LOG_WARN, "process %d wants to join with another version of xep: %x (%x)", guest->opening.hello.pid,
            version, xep_address_version());
    (void)xep_stream_send(guest->stream, frame, text, NULL, &now);
    return XEP_ERR_MISMATCH;
}

/* A seat is taken only once the answer is sent: whoever hears "heard" is among those that the group will welcome. */
static void seat(xep_newcomers_t *newcomers, guest_t *guest)
{
    if (answer(newcomers, guest) == XEP_OK) {
        newcomers->seats[newcomers->count++] = *guest;
        guest->stream = -1;
    }
    leave(guest);
}

/* They say nothing until they are welcome: news are that one is gone. */
static void drop_gone(xep_newcomers_t *newcomers)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < newcomers->count; i++) {
        guest_t *guest = &newcomers->seats[i];
        xep_frame_t frame;
        if (xep_stream_peek(guest->stream, &frame) != 0) leave(guest);
        else newcomers->seats[kept++] = *guest;
    }
    newcomers->count = kept;
}

uint32_t xep_newcomers_look(xep_newcomers_t *newcomers)
{
    drop_gone(newcomers);
    for (int i = 0; i < DOOR && newcomers->count < newcomers->wanted; i++) {
        guest_t *guest = &newcomers->door[i];
        if (guest->stream < 0)
            *guest = (guest_t){.stream = xep_stream_accept(newcomers->listener), .since_ns = xep_clock_ns()};
        if (guest->stream < 0) continue;
        int is_here = listen_to(guest);
        if (is_here > 0) seat(newcomers, guest);
        else if (is_here < 0) leave(guest);
    }
    return newcomers->count;
}

/* ---- what they say and hear ---- */

/* Names a newcomer by its process, as it has no rank yet, and by the rank that it would have had. */
static xep_status_t blame(const xep_newcomers_t *newcomers, uint32_t i, xep_status_t status, const char *text)
{
    char reason[XEP_REASON_BYTES];
    snprintf(reason, sizeof reason, "%.600s", text);
    return xep_fail(status, "process %d, which was to be rank %u: %s", newcomers->seats[i].opening.hello.pid,
                    newcomers->nranks + i, reason);
}

xep_status_t xep_newcomers_welcome(xep_newcomers_t *newcomers, const xep_patience_t *patience)
{
    close_door(newcomers);
    for (uint32_t i = 0; i < newcomers->count; i++) {
        xep_frame_t frame = {.kind = XEP_FRAME_WELCOME,
                             .rank = newcomers->nranks + i,
                             .nranks = newcomers->nranks + newcomers->count};
        xep_status_t status = xep_stream_send(newcomers->seats[i].stream, frame, "", NULL, patience);
        if (status != XEP_OK) return blame(newcomers, i, status, xep_last_error());
    }
    return XEP_OK;
}

/* The next frame of one of them, which may be that it has given up. */
static xep_status_t hear(xep_newcomers_t *newcomers, uint32_t i, xep_frame_kind_t kind, xep_frame_t *frame,
                         const xep_patience_t *patience)
{
    xep_status_t status = xep_stream_recv_frame(newcomers->seats[i].stream, frame, patience);
    if (status != XEP_OK) return blame(newcomers, i, status, xep_last_error());
    if (frame->kind == XEP_FRAME_SETTLED && frame->status < 0) {
        status = frame->status >= XEP_ERR_BROKEN ? (xep_status_t)frame->status : XEP_ERR_PEER;
        return blame(newcomers, i, status, frame->text);
    }
    if (frame->kind == kind) return XEP_OK;
    return blame(newcomers, i, XEP_ERR_PROTOCOL, "it sent an unexpected message");
}

/* One newcomer after the other: their bytes wait in their sockets, so the order costs nothing. */
xep_status_t xep_newcomers_take(xep_newcomers_t *newcomers, uint32_t number, void *recv, size_t bytes,
                                const xep_patience_t *patience)
{
    for (uint32_t i = 0; i < newcomers->count; i++) {
        xep_frame_t frame;
        xep_status_t status = hear(newcomers, i, XEP_FRAME_GIVE, &frame, patience);
        if (status != XEP_OK) return status;
        if (frame.number != number || frame.bytes != bytes)
            return blame(newcomers, i, XEP_ERR_MISMATCH, "it gives other bytes to the exchange than the group");
        status = xep_stream_recv(newcomers->seats[i].stream, (char *)recv + i * bytes, bytes, patience);
        if (status != XEP_OK) return blame(newcomers, i, status, xep_last_error());
    }
    return XEP_OK;
}

xep_status_t xep_newcomers_give(xep_newcomers_t *newcomers, uint32_t number, const void *all, size_t bytes,
                                const xep_patience_t *patience)
{
    for (uint32_t i = 0; i < newcomers->count; i++) {
        xep_frame_t frame = {.kind = XEP_FRAME_ALL, .number = number, .bytes = bytes};
        xep_status_t status = xep_stream_send(newcomers->seats[i].stream, frame, "", all, patience);
        if (status != XEP_OK) return blame(newcomers, i, status, xep_last_error());
    }
    return XEP_OK;
}

xep_status_t xep_newcomers_settle(xep_newcomers_t *newcomers, const xep_patience_t *patience)
{
    for (uint32_t i = 0; i < newcomers->count; i++) {
        xep_frame_t frame;
        xep_status_t status = hear(newcomers, i, XEP_FRAME_SETTLED, &frame, patience);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

/* One may be ahead and have made the group already. */
int xep_newcomers_have_failed(const xep_newcomers_t *newcomers)
{
    for (uint32_t i = 0; i < newcomers->count; i++) {
        xep_frame_t frame;
        int is_here = xep_stream_peek(newcomers->seats[i].stream, &frame);
        if (is_here < 0 || (is_here > 0 && frame.status < 0)) return 1;
    }
    return 0;
}

void xep_newcomers_tell(xep_newcomers_t *newcomers, xep_status_t status, const char *text)
{
    xep_frame_t frame = {.kind = XEP_FRAME_VERDICT, .status = status};
    for (uint32_t i = 0; i < newcomers->count; i++)
        (void)xep_stream_send(newcomers->seats[i].stream, frame, text, NULL, &now);
}
