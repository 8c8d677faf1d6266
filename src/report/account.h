/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Accounts: what each rank says of the wait it is in, and the one sentence that is made of all of them. Nothing here
 * knows how accounts travel or what an operation is.
 */
#ifndef XEP_REPORT_ACCOUNT_H
#define XEP_REPORT_ACCOUNT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum { XEP_ACCOUNT_RANKS = 8, XEP_ACCOUNT_NAME = 32 };

typedef enum {
    XEP_WAITS_NOWHERE, /* it says nothing */
    XEP_WAITS_DISPATCH,
    XEP_WAITS_COMBINE,
    XEP_WAITS_BARRIER,
    XEP_WAITS_ALLGATHER,
    XEP_WAITS_END, /* of a buffer */
    XEP_WAITS_NEXT,
    XEP_WAITS_RESET, /* of a buffer */
    XEP_WAITS_KINDS
} xep_waits_kind_t;

/** Written by the rank that waits, read by others: every field is checked before it is used. */
typedef struct xep_account {
    uint64_t number;  /* epoch of the operation, number of the barrier */
    uint64_t answers; /* the question that this answers; 0: this is a question itself, after a timeout */
    uint32_t kind;    /* xep_waits_kind_t */
    uint32_t buffer;  /* its ordinal among the group's buffers, from 1; 0: none */
    uint32_t opens;   /* xep_opens_t; any other value counts as the third */
    uint32_t late;    /* how many ranks are late; ranks has the first of them */
    uint32_t ranks[XEP_ACCOUNT_RANKS];
    char what[XEP_ACCOUNT_NAME]; /* what is waited for: "counts"; "": the ranks themselves */
    char mode[XEP_ACCOUNT_NAME]; /* of the buffer; of an allgather: the call that it is part of; "": none */
} xep_account_t;
static_assert(sizeof(xep_account_t) == 128, "wire format");

/** Says that one more rank is late. */
void xep_account_add_late(xep_account_t *account, uint32_t rank);

/** Makes an account that a peer wrote safe to print; returns whether it makes sense. */
int xep_account_check(xep_account_t *account, uint32_t nranks);

/** Whether both wait in the same call. */
int xep_account_is_same(const xep_account_t *a, const xep_account_t *b);

/** What this rank knows of one of them when its own wait has timed out. */
typedef struct xep_account_of {
    xep_account_t said; /* kind XEP_WAITS_NOWHERE: it has not answered */
    uint8_t died;
    uint8_t role; /* scratch memory of xep_accounts_tell() */
} xep_account_of_t;

/** Of all ranks. */
typedef struct xep_accounts {
    uint32_t nranks, rank;
    xep_account_of_t *of; /* [nranks] */
} xep_accounts_t;

/**
 * "rank 5 never began dispatch 17 of mode ll and does not answer; ranks 0-4, 6, 7 wait for its counts", cut to bytes.
 */
void xep_accounts_tell(const xep_accounts_t *accounts, char *text, size_t bytes);

#endif
