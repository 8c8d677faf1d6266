/* SPDX-License-Identifier: BSD-3-Clause */

#include "boot.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "watch.h"

typedef struct callback {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_allgather_fn allgather;
    void *ctx;
} callback_t;

/* What ranks tell one another first. Written by each rank, read by all; never leaves one build of the library. */
typedef struct card {
    uint64_t magic;
    uint32_t rank, nranks;
} card_t;
_Static_assert(sizeof(card_t) == 16, "no padding");

#define CARD_MAGIC UINT64_C(0x7865702d63617264)

/*
 * Room behind the first exchange: an allgather over more ranks than the params say writes there, which shows, and not
 * over anything else.
 */
enum { SPARE_CARDS = 4096 };

/* A callback that raises an exception in another language may well return 0 and leave recv as it was. */
static xep_status_t call(const callback_t *callback, const void *send, void *recv, size_t bytes)
{
    uint32_t rank = callback->boot.rank, nranks = callback->boot.nranks;
    memset(recv, ~*(const unsigned char *)send, nranks * bytes); /* differs from what has to be there */
    xep_watch_outside("xep: asked what it waits for: the program's allgather, by which the ranks meet\n");
    int ret = callback->allgather(callback->ctx, send, recv, bytes);
    xep_watch_outside(NULL);
    if (ret != 0)
        return xep_fail(XEP_ERR_BOOT, "the allgather of rank %u returned %d, for %zu bytes from each of %u ranks", rank,
                        ret, bytes, nranks);
    if (memcmp((char *)recv + rank * bytes, send, bytes) != 0)
        return xep_fail(XEP_ERR_BOOT,
                        "the allgather returned 0, but position %u of %u, this rank's, does not hold the %zu bytes it "
                        "sent: it did nothing, raised an exception, or orders the ranks differently",
                        rank, nranks, bytes);
    return XEP_OK;
}

/*
 * The group calls this until it is connected; each result of the caller's function is checked, as an exception may come
 * later.
 */
static xep_status_t callback_allgather(xep_boot_t *boot, const void *send, void *recv, size_t bytes)
{
    const callback_t *callback = (const callback_t *)boot;
    unsigned char nothing = 0;
    if (bytes > 0) return call(callback, send, recv, bytes);

    /* a barrier: many an allgather of no bytes returns at once */
    unsigned char *all = malloc(boot->nranks);
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a barrier of %u ranks", boot->nranks);
    xep_status_t status = call(callback, &nothing, all, 1);
    free(all);
    return status;
}

/*
 * Checks in the order in which a user would look for the mistake: nothing came, another number of ranks, another order.
 */
static xep_status_t check_cards(const card_t *cards, uint32_t rank, uint32_t nranks)
{
    for (uint32_t i = 0; i < nranks; i++) {
        if (cards[i].magic != CARD_MAGIC)
            return xep_fail(XEP_ERR_BOOT,
                            "the allgather did not bring what rank %u sent: it must fill recv with the bytes of all %u "
                            "ranks, in rank order",
                            i, nranks);
        if (cards[i].nranks != nranks)
            return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank %u disagree on nranks: %u, %u", i, rank,
                            cards[i].nranks, nranks);
        if (cards[i].rank != i)
            return xep_fail(
                XEP_ERR_MISMATCH,
                "position %u of the allgather holds what rank %u sent: each rank from 0 to %u must be given "
                "once, in the order of the allgather",
                i, cards[i].rank, nranks - 1);
    }
    return XEP_OK;
}

/* whether nothing was written behind the cards of nranks */
static int spare_is_clean(const unsigned char *spare, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (spare[i] != 0) return 0;
    return 1;
}

/* The spare cards are zero, and must be so afterwards, whatever the exchange itself came to. */
static xep_status_t exchange_cards(const callback_t *callback)
{
    uint32_t rank = callback->boot.rank, nranks = callback->boot.nranks;
    card_t own = {.magic = CARD_MAGIC, .rank = rank, .nranks = nranks};
    card_t *cards = calloc((size_t)nranks + SPARE_CARDS, sizeof *cards);
    if (cards == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory to meet %u ranks", nranks);
    xep_status_t status = call(callback, &own, cards, sizeof own);
    if (status == XEP_OK) status = check_cards(cards, rank, nranks);
    if (!spare_is_clean((const unsigned char *)(cards + nranks), SPARE_CARDS * sizeof *cards))
        status = xep_fail(XEP_ERR_MISMATCH, "the allgather has more ranks than the params say: nranks is %u", nranks);
    free(cards);
    return status;
}

xep_status_t xep_boot_callback_open(const xep_group_params_t *params, int32_t timeout_ms, xep_boot_t **boot_p)
{
    if (params->rank >= params->nranks)
        return xep_fail(XEP_ERR_INVALID, "invalid rank: %u (below nranks, %u)", params->rank, params->nranks);
    callback_t *callback = xep_boot_new(sizeof *callback, (xep_boot_t){.name = "callback",
                                                                       .allgather = callback_allgather,
                                                                       .rank = params->rank,
                                                                       .nranks = params->nranks,
                                                                       .timeout_ms = timeout_ms});
    if (callback == NULL) return XEP_ERR_NO_MEMORY;
    callback->allgather = params->allgather;
    callback->ctx = params->allgather_ctx;
    xep_status_t status = exchange_cards(callback);
    if (status != XEP_OK) {
        free(callback);
        return status;
    }
    *boot_p = &callback->boot;
    return XEP_OK;
}
