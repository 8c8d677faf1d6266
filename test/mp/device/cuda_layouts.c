/* SPDX-License-Identifier: BSD-3-Clause */

/* The shapes are those of other groups than this one: a layout depends on its arguments alone. */
#include "cuda_parts.h"

#include <oracle.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

typedef struct shape {
    uint32_t nranks, ranks_per_node, experts, topk;
    uint64_t tokens;
    uint32_t mask; /* of 1000 selections */
    xep_dtype_t idx_dtype;
    uint32_t gap; /* indices between rows */
} shape_t;

static const shape_t shapes[] = {
    {1, 1, 1, 1, 1, 0, XEP_INT64, 0},           {2, 0, 16, 4, 33, 0, XEP_INT32, 0},
    {8, 3, 61, 8, 517, 100, XEP_INT64, 3},      {64, 8, 256, 8, 4100, 50, XEP_INT64, 0},
    {64, 64, 64, 64, 3, 0, XEP_INT32, 1},       {65, 4, 130, 6, 300, 200, XEP_INT64, 0},
    {200, 7, 1000, 12, 97, 0, XEP_INT32, 5},    {3, 1, 2, 2, 40, 0, XEP_INT64, 0},
    {32, 40, 512, 9, 1000, 1000, XEP_INT32, 0}, {4, 2, 8, 2, 0, 0, XEP_INT64, 0},
};

/* In host memory, beyond whose ends nothing may be written: the last element of each is a canary. */
typedef struct arrays {
    uint64_t count[4]; /* without it */
    void *host[4], *device[4];
} arrays_t;

static size_t elem_bytes(int i)
{
    return i < 3 ? sizeof(int32_t) : 1;
}

static void open_arrays(arrays_t *a, const shape_t *s, uint32_t nodes)
{
    *a = (arrays_t){.count = {s->nranks, nodes, s->experts, s->tokens * s->nranks}};
    for (int i = 0; i < 4; i++) {
        const size_t bytes = (a->count[i] + 1) * elem_bytes(i);
        a->host[i] = malloc(bytes);
        MP_CHECK(a->host[i] != NULL);
        memset(a->host[i], MP_POISON, bytes);
        a->device[i] = cuda_rig_alloc(a->host[i], bytes);
    }
}

static void close_arrays(arrays_t *a)
{
    for (int i = 0; i < 4; i++) {
        cuda_rig_free(a->device[i]);
        free(a->host[i]);
    }
}

static void fetch_arrays(arrays_t *a, void *stream)
{
    for (int i = 0; i < 4; i++) {
        const size_t bytes = a->count[i] * elem_bytes(i);
        cuda_rig_get(a->host[i], a->device[i], bytes + elem_bytes(i), stream);
        for (size_t j = 0; j < elem_bytes(i); j++) MP_CHECK(((uint8_t *)a->host[i])[bytes + j] == MP_POISON);
    }
}

static oracle_routing_t *open_routing(const shape_t *s)
{
    char why[256];
    oracle_routing_t *routing;
    const oracle_routing_params_t p = {.seed = 40 + mp_rank(),
                                       .nranks = s->nranks,
                                       .experts = s->experts,
                                       .topk = s->topk,
                                       .mask = s->mask,
                                       .tokens = s->tokens};
    if (oracle_routing_create(&p, &routing, why, sizeof why) != 0) mp_fail(__FILE__, __LINE__, "%s", why);
    return routing;
}

/* Rows with a gap, in which there is what is no expert. */
static void *spread(const shape_t *s, const void *dense, size_t *stride_p)
{
    const size_t row = s->topk * xep_dtype_size(s->idx_dtype), stride = row + s->gap * xep_dtype_size(s->idx_dtype);
    char *rows = malloc(s->tokens * stride + 1);
    MP_CHECK(rows != NULL);
    memset(rows, MP_POISON, s->tokens * stride);
    for (uint64_t t = 0; t < s->tokens; t++) memcpy(rows + t * stride, (const char *)dense + t * row, row);
    void *there = cuda_rig_alloc(rows, s->tokens * stride);
    free(rows);
    *stride_p = stride;
    return there;
}

static xep_layout_args_t args_of(const shape_t *s, xep_buffer_t *buffer, void *stream)
{
    xep_layout_args_t args = XEP_LAYOUT_ARGS_INIT;
    args.tokens = s->tokens;
    args.topk = s->topk;
    args.experts = s->experts;
    args.nranks = s->nranks;
    args.ranks_per_node = s->ranks_per_node;
    args.topk_idx_dtype = s->idx_dtype;
    args.buffer = buffer;
    args.stream = stream;
    return args;
}

