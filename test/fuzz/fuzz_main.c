/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Runs a target where there is no libFuzzer: the files that are named, in folders too, then mutations of them, all from
 * one seed. The words for it are libFuzzer's:
 *
 *     test/fuzz/fuzz_heap.t [-runs=N] [-seed=N] [FILE|FOLDER]...
 *
 * Without files and folders it is a test of make check: the target's corpus, and as many mutations as the target says.
 * An input that fails is left as the file crash-NAME where the program was started.
 */
#ifdef FUZZ_LIBFUZZER
typedef int fuzz_main_is_libfuzzers;
#else
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz_target.h"
#include "sim_dice.h"

enum { MOST_FILES = 4096, MOST_BYTES = 8192 };

typedef struct file {
    uint8_t *data;
    size_t bytes;
} file_t;

static file_t files[MOST_FILES];
static size_t nfiles;

/* ---- the input that runs ---- */

static struct {
    uint8_t data[MOST_BYTES];
    size_t bytes;
    char path[256];
} running;

/* Only what a signal handler may call. */
static void leave_input(void)
{
    static const char said[] = "the input that failed is in ";
    if (running.path[0] == '\0') return;
    int fd = open(running.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, running.data, running.bytes) != (ssize_t)running.bytes) return;
    if (write(2, said, sizeof said - 1) < 0 || write(2, running.path, strlen(running.path)) < 0) return;
    if (write(2, "\n", 1) == 1) running.path[0] = '\0';
}

static void on_signal(int number)
{
    leave_input();
    signal(number, SIG_DFL);
    raise(number);
}

/* a sanitizer's, where there is one */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void catch_failures(void)
{
    static const int numbers[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM};
    if (__sanitizer_set_death_callback != NULL) __sanitizer_set_death_callback(leave_input);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (__sanitizer_set_death_callback == NULL || numbers[i] == SIGTERM || numbers[i] == SIGABRT)
            signal(numbers[i], on_signal);
}

/* The target gets memory that is exactly as long as its input. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes == 0 ? 1 : bytes);
    if (exact == NULL) fuzz_fail("no memory");
    memcpy(exact, data, bytes);
    memcpy(running.data, data, bytes);
    running.bytes = bytes;
    snprintf(running.path, sizeof running.path, "crash-%s", fuzz_target.name);
    LLVMFuzzerTestOneInput(exact, bytes);
    running.path[0] = '\0';
    free(exact);
}

/* ---- files ---- */

static void read_file(const char *path)
{
    uint8_t data[MOST_BYTES];
    FILE *from = fopen(path, "rbe");
    if (from == NULL || nfiles == MOST_FILES) fuzz_fail("cannot read %s", path);
    file_t *file = &files[nfiles++];
    file->bytes = fread(data, 1, sizeof data, from);
    fclose(from);
    file->data = malloc(file->bytes + 1);
    if (file->data == NULL) fuzz_fail("no memory");
    memcpy(file->data, data, file->bytes);
}

/* Sorted, so that a seed gives the same inputs each time. */
static void read_path(const char *path)
{
    struct stat info;
    struct dirent **entries;
    if (stat(path, &info) != 0) fuzz_fail("there is no %s", path);
    if (!S_ISDIR(info.st_mode)) {
        read_file(path);
        return;
    }
    int n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *inside;
        if (entries[i]->d_name[0] != '.' && asprintf(&inside, "%s/%s", path, entries[i]->d_name) > 0) {
            read_path(inside);
            free(inside);
        }
        free(entries[i]);
    }
    if (n >= 0) free(entries);
}

/* ---- mutations ---- */

static sim_dice_t dice;

static uint64_t below(uint64_t n)
{
    return sim_below(&dice, n);
}

typedef struct mutant {
    uint8_t data[MOST_BYTES];
    size_t bytes;
} mutant_t;

/* Opens a gap of so many bytes, or, where there is no room, uses what is there. */
static size_t open_gap(mutant_t *m, size_t gap)
{
    size_t at = below(m->bytes + 1);
    if (m->bytes + gap > MOST_BYTES) return 0;
    memmove(m->data + at + gap, m->data + at, m->bytes - at);
    m->bytes += gap;
    return at;
}

static void insert_bytes(mutant_t *m)
{
    size_t gap = 1 + below(16);
    if (m->bytes + gap > MOST_BYTES) return;
    size_t at = open_gap(m, gap);
    for (size_t i = 0; i < gap; i++) m->data[at + i] = (uint8_t)below(256);
}

