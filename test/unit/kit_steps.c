/* SPDX-License-Identifier: BSD-3-Clause */

/* The steps of an operation, and what a mode owes the core for errors: begin has none, progress tells what was met. */
#include <stdio.h>
#include <string.h>

#include "kit.h"
#include "unit.h"

/** A mode of three steps that do what the test wants, on a wire that does too. */
typedef struct desk {
    xep_kit_t kit; /* first */
    xep_env_t env;
    xep_shape_t shape;
    xep_wire_t wire;
    xep_kit_state_t state;
    xep_op_t op;
    xep_status_t wants[3]; /* of each step */
    unsigned runs[3];
    unsigned looks; /* at the wire */
    xep_status_t wire_status;
    char told[64], sentence[64]; /* by the wire to this thread; op's */
} desk_t;

static desk_t desk;

static xep_status_t wire_progress(xep_wire_t *wire)
{
    (void)wire;
    desk.looks++;
    return desk.wire_status;
}

__attribute__((format(printf, 4, 5))) static xep_status_t env_fail(const xep_env_t *env, xep_op_t *op,
                                                                   xep_status_t status, const char *format, ...)
{
    va_list args;
    (void)env, (void)op;
    va_start(args, format);
    if (format != NULL) vsnprintf(desk.sentence, sizeof desk.sentence, format, args);
    else if (desk.sentence[0] == '\0') memcpy(desk.sentence, desk.told, sizeof desk.sentence);
    va_end(args);
    return status;
}

static xep_status_t run(int step)
{
    desk.runs[step]++;
    assert_int_equal(desk.state.told, 0);
    assert_int_equal(desk.state.cursor.peer, 0);
    desk.state.cursor.peer = 7, desk.state.told = desk.wants[step] == XEP_OK; /* reset before the next one */
    if (desk.wants[step] != XEP_OK) desk.state.cursor.peer = 0;
    return desk.wants[step];
}

static xep_status_t first(void *mode, xep_op_t *op)
{
    (void)mode, (void)op;
    return run(0);
}

static xep_status_t second(void *mode, xep_op_t *op)
{
    (void)mode, (void)op;
    return run(1);
}

static xep_status_t third(void *mode, xep_op_t *op)
{
    (void)mode, (void)op;
    return run(2);
}

static const xep_step_t steps[] = {
    {.name = "one", .run = first},
    {.name = "two", .run = second},
    {.name = "three", .run = third, .receives = 1},
    {0},
};

static const xep_step_t list[] = {
    {.name = "all", .run = first},
    {.name = "first", .run = first, .with = 1},
    {.name = "second", .run = first, .with = 2},
    {.name = "both", .run = first, .with = 3},
    {.name = "not first", .run = first, .without = 1},
    {.name = "neither", .run = first, .without = 3},
    {0},
};

static const _Atomic uint64_t *word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    (void)mode, (void)op, (void)rank, (void)value_p;
    return NULL;
}

static const xep_step_t list_of_dispatches[] = {
    {.name = "next", .run = first, .with = XEP_STEPS_OF_NEXT},
    {.name = "no next", .run = first, .without = XEP_STEPS_OF_NEXT},
    {.name = "left out", .run = first, .word = word, .with = 1},
    {.name = "opens", .run = first, .word = word, .hears_through = 1},
    {.name = "later", .run = first, .word = word},
    {0},
};

const xep_kit_mode_t xep_kit_mode = {.combine_steps = list, .dispatch_steps = list_of_dispatches};

static void set_up(xep_status_t a, xep_status_t b, xep_status_t c)
{
    static const xep_wire_ops_t ops = {.size = sizeof ops, .progress = wire_progress};
    desk = (desk_t){.wants = {a, b, c}, .told = "the cable is cut"};
    desk.wire.ops = &ops;
    desk.env = (xep_env_t){.shape = &desk.shape, .wire = &desk.wire, .fail = env_fail};
    desk.kit = (xep_kit_t){.env = &desk.env, .shape = &desk.shape};
    memcpy(desk.kit.steps[XEP_OP_DISPATCH], steps, sizeof steps);
    desk.op = (xep_op_t){.kind = XEP_OP_DISPATCH, .state = &desk.state};
    assert_int_equal(xep_steps_begin(&desk.kit, &desk.op), XEP_OK);
}

