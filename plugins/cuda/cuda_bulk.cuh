/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Bulk copies: global memory of any device to shared memory, and from there to global memory. They need no registers,
 * so that few multiprocessors keep much on its way. Addresses and lengths are multiples of 16 bytes.
 */
#ifndef XEP_CUDA_BULK_CUH
#define XEP_CUDA_BULK_CUH

#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void open_barrier(uint64_t *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)));
}

/** After all barriers of a block were opened, before the first copy. All threads of the block. */
__device__ __forceinline__ void share_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;");
    __syncthreads();
}

/** The barrier's phase ends when so many bytes of loads have come. */
__device__ __forceinline__ void expect_bytes(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void begin_load(void *stage, const char *from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(stage)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/** Until the phase 0 or 1 of the barrier has ended. */
__device__ __forceinline__ void wait_load(uint64_t *barrier, uint32_t phase)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(phase)
                     : "memory");
}

__device__ __forceinline__ void begin_store(char *to, const void *stage, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(stage)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void end_group()
{
    asm volatile("cp.async.bulk.commit_group;");
}

/** Until the stages of all groups but the last one may be written again. */
__device__ __forceinline__ void wait_read_but_one()
{
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}

/** Until the stages of all groups may be written again. */
__device__ __forceinline__ void wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/** Until all stores of this thread are done. */
__device__ __forceinline__ void wait_stored()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/** What ordinary accesses made visible to this thread is visible to its bulk copies too. */
__device__ __forceinline__ void fence_for_bulk()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

#endif
