/* SPDX-License-Identifier: BSD-3-Clause */

/* ranks: none */

/*
 * Keys of heaps that are not what their owner sent: nothing is stored anywhere by them. And a heap is its user's alone.
 * Addresses of ranks are checked likewise.
 */

#include <string.h>
#include <sys/shm.h>

#include "forked.h"
#include "mapping.h"

enum { NRANKS = 2, HEAP = 1 << 20, KEY_BASE = 16, KEY_TWIN_BYTES = 72 };
enum { ADDRESS_MAGIC = 0, ADDRESS_VERSION = 4, ADDRESS_WORKER_BYTES = 8, ADDRESS_UCX = 12 };

static void share(forked_rank_t *self, xep_heap_wire_t *heap, const void *key, size_t bytes, xep_status_t expected)
{
    const void *keys[NRANKS];
    size_t sizes[NRANKS];
    keys[0] = keys[1] = key;
    sizes[0] = sizes[1] = bytes;
    keys[self->rank] = heap->key;
    sizes[self->rank] = heap->key_bytes;
    xep_status_t status = self->transport->ops->heap_connect(heap, keys, sizes);
    REQUIRE(status == expected, "status %d", status);
}

/* the peer's key comes by way of a heap that is connected as it should be */
static size_t get_peer_key(forked_rank_t *self, const xep_heap_wire_t *heap, char *key)
{
    xep_heap_wire_t *post = forked_heap(self, HEAP);
    uint64_t bytes = heap->key_bytes;
    char *here = post->base;
    memcpy(here, &bytes, sizeof bytes);
    memcpy(here + sizeof bytes, heap->key, heap->key_bytes);
    forked_barrier(self);
    char letter[4096];
    xep_status_t status;
    while ((status = post->wire.ops->get(&post->wire, 1 - self->rank, 0, letter, sizeof letter)) == XEP_INPROGRESS)
        (void)post->wire.ops->progress(&post->wire);
    REQUIRE(status == XEP_OK, "get");
    while ((status = post->wire.ops->flush(&post->wire)) == XEP_INPROGRESS) (void)post->wire.ops->progress(&post->wire);
    REQUIRE(status == XEP_OK, "flush");
    forked_barrier(self);
    self->transport->ops->heap_close(post);
    memcpy(&bytes, letter, sizeof bytes);
    memcpy(key, letter + sizeof bytes, bytes);
    return bytes;
}

/* by this much another address than the peer's */
static void wrong_base(forked_rank_t *self, int64_t by)
{
    xep_heap_wire_t *heap;
    char key[4096];
    uint64_t base, word = 1;
    REQUIRE(self->transport->ops->heap_open(self->transport, HEAP, &heap) == XEP_OK, "heap_open");
    size_t bytes = get_peer_key(self, heap, key);
    memcpy(&base, key + KEY_BASE, sizeof base);
    base += (uint64_t)by;
    memcpy(key + KEY_BASE, &base, sizeof base);
    share(self, heap, key, bytes, XEP_OK);
    REQUIRE(heap->wire.ops->map(&heap->wire, 1 - self->rank) == NULL, "mapped");
    REQUIRE(heap->wire.ops->put_signal(&heap->wire, 1 - self->rank, 0, &word, sizeof word, 64, 1) == XEP_ERR_PROTOCOL,
            "put");
    forked_barrier(self);
    self->transport->ops->heap_close(heap);
}

/* Its owner has closed it, or has ended, before this rank maps it. UCX, whose fault that may be, is not asked. */
static void gone(forked_rank_t *self)
{
    xep_heap_wire_t *first, *second;
    char key[4096];
    uint64_t word = 1;
    REQUIRE(self->transport->ops->heap_open(self->transport, HEAP, &first) == XEP_OK, "heap_open");
    size_t bytes = get_peer_key(self, first, key);
    self->transport->ops->heap_close(first);
    forked_barrier(self);
    REQUIRE(self->transport->ops->heap_open(self->transport, HEAP, &second) == XEP_OK, "heap_open");
    share(self, second, key, bytes, XEP_OK);
    REQUIRE(second->wire.ops->map(&second->wire, 1 - self->rank) == NULL, "mapped");
    REQUIRE(strstr(xep_last_error(), "has ended, and its memory is gone") != NULL, "%s", xep_last_error());
    REQUIRE(second->wire.ops->put_signal(&second->wire, 1 - self->rank, 0, &word, sizeof word, 64, 1) == XEP_ERR_PEER,
            "put");
    forked_barrier(self);
    self->transport->ops->heap_close(second);
}

static void short_key(forked_rank_t *self)
{
    xep_heap_wire_t *heap;
    REQUIRE(self->transport->ops->heap_open(self->transport, HEAP, &heap) == XEP_OK, "heap_open");
    for (size_t bytes = 0; bytes < heap->key_bytes; bytes += 8) share(self, heap, heap->key, bytes, XEP_ERR_PROTOCOL);
    forked_barrier(self);
    self->transport->ops->heap_close(heap);
}

