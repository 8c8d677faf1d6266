/* SPDX-License-Identifier: BSD-3-Clause */

#include "mp_job.h"

#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"
#include "oracle_payloads.h"

static uint64_t tokens_of(const mp_case_t *c, uint32_t rank)
{
    if (c->works != 0 && (c->works >> rank & 1) == 0) return 0;
    if (c->ragged == 2) return rank == 0 ? c->tokens : 0;
    if (c->ragged == 1) return rank % 3 == 1 ? 0 : c->tokens - c->tokens * (rank % 5) / 7;
    return c->tokens;
}

static void open_routing(mp_job_t *job, const mp_case_t *c, uint64_t seed)
{
    char why[256];
    uint64_t *tokens = calloc(mp_nranks(), sizeof *tokens);
    oracle_routing_params_t p = {.seed = seed,
                                 .nranks = mp_nranks(),
                                 .experts = c->experts,
                                 .topk = c->topk,
                                 .mask = c->mask,
                                 .tokens = c->tokens,
                                 .tokens_of = tokens,
                                 .owners = c->owners};
    MP_CHECK(tokens != NULL);
    for (uint32_t r = 0; r < mp_nranks(); r++) tokens[r] = tokens_of(c, r);
    if (oracle_route_parse(c->routing == NULL ? "uniform" : c->routing, &p.spec, why, sizeof why) != 0 ||
        oracle_routing_create(&p, &job->routing, why, sizeof why) != 0)
        mp_fail(__FILE__, __LINE__, "case %s: %s", c->name, why);
    free(tokens);
}

/* Odd and even lengths, every alignment there is; the first ones of it are those of a case. */
static const xep_payload_t payloads[XEP_PAYLOADS_MOST] = {{.bytes = 6, .alignment = 2},
                                                          {.bytes = 1},
                                                          {.bytes = 33, .alignment = 64},
                                                          {.bytes = 4, .alignment = 4},
                                                          {.bytes = 16, .alignment = 16},
                                                          {.bytes = 5, .alignment = 8},
                                                          {.bytes = 100, .alignment = 32},
                                                          {.bytes = 3, .alignment = 1}};

/* Bytes between tokens, where the caller has payload i. */
static size_t payload_stride(const mp_job_t *job, uint32_t i)
{
    return payloads[i].bytes + (job->c->strided ? i + 1 : 0);
}

static xep_dtype_t or_default(xep_dtype_t dtype, xep_dtype_t def)
{
    return dtype == XEP_DTYPE_DEFAULT ? def : dtype;
}

static size_t row_bytes(const oracle_shape_t *s, xep_dtype_t dtype)
{
    return (size_t)s->hidden * xep_dtype_size(dtype);
}

static void allocate(mp_job_t *job)
{
    const mp_case_t *c = job->c;
    const oracle_shape_t *s = &job->shape;
    size_t elem = xep_dtype_size(s->dtype), out_elem = xep_dtype_size(s->combine_dtype), n = job->tokens;
    size_t more = c->strided == 1 ? 5 : 0; /* odd, so that rows begin at odd elements */
    size_t pack = c->strided == 2 ? 16 : 1;
    job->x_stride = (row_bytes(s, s->dtype) + more * elem + pack - 1) / pack * pack;
    job->out_stride = (row_bytes(s, s->combine_dtype) + more * out_elem + pack - 1) / pack * pack;
    job->x = mp_alloc(n * job->x_stride, more == 0 ? 0 : elem);
    job->idx = mp_alloc(n * c->topk * xep_dtype_size(s->idx_dtype), 0);
    job->weights = mp_alloc(n * c->topk * sizeof(float), 0);
    job->scales = mp_alloc(n * oracle_scales_bytes(s), 0);
    for (uint32_t i = 0; i < c->payloads; i++) {
        job->payloads[i] = payloads[i];
        job->payloads[i].stride = payload_stride(job, i);
        job->payloads[i].data = mp_alloc(n * job->payloads[i].stride, 0);
    }
    job->out = mp_alloc(n * job->out_stride, more == 0 ? 0 : out_elem);
    job->out_weights = mp_alloc(n * c->topk * sizeof(float), 0);
    for (unsigned b = 0; b < 2; b++)
        if (c->biases & 1u << b) job->bias[b] = mp_alloc(n * job->out_stride, 0);
}

