#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# Limits of a process below which UCX aborts: the soft one is raised, the hard one is told in a sentence. And transports
# that this machine does not have.
. "${srcdir:-.}/test/rig/launch.bash"
unset UCX_NET_DEVICES XEP_MAP
perf='.libs/xep_perf --check-only --tokens 4 --hidden 64 --topk 2 --experts 32'

UCX_TLS=tcp,self passes 'a low soft limit' ./xep_run -n 16 bash -c "ulimit -Sn 40; exec $perf"
said='too few file descriptors: 60 ([0-9]*: [0-9]* that are open, 28 for UCX, and 3 for each of 15 ranks .*ulimit -Hn)'
UCX_TLS=tcp,self refuses 'a low hard limit' "$said" ./xep_run -n 16 bash -c "ulimit -n 60; exec $perf"
refuses 'hardly any, in shared memory' 'too few file descriptors: 16 .* for each of 0 ranks' \
    ./xep_run -n 2 bash -c "ulimit -n 16; exec $perf"
passes 'few, in shared memory' ./xep_run -n 16 bash -c "ulimit -n 64; exec $perf"

ls /sys/class/infiniband/* >/dev/null 2>&1 ||
    UCX_TLS=rc refuses 'no RDMA' 'ucp_init: No such device (UCX_TLS=rc: nothing of that is here' ./xep_run -n 1 $perf
exit $failed
