/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * How a rank is reached is found out at first use: in a large job most pairs of ranks never talk. Mapping is tried
 * first; else a protocol is chosen that fits the endpoint.
 */
#include "ucp_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <time.h>

#include "config.h"
#include "error.h"
#include "host.h"
#include "log.h"
#include "mapping.h"
#include "ucp_memory.h"
#include "ucp_message.h"
#include "ucp_op.h"
#include "ucp_peer.h"
#include "ucp_protocol.h"
#include "ucp_transport.h"

enum { HELD = 4096 }; /* bytes of a segment, while UCX attaches it */

/* The memory of a process that ends disappears a moment before the process does. */
static bool has_ended(const xep_ucp_link_t *link)
{
    const struct timespec moment = {0, 1000 * 1000};
    for (int i = 0; i < 50; i++) {
        if (xep_host_process_gone(link->owner.pid, link->owner.start)) return true;
        nanosleep(&moment, NULL);
    }
    return false;
}

/* Reports an ended rank to all heaps, so that those that spare ranks go on without it. */
static xep_status_t say_gone(xep_ucp_link_t *link)
{
    xep_ucp_peer_t *peer = xep_ucp_peer_of(link);
    if (peer->failed == UCS_OK && has_ended(link)) xep_ucp_peer_lose(peer, UCS_ERR_CONNECTION_RESET, "it has ended");
    return xep_fail(XEP_ERR_PEER, "rank %u has ended, and its memory is gone", link->rank);
}

static xep_status_t say_refused(const xep_ucp_link_t *link, int error)
{
    const uint64_t bytes = link->heap->super.bytes;
    if (error == ENOMEM)
        return xep_fail(XEP_ERR_NO_MEMORY,
                        "%" PRIu64 " bytes of rank %u cannot be mapped: no address space (ulimit -v, vm.max_map_count)",
                        bytes, link->rank);
    return xep_fail(XEP_ERR_TRANSPORT, "%" PRIu64 " bytes of rank %u cannot be mapped: %s%s", bytes, link->rank,
                    strerror(error), error == EACCES ? " (that rank runs as another user)" : "");
}

/*
 * Holds a segment by its first page alone, so that address space for one segment is enough while UCX attaches it again.
 */
static xep_status_t hold_segment(xep_ucp_link_t *link, void **held_p)
{
    struct shmid_ds segment;
    char *base = shmat((int)link->segment, NULL, 0);
    if (base == (void *)-1) return errno == EINVAL || errno == EIDRM ? say_gone(link) : say_refused(link, errno);
    if (shmctl((int)link->segment, IPC_STAT, &segment) == 0 && segment.shm_segsz > HELD)
        (void)munmap(base + HELD, segment.shm_segsz - HELD); /* refused where its pages are huge */
    *held_p = base;
    return XEP_OK;
}

/* The peer's key does not name POSIX memory: only checks that there is address space for as much. */
static xep_status_t try_room(xep_ucp_link_t *link)
{
    size_t bytes = (size_t)link->heap->super.bytes;
    void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return say_refused(link, errno);
    (void)munmap(room, bytes);
    return XEP_OK;
}

/*
 * libucp 1.13 dies of SIGSEGV if it cannot map memory: because a rank has ended, belongs to another user, or address
 * space is short. So mapping is tried here first. A segment that is attached here stays, even if the rank ends. POSIX
 * memory cannot be held like that: a rank that ends in the microseconds until UCX opens it still does harm.
 */
static xep_status_t hold(xep_ucp_link_t *link, void **held_p)
{
    *held_p = NULL;
    if (!xep_ucp_peer_of(link)->visible) return XEP_OK;
    if (link->segment != 0 && link->owner.is_sysv) return hold_segment(link, held_p);
    return xep_host_process_gone(link->owner.pid, link->owner.start) ? say_gone(link) : try_room(link);
}

/* If this fails, UCX could not attach the memory either. */
static xep_status_t unpack(xep_ucp_link_t *link)
{
    void *held;
    xep_status_t status = hold(link, &held);
    if (status == XEP_OK) status = xep_ucp_peer_connect(xep_ucp_peer_of(link));
    ucs_status_t ret = UCS_OK;
    if (status == XEP_OK) ret = ucp_ep_rkey_unpack(xep_ucp_peer_of(link)->endpoint, link->rkey_buffer, &link->rkey);
    if (held != NULL) (void)shmdt(held);
    if (status == XEP_OK && ret == UCS_OK) status = xep_ucp_twin_connect(link);
    if (status != XEP_OK || ret == UCS_OK) return status;
    return xep_fail(XEP_ERR_TRANSPORT, "the key of rank %u cannot be used: %s", link->rank, ucs_status_string(ret));
}

