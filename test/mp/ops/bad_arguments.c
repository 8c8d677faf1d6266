/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 */

/* Every wrong argument gives its error and a sentence that names it, and leaves everything usable. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xep/serve.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t base = {.name = "bad input", MP_SHAPE(12, 4, 64, 20), .weights = 1, .nscales = 2, .slots = 2};

static void structs(xep_group_t *group)
{
    struct {
        xep_buffer_params_t params;
        uint64_t later;
    } grown;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    memset(&grown, 0, sizeof grown);
    grown.params.experts = grown.params.topk = grown.params.hidden = 1;
    grown.params.tokens = 1;
    MP_SAYS(XEP_ERR_INVALID, "size: 0", xep_buffer_size(&grown.params, 1, &size));
    grown.params.size = sizeof grown;
    MP_OK(xep_buffer_size(&grown.params, 1, &size));
    grown.later = 1;
    MP_SAYS(XEP_ERR_INVALID, "unknown field in params: byte", xep_buffer_size(&grown.params, 1, &size));
    grown.params.size = offsetof(xep_buffer_params_t, slots); /* a caller of an older header */
    MP_OK(xep_buffer_size(&grown.params, 1, &size));
    /* sizes that end inside a pointer, which no struct of any version has had */
    for (size_t odd = sizeof(size_t) + 1; odd < sizeof grown.params; odd++) {
        if (odd % sizeof(size_t) == 0) continue;
        grown.params.size = odd;
        MP_SAYS(XEP_ERR_INVALID, "invalid params.size", xep_buffer_size(&grown.params, 1, &size));
    }
    grown.params.size = sizeof grown.params;
    size.size = sizeof(size_t) + 4;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_size(&grown.params, 1, &size));
    size.size = 0;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_size(&grown.params, 1, &size));
    MP_SAYS(XEP_ERR_INVALID, "params is NULL", xep_buffer_size(NULL, 1, &size));
    (void)group;
}

