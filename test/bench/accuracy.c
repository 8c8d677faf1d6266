/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What each format of xep_quant_t loses: the relative error in percent of a row, of a combine whose rows travel so, and
 * of one whose owners sum first. That of a channel is the root of the mean square by which it is off, by that of the
 * channel, over all tokens; what is printed is the mean over all channels, so that large ones do not count for more.
 * accuracy [TOKENS, 100] [HIDDEN, 7168] [FILE]
 *
 * Rows: "normal", channels from a normal distribution of sigma 1/8; "outliers", each channel with a size of its own, as
 * activations of models have: log-normal with sigma 1, one of 500 channels 50 times larger, all divided by 4096. Eight
 * selections of a token on four ranks, two on each, with random weights that add up to 1. "file": rows of bf16 of that
 * length, one after the other, of FILE (activations.py makes some).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec.h"
#include "cpu.h"
#include "floats.h"

enum { K = 8, OWNERS = 4 };

/** Of a channel. */
typedef struct error {
    double sum, off;
} error_t;

static void add(error_t *error, double exact, double got)
{
    error->sum += exact * exact;
    error->off += (exact - got) * (exact - got);
}

static double percent(const error_t *errors, size_t hidden)
{
    double sum = 0;
    for (size_t h = 0; h < hidden; h++) sum += sqrt(errors[h].off / errors[h].sum);
    return 100 * sum / (double)hidden;
}

static double normal(void)
{
    return sqrt(-2 * log(1 - drand48())) * cos(6.283185307179586 * drand48());
}

/* one row as it arrives: by no format as it is */
static void travel(const xep_codec_t *codec, uint16_t *arrived, const void *row, void *coded)
{
    if (codec->quant == XEP_QUANT_NONE) {
        for (size_t h = 0; h < codec->channels; h++) arrived[h] = ((const uint16_t *)row)[h];
        return;
    }
    xep_codec_encode(codec, coded, row);
    xep_codec_decode(codec, arrived, coded);
}

static xep_codec_t codec_of(xep_quant_t quant, size_t hidden, int wide)
{
    if (quant == XEP_QUANT_NONE) return (xep_codec_t){.channels = hidden, .from = XEP_BF16, .bytes = hidden * 2};
    return xep_codec_select(quant, quant == XEP_QUANT_E4M3_STATIC ? 1.0f / 448 : 0, hidden, wide, xep_cpu_simd());
}

typedef struct token {
    size_t hidden;
    uint16_t *rows; /* [K][H] */
    float weights[K];
    float *sum;       /* [H] */
    uint16_t *row;    /* [H] */
    uint16_t *narrow; /* [H] */
    float *total;     /* [H] */
    void *coded;
} token_t;

static double exact_sum(const token_t *t, size_t h)
{
    double sum = 0;
    for (int k = 0; k < K; k++) sum += (double)t->weights[k] * xep_float_of_bf16(t->rows[(size_t)k * t->hidden + h]);
    return sum;
}

static void finish(const token_t *t, error_t *error)
{
    for (size_t h = 0; h < t->hidden; h++)
        add(&error[h], exact_sum(t, h), xep_float_of_bf16(xep_bf16_of_float(t->total[h])));
}

/* Rows as they are, weighed where their token is. */
static void combine(const token_t *t, xep_quant_t quant, error_t *of_row, error_t *of_sum)
{
    const xep_codec_t codec = codec_of(quant, t->hidden, 0);
    for (size_t h = 0; h < t->hidden; h++) t->total[h] = 0;
    for (size_t k = 0; k < K; k++) {
        const uint16_t *row = t->rows + k * t->hidden;
        travel(&codec, t->row, row, t->coded);
        for (size_t h = 0; h < t->hidden; h++) {
            const float value = xep_float_of_bf16(t->row[h]);
            add(&of_row[h], xep_float_of_bf16(row[h]), value);
            t->total[h] = fmaf(t->weights[k], value, t->total[h]);
        }
    }
    finish(t, of_sum);
}

