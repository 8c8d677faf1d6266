#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 500
# The tests of the group and of both modes under every setting that changes how bytes move or who moves them, but for
# those that contrib/check.sh runs all of them under ("transports").
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

# Not in brief: what simulators, kernels_*.t or other tests go through, and what is one change away from another line.
at_length() { in_brief || passes "$@"; }
# Nor is this of the quickest: each part of it is in one of the others, or in a program that runs by itself.
not_quick() { in_quick || passes "$@"; }

not_quick 3 ops/normal_shapes XEP_THREADS=3
at_length 3 ops/normal_shapes XEP_SIMD=scalar XEP_STREAMING=0 XEP_PREFAULT=0
at_length 3 ops/normal_shapes XEP_SIMD=avx2 XEP_STREAMING=inf XEP_NUMA=no
at_length 3 ops/normal_ops XEP_PROGRESS=thread
passes 3 failures/deadlines XEP_PROGRESS=thread
at_length 3 ops/waits XEP_PROGRESS=thread
passes 4 ops/serving_kinds XEP_PROGRESS=thread
passes 2 ops/normal_ops XEP_PROGRESS=thread XEP_THREADS=2

# nodes drawn by force: mapped inside, by the wire across, both in one operation
at_length 4 ops/normal_shapes XEP_NODE_RANKS=2 XEP_PATH=flat
passes 4 ops/normal_ops XEP_NODE_RANKS=2 XEP_PATH=flat
not_quick 4 ops/normal_ops XEP_NODE_RANKS=2 XEP_PATH=nodes
at_length 4 ops/normal_ops XEP_NODE_RANKS=3 XEP_PATH=nodes
at_length 4 ops/normal_ops XEP_NODE_RANKS=2 XEP_PATH=nodes XEP_PROGRESS=thread
at_length 4 ops/waits XEP_NODE_RANKS=3 XEP_PATH=nodes
not_quick 4 ops/in_place XEP_NODE_RANKS=2 XEP_PATH=nodes
at_length 5 ops/normal_shapes XEP_NODE_RANKS=3 XEP_PATH=nodes XEP_THREADS=2
at_length 4 failures/deadlines XEP_NODE_RANKS=2 XEP_PATH=nodes
at_length 4 ops/waits XEP_NODE_RANKS=2 XEP_PATH=nodes
at_length 5 ops/normal_shapes XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
at_length 5 ops/pieces UCX_TLS=tcp,sysv,self
at_length 4 ops/serving_kinds XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
at_length 3 ops/normal_shapes XEP_NODE_RANKS=1
not_quick 3 ops/normal_ops XEP_MAP=never XEP_INFLIGHT=64k
at_length 4 ops/waits XEP_NODE_RANKS=2 XEP_PATH=flat
at_length 4 groups/allgather XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
passes 3 ops/normal_ops XEP_MAP=never XEP_PUT=rma UCX_TLS=tcp,self
at_length 3 ops/normal_ops XEP_MAP=never XEP_PUT=am UCX_TLS=tcp,self
for put in rma am; do at_length 3 ops/normal_shapes XEP_MAP=never XEP_PUT=$put; done
# ranks that come to a barrier of their own between two calls: sockets, and what waits for the other side's progress
passes 3 ops/ranks_outside XEP_MAP=never UCX_TLS=tcp,self
not_quick 3 ops/ranks_outside XEP_NODE_RANKS=2 XEP_PATH=nodes
if [ -n "${XEP_TEST_UCX_LIB:-}" ]; then
    second="LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    for tls in tcp,self posix,sysv,tcp,self; do
        passes 3 ops/ranks_outside "$second" XEP_MAP=never UCX_TLS=$tls XEP_PUT=rma
    done
fi
at_length 3 ops/ll_ops XEP_THREADS=2
at_length 3 ops/ll_ops XEP_PROGRESS=thread
at_length 3 ops/ll_ops XEP_SIMD=scalar
at_length 4 ops/ll_ops XEP_NODE_RANKS=2 XEP_PATH=flat
at_length 4 ops/ll_ops XEP_NODE_RANKS=2 XEP_PATH=nodes
passes 3 ops/ll_ops XEP_NODE_RANKS=2 XEP_PATH=nodes XEP_PROGRESS=thread XEP_THREADS=2
at_length 5 ops/by_nodes UCX_TLS=tcp,sysv,self
exit $failed
