# SPDX-License-Identifier: BSD-3-Clause
"""The second half of build-wheel: puts an installation and the libraries it needs into the package; makes the wheel.

    wheel.py INSTALLATION PACKAGE OUTPUT
    wheel.py --bundle INSTALLATION FOLDER [PROGRAM...]    # the same, and other programs, in a folder of their own

All of it goes into xep/_bundle: bin, lib, lib/xep (modes), lib/ucx (modules of UCX), lib/pmix (components of PMIx),
share/pmix (its texts), licences. Every file finds the others from its own place, by a RUNPATH with $ORIGIN. What
LD_LIBRARY_PATH names goes before it, so that another UCX or PMIx can still be chosen.

UCX and PMIx keep their names, as a process may have only one of each: where MPI has loaded one already, it is that one.
The other libraries get names of their own, so that none stands in the place of the system's.
"""

from __future__ import annotations

import functools
import os
import pathlib
import platform
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
OF_THE_SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\.so(\.|$)")
# must fit the drivers of the machine: where they are not there, UCX goes without the module that needs them
OF_DRIVERS = re.compile(r"lib(ibverbs|rdmacm|mlx4|mlx5|efa|hns|xpmem)\.so\.")
UCX_MODULE = re.compile(r"libuct_(cma|knem|xpmem|ib|ib_mlx5|ib_efa|rdmacm)\.so\.0")  # those for memory of the host


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


class Machine:
    """Where this machine has things."""

    def __init__(self, installation: Path) -> None:
        self.installation = installation
        info = output_of(installation / "bin" / "xep_info", LD_LIBRARY_PATH=self.search_path())
        self.ucx = self.library_in(info, "ucx").parent / "ucx"
        self.pmix = self.library_in(info, "pmix")

    def search_path(self, *more: Path) -> str:
        return ":".join(map(str, [self.installation / "lib", *more, *filter(None, [os.getenv("LD_LIBRARY_PATH")])]))

    @staticmethod
    def library_in(info: str, name: str) -> Path:
        line = re.search(rf"^{name} .*, (/.*)$", info, re.M)
        return Path(line[1]) if line else fail(f"xep_info does not say which {name} is in use:\n{info}")

    @functools.lru_cache(maxsize=None)
    def loaded_with(self, file: Path) -> dict[str, Path]:
        text = output_of("ldd", file, LD_LIBRARY_PATH=self.search_path(self.ucx))
        return {name: Path(path) for name, path in re.findall(r"(\S+) => (/.*) \(0x", text)}

    def find(self, name: str, file: Path) -> Path:
        return self.loaded_with(file).get(name) or fail(f"{file} needs {name}, which this machine lacks")


def roots(machine: Machine) -> dict[str, Path]:
    """What nothing else names as needed: programs, modes, and what is loaded at run time."""
    stage, components = machine.installation, machine.pmix.resolve().parent / "pmix"
    files = {f"bin/{name}": stage / "bin" / name for name in PROGRAMS}
    files["lib/libpmix.so.2"] = machine.pmix
    files.update((f"lib/xep/{file.name}", file) for file in (stage / "lib" / "xep").glob("*.so"))
    files.update((f"lib/ucx/{file.name}", file) for file in machine.ucx.glob("*") if UCX_MODULE.fullmatch(file.name))
    files.update((f"lib/pmix/{file.name}", file) for file in components.glob("*.so"))
    if "lib/ucx/libuct_cma.so.0" not in files:
        fail(f"no modules of UCX in {machine.ucx}")
    return files


def closure(machine: Machine, programs: list[Path]) -> dict[str, Path]:
    files = {**roots(machine), **{f"bin/{file.name}": file for file in programs}}
    rest = list(files.values())
    while rest:
        file = rest.pop()
        for name in needed(file):
            if place_of(name) not in files:
                files[place_of(name)] = machine.find(name, file)
                rest.append(files[place_of(name)])
    return files


# ---- putting it in ----


def run_path(place: str) -> str:
    folder = os.path.dirname(place)
    paths = {"bin": "$ORIGIN/../lib", "lib": "$ORIGIN", "lib/ucx": "$ORIGIN/..:$ORIGIN", "lib/pmix": "$ORIGIN/.."}
    return paths.get(folder, "")  # modes load nothing


def put(source: Path, bundle: Path, place: str) -> None:
    target = bundle / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    output_of("strip", "--strip-unneeded", target)
    # one change in each call: patchelf 0.14 mixes up the strings of several
    for name in needed(source):
        if os.path.basename(place_of(name)) != name:
            output_of("patchelf", "--replace-needed", name, os.path.basename(place_of(name)), target)
    if place.startswith("lib/lib") and target.name != source.name:
        output_of("patchelf", "--set-soname", target.name, target)
    output_of("patchelf", *(["--set-rpath", run_path(place)] if run_path(place) else ["--remove-rpath"]), target)


