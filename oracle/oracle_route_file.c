/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Entries are kept in the order of lines and found by rank and token afterwards: memory follows from what the file
 * holds, not from the numbers it names.
 */
#include "oracle_route_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "oracle_alloc.h"

/* of a line: each number, and besides them comments */
enum { NUMBER_BYTES = 24, COMMENT_BYTES = 4096, FIRST_ROOM = 64 };

typedef struct entry {
    uint64_t token;
    uint64_t line; /* where it stands */
    size_t at;     /* of its selections, in table */
    uint32_t rank;
} entry_t;

struct oracle_route_file {
    uint32_t topk;
    size_t count, room; /* of entries */
    entry_t *entries;   /* by rank, then token */
    int32_t *table;     /* [room][topk], in the order of lines */
};

typedef struct reader {
    const char *path;
    const oracle_route_limits_t *limits;
    oracle_route_file_t *file;
    uint64_t line;
    char *why;
    size_t why_bytes;
} reader_t;

/* The line is named, as editors count: a routing has thousands. */
static int complain(const reader_t *reader, const char *what)
{
    snprintf(reader->why, reader->why_bytes, "%s line %" PRIu64 ": %s", reader->path, reader->line, what);
    return -1;
}

/* ---- a line ---- */

/* The next number of a line, within low .. high. 1: read, 0: end of line, -1: complained. */
static int next_number(const reader_t *reader, char **at, int64_t low, int64_t high, const char *what, int64_t *value_p)
{
    char sentence[96], *end;
    int64_t value;

    *at += strspn(*at, " \t\r\n");
    if (**at == '\0') return 0;
    errno = 0;
    value = strtoll(*at, &end, 10);
    if (end == *at || errno != 0 || strchr(" \t\r\n", *end) == NULL || value < low || value > high) {
        snprintf(sentence, sizeof sentence, "invalid %s: \"%.*s\" (%" PRId64 " to %" PRId64 ")", what,
                 (int)strcspn(*at, " \t\r\n") > 20 ? 20 : (int)strcspn(*at, " \t\r\n"), *at, low, high);
        return complain(reader, sentence);
    }
    *at = end;
    *value_p = value;
    return 1;
}

/* Room for one entry more, whose selections are at the returned place. */
static int32_t *add_entry(oracle_route_file_t *file, uint32_t rank, uint64_t token, uint64_t line)
{
    if (file->count == file->room) {
        file->room = file->room == 0 ? FIRST_ROOM : 2 * file->room;
        file->entries = oracle_realloc(file->entries, file->room * sizeof *file->entries);
        file->table = oracle_realloc(file->table, file->room * file->topk * sizeof *file->table);
    }
    file->entries[file->count] = (entry_t){.rank = rank, .token = token, .line = line, .at = file->count * file->topk};
    return file->table + file->topk * file->count++;
}

/* A line that is empty or a comment has no entry. What is left out behind the last expert is -1. */
static int parse_line(reader_t *reader, char *text)
{
    const oracle_route_limits_t *limits = reader->limits;
    const int64_t most_tokens = limits->tokens != 0 ? (int64_t)limits->tokens : INT32_MAX;
    int64_t rank, token, expert;
    int32_t *idx;
    int ret;

    text[strcspn(text, "#")] = '\0';
    ret = next_number(reader, &text, 0, limits->nranks - 1, "rank", &rank);
    if (ret <= 0) return ret;
    ret = next_number(reader, &text, 0, most_tokens - 1, "token", &token);
    if (ret <= 0) return ret < 0 ? ret : complain(reader, "no token after the rank (RANK TOKEN E0 E1 ..)");
    idx = add_entry(reader->file, (uint32_t)rank, (uint64_t)token, reader->line);
    for (uint32_t k = 0; k < limits->topk; k++) {
        ret = next_number(reader, &text, -1, (int64_t)limits->experts - 1, "expert", &expert);
        if (ret < 0) return ret;
        idx[k] = ret > 0 ? (int32_t)expert : -1;
    }
    if (text[strspn(text, " \t\r\n")] == '\0') return 0;
    return complain(reader, "more experts than the top-k (fewer, or a larger top-k)");
}

