/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * If all ranks are on one machine, TCP needs only the loopback interface; on any other it would accept connections from
 * outside. An interface whose address also exists on another rank's network is a bridge of containers or the like: UCX
 * may choose it, and then talks to its own host. UCX_NET_DEVICES also covers RDMA devices: those to keep are named with
 * the interfaces, since UCX before 1.17 has no way to exclude a device.
 */
#define _GNU_SOURCE
#include "ucp_devices.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "text.h"
#include "ucp_transport.h"

#define NET_DEVICES "UCX_NET_DEVICES"
#define RDMA_FOLDER "/sys/class/infiniband"

/* libucp that cannot reach a rank over the loopback interface: it looks for a route to an invalid address */
enum { LOSES_LOOPBACK = 120 };

/* Whether one of these devices, as UCX_NET_DEVICES has them, is a network interface. */
static bool names_interface(const char *devices)
{
    bool found = devices[0] == '^' || strcmp(devices, "all") == 0;
    for (const char *word = devices; *word != '\0' && !found; word += strspn(word, ",")) {
        char name[IF_NAMESIZE];
        const size_t length = strcspn(word, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        found = length < sizeof name && if_nametoindex(name) != 0;
        word += length;
    }
    return found;
}

bool xep_ucp_devices_have_tcp(void)
{
    const char *transports = getenv("UCX_TLS"), *devices = getenv(NET_DEVICES);
    if (transports != NULL && strcmp(transports, "all") != 0) {
        const bool excludes = transports[0] == '^', names = strstr(transports, "tcp") != NULL;
        if (excludes == names) return false;
    }
    return devices == NULL || names_interface(devices);
}

static bool has_loopback(void)
{
    struct ifreq loopback = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &loopback) == 0 && (loopback.ifr_flags & IFF_UP) != 0;
    if (fd >= 0) close(fd);
    return up;
}

/* Whether TCP uses the loopback interface alone: no rank is elsewhere, and the user has named no devices. */
static bool stays_here(const xep_whereabouts_t *where)
{
    return where->local && xep_ucp_devices_have_tcp() && has_loopback() && getenv(NET_DEVICES) == NULL &&
           xep_ucp_version_number() != LOSES_LOOPBACK;
}

/* ---- RDMA ---- */

/* Whether one of the words of UCX_TLS is a transport over RDMA, or means all transports. */
static bool names_rdma(const char *transports)
{
    static const char *const names[] = {"all", "rc", "ud", "dc", "ib", "gga", "srd", "mlx5"};
    if (transports == NULL || transports[0] == '^') return true;
    for (const char *word = transports; *word != '\0'; word += strspn(word, ",")) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            if (strncmp(word, names[i], strlen(names[i])) == 0) return true;
        word += strcspn(word, ",");
    }
    return false;
}

/*
 * Ranks of one machine that all share memory do not need RDMA, unless UCX_TLS names it: then shared memory is not
 * expected.
 */
static bool keeps_rdma(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared)
{
    if (!names_rdma(getenv("UCX_TLS"))) return false;
    return !stays_here(where) || (where->nranks > 1 && (!shared->expected || where->elsewhere > 0));
}

/* Calls add for each entry of the folder until one returns true; returns whether one did. */
static bool find_entry(const char *folder, bool (*add)(const char *name, void *arg), void *arg)
{
    const struct dirent *entry;
    bool found = false;
    DIR *opened = opendir(folder);
    if (opened == NULL) return false;
    while (!found && (entry = readdir(opened)) != NULL) found = entry->d_name[0] != '.' && add(entry->d_name, arg);
    closedir(opened);
    return found;
}

static bool is_named(const char *device, void *arg)
{
    const char *devices = getenv(NET_DEVICES);
    (void)arg;
    return devices == NULL || strcmp(devices, "all") == 0 || strstr(devices, device) != NULL;
}

/* The folder may be there without a device in it. */
bool xep_ucp_devices_have_rdma(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared)
{
    return keeps_rdma(where, shared) && find_entry(RDMA_FOLDER, is_named, NULL);
}

/* ---- the list ---- */

/* A device that does not fit is left out. */
static void add_device(char *list, const char *name)
{
    const size_t used = strlen(list);
    if (used + strlen(name) + 2 > XEP_UCP_DEVICES_BYTES) return;
    snprintf(list + used, XEP_UCP_DEVICES_BYTES - used, "%s%s", used == 0 ? "" : ",", name);
}

typedef struct ports {
    const char *device;
    char *list;
} ports_t;

