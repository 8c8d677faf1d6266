/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The table of config_defs.h is expanded twice: into the struct, and into the rows below. A variable that is set to
 * nothing counts as not set.
 */
#define _GNU_SOURCE
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include <xep/inspect.h>

#include "error.h"
#include "log.h"
#include "text.h"

extern char **environ;

typedef struct choice {
    const char *name;
    int value;
} choice_t;

typedef struct variable {
    const char *name, *def, *help;
    size_t offset; /* in xep_config_t */
    int (*parse)(const char *text, const choice_t *choices, void *value_p);
    const choice_t *choices; /* NULL: it is none of these */
    const char *allowed;     /* values that are not names, for errors */
} variable_t;

static const choice_t boot_choices[] = {{"auto", XEP_BOOT_AUTO},
                                        {"callback", XEP_BOOT_CALLBACK},
                                        {"pmix", XEP_BOOT_PMIX},
                                        {"single", XEP_BOOT_SINGLE},
                                        {NULL, 0}};
static const choice_t map_choices[] = {{"auto", XEP_MAP_AUTO}, {"never", XEP_MAP_NEVER}, {NULL, 0}};
static const choice_t liveness_choices[] = {{"process", XEP_LIVENESS_PROCESS},
                                            {"heartbeat", XEP_LIVENESS_HEARTBEAT},
                                            {NULL, 0}};
static const choice_t path_choices[] = {{"auto", XEP_PATH_AUTO},
                                        {"flat", XEP_PATH_FLAT},
                                        {"nodes", XEP_PATH_NODES},
                                        {NULL, 0}};
static const choice_t put_choices[] = {{"auto", XEP_PUT_AUTO}, {"rma", XEP_PUT_RMA}, {"am", XEP_PUT_AM}, {NULL, 0}};
static const choice_t direct_choices[] = {{"yes", 1}, {"no", 0}, {NULL, 0}};
static const choice_t progress_choices[] = {{"call", XEP_PROGRESS_CALL}, {"thread", XEP_PROGRESS_THREAD}, {NULL, 0}};
static const choice_t simd_choices[] = {{"auto", XEP_SIMD_AUTO},
                                        {"scalar", XEP_SIMD_SCALAR},
#if defined(__aarch64__)
                                        {"neon", XEP_SIMD_NEON},
#else
                                        {"avx2", XEP_SIMD_AVX2},
                                        {"avx512", XEP_SIMD_AVX512},
                                        {"avx512vbmi", XEP_SIMD_AVX512VBMI},
#endif
                                        {NULL, 0}};
static const choice_t numa_choices[] = {{"yes", 1},   {"no", 0}, {"on", 1}, {"off", 0}, {"true", 1},
                                        {"false", 0}, {"1", 1},  {"0", 0},  {NULL, 0}};
static const choice_t room_choices[] = {{"host", XEP_ROOM_OF_HOST}, {"rank", XEP_ROOM_OF_RANK}, {NULL, 0}};
static const choice_t explain_choices[] = {{"no", 0}, {"sigusr1", SIGUSR1}, {"sigusr2", SIGUSR2}, {NULL, 0}};
#define LEVEL(_name, _level) {_name, _level},
static const choice_t log_choices[] = {XEP_LOG_LEVELS(LEVEL){NULL, 0}};
#undef LEVEL

/* Words are compared without regard to case, as shells and people write them. */
static int parse_choice(const char *text, const choice_t *choices, void *value_p)
{
    for (; choices->name != NULL; choices++)
        if (strcasecmp(text, choices->name) == 0) {
            *(int *)value_p = choices->value;
            return 0;
        }
    return -1;
}

static int parse_text(const char *text, const choice_t *choices, void *value_p)
{
    (void)choices;
    *(xep_config_text_t *)value_p = text;
    return 0;
}

/* a file or folders; value_of() decides whether the environment may name them */
static int parse_path(const char *text, const choice_t *choices, void *value_p)
{
    return parse_text(text, choices, value_p);
}