/* With EVEN and no replicas every rank has every expert. */
static void find_instances(mp_job_t *job, const mp_case_t *c)
{
    const int is_whole = c->balance == XEP_BALANCE_EVEN && c->nreplicas == 0;
    if (!is_whole && c->replicas == NULL) return;
    job->shape.instances = job->instances = calloc(c->experts, sizeof *job->instances);
    MP_CHECK(job->instances != NULL);
    for (uint32_t e = 0; e < c->experts; e++)
        job->instances[e] = is_whole ? (1u << mp_nranks()) - 1 : 1u << oracle_owner(job->routing, e);
    for (uint32_t i = 0; i < c->nreplicas; i++) job->instances[c->replicas[i].expert] |= 1u << c->replicas[i].rank;
}

void mp_job_open(mp_job_t *job, const mp_case_t *c, uint64_t seed)
{
    const int by_expert = c->mode != NULL && strcmp(c->mode, "ll") == 0;
    *job = (mp_job_t){.c = c};
    open_routing(job, c, seed);
    job->tokens = job->routing->tokens_of[mp_rank()];
    job->shape = (oracle_shape_t){.routing = job->routing,
                                  .source = c->source,
                                  .hidden = c->hidden,
                                  .nscales = c->nscales,
                                  .payloads = payloads,
                                  .npayloads = c->payloads,
                                  .dtype = or_default(c->dtype, XEP_BF16),
                                  .combine_dtype = or_default(c->combine_dtype, XEP_BF16),
                                  .idx_dtype = or_default(c->idx_dtype, XEP_INT64),
                                  .scales_dtype = or_default(c->scales_dtype, XEP_FP32),
                                  .by_expert = by_expert,
                                  .unweighted = !c->weights || c->sent,
                                  .quant = c->quant,
                                  .quant_scale = c->quant_scale,
                                  .alignment = c->alignment};
    find_instances(job, c);
    allocate(job);
    mp_job_dispatch(job); /* what checks expect */
    mp_job_payload(job, seed * 31 + 7);
}

static uint64_t hash_inputs(const mp_job_t *job)
{
    const oracle_shape_t *s = &job->shape;
    uint64_t h = oracle_hash_row(job->x, job->tokens * job->x_stride, 1);
    h += oracle_hash_row(job->idx, job->tokens * job->c->topk * xep_dtype_size(s->idx_dtype), 2);
    h += oracle_hash_row(job->weights, job->tokens * job->c->topk * sizeof(float), 3);
    h += oracle_hash_row(job->scales, job->tokens * oracle_scales_bytes(s), 4);
    for (uint32_t i = 0; i < job->c->payloads; i++)
        h += oracle_hash_row(job->payloads[i].data, job->tokens * job->payloads[i].stride, 7 + i);
    for (unsigned b = 0; b < 2; b++)
        if (job->bias[b] != NULL) h += oracle_hash_row(job->bias[b], job->tokens * job->out_stride, 5 + b);
    return h;
}

void mp_job_payload(mp_job_t *job, uint64_t payload)
{
    const oracle_shape_t *s = &job->shape;
    job->shape.payload = payload;
    for (uint64_t t = 0; t < job->tokens; t++) {
        oracle_fill_row(s, mp_rank(), t, (char *)job->x + t * job->x_stride);
        for (unsigned b = 0; b < 2; b++)
            if (job->bias[b] != NULL) oracle_fill_bias(s, b, mp_rank(), t, (char *)job->bias[b] + t * job->out_stride);
        for (uint32_t i = 0; i < job->c->payloads; i++)
            oracle_fill_payload(s, i, mp_rank(), t, (char *)job->payloads[i].data + t * job->payloads[i].stride);
    }
    oracle_fill_inputs(s, mp_rank(), NULL, job->idx, job->weights, job->c->nscales == 0 ? NULL : job->scales);
    job->inputs_hash = hash_inputs(job);
}

