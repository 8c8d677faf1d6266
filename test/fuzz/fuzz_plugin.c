/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Tables of plugins: that of a mode that loads, test/abi/stub_mode.c, is written over, and a heap_size() of this
 * program lies; what is loaded has the table of this library, and a size is told only where all regions fit in it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "buffer_size.h"
#include "config.h"
#include "error.h"
#include "fuzz_target.h"
#include "plugin_loader.h"

const fuzz_target_t fuzz_target = {.name = "plugin", .unit = "plugins", .runs = 10000};

enum { MOST_PATCHES = 16 };

/* What heap_size() says. */
typedef struct answer {
    xep_status_t status;
    xep_region_t regions[XEP_REGIONS];
    uint64_t recv_rows;
} answer_t;

static answer_t answer;

static xep_status_t answer_heap_size(const xep_shape_t *shape, xep_region_t *regions, uint64_t *recv_rows_p)
{
    (void)shape;
    memcpy(regions, answer.regions, sizeof answer.regions);
    *recv_rows_p = answer.recv_rows;
    return answer.status;
}

typedef struct object {
    xep_plugin_t *plugin, good; /* as it is now, and as it may be */
    xep_config_t config;
} object_t;

/* The table of a mode is constant. */
static void allow_writes(xep_plugin_t *plugin)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)plugin / page * page;
    if (mprotect((void *)first, (uintptr_t)(plugin + 1) - first, PROT_READ | PROT_WRITE) != 0)
        fuzz_fail("the table cannot be written");
}

/* It stays loaded, so that each load finds the table that is written here. The build tree is where the test runs. */
static object_t *open_object(void)
{
    static object_t object;
    static char folder[PATH_MAX], path[PATH_MAX + 32];
    const char *build = getenv("builddir");
    if (object.plugin != NULL) return &object;
    snprintf(folder, sizeof folder, "%s/test/fuzz/.libs", build == NULL ? "." : build);
    snprintf(path, sizeof path, "%s/xep_solo.so", folder);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || setenv("XEP_PLUGIN_PATH", folder, 1) != 0) fuzz_fail("no mode: %s", dlerror());
    object.plugin = dlsym(library, "xep_plugin");
    allow_writes(object.plugin);
    object.good = *object.plugin;
    object.good.heap_size = answer_heap_size;
    object.good.traffic = NULL;
    if (xep_config_read(&object.config) != XEP_OK) fuzz_fail("%s", xep_last_error());
    return &object;
}

static void lie_in_table(object_t *object, fuzz_input_t *input)
{
    static const char *const names[] = {NULL, "", "solo", "solo2", "normal"};
    uint32_t *numbers = &object->plugin->abi;
    void **functions = (void **)(void *)&object->plugin->heap_size;
    size_t nfunctions = (sizeof(xep_plugin_t) - offsetof(xep_plugin_t, heap_size)) / sizeof *functions;
    uint64_t which = fuzz_below(input, 32);
    if (which < 7) numbers[which] = (uint32_t)fuzz_number(input);
    else if (which < 7 + nfunctions) functions[which - 7] = NULL;
    else if (which == 30) object->plugin->name = names[fuzz_below(input, 5)];
    else if (which == 31) object->plugin->brief = NULL;
}

static void lie_in_answer(fuzz_input_t *input)
{
    xep_region_t *region = &answer.regions[fuzz_below(input, XEP_REGIONS)];
    switch (fuzz_below(input, 6)) {
    case 0: answer.status = fuzz_below(input, 2) ? XEP_ERR_NO_MEMORY : XEP_ERR_INVALID; break;
    case 1: region->bytes = fuzz_number(input); break;
    case 2: region->alignment = (uint32_t)fuzz_number(input); break;
    case 3: region->offset = fuzz_number(input); break;
    case 4: region->memory = (xep_memory_t)fuzz_number(input); break;
    default: answer.recv_rows = fuzz_number(input); break;
    }
}

static int is_good(const object_t *object)
{
    const xep_plugin_t *p = object->plugin, *good = &object->good;
    return memcmp(&p->abi, &good->abi, offsetof(xep_plugin_t, state_bytes) - offsetof(xep_plugin_t, abi)) == 0 &&
           p->name != NULL && strcmp(p->name, good->name) == 0 && p->brief != NULL &&
           memcmp(&p->heap_size, &good->heap_size, sizeof *p - offsetof(xep_plugin_t, heap_size)) == 0;
}

static void check_sizes(const object_t *object)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    uint64_t sum = 0;
    params.mode = "solo";
    params.experts = params.hidden = params.slots = 8;
    params.topk = 2;
    params.tokens = 16;
    params.dtype = params.combine_dtype = XEP_BF16;
    xep_status_t status = xep_buffer_measure(&object->config, &params, 4, &size);
    if (status != XEP_OK && xep_last_error()[0] == '\0') fuzz_fail("sizes are refused without a reason");
    if (status != XEP_OK) return;
    for (int i = 0; i < XEP_REGIONS; i++)
        if (__builtin_add_overflow(sum, answer.regions[i].bytes, &sum)) sum = UINT64_MAX;
    if (answer.status != XEP_OK || size.bytes < sum || size.bytes > UINT64_MAX - 8192)
        fuzz_fail("%llu bytes for regions of %llu", (unsigned long long)size.bytes, (unsigned long long)sum);
}

static void try_table(fuzz_input_t *input)
{
    object_t *object = open_object();
    xep_plugin_ref_t ref = {NULL, NULL};
    *object->plugin = object->good;
    answer = (answer_t){.status = XEP_OK, .recv_rows = 64};
    for (int i = 0; i < XEP_REGIONS; i++) answer.regions[i] = (xep_region_t){.bytes = 4096, .alignment = 64};
    for (int i = 0; i < MOST_PATCHES && input->at < input->end; i++) {
        if (fuzz_below(input, 4) == 0) lie_in_table(object, input);
        else lie_in_answer(input);
    }
    xep_status_t status = xep_plugin_load(&object->config, "solo", XEP_MEMORY_HOST, &ref);
    if ((status == XEP_OK) != is_good(object)) fuzz_fail("a table gave %d: %s", status, xep_last_error());
    if (status == XEP_OK) check_sizes(object);
    xep_plugin_unload(&ref);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = {data, data + size};
    try_table(&input);
    fuzz_count(1);
    return 0;
}
