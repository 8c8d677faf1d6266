/* SPDX-License-Identifier: BSD-3-Clause */

/** The caches of this machine: how large they are, and copies that bypass them. */
#ifndef XEP_UTIL_CACHE_H
#define XEP_UTIL_CACHE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Bytes of all last-level caches together that programs may count on, each as large as the first processor's; 0 where
 * the system does not say. root is put before the paths of the files that are read: "" but in tests.
 */
uint64_t xep_cache_bytes(const char *root);

/* ---- streaming copies: they bypass the caches, so that what is not read soon does not drive out what is ---- */

/** memcpy; where the machine can, the lines written are not read first, and do not stay. */
void xep_streaming_copy(void *dst, const void *src, size_t bytes);

/** Orders what this thread copied so before its later stores. */
void xep_streaming_fence(void);

#endif
