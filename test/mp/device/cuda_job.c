/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_job.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_rig.h"
#include "mp_rig.h"

static size_t idx_bytes(const mp_job_t *host)
{
    return host->tokens * host->c->topk * xep_dtype_size(host->shape.idx_dtype);
}

static size_t weights_bytes(const mp_job_t *host)
{
    return host->tokens * host->c->topk * sizeof(float);
}

static void put_inputs(cuda_job_t *job)
{
    const mp_job_t *h = &job->host;
    cuda_rig_put(job->x, h->x, h->tokens * h->x_stride, job->stream);
    cuda_rig_put(job->idx, h->idx, idx_bytes(h), job->stream);
    cuda_rig_put(job->weights, h->weights, weights_bytes(h), job->stream);
    cuda_rig_put(job->scales, h->scales, h->tokens * h->c->nscales * 4, job->stream);
    for (int b = 0; b < 2; b++)
        if (h->bias[b] != NULL) cuda_rig_put(job->bias[b], h->bias[b], h->tokens * h->out_stride, job->stream);
    for (uint32_t i = 0; i < h->c->payloads; i++)
        cuda_rig_put(job->payloads[i].data, h->payloads[i].data, h->tokens * h->payloads[i].stride, job->stream);
}

int cuda_job_stages(xep_group_t *group)
{
    return mp_group_info(group).nnodes != 1;
}

void cuda_job_open(cuda_job_t *job, const mp_case_t *c, uint64_t seed, xep_group_t *group, void *stream)
{
    *job = (cuda_job_t){.stream = stream};
    mp_job_open(&job->host, c, seed);
    mp_job_buffer(&job->host, group);
    job->staged = cuda_job_stages(group);
    const mp_job_t *h = &job->host;
    job->x = cuda_rig_alloc(NULL, h->tokens * h->x_stride);
    job->idx = cuda_rig_alloc(NULL, idx_bytes(h));
    job->weights = cuda_rig_alloc(NULL, weights_bytes(h));
    job->scales = cuda_rig_alloc(NULL, h->tokens * c->nscales * 4);
    for (int b = 0; b < 2; b++)
        if (h->bias[b] != NULL) job->bias[b] = cuda_rig_alloc(NULL, h->tokens * h->out_stride);
    for (uint32_t i = 0; i < c->payloads; i++) {
        job->payloads[i] = h->payloads[i];
        job->payloads[i].data = cuda_rig_alloc(NULL, h->tokens * h->payloads[i].stride);
    }
    job->out = cuda_rig_alloc(NULL, h->tokens * h->out_stride);
    job->out_weights = cuda_rig_alloc(NULL, weights_bytes(h));
    put_inputs(job);
}

void cuda_job_close(cuda_job_t *job)
{
    void *arrays[] = {job->x,       job->idx, job->weights, job->scales,     job->bias[0],
                      job->bias[1], job->y,   job->out,     job->out_weights};
    for (uint32_t i = 0; i < job->host.c->payloads; i++) cuda_rig_free(job->payloads[i].data);
    mp_job_close(&job->host);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) cuda_rig_free(arrays[i]);
}

void cuda_job_payload(cuda_job_t *job, uint64_t payload)
{
    cuda_rig_wait(job->stream); /* copies of the old ones may be under way */
    mp_job_payload(&job->host, payload);
    put_inputs(job);
}

xep_dispatch_args_t cuda_job_dispatch(cuda_job_t *job, xep_handle_t *cached)
{
    xep_dispatch_args_t a = cached == NULL ? mp_job_dispatch(&job->host) : mp_job_cached(&job->host, cached);
    a.x = job->x;
    if (a.topk_idx != NULL) a.topk_idx = job->idx;
    if (a.topk_weights != NULL) a.topk_weights = job->weights;
    if (a.scales != NULL) a.scales = job->scales;
    if (a.payloads != NULL) a.payloads = job->payloads;
    a.stream = job->stream;
    if (!job->counts_there) return a;
    a.flags |= XEP_DISPATCH_COUNTS_THERE;
    a.recv_rows_p = NULL;
    return a;
}

/* ---- what came ---- */

static void *fetch(const cuda_job_t *job, const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    MP_CHECK(to != NULL);
    cuda_rig_get(to, from, bytes, job->stream);
    return to;
}