/* whether the segment at address is the one that the peer has named in its key */
static bool is_peers(const xep_ucp_link_t *link, const void *address)
{
    xep_mapping_t mapping;
    if (!xep_mapping_is_shared(address, link->heap->super.bytes)) return false;
    if (link->segment == 0 || !xep_mapping_find(address, &mapping) || !xep_mapping_is_segment(&mapping)) return true;
    return mapping.inode == link->segment && mapping.offset == link->segment_offset;
}

/*
 * XEP_OK: base is set if the rank's region can be mapped here. UCX computes the address from the one in the key without
 * a check: a wrong one would make every store to the rank a wild one.
 */
static xep_status_t map(xep_ucp_link_t *link)
{
    uint64_t bytes = link->heap->super.bytes;
    void *address;
    if (link->heap->transport->map == XEP_MAP_NEVER || !xep_ucp_peer_of(link)->may_map) return XEP_OK;
    if (ucp_rkey_ptr(link->rkey, link->remote_base, &address) != UCS_OK) return XEP_OK;
    if (!is_peers(link, address))
        return xep_fail(XEP_ERR_PROTOCOL,
                        "invalid key from rank %u: %" PRIu64 " bytes at %#" PRIx64 " (not in the memory it shares)",
                        link->rank, bytes, link->remote_base);
    link->base = address;
    return XEP_OK;
}

/* ---- not mapped ---- */

/*
 * Rows of 14 KB between two ranks, both ways at once, GB/s of 128 rows and of 4096 (wire_rate.mp, medians, 2 cores of
 * an EPYC with AVX-512):
 *
 *                                  rma            am
 *   1.13  TCP                       1.1   0.8      11   8.9
 *   1.13  shared memory              88    19      23    15
 *   1.22  TCP                       2.4   2.1      11   8.9
 *   1.22  shared memory, with CMA    89    27      14    11
 *   1.22  the same, puts not cut     10   6.8
 *
 * On shared memory a put is a copy by the sender; but from 1.16 on, with CMA, long puts are system calls: so they are
 * cut. RDMA could not be measured.
 */

enum { LINE_BYTES = 64 };

/* Most bytes of one UCX put to the peer: longer puts are cut, as UCX would not copy them; SIZE_MAX: none is cut. */
static size_t cut_of(xep_ucp_peer_t *peer)
{
    size_t least = peer->transport->copied_below;
    const bool shares = xep_ucp_peer_has(peer, "sysv") || xep_ucp_peer_has(peer, "posix");
    return least != 0 && shares ? least - LINE_BYTES : SIZE_MAX;
}

/*
 * Whether the sender copies puts, or hardware moves them. From 1.16 on UCX may use CMA beside shared memory for long
 * puts, or TCP, whose flush waits for the peer to be in a call of xep; then puts are cut, or all goes in messages.
 */
static bool puts_copy(xep_ucp_peer_t *peer)
{
    if (peer->transport->version < XEP_UCP_SECOND_PROTOCOLS) return true;
    return cut_of(peer) != SIZE_MAX || !(xep_ucp_peer_has(peer, "cma") || xep_ucp_peer_has(peer, "tcp"));
}

static const xep_ucp_protocol_t *choose_protocol(xep_ucp_peer_t *peer)
{
    switch (peer->transport->put) {
    case XEP_PUT_RMA: return &xep_ucp_rma;
    case XEP_PUT_AM: return &xep_ucp_am;
    default: break;
    }
    return puts_copy(peer) && !xep_ucp_peer_is_tcp(peer) ? &xep_ucp_rma : &xep_ucp_am;
}

/* staging memory, once for each heap */
static xep_status_t open_pool(xep_ucp_heap_t *heap)
{
    const xep_ucp_transport_t *transport = heap->transport;
    uint64_t most = transport->inflight < XEP_UCP_STAGING ? transport->inflight : XEP_UCP_STAGING;
    if (heap->pool.slabs != NULL) return XEP_OK;
    size_t nchunks = (size_t)(most / XEP_UCP_MESSAGE_BYTES);
    /* every rank may have an open bounce buffer: some more are needed that are in flight and come back */
    if (nchunks < (size_t)transport->nranks + 2) nchunks = (size_t)transport->nranks + 2;
    return xep_ucp_pool_grow(&heap->pool, nchunks);
}

/* From here on UCX moves bytes for this rank: progress is made in every round, no longer in every sixteenth only. */
static xep_status_t open_remote(xep_ucp_link_t *link)
{
    const xep_ucp_protocol_t *protocol = link->heap->super.spares          ? &xep_ucp_am
                                         : link->heap->twin.memory != NULL ? &xep_ucp_rma
                                                                           : choose_protocol(xep_ucp_peer_of(link));
    xep_status_t status = protocol == &xep_ucp_am ? open_pool(link->heap) : XEP_OK;
    if (status != XEP_OK) return status;
    link->protocol = protocol;
    link->cut = cut_of(xep_ucp_peer_of(link));
    link->queued_tail = &link->queued;
    link->held_offset = XEP_UCP_NO_SIGNAL;
    link->socket = xep_ucp_peer_is_tcp(xep_ucp_peer_of(link));
    link->heap->used = true;
    atomic_store_explicit(&link->heap->transport->urgent, true, memory_order_relaxed);
    return XEP_OK;
}

