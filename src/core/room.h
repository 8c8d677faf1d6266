/* SPDX-License-Identifier: BSD-3-Clause */

/** How much memory there is left for this process: of the machine, and of the control group it is in. */
#ifndef XEP_CORE_ROOM_H
#define XEP_CORE_ROOM_H

#include <xep/xep.h>

/** Bytes that are free, or can be freed without hurting anybody; UINT64_MAX: not known. root: "", or a copy of the
 *  files of the system (for tests). */
uint64_t xep_room_free(const char *root);

/** XEP_ERR_NO_MEMORY when this many bytes cannot be had, whoever else takes how much. */
xep_status_t xep_room_check(uint64_t bytes);

#endif
