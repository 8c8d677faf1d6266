/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An operation is a list of steps and the number of the one that is due, so a progress call costs one look at what that
 * step waits for.
 */
#include "steps.h"

#include <assert.h>

#include "kit.h"

static void choose(const xep_step_t *list, unsigned features, const uint32_t *through, xep_step_t *steps)
{
    uint32_t count = 0, waits = 0;
    for (; list != NULL && list->run != NULL; list++) {
        if ((features & list->with) != list->with || (features & list->without) != 0) continue;
        steps[count] = *list;
        steps[count].through = list->hears_through ? through : NULL;
        steps[count++].opens = list->word != NULL && waits++ == 0;
    }
    assert(count < XEP_STEPS_MOST);
    steps[count] = (xep_step_t){0};
}

void xep_steps_choose(void *mode, unsigned features, const uint32_t *through)
{
    xep_kit_t *kit = mode;
    const unsigned next = features | XEP_STEPS_OF_NEXT, casts = features | XEP_STEPS_OF_CASTS;
    for (uint32_t r = 0; through != NULL && r < kit->shape->nranks; r++)
        if (through[r] != XEP_NO_RANK) kit->hears_in[r] = kit->base[through[r]];
    choose(xep_kit_mode.dispatch_steps, features, through, kit->steps[XEP_OP_DISPATCH]);
    choose(xep_kit_mode.combine_steps, features, through, kit->steps[XEP_OP_COMBINE]);
    choose(xep_kit_mode.dispatch_steps, next, through, kit->steps[XEP_OP_NEXT]);
    choose(xep_kit_mode.dispatch_steps, casts, through, kit->steps[XEP_STEPS_CASTS]);
    choose(xep_kit_mode.combine_steps, casts, through, kit->steps[XEP_STEPS_CASTS + XEP_OP_COMBINE]);
}

static const xep_step_t *step_of(const xep_kit_t *kit, const xep_op_t *op)
{
    return &kit->steps[op->kind + xep_kit_state(op)->casts][xep_kit_state(op)->step];
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
    const xep_step_t *step = step_of(kit, op);
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
    const xep_step_t *step = step_of(kit, op);
    xep_words_wait_t wait = {.word = step->word,
                             .what = step->run != NULL ? step->name : "nothing",
                             .nranks = kit->shape->nranks,
                             .rank = kit->shape->rank,
                             .through = step->through,
                             .rows_bits = step->rows_bits};
    xep_words_explain(&wait, mode, op, text, bytes);
}

xep_status_t xep_step_send(void *mode, xep_op_t *op)
{
    const xep_step_t *step = step_of(mode, op);
    return xep_send(mode, op, step->store, step->transfers);
}

xep_status_t xep_step_store(void *mode, xep_op_t *op)
{
    xep_send_stores(mode, op, step_of(mode, op)->store);
    return XEP_OK;
}

xep_status_t xep_step_put(void *mode, xep_op_t *op)
{
    return xep_send_transfers(mode, op, step_of(mode, op)->transfers);
}

static xep_opens_t find_opens(const xep_kit_t *kit, const xep_op_t *op, const xep_step_t *step)
{
    if (!step->opens) return XEP_OPENS_NOT;
    for (uint32_t i = 0; step->through != NULL && i < op->late.count; i++)
        if (xep_words_are_through(step->through, kit->shape->rank, op->late.ranks[i])) return XEP_OPENS_THROUGH;
    return XEP_OPENS_DIRECTLY;
}

/* The wire may hold back words that the others wait for. */
static xep_status_t go_on_waiting(xep_kit_t *kit, xep_op_t *op)
{
    const xep_step_t *step = step_of(kit, op);
    op->late.what = step->name;
    op->late.opens = find_opens(kit, op, step);
    xep_status_t status = xep_kit_flush(kit);
    return status < 0 ? status : XEP_INPROGRESS;
}

/* A moment is waited here only once: behind that the caller's wait goes round. */
xep_status_t xep_step_wait(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const xep_word_fn word = step_of(kit, op)->word;
    if (op->waits && kit->first_looks != 0 && op->late.count == 0 &&
        xep_words_arrive_soon(word, mode, op, kit->first_looks))
        return XEP_OK;
    return xep_words_arrived(kit->env, word, mode, op) ? XEP_OK : go_on_waiting(mode, op);
}

xep_status_t xep_step_wait_through(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const xep_step_t *step = step_of(kit, op);
    if (step->through == NULL) return xep_step_wait(mode, op);
    return xep_words_arrived_through(kit->env, step->word, step->through, mode, op) ? XEP_OK : go_on_waiting(mode, op);
}

xep_status_t xep_step_flush(void *mode, xep_op_t *op)
{
    (void)op;
    return xep_kit_flush(mode);
}
