/* SPDX-License-Identifier: BSD-3-Clause */

/** Bootstrap over the caller's own allgather, which is not believed to be right until it was seen to be. */
#ifndef XEP_GROUP_BOOT_CALLBACK_H
#define XEP_GROUP_BOOT_CALLBACK_H

#include "boot.h"

/** params->allgather is not NULL. Collective. */
xep_status_t xep_boot_callback_open(const xep_group_params_t *params, int32_t timeout_ms, xep_boot_t **boot_p);

#endif
