/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_say.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "oracle_alloc.h"
#include "perf_machine.h"

enum { COMPLAINT_BYTES = 512 };
static const uint64_t PROGRESS_NS = UINT64_C(10) * 1000 * 1000 * 1000;

/* For what is said before there is a group, so that it is said once: by PMIx, Open MPI, Slurm and torchrun. */
int perf_launch_rank(void)
{
    static const char *const names[] = {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && *text != '\0') return atoi(text);
    }
    return -1;
}

/* To stderr, as stdout has the table or JSON. */
void perf_say(const perf_t *perf, const char *format, ...)
{
    va_list list;

    if (perf->info.rank != 0) return;
    fprintf(stderr, "xep_perf: ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
}

/* Time for rank 0 to print its sentence: the first rank that ends makes many launchers kill the others. */
void perf_leave_word(void)
{
    const struct timespec second = {.tv_sec = 1};

    nanosleep(&second, NULL);
}

/* Everything is closed first: for a launcher a rank that just ends has crashed. */
static _Noreturn void end(perf_t *perf, int exit_status)
{
    perf->close(perf);
    exit(exit_status);
}

/*
 * An error that all get, by themselves or because another one failed, is told by rank 0; one that is this rank's own by
 * itself. The abort then ends the waits of the others.
 */
void perf_must(perf_t *perf, xep_status_t status)
{
    const int is_shared = status == XEP_ERR_OVERFLOW || status == XEP_ERR_MISMATCH || status == XEP_ERR_TIMEOUT ||
                          status == XEP_ERR_PEER || status == XEP_ERR_ABORTED;

    if (status == XEP_OK) return;
    if (perf->info.rank == 0 || !is_shared)
        fprintf(stderr, "xep_perf: rank %" PRIu32 ": %s: %s\n", perf->info.rank, xep_status_text(status),
                xep_last_error());
    else perf_leave_word();
    xep_group_abort(perf->group);
    end(perf, PERF_EXIT_FAILED);
}

void *perf_gather(perf_t *perf, const void *own, size_t bytes)
{
    void *all = oracle_alloc(perf->info.nranks * bytes);

    perf_must(perf, xep_group_allgather(perf->group, own, all, bytes));
    return all;
}

/* Whether some rank has a complaint, which rank 0 then prints. All ranks come here: only so they know of it. */
static int is_complained(perf_t *perf, const char *complaint)
{
    char own[COMPLAINT_BYTES] = "", *all;
    uint32_t rank = 0;

    if (complaint != NULL) snprintf(own, sizeof own, "%s", complaint);
    all = perf_gather(perf, own, sizeof own);
    while (rank < perf->info.nranks && !all[rank * sizeof own]) rank++;
    const int complained = rank < perf->info.nranks;
    if (complained) perf_say(perf, "%s", all + rank * sizeof own);
    free(all);
    return complained;
}

/* Ends all ranks alike when one of them cannot go on, where no operation of the library would tell them. */
void perf_stop_if(perf_t *perf, const char *complaint, int exit_status)
{
    if (is_complained(perf, complaint)) end(perf, exit_status);
}

void perf_fail_if(perf_t *perf, const char *complaint, const char **result_p)
{
    if (!is_complained(perf, complaint)) return;
    *result_p = "failed";
    end(perf, PERF_EXIT_FAILED);
}

/* Not rewritten in place on a terminal, as a launcher that labels lines shows nothing before their end. */
void perf_progress(perf_t *perf, const char *what, uint64_t done, uint64_t all)
{
    const uint64_t now = perf_clock_ns(CLOCK_MONOTONIC);

    if (perf->progress_ns == 0) perf->progress_ns = now;
    if (now - perf->progress_ns < PROGRESS_NS) return;
    perf->progress_ns = now;
    perf_say(perf, "%s%s %" PRIu64 " of %" PRIu64, perf->progress_of, what, done, all);
}

void perf_compared(perf_t *perf, const char *what, const oracle_difference_t *difference)
{
    char text[256], complaint[COMPLAINT_BYTES];

    if (difference->found) oracle_difference_text(difference, text, sizeof text);
    if (difference->found) snprintf(complaint, sizeof complaint, "%s differs: %s", what, text);
    perf_fail_if(perf, difference->found ? complaint : NULL, &perf->check_result);
}
