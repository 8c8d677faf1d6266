/* SPDX-License-Identifier: BSD-3-Clause */

#include "boot.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

void *xep_boot_new(size_t bytes, xep_boot_t boot)
{
    xep_boot_t *made = calloc(1, bytes);
    if (made == NULL) (void)xep_fail(XEP_ERR_NO_MEMORY, "no memory for the bootstrap");
    else *made = boot;
    return made;
}

/* ---- a group of one ---- */

static xep_status_t single_allgather(xep_boot_t *boot, const void *send, void *recv, size_t bytes)
{
    (void)boot;
    if (bytes > 0) memmove(recv, send, bytes);
    return XEP_OK;
}

xep_status_t xep_boot_single_open(int32_t timeout_ms, xep_boot_t **boot_p)
{
    *boot_p = xep_boot_new(sizeof **boot_p, (xep_boot_t){.name = "single",
                                                         .allgather = single_allgather,
                                                         .nranks = 1,
                                                         .timeout_ms = timeout_ms});
    return *boot_p == NULL ? XEP_ERR_NO_MEMORY : XEP_OK;
}

/*
 * Variables in which launchers say how many processes they started. Not SLURM_NTASKS: it is the size of the allocation,
 * also set for a program that a batch script starts without srun, which is alone.
 */
#define OTHER_LAUNCHER                                                                                               \
    "start it with a launcher that serves PMIx (prterun, mpirun of Open MPI, srun --mpi=pmix, xep_run), or pass an " \
    "allgather over MPI to xep_group_create()"

static const struct {
    const char *name, *remedy;
} sizes[] = {
    {"XEP_RUN_SIZE", "create the group before MPI_Init(), which leaves the job of xep_run, or start it with mpirun"},
    {"SLURM_STEP_NUM_TASKS", "start it with srun --mpi=pmix"},
    {"OMPI_COMM_WORLD_SIZE", "keep PMIX_NAMESPACE and PMIX_RANK in the environment of the ranks"},
    {"PMI_SIZE", OTHER_LAUNCHER},
    {"MV2_COMM_WORLD_SIZE", OTHER_LAUNCHER},
    {"JSM_NAMESPACE_SIZE", OTHER_LAUNCHER},
    {"PALS_LOCAL_SIZE", OTHER_LAUNCHER},
    {"FLUX_JOB_SIZE", "start it with flux run -o pmi=pmix, or pass an allgather over MPI to xep_group_create()"},
    {"WORLD_SIZE", "torchrun serves no PMIx: in Python write xep.Group(torch.distributed.group.WORLD), in "
                   "C pass an allgather to xep_group_create()"},
};

/* Launchers of MPICH that tell a process, instead of the size, where to ask for it. */
static const char *const places[] = {"PMI_PORT", "PMI_ID"};

/* the number that a variable holds; 0: none, or not one */
static unsigned long number_of(const char *text)
{
    char *end;
    unsigned long value = text == NULL ? 0 : strtoul(text, &end, 10);
    return value == 0 || *end != '\0' ? 0 : value;
}

/* Refuses a program that a launcher started on many ranks, each of which would be alone: it would run, and be wrong. */
xep_status_t xep_boot_single_allowed(void)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned long size = number_of(getenv(sizes[i].name));
        if (size > 1)
            return xep_fail(XEP_ERR_BOOT,
                            "%s says that the job has %lu ranks, but this process would be a group of one: %s; "
                            "XEP_BOOT=single if that is meant",
                            sizes[i].name, size, sizes[i].remedy);
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (getenv(places[i]) != NULL && getenv("PMI_SIZE") == NULL)
            return xep_fail(
                XEP_ERR_BOOT,
                "%s says that a launcher has started this process, but it would be a group of one: " OTHER_LAUNCHER
                "; XEP_BOOT=single if that is meant",
                places[i]);
    return XEP_OK;
}
