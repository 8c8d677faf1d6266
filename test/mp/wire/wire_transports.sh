#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 500
# What the wire promises, over every transport that runs on one machine, with each way to move bytes to ranks that are
# not mapped, with the UCX of the system and, where XEP_TEST_UCX_LIB names its folder, a second one. UCX itself may not
# complain either. Both at the same time: their processes mostly wait for one another.
set -u
program=./test/mp/wire/wire_order.mp
much='2 6' # arguments of wire_order
mapped_by='posix,self sysv,self'
[ -z "${XEP_TEST_BRIEF:-}" ] || much='1 4' mapped_by= # what they share is the transport "all", too
failed=0

# run VAR=VALUE...
run() {
    out=$(env "$@" timeout $((120 * ${XEP_TEST_SLOW:-1})) "$program" $much 2>&1)
    status=$?
    if [ $status -ne 0 ] || printf '%s\n' "$out" | grep -q 'UCX *\(WARN\|ERROR\|FATAL\)'; then
        echo "$*: status $status"
        printf '%s\n' "$out" | head -20
        failed=1
    fi
}

# every_setting ALL VAR=VALUE...: ALL are the transports of this UCX
every_setting() {
    all=$1
    shift
    for tls in "$all" tcp,self $mapped_by; do
        run "$@" UCX_TLS=$tls
        for put in rma am; do run "$@" UCX_TLS=$tls XEP_MAP=never XEP_PUT=$put; done
    done
    run "$@" UCX_TLS="$all" XEP_MAP=never XEP_INFLIGHT=64k
    run "$@" UCX_TLS=tcp,self XEP_INFLIGHT=64k
    run "$@" UCX_TLS=tcp,self UCX_ALLOC_PRIO=heap
}

# what only the older of the two can
older_settings() {
    ./xep_info | grep -q '^ucx *1\.1[345]\.' || return
    # Without CMA, as in many containers. UCX from 1.16 on then opens TCP beside shared memory, and a rank that leaves
    # breaks it under those that still wait for others: the processes of a group leave together, these do not.
    for put in rma am; do run UCX_WARN_UNUSED_ENV_VARS=n UCX_TLS=^cma XEP_MAP=never XEP_PUT=$put; done
    run UCX_WARN_UNUSED_ENV_VARS=n UCX_TLS=^cma
    # its second generation of protocols, for who asks for it
    run UCX_WARN_UNUSED_ENV_VARS=n UCX_PROTO_ENABLE=y XEP_MAP=never
    run UCX_WARN_UNUSED_ENV_VARS=n UCX_PROTO_ENABLE=y
}

(
    every_setting all UCX_WARN_UNUSED_ENV_VARS=n
    older_settings
    exit $failed
) &
first=$!

# UCX 1.22 asks the kernel whether CMA works by reading memory that need not exist; the sanitizer's wrapper of that call
# then reads it.
second=all
nm "$program" 2>/dev/null | grep -q __asan_init && second=sysv,posix,self
if [ -n "${XEP_TEST_UCX_LIB:-}" ]; then
    every_setting $second LD_LIBRARY_PATH="$XEP_TEST_UCX_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
    echo 'XEP_TEST_UCX_LIB is not set: a second UCX was not tried'
fi
wait $first || failed=1
exit $failed
