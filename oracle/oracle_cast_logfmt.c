/* SPDX-License-Identifier: BSD-3-Clause */

/* By the formulas, with the C library's logarithm and no table. */
#include "oracle_cast.h"

#include <math.h>

#include "oracle_number.h"

enum { GROUP = 128 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A NaN cannot be coded, nor can an Inf. */
static void span_of(const uint16_t *row, size_t from, size_t to, double *largest, double *smallest)
{
    *largest = 0, *smallest = INFINITY;
    for (size_t i = from; i < to; i++) {
        double magnitude = fabs((double)oracle_bf16_to_float(row[i]));
        if (isnan(magnitude)) magnitude = INFINITY;
        if (magnitude > *largest) *largest = magnitude;
        if (magnitude < *smallest) *smallest = magnitude;
    }
}

/*
 * low and high are logarithms of magnitudes. A group of one magnitude has no span and cannot be coded: its chunk
 * travels as it is.
 */
static int group_can(const uint16_t *row, size_t from, size_t to, double *low, double *high)
{
    double largest, smallest;
    span_of(row, from, to, &largest, &smallest);
    if (largest == 0 || largest >= 1) return 0;
    *high = log2(largest);
    *low = *high - 32;
    if (smallest > 0 && log2(smallest) > *low) *low = log2(smallest);
    return *low < *high;
}

/* Computes the code of a number, and the number that the receiver makes of it. */
static uint16_t journey(uint16_t bits, double low, double high, int *most_code)
{
    double step = (high - low) / 510, magnitude = fabs((double)oracle_bf16_to_float(bits));
    double number =
        magnitude == 0 ? 0 : floor(log2(magnitude) / step + 2 - log2((1 + exp2(step)) / 2) / step - low / step);
    int code = number < 0 ? 0 : (int)number;
    uint16_t sign = bits & 0x8000;
    if (code > *most_code) *most_code = code;
    return code == 0 ? sign : sign | oracle_float_to_bf16((float)exp2((code - 1) * step + low));
}

/* A chunk is coded when all of its groups can be. */
static int chunk_can(const uint16_t *row, size_t from, size_t end, size_t coded)
{
    double low, high;
    int can = coded < (end - from) * 2;
    for (size_t g = from; g < end; g += GROUP) can = can && group_can(row, g, least(g + GROUP, end), &low, &high);
    return can;
}

/* Counts the bytes of the format: two numbers for each group, then each chunk, coded or as it was. */
size_t oracle_logfmt_journey(const uint16_t *row, size_t channels, uint16_t *arrived, int *most_code_p)
{
    size_t chunk = channels % 1024 == 0 ? 1024 : 512, bytes = (channels + GROUP - 1) / GROUP * 4;
    for (size_t i = 0; i < channels; i += chunk) {
        size_t end = least(i + chunk, channels), coded = (end - i + 15) / 16 * 20;
        int can = chunk_can(row, i, end, coded);
        double low = 0, high = 0;
        bytes += can ? coded : (end - i) * 2;
        for (size_t j = i; j < end; j++) {
            if (can && j % GROUP == 0) group_can(row, j, least(j + GROUP, end), &low, &high);
            arrived[j] = can ? journey(row[j], low, high, most_code_p) : row[j];
        }
    }
    return bytes;
}
