/* SPDX-License-Identifier: BSD-3-Clause */

#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/elastic.h>

#include "buffer_agree.h"
#include "group_exchange.h"
#include "plugin_loader.h"

/* What ranks agree on, and what each has for itself. */
#define FOLLOWED(X) XEP_BUFFER_TERMS(X) X(threads) X(multiprocessors) X(timeout_ms)

/** What a rank says of its buffer. Written by each rank, read by all. */
typedef struct likeness {
    uint64_t is_here;    /* 0: it has none */
    uint64_t has_owners; /* which are of its old ranks */
#define LIKENESS_FIELD(_name) uint64_t _name;
    FOLLOWED(LIKENESS_FIELD)
#undef LIKENESS_FIELD
    char mode[XEP_FOLLOWED_MODE];
} likeness_t;

/* What the mode is called by users, also where rows are in device memory. */
static int length_of_mode(const xep_buffer_t *old)
{
    const int is_for_devices = old->device != NULL && old->staging == NULL;
    return (int)(strlen(old->params.mode) - (is_for_devices ? strlen(XEP_CUDA_SUFFIX) : 0));
}

/* Field by field and not as one copy: the struct of params has pointers, and its layout is each process's own. */
static likeness_t draw(const xep_buffer_t *old)
{
    if (old == NULL) return (likeness_t){0};
    likeness_t likeness = {.is_here = 1, .has_owners = old->owners != NULL};
#define LIKENESS_DRAW(_name) likeness._name = (uint64_t)old->params._name;
    FOLLOWED(LIKENESS_DRAW)
#undef LIKENESS_DRAW
    snprintf(likeness.mode, sizeof likeness.mode, "%.*s", length_of_mode(old), old->params.mode);
    return likeness;
}

/* Values are checked where params always are: in xep_buffer_create(), which gets these. mode is a name from another
 * process: it ends within its array, whatever was sent. */
static void fill_followed(const likeness_t *likeness, xep_followed_t *followed)
{
    memcpy(followed->mode, likeness->mode, sizeof followed->mode);
    followed->mode[sizeof followed->mode - 1] = '\0';
    followed->params = (xep_buffer_params_t)XEP_BUFFER_PARAMS_INIT;
    followed->params.mode = followed->mode;
#define LIKENESS_TAKE(_name) followed->params._name = (__typeof__(followed->params._name))likeness->_name;
    FOLLOWED(LIKENESS_TAKE)
#undef LIKENESS_TAKE
}

/*
 * A rank whose own buffer differs finds out when all agree on the new one. One that has none, as it is new in the
 * group, takes the params of the lowest rank that has one.
 */
xep_status_t xep_buffer_find_params(const xep_buffer_t *old, xep_group_t *group, xep_followed_t *followed)
{
    likeness_t mine = draw(old), *all = calloc(group->nranks, sizeof *all);
    uint32_t r = 0;
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the params of %u ranks", group->nranks);
    group->gathers_for = "xep_buffer_follow";
    xep_status_t status = xep_group_exchange(group, &mine, all, sizeof mine);
    group->gathers_for = NULL;
    while (status == XEP_OK && r < group->nranks && all[r].is_here == 0) r++;
    if (status == XEP_OK && r == group->nranks)
        status = xep_fail(XEP_ERR_INVALID, "old is NULL on all %u ranks: there is no buffer to follow", r);
    for (uint32_t i = 0; status == XEP_OK && i < group->nranks; i++)
        if (all[i].has_owners != 0)
            status = xep_fail(XEP_ERR_INVALID,
                              "the buffer of rank %u has an owner map or replicas, of the old ranks "
                              "(xep_buffer_create() with a new one)",
                              i);
    if (status == XEP_OK) fill_followed(old != NULL ? &mine : &all[r], followed);
    free(all);
    return status;
}
