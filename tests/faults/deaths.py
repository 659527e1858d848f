"""Ranks that die, stop, exit or never come: before the first call, after three calls, after a thousand."""

from __future__ import annotations

from dataclasses import replace

from faults.case import DEADLINE, EMULATED, GUARDED, LAUNCH, MPIRUN, SECONDS, WHO, Case

LATE = SECONDS + DEADLINE

#: How a rank dies: what it does, what must be said, what suffices where the MPI's launcher alone speaks, and seconds.
KILLED = r"(?i)signal[: ]*{n}\b|EXIT CODE: {n}\b|\({word}\)|{word}"


def killed(number: int, word: str) -> tuple[str, ...]:
    """Return the expression for a launcher's report of a signal."""
    return (KILLED.replace("{n}", str(number)).replace("{word}", word),)


#: MPICH's launcher reports the first of the processes that have ended, which may be one that it has ended itself.
WAYS_TO_DIE: dict[str, tuple[str, tuple[str, ...], tuple[str, ...] | None, float]] = {
    "raise": ("raise ValueError('broken on purpose')  # @here", ("{here}", "ValueError: broken on purpose"), None, SECONDS),
    "sys.exit(3)": ("sys.exit(3)", (r"sys\.exit\(3\)",), None, SECONDS),
    "raise SystemExit(3)": ("raise SystemExit(3)", (r"sys\.exit\(3\)",), None, SECONDS),
    "exit(3)": ("exit(3)", (r"sys\.exit\(3\)",), None, SECONDS),
    "sys.exit(0)": ("sys.exit(0)", ("{step}",), None, SECONDS),
    "sys.exit(text)": ("sys.exit('the input is missing')", ("the input is missing",), None, SECONDS),
    "os._exit(5)": ("os._exit(5)", (r"os\._exit\(5\) at program\.py|exit code 5\b",), None, SECONDS),
    "os._exit(0)": ("os._exit(0)", (), None, LATE),
    "kill -9": ("os.kill(os.getpid(), 9)", killed(9, "SIGKILL|killed"), killed(9, "killed"), SECONDS),
    "segmentation fault": ("ctypes.string_at(0)", killed(11, "SIGSEGV|segmentation"), killed(11, "segmentation"), SECONDS),
    "abort": ("os.abort()", killed(6, "SIGABRT|aborted"), killed(6, "aborted|BAD TERMINATION"), SECONDS),
    "kill -15": ("os.kill(os.getpid(), 15); time.sleep(60)", killed(15, "SIGTERM|terminated"), killed(15, "terminated"), SECONDS),
    "kill -2": ("os.kill(os.getpid(), 2); time.sleep(60)", (r"(?i)KeyboardInterrupt|interrupted|SIGINT|signal 2\b|130",), None, SECONDS),
    "SIGSTOP": ("os.kill(os.getpid(), signal.SIGSTOP)", ("{step}",), None, LATE),
    "out of memory": (
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); np.ones(1 << 33)  # @here",
        ("{here}", "MemoryError|Unable to allocate"), None, SECONDS,
    ),
    "waits for nobody": ("threading.Event().wait()", ("{step}",), None, LATE),
    "busy for ever": ("while True: pass", ("{step}",), None, LATE),
    "thread raises": (
        "def work(): raise RuntimeError('in a thread')  # @here\n"
        "    t = threading.Thread(target=work, name='helper'); t.start(); t.join(); time.sleep(60)",
        ("{here}", "in a thread"), (r"in a thread",), LATE,
    ),
}  # fmt: skip


def death(how: str, when: int | str, bad: int, ways: tuple[str, ...]) -> Case:
    """Return the case of one kind of death at one time on one rank."""
    what, says, plain, seconds = WAYS_TO_DIE[how]
    calls = f"step({when})\n" if isinstance(when, int) and when else ""
    body = f"{calls}begins()\nif bad:\n    {what}\n"
    name = (
        f"{how} "
        + (f"at call {when}" if calls else "before the first call")
        + (" on rank 0" if bad == 0 else "")
    )
    named = (WHO, *says)
    return Case(
        name, "death", body, named, plain, ways=ways, bad=bad, seconds=seconds,
    )  # fmt: skip


#: What is tried after a thousand calls as well.
LATER = ("raise", "sys.exit(0)", "os._exit(0)", "kill -9", "SIGSTOP", "out of memory")
CASES = [
    *(death(how, 3, 1, (MPIRUN, GUARDED, LAUNCH, EMULATED)) for how in WAYS_TO_DIE),
    *(death(how, 0, 1, (MPIRUN, LAUNCH)) for how in WAYS_TO_DIE),
    *(death(how, 1000, 1, (MPIRUN, LAUNCH)) for how in LATER),
    *(death(how, 3, 0, (MPIRUN, LAUNCH)) for how in WAYS_TO_DIE),
]

