"""Which modules every rank has for itself: all that are no part of Python and can reach MPI.

A rank of a real program is a process, so what a module computed from its rank, kept in a cache or took as a default
argument is that rank's own. A package belongs to the ranks if it is the user's (outside of the folders that packages
are installed into), or if it, or something it imports, names mpi4py. It then does so as a whole, because any of its
modules may hold what the others found out. Shared are the standard library, extension modules (they cannot be loaded
twice), and installed packages that never come to MPI: loading numpy once per rank would cost more than the program.

A function's variables are shared, as it was defined once. But what they hold of mpi4py, and of modules of which every
rank has its own, is every rank's own here too: ``from lib import total`` before the simulation is the rank's
``total`` in it.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import types
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

from spmdsim.errors import InputError
from spmdsim.simulation.engine.scheduler import Task

# Large, in part not loadable twice, and known to hold no communicator though some of them mention mpi4py.
_SHARED = frozenset(
    [
        "mpi4py",
        "numpy",
        "scipy",
        "pandas",
        "matplotlib",
        "sklearn",
        "numba",
        "torch",
        "jax",
        "jaxlib",
        "tensorflow",
        # No program imports the script that builds a package. Installed packages that name one reach no module of the user's,
        # though a setup.py lies beside the program.
        "setup",
    ]
)
_SIMULATOR = ("spmdsim.errors", "spmdsim.simulation", "spmdsim.labs")  # what runs the ranks and judges them
_SIMULATORS = tuple(f"{name}." for name in _SIMULATOR)
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"(?:^|[\\/])(?:site|dist)-packages(?:[\\/]|$)")
_IMPORTS = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+([A-Za-z_]\w*)[\w.]*[ \t]+import\b|import[ \t]+([^\n;#]+))", re.MULTILINE
)
_IMPORT_CALLS = re.compile(rb"(?:import_module|__import__)\(\s*['\"](\w+)")
_NAME = re.compile(rb"[A-Za-z_]\w*")
_MPI_NAME = re.compile(r"mpi4py(?:\.\w*)*|(?s:.*)\b(?:import|from)\s+mpi4py\b(?s:.*)")
_scanned: dict[tuple[str, ...], tuple[bool, frozenset[str]]] = {}  # installed packages do not change
_files: dict[str, tuple[int, int, bool, frozenset[str]]] = {}  # others': time and size, and what is in them
_loaded: dict[str, tuple[ModuleSpec | None, bool, bool]] = {}  # of a loaded package: own, reaches MPI


def find(name: str, path: Any, but: Any) -> ModuleSpec | None:
    """Find the spec of a module with all finders but one, and without setuptools' finder for distutils.

    That one loads setuptools to answer.
    """
    for finder in sys.meta_path:
        look = getattr(finder, "find_spec", None)
        if finder is not but and look is not None and type(finder).__module__ != "_distutils_hack":
            spec: ModuleSpec | None = look(name, path)
            if spec is not None:
                return spec
    return None


class Ownership:
    """A record for one simulation of the modules that every rank has for itself and those that ranks share.

    Args:
        finder: the finder that asks, which is not asked itself.
    """

    def __init__(self, finder: Any) -> None:
        self._finder = finder
        self._specs: dict[str, ModuleSpec | None] = {}
        self._own: dict[str, bool] = {}
        self._clean: set[str] = set()  # what never comes to MPI

    def own(self, name: str) -> bool:
        """Return True if every rank has its own copy of a module."""
        top = name.partition(".")[0]
        if name in _SIMULATOR or name.startswith(_SIMULATORS):
            return False
        if top not in self._own:
            self._own[top] = self._users(top) or self._reaches_mpi(top)
        return self._own[top]

    def look_again(self, top: str) -> ModuleSpec | None:
        """Find the location of a package anew, whatever is loaded under its name."""
        self._own.pop(top, None)
        self._specs.pop(top, None)
        return self._spec(top)

    def loaded(self, reaching: bool) -> list[str]:
        """Return the loaded modules that every rank has for itself, or only those whose package can reach MPI."""
        modules = list(sys.modules)
        tops = {top for name in modules if self._loaded(top := name.partition(".")[0])[reaching]}
        return [name for name in modules if name.partition(".")[0] in tops and self.own(name)]

    def _loaded(self, top: str) -> tuple[bool, bool]:
        spec = getattr(sys.modules.get(top), "__spec__", None)
        facts = _loaded.get(top)
        if facts is None or facts[0] is not spec:
            self._specs[top] = spec
            facts = _loaded[top] = (spec, self.own(top), self.own(top) and self._reaches_mpi(top))
        self._own[top] = facts[1]
        return facts[1:]

    def _reaches_mpi(self, top: str) -> bool:
        """Return True if a package or one of its imports names mpi4py, or if it imports a module of the user's."""
        seen, waiting = {top}, [top]
        while waiting:
            name = waiting.pop()
            if name in self._clean or self._python(name):
                continue
            # What is shared cannot hold a module of which there are many.
            if name != top and self._users(name):
                return True
            names_mpi, imports = _scan(_places(self._spec(name)))
            if names_mpi:
                return True
            waiting += imports - seen
            seen |= imports
        self._clean |= seen
        return False

    def _spec(self, top: str) -> ModuleSpec | None:
        if top not in self._specs:
            try:
                self._specs[top] = find(top, None, self._finder)
            except (ImportError, ValueError, AttributeError):  # another's finder, asked for what it dislikes
                self._specs[top] = None
        return self._specs[top]

    def _python(self, top: str) -> bool:
        """Return True if a name belongs to Python, to a shared package, or to no module."""
        if top in _SHARED or top in sys.builtin_module_names:
            return True
        spec = self._spec(top)
        if spec is None or spec.origin in ("built-in", "frozen"):
            return True
        return top in sys.stdlib_module_names and all(
            os.path.realpath(place).startswith(_STANDARD) and not _INSTALLED.search(place)
            for place in _places(spec)
        )

    def _users(self, top: str) -> bool:
        """Return True if a package is the user's own: not in a folder of installed packages."""
        if self._python(top):
            return False
        return not all(_is_installed(place) for place in _places(self._spec(top)))


