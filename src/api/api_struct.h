/* SPDX-License-Identifier: BSD-3-Clause */

/** Structs of callers that were compiled with another version of them. */
#ifndef XEP_API_STRUCT_H
#define XEP_API_STRUCT_H

#include <xep/xep.h>

/**
 * Copies a caller's struct that begins with its size into the library's own: what the caller does
 * not have is 0, what the library does not know must be 0. name is for the reason.
 */
xep_status_t xep_check_struct(const char *name, const void *user, void *own, size_t own_size);

/** Copies the library's struct out to a caller's that may be shorter or longer; its size stays. */
xep_status_t xep_fill_struct(const char *name, void *user, const void *own, size_t own_size);

#endif
