#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 500
# The tests of the group and of both modes under every setting that changes how bytes move or who moves them, but for
# those that contrib/check.sh runs all of them under ("transports").
. "${srcdir:-.}/test/mp/ranks.bash" || exit 99

brief=${XEP_TEST_BRIEF:-}
settings=XEP_THREADS=3
# in short, not what simulators and kernels_*.t go through, and not what is one change away from another line
[ -n "$brief" ] || settings+=' XEP_SIMD=scalar XEP_SIMD=avx2 XEP_STREAM=0 XEP_STREAM=inf XEP_PREFAULT=0 XEP_NUMA=no'
for setting in $settings; do
    passes 3 normal_shapes $setting
done
passes 3 normal_ops XEP_PROGRESS=thread
passes 3 failure XEP_PROGRESS=thread
[ -n "$brief" ] || passes 3 waits XEP_PROGRESS=thread
[ -n "$brief" ] || passes 2 normal_ops XEP_PROGRESS=thread XEP_THREADS=2

# nodes drawn by force: mapped inside, by the wire across, both in one operation
[ -n "$brief" ] || passes 4 normal_shapes XEP_NODE_RANKS=2 XEP_PATH=flat
passes 4 normal_ops XEP_NODE_RANKS=2 XEP_PATH=flat
[ -n "$brief" ] || passes 4 normal_ops XEP_NODE_RANKS=2 XEP_PATH=nodes
[ -n "$brief" ] || passes 4 normal_ops XEP_NODE_RANKS=3 XEP_PATH=nodes
passes 4 normal_ops XEP_NODE_RANKS=2 XEP_PATH=nodes XEP_PROGRESS=thread
[ -n "$brief" ] || passes 4 waits XEP_NODE_RANKS=3 XEP_PATH=nodes
passes 5 by_nodes UCX_TLS=tcp,sysv,self
[ -n "$brief" ] || passes 5 normal_shapes XEP_NODE_RANKS=3 XEP_PATH=nodes XEP_NODE_SUMS=fp32 XEP_THREADS=2
passes 4 failure XEP_NODE_RANKS=2 XEP_PATH=nodes
[ -n "$brief" ] || passes 4 waits XEP_NODE_RANKS=2 XEP_PATH=nodes
[ -n "$brief" ] || passes 5 normal_shapes XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
passes 4 pieces XEP_NODE_RANKS=2
[ -n "$brief" ] || passes 5 pieces XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
[ -n "$brief" ] || passes 3 normal_shapes XEP_NODE_RANKS=1
passes 3 normal_ops XEP_MAP=never XEP_INFLIGHT=64k
[ -n "$brief" ] || passes 4 waits XEP_NODE_RANKS=2 XEP_PATH=flat
passes 4 allgather XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
for put in rma pack am; do
    passes 3 normal_ops XEP_MAP=never XEP_PUT=$put UCX_TLS=tcp,self
    [ -n "$brief" ] || passes 3 normal_shapes XEP_MAP=never XEP_PUT=$put
done
# ranks that come to a barrier of their own between two calls: sockets, and what waits for the other side's progress
passes 3 between XEP_MAP=never UCX_TLS=tcp,self
passes 3 between XEP_NODE_RANKS=2 XEP_PATH=nodes
if [ -n "${XEP_TEST_UCX_LIB:-}" ]; then
    second="LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    for tls in tcp,self posix,sysv,tcp,self; do
        passes 3 between "$second" XEP_MAP=never UCX_TLS=$tls XEP_PUT=rma
    done
fi
settings=XEP_THREADS=2
[ -n "$brief" ] || settings+=' XEP_PROGRESS=thread XEP_SIMD=scalar'
for setting in $settings; do
    passes 3 ll_ops $setting
done
[ -n "$brief" ] || passes 4 ll_ops XEP_NODE_RANKS=2 XEP_PATH=flat
[ -n "$brief" ] || passes 4 ll_ops XEP_NODE_RANKS=2 XEP_PATH=nodes
passes 4 ll_ops XEP_NODE_RANKS=2 XEP_PATH=nodes XEP_PROGRESS=thread
passes 5 ll_by_nodes UCX_TLS=tcp,sysv,self
exit $failed
