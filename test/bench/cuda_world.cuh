/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A shape on all devices of this machine, a rank on each, all in this process: its inputs, its heaps, and the launches
 * of the kernels of plugins/cuda as a mode would make them.
 */
#ifndef XEP_CUDA_WORLD_CUH
#define XEP_CUDA_WORLD_CUH

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

extern "C" {
#include <oracle.h>
#include <oracle_route_parse.h>
}

#include <cuda_kernels.h>

#define CHECK(_call)                                                                                    \
    do {                                                                                                \
        cudaError_t error_ = (_call);                                                                   \
        if (error_ != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #_call, cudaGetErrorString(error_)); \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

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

/* The same offsets in every heap. */
struct heap_layout {
    uint64_t record_bytes, row_stride, combine_stride, recv_rows;
    uint64_t words, records, src_token, topk_idx, weights, scales, x, input, bytes;
};

enum { COUNTS, DONE, READY, READ, WORDS };

/* Each kernel counts how far it has come by itself, so that a launch may be one of any kernel, or of several. */
enum { LIFE = 41, MOVING = 0, SUMMING, LAUNCHES, FEW_TOKENS = 128 };

struct rank_state {
    uint32_t rank;
    cudaStream_t stream;
    device_array<char> heap, x, topk_idx, out, bias[2], scales;
    device_array<float> weights;
    device_array<char *> peer;
    device_array<uint32_t> owner, first_expert, rows, selections, local, rank_rows, scratch;
    device_array<uint64_t> wrong;
    device_array<int32_t> verdict, chosen;
    device_array<xep_cuda_there_t> there;
    device_array<xep_cuda_dest_t> dest;
    device_array<xep_cuda_now_t> now[LAUNCHES];
    uint64_t *counted; /* pinned, as the two below: the epoch, and the first wrong index */
    uint32_t *late;    /* [3], the second one stops; the third: a kernel was of another life */
    device_array<uint64_t> life;
    char *mirror;
    uint64_t tokens, epoch = 0;
    ~rank_state()
    {
        cudaFreeHost(counted);
        cudaFreeHost(late);
        cudaFreeHost(mirror);
        cudaStreamDestroy(stream);
    }
};

struct world {
    const shape &s;
    oracle_routing_t *routing = nullptr;
    oracle_shape_t truth{};
    heap_layout at{};
    uint64_t elem, combine_elem, x_stride, out_stride;
    uint32_t max_dests, sms = 16, metadata = 8, copying = 4, stages = 3, pulling = 24;
    std::vector<std::unique_ptr<rank_state>> ranks;

    static void prepare(int devices);
    explicit world(const shape &shape);
    ~world()
    {
        oracle_routing_destroy(routing);
    }
    void lay_out();
    void open_rank(uint32_t r);
    xep_cuda_plan_t plan_of(rank_state &rank);
    xep_cuda_counts_t counts_of(rank_state &rank);
    void plan(rank_state &rank);
    void dispatch(rank_state &rank, bool planning); /* planning: by every block; else plan() came before */
    void dispatch_all(rank_state &rank);
    void combine(rank_state &rank);
    uint64_t word(int which) const
    {
        return at.words + which * 64;
    }
    static xep_cuda_life_t life(rank_state &rank)
    {
        return {rank.life.data, LIFE, rank.late + 2};
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
            if (rank.late[2] != 0) fprintf(stderr, "rank %u: a kernel found another life\n", rank.rank), exit(1);
        });
    }
};

#endif
