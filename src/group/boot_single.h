/* SPDX-License-Identifier: BSD-3-Clause */

/** A group of one, and whether the environment lets a process be one. */
#ifndef XEP_GROUP_BOOT_SINGLE_H
#define XEP_GROUP_BOOT_SINGLE_H

#include "boot.h"

xep_status_t xep_boot_single_open(int32_t timeout_ms, xep_boot_t **boot_p);

/**
 * XEP_OK, or XEP_ERR_BOOT with the remedy as reason when the environment says that the job
 * has more ranks than the one a singleton would have (a launcher without PMIx).
 */
xep_status_t xep_boot_single_allowed(void);

#endif
