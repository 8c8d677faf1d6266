/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 60 */

/*
 * A rank has given up the end of its weights, and uses the memory for something else, when another one still reads
 * them. UCX reads by address, over TCP in the process that has gone on: that must neither die of it nor show what is
 * there now. So those addresses stay taken, and are zeros: weights that nobody has filled. Over shared memory the late
 * rank still has what was there.
 */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mp_rig.h"
#include <xep/experts.h>

/* OWN: an even number in words of 8 bytes, as those of weights that are filled are */
enum { DEADLINE_MS = MP_VAIN_MS, FAR_MS = MP_FAR_MS, BYTES = 1 << 20, PAGE = 4096, OWN = 0x5a, GIVEN_UP = 1, DONE = 2 };

/* Where the heap was, if the kernel lets it have that: words, and behind them the weights. */
static char *use_again(char *weights)
{
    char *own = mmap(weights - PAGE, PAGE + BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MP_CHECK(own != MAP_FAILED);
    memset(own, OWN, PAGE + BYTES);
    return own;
}

static void give_up(xep_weights_t *weights, char *memory, atomic_int *turn)
{
    xep_weights_destroy(weights);
    char *own = use_again(memory);
    atomic_store(turn, GIVEN_UP);
    mp_await(turn, DONE);
    for (size_t i = 0; i < PAGE + BYTES; i++) MP_CHECK(own[i] == OWN);
    munmap(own, PAGE + BYTES);
}

static void read_late(xep_weights_t *weights, atomic_int *turn)
{
    const void *base = NULL;
    mp_await(turn, GIVEN_UP);
    MP_CHECK(xep_weights_of(weights, 0, &base) != XEP_OK || ((const char *)base)[BYTES - 1] == 1);
    xep_weights_destroy(weights);
    atomic_store(turn, DONE);
}

int main(void)
{
    void *memory = NULL;
    const void *base = NULL;
    xep_weights_t *weights;
    xep_weights_params_t p = XEP_WEIGHTS_PARAMS_INIT;
    setenv("XEP_MAP", "never", 1);
    setenv("XEP_PROGRESS", "thread", 1); /* over TCP the owner answers a read when it makes progress */
    xep_group_t *group = mp_group(), *second = mp_second_group(group, mp_rank() == 0 ? DEADLINE_MS : FAR_MS);
    atomic_int *turn = mp_counter(group);
    p.experts = 2, p.bytes = BYTES, p.timeout_ms = FAR_MS;
    MP_OK(xep_weights_create(second, &p, &weights));
    if (mp_rank() == 0) {
        MP_OK(xep_weights_change(weights, 0, &memory));
        memset(memory, 1, BYTES);
        MP_OK(xep_weights_publish(weights, 0));
    }
    MP_OK(xep_group_barrier(group));
    MP_OK(xep_weights_of(weights, 0, &base));
    MP_CHECK(((const char *)base)[BYTES - 1] == 1);
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == 0) give_up(weights, memory, turn);
    else read_late(weights, turn);
    xep_group_destroy(second);
    return mp_end(group);
}
