/* SPDX-License-Identifier: BSD-3-Clause */

/* Params as ranks exchange them: all agree on them, or those without a buffer take them from one that has it. */
#include "buffer_agree.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/elastic.h>

#include "group_exchange.h"
#include "owners.h"

enum { VALUE_BYTES = 24 }; /* a number of 64 bits in decimal has 20 digits */

/* clang-format off */
/* Of xep_buffer_params_t: what all ranks must agree on, and what each has for itself. */
#define SHARED(X) \
    X(experts) X(topk) X(hidden) X(scales) X(tokens) X(recv_rows) X(dtype) X(combine_dtype) X(slots) X(memory) \
    X(on_failure) X(flags) X(path) X(pass_rows) X(balance)
#define OWN(X) X(threads) X(multiprocessors) X(timeout_ms)
/* clang-format on */

/* What is compared, as numbers: also what follows from several parameters. */
#define COLLECTIVE(X) SHARED(X) X(owners) X(by_nodes) X(bytes)

/* A proposal as it is exchanged. Written by each rank, read by all. */
typedef struct terms {
    int32_t status;
    int32_t may_be_smaller;
    char mode[XEP_FOLLOWED_MODE];
#define TERMS_FIELD(_name) uint64_t _name;
    COLLECTIVE(TERMS_FIELD)
    OWN(TERMS_FIELD)
#undef TERMS_FIELD
    xep_room_view_t room;
} terms_t;
_Static_assert(sizeof(terms_t) == 8 + XEP_FOLLOWED_MODE + 21 * 8 + sizeof(xep_room_view_t),
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

/* Field by field and not as one copy: the struct of params has pointers, and its layout is each process's own. */
static void fill_params(const xep_buffer_params_t *params, int mode_length, terms_t *terms)
{
    snprintf(terms->mode, sizeof terms->mode, "%.*s", mode_length, params->mode);
#define TERMS_FILL(_name) terms->_name = (uint64_t)params->_name;
    SHARED(TERMS_FILL)
    OWN(TERMS_FILL)
#undef TERMS_FILL
}

/* ---- an agreement ---- */

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
    fill_params(params, XEP_FOLLOWED_MODE - 1, terms);
    terms->owners = xep_owners_digest(params, nranks);
    terms->by_nodes = proposal->by_nodes;
    terms->bytes = proposal->bytes;
    if (proposal->room != NULL) terms->room = *proposal->room;
}

/* the name of a value, or NULL: it has none */
static const char *find_word(const char *name, uint64_t value)
{
    static const char *const paths[] = {[XEP_PATH_AUTO] = "auto", [XEP_PATH_FLAT] = "flat", [XEP_PATH_NODES] = "nodes"};
    if (strstr(name, "dtype") != NULL) return xep_dtype_name((xep_dtype_t)value);
    if (strcmp(name, "path") == 0 && value <= XEP_PATH_NODES) return paths[value];
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
    if (strncmp(terms->mode, first->mode, XEP_FOLLOWED_MODE) != 0)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on mode: %.*s, %.*s", rank,
                        XEP_FOLLOWED_MODE - 1, terms->mode, XEP_FOLLOWED_MODE - 1, first->mode);
    for (int i = 0; i < NCOLLECTIVE; i++) {
        char theirs[VALUE_BYTES], others[VALUE_BYTES];
        if (read_value(terms, i, theirs) == read_value(first, i, others)) continue;
        if (collective[i].offset == offsetof(terms_t, owners)) return xep_owners_refuse(group, params, rank);
        return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on %s: %s, %s", rank, find_name(i), theirs,
                        others);
    }
    return XEP_OK;
}

