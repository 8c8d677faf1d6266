/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A mode that is opened again asks for memory of the same sizes, and gets the memory it had before. So each kind has at
 * most one unused block: one of another size is freed when a new one is needed.
 */
#include "cuda_kept.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

struct xep_cuda_block {
    xep_cuda_block_t *next;
    void *address;
    uint64_t bytes;
    xep_memory_t memory;
    int used;
};

struct xep_cuda_module {
    xep_cuda_module_t *next;
    const void *image;
    void *module;
};

/* ---- memory ---- */

static void free_memory(const xep_cuda_device_t *cuda, xep_memory_t memory, void *address)
{
    if (memory == XEP_MEMORY_HOST) cuda->driver.host_free(address);
    else cuda->driver.memory_free((cuda_address_t)address);
}

static void free_block(const xep_cuda_device_t *cuda, xep_cuda_block_t **link)
{
    xep_cuda_block_t *block = *link;
    *link = block->next;
    free_memory(cuda, block->memory, block->address);
    free(block);
}

/* An unused block of this size, or NULL; frees other unused blocks of its kind. */
static xep_cuda_block_t *find_unused(xep_cuda_device_t *cuda, xep_memory_t memory, uint64_t bytes)
{
    xep_cuda_block_t **link = &cuda->blocks;
    while (*link != NULL) {
        xep_cuda_block_t *block = *link;
        const int unused = block->memory == memory && !block->used;
        if (unused && block->bytes == bytes) return block;
        if (unused) free_block(cuda, link);
        else link = &block->next;
    }
    return NULL;
}

static cuda_result_t make_memory(const xep_cuda_device_t *cuda, xep_memory_t memory, uint64_t bytes, void **address_p)
{
    cuda_address_t address = 0;
    if (memory == XEP_MEMORY_HOST) return cuda->driver.host_allocate(address_p, bytes, 0);
    cuda_result_t result = cuda->driver.memory_allocate(&address, bytes);
    *address_p = (void *)address;
    return result;
}

static xep_status_t make_block(xep_cuda_device_t *cuda, xep_memory_t memory, uint64_t bytes, xep_cuda_block_t **block_p)
{
    xep_cuda_block_t *block = malloc(sizeof *block);
    if (block == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a list of a device's memory");
    *block = (xep_cuda_block_t){.next = cuda->blocks, .bytes = bytes, .memory = memory};
    xep_status_t status = xep_cuda_check(&cuda->driver, make_memory(cuda, memory, bytes, &block->address),
                                         "allocate memory for the lists of a buffer");
    if (status != XEP_OK) {
        free(block);
        return status;
    }
    cuda->blocks = *block_p = block;
    return XEP_OK;
}

/*
 * The zeros of device memory are written on the default stream, and this does not wait for them: sync() does, before
 * the memory is used on another stream. cuMemAlloc() refuses 0 bytes, so there is at least one.
 */
xep_status_t xep_cuda_kept_allocate(xep_device_t *device, xep_memory_t memory, uint64_t bytes, void **memory_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    cuda_result_t result = CUDA_DONE;
    xep_status_t status = XEP_OK;
    if (bytes == 0) bytes = 1;
    xep_cuda_enter(cuda);
    xep_cuda_block_t *block = find_unused(cuda, memory, bytes);
    if (block == NULL) status = make_block(cuda, memory, bytes, &block);
    if (status == XEP_OK && memory == XEP_MEMORY_HOST) memset(block->address, 0, bytes);
    else if (status == XEP_OK) result = cuda->driver.memory_set((cuda_address_t)block->address, 0, bytes);
    xep_cuda_leave(cuda);
    if (status == XEP_OK) status = xep_cuda_check(&cuda->driver, result, "clear the lists of a buffer");
    if (status != XEP_OK) return status;
    block->used = 1;
    *memory_p = block->address;
    return XEP_OK;
}

void xep_cuda_kept_release(xep_device_t *device, xep_memory_t memory, void *address)
{
    (void)memory;
    for (xep_cuda_block_t *block = xep_cuda_of(device)->blocks; block != NULL; block = block->next)
        if (block->address == address) block->used = 0;
}

/* ---- kernels ---- */

static xep_status_t load(xep_cuda_device_t *cuda, const void *image, void **module_p)
{
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.module_load(module_p, image);
    xep_cuda_leave(cuda);
    xep_status_t status = xep_cuda_check(&cuda->driver, result, "load them");
    if (status == XEP_OK || status == XEP_ERR_NO_MEMORY) return status;
    return xep_fail(
        XEP_ERR_UNSUPPORTED,
        "CUDA device %d does not run the kernels of the mode (they need compute capability 9.0 or later, and "
        "a driver no older than the nvcc that built them): %.300s",
        cuda->heap.number, xep_last_error());
}

/* The image has kernels for one architecture, and a text that a new enough driver compiles for later ones. */
xep_status_t xep_cuda_kept_load(xep_device_t *device, const void *image, void **module_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    for (const xep_cuda_module_t *m = cuda->modules; m != NULL; m = m->next)
        if (m->image == image) {
            *module_p = m->module;
            return XEP_OK;
        }
    xep_cuda_module_t *made = malloc(sizeof *made);
    if (made == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a list of a device's kernels");
    *made = (xep_cuda_module_t){.next = cuda->modules, .image = image};
    xep_status_t status = load(cuda, image, &made->module);
    if (status != XEP_OK) {
        free(made);
        return status;
    }
    cuda->modules = made;
    *module_p = made->module;
    return XEP_OK;
}

void xep_cuda_kept_unload(xep_device_t *device, void *module)
{
    (void)device;
    (void)module; /* until the buffer ends */
}

void xep_cuda_kept_close(xep_cuda_device_t *cuda)
{
    while (cuda->blocks != NULL) free_block(cuda, &cuda->blocks);
    while (cuda->modules != NULL) {
        xep_cuda_module_t *m = cuda->modules;
        cuda->modules = m->next;
        cuda->driver.module_unload(m->module);
        free(m);
    }
}
