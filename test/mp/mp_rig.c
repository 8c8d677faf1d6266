/* SPDX-License-Identifier: BSD-3-Clause */

#include "mp_rig.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, CANARY = 0xC7, POISON = 0xA5 };

static xep_group_t *the_group;
static xep_group_info_t the_info = XEP_GROUP_INFO_INIT;

void mp_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s:%d: rank %u: ", file, line, the_info.rank);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void mp_check(int condition, const char *file, int line, const char *what)
{
    if (!condition) mp_fail(file, line, "not so: %s (last error: %s)", what, xep_last_error());
}

void mp_status(xep_status_t got, xep_status_t expected, const char *file, int line, const char *what)
{
    if (got != expected)
        mp_fail(file, line, "%s is %s, expected %s (%s)", what, xep_status_name(got), xep_status_name(expected),
                xep_last_error());
}

void mp_reason(const char *text, const char *file, int line)
{
    if (strstr(xep_last_error(), text) == NULL)
        mp_fail(file, line, "the reason \"%s\" does not say \"%s\"", xep_last_error(), text);
}

xep_group_t *mp_group(void)
{
    if (the_group == NULL) {
        MP_OK(xep_group_create(NULL, &the_group));
        MP_OK(xep_group_query(the_group, &the_info));
    }
    return the_group;
}

uint32_t mp_rank(void)
{
    return the_info.rank;
}

uint32_t mp_nranks(void)
{
    return the_info.nranks;
}

int mp_skip(const char *why)
{
    if (the_info.rank == 0) printf("skipped: %s\n", why);
    return 77;
}

xep_buffer_params_t mp_small_params(void)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.experts = 12, p.topk = 4, p.hidden = 64, p.tokens = 20, p.scales = 1;
    return p;
}

/* ---- memory: [size, shift | canary ... bytes ... canary] ---- */

typedef struct block {
    size_t bytes;
    unsigned char *base;
} block_t;

void *mp_alloc(size_t bytes, size_t shift)
{
    size_t all = bytes + 2 * GUARD + 128;
    unsigned char *base = aligned_alloc(64, (all + 63) / 64 * 64);
    MP_CHECK(base != NULL);
    unsigned char *memory = base + GUARD + shift;
    memset(base, CANARY, GUARD + shift);
    memset(memory, POISON, bytes);
    memset(memory + bytes, CANARY, GUARD);
    block_t block = {bytes, base};
    memcpy(base, &block, sizeof block);
    return memory;
}

/* the block's own record is at the start of the guard, found by looking back from memory */
static block_t block_of(void *memory)
{
    block_t block;
    unsigned char *base = (unsigned char *)((uintptr_t)memory / 64 * 64) - GUARD;
    memcpy(&block, base, sizeof block);
    return block;
}

void mp_free(void *memory, const char *what)
{
    if (memory == NULL) return;
    block_t block = block_of(memory);
    unsigned char *p = memory;
    for (unsigned char *g = block.base + sizeof block; g < p; g++)
        if (*g != CANARY) mp_fail(__FILE__, __LINE__, "%s: written %td bytes before its begin", what, p - g);
    for (size_t i = 0; i < GUARD; i++)
        if (p[block.bytes + i] != CANARY) mp_fail(__FILE__, __LINE__, "%s: written %zu bytes past its end", what, i);
    free(block.base);
}

/* ---- one job ---- */

static uint64_t tokens_of(const mp_case_t *c, uint32_t rank)
{
    if (c->ragged == 2) return rank == 0 ? c->tokens : 0;
    if (c->ragged == 1) return rank % 3 == 1 ? 0 : c->tokens - c->tokens * (rank % 5) / 7;
    return c->tokens;
}

static void open_routing(mp_job_t *job, const mp_case_t *c, uint64_t seed)
{
    char why[256];
    uint64_t *tokens = calloc(mp_nranks(), sizeof *tokens);
    tool_routing_params_t p = {.seed = seed, .nranks = mp_nranks(), .experts = c->experts, .topk = c->topk, .mask = c->mask,
                               .tokens = c->tokens, .tokens_of = tokens};
    MP_CHECK(tokens != NULL);
    for (uint32_t r = 0; r < mp_nranks(); r++) tokens[r] = tokens_of(c, r);
    if (tool_route_parse(c->routing == NULL ? "uniform" : c->routing, &p.spec, why, sizeof why) != 0 ||
        tool_routing_create(&p, &job->routing, why, sizeof why) != 0)
        mp_fail(__FILE__, __LINE__, "case %s: %s", c->name, why);
    free(tokens);
}

static xep_dtype_t or_default(xep_dtype_t dtype, xep_dtype_t def)
{
    return dtype == XEP_DTYPE_DEFAULT ? def : dtype;
}

