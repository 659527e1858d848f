"""Notes from other hosts: their ranks send them to the starter of the job, which writes them into its folder.

A rank on the starter's host writes its notes into the folder itself. On another host it writes them into a folder of
that host, for the ranks beside it, and sends them here. Each note is one connection: a line of JSON, answered by a byte.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

#: Seconds for a connection, and for each message on it.
SECONDS = 2.0
#: The longest note in bytes.
LONGEST = 1 << 20
#: Names that a note may have: the starter writes no other file.
NAMES = re.compile(r"(rank|left)_\d+|start-\d+|ending|recording")
_WRITTEN = b"."


class ServerAddress(NamedTuple):
    """Address at which a starter receives notes.

    Attributes:
        hosts: the IPv4 addresses of its host, the likeliest first.
        port: the TCP port.
        secret: the text that each note must have.
    """

    hosts: tuple[str, ...]
    port: int
    secret: str

    def to_text(self) -> str:
        """Return the text from which :func:`parse_address` makes this address again."""
        return f"{','.join(self.hosts)} {self.port} {self.secret}"


def parse_address(text: str) -> ServerAddress:
    """Return the address of a text such as ``"10.0.0.1,192.168.0.1 4711 ab12"``.

    >>> parse_address("10.0.0.1 4711 ab12").port
    4711
    """
    hosts, port, secret = text.split(" ")
    return ServerAddress(tuple(hosts.split(",")), int(port), secret)


def find_own_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of this host; the likeliest for other hosts comes first.

    The first is the address of the interface towards 10.255.255.255; nothing is sent to find it. The addresses of the
    host's name follow. Loopback addresses are left out. If no other address is known, return ``("127.0.0.1",)``.
    """
    hosts: dict[str, None] = {}
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing, but chooses the interface
        hosts[probe.getsockname()[0]] = None
    with suppress(OSError):
        hosts |= dict.fromkeys(socket.gethostbyname_ex(socket.gethostname())[2])
    return tuple(host for host in hosts if not host.startswith("127.")) or ("127.0.0.1",)


class NoteServer:
    """Receives notes in a thread until it is closed."""

    def __init__(self, write: Callable[[str, str], object]) -> None:
        """Listen on a free port of all interfaces.

        Args:
            write: called with the name and the text of each note that has the secret, in any thread.
        """
        self._write = write
        self._listener = socket.create_server(("", 0))
        port = self._listener.getsockname()[1]
        self.address = ServerAddress(find_own_addresses(), port, secrets.token_hex(16))
        threading.Thread(target=self._accept, name="spmdsim notes", daemon=True).start()

    def close(self) -> None:
        """Receive no more notes."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's accept()
        self._listener.close()

    def _accept(self) -> None:
        """Receive the notes of each connection in a thread of its own, until the server is closed."""
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        """Receive one note from a connection: a line of JSON with the keys secret, name and text.

        If the secret is right and the name is allowed (:data:`NAMES`), write the note and answer with one byte.
        Otherwise close the connection without an answer; errors of the connection are ignored, too.

        Args:
            connection: the connection, which is closed afterwards.
        """
        connection.settimeout(SECONDS)
        with (
            connection,
            suppress(OSError, ValueError, TypeError, KeyError),
            connection.makefile("rb") as lines,
        ):
            note = json.loads(lines.readline(LONGEST))
            if hmac.compare_digest(str(note["secret"]), self.address.secret) and NAMES.fullmatch(
                note["name"]
            ):
                self._write(note["name"], str(note["text"]))
                connection.sendall(_WRITTEN)


def send_note(address: ServerAddress, name: str, text: str) -> bool:
    """Send a note to the starter, and wait until it has written it.

    Args:
        address: where the starter receives notes; its hosts are tried in order.
        name: the name of the note, one of :data:`NAMES`.
        text: its text.

    Returns:
        True if the starter has written the note. False if no host answers, for which each has ``SECONDS`` (2), or if
        the starter refuses the note.
    """
    line = json.dumps({"secret": address.secret, "name": name, "text": text}).encode() + b"\n"
    for host in address.hosts:
        with suppress(OSError), socket.create_connection((host, address.port), SECONDS) as connection:
            connection.sendall(line)
            return connection.recv(1) == _WRITTEN
    return False
