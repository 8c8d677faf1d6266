/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows pushed to the sources of their tokens and summed there, where a buffer leaves no rank out and has
 * multiprocessors enough (cuda_ll_combine.c). No word says that a row has come: each 32-bit word of it does so itself.
 *
 * Every slot of a heap has an inbox: two areas of a row for each selection of its tokens, filled with EMPTY when the
 * mode is opened. The rank that has a selection's expert stores the row there, in packs of 16 bytes, with another NaN
 * where a word is EMPTY, and zeros behind the row's end. The source loads a pack until no word of it is EMPTY, and
 * stores EMPTY in its place. It needs nothing of memory but that a word of 4 bytes is stored and loaded whole. A sum
 * that has a NaN in it is the same NaN, whichever came in: so its bits do not tell that a NaN was exchanged.
 *
 * Who writes a word, and when: the owner of the expert once for each combine, the source once behind it. Both know the
 * same selections, as both have them from the same dispatch, which all ranks have found good, or else none combines.
 *
 * Why a word is EMPTY when a row is stored. Combines of a handle take the areas in turn, the first one area 0.
 *  - The first: the source has cleared all that earlier handles of the slot brought, by kernels behind which, on the
 *    stream, the dispatch of this handle told "sent" (it waits for the kernel before it, however early it began). The
 *    owner of the expert has seen that word before its combine began. Nothing of an earlier handle is still to come, as
 *    a combine does not end before it has all its rows; a handle without a combine brought none.
 *  - The second: likewise, as the first has not touched area 1.
 *  - Any other, n: the owner of the expert has received combine n - 1, and so seen the source's "ready" of it, which
 *    the source told when its kernels of combine n - 2 had ended, and with them their stores of EMPTY.
 * A combine of the handle that sums at owners takes no area, and counts for none here: it is told of and received, too.
 * "Ready", and the offer beside it: cuda_ll_offers.cuh.
 * Where a combine loses step, as a word has not come in time or ranks differ, the inbox may have anything in it, and
 * nothing is done any more until a reset fills it again.
 *
 * A rank that is given up, and lives, may store a row when its place is another's already: buffers that leave ranks out
 * pull their rows instead (cuda_ll_combine.cu).
 */
#ifndef XEP_CUDA_LL_ROWS_CUH
#define XEP_CUDA_LL_ROWS_CUH

#include "cuda_ll_heaps.cuh"
#include "cuda_ll_offers.cuh"
#include "cuda_sum.cuh"

typedef xep_cuda_ll_rows_t rows_t;

enum {
    PACK = 16,           /* bytes, of a lane */
    LINE = 32 * PACK,    /* of a warp: what it sums at once */
    ROW_PART = 2 * LINE, /* what it pushes at once */
    AT_ONCE = 8,         /* contributions that it waits for together */
};

/* ---- packs ---- */

static constexpr uint32_t EMPTY = UINT32_MAX; /* in each type NaN */

/* Another NaN. */
template <typename E> static __device__ __forceinline__ int fill_word(int word)
{
    return (uint32_t)word == EMPTY ? (int)(sizeof(typename E::raw) == 2 ? 0xffff7fff : 0x7fffffff) : word;
}

static __device__ __forceinline__ int is_whole(const int4 &pack)
{
    return pack.x != (int)EMPTY && pack.y != (int)EMPTY && pack.z != (int)EMPTY && pack.w != (int)EMPTY;
}

static __device__ __forceinline__ int4 load_pack(const char *from)
{
    int4 p;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p.x), "=r"(p.y), "=r"(p.z), "=r"(p.w)
                 : "l"(from)
                 : "memory");
    return p;
}

static __device__ __forceinline__ void store_pack(char *to, const int4 &p)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(p.x), "r"(p.y), "r"(p.z),
                 "r"(p.w)
                 : "memory");
}

