/* SPDX-License-Identifier: BSD-3-Clause */

/** Copying past the caches: what is not read soon need not drive out what is. */
#ifndef XEP_UTIL_PAST_CACHES_H
#define XEP_UTIL_PAST_CACHES_H

#include <stddef.h>

/** memcpy; where the machine can, the lines written are not read first, and do not stay. */
void xep_past_caches_copy(void *dst, const void *src, size_t bytes);

/** Orders what this thread copied so before its later stores. */
void xep_past_caches_fence(void);

#endif
