/* SPDX-License-Identifier: BSD-3-Clause */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "error.h"
#include "group_wait.h"
#include "weights.h"

enum { PIECE_BYTES = 1 << 18, HUGE_BYTES = 2 << 20 };

xep_status_t xep_weights_open_copies(xep_weights_t *weights)
{
    const uint32_t count = weights->params.copies;
    const size_t bytes = (count * weights->stride + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    weights->copies = calloc(count, sizeof *weights->copies);
    char *base = weights->copies != NULL ? aligned_alloc(HUGE_BYTES, bytes) : NULL;
    if (base == NULL)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for copies of %u experts of %llu bytes", count,
                        (unsigned long long)weights->params.bytes);
    madvise(base, bytes, MADV_HUGEPAGE); /* refused: no harm */
    for (uint32_t i = 0; i < count; i++)
        weights->copies[i] = (xep_copy_t){.base = base + i * weights->stride, .expert = UINT32_MAX};
    return XEP_OK;
}

void xep_weights_close_copies(xep_weights_t *weights)
{
    if (weights->copies != NULL) free(weights->copies[0].base);
    free(weights->copies);
}

xep_status_t xep_weights_refuse_unfilled(const xep_weights_t *weights, uint32_t expert)
{
    return xep_fail(XEP_ERR_INVALID,
                    "the weights of expert %u are not filled: rank %u has not called "
                    "xep_weights_publish()",
                    expert, weights->owner[expert]);
}

/* ---- a read, step by step ---- */

/* XEP_OK: what was asked for is here. */
static xep_status_t read_bytes(xep_weights_t *weights, const xep_copy_t *copy, uint64_t offset, void *to,
                               uint64_t bytes)
{
    xep_wire_t *wire = &weights->heap->wire;
    return wire->ops->get(wire, weights->owner[copy->expert], offset, to, bytes);
}

static xep_status_t read_word(xep_weights_t *weights, xep_copy_t *copy)
{
    return read_bytes(weights, copy, xep_weights_word_offset(weights, copy->expert), &copy->word, sizeof copy->word);
}

/* As many pieces as there is room for now. */
static xep_status_t read_expert(xep_weights_t *weights, xep_copy_t *copy)
{
    xep_status_t status = XEP_OK;
    while (copy->done < weights->params.bytes && status == XEP_OK) {
        const uint64_t left = weights->params.bytes - copy->done, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        status = read_bytes(weights, copy, xep_weights_offset(weights, copy->expert) + copy->done,
                            copy->base + copy->done, bytes);
        if (status == XEP_OK) copy->done += bytes;
    }
    return status;
}

static void go_to(xep_copy_t *copy, xep_copy_step_t step)
{
    copy->step = step;
    copy->asked = 0;
    copy->done = 0;
}

/* A word is here. Odd: the owner is at it, so it is read until it is even. */
static xep_status_t take_word(const xep_weights_t *weights, xep_copy_t *copy)
{
    const int same = copy->word == copy->version;
    if (copy->word < 2) return xep_weights_refuse_unfilled(weights, copy->expert);
    if (same && copy->word % 2 == 0) {
        go_to(copy, XEP_COPY_IDLE);
        return XEP_OK;
    }
    copy->version = copy->word % 2 == 0 ? copy->word : 0;
    go_to(copy, copy->version != 0 ? XEP_COPY_BYTES : XEP_COPY_WORD);
    return XEP_OK;
}

/* XEP_OK: this step has ended. */
static xep_status_t take_step(xep_weights_t *weights, xep_copy_t *copy)
{
    xep_wire_t *wire = &weights->heap->wire;
    xep_status_t status = XEP_OK;
    if (!copy->asked) status = copy->step == XEP_COPY_BYTES ? read_expert(weights, copy) : read_word(weights, copy);
    if (status != XEP_OK) return status;
    copy->asked = 1;
    status = wire->ops->flush(wire);
    if (status != XEP_OK) return status;
    if (copy->step != XEP_COPY_BYTES) return take_word(weights, copy);
    go_to(copy, XEP_COPY_AGAIN);
    return XEP_OK;
}

