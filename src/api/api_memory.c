/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Where the process had loaded the driver of CUDA devices when it made a buffer in host memory, arguments are looked up
 * there. Else buffer->pointers is NULL, and what remains is that no output lies in the heap, of which each is one
 * comparison, and all together one branch.
 */
#include "api_memory.h"

#include "cuda/cuda_pointers.h"
#include "error.h"
#include "handle.h"

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

/* In the heap of this rank, or where its rows are in device memory. NULL is in neither. */
#define IS_WITHIN(_address, _base, _bytes) ((uintptr_t)(_address) - (uintptr_t)(_base) < (_bytes))
#define IS_IN_HEAP(_buffer, _address)                                     \
    (IS_WITHIN(_address, (_buffer)->heap->base, (_buffer)->heap->bytes) | \
     IS_WITHIN(_address, (_buffer)->env.regions[XEP_REGION_ROWS].base, (_buffer)->env.regions[XEP_REGION_ROWS].bytes))

static xep_status_t refuse_heap(const xep_buffer_t *buffer, const array_t *arrays, size_t count)
{
    for (const array_t *array = arrays; array < arrays + count; array++)
        if (IS_IN_HEAP(buffer, array->address))
            return xep_fail(XEP_ERR_INVALID,
                            "invalid %s: %p is memory of the buffer, which peers read and write (memory of your own)",
                            array->name, array->address);
    return XEP_OK;
}

/* Arrays without elements may be anything. The first two have their elements without tokens, too. */
xep_status_t xep_check_dispatch_memory(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    const array_t arrays[] = {{"recv_rows_p", a->recv_rows_p},
                              {"expert_stats", a->expert_stats},
                              {"x", a->x},
                              {"topk_idx", a->topk_idx},
                              {"topk_weights", a->topk_weights},
                              {"scales", a->scales}};
    const int in_heap = IS_IN_HEAP(buffer, a->recv_rows_p) | IS_IN_HEAP(buffer, a->expert_stats);
    if ((buffer->pointers == NULL) & !in_heap) return XEP_OK;
    if (in_heap) return refuse_heap(buffer, arrays, 2);
    return check_arrays(buffer, arrays, a->tokens == 0 ? 2 : sizeof arrays / sizeof arrays[0]);
}

/* Arrays of its own tokens, and those of the rows that it received: of either there may be none. */
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
    const int in_heap = (h->tokens != 0) & (IS_IN_HEAP(h->buffer, a->out) | IS_IN_HEAP(h->buffer, a->out_weights) |
                                            IS_IN_HEAP(h->buffer, a->missing));
    if ((h->buffer->pointers == NULL) & !in_heap) return XEP_OK;
    if (in_heap) return refuse_heap(h->buffer, mine + 3, 3);
    if (h->tokens != 0) status = check_arrays(h->buffer, mine, sizeof mine / sizeof mine[0]);
    if (status != XEP_OK || h->recv.rows == 0) return status;
    return check_arrays(h->buffer, theirs, sizeof theirs / sizeof theirs[0]);
}

xep_status_t xep_check_gather_memory(const xep_handle_t *h, const void *out)
{
    const array_t array = {"out", out};
    if (IS_IN_HEAP(h->buffer, out)) return refuse_heap(h->buffer, &array, 1);
    return h->buffer->pointers == NULL ? XEP_OK : check_arrays(h->buffer, &array, 1);
}

/*
 * Without tokens topk_idx and token_in_rank have no elements. No buffer keeps the driver's functions here, so they are
 * had for this call alone.
 */
xep_status_t xep_check_layout_memory(const xep_layout_args_t *a, const xep_layout_t *out)
{
    const array_t arrays[] = {{"tokens_per_rank", out->tokens_per_rank},
                              {"tokens_per_node", out->tokens_per_node},
                              {"tokens_per_expert", out->tokens_per_expert},
                              {"topk_idx", a->topk_idx},
                              {"token_in_rank", out->token_in_rank}};
    xep_pointers_t *pointers = xep_cuda_pointers_open();
    if (pointers == NULL) return XEP_OK;
    xep_status_t status = look_at(pointers, arrays, a->tokens == 0 ? 3 : sizeof arrays / sizeof arrays[0],
                                  "host memory, or a buffer in device memory as args.buffer");
    pointers->close(pointers);
    return status;
}
