/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Operations on rows in device memory: every byte compared with the oracle, streams, errors. Started by
 * test/mp/device/cuda_standin.sh, with a stand-in for the driver, and by contrib/check-cuda.sh, on devices.
 *
 * cuda_ops MODE               all of it
 * cuda_ops MODE PART          one of the names at the end of this file, for what does not come back
 * cuda_ops MODE dies          the last rank dies by SIGKILL
 * cuda_ops MODE lost          its device falls off (with the stand-in alone)
 * cuda_ops driver WHAT        the driver is none: absent, old, none
 */
#include <string.h>

#include "cuda_job.h"
#include "cuda_parts.h"
#include "cuda_rig.h"
#include "cuda_rounds.h"
#include "mp_rig.h"

enum { ROUNDS = 3, STREAMS = 2 };

static void *streams[STREAMS];

/* ---- shapes: a dispatch, one with its routing, and combines of both, on two streams in turn ---- */

/* In both modes, where none is named. */
static const mp_case_t extremes[] = {
    {.name = "large rows", MP_SHAPE(16, 8, 9000, 6), MP_FP32},
    {.name = "tokens", .mode = "normal", .owners = "random:11", MP_SHAPE(21, 5, 72, 700), .mask = 150, .weights = 1},
    {.name = "more selections than are numbered at once", .mode = "ll", MP_SHAPE(21, 5, 72, 700), .mask = 150},
    {.name = "many casts", .mode = "normal", MP_SHAPE(16, 8, 256, 700), .quant = XEP_QUANT_MXFP8, .weights = 1},
    {.name = "many selections", MP_SHAPE(80, 40, 96, 9), .weights = 1},
    {.name = "many selections that were sent", .mode = "ll", MP_SHAPE(80, 40, 96, 9), .weights = 1, .sent = 1},
    {.name = "sums end within a pack", .mode = "ll", MP_SHAPE(61, 9, 333, 70), MP_FP32, .biases = 1, .copy_in = 1},
    {.name = "four slots", .routing = "one-rank", MP_SHAPE(8, 2, 64, 130), .slots = 4},
    {.name = "behind scales", MP_SHAPE(16, 2, 128, 50), .nscales = 5, .payloads = 3, .dtype = XEP_E4M3, .weights = 1},
    {.name = "odd bytes",
     MP_SHAPE(61, 5, 333, 70),
     .nscales = 3,
     .dtype = XEP_E4M3,
     .combine_dtype = XEP_FP32,
     .idx_dtype = XEP_INT32,
     .biases = 1,
     .weights = 1,
     .strided = 1},
    {.name = "rows end within a pack", MP_SHAPE(16, 6, 1028, 100), .weights = 1, .biases = 3, .strided = 2},
    {.name = "packed scales",
     MP_SHAPE(16, 2, 1024, 50),
     .nscales = 9,
     .scales_dtype = XEP_INT32,
     .dtype = XEP_E4M3,
     .combine_dtype = XEP_FP16,
     .biases = 2,
     .copy_in = 1},
};

static const struct {
    xep_quant_t quant;
    float scale;
    uint32_t hidden;
    xep_dtype_t dtype;
} casts[] = {{XEP_QUANT_E4M3, 0, 264, XEP_BF16},           {XEP_QUANT_E4M3_POW2, 0, 333, XEP_FP32},
             {XEP_QUANT_UE8M0, 0, 700, XEP_FP16},          {XEP_QUANT_MXFP8, 0, 1000, XEP_BF16},
             {XEP_QUANT_MXFP8_E5M2, 0, 77, XEP_FP32},      {XEP_QUANT_MXFP4, 0, 333, XEP_BF16},
             {XEP_QUANT_NVFP4, 0, 1001, XEP_BF16},         {XEP_QUANT_NVFP4, 0.02f, 520, XEP_FP16},
             {XEP_QUANT_INT8, 0, 333, XEP_BF16},           {XEP_QUANT_INT8_ROW, 0, 1024, XEP_FP32},
             {XEP_QUANT_E4M3_STATIC, 0.03f, 333, XEP_BF16}};

static int is_ll(const char *mode)
{
    return strcmp(mode, "ll") == 0;
}

static xep_dispatch_args_t args_of(cuda_job_t *job, xep_handle_t *cached, int padded, int by_column)
{
    xep_dispatch_args_t a = cuda_job_dispatch(job, cached);
    job->host.shape.padded = padded;
    job->host.shape.by_column = by_column;
    job->host.shape.room = job->host.c->tokens;
    if (padded) a.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    if (by_column) a.flags |= XEP_DISPATCH_SCALES_BY_COLUMN;
    return a;
}

