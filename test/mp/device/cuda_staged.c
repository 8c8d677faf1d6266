/* SPDX-License-Identifier: BSD-3-Clause */

/* Streams are held by the test, so that it decides when the device comes to an operation. */
#include "cuda_parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { ROUNDS = 4 };

static mp_case_t small_case(const char *mode)
{
    return (mp_case_t){.name = "staged", .mode = mode, MP_SHAPE(8, 2, 64, 16), MP_CUDA};
}

/*
 * The last rank is in a call that waits for its stream, which goes on only when the others have ended what was begun
 * before: for that they need this rank.
 */
static void goes_on_in_a_wait(xep_group_t *group, const char *mode, void *streams[2])
{
    const mp_case_t c = small_case(mode);
    const int is_last = mp_is_last(), others = (int)mp_nranks() - 1;
    cuda_job_t job;
    xep_handle_t *first, *second;
    xep_request_t *req;
    cuda_job_open(&job, &c, 5, group, streams[0]);
    for (int i = 0; i < ROUNDS; i++) {
        atomic_int *ended = mp_counter(group);
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &first, &req));
        if (is_last) cuda_rig_hold(streams[1], ended, others);
        else {
            mp_finish(req);
            ++*ended;
        }
        a.stream = streams[1];
        cuda_rig_wait(streams[0]); /* its indices are there for the other stream, too */
        MP_OK(xep_dispatch(job.host.buffer, &a, &second, NULL));
        MP_CHECK(atomic_load(ended) == others);
        if (is_last) mp_finish(req);
        cuda_job_check_recv(&job, first);
        job.stream = streams[1];
        cuda_job_check_recv(&job, second);
        cuda_job_combine(&job, second);
        job.stream = streams[0];
        cuda_job_combine(&job, first);
        xep_handle_release(second);
        xep_handle_release(first);
    }
    cuda_job_close(&job);
}

/* ---- a slot that is used again while its last sums are on their way to the device ---- */

static void *let_go(void *counter)
{
    mp_sleep_us(200 * 1000);
    atomic_store((atomic_int *)counter, 1);
    return NULL;
}

/* Every row is that value. Returns when the host has done its part. */
static void send_back(xep_handle_t *handle, const void *x, void *out, void *stream, const atomic_int *held)
{
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    xep_request_t *req;
    a.x = x;
    a.out = out;
    a.stream = stream;
    MP_OK(xep_combine(handle, &a, &req));
    if (held != NULL) cuda_rig_hold(stream, held, 1);
    mp_finish(req);
}

static void slot_again(xep_group_t *group, const char *mode, void *streams[2])
{
    enum { HIDDEN = 64, MOST_ROWS = 16 * 2 * 8, SUMS = 16 * HIDDEN };
    static uint16_t rows[MOST_ROWS * HIDDEN], sums[2][SUMS];
    static atomic_int held;
    const mp_case_t c = small_case(mode);
    void *x[2], *out[2];
    pthread_t thread;
    cuda_job_t job;
    cuda_job_open(&job, &c, 5, group, streams[0]);
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < MOST_ROWS * HIDDEN; n++) rows[n] = (uint16_t)(i == 0 ? 0x3f80 : 0x4080); /* 1 and 4 */
        x[i] = cuda_rig_alloc(rows, sizeof rows);
        out[i] = cuda_rig_alloc(rows, sizeof sums[i]);
    }
    xep_handle_t *handle = cuda_job_send(&job);
    MP_CHECK(mp_recv(handle)->rows <= MOST_ROWS);
    atomic_store(&held, 0);
    send_back(handle, x[0], out[0], streams[0], &held);
    MP_CHECK(pthread_create(&thread, NULL, let_go, &held) == 0);
    send_back(handle, x[1], out[1], streams[1], NULL);
    MP_CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < 2; i++) {
        cuda_rig_get(sums[i], out[i], sizeof sums[i], streams[i]);
        cuda_rig_free(x[i]);
        cuda_rig_free(out[i]);
    }
    /* 1 or 2 rows of each token, of which the second time four times as much: the exponent is higher by 2 */
    for (uint64_t n = 0; n < job.host.tokens * HIDDEN; n++)
        MP_CHECK((sums[0][n] == 0x3f80 || sums[0][n] == 0x4000) && sums[1][n] == sums[0][n] + 0x100);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

