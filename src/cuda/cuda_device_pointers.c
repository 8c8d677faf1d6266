/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For buffers in host memory: the host would crash if it read memory that only a device can read. Asks the driver if
 * the program has loaded it, and never loads it for this.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "cuda_device.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

typedef struct cuda_pointers {
    xep_pointers_t pointers; /* first */
    void *library;
    cuda_result_t (*attribute)(void *value, int attribute, cuda_address_t address);
} cuda_pointers_t;

static unsigned ask(const cuda_pointers_t *cuda, int attribute, const void *address)
{
    unsigned value = 0;
    return cuda->attribute(&value, attribute, (cuda_address_t)address) == CUDA_DONE ? value : 0;
}

/* Memory that the driver does not know is the host's; managed memory is both's. */
static int32_t device_of(const xep_pointers_t *pointers, const void *address)
{
    const cuda_pointers_t *cuda = (const void *)pointers;
    if (ask(cuda, CUDA_POINTER_MEMORY, address) != CUDA_MEMORY_DEVICE) return -1;
    return ask(cuda, CUDA_POINTER_MANAGED, address) != 0 ? -1 : (int32_t)ask(cuda, CUDA_POINTER_DEVICE, address);
}

static void close_pointers(xep_pointers_t *pointers)
{
    dlclose(((cuda_pointers_t *)(void *)pointers)->library);
    free(pointers);
}

static int is_driver(struct dl_phdr_info *loaded, size_t bytes, void *unused)
{
    const char *slash = strrchr(loaded->dlpi_name, '/');
    (void)bytes;
    (void)unused;
    return strncmp(slash == NULL ? loaded->dlpi_name : slash + 1, "libcuda.so", 10) == 0;
}

/* Checks first whether the driver is loaded: else dlopen() would search for its file each time a layout is counted. */
xep_pointers_t *xep_cuda_pointers_open(void)
{
    if (dl_iterate_phdr(is_driver, NULL) == 0) return NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    void *symbol = library == NULL ? NULL : dlsym(library, "cuPointerGetAttribute");
    cuda_pointers_t *cuda = symbol == NULL ? NULL : malloc(sizeof *cuda);
    if (cuda == NULL) {
        if (library != NULL) dlclose(library);
        return NULL;
    }
    *cuda = (cuda_pointers_t){.pointers = {device_of, close_pointers}, .library = library};
    memcpy(&cuda->attribute, &symbol, sizeof symbol);
    return &cuda->pointers;
}
