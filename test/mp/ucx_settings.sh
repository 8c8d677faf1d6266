#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# What xep sets of UCX 1.16 and newer, as UCX itself tells: messages over TCP are not copied from 8 KB on, unless RDMA
# is opened as well, whose estimate is left alone. A folder for RDMA devices without one in it, as virtual machines have
# it, is none; and a device is none where UCX_TLS or UCX_NET_DEVICES leave it out, or no rank is on another host.
. "${srcdir:-.}/test/mp/run.bash"
[ -n "${XEP_TEST_UCX_LIB:-}" ] || { echo 'skipped: XEP_TEST_UCX_LIB is not set'; exit 77; }
unshare -m true 2>/dev/null || { echo 'skipped: this user may make no mount namespace'; exit 77; }

# in a mount namespace: among DEVICE COMMAND..., where /sys has this RDMA device alone; "": the folder without any
among=$tmp/among
class=$tmp/class
mkdir "$class"
cat >"$among" <<END
#!/bin/bash
device=\$1
shift
mount -t tmpfs none $class && mkdir $class/net $class/infiniband && mount --bind /sys/class/net $class/net || exit 99
[ -z "\$device" ] || mkdir "$class/infiniband/\$device"
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
from_8k mlx5_0 UCX_TLS=rc,tcp,self || wrong 'one host, where UCX opens lo alone, and messages are copied'
from_8k mlx5_0 UCX_TLS=rc,tcp,self UCX_NET_DEVICES=lo || wrong 'a device that is not named, and messages are copied'
! from_8k mlx5_0 UCX_TLS=rc,tcp,self UCX_NET_DEVICES=all || wrong 'RDMA is opened, and its estimate is overridden'
! from_8k mlx5_0 UCX_TLS=rc,tcp,self UCX_NET_DEVICES=mlx5_0:1,lo || wrong 'likewise, by its name'
exit $failed