typedef struct released {
    xep_handle_t *handle;
    atomic_int held;
} released_t;

static void *release_and_let_go(void *arg)
{
    released_t *of = arg;
    mp_sleep_us(200 * 1000);
    xep_handle_release(of->handle);
    return let_go(&of->held);
}

/* Another thread releases a handle while its combine waits for the stream: it keeps the only slot until the end. */
static void released_in_a_wait(xep_group_t *group, const char *mode, void *stream)
{
    mp_case_t c = small_case(mode);
    atomic_int *tried = mp_counter(group);
    const int is_last = mp_is_last();
    released_t of = {.handle = NULL};
    xep_handle_t *handle = NULL;
    xep_request_t *req;
    pthread_t thread;
    cuda_job_t job;
    c.slots = 1;
    cuda_job_open(&job, &c, 5, group, stream);
    of.handle = cuda_job_send(&job);
    xep_combine_args_t b = cuda_job_outputs(&job, of.handle);
    while (!is_last && atomic_load(tried) == 0) mp_sleep_us(1000);
    if (is_last) cuda_rig_hold(stream, &of.held, 1);
    if (is_last) MP_CHECK(pthread_create(&thread, NULL, release_and_let_go, &of) == 0);
    MP_OK(xep_combine(of.handle, &b, &req));
    if (is_last) {
        const xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_CHECK(pthread_join(thread, NULL) == 0);
        MP_FAILS(XEP_ERR_BUSY, xep_dispatch(job.host.buffer, &a, &handle, NULL));
        ++*tried;
    } else xep_handle_release(of.handle);
    mp_finish(req);
    cuda_job_check_sums(&job, &b);
    cuda_job_round(&job);
    cuda_job_close(&job);
}

/* A stream that does not come in time: nobody has begun; after a reset all is as before. */
static void stream_stands(xep_group_t *group, const char *mode, void *streams[2])
{
    const mp_case_t c = small_case(mode);
    cuda_job_t job;
    xep_handle_t *handle = NULL;
    atomic_int *given_up = mp_counter(group);
    cuda_job_open(&job, &c, 5, group, streams[0]);
    cuda_job_round(&job);
    cuda_rig_hold(streams[1], given_up, (int)mp_nranks());
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = MP_VAIN_MS;
    a.stream = streams[1];
    MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    if (strstr(xep_last_error(), "given up by rank") == NULL) /* another rank may be the first */
        MP_REASON("which begins when its stream has come to it");
    MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    ++*given_up;
    MP_OK(xep_buffer_reset(job.host.buffer));
    cuda_job_round(&job);
    cuda_job_close(&job);
}

static void *abort_later(void *buffer)
{
    mp_sleep_us(200 * 1000);
    xep_buffer_abort(buffer);
    return NULL;
}

/*
 * That of one rank, until its time is over or another of its threads aborts the buffer: the others hear at once that it
 * does not come, though they would wait for long.
 */
static void one_stream_stands(xep_group_t *group, const char *mode, void *streams[2], int aborts)
{
    const char *said = aborts ? "this rank called xep_buffer_abort()" : "when its stream has come to it";
    const mp_case_t c = small_case(mode);
    const int is_last = mp_is_last();
    cuda_job_t job;
    pthread_t thread;
    atomic_int *given_up = mp_counter(group);
    cuda_job_open(&job, &c, 5, group, streams[0]);
    cuda_job_round(&job);
    if (aborts && is_last) MP_CHECK(pthread_create(&thread, NULL, abort_later, job.host.buffer) == 0);
    if (is_last) cuda_rig_hold(streams[1], given_up, 1);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = is_last && !aborts ? 200 : MP_FAR_MS;
    a.stream = streams[1];
    MP_REFUSES(&job.host, &a, aborts ? XEP_ERR_BROKEN : XEP_ERR_TIMEOUT, is_last ? said : "given up by rank ");
    if (aborts && is_last) MP_CHECK(pthread_join(thread, NULL) == 0);
    if (is_last) ++*given_up;
    MP_OK(xep_buffer_reset(job.host.buffer));
    cuda_job_round(&job);
    cuda_job_close(&job);
}