/*
 * By rank with a fixed capacity every third round waits for counts, and the others leave them there; the routing of one
 * whose counts the host knows will do for such a one. By expert some are padded, with scales by column.
 */
static void run_case(xep_group_t *group, mp_case_t c, const char *mode)
{
    cuda_job_t job;
    xep_handle_t *first, *again;
    c.mode = mode;
    c.memory = XEP_MEMORY_CUDA;
    if (c.quant != XEP_QUANT_NONE) c.payloads = 0;
    if (c.scales_dtype == XEP_U8) c.scales_dtype = XEP_INT32;
    const int pads = is_ll(mode) && !c.fixed_capacity, by_column = is_ll(mode) && c.payloads == 0;
    cuda_job_open(&job, &c, 17, group, streams[0]);
    const int there = !is_ll(mode) && c.fixed_capacity && !job.staged;
    for (int i = 0; i < ROUNDS; i++) {
        cuda_job_payload(&job, 100 + (uint64_t)i);
        cuda_rig_wait(job.stream);
        job.stream = streams[i % STREAMS];
        job.counts_there = there && i != 0;
        xep_dispatch_args_t a = args_of(&job, NULL, pads && i == 1, by_column && i != 0);
        MP_OK(xep_dispatch(job.host.buffer, &a, &first, NULL));
        cuda_job_check_recv(&job, first);
        cuda_job_combine(&job, first);
        cuda_job_payload(&job, 200 + (uint64_t)i);
        job.counts_there = there;
        a = args_of(&job, first, pads && i == 2, by_column && i == 1);
        if (is_ll(mode)) job.host.shape.weights = c.sent;
        MP_OK(xep_dispatch(job.host.buffer, &a, &again, NULL));
        cuda_job_check_recv(&job, again);
        xep_handle_release(first);
        cuda_job_combine(&job, again);
        cuda_job_combine(&job, again);
        xep_handle_release(again);
    }
    cuda_job_close(&job);
}

static void shapes(xep_group_t *group, const char *mode)
{
    for (uint32_t i = 0; i < MP_SHAPES; i = mp_next_shape(i)) {
        mp_case_t c = mp_shape(i, mode);
        if (!is_ll(mode)) c.fixed_capacity = i % 2 == 1;
        run_case(group, c, mode);
    }
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++)
        if (extremes[i].mode == NULL || strcmp(extremes[i].mode, mode) == 0) run_case(group, extremes[i], mode);
    for (uint32_t i = 0; i < sizeof casts / sizeof casts[0]; i++) {
        mp_case_t c = {.name = xep_quant_name(casts[i].quant), MP_SHAPE(12, 3, casts[i].hidden, 31), .weights = 1};
        c.quant = casts[i].quant, c.quant_scale = casts[i].scale;
        c.dtype = c.combine_dtype = casts[i].dtype;
        c.strided = i % 2 == 1, c.biases = i % 4, c.ragged = i % 5 == 3 ? 2 : 0, c.fixed_capacity = i % 4 == 2;
        if (i % 3 == 0) c.owners = "random:5", c.mask = 150;
        run_case(group, c, mode);
    }
}

/* ---- phases of ll: two dispatches are sent before either is received; the one sent last is asked for first ---- */

