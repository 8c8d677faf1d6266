/* SPDX-License-Identifier: BSD-3-Clause */

/** Copying rows, through the caches or past them. */
#ifndef XEP_COPY_H
#define XEP_COPY_H

#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

/**
 * Copies bytes that do not overlap. next is the row that will be copied after this one, or
 * src: it is fetched while this one is stored. After streaming copies and before a peer is
 * told, xep_stores_fence() must be called by the thread that copied.
 */
typedef void (*xep_copy_fn)(void *dst, const void *src, size_t bytes, const void *next);

/** The copy for this instruction set. Streaming needs dst 64-byte aligned to have effect; any dst is right. */
xep_copy_fn xep_copy_select(xep_simd_t simd, int streaming);

/**
 * Whether rows that another rank will read are stored past the caches: unless nothing ever is, however few they are.
 * That rank read these lines last, and a cached store has to take each out of its cache. With 64 rows of 4 KiB the
 * store took 12 us and the other core's load 16, cached 68 and 21; with one row 0.1 and 0.9, cached 1.3 and 0.7.
 * Where other work has driven the lines out of that cache, cached stores are up to a third faster.
 */
static inline int xep_streams_to_others(const xep_env_t *env)
{
    return env->stream_bytes != UINT64_MAX;
}

/** Orders this thread's streaming stores before its later stores. */
void xep_stores_fence(void);

#endif
