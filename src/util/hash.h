/* SPDX-License-Identifier: BSD-3-Clause */

/** FNV-1a: names and digests that are compared for equality. Against damage and mistakes, not against attacks. */
#ifndef XEP_UTIL_HASH_H
#define XEP_UTIL_HASH_H

#include <stddef.h>
#include <stdint.h>

#define XEP_HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/** A byte, or a whole word at once, which is another hash than that of its bytes. */
static inline uint64_t xep_hash_word(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * UINT64_C(0x100000001b3);
}

static inline uint64_t xep_hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) hash = xep_hash_word(hash, byte[i]);
    return hash;
}

#endif
