/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_images.h"

CUDA_IMAGE(ll_dispatch);
CUDA_IMAGE(ll_combine);
CUDA_IMAGE(layout);
CUDA_IMAGE(direct);

const void *const cuda_images[CUDA_ALL_LL_IMAGES] = {
    [CUDA_IMAGE_LL_DISPATCH] = cuda_image_ll_dispatch,
    [CUDA_IMAGE_LL_COMBINE] = cuda_image_ll_combine,
    [CUDA_IMAGE_LL_LAYOUT] = cuda_image_layout,
    [CUDA_IMAGE_LL_DIRECT] = cuda_image_direct,
};
