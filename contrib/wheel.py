# SPDX-License-Identifier: BSD-3-Clause
"""The second half of build-wheel: puts an installation and the libraries it needs into the package; makes the wheel.

    wheel.py INSTALLATION PORTABLE PACKAGE HEADERS ARCH OUTPUT
    wheel.py --bundle INSTALLATION PORTABLE FOLDER [PROGRAM...]   # the same, and programs, in a folder

INSTALLATION is what `make install` made, PORTABLE the folder of contrib/portable.bash, HEADERS the folder of the
Python.h that the wheel is for. All of it goes into xep/_bundle: bin, lib, lib/xep (modes), lib/ucx (modules of UCX),
share/pmix (texts of PMIx), include and lib/pkgconfig (for programs in C), licences. Every file finds the others from
its own place, by a RUNPATH with $ORIGIN. What LD_LIBRARY_PATH names goes before it, so that another UCX or PMIx can
still be chosen.

UCX and PMIx keep their names, as a process may have only one of each: where MPI has loaded one already, it is that one.
The other libraries get names of their own, so that none stands in the place of the system's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PROGRAMS = ("xep_run", "xep_perf", "xep_info", "xep_trace")
# libnuma is needed by libxep and by UCX, which may be another one: two would take each other's variables
ONE_IN_A_PROCESS = re.compile(r"lib(ucp|uct|ucs|ucm|pmix|numa|xep)\.so\.")
# glibc, to which all is bound by the wheel's tag, and what manylinux allows beside it
OF_THE_SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|z|gcc_s|stdc\+\+))\.so(\.|$)")
# must fit the drivers of the machine: where they are not there, UCX goes without the module that needs them
OF_DRIVERS = re.compile(r"lib(ibverbs|rdmacm|mlx4|mlx5|efa|hns|xpmem)\.so\.")
UCX_MODULE = re.compile(r"libuct_(cma|knem|xpmem|ib|ib_mlx5|ib_efa|rdmacm)\.so\.0")  # those for memory of the host
LICENCES = {"libuc": "ucx", "libpmix": "openpmix", "libevent": "libevent", "libhwloc": "hwloc", "libnuma": "numactl"}


def fail(sentence: str) -> None:
    raise SystemExit(f"build-wheel: {sentence}")


def output_of(*command: object, cwd: Path | None = None, **environment: object) -> str:
    variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=variables, cwd=cwd)
    if result.returncode != 0:
        fail(f"{' '.join(str(word) for word in command)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


# ---- what goes in: place in the bundle -> file of this machine ----


def place_of(name: str) -> str:
    if UCX_MODULE.fullmatch(name):
        return f"lib/ucx/{name}"
    if ONE_IN_A_PROCESS.match(name):
        return f"lib/{name}"
    stem, _, version = name.partition(".so")
    return f"lib/{stem}-xep.so{version}"


def needed(file: Path) -> list[str]:
    """The libraries that have to come along."""
    names = output_of("patchelf", "--print-needed", file).split()
    return [name for name in names if not OF_THE_SYSTEM.match(name) and not OF_DRIVERS.match(name)]


def roots(installation: Path, portable: Path) -> dict[str, Path]:
    """What nothing else names as needed: programs, modes, and what is loaded at run time."""
    files = {f"bin/{name}": installation / "bin" / name for name in PROGRAMS}
    files["lib/libpmix.so.2"] = portable / "lib" / "libpmix.so.2"
    files.update((f"lib/xep/{file.name}", file) for file in (installation / "lib" / "xep").glob("*.so"))
    modules = (portable / "lib" / "ucx").glob("*")
    files.update((f"lib/ucx/{file.name}", file) for file in modules if UCX_MODULE.fullmatch(file.name))
    return files


def find(name: str, folders: list[Path], user: Path) -> Path:
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    return fail(f"{user} needs {name}, which is in none of {', '.join(map(str, folders))}")


def closure(installation: Path, portable: Path, programs: list[Path]) -> dict[str, Path]:
    files = {**roots(installation, portable), **{f"bin/{file.name}": file for file in programs}}
    folders = [installation / "lib", portable / "lib", portable / "lib" / "ucx", *map(Path, library_folders(programs))]
    rest = list(files.values())
    while rest:
        file = rest.pop()
        for name in needed(file):
            if place_of(name) not in files:
                files[place_of(name)] = find(name, folders, file)
                rest.append(files[place_of(name)])
    return files


def library_folders(programs: list[Path]) -> list[str]:
    """Of this machine, for programs that were made for it."""
    text = output_of("ldconfig", "-p", PATH=f"{os.environ['PATH']}:/sbin:/usr/sbin") if programs else ""
    return sorted({os.path.dirname(path) for path in re.findall(r"=> (/.*)", text)})


# ---- putting it in ----


def run_path(place: str) -> str:
    folder = os.path.dirname(place)
    paths = {"bin": "$ORIGIN/../lib", "lib": "$ORIGIN", "lib/ucx": "$ORIGIN/..:$ORIGIN"}
    return paths.get(folder, "")  # modes load nothing


def put(source: Path, bundle: Path, place: str) -> None:
    target = bundle / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", target], capture_output=True)  # those of another processor stay whole
    # one change in each call: patchelf 0.14 mixes up the strings of several
    for name in needed(source):
        if os.path.basename(place_of(name)) != name:
            output_of("patchelf", "--replace-needed", name, os.path.basename(place_of(name)), target)
    if place.startswith("lib/lib") and target.name != source.name:
        output_of("patchelf", "--set-soname", target.name, target)
    output_of("patchelf", *(["--set-rpath", run_path(place)] if run_path(place) else ["--remove-rpath"]), target)


def check(bundle: Path, places: list[str]) -> None:
    """What each file needs is in the bundle."""
    for place in places:
        for name in needed(bundle / place):
            if not any((bundle / folder / name).exists() for folder in ("lib", "lib/ucx")):
                fail(f"{place} needs {name}, which is not in the bundle")


def fill(bundle: Path, installation: Path, portable: Path, programs: list[Path]) -> dict[str, Path]:
    files = closure(installation, portable, programs)
    for place, source in files.items():
        put(source, bundle, place)
    check(bundle, list(files))
    shutil.copytree(portable / "share" / "pmix", bundle / "share" / "pmix")
    return files


def add_headers(bundle: Path, installation: Path) -> None:
    """For programs in C: xep.get_include(), xep.get_pkgconfig()."""
    shutil.copytree(installation / "include" / "xep", bundle / "include" / "xep")
    (bundle / "lib" / "pkgconfig").mkdir()
    text = (installation / "lib" / "pkgconfig" / "xep.pc").read_text()
    text = re.sub(r"^prefix=.*", "prefix=${pcfiledir}/../..", text, flags=re.M)
    text = text.replace("-lxep", "-l:libxep.so.1 -Wl,-rpath,${libdir}")  # no links, and no loader looks there
    (bundle / "lib" / "pkgconfig" / "xep.pc").write_text(text)


def add_licences(bundle: Path, files: dict[str, Path], portable: Path) -> None:
    folder, lines = bundle / "licences", []
    folder.mkdir()
    for place, file in sorted(files.items()):
        if portable not in file.parents:
            continue
        name = next(licence for stem, licence in LICENCES.items() if file.name.startswith(stem))
        lines.append(f"{place}: LICENSE.{name}\n")
        shutil.copy(portable / "licences" / f"LICENSE.{name}", folder)
    (folder / "FILES").write_text("What is not of xep itself, and its licence.\n\n" + "".join(lines))


# ---- the wheel ----


def version_of(headers: Path) -> str:
    """Of the Python that this folder of headers is for, as 311."""
    configs = [headers / "pyconfig.h", *headers.parent.glob(f"*-linux-gnu/{headers.name}/pyconfig.h")]
    if any(re.search(r"^#define Py_GIL_DISABLED 1", file.read_text(), re.M) for file in configs):
        fail(f"free-threaded Python is not supported: {headers} (headers of one with the GIL)")
    text = (headers / "patchlevel.h").read_text()
    return "".join(re.search(rf"PY_{part}_VERSION\s+(\d+)", text)[1] for part in ("MAJOR", "MINOR"))


def compile_module(package: Path, portable: Path, headers: Path, arch: str) -> None:
    """xep._ext, by the portable compiler: setuptools would take the one of the Python that runs it."""
    import numpy

    # Debian's pyconfig.h looks for the one of the processor, which has the same contents for all of 64 bits
    beside = package / "include"
    beside.mkdir()
    for folder in headers.parent.glob(f"*-linux-gnu/{headers.name}"):
        (beside / f"{arch}-linux-gnu").symlink_to(folder.parent)
    target = package / "xep" / f"_ext.cpython-{version_of(headers)}-{arch}-linux-gnu.so"
    bundle = package / "xep" / "_bundle"
    folders = (headers, headers.parent, beside, numpy.get_include())
    includes = [word for folder in folders for word in ("-isystem", folder)]
    sources = sorted((package / "ext").glob("*.c"))
    output_of(portable / "bin" / "cc", "-std=gnu11", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden",
              "-I", bundle / "include", *includes, "-o", target, *sources)  # fmt: skip


def glibc_of(files: list[Path]) -> str:
    """The oldest glibc that has all that these files ask for."""
    versions = {(2, 17)}
    for file in files:
        text = output_of("readelf", "-V", file)
        versions.update((2, int(minor)) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", text))
    return "{}_{}".format(*max(versions))


def is_object(file: Path) -> bool:
    with open(file, "rb") as stream:
        return stream.read(4) == b"\x7fELF"


def unpacked(wheel: Path, folder: Path) -> list[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return [file for file in folder.rglob("*") if file.is_file() and is_object(file)]


def make(package: Path, headers: Path, arch: str, output: Path) -> Path:
    """Tagged manylinux for the glibc it needs: pip then refuses it where it would not load."""
    scripts = package / "scripts"
    scripts.mkdir()
    for name in PROGRAMS:
        shutil.copyfile(package / "program.py", scripts / name)
    output_of(sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", package / "dist", cwd=package,
              XEP_EXT="made")  # fmt: skip
    (wheel,) = (package / "dist").glob("*.whl")
    python = f"cp{version_of(headers)}"
    tag = f"manylinux_{glibc_of(unpacked(wheel, package / 'unpacked'))}_{arch}"
    output_of(sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", python, "--abi-tag", python,
              "--platform-tag", tag, wheel)  # fmt: skip
    (wheel,) = (package / "dist").glob("*.whl")
    return Path(shutil.copy(wheel, output))


def main() -> None:
    if sys.argv[1] == "--bundle":
        installation, portable, folder, *programs = (Path(word).resolve() for word in sys.argv[2:])
        fill(folder, installation, portable, programs)
        return
    installation, portable, package, headers = (Path(word).resolve() for word in sys.argv[1:5])
    bundle = package / "xep" / "_bundle"
    files = fill(bundle, installation, portable, [])
    add_headers(bundle, installation)
    add_licences(bundle, files, portable)
    compile_module(package, portable, headers, sys.argv[5])
    print(make(package, headers, sys.argv[5], Path(sys.argv[6]).resolve()))


if __name__ == "__main__":
    main()