/* A piece of a file of the corpus, perhaps of this one. */
static void insert_piece(mutant_t *m)
{
    const file_t *other = &files[below(nfiles)];
    if (other->bytes == 0) return;
    size_t from = below(other->bytes), gap = 1 + below(other->bytes - from);
    if (gap > 64) gap = 64;
    if (m->bytes + gap > MOST_BYTES) return;
    size_t at = open_gap(m, gap);
    memcpy(m->data + at, other->data + from, gap);
}

static void erase_bytes(mutant_t *m)
{
    if (m->bytes == 0) return;
    size_t at = below(m->bytes), gap = 1 + below(m->bytes - at < 16 ? m->bytes - at : 16);
    memmove(m->data + at, m->data + at + gap, m->bytes - at - gap);
    m->bytes -= gap;
}

static void change_number(mutant_t *m)
{
    static const uint64_t numbers[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, INT32_MAX, UINT32_MAX, UINT64_MAX};
    size_t width = (size_t)1 << below(4);
    if (m->bytes < width) return;
    size_t at = below(m->bytes - width + 1);
    uint64_t value = 0;
    memcpy(&value, m->data + at, width);
    if (below(2) == 0) value = numbers[below(sizeof numbers / sizeof numbers[0])];
    else value += below(33) - 16;
    memcpy(m->data + at, &value, width);
}

static void change_byte(mutant_t *m)
{
    if (m->bytes == 0) return;
    m->data[below(m->bytes)] = (uint8_t)below(256);
}

static void flip_bit(mutant_t *m)
{
    if (m->bytes == 0) return;
    m->data[below(m->bytes)] ^= (uint8_t)(1 << below(8));
}

static void mutate(mutant_t *m)
{
    static void (*const ways[])(mutant_t * m) = {insert_bytes,  insert_piece, erase_bytes,
                                                 change_number, change_byte,  flip_bit};
    for (uint64_t n = 1 + below(6); n > 0; n--) ways[below(sizeof ways / sizeof ways[0])](m);
}

static void run_mutants(uint64_t seed, uint64_t runs)
{
    static mutant_t mutant;
    dice.state = seed;
    for (; runs > 0; runs--) {
        const file_t *file = &files[below(nfiles)];
        memcpy(mutant.data, file->data, file->bytes);
        mutant.bytes = file->bytes;
        mutate(&mutant);
        run(mutant.data, mutant.bytes);
    }
}

/* ---- arguments ---- */

/* The corpus lies in the source tree, which make check tells. */
static void read_corpus(void)
{
    char path[4096];
    const char *source = getenv("srcdir");
    snprintf(path, sizeof path, "%s/test/fuzz/corpus/%s", source == NULL ? "." : source, fuzz_target.name);
    read_path(path);
}

/* In short a quarter, or an eighth; a sanitizer, which sees more in each, gets a quarter. */
static uint64_t runs_of_target(void)
{
    const char *brief = getenv("XEP_TEST_BRIEF");
    if (brief == NULL || *brief == '\0') return fuzz_target.runs;
#ifdef __SANITIZE_ADDRESS__
    return fuzz_target.runs / 4;
#else
    return fuzz_target.runs / (strcmp(brief, "quick") == 0 ? 8 : 4);
#endif
}

int main(int argc, char **argv)
{
    uint64_t runs = 0, seed = 1;
    int named = 0;
    catch_failures();
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-runs=%" SCNu64, &runs) == 1 || sscanf(argv[i], "-seed=%" SCNu64, &seed) == 1) continue;
        if (argv[i][0] == '-') continue; /* of libFuzzer's, without a meaning here */
        read_path(argv[i]);
        named = 1;
    }
    if (!named) read_corpus();
    if (!named && runs == 0) runs = runs_of_target();
    if (nfiles == 0) fuzz_fail("no inputs");
    printf("1..2\n");
    for (size_t i = 0; i < nfiles; i++) run(files[i].data, files[i].bytes);
    printf("ok 1 - %zu files of the corpus\n", nfiles);
    run_mutants(seed, runs);
    printf("ok 2 - %" PRIu64 " mutations of them, seed %" PRIu64 "\n", runs, seed);
    for (size_t i = 0; i < nfiles; i++) free(files[i].data);
    return 0;
}
#endif
