/* SPDX-License-Identifier: BSD-3-Clause */

/* The cast of a dispatch of normal, as a kernel of its own. */
#include <xep/xep.h>

#include "cuda_cast.cuh"
#include "cuda_kernels.h"
#include "cuda_words.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_cast(const __grid_constant__ xep_cuda_cast_rows_t c)
{
    if (is_stale(c.life)) return; /* all blocks */
    cast_rows(c.cast, c.rows, threadIdx.x / 32 * gridDim.x + blockIdx.x, gridDim.x * (blockDim.x / 32));
}
