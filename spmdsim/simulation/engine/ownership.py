"""Decide which modules every rank loads for itself: all that are written in Python and may store something.

In a real program each rank is a process. What a module computes from its rank, stores in a cache or takes as a
default argument belongs to that rank. So every rank has its own copy of

- the user's packages, which are outside of the folders of installed packages;
- installed packages without extension modules, and those that name mpi4py or import a package which names it;
- modules of Python with state, such as ``logging``, ``random`` and ``tempfile``.

The rule holds for whole packages, because a module may store what another module of its package computed.
Ranks share the modules of :mod:`spmdsim.simulation.engine.shared_modules`, extension modules and installed packages
with extension modules that never reach MPI: loading numpy once per rank would take longer than the program.

Ranks share a function's variables, because the function was defined once. If the value of a variable comes from
mpi4py or from a module that every rank owns, each rank sees its own value: ``from lib import total`` before the
simulation becomes the rank's ``total`` in it.
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
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from typing import Any

from spmdsim.errors import InputError
from spmdsim.simulation.engine.scheduler import Task
from spmdsim.simulation.engine.shared_modules import SHARED_PACKAGES, SHARED_STANDARD, SIMULATOR

_SIMULATOR_PREFIXES = tuple(f"{name}." for name in SIMULATOR)
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"(?:^|[\\/])(?:site|dist)-packages(?:[\\/]|$)")
_IMPORTS = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+([A-Za-z_]\w*)[\w.]*[ \t]+import\b|import[ \t]+([^\n;#]+))", re.MULTILINE
)
_IMPORT_CALLS = re.compile(rb"(?:import_module|__import__)\(\s*['\"](\w+)")
_NAME = re.compile(rb"[A-Za-z_]\w*")
_MPI_NAME = re.compile(r"mpi4py(?:\.\w*)*|(?s:.*)\b(?:import|from)\s+mpi4py\b(?s:.*)")
#: Installed packages by their locations: do they name mpi4py, and which names do they import? They do not change.
_scanned: dict[tuple[str, ...], tuple[bool, frozenset[str]]] = {}
#: Folders and files of installed packages: have they extension modules?
_with_extensions: dict[tuple[str, ...], bool] = {}
#: Files by path: modification time, size, and the two facts of `_scanned`.
_files: dict[str, tuple[int, int, bool, frozenset[str]]] = {}
#: Loaded packages by name: the spec, is each rank's own, can reach MPI.
_loaded_packages: dict[str, tuple[ModuleSpec | None, bool, bool]] = {}


def find_module(name: str, path: Any, skipped: Any) -> ModuleSpec | None:
    """Find the spec of a module with all finders except one; return None if they find none.

    The finder of setuptools for distutils is skipped, too, because it loads setuptools. Errors of finders are raised.

    Args:
        name: the dotted name of the module.
        path: the folders of its package; None for a module without package.
        skipped: a finder of ``sys.meta_path`` that is not asked.
    """
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if finder is not skipped and find_spec is not None and type(finder).__module__ != "_distutils_hack":
            spec: ModuleSpec | None = find_spec(name, path)
            if spec is not None:
                return spec
    return None


class Ownership:
    """A decision, for each package, if every rank has its own copy or if ranks share it.

    Valid for one simulation.

    Args:
        finder: the finder in ``sys.meta_path`` that asks for the decisions. Searches for modules skip it, because it
            would ask again.
    """

    def __init__(self, finder: Any) -> None:
        self._finder = finder
        self._specs: dict[str, ModuleSpec | None] = {}
        self._is_own: dict[str, bool] = {}
        self._clean: set[str] = set()  # packages that cannot reach MPI

    def is_own(self, name: str) -> bool:
        """Return True if every rank has its own copy of a module.

        True for the user's packages, for installed ones that can reach MPI or have no extension modules, and for
        modules of Python with state. All modules of a package get one answer, which is cached. Ranks share the
        simulator itself.

        Args:
            name: the dotted name of the module.
        """
        top = name.partition(".")[0]
        if name in SIMULATOR or name.startswith(_SIMULATOR_PREFIXES):
            return False
        if top == "mpi4py":  # its modules in Python, such as mpi4py.futures, store workers and communicators
            return name != top
        if top not in self._is_own:
            self._is_own[top] = self._is_package_own(top)
        return self._is_own[top]

    def _is_package_own(self, top: str) -> bool:
        """Return True if every rank has its own copy of the package or module named ``top``."""
        if top in SHARED_PACKAGES:
            return False
        if self._is_python(top):
            return top not in SHARED_STANDARD and self._is_written_in_python(top)
        return self._is_users(top) or self._is_written_in_python(top) or self._reaches_mpi(top)

    def _is_written_in_python(self, top: str) -> bool:
        """Return True if the package ``top`` has files and none of them is an extension module.

        The answer for an installed package is cached for all simulations of the process.
        """
        locations = _locations(self._spec(top))
        if locations not in _with_extensions:
            has_extension = any(map(_is_extension, locations))
            if not all(_INSTALLED.search(location) for location in locations):
                return bool(locations) and not has_extension
            _with_extensions[locations] = has_extension
        return bool(locations) and not _with_extensions[locations]

    def find_again(self, top: str) -> ModuleSpec | None:
        """Search for a package again, even if another module is loaded under its name.

        Returns its spec, or None if it is not installed. Forgets the decision of :meth:`is_own`, too.

        Args:
            top: the top-level name of the package.
        """
        self._is_own.pop(top, None)
        self._specs.pop(top, None)
        return self._spec(top)

    def loaded_modules(self, reaching: bool) -> list[str]:
        """Return the names of the loaded modules of which every rank has its own copy.

        Args:
            reaching: True to return only modules of Python and of packages that can reach MPI.
        """
        modules = {name: name.partition(".")[0] for name in list(sys.modules)}
        facts = {top: self._loaded_facts(top) for top in dict.fromkeys(modules.values())}
        return [name for name, top in modules.items() if facts[top][reaching] and self.is_own(name)]

    def _loaded_facts(self, top: str) -> tuple[bool, bool]:
        """Return two facts on a loaded package, from a cache for all simulations of the process.

        They are computed again if the package was loaded again, from another file for example: its spec is then
        another object.

        Args:
            top: the top-level name of the package.

        Returns:
            ``(is_own, is_own_and_reaches_mpi)``: True if every rank has its own copy; True if, in addition, the
            package can reach MPI or is Python's.
        """
        spec = getattr(sys.modules.get(top), "__spec__", None)
        known_spec, is_own, is_own_and_reaches_mpi = _loaded_packages.get(top, (None, False, False))
        if top not in _loaded_packages or known_spec is not spec:
            self._specs[top] = spec
            is_own = self.is_own(top)
            is_own_and_reaches_mpi = is_own and (self._is_python(top) or self._reaches_mpi(top))
            _loaded_packages[top] = spec, is_own, is_own_and_reaches_mpi
        self._is_own[top] = is_own
        return is_own, is_own_and_reaches_mpi

    def _reaches_mpi(self, top: str) -> bool:
        """Return True if a package, or a package that it imports, can come to use MPI.

        It can if one of these packages names mpi4py in its source, or imports a module of the user, which has a copy
        for each rank. Imports are followed from package to package, but not into Python's own packages and those
        known as shared. The source files are only read (:func:`_scan_source`), nothing is imported. If no package can
        use MPI, all that were visited are stored in ``_clean``, and not read again.

        Args:
            top: the top-level name of the package.
        """
        visited, waiting = {top}, [top]
        while waiting:
            name = waiting.pop()
            if name in self._clean or self._is_python(name):
                continue
            # A shared package cannot use a module that has a copy for each rank.
            if name != top and self._is_users(name):
                return True
            names_mpi, imports = _scan_package(_locations(self._spec(name)))
            if names_mpi:
                return True
            waiting += imports - visited
            visited |= imports
        self._clean |= visited
        return False

    def _spec(self, top: str) -> ModuleSpec | None:
        """Return the spec of a package from a cache, or None if it is not installed or its finder fails.

        Args:
            top: the top-level name of the package.
        """
        if top not in self._specs:
            try:
                self._specs[top] = find_module(top, None, self._finder)
            except (ImportError, ValueError, AttributeError):  # raised by finders of other packages
                self._specs[top] = None
        return self._specs[top]

    def _is_python(self, top: str) -> bool:
        """Return True for a module of Python's, a package known as shared, and a name without module.

        For example True for "json" and "numpy" (:data:`SHARED_PACKAGES`), and for a name that no finder finds. False for a
        user's json.py: a module of Python's must have its files in Python's folders.

        Args:
            top: the top-level name of a package.
        """
        if top in SHARED_PACKAGES or top in sys.builtin_module_names:
            return True
        spec = self._spec(top)
        if spec is None or spec.origin in ("built-in", "frozen"):
            return True
        return top in sys.stdlib_module_names and all(
            os.path.realpath(location).startswith(_STANDARD) and not _INSTALLED.search(location)
            for location in _locations(spec)
        )

    def _is_users(self, top: str) -> bool:
        """Return True if a package is the user's: it is outside of the folders of installed packages."""
        if self._is_python(top):
            return False
        return not all(_is_installed(location) for location in _locations(self._spec(top)))