static void null_calls(xep_group_t *group)
{
    xep_group_params_t gp = XEP_GROUP_PARAMS_INIT;
    xep_group_t *none = NULL;
    void *base_p;
    size_t bytes;
    int value = 0;
    xep_peer_info_t peer = XEP_PEER_INFO_INIT;
    MP_FAILS(XEP_ERR_INVALID, xep_group_create(&gp, NULL));
    gp.nranks = 4;
    MP_SAYS(XEP_ERR_INVALID, "without an allgather", xep_group_create(&gp, &none));
    MP_CHECK(none == NULL);
    MP_FAILS(XEP_ERR_INVALID, xep_group_barrier(NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_group_allgather(NULL, &value, &value, 4));
    MP_SAYS(XEP_ERR_INVALID, "send is NULL", xep_group_allgather(group, NULL, &value, 4));
    MP_FAILS(XEP_ERR_INVALID, xep_group_allgather(group, &value, &value, 0));
    MP_FAILS(XEP_ERR_INVALID, xep_group_allgather(group, &value, &value, (size_t)-1));
    MP_FAILS(XEP_ERR_INVALID, xep_group_query(group, NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_group_peer(group, mp_nranks(), &peer));
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_reset(NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_memory(NULL, &base_p, &bytes));
    MP_FAILS(XEP_ERR_INVALID, xep_request_test(NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_request_wait(NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_combine(NULL, NULL, NULL));
    MP_CHECK(mp_recv(NULL) == NULL && mp_input(NULL, NULL) == NULL);
    xep_request_t *no_reqs[] = {NULL, NULL};
    xep_join_params_t join;
    uint32_t index = 7, major = 7;
    MP_FAILS(XEP_ERR_INVALID, xep_request_wait_any(no_reqs, 2, &index));
    MP_FAILS(XEP_ERR_INVALID, xep_request_wait_any(NULL, 2, &index));
    MP_FAILS(XEP_ERR_INVALID, xep_request_wait_any(no_reqs, 2, NULL));
    xep_version(&major, NULL, NULL);
    MP_CHECK(index == 7 && major == XEP_VERSION_MAJOR);
    memset(&join, 0xff, sizeof join);
    xep_struct_init(&join, sizeof join);
    MP_CHECK(memcmp(&join, &(xep_join_params_t)XEP_JOIN_PARAMS_INIT, sizeof join) == 0);
    xep_request_free(NULL);
    xep_handle_release(NULL);
    xep_buffer_destroy(NULL);
    xep_group_destroy(NULL);
    xep_group_abort(NULL);
}

/* Refused before anybody hears of it: the group goes on as it was. */
static void shrinks(xep_group_t *group)
{
    xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    xep_group_t *next = NULL;
    MP_FAILS(XEP_ERR_INVALID, xep_group_shrink(NULL, &args, &next));
    MP_FAILS(XEP_ERR_INVALID, xep_group_shrink(group, &args, NULL));
    args.least = mp_nranks() + 1;
    MP_SAYS(XEP_ERR_INVALID, "invalid least", xep_group_shrink(group, &args, &next));
    args.least = 0;
    args.size = 4;
    MP_FAILS(XEP_ERR_INVALID, xep_group_shrink(group, &args, &next));
    MP_CHECK(next == NULL);
    MP_OK(xep_group_barrier(group));
}

static int find_nothing(void *ctx, void *address, size_t capacity, size_t *bytes_p)
{
    (void)ctx, (void)address, (void)capacity, (void)bytes_p;
    return 0;
}

/* All ranks hear of what is wrong on one; grow.c has more. */
static void grows(xep_group_t *group)
{
    xep_grow_args_t args = XEP_GROW_ARGS_INIT;
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    xep_group_t *next = NULL;
    xep_buffer_t *buffer = NULL;
    MP_FAILS(XEP_ERR_INVALID, xep_group_grow(NULL, &args, &next));
    MP_FAILS(XEP_ERR_INVALID, xep_group_grow(group, &args, NULL));
    args.path = "address";
    args.joiners = 1;
    MP_WRONG(args, joiners, 1025, XEP_ERR_INVALID, "invalid joiners: 1025", xep_group_grow(group, &args, &next));
    MP_WRONG(args, flags, 2, XEP_ERR_INVALID, "invalid flags: 0x2", xep_group_grow(group, &args, &next));
    MP_FAILS(XEP_ERR_INVALID, xep_group_join(NULL, &next));
    params.path = "address";
    MP_WRONG(params, lookup, find_nothing, XEP_ERR_INVALID, "params.path and params.lookup are both given",
             xep_group_join(&params, &next));
    MP_FAILS(XEP_ERR_INVALID, xep_group_join(&params, NULL));
    MP_WRONG(params, reserved, 1, XEP_ERR_INVALID, "invalid reserved: 1", xep_group_join(&params, &next));
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_follow(NULL, NULL, &buffer));
    MP_SAYS(XEP_ERR_INVALID, "there is no buffer to follow", xep_buffer_follow(NULL, group, &buffer));
    MP_CHECK(next == NULL && buffer == NULL);
}

/* Which buffers can go on without ranks, and what may be asked of a group that has none of these. */
static void masks(xep_group_t *group)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    uint32_t count = 7;
    p.on_failure = (xep_on_failure_t)2;
    MP_SAYS(XEP_ERR_INVALID, "invalid on_failure: 2", xep_buffer_create(group, &p, &buffer));
    p.on_failure = XEP_ON_FAILURE_MASK;
    MP_FAILS(XEP_ERR_INVALID, xep_group_mask_set(group, mp_rank()));
    MP_FAILS(XEP_ERR_INVALID, xep_group_mask_set(group, mp_nranks()));
    MP_FAILS(XEP_ERR_INVALID, xep_group_mask_set(NULL, 0));
    if (mp_nranks() > 1) MP_FAILS(XEP_ERR_UNSUPPORTED, xep_group_mask_set(group, (mp_rank() + 1) % mp_nranks()));
    MP_FAILS(XEP_ERR_INVALID, xep_group_mask_query(group, NULL, sizeof(xep_mask_t), 1, &count));
    MP_FAILS(XEP_ERR_INVALID, xep_group_mask_query(group, NULL, 0, 0, NULL));
    MP_OK(xep_group_mask_query(group, NULL, 0, 0, &count));
    MP_CHECK(count == 0);
    for (int ll = 0; ll < 2; ll++) {
        p.mode = ll ? "ll" : "normal";
        buffer = NULL;
        MP_OK(xep_buffer_create(group, &p, &buffer));
        xep_buffer_destroy(buffer);
    }
}

#define BAD_LAYOUT(_field, _value, _text) MP_WRONG(a, _field, _value, XEP_ERR_INVALID, _text, xep_layout(&a, &out))

static void layouts(void)
{
    int64_t idx[2] = {0, 7};
    int32_t counts[2];
    xep_layout_args_t a = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t out = XEP_LAYOUT_INIT;
    out.tokens_per_rank = counts;
    a.tokens = 1;
    a.topk = 2;
    a.experts = 7;
    a.nranks = 2;
    a.topk_idx = idx;
    MP_SAYS(XEP_ERR_INVALID, "invalid topk_idx[0][1]: 7 (-1, or one of 7 experts)", xep_layout(&a, &out));
    idx[1] = -2;
    MP_SAYS(XEP_ERR_INVALID, "-2", xep_layout(&a, &out));
    idx[1] = -1;
    MP_OK(xep_layout(&a, &out));
    BAD_LAYOUT(topk_idx_dtype, XEP_FP32, "topk_idx_dtype");
    BAD_LAYOUT(topk_idx, NULL, "topk_idx");
    BAD_LAYOUT(topk_idx, (const char *)idx + 4, "aligned");
    BAD_LAYOUT(topk_idx_stride, 8, "invalid topk_idx_stride: 8 bytes (at least the 16 of a row)");
    out.tokens_per_rank = NULL;
    BAD_LAYOUT(nranks, UINT32_MAX, "invalid nranks: 4294967295 (1 to 1048576)"); /* to count them would take 64 GiB */
    MP_FAILS(XEP_ERR_INVALID, xep_layout(NULL, &out));
    MP_FAILS(XEP_ERR_INVALID, xep_layout(&a, NULL));
}

/* one field of good params made bad; the sentence must name it */
#define BAD_PARAM(_field, _value, _text) \
    MP_WRONG(p, _field, _value, XEP_ERR_INVALID, _text, xep_buffer_create(group, &p, &buffer))

static void buffers(xep_group_t *group)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    BAD_PARAM(experts, 0, "invalid experts: 0 (1 to");
    BAD_PARAM(experts, (1u << 20) + 1, "invalid experts: 1048577 (1 to 1048576)");
    BAD_PARAM(topk, 0, "invalid topk: 0");
    BAD_PARAM(topk, 13, "invalid topk: 13 (1 to 12");
    BAD_PARAM(hidden, 0, "invalid hidden: 0");
    BAD_PARAM(tokens, 0, "invalid tokens: 0 on all ranks");
    BAD_PARAM(tokens, 1ull << 40, "invalid tokens: 1099511627776");
    BAD_PARAM(dtype, (xep_dtype_t)99, "invalid dtype: 99");
    BAD_PARAM(combine_dtype, XEP_E4M3, "combine_dtype");
    BAD_PARAM(threads, 100000, "invalid threads: 100000");
    BAD_PARAM(path, (xep_path_t)3, "invalid path: 3 (one of XEP_PATH_*)");
    BAD_PARAM(slots, 1u << 20, "slots");
    MP_CHECK(buffer == NULL);
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(NULL, &p, &buffer));
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, NULL, &buffer));
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, &p, NULL));
    p.mode = "no-such-mode";
    MP_SAYS(XEP_ERR_PLUGIN, "no-such-mode", xep_buffer_create(group, &p, &buffer));
    p.mode = "../normal";
    MP_SAYS(XEP_ERR_PLUGIN, "slash", xep_buffer_create(group, &p, &buffer));
}

