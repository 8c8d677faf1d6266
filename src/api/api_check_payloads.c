/* SPDX-License-Identifier: BSD-3-Clause */

/* Checks of what travels beside rows: scales and payloads. */
#include "api_check.h"

#include "error.h"
#include "packed_payloads.h"

enum { MOST_BYTES = 65536, MOST_ALIGNMENT = 64 };

static xep_status_t check_payload(const xep_payload_t *payload, uint32_t index, uint64_t tokens)
{
    if (payload->bytes == 0 || payload->bytes > MOST_BYTES)
        return xep_fail(XEP_ERR_INVALID, "invalid bytes of payload %u: %u (1 to %d)", index, payload->bytes,
                        MOST_BYTES);
    if (payload->alignment > MOST_ALIGNMENT || (payload->alignment & (payload->alignment - 1)) != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid alignment of payload %u: %u (a power of two up to %d)", index,
                        payload->alignment, MOST_ALIGNMENT);
    if (payload->data == NULL && tokens != 0)
        return xep_fail(XEP_ERR_INVALID, "data of payload %u is NULL, with %llu tokens", index,
                        (unsigned long long)tokens);
    if (payload->stride != 0 && payload->stride < payload->bytes)
        return xep_fail(XEP_ERR_INVALID, "invalid stride of payload %u: %zu (0, or at least its %u bytes)", index,
                        payload->stride, payload->bytes);
    return XEP_OK;
}

/* There they are packed behind the scales of their row. */
static xep_status_t check_on_device(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    const uint32_t words = xep_packed_words(a);
    if (a->quant != XEP_QUANT_NONE || (a->flags & XEP_DISPATCH_SCALES_BY_COLUMN) != 0)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid npayloads: %u (0 in device memory with %s)", a->npayloads,
                        a->quant != XEP_QUANT_NONE ? "a quant" : "XEP_DISPATCH_SCALES_BY_COLUMN");
    if (words > buffer->shape.scales)
        return xep_fail(XEP_ERR_INVALID,
                        "too little room beside a row: %u words of 4 bytes (params.scales: at least %u for these "
                        "scales and payloads)",
                        buffer->shape.scales, words);
    if (a->nscales != 0 && a->tokens != 0 && a->scales_token_stride < 4)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "invalid scales_token_stride: %td (at least 4 with payloads in device memory)",
                        a->scales_token_stride);
    return XEP_OK;
}

/* Whether there is room for all of them beside a row, only the mode knows: a cast may need some of it. */
static xep_status_t check_payloads(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    xep_status_t status = XEP_OK;
    if (a->npayloads > XEP_PAYLOADS_MOST)
        return xep_fail(XEP_ERR_INVALID, "invalid npayloads: %u (at most %d)", a->npayloads, XEP_PAYLOADS_MOST);
    if (a->payloads == NULL) return xep_fail(XEP_ERR_INVALID, "payloads is NULL, with %u npayloads", a->npayloads);
    for (uint32_t i = 0; i < a->npayloads && status == XEP_OK; i++)
        status = check_payload(&a->payloads[i], i, a->tokens);
    return status == XEP_OK && buffer->device != NULL ? check_on_device(buffer, a) : status;
}

/* Strides are signed here and may be anything that is aligned: scales come transposed, or out of a larger array. */
xep_status_t xep_check_beside(const xep_buffer_t *buffer, xep_dispatch_args_t *a)
{
    const ptrdiff_t width = (ptrdiff_t)xep_dtype_size(a->scales_dtype);
    const int is_word = a->scales_dtype == XEP_FP32 || a->scales_dtype == XEP_INT32;
    if (width == 0 || (!is_word && buffer->device != NULL))
        return xep_fail(XEP_ERR_INVALID, "invalid scales_dtype: %s (%s)", xep_dtype_name(a->scales_dtype),
                        width == 0 ? "one of XEP_DTYPE_LIST" : "in device memory: fp32 or int32");
    if (a->nscales * (uint64_t)width > buffer->shape.scales * UINT64_C(4))
        return xep_fail(XEP_ERR_INVALID, "invalid nscales: %u (at most %llu, by params.scales)", a->nscales,
                        buffer->shape.scales * 4ULL / (unsigned long long)width);
    if (a->scales == NULL && a->nscales > 0 && a->tokens > 0)
        return xep_fail(XEP_ERR_INVALID, "scales is NULL, with %u nscales", a->nscales);
    if (a->scales != NULL && a->nscales == 0)
        return xep_fail(XEP_ERR_INVALID, "invalid nscales: 0 (at least 1 where scales are given)");
    if (a->scales_stride == 0) a->scales_stride = width;
    if (a->scales_token_stride == 0) a->scales_token_stride = (ptrdiff_t)a->nscales * width;
    if ((intptr_t)a->scales % width != 0 || a->scales_stride % width != 0 || a->scales_token_stride % width != 0)
        return xep_fail(
            XEP_ERR_INVALID,
            "misaligned scales: scales_stride %td, scales_token_stride %td (multiples of %td bytes, as their address)",
            a->scales_stride, a->scales_token_stride, width);
    return a->npayloads != 0 ? check_payloads(buffer, a) : XEP_OK;
}
