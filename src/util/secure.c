/* SPDX-License-Identifier: BSD-3-Clause */

/* Refused, not cleared: to change the environment is a race with every getenv() of the program's other threads. */
#define _GNU_SOURCE
#include "secure.h"

#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>

#include "error.h"

extern char **environ;

/* Setuid, setgid, or with capabilities of its file. */
static int is_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

xep_status_t xep_secure_check(const char *prefix)
{
    if (!is_privileged()) return XEP_OK;
    for (char **e = environ; e != NULL && *e != NULL; e++)
        if (strncmp(*e, prefix, strlen(prefix)) == 0)
            return xep_fail(XEP_ERR_INVALID,
                            "%.*s is set for a program that has more rights than who starts it (none of %s*: what they "
                            "say would be done with these rights)",
                            (int)strcspn(*e, "="), *e, prefix);
    return XEP_OK;
}
