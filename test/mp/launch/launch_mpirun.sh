# SPDX-License-Identifier: BSD-3-Clause
# limit: 600, again: 2
# Open MPI 4's mpirun as the launcher: one daemon, and two.
. "$srcdir/test/rig/launch.bash" || exit 99

command -v mpirun >/dev/null || skip 'there is no mpirun (Debian: openmpi-bin)'
mpirun --version 2>/dev/null | grep -q 'Open MPI) 4\.' ||
    skip "mpirun is not of Open MPI 4: $(mpirun --version 2>&1 | sed 1q)"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

whole '4 ranks' 4 1 4 mpirun --oversubscribe --bind-to none -n 4
whole 'bound to cores' 2 1 2 mpirun --oversubscribe -n 2
programs 'mpirun' mpirun --oversubscribe --bind-to none -n 4
meets 'mpirun' 4 mpirun --oversubscribe --bind-to none -n 4
goes_on 'mpirun' mpirun --oversubscribe --bind-to none --enable-recovery

# "hosts" that are this one: two daemons, a fence across them. Two daemons of one machine at times collide in
# hwloc's shared topology, and in the folder that both make for the job: each host has a TMPDIR.
cat >"$tmp/remote" <<END
#!/bin/bash
while [[ "\$1" == -* ]]; do shift; done
mkdir -p "$tmp/\$1" && export TMPDIR=$tmp/\$1
shift
exec /bin/sh -c "\$*"
END
chmod +x "$tmp/remote"
whole '2 daemons' 4 1 4 mpirun --mca plm rsh --mca plm_rsh_agent "$tmp/remote" --mca rtc ^hwloc --bind-to none \
    -x LD_LIBRARY_PATH -x XEP_PLUGIN_PATH --host fakea:2,fakeb:2 -n 4
exit $failed
