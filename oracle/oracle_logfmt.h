/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * LogFMT-10 of rows of bf16, one channel after the other by the formulas: what the library's codec is compared with.
 */
#ifndef ORACLE_LOGFMT_H
#define ORACLE_LOGFMT_H

#include <stddef.h>
#include <stdint.h>

/**
 * What a row is after its journey, in arrived; returns the bytes it took. *most_code_p: raised to the largest code in
 * it.
 */
size_t oracle_logfmt_journey(const uint16_t *row, size_t channels, uint16_t *arrived, int *most_code_p);

#endif
