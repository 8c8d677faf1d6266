/* SPDX-License-Identifier: BSD-3-Clause */

/* The same operations twice, for many seeds: what arrives must be the same bytes. */

#include "perf_check.h"

#include <inttypes.h>
#include <stdio.h>

#include "perf_cuda.h"
#include "perf_ops.h"
#include "perf_say.h"

typedef struct hashes {
    uint64_t received, combined;
} hashes_t;

/* Sums over slots: which slot an operation got does not matter, what it brought does. */
static hashes_t hash_outputs(const perf_t *perf)
{
    hashes_t hashes = {0};

    perf_fetch(perf, perf->out, perf->options.slots * perf->tokens * perf->sum_bytes);
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        hashes.received += oracle_hash_recv(perf_recv(perf, slot), perf->info.nranks);
        hashes.combined += oracle_hash_rows(perf->out + slot * perf->tokens * perf->sum_bytes, perf->sum_bytes,
                                            perf->sum_bytes, perf->tokens);
    }
    return hashes;
}

/* The outputs stay, for those who compare them; perf_release() ends them. */
static xep_status_t run_once(perf_t *perf, hashes_t *hashes_p)
{
    xep_status_t status = perf_dispatch(perf);

    if (status == XEP_OK) status = perf_experts(perf);
    if (status == XEP_OK) status = perf_combine(perf);
    if (status == XEP_OK) *hashes_p = hash_outputs(perf);
    return status;
}

/* Says on which rank, of what, the two runs differ. */
static int agree(perf_t *perf, uint64_t seed, const hashes_t *first, const hashes_t *second)
{
    char complaint[128];
    const int received = first->received != second->received, combined = first->combined != second->combined;

    snprintf(complaint, sizeof complaint, "seed %" PRIu64 ": two runs differ in what rank %" PRIu32 " %s", seed,
             perf->info.rank, received ? "received" : "combined");
    return perf_complained(perf, received || combined ? complaint : NULL) ? PERF_EXIT_FAILED : 0;
}

/*
 * The same seed twice, with nothing in common but the memory: a race that shows once in a thousand operations shows as
 * two runs that differ, without the time that the oracle takes.
 */
static int press(perf_t *perf, uint64_t seed)
{
    hashes_t first, second;
    xep_status_t status;
    int ret = perf_reseed(perf, seed);

    if (ret) return ret;
    status = run_once(perf, &first);
    if (status == XEP_OK) {
        perf_release(perf);
        status = run_once(perf, &second);
    }
    if (status != XEP_OK) return perf_give_up(perf, status);
    ret = agree(perf, seed, &first, &second);
    if (!ret && perf->options.check) ret = perf_check_outputs(perf);
    perf_release(perf);
    return ret;
}

/* The seeds behind the run's own, until one has two runs that differ. */
int perf_pressure(perf_t *perf)
{
    int ret = 0;

    for (uint64_t i = 1; !ret && i <= perf->options.pressure; i++) {
        perf_progress(perf, "pressure, seed", i, perf->options.pressure);
        ret = press(perf, perf->options.seed + i);
    }
    perf_progress_end(perf);
    perf->pressure_result = ret ? "failed" : "ok";
    return ret;
}
