/* SPDX-License-Identifier: BSD-3-Clause */

#include "buffer_agree.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "group_exchange.h"
#include "owners.h"

/* VALUE_BYTES: a number of 64 bits in decimal has 20 digits. */
enum { MODE_BYTES = 64, VALUE_BYTES = 24 };

/* What is compared, as numbers: also what follows from several parameters. */
#define COLLECTIVE(X) XEP_BUFFER_TERMS(X) X(owners) X(by_nodes) X(bytes)

/* A proposal as it is exchanged. Written by each rank, read by all. */
typedef struct terms {
    int32_t status;
    int32_t may_be_smaller;
    char mode[MODE_BYTES];
#define TERMS_FIELD(_name) uint64_t _name;
    COLLECTIVE(TERMS_FIELD)
#undef TERMS_FIELD
    xep_room_view_t room;
} terms_t;
_Static_assert(sizeof(terms_t) == 8 + MODE_BYTES + 19 * 8 + sizeof(xep_room_view_t),
               "terms are exchanged as bytes: no padding");

static const struct {
    const char *name;
    size_t offset;
} collective[] = {
#define COLLECTIVE_ROW(_name) {#_name, offsetof(terms_t, _name)},
    COLLECTIVE(COLLECTIVE_ROW)
#undef COLLECTIVE_ROW
};
enum { NCOLLECTIVE = sizeof collective / sizeof collective[0] };

/*
 * A rank whose own params are wrong takes part all the same: the others would wait for it until their deadline. What it
 * says behind its status, and whether less would do, are zeros, at which nobody looks.
 */
static void fill_terms(const xep_proposal_t *proposal, uint32_t nranks, terms_t *terms)
{
    const xep_buffer_params_t *params = proposal->params;
    memset(terms, 0, sizeof *terms);
    terms->status = proposal->status;
    terms->may_be_smaller = proposal->may_be_smaller;
    if (proposal->status != XEP_OK) return;
    snprintf(terms->mode, sizeof terms->mode, "%s", params->mode);
#define TERMS_FILL(_name) terms->_name = (uint64_t)params->_name;
    XEP_BUFFER_TERMS(TERMS_FILL)
#undef TERMS_FILL
    terms->owners = xep_owners_digest(params, nranks);
    terms->by_nodes = proposal->by_nodes;
    terms->bytes = proposal->bytes;
    if (proposal->room != NULL) terms->room = *proposal->room;
}

/* the name of a value, or NULL: it has none */
static const char *find_word(const char *name, uint64_t value)
{
    static const char *const paths[] = {[XEP_PATH_AUTO] = "auto", [XEP_PATH_FLAT] = "flat", [XEP_PATH_NODES] = "nodes"};
    static const char *const sums[] = {[XEP_NODE_SUMS_DTYPE] = "dtype", [XEP_NODE_SUMS_FP32] = "fp32"};
    if (strstr(name, "dtype") != NULL) return xep_dtype_name((xep_dtype_t)value);
    if (strcmp(name, "path") == 0 && value <= XEP_PATH_NODES) return paths[value];
    if (strcmp(name, "node_sums") == 0 && value <= XEP_NODE_SUMS_FP32) return sums[value];
    if (strcmp(name, "by_nodes") == 0) return paths[value ? XEP_PATH_NODES : XEP_PATH_FLAT];
    return NULL;
}

/* A parameter that follows from several others has no name that users know. */
static const char *find_name(int i)
{
    if (strcmp(collective[i].name, "by_nodes") != 0) return collective[i].name;
    return "the path that takes less time (XEP_NET_RATE, XEP_MEMORY_RATE)";
}

/* a parameter as users know it */
static uint64_t read_value(const terms_t *terms, int i, char *text)
{
    uint64_t value;
    memcpy(&value, (const char *)terms + collective[i].offset, sizeof value);
    const char *word = find_word(collective[i].name, value);
    if (word != NULL) snprintf(text, VALUE_BYTES, "%s", word);
    else snprintf(text, VALUE_BYTES, "%" PRIu64, value);
    return value;
}

/* The mode first: most other differences would follow from it. Of owners there is a digest: all look which they are. */
static xep_status_t compare_terms(xep_group_t *group, const xep_buffer_params_t *params, const terms_t *all,
                                  uint32_t rank)
{
    const terms_t *first = &all[0], *terms = &all[rank];
    if (strncmp(terms->mode, first->mode, MODE_BYTES) != 0)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on mode: %.*s, %.*s", rank, MODE_BYTES - 1,
                        terms->mode, MODE_BYTES - 1, first->mode);
    for (int i = 0; i < NCOLLECTIVE; i++) {
        char theirs[VALUE_BYTES], others[VALUE_BYTES];
        if (read_value(terms, i, theirs) == read_value(first, i, others)) continue;
        if (collective[i].offset == offsetof(terms_t, owners)) return xep_owners_refuse(group, params, rank);
        return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on %s: %s, %s", rank, find_name(i), theirs,
                        others);
    }
    return XEP_OK;
}

/* The sentence is the same on every rank but for the rank whose own check failed: that one knows more. */
static xep_status_t check_terms(xep_group_t *group, const xep_buffer_params_t *params, const terms_t *all)
{
    const uint32_t nranks = group->nranks;
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0; r < nranks; r++)
        if (all[r].status != XEP_OK)
            return xep_fail((xep_status_t)all[r].status, "rank %u cannot create its buffer: %s", r,
                            xep_status_text((xep_status_t)all[r].status));
    for (uint32_t r = 1; r < nranks && status == XEP_OK; r++) status = compare_terms(group, params, all, r);
    return status;
}

/* Ranks that asked for no room have zeros there, which do not count. */
static xep_status_t check_room(const terms_t *all, uint32_t nranks)
{
    xep_room_view_t *views = calloc(nranks, sizeof *views);
    if (views == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the views of %u ranks", nranks);
    for (uint32_t r = 0; r < nranks; r++) views[r] = all[r].room;
    xep_status_t status = xep_room_check_together(views, nranks, all[0].bytes);
    free(views);
    return status;
}

/* Computed from what all ranks have said, and so the same on all. */
static int is_short(const terms_t *all, uint32_t nranks, xep_status_t verdict)
{
    for (uint32_t r = 0; r < nranks; r++)
        if (!all[r].may_be_smaller || (all[r].status != XEP_OK && all[r].status != XEP_ERR_NO_MEMORY)) return 0;
    return verdict == XEP_ERR_NO_MEMORY;
}

/* Keeps this rank's reason before the exchange, which may set another one in this thread. */
xep_status_t xep_buffer_agree(xep_group_t *group, const xep_proposal_t *proposal, int *is_short_p)
{
    *is_short_p = 0;
    char own_reason[XEP_REASON_BYTES];
    terms_t mine, *all = calloc(group->nranks, sizeof *all);
    xep_status_t status;
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the proposals of %u ranks", group->nranks);
    fill_terms(proposal, group->nranks, &mine);
    snprintf(own_reason, sizeof own_reason, "%s", xep_last_error());
    status = xep_group_exchange(group, &mine, all, sizeof mine);
    const int is_exchanged = status == XEP_OK;
    if (status == XEP_OK) status = check_terms(group, proposal->params, all);
    if (status == XEP_OK && proposal->room != NULL) status = check_room(all, group->nranks);
    *is_short_p = is_exchanged && is_short(all, group->nranks, status);
    if (status != XEP_OK && proposal->status != XEP_OK) status = xep_fail(proposal->status, "%s", own_reason);
    free(all);
    return status;
}
