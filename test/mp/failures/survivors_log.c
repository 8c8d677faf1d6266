/* SPDX-License-Identifier: BSD-3-Clause */

#include "survivors_log.h"

#include <unistd.h>

#include "mp_rig.h"

enum { IN_FLIGHT = 2 /* operations of a rank */ };

said_t *said;

void said_open(xep_group_t *group)
{
    said = mp_shared(group, sizeof *said);
    said->pid[mp_rank()] = getpid();
}

static uint32_t count_with(uint32_t survivor, uint32_t gone)
{
    uint32_t with = 0;
    for (uint32_t i = 0; i < SAID_ROUNDS * SAID_OPERATIONS; i++) {
        with += said->dispatch[i][survivor] != 0 && !((said->dispatch[i][survivor] - 1) >> gone & 1);
        with += said->combine[i][survivor] != 0 && !((said->combine[i][survivor] - 1) >> gone & 1);
    }
    return with;
}

static void compare_with(uint32_t survivor, int mapped)
{
    uint32_t me = mp_rank();
    for (uint32_t i = 0; i < SAID_ROUNDS * SAID_OPERATIONS && mapped; i++)
        if (said->dispatch[i][survivor] != said->dispatch[i][me] || said->combine[i][survivor] != said->combine[i][me])
            mp_fail(__FILE__, __LINE__, "round %u: rank %u was without %#x, %#x, this rank without %#x, %#x",
                    i / SAID_OPERATIONS, survivor, said->dispatch[i][survivor] - 1, said->combine[i][survivor] - 1,
                    said->dispatch[i][me] - 1, said->combine[i][me] - 1);
    for (uint32_t gone = 0; gone < mp_nranks(); gone++) {
        uint32_t here = count_with(me, gone), there = count_with(survivor, gone);
        if ((here > there ? here - there : there - here) > IN_FLIGHT)
            mp_fail(__FILE__, __LINE__, "with rank %u were %u operations here, %u at rank %u", gone, here, there,
                    survivor);
    }
}

void said_compare(xep_group_t *group, uint32_t out)
{
    for (uint32_t r = 0; r < mp_nranks(); r++)
        if (!(out >> r & 1)) compare_with(r, mp_group_info(group).nnodes == 1);
}
