/* SPDX-License-Identifier: BSD-3-Clause */

/* The plan of many tokens, as a kernel of its own. */
#include "cuda_plan.cuh"

/*
 * One cluster, whose blocks share the tokens: one block alone would be busy with loads for 40 us when there are 4,096.
 * Shared memory: selections and owners [experts].
 */
extern "C" __global__ void __cluster_dims__(XEP_CUDA_PLAN_BLOCKS, 1, 1) __launch_bounds__(XEP_CUDA_PLAN_THREADS, 1)
    xep_cuda_plan(const __grid_constant__ xep_cuda_plan_t plan)
{
    extern __shared__ uint32_t shared[];
    const uint32_t segments = (plan.tokens + 31) / 32, me = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t all = gridDim.x * blockDim.x;
    uint32_t *selections = shared, *owner = shared + plan.experts, *mask = plan.scratch;
    uint32_t *before = mask + segments * plan.nranks;
    begin_next();
    if (is_stale(plan.life)) return; /* all blocks, here and in the other kernels */
    /* zeros, marks, rows before each segment, lists: each needs what all blocks have written in the one before */
    for (uint32_t i = me; i < segments * plan.nranks; i += all) mask[i] = 0;
    for (uint32_t e = me; e < plan.experts; e += all) plan.selections[e] = 0;
    for (uint32_t e = threadIdx.x; e < plan.experts; e += blockDim.x) {
        selections[e] = 0;
        owner[e] = plan.owner[e];
    }
    if (me == 0) *plan.wrong = UINT64_MAX;
    sync_cluster();
    for (uint32_t t = me; t < segments * 32; t += all)
        mark_segment(plan, t, owner, mask + t / 32 * plan.nranks, selections);
    sync_cluster();
    for (uint32_t e = threadIdx.x; e < plan.experts; e += blockDim.x)
        if (selections[e] != 0) atomicAdd(&plan.selections[e], selections[e]);
    for (uint32_t r = me / 32; r < plan.nranks; r += all / 32) scan_rank(plan, r, segments, mask, before);
    sync_cluster();
    for (uint32_t t = me; t < plan.tokens; t += all)
        list_token(plan, t, mask + t / 32 * plan.nranks, before + t / 32 * plan.nranks);
}
