/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of src/util/process.c: functions, data, and an address that came from no file. */
#include <gnu/libc-version.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "unit.h"

static const int here = 1;

static void assert_is_this_program(const char *file)
{
    char own[PATH_MAX], found[PATH_MAX];
    assert_non_null(realpath("/proc/self/exe", own));
    assert_non_null(realpath(file, found));
    assert_string_equal(found, own);
}

TEST(own_code_and_data)
{
    assert_is_this_program(xep_loaded_from((const void *)(uintptr_t)assert_is_this_program));
    assert_is_this_program(xep_loaded_from(&here));
}

/* By a function that no sanitizer has a version of its own of. */
TEST(another_library)
{
    assert_non_null(strstr(xep_loaded_from((const void *)(uintptr_t)gnu_get_libc_version), "libc"));
}

TEST(no_file)
{
    char on_stack;
    assert_string_equal(xep_loaded_from(&on_stack), "");
    assert_string_equal(xep_loaded_from(NULL), "");
}