CASES += [
    Case(
        "raises before MPI is there", "death", "begins()\n", (WHO, "{here}", "broken early"),
        ways=(LAUNCH,), top="if bad:\n    begins()\n    raise ValueError('broken early')  # @here\n", seconds=15,
    ),
    *(
        Case(
            f"{how} before MPI is started", "death", "begins()\n", (WHO, *says),
            top=f"import spmdsim\nif bad:\n    begins()\n    {what}\n", seconds=15,
        )
        for how, what, says in (
            ("raises", "raise ValueError('broken early')  # @here", ("{here}", "broken early")),
            ("sys.exit(3)", "sys.exit(3)", ()),
            ("os._exit(5)", "os._exit(5)", ()),
        )
    ),
    Case(
        "killed before MPI is there", "death", "begins()\n", (WHO,), (), top="if bad:\n    begins()\n    os.kill(os.getpid(), 9)\n",
        seconds=15,
    ),
    Case(
        "a module is missing on one rank", "death", "step(3)\nbegins()\nif bad:\n    import no_such_module  # @here\n",
        (WHO, "{here}", "no_such_module"),
    ),
    Case(
        "raises in the function of a source", "death",
        """
        def block(index):
            if bad: raise RuntimeError("source failed")  # @here
            return a[index]
        begins()
        Tensor.from_global(block, BOTH, w, shape=a.shape, dtype=np.float32).to(R)
        """,
        (WHO, "{here}", "source failed"),
    ),
    Case(
        "raises in an operator of the user's", "death",
        """
        from spmdsim.core import Rule
        from spmdsim.arrays import Op
        def forward(v):
            if bad: raise RuntimeError("operator failed")  # @here
            return v * 2
        double = Op("double", Rule.parse("m n -> m n"), forward)
        begins()
        double(x).to(R)
        """,
        (WHO, "{here}", "operator failed"),
    ),
    Case(
        "memory runs out in a redistribution", "death",
        """
        big = Tensor.from_global(lambda i: np.zeros([p.stop - p.start for p in i], np.float32), BOTH, w, shape=(8192, 8192), dtype=np.float32)
        begins()
        if bad:
            size = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20),) * 2)
        big.to(R)  # @here
        """,
        (WHO, "{here}", "MemoryError|[Mm]emory|allocate"), seconds=LATE,
    ),
    Case(
        "raises inside a subgroup", "death",
        """
        pair = Mesh((2,), ("pair",), (0, 1))
        y = Tensor.from_global(a, pair("pair", None), w)
        for _ in range(100): y.to(pair(None, None))
        begins()
        if bad: raise ValueError("in the pair")  # @here
        y.to(pair(None, None))
        """,
        (WHO, "{here}", "in the pair"),
    ),
    Case(
        "two ranks raise, each something else", "death",
        "step(3)\nbegins()\nif rank == 1: raise ValueError('first')\nif rank == 2: raise KeyError('second')\n",
        (r"ranks? [\[\d, ]*[12]\b", "first|second"),
    ),
    Case(
        "all ranks raise", "death", "step(3)\nbegins()\nraise ValueError('everywhere')  # @here\n",
        ("{here}", "everywhere"),
    ),
    Case(
        "all ranks are wrong alike", "death",
        "step(3)\nbegins()\nx.to(Mesh((64,), ('z',))('z', None))\n", ("64",),
    ),
    Case(
        "caught on one rank, which goes on", "death",
        """
        step(3)
        begins()
        try:
            if bad: raise ValueError("caught")
            x.to(COLUMNS)  # @here
        except ValueError:
            pass
        """,
        (WHO, "{here}"),
    ),
    Case(
        "raises while others are in save()", "death",
        """
        from spmdsim.arrays.checkpoint import save
        step(3)
        begins()
        if bad: raise ValueError("not saved")  # @here
        save(os.path.join(FOLDER, "checkpoint"), {"x": x})
        """,
        (WHO, "{here}", "not saved"),
    ),
    Case(
        "one rank dies in a barrier's stead", "death", "step(3)\nbegins()\nif bad: os._exit(0)\nw.barrier()\n",
        (WHO,), seconds=LATE,
    ),
    Case(
        "one rank stops, with the default deadline", "death",
        "step(3)\nbegins()\nif bad: os.kill(os.getpid(), signal.SIGSTOP)\n", (WHO, "{step}", r"(?:.*rank 1\b.*\n?){3}"),
        ways=(LAUNCH,), seconds=75, variables={"SPMDSIM_DEADLINE": ""},
    ),
    Case(
        "raises after the last call", "death", "step(3)\nbegins()\nif bad:\n    step(3)\n    raise ValueError('at the end')  # @here\n",
        (WHO, "{here}", "at the end"),
    ),
    Case(
        "an exception at exit", "death",
        "step(3)\nbegins()\nif bad: atexit.register(lambda: 1 / 0)  # @here\n", (WHO, "{here}", "ZeroDivisionError"), seconds=LATE,
    ),
    Case(
        "raises at exit", "death",
        "step(3)\nbegins()\nif bad: atexit.register(lambda: os._exit(7))\n", (WHO, r"\b7\b"), (r"\b7\b",), seconds=LATE,
    ),
    Case("MPI_Abort(0)", "death", "step(3)\nbegins()\nif bad: MPI.COMM_WORLD.Abort(0)\nstep(3)\n", (r"rank {bad}\b",), ways=(LAUNCH,)),
]  # fmt: skip

