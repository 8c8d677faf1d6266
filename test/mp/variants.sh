#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 400
# The tests of the group and of normal mode under every setting that changes how bytes move or who moves them.
set -u
failed=0

# run RANKS PROGRAM VAR=VALUE...
run() {
    ranks=$1 program=$2
    shift 2
    out=$(env XEP_TIMEOUT=40s "$@" timeout 120 ./xep_run -n "$ranks" "./test/mp/$program.mp" 2>&1)
    status=$?
    if [ $status -ne 0 ]; then
        echo "$program on $ranks ranks with $*: status $status"
        printf '%s\n' "$out" | tail -20
        failed=1
    fi
}

for setting in XEP_SIMD=scalar XEP_SIMD=avx2 XEP_STREAM=0 XEP_STREAM=inf XEP_THREADS=3 XEP_PREFAULT=0 XEP_NUMA=no; do
    run 3 normal_shapes $setting
done
run 3 normal_ops XEP_PROGRESS=thread
run 3 failure XEP_PROGRESS=thread
run 3 waits XEP_PROGRESS=thread
run 2 normal_ops XEP_PROGRESS=thread XEP_THREADS=2

# nodes drawn by force: mapped inside, by the wire across, both in one operation
run 4 normal_shapes XEP_NODE_RANKS=2
run 4 normal_ops XEP_NODE_RANKS=2
run 5 normal_shapes XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
run 3 normal_shapes XEP_NODE_RANKS=1
run 3 normal_ops XEP_MAP=never XEP_INFLIGHT=64k
run 3 waits XEP_MAP=never UCX_TLS=tcp,self
run 4 waits XEP_NODE_RANKS=2
run 3 allgather XEP_MAP=never
run 3 allgather XEP_MAP=never UCX_TLS=tcp,self
run 4 allgather XEP_NODE_RANKS=2 UCX_TLS=tcp,sysv,self
for put in rma pack am; do
    run 3 normal_ops XEP_MAP=never XEP_PUT=$put UCX_TLS=tcp,self
    run 3 normal_shapes XEP_MAP=never XEP_PUT=$put
done
exit $failed
