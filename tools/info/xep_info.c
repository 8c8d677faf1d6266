/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_info: what this installation is, how it is configured, which modes it finds. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include <xep/xep.h>

enum { EXIT_USAGE = 2 };

static const char usage[] =
    "usage: xep_info [-a] [-c] [-p]\n"
    "Prints the version of xep and the libraries it is bound to.\n"
    "\n"
    "  -c, --config   also every configuration variable: value, default, what it does; * marks those set\n"
    "  -p, --plugins  also the modes found, and why a file was refused\n"
    "  -a, --all      all of it\n"
    "  -h, --help     this text\n"
    "  -V, --version  the version alone\n";

static const struct option long_options[] = {
    {"all", no_argument, NULL, 'a'},  {"config", no_argument, NULL, 'c'},  {"plugins", no_argument, NULL, 'p'},
    {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'V'}, {NULL, 0, NULL, 0},
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

/*
 * A file that was refused is shown with its reason: "mode not found" is mostly a file that is there and does not fit.
 */
static int print_mode(void *arg, const char *name, const char *path, const char *brief, const char *reason)
{
    int *found = arg;

    ++*found;
    if (reason != NULL) printf("  %-10s refused: %s\n             %s\n", name, reason, path);
    else printf("  %-10s %s\n             %s\n", name, brief, path);
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
    fprintf(stderr, "xep_info: %s: \"%s\" (xep_info --help says what there is)\n", what, value);
    return EXIT_USAGE;
}

/*
 * What the library says of itself comes first, whatever was asked for: a defect report needs it. A full disk or a
 * closed pipe shows only in the last flush.
 */
int main(int argc, char **argv)
{
    int config = 0, plugins = 0, option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, "acphV", long_options, NULL)) != -1) {
        switch (option) {
        case 'a': config = plugins = 1; break;
        case 'c': config = 1; break;
        case 'p': plugins = 1; break;
        case 'h': fputs(usage, stdout); return EXIT_SUCCESS;
        case 'V': printf("xep_info %s\n", xep_version_string()); return EXIT_SUCCESS;
        default: return refuse("unknown option", argv[optind - 1]);
        }
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
