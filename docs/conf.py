"""How the manual is built: scripts/docs.sh."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests")]

from building import commands, doctrees, pictures, reference  # noqa: E402

from spmdsim._version import REPOSITORY, __version__  # noqa: E402
from spmdsim.arrays.ops.operators import OperatorFunction  # noqa: E402

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
#: Names of types in the sources -> what a signature shows in place of their long definitions.
autodoc_type_aliases = {
    **{name: name for name in ("ArrayLike", "DTypeLike", "ReduceOp")},
    **dict.fromkeys(("Array", "Ints", "Floats"), "ndarray"),
    "Reference": "Tensor | ArrayLike | Callable",
}
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


def is_described_elsewhere(app, what, name, value, skipped, options) -> bool | None:
    """Return True for a method that is NumPy's function or an operator, else None: Sphinx then decides."""
    is_numpy = str(getattr(value, "__module__", "")).startswith("numpy")
    return True if is_numpy or isinstance(value, OperatorFunction) else None


def shorten(app, what, name, value, options, arguments: str | None, returned: str | None):
    """Shorten a signature: its arguments and the type of its result."""
    return tuple(text and reference.shorten_signature(text) for text in (arguments, returned))


def keep_first_line(app, what, name, value, options, lines: list[str]) -> None:
    """Insert an empty comment before the docstring of a property.

    Napoleon takes the words before a colon of the first line as the property's type.
    """
    if what in ("property", "attribute", "data"):
        lines[:0] = ["..", ""]


def keep_described_bases(app, name, value, options, bases: list[type]) -> None:
    """Remove base classes of this package that have no entry in the reference."""
    bases[:] = [base for base in bases if reference.is_linked(base)]


def insert_repository(app: object, page: str, source: list[str]) -> None:
    """Write the repository's address into a page."""
    source[0] = source[0].replace("REPOSITORY", REPOSITORY)


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("source-read", insert_repository)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", pictures.draw)
    app.connect("autodoc-skip-member", is_described_elsewhere)
    app.connect("autodoc-process-docstring", keep_first_line, priority=100)  # before Napoleon
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-bases", keep_described_bases)
    app.connect("doctree-read", doctrees.mend)
