/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * LogFMT-10: rows of bf16 in 10 bits a channel, sign and logarithm. Lossy: a channel of a group that spans
 * 2^n is off by a factor of 2^(n / 1020) and a rounding at most, one that is 2^32 below the largest becomes 0.
 *
 * A row is cut into chunks of 1024 channels where 1024 divides it, else of 512; the last one may be shorter.
 * Coded, it is [groups of 128][2] bf16: the largest and the least magnitude of each, then the chunks:
 * coded where every group in it has a largest magnitude below 1 and a span, and where that is shorter; else bf16.
 * Sixteen channels are five words: sixteen 9-bit codes from bit 0 on, then sixteen signs.
 *
 *   low   = max(log2(least), log2(largest) - 32),  step = (log2(largest) - low) / 510
 *   code  = max(0, floor((log2|x| - low) / step + 2 - log2((1 + 2^step) / 2) / step))
 *   |x|  ~= code == 0 ? 0 : bf16(2^((code - 1) * step + low))
 */
#ifndef XEP_LOGFMT_H
#define XEP_LOGFMT_H

#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

/** Most bytes a coded row of so many channels can take. */
size_t xep_logfmt_room(size_t channels);

/** Bytes of a coded row, which its head tells. */
size_t xep_logfmt_bytes(const void *from, size_t channels);

/** The functions of one machine; all have the same bits. */
typedef struct xep_logfmt {
    /* Codes a row; returns its bytes. to: 4-byte aligned, room for the most. */
    size_t (*encode)(void *to, const uint16_t *row, size_t channels);
    /* Any contents of a head are safe: no byte beyond the most is read. */
    void (*decode)(uint16_t *row, const void *from, size_t channels);
} xep_logfmt_t;

xep_logfmt_t xep_logfmt_select(xep_simd_t simd);

#endif
