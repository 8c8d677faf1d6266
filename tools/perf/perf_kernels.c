/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_kernels.h"

#include <stdatomic.h>
#include <string.h>

#include "oracle_number.h"
#include "perf_kernels_x86.h"

enum { BLOCK = 256 };

/* Where there is no streaming store, memcpy() is the limit twice. */
static void copy_plain(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Blocks of a row, so that the running sum stays in the nearest cache. */
static void sum_plain(void *out, const void *const *rows, uint32_t n, uint32_t hidden, xep_dtype_t dtype, int streaming)
{
    const size_t size = oracle_element_bytes(dtype);
    float sum[BLOCK];

    (void)streaming;
    for (uint32_t at = 0; at < hidden; at += BLOCK) {
        const uint32_t width = hidden - at < BLOCK ? hidden - at : BLOCK;
        memset(sum, 0, sizeof sum);
        for (uint32_t i = 0; i < n; i++) oracle_row_add(sum, (const char *)rows[i] + at * size, dtype, width);
        oracle_row_round((char *)out + at * size, sum, dtype, width);
    }
}

static void fence_plain(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* The fastest first, and the scalar one last: it runs everywhere, so there is always one. */
uint32_t perf_kernels(const perf_kernels_t **kernels)
{
    static const perf_kernels_t plain = {.name = "scalar",
                                         .copy_streaming = copy_plain,
                                         .sum = sum_plain,
                                         .fence = fence_plain};
    const uint32_t n = perf_kernels_x86(kernels);

    kernels[n] = &plain;
    return n + 1;
}
