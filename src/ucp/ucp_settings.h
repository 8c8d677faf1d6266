/* SPDX-License-Identifier: BSD-3-Clause */

/** The settings of UCX that differ from its own defaults, each unless the user has set it. */
#ifndef XEP_UCP_SETTINGS_H
#define XEP_UCP_SETTINGS_H

#include <stdbool.h>

#include <ucp/api/ucp.h>

#include <xep/xep.h>

#include "ucp_shared.h"

/** UCX's configuration with ours; the caller releases it. local: no rank is on another host. */
xep_status_t xep_ucp_settings_read(const xep_ucp_shared_t *shared, int local, ucp_config_t **config_p);

/** Whether UCX uses its second generation of protocols. */
bool xep_ucp_settings_has_second_protocols(void);

/** Bytes from which on UCX asks the system to move a put, where it could copy it into shared memory; 0: not known. */
size_t xep_ucp_settings_copied_below(int local);

/** Whether the user says which kinds of shared memory UCX opens or allocates. */
bool xep_ucp_settings_name_memory(void);

/** Whether the user says which kinds of memory UCX allocates. */
bool xep_ucp_settings_has_memory(void);

#endif
