/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Operations here are called as a user would: nothing of the library but xep.h, and the data prepared before the clock
 * starts.
 */
#include "perf_ops.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_payloads.h"
#include "perf_cuda.h"
#include "perf_machine.h"

/* The same for every slot: they differ in what is received, not in what is sent. */
void perf_dispatch_args(const perf_t *perf, xep_dispatch_args_t *args_p)
{
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;

    args.tokens = perf->empty ? 0 : perf->tokens;
    args.x = perf_there(perf, perf->x);
    args.topk_idx = perf_there(perf, perf->idx);
    args.topk_weights = perf_there(perf, perf->weights);
    args.scales = perf_there(perf, perf->scales);
    args.stream = perf_stream(perf);
    args.nscales = perf->shape.nscales;
    args.arrangement = !perf->options.by_expert ? XEP_ROWS_BY_RANK
                       : perf->options.padded   ? XEP_ROWS_BY_EXPERT_PADDED
                                                : XEP_ROWS_BY_EXPERT_COMPACT; /* a mode without says so */
    if (perf->shape.npayloads != 0) args.payloads = perf->payloads, args.npayloads = perf->shape.npayloads;
    args.quant = perf->options.quant;
    args.quant_scale = perf->shape.quant_scale;
    args.wait_ns = perf->wait_ns;
    if (perf->sends != NULL) {
        args.x = perf->sends;
        args.x_stride = perf->sends_stride;
    }
    if (perf->in_place) args.flags = XEP_DISPATCH_IN_PLACE;
    if (perf->options.sum_at_owner) args.flags |= XEP_DISPATCH_SEND_WEIGHTS;
    if (perf->base != NULL && !perf->empty) {
        args.cached = perf->base;
        args.topk_idx = NULL;
        args.topk_weights = NULL;
    }
    *args_p = args;
}

void perf_fill_payloads(const perf_t *perf)
{
    for (uint32_t i = 0; i < perf->shape.npayloads; i++)
        for (uint64_t token = 0; token < perf->tokens; token++)
            oracle_fill_payload(&perf->shape, i, perf->info.rank, token,
                                (char *)perf->payloads[i].data + token * perf->payloads[i].bytes);
}

/* Each slot has sums of its own, so that operations in flight do not write to one place. */
void perf_combine_args(const perf_t *perf, uint32_t slot, xep_combine_args_t *args_p)
{
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;

    args.x = perf->options.copy_in ? perf_there(perf, perf->area) : NULL;
    args.out = perf_there(perf, perf->out + slot * perf->tokens * perf->sum_bytes);
    args.stream = perf_stream(perf);
    args.wait_ns = perf->wait_ns;
    args.quant = perf->options.combine_quant;
    args.quant_scale = perf->shape.combine_scale;
    if (perf->options.sum_at_owner) args.flags = XEP_COMBINE_SUM_AT_OWNER;
    *args_p = args;
}

/* Dependent multiplications and additions on what stays in the cache: it takes what it takes, and no memory's time. */
void perf_compute(uint64_t rounds)
{
    static const float factor = 0.999f;
    float values[256];

    for (size_t i = 0; i < 256; i++) values[i] = (float)i;
    for (uint64_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < 256; i++) values[i] = values[i] * factor + 1.0f;
    __asm__ volatile("" ::"r"(values) : "memory"); /* the values are needed, says this */
}

/* Waits for all. After an error they stay as they are: the run ends, and xep_last_error() still says why. */
static xep_status_t finish(perf_t *perf)
{
    perf->sent_ns = perf_clock_ns();
    if (perf->computing) perf_compute(perf->computing);
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        xep_status_t status = xep_request_wait(perf->request[slot]);
        if (status != XEP_OK) return status;
    }
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) xep_request_free(perf->request[slot]);
    return XEP_OK;
}

/*
 * Only then a call does all of an operation; else it is begun, and waited for in finish(), with the computing between.
 */
