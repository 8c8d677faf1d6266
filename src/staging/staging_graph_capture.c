/* SPDX-License-Identifier: BSD-3-Clause */

/* What there is for captures, these, and the ends of what they and launches have begun. */
#include "staging_graph.h"

#include <stdlib.h>

#include "mode.h"
#include "packed_payloads.h"
#include "staging.h"
#include "staging_slots.h"

enum { RECORDS = 4096, ASK_THREADS = 32, COPY_THREADS = 512 };

static void *stream_of(const xep_request_t *req)
{
    return req->op.kind == XEP_OP_DISPATCH ? req->dispatch.stream : req->combine.stream;
}

/* ---- captures ---- */

static int want(const xep_request_t *req)
{
    xep_device_t *device = &req->buffer->device->device;
    return device->ops->is_captured(device, stream_of(req));
}

static int have(const xep_request_t *req)
{
    const xep_graphs_t *graphs = req->buffer->staging->graphs;
    return graphs != NULL && stream_of(req) == graphs;
}

/* Where rows will be is known before they come. */
static xep_status_t check(const xep_request_t *req)
{
    const xep_buffer_t *buffer = req->buffer;
    const xep_dispatch_args_t *a = &req->dispatch;
    xep_device_t *device = &buffer->device->device;
    const char *what = NULL;
    if (req->op.kind == XEP_OP_COMBINE) {
        if (req->combine.after != NULL) what = "after";
    } else if (!XEP_MODE_HAS(buffer->can.arrangements, XEP_ROWS_BY_EXPERT_COMPACT)) what = "a dispatch of this mode";
    else if (a->after != NULL) what = "after";
    else if (a->cached != NULL) what = "cached";
    else if ((a->flags & XEP_DISPATCH_BALANCE) != 0) what = "XEP_DISPATCH_BALANCE";
    else if (a->capacity == 0 && a->arrangement != XEP_ROWS_BY_EXPERT_PADDED) what = "capacity 0";
    if (what == NULL) return device->ops->check_stream(device, stream_of(req));
    return xep_fail(XEP_ERR_INVALID,
                    "invalid stream: %p is being captured (one that is not, with %s, where ranks are "
                    "not mapped)",
                    stream_of(req), what);
}

static xep_status_t keep(xep_graphs_t *graphs, const xep_request_t *req)
{
    if (graphs->nrecords == RECORDS)
        return xep_fail(XEP_ERR_NO_MEMORY, "the buffer has %u captured operations (at most %d, until a reset)",
                        graphs->nrecords, RECORDS);
    xep_captured_record_t *more = realloc(graphs->records, (graphs->nrecords + 1) * sizeof *more);
    if (more == NULL)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for operation %u that is captured", graphs->nrecords + 1);
    graphs->records = more;
    more[graphs->nrecords] =
        (xep_captured_record_t){.kind = req->op.kind, .handle = req->handle, .times_free = req->handle->times_free};
    if (req->op.kind == XEP_OP_DISPATCH) more[graphs->nrecords].dispatch = req->dispatch;
    else more[graphs->nrecords].combine = req->combine;
    /* of the call alone: often a local of the caller */
    more[graphs->nrecords].dispatch.wait_ns = more[graphs->nrecords].combine.wait_ns = NULL;
    return XEP_OK;
}

static xep_status_t enqueue(const xep_graphs_t *graphs, void *stream)
{
    xep_device_t *device = &graphs->buffer->device->device;
    xep_captured_t args = {.board = graphs->board,
                           .copies = graphs->list.copies,
                           .words = graphs->words,
                           .stop = device->stop,
                           .record = graphs->first + graphs->nrecords};
    const uint32_t there = device->multiprocessors, may = graphs->buffer->params.multiprocessors;
    const xep_launch_t ask = {graphs->ask, 1, ASK_THREADS, 0, 0, stream, &args},
                       copies = {graphs->copies, may < there ? may : there, COPY_THREADS, 0, 0, stream, &args};
    xep_status_t status = XEP_OK;
    for (int i = 0; i < 2 && status == XEP_OK; i++) {
        status = device->ops->launch(device, &ask);
        if (status == XEP_OK) status = device->ops->launch(device, &copies);
    }
    return status;
}

/* An operation begins without tokens; a combine has those of its dispatch, and sums what the slot has. */
static xep_status_t capture(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_graphs_t *graphs = buffer->staging->graphs;
    void *stream = stream_of(req);
    xep_status_t status = check(req);
    if (status == XEP_OK && req->op.kind == XEP_OP_DISPATCH) status = xep_packed_take(req); /* by nodes */
    if (status == XEP_OK) status = keep(graphs, req);
    if (status == XEP_OK) status = xep_graphs_take(graphs, req, 1);
    if (status == XEP_OK) status = enqueue(graphs, stream);
    if (status != XEP_OK) return status;
    graphs->records[graphs->nrecords].rows_on_device = buffer->staging->slots[req->op.slot].rows != NULL;
    graphs->records[graphs->nrecords++].number = ++graphs->numbered;
    if (req->op.kind == XEP_OP_DISPATCH) req->dispatch.tokens = 0;
    if (graphs->is_open) return XEP_OK;
    graphs->is_open = 1;
    graphs->task.run = xep_graphs_run_task;
    atomic_fetch_add_explicit(&buffer->group->active, 1, memory_order_relaxed); /* the thread runs tasks from now on */
    xep_group_add_task(buffer->group, &graphs->task);
    return XEP_OK;
}

/* Others have no record of it: the numbers of later ones would differ. Its nodes are there, so its record stays. */
static void refused(const xep_request_t *req)
{
    xep_graphs_t *graphs = req->buffer->staging->graphs;
    if (!have(req) || !graphs->list.is_capture) return;
    graphs->records[graphs->nrecords - 1].number = 0;
    graphs->numbered--;
}