static size_t row_bytes(const tool_shape_t *s, xep_dtype_t dtype)
{
    return (size_t)s->hidden * xep_dtype_size(dtype);
}

static void allocate(mp_job_t *job)
{
    const mp_case_t *c = job->c;
    const tool_shape_t *s = &job->shape;
    size_t elem = xep_dtype_size(s->dtype), out_elem = xep_dtype_size(s->combine_dtype), n = job->tokens;
    size_t more = c->strided ? 5 : 0; /* odd, so that rows begin at odd elements */
    job->x_stride = row_bytes(s, s->dtype) + more * elem;
    job->out_stride = row_bytes(s, s->combine_dtype) + more * out_elem;
    job->x = mp_alloc(n * job->x_stride, more == 0 ? 0 : elem);
    job->idx = mp_alloc(n * c->topk * xep_dtype_size(s->idx_dtype), 0);
    job->weights = mp_alloc(n * c->topk * sizeof(float), 0);
    job->scales = mp_alloc(n * c->nscales * 4, 0);
    job->out = mp_alloc(n * job->out_stride, more == 0 ? 0 : out_elem);
    job->out_weights = mp_alloc(n * c->topk * sizeof(float), 0);
    for (unsigned b = 0; b < 2; b++)
        if (c->biases & 1u << b) job->bias[b] = mp_alloc(n * job->out_stride, 0);
}

void mp_job_open(mp_job_t *job, const mp_case_t *c, uint64_t seed)
{
    *job = (mp_job_t){.c = c};
    open_routing(job, c, seed);
    job->tokens = job->routing->tokens_of[mp_rank()];
    job->shape = (tool_shape_t){.routing = job->routing,
                                .hidden = c->hidden,
                                .nscales = c->nscales,
                                .dtype = or_default(c->dtype, XEP_BF16),
                                .combine_dtype = or_default(c->combine_dtype, XEP_BF16),
                                .idx_dtype = or_default(c->idx_dtype, XEP_INT64),
                                .scales_dtype = or_default(c->scales_dtype, XEP_FP32),
                                .weights = c->weights,
                                .alignment = c->alignment};
    allocate(job);
    mp_job_payload(job, seed * 31 + 7);
}

static uint64_t hash_inputs(const mp_job_t *job)
{
    const tool_shape_t *s = &job->shape;
    uint64_t h = tool_hash_row(job->x, job->tokens * job->x_stride, 1);
    h += tool_hash_row(job->idx, job->tokens * job->c->topk * xep_dtype_size(s->idx_dtype), 2);
    h += tool_hash_row(job->weights, job->tokens * job->c->topk * sizeof(float), 3);
    h += tool_hash_row(job->scales, job->tokens * job->c->nscales * 4, 4);
    for (unsigned b = 0; b < 2; b++)
        if (job->bias[b] != NULL) h += tool_hash_row(job->bias[b], job->tokens * job->out_stride, 5 + b);
    return h;
}

void mp_job_payload(mp_job_t *job, uint64_t payload)
{
    const tool_shape_t *s = &job->shape;
    job->shape.payload = payload;
    for (uint64_t t = 0; t < job->tokens; t++) {
        tool_fill_row(s, mp_rank(), t, (char *)job->x + t * job->x_stride);
        for (unsigned b = 0; b < 2; b++)
            if (job->bias[b] != NULL) tool_fill_bias(s, b, mp_rank(), t, (char *)job->bias[b] + t * job->out_stride);
    }
    tool_fill_inputs(s, mp_rank(), NULL, job->idx, job->weights, job->c->nscales == 0 ? NULL : job->scales);
    job->inputs_hash = hash_inputs(job);
}

static xep_buffer_params_t params_of(const mp_job_t *job)
{
    const mp_case_t *c = job->c;
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.experts = c->experts;
    p.topk = c->topk;
    p.hidden = c->hidden;
    p.scales = c->nscales;
    p.tokens = c->tokens == 0 ? 1 : c->tokens;
    p.dtype = job->shape.dtype;
    p.combine_dtype = job->shape.combine_dtype;
    p.slots = c->slots;
    p.threads = c->threads;
    return p;
}

void mp_job_buffer(mp_job_t *job, xep_group_t *group)
{
    xep_buffer_params_t p = params_of(job);
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    void *base;
    size_t bytes;
    MP_OK(xep_buffer_size(&p, mp_nranks(), &size));
    MP_OK(xep_buffer_create(group, &p, &job->buffer));
    MP_OK(xep_buffer_memory(job->buffer, &base, &bytes));
    MP_OK(xep_buffer_query(job->buffer, &info));
    MP_CHECK(bytes == size.bytes && info.bytes == size.bytes && info.recv_rows == size.recv_rows);
    if (job->c->fixed_capacity) job->shape.capacity = size.recv_rows;
}

