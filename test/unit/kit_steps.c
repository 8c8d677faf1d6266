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

static const xep_step_t list[] = {
    {.name = "all", .run = run},
    {.name = "first", .run = run, .with = 1},
    {.name = "second", .run = run, .with = 2},
    {.name = "both", .run = run, .with = 3},
    {.name = "not first", .run = run, .without = 1},
    {.name = "neither", .run = run, .without = 3},
    {0},
};

static const _Atomic uint64_t *word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    (void)mode, (void)op, (void)rank, (void)value_p;
    return NULL;
}

static const xep_step_t list_of_dispatches[] = {
    {.name = "next", .run = run, .with = XEP_STEPS_OF_NEXT},
    {.name = "no next", .run = run, .without = XEP_STEPS_OF_NEXT},
    {.name = "left out", .run = run, .word = word, .with = 1},
    {.name = "opens", .run = run, .word = word, .hears_through = 1},
    {.name = "later", .run = run, .word = word},
    {0},
};

const xep_kit_mode_t xep_kit_mode = {.combine_steps = list, .dispatch_steps = list_of_dispatches};

/* Of the lists those for a buffer with the second of two features alone, in their order. */
TEST(steps_are_chosen)
{
    static const uint32_t through[] = {0};
    static const xep_shape_t shape = {.nranks = 0};
    static xep_kit_t kit = {.shape = &shape};
    xep_steps_choose(&kit, 2, through);
    const xep_step_t *chosen = kit.steps[XEP_OP_COMBINE], *of_next = kit.steps[XEP_OP_NEXT];
    assert_string_equal(chosen[0].name, "all");
    assert_string_equal(chosen[1].name, "second");
    assert_string_equal(chosen[2].name, "not first");
    assert_null(chosen[3].run);
    assert_string_equal(of_next[0].name, "next");
    assert_string_equal(kit.steps[XEP_OP_DISPATCH][0].name, "no next");
    /* the first of them that waits opens, and the one that hears through others knows whom */
    assert_int_equal(of_next[0].opens, 0);
    assert_string_equal(of_next[1].name, "opens");
    assert_int_equal(of_next[1].opens, 1);
    assert_ptr_equal(of_next[1].through, through);
    assert_int_equal(of_next[2].opens, 0);
    assert_null(of_next[2].through);
    assert_null(of_next[3].run);
}
