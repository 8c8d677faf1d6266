/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The speed of the kernels of modes, beside memcpy: GB/s of input by one thread, for every instruction set this CPU
 * has. kernels [MILLISECONDS of each figure, 20] [ROWS, 4] [HIDDEN, 7168]: a few rows stay in the cache, some thousand
 * come from memory, and what is made of them goes there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "cast.h"
#include "codec.h"
#include "cpu.h"
#include "logfmt.h"
#include "weigh.h"

enum { SUMMED = 8 };

/** What a kernel is run on: rows of 4 bytes an element, of which narrower types use less. */
typedef struct work {
    size_t rows, hidden;
    char *in, *out; /* [rows] of stride */
    size_t stride;
    float *scales; /* [hidden] */
    xep_dtype_t dtype;
    xep_simd_t simd;
    xep_quant_t quant;
} work_t;

typedef void (*kernel_fn)(const work_t *work);

static size_t elem_bytes(const work_t *work)
{
    return work->dtype == XEP_FP32 ? 4 : 2;
}

static char *in_row(const work_t *work, size_t row)
{
    return work->in + row % work->rows * work->stride;
}

static void run_memcpy(const work_t *work)
{
    for (size_t r = 0; r < work->rows; r++)
        memcpy(work->out + r * work->stride, in_row(work, r), work->hidden * elem_bytes(work));
}

static void run_cast(const work_t *work)
{
    xep_cast_t cast =
        xep_cast_select(work->quant, work->dtype, work->simd, work->quant == XEP_QUANT_E4M3_STATIC ? 0.01f : 0);
    for (size_t r = 0; r < work->rows; r++)
        cast.row(&cast, work->out + r * work->stride, work->scales, in_row(work, r), work->hidden, in_row(work, r + 1));
}

/* back to bf16, of what lies there; scales are any bits */
static void run_cast_back(const work_t *work)
{
    const xep_decode_fn decode = xep_decode_select(work->simd);
    for (size_t r = 0; r < work->rows; r++)
        decode(work->quant, (uint16_t *)(void *)in_row(work, r), work->out + r * work->stride, work->scales,
               work->hidden, 0.01f);
}

/* eight rows into one, as those of a token */
static void sum_rows(const work_t *work, const float *weights)
{
    const void *rows[SUMMED];
    for (size_t from = 0, n; from < work->rows; from += n) {
        n = work->rows - from < SUMMED ? work->rows - from : SUMMED;
        for (size_t r = 0; r < n; r++) rows[r] = in_row(work, from + r);
        xep_weigh_select(work->dtype, work->simd, 0)(work->out + from * work->stride, rows, weights, n, 0,
                                                     work->hidden);
    }
}

static void run_weigh(const work_t *work)
{
    float weights[SUMMED];
    for (size_t r = 0; r < SUMMED; r++) weights[r] = 0.125f;
    sum_rows(work, weights);
}

static void run_add(const work_t *work)
{
    sum_rows(work, NULL);
}

static void run_encode(const work_t *work)
{
    const xep_logfmt_t logfmt = xep_logfmt_select(work->simd);
    for (size_t r = 0; r < work->rows; r++)
        logfmt.encode(work->out + r * work->stride, (const uint16_t *)(const void *)in_row(work, r), work->hidden);
}

/* of what run_encode() left there */
static void run_decode(const work_t *work)
{
    const xep_logfmt_t logfmt = xep_logfmt_select(work->simd);
    for (size_t r = 0; r < work->rows; r++)
        logfmt.decode((uint16_t *)(void *)in_row(work, r), work->out + r * work->stride, work->hidden);
}

/* the quickest of as many runs as fit the time, at least three */
static double gbps(kernel_fn run, const work_t *work, uint64_t budget_ns)
{
    uint64_t begin = xep_clock_ns(), best = UINT64_MAX, now = begin;
    for (int n = 0; n < 3 || now - begin < budget_ns; n++) {
        uint64_t before = now;
        run(work);
        now = xep_clock_ns();
        if (now - before < best) best = now - before;
    }
    return (double)(work->rows * work->hidden * elem_bytes(work)) / (double)(best + (best == 0));
}

/* -1 to 1, exact in every type, by the dtype of the work */
static void fill(const work_t *work)
{
    for (size_t r = 0; r < work->rows; r++)
        for (size_t i = 0; i < work->hidden; i++) {
            float value = (float)((int)((r * 31 + i * 17) % 127) - 63) / 64;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            if (work->dtype == XEP_FP32) memcpy(in_row(work, r) + i * 4, &bits, 4);
            else /* an fp16 of the same upper half is another number, and as good */
                ((uint16_t *)(void *)in_row(work, r))[i] = (uint16_t)(bits >> 16);
        }
}

