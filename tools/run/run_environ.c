/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Variables of other launchers are left out by name. With one of them, a rank would think that it belongs to the job in
 * which xep_run was started, and wait for it.
 */
#define _GNU_SOURCE

#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* how these begin, a whole name with its "=" */
static const char *const foreign[] = {"PMIX_",
                                      "PMI_",
                                      "OMPI_",
                                      "PRTE_",
                                      "MV2_COMM_WORLD_",
                                      "JSM_",
                                      "PALS_",
                                      "TORCHELASTIC_",
                                      "SLURM_PROCID=",
                                      "SLURM_LOCALID=",
                                      "SLURM_NODEID=",
                                      "SLURM_NTASKS=",
                                      "SLURM_NPROCS=",
                                      "SLURM_STEP_NUM_TASKS=",
                                      "SLURM_STEP_NUM_NODES=",
                                      "SLURM_STEP_TASKS_PER_NODE=",
                                      "SLURM_TASK_PID=",
                                      "SLURM_GTIDS=",
                                      "SLURM_PMIX_MAPPING_SERV=",
                                      "FLUX_JOB_SIZE=",
                                      "FLUX_TASK_RANK=",
                                      "FLUX_TASK_LOCAL_ID=",
                                      "MPI_LOCALRANKID=",
                                      "MPI_LOCALNRANKS=",
                                      "RANK=",
                                      "WORLD_SIZE=",
                                      "LOCAL_RANK=",
                                      "LOCAL_WORLD_SIZE=",
                                      "GROUP_RANK=",
                                      "ROLE_RANK=",
                                      "ROLE_WORLD_SIZE=",
                                      "GROUP_WORLD_SIZE=",
                                      NULL};

/* settings of the library, not of a job, though they begin so, too */
static const char *const kept[] = {"PMIX_MCA_", "PMIX_PREFIX=", NULL};

static int begins(const char *entry, const char *const *prefixes)
{
    for (; *prefixes != NULL; prefixes++)
        if (strncmp(entry, *prefixes, strlen(*prefixes)) == 0) return 1;
    return 0;
}

static int is_name(const char *entry, const char *name, size_t length)
{
    return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

const char *run_environ_find(const char *prefix)
{
    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, prefix, strlen(prefix)) == 0) return *entry;
    return NULL;
}

/* "NAME=VALUE" in place of NAME's entry or at the end; entry is malloc'ed and now env's */
static void put(char **env, char *entry)
{
    size_t length = strcspn(entry, "=");
    while (*env != NULL && !is_name(*env, entry, length)) env++;
    if (*env == NULL) env[1] = NULL;
    free(*env);
    *env = entry;
}

static int put_number(char **env, const char *name, uint32_t number)
{
    char *entry;
    if (asprintf(&entry, "%s=%u", name, number) < 0) return -1;
    put(env, entry);
    return 0;
}

static int put_own(char **env, const run_options_t *options)
{
    /* MPI replaces PMIX_NAMESPACE when it finds no launcher of its own: this is how a rank is still known to be one */
    if (put_number(env, "XEP_RUN_SIZE", options->nranks) != 0) return -1;
    if (options->nodes == 0 || getenv("XEP_NODE_RANKS") != NULL) return 0;
    return put_number(env, "XEP_NODE_RANKS", (options->nranks + options->nodes - 1) / options->nodes);
}

/*
 * Made for each rank, since PMIx adds to it. Has room for all variables, the two of put_own() and every -x, which come
 * last and so win.
 */
char **run_environ_make(const run_options_t *options)
{
    size_t count = 0, filled = 0;
    while (environ[count] != NULL) count++;
    char **env = calloc(count + options->nsets + 3, sizeof *env);
    if (env == NULL) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (begins(environ[i], foreign) && !begins(environ[i], kept)) continue;
        if ((env[filled++] = strdup(environ[i])) == NULL) goto fail;
    }
    if (put_own(env, options) != 0) goto fail;
    for (size_t i = 0; i < options->nsets; i++) {
        char *entry = strdup(options->sets[i]);
        if (entry == NULL) goto fail;
        put(env, entry);
    }
    return env;
fail:
    run_environ_free(env);
    return NULL;
}

void run_environ_free(char **env)
{
    if (env == NULL) return;
    for (char **entry = env; *entry != NULL; entry++) free(*entry);
    free(env);
}
