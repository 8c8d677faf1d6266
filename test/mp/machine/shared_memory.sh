#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Where shared memory is small, read-only or denied, as in containers: what works is used, what does not is told.
. "${srcdir:-.}/test/rig/launch.bash"

# inside SETUP COMMAND...: in namespaces of its own, after SETUP; whatever is left in /dev/shm then is told
cat >"$tmp/inside" <<'END'
#!/bin/bash
setup=$1
shift
[ "$(id -u)" -eq 0 ] && user= || user='--user --map-root-user'
exec unshare $user --mount --ipc --pid --fork --mount-proc bash -c '
    eval "$1" || exit 99
    shift
    "$@"
    status=$?
    [ -z "$(ls /dev/shm)" ] || echo "left in /dev/shm: $(ls /dev/shm)"
    segments=$(grep -c "^ *[0-9]" /proc/sysvipc/shm)
    [ "$segments" -eq 0 ] || echo "left in memory: $segments System V segments"
    exit $status' inside "$setup" "$@"
END
chmod +x "$tmp/inside"
inside=$tmp/inside
shm='mount -t tmpfs -o size'
no_sysv='echo 0 >/proc/sys/kernel/shmall'
"$inside" "$shm=1m none /dev/shm && $no_sysv" true 2>/dev/null ||
    skip 'no namespaces of mounts and IPC can be made here'
unset UCX_TLS UCX_ALLOC_PRIO UCX_POSIX_DIR XEP_MAP

# says PATTERN: the last command did
says() {
    cat "$tmp/out" "$tmp/err" | grep -q -e "$1" || wrong "it did not say \"$1\""
}

# empty: and left nothing
empty() {
    grep -q '^left in' "$tmp/out" && wrong 'it left something'
}

# 16 ranks want 70 MB for their messages alone: UCX gave up, or died
whole '64 MB as in Docker' 16 1 16 "$inside" "$shm=64m none /dev/shm" ./xep_run -n 16 -x XEP_LOG=info
says 'POSIX shared memory is not used: System V segments: ok; /dev/shm: [0-9.]* [A-Za-z]* free (8388608 for each rank)'
empty
whole 'read-only /dev/shm' 3 1 3 "$inside" "$shm=1g,ro none /dev/shm" ./xep_run -n 3 -x XEP_LOG=info
says 'POSIX shared memory is not used: System V segments: ok; /dev/shm: Read-only file system'
whole 'System V denied' 3 1 3 "$inside" "$shm=1g none /dev/shm && $no_sysv" ./xep_run -n 3 -x XEP_LOG=info
says 'System V shared memory is not used: System V segments: No space left on device; /dev/shm: [0-9.]* [A-Za-z]* free'
empty
whole 'neither' 3 3 1 "$inside" "$shm=1g,ro none /dev/shm && $no_sysv" ./xep_run -n 3
says 'warning: no shared memory, all bytes go through sockets: .*No space left'
says '/dev/shm: Read-only file system'
XEP_MAP=never whole 'neither, and none wanted' 3 3 1 "$inside" "$shm=1m none /dev/shm && $no_sysv" ./xep_run -n 3
whole 'alone' 1 1 1 "$inside" "$shm=1g,ro none /dev/shm && $no_sysv" ./xep_run -n 1

# from some version on UCX takes nothing of what little there is, and dies
times=6
[ -z "${XEP_TEST_BRIEF:-}" ] || times=3
[ "${XEP_TEST_BRIEF:-}" != quick ] || times=1
for i in $(seq $times); do whole 'little /dev/shm' 2 1 2 "$inside" "$shm=20m none /dev/shm" ./xep_run -n 2; done
empty

# small, and not zero: UCX gave up, or said of each buffer what it could not have
quiet() {
    grep 'UCX  *[EW]' "$tmp/out" "$tmp/err" && wrong 'UCX complains'
    empty
}
small_sysv() {
    whole "System V, small: $1" 2 1 2 "$inside" "$shm=1g none /dev/shm && echo $2 >/proc/sys/kernel/$1" \
        ./xep_run -n 2 -x XEP_LOG=info
    says 'System V shared memory is not used: .*; rank 0 has room for [01] of 2 ranks'
    quiet
}
small_sysv shmall 500
small_sysv shmmni 9
small_sysv shmmax 65536
whole 'few files in /dev/shm' 3 1 3 "$inside" "$shm=1g,nr_inodes=8 none /dev/shm" ./xep_run -n 3 -x XEP_LOG=info
says 'POSIX shared memory is not used: .*; rank [0-2] has room for [01] of 3 ranks'
quiet
# one rank alone cannot have System V segments: others mapped its memory, and it did not map theirs
second() {
    printf '[ $PMIX_RANK -eq 1 ] || exec "$@"\nexec %s "$@"\n' "$1" >"$tmp/second"
}
if ./test/mp/machine/no_sysv true; then
    second ./test/mp/machine/no_sysv
    whole 'one rank without System V' 3 1 3 "$inside" "$shm=1g none /dev/shm" \
        ./xep_run -n 3 -x XEP_LOG=info bash "$tmp/second"
    says 'rank 0: .*System V shared memory is not used: System V segments: ok;.*; rank 1 has room for 0 of 3 ranks'
    quiet
