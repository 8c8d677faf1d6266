/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The kernels of plugins/cuda on all devices of this machine, in one process: every byte compared with the oracle for
 * shapes of all sorts, and then timed. Without "check" or "time" it does both; without a device it exits with 77.
 *
 *     contrib/check-cuda.sh
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include <oracle.h>
#include <oracle_route_parse.h>
}

#include <cuda_kernels.h>

extern "C" __global__ void xep_cuda_plan(xep_cuda_plan_t plan);
extern "C" __global__ void xep_cuda_counts(xep_cuda_counts_t counts);
extern "C" __global__ void xep_cuda_dispatch(xep_cuda_dispatch_t dispatch);
extern "C" __global__ void xep_cuda_combine_bf16(xep_cuda_combine_t combine);
extern "C" __global__ void xep_cuda_combine_fp16(xep_cuda_combine_t combine);
extern "C" __global__ void xep_cuda_combine_fp32(xep_cuda_combine_t combine);

#define CHECK(_call)                                                                                    \
    do {                                                                                                \
        cudaError_t error_ = (_call);                                                                   \
        if (error_ != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #_call, cudaGetErrorString(error_)); \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

namespace
{

constexpr uint64_t TIMEOUT_NS = 5000000000;
constexpr int SHARED_BYTES = 220 * 1024;

struct shape {
    const char *routing;
    uint32_t nranks, experts, topk, hidden, nscales, mask;
    uint64_t tokens;
    std::vector<uint64_t> tokens_of;
    xep_dtype_t dtype, combine_dtype, idx_dtype;
    unsigned biases; /* bit 0, bit 1 */
    int weights;
    uint32_t odd; /* bytes added to the strides of x and of out */
};

/* a device allocation that ends with its owner */
template <typename T> struct device_array {
    T *data = nullptr;
    size_t count = 0;
    void make(size_t n)
    {
        count = n;
        CHECK(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
        CHECK(cudaMemset(data, 0xcb, std::max<size_t>(n, 1) * sizeof(T))); /* poison */
    }
    void make(const std::vector<T> &values)
    {
        make(values.size());
        CHECK(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> read(size_t n) const
    {
        std::vector<T> values(n);
        CHECK(cudaMemcpy(values.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }
    ~device_array()
    {
        if (data != nullptr) cudaFree(data);
    }
};

uint64_t lines(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* The same offsets in every heap. */
struct heap_layout {
    uint64_t record_bytes, row_stride, combine_stride, recv_rows;
    uint64_t words, records, src_token, topk_idx, weights, scales, x, input, bytes;
};

enum { COUNTS, DONE, READY, READ, WORDS };

struct rank_state {
    uint32_t rank;
    cudaStream_t stream;
    device_array<char> heap, x, topk_idx, out, bias[2], scales;
    device_array<float> weights;
    device_array<char *> peer;
    device_array<uint32_t> owner, first_expert, rows, selections, rank_rows, scratch, blocks_done;
    device_array<uint64_t> src_begin, place, expert_rows, wrong;
    device_array<xep_cuda_dest_t> dest;
    uint64_t *counted; /* pinned, as the two below */
    uint32_t *late;
    uint64_t tokens, epoch = 0;
    ~rank_state()
    {
        cudaFreeHost(counted);
        cudaFreeHost(late);
        cudaStreamDestroy(stream);
    }
};

struct world {
    const shape &s;
    oracle_routing_t *routing = nullptr;
    oracle_shape_t truth{};
    heap_layout at{};
    uint64_t elem, combine_elem, x_stride, out_stride;
    uint32_t max_dests, sms = 16, metadata = 8, copying = 4, stages = 3, pulling = 24, pulls = 1, chunk = 2048;
    std::vector<std::unique_ptr<rank_state>> ranks;

    explicit world(const shape &shape);
    ~world()
    {
        oracle_routing_destroy(routing);
    }
    void lay_out();
    void open_rank(uint32_t r);
    void plan(rank_state &rank);
    void counts(rank_state &rank);
    void dispatch(rank_state &rank);
    void combine(rank_state &rank);
    uint64_t word(int which) const
    {
        return at.words + which * 64;
    }
    template <typename F> void each(F f)
    {
        for (auto &rank : ranks) {
            CHECK(cudaSetDevice((int)rank->rank));
            f(*rank);
        }
    }
    void wait()
    {
        each([](rank_state &rank) {
            CHECK(cudaStreamSynchronize(rank.stream));
            if (*rank.late != 0) fprintf(stderr, "rank %u: rank %u did not come\n", rank.rank, *rank.late - 1), exit(1);
        });
    }
};

void world::lay_out()
{
    uint64_t local = (s.experts + s.nranks - 1) / s.nranks, end = 0;
    auto take = [&](uint64_t bytes) {
        uint64_t begin = end;
        end += (bytes + 255) / 256 * 256;
        return begin;
    };
    at.recv_rows = s.nranks * s.tokens;
    at.record_bytes = lines((s.nranks + local) * 4);
    at.row_stride = lines(s.hidden * elem);
    at.combine_stride = lines(s.hidden * combine_elem);
    at.words = take((uint64_t)s.nranks * WORDS * 64);
    at.records = take(s.nranks * at.record_bytes);
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
    CHECK(cudaHostAlloc(&rank->counted, sizeof(uint64_t), cudaHostAllocDefault));
    CHECK(cudaHostAlloc(&rank->late, sizeof(uint32_t), cudaHostAllocDefault));
    *rank->late = 0;
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
    CHECK(cudaMemset(rank->heap.data + at.words, 0, s.nranks * WORDS * 64));
    rank->out.make(tokens * out_stride);
    rank->rows.make(s.nranks);
    rank->selections.make(s.experts);
    rank->rank_rows.make((size_t)s.nranks * s.nranks);
    rank->scratch.make(2 * ((tokens + 31) / 32) * s.nranks);
    rank->blocks_done.make(std::vector<uint32_t>(1, 0));
    rank->src_begin.make(s.nranks + 1);
    rank->place.make(s.nranks);
    rank->expert_rows.make(first[r + 1] - first[r]);
    rank->wrong.make(1);
    rank->dest.make(tokens * max_dests);
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

void world::plan(rank_state &rank)
{
    xep_cuda_plan_t a{};
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
    a.rows = rank.rows.data;
    a.selections = rank.selections.data;
    a.wrong = rank.wrong.data;
    xep_cuda_plan<<<XEP_CUDA_PLAN_BLOCKS, XEP_CUDA_PLAN_THREADS, 2 * s.experts * 4, rank.stream>>>(a);
}

void world::counts(rank_state &rank)
{
    xep_cuda_counts_t a{};
    a.peer = rank.peer.data;
    a.rank = rank.rank;
    a.nranks = s.nranks;
    a.epoch = rank.epoch;
    a.record = at.records;
    a.record_bytes = at.record_bytes;
    a.word = word(COUNTS);
    a.word_stride = WORDS * 64;
    a.rows = rank.rows.data;
    a.selections = rank.selections.data;
    a.first_expert = rank.first_expert.data;
    a.capacity = at.recv_rows;
    a.rank_rows = rank.rank_rows.data;
    a.src_begin = rank.src_begin.data;
    a.place = rank.place.data;
    a.expert_rows = rank.expert_rows.data;
    a.counted = rank.counted;
    a.deadline = {TIMEOUT_NS, rank.late};
    xep_cuda_counts<<<1, 256, 0, rank.stream>>>(a);
}

void world::dispatch(rank_state &rank)
{
    xep_cuda_dispatch_t a{};
    uint32_t copying = this->copying;
    uint64_t stage = std::min<uint64_t>(s.hidden * elem, XEP_CUDA_CHUNK);
    a.peer = rank.peer.data;
    a.rank = rank.rank;
    a.nranks = s.nranks;
    a.tokens = (uint32_t)rank.tokens;
    a.topk = s.topk;
    a.max_dests = max_dests;
    a.nscales = s.nscales;
    a.wide = s.idx_dtype == XEP_INT64;
    a.stages = (s.hidden * elem) % 16 == 0 && x_stride % 16 == 0 ? stages : 0;
    a.epoch = rank.epoch;
    a.x = rank.x.data;
    a.x_stride = x_stride;
    a.row_bytes = s.hidden * elem;
    a.row_stride = at.row_stride;
    a.topk_idx = rank.topk_idx.data;
    a.topk_idx_stride = s.topk * (a.wide ? 8 : 4);
    a.weights = s.weights ? (const char *)rank.weights.data : nullptr;
    a.weights_stride = s.topk * 4;
    a.scales = rank.scales.data;
    a.scales_token_stride = s.nscales * 4;
    a.scales_stride = 4;
    a.dest = rank.dest.data;
    a.place = rank.place.data;
    a.first_expert = rank.first_expert.data;
    a.area = {at.x, at.src_token, at.topk_idx, at.weights, at.scales};
    a.word = word(DONE);
    a.word_stride = WORDS * 64;
    a.blocks_done = rank.blocks_done.data;
    a.deadline = {TIMEOUT_NS, rank.late};
    if (a.stages == 0) copying = 24;
    a.copying = copying;
    xep_cuda_dispatch<<<sms, (copying + metadata) * 32, copying * a.stages *(stage + 8), rank.stream>>>(a);
}

void world::combine(rank_state &rank)
{
    xep_cuda_combine_t a{};
    a.peer = rank.peer.data;
    a.rank = rank.rank;
    a.nranks = s.nranks;
    a.tokens = (uint32_t)rank.tokens;
    a.hidden = s.hidden;
    a.max_dests = max_dests;
    a.epoch = rank.epoch;
    a.input = at.input;
    a.row_stride = at.combine_stride;
    a.dest = rank.dest.data;
    a.place = rank.place.data;
    for (int b = 0; b < 2; b++) {
        a.bias[b] = s.biases >> b & 1 ? rank.bias[b].data : nullptr;
        a.bias_stride[b] = s.hidden * combine_elem;
    }
    a.out = rank.out.data;
    a.out_stride = out_stride;
    a.ready = word(READY);
    a.read = word(READ);
    a.word_stride = WORDS * 64;
    a.blocks_done = rank.blocks_done.data;
    a.deadline = {TIMEOUT_NS, rank.late};
    auto kernel = s.combine_dtype == XEP_BF16   ? xep_cuda_combine_bf16
                  : s.combine_dtype == XEP_FP16 ? xep_cuda_combine_fp16
                                                : xep_cuda_combine_fp32;
    const uint64_t odd = (uint64_t)out_stride | (uint64_t)(a.bias[0] || a.bias[1] ? s.hidden * combine_elem : 0);
    a.rows = max_dests + (s.biases & 1) + (s.biases >> 1);
    a.chunk = std::min<uint32_t>(chunk, (s.hidden * combine_elem) & ~15u);
    a.stages = odd % 16 == 0 && a.chunk != 0 ? pulls : 0;
    uint32_t warps = a.stages == 0 ? 32 : pulling;
    while (warps > 1 && warps * a.stages * (a.rows * a.chunk + 12) > SHARED_BYTES) warps--;
    kernel<<<sms, warps * 32, warps * a.stages *(a.rows * a.chunk + 12), rank.stream>>>(a);
}

/* ---- checks ---- */

int fail(const world &w, const char *what, uint32_t rank, const oracle_difference_t *difference)
{
    char text[512];
    oracle_difference_text(difference, text, sizeof text);
    printf("FAIL %s: rank %u, %u ranks, %s, H %u, K %u, E %u: %s\n", what, rank, w.s.nranks, w.s.routing, w.s.hidden,
           w.s.topk, w.s.experts, text);
    return 1;
}

int check_rank(world &w, rank_state &rank)
{
    const shape &s = w.s;
    oracle_difference_t difference{};
    std::vector<char> heap = rank.heap.read(w.at.bytes);
    std::vector<uint64_t> src_begin = rank.src_begin.read(s.nranks + 1),
                          expert_rows = rank.expert_rows.read(rank.expert_rows.count);
    std::vector<uint32_t> rank_rows = rank.rank_rows.read((size_t)s.nranks * s.nranks);
    xep_recv_t recv{};
    uint32_t first, local;
    oracle_experts_of(w.routing, rank.rank, &first, &local);
    recv.size = sizeof recv;
    recv.arrangement = XEP_ROWS_BY_RANK;
    recv.rows = recv.capacity = src_begin[s.nranks];
    recv.x = &heap[w.at.x];
    recv.x_stride = w.at.row_stride;
    recv.dtype = s.dtype;
    recv.hidden = s.hidden;
    recv.topk = s.topk;
    recv.topk_idx_dtype = s.idx_dtype;
    recv.topk_idx = &heap[w.at.topk_idx];
    recv.topk_weights = s.weights ? (float *)&heap[w.at.weights] : nullptr;
    recv.nscales = s.nscales;
    recv.scales = s.nscales ? &heap[w.at.scales] : nullptr;
    recv.scales_dtype = XEP_FP32;
    recv.scales_token_stride = s.nscales * 4;
    recv.scales_stride = 4;
    recv.src_token = (int32_t *)&heap[w.at.src_token];
    recv.src_begin = src_begin.data();
    recv.rank_rows = rank_rows.data();
    recv.first_expert = first;
    recv.local_experts = local;
    recv.expert_rows = expert_rows.data();
    if (*rank.counted != recv.rows + 1) return printf("FAIL counted %llu\n", (unsigned long long)*rank.counted), 1;
    if (oracle_check_recv(&w.truth, rank.rank, &recv, &difference)) return fail(w, "dispatch", rank.rank, &difference);
    oracle_fill_outputs(&w.truth, rank.rank, &recv, &heap[w.at.input], w.at.combine_stride);
    CHECK(cudaMemcpy(rank.heap.data + w.at.input, &heap[w.at.input], recv.rows * w.at.combine_stride,
                     cudaMemcpyHostToDevice));
    return 0;
}

int check_sums(world &w, rank_state &rank)
{
    oracle_difference_t difference{};
    std::vector<char> out = rank.out.read(rank.tokens * w.out_stride);
    return oracle_check_combine(&w.truth, rank.rank, w.s.biases, out.data(), w.out_stride, &difference)
               ? fail(w, "combine", rank.rank, &difference)
               : 0;
}

int check(const shape &s)
{
    world w(s);
    int failed = 0;
    for (int turn = 0; turn < 2 && !failed; turn++) {
        w.each([&](rank_state &rank) {
            rank.epoch++;
            w.plan(rank);
            w.counts(rank);
            w.dispatch(rank);
        });
        w.wait();
        w.each([&](rank_state &rank) { failed |= check_rank(w, rank); });
        w.each([&](rank_state &rank) { w.combine(rank); });
        w.wait();
        w.each([&](rank_state &rank) { failed |= check_sums(w, rank); });
    }
    CHECK(cudaGetLastError());
    return failed;
}

/* ---- times ---- */

/* One thread for each device, as one process for each would have: launches take longer than small operations. */
template <typename F> double time_us(world &w, int count, F enqueue)
{
    std::vector<double> all;
    std::vector<float> ms(w.ranks.size());
    auto run = [&](rank_state &rank, int n, bool timed) {
        cudaEvent_t begin, end;
        CHECK(cudaSetDevice((int)rank.rank));
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        CHECK(cudaEventRecord(begin, rank.stream));
        for (int i = 0; i < n; i++) {
            rank.epoch++;
            enqueue(rank);
        }
        CHECK(cudaEventRecord(end, rank.stream));
        CHECK(cudaStreamSynchronize(rank.stream));
        if (timed) CHECK(cudaEventElapsedTime(&ms[rank.rank], begin, end));
        CHECK(cudaEventDestroy(begin));
        CHECK(cudaEventDestroy(end));
    };
    for (int rep = 0; rep < 6; rep++) {
        std::vector<std::thread> threads;
        for (auto &rank : w.ranks) threads.emplace_back(run, std::ref(*rank), rep == 0 ? 3 : count, rep > 0);
        for (auto &thread : threads) thread.join();
        if (rep > 0) all.push_back(*std::min_element(ms.begin(), ms.end()) * 1e3 / count);
    }
    w.wait();
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

void time_shape(const shape &s)
{
    world w(s);
    int count = s.tokens > 1000 ? 10 : 50;
    w.each([&](rank_state &rank) { rank.epoch = 1, w.plan(rank), w.counts(rank), w.dispatch(rank); });
    w.wait();
    w.each([&](rank_state &rank) {
        CHECK(cudaMemset(rank.heap.data + w.at.input, 0, w.at.recv_rows * w.at.combine_stride));
    });
    std::vector<uint32_t> matrix = w.ranks[0]->rank_rows.read((size_t)s.nranks * s.nranks);
    uint64_t all = 0, wire = 0;
    for (uint32_t i = 0; i < s.nranks * s.nranks; i++)
        all += matrix[i], wire += i / s.nranks == i % s.nranks ? 0 : matrix[i];
    double bytes = (double)wire / s.nranks * s.hidden * w.elem,
           back = (double)wire / s.nranks * s.hidden * w.combine_elem;
    printf("%u ranks, T %llu, H %u, row of %llu bytes: %.0f rows a rank, %.1f MB to peers\n", s.nranks,
           (unsigned long long)s.tokens, s.hidden, (unsigned long long)(s.hidden * w.elem), (double)all / s.nranks,
           bytes / 1e6);
    double plan = time_us(w, count, [&](rank_state &rank) { w.plan(rank); });
    double counts = time_us(w, count, [&](rank_state &rank) { w.counts(rank); });
    printf("  layout %.1f us, counts %.1f us\n", plan, counts);
    for (uint32_t sms : {8, 16, 24, 48}) {
        w.sms = sms;
        double cached = time_us(w, count, [&](rank_state &rank) { w.dispatch(rank); });
        double whole = time_us(w, count, [&](rank_state &rank) { w.plan(rank), w.counts(rank), w.dispatch(rank); });
        double combine = time_us(w, count, [&](rank_state &rank) { w.combine(rank); });
        printf("  SMs %2u: dispatch cached %.1f us (%.0f GB/s), whole %.1f us; combine %.1f us (%.0f GB/s)\n", sms,
               cached, bytes / cached / 1e3, whole, combine, back / combine / 1e3);
    }
    fflush(stdout);
}

int check_all(uint32_t devices)
{
    int failed = 0, count = 0;
    for (uint32_t r = 1; r <= devices; r++) {
        const std::vector<shape> shapes = {
            {"uniform", r, 256, 8, 7168, 0, 0, 333, {}, XEP_BF16, XEP_BF16, XEP_INT64, 0, 1, 0},
            {"uniform", r, 61, 6, 2050, 3, 200, 1025, {}, XEP_BF16, XEP_FP16, XEP_INT32, 1, 1, 0},
            {"zipf:1", r, 17, 5, 777, 0, 0, 64, {}, XEP_FP32, XEP_FP32, XEP_INT64, 3, 0, 0},
            {"self", r, 64, 3, 1, 1, 500, 31, {}, XEP_E4M3, XEP_BF16, XEP_INT64, 2, 1, 0},
            {"one-rank", r, 32, 4, 9000, 56, 0, 97, {}, XEP_BF16, XEP_FP32, XEP_INT32, 0, 1, 16},
            {"uniform", r, 128, 8, 129, 2, 100, 65, {}, XEP_E4M3, XEP_BF16, XEP_INT64, 0, 1, 3 * 2},
            {"uniform", r, 16, 2, 16384, 0, 0, 40, {0, 40, 1, 33}, XEP_BF16, XEP_BF16, XEP_INT64, 3, 1, 0},
        };
        for (const shape &s : shapes) {
            shape run = s;
            if (!run.tokens_of.empty()) run.tokens_of.resize(r);
            failed += check(run);
            count++;
        }
    }
    printf("%d passed, %d failed\n", count - failed, failed);
    return failed != 0;
}

} // namespace

int main(int argc, char **argv)
{
    int devices = 0;
    const std::string what = argc > 1 ? argv[1] : "all";
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return printf("skipped: there is no device\n"), 77;
    for (int i = 0; i < devices; i++) {
        CHECK(cudaSetDevice(i));
        CHECK(cudaFuncSetAttribute(xep_cuda_dispatch, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
        for (auto kernel : {xep_cuda_combine_bf16, xep_cuda_combine_fp16, xep_cuda_combine_fp32})
            CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
        CHECK(cudaFuncSetAttribute(xep_cuda_plan, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
        for (int j = 0; j < devices; j++)
            if (i != j) CHECK(cudaDeviceEnablePeerAccess(j, 0));
    }
    if (what != "time" && check_all((uint32_t)devices) != 0) return 1;
    if (what == "check") return 0;
    const uint32_t r = (uint32_t)devices;
    time_shape({"uniform", r, 256, 8, 7168, 0, 0, 4096, {}, XEP_BF16, XEP_BF16, XEP_INT64, 0, 1, 0});
    time_shape({"uniform", r, 256, 8, 7168, 56, 0, 4096, {}, XEP_E4M3, XEP_BF16, XEP_INT64, 0, 1, 0});
    time_shape({"uniform", r, 256, 8, 7168, 0, 0, 128, {}, XEP_BF16, XEP_BF16, XEP_INT64, 0, 1, 0});
    return 0;
}
