/* SPDX-License-Identifier: BSD-3-Clause */

/** How the address of a group that grows gets from rank 0 to joiners: a file, the caller's functions, a launcher. */
#ifndef XEP_ELASTIC_RENDEZVOUS_H
#define XEP_ELASTIC_RENDEZVOUS_H

#include "address.h"

typedef struct xep_rendezvous xep_rendezvous_t;

typedef struct xep_rendezvous_ops {
    /** Rank 0's; the reason of an error says what to do. */
    xep_status_t (*publish)(const xep_rendezvous_t *rendezvous, const xep_address_t *address);
    /** After each publish, also one that failed; best effort. */
    void (*unpublish)(const xep_rendezvous_t *rendezvous, const xep_address_t *address);
    /** A joiner's, again and again. XEP_INPROGRESS: there is no address. What it finds is checked (address.h). */
    xep_status_t (*lookup)(const xep_rendezvous_t *rendezvous, xep_address_t *address);
} xep_rendezvous_ops_t;

/** Filled by who makes it; what it points to stays the caller's. */
struct xep_rendezvous {
    const xep_rendezvous_ops_t *ops;
    const char *kind; /* for sentences: "address file", "PMIx name" */
    const char *name; /* of the file, or what it is called by; "": none */
    xep_publish_fn publish;
    xep_lookup_fn lookup;
    void *ctx;          /* of the two */
    int32_t timeout_ms; /* of a question to a launcher */
};

xep_rendezvous_t xep_rendezvous_by_file(const char *path);
/** One of the two. */
xep_rendezvous_t xep_rendezvous_by_call(xep_publish_fn publish, xep_lookup_fn lookup, void *ctx);

#endif
