/* SPDX-License-Identifier: BSD-3-Clause */

/** The kernels of a mode as the device's driver loads them: a fat binary of each source. */
#ifndef XEP_CUDA_IMAGES_H
#define XEP_CUDA_IMAGES_H

enum {
    CUDA_IMAGE_PLAN,
    CUDA_IMAGE_DISPATCH,
    CUDA_IMAGE_DISPATCH_WITH_ALL,
    CUDA_IMAGE_COMBINE,
    CUDA_IMAGE_LAYOUT,
    CUDA_IMAGE_EXPERTS,
    CUDA_IMAGE_CAST,
    CUDA_NORMAL_IMAGES,
    CUDA_IMAGE_DIRECT = CUDA_NORMAL_IMAGES, /* for the mode for host memory: xep/direct.h, xep/captured.h */
    CUDA_ALL_IMAGES
};
enum {
    CUDA_IMAGE_LL_DISPATCH,
    CUDA_IMAGE_LL_COMBINE,
    CUDA_IMAGE_LL_LAYOUT,
    CUDA_LL_IMAGES,
    CUDA_IMAGE_LL_DIRECT = CUDA_LL_IMAGES, /* likewise */
    CUDA_ALL_LL_IMAGES
};

/** Those of the mode whose object this is. */
__attribute__((visibility("hidden"))) extern const void *const cuda_images[];

/**
 * Makes cuda_image_<name> of what nvcc has left in the folder XEP_CUDA_IMAGES. Fat binaries are put into this library
 * as they are, so that a mode is one file and finds its kernels wherever it was installed. The driver is told no
 * length: a fat binary has it in itself.
 */
#define CUDA_IMAGE(_name)                                                                                          \
    __asm__(".pushsection .rodata\n.balign 16\ncuda_image_" #_name ":\n.incbin \"" XEP_CUDA_IMAGES "/cuda_" #_name \
            ".fatbin\"\n.popsection");                                                                             \
    extern const char cuda_image_##_name[]

#endif
