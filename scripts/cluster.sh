#!/usr/bin/env bash
# Run four hosts on one Linux machine, for tests of jobs on several hosts. It needs root, and leaves nothing on the machine.
#
#   scripts/cluster.sh                   start the hosts, run the tests with marker "cluster" on Open MPI and MPICH, stop
#   scripts/cluster.sh --slurm           with Slurm on the hosts, and its tests; the option comes first, before "up", too
#   scripts/cluster.sh --pbs FOLDER      with OpenPBS, which is installed in FOLDER, and its tests; also after --slurm
#   scripts/cluster.sh --mpi mpich -k X  with one MPI; other words are options of pytest
#   scripts/cluster.sh bench             measure redistributions and predictions, and write the tables of docs/howto/cluster.md
#   scripts/cluster.sh up [RATE]         start the hosts node1 … node4; RATE of each network port (100mbit)
#   scripts/cluster.sh on N COMMAND…     run a command on host N, in this folder
#   scripts/cluster.sh link N up|down    connect or disconnect host N
#   scripts/cluster.sh down              stop the hosts and everything on them
#   scripts/cluster.sh check             say why hosts cannot be started here, in one line; else nothing
#
# A host is a process tree with its own name, network, processes, /tmp, /dev/shm, and changes to files (an overlay on
# tmpfs). All hosts share the folder of this repository and /srv/shared. A bridge connects them, and each runs sshd with
# one key for all. Slurm, and the libraries and database of OpenPBS, come from the packages of the distribution, which are
# installed into the hosts only.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SELF=$ROOT/scripts/cluster.sh
STATE=/run/spmdsim-cluster # process numbers of the hosts; keys
LAYERS=/mnt/spmdsim-cluster
HOSTS=4
export SLURM="${SLURM:-}" # the packages of Slurm, if wanted
export PBS="${PBS:-}"     # the folder of OpenPBS, if wanted
PBS_PACKAGES="postgresql postgresql-contrib libpq5 libical3 libcjson1 libhwloc15 libedit2 libtcl8.6 libpython3.11"

fail() {
    echo "spmdsim: error: $*" >&2
    exit 2
}

require_rights() {
    [ "$(id -u)" = 0 ] || fail "hosts are namespaces of Linux, which need root: run it as root, or in a virtual machine"
    unshare --mount --uts --ipc --net --pid --fork ip link add eth0 type veth 2>/dev/null ||
        fail "this system does not allow namespaces or virtual network cards (unshare, ip link add type veth)"
}

require_path() { # mpi: Open MPI writes its path into the line for ssh without quotes
    case $1:$ROOT in
        openmpi:*" "*) fail "Open MPI starts no ranks on other hosts from a path with a space: $ROOT" ;;
    esac
}

start_hosts() { # rate
    require_rights
    [ ! -e "$STATE/switch" ] || fail "the hosts run already; scripts/cluster.sh down stops them"
    rm -rf "$STATE" && mkdir -p "$STATE"
    setsid unshare --mount bash "$SELF" _layers "$1" >"$STATE/log" 2>&1 </dev/null &
    disown # so that the shell does not report its end
    local number
    for number in $(seq $HOSTS); do
        for _ in $(seq 6000); do
            [ ! -e "$STATE/ready$number" ] || continue 2
            kill -0 $! 2>/dev/null || break
            sleep 0.1
        done
        cat "$STATE/log" >&2
        stop_hosts
        fail "host $number did not start"
    done
    [ -z "$SLURM" ] || [ -e "$STATE/slurm" ] ||
        echo "spmdsim: no Slurm on the hosts, and no tests of it: apt-get does not install $SLURM" >&2
    [ -z "$PBS" ] || [ -e "$STATE/pbs" ] ||
        echo "spmdsim: no OpenPBS on the hosts, and no tests of it: apt-get does not install $PBS_PACKAGES" >&2
}

stop_hosts() { # ends the switch, with which the first processes of all hosts end
    local switch
    if switch=$(cat "$STATE/switch" 2>/dev/null); then
        kill -KILL -- "-$switch" 2>/dev/null || true
        while kill -0 "$switch" 2>/dev/null; do sleep 0.05; done
    fi
    rm -rf "$STATE"
}

run_on() { # number, command…
    local process
    process=$(cat "$STATE/host$1" 2>/dev/null) || fail "host $1 does not run: scripts/cluster.sh up"
    shift
    exec nsenter --target "$process" --mount --uts --ipc --net --pid --root --wd env -i HOME=/root USER=root LANG=C.UTF-8 \
        TERM="${TERM:-dumb}" PATH="${CLUSTER_PATH:-}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        bash -c 'cd "$1" && shift && exec "$@"' host "$ROOT" "$@"
}

# -- inside of the namespaces ----------------------------------------------------------------------------------------