fi

# user namespaces: descriptors of others are hidden there
if unshare --user --map-root-user true 2>/dev/null; then
    for map in auto never; do
        [ $map = auto ] && counts='1 3' || counts='3 1'
        XEP_MAP=$map whole "user namespaces, XEP_MAP=$map" 3 $counts "$inside" "$shm=1g none /dev/shm" \
            ./xep_run -n 3 -x XEP_LOG=info unshare --user --map-root-user
        says 'POSIX shared memory is not used: .*; ranks are in different user namespaces'
        quiet
    done
    second 'unshare --user --map-root-user'
    whole 'one rank in a user namespace' 3 1 3 "$inside" "$shm=1g none /dev/shm" ./xep_run -n 3 bash "$tmp/second"
    quiet
fi
# other users, and one who looks like root in a namespace of its own
other='setpriv --reuid 65534 --clear-groups'
if [ "$(id -u)" -eq 0 ] && $other test -x ./test/mp/machine/two_users; then
    for as in '' ' unshare --user --map-root-user'; do
        $other$as true 2>/dev/null || continue
        passes "two users$as" "$inside" "$shm=1g none /dev/shm" ./test/mp/machine/two_users $other$as
        says '^rank 1: 2 nodes'
        says 'no shared memory, all bytes go through sockets: rank 0 runs as another user'
        quiet
    done
    UCX_TLS=sysv,tcp,self refuses 'two users, System V all the same' \
        'bytes of rank 0 cannot be mapped: Permission denied (that rank runs as another user)' \
        "$inside" "$shm=1g none /dev/shm" ./test/mp/machine/two_users $other
fi

# killed, all at once, with nobody left to tidy up: the names of segments were gone before
run 'all ranks killed' "$inside" "$shm=1g none /dev/shm && $no_sysv" ./xep_run -k -n 3 -x XEP_LOG=info \
    ./test/mp/failures/death_in_phase all
[ $status -eq 137 ] || wrong 'they were not killed'
says 'System V shared memory is not used'
empty
run 'all ranks killed, with System V' "$inside" "$shm=1g none /dev/shm" \
    ./xep_run -k -n 3 ./test/mp/failures/death_in_phase all
[ $status -eq 137 ] || wrong 'they were not killed'
empty

# killed while UCX makes memory, which has a name then: whoever starts next removes that, and nothing that is in use
cat >"$tmp/next" <<'END'
#!/bin/bash
./xep_run -k -n 2 ./test/mp/machine/killed_in_shm_open
echo "left by those that were killed: $(find /dev/shm -name 'ucx_shm_posix_*' | wc -l)"
exec 9<>/dev/shm/ucx_shm_posix_in_use
echo mine >/dev/shm/ucx_shm_mine
./xep_run -n 2 -x XEP_LOG=info .libs/xep_perf --check-only --tokens 96 --hidden 512 --topk 4 --experts 37 || exit
echo "there now:" $(ls /dev/shm)
rm /dev/shm/ucx_shm_posix_in_use /dev/shm/ucx_shm_mine
END
chmod +x "$tmp/next"
run 'killed while memory is made' "$inside" "$shm=1g none /dev/shm" "$tmp/next"
[ $status -eq 0 ] || wrong 'the next ranks failed'
says 'left by those that were killed: [12]$' # the second one may have found the file of the first
says 'removed ucx_shm_posix_[0-9a-f]*, [0-9]* bytes: a process was killed while UCX made it'
says '^there now: ucx_shm_mine ucx_shm_posix_in_use$'
empty

# a buffer that is larger than /dev/shm where that is all there is: told before a page is written
refuses 'too large a buffer' \
    'not enough shared memory for a buffer of [0-9.]* MiB (System V .*No space left.*; /dev/shm: .* free)' \
    "$inside" "$shm=96m none /dev/shm && $no_sysv" \
    ./xep_run -n 2 .libs/xep_perf --check-only --tokens 4096 --hidden 7168
empty

# Heaps of 117 MB that fit one by one and not together: both ranks say so, before one of them has any. xep_perf would
# not do here: it aborts the group at an error, and the other rank may hear of that first.
large='.libs/xep_perf --check-only --tokens 64 --hidden 7168 --topk 4 --experts 8 --slots 31'
both() {
    local pattern=$2
    name=$1
    shift 2
    refuses "$name" "not enough $pattern" "$inside" "$@" ./xep_run -k -n 2 ./test/mp/machine/no_room
    [ $status -eq 3 ] || wrong 'the group did not go on'
    for rank in 0 1; do
        cat "$tmp/out" "$tmp/err" | grep -q "rank $rank.*not enough $pattern" || wrong "rank $rank does not say so"
    done
    empty
}
together='for 2 ranks of one host, from rank 0 on: each needs [0-9.]* MiB, all together [0-9.]* MiB'
remedy='less is needed with fewer tokens, slots or recv_rows, or rows in pieces (XEP_BUFFER_PIECES)'
both 'POSIX, not together' \
    "shared memory $together (System V .*, room for 0; /dev/shm: [0-9.]* [A-Za-z]* free, room for 1).*$remedy" \
    "$shm=180m none /dev/shm && $no_sysv"
