/* SPDX-License-Identifier: BSD-3-Clause */

/** The settings of UCX that differ from its own defaults, each unless the user has set it. */
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

/** Bytes from which on UCX asks the system to move a put, where it could copy it into shared memory; 0: not known. */
size_t xep_ucp_settings_copied_below(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared);

/** Whether the user says which kinds of shared memory UCX opens or allocates. */
bool xep_ucp_settings_name_memory(void);

/** Whether the user says which kinds of memory UCX allocates. */
bool xep_ucp_settings_has_memory(void);

/** Whether the user says which kinds of shared memory UCX opens or allocates, and there is one among them. */
bool xep_ucp_settings_keep_shared(void);

/** Which of the user's variables ask for devices that are not there, for the sentence of an error; "": none. */
void xep_ucp_settings_explain(ucs_status_t ret, char hint[XEP_UCP_HINT_BYTES]);

/* ---- what UCX prints ---- */

void xep_ucp_quiet_begin(void);
void xep_ucp_quiet_end(void);

#endif
