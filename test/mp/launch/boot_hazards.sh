#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# again: 2
# The bootstrap over PMIx where something is wrong: each case is an error that says so, in bounded time.
. "${srcdir:-.}/test/rig/run.bash"

# what another launcher may have left in our own environment
launchers='PMIX\|PMI\|OMPI\|SLURM\|MV2\|JSM\|PALS\|FLUX\|TORCHELASTIC'
unset $(env | sed -n "s/^\(\($launchers\)_[A-Za-z0-9_]*\)=.*/\1/p") RANK WORLD_SIZE LOCAL_RANK

# no launcher at all
expect 0 '^single 0/1$' "$client" open
expect 1 'PMIX_NAMESPACE and PMIX_RANK are not set' "$client" sizes
# a launcher that serves no PMIx: never a silent group of one
expect 3 'SLURM_STEP_NUM_TASKS says .* 4 ranks.*srun --mpi=pmix' \
    env SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 "$client" open
expect 3 'WORLD_SIZE says .* 2 ranks.*torch.distributed' env WORLD_SIZE=2 RANK=1 "$client" open
expect 0 '^single 0/1$' env SLURM_NTASKS=4 "$client" open
for name in MV2_COMM_WORLD_SIZE JSM_NAMESPACE_SIZE PALS_LOCAL_SIZE FLUX_JOB_SIZE; do
    expect 3 "$name says .* 4 ranks.*pass an allgather" env $name=4 "$client" open
    expect 0 '^single 0/1$' env $name=1 "$client" open
done
for where in PMI_PORT=node:4711 PMI_ID=0; do
    expect 3 "${where%=*} says that a launcher has started this process.*serves PMIx" env $where "$client" open
    expect 0 '^single 0/1$' env $where PMI_SIZE=1 "$client" open
done
# nor a job of one over PMIx where the environment says more
expect 3 'WORLD_SIZE says' "$run" -n 1 -x WORLD_SIZE=2 -x RANK=0 "$client" open

# the environment of a job that has ended
"$run" -n 1 env </dev/null | grep ^PMIX_ >"$tmp/stale"
expect 3 'server of that job does not answer.*unset PMIX_NAMESPACE' env $(cat "$tmp/stale") "$client" open
expect 1 'server of that job does not answer' env $(cat "$tmp/stale") "$client" sizes

# a server that lives, but not for this process; libpmix has unloaded what leaks then
not_here=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
expect 3 'cannot be reached, though .* is there: .*, or they differ in settings of PMIx: PMIX_MCA_psec=munge$' \
    env ASAN_OPTIONS=$not_here "$run" -n 1 -x PMIX_MCA_psec=munge "$client" open
expect 125 '^xep_run: cannot start a PMIx server: .* \(perhaps for PMIX_MCA_psec=no-such\)$' \
    env PMIX_MCA_psec=no-such "$run" -n 1 "$client" open
if unshare --net true 2>/dev/null; then
    expect 3 'cannot be reached, though .* is there: this process is in another network' \
        "$run" -n 1 unshare --net sh -c 'ip link set lo up; exec "$0" open' "$client"
fi
anyone=(setpriv --reuid 65534 --regid 65534 --clear-groups)
if "${anyone[@]}" test -x "$client" 2>/dev/null; then
    chmod 755 "$tmp" "$TMPDIR"
    expect 3 'refuses this process: it is of user 65534, the server of user 0 ' \
        "$run" -n 1 "${anyone[@]}" "$client" open
fi

# a server that is stopped: libpmix waits for it for ever, the caller until its deadline
expect 3 'XEP_ERR_TIMEOUT: as rank 0 of xep_run.*has not answered PMIx_Init within 700 ms' "$run" -n 1 sh -c \
    'kill -STOP $PPID; XEP_TEST_TIMEOUT_MS=700 "$0" open; told=$?; kill -CONT $PPID; exit $told' "$client"

# or is stopped later: libpmix would wait for it for ever in PMIx_Commit, also at the end of the process
stopped='XEP_TEST_TIMEOUT_MS=5000 timeout $((60 * ${XEP_TEST_SLOW:-1})) "$0" stop $PPID $1
told=$?; kill -CONT $PPID; echo "status $told"; exit $told'
expect 0 'XEP_ERR_TIMEOUT: exchange 2 over PMIx: .* has not answered PMIx_Commit' \
    "$run" -n 1 sh -c "$stopped" "$client" 1
expect 0 '^status 0$' "$run" -n 1 sh -c "$stopped" "$client" 0

# a launcher, but no libpmix: a file of that name which is none is found first
mkdir "$tmp/lib"
echo nothing >"$tmp/lib/libpmix.so.2"
expect 3 'no PMIx to reach it: .*libpmix.so.2' \
    "$run" -n 1 -x LD_LIBRARY_PATH="$tmp/lib:${LD_LIBRARY_PATH:-}" "$client" open
expect 0 '^ \| .*libpmix.so.2' env LD_LIBRARY_PATH="$tmp/lib:${LD_LIBRARY_PATH:-}" "$client" version
expect 0 '^single 0/1$' env LD_LIBRARY_PATH="$tmp/lib:${LD_LIBRARY_PATH:-}" "$client" open
expect 0 '^OpenPMIx .* \| .*libpmix' "$client" version

# torchrun inside a job: its workers are clones of one rank
expect 3 'torchrun says rank 3 of 4 ranks, PMIx says rank 0 of 2' \
    "$run" -k -n 2 -x TORCHELASTIC_RUN_ID=a -x RANK=3 -x WORLD_SIZE=4 "$client" open
