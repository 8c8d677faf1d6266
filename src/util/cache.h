/* SPDX-License-Identifier: BSD-3-Clause */

/** How large the caches of this machine are. */
#ifndef XEP_UTIL_CACHE_H
#define XEP_UTIL_CACHE_H

#include <stdint.h>

/**
 * Bytes of all last-level caches together that programs may count on, each as large as the first processor's; 0 where
 * the system does not say. root is put before the paths of the files that are read: "" but in tests.
 */
uint64_t xep_cache_bytes(const char *root);

#endif
