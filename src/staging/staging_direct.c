/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that are direct: their twin, and the kernels that gather and sum them (xep/direct.h). Not over nodes, in pieces
 * or in place, nor where rows may be left out; and a dispatched row has to fit where the row that is returned goes.
 */
#include "staging.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "group_wait.h"
#include "log.h"
#include "request.h"
#include "staging_slots.h"

enum { SUMS = 3, THREADS = 1024 };

struct xep_direct {
    xep_plugin_ref_t kernels; /* the mode for device memory, which has them */
    void *module, *gather, *sum[SUMS];
    void *stream;
    char *twin;
    uint64_t begin, bytes; /* in the heap */
    char *lists;           /* pinned, [slots] of the arguments of a kernel */
    uint64_t lists_bytes;
};

/* ---- what there is ---- */

int xep_staging_wants_direct(const xep_config_t *config, const xep_plugin_t *plugin, const xep_shape_t *shape,
                             const xep_buffer_params_t *params)
{
    return config->direct && plugin->goes_direct && shape->nranks > 1 && shape->nodes == shape->nranks &&
           !shape->in_pieces && !shape->sends_in_place &&
           (shape->topk < shape->nranks ? shape->topk : shape->nranks) + 2 <= XEP_DIRECT_MOST_ROWS &&
           params->on_failure == XEP_ON_FAILURE_FAIL && shape->elem_bytes <= shape->combine_elem_bytes;
}

static xep_status_t load_kernels(xep_buffer_t *buffer, struct xep_direct *direct)
{
    static const char *const names[SUMS] = {"xep_cuda_sum_bf16", "xep_cuda_sum_fp16", "xep_cuda_sum_fp32"};
    xep_device_t *device = &buffer->device->device;
    xep_status_t status =
        xep_plugin_load(&buffer->group->config, buffer->params.mode, XEP_MEMORY_CUDA, &direct->kernels);
    if (status != XEP_OK) return status;
    if (direct->kernels.plugin->direct_image == NULL)
        return xep_fail(XEP_ERR_PLUGIN, "mode \"%s\" has no kernels for XEP_DIRECT=yes", direct->kernels.plugin->name);
    status = device->ops->load(device, direct->kernels.plugin->direct_image(), &direct->module);
    if (status == XEP_OK) status = device->ops->find(device, direct->module, "xep_cuda_gather", 0, &direct->gather);
    for (int i = 0; i < SUMS && status == XEP_OK; i++)
        status = device->ops->find(device, direct->module, names[i], 0, &direct->sum[i]);
    return status;
}

/* Room for the lists of a kernel. A gather has tokens by rank, begins and targets; a sum terms, begins and sources. */
static uint64_t lists_bytes(const xep_shape_t *shape)
{
    const uint64_t ranks = shape->nranks, dests = shape->tokens * (shape->topk < ranks ? shape->topk : ranks);
    return dests * sizeof(xep_direct_term_t) + (shape->tokens + 1 + ranks + 1) * sizeof(uint64_t) +
           ranks * sizeof(xep_direct_source_t);
}

static xep_status_t allocate(xep_buffer_t *buffer, struct xep_direct *direct)
{
    xep_device_t *device = &buffer->device->device;
    const xep_region_t *rows = &buffer->env.regions[XEP_REGION_ROWS];
    void *twin = NULL, *lists = NULL;
    direct->begin = rows->offset;
    direct->bytes = rows->bytes;
    direct->lists_bytes = lists_bytes(&buffer->shape);
    xep_status_t status = device->ops->allocate(device, XEP_MEMORY_CUDA, rows->bytes, &twin);
    direct->twin = twin;
    if (status == XEP_OK)
        status = device->ops->allocate(device, XEP_MEMORY_HOST, buffer->shape.slots * direct->lists_bytes, &lists);
    direct->lists = lists;
    if (status == XEP_OK) status = buffer->device->ops->own_stream(buffer->device, &direct->stream);
    return status == XEP_OK ? device->ops->sync(device) : status;
}

