/* SPDX-License-Identifier: BSD-3-Clause */

/** Where a group that grows is met, as joiners read it: in a file, or in bytes that the caller brings them. */
#ifndef XEP_ELASTIC_ADDRESS_H
#define XEP_ELASTIC_ADDRESS_H

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

/** Replaces the file, at once, by one that this user alone can read. */
xep_status_t xep_address_write(const char *path, const xep_address_t *address);

/** XEP_INPROGRESS: there is no such file. It must be this user's, and nobody else's to read or write. */
xep_status_t xep_address_read(const char *path, xep_address_t *address);

/** Removes the file if it still has this address. */
void xep_address_remove(const char *path, const xep_address_t *address);

#endif
