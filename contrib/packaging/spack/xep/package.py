# SPDX-License-Identifier: BSD-3-Clause
"""For Spack: copy this folder into the packages of a repository of your own, then `spack install xep`."""

from spack.package import *


class Xep(AutotoolsPackage):
    """Expert parallelism: dispatch and combine of mixture-of-experts layers, on host memory and CUDA devices."""

    # a clone: spack develop --path CLONE xep@1.0.0; a release: add url and the sha256 of its tarball
    version("1.0.0")

    variant("cuda", default=False, description="Modes for the memory of CUDA devices")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("autoconf@2.69:", type="build")
    depends_on("automake@1.16:", type="build")
    depends_on("libtool", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("ucx@1.13:")
    depends_on("pmix@4:")
    depends_on("numactl")
    depends_on("cuda@12:", when="+cuda", type="build")

    def autoreconf(self, spec, prefix):
        Executable("./autogen.sh")()

    def configure_args(self):
        args = ["PYTHON=false", "CPPFLAGS=-DNDEBUG", "CFLAGS=-O3 -g"]
        args.append(f"--with-cuda={self.spec['cuda'].prefix}" if "+cuda" in self.spec else "--without-cuda")
        return args
