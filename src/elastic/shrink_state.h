/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a rank says while a group shrinks, and what it has heard of the others: group_shrink.h has the protocol.
 */
#ifndef XEP_ELASTIC_SHRINK_STATE_H
#define XEP_ELASTIC_SHRINK_STATE_H

#include "group_mail.h"

enum { XEP_SHRINK_TEXT = 256 };

/** How far a rank is; others read it, so values never change. */
typedef enum xep_shrink_phase {
    XEP_SHRINK_AGREE = 1, /* it says whom it suspects; maybe it makes a group without these */
    XEP_SHRINK_READY = 2, /* it has made that group */
    XEP_SHRINK_DONE = 3,  /* it has seen that all have, and gone */
    XEP_SHRINK_FAILED = 4 /* it has given up: status, text */
} xep_shrink_phase_t;

/** Written by its rank, which sends all of it at each change; read by all, checked. The last one sent counts. */
typedef struct xep_state {
    uint64_t sequence;    /* of what the rank has sent */
    uint64_t tried;       /* names the last attempt to make a group that it knows of: see xep_shrink_name(); 0: none */
    uint32_t tried_count; /* suspects of that attempt: a later one has more */
    uint32_t phase;       /* xep_shrink_phase_t */
    int32_t status;
    uint32_t reserved;
    char text[XEP_SHRINK_TEXT];
    uint64_t bits[]; /* [words] suspects, then [words] ranks that were ready in the last attempt */
} xep_state_t;
_Static_assert(sizeof(xep_state_t) == 32 + XEP_SHRINK_TEXT, "wire format");

typedef struct xep_shrink {
    xep_group_t *group;
    uint32_t nranks, words;
    xep_state_t *mine;
    xep_state_t **of;        /* [nranks] what was heard last of a rank that was not suspected then; NULL: nothing */
    xep_letter_t *fragments; /* of boot_mail.c, not used yet */
    uint8_t *gone;           /* [nranks] it was gone at the last look */
    uint8_t *fresh;          /* [nranks] it has said something since the last deadline */
    uint8_t *late;           /* [nranks] the bootstrap waits for it */
    int left_out;            /* the others go on without this rank */
    uint64_t built;          /* the attempt of the group that this rank has made; 0: none */
    int changed;             /* what this rank says, since it was sent */
} xep_shrink_t;

xep_status_t xep_shrink_open(xep_shrink_t *shrink, xep_group_t *group);
void xep_shrink_close(xep_shrink_t *shrink);

static inline int xep_bit_is_set(const uint64_t *bits, uint32_t rank)
{
    return (int)(bits[rank / 64] >> rank % 64 & 1);
}

static inline int xep_shrink_suspects(const xep_shrink_t *shrink, uint32_t rank)
{
    return xep_bit_is_set(shrink->mine->bits, rank);
}

/** Adds a suspect. */
void xep_shrink_suspect(xep_shrink_t *shrink, uint32_t rank);

/** How many ranks are suspected; a name of these. */
uint32_t xep_shrink_count(const xep_shrink_t *shrink);
uint64_t xep_shrink_name(const xep_shrink_t *shrink);

/** Begins an attempt without the ranks that are suspected now. */
void xep_shrink_try(xep_shrink_t *shrink);

/** Says that this rank has made the group of the last attempt: only while it suspects nobody else. */
void xep_shrink_say_ready(xep_shrink_t *shrink);

/** Whether all that the last attempt was made with were ready. */
int xep_shrink_all_ready(const xep_shrink_t *shrink);

/** Whether a rank was ready, as far as is known. */
int xep_shrink_is_ready(const xep_shrink_t *shrink, uint32_t rank);

/** Whether a rank suspects the same ranks as this one and has heard the same of the last attempt. */
int xep_shrink_is_same(const xep_shrink_t *shrink, const xep_state_t *theirs);

/** Sends what this rank says to all others, if it has changed. */
void xep_shrink_publish(xep_shrink_t *shrink);

/**
 * Takes what has come, and what others suspect and know becomes this rank's. XEP_INPROGRESS: nothing ends it.
 *   XEP_OK        a rank is done with the group that this rank has made too
 *   XEP_ERR_PEER  the others go on without this rank
 *   other         a rank has given up; the reason is its own
 */
xep_status_t xep_shrink_hear(xep_shrink_t *shrink);

#endif