build_layers() { # rate: in a mount namespace, a tmpfs for all changes
    mount --make-rprivate /
    mkdir -p $LAYERS
    mount -t tmpfs -o size=8G layers $LAYERS
    mkdir $LAYERS/{packages,work,system,shared,keys}
    ssh-keygen -q -t ed25519 -N "" -f $LAYERS/keys/id
    [ -x /usr/sbin/sshd ] || install_packages openssh-server ||
        fail "there is no sshd, and apt-get does not install openssh-server"
    [ -z "$SLURM" ] || { install_packages $SLURM && configure_slurm && touch "$STATE/slurm"; } || true
    [ -z "$PBS" ] || { install_packages $PBS_PACKAGES && touch "$STATE/pbs"; } || true
    exec unshare --net bash "$SELF" _switch "$1"
}

install_packages() { # packages…: into the layer of all hosts
    local code=0
    mount -t overlay overlay -o lowerdir=/,upperdir=$LAYERS/packages,workdir=$LAYERS/work $LAYERS/system
    mount -t proc proc $LAYERS/system/proc
    mount --rbind /dev $LAYERS/system/dev
    printf '#!/bin/sh\nexit 101\n' >$LAYERS/system/usr/sbin/policy-rc.d # start no services
    chmod +x $LAYERS/system/usr/sbin/policy-rc.d
    DEBIAN_FRONTEND=noninteractive chroot $LAYERS/system sh -c \
        'apt-get update -q && apt-get install -qy --no-install-recommends "$@"' install "$@" || code=1
    umount -R $LAYERS/system
    return $code
}

configure_slurm() { # four tasks per host, on any number of cores; requeued jobs start after seconds instead of two minutes
    cat >$LAYERS/packages/etc/slurm/slurm.conf <<END
ClusterName=hosts
SlurmctldHost=node1
NodeName=node[1-$HOSTS] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=node[1-$HOSTS] Default=YES MaxTime=60 State=UP
SlurmUser=root
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
AuthInfo=cred_expire=20
KillWait=5
ReturnToService=2
SlurmdSpoolDir=/var/spool/slurmd
StateSaveLocation=/var/spool/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
END
    # Hosts have no control groups; without the line slurmd looks for them, and ends.
    echo "CgroupPlugin=cgroup/v1" >$LAYERS/packages/etc/slurm/cgroup.conf
}

