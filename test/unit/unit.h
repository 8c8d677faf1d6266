/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What unit tests share: cmocka with what it needs, and tests that make themselves known; main is in unit.c.
 *
 *     TEST(every_type_has_a_name)
 *     {
 *         assert_string_equal(...);
 *     }
 */
#ifndef TEST_UNIT_H
#define TEST_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/** Defines a test. They run in the order in which they stand in the file. */
#define TEST(_name)                                            \
    static void _name(void);                                   \
    static void run_##_name(void **state)                      \
    {                                                          \
        (void)state;                                           \
        _name();                                               \
    }                                                          \
    __attribute__((constructor)) static void add_##_name(void) \
    {                                                          \
        unit_add(#_name, run_##_name);                         \
    }                                                          \
    static void _name(void)

void unit_add(const char *name, CMUnitTestFunction test);

/** Defined by a test that has something to do before each of its tests; else there is nothing to do. */
void unit_before_each(void);

/** Any 32 bits; the same after the same state. */
uint32_t unit_random(uint64_t *state);

/** From one case of a sweep to the next: 3 where XEP_TEST_BRIEF is "quick", else 1. */
uint32_t unit_step(void);

/* ---- copies of the files of a system, for what reads them below a root of its own ---- */

/** A new folder; valid until the next one is made. */
const char *unit_make_root(void);

/** A file below the last root, with its folders. */
void unit_write_file(const char *path, const char *text);

#endif