/* ---- all of them ---- */

/* A line that does not fit is no line of a routing: memory is not taken for whatever a file may hold. */
static int read_lines(reader_t *reader, FILE *stream)
{
    const size_t most = COMMENT_BYTES + (reader->limits->topk + 2) * (size_t)NUMBER_BYTES;
    char *text = oracle_alloc(most);
    int ret = 0;

    while (ret == 0 && fgets(text, (int)most, stream) != NULL) {
        reader->line++;
        if (strchr(text, '\n') != NULL || feof(stream)) ret = parse_line(reader, text);
        else ret = complain(reader, "the line does not end (a text file is wanted)");
    }
    if (ret == 0 && ferror(stream)) ret = complain(reader, strerror(errno));
    free(text);
    return ret;
}

/* By line last, so that of two lines with the same token the later one is the one complained of. */
static int compare_entries(const void *a, const void *b)
{
    const entry_t *x = a, *y = b;

    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->token != y->token) return x->token < y->token ? -1 : 1;
    return (x->line > y->line) - (x->line < y->line);
}

static int sort_entries(reader_t *reader, uint64_t *tokens_of)
{
    const oracle_route_file_t *file = reader->file;

    if (file->count != 0) qsort(file->entries, file->count, sizeof *file->entries, compare_entries);
    for (size_t i = 0; i < file->count; i++) {
        const entry_t *entry = &file->entries[i];
        tokens_of[entry->rank] = entry->token + 1;
        if (i == 0 || entry->rank != entry[-1].rank || entry->token != entry[-1].token) continue;
        reader->line = entry->line;
        return complain(reader, "this token of this rank was on an earlier line (one line each)");
    }
    return 0;
}

/* Nothing that does not end, and nothing that waits for a writer. */
static FILE *open_regular(const char *path, const char **why)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    FILE *stream = NULL;

    if (fd < 0 || fstat(fd, &info) != 0) *why = strerror(errno);
    else if (!S_ISREG(info.st_mode)) *why = "not a file";
    else if ((stream = fdopen(fd, "r")) == NULL) *why = strerror(errno);
    if (stream == NULL && fd >= 0) close(fd);
    return stream;
}

int oracle_route_file_read(const char *path, const oracle_route_limits_t *limits, uint64_t *tokens_of,
                           oracle_route_file_t **file_p, char *why, size_t why_bytes)
{
    reader_t reader = {.path = path, .limits = limits, .why = why, .why_bytes = why_bytes};
    const char *trouble;
    FILE *stream = open_regular(path, &trouble);
    int ret;

    if (stream == NULL) {
        snprintf(why, why_bytes, "cannot read %s: %s", path, trouble);
        return -1;
    }
    reader.file = oracle_alloc(sizeof *reader.file);
    reader.file->topk = limits->topk;
    ret = read_lines(&reader, stream);
    fclose(stream);
    if (ret == 0) ret = sort_entries(&reader, tokens_of);
    if (ret == 0) *file_p = reader.file;
    else oracle_route_file_free(reader.file);
    return ret;
}

void oracle_route_file_free(oracle_route_file_t *file)
{
    if (file == NULL) return;
    free(file->entries);
    free(file->table);
    free(file);
}

void oracle_route_file_look(const oracle_route_file_t *file, uint32_t rank, uint64_t token, int32_t *idx)
{
    size_t low = 0, high = file->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const entry_t *entry = &file->entries[middle];
        if (entry->rank < rank || (entry->rank == rank && entry->token < token)) low = middle + 1;
        else high = middle;
    }
    if (low < file->count && file->entries[low].rank == rank && file->entries[low].token == token)
        memcpy(idx, file->table + file->entries[low].at, file->topk * sizeof *idx);
    else
        for (uint32_t k = 0; k < file->topk; k++) idx[k] = -1;
}
