/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The worker is made for one thread at a time (SERIALIZED): the transport has a lock of its own, and the heaps of a
 * group are used by several threads.
 */
#include "ucp_context.h"

#include "error.h"
#include "log.h"
#include "secure.h"
#include "shm.h"
#include "ucp_library.h"
#include "ucp_limits.h"
#include "ucp_settings.h"

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
    if (status == XEP_OK) status = xep_ucp_limits_files(where, shared);
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
    status = xep_ucp_limits_memory(context);
    if (status == XEP_OK) status = open_worker(context, worker_p);
    if (status != XEP_OK) {
        ucp_cleanup(context);
        return status;
    }
    *context_p = context;
    xep_log(XEP_LOG_INFO, "ucx %s, %s", xep_ucp_version(), xep_ucp_path());
    return XEP_OK;
}
