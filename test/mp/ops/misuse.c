/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 120 */

/*
 * What programs get wrong without noticing: a combine whose outputs nobody gave, outputs in memory that peers read, two
 * threads in one buffer, a request that is freed before its operation is done.
 */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

static mp_case_t base = {.name = "misused", MP_SHAPE(8, 2, 64, 20), .weights = 1, .slots = 2};

static xep_handle_t *dispatch(mp_job_t *job)
{
    xep_handle_t *handle;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    MP_OK(xep_dispatch(job->buffer, &d, &handle, NULL));
    MP_CHECK(xep_handle_recv(handle)->rows > 0);
    return handle;
}

static void check_no_outputs(xep_handle_t *handle, const xep_combine_args_t *args)
{
    xep_combine_args_t c = *args;
    c.x = NULL;
    MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &c, NULL));
    MP_REASON("no outputs for the ");
}

/* Neither before the input was asked for nor when other memory was combined since; after an own dispatch alone. */
static void without_outputs(mp_job_t *job)
{
    xep_handle_t *handle = dispatch(job);
    xep_combine_args_t c = {.size = sizeof c, .out = job->out, .out_stride = job->out_stride};
    check_no_outputs(handle, &c);
    c = mp_job_combine(job, handle);
    MP_OK(xep_combine(handle, &c, NULL));
    mp_job_check_out(job);
    c.x = NULL;
    MP_OK(xep_combine(handle, &c, NULL)); /* what is there is still its own */
    mp_job_check_out(job);
    void *copy = calloc(xep_handle_recv(handle)->capacity, base.hidden * sizeof(uint16_t));
    MP_CHECK(copy != NULL);
    c.x = copy;
    MP_OK(xep_combine(handle, &c, NULL));
    check_no_outputs(handle, &c);
    free(copy);
    xep_handle_release(handle);
    handle = dispatch(job);
    check_no_outputs(handle, &c);
    xep_handle_release(handle);
    mp_job_round(job);
}

static void in_the_buffer(mp_job_t *job)
{
    void *heap;
    size_t bytes;
    MP_OK(xep_buffer_memory(job->buffer, &heap, &bytes));
    xep_handle_t *handle = dispatch(job), *none = NULL;
    xep_combine_args_t c = mp_job_combine(job, handle);
    char *y = xep_handle_combine_input(handle, NULL);
    MP_CHECK(y != NULL);
    void *out = c.out;
    c.out = y;
    MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &c, NULL));
    MP_REASON("invalid out: 0x");
    MP_REASON("is memory of the buffer");
    c.out = (char *)heap + bytes - 64;
    MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &c, NULL));
    c.out = out;
    c.missing = (uint8_t *)heap;
    MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &c, NULL));
    MP_REASON("invalid missing: 0x");
    c.missing = NULL;
    MP_FAILS(XEP_ERR_INVALID, xep_handle_gather(handle, heap, 0));
    MP_REASON("invalid out: 0x");
    xep_handle_release(handle);
    xep_dispatch_args_t d = mp_job_dispatch(job);
    d.recv_rows_p = heap;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->buffer, &d, &none, NULL));
    MP_REASON("invalid recv_rows_p: 0x");
    mp_job_round(job);
}

/* ---- two threads ---- */

typedef struct second {
    xep_handle_t *handle;
    void *rows;
    atomic_int *told; /* ranks whose second thread has heard why it cannot call */
} second_t;

/* A local call, which does no harm while the first thread is not in its own yet. */
static void *call_too(void *arg)
{
    const second_t *second = arg;
    xep_status_t status = XEP_OK;
    for (int i = 0; i < 6000 && status == XEP_OK; i++) {
        mp_sleep_us(5000);
        status = xep_handle_gather(second->handle, second->rows, 0);
    }
    mp_check(status == XEP_ERR_INVALID, __FILE__, __LINE__, "the second thread is told");
    MP_REASON("another thread is in a call on this buffer");
    ++*second->told;
    return NULL;
}

/* Rank 0 waits in a dispatch that the others come to only when its second thread was told. */
static void two_threads(mp_job_t *job, atomic_int *told)
{
    xep_handle_t *handle = dispatch(job);
    second_t second = {.handle = handle, .told = told};
    pthread_t thread;
    const int calls = *told;
    second.rows = malloc(xep_handle_recv(handle)->capacity * base.hidden * 4);
    MP_OK(xep_group_barrier(mp_group()));
    if (mp_rank() == 0) MP_CHECK(pthread_create(&thread, NULL, call_too, &second) == 0);
    else mp_await(told, calls + 1);
    xep_handle_release(dispatch(job));
    if (mp_rank() == 0) MP_CHECK(pthread_join(thread, NULL) == 0);
    xep_handle_release(handle);
    free(second.rows);
}

/* ---- requests that are freed early ---- */

static xep_handle_t *dispatch_freed(mp_job_t *job)
{
    xep_handle_t *handle;
    xep_request_t *req;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    MP_OK(xep_dispatch(job->buffer, &d, &handle, &req));
    xep_request_free(req);
    return handle;
}

/* A question goes on with the operation; a call waits for it. */
static void freed_early(mp_job_t *job)
{
    xep_request_t *req;
    xep_handle_t *handle = dispatch_freed(job);
    for (int i = 0; i < 60000 && xep_handle_recv(handle) == NULL; i++) mp_sleep_us(500);
    mp_job_check_recv(job, handle);
    xep_handle_release(handle);
    handle = dispatch_freed(job);
    MP_CHECK(xep_handle_combine_input(handle, NULL) != NULL);
    mp_job_check_recv(job, handle);
    xep_combine_args_t c = mp_job_combine(job, handle);
    MP_OK(xep_combine(handle, &c, &req));
    xep_request_free(req);
    c.x = NULL;
    MP_OK(xep_combine(handle, &c, NULL));
    mp_job_check_out(job);
    xep_handle_release(handle);
}

int main(void)
{
    static const char *const modes[] = {"normal", "ll"};
    xep_group_t *group = mp_group();
    atomic_int *told = mp_counter(group);
    for (int i = 0; i < 2; i++) {
        mp_job_t job;
        base.mode = modes[i];
        mp_job_open(&job, &base, 1);
        mp_job_buffer(&job, group);
        without_outputs(&job);
        in_the_buffer(&job);
        two_threads(&job, told);
        freed_early(&job);
        mp_job_close(&job);
    }
    xep_group_destroy(group);
    return 0;
}
