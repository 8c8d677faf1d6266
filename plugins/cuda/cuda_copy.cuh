/* SPDX-License-Identifier: BSD-3-Clause */

/** A row, copied by a warp in the widest unit that its addresses and its length allow. */
#ifndef XEP_CUDA_COPY_CUH
#define XEP_CUDA_COPY_CUH

#include <stdint.h>

/* A lane's loads are all on their way before its first store: the compiler cannot know that these are elsewhere. */
template <typename T> static __device__ __forceinline__ void copy_units(char *to, const char *from, uint64_t bytes)
{
    enum { AT_ONCE = 4, LINE = 32 * sizeof(T) };
    for (uint64_t at = threadIdx.x % 32 * sizeof(T); at < bytes; at += AT_ONCE * LINE) {
        T x[AT_ONCE];
#pragma unroll
        for (uint32_t a = 0; a < AT_ONCE; a++)
            if (at + a * LINE < bytes) x[a] = *(const T *)(from + at + a * LINE);
#pragma unroll
        for (uint32_t a = 0; a < AT_ONCE; a++)
            if (at + a * LINE < bytes) *(T *)(to + at + a * LINE) = x[a];
    }
}

/* Rare, and a function of its own: inlined, it would take registers from all that a kernel does. */
static __device__ __noinline__ void copy_odd(char *to, const char *from, uint64_t bytes, uint64_t odd)
{
    if (odd % 4 == 0) copy_units<uint32_t>(to, from, bytes);
    else if (odd % 2 == 0) copy_units<uint16_t>(to, from, bytes);
    else copy_units<uint8_t>(to, from, bytes);
}

/** odd: addresses, distances between rows and bytes, or-ed together. */
static __device__ __forceinline__ void copy_row(char *to, const char *from, uint64_t bytes, uint64_t odd)
{
    if (odd % 16 == 0) copy_units<int4>(to, from, bytes);
    else copy_odd(to, from, bytes, odd);
}

#endif
