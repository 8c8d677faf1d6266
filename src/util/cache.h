/* SPDX-License-Identifier: BSD-3-Clause */

/** How large the caches of this machine are, and how much of what is written stays there. */
#ifndef XEP_UTIL_CACHE_H
#define XEP_UTIL_CACHE_H

#include <stdint.h>

/**
 * Bytes of all last-level caches together, as the first processor has them; 0 where the system does not say. root is
 * put before the paths of the files that are read: "" but in tests.
 */
uint64_t xep_cache_bytes(const char *root);

/**
 * How many bytes of its own a rank may write in an operation and find in a cache when it reads them next: a quarter of
 * its share of the last-level caches, but no less than least and, beyond that, no more than 4 MiB.
 */
uint64_t xep_cache_own_bytes(uint64_t share, uint64_t least);

#endif
