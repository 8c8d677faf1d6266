/* SPDX-License-Identifier: BSD-3-Clause */

#include "mode_ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

enum { SLOTS = 5, MOST_RANKS = 64 };

mp_case_t mode_ops_case(const char *mode)
{
    return (mp_case_t){.name = "ops",
                       .mode = mode,
                       MP_SHAPE(24, 6, 200, 40),
                       .ragged = 1,
                       .mask = 50,
                       .weights = 1,
                       .slots = SLOTS};
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

typedef struct flight {
    mp_job_t jobs[SLOTS];
    xep_handle_t *handles[SLOTS];
    xep_request_t *reqs[SLOTS];
} flight_t;

static void dispatch_five(flight_t *f, uint64_t round)
{
    xep_handle_t *none = NULL;
    for (int i = 0; i < SLOTS; i++) {
        mp_job_payload(&f->jobs[i], round * 10 + (uint64_t)i);
        xep_dispatch_args_t a = mp_job_dispatch(&f->jobs[i]);
        MP_OK(xep_dispatch(f->jobs[0].buffer, &a, &f->handles[i], &f->reqs[i]));
        mp_sleep_us((unsigned)((round * 37 + mp_rank() * 71) % 200));
    }
    xep_dispatch_args_t more = mp_job_dispatch(&f->jobs[0]); /* finds no slot and changes nothing */
    MP_FAILS(XEP_ERR_BUSY, xep_dispatch(f->jobs[0].buffer, &more, &none, NULL));
    MP_CHECK(none == NULL);
}

static void combine_five(flight_t *f)
{
    for (int i = 0; i < SLOTS; i++) { /* begun in the same order on all ranks */
        xep_combine_args_t a = mp_job_combine(&f->jobs[i], f->handles[i]);
        MP_OK(xep_combine(f->handles[i], &a, &f->reqs[i]));
        if (getenv("XEP_PROGRESS") == NULL) /* a progress thread may have ended the first by now */
            MP_FAILS(XEP_ERR_INVALID, xep_combine(f->handles[i], &a, NULL));
    }
}

static void five_in_flight(xep_group_t *group, mp_case_t c, int copy_in)
{
    flight_t f;
    uint32_t order[SLOTS];
    c.copy_in = copy_in;
    for (int i = 0; i < SLOTS; i++) mp_job_open(&f.jobs[i], &c, 10 + (uint64_t)i);
    mp_job_buffer(&f.jobs[0], group);
    for (int i = 1; i < SLOTS; i++) f.jobs[i].shape.node = f.jobs[0].shape.node; /* all in its buffer */
    for (uint64_t round = 0; round < 20; round++) {
        dispatch_five(&f, round);
        shuffle(order, round * 97 + mp_rank());
        for (int i = 0; i < SLOTS; i++) {
            mp_finish(f.reqs[order[i]]);
            mp_job_check_recv(&f.jobs[order[i]], f.handles[order[i]]);
        }
        combine_five(&f);
        shuffle(order, round * 89 + mp_rank() + 5);
        for (int i = 0; i < SLOTS; i++) mp_finish(f.reqs[order[i]]);
        for (int i = 0; i < SLOTS; i++) {
            mp_job_check_out(&f.jobs[i]);
            mp_job_check_inputs(&f.jobs[i]);
        }
        shuffle(order, round * 83 + mp_rank() * 3); /* released in any order: slots differ from rank to rank */
        for (int i = 0; i < SLOTS; i++) xep_handle_release(f.handles[order[i]]);
    }
    for (int i = SLOTS - 1; i >= 0; i--) mp_job_close(&f.jobs[i]);
}

/* ---- a request that is only tested; one that is freed while in flight; a handle released while in flight ---- */

static void test_only(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    xep_status_t status;
    mp_job_begin(&job, c, 3, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == 0) mp_sleep_us(3000);
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

static void chain(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t a, b;
    xep_handle_t *ha, *hb;
    xep_request_t *ra, *rb;
    mp_job_begin(&a, c, 4, group);
    mp_job_begin(&b, c, 5, group);
    for (int i = 0; i < 10; i++) {
        xep_dispatch_args_t da = mp_job_dispatch(&a), db = mp_job_dispatch(&b);
        MP_OK(xep_dispatch(a.buffer, &da, &ha, &ra));
        db.after = ra;
        MP_OK(xep_dispatch(b.buffer, &db, &hb, &rb));
        mp_finish(rb); /* waits for ra too */
        MP_OK(xep_request_test(ra));
        xep_request_free(ra);
        mp_job_check_recv(&b, hb);
        mp_job_check_recv(&a, ha);
        xep_combine_args_t ca = mp_job_combine(&a, ha), cb = mp_job_combine(&b, hb);
        MP_OK(xep_combine(hb, &cb, &rb));
        ca.after = rb;
        MP_OK(xep_combine(ha, &ca, NULL));
        mp_finish(rb);
        mp_job_check_out(&a);
        mp_job_check_out(&b);
        xep_handle_release(ha);
        xep_handle_release(hb);
    }
    mp_job_close(&a);
    mp_job_close(&b);
}

/* ---- cached dispatch: other data, the handle it came from released before or after ---- */

static void combine_thrice(mp_job_t *job, xep_handle_t *handle, uint64_t payload)
{
    for (uint64_t i = 0; i < 3; i++) {
        mp_job_payload(job, payload + i);
        mp_job_sum(job, handle);
    }
}

static void cached(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    xep_handle_t *first, *again, *third;
    mp_job_begin(&job, c, 6, group);
    for (uint64_t round = 0; round < 6; round++) {
        xep_dispatch_args_t a = mp_job_dispatch(&job);
        MP_OK(xep_dispatch(job.buffer, &a, &first, NULL));
        mp_job_payload(&job, 1000 + round);
        a = mp_job_cached(&job, first);
        MP_OK(xep_dispatch(job.buffer, &a, &again, NULL));
        if (round % 2 == 0) xep_handle_release(first);
        mp_job_check_recv(&job, again);
        a.cached = again; /* of a cached one */
        third = mp_job_receive(&job, &a);
        combine_thrice(&job, third, 2000 + round * 10);
        if (round % 2 == 1) { /* released last, so that no other dispatch has taken its slot */
            xep_handle_release(first);
            a.cached = first;
            MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.buffer, &a, &first, NULL));
        }
        xep_handle_release(again);
        xep_handle_release(third);
    }
    mp_job_close(&job);
}