xep_status_t xep_staging_open_direct(xep_buffer_t *buffer)
{
    const xep_transport_ops_t *transport = buffer->group->transport->ops;
    if (!xep_staging_wants_direct(&buffer->group->config, buffer->plugin.plugin, &buffer->shape, &buffer->params))
        return XEP_OK;
    struct xep_direct *direct = calloc(1, sizeof *direct);
    if (direct == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for direct rows");
    buffer->staging->direct = direct;
    xep_status_t status = load_kernels(buffer, direct);
    if (status == XEP_OK) status = allocate(buffer, direct);
    const xep_memory_range_t rows = {direct->twin, direct->bytes},
                             inputs = {buffer->staging->there, buffer->shape.slots * buffer->staging->views.bytes};
    if (status == XEP_OK) status = transport->heap_twin(buffer->heap, direct->begin, &rows, &inputs);
    if (status == XEP_OK) xep_log(XEP_LOG_INFO, "rows go from device to device");
    return status;
}

/*
 * The first put to a rank, of zeros over zeros. Over cuda_ipc it maps the rank's twin. Where UCX has mapped a former
 * one at its address it unmaps that, for which CUDA waits until the device has done all that it was given, also what
 * waits for a rank that waits for this put: so not under an operation. Before it comes a put to the host's rows, which
 * nobody uses: a first put to a device ends the process unless a flush has connected the two.
 */
typedef struct first_puts {
    const xep_buffer_t *buffer;
    uint32_t next; /* to each rank's host, then to its twin */
} first_puts_t;

static xep_status_t put_zeros(const xep_buffer_t *buffer, uint32_t rank, int to_twin)
{
    enum { ZEROS = 16 };
    const xep_transport_ops_t *transport = buffer->group->transport->ops;
    const struct xep_direct *direct = buffer->staging->direct;
    xep_heap_wire_t *heap = buffer->heap;
    if (rank == buffer->shape.rank || direct->bytes < ZEROS) return XEP_OK;
    if (to_twin) return transport->heap_put_direct(heap, rank, direct->begin, direct->twin, ZEROS);
    return heap->wire.ops->put(&heap->wire, rank, direct->begin, (char *)heap->base + direct->begin, ZEROS);
}

static xep_status_t look_at_first_puts(void *arg)
{
    first_puts_t *puts = arg;
    xep_wire_t *wire = &puts->buffer->heap->wire;
    const uint32_t nranks = puts->buffer->shape.nranks;
    xep_status_t status = XEP_OK;
    for (; puts->next < 2 * nranks && status == XEP_OK; puts->next += status == XEP_OK) {
        if (puts->next == nranks) status = wire->ops->flush(wire);
        if (status == XEP_OK) status = put_zeros(puts->buffer, puts->next % nranks, puts->next >= nranks);
    }
    return status == XEP_OK ? wire->ops->flush(wire) : status;
}

static void explain_first_puts(void *arg, char *text, size_t bytes)
{
    const first_puts_t *puts = arg;
    snprintf(text, bytes, "buffer of mode %s: a first put to the device of each rank",
             puts->buffer->plugin.plugin->name);
}

xep_status_t xep_staging_connect_direct(const xep_buffer_t *buffer)
{
    first_puts_t puts = {.buffer = buffer};
    const xep_wait_t wait = {.look = look_at_first_puts,
                             .arg = &puts,
                             .deadline_ns = xep_deadline(buffer->group->timeout_ms),
                             .explain = explain_first_puts};
    if (buffer->staging == NULL || buffer->staging->direct == NULL) return XEP_OK;
    return xep_group_explain(&wait, xep_group_wait(buffer->group, &wait));
}

void xep_staging_close_direct(xep_buffer_t *buffer)
{
    struct xep_direct *direct = buffer->staging->direct;
    xep_device_t *device = &buffer->device->device;
    if (direct == NULL) return;
    if (direct->module != NULL) device->ops->unload(device, direct->module);
    device->ops->release(device, XEP_MEMORY_CUDA, direct->twin);
    device->ops->release(device, XEP_MEMORY_HOST, direct->lists);
    xep_plugin_unload(&direct->kernels);
    free(direct);
}

const xep_direct_ops_t *xep_staging_direct(const xep_buffer_t *buffer)
{
    return buffer->staging != NULL && buffer->staging->direct != NULL ? &xep_staging_direct_ops : NULL;
}

int xep_staging_goes_direct(const xep_request_t *req)
{
    const xep_quant_t quant = req->op.kind == XEP_OP_COMBINE ? req->combine.quant : req->dispatch.quant;
    return req->buffer->staging->direct != NULL && quant == XEP_QUANT_NONE;
}

/* ---- operations ---- */

static struct xep_direct *direct_of(const xep_op_t *op)
{
    return xep_request_of(op)->buffer->staging->direct;
}

char *xep_staging_twin(const xep_buffer_t *buffer, const void *address)
{
    const struct xep_direct *direct = buffer->staging->direct;
    const uint64_t at = (uint64_t)((uintptr_t)address - (uintptr_t)buffer->heap->base) - direct->begin;
    return at < direct->bytes ? direct->twin + at : (char *)(uintptr_t)address;
}

/* The slot's lists, one behind the other. */
static void *keep(char **end_p, const void *list, uint64_t count, size_t bytes)
{
    char *to = *end_p;
    if (list != NULL) memcpy(to, list, count * bytes);
    *end_p += (count * bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
    return to;
}

/*
 * A block for each multiprocessor that the buffer may use. On a stream of its own: what the kernel reads is there, and
 * the caller may have enqueued something behind the call that waits for the end of the operation, on any rank. The
 * caller's stream goes on behind the kernel, however the operation ends: it may then write or free what the kernel
 * reads and writes.
 */
static xep_status_t enqueue(const xep_op_t *op, void *kernel, void *args)
{
    const xep_buffer_t *buffer = xep_request_of(op)->buffer;
    xep_heap_device_t *device = buffer->device;
    void *own = buffer->staging->direct->stream,
         *callers = op->kind == XEP_OP_COMBINE ? op->combine->stream : op->dispatch->stream;
    const uint32_t there = device->device.multiprocessors, may = buffer->params.multiprocessors;
    const xep_launch_t launch = {kernel, may < there ? may : there, THREADS, 0, 0, own, args};
    xep_status_t status = xep_staging_check_stream(buffer, callers); /* again: much may have come since the call */
    if (status == XEP_OK) status = device->device.ops->launch(&device->device, &launch);
    if (status == XEP_OK) status = device->ops->note(device, staged_note(op->slot, 0), own);
    if (status == XEP_OK) status = device->ops->after_note(device, staged_note(op->slot, 0), callers);
    return status == XEP_ERR_INVALID ? XEP_ERR_TRANSPORT : status; /* which no other rank gets */
}

static xep_status_t direct_gather(const xep_env_t *env, const xep_op_t *op, const xep_direct_gather_t *given)
{
    const struct xep_direct *direct = direct_of(op);
    const xep_buffer_t *buffer = xep_request_of(op)->buffer;
    char *end = direct->lists + op->slot * direct->lists_bytes;
    xep_direct_gather_t gather = *given;
    const uint64_t rows = given->begin[given->nranks];
    (void)env;
    gather.x = op->dispatch->x;
    gather.x_stride = op->dispatch->x_stride;
    gather.begin = keep(&end, given->begin, given->nranks + UINT64_C(1), sizeof *given->begin);
    char **to = keep(&end, NULL, given->nranks, sizeof *to);
    gather.tokens = keep(&end, given->tokens, rows, sizeof *given->tokens);
    for (uint32_t r = 0; r < given->nranks; r++) to[r] = xep_staging_twin(buffer, given->to[r]);
    gather.to = to;
    return enqueue(op, direct->gather, &gather);
}

static xep_status_t direct_sum(const xep_env_t *env, const xep_op_t *op, const xep_direct_sum_t *given, uint32_t nranks)
{
    const struct xep_direct *direct = direct_of(op);
    const xep_buffer_t *buffer = xep_request_of(op)->buffer;
    const xep_combine_args_t *a = op->combine;
    char *end = direct->lists + op->slot * direct->lists_bytes;
    xep_direct_sum_t sum = *given;
    (void)env;
    sum.first = keep(&end, given->first, given->tokens + UINT64_C(1), sizeof *given->first);
    xep_direct_source_t *sources = keep(&end, given->sources, nranks, sizeof *sources);
    sum.terms = keep(&end, given->terms, given->first[given->tokens], sizeof *given->terms);
    for (uint32_t r = 0; r < nranks; r++) sources[r].x = xep_staging_twin(buffer, sources[r].x);
    sum.sources = sources;
    for (int b = 0; b < 2; b++) {
        sum.bias[b] = a->bias[b];
        sum.bias_stride[b] = a->bias_stride[b];
    }
    sum.out = a->out;
    sum.out_stride = a->out_stride;
    sum.hidden = a->hidden;
    void *kernel = direct->sum[a->dtype == XEP_BF16 ? 0 : a->dtype == XEP_FP16 ? 1 : 2];
    return enqueue(op, kernel, &sum);
}

static xep_status_t direct_reached(const xep_env_t *env, const xep_op_t *op)
{
    xep_heap_device_t *device = xep_request_of(op)->buffer->device;
    (void)env;
    return device->ops->reached(device, staged_note(op->slot, 0));
}

static xep_status_t direct_put(const xep_env_t *env, const xep_op_t *op, uint32_t rank, uint64_t offset,
                               const void *src, size_t bytes)
{
    const xep_buffer_t *buffer = xep_request_of(op)->buffer;
    (void)env;
    return buffer->group->transport->ops->heap_put_direct(buffer->heap, rank, offset, xep_staging_twin(buffer, src),
                                                          bytes);
}

const xep_direct_ops_t xep_staging_direct_ops = {
    .gather = direct_gather,
    .sum = direct_sum,
    .reached = direct_reached,
    .put = direct_put,
};
