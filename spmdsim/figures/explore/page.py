"""Build the page as one text: HTML, style and scripts of ``front/``, and the computed data, compressed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from importlib import resources
from typing import Any

from spmdsim._version import __version__
from spmdsim.collectives.round_table import collector_paused
from spmdsim.errors import InputError
from spmdsim.figures.explore.moves import (
    PlanTable,
    create_matrices,
    derivations,
    layout_key,
    mesh_facts,
    product_facts,
)
from spmdsim.figures.explore.offer import Offer
from spmdsim.figures.explore.schedules import schedules
from spmdsim.figures.explore.searches import searches
from spmdsim.layout.element_type import element_type

#: The scripts in an order in which each comes after the scripts that it imports.
SCRIPTS = (
    "elements",
    "state",
    "player",
    "picker",
    "tensor",
    "layout",
    "move",
    "schedule",
    "product",
    "search",
    "main",
)

MOST_BYTES = 1_500_000


def page(offer: Offer | None = None) -> str:
    """Build the interactive page: layouts, redistributions, collectives, a product, a search.

    It needs no server and no network: open it in a browser from disk. Equal offers give equal texts. Nothing is
    written.

    Args:
        offer: the choices; None: all device matrices of 2, 4, 6 and 8 ranks, and the other defaults of :class:`Offer`.

    Returns:
        A complete HTML document of at most 1.5 MB, with its script and its data.

    Raises:
        InputError: If the page would be larger.

    >>> from spmdsim import Mesh
    >>> text = page(Offer(meshes=(Mesh((2, 2), ("dp", "tp")),), shapes=((4, 4),), ranks=(4,), programs=()))
    >>> text.startswith("<!DOCTYPE html>"), "http://" in text.replace("http://www.w3.org/2000/svg", "")
    (True, False)
    """
    with collector_paused():
        answers = json.dumps(page_data(offer or Offer()), separators=(",", ":"), ensure_ascii=False).encode()
    packed_data = base64.b64encode(gzip.compress(answers, 9, mtime=0)).decode("ascii")
    script = "\n".join(_wrap_module(_read_front(f"{name}.js")) for name in SCRIPTS).strip("\n")
    hash_text = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode("ascii")
    parts = {
        "script_hash": hash_text,
        "version": __version__,
        "style": _read_front("style.css").strip(),
        "data": packed_data,
        "script": script,
    }
    text = re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], _read_front("page.html"))
    if len(text.encode()) > MOST_BYTES:
        raise InputError(
            f"the page must have at most {MOST_BYTES:,} bytes, got {len(text.encode()):,}; offer fewer meshes or shapes"
        )
    return text


def page_data(offer: Offer) -> dict[str, Any]:
    """Return the page's data as JSON values: meshes, plans, schedules, products, searches.

    Args:
        offer: the choices.

    Returns:
        A dict:

    - "start": the mesh and the key of the first layout. If the offer has no layouts, the key is "", and the page
      chooses.
    - "meshes": for each mesh its facts, and the :func:`derivation_facts` of its layouts, by number of dimensions and
      key.
    - "cases": for each pair of mesh and shape the redistribution plans, see :class:`PlanTable`, and the element type.
    - "schedules", "operands" and "searches": the results of the functions with these names.
    - "products": the :func:`product_facts` of each mesh.
    """
    dtype = element_type(offer.dtype)
    meshes, cases = [], []
    for mesh in offer.meshes:
        shapes = offer.shapes_on(mesh)
        layouts_by_ndim = {
            len(shape): [
                layout for layout in offer.layouts if layout.mesh == mesh and len(layout.dims) == len(shape)
            ]
            for shape in shapes
        }
        derived = {
            ndim: derivations(mesh, ndim, layouts) for ndim, layouts in sorted(layouts_by_ndim.items())
        }
        meshes.append({**mesh_facts(mesh), "derivations": derived})
        for shape in shapes:
            table = PlanTable(mesh, shape, offer.dtype, layouts_by_ndim[len(shape)]).to_dict()
            cases.append({"mesh": str(mesh), "itemsize": dtype.itemsize, "dtype": dtype.name, **table})
    return {
        "start": {"mesh": str(offer.start), "layout": layout_key(offer.layouts[0]) if offer.layouts else ""},
        "meshes": meshes,
        "cases": cases,
        "schedules": schedules(offer),
        "operands": create_matrices(),
        "products": [product_facts(mesh) for mesh in offer.meshes],
        "searches": searches(offer.programs, offer.ranks),
    }


def _read_front(name: str) -> str:
    """Return the text of a file in ``front/``."""
    return (resources.files("spmdsim.figures.explore") / "front" / name).read_text(encoding="utf-8")


_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|async function|function) (\w+))", re.MULTILINE)


def _wrap_module(text: str) -> str:
    r"""Return a JavaScript module as one expression without imports and exports.

    >>> print(_wrap_module("import { b } from './b.js';\nexport const a = b;\n"))
    const { a } = (() => {
    const a = b;
    return { a };
    })();
    """
    names = ", ".join(_EXPORT.findall(text))
    body = _EXPORT.sub("", _IMPORT.sub("", text)).strip("\n")
    return f"const {{ {names} }} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();"
