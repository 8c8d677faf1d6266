/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The user's settings are never overridden, and settings that this version of UCX does not know are left out with a
 * message: names differ between versions, and the library may run with another one than it was built with.
 */
#define _GNU_SOURCE
#include "ucp_settings.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <ucs/debug/log_def.h>

#include "error.h"
#include "log.h"
#include "ucp_devices.h"
#include "ucp_transport.h"

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

/* The setting is for all transports, so with RDMA UCX's own estimate stays. */
static bool sets_copies(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared)
{
    return xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS && !xep_ucp_devices_have_rdma(where, shared);
}

/*
 * From 1.16 on UCX estimates itself when a copy costs more than a system call. On TCP it then cuts messages into copies
 * of 8 KB: 60 KB messages moved at 0.9 GB/s in place of 2.1 (both ways at once). On shared memory it uses CMA for all
 * but a kilobyte or two: see ucp_link.c.
 */
static void set_copies(ucp_config_t *config)
{
    set_default(config, ZCOPY_THRESH, "8k");
}

size_t xep_ucp_settings_copied_below(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared)
{
    return sets_copies(where, shared) && getenv("UCX_" ZCOPY_THRESH) == NULL ? 8 * 1024 : 0;
}

/* A setting of TCP, whose name has no "TCP_" before 1.17; no other transport has these. */
static void set_tcp(ucp_config_t *config, const char *name, const char *value)
{
    enum { PREFIXED = 117 };
    char variable[64];
    snprintf(variable, sizeof variable, "UCX_%s", name);
    if (xep_ucp_version_number() >= PREFIXED) set_default(config, name, value);
    else if (getenv(variable) == NULL) (void)ucp_config_modify(config, name + strlen("TCP_"), value);
}

/*
 * All bytes travel in messages, and four of these fit the memory that a socket is read into (64 KB otherwise): reading
 * less at a time, the kernel acknowledges more. 8 ranks on 2 cores, 34 MB from each, dispatch in ms: 56 with 128 KB, 52
 * with 256, 50 with 512. Where UCX copies messages, each is sent as one, and not as fifteen: 4.7 GB/s in place of 1.8,
 * both ways at once (1.22, 2 ranks of a Xeon; 5.0 without the copy).
 *
 * Connections are made without blocking: else a rank would be in connect() for two minutes if a firewall drops packets,
 * past any deadline.
 */
static void set_tcp_defaults(ucp_config_t *config, bool copied)
{
    if (!xep_ucp_devices_have_tcp()) return;
    set_tcp(config, "TCP_CONN_NB", "y");
    set_tcp(config, "TCP_RX_SEG_SIZE", "512k");
    if (copied && xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS) set_tcp(config, "TCP_TX_SEG_SIZE", "128k");
}

static bool says_no(const char *asked)
{
    return strcasecmp(asked, "n") == 0 || strcasecmp(asked, "no") == 0 || strcmp(asked, "0") == 0 ||
           strcasecmp(asked, "off") == 0;
}

/*
 * The second protocols are the default from 1.16 on. Before, users may ask for them, and libucp then aborts without a
 * lane for rendezvous.
 */
bool xep_ucp_settings_has_second_protocols(void)
{
    const char *asked = getenv("UCX_PROTO_ENABLE");
    if (asked == NULL) return xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS;
    return !says_no(asked);
}

/* "^": all but these */
static void leave_out(ucp_config_t *config, const char *transports)
{
    char value[32];
    if (transports == NULL) return;
    snprintf(value, sizeof value, "^%s", transports);
    set_default(config, "TLS", value);
}

/*
 * TCP alone, whatever UCX_TLS says: it reports at once that a process is gone, and no message of a stranger makes UCX
 * map memory. No rendezvous protocol, in which the other side, which may be dying, would have to answer.
 */
static void set_to_meet(ucp_config_t *config, const xep_whereabouts_t *where)
{
    char devices[XEP_UCP_DEVICES_BYTES];
    xep_ucp_devices_choose_to_meet(where, devices);
    (void)ucp_config_modify(config, "TLS", "tcp");
    (void)ucp_config_modify(config, "NET_DEVICES", devices);
    (void)ucp_config_modify(config, "RNDV_THRESH", "inf");
    set_tcp(config, "TCP_CONN_NB", "y");
}

