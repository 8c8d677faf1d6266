/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE /* program_invocation_short_name */
#include "unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TESTS = 64 };

static struct CMUnitTest tests[MOST_TESTS];
static size_t ntests;

void unit_add(const char *name, CMUnitTestFunction test)
{
    if (ntests == MOST_TESTS) abort();
    tests[ntests++] = (struct CMUnitTest){.name = name, .test_func = test};
}

__attribute__((weak)) void unit_before_each(void) {}

static int before_each(void **state)
{
    (void)state;
    unit_before_each();
    return 0;
}

uint32_t unit_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

uint32_t unit_step(void)
{
    const char *brief = getenv("XEP_TEST_BRIEF");
    return brief != NULL && strcmp(brief, "quick") == 0 ? 3 : 1;
}

int main(void)
{
    for (size_t i = 0; i < ntests; i++) tests[i].setup_func = before_each;
    return _cmocka_run_group_tests(program_invocation_short_name, tests, ntests, NULL, NULL);
}
