/* SPDX-License-Identifier: BSD-3-Clause */

/** The names of routings, "group:8,4" and the like, taken apart; oracle_routing.h says what each means. */
#ifndef ORACLE_ROUTE_PARSE_H
#define ORACLE_ROUTE_PARSE_H

#include <stddef.h>
#include <stdint.h>

enum { ORACLE_MAX_GROUPS = 1024 };

typedef enum {
    ORACLE_ROUTE_UNIFORM,
    ORACLE_ROUTE_GROUP,
    ORACLE_ROUTE_ZIPF,
    ORACLE_ROUTE_ONE_RANK,
    ORACLE_ROUTE_SELF,
    ORACLE_ROUTE_FILE
} oracle_route_kind_t;

typedef struct oracle_route_spec {
    oracle_route_kind_t kind;
    uint32_t groups, topk_groups; /* group */
    double exponent;              /* zipf */
    const char *path;             /* file; points into the text parsed */
} oracle_route_spec_t;

/** 0, or -1 and a sentence in why. */
int oracle_route_parse(const char *text, oracle_route_spec_t *spec_p, char *why, size_t why_bytes);

#endif
