/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows by expert in device memory: compared, byte for byte, with what plain loops make of the rows received. */
#include "cuda_parts.h"

#include <stdlib.h>
#include <string.h>

#include <oracle_number.h>

#include "cuda_rig.h"
#include "mp_rig.h"

enum { POISON = 0x5a };

/* One arrangement of what a handle has received; arrays of the device, and what they are to be. */
typedef struct experts {
    const xep_recv_t *recv;
    uint64_t capacity, alignment;
    size_t row, stride; /* bytes of a row, and between rows */
    void *stream;
    void *slots, *begin, *count, *x, *weights, *scales;
    int32_t *slot; /* [recv.capacity][K] */
    uint64_t *begins, *counts;
    uint8_t *used; /* [capacity] */
} experts_t;

static void *get(const experts_t *e, const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    MP_CHECK(to != NULL);
    if (bytes != 0) cuda_rig_get(to, from, bytes, e->stream);
    return to;
}

static void *poisoned(size_t bytes)
{
    void *from = malloc(bytes + 1), *there;
    MP_CHECK(from != NULL);
    memset(from, POISON, bytes + 1);
    there = cuda_rig_alloc(from, bytes + 1);
    free(from);
    return there;
}

/* ---- where rows are to be ---- */

static int64_t index_at(const xep_recv_t *recv, const void *idx, uint64_t i)
{
    return recv->topk_idx_dtype == XEP_INT64 ? ((const int64_t *)idx)[i] : ((const int32_t *)idx)[i];
}

static void expect(experts_t *e)
{
    const xep_recv_t *recv = e->recv;
    const uint64_t all = recv->capacity * recv->topk;
    void *idx = get(e, recv->topk_idx, all * xep_dtype_size(recv->topk_idx_dtype));
    uint64_t next = 0;
    e->slot = malloc(all * sizeof *e->slot + 1);
    e->begins = calloc(recv->local_experts + 1, sizeof *e->begins);
    e->counts = calloc(recv->local_experts + 1, sizeof *e->counts);
    e->used = calloc(e->capacity + 1, 1);
    MP_CHECK(e->slot != NULL && e->begins != NULL && e->counts != NULL && e->used != NULL);
    for (uint64_t i = 0; i < all; i++) e->slot[i] = -1;
    for (uint32_t x = 0; x < recv->local_experts; x++) {
        e->begins[x] = next;
        for (uint64_t i = 0; i < all; i++) {
            if (index_at(recv, idx, i) != x) continue;
            if (next < e->capacity) e->used[next] = 1, e->slot[i] = (int32_t)next;
            next++, e->counts[x]++;
        }
        next = (next + e->alignment - 1) / e->alignment * e->alignment;
    }
    free(idx);
}

/* ---- expand ---- */

static void compare(const experts_t *e, const char *what, const void *found, const void *expected, size_t bytes)
{
    if (memcmp(found, expected, bytes) != 0)
        mp_fail(__FILE__, __LINE__, "%s by expert differ (%zu bytes, alignment %llu, capacity %llu)", what, bytes,
                (unsigned long long)e->alignment, (unsigned long long)e->capacity);
}

static void check_places(const experts_t *e)
{
    const size_t slots = e->recv->capacity * e->recv->topk * sizeof *e->slot, experts = e->recv->local_experts * 8ul;
    void *slot = get(e, e->slots, slots), *begin = get(e, e->begin, experts), *count = get(e, e->count, experts);
    compare(e, "slots", slot, e->slot, slots);
    compare(e, "begins", begin, e->begins, experts);
    compare(e, "counts", count, e->counts, experts);
    free(slot), free(begin), free(count);
}

/* bytes of an element of each slot, stride apart; element i of selection i is at from + i / each * from_stride. */
static void check_array(const experts_t *e, const char *what, const void *there, size_t stride, size_t bytes,
                        const void *from_there, size_t from_stride, uint32_t each, int zero)
{
    const uint64_t all = e->recv->capacity * e->recv->topk;
    char *found = get(e, there, e->capacity * stride), *expected = malloc(e->capacity * stride + 1);
    char *from = get(e, from_there, all / each * from_stride);
    MP_CHECK(expected != NULL);
    memset(expected, POISON, e->capacity * stride);
    for (uint64_t s = 0; zero && s < e->capacity; s++)
        if (!e->used[s]) memset(expected + s * stride, 0, bytes);
    for (uint64_t i = 0; i < all; i++)
        if (e->slot[i] >= 0) memcpy(expected + (uint64_t)e->slot[i] * stride, from + i / each * from_stride, bytes);
    compare(e, what, found, expected, e->capacity * stride);
    free(found), free(expected), free(from);
}

