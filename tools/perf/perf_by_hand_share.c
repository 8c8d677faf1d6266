/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Memory that all ranks share: a file in /dev/shm that has its name only until all have it mapped. Whatever kills the
 * ranks then, nothing is left behind.
 */

#include "perf_by_hand.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle_alloc.h"
#include "perf_say.h"

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
static xep_status_t agree(const perf_t *perf, int own, int *reason_p)
{
    int *all = oracle_alloc(perf->info.nranks * sizeof *all);
    xep_status_t status = xep_group_allgather(perf->group, &own, all, sizeof own);

    *reason_p = 0;
    for (uint32_t rank = perf->info.nranks; status == XEP_OK && rank-- > 0;)
        if (all[rank] != 0) *reason_p = all[rank];
    free(all);
    return status;
}

/*
 * Rank 0 makes the file, all map it, and when all have said how that went its name is removed. A rank on which it has
 * failed says so too, and does not leave: the others wait for its word. A call that fails ends the run, but only when
 * the name is gone.
 */
void *perf_share(perf_t *perf, size_t bytes)
{
    offer_t own = {.path = "/dev/shm/xep_perf.XXXXXX"}, *offer = oracle_alloc(perf->info.nranks * sizeof own);
    int file = perf->info.rank == 0 ? make_file(&own, bytes) : -1, reason = 0;
    void *memory = MAP_FAILED;
    xep_status_t status = xep_group_allgather(perf->group, &own, offer, sizeof own);

    if (status == XEP_OK) {
        if (perf->info.rank != 0 && offer->path[0] != '\0') file = open(offer->path, O_RDWR | O_CLOEXEC);
        if (offer->path[0] != '\0' && file >= 0)
            memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        status = agree(perf, offer->reason != 0 ? offer->reason : memory == MAP_FAILED ? errno : 0, &reason);
    }
    if (perf->info.rank == 0 && own.path[0] != '\0') unlink(own.path);
    if (file >= 0) close(file);
    free(offer);
    perf_must(perf, status);
    if (memory != MAP_FAILED && reason != 0) munmap(memory, bytes);
    errno = reason;
    return reason != 0 ? NULL : memory;
}

/* The other rank may need this core. */
void perf_await(const _Atomic uint64_t *word, uint64_t value)
{
    for (uint32_t spins = 0; atomic_load_explicit(word, memory_order_acquire) < value; spins++)
        if (spins > SPINS) sched_yield();
}
