/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An operation is a list of steps and the number of the one that is due, so a progress call costs one look at what that
 * step waits for.
 */
#include "steps.h"

#include <assert.h>

#include "kit.h"

/* The first step for this place, of this one and those behind it in a list; NULL where there is none. */
static const xep_step_t *find(const xep_step_t *step, unsigned place, unsigned kind)
{
    for (; step != NULL && step->run != NULL; step++)
        if (step->at == place && (step->kinds == 0 || (step->kinds & kind) != 0)) return step;
    return NULL;
}

/* What a step leaves out is as in the plain one. */
static xep_step_t complete(const xep_step_t *step, const xep_step_t *plain)
{
    assert(step->name != NULL || plain != NULL);
    if (step->name != NULL) return *step;
    xep_step_t whole = *plain;
    whole.run = step->run;
    whole.hears_through = step->hears_through;
    if (step->does != NULL) whole.does = step->does;
    if (step->store != NULL) whole.store = step->store;
    if (step->transfers != NULL) whole.transfers = step->transfers;
    return whole;
}

static void compose(const xep_step_t *plain, const xep_step_t *const *features, uint32_t count, unsigned kind,
                    xep_step_t *steps)
{
    const int combines = plain == xep_kit_mode.combine_steps;
    uint32_t n = 0, waits = 0;
    for (unsigned place = 0; place < XEP_PLACES; place++) {
        if (place != 0 && (place >= XEP_AT_DRAIN) != combines) continue;
        const xep_step_t *step = plain;
        for (uint32_t i = 0; i < count; i++)
            if (find(features[i], place, kind) != NULL) step = features[i];
        for (; (step = find(step, place, kind)) != NULL; step++) {
            steps[n] = complete(step, find(plain, place, kind));
            steps[n].opens = steps[n].word != NULL && waits++ == 0;
            n++;
            assert(n < XEP_STEPS_MOST);
        }
    }
    steps[n] = (xep_step_t){0};
}

void xep_steps_choose(void *mode, const xep_step_t *const *features, uint32_t count, const uint32_t *through)
{
    const xep_step_t *dispatch = xep_kit_mode.dispatch_steps, *combine = xep_kit_mode.combine_steps;
    xep_kit_t *kit = mode;
    compose(dispatch, features, count, XEP_KIND_PLAIN, kit->steps[XEP_OP_DISPATCH]);
    compose(dispatch, features, count, XEP_KIND_NEXT, kit->steps[XEP_OP_NEXT]);
    compose(dispatch, features, count, XEP_KIND_CASTS, kit->steps[XEP_STEPS_CASTS]);
    compose(combine, features, count, XEP_KIND_PLAIN, kit->steps[XEP_OP_COMBINE]);
    compose(combine, features, count, XEP_KIND_CASTS, kit->steps[XEP_STEPS_CASTS + XEP_OP_COMBINE]);
    compose(combine, features, count, XEP_KIND_PIECES, kit->steps[XEP_STEPS_PIECES + XEP_OP_COMBINE]);
    kit->through = through;
    for (uint32_t r = 0; through != NULL && r < kit->shape->nranks; r++)
        if (through[r] != XEP_NO_RANK) kit->hears_in[r] = kit->base[through[r]];
}

const xep_step_t *xep_steps_at(const void *mode, const xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const xep_kit_state_t *state = xep_kit_state(op);
    return &kit->steps[op->kind + state->casts + state->pieces][state->step];
}

/* A wire that is dead may say so once only, and to a call whose caller cannot be told: so it is written down. */
static xep_status_t remember(const xep_kit_t *kit, xep_op_t *op, xep_status_t status)
{
    xep_kit_state(op)->failed = status;
    return kit->env->fail(kit->env, op, status, NULL);
}

static void end_phase(const xep_kit_t *kit, const xep_op_t *op, const xep_step_t *step)
{
    const char *does = step->does != NULL ? step->does : step->name;
    xep_kit_state(op)->since_ns = xep_kit_end_phase(kit, op, does, xep_kit_state(op)->since_ns);
}

/*
 * Steps until one has to wait. What a step used to come up again (told, cursor) is forgotten when it is done, so a step
 * always begins as if it were the first. Where rows were coming at the begin, the progress that finds all of them there
 * goes no further than the begin would have.
 */