/* ---- overflow: every rank learns it and the true counts; the same call with room succeeds ---- */

static void overflow(xep_group_t *group, mp_case_t c)
{
    const int by_expert = strcmp(c.mode, "ll") == 0;
    mp_job_t job;
    xep_handle_t *handle = NULL;
    c.routing = "one-rank";
    c.ragged = 0;
    c.mask = 0;
    mp_job_begin(&job, &c, 9, group);
    const uint64_t all = mp_nranks() * c.tokens * (by_expert ? c.topk : 1), need = mp_rank() == 0 ? all : 0;
    for (int round = 0; round < 12; round++) { /* more often than slots */
        xep_dispatch_args_t a = mp_job_dispatch(&job);
        uint64_t rows = UINT64_MAX;
        a.recv_rows_p = &rows;
        a.capacity = mp_rank() == 0 ? need - 1 : 0;
        MP_REFUSES(&job, &a, XEP_ERR_OVERFLOW, "rank 0");
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

static int64_t dot(const float *a, const float *b, uint32_t hidden)
{
    int64_t sum = 0;
    for (uint32_t h = 0; h < hidden; h++) sum += (int64_t)(a[h] * b[h]);
    return sum;
}

/* Of all rows that belong to a token: <what came, what goes back>. */
static int64_t fill_outputs(xep_handle_t *handle)
{
    const xep_recv_t *recv = mp_recv(handle);
    int64_t sum = 0;
    size_t stride;
    char *y = mp_input(handle, &stride);
    for (uint64_t row = 0; row < recv->rows; row++) {
        float *to = (float *)(void *)(y + row * stride);
        for (uint32_t h = 0; h < recv->hidden; h++)
            to[h] = (float)((int)((row * 11 + h * 3 + mp_rank() * 5) % 29) - 14);
        sum += dot(to, (const float *)(const void *)((const char *)recv->x + row * recv->x_stride), recv->hidden);
    }
    return sum;
}

static void adjoint(xep_group_t *group, mp_case_t c)
{
    mp_job_t job;
    xep_handle_t *handle;
    int64_t sums[2] = {0, 0}, all[2 * MOST_RANKS];
    MP_CHECK(mp_nranks() <= MOST_RANKS);
    c.dtype = c.combine_dtype = XEP_FP32;
    c.weights = 0;
    mp_job_begin(&job, &c, 11, group);
    float *x = job.x;
    for (uint64_t i = 0; i < job.tokens * c.hidden; i++) x[i] = (float)((int)((i * 7 + mp_rank() * 13) % 31) - 15);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &d, &handle, NULL));
    sums[0] = fill_outputs(handle);
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = job.out;
    MP_OK(xep_combine(handle, &b, NULL));
    for (uint64_t t = 0; t < job.tokens; t++)
        sums[1] += dot(x + t * c.hidden, (float *)job.out + t * c.hidden, c.hidden);
    MP_OK(xep_group_allgather(group, sums, all, sizeof sums));
    sums[0] = sums[1] = 0;
    for (uint32_t i = 0; i < 2 * mp_nranks(); i++) sums[i % 2] += all[i];
    MP_CHECK(sums[0] == sums[1] && sums[0] != 0);
    xep_handle_release(handle);
    mp_job_close(&job);
}

