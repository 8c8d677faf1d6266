/* SPDX-License-Identifier: BSD-3-Clause */

/* Captured operations whose rows are staged, where the host takes part in each launch: ranks that differ, and ends. */
#include "cuda_parts.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

int cuda_captures_staged(void)
{
    const char *progress = getenv("XEP_PROGRESS");
    return progress != NULL && strcmp(progress, "thread") == 0 && getenv("STANDIN_PINS_NOTHING") == NULL;
}

static const mp_case_t small = {.name = "captured", .mode = "ll", MP_SHAPE(8, 2, 64, 16), .fixed_capacity = 1, MP_CUDA};

static void *capture(cuda_job_t *job, int32_t timeout_ms, xep_handle_t **handle_p)
{
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    a.timeout_ms = timeout_ms;
    cuda_rig_capture(job->stream);
    MP_OK(xep_dispatch(job->host.buffer, &a, handle_p, NULL));
    return cuda_rig_graph(job->stream);
}

/* Nothing of a launch came; later calls say why, and after a reset all is as before. */
static void told(cuda_job_t *job, const char *reason)
{
    cuda_rig_wait(job->stream);
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    MP_REFUSES(&job->host, &a, XEP_ERR_BROKEN, reason);
    MP_OK(xep_buffer_reset(job->host.buffer));
    cuda_job_payload(job, 7);
    cuda_job_round(job);
}

/* The last rank launches two graphs in the other order. */
static void other_order(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    xep_handle_t *handle[2];
    void *graph[2];
    const int first = mp_is_last();
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &small, 5, group, stream);
    for (int i = 0; i < 2; i++) graph[i] = capture(&job, 0, &handle[i]);
    for (int i = 0; i < 2; i++) {
        cuda_rig_replay(graph[i], stream);
        cuda_job_check_recv(&job, handle[i]);
    }
    cuda_rig_replay(graph[first], stream);
    cuda_rig_replay(graph[!first], stream);
    told(&job, "ranks launch the buffer's graphs in other orders");
    for (int i = 0; i < 2; i++) cuda_rig_free_graph(graph[i]);
    cuda_job_close(&job);
}

/* The last rank launches a graph where the others call: their next call says that it has given the buffer up. */
static void launch_and_call(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    xep_handle_t *handle;
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &small, 5, group, stream);
    void *graph = capture(&job, 0, &handle);
    if (mp_is_last()) {
        cuda_rig_replay(graph, stream);
    } else {
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_REFUSES(&job.host, &a, XEP_ERR_MISMATCH, "are not in the same call");
        MP_REFUSES(&job.host, &a, XEP_ERR_MISMATCH, "given up by rank");
    }
    told(&job, mp_is_last() ? "in other orders" : "given up by rank");
    cuda_rig_free_graph(graph);
    cuda_job_close(&job);
}

/* Two graphs of a buffer that nothing orders, while other ranks launch none: an error, at the latest a timeout. */
static void side_by_side(xep_group_t *group, void *streams[2])
{
    cuda_job_t job;
    xep_handle_t *handle[2];
    void *graph[2];
    cuda_job_open(&job, &small, 5, group, streams[0]);
    atomic_int *ended = mp_counter(group);
    for (int i = 0; i < 2; i++) graph[i] = capture(&job, MP_VAIN_MS, &handle[i]);
    if (mp_rank() == 0) {
        for (int i = 0; i < 2; i++) cuda_rig_replay(graph[i], streams[i]);
        for (int i = 0; i < 2; i++) cuda_rig_wait(streams[i]);
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        if (mp_nranks() > 1) MP_REFUSES(&job.host, &a, XEP_ERR_BROKEN, "");
        ++*ended;
    }
    mp_await(ended, 1);
    MP_OK(xep_buffer_reset(job.host.buffer));
    cuda_job_round(&job);
    for (int i = 0; i < 2; i++) cuda_rig_free_graph(graph[i]);
    cuda_job_close(&job);
}

/* A graph that waits for ranks that launch none: a buffer that is destroyed, or reset, lets it go. */
static void ended(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    xep_handle_t *handle;
    for (int is_reset = 0; is_reset < 2; is_reset++) {
        cuda_job_open(&job, &small, 5, group, stream);
        void *graph = capture(&job, -1, &handle);
        if (mp_rank() == 0) cuda_rig_replay(graph, stream);
        if (is_reset) {
            MP_OK(xep_buffer_reset(job.host.buffer));
            cuda_job_round(&job);
            cuda_rig_replay(graph, stream);
            told(&job, "one from before a reset was launched, and did nothing");
        }
        cuda_job_close(&job);
        cuda_rig_free_graph(graph);
    }
}

/* The handle of a graph was released, and its slot is another dispatch's, whose rows a launch leaves alone. */
static void released(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    xep_handle_t *handle;
    cuda_job_open(&job, &small, 5, group, stream);
    void *graph = capture(&job, 0, &handle);
    xep_handle_release(handle);
    cuda_job_payload(&job, 50);
    handle = cuda_job_send(&job);
    cuda_job_payload(&job, 51);
    for (int again = 0; again < 2; again++) cuda_rig_replay(graph, stream);
    cuda_job_payload(&job, 50);
    cuda_job_check_recv(&job, handle);
    told(&job, "the handle of an operation was released, which did nothing");
    cuda_rig_free_graph(graph);
    cuda_job_close(&job);
}

