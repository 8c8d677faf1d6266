/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatch: both phases by one kernel where nothing comes between them. Then each block that has told its share waits
 * for the packets of all ranks at once; a kernel of its own for the second phase would begin when the first has ended.
 */
#include "cuda_ll_receive.cuh"
#include "cuda_ll_send.cuh"

/*
 * Shared memory: a stage and a barrier for each warp, then the board; before there is one, the heads of packets. A send
 * phase of a rank that is left out leaves the slot an epoch behind that of the loss.
 */
template <bool USUAL> static __device__ __forceinline__ void run_dispatch(const xep_cuda_ll_dispatch_t &d)
{
    extern __shared__ __align__(128) char shared[];
    char **head = (char **)(shared + blockDim.x / 32 * (d.chunk + sizeof(uint64_t)));
    receiving_t in;
    if (d.receives) in = open_receive(d, shared);
    wait_for_last();
    const uint64_t epoch = d.sends ? d.at.now->epoch + 1 : d.at.slot->epoch;
    const uint64_t turn = d.sends ? d.at.now->turn : d.at.slot->turn;
    if (is_left_out(d.at, epoch)) return;
    if (d.sends) send_packets<USUAL>({d, d.given, d.notice, d.at, head, epoch, turn});
    if (d.receives) receive_packets(d, in, epoch, turn);
}

/* Every other cast would take registers from both phases: 1.5 us of 28. */
extern "C" __global__ void __launch_bounds__(768, 1)
    xep_cuda_ll_dispatch_usual(const __grid_constant__ xep_cuda_ll_dispatch_t d)
{
    run_dispatch<true>(d);
}

extern "C" __global__ void __launch_bounds__(768, 1)
    xep_cuda_ll_dispatch(const __grid_constant__ xep_cuda_ll_dispatch_t d)
{
    run_dispatch<false>(d);
}
