/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The kernels of plugins/cuda on all devices of this machine, in one process: every byte compared with the oracle for
 * shapes of all sorts, and then timed. Without "check" or "time" it does both; without a device it exits with 77.
 *
 *     contrib/check-cuda.sh
 */
#include "cuda_world.cuh"

#include <numeric>
#include <string>
#include <thread>

namespace
{

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
    std::vector<uint64_t> src_begin(s.nranks + 1), expert_rows(s.experts);
    std::vector<uint32_t> rank_rows = rank.rank_rows.read((size_t)s.nranks * s.nranks);
    xep_recv_t recv{};
    uint32_t first, local;
    oracle_experts_of(w.routing, rank.rank, &first, &local);
    std::vector<uint32_t> experts(local);
    std::iota(experts.begin(), experts.end(), first);
    for (uint32_t r = 0; r < s.nranks; r++) { /* as a host does from what came */
        const uint32_t *selections =
            (const uint32_t *)(rank.mirror + r * w.at.record_bytes + sizeof(normal_record_t)) + s.nranks;
        src_begin[r + 1] = src_begin[r] + rank_rows[(size_t)r * s.nranks + rank.rank];
        for (uint32_t e = 0; e < local; e++) expert_rows[e] += selections[e];
    }
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
    recv.experts = experts.data();
    recv.expert_rows = expert_rows.data();
    if (*rank.counted != rank.epoch || rank.verdict.read(1)[0] != XEP_CUDA_GO) return printf("FAIL no verdict\n"), 1;
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
            w.dispatch_all(rank);
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

/* What a product does with its rows, at least: each is read once, by all multiprocessors, a warp a row. */
__global__ void read_rows(const char *const *rows, uint32_t count, uint32_t bytes, uint32_t *sink)
{
    uint32_t all = 0;
    for (uint32_t r = (blockIdx.x * blockDim.x + threadIdx.x) / 32; r < count; r += gridDim.x * blockDim.x / 32)
#pragma unroll 4
        for (uint32_t i = threadIdx.x % 32; i < bytes / 16; i += 32) {
            const int4 part = ((const int4 *)rows[r])[i];
            all ^= (uint32_t)(part.x ^ part.y ^ part.z ^ part.w);
        }
    if (all == 0xdeadbeef) *sink = all;
}

/* Rows of this rank: in its slot, and where their senders have them. */
void find_rows(world &w, rank_state &rank, std::vector<const char *> &here, std::vector<const char *> &there)
{
    const uint32_t nranks = w.s.nranks;
    const std::vector<uint32_t> matrix = rank.rank_rows.read((size_t)nranks * nranks);
    const std::vector<char> heap = rank.heap.read(w.at.topk_idx);
    const int32_t *token = (const int32_t *)&heap[w.at.src_token];
    for (uint32_t s = 0; s < nranks; s++)
        for (uint32_t i = 0; i < matrix[(size_t)s * nranks + rank.rank]; i++) {
            there.push_back(w.ranks[s]->x.data + (uint64_t)token[here.size()] * w.x_stride);
            here.push_back(rank.heap.data + w.at.x + here.size() * w.at.row_stride);
        }
}

/* What it takes to read the rows that the last dispatch has brought, in both places, on all devices at once. */
void time_reading(world &w, int count)
{
    std::vector<device_array<const char *>> lists[2] = {std::vector<device_array<const char *>>(w.ranks.size()),
                                                        std::vector<device_array<const char *>>(w.ranks.size())};
    w.each([&](rank_state &rank) {
        std::vector<const char *> here, there;
        find_rows(w, rank, here, there);
        lists[0][rank.rank].make(here);
        lists[1][rank.rank].make(there);
    });
    for (uint32_t blocks : {16, 132}) {
        double us[2];
        for (int where = 0; where < 2; where++)
            us[where] = time_us(w, count, [&](rank_state &rank) {
                const auto &list = lists[where][rank.rank];
                read_rows<<<blocks, 1024, 0, rank.stream>>>(list.data, (uint32_t)list.count,
                                                            (uint32_t)(w.s.hidden * w.elem), rank.scratch.data);
            });
        printf("  %3u blocks read each row once: %.1f us in the slot, %.1f us where the senders have them\n", blocks,
               us[0], us[1]);
    }
}

void time_shape(const shape &s)
{
    world w(s);
    int count = s.tokens > 1000 ? 10 : 50;
    w.each([&](rank_state &rank) { rank.epoch = 1, w.dispatch_all(rank); });
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
    printf("  plan %.1f us\n", plan);
    for (uint32_t sms : {8, 16, 24, 48}) {
        w.sms = sms;
        double cached = time_us(w, count, [&](rank_state &rank) { w.dispatch(rank, false); });
        double whole = time_us(w, count, [&](rank_state &rank) { w.dispatch_all(rank); });
        double combine = time_us(w, count, [&](rank_state &rank) { w.combine(rank); });
        printf("  SMs %2u: dispatch cached %.1f us (%.0f GB/s), whole %.1f us; combine %.1f us (%.0f GB/s)\n", sms,
               cached, bytes / cached / 1e3, whole, combine, back / combine / 1e3);
    }
    time_reading(w, count);
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
    world::prepare(devices);
    if (what != "time" && check_all((uint32_t)devices) != 0) return 1;
    if (what == "check") return 0;
    const uint32_t r = (uint32_t)devices;
    time_shape({"uniform", r, 256, 8, 7168, 0, 0, 4096, {}, XEP_BF16, XEP_BF16, XEP_INT64, 0, 1, 0});
    time_shape({"uniform", r, 256, 8, 7168, 56, 0, 4096, {}, XEP_E4M3, XEP_BF16, XEP_INT64, 0, 1, 0});
    time_shape({"uniform", r, 256, 8, 7168, 0, 0, 128, {}, XEP_BF16, XEP_BF16, XEP_INT64, 0, 1, 0});
    return 0;
}
