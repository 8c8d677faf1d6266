/* SPDX-License-Identifier: BSD-3-Clause */

/** Makes one trace of what the ranks of a job have written: FILE of FILE.0, FILE.1, ... */
#ifndef TRACE_MERGE_H
#define TRACE_MERGE_H

#include <stdint.h>

/** How a merge has ended. */
typedef enum {
    TRACE_WHOLE,      /* all ranks are in it */
    TRACE_INCOMPLETE, /* some are missing, or had damaged events; it was said which */
    TRACE_NOTHING     /* no file was written, after a message */
} trace_merge_result_t;

/** Writes FILE anew. */
trace_merge_result_t trace_merge(const char *file);

/** Removes FILE.0 up to that of rank nranks - 1, as far as they are there. */
void trace_remove_journals(const char *file, uint32_t nranks);

#endif
