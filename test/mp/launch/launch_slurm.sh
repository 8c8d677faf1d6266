# SPDX-License-Identifier: BSD-3-Clause
# limit: 600, again: 2
# srun --mpi=pmix on a private Slurm of two virtual nodes, which this test starts and ends.
. "$srcdir/test/rig/launch.bash" || exit 99

PATH=$PATH:/usr/sbin:/sbin
for tool in slurmctld slurmd srun scontrol; do
    command -v $tool >/dev/null || skip "there is no $tool (Debian: slurm-wlm)"
done
[ "$(id -u)" -eq 0 ] || skip 'daemons of Slurm that run any user'\''s job are started by root'

# count free ports in a row
free_ports() {
    local count=$1 base taken
    taken=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '{ print $2 }' |
        sed -n 's/.*:\([0-9A-F]\{4\}\)$/\1/p' | sort -u)
    for ((base = 12000 + $$ % 5000 * 4; base < 32768; base += 4)); do # below those of outgoing connections
        local i clash=0
        for ((i = 0; i < count; i++)); do
            case $'\n'$taken$'\n' in *$'\n'"$(printf '%04X' $((base + i)))"$'\n'*) clash=1 ;; esac
        done
        [ $clash -eq 1 ] || { echo $base; return; }
    done
    return 1
}

port=$(free_ports 3) || skip 'no free ports'
host=$(hostname)
export SLURM_CONF=$tmp/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=xeptest
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
StateSaveLocation=$tmp/state
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmctldLogFile=$tmp/slurmctld.log
SlurmdSpoolDir=$tmp/spool.%n
SlurmdPidFile=$tmp/slurmd.%n.pid
SlurmdLogFile=$tmp/slurmd.%n.log
TmpFS=$tmp/tmp.%n
ReturnToService=2
KillWait=5
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1))-$((port + 2)) \
    CPUs=16 CoresPerSocket=16 RealMemory=1000
PartitionName=main Nodes=n[1-2] Default=YES State=UP MaxTime=INFINITE
END
srun --mpi=list 2>&1 | grep -q pmix || skip 'this Slurm has no mpi/pmix (Debian: slurm-wlm-basic-plugins)'
mkdir -p "$tmp/state" "$tmp/spool.n1" "$tmp/spool.n2" "$tmp/tmp.n1" "$tmp/tmp.n2"

# ends the daemons this test started, known by their pid files
cleanup() {
    local file pid i
    timeout 10 scancel --partition=main 2>/dev/null
    for file in "$tmp"/slurmd.*.pid "$tmp/slurmctld.pid"; do
        [ -s "$file" ] && kill "$(cat "$file")" 2>/dev/null
    done
    for file in "$tmp"/slurmd.*.pid "$tmp/slurmctld.pid"; do
        pid=$(cat "$file" 2>/dev/null) || continue
        for ((i = 0; i < 50; i++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pid" 2>/dev/null
    done
}

slurmctld -f "$SLURM_CONF" >"$tmp/start" 2>&1 && slurmd -f "$SLURM_CONF" -N n1 >>"$tmp/start" 2>&1 &&
    slurmd -f "$SLURM_CONF" -N n2 >>"$tmp/start" 2>&1 ||
    { cat "$tmp/start" "$tmp"/*.log; skip 'the daemons of Slurm do not start here'; }
for ((i = 0; i < 300; i++)); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
    sleep 0.2
done
[ "$(sinfo -h -t idle -o %D)" = 2 ] ||
    { sinfo; tail "$tmp"/*.log; echo 'the nodes of Slurm do not become idle'; exit 1; }

# both virtual nodes are this machine: one node to xep, whatever Slurm says
step=(srun --mpi=pmix --overcommit --export=ALL)
whole '1 node of 4 ranks' 4 1 4 "${step[@]}" -N 1 -n 4
whole '2 nodes of 2 ranks' 4 1 4 "${step[@]}" -N 2 -n 4 --ntasks-per-node=2
whole '2 nodes, ranks dealt in turn' 4 1 4 "${step[@]}" -N 2 -n 4 -m cyclic
[ ! -x test/mp/groups/meet_by_name ] ||
    passes 'srun, a name, which it does not keep' "${step[@]}" -N 1 -n 1 test/mp/groups/meet_by_name 1 refused
programs 'srun' "${step[@]}" -N 2 -n 4 --ntasks-per-node=2
refuses 'without --mpi=pmix' '--mpi=pmix' srun --overcommit -N 1 -n 2 \
    ./xep_perf --check-only --tokens 8 --hidden 16 --experts 4 --topk 2
exit $failed