/* By expert the counts and places are the device's, too, and the rows what they say. */
static void fetch_places(const cuda_job_t *job, const xep_recv_t *recv, xep_recv_t *host)
{
    const size_t experts = recv->local_experts, pairs = experts * mp_nranks();
    host->expert_begin = fetch(job, recv->expert_begin, experts * sizeof *recv->expert_begin);
    host->expert_count = fetch(job, recv->expert_count, experts * sizeof *recv->expert_count);
    host->expert_rows = fetch(job, recv->expert_rows, experts * sizeof *recv->expert_rows);
    host->pair_begin = fetch(job, recv->pair_begin, pairs * sizeof *recv->pair_begin);
    host->pair_count = fetch(job, recv->pair_count, pairs * sizeof *recv->pair_count);
    MP_CHECK(recv->rows == recv->capacity);
    host->rows = 0;
    for (size_t e = 0; e < experts; e++)
        host->rows += recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED ? host->expert_count[e] : host->expert_rows[e];
}

/* By rank, where the host waited for no counts. A rank without tokens is shown weights that may not be there. */
static void fetch_counts(const cuda_job_t *job, const xep_recv_t *recv, xep_recv_t *host)
{
    const size_t nranks = mp_nranks();
    host->src_begin = fetch(job, recv->src_begin, (nranks + 1) * sizeof *recv->src_begin);
    host->rank_rows = fetch(job, recv->rank_rows, nranks * nranks * sizeof *recv->rank_rows);
    host->expert_rows = fetch(job, recv->expert_rows, recv->local_experts * sizeof *recv->expert_rows);
    MP_CHECK(recv->rows == recv->capacity);
    host->rows = host->src_begin[nranks];
}

static int is_counted_there(const cuda_job_t *job, const xep_recv_t *recv)
{
    return job->counts_there && recv->expert_begin == NULL;
}

/* By rank: rows that were counted and did not come select no expert. Takes them out, and out of the counts. */
static void close_gaps(const uint8_t *out, xep_recv_t *host)
{
    const size_t nranks = mp_nranks(), idx = host->topk * xep_dtype_size(host->topk_idx_dtype),
                 scales = host->nscales * sizeof(float);
    uint64_t *begin = (uint64_t *)(uintptr_t)host->src_begin, row = 0;
    for (size_t r = 0; r < nranks; r++) {
        const uint64_t first = begin[r], rows = out[r] ? 0 : begin[r + 1] - first;
        memmove((char *)host->x + row * host->x_stride, (char *)host->x + first * host->x_stride,
                rows * host->x_stride);
        memmove((char *)host->topk_idx + row * idx, (char *)host->topk_idx + first * idx, rows * idx);
        if (scales != 0)
            memmove((char *)host->scales + row * scales, (char *)host->scales + first * scales, rows * scales);
        memmove(host->src_token + row, host->src_token + first, rows * sizeof(int32_t));
        begin[r] = row;
        row += rows;
        for (size_t to = 0; to < nranks && out[r]; to++) ((uint32_t *)(uintptr_t)host->rank_rows)[r * nranks + to] = 0;
    }
    for (uint64_t e = 0; e < host->local_experts; e++) ((uint64_t *)(uintptr_t)host->expert_rows)[e] = 0;
    for (uint64_t i = 0; i < row * host->topk; i++) {
        const int64_t expert = ((const int64_t *)host->topk_idx)[i];
        if (expert >= 0) ((uint64_t *)(uintptr_t)host->expert_rows)[expert]++;
    }
    memset((char *)host->topk_idx + row * idx, 0xff, (begin[nranks] - row) * idx);
    begin[nranks] = host->rows = row;
}

static const void *copy_of(const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    MP_CHECK(to != NULL);
    memcpy(to, from, bytes);
    return to;
}

/* Where ranks may be out the counts are copies, as gaps are closed in them. */
static void copy_counts(const xep_recv_t *recv, xep_recv_t *host)
{
    const size_t nranks = mp_nranks();
    host->src_begin = copy_of(recv->src_begin, (nranks + 1) * sizeof *recv->src_begin);
    host->rank_rows = copy_of(recv->rank_rows, nranks * nranks * sizeof *recv->rank_rows);
    host->expert_rows = copy_of(recv->expert_rows, recv->local_experts * sizeof *recv->expert_rows);
}

static int has_copies(const cuda_job_t *job, const xep_recv_t *recv)
{
    return recv->expert_begin == NULL && (job->counts_there || (recv->out != NULL && !job->staged));
}

