/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The walk of the vector kernels over rows, for any width of vectors. Included by the file of an instruction set, which
 * has said what is a vector: TARGET, VECTOR_FN, floats_t, bits_t, VECTOR (bytes), REGISTER, the constraint of one, and
 * what C has no words for: loads and stores, fused multiplications, what is not a number, and all of fp16.
 *
 * Four vectors of a row at a time take half the time of one, in the first cache and in the last: fewer loads of
 * pointers and weights, and longer runs of each row for the prefetcher.
 */
#ifndef XEP_WEIGH_LINES_H
#define XEP_WEIGH_LINES_H

#include <stdint.h>

enum { LINE = 64, VECTORS = 4, FEW = 8, AHEAD = 2048, OUT_AHEAD = 1024 };

/* the sums must be registers, not an array; a sanitizer looks at every load, and takes half a minute for all of them */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#define UNROLL_ROWS
#elif defined(__clang__)
#define UNROLL      _Pragma("clang loop unroll(full)")
#define UNROLL_ROWS _Pragma("clang loop unroll_count(8)")
#else
#define UNROLL      _Pragma("GCC unroll 4")
#define UNROLL_ROWS _Pragma("GCC unroll 8")
#endif

/* two uses of a vector make gcc load it twice, and loads are what is short */
#define LOAD_ONCE(_v) __asm__("" : "+" REGISTER(_v))

#define KERNEL __attribute__((always_inline)) TARGET static inline

/* So that what stands before it in the file does not move its loops across lines of the instruction cache. */
#define LINE_ALIGNED __attribute__((aligned(64)))

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
    UNROLL_ROWS for (size_t j = 0; j < n; j++)
    {
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

/*
 * What the sums come to AHEAD bytes later: behind the end of these rows, the begin of the next ones. For rows that lie
 * anywhere, where the hardware finds no stride: 2 ranks, by expert, 128 tokens of 8 rows took 360 us in place of 470,
 * and 425, 370 and 400 with 512, 1,024 and 4,096 bytes. Where each row follows the last one of its source they took
 * 1.1 times as long with it.
 */
KERNEL void fetch(const void *const *rows, const void *const *next, size_t n, size_t at, size_t bytes)
{
    const int is_behind = at + AHEAD >= bytes;
    const void *const *from = is_behind ? next : rows;
    at = is_behind ? at + AHEAD - bytes : at + AHEAD;
    UNROLL_ROWS for (size_t j = 0; j < n; j++)
    {
        UNROLL for (size_t i = 0; i < VECTORS * VECTOR; i += LINE) __builtin_prefetch((const char *)from[j] + at + i);
    }
}

/*
 * Sums go to lines that are seldom in a near cache, as a layer has run since they were last written, and at the begin
 * of a row the processor has yet to see where stores go. A few lines with each step: all at once the loads of the rows
 * would wait for them (2 ranks, 128 tokens of 2,048: 72 us without, 67 so, 90 all at once).
 */
KERNEL void fetch_out(const char *out, size_t at)
{
    UNROLL for (size_t i = 0; i < VECTORS * VECTOR; i += LINE) __builtin_prefetch(out + at + i);
}

/* VECTORS vectors of out at a time; returns the bytes done. out_ahead: 0, or how far sums are fetched ahead. */
KERNEL size_t walk(int type, void *out, const void *const *rows, const void *const *next, const float *weights,
                   size_t n, size_t bytes, size_t out_ahead, int streaming)
{
    size_t at = 0;
    for (; at + VECTORS * VECTOR <= bytes; at += VECTORS * VECTOR) {
        if (streaming && next != NULL) fetch(rows, next, n, at, bytes);
        if (!streaming && weights == NULL) fetch_out(out, at + out_ahead);
        sum_vectors(type, out, rows, weights, n, at, VECTORS, streaming);
    }
    return at;
}

/*
 * A loop for each small n. With AVX-512 it sums up to 1.4 times as fast: no questions about n, and pointers and weights
 * stay in registers, which is why they are copied to where no store changes them. weights is known to be NULL or not.
 */
KERNEL size_t walk_few(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t more,
                       size_t bytes, int streaming)
{
    const void *few[FEW], *few_next[FEW];
    float kept[FEW];
    const float *factors = weights != NULL ? kept : NULL;
    const int goes_on = more == XEP_WEIGH_GOES_ON;
    const void *const *behind = n != 0 && more >= n && !goes_on ? rows + n : NULL;
    const void *const *next = behind == NULL ? NULL : few_next;
    const size_t ahead = goes_on ? OUT_AHEAD : 0;
    if (n > FEW) return walk(type, out, rows, behind, weights, n, bytes, ahead, streaming);
    for (size_t i = 0; i < n; i++) few[i] = rows[i];
    for (size_t i = 0; i < n && weights != NULL; i++) kept[i] = weights[i];
    for (size_t i = 0; i < n && next != NULL; i++) few_next[i] = behind[i];
    switch (n) {
    case 1: return walk(type, out, few, next, factors, 1, bytes, ahead, streaming);
    case 2: return walk(type, out, few, next, factors, 2, bytes, ahead, streaming);
    case 3: return walk(type, out, few, next, factors, 3, bytes, ahead, streaming);
    case 4: return walk(type, out, few, next, factors, 4, bytes, ahead, streaming);
    case 5: return walk(type, out, few, next, factors, 5, bytes, ahead, streaming);
    case 6: return walk(type, out, few, next, factors, 6, bytes, ahead, streaming);
    case 7: return walk(type, out, few, next, factors, 7, bytes, ahead, streaming);
    case FEW: return walk(type, out, few, next, factors, FEW, bytes, ahead, streaming);
    default: return 0;
    }
}

/* What walk() leaves: a vector at a time, then elements. */
KERNEL void finish(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t at,
                   size_t elems)
{
    const size_t elem = type == XEP_WEIGH_FP32 ? 4 : 2;
    for (; at + VECTOR <= elems * elem; at += VECTOR) sum_vectors(type, out, rows, weights, n, at, 1, 0);
    if (at < elems * elem) xep_weigh_from(type, out, rows, weights, n, at / elem, elems);
}

KERNEL void weigh(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t more,
                  size_t elems, int streaming)
{
    const size_t bytes = elems * (type == XEP_WEIGH_FP32 ? 4 : 2);
    /* what is known of weights is known in all that this calls */
    if (weights == NULL)
        finish(type, out, rows, NULL, n, walk_few(type, out, rows, NULL, n, more, bytes, streaming), elems);
    else finish(type, out, rows, weights, n, walk_few(type, out, rows, weights, n, more, bytes, streaming), elems);
}

/* For each type a function, and one that streams where out allows that. */
#define SUMS(_name, _type)                                                                                             \
    LINE_ALIGNED TARGET static void _name(void *out, const void *const *rows, const float *weights, size_t n,          \
                                          size_t more, size_t elems)                                                   \
    {                                                                                                                  \
        weigh(_type, out, rows, weights, n, more, elems, 0);                                                           \
    }                                                                                                                  \
    LINE_ALIGNED TARGET static void _name##_stream(void *out, const void *const *rows, const float *weights, size_t n, \
                                                   size_t more, size_t elems)                                          \
    {                                                                                                                  \
        if (((uintptr_t)out & (LINE - 1)) == 0) weigh(_type, out, rows, weights, n, more, elems, 1);                   \
        else _name(out, rows, weights, n, more, elems);                                                                \
    }