/* Experts weigh, and round to bf16; owners sum. */
static void combine_at_owners(const token_t *t, xep_quant_t quant, error_t *of_sum)
{
    const xep_codec_t codec = codec_of(quant, t->hidden, 1);
    for (size_t h = 0; h < t->hidden; h++) t->total[h] = 0;
    for (size_t owner = 0; owner < OWNERS; owner++) {
        for (size_t h = 0; h < t->hidden; h++) t->sum[h] = 0;
        for (size_t k = owner; k < K; k += OWNERS)
            for (size_t h = 0; h < t->hidden; h++) {
                float y = t->weights[k] * xep_float_of_bf16(t->rows[k * t->hidden + h]);
                t->sum[h] += xep_float_of_bf16(xep_bf16_of_float(y));
            }
        for (size_t h = 0; h < t->hidden; h++) t->narrow[h] = xep_bf16_of_float(t->sum[h]);
        travel(&codec, t->row, codec.from == XEP_FP32 ? (const void *)t->sum : t->narrow, t->coded);
        for (size_t h = 0; h < t->hidden; h++) t->total[h] += xep_float_of_bf16(t->row[h]);
    }
    finish(t, of_sum);
}

/* The next K rows of the file, and the first ones behind its end. */
static void read_rows(const token_t *t, FILE *file)
{
    if (fread(t->rows, t->hidden * 2, K, file) == K) return;
    rewind(file);
    if (fread(t->rows, t->hidden * 2, K, file) == K) return;
    fprintf(stderr, "accuracy: the file has too few rows (at least %d of %zu channels)\n", K, t->hidden);
    exit(1);
}

static void make_token(token_t *t, const double *size, FILE *file)
{
    double sum = 0;
    for (size_t k = 0; k < K; k++) sum += t->weights[k] = (float)(0.1 + drand48());
    for (size_t k = 0; k < K; k++) t->weights[k] /= (float)sum;
    if (file != NULL) read_rows(t, file);
    else
        for (size_t i = 0; i < K * t->hidden; i++)
            t->rows[i] = xep_bf16_of_float((float)(normal() * size[i % t->hidden]));
}

/* Prints its three figures. */
static void measure(token_t *t, xep_quant_t quant, int outliers, FILE *file, long tokens)
{
    double *size = malloc(t->hidden * sizeof *size);
    error_t *row = calloc(3 * t->hidden, sizeof *row), *sum = row + t->hidden, *at_owners = sum + t->hidden;
    srand48(1);
    for (size_t h = 0; h < t->hidden; h++)
        size[h] = !outliers ? 1.0 / 8 : exp(normal()) * (drand48() < 0.002 ? 50 : 1) / 4096;
    for (long i = 0; i < tokens; i++) {
        make_token(t, size, file);
        combine(t, quant, row, sum);
        combine_at_owners(t, quant, at_owners);
    }
    printf(" %9.2f%9.2f%9.2f", percent(row, t->hidden), percent(sum, t->hidden), percent(at_owners, t->hidden));
    free(row);
    free(size);
}

int main(int argc, char **argv)
{
    const long tokens = argc > 1 ? atol(argv[1]) : 100;
    const size_t hidden = argc > 2 ? (size_t)atol(argv[2]) : 7168;
    FILE *file = argc > 3 ? fopen(argv[3], "rb") : NULL;
    token_t t = {.hidden = hidden,
                 .rows = malloc(K * hidden * 2),
                 .sum = malloc(hidden * 4),
                 .row = malloc(hidden * 2),
                 .narrow = malloc(hidden * 2),
                 .total = malloc(hidden * 4),
                 .coded = malloc(hidden * 8 + 64)};
    if (argc > 3 && file == NULL) return perror(argv[3]), 1;
    printf("percent off: row, sum and sum at owners of normal rows, of those with outliers, of the file; bytes\n");
    for (xep_quant_t quant = XEP_QUANT_NONE; strcmp(xep_quant_name(quant), "unknown") != 0; quant++) {
        const xep_codec_t codec = codec_of(quant, hidden, 0);
        printf("%-12s", xep_quant_name(quant));
        measure(&t, quant, 0, NULL, tokens);
        measure(&t, quant, 1, NULL, tokens);
        const size_t bytes = quant == XEP_QUANT_NONE ? codec.bytes : xep_codec_encode(&codec, t.coded, t.rows);
        if (file != NULL) measure(&t, quant, 0, file, tokens);
        printf(" %7zu\n", bytes);
    }
    return 0;
}
