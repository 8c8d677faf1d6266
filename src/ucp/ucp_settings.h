/* SPDX-License-Identifier: BSD-3-Clause */

/** The settings of UCX that differ from its defaults, unless the user has set them. */
#ifndef XEP_UCP_SETTINGS_H
#define XEP_UCP_SETTINGS_H

#include <stdbool.h>

#include <ucp/api/ucp.h>

#include <xep/xep.h>

#include "ucp_shared.h"

enum { XEP_UCP_HINT_BYTES = 256 };

/** UCX's configuration with ours; the caller releases it. */
xep_status_t xep_ucp_settings_read(const xep_ucp_shared_t *shared, const xep_whereabouts_t *where,
                                   ucp_config_t **config_p);

/** Whether UCX uses its second generation of protocols. */
bool xep_ucp_settings_has_second_protocols(void);

/** Bytes from which on UCX uses system calls for puts that it could copy into shared memory; 0: not known. */
size_t xep_ucp_settings_copied_below(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared);

/** Whether the user says which kinds of shared memory UCX opens or allocates. */
bool xep_ucp_settings_name_memory(void);

/** Whether the user says which kinds of memory UCX allocates. */
bool xep_ucp_settings_has_memory(void);

/** Whether the user says which kinds of shared memory UCX opens or allocates, and names at least one. */
bool xep_ucp_settings_keep_shared(void);

/** Whether UCX keeps memory of other processes' devices mapped: not if the user says so. */
bool xep_ucp_settings_keep_mappings(void);

/** For an error: which of the user's variables ask for devices that do not exist; "": none. */
void xep_ucp_settings_explain(ucs_status_t ret, char hint[XEP_UCP_HINT_BYTES]);

/* ---- what UCX prints ---- */

void xep_ucp_quiet_begin(void);
void xep_ucp_quiet_end(void);

#endif