void mp_job_close(mp_job_t *job)
{
    xep_buffer_destroy(job->buffer);
    mp_free(job->x, "x");
    mp_free(job->idx, "topk_idx");
    mp_free(job->weights, "topk_weights");
    mp_free(job->scales, "scales");
    mp_free(job->out, "out");
    mp_free(job->out_weights, "out_weights");
    mp_free(job->bias[0], "bias 0");
    mp_free(job->bias[1], "bias 1");
    mp_free(job->y, "y");
    tool_routing_destroy(job->routing);
}

xep_dispatch_args_t mp_job_dispatch(const mp_job_t *job)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    a.tokens = job->tokens;
    a.x = job->x;
    a.x_stride = job->x_stride;
    a.topk_idx = job->idx;
    a.topk_idx_dtype = job->shape.idx_dtype;
    a.topk_weights = job->c->weights ? job->weights : NULL;
    a.nscales = job->c->nscales;
    a.scales = job->c->nscales != 0 ? job->scales : NULL;
    a.scales_dtype = job->shape.scales_dtype;
    a.expert_alignment = job->c->alignment;
    a.capacity = job->shape.capacity;
    return a;
}

static void *own_memory(mp_job_t *job, const xep_recv_t *recv, size_t *stride_p)
{
    size_t elem = xep_dtype_size(job->shape.combine_dtype);
    *stride_p = row_bytes(&job->shape, job->shape.combine_dtype) + (job->c->strided ? 3 * elem : 0);
    mp_free(job->y, "y");
    job->y = mp_alloc(recv->rows * *stride_p, 0);
    return job->y;
}

xep_combine_args_t mp_job_combine(mp_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    const xep_recv_t *recv = xep_handle_recv(handle);
    size_t stride;
    MP_CHECK(recv != NULL);
    void *y = job->c->copy_in ? own_memory(job, recv, &stride) : xep_handle_combine_input(handle, &stride);
    MP_CHECK(y != NULL);
    tool_expert_rows(&job->shape, mp_rank(), recv, y, stride);
    memset(job->out, POISON, job->tokens * job->out_stride);
    memset(job->out_weights, POISON, job->tokens * job->c->topk * sizeof(float));
    a.x = y;
    a.x_stride = job->c->copy_in ? stride : 0;
    a.dtype = job->shape.combine_dtype;
    a.out = job->out;
    a.out_stride = job->out_stride;
    for (int b = 0; b < 2; b++) {
        a.bias[b] = job->bias[b];
        a.bias_stride[b] = job->bias[b] == NULL ? 0 : job->out_stride;
    }
    if (job->c->weights) {
        a.topk_weights = recv->topk_weights;
        a.out_weights = job->out_weights;
    }
    return a;
}

static void complain(const mp_job_t *job, const tool_difference_t *difference)
{
    char text[256];
    tool_difference_text(difference, text, sizeof text);
    mp_fail(__FILE__, __LINE__, "case %s: %s", job->c->name, text);
}

void mp_job_check_recv(mp_job_t *job, const xep_handle_t *handle)
{
    tool_difference_t d;
    const xep_recv_t *recv = xep_handle_recv(handle);
    MP_CHECK(recv != NULL);
    if (tool_check_recv(&job->shape, mp_rank(), recv, &d) != 0) complain(job, &d);
}

/* between rows of a strided output nothing may be written */
static void check_gaps(const mp_job_t *job)
{
    size_t row = row_bytes(&job->shape, job->shape.combine_dtype);
    for (uint64_t t = 0; t < job->tokens; t++)
        for (size_t i = row; i < job->out_stride; i++)
            if (((unsigned char *)job->out)[t * job->out_stride + i] != POISON)
                mp_fail(__FILE__, __LINE__, "case %s: out was written %zu bytes past row %llu", job->c->name, i - row,
                        (unsigned long long)t);
}

void mp_job_check_out(mp_job_t *job)
{
    tool_difference_t d;
    if (tool_check_combine(&job->shape, mp_rank(), job->c->biases, job->out, job->out_stride, &d) != 0) complain(job, &d);
    if (job->c->weights &&
        tool_check_weights(&job->shape, mp_rank(), job->out_weights, job->c->topk * sizeof(float), &d) != 0)
        complain(job, &d);
    check_gaps(job);
}

void mp_job_check_inputs(const mp_job_t *job)
{
    MP_CHECK(hash_inputs(job) == job->inputs_hash);
}

void mp_job_round(mp_job_t *job)
{
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_handle_t *handle;
    MP_OK(xep_dispatch(job->buffer, &d, &handle, NULL));
    mp_job_check_recv(job, handle);
    xep_combine_args_t c = mp_job_combine(job, handle);
    MP_OK(xep_combine(handle, &c, NULL));
    mp_job_check_out(job);
    mp_job_check_inputs(job);
    xep_handle_release(handle);
}
