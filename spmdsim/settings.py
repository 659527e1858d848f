"""The environment variables that users set: each is declared here once and read nowhere else.

``spmdsim doctor`` prints the values in force. The manual's page on settings has one row per declaration.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spmdsim.errors import InputError, nearest
from spmdsim.launcher import JOB_VARIABLE, is_root

PREFIX = "SPMDSIM_"

V = TypeVar("V")


@dataclass(frozen=True)
class Setting(Generic[V]):
    """An environment variable that users set.

    Attributes:
        name: the variable's name.
        rule: the words that follow "must be" in an error.
        shown: the default as the manual shows it.
        meaning: one line for the manual.
        default: the value of a variable that is not set, or is empty.
        parse: returns the value of a text; raises ValueError if the text breaks the rule.
        words: the words that the rule lists; the nearest one is named in an error.
    """

    name: str
    rule: str
    shown: str
    meaning: str
    default: V
    parse: Callable[[str], V]
    words: tuple[str, ...] = ()

    def read(self, environment: Mapping[str, str] | None = None) -> V:
        """Return the value of the setting: the value of its variable, or the default.

        An empty variable counts as not set. The first call of any setting in a process prints warnings for unknown
        variables (:func:`_warn_once`).

        Args:
            environment: the variables; None for those of this process.

        Raises:
            InputError: If the text breaks the rule; the message has the nearest of the rule's words.
        """
        _warn_once()
        text = (os.environ if environment is None else environment).get(self.name, "")
        if not text:  # a shell's default for an unset variable is empty, too
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            word = nearest(text, self.words)
            hint = f"; did you mean {word!r}?" if word else ""
            raise InputError(f"{self.name} must be {self.rule}, got {text!r}{hint}") from None


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise ValueError(text)
    return int(text)


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:  # refuses "nan", too
        raise ValueError(text)
    return seconds


def _parse_check(text: str) -> bool | str:
    modes: dict[str, bool | str] = {"0": False, "1": True, "auto": "auto", "values": "values"}
    if text not in modes:
        raise ValueError(text)
    return modes[text]


#: Modes in which implementations of steps are tried.
TUNE_MODES = ("off", "first", "full")


def _parse_tune(text: str) -> str:
    if text not in TUNE_MODES and not os.path.isfile(text):
        raise ValueError(text)
    return text


def _parse_record(text: str) -> str:
    path = os.path.abspath(text)
    if not os.path.isdir(os.path.dirname(path)) or os.path.isdir(path):
        raise ValueError(text)
    return path


RANKS: Setting[int | None] = Setting(
    "SPMDSIM_RANKS",
    "a whole number of ranks, 1 or more",
    "as many as the largest mesh has",
    "ranks that a process plays which no launcher started",
    None,
    _parse_count,
)
CHECK: Setting[bool | str] = Setting(
    "SPMDSIM_CHECK",
    "0, 1, auto or values",
    "auto",
    "whether ranks compare what they run: `0` never, `1` every call and its source line, `values` the elements of copies, too",
    "auto",
    _parse_check,
    ("auto", "values"),
)
DEADLINE: Setting[float] = Setting(
    "SPMDSIM_DEADLINE",
    "a number of seconds above 0, or inf",
    "60 seconds",
    "seconds after which a rank that others wait for is named, and the job ends",
    60.0,
    _parse_seconds,
    ("inf",),
)
TUNE: Setting[str] = Setting(
    "SPMDSIM_TUNE",
    "off, first, full or a file of `spmdsim tune`",
    "first",
    "which implementations of a repeated step are tried: none, those near the best by the model, all; a file starts with its findings",
    "first",
    _parse_tune,
    TUNE_MODES,
)
RECORD: Setting[str | None] = Setting(
    "SPMDSIM_RECORD",
    "a file in a folder that exists",
    "no file",
    "file for the last calls of all ranks, written if the job stops",
    None,
    _parse_record,
)
RANKS_PER_NODE: Setting[int | None] = Setting(
    "SPMDSIM_RANKS_PER_NODE",
    "a whole number of ranks, 1 or more",
    "all ranks of a machine",
    "consecutive ranks that are treated as a node, to try several nodes on one machine",
    None,
    _parse_count,
)

#: All settings, in the manual's order.
SETTINGS: tuple[Setting[Any], ...] = (RANKS, CHECK, DEADLINE, TUNE, RECORD, RANKS_PER_NODE)
#: Settings of earlier releases, and what replaces each of them.
REMOVED = {
    "SPMDSIM_TUNING": "set SPMDSIM_TUNE to the file",
    "SPMDSIM_REPRODUCIBLE": "use MPIWorld(reproducible=False)",
}


def explain_unknown_names(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable with this package's prefix that is no setting, and a line of advice.

    The advice names the nearest setting or all settings. For a setting of an earlier version it says why it has no
    effect. The variable of a job (``SPMDSIM_JOB``) is left out.

    Args:
        environment: the variables.

    >>> dict(explain_unknown_names({"SPMDSIM_CHEK": "1", "SPMDSIM_RANKS": "4"}))
    {'SPMDSIM_CHEK': "SPMDSIM_CHEK is not a setting; did you mean 'SPMDSIM_CHECK'?"}
    """
    setting_names = [setting.name for setting in SETTINGS]
    for name in environment:
        if not name.startswith(PREFIX) or name in setting_names or name == JOB_VARIABLE:
            continue
        if name in REMOVED:
            yield name, f"{name} has no effect any more: {REMOVED[name]}"
            continue
        near = nearest(
            name.removeprefix(PREFIX), [setting_name.removeprefix(PREFIX) for setting_name in setting_names]
        )
        hint = f"did you mean {PREFIX + near!r}?" if near else f"the settings are {', '.join(setting_names)}"
        yield name, f"{name} is not a setting; {hint}"


_warned: list[bool] = []


def _warn_once() -> None:
    """Print, once per process, a line for each unknown variable with this package's prefix.

    The lines go to stderr, and are about the variables of this process. Nothing is printed on ranks above 0, and on
    ranks that ``spmdsim launch`` started, since it has printed the lines.
    """
    if _warned:
        return
    _warned.append(True)
    if JOB_VARIABLE not in os.environ and is_root():
        for _, line in explain_unknown_names(os.environ):
            sys.stderr.write(f"warning: {line}\n")