static xep_buffer_params_t params_of(const mp_job_t *job)
{
    const mp_case_t *c = job->c;
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = c->mode == NULL ? "normal" : c->mode;
    p.experts = c->experts;
    p.topk = c->topk;
    p.hidden = c->hidden;
    /* of a cast, too, where ll would not have room for it anyway */
    p.scales = job->shape.by_expert && c->payloads == 0 && c->quant != XEP_QUANT_NONE
                   ? c->nscales
                   : oracle_words_beside(&job->shape);
    p.tokens = c->tokens == 0 ? 1 : c->tokens;
    p.dtype = job->shape.dtype;
    p.combine_dtype = job->shape.combine_dtype;
    p.recv_rows = c->recv_rows;
    p.owners = job->routing->owners;
    p.replicas = c->replicas;
    p.nreplicas = c->nreplicas;
    p.balance = c->balance;
    p.plan = c->plan;
    p.plan_ctx = c->plan_ctx;
    p.slots = c->slots;
    p.threads = c->threads;
    /* of ll so many that combines push their rows; what pulls they have in cuda_ll_again.c and where ranks die */
    const uint32_t enough = c->mode != NULL && strcmp(c->mode, "ll") == 0 ? 32 : 0;
    if (c->memory == XEP_MEMORY_CUDA) p.multiprocessors = c->threads != 0 ? c->threads : enough;
    p.memory = c->memory;
    p.on_failure = c->on_failure;
    p.timeout_ms = c->timeout_ms;
    p.path = c->path;
    p.pass_rows = c->pass_rows;
    p.flags = c->in_place != 0 ? XEP_BUFFER_SEND_MEMORY : 0;
    if (c->pieces != 0) p.flags |= XEP_BUFFER_PIECES;
    if (c->served) p.flags |= XEP_BUFFER_SERVED;
    return p;
}

/* Sums have another order where rows go once to each node; outputs of ranks that are not mapped may be encoded. */
static void find_peers(mp_job_t *job, xep_group_t *group)
{
    const xep_buffer_info_t info = mp_buffer_info(job->buffer);
    const uint32_t nranks = mp_group_info(group).nranks;
    const int by_nodes = info.path == XEP_PATH_NODES;
    free(job->nodes);
    free(job->afar);
    job->nodes = calloc(nranks, sizeof *job->nodes);
    job->afar = calloc(nranks, 1);
    for (uint32_t r = 0; r < nranks; r++) {
        xep_peer_info_t peer = XEP_PEER_INFO_INIT;
        MP_OK(xep_group_peer(group, r, &peer));
        job->nodes[r] = peer.node;
        job->afar[r] = !peer.mapped;
    }
    job->shape.encoded_from = job->afar;
    job->shape.node = by_nodes ? job->nodes : NULL;
}

xep_status_t mp_job_try_buffer(mp_job_t *job, xep_group_t *group)
{
    xep_buffer_params_t p = params_of(job);
    xep_status_t status = xep_buffer_create(group, &p, &job->buffer);
    if (status == XEP_OK) find_peers(job, group);
    return status;
}