def _places(spec: ModuleSpec | None) -> tuple[str, ...]:
    """Return the folders of a package, or the file of a module."""
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(spec.submodule_search_locations)
    return (spec.origin,) if spec.origin and spec.has_location else ()


def _is_installed(place: str) -> bool:
    """Return True for files in site-packages or beside the metadata that ``pip --target`` writes."""
    folder = os.path.dirname(place)
    if _INSTALLED.search(folder):
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:  # inside an archive
        return False


def _scan(places: tuple[str, ...]) -> tuple[bool, frozenset[str]]:
    """Return whether a package's files name mpi4py, and the top-level names that they import."""
    scanned = _scanned.get(places)
    if scanned is not None:
        return scanned
    facts = [fact for place in places for fact in _facts(place)]
    result = any(names for names, _ in facts), frozenset().union(*(imports for _, imports in facts))
    if places and all(_INSTALLED.search(place) for place in places):
        _scanned[places] = result
    return result


def _facts(place: str) -> Iterator[tuple[bool, frozenset[str]]]:
    """Yield for each Python file, in folders and archives, if it names mpi4py, and its top-level imports."""
    if os.path.isdir(place):
        for folder, _, files in os.walk(place):
            if not folder.endswith("__pycache__"):  # says again what the sources beside it say
                yield from (_file(os.path.join(folder, f)) for f in files if f.endswith((".py", ".pyc")))
    elif os.path.isfile(place):
        yield _file(place)
    else:
        yield from map(_look_into, _archived(place))


def _file(path: str) -> tuple[bool, frozenset[str]]:
    try:
        status = os.stat(path)
        facts = _files.get(path)
        if facts is not None and facts[:2] == (status.st_mtime_ns, status.st_size):
            return facts[2:]
        with open(path, "rb") as stream:
            looked = _look_into(stream.read())
    except OSError:
        return False, frozenset()
    _files[path] = (status.st_mtime_ns, status.st_size, *looked)
    return looked


def _look_into(source: bytes) -> tuple[bool, frozenset[str]]:
    called = b"import_module" in source or b"__import__" in source  # looked for faster than by the expression
    imports: set[bytes] = set(_IMPORT_CALLS.findall(source) if called else ())
    for package, modules in _IMPORTS.findall(
        b"\n".join(line for line in source.split(b"\n") if b"import" in line)
    ):
        imports.update(part.strip().partition(b".")[0].split(b" ")[0] for part in modules.split(b","))
        imports.add(package)
    return _names_mpi(source), frozenset(name.decode() for name in imports if _NAME.fullmatch(name))


def _archived(place: str) -> Iterator[bytes]:
    """Yield the contents of a package's or module's Python files inside a zip archive."""
    archive = os.path.dirname(place)
    while not os.path.isfile(archive):
        archive, last = os.path.split(archive)
        if not last:
            return
    if not zipfile.is_zipfile(archive):
        return
    start = os.path.relpath(place, archive).replace(os.sep, "/")
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            if name.startswith(start) and name.endswith((".py", ".pyc")):
                yield opened.read(name)


