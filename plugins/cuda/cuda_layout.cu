/* SPDX-License-Identifier: BSD-3-Clause */

/* What a dispatch would send where: a thread a token, counts in shared memory first. An index that is no expert counts
 * for nobody: the dispatch refuses it. */
#include "cuda_layout.h"
#include "cuda_words.cuh"

enum { FEW_RANKS = 64 };

/** What the threads of a block count together. */
typedef struct counters {
    uint32_t *owner;      /* [experts] rank */
    uint32_t *selections; /* [experts] */
    uint32_t *ranks, *nodes;
} counters_t;

/* Blocks of experts in rank order; the first ranks own one more where they do not come out even. */
static __device__ __forceinline__ uint32_t find_owner(const xep_cuda_layout_t &l, uint32_t expert)
{
    const uint32_t base = l.experts / l.nranks, more = l.experts % l.nranks, in_large = more * (base + 1);
    return expert < in_large ? expert / (base + 1) : more + (expert - in_large) / base;
}

/* The rank of a selection; nranks: nobody. */
static __device__ __forceinline__ uint32_t rank_of(const xep_cuda_layout_t &l, const counters_t &c, uint64_t token,
                                                   uint32_t k, uint32_t *expert_p)
{
    const char *row = l.topk_idx + token * l.topk_idx_stride;
    const int64_t expert = l.wide ? ((const int64_t *)row)[k] : ((const int32_t *)row)[k];
    if ((uint64_t)expert >= l.experts) return l.nranks;
    *expert_p = (uint32_t)expert;
    return c.owner[expert];
}

/* ---- up to 64 ranks: those of a token are bits, which a warp counts by votes ---- */

/* All lanes of a warp: one atomic in shared memory for 32 tokens. */
static __device__ __forceinline__ void vote(uint32_t *count, int yes)
{
    const uint32_t voters = __popc(__ballot_sync(UINT32_MAX, yes));
    if (threadIdx.x % 32 == 0 && voters != 0) atomicAdd(count, voters);
}

/* All threads of a warp; one beyond the last token has no ranks. */
static __device__ __forceinline__ void count_bits(const xep_cuda_layout_t &l, const counters_t &c, uint64_t token)
{
    uint64_t ranks = 0;
    uint32_t expert;
    for (uint32_t k = 0; token < l.tokens && k < l.topk; k++) {
        const uint32_t rank = rank_of(l, c, token, k, &expert);
        if (rank == l.nranks) continue;
        atomicAdd(&c.selections[expert], 1);
        ranks |= UINT64_C(1) << rank;
    }
    for (uint32_t r = 0; r < l.nranks; r++) {
        const int here = (int)(ranks >> r & 1);
        vote(&c.ranks[r], here);
        if (token < l.tokens && l.token_in_rank != nullptr) l.token_in_rank[token * l.nranks + r] = (uint8_t)here;
    }
    for (uint32_t n = 0; n < l.nodes; n++) {
        const uint64_t of_node = l.ranks_per_node < 64 ? (UINT64_C(1) << l.ranks_per_node) - 1 : UINT64_MAX;
        vote(&c.nodes[n], (ranks >> n * l.ranks_per_node & of_node) != 0);
    }
}

/* ---- more ranks: a selection counts if no earlier one of its token has the same rank, or node ---- */

static __device__ __forceinline__ void count_selection(const xep_cuda_layout_t &l, const counters_t &c, uint64_t token,
                                                       uint32_t k)
{
    uint32_t expert, other, new_rank = 1, new_node = 1;
    const uint32_t rank = rank_of(l, c, token, k, &expert);
    if (rank == l.nranks) return;
    atomicAdd(&c.selections[expert], 1);
    for (uint32_t i = 0; i < k && new_rank; i++) {
        const uint32_t before = rank_of(l, c, token, i, &other);
        if (before == l.nranks) continue;
        if (before == rank) new_rank = 0;
        if (before / l.ranks_per_node == rank / l.ranks_per_node) new_node = 0;
    }
    if (!new_rank) return;
    atomicAdd(&c.ranks[rank], 1);
    if (new_node) atomicAdd(&c.nodes[rank / l.ranks_per_node], 1);
    if (l.token_in_rank != nullptr) l.token_in_rank[token * l.nranks + rank] = 1;
}

static __device__ __forceinline__ void count_token(const xep_cuda_layout_t &l, const counters_t &c, uint64_t token)
{
    for (uint32_t r = 0; r < l.nranks && l.token_in_rank != nullptr; r++) l.token_in_rank[token * l.nranks + r] = 0;
    for (uint32_t k = 0; k < l.topk; k++) count_selection(l, c, token, k);
}

/* ---- of all blocks ---- */

static __device__ __forceinline__ void clear(int32_t *array, uint32_t count, uint32_t me, uint32_t all)
{
    for (uint32_t i = me; i < count && array != nullptr; i += all) array[i] = 0;
}

static __device__ __forceinline__ void add_to(int32_t *array, const uint32_t *counted, uint32_t count)
{
    for (uint32_t i = threadIdx.x; i < count && array != nullptr; i += blockDim.x)
        if (counted[i] != 0) atomicAdd(&array[i], (int32_t)counted[i]);
}

/* One cluster: arrays are zeroed, and then added to, by all blocks. */
extern "C" __global__ void __cluster_dims__(XEP_CUDA_LAYOUT_BLOCKS, 1, 1) __launch_bounds__(XEP_CUDA_LAYOUT_THREADS, 1)
    xep_cuda_layout(const __grid_constant__ xep_cuda_layout_t layout)
{
    extern __shared__ uint32_t shared[];
    const xep_cuda_layout_t &l = layout;
    const counters_t c = {shared, shared + l.experts, shared + 2 * l.experts, shared + 2 * l.experts + l.nranks};
    const uint32_t me = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    for (uint32_t e = threadIdx.x; e < l.experts; e += blockDim.x) c.owner[e] = find_owner(l, e);
    for (uint32_t i = threadIdx.x; i < l.experts + l.nranks + l.nodes; i += blockDim.x) c.selections[i] = 0;
    clear(l.tokens_per_rank, l.nranks, me, all);
    clear(l.tokens_per_node, l.nodes, me, all);
    clear(l.tokens_per_expert, l.experts, me, all);
    sync_cluster();
    /* up to a whole warp: votes need all of its lanes, also those behind the last token */
    const uint64_t warps_end = (l.tokens + 31) / 32 * 32;
    for (uint64_t t = me; t < warps_end; t += all) {
        if (l.nranks <= FEW_RANKS) count_bits(l, c, t);
        else if (t < l.tokens) count_token(l, c, t);
    }
    __syncthreads();
    add_to(l.tokens_per_rank, c.ranks, l.nranks);
    add_to(l.tokens_per_node, c.nodes, l.nodes);
    add_to(l.tokens_per_expert, c.selections, l.experts);
}
