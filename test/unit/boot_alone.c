/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of the group of one: what it gathers, and when the environment forbids it. */
#include <stdlib.h>
#include <string.h>

#include "boot.h"
#include "unit.h"

TEST(it_gathers_its_own)
{
    xep_boot_t *boot;
    char send[3] = "ab", recv[3] = "";
    assert_int_equal(xep_boot_single_open(-1, &boot), XEP_OK);
    assert_int_equal(boot->rank, 0);
    assert_int_equal(boot->nranks, 1);
    assert_int_equal(boot->allgather(boot, send, recv, sizeof send), XEP_OK);
    assert_string_equal(recv, "ab");
    assert_int_equal(boot->allgather(boot, NULL, NULL, 0), XEP_OK);
    assert_true(xep_boot_dead_rank(boot) == UINT32_MAX);
    free(boot);
}

static const char *const names[] = {"XEP_RUN_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                    "WORLD_SIZE"};
enum { NNAMES = sizeof names / sizeof names[0] };

void unit_before_each(void)
{
    for (size_t i = 0; i < NNAMES; i++) unsetenv(names[i]);
}

TEST(a_launcher_that_started_more_forbids_it)
{
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

TEST(slurm_without_pmix_has_its_remedy)
{
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    assert_int_equal(xep_boot_single_allowed(), XEP_ERR_BOOT);
    assert_non_null(strstr(xep_last_error(), "srun --mpi=pmix"));
}

TEST(sizes_of_one_and_nonsense_do_not)
{
    static const char *const values[] = {"1", "0", "", "four", "4x"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        setenv("WORLD_SIZE", values[i], 1);
        assert_int_equal(xep_boot_single_allowed(), XEP_OK);
    }
}

/* the batch step of an allocation of 8: one process, started without srun */
TEST(an_allocation_does_not)
{
    setenv("SLURM_NTASKS", "8", 1);
    setenv("SLURM_NPROCS", "8", 1);
    assert_int_equal(xep_boot_single_allowed(), XEP_OK);
}