/* Dense, wherever payloads lie between those of two rows. */
static void *fetch_scales(const cuda_job_t *job, const xep_recv_t *recv, uint64_t rows)
{
    const size_t row = recv->nscales * (size_t)4, stride = (size_t)recv->scales_token_stride;
    if (recv->npayloads == 0) return fetch(job, recv->scales, rows * row);
    char *all = fetch(job, recv->scales, rows == 0 ? 0 : (rows - 1) * stride + row);
    for (uint64_t r = 1; r < rows; r++) memmove(all + r * row, all + r * stride, row);
    return all;
}

/* Of a device's rows, which lie further apart than the oracle wants them. */
static void fetch_payloads(const cuda_job_t *job, const xep_recv_t *recv, uint64_t rows, xep_payload_t *host)
{
    for (uint32_t i = 0; i < recv->npayloads; i++) {
        const xep_payload_t *from = &recv->payloads[i];
        const size_t bytes = (from->bytes + from->alignment - 1) / from->alignment * from->alignment;
        MP_CHECK((uintptr_t)from->data % from->alignment == 0 && from->stride % from->alignment == 0);
        char *all = fetch(job, from->data, rows == 0 ? 0 : (rows - 1) * from->stride + from->bytes);
        host[i] = *from;
        host[i].stride = bytes;
        host[i].data = mp_alloc(rows * bytes, 0);
        for (uint64_t r = 0; r < rows; r++)
            memcpy((char *)host[i].data + r * bytes, all + r * from->stride, from->bytes);
        free(all);
    }
}

/* The same in host memory; free what is not NULL. */
static xep_recv_t fetch_recv(const cuda_job_t *job, const xep_recv_t *recv)
{
    xep_recv_t host = *recv;
    const uint64_t rows = recv->rows; /* by expert: all that the arrays have */
    if (recv->expert_begin != NULL) fetch_places(job, recv, &host);
    if (is_counted_there(job, recv)) fetch_counts(job, recv, &host);
    else if (has_copies(job, recv)) copy_counts(recv, &host);
    host.x = fetch(job, recv->x, rows * recv->x_stride);
    host.topk_idx = fetch(job, recv->topk_idx, recv->capacity * recv->topk * xep_dtype_size(recv->topk_idx_dtype));
    if (is_counted_there(job, recv) && !job->host.shape.weights) host.topk_weights = NULL;
    if (host.topk_weights != NULL)
        host.topk_weights = fetch(job, recv->topk_weights, rows * recv->topk * sizeof(float));
    if (recv->scales != NULL) host.scales = fetch_scales(job, recv, rows);
    if (recv->npayloads != 0) host.scales_token_stride = (ptrdiff_t)recv->nscales * 4;
    host.src_token = fetch(job, recv->src_token, rows * sizeof(int32_t));
    return host;
}

static void free_recv(const cuda_job_t *job, xep_recv_t *host)
{
    if (has_copies(job, host)) {
        free((void *)(uintptr_t)host->src_begin);
        free((void *)(uintptr_t)host->rank_rows);
        free((void *)(uintptr_t)host->expert_rows);
    }
    free(host->x);
    free(host->topk_idx);
    free(host->topk_weights);
    free(host->scales);
    free(host->src_token);
    if (host->expert_begin == NULL) return;
    free((void *)(uintptr_t)host->expert_begin);
    free((void *)(uintptr_t)host->expert_count);
    free((void *)(uintptr_t)host->expert_rows);
    free((void *)(uintptr_t)host->pair_begin);
    free((void *)(uintptr_t)host->pair_count);
}

void cuda_job_check_recv(cuda_job_t *job, const xep_handle_t *handle)
{
    oracle_difference_t d;
    char text[256];
    MP_CHECK(mp_recv(handle) != NULL);
    xep_recv_t host = fetch_recv(job, mp_recv(handle));
    xep_payload_t payloads[XEP_PAYLOADS_MOST];
    fetch_payloads(job, &host, mp_recv(handle)->rows, payloads);
    host.payloads = payloads;
    if (has_copies(job, &host) && host.out != NULL) {
        uint8_t *out = fetch(job, host.out, mp_nranks());
        close_gaps(out, &host);
        free(out);
    }
    oracle_shape_t shape = job->host.shape;
    if (shape.by_expert) shape.capacity = host.capacity; /* of the slot, where none was asked for */
    if (oracle_check_recv(&shape, mp_rank(), &host, &d) != 0) {
        oracle_difference_text(&d, text, sizeof text);
        mp_fail(__FILE__, __LINE__, "case %s: %s", job->host.c->name, text);
    }
    for (uint32_t i = 0; i < host.npayloads; i++) mp_free(payloads[i].data, "received payload");
    free_recv(job, &host);
}

