/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_experts.h"

#include <string.h>

enum { SOME = 64 }; /* elements that are summed at once: compilers know how many there are */

static float widen_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    uint32_t bits = (rest << 13) + ((127 - 15) << 23);
    float value;
    if (rest >= 0x7c00) bits += (127 - 15) << 23; /* infinities and NaN */
    if (rest < 0x400) {
        value = (float)rest * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To nearest, ties to even: the additions do it, of a number whose last place is that of the result. */
static uint16_t narrow_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {
        float small;
        memcpy(&small, &bits, sizeof small);
        small += 0.5f;
        memcpy(&bits, &small, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    return (uint16_t)(sign | ((bits + 0xfff + (bits >> 13 & 1)) - 0x38000000) >> 13);
}

static inline float widen(const char *at, Py_ssize_t i, xep_dtype_t dtype)
{
    const uint16_t *shorts = (const uint16_t *)(const void *)at;
    if (dtype == XEP_FP32) return ((const float *)(const void *)at)[i];
    if (dtype == XEP_FP16) return widen_half(shorts[i]);
    const uint32_t bits = (uint32_t)shorts[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void narrow(char *at, Py_ssize_t i, float value, xep_dtype_t dtype)
{
    uint16_t *shorts = (uint16_t *)(void *)at;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == XEP_FP32) ((float *)(void *)at)[i] = value;
    else if (dtype == XEP_FP16) shorts[i] = narrow_to_half(value);
    else shorts[i] = value != value ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define EXT_INLINE static inline __attribute__((always_inline))

/* Inlined with constants for all but the addresses it becomes vector code; first: nothing is in total yet. */
EXT_INLINE void add_some(float *total, int first, const char *const *terms, int count, xep_dtype_t type, Py_ssize_t at,
                         Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        float sum = first ? widen(terms[0], at + i, type) : total[i];
        for (int t = first; t < count; t++) sum += widen(terms[t], at + i, type);
        total[i] = sum;
    }
}

EXT_INLINE void sum_some(char *to, const char *const *terms, Py_ssize_t count, xep_dtype_t type, Py_ssize_t at,
                         Py_ssize_t n)
{
    float total[SOME];
    switch (count) {
    case 1: add_some(total, 1, terms, 1, type, at, n); break;
    case 2: add_some(total, 1, terms, 2, type, at, n); break;
    case 3: add_some(total, 1, terms, 3, type, at, n); break;
    default: add_some(total, 1, terms, 4, type, at, n);
    }
    for (Py_ssize_t t = 4; t < count; t += 2) {
        if (t + 1 < count) add_some(total, 0, terms + t, 2, type, at, n);
        else add_some(total, 0, terms + t, 1, type, at, n);
    }
    for (Py_ssize_t i = 0; i < n; i++) narrow(to, at + i, total[i], type);
}

EXT_INLINE void sum_row(char *to, const char *const *terms, Py_ssize_t count, xep_dtype_t type, Py_ssize_t columns)
{
    Py_ssize_t at = 0;
    for (; at + SOME <= columns; at += SOME) sum_some(to, terms, count, type, at, SOME);
    if (at < columns) sum_some(to, terms, count, type, at, columns - at);
}

EXT_INLINE void sum_any(char *to, const char *const *terms, Py_ssize_t count, xep_dtype_t type, Py_ssize_t columns)
{
    if (type == XEP_BF16) sum_row(to, terms, count, XEP_BF16, columns);
    else sum_row(to, terms, count, type, columns);
}

typedef void (*sum_t)(char *to, const char *const *terms, Py_ssize_t count, xep_dtype_t type, Py_ssize_t columns);

static void sum_plain(char *to, const char *const *terms, Py_ssize_t count, xep_dtype_t type, Py_ssize_t columns)
{
    sum_any(to, terms, count, type, columns);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void sum_avx2(char *to, const char *const *terms, Py_ssize_t count,
                                                     xep_dtype_t type, Py_ssize_t columns)
{
    sum_any(to, terms, count, type, columns);
}
#endif

static sum_t choose_sum(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
    return sum_plain;
}

void ext_sum_rows(const ext_matrix_t *to, const ext_matrix_t *from, const ext_matrix_t *slots, const char **terms)
{
    const sum_t sum = choose_sum();
    const size_t bytes = (size_t)(to->columns * to->step);
    for (Py_ssize_t row = 0; row < slots->rows; row++) {
        Py_ssize_t count = 0;
        for (Py_ssize_t k = 0; k < slots->columns; k++) {
            const int64_t slot = ext_slots_of_row(slots, row)[k];
            if (slot >= 0 && slot < from->rows) terms[count++] = from->data + slot * from->stride;
        }
        char *there = to->data + row * to->stride;
        if (count == 0) memset(there, 0, bytes);
        else if (count == 1) memcpy(there, terms[0], bytes);
        else sum(there, terms, count, from->dtype, to->columns);
    }
}
