"""Changes of parsed pages, before links are found: `mend` is called for each page."""

from __future__ import annotations

import builtins

from docutils import nodes
from sphinx import addnodes

#: Words of Sphinx -> words of these pages.
WORDS = {"Variables": "Attributes"}


def mend(app: object, doctree: nodes.document) -> None:
    """Write dashes and the heads of field lists as in other pages; link no built-in type to a namesake.

    Short options get the class ``option``, so that browsers do not break them after a hyphen.
    """
    for link in list(doctree.findall(addnodes.pending_xref)):
        # The domain takes the only known name that ends in ".bool", which is the array API's.
        if link.get("reftype") == "class" and hasattr(builtins, link["reftarget"]):
            link.replace_self(nodes.Text(link["reftarget"]))
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))
    for code in doctree.findall(nodes.literal):
        if code.astext().startswith("-") and len(code.astext()) < 24:
            code["classes"].append("option")
    for name in doctree.findall(nodes.field_name):
        name[:] = [nodes.Text(WORDS.get(name.astext(), name.astext()))]
