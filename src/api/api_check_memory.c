/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * If the process had loaded the CUDA driver when it made a buffer in host memory, the driver is asked about arguments.
 * Else buffer->pointers is NULL, and the only check is that no output lies in a heap. That is one branch for all
 * outputs of an operation; the list of heaps is searched only if one is near them.
 */
#include "api_check.h"

#include "cuda/cuda_device.h"
#include "error.h"
#include "request.h"

typedef struct array {
    const char *name; /* of the argument, for the sentence */
    const void *address;
} array_t;

/* The driver knows whose memory an address is: the host would crash on that of a device. */
static xep_status_t look_at(const xep_pointers_t *pointers, const array_t *arrays, size_t count, const char *allowed)
{
    for (const array_t *array = arrays; array < arrays + count; array++) {
        const int32_t device = array->address == NULL ? -1 : pointers->device_of(pointers, array->address);
        if (device >= 0)
            return xep_fail(XEP_ERR_INVALID, "invalid %s: %p is memory of CUDA device %d (%s)", array->name,
                            array->address, device, allowed);
    }
    return XEP_OK;
}

static xep_status_t check_arrays(const xep_buffer_t *buffer, const array_t *arrays, size_t count)
{
    return look_at(buffer->pointers, arrays, count, "host memory: so is the buffer");
}

xep_status_t xep_check_output(const char *name, const void *address)
{
    if (!xep_heap_holds(address)) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid %s: %p is memory of a buffer, which peers read and write (memory of your own)", name,
                    address);
}

static xep_status_t check_outputs(const array_t *arrays, size_t count)
{
    xep_status_t status = XEP_OK;
    for (const array_t *array = arrays; array < arrays + count && status == XEP_OK; array++)
        status = xep_check_output(array->name, array->address);
    return status;
}

/* Functions of their own, so that operations fill these tables only if needed. */

/* Arrays without elements may be anything. The first three, the outputs, have their elements without tokens, too. */
static __attribute__((noinline)) xep_status_t check_dispatch(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    const array_t arrays[] =
        {{"recv_rows_p", a->recv_rows_p}, {"expert_stats", a->expert_stats}, {"wait_ns", a->wait_ns}, {"x", a->x},
         {"topk_idx", a->topk_idx},       {"topk_weights", a->topk_weights}, {"scales", a->scales}};
    xep_status_t status = check_outputs(arrays, 3);
    if (status != XEP_OK || buffer->pointers == NULL) return status;
    return check_arrays(buffer, arrays, a->tokens == 0 ? 3 : sizeof arrays / sizeof arrays[0]);
}

/* Arrays of this rank's tokens, and of its received rows: either may have no elements, except the first. */
static __attribute__((noinline)) xep_status_t check_combine(const xep_handle_t *h, const xep_combine_args_t *a)
{
    const array_t mine[] = {{"wait_ns", a->wait_ns}, {"out", a->out},      {"out_weights", a->out_weights},
                            {"missing", a->missing}, {"bias", a->bias[0]}, {"bias", a->bias[1]},
                            {"weights", a->weights}};
    const array_t theirs[] = {{"x", a->x}, {"topk_weights", a->topk_weights}};
    xep_status_t status = check_outputs(mine, h->tokens == 0 ? 1 : 4);
    if (status != XEP_OK || h->buffer->pointers == NULL) return status;
    status = check_arrays(h->buffer, mine, h->tokens == 0 ? 1 : sizeof mine / sizeof mine[0]);
    if (status != XEP_OK || h->recv.rows == 0) return status;
    return check_arrays(h->buffer, theirs, sizeof theirs / sizeof theirs[0]);
}

xep_status_t xep_check_dispatch_memory(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    const int is_near =
        xep_heap_is_near(a->recv_rows_p) | xep_heap_is_near(a->expert_stats) | xep_heap_is_near(a->wait_ns);
    return is_near || buffer->pointers != NULL ? check_dispatch(buffer, a) : XEP_OK;
}

xep_status_t xep_check_combine_memory(const xep_handle_t *h, const xep_combine_args_t *a)
{
    const int is_near = xep_heap_is_near(a->wait_ns) | xep_heap_is_near(a->out) | xep_heap_is_near(a->out_weights) |
                        xep_heap_is_near(a->missing);
    return is_near || h->buffer->pointers != NULL ? check_combine(h, a) : XEP_OK;
}

xep_status_t xep_check_gather_memory(const xep_handle_t *h, const void *out)
{
    const array_t array = {"out", out};
    xep_status_t status = check_outputs(&array, 1);
    return status != XEP_OK || h->buffer->pointers == NULL ? status : check_arrays(h->buffer, &array, 1);
}

xep_status_t xep_check_waits_memory(const xep_waits_t *out)
{
    const array_t arrays[] = {{"operations", out->operations},
                              {"count", out->count},
                              {"sum_ns", out->sum_ns},
                              {"max_ns", out->max_ns}};
    return check_outputs(arrays, sizeof arrays / sizeof arrays[0]);
}

/*
 * Without tokens topk_idx and token_in_rank have no elements. A layout without a buffer looks the driver's functions up
 * for this call alone.
 */
xep_status_t xep_check_layout_memory(const xep_layout_args_t *a, const xep_layout_t *out)
{
    const array_t arrays[] = {{"tokens_per_rank", out->tokens_per_rank},
                              {"tokens_per_node", out->tokens_per_node},
                              {"tokens_per_expert", out->tokens_per_expert},
                              {"token_in_rank", out->token_in_rank},
                              {"topk_idx", a->topk_idx}};
    xep_status_t status = check_outputs(arrays, a->tokens == 0 ? 3 : 4);
    xep_pointers_t *pointers = status == XEP_OK && a->buffer == NULL ? xep_cuda_pointers_open() : NULL;
    if (pointers == NULL) return status;
    status = look_at(pointers, arrays, a->tokens == 0 ? 3 : sizeof arrays / sizeof arrays[0],
                     "host memory, or a buffer in device memory as args.buffer");
    pointers->close(pointers);
    return status;
}
