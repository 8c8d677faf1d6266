/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The heap uses handles of the driver (CUDA IPC), which work with every UCX; ucp_rkey_ptr() would do the same only with
 * a UCX built with CUDA. The driver keeps memory that a peer has opened until the peer closes it, so a process that
 * ends takes nothing away from the others.
 *
 * A mode that is opened again asks for memory of the same sizes, and gets the memory it had before. So each kind has at
 * most one unused block: one of another size is freed when a new one is needed.
 */
#include "cuda_memory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"

/* ---- the heap ---- */

/* Smaller allocations share a block of the driver, and handles are of whole blocks. */
static const uint64_t BLOCK_BYTES = 2 << 20;

/*
 * Allocates zeroed memory with a handle for other processes. *address_p may be set even after a failure: the caller
 * keeps it, and close frees it.
 */
static xep_status_t allocate_heap(xep_cuda_device_t *cuda, uint64_t bytes, cuda_address_t *address_p)
{
    const xep_cuda_driver_t *driver = &cuda->driver;
    cuda_result_t result = driver->memory_allocate(address_p, bytes);
    if (result == CUDA_OUT_OF_MEMORY)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory on CUDA device %d: %llu bytes for the buffer", cuda->heap.number,
                        (unsigned long long)bytes);
    if (result == CUDA_DONE) result = driver->memory_set(*address_p, 0, bytes);
    if (result == CUDA_DONE) result = driver->ipc_get(&cuda->key.handle, *address_p);
    return xep_cuda_check(driver, result, "make a heap that other processes can open");
}

/*
 * base is set also after a failure, for close to free. The key is sent to all ranks; which process and which device it
 * names is part of it, so that a peer knows whether it needs the handle, and what to say when it cannot open it.
 */
xep_status_t xep_cuda_heap_open(xep_heap_device_t *device, uint64_t bytes)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    cuda_address_t address = 0;
    xep_cuda_enter(cuda);
    xep_status_t status = allocate_heap(cuda, (bytes + BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES, &address);
    /* the zeros are there before a peer can write */
    if (status == XEP_OK) status = xep_cuda_check(&cuda->driver, cuda->driver.context_sync(), "clear a heap");
    xep_cuda_leave(cuda);
    device->base = (void *)address;
    device->bytes = bytes;
    cuda->key.pid = (uint64_t)getpid();
    cuda->key.address = address;
    cuda->key.device = cuda->heap.number;
    return status;
}

/*
 * The address at which this device reaches the heap of a rank. For a rank of this process that is the heap's own
 * address, as the driver does not open its own handles. Opening another process's handle also enables access from
 * device to device; if there is none between the two, that fails here and not in a kernel.
 */
static xep_status_t reach(xep_cuda_device_t *cuda, uint32_t rank, const xep_cuda_key_t *key)
{
    cuda_address_t address = key->address;
    cuda_result_t result = CUDA_DONE;
    if (key->pid != (uint64_t)getpid()) {
        result = cuda->driver.ipc_open(&address, key->handle, CUDA_IPC_PEER_ACCESS);
        cuda->opened[rank] = result == CUDA_DONE;
    }
    cuda->mapped[rank] = (void *)address;
    if (xep_cuda_check(&cuda->driver, result, "open it") == XEP_OK) return XEP_OK;
    return xep_fail(XEP_ERR_TRANSPORT,
                    "CUDA device %d of this rank cannot reach the memory of rank %u, on device %d of "
                    "that process: %.300s",
                    cuda->heap.number, rank, key->device, xep_last_error());
}

/*
 * nranks is set only when both lists are there: close counts on them. Ranks that were opened before a failure are
 * closed there too.
 */
xep_status_t xep_cuda_heap_connect(xep_heap_device_t *device, uint32_t rank, uint32_t nranks, const void *const *keys,
                                   const size_t *bytes)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_status_t status = XEP_OK;
    cuda->mapped = calloc(nranks, sizeof *cuda->mapped);
    cuda->opened = calloc(nranks, sizeof *cuda->opened);
    if (cuda->mapped == NULL || cuda->opened == NULL)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", nranks);
    cuda->rank = rank;
    cuda->nranks = nranks;
    xep_cuda_enter(cuda);
    for (uint32_t r = 0; r < nranks && status == XEP_OK; r++) {
        if (bytes[r] != sizeof(xep_cuda_key_t))
            status = xep_fail(XEP_ERR_PROTOCOL, "invalid key from rank %u: %zu bytes (%zu)", r, bytes[r],
                              sizeof(xep_cuda_key_t));
        else status = reach(cuda, r, keys[r]);
    }
    xep_cuda_leave(cuda);
    return status;
}

void *xep_cuda_heap_map(xep_device_t *device, uint32_t rank)
{
    return xep_cuda_of(device)->mapped[rank];
}

/* opened[], not mapped[], says what to close: for ranks of this process mapped[] has their own address. */
void xep_cuda_heap_close(xep_cuda_device_t *cuda)
{
    for (uint32_t r = 0; r < cuda->nranks; r++)
        if (cuda->opened[r]) cuda->driver.ipc_close((cuda_address_t)cuda->mapped[r]);
    if (cuda->heap.base != NULL) cuda->driver.memory_free((cuda_address_t)cuda->heap.base);
    free(cuda->opened);
    free(cuda->mapped);
}

/* ---- memory of modes ---- */

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
