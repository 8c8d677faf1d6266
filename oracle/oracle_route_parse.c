/* SPDX-License-Identifier: BSD-3-Clause */

/* What follows the name must be all used up: "zipf:1.2x" is an error, not 1.2. */
#include "oracle_route_parse.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Four digits at most, so that sscanf() cannot overflow. */
static int parse_groups(const char *text, oracle_route_spec_t *spec, char *why, size_t why_bytes)
{
    int end = 0;

    if (sscanf(text, "%4" SCNu32 ",%4" SCNu32 "%n", &spec->groups, &spec->topk_groups, &end) == 2 && !text[end] &&
        spec->groups >= 1 && spec->groups <= ORACLE_MAX_GROUPS && spec->topk_groups >= 1 &&
        spec->topk_groups <= spec->groups)
        return 0;
    snprintf(why, why_bytes, "\"group:%s\" (group:G,N with 1 <= N <= G <= %d)", text, ORACLE_MAX_GROUPS);
    return -1;
}

/* isfinite() is for "inf" and "nan", which strtod() takes as well. With S 0 all experts are equally popular. */
static int parse_exponent(const char *text, oracle_route_spec_t *spec, char *why, size_t why_bytes)
{
    char *end;

    errno = 0;
    spec->exponent = strtod(text, &end);
    if (end != text && !*end && !errno && isfinite(spec->exponent) && spec->exponent >= 0) return 0;
    snprintf(why, why_bytes, "\"zipf:%s\" (zipf:S with S at least 0)", text);
    return -1;
}

/* Whether there is such a file is found out by oracle_routing_create(), which reads it. */
static int parse_path(const char *text, oracle_route_spec_t *spec, char *why, size_t why_bytes)
{
    spec->path = text;
    if (*text) return 0;
    snprintf(why, why_bytes, "\"file:\" (file:PATH)");
    return -1;
}

static int parse_nothing(const char *text, oracle_route_spec_t *spec, char *why, size_t why_bytes)
{
    (void)spec;
    if (!*text) return 0;
    snprintf(why, why_bytes, "\"%s\" after the name (nothing may follow that)", text);
    return -1;
}

static const struct {
    const char *name; /* with its colon, where a value follows */
    oracle_route_kind_t kind;
    int (*parse)(const char *text, oracle_route_spec_t *spec, char *why, size_t why_bytes);
} kinds[] = {
    {"uniform", ORACLE_ROUTE_UNIFORM, parse_nothing}, {"group:", ORACLE_ROUTE_GROUP, parse_groups},
    {"zipf:", ORACLE_ROUTE_ZIPF, parse_exponent},     {"one-rank", ORACLE_ROUTE_ONE_RANK, parse_nothing},
    {"self", ORACLE_ROUTE_SELF, parse_nothing},       {"file:", ORACLE_ROUTE_FILE, parse_path},
};

/* No name is the begin of another one, so the first that fits is meant. *spec_p is written on success alone. */
int oracle_route_parse(const char *text, oracle_route_spec_t *spec_p, char *why, size_t why_bytes)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t length = strlen(kinds[i].name);
        oracle_route_spec_t spec = {.kind = kinds[i].kind};
        if (strncmp(text, kinds[i].name, length)) continue;
        if (kinds[i].parse(text + length, &spec, why, why_bytes)) return -1;
        *spec_p = spec;
        return 0;
    }
    snprintf(why, why_bytes, "\"%s\" (uniform, group:G,N, zipf:S, one-rank, self or file:PATH)", text);
    return -1;
}