static xep_status_t advance(xep_kit_t *kit, xep_op_t *op)
{
    xep_kit_state_t *state = xep_kit_state(op);
    const xep_step_t *step = xep_steps_at(kit, op);
    while (step->run != NULL && !(step->receives && state->begins)) {
        xep_status_t status = step->agreed && state->verdict != XEP_OK ? XEP_OK : step->run(kit, op);
        if (status < 0) return remember(kit, op, status);
        if (status != XEP_OK) return status;
        if (state->since_ns != 0) end_phase(kit, op, step);
        step++;
        state->step++;
        state->told = 0;
        state->cursor = (xep_cursor_t){0};
    }
    state->begins = op->coming != 0;
    return step->run == NULL ? state->verdict : XEP_INPROGRESS;
}

/*
 * What was met is told by the next progress: a step may have sent something, and then the peers count on this
 * operation.
 */
xep_status_t xep_steps_begin(void *mode, xep_op_t *op)
{
    xep_kit_state(op)->since_ns = xep_kit_phase(mode);
    xep_kit_state(op)->begins = 1;
    advance(mode, op);
    xep_kit_state(op)->begins = op->coming != 0;
    return XEP_OK;
}

/* If all ranks are mapped there is no wire to drive, and a call that finds nothing new costs some loads. */
xep_status_t xep_steps_progress(void *mode, xep_op_t *op)
{
    xep_kit_t *kit = mode;
    xep_status_t failed = xep_kit_state(op)->failed;
    if (failed != XEP_OK) return failed;
    if (!kit->all_mapped) {
        xep_status_t status = kit->env->wire->ops->progress(kit->env->wire);
        if (status < 0) return remember(kit, op, status);
    }
    return advance(kit, op);
}

void xep_steps_explain(void *mode, const xep_op_t *op, char *text, size_t bytes)
{
    const xep_kit_t *kit = mode;
    const xep_step_t *step = xep_steps_at(kit, op);
    xep_words_wait_t wait = {.word = step->word,
                             .what = step->run != NULL ? step->name : "nothing",
                             .nranks = kit->shape->nranks,
                             .rank = kit->shape->rank,
                             .through = step->hears_through ? kit->through : NULL,
                             .counts_rows = step->counts_rows};
    xep_words_explain(&wait, mode, op, text, bytes);
}

xep_status_t xep_step_send(void *mode, xep_op_t *op)
{
    const xep_step_t *step = xep_steps_at(mode, op);
    return xep_send(mode, op, step->store, step->transfers);
}

xep_status_t xep_step_store(void *mode, xep_op_t *op)
{
    xep_send_stores(mode, op, xep_steps_at(mode, op)->store);
    return XEP_OK;
}

xep_status_t xep_step_put(void *mode, xep_op_t *op)
{
    return xep_send_transfers(mode, op, xep_steps_at(mode, op)->transfers);
}

static xep_opens_t find_opens(const xep_kit_t *kit, const xep_op_t *op, const xep_step_t *step)
{
    if (!step->opens) return XEP_OPENS_NOT;
    for (uint32_t i = 0; step->hears_through && kit->through != NULL && i < op->late.count; i++)
        if (xep_words_are_through(kit->through, kit->shape->rank, op->late.ranks[i])) return XEP_OPENS_THROUGH;
    return XEP_OPENS_DIRECTLY;
}

/* The wire may hold back words that the others wait for. */
static xep_status_t go_on_waiting(xep_kit_t *kit, xep_op_t *op)
{
    const xep_step_t *step = xep_steps_at(kit, op);
    op->late.what = step->name;
    op->late.opens = find_opens(kit, op, step);
    xep_status_t status = xep_kit_flush(kit);
    return status < 0 ? status : XEP_INPROGRESS;
}

/* A moment is waited here only once: behind that the caller's wait goes round. */
xep_status_t xep_step_wait(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const xep_word_fn word = xep_steps_at(kit, op)->word;
    if (op->waits && kit->first_looks != 0 && op->late.count == 0 &&
        xep_words_arrive_soon(word, mode, op, kit->first_looks))
        return XEP_OK;
    return xep_words_arrived(kit->env, word, mode, op) ? XEP_OK : go_on_waiting(mode, op);
}

xep_status_t xep_step_wait_through(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const xep_step_t *step = xep_steps_at(kit, op);
    if (kit->through == NULL) return xep_step_wait(mode, op);
    return xep_words_arrived_through(kit->env, step->word, kit->through, mode, op) ? XEP_OK : go_on_waiting(mode, op);
}

xep_status_t xep_step_flush(void *mode, xep_op_t *op)
{
    (void)op;
    return xep_kit_flush(mode);
}
