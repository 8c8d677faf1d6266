/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A bootstrap moves equally many bytes from each rank, but addresses and keys differ in length. So lengths go first,
 * then everything, padded to the longest.
 */
#include "group_exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "group_abort.h"
#include "group_control.h"
#include "group_ctl.h"

/* An address or a key of UCX with a dozen devices has a few KB. All ranks see the same lengths: all refuse. */
enum { MAX_BLOB = 64 * 1024 };
_Static_assert(MAX_BLOB + 512 <= XEP_CTL_BYTES, "a group that shrinks gathers them by control messages");

xep_status_t xep_group_exchange(xep_group_t *group, const void *send, void *recv, size_t bytes)
{
    xep_status_t status = xep_group_usable(group);
    if (status != XEP_OK) return status;
    if (group->connected) return xep_group_gather(group, send, recv, bytes);
    return group->boot->allgather(group->boot, send, recv, bytes);
}

/* The first rank that does not stand well: the same one for all but those that know more themselves. */
static xep_status_t check_all(const xep_group_t *group, const char *what, const char *all, size_t bytes)
{
    for (uint32_t r = 0; r < group->nranks; r++) {
        int32_t told;
        memcpy(&told, all + r * bytes, sizeof told);
        if (told == XEP_OK) continue;
        const xep_status_t status = xep_status_told(told, XEP_ERR_PROTOCOL);
        return xep_fail(status, "rank %u cannot %s: %s", r, what, xep_status_text(status));
    }
    return XEP_OK;
}

xep_status_t xep_group_agree(xep_group_t *group, const char *what, const void *mine, void *all, size_t bytes)
{
    char reason[XEP_REASON_BYTES];
    int32_t own;
    memcpy(&own, mine, sizeof own);
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    xep_status_t status = xep_group_exchange(group, mine, all, bytes);
    if (own != XEP_OK) return xep_fail((xep_status_t)own, "%s", reason);
    return status == XEP_OK ? check_all(group, what, all, bytes) : status;
}

/* One more byte than needed, as malloc of none may give NULL. */
static xep_status_t allocate(xep_blobs_t *blobs, uint32_t nranks, size_t longest)
{
    blobs->blob = calloc(nranks, sizeof *blobs->blob);
    blobs->bytes = calloc(nranks, sizeof *blobs->bytes);
    blobs->storage = calloc(nranks + 1, longest + 1); /* one more: what is sent, padded */
    if (blobs->blob != NULL && blobs->bytes != NULL && blobs->storage != NULL) return XEP_OK;
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory to exchange %zu bytes with %u ranks", longest, nranks);
}

/*
 * An error on one rank alone would leave the others in the second allgather. But all ranks decide by the same lengths:
 * only a lack of memory can do that.
 */
xep_status_t xep_group_exchange_blobs(xep_group_t *group, const void *send, size_t bytes, xep_blobs_t *blobs_p)
{
    xep_blobs_t blobs = {NULL, NULL, NULL};
    uint64_t mine = bytes, longest = 0;
    uint64_t *lengths = calloc(group->nranks, sizeof *lengths);
    xep_status_t status;
    if (lengths == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the lengths of %u ranks", group->nranks);
    status = xep_group_exchange(group, &mine, lengths, sizeof mine);
    if (status != XEP_OK) goto out;
    for (uint32_t r = 0; r < group->nranks && status == XEP_OK; r++) {
        if (lengths[r] > MAX_BLOB)
            status = xep_fail(XEP_ERR_PROTOCOL, "invalid length from rank %u: %" PRIu64 " bytes (at most %d)", r,
                              lengths[r], MAX_BLOB);
        if (lengths[r] > longest) longest = lengths[r];
    }
    if (status != XEP_OK) goto out;
    status = allocate(&blobs, group->nranks, longest);
    if (status != XEP_OK) goto out;
    char *padded = (char *)blobs.storage + group->nranks * longest;
    if (bytes > 0) memcpy(padded, send, bytes);
    if (longest > 0) status = xep_group_exchange(group, padded, blobs.storage, longest);
    if (status != XEP_OK) goto out;
    for (uint32_t r = 0; r < group->nranks; r++) {
        blobs.blob[r] = (char *)blobs.storage + r * longest;
        blobs.bytes[r] = lengths[r];
    }
    *blobs_p = blobs;
    blobs = (xep_blobs_t){NULL, NULL, NULL};
out:
    xep_blobs_free(&blobs);
    free(lengths);
    return status;
}

void xep_blobs_free(xep_blobs_t *blobs)
{
    free(blobs->blob);
    free(blobs->bytes);
    free(blobs->storage);
    *blobs = (xep_blobs_t){NULL, NULL, NULL};
}

/* Keys are copied by the transport: nothing of the exchange outlives this call. */
xep_status_t xep_group_connect_heap(xep_group_t *group, xep_heap_wire_t *heap)
{
    xep_blobs_t blobs;
    xep_status_t status = xep_group_exchange_blobs(group, heap->key, heap->key_bytes, &blobs);
    if (status != XEP_OK) return status;
    status = group->transport->ops->heap_connect(heap, blobs.blob, blobs.bytes);
    xep_blobs_free(&blobs);
    return status;
}
