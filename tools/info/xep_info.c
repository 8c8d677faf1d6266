/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_info: what this installation is, how it is configured, which modes it finds. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/inspect.h>
#include <xep/xep.h>

#include "info_metrics.h"

enum { EXIT_USAGE = 2 };

static const char usage[] =
    "usage: xep_info [-a] [-c] [-p]\n"
    "       xep_info -m PID...\n"
    "Prints the version of xep and the libraries it is bound to.\n"
    "\n"
    "  -c, --config   also every configuration variable: value, default, what it does; * marks those set\n"
    "  -p, --plugins  also the modes found, what each can, and why a file was refused\n"
    "  -a, --all      all of it\n"
    "  -m, --metrics  instead the counters of all buffers of these processes, as Prometheus reads them\n"
    "  -h, --help     this text\n"
    "  -V, --version  the version alone\n";

static const struct option long_options[] = {
    {"all", no_argument, NULL, 'a'},
    {"config", no_argument, NULL, 'c'},
    {"plugins", no_argument, NULL, 'p'},
    {"metrics", no_argument, NULL, 'm'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

/* A version that could not be found is "": then the path says why. */
static void print_bound(const char *name, const char *version, const char *path)
{
    if (*version) printf("%-8s %s, %s\n", name, version, path);
    else printf("%-8s none: %s\n", name, path);
}

static int print_library(void)
{
    xep_library_info_t info = XEP_LIBRARY_INFO_INIT;

    if (xep_library_query(&info) != XEP_OK) {
        fprintf(stderr, "xep_info: %s\n", xep_last_error());
        return EXIT_FAILURE;
    }
    print_bound("xep", info.version, info.library_path);
    printf("%-8s %s\n", "build", info.build);
    print_bound("ucx", info.ucx_version, info.ucx_path);
    print_bound("pmix", info.pmix_version, info.pmix_path);
    printf("%-8s %s\n", "simd", info.simd);
    return EXIT_SUCCESS;
}

/*
 * The value in force may be the default although the variable is there: one that is set to nothing counts as not set.
 */
static int print_variable(void *arg, const char *name, const char *value, const char *def, const char *help)
{
    const char *set = getenv(name);

    (void)arg;
    printf("%c %s=%s\n", set != NULL && *set ? '*' : ' ', name, value);
    printf("    %s (default: %s)\n", help, *def ? def : "empty");
    return 0;
}

/* ---- what modes can ---- */

typedef struct word {
    uint32_t bit;
    const char *text;
} word_t;

/* A line of the words whose bits are set. */
static void print_set(const char *title, uint32_t set, const word_t *words, size_t count)
{
    int some = 0;

    printf("             %s:", title);
    for (size_t i = 0; i < count; i++)
        if ((set & words[i].bit) != 0) some = printf(" %s", words[i].text);
    printf("%s\n", some ? "" : " none");
}

#define CAST_WORD(_name, _value, _text) {(_value) == 0 ? 0 : 1u << (_value), _text},

static void print_mode_info(const xep_mode_info_t *info)
{
    static const word_t features[] = {{XEP_CAN_MASK, "masks"},
                                      {XEP_CAN_PIECES, "pieces"},
                                      {XEP_CAN_IN_PLACE, "in-place"},
                                      {XEP_CAN_NODES, "nodes"},
                                      {XEP_CAN_OWNERS, "owners"},
                                      {XEP_CAN_EXPAND, "expand"},
                                      {XEP_CAN_CAPTURE, "graphs"},
                                      {XEP_CAN_WEIGH, "weights"},
                                      {XEP_CAN_RETURN_WEIGHTS, "weights-back"},
                                      {XEP_CAN_SUM_AT_OWNER, "sum-at-owner"},
                                      {XEP_CAN_SCALES_BY_COLUMN, "scales-by-column"},
                                      {XEP_CAN_EXPERT_STATS, "expert-stats"},
                                      {XEP_CAN_PAYLOADS, "payloads"}};
    static const word_t casts[] = {XEP_QUANT_LIST(CAST_WORD)};
    static const word_t rows[] = {{1u << XEP_ROWS_BY_RANK, "by-rank"},
                                  {1u << XEP_ROWS_BY_EXPERT_COMPACT, "by-expert"},
                                  {1u << XEP_ROWS_BY_EXPERT_PADDED, "padded"}};
    print_set("can", info->features, features, sizeof features / sizeof *features);
    print_set("rows", info->arrangements, rows, sizeof rows / sizeof *rows);
    print_set("casts", info->casts, casts, sizeof casts / sizeof *casts);
    print_set("casts of a combine", info->combine_casts, casts, sizeof casts / sizeof *casts);
}

/* The files of modes for device memory have names that end in this. */
static void print_what_it_can(const char *file_name)
{
    static const char suffix[] = "_cuda";
    const size_t length = strlen(file_name), end = sizeof suffix - 1;
    const int on_device = length > end && strcmp(file_name + length - end, suffix) == 0;
    xep_mode_info_t info = XEP_MODE_INFO_INIT;
    char mode[256];
    snprintf(mode, sizeof mode, "%.*s", (int)(on_device ? length - end : length), file_name);
    if (xep_mode_query(mode, on_device ? XEP_MEMORY_CUDA : XEP_MEMORY_HOST, &info) == XEP_OK) print_mode_info(&info);
}

/*
 * A file that was refused is shown with its reason: "mode not found" is mostly a file that is there and does not fit.
 */
static int print_mode(void *arg, const char *name, const char *path, const char *brief, const char *reason)
{
    int *found = arg;

    ++*found;
    if (reason != NULL) printf("  %-10s refused: %s\n             %s\n", name, reason, path);
    else printf("  %-10s %s\n             %s\n", name, brief, path);
    if (reason == NULL) print_what_it_can(name);
    return 0;
}

/* Loads every plugin that it finds: so only if asked for. */
static void print_modes(void)
{
    int found = 0;

    printf("\nmodes\n");
    xep_mode_each(print_mode, &found);
    if (!found)
        printf("  none: %s\n", xep_last_error()[0] != '\0' ? xep_last_error() : "see XEP_PLUGIN_PATH in xep_info -c");
}

/* getopt's own message would name no value and not say what is allowed. */
static int refuse(const char *what, const char *value)
{
    fprintf(stderr, "xep_info: %s: \"%s\" (xep_info --help lists the options)\n", what, value);
    return EXIT_USAGE;
}

/*
 * What the library says of itself comes first, whatever was asked for: a defect report needs it. A full disk or a
 * closed pipe shows only in the last flush.
 */
int main(int argc, char **argv)
{
    int config = 0, plugins = 0, metrics = 0, option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, "acmphV", long_options, NULL)) != -1) {
        switch (option) {
        case 'a': config = plugins = 1; break;
        case 'c': config = 1; break;
        case 'p': plugins = 1; break;
        case 'm': metrics = 1; break;
        case 'h': fputs(usage, stdout); return EXIT_SUCCESS;
        case 'V': printf("xep_info %s\n", xep_version_string()); return EXIT_SUCCESS;
        default: return refuse("unknown option", argv[optind - 1]);
        }
    }
    if (metrics && (optind == argc || config || plugins)) return refuse("invalid use of an option", "--metrics");
    if (metrics) {
        const int status = info_metrics_print(argv + optind, argc - optind);
        return fflush(stdout) || ferror(stdout) ? EXIT_FAILURE : status;
    }
    if (optind < argc) return refuse("unexpected argument", argv[optind]);
    if (print_library() != EXIT_SUCCESS) return EXIT_FAILURE;
    if (config) {
        printf("\nconfiguration\n");
        xep_config_each(print_variable, NULL);
    }
    if (plugins) print_modes();
    return fflush(stdout) || ferror(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