def _locations(spec: ModuleSpec | None) -> tuple[str, ...]:
    """Return the folders of a package, or the file of a module, as a tuple.

    Args:
        spec: the spec; None, and a built-in module, give an empty tuple.
    """
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(spec.submodule_search_locations)
    return (spec.origin,) if spec.origin and spec.has_location else ()


def _is_extension(location: str) -> bool:
    """Return True if ``location`` is an extension module, or a folder with one at any depth."""
    if location.endswith(tuple(EXTENSION_SUFFIXES)):
        return True
    return any(
        file.endswith(tuple(EXTENSION_SUFFIXES)) for _, _, files in os.walk(location) for file in files
    )


def _is_installed(location: str) -> bool:
    """Return True if a module or package is in a folder of installed packages.

    Such a folder is named site-packages or dist-packages, at any depth above the location. Or it is the target of
    ``pip --target``, which has entries with the ending ``.dist-info``; only the location's own folder is looked at. A
    location inside an archive is not in a target of ``pip --target``.

    Args:
        location: path of a module's file or of a package's folder.
    """
    folder = os.path.dirname(location)
    if _INSTALLED.search(folder):
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:  # inside an archive
        return False


def _scan_package(locations: tuple[str, ...]) -> tuple[bool, frozenset[str]]:
    """Return True if a file of a package names mpi4py, and the names that its files import.

    The .py and .pyc files of folders, subfolders and zip archives are read, not imported. Results are cached if all
    locations are in folders of installed packages.

    Args:
        locations: the folders of the package or the file of the module, from :func:`_locations`; () gives False and
            no names.

    Returns:
        ``(names_mpi4py, imported_names)``; the names are those of top-level modules.
    """
    scanned = _scanned.get(locations)
    if scanned is not None:
        return scanned
    scans = [scan for location in locations for scan in _scan_location(location)]
    result = any(names_mpi for names_mpi, _ in scans), frozenset().union(*(imports for _, imports in scans))
    if locations and all(_INSTALLED.search(location) for location in locations):
        _scanned[locations] = result
    return result


