/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Where a group that grows is met: an address, and how it gets from rank 0 to joiners, by a file, the caller's
 * functions or a launcher.
 */
#ifndef XEP_ELASTIC_RENDEZVOUS_H
#define XEP_ELASTIC_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

#include <xep/elastic.h>
#include <xep/xep.h>

#include "interfaces.h"

enum { XEP_ADDRESS_HALF = 16 };

/** Written by rank 0 of the group, read by joiners, which believe that it came from their user, and check it. */
typedef struct xep_address {
    uint8_t magic[8];
    uint32_t format;
    uint32_t version; /* of the library */
    uint64_t sum;     /* of all that follows */
    uint32_t bytes;   /* of the transport's address; zeros follow */
    uint32_t local;   /* all who come share the network's interfaces, and need none but loopback */
    uint8_t joiners_key[XEP_ADDRESS_HALF], own_key[XEP_ADDRESS_HALF]; /* what each side shows the other */
    uint64_t network;                                                 /* xep_host_network() */
    uint32_t interfaces[XEP_INTERFACES];                              /* as xep_interfaces_list() has them */
    uint8_t transport[XEP_ADDRESS_BYTES - 200];
} xep_address_t;
_Static_assert(sizeof(xep_address_t) == XEP_ADDRESS_BYTES, "written as bytes: no padding");

/** Fills in who this process is, and a new key. */
xep_status_t xep_address_open(xep_address_t *address);

/** The last step: the address of the transport, and the sum. */
xep_status_t xep_address_seal(xep_address_t *address, const void *transport, size_t bytes);

/** Whether these bytes are an address; where: for the reason. */
xep_status_t xep_address_check(const void *data, size_t bytes, const char *where, xep_address_t *address);

/* ---- how it gets there ---- */

typedef struct xep_rendezvous xep_rendezvous_t;

typedef struct xep_rendezvous_ops {
    /** Rank 0's; the reason of an error says what to do. */
    xep_status_t (*publish)(const xep_rendezvous_t *rendezvous, const xep_address_t *address);
    /** After each publish, also one that failed; best effort. */
    void (*unpublish)(const xep_rendezvous_t *rendezvous, const xep_address_t *address);
    /** A joiner's, again and again. XEP_INPROGRESS: there is no address. What it finds is checked. */
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
