/* SPDX-License-Identifier: BSD-3-Clause */

/* Checks of what travels beside rows, where there is more than scales. */
#include "api_check.h"

#include "error.h"

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

/* Whether there is room for all of them beside a row, only the mode knows: a cast may need some of it. */
xep_status_t xep_check_payloads(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    xep_status_t status = XEP_OK;
    if (a->npayloads > XEP_PAYLOADS_MOST)
        return xep_fail(XEP_ERR_INVALID, "invalid npayloads: %u (at most %d)", a->npayloads, XEP_PAYLOADS_MOST);
    if (a->payloads == NULL) return xep_fail(XEP_ERR_INVALID, "payloads is NULL, with %u npayloads", a->npayloads);
    if (buffer->device != NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "invalid npayloads: %u (0 in device memory: payloads travel between hosts)", a->npayloads);
    for (uint32_t i = 0; i < a->npayloads && status == XEP_OK; i++)
        status = check_payload(&a->payloads[i], i, a->tokens);
    return status;
}