static xep_expand_args_t args_of(const experts_t *e, int zero)
{
    const xep_recv_t *recv = e->recv;
    xep_expand_args_t a = XEP_EXPAND_ARGS_INIT;
    a.capacity = e->capacity;
    a.expert_alignment = (uint32_t)e->alignment;
    a.flags = zero ? XEP_EXPAND_ZERO : 0;
    a.slots = e->slots, a.expert_begin = e->begin, a.expert_count = e->count;
    a.x = e->x, a.x_stride = e->stride;
    a.topk_weights = recv->topk_weights != NULL ? e->weights : NULL;
    a.scales = recv->scales != NULL ? e->scales : NULL;
    a.stream = e->stream;
    return a;
}

static void check_expanded(const experts_t *e, const xep_expand_args_t *args, int zero)
{
    const xep_recv_t *recv = e->recv;
    const xep_expand_args_t a = *args;
    const size_t words = recv->nscales * 4ul;
    check_places(e);
    check_array(e, "rows", e->x, e->stride, e->row, recv->x, recv->x_stride, recv->topk, zero);
    if (a.topk_weights != NULL) check_array(e, "weights", e->weights, 4, 4, recv->topk_weights, 4, 1, zero);
    if (a.scales != NULL) check_array(e, "scales", e->scales, words, words, recv->scales, words, recv->topk, zero);
}

/* By column, as deep_ep's: the words of a slot lie a column apart. */
static void expand_by_column(const xep_handle_t *handle, const experts_t *e)
{
    const xep_recv_t *recv = e->recv;
    const size_t words = recv->nscales, bytes = e->capacity * words * 4;
    if (words == 0 || recv->scales == NULL) return;
    xep_expand_args_t a = XEP_EXPAND_ARGS_INIT;
    a.capacity = e->capacity, a.expert_alignment = (uint32_t)e->alignment;
    a.slots = e->slots, a.expert_begin = e->begin, a.expert_count = e->count;
    a.scales = poisoned(bytes), a.scales_token_stride = 4, a.scales_stride = (ptrdiff_t)e->capacity * 4;
    a.stream = e->stream;
    MP_OK(xep_handle_expand(handle, &a));
    uint32_t *columns = get(e, a.scales, bytes), *from = get(e, recv->scales, recv->capacity * words * 4);
    for (uint64_t i = 0; i < recv->capacity * recv->topk; i++)
        for (size_t w = 0; e->slot[i] >= 0 && w < words; w++)
            MP_CHECK(columns[w * e->capacity + (uint64_t)e->slot[i]] == from[i / recv->topk * words + w]);
    free(columns), free(from);
    cuda_rig_free(a.scales);
}

/* ---- reduce ---- */

