/* SPDX-License-Identifier: BSD-3-Clause */

/** The kernels as the device's driver loads them: a fat binary of each source. */
#ifndef XEP_CUDA_IMAGES_H
#define XEP_CUDA_IMAGES_H

enum { CUDA_IMAGE_PLAN, CUDA_IMAGE_COUNTS, CUDA_IMAGE_DISPATCH, CUDA_IMAGE_COMBINE, CUDA_IMAGES };

extern const void *const cuda_images[CUDA_IMAGES];

#endif
