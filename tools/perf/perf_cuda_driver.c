/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Made of the one list in the header: the name to look for, and where its pointer belongs in a perf_cuda_driver_t. */
static const struct {
    const char *symbol;
    size_t offset;
} functions[] = {
#define PERF_CUDA_FUNCTION(_name, _symbol, _params) {_symbol, offsetof(perf_cuda_driver_t, _name)},
    PERF_CUDA_FUNCTIONS(PERF_CUDA_FUNCTION)
#undef PERF_CUDA_FUNCTION
};

/*
 * It stays loaded: the library has it, too. A driver that lacks one of the functions is not used at all, so nobody has
 * to ask whether a pointer is there. ISO C knows no cast from an object's address to a function.
 */
int perf_cuda_driver_open(perf_cuda_driver_t *driver, char *why, size_t why_bytes)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, why_bytes, "--memory cuda: there is no driver for CUDA devices here: %s", dlerror());
        return -1;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(library, functions[i].symbol);
        if (symbol == NULL) {
            snprintf(why, why_bytes, "--memory cuda: the driver of the CUDA devices is too old: it has no %s",
                     functions[i].symbol);
            return -1;
        }
        memcpy((char *)driver + functions[i].offset, &symbol, sizeof symbol);
    }
    return 0;
}
