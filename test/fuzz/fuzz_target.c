/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "fuzz_target.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- inputs ---- */

uint64_t fuzz_take(fuzz_input_t *input, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && input->at < input->end; i++) value |= (uint64_t)*input->at++ << 8 * i;
    return value;
}

uint64_t fuzz_below(fuzz_input_t *input, uint64_t n)
{
    return fuzz_take(input, n <= 256 ? 1 : n <= 65536 ? 2 : 8) % n;
}

uint64_t fuzz_number(fuzz_input_t *input)
{
    uint64_t kind = fuzz_take(input, 1);
    if (kind < 128) return kind;
    if (kind < 192) return (UINT64_C(1) << (kind - 128)) - 1;
    if (kind < 224) return (UINT64_C(1) << 2 * (kind - 192)) + 1;
    switch (kind) {
    case 224: return INT32_MAX;
    case 225: return UINT32_MAX;
    case 226: return INT64_MAX;
    case 227: return UINT64_MAX;
    case 228: return (uint64_t)INT64_MIN;
    case 229: return (uint64_t)INT32_MIN;
    case 230: return UINT64_MAX - 1;
    case 231: return UINT32_MAX - 1;
    default: return fuzz_take(input, kind < 240 ? 2 : kind < 248 ? 4 : 8);
    }
}

/* ---- counts ---- */

static uint64_t units;

static void tell_units(void)
{
    printf("# %s: %" PRIu64 " %s\n", fuzz_target.name, units, fuzz_target.unit);
    fflush(stdout);
}

void fuzz_count(uint64_t more)
{
    static int registered;
    if (!registered) registered = atexit(tell_units) == 0;
    units += more;
}

void fuzz_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", fuzz_target.name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

/* ---- files ---- */

static char folder[256];

static void remove_folder(void)
{
    char command[sizeof folder + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) fprintf(stderr, "%s is left\n", folder);
}

const char *fuzz_folder(void)
{
    if (folder[0] != '\0') return folder;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/xep_fuzz.XXXXXX", parent == NULL ? "/tmp" : parent);
    if (mkdtemp(folder) == NULL || atexit(remove_folder) != 0) fuzz_fail("no folder %s", folder);
    return folder;
}

void fuzz_write(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || close(fd) != 0) fuzz_fail("cannot write %s", path);
}
