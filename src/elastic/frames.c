/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Any process that reaches this one may send to its transport, so messages without the key are dropped as they arrive.
 */
#include "frames.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "backoff.h"
#include "error.h"
#include "host.h"
#include "log.h"

enum { MOST_HELD = 4096 /* messages: xep never needs so many */ };

/* Who is at the other side. */
typedef struct other {
    uint64_t joiner;
    uint8_t *address; /* of its transport, which reads it */
} other_t;

struct xep_frames {
    xep_transport_t *transport;
    uint8_t shows[XEP_ADDRESS_HALF], expects[XEP_ADDRESS_HALF];
    xep_message_t *held; /* in the order in which they came */
    uint32_t most, count;
    other_t others[]; /* [most], of which count are there */
};

/* ---- what arrives ---- */

static void hold(xep_frames_t *frames, const xep_frame_t *frame, const void *data)
{
    uint32_t count = 0;
    xep_message_t **end = &frames->held;
    for (; *end != NULL; end = &(*end)->next) count++;
    xep_message_t *message = count == MOST_HELD ? NULL : malloc(sizeof *message + frame->bytes);
    if (message == NULL) return;
    *message = (xep_message_t){.frame = *frame};
    message->frame.text[XEP_FRAME_TEXT - 1] = '\0';
    memcpy(message->data, data, frame->bytes);
    *end = message;
}

/* Inside the transport. from means nothing. */
static void arrived(void *arg, uint32_t from, const void *data, size_t bytes)
{
    xep_frames_t *frames = arg;
    xep_frame_t frame;
    (void)from;
    if (bytes >= sizeof frame) memcpy(&frame, data, sizeof frame);
    if (bytes < sizeof frame || memcmp(frame.key, frames->expects, sizeof frame.key) != 0)
        xep_log(XEP_LOG_INFO, "a message without the key of this group was dropped: %zu bytes", bytes);
    else if (frame.bytes != bytes - sizeof frame || frame.kind < XEP_FRAME_HELLO || frame.kind > XEP_FRAME_VERDICT)
        xep_log(XEP_LOG_WARN, "invalid frame was dropped: kind %u (%d to %d), %zu bytes", frame.kind, XEP_FRAME_HELLO,
                XEP_FRAME_VERDICT, bytes);
    else hold(frames, &frame, (const char *)data + sizeof frame);
}

static void look(xep_frames_t *frames)
{
    (void)frames->transport->ops->progress(frames->transport);
}

static xep_message_t *take(xep_message_t **link)
{
    xep_message_t *message = *link;
    if (message != NULL) *link = message->next;
    return message;
}

static xep_message_t **find(xep_frames_t *frames, uint32_t from)
{
    xep_message_t **link = &frames->held;
    look(frames);
    while (*link != NULL && (*link)->frame.joiner != frames->others[from].joiner) link = &(*link)->next;
    return link;
}

/* ---- opening ---- */