/* What no stream can order, or what the host cannot tell: refused by all alike, and then they go on. */
static void refusals(xep_group_t *group, const char *mode, void *streams[2])
{
    const mp_case_t c = small_case(mode);
    cuda_job_t job;
    xep_handle_t *handle;
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    size_t stride;
    cuda_job_open(&job, &c, 5, group, streams[0]);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.flags = XEP_DISPATCH_COUNTS_THERE;
    a.capacity = 8;
    MP_REFUSES(&job.host, &a, XEP_ERR_UNSUPPORTED, "the host counts the rows");
    a = cuda_job_dispatch(&job, NULL);
    a.stream = streams[1];
    cuda_rig_capture(streams[1]);
    MP_REFUSES(&job.host, &a, XEP_ERR_INVALID, "is being captured");
    a.stream = streams[0];
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
    b.x = mp_input(handle, &stride);
    b.out = job.out;
    b.stream = streams[1];
    if (!cuda_captures_staged()) MP_SAYS(XEP_ERR_INVALID, "is being captured", xep_combine(handle, &b, NULL));
    cuda_rig_free_graph(cuda_rig_graph(streams[1]));
    b.stream = streams[0];
    b.out = job.host.out;
    MP_SAYS(XEP_ERR_INVALID, "invalid out: ", xep_combine(handle, &b, NULL));
    cuda_job_nothing_missing(&job, handle);
    cuda_job_end(&job, handle);
    cuda_job_close(&job);
}

/* What modes for device memory tell later is told at once, as in host memory. */
static void told_at_once(xep_group_t *group, const char *mode, void *stream)
{
    const mp_case_t c = small_case(mode);
    const uint32_t last = mp_nranks() - 1;
    cuda_job_t job;
    xep_handle_t *handle = NULL;
    uint64_t rows = 1 << 20;
    cuda_job_open(&job, &c, 5, group, stream);
    void *there = cuda_rig_alloc(&rows, sizeof rows);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.capacity = 1;
    a.recv_rows_p = there;
    MP_REFUSES(&job.host, &a, XEP_ERR_OVERFLOW, "room for 1");
    cuda_rig_get(&rows, there, sizeof rows, stream);
    MP_CHECK(rows <= mp_nranks() * 16 * 2);
    a = cuda_job_dispatch(&job, NULL);
    a.hidden = 32 + mp_rank() % 2;
    MP_REFUSES(&job.host, &a, XEP_ERR_MISMATCH, "rank 0 and rank 1 disagree on hidden: 32, 33");
    cuda_job_wrong_index(&job, XEP_ERR_INVALID);
    a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = 400;
    if (mp_rank() != last) {
        MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(job.host.buffer, &a, &handle, NULL));
        MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    }
    MP_OK(xep_buffer_reset(job.host.buffer));
    cuda_job_round(&job);
    cuda_rig_free(there);
    cuda_job_close(&job);
}