/* Calls on the stream of launches that have not begun: they wait for these. */
static void called_behind(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    xep_handle_t *handle;
    cuda_job_open(&job, &small, 5, group, stream);
    void *graph = capture(&job, 0, &handle);
    for (int i = 0; i < 20; i++) {
        cuda_job_payload(&job, 40 + (uint64_t)i);
        cuda_rig_replay(graph, stream);
        if (i == 0) cuda_job_round(&job);
        cuda_job_check_recv(&job, handle);
        const xep_combine_args_t b = cuda_job_outputs(&job, handle);
        cuda_rig_replay(graph, stream);
        MP_OK(xep_combine(handle, &b, NULL));
        cuda_job_check_sums(&job, &b);
        cuda_rig_replay(graph, stream);
        cuda_job_round(&job);
    }
    cuda_rig_free_graph(graph);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/* What no rank can capture: all refuse it alike, and go on. */
static void refused(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    cuda_job_open(&job, &small, 5, group, stream);
    xep_handle_t *handle = cuda_job_send(&job);
    cuda_rig_capture(stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, handle);
    MP_REFUSES(&job.host, &a, XEP_ERR_INVALID, "is being captured (one that is not, with cached, where ranks");
    a = cuda_job_dispatch(&job, NULL);
    a.capacity = 0;
    MP_REFUSES(&job.host, &a, XEP_ERR_INVALID, "with capacity 0, where ranks");
    a = cuda_job_dispatch(&job, NULL);
    a.x = job.host.x;
    MP_REFUSES(&job.host, &a, XEP_ERR_INVALID, "invalid x: ");
    cuda_rig_free_graph(cuda_rig_graph(stream));
    cuda_job_end(&job, handle);
    cuda_job_close(&job);
}

/* What the mode refuses on one rank alone: what all capture after that is the same operation on all. */
static void refused_on_one(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    xep_handle_t *handle;
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &small, 5, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL), wrong = a;
    wrong.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    cuda_rig_capture(stream);
    if (mp_is_last()) MP_REFUSES(&job.host, &wrong, XEP_ERR_UNSUPPORTED, "(0 with XEP_ROWS_BY_EXPERT_PADDED");
    MP_REFUSES(&job.host, &a, XEP_ERR_MISMATCH, "are not in the same call");
    if (!mp_is_last()) MP_REFUSES(&job.host, &a, XEP_ERR_MISMATCH, "this call is refused on this rank, too");
    cuda_rig_free_graph(cuda_rig_graph(stream));
    void *graph = capture(&job, 0, &handle);
    cuda_rig_replay(graph, stream);
    cuda_job_check_recv(&job, handle);
    cuda_rig_free_graph(graph);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

static uint64_t operations(const cuda_job_t *job)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    MP_OK(xep_buffer_query(job->host.buffer, &info));
    return info.operations;
}

/* What the mode refuses on all ranks, and another call in the same graph: launches are of that one alone. */
static void refused_on_all(xep_group_t *group, void *stream)
{
    cuda_job_t job;
    xep_handle_t *handle;
    cuda_job_open(&job, &small, 5, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL), wrong = a;
    wrong.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    cuda_rig_capture(stream);
    MP_REFUSES(&job.host, &wrong, XEP_ERR_UNSUPPORTED, "(0 with XEP_ROWS_BY_EXPERT_PADDED");
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
    void *graph = cuda_rig_graph(stream);
    const uint64_t before = operations(&job);
    for (int again = 1; again <= 2; again++) {
        cuda_job_payload(&job, 50 + (uint64_t)again);
        cuda_rig_replay(graph, stream);
        cuda_job_check_recv(&job, handle);
        MP_CHECK(operations(&job) == before + (uint64_t)again);
    }
    cuda_rig_free_graph(graph);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

void cuda_captured(xep_group_t *group, void *streams[2])
{
    refused(group, streams[0]);
    refused_on_all(group, streams[0]);
    refused_on_one(group, streams[0]);
    called_behind(group, streams[0]);
    released(group, streams[0]);
    other_order(group, streams[0]);
    launch_and_call(group, streams[0]);
    side_by_side(group, streams);
    ended(group, streams[0]);
}

void cuda_captured_death(cuda_job_t *job)
{
    xep_handle_t *handle;
    void *graph = capture(job, 0, &handle);
    cuda_rig_replay(graph, job->stream);
    cuda_job_check_recv(job, handle);
    if (mp_is_last()) raise(SIGKILL);
    for (int again = 0; again < 2; again++) cuda_rig_replay(graph, job->stream);
    cuda_rig_wait(job->stream);
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job->host.buffer, &a, &handle, NULL));
    cuda_job_close(job);
}
