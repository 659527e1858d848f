"""Complete setup.cfg: a long description with absolute links, project URLs, and how an editable installation is found.

A package index shows README.md where no file of the repository lies beside it, so its links must be absolute there.
"""

import re
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
FACTS = runpy.run_path(str(ROOT / "spmdsim" / "_version.py"))
WEB = FACTS["REPOSITORY"].removesuffix(".git")
VERSION = FACTS["__version__"]

#: Links of Markdown: text or picture, and a path in this repository.
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def with_absolute_links(text: str) -> str:
    """Return a Markdown text with links to this version's files: pictures as they are, other files as pages."""
    kinds = {"!": "raw", "": "blob"}
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({WEB}/{kinds[m[1]]}/v{VERSION}/{m[3]})", text)


def project_urls() -> dict[str, str]:
    """Return the addresses that a package index lists, by their names."""
    return {
        "Source": WEB,
        "Documentation": f"{WEB}/blob/v{VERSION}/docs/index.md",
        "Changelog": f"{WEB}/blob/v{VERSION}/CHANGELOG.md",
        "Issues": f"{WEB}/issues",
    }


class PathFileWheel(editable_wheel):
    """An editable installation by a path file, which finds the package from every folder.

    Python asks the finder that setuptools writes otherwise too late: in the folder above a clone named spmdsim, it takes the
    clone for a namespace package.
    """

    def initialize_options(self) -> None:
        """Choose the path file, which setuptools calls "compat"."""
        super().initialize_options()
        self.mode = "compat"


if __name__ == "__main__":
    setup(
        cmdclass={"editable_wheel": PathFileWheel},
        long_description=with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8")),
        project_urls=project_urls(),
    )
