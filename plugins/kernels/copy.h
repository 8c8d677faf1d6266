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

/** Likewise through the caches, into rows of which none has been in them lately: lines of dst are fetched ahead. */
xep_copy_fn xep_copy_select_fetching(xep_simd_t simd);

/** The copy for an operation that writes so many bytes: past the caches where they would not stay there until read. */
xep_copy_fn xep_copy_for(const xep_env_t *env, uint64_t bytes);

/** Likewise, where only this rank writes, into rows that lie close together: through the caches it fetches ahead. */
xep_copy_fn xep_copy_for_own(const xep_env_t *env, uint64_t bytes);

/** Orders this thread's streaming stores before its later stores. */
void xep_stores_fence(void);

#endif
