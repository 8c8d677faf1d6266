# SPDX-License-Identifier: BSD-3-Clause
"""The site, by Sphinx: contrib/build-site makes it of a copy of docs/ with the pages of the manual beside it."""

import os
import re

project = "xep"
author = "the xep authors"
version = release = os.environ.get("XEP_VERSION", "")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
exclude_patterns = ["conf.py", "local.mk"]
suppress_warnings = ["ref.python"]  # types in signatures that are also names of fields
html_theme = "alabaster"
html_theme_options = {"description": "dispatch and combine for mixtures of experts", "page_width": "1100px"}
html_show_copyright = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}


def convert_docstring(_app, _what, _name, _obj, _options, lines):
    """Our docstrings have "name: what it is" with a hanging indent, and programs behind an empty line."""
    out, inside = [], ""
    for line in lines:
        field = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        if field and field[1][0].islower():
            out += ["", f"* ``{field[1]}``: {field[2]}"]
            inside = "field"
        elif line.startswith("    ") and inside == "field":
            out.append("  " + line.strip())
        elif line.startswith("    ") and inside != "program" and (not out or not out[-1]):
            out += [line] if len(out) > 1 and out[-2].endswith("::") else ["::", "", line]
            inside = "program"
        else:
            if line and not line.startswith(" ") and inside:
                out.append("")
                inside = ""
            out.append(line)
    lines[:] = out


def setup(app):
    app.connect("autodoc-process-docstring", convert_docstring)
