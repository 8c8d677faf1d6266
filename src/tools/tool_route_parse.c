/* SPDX-License-Identifier: BSD-3-Clause */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool_routing.h"

static int parse_groups(const char *text, tool_route_spec_t *spec, char *why, size_t why_bytes)
{
    int end = 0;

    if (sscanf(text, "%4" SCNu32 ",%4" SCNu32 "%n", &spec->groups, &spec->topk_groups, &end) == 2 && !text[end] &&
        spec->groups >= 1 && spec->groups <= TOOL_MAX_GROUPS && spec->topk_groups >= 1 &&
        spec->topk_groups <= spec->groups)
        return 0;
    snprintf(why, why_bytes, "group:G,N needs N groups of G, 1 <= N <= G <= %d, not '%s'", TOOL_MAX_GROUPS, text);
    return -1;
}

static int parse_exponent(const char *text, tool_route_spec_t *spec, char *why, size_t why_bytes)
{
    char *end;

    errno = 0;
    spec->exponent = strtod(text, &end);
    if (end != text && !*end && !errno && isfinite(spec->exponent) && spec->exponent >= 0) return 0;
    snprintf(why, why_bytes, "zipf:S needs an exponent S of at least 0, not '%s'", text);
    return -1;
}

static int parse_path(const char *text, tool_route_spec_t *spec, char *why, size_t why_bytes)
{
    spec->path = text;
    if (*text) return 0;
    snprintf(why, why_bytes, "file:PATH needs a path");
    return -1;
}

static int parse_nothing(const char *text, tool_route_spec_t *spec, char *why, size_t why_bytes)
{
    (void)spec;
    if (!*text) return 0;
    snprintf(why, why_bytes, "nothing may follow the name: '%s'", text);
    return -1;
}

static const struct {
    const char *name; /* with its colon, where a value follows */
    tool_route_kind_t kind;
    int (*parse)(const char *text, tool_route_spec_t *spec, char *why, size_t why_bytes);
} kinds[] = {
    {"uniform", TOOL_ROUTE_UNIFORM, parse_nothing},   {"group:", TOOL_ROUTE_GROUP, parse_groups},
    {"zipf:", TOOL_ROUTE_ZIPF, parse_exponent},       {"one-rank", TOOL_ROUTE_ONE_RANK, parse_nothing},
    {"self", TOOL_ROUTE_SELF, parse_nothing},         {"file:", TOOL_ROUTE_FILE, parse_path},
};

int tool_route_parse(const char *text, tool_route_spec_t *spec_p, char *why, size_t why_bytes)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t length = strlen(kinds[i].name);
        tool_route_spec_t spec = {.kind = kinds[i].kind};
        if (strncmp(text, kinds[i].name, length)) continue;
        if (kinds[i].parse(text + length, &spec, why, why_bytes)) return -1;
        *spec_p = spec;
        return 0;
    }
    snprintf(why, why_bytes, "uniform, group:G,N, zipf:S, one-rank, self or file:PATH, not '%s'", text);
    return -1;
}
