/* SPDX-License-Identifier: BSD-3-Clause */

/* Reads a routing from a file, twice: the first reading checks every line and finds how
 * many tokens each rank has, the second fills the table. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool_alloc.h"
#include "tool_routing.h"

enum { NOT_SEEN = -2 }; /* in the table: no line yet */

typedef struct reader {
    tool_routing_t *routing;
    FILE *file;
    uint64_t line;
    char *why;
    size_t why_bytes;
    uint32_t rank;  /* of the line just read */
    uint64_t token;
    int32_t *idx;   /* [topk] */
} reader_t;

static int complain(const reader_t *reader, const char *what)
{
    snprintf(reader->why, reader->why_bytes, "%s line %" PRIu64 ": %s", reader->routing->params.spec.path, reader->line,
             what);
    return -1;
}

/* The next number of a line, within low .. high. 1: read, 0: end of line, -1: complained. */
static int next_number(const reader_t *reader, char **at, int64_t low, int64_t high, const char *what, int64_t *value_p)
{
    char sentence[96], *end;
    int64_t value;

    *at += strspn(*at, " \t\r\n");
    if (!**at) return 0;
    errno = 0;
    value = strtoll(*at, &end, 10);
    if (end == *at || errno || !strchr(" \t\r\n", *end) || value < low || value > high) {
        snprintf(sentence, sizeof sentence, "%s from %" PRId64 " to %" PRId64 " expected, not '%.*s'", what, low, high,
                 (int)strcspn(*at, " \t\r\n") > 20 ? 20 : (int)strcspn(*at, " \t\r\n"), *at);
        return complain(reader, sentence);
    }
    *at = end;
    *value_p = value;
    return 1;
}

/* RANK TOKEN E0 E1 .. into the reader. 1: a token, 0: a line without, -1: complained. */
static int parse_line(reader_t *reader, char *text)
{
    const tool_routing_params_t *params = &reader->routing->params;
    const int64_t most_tokens = params->tokens ? (int64_t)params->tokens : INT32_MAX;
    int64_t rank, token, expert;
    int ret;

    text[strcspn(text, "#")] = '\0';
    ret = next_number(reader, &text, 0, params->nranks - 1, "a rank", &rank);
    if (ret <= 0) return ret;
    ret = next_number(reader, &text, 0, most_tokens - 1, "a token", &token);
    if (ret <= 0) return ret ? ret : complain(reader, "a token expected after the rank");
    for (uint32_t k = 0; k < params->topk; k++) {
        ret = next_number(reader, &text, -1, (int64_t)params->experts - 1, "an expert", &expert);
        if (ret < 0) return ret;
        reader->idx[k] = ret ? (int32_t)expert : -1;
    }
    if (text[strspn(text, " \t\r\n")]) return complain(reader, "more experts than the top-k");
    reader->rank = (uint32_t)rank;
    reader->token = (uint64_t)token;
    return 1;
}

static int note_token(reader_t *reader)
{
    uint64_t *tokens = reader->routing->tokens_of + reader->rank;

    if (*tokens <= reader->token) *tokens = reader->token + 1;
    return 0;
}

static int store_token(reader_t *reader)
{
    const tool_routing_t *routing = reader->routing;
    int32_t *idx = routing->table + (routing->table_begin[reader->rank] + reader->token) * routing->params.topk;

    if (*idx != NOT_SEEN) return complain(reader, "this token of this rank was on an earlier line");
    memcpy(idx, reader->idx, routing->params.topk * sizeof *idx);
    return 0;
}

static int each_token(reader_t *reader, int (*visit)(reader_t *))
{
    char *text = NULL;
    size_t room = 0;
    int ret = 0;

    rewind(reader->file);
    reader->line = 0;
    while (ret >= 0 && getline(&text, &room, reader->file) >= 0) {
        reader->line++;
        ret = parse_line(reader, text);
        if (ret > 0) ret = visit(reader);
    }
    free(text);
    if (ret < 0) return -1;
    return ferror(reader->file) ? complain(reader, "cannot be read") : 0;
}

static void make_table(tool_routing_t *routing)
{
    uint64_t rows = 0;

    routing->table_begin = tool_alloc(routing->params.nranks * sizeof *routing->table_begin);
    for (uint32_t rank = 0; rank < routing->params.nranks; rank++) {
        routing->table_begin[rank] = rows;
        rows += routing->tokens_of[rank];
    }
    routing->table = tool_alloc(rows * routing->params.topk * sizeof *routing->table);
    for (uint64_t i = 0; i < rows * routing->params.topk; i++) routing->table[i] = NOT_SEEN;
}

static void fill_gaps(tool_routing_t *routing)
{
    uint64_t rows = 0;

    for (uint32_t rank = 0; rank < routing->params.nranks; rank++) rows += routing->tokens_of[rank];
    for (uint64_t i = 0; i < rows * routing->params.topk; i++)
        if (routing->table[i] == NOT_SEEN) routing->table[i] = -1;
}

int tool_route_file_read(tool_routing_t *routing, char *why, size_t why_bytes)
{
    reader_t reader = {.routing = routing, .why = why, .why_bytes = why_bytes};
    int ret;

    reader.file = fopen(routing->params.spec.path, "r");
    if (!reader.file) {
        snprintf(why, why_bytes, "%s cannot be read: %s", routing->params.spec.path, strerror(errno));
        return -1;
    }
    reader.idx = tool_alloc(routing->params.topk * sizeof *reader.idx);
    ret = each_token(&reader, note_token);
    if (!ret) {
        make_table(routing);
        ret = each_token(&reader, store_token);
        fill_gaps(routing);
    }
    free(reader.idx);
    fclose(reader.file);
    return ret;
}
