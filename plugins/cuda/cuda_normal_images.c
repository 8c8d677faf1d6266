/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_images.h"

CUDA_IMAGE(plan);
CUDA_IMAGE(dispatch);
CUDA_IMAGE(dispatch_with_all);
CUDA_IMAGE(combine);
CUDA_IMAGE(layout);
CUDA_IMAGE(experts);
CUDA_IMAGE(cast);
CUDA_IMAGE(direct);

const void *const cuda_images[CUDA_ALL_IMAGES] = {
    [CUDA_IMAGE_PLAN] = cuda_image_plan,
    [CUDA_IMAGE_DISPATCH] = cuda_image_dispatch,
    [CUDA_IMAGE_DISPATCH_WITH_ALL] = cuda_image_dispatch_with_all,
    [CUDA_IMAGE_COMBINE] = cuda_image_combine,
    [CUDA_IMAGE_LAYOUT] = cuda_image_layout,
    [CUDA_IMAGE_EXPERTS] = cuda_image_experts,
    [CUDA_IMAGE_CAST] = cuda_image_cast,
    [CUDA_IMAGE_DIRECT] = cuda_image_direct,
};