CASES += [
    Case(
        f"{what} of MPI's files", "death", f"step(3)\nbegins()\nif bad: {how}  # @here\nstep(3)\n",
        (WHO, "{here}", "would close files that MPI needs"), never=("epoll",),
    )
    for what, how in (
        ("os.closerange", "os.closerange(3, 200)"),
        ("os.close", "[os.close(number) for number in map(int, os.listdir('/proc/self/fd')) if number > 2]"),
    )
]  # fmt: skip

#: What keeps a rank in the interpreter's shutdown, where no thread of Python may run any more.
AT_EXIT = {
    "__del__": (
        "class Kept:\n        def __del__(self, wait=time.sleep): wait(1000)  # @here\n    kept = Kept()",
        "__del__",
    ),
    "an atexit handler": ("atexit.register(lambda: threading.Event().wait())  # @here", "<lambda>"),
    "a function in C at exit": ("atexit.register(time.sleep, 1000)", "without lines of Python"),
    "a thread": ("threading.Thread(target=lambda: time.sleep(1000)).start()  # @here", "thread Thread-"),
}
CASES += [
    Case(
        f"{what} blocks", "death", f"step(3)\nbegins()\nif bad:\n    {how}\n",
        (WHO, "has not ended", words, *["{here}"] * ("@here" in how)), seconds=LATE + 5,
    )
    for what, (how, words) in AT_EXIT.items()
]  # fmt: skip
CASES += [
    Case(
        f"raises with {what} closed", "death", f"step(3)\nbegins()\nif bad:\n    {how}\n    raise ValueError('unheard')  # @here\n",
        (WHO, "{here}", "ValueError: unheard"),
    )
    for what, how in (("sys.stderr", "sys.stderr.close()"), ("descriptor 2", "os.close(2)"), ("no sys.stderr, and stdout", "sys.stderr = None; sys.stdout.close()"))
]  # fmt: skip
CASES += [
    Case(
        "a forked child goes on in the program", "nothing wrong", "step(3)\nbegins()\nif bad: os.fork()\n",
        (WHO, "has forked, and has no part in the job"), fails=False, seconds=40,
    ),
    Case(
        "a forked child goes on, emulated", "nothing wrong", "step(3)\nbegins()\nif bad: os.fork()\n",
        (WHO, "has forked, and has no part in the job"), fails=False, seconds=40, ways=(EMULATED,),
    ),
    Case(
        "long work of one rank in C at exit", "nothing wrong",
        "step(3)\nbegins()\nif bad: atexit.register(sum, range(5 * 10**8))\nsys.stdout.write(f'END {rank}\\n')\nsys.stdout.flush()\nsys.exit(0)\n",
        fails=False, seconds=180,
    ),
    Case(
        "long work of one rank after the last call", "nothing wrong",
        "step(3)\nbegins()\nsys.stdout.write(f'END {rank}\\n')\nsys.stdout.flush()\nif rank == 0: time.sleep(12)\nsys.exit(0)\n",
        fails=False, seconds=40,
    ),
]  # fmt: skip

#: The launcher itself is killed: nothing may go on without it.
CASES += [
    Case(
        f"the launcher gets signal {number}", "launcher killed", "begins()\nwhile True:\n    step(1)\n",
        ways=(LAUNCH,), signal=number, seconds=SECONDS,
    )
    for number in (9, 15, 2)
]  # fmt: skip
CASES += [
    replace(CASES[-3], name="the launcher is killed while a rank is stopped", body="begins()\nif bad: os.kill(os.getpid(), signal.SIGSTOP)\nwhile True:\n    step(1)\n", seconds=20),
    Case("a log folder that cannot be made", "launcher killed", "begins()\n", (r"/proc/none",), ways=(LAUNCH,), options=("--log-dir", "/proc/none/logs")),
]  # fmt: skip

#: What a rank does before it starts MPI, with the others waiting there: some of them, and nobody else, can say so.
START = "import spmdsim, spmdsim.shutdown.phase_watch as watch\nwatch.DEADLINE, watch.SIGNS = 8.0, 1.0\nbegins()\n"
CASES += [
    Case(
        f"{what} before MPI starts", "death", "", (WHO, says), top=f"{START}if bad: {how}\nspmdsim.world()\n", seconds=LATE + 5,
    )
    for what, how, says in (
        ("sys.exit(0)", "sys.exit(0)", "left the program before"),
        ("SIGSTOP", "os.kill(os.getpid(), signal.SIGSTOP)", "did not come, the job ends"),
        ("waits for nobody", "threading.Event().wait()", "did not come, the job ends"),
    )
]  # fmt: skip
