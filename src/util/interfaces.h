/* SPDX-License-Identifier: BSD-3-Clause */

/** The network interfaces of this process, as sockets of IPv4 see them. */
#ifndef XEP_UTIL_INTERFACES_H
#define XEP_UTIL_INTERFACES_H

#include <stdint.h>

enum { XEP_INTERFACES = 32 };

typedef struct xep_interface {
    char name[16];    /* as IF_NAMESIZE of net/if.h has it */
    uint32_t address; /* its first one, in network order */
} xep_interface_t;

/** How many are up, loopback aside, and have an address; of more than XEP_INTERFACES the first are found. */
uint32_t xep_interfaces_find(xep_interface_t found[XEP_INTERFACES]);

/** Their addresses alone; 0 where there are no more. */
void xep_interfaces_list(uint32_t addresses[XEP_INTERFACES]);

/** Whether such a list has the address. */
int xep_interfaces_have(const uint32_t addresses[XEP_INTERFACES], uint32_t address);

#endif