def _scan_location(location: str) -> Iterator[tuple[bool, frozenset[str]]]:
    """Yield the two facts of ``_scan_source`` for each Python file of a folder, file or zip archive.

    Python files end with .py or .pyc; folders are searched with their subfolders, except ``__pycache__``. A location
    that does not exist gives nothing.

    Args:
        location: path of the folder or file, which may be inside an archive.
    """
    if os.path.isdir(location):
        for folder, _, files in os.walk(location):
            if folder.endswith("__pycache__"):  # its files repeat the sources
                continue
            for file in files:
                if file.endswith((".py", ".pyc")):
                    yield _scan_file(os.path.join(folder, file))
    elif os.path.isfile(location):
        yield _scan_file(location)
    else:
        yield from map(_scan_source, _read_archive(location))


def _scan_file(path: str) -> tuple[bool, frozenset[str]]:
    """Return True if a file names mpi4py, and the top-level names of modules it imports.

    Both come from :func:`_scan_source`, or from a cache if the file's time and size did not change. A file that
    cannot be read gives (False, no names).

    Args:
        path: path of the file.
    """
    try:
        status = os.stat(path)
        facts = _files.get(path)
        if facts is not None and facts[:2] == (status.st_mtime_ns, status.st_size):
            return facts[2:]
        with open(path, "rb") as stream:
            scan = _scan_source(stream.read())
    except OSError:
        return False, frozenset()
    _files[path] = (status.st_mtime_ns, status.st_size, *scan)
    return scan


