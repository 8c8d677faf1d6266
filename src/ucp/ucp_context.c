/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The worker is for one thread at a time (SERIALIZED): several threads use the heaps of a group, under the transport's
 * lock.
 */
#define _GNU_SOURCE
#include "ucp_context.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "error.h"
#include "log.h"
#include "process.h"
#include "room.h"
#include "text.h"
#include "ucp_devices.h"
#include "ucp_settings.h"
#include "ucp_transport.h"

/* ---- limits of this process, below which UCX does not fail, but aborts or waits for ever ---- */

/*
 * Files. 64 ranks that connect at once over TCP have 181 to 194 each (1.13, 1.20, 1.22, 1.23): at most three for each
 * rank, and some of their own; later about one for each rank. Each interface takes two more with 1.13, four with 1.22.
 * If one cannot be had, libucp aborts.
 *
 * Locked memory. An interface of UD posts 4096 receives, in a loop that never ends if memory for them cannot be
 * registered (ud_verbs.c, in every version so far); RC posts as many. Each has at most 8 KB.
 */

enum { OWN_FILES = 24, INTERFACE_FILES = 4, RANK_FILES = 3, LOCKED_BYTES = 64 << 20, CAP_IPC_LOCK_BIT = 14 };

/* Raises the soft limit to what is needed, or as far as possible; returns what the process may have now. */
static uint64_t raise_limit(int resource, uint64_t needed)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0) return needed;
    if (limit.rlim_cur >= needed) return limit.rlim_cur; /* or RLIM_INFINITY, the largest number */
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
    return setrlimit(resource, &limit) == 0 ? limit.rlim_cur : before;
}

/* ---- files ---- */

static uint64_t count_open(void)
{
    uint64_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return 0;
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count - 3; /* ".", "..", and the folder itself */
}

/* Ranks that are certainly reached by sockets: others may share memory with this one. */
static uint32_t count_sockets(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared)
{
    return shared->expected || xep_ucp_settings_keep_shared() ? where->elsewhere : where->nranks - 1;
}

static xep_status_t check_files(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared)
{
    const uint64_t open = count_open();
    const uint32_t sockets = count_sockets(where, shared);
    const uint32_t own = OWN_FILES + INTERFACE_FILES * xep_ucp_devices_count(where);
    const uint64_t may = raise_limit(RLIMIT_NOFILE, open + own + RANK_FILES * (uint64_t)where->nranks);
    const uint64_t needed = open + own + RANK_FILES * (uint64_t)sockets;
    if (may >= needed || !xep_ucp_devices_have_tcp()) return XEP_OK;
    return xep_fail(XEP_ERR_TRANSPORT,
                    "too few file descriptors: %" PRIu64 " (%" PRIu64 ": %" PRIu64 " that are open, %u for UCX, "
                    "and %d for each of %u ranks that are reached by sockets; ulimit -Hn)",
                    may, needed, open, own, RANK_FILES, sockets);
}

/* ---- locked memory ---- */

/* a line of ucp_context_print_info: "#  resource 5  :  md 4  dev 3  flags -- rc_verbs/mlx5_0:1" */
static bool is_rdma(const char *line)
{
    static const char *const names[] = {" rc_", " ud_", " dc_", " srd/", " gga_"};
    if (strstr(line, "resource") == NULL) return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(line, names[i]) != NULL) return true;
    return false;
}

/* Writes the first such resource into device, or "". There is no other way to ask. */
static void find_rdma(ucp_context_h context, char *device, size_t bytes)
{
    char *text = NULL, *rest = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    device[0] = '\0';
    if (stream == NULL) return;
    ucp_context_print_info(context, stream);
    fclose(stream);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && device[0] == '\0';
         line = strtok_r(NULL, "\n", &rest))
        if (is_rdma(line)) snprintf(device, bytes, "%s", strrchr(line, ' ') + 1);
    free(text);
}

/* Only root of the machine has the right: root of a user namespace may not lock memory. */
static bool may_lock_any(void)
{
    char text[8192];
    unsigned long long caps = 0, mapped = 0;
    (void)xep_text_read("/proc/self/status", text, sizeof text);
    const char *effective = xep_text_find(text, "CapEff");
    if (effective != NULL) caps = strtoull(effective, NULL, 16);
    (void)xep_text_read("/proc/self/uid_map", text, sizeof text);
    if (sscanf(text, "%*u %*u %llu", &mapped) != 1) mapped = 0;
    return (caps >> CAP_IPC_LOCK_BIT & 1) != 0 && mapped == UINT32_MAX;
}

static xep_status_t check_locked_memory(ucp_context_h context)
{
    char device[96];
    find_rdma(context, device, sizeof device);
    if (device[0] == '\0' || may_lock_any()) return XEP_OK;
    const uint64_t may = raise_limit(RLIMIT_MEMLOCK, RLIM_INFINITY);
    if (may >= LOCKED_BYTES) return XEP_OK;
    return xep_fail(XEP_ERR_TRANSPORT,
                    "too little memory may be locked for %s: %" PRIu64
                    " KiB (%d at least, and the buffers; ulimit -Hl, "
                    "best unlimited, or no RDMA: UCX_TLS=^ib)",
                    device, may >> 10, LOCKED_BYTES >> 10);
}

/* ---- context and worker ---- */

/* what a worker of posix takes for its first messages, with some room (4.2 MB, UCX 1.13) */
enum { WORKER_SHM_BYTES = 8 << 20 };

/* SERIALIZED: one thread at a time is in UCX, by transport->lock, but not always the same. */
static xep_status_t open_worker(ucp_context_h context, ucp_worker_h *worker_p)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t ret = ucp_worker_create(context, &params, worker_p);
    if (ret == UCS_OK) return XEP_OK;
    char hint[XEP_SHM_HINT_BYTES];
    xep_shm_hint(WORKER_SHM_BYTES, hint);
    return xep_fail(XEP_ERR_TRANSPORT, "ucp_worker_create: %s%s", ucs_status_string(ret), hint);
}

static xep_status_t open_context(const xep_ucp_shared_t *shared, const xep_whereabouts_t *where,
                                 ucp_context_h *context_p)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = shared->meets ? UCP_FEATURE_TAG : UCP_FEATURE_RMA | UCP_FEATURE_AM,
        .name = "xep",
    };
    ucp_config_t *config;
    ucs_status_t ret;
    char hint[XEP_UCP_HINT_BYTES];
    xep_status_t status = xep_secure_check("UCX_");
    if (status == XEP_OK) status = check_files(where, shared);
    if (status == XEP_OK) status = xep_ucp_settings_read(shared, where, &config);
    if (status != XEP_OK) return status;
    ret = ucp_init(&params, config, context_p);
    ucp_config_release(config);
    if (ret == UCS_OK) return XEP_OK;
    xep_ucp_settings_explain(ret, hint);
    return xep_fail(XEP_ERR_TRANSPORT, "ucp_init: %s%s", ucs_status_string(ret), hint);
}

xep_status_t xep_ucp_context_open(const xep_ucp_shared_t *shared, const xep_whereabouts_t *where,
                                  ucp_context_h *context_p, ucp_worker_h *worker_p)
{
    ucp_context_h context;
    xep_status_t status = open_context(shared, where, &context);
    if (status != XEP_OK) return status;
    status = check_locked_memory(context);
    if (status == XEP_OK) status = open_worker(context, worker_p);
    if (status != XEP_OK) {
        ucp_cleanup(context);
        return status;
    }
    *context_p = context;
    xep_log(XEP_LOG_INFO, "ucx %s, %s", xep_ucp_version(), xep_ucp_path());
    return XEP_OK;
}
