"""Name the modules that all ranks share, although ranks are processes in a real program.

Every other module that is written in Python is loaded once per rank. Extension modules are shared, because Python
cannot load them twice.
"""

from __future__ import annotations

#: Modules of Python without state of their own. None of their functions changes a variable of the module, and they
#: import only modules that are shared, too. A test computes both from their sources.
_STATELESS = """
    __future__ _bootsubprocess _collections_abc _compat_pickle _compression _markupbase _pydecimal _sitebuiltins
    _weakrefset aifc ast bisect cProfile chunk cmd code codecs codeop
    collections colorsys configparser contextlib contextvars copy csv curses dataclasses decimal fnmatch fractions
    functools genericpath getpass glob graphlib gzip heapq hmac html imghdr imp json keyword locale lzma mailcap netrc
    nturl2path numbers operator pickletools pprint profile pstats pty py_compile pydoc_data quopri
    rlcompleter runpy shelve shlex signal sndhdr sqlite3 sre_compile sre_constants
    sre_parse stat string stringprep struct sunau symtable textwrap this token tokenize tomllib
    traceback tracemalloc tty types uu wave xdrlib
"""
#: Modules that NumPy and the simulator use, so that a copy would have other classes. They store caches and tables.
_LOADED_BY_NUMPY = """
    abc copyreg ctypes datetime dis encodings enum importlib inspect io linecache ntpath opcode os pickle platform
    posixpath re reprlib site typing warnings weakref zipimport
"""
#: Modules whose classes programs compare, or whose workers belong to the process. Their state is a cache of constants.
_VALUES_AND_WORKERS = "base64 hashlib ipaddress multiprocessing pathlib uuid zoneinfo"
#: Modules of Python that ranks share.
SHARED_STANDARD = frozenset(f"{_STATELESS} {_LOADED_BY_NUMPY} {_VALUES_AND_WORKERS}".split())

#: Large packages, in part impossible to load twice. They store no communicator, although some name mpi4py.
_LARGE = "mpi4py numpy scipy pandas matplotlib sklearn numba torch jax jaxlib tensorflow"
#: Packages whose objects large packages return.
_USED_BY_LARGE = "cycler dateutil joblib mpl_toolkits packaging pyparsing pytz six threadpoolctl tzdata"
#: Installed packages that ranks share. A program does not import its build script: if an installed package names
#: "setup", it does not mean the setup.py in the user's folder.
SHARED_PACKAGES = frozenset(f"{_LARGE} {_USED_BY_LARGE} setup".split())

#: Packages that run the ranks and judge them, and so are shared.
SIMULATOR = ("spmdsim.errors", "spmdsim.simulation", "spmdsim.labs")
