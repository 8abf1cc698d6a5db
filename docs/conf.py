"""How Sphinx builds the site; `make docs` runs it.

Sphinx with MyST was chosen by trial over mkdocs-material with mkdocstrings. Both build the pages in seconds,
without the network. Sphinx also checks every anchor, runs notebooks, and has the theme of pandas and xarray.
mkdocs-material reaches its end of life in May 2027.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from generate import generate  # noqa: E402 (a module beside this file)

project = "Roundweave"
version = release = version_of("roundweave")
author = "The Roundweave developers"
copyright = author
extensions = [
    "myst_nb",
    "members",
    "notebooks",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "reference/generated/peers.md", "**/.ipynb_checkpoints"]

html_theme = "pydata_sphinx_theme"
html_title = f"Roundweave {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
    "secondary_sidebar_items": {
        "**": ["page-toc", "edit-this-page"],
        "reference/options": [],
        "reference/store": [],
        "results": [],
    },
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_version_warning_banner": False,
}
# Name the repository in the environment, and each page has a link to edit it.
if repository := os.environ.get("ROUNDWEAVE_REPOSITORY", ""):  # such as github.com/OWNER/NAME
    host, owner, name = repository.removeprefix("https://").split("/")
    html_theme_options["use_edit_page_button"] = True
    html_context = {
        f"{host.split('.')[0]}_user": owner,
        f"{host.split('.')[0]}_repo": name,
        f"{host.split('.')[0]}_version": "main",
        "doc_path": "docs",
    }

smartquotes = False
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"

napoleon_use_ivar = True
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
toc_object_entries_show_parents = "hide"
html_sidebars = {"results": []}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

# Tutorials are notebooks: they run while the site is built, in a folder of their own, with runs of their own.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
os.environ.pop("ROUNDWEAVE_ROOT", None)
generate(HERE)
os.environ["ROUNDWEAVE_ROOT"] = tempfile.mkdtemp(prefix="roundweave-docs-")
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["COLUMNS"] = "100"
