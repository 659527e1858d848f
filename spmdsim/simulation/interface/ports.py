"""Ports: names by which two groups of ranks meet, and services under which programs publish them."""

from __future__ import annotations

from itertools import count
from typing import Any

from spmdsim.simulation.data.constants import MPIError


class Ports:
    """The open ports and the published services of a simulation.

    Attributes:
        owners: the rank that opened a port, and the number of the port, by name.
        services: the name of a port by the name of a service.
        state: the state of a communicator of all ranks, over which groups meet; None before the first meeting.
    """

    def __init__(self) -> None:
        self.owners: dict[str, tuple[int, int]] = {}
        self.services: dict[str, str] = {}
        self.state: Any = None
        self._numbers = count()

    def open(self, rank: int) -> str:
        """Open a port of a rank; return its name."""
        number = next(self._numbers)
        name = f"port {number} of rank {rank}"
        self.owners[name] = rank, number
        return name

    def close(self, name: str) -> None:
        """Close a port; raise an MPI error (ERR_PORT) if it is not open."""
        self.find_owner("Close_port", name)
        del self.owners[name]

    def find_owner(self, call: str, name: str) -> tuple[int, int]:
        """Return the rank that opened a port, and the number of the port.

        Args:
            call: name of the calling function.
            name: name of the port.

        Raises:
            MPIError: If the port is not open (ERR_PORT).
        """
        if name not in self.owners:
            raise MPIError(
                "ERR_PORT", f"{call}: port_name must be an open port, got {name!r}; call Open_port"
            )
        return self.owners[name]

    def publish(self, service: str, name: str) -> None:
        """Publish a port under the name of a service.

        Args:
            service: the name of the service.
            name: the name of the port.

        Raises:
            MPIError: If the service is published (ERR_SERVICE).
        """
        if service in self.services:
            raise MPIError("ERR_SERVICE", f"Publish_name: service_name must be a new name, got {service!r}")
        self.services[service] = name

    def look_up(self, service: str) -> str:
        """Return the name of the port of a service; raise an MPI error (ERR_NAME) if it is not published."""
        if service not in self.services:
            raise MPIError("ERR_NAME", f"Lookup_name: service_name must be published, got {service!r}")
        return self.services[service]

    def withdraw(self, service: str, name: str) -> None:
        """Remove a service.

        Args:
            service: the name of the service.
            name: the name of its port.

        Raises:
            MPIError: If the service is not published with this port (ERR_SERVICE).
        """
        if self.services.get(service) != name:
            raise MPIError(
                "ERR_SERVICE", f"Unpublish_name: service_name must be published for the port, got {service!r}"
            )
        del self.services[service]


def ports_of(task: Any) -> Ports:
    """Return the ports of the simulation of a rank's task."""
    scheduler = task.scheduler
    if scheduler.ports is None:
        scheduler.ports = Ports()
    ports: Ports = scheduler.ports
    return ports