static xep_status_t progress(void)
{
    return xep_steps_progress(&desk.kit, &desk.op);
}

/* the receive phase is not begun, and each step is run once when it has nothing to wait for */
TEST(all_is_well)
{
    set_up(XEP_OK, XEP_OK, XEP_OK);
    assert_int_equal(desk.runs[2], 0);
    assert_int_equal(desk.looks, 0);
    assert_int_equal(progress(), XEP_OK);
    assert_int_equal(progress(), XEP_OK); /* again after the end: the same */
    for (int i = 0; i < 3; i++) assert_int_equal(desk.runs[i], 1);
}

TEST(a_step_waits)
{
    set_up(XEP_OK, XEP_INPROGRESS, XEP_OK);
    assert_int_equal(progress(), XEP_INPROGRESS);
    desk.wants[1] = XEP_OK;
    assert_int_equal(progress(), XEP_OK);
    assert_int_equal(desk.runs[0], 1);
    assert_int_equal(desk.runs[1], 3);
}

/* The wire fails in begin: a step before has sent something. It says so once, and the sentence is kept. */
TEST(begin_meets_an_error)
{
    set_up(XEP_OK, XEP_ERR_TRANSPORT, XEP_OK);
    strcpy(desk.told, "something else");
    desk.wants[1] = XEP_OK;
    assert_int_equal(progress(), XEP_ERR_TRANSPORT);
    assert_string_equal(desk.sentence, "the cable is cut");
    assert_int_equal(progress(), XEP_ERR_TRANSPORT);
    assert_int_equal(desk.runs[1], 1);
    assert_int_equal(desk.runs[2], 0);
}

TEST(progress_meets_an_error)
{
    set_up(XEP_OK, XEP_INPROGRESS, XEP_OK);
    desk.wire_status = XEP_ERR_TRANSPORT;
    assert_int_equal(progress(), XEP_ERR_TRANSPORT);
    assert_string_equal(desk.sentence, "the cable is cut");
    assert_int_equal(desk.runs[1], 1);
}

/* What all ranks agree on is told at the end, and all steps are taken. */
TEST(a_verdict)
{
    set_up(XEP_OK, XEP_OK, XEP_OK);
    desk.state.verdict = XEP_ERR_OVERFLOW;
    assert_int_equal(progress(), XEP_ERR_OVERFLOW);
    assert_int_equal(desk.runs[2], 1);
}

/* Of the lists those for a buffer with the second of two features alone, in their order. */
TEST(steps_are_chosen)
{
    static const uint32_t through[] = {0};
    xep_steps_choose(&desk.kit, 2, through);
    const xep_step_t *chosen = desk.kit.steps[XEP_OP_COMBINE], *of_next = desk.kit.steps[XEP_OP_NEXT];
    assert_string_equal(chosen[0].name, "all");
    assert_string_equal(chosen[1].name, "second");
    assert_string_equal(chosen[2].name, "not first");
    assert_null(chosen[3].run);
    assert_string_equal(of_next[0].name, "next");
    assert_string_equal(desk.kit.steps[XEP_OP_DISPATCH][0].name, "no next");
    /* the first of them that waits opens, and the one that hears through others knows whom */
    assert_int_equal(of_next[0].opens, 0);
    assert_string_equal(of_next[1].name, "opens");
    assert_int_equal(of_next[1].opens, 1);
    assert_ptr_equal(of_next[1].through, through);
    assert_int_equal(of_next[2].opens, 0);
    assert_null(of_next[2].through);
    assert_null(of_next[3].run);
}
