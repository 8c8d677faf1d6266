/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files of a trace, as ranks leave them that were killed, or as anybody may change them: whole files of one to three
 * ranks, over which the input writes, are merged. What comes out is JSON, however little of them is left.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz_target.h"
#include "trace_merge.h"
#include "trace_say.h"
#include <trace_file.h>

const fuzz_target_t fuzz_target = {.name = "trace", .unit = "traces merged", .runs = 1500};

enum { HOST = 'H', MODE = 'M', FIRST = 'a' }; /* control messages of texts; events have FIRST and the next ones */
enum { UNDESCRIBED = 8 };                     /* the event of a buffer too many */
enum { MOST_RANKS = 3, EVENTS = 12, MOST_PATCHES = 64, MOST_SAID = 50, MOST_CLAIMED = 1024 };

static int said;
static size_t most_bytes; /* of a file */

/* In place of the tool's, which writes to stderr. */
void trace_say(const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (++said > MOST_SAID) fuzz_fail("more than %d messages, the last is: %s", MOST_SAID, text);
}

/* ---- files ---- */

typedef struct rank_file {
    xep_trace_header_t header;
    char rest[XEP_TRACE_UNIT - sizeof(xep_trace_header_t)];
    uint64_t written, reserved[7]; /* xep_trace_ring_t, whose events are as many as fit */
    xep_trace_event_t event[XEP_TRACE_UNIT / sizeof(xep_trace_event_t) - 1];
} rank_file_t;
_Static_assert(sizeof(rank_file_t) == 2 * XEP_TRACE_UNIT, "header and one ring");

/* As long as it may be: one byte over its end, and it has none. */
static void fill_text(char *text, size_t bytes, char msg)
{
    memset(text, msg, bytes - 1);
    text[bytes - 1] = '\0';
}

static void fill_header(xep_trace_header_t *header, uint32_t rank, uint32_t nranks)
{
    *header = (xep_trace_header_t){.rank = rank, .nranks = nranks, .job = 77, .ring_bytes = XEP_TRACE_UNIT, .pid = 10};
    memcpy(header->magic, XEP_TRACE_MAGIC, sizeof header->magic);
    header->rings = header->buffers = 1;
    header->syncs = XEP_TRACE_SYNCS + 3;
    fill_text(header->host, sizeof header->host, HOST);
    header->buffer[0] = (xep_trace_buffer_t){"", 8, 2, 64, 2};
    fill_text(header->buffer[0].mode, sizeof header->buffer[0].mode, MODE);
    for (uint32_t i = 0; i < XEP_TRACE_SYNCS; i++) {
        uint64_t at = 1000 + 100 * i + rank;
        header->first[i] = (xep_trace_sync_t){i + 1, at, at + 50};
        header->last[i] = (xep_trace_sync_t){i + 9, at + 5000, at + 5050};
    }
}

static void fill_file(rank_file_t *file, uint32_t rank, uint32_t nranks)
{
    fill_header(&file->header, rank, nranks);
    file->written = EVENTS;
    for (uint32_t i = 0; i < EVENTS; i++) {
        xep_trace_event_t *event = &file->event[i];
        *event = (xep_trace_event_t){.begin_ns = 2000 + 10 * i,
                                     .end_ns = 2005 + 10 * i,
                                     .epoch = i,
                                     .where = i == UNDESCRIBED ? XEP_TRACE_BUFFERS + i : 0,
                                     .kind = (uint8_t)(i % XEP_TRACE_KINDS),
                                     .op = (uint8_t)(i % 3)};
        if (event->kind == XEP_TRACE_PHASE || event->kind >= XEP_TRACE_CALL)
            fill_text(event->name, XEP_TRACE_NAME, (char)(FIRST + i));
    }
}

/* One number, or a run of bytes, somewhere in what a rank has written. */
static void patch_file(rank_file_t *file, fuzz_input_t *input)
{
    static const uint32_t parts[] = {sizeof(xep_trace_header_t), 128 + 16 * sizeof(xep_trace_sync_t),
                                     (EVENTS + 1) * sizeof(xep_trace_event_t), 128};
    uint64_t part = fuzz_below(input, 4), width = (uint64_t)1 << fuzz_below(input, 4);
    uint64_t at = fuzz_take(input, 2) % (parts[part] / width) * width, value = fuzz_number(input);
    memcpy((char *)file + (part == 2 ? XEP_TRACE_UNIT : 0) + at, &value, width);
}

/* Its length is part of what may be wrong with it. A job of a million ranks is no defect, but a long list. */
static void write_rank(const char *to, uint32_t rank, rank_file_t *file, size_t bytes)
{
    char path[320];
    snprintf(path, sizeof path, "%s.%u", to, rank);
    if (file->header.nranks <= 1 << 20) file->header.nranks %= MOST_CLAIMED;
    fuzz_write(path, file, bytes < sizeof *file ? bytes : sizeof *file);
    if (bytes > sizeof *file && truncate(path, (off_t)bytes) != 0) fuzz_fail("cannot make %s longer", path);
}

/* ---- JSON ---- */

static void skip_spaces(const char **at)
{
    while (**at != '\0' && strchr(" \t\r\n", **at) != NULL) (*at)++;
}

static int skip_value(const char **at, int depth);

/* Bytes that a text had before it was written as JSON. */
static size_t msgs_of(const char *from, const char *to)
{
    size_t msgs = 0;
    for (; from < to; from++, msgs++)
        if (*from == '\\') from += from[1] == 'u' ? 5 : 1;
    return msgs;
}

