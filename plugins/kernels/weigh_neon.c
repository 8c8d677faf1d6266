/* SPDX-License-Identifier: BSD-3-Clause */

/* The NEON sums: what the walk of weigh_lines.h cannot say in C of a vector, which is a quarter of a line. */
#include "weigh_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#define TARGET
#define REGISTER  "w"
#define VECTOR_FN __attribute__((always_inline)) static inline

/* bytes */
enum { VECTOR = 16 };
typedef float32x4_t floats_t;
typedef uint32x4_t bits_t;

VECTOR_FN bits_t load(const char *from)
{
    return vreinterpretq_u32_u8(vld1q_u8((const void *)from));
}

/* Sums that are larger than the caches differ by what is fetched ahead: whether stnp pays was not measured. */
VECTOR_FN void store(char *to, bits_t v, int streaming)
{
    (void)streaming;
    vst1q_u8((void *)to, vreinterpretq_u8_u32(v));
}

VECTOR_FN floats_t multiply_add(floats_t w, floats_t x, floats_t sum)
{
    return vfmaq_f32(sum, w, x);
}

VECTOR_FN bits_t numbers(floats_t sum)
{
    return vceqq_f32(sum, sum);
}

VECTOR_FN int has_nan(floats_t a, floats_t b)
{
    return vminvq_u32(vandq_u32(numbers(a), numbers(b))) == 0;
}

/* Sums that are not numbers are replaced, all others stay. */
VECTOR_FN bits_t plain_nan(floats_t sum, bits_t bits, uint32_t nan)
{
    return vbslq_u32(numbers(sum), bits, vdupq_n_u32(nan));
}

VECTOR_FN floats_t lower_fp16(bits_t v)
{
    return vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u32(v)));
}

VECTOR_FN floats_t upper_fp16(bits_t v)
{
    return vcvt_high_f32_f16(vreinterpretq_f16_u32(v));
}

VECTOR_FN uint16x4_t round_fp16(floats_t sum)
{
    return vbsl_u16(vmovn_u32(numbers(sum)), vreinterpret_u16_f16(vcvt_f16_f32(sum)), vdup_n_u16(0x7e00));
}

VECTOR_FN bits_t join_fp16(floats_t a, floats_t b)
{
    return vreinterpretq_u32_u16(vcombine_u16(round_fp16(a), round_fp16(b)));
}

/* Elements of half a vector, in their order. */
VECTOR_FN floats_t widen_bf16(const char *from)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const void *)from)), 16));
}

#include "weigh_lines.h"

TARGET void xep_weigh_wide_neon(float *out, const void *const *rows, size_t n, size_t elems)
{
    weigh_wide(out, rows, n, elems);
}

const xep_weigh_fn xep_weigh_neon[XEP_WEIGH_TYPES][2] = {{bf16, bf16_stream}, {fp16, fp16_stream}, {fp32, fp32_stream}};

#endif