def _scan_source(source: bytes) -> tuple[bool, frozenset[str]]:
    """Return True if a source names mpi4py, and the top-level names of the modules that it imports.

    Imports are found by regular expressions, also in strings and compiled files, so there may be too many. Calls of
    ``import_module`` and ``__import__`` with a text count. For "mpi4py" see :func:`_names_mpi`.

    Args:
        source: content of a source or compiled file.

    >>> names_mpi, imports = _scan_source(b"import os.path, json")
    >>> names_mpi, sorted(imports)
    (False, ['json', 'os'])
    """
    # This test is faster than the regular expression, and false for most files.
    may_call = b"import_module" in source or b"__import__" in source
    imports: set[bytes] = set(_IMPORT_CALLS.findall(source) if may_call else ())
    import_lines = b"\n".join(line for line in source.split(b"\n") if b"import" in line)
    # A match has the package of "from package import …", or the text after "import"; the other one is empty.
    for package, modules in _IMPORTS.findall(import_lines):
        imports.update(module.strip().partition(b".")[0].split(b" ")[0] for module in modules.split(b","))
        imports.add(package)
    return _names_mpi(source), frozenset(name.decode() for name in imports if _NAME.fullmatch(name))


def _read_archive(location: str) -> Iterator[bytes]:
    """Yield the contents of the Python files of a package or module inside a zip archive.

    Yield nothing if the path does not lead through a zip archive.

    Args:
        location: a path through the archive, such as ``/lib/tools.zip/package``: the archive is the part of the path
            that is a file.
    """
    archive = os.path.dirname(location)
    while not os.path.isfile(archive):
        archive, tail = os.path.split(archive)
        if not tail:
            return
    if not zipfile.is_zipfile(archive):
        return
    start = os.path.relpath(location, archive).replace(os.sep, "/")
    with zipfile.ZipFile(archive) as archive_file:
        for name in archive_file.namelist():
            if name.startswith(start) and name.endswith((".py", ".pyc")):
                yield archive_file.read(name)


def _names_mpi(source: bytes) -> bool:
    """Return True if a file imports mpi4py anywhere, also inside a function.

    A string counts, too, if it is the name of mpi4py or has code that imports it. A docstring or another string that
    is a statement does not count. A file that cannot be parsed counts if it has the word "mpi4py".

    Args:
        source: content of a source or compiled file.
    """
    if b"mpi4py" not in source:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a compiled file, or one of another Python version
        return True
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # also docstrings
    return any(_is_mpi_import(node) for node in ast.walk(tree) if id(node) not in statements)