/* Scales in any order: by column, backwards, and with gaps, of a larger array. */
static void scales(xep_group_t *group, const char *mode, void *stream)
{
    enum { TOKENS = 16, SCALES = 3, WIDE = 7, WORDS = (TOKENS + 2) * WIDE };
    static const ptrdiff_t strides[][3] = {/* first word, between tokens, between scales */
                                           {0, SCALES, 1}, {2, WIDE, 1},
                                           {0, 1, TOKENS}, {(TOKENS - 1) * WIDE, -WIDE, 2},
                                           {6, WIDE, -3},  {0, 2, 2 * TOKENS}};
    mp_case_t c = small_case(mode);
    cuda_job_t job;
    int32_t words[WORDS];
    c.nscales = SCALES;
    c.scales_dtype = XEP_INT32;
    cuda_job_open(&job, &c, 5, group, stream);
    void *there = cuda_rig_alloc(NULL, sizeof words);
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        const ptrdiff_t *s = strides[i];
        xep_handle_t *handle;
        memset(words, MP_POISON, sizeof words);
        for (uint64_t t = 0; t < job.host.tokens; t++)
            for (int n = 0; n < SCALES; n++)
                memcpy(&words[s[0] + (ptrdiff_t)t * s[1] + n * s[2]],
                       (char *)job.host.scales + (t * SCALES + (uint64_t)n) * 4, 4);
        cuda_rig_put(there, words, sizeof words, stream);
        cuda_rig_wait(stream);
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        a.scales = (int32_t *)there + s[0];
        a.scales_token_stride = s[1] * 4;
        a.scales_stride = s[2] * 4;
        MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
        cuda_job_check_recv(&job, handle);
        xep_handle_release(handle);
    }
    cuda_rig_free(there);
    cuda_job_close(&job);
}

/*
 * Rows that come and go in parts: each time others, so that whatever is read before it is there has the bytes of the
 * round before. Where copies of the stand-in are slow the counts are there before the rows, in time in one of the
 * rounds at least: the rows take twice as long.
 */
static void in_parts(xep_group_t *group, const char *mode, void *stream)
{
    const char *slow = getenv("STANDIN_SLOW_COPIES");
    const mp_case_t c =
        {.name = "parts", .mode = mode, MP_SHAPE(8, 2, 1024, 700), MP_FP32, .biases = 2, .slots = 1, MP_CUDA};
    cuda_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    int in_time = slow == NULL;
    cuda_job_open(&job, &c, 5, group, stream);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        cuda_job_payload(&job, 100 + i);
        const double begin = mp_now();
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
        MP_OK(xep_request_wait_counts(req));
        if (slow != NULL && mp_now() - begin < 4 * atof(slow) / 1e6) in_time = 1;
        mp_finish(req);
        cuda_job_end(&job, handle);
    }
    MP_CHECK(in_time);
    cuda_job_close(&job);
}

/*
 * Mode ll: rows that are cast while others are still coming, and outputs of padded rows, which come all at once. When
 * the call returns the inputs are the caller's again, also for another stream.
 */
