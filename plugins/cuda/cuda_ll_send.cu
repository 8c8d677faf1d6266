/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The send phase of a dispatch: rows are cast into this rank's own memory, where all receivers read them; what tells
 * them which rows are theirs is written to each.
 */
#include <xep/xep.h>

#include "cuda_elements.cuh"
#include "cuda_ll_heaps.cuh"
#include "cuda_words.cuh"

/*
 * GROUP: channels that have a scale in common. AHEAD: pairs of groups whose loads a warp has on their way. PART: bytes
 * of a row that a warp copies at once.
 */
enum {
    GROUP = 128,
    LANES = 16 /* of a group */,
    EACH = 8 /* channels of a lane */,
    AHEAD = 4,
    INDICES = 16, /* that a lane loads at once: a warp's lanes are as many at least */
    PART = 2048
};

typedef xep_cuda_ll_send_t send_t;

static __device__ __forceinline__ uint32_t warps_before()
{
    return threadIdx.x / 32 * gridDim.x + blockIdx.x; /* in a row over the blocks: none has more than its share */
}

static __device__ __forceinline__ uint32_t all_warps()
{
    return gridDim.x * (blockDim.x / 32);
}

/* ---- selections ---- */

static __device__ __forceinline__ int64_t load_index(const send_t &s, uint32_t i)
{
    const uint32_t topk = s.notice.topk, bytes = s.idx_bytes;
    const char *at = s.topk_idx + (s.topk_idx_stride == topk * bytes
                                       ? i * (uint64_t)bytes /* a division for each would take longer than the load */
                                       : i / topk * s.topk_idx_stride + i % topk * (uint64_t)bytes);
    return s.wide ? *(const int64_t *)at : *(const int32_t *)at;
}

/* To all ranks, also those that are not the expert's: they look at every pick, and would find that of an older turn. */
static __device__ __forceinline__ void tell_pick(const send_t &s, uint64_t turn, uint32_t i, xep_cuda_pick_t pick)
{
    s.kept.picks[i] = pick;
    for (uint32_t r = 0; r < s.at.nranks; r++)
        ((xep_cuda_pick_t *)head_at(s.at, (s.at.rank + r) % s.at.nranks, turn, s.at.rank))[i] = pick;
}

/* Of INDICES * 32 indices in a row, which are the expert: a lane a word of 32. */
static __device__ __forceinline__ uint32_t find_expert(const send_t &s, uint32_t begin, uint32_t expert)
{
    const uint32_t n = s.notice.tokens * s.notice.topk, lane = threadIdx.x % 32;
    int64_t index[INDICES];
    uint32_t word = 0;
#pragma unroll
    for (uint32_t a = 0; a < INDICES; a++) {
        const uint32_t i = begin + a * 32 + lane;
        index[a] = i < n ? load_index(s, i) : -1;
    }
#pragma unroll
    for (uint32_t a = 0; a < INDICES; a++) {
        const uint32_t mine = __ballot_sync(UINT32_MAX, index[a] == expert);
        if (lane == a) word = mine;
    }
    return word;
}

/* A warp an expert: its selections get numbers in the order of tokens, whatever the others do. */
static __device__ void number_expert(const send_t &s, uint64_t turn, uint32_t expert)
{
    const uint32_t n = s.notice.tokens * s.notice.topk, lane = threadIdx.x % 32;
    uint32_t count = 0;
    for (uint32_t begin = 0; begin < n; begin += INDICES * 32) {
        const uint32_t word = find_expert(s, begin, expert);
        uint32_t sum = __popc(word);
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t before = __shfl_up_sync(UINT32_MAX, sum, step);
            if (lane >= step) sum += before;
        }
        uint32_t ordinal = count + sum - __popc(word);
        for (uint32_t left = word; left != 0; left &= left - 1)
            tell_pick(s, turn, begin + lane * 32 + __ffs((int)left) - 1, xep_cuda_pick_t{(int32_t)expert, ordinal++});
        count += __shfl_sync(UINT32_MAX, sum, 31);
    }
    for (uint32_t r = lane; r < s.at.nranks; r += 32)
        ((uint32_t *)(head_at(s.at, r, turn, s.at.rank) + s.at.head_counts))[expert] = count;
}

/* All that are no expert; and the weights of all. */
static __device__ void tell_rest(const send_t &s, uint64_t turn)
{
    const uint32_t n = s.notice.tokens * s.notice.topk;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int64_t index = load_index(s, i);
        const char *weights = s.weights + i / s.notice.topk * s.weights_stride;
        const float weight = s.weights == nullptr ? 1.0f : ((const float *)weights)[i % s.notice.topk];
        if ((uint64_t)index >= s.at.experts) {
            tell_pick(s, turn, i, xep_cuda_pick_t{-1, 0});
            if (index != -1) atomicMin((unsigned long long *)s.wrong, (unsigned long long)i);
        }
        s.kept.weights[i] = weight;
        for (uint32_t r = 0; r < s.at.nranks && s.notice.sends_weights; r++)
            ((float *)(head_at(s.at, r, turn, s.at.rank) + s.at.head_weights))[i] = weight;
    }
}

