/* SPDX-License-Identifier: BSD-3-Clause */

/* Memory: that of devices is poisoned, pinned memory is the host's, and an address that is neither is none. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

enum { HOST_MEMORY = 1, DEVICE_MEMORY = 2, RANGES = 4096, POISON = 0xcb, MEMORY = 1 << 30 };

typedef struct range {
    char *begin;
    size_t bytes;
    int kind, device, file;
} range_t;

static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;
static range_t ranges[RANGES];

static range_t *find_range(address_t address)
{
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].begin != NULL && address >= (address_t)ranges[i].begin &&
            address < (address_t)ranges[i].begin + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static result_t map_range(int file, size_t bytes, int kind, void **address_p)
{
    char *begin = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (begin == MAP_FAILED) return NO_MEMORY;
    madvise(begin, bytes, MADV_HUGEPAGE); /* a third of the tests' time were faults of small pages; refused: no harm */
    pthread_mutex_lock(&ranges_lock);
    for (int i = 0; i < RANGES; i++) {
        if (ranges[i].begin != NULL) continue;
        ranges[i] = (range_t){begin, bytes, kind, *(const int *)standin_context(), file};
        pthread_mutex_unlock(&ranges_lock);
        standin_count(1);
        *address_p = begin;
        return DONE;
    }
    pthread_mutex_unlock(&ranges_lock);
    munmap(begin, bytes);
    return NO_MEMORY;
}

/* Nothing else gets these addresses, so that who goes on using them is noticed. */
static result_t unmap_range(address_t address, int kind)
{
    pthread_mutex_lock(&ranges_lock);
    range_t *range = find_range(address);
    result_t result = range != NULL && (address_t)range->begin == address && range->kind == kind ? DONE : INVALID;
    if (result == DONE) {
        mmap(range->begin, range->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        close(range->file);
        *range = (range_t){0};
        standin_count(-1);
    }
    pthread_mutex_unlock(&ranges_lock);
    return result;
}

static result_t make_range(size_t bytes, int kind, void **address_p)
{
    if (standin_context() == NULL) return NO_CONTEXT;
    if (bytes == 0) return INVALID;
    if (bytes > MEMORY) return NO_MEMORY;
    int file = memfd_create("standin", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) return NO_MEMORY;
    result_t result = map_range(file, bytes, kind, address_p);
    if (result == DONE) memset(*address_p, POISON, bytes);
    else close(file);
    return result;
}

API cuMemAlloc_v2(address_t *address_p, size_t bytes)
{
    if (standin_fails("cuMemAlloc_v2")) return standin_error(NO_MEMORY);
    void *address = NULL;
    result_t result = make_range(bytes, DEVICE_MEMORY, &address);
    *address_p = (address_t)address;
    return result;
}

API cuMemFree_v2(address_t address)
{
    standin_streams_wait_all();
    return unmap_range(address, DEVICE_MEMORY);
}

API cuMemHostAlloc(void **address_p, size_t bytes, unsigned flags)
{
    if (standin_fails("cuMemHostAlloc")) return standin_error(NO_MEMORY);
    (void)flags;
    return make_range(bytes, HOST_MEMORY, address_p);
}

API cuMemFreeHost(void *address)
{
    standin_streams_wait_all();
    return unmap_range((address_t)address, HOST_MEMORY);
}

/* Memory of the program's, which stays where it is: a range without a file. Freed first, it would be unknown here. */
API cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    if (standin_fails("cuMemHostRegister_v2")) return standin_error(NO_MEMORY);
    result_t result = NO_MEMORY;
    if (address == NULL || bytes == 0 || flags != 0 || standin_context() == NULL) return INVALID;
    if (getenv("STANDIN_PINS_NOTHING") != NULL) return NO_MEMORY;
    if (getenv("STANDIN_HAS_PINNED") != NULL) return ALREADY_PINNED;
    pthread_mutex_lock(&ranges_lock);
    if (find_range((address_t)address) != NULL) result = ALREADY_PINNED;
    for (int i = 0; i < RANGES && result == NO_MEMORY; i++) {
        if (ranges[i].begin != NULL) continue;
        ranges[i] = (range_t){address, bytes, HOST_MEMORY, *(const int *)standin_context(), -1};
        standin_count(1);
        result = DONE;
    }
    pthread_mutex_unlock(&ranges_lock);
    return result;
}

API cuMemHostUnregister(void *address)
{
    standin_streams_wait_all();
    pthread_mutex_lock(&ranges_lock);
    range_t *range = find_range((address_t)address);
    result_t result = range != NULL && range->begin == address && range->file == -1 ? DONE : INVALID;
    if (result == DONE) {
        *range = (range_t){0};
        standin_count(-1);
    }
    pthread_mutex_unlock(&ranges_lock);
    return result;
}

API cuPointerGetAttribute(void *value, int attribute, address_t address)
{
    pthread_mutex_lock(&ranges_lock);
    const range_t *range = find_range(address);
    result_t result = range != NULL && (attribute == 2 || attribute == 8 || attribute == 9) ? DONE : INVALID;
    if (result == DONE) *(int *)value = attribute == 2 ? range->kind : attribute == 9 ? range->device : 0;
    pthread_mutex_unlock(&ranges_lock);
    return result;
}

/* ---- memory of other processes: a handle names the file behind it ---- */

typedef struct ipc {
    int pid, file;
    size_t bytes;
    char reserved[64 - 16];
} ipc_t;
_Static_assert(sizeof(ipc_t) == 64, "as a CUipcMemHandle");

API cuIpcGetMemHandle(ipc_t *handle_p, address_t address)
{
    if (standin_fails("cuIpcGetMemHandle")) return standin_error(INVALID);
    pthread_mutex_lock(&ranges_lock);
    const range_t *range = find_range(address);
    result_t result = range != NULL && range->kind == DEVICE_MEMORY ? DONE : INVALID;
    if (result == DONE) *handle_p = (ipc_t){.pid = getpid(), .file = range->file, .bytes = range->bytes};
    pthread_mutex_unlock(&ranges_lock);
    return result;
}

API cuIpcOpenMemHandle_v2(address_t *address_p, ipc_t handle, unsigned flags)
{
    char path[64];
    void *address = NULL;
    if (standin_fails("cuIpcOpenMemHandle_v2")) return standin_error(NO_WAY);
    if (handle.pid == getpid() || flags != 1 || standin_context() == NULL) return INVALID;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return INVALID;
    result_t result = map_range(file, handle.bytes, DEVICE_MEMORY, &address);
    *address_p = (address_t)address;
    return result;
}

API cuIpcCloseMemHandle(address_t address)
{
    standin_streams_wait_all();
    return unmap_range(address, DEVICE_MEMORY);
}