static void print_line(const char *name, kernel_fn run, work_t *work, int by_simd, uint64_t budget_ns)
{
    int simds = by_simd ? (int)xep_cpu_simd() + 1 : 1;
    printf("%-28s", name);
    for (int simd = 0; simd < simds; simd++) {
        work->simd = (xep_simd_t)simd;
        printf(" %8.2f", gbps(run, work, budget_ns));
    }
    printf("\n");
    fflush(stdout);
}

static size_t number(int argc, char **argv, int at, size_t otherwise, size_t most)
{
    size_t value = argc > at ? strtoull(argv[at], NULL, 10) : otherwise;
    if (value >= 1 && value <= most) return value;
    fprintf(stderr, "usage: kernels [MILLISECONDS] [ROWS] [HIDDEN]\n");
    exit(2);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        kernel_fn run;
        xep_dtype_t dtype;
        xep_quant_t quant;
        int by_simd;
    } lines[] = {
        {"memcpy", run_memcpy, XEP_BF16, 0, 0},
        {"cast bf16, e4m3", run_cast, XEP_BF16, XEP_QUANT_E4M3, 1},
        {"cast bf16, e4m3_pow2", run_cast, XEP_BF16, XEP_QUANT_E4M3_POW2, 1},
        {"cast bf16, ue8m0", run_cast, XEP_BF16, XEP_QUANT_UE8M0, 1},
        {"cast fp16, e4m3", run_cast, XEP_FP16, XEP_QUANT_E4M3, 1},
        {"cast fp32, e4m3", run_cast, XEP_FP32, XEP_QUANT_E4M3, 1},
        {"cast bf16, mxfp8", run_cast, XEP_BF16, XEP_QUANT_MXFP8, 1},
        {"cast bf16, mxfp8_e5m2", run_cast, XEP_BF16, XEP_QUANT_MXFP8_E5M2, 1},
        {"cast bf16, mxfp4", run_cast, XEP_BF16, XEP_QUANT_MXFP4, 1},
        {"cast bf16, nvfp4", run_cast, XEP_BF16, XEP_QUANT_NVFP4, 1},
        {"cast bf16, int8", run_cast, XEP_BF16, XEP_QUANT_INT8, 1},
        {"cast bf16, int8_row", run_cast, XEP_BF16, XEP_QUANT_INT8_ROW, 1},
        {"cast bf16, e4m3_static", run_cast, XEP_BF16, XEP_QUANT_E4M3_STATIC, 1},
        {"back from e4m3", run_cast_back, XEP_BF16, XEP_QUANT_E4M3, 1},
        {"back from mxfp8", run_cast_back, XEP_BF16, XEP_QUANT_MXFP8, 1},
        {"back from mxfp4", run_cast_back, XEP_BF16, XEP_QUANT_MXFP4, 1},
        {"back from nvfp4", run_cast_back, XEP_BF16, XEP_QUANT_NVFP4, 1},
        {"back from int8", run_cast_back, XEP_BF16, XEP_QUANT_INT8, 1},
        {"weigh bf16", run_weigh, XEP_BF16, 0, 1},
        {"weigh fp16", run_weigh, XEP_FP16, 0, 1},
        {"weigh fp32", run_weigh, XEP_FP32, 0, 1},
        {"add bf16", run_add, XEP_BF16, 0, 1},
        {"add fp16", run_add, XEP_FP16, 0, 1},
        {"add fp32", run_add, XEP_FP32, 0, 1},
        {"logfmt encode", run_encode, XEP_BF16, 0, 1},
        {"logfmt decode", run_decode, XEP_BF16, 0, 1},
    };
    uint64_t budget_ns = number(argc, argv, 1, 20, 100000) * 1000000;
    work_t work = {.rows = number(argc, argv, 2, 4, 1 << 20), .hidden = number(argc, argv, 3, 7168, 1 << 20)};
    work.stride = (work.hidden * 4 + work.hidden / 32 + 4 + 63) / 64 * 64; /* a row in LogFMT has a head */
    work.in = aligned_alloc(64, work.rows * work.stride);
    work.out = aligned_alloc(64, work.rows * work.stride);
    work.scales = malloc(work.hidden * sizeof *work.scales);
    if (work.in == NULL || work.out == NULL || work.scales == NULL) return 1;
    memset(work.out, 0, work.rows * work.stride);
    printf("GB/s of input, %zu rows of %zu\n%-28s", work.rows, work.hidden, "");
    for (int simd = 0; simd <= (int)xep_cpu_simd(); simd++) printf(" %8s", xep_cpu_simd_name((xep_simd_t)simd));
    printf("\n");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        work.dtype = lines[i].dtype, work.quant = lines[i].quant;
        if (lines[i].run != run_decode) fill(&work);
        print_line(lines[i].name, lines[i].run, &work, lines[i].by_simd, budget_ns);
    }
    free(work.in);
    free(work.out);
    free(work.scales);
    return 0;
}
