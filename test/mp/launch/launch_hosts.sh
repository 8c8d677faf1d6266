# SPDX-License-Identifier: BSD-3-Clause
# limit: 600, again: 2
# prterun over two "hosts" of this machine, with memory, processes and names of their own: shared memory inside a host,
# UCX's network between them.
. "$srcdir/test/rig/launch.bash" || exit 99
. "$srcdir/test/rig/prterun.bash" || exit 99

unshare --ipc --pid --uts --fork --mount --mount-proc true 2>/dev/null || skip 'no new namespaces here (root is needed)'
# The daemons of both hosts have the same process numbers, by which they name their folders: each host has a TMPDIR.
cat >"$tmp/remote" <<END
#!/bin/bash
tmp=$tmp
END
cat >>"$tmp/remote" <<'END'
while [[ "$1" == -* ]]; do
    case "$1" in -o | -p | -l) shift 2 ;; *) shift ;; esac
done
host=$1
shift
export TMPDIR=$tmp/$host
mkdir -p "$TMPDIR"
exec unshare --ipc --pid --uts --fork --mount --mount-proc \
    /bin/sh -c "hostname $host; mount -t tmpfs tmpfs /dev/shm; $*"
END
chmod +x "$tmp/remote"
hosts=("${prterun[@]}" --prtemca plm ssh --prtemca plm_ssh_agent "$tmp/remote" --map-by :OVERSUBSCRIBE --bind-to none
    -x LD_LIBRARY_PATH -x XEP_PLUGIN_PATH -x XEP_TIMEOUT)

whole '2 hosts of 2 ranks' 4 2 2 "${hosts[@]}" --host n1:2,n2:2 -n 4
whole '2 hosts of 1 rank' 2 2 1 "${hosts[@]}" --host n1:1,n2:1 -n 2
whole '3 hosts, 1 and 2 and 1 ranks' 4 3 1 "${hosts[@]}" --host n1:1,n2:2,n3:1 -n 4
programs '2 hosts' "${hosts[@]}" --host n1:2,n2:2 -n 4
exit $failed