/* Of rows of some type in the memory of x: bits that are numbers of all sorts. */
static void reduce(const xep_handle_t *handle, const experts_t *e, xep_dtype_t dtype, xep_dtype_t out_dtype, size_t odd)
{
    const xep_recv_t *recv = e->recv;
    const size_t element = xep_dtype_size(dtype), hidden = e->row / element, stride = e->stride / element * element;
    const size_t out_bytes = hidden * xep_dtype_size(out_dtype) + odd, selections = recv->rows * recv->topk;
    char *x = malloc(e->capacity * e->stride + 1), *expected = malloc(out_bytes + 1);
    float *sum = malloc(hidden * sizeof *sum + 1);
    MP_CHECK(x != NULL && expected != NULL && sum != NULL);
    for (size_t i = 0; i < e->capacity * e->stride; i++) x[i] = (char)(i * 37 % 251 & (i % 2 ? 0xbf : 0xff));
    void *there = cuda_rig_alloc(x, e->capacity * e->stride + 1), *out = poisoned(recv->rows * out_bytes);
    void *weights = cuda_rig_alloc(x, e->capacity * 4 + 1), *out_weights = poisoned(selections * 4);
    xep_reduce_args_t a = XEP_REDUCE_ARGS_INIT;
    a.slots = e->slots, a.x = there, a.x_stride = stride, a.dtype = dtype, a.hidden = (uint32_t)hidden;
    a.out = out, a.out_stride = out_bytes, a.out_dtype = out_dtype;
    a.topk_weights = weights, a.out_weights = out_weights;
    a.stream = e->stream;
    MP_OK(xep_handle_reduce(handle, &a));
    char *found = get(e, out, recv->rows * out_bytes);
    float *found_weights = get(e, out_weights, selections * 4);
    for (uint64_t row = 0; row < recv->rows; row++) {
        memset(sum, 0, hidden * sizeof *sum);
        memset(expected, POISON, out_bytes);
        for (uint32_t k = 0; k < recv->topk; k++) {
            const int32_t slot = e->slot[row * recv->topk + k];
            float weight = 0;
            if (slot >= 0) memcpy(&weight, x + slot * 4, sizeof weight);
            MP_CHECK(memcmp(&found_weights[row * recv->topk + k], &weight, sizeof weight) == 0);
            if (slot >= 0) oracle_row_add(sum, x + (size_t)slot * stride, dtype, (uint32_t)hidden);
        }
        oracle_row_round(expected, sum, out_dtype, (uint32_t)hidden);
        compare(e, "sums of rows", found + row * out_bytes, expected, out_bytes);
    }
    free(x), free(expected), free(sum), free(found), free(found_weights);
    void *arrays[] = {there, out, weights, out_weights};
    for (int i = 0; i < 4; i++) cuda_rig_free(arrays[i]);
}

/* Sums in the input of the combine are what a combine of copies of them sends, and one that sums them itself. */
static void combine(xep_handle_t *handle, const experts_t *e, cuda_job_t *job)
{
    const size_t row =
        job->host.c->hidden * xep_dtype_size(job->host.c->combine_dtype ? job->host.c->combine_dtype : XEP_BF16);
    const size_t bytes = job->host.tokens * row;
    void *x = cuda_rig_alloc(NULL, e->capacity * row + 1), *copied = cuda_rig_alloc(NULL, e->recv->rows * row + 1);
    void *out[3] = {poisoned(bytes), poisoned(bytes), poisoned(bytes)};
    size_t stride;
    xep_reduce_args_t a = XEP_REDUCE_ARGS_INIT;
    a.slots = e->slots, a.x = x, a.out = copied, a.stream = e->stream;
    if (row <= e->row) cuda_rig_copy(x, row, e->x, e->stride, row, e->capacity, e->stream);
    MP_OK(xep_handle_reduce(handle, &a));
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    c.x = copied, c.out = out[0], c.stream = e->stream;
    MP_OK(xep_combine(handle, &c, NULL));
    a.out = mp_input(handle, &stride), a.out_stride = stride;
    MP_OK(xep_handle_reduce(handle, &a));
    c.x = a.out, c.x_stride = stride, c.out = out[1];
    MP_OK(xep_combine(handle, &c, NULL));
    c.x = x, c.x_stride = 0, c.slots = e->slots, c.out = out[2];
    MP_OK(xep_combine(handle, &c, NULL));
    char *found[3] = {get(e, out[0], bytes), get(e, out[1], bytes), get(e, out[2], bytes)};
    compare(e, "sums of copies, and of what was summed in place,", found[0], found[1], bytes);
    compare(e, "sums of copies, and of what the combine has summed,", found[0], found[2], bytes);
    for (int i = 0; i < 3; i++) free(found[i]);
    void *arrays[] = {x, copied, out[0], out[1], out[2]};
    for (int i = 0; i < 5; i++) cuda_rig_free(arrays[i]);
}

/* ---- cases ---- */

