/* SPDX-License-Identifier: BSD-3-Clause */

/* FILE is written under another name first: readers see either the old or the new one, and always a whole one. */
#define _GNU_SOURCE
#include "trace_merge.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace_json.h"
#include "trace_say.h"

enum {
    FIRST_MAX = 4096, /* ranks looked for until one is found that says how many there are */
    MISSING_SAID = 16 /* ranks that are told by name: a damaged file may speak of a million */
};

/** What is being put together. */
typedef struct merge {
    const char *file;
    trace_rank_t *ranks; /* [nranks] */
    uint32_t nranks;     /* 0: none was found yet */
    uint32_t missing;
    uint64_t job;
    int incomplete;
} merge_t;

static char *journal_name(const char *file, uint32_t rank)
{
    char *name;
    return asprintf(&name, "%s.%" PRIu32, file, rank) < 0 ? NULL : name;
}

/* ---- reading ---- */

/* The first one says which job it is, and of how many ranks. */
static int begin_job(merge_t *merge, const xep_trace_header_t *header)
{
    merge->ranks = calloc(header->nranks, sizeof *merge->ranks);
    if (merge->ranks == NULL) return -1;
    merge->nranks = header->nranks;
    merge->job = header->job;
    return 0;
}

/* A file of an earlier job with more ranks may still lie there. */
static int belongs(const merge_t *merge, const xep_trace_header_t *header, const char *name, uint32_t rank)
{
    if (header->rank == rank && header->nranks == merge->nranks && header->job == merge->job) return 1;
    trace_say("%s: rank %" PRIu32 " of %" PRIu32 " of another job: left out", name, header->rank, header->nranks);
    return 0;
}

static void say_counts(const trace_journal_t *journal, const char *name)
{
    uint64_t lost = atomic_load(&journal->header.lost);
    if (journal->dropped != 0)
        trace_say("%s: the oldest %" PRIu64 " events were dropped (XEP_TRACE_BYTES keeps more)", name,
                  journal->dropped);
    if (lost != 0) trace_say("%s: %" PRIu64 " events of threads without memory for a trace were lost", name, lost);
    if (journal->damaged != 0) trace_say("%s: %" PRIu64 " events are damaged: left out", name, journal->damaged);
}

static void say_missing(merge_t *merge, const char *name, uint32_t rank, int error)
{
    merge->incomplete = 1;
    if (merge->missing++ < MISSING_SAID) trace_say("rank %" PRIu32 " is missing: %s: %s", rank, name, strerror(error));
}

/*
 * A file that is missing, no trace, or of another job makes the result incomplete and is told; the others are merged
 * all the same.
 */
static void take_journal(merge_t *merge, const char *name, uint32_t rank)
{
    trace_journal_t *journal = trace_journal_open(name);
    if (journal == NULL) {
        int error = errno;
        if (merge->nranks == 0 && error == ENOENT) return; /* said when a later one is there */
        if (error != 0) say_missing(merge, name, rank, error);
        merge->incomplete = 1;
        return;
    }
    if ((merge->nranks == 0 && begin_job(merge, &journal->header) != 0) ||
        !belongs(merge, &journal->header, name, rank)) {
        merge->incomplete = 1;
        trace_journal_close(journal);
        return;
    }
    say_counts(journal, name);
    merge->incomplete |= journal->damaged != 0;
    merge->ranks[rank].journal = journal;
}

/* Until a file is found nobody knows how many ranks there are. */
static void take_journals(merge_t *merge)
{
    uint32_t first = FIRST_MAX;
    for (uint32_t rank = 0; rank < (merge->nranks != 0 ? merge->nranks : FIRST_MAX); rank++) {
        char *name = journal_name(merge->file, rank);
        if (name == NULL) return;
        take_journal(merge, name, rank);
        if (first == FIRST_MAX && merge->nranks != 0) first = rank;
        free(name);
    }
    for (uint32_t rank = 0; rank < first && merge->nranks != 0; rank++) {
        char *name = journal_name(merge->file, rank);
        if (name == NULL) return;
        if (access(name, F_OK) != 0) say_missing(merge, name, rank, ENOENT); /* what else is wrong was said */
        free(name);
    }
    if (merge->missing > MISSING_SAID) trace_say("%" PRIu32 " more ranks are missing", merge->missing - MISSING_SAID);
}

/* By the lowest rank that is there. */
static void align_clocks(merge_t *merge)
{
    const trace_journal_t *reference = NULL;
    for (uint32_t r = 0; r < merge->nranks; r++) {
        trace_rank_t *rank = &merge->ranks[r];
        if (rank->journal == NULL) continue;
        if (reference == NULL) reference = rank->journal;
        rank->clock = trace_clock_compare(&reference->header, &rank->journal->header);
        if (rank->journal == reference) rank->clock = (trace_clock_t){.points = 1};
        if (rank->clock.points == 0)
            trace_say("rank %" PRIu32 " has no barrier in common with rank %" PRIu32 ": its clock is used uncorrected",
                      r, reference->header.rank);
    }
}

/* ---- writing ---- */

/*
 * The name has our pid in it, so two merges at once do not write the same file. Renamed after it was closed, as an
 * error of writing may show only then. When this fails the old FILE, if any, is still there.
 */
static int write_file(const merge_t *merge)
{
    char *name;
    if (asprintf(&name, "%s.%d.tmp", merge->file, (int)getpid()) < 0) return -1;
    FILE *to = fopen(name, "we");
    int failed = to == NULL;
    if (!failed) {
        trace_json_write(to, merge->ranks, merge->nranks);
        failed = ferror(to) != 0;
        failed |= fclose(to) != 0;
        failed = failed || rename(name, merge->file) != 0;
    }
    if (failed) {
        trace_say("cannot write %s: %s", merge->file, strerror(errno));
        unlink(name);
    }
    free(name);
    return failed ? -1 : 0;
}

/* What could be read is written even if ranks are missing: the trace of a job that failed is the one that is needed. */
trace_merge_result_t trace_merge(const char *file)
{
    merge_t merge = {.file = file};
    trace_merge_result_t result = TRACE_NOTHING;
    take_journals(&merge);
    if (merge.nranks == 0) {
        trace_say("no rank has written a trace: there is no %s.0 (XEP_TRACE=%s makes it)", file, file);
    } else {
        align_clocks(&merge);
        if (write_file(&merge) == 0) result = merge.incomplete ? TRACE_INCOMPLETE : TRACE_WHOLE;
    }
    for (uint32_t r = 0; r < merge.nranks; r++) trace_journal_close(merge.ranks[r].journal);
    free(merge.ranks);
    return result;
}

void trace_remove_journals(const char *file, uint32_t nranks)
{
    for (uint32_t rank = 0; rank < nranks; rank++) {
        char *name = journal_name(file, rank);
        if (name != NULL) unlink(name);
        free(name);
    }
}
