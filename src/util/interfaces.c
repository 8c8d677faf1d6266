/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static int is_known(const xep_interface_t *found, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(found[i].name, name) == 0) return 1;
    return 0;
}

static int is_usable(const struct ifaddrs *one)
{
    return one->ifa_addr != NULL && one->ifa_addr->sa_family == AF_INET && (one->ifa_flags & IFF_UP) != 0 &&
           (one->ifa_flags & IFF_LOOPBACK) == 0;
}

uint32_t xep_interfaces_find(xep_interface_t found[XEP_INTERFACES])
{
    struct ifaddrs *all = NULL;
    uint32_t count = 0;
    if (getifaddrs(&all) != 0) return 0;
    for (const struct ifaddrs *one = all; one != NULL && count < XEP_INTERFACES; one = one->ifa_next) {
        struct sockaddr_in at;
        if (!is_usable(one) || is_known(found, count, one->ifa_name)) continue;
        memcpy(&at, one->ifa_addr, sizeof at);
        snprintf(found[count].name, sizeof found[count].name, "%s", one->ifa_name);
        found[count++].address = at.sin_addr.s_addr;
    }
    freeifaddrs(all);
    return count;
}

void xep_interfaces_list(uint32_t addresses[XEP_INTERFACES])
{
    xep_interface_t found[XEP_INTERFACES];
    const uint32_t count = xep_interfaces_find(found);
    for (uint32_t i = 0; i < XEP_INTERFACES; i++) addresses[i] = i < count ? found[i].address : 0;
}

int xep_interfaces_have(const uint32_t addresses[XEP_INTERFACES], uint32_t address)
{
    for (uint32_t i = 0; i < XEP_INTERFACES && addresses[i] != 0; i++)
        if (addresses[i] == address) return 1;
    return 0;
}