/* of: which of the arrays are wanted, a bit each. */
static void check(const shape_t *s, xep_buffer_t *buffer, void *stream, unsigned of)
{
    const uint32_t per_node = s->ranks_per_node == 0 ? s->nranks : s->ranks_per_node;
    oracle_routing_t *routing = open_routing(s);
    const oracle_shape_t shape = {.routing = routing, .idx_dtype = s->idx_dtype};
    void *dense = malloc(s->tokens * s->topk * xep_dtype_size(s->idx_dtype) + 1);
    xep_layout_args_t args = args_of(s, buffer, stream);
    oracle_difference_t d;
    char text[256];
    arrays_t a;
    MP_CHECK(dense != NULL);
    oracle_fill_inputs(&shape, 0, NULL, dense, NULL, NULL);
    void *idx = spread(s, dense, &args.topk_idx_stride);
    args.topk_idx = idx;
    open_arrays(&a, s, (s->nranks + per_node - 1) / per_node);
    xep_layout_t out = {.size = sizeof out,
                        .tokens_per_rank = of & 1 ? a.device[0] : NULL,
                        .tokens_per_node = of & 2 ? a.device[1] : NULL,
                        .tokens_per_expert = of & 4 ? a.device[2] : NULL,
                        .token_in_rank = of & 8 ? a.device[3] : NULL};
    MP_OK(xep_layout(&args, &out));
    fetch_arrays(&a, stream);
    const xep_layout_t host = {.tokens_per_rank = of & 1 ? a.host[0] : NULL,
                               .tokens_per_node = of & 2 ? a.host[1] : NULL,
                               .tokens_per_expert = of & 4 ? a.host[2] : NULL,
                               .token_in_rank = of & 8 ? a.host[3] : NULL};
    if (oracle_check_layout(&shape, 0, per_node, &host, &d) != 0) {
        oracle_difference_text(&d, text, sizeof text);
        mp_fail(__FILE__, __LINE__, "%u ranks, %u experts: %s", s->nranks, s->experts, text);
    }
    close_arrays(&a);
    cuda_rig_free(idx);
    free(dense);
    oracle_routing_destroy(routing);
}

/* What is no expert counts for nobody, and nothing is said: the dispatch refuses it. */
static void check_wrong(xep_buffer_t *buffer, void *stream)
{
    const shape_t s = {2, 1, 4, 2, 3, 0, XEP_INT64, 0};
    const int64_t idx[] = {4, 3, -2, -1, INT64_C(1) << 32, 0};
    const int32_t per_rank[] = {1, 1}, per_expert[] = {1, 0, 0, 1};
    xep_layout_args_t args = args_of(&s, buffer, stream);
    arrays_t a;
    void *there = cuda_rig_alloc(idx, sizeof idx);
    args.topk_idx = there;
    open_arrays(&a, &s, 2);
    xep_layout_t out = {.size = sizeof out, .tokens_per_rank = a.device[0], .tokens_per_expert = a.device[2]};
    MP_OK(xep_layout(&args, &out));
    fetch_arrays(&a, stream);
    MP_CHECK(memcmp(a.host[0], per_rank, sizeof per_rank) == 0);
    MP_CHECK(memcmp(a.host[2], per_expert, sizeof per_expert) == 0);
    close_arrays(&a);
    cuda_rig_free(there);
}

static void refuse(xep_buffer_t *buffer, void *stream, int staged)
{
    const shape_t s = {2, 1, 4, 2, 3, 0, XEP_INT64, 0};
    static int64_t idx[6];
    int32_t counts[2];
    void *there = cuda_rig_alloc(idx, sizeof idx), *elsewhere = cuda_rig_stream_elsewhere(mp_rank());
    xep_layout_args_t args = args_of(&s, buffer, stream);
    xep_layout_t out = XEP_LAYOUT_INIT;
    args.topk_idx = idx;
    MP_SAYS(XEP_ERR_INVALID, "invalid topk_idx: ", xep_layout(&args, &out));
    args.topk_idx = there;
    out.tokens_per_rank = counts;
    MP_SAYS(XEP_ERR_INVALID, "invalid tokens_per_rank: ", xep_layout(&args, &out));
    out.tokens_per_rank = NULL;
    args.experts = 100000;
    if (staged) MP_OK(xep_layout(&args, &out));
    else MP_FAILS(XEP_ERR_UNSUPPORTED, xep_layout(&args, &out));
    if (!staged) MP_REASON("too many for a layout in device memory: 100000, 2");
    args.experts = 4;
    args.buffer = NULL;
    if (stream != NULL) MP_FAILS(XEP_ERR_INVALID, xep_layout(&args, &out));
    if (stream != NULL) MP_REASON("invalid stream: ");
    args.buffer = buffer;
    args.stream = elsewhere;
    if (elsewhere != NULL) MP_FAILS(XEP_ERR_INVALID, xep_layout(&args, &out));
    if (elsewhere != NULL) MP_REASON("invalid stream: ");
    cuda_rig_free(there);
}

static void refuse_host(xep_group_t *group)
{
    const shape_t s = {2, 1, 4, 2, 0, 0, XEP_INT64, 0};
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer;
    xep_layout_t out = XEP_LAYOUT_INIT;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    const xep_layout_args_t args = args_of(&s, buffer, NULL);
    MP_SAYS(XEP_ERR_INVALID, "invalid buffer: it is in host memory", xep_layout(&args, &out));
    xep_buffer_destroy(buffer);
}

void cuda_layouts(xep_group_t *group, const char *mode, void *stream)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer;
    p.mode = mode;
    p.memory = XEP_MEMORY_CUDA;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check(&shapes[i], buffer, stream, 15);
    for (unsigned of = 0; of < 15; of++) check(&shapes[of % 2 ? 2 : 5], buffer, stream, of);
    check_wrong(buffer, stream);
    refuse(buffer, stream, cuda_job_stages(group));
    xep_buffer_destroy(buffer);
    refuse_host(group);
}