static void arrange(xep_handle_t *handle, cuda_job_t *job, uint64_t alignment, int spare, size_t apart)
{
    const xep_recv_t *recv = mp_recv(handle);
    experts_t e = {.recv = recv, .alignment = alignment, .stream = job->stream};
    const size_t slots = recv->capacity * recv->topk * 4, experts = recv->local_experts * 8ul;
    e.row = recv->hidden * xep_dtype_size(recv->dtype), e.stride = e.row + apart;
    e.capacity = recv->capacity * recv->topk + recv->local_experts * alignment;
    if (spare < 0) e.capacity = e.capacity / 3;
    e.slots = poisoned(slots), e.begin = poisoned(experts), e.count = poisoned(experts);
    expect(&e);
    for (int zero = 0; zero < 2; zero++) {
        e.x = poisoned(e.capacity * e.stride), e.weights = poisoned(e.capacity * 4);
        e.scales = poisoned(e.capacity * recv->nscales * 4);
        const xep_expand_args_t a = args_of(&e, zero);
        MP_OK(xep_handle_expand(handle, &a));
        check_expanded(&e, &a, zero);
        if (zero) expand_by_column(handle, &e);
        if (zero && spare >= 0) combine(handle, &e, job);
        cuda_rig_free(e.x), cuda_rig_free(e.weights), cuda_rig_free(e.scales);
    }
    reduce(handle, &e, XEP_BF16, XEP_BF16, 0);
    reduce(handle, &e, XEP_BF16, XEP_FP32, 4);
    reduce(handle, &e, XEP_FP16, XEP_FP16, 2);
    reduce(handle, &e, XEP_FP16, XEP_FP32, 0);
    if (e.row % 4 == 0 && e.stride % 4 == 0) reduce(handle, &e, XEP_FP32, XEP_FP32, 0);
    void *arrays[] = {e.slots, e.begin, e.count};
    for (int i = 0; i < 3; i++) cuda_rig_free(arrays[i]);
    free(e.slot), free(e.begins), free(e.counts), free(e.used);
}

static void run_case(xep_group_t *group, const mp_case_t *c, int there, void *stream)
{
    cuda_job_t job;
    cuda_job_open(&job, c, 23, group, stream);
    job.counts_there = there;
    xep_handle_t *handle = cuda_job_send(&job);
    arrange(handle, &job, 1, 0, 0);
    arrange(handle, &job, 16, 0, c->strided ? 6 : 32);
    arrange(handle, &job, 128, -1, 0);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/* So many that a combine sums some while others pull what is done. */
static void sum_many(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "by expert, many rows", MP_SHAPE(8, 2, 7168, 1200), MP_CUDA};
    cuda_job_t job;
    cuda_job_open(&job, &c, 29, group, stream);
    xep_handle_t *handle = cuda_job_send(&job);
    const xep_recv_t *recv = mp_recv(handle);
    experts_t e = {.recv = recv, .capacity = recv->rows * recv->topk, .alignment = 1, .stream = stream};
    xep_expand_args_t a = XEP_EXPAND_ARGS_INIT;
    e.row = e.stride = c.hidden * xep_dtype_size(recv->dtype);
    e.x = poisoned(e.capacity * e.row), e.slots = poisoned(recv->capacity * recv->topk * 4);
    e.begin = poisoned(recv->local_experts * 8ul), e.count = poisoned(recv->local_experts * 8ul);
    a.slots = e.slots, a.expert_begin = e.begin, a.expert_count = e.count, a.x = e.x, a.capacity = e.capacity;
    a.stream = stream;
    MP_OK(xep_handle_expand(handle, &a));
    for (int i = 0; i < 2; i++) combine(handle, &e, &job); /* the second one finds the words of the first */
    void *arrays[] = {e.x, e.slots, e.begin, e.count};
    for (int i = 0; i < 4; i++) cuda_rig_free(arrays[i]);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/*
 * Right behind the dispatch, whose rows come in two parts: arrays are there before it. Rows are others in each round,
 * so that old ones would be found. In round 2 not all ranks say that they expand; in round 3 they do so twice, and in a
 * graph of its own; in the last one not at all.
 */
static void expand_parts(xep_group_t *group, const mp_case_t *c, void *stream)
{
    cuda_job_t job;
    cuda_job_open(&job, c, 31, group, stream);
    job.counts_there = c->fixed_capacity && !c->weights;
    xep_handle_t *handle = cuda_job_send(&job);
    experts_t e = {.alignment = 16, .stream = stream, .row = c->hidden * xep_dtype_size(job.host.shape.dtype)};
    for (int round = 0; round < 5; round++) {
        const int captured = job.counts_there && round % 2, zero = round == 2;
        void *graph = NULL, *first = NULL;
        e.recv = mp_recv(handle), e.stride = e.row + (round == 1 ? 16 : 0);
        e.capacity = e.recv->capacity * c->topk + e.recv->local_experts * e.alignment;
        e.slots = poisoned(e.recv->capacity * c->topk * 4), e.x = poisoned(e.capacity * e.stride);
        e.begin = poisoned(e.recv->local_experts * 8ul), e.count = poisoned(e.recv->local_experts * 8ul);
        e.weights = poisoned(e.capacity * 4), e.scales = poisoned(e.capacity * c->nscales * 4);
        const xep_expand_args_t args = args_of(&e, zero);
        xep_handle_release(handle);
        cuda_job_payload(&job, 100 + (uint64_t)round);
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        if (round != 2 || mp_rank() % 2 == 0) a.flags |= XEP_DISPATCH_WILL_EXPAND;
        if (captured) cuda_rig_capture(stream);
        MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
        if (captured && round == 3) {
            first = cuda_rig_graph(stream);
            cuda_rig_replay(first, stream);
            cuda_rig_capture(stream);
        }
        for (int i = 0; i < (round == 3 ? 2 : round != 4); i++) MP_OK(xep_handle_expand(handle, &args));
        if (captured) graph = cuda_rig_graph(stream), cuda_rig_replay(graph, stream);
        e.recv = mp_recv(handle);
        expect(&e);
        if (round != 4) check_expanded(&e, &args, zero);
        cuda_job_check_recv(&job, handle);
        if (captured) cuda_rig_free_graph(graph);
        if (first != NULL) cuda_rig_free_graph(first);
        void *arrays[] = {e.slots, e.x, e.begin, e.count, e.weights, e.scales};
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) cuda_rig_free(arrays[i]);
        free(e.slot), free(e.begins), free(e.counts), free(e.used);
    }
    cuda_job_end(&job, handle);
    cuda_job_close(&job);
}