/* ---- back ---- */

/* The experts' work, on the host, and their outputs to the device. */
static void *make_outputs(cuda_job_t *job, xep_handle_t *handle, size_t *stride_p)
{
    const mp_job_t *h = &job->host;
    xep_recv_t host = fetch_recv(job, mp_recv(handle));
    void *y = mp_input(handle, stride_p);
    MP_CHECK(y != NULL);
    const uint64_t rows = mp_recv(handle)->rows;
    void *outputs = malloc(rows * *stride_p + 1);
    MP_CHECK(outputs != NULL);
    memset(outputs, MP_POISON, rows * *stride_p);
    oracle_fill_outputs(&h->shape, mp_rank(), &host, outputs, *stride_p);
    if (h->c->copy_in) {
        cuda_rig_free(job->y);
        y = job->y = cuda_rig_alloc(NULL, rows * *stride_p);
    }
    cuda_rig_put(y, outputs, rows * *stride_p, job->stream);
    cuda_rig_wait(job->stream);
    free(outputs);
    free_recv(job, &host);
    return y;
}

xep_combine_args_t cuda_job_outputs(cuda_job_t *job, xep_handle_t *handle)
{
    mp_job_t *h = &job->host;
    const xep_recv_t *recv = mp_recv(handle);
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    size_t stride;
    a.x = make_outputs(job, handle, &stride);
    a.x_stride = stride;
    a.dtype = h->shape.combine_dtype;
    a.out = job->out;
    a.out_stride = h->out_stride;
    for (int b = 0; b < 2; b++) {
        a.bias[b] = job->bias[b];
        a.bias_stride[b] = job->bias[b] == NULL ? 0 : h->out_stride;
    }
    if (h->shape.weights && !h->shape.by_expert) {
        a.topk_weights = recv->topk_weights;
        a.out_weights = job->out_weights;
    }
    a.stream = job->stream;
    memset(h->out, MP_POISON, h->tokens * h->out_stride);
    memset(h->out_weights, MP_POISON, weights_bytes(h));
    cuda_rig_put(job->out, h->out, h->tokens * h->out_stride, job->stream);
    return a;
}

void cuda_job_check_sums(cuda_job_t *job, const xep_combine_args_t *a)
{
    mp_job_t *h = &job->host;
    cuda_rig_get(h->out, job->out, h->tokens * h->out_stride, job->stream);
    if (a->out_weights != NULL) cuda_rig_get(h->out_weights, job->out_weights, weights_bytes(h), job->stream);
    mp_job_check_out(h);
}

/* In mode ll, where owners have all weights, of what ranks have summed, too. */
void cuda_job_combine(cuda_job_t *job, xep_handle_t *handle)
{
    oracle_shape_t *shape = &job->host.shape;
    for (int at_owner = 0; at_owner <= (shape->by_expert && shape->unweighted); at_owner++) {
        xep_combine_args_t a = cuda_job_outputs(job, handle);
        if (at_owner) a.flags = XEP_COMBINE_SUM_AT_OWNER;
        shape->sum_at_owner = at_owner;
        MP_OK(xep_combine(handle, &a, NULL));
        cuda_job_check_sums(job, &a);
    }
    shape->sum_at_owner = 0;
}

/* Devices that map one another: rows stay as they are, whatever they were to be cast to. */
void cuda_job_refuse_formats(cuda_job_t *job, xep_handle_t *handle)
{
    xep_dispatch_args_t d = cuda_job_dispatch(job, NULL);
    xep_payload_t payload = {.data = job->x, .bytes = 4};
    xep_handle_t *none = NULL;
    d.payloads = &payload, d.npayloads = 1;
    d.quant = d.dtype == XEP_E4M3 ? XEP_QUANT_NONE : XEP_QUANT_E4M3;
    payload.bytes = d.quant != XEP_QUANT_NONE ? 4 : 65536;
    MP_SAYS(d.quant != XEP_QUANT_NONE ? XEP_ERR_UNSUPPORTED : XEP_ERR_INVALID,
            d.quant != XEP_QUANT_NONE ? "invalid npayloads: 1 (0 in device memory with a quant"
                                      : "too little room beside a row: ",
            xep_dispatch(job->host.buffer, &d, &none, NULL));
    if (job->staged || job->host.shape.combine_dtype != XEP_BF16) return;
    xep_combine_args_t a = cuda_job_outputs(job, handle);
    a.quant = XEP_QUANT_MXFP8;
    MP_OK(xep_combine(handle, &a, NULL));
    cuda_job_check_sums(job, &a);
}

