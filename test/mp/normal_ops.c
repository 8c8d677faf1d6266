/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 4, limit: 180 */

/* Operations in flight: requests, slots, order of ends, dependencies, cached routing, several buffers and threads. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mp_rig.h"

static const mp_case_t base = {.name = "ops", .experts = 24, .topk = 6, .hidden = 200, .tokens = 40, .ragged = 1, .mask = 50, .weights = 1, .slots = 5};

enum { SLOTS = 5 };

static void nap(unsigned us)
{
    struct timespec t = {0, (long)us * 1000};
    nanosleep(&t, NULL);
}

static void wait_and_free(xep_request_t *req)
{
    MP_OK(xep_request_wait(req));
    MP_OK(xep_request_wait(req)); /* again: the same */
    xep_request_free(req);
}

/* ---- five dispatches in flight, ended in an order that differs from round to round and rank to rank ---- */

static void shuffle(uint32_t *order, uint64_t seed)
{
    for (uint32_t i = 0; i < SLOTS; i++) order[i] = i;
    for (uint32_t i = SLOTS - 1; i > 0; i--) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t j = (uint32_t)(seed >> 33) % (i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static void five_in_flight(xep_group_t *group, int copy_in)
{
    mp_case_t c = base;
    mp_job_t jobs[SLOTS];
    c.copy_in = copy_in;
    for (int i = 0; i < SLOTS; i++) mp_job_open(&jobs[i], &c, 10 + (uint64_t)i);
    mp_job_buffer(&jobs[0], group);
    for (uint64_t round = 0; round < 20; round++) {
        xep_handle_t *handles[SLOTS], *none;
        xep_request_t *reqs[SLOTS];
        uint32_t order[SLOTS];
        for (int i = 0; i < SLOTS; i++) {
            mp_job_payload(&jobs[i], round * 10 + (uint64_t)i);
            xep_dispatch_args_t a = mp_job_dispatch(&jobs[i]);
            MP_OK(xep_dispatch(jobs[0].buffer, &a, &handles[i], &reqs[i]));
            nap((unsigned)((round * 37 + mp_rank() * 71) % 200));
        }
        xep_dispatch_args_t more = mp_job_dispatch(&jobs[0]);
        none = NULL;
        MP_FAILS(XEP_ERR_BUSY, xep_dispatch(jobs[0].buffer, &more, &none, NULL));
        MP_CHECK(none == NULL);
        shuffle(order, round * 97 + mp_rank());
        for (int i = 0; i < SLOTS; i++) {
            wait_and_free(reqs[order[i]]);
            mp_job_check_recv(&jobs[order[i]], handles[order[i]]);
        }
        for (int i = 0; i < SLOTS; i++) { /* begun in the same order on all ranks */
            xep_combine_args_t a = mp_job_combine(&jobs[i], handles[i]);
            MP_OK(xep_combine(handles[i], &a, &reqs[i]));
            if (getenv("XEP_PROGRESS") == NULL) /* a progress thread may have ended the first by now */
                MP_FAILS(XEP_ERR_INVALID, xep_combine(handles[i], &a, NULL));
        }
        shuffle(order, round * 89 + mp_rank() + 5);
        for (int i = 0; i < SLOTS; i++) wait_and_free(reqs[order[i]]);
        for (int i = 0; i < SLOTS; i++) {
            mp_job_check_out(&jobs[i]);
            mp_job_check_inputs(&jobs[i]);
        }
        shuffle(order, round * 83 + mp_rank() * 3); /* released in any order: slots differ from rank to rank */
        for (int i = 0; i < SLOTS; i++) xep_handle_release(handles[order[i]]);
    }
    for (int i = SLOTS - 1; i >= 0; i--) mp_job_close(&jobs[i]);
}

/* ---- a request that is only tested; one that is freed while in flight; a handle released while in flight ---- */

static void test_only(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    xep_status_t status;
    mp_job_open(&job, &base, 3);
    mp_job_buffer(&job, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == 0) nap(3000);
    while ((status = xep_request_test(req)) == XEP_INPROGRESS) continue;
    MP_OK(status);
    xep_request_free(req);
    mp_job_check_recv(&job, handle);
    xep_handle_release(handle);
    for (int i = 0; i < 40; i++) { /* more often than there are requests: none is lost */
        MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
        xep_request_free(req);
        xep_handle_release(handle);
        do status = xep_dispatch(job.buffer, &a, &handle, NULL);
        while (status == XEP_ERR_BUSY);
        MP_OK(status);
        mp_job_check_recv(&job, handle);
        xep_handle_release(handle);
    }
    mp_job_close(&job);
}

/* ---- dependencies: dispatch, then combine of another handle, each after the one before; across two buffers ---- */

static void chain(xep_group_t *group)
{
    mp_job_t a, b;
    xep_handle_t *ha, *hb;
    xep_request_t *ra, *rb;
    mp_job_open(&a, &base, 4);
    mp_job_open(&b, &base, 5);
    mp_job_buffer(&a, group);
    mp_job_buffer(&b, group);
    for (int i = 0; i < 10; i++) {
        xep_dispatch_args_t da = mp_job_dispatch(&a), db = mp_job_dispatch(&b);
        MP_OK(xep_dispatch(a.buffer, &da, &ha, &ra));
        db.after = ra;
        MP_OK(xep_dispatch(b.buffer, &db, &hb, &rb));
        wait_and_free(rb); /* waits for ra too */
        MP_OK(xep_request_test(ra));
        xep_request_free(ra);
        mp_job_check_recv(&b, hb);
        mp_job_check_recv(&a, ha);
        xep_combine_args_t ca = mp_job_combine(&a, ha), cb = mp_job_combine(&b, hb);
        MP_OK(xep_combine(hb, &cb, &rb));
        ca.after = rb;
        MP_OK(xep_combine(ha, &ca, NULL));
        wait_and_free(rb);
        mp_job_check_out(&a);
        mp_job_check_out(&b);
        xep_handle_release(ha);
        xep_handle_release(hb);
    }
    mp_job_close(&a);
    mp_job_close(&b);
}

/* ---- cached dispatch: other data, other type, the handle it came from released before or after ---- */

static void cached(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *first, *again, *third;
    mp_job_open(&job, &base, 6);
    mp_job_buffer(&job, group);
    for (uint64_t round = 0; round < 6; round++) {
        xep_dispatch_args_t a = mp_job_dispatch(&job);
        MP_OK(xep_dispatch(job.buffer, &a, &first, NULL));
        mp_job_payload(&job, 1000 + round);
        xep_dispatch_args_t c = mp_job_dispatch(&job);
        c.topk_idx = NULL;
        c.topk_weights = NULL;
        c.cached = first;
        MP_OK(xep_dispatch(job.buffer, &c, &again, NULL));
        if (round % 2 == 0) xep_handle_release(first);
        job.shape.weights = 0;
        mp_job_check_recv(&job, again);
        c.cached = again; /* of a cached one */
        MP_OK(xep_dispatch(job.buffer, &c, &third, NULL));
        mp_job_check_recv(&job, third);
        job.shape.weights = 1;
        for (int i = 0; i < 3; i++) { /* one handle, combined several times */
            mp_job_payload(&job, 2000 + round * 10 + (uint64_t)i);
            xep_combine_args_t b = mp_job_combine(&job, third);
            b.topk_weights = NULL;
            b.out_weights = NULL;
            MP_OK(xep_combine(third, &b, NULL));
            tool_difference_t d;
            MP_CHECK(tool_check_combine(&job.shape, mp_rank(), 0, job.out, job.out_stride, &d) == 0);
        }
        if (round % 2 == 1) { /* released last, so that no other dispatch has taken its slot */
            xep_handle_release(first);
            c.cached = first;
            MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.buffer, &c, &first, NULL));
        }
        xep_handle_release(again);
        xep_handle_release(third);
    }
    mp_job_close(&job);
}