def _is_mpi_import(node: ast.AST) -> bool:
    """Return True for an import of mpi4py, and for a text that is its name or has an import of it.

    Relative imports do not count. A text that is its name may name a submodule, such as "mpi4py.MPI".

    Args:
        node: a node of a syntax tree; its children are not searched.
    """
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
    """The global variables, closure and default arguments of a function, with the values of each rank.

    Args:
        program: the function.
        real: the mpi4py.MPI that was loaded before the simulation, or None.
        virtual: the mpi4py.MPI of the simulation.
    """

    def __init__(self, program: types.FunctionType, real: Any, virtual: Any) -> None:
        self.program = program
        self.replaced: dict[str, Any] = {}  # modules loaded before the simulation that each rank loads again
        self._real, self._virtual = real, virtual
        self._originals = (
            dict(program.__globals__),
            [_cell_contents(cell) for cell in program.__closure__ or ()],
        )
        self._values_of_rank: dict[int, tuple[dict[str, Any], dict[int, Any]]] = {}
        self.differ = False  # True if a rank has a value that differs from the process's

    def call(self, task: Task, arguments: tuple[Any, ...]) -> Any:
        """Call the program's function as one rank, and return its result.

        The function sees the rank's own values of its global variables, closure cells and default arguments, such as
        the rank's COMM_WORLD (:meth:`_own_values`). They are stored, too: when the rank continues after another rank,
        :meth:`set_values` sets them again.

        Args:
            task: the rank, which is running.
            arguments: the positional arguments.

        Raises:
            InputError: If the function uses a communicator of the real MPI.
        """
        variables, contents = self._originals
        cell_names = dict(enumerate(self.program.__code__.co_freevars))
        rank_variables = self._own_values(task, variables)
        rank_cells = self._own_values(task, dict(enumerate(contents)), cell_names)
        self._values_of_rank[task.rank] = rank_variables, rank_cells
        self.differ |= bool(rank_variables or rank_cells)
        program = self._copy_with_defaults(task)
        self.set_values(task.rank)
        return program(*arguments)

    def _copy_with_defaults(self, task: Task) -> types.FunctionType:
        """Return a copy of the program's function that has the rank's default values.

        Default values belong to a function object, so each rank needs a copy. It shares the code, the global
        variables and the closure cells with the original.

        Args:
            task: the rank.
        """
        program = self.program
        copy = types.FunctionType(
            program.__code__,
            program.__globals__,
            program.__name__,
            self._own_defaults(task),
            program.__closure__,
        )
        keyword_defaults = program.__kwdefaults__ or {}
        keyword_names = {name: name for name in keyword_defaults}
        copy.__kwdefaults__ = keyword_defaults | self._own_values(task, keyword_defaults, keyword_names)
        return copy

    def _own_defaults(self, task: Task) -> tuple[Any, ...]:
        """Return the default values of the function's positional parameters, as ``task`` sees them."""
        code, defaults = self.program.__code__, dict(enumerate(self.program.__defaults__ or ()))
        # Default values belong to the last positional parameters.
        first_parameter = code.co_argcount - len(defaults)
        names = {i: code.co_varnames[first_parameter + i] for i in defaults}
        return tuple((defaults | self._own_values(task, defaults, names)).values())

    def set_values(self, rank: int) -> None:
        """Set the variables to the values of a rank."""
        variables, cells = self._values_of_rank.get(rank, ({}, {}))
        self.program.__globals__.update(variables)
        for i, value in cells.items():
            self.program.__closure__[i].cell_contents = value  # type: ignore[index]

    def restore(self) -> None:
        """Set the variables to the values that they had before the simulation."""
        variables, contents = self._originals
        for rank_variables, cells in self._values_of_rank.values():
            self.program.__globals__.update({name: variables[name] for name in rank_variables})
            for i in cells:
                self.program.__closure__[i].cell_contents = contents[i]  # type: ignore[index]

    def _own_values(
        self, task: Task, values: dict[Any, Any], names: dict[Any, str] | None = None
    ) -> dict[Any, Any]:
        """Return the variables of which a rank has its own value, as {key: the rank's value}.

        A rank has its own value if the value in the process is the real module MPI, its COMM_WORLD or COMM_SELF, or a
        module, function or class that each rank loads. All other variables are shared, and left out.

        Args:
            task: the rank.
            values: the values in the process: {name: value} of the global variables, {position: value} of closure
                cells or default values.
            names: {key: name of the variable}, for errors; None for the global variables, whose keys are names.

        Raises:
            InputError: If a variable that the function uses is another communicator of the real MPI. The function
                uses the global variables whose names are in its code, and all cells and defaults.
        """
        global_names = self.program.__code__.co_names
        own_values: dict[Any, Any] = {}
        for key, value in values.items():
            name = key if names is None else names[key]
            is_used = names is not None or key in global_names
            own_value = self._own_value(task, value, name, is_used)
            if own_value is not None:
                own_values[key] = own_value
        return own_values

    def _own_value(self, task: Task, value: Any, name: str, used: bool) -> Any:
        """Return a rank's own value of a variable, or None if ranks share the value.

        In the process the value is:

        - the real module MPI: its own value is the virtual one;
        - COMM_WORLD or COMM_SELF of the real MPI: the rank's virtual communicator;
        - another communicator of the real MPI: an error if the function uses the variable, else shared;
        - any other value: see :meth:`_own_module_value`.

        Args:
            task: the rank.
            value: the value in the process.
            name: name of the variable, for the error.
            used: True if the function uses the variable.

        Raises:
            InputError: If a used variable is another communicator of the real MPI.
        """
        real = self._real
        if real is not None and value is real:
            return self._virtual
        if real is None or not isinstance(value, real.Comm):
            return self._own_module_value(value)
        if value in (real.COMM_WORLD, real.COMM_SELF):
            return task.world if value == real.COMM_WORLD else task.self_comm
        if used:
            raise InputError(
                f"{name!r}, which the function uses, must not be a communicator of the real MPI; "
                "create it inside the function from MPI.COMM_WORLD"
            )
        return None

    def _own_module_value(self, value: Any) -> Any:
        """Return this rank's copy of a module, function or class; None if ranks share it.

        Only modules in ``replaced`` have copies: those loaded before the simulation that each rank loads again. The
        running rank's copy is imported if necessary. A function or class must be reachable in its module by its
        qualified name.

        Args:
            value: the value of a variable in the process.
        """
        if isinstance(value, types.ModuleType):
            name: str = value.__name__
            return import_module(name) if value is self.replaced.get(name) else None
        module_name, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module_name, str) or module_name not in self.replaced or not isinstance(path, str):
            return None
        if _attribute(self.replaced[module_name], path) is not value:
            return None
        return _attribute(import_module(module_name), path)


def _cell_contents(cell: Any) -> Any:
    """Return the contents of a closure cell, or None if it is not set."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _attribute(value: Any, path: str) -> Any:
    """Return the attribute at a dotted path, or None."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
