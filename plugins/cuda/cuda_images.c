/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Fat binaries are put into this library as they are, so that a mode is one file and finds its kernels wherever it was
 * installed. XEP_CUDA_IMAGES is the folder where nvcc has left them. The driver is told no length: a fat binary has it
 * in itself.
 */
#include "cuda_images.h"

#define IMAGE(_name)                                                                                               \
    __asm__(".pushsection .rodata\n.balign 16\ncuda_image_" #_name ":\n.incbin \"" XEP_CUDA_IMAGES "/cuda_" #_name \
            ".fatbin\"\n.popsection");                                                                             \
    extern const char cuda_image_##_name[]

IMAGE(plan);
IMAGE(counts);
IMAGE(dispatch);
IMAGE(combine);

const void *const cuda_images[CUDA_IMAGES] = {
    [CUDA_IMAGE_PLAN] = cuda_image_plan,
    [CUDA_IMAGE_COUNTS] = cuda_image_counts,
    [CUDA_IMAGE_DISPATCH] = cuda_image_dispatch,
    [CUDA_IMAGE_COMBINE] = cuda_image_combine,
};