/* ---- two buffers, each used by a thread of its own, at the same time ---- */

static void *hammer(void *arg)
{
    mp_job_t *job = arg;
    for (uint64_t round = 0; round < 25; round++) {
        mp_job_payload(job, round);
        mp_job_round(job);
    }
    return NULL;
}

static void two_threads(xep_group_t *group)
{
    mp_case_t other = base;
    mp_job_t a, b;
    pthread_t thread;
    other.hidden = 77;
    other.copy_in = 1;
    mp_job_open(&a, &base, 7);
    mp_job_open(&b, &other, 8);
    mp_job_buffer(&a, group);
    mp_job_buffer(&b, group);
    MP_CHECK(pthread_create(&thread, NULL, hammer, &a) == 0);
    hammer(&b);
    MP_CHECK(pthread_join(thread, NULL) == 0);
    mp_job_close(&a);
    mp_job_close(&b);
}

/* ---- overflow: every rank learns it and the true counts; the same call with room succeeds ---- */

static void overflow(xep_group_t *group)
{
    mp_case_t c = base;
    mp_job_t job;
    xep_handle_t *handle = NULL;
    c.routing = "one-rank";
    c.ragged = 0;
    c.mask = 0;
    mp_job_open(&job, &c, 9);
    mp_job_buffer(&job, group);
    for (int round = 0; round < 12; round++) { /* more often than slots */
        xep_dispatch_args_t a = mp_job_dispatch(&job);
        uint64_t rows = UINT64_MAX, need = mp_rank() == 0 ? (uint64_t)mp_nranks() * c.tokens : 0;
        a.recv_rows_p = &rows;
        a.capacity = mp_rank() == 0 ? need - 1 : 0;
        MP_FAILS(XEP_ERR_OVERFLOW, xep_dispatch(job.buffer, &a, &handle, NULL));
        MP_REASON("rank 0");
        MP_CHECK(handle == NULL && rows == need);
        a.capacity = need;
        rows = UINT64_MAX;
        MP_OK(xep_dispatch(job.buffer, &a, &handle, NULL));
        MP_CHECK(rows == need);
        job.shape.capacity = need;
        mp_job_check_recv(&job, handle);
        job.shape.capacity = 0;
        xep_handle_release(handle);
        handle = NULL;
    }
    mp_job_close(&job);
}

