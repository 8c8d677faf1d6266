/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE

#include "run_pmix.h"

#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

/* the same from PMIx 4 to 6 */
#define SONAME "libpmix.so.2"

static const struct {
    size_t offset; /* in run_pmix_t */
    const char *name;
    int optional;
} symbols[] = {
    {offsetof(run_pmix_t, error_string), "PMIx_Error_string", 0},
    {offsetof(run_pmix_t, notify_event), "PMIx_Notify_event", 0},
    {offsetof(run_pmix_t, generate_ppn), "PMIx_generate_ppn", 0},
    {offsetof(run_pmix_t, generate_regex), "PMIx_generate_regex", 0},
    {offsetof(run_pmix_t, server_init), "PMIx_server_init", 0},
    {offsetof(run_pmix_t, server_register_client), "PMIx_server_register_client", 0},
    {offsetof(run_pmix_t, server_register_nspace), "PMIx_server_register_nspace", 0},
    {offsetof(run_pmix_t, server_setup_fork), "PMIx_server_setup_fork", 0},
    {offsetof(run_pmix_t, value_load), "PMIx_Value_load", 0},
    {offsetof(run_pmix_t, value_destruct), "PMIx_Value_destruct", 1},
};

/* RTLD_GLOBAL: parts of PMIx that are not linked with it find it all the same, as in a program that is. */
static void *open_library(void)
{
    char reason[512];
    void *library = dlopen(SONAME, RTLD_NOW | RTLD_GLOBAL);
    if (library != NULL) return library;
    snprintf(reason, sizeof reason, "%s", dlerror());
    library = dlopen(RUN_PMIX_DIR "/" SONAME, RTLD_NOW | RTLD_GLOBAL); /* where the build found it */
    if (library == NULL)
        run_say("PMIx cannot be loaded: %s (on Debian and Ubuntu: apt-get install libpmix2; elsewhere: name the folder "
                "of " SONAME " in LD_LIBRARY_PATH)",
                reason);
    return library;
}

/*
 * Stays loaded: it has threads. PMIx_Value_destruct() is there from 4.2 on; without it some small strings are left to
 * the end of the process.
 */
const run_pmix_t *run_pmix_load(void)
{
    static run_pmix_t pmix;
    void *library = open_library();
    if (library == NULL) return NULL;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (symbol == NULL && !symbols[i].optional) {
            run_say("this PMIx cannot be used: " SONAME " lacks %s (PMIx 4 or newer has it)", symbols[i].name);
            return NULL;
        }
        memcpy((char *)&pmix + symbols[i].offset, &symbol, sizeof symbol);
    }
    return &pmix;
}

/* ---- a PMIx that came with xep_run --------------------------------------------------------------------- */

/* the real path without its last two parts; NULL: it cannot be had */
static char *folder_above(const char *file, char path[PATH_MAX])
{
    if (realpath(file, path) == NULL) return NULL;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL) return NULL;
        *slash = '\0';
    }
    return path;
}

/*
 * The libpmix that was loaded came with xep_run if both lie two levels below the same folder, it in lib. By memcpy(),
 * as ISO C does not define how a pointer to a function becomes the void * that dladdr() takes.
 */
const char *run_pmix_prefix(const run_pmix_t *pmix)
{
    static char prefix[PATH_MAX];
    char own[PATH_MAX], file[PATH_MAX + 32];
    Dl_info info;
    void *symbol;
    memcpy(&symbol, &pmix->server_init, sizeof symbol);
    if (dladdr(symbol, &info) == 0 || info.dli_fname == NULL) return NULL;
    if (folder_above(info.dli_fname, prefix) == NULL || folder_above("/proc/self/exe", own) == NULL) return NULL;
    snprintf(file, sizeof file, "%s/lib/" SONAME, own);
    return strcmp(prefix, own) == 0 && access(file, F_OK) == 0 ? prefix : NULL;
}

/* ---- the server ---------------------------------------------------------------------------------------- */

/*
 * By default PMIx 4 keeps it in memory that all ranks map, with mutexes that are not robust: if a rank is killed in a
 * look at it, the server waits in its next write, and every other rank in its next look, whatever their deadlines.
 * With hash each process has its own. Ranks learn it from the server; what the user has set stays.
 */
pmix_status_t run_pmix_serve(const run_pmix_t *pmix, pmix_server_module_t *module, pmix_info_t *infos, size_t ninfos)
{
    static const char name[] = "PMIX_MCA_gds";
    const int is_set = getenv(name) != NULL;
    if (!is_set) setenv(name, "hash", 1);
    pmix_status_t status = pmix->server_init(module, infos, ninfos);
    if (!is_set) unsetenv(name);
    return status;
}

/* ---- infos --------------------------------------------------------------------------------------------- */

void run_pmix_info_set(const run_pmix_t *pmix, pmix_info_t *info, const char *key, const void *data,
                       pmix_data_type_t type)
{
    snprintf(info->key, sizeof info->key, "%s", key);
    pmix->value_load(&info->value, data, type);
}

void run_pmix_infos_clear(const run_pmix_t *pmix, pmix_info_t *infos, size_t ninfos)
{
    for (size_t i = 0; i < ninfos && pmix->value_destruct != NULL; i++) pmix->value_destruct(&infos[i].value);
}

pmix_proc_t run_pmix_proc(const char *nspace, uint32_t rank)
{
    pmix_proc_t proc;
    memset(&proc, 0, sizeof proc);
    snprintf(proc.nspace, sizeof proc.nspace, "%s", nspace);
    proc.rank = rank;
    return proc;
}