/* ODD: rows of any alignment and length, an element at a time; else whole packs. There is zero behind the end. */
template <typename E, bool ODD>
static __device__ __forceinline__ int4 take_pack(const char *row, uint32_t at, uint32_t bytes)
{
    if constexpr (!ODD) return *(const int4 *)(row + at);
    enum { RAW = sizeof(typename E::raw), OF_WORD = 4 / RAW };
    uint32_t word[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < PACK / RAW; i++)
        if (at + i * RAW < bytes)
            word[i / OF_WORD] |= (uint32_t) * (const typename E::raw *)(row + at + i * RAW) << i % OF_WORD * 16;
    return make_int4((int)word[0], (int)word[1], (int)word[2], (int)word[3]);
}

template <typename E, bool ODD>
static __device__ __forceinline__ void put_pack(char *row, uint32_t at, uint32_t bytes, const int4 &pack)
{
    if constexpr (!ODD) {
        *(int4 *)(row + at) = pack;
        return;
    }
    enum { RAW = sizeof(typename E::raw), OF_WORD = 4 / RAW };
    const uint32_t word[4] = {(uint32_t)pack.x, (uint32_t)pack.y, (uint32_t)pack.z, (uint32_t)pack.w};
#pragma unroll
    for (uint32_t i = 0; i < PACK / RAW; i++)
        if (at + i * RAW < bytes)
            *(typename E::raw *)(row + at + i * RAW) = (typename E::raw)(word[i / OF_WORD] >> i % OF_WORD * 16);
}

/* ---- the inbox ---- */

/* The row of a selection, in the heap and the slot of its source. */
static __device__ __forceinline__ char *inbox_at(const rows_t &c, uint32_t heap, uint32_t slot, uint32_t area,
                                                 uint32_t token, uint32_t k)
{
    const xep_cuda_ll_heaps_t &at = c.sums.at;
    const uint64_t row = ((slot * UINT64_C(2) + area) * at.tokens + token) * c.topk + k;
    return at.peer[heap] + c.inbox + row * c.sums.row_stride;
}

/* ---- push ---- */

/* A part of a row, by a warp. */
template <typename E, bool ODD>
static __device__ __forceinline__ void push_part(char *to, const char *from, uint32_t begin, uint32_t bytes)
{
    int4 pack[ROW_PART / LINE];
    const uint32_t lane = begin + threadIdx.x % 32 * PACK;
#pragma unroll
    for (uint32_t i = 0; i < ROW_PART / LINE; i++)
        if (lane + i * LINE < bytes) pack[i] = take_pack<E, ODD>(from, lane + i * LINE, bytes);
#pragma unroll
    for (uint32_t i = 0; i < ROW_PART / LINE; i++)
        if (lane + i * LINE < bytes)
            store_pack(to + lane + i * LINE, make_int4(fill_word<E>(pack[i].x), fill_word<E>(pack[i].y),
                                                       fill_word<E>(pack[i].z), fill_word<E>(pack[i].w)));
}

/* All rows for other ranks, by the warps that push, of which this is one: tokens in order, as their sums go. */
template <typename E, bool ODD>
static __device__ __forceinline__ void push_rows(const rows_t &c, uint32_t area, uint32_t warp, uint32_t warps)
{
    const xep_cuda_ll_heaps_t &at = c.sums.at;
    const uint32_t lane = threadIdx.x % 32, bytes = c.row_bytes, others = at.nranks - 1;
    const uint32_t parts = (bytes + ROW_PART - 1) / ROW_PART;
    for (uint32_t u = warp; u < (uint32_t)at.tokens * parts * others; u += warps) {
        const uint32_t source = (at.rank + 1 + u % others) % at.nranks, part = u / others % parts,
                       token = u / others / parts;
        const uint32_t *rows = c.came.rows + (source * at.tokens + token) * c.topk;
        const uint32_t tokens = c.came.tokens[source];
        for (uint32_t k = 0; k < c.topk; k += 32) {
            /* loaded beside the number of tokens, not behind it; of a token that there is not it is not looked at */
            const uint32_t mine = k + lane < c.topk ? rows[k + lane] : (uint32_t)XEP_CUDA_LL_NO_ROW;
            uint32_t here = __ballot_sync(UINT32_MAX, mine != (uint32_t)XEP_CUDA_LL_NO_ROW && token < tokens);
            for (; here != 0; here &= here - 1) {
                const uint32_t n = (uint32_t)__ffs((int)here) - 1, row = __shfl_sync(UINT32_MAX, mine, n);
                push_part<E, ODD>(inbox_at(c, source, at.there[source], area, token, k + n),
                                  c.sums.own + row * c.sums.own_stride, part * ROW_PART, bytes);
            }
        }
    }
}

