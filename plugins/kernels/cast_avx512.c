/* SPDX-License-Identifier: BSD-3-Clause */

/* The AVX-512 cast where bytes cannot be permuted across a register: bf16 by arithmetic, as the other types. */
#include "cast_kernels.h"

#if defined(__x86_64__)

#include "cast_avx512.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

AVX512 int codes_by_table(uint8_t *q, const char *x, uint32_t amax, uint32_t scale, int pow2)
{
    (void)q, (void)x, (void)amax, (void)scale, (void)pow2;
    return 0;
}

#include "cast_blocks.h"

const xep_cast_fn xep_cast_avx512[XEP_CAST_TYPES] = {cast_bf16, cast_fp16, cast_fp32};

#endif