/* UCX warns of a port that is named and not active. */
static bool add_port(const char *port, void *arg)
{
    const ports_t *ports = arg;
    char path[600], state[32], name[300];
    snprintf(path, sizeof path, RDMA_FOLDER "/%.250s/ports/%.250s/state", ports->device, port);
    const bool active = xep_text_read(path, state, sizeof state) && strstr(state, "ACTIVE") != NULL;
    snprintf(name, sizeof name, "%.250s:%.30s", ports->device, port);
    if (active) add_device(ports->list, name);
    return false;
}

static bool add_ports(const char *device, void *arg)
{
    char folder[300];
    ports_t ports = {device, arg};
    snprintf(folder, sizeof folder, RDMA_FOLDER "/%.250s/ports", device);
    return find_entry(folder, add_port, &ports);
}

static const char *write_address(const xep_interface_t *interface, char text[INET_ADDRSTRLEN])
{
    return inet_ntop(AF_INET, &interface->address, text, INET_ADDRSTRLEN);
}

static const xep_twin_t *find_twin(const xep_whereabouts_t *where, uint32_t address)
{
    for (uint32_t i = 0; i < where->ntwins; i++)
        if (where->twins[i].address == address) return &where->twins[i];
    return NULL;
}

/*
 * All interfaces but those whose address another network has, too; "" if that is all of them or none, or if not all
 * were found.
 */
static void add_interfaces(const xep_whereabouts_t *where, char *list)
{
    xep_interface_t found[XEP_INTERFACES];
    const uint32_t count = where->ntwins == 0 ? 0 : xep_interfaces_find(found);
    if (count == XEP_INTERFACES) return;
    for (uint32_t i = 0; i < count; i++)
        if (find_twin(where, found[i].address) == NULL) add_device(list, found[i].name);
    for (uint32_t i = 0; i < count && list[0] != '\0'; i++) {
        const xep_twin_t *twin = find_twin(where, found[i].address);
        char address[INET_ADDRSTRLEN];
        if (twin != NULL)
            xep_log(XEP_LOG_INFO, "interface %s is not used: rank %u, in another network, has its address, too: %s",
                    found[i].name, twin->rank, write_address(&found[i], address));
    }
}

void xep_ucp_devices_choose(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared,
                            char list[XEP_UCP_DEVICES_BYTES])
{
    list[0] = '\0';
    if (!xep_ucp_devices_have_tcp() || getenv(NET_DEVICES) != NULL) return;
    if (where->local && xep_ucp_version_number() == LOSES_LOOPBACK)
        xep_log(XEP_LOG_INFO, "ucx 1.20 reaches no rank over lo: TCP listens on all interfaces");
    if (stays_here(where)) add_device(list, "lo");
    else add_interfaces(where, list);
    if (list[0] == '\0') return;
    if (keeps_rdma(where, shared)) (void)find_entry(RDMA_FOLDER, add_ports, list);
    xep_log(XEP_LOG_INFO, NET_DEVICES "=%s: %s", list,
            where->local ? "all ranks are on this machine, and the other devices are left out"
                         : "the other interfaces are left out");
}

void xep_ucp_devices_choose_to_meet(const xep_whereabouts_t *where, char list[XEP_UCP_DEVICES_BYTES])
{
    const char *devices = getenv(NET_DEVICES);
    list[0] = '\0';
    if (devices != NULL && names_interface(devices)) snprintf(list, XEP_UCP_DEVICES_BYTES, "%s", devices);
    else if (where->local && has_loopback() && xep_ucp_version_number() != LOSES_LOOPBACK) add_device(list, "lo");
    else add_interfaces(where, list);
    if (list[0] == '\0') add_device(list, "all");
}

uint32_t xep_ucp_devices_count(const xep_whereabouts_t *where)
{
    xep_interface_t found[XEP_INTERFACES];
    return stays_here(where) ? 1 : xep_interfaces_find(found) + 1; /* loopback */
}

void xep_ucp_devices_describe(char text[XEP_UCP_INTERFACES_BYTES])
{
    xep_interface_t found[XEP_INTERFACES];
    const uint32_t count = xep_interfaces_find(found);
    size_t used = 0;
    snprintf(text, XEP_UCP_INTERFACES_BYTES, "loopback alone");
    for (uint32_t i = 0; i < count && used < XEP_UCP_INTERFACES_BYTES - 1; i++) {
        char address[INET_ADDRSTRLEN];
        used += (size_t)snprintf(text + used, XEP_UCP_INTERFACES_BYTES - used, "%s%s %s", used == 0 ? "" : ", ",
                                 found[i].name, write_address(&found[i], address));
    }
}
