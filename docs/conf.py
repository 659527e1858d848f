"""How the manual is built: scripts/docs.sh."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests")]

from building import commands, pictures, reference  # noqa: E402

from spmdsim._version import REPOSITORY, __version__  # noqa: E402

project = "spmdsim"
author = "The spmdsim authors"
project_copyright = "The spmdsim authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["building", "speed"]
nitpicky = False
smartquotes = False
default_role = "code"
highlight_language = "none"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"spmdsim {release}"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_last_updated_fmt = None
html_static_path = ["static"]
html_css_files = ["manual.css"]

GENERATED = HERE / "generated"


def write_pages(app: object) -> None:
    """Write what is generated, where it changed, and remove what is left of earlier."""
    texts = {
        GENERATED / folder / f"{name}.rst": text
        for folder, pages in (("commands", commands.pages()), ("reference", reference.pages()))
        for name, text in pages.items()
    }
    for path in set(GENERATED.glob("*/*.rst")) - set(texts):
        path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def is_numpys(app, what, name, value, skipped, options) -> bool | None:
    """Whether a method is numpy's function as it is: its text is numpy's, too."""
    return True if (getattr(value, "__module__", None) or "").startswith("numpy") else None


def insert_repository(app: object, page: str, source: list[str]) -> None:
    """Write the repository's address into a page."""
    source[0] = source[0].replace("REPOSITORY", REPOSITORY)


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("source-read", insert_repository)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", pictures.draw)
    app.connect("autodoc-skip-member", is_numpys)
