/* SPDX-License-Identifier: BSD-3-Clause */

/** Which bootstrap a group gets: the caller's allgather, PMIx, or none for a group of one. */
#ifndef XEP_API_BOOT_H
#define XEP_API_BOOT_H

#include "boot.h"
#include "config.h"

/** As XEP_BOOT and params say. Collective, blocking; timeout_ms is for each of its exchanges. */
xep_status_t xep_api_open_boot(const xep_config_t *config, const xep_group_params_t *params, int32_t timeout_ms,
                               xep_boot_t **boot_p);

#endif
