"""``spmdsim explore``: write one HTML file to play with, for a browser."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from spmdsim.cli.arguments import Command, Subparsers, written_layout
from spmdsim.cli.collective.schedule_arguments import find_algorithm, rank_counts
from spmdsim.errors import InputError

if TYPE_CHECKING:
    from spmdsim.explore import Offer

EXAMPLES = """\
examples:
  spmdsim explore                                      explore.html: all device matrices of 2, 4, 6 and 8 ranks
  spmdsim explore --mesh dp=2,tp=4 --shape 8,8         your own case, in a second or two
  spmdsim explore --mesh a=2,b=3 --mesh a=3,b=2 --shape 12,6 --shape 7,5 -o page.html
  spmdsim explore --layout "a=2,b=1,c=2,d=2,e=1: b,d,e,c,a" --shape 1,2,1,2,2        a device matrix as in a textbook
  spmdsim explore --algorithm my.py:my_ring -n 4       your own all_reduce, round by round, beside all others
  spmdsim explore --serve                              look at it on http://127.0.0.1:8000 (Ctrl-C ends)

The file needs no server and no network: send it, put it on a course page, open it from disk. What it shows was computed
when it was written; its address (behind the #) keeps what was chosen.
"""

#: Seconds of processor time for somebody's algorithm.
SECONDS = 120


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    from spmdsim.launch.limits import add_limits, limited

    add = Command(
        subparsers,
        "explore",
        run,
        "Write one HTML file to play with: where a tensor lives, how it is redistributed, every collective algorithm "
        "round by round, a product with its partial sums, a search with its reasons.",
        epilog=EXAMPLES,
    )
    add("-o", "--output", default="explore.html", metavar="FILE", help="the file (explore.html)")
    add("--mesh", action="append", metavar="MESH", help="a mesh to choose, such as dp=2,tp=4 (repeatable)")
    add("--shape", action="append", metavar="N,M", help="a global shape to choose (repeatable)")
    add(
        "--layout",
        action="append",
        metavar="LAYOUT",
        help="a layout with its mesh to begin with (repeatable)",
    )
    add("--dtype", default="float32", help="element type (float32)")
    add(
        "-n",
        "--ranks",
        default="2..8",
        metavar="N",
        help="rank counts of the collectives: 4, 2..8 or 2,4,8 (2..8)",
    )
    add("--algorithm", action="append", metavar="FILE.py:FUNCTION", help="your own algorithm (repeatable)")
    add("--collective", default="all_reduce", help="what --algorithm must do (all_reduce)")
    add("--program", action="append", metavar="NAME", help="a built-in program to search (mlp and tutorial)")
    add(
        "--serve",
        nargs="?",
        const=8000,
        type=int,
        metavar="PORT",
        help="serve it to this machine's browser (8000)",
    )
    add_limits(add.parser.add_argument, SECONDS)
    add.parser.set_defaults(
        run=lambda args: limited(args, lambda: run(args)) if args.algorithm else run(args)
    )


def run(args: argparse.Namespace) -> int:
    """Write the page, or serve it."""
    from spmdsim.cli.output import remark, write_file
    from spmdsim.explore import page

    if args.serve is not None and args.algorithm:
        raise InputError(
            "--serve does not go with --algorithm, whose time is limited: write the page and open it"
        )
    text = page(offer_from(args))
    if args.serve is not None:
        return _serve(text, args.serve)
    write_file(args.output, text)
    remark(f"wrote {args.output} ({len(text.encode()):,} bytes): open it in a browser")
    return 0


def offer_from(args: argparse.Namespace) -> Offer:
    """What the page is to offer."""
    from spmdsim.explore import Offer
    from spmdsim.layout.written import parse_ints, parse_mesh

    layouts = tuple(written_layout(text) for text in args.layout or ())
    given = {
        "meshes": (*(one.mesh for one in layouts), *(parse_mesh(text) for text in args.mesh or ())),
        "layouts": layouts,
        "shapes": tuple(parse_ints(text, "a shape") for text in args.shape or ()),
        "programs": tuple(args.program or ()),
    }
    own = tuple(find_algorithm(args.collective, name) for name in args.algorithm or ())
    chosen = {name: tuple(dict.fromkeys(some)) for name, some in given.items() if some}
    return Offer(ranks=tuple(rank_counts(args.ranks)), algorithms=own, dtype=args.dtype, **chosen)


def _serve(text: str, port: int) -> int:
    """Serve the page to this machine alone until Ctrl-C."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from spmdsim.cli.output import remark

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """The page, whatever is asked for."""
            content = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads who looked."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A browser that goes away before it has the page is no error."""

    try:
        server = Server(("127.0.0.1", port), Page)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot serve on port {port}: {getattr(error, 'strerror', None) or error}"
        ) from None
    with server:
        remark(f"serving on http://127.0.0.1:{server.server_port} (Ctrl-C ends)")
        server.serve_forever()
    return 0