/* ---- rows as they are ---- */

template <typename T> static __device__ __forceinline__ void copy_part(char *to, const char *from, uint32_t bytes)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = ((const T *)from)[i];
}

/* In parts, so that a few long rows keep as many warps busy as many short ones; then the scales of each token. */
static __device__ void pack_rows(const send_t &s, char *items, uint32_t first, uint32_t all)
{
    const uint32_t parts = (uint32_t)((s.item.row_bytes + PART - 1) / PART), units = s.notice.tokens * parts;
    const uint64_t odd = (uint64_t)s.x | s.x_stride | s.item.row_bytes;
    for (uint32_t u = first; u < units; u += all) {
        const uint32_t token = u / parts, part = u % parts;
        const uint64_t left = s.item.row_bytes - (uint64_t)part * PART;
        const uint32_t bytes = left < PART ? (uint32_t)left : PART;
        const char *from = s.x + token * s.x_stride + (uint64_t)part * PART;
        char *to = items + token * s.item.stride + (uint64_t)part * PART;
        if (odd % 16 == 0) copy_part<int4>(to, from, bytes);
        else if (odd % 4 == 0) copy_part<uint32_t>(to, from, bytes);
        else copy_part<char>(to, from, bytes);
    }
    for (uint32_t t = first; t < s.notice.tokens; t += all) {
        const char *from = s.scales + (int64_t)t * s.scales_token_stride;
        uint32_t *to = (uint32_t *)(items + t * s.item.stride + s.item.scales);
        for (uint32_t i = threadIdx.x % 32; i < s.notice.nscales; i += 32)
            to[i] = *(const uint32_t *)(from + (int64_t)i * s.scales_stride);
    }
}

/* ---- rows cast to e4m3 by the rules of plugins/kernels/cast.h: half a warp a group ---- */

/* The channels of a lane; 0 behind the end of the row. */
template <typename E> struct channels {
    static constexpr int PACKS = EACH * sizeof(typename E::raw) / 16;
    union {
        int4 pack[PACKS];
        typename E::raw raw[EACH];
    };

    __device__ __forceinline__ void load(const char *row, uint32_t first, uint32_t hidden, int aligned)
    {
        const typename E::raw *from = (const typename E::raw *)row + first;
        if (aligned && first + EACH <= hidden) {
#pragma unroll
            for (int i = 0; i < PACKS; i++) pack[i] = ((const int4 *)from)[i];
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++) raw[i] = first + i < hidden ? from[i] : 0;
        }
    }
};

/* From a group's amax its scale; returns what its elements are multiplied by. */
static __device__ __forceinline__ float scale_of(float amax, int pow2, float *scale_p)
{
    const float scale = __fmul_rn(amax, 1.0f / 448.0f);
    if (!pow2) {
        *scale_p = scale;
        return __fdiv_rn(448.0f, amax); /* 0 of Inf */
    }
    const uint32_t bits = __float_as_uint(scale), exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);
    *scale_p = __uint_as_float(exponent << 23);
    return exponent == 255 ? 0.0f : __uint_as_float((254 - exponent) << 23);
}

static __device__ __forceinline__ uint32_t e4m3_pair(float low, float high)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

/* One lane of a group writes its scale; exponents are bytes, and the last group's lane fills up its word. */
static __device__ __forceinline__ void store_scale(const send_t &s, char *item, uint32_t group, uint32_t groups,
                                                   float scale)
{
    char *scales = item + s.item.scales;
    if (s.notice.quant != XEP_QUANT_UE8M0) {
        ((float *)scales)[group] = scale;
        return;
    }
    scales[group] = (char)(__float_as_uint(scale) >> 23);
    for (uint32_t i = group + 1; group + 1 == groups && i % 4 != 0; i++) scales[i] = 0;
}

template <typename E>
static __device__ __forceinline__ void cast_group(const send_t &s, char *item, uint32_t first, const channels<E> &x)
{
    const uint32_t hidden = s.notice.hidden, group = first / GROUP, groups = (hidden + GROUP - 1) / GROUP;
    float value[EACH], amax = 1e-4f, scale;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        value[i] = E::load(x.raw[i]);
        amax = fmaxf(amax, fabsf(value[i])); /* a NaN does not count */
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(UINT32_MAX, amax, step));
    const float factor = scale_of(amax, s.notice.quant != XEP_QUANT_E4M3, &scale);
    /* not before: lanes behind the end of the row are needed by the shuffles */
    if (first >= hidden) return;
    uint32_t out[EACH / 4];