/* ---- sum ---- */

/* A contribution to a token: biases first, whose weight is 1. Rows of this rank's experts stay where they are. */
typedef struct spot {
    char *row; /* nullptr: there is none */
    float weight;
    int comes; /* 0: it is there already */
} spot_t;

static __device__ __forceinline__ spot_t find_spot(const rows_t &c, uint32_t area, uint32_t token, uint32_t n)
{
    const xep_cuda_ll_sums_t &s = c.sums;
    spot_t spot = {(char *)bias_of(s.sum, token, &n), 1, 0};
    if (spot.row != nullptr) return spot;
    /* all is loaded at once */
    const int32_t expert = s.kept.picks[(uint64_t)token * c.topk + n].expert;
    const uint32_t own = c.came.rows[(s.at.rank * s.at.tokens + token) * c.topk + n];
    char *inbox = inbox_at(c, s.at.rank, s.at.slot_number, area, token, n);
    if (s.weights != nullptr) spot.weight = ((const float *)(s.weights + token * s.weights_stride))[n];
    if (expert < 0) return spot;
    spot.comes = own == (uint32_t)XEP_CUDA_LL_NO_ROW;
    spot.row = spot.comes ? inbox : (char *)s.own + own * s.own_stride;
    return spot;
}

/*
 * A lane: whether a token's rows have been looked for often enough. missing: those that have not come, of contributions
 * from one on; the first one's rank is told.
 */
static __device__ __noinline__ int is_late(const rows_t &c, uint64_t begin, uint32_t token, uint32_t n,
                                           uint32_t missing)
{
    const xep_cuda_deadline_t &deadline = c.sums.deadline;
    if (*(volatile const uint32_t *)deadline.stop != 0) return 1;
    if (deadline.timeout_ns == 0 || clock_ns() - begin < deadline.timeout_ns) return 0;
    n += (uint32_t)__ffs((int)missing) - 1;
    if (bias_of(c.sums.sum, token, &n) == nullptr)
        *(volatile uint32_t *)deadline.late =
            c.sums.at.owner[c.sums.kept.picks[token * (uint64_t)c.topk + n].expert] + 1;
    return 1;
}

/*
 * The packs at a byte of the rows of which each lane has one, of contributions to a token from one on: of those in the
 * inbox until they are there, and then they are taken out. A warp; there: which lanes have one. 0: the deadline has
 * passed.
 */
template <typename E, bool ODD>
static __device__ __forceinline__ int take_packs(const rows_t &c, const spot_t &spot, uint32_t token, uint32_t first,
                                                 uint32_t there, uint32_t at, int4 *pack)
{
    const uint32_t comes = __ballot_sync(UINT32_MAX, spot.comes), mine = at < c.row_bytes ? there : 0;
    uint32_t missing = mine, all;
    uint64_t begin = 0;
    for (uint32_t looks = 0; (all = __reduce_or_sync(UINT32_MAX, missing)) != 0; looks++) {
        if (looks == 1) begin = clock_ns();
        if (looks % 256 == 255 && __any_sync(UINT32_MAX, is_late(c, begin, token, first, all))) return 0;
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; n++) {
            const char *row = (const char *)__shfl_sync(UINT32_MAX, (uint64_t)spot.row, n);
            if ((missing >> n & 1) == 0) continue;
            if (ODD && (comes >> n & 1) == 0) pack[n] = take_pack<E, ODD>(row, at, c.row_bytes);
            else pack[n] = load_pack(row + at);
        }
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; n++)
            if ((comes >> n & 1) == 0 || is_whole(pack[n])) missing &= ~(1u << n);
    }
