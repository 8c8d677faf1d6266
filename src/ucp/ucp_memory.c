/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCX allocates the memory: only then can ucp_rkey_ptr() map it in another process, on posix and sysv alike. The user
 * may choose the kind (UCX_TLS).
 */
#define _GNU_SOURCE
#include "ucp_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include "error.h"
#include "mapping.h"
#include "ucp_settings.h"
#include "ucp_shared.h"

enum {
    PAGE = 4096, /* heaps begin on a page on every rank, whatever memory UCX found */
    HUGE_PAGE = 2 << 20
};

static xep_status_t allocate(xep_ucp_heap_t *heap, uint64_t bytes)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = bytes,
        .flags = UCP_MEM_MAP_ALLOCATE, /* with NONBLOCK too, posix writes every page: the same time was measured */
    };
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucs_status_t ret = ucp_mem_map(heap->transport->context, &params, &heap->memory);
    if (ret != UCS_OK) {
        heap->memory = NULL;
        return xep_fail(XEP_ERR_NO_MEMORY, "ucx cannot allocate %" PRIu64 " bytes: %s", bytes, ucs_status_string(ret));
    }
    ret = ucp_mem_query(heap->memory, &attr);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_mem_query: %s", ucs_status_string(ret));
    heap->super.base = attr.address;
    return XEP_OK;
}

/*
 * UCX makes System V segments that the user's group may attach, and marks them at once to go with the last process.
 * Their id is the inode of the mapping. Ranks that share memory have the same user, so nobody else needs them. Segments
 * that were attached before belong to the program or another library.
 */
static int list_segment(const xep_mapping_t *mapping, void *arg)
{
    xep_ucp_segments_t *list = arg;
    if (strncmp(mapping->path, "/SYSV", 5) != 0) return 1;
    uint64_t *ids = realloc(list->ids, (list->count + 1) * sizeof *ids);
    list->incomplete = ids == NULL;
    if (ids == NULL) return 0;
    ids[list->count++] = mapping->inode;
    list->ids = ids;
    return 1;
}

void xep_ucp_memory_list_segments(xep_ucp_segments_t *list)
{
    *list = (xep_ucp_segments_t){0};
    xep_mapping_each(list_segment, list);
}

static bool is_listed(const xep_ucp_segments_t *list, uint64_t id)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->ids[i] == id) return true;
    return false;
}

static int keep_to_user(const xep_mapping_t *mapping, void *before)
{
    struct shmid_ds segment;
    if (strncmp(mapping->path, "/SYSV", 5) != 0 || is_listed(before, mapping->inode)) return 1;
    if (shmctl((int)mapping->inode, IPC_STAT, &segment) != 0 || segment.shm_cpid != getpid()) return 1;
    if ((segment.shm_perm.mode & SHM_DEST) == 0) return 1;
    segment.shm_perm.mode &= 0600;
    (void)shmctl((int)mapping->inode, IPC_SET, &segment);
    return 1;
}

void xep_ucp_memory_keep_to_user(xep_ucp_segments_t *before)
{
    if (!before->incomplete) xep_mapping_each(keep_to_user, before);
    free(before->ids);
    before->ids = NULL;
}

static uintptr_t misalignment(const xep_ucp_heap_t *heap)
{
    return (uintptr_t)heap->super.base % PAGE;
}

/* Mapping is mutual: a rank that this one has not mapped may put into its heap. */
static bool is_put_to(const xep_ucp_heap_t *heap)
{
    for (uint32_t r = 0; heap->links != NULL && r < heap->transport->nranks; r++)
        if (heap->links[r].state != XEP_UCP_LINK_MAPPED && r != heap->transport->rank) return true;
    return false;
}

