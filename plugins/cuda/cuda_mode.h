/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What every mode for device memory has: lists on the device and in pinned memory, its kernels, and the words in which
 * kernels say for whom they waited too long. A mode's struct begins with that of the host mode, and so with the kit,
 * and has a cuda_mode_t somewhere in it.
 */
#ifndef XEP_CUDA_MODE_H
#define XEP_CUDA_MODE_H

#include <handshake.h>

#include "cuda_args.h"

enum { CUDA_MOST_IMAGES = 7, CUDA_MOST_KERNELS = 13, CUDA_MOST_WARPS = 32 /* of a block */ };

/** A kernel: which image has it, and what it is called there. */
typedef struct cuda_kernel_name {
    int image;
    const char *name;
} cuda_kernel_name_t;

/** What a mode tells of itself. */
typedef struct cuda_mode_traits {
    size_t cuda; /* where in the mode's struct the cuda_mode_t is */
    int images, kernels;
    const cuda_kernel_name_t *kernel_names;                  /* [kernels] */
    int layout;                                              /* the kernel of xep_layout() */
    uint32_t late_words;                                     /* one for each thing that kernels wait for */
    const char *const *waited_for;                           /* [late_words]; NULL: the word is of ranks that differ */
    void (*lay_device)(void *mode, xep_carve_t *memory);     /* arrays in device memory, zeroed */
    void (*lay_pinned)(void *mode, xep_carve_t *memory);     /* arrays in pinned memory, zeroed */
    xep_status_t (*set_up)(void *mode);                      /* the rest of the mode, once all of this is there */
    xep_status_t (*check_earlier)(void *mode, xep_op_t *op); /* what an earlier operation met besides; NULL: nothing */
} cuda_mode_traits_t;

/** Defined by the mode: there is one in each object. */
__attribute__((visibility("hidden"))) extern const cuda_mode_traits_t cuda_mode_traits;

typedef struct cuda_mode {
    xep_device_t *device;
    void *memory, *pinned; /* all arrays of each kind */
    void *modules[CUDA_MOST_IMAGES];
    void *kernels[CUDA_MOST_KERNELS];
    /* device memory: */
    char **peer;                    /* [R] heaps */
    uint32_t *owner, *first_expert; /* [E], [R + 1] */
    /* [E] the caller's number of each of the mode's experts, and the mode's of each of the caller's; NULL: the same */
    uint32_t *callers, *numbers;
    uint64_t *life;          /* xep_cuda_life_t.now */
    uint64_t *out, *decided; /* [R], [1] xep_cuda_outs_t */
    uint32_t *with;          /* [R] likewise */
    /* pinned: */
    uint32_t *late;  /* [late_words] rank plus 1 */
    uint32_t *stale; /* xep_cuda_life_t.stale */
    uint64_t number; /* xep_cuda_life_t.number: when this mode was opened */
    uint64_t words;  /* offset of the xep_cuda_own_words_t in a heap: set by the mode's set_up */
} cuda_mode_t;

/**
 * What a rank offers in every combine: dtype, quant, hidden, and its refused calls, which tell in which call it is. All
 * ranks map one another here, so that rows stay as they are, whatever quant says.
 */
static inline uint64_t cuda_offer(const xep_op_t *op)
{
    return (uint64_t)op->combine->hidden << 32 | (op->refused & 0xffffff) << 8 | (uint32_t)op->combine->quant << 4 |
           (uint32_t)op->combine->dtype;
}

/** The stream of an operation. */
static inline void *cuda_stream(const xep_op_t *op)
{
    return op->kind == XEP_OP_DISPATCH ? op->dispatch->stream : op->combine->stream;
}

/**
 * For xep_plugin_t: what the kit has, the arrays of cuda_mode_traits as far as all modes have them, the kernels,
 * and what the mode sets up. Close is for what open made; the core has seen to it that no kernel of the buffer runs.
 */
xep_status_t cuda_mode_open(const xep_env_t *env, void **mode_p);
void cuda_mode_close(void *mode);

/** For xep_plugin_t: enqueues the counts of a layout (cuda_layout.c). */
xep_status_t cuda_mode_layout(void *mode, const xep_layout_args_t *args, const xep_layout_t *out);

/** The part of a mode's struct that is its cuda_mode_t. */
cuda_mode_t *cuda_mode_of(void *mode);

/** What the xep_plugin_t of every mode for device memory begins with. */
#define CUDA_MODE_OPS \
    XEP_PLUGIN_SIZES, XEP_KIT_OPS, .open = cuda_mode_open, .close = cuda_mode_close, .layout = cuda_mode_layout

/** Most dynamic shared memory that a kernel may be launched with. */
uint32_t cuda_shared_bytes(const cuda_mode_t *cuda);

/** Of an operation: how long its kernels wait for what. */
xep_cuda_deadline_t cuda_deadline(const cuda_mode_t *cuda, const xep_op_t *op, uint32_t what);

/** Of an operation that is called now. */
xep_cuda_life_t cuda_life(const cuda_mode_t *cuda);

/** Who is out; all NULL where an operation is with all ranks. */
xep_cuda_outs_t cuda_outs(const cuda_mode_t *cuda, uint32_t nranks);

/** Multiprocessors that a buffer may use. */
uint32_t cuda_multiprocessors(const xep_kit_t *kit);

/**
 * For set_up: the words of this rank's heap begin at 0, as what kernels count does, in a mode that is opened again,
 * too. No device does anything for this buffer then, and none will until all ranks have come here.
 */
xep_status_t cuda_clear_words(const xep_kit_t *kit);

/** Launches a kernel on the operation's stream; cuda_launch_after: one that waits itself for the kernel before it. */
xep_status_t cuda_launch_after(const cuda_mode_t *cuda, const xep_op_t *op, int kernel, uint32_t blocks,
                               uint32_t threads, uint32_t shared_bytes, void *args);
xep_status_t cuda_launch(const cuda_mode_t *cuda, const xep_op_t *op, int kernel, uint32_t blocks, uint32_t threads,
                         uint32_t shared_bytes, void *args);

/**
 * How a combine of so many blocks sums tokens that have so many contributions at most, besides biases: in chunks of so
 * many bytes of a row, with at most so many warps of a block and bytes of its shared memory. odd: 0 where bulk copies
 * can move all that args does not name. Returns what shared memory it takes.
 */
uint32_t cuda_lay_sums(const xep_combine_args_t *args, uint32_t blocks, uint32_t contributions, uint32_t chunk,
                       uint32_t most_warps, uint32_t room, uintptr_t odd, xep_cuda_sum_t *sum);

/** What a dispatch casts; where the rows go is left to be filled in. */
static inline xep_cuda_cast_t cuda_cast_of(const xep_dispatch_args_t *args)
{
    return (xep_cuda_cast_t){
        .x = args->x,
        .x_stride = args->x_stride,
        .tokens = (uint32_t)args->tokens,
        .hidden = args->hidden,
        .dtype = (uint32_t)args->dtype,
        .quant = (uint32_t)args->quant,
        .scale = args->quant_scale,
    };
}

/** Arguments of an operation that must be memory of the device; NULL is. */
typedef struct cuda_array {
    const char *name;
    const void *address;
} cuda_array_t;

xep_status_t cuda_check_arrays(const cuda_mode_t *cuda, const cuda_array_t *arrays, size_t count);

/** Step, the first one: XEP_ERR_TIMEOUT or XEP_ERR_PROTOCOL where a kernel of an earlier operation has failed. */
xep_status_t cuda_check_earlier(void *mode, xep_op_t *op);

#endif
