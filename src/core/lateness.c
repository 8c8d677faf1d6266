/* SPDX-License-Identifier: BSD-3-Clause */

#include "lateness.h"

#include <stdlib.h>

#include "cpu.h"

xep_status_t xep_lateness_open(xep_buffer_t *buffer)
{
    xep_lateness_t *lateness = &buffer->lateness;
    uint32_t nranks = buffer->shape.nranks;
    size_t words = (size_t)buffer->nrequests * nranks;
    lateness->wait_ns = calloc(words, sizeof *lateness->wait_ns);
    lateness->ranks = calloc(words, sizeof *lateness->ranks);
    int whole = lateness->wait_ns != NULL && lateness->ranks != NULL;
    for (int kind = 0; kind < XEP_OP_KINDS; kind++) {
        lateness->waits[kind] = calloc(nranks, sizeof *lateness->waits[kind]);
        whole = whole && lateness->waits[kind] != NULL;
    }
    return whole ? XEP_OK : xep_fail(XEP_ERR_NO_MEMORY, "no memory for the waits for %u ranks", nranks);
}

void xep_lateness_close(xep_buffer_t *buffer)
{
    for (int kind = 0; kind < XEP_OP_KINDS; kind++) free(buffer->lateness.waits[kind]);
    free(buffer->lateness.ranks);
    free(buffer->lateness.wait_ns);
}

xep_late_t xep_lateness_of(const xep_buffer_t *buffer, uint32_t request)
{
    size_t first = (size_t)request * buffer->shape.nranks;
    return (xep_late_t){.ranks = buffer->lateness.ranks + first, .wait_ns = buffer->lateness.wait_ns + first};
}

void xep_lateness_pause(xep_op_t *op)
{
    xep_late_t *late = &op->late;
    if (late->since_ns == 0) return;
    uint64_t waited = xep_clock_ns() - late->since_ns;
    for (uint32_t i = 0; i < late->count; i++) late->wait_ns[late->ranks[i]] += waited;
    late->since_ns = 0;
}

/* There is one writer, so what it reads is what it wrote. */
static void add(_Atomic uint64_t *to, uint64_t value)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + value, memory_order_relaxed);
}

static void add_wait(xep_rank_waits_t *waits, uint64_t ns)
{
    add(&waits->count, 1);
    add(&waits->sum_ns, ns);
    if (ns > atomic_load_explicit(&waits->max_ns, memory_order_relaxed))
        atomic_store_explicit(&waits->max_ns, ns, memory_order_relaxed);
}

/* Where the caller wants them, or NULL: what ends an operation from outside may come after the end of its arguments. */
static uint64_t *wanted(const xep_request_t *req)
{
    if (req->status == XEP_ERR_BROKEN || req->status == XEP_ERR_ABORTED) return NULL;
    return req->op.kind == XEP_OP_DISPATCH ? req->dispatch.wait_ns : req->combine.wait_ns;
}

void xep_lateness_book(xep_request_t *req)
{
    xep_lateness_t *lateness = &req->buffer->lateness;
    xep_rank_waits_t *waits = lateness->waits[req->op.kind];
    uint64_t *wait_ns = req->op.late.wait_ns, *to = wanted(req);
    xep_lateness_pause(&req->op);
    for (uint32_t r = 0; r < req->buffer->shape.nranks; r++) {
        if (wait_ns[r] == 0) continue;
        add_wait(&waits[r], wait_ns[r]);
        if (to != NULL) to[r] += wait_ns[r];
        wait_ns[r] = 0;
    }
    add(&lateness->operations[req->op.kind], 1);
}

void xep_lateness_read(const xep_buffer_t *buffer, xep_op_kind_t kind, const xep_waits_t *to)
{
    const xep_rank_waits_t *waits = buffer->lateness.waits[kind];
    if (to->operations != NULL) *to->operations = atomic_load_explicit(&buffer->lateness.operations[kind], memory_order_relaxed);
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        if (to->count != NULL) to->count[r] = atomic_load_explicit(&waits[r].count, memory_order_relaxed);
        if (to->sum_ns != NULL) to->sum_ns[r] = atomic_load_explicit(&waits[r].sum_ns, memory_order_relaxed);
        if (to->max_ns != NULL) to->max_ns[r] = atomic_load_explicit(&waits[r].max_ns, memory_order_relaxed);
    }
}
