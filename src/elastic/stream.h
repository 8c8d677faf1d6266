/* SPDX-License-Identifier: BSD-3-Clause */

/** Connections between rank 0 of a group that grows and its newcomers: frames, and bytes behind them. */
#ifndef XEP_ELASTIC_STREAM_H
#define XEP_ELASTIC_STREAM_H

#include "address.h"

/** What a frame is; others read it, so values never change. */
typedef enum xep_frame_kind {
    XEP_FRAME_HELLO = 1,   /* newcomer: who it is; xep_hello_t follows */
    XEP_FRAME_HEARD = 2,   /* rank 0: it may wait; the second half of the key follows. Or why it may not: status */
    XEP_FRAME_WELCOME = 3, /* rank 0: all are here; rank, nranks */
    XEP_FRAME_GIVE = 4,    /* newcomer: its bytes of an allgather */
    XEP_FRAME_ALL = 5,     /* rank 0: those of all */
    XEP_FRAME_SETTLED = 6, /* newcomer: how far it came; status, text */
    XEP_FRAME_VERDICT = 7  /* rank 0: what becomes of the group; status, text */
} xep_frame_kind_t;

enum { XEP_FRAME_TEXT = 224 };

/** In front of everything that is sent; checked by whoever reads it. */
typedef struct xep_frame {
    uint32_t magic, kind;
    int32_t status;
    uint32_t number; /* of an allgather */
    uint32_t rank, nranks;
    uint64_t bytes; /* that follow */
    char text[XEP_FRAME_TEXT];
} xep_frame_t;
_Static_assert(sizeof(xep_frame_t) == 256, "sent as bytes: no padding");

typedef struct xep_hello {
    uint8_t key[XEP_ADDRESS_KEY / 2];
    uint32_t version;
    int32_t pid;
} xep_hello_t;
_Static_assert(sizeof(xep_hello_t) == 24, "sent as bytes: no padding");

/** How long to wait, and what is looked at meanwhile: other than XEP_OK ends the wait. */
typedef struct xep_patience {
    uint64_t deadline_ns;
    xep_status_t (*look)(void *arg);
    void *arg;
} xep_patience_t;

/** Listens, and says where: on the loopback interface alone, or everywhere. */
xep_status_t xep_stream_listen(int everywhere, xep_address_t *address, int *stream_p);

/** Who has connected; -1: nobody. */
int xep_stream_accept(int listener);

/** Connects to one of the hosts. */
xep_status_t xep_stream_connect(const xep_address_t *address, uint32_t host, const xep_patience_t *patience,
                                int *stream_p);

/** XEP_ERR_PEER: the other side is gone; XEP_ERR_TIMEOUT. text may be NULL. */
xep_status_t xep_stream_send(int stream, xep_frame_t frame, const char *text, const void *data,
                             const xep_patience_t *patience);
xep_status_t xep_stream_recv(int stream, void *data, size_t bytes, const xep_patience_t *patience);
xep_status_t xep_stream_recv_frame(int stream, xep_frame_t *frame, const xep_patience_t *patience);

/** The next frame, which stays; 0: it is not here yet, -1: the other side is gone. Never blocks. */
int xep_stream_peek(int stream, xep_frame_t *frame);

#endif
