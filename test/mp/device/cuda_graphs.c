/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A graph has the addresses that its operations were captured with, and what lies there when it is replayed is what
 * they send: so rows and routings change from replay to replay here.
 */
#include "cuda_parts.h"

#include <stdio.h>
#include <string.h>

#include "cuda_rig.h"
#include "cuda_rounds.h"
#include "mp_rig.h"

enum { ROUTINGS = 2, REPLAYS = 7 };

/* Of a job that is captured the host must not wait for counts: in mode normal it says so. */
static void open_job(cuda_job_t *job, const mp_case_t *c, uint64_t seed, xep_group_t *group, void *stream)
{
    cuda_job_open(job, c, seed, group, stream);
    job->counts_there = !job->host.shape.by_expert;
}

/* ---- every byte ---- */

/* The same arrays on the device, and a routing of its own. */
static void open_view(cuda_job_t *view, const cuda_job_t *job, uint64_t seed)
{
    *view = *job;
    mp_job_open(&view->host, job->host.c, seed);
    view->host.buffer = job->host.buffer;
    view->host.shape.capacity = job->host.shape.capacity;
}

static void close_view(cuda_job_t *view)
{
    view->host.buffer = NULL;
    mp_job_close(&view->host);
}

static void *capture_dispatch(cuda_job_t *job, xep_handle_t **handle_p)
{
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    cuda_rig_capture(job->stream);
    MP_OK(xep_dispatch(job->host.buffer, &a, handle_p, NULL));
    return cuda_rig_graph(job->stream);
}

static void *capture_combine(cuda_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t b = cuda_job_outputs(job, handle);
    if (job->host.c->sent) b.flags = XEP_COMBINE_SUM_AT_OWNER;
    cuda_rig_capture(job->stream);
    MP_OK(xep_combine(handle, &b, NULL));
    return cuda_rig_graph(job->stream);
}

/* What a replay brings is combined by a graph, too, or by a call, or not at all. */
static void replay_round(cuda_job_t *job, xep_handle_t *handle, void *dispatch, void *combine, int number)
{
    for (int i = 0; i < 1 + (number == 4); i++) cuda_rig_replay(dispatch, job->stream);
    cuda_job_check_recv(job, handle);
    if (number % 3 == 0) {
        cuda_job_combine(job, handle);
    } else if (number % 3 == 1) {
        const xep_combine_args_t b = cuda_job_outputs(job, handle);
        cuda_rig_replay(combine, job->stream);
        job->host.shape.sum_at_owner = job->host.c->sent;
        cuda_job_check_sums(job, &b);
        job->host.shape.sum_at_owner = 0;
    }
}

/* sent: weights are the experts', and the graph sums at owners. */
static void every_byte(xep_group_t *group, const char *mode, int sent, void *stream)
{
    const mp_case_t c = {.name = "graphs",
                         .mode = mode,
                         .owners = "random:7",
                         MP_SHAPE(24, 6, 200, 40),
                         .ragged = 1,
                         .mask = 50,
                         .quant = strcmp(mode, "normal") == 0 ? XEP_QUANT_NVFP4 : XEP_QUANT_NONE,
                         .payloads = strcmp(mode, "normal") == 0 ? 0 : 3,
                         .weights = 1,
                         .sent = sent,
                         .biases = 1,
                         .alignment = 8,
                         .fixed_capacity = 1,
                         MP_CUDA};
    cuda_job_t job[ROUTINGS];
    xep_handle_t *handle;
    open_job(&job[0], &c, 17, group, stream);
    open_view(&job[1], &job[0], 18);
    void *dispatch = capture_dispatch(&job[0], &handle);
    cuda_rig_replay(dispatch, stream);
    void *combine = capture_combine(&job[0], handle);
    for (int i = 0; i < 2 * REPLAYS; i++) {
        cuda_job_t *at = &job[i / 2 % ROUTINGS];
        cuda_job_payload(at, 300 + (uint64_t)i);
        replay_round(at, handle, dispatch, combine, i);
        if (i % 2 == 0) continue;
        const int there = at->counts_there;
        at->counts_there = there && i % 4 == 1;
        cuda_job_round(at); /* called, in another slot */
        at->counts_there = there;
    }
    cuda_rig_free_graph(combine);
    cuda_rig_free_graph(dispatch);
    xep_handle_release(handle);
    close_view(&job[1]);
    cuda_job_close(&job[0]);
}

/* ---- several operations ---- */

enum { SUMS = 3 }; /* of a dispatch, of one with its routing, and of the first once more */

/* Rows of x[0] and x[1], there and back; both handles are kept. */
static void *capture_several(cuda_job_t *job, void *x[2], void *out[SUMS], xep_handle_t *handle[2])
{
    static const int dispatch_of[SUMS] = {0, 1, 0};
    cuda_rig_capture(job->stream);
    for (int i = 0; i < SUMS; i++) {
        const int d = dispatch_of[i];
        xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
        b.out = out[i];
        b.stream = job->stream;
        if (i < 2) {
            xep_dispatch_args_t a = cuda_job_dispatch(job, i == 0 || job->staged ? NULL : handle[0]);
            a.x = x[d];
            a.x_stride = 0;
            MP_OK(xep_dispatch(job->host.buffer, &a, &handle[d], NULL));
        }
        cuda_round_pass_back(handle[d], &b, i != 0);
        MP_OK(xep_combine(handle[d], &b, NULL));
    }
    return cuda_rig_graph(job->stream);
}