#pragma unroll
    for (uint32_t n = 0; n < AT_ONCE; n++) {
        char *row = (char *)__shfl_sync(UINT32_MAX, (uint64_t)spot.row, n);
        if ((mine & comes) >> n & 1) *(int4 *)(row + at) = make_int4((int)EMPTY, (int)EMPTY, (int)EMPTY, (int)EMPTY);
    }
    return 1;
}

/* A line of a token, by a warp. MANY: any number of contributions; else AT_ONCE at most. 0: the deadline has passed. */
template <typename E, bool ODD, bool MANY>
static __device__ __forceinline__ int sum_line(const rows_t &c, uint32_t area, uint32_t token, uint32_t begin)
{
    const xep_cuda_sum_t &s = c.sums.sum;
    const uint32_t lane = threadIdx.x % 32, at = begin + lane * PACK;
    float sum[PACK / sizeof(typename E::raw)] = {};
    for (uint32_t n = 0; n < (MANY ? s.rows : 1); n += AT_ONCE) {
        spot_t spot = {nullptr, 0, 0};
        int4 pack[AT_ONCE];
        if (lane < AT_ONCE && n + lane < s.rows) spot = find_spot(c, area, token, n + lane);
        const uint32_t there = __ballot_sync(UINT32_MAX, spot.row != nullptr);
        if (!take_packs<E, ODD>(c, spot, token, n, there, at, pack)) return 0;
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const float weight = __shfl_sync(UINT32_MAX, spot.weight, i);
            if (there >> i & 1) add_pack<E, true>(sum, pack[i], weight);
        }
    }
    if (at < c.row_bytes) put_pack<E, ODD>(s.out + token * s.out_stride, at, c.row_bytes, round_pack<E>(sum));
    return 1;
}

/* All tokens, by the warps that sum, of which this is one. 0: the deadline has passed. */
template <typename E, bool ODD, bool MANY>
static __device__ __forceinline__ int sum_lines(const rows_t &c, uint32_t area, uint32_t warp, uint32_t warps)
{
    const uint32_t lines = (c.row_bytes + LINE - 1) / LINE;
    int good = 1;
    for (uint32_t u = warp; u < c.sums.sum.tokens * lines && good; u += warps)
        good = sum_line<E, ODD, MANY>(c, area, u / lines, u % lines * LINE);
    return good;
}

/* ---- with what alignment, and how many ---- */

/* Rare, and functions of their own: inlined, they would take registers from what is not. */
template <typename E>
static __device__ __noinline__ void push_odd(const rows_t &c, uint32_t area, uint32_t warp, uint32_t warps)
{
    push_rows<E, true>(c, area, warp, warps);
}

template <typename E, bool ODD>
static __device__ __noinline__ int sum_many(const rows_t &c, uint32_t area, uint32_t warp, uint32_t warps)
{
    return sum_lines<E, ODD, true>(c, area, warp, warps);
}

/* The first warps of each block push, where there are others, too: those sum at the same time. */
template <typename E> static __device__ __forceinline__ void push_all(const rows_t &c, uint32_t area)
{
    const uint32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = c.pushing * gridDim.x;
    if (c.odd) push_odd<E>(c, area, warp, warps);
    else push_rows<E, false>(c, area, warp, warps);
}

template <typename E> static __device__ __forceinline__ int sum_all(const rows_t &c, uint32_t area)
{
    const uint32_t warp = (threadIdx.x / 32 - c.pushing) * gridDim.x + blockIdx.x;
    const uint32_t warps = (blockDim.x / 32 - c.pushing) * gridDim.x;
    if (c.odd) return sum_many<E, true>(c, area, warp, warps);
    if (c.sums.sum.rows > AT_ONCE) return sum_many<E, false>(c, area, warp, warps);
    return sum_lines<E, false, false>(c, area, warp, warps);
}

#endif
