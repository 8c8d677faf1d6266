/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * One rank that uses the bootstrap over PMIx alone. Without arguments: all that has to work under every
 * launcher; with them, the one case that a script (boot_*.sh) is about. ranks: 1 2 3 4 8, brief: 2 8
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pmix/pmix_boot.h>

#include "boot.h"
#include "error.h"

typedef struct context {
    xep_boot_t *boot;
    int argc; /* of what follows the case's name */
    char **argv;
} context_t;

static int fail(const char *what)
{
    fprintf(stderr, "boot_client: %s: %s\n", what, xep_last_error());
    return 1;
}

static int32_t timeout_ms(void)
{
    const char *text = getenv("XEP_TEST_TIMEOUT_MS");
    return text == NULL ? 20000 : atoi(text);
}

/* byte j of what rank r gives to round n */
static unsigned char byte_of(uint32_t rank, unsigned round, size_t j)
{
    return (unsigned char)(rank * 31 + round * 7 + j + (j >> 8));
}

static int exchange(xep_boot_t *boot, unsigned round, size_t bytes)
{
    unsigned char *send = malloc(bytes + 1), *recv = malloc(boot->nranks * bytes + 1);
    int bad = 0;
    for (size_t j = 0; j < bytes; j++) send[j] = byte_of(boot->rank, round, j);
    if (boot->allgather(boot, send, recv, bytes) != XEP_OK) bad = fail("allgather");
    for (uint32_t r = 0; r < boot->nranks && !bad; r++)
        for (size_t j = 0; j < bytes && !bad; j++)
            if (recv[r * bytes + j] != byte_of(r, round, j)) {
                fprintf(stderr, "boot_client: round %u, %zu bytes: byte %zu of rank %u is wrong\n", round, bytes, j, r);
                bad = 1;
            }
    free(send);
    free(recv);
    return bad;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int reopen(xep_boot_t **boot_p)
{
    free(*boot_p);
    return xep_pmix_boot_open(timeout_ms(), boot_p) == XEP_OK ? 0 : fail("open again");
}

/* ---- cases -------------------------------------------------------------------- */

static int case_sizes(context_t *c)
{
    static const size_t sizes[] = {0, 1, 8, 100, 4096, 5000, 65536, 300000, 0, 16};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (exchange(c->boot, i, sizes[i]) != 0) return 1;
    return 0;
}

/* more than a server takes as one value */
static int case_large(context_t *c)
{
    return exchange(c->boot, 0, 1048576) || exchange(c->boot, 1, 1048577) || exchange(c->boot, 2, 9000000);
}

/* rounds ROUNDS BYTES [time]: the same size again and again, never a value of the round before */
static int case_rounds(context_t *c)
{
    unsigned rounds = (unsigned)atoi(c->argv[0]);
    size_t bytes = (size_t)atol(c->argv[1]);
    double begin = now(), last = begin;
    for (unsigned i = 0; i < rounds; i++) {
        if (exchange(c->boot, i, bytes) != 0) return 1;
        if (c->argc > 2 && c->boot->rank == 0 && (i & (i - 1)) == 0) {
            printf("round %u: %.2f ms, all %.1f ms\n", i, (now() - last) * 1e3, (now() - begin) * 1e3);
            fflush(stdout);
        }
        last = now();
    }
    return 0;
}

/* nobody leaves a barrier before the last has come */
static int case_barrier(context_t *c)
{
    for (unsigned i = 0; i < 3; i++) {
        int late = i % c->boot->nranks == c->boot->rank;
        double begin = now(); /* before the first barrier, and so before the late rank's begins to be late */
        if (c->boot->allgather(c->boot, NULL, NULL, 0) != XEP_OK) return fail("barrier");
        if (late) usleep(300000);
        if (c->boot->allgather(c->boot, NULL, NULL, 0) != XEP_OK) return fail("barrier");
        if (now() - begin < 0.3) {
            fprintf(stderr, "boot_client: rank %u left the barrier after %.0f ms, before the late rank came\n",
                    c->boot->rank, (now() - begin) * 1e3);
            return 1;
        }
    }
    return 0;
}

static int case_groups(context_t *c)
{
    xep_boot_t *second;
    if (xep_pmix_boot_open(timeout_ms(), &second) != XEP_OK) return fail("second open");
    for (unsigned i = 0; i < 5; i++)
        if (exchange(c->boot, i, 100) != 0 || exchange(second, i + 100, 200) != 0) return 1;
    free(second);
    for (unsigned i = 0; i < 20; i++)
        if (reopen(&c->boot) != 0 || exchange(c->boot, i, 64) != 0) return 1;
    return 0;
}

/* die RANK HOW: the others learn of it, by dead_rank() or by an exchange that fails; never by a hang */
static int case_die(context_t *c)
{
    uint32_t victim = (uint32_t)atoi(c->argv[0]);
    const char *how = c->argv[1];
    if (exchange(c->boot, 0, 16) != 0) return 1;
    if (c->boot->rank == victim) {
        if (strcmp(how, "kill") == 0) raise(SIGKILL);
        _exit(strcmp(how, "status") == 0 ? 9 : 0);
    }
    for (int i = 0; i < 3000 && xep_boot_dead_rank(c->boot) == UINT32_MAX; i++) usleep(10000);
    printf("dead_rank %d\n", (int)xep_boot_dead_rank(c->boot));
    unsigned char byte = 1, all[64];
    xep_status_t status = c->boot->allgather(c->boot, &byte, all, 1);
    printf("then %s: %s\n", xep_status_name(status), status == XEP_OK ? "" : xep_last_error());
    return status == XEP_ERR_PEER ? 0 : 1;
}

/* Waits up to a minute for a file of that size; its own rank may add a byte. */
static void wait_for_bytes(const char *path, long bytes)
{
    struct stat file;
    for (int i = 0; i < 6000 && (stat(path, &file) != 0 || file.st_size < bytes); i++) usleep(10000);
}

static int add_byte(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    return file < 0 || write(file, "+", 1) != 1 || close(file) != 0;
}

/* late RANK FILE: it does not come before the others' deadline has ended the exchange; the next one fails at once */
static int case_late(context_t *c)
{
    unsigned char byte = 1, all[64];
    if (c->boot->rank == (uint32_t)atoi(c->argv[0])) {
        wait_for_bytes(c->argv[1], c->boot->nranks - 1);
        return 0;
    }
    double begin = now();
    xep_status_t first = c->boot->allgather(c->boot, &byte, all, 1);
    double waited = now() - begin;
    printf("%s after %.1f s: %s\n", xep_status_name(first), waited, xep_last_error());
    xep_status_t second = c->boot->allgather(c->boot, &byte, all, 1);
    printf("then %s: %s\n", xep_status_name(second), xep_last_error());
    if (add_byte(c->argv[1])) return 1;
    wait_for_bytes(c->argv[1], c->boot->nranks - 1); /* who leaves now is dead for one that is still waiting */
    return first != XEP_ERR_TIMEOUT || second != XEP_ERR_BOOT;
}

/* hold FILE: says by a byte in it that this process is the rank, and is that until there is a second byte */
static int case_hold(context_t *c)
{
    if (add_byte(c->argv[0])) return 1;
    wait_for_bytes(c->argv[0], 2);
    return exchange(c->boot, 0, 16);
}

/* stop PID ROUNDS: stops the server, which answers no more, then tries so many exchanges, and ends */
static int case_stop(context_t *c)
{
    unsigned char byte = 0;
    if (exchange(c->boot, 0, 16) || kill(atoi(c->argv[0]), SIGSTOP) != 0) return 1;
    usleep(200000); /* all of its threads */
    for (int i = 0; i < atoi(c->argv[1]); i++) {
        xep_status_t status = c->boot->allgather(c->boot, &byte, &byte, 1);
        printf("%s: %s\n", xep_status_name(status), xep_last_error());
    }
    return 0;
}

/* ranks give different sizes: found, and it says whose */
static int case_mismatch(context_t *c)
{
    unsigned char send[32] = {0}, *recv = calloc(c->boot->nranks, sizeof send);
    xep_status_t status = c->boot->allgather(c->boot, send, recv, c->boot->rank == 0 ? 16 : 32);
    printf("%s: %s\n", xep_status_name(status), xep_last_error());
    free(recv);
    return status == XEP_ERR_MISMATCH ? 0 : 1;
}

/* a fork of a rank cannot use the connection, and its exit does no harm to it */
static int case_fork(context_t *c)
{
    int wait_status;
    pid_t pid = fork();
    if (pid == 0) {
        xep_boot_t *boot;
        xep_status_t status = xep_pmix_boot_open(1000, &boot);
        exit(status == XEP_ERR_BOOT && strstr(xep_last_error(), "forked from rank") != NULL ? 0 : 1);
    }
    if (waitpid(pid, &wait_status, 0) != pid || wait_status != 0) return 1;
    return exchange(c->boot, 1, 100);
}

static void *exchange_some(void *arg)
{
    xep_boot_t *boot = arg;
    for (unsigned i = 0; i < 20; i++)
        if (boot->allgather(boot, NULL, NULL, 0) != XEP_OK) return boot;
    return NULL;
}

/* two groups on two threads of each rank */
static int case_threads(context_t *c)
{
    xep_boot_t *second;
    pthread_t thread;
    void *failed;
    if (xep_pmix_boot_open(timeout_ms(), &second) != XEP_OK) return fail("second open");
    pthread_create(&thread, NULL, exchange_some, second);
    int bad = exchange_some(c->boot) != NULL;
    pthread_join(thread, &failed);
    free(second);
    return bad || failed != NULL;
}

static const struct {
    const char *name;
    int (*run)(context_t *context);
    int arguments;
} cases[] = {{"sizes", case_sizes, 0},     {"large", case_large, 0},   {"rounds", case_rounds, 2},
             {"barrier", case_barrier, 0}, {"groups", case_groups, 0}, {"die", case_die, 2},
             {"late", case_late, 2},       {"fork", case_fork, 0},     {"mismatch", case_mismatch, 0},
             {"threads", case_threads, 0}, {"hold", case_hold, 1},     {"stop", case_stop, 2}};

static int run_case(int (*run)(context_t *context), int argc, char **argv)
{
    context_t context = {.argc = argc, .argv = argv};
    if (xep_pmix_boot_open(timeout_ms(), &context.boot) != XEP_OK) return fail("open");
    int status = run(&context);
    free(context.boot);
    return status;
}

static int run_basic(void)
{
    static char rounds[] = "60", bytes[] = "1000";
    char *argv[] = {rounds, bytes};
    return run_case(case_barrier, 0, NULL) || run_case(case_rounds, 2, argv) || run_case(case_groups, 0, NULL) ||
           run_case(case_threads, 0, NULL) || run_case(case_fork, 0, NULL) || run_case(case_sizes, 0, NULL);
}

/* the choice that xep_group_create() makes, told */
static int try_open(void)
{
    xep_boot_t *boot;
    xep_status_t status = xep_pmix_boot_open(timeout_ms(), &boot);
    if (status == XEP_ERR_UNSUPPORTED) {
        status = xep_boot_single_allowed();
        if (status == XEP_OK) status = xep_boot_single_open(timeout_ms(), &boot);
    }
    if (status == XEP_OK) printf("%s %u/%u\n", boot->name, boot->rank, boot->nranks);
    else printf("%s: %s\n", xep_status_name(status), xep_last_error());
    if (status == XEP_OK) free(boot);
    return status == XEP_OK ? 0 : 3;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1) return run_basic();
    if (strcmp(name, "open") == 0) return try_open();
    if (strcmp(name, "version") == 0) return printf("%s | %s\n", xep_pmix_version(), xep_pmix_path()) < 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(name, cases[i].name) == 0 && argc - 2 >= cases[i].arguments)
            return run_case(cases[i].run, argc - 2, argv + 2);
    fprintf(stderr, "boot_client: no case \"%s\" with %d arguments\n", name, argc - 2);
    return 2;
}
