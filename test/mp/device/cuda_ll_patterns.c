/* SPDX-License-Identifier: BSD-3-Clause */

/* Every 16-bit pattern, Inf, NaN and the smallest ones too, is cast and summed on devices as it is on the host. */
#include "cuda_parts.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_rig.h"
#include "mp_rig.h"

enum { TOKENS = 64, HIDDEN = 1024, EXPERTS = 8, ROW = HIDDEN * 2, BYTES = TOKENS * ROW };

/* One pass in order, where a group of 128 has neighbours; one in which every group has all sorts. */
static void fill(uint16_t *x, int mixed)
{
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) x[i] = (uint16_t)(mixed ? i * 40503u : i);
}

static xep_buffer_t *make_buffer(xep_group_t *group, xep_dtype_t dtype, xep_memory_t memory)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    p.mode = "ll", p.experts = EXPERTS, p.topk = 1, p.hidden = HIDDEN, p.tokens = TOKENS;
    p.dtype = p.combine_dtype = dtype;
    p.memory = memory;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

/* What a dispatch made of x, and a combine of that where it was not cast, in host memory. */
typedef struct result {
    uint64_t rows, row_bytes, scale_bytes;
    char *x, *scales, out[BYTES];
} result_t;

static void take(result_t *result, const xep_recv_t *recv, uint64_t rows, void *stream)
{
    result->rows = rows;
    result->row_bytes = (uint64_t)recv->hidden * xep_dtype_size(recv->dtype);
    result->scale_bytes = (uint64_t)recv->nscales * 4;
    MP_CHECK(recv->x_stride == result->row_bytes);
    result->x = malloc(rows * recv->x_stride + 1);
    result->scales = malloc(rows * recv->nscales * 4 + 1);
    MP_CHECK(result->x != NULL && result->scales != NULL);
    if (stream == NULL) {
        memcpy(result->x, recv->x, rows * recv->x_stride);
        if (recv->nscales != 0) memcpy(result->scales, recv->scales, rows * recv->nscales * 4);
        return;
    }
    cuda_rig_get(result->x, recv->x, rows * recv->x_stride, stream);
    if (recv->nscales != 0) cuda_rig_get(result->scales, recv->scales, rows * recv->nscales * 4, stream);
}

/* rows: how many to take; 0: those that came, in host memory. */
static void run(xep_buffer_t *buffer, xep_dispatch_args_t *a, float *weights, void *out, uint64_t rows,
                result_t *result)
{
    xep_handle_t *handle;
    a->topk_weights = weights;
    MP_OK(xep_dispatch(buffer, a, &handle, NULL));
    const xep_recv_t *recv = mp_recv(handle);
    take(result, recv, rows == 0 ? recv->rows : rows, a->stream);
    if (a->quant == XEP_QUANT_NONE) {
        xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
        b.x = recv->x;
        b.x_stride = recv->x_stride;
        b.out = out;
        b.stream = a->stream;
        MP_OK(xep_combine(handle, &b, NULL));
        if (a->stream == NULL) memcpy(result->out, out, BYTES);
        else cuda_rig_get(result->out, out, BYTES, a->stream);
    }
    xep_handle_release(handle);
}

static void compare(const result_t *host, const result_t *device, xep_quant_t quant)
{
    const size_t row = host->row_bytes, scales = host->scale_bytes;
    MP_CHECK(device->row_bytes == row && device->scale_bytes == scales);
    for (uint64_t r = 0; r < host->rows; r++)
        for (size_t i = 0; i < row; i++)
            if (host->x[r * row + i] != device->x[r * row + i])
                mp_fail(__FILE__, __LINE__, "quant %d: byte %zu of row %llu is %02x, on the host %02x", (int)quant, i,
                        (unsigned long long)r, (unsigned char)device->x[r * row + i],
                        (unsigned char)host->x[r * row + i]);
    if (quant == XEP_QUANT_NONE) MP_CHECK(memcmp(host->out, device->out, BYTES) == 0);
    else if (memcmp(host->scales, device->scales, host->rows * scales) != 0)
        mp_fail(__FILE__, __LINE__, "quant %d: scales differ from those on the host", (int)quant);
}

static const struct {
    xep_quant_t quant;
    float scale;
} casts[] = {{XEP_QUANT_NONE, 0},  {XEP_QUANT_E4M3, 0},       {XEP_QUANT_E4M3_POW2, 0}, {XEP_QUANT_UE8M0, 0},
             {XEP_QUANT_MXFP8, 0}, {XEP_QUANT_MXFP8_E5M2, 0}, {XEP_QUANT_MXFP4, 0},     {XEP_QUANT_NVFP4, 0},
             {XEP_QUANT_INT8, 0},  {XEP_QUANT_INT8_ROW, 0},   {XEP_QUANT_NVFP4, 0.01f}, {XEP_QUANT_E4M3_STATIC, 0.01f}};

static void run_type(xep_group_t *group, xep_dtype_t dtype, void *stream)
{
    static uint16_t x[TOKENS * HIDDEN];
    static result_t host, device;
    static char out[BYTES];
    static int64_t idx[TOKENS];
    static float weights[TOKENS];
    xep_buffer_t *here = make_buffer(group, dtype, XEP_MEMORY_HOST),
                 *there = make_buffer(group, dtype, XEP_MEMORY_CUDA);
    for (int t = 0; t < TOKENS; t++) idx[t] = t % EXPERTS, weights[t] = 0.75f + (float)t;
    void *idx_there = cuda_rig_alloc(idx, sizeof idx), *weights_there = cuda_rig_alloc(weights, sizeof weights);
    void *out_there = cuda_rig_alloc(NULL, BYTES);
    for (int mixed = 0; mixed < 2; mixed++) {
        fill(x, mixed);
        void *x_there = cuda_rig_alloc(x, sizeof x);
        for (size_t i = 0; i < sizeof casts / sizeof *casts; i++) {
            xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT, b = XEP_DISPATCH_ARGS_INIT;
            a.tokens = b.tokens = TOKENS;
            a.quant = b.quant = casts[i].quant;
            a.quant_scale = b.quant_scale = casts[i].scale;
            a.x = x, b.x = x_there;
            a.topk_idx = idx, b.topk_idx = idx_there;
            b.stream = stream;
            run(here, &a, weights, out, 0, &host);
            run(there, &b, weights_there, out_there, host.rows, &device);
            compare(&host, &device, casts[i].quant);
            free(host.x), free(host.scales), free(device.x), free(device.scales);
        }
        cuda_rig_free(x_there);
    }
    cuda_rig_free(idx_there);
    cuda_rig_free(weights_there);
    cuda_rig_free(out_there);
    xep_buffer_destroy(there);
    xep_buffer_destroy(here);
}

void cuda_ll_patterns(xep_group_t *group, void *stream)
{
    run_type(group, XEP_BF16, stream);
    run_type(group, XEP_FP16, stream);
}
