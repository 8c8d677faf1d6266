/* SPDX-License-Identifier: BSD-3-Clause */

/* Which steps a buffer has. What the steps do then, and what errors they tell, the simulator plays (kit.mutants). */
#include <string.h>

#include "kit.h"
#include "unit.h"

static xep_status_t run(void *mode, xep_op_t *op)
{
    (void)mode, (void)op;
    return XEP_OK;
}

static xep_status_t another(void *mode, xep_op_t *op)
{
    return run(mode, op);
}

static void store(const void *mode, const xep_op_t *op, uint32_t rank)
{
    (void)mode, (void)op, (void)rank;
}

static const _Atomic uint64_t *word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    (void)mode, (void)op, (void)rank, (void)value_p;
    return NULL;
}

static const xep_step_t plain[] = {
    {.at = XEP_AT_DRAIN, .name = "replaced", .run = run},
    {.at = XEP_AT_INPUT, .name = "replaced for some", .run = run},
    {.at = XEP_AT_READY, .name = "first of two", .run = run},
    {.at = XEP_AT_READY, .name = "second of two", .run = run},
    {.at = XEP_AT_SUM, .name = "not of casts", .run = run, .kinds = XEP_KIND_PLAIN | XEP_KIND_PIECES},
    {.at = XEP_AT_READ, .name = "with a word", .run = run, .word = word, .agreed = 1},
    {0},
};
static const xep_step_t first[] = {
    {.at = XEP_AT_MEMORY, .name = "of dispatches", .run = run},
    {.at = XEP_AT_DRAIN, .name = "replaced, too", .run = run},
    {.at = XEP_AT_INPUT, .name = "of casts", .run = run, .kinds = XEP_KIND_CASTS},
    {.at = XEP_AT_INPUT, .name = "of pieces", .run = run, .kinds = XEP_KIND_PIECES},
    {0},
};
static const xep_step_t last[] = {
    {.at = XEP_AT_DRAIN, .name = "last", .run = run},
    {.at = XEP_AT_OFFER, .name = "between", .run = run},
    {.at = XEP_AT_READ, .run = another, .store = store},
    {0},
};

static const xep_step_t plain_dispatch[] = {
    {.name = "next", .run = run, .kinds = XEP_KIND_NEXT},
    {.name = "no next", .run = run, .kinds = XEP_KIND_PLAIN | XEP_KIND_CASTS},
    {.name = "opens", .run = run, .word = word},
    {.name = "later", .run = run, .word = word},
    {0},
};

const xep_kit_mode_t xep_kit_mode = {.dispatch_steps = plain_dispatch, .combine_steps = plain};

static void compare(const xep_step_t *chosen, uint32_t count, const char *const *names)
{
    for (uint32_t i = 0; i < count; i++) assert_string_equal(chosen[i].name, names[i]);
    assert_null(chosen[count].run);
}
#define COMPARE(_chosen, ...) \
    compare(_chosen, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

/* Of each place the steps of the last feature that has some there, for that kind of operation. */
TEST(steps_are_composed)
{
    static const uint32_t through[] = {0};
    static const xep_shape_t shape = {.nranks = 0};
    static xep_kit_t kit = {.shape = &shape};
    const xep_step_t *const features[] = {first, NULL, last};
    xep_steps_choose(&kit, features, 3, through);
    COMPARE(kit.steps[XEP_OP_COMBINE], "last", "replaced for some", "between", "first of two", "second of two",
            "not of casts", "with a word");
    COMPARE(kit.steps[XEP_OP_COMBINE + XEP_STEPS_CASTS], "last", "of casts", "between", "first of two", "second of two",
            "with a word");
    COMPARE(kit.steps[XEP_OP_COMBINE + XEP_STEPS_PIECES], "last", "of pieces", "between", "first of two",
            "second of two", "not of casts", "with a word");
    const xep_step_t *of_next = kit.steps[XEP_OP_NEXT];
    COMPARE(of_next, "next", "opens", "later", "of dispatches");
    COMPARE(kit.steps[XEP_OP_DISPATCH], "no next", "opens", "later", "of dispatches");
    /* the first of them that waits opens */
    assert_int_equal(of_next[0].opens, 0);
    assert_int_equal(of_next[1].opens, 1);
    assert_int_equal(of_next[2].opens, 0);
    assert_ptr_equal(kit.through, through);
    /* what one without a name does not say is as in the plain one */
    const xep_step_t *mixed = &kit.steps[XEP_OP_COMBINE][6];
    assert_ptr_equal(mixed->run, another);
    assert_ptr_equal(mixed->store, store);
    assert_ptr_equal(mixed->word, word);
    assert_int_equal(mixed->agreed, 1);
}