/* keys: what this side shows and what it expects; before anything can come. */
static xep_status_t open_frames(const xep_config_t *config, xep_transport_open_fn open_transport,
                                const xep_whereabouts_t *where, const uint8_t *const keys[2], uint32_t most,
                                xep_frames_t **frames_p)
{
    xep_frames_t *frames = calloc(1, sizeof *frames + most * sizeof frames->others[0]);
    if (frames == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u joiners", most);
    xep_status_t status = open_transport(config, &frames->transport);
    if (status != XEP_OK) {
        free(frames);
        return status;
    }
    memcpy(frames->shows, keys[0], XEP_ADDRESS_HALF);
    memcpy(frames->expects, keys[1], XEP_ADDRESS_HALF);
    frames->most = most;
    frames->transport->on_ctl = arrived;
    frames->transport->on_ctl_arg = frames;
    status = frames->transport->ops->meet(frames->transport, where, most);
    if (status == XEP_OK) *frames_p = frames;
    else xep_frames_close(frames);
    return status;
}

void xep_frames_close(xep_frames_t *frames)
{
    if (frames == NULL) return;
    frames->transport->ops->close(frames->transport);
    while (frames->held != NULL) free(take(&frames->held));
    for (uint32_t i = 0; i < frames->count; i++) free(frames->others[i].address);
    free(frames);
}

xep_status_t xep_frames_open(const xep_config_t *config, xep_transport_open_fn open_transport, int everywhere,
                             uint32_t most, xep_address_t *address, xep_frames_t **frames_p)
{
    xep_frames_t *frames = NULL;
    xep_whereabouts_t where = {.nranks = 1, .local = !everywhere};
    xep_status_t status = xep_address_open(address);
    const uint8_t *const keys[] = {address->own_key, address->joiners_key};
    if (status == XEP_OK) status = open_frames(config, open_transport, &where, keys, most, &frames);
    if (status != XEP_OK) return status;
    address->local = (uint32_t)where.local;
    address->network = xep_host_network();
    xep_interfaces_list(address->interfaces);
    status = xep_address_seal(address, frames->transport->address, frames->transport->address_bytes);
    if (status == XEP_OK) *frames_p = frames;
    else xep_frames_close(frames);
    return status;
}

/* ---- the other side ---- */

static xep_status_t admit(xep_frames_t *frames, uint64_t joiner, const uint8_t *address, size_t bytes)
{
    if (frames->count == frames->most)
        return xep_fail(XEP_ERR_PEER, "too many of the %u joiners that came have left", frames->most);
    other_t *other = &frames->others[frames->count];
    *other = (other_t){.joiner = joiner, .address = malloc(bytes)};
    if (other->address == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for an address of %zu bytes", bytes);
    memcpy(other->address, address, bytes);
    return frames->transport->ops->admit(frames->transport, frames->count++, other->address, bytes);
}

/* An address of this host that the other host, in another network, has, too, belongs to a bridge: it leads nowhere. */
static xep_whereabouts_t find_way(const xep_address_t *address)
{
    xep_whereabouts_t where = {.nranks = 2, .local = address->local != 0};
    uint32_t own[XEP_INTERFACES];
    xep_interfaces_list(own);
    for (int i = 0; address->network != xep_host_network() && i < XEP_INTERFACES && own[i] != 0; i++)
        if (xep_interfaces_have(address->interfaces, own[i]))
            where.twins[where.ntwins++] = (xep_twin_t){.address = own[i]};
    return where;
}

xep_status_t xep_frames_call(const xep_config_t *config, xep_transport_open_fn open_transport,
                             const xep_address_t *address, xep_frames_t **frames_p)
{
    xep_frames_t *frames = NULL;
    uint64_t joiner;
    xep_whereabouts_t where = find_way(address);
    if (getrandom(&joiner, sizeof joiner, 0) != sizeof joiner)
        return xep_fail(XEP_ERR_BOOT, "no random numbers for a joiner");
    const uint8_t *const keys[] = {address->joiners_key, address->own_key};
    xep_status_t status = open_frames(config, open_transport, &where, keys, 1, &frames);
    if (status != XEP_OK) return status;
    xep_frame_t hello = {.kind = XEP_FRAME_HELLO, .pid = (int32_t)getpid(), .bytes = frames->transport->address_bytes};
    status = admit(frames, joiner, address->transport, address->bytes);
    if (status == XEP_OK) status = xep_frames_send(frames, 0, hello, NULL, frames->transport->address);
    if (status == XEP_OK) *frames_p = frames;
    else xep_frames_close(frames);
    return status;
}

xep_message_t *xep_frames_hello(xep_frames_t *frames)
{
    xep_message_t **link = &frames->held;
    look(frames);
    while (*link != NULL && (*link)->frame.kind != XEP_FRAME_HELLO) link = &(*link)->next;
    return take(link);
}

xep_status_t xep_frames_admit(xep_frames_t *frames, const xep_message_t *hello, uint32_t *to_p)
{
    xep_status_t status = admit(frames, hello->frame.joiner, hello->data, hello->frame.bytes);
    if (status == XEP_OK) *to_p = frames->count - 1;
    return status;
}

int xep_frames_is_gone(xep_frames_t *frames, uint32_t from)
{
    char why[XEP_FRAME_TEXT];
    if (!frames->transport->ops->is_gone(frames->transport, from, why, sizeof why)) return 0;
    (void)xep_fail(XEP_ERR_PEER, "the connection is gone: %s", why);
    return 1;
}

/* ---- frames ---- */

xep_status_t xep_frames_send(xep_frames_t *frames, uint32_t to, xep_frame_t frame, const char *text, const void *data)
{
    char *message = malloc(sizeof frame + frame.bytes);
    if (message == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a frame of %zu bytes", (size_t)frame.bytes);
    memcpy(frame.key, frames->shows, sizeof frame.key);
    frame.joiner = frames->others[to].joiner;
    snprintf(frame.text, sizeof frame.text, "%.*s", XEP_FRAME_TEXT - 1, text == NULL ? "" : text);
    memcpy(message, &frame, sizeof frame);
    if (frame.bytes != 0) memcpy(message + sizeof frame, data, frame.bytes);
    xep_status_t status = frames->transport->ops->ctl(frames->transport, to, message, sizeof frame + frame.bytes);
    free(message);
    return status;
}

const xep_message_t *xep_frames_peek(xep_frames_t *frames, uint32_t from)
{
    return *find(frames, from);
}

/* Messages of a side that is gone may have arrived after the first look. */
xep_status_t xep_frames_recv(xep_frames_t *frames, uint32_t from, const xep_patience_t *patience,
                             xep_message_t **message_p)
{
    xep_backoff_t backoff;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, patience->deadline_ns);
    while (xep_frames_peek(frames, from) == NULL) {
        if (xep_frames_is_gone(frames, from) && xep_frames_peek(frames, from) == NULL) return XEP_ERR_PEER;
        xep_status_t status = patience->look(patience->arg);
        if (status != XEP_OK) return status;
        if (!xep_backoff_wait(&backoff, atomic_load(&frames->transport->moves)))
            return xep_fail(XEP_ERR_TIMEOUT, "deadline passed");
    }
    *message_p = take(find(frames, from));
    return XEP_OK;
}