#pragma unroll
    for (int i = 0; i < EACH / 4; i++) {
        const float *v = value + 4 * i;
        out[i] = e4m3_pair(__fmul_rn(v[0], factor), __fmul_rn(v[1], factor)) |
                 e4m3_pair(__fmul_rn(v[2], factor), __fmul_rn(v[3], factor)) << 16;
    }
    if (first + EACH <= hidden) *(uint2 *)(item + first) = make_uint2(out[0], out[1]);
    else
        for (uint32_t i = 0; first + i < hidden; i++) item[first + i] = (char)(out[i / 4] >> 8 * (i % 4));
    if (first % GROUP == 0) store_scale(s, item, group, groups, scale);
}

/* A warp casts two groups at once, and has the loads of some pairs of groups on their way. */
template <typename E> static __device__ void cast_rows(const send_t &s, char *items, uint32_t first_unit, uint32_t all)
{
    const uint32_t hidden = s.notice.hidden, of_row = (hidden + 2 * GROUP - 1) / (2 * GROUP),
                   units = s.notice.tokens * of_row;
    const int aligned = ((uint64_t)s.x | s.x_stride) % 16 == 0;
    for (uint32_t begin = first_unit; begin < units; begin += AHEAD * all) {
        channels<E> x[AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t u = begin + a * all, first = u % of_row * 2 * GROUP + threadIdx.x % 32 * EACH;
            if (u < units) x[a].load(s.x + u / of_row * s.x_stride, first, hidden, aligned);
        }
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t u = begin + a * all, first = u % of_row * 2 * GROUP + threadIdx.x % 32 * EACH;
            if (u < units) cast_group<E>(s, items + u / of_row * s.item.stride, first, x[a]);
        }
    }
}

/* ---- the notices ---- */

/* The last block, which has ordered all that was written: a thread a rank, the line by stores, then its word. */
static __device__ void tell_notices(const send_t &s, uint64_t epoch, uint64_t turn)
{
    const uint64_t wrong = *(volatile uint64_t *)s.wrong;
    ll_notice_t notice = s.notice;
    notice.wrong = wrong != UINT64_MAX;
    for (uint32_t i = threadIdx.x; i < s.at.nranks; i += blockDim.x) {
        char *line = notice_at(s.at, (s.at.rank + 1 + i) % s.at.nranks, turn, s.at.rank);
        for (uint32_t w = 1; w < sizeof notice / 8; w++) ((uint64_t *)line)[w] = ((const uint64_t *)&notice)[w];
        store_word(line, epoch);
    }
    __syncthreads(); /* wrong was read by all */
    if (threadIdx.x != 0) return;
    *s.wrong = UINT64_MAX;
    *s.at.slot = xep_cuda_ll_slot_t{epoch, turn, wrong, XEP_CUDA_LL_LOST};
    *s.at.now = xep_cuda_ll_now_t{epoch, turn + 1, 0}; /* nobody has lost step, or this would not be done */
}

/* The rows, by so many warps, of which this is one. */
static __device__ __forceinline__ void move_rows(const send_t &s, char *items, uint32_t warp, uint32_t warps)
{
    if (s.notice.quant == XEP_QUANT_NONE) pack_rows(s, items, warp, warps);
    else if (s.elem_bytes == 4) cast_rows<fp32_t>(s, items, warp, warps);
    else if (s.notice.dtype == XEP_BF16) cast_rows<bf16_t>(s, items, warp, warps);
    else cast_rows<fp16_t>(s, items, warp, warps);
}

/* Waits for nobody: notices.h says why all have read this entry of the ring by now. The last block tells all ranks. */
extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_ll_send(const __grid_constant__ xep_cuda_ll_send_t s)
{
    const uint64_t epoch = s.at.now->epoch + 1, turn = s.at.now->turn;
    char *items = items_at(s.at, turn, s.at.rank);
    if (is_left_out(s.at, epoch)) return;
    /* where there are enough warps, those that number selections leave the rows to the others */
    const uint32_t busy = all_warps() < 2 * s.at.experts ? 0 : s.at.experts;
    for (uint32_t e = warps_before(); e < s.at.experts; e += all_warps()) number_expert(s, turn, e);
    tell_rest(s, turn);
    if (warps_before() >= busy) move_rows(s, items, warps_before() - busy, all_warps() - busy);
    begin_next();
    if (is_last_block(s.at.blocks_done)) tell_notices(s, epoch, turn);
}