#define BAD_DISPATCH(_field, _value, _text) \
    MP_WRONG(good, _field, _value, XEP_ERR_INVALID, _text, xep_dispatch(job->buffer, &good, &none, NULL))

static void bad_index(mp_job_t *job, int64_t value, xep_request_t *after)
{
    xep_dispatch_args_t a = mp_job_dispatch(job);
    int64_t *idx = job->idx, good = idx[7];
    idx[7] = value;
    a.after = after;
    MP_REFUSES(job, &a, XEP_ERR_INVALID, "topk_idx[1][3]");
    MP_REASON("12 experts");
    idx[7] = good;
}

/* Each in turn has one that is not good; good ones are refused where there is too little room beside a row. */
static void bad_payloads(mp_job_t *job)
{
    char byte = 0;
    const struct {
        xep_payload_t payload;
        uint32_t count;
        const char *reason;
    } cases[] = {{{.data = &byte, .bytes = 0}, 2, "invalid bytes of payload 0: 0 (1 to 65536)"},
                 {{.data = &byte, .bytes = 1, .alignment = 3}, 1, "invalid alignment of payload 0: 3 (a power of two"},
                 {{.data = &byte, .bytes = 1, .alignment = 128}, 1, "invalid alignment of payload 0: 128"},
                 {{.bytes = 1}, 1, "data of payload 0 is NULL, with 20 tokens"},
                 {{.data = &byte, .bytes = 2, .stride = 1}, 1, "invalid stride of payload 0: 1 (0, or at least its 2"},
                 {{.data = &byte, .bytes = 1}, 9, "invalid npayloads: 9 (at most 8)"},
                 {{.data = job->x, .bytes = 1},
                  1,
                  "too little room beside a row: 2 words of 4 bytes (params.scales: at least 3 for"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        xep_dispatch_args_t a = mp_job_dispatch(job);
        a.payloads = &cases[i].payload, a.npayloads = cases[i].count;
        MP_REFUSES(job, &a, XEP_ERR_INVALID, cases[i].reason);
    }
}

static void dispatches(mp_job_t *job)
{
    char odd[8];
    mp_job_t other;
    xep_handle_t *handle, *none = NULL;
    xep_request_t *req;
    xep_dispatch_args_t good = mp_job_dispatch(job);
    BAD_DISPATCH(tokens, 21, "too many tokens: 21 (the buffer was made for 20)");
    BAD_DISPATCH(x, NULL, "x is NULL");
    BAD_DISPATCH(x, (char *)job->x + 1, "misaligned x: 0x");
    BAD_DISPATCH(x_stride, 2, "invalid x_stride: 2 bytes");
    BAD_DISPATCH(x_stride, 129, "invalid x_stride: 129 bytes");
    BAD_DISPATCH(dtype, (xep_dtype_t)77, "invalid dtype: 77");
    BAD_DISPATCH(dtype, XEP_FP32,
                 "row too long: 64 elements of fp32, 256 bytes (at most 128: the buffer was made for 64 of bf16, the "
                 "default; make it with params.dtype fp32)");
    BAD_DISPATCH(hidden, 65,
                 "row too long: 65 elements of bf16, 130 bytes (at most 128: the buffer was made for 64 of bf16)");
    BAD_DISPATCH(topk, 5, "invalid topk: 5 (the buffer was made for 4)");
    BAD_DISPATCH(topk_idx, NULL, "topk_idx is NULL");
    BAD_DISPATCH(topk_idx_stride, 12, "topk_idx_stride");
    BAD_DISPATCH(topk_idx_dtype, XEP_FP16, "invalid topk_idx_dtype: fp16");
    BAD_DISPATCH(topk_weights, (const float *)(const void *)(odd + 1), "topk_weights");
    BAD_DISPATCH(topk_weights_stride, 4, "topk_weights_stride");
    BAD_DISPATCH(nscales, 3, "invalid nscales: 3 (at most 2");
    BAD_DISPATCH(nscales, 0, "invalid nscales: 0");
    BAD_DISPATCH(scales, NULL, "scales is NULL");
    BAD_DISPATCH(scales_stride, 3, "scales_stride 3");
    BAD_DISPATCH(scales_dtype, (xep_dtype_t)77, "scales_dtype");
    bad_payloads(job);
    BAD_DISPATCH(capacity, 1ull << 50, "invalid capacity: 1125899906842624");
    bad_index(job, 12, NULL);
    bad_index(job, -2, NULL);
    bad_index(job, INT64_MIN, NULL);
    bad_index(job, 1ll << 32, NULL);
    mp_job_round(job);
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(NULL, &good, &none, NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->buffer, NULL, &none, NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->buffer, &good, NULL, NULL));
    MP_OK(xep_dispatch(job->buffer, &good, &handle, &req));
    MP_CHECK(mp_recv(handle) == NULL || xep_request_test(req) == XEP_OK);
    bad_index(job, 12, req); /* found now, though it would begin later */
    MP_OK(xep_request_wait(req));
    xep_request_free(req);
    BAD_DISPATCH(cached, handle, "topk_idx must be NULL with cached");
    mp_job_begin(&other, &base, 2, mp_group());
    xep_dispatch_args_t c = mp_job_dispatch(&other);
    c.cached = handle;
    c.topk_idx = NULL;
    MP_REFUSES(&other, &c, XEP_ERR_INVALID, "another buffer");
    c.tokens = 3;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->buffer, &c, &none, NULL));
    MP_CHECK(none == NULL);
    mp_job_close(&other);
    xep_handle_release(handle);
}

