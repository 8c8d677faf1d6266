#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 500
# What the wire promises, over every transport that runs on one machine, with each way to move bytes to ranks that
# are not mapped, with the UCX of the system and, where XEP_TEST_UCX_LIB names its folder, a second one. UCX itself may not complain either.
set -u
program=./test/mp/wire_order.mp
trials=${XEP_TEST_TRIALS:-4}
failed=0
all=all
# UCX 1.22 asks the kernel whether CMA works by reading memory that need not exist; the sanitizer's wrapper of that call then reads it
nm "$program" 2>/dev/null | grep -q __asan_init && all=^cma

# run VAR=VALUE...
run() {
    out=$(env "$@" timeout 120 "$program" "$trials" 2>&1)
    status=$?
    if [ $status -ne 0 ] || printf '%s\n' "$out" | grep -q 'UCX *\(WARN\|ERROR\|FATAL\)'; then
        echo "$*: status $status"
        printf '%s\n' "$out" | head -20
        failed=1
    fi
}

every_setting() {
    for tls in $all tcp,self posix,self sysv,self; do
        run "$@" UCX_TLS=$tls
        for put in rma pack am; do run "$@" UCX_TLS=$tls XEP_MAP=never XEP_PUT=$put; done
    done
    run "$@" XEP_MAP=never XEP_INFLIGHT=64k
    run "$@" UCX_TLS=tcp,self XEP_INFLIGHT=64k
    run "$@" UCX_TLS=tcp,self UCX_ALLOC_PRIO=heap
}

every_setting UCX_WARN_UNUSED_ENV_VARS=n
if [ -n "${XEP_TEST_UCX_LIB:-}" ]; then
    every_setting LD_LIBRARY_PATH="$XEP_TEST_UCX_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
    echo 'XEP_TEST_UCX_LIB is not set: a second UCX was not tried'
fi
exit $failed