run_switch() { # in a network namespace of its own: the bridge, and a card of each host
    local rate=$1 number parent process
    echo $$ >"$STATE/switch"
    ip link set lo up
    ip link add bridge0 type bridge
    ip link set bridge0 up
    for number in $(seq $HOSTS); do
        unshare --mount --uts --ipc --net --pid --fork --kill-child bash "$SELF" _host "$number" &
        parent=$!
        until process=$(pgrep --parent $parent); do sleep 0.02; done
        until [ "$(readlink /proc/"$process"/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
        echo "$process" >"$STATE/host$number"
        ip link add port"$number" type veth peer name eth0 netns "$process"
        ip link set port"$number" master bridge0 up
        limit_rate port"$number" "$rate"
        nsenter --target "$process" --net bash "$SELF" _limit eth0 "$rate"
    done
    wait
}

limit_rate() { # card, rate
    [ "$2" = off ] || tc qdisc replace dev "$1" root tbf rate "$2" burst 16kb latency 1s
}

build_host() { # number: the first process of a host makes its own view of the file system
    local number=$1 top=$LAYERS/host$1 device
    mount --make-rprivate /
    mkdir -p "$top" "$top".upper "$top".work
    mount -t overlay overlay -o "lowerdir=$LAYERS/packages:/,upperdir=$top.upper,workdir=$top.work" "$top"
    hostname "node$number"
    mount -t proc proc "$top/proc"
    mount -t sysfs sysfs "$top/sys"
    mount -t tmpfs -o mode=755 dev "$top/dev"
    for device in null zero full random urandom tty; do
        touch "$top/dev/$device"
        mount --bind "/dev/$device" "$top/dev/$device"
    done
    mkdir "$top"/dev/{pts,shm}
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$top/dev/pts"
    ln -s pts/ptmx "$top/dev/ptmx"
    ln -s /proc/self/fd "$top/dev/fd"
    for device in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${device#*:}" "$top/dev/${device%:*}"; done
    mount -t tmpfs -o size=1G shm "$top/dev/shm"
    mount -t tmpfs -o size=1G,mode=1777 tmp "$top/tmp"
    mkdir -p "$top$STATE" && mount --bind "$STATE" "$top$STATE"
    mkdir -p "$top$ROOT" && mount --bind "$ROOT" "$top$ROOT"
    mkdir -p "$top/srv/shared" && mount --bind $LAYERS/shared "$top/srv/shared"
    mkdir -p "$top/root/.ssh" && cp $LAYERS/keys/* "$top/root/.ssh/"
    cd "$top" && pivot_root . . && umount --lazy . # not chroot, in which containers do not start
    exec bash "$SELF" _serve "$number"
}

serve_host() { # number: the network, and the SSH server
    local number=$1 i
    {
        echo "127.0.0.1 localhost"
        for i in $(seq $HOSTS); do echo "10.77.0.$i node$i"; done
    } >/etc/hosts
    until [ -e /sys/class/net/eth0 ]; do sleep 0.02; done
    ip link set lo up
    ip link set eth0 up
    ip addr add "10.77.0.$number/24" dev eth0
    cd /root/.ssh
    mv id id_ed25519
    cp id.pub authorized_keys
    printf '%s\n' "StrictHostKeyChecking no" "UserKnownHostsFile /dev/null" "LogLevel ERROR" >config
    chmod -R go= /root/.ssh
    mkdir -p /run/sshd
    [ ! -e "$STATE/slurm" ] || start_slurm "$number"
    [ ! -e "$STATE/pbs" ] || start_pbs "$number"
    /usr/sbin/sshd -o UsePAM=no -o PermitRootLogin=yes -o HostKey=/root/.ssh/id_ed25519 -o MaxStartups=100
    touch "$STATE/ready$number"
    while true; do wait -n 2>/dev/null || sleep 1; done # the first process reaps orphans
}

start_slurm() { # number: the first host also has the scheduler
    mkdir -p /run/munge /var/spool/slurmd /var/spool/slurmctld
    chown munge: /run/munge
    setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged
    [ "$1" != 1 ] || /usr/sbin/slurmctld
    /usr/sbin/slurmd
}

start_pbs() { # number: the first host also has the server, its database and the scheduler; four tasks per host
    local first=$(($1 == 1)) node
    unset TMPDIR # a folder of the shell that started the hosts
    PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
    mkdir -p /run/postgresql && chown postgres: /run/postgresql
    printf '%s\n' PBS_EXEC="$PBS" PBS_HOME=/var/spool/pbs PBS_SERVER=node1 PBS_START_MOM=1 PBS_START_SERVER=$first \
        PBS_START_SCHED=$first PBS_START_COMM=$first PBS_SCP=/usr/bin/scp >/etc/pbs.conf
    ln -s "$PBS"/bin/* /usr/local/bin
    "$PBS/libexec/pbs_init.d" start
    [ "$first" = 1 ] || return 0
    for node in $(seq 2 $HOSTS); do qmgr -c "create node node$node"; done # the server makes its own
    qmgr -c "set node @default resources_available.ncpus = 4"
    qmgr -c "set server acl_roots = root@*"
}

# -- commands --------------------------------------------------------------------------------------------------------

run_tests() { # options of pytest
    local kinds="openmpi mpich" failed=0 mpi
    if [ "${1:-}" = --mpi ]; then
        kinds=$2
        shift 2
    fi
    for mpi in $kinds; do require_path "$mpi"; done
    trap stop_hosts EXIT
    start_hosts 100mbit
    for mpi in $kinds; do
        MPI=$mpi
        . "$ROOT/scripts/environment.sh"
        prepare_environment test
        echo "spmdsim: tests on $HOSTS hosts ($mpi)"
        (CLUSTER_PATH=$(dirname "$PYTHON"): run_on 1 "$PYTHON" -m pytest -m cluster tests/cluster --with-mpi "$@") || failed=1
    done
    return $failed
}

run_bench() { # options of scripts/bench/hosts.py; --mpi KIND for one MPI
    local kinds="openmpi mpich" pythons=() mpi
    if [ "${1:-}" = --mpi ]; then
        kinds=$2
        shift 2
    fi
    for mpi in $kinds; do
        require_path "$mpi"
        MPI=$mpi
        . "$ROOT/scripts/environment.sh"
        prepare_environment test
        pythons+=("$mpi=$PYTHON")
    done
    trap stop_hosts EXIT
    start_hosts 100mbit
    (run_on 1 "$PYTHON" scripts/bench/hosts.py "$@" "${pythons[@]}")
}

if [ "${1:-}" = --slurm ]; then
    SLURM="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix-dev"
    shift
fi
if [ "${1:-}" = --pbs ]; then
    PBS=$(realpath "${2:?the folder of an installed OpenPBS}")
    shift 2
fi
case ${1:-} in
    bench) shift && run_bench "$@" ;;
    up) start_hosts "${2:-100mbit}" ;;
    on) shift && run_on "$@" ;;
    link) nsenter --target "$(cat $STATE/switch)" --net ip link set "port$2" "$3" ;;
    down) stop_hosts ;;
    check) require_rights && require_path "${MPI:-openmpi}" ;;
    _layers) shift && build_layers "$@" ;;
    _switch) run_switch "$2" ;;
    _host) build_host "$2" ;;
    _serve) serve_host "$2" ;;
    _limit) limit_rate "$2" "$3" ;;
    *) run_tests "$@" ;;
esac