#define BAD_COMBINE(_field, _value, _text) \
    MP_WRONG(good, _field, _value, XEP_ERR_INVALID, _text, xep_combine(handle, &good, NULL))

static void combines(mp_job_t *job)
{
    xep_handle_t *handle = mp_job_send(job);
    xep_combine_args_t good = mp_job_combine(job, handle);
    BAD_COMBINE(out, NULL, "out is NULL");
    BAD_COMBINE(out, (char *)job->out + 1, "misaligned out: 0x");
    BAD_COMBINE(out_stride, 100, "invalid out_stride: 100 bytes");
    BAD_COMBINE(dtype, XEP_E4M3, "invalid dtype: e4m3");
    BAD_COMBINE(dtype, XEP_FP32, "the default; make it with params.combine_dtype fp32)");
    BAD_COMBINE(hidden, 1000, "row too long: 1000 elements");
    BAD_COMBINE(bias[0], (char *)job->x + 1, "bias");
    BAD_COMBINE(out_weights, NULL, "out_weights is NULL");
    BAD_COMBINE(out_weights_stride, 4, "out_weights_stride");
    MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, NULL, NULL));
    MP_OK(xep_combine(handle, &good, NULL));
    mp_job_check_out(job);
    xep_handle_release(handle);
    MP_SAYS(XEP_ERR_INVALID, "released", xep_combine(handle, &good, NULL));
    MP_CHECK(mp_recv(handle) == NULL);
    MP_CHECK(mp_input(handle, NULL) == NULL);
    xep_handle_release(handle); /* twice: nothing happens */
    mp_job_round(job);
}

