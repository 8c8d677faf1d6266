/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A UCX that knows CUDA puts from device to device: by cuda_ipc within a host, by GPUDirect over RDMA, over TCP by way
 * of pieces in host memory. Over cuda_ipc a put is there when it has completed, which a flush of the endpoint does not
 * wait for; over RDMA it is there after a flush that was posted behind it. So a signal waits for both, in this order.
 */

#include <inttypes.h>
#include <stdlib.h>

#include "error.h"
#include "ucp_heap.h"
#include "ucp_link.h"
#include "ucp_op.h"
#include "ucp_peer.h"
#include "ucp_settings.h"
#include "ucp_transport.h"

static xep_status_t check_knows_cuda(const xep_ucp_transport_t *transport)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    if (!xep_ucp_settings_keep_mappings()) /* CUDA unmaps when the device is idle: each put would wait for that */
        return xep_fail(XEP_ERR_INVALID, "invalid UCX_CUDA_IPC_CACHE: %s (y, with XEP_DIRECT=yes)",
                        getenv("UCX_CUDA_IPC_CACHE"));
    const ucs_status_t ret = ucp_context_query(transport->context, &attr);
    if (ret == UCS_OK && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) return XEP_OK;
    return xep_fail(XEP_ERR_UNSUPPORTED,
                    "XEP_DIRECT is yes, but UCX %s does not know the memory of CUDA devices (as that of the wheel "
                    "libucx-cu13 does; UCX_TLS must not leave out cuda_copy)",
                    xep_ucp_version());
}

static xep_status_t map(const xep_ucp_heap_t *heap, const xep_memory_range_t *range, ucp_mem_h *memory_p)
{
    const ucp_mem_map_params_t params = {
        .field_mask =
            UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = range->base,
        .length = range->bytes,
        .memory_type = UCS_MEMORY_TYPE_CUDA,
    };
    const ucs_status_t ret = ucp_mem_map(heap->transport->context, &params, memory_p);
    if (ret == UCS_OK) return XEP_OK;
    *memory_p = NULL;
    return xep_fail(XEP_ERR_TRANSPORT, "ucp_mem_map of %" PRIu64 " bytes of a CUDA device: %s", range->bytes,
                    ucs_status_string(ret));
}

static xep_status_t open_locked(xep_ucp_heap_t *heap)
{
    void *rkey;
    size_t rkey_bytes;
    xep_status_t status = check_knows_cuda(heap->transport);
    if (status == XEP_OK) status = map(heap, &heap->twin.rows, &heap->twin.memory);
    if (status == XEP_OK) status = map(heap, &heap->twin.inputs, &heap->twin.inputs_memory);
    if (status != XEP_OK) return status;
    const ucs_status_t ret = ucp_rkey_pack(heap->transport->context, heap->twin.memory, &rkey, &rkey_bytes);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_rkey_pack: %s", ucs_status_string(ret));
    status = xep_ucp_heap_add_key(heap, (uintptr_t)heap->twin.rows.base, rkey, rkey_bytes);
    ucp_rkey_buffer_release(rkey);
    return status;
}

xep_status_t xep_ucp_direct_open(xep_heap_wire_t *base, uint64_t begin, const xep_memory_range_t *rows,
                                 const xep_memory_range_t *inputs)
{
    xep_ucp_heap_t *heap = (xep_ucp_heap_t *)base;
    xep_ucp_lock(heap->transport);
    heap->twin.begin = begin;
    heap->twin.rows = *rows;
    heap->twin.inputs = *inputs;
    xep_status_t status = open_locked(heap);
    xep_ucp_unlock(heap->transport);
    return status;
}

/* ---- puts ---- */

static void ended(xep_ucp_op_t *op, ucs_status_t status)
{
    xep_ucp_link_t *link = op->link;
    link->direct_puts--;
    xep_ucp_op_done(op, status);
    xep_ucp_link_make_ready(link); /* signals may go on */
}

static void completed(void *request, ucs_status_t status, void *arg)
{
    ended(arg, status);
    ucp_request_free(request);
}

static bool is_in(const xep_memory_range_t *range, const void *address)
{
    return (uintptr_t)address - (uintptr_t)range->base < range->bytes;
}

/* As many as the mode likes: there are few, and all are long. */
static xep_status_t put_locked(xep_ucp_link_t *link, uint64_t there, const void *src, size_t bytes)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, 0);
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    ucp_request_param_t param = xep_ucp_op_param(op);
    /* what ends at once is short, and UCX reads short ones as memory of the host */
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.memory_type = UCS_MEMORY_TYPE_CUDA;
    param.cb.send = completed;
    /* without the handle UCX 1.22 takes the memory of a device for that of the host, and reads it */
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = is_in(&link->heap->twin.rows, src) ? link->heap->twin.memory : link->heap->twin.inputs_memory;
    link->puts++;
    link->direct_puts++;
    xep_ucp_link_touch(link);
    ucs_status_ptr_t request =
        ucp_put_nbx(xep_ucp_peer_of(link)->endpoint, src, bytes, link->twin_base + there, link->twin_rkey, &param);
    if (!UCS_PTR_IS_PTR(request)) link->direct_puts--;
    return xep_ucp_op_posted(op, request);
}

xep_status_t xep_ucp_direct_put(xep_heap_wire_t *base, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    xep_ucp_heap_t *heap = (xep_ucp_heap_t *)base;
    const uint64_t there = offset - heap->twin.begin;
    if (rank >= heap->transport->nranks || offset < heap->twin.begin || bytes > heap->twin.rows.bytes ||
        there > heap->twin.rows.bytes - bytes)
        return xep_fail(XEP_ERR_INVALID,
                        "invalid range in the device memory of rank %u: %zu bytes at %" PRIu64 " (of %" PRIu64
                        " at %" PRIu64 ")",
                        rank, bytes, offset, heap->twin.rows.bytes, heap->twin.begin);
    if (bytes != 0 && !is_in(&heap->twin.rows, src) && !is_in(&heap->twin.inputs, src))
        return xep_fail(XEP_ERR_INVALID, "invalid source of a put: %p (in the twin or the inputs of the heap)", src);
    xep_ucp_link_t *link = &heap->links[rank];
    xep_ucp_lock(heap->transport);
    xep_status_t status = xep_ucp_link_check(link);
    /*
     * UCX keeps what is put before it has connected the endpoint, and then sends it in messages, as if it were memory
     * of the host: so a flush comes first, that of the records of a dispatch.
     */
    if (status == XEP_OK && bytes == 0 && link->flushed == 0) status = XEP_INPROGRESS;
    if (status == XEP_OK && bytes != 0) status = xep_ucp_heap_count(heap, bytes, put_locked(link, there, src, bytes));
    xep_ucp_unlock(heap->transport);
    return status;
}