static int is_blocking(const perf_t *perf)
{
    return perf->options.slots == 1 && !perf->options.split && !perf->computing;
}

/* Unless it blocks, all slots are in flight before the first is waited for. The same rows are sent in each. */
static xep_status_t dispatch_all(perf_t *perf)
{
    const uint32_t slots = (uint32_t)perf->options.slots;
    xep_dispatch_args_t args;
    xep_status_t status;

    perf_dispatch_args(perf, &args);
    if (is_blocking(perf)) return xep_dispatch(perf->buffer, &args, &perf->handle[0], NULL);
    for (uint32_t slot = 0; slot < slots; slot++) {
        status = xep_dispatch(perf->buffer, &args, &perf->handle[slot], &perf->request[slot]);
        if (status != XEP_OK) return status;
    }
    return finish(perf);
}

/* Args anew for each slot, whose outputs are its own. Where a call blocks there is one slot, so none is left out. */
static xep_status_t combine_all(perf_t *perf)
{
    const uint32_t slots = (uint32_t)perf->options.slots;
    xep_combine_args_t args;
    xep_status_t status;

    for (uint32_t slot = 0; slot < slots; slot++) {
        perf_combine_args(perf, slot, &args);
        if (is_blocking(perf)) return xep_combine(perf->handle[0], &args, NULL);
        status = xep_combine(perf->handle[slot], &args, &perf->request[slot]);
        if (status != XEP_OK) return status;
    }
    return finish(perf);
}

/* On a device an operation is over when its stream is. */
static xep_status_t run_on_device(perf_t *perf, xep_status_t (*run)(perf_t *perf))
{
    perf_device_begin(perf);
    xep_status_t status = run(perf);
    if (status == XEP_OK) perf_device_end(perf);
    return status;
}

xep_status_t perf_dispatch(perf_t *perf)
{
    return run_on_device(perf, dispatch_all);
}

xep_status_t perf_combine(perf_t *perf)
{
    return run_on_device(perf, combine_all);
}

/* The same rows of memory that a combine reads, made here and put there; what nobody compares may be anything. */
static void put_outputs(perf_t *perf, uint32_t slot, void *y, size_t stride)
{
    const size_t bytes = perf_received(perf->handle[slot])->rows * stride;

    if (perf->timing) {
        perf_fill(perf, y, 0x3e, bytes);
        return;
    }
    char *outputs = oracle_alloc(bytes + 1);
    memset(outputs, 0x3e, bytes);
    oracle_fill_outputs(&perf->shape, perf->info.rank, perf_recv(perf, slot), outputs, stride);
    perf_put_to(perf, y, outputs, bytes);
    free(outputs);
}

/*
 * What the combine reads is written in the rows' own places where that is what is measured. combine_input() waits for
 * the readers of the last combine, so this may fail like an operation.
 */
xep_status_t perf_experts(perf_t *perf)
{
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        size_t stride = perf->sum_bytes;
        void *y = perf->options.copy_in ? perf_there(perf, perf->area) : NULL;
        xep_status_t status = y != NULL ? XEP_OK : xep_handle_combine_input(perf->handle[slot], &y, &stride);
        if (status != XEP_OK) return status;
        if (perf->cuda != NULL) put_outputs(perf, slot, y, stride);
        else oracle_fill_outputs(&perf->shape, perf->info.rank, perf_received(perf->handle[slot]), y, stride);
    }
    return XEP_OK;
}

/* Every slot, also one that has no handle. */
void perf_release(perf_t *perf)
{
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        xep_handle_release(perf->handle[slot]);
        perf->handle[slot] = NULL;
    }
}

/* The handle whose routing the cached dispatches use; it takes the one slot more that the buffer has. */
xep_status_t perf_open_base(perf_t *perf)
{
    xep_dispatch_args_t args;

    perf_dispatch_args(perf, &args);
    return xep_dispatch(perf->buffer, &args, &perf->base, NULL);
}
