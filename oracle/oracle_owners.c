/* SPDX-License-Identifier: BSD-3-Clause */

#include "oracle_owners.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_random.h"

/* The number behind a name; all of it is used up. */
static int take_number(const char *how, const char *name, uint64_t *number_p)
{
    const char *text = how + strlen(name);
    char *end;

    if (strncmp(how, name, strlen(name)) != 0 || *text < '0' || *text > '9') return 0;
    errno = 0;
    *number_p = strtoull(text, &end, 10);
    return *end == '\0' && errno == 0;
}

static void fill_blocks(uint32_t first, uint32_t nranks, uint32_t experts, uint32_t *owners)
{
    const uint32_t share = experts / (nranks - first), more = experts % (nranks - first);
    uint32_t e = 0;

    for (uint32_t rank = first; rank < nranks; rank++)
        for (uint32_t i = 0; i < share + (rank - first < more); i++) owners[e++] = rank;
}

static void fill_random(uint64_t seed, uint32_t nranks, uint32_t experts, uint32_t *owners)
{
    uint64_t state = oracle_stream(seed, ORACLE_KIND_OWNERS, 0, 0);

    for (uint32_t e = 0; e < experts; e++) owners[e] = (uint32_t)(oracle_next(&state) % nranks);
}

typedef struct loaded {
    uint64_t load;
    uint32_t expert;
} loaded_t;

/* By falling load; of experts with the same one the lower first. */
static int compare_loads(const void *a, const void *b)
{
    const loaded_t *x = a, *y = b;

    if (x->load != y->load) return x->load > y->load ? -1 : 1;
    return x->expert > y->expert ? 1 : -1;
}

/* Of ranks with the same load the lower one. */
static void fill_greedy(uint32_t nranks, uint32_t experts, const uint64_t *load, uint32_t *owners)
{
    loaded_t *sorted = oracle_alloc(experts * sizeof *sorted);
    uint64_t *of_rank = oracle_alloc(nranks * sizeof *of_rank);

    for (uint32_t e = 0; e < experts; e++) sorted[e] = (loaded_t){load[e], e};
    qsort(sorted, experts, sizeof *sorted, compare_loads);
    for (uint32_t i = 0; i < experts; i++) {
        uint32_t least = 0;
        for (uint32_t rank = 1; rank < nranks; rank++)
            if (of_rank[rank] < of_rank[least]) least = rank;
        owners[sorted[i].expert] = least;
        of_rank[least] += sorted[i].load;
    }
    free(of_rank);
    free(sorted);
}

static int read_map(FILE *file, const char *path, uint32_t nranks, uint32_t experts, uint32_t *owners, char *why,
                    size_t why_bytes)
{
    uint32_t e = 0;
    char more;

    for (; e < experts; e++)
        if (fscanf(file, "%9" SCNu32, &owners[e]) != 1 || owners[e] >= nranks) break;
    if (e == experts && fscanf(file, " %c", &more) != 1) return 0;
    snprintf(why, why_bytes, "%s: entry %" PRIu32 " (%" PRIu32 " entries, each one of %" PRIu32 " ranks)", path, e,
             experts, nranks);
    return -1;
}

static int read_file(const char *path, uint32_t nranks, uint32_t experts, uint32_t *owners, char *why, size_t why_bytes)
{
    FILE *file = fopen(path, "r");

    if (file == NULL) {
        snprintf(why, why_bytes, "invalid owners: \"%s\" (block, cyclic, greedy, random:SEED, split:M, or a file: %s)",
                 path, strerror(errno));
        return -1;
    }
    const int ret = read_map(file, path, nranks, experts, owners, why, why_bytes);
    fclose(file);
    return ret;
}

static int fill(const char *how, uint32_t nranks, uint32_t experts, const uint64_t *load, uint32_t *owners, char *why,
                size_t why_bytes)
{
    uint64_t number;

    if (strcmp(how, "block") == 0) {
        fill_blocks(0, nranks, experts, owners);
    } else if (strcmp(how, "cyclic") == 0) {
        for (uint32_t e = 0; e < experts; e++) owners[e] = e % nranks;
    } else if (strcmp(how, "greedy") == 0) {
        fill_greedy(nranks, experts, load, owners);
    } else if (take_number(how, "random:", &number)) {
        fill_random(number, nranks, experts, owners);
    } else if (take_number(how, "split:", &number)) {
        if (number >= nranks) {
            snprintf(why, why_bytes, "invalid owners: \"%s\" (split:M with M below the ranks, %" PRIu32 ")", how,
                     nranks);
            return -1;
        }
        fill_blocks((uint32_t)number, nranks, experts, owners);
    } else {
        return read_file(how, nranks, experts, owners, why, why_bytes);
    }
    return 0;
}

int oracle_owners_make(const char *how, uint32_t nranks, uint32_t experts, const uint64_t *load, uint32_t **owners_p,
                       char *why, size_t why_bytes)
{
    uint32_t *owners = oracle_alloc(experts * sizeof *owners);

    if (fill(how, nranks, experts, load, owners, why, why_bytes)) {
        free(owners);
        return -1;
    }
    *owners_p = owners;
    return 0;
}
