/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * No header and no library of CUDA is used to build this, so one libxep runs with and without it. The driver stays
 * loaded as long as a buffer uses it: a program may have no use for CUDA before or after. Each buffer opens it for
 * itself; the loader counts them.
 */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <string.h>

#include "error.h"

/* From the same list as the struct, so that no function is declared that is not looked up. */
static const struct {
    const char *symbol;
    size_t offset;
} functions[] = {
#define CUDA_FUNCTION(_name, _symbol, _params) {_symbol, offsetof(xep_cuda_driver_t, _name)},
    CUDA_FUNCTIONS(CUDA_FUNCTION)
#undef CUDA_FUNCTION
};

/*
 * A missing function is reported at once, by name, and not in the middle of an operation. ISO C has no cast from an
 * object pointer to a function pointer, so the address is copied.
 */
static xep_status_t find_functions(xep_cuda_driver_t *driver)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(driver->library, functions[i].symbol);
        if (symbol == NULL)
            return xep_fail(XEP_ERR_UNSUPPORTED, "the driver of the CUDA devices is too old: it has no %s",
                            functions[i].symbol);
        memcpy((char *)driver + functions[i].offset, &symbol, sizeof symbol);
    }
    return XEP_OK;
}

/*
 * A driver without a device (a login node, or an empty CUDA_VISIBLE_DEVICES) fails in cuInit() and counts as no driver.
 * May be called any number of times in a process.
 */
xep_status_t xep_cuda_driver_open(xep_cuda_driver_t *driver)
{
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "there is no driver for CUDA devices here: %s", dlerror());
    xep_status_t status = find_functions(driver);
    if (status == XEP_OK && driver->init(0) != CUDA_DONE)
        status = xep_fail(XEP_ERR_UNSUPPORTED, "the driver finds no CUDA device that this process may use");
    if (status != XEP_OK) xep_cuda_driver_close(driver);
    return status;
}

void xep_cuda_driver_close(xep_cuda_driver_t *driver)
{
    if (driver->library != NULL) dlclose(driver->library);
    driver->library = NULL;
}

/*
 * The driver's errors stick: after a kernel has crashed, every call returns the same error. So the sentence says what
 * was tried, and then the driver's own text and number.
 */
xep_status_t xep_cuda_check(const xep_cuda_driver_t *driver, cuda_result_t result, const char *what)
{
    const char *text = NULL;
    if (result == CUDA_DONE) return XEP_OK;
    if (driver->error_text(result, &text) != CUDA_DONE || text == NULL) text = "an error it has no words for";
    return xep_fail(result == CUDA_OUT_OF_MEMORY ? XEP_ERR_NO_MEMORY : XEP_ERR_TRANSPORT, "CUDA cannot %s: %s (%d)",
                    what, text, result);
}
