/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The vector kernels that sum rows of which some are fp32 and some are narrower. Included behind weigh_lines.h: a
 * vector of sums is a vector of a wide row and half a vector of a narrow one, in the order of the elements.
 */
#ifndef XEP_WEIGH_MIXED_H
#define XEP_WEIGH_MIXED_H

enum { LANES = VECTOR / 4 };

KERNEL floats_t load_wide(const char *from)
{
    return (floats_t)load(from);
}

KERNEL floats_t load_narrow(int type, const char *from)
{
    return type == XEP_WEIGH_BF16 ? widen_bf16(from) : widen_fp16(from);
}

KERNEL void store_sum(int type, int wide_out, char *to, floats_t sum)
{
    if (wide_out) store(to, plain_nan(sum, (bits_t)sum, 0x7fc00000), 0);
    else if (type == XEP_WEIGH_BF16) store_upper(to, plain_nan(sum, (bits_t)round_bf16(sum), 0x7fc00000));
    else store_fp16(to, sum);
}

/* From element at on. Which rows are wide is asked once for all vectors of a row. */
KERNEL void sum_mixed(int type, int wide_out, char *out, const void *const *rows, const uint8_t *wide, size_t n,
                      size_t at, int vectors)
{
    floats_t sum[VECTORS];
    UNROLL for (int i = 0; i < vectors; i++) sum[i] = (floats_t){0};
    for (size_t j = 0; j < n; j++) {
        const char *row = (const char *)rows[j] + at * (wide[j] ? 4 : 2);
        if (wide[j]) {
            UNROLL for (int i = 0; i < vectors; i++) sum[i] = load_wide(row + (size_t)i * VECTOR) + sum[i];
            continue;
        }
        UNROLL for (int i = 0; i < vectors; i++) sum[i] = load_narrow(type, row + (size_t)i * VECTOR / 2) + sum[i];
    }
    UNROLL for (int i = 0; i < vectors; i++)
        store_sum(type, wide_out, out + (at + (size_t)i * LANES) * (wide_out ? 4 : 2), sum[i]);
}

KERNEL void weigh_mixed(int type, int wide_out, void *out, const void *const *rows, const uint8_t *wide, size_t n,
                        size_t elems)
{
    size_t at = 0;
    for (; at + VECTORS * LANES <= elems; at += VECTORS * LANES)
        sum_mixed(type, wide_out, out, rows, wide, n, at, VECTORS);
    for (; at + LANES <= elems; at += LANES) sum_mixed(type, wide_out, out, rows, wide, n, at, 1);
    if (at < elems) xep_weigh_mixed_from(type, wide_out, out, rows, wide, n, at, elems);
}

#define MIXED(_name, _type, _wide_out)                                                                        \
    TARGET static void _name(void *out, const void *const *rows, const uint8_t *wide, size_t n, size_t elems) \
    {                                                                                                         \
        weigh_mixed(_type, _wide_out, out, rows, wide, n, elems);                                             \
    }

MIXED(mixed_bf16, XEP_WEIGH_BF16, 0)
MIXED(mixed_bf16_wide, XEP_WEIGH_BF16, 1)
MIXED(mixed_fp16, XEP_WEIGH_FP16, 0)
MIXED(mixed_fp16_wide, XEP_WEIGH_FP16, 1)

#endif