/* Texts of a file are as long as they may be. One that was read beyond its end is longer: fill_text() made it. */
static int has_its_end(const char *text, const char *end)
{
    static const char track[] = "buffer ";
    if (strncmp(text, track, strlen(track)) == 0) {
        char *mode;
        unsigned long number = strtoul(text + strlen(track), &mode, 10);
        size_t msgs = *mode == ' ' ? msgs_of(mode + 1, mode + strcspn(mode, ",\"")) : 0;
        return msgs < (number < XEP_TRACE_BUFFERS ? sizeof((xep_trace_buffer_t *)0)->mode : 1);
    }
    if (text[0] != text[1]) return 1;
    if (text[0] == HOST) return msgs_of(text, text + strcspn(text, ",\"")) < sizeof((xep_trace_header_t *)0)->host;
    return text[0] < FIRST || text[0] > FIRST + EVENTS || msgs_of(text, end) < XEP_TRACE_NAME;
}

static int skip_text(const char **at)
{
    if (*(*at)++ != '"') return 0;
    const char *text = *at;
    for (; **at != '"'; (*at)++) {
        if ((unsigned char)**at < 0x20) return 0;
        if (**at == '\\' && (*++*at == '\0' || strchr("\"\\/bfnrtu", **at) == NULL)) return 0;
    }
    return has_its_end(text, (*at)++);
}

static int skip_number(const char **at)
{
    const char *begin = *at;
    *at += **at == '-';
    size_t whole = strspn(*at, "0123456789");
    if (whole == 0 || (whole > 1 && **at == '0')) return 0;
    *at += whole;
    if (**at == '.') {
        size_t digits = strspn(*at + 1, "0123456789");
        if (digits == 0) return 0;
        *at += 1 + digits;
    }
    return *at > begin;
}

static int skip_members(const char **at, char end, int depth)
{
    (*at)++;
    skip_spaces(at);
    while (**at != end) {
        if (end == '}' && (!skip_text(at) || (skip_spaces(at), *(*at)++ != ':'))) return 0;
        if (!skip_value(at, depth - 1)) return 0;
        skip_spaces(at);
        if (**at == ',') {
            (*at)++;
            skip_spaces(at);
            if (**at == end) return 0;
        } else if (**at != end) return 0;
    }
    (*at)++;
    return 1;
}

static int skip_value(const char **at, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    skip_spaces(at);
    if (depth == 0) return 0;
    if (**at == '{') return skip_members(at, '}', depth);
    if (**at == '[') return skip_members(at, ']', depth);
    if (**at == '"') return skip_text(at);
    for (int i = 0; i < 3; i++)
        if (strncmp(*at, words[i], strlen(words[i])) == 0) {
            *at += strlen(words[i]);
            return 1;
        }
    return skip_number(at);
}

/* A rank has no more events than its file has room for: what else there is was read behind its end. */
static void check_counts(const char *text)
{
    static const char events[] = "\"events\":", damaged[] = "\"damaged\":";
    while ((text = strstr(text, events)) != NULL) {
        uint64_t found = strtoull(text + strlen(events), NULL, 10);
        const char *more = strstr(text, damaged);
        if (more != NULL) found += strtoull(more + strlen(damaged), NULL, 10);
        if (found > most_bytes / sizeof(xep_trace_event_t)) fuzz_fail("%" PRIu64 " events of a rank", found);
        text += strlen(events);
    }
}

static void check_json(const char *path)
{
    static char text[4 << 20];
    FILE *from = fopen(path, "rbe");
    if (from == NULL) fuzz_fail("there is no %s", path);
    size_t bytes = fread(text, 1, sizeof text - 1, from);
    fclose(from);
    text[bytes] = '\0';
    const char *at = text;
    int good = skip_value(&at, 16);
    skip_spaces(&at);
    check_counts(text);
    if (!good || at != text + bytes)
        fuzz_fail("no JSON from byte %zu of %zu on: %.60s", (size_t)(at - text), bytes, at);
}

/* ---- a merge ---- */

/* Ranks, then patches of five bytes and more: rank, part, width, where, value; at last the length of rank 0's file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rank_file_t files[MOST_RANKS];
    fuzz_input_t input = {data, data + size};
    uint32_t nranks = 1 + (uint32_t)fuzz_below(&input, MOST_RANKS);
    uint64_t length = fuzz_take(&input, 1), path_bytes = 320;
    char *path = malloc(path_bytes);
    if (path == NULL) fuzz_fail("no memory");
    snprintf(path, path_bytes, "%s/trace", fuzz_folder());
    for (uint32_t r = 0; r < nranks; r++) fill_file(&files[r], r, nranks);
    for (int i = 0; i < MOST_PATCHES && input.at < input.end; i++)
        patch_file(&files[fuzz_below(&input, nranks)], &input);
    size_t bytes = length < 128 ? sizeof files[0] : (size_t)(length - 128) * 1500;
    most_bytes = bytes < sizeof files[0] ? sizeof files[0] : bytes;
    for (uint32_t r = 0; r < nranks; r++) write_rank(path, r, &files[r], bytes);
    said = 0;
    if (trace_merge(path) != TRACE_NOTHING) check_json(path);
    else if (said == 0) fuzz_fail("nothing was merged, and nothing was said");
    trace_remove_journals(path, nranks);
    unlink(path);
    free(path);
    fuzz_count(1);
    return 0;
}