/* Ranks that asked for no room have zeros there, which do not count. */
static xep_status_t check_room(const xep_group_t *group, const terms_t *all)
{
    const uint32_t nranks = group->nranks;
    xep_room_view_t *views = calloc(nranks, sizeof *views);
    if (views == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the views of %u ranks", nranks);
    for (uint32_t r = 0; r < nranks; r++) views[r] = all[r].room;
    xep_status_t status = xep_room_check_together(views, nranks, group->rank, all[0].bytes);
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

static uint32_t find_fewest(const terms_t *all, uint32_t nranks)
{
    uint64_t fewest = UINT32_MAX;
    for (uint32_t r = 0; r < nranks; r++)
        if (all[r].multiprocessors < fewest) fewest = all[r].multiprocessors;
    return (uint32_t)fewest;
}

xep_status_t xep_buffer_agree(xep_group_t *group, const xep_proposal_t *proposal, xep_agreed_t *agreed_p)
{
    const uint32_t nranks = group->nranks;
    terms_t mine, *all = calloc(nranks, sizeof *all);
    *agreed_p = (xep_agreed_t){0};
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the proposals of %u ranks", nranks);
    fill_terms(proposal, nranks, &mine);
    xep_status_t status = xep_group_agree(group, "create its buffer", &mine, all, sizeof mine);
    for (uint32_t r = 1; r < nranks && status == XEP_OK; r++) status = compare_terms(group, proposal->params, all, r);
    agreed_p->is_short = is_short(all, nranks, status); /* all are zeros where nothing was exchanged */
    if (status == XEP_OK) agreed_p->fewest = find_fewest(all, nranks);
    if (status == XEP_OK && proposal->room != NULL) agreed_p->room = check_room(group, all);
    free(all);
    return status;
}

/* ---- params of others ---- */

/* What the mode is called by users, also where rows are in device memory. */
static int length_of_mode(const xep_buffer_t *old)
{
    const int is_for_devices = old->device != NULL && old->staging == NULL;
    return (int)(strlen(old->params.mode) - (is_for_devices ? strlen(XEP_CUDA_SUFFIX) : 0));
}

static terms_t terms_of(const xep_buffer_t *old)
{
    terms_t terms = {.owners = old != NULL && old->owners != NULL};
    if (old != NULL) fill_params(&old->params, length_of_mode(old), &terms);
    return terms;
}

/* Values are checked where params always are: in xep_buffer_create(), which gets these. mode is a name from another
 * process: it ends within its array, whatever was sent. */
static void fill_followed(const terms_t *terms, xep_followed_t *followed)
{
    memcpy(followed->mode, terms->mode, sizeof followed->mode);
    followed->mode[sizeof followed->mode - 1] = '\0';
    followed->params = (xep_buffer_params_t)XEP_BUFFER_PARAMS_INIT;
    followed->params.mode = followed->mode;
#define TERMS_TAKE(_name) followed->params._name = (__typeof__(followed->params._name))terms->_name;
    SHARED(TERMS_TAKE)
    OWN(TERMS_TAKE)
#undef TERMS_TAKE
}

/*
 * A rank whose own buffer differs finds out when all agree on the new one. One that has none, as it is new in the
 * group, takes the params of the lowest rank that has one.
 */
xep_status_t xep_buffer_find_params(const xep_buffer_t *old, xep_group_t *group, xep_followed_t *followed)
{
    terms_t mine = terms_of(old), *all = calloc(group->nranks, sizeof *all);
    uint32_t r = 0;
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the params of %u ranks", group->nranks);
    xep_group_gathers_for(group, "xep_buffer_follow");
    xep_status_t status = xep_group_exchange(group, &mine, all, sizeof mine);
    xep_group_gathers_for(group, NULL);
    while (status == XEP_OK && r < group->nranks && all[r].experts == 0) r++;
    if (status == XEP_OK && r == group->nranks)
        status = xep_fail(XEP_ERR_INVALID, "old is NULL on all %u ranks: there is no buffer to follow", r);
    for (uint32_t i = 0; status == XEP_OK && i < group->nranks; i++)
        if (all[i].owners != 0)
            status = xep_fail(XEP_ERR_INVALID,
                              "the buffer of rank %u has an owner map or replicas, of the old ranks "
                              "(xep_buffer_create() with a new one)",
                              i);
    if (status == XEP_OK) fill_followed(old != NULL ? &mine : &all[r], followed);
    free(all);
    return status;
}