static int is_folder(const char *path, size_t length)
{
    char folder[PATH_MAX];
    struct stat info;
    if (length >= sizeof folder) return 0;
    memcpy(folder, path, length);
    folder[length] = '\0';
    return stat(folder, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Each folder must exist: a misspelt one would be skipped, and modes of another folder loaded. */
static int parse_folders(const char *text, const choice_t *choices, void *value_p)
{
    for (const char *p = text; *p != '\0';) {
        size_t length = strcspn(p, ":");
        if (length != 0 && !is_folder(p, length)) return -1;
        p += length + (p[length] == ':');
    }
    return parse_path(text, choices, value_p);
}

/* a whole number; returns what follows it, or NULL */
static const char *parse_number(const char *text, uint64_t *value_p)
{
    char *end;
    if (*text < '0' || *text > '9') return NULL;
    errno = 0;
    *value_p = strtoull(text, &end, 10);
    return errno != 0 ? NULL : end;
}

/* the power of two of "k", "kb", "m", ... "t"; 64 when it is none of them */
static unsigned unit_shift(const char *unit)
{
    static const char units[] = "kmgt";
    const char *found;
    if (*unit == '\0') return 0;
    found = strchr(units, *unit | 0x20);
    if (found == NULL || (unit[1] != '\0' && strcasecmp(unit + 1, "b") != 0)) return 64;
    return 10 * (unsigned)(found - units + 1);
}

/* What does not fit 64 bits is refused, not cut. */
static int parse_bytes(const char *text, const choice_t *choices, void *value_p)
{
    uint64_t value = UINT64_MAX;
    (void)choices;
    if (strcasecmp(text, "inf") != 0) {
        const char *unit = parse_number(text, &value);
        unsigned shift = unit == NULL ? 64 : unit_shift(unit);
        if (shift == 64 || value > UINT64_MAX >> shift) return -1;
        value <<= shift;
    }
    *(xep_config_bytes_t *)value_p = value;
    return 0;
}

static int parse_chosen(const char *text, const choice_t *choices, void *value_p)
{
    if (strcasecmp(text, "auto") != 0) return parse_bytes(text, choices, value_p);
    *(xep_config_chosen_t *)value_p = XEP_CONFIG_AUTO;
    return 0;
}

static int parse_count(const char *text, const choice_t *choices, void *value_p)
{
    uint64_t value;
    const char *end = parse_number(text, &value);
    (void)choices;
    if (end == NULL || *end != '\0' || value > UINT32_MAX) return -1;
    *(xep_config_count_t *)value_p = (uint32_t)value;
    return 0;
}

static int parse_positive(const char *text, const choice_t *choices, void *value_p)
{
    return parse_count(text, choices, value_p) != 0 || *(xep_config_positive_t *)value_p == 0 ? -1 : 0;
}

/* milliseconds a unit of time stands for; 0: no such unit. A bare number is seconds, as in every other timeout. */
static uint64_t millis_of(const char *unit)
{
    if (strcasecmp(unit, "ms") == 0) return 1;
    if (*unit == '\0' || strcasecmp(unit, "s") == 0) return 1000;
    return strcasecmp(unit, "m") == 0 ? 60000 : 0;
}

/* 0 is refused: people disagree whether it means at once or never. "inf" becomes -1. */
static int parse_millis(const char *text, const choice_t *choices, void *value_p)
{
    uint64_t value = 0, scale = 1;
    (void)choices;
    if (strcasecmp(text, "inf") == 0) {
        *(xep_config_millis_t *)value_p = -1;
        return 0;
    }
    const char *unit = parse_number(text, &value);
    if (unit == NULL || (scale = millis_of(unit)) == 0 || value == 0 || value > INT32_MAX / scale) return -1;
    *(xep_config_millis_t *)value_p = (int32_t)(value * scale);
    return 0;
}

#define ALLOWED_text     "any text"
#define ALLOWED_path     "a path"
#define ALLOWED_folders  "folders that exist, colon-separated"
#define ALLOWED_bytes    "a whole number of bytes, or of units k, m, g or t; or inf"
#define ALLOWED_chosen   ALLOWED_bytes " or auto"
#define ALLOWED_count    "a whole number"
#define ALLOWED_positive "a whole number, at least 1"
#define ALLOWED_millis   "a whole number of seconds, or of units ms, s or m, from 1 ms to 24 days; or inf"
static const variable_t variables[] = {
#define VALUE(_field, _name, _type, _default, _help) \
    {"XEP_" _name, _default, _help, offsetof(xep_config_t, _field), parse_##_type, NULL, ALLOWED_##_type},
#define CHOICE(_field, _name, _default, _help) \
    {"XEP_" _name, _default, _help, offsetof(xep_config_t, _field), parse_choice, _field##_choices, NULL},
#include "config_defs.h"
#undef CHOICE
#undef VALUE
};
enum { NVARIABLES = sizeof variables / sizeof variables[0] };

/*
 * The value in force: the variable if set and not empty, else the default. A program with more rights than the user who
 * starts it (setuid) must neither write files nor load code that the environment names.
 */
static const char *value_of(const variable_t *variable)
{
    int is_path = variable->parse == parse_path || variable->parse == parse_folders;
    const char *text = is_path ? secure_getenv(variable->name) : getenv(variable->name);
    return text == NULL || text[0] == '\0' ? variable->def : text;
}

/* not settings of the library: the language bindings read these */
static const char *const of_bindings[] = {"XEP_LIBRARY", "XEP_SGLANG", "XEP_UNTESTED", "XEP_VLLM"};

enum { NBINDINGS = sizeof of_bindings / sizeof of_bindings[0] };

static const char *name_of(size_t i)
{
    return i < NVARIABLES ? variables[i].name : of_bindings[i - NVARIABLES];
}

static int is_known(const char *name)
{
    for (size_t i = 0; i < NVARIABLES + NBINDINGS; i++)
        if (strcmp(name_of(i), name) == 0) return 1;
    /* set by xep_run for its ranks, or for the test suite */
    return strncmp(name, "XEP_RUN_", strlen("XEP_RUN_")) == 0 || strncmp(name, "XEP_TEST_", strlen("XEP_TEST_")) == 0;
}

/* Gives no hint if no name is close. */
static void warn_of(const char *name)
{
    const char *meant = NULL;
    unsigned least = XEP_SPELLING_FAR;
    for (size_t i = 0; i < NVARIABLES + NBINDINGS; i++) {
        unsigned distance = xep_spelling_distance(name + strlen("XEP_"), name_of(i) + strlen("XEP_"));
        if (distance >= least) continue;
        least = distance;
        meant = name_of(i);
    }
    xep_log(XEP_LOG_WARN, "unknown variable %s%s%s%s (xep_info -c lists all)", name,
            meant == NULL ? "" : ": did you mean ", meant == NULL ? "" : meant, meant == NULL ? "" : "?");
}

/* Once in a process: a misspelt variable has no effect, and nothing else would say so. */
static void warn_unknown(void)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&warned)) return;
    for (char **e = environ; e != NULL && *e != NULL; e++) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        if (strncmp(name, "XEP_", 4) == 0 && !is_known(name)) warn_of(name);
    }
}

static xep_status_t refuse(const variable_t *v, const char *text)
{
    char names[256] = "";
    size_t used = 0;
    for (const choice_t *c = v->choices; c != NULL && c->name != NULL && used < sizeof names; c++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", c == v->choices ? "" : ", ", c->name);
    return xep_fail(XEP_ERR_INVALID, "invalid %s: \"%s\" (%s%s)", v->name, text, v->choices != NULL ? "one of " : "",
                    v->choices != NULL ? names : v->allowed);
}

/* Nothing is kept between calls, so that a program may set variables before each group it makes. */
xep_status_t xep_config_read(xep_config_t *config)
{
    xep_config_t parsed;
    warn_unknown();
    for (size_t i = 0; i < NVARIABLES; i++) {
        const variable_t *v = &variables[i];
        const char *text = value_of(v);
        if (v->parse(text, v->choices, (char *)&parsed + v->offset) != 0) return refuse(v, text);
    }
    *config = parsed;
    return XEP_OK;
}

void xep_config_each(xep_config_fn fn, void *arg)
{
    for (size_t i = 0; i < NVARIABLES; i++) {
        const variable_t *v = &variables[i];
        if (fn(arg, v->name, value_of(v), v->def, v->help) != 0) return;
    }
}
