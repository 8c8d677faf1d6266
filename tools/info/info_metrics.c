/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A process keeps the counters of each buffer in an anonymous file that it has open (src/report/counts.h). The kernel
 * decides who may open those of a process: its user, and root. What is in them another process wrote, and is checked.
 */
#include "info_metrics.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "counts.h"

enum { EXIT_USAGE = 2 };

typedef struct found {
    int pid, fd;
    double age; /* seconds */
    xep_counts_t counts;
} found_t;

typedef struct list {
    found_t *found;
    size_t count;
} list_t;

static int fail(int pid, const char *what)
{
    fprintf(stderr, "xep_info: process %d: %s\n", pid, what);
    return EXIT_FAILURE;
}

/* ---- finding and checking ---- */

static int is_name(const char *text, size_t bytes)
{
    size_t length = strnlen(text, bytes);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '_' && text[i] != '-') return 0;
    return length > 0 && length < bytes;
}

static int is_valid(const xep_counts_t *counts)
{
    return counts->magic == XEP_COUNTS_MAGIC && counts->bytes == sizeof *counts && counts->rank < counts->nranks &&
           counts->buffer > 0 && is_name(counts->mode, sizeof counts->mode);
}

static double seconds_since(uint64_t ns)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return ns < now_ns ? (double)(now_ns - ns) / 1e9 : 0;
}

/* Another process may have put anything under this name; it must not make this one wait. */
static int read_counts(const char *path, xep_counts_t *counts)
{
    struct stat stat;
    int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), whole;
    if (file < 0) return 0;
    whole = fstat(file, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_size == (off_t)sizeof *counts &&
            pread(file, counts, sizeof *counts, 0) == (ssize_t)sizeof *counts;
    close(file);
    return whole;
}

static int add(list_t *list, const found_t *one)
{
    found_t *found = realloc(list->found, (list->count + 1) * sizeof *found);
    if (found == NULL) return fail(one->pid, "no memory");
    list->found = found;
    found[list->count++] = *one;
    return EXIT_SUCCESS;
}

/* Of a buffer that is being created all is 0 yet. */
static int look_at(list_t *list, int pid, const char *fd)
{
    static const char name[] = "/memfd:" XEP_COUNTS_FILE " (deleted)";
    char path[64], target[sizeof name];
    found_t one = {.pid = pid, .fd = atoi(fd)};
    snprintf(path, sizeof path, "/proc/%d/fd/%.20s", pid, fd);
    if (readlink(path, target, sizeof target) != sizeof name - 1 || memcmp(target, name, sizeof name - 1) != 0)
        return EXIT_SUCCESS;
    if (!read_counts(path, &one.counts)) return access(path, F_OK) != 0 ? EXIT_SUCCESS : fail(pid, "invalid counters");
    if (one.counts.magic == 0) return EXIT_SUCCESS;
    if (!is_valid(&one.counts)) return fail(pid, "invalid counters (is its xep of another version?)");
    one.age = seconds_since(one.counts.created_ns);
    return add(list, &one);
}

static int look_for(list_t *list, int pid)
{
    const size_t before = list->count;
    const struct dirent *entry;
    char path[32];
    int ret = EXIT_SUCCESS;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    if (folder == NULL) return fail(pid, errno == ENOENT ? "there is none" : strerror(errno));
    while (ret == EXIT_SUCCESS && (entry = readdir(folder)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0])) ret = look_at(list, pid, entry->d_name);
    closedir(folder);
    return ret == EXIT_SUCCESS && list->count == before ? fail(pid, "it has no buffer of xep") : ret;
}

/* ---- printing ---- */

/* A number of each kind of operation or, where it is not by kind, of the buffer. */
typedef struct family {
    const char *name, *type, *help;
    size_t offset;
    int by_kind, is_ns;
} family_t;

#define BY_KIND(_name, _field, _is_ns, _help)                                      \
    {                                                                              \
        _name, "counter", _help, offsetof(xep_counts_of_kind_t, _field), 1, _is_ns \
    }
#define OF_BUFFER(_name, _type, _field, _help)                    \
    {                                                             \
        _name, _type, _help, offsetof(xep_counts_t, _field), 0, 0 \
    }
static const family_t families[] = {
    BY_KIND("xep_operations_total", operations, 0, "Operations that have ended."),
    BY_KIND("xep_errors_total", errors, 0, "Of these, with an error."),
    BY_KIND("xep_peer_errors_total", peer_errors, 0, "Of these, because a rank has died."),
    BY_KIND("xep_rows_total", rows, 0, "Rows received or, of a combine, sent back."),
    BY_KIND("xep_bytes_total", bytes, 0, "Bytes of the elements of these rows."),
    BY_KIND("xep_waits_total", waits, 0, "Operations that waited for some rank."),
    BY_KIND("xep_wait_seconds_total", wait_ns, 1, "The longest wait of each operation, added up."),
    OF_BUFFER("xep_wire_bytes_total", "counter", wire_bytes, "Bytes given to UCX for ranks that are not mapped."),
    OF_BUFFER("xep_ranks_out", "gauge", ranks_out, "Ranks that the buffer goes on without."),
};

static void print_labels(const char *name, const found_t *one)
{
    const xep_counts_t *counts = &one->counts;
    printf("%s{pid=\"%d\",rank=\"%" PRIu32 "\",buffer=\"%" PRIu32 "\",fd=\"%d\",mode=\"%s\"", name, one->pid,
           counts->rank, counts->buffer, one->fd, counts->mode);
}

static void print_number(const family_t *family, const void *of)
{
    uint64_t number;
    memcpy(&number, (const char *)of + family->offset, sizeof number);
    if (family->is_ns) printf("} %.9f\n", (double)number / 1e9);
    else printf("} %" PRIu64 "\n", number);
}

static void print_one(const family_t *family, const found_t *one)
{
    static const char *const kinds[XEP_OP_KINDS] = {"dispatch", "combine", "next"};
    for (int kind = 0; kind < (family->by_kind ? XEP_OP_KINDS : 1); kind++) {
        print_labels(family->name, one);
        if (family->by_kind) printf(",op=\"%s\"", kinds[kind]);
        print_number(family, family->by_kind ? (const void *)&one->counts.of[kind] : &one->counts);
    }
}

/* All numbers of one name are together: the format asks for that. */
static void print(const list_t *list)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        printf("# HELP %s %s\n# TYPE %s %s\n", families[f].name, families[f].help, families[f].name, families[f].type);
        for (size_t i = 0; i < list->count; i++) print_one(&families[f], &list->found[i]);
    }
    printf("# HELP xep_age_seconds Since the buffer was created.\n# TYPE xep_age_seconds gauge\n");
    for (size_t i = 0; i < list->count; i++) {
        print_labels("xep_age_seconds", &list->found[i]);
        printf("} %.3f\n", list->found[i].age);
    }
}

int info_metrics_print(char *const *pids, int count)
{
    list_t list = {NULL, 0};
    int ret = EXIT_SUCCESS;
    for (int i = 0; i < count && ret == EXIT_SUCCESS; i++) {
        char *end;
        errno = 0;
        long pid = strtol(pids[i], &end, 10);
        if (errno == 0 && *end == '\0' && pid > 0 && pid <= INT_MAX) {
            ret = look_for(&list, (int)pid);
            continue;
        }
        fprintf(stderr, "xep_info: invalid process: \"%s\" (a number above 0)\n", pids[i]);
        ret = EXIT_USAGE;
    }
    if (ret == EXIT_SUCCESS) print(&list);
    free(list.found);
    return ret;
}
