/* SPDX-License-Identifier: BSD-3-Clause */

#include "fork.h"

#include <pthread.h>

unsigned xep_forks;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int counts;

static void count(void)
{
    xep_forks++;
}

static void begin(void)
{
    counts = pthread_atfork(NULL, NULL, count) == 0;
}

int xep_forks_begin(void)
{
    pthread_once(&once, begin);
    return counts ? 0 : -1;
}
