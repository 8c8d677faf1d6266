#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# What a machine may lack: PMIx, room in /dev/shm, memory, the program. Each is said with what to do, and that helps.
. "${srcdir:-.}/test/rig/run.bash"
perf=$builddir/xep_perf
small="--tokens 16 --hidden 64 --check-only"

# lacking CHANGE COMMAND...: in a mount namespace, after a change to it
lacking=$tmp/lacking
cat >"$lacking" <<'END'
#!/bin/bash
change=$1
shift
exec unshare -m bash -c "$change"' && exec "$@"' bash "$@"
END
chmod +x "$lacking"

expect 127 '^xep_run: cannot run no-such: it is in no folder of PATH \(give its path; .*\./no-such\)$' \
    "$run" -n 2 no-such
expect 1 'not enough memory for 100000000 tokens a rank: .*try fewer --tokens' "$run" -n 2 "$perf" --tokens 100000000

unshare -m true 2>/dev/null || { echo 'skipped: this user may make no mount namespace'; exit 77; }
pmix=$(readlink -f "$("$builddir/xep_info" | sed -n 's|^pmix .*, /|/|p')")
no_pmix="mount --bind /dev/null $pmix"
hint='apt-get install libpmix2'
expect 125 "^xep_run: PMIx cannot be loaded: .*libpmix.*$hint" "$lacking" "$no_pmix" "$run" -n 2 true
expect 1 "there is no PMIx to reach it: .*libpmix.*$hint" \
    "$lacking" "$no_pmix" env PMIX_NAMESPACE=x PMIX_RANK=0 "$perf" $small
expect 0 'every byte compared, ok' "$lacking" "$no_pmix" "$perf" $small

# where UCX may choose it does without; where it may not, both are told
no_room='mount -t tmpfs -o size=1m none /dev/shm'
expect 0 'every byte compared, ok' "$lacking" "$no_room" "$run" -n 2 "$perf" $small
expect 1 'ucp_worker_create: .* \(/dev/shm has [0-9]+ KiB left: give it more.*UCX_TLS=\^posix\)' \
    "$lacking" "$no_room" env UCX_TLS=posix,self "$run" -n 2 "$perf" $small
expect 0 'every byte compared, ok' "$lacking" "$no_room" env UCX_TLS=^posix "$run" -n 2 "$perf" $small
expect 1 'ucp_worker_create: .* \(there is no /dev/shm to write to: mount one.*UCX_TLS=\^posix\)' \
    "$lacking" 'mount -t tmpfs -o ro none /dev/shm' env UCX_TLS=posix,self "$run" -n 2 "$perf" $small
some_room='mount -t tmpfs -o size=30m none /dev/shm'
expect 1 'cannot be mapped, though it is on this node \(/dev/shm has [0-9]+ KiB left' \
    "$lacking" "$some_room" env UCX_TLS=posix,self "$run" -n 2 "$perf" --tokens 4096 --check-only
