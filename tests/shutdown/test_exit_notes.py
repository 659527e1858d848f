"""Exit notes of a rank are complete or absent."""

from __future__ import annotations

import os
import signal

import pytest

from spmdsim.launcher import give_job_facts
from spmdsim.shutdown import exit_notes

resource = pytest.importorskip("resource")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a job's exit notes, in which this process is rank 0."""
    facts: dict[str, str] = {}
    give_job_facts(facts, folder=str(tmp_path))
    for name, value in facts.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_a_note_that_cannot_be_completed_is_absent(folder):
    """Half a note on a full disk would be a failure with another exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2, 2))
            code = 3 if exit_notes.note_failure(137, "was killed") else 0
            exit_notes.note_left(137)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert exit_notes.read_failures(folder) == [] and not exit_notes.list_ended_ranks(folder)


def test_the_first_failure_of_a_rank_is_kept(folder):
    assert exit_notes.note_failure(5) and exit_notes.note_failure(137, "was killed")
    assert exit_notes.read_failures(folder) == [exit_notes.Failure(0, 5, "")]
    assert [path.name for path in folder.iterdir()] == ["rank_0"]
