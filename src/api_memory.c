/* SPDX-License-Identifier: BSD-3-Clause */

#include "api_memory.h"

#include "error.h"
#include "handle.h"

typedef struct array {
    const char *name;
    const void *address;
} array_t;

static xep_status_t check_arrays(const xep_buffer_t *buffer, const array_t *arrays, size_t count)
{
    const xep_pointers_t *pointers = buffer->pointers;
    for (const array_t *array = arrays; array < arrays + count; array++) {
        const int32_t device = array->address == NULL ? -1 : pointers->device_of(pointers, array->address);
        if (device >= 0)
            return xep_fail(XEP_ERR_INVALID,
                            "invalid %s: %p is memory of CUDA device %d (host memory: so is the buffer)", array->name,
                            array->address, device);
    }
    return XEP_OK;
}

/* Arrays without elements may be anything. */
xep_status_t xep_check_dispatch_memory(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    const array_t arrays[] = {{"recv_rows_p", a->recv_rows_p},
                              {"expert_stats", a->expert_stats},
                              {"x", a->x},
                              {"topk_idx", a->topk_idx},
                              {"topk_weights", a->topk_weights},
                              {"scales", a->scales}};
    if (buffer->pointers == NULL) return XEP_OK;
    return check_arrays(buffer, arrays, a->tokens == 0 ? 2 : sizeof arrays / sizeof arrays[0]);
}

xep_status_t xep_check_combine_memory(const xep_handle_t *h, const xep_combine_args_t *a)
{
    const array_t mine[] = {{"bias", a->bias[0]},
                            {"bias", a->bias[1]},
                            {"weights", a->weights},
                            {"out", a->out},
                            {"out_weights", a->out_weights},
                            {"missing", a->missing}};
    const array_t theirs[] = {{"x", a->x}, {"topk_weights", a->topk_weights}};
    xep_status_t status = XEP_OK;
    if (h->buffer->pointers == NULL) return XEP_OK;
    if (h->tokens != 0) status = check_arrays(h->buffer, mine, sizeof mine / sizeof mine[0]);
    if (status != XEP_OK || h->recv.rows == 0) return status;
    return check_arrays(h->buffer, theirs, sizeof theirs / sizeof theirs[0]);
}
