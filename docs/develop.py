"""Run a command so that an edit of bpe_numba.py compiles only the kernels that it changes.

    python docs/develop.py pytest test_bpe_numba.py -k a_stream
    python docs/develop.py python bpe_numba.py train corpus.txt

Numba compiles all kernels of a file again when the file changes. Here each kernel has a digest of
the statements that it uses, directly or through others: functions, classes and constants of the
module. The kernel is compiled again when this digest changes. The cache is in `.kernels`, beside
the module. This needs Numba 0.62 or later.
"""

import ast
import functools
import hashlib
import json
import os
import subprocess
import symtable
import sys
from pathlib import Path

STRUCTS = "Kept"  # ends the names of the types of structs, in place of the digest of the file
FOLDER = Path(__file__).resolve().parent
CACHE = FOLDER.parent / ".kernels"


def _for_kernels(statement):
    """Remove docstrings, and the methods of classes, since kernels use only the fields."""
    if isinstance(statement, ast.ClassDef):
        fields = [part for part in statement.body if not isinstance(part, ast.FunctionDef)]
        statement.body = fields or [ast.Pass()]
    for node in ast.walk(statement):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            node.body[:1] = [ast.Pass()]
    return statement


def _globals_of(table):
    """Collect the global names that a scope and those inside it read."""
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return names.union(*map(_globals_of, table.get_children()))


def _uses(statement, tables):
    """Collect the names of the module that a statement reads.

    tables  the scopes of the module's functions, by their lines
    """
    if not isinstance(statement, ast.FunctionDef):
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    outside = [*statement.decorator_list, *statement.args.defaults, *statement.args.kw_defaults]
    nodes = [node for part in outside if part for node in ast.walk(part)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | _globals_of(tables[statement.lineno])


def _binds(statement):
    """Collect the names that a statement of a module gives to its values."""
    nodes = [*ast.walk(statement)]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        nodes = [statement]
    names = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    stores = [node for node in nodes if isinstance(node, ast.Name)]
    return names | {node.id for node in stores if isinstance(node.ctx, ast.Store)}


def digests(source):
    """Map each name of a module to a digest of all statements on which it depends.

    >>> old = digests("n = 1\\ndef f(): return n\\ndef g(): return f() + 1\\ndef h(): return 2")
    >>> new = digests("n = 3\\ndef f(): return n\\ndef g(): return f() + 1\\ndef h(): return 2")
    >>> [name for name in old if old[name] != new[name]]
    ['n', 'f', 'g']
    """
    statements = [_for_kernels(statement) for statement in ast.parse(source).body]
    texts = [ast.dump(statement) for statement in statements]
    scopes = symtable.symtable(source, "bpe_numba.py", "exec").get_children()
    tables = {scope.get_lineno(): scope for scope in scopes if scope.get_type() == "function"}
    uses = [_uses(statement, tables) for statement in statements]
    places = {}
    for place, statement in enumerate(statements):
        for name in sorted(_binds(statement)):
            places.setdefault(name, []).append(place)
    result = {}
    for name, begin in places.items():
        reached = set()
        ahead = [*begin]
        while ahead:
            place = ahead.pop()
            if place not in reached:
                reached.add(place)
                for used in uses[place]:
                    ahead.extend(places.get(used, ()))
        joined = "\n".join(texts[place] for place in sorted(reached))
        result[name] = hashlib.sha256(joined.encode()).hexdigest()
    return result


@functools.cache
def digests_of_file(path):
    """Compute the digests of a file once; the cache keeps them for other processes."""
    source = Path(path).read_bytes()
    whole = hashlib.sha256(source).hexdigest()
    saved = CACHE / f"{whole}.json"
    if not saved.exists():
        CACHE.mkdir(exist_ok=True)
        temporary = saved.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(digests(source.decode()) | {"": whole}))
        temporary.replace(saved)
    return json.loads(saved.read_text())


class KeptKernels:
    """What Numba asks for the place and the stamp of a cached kernel."""

    def __init__(self, digest):
        flags = [os.environ.get(name, "") for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT")]
        self.digest = hashlib.sha256("|".join([digest, *flags]).encode()).hexdigest()[:20]

    @classmethod
    def from_function(cls, function, path):
        """Return the place of a kernel; None leaves it to Numba's other locators."""
        if Path(path).name != "bpe_numba.py":
            return None
        name = function.__qualname__.partition(".")[0]
        known = digests_of_file(path)
        return cls(known.get(name.removesuffix(f"Type{STRUCTS}"), known[""]))

    def get_cache_path(self):
        """Return the folder of the cache."""
        return str(CACHE)

    def ensure_cache_path(self):
        """Do nothing: `from_function` has made the folder."""

    def get_source_stamp(self):
        """Return what changes when the kernel must be compiled again."""
        return self.digest

    get_disambiguator = get_source_stamp  # so the cache keeps the kernels of several versions


def main():
    """Run the command of the arguments."""
    others = "UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,IPythonCacheLocator"
    environment = os.environ | {
        "NUMBA_CACHE_LOCATOR_CLASSES": f"develop.KeptKernels,{others}",
        "BPE_NUMBA_STRUCTS": STRUCTS,
        "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.call(sys.argv[1:], env=environment)


if __name__ == "__main__":
    sys.exit(main())