def _names_mpi(source: bytes) -> bool:
    """Return True if a file imports mpi4py anywhere, also by name or in executed code."""
    if b"mpi4py" not in source:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # compiled, or of another Python: the name is all we have
        return True
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return any(_is_mpi_import(node) for node in ast.walk(tree) if id(node) not in texts)


def _is_mpi_import(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "mpi4py" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return not node.level and (node.module or "").partition(".")[0] == "mpi4py"
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and bool(_MPI_NAME.fullmatch(node.value))
    )


class Variables:
    """The global variables, closure and default arguments of a function.

    Args:
        program: the function.
        real: the mpi4py.MPI that was loaded before the simulation, or None.
        virtual: the one of the simulation.
    """

    def __init__(self, program: types.FunctionType, real: Any, virtual: Any) -> None:
        self.program = program
        self.replaced: dict[str, Any] = {}  # modules loaded before, of which every rank has its own
        self._real, self._virtual = real, virtual
        self._kept = dict(program.__globals__), [_contents(cell) for cell in program.__closure__ or ()]
        self._of_ranks: dict[int, tuple[dict[str, Any], dict[int, Any]]] = {}
        self.differ = False  # some rank's are others than those of the process

    def call(self, task: Task, arguments: tuple[Any, ...]) -> Any:
        """Call the function with the values of the running rank.

        Raises:
            InputError: the function uses a communicator of the real MPI.
        """
        program, (variables, contents) = self.program, self._kept
        cells = dict(enumerate(contents))
        names = program.__code__.co_freevars
        own = self._own(task, variables), self._own(task, cells, dict(enumerate(names)))
        self._of_ranks[task.rank] = own
        self.differ |= any(own)
        defaults = dict(enumerate(program.__defaults__ or ()))
        named = program.__kwdefaults__ or {}
        start = program.__code__.co_argcount - len(defaults)
        places = {i: program.__code__.co_varnames[start + i] for i in defaults}
        defaults |= self._own(task, defaults, places)
        body = types.FunctionType(
            program.__code__,
            program.__globals__,
            program.__name__,
            tuple(defaults.values()),
            program.__closure__,
        )
        body.__kwdefaults__ = named | self._own(task, named, {name: name for name in named})
        self.put(task.rank)
        return body(*arguments)

    def put(self, rank: int) -> None:
        """Let the variables hold what they hold on a rank."""
        variables, cells = self._of_ranks.get(rank, ({}, {}))
        self.program.__globals__.update(variables)
        for i, value in cells.items():
            self.program.__closure__[i].cell_contents = value  # type: ignore[index]

    def restore(self) -> None:
        """Let the variables hold again what they held before."""
        variables, contents = self._kept
        for own, cells in self._of_ranks.values():
            self.program.__globals__.update({name: variables[name] for name in own})
            for i in cells:
                self.program.__closure__[i].cell_contents = contents[i]  # type: ignore[index]

    def _own(self, task: Task, values: dict[Any, Any], names: dict[Any, str] | None = None) -> dict[Any, Any]:
        """Return the values that differ on this rank. Variables that the function does not name may be missing."""
        used = self.program.__code__.co_names
        own = {
            key: self._value(task, value, names[key] if names else key, names is not None or key in used)
            for key, value in values.items()
        }
        return {key: value for key, value in own.items() if value is not None}

    def _value(self, task: Task, value: Any, name: str, used: bool) -> Any:
        """Return a value's counterpart on this rank, or None if ranks share the value."""
        real = self._real
        if real is not None and value is real:
            return self._virtual
        if real is None or not isinstance(value, real.Comm):
            return self._of_module(value)
        if value in (real.COMM_WORLD, real.COMM_SELF):
            return task.world if value == real.COMM_WORLD else task.own
        if used:
            raise InputError(
                f"the function uses {name!r}, a communicator of the real MPI that virtual ranks are not in: "
                "make it inside the function, from the virtual MPI.COMM_WORLD"
            )
        return None

    def _of_module(self, value: Any) -> Any:
        """Return this rank's copy of a module, or of a function or class of a module; None if ranks share it."""
        if isinstance(value, types.ModuleType):
            name: str = value.__name__
            return import_module(name) if value is self.replaced.get(name) else None
        home, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(home, str) or home not in self.replaced or not isinstance(path, str):
            return None
        return (
            _attribute(import_module(home), path) if _attribute(self.replaced[home], path) is value else None
        )


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
