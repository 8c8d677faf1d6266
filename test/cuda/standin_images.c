/* SPDX-License-Identifier: BSD-3-Clause */

/* In place of the fat binaries: the stand-in has its kernels itself, and needs something to be loaded. */
#include "cuda_images.h"

enum { MOST = CUDA_ALL_IMAGES }; /* ll has fewer */

static const char image[] = "kernels of the stand-in";
const void *const cuda_images[MOST] = {image, image, image, image, image, image, image, image};
_Static_assert(MOST == 8 && (int)CUDA_LL_IMAGES <= (int)MOST, "one for each image");
