/* SPDX-License-Identifier: BSD-3-Clause */

/** Where a group that grows listens, as newcomers read it: in a file, or in bytes that the caller brings them. */
#ifndef XEP_ELASTIC_ADDRESS_H
#define XEP_ELASTIC_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

enum { XEP_ADDRESS_HOSTS = 8, XEP_ADDRESS_KEY = 32 };

/** One way to the listener. */
typedef struct xep_address_host {
    uint32_t family; /* 4, 6 */
    uint32_t reserved;
    uint8_t bytes[16]; /* in network order; of family 4 the first four */
} xep_address_host_t;

/** Written by rank 0 of the group, read by newcomers, which trust nothing of it. */
typedef struct xep_address {
    uint8_t magic[8];
    uint32_t format;
    uint32_t version; /* of the library */
    uint32_t port, count;
    uint8_t key[XEP_ADDRESS_KEY]; /* a newcomer shows the first half, the listener the second one */
    xep_address_host_t hosts[XEP_ADDRESS_HOSTS];
    uint64_t sum; /* of all before it */
} xep_address_t;
_Static_assert(sizeof(xep_address_t) == 256, "written as bytes: no padding");
_Static_assert(sizeof(xep_address_t) <= XEP_ADDRESS_BYTES, "callers have so much room");

/** The numbers that a program must have to be let in. */
uint32_t xep_address_version(void);

/** Fills in all but port, count and hosts, with a new key; seal: the sum, when all is there. */
xep_status_t xep_address_open(xep_address_t *address);
void xep_address_seal(xep_address_t *address);

/** Whether these bytes are an address; where: for the reason. */
xep_status_t xep_address_check(const void *data, size_t bytes, const char *where, xep_address_t *address);

/** Replaces the file, at once, by one that this user alone can read. */
xep_status_t xep_address_write(const char *path, const xep_address_t *address);

/** XEP_INPROGRESS: there is no such file. It must be this user's, and nobody else's to read or write. */
xep_status_t xep_address_read(const char *path, xep_address_t *address);

/** Removes the file if it still has this address. */
void xep_address_remove(const char *path, const xep_address_t *address);

#endif
