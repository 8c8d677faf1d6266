/* SPDX-License-Identifier: BSD-3-Clause */

/** Blocks of one cluster, which run at the same time and can wait for one another. */
#ifndef XEP_CUDA_CLUSTER_CUH
#define XEP_CUDA_CLUSTER_CUH

/** All threads of the cluster: what they wrote before is visible to all of them after. */
__device__ __forceinline__ void sync_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#endif
