/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 120 */

/*
 * What programs get wrong without noticing: a combine whose outputs nobody gave, outputs in memory that peers read, two
 * threads in one buffer, a request that is freed before its operation is done.
 */

#define _GNU_SOURCE /* MAP_FIXED_NOREPLACE */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mp_job.h"
#include "mp_rig.h"

static mp_case_t base = {.name = "misused", MP_SHAPE(8, 2, 64, 20), .weights = 1, .slots = 2};

static xep_handle_t *dispatch(mp_job_t *job)
{
    xep_handle_t *handle = mp_job_send(job);
    MP_CHECK(mp_recv(handle)->rows > 0);
    return handle;
}

static void check_no_outputs(xep_handle_t *handle, const xep_combine_args_t *args)
{
    xep_combine_args_t c = *args;
    c.x = NULL;
    MP_SAYS(XEP_ERR_INVALID, "no outputs for the ", xep_combine(handle, &c, NULL));
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
    void *copy = calloc(mp_recv(handle)->capacity, base.hidden * sizeof(uint16_t));
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

/* ---- outputs in memory of a buffer ---- */

/* The output called name is refused. */
#define REFUSED(_name, _call)               \
    do {                                    \
        MP_FAILS(XEP_ERR_INVALID, _call);   \
        MP_REASON("invalid " _name ": 0x"); \
        MP_REASON("is memory of a buffer"); \
    } while (0)

static void refuse_in_operations(mp_job_t *job, xep_handle_t *handle, void *there)
{
    xep_handle_t *none = NULL;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    d.recv_rows_p = there;
    REFUSED("recv_rows_p", xep_dispatch(job->buffer, &d, &none, NULL));
    d.recv_rows_p = NULL, d.expert_stats = there;
    REFUSED("expert_stats", xep_dispatch(job->buffer, &d, &none, NULL));
    d.expert_stats = NULL, d.wait_ns = there;
    REFUSED("wait_ns", xep_dispatch(job->buffer, &d, &none, NULL));
    xep_next_args_t n = XEP_NEXT_ARGS_INIT;
    n.wait_ns = there;
    REFUSED("wait_ns", xep_handle_next(handle, &n, NULL));
    xep_combine_args_t c = mp_job_combine(job, handle);
    float *const weights = malloc(mp_recv(handle)->capacity * base.topk * sizeof *weights);
    void *const out = c.out;
    c.wait_ns = there;
    REFUSED("wait_ns", xep_combine(handle, &c, NULL));
    c.wait_ns = NULL, c.missing = there;
    REFUSED("missing", xep_combine(handle, &c, NULL));
    c.missing = NULL, c.out = there;
    REFUSED("out", xep_combine(handle, &c, NULL));
    c.out = out, c.topk_weights = weights, c.out_weights = there;
    REFUSED("out_weights", xep_combine(handle, &c, NULL));
    free(weights);
    REFUSED("out", xep_handle_gather(handle, there, 0));
}

static void refuse_in_queries(mp_job_t *job, void *there)
{
    xep_group_t *const group = mp_group();
    uint32_t count;
    xep_waits_t waits[] = {{.size = sizeof waits[0], .operations = there},
                           {.size = sizeof waits[0], .count = there},
                           {.size = sizeof waits[0], .sum_ns = there},
                           {.size = sizeof waits[0], .max_ns = there}};
    REFUSED("operations", xep_buffer_waits(job->buffer, XEP_OP_DISPATCH, &waits[0]));
    REFUSED("count", xep_buffer_waits(job->buffer, XEP_OP_DISPATCH, &waits[1]));
    REFUSED("sum_ns", xep_buffer_waits(job->buffer, XEP_OP_DISPATCH, &waits[2]));
    REFUSED("max_ns", xep_buffer_waits(job->buffer, XEP_OP_DISPATCH, &waits[3]));
    REFUSED("info", xep_buffer_query(job->buffer, there));
    REFUSED("info", xep_group_query(group, there));
    REFUSED("info", xep_group_peer(group, 0, there));
    REFUSED("info", xep_library_query(there));
    REFUSED("recv", xep_group_allgather(group, &count, there, sizeof count));
    REFUSED("masks", xep_group_mask_query(group, there, sizeof(xep_mask_t), 1, &count));
    xep_shrink_args_t shrink = {.size = sizeof shrink, .origins = there};
    REFUSED("origins", xep_group_shrink(group, &shrink, &(xep_group_t *){NULL}));
}

static void refuse_in_layout(const mp_job_t *job, void *there)
{
    xep_layout_args_t args = {.size = sizeof args,
                              .tokens = job->tokens,
                              .topk = base.topk,
                              .experts = base.experts,
                              .nranks = mp_nranks(),
                              .topk_idx = job->idx};
    xep_layout_t to_ranks = {.size = sizeof to_ranks, .tokens_per_rank = there};
    xep_layout_t to_nodes = {.size = sizeof to_nodes, .tokens_per_node = there};
    xep_layout_t to_experts = {.size = sizeof to_experts, .tokens_per_expert = there};
    xep_layout_t places = {.size = sizeof places, .token_in_rank = there};
    REFUSED("tokens_per_rank", xep_layout(&args, &to_ranks));
    REFUSED("tokens_per_node", xep_layout(&args, &to_nodes));
    REFUSED("tokens_per_expert", xep_layout(&args, &to_experts));
    REFUSED("token_in_rank", xep_layout(&args, &places));
}

/* Calls of a buffer that has a handle. */
static void refuse_all(mp_job_t *job, xep_handle_t *handle, void *there)
{
    refuse_in_operations(job, handle, there);
    refuse_in_queries(job, there);
    refuse_in_layout(job, there);
}

/* Of rows in place: where one of another rank is mapped here; NULL: none is. */
static void *find_row_of_peer(const xep_recv_t *recv, const char *heap, size_t bytes)
{
    for (uint64_t i = 0; i < recv->capacity; i++)
        if (recv->row[i] != NULL && (size_t)((const char *)recv->row[i] - heap) >= bytes)
            return (void *)(uintptr_t)recv->row[i];
    return NULL;
}

static void in_another_buffer(mp_job_t *job, xep_handle_t *handle, mp_job_t *other)
{
    char *heap, *input;
    size_t bytes;
    xep_handle_t *placed;
    xep_dispatch_args_t d = mp_job_dispatch(other);
    MP_OK(xep_buffer_memory(other->buffer, (void **)&heap, &bytes));
    mp_job_place(other, &d);
    MP_OK(xep_dispatch(other->buffer, &d, &placed, NULL));
    refuse_all(job, handle, heap);
    refuse_all(job, handle, heap + bytes - 64);
    MP_CHECK((input = mp_input(placed, NULL)) != NULL);
    refuse_all(job, handle, input);
    void *row = find_row_of_peer(mp_recv(placed), heap, bytes);
    MP_CHECK((row != NULL) == (mp_buffer_info(other->buffer).mapped_peers > 1));
    if (row != NULL) refuse_all(job, handle, row);
    xep_handle_release(placed);
}

/* As if the program had got this memory next: it is like any other. */
static void take_memory_again(void *memory, size_t bytes)
{
    uint32_t *found =
        mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MP_CHECK(found == memory);
    MP_OK(xep_group_allgather(mp_group(), &(uint32_t){mp_rank()}, found, sizeof *found));
    MP_CHECK(found[1] == 1);
    MP_CHECK(munmap(found, bytes) == 0);
}

static void in_buffers(mp_job_t *job)
{
    static mp_case_t placed;
    mp_job_t other;
    void *heap;
    size_t bytes;
    xep_handle_t *handle = dispatch(job);
    placed = base;
    placed.in_place = 1;
    mp_job_open(&other, &placed, 1);
    mp_job_buffer(&other, mp_group());
    MP_OK(xep_buffer_memory(job->buffer, &heap, &bytes));
    refuse_all(job, handle, heap);
    refuse_all(job, handle, (char *)heap + bytes - 64);
    refuse_all(job, handle, mp_input(handle, NULL));
    in_another_buffer(job, handle, &other);
    MP_OK(xep_buffer_memory(other.buffer, &heap, &bytes));
    mp_job_close(&other);
    take_memory_again(heap, 4096);
    xep_handle_release(handle);
    mp_job_round(job);
}

/* ---- two threads ---- */

typedef struct second {
    xep_handle_t *handle;
    xep_request_t *req; /* that the first thread waits for */
    void *rows;
    atomic_int *told; /* ranks whose second thread has heard why it cannot call */
} second_t;

/* A local call, which does no harm while the first thread is not in its own yet. */
static void *call_too(void *arg)
{
    const second_t *second = arg;
    xep_status_t status = XEP_OK;
    uint32_t index = 1;
    for (int i = 0; i < 6000 && status == XEP_OK; i++) {
        mp_sleep_us(5000);
        status = xep_handle_gather(second->handle, second->rows, 0);
    }
    mp_check(status == XEP_ERR_INVALID, __FILE__, __LINE__, "the second thread is told");
    MP_REASON("another thread is in a call on this buffer");
    MP_FAILS(XEP_ERR_INVALID, xep_request_wait(second->req));
    MP_CHECK(xep_request_test(second->req) == XEP_INPROGRESS);
    ++*second->told;
    MP_OK(xep_request_wait_any(&second->req, 1, &index));
    MP_CHECK(index == 0);
    return NULL;
}

/* Rank 0 waits for a dispatch that the others come to only when its second thread was told. */
static void two_threads(mp_job_t *job, atomic_int *told)
{
    xep_handle_t *handle = dispatch(job), *next;
    second_t second = {.handle = handle, .told = told};
    pthread_t thread;
    const int calls = *told;
    const xep_dispatch_args_t d = mp_job_dispatch(job);
    second.rows = malloc(mp_recv(handle)->capacity * base.hidden * 4);
    MP_OK(xep_group_barrier(mp_group()));
    if (mp_rank() != 0) mp_await(told, calls + 1);
    MP_OK(xep_dispatch(job->buffer, &d, &next, &second.req));
    if (mp_rank() == 0) MP_CHECK(pthread_create(&thread, NULL, call_too, &second) == 0);
    MP_OK(xep_request_wait(second.req));
    if (mp_rank() == 0) MP_CHECK(pthread_join(thread, NULL) == 0);
    xep_request_free(second.req);
    xep_handle_release(next);
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
    for (int i = 0; i < 60000 && mp_recv(handle) == NULL; i++) mp_sleep_us(500);
    mp_job_check_recv(job, handle);
    xep_handle_release(handle);
    handle = dispatch_freed(job);
    MP_CHECK(mp_input(handle, NULL) != NULL);
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
    xep_group_t *group = mp_group();
    atomic_int *told = mp_counter(group);
    for (int i = 0; i < 2; i++) {
        mp_job_t job;
        base.mode = mp_modes[i];
        mp_job_begin(&job, &base, 1, group);
        without_outputs(&job);
        in_buffers(&job);
        two_threads(&job, told);
        freed_early(&job);
        mp_job_close(&job);
    }
    return mp_end(group);
}
