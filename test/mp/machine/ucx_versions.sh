#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 200
# Every version of UCX that contrib/fetch.bash finds, as they differ in names, defaults and what they reach: mapped,
# over UCX's shared memory, over TCP. UCX itself may not complain either.
. "${srcdir:-.}/test/rig/launch.bash"
[ -n "${XEP_TEST_UCX_LIBS:-}" ] || skip 'XEP_TEST_UCX_LIBS is not set'
unset UCX_TLS UCX_NET_DEVICES XEP_MAP XEP_MODE
IFS=: read -ra folders <<<"$XEP_TEST_UCX_LIBS"

for folder in "${folders[@]}"; do
    export LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH#"${before:-}"}
    before=$folder:
    name=$folder
    ./xep_info | grep -q "^ucx .*$folder/" || { wrong "xep_info does not name it"; continue; }
    for setting in XEP_MODE=normal XEP_MAP=never UCX_TLS=tcp,self; do
        passes "$(./xep_info | sed -n 's/^ucx *\([^,]*\),.*/\1/p'), $setting" env $setting \
            ./xep_run -n 3 ./xep_perf --check-only --tokens 32 --hidden 512 --topk 2 --experts 9
        ! grep -hE 'UCX +(WARN|ERROR)' "$tmp/out" "$tmp/err" || wrong 'UCX complains'
    done
done
exit $failed