/* XEP_INPROGRESS until it is idle. After an error it is a copy of nothing. */
static xep_status_t advance(xep_weights_t *weights, xep_copy_t *copy)
{
    xep_status_t status = XEP_OK;
    while (copy->step != XEP_COPY_IDLE && status == XEP_OK) {
        status = take_step(weights, copy);
        if (status == XEP_OK && copy->step == XEP_COPY_WORD) return XEP_INPROGRESS; /* it is being changed */
    }
    if (status == XEP_OK || status == XEP_INPROGRESS) return status;
    go_to(copy, XEP_COPY_IDLE);
    copy->version = 0;
    copy->status = status;
    return status;
}

/* ---- copies ---- */

/* One whose read is under way is not given up: bytes would still come. */
static xep_copy_t *find_copy(xep_weights_t *weights, uint32_t expert)
{
    xep_copy_t *oldest = NULL;
    for (uint32_t i = 0; i < weights->params.copies; i++) {
        xep_copy_t *copy = &weights->copies[i];
        if (copy->expert == expert) return copy;
        if (copy->step == XEP_COPY_IDLE && (oldest == NULL || copy->used < oldest->used)) oldest = copy;
    }
    if (oldest == NULL) return NULL;
    oldest->expert = expert;
    oldest->version = 0;
    return oldest;
}

/* NULL: the reads of all copies are under way. */
static xep_copy_t *begin(xep_weights_t *weights, uint32_t expert)
{
    xep_copy_t *copy = find_copy(weights, expert);
    if (copy == NULL) return NULL;
    copy->used = ++weights->used;
    copy->status = XEP_OK;
    if (copy->step == XEP_COPY_IDLE) go_to(copy, XEP_COPY_WORD);
    return copy;
}

typedef struct fetching {
    xep_weights_t *weights;
    uint32_t expert;
    xep_copy_t *copy; /* NULL: the reads of all are under way */
} fetching_t;

/* All reads, in the order of the copies: what was begun ahead goes on, too. */
static void advance_all(xep_weights_t *weights)
{
    for (uint32_t i = 0; i < weights->params.copies; i++)
        if (weights->copies[i].step != XEP_COPY_IDLE) (void)advance(weights, &weights->copies[i]);
}

static xep_status_t look(void *arg)
{
    fetching_t *fetching = arg;
    if (fetching->copy == NULL) fetching->copy = begin(fetching->weights, fetching->expert);
    if (fetching->copy == NULL) {
        advance_all(fetching->weights);
        return XEP_INPROGRESS;
    }
    if (fetching->copy->step != XEP_COPY_IDLE) return advance(fetching->weights, fetching->copy);
    return fetching->copy->status;
}

static void explain(void *arg, char *text, size_t bytes)
{
    const fetching_t *fetching = arg;
    snprintf(text, bytes, "the weights of expert %u of rank %u have not come", fetching->expert,
             fetching->weights->owner[fetching->expert]);
}

xep_status_t xep_weights_fetch(xep_weights_t *weights, uint32_t expert, const void **base_p)
{
    fetching_t fetching = {.weights = weights, .expert = expert};
    const xep_wait_t wait = {.look = look,
                             .arg = &fetching,
                             .deadline_ns = xep_deadline(weights->params.timeout_ms),
                             .explain = explain};
    xep_status_t status = xep_group_wait(weights->group, &wait);
    if (status == XEP_OK) *base_p = fetching.copy->base;
    return xep_group_explain(&wait, status);
}

xep_status_t xep_weights_begin_fetch(xep_weights_t *weights, uint32_t expert)
{
    xep_copy_t *copy = begin(weights, expert);
    if (copy == NULL)
        return xep_fail(XEP_ERR_BUSY, "all %u copies are being read (params.copies)", weights->params.copies);
    (void)advance(weights, copy); /* an error is that of whoever asks for the weights */
    return XEP_OK;
}

/* Nothing where a thread is in a call, which goes on with the reads itself. */
void xep_weights_run_task(xep_group_task_t *task)
{
    xep_weights_t *weights = (xep_weights_t *)(void *)((char *)task - offsetof(xep_weights_t, task));
    if (pthread_mutex_trylock(&weights->lock) != 0) return;
    advance_all(weights);
    pthread_mutex_unlock(&weights->lock);
}
