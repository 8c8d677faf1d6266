/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The walk of the vector kernels over rows, for any width of vectors. Included by the file of an instruction set, which
 * has said what is a vector: TARGET, VECTOR_FN, floats_t, bits_t, VECTOR (bytes), and what C has no words for: loads
 * and stores, fused multiplications, what is not a number, and all of fp16.
 *
 * Four vectors of a row at a time take half the time of one, in the first cache and in the last: fewer loads of
 * pointers and weights, and longer runs of each row for the prefetcher.
 */
#ifndef XEP_WEIGH_LINES_H
#define XEP_WEIGH_LINES_H

#include <stdint.h>

enum { LINE = 64, VECTORS = 4, FEW = 4 };

/* the sums must be registers, not an array */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

/* two uses of a vector make gcc load it twice, and loads are what is short */
#define LOAD_ONCE(_v) __asm__("" : "+x"(_v))

#define KERNEL __attribute__((always_inline)) TARGET static inline

typedef uint32_t words_t __attribute__((vector_size(VECTOR)));

/* Even and odd elements of bf16 are the lower and upper halves of the 32-bit lanes. */
KERNEL floats_t even_bf16(bits_t v)
{
    return (floats_t)((words_t)v << 16);
}

KERNEL floats_t odd_bf16(bits_t v)
{
    return (floats_t)((words_t)v & 0xffff0000u);
}

/* The upper half of the result is the bf16. Not for NaN. */
KERNEL words_t round_bf16(floats_t sum)
{
    words_t bits = (words_t)sum;
    return bits + ((bits >> 16 & 1) + 0x7fff);
}

/* NaN by a branch that is never taken: masking every vector cost a third where rows are in the cache. */
KERNEL bits_t join_bf16(floats_t a, floats_t b)
{
    words_t even = round_bf16(a), odd = round_bf16(b);
    if (__builtin_expect(has_nan(a, b), 0)) {
        even = (words_t)plain_nan(a, (bits_t)even, 0x7fc00000);
        odd = (words_t)plain_nan(b, (bits_t)odd, 0x7fc00000);
    }
    return (bits_t)(even >> 16 | (odd & 0xffff0000u));
}

/* Of 16-bit types half of a vector's elements: even or odd, lower or upper, as join() has them. */
KERNEL floats_t first_of(int type, bits_t v)
{
    return type == XEP_WEIGH_BF16 ? even_bf16(v) : type == XEP_WEIGH_FP16 ? lower_fp16(v) : (floats_t)v;
}

KERNEL floats_t second_of(int type, bits_t v)
{
    return type == XEP_WEIGH_BF16 ? odd_bf16(v) : upper_fp16(v);
}

KERNEL bits_t join(int type, floats_t a, floats_t b)
{
    return type == XEP_WEIGH_BF16   ? join_bf16(a, b)
           : type == XEP_WEIGH_FP16 ? join_fp16(a, b)
                                    : plain_nan(a, (bits_t)a, 0x7fc00000);
}

/* weighted is known to the compiler, as everything that is asked in the inner loop. */
KERNEL floats_t add_one(floats_t sum, floats_t x, floats_t w, int weighted)
{
    if (weighted) return multiply_add(w, x, sum);
    return x + sum;
}

KERNEL void sum_vectors(int type, char *out, const void *const *rows, const float *weights, size_t n, size_t at,
                        int vectors, int streaming)
{
    floats_t a[VECTORS], b[VECTORS];
    UNROLL for (int i = 0; i < vectors; i++) a[i] = b[i] = (floats_t){0};
    for (size_t j = 0; j < n; j++) {
        floats_t w = (weights != NULL ? weights[j] : 0) - (floats_t){0}; /* in every lane, -0 too */
        UNROLL for (int i = 0; i < vectors; i++)
        {
            bits_t v = load((const char *)rows[j] + at + (size_t)i * VECTOR);
            if (type == XEP_WEIGH_BF16) LOAD_ONCE(v);
            floats_t x = first_of(type, v);
            a[i] = add_one(a[i], x, w, weights != NULL);
            if (type == XEP_WEIGH_FP32) continue;
            floats_t y = second_of(type, v);
            b[i] = add_one(b[i], y, w, weights != NULL);
        }
    }
    UNROLL for (int i = 0; i < vectors; i++) store(out + at + (size_t)i * VECTOR, join(type, a[i], b[i]), streaming);
}

/* Whole vectors of out; returns the bytes done. */
KERNEL size_t walk(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t bytes,
                   int streams)
{
    size_t at = 0;
    if (streams && ((uintptr_t)out & (LINE - 1)) == 0)
        for (; at + VECTORS * VECTOR <= bytes; at += VECTORS * VECTOR)
            sum_vectors(type, out, rows, weights, n, at, VECTORS, 1);
    else
        for (; at + VECTORS * VECTOR <= bytes; at += VECTORS * VECTOR)
            sum_vectors(type, out, rows, weights, n, at, VECTORS, 0);
    for (; at + VECTOR <= bytes; at += VECTOR) sum_vectors(type, out, rows, weights, n, at, 1, 0);
    return at;
}

/* Without weights, a loop for each small n: questions about n, and pointers read anew, cost a tenth. */
KERNEL size_t add_rows(int type, void *out, const void *const *rows, size_t n, size_t bytes, int streams)
{
    const void *few[FEW];
    for (size_t i = 0; i < n && i < FEW; i++) few[i] = rows[i];
    switch (n) {
    case 1: return walk(type, out, few, NULL, 1, bytes, streams);
    case 2: return walk(type, out, few, NULL, 2, bytes, streams);
    case 3: return walk(type, out, few, NULL, 3, bytes, streams);
    case 4: return walk(type, out, few, NULL, 4, bytes, streams);
    default: return walk(type, out, rows, NULL, n, bytes, streams);
    }
}

KERNEL void weigh(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t elems,
                  int streams)
{
    size_t elem = type == XEP_WEIGH_FP32 ? 4 : 2, done;
    if (weights != NULL) done = walk(type, out, rows, weights, n, elems * elem, streams);
    else done = add_rows(type, out, rows, n, elems * elem, streams);
    if (done < elems * elem) xep_weigh_from(type, out, rows, weights, n, done / elem, elems);
}

TARGET static void bf16(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    weigh(XEP_WEIGH_BF16, out, rows, weights, n, elems, 0);
}

TARGET static void bf16_stream(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    weigh(XEP_WEIGH_BF16, out, rows, weights, n, elems, 1);
}

TARGET static void fp16(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    weigh(XEP_WEIGH_FP16, out, rows, weights, n, elems, 0);
}

TARGET static void fp16_stream(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    weigh(XEP_WEIGH_FP16, out, rows, weights, n, elems, 1);
}

TARGET static void fp32(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    weigh(XEP_WEIGH_FP32, out, rows, weights, n, elems, 0);
}

TARGET static void fp32_stream(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    weigh(XEP_WEIGH_FP32, out, rows, weights, n, elems, 1);
}

#endif
