/* SPDX-License-Identifier: BSD-3-Clause */

/** The environment of a rank: ours, without the variables of another job. */
#ifndef RUN_ENVIRON_H
#define RUN_ENVIRON_H

#include "run_options.h"

/** A malloc'ed copy of our environment as a rank is to see it, before PMIx adds its part; NULL: no memory. */
char **run_environ_make(const run_options_t *options);
void run_environ_free(char **env);

/** The first variable of ours that begins so, "NAME=VALUE", or NULL. */
const char *run_environ_find(const char *prefix);

#endif