/* Whole, and with the key of a twin, which this heap has not: the peer would put rows where nobody reads them. */
static void twin_of_one_side(forked_rank_t *self)
{
    enum { TWIN_BYTES = 8 };
    const uint32_t twin_bytes = TWIN_BYTES;
    xep_heap_wire_t *heap;
    char key[4096] = {0};
    REQUIRE(self->transport->ops->heap_open(self->transport, HEAP, &heap) == XEP_OK, "heap_open");
    REQUIRE(heap->key_bytes + TWIN_BYTES <= sizeof key, "%zu bytes", heap->key_bytes);
    memcpy(key, heap->key, heap->key_bytes);
    memcpy(key + KEY_TWIN_BYTES, &twin_bytes, sizeof twin_bytes);
    share(self, heap, key, heap->key_bytes, XEP_ERR_PROTOCOL);
    share(self, heap, key, heap->key_bytes + TWIN_BYTES, XEP_ERR_MISMATCH);
    REQUIRE(strstr(xep_last_error(), "has a key for rows in device memory, this rank has none") != NULL, "%s",
            xep_last_error());
    forked_barrier(self);
    self->transport->ops->heap_close(heap);
}

static int is_own_user_alone(const xep_mapping_t *mapping, void *count)
{
    struct shmid_ds segment;
    if (strncmp(mapping->path, "/SYSV", 5) != 0) return 1;
    REQUIRE(shmctl((int)mapping->inode, IPC_STAT, &segment) == 0, "segment %lu", (unsigned long)mapping->inode);
    REQUIRE((segment.shm_perm.mode & 077) == 0, "mode %o of %lu bytes", segment.shm_perm.mode,
            (unsigned long)segment.shm_segsz);
    ++*(int *)count;
    return 1;
}

/* Heaps, and what UCX has for messages. */
static void own_user_alone(int mapped)
{
    int count = 0;
    xep_mapping_each(is_own_user_alone, &count);
    REQUIRE(!mapped || count >= 1 || getenv("UCX_TLS") != NULL, "no segment of System V");
}

static int is_sysv(const xep_heap_wire_t *heap)
{
    xep_mapping_t mapping;
    return xep_mapping_find(heap->base, &mapping) && strncmp(mapping.path, "/SYSV", 5) == 0;
}

static void run(forked_rank_t *self)
{
    forked_connect(self);
    xep_heap_wire_t *heap = forked_heap(self, HEAP);
    int mapped = heap->wire.ops->map(&heap->wire, 1 - self->rank) != NULL;
    own_user_alone(mapped);
    if (mapped && is_sysv(heap)) gone(self);
    if (mapped) { /* what UCX moves goes to the peer, by an address of its own */
        wrong_base(self, HEAP);
        wrong_base(self, -4096);
        wrong_base(self, 1ll << 40);
    }
    short_key(self);
    twin_of_one_side(self);
    forked_barrier(self);
    self->transport->ops->heap_close(heap);
    self->transport->ops->close(self->transport);
}

/* ---- addresses ---- */

/* The peer's is this rank's own, but for a word that has another value, and so many bytes more or less. */
static void other_address(forked_rank_t *self, size_t at, int bytes, xep_status_t expected)
{
    const uint8_t peers[NRANKS] = {0};
    const void *addresses[NRANKS];
    size_t sizes[NRANKS];
    uint32_t word;
    forked_start(self);
    const xep_transport_t *own = self->transport;
    char *changed = calloc(1, own->address_bytes + 64);
    REQUIRE(changed != NULL, "memory");
    memcpy(changed, own->address, own->address_bytes);
    memcpy(&word, changed + at, sizeof word);
    word++;
    memcpy(changed + at, &word, sizeof word);
    for (uint32_t r = 0; r < NRANKS; r++) addresses[r] = own->address, sizes[r] = own->address_bytes;
    addresses[1 - self->rank] = changed;
    sizes[1 - self->rank] = (size_t)((int64_t)own->address_bytes + bytes);
    xep_status_t status = own->ops->connect(self->transport, self->rank, NRANKS, addresses, sizes, peers);
    REQUIRE(status == expected, "word at %zu, %d bytes: status %d (%s)", at, bytes, status, xep_last_error());
    free(changed);
    own->ops->close(self->transport);
    self->transport = NULL;
}

static void run_addresses(forked_rank_t *self)
{
    other_address(self, ADDRESS_MAGIC, 0, XEP_ERR_PROTOCOL);
    other_address(self, ADDRESS_WORKER_BYTES, 0, XEP_ERR_PROTOCOL);
    other_address(self, ADDRESS_VERSION, 0, XEP_ERR_MISMATCH);
    other_address(self, ADDRESS_VERSION, 8, XEP_ERR_MISMATCH); /* its head may be longer, or shorter */
    other_address(self, ADDRESS_VERSION, -8, XEP_ERR_MISMATCH);
    other_address(self, ADDRESS_UCX, 0, XEP_ERR_MISMATCH);
}

int main(void)
{
    return forked_run(NRANKS, run_addresses) != 0 || forked_run(NRANKS, run) != 0;
}