/* ---- a rank in an allgather of the group keeps the operations going that others wait for ---- */

static void wait_elsewhere(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    uint32_t mine = mp_rank(), all[MOST_RANKS];
    mp_job_begin(&job, c, 12, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    for (int i = 0; i < 5; i++) {
        MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
        if (mp_rank() % 2 == 1) MP_OK(xep_request_wait(req));
        MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
        if (i % 2 == 0) MP_OK(xep_group_barrier(group));
        mp_finish(req);
        mp_job_check_recv(&job, handle);
        xep_handle_release(handle);
    }
    mp_job_close(&job);
}

/* ---- counts and places are known before the rows are here, and do not change ---- */

static void counts_first(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    mp_job_begin(&job, c, 13, group);
    for (int i = 0; i < 5; i++) {
        mp_job_round(&job);
        xep_dispatch_args_t a = mp_job_dispatch(&job);
        MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
        MP_OK(xep_request_wait_counts(req));
        const xep_recv_t early = *mp_recv(handle);
        MP_OK(xep_request_wait_counts(req));
        MP_OK(xep_request_wait(req));
        MP_CHECK(memcmp(&early, mp_recv(handle), sizeof early) == 0);
        MP_OK(xep_request_wait_counts(req)); /* done: as wait */
        xep_request_free(req);
        mp_job_check_recv(&job, handle);
        xep_handle_release(handle);
    }
    mp_job_close(&job);
}

void mode_ops_run(xep_group_t *group, const char *mode)
{
    const mp_case_t c = mode_ops_case(mode);
    five_in_flight(group, c, 0);
    five_in_flight(group, c, 1);
    test_only(group, &c);
    chain(group, &c);
    cached(group, &c);
    overflow(group, c);
    adjoint(group, c);
    wait_elsewhere(group, &c);
    counts_first(group, &c);
}

/* ---- two threads ---- */

static void *hammer(void *arg)
{
    mp_job_t *job = arg;
    mp_job_rounds(job, 50, 0);
    return NULL;
}

void mode_ops_two_threads(xep_group_t *group, const mp_case_t *mine, const mp_case_t *of_thread)
{
    mp_job_t a, b;
    pthread_t thread;
    mp_job_begin(&a, mine, 7, group);
    mp_job_begin(&b, of_thread, 8, group);
    MP_CHECK(pthread_create(&thread, NULL, hammer, &b) == 0);
    hammer(&a);
    MP_CHECK(pthread_join(thread, NULL) == 0);
    for (uint64_t i = 0; i < 10; i++) mp_job_rounds(i % 2 == 0 ? &a : &b, 1, i);
    mp_job_close(&a);
    mp_job_close(&b);
}

/* ---- fewer bits ---- */

static void combine_by_all(mp_job_t *job, xep_handle_t *handle, uint32_t flags)
{
    for (xep_quant_t quant = XEP_QUANT_NONE; strcmp(xep_quant_name(quant), "unknown") != 0; quant++) {
        job->shape.combine_quant = quant;
        job->shape.combine_scale = quant == XEP_QUANT_E4M3_STATIC ? 1.0f / 64 : 0;
        xep_combine_args_t a = mp_job_combine(job, handle);
        a.quant = quant;
        a.quant_scale = job->shape.combine_scale;
        a.flags = flags;
        MP_OK(xep_combine(handle, &a, NULL));
        mp_job_check_out(job);
    }
}

void mode_ops_fewer_bits(xep_group_t *group, const mp_case_t *c, uint32_t flags)
{
    mp_job_t job;
    mp_job_begin(&job, c, 24, group);
    job.shape.sum_at_owner = flags != 0;
    xep_handle_t *handle = mp_job_send(&job);
    combine_by_all(&job, handle, flags);
    xep_handle_release(handle);
    mp_job_close(&job);
}
