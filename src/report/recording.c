/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Each rank writes a file of its own: ranks may be on several hosts, and a slow one must not hold up the others. Every
 * line names its rank, so the files of all ranks, concatenated, are the routing of the group.
 */
#define _GNU_SOURCE
#include "recording.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "log.h"

xep_status_t xep_recording_open(const xep_config_t *config, uint32_t rank, uint32_t nranks,
                                xep_recording_t **recording_p)
{
    *recording_p = NULL;
    if (config->record[0] == '\0') return XEP_OK;
    xep_recording_t *recording = calloc(1, sizeof *recording);
    if (recording == NULL || asprintf(&recording->path, "%s.%u", config->record, rank) < 0) {
        free(recording);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the path of XEP_RECORD");
    }
    recording->rank = rank;
    recording->nranks = nranks;
    recording->at = config->record_at;
    *recording_p = recording;
    return XEP_OK;
}

/* Warns where the group ends before the dispatch to record: nobody would notice that the file is missing. */
void xep_recording_close(xep_recording_t *recording)
{
    if (recording == NULL) return;
    uint64_t dispatches = atomic_load_explicit(&recording->dispatches, memory_order_relaxed);
    if (dispatches != 0 && dispatches < recording->at) /* groups without any are made for something else, or failed */
        xep_log(XEP_LOG_WARN, "no routing is written: dispatch %" PRIu64 " was asked for, and there were %" PRIu64,
                recording->at, dispatches);
    free(recording->path);
    free(recording);
}

/* Makes a new file, so that a link of that name is never followed. NULL with errno. */
static FILE *make_file(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT) return NULL;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return NULL;
    FILE *file = fdopen(fd, "w");
    if (file == NULL) close(fd);
    return file;
}

/* A token without experts has a line, too: the highest token says how many there are. */
static void write_token(FILE *file, uint32_t rank, const xep_dispatch_args_t *args, uint64_t token)
{
    const char *row = (const char *)args->topk_idx + token * args->topk_idx_stride;
    fprintf(file, "%u %" PRIu64, rank, token);
    for (uint32_t k = 0; k < args->topk; k++) {
        int64_t expert = args->topk_idx_dtype == XEP_INT32 ? ((const int32_t *)(const void *)row)[k]
                                                           : ((const int64_t *)(const void *)row)[k];
        fprintf(file, " %" PRId64, expert);
    }
    fputc('\n', file);
}

static int write_file(const xep_recording_t *recording, const xep_dispatch_args_t *args, uint32_t experts)
{
    FILE *file = make_file(recording->path);
    if (file == NULL) return -1;
    fprintf(file, "# dispatch %" PRIu64 " of rank %u of %u: %" PRIu64 " tokens, top %u of %u experts\n", recording->at,
            recording->rank, recording->nranks, args->tokens, args->topk, experts);
    for (uint64_t token = 0; token < args->tokens; token++) write_token(file, recording->rank, args, token);
    int failed = ferror(file);
    return fclose(file) != 0 || failed ? -1 : 0;
}

/*
 * Writes once in the life of a group; all other dispatches cost one addition. A file that cannot be written never fails
 * the dispatch.
 */
void xep_recording_count(xep_recording_t *recording, const xep_dispatch_args_t *args, uint32_t experts)
{
    uint64_t number = 1 + atomic_fetch_add_explicit(&recording->dispatches, 1, memory_order_relaxed);
    if (number != recording->at) return;
    if (write_file(recording, args, experts) != 0)
        xep_log(XEP_LOG_WARN, "the routing is not written: %s: %s", recording->path, strerror(errno));
    else xep_log(XEP_LOG_INFO, "the routing of dispatch %" PRIu64 " is in %s", number, recording->path);
}
