/* SPDX-License-Identifier: BSD-3-Clause */

/** How a group comes to be: the ranks meet, connect, and find out which of them share memory; and how it ends. */
#ifndef XEP_GROUP_CREATE_H
#define XEP_GROUP_CREATE_H

#include "group.h"

/** Takes boot over, also on error. Collective. */
xep_status_t xep_group_open(const xep_config_t *config, int32_t timeout_ms, xep_boot_t *boot,
                            xep_transport_open_fn open_transport, xep_group_t **group_p);

/** Closes a group that not all ranks could make, or that nobody wants: waits for nobody. NULL is a no-op. */
void xep_group_drop(xep_group_t *group);

/** xep_group_destroy(), arguments checked. */
void xep_group_close(xep_group_t *group);

#endif
