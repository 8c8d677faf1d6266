/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_world.cuh"

#include <cstring>

extern "C" __global__ void xep_cuda_plan(xep_cuda_plan_t plan);
extern "C" __global__ void xep_cuda_dispatch(xep_cuda_dispatch_t dispatch);
extern "C" __global__ void xep_cuda_combine_bf16(xep_cuda_combine_t combine);
extern "C" __global__ void xep_cuda_combine_fp16(xep_cuda_combine_t combine);
extern "C" __global__ void xep_cuda_combine_fp32(xep_cuda_combine_t combine);

namespace
{

constexpr uint64_t TIMEOUT_NS = 5000000000;
constexpr int SHARED_BYTES = 220 * 1024;

uint64_t lines(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

} // namespace

/* Every device may reach every other, and the kernels have the shared memory that they are launched with. */
void world::prepare(int devices)
{
    for (int i = 0; i < devices; i++) {
        CHECK(cudaSetDevice(i));
        CHECK(cudaFuncSetAttribute(xep_cuda_dispatch, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
        for (auto kernel : {xep_cuda_combine_bf16, xep_cuda_combine_fp16, xep_cuda_combine_fp32})
            CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
        CHECK(cudaFuncSetAttribute(xep_cuda_plan, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
        for (int j = 0; j < devices; j++)
            if (i != j) CHECK(cudaDeviceEnablePeerAccess(j, 0));
    }
}

void world::lay_out()
{
    uint64_t local = (s.experts + s.nranks - 1) / s.nranks, end = 0;
    auto take = [&](uint64_t bytes) {
        uint64_t begin = end;
        end += (bytes + 255) / 256 * 256;
        return begin;
    };
    at.recv_rows = s.nranks * s.tokens;
    at.record_bytes = lines(sizeof(normal_record_t) + (s.nranks + local) * 4);
    at.row_stride = lines(s.hidden * elem);
    at.combine_stride = lines(s.hidden * combine_elem);
    at.words = take((uint64_t)s.nranks * WORDS * 64);
    at.records = take(s.nranks * 2 * at.record_bytes);
    at.src_token = take(at.recv_rows * 4);
    at.topk_idx = take(at.recv_rows * s.topk * 8);
    at.weights = take(at.recv_rows * s.topk * 4);
    at.scales = take(at.recv_rows * s.nscales * 4);
    at.x = take(at.recv_rows * at.row_stride);
    at.input = take(at.recv_rows * at.combine_stride);
    at.bytes = end;
}

void world::open_rank(uint32_t r)
{
    CHECK(cudaSetDevice((int)r));
    auto rank = std::make_unique<rank_state>();
    const uint64_t tokens = routing->tokens_of[r];
    rank->rank = r;
    rank->tokens = tokens;
    CHECK(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    CHECK(cudaHostAlloc(&rank->counted, 2 * sizeof(uint64_t), cudaHostAllocDefault));
    CHECK(cudaHostAlloc(&rank->late, 3 * sizeof(uint32_t), cudaHostAllocDefault));
    CHECK(cudaHostAlloc(&rank->mirror, s.nranks * at.record_bytes, cudaHostAllocDefault));
    rank->late[0] = rank->late[1] = rank->late[2] = 0;
    std::vector<char> x(tokens * s.hidden * elem), idx(tokens * s.topk * 8), spread(tokens * x_stride);
    std::vector<float> weights(tokens * s.topk);
    std::vector<uint32_t> scales(tokens * s.nscales), owner(s.experts), first(s.nranks + 1);
    oracle_fill_inputs(&truth, r, x.data(), idx.data(), weights.data(), s.nscales ? scales.data() : nullptr);
    for (uint64_t t = 0; t < tokens; t++) memcpy(&spread[t * x_stride], &x[t * s.hidden * elem], s.hidden * elem);
    for (uint32_t e = 0; e < s.experts; e++) owner[e] = oracle_owner(routing, e);
    for (uint32_t i = 0; i <= s.nranks; i++) {
        uint32_t count = 0;
        if (i < s.nranks) oracle_experts_of(routing, i, &first[i], &count);
        else first[i] = s.experts;
    }
    rank->x.make(spread);
    rank->topk_idx.make(idx);
    rank->weights.make(weights);
    rank->scales.make(std::vector<char>((char *)scales.data(), (char *)(scales.data() + scales.size())));
    rank->owner.make(owner);
    rank->first_expert.make(first);
    for (int b = 0; b < 2; b++) {
        std::vector<char> bias(tokens * s.hidden * combine_elem);
        oracle_fill_biases(&truth, b, r, bias.data());
        rank->bias[b].make(bias);
    }
    rank->heap.make(at.bytes);
    CHECK(cudaMemset(rank->heap.data + at.words, 0, at.src_token - at.words));
    rank->out.make(tokens * out_stride);
    rank->rows.make(s.nranks);
    rank->selections.make(s.experts);
    rank->local.make(s.experts);
    rank->rank_rows.make((size_t)s.nranks * s.nranks);
    rank->scratch.make(2 * ((tokens + 31) / 32) * s.nranks);
    rank->verdict.make(1);
    rank->life.make(std::vector<uint64_t>(1, LIFE));
    rank->chosen.make(tokens * s.topk);
    rank->there.make(s.nranks);
    rank->wrong.make(1);
    rank->dest.make(tokens * max_dests);
    for (auto &now : rank->now) now.make(std::vector<xep_cuda_now_t>(1));
    ranks.push_back(std::move(rank));
}

world::world(const shape &shape) : s(shape)
{
    char why[256];
    oracle_routing_params_t params{};
    if (oracle_route_parse(s.routing, &params.spec, why, sizeof why) != 0) fprintf(stderr, "%s\n", why), exit(2);
    params.seed = 7;
    params.nranks = s.nranks;
    params.experts = s.experts;
    params.topk = s.topk;
    params.mask = s.mask;
    params.tokens = s.tokens;
    params.tokens_of = s.tokens_of.empty() ? nullptr : s.tokens_of.data();
    if (oracle_routing_create(&params, &routing, why, sizeof why) != 0) fprintf(stderr, "%s\n", why), exit(2);
    truth.routing = routing;
    truth.payload = 99;
    truth.hidden = s.hidden;
    truth.nscales = s.nscales;
    truth.dtype = s.dtype;
    truth.combine_dtype = s.combine_dtype;
    truth.idx_dtype = s.idx_dtype;
    truth.scales_dtype = XEP_FP32;
    truth.weights = s.weights;
    auto size_of = [](xep_dtype_t t) -> uint64_t { return t == XEP_FP32 ? 4 : t == XEP_E4M3 ? 1 : 2; };
    elem = size_of(s.dtype);
    combine_elem = size_of(s.combine_dtype);
    x_stride = s.hidden * elem + s.odd;
    out_stride = s.hidden * combine_elem + s.odd;
    max_dests = std::min(s.topk, s.nranks);
    lay_out();
    for (uint32_t r = 0; r < s.nranks; r++) open_rank(r);
    std::vector<char *> bases;
    for (auto &rank : ranks) bases.push_back(rank->heap.data);
    each([&](rank_state &rank) {
        rank.peer.make(bases);
        CHECK(cudaDeviceSynchronize());
    });
}

xep_cuda_plan_t world::plan_of(rank_state &rank)
{
    xep_cuda_plan_t a{};
    a.life = life(rank);
    a.topk_idx = rank.topk_idx.data;
    a.wide = s.idx_dtype == XEP_INT64;
    a.topk_idx_stride = s.topk * (a.wide ? 8 : 4);
    a.tokens = (uint32_t)rank.tokens;
    a.topk = s.topk;
    a.experts = s.experts;
    a.nranks = s.nranks;
    a.max_dests = max_dests;
    a.owner = rank.owner.data;
    a.scratch = rank.scratch.data;
    a.dest = rank.dest.data;
    a.chosen = rank.chosen.data;
    a.rows = rank.rows.data;
    a.selections = rank.selections.data;
    a.wrong = rank.wrong.data;
    return a;
}

void world::plan(rank_state &rank)
{
    const xep_cuda_plan_t a = plan_of(rank);
    xep_cuda_plan<<<XEP_CUDA_PLAN_BLOCKS, XEP_CUDA_PLAN_THREADS, 2 * s.experts * 4, rank.stream>>>(a);
}

xep_cuda_counts_t world::counts_of(rank_state &rank)
{
    xep_cuda_counts_t a{};
    const uint64_t idx = s.idx_dtype == XEP_INT64 ? 8 : 4;
    a.header.epoch = rank.epoch;
    a.header.routing = rank.epoch;
    a.header.tokens = rank.tokens;
    a.header.capacity = a.recv_rows = at.recv_rows;
    a.header.params[NORMAL_HIDDEN] = s.hidden;
    a.records = at.records;
    a.record_bytes = at.record_bytes;
    a.word = word(COUNTS);
    a.local = rank.local.data;
    a.slots = 1;
    a.area[XEP_CUDA_X] = {at.x, 0, at.row_stride};
    a.area[XEP_CUDA_SRC_TOKEN] = {at.src_token, 0, 4};
    a.area[XEP_CUDA_TOPK_IDX] = {at.topk_idx, 0, s.topk * idx};
    a.area[XEP_CUDA_WEIGHTS] = {at.weights, 0, s.topk * (uint64_t)4};
    a.area[XEP_CUDA_SCALES] = {at.scales, 0, s.nscales * (uint64_t)4};
    a.area[XEP_CUDA_INPUT] = {at.input, 0, at.combine_stride};
    a.rank_rows = rank.rank_rows.data;
    a.there = rank.there.data;
    a.verdict = rank.verdict.data;
    a.mirror = rank.mirror;
    a.counted = rank.counted;
    a.wrong_first = rank.counted + 1;
    a.deadline = {TIMEOUT_NS, rank.late, rank.late + 1};
    return a;
}

void world::dispatch(rank_state &rank, bool planning)
{
    xep_cuda_dispatch_t a{};
    uint32_t copying = this->copying;
    uint64_t stage = std::min<uint64_t>(s.hidden * elem, XEP_CUDA_CHUNK);
    a.plan = plan_of(rank);
    a.counts = counts_of(rank);
    a.planning = planning;
    a.peer = rank.peer.data;
    a.rank = rank.rank;
    a.nscales = s.nscales;
    a.wide = s.idx_dtype == XEP_INT64;
    a.stages = (s.hidden * elem) % 16 == 0 && x_stride % 16 == 0 ? stages : 0;
    a.now = rank.now[MOVING].data;
    a.x = rank.x.data;
    a.x_stride = x_stride;
    a.row_bytes = s.hidden * elem;
    a.row_stride = at.row_stride;
    a.weights = s.weights ? (const char *)rank.weights.data : nullptr;
    a.weights_stride = s.topk * 4;
    a.scales = rank.scales.data;
    a.scales_token_stride = s.nscales * 4;
    a.scales_stride = 4;
    a.first_expert = rank.first_expert.data;
    a.done = word(DONE);
    a.word_stride = WORDS * 64;
    a.deadline = {TIMEOUT_NS, rank.late, rank.late + 1};
    if (a.stages == 0) copying = 24;
    a.copying = copying;
    const uint64_t bytes = copying * a.stages * (stage + 8) + xep_cuda_board_bytes(s.nranks) +
                           (planning ? xep_cuda_plan_bytes(&a.plan) : 0);
    xep_cuda_dispatch<<<sms, (copying + metadata) * 32, bytes, rank.stream>>>(a);
}

/* As a mode does it. */
void world::dispatch_all(rank_state &rank)
{
    const bool planning = rank.tokens <= FEW_TOKENS;
    if (!planning) plan(rank);
    dispatch(rank, planning);
}

void world::combine(rank_state &rank)
{
    xep_cuda_combine_t a{};
    a.life = life(rank);
    a.peer = rank.peer.data;
    a.rank = rank.rank;
    a.nranks = s.nranks;
    a.sum.tokens = (uint32_t)rank.tokens;
    a.sum.hidden = s.hidden;
    a.max_dests = max_dests;
    a.now = rank.now[SUMMING].data;
    a.row_stride = at.combine_stride;
    a.dest = rank.dest.data;
    a.there = rank.there.data;
    a.verdict = rank.verdict.data;
    a.rank_rows = rank.rank_rows.data;
    for (int b = 0; b < 2; b++) {
        a.sum.bias[b] = s.biases >> b & 1 ? rank.bias[b].data : nullptr;
        a.sum.bias_stride[b] = s.hidden * combine_elem;
    }
    a.sum.out = rank.out.data;
    a.sum.out_stride = out_stride;
    a.ready = word(READY);
    a.said = word(READY) + 8;
    a.read = word(READ);
    a.word_stride = WORDS * 64;
    a.deadline = a.at_the_end = {TIMEOUT_NS, rank.late, rank.late + 1};
    a.differs = rank.late;
    auto kernel = s.combine_dtype == XEP_BF16   ? xep_cuda_combine_bf16
                  : s.combine_dtype == XEP_FP16 ? xep_cuda_combine_fp16
                                                : xep_cuda_combine_fp32;
    const uint64_t odd =
        (uint64_t)out_stride | (uint64_t)(a.sum.bias[0] || a.sum.bias[1] ? s.hidden * combine_elem : 0);
    a.sum.rows = max_dests + (s.biases & 1) + (s.biases >> 1);
    a.sum.chunk = std::min<uint32_t>(xep_cuda_sum_chunk(max_dests), (s.hidden * combine_elem) & ~15u);
    a.sum.stages = odd % 16 == 0 && a.sum.chunk != 0;
    a.sum.warps = std::min<uint32_t>(a.sum.stages == 0 ? 32 : pulling, XEP_CUDA_COMBINE_THREADS / 32);
    if (a.sum.stages != 0) a.sum.stages = xep_cuda_sum_stages(&a.sum, a.sum.warps, sms, SHARED_BYTES);
    while (a.sum.warps > 1 && a.sum.warps * a.sum.stages * xep_cuda_stage_bytes(&a.sum) > SHARED_BYTES) a.sum.warps--;
    const uint32_t bytes = a.sum.warps * a.sum.stages * xep_cuda_stage_bytes(&a.sum);
    kernel<<<sms, a.sum.warps * 32, bytes, rank.stream>>>(a);
}
