/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 3, brief: 3 */

/* Operations that begin when others are done, while what they were given is freed, released, destroyed or fails. Both
 * modes. */

#include "mp_job.h"
#include "mp_rig.h"

/* A job and its buffer; recv_rows 0: whatever comes has room. */
static void open_job(mp_job_t *job, xep_group_t *group, const char *mode, uint64_t recv_rows)
{
    static mp_case_t c = {.name = "after", MP_SHAPE(8, 2, 32, 6), .slots = 3};
    c.mode = mode;
    c.recv_rows = recv_rows;
    mp_job_begin(job, &c, 1, group);
}

static void freed_request(xep_group_t *group, const char *mode)
{
    mp_job_t job;
    open_job(&job, group, mode, 0);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    xep_handle_t *handle;
    xep_request_t *req;
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    mp_finish(req);
    MP_SAYS(XEP_ERR_INVALID, "req was freed", xep_request_wait(req));
    MP_SAYS(XEP_ERR_INVALID, "req was freed", xep_request_wait_counts(req));
    MP_FAILS(XEP_ERR_INVALID, xep_request_test(req));
    xep_request_free(req); /* twice: nothing happens */
    a.after = req;
    MP_REFUSES(&job, &a, XEP_ERR_INVALID, "invalid after: it was freed");
    xep_handle_release(handle);
    mp_job_close(&job);
}

static void other_group(xep_group_t *group, const char *mode)
{
    xep_group_t *own = mp_group_alone();
    mp_job_t job, other;
    open_job(&job, group, mode, 0);
    open_job(&other, own, mode, 0);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    xep_handle_t *handle;
    xep_request_t *req;
    MP_OK(xep_dispatch(other.buffer, &a, &handle, &req));
    a.after = req;
    MP_REFUSES(&job, &a, XEP_ERR_INVALID, "invalid after: a request of another group");
    mp_finish(req);
    mp_job_close(&other);
    xep_group_destroy(own);
    mp_job_close(&job);
}

/* Freed at once, so nobody but the operation that comes after it is told; neither moves anything. */
static void failed_and_freed(xep_group_t *group, const char *mode)
{
    mp_job_t small, job;
    open_job(&small, group, mode, 1);
    open_job(&job, group, mode, 0);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    xep_handle_t *full, *handle;
    xep_request_t *first, *second;
    MP_OK(xep_dispatch(small.buffer, &a, &full, &first));
    a.after = first;
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &second));
    xep_request_free(first);
    MP_SAYS(XEP_ERR_OVERFLOW, "the operation it came after failed", xep_request_wait(second));
    xep_request_free(second);
    xep_handle_release(full);
    xep_handle_release(handle);
    a.after = NULL;
    MP_OK(xep_dispatch(job.buffer, &a, &handle, NULL)); /* overflow breaks nothing */
    xep_handle_release(handle);
    mp_job_close(&small);
    mp_job_close(&job);
}

/* The handle whose routing a dispatch will use keeps its slot until that has begun. */
static void released_before_begun(xep_group_t *group, const char *mode)
{
    mp_job_t job;
    open_job(&job, group, mode, 0);
    xep_dispatch_args_t a = mp_job_dispatch(&job), c;
    xep_handle_t *routed, *between, *cached, *none = NULL, *fourth;
    xep_request_t *first, *second;
    MP_OK(xep_dispatch(job.buffer, &a, &routed, NULL));
    uint64_t rows = mp_recv(routed)->rows;
    if (mp_rank() != 0) MP_OK(xep_group_barrier(group));
    MP_OK(xep_dispatch(job.buffer, &a, &between, &first));
    c = mp_job_cached(&job, routed);
    c.after = first;
    MP_OK(xep_dispatch(job.buffer, &c, &cached, &second));
    xep_handle_release(routed);
    MP_CHECK(mp_recv(routed) == NULL);
    if (mp_rank() == 0) {
        /* the others have not begun the first, so the second cannot have begun here */
        if (mp_nranks() > 1) MP_FAILS(XEP_ERR_BUSY, xep_dispatch(job.buffer, &a, &none, NULL));
        MP_OK(xep_group_barrier(group));
    }
    mp_finish(second);
    mp_finish(first);
    MP_CHECK(mp_recv(cached)->rows == rows);
    mp_job_check_recv(&job, cached);
    MP_OK(xep_dispatch(job.buffer, &a, &fourth, NULL));
    MP_CHECK(fourth == routed); /* whose slot is free again */
    mp_job_close(&job);
}

/* What another buffer's operation comes after goes away: that one ends with the same error, and nothing is read after
 * free. */
static void destroyed(xep_group_t *group, const char *mode)
{
    mp_job_t gone, job;
    open_job(&gone, group, mode, 0);
    open_job(&job, group, mode, 0);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    xep_handle_t *handle;
    xep_request_t *first, *second = NULL;
    if (mp_rank() == 0) {
        MP_OK(xep_dispatch(gone.buffer, &a, &handle, &first)); /* alone: it stays in flight */
        a.after = first;
        MP_OK(xep_dispatch(job.buffer, &a, &handle, &second));
    }
    mp_job_close(&gone);
    if (second != NULL) {
        MP_SAYS(XEP_ERR_ABORTED, "the buffer was destroyed", xep_request_wait(second));
    }
    MP_OK(xep_buffer_reset(job.buffer));
    a.after = NULL;
    MP_OK(xep_dispatch(job.buffer, &a, &handle, NULL));
    mp_job_close(&job);
}

/* A deadline names the operation that was waited for: the one it comes after, or the one it was called behind. */
static void deadline(xep_group_t *group, const char *mode, int behind)
{
    mp_job_t job;
    open_job(&job, group, mode, 0);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    xep_handle_t *handle, *other, *last;
    xep_request_t *first, *second, *third;
    if (mp_rank() == 0) {
        MP_OK(xep_dispatch(job.buffer, &a, &handle, &first)); /* alone: it stays in flight */
        a.after = first, a.timeout_ms = MP_VAIN_MS;
        MP_OK(xep_dispatch(job.buffer, &a, &other, &second));
        a.after = NULL;
        if (behind) MP_OK(xep_dispatch(job.buffer, &a, &last, &third));
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_wait(behind ? third : second));
        if (behind) MP_REASON("which was called before it and has not begun");
        MP_REASON(behind ? "waits for dispatch 2 of mode" : "waits for dispatch 1 of mode");
    }
    MP_OK(xep_buffer_reset(job.buffer));
    mp_job_close(&job);
}

static void drop(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg, (void)level, (void)message;
}

int main(void)
{
    xep_group_t *group = mp_group();
    xep_log_set(drop, NULL); /* of the failures that are wanted here */
    for (int m = 0; m < 2; m++) {
        freed_request(group, mp_modes[m]);
        other_group(group, mp_modes[m]);
        failed_and_freed(group, mp_modes[m]);
        released_before_begun(group, mp_modes[m]);
        if (mp_nranks() > 1) destroyed(group, mp_modes[m]);
        for (int behind = 0; behind < 2 && mp_nranks() > 1; behind++) deadline(group, mp_modes[m], behind);
    }
    return mp_end(group);
}
