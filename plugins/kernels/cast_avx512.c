/* SPDX-License-Identifier: BSD-3-Clause */

/* The casts of cast_formats.h with AVX-512. */
#include "cast_formats.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

#include "cast_avx512.h"
#include "cast_vectors.h"

const xep_cast_row_fn xep_cast_rows_avx512[XEP_CAST_TABLE][XEP_CAST_TYPES] = {XEP_CAST_BLOCKS(CAST_ENTRY_)};

#endif
