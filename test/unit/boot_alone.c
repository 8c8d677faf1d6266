/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of the group of one: what it gathers, and when the environment forbids it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "boot_single.h"

static void it_gathers_its_own(void **state)
{
    xep_boot_t *boot;
    char send[3] = "ab", recv[3] = "";
    (void)state;
    assert_int_equal(xep_boot_single_open(-1, &boot), XEP_OK);
    assert_int_equal(boot->rank, 0);
    assert_int_equal(boot->nranks, 1);
    assert_int_equal(boot->ops->allgather(boot, send, recv, sizeof send), XEP_OK);
    assert_string_equal(recv, "ab");
    assert_int_equal(boot->ops->allgather(boot, NULL, NULL, 0), XEP_OK);
    assert_true(boot->ops->dead_rank(boot) == UINT32_MAX);
    boot->ops->close(boot);
}

static const char *const names[] = {"XEP_RUN_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                    "WORLD_SIZE"};
enum { NNAMES = sizeof names / sizeof names[0] };

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < NNAMES; i++) unsetenv(names[i]);
    return 0;
}

static void a_launcher_that_started_more_forbids_it(void **state)
{
    (void)state;
    assert_int_equal(xep_boot_single_allowed(), XEP_OK);
    for (size_t i = 0; i < NNAMES; i++) {
        setenv(names[i], "4", 1);
        assert_int_equal(xep_boot_single_allowed(), XEP_ERR_BOOT);
        assert_non_null(strstr(xep_last_error(), names[i]));
        assert_non_null(strstr(xep_last_error(), "4 ranks"));
        assert_non_null(strstr(xep_last_error(), "XEP_BOOT=single"));
        unsetenv(names[i]);
    }
}

static void slurm_without_pmix_has_its_remedy(void **state)
{
    (void)state;
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    assert_int_equal(xep_boot_single_allowed(), XEP_ERR_BOOT);
    assert_non_null(strstr(xep_last_error(), "srun --mpi=pmix"));
}

static void sizes_of_one_and_nonsense_do_not(void **state)
{
    static const char *const values[] = {"1", "0", "", "four", "4x"};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        setenv("WORLD_SIZE", values[i], 1);
        assert_int_equal(xep_boot_single_allowed(), XEP_OK);
    }
}

/* the batch step of an allocation of 8: one process, started without srun */
static void an_allocation_does_not(void **state)
{
    (void)state;
    setenv("SLURM_NTASKS", "8", 1);
    setenv("SLURM_NPROCS", "8", 1);
    assert_int_equal(xep_boot_single_allowed(), XEP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(it_gathers_its_own, clear),
                                       cmocka_unit_test_setup(a_launcher_that_started_more_forbids_it, clear),
                                       cmocka_unit_test_setup(slurm_without_pmix_has_its_remedy, clear),
                                       cmocka_unit_test_setup(sizes_of_one_and_nonsense_do_not, clear),
                                       cmocka_unit_test_setup(an_allocation_does_not, clear)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