static void phases(xep_group_t *group)
{
    const mp_case_t c =
        {.name = "phases", .mode = "ll", MP_SHAPE(12, 3, 80, 37), .weights = 1, .quant = XEP_QUANT_E4M3, MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle[2];
    xep_request_t *req[2];
    cuda_job_open(&job, &c, 29, group, streams[0]);
    for (int i = 0; i < ROUNDS; i++) {
        for (int h = 0; h < 2; h++) {
            xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
            a.stream = streams[h];
            MP_OK(xep_dispatch(job.host.buffer, &a, &handle[h], &req[h]));
            MP_CHECK(mp_recv(handle[h]) == NULL);
        }
        for (int h = 1; h >= 0; h--) {
            if (i % 2 != 0) MP_OK(xep_request_stream_wait(req[h], streams[1 - h])); /* that finishes it, too */
            mp_finish(req[h]);
        }
        for (int h = 0; h < 2; h++) {
            job.stream = streams[i % 2 != 0 ? 1 - h : h];
            cuda_job_end(&job, handle[h]);
        }
    }
    job.stream = streams[0];
    cuda_job_close(&job);
}

/* ---- requests of normal: done when rows are counted; an operation of the same buffer comes after it anyway ---- */

static void requests(xep_group_t *group)
{
    const mp_case_t c = {.name = "requests", MP_SHAPE(12, 3, 80, 37), .quant = XEP_QUANT_E4M3, .weights = 1, MP_CUDA};
    cuda_job_t job;
    xep_handle_t *first, *second;
    xep_request_t *reqs[2];
    xep_status_t status;
    cuda_job_open(&job, &c, 29, group, streams[0]);
    for (int i = 0; i < ROUNDS; i++) {
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &first, &reqs[0]));
        a.after = reqs[0];
        MP_OK(xep_dispatch(job.host.buffer, &a, &second, &reqs[1]));
        MP_OK(xep_request_wait_counts(reqs[1]));
        while ((status = xep_request_test(reqs[0])) == XEP_INPROGRESS) continue;
        MP_OK(status);
        for (int r = 0; r < 2; r++) mp_finish(reqs[r]);
        cuda_job_check_recv(&job, second);
        cuda_job_check_recv(&job, first);
        cuda_job_combine(&job, second);
        cuda_job_combine(&job, first);
        xep_handle_release(second);
        xep_handle_release(first);
    }
    cuda_job_close(&job);
}

/*
 * Outputs are read on a stream that knows nothing of the operations but what it is told: by a copy that is enqueued at
 * once, while the stand-in's other streams are late.
 */
