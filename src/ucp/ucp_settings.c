/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A setting of the user is never overridden, and one that this version of UCX does not know is left out with a message:
 * versions differ in names, and the library runs with others than it was built with.
 */
#define _GNU_SOURCE
#include "ucp_settings.h"

#include <dirent.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "error.h"
#include "log.h"
#include "ucp_library.h"

#define ALLOC_PRIO   "ALLOC_PRIO" /* which kinds of memory UCX tries, in this order */
#define ZCOPY_THRESH "ZCOPY_THRESH"

/* only what the user left alone */
static void set_default(ucp_config_t *config, const char *name, const char *value)
{
    char variable[64];
    snprintf(variable, sizeof variable, "UCX_%s", name);
    if (getenv(variable) != NULL) return;
    if (ucp_config_modify(config, name, value) != UCS_OK) xep_log(XEP_LOG_INFO, "this ucx does not know %s", variable);
}

/* Whether UCX is going to open TCP: of a setting for what it does not open it prints a warning. */
static bool opens_tcp(void)
{
    const char *transports = getenv("UCX_TLS");
    if (transports != NULL && strcmp(transports, "all") != 0)
        return transports[0] != '^' && strstr(transports, "tcp") != NULL;
    return getenv("UCX_NET_DEVICES") == NULL;
}

static bool has_loopback(void)
{
    struct ifreq loopback = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &loopback) == 0 && (loopback.ifr_flags & IFF_UP) != 0;
    if (fd >= 0) close(fd);
    return up;
}

/* TCP over the loopback interface alone: where no rank is elsewhere, and the user has named no devices. */
static bool stays_here(int local)
{
    return local && opens_tcp() && has_loopback() && getenv("UCX_NET_DEVICES") == NULL;
}

/* Whether one of the words of UCX_TLS is a transport over RDMA, or brings all there are. */
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

/* The folder may be there without a device in it. */
static bool opens_rdma(int local)
{
    const char *devices = getenv("UCX_NET_DEVICES");
    const struct dirent *entry;
    bool found = false;
    if (stays_here(local) || !names_rdma(getenv("UCX_TLS"))) return false;
    DIR *folder = opendir("/sys/class/infiniband");
    if (folder == NULL) return false;
    while (!found && (entry = readdir(folder)) != NULL)
        found = entry->d_name[0] != '.' &&
                (devices == NULL || strcmp(devices, "all") == 0 || strstr(devices, entry->d_name) != NULL);
    closedir(folder);
    return found;
}

/* The setting is for all transports, so where there is RDMA, UCX's own estimate stays. */
static bool sets_copies(int local)
{
    return xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS && !opens_rdma(local);
}

/*
 * From 1.16 on UCX takes its own estimate of when a copy is dearer than a call of the system. On TCP it cuts messages
 * into copies of 8 KB: 60 KB messages moved at 0.9 GB/s in place of 2.1 (both ways at once). On shared memory it copies
 * by CMA what is longer than a kilobyte or two: see ucp_strategy.c.
 */
static void set_copies(ucp_config_t *config)
{
    set_default(config, ZCOPY_THRESH, "8k");
}

size_t xep_ucp_settings_copied_below(int local)
{
    return sets_copies(local) && getenv("UCX_" ZCOPY_THRESH) == NULL ? 8 * 1024 : 0;
}

/*
 * All bytes travel in messages, and four of these fit the memory that a socket is read into (64 KB otherwise): reading
 * less at a time, the kernel acknowledges more. 8 ranks on 2 cores, 34 MB from each, dispatch in ms: 56 with 128 KB, 52
 * with 256, 50 with 512. Before 1.16 the name has no prefix; TCP alone has one like it. Where UCX copies messages, each
 * is sent as one, and not as fifteen: 4.7 GB/s in place of 1.8, both ways at once (1.22, 2 ranks of a Xeon; 5.0 without
 * the copy).
 */
static void set_tcp_defaults(ucp_config_t *config, bool copied)
{
    if (!opens_tcp()) return;
    if (xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS) {
        set_default(config, "TCP_RX_SEG_SIZE", "512k");
        if (copied) set_default(config, "TCP_TX_SEG_SIZE", "128k");
    } else if (getenv("UCX_TCP_RX_SEG_SIZE") == NULL) {
        (void)ucp_config_modify(config, "RX_SEG_SIZE", "512k");
    }
}

/*
 * TCP listens on the interfaces that it may use, and takes whoever connects: where no rank is elsewhere, nobody who is
 * can.
 */
static void keep_from_network(ucp_config_t *config, int local)
{
    if (stays_here(local)) set_default(config, "NET_DEVICES", "lo");
}

/* The default from 1.16 on. Before, users may ask for them, and libucp then aborts without a lane for rendezvous. */
bool xep_ucp_settings_has_second_protocols(void)
{
    const char *asked = getenv("UCX_PROTO_ENABLE");
    if (asked == NULL) return xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS;
    return strcasecmp(asked, "n") != 0 && strcasecmp(asked, "no") != 0 && strcmp(asked, "0") != 0 &&
           strcasecmp(asked, "off") != 0;
}

/* "^": all but these */
static void leave_out(ucp_config_t *config, const char *transports)
{
    char value[32];
    if (transports == NULL) return;
    snprintf(value, sizeof value, "^%s", transports);
    set_default(config, "TLS", value);
}

xep_status_t xep_ucp_settings_read(const xep_ucp_shared_t *shared, int local, ucp_config_t **config_p)
{
    ucs_status_t ret = ucp_config_read(NULL, NULL, config_p);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_config_read: %s", ucs_status_string(ret));
    /*
     * A heap is shared memory where that exists. The rest of UCX's own list ends in malloc, whose memory may have been
     * used before: a heap must be zero, and clearing it here would be its first touch.
     */
    set_default(*config_p, ALLOC_PRIO, "md:sysv,md:posix,mmap");
    /*
     * No rendezvous is ever made, but lanes for it would be sockets to each rank, which are connected when something
     * else happens to: a second one beside TCP, and one beside shared memory without CMA. When a rank left or died
     * before that one was connected, libucp 1.13 gave up, or aborted, the others (pending wireup, ucp_request.c). From
     * 1.16 on puts need one of them.
     */
    set_default(*config_p, "MAX_RNDV_LANES", xep_ucp_settings_has_second_protocols() ? "1" : "0");
    const bool copied = !sets_copies(local);
    if (!copied) set_copies(*config_p);
    set_tcp_defaults(*config_p, copied);
    keep_from_network(*config_p, local);
    leave_out(*config_p, shared->transports);
    return XEP_OK;
}

bool xep_ucp_settings_has_memory(void)
{
    return getenv("UCX_" ALLOC_PRIO) != NULL;
}

bool xep_ucp_settings_name_memory(void)
{
    return getenv("UCX_TLS") != NULL || xep_ucp_settings_has_memory();
}