static void taken_in_the_call(xep_group_t *group, void *streams[2])
{
    static const mp_case_t cases[] = {{.name = "cast in parts", .quant = XEP_QUANT_E4M3, .dtype = XEP_FP32},
                                      {.name = "padded in parts", .quant = XEP_QUANT_UE8M0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mp_case_t c = cases[i];
        cuda_job_t job;
        xep_handle_t *handle;
        xep_request_t *req;
        c.mode = "ll";
        c.experts = 8;
        c.topk = 2;
        c.hidden = 1024;
        c.tokens = 300;
        c.memory = XEP_MEMORY_CUDA;
        cuda_job_open(&job, &c, 5, group, streams[0]);
        cuda_rig_wait(streams[0]); /* the inputs are there */
        const size_t bytes = job.host.tokens * job.host.x_stride;
        void *poison = malloc(bytes);
        MP_CHECK(poison != NULL);
        memset(poison, MP_POISON, bytes);
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        job.host.shape.padded = i == 1;
        job.host.shape.room = c.tokens;
        if (i == 1) a.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
        MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
        cuda_rig_put(job.x, poison, bytes, streams[1]);
        cuda_rig_wait(streams[1]);
        mp_finish(req);
        cuda_job_end(&job, handle);
        free(poison);
        cuda_job_close(&job);
    }
}

/* Outputs from ranks that are not mapped come as the host modes' would. */
static void fewer_bits(xep_group_t *group, const char *mode, void *stream)
{
    static const xep_quant_t casts[] = {XEP_QUANT_E4M3, XEP_QUANT_NVFP4, XEP_QUANT_NONE, XEP_QUANT_LOGFMT};
    mp_case_t c = small_case(mode);
    cuda_job_t job;
    c.weights = 1;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_handle_t *handle = cuda_job_send(&job);
    for (size_t i = 0; i < sizeof casts / sizeof casts[0]; i++) {
        job.host.shape.combine_quant = casts[i];
        xep_combine_args_t b = cuda_job_outputs(&job, handle);
        b.quant = casts[i];
        MP_OK(xep_combine(handle, &b, NULL));
        cuda_job_check_sums(&job, &b);
    }
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/* All tokens select the one expert; its rows are dealt out, by the counts of indices that only the device had. */
static void balanced(xep_group_t *group, const char *mode, void *stream, xep_balance_t rule, uint32_t nreplicas)
{
    const xep_replica_t replica = {0, mp_nranks() - 1};
    mp_case_t c = small_case(mode);
    xep_loads_t loads = XEP_LOADS_INIT;
    cuda_job_t job;
    c.experts = c.topk = 1, c.dtype = c.combine_dtype = XEP_FP32, c.routing = "one-rank";
    c.balance = rule, c.replicas = &replica, c.nreplicas = nreplicas;
    const uint64_t all = c.tokens * mp_nranks(), among = nreplicas == 0 ? mp_nranks() : 2;
    cuda_job_open(&job, &c, 5, group, stream);
    for (uint64_t round = 0; round < 3; round++) {
        xep_handle_t *handle;
        cuda_job_payload(&job, round);
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        if (round != 1) a.flags |= XEP_DISPATCH_BALANCE;
        MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
        MP_CHECK(round == 1 || mp_recv(handle)->rows <= (all + among - 1) / among);
        cuda_job_end(&job, handle);
    }
    MP_OK(xep_buffer_loads(job.host.buffer, &loads));
    MP_CHECK(loads.dispatches == 2 && loads.most_before == 2 * all &&
             loads.most_after == (2 * all + among - 1) / among);
    cuda_job_close(&job);
}

/* On one node no host sees the indices. What a buffer takes is told for jobs of several. */
static void not_balanced(xep_group_t *group, const char *mode)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    xep_buffer_t *buffer = NULL;
    p.mode = mode, p.experts = 8, p.topk = 1, p.hidden = 64, p.tokens = 16, p.memory = XEP_MEMORY_CUDA;
    p.balance = XEP_BALANCE_EVEN;
    MP_SAYS(XEP_ERR_UNSUPPORTED,
            "invalid balance: 2 (0 in device memory where all ranks map one another: no host sees topk_idx)",
            xep_buffer_create(group, &p, &buffer));
    MP_OK(xep_buffer_size(&p, 2, &size));
    MP_CHECK(size.bytes != 0 && size.device_bytes != 0);
}

void cuda_staged(xep_group_t *group, const char *mode, void *streams[2])
{
    if (!cuda_job_stages(group)) {
        not_balanced(group, mode);
        return;
    }
    in_parts(group, mode, streams[0]);
    if (strcmp(mode, "ll") == 0) taken_in_the_call(group, streams);
    goes_on_in_a_wait(group, mode, streams);
    slot_again(group, mode, streams);
    released_in_a_wait(group, mode, streams[0]);
    stream_stands(group, mode, streams);
    one_stream_stands(group, mode, streams, 0);
    one_stream_stands(group, mode, streams, 1);
    refusals(group, mode, streams);
    told_at_once(group, mode, streams[0]);
    scales(group, mode, streams[0]);
    fewer_bits(group, mode, streams[0]);
    balanced(group, mode, streams[0], XEP_BALANCE_EVEN, 0);
    balanced(group, mode, streams[0], XEP_BALANCE_LEAST_LOADED, 1);
}
