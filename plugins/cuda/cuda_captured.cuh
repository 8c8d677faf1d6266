/* SPDX-License-Identifier: BSD-3-Clause */

/** The nodes of captured operations whose rows are staged: xep/captured.h says who writes which word. */
#ifndef XEP_CUDA_CAPTURED_CUH
#define XEP_CUDA_CAPTURED_CUH

#include <xep/captured.h>

#include "cuda_copy.cuh"

static __device__ __forceinline__ uint32_t load_answered(const uint32_t *address)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

/* Without a deadline: the host has one, and answers then, too. */
extern "C" __global__ void __launch_bounds__(32) xep_cuda_ask(const __grid_constant__ xep_captured_t c)
{
    if (threadIdx.x != 0) return;
    const uint32_t number = atomicAdd(&c.words->number, 1) + 1;
    *(volatile uint32_t *)&c.board->record = c.record;
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&c.board->asked), "r"(number) : "memory");
    uint32_t stopped = 0;
    while ((int32_t)(load_answered(&c.board->answered) - number) < 0 && stopped == 0)
        stopped = *(const volatile uint32_t *)c.stop;
    c.words->go = stopped == 0;
}

/*
 * A warp a part of a row: of long rows, and of many copies of few rows, as the experts of ll have, all warps take some.
 * A block has as much of the list as fits beside it at once, as each load from the host takes long.
 */
extern "C" __global__ void __launch_bounds__(512) xep_cuda_copies(const __grid_constant__ xep_captured_t c)
{
    enum { AT_ONCE = 64, WORDS = sizeof(xep_captured_copy_t) / sizeof(uint64_t), PART_BYTES = 2048 };
    __shared__ xep_captured_copy_t some[AT_ONCE];
    const uint64_t warps = (uint64_t)gridDim.x * (blockDim.x / 32);
    uint64_t part = threadIdx.x / 32 * (uint64_t)gridDim.x + blockIdx.x; /* of all those of the list */
    if (*(const volatile uint32_t *)&c.words->go == 0) return;
    const uint32_t count = *(const volatile uint32_t *)&c.board->count;
    for (uint32_t begin = 0; begin < count; begin += AT_ONCE) {
        const uint32_t n = count - begin < AT_ONCE ? count - begin : AT_ONCE;
        const volatile uint64_t *from = (const volatile uint64_t *)(c.copies + begin);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n * WORDS; i += blockDim.x) ((uint64_t *)some)[i] = from[i];
        __syncthreads();
        for (uint32_t i = 0; i < n; i++) {
            const xep_captured_copy_t &a = some[i];
            const uint64_t odd = (uint64_t)a.to | (uint64_t)a.from | a.to_stride | a.from_stride | a.bytes;
            const uint64_t parts = (a.bytes + PART_BYTES - 1) / PART_BYTES;
            for (; part < a.rows * parts; part += warps) {
                const uint64_t row = part / parts, at = part % parts * PART_BYTES, left = a.bytes - at;
                copy_row(a.to + row * a.to_stride + at, a.from + row * a.from_stride + at,
                         left < PART_BYTES ? left : PART_BYTES, odd);
            }
            part -= a.rows * parts;
        }
    }
    /* what the host reads is there before the next ask; fences of warps come one after the other, 2 us each */
    __syncthreads();
    if (threadIdx.x == 0) __threadfence_system();
}

#endif