/* ---- routing gradients: <dispatch(x), y> = <x, combine(y)>, in integers small enough to be exact in fp32 ---- */

static void adjoint(xep_group_t *group)
{
    mp_case_t c = base;
    mp_job_t job;
    xep_handle_t *handle;
    size_t stride;
    int64_t sums[2] = {0, 0}, all[2 * 64];
    c.dtype = c.combine_dtype = XEP_FP32;
    mp_job_open(&job, &c, 11);
    mp_job_buffer(&job, group);
    float *x = job.x;
    for (uint64_t i = 0; i < job.tokens * c.hidden; i++) x[i] = (float)((int)((i * 7 + mp_rank() * 13) % 31) - 15);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &d, &handle, NULL));
    const xep_recv_t *recv = xep_handle_recv(handle);
    char *y = xep_handle_combine_input(handle, &stride);
    for (uint64_t row = 0; row < recv->rows; row++)
        for (uint32_t h = 0; h < c.hidden; h++) {
            float value = (float)((int)((row * 11 + h * 3 + mp_rank() * 5) % 29) - 14);
            ((float *)(void *)(y + row * stride))[h] = value;
            sums[0] += (int64_t)(value * ((const float *)(const void *)((const char *)recv->x + row * recv->x_stride))[h]);
        }
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = job.out;
    MP_OK(xep_combine(handle, &b, NULL));
    for (uint64_t i = 0; i < job.tokens * c.hidden; i++) sums[1] += (int64_t)(x[i] * ((float *)job.out)[i]);
    MP_CHECK(mp_nranks() <= 64);
    MP_OK(xep_group_allgather(group, sums, all, sizeof sums));
    sums[0] = sums[1] = 0;
    for (uint32_t i = 0; i < 2 * mp_nranks(); i++) sums[i % 2] += all[i];
    MP_CHECK(sums[0] == sums[1] && sums[0] != 0);
    xep_handle_release(handle);
    mp_job_close(&job);
}

/* ---- a rank in an allgather of the group keeps the operations going that others wait for ---- */

static void wait_elsewhere(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    uint32_t mine = mp_rank(), all[64];
    mp_job_open(&job, &base, 12);
    mp_job_buffer(&job, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    for (int i = 0; i < 5; i++) {
        MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
        if (mp_rank() % 2 == 1) MP_OK(xep_request_wait(req));
        MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
        if (i % 2 == 0) MP_OK(xep_group_barrier(group));
        MP_OK(xep_request_wait(req));
        xep_request_free(req);
        mp_job_check_recv(&job, handle);
        xep_handle_release(handle);
    }
    mp_job_close(&job);
}

/* ---- counts and places are known before the rows are here, and do not change ---- */

static void counts_first(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    mp_job_open(&job, &base, 13);
    mp_job_buffer(&job, group);
    for (int i = 0; i < 5; i++) {
        mp_job_round(&job);
        xep_dispatch_args_t a = mp_job_dispatch(&job);
        MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
        MP_OK(xep_request_wait_counts(req));
        const xep_recv_t early = *xep_handle_recv(handle);
        MP_OK(xep_request_wait_counts(req));
        MP_OK(xep_request_wait(req));
        MP_CHECK(memcmp(&early, xep_handle_recv(handle), sizeof early) == 0);
        MP_OK(xep_request_wait_counts(req)); /* done: as wait */
        xep_request_free(req);
        mp_job_check_recv(&job, handle);
        xep_handle_release(handle);
    }
    mp_job_close(&job);
}

/* ---- those of a cached dispatch without the peers, which have not begun it ---- */

static void cached_counts_first(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *first, *again;
    xep_request_t *req;
    mp_job_open(&job, &base, 14);
    mp_job_buffer(&job, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &a, &first, NULL));
    xep_dispatch_args_t c = a;
    c.topk_idx = NULL;
    c.topk_weights = NULL;
    c.cached = first;
    job.shape.weights = 0;
    for (uint32_t last = 0; last < mp_nranks(); last++) {
        if (mp_rank() == last) MP_OK(xep_group_barrier(group));
        MP_OK(xep_dispatch(job.buffer, &c, &again, &req));
        MP_OK(xep_request_wait_counts(req));
        MP_CHECK(xep_handle_recv(again)->rows == xep_handle_recv(first)->rows);
        const xep_recv_t early = *xep_handle_recv(again);
        if (mp_rank() != last) MP_OK(xep_group_barrier(group));
        MP_OK(xep_request_wait(req));
        MP_CHECK(memcmp(&early, xep_handle_recv(again), sizeof early) == 0);
        xep_request_free(req);
        mp_job_check_recv(&job, again);
        xep_handle_release(again);
    }
    xep_handle_release(first);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    five_in_flight(group, 0);
    five_in_flight(group, 1);
    test_only(group);
    chain(group);
    cached(group);
    two_threads(group);
    overflow(group);
    adjoint(group);
    wait_elsewhere(group);
    counts_first(group);
    cached_counts_first(group);
    xep_group_destroy(group);
    return 0;
}