both 'System V, not together' \
    "shared memory $together (System V .*, room for 1; /dev/shm: [0-9.]* [A-Za-z]* free, room for 0).*$remedy" \
    "$shm=20m none /dev/shm && echo 40000 >/proc/sys/kernel/shmall"
# addresses, for the programs themselves and one heap and a half: UCX died where it could not attach. All say so before
# one of them has a heap; where each looks at its own alone, when it maps another's.
few='ulimit -v 425000'
if "$inside" "$few" ./xep_run -n 2 .libs/xep_perf --check-only --tokens 1 --hidden 64 >/dev/null 2>&1; then
    both 'addresses, not together' "address space: this rank maps the heaps of 2 ranks of its host, [0-9]* bytes" \
        "$shm=1g none /dev/shm && $few"
    for kind in true "$no_sysv"; do
        XEP_ROOM=rank refuses 'addresses, when it maps' \
            'failed: [0-9]* bytes of rank [01] cannot be mapped: no address space (ulimit -v, vm.max_map_count)' \
            "$inside" "$shm=1g none /dev/shm && $kind && $few" ./xep_run -n 2 $large
    done
else
    echo '== addresses: these programs take more (a sanitizer)'
fi
# what a control group says; of the real one below, whoever goes over its limit is killed
group=/sys/fs/cgroup/memory
small="$shm=1g none /dev/shm && mount -t tmpfs none /sys/fs/cgroup && mkdir $group"
small="$small && echo 0 >$group/memory.usage_in_bytes && echo 200000000 >$group/memory.limit_in_bytes"
both 'memory, not together' "memory $together (190.73 MiB are free of the control group); $remedy" "$small"
XEP_ROOM=rank passes 'memory, each by itself' "$inside" "$small" ./xep_run -n 2 $large
# where nobody has asked for so many rows, fewer are enough: four heaps of 59 and of 74 MB do not fit, of 26 and of 44
# they do
fewer() {
    local setup=$2
    name=$1
    passes "$name" "$inside" "$setup" ./xep_run -n 4 ./test/mp/machine/room_in_pieces
    for mode in normal ll; do
        says "no memory for the rows of any routing: this buffer of mode $mode has room for [0-9]* rows a rank, and"
    done
    [ "$(cat "$tmp/out" "$tmp/err" | grep -c 'no memory for the rows')" -eq 2 ] || wrong 'it was not said once'
    empty
    refuses "$name, all of it" 'not enough .*memory for 4 ranks' "$inside" "$setup" \
        ./xep_run -k -n 4 ./test/mp/machine/room_in_pieces all
    [ $status -eq 3 ] || wrong 'the group did not go on'
    empty
}
fewer 'POSIX, an even load' "$shm=200m none /dev/shm && $no_sysv"
fewer 'System V, an even load' "$shm=20m none /dev/shm && echo 52000 >/proc/sys/kernel/shmall"
# one heap of each kind
passes 'together by both kinds' "$inside" "$shm=180m none /dev/shm && echo 40000 >/proc/sys/kernel/shmall" \
    ./xep_run -n 2 $large

# A real control group: room for the programs themselves, and for one heap and a half. What programs need is more under
# a sanitizer, with another UCX, or where pages of files count that nobody had read before: so the room grows until one
# heap fits, and then by 40 MB.
control=/sys/fs/cgroup/memory/xep.$$
joins="$shm=1g none /dev/shm && echo \$\$ >$control/cgroup.procs"
limit() {
    echo $((programs + $1 * 1000000)) >"$control/memory.limit_in_bytes"
}
if mkdir "$control" 2>/dev/null &&
    "$inside" "$joins" ./xep_run -n 2 .libs/xep_perf --check-only --tokens 1 --hidden 64 >/dev/null 2>&1 &&
    programs=$(cat "$control/memory.max_usage_in_bytes") && limit 130; then
    for more in 130 160 190 220 250 280; do
        limit "$more"
        "$inside" "$joins" ./xep_run -k -n 2 ./test/mp/machine/no_room >"$tmp/out" 2>&1
        grep -q 'not enough memory for a buffer' "$tmp/out" || break
    done
    limit $((more + 40))
    both 'a control group, not together' "memory $together ([0-9.]* MiB are free of the control group)" "$joins"
else
    echo '== a control group, not together: none can be made here'
fi
[ ! -d "$control" ] || rmdir "$control"

exit $failed
