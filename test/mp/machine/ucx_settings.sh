#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# What xep sets of UCX 1.16 and newer, as UCX itself tells: messages over TCP are not copied from 8 KB on, unless RDMA
# is opened as well, whose estimate is left alone. A folder for RDMA devices without one in it, as virtual machines have
# it, is none; and a device is none where UCX_TLS or UCX_NET_DEVICES leave it out. Among ranks of one machine a device
# is opened that UCX_TLS names.
. "${srcdir:-.}/test/rig/run.bash"
[ -n "${XEP_TEST_UCX_LIB:-}" ] || { echo 'skipped: XEP_TEST_UCX_LIB is not set'; exit 77; }
unshare -m true 2>/dev/null || { echo 'skipped: this user may make no mount namespace'; exit 77; }

# in a mount namespace: among DEVICE COMMAND..., where /sys has this RDMA device alone, with port 1, and port 2 that is
# down; "": the folder without any
among=$tmp/among
class=$tmp/class
mkdir "$class"
cat >"$among" <<END
#!/bin/bash
device=\$1
shift
mount -t tmpfs none $class && mkdir $class/net $class/infiniband && mount --bind /sys/class/net $class/net || exit 99
if [ -n "\$device" ]; then
    ports=$class/infiniband/\$device/ports
    mkdir -p "\$ports/1" "\$ports/2" && echo 4: ACTIVE >"\$ports/1/state" && echo 1: DOWN >"\$ports/2/state" || exit 99
fi
mount --rbind $class /sys/class && exec "\$@"
END
chmod +x "$among"

# from_8k DEVICE VAR=VALUE...: whether UCX sends messages as they lie from 8 KB on
from_8k() {
    local device=$1 second=LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    shift
    is 0 '^check: every byte compared, ok$' unshare -m "$among" "$device" env "$second" XEP_MAP=never \
        UCX_WARN_UNUSED_ENV_VARS=n UCX_PROTO_INFO=y "$@" \
        "$run" -n 2 "$builddir/xep_perf" --tokens 16 --hidden 2048 --check-only || { cat "$tmp/out"; wrong "$*"; }
    grep -qa '| *8K\.\..*zero-copy.*tcp/' "$tmp/out"
}

from_8k '' UCX_TLS=tcp,self || wrong 'no device, and messages are copied'
from_8k mlx5_0 UCX_TLS=tcp,self || wrong 'a device that UCX_TLS leaves out, and messages are copied'
! from_8k mlx5_0 UCX_TLS=rc,tcp,self XEP_LOG=info || wrong 'one host, where UCX_TLS names RDMA, and it is not opened'
grep -q 'UCX_NET_DEVICES=lo,mlx5_0:1: all ranks are on this machine' "$tmp/out" || wrong "$(cat "$tmp/out")"
# nor is it left out where ranks do not share memory, as in containers
unset UCX_TLS UCX_NET_DEVICES XEP_MAP
perf="$builddir/xep_perf --tokens 16 --hidden 64 --check-only"
expect 0 'UCX_NET_DEVICES=lo: all ranks' unshare -m "$among" mlx5_0 env XEP_LOG=info "$run" -n 2 $perf
expect 0 'UCX_NET_DEVICES=lo,mlx5_0:1: all ranks' \
    unshare -m "$among" mlx5_0 env XEP_LOG=info "$run" -n 2 unshare -i $perf
from_8k mlx5_0 UCX_TLS=rc,tcp,self UCX_NET_DEVICES=lo || wrong 'a device that is not named, and messages are copied'
! from_8k mlx5_0 UCX_TLS=rc,tcp,self UCX_NET_DEVICES=all || wrong 'RDMA is opened, and its estimate is overridden'
! from_8k mlx5_0 UCX_TLS=rc,tcp,self UCX_NET_DEVICES=mlx5_0:1,lo || wrong 'likewise, by its name'
exit $failed
