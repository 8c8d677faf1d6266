/* SPDX-License-Identifier: BSD-3-Clause */

/** The caches of this machine: how large they are, and copies that bypass them. */
#ifndef XEP_UTIL_CACHE_H
#define XEP_UTIL_CACHE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Bytes of all last-level caches together that programs may count on, each as large as the first processor's; 0 if the
 * system does not say. root is put before the paths of the files that are read: "" but in tests.
 */
uint64_t xep_cache_bytes(const char *root);

/* ---- streaming copies: they bypass the caches, so that rows that are not read soon evict nothing ---- */

/** memcpy() that, where the machine can, neither reads the lines first nor leaves them in the cache. */
void xep_streaming_copy(void *dst, const void *src, size_t bytes);

/** Orders the streaming copies of this thread before its later stores. */
void xep_streaming_fence(void);

#endif