/* Mapped ranks need no protocol, and no memory to put bytes together in. */
static xep_status_t reach(xep_ucp_link_t *link, xep_ucp_link_state_t *state_p)
{
    xep_status_t status;
    *state_p = XEP_UCP_LINK_MAPPED;
    if (link->rank == link->heap->transport->rank) {
        link->base = link->heap->super.base;
        return XEP_OK;
    }
    status = unpack(link);
    if (status == XEP_OK) status = map(link);
    if (status != XEP_OK || link->base != NULL) return status;
    *state_p = XEP_UCP_LINK_REMOTE;
    return open_remote(link);
}

/* for xep_group_peer(): the first of the peer's links to be opened, the control heap's, tells how it is reached */
static void note_reach(xep_ucp_peer_t *peer, xep_ucp_link_state_t reach)
{
    if (peer->described || peer->rank == peer->transport->rank) return;
    peer->described = true;
    if (reach == XEP_UCP_LINK_MAPPED) snprintf(peer->text, sizeof peer->text, "mapped");
    else if (reach == XEP_UCP_LINK_BROKEN) snprintf(peer->text, sizeof peer->text, "not reachable");
    else snprintf(peer->text, sizeof peer->text, "%s, %s", xep_ucp_peer_lanes(peer), choose_protocol(peer)->text);
    xep_log(XEP_LOG_INFO, "rank %u: %s", peer->rank, peer->text);
}

/* A link that could not be opened stays broken: later calls return that error and do not try again. */
xep_status_t xep_ucp_link_open(xep_ucp_link_t *link)
{
    xep_ucp_link_state_t state;
    xep_status_t status;
    if (link->state != XEP_UCP_LINK_NEW) return XEP_OK;
    status = reach(link, &state);
    link->state = status == XEP_OK ? state : XEP_UCP_LINK_BROKEN;
    link->broken = status;
    if (status != XEP_OK) xep_log(XEP_LOG_ERROR, "%s", xep_last_error());
    note_reach(xep_ucp_peer_of(link), link->state);
    return status;
}

xep_status_t xep_ucp_link_check(xep_ucp_link_t *link)
{
    const xep_ucp_peer_t *peer = &link->heap->transport->peers[link->rank];
    if (peer->failed != UCS_OK) return xep_ucp_peer_fail(peer);
    if (link->state == XEP_UCP_LINK_BROKEN)
        return xep_fail(link->broken, "the memory of rank %u cannot be reached", link->rank);
    return XEP_OK;
}

void xep_ucp_link_close(xep_ucp_link_t *link)
{
    if (link->rkey != NULL) ucp_rkey_destroy(link->rkey);
    link->rkey = NULL;
    if (link->twin_rkey != NULL) ucp_rkey_destroy(link->twin_rkey);
    link->twin_rkey = NULL;
}

/*
 * Operations that UCX has for the rank may stay until the worker ends: they are counted apart, and other bounce buffers
 * are made when the ones they hold are missing. The intake is told first: from here on nothing of the rank is stored.
 */
void xep_ucp_link_fence_off(xep_ucp_link_t *link)
{
    xep_ucp_heap_t *heap = link->heap;
    if (link->fenced_off) return;
    xep_ucp_intake_refuse(heap->intake, link->rank);
    if (link->state == XEP_UCP_LINK_REMOTE) xep_ucp_signals_drop(link);
    if (link->bounce != NULL) xep_ucp_pool_put(&heap->pool, link->bounce);
    link->bounce = NULL;
    xep_ucp_ops_fence_off(link);
    link->fenced_off = true;
    heap->inflight -= link->inflight;
    heap->outstanding -= link->outstanding;
    heap->left_over += link->outstanding;
}

/* Walks a list of the links that hold something back, as thousands may not. */
xep_status_t xep_ucp_links_push(xep_ucp_heap_t *heap)
{
    xep_status_t status = XEP_OK;
    while (status == XEP_OK && heap->touched != NULL) {
        xep_ucp_link_t *link = heap->touched;
        if (!xep_ucp_link_is_spared(link)) {
            status = link->protocol->push(link);
            if (status == XEP_OK) status = xep_ucp_message_push_out(link);
        }
        heap->touched = link->next_touched; /* after push, which may add links to the list */
        link->touched = false;
    }
    return status;
}
