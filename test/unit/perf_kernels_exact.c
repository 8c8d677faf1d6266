/* SPDX-License-Identifier: BSD-3-Clause */

/* The limit of xep_perf is only a limit if its kernels do the whole work: every set of them
 * this CPU runs gives the bits the plain definition gives, for any length and alignment. */

#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "oracle_number.h"
#include "perf_kernels.h"
#include "unit.h"

enum { MAX_HIDDEN = 300, TERMS = 9, ROW_BYTES = MAX_HIDDEN * 4, SLACK = 128 };

static uint8_t *room(size_t bytes)
{
    uint8_t *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(memory);
    memset(memory, 0xa5, bytes);
    return memory;
}

TEST(copies_are_whole)
{
    static const size_t lengths[] = {1, 63, 64, 65, 128, 224, 1000, 1024};
    const perf_kernels_t *kernels[PERF_KERNELS];
    const uint32_t n = perf_kernels(kernels);
    uint8_t *from = room(2 * ROW_BYTES), *to = room(ROW_BYTES + SLACK);

    for (size_t i = 0; i < 2 * ROW_BYTES; i++) from[i] = (uint8_t)(i * 7 + i / 256);
    for (uint32_t k = 0; k < n; k++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t shift = 0; shift < 64; shift += 32) {
                memset(to, 0xa5, ROW_BYTES + SLACK);
                kernels[k]->copy_streaming(to + shift, from + 3, lengths[i]);
                kernels[k]->fence();
                assert_memory_equal(to + shift, from + 3, lengths[i]);
                assert_int_equal(to[shift + lengths[i]], 0xa5);
            }
    free(from);
    free(to);
}

static void check_sum(const perf_kernels_t *kernels, xep_dtype_t dtype, uint32_t hidden, uint32_t terms, size_t shift)
{
    const oracle_shape_t shape = {.payload = 5, .hidden = hidden, .dtype = dtype};
    const size_t bytes = hidden * oracle_element_bytes(dtype);
    uint8_t *row[TERMS], *out = room(ROW_BYTES + SLACK), *expected = room(ROW_BYTES);
    float sum[MAX_HIDDEN] = {0};

    for (uint32_t i = 0; i < terms; i++) {
        row[i] = room(ROW_BYTES);
        oracle_fill_row(&shape, 0, i, row[i]);
        oracle_row_add(sum, row[i], dtype, hidden);
    }
    oracle_row_round(expected, sum, dtype, hidden);
    for (int streaming = 0; streaming < 2; streaming++) {
        memset(out, 0xa5, ROW_BYTES + SLACK);
        kernels->sum(out + shift, (const void *const *)row, terms, hidden, dtype, streaming);
        kernels->fence();
        assert_memory_equal(out + shift, expected, bytes);
        assert_int_equal(out[shift + bytes], 0xa5);
    }
    for (uint32_t i = 0; i < terms; i++) free(row[i]);
    free(out);
    free(expected);
}

TEST(sums_equal_the_definition)
{
    static const xep_dtype_t dtypes[] = {XEP_BF16, XEP_FP16, XEP_FP32};
    static const uint32_t widths[] = {1, 15, 16, 31, 32, 33, 64, 299};
    const perf_kernels_t *kernels[PERF_KERNELS];
    const uint32_t n = perf_kernels(kernels);

    for (uint32_t k = 0; k < n; k++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                for (uint32_t terms = 0; terms <= TERMS; terms += 3) {
                    check_sum(kernels[k], dtypes[d], widths[w], terms, 0);
                    check_sum(kernels[k], dtypes[d], widths[w], terms, 8);
                }
}
