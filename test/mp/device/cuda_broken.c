/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What breaks a buffer in device memory: a rank that does not come, what all refuse, ranks that combine different
 * things. Where the host waits for counts the call says so; else a later one, as it shows while kernels run. After a
 * reset the buffer is good again.
 */
#include "cuda_parts.h"

#include <stdatomic.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

/* ---- told by the call ---- */

/* The kernel begins when most of the host's time is over, and has all of its own: so it is the one that says who. */
static void late_for_the_host(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "late", MP_SHAPE(8, 2, 64, 16), MP_CUDA};
    const uint32_t last = mp_nranks() - 1;
    cuda_job_t job;
    xep_handle_t *handle = NULL;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = MP_VAIN_MS;
    atomic_int *begin = mp_counter(group);
    if (mp_rank() == last) {
        mp_sleep_us(300 * 1000);
        ++*begin;
    } else {
        if (!job.staged) cuda_rig_hold(stream, begin, 1);
        MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(job.host.buffer, &a, &handle, NULL));
        if (strstr(xep_last_error(), "given up by rank") == NULL) /* another rank may be the first */
            MP_REASON(job.staged ? "waits for counts: rank" : "a kernel has waited too long for counts: rank");
        MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    }
    MP_OK(xep_buffer_reset(job.host.buffer));
    cuda_job_round(&job);
    cuda_job_close(&job);
}

static void other_combines(xep_group_t *group, const char *mode, void *stream)
{
    const mp_case_t c = {.name = "other combines", .mode = mode, MP_SHAPE(8, 2, 64, 16), MP_CUDA};
    cuda_job_t job;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_handle_t *handle = cuda_job_send(&job);
    MP_CHECK(mp_input(handle, NULL) != NULL);
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = job.out;
    b.hidden = mp_rank() == 1 ? 32 : 64;
    b.stream = job.stream;
    if (job.staged) {
        MP_SAYS(XEP_ERR_MISMATCH, "disagree on hidden", xep_combine(handle, &b, NULL));
        xep_handle_release(handle);
    } else {
        MP_OK(xep_combine(handle, &b, NULL)); /* the device finds it */
        cuda_rig_wait(job.stream);
        MP_SAYS(XEP_ERR_PROTOCOL, "disagreed", xep_combine(handle, &b, NULL));
        MP_OK(xep_buffer_reset(job.host.buffer));
    }
    cuda_job_round(&job);
    cuda_job_close(&job);
}

static void refused_at_once(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "at once", MP_SHAPE(8, 2, 64, 16), .fixed_capacity = 1, MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle;
    uint64_t rows;
    cuda_job_open(&job, &c, 5, group, stream);
    job.counts_there = 1;
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.recv_rows_p = &rows;
    MP_REFUSES(&job.host, &a, XEP_ERR_INVALID, "recv_rows_p must be NULL");
    a = cuda_job_dispatch(&job, NULL);
    a.capacity = 0;
    MP_REFUSES(&job.host, &a, XEP_ERR_INVALID, "invalid capacity: 0");
    a = cuda_job_dispatch(&job, NULL);
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
    a = cuda_job_dispatch(&job, handle);
    a.flags = 0;
    MP_REFUSES(&job.host, &a, XEP_ERR_INVALID, "XEP_DISPATCH_COUNTS_THERE, as the cached handle has");
    cuda_job_check_recv(&job, handle);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/* ---- told later: by expert, or with counts that stay there ---- */

/* Rows of such a dispatch have no experts. */
static void check_nothing_came(const cuda_job_t *job, const xep_recv_t *recv)
{
    int64_t first = 0;
    uint64_t came = 1;
    cuda_rig_get(&first, recv->topk_idx, sizeof first, job->stream);
    cuda_rig_get(&came, recv->src_begin + mp_nranks(), sizeof came, job->stream);
    MP_CHECK(first == -1 && came == 0);
}

/* Dispatches, and combines what nobody got; then all must be told why, and can go on after a reset. */
static void told_later(cuda_job_t *job, const xep_dispatch_args_t *a, const char *reason)
{
    xep_handle_t *handle = NULL, *next = NULL;
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = job->out;
    b.stream = job->stream;
    MP_OK(xep_dispatch(job->host.buffer, a, &handle, NULL));
    if (job->counts_there) check_nothing_came(job, mp_recv(handle));
    MP_CHECK(mp_input(handle, NULL) != NULL);
    xep_status_t status = xep_combine(handle, &b, NULL); /* by expert before or after the device has found it */
    MP_CHECK((status == XEP_OK && !job->counts_there) || status == XEP_ERR_PROTOCOL);
    cuda_rig_wait(job->stream);
    if (status == XEP_OK) status = xep_dispatch(job->host.buffer, a, &next, NULL);
    MP_CHECK(status == XEP_ERR_PROTOCOL);
    MP_REASON(reason);
    MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job->host.buffer, a, &next, NULL));
    MP_OK(xep_buffer_reset(job->host.buffer));
    cuda_job_round(job);
}

/* The device's own deadline: the later call says who did not come. */
static void late_for_the_device(cuda_job_t *job)
{
    xep_handle_t *handle;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    a.timeout_ms = MP_VAIN_MS;
    if (mp_rank() != mp_nranks() - 1) {
        MP_OK(xep_dispatch(job->host.buffer, &a, &handle, NULL)); /* nothing is waited for */
        cuda_rig_wait(job->stream);
        MP_REFUSES(&job->host, &a, XEP_ERR_TIMEOUT, "a kernel has waited too long for");
        MP_REFUSES(&job->host, &a, XEP_ERR_BROKEN, "");
    }
    MP_OK(xep_buffer_reset(job->host.buffer));
    cuda_job_round(job);
}

static void later(xep_group_t *group, const char *mode, void *stream)
{
    const int there = strcmp(mode, "normal") == 0;
    const mp_case_t c = {.name = "later", .mode = mode, MP_SHAPE(8, 2, 64, 16), .fixed_capacity = there, MP_CUDA};
    cuda_job_t job;
    cuda_job_open(&job, &c, 5, group, stream);
    job.counts_there = there;
    cuda_job_round(&job);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.capacity = 1;
    told_later(&job, &a, "it has room for 1");
    a = cuda_job_dispatch(&job, NULL);
    a.hidden = 32 + mp_rank() % 2;
    if (mp_nranks() > 1) told_later(&job, &a, "rank 0 and rank 1 disagree on hidden: 32, 33");
    cuda_job_wrong_index(&job, XEP_ERR_PROTOCOL);
    if (mp_nranks() > 1) late_for_the_device(&job);
    cuda_job_close(&job);
}

void cuda_broken(xep_group_t *group, const char *mode, void *stream)
{
    const int staged = cuda_job_stages(group), is_normal = strcmp(mode, "normal") == 0;
    if (!staged && is_normal) refused_at_once(group, stream);
    if (!staged) later(group, mode, stream);
    if (mp_nranks() == 1) return;
    if (is_normal) late_for_the_host(group, stream);
    if (is_normal || !staged) other_combines(group, mode, stream);
}

/* ---- a group that is given up ---- */

void cuda_give_up(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "given up", MP_SHAPE(8, 2, 64, 16), MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = -1;
    if (mp_rank() == 0) MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
    atomic_int *here = mp_counter(group);
    ++*here;
    mp_await(here, (int)mp_nranks()); /* no barrier of the group: who has left it ends it for those that are still in */
    xep_group_abort(group);
    if (mp_rank() == 0 && mp_nranks() > 1) MP_FAILS(XEP_ERR_ABORTED, xep_request_wait(req));
    cuda_job_close(&job);
}
