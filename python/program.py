#!python
# SPDX-License-Identifier: BSD-3-Clause
# In a wheel, this is the tools of xep: becomes the program of its name that came with the package, which
# it does not import.
import os
import sys

name = os.path.basename(sys.argv[0])
paths = [os.path.join(folder, "xep", "_bundle", "bin", name) for folder in sys.path]
program = next((path for path in paths if os.path.exists(path)), None)
if program is None:
    sys.exit(f"{name}: the package xep that it belongs to is not installed: pip install xep's wheel again")
try:
    os.execv(program, [name, *sys.argv[1:]])
except OSError as error:
    sys.exit(f"{name}: {program} cannot be run: {error.strerror}")