SUMS(bf16, XEP_WEIGH_BF16)
SUMS(fp16, XEP_WEIGH_FP16)
SUMS(fp32, XEP_WEIGH_FP32)

/* Sums of bf16 that stay fp32: a vector of them is half a vector of a row. */
KERNEL void sum_wide(float *out, const void *const *rows, size_t n, size_t at, int vectors)
{
    floats_t sum[VECTORS];
    UNROLL for (int i = 0; i < vectors; i++) sum[i] = (floats_t){0};
    for (size_t j = 0; j < n; j++) {
        const char *row = (const char *)rows[j] + at * 2;
        UNROLL for (int i = 0; i < vectors; i++) sum[i] = widen_bf16(row + (size_t)i * VECTOR / 2) + sum[i];
    }
    UNROLL for (int i = 0; i < vectors; i++)
        store((char *)(out + at) + (size_t)i * VECTOR, plain_nan(sum[i], (bits_t)sum[i], 0x7fc00000), 0);
}

KERNEL void weigh_wide(float *out, const void *const *rows, size_t n, size_t elems)
{
    enum { LANES = VECTOR / 4 };
    size_t at = 0;
    for (; at + VECTORS * LANES <= elems; at += VECTORS * LANES) sum_wide(out, rows, n, at, VECTORS);
    for (; at + LANES <= elems; at += LANES) sum_wide(out, rows, n, at, 1);
    if (at < elems) xep_weigh_wide_from(out, rows, n, at, elems);
}

#endif
