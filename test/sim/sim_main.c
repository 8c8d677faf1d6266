/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A mode, the one this program was made for, in simulated worlds. Every run follows from one number, printed when it
 * fails:
 *   XEP_TEST_SEED=that XEP_TEST_RUNS=1 test/sim/sim_normal.t
 *
 * limit: 240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "sim_cases.h"
#include "sim_suites.h"

enum { MOST_TESTS = 32 };

static const struct CMUnitTest of_all[] = {
    cmocka_unit_test(sim_random_worlds), cmocka_unit_test(sim_resets),      cmocka_unit_test(sim_hostile_peers),
    cmocka_unit_test(sim_many_ranks),    cmocka_unit_test(sim_tight_rooms), cmocka_unit_test(sim_explains),
    cmocka_unit_test(sim_wire_failures),
};

int main(void)
{
    sim_case_t fixture = sim_case_load(&SIM_MODE);
    struct CMUnitTest tests[MOST_TESTS];
    size_t count = sizeof of_all / sizeof of_all[0];
    memcpy(tests, of_all, sizeof of_all);
    for (size_t i = 0; i < SIM_MODE.ntests && count < MOST_TESTS; i++)
        tests[count++] = (struct CMUnitTest){.name = SIM_MODE.tests[i].name, .test_func = SIM_MODE.tests[i].fn};
    for (size_t i = 0; i < count; i++) tests[i].initial_state = &fixture;
    return _cmocka_run_group_tests(SIM_MODE.name, tests, count, NULL, NULL);
}
