/* SPDX-License-Identifier: BSD-3-Clause */

/** Messages from rank to rank beside all heaps: they work when a heap has failed because some rank was lost. */
#ifndef XEP_GROUP_MAIL_H
#define XEP_GROUP_MAIL_H

#include "group.h"

/** What a message is about; others read it, so values never change. */
typedef enum xep_mail_kind {
    XEP_MAIL_END = 1,      /* a word of group_abort.c */
    XEP_MAIL_STATE = 2,    /* of group_shrink_mail.c */
    XEP_MAIL_FRAGMENT = 3, /* of group_shrink_boot.c */
    XEP_MAIL_FIRST = 4,    /* says nothing */
    XEP_MAIL_BALLOT = 5    /* of members_wire.c, about a buffer */
} xep_mail_kind_t;

/** Most bytes of a message. */
enum { XEP_MAIL_BYTES = 32 * 1024 };

/** A message that has come, kept until it is taken. */
typedef struct xep_letter {
    struct xep_letter *next;
    uint64_t about; /* the number of a buffer; 0: none */
    uint32_t from;
    uint32_t kind; /* XEP_MAIL_STATE, XEP_MAIL_FRAGMENT, XEP_MAIL_BALLOT */
    size_t bytes;
    _Alignas(8) char data[];
} xep_letter_t;

/** Takes the mail of the group's transport from now on; before it is connected. close: once the transport is. */
xep_status_t xep_mail_open(xep_group_t *group);
void xep_mail_close(xep_group_t *group);

/** Hands a message to the transport, which copies it. An error: the rank cannot be reached. Any thread. */
xep_status_t xep_mail_send(xep_group_t *group, uint32_t rank, xep_mail_kind_t kind, uint64_t about, const void *data,
                           size_t bytes);

/** Waits until all mail is on its way, at most so many milliseconds: a rank that has gone or sleeps takes none. */
void xep_mail_leave(xep_group_t *group, int32_t most_ms);

/**
 * Sends a first message to all ranks that are not mapped, while all are well: UCX answers it before it sends any other,
 * and a rank that has died or sleeps does not.
 */
void xep_mail_begin(xep_group_t *group);

/** The letters of a kind that have come since the last time, in the order in which they came; the caller frees each. */
xep_letter_t *xep_mail_take(xep_group_t *group, xep_mail_kind_t kind, uint64_t about);
void xep_mail_free(xep_letter_t *first);

/**
 * Of letters that begin with their number among those of their rank, and have all that it says: the last one that was
 * sent stays in *last, whatever order they come in. Whether this is it; the other one is freed.
 */
int xep_mail_keep_last(xep_letter_t **last, xep_letter_t *letter);

#endif