void mp_job_buffer(mp_job_t *job, xep_group_t *group)
{
    xep_buffer_params_t p = params_of(job);
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    void *base;
    size_t bytes;
    const xep_group_info_t ranks = mp_group_info(group);
    MP_OK(xep_buffer_size(&p, ranks.nranks, &size));
    if (job->c->says_none && job->tokens == 0) p.tokens = 0;
    MP_OK(xep_buffer_create(group, &p, &job->buffer));
    MP_OK(xep_buffer_memory(job->buffer, &base, &bytes));
    const xep_buffer_info_t info = mp_buffer_info(job->buffer);
    MP_CHECK(info.bytes == bytes && info.recv_rows == size.recv_rows);
    if (ranks.nnodes == 1) MP_CHECK(bytes == size.node_bytes);
    else if (job->c->memory == XEP_MEMORY_CUDA && job->instances != NULL) /* on one node there is no such buffer */
        MP_CHECK(bytes <= size.bytes && bytes <= size.node_bytes);
    else if (job->c->pieces && !job->shape.by_expert) /* outputs return in any case */
        MP_CHECK(bytes == size.node_bytes && bytes == size.bytes);
    else /* of a tiny shape in pieces, receive rings are lost in the rounding to pages */
        MP_CHECK(bytes + (job->c->pieces != 0) > size.node_bytes && bytes <= size.bytes);
    find_peers(job, group);
    if (job->c->fixed_capacity) job->shape.capacity = size.recv_rows;
}

void mp_job_begin(mp_job_t *job, const mp_case_t *c, uint64_t seed, xep_group_t *group)
{
    mp_job_open(job, c, seed);
    mp_job_buffer(job, group);
}

void mp_job_close(mp_job_t *job)
{
    xep_buffer_destroy(job->buffer);
    free(job->nodes);
    free(job->afar);
    free(job->instances);
    mp_free(job->x, "x");
    mp_free(job->idx, "topk_idx");
    mp_free(job->weights, "topk_weights");
    mp_free(job->scales, "scales");
    for (uint32_t i = 0; i < job->c->payloads; i++) mp_free(job->payloads[i].data, "payload");
    mp_free(job->out, "out");
    mp_free(job->out_weights, "out_weights");
    mp_free(job->bias[0], "bias 0");
    mp_free(job->bias[1], "bias 1");
    mp_free(job->y, "y");
    oracle_routing_destroy(job->routing);
}

xep_dispatch_args_t mp_job_dispatch(mp_job_t *job)
{
    const mp_case_t *c = job->c;
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    job->shape.weights = job->shape.by_expert ? c->sent : c->weights;
    a.tokens = job->tokens;
    a.x = job->x;
    a.x_stride = job->x_stride;
    a.topk_idx = job->idx;
    a.topk_idx_dtype = job->shape.idx_dtype;
    a.topk_weights = c->weights ? job->weights : NULL;
    a.nscales = c->nscales;
    a.scales = c->nscales != 0 ? job->scales : NULL;
    a.scales_dtype = job->shape.scales_dtype;
    a.expert_alignment = c->alignment;
    a.capacity = job->shape.capacity;
    if (c->payloads != 0) a.payloads = job->payloads, a.npayloads = c->payloads;
    a.quant = c->quant;
    a.quant_scale = c->quant_scale;
    a.flags = c->sent && job->shape.by_expert ? XEP_DISPATCH_SEND_WEIGHTS : 0;
    if (c->pieces == 1) a.flags |= XEP_DISPATCH_PIECES;
    return a;
}

xep_dispatch_args_t mp_job_cached(mp_job_t *job, xep_handle_t *cached)
{
    xep_dispatch_args_t a = mp_job_dispatch(job);
    if (!job->shape.by_expert) job->shape.weights = 0; /* there they belong to the handle */
    a.topk_idx = NULL;
    a.topk_weights = NULL;
    a.cached = cached;
    return a;
}

void mp_job_place(mp_job_t *job, xep_dispatch_args_t *args)
{
    void *base;
    size_t stride, bytes = row_bytes(&job->shape, job->shape.dtype);
    args->flags |= XEP_DISPATCH_IN_PLACE;
    if (job->c->in_place != 1) return;
    MP_OK(xep_buffer_send_memory(job->buffer, &base, &stride));
    for (uint64_t t = 0; t < job->tokens; t++)
        memcpy((char *)base + t * stride, (char *)job->x + t * job->x_stride, bytes);
    args->x = base;
    args->x_stride = stride;
}

