/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a fuzz target is: LLVMFuzzerTestOneInput() of libFuzzer, and what contrib/fuzz and make check must know of it. A
 * target has one source; all it does follows from the bytes that it is given, so that an input that failed once fails
 * again.
 */
#ifndef FUZZ_TARGET_H
#define FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name; /* of its folder in test/fuzz/corpus */
    const char *unit; /* what fuzz_count() counts */
    uint32_t runs;    /* mutated inputs of a short run, as in make check */
} fuzz_target_t;

/** Defined by each target. */
extern const fuzz_target_t fuzz_target;

/** Returns 0; whatever is wrong ends in fuzz_fail() or in a sanitizer's report. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** An input that is taken apart from its begin on; behind its end there are zeros. */
typedef struct fuzz_input {
    const uint8_t *at, *end;
} fuzz_input_t;

/** An unsigned number of so many bytes, at most 8, the lowest first. */
uint64_t fuzz_take(fuzz_input_t *input, size_t bytes);

/** 0 .. n - 1, of as many bytes as n needs. */
uint64_t fuzz_below(fuzz_input_t *input, uint64_t n);

/**
 * A number as programs get them wrong: small, around a power of two, around the limits of the types, or any. One byte
 * and what it asks for.
 */
uint64_t fuzz_number(fuzz_input_t *input);

/** Adds to what this process has done, in the target's units; the sum is told when the process ends. */
void fuzz_count(uint64_t units);

/** Ends the process: the input that is running is a defect. */
void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/** A folder for files of this process alone, without files when it ends. The same string each time. */
const char *fuzz_folder(void);

/** Makes path hold the bytes. */
void fuzz_write(const char *path, const void *data, size_t bytes);

#endif
