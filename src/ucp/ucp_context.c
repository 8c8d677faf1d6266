/* SPDX-License-Identifier: BSD-3-Clause */

/* The UCX of this process: which libucp, with which settings; its context and worker. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ucp_internal.h"
#include "ucp_transport.h"

unsigned xep_ucp_version_number(void)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    return major * 100 + minor;
}

const char *xep_ucp_version(void)
{
    return ucp_get_version_string();
}

const char *xep_ucp_path(void)
{
    Dl_info info;
    return dladdr((void *)ucp_get_version, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "";
}

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
    if (transports != NULL && strcmp(transports, "all") != 0) return transports[0] != '^' && strstr(transports, "tcp") != NULL;
    return getenv("UCX_NET_DEVICES") == NULL;
}

/*
 * Before 1.16, where all bytes travel in messages, two of these fit the memory that a socket is read into (64 KB
 * otherwise): reading less at a time, the kernel acknowledges more. 8 ranks on 2 cores, 34 MB from each: 200 ms of CPU in
 * place of 250; 256 KB gained no more, nor did larger messages. The name has no prefix there; TCP alone has one like it.
 *
 * From 1.16 on UCX cuts messages into copies of 8 KB: 60 KB messages moved at 0.9 GB/s in place of 2.1 (both ways at once).
 * The setting is for all transports, so where there is RDMA, UCX's own estimate stays.
 */
static void set_tcp_defaults(ucp_config_t *config)
{
    if (!opens_tcp()) return;
    if (xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS) {
        if (access("/sys/class/infiniband", F_OK) != 0) set_default(config, "ZCOPY_THRESH", "8k");
    } else if (getenv("UCX_TCP_RX_SEG_SIZE") == NULL) {
        (void)ucp_config_modify(config, "RX_SEG_SIZE", "128k");
    }
}

static xep_status_t read_config(ucp_config_t **config_p)
{
    ucs_status_t ret = ucp_config_read(NULL, NULL, config_p);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_config_read: %s", ucs_status_string(ret));
    /* A heap is shared memory where that exists. The rest of UCX's own list ends in malloc, whose memory may
       have been used before: a heap must be zero, and clearing it here would be its first touch. */
    set_default(*config_p, XEP_UCP_ALLOC_PRIO, "md:sysv,md:posix,mmap");
    /* No rendezvous is ever made, but lanes for it would be sockets to each rank, which are connected when something else
       happens to: a second one beside TCP, and one beside shared memory without CMA. When a rank left or died before that
       one was connected, libucp 1.13 gave up, or aborted, the others (pending wireup, ucp_request.c). From 1.16 on puts
       need one of them. */
    set_default(*config_p, "MAX_RNDV_LANES", xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS ? "1" : "0");
    set_tcp_defaults(*config_p);
    return XEP_OK;
}

static xep_status_t open_worker(ucp_context_h context, ucp_worker_h *worker_p)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t ret = ucp_worker_create(context, &params, worker_p);
    return ret == UCS_OK ? XEP_OK : xep_fail(XEP_ERR_TRANSPORT, "ucp_worker_create: %s", ucs_status_string(ret));
}

static xep_status_t open_context(ucp_context_h *context_p)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AM,
        .name = "xep",
    };
    ucp_config_t *config;
    ucs_status_t ret;
    xep_status_t status = read_config(&config);
    if (status != XEP_OK) return status;
    ret = ucp_init(&params, config, context_p);
    ucp_config_release(config);
    return ret == UCS_OK ? XEP_OK : xep_fail(XEP_ERR_TRANSPORT, "ucp_init: %s", ucs_status_string(ret));
}

xep_status_t xep_ucp_context_open(ucp_context_h *context_p, ucp_worker_h *worker_p)
{
    ucp_context_h context;
    xep_status_t status = open_context(&context);
    if (status != XEP_OK) return status;
    status = open_worker(context, worker_p);
    if (status != XEP_OK) {
        ucp_cleanup(context);
        return status;
    }
    *context_p = context;
    xep_log(XEP_LOG_INFO, "ucx %s, %s", xep_ucp_version(), xep_ucp_path());
    return XEP_OK;
}