/* What its combines are checked against; the call had none. */
static void show_tokens(const xep_graphs_t *graphs, xep_handle_t *handle)
{
    for (uint32_t i = 0; i < graphs->nrecords; i++)
        if (graphs->records[i].handle == handle && graphs->records[i].kind == XEP_OP_DISPATCH)
            handle->tokens = graphs->records[i].dispatch.tokens;
}

/* The mark is no count of refused calls, by which this rank would be behind. */
static xep_status_t show(xep_request_t *req, xep_status_t status)
{
    xep_graphs_t *graphs = req->buffer->staging->graphs;
    if (graphs->state == GRAPHS_RUN && req == graphs->req) {
        req->op.refused = req->buffer->refused;
        req->buffer->staging->to = &graphs->list.as;
        status = xep_staging_show_copies(req, status);
        req->buffer->staging->to = req->buffer->device;
        return status;
    }
    if (status == XEP_OK) xep_staging_show_counts(req);
    if (status == XEP_OK && req->op.kind == XEP_OP_DISPATCH) show_tokens(graphs, req->handle);
    return status;
}

/* ---- open and close ---- */

static int are_open(const xep_buffer_t *buffer)
{
    return buffer->staging->graphs->is_open;
}

static const xep_graphs_doors_t doors = {want, capture, refused, have, show, are_open, xep_graphs_look};

static xep_status_t allocate(xep_graphs_t *graphs)
{
    const xep_buffer_t *buffer = graphs->buffer;
    const xep_shape_t *shape = &buffer->shape;
    xep_device_t *device = &buffer->device->device;
    xep_copy_list_t *list = &graphs->list;
    void *board = NULL;
    list->most = 64 + 4 * (shape->most_experts + shape->nranks) + shape->scales;
    list->pinned = buffer->heap->base;
    list->pinned_bytes = buffer->heap->bytes;
    /* of each expert three words, and two halves of each pair */
    list->kept_most = (shape->most_experts + UINT64_C(8)) * (3 + shape->nranks) * sizeof(uint64_t);
    const uint64_t copies = list->most * sizeof *list->copies;
    xep_status_t status =
        device->ops->allocate(device, XEP_MEMORY_HOST, sizeof *graphs->board + copies + list->kept_most, &board);
    if (status == XEP_OK)
        status = device->ops->allocate(device, XEP_MEMORY_CUDA, sizeof(xep_captured_words_t), &graphs->words);
    if (status != XEP_OK) return status;
    graphs->board = board;
    list->copies = (void *)(graphs->board + 1);
    list->kept = (char *)list->copies + copies;
    xep_copy_list_begin(list, buffer->device);
    return XEP_OK;
}

static xep_status_t load_kernels(xep_graphs_t *graphs)
{
    xep_device_t *device = &graphs->buffer->device->device;
    xep_status_t status = device->ops->load(device, graphs->kernels.plugin->direct_image(), &graphs->module);
    if (status == XEP_OK) status = device->ops->find(device, graphs->module, "xep_cuda_ask", 0, &graphs->ask);
    if (status == XEP_OK) status = device->ops->find(device, graphs->module, "xep_cuda_copies", 0, &graphs->copies);
    return status;
}

/* Before anything is captured: meanwhile CUDA may refuse to load kernels and to allocate memory. */
xep_status_t xep_graphs_open(xep_buffer_t *buffer)
{
    xep_staging_t *staging = buffer->staging;
    xep_plugin_ref_t kernels;
    if (buffer->group->progress_thread == NULL || !staging->pinned || staging->direct != NULL) return XEP_OK;
    if (xep_plugin_load(&buffer->group->config, buffer->params.mode, XEP_MEMORY_CUDA, &kernels) != XEP_OK)
        return XEP_OK; /* a library built without CUDA */
    xep_graphs_t *graphs = kernels.plugin->direct_image == NULL ? NULL : calloc(1, sizeof *graphs);
    if (graphs == NULL) {
        const int has_none = kernels.plugin->direct_image == NULL; /* a mode of others */
        xep_plugin_unload(&kernels);
        if (has_none) return XEP_OK;
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for captured operations");
    }
    graphs->buffer = buffer;
    graphs->kernels = kernels;
    staging->graphs = graphs;
    staging->doors = &doors;
    xep_status_t status = load_kernels(graphs);
    if (status == XEP_OK) return allocate(graphs);
    xep_graphs_close(buffer);
    return status == XEP_ERR_UNSUPPORTED ? XEP_OK : status; /* all else works on older devices, too */
}

int xep_graphs_stop(xep_buffer_t *buffer)
{
    xep_graphs_t *graphs = buffer->staging->graphs;
    if (graphs == NULL || !graphs->is_open) return 0;
    xep_group_remove_task(buffer->group, &graphs->task);
    atomic_fetch_sub_explicit(&buffer->group->active, 1, memory_order_relaxed);
    if (graphs->state == GRAPHS_RUN) xep_request_drop(graphs->req);
    graphs->is_open = 0;
    return 1;
}

void xep_graphs_close(xep_buffer_t *buffer)
{
    xep_graphs_t *graphs = buffer->staging->graphs;
    xep_device_t *device = &buffer->device->device;
    if (graphs == NULL) return;
    if (graphs->module != NULL) device->ops->unload(device, graphs->module);
    device->ops->release(device, XEP_MEMORY_HOST, graphs->board);
    device->ops->release(device, XEP_MEMORY_CUDA, graphs->words);
    xep_plugin_unload(&graphs->kernels);
    free(graphs->records);
    free(graphs);
    buffer->staging->graphs = NULL;
    buffer->staging->doors = NULL;
}
