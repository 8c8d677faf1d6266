/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A file in /dev/shm that has its name only until all have it mapped: whatever kills the ranks then, nothing is left
 * behind.
 */
#include "perf.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle_alloc.h"

enum { SPINS = 2000, PATH_BYTES = 64 };

/** What rank 0 made, for the others to open. */
typedef struct offer {
    char path[PATH_BYTES]; /* empty: nothing */
    int reason;            /* errno */
} offer_t;

/* Memory is taken at once: a page that is not there when it is written would end the process. */
static int make_file(offer_t *offer, size_t bytes)
{
    int file = mkstemp(offer->path);
    if (file >= 0) offer->reason = posix_fallocate(file, 0, (off_t)bytes);
    else offer->reason = errno;
    if (file >= 0 && offer->reason != 0) unlink(offer->path);
    if (offer->reason != 0) offer->path[0] = '\0';
    return file;
}

/* The reason of the lowest rank that has one; 0: all have it mapped. */
static int agree(perf_t *perf, int own)
{
    int *all = oracle_alloc(perf->info.nranks * sizeof *all), reason = EIO;

    if (xep_group_allgather(perf->group, &own, all, sizeof own) == XEP_OK) {
        reason = 0;
        for (uint32_t rank = perf->info.nranks; rank-- > 0;)
            if (all[rank] != 0) reason = all[rank];
    }
    free(all);
    return reason;
}

/*
 * Rank 0 makes the file, all map it, and when all have said how that went its name is removed. A rank on which it has
 * failed says so too, and does not leave: the others wait for its word.
 */
void *perf_share(perf_t *perf, size_t bytes)
{
    offer_t offer = {.path = "/dev/shm/xep_perf.XXXXXX"}, *offers = oracle_alloc(perf->info.nranks * sizeof offer);
    int file = perf->info.rank == 0 ? make_file(&offer, bytes) : -1, reason = EIO;
    void *memory = MAP_FAILED;

    if (xep_group_allgather(perf->group, &offer, offers, sizeof offer) == XEP_OK) {
        if (perf->info.rank != 0 && offers->path[0] != '\0') file = open(offers->path, O_RDWR | O_CLOEXEC);
        if (offers->path[0] != '\0' && file >= 0)
            memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        reason = agree(perf, offers->reason != 0 ? offers->reason : memory == MAP_FAILED ? errno : 0);
    }
    if (offer.path[0] != '\0' && perf->info.rank == 0) unlink(offer.path);
    if (file >= 0) close(file);
    if (memory != MAP_FAILED && reason != 0) munmap(memory, bytes);
    free(offers);
    errno = reason;
    return reason != 0 ? NULL : memory;
}

/* The other rank may need this core. */
void perf_await(const _Atomic uint64_t *word, uint64_t value)
{
    for (uint32_t spins = 0; atomic_load_explicit(word, memory_order_acquire) < value; spins++)
        if (spins > SPINS) sched_yield();
}
