/* SPDX-License-Identifier: BSD-3-Clause */

#include "run.h"

#include <stdlib.h>
#include <string.h>

#include <trace_merge.h>

/* As the ranks will see it: the last -x wins over our own environment. NULL: there is no trace. */
static const char *trace_file(const run_options_t *options)
{
    static const char name[] = "XEP_TRACE=";
    const char *file = getenv("XEP_TRACE");
    for (size_t i = 0; i < options->nsets; i++)
        if (strncmp(options->sets[i], name, sizeof name - 1) == 0) file = options->sets[i] + sizeof name - 1;
    return file == NULL || *file == '\0' ? NULL : file;
}

/* Files of an earlier job would be taken for those of this one. */
void run_trace_begin(const run_options_t *options)
{
    const char *file = trace_file(options);
    if (file != NULL) trace_remove_journals(file, options->nranks);
}

/* The job is over, so nobody writes any more. */
void run_trace_end(const run_options_t *options)
{
    const char *file = trace_file(options);
    if (file != NULL && trace_merge(file) != TRACE_NOTHING) trace_remove_journals(file, options->nranks);
}