static void *take(uintptr_t begin, size_t bytes, int access)
{
    return mmap((void *)begin, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

/*
 * A peer that was stopped and given up may be continued, and then UCX puts by address into whatever is there: the peer
 * itself by CMA; over TCP, this process in its worker's progress, which a fault would kill. So the addresses stay
 * reserved for ever, by writable pages that nobody reads or, without overcommit and free memory, by pages without
 * access. They cost memory only if something comes late.
 */
static void fence_off(const xep_ucp_heap_t *heap)
{
    uintptr_t begin = (uintptr_t)heap->super.base / PAGE * PAGE;
    size_t bytes = (size_t)((uintptr_t)heap->super.base + heap->super.bytes - begin + PAGE - 1) / PAGE * PAGE;
    void *fence = take(begin, bytes, PROT_READ | PROT_WRITE);
    if (fence == MAP_FAILED) fence = take(begin, bytes, PROT_NONE);
    if (fence != MAP_FAILED && fence != (void *)begin) (void)munmap(fence, bytes); /* before Linux 4.17 */
}

void xep_ucp_memory_close(xep_ucp_heap_t *heap)
{
    if (heap->memory == NULL) return;
    ucp_mem_unmap(heap->transport->context, heap->memory);
    heap->memory = NULL;
    if (heap->super.exposed && is_put_to(heap)) fence_off(heap);
}

/* only memory of a kind that the user asked for may not begin on a page */
static xep_status_t allocate_aligned(xep_ucp_heap_t *heap, uint64_t bytes)
{
    xep_status_t status = allocate(heap, bytes);
    if (status != XEP_OK || misalignment(heap) == 0) return status;
    xep_ucp_memory_close(heap);
    status = allocate(heap, bytes + PAGE);
    if (status == XEP_OK && misalignment(heap) != 0)
        heap->super.base = (uint8_t *)heap->super.base + PAGE - misalignment(heap);
    return status;
}

/* UCX complains of each kind of memory that it cannot have, even if the next kind works. */
static xep_status_t allocate_quietly(xep_ucp_heap_t *heap, uint64_t bytes)
{
    xep_ucp_quiet_begin();
    xep_status_t status = allocate_aligned(heap, bytes);
    xep_ucp_quiet_end();
    return status;
}

/*
 * Memory that is not there is refused before UCX tries: it writes every page of a POSIX segment, until the file system
 * or the machine is full. If others were quicker, UCX returns memory that no peer can map: refused as well.
 */
static xep_status_t allocate_shared(xep_ucp_heap_t *heap, uint64_t bytes)
{
    const xep_ucp_shared_t *shared = &heap->transport->shared;
    xep_mapping_t mapping;
    xep_status_t status = xep_ucp_shared_check(shared, bytes);
    if (status == XEP_OK) status = allocate_quietly(heap, bytes);
    if (status != XEP_OK || !xep_mapping_find(heap->super.base, &mapping) || mapping.shared) return status;
    xep_ucp_memory_close(heap);
    return xep_ucp_shared_refuse(shared, bytes);
}

/* if the user names the kind, UCX itself says what it cannot have */
static xep_status_t allocate_any(xep_ucp_heap_t *heap, uint64_t bytes)
{
    if (xep_ucp_settings_name_memory()) return allocate_aligned(heap, bytes);
    return heap->transport->shares_memory ? allocate_shared(heap, bytes) : allocate_quietly(heap, bytes);
}

xep_status_t xep_ucp_memory_open(xep_ucp_heap_t *heap, uint64_t bytes)
{
    xep_ucp_segments_t before;
    xep_ucp_memory_list_segments(&before);
    xep_status_t status = allocate_any(heap, bytes);
    xep_ucp_memory_keep_to_user(&before);
    if (status != XEP_OK) return status;
    heap->super.bytes = bytes;
    if (bytes >= HUGE_PAGE) (void)madvise(heap->super.base, bytes, MADV_HUGEPAGE); /* a hint */
    if (xep_ucp_settings_has_memory()) memset(heap->super.base, 0, bytes);         /* may be malloc's */
    return XEP_OK;
}

/* ---- bounce buffers in which puts to one rank are put together ---- */

/* Slabs are cut into bounce buffers; the bounce buffer returned last is taken first, so that few pages are touched. */

xep_status_t xep_ucp_pool_grow(xep_ucp_pool_t *pool, size_t nchunks)
{
    /* reserved, not touched: bounce buffers that are never in use at once cost nothing */
    size_t stride = XEP_UCP_HEADROOM + XEP_UCP_MESSAGE_BYTES, bytes = stride * nchunks;
    xep_ucp_slab_t *slab = calloc(1, sizeof *slab + nchunks * sizeof slab->bounces[0]);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == NULL || memory == MAP_FAILED) goto fail;
    slab->next = pool->slabs;
    slab->memory = memory;
    slab->bytes = bytes;
    pool->slabs = slab;
    for (size_t i = nchunks; i-- > 0;) {
        slab->bounces[i].data = (uint8_t *)memory + i * stride + XEP_UCP_HEADROOM;
        xep_ucp_pool_put(pool, &slab->bounces[i]);
    }
    return XEP_OK;

fail:
    if (memory != MAP_FAILED) munmap(memory, bytes);
    free(slab);
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %zu bounce buffers of %d bytes", nchunks, XEP_UCP_MESSAGE_BYTES);
}

void xep_ucp_pool_close(xep_ucp_pool_t *pool)
{
    for (xep_ucp_slab_t *slab = pool->slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        munmap(slab->memory, slab->bytes);
        free(slab);
    }
}

xep_ucp_bounce_t *xep_ucp_pool_get(xep_ucp_pool_t *pool)
{
    xep_ucp_bounce_t *bounce = pool->free;
    if (bounce == NULL) return NULL;
    pool->free = bounce->next;
    bounce->bytes = 0;
    bounce->nruns = 0;
    return bounce;
}

void xep_ucp_pool_put(xep_ucp_pool_t *pool, xep_ucp_bounce_t *bounce)
{
    bounce->next = pool->free;
    pool->free = bounce;
}

/* ---- twins ---- */

xep_status_t xep_ucp_twin_connect(xep_ucp_link_t *link)
{
    if (link->heap->twin.memory == NULL) return XEP_OK;
    const ucs_status_t ret = ucp_ep_rkey_unpack(xep_ucp_peer_of(link)->endpoint, link->twin_buffer, &link->twin_rkey);
    if (ret == UCS_OK) return XEP_OK;
    return xep_fail(XEP_ERR_TRANSPORT, "the key of the device memory of rank %u cannot be used: %s", link->rank,
                    ucs_status_string(ret));
}

void xep_ucp_twin_close(xep_ucp_heap_t *heap)
{
    if (heap->twin.memory == NULL) return;
    for (uint32_t r = 0; heap->links != NULL && r < heap->transport->nranks; r++) {
        if (heap->links[r].twin_rkey != NULL) ucp_rkey_destroy(heap->links[r].twin_rkey);
        heap->links[r].twin_rkey = NULL;
    }
    if (heap->twin.inputs_memory != NULL) ucp_mem_unmap(heap->transport->context, heap->twin.inputs_memory);
    ucp_mem_unmap(heap->transport->context, heap->twin.memory);
    heap->twin.memory = NULL;
}