static void several(xep_group_t *group, const char *mode, void *stream)
{
    static float host[CUDA_ROUND_TOKENS * CUDA_ROUND_HIDDEN];
    mp_case_t c = cuda_round_case("several in a graph", mode);
    void *x[2], *out[SUMS];
    cuda_job_t job;
    xep_handle_t *handle[2];
    c.fixed_capacity = 1;
    c.slots = 3;
    open_job(&job, &c, 37, group, stream);
    for (int i = 0; i < 2; i++) x[i] = cuda_rig_alloc(NULL, sizeof host);
    for (int i = 0; i < SUMS; i++) out[i] = cuda_rig_alloc(NULL, sizeof host);
    void *graph = capture_several(&job, x, out, handle);
    for (int i = 0; i < REPLAYS; i++) {
        for (int d = 0; d < 2; d++) {
            cuda_round_fill(host, i + 100 * d, job.host.tokens);
            cuda_rig_put(x[d], host, sizeof host, stream);
            cuda_rig_wait(stream);
        }
        for (int again = 0; again < 2; again++) cuda_rig_replay(graph, stream);
        for (int s = 0; s < SUMS; s++) {
            cuda_rig_get(host, out[s], sizeof host, stream);
            cuda_round_check(&job.host, host, i + 100 * (s == 1));
        }
        if (i % 3 == 2) cuda_job_round(&job); /* beside the graph, in the third slot */
    }
    cuda_rig_free_graph(graph);
    for (int d = 0; d < 2; d++) xep_handle_release(handle[d]);
    for (int i = 0; i < 2; i++) cuda_rig_free(x[i]);
    for (int i = 0; i < SUMS; i++) cuda_rig_free(out[i]);
    cuda_job_close(&job);
}

/* ---- errors ---- */

/* A dispatch and a combine of what its slot happens to have. */
static void *capture_round(cuda_job_t *job, int timeout_ms, xep_handle_t **handle_p)
{
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = job->out;
    b.stream = job->stream;
    a.timeout_ms = b.timeout_ms = timeout_ms;
    cuda_rig_capture(job->stream);
    MP_OK(xep_dispatch(job->host.buffer, &a, handle_p, NULL));
    cuda_round_pass_back(*handle_p, &b, 1);
    MP_OK(xep_combine(*handle_p, &b, NULL));
    return cuda_rig_graph(job->stream);
}

static void check_told(cuda_job_t *job, xep_status_t status, const char *reason)
{
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    cuda_rig_wait(job->stream);
    MP_REFUSES(&job->host, &a, job->staged ? XEP_ERR_BROKEN : status, reason);
}

/* Nothing is summed from now on, whatever is replayed. */
static void replay_in_vain(cuda_job_t *job, void *graph)
{
    const size_t bytes = job->host.tokens * job->host.out_stride;
    memset(job->host.out, MP_POISON, bytes);
    cuda_rig_put(job->out, job->host.out, bytes, job->stream);
    cuda_rig_replay(graph, job->stream);
    cuda_rig_get(job->host.out, job->out, bytes, job->stream);
    for (size_t i = 0; i < bytes; i++) MP_CHECK(((const unsigned char *)job->host.out)[i] == MP_POISON);
}

/*
 * The last rank replays a graph once less than the others, and comes when they have given up: then it waits for them in
 * vain, whatever they replay meanwhile.
 */
static void other_numbers(xep_group_t *group, const char *mode, void *stream)
{
    const mp_case_t c = {.name = "other numbers of replays",
                         .mode = mode,
                         MP_SHAPE(8, 2, 64, 16),
                         .slots = 3,
                         .fixed_capacity = 1,
                         MP_CUDA};
    const uint32_t last = mp_nranks() - 1;
    cuda_job_t job;
    xep_handle_t *handle[2];
    char late[16];
    if (mp_nranks() == 1) return;
    open_job(&job, &c, 5, group, stream);
    void *graph = capture_round(&job, -1, &handle[0]), *hasty = capture_round(&job, MP_VAIN_MS, &handle[1]);
    atomic_int *given_up = mp_counter(group);
    cuda_rig_replay(graph, stream);
    cuda_rig_wait(stream);
    if (mp_rank() == last) mp_await(given_up, (int)last);
    for (int i = 0; i < 2; i++) replay_in_vain(&job, hasty);
    replay_in_vain(&job, graph); /* a kernel of it that waited would do so for ever */
    if (mp_rank() != last) ++*given_up;
    snprintf(late, sizeof late, ": rank %u", last);
    check_told(&job, XEP_ERR_TIMEOUT, job.staged ? "" : "a kernel has waited too long for");
    if (mp_rank() != last && !job.staged) MP_REASON(late);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job.host.buffer, &a, &handle[0], NULL));
    MP_OK(xep_buffer_reset(job.host.buffer));
    cuda_rig_free_graph(graph);
    cuda_rig_free_graph(hasty);
    cuda_job_round(&job);
    cuda_job_close(&job);
}

