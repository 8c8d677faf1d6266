/* SPDX-License-Identifier: BSD-3-Clause */

/** Frames between rank 0 of a group that grows and its joiners: control messages of a transport without ranks. */
#ifndef XEP_ELASTIC_FRAMES_H
#define XEP_ELASTIC_FRAMES_H

#include "config.h"
#include "rendezvous.h"
#include "transport.h"

/** What a frame is; others read it, so values never change. */
typedef enum xep_frame_kind {
    XEP_FRAME_HELLO = 1,   /* joiner: pid; the address of its transport follows */
    XEP_FRAME_HEARD = 2,   /* rank 0: it may wait */
    XEP_FRAME_WELCOME = 3, /* rank 0: all are here; rank, nranks */
    XEP_FRAME_GIVE = 4,    /* joiner: its bytes of an allgather */
    XEP_FRAME_ALL = 5,     /* rank 0: those of all */
    XEP_FRAME_SETTLED = 6, /* joiner: how far it came; status, text */
    XEP_FRAME_VERDICT = 7  /* rank 0: what becomes of the group; status, text */
} xep_frame_kind_t;

enum { XEP_FRAME_TEXT = 224 };

/** The header of every message; checked when it arrives. A side that sends two at a time sends short ones. */
typedef struct xep_frame {
    uint8_t key[XEP_ADDRESS_HALF]; /* of the sender's side: nothing else is looked at before */
    uint64_t joiner;               /* the number that the joiner, which sends or is sent to, has drawn */
    uint32_t kind;
    int32_t status;
    uint32_t exchange; /* number of an allgather */
    int32_t pid;
    uint32_t rank, nranks;
    uint64_t bytes; /* that follow */
    char text[XEP_FRAME_TEXT];
} xep_frame_t;
_Static_assert(sizeof(xep_frame_t) == 280, "sent as bytes: no padding");

/** One that has come, for its reader to free. */
typedef struct xep_message {
    struct xep_message *next;
    xep_frame_t frame; /* checked: its text ends, and data has frame.bytes */
    _Alignas(8) uint8_t data[];
} xep_message_t;

/** How long to wait, and a check meanwhile: any status but XEP_OK ends the wait. */
typedef struct xep_patience {
    uint64_t deadline_ns;
    xep_status_t (*look)(void *arg);
    void *arg;
} xep_patience_t;

/** One side, and the processes on the other side to which it sends, by number: for a joiner only rank 0, as 0. */
typedef struct xep_frames xep_frames_t;

/** Of rank 0: also makes the address by which it is met. most: how many joiners are admitted at most. */
xep_status_t xep_frames_open(const xep_config_t *config, xep_transport_open_fn open_transport, int everywhere,
                             uint32_t most, xep_address_t *address, xep_frames_t **frames_p);

/** Of a joiner: says hello. XEP_ERR_MISMATCH: the address is of another version of UCX. */
xep_status_t xep_frames_call(const xep_config_t *config, xep_transport_open_fn open_transport,
                             const xep_address_t *address, xep_frames_t **frames_p);

/** Takes up to half a second, until what was sent is on its way. NULL is a no-op. */
void xep_frames_close(xep_frames_t *frames);

/** The next hello with the key, or NULL; and makes its sender number *to_p. */
xep_message_t *xep_frames_hello(xep_frames_t *frames);
xep_status_t xep_frames_admit(xep_frames_t *frames, const xep_message_t *hello, uint32_t *to_p);

/** key and joiner are filled in. text may be NULL. Never blocks. */
xep_status_t xep_frames_send(xep_frames_t *frames, uint32_t to, xep_frame_t frame, const char *text, const void *data);

/** The next one, which stays; NULL: it is not here yet. */
const xep_message_t *xep_frames_peek(xep_frames_t *frames, uint32_t from);

/** XEP_ERR_PEER: the other side is gone, and all that it has sent was taken; XEP_ERR_TIMEOUT. */
xep_status_t xep_frames_recv(xep_frames_t *frames, uint32_t from, const xep_patience_t *patience,
                             xep_message_t **message_p);

/** Whether the other side is gone; the reason is set. */
int xep_frames_is_gone(xep_frames_t *frames, uint32_t from);

#endif
