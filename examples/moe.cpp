// SPDX-License-Identifier: BSD-3-Clause
// Two batches in flight: every expert multiplies what it gets by its number plus one; combine applies the weights.
#include <cstdio>
#include <vector>
#include <xep/xep.hpp>

constexpr int T = 16, H = 64, K = 2, E = 8, BATCHES = 2;

struct Batch {
    std::vector<float> x = std::vector<float>(T * H), out = std::vector<float>(T * H);
};

static void experts(xep::Handle &handle)
{
    const xep_recv_t *recv = handle.recv();
    const xep::Rows in{recv->x, recv->x_stride}, y = handle.combine_input();
    for (std::uint32_t e = 0; e < recv->local_experts; e++)
        for (std::uint64_t row = recv->expert_begin[e]; row < recv->expert_begin[e] + recv->expert_count[e]; row++)
            for (int h = 0; h < H; h++)
                y.row<float>(row)[h] = in.row<float>(row)[h] * static_cast<float>(recv->first_expert + e + 1);
}

static void run()
{
    std::vector<std::int64_t> topk(T * K);
    std::vector<float> weights(T * K, 0.5f);
    std::vector<Batch> batches(BATCHES);
    for (int i = 0; i < T * K; i++) topk[i] = (i / K + 3 * (i % K)) % E;
    for (Batch &batch : batches)
        for (int i = 0; i < T * H; i++) batch.x[i] = static_cast<float>(i + 1);

    xep::Group group;
    auto shape = xep::init<xep_buffer_params_t>();
    shape.mode = "ll", shape.experts = E, shape.topk = K, shape.hidden = H, shape.tokens = T;
    shape.slots = BATCHES, shape.dtype = shape.combine_dtype = XEP_FP32;
    xep::Buffer buffer(group, shape);

    std::vector<xep::Handle> handles;
    std::vector<xep::Request> requests;
    for (const Batch &batch : batches) {
        auto send = xep::init<xep_dispatch_args_t>();
        send.tokens = T, send.x = batch.x.data(), send.topk_idx = topk.data(), send.topk_weights = weights.data();
        auto [handle, request] = buffer.begin_dispatch(send);
        handles.push_back(std::move(handle));
        requests.push_back(std::move(request));
    }
    for (std::size_t b = 0; b < BATCHES; b++) { // operations begin in the same order on all ranks
        auto back = xep::init<xep_combine_args_t>();
        back.out = batches[b].out.data();
        requests[b].wait();
        experts(handles[b]);
        requests[b] = handles[b].begin_combine(back);
    }
    for (int left = BATCHES; left > 0; left--) { // and end in any
        const std::size_t b = xep::wait_any(requests);
        requests[b] = xep::Request();
        std::printf("batch %zu, token 1: %g times its value\n", b, batches[b].out[H] / batches[b].x[H]);
    }
}

int main()
{
    try {
        run();
    } catch (const xep::Error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