/* In parts are dispatches of many rows, whatever their length; with the stand-in all of it is the host's work. */
static mp_case_t short_on_hosts(const mp_case_t *c)
{
    mp_case_t found = *c;
    if (getenv("STANDIN_SEED") != NULL && found.hidden > 512) found.hidden = 512;
    return found;
}

void cuda_experts(xep_group_t *group, void *stream)
{
    static const mp_case_t cases[] = {
        {.name = "by expert", MP_SHAPE(32, 4, 256, 65), .weights = 1, .nscales = 3, MP_CUDA},
        {.name = "by expert, long rows", MP_SHAPE(96, 8, 7168, 20), .weights = 1, .idx_dtype = XEP_INT32, MP_CUDA},
        {.name = "by expert, odd", .owners = "random:7", MP_SHAPE(61, 5, 333, 40), .strided = 1, .mask = 100, MP_CUDA},
        {.name = "by expert, many selections", MP_SHAPE(80, 40, 96, 9), .weights = 1, MP_CUDA},
        {.name = "by expert, nothing", MP_SHAPE(8, 2, 64, 20), .mask = 1000, MP_CUDA},
        {.name = "by expert, capacity",
         MP_SHAPE(24, 6, 136, 31),
         .weights = 1,
         .fixed_capacity = 1,
         .recv_rows = 400,
         MP_CUDA},
    };
    static const mp_case_t parts[] = {
        {.name = "by expert, two parts", MP_SHAPE(8, 2, 7168, 1200), MP_CUDA},
        {.name = "two parts, ragged", .ragged = 1, MP_SHAPE(16, 3, 2048, 1900), .weights = 1, .nscales = 3, MP_CUDA},
        {.name = "two parts, odd", MP_SHAPE(61, 5, 333, 1100), .strided = 1, .mask = 100, MP_CUDA},
        {.name = "two parts, nothing", MP_SHAPE(8, 2, 64, 1024), .mask = 1000, MP_CUDA},
        {.name = "two parts, capacity", MP_SHAPE(24, 6, 2048, 1300), .fixed_capacity = 1, MP_CUDA},
        {.name = "two parts, room", MP_SHAPE(24, 1, 256, 1100), .fixed_capacity = 1, .weights = 1, MP_CUDA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(group, &cases[i], cases[i].fixed_capacity, stream);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const mp_case_t c = short_on_hosts(&parts[i]);
        expand_parts(group, &c, stream);
    }
    sum_many(group, stream);
}