static void other_streams(xep_group_t *group)
{
    const mp_case_t c = {.name = "other streams", MP_SHAPE(12, 3, 80, 37), MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    cuda_job_open(&job, &c, 37, group, streams[0]);
    for (int i = 0; i < 10 * ROUNDS; i++) {
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
        MP_OK(xep_request_stream_wait(req, streams[1]));
        xep_request_free(req);
        job.stream = streams[1];
        cuda_job_check_recv(&job, handle);
        job.stream = streams[0];
        xep_handle_release(handle);
        cuda_rig_put(job.x, job.host.x, job.host.tokens * job.host.x_stride, job.stream);
    }
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
    cuda_rig_capture(streams[1]);
    MP_SAYS(XEP_ERR_INVALID, "is being captured", xep_request_stream_wait(req, streams[1]));
    cuda_rig_free_graph(cuda_rig_graph(streams[1]));
    mp_finish(req);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/* ---- errors that all ranks have, and that change nothing ---- */

static void casts_as_on_hosts(void)
{
    xep_mode_info_t host = XEP_MODE_INFO_INIT, device = XEP_MODE_INFO_INIT;
    MP_OK(xep_mode_query("normal", XEP_MEMORY_HOST, &host));
    MP_OK(xep_mode_query("normal", XEP_MEMORY_CUDA, &device));
    MP_CHECK(device.casts == host.casts && device.combine_casts == host.combine_casts);
}

/* One rank has counts to tell, the next has none. */
static void refuse_half_cached(cuda_job_t *job)
{
    xep_handle_t *handle, *none = NULL;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    MP_OK(xep_dispatch(job->host.buffer, &a, &handle, NULL));
    a = cuda_job_dispatch(job, mp_rank() % 2 == 0 ? handle : NULL);
    if (mp_nranks() > 1) MP_FAILS(XEP_ERR_MISMATCH, xep_dispatch(job->host.buffer, &a, &none, NULL));
    cuda_job_check_recv(job, handle);
    xep_handle_release(handle);
}

/* Of normal, which the host hears of in the call; so it does of ranks that disagree. */
static void refuse_by_rank(cuda_job_t *job)
{
    xep_handle_t *handle;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    a.x = job->host.x;
    MP_REFUSES(&job->host, &a, XEP_ERR_INVALID, "host memory");
    a = cuda_job_dispatch(job, NULL);
    a.quant = XEP_QUANT_NVFP4;
    a.scales = NULL;
    a.nscales = 0;
    MP_REFUSES(&job->host, &a, XEP_ERR_INVALID,
               "too few scales in a row for quant 7: 1 (params.scales: at least 2 for a hidden of 64)");
    a = cuda_job_dispatch(job, NULL);
    a.hidden = 32 + mp_rank() % 2;
    if (mp_nranks() == 1) {
        MP_OK(xep_dispatch(job->host.buffer, &a, &handle, NULL));
        xep_handle_release(handle);
    } else MP_REFUSES(&job->host, &a, XEP_ERR_MISMATCH, "rank 0 and rank 1 disagree on hidden: 32, 33");
    a = cuda_job_dispatch(job, NULL);
    a.capacity = 1;
    MP_REFUSES(&job->host, &a, XEP_ERR_OVERFLOW, "has room for 1");
    refuse_half_cached(job);
    if (!job->staged) cuda_job_wrong_index(job, XEP_ERR_INVALID);
}

static void refusals(xep_group_t *group, const char *mode)
{
    const mp_case_t c = {.name = "refused",
                         .mode = mode,
                         MP_SHAPE(8, 2, 64, 16),
                         .nscales = is_ll(mode) ? 2 : 1,
                         MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle = NULL;
    cuda_job_open(&job, &c, 5, group, streams[0]);
    if (!is_ll(mode)) refuse_by_rank(&job);
    cuda_refuse_memory(&job);
    cuda_refuse_streams(&job);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.arrangement = is_ll(mode) ? XEP_ROWS_BY_RANK : XEP_ROWS_BY_EXPERT_PADDED;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    handle = cuda_job_send(&job); /* and the buffer goes on */
    cuda_job_nothing_missing(&job, handle);
    cuda_job_refuse_lacks(&job, handle);
    cuda_job_refuse_formats(&job, handle);
    cuda_job_end(&job, handle);
    cuda_job_close(&job);
}

/* ---- all of it ---- */

static const char *only = ""; /* the part that is wanted; -PART: all but that; "": all */
static int nruns;

static int runs(const char *part)
{
    const int is_wanted = only[0] == '-' ? strcmp(only + 1, part) != 0 : only[0] == '\0' || strcmp(only, part) == 0;
    nruns += is_wanted;
    return is_wanted;
}

static void of_normal(xep_group_t *group, int staged)
{
    if (runs("requests")) requests(group);
    if (runs("other-streams")) other_streams(group);
    if (runs("casts")) casts_as_on_hosts();
    if (runs("after")) cuda_after(group, streams);
    if (runs("experts") && !staged) cuda_experts(group, streams[0]);
    if (runs("refuse-experts") && !staged) cuda_refuse_experts(group, streams[0]);
    if (runs("graphs-exact") && (!staged || cuda_captures_staged())) cuda_graphs_exact(group, streams[0]);
    if (runs("refuse-stream")) cuda_refuse_stream(group, streams[0]);
    if (runs("refuse-device")) cuda_refuse_no_device(group);
    if (runs("refuse-machine")) cuda_refuse_machine(group);
}

static void of_ll(xep_group_t *group)
{
    if (runs("phases")) phases(group);
    if (runs("ll-patterns")) cuda_ll_patterns(group, streams[0]);
    if (runs("ll-again")) cuda_ll_again(group, streams[0]);
}

int main(int argc, char **argv)
{
    xep_group_t *group = mp_group();
    const char *mode = argc > 1 ? argv[1] : "normal", *what = argc > 2 ? argv[2] : "";
    if (strcmp(mode, "driver") == 0) return cuda_refuse(group, what);
    if (!cuda_rig_open(mp_rank())) return mp_skip("there is no CUDA device");
    for (int i = 0; i < STREAMS; i++) streams[i] = cuda_rig_stream();
    if (strcmp(what, "lost") == 0) return cuda_lost(group, mode, streams[0]);
    if (strcmp(what, "dies") == 0) return cuda_death(group, mode, streams[0]);
    const int staged = cuda_job_stages(group), captures = cuda_captures_staged();
    only = what;
    if (runs("shapes")) shapes(group, mode);
    if (runs("rounds")) cuda_rounds_in_a_row(group, mode, streams);
    if (is_ll(mode)) of_ll(group);
    else of_normal(group, staged);
    if (runs("refusals")) refusals(group, mode);
    if (runs("staged")) cuda_staged(group, mode, streams);
    if (runs("direct") && !is_ll(mode)) cuda_goes_direct(group, streams[0]);
    if (runs("standing") && !staged) cuda_standing(group, mode, streams[0]);
    if (runs("graphs") && (!staged || (is_ll(mode) && captures))) cuda_graphs(group, mode, streams[0]);
    if (runs("captured") && staged && is_ll(mode) && captures) cuda_captured(group, streams);
    if (runs("layouts")) cuda_layouts(group, mode, streams[0]);
    if (runs("broken")) cuda_broken(group, mode, streams[0]);
    if (runs("faults")) cuda_faults(group, mode, streams[0]);
    if (runs("give-up") && !is_ll(mode)) cuda_give_up(group, streams[0]);
    MP_CHECK(nruns != 0);
    return mp_end(group);
}