static xep_status_t experts(void *arg, xep_serve_call_t *call)
{
    (void)arg;
    (void)call;
    return XEP_OK;
}

/* Two buffers that are served, the second of another group, and one that is not; all end with nothing begun. */
static void serving(mp_job_t *job, xep_group_t *group)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffers[2] = {NULL, NULL}, *plain[2] = {NULL, job->buffer};
    xep_group_t *other = NULL;
    xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
    p.flags = XEP_BUFFER_SERVED;
    MP_OK(xep_buffer_create(group, &p, &buffers[0]));
    MP_OK(xep_group_create(NULL, &other));
    MP_OK(xep_buffer_create(other, &p, &buffers[1]));
    plain[0] = buffers[0];
    MP_SAYS(XEP_ERR_INVALID, "args is NULL", xep_serve(NULL));
    MP_SAYS(XEP_ERR_INVALID, "no buffers (at least 1)", xep_serve(&args));
    args.buffers = buffers;
    MP_SAYS(XEP_ERR_INVALID, "no buffers (at least 1)", xep_serve(&args));
    args.count = 1;
    MP_SAYS(XEP_ERR_INVALID, "fn is NULL", xep_serve(&args));
    args.fn = experts;
    args.count = 2;
    MP_SAYS(XEP_ERR_INVALID, "invalid buffers[1]: of another group than buffers[0]", xep_serve(&args));
    MP_SAYS(XEP_ERR_INVALID, "invalid buffers[1]: of another group than buffers[0]", xep_step_end(buffers, 2, 0));
    args.buffers = plain;
    MP_SAYS(XEP_ERR_UNSUPPORTED, "invalid buffers[1]: made without XEP_BUFFER_SERVED", xep_serve(&args));
    MP_SAYS(XEP_ERR_UNSUPPORTED, "invalid buffers[1]: made without XEP_BUFFER_SERVED", xep_step_end(plain, 2, 0));
    MP_FAILS(XEP_ERR_INVALID, xep_step_end(NULL, 1, 0));
    MP_FAILS(XEP_ERR_INVALID, xep_step_end(buffers, 0, 0));
    MP_SAYS(XEP_ERR_INVALID, "invalid flags: 0x2 (bits of XEP_STEP_*)", xep_step_end(buffers, 1, 2));
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_announce_dispatch(job->buffer));
    xep_serve_stop(NULL);
    xep_serve_stop(job->buffer);
    args.buffers = buffers, args.count = 1;
    xep_serve_stop(buffers[0]);
    MP_OK(xep_serve(&args)); /* no step is under way */
    xep_buffer_destroy(buffers[1]);
    xep_group_destroy(other);
    xep_buffer_destroy(buffers[0]);
}

static void environment(xep_group_t *group)
{
    xep_group_t *none = NULL;
    (void)group;
    setenv("XEP_THREADS", "many", 1);
    MP_SAYS(XEP_ERR_INVALID, "invalid XEP_THREADS: \"many\"", xep_group_create(NULL, &none));
    unsetenv("XEP_THREADS");
    setenv("XEP_MAP", "sometimes", 1);
    MP_SAYS(XEP_ERR_INVALID, "invalid XEP_MAP: \"sometimes\"", xep_group_create(NULL, &none));
    unsetenv("XEP_MAP");
}

int main(void)
{
    xep_group_t *group = mp_group();
    mp_job_t job;
    structs(group);
    null_calls(group);
    masks(group);
    shrinks(group);
    grows(group);
    layouts();
    buffers(group);
    mp_job_begin(&job, &base, 1, group);
    dispatches(&job);
    combines(&job);
    serving(&job, group);
    mp_job_close(&job);
    if (getenv("XEP_MAP") == NULL) environment(group);
    return mp_end(group);
}
