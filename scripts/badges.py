"""Draw README's badges from this repository's own data: scripts/badges.py FOLDER

badge-python.svg has the Python versions of setup.cfg's classifiers, badge-licence.svg its licence, badge-mpi.svg the MPIs that its extras
install.
"""

import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Width of a character and of the space on both sides of a text, in pixels; heights are GitHub's usual 20.
CHARACTER, SPACE, HEIGHT = 6.6, 6, 20


def draw_badge(name: str, value: str) -> str:
    """Return a badge as SVG: a name on grey, a value on blue."""
    left, right = (round(len(text) * CHARACTER) + 2 * SPACE for text in (name, value))
    texts = "".join(
        f'<text x="{x}" y="14" text-anchor="middle">{text}</text>'
        for x, text in ((left / 2, name), (left + right / 2, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" role="img" aria-label="{name}: {value}">'
        f"<title>{name}: {value}</title>"
        f'<rect width="{left + right}" height="{HEIGHT}" rx="3" fill="#0072b2"/>'
        f'<path d="M3 0h{left - 3}v{HEIGHT}h-{left - 3}a3 3 0 0 1-3-3v-{HEIGHT - 6}a3 3 0 0 1 3-3z" fill="#555"/>'
        f'<g fill="#fff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11">{texts}</g></svg>\n'
    )


def badges() -> dict[str, str]:
    """Return the badges by the names of their files."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    metadata, extras = settings["metadata"], settings["options.extras_require"]
    versions = re.findall(r"Python :: (3\.\d+)$", metadata["classifiers"], re.MULTILINE)
    mpis = {"openmpi": "Open MPI", "mpich": "MPICH"}
    return {
        "badge-python.svg": draw_badge("Python", f"{versions[0]} to {versions[-1]}"),
        "badge-mpi.svg": draw_badge("MPI", ", ".join(mpis[extra] for extra in mpis if extra in extras)),
        "badge-licence.svg": draw_badge("licence", metadata["license_expression"]),
    }


if __name__ == "__main__":
    for name, text in badges().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
