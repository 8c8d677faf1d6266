/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Uses handles of the driver (CUDA IPC), which work with every UCX; ucp_rkey_ptr() would do the same only with a UCX
 * built with CUDA. The driver keeps memory that a peer has opened until the peer closes it, so a process that ends
 * takes nothing away from the others.
 */
#include "cuda_heap.h"

#include <stdlib.h>
#include <unistd.h>

#include "error.h"

/* Smaller allocations share a block of the driver, and handles are of whole blocks. */
static const uint64_t BLOCK_BYTES = 2 << 20;

/*
 * Allocates zeroed memory with a handle for other processes. *address_p may be set even after a failure: the caller
 * keeps it, and close frees it.
 */
static xep_status_t allocate(xep_cuda_device_t *cuda, uint64_t bytes, cuda_address_t *address_p)
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
    xep_status_t status = allocate(cuda, (bytes + BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES, &address);
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
