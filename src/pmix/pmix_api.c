/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Symbols are looked up by name, so that the library loads without PMIx, and so that it uses the libpmix that the
 * program has loaded already (MPI): two of them in one process do not know each other.
 */
#include "pmix_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

/* the same from PMIx 4 to 6; if the program has loaded one already (MPI), this is that one */
#define SONAME "libpmix.so.2"

static const struct {
    size_t offset; /* in xep_pmix_api_t */
    const char *name;
} symbols[] = {
#define XEP_PMIX_FUNCTION(_field, _name) {offsetof(xep_pmix_api_t, _field), "PMIx_" #_name},
    XEP_PMIX_FUNCTIONS(XEP_PMIX_FUNCTION)
#undef XEP_PMIX_FUNCTION
};

/* loaded once in a process, then only read */
static struct {
    pthread_once_t once;
    int loaded;
    xep_pmix_api_t api;
    const char *version;
    char path[1024];       /* or why there is none */
    char prefix[PATH_MAX]; /* "": left to PMIx */
} library = {.once = PTHREAD_ONCE_INIT, .version = ""};

/* After a failure library.path says what is missing; the caller closes the handle. */
static int resolve(void *handle)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(handle, symbols[i].name);
        if (symbol == NULL) {
            snprintf(library.path, sizeof library.path, SONAME " lacks %s", symbols[i].name);
            return -1;
        }
        memcpy((char *)&library.api + symbols[i].offset, &symbol, sizeof symbol);
    }
    return 0;
}

static void find_path(void)
{
    const char *file = xep_loaded_from((const void *)(uintptr_t)library.api.init);
    snprintf(library.path, sizeof library.path, "%s", file[0] != '\0' ? file : SONAME);
}

/* the folder of a file, links resolved; NULL: not found */
static const char *folder_of(const char *file, char path[PATH_MAX])
{
    char *slash = realpath(file, path) != NULL ? strrchr(path, '/') : NULL;
    if (slash == NULL) return NULL;
    *slash = '\0';
    return path;
}

/*
 * If libpmix was moved, the folders compiled into it do not exist. One that lies beside this library in a folder lib
 * was installed, or moved, together with it.
 */
static void find_prefix(void)
{
    char own[PATH_MAX], folder[PATH_MAX];
    if (folder_of(xep_loaded_from(&library), own) == NULL) return;
    if (folder_of(library.path, folder) == NULL || strcmp(own, folder) != 0) return;
    size_t length = strlen(folder);
    if (length > 4 && strcmp(folder + length - 4, "/lib") == 0) memcpy(library.prefix, folder, length - 4);
}

/* At first use. The handle stays open: the functions are called until the process ends. */
static void load(void)
{
    void *handle = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(library.path, sizeof library.path, "%s", dlerror());
        return;
    }
    if (resolve(handle) != 0) {
        dlclose(handle);
        return;
    }
    library.version = library.api.get_version();
    find_path();
    find_prefix();
    library.loaded = 1;
}

const xep_pmix_api_t *xep_pmix_api(void)
{
    pthread_once(&library.once, load);
    return library.loaded ? &library.api : NULL;
}

const char *xep_pmix_api_version(void)
{
    xep_pmix_api();
    return library.version;
}

const char *xep_pmix_api_prefix(void)
{
    xep_pmix_api();
    return library.prefix[0] != '\0' ? library.prefix : NULL;
}

const char *xep_pmix_api_path(void)
{
    xep_pmix_api();
    return library.path;
}