def make_relative(bundle: Path, machine: Machine) -> None:
    """Folders that are compiled into libpmix become folders below the prefix that xep gives it (PMIX_PREFIX)."""
    file, old = bundle / "lib" / "libpmix.so.2", str(machine.pmix.resolve().parent.parent).encode()
    data = file.read_bytes()
    for name in (b"/lib", b"/share"):
        # slashes in the middle, as the end of a string may be another one
        new = b"${prefix}".ljust(len(old), b"/") + name
        data = data.replace(b"\0" + old + name + b"\0", b"\0" + new + b"\0")
    if len(data) != file.stat().st_size:
        fail(f"{machine.pmix}: the path of its folder is too short to be replaced: {old.decode()}")
    file.write_bytes(data)


def is_object(file: Path) -> bool:
    with open(file, "rb") as stream:
        return stream.read(4) == b"\x7fELF"


def check(bundle: Path, places: list[str]) -> None:
    """Each file, loaded in an empty environment, gets everything from the bundle."""
    for place in places:
        text = subprocess.run(["ldd", bundle / place], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
        for name, found in re.findall(r"(\S+) => (\S.*?)(?: \(0x|$)", text.stdout, re.M):
            through_drivers = OF_DRIVERS.match(name) or place.startswith("lib/ucx/")
            if not found.startswith(str(bundle)) and not OF_THE_SYSTEM.match(name) and not through_drivers:
                fail(f"{place} would load {name} from outside: {found}")
    for place in places:
        for name in needed(bundle / place):
            if not any((bundle / folder / name).exists() for folder in ("lib", "lib/ucx")):
                fail(f"{place} needs {name}, which is not in the bundle")


# ---- licences ----


def package_of(file: Path) -> str:
    """The package of this machine that a file came with; files of merged folders are known under either name."""
    names = [str(file), str(file.resolve()), str(file.resolve()).removeprefix("/usr")]
    for name in names:
        result = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if result.returncode == 0:
            return result.stdout.splitlines()[0].split(": ")[0]
    return fail(f"no package of this machine has {file}, so that its licence is not known")


def add_licences(bundle: Path, files: dict[str, Path], own: Path) -> None:
    folder, lines = bundle / "licences", []
    for place, file in sorted(files.items()):
        if own in file.parents:
            continue
        package = package_of(file)
        fields = "${source:Package} ${source:Version}"
        lines.append(f"{place}: {package}, of {output_of('dpkg-query', '-W', '-f', fields, package)}\n")
        text = Path("/usr/share/doc", package.partition(":")[0], "copyright")
        (folder / package.partition(":")[0]).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(text, folder / package.partition(":")[0] / "copyright")
        for common in re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", text.read_text(errors="replace")):
            shutil.copyfile(f"/usr/share/common-licenses/{common}", folder / common)
    (folder / "FILES").write_text("What is not of xep itself, and the Debian package and source it was taken from.\n\n"
                                  + "".join(lines))  # fmt: skip


# ---- the wheel ----


def glibc_of(files: list[Path]) -> str:
    """The oldest glibc that has all that these files ask for."""
    versions = {(2, 17)}
    for file in files:
        text = output_of("readelf", "-V", file)
        versions.update((2, int(minor)) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", text))
    return "{}_{}".format(*max(versions))


def unpacked(wheel: Path, folder: Path) -> list[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return [file for file in folder.rglob("*") if file.is_file() and is_object(file)]


def make(package: Path, output: Path) -> Path:
    """Tagged manylinux for the glibc it needs: pip then refuses it where it would not load."""
    scripts = package / "scripts"
    scripts.mkdir()
    for name in PROGRAMS:
        shutil.copyfile(package / "program.py", scripts / name)
    output_of(sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", package / "dist", cwd=package)
    (wheel,) = (package / "dist").glob("*.whl")
    objects = unpacked(wheel, package / "unpacked")
    tag = f"manylinux_{glibc_of(objects)}_{platform.machine()}"
    output_of(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel)
    (wheel,) = (package / "dist").glob("*.whl")
    return Path(shutil.copy(wheel, output))


def fill(bundle: Path, installation: Path, programs: list[Path]) -> dict[str, Path]:
    machine = Machine(installation)
    files = closure(machine, programs)
    for place, source in files.items():
        put(source, bundle, place)
    make_relative(bundle, machine)
    check(bundle, list(files))
    texts = machine.pmix.resolve().parent.parent / "share" / "pmix"
    (bundle / "share" / "pmix").mkdir(parents=True)
    for text in texts.glob("help-*.txt"):
        shutil.copyfile(text, bundle / "share" / "pmix" / text.name)
    return files


def main() -> None:
    if sys.argv[1] == "--bundle":
        installation, folder, *programs = (pathlib.Path(word).resolve() for word in sys.argv[2:])
        fill(folder, installation, programs)
        return
    installation, package, output = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    bundle = package / "xep" / "_bundle"
    files = fill(bundle, installation, [])
    add_licences(bundle, files, installation)
    print(make(package, output))


if __name__ == "__main__":
    main()