expect 0 '^pmix 1/2$' "$run" -n 2 sh -c 'LOCAL_RANK=$PMIX_RANK RANK=$PMIX_RANK WORLD_SIZE=2 exec "$0" open' "$client"
# clones of a rank by anybody: the first is the rank, the second is told, and the first goes on unharmed
expect 0 'another process uses PMIx as rank 1 of xep_run' "$run" -n 2 sh -c \
    'file=$1.$PMIX_RANK; "$0" hold "$file" & first=$!; until [ -s "$file" ]; do sleep 0.05; done
    "$0" open; told=$?; echo >>"$file"; wait $first && [ $told -eq 3 ]' "$client" "$tmp/held"
# but not by what another user has put in the way: a socket of the name that marks a rank as in use
if [ "$(id -u)" -eq 0 ] && command -v python3 >/dev/null; then
    cat >"$tmp/squat.py" <<'END'
import os, socket, sys, time
os.setuid(65534)
mark = 0xcbf29ce484222325
for byte in sys.argv[1].encode():
    mark = (mark ^ byte) * 0x100000001b3 % 2**64
name = "\0xep.pmix.0.%016x.0" % mark
kept = []
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET:
    kept.append(socket.socket(socket.AF_UNIX, kind))
    kept[-1].bind(name)
    if kind != socket.SOCK_DGRAM:
        kept[-1].listen()
print("squatted", flush=True)
time.sleep(120)
END
    expect 0 '^pmix 0/1$' "$run" -n 1 sh -c 'python3 "$1" "$PMIX_NAMESPACE" >"$2" & squatter=$!
        for _ in $(seq 500); do [ -s "$2" ] && break; sleep 0.1; done
        [ -s "$2" ] && "$0" open; status=$?; kill $squatter; exit $status' "$client" "$tmp/squat.py" "$tmp/squatted"
fi
# one after the other is fine for a job of one; the ranks of others would read what the first program has sent
expect 0 '^pmix 0/1$' "$run" -n 1 sh -c '"$0" open && "$0" open' "$client"
expect 3 'an earlier program of this task has made a group as rank [012] of xep_run' \
    "$run" -k -n 3 sh -c '"$0" rounds 1 100 && "$0" open' "$client"
[ "$(grep -c 'XEP_ERR_BOOT: an earlier program' "$tmp/out")" -eq 3 ] || wrong "not all are told: $(cat "$tmp/out")"
# a strange file in the place of its mark says nothing, and where there can be none, all goes on
expect 0 '^ok$' "$run" -n 2 sh -c 'mkdir "$PMIX_SERVER_TMPDIR/xep.$PMIX_NAMESPACE.${PMIX_SERVER_URI2##*:}.$PMIX_RANK" &&
    "$0" rounds 1 100 && echo ok' "$client"
expect 0 '^ok$' "$run" -n 2 sh -c 'PMIX_SERVER_TMPDIR=/nowhere "$0" rounds 1 100 && echo ok' "$client"

# a rank that ends: the others are told by name
for how in kill status exit; do
    case $how in kill) status=137 ;; status) status=9 ;; exit) status=0 ;; esac
    expect $status 'then XEP_ERR_PEER: rank 1 has died' "$run" -k -n 3 "$client" die 1 $how
    [ "$(grep -c '^dead_rank 1$' "$tmp/out")" -eq 2 ] || wrong "die $how: not both others know: $(cat "$tmp/out")"
done
# one that does not come: the deadline holds, and the exchange cannot be repeated by half of the ranks
expect 0 '^XEP_ERR_TIMEOUT after [0-9.]* s: exchange 1 over PMIx: not all of 3 ranks have come: rank 1 has not$' \
    env XEP_TEST_TIMEOUT_MS=5000 "$run" -k -n 3 "$client" late 1 "$tmp/late"
# one that gives another size
expect 0 '^XEP_ERR_MISMATCH: rank 0 gave 16 bytes to an exchange of 32$' "$run" -n 2 "$client" mismatch
# one of more bytes than a server takes as one value, which would crash it
expect 0 '^ok$' "$run" -n 2 sh -c '"$0" large && echo ok' "$client"

# process numbers are believed of ranks on this host alone. A time namespace has other start times; machines resumed
# from one snapshot have the same names for all, here by a library that gives all namespaces one number
args=(--check-only --tokens 96 --hidden 512 --topk 4 --experts 37)
right='every byte compared, ok'
if unshare --time --boottime 1000 --fork true 2>/dev/null; then
    for map in auto never; do
        XEP_MAP=$map expect 0 "$right" "$run" -n 2 sh -c 'case $PMIX_RANK in 1) exec unshare --time --boottime 1000 \
            --fork "$@" ;; esac; exec "$@"' sh "$builddir/xep_perf" "${args[@]}"
        ! grep -q 'has died' "$tmp/out" || wrong "in another time namespace, XEP_MAP=$map: $(cat "$tmp/out")"
    done
fi
if unshare --pid --ipc --mount --fork --mount-proc true 2>/dev/null; then
    same=$builddir/test/mp/launch/.libs/snapshot_names.so
    for map in auto never; do
        XEP_MAP=$map UCX_TLS=tcp,self ASAN_OPTIONS=$not_here:verify_asan_link_order=0 \
            expect 0 "$right" "$run" -n 2 -x LD_PRELOAD="$same" \
            unshare --pid --ipc --mount --fork --mount-proc "$builddir/xep_perf" "${args[@]}"
        grep -q '2 ranks on 2 nodes' "$tmp/out" || wrong "two hosts of the same names are one: $(cat "$tmp/out")"
    done
fi