static int returns_weights(const mp_job_t *job)
{
    return !job->shape.by_expert && job->shape.weights;
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
    const xep_recv_t *recv = mp_recv(handle);
    size_t stride;
    MP_CHECK(recv != NULL);
    int private = job->c->copy_in;
    void *y = private ? NULL : mp_input(handle, &stride);
    if (y == NULL && job->may_be_out) private = 1; /* the combine will say why */
    if (private) y = own_memory(job, recv, &stride);
    MP_CHECK(y != NULL);
    oracle_fill_outputs(&job->shape, mp_rank(), recv, y, stride);
    memset(job->out, MP_POISON, job->tokens * job->out_stride);
    memset(job->out_weights, MP_POISON, job->tokens * job->c->topk * sizeof(float));
    a.x = y;
    a.x_stride = private ? stride : 0;
    a.dtype = job->shape.combine_dtype;
    a.out = job->out;
    a.out_stride = job->out_stride;
    for (int b = 0; b < 2; b++) {
        a.bias[b] = job->bias[b];
        a.bias_stride[b] = job->bias[b] == NULL ? 0 : job->out_stride;
    }
    if (returns_weights(job)) {
        a.topk_weights = recv->topk_weights;
        a.out_weights = job->out_weights;
    }
    return a;
}

void mp_job_tokens_without(mp_job_t *job, uint32_t out)
{
    const mp_case_t *c = job->c;
    for (uint32_t r = 0; r < mp_nranks(); r++) job->routing->tokens_of[r] = out >> r & 1 ? 0 : tokens_of(c, r);
}

uint32_t mp_job_sums_without(mp_job_t *job, const uint8_t *missing)
{
    const uint32_t topk = job->c->topk;
    uint32_t out = 0, in = 0;
    int32_t idx[16];
    float weights[16];
    MP_CHECK(topk <= 16);
    for (uint64_t i = 0; i < job->tokens * topk; i++) {
        oracle_route(job->routing, mp_rank(), i / topk, idx, weights);
        const int32_t expert = idx[i % topk];
        MP_CHECK(missing[i] <= 1 && !(expert < 0 && missing[i]));
        if (expert >= 0) *(missing[i] ? &out : &in) |= 1u << oracle_owner(job->routing, (uint32_t)expert);
    }
    MP_CHECK((out & in) == 0 && (out | in) == (1u << mp_nranks()) - 1);
    job->shape.without = out;
    return out;
}

static void complain(const mp_job_t *job, const oracle_difference_t *difference)
{
    char text[256];
    oracle_difference_text(difference, text, sizeof text);
    mp_fail(__FILE__, __LINE__, "case %s, mode %s: %s", job->c->name, job->shape.by_expert ? "ll" : "normal", text);
}

void mp_job_check_recv(mp_job_t *job, const xep_handle_t *handle)
{
    oracle_difference_t d;
    const xep_recv_t *recv = mp_recv(handle);
    MP_CHECK(recv != NULL);
    if (oracle_check_recv(&job->shape, mp_rank(), recv, &d) != 0) complain(job, &d);
}

/* between rows of a strided output nothing may be written */
static void check_gaps(const mp_job_t *job)
{
    size_t row = row_bytes(&job->shape, job->shape.combine_dtype);
    for (uint64_t t = 0; t < job->tokens; t++)
        for (size_t i = row; i < job->out_stride; i++)
            if (((unsigned char *)job->out)[t * job->out_stride + i] != MP_POISON)
                mp_fail(__FILE__, __LINE__, "case %s: out was written %zu bytes past row %llu", job->c->name, i - row,
                        (unsigned long long)t);
}

void mp_job_check_out(mp_job_t *job)
{
    oracle_difference_t d;
    if (oracle_check_combine(&job->shape, mp_rank(), job->c->biases, job->out, job->out_stride, &d) != 0)
        complain(job, &d);
    if (returns_weights(job) &&
        oracle_check_weights(&job->shape, mp_rank(), job->out_weights, job->c->topk * sizeof(float), &d) != 0)
        complain(job, &d);
    check_gaps(job);
}

