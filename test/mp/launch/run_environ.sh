#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# xep_run: what ranks see of its environment, and the environments it has to work in.
. "${srcdir:-.}/test/rig/run.bash"

# value NAME COMMAND...: of a variable in rank 0
value() {
    name=$1
    shift
    "$@" sh -c 'eval "echo \${'"$name"'-unset}"' </dev/null 2>&1 | head -1
}
same() {
    [ "$2" = "$3" ] || wrong "$1: \"$2\", expected \"$3\""
}

same 'node ranks' "$(value XEP_NODE_RANKS "$run" -n 5 -N 3)" 2
same 'no nodes drawn' "$(value XEP_NODE_RANKS "$run" -n 5)" unset
same 'node ranks set before' "$(XEP_NODE_RANKS=7 value XEP_NODE_RANKS "$run" -n 4 -N 2)" 7
same 'node ranks by -x' "$(value XEP_NODE_RANKS "$run" -n 4 -N 2 -x XEP_NODE_RANKS=1)" 1
same '-x' "$(value A "$run" -n 1 -x A=b=c)" b=c
same '-x over what is set' "$(A=1 value A "$run" -n 1 -x A=2 -x A=3)" 3
same '-x, empty' "$(A=1 value A "$run" -n 1 -x A=)" ''
same 'inherited' "$(A=1 value A "$run" -n 1)" 1
for name in PMIX_SOMETHING PMI_SIZE OMPI_COMM_WORLD_SIZE SLURM_PROCID SLURM_STEP_NUM_TASKS RANK WORLD_SIZE LOCAL_RANK \
    MV2_COMM_WORLD_SIZE JSM_NAMESPACE_SIZE PALS_LOCAL_SIZE FLUX_JOB_SIZE TORCHELASTIC_RUN_ID; do
    same "$name of another job" "$(export $name=7 && value $name "$run" -n 1)" unset
done
same 'settings of PMIx' "$(PMIX_MCA_x=7 value PMIX_MCA_x "$run" -n 1)" 7
same 'a store without locks that a killed rank keeps' "$(value PMIX_GDS_MODULE "$run" -n 1)" hash
same 'the setting for it' "$(value PMIX_MCA_gds "$run" -n 1)" unset
same 'ranks' "$("$run" -n 3 sh -c 'echo $PMIX_RANK' </dev/null | sort | paste -sd' ')" '0 1 2'

# inside a job of its own kind, a job of its own
expect 0 '^pmix 1/2$' "$run" -n 2 "$run" -n 2 "$client" open
expect 0 '^pmix 0/3$' env PMIX_NAMESPACE=gone PMIX_RANK=4 "$run" -n 3 "$client" open

# what a rank must know to be one is in no listing that other users see, and is never the same
names=$(for _ in 1 2; do "$run" -n 1 sh -c 'echo "$PMIX_NAMESPACE ${PMIX_SERVER_TMPDIR##*.}"' </dev/null; done)
[ "$(printf '%s\n' "$names" | grep -Ec '^xep_run\.[0-9a-f]{32} ')" -eq 2 ] ||
    wrong "jobs with names that can be guessed: $names"
[ "$(printf '%s\n' "$names" | cut -d' ' -f1 | sort -u | wc -l)" -eq 2 ] || wrong "jobs of one name: $names"

# not bound
cpus=$(grep Cpus_allowed_list /proc/self/status)
same 'CPUs' "$("$run" -n 1 grep Cpus_allowed_list /proc/self/status)" "$cpus"

# a folder nobody can write in, many ranks, few file descriptors
expect 0 '^pmix 0/2$' sh -c "cd /proc && exec $run -n 2 $client open"
expect 0 '^pmix 63/64$' "$run" -n 64 "$client" open
[ "$(grep -c '^pmix [0-9]*/64$' "$tmp/out")" -eq 64 ] || wrong "64 ranks: $(cat "$tmp/out")"
expect 0 '^\[63\] 63$' "$run" -l -n 64 sh -c 'echo $PMIX_RANK'
expect 125 '^xep_run: cannot' sh -c "ulimit -n 60; exec $run -l -n 64 true"

# root may change who it is and what network it has
if [ "$(id -u)" -eq 0 ]; then
    mkdir "$tmp/anyone"
    chmod 755 "$tmp"
    chmod 777 "$tmp/anyone"
    if setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$client"; then
        expect 0 '^pmix 1/2$' env TMPDIR="$tmp/anyone" setpriv --reuid 65534 --regid 65534 --clear-groups \
            "$run" -n 2 "$client" open
        [ -z "$(ls -A "$tmp/anyone")" ] || wrong "left by nobody: $(ls -A "$tmp/anyone")"
    fi
    # a name of the host that libpmix has no room for
    if unshare --uts true 2>/dev/null; then
        expect 0 '^pmix 1/2$' unshare --uts sh -c "hostname $(printf '%063d' 0 | tr 0 n) && exec $run -n 2 $client open"
    fi
    if unshare --net true 2>/dev/null; then
        expect 0 '^pmix 1/2$' unshare --net sh -c "ip link set lo up && exec $run -n 2 $client open"
        expect 125 'loopback' unshare --net "$run" -n 2 "$client" open
    fi
fi
