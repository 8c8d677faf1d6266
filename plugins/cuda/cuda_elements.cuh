/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Elements of rows, and sums of them in fp32 with one rounding to nearest even at the end. NaN is the type's positive
 * quiet NaN without payload, as on the host.
 */
#ifndef XEP_CUDA_ELEMENTS_CUH
#define XEP_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* 1 or 2 of them are in a 4-byte word. */

struct bf16_t {
    typedef uint16_t raw;
    static __device__ __forceinline__ float load(raw v)
    {
        return __uint_as_float((uint32_t)v << 16);
    }
    static __device__ __forceinline__ uint32_t round(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
    static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b)
    {
        uint32_t word;
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
        return word;
    }
    static constexpr uint32_t NAN_FROM = 0x7fff, NAN_TO = 0x7fc0;
};

struct fp16_t {
    typedef uint16_t raw;
    static __device__ __forceinline__ float load(raw v)
    {
        return __half2float(__ushort_as_half(v));
    }
    static __device__ __forceinline__ uint32_t round(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
    static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b)
    {
        uint32_t word;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
        return word;
    }
    static constexpr uint32_t NAN_FROM = 0x7fff, NAN_TO = 0x7e00;
};

struct fp32_t {
    typedef uint32_t raw;
    static __device__ __forceinline__ float load(raw v)
    {
        return __uint_as_float(v);
    }
};

/* The conversions make one NaN of all, whose halves equal NAN_FROM; nothing else does. */
template <typename E> static __device__ __forceinline__ uint32_t mend_nan(uint32_t word)
{
    const uint32_t zero_if_nan = word ^ (E::NAN_FROM << 16 | E::NAN_FROM);
    if (((zero_if_nan - 0x00010001) & ~zero_if_nan & 0x80008000) == 0) return word;
    if ((word & 0xffff) == E::NAN_FROM) word = (word & 0xffff0000) | E::NAN_TO;
    if (word >> 16 == E::NAN_FROM) word = (word & 0xffff) | E::NAN_TO << 16;
    return word;
}

/* W: weighed; else the weight is 1 and not looked at. */
template <bool W> static __device__ __forceinline__ float add_float(float sum, float value, float weight)
{
    return W ? __fmaf_rn(weight, value, sum) : __fadd_rn(sum, value);
}

template <typename E, bool W> static __device__ __forceinline__ void add_word(float *sum, uint32_t word, float weight)
{
    sum[0] = add_float<W>(sum[0], E::load((typename E::raw)word), weight);
    if (sizeof(typename E::raw) == 2) sum[1] = add_float<W>(sum[1], E::load((typename E::raw)(word >> 16)), weight);
}

template <typename E> static __device__ __forceinline__ uint32_t round_word(const float *sum)
{
    return mend_nan<E>(E::round(sum[0], sum[1]));
}

template <typename E> static __device__ __forceinline__ int4 mend_pack(int4 pack)
{
    /* of a half that is the conversions' NaN, the sum with 1 has a sign that it has not; no half is all ones */
    const uint32_t nan = ((pack.x + 0x00010001) & ~pack.x) | ((pack.y + 0x00010001) & ~pack.y) |
                         ((pack.z + 0x00010001) & ~pack.z) | ((pack.w + 0x00010001) & ~pack.w);
    if ((nan & 0x80008000) == 0) return pack;
    return make_int4((int)mend_nan<E>((uint32_t)pack.x), (int)mend_nan<E>((uint32_t)pack.y),
                     (int)mend_nan<E>((uint32_t)pack.z), (int)mend_nan<E>((uint32_t)pack.w));
}

/*
 * +0 and two elements: a sum of two with so few bits is the same whether or not fp32 is between, since that has more
 * than twice as many; and a zero that would be -0, which none but two of them make, becomes +0.
 */
template <typename E> static __device__ __forceinline__ int4 add_two(const int4 &a, const int4 &b)
{
    return mend_pack<E>(make_int4((int)E::add(E::add((uint32_t)a.x, (uint32_t)b.x), 0),
                                  (int)E::add(E::add((uint32_t)a.y, (uint32_t)b.y), 0),
                                  (int)E::add(E::add((uint32_t)a.z, (uint32_t)b.z), 0),
                                  (int)E::add(E::add((uint32_t)a.w, (uint32_t)b.w), 0)));
}

template <> __device__ __forceinline__ uint32_t round_word<fp32_t>(const float *sum)
{
    return sum[0] != sum[0] ? 0x7fc00000 : __float_as_uint(sum[0]);
}

#endif
