/* SPDX-License-Identifier: BSD-3-Clause */

/** Which bootstrap a group gets (the caller's allgather, PMIx, none for a group of one), and how joiners find it. */
#ifndef XEP_API_BOOT_H
#define XEP_API_BOOT_H

#include "boot.h"
#include "config.h"
#include "rendezvous.h"

/** As XEP_BOOT and params say. Collective, blocking; timeout_ms is for each of its exchanges. */
xep_status_t xep_api_open_boot(const xep_config_t *config, const xep_group_params_t *params, int32_t timeout_ms,
                               xep_boot_t **boot_p);

/** By a file, or, where the path begins with "pmix:", by a name that the launcher keeps. It stays the caller's. */
xep_status_t xep_api_meet(const char *path, int32_t timeout_ms, xep_rendezvous_t *rendezvous_p);

#endif