xep_status_t xep_ucp_settings_read(const xep_ucp_shared_t *shared, const xep_whereabouts_t *where,
                                   ucp_config_t **config_p)
{
    char devices[XEP_UCP_DEVICES_BYTES];
    ucs_status_t ret = ucp_config_read(NULL, NULL, config_p);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_config_read: %s", ucs_status_string(ret));
    if (shared->meets) {
        set_to_meet(*config_p, where);
        return XEP_OK;
    }
    /*
     * Heaps are shared memory if there is any. UCX's own list ends in malloc, whose memory may have been used before;
     * but a heap must be zero, and clearing it here would be its first touch.
     */
    set_default(*config_p, ALLOC_PRIO, "md:sysv,md:posix,mmap");
    /*
     * xep uses no rendezvous protocol, but lanes for it would be sockets to each rank, connected at the next occasion:
     * a second one beside TCP, and one beside shared memory without CMA. When a rank left or died before that one was
     * connected, libucp 1.13 gave up, or aborted, the others (pending wireup, ucp_request.c). From 1.16 on puts need
     * one of them.
     */
    set_default(*config_p, "MAX_RNDV_LANES", xep_ucp_settings_has_second_protocols() ? "1" : "0");
    const bool copied = !sets_copies(where, shared);
    if (!copied) set_copies(*config_p);
    set_tcp_defaults(*config_p, copied);
    xep_ucp_devices_choose(where, shared, devices);
    if (devices[0] != '\0') set_default(*config_p, "NET_DEVICES", devices);
    leave_out(*config_p, shared->transports);
    return XEP_OK;
}

bool xep_ucp_settings_keep_mappings(void)
{
    const char *asked = getenv("UCX_CUDA_IPC_CACHE");
    return asked == NULL || !says_no(asked);
}

bool xep_ucp_settings_has_memory(void)
{
    return getenv("UCX_" ALLOC_PRIO) != NULL;
}

bool xep_ucp_settings_name_memory(void)
{
    return getenv("UCX_TLS") != NULL || xep_ucp_settings_has_memory();
}

bool xep_ucp_settings_keep_shared(void)
{
    static const char *const names[] = {"all", "shm", "sm", "mm", "posix", "sysv"};
    const char *transports = getenv("UCX_TLS");
    if (!xep_ucp_settings_name_memory()) return false;
    if (transports == NULL || transports[0] == '^') return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(transports, names[i]) != NULL) return true;
    return false;
}

void xep_ucp_settings_explain(ucs_status_t ret, char hint[XEP_UCP_HINT_BYTES])
{
    const char *transports = getenv("UCX_TLS"), *devices = getenv("UCX_NET_DEVICES");
    hint[0] = '\0';
    if (ret != UCS_ERR_NO_DEVICE || (transports == NULL && devices == NULL)) return;
    snprintf(hint, XEP_UCP_HINT_BYTES, " (%s%.80s%s%s%.80s: nothing of that is here, or this build of ucx lacks it)",
             transports == NULL ? "" : "UCX_TLS=", transports == NULL ? "" : transports,
             transports == NULL || devices == NULL ? "" : ", ",
             devices == NULL ? "" : "UCX_NET_DEVICES=", devices == NULL ? "" : devices);
}

/* ---- what UCX prints ---- */

/* UCX offers each message to its log handlers, the last one first, and prints those that none stops. */

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER; /* the list of handlers has no lock */
static _Thread_local bool is_quiet;

static ucs_log_func_rc_t stop(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                              const ucs_log_component_config_t *component, const char *message, va_list args)
{
    (void)file, (void)line, (void)function, (void)level, (void)component, (void)message, (void)args;
    return is_quiet ? UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
}

void xep_ucp_quiet_begin(void)
{
    pthread_mutex_lock(&one_at_a_time);
    is_quiet = true;
    ucs_log_push_handler(stop);
}

void xep_ucp_quiet_end(void)
{
    ucs_log_pop_handler();
    is_quiet = false;
    pthread_mutex_unlock(&one_at_a_time);
}
