/* SPDX-License-Identifier: BSD-3-Clause */

#include "api_boot.h"

#include <string.h>

#include "boot.h"
#include "error.h"
#include "pmix/pmix_boot.h"
#include "pmix/pmix_names.h"

/*
 * PMIx if a launcher serves it, else a group of one. Only XEP_ERR_UNSUPPORTED means that no launcher does: any other
 * failure of PMIx must not silently turn R ranks into R groups of one. For the same reason the environment is checked
 * for signs of a job.
 */
static xep_status_t open_auto(int32_t timeout_ms, xep_boot_t **boot_p)
{
    xep_status_t status = xep_pmix_boot_open(timeout_ms, boot_p);
    if (status != XEP_ERR_UNSUPPORTED) return status;
    status = xep_boot_single_allowed();
    return status == XEP_OK ? xep_boot_single_open(timeout_ms, boot_p) : status;
}

static xep_status_t open_boot(const xep_config_t *config, const xep_group_params_t *params, int32_t timeout_ms,
                              xep_boot_t **boot_p)
{
    switch (config->boot) {
    case XEP_BOOT_SINGLE: return xep_boot_single_open(timeout_ms, boot_p);
    case XEP_BOOT_PMIX: {
        xep_status_t status = xep_pmix_boot_open(timeout_ms, boot_p);
        return status != XEP_ERR_UNSUPPORTED
                   ? status
                   : xep_fail(XEP_ERR_BOOT, "no PMIx for XEP_BOOT=pmix: %s", xep_last_error());
    }
    case XEP_BOOT_CALLBACK:
        if (params->allgather == NULL)
            return xep_fail(XEP_ERR_BOOT, "params.allgather is NULL (needed by XEP_BOOT=callback)");
        return xep_boot_callback_open(params, timeout_ms, boot_p);
    default:
        return params->allgather != NULL ? xep_boot_callback_open(params, timeout_ms, boot_p)
                                         : open_auto(timeout_ms, boot_p);
    }
}

xep_status_t xep_api_open_boot(const xep_config_t *config, const xep_group_params_t *params, int32_t timeout_ms,
                               xep_boot_t **boot_p)
{
    xep_status_t status = open_boot(config, params, timeout_ms, boot_p);
    if (status == XEP_OK) (*boot_p)->ignores_processes = config->liveness == XEP_LIVENESS_HEARTBEAT;
    return status;
}

/* A file is not opened here: rank 0 makes it later, and joiners wait for it. */
xep_status_t xep_api_meet(const char *path, int32_t timeout_ms, xep_rendezvous_t *rendezvous_p)
{
    if (path == NULL) path = XEP_PMIX_DEFAULT_NAME;
    if (strncmp(path, XEP_PMIX_NAME_PREFIX, strlen(XEP_PMIX_NAME_PREFIX)) == 0)
        return xep_pmix_rendezvous(path, timeout_ms, rendezvous_p);
    *rendezvous_p = xep_rendezvous_by_file(path);
    return XEP_OK;
}