void mp_job_check_inputs(const mp_job_t *job)
{
    MP_CHECK(hash_inputs(job) == job->inputs_hash);
}

xep_handle_t *mp_job_send(mp_job_t *job)
{
    const xep_dispatch_args_t args = mp_job_dispatch(job);
    xep_handle_t *handle;
    MP_OK(xep_dispatch(job->buffer, &args, &handle, NULL));
    return handle;
}

xep_handle_t *mp_job_receive(mp_job_t *job, const xep_dispatch_args_t *args)
{
    const xep_dispatch_args_t own = args == NULL ? mp_job_dispatch(job) : *args;
    xep_handle_t *handle;
    MP_OK(xep_dispatch(job->buffer, &own, &handle, NULL));
    mp_job_check_recv(job, handle);
    return handle;
}

void mp_job_sum(mp_job_t *job, xep_handle_t *handle)
{
    const xep_combine_args_t args = mp_job_combine(job, handle);
    MP_OK(xep_combine(handle, &args, NULL));
    mp_job_check_out(job);
    mp_job_check_inputs(job);
}

void mp_job_refuses(const mp_job_t *job, const xep_dispatch_args_t *args, xep_status_t status, const char *text,
                    const char *file, int line)
{
    xep_handle_t *none = NULL;
    mp_status(xep_dispatch(job->buffer, args, &none, NULL), status, file, line, "xep_dispatch()");
    mp_reason(text, file, line);
    mp_check(none == NULL, file, line, "a dispatch that fails gives no handle");
}

void mp_job_round(mp_job_t *job)
{
    xep_handle_t *handle = mp_job_receive(job, NULL);
    mp_job_sum(job, handle);
    xep_handle_release(handle);
}

void mp_job_rounds(mp_job_t *job, uint32_t count, uint64_t payload)
{
    for (uint32_t i = 0; i < count; i++) {
        mp_job_payload(job, payload + i);
        mp_job_round(job);
    }
}

void mp_job_compare(mp_job_t *one, mp_job_t *other, uint64_t payload)
{
    for (uint64_t i = 0; i < 3; i++) {
        mp_job_payload(one, payload + i);
        mp_job_payload(other, payload + i);
        mp_job_round(one);
        mp_job_round(other);
        MP_CHECK(memcmp(one->out, other->out, one->tokens * one->out_stride) == 0);
    }
    mp_job_close(one);
    mp_job_close(other);
}

double mp_job_time(mp_job_t *job)
{
    size_t stride;
    xep_handle_t *handle;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    c.out = job->out;
    c.out_stride = job->out_stride;
    const double begin = mp_now();
    MP_OK(xep_dispatch(job->buffer, &d, &handle, NULL));
    MP_CHECK(mp_input(handle, &stride) != NULL);
    MP_OK(xep_combine(handle, &c, NULL));
    const double both = mp_now() - begin;
    xep_handle_release(handle);
    return both;
}

xep_status_t mp_job_try_round(mp_job_t *job, uint64_t payload)
{
    xep_handle_t *handle = NULL;
    job->may_be_out = 1; /* or another rank shrinks the group */
    mp_job_payload(job, payload);
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_status_t status = xep_dispatch(job->buffer, &d, &handle, NULL);
    if (status != XEP_OK) return status;
    mp_job_check_recv(job, handle);
    xep_combine_args_t c = mp_job_combine(job, handle);
    status = xep_combine(handle, &c, NULL);
    if (status == XEP_OK) mp_job_check_out(job);
    if (status == XEP_ERR_ABORTED) mp_job_check_recv(job, handle);
    xep_handle_release(handle);
    return status;
}

int mp_is_failure_of_others(xep_status_t status)
{
    return status == XEP_ERR_PEER || status == XEP_ERR_ABORTED || status == XEP_ERR_TRANSPORT ||
           status == XEP_ERR_BROKEN || status == XEP_ERR_BOOT;
}