/*
 * Before the reset the graph was of the only slot, which another handle has by now. Its launches leave that one's rows
 * alone, and bring and sum nothing; the next call says why.
 */
static void after_a_reset(xep_group_t *group, const char *mode, void *stream)
{
    const mp_case_t c =
        {.name = "from before a reset", .mode = mode, MP_SHAPE(8, 2, 64, 16), .slots = 1, .fixed_capacity = 1, MP_CUDA};
    cuda_job_t job[ROUTINGS];
    xep_handle_t *handle;
    open_job(&job[0], &c, 5, group, stream);
    open_view(&job[1], &job[0], 6);
    void *graph = capture_round(&job[0], -1, &handle);
    cuda_rig_replay(graph, stream);
    cuda_rig_wait(stream);
    for (int i = 0; i < 2; i++) {
        MP_OK(xep_buffer_reset(job[0].host.buffer));
        cuda_job_payload(&job[0], 400 + (uint64_t)i);
        const xep_dispatch_args_t a = cuda_job_dispatch(&job[0], NULL);
        MP_OK(xep_dispatch(job[0].host.buffer, &a, &handle, NULL));
        cuda_rig_wait(stream);
        cuda_job_payload(&job[1], 500);
        for (int again = 0; again < 2; again++) replay_in_vain(&job[0], graph);
        cuda_job_check_recv(&job[0], handle);
        xep_handle_release(handle);
        check_told(&job[0], XEP_ERR_PROTOCOL, "from before a reset was launched, and did nothing");
    }
    cuda_rig_free_graph(graph);
    MP_OK(xep_buffer_reset(job[0].host.buffer));
    cuda_job_payload(&job[0], 7);
    cuda_job_round(&job[0]);
    close_view(&job[1]);
    cuda_job_close(&job[0]);
}

/* What a replay meets is told by the next call; after a reset operations are captured anew, and count from 0. */
static void told_later(xep_group_t *group, const char *mode, void *stream)
{
    const mp_case_t c = {.name = "wrong in a graph",
                         .mode = mode,
                         MP_SHAPE(8, 2, 64, 16),
                         .fixed_capacity = 1,
                         MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle;
    int64_t wrong = 8;
    open_job(&job, &c, 5, group, stream);
    for (int i = 0; i < 2; i++) {
        void *graph = capture_dispatch(&job, &handle);
        for (int again = 0; again < 3; again++) cuda_rig_replay(graph, stream);
        cuda_job_check_recv(&job, handle);
        if (mp_rank() == 0) cuda_rig_put((int64_t *)job.idx + 5, &wrong, sizeof wrong, stream);
        for (int again = 0; again < 2; again++) cuda_rig_replay(graph, stream);
        check_told(&job, XEP_ERR_PROTOCOL,
                   mp_rank() == 0 ? "invalid topk_idx[2][1]"
                   : job.staged   ? "given up by rank 0"
                                  : "topk_idx of rank 0");
        MP_OK(xep_buffer_reset(job.host.buffer));
        cuda_rig_free_graph(graph);
        cuda_job_payload(&job, 7);
        cuda_job_round(&job);
    }
    cuda_job_close(&job);
}

void cuda_graphs(xep_group_t *group, const char *mode, void *stream)
{
    for (int sent = 0; sent <= (strcmp(mode, "ll") == 0); sent++) every_byte(group, mode, sent, stream);
    several(group, mode, stream);
    other_numbers(group, mode, stream);
    told_later(group, mode, stream);
    after_a_reset(group, mode, stream);
}

/* ---- what the host waits for ---- */

void cuda_graphs_exact(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "exact", MP_SHAPE(8, 2, 64, 16), MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle, *none = NULL;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
    cuda_job_check_recv(&job, handle);
    cuda_rig_capture(stream);
    for (int cached = 0; cached < 2; cached++) {
        a = cuda_job_dispatch(&job, cached ? handle : NULL);
        MP_SAYS(XEP_ERR_INVALID,
                job.staged ? "is being captured (one that is not, with a dispatch of this mode, where ranks are not"
                           : "is being captured (one that is not, or XEP_DISPATCH_COUNTS_THERE with a capacity: the "
                             "host waits",
                xep_dispatch(job.host.buffer, &a, &none, NULL));
    }
    cuda_rig_free_graph(cuda_rig_graph(stream));
    void *graph = capture_combine(&job, handle);
    for (int i = 0; i < 3; i++) {
        const xep_combine_args_t b = cuda_job_outputs(&job, handle);
        cuda_rig_replay(graph, stream);
        cuda_job_check_sums(&job, &b);
    }
    cuda_rig_free_graph(graph);
    xep_handle_release(handle);
    cuda_job_round(&job);
    cuda_job_close(&job);
}