void cuda_job_nothing_missing(cuda_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t a = cuda_job_outputs(job, handle);
    const size_t selections = job->host.tokens * job->host.c->topk;
    uint8_t missing[512];
    a.missing = job->weights; /* any array of the device */
    MP_FAILS(job->staged ? XEP_ERR_UNSUPPORTED : XEP_OK, xep_combine(handle, &a, NULL));
    if (job->staged) {
        MP_REASON("does not support missing");
        return;
    }
    MP_CHECK(selections <= sizeof missing);
    cuda_rig_get(missing, a.missing, selections, job->stream);
    for (size_t i = 0; i < selections; i++) MP_CHECK(missing[i] == 0);
}

void cuda_job_refuse_lacks(cuda_job_t *job, xep_handle_t *handle)
{
    const xep_combine_args_t good = cuda_job_outputs(job, handle);
    xep_combine_args_t lacking[3] = {good, good, good};
    const uint32_t features[3] = {XEP_CAN_WEIGH, XEP_CAN_RETURN_WEIGHTS, XEP_CAN_SUM_AT_OWNER};
    xep_mode_info_t can = XEP_MODE_INFO_INIT;
    MP_OK(xep_mode_query(job->host.shape.by_expert ? "ll" : "normal", job->staged ? XEP_MEMORY_HOST : XEP_MEMORY_CUDA,
                         &can));
    lacking[0].weights = job->out_weights; /* any array of the device */
    lacking[1].topk_weights = job->out_weights, lacking[1].out_weights = job->out_weights;
    lacking[2].flags = XEP_COMBINE_SUM_AT_OWNER;
    for (int i = 0; i < 3; i++)
        if ((can.features & features[i]) == 0) MP_FAILS(XEP_ERR_UNSUPPORTED, xep_combine(handle, &lacking[i], NULL));
}

xep_handle_t *cuda_job_send(cuda_job_t *job)
{
    const xep_dispatch_args_t args = cuda_job_dispatch(job, NULL);
    xep_handle_t *handle;
    MP_OK(xep_dispatch(job->host.buffer, &args, &handle, NULL));
    return handle;
}

void cuda_job_end(cuda_job_t *job, xep_handle_t *handle)
{
    cuda_job_check_recv(job, handle);
    cuda_job_combine(job, handle);
    xep_handle_release(handle);
}

void cuda_job_round(cuda_job_t *job)
{
    cuda_job_end(job, cuda_job_send(job));
}

/* Of rank 0: one behind the last expert, or what it was. */
static void put_index(const cuda_job_t *job, int is_wrong)
{
    const int64_t wrong = 8, right = ((const int64_t *)job->host.idx)[5];
    if (mp_rank() == 0) cuda_rig_put((int64_t *)job->idx + 5, is_wrong ? &wrong : &right, sizeof right, job->stream);
    cuda_rig_wait(job->stream); /* neither is there any more then */
}

/* Refused by rank 0 alone, which the others are told; and all leave one call out. */
static void refuse_staged_index(cuda_job_t *job)
{
    const xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    MP_REFUSES(&job->host, &a, mp_rank() == 0 ? XEP_ERR_INVALID : XEP_ERR_MISMATCH,
               mp_rank() == 0 ? "invalid topk_idx[2][1]" : "");
    cuda_job_payload(job, 100);
    MP_REFUSES(&job->host, &a, XEP_ERR_MISMATCH, "");
}

void cuda_job_wrong_index(cuda_job_t *job, xep_status_t status)
{
    put_index(job, 1);
    if (job->staged) {
        refuse_staged_index(job);
    } else {
        const xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
        if (status == XEP_ERR_PROTOCOL) (void)cuda_job_send(job), cuda_rig_wait(job->stream);
        MP_REFUSES(&job->host, &a, status, mp_rank() == 0 ? "invalid topk_idx[2][1]" : "topk_idx of rank 0");
        put_index(job, 0);
        if (status == XEP_ERR_PROTOCOL) MP_OK(xep_buffer_reset(job->host.buffer));
    }
    cuda_job_round(job);
}
