"""Train and run subword tokenizers, BPE, WordPiece and Unigram, with kernels compiled by Numba.

    python bpe_numba.py train                                    # on the Python standard library's own sources
    python bpe_numba.py train corpus.txt --vocab-size 32000 --special-token "<|endoftext|>" --out model
    python bpe_numba.py encode model corpus.txt --out tokens.npy
    python bpe_numba.py convert model --to tiktoken --out model.tiktoken

    >>> tokenizer = Tokenizer(*train_bpe_from_counts({b"low": 5, b" lower": 2, b" newest": 6, b" widest": 3}, 262))
    >>> tokenizer.encode("lowest")
    [259, 257]
    >>> [tokenizer.id_to_token(id) for id in tokenizer.encode("lowest")]
    [b'low', b'est']

What the words mean here

    document        a text on its own: a file, a line of a .jsonl, or what lies between two special tokens
    pretoken        a piece of a document that the pattern cuts out; no token reaches across its ends
    word            a pretoken as a sequence of symbols, with the count of its occurrences
    symbol          a number for a string of bytes while learning; the first are an alphabet: bytes, or characters
    pair            two neighbouring symbols of a word
    merge           a pair that became one symbol; its rank is its number in the list of merges
    token, id       an entry of the vocabulary, as bytes, and its number
    special token   a token that is found in a text as it is: never split, never merged, never learnt from
    family, kind    of models: how a vocabulary is learnt, and how words are cut by it

and the letters in shapes: W words, N symbols in all words, M merges, V symbols or tokens, P pairs, T texts.

The way of the data, which is the order of the sections

    Compiling       kernels, their files, structs, instructions that Numba has not
    Running         errors, files written whole, workers, progress, stages and the Scalene profiler
    Bytes           characters, and a trie: what kernels of all sections call
    Patterns        a name, or a regular expression -> a table over bytes that finds where pretokens end
    Scanning        flat text, in which END stands where a text ends -> where pretokens end
    Special tokens  flat text -> END in the place of each; where a text may be cut
    Normalizing     flat text -> flat text as a model wants it: normal forms, lower case, marks
    Pretokenizing   texts -> one flat text, for the last step of a pattern
    Reading         files, folders, globs, standard input -> blocks that can be scanned on their own
    Words           blocks -> Words, by several workers, by a hash table of byte strings
    Learning        Words -> merges, the one serial part
    Models          a tokenizer as data: vocabulary, merges, special tokens, pattern, and their checks
    Encoding        words -> ids, by kernels with a cache; ids -> bytes
    WordPiece       words -> the longest tokens; Words -> such tokens, by likelihood or by count
    Unigram         Words -> tokens with probabilities; words -> ids by the most probable path
    Formats         a Model <-> the files of Hugging Face, GPT-2, tiktoken, SentencePiece and BERT
    Kinds           BPE, WordPiece, Unigram: the functions of each, by name
    Tokenizer       text -> ids -> text; decoders
    Token files     files of text -> files of token ids, by many workers, and back
    Training        files -> a tokenizer, in one call
    Research        tokenizers, corpora, what training learnt -> reports: tables, pictures
    Command line
"""

from __future__ import annotations

import os
import signal
import sys

if os.path.basename(str(*sys.argv[:1])) in ("bpe_numba.py", "bpe-numba"):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # unused, and where no thread can be had it ends the process
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `main`: the imports take 0.5 s, and would show a traceback

if __name__ == "__main__":
    # Kernels of __main__ and of the imported module are cached apart, and workers import the module: run that one, and
    # do not make all of this twice, which takes 0.1 s. A copy has its own name, and `python -P` knows no folder.
    import importlib

    folder, name = os.path.split(os.path.realpath(__file__))
    sys.path.append(folder)
    sys.exit(importlib.import_module(os.path.splitext(name)[0]).run())

import argparse
import base64
import binascii
import bz2
import contextlib
import copy
import dataclasses
import difflib
import errno
import functools
import glob
import gzip
import hashlib
import importlib.metadata
import importlib.util
import inspect
import io
import itertools
import json
import lzma
import math
import multiprocessing
import numbers
import pickle
import platform
import re
import reprlib
import shlex
import shutil
import sysconfig
import tempfile  # noqa: F401  which examples use
import threading
import time
import unicodedata
import warnings
import zipfile
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import IO, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numba
import numpy as np
import regex
from llvmlite import ir
from numba.core import event
from numba.experimental import structref
from numba.extending import intrinsic, overload
from tqdm import tqdm

__version__ = "0.2.0"
__all__ = [
    "ENCODINGS",
    "PATTERNS",
    "InputError",
    "Model",
    "Pattern",
    "Source",
    "Tokenizer",
    "Words",
    "count",
    "count_files",
    "encode_files",
    "learn",
    "read_ids",
    "train",
    "train_bpe",
    "train_bpe_from_counts",
]

# A variable that starts as 0 starts as i64(0) where a kernel gets it: else that is compiled for the literal, and again.
u8, u32, u64, i64 = np.uint8, np.uint32, np.uint64, np.int64
ALL_ONES = u64(2**64 - 1)
Function = TypeVar("Function", bound=Callable)
PADDING = 16  # bytes behind a text that kernels may read, though not use
COMPILES = not numba.config.DISABLE_JIT  # else kernels are plain Python, to be debugged, or profiled line by line
if not COMPILES:
    np.seterr(over="ignore")  # hashes, which count modulo 2**64


# ─── Compiling ────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Function -> kernel: compiled by Numba when it is first called, and kept on the disk. A cached kernel does not notice a
# change in another file: that is why there is one module.
#
#     @kernel
#     def _add(a, b): ...            # Python and kernels may call it; compiled for the types of its first call
#
#     @inline_kernel                 # called for each word or more often: its code is copied into each caller
#     @struct                        # arrays and numbers that travel as one argument, and that kernels may replace
#     @_intrinsic(plain)             # a function that emits one instruction, and the same in plain Python


def _compiler(**options: bool) -> Callable:
    """Make a decorator that compiles kernels when they are first called.

    There are no signatures: they would compile at import. All kernels release Python's lock. Where neither the folder
    of the module nor a home can be written, each process compiles anew.
    """

    def compile_lazily(function: Callable) -> Callable:
        if not COMPILES:
            return function
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # there is no place for the cache
            return numba.njit(nogil=True, **options)(function)

    return compile_lazily


kernel = _compiler()
inline_kernel = _compiler(forceinline=True)


def struct(fields: type) -> type:
    """Make a class of annotated fields one that kernels take by reference, and whose fields they may replace.

    So an array that is too short is replaced by a longer one where that is found out, inside a kernel. As an argument
    it costs 0.15 µs whatever its size, where a named tuple costs 0.13 µs for each array in it. Python makes instances,
    by position, and does not read their fields.
    """

    if not COMPILES:
        return dataclasses.dataclass(eq=False)(fields)

    @kernel
    def new(*values):
        return proxy(*values)

    numba_type = type(f"{fields.__name__}Type", (numba.types.StructRef,), {"__module__": fields.__module__})
    sys.modules[fields.__module__].__dict__[numba_type.__name__] = structref.register(numba_type)
    names = {
        "__module__": fields.__module__,
        "__doc__": fields.__doc__,
        "__slots__": (),
        "__new__": lambda cls, *values: new(*values),
        "numba_type": numba_type,
    }
    proxy = type(fields.__name__, (structref.StructRefProxy,), names)
    structref.define_proxy(proxy, numba_type, list(fields.__annotations__))
    return proxy


def _intrinsic(plain: Callable) -> Callable:
    """Make a decorator of what emits instructions; where nothing is compiled, `plain` does the same."""
    return intrinsic if COMPILES else lambda function: plain


def _declared(module, name, *kinds):
    """Declare a function of the system's, or of LLVM's, that returns nothing and takes arguments of these kinds."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)


def _address(context, builder, signature, arguments, kind):
    """Emit the address of array[index], the first two arguments, as that of a number of this kind."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), kind.as_pointer())


@_intrinsic(lambda array, index: None)
def prefetch(typing_context, array, index):
    """Ask for array[index] to be in the cache soon. The index must be inside the array, which is taken as flat."""

    def emit(context, builder, signature, arguments):
        address = _address(context, builder, signature, arguments, ir.IntType(8))
        flag = ir.IntType(32)
        function = _declared(builder.module, "llvm.prefetch.p0", address.type, flag, flag, flag)
        builder.call(function, [address, flag(0), flag(3), flag(1)])  # to read, keep in all levels, data
        return context.get_dummy_value()

    return numba.void(array, numba.intp), emit


@_intrinsic(lambda array, index: array.reshape(-1)[index : index + 8].view(u64)[0])
def load_u64(typing_context, array, index):
    """Load the 8 bytes at array[index :] as a little-endian uint64. They must be inside the array, of uint8."""

    def emit(context, builder, signature, arguments):
        return builder.load(_address(context, builder, signature, arguments, ir.IntType(64)), align=1)

    return numba.uint64(array, numba.intp), emit


@_intrinsic(lambda array, index, word: array[index : index + 8].view(u64).fill(word))
def store_u64(typing_context, array, index, word):
    """Write a uint64 as 8 bytes to array[index :], little-endian. They must be inside the array, of uint8."""

    def emit(context, builder, signature, arguments):
        builder.store(arguments[2], _address(context, builder, signature, arguments, ir.IntType(64)), align=1)
        return context.get_dummy_value()

    return numba.void(array, numba.intp, numba.uint64), emit


def _compare_plainly(array, index, least):
    flags = array.reshape(-1)[index : index + 64] >= least
    return u64(sum(1 << k for k in np.flatnonzero(flags).tolist()))


@_intrinsic(_compare_plainly)
def bytes_from(typing_context, array, index, least):
    """Compare the 64 bytes at array[index :] with one: bit k of a uint64 is set where byte k is not less.

    They must be inside the array, which is taken as flat.
    """

    def emit(context, builder, signature, arguments):
        vector = ir.VectorType(ir.IntType(8), 64)
        address = _address(context, builder, signature, arguments, vector)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[2], ir.IntType(32)(0))
        all_alike = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), 64), None))
        flags = builder.icmp_unsigned(">=", builder.load(address, align=1), all_alike)
        return builder.bitcast(flags, ir.IntType(64))

    return numba.uint64(array, numba.intp, numba.uint8), emit


@_intrinsic(lambda word: u64(int(word).bit_count()))
def count_bits(typing_context, word):
    """Count the bits that are set in a uint64."""
    return numba.uint64(numba.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@_intrinsic(lambda word: u64(64 if not word else (int(word) & -int(word)).bit_length() - 1))
def lowest_bit(typing_context, word):
    """Find the lowest bit that is set in a uint64; 64 if there is none."""

    def emit(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return numba.uint64(numba.uint64), emit


@_intrinsic(lambda: u64(0x9E3779B97F4A7C15))
def process_seed(typing_context):
    """Return a number that differs from process to process: where the system has put a function that nobody calls."""

    def emit(context, builder, signature, arguments):
        return builder.ptrtoint(_declared(builder.module, "qsort"), ir.IntType(64))

    return numba.uint64(), emit


@kernel
def _reserve(array, n):
    """Return the array, or a longer copy if it has fewer than n entries."""
    if n <= len(array):
        return array
    longer = np.empty(max(n, len(array) * 3 // 2), array.dtype)
    for k in range(len(array)):  # `longer[:n] = array` compiles 3 s longer: the text of its error
        longer[k] = array[k]
    return longer


_madvise = numba.types.ExternalFunction("madvise", numba.intc(numba.uintp, numba.uintp, numba.intc))
HUGE_PAGES = 14 if COMPILES and sys.platform == "linux" else 0  # MADV_HUGEPAGE


@kernel
def _on_huge_pages(array):
    """Ask for huge pages for an array of 4 MB or more that has not been written to, as NumPy does for its own.

    A first pass over 20 MB of English then has 3,300 page faults instead of 16,300, and takes 3 % less time.
    """
    if HUGE_PAGES and array.nbytes >= 1 << 22:
        _madvise((array.ctypes.data + 4095) & ~4095, array.nbytes - 4096, HUGE_PAGES)
    return array


# ─── Running ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PROFILE_VARIABLE = "BPE_NUMBA_PROFILE"  # the environment variable that names the one stage Scalene is to record


class InputError(ValueError):
    """Invalid input: the message names the file, line or option, and the remedy.

    >>> Pattern([])
    Traceback (most recent call last):
    ...
    bpe_numba.InputError: a pattern is a name or a regular expression, or several: none is given
    """


def require(condition: object, message: str) -> None:
    """Raise InputError with this message unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_known(what: str, name: object, names: Collection[str]) -> None:
    """Raise InputError, which lists the names that there are, for a name that is none of them."""
    require(name in names, f"no {what} is named {name!r}; there are {', '.join(names)}")


# The types that an annotation accepts, and its name in messages; any other type accepts itself.
_ACCEPTED = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a string"),
    os.PathLike: (os.PathLike, "a path"),
    Iterable: (Iterable, "a list"),
    Sequence: (Iterable, "a list"),
}


def _check_type(name: str, value: object, hint: object) -> None:
    """Raise InputError for an argument that has none of the types in its annotation."""
    kinds = [get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else [hint])]
    accepted = [_ACCEPTED.get(kind, (kind, f"a {kind.__name__}")) for kind in kinds]
    is_number = bool in kinds or not isinstance(value, bool)  # True is one to Python, but not to a person
    if not (is_number and any(isinstance(value, types) for types, _ in accepted)):
        names = " or ".join(noun for types, noun in accepted if types is not type(None))
        raise InputError(f"`{name}` is {names}, not {reprlib.repr(value)}")


def checked(function: Function) -> Function:
    """Make a public function: it checks the types of its arguments, and an interrupt ends it by a KeyboardInterrupt.

    Messages name parameters as `this`, which is an option where the command line shows them.

    >>> train(vocab_size=1e4)
    Traceback (most recent call last):
    ...
    bpe_numba.InputError: `vocab_size` is a whole number, not 10000.0
    """
    signature = inspect.signature(function)
    hints = functools.cache(lambda: get_type_hints(function))  # at the first call: they may name what comes below

    @functools.wraps(function)
    def call(*arguments: object, **options: object):
        for name, value in signature.bind(*arguments, **options).arguments.items():
            _check_type(name, value, hints().get(name, object))
        try:
            return function(*arguments, **options)
        except SystemError as error:  # what Numba makes of an interrupt while it unpacks the arguments of a kernel
            cause = error
            while cause.__cause__:
                cause = cause.__cause__
            raise (cause if isinstance(cause, KeyboardInterrupt) else error) from None

    return call


def number_of(n: int, noun: str) -> str:
    """Write a number of things: 1 file, 2 files."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def brief_repr(result: object) -> str:
    """Write a result with a few characters of each field, however large they are."""
    names = [*inspect.signature(type(result)).parameters]
    return f"{type(result).__name__}({', '.join(f'{name}={reprlib.repr(getattr(result, name))}' for name in names)})"


def import_optional(name: str, *others: str):
    """Import what only some functions need; raise InputError that names the remedy if it, or another, is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        packages = " ".join([name.partition(".")[0], *others])
        raise InputError(f"this needs a package that is missing: pip install {packages}") from None


UNFINISHED: set[Path] = set()  # files that are being written, by their temporary names
NAMING: list[tuple[Path, Path]] = []  # whole files that are about to take their names: temporary name, name
_WHOLE_FILES: ContextVar[list | None] = ContextVar("_WHOLE_FILES", default=None)  # the group of `written_together`


def call_with(function: Callable, *arguments: object, **options: object):
    """Call a function with arguments, and with those of the options that are parameters of it."""
    names = inspect.signature(function).parameters.keys() & options
    return function(*arguments, **{name: options[name] for name in names})


@contextlib.contextmanager
def written_together() -> Iterator[None]:
    """Let all files that `atomic_write` writes in a block take their names together, when the block ends well.

    The file that is whole first takes its name last: it should be the one that decides how the others are read. An
    interrupt while files are taking their names lets them finish (see `_end_when_asked`).
    """
    if _WHOLE_FILES.get() is not None:
        yield
        return
    group: list[tuple[Path, Path]] = []
    token = _WHOLE_FILES.set(group)
    try:
        yield
        for _, path in group:
            path.parent.mkdir(parents=True, exist_ok=True)
        NAMING[:] = reversed(group)
        for temporary, path in reversed(group):
            os.replace(temporary, path)
    finally:
        NAMING.clear()
        _WHOLE_FILES.reset(token)
        for temporary, _ in group:
            _discard(temporary)


def _discard(temporary: Path) -> None:
    """Remove an unfinished file, if it is still there."""
    with contextlib.suppress(OSError):
        temporary.unlink()
    UNFINISHED.discard(temporary)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that takes the name `path` when the block ends well, and is removed when it does not.

    Until then its name is hidden and random, begins with that of `path` and ends in ".unfinished". So a process that
    was killed leaves no file that looks whole, and no name that a later process could collide with. A missing folder is
    made when the file is whole. In a block of `written_together` the file takes its name at the end of that block.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "a.txt")) as file:
    ...         _ = file.write(b"whole")
    ...     Path(folder, "a.txt").read_bytes(), os.listdir(folder)
    (b'whole', ['a.txt'])
    """
    require(not path.is_dir(), f"{path}: is a folder; name a file to write")
    if path.exists() and not path.is_file():  # a device or a pipe is written to: replacing /dev/null would remove it
        with open(path, "wb") as file:
            yield file
        return
    name = f".{path.name[:50]}.{os.urandom(8).hex()}.unfinished"  # under 255 bytes in UTF-8
    folder = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    temporary = folder / name
    UNFINISHED.add(temporary)
    with written_together():
        try:
            file = open(temporary, "xb")  # noqa: SIM115  mkstemp would give mode 600, whatever the umask says
        except OSError as error:
            _discard(temporary)
            raise InputError(f"{folder}: not a folder that can be written ({error.strerror})") from None
        try:
            with file:
                yield file
        except BaseException as error:
            _discard(temporary)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                error.filename = str(path)  # a failed write does not name its file
            raise
        _WHOLE_FILES.get().append((temporary, path))


def check_writable(folder: Path) -> None:
    """Raise InputError, before any work, if no file can be created in a folder; one that is missing stays so."""
    with contextlib.suppress(LookupError), atomic_write(folder / "test"):
        raise LookupError("so that nothing is written")


def atomic_write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files that belong together, {name: content}, of which the first decides how the others are read."""
    with written_together():
        for name, content in files.items():
            with atomic_write(folder / name) as file:
                file.write(content.encode() if isinstance(content, str) else content)


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory() -> int | None:
    """Return the most bytes that this process, or one of its workers, has held; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak * (1 if sys.platform == "darwin" else 1024)


@dataclasses.dataclass
class Timing:
    """What a stage took."""

    seconds: float = 0.0
    n_bytes: int = 0  # of text, where the stage says so
    memory: int | None = None  # see `peak_memory`, until its end


TIMINGS: dict[str, Timing] = {}  # of the stages of this process, in their order


@contextlib.contextmanager
def stage(name: str, timings: dict[str, Timing] | None = None) -> Iterator[Timing]:
    """Add what a block takes to TIMINGS[name], and to timings[name]; it may tell how many bytes it has read.

    Under `scalene run --off` with BPE_NUMBA_PROFILE=name, Scalene records this stage and no other.

    >>> timings = {}
    >>> with stage("sleep", timings) as spent:
    ...     time.sleep(0.01)
    ...     spent.n_bytes = 5
    >>> timings["sleep"].seconds > 0.009, timings["sleep"].n_bytes
    (True, 5)
    """
    profiled = os.environ.get(PROFILE_VARIABLE) == name
    profiler = import_optional("scalene.scalene_profiler") if profiled else None
    if profiler:
        profiler.start()
        time.sleep(0.3)  # Scalene's start-up, some 0.2 s, goes to the next line: profile.sh drops this function
    start, spent = time.perf_counter(), Timing()
    try:
        yield spent
    finally:
        seconds = time.perf_counter() - start
        for known in (TIMINGS, {} if timings is None else timings):
            total = known.setdefault(name, Timing())
            total.seconds, total.n_bytes = total.seconds + seconds, total.n_bytes + spent.n_bytes
            total.memory = peak_memory()
        if profiler:
            profiler.stop()


# Signals that ask a process to end, as far as a system has them.
_ENDINGS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _end_when_asked() -> None:
    """Let a signal end the program at once, wherever it is: unfinished files go, and workers end with their parent.

    No exception is raised: it would be lost in what compiled code calls, or where processes are forked. A signal that
    is ignored, as by `nohup`, stays ignored.
    """
    program, endings = os.getpid(), []

    def end(number: int, _: object) -> None:
        endings.append(number)
        if len(endings) > 1:  # while the first one is at it
            return
        if os.getpid() == program:  # and not a worker that has just begun
            for temporary, path in [*NAMING]:
                with contextlib.suppress(OSError):  # it has its name already
                    os.replace(temporary, path)
            for temporary in [*UNFINISHED]:
                _discard(temporary)
            os.write(2, b"\nbpe_numba: interrupted; nothing unfinished was written\n")
        os._exit(128 + number)

    for number in _ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def _init_worker() -> None:
    """Ignore SIGINT, which reaches every process of a terminal, and exit when the parent does, even if it is killed."""
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def exit_with_parent() -> None:
        """Wait for the parent's end."""
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


class _CompilationNotice(event.Listener):
    """Tell once, where somebody looks, that kernels are compiled; not of those that are cached, nor in workers."""

    def on_start(self, begun: event.Event) -> None:
        """Take note of a function that Numba begins to compile."""
        global notice
        is_ours = begun.data["dispatcher"].py_func.__module__ == __name__ and not multiprocessing.parent_process()
        if notice and is_ours and sys.stderr and (sys.stderr.isatty() or "ipykernel" in sys.modules):
            print("bpe_numba: compiling kernels, once for each kind of work, in up to 20 seconds", file=sys.stderr)
            notice = False

    def on_end(self, ended: event.Event) -> None:
        """Take no note."""


notice = True  # whether to tell, still
event.register("numba:compile", _CompilationNotice())


def _begin_workers(n: int, threads: bool) -> Executor:
    """Begin worker processes, or threads; raises InputError where the system has none to give.

    That is so without /dev/shm, in a daemonic process, and where `ulimit` is low.
    """
    try:
        pool = ThreadPoolExecutor(n) if threads else ProcessPoolExecutor(n, initializer=_init_worker)
        pool.submit(int)
    except (AssertionError, ImportError, OSError, RuntimeError) as error:
        raise InputError(f"no workers can be started ({error}): one works alone, `workers` 1") from None
    return pool


def _kill_workers(pool: Executor) -> None:
    """Kill the processes of a pool, if it has any, and close the pipe on which its thread would wait."""
    for process in [*(getattr(pool, "_processes", None) or {}).values()]:
        process.kill()
        pool._result_queue._writer.close()


def _wait(pool: Executor, running: deque[Future]) -> object:
    """Return the result of the first future, and drop that.

    A pool whose worker was killed while it sent a result waits for the rest for ever (1 of 40 workers killed).
    """
    while not wait([running[0]], 1).done:
        workers = [*(getattr(pool, "_processes", None) or {}).values()]
        if any(worker.exitcode for worker in workers):
            _kill_workers(pool)
    return running.popleft().result()


@dataclasses.dataclass(frozen=True)
class Engine:
    """Run work: by how many workers, with progress bars or without. The results never depend on it.

    workers     threads, or processes for JSON; one a core if not given. No result depends on it
    progress    draw progress bars on standard error
    executor    a pool of concurrent.futures, or of its kind (loky, Dask, MPI), to work in instead; its workers read the
                files by the same names

    Raises InputError for fewer workers than one.

    >>> list(Engine(workers=1).map(abs, [-1, 2]))
    [1, 2]
    """

    workers: int | None = None
    progress: bool = False
    executor: Executor | None = None

    def __post_init__(self):
        require(self.workers is None or self.workers >= 1, f"{self.workers} workers: at least one must do the work")

    @property
    def n_workers(self) -> int:
        """Count the workers: those asked for, or one a core."""
        return self.workers or available_cores()

    def map(self, function: Callable, items: Iterable, threads: bool = False) -> Iterator:
        """Apply a function to items in worker processes, or threads, and yield the results in the order of the items.

        Two items a worker are in flight. A single item, or the items of a single worker, run in this thread. Close the
        iterator to stop the workers.
        """
        items = iter(items)
        first = [*itertools.islice(items, self.n_workers)]  # more workers would have nothing to do
        items = itertools.chain(first, items)
        if len(first) < 2 and not self.executor:
            yield from map(function, items)
            return
        pool = self.executor or _begin_workers(len(first), threads)
        running: deque[Future] = deque()
        try:
            for item in items:
                if len(running) > 2 * len(first):
                    yield _wait(pool, running)
                running.append(pool.submit(function, item))
            while running:
                yield _wait(pool, running)
        except BrokenExecutor:
            forked = multiprocessing.get_start_method() == "fork"
            hint = "" if forked else "; or the script that called this lacks `if __name__ == '__main__':`"
            raise InputError(f"a worker process died, perhaps for want of memory: try fewer `workers`{hint}") from None
        finally:
            for future in running if self.executor else ():
                future.cancel()
            if not self.executor:
                if running:
                    _kill_workers(pool)
                pool.shutdown(cancel_futures=threads)

    def progress_bar(self, name: str, total: int | None, unit: str) -> tqdm:
        """Open a bar on standard error; in a log file it is a line every ten seconds."""
        interval, disable = 0.1 if sys.stderr.isatty() else 10.0, not self.progress or total == 0
        return tqdm(total=total, desc=name, unit=unit, unit_scale=True, disable=disable, mininterval=interval)


# ─── Bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# What all sections below do with bytes in a kernel: to decode a character, to copy, to compare, to walk down a trie.

N_CODE_POINTS = 0x110000
SURROGATE_ESCAPE = 0xDC80  # bytes that are not UTF-8 are matched as the lone surrogates that Python makes of them
END = 0xFE  # never in UTF-8: ends a text, and stands for a special token; see Scanning
INVALID_BYTE = 0xFF  # never in UTF-8: marks each byte that is not part of a character
HIGH_BITS = u64(0x8080808080808080)


def _with_padding(data: bytes | np.ndarray) -> np.ndarray:
    """Copy bytes, or an array of them, into an array of uint8 with PADDING after."""
    text = np.zeros(len(data) + PADDING, np.uint8)
    text[: len(data)] = np.frombuffer(data, np.uint8)
    return text


@kernel
def _decode_character(text, position, stop):
    """Decode the character at a position: code point << 3 | number of bytes; SURROGATE_ESCAPE and 1 if it is not UTF-8.

    The byte INVALID_BYTE, which marks what is not UTF-8, is not UTF-8 itself: marked or not, a text has the same
    characters.
    """
    escaped = i64(SURROGATE_ESCAPE << 3 | 1)
    lead = i64(text[position])
    if lead < 0x80:
        return lead << 3 | 1
    size = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    if lead < 0xC2 or lead > 0xF4 or position + size > stop:
        return escaped
    code_point = lead & (0x7F >> size)
    for k in range(1, size):
        byte = i64(text[position + k])
        if byte & 0xC0 != 0x80:
            return escaped
        code_point = code_point << 6 | (byte & 0x3F)
    is_overlong, is_surrogate = code_point >> (5 * size - 4) == 0, code_point >> 11 == 0x1B
    return escaped if is_overlong or is_surrogate or code_point > 0x10FFFF else code_point << 3 | size


@kernel
def _character_before(text, start, stop):
    """Decode the last character of text[start : stop], as `_decode_character` does."""
    begin = stop - 1
    while begin > start and stop - begin < 4 and text[begin] & 0xC0 == 0x80:
        begin -= 1
    character = _decode_character(text, begin, stop)
    return character if character & 7 == stop - begin else i64(SURROGATE_ESCAPE << 3 | 1)


@kernel
def _equal(text, start, other, other_start, size):
    """Compare `size` bytes of two texts, which have PADDING after them."""
    for k in range(0, size - 7, 8):
        if load_u64(text, start + k) != load_u64(other, other_start + k):
            return False
    if size >= 8:
        return load_u64(text, start + size - 8) == load_u64(other, other_start + size - 8)
    return (load_u64(text, start) ^ load_u64(other, other_start)) << u64(64 - 8 * size) == 0


@inline_kernel
def _copy_bytes(source, start, stop, out, n):
    """Copy source[start : stop] to out[n :]; returns where it ends there. Both have PADDING after."""
    for k in range(start, stop, 8):
        store_u64(out, n + k - start, load_u64(source, k))
    return n + stop - start


# Tokens as a trie: node 0 is the root, and the edge from a node by a byte is one number in a hash table with linear
# probing, half full at most. No edge leads to the root: an entry of 0 is free. To find the edge costs one cache line;
# the child is in the same word.
#
#     node << 36 | byte << 28 | child
CHILD_BITS, CHILD_MASK = u64(28), u64(2**28 - 1)
NO_CHILD = i64(-1)


@struct
class _Trie:
    """Tokens by their bytes."""

    edges: np.ndarray  # uint64[H]    see above
    values: np.ndarray  # int32[K]    of each node: the id of the token that ends there, or -1


@inline_kernel
def _trie_slot(key, edges):
    """Look up an edge, node << 8 | byte: returns the slot that has it, or the free one where it belongs."""
    mask = u64(len(edges) - 1)
    slot = key * u64(0x9E3779B97F4A7C15) >> u64(32) & mask
    while edges[slot] and edges[slot] >> CHILD_BITS != key:
        slot = (slot + u64(1)) & mask
    return slot


@inline_kernel
def _trie_child(node, byte, edges):
    """Look up the node that an edge leads to; -1 if there is no such edge."""
    edge = edges[_trie_slot(u64(node) << u64(8) | u64(byte), edges)]
    return i64(edge & CHILD_MASK) if edge else NO_CHILD


@kernel
def _grow_edges(edges):
    """Move all edges into a table twice as large."""
    larger = np.zeros(2 * len(edges), np.uint64)
    for edge in edges:
        if edge:
            larger[_trie_slot(edge >> CHILD_BITS, larger)] = edge
    return larger


@kernel
def _build_trie(text, ends, ids):
    """Make the edges and the values of tokens, which lie end to end."""
    edges, values, n_nodes, start = np.zeros(64, np.uint64), np.full(len(text), -1, np.int32), 1, 0
    for t in range(len(ids)):
        node = i64(0)
        for k in range(start, ends[t]):
            if 2 * n_nodes >= len(edges):
                edges = _grow_edges(edges)
            key = u64(node) << u64(8) | u64(text[k])
            slot = _trie_slot(key, edges)
            if not edges[slot]:
                edges[slot] = key << CHILD_BITS | u64(n_nodes)
                n_nodes += 1
            node = i64(edges[slot] & CHILD_MASK)
        if values[node] < 0:
            values[node] = ids[t]
        start = ends[t]
    return edges, values[:n_nodes].copy()


def make_trie(tokens: Mapping[int, bytes]) -> _Trie:
    """Make a trie of tokens by id; of several ids with the same bytes the first in order counts."""
    ends = np.cumsum(np.fromiter(map(len, tokens.values()), np.int64, len(tokens)))
    text = _with_padding(b"".join(tokens.values()))
    require(len(text) < CHILD_MASK, "a vocabulary of 2**28 bytes or more cannot be searched")
    return _Trie(*_build_trie(text, ends, np.fromiter(tokens, np.int32, len(tokens))))


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────

BEHAVIORS = ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous")


class Split(NamedTuple):
    r"""A step of a Pattern that cuts where an expression matches, as `Split` of Hugging Face's does.

    regex     what is looked for, from left to right
    behavior  what becomes of matches: each is a pretoken ("isolated"), or dropped ("removed"); the first of several
              that touch is joined to what is before them ("merged_with_previous"), the last to what is after them
              ("merged_with_next"), or all to one another ("contiguous")
    invert    what lies between matches is treated as a match, and matches as what lies between

    >>> Pattern(Split(r"\s", "removed")).split(b"one two")
    [b'one', b'two']
    >>> Pattern(Split("_", "merged_with_next")).split(b"one_two")
    [b'one', b'_two']
    """

    regex: str
    behavior: str = "isolated"
    invert: bool = False

    @property
    def pieces(self) -> str:
        """The expression whose matches, and what lies between them, are the pieces."""
        if self.behavior in ("isolated", "removed"):
            return self.regex
        one = self.regex.removesuffix("+")
        what = f"a Split that is {self.behavior} looks for one character, or a run of it"
        require(_is_one_character(one), f"{what}: {self.regex!r} is not supported")
        characters = {*_matching(one)}
        one, others = _write_set(characters), _write_set(characters, negated=True)
        runs = one + "+" * self.regex.endswith("+")
        if self.behavior == "contiguous":
            return f"{one}+"
        is_previous = (self.behavior == "merged_with_previous") != self.invert
        return f"{others}*{runs}|{others}+" if is_previous else f"{runs}{others}*|{others}+"


class Metaspace(NamedTuple):
    """A step of a Pattern that writes spaces as another character, and puts one before pretokens that lack it.

    replacement     the character
    prepend_scheme  "always": it is put before every pretoken; "first": before that which begins the text; "never"

    >>> Pattern([Metaspace("_", "first"), "_[^_]*|[^_]+"]).split(b"one two")
    [b'_one', b'_two']
    """

    replacement: str = "▁"
    prepend_scheme: str = "always"

    def apply(self, scan: Scan, flat: FlatText, begins: int) -> FlatText:
        """Replace spaces, and put the replacement before texts and pretokens."""
        mark, scheme = _with_padding(self.replacement.encode()), PREPEND_SCHEMES.index(self.prepend_scheme)
        return flat.rewritten(_write_spaces, mark, scheme, begins)


PREPEND_SCHEMES = ("never", "first", "always")
NEVER, ALWAYS = 0, 2  # the same for kernels

# Punctuation as `tokenizers` and Rust's crate unicode_categories have it: what ASCII has beside letters and digits, and
# that of Unicode 8. Since then two characters have left, and these have come.
_NEWER_PUNCTUATION = (
    r"\u061D\u09FD\u0A76\u0C77\u0C84\u1B4E-\u1B4F\u1B7D-\u1B7F\u2E43-\u2E4F\u2E52-\u2E5D\u2E60-\u2E63\U00010D6E"
    r"\U00010EAD\U00010ED0\U00010F55-\U00010F59\U00010F86-\U00010F89\U000113D4-\U000113D5\U000113D7-\U000113D8"
    r"\U0001144B-\U0001144F\U0001145A-\U0001145B\U0001145D\U00011660-\U0001166C\U000116B9\U0001183B"
    r"\U00011944-\U00011946\U000119E2\U00011A3F-\U00011A46\U00011A9A-\U00011A9C\U00011A9E-\U00011AA2"
    r"\U00011B00-\U00011B09\U00011BE1\U00011C41-\U00011C45\U00011C70-\U00011C71\U00011EF7-\U00011EF8"
    r"\U00011F43-\U00011F4F\U00011FFF\U00012FF1-\U00012FF2\U00016D6D-\U00016D6F\U00016E97-\U00016E9A\U00016FE2"
    r"\U0001E5FF\U0001E95E-\U0001E95F"
)
PUNCTUATION = rf"(?![{_NEWER_PUNCTUATION}])[\p{{P}}$+<=>\^`|~\u166D\U000111C9]"

# The expressions are those of the tools' own sources, but for cl100k: tiktoken's possessive quantifiers are written as
# greedy ones, which match the same, and its `$` as (?![\s\S]), since in Oniguruma `$` also matches before a newline.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+(?![\s\S])|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "nanochat": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
    "none": r"[\s\S]+",
    # Hugging Face's BertPreTokenizer, Whitespace and WhitespaceSplit. Rust's white space is \s, and its \w too but for
    # characters that are newer than its Unicode 16, as is its `is_numeric` \p{N}.
    "bert": (Split(r"\s", "removed"), PUNCTUATION),
    "whitespace": Split(r"\w+|[^\w\s]+", "removed", invert=True),
    "whitespace-split": Split(r"\s", "removed"),
}
PATTERN_NAMES = {source: name for name, source in PATTERNS.items()}


def metaspace_steps(
    replacement: str = "▁", prepend_scheme: str = "always", split: bool = True
) -> tuple[PatternStep, ...]:
    """List the steps of Hugging Face's Metaspace, which may begin a pretoken at each replacement.

    >>> Pattern(metaspace_steps("_")).split(b"one  two")
    [b'_one', b'_', b'_two']
    """
    return Metaspace(replacement, prepend_scheme), *[Split(regex.escape(replacement), "merged_with_next")] * split


# An expression becomes a program, the program a machine over classes of characters, that a transducer which never goes
# back, and that a table over bytes, which is what scanning reads:
#
#     "\d+|a"   ->   split, class, …   ->   states x {digit, a, other, END}   ->   entries   ->   uint32[R * 256]
#
# A program is for a machine with ordered threads (Pike's, as Cox describes it in "Regular Expression Matching: the
# Virtual Machine Approach"): ("class", source) takes a character that the one-character expression matches;
# ("lookahead", source, wanted) goes on if the next one is, or is not, such a one; ("split", first, second) goes on at
# both, preferring the first; ("possessive", source, size) goes on, and says that the next instructions, up to so far
# from here, are a possessive quantifier; ("END",) takes an END; ("match",). All distances are from the instruction.
Program = list[tuple]

_GROUP = r"\((?:\?(?P<look>[=!])|\?(?P<fold>i?):|(?!\?))"
_ESCAPE = r"\\(?:[pP](?:\{\^?[\w\s=:&.-]+\}|[LMNPSZC])|[sSdDwW]|x[\dA-Fa-f]{2}|u[\dA-Fa-f]{4}|[nrtfva]|[^\w])"
_SET = r"\[\^?\]?(?:\\[pPx]\{[^}]*\}|\\.|[^\]\\\[])*\]"
_QUANTIFIER = r"(?:[*+?]|\{(?P<least>\d{1,3})(?:(?P<comma>,)(?P<most>\d{0,3}))?\})(?P<kind>[?+]?)"
MAX_INSTRUCTIONS = 2000


class Unsupported(ValueError):
    """The pattern cannot be compiled here, and is left to the `regex` package."""


class _RegexParser:
    """Parse regular expressions that `regex` has accepted; raises Unsupported for what is not regular, or rare."""

    def __init__(self, source: str):
        self.source, self.position, self.fold = source, 0, False

    def parse(self) -> Program:
        program = self.alternatives()
        self.refuse_if(self.position < len(self.source), "a )")
        self.refuse_if_long(program)
        return [*program, ("match",)]

    def refuse_if(self, condition: bool, what: str) -> None:
        if condition:
            raise Unsupported(f"{what} at position {self.position}")

    def refuse_if_long(self, program: Program) -> None:
        self.refuse_if(len(program) > MAX_INSTRUCTIONS, f"a pattern of more than {MAX_INSTRUCTIONS:,} instructions")

    def accept(self, expected: str) -> regex.Match | None:
        """Consume what the expression matches here."""
        found = regex.compile(expected).match(self.source, self.position)
        self.position = found.end() if found else self.position
        return found

    def alternatives(self) -> Program:
        program = self.sequence()
        while self.accept(r"\|"):
            other = self.sequence()
            after = len(other) + 1
            program = [("split", 1, len(program) + 2), *program, ("split", after, after), *other]
        return program

    def sequence(self) -> Program:
        program = []
        while self.position < len(self.source) and self.source[self.position] not in "|)":
            item = self.item()
            while quantifier := self.accept(_QUANTIFIER):
                item = self.repeated(item, quantifier)
                self.refuse_if_long(item)
            program += item
        return program

    def repeated(self, program: Program, quantifier: regex.Match) -> Program:
        may_be_empty = _reaches_end(program, 0, ("split", "lookahead", "possessive"))
        self.refuse_if(may_be_empty, "a quantifier on what may be empty,")
        if quantifier["least"]:
            least = int(quantifier["least"])
            most = int(quantifier["most"]) if quantifier["most"] else None if quantifier["comma"] else least
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[quantifier[0][0]]
        self.refuse_if(most is not None and most < least, "a count that goes down")
        self.refuse_if(
            quantifier["kind"] == "+" and len(program) > 1, "a possessive quantifier on more than one character"
        )
        size, result = len(program) + 1, program * least
        for left in range(1 if most is None else most - least, 0, -1):
            after = left * size + (most is None)
            result += [("split", after, 1) if quantifier["kind"] == "?" else ("split", 1, after), *program]
        if most is None:
            result.append(("split", -size, -size))
        if quantifier["kind"] == "+":
            result.insert(0, ("possessive", program[0][1], len(result) + 1))
        return result

    def item(self) -> Program:
        if group := self.accept(_GROUP):
            return self.group(group)
        if self.accept(r"\\s\+\+?\$(?![*+?{])"):  # the end of the text, since no newline is left before it
            return _RegexParser(r"\s+\Z").sequence()
        if self.accept(r"\\Z"):
            return [("lookahead", r"[\s\S]", False)]
        if found := self.accept(_SET) or self.accept(_ESCAPE):
            source = found[0]
        else:
            char = self.source[self.position]
            self.refuse_if(char in r"\[(^$*+?{", repr(self.source[self.position : self.position + 3]))
            self.position += 1
            source = "." if char == "." else regex.escape(char)
        return [("class", f"(?i:{source})" if self.fold else source)]

    def group(self, opened: regex.Match) -> Program:
        fold = self.fold
        self.fold = fold or bool(opened["fold"])
        program = self.alternatives()
        self.fold = fold
        self.refuse_if(not self.accept(r"\)"), "an open group")
        if not opened["look"]:
            return program
        self.refuse_if(len(program) != 1 or program[0][0] != "class", "a lookahead at more than one character")
        return [("lookahead", program[0][1], opened["look"] == "=")]


def _reaches_end(program: Program, start: int, passable: Sequence[str]) -> bool:
    """Check that the end of a program can be reached by instructions of some kinds alone."""
    reached = {start}
    for pc, (kind, *distances) in enumerate(program):
        if pc in reached and kind in passable:
            reached |= {pc + distance for distance in distances} if kind == "split" else {pc + 1}
    return len(program) in reached


_LISTED = regex.compile(r"\[(\^?)(?:\\U([\da-f]{8})-\\U([\da-f]{8}))+\]")


@functools.lru_cache(maxsize=256)
def _code_points_matching(source: str) -> np.ndarray:
    """Find the code points that a one-character expression matches, bool[0x110000].

    The `regex` package is asked, so that its Unicode is ours; but not for ranges in hexadecimal alone: it looks at
    each range for each character, and takes 4 s for 8,000.
    """
    found = np.zeros(N_CODE_POINTS, bool)
    if listed := _LISTED.fullmatch(source):
        for first, last in zip(listed.captures(2), listed.captures(3), strict=True):
            found[int(first, 16) : int(last, 16) + 1] = True
        return ~found if listed[1] else found
    try:
        for match in regex.finditer(f"(?:{source})+", _all_code_points(), timeout=REGEX_SECONDS):
            found[match.start() : match.end()] = True
    except TimeoutError:
        raise Unsupported(f"a set of {len(source):,} characters, which takes long to look up") from None
    return found


@functools.lru_cache(maxsize=1)
def _all_code_points() -> str:
    return "".join(map(chr, range(N_CODE_POINTS)))


MAX_KINDS = 60  # of characters, a bit for each; above them is the number of bytes
MAX_STEPS = 10_000_000  # of threads, which take 4 s; o200k takes 19,000


class _Dfa:
    """The deterministic machine of a pattern over classes of code points, which have as many bytes in UTF-8.

    A state is the ordered tuple of the threads of Pike's machine; threads after a `match` are dropped, so the last
    match before the state is empty is the leftmost-first one, as in Perl. A match is seen when the class of the next
    character is known, or END (class C), where the text ends: lookaheads are decided by then. END itself is a match at
    the start, which is a state of its own: no text leads back to it.
    """

    def __init__(self, program: Program):
        self.program, self.n_steps = [("split", 1, 3), ("END",), ("match",), *program], 0
        sources = {step[1]: None for step in program if step[0] in ("class", "lookahead")}
        if len(sources) > MAX_KINDS:
            raise Unsupported(f"more than {MAX_KINDS} kinds of characters")
        code_points = np.arange(N_CODE_POINTS)
        sizes = 1 + (code_points >= 0x80) + (code_points >= 0x800) + (code_points >= 0x10000)
        sizes[0xD800:0xE000] = 1  # bytes that are not UTF-8
        bits = sizes.astype(np.uint64) << u64(MAX_KINDS)
        for bit, source in enumerate(sources):
            bits |= _code_points_matching(source).astype(np.uint64) << u64(bit)
        if (bits[0xDC80:0xDD00] != bits[SURROGATE_ESCAPE]).any():
            raise Unsupported("a class that tells bytes that are not UTF-8 apart")
        bits[0xD800:0xE000] = bits[SURROGATE_ESCAPE]  # no other surrogates are in a text
        starts = np.flatnonzero(np.append(True, bits[1:] != bits[:-1]))  # runs of equal code points are few
        kinds, class_of_run = np.unique(bits[starts], return_inverse=True)
        self.n_classes = len(kinds)
        self.class_of = np.repeat(class_of_run.astype(np.uint16), np.diff(np.append(starts, N_CODE_POINTS)))
        kinds = [*kinds.tolist(), 1 << MAX_KINDS]  # END is a byte, but no character
        self.sizes = [kind >> MAX_KINDS for kind in kinds]
        self.class_accepts = {source: [kind >> bit & 1 > 0 for kind in kinds] for bit, source in enumerate(sources)}
        for pc, step in enumerate(self.program):
            if step[0] == "possessive":
                self._check_possessive(step[1], pc + step[2])

    def step(self, state: tuple[int, ...], char_class: int) -> tuple[bool, tuple[int, ...]]:
        """Check whether a match ends before a character of this class, and compute the state after it."""
        seen: set[int] = set()
        after: dict[int, None] = {}
        waiting = list(reversed(state))
        while waiting:
            pc = waiting.pop()
            self.n_steps += 1
            if pc in seen:
                continue
            seen.add(pc)
            goes_on = False
            match self.program[pc]:
                case ("match",):
                    return True, tuple(after)
                case ("class", source):
                    if self.class_accepts[source][char_class]:
                        after[pc + 1] = None
                case ("split", first, second):
                    waiting += (pc + second, pc + first)
                case ("lookahead", source, wanted):
                    goes_on = self.class_accepts[source][char_class] == wanted
                case ("END",):
                    if char_class == self.n_classes:
                        after[pc + 1] = None
                case ("possessive", *_):
                    goes_on = True
            if goes_on:
                waiting.append(pc + 1)
        return False, tuple(after)

    def _check_possessive(self, source: str, after: int) -> None:
        """A possessive quantifier is the same as a greedy one if what follows can never use a character given back."""
        classes = [c for c, accepted in enumerate(self.class_accepts[source]) if accepted]
        goes_on = any(self.step((after,), c) != (False, ()) for c in classes)
        if goes_on and not _reaches_end(self.program, after, ("split", "possessive", "match")):
            raise Unsupported("a possessive quantifier that changes the result")

    def row(self, state: tuple[int, ...]) -> list[tuple[bool, tuple[int, ...]]]:
        """List `step` for each class, and for END."""
        if self.n_steps > MAX_STEPS:
            raise Unsupported(f"a pattern of more than {MAX_STEPS:,} steps")
        return [self.step(state, c) for c in range(self.n_classes + 1)]


MAX_STATES = 20_000
MAX_ENTRIES = 1_000_000  # of states and classes, which take 5 s


def _number_states(first: tuple, row: Callable[[tuple], list[tuple[object, tuple]]]) -> tuple[np.ndarray, np.ndarray]:
    """Number the states of a machine, from the first, 0, in the order in which they are reached.

    row(state) lists what the machine gives, and the state after, for each letter. Returns both in arrays of states by
    letters, the latter by number; that of (), which is no state, is -1.
    """
    states, numbers, given, following = [first], {(): -1, first: 0}, [], []
    for state in states:
        gives, after = zip(*row(state), strict=True)
        for other in after:
            if other not in numbers:
                numbers[other] = len(states)
                states.append(other)
        if len(states) > min(MAX_STATES, MAX_ENTRIES // len(gives)):
            raise Unsupported(f"a pattern of {len(states):,} states or more")
        given.append(gives)
        following.append([numbers[other] for other in after])
    return np.array(given), np.array(following)


class ScanTable(NamedTuple):
    r"""A pattern, compiled. D states, C classes of characters (class C is END), R rows of the table.

    The table is a machine over bytes that never goes back: its state is a row, and the entry at row * 256 + byte is

        31 … 8     next row, already times 256
        7 … 5      rare: 0 nothing; 1 to 5 a second pretoken ends so many bytes back; INVALID_UTF8; UNRESOLVED
        4 … 0      a pretoken ends so many bytes back, counted from after this byte; 0 none does

    With the pattern `\S+|\s+(?!\S)|\s`, on the text "ab  c", where a dot is a space:

        byte       a    b    .    .    c    END   END
        entry      0    0    1    0    2,1   1     1          ends at 2; 5 - 2 = 3; 5 - 1 = 4; 5; and 6, of END itself

    At the first space "ab" has ended, one byte back. At `c` it is known that `\s+(?!\S)` had to give back a space: one
    pretoken ended 2 bytes back, and the single space, by `\s`, 1 byte back. END ends what is before it, and is a
    pretoken itself. Where the entry is UNRESOLVED, since more than MAX_PENDING_BYTES would have to be remembered, the
    other arrays are asked: they are the pattern's machine over characters (see `_match_end`).
    """

    table: np.ndarray  # uint32[R * 256]
    class_of: np.ndarray  # uint16[0x110000]      code point -> class
    next_state: np.ndarray  # int16[D, C + 1]     state, class -> state, or -1
    accepts: np.ndarray  # bool[D, C + 1]         state, class -> the pattern has matched before this character
    must_split: np.ndarray  # bool[C, C]          between such characters a pretoken ends, whatever precedes them
    dropped: np.ndarray  # bool[C]                pretokens that begin with such a character are left out; or empty


ROW_MASK, BACK_MASK, RARE_MASK, RARE_STEP = u32(0xFFFFFF00), u32(0x1F), u32(0xE0), u32(0x20)
UNRESOLVED, INVALID_UTF8 = u32(7 << 5), u32(6 << 5)
MAX_BACK, MAX_BACK_2 = 31, 5
MAX_PENDING_BYTES = 17  # that a state remembers: lines of code that are indented by up to 16 spaces are resolved


def _compile_pattern(source: str) -> ScanTable:
    """Compile a pattern; raises Unsupported where that cannot be done exactly."""
    try:
        dfa = _Dfa(_RegexParser(source).parse())
    except RecursionError:
        raise Unsupported("too many groups in one another") from None
    accepts, next_state = _number_states((0,), dfa.row)
    if accepts[0].any():
        raise Unsupported("it matches the empty string before some characters")
    is_text = np.arange(len(accepts)) != next_state[0, -1]  # and not the state after END
    require(accepts[is_text].any(), f"the pattern {source[:200]!r} matches nothing")
    accepts[0, -1] = True  # what the pattern leaves out ends at END, and not at the character after it
    entries = _streaming_transducer(next_state, accepts, dfa.sizes)
    table = _utf8_table(entries, dfa.class_of)
    must_split = _must_split_pairs(next_state, accepts)
    return ScanTable(table, dfa.class_of, next_state.astype(np.int16), accepts, must_split, np.zeros(0, bool))


def _must_split_pairs(next_state: np.ndarray, accepts: np.ndarray) -> np.ndarray:
    """Find the classes x, y such that each state after an x has accepted before a y, or at the end, and takes no y."""
    n = next_state.shape[1] - 1
    splits = accepts[:, :n] & (next_state[:, :n] < 0) & accepts[:, n:]
    return np.array([(after[0] >= 0) & splits[after[after >= 0]].all(axis=0) for after in next_state.T[:n]])


def _streaming_transducer(next_state: np.ndarray, accepts: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Compose a pattern's machine with its own restart; returns entries as in a ScanTable, int64[states, C].

    The transducer emits the end of each pretoken and feeds itself again what it had looked at beyond it, so that
    scanning never moves backwards. Characters are classes, with these sizes in bytes. A state is: a state of the
    pattern's machine; the characters read since the last match or, before a match, since the start, if they are all the
    same, or MANY; and whether it has accepted, or not (fresh), or not and there are characters before it that the
    pattern leaves out (gap).
    """
    MANY = (-1,)
    FRESH, ACCEPTED, GAP = range(3)

    def n_bytes(chars):
        return sum(sizes[char] for char in chars)

    def advance(state, char):
        """The state after a character, and how many bytes before its end pretokens end; None if that is not known."""
        inner, pending, status = state
        following, accepted = int(next_state[inner, char]), bool(accepts[inner, char])
        if following >= 0 and not accepted:
            pending = (*pending, char)
            known = len(set(pending)) == 1 and n_bytes(pending) < MAX_PENDING_BYTES
            return (following, pending if known else MANY, status), []
        if accepted and (status != GAP or pending != MANY):
            ends = [n_bytes(pending) + sizes[char]] if status == GAP else []
            if following >= 0:
                return (following, (char,), ACCEPTED), ends
            return restart(FRESH, (char,), [*ends, sizes[char]])
        if pending == MANY:
            return None
        if status == ACCEPTED:
            return restart(FRESH, (*pending, char), [n_bytes(pending) + sizes[char]])
        return restart(GAP, (*pending[1:], char), []) if pending else ((0, (), GAP), [])

    def restart(status, chars, ends):
        """Begin anew with these characters; add the ends of their pretokens to `ends`."""
        state = (0, (), status)
        for k, char in enumerate(chars):
            result = advance(state, char)
            if result is None:
                return None
            state, more = result
            ends += [end + n_bytes(chars[k + 1 :]) for end in more]
        return state, ends

    def row(state):
        """For each character: the lower bits of its entry, and the state after it."""
        found = []
        for char in range(len(sizes)):
            following, ends = advance(state, char) or ((), [])
            first, second = (*ends, 0, 0)[:2]
            is_known = following and len(ends) <= 2 and first <= MAX_BACK and second <= MAX_BACK_2
            found.append((second << 5 | first, following) if is_known else (int(UNRESOLVED), ()))
        return found

    ends, following = _number_states((0, (), FRESH), row)
    return np.maximum(following, 0) << 8 | ends


def _utf8_table(entries: np.ndarray, letter_of: np.ndarray) -> np.ndarray:
    """Expand transitions on letters to bytes: a row for each state, and rows for the bytes that continue a character.

    Rows of equal content are shared. `letter_of` is uint16[0x110000], the letter of each code point; the last is END.
    """
    rows = [np.full(256, INVALID_UTF8, np.uint32) for _ in entries]
    entry_of = {rows[0][:64].tobytes(): INVALID_UTF8}
    multibyte = letter_of.copy()
    multibyte[:0x80] = multibyte[0xD800:0xE000] = entries.shape[1]  # the letter of what is invalid
    blocks, block_of = np.unique(multibyte.view("V128"), return_inverse=True)  # what a last byte decides
    blocks = blocks.view(np.uint16).reshape(-1, 64)

    def row_entries(continued: np.ndarray) -> list[int]:
        """Entries that lead to the rows with these entries, uint32[…, 64], for the bytes 0x80 to 0xBF."""
        found = []
        for block in continued:
            key = block.tobytes()
            if key not in entry_of:
                entry_of[key] = len(rows) << 8
                rows.append(np.full(256, INVALID_UTF8, np.uint32))
                rows[-1][0x80:0xC0] = block
            found.append(entry_of[key])
        return found

    for row, of_letter in zip(rows[: len(entries)], entries.astype(np.uint32), strict=True):
        row[END], of_letter = of_letter[-1], np.append(of_letter, INVALID_UTF8)
        row[:0x80] = of_letter[letter_of[:0x80]]
        row[INVALID_BYTE] = of_letter[letter_of[SURROGATE_ESCAPE]]
        seconds = np.array(row_entries(of_letter[blocks]), np.uint32)[block_of.reshape(-1)]
        row[0xC2:0xE0] = seconds[0x2:0x20]
        fours = np.full(0x5000, INVALID_UTF8, np.uint32)
        fours[0x400:0x4400] = seconds[0x400:]
        seconds[:0x20] = INVALID_UTF8  # those characters have two bytes, not three
        row[0xE0:0xF0] = row_entries(seconds[:0x400].reshape(16, 64))
        row[0xF0:0xF5] = row_entries(np.array(row_entries(fours.reshape(320, 64)), np.uint32).reshape(5, 64))
    return np.concatenate(rows)


def _sure_starts(table: ScanTable) -> np.ndarray | None:
    """Find the classes that matches begin with, bool[C]; None unless each is a match alone, whatever comes next."""
    first = table.next_state[0, :-1]
    return first >= 0 if table.accepts[first[first >= 0]].all() else None


def _is_one_character(source: str) -> bool:
    """Check whether an expression matches single characters."""
    with contextlib.suppress(Unsupported, regex.error):
        *looks, one, _ = regex.compile(source) and _RegexParser(source).parse()
        return one[0] == "class" and all(step[0] == "lookahead" for step in looks)
    return False


def _write_set(characters: set[str], negated: bool = False) -> str:
    """Write a set of characters as a regular expression of ranges."""
    code_points = np.array(sorted(map(ord, characters)))
    runs = np.split(code_points, np.flatnonzero(np.diff(code_points) > 1) + 1)
    ranges = (rf"\U{run[0]:08x}-\U{run[-1]:08x}" for run in runs)
    return f"[{'^' * negated}{''.join(ranges)}]"


def _matching(source: str) -> list[str]:
    """List the characters that match a one-character expression."""
    return list(map(chr, np.flatnonzero(_code_points_matching(source)).tolist()))


def _compile_regex(source: str) -> regex.Pattern:
    """Compile by the `regex` package; raises InputError where it does not, or where it matches the empty string.

    It writes out what may be empty as often as a count says: (?:(?:(?:a?){100}){100}){100} took it 1 s and 300 MB.
    """
    shown = repr(source[:200])
    try:
        counts = [[int(n or 0) for n in m.groups()] for m in re.finditer(r"(?<=[)?*+}])\{(\d*)(?:,(\d*))?", source)]
        if math.prod(max(count) for count in counts) > 10**6:
            raise ValueError("its counts of groups multiply to more than 1,000,000")
        compiled = regex.compile(source)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"the pattern {shown} does not compile: {error}") from None
    with _time_limit(source, "") as seconds:
        may_be_empty = compiled.fullmatch("", timeout=seconds)
    require(not may_be_empty, f"the pattern {shown} matches the empty string; it must take at least one character")
    return compiled


REGEX_SECONDS = 10  # patterns that do not try in vain take 0.2 to 0.7 for 1,000,000 characters


@contextlib.contextmanager
def _time_limit(source: str, text: str) -> Iterator[float]:
    """Yield the seconds, of this process, that a pattern may take by the `regex` package, and say where it takes more.

    That is REGEX_SECONDS, and as many again for each 1,000,000 characters.
    """
    seconds = REGEX_SECONDS * (1 + len(text) / 1e6)
    try:
        yield seconds
    except TimeoutError:
        raise InputError(
            f"the pattern {source[:200]!r} takes more than {seconds:.0f} s for the {len(text):,} characters of a text "
            f"that begins {text[:40]!r}: it tries too many ways, as (a+)+$ does; write it otherwise"
        ) from None


class _Stage(NamedTuple):
    """Splits of a Pattern that are done together: by a table or, where there is none, by the `regex` package."""

    table: ScanTable | None
    regex: regex.Pattern | None = None
    warning: str = ""

    def apply(self, scan: Scan, flat: FlatText, begins: int) -> FlatText:
        """Write END between pretokens."""
        if self.table:
            return flat.rewritten(_write_cuts, self.table, *scan)
        parts, meanings = [], []
        for part, meaning in zip(flat.parts(), flat.meanings.tolist(), strict=True):
            pieces = self._pieces(part)
            parts += pieces
            meanings += [INSIDE] * (len(pieces) - 1) + [meaning]
        return FlatText.join(parts, meanings)

    def _pieces(self, data: bytes) -> list[bytes]:
        """Cut a text by the `regex` package: matches, and what is between them."""
        text = data.decode("utf-8", "surrogateescape")
        edges, position = {0, len(text)}, 0
        with _time_limit(self.regex.pattern, text) as seconds:
            end = time.process_time() + seconds
            while match := self.regex.search(text, position, timeout=max(end - time.process_time(), 0.0)):
                edges.update(match.span())
                position = match.end() + (not match[0])  # as in Oniguruma: no empty match directly after another
                if position > len(text):
                    break
        pieces = [text[start:stop] for start, stop in itertools.pairwise(sorted(edges))]
        return [piece.encode("utf-8", "surrogateescape") for piece in pieces] or [b""]


class Pattern:
    r"""A pretokenizing pattern: a name in PATTERNS, a regular expression, or several, each cutting what the last left.

    steps        regular expressions and other steps
    source       the step, or several if they are several
    name         its name in PATTERNS, or None
    is_compiled  all of it was compiled; else the `regex` package does some of the work
    warning      what a user should know, or ""

    That package may take 10 seconds for a text, and 10 more for each 1,000,000 characters; else InputError names the
    pattern and the text, as for (a+)+$ on aaaa…, which it would try in 2**n ways. What is not UTF-8 is matched as the
    lone surrogates that Python makes of it. Raises ValueError for an expression that does not compile, or that matches
    the empty string.

    >>> Pattern("gpt2").split(b"Hello  world!")
    [b'Hello', b' ', b' world', b'!']
    >>> Pattern(r"[a-z]+").split(b"ab12cd")  # what the pattern leaves out is kept
    [b'ab', b'12', b'cd']
    >>> Pattern([r"\d", r"[a-z]+|\d+"]).split(b"ab12")
    [b'ab', b'1', b'2']
    """

    def __init__(self, source: PatternSource = "gpt2"):
        require(isinstance(source, Iterable), f"a pattern is a name or a regular expression, not {source!r}")
        given = [source] if isinstance(source, (str, Split, Metaspace)) else list(source)
        require(given, "a pattern is a name or a regular expression, or several: none is given")
        self.steps = steps = tuple(itertools.chain.from_iterable(map(_named_steps, given)))
        self.source = steps[0] if len(steps) == 1 else steps
        self.name = PATTERN_NAMES.get(self.source)
        self.stages: list[_Stage | Metaspace] = []
        for is_metaspace, group in itertools.groupby(steps, lambda step: isinstance(step, Metaspace)):
            run = tuple(group)
            self.stages += run if is_metaspace else _compile_stages(run)
        splits = [stage for stage in self.stages if isinstance(stage, _Stage)]
        self.is_compiled = all(stage.table for stage in splits)
        self.warning = "; ".join(stage.warning for stage in splits if stage.warning)
        if not splits or self.stages[-1] is not splits[-1] or not splits[-1].table:
            self.stages += _compile_stages((PATTERNS["none"],))  # which finds what they have cut

    def __reduce__(self):
        return Pattern, (self.source,)

    def __repr__(self) -> str:
        return f"Pattern({self.name or self.source!r})"

    @property
    def table(self) -> ScanTable:
        """The table of the last stage, which scans what all others have cut."""
        return self.stages[-1].table

    @property
    def cut_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The class of each character, and the classes between which text may be cut.

        Where the first expression always cuts, so do all.
        """
        spaces = list(itertools.takewhile(lambda stage: isinstance(stage, Metaspace), self.stages))
        table = self.stages[len(spaces)].table or Pattern("none").table
        class_of = table.class_of.copy()
        for step in reversed(spaces):  # a space is cut as what is written for it
            class_of[0x20] = class_of[ord(step.replacement)]
        return class_of, table.must_split

    @property
    def is_one_machine(self) -> bool:
        """Whether to scan by `table` is all there is to do."""
        return len(self.stages) == 1

    @property
    def matches_everything(self) -> bool:
        """Whether it is proved that every character of a text is in a match: each, alone, is one."""
        if not isinstance(self.source, str) or not self.is_one_machine:
            return False
        starts = _sure_starts(self.table)
        return starts is not None and bool(starts.all())

    @property
    def parted(self) -> tuple[Pattern, Metaspace | None]:
        """The pattern without a last step that can as well be done to each word once, and that step, if it has one."""
        *before, last = self.steps
        if before and isinstance(last, Metaspace) and last.prepend_scheme != "first":
            return Pattern(self.source[:-1]), last
        return self, None

    def apply(self, scan: Scan, flat: FlatText, begins: int) -> FlatText:
        """Cut a flat text by all stages that must run before it is scanned by `table`."""
        for stage in self.stages[:-1]:
            flat = stage.apply(scan, flat, begins)
            if begins == CONTINUES and isinstance(stage, _Stage):
                begins = INSIDE  # a block begins where the first Split ends a pretoken
        return flat

    def split(self, data: bytes) -> list[bytes]:
        """Cut bytes into pretokens, without those that are dropped."""
        scan, flat = _new_scan(), FlatText.join([data], [BEGINS])
        flat = self.stages[-1].apply(scan, self.apply(scan, flat, BEGINS), BEGINS)
        return list(filter(None, flat.parts()))


PatternStep = str | Split | Metaspace
PatternSource = PatternStep | Sequence[PatternStep]
_LIKE_A_NAME = regex.compile(r"[A-Za-z][A-Za-z\d_-]+")


def _named_steps(step: PatternStep) -> tuple[PatternStep, ...]:
    """Look up the steps of a name in PATTERNS, and check others; a Split that isolates becomes its expression."""
    if isinstance(step, Split):
        require_known("behavior", step.behavior, BEHAVIORS)
        if step.behavior != "isolated":
            return (step,)
        return (Split(step.regex) if _LIKE_A_NAME.fullmatch(step.regex) else step.regex,)
    if isinstance(step, Metaspace):
        require_known("prepend scheme", step.prepend_scheme, PREPEND_SCHEMES)
        require(len(step.replacement) == 1, f"Metaspace writes one character for a space, not {step.replacement!r}")
        return (step,)
    require(isinstance(step, str), f"a step of a pattern is a str, Split or Metaspace, not {type(step).__name__}")
    steps = PATTERNS.get(step, step)
    if steps is step and _LIKE_A_NAME.fullmatch(step):
        raise InputError(f"no pattern is named {step!r}; there are {', '.join(PATTERNS)}, or a regular expression")
    return steps if type(steps) is tuple else (steps,)


@functools.lru_cache(maxsize=64)
def _compile_stages(steps: tuple[str | Split, ...]) -> tuple[_Stage, ...]:
    """Compile Splits that follow one another; those of a named pattern are one machine, which is kept on the disk."""
    name = PATTERN_NAMES.get(steps[0] if len(steps) == 1 else steps)
    if name:
        return (_Stage(_cached_on_disk(name, lambda: _compile_splits(steps)[0].table)),)
    return _compile_splits(steps)


def _compile_splits(steps: tuple[str | Split, ...]) -> tuple[_Stage, ...]:
    """Compile Splits that follow one another: those that look for single characters are one machine."""
    splits = [step if isinstance(step, Split) else Split(step) for step in steps]
    kept_or_dropped = all(split.behavior in ("isolated", "removed") and not split.invert for split in splits)
    if len(splits) > 1 and kept_or_dropped and all(_is_one_character(split.regex) for split in splits):
        table = _compile_pattern("|".join(split.regex for split in splits))
        dropped = np.zeros(len(table.must_split), bool)
        for split in splits:
            if split.behavior == "removed":
                dropped[table.class_of[_code_points_matching(split.regex)]] = True
        return (_Stage(table._replace(dropped=dropped[: len(dropped) * dropped.any()])),)
    return tuple(map(_compile_split, splits))


def _compile_split(split: Split) -> _Stage:
    """Compile a Split by the `regex` package, which must accept its expression, and to a table if it can be."""
    compiled, shown = _compile_regex(split.regex), split.regex[:200]
    try:
        table = _compile_pattern(split.pieces)
    except Unsupported as error:
        require(
            split.behavior == "isolated", f"a Split that is {split.behavior} by {shown!r} is not supported: {error}"
        )
        warning = f"the pattern is left to the `regex` package, which is some 50 times slower: {error}"
        return _Stage(None, compiled, warning)
    if split.behavior == "removed":
        starts = _sure_starts(table)
        require(starts is not None, f"a Split that removes {shown!r}, where more than a character decides")
        table = table._replace(dropped=starts ^ split.invert)
    return _Stage(table)


SOURCE_HASH = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # as it is now: it may change while this runs


def _cached_on_disk(name: str, compile: Callable[[], ScanTable]) -> ScanTable:
    """Read the table of a named pattern from the disk, or compile it and write it there.

    A file has a digest before its content: it is not used if it is damaged, or if other versions made it.
    """
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).with_name("__pycache__"))
    path, versions = folder / f"pattern.{name}.table", (PATTERNS[name], regex.__version__, np.__version__, SOURCE_HASH)
    with contextlib.suppress(OSError, ImportError, AttributeError):
        digest, content = (data := path.read_bytes())[:32], data[32:]
        if digest == hashlib.sha256(repr(versions).encode() + content).digest():
            return pickle.loads(content)
    table = compile()
    content = pickle.dumps(table)
    with contextlib.suppress(OSError, InputError), atomic_write(path) as file:
        file.write(hashlib.sha256(repr(versions).encode() + content).digest() + content)
    return table


# ─── Scanning ─────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Flat text -> where its pretokens end. A flat text is any number of texts in one array of bytes. The byte END, 0xFE,
# which is never in UTF-8, stands where a text ends and over each special token; what each END stands for is an array of
# its own, `meanings`. The texts "to be", "" and "or<eos>not", where <eos> has the id 7, and # is END:
#
#     text        t o . b e # # o r # n o t # # # …     a dot is a space; after the last text is PADDING, of END, too
#     ends        2, 5, 6, 7, 9, 10, 13, 14             of "to", " be", END, END, "or", END, "not", END
#     meanings    BEGINS, BEGINS, 7, BEGINS             of the four ENDs: two texts end, <eos>, and the last text ends
#
# So nothing that scans, counts or encodes asks where a text ends. The table of a pattern has END as one more class of
# characters: it ends every match, as the end of a text does. END is never in a table of words. Where a word is not, the
# consumer looks whether it is END: counting skips it, and encoding asks for its meaning.
#
# One text is read by six lanes side by side, each from a place where a pretoken must end:
#
#     |lane 0     |lane 1     |lane 2      |lane 3     |lane 4     |lane 5     |  the next batch …
#
# Bytes that are not UTF-8, among them real bytes 0xFE, are scanned as INVALID_BYTE, in a copy. So there are two arrays,
# the true bytes and those that are scanned, which mostly are the same one.

# What an END stands for is the id of a special token, or how the text after it begins. The same is said of a block.
INSIDE = -1  # it goes on with another pretoken, which a step of a pattern has cut; or after a special token
BEGINS = -2  # another text begins: one ends here
CONTINUES = -3  # a block goes on in the midst of a text: nothing may be put before it


class FlatText(NamedTuple):
    """Texts in one array, and what its ENDs stand for; see above."""

    text: np.ndarray  # uint8[…]      the true bytes, and PADDING
    scanned: np.ndarray  # uint8[…]   the same array; or a copy in which real bytes 0xFE are INVALID_BYTE
    meanings: np.ndarray  # int64[E]  of each END, but for those of the padding

    @classmethod
    def join(cls, parts: Sequence[bytes], meanings: Sequence[int]) -> FlatText:
        """Write texts with an END after each."""
        stops = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        return cls.of(parts[0] if len(parts) == 1 else b"".join(parts), stops, meanings)

    @classmethod
    def of(cls, data: bytes, stops: np.ndarray, meanings: Sequence[int]) -> FlatText:
        """Write texts that lie end to end with an END after each."""
        text, has_end = _copy_texts(data, stops, END)
        scanned = _copy_texts(data, stops, INVALID_BYTE)[0] if has_end else text
        return cls(text, scanned, np.array(meanings, np.int64))

    def ends(self) -> np.ndarray:
        """Find the places of the ENDs."""
        return np.flatnonzero(self.scanned[:-PADDING] == END)

    def parts(self) -> list[bytes]:
        """List what is between ENDs."""
        data, stops = self.text.tobytes(), self.ends().tolist()
        return [data[start:stop] for start, stop in zip([0, *(stop + 1 for stop in stops)], stops, strict=False)]

    def rewritten(self, write: Callable, *arguments: object) -> FlatText:
        """Make the flat text that is written of text, scanned and meanings: if the arrays differ, that of each."""
        text, meanings = write(*self, *arguments)
        scanned = text
        if self.text is not self.scanned:
            scanned, _ = write(self.scanned, self.scanned, self.meanings, *arguments)
        return FlatText(text, scanned, meanings)


@kernel
def _copy_texts(data, stops, instead):
    """Copy texts that lie end to end, with END after each, and `instead` of each real END.

    Returns the text, with PADDING, and whether there are real ENDs.
    """
    text, has_end = _on_huge_pages(np.empty(len(data) + len(stops) + PADDING, np.uint8)), False
    start = 0
    for t in range(len(stops)):
        is_there = u8(0)
        for k in range(start, stops[t]):
            byte = data[u64(k)]
            text[u64(k + t)] = byte
            is_there |= u8(byte == u8(END))
        for k in range(start + t, stops[t] + t if is_there else 0):
            if text[k] == END:
                text[k] = instead
        has_end = has_end or is_there > 0
        text[stops[t] + t], start = END, stops[t]
    _add_padding(text, len(data) + len(stops))
    return text, has_end


@kernel
def _add_padding(text, n):
    """Write END over the PADDING after n bytes; returns the text."""
    for k in range(n, n + PADDING):
        text[k] = END
    return text[: n + PADDING]


@kernel
def _mark_invalid(text, start, stop):
    """Write INVALID_BYTE over each byte of text[start : stop], but END, that is not part of a character in UTF-8."""
    position = start
    while position < stop:
        if position + 8 <= stop and not load_u64(text, position) & HIGH_BITS:
            position += 8
            continue
        character = _decode_character(text, position, stop)
        if character >> 3 == SURROGATE_ESCAPE and text[position] != END:
            text[position] = INVALID_BYTE
        position += character & 7


@inline_kernel
def _match_end(text, start, table):
    """Find where the match that begins at `start` ends; `start` if there is none. The definition, by characters."""
    class_of, next_state, accepts = table.class_of, table.next_state, table.accepts
    position, state, end = start, i64(0), start
    while text[position] != END:
        character = _decode_character(text, position, position + 4)
        char_class = class_of[character >> 3]
        if accepts[state, char_class]:
            end = position
        state = i64(next_state[state, char_class])
        if state < 0:
            return end
        position += character & 7
    return position if accepts[state, accepts.shape[1] - 1] else end


@inline_kernel
def _pretoken_end(text, start, table):
    """Find where the pretoken that begins at `start` ends: END, a match, or what lies before the next one."""
    class_of, next_state = table.class_of, table.next_state
    position = _match_end(text, start, table)
    if position == start:
        position += _decode_character(text, start, start + 4) & 7
        is_next = text[start] == END
        while text[position] != END and not is_next:
            character = _decode_character(text, position, position + 4)
            if next_state[0, class_of[character >> 3]] >= 0:
                is_next = _match_end(text, position, table) > position
            if not is_next:
                position += character & 7
    return position


@kernel
def _next_split(text, position, until, class_of, must_split):
    """Find the first place at or after a position where a pretoken ends in every context; -1 if there is none.

    That is at an END, or between two characters. `until` is not the end of the text: characters may reach beyond it.
    """
    before = -1
    while position < until and text[position] & 0xC0 == 0x80:
        position += 1
    while position < until:
        character = _decode_character(text, position, position + 4)
        char_class = i64(class_of[character >> 3])
        if text[position] == END or (before >= 0 and must_split[before, char_class]):
            return position
        before = char_class
        position += character & 7
    return -1


LANES = 6  # read in one loop: 0.31 ns a byte; 0.43 with four, 1.63 with one, which waits for its loads; 0.38 with eight
LANE_BYTES = 1 << 13  # that each lane scans in one batch; with twice as many its ends are out of the L1 cache: 2 %
MIN_LANE_BYTES = 256  # for which lanes pay
MARKED_BYTES = 256  # that each lane reads before ends are looked for
MARK_ROW = MARKED_BYTES + 64  # bytes of `marks` for each lane
BATCH_BYTES = LANES * LANE_BYTES
MAX_ENDS = 2 * BATCH_BYTES  # that are found in one batch, and somewhat more

# What a lane knows is a row of `lanes`, int64[LANES, ENDS + 2 * MAX_ENDS]: where its first pretoken begins; how far it
# has read; the entry of the table that led there; the entry that further bytes lead to; how many ends it has found; how
# far it has to read; and from column ENDS on, the ends. It is one array, since Python hands a kernel each in 0.13 µs.
FIRST, POSITION, ENTRY, AHEAD, N_ENDS, LAST, ENDS = range(7)


class Scan(NamedTuple):
    """What scanning needs beside a text; used again for the next."""

    lanes: np.ndarray
    marks: np.ndarray  # uint8[LANES * MARK_ROW]  the lower bytes of entries


def _new_scan() -> Scan:
    return Scan(np.empty((LANES, ENDS + 2 * MAX_ENDS), np.int64), np.zeros(LANES * MARK_ROW, np.uint8))


@inline_kernel
def _add_end(k, end, lanes):
    """Append an end to those of lane k."""
    lanes[k, ENDS + lanes[k, N_ENDS]] = end
    lanes[k, N_ENDS] += 1


@inline_kernel
def _last_end(k, lanes):
    """Return where the last pretoken of lane k ended, or its first one begins."""
    return lanes[k, ENDS + lanes[k, N_ENDS] - 1] if lanes[k, N_ENDS] else lanes[k, FIRST]


@inline_kernel
def _on_rare_entry(k, text, table, lanes):
    """Handle an entry with RARE_MASK bits, and add the end that it has; returns False if the text is not UTF-8.

    If it is UNRESOLVED, the end of the pretoken that the lane is in is found by the definition, and the lane goes on
    there, be it before or after its position. (That is a loop of one round, and no branch, since references are then
    counted nowhere: what is in use in one branch only ends in each of them.)
    """
    entry = u32(lanes[k, ENTRY])
    while entry & RARE_MASK == UNRESOLVED:
        end = _pretoken_end(text, _last_end(k, lanes), table)
        _add_end(k, end, lanes)
        lanes[k, POSITION], entry = end, u32(0)
    rare = entry & RARE_MASK
    valid = rare != INVALID_UTF8
    if valid and rare:
        _add_end(k, lanes[k, POSITION] - i64(entry & BACK_MASK), lanes)
        entry = (entry & ROW_MASK) | (rare >> u32(5))
    if valid and entry & BACK_MASK:
        _add_end(k, lanes[k, POSITION] - i64(entry & BACK_MASK), lanes)
    lanes[k, ENTRY] = entry
    return valid


@inline_kernel
def _run_lane(k, text, until, table, lanes):
    """Move lane k to `until`, or beyond; returns False if the text is not UTF-8."""
    entries, ends, valid = table.table, lanes[k, ENDS:], True
    while valid and lanes[k, POSITION] < until and lanes[k, N_ENDS] < MAX_ENDS:
        position, entry, n = u64(lanes[k, POSITION]), u32(lanes[k, ENTRY]), u64(lanes[k, N_ENDS])
        for _ in range(min(until - lanes[k, POSITION], MAX_ENDS)):
            entry = entries[u64(entry & ROW_MASK) | u64(text[position])]
            position += u64(1)
            if entry & RARE_MASK:
                break
            back = u64(entry & BACK_MASK)
            ends[n] = position - back
            n += u64(back != 0)
        lanes[k, POSITION], lanes[k, ENTRY], lanes[k, N_ENDS] = position, entry, n
        if entry & RARE_MASK:
            valid = _on_rare_entry(k, text, table, lanes)
    return valid


@inline_kernel
def _read_together(text, start, count, table, lanes, marks):
    """Read `count` bytes by each lane, `start` bytes after its position, and mark what ends there.

    The lower bytes of the entries, from the one that led there on, go to `marks`, and the last entries to AHEAD. As
    `marks` is flat, it is one register for all lanes: the loop has none to spare.
    """
    p0, p1 = u64(lanes[0, POSITION] + start), u64(lanes[1, POSITION] + start)
    p2, p3 = u64(lanes[2, POSITION] + start), u64(lanes[3, POSITION] + start)
    p4, p5 = u64(lanes[4, POSITION] + start), u64(lanes[5, POSITION] + start)
    e0, e1, e2 = u32(lanes[0, ENTRY]), u32(lanes[1, ENTRY]), u32(lanes[2, ENTRY])
    e3, e4, e5 = u32(lanes[3, ENTRY]), u32(lanes[4, ENTRY]), u32(lanes[5, ENTRY])
    for k in range(count):
        i = u64(k)
        e0 = table[u64(e0 & ROW_MASK) | u64(text[p0 + i])]
        e1 = table[u64(e1 & ROW_MASK) | u64(text[p1 + i])]
        e2 = table[u64(e2 & ROW_MASK) | u64(text[p2 + i])]
        e3 = table[u64(e3 & ROW_MASK) | u64(text[p3 + i])]
        e4 = table[u64(e4 & ROW_MASK) | u64(text[p4 + i])]
        e5 = table[u64(e5 & ROW_MASK) | u64(text[p5 + i])]
        marks[i + u64(0 * MARK_ROW)], marks[i + u64(1 * MARK_ROW)] = u8(e0), u8(e1)
        marks[i + u64(2 * MARK_ROW)], marks[i + u64(3 * MARK_ROW)] = u8(e2), u8(e3)
        marks[i + u64(4 * MARK_ROW)], marks[i + u64(5 * MARK_ROW)] = u8(e4), u8(e5)
    lanes[0, AHEAD], lanes[1, AHEAD], lanes[2, AHEAD] = e0, e1, e2
    lanes[3, AHEAD], lanes[4, AHEAD], lanes[5, AHEAD] = e3, e4, e5


@inline_kernel
def _add_marked(k, start, count, lanes, marks):
    """Append the ends that are marked in the first `count` bytes that lane k has read after its position.

    Eight are written for each that is kept at least: no branch is taken that depends on where a pretoken ends.
    """
    ends, n = lanes[k, ENDS:], u64(lanes[k, N_ENDS])
    for group in range(0, count, 64):
        first, after = k * MARK_ROW + group, u64(lanes[k, POSITION] + start + group + 1)
        inside = ALL_ONES >> u64(64 - min(count - group, 64))
        found = bytes_from(marks, first, u8(1)) & inside
        if bytes_from(marks, first, u8(RARE_STEP)) & inside:  # two pretokens end at a byte
            while found:
                at = lowest_bit(found)
                entry = u64(marks[u64(first) + at])
                ends[n] = after + at - (entry & u64(BACK_MASK))
                n += u64(1)
                if entry >= u64(RARE_STEP):
                    ends[n] = after + at - (entry >> u64(5))
                    n += u64(1)
                found &= found - u64(1)
        else:  # each is below RARE_STEP: all of it is how far back the end is
            stop = n + count_bits(found)
            while n < stop:
                for i in range(8):
                    at = lowest_bit(found)
                    ends[n + u64(i)] = after + at - u64(marks[u64(first) + at])
                    found &= found - u64(1)
                n += u64(8)
            n = stop
    lanes[k, N_ENDS] = n


@inline_kernel
def _run_all_lanes(text, count, table, lanes, marks):
    """Move all lanes over `count` bytes each, all in one loop, or up to an entry that needs `_on_rare_entry`.

    First the entries are read, and of each its lower byte is kept; then 64 of these are compared at once to find the
    ends. That takes three quarters of the time that it takes if each lane writes an end at every byte.
    """
    start, is_rare = i64(0), False
    while start < count and not is_rare:
        n = min(count - start, MARKED_BYTES)
        _read_together(text, start, n, table, lanes, marks)
        first = n
        for k in range(LANES):
            for group in range(0, first, 64):
                rare = bytes_from(marks, k * MARK_ROW + group, u8(INVALID_UTF8))
                if rare:
                    first = min(first, group + i64(lowest_bit(rare)))
        is_rare = first < n
        if is_rare:  # all lanes stop there, with the entries that led there
            _read_together(text, start, first + 1, table, lanes, marks)
        for k in range(LANES):
            _add_marked(k, start, first, lanes, marks)
            lanes[k, ENTRY] = lanes[k, AHEAD] if is_rare else lanes[k, AHEAD] & i64(ROW_MASK)
        start += first + is_rare
    for k in range(LANES):
        lanes[k, POSITION] += start


@inline_kernel
def _share_lanes(text, stop, table, lanes):
    """Share the next batch among the lanes, which begin where pretokens must end; returns how many have a part."""
    position, stop = lanes[0, POSITION], min(stop, lanes[0, POSITION] + BATCH_BYTES)
    size = (stop - position) // LANES
    n_lanes = 1 if size < MIN_LANE_BYTES or position - _last_end(i64(0), lanes) > LANE_BYTES else LANES
    for k in range(1, n_lanes):
        start = _next_split(text, position + k * size, position + (k + 1) * size, table.class_of, table.must_split)
        if start < 0:
            n_lanes = 1
            break
        lanes[k - 1, LAST] = lanes[k, FIRST] = lanes[k, POSITION] = start
        lanes[k, ENTRY] = lanes[k, N_ENDS] = 0
    lanes[n_lanes - 1, LAST] = stop
    return n_lanes


@inline_kernel
def _begin_scan(text, lanes):
    """Begin to scan a flat text; returns where that stops: after the first END of its padding, which ends the last."""
    lanes[0, FIRST] = lanes[0, POSITION] = lanes[0, ENTRY] = lanes[0, N_ENDS] = 0
    return len(text) - PADDING + 1


@kernel
def _scan_batch(text, stop, table, lanes, marks):
    """Scan the next batch; its ends are those of lane 0.

    Returns the text. If it is not UTF-8, that is a copy with INVALID_BYTE, and the batch is scanned again.
    """
    valid = False
    while not valid:
        lanes[0, FIRST], lanes[0, N_ENDS] = _last_end(i64(0), lanes), 0
        n_lanes, valid = _share_lanes(text, stop, table, lanes), True
        count = BATCH_BYTES if n_lanes > 1 else 0
        while count > 0 and valid:
            for k in range(LANES):
                count = min(count, lanes[k, LAST] - lanes[k, POSITION])
            if count > 0:
                _run_all_lanes(text, count, table.table, lanes, marks)
            rare = u32(0)
            for k in range(LANES):
                rare |= u32(lanes[k, ENTRY]) & RARE_MASK
            for k in range(LANES):
                if rare:  # one entry is rare, but all wait with their ends
                    valid = _on_rare_entry(k, text, table, lanes) and valid
        for k in range(n_lanes):
            last = lanes[k, LAST]
            if k < n_lanes - 1:  # the end there is found at the next character
                last += _decode_character(text, last, last + 4) & 7
            valid = valid and _run_lane(k, text, last, table, lanes)
        if not valid:
            text = text.copy()
            _mark_invalid(text, lanes[0, FIRST], stop)
            lanes[0, POSITION], lanes[0, ENTRY], lanes[0, N_ENDS] = lanes[0, FIRST], 0, 0
    for k in range(1, n_lanes):
        n = lanes[0, N_ENDS]
        for i in range(lanes[k, N_ENDS]):
            lanes[0, ENDS + n + i] = lanes[k, ENDS + i]
        lanes[0, N_ENDS] += lanes[k, N_ENDS]
    lanes[0, POSITION], lanes[0, ENTRY] = lanes[n_lanes - 1, POSITION], lanes[n_lanes - 1, ENTRY]
    return text


@inline_kernel
def _is_dropped(text, start, stop, class_of, dropped):
    """Check whether a pretoken is left out."""
    return len(dropped) > 0 and dropped[class_of[_decode_character(text, start, stop) >> 3]]


@kernel
def _write_cuts(text, scanned, meanings, table, lanes, marks):
    """Write an END between pretokens, and leave out those that are dropped; returns text and meanings.

    A pretoken that does not begin its text has an END before it, though all before it may be dropped.
    """
    class_of, dropped, stop = table.class_of, table.dropped, _begin_scan(text, lanes)
    out, n_out = _on_huge_pages(np.empty(2 * len(text), np.uint8)), i64(0)
    found, n, m = np.empty(len(meanings) + 64, np.int64), 0, 0
    first = 0  # of the text that is cut
    while lanes[0, POSITION] < stop:
        scanned = _scan_batch(scanned, stop, table, lanes, marks)
        start = lanes[0, FIRST]
        for k in range(lanes[0, N_ENDS]):
            end = lanes[0, ENDS + k]
            is_end = scanned[start] == END
            is_kept = not is_end and not _is_dropped(scanned, start, end, class_of, dropped)
            if is_end or (is_kept and start > first):
                out[n_out] = END
                n_out += 1
                found = _reserve(found, n + 1)
                found[n] = meanings[m] if is_end else INSIDE
                n += 1
            if is_end:
                m, first = m + 1, end
            elif is_kept:
                n_out = _copy_bytes(text, start, end, out, n_out)
            start = end
    return _add_padding(out, n_out), found[:n]


@kernel
def _write_spaces(text, scanned, meanings, mark, scheme, begins):
    """Write a mark for each space, and before texts and pretokens that lack it, by the scheme of a Metaspace.

    Returns text and meanings.
    """
    size, n_marks = len(mark) - PADDING, len(meanings)
    for byte in text:
        n_marks += byte == 0x20
    out = _on_huge_pages(np.empty(len(text) + n_marks * size, np.uint8))
    n, m, id, is_first = i64(0), 0, begins, True
    for k in range(len(text) - PADDING):
        if scanned[k] == END:
            id, is_first, m = min(meanings[m], INSIDE), True, m + 1
        elif is_first:
            wanted = (scheme == ALWAYS and id == INSIDE) or (scheme != NEVER and id == BEGINS)
            if wanted and text[k] != 0x20 and not _equal(text, k, mark, 0, size):
                n = _copy_bytes(mark, i64(0), size, out, n)
            is_first = False
        if text[k] == 0x20:
            n = _copy_bytes(mark, i64(0), size, out, n)
        else:
            out[n] = text[k]
            n += 1
    return _add_padding(out, n), meanings


# ─── Special tokens ───────────────────────────────────────────────────────────────────────────────────────────────────


@struct
class _SpecialTable:
    """Special tokens, by number."""

    trie: _Trie
    ids: np.ndarray  # int64[S]
    sizes: np.ndarray  # int64[S]      in bytes
    leads: np.ndarray  # bool[256]     one begins with this byte
    lead: int  # the byte that all begin with, or -1
    flags: np.ndarray  # uint8[S]      SINGLE_WORD, LSTRIP, RSTRIP
    char_kinds: np.ndarray  # uint8[0x110000], WORD or SPACE; empty if there are no flags
    longest: int  # bytes of the longest
    cuts: bool  # a text may be cut after each: they have no flags, and are found in text as it is


SINGLE_WORD, LSTRIP, RSTRIP = 1, 2, 4
WORD, SPACE = u8(1), u8(2)


class AddedToken(NamedTuple):
    """How Hugging Face finds a token in a text.

    >>> AddedToken(lstrip=True)
    AddedToken(single_word=False, lstrip=True, rstrip=False, normalized=False, special=True, literal=False)
    """

    single_word: bool = False  # only where no letter or digit is beside it
    lstrip: bool = False  # with the white space before it
    rstrip: bool = False  # and after it
    normalized: bool = False  # after all that are not
    special: bool = True  # a control token, which text without special tokens never becomes
    literal: bool = False  # not Hugging Face's: normalized text has it as it is written, as SentencePiece's symbols


def _special_table(
    ids: Mapping[str, int], flags: Mapping[str, AddedToken] | None = None, normalize: Callable[[bytes], bytes] = bytes
) -> _SpecialTable:
    """Make the table of some special tokens, as they are in text that was normalized."""
    tokens, flags = {}, flags or {}
    for text in ids:
        is_literal = flags.get(text, AddedToken()).literal
        tokens[text.encode() if is_literal else normalize(text.encode())] = text
    tokens.pop(b"", None)
    flagged = [flags.get(text, AddedToken()) for text in tokens.values()]
    begins = {token[0] for token in tokens}
    bits = [SINGLE_WORD * flag.single_word + LSTRIP * flag.lstrip + RSTRIP * flag.rstrip for flag in flagged]
    return _SpecialTable(
        make_trie(dict(enumerate(tokens))),
        np.array([ids[text] for text in tokens.values()], np.int64),
        np.array([*map(len, tokens)], np.int64),
        np.isin(np.arange(256), [*begins]),
        min(begins, default=-1) if len(begins) < 2 else -1,
        np.array(bits, np.uint8),
        _char_kinds() if any(bits) else np.zeros(0, np.uint8),
        max(map(len, tokens), default=0),
        not any(bits) and not any(flag.normalized for flag in flagged),
    )


@functools.lru_cache(maxsize=1)
def _char_kinds() -> np.ndarray:
    r"""Find the characters that are \w and \s to Hugging Face, whose engine here is that of Rust."""
    words = _code_points_matching(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")
    return WORD * words.astype(np.uint8) + SPACE * _code_points_matching(r"\p{White_Space}").astype(np.uint8)


@kernel
def _special_at(text, position, stop, special):
    """Find the special token at a position, the longest of several; returns its number, or -1."""
    edges, values = special.trie.edges, special.trie.values
    node, found, is_there = i64(0), i64(-1), special.leads[text[position]]
    while is_there and position < stop:
        node = _trie_child(node, text[position], edges)
        if node < 0:
            break
        if values[node] >= 0:
            found = i64(values[node])
        position += 1
    return found


@kernel
def _next_special(text, position, stop, special):
    """Find the first special token at or after a position; returns its place, or `stop`.

    Where all begin with the same byte, 64 bytes are looked at together.
    """
    leads, lead = special.leads, special.lead
    while position < stop:
        while lead >= 0 and position + 64 <= stop:
            found = bytes_from(text, position, u8(lead)) & ~bytes_from(text, position, u8(lead + 1))  # not 0xFF
            if found:
                position += i64(lowest_bit(found))
                break
            position += 64
        while position < stop and not leads[text[position]]:
            position += 1
        if position < stop and _special_at(text, position, stop, special) >= 0:
            return position
        position += 1
    return stop


@kernel
def _kind_before(text, start, position, char_kinds):
    """Look up the kind of the character that ends at a position; 0 at the start of the text."""
    return char_kinds[_character_before(text, start, position) >> 3] if position > start else u8(0)


@kernel
def _kind_after(text, position, stop, char_kinds):
    """Look up the kind of the character that begins at a position; 0 at the end of the text."""
    return char_kinds[_decode_character(text, position, stop) >> 3] if position < stop else u8(0)


@kernel
def _is_beside(kind, text, begin, start, end, stop, char_kinds):
    """Check whether a character of this kind is beside text[start : end], which lies in text[begin : stop]."""
    kinds = _kind_before(text, begin, start, char_kinds) | _kind_after(text, end, stop, char_kinds)
    return kinds & kind > 0


@kernel
def _cut_at_special(text, ends, meanings, special):
    """Write END in the place of special tokens, found from left to right, the longest first.

    The flags of a token widen it over the white space beside it, or leave it out where it is part of a word, as
    `find_matches` in the `tokenizers` package does. Returns text, meanings, and how many stretches of text there are.
    """
    n_text, start, n_stretches = len(text) - PADDING, i64(0), 0
    is_there = len(special.ids) > 0 and _next_special(text, start, n_text, special) < n_text
    if not is_there:
        for end in ends:
            n_stretches += end > start
            start = end + 1
        return text, meanings, n_stretches
    char_kinds, out, n_out = special.char_kinds, _on_huge_pages(np.empty(len(text), np.uint8)), i64(0)
    found, n = np.empty(len(meanings) + 64, np.int64), 0
    for t in range(len(ends)):
        begin = last = position = start
        stop = ends[t]
        while position < stop:
            start = _next_special(text, position, stop, special)
            if start == stop:
                break
            s = _special_at(text, start, stop, special)
            end = position = start + special.sizes[s]
            if len(char_kinds):
                flags = special.flags[s]
                if flags & SINGLE_WORD and _is_beside(WORD, text, begin, start, position, stop, char_kinds):
                    continue
                while flags & LSTRIP and start > last and _kind_before(text, begin, start, char_kinds) & SPACE:
                    start -= _character_before(text, begin, start) & 7
                while flags & RSTRIP and _kind_after(text, end, stop, char_kinds) & SPACE:
                    end += _decode_character(text, end, stop) & 7
            if last < start:  # a token may lie in the white space that the one before it has taken
                n_out = _copy_bytes(text, last, start, out, n_out)
                n_stretches += 1
            out[n_out] = END
            n_out += 1
            found = _reserve(found, n + 1 + len(ends))
            found[n] = special.ids[s]
            n, last = n + 1, end
        if last < stop:
            n_out = _copy_bytes(text, last, stop, out, n_out)
            n_stretches += 1
        out[n_out] = END
        n_out += 1
        found[n] = meanings[t]
        n, start = n + 1, stop + 1
    return _add_padding(out, n_out), found[:n], n_stretches


@kernel
def _find_cut(text, start, stop, class_of, must_split, special):
    """Find the first place at or after `start` where a cut changes neither special tokens nor pretokens.

    That is after a special token, if these cut; or where the pattern always ends a pretoken. What looks like a special
    token is not one if an earlier one overlaps it: so none may overlap the place. Returns it doubled, and 1 added if a
    document ends there; or -1.
    """
    end, any_special, longest = len(text) - PADDING, len(special.ids) > 0, special.longest  # they may go beyond `stop`
    kinds = special.char_kinds
    split = _next_split(text, start, stop, class_of, must_split)
    for position in range(start, stop):
        reach = i64(0)  # where what may be tokens before this position ends
        is_split = position == split
        s = _special_at(text, position, end, special) if any_special else i64(-1)
        if any_special and (is_split or (s >= 0 and special.cuts)):
            for before in range(max(0, position - longest), position):
                other = _special_at(text, before, end, special)
                if other >= 0:
                    reach = max(reach, before + special.sizes[other])
        if s >= 0 and special.cuts and reach <= position:
            return 2 * (position + special.sizes[s]) + 1
        if is_split:
            flags_reach = len(kinds) > 0 and _is_beside(SPACE, text, i64(0), position, position, end, kinds)
            if s < 0 and reach < position and not flags_reach:
                return 2 * position
            split = _next_split(text, position, stop, class_of, must_split)
    return -1


# ─── Normalizing ──────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Most steps change characters one by one, but for joined ones, which change with the characters beside them, such as
# accents in a normal form. Such steps in a row are one pass: a kernel maps all characters, but for runs of joined ones,
# which Python changes by one step after another. All other steps are functions of a whole text, in Python.


class _CharacterStep(NamedTuple):
    """A step that changes characters one by one, but for joined ones, which change with the characters beside them."""

    changes: Mapping[int, str]  # as str.translate takes them
    joined: frozenset[str] = frozenset()
    change: Callable[[str], str] | None = None  # if it is not str.translate
    decomposes: bool = False  # NFD or NFKD


def _composed(steps: Sequence[_CharacterStep]) -> tuple[dict[int, str], set[str]]:
    """Compose steps: returns what becomes of characters, and which are joined.

    A decomposition does no more to joined characters than to reorder them: it counts only for those that are not
    removed by a later step.
    """
    changes: dict[int, str] = {}
    joined: set[str] = set()
    for step in reversed(steps):
        kept = {char for char in joined if ord(char) not in step.changes}
        if joined:  # what is removed brings those on both sides together
            kept |= {chr(code) for code, text in step.changes.items() if not text or not joined.isdisjoint(text)}
        changes = {**changes, **{code: text.translate(changes) for code, text in step.changes.items()}}
        joined = kept | {char for char in step.joined if not step.decomposes or changes.get(ord(char), char)}
    return changes, joined


@struct
class _CharacterMap:
    """What becomes of characters."""

    entries: np.ndarray  # int32[0x110000]  the number of a character's text, from 1 on; 0: it stays; JOINED
    ascii: np.ndarray  # int16[256]         the byte that a character of one byte becomes; -1: ask `entries`
    texts: np.ndarray  # uint8[…]           end to end, and PADDING
    offsets: np.ndarray  # int64[R + 2]     number r is texts[offsets[r] : offsets[r + 1]]
    leads: np.ndarray  # bool[256]          a joined character begins with this byte
    first_lead: int  # the least of them
    longest: int  # the most bytes that a byte can become
    maps: bool  # some character is changed


JOINED = -1


def _character_map(changes: Mapping[int, str], joined: Iterable[str]) -> _CharacterMap:
    """Make the tables of `_map_characters`."""
    texts = [text.encode("utf-8", "surrogateescape") for text in changes.values()]
    entries = np.zeros(N_CODE_POINTS, np.int32)
    entries[list(changes)] = np.arange(1, len(changes) + 1)
    entries[list(map(ord, joined))] = JOINED
    ascii, leads = np.full(256, -1, np.int16), np.zeros(256, bool)
    leads[[char.encode("utf-8", "surrogateescape")[0] for char in joined]] = True
    for code in range(0x80):
        text = changes.get(code, chr(code))
        if len(text) == 1 and text.isascii():
            ascii[code] = ord(text)
    offsets, longest = np.cumsum([0, 0, *map(len, texts)]), max(map(len, texts), default=1) + 1
    first_lead = int(np.append(np.flatnonzero(leads), 0xFF)[0])
    texts = _with_padding(b"".join(texts))
    return _CharacterMap(entries, ascii, texts, offsets, leads, first_lead, longest, bool(changes))


@kernel
def _find_joined(text, table):
    """Find runs of joined characters, each with the character before it and the one after it.

    Returns where each begins and ends, int64[J, 2], and their text, with END after each. A run ends at an END, too, be
    it a real byte 0xFE: a byte that is not UTF-8 changes nothing beside it.
    """
    runs, n, size, entries, leads = np.empty((16, 2), np.int64), 0, i64(0), table.entries, table.leads
    position, stop, last, first_lead = i64(0), len(text) - PADDING, i64(0), u8(table.first_lead)
    while position < stop:
        while position + 64 <= stop and not bytes_from(text, position, first_lead):
            position += 64
        while position < stop and not leads[text[position]]:
            position += 1
        character, start = _decode_character(text, position, stop), position
        position += character & 7
        if start >= stop or entries[character >> 3] != JOINED:
            continue
        if n == 0 or start > last:
            if start > last and text[start - 1] != END:
                start -= _character_before(text, last, start) & 7
            if n == len(runs):
                runs = np.concatenate((runs, runs))
            runs[n, 0], n = start, n + 1
        last = position
        if text[position] != END:
            last += _decode_character(text, position, stop) & 7
        runs[n - 1, 1] = last
    for k in range(n):
        size += runs[k, 1] - runs[k, 0] + 1
    joined, size = np.empty(size + PADDING, np.uint8), i64(0)
    for k in range(n):
        size = _copy_bytes(text, runs[k, 0], runs[k, 1], joined, size)
        joined[size] = END
        size += 1
    return runs[:n], joined[:size]


MAPPED_BYTES = 1 << 12  # for which room is made at once: an array that may be replaced at each byte takes 10 ns for it


@kernel
def _map_characters(text, runs, changed, changed_ends, table):
    """Map all characters, but for those of some runs, in whose place `changed` is written; returns text."""
    entries, ascii, texts, offsets, longest = table.entries, table.ascii, table.texts, table.offsets, table.longest
    out, q = _on_huge_pages(np.empty(len(text) + 64, np.uint8)), 0
    n = position = written = i64(0)
    stop = len(text) - PADDING
    while position < stop:
        run = runs[q, 0] if q < len(runs) else stop
        if position == run:
            out = _reserve(out, n + changed_ends[q] - written + 2 * PADDING)
            n = _copy_bytes(changed, written, changed_ends[q], out, n)
            written, position, q = changed_ends[q] + 1, runs[q, 1], q + 1
            continue
        limit = min(run, position + MAPPED_BYTES)
        out = _reserve(out, n + (limit - position) * longest + 2 * PADDING)
        if not table.maps:
            n, position = _copy_bytes(text, position, limit, out, n), limit
        while position < limit:
            if ascii[text[position]] >= 0:
                out[n] = ascii[text[position]]
                position, n = position + 1, n + 1
                continue
            character = _decode_character(text, position, stop)
            number, size = entries[character >> 3], character & 7
            if number:
                n = _copy_bytes(texts, offsets[number], offsets[number + 1], out, n)
            else:
                n = _copy_bytes(text, position, position + size, out, n)
            position += size
    return _add_padding(_reserve(out, n + PADDING), n)


class _MapPass:
    """Change characters by several steps at once."""

    def __init__(self, steps: Sequence[_CharacterStep]):
        self.steps = steps
        changes, joined = _composed(steps)
        self.table, self.maps = _character_map(changes, joined), bool(changes)
        self.begins = ""
        self.changed = {*changes, *map(ord, joined)}

    def _change_runs(self, joined: np.ndarray) -> np.ndarray:
        """Change runs by one step after the other; returns them with PADDING."""
        text = joined.tobytes().decode("utf-8", "surrogateescape")
        for step in self.steps:
            text = step.change(text) if step.change else text.translate(step.changes)
        return _with_padding(text.encode("utf-8", "surrogateescape"))

    def apply(self, flat: FlatText, begins: int) -> FlatText:
        """Change all characters of a flat text."""
        return flat.rewritten(self._write)

    def _write(self, text: np.ndarray, scanned: np.ndarray, meanings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        runs, joined = _find_joined(text, self.table)
        if not self.maps and not len(runs):
            return text, meanings
        changed = self._change_runs(joined)
        return _map_characters(text, runs, changed, np.flatnonzero(changed == END), self.table), meanings


class _TextPass(NamedTuple):
    """Change texts as a whole."""

    change: Callable[[str], str] | None = None
    prefix: bytes = b""  # that is put before what is changed, but where a text goes on
    changed: Collection[int] | None = None  # characters that it may change; None: any, by what is beside them, too
    begins: str = ""  # what it becomes depends on what is after

    def apply(self, flat: FlatText, begins: int) -> FlatText:
        """Change what is between ENDs."""
        parts = [self._change(k == 0 and begins == CONTINUES, part) for k, part in enumerate(flat.parts())]
        return FlatText.join(parts, flat.meanings)

    def _change(self, goes_on: bool, data: bytes) -> bytes:
        if self.change:
            text = "." * goes_on + data.decode("utf-8", "surrogateescape")  # what goes on is not the edge of a text
            data = self.change(text)[goes_on:].encode("utf-8", "surrogateescape")
        return self.prefix * (bool(data) and not goes_on) + data


def _uniform_step(source: str, text: str = "") -> _CharacterStep:
    """Make the step that changes each character that matches a one-character expression to the same text."""
    return _CharacterStep(dict.fromkeys(map(ord, _matching(source)), text))


@functools.lru_cache
def _normal_form(form: str) -> _CharacterStep:
    """Make the step that brings text into a normal form of Unicode, which may reorder and compose joined characters."""
    decomposed, seconds = form.replace("C", "D"), set()
    if form != decomposed:
        seconds.update(
            _matching(r"[\u1161-\u1175\u11a8-\u11c2]"),
            *(unicodedata.normalize("NFD", char)[1:] for char in _matching(r"\p{NFD_QC=N}")),
        )
    firsts = {c: unicodedata.normalize(decomposed, c)[0] for c in _matching(rf"\p{{{decomposed}_QC=N}}|\p{{M}}")}
    changed, joined = _matching(rf"\p{{{form}_QC=N}}"), seconds
    joined |= {c for c, first in firsts.items() if first in seconds or unicodedata.combining(first)}
    return _CharacterStep(
        {ord(char): unicodedata.normalize(form, char) for char in changed} if form == decomposed else {},
        frozenset(joined if form == decomposed else joined.union(changed)),
        functools.partial(unicodedata.normalize, form),
        form == decomposed,
    )


MAX_REPLACEMENT = 100  # bytes; those of Unicode's normal forms have 33 at most
MAX_CHARSMAP_BYTES = 1 << 23  # of all prefixes of keys; SentencePiece's own have 1,500,000, and circles many more


def _read_charsmap(text: str) -> dict[str, str]:
    """Read the keys and replacements of a precompiled charsmap, in base64; raises InputError if it is damaged.

    It is the number of bytes of a trie, uint32; the trie; and the replacements, each with a NUL after. The trie is a
    double array as Darts-clone writes it (Yata 2008): the child of the node at p by the byte b is at p ^ b, where p is
    the node's place ^ its offset; if a key ends there, its replacement is where the unit at p says.
    """
    blob = base64.b64decode(text, validate=True)
    size = int.from_bytes(blob[:4], "little")
    damaged = InputError(f"the precompiled charsmap is damaged, or cut off: it has {len(blob):,} bytes")
    if not size or size % 4 or 4 + size > len(blob):
        raise damaged
    units, texts = np.frombuffer(blob[4 : 4 + size], "<u4").astype(np.int64), blob[4 + size :]
    nodes = (np.arange(len(units)) ^ units >> 10 << ((units & 1 << 9) >> 6)).tolist()
    labels, has_value, values = (column.tolist() for column in (units & 0x800000FF, units >> 8 & 1, units & 0x7FFFFFFF))
    children: dict[int, list[int]] = {}
    for place, label in enumerate(labels):
        if 0 < label < 256:
            children.setdefault(place ^ label, []).append(place)
    changes, n_bytes, stack = {}, 0, [(b"", nodes[0])]
    try:
        while stack:
            prefix, node = stack.pop()
            for place in children.get(node, ()):
                key = prefix + BYTES[labels[place]]
                stack.append((key, nodes[place]))
                n_bytes += len(key)
                if has_value[place]:
                    start = values[nodes[place]]
                    changes[key.decode()] = texts[start : texts.index(b"\0", start, start + MAX_REPLACEMENT)].decode()
            require(n_bytes <= MAX_CHARSMAP_BYTES, "a circle")
    except (IndexError, ValueError):
        raise damaged from None
    return changes


MAX_CLUSTER_BYTES = 5  # that the crate spm_precompiled replaces as a whole


def _precompiled_step(precompiled_charsmap: str) -> _CharacterStep:
    """Make the step Precompiled: it looks for the shortest key that a short grapheme cluster begins with."""
    changes = _read_charsmap(precompiled_charsmap)

    @functools.lru_cache(1 << 16)
    def change_cluster(cluster: str) -> str:
        if len(cluster.encode("utf-8", "surrogateescape")) <= MAX_CLUSTER_BYTES:
            for prefix in itertools.accumulate(cluster):
                if prefix in changes:
                    return changes[prefix]
        return "".join([changes.get(char, char) for char in cluster])

    return _CharacterStep(
        {ord(key): text for key, text in changes.items() if len(key) == 1},
        frozenset(_matching(r"[^\p{GCB=Other}\p{GCB=CN}\p{GCB=LF}\p{GCB=LV}\p{GCB=LVT}]")),
        lambda text: "".join(map(change_cluster, regex.findall(r"\X", text))),
    )


_NEWER_FORMATS = "\u0890\u0891\u08e2\U000110cd\U00013430-\U0001343f"  # than the tables of `tokenizers`
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f"
_IDEOGRAPHS += "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"


def _lowercase_step() -> _CharacterStep:
    """Make the step of characters to lower case, each on its own, Σ too."""
    return _CharacterStep({ord(char): char.lower() for char in _matching(r"\p{Changes_When_Lowercased}")})


def _bert_steps(
    clean_text: bool, handle_chinese_chars: bool, strip_accents: bool | None, lowercase: bool
) -> Iterator[_CharacterStep]:
    """Make the steps of BERT's normalizer."""
    if clean_text:
        yield _uniform_step(rf"(?![\t\n\r{_NEWER_FORMATS}])[\p{{Cc}}\p{{Cf}}\p{{Co}}\ufffd]")
        yield _uniform_step(r"[\t\n\r\p{White_Space}]", " ")
    if handle_chinese_chars:
        yield _CharacterStep({ord(char): f" {char} " for char in _matching(f"[{_IDEOGRAPHS}]")})
    if lowercase if strip_accents is None else strip_accents:
        yield _normal_form("NFD")
        yield _uniform_step(r"(?![\u1885\u1886])[\p{Mn}\u1734]")  # as of 2015
    if lowercase:
        yield _lowercase_step()


def _replace_passes(pattern: Mapping[str, str], content: str) -> list[_CharacterStep | _TextPass]:
    """Make the step Replace."""
    (kind, source), *more = pattern.items()
    known = kind in ("String", "Regex") and source and not more
    require(known, f"a pattern to replace is not supported: {json.dumps(pattern)}")
    require(isinstance(content, str), f"Replace has a content that is no text: {json.dumps(content)}")
    (source + content).encode()  # which refuses lone surrogates
    if kind == "String" and len(source) == 1:
        return [_CharacterStep({ord(source): content})]
    if kind == "String":
        return [_TextPass(lambda text: text.replace(source, content), changed=[*map(ord, source)], begins=source[0])]
    if source == _STRIP["pattern"]["Regex"] and not content:
        return [_TextPass(lambda text: text.strip(" "), changed=[0x20])]
    if source == " {2,}":  # as SentencePiece's rules have it: several times as fast as by `regex`
        begins = " " * (content != " ")
        return [_TextPass(lambda text: re.sub("  +", lambda match: content, text), changed=[0x20], begins=begins)]
    expression = _compile_regex(_read_regex(source, "Replace"))

    def replace(text: str) -> str:
        """Write the content for what matches."""
        with _time_limit(source, text) as seconds:
            return expression.sub(lambda match: content, text, timeout=seconds)

    return [_TextPass(replace)]


def _strip_passes(strip_left: bool, strip_right: bool) -> list[_TextPass]:
    """Make the step Strip."""
    spaces = "".join(_matching(r"\p{White_Space}"))
    left, right = spaces * bool(strip_left), spaces * bool(strip_right)
    return [_TextPass(lambda text: text.lstrip(left).rstrip(right), changed=[*map(ord, spaces)])]


# What makes the steps of a type; its parameters are the fields.
_NORMALIZERS: dict[str, Callable[..., Iterable[_CharacterStep | _TextPass]]] = {
    **{form: lambda form=form: [_normal_form(form)] for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "Lowercase": lambda: [_lowercase_step()],
    "Strip": _strip_passes,
    "StripAccents": lambda: [_uniform_step(r"\p{M}")],
    "Replace": _replace_passes,
    "Prepend": lambda prepend: [_TextPass(prefix=prepend.encode(), changed=())],
    "BertNormalizer": _bert_steps,
    "Nmt": lambda: [
        _uniform_step(r"[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]"),
        _uniform_step(r"[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]", " "),
    ],
    "Precompiled": lambda precompiled_charsmap: [_precompiled_step(precompiled_charsmap)],
}


def _normalizer_steps(step: dict) -> list[_CharacterStep | _TextPass]:
    """Make the steps that a step of a tokenizer.json consists of."""
    fields = dict(step)
    kind = fields.pop("type", None)
    require(kind in _NORMALIZERS, f"the normalizer {json.dumps(step)[:100]} is not supported")
    try:
        return list(_NORMALIZERS[kind](**fields))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"the normalizer {kind}: {error}") from None


@functools.lru_cache(8)
def _normalizer_passes(steps: str) -> list[_MapPass | _TextPass]:
    """Make the passes of steps in JSON: those that change characters, one after the other, are one."""
    parts, passes = [part for s in _flattened(json.loads(steps), "normalizers") for part in _normalizer_steps(s)], []
    for by_character, group in itertools.groupby(parts, lambda part: isinstance(part, _CharacterStep)):
        group = list(group)
        passes += [_MapPass(group)] if by_character else group
    return passes


class Normalizer:
    """Change text before it is cut into pretokens: steps as a tokenizer.json writes them.

    NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, BertNormalizer, Nmt, Precompiled and
    Sequence do what they do in the `tokenizers` package, to each stretch of text between special tokens on its own;
    but for characters that are newer than its tables, some of which are of 2015. What is not UTF-8 stays as it is.
    Raises InputError for what is not supported.

    >>> Normalizer([{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]).normalize("Élan".encode())
    b'elan'
    """

    def __init__(self, steps: Sequence[dict] = ()):
        self.steps = tuple(steps)
        self._passes = _normalizer_passes(json.dumps(self.steps))

    def __reduce__(self):
        return Normalizer, (self.steps,)

    def __bool__(self) -> bool:
        return bool(self._passes)

    def apply(self, flat: FlatText, begins: int) -> FlatText:
        """Normalize what is between the ENDs of a flat text."""
        for step in self._passes:
            flat = step.apply(flat, begins)
        return flat

    def normalize(self, data: bytes) -> bytes:
        """Normalize one text."""
        return self.apply(FlatText.join([data], [BEGINS]), BEGINS).parts()[0]

    def cut_arrays(self, pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
        """Make the arrays that prove where text may be cut before it is normalized, as Pattern.cut_arrays.

        That is before a newline or a space, and after a character that no step changes, where the pattern must split.
        """
        if not self:
            return pattern.cut_arrays
        changed = [step.changed for step in self._passes]
        if None in changed:
            return Pattern("none").cut_arrays
        class_of, must_split = pattern.cut_arrays
        classes, n = class_of.copy(), len(must_split)
        classes[[code for codes in changed for code in codes]] = n  # which never splits
        splits = np.pad(np.zeros_like(must_split), (0, 3))
        for k, space in enumerate("\n ", n + 1):
            written = self.normalize(f"x{space}x".encode()).decode().rpartition("x")[0].rpartition("x")[2]
            classes[ord(space)] = k
            if len(written) == 1 and not any(space in step.begins for step in self._passes):
                splits[:n, k] = must_split[:, class_of[ord(written)]]
        return classes, splits


def _flattened(part: object, key: str) -> list[dict]:
    """List the steps of a normalizer, a pre_tokenizer or a decoder; `key` is that of the steps in a Sequence."""
    if isinstance(part, (list, tuple)):
        return [step for one in part for step in _flattened(one, key)]
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "Sequence" and key in part:
        return _flattened(part[key], key)
    if not isinstance(kind, str) or kind == "Sequence":
        raise InputError(
            f"a step without a type, or a Sequence without {key}, is not supported: {json.dumps(part)[:100]}"
        )
    return [part]


# ─── Pretokenizing ────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Texts -> one flat text, for the last step of a pattern, with whose table it is scanned:
#
#     texts  ->  special tokens  ->  normalizer  ->  special tokens     ->  steps  ->  scan
#                become END                          that are found in     write END
#                                                    normalized text       between pretokens


class Pretokenizer:
    """Cut texts at special tokens, normalize what is between them, and cut that by all steps of a pattern but the last.

    >>> pretokenizer = Pretokenizer(Pattern([Metaspace("_"), "_[^_]*"]), {"<|end|>": 7})
    >>> flat, given, n_documents = pretokenizer.apply(_new_scan(), b"a b<|end|>", np.array([10]))
    >>> flat.parts(), flat.meanings.tolist(), given.parts(), n_documents
    ([b'_a_b', b''], [7, -2], [b'a b', b''], 1)
    """

    def __init__(
        self,
        pattern: Pattern,
        special_tokens: Mapping[str, int] | None = None,
        flags: Mapping[str, AddedToken] | None = None,
        normalizer: Normalizer | None = None,
    ):
        passes: list[dict[str, int]] = [{}, {}]
        for token, id in (special_tokens or {}).items():
            passes[(flags or {}).get(token, AddedToken()).normalized][token] = id
        self.pattern, self.normalizer = pattern, normalizer or Normalizer()
        if not self.normalizer and not passes[0]:
            passes.reverse()
        self.special = _special_table(passes[0], flags)
        self.normalized = _special_table(passes[1], flags, self.normalizer.normalize) if passes[1] else None
        self.is_one_machine = pattern.is_one_machine and not self.normalizer and not self.normalized

    def apply(self, scan: Scan, data: bytes, stops: np.ndarray, begins: int = BEGINS) -> tuple[FlatText, FlatText, int]:
        """Make a flat text of texts that lie end to end, for the last step of the pattern.

        begins  how the first text begins: BEGINS, or another if it goes on from an earlier block

        Returns it; the flat text as it is before it is normalized; and the number of documents in that.
        """
        flat = FlatText.of(data, stops, np.full(len(stops), BEGINS))
        given, n_documents = _find_special(flat, stops + np.arange(len(stops)), self.special)
        flat = self.normalizer.apply(given, begins)
        if self.normalized:
            flat, _ = _find_special(flat, flat.ends(), self.normalized)
        return self.pattern.apply(scan, flat, begins), given, n_documents


def _find_special(flat: FlatText, ends: np.ndarray, special: _SpecialTable) -> tuple[FlatText, int]:
    """Write END in the place of special tokens; returns the number of stretches of text, too."""
    text, meanings, n_stretches = _cut_at_special(flat.text, ends, flat.meanings, special)
    scanned = text
    if flat.text is not flat.scanned:
        scanned, _, _ = _cut_at_special(flat.scanned, ends, flat.meanings, special)
    return FlatText(text, scanned, meanings), n_stretches


# ─── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SUFFIXES = (".txt", ".jsonl", ".ndjson", ".parquet")  # what is taken from a folder
PACKED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")  # that may follow
BLOCK_BYTES = 1 << 22  # of text that are read and scanned in one go
MAX_BLOCK_BYTES = 1 << 28  # of text that has no place where it can be cut
WINDOW_BYTES = 1 << 16  # of a file that are first looked at to find where it may be cut
HEAD_BYTES = 1 << 12  # of a file that tell what it is
STANDARD_STREAM = Path("-")

Files = str | os.PathLike | Iterable[str | os.PathLike]  # files, folders, globs, or - for standard input

# How files begin that are no text: those that are unpacked, Parquet, and those that are refused.
_SIGNS = {
    "gzip": rb"\x1f\x8b",
    "xz": rb"\xfd7zXZ\x00",
    "bzip2": rb"BZh[1-9](?:1AY&SY|\x17rE8P)",
    "zstandard": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    "Parquet": rb"PAR1",
    "a zip archive": rb"PK(?:\x03\x04|\x05\x06)",
    "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
    "a tar archive": rb"(?s:.{257})ustar",
    "a PDF": rb"%PDF-",
    "an Arrow file": rb"ARROW1",
    "a NumPy array": rb"\x93NUMPY",
    "an SQLite database": rb"SQLite format 3\x00",
    "a program": rb"\x7fELF",
    "an image": rb"\x89PNG|\xff\xd8\xff|GIF8[79]a",
}


def standard_library() -> list[Path]:
    """List the sources of Python's standard library in a fixed order, without what is installed beside it.

    Left out are, too, the tests of source files in other encodings than UTF-8: the first run would warn of them.
    """
    root = Path(sysconfig.get_path("stdlib"))
    apart = {"site-packages", "dist-packages", "__pycache__", "encoded_modules", "tokenizedata"}
    files = sorted(path for path in root.rglob("*.py") if apart.isdisjoint(path.relative_to(root).parts))
    require(files, f"this Python has no sources in {root}: name a file to train on")
    return files


def find_files(inputs: Files) -> list[Path]:
    """Expand files, folders, globs and "-" (standard input) to files; raises ValueError for what is not there.

    From folders, at any depth, the files are taken, sorted, whose names end in one of SUFFIXES, and perhaps in one of
    PACKED_SUFFIXES; but neither what is hidden, nor vocab.txt and merges.txt, which are a model's.
    """
    files = []
    for given in [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs:
        path, given = as_path(given), os.fspath(given)
        if os.path.isdir(given):
            found = sorted(file for file in path.rglob("*") if _is_corpus(file.relative_to(path)) and file.is_file())
            require(found, f"{given}: no text in this folder: no name ends in {', '.join(SUFFIXES)}")
        elif given == "-" or os.path.exists(given):  # False for a text that no path could be
            found = [path]
        else:
            found = sorted(Path(name) for name in glob.glob(given, recursive=True) if os.path.isfile(name))
            hint = "" if path.suffix and " " not in given else "; if it is a text, in Python: texts=[…]"
            require(found, f"{given[:80]}: no such file or folder, and no file matches it{hint}")
        files += found
    return files


def as_path(name: str | os.PathLike) -> Path:
    """Make a Path; raises InputError for what is none, and for an empty name, which would be the current folder."""
    require(isinstance(name, (str, os.PathLike)), f"a file is named by a string or a path, not {name!r}")
    require(os.fspath(name), "the name of a file or folder is empty: is a variable not set?")
    return Path(name)


def _is_corpus(path: Path) -> bool:
    """Whether a file of a folder is text by its name, and no part of a model."""
    kept = path.name not in ("vocab.txt", "merges.txt") and not any(part.startswith(".") for part in path.parts)
    return kept and _plain_name(path).endswith(SUFFIXES)


def _plain_name(path: Path) -> str:
    """Return the name of a file, in lower case, as it is when unpacked."""
    return (path.stem if path.suffix.lower() in PACKED_SUFFIXES else path.name).lower()


def _is_stream(path: Path | Texts) -> bool:
    """Whether a file can be read once only, or not by another process, for which /dev/stdin is another file."""
    return isinstance(path, Texts) or not path.is_file() or path.absolute().parent in (Path("/dev"), Path("/dev/fd"))


def _recognize(head: bytes) -> str | None:
    """Tell what a file is that begins so, if it is no text."""
    return next((name for name, sign in _SIGNS.items() if re.match(sign, head)), None)


def _open_zstandard(file: IO[bytes]) -> IO[bytes]:
    for name in ("compression.zstd", "backports.zstd"):  # of Python 3.14, and of a package for those before
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).ZstdFile(file)
    raise InputError("to unpack zstandard, Python 3.14 is needed, or a package: pip install backports.zstd")


_UNPACKERS = {"gzip": gzip.open, "xz": lzma.open, "bzip2": bz2.open, "zstandard": _open_zstandard}


@contextlib.contextmanager
def expecting_whole(kind: str, where: object) -> Iterator[None]:
    """Name the file in the error, whichever it is, that a file causes which is damaged, or none of this kind."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except Exception as error:
        if getattr(error, "errno", None):  # the system's errors name the file, and the file is not at fault
            raise
        raise InputError(f"{where}: not a whole {kind} ({error})") from None


def _read_chunks(path: Path, size: int) -> Iterator[tuple[bytes, int]]:
    """Read a file, unpacked, in chunks of up to so many bytes; yields each with the position on the disk."""
    with contextlib.nullcontext(sys.stdin.buffer) if path == STANDARD_STREAM else open(path, "rb") as raw:
        kind, position = _recognize(raw.peek(HEAD_BYTES)), 0
        with expecting_whole(f"{kind} file", path):
            file = _UNPACKERS[kind](raw) if kind in _UNPACKERS else raw
            while chunk := file.read(size):
                position = raw.tell() if file is not raw and raw.seekable() else position + len(chunk)
                yield chunk, position


def _read_part(path: Path, start: int, n_bytes: int) -> bytes:
    """Read some bytes of a file, which is not kept open."""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(n_bytes)


def _record_text(record: object, text_field: str) -> bytes:
    """Take the text of a record: one string in it."""
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise InputError(f"no text in the field {text_field!r} (`text_field` names another)")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(_lone_surrogate_message(error)) from None


def _lone_surrogate_message(error: UnicodeEncodeError) -> str:
    code_point = ord(error.object[error.start])
    return f"U+{code_point:04X} at index {error.start} of the text is half a surrogate pair, not text"


class Block(NamedTuple):
    """Bytes that can be scanned on their own: a part of a file, or what was read from a stream.

    `behind` tells what comes next: another text (BEGINS), another document of this one, behind a special token
    (INSIDE), or more of this document (CONTINUES), and no special token.
    """

    path: Path
    start: int  # bytes on the disk
    stop: int
    behind: int = BEGINS  # the id of the first span there
    data: bytes | list[bytes] | None = None  # None: read them from the file
    before: int = 0  # lines, in a stream; row groups, in a Parquet file
    begins: int = BEGINS  # the id of its first span
    read_texts: Callable[[Block, str], list[bytes]] | None = None  # None: the data are one, or several

    @property
    def n_bytes(self) -> int:
        """Bytes on the disk."""
        return self.stop - self.start

    @property
    def size(self) -> int:
        """Bytes on the disk, or at hand, whichever are more."""
        return max(len(self.data or b""), self.n_bytes)

    def read(self) -> bytes:
        """Read the bytes, if they are not at hand."""
        if self.data is not None:
            return self.data
        data = _read_part(self.path, self.start, self.n_bytes)
        whole = len(data) == self.n_bytes
        require(whole, f"{self.path}: has changed while it was read")
        return data

    def count_lines_before(self) -> int:
        """Count the lines before the block; in a file only then, when a message needs it."""
        if self.data is not None:
            return self.before
        starts = range(0, self.start, BLOCK_BYTES)
        return sum(_read_part(self.path, at, min(BLOCK_BYTES, self.start - at)).count(b"\n") for at in starts)


def _read_lines(block: Block, text_field: str) -> list[bytes]:
    """Read the texts in lines of JSON."""
    texts = []
    for number, line in enumerate(block.read().split(b"\n"), 1):
        try:
            if line.strip():
                texts.append(_record_text(json.loads(line), text_field))
        except (ValueError, RecursionError) as error:
            reason = error if isinstance(error, InputError) else f"not JSON ({error})"
            raise InputError(f"{block.path}, line {block.count_lines_before() + number}: {reason}") from None
    return texts


def _read_rows(block: Block, text_field: str) -> list[bytes]:
    """Read the texts in a row group of a Parquet file."""
    parquet = import_optional("pyarrow.parquet")
    with (
        expecting_whole("Parquet file", f"{block.path}, row group {block.before}"),
        parquet.ParquetFile(block.path) as file,
    ):
        names = file.schema_arrow.names
        require(text_field in names, f"no column {text_field!r} (`text_field` names one of {', '.join(names)})")
        rows = file.read_row_group(block.before, [text_field], use_threads=False).to_pylist()
        return [_record_text(row, text_field) for row in rows]


class Texts(NamedTuple):
    """Texts in memory, which a Source reads as it reads a file: strings, or lists of them, once."""

    texts: Iterable[str | bytes | Sequence[str | bytes]]

    def __str__(self) -> str:
        return "texts in memory"

    def blocks(self, size: int) -> Iterator[Block]:
        """Gather texts in blocks of about this size."""
        batches = (found if isinstance(found, (list, tuple)) else [found] for found in self.texts)
        texts = itertools.chain.from_iterable(batches)
        for batch in _batched_by_size(map(_text_bytes, texts), len, size):
            yield Block(Path(str(self)), 0, sum(map(len, batch)), data=batch)


@dataclasses.dataclass(frozen=True)
class Source:
    """How text is read: given once, and handed down whole, to worker processes too.

    files           paths, as from `find_files`; or Texts
    pattern         cuts texts where it always ends a pretoken
    special_tokens  end documents; `flags` says how they are found, if not in the plain way
    normalizer      changes texts before they are cut: steps of a Normalizer
    text_field      where a line of JSON, or a row of a Parquet file, has its text; "text" if not given. If given, what
                    comes through a pipe is lines of JSON
    block_bytes     of text in a block; BLOCK_BYTES if not given. No result depends on it

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.jsonl")
    ...     _ = path.write_text('{"text": "one"}\\n{"text": "two"}\\n')
    ...     source = Source(find_files(folder), Pattern("gpt2"))
    ...     [source.texts(block) for block in source.blocks()]
    [[b'one', b'two']]
    """

    files: Sequence[Path | Texts]
    pattern: Pattern
    special_tokens: Sequence[str] = ()
    text_field: str | None = None
    block_bytes: int = dataclasses.field(default_factory=lambda: BLOCK_BYTES)
    flags: Mapping[str, AddedToken] = dataclasses.field(default_factory=dict)
    normalizer: Sequence[dict] = ()

    _states: dict[Path, os.stat_result] = dataclasses.field(default_factory=dict, init=False)  # before they are read
    _doubtful: list[Path] = dataclasses.field(default_factory=list, init=False)  # files that may not be text

    @property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.special_tokens)}

    @functools.cached_property
    def pretokenizer(self) -> Pretokenizer:
        """What texts go through; the ids of special tokens are their numbers."""
        return Pretokenizer(self.pattern, self._numbers, self.flags, Normalizer(self.normalizer))

    @functools.cached_property
    def _cut_arguments(self) -> tuple[np.ndarray, np.ndarray, _SpecialTable]:
        """The last arguments of `_find_cut`, for text that is not normalized yet."""
        normalizer, special = self.pretokenizer.normalizer, _special_table(self._numbers, self.flags)
        hides_tokens = normalizer and self.pretokenizer.normalized  # where they are is not known before
        arrays = Pattern("none").cut_arrays if hides_tokens else normalizer.cut_arrays(self.pattern)
        return *arrays, special

    __repr__ = brief_repr

    @property
    def settings(self) -> dict:
        """All that decides how a text becomes words, as plain JSON: what was counted by equal ones adds up."""
        steps = self.pattern.parted[0].steps
        return {
            "pattern": [step if isinstance(step, str) else [type(step).__name__, *step] for step in steps],
            "special_tokens": [*self.special_tokens],
            "normalizer": [*self.normalizer],
        }

    @property
    def total_bytes(self) -> int | None:
        """Bytes on the disk, if known: none of them comes through a pipe."""
        known = not any(map(_is_stream, self.files))
        return sum(path.stat().st_size for path in self.files) if known else None

    def is_json(self, path: Path | Texts) -> bool:
        """Whether a file has a text in each line: a .jsonl; or a pipe, which has no name, if a text field is named."""
        if isinstance(path, Texts):
            return False
        by_name = _plain_name(path).endswith((".jsonl", ".ndjson"))
        return by_name or (self.text_field is not None and _is_stream(path))

    def suits_threads(self, engine: Engine) -> bool:
        """Tell whether threads run side by side, since kernels, which release Python's lock, do nearly all of the work.

        They send nothing through pipes: two count 1.5 to 1.9 times as fast as two processes. What holds the lock is
        JSON, a pattern left to `regex`, and all the rest if threads are many. A pattern that may take the square of a
        text is for processes, which can be ended any time.
        """
        return engine.n_workers <= 8 and not self.pattern.warning and not any(map(self.is_json, self.files))

    def texts(self, block: Block) -> list[bytes]:
        """Read the texts of a block: one, or those in its lines or rows."""
        if block.read_texts:
            return block.read_texts(block, self.text_field or "text")
        data = block.read()
        return data if isinstance(data, list) else [data]

    def blocks(self) -> Iterator[Block]:
        """Read all files, in blocks that can be worked at in any order, of `block_bytes` where that can be had."""
        kinds = [*map(self._look_at, self.files)]  # a wrong file must not cost the work on those before it
        for path, kind in zip(self.files, kinds, strict=True):
            if isinstance(path, Texts):
                yield from path.blocks(self.block_bytes)
            elif kind == "Parquet":
                yield from _row_groups(path)
            elif kind:
                yield from self._stream_blocks(path)
            else:
                yield from self._file_blocks(path)

    def _look_at(self, path: Path | Texts) -> str | None:
        """Look at how a file begins, where that can be done twice: returns what it is, None for plain text."""
        if _is_stream(path):
            return "a stream"
        self._states.setdefault(path, path.stat())
        kind = _recognize(_read_part(path, 0, HEAD_BYTES))
        if kind == "Parquet":
            import_optional("pyarrow.parquet")
        else:
            self._check_head(path, next(_read_chunks(path, HEAD_BYTES), (b"", 0))[0])
        return kind

    def _check_head(self, path: Path, head: bytes) -> None:
        """Raise InputError for a file that begins as no text does, and warn of the first one that may not be text."""
        kind, doubt = _recognize(head), None
        require(kind is None, f"{path}: {kind} is no text: unpack it, or make text of it, first")
        strange = head.decode("utf-8", "replace").count("\ufffd") + head.count(0)
        if strange > len(head) / 100:
            share = min(100, 100 * strange // len(head))
            doubt = (
                f"{share} % of its beginning is not UTF-8; it is read byte by byte (iconv makes UTF-8 of other text)"
            )
        elif re.match(rb'\s*\[?\s*\{\s*"', head):
            doubt = "looks like JSON, and is read as text: name lines of JSON .jsonl, or `text_field` if they are piped"
        elif _plain_name(path).endswith((".csv", ".tsv")):
            doubt = "a table is read as text, with its separators"
        if doubt and not self._doubtful and not self.is_json(path):
            self._doubtful.append(path)
            warnings.warn(f"{path}: {doubt}", stacklevel=2)

    def check_unchanged(self) -> None:
        """Compare files that were read with what they were; raises InputError where text may be lost or taken twice.

        A file that only grows, such as a log, was read up to where it ended before: a warning says so.
        """
        for path, before in self._states.items():
            now = path.stat()
            if now.st_ino == before.st_ino and now.st_size > before.st_size:
                more = number_of(now.st_size - before.st_size, "byte")
                warnings.warn(f"{path}: has grown while it was read: {more} are left out", stacklevel=4)
                continue
            same = all(getattr(now, of) == getattr(before, of) for of in ("st_ino", "st_size", "st_mtime_ns"))
            require(same, f"{path}: has changed while it was read: start again when nothing writes to it")

    def map(self, engine: Engine, work: Callable, task_bytes: int | None = None) -> Iterator:
        """Apply work(source, blocks) to tasks, by the workers of an engine, and yield the results in the order of text.

        task_bytes  of text in a task, or somewhat more: small files are not each a piece of work

        Blocks name their files: the source that goes with every task has none.
        """
        work = functools.partial(work, dataclasses.replace(self, files=()))
        tasks = _batched_by_size(self.blocks(), lambda block: block.size, task_bytes or self.block_bytes)
        return engine.map(work, tasks, self.suits_threads(engine))

    def _file_blocks(self, path: Path) -> Iterator[Block]:
        """Cut a file in parts, which workers read on their own."""
        start, size, read = 0, self._states[path].st_size, functools.partial(_read_part, path)
        begins, is_json = BEGINS, self.is_json(path)
        while start < size:
            is_last = size - start <= self.block_bytes * 3 // 2
            cut = None if is_last else self.find_cut(read, start + self.block_bytes, is_json)
            stop, behind = cut or (size, BEGINS)
            _require_cut(path, stop - start)
            yield Block(path, start, stop, behind, begins=begins, read_texts=_read_lines if is_json else None)
            start, begins = stop, behind

    def find_cut(self, read: Callable[[int, int], bytes], start: int, is_json: bool) -> tuple[int, int] | None:
        """Find the first place from `start` on where text may be cut, and what is behind it, as in a Block.

        `read(position, size)` gives the text, in windows that grow up to a block where no cut is found.
        """
        size = WINDOW_BYTES
        # Bytes on both sides of a cut decide it: a special token, and characters.
        margin = max((len(token.encode()) for token in self.special_tokens), default=0) + 8
        while True:
            begin = max(0, start - margin)
            window = read(begin, start - begin + size + margin)
            stop = len(window) - margin
            if is_json:
                cut, behind = window.find(b"\n", start - begin) + 1, BEGINS
            else:
                text = _with_padding(window.replace(BYTES[END], BYTES[INVALID_BYTE]))
                found = _find_cut(text, start - begin, stop, *self._cut_arguments)
                cut, behind = found // 2, INSIDE if found % 2 else CONTINUES
            if cut > 0:
                return begin + cut, behind
            if len(window) < start - begin + size + margin:
                return None
            start, size = begin + stop - 8, min(2 * size, self.block_bytes)  # the pair of characters there again

    def cut(
        self, chunks: Iterable[bytes], size: int, is_json: bool = False, where: object = "the text"
    ) -> Iterator[tuple[bytes, int, int]]:
        """Cut a text that comes in chunks into parts of `size` bytes or somewhat more; see Block.

        Yields each part, the id of its first span, and what is behind it. Memory: a chunk and a part, or a whole
        document where the pattern allows no cut.
        """
        data, begins, enough = bytearray(), BEGINS, size  # waiting bytes that are worth a look
        for chunk in chunks:
            data.extend(chunk)
            if len(data) < enough:
                continue
            start = 0
            while len(data) - start >= size:
                found = self.find_cut(lambda at, n: bytes(memoryview(data)[at : at + n]), start + size, is_json)
                if not found:
                    _require_cut(where, len(data) - start)
                    break
                yield bytes(memoryview(data)[start : found[0]]), begins, found[1]
                start, begins = found
            del data[:start]
            enough = 2 * len(data) if len(data) >= size else size
        if data:
            _require_cut(where, len(data))
            part = bytes(data)
            del data  # while the part is worked at
            yield part, begins, BEGINS

    def _stream_blocks(self, path: Path) -> Iterator[Block]:
        """Read a file that can only be read from its beginning: here, and workers get the text."""
        is_json, position, taken, n_lines = self.is_json(path), 0, 0, 0

        def read() -> Iterator[bytes]:
            nonlocal position
            for chunk, end in _read_chunks(path, self.block_bytes):
                if not position and path not in self._states:
                    self._check_head(path, chunk[:HEAD_BYTES])
                position = end
                yield chunk

        for data, begins, behind in self.cut(read(), self.block_bytes, is_json, path):
            yield Block(path, taken, position, behind, data, n_lines, begins, _read_lines if is_json else None)
            taken, n_lines = position, n_lines + data.count(b"\n")


def _require_cut(where: object, n_bytes: int) -> None:
    """Raise InputError for text that would have to be read whole, and has too many bytes."""
    size = f"{MAX_BLOCK_BYTES >> 20} MB"
    hint = "break its lines, or take another pattern, or a special token that ends documents"
    require(n_bytes <= MAX_BLOCK_BYTES, f"{where}: {size} of text without a place where it can be cut: {hint}")


def _row_groups(path: Path) -> Iterator[Block]:
    """Make a block of each row group of a Parquet file, as if all had the same share of its bytes."""
    with expecting_whole("Parquet file", path):
        n = import_optional("pyarrow.parquet").read_metadata(path).num_row_groups
    size = path.stat().st_size
    for k in range(n):
        yield Block(path, size * k // n, size * (k + 1) // n, before=k, read_texts=_read_rows)


def _batched_by_size(items: Iterable, size_of: Callable[[object], int], limit: int) -> Iterator[list]:
    """Gather items in lists whose sizes add up to a limit, or somewhat more."""
    batch, size = [], 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ─── Words ────────────────────────────────────────────────────────────────────────────────────────────────────────────

BYTES = tuple(bytes([b]) for b in range(256))
Merge = tuple[bytes, bytes]  # the two tokens that became one
TASK_BYTES = 1 << 24  # that a worker counts at most before it hands over its words, which the parent adds up alone
MAX_WORDS = 40_000_000  # unique words; to count them and learn from them takes 8 GB


class Words(NamedTuple):
    """Words as a CSR array: word w is symbols[offsets[w] : offsets[w + 1]] and was seen counts[w] times.

    >>> words = Words.from_counts({b"ab": 3, b"c": 2**40})
    >>> words.symbols, words.offsets
    (array([97, 98, 99], dtype=int32), array([0, 2, 3]))
    >>> words.to_counts()
    {b'ab': 3, b'c': 1099511627776}
    """

    symbols: np.ndarray  # int32[N]
    offsets: np.ndarray  # int64[W + 1]
    counts: np.ndarray  # int64[W]
    alphabet: Sequence[bytes] = BYTES  # the bytes of each symbol

    __repr__ = brief_repr

    @classmethod
    def from_counts(cls, counts: Mapping[bytes, int]) -> Words:
        """Make Words of pretokens and their counts, which must be whole numbers, 0 or more."""
        for word, n in counts.items():
            if not isinstance(word, bytes):
                raise InputError(f"words are bytes, not {type(word).__name__}: {word!r}")
            if not isinstance(n, (int, np.integer)) or n < 0:
                raise InputError(f"the count of {word!r} is {n!r}: it must be a whole number, 0 or more")
        n_bytes = sum(len(word) * int(n) for word, n in counts.items())
        require(n_bytes < 2**63, "the counts add up to 2**63 bytes or more, which 64 bits cannot hold")
        kept = {word: n for word, n in counts.items() if word and n}
        offsets = np.append(0, np.cumsum([len(word) for word in kept], dtype=np.int64))
        symbols = np.frombuffer(b"".join(kept), np.uint8).astype(np.int32)
        return cls(symbols, offsets, np.fromiter(kept.values(), np.int64, len(kept)))

    def to_counts(self) -> dict[bytes, int]:
        """Make a dict of the words, as bytes, and their counts."""
        words = (
            b"".join(self.alphabet[symbol] for symbol in self.symbols[start:stop].tolist())
            for start, stop in itertools.pairwise(self.offsets.tolist())
        )
        return dict(zip(words, self.counts.tolist(), strict=True))

    @property
    def digest(self) -> str:
        """Hash the words and their counts, in any order: a SHA-256, in hexadecimal, of 64 bits for each, sorted."""
        hashes = np.sort(_hash_words(self.symbols, self.offsets, self.counts.astype(np.uint64)))
        return hashlib.sha256(hashes.astype("<u8").data).hexdigest()

    def as_characters(self, coverage: float = 1.0, required: str = "") -> Words:
        """Decode words over the single bytes as words over characters, in the order of code points.

        coverage  the most frequent characters are kept, the smaller code point first, until they make up this share of
                  all occurrences
        required  characters that are kept in any case, and are in the alphabet even if they never occur

        A word is split at characters that are not kept, and at bytes that are not UTF-8; each part has its count. The
        rule of coverage is SentencePiece's; the order is that of Hugging Face's trainers, whose ties it decides.

        >>> words = Words.from_counts({"naïve".encode(): 1, b"vane": 2}).as_characters(0.9)
        >>> words.alphabet, words.to_counts()
        ([b'a', b'e', b'n', b'v'], {b'na': 1, b've': 1, b'vane': 2})
        """
        require(self.alphabet == BYTES, "these are no words over the 256 bytes: they have characters already")
        require(0 <= coverage <= 1, f"a coverage is a number from 0 to 1, not {coverage!r}")
        require(not regex.search(r"\p{Cs}", required), "a required character is not UTF-8")
        code_points, offsets = _decode_words(self)
        totals = np.bincount(code_points, np.repeat(self.counts, np.diff(offsets)), N_CODE_POINTS)
        totals[0xD800:0xE000] = 0  # bytes that are not UTF-8
        seen = np.flatnonzero(totals)
        frequent = seen[np.argsort(-totals[seen], kind="stable")]
        before = np.cumsum(totals[frequent]) - totals[frequent]
        frequent = frequent[(before < coverage * totals.sum()) | (coverage == 1)]
        kept = np.union1d(frequent, np.array([*map(ord, required)], np.int64))
        symbol_of = np.full(N_CODE_POINTS, -1, np.int32)
        symbol_of[kept] = np.arange(len(kept))
        alphabet = [chr(code_point).encode() for code_point in kept.tolist()]
        return _split_at_unknown(symbol_of[code_points], offsets, self.counts, alphabet)


def _decode_words(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """Decode words over the single bytes: returns code points, and the offsets of words in these.

    Bytes that are not UTF-8 become lone surrogates. A newline after each word keeps its bytes from those of the next.
    """
    text = np.insert(words.symbols.astype(np.uint8), words.offsets[1:], ord("\n"))
    decoded = text.tobytes().decode("utf-8", "surrogateescape").encode("utf-32-le", "surrogatepass")
    code_points = np.frombuffer(decoded, "<u4")
    n_bytes = 1 + (code_points >= 0x80) + (code_points >= 0x800) + (code_points >= 0x10000)
    n_bytes[code_points >> 11 == 0x1B] = 1
    is_end = np.zeros(len(text), bool)
    is_end[words.offsets[1:] + np.arange(len(words.counts))] = True
    is_end = is_end[np.cumsum(n_bytes) - 1]
    return code_points[~is_end], np.append(0, np.flatnonzero(is_end) - np.arange(len(words.counts)))


def _split_at_unknown(symbols: np.ndarray, offsets: np.ndarray, counts: np.ndarray, alphabet: Sequence[bytes]) -> Words:
    """Make Words of some whose unknown symbols are -1: the parts between those, each with the count of its word."""
    is_known, begins_word = symbols >= 0, np.zeros(len(symbols) + 1, bool)
    begins_word[offsets[:-1]] = True
    starts = np.flatnonzero(is_known & (begins_word[:-1] | ~np.append(False, is_known[:-1])))
    part_offsets = np.append(np.cumsum(is_known)[starts] - 1, np.count_nonzero(is_known))
    words = np.searchsorted(offsets, starts, "right") - 1
    return Words(symbols[is_known], part_offsets, counts[words], alphabet)


class CorpusCounts(NamedTuple):
    """What was read, and how often each pretoken was in it."""

    words: Words
    n_documents: int
    n_bytes: int  # of text as it was read, without special tokens
    special_tokens: Mapping[str, int] = MappingProxyType({})  # how often each was seen
    n_dropped: int = 0  # occurrences of words that were dropped as the rarest, see `count`
    n_dropped_bytes: int = 0  # in these
    max_error: int = 0  # by which the count of a word is too small, at most

    __repr__ = brief_repr

    @property
    def n_read(self) -> int:
        """Count the bytes that were read, special tokens included."""
        return self.n_bytes + sum(len(token.encode()) * n for token, n in self.special_tokens.items())

    @property
    def n_pretokens(self) -> int:
        return int(self.words.counts.sum())

    @property
    def described(self) -> dict:
        """All of it as plain JSON, of the words their hash."""
        return self._asdict() | {
            "words": self.words.digest,
            "special_tokens": dict(sorted(self.special_tokens.items())),
        }


# The table of words: open addressing with linear probing, half full at most. With 8 slots, after "the" (home slot 2)
# was counted 5 times, " cat" (home 2, taken, so slot 3) twice, and "internationalization" (home 6) once:
#
#     slot    key: 8 bytes        7 bytes and size            value   more
#     0, 1    -                   0: free
#     2       "the"               "", 3                       5       0
#     3       " cat"              "", 4                       2       0
#     6       its hash            LONG | 20                   1       0: where its bytes are in long_words
#
# So a word of up to INLINE_BYTES is compared by two words of 64 bits, in the entry itself, and only longer ones, which
# are rare, by a look at their bytes. The value is a count; or the id of a token; or the ids of a pretoken.
INLINE_BYTES = 15
LONG = u64(0xFF) << u64(56)
END_KEY = u64(1) << u64(56)  # the second half of the key of a word of one byte, as END is
REAL_END_KEY = LONG | u64(1)  # that of a real byte 0xFE, which is no END
IN_LONG_WORDS = u64(2**48 - 1)  # the bits of `more` that say where a long word is; the encoder uses those above
VALUE, MORE = 2, 3  # columns of the entries


@struct
class _WordTable:
    """A hash table of byte strings: see above."""

    entries: np.ndarray  # uint64[H, 4]
    long_words: np.ndarray  # uint8[…]   end to end, and PADDING
    n_words: int
    n_long_bytes: int


@kernel
def _new_entries(n):
    entries = _on_huge_pages(np.empty((n, 4), np.uint64))
    for k in range(n):
        entries[k, 0] = entries[k, 1] = entries[k, VALUE] = entries[k, MORE] = 0
    return entries


def _new_word_table(n_entries: int, n_long_bytes: int) -> _WordTable:
    return _WordTable(np.zeros((n_entries, 4), np.uint64), np.empty(n_long_bytes + PADDING, np.uint8), 0, 0)


@kernel
def _mix(low, high):
    """Hash two words of 64 bits; good in its upper bits."""
    x = (low ^ (high * u64(0x9E3779B97F4A7C15))) * u64(0xD6E8FEB86659FD93)
    return (x ^ (x >> u64(32))) * u64(0xD6E8FEB86659FD93)


@kernel
def _hash_key(low, high):
    """Hash two words of 64 bits so that no text can be made whose words collide: 80,000 that did took 4.5 s, not 13 ms.

    Each process has a hash of its own: what depends on it is the order of words in a table, and no result. All bits of
    both words decide about its upper bits, but not about its lower ones.
    """
    seed = process_seed() * u64(0x9E3779B97F4A7C15) | u64(1)
    return (low ^ (high * seed)) * seed


@kernel
def _home_slot(low, high, n_entries):
    """Return the slot, of so many, a power of two, in which the search for a key begins."""
    return _hash_key(low, high) >> (u64(64) - count_bits(u64(n_entries - 1)))


@kernel
def _hash_long(text, start, size):
    """Hash the bytes of a long word."""
    hashed = u64(size)
    for k in range(0, size - 7, 8):
        hashed = _hash_key(hashed, load_u64(text, start + k))
        hashed ^= hashed >> u64(32)
    return _hash_key(hashed, load_u64(text, start + size - 8))


# The bytes of the two halves of a key that a word of so many bytes has.
_KEY_MASKS = np.array([[2 ** (8 * min(n, 8)) - 1, 2 ** (8 * max(n - 8, 0)) - 1] for n in range(16)], np.uint64)


@inline_kernel
def _word_key(text, start, size):
    """Make the key of a word of `size` bytes, a uint64."""
    if size > u64(INLINE_BYTES):
        return _hash_long(text, start, i64(size)), LONG | size
    low, high = load_u64(text, start) & _KEY_MASKS[size, 0], load_u64(text, start + 8) & _KEY_MASKS[size, 1]
    return low, high | size << u64(56)


KEYS = 128  # made in one go: with 256 all takes 1 % longer, and with 16,384, out of the L1 cache, the look-up 35 %


@kernel
def _word_keys(text, start, ends, n, entries, keys):
    """Write the key and the home slot of each of up to KEYS words that lie end to end, and ask for those entries.

    The look-up of 40 MB of English takes 8 ns a word then; 10.8 if each entry is asked for 12 words before.
    """
    k = u64(0)
    while k < u64(n):  # without a sign an index costs no look at whether it counts from the end
        end = ends[k]
        low, high = _word_key(text, start, u64(end - start))
        slot = _home_slot(low, high, len(entries))
        prefetch(entries, u64(4) * slot)
        at = u64(4) * k
        keys[at], keys[at + u64(1)], keys[at + u64(2)] = low, high, slot
        start = end
        k += u64(1)


@inline_kernel
def _find_slot(entries, long_words, low, high, slot, text, start):
    """Look up a key, from its home slot on: returns the slot that has it, or the free one where it belongs."""
    mask = u64(len(entries) - 1)
    while entries[slot, 1] and (
        entries[slot, 0] != low
        or entries[slot, 1] != high
        or (
            high >= LONG
            and not _equal(text, start, long_words, i64(entries[slot, MORE] & IN_LONG_WORDS), i64(high & ~LONG))
        )
    ):
        slot = (slot + u64(1)) & mask
    return slot


@kernel
def _find_value(text, start, size, entries, long_words):
    """Look up the value of the bytes text[start : start + size]; -1 if they are not in the table."""
    low, high = _word_key(text, start, u64(size))
    slot = _find_slot(entries, long_words, low, high, _home_slot(low, high, len(entries)), text, start)
    return i64(entries[slot, VALUE]) if entries[slot, 1] else i64(-1)


@inline_kernel
def _store_key(table, entries, long_words, slot, low, high, text, start):
    """Put a key into a free slot, and the bytes of a long word behind the others; there must be room.

    The arrays are those of the table, which the caller has at hand: to read a field counts a reference.
    """
    entries[slot, 0], entries[slot, 1] = low, high
    table.n_words += 1
    if high >= LONG:
        size, first = i64(high & ~LONG), table.n_long_bytes
        for k in range(size):
            long_words[first + k] = text[start + k]
        entries[slot, MORE] = u64(first)
        table.n_long_bytes = first + size


@kernel
def _resize(table, n_entries):
    """Move all words into a table of so many entries."""
    entries, larger = table.entries, _new_entries(n_entries)
    mask = u64(n_entries - 1)
    for k in range(len(entries)):
        if entries[k, 1]:
            slot = _home_slot(entries[k, 0], entries[k, 1], n_entries)
            while larger[slot, 1]:
                slot = (slot + u64(1)) & mask
            for column in range(4):
                larger[slot, column] = entries[k, column]
    table.entries = larger


@kernel
def _reserve_words(table, n, n_long_bytes):
    """Make room for n more words, of which the long ones have so many bytes."""
    size = len(table.entries)
    while 2 * (table.n_words + n) > size:
        size *= 2
    if size > len(table.entries):
        _resize(table, size)
    need = table.n_long_bytes + n_long_bytes + PADDING
    if need > len(table.long_words):
        table.long_words = _reserve(table.long_words, 2 * need)


@kernel
def _count_unique(table):
    """Return the number of words in a table: Python cannot read the fields of a struct."""
    return table.n_words


@kernel
def _add_words(table, text, scanned, start, ends, n, weights, keys):
    """Add the weights of n words that lie end to end in a text, or 1 for each if there is but one weight.

    END, which is never in the table, is passed over. A real byte 0xFE that is a word has its key: it has that of a long
    word instead.
    """
    one = len(weights) == 1
    for first in range(0, n, KEYS):
        last = min(first + KEYS, n)
        _reserve_words(table, last - first, ends[last - 1] - start)
        entries, long_words = table.entries, table.long_words
        _word_keys(text, start, ends[first:], last - first, entries, keys)
        for k in range(first, last):
            low, high, slot = keys[4 * (k - first)], keys[4 * (k - first) + 1], keys[4 * (k - first) + 2]
            slot = _find_slot(entries, long_words, low, high, slot, text, start)
            is_end = False
            if not entries[slot, 1]:
                is_end = scanned[start] == END
                if low == u64(END) and high == END_KEY and not is_end:
                    high = REAL_END_KEY
                    slot = _home_slot(low, high, len(entries))
                    slot = _find_slot(entries, long_words, low, high, slot, text, start)
                if not entries[slot, 1] and not is_end:
                    _store_key(table, entries, long_words, slot, low, high, text, start)
            if not is_end:
                entries[slot, VALUE] += u64(weights[0 if one else k])
            start = ends[k]


@kernel
def _count_text(table, text, scanned, scan_table, lanes, marks, keys):
    """Scan and count a flat text."""
    once, stop = np.ones(1, np.int64), _begin_scan(text, lanes)
    while lanes[0, POSITION] < stop:
        scanned = _scan_batch(scanned, stop, scan_table, lanes, marks)
        _add_words(table, text, scanned, lanes[0, FIRST], lanes[0, ENDS:], lanes[0, N_ENDS], once, keys)


@kernel
def _export_words(table, class_of, dropped):
    """Write out the words of a table, in its order, without those that are dropped: returns bytes, offsets, counts.

    class_of, dropped  as in a ScanTable
    """
    entries, long_words, n = table.entries, table.long_words, table.n_words
    text = np.empty(table.n_long_bytes + INLINE_BYTES * n + PADDING, np.uint8)
    offsets, counts = np.zeros(n + 1, np.int64), np.empty(n, np.int64)
    w = end = i64(0)
    for k in range(len(entries)):
        high = entries[k, 1]
        if not high:
            continue
        size = i64(high & ~LONG if high >= LONG else high >> u64(56))
        if high >= LONG:
            first = i64(entries[k, MORE])
            for i in range(size):
                text[end + i] = long_words[first + i]
        else:
            store_u64(text, end, entries[k, 0])
            store_u64(text, end + 8, high)
        if _is_dropped(text, end, end + size, class_of, dropped):
            continue
        counts[w] = entries[k, VALUE]
        w, end = w + 1, end + size
        offsets[w] = end
    return text[:end], offsets[: w + 1], counts[:w]


class WordCounter:
    """Count words; what several have counted adds up. Texts must all be cut by one pattern if that drops pretokens.

    >>> counter = WordCounter()
    >>> counter.add_text(b"to be or not to be", Pattern("gpt2"))
    >>> counter.add_words(Words.from_counts({b"to": 2, b" be": 1}))
    >>> counter.words().to_counts()[b"to"], counter.words().to_counts()[b" be"]
    (3, 3)
    """

    def __init__(self):
        self._table, self._scan = _new_word_table(1 << 16, 1 << 16), _new_scan()
        self._keys = np.empty(4 * KEYS, np.uint64)  # of _word_keys
        self._dropped = np.zeros(0, np.uint16), np.zeros(0, bool)  # see _export_words
        self.special_ids: Counter[int] = Counter()  # how often each was seen

    def add_text(self, data: bytes, pattern: Pattern) -> None:
        """Count the pretokens of a text."""
        self.add_texts([data], Pretokenizer(pattern))

    def add_texts(self, texts: Sequence[bytes], pretokenizer: Pretokenizer, begins: int = BEGINS) -> tuple[int, int]:
        """Count the pretokens of texts; returns the number of documents, which special tokens part, and their bytes.

        begins  how the first text begins, see Pretokenizer.apply
        """
        stops = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        data = texts[0] if len(texts) == 1 else b"".join(texts)
        flat, given, n_documents = pretokenizer.apply(self._scan, data, stops, begins)
        table = pretokenizer.pattern.table
        _count_text(self._table, flat.text, flat.scanned, table, *self._scan, self._keys)
        if len(table.dropped):
            self._dropped = table.class_of, table.dropped
        self.special_ids.update(given.meanings[given.meanings >= 0].tolist())
        return n_documents, len(given.text) - PADDING - len(given.meanings)

    def add_words(self, words: Words) -> None:
        """Add words over the single bytes that were counted elsewhere."""
        require(words.alphabet == BYTES, "words over another alphabet than the 256 bytes cannot be added up")
        text = _with_padding(words.symbols.astype(np.uint8, copy=False))
        scanned = np.minimum(text, END - 1)  # in which there is no END
        # Words come in the order of a table: one that grows while it takes them would have them all at its beginning,
        # where each is looked for among all others. 500,000 that differ took 6.7 s, and take 0.13.
        _reserve_words(self._table, len(words.counts), 0)
        _add_words(self._table, text, scanned, 0, words.offsets[1:], len(words.counts), words.counts, self._keys)

    def words(self, dtype: type = np.int32) -> Words:
        """Return the words so far, in no particular order; as uint8, to be added up, they are copied once less."""
        text, offsets, counts = _export_words(self._table, *self._dropped)
        return Words(text.astype(dtype, copy=False), offsets, counts)

    def drop_rarest(self, max_words: int) -> tuple[int, int, int]:
        """Drop the rarest words if there are more than so many, until half of that are left, or fewer.

        All words of a count are dropped, or none. Returns the occurrences that were dropped, their bytes, and the
        count of the most frequent word that was dropped: zeros if nothing was.

        >>> counter = WordCounter()
        >>> counter.add_words(Words.from_counts({b"a": 7, b"b": 5, b"cd": 1, b"e": 1}))
        >>> counter.drop_rarest(3), counter.words().to_counts()
        ((7, 8, 5), {b'a': 7})
        """
        if _count_unique(self._table) <= max_words:
            return 0, 0, 0
        words = self.words(np.uint8)
        n_left = max(max_words // 2, 1)
        least = np.partition(words.counts, -n_left - 1)[-n_left - 1]
        is_rare = words.counts <= least
        rare_counts, sizes = words.counts[is_rare], np.diff(words.offsets)[is_rare]
        self._table = _new_word_table(1 << 16, 1 << 16)
        self.add_words(_select_words(words, np.flatnonzero(~is_rare)))
        return int(rare_counts.sum()), int(np.dot(rare_counts, sizes)), int(least)


def _count_task(source: Source, blocks: list[Block]) -> tuple[CorpusCounts, int]:
    """Count the pretokens of some blocks; returns the counts, and the bytes on the disk."""
    counter, n_documents, n_bytes = WordCounter(), 0, 0
    for block in blocks:
        found = counter.add_texts(source.texts(block), source.pretokenizer, block.begins)
        n_documents += found[0] - (block.behind == CONTINUES)
        n_bytes += found[1]
    seen = {source.special_tokens[number]: n for number, n in counter.special_ids.items()}
    return CorpusCounts(counter.words(np.uint8), n_documents, n_bytes, seen), sum(block.n_bytes for block in blocks)


@checked
def count(
    source: Source, engine: Engine | None = None, before: Iterable[CorpusCounts] = (), max_words: int = 0
) -> CorpusCounts:
    """Count the pretokens of files, by several workers. The result is the same for any number of them.

    before     what was counted before, by equal `Source.settings`, and is added up with it
    max_words  when there are more unique words, the rarest are dropped; 0: they never are

    Whether there are too many is looked at after each task, and tasks depend on the files alone (Manku and Motwani
    2002, "Approximate Frequency Counts over Data Streams").

    >>> with tempfile.NamedTemporaryFile(suffix=".txt") as file:
    ...     _ = file.write(b"one two two"), file.flush()
    ...     counted = count(Source(find_files(file.name), Pattern("gpt2")))
    >>> counted.words.to_counts()[b" two"], counted.n_documents
    (2, 1)
    """
    engine = engine or Engine()
    pattern, last = source.pattern.parted
    if last:
        counted = count(dataclasses.replace(source, pattern=pattern), engine, before, max_words)
        return counted._replace(words=_replace_in_words(counted.words, last))
    counter, n_documents, n_bytes, seen = WordCounter(), 0, 0, Counter()
    dropped = np.zeros(3, np.int64)
    # Few large tasks, since the parent adds up alone; but some for each worker, so that all end together.
    task_bytes = max(min((source.total_bytes or 0) // 16, TASK_BYTES), source.block_bytes)
    with (
        engine.progress_bar("scan", source.total_bytes, "B") as bar,
        contextlib.closing(source.map(engine, _count_task, task_bytes)) as parts,
    ):
        for part, n_read in itertools.chain(((part, 0) for part in before), parts):
            counter.add_words(part.words)
            dropped += part.n_dropped, part.n_dropped_bytes, part.max_error
            if max_words:
                dropped += counter.drop_rarest(max_words)
            n_documents += part.n_documents
            n_bytes += part.n_bytes
            seen.update(part.special_tokens)
            bar.update(n_read)
    source.check_unchanged()
    return CorpusCounts(counter.words(), int(n_documents), n_bytes, seen, *dropped.tolist())


def _replace_in_words(words: Words, step: Metaspace) -> Words:
    """Replace spaces in words that were counted before; those that become equal add up."""
    flat = FlatText.of(words.symbols.astype(np.uint8).tobytes(), words.offsets[1:], np.full_like(words.counts, INSIDE))
    flat = step.apply(_new_scan(), flat, INSIDE)
    ends, counter = flat.ends(), WordCounter()
    offsets = np.append(0, ends - np.arange(len(ends)))
    counter.add_words(Words(np.delete(flat.text[:-PADDING], ends).astype(np.int32), offsets, words.counts))
    return counter.words()


def compile_counting(pattern: Pattern) -> None:
    """Compile the kernels of scanning and counting, or load them from the disk; processes forked later have them."""
    counter, source = WordCounter(), Source([], pattern, ["<>"])
    counter.add_texts([b"one<>two"], source.pretokenizer)
    counter.add_words(counter.words())
    source.find_cut(lambda position, size: b"one<>two", 1, False)


# Words files: what `count_files` writes, and `train` learns from


@kernel
def _hash_words(symbols, offsets, hashes):
    """Hash each word, in place, on top of the number that is there; returns the hashes."""
    for w in range(len(hashes)):
        for k in range(offsets[w], offsets[w + 1]):
            hashes[w] = _mix(hashes[w], u64(symbols[k]))
    return hashes


def _select_words(words: Words, numbers: np.ndarray) -> Words:
    """Take the words with these numbers, in this order."""
    sizes = np.diff(words.offsets)[numbers]
    offsets = np.append(0, np.cumsum(sizes))
    places = np.arange(offsets[-1]) + np.repeat(words.offsets[numbers] - offsets[:-1], sizes)
    return Words(words.symbols[places], offsets, words.counts[numbers], words.alphabet)


def _in_order(words: Words) -> Words:
    """Sort words by their hashes: the order in a table differs from process to process."""
    hashes = _hash_words(words.symbols, words.offsets, np.zeros(len(words.counts), np.uint64))
    return _select_words(words, np.argsort(hashes, kind="stable"))


def save_counts(path: Path, counted: CorpusCounts, settings: Mapping) -> None:
    """Write a words file, of what was counted by a Source of these settings; equal ones have equal bytes.

    >>> source = Source([Texts(["to be", "or not to be"])], Pattern("gpt2"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_counts(Path(folder, "words.npz"), count(source), source.settings)
    ...     load_counts(Path(folder, "words.npz"))[0].words.to_counts()[b" be"]
    2
    """
    words, header = _in_order(counted.words), {"counted": counted.described, "settings": settings}
    arrays = {"symbols": words.symbols.astype(np.uint8), "offsets": words.offsets, "counts": words.counts}
    with atomic_write(path) as file:
        np.savez(file, header=np.array(json.dumps(header).encode()), **arrays)


def load_counts(path: Path) -> tuple[CorpusCounts, dict]:
    """Read what `save_counts` wrote: the counts, and the settings; raises InputError if a file is none, or damaged."""
    with expecting_whole("file of words, as `count` writes it", path):
        zipfile.ZipFile(path).close()  # of what is none np.load says: load it unsafely
        with np.load(path, allow_pickle=False) as saved:
            header = json.loads(saved["header"].item())
            symbols, offsets, counts = saved["symbols"], saved["offsets"].astype(np.int64), saved["counts"]
        words, described = Words(symbols.astype(np.int32), offsets, counts.astype(np.int64)), header["counted"]
        fits = len(offsets) == len(counts) + 1 and offsets[0] == 0 and offsets[-1] == len(symbols)
        if not (fits and (np.diff(offsets) > 0).all() and (counts > 0).all() and words.digest == described["words"]):
            raise ValueError("its words are not those that were written")
        return CorpusCounts(**described | {"words": words}), header["settings"]


def _steps_of(settings: Mapping) -> tuple[PatternStep, ...]:
    """Make the pattern in the settings of a Source."""
    types = {"Split": Split, "Metaspace": Metaspace}
    return tuple(step if isinstance(step, str) else types[step[0]](*step[1:]) for step in settings["pattern"])


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Words -> Learned: merge the most frequent pair of neighbouring symbols, again and again. A *cell* is the place of one
# symbol of the alphabet, a *position* is the index of a cell, an *occurrence* of a pair is the position where its left
# symbol begins, and a *frequency class* is all words with the same count.
#
# All words lie in one array of cells, with WORD_END before, between and after them. A symbol that covers w cells is
# written into the first and the last of them (boundary tags: Knuth, The Art of Computer Programming, 2.5). So from each
# of its ends the neighbour is one cell away, without links. "lowest", first as bytes, then after each of three merges:
#
#     position         0       1       2       3       4       5       6       7
#                  WORD_END    l       o       w       e       s       t    WORD_END
#     e  + s       WORD_END    l       o       w       es      es      t    WORD_END
#     es + t       WORD_END    l       o       w       est  INTERIOR   est  WORD_END
#     w  + est     WORD_END    l       o      west  INTERIOR INTERIOR  west  WORD_END
#
# The second merge makes est, 3 cells wide, at position 4. Its left neighbour ends in cell 4 - 1, a w; its right one
# would begin in cell 4 + 3, but there the word ends. So the new pair (w, est) occurs at position 4 - 1, as w is 1 cell
# wide. That position is in the list of (w, es), too, as a stale occurrence: cell 3 has w, but cell 3 + 1 has no es. The
# count of (w, es) falls by what that of (w, est) begins with: so nothing has to be counted again.

# The bytes in the order in which GPT-2 shows them, and Hugging Face numbers them: first those that have a visible
# character in Latin-1, then the others.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_ORDER = [*_VISIBLE, *sorted({*range(256)} - {*_VISIBLE})]

WORD_END, INTERIOR = -1, -2  # in cells: between two words; in a symbol of three cells or more, at neither end
LEFT, RIGHT = i64(0), i64(1)
MERGES_PER_ROUND = 256  # the progress bar moves, and Ctrl-C is heard, between rounds
MAX_COUNT = np.iinfo(np.int64).max
LONGEST_LEARNT = 1 << 16  # symbols of a token; in a text of one letter they would be as long as half of it
INT32_SYMBOLS = 1 << 29  # below so many in all words, int32 holds the index of any occurrence, and is faster than int64


class Learned(NamedTuple):
    """Merges in the order in which they were made. Symbols 0 to A - 1 are the alphabet; merge k makes symbol A + k.

    >>> learned = learn(Words.from_counts({b"aaab": 3, b"ab": 1}), 258)
    >>> learned.merges, learned.tokens[-2:]
    ([(b'a', b'a'), (b'a', b'b')], [b'aa', b'ab'])
    """

    pairs: np.ndarray  # int32[M, 2]      the two symbols joined
    counts: np.ndarray  # int64[M]        occurrences of the pair in the corpus when it was merged
    n_tokens: np.ndarray  # int64[M + 1]  symbols in the corpus before the first merge, and after each
    alphabet: Sequence[bytes]

    __repr__ = brief_repr

    @property
    def tokens(self) -> list[bytes]:
        """Concatenate the bytes of every symbol: the alphabet's, then what the merges made."""
        tokens = list(self.alphabet)
        for left, right in self.pairs.tolist():
            tokens.append(tokens[left] + tokens[right])
        return tokens

    @property
    def merges(self) -> list[Merge]:
        """Spell out the merges as pairs of bytes."""
        tokens = self.tokens
        return [(tokens[left], tokens[right]) for left, right in self.pairs.tolist()]


def _record(**fields: type) -> np.dtype:
    """Make the type of a table's entries: a record of these fields, which are attributes in Python, too.

    A kernel that uses several fields of an entry then loads one cache line. With an array for each field, learning took
    1.1 to 1.4 times as long, and compiling it 1.7 times.
    """
    return np.dtype((np.record, list(fields.items())))


_CLASS = _record(
    stop=np.int64,  # the position after the last word of the class
    count=np.int64,  # of each of its words
)
_SYMBOL = _record(
    left=np.int32,  # the pair that was merged; 0, 0 for the alphabet
    right=np.int32,
    count=np.int64,  # occurrences of this pair in the corpus when it was merged
    n_tokens=np.int64,  # symbols in the corpus after this merge
    width=np.int64,  # cells
    start=np.int64,  # its bytes are spelled[start :], up to the start of the next symbol
    tie_key=np.uint64,  # on a tie the smaller goes first; if they are equal, the greater bytes do
)
_PAIR = _record(
    left=np.int32,
    right=np.int32,
    count=np.int64,  # in the corpus; 0 or less when merged, or longer than LONGEST_LEARNT
    start=np.int64,  # occurrences[start : start + length], ascending: all that there are, and stale ones
    length=np.int64,
)
_QUEUED = _record(score=np.float64, count=np.int64, pair=np.int64)
_NEIGHBOUR = _record(
    n_occurrences=np.int64,  # beside one symbol, on one side; 0 when not in use
    count=np.int64,  # the same in the corpus: each times the count of its word; 0 when not in use
    write_at=np.int64,  # where to write the next occurrence of the pair with this neighbour
    offset=np.int64,  # from the position of the symbol back to that of the pair
)


@struct
class _Learner:
    """Hold all that the merge loop knows. Kernels modify it in place, and replace arrays that are too short.

    All occurrences of a pair are created by the merge that makes its newer symbol. So each list of occurrences is
    written once, and a count only falls: when a and b are merged into ab, that of (x, a) by what (x, ab) begins with,
    and that of (b, y) by what (ab, y) does. So counts are exact at the price of a look into a table for each new pair,
    and a list is read once, when its pair is merged. Where each pair that came to the top of the heap was counted again
    by its list, which reads 4 or 5 occurrences for each that is merged, not 1 or 2, learning took 1.1 to 1.3 times as
    long.

    The heap is not told when a count falls: a pair that comes to the top with less than it was pushed with moves down.
    Where pairs are scored by likelihood, a merge lowers the totals of two symbols: their pairs, whose scores have
    risen, are pushed again, and what they were pushed with before is dropped when it comes to the top.

    Proof: no merge makes the string of an older symbol. For between two ends of symbols, the symbols depend on the
    string alone: a merge across such an end would have removed it; and a run of equal symbols is merged from the left,
    so that an end inside the run, if it is still there, has an even number of them before it. Thus when a symbol is
    made, its string is that one pair of symbols wherever it lies between two ends of symbols, and is merged there.
    """

    cells: np.ndarray  # int32[C]          all words, the most frequent first, as the comment above shows
    class_of: np.ndarray  # int32[C / 64]  the frequency class of every 64th cell
    classes: np.ndarray  # _CLASS[F]
    symbols: np.ndarray  # _SYMBOL[V + 1]
    spelled: np.ndarray  # uint8[…]        the bytes of all symbols
    pairs: np.ndarray  # _PAIR[P]
    slots: np.ndarray  # int32[…]          the pairs in a hash table, by their symbols; -1 where there is none
    heap: np.ndarray  # _QUEUED[H]         the pairs whose score is at least the threshold, the best first
    occurrences: np.ndarray  # int32[3 C]  enough: a merge adds at most two for each symbol that it takes away
    neighbours: np.ndarray  # _NEIGHBOUR[2, V]
    beside: np.ndarray  # int32[2, C / 2]  the neighbours at each occurrence of one symbol, left and right
    distinct: np.ndarray  # int32[2, V]    the neighbours, each once
    totals: np.ndarray  # int64[V + 1]     the counts of symbols by which pairs are scored; empty if counts alone decide
    heads: np.ndarray  # int64[V + 1]      the pairs of each symbol, a list: its first entry, or -1; empty if not needed
    links: np.ndarray  # int64[2 P]        the next entry, or -1; 2 k is pair k by its left symbol, 2 k + 1 by its right
    by_bytes: bool  # the rule for ties
    min_frequency: int
    threshold: float  # the least score of the pairs in the heap
    heap_size: int
    n_symbols: int
    n_pairs: int
    n_occurrences: int
    n_linked: int  # the first pairs are in the lists


@kernel
def _new_learner(cells, class_of, classes, symbols, spelled, by_bytes, min_frequency, n_symbols):
    """Make a learner that has no pairs yet. Eight parameters: fields of a struct have no names."""
    pairs, heap = np.empty(len(cells) // 4 + 65536, _PAIR), np.empty(65536, _QUEUED)
    slots, occurrences = np.full(1 << 17, -1, class_of.dtype), np.empty(3 * len(cells), class_of.dtype)
    neighbours = np.zeros((2, len(symbols)), _NEIGHBOUR)
    beside, distinct = np.empty((2, len(cells) // 2), np.int32), np.empty((2, len(symbols)), np.int32)
    tables = (cells, class_of, classes, symbols, spelled, pairs, slots, heap, occurrences, neighbours, beside, distinct)
    totals, heads, links = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    threshold, heap_size, n_pairs, n_occurrences, n_linked = np.inf, 0, 0, 0, 0
    counters = (heap_size, n_symbols, n_pairs, n_occurrences, n_linked)
    return _Learner(*tables, totals, heads, links, by_bytes, min_frequency, threshold, *counters)


@kernel
def _precedes(pair, other, learner):
    """Compare two pairs of equal count, by left, then by right symbol: is `pair` merged before `other`?"""
    pairs, symbols, spelled = learner.pairs, learner.symbols, learner.spelled
    a, b = pairs[pair].left, pairs[other].left
    if a == b:
        a, b = pairs[pair].right, pairs[other].right
    if a == b or symbols[a].tie_key != symbols[b].tie_key:
        return symbols[a].tie_key < symbols[b].tie_key
    a_start, b_start = symbols[a].start, symbols[b].start
    a_size, b_size = symbols[a + 1].start - a_start, symbols[b + 1].start - b_start
    for k in range(min(a_size, b_size)):
        if spelled[a_start + k] != spelled[b_start + k]:
            return spelled[a_start + k] > spelled[b_start + k]
    return a_size > b_size if a_size != b_size else a < b  # an alphabet may spell the same bytes in two ways


@inline_kernel
def _score(pair, totals, least):
    """Compute a pair's count, or with totals count(ab) / (count(a) * count(b)), in float64; 0 for a pair that is rare.

    Where a symbol is used up, the total is 0, but the count may be stale: 1 then keeps the score an upper bound.
    """
    if pair.count < least:
        return 0.0
    if not len(totals):
        return np.float64(pair.count)
    return pair.count / (np.float64(max(totals[pair.left], 1)) * np.float64(max(totals[pair.right], 1)))


@inline_kernel
def _goes_first(score, count, pair, other, learner):
    """Compare a pair with a queued one: the greater score goes first, then the greater count, then `_precedes`."""
    if score != other.score:
        return score > other.score
    return count > other.count if count != other.count else _precedes(pair, other.pair, learner)


@kernel
def _push(pair, score, learner):
    """Push a pair onto the heap: move it up from the end while it goes before its parent."""
    child, count = learner.heap_size, learner.pairs[pair].count
    learner.heap_size += 1
    learner.heap = _reserve(learner.heap, learner.heap_size)
    heap = learner.heap
    while child > 0:
        parent = (child - 1) >> 1
        if not _goes_first(score, count, pair, heap[parent], learner):
            break
        heap[child] = heap[parent]
        child = parent
    heap[child].score, heap[child].count, heap[child].pair = score, count, pair


@kernel
def _sift_down(pair, score, count, learner):
    """Put a pair at the root of the heap, whose place is free, and move it down while a child goes before it."""
    heap, size = learner.heap, learner.heap_size
    parent, child = 0, 1
    while child < size:
        if child + 1 < size:
            other = heap[child + 1]
            child += _goes_first(other.score, other.count, other.pair, heap[child], learner)
        if _goes_first(score, count, pair, heap[child], learner):
            break
        heap[parent] = heap[child]
        parent, child = child, 2 * child + 1
    heap[parent].score, heap[parent].count, heap[parent].pair = score, count, pair


@kernel
def _pop(learner):
    """Pop the first pair off the heap: the last one takes its place."""
    learner.heap_size -= 1
    last = learner.heap[learner.heap_size]
    _sift_down(last.pair, last.score, last.count, learner)


@kernel
def _refill_heap(learner):
    """Set the threshold to half of the greatest score, and make the heap of all pairs that are at or above it.

    Most pairs are rare and never get there: it has some ten thousand of them, not millions.
    """
    pairs, totals, least, greatest = learner.pairs, learner.totals, learner.min_frequency, 0.0
    for pair in range(learner.n_pairs):
        greatest = max(greatest, _score(pairs[pair], totals, least))
    learner.threshold = threshold = greatest / 2
    learner.heap_size = 0
    for pair in range(learner.n_pairs):
        score = _score(pairs[pair], totals, least)
        if score >= threshold and score > 0:
            _push(pair, score, learner)


@inline_kernel
def _class_at_position(position, class_of, classes):
    """Look up the frequency class of the word that has this cell."""
    found = class_of[position >> 6]
    while classes[found].stop <= position:
        found += 1
    return classes[found]


@inline_kernel
def _find_pair(left, right, slots, pairs):
    """Look up a pair: returns the slot that has it, or the free one where it belongs."""
    slot = _home_slot(u64(left), u64(right), len(slots))
    while slots[slot] >= 0 and (pairs[slots[slot]].left != left or pairs[slots[slot]].right != right):
        slot = (slot + u64(1)) & u64(len(slots) - 1)
    return slot


@kernel
def _reserve_pairs(n, learner):
    """Make room for n more pairs."""
    learner.pairs = pairs = _reserve(learner.pairs, learner.n_pairs + n)
    size = len(learner.slots)
    while 2 * (learner.n_pairs + n) > size:
        size *= 2
    if size > len(learner.slots):
        slots = np.full(size, -1, learner.slots.dtype)
        for pair in range(learner.n_pairs):
            slots[_find_pair(i64(pairs[pair].left), i64(pairs[pair].right), slots, pairs)] = pair
        learner.slots = slots


@inline_kernel
def _count_neighbour(x, count, neighbours, distinct, n_distinct):
    """Count a neighbour; returns how many differ."""
    neighbour = neighbours[x]
    if neighbour.n_occurrences == 0:
        distinct[n_distinct] = x
        n_distinct += 1
    neighbour.n_occurrences += 1
    neighbour.count += count
    return n_distinct


@kernel
def _replace(pair, c, learner):
    """Write c over a pair, drop the stale occurrences, and count the neighbours: returns how many differ, on each side.

    The list then has the positions of c, and the count is that of c. It goes from left to right: in "aaa" the second
    occurrence of (a, a) is stale when its turn comes. Where c is beside c, the two are one pair, which is counted on
    the right side, as soon as the first of them is made: on the left it is a WORD_END.
    """
    cells, class_of, classes = learner.cells, learner.class_of, learner.classes
    a, b, start, stop = pair.left, pair.right, pair.start, pair.start + pair.length
    width_a, width = learner.symbols[a].width, learner.symbols[c].width
    occurrences = learner.occurrences[start:stop]
    # Views, made here: in the loop they cost a tenth of all of learning.
    at_left, at_right = learner.neighbours[LEFT], learner.neighbours[RIGHT]
    distinct_left, distinct_right = learner.distinct[LEFT], learner.distinct[RIGHT]
    beside_left, beside_right = learner.beside[LEFT], learner.beside[RIGHT]
    n = total = count = end = 0
    n_left = n_right = i64(0)
    for k in range(len(occurrences)):
        if k + 16 < len(occurrences):  # both ends, since a word often lies in two cache lines: 6 % of learning
            prefetch(cells, occurrences[k + 16] - 1)
            prefetch(cells, min(occurrences[k + 16] + width, len(cells) - 1))
        position = occurrences[k]
        middle, after = position + width_a, position + width
        if cells[position] != a or cells[middle] != b:
            continue
        cells[middle - 1] = cells[middle] = INTERIOR
        cells[position] = cells[after - 1] = c
        if position >= end:
            found = _class_at_position(position, class_of, classes)
            end, count = found.stop, found.count
        total += count
        x, y = cells[position - 1], cells[after]
        if x == c:
            x = WORD_END
        if x != WORD_END:
            n_left = _count_neighbour(x, count, at_left, distinct_left, n_left)
        if y != WORD_END:
            if y == a and cells[after + width_a] == b:
                y = c
            n_right = _count_neighbour(y, count, at_right, distinct_right, n_right)
        occurrences[n], beside_left[n], beside_right[n] = position, x, y
        n += 1
    pair.length, pair.count = n, total
    return n_left, n_right


@inline_kernel
def _beside(x, side, symbol):
    """Return x and a symbol that it is beside, in their order."""
    return (x, symbol) if side == LEFT else (symbol, x)


@kernel
def _add_new_pairs(side, c, n_distinct, positions, learner):
    """Add the pairs of symbol c, which is at these positions, with its neighbours on one side, which are counted."""
    _reserve_pairs(n_distinct, learner)
    symbols, pairs, slots, stop = learner.symbols, learner.pairs, learner.slots, learner.n_occurrences
    neighbours, beside, distinct = learner.neighbours[side], learner.beside[side], learner.distinct[side]
    totals, least, threshold = learner.totals, learner.min_frequency, learner.threshold
    occurrences, a = learner.occurrences, symbols[c].left
    part = i64(a if side == LEFT else symbols[c].right)
    for k in range(n_distinct):
        left, right = _beside(i64(distinct[k]), side, part)
        old = slots[_home_slot(u64(left), u64(right), len(slots))]
        prefetch(pairs, max(old, 0))  # 4 % of learning
    for k in range(n_distinct):
        x, pair = i64(distinct[k]), learner.n_pairs
        learner.n_pairs += 1
        new, neighbour = pairs[pair], neighbours[x]
        left, right = _beside(i64(a) if x == c else x, side, part)
        pairs[slots[_find_pair(left, right, slots, pairs)]].count -= neighbour.count
        new.left, new.right = _beside(x, side, c)
        slots[_find_pair(i64(new.left), i64(new.right), slots, pairs)] = pair
        new.count, new.start, new.length = neighbour.count, stop, neighbour.n_occurrences
        if symbols[x].width + symbols[c].width > LONGEST_LEARNT:
            new.count = 0
        neighbour.write_at, neighbour.offset = stop, symbols[x].width if side == LEFT else 0
        stop += neighbour.n_occurrences
        neighbour.n_occurrences = neighbour.count = 0
        score = _score(new, totals, least)
        if score >= threshold:
            _push(pair, score, learner)
    learner.n_occurrences = stop
    for k in range(len(positions)):
        if beside[k] != WORD_END:
            neighbour = neighbours[beside[k]]
            occurrences[neighbour.write_at] = positions[k] - neighbour.offset
            neighbour.write_at += 1


@kernel
def _add_first_pairs(learner):
    """Add the pairs of the alphabet: count each, and then write its occurrences."""
    cells, classes, occurrences = learner.cells, learner.classes, learner.occurrences
    pairs, slots, found, n, stop = learner.pairs, learner.slots, 0, 0, 0
    pair_of = np.empty(len(cells), np.int32)  # at each occurrence
    for position in range(1, len(cells) - 1):
        found += classes[found].stop <= position
        left, right = i64(cells[position]), i64(cells[position + 1])
        if left == WORD_END or right == WORD_END:
            continue
        slot = _find_pair(left, right, slots, pairs)
        if slots[slot] < 0:
            _reserve_pairs(i64(1), learner)
            pairs, slots, pair = learner.pairs, learner.slots, learner.n_pairs
            slots[_find_pair(left, right, slots, pairs)] = pair
            new = pairs[pair]
            new.left, new.right, new.count, new.length = left, right, 0, 0
            learner.n_pairs += 1
        else:
            pair = i64(slots[slot])
        pairs[pair].count += classes[found].count
        pairs[pair].length += 1
        pair_of[n] = pair
        n += 1
    for pair in range(learner.n_pairs):
        pairs[pair].start = stop
        stop += pairs[pair].length
        pairs[pair].length = 0
    n = 0
    for position in range(1, len(cells) - 1):
        if cells[position] != WORD_END and cells[position + 1] != WORD_END:
            known = pairs[pair_of[n]]
            occurrences[known.start + known.length] = position
            known.length += 1
            n += 1
    learner.n_occurrences = stop


@kernel
def _new_symbol(a, b, learner):
    """Add the symbol that joins a and b; returns its number."""
    symbols, c = learner.symbols, learner.n_symbols
    end = symbols[c].start
    size = symbols[a + 1].start - symbols[a].start + symbols[b + 1].start - symbols[b].start
    learner.spelled = _reserve(learner.spelled, end + size)
    learner.n_symbols += 1
    spelled, key = learner.spelled, u64(0)
    for symbol in (a, b):
        for k in range(symbols[symbol].start, symbols[symbol + 1].start):
            spelled[end] = spelled[k]
            end += 1
    for k in range(symbols[c].start, symbols[c].start + 8):
        key = (key << u64(8)) | u64(spelled[k] if k < end else 0)
    new = symbols[c]
    new.left, new.right = a, b
    new.width = symbols[a].width + symbols[b].width
    new.tie_key = ~key if learner.by_bytes else u64(c)
    symbols[c + 1].start = end
    return c


@kernel
def _count_symbols(learner):
    """Count the symbols of the alphabet, by which pairs then are scored."""
    cells, classes, found = learner.cells, learner.classes, 0
    totals = np.zeros(len(learner.symbols), np.int64)
    for position in range(len(cells)):
        found += classes[found].stop <= position
        if cells[position] != WORD_END:
            totals[cells[position]] += classes[found].count
    learner.totals, learner.heads = totals, np.full(len(totals), -1, np.int64)


@kernel
def _link_pairs(learner):
    """Put new pairs into the lists of their two symbols."""
    learner.links = _reserve(learner.links, 2 * learner.n_pairs)
    pairs, heads, links = learner.pairs, learner.heads, learner.links
    for k in range(2 * learner.n_linked, 2 * learner.n_pairs):
        symbol = pairs[k >> 1].right if k & 1 else pairs[k >> 1].left
        links[k], heads[symbol] = heads[symbol], k
    learner.n_linked = learner.n_pairs


@kernel
def _push_again(symbol, learner):
    """Push the pairs of a symbol whose total has fallen, since their scores have risen; drop those that are rare."""
    pairs, totals, heads, links = learner.pairs, learner.totals, learner.heads, learner.links
    least, threshold, before, k = learner.min_frequency, learner.threshold, i64(-1), heads[symbol]
    while k >= 0:
        score, after = _score(pairs[k >> 1], totals, least), links[k]
        if score > 0:
            before = k
        elif before < 0:
            heads[symbol] = after
        else:
            links[before] = after
        if score >= threshold:
            _push(k >> 1, score, learner)
        k = after


@kernel
def _lower_totals(a, b, c, count, learner):
    """Count the occurrences of a new symbol, which those of its parts no longer are."""
    _link_pairs(learner)
    totals = learner.totals
    totals[c] = count
    totals[a] -= count
    totals[b] -= count
    _push_again(a, learner)
    if a != b:
        _push_again(b, learner)


@kernel
def _apply_merge(pair, learner):
    """Merge a pair everywhere. Its record is of no use when new pairs have been added."""
    symbols = learner.symbols
    a, b = pair.left, pair.right
    c = _new_symbol(a, b, learner)
    symbols[c].count = pair.count
    n_left, n_right = _replace(pair, c, learner)
    symbols[c].n_tokens = symbols[c - 1].n_tokens - pair.count
    positions = learner.occurrences[pair.start : pair.start + pair.length]
    if len(learner.heads):
        _lower_totals(a, b, c, pair.count, learner)
    pair.count = 0
    _add_new_pairs(LEFT, c, n_left, positions, learner)
    _add_new_pairs(RIGHT, c, n_right, positions, learner)


@kernel
def _merge_until(learner, goal):
    """Merge the best pair until there are `goal` symbols or no pair is left; returns how many symbols there are."""
    while learner.n_symbols < goal:
        if learner.heap_size == 0 or learner.heap_size > learner.n_pairs:  # most of it is stale
            _refill_heap(learner)
            if learner.heap_size == 0:
                break
        best, queued, count = learner.heap[0].pair, learner.heap[0].score, learner.heap[0].count
        pair = learner.pairs[best]
        score = _score(pair, learner.totals, learner.min_frequency)
        if learner.threshold <= score <= queued and (score < queued or pair.count < count):
            _sift_down(best, score, pair.count, learner)
            continue
        _pop(learner)
        if score == queued:  # else it is rare, or in the heap again, with a greater score
            _apply_merge(pair, learner)
    return learner.n_symbols


@kernel
def _copy_words(symbols, offsets, order, cells):
    """Copy words into the cells, in this order, each after a WORD_END."""
    position = 1
    for word in order:
        for n in range(offsets[word], offsets[word + 1]):
            cells[position] = symbols[n]
            position += 1
        position += 1


def _make_cells(words: Words, index_dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort the words by count, and write them into cells; returns these, `class_of` and `classes`."""
    order = np.argsort(-words.counts, kind="stable")
    cells = np.full(1 + len(words.symbols) + len(order), WORD_END, np.int32)
    _copy_words(words.symbols, words.offsets, order, cells)
    counts = words.counts[order]
    last = np.append(np.flatnonzero(np.diff(counts)), len(counts) - 1)  # the last word of each class
    classes = np.empty(len(last), _CLASS)
    classes["stop"] = np.cumsum(np.diff(words.offsets)[order] + 1)[last] + 1
    classes["count"] = counts[last]
    class_of = np.searchsorted(classes["stop"], np.arange(0, len(cells), 64), side="right").astype(index_dtype)
    return cells, class_of, classes


def _make_symbols(words: Words, n_symbols: int, tie_break: str) -> tuple[np.ndarray, np.ndarray]:
    """Make the table of the alphabet's symbols, with room for `n_symbols`, and the bytes of the alphabet."""
    alphabet = words.alphabet
    a = len(alphabet)
    symbols = np.zeros(n_symbols + 1, _SYMBOL)
    symbols["width"][:a] = 1
    symbols["start"][1 : a + 1] = np.cumsum([len(token) for token in alphabet])
    symbols["n_tokens"][a - 1] = np.dot(np.diff(words.offsets), words.counts)  # before the first merge
    if tie_break == "bytes":
        symbols["tie_key"][:a] = ~np.array(alphabet, "S8").view(">u8")
    elif tuple(alphabet) == BYTES:
        symbols["tie_key"][BYTE_ORDER] = range(256)
    else:
        symbols["tie_key"][:a] = range(a)
    return symbols, np.frombuffer(b"".join(alphabet), np.uint8).copy()


def _check_words(words: Words, n_symbols: int) -> tuple[int, int]:
    """Return the numbers of symbols in words and in their alphabet; raises InputError if nothing can be learnt."""
    n, a = len(words.symbols), len(words.alphabet)
    require(n > 0, "there are no words to learn from")
    fits = 0 <= words.symbols.min() <= words.symbols.max() < a
    require(fits, f"the symbols of words must be 0 to {a - 1}, their alphabet")
    require(n_symbols >= a, f"n_symbols is {n_symbols}, but the alphabet has {a} symbols")
    return n, a


def _run_learner(
    words: Words, n_symbols: int, tie_break: str, min_frequency: int, progress: bool, by_likelihood: bool = False
) -> Learned:
    """Merge the pairs of the greatest count, or likelihood, until there are `n_symbols` symbols."""
    n, a = _check_words(words, n_symbols)
    n_symbols = min(n_symbols, a + n)  # a merge takes a symbol away, at least
    index_dtype = np.int32 if n < INT32_SYMBOLS else np.int64
    symbols, spelled = _make_symbols(words, n_symbols, tie_break)
    least = min(max(min_frequency, 1), MAX_COUNT)
    learner = _new_learner(*_make_cells(words, index_dtype), symbols, spelled, tie_break == "bytes", least, a)
    if by_likelihood:
        _count_symbols(learner)
    _add_first_pairs(learner)
    done = goal = a
    with Engine(progress=progress).progress_bar("learn", n_symbols - a, " merges") as bar:
        while done == goal < n_symbols:
            goal = min(goal + MERGES_PER_ROUND, n_symbols)
            done = _merge_until(learner, goal)
            bar.update(done - a - bar.n)
    made = symbols[a:done]
    pairs = np.stack([made["left"], made["right"]], axis=1)
    return Learned(pairs, made["count"].copy(), symbols["n_tokens"][a - 1 : done].copy(), words.alphabet)


@checked
def learn(
    words: Words, n_symbols: int, *, tie_break: str = "bytes", min_frequency: int = 1, progress: bool = False
) -> Learned:
    """Merge the most frequent pair again and again, until there are `n_symbols` symbols with those of the alphabet.

    Of pairs with equal counts the one is merged first whose left bytes are the greatest, then whose right bytes are
    (`tie_break="bytes"`, the rule of Stanford's CS336), or whose ids are the smallest, left then right ("ids", the rule
    of Hugging Face, who number the bytes in BYTE_ORDER; other alphabets have their own order). Ends early when no pair
    is left that occurs `min_frequency` times in the corpus. Takes time in proportion to the occurrences of what is
    merged, not to the length of the words. Raises InputError where there are no words, or not of their alphabet.

    >>> learned = learn(Words.from_counts({b"aaab": 3, b"ab": 1}), 258)
    >>> learned.pairs.tolist(), learned.counts.tolist(), learned.n_tokens.tolist()
    ([[97, 97], [97, 98]], [6, 4], [14, 11, 7])
    """
    require(tie_break in ("bytes", "ids"), f"tie_break is 'bytes' or 'ids', not {tie_break!r}")
    return _run_learner(words, n_symbols, tie_break, min_frequency, progress)


# ─── Models ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# A Model is a tokenizer as data: files hold it, and Tokenizer compiles it. This holds for every Model:
#
# - Ids are below MAX_ID and may have gaps. A token has at least one byte.
# - Two tokens differ in their bytes, but for a special token, which may have those of an ordinary one.
# - Each special token has an id in the vocabulary, and no control token is a single byte.
# - Merges are pairs of bytes. Without merges, two tokens merge if they join to a token: by its score or by its id.
# - Scores are floats below inf, one for each token that text may become. A Unigram has them.
# - Tokens of characters are UTF-8. The unknown token and the 256 byte tokens are in the vocabulary if they are used.
#
# Files name tokens in characters: GPT-2's bytes_to_unicode writes a byte as itself if it is visible, else as one of the
# 68 characters from U+0100.

MAX_ID = 1 << 24  # ids are below: no vocabulary has a tenth of that, and tables grow with the largest id
SpecialTokens = Iterable[str] | Mapping[str, int] | None  # {token: id}, or those that a model has already
_ID_RANGE = f"an id is a whole number from 0 to {MAX_ID - 1:,}"

_BYTES_TO_UNICODE = dict(zip(BYTE_ORDER, [*_VISIBLE, *range(0x100, 0x144)], strict=True))
_UNICODE_TO_BYTES = np.full(0x145, -1)  # -1 is what names no byte; the last entry is for all above
_UNICODE_TO_BYTES[[*_BYTES_TO_UNICODE.values()]] = [*_BYTES_TO_UNICODE]
_BYTE_NAMES = frozenset(map(chr, _BYTES_TO_UNICODE.values()))


def gpt2_name(token: bytes) -> str:
    """Write bytes as characters that can be seen, one a byte."""
    return token.decode("latin-1").translate(_BYTES_TO_UNICODE)


_SEEN = str.maketrans({" ": "␣", "\n": "↵", "\t": "→"})


def readable(token: bytes) -> str:
    r"""Write a token so that its spaces are seen, and control characters and what is not UTF-8 do no harm.

    >>> print(readable("é one\n".encode()), readable(b"\xe4\xb8"), readable(b"\x1b"), readable("\u202e".encode()))
    é␣one↵ <E4><B8> <1B> <U+202E>
    """
    text = token.decode("utf-8", "surrogateescape").translate(_SEEN)
    if not text.isprintable():  # a byte that is not UTF-8 is a surrogate, whose lower half it is
        codes = ((c, ord(c) & 0xFF if "\udc80" <= c <= "\udcff" else ord(c)) for c in text)
        text = "".join(c if c.isprintable() else f"<{n:02X}>" if n < 256 else f"<U+{n:04X}>" for c, n in codes)
    is_mark = unicodedata.category(text[:1] or " ") == "Mn"  # which would else be drawn over what is before it
    return "◌" * is_mark + text


def _read_names(names: Iterable[str], alphabet: str = "bytes") -> list[bytes]:
    """Read the names of tokens, as text or one byte a character; all at once, in a third of the time of one by one."""
    if alphabet == "characters":
        return [name.encode("utf-8", "surrogatepass") for name in names]
    names = list(names)
    codes = np.frombuffer("".join(names).encode("utf-32-le", "surrogatepass"), "<u4")
    values = _UNICODE_TO_BYTES[np.minimum(codes, len(_UNICODE_TO_BYTES) - 1)]
    if (values < 0).any():
        char = chr(codes[np.argmax(values < 0)])
        name = next(name for name in names if char in name)
        raise InputError(f"{char!r} in {name!r} does not stand for a byte: not a byte-level BPE")
    tokens = values.astype(np.uint8).tobytes()
    ends = itertools.accumulate(map(len, names), initial=0)
    return [tokens[start:end] for start, end in itertools.pairwise(ends)]


@dataclasses.dataclass(repr=False)
class Model:
    """Hold a tokenizer as data, validated.

    vocab           id -> bytes; ids may have gaps
    merges          pairs of bytes, the first to be merged first; None: any two tokens that join to a token, by its id
    special_tokens  text -> id; of a list, each gets the id of its bytes in the vocabulary, or the next behind the last
    pattern         the name of a pattern, a regular expression, or several, each of which splits what the last has left
    kind            a name in KINDS
    ignore_merges   a pretoken that is a token is that token, even where the merges do not get there
    flags           how special tokens are found, if not in the plain way
    alphabet        "bytes", which tokens are made of; or "characters": tokens are UTF-8, and a character may be unknown
    scores          float32[V] or float64[V], by id: log probabilities (unigram); or without merges, the higher is first
    normalizer      steps of a Normalizer, as a tokenizer.json writes them
    decoder         steps from tokens to text, likewise; none if their bytes are only joined
    unk_token       the token of what is unknown, or None
    byte_fallback   what is unknown becomes tokens of its bytes, <0x00> to <0xFF>
    fuse_unk        several unknown characters in a row become one token
    drops_unknown   letters of a BPE that have no token, and no unk_token, are left out; else text with them is refused
    word_suffix     the last letter of each word of a BPE has this at its end: its tokens do
    subword_prefix  how a token of a WordPiece begins that does not begin a word
    max_word_chars  longer words are unknown to a WordPiece
    config          what tokenizer_config.json says
    post_processor  what tokenizer.json says of it; kept for other tools
    batching        its truncation and padding, likewise

    The text of a special token and the bytes of its id are mostly the same, but files have tokens like "Ċ" whose id is
    that of a line feed. Only tokens that are not special must differ in their bytes. Raises ValueError for what cannot
    be.

    >>> Model({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")], ["<|end|>"]).special_tokens
    {'<|end|>': 3}
    """

    vocab: dict[int, bytes]
    merges: list[Merge] | None
    special_tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    pattern: PatternSource = "gpt2"
    kind: str = "bpe"
    ignore_merges: bool = False
    flags: dict[str, AddedToken] = dataclasses.field(default_factory=dict)
    alphabet: str = "bytes"
    scores: np.ndarray | None = None
    normalizer: Sequence[dict] = ()
    decoder: Sequence[dict] = ()
    unk_token: str | None = None
    byte_fallback: bool = False
    fuse_unk: bool = False
    drops_unknown: bool = False
    word_suffix: str = ""
    subword_prefix: str = ""
    max_word_chars: int = 100
    config: dict = dataclasses.field(default_factory=dict)
    post_processor: dict | None = None
    batching: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.vocab = _validate_vocab(self.vocab)
        _assign_special_ids(self)
        if self.merges is not None:
            self.merges = [*map(tuple, self.merges)]
            kinds = {*map(type, itertools.chain.from_iterable(self.merges))}
            require({*map(len, self.merges)} <= {2} and kinds <= {bytes}, "merges are pairs of bytes, as (b'a', b'b')")
        odd = {text: flags for text, flags in (self.flags or {}).items() if flags != AddedToken()}
        self.flags = {text: flags for text, flags in odd.items() if text in self.special_tokens}
        self.normalizer, self.decoder = tuple(self.normalizer), tuple(self.decoder)
        _validate_special_tokens(self)
        if self.alphabet != "bytes":
            _validate_characters(self)
        _ = self.ordinary_ids  # which refuses two tokens of the same bytes
        _validate_scores(self)

    def __repr__(self) -> str:
        return f"<Model: {self.kind}, {len(self.vocab)} tokens, {len(self.special_tokens)} special>"

    @functools.cached_property
    def special_ids(self) -> set[int]:
        """The ids whose bytes are the text of a special token."""
        return {id for text, id in self.special_tokens.items() if self.vocab[id] == text.encode()}

    @functools.cached_property
    def merged_special_ids(self) -> set[int]:
        """Those of `special_ids` that text becomes by merges alone; tokens added with `special: false` often do."""
        special, vocab = self.special_ids, self.vocab
        wanted = {vocab[id] for id in special}
        if self.kind == "bpe":
            merged = wanted.intersection(itertools.starmap(bytes.__add__, self.merges or ()))
            merged.update(token for token in wanted if len(token if self.alphabet == "bytes" else token.decode()) == 1)
        else:
            plain = [text for text in self.special_tokens if not self.flags.get(text, AddedToken()).special]
            n = MAX_ID if self.scores is None else len(self.scores)
            merged = {text.encode() for text in plain if self.special_tokens[text] < n}
        if merged:
            merged.difference_update(token for id, token in vocab.items() if id not in special)
        return {id for id in special if vocab[id] in merged}

    @functools.cached_property
    def ordinary(self) -> list[int]:
        """The ids that text may become without special tokens, in ascending order."""
        control = self.special_ids - self.merged_special_ids
        return [id for id in sorted(self.vocab) if id not in control]

    @functools.cached_property
    def ids(self) -> dict[bytes, int]:
        """The ids of tokens; bytes that a special token shares with an ordinary one are the ordinary one's."""
        special_first = {id: self.vocab[id] for id in self.special_ids} | self.vocab
        return dict(zip(special_first.values(), special_first, strict=True))

    @functools.cached_property
    def ordinary_ids(self) -> dict[bytes, int]:
        """The ids of the tokens that text may become by itself. A merge may make what stands for something unknown."""
        ids = dict(zip(map(self.vocab.__getitem__, self.ordinary), self.ordinary, strict=True))
        if len(ids) < len(self.ordinary):
            token = _repeated(self.vocab[id] for id in self.ordinary)
            first, second = [id for id in self.ordinary if self.vocab[id] == token][:2]
            raise InputError(f"the ids {first} and {second} have the same bytes, {readable(token)!r}")
        for token in fallback_tokens(self) if self.merges is None else ():
            ids.pop(token, None)
        return ids

    @functools.cached_property
    def letters(self) -> dict[int, int]:
        """The ids of the bytes, or of the characters by code point, that are tokens."""
        return _letters(self.ordinary_ids, self.alphabet)

    @property
    def fingerprint(self) -> str:
        """Hash all that decides about ids: a SHA-256 in hexadecimal."""
        names = ("merges", "kind", "ignore_merges", "alphabet", "normalizer", "unk_token", "byte_fallback", "fuse_unk",
                 "subword_prefix", "max_word_chars")  # fmt: skip
        plain = [(name, getattr(self, name)) for name in names]
        plain += [(name, self.__dict__[name]) for name in ("word_suffix", "drops_unknown") if self.__dict__[name]]
        tables = sorted(self.vocab.items()), sorted(self.special_tokens.items()), Pattern(self.pattern).source
        scores = None if self.scores is None else (self.scores.dtype.str, self.scores.tolist())
        flags = sorted((text, tuple(flags)) for text, flags in self.flags.items())
        return hashlib.sha256(repr((plain, tables, scores, flags)).encode("utf-8", "surrogatepass")).hexdigest()


def _letters(ids: Mapping[bytes, int], alphabet: str) -> dict[int, int]:
    """Select the single bytes, or the single characters by code point."""
    if alphabet == "bytes":
        return {token[0]: ids[token] for token in BYTES if token in ids}
    return {ord(text): id for token, id in ids.items() if len(token) <= 4 and len(text := token.decode()) == 1}


def _is_id(id: object) -> bool:
    """Check that an id is a whole number in the range of ids."""
    return type(id) is int and 0 <= id < MAX_ID


def _validate_vocab(vocab: Mapping[int, bytes]) -> dict[int, bytes]:
    """Copy a vocabulary, after a check of the types and the range of its ids and tokens."""
    for id, token in vocab.items():
        if type(id) is not int or not 0 <= id < MAX_ID:
            raise InputError(f"the token {token!r} has the id {id!r}: {_ID_RANGE}")
        if type(token) is not bytes or not token:
            raise InputError(f"a token is bytes, at least one: id {id} has {token!r}")
    return dict(vocab)


def _assign_special_ids(model: Model) -> None:
    """Give each special token its id, and enter it into the vocabulary if it is not there."""
    given = model.special_tokens if isinstance(model.special_tokens, Mapping) else {}
    texts = _check_texts(model.special_tokens or ())
    model.special_tokens = {}
    if not texts:
        return
    known = {} if given else {token: id for id, token in model.vocab.items()}
    following = max(model.vocab, default=-1) + 1
    for text in texts:
        token = text.encode()
        id = given.get(text, known.get(token, following))
        if not _is_id(id):
            raise InputError(f"the special token {text!r} has the id {id!r}: {_ID_RANGE}")
        held = model.vocab.setdefault(id, token)
        # An id may have a second text; and a text may be the name of the bytes in a tokenizer.json.
        if held != token and gpt2_name(held) != text and given.get(held.decode("utf-8", "replace")) != id:
            raise InputError(f"the special token {text!r} has the id {id}, which is that of {readable(held)!r}")
        model.special_tokens[text] = id
        following = max(following, id + 1)


def _validate_special_tokens(model: Model) -> None:
    """Refuse a control token that is a single byte; note one that merges make of its text."""
    for text, id in model.special_tokens.items():
        if id in model.merged_special_ids and model.flags.get(text, AddedToken()).special:
            forged = f"the special token {text!r} can be produced from ordinary text"
            require(len(model.vocab[id]) > 1, f"{forged}: it is a single byte")
            warnings.warn(f"{forged}: merges make it of its letters", stacklevel=5)


def _repeated(items: Iterable) -> object:
    """Find an item that is there twice."""
    (item, _), *_ = Counter(items).most_common(1)
    return item


ALPHABETS = ("bytes", "characters")


def _validate_scores(model: Model) -> None:
    """Check that every token that text may become has a score that is a number; make the scores an array of floats."""
    if model.scores is None:
        require(model.kind != "unigram", "a model of kind unigram has a score for each token: none are given")
        return
    scores = model.scores = np.asarray(model.scores)
    require(scores.dtype in (np.float32, np.float64), f"scores are of type float32 or float64, not {scores.dtype}")
    for id in np.flatnonzero(~(scores < np.inf)).tolist():  # -inf: never chosen
        raise InputError(f"the score of {model.vocab.get(id)!r}, id {id}, is {scores[id]}, which is no number")
    last, n = max(model.ordinary, default=-1), len(scores)
    require(last < n, f"the token {model.vocab.get(last)!r}, id {last}, has no score: there are {n}")


def _validate_characters(model: Model) -> None:
    """Check that tokens are UTF-8, and that the tokens of what is unknown are there."""
    require_known("alphabet", model.alphabet, ALPHABETS)
    for token in model.vocab.values():
        try:
            token.decode()
        except UnicodeDecodeError:
            raise InputError(f"the token {readable(token)!r} is not UTF-8, as those made of characters are") from None
    tokens, unknown = {*model.vocab.values()}, model.unk_token
    require(unknown is None or str(unknown).encode() in tokens, f"the unk_token {unknown!r} is not in the vocabulary")
    missing = sorted(fallback_tokens(model) - tokens)[:1]
    require(
        not missing,
        f"{readable(b''.join(missing))} is not in the vocabulary: byte_fallback needs a token for each byte",
    )


def _check_texts(special_tokens: Iterable[str]) -> list[str]:
    """Check that special tokens are different strings that can be encoded."""
    if isinstance(special_tokens, (str, bytes)) or not isinstance(special_tokens, Iterable):
        raise InputError(f"special tokens are a list of strings, not {special_tokens!r}")
    special_tokens, seen = list(special_tokens), set()
    for text in special_tokens:
        require(isinstance(text, str) and text, f"a special token is a string that is not empty, not {text!r}")
        require(text not in seen, f"the special token {text!r} is given twice")
        require(not re.search("[\ud800-\udfff]", text), f"the special token {text!r} is not UTF-8")
        seen.add(text)
    return special_tokens


def check_special_tokens(special_tokens: Iterable[str]) -> list[str]:
    """Check the special tokens of a model to be trained, and return them as a list.

    >>> check_special_tokens(["<|end|>", "x"])
    Traceback (most recent call last):
    ...
    bpe_numba.InputError: the special token 'x' is a single byte, which every vocabulary has already
    """
    special_tokens = _check_texts(special_tokens)
    for text in special_tokens:
        if len(text.encode()) == 1:
            raise InputError(f"the special token {text!r} is a single byte, which every vocabulary has already")
        if text in _BYTE_NAMES:
            raise InputError(f"the special token {text!r} is the name of a byte in a tokenizer.json: take a longer one")
    return special_tokens


SPECIAL_TOKENS_AT = ("first", "after-bytes", "last")


def build_vocabulary(
    learned: Learned,
    special_tokens: Sequence[str] = (),
    special_tokens_at: str = "first",
    byte_tokens: Sequence[str] = (),
) -> tuple[dict[int, bytes], list[Merge]]:
    """Number the tokens: the alphabet (bytes in BYTE_ORDER), then what was merged; and the special tokens among them.

    They are "first", as Hugging Face's trainer has them, "after-bytes", or "last", as in GPT-2. Tokens of single bytes
    in a vocabulary of characters are before the alphabet. Returns the vocabulary, id -> bytes, and the merges as pairs
    of bytes.
    """
    tokens, n_letters = learned.tokens, len(learned.alphabet)
    order = BYTE_ORDER if tuple(learned.alphabet) == BYTES else range(n_letters)
    in_order = [*map(str.encode, byte_tokens), *(tokens[k] for k in order), *tokens[n_letters:]]
    at = {"first": 0, "after-bytes": len(byte_tokens) + n_letters, "last": len(in_order)}[special_tokens_at]
    in_order[at:at] = [text.encode() for text in special_tokens]
    return dict(enumerate(in_order)), learned.merges


def check_vocab_size(vocab_size: int, least: int) -> None:
    """Check that a vocabulary has room for what is in it before the training, and that its ids are in range."""
    what = "256 bytes and the special tokens" if least >= 256 else "one character and the special tokens"
    require(vocab_size >= least, f"a vocabulary of {vocab_size} is too small: {what} make {least}")
    require(vocab_size <= MAX_ID, f"a vocabulary of {vocab_size} is too large: {_ID_RANGE}")


def id_dtype(model: Model | int, name: str | type | np.dtype = "auto") -> np.dtype:
    """Choose the dtype of ids in files: "uint16", "uint32", or with "auto" the first that holds them all.

    model           the model, or its largest id
    name            the dtype, or its name
    """
    name = name if isinstance(name, str) else getattr(name, "__name__", str(name))
    largest = model if isinstance(model, int) else max(model.vocab, default=0)
    require_known("`dtype`", name, ("auto", "uint16", "uint32"))
    if name == "auto":
        name = "uint16" if largest < 1 << 16 else "uint32"
    if largest > np.iinfo(name).max:
        raise InputError(f"{name} does not hold the id {largest:,} of this vocabulary: use uint32")
    return np.dtype(name)


# ─── Encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────

NO_MERGE = ALL_ONES  # no rank: the pair does not merge
LOW_HALF = u64(2**32 - 1)
NO_RANK = NO_MERGE & ~LOW_HALF
NO_ID, DROPPED = -1, -2  # in place of the id of unknown letters: a word with one has no ids; they are left out
ANY_PAIR = -1  # in place of the two ids of a merge: whatever merges leave of the token's bytes
MAX_LINEAR_MERGE = 24  # letters of a word whose pairs are all looked at for the lowest rank; longer words have a heap
LONGEST_TOKEN = 1 << 12  # bytes, where there are no merges and sampling looks at all ways to cut a token in two
_FALLBACK_TOKENS = [f"<0x{b:02X}>".encode() for b in range(256)]  # what an unknown character becomes a sequence of
CACHE_WORDS = 1 << 14  # entries of a new cache; a table larger than its words is slower: each has a cache line
MAX_CACHED_BYTES = 1 << 12  # of a word; longer ones are not worth their place


class TokenBytes(NamedTuple):
    """The bytes of the tokens by their ids."""

    bytes: np.ndarray  # uint8[…]     end to end, and PADDING
    starts: np.ndarray  # int64[V]    where each begins
    sizes: np.ndarray  # int64[V]     how many bytes it has; -1 for an id that there is not


@struct
class BpeTables:
    """Which pairs of ids merge. An entry has the rank in its upper half and the id they become in the lower.

    The letters of a word are its bytes, or its characters.
    """

    letter_ids: np.ndarray  # int32[256]     the id of each byte, or int32[0x110000], of each code point; or -1
    last_ids: np.ndarray  # the same of the last letter of a word
    fallback_ids: np.ndarray  # int32[256]   the ids of <0x00> to <0xFF>, which unknown characters become; or -1
    unk_id: int  # what they become otherwise, or NO_ID, or DROPPED
    fuse_unk: bool  # several in a row become one
    merges: np.ndarray  # uint64[H, 2]       hash table: two ids in one word, and their entry; half full at most
    bloom: np.ndarray  # uint64[H / 8]       a bit for each pair in `merges`: 3 of 4 are not, and end here
    tokens: _WordTable  # whose values are ids: words that are looked up whole since merges do not make them that token


def make_token_bytes(vocab: Mapping[int, bytes]) -> TokenBytes:
    """Lay out the tokens of a vocabulary."""
    ids, lengths = np.fromiter(vocab, np.int64, len(vocab)), np.fromiter(map(len, vocab.values()), np.int64, len(vocab))
    starts, sizes = np.full((2, ids.max(initial=0) + 1), -1)
    starts[ids], sizes[ids] = np.cumsum(lengths) - lengths, lengths
    return TokenBytes(_with_padding(b"".join(vocab.values())), starts, sizes)


def fallback_tokens(model: Model) -> set[bytes]:
    """List the tokens that unknown characters become."""
    if model.alphabet == "bytes":
        return set()
    return {*_FALLBACK_TOKENS * model.byte_fallback, *([model.unk_token.encode()] if model.unk_token else [])}


def bpe_tables(
    model: Model, unknown_letter: int = -1, samples: bool = False, last_pairs: np.ndarray | None = None
) -> BpeTables:
    """Make the tables by which `segment_bpe` merges as a model does; raises InputError for merges that cannot be.

    unknown_letter    the id of bytes or characters that are no token; -1 if there is none
    samples           for `sample_bpe`: with all pairs that may merge, and not only those that do if none is left out
    last_pairs        int64[V, 2], into which the last merge of each token is written; see `last_merges`
    """
    of_characters, token_ids = model.alphabet == "characters", np.fromiter(model.ordinary_ids.values(), np.int64)
    ids = model.ordinary_ids if model.merges is None and not of_characters else model.ids
    letter_ids = np.full(N_CODE_POINTS if of_characters else 256, -1, np.int32)
    letter_ids[np.array([*model.letters], np.int64)] = [*model.letters.values()]
    last_ids = letter_ids
    if suffix := model.word_suffix.encode():
        ends = {token.removesuffix(suffix): id for token, id in ids.items() if token.endswith(suffix)}
        last_letters, last_ids = _letters(ends, model.alphabet), np.full_like(letter_ids, -1)
        last_ids[np.array([*last_letters], np.int64)] = [*last_letters.values()]
    tokens = make_token_bytes(model.vocab)
    if model.merges is None:
        made = np.setdiff1d(token_ids, _unreachable(model))
        any_pairs = np.full_like(made, ANY_PAIR)
        pairs = _all_splits(model.ordinary_ids) if samples else np.column_stack([any_pairs, any_pairs, made, made])
        if model.scores is not None:  # ids of equal scores have the same rank
            pairs[:, 3] = np.unique(-model.scores, return_inverse=True)[1].reshape(-1)[pairs[:, 2]]
    else:
        pairs = _merges_as_ids(model.merges, ids)
        # What is unknown, or ends a word, may become what merges, and no token's bytes show it.
        samples = samples or of_characters or model.unk_token is not None or bool(model.word_suffix)
    sizes = tokens.sizes.astype(np.min_scalar_type(tokens.sizes.max()))  # of 8 or 16 bits are sorted fast
    pairs = pairs[np.lexsort((pairs[:, 2], sizes[pairs[:, 2]]))]
    n_ways = np.bincount(pairs[:, 2])
    are_sure = samples | ((n_ways[pairs[:, 2]] == 1) & (pairs[:, 0] != ANY_PAIR))
    size = 1 << max(6, (2 * (len(pairs) if samples else int(np.count_nonzero(n_ways))) - 1).bit_length())
    unknown = DROPPED if model.drops_unknown else NO_ID
    tables = BpeTables(
        letter_ids,
        last_ids,
        np.array([ids[token] if model.byte_fallback and of_characters else -1 for token in _FALLBACK_TOKENS], np.int32),
        ids[model.unk_token.encode()] if model.unk_token else unknown,
        model.fuse_unk,
        np.full((size, 2), NO_MERGE, np.uint64),
        np.zeros(size >> 3, np.uint64),
        _new_word_table(64, 64),
    )
    looks_up = last_pairs is None and (model.ignore_merges or (model.merges is None and model.scores is None))
    finds_all = last_pairs is not None
    last_pairs = last_pairs if finds_all else np.full((len(tokens.sizes), 2), -1)
    _fill_merges(pairs, are_sure, finds_all, tokens, token_ids if looks_up else token_ids[:0], tables, last_pairs)
    letter_ids[letter_ids < 0] = unknown_letter
    return tables


def _unreachable(model: Model) -> list[int]:
    """List the tokens of a model without merges that have a character which is no token itself.

    Raises InputError if one is too long, or is made of two others: SentencePiece would merge such a character with its
    neighbours before it finds that it is unknown. Its trainer makes no such model.
    """
    id_of = model.ordinary_ids
    longest = max(id_of, key=len, default=b"")
    if len(longest) > LONGEST_TOKEN:
        raise InputError(f"token {id_of[longest]} has {len(longest):,} bytes; without merges there may be 4,096")
    known, unreachable = {*map(chr, model.letters)}, []
    for token, id in id_of.items() if model.alphabet == "characters" else ():
        if unknown := set(text := token.decode()) - known:
            unreachable.append(id)
            parts = [(text[:k], text[k:]) for k in range(1, len(text))]
            if any(all(len(part) == 1 or part.encode() in id_of for part in pair) for pair in parts):
                raise InputError(f"token {id}, {token!r}, has the character {min(unknown)!r}, which is no token itself")
    return unreachable


def _all_splits(id_of: Mapping[bytes, int]) -> np.ndarray:
    """List all ways to make one of these tokens of two others: left, right, what they become, and again; int64[M, 4].

    For cl100k they take half a second, for o200k one, and only the first `sample` of a BPE needs them.
    """
    splits = ((token[:k], token[k:], id) for token, id in id_of.items() for k in range(1, len(token)))
    found = [(id_of[left], id_of[right], id, id) for left, right, id in splits if left in id_of and right in id_of]
    return np.array(found, np.int64).reshape(-1, 4)


def _merges_as_ids(merges: Sequence[Merge], id_of: Mapping[bytes, int]) -> np.ndarray:
    """Look up merges in a vocabulary: left, right, what they become, and their rank; int64[M, 4]."""
    parts, merged = itertools.chain.from_iterable(merges), itertools.starmap(bytes.__add__, merges)
    part_ids, merged_ids = (
        np.fromiter(map(id_of.get, tokens, itertools.repeat(-1)), np.int64) for tokens in (parts, merged)
    )
    as_ids = np.column_stack([part_ids.reshape(-1, 2), merged_ids, np.arange(len(merges))])
    for rank, part in np.argwhere(as_ids < 0)[:1].tolist():
        left, right = merges[rank]
        token = (left, right, left + right)[part]
        raise InputError(f"merge {rank}, of {left!r} and {right!r}: {token!r} is not in the vocabulary")
    return as_ids


@inline_kernel
def _merge_slot(key, merges):
    """Look up two ids, the left one in the upper half: returns the slot that has them, or the free one for them."""
    mask = u64(len(merges) - 1)
    slot = key * u64(0x9E3779B97F4A7C15) >> u64(32) & mask
    while merges[slot, 0] != key and merges[slot, 0] != NO_MERGE:
        slot = (slot + u64(1)) & mask
    return slot


@inline_kernel
def _bloom_bit(key, bloom):
    """Return where the bit of a pair is in a Bloom filter, and the bit."""
    bit = key * u64(0x9E3779B97F4A7C15) >> u64(40) & u64(64 * len(bloom) - 1)
    return bit >> u64(6), u64(1) << (bit & u64(63))


@inline_kernel
def _find_merge(left, right, merges, bloom):
    """Look up the entry of a pair of ids, or NO_MERGE."""
    key = u64(left) << u64(32) | u64(right)
    word, bit = _bloom_bit(key, bloom)
    return merges[_merge_slot(key, merges), 1] if bloom[word] & bit else NO_MERGE


@kernel
def _first_letters(text, start, size, tables, ids, at):
    """Write the ids that merging a word begins with: of its bytes or characters; returns their number, or -1.

    A character that is no token, or a byte that is not UTF-8, becomes its bytes' tokens or `unk_id`, as the model says,
    or is left out. There are never more ids than bytes. If it has to have an id, and has none, the result is -1.
    """
    letter_ids, fallback_ids, unk_id, fuse_unk = tables.letter_ids, tables.fallback_ids, tables.unk_id, tables.fuse_unk
    position, stop, n, was_unknown = start, start + size, at, False
    while position < stop:
        letter = i64(text[position]) << 3 | 1 if len(letter_ids) == 256 else _decode_character(text, position, stop)
        id, end = letter_ids[letter >> 3], position + (letter & 7)
        if end == stop:
            id = tables.last_ids[letter >> 3]
        if id >= 0:
            ids[n] = id
            n += 1
        elif fallback_ids[0] >= 0:
            for k in range(position, end):
                ids[n] = fallback_ids[text[k]]
                n += 1
        elif unk_id == NO_ID:
            return -1
        elif unk_id != DROPPED and not (was_unknown and fuse_unk):
            ids[n] = unk_id
            n += 1
        was_unknown = id < 0
        position = end
    return n - at


@kernel
def _merge_short(n, merges, bloom, scratch, ids, at):
    """Merge the pair of lowest rank, the leftmost of several, again and again; returns the number of ids that is left.

    ids[at : at + n] are those of the letters, and scratch[k] is the entry of letter k and the next. Each time all pairs
    are looked at: n² steps, which up to MAX_LINEAR_MERGE letters take no longer than a heap.
    """
    first, last = u64(at), u64(max(n - 1, 0))
    for k in range(last):
        scratch[u64(k)] = _find_merge(ids[first + u64(k)], ids[first + u64(k) + u64(1)], merges, bloom)
    while last:
        i, lowest = u64(0), NO_RANK
        for k in range(last):
            entry = scratch[u64(k)]
            is_lower = entry < lowest  # a lower rank: ids do not count
            i, lowest = u64(k) if is_lower else i, entry & NO_RANK if is_lower else lowest
        if lowest == NO_RANK:
            break
        ids[first + i] = scratch[i] & LOW_HALF
        last -= u64(1)
        for k in range(i + u64(1), last + u64(1)):
            j = u64(k) + u64(1)
            ids[first + u64(k)], scratch[u64(k)] = ids[first + j], scratch[j]
        if i < last:
            scratch[i] = _find_merge(ids[first + i], ids[first + i + u64(1)], merges, bloom)
        if i:
            scratch[i - u64(1)] = _find_merge(ids[first + i - u64(1)], ids[first + i], merges, bloom)
    return min(n, i64(last) + 1)


@kernel
def _heap_push(heap, size, item):
    """Add an item to a heap of so many, the least on top."""
    child = size
    while child and heap[(child - 1) >> 1] > item:
        heap[child] = heap[(child - 1) >> 1]
        child = (child - 1) >> 1
    heap[child] = item


@kernel
def _heap_pop(heap, size):
    """Remove the least of so many items, and return it."""
    least, item, parent, child = heap[0], heap[size - 1], 0, 1
    while child < size - 1:
        child += child + 1 < size - 1 and heap[child + 1] < heap[child]
        if heap[child] >= item:
            break
        heap[parent] = heap[child]
        parent, child = child, 2 * child + 1
    heap[parent] = item
    return least


@inline_kernel
def _queue_merge(left, right, merges, bloom, ids, at, entries, heap, size):
    """Look up the merge of two neighbours, and put it in the heap if there is one; returns the size of the heap."""
    entries[left] = _find_merge(ids[at + left], ids[at + right], merges, bloom)
    if entries[left] == NO_MERGE:
        return size
    _heap_push(heap, size, entries[left] & ~LOW_HALF | u64(left))
    return size + 1


@kernel
def _merge_long(n, tables, alpha, state, ids, at):
    """Merge as `_merge_short` does, a word of any length in n log n steps.

    Ranks and places wait in a heap. A merge is left out with the probability alpha each time the next is chosen; then
    `state` is that of `_random`. The symbols are a linked list: before[k] and after[k] are the neighbours of k.
    """
    before, after = np.arange(-1, n - 1), np.arange(1, n + 1)
    entries = np.full(n, NO_MERGE, np.uint64)  # of each symbol and the next
    heap, size, n_left = np.empty(2 * n, np.uint64), i64(0), n  # a merge takes one away and adds two at most
    end, left_out = len(heap), NO_MERGE  # what is left out is heap[end :], and the last of it
    merges, bloom = tables.merges, tables.bloom  # a kernel that is handed the struct takes 1.2 times as long
    for k in range(n - 1):
        size = _queue_merge(k, k + 1, merges, bloom, ids, at, entries, heap, size)
    while size:
        item = _heap_pop(heap, size)
        size -= 1
        i = i64(item & LOW_HALF)
        # One of the two was merged meanwhile; or the pair comes twice, which equal ranks can make it do.
        if entries[i] == NO_MERGE or (entries[i] ^ item) >> u64(32) or item == left_out:
            continue
        if alpha > 0.0 and _random(state) < alpha:
            end -= 1
            heap[end] = left_out = item
            continue
        for k in range(end, len(heap)):
            _heap_push(heap, size, heap[k])
            size += 1
        end, left_out = len(heap), NO_MERGE
        j = after[i]
        k = after[j]
        ids[at + i], after[i], entries[i], entries[j] = entries[i] & LOW_HALF, k, NO_MERGE, NO_MERGE
        if k < n:
            before[k] = i
            size = _queue_merge(i, k, merges, bloom, ids, at, entries, heap, size)
        if i:
            size = _queue_merge(before[i], i, merges, bloom, ids, at, entries, heap, size)
        n_left -= 1
    k = 0
    for out in range(n_left):
        ids[at + out] = ids[at + k]
        k = after[k]
    return n_left


@kernel
def _random(state):
    """Draw a float64 in [0, 1): the upper 53 bits of SplitMix64 (Steele, Lea and Flood 2014). state is uint64[1]."""
    state[0] += u64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> u64(27))) * u64(0x94D049BB133111EB)
    return np.float64((x ^ (x >> u64(31))) >> u64(11)) * 2.0**-53


@kernel
def segment_bpe(text, start, size, tables, scratch, ids, at):
    """Cut the word text[start : start + size] into ids[at :]; returns their number, or -1 if a letter has none."""
    if tables.tokens.n_words:
        id = _find_value(text, start, size, tables.tokens.entries, tables.tokens.long_words)
        if id >= 0:
            ids[at] = id
            return 1
    n = _first_letters(text, start, size, tables, ids, at)
    if n <= MAX_LINEAR_MERGE:
        return _merge_short(n, tables.merges, tables.bloom, scratch, ids, at)
    return _merge_long(n, tables, 0.0, scratch, ids, at)


@kernel
def _fill_merges(pairs, are_sure, finds_all, tokens, looked_up, tables, last_pairs):
    """Enter merges, int64[M, 4]: two ids, the id they become, and their rank; those of shorter tokens are first.

    Of several pairs that become a token, which are not sure, only the one is entered that ever does: 200,000 of o200k's
    446,000. With a table half as large, words merge twice as fast. The two ids may be ANY_PAIR.

    Proof. Let a pair become a token somewhere in a word. All merges in its bytes until then were made in them alone,
    and each was that of the lowest rank, the leftmost of several, also among the pairs in these bytes. So they are the
    merges of these bytes as a word of their own, of which the last is that of this pair.

    finds_all     find the last pair of tokens whose pair is sure, too
    looked_up     ids of tokens that a whole word may be; those that merges do not make of their bytes are looked up
    last_pairs    int64[V, 2], by id: the pair that becomes the token, if that was found; modified in place
    """
    text, starts, sizes = tokens
    ids, scratch = np.empty(len(text) + 2, np.uint32), np.empty(MAX_LINEAR_MERGE, np.uint64)
    n, last, merges, bloom = 0, -1, tables.merges, tables.bloom
    for m in range(len(pairs)):
        left, right, id, entry = pairs[m, 0], pairs[m, 1], pairs[m, 2], u64(pairs[m, 3]) << u64(32) | u64(pairs[m, 2])
        if finds_all or not are_sure[m]:
            if id != last:
                n, last = segment_bpe(text, starts[id], sizes[id], tables, scratch, ids, i64(0)), id
            is_last = n == 2 and (left == ANY_PAIR or (left == ids[0] and right == ids[1]))
            if is_last:
                left, right = i64(ids[0]), i64(ids[1])
                last_pairs[id, 0], last_pairs[id, 1] = left, right
            elif not are_sure[m]:
                continue
        key = u64(left) << u64(32) | u64(right)
        slot, (word, bit) = _merge_slot(key, merges), _bloom_bit(key, bloom)
        bloom[word] |= bit
        merges[slot, 0], merges[slot, 1] = key, min(entry, merges[slot, 1])  # of a pair that comes twice, the lower
    for id in looked_up:
        if last_pairs[id, 0] < 0 and (
            segment_bpe(text, starts[id], sizes[id], tables, scratch, ids, i64(0)) != 1 or ids[0] != id
        ):  # the value of a token is its count, and it is counted as often as its id says
            end = np.array([starts[id] + sizes[id]])
            keys = np.empty(4 * KEYS, np.uint64)
            _add_words(tables.tokens, text, text, starts[id], end, i64(1), np.array([id]), keys)


@kernel
def sample_bpe(text, start, size, tables, alpha, state, ids, at):
    """Cut a word as `segment_bpe` does, but leave out merges at random; returns the number of ids, or -1.

    This is BPE-dropout (Provilkov, Emelianenko and Voita 2020): each time the pair of lowest rank is sought, each pair
    that could be merged is left out with the probability alpha, and if none is left that is the end. So 0 is the
    encoding, and 1 the letters. Where merges are left out, no word is looked up whole. `state` is that of `_random`.
    """
    if not alpha > 0.0:
        return segment_bpe(text, start, size, tables, np.empty(MAX_LINEAR_MERGE, np.uint64), ids, at)
    n = _first_letters(text, start, size, tables, ids, at)
    return _merge_long(n, tables, alpha, state, ids, at) if n > 0 else n


def last_merges(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Compute the ids of tokens of several letters, int64[K], and the two ids that become each; -1 if none do.

    What happens to the bytes of a token until they are one token is decided by them alone: see `_fill_merges`.
    """
    pairs = np.full((max(model.vocab, default=-1) + 1, 2), -1)
    bpe_tables(model, last_pairs=pairs)
    ids = np.array(sorted({*model.ordinary_ids.values()}.difference(model.letters.values())), np.int64)
    return ids, pairs[ids]


@kernel
def _segment_words(text, offsets, tables, scratch, ids, id_offsets):
    """Write the ids of words, and where those of each end."""
    at = i64(0)
    for w in range(len(offsets) - 1):
        at += segment_bpe(text, offsets[w], offsets[w + 1] - offsets[w], tables, scratch, ids, at)
        id_offsets[w + 1] = at
    return at


def exact_pattern(model: Model) -> str:
    r"""Compute a regular expression that cuts text where no token of a model of characters reaches across.

    Its pretokens can be segmented one by one, and kept in the cache, though the model takes a whole text for one word,
    as those of SentencePiece do. It is "none" where a part can be segmented otherwise alone: a word that is looked up
    whole, or merges of what stands for something unknown.

        ▁*(?:[set]+|[\s\S])

    Characters that are beside another in a token are in the set. The mark ▁, or in a model without it a space, does not
    count if in no token anything else is before it; else it is a character like any other.

    Proof. Let the pattern cut between x and y. One is in no token with others but the mark; or y is the mark, and x is
    not. In no token is x before y, so no segment reaches across. A merge across the cut would make such a token, and
    merges on one side of it do not see the other side. A longest match ends there. A sum of scores is that of the two
    sides, and greatest if both are. An unknown character becomes the same in each part; but where several in a row
    become one token, they are a set of their own, or with the first one if that has unknown characters.

    >>> vocab = dict(enumerate("▁ a b c d ▁a ab".encode().split()))
    >>> pattern = exact_pattern(Model(vocab, [("▁".encode(), b"a"), (b"a", b"b")], alphabet="characters"))
    >>> regex.findall(pattern, "▁ab▁acd▁▁")
    ['▁ab', '▁a', 'c', 'd', '▁▁']
    """
    id_of, merges = model.ordinary_ids, model.merges
    looked_up = model.ignore_merges or (merges is None and model.scores is None)
    merges_unknown = not fallback_tokens(model).isdisjoint(itertools.chain(*(merges or ())))
    if model.alphabet == "bytes" or looked_up or merges_unknown or model.word_suffix:
        return "none"
    letters = {*map(chr, model.letters)}
    merged = id_of if merges is None else {left + right for left, right in merges}
    pairs = {pair for token in merged for pair in itertools.pairwise(token.decode("utf-8", "replace"))}
    mark = "▁" if "▁" in letters else " "
    if mark not in letters or model.drops_unknown or any(left != mark == right for left, right in pairs):
        mark = ""
    joined = {char for pair in pairs if mark not in pair for char in pair}
    sets = [_write_set(joined)] if joined else []
    if model.drops_unknown or (model.fuse_unk and not model.byte_fallback):
        if model.drops_unknown or not joined <= letters:
            letters, sets = letters - joined, []
        if not letters:
            return "none"
        sets.append(_write_set(letters, negated=True))
    words = "|".join([*(one + "+" for one in sets), r"[\U00000000-\U0010ffff]"])
    return f"{mark and _write_set({mark}) + '*'}(?:{words})"


def _kernel_of_kind(name: str) -> Callable:
    """Make a function for kernels that calls a kernel of a kind, the field `name` of Kind.

    The kind is that whose tables are the fourth argument, by their Numba type. It is looked up when the caller is
    compiled: no loop asks for the kind, and only kinds in use are compiled.
    """

    def call(*arguments):
        kind = next(kind for kind in KINDS.values() if kind.tables_type is type(arguments[3]))
        return getattr(kind, name)(*arguments)

    @overload(call, jit_options={"nogil": True, "forceinline": True})
    def choose(*arguments):
        family = type(arguments[3])
        chosen = next(getattr(kind, name) for kind in KINDS.values() if kind.tables_type.numba_type is family)
        return lambda *arguments: chosen(*arguments)

    return call


_segment, _sample = _kernel_of_kind("segment"), _kernel_of_kind("sample")


@kernel
def _sample_words(text, scanned, meanings, tables, alpha, state, ids):
    """Write the ids of words, each with an END after, cut at random; returns as `_encode_flat` does."""
    at, start, m = i64(0), 0, 0
    for end in range(len(text) - PADDING):
        if scanned[end] != END:
            continue
        if start < end:
            n = _sample(text, start, end - start, tables, alpha, state, ids, at)
            if n < 0:
                return -1 - start
            at += n
        if meanings[m] >= 0:
            ids[at] = meanings[m]
            at += 1
        start, m = end + 1, m + 1
    return at


# Entries of the cache: the value and what is `more` of an entry in the table of words are
#
#     up to 3 ids, up to 15 bytes       value: id, id << 32          more: id | number << 48
#     otherwise                         value: place in the pool     more: place in long_words | number << 48 | IN_POOL
IN_POOL = u64(1 << 63)
N_IDS_SHIFT, N_IDS_MASK = u64(48), u64(2**15 - 1)


@struct
class _Workspace:
    """What one thread encodes with: tables, and memory that is used again, since fresh memory would double its time."""

    tables: BpeTables  # or those of another kind of model
    table: ScanTable
    special: _SpecialTable
    lanes: np.ndarray  # see Scan
    marks: np.ndarray
    keys: np.ndarray  # uint64[4 * KEYS], see _word_keys
    scratch: np.ndarray  # uint64[…], for one word
    words: _WordTable  # the cache
    pool: np.ndarray  # uint32[…], ids of words that have more than three, or are long
    n_ends: int  # that were written
    n_texts: int  # that have ended
    n_pooled: int
    max_entries: int  # of the cache


@kernel
def _renew_cache(workspace):
    """Let the cache grow by four or, at its limit, forget all words.

    To forget some, by buckets of two, gave 130,000 needless misses in a second pass of 100 MB of English.
    """
    words = workspace.words
    n_entries = len(words.entries)
    if n_entries < workspace.max_entries and 2 * words.n_words >= n_entries:
        _resize(words, min(4 * n_entries, workspace.max_entries))
    else:
        words.entries = _new_entries(n_entries)
        words.n_words = words.n_long_bytes = workspace.n_pooled = 0


@inline_kernel
def _store_ids(workspace, entry, pool, is_long, n, ids, at):
    """Put n ids, ids[at :], into an entry of the cache that has its key, or into the pool; there must be room."""
    if n <= 3 and not is_long:
        value, more = u64(ids[at]), u64(0)
        if n > 1:
            value |= u64(ids[at + 1]) << u64(32)
        if n > 2:
            more = u64(ids[at + 2])
    else:
        first = workspace.n_pooled
        value, more = u64(first), entry[MORE] | IN_POOL
        for i in range(n):
            pool[first + i] = ids[at + i]
        workspace.n_pooled = first + n
    entry[VALUE], entry[MORE] = value, more | u64(n) << N_IDS_SHIFT


@inline_kernel
def _copy_ids(value, more, pool, ids, at):
    """Write the ids of an entry of the cache, for which there must be room, and for three in any case."""
    n = more >> N_IDS_SHIFT & N_IDS_MASK
    if more & IN_POOL:
        for i in range(n):
            ids[at + u64(i)] = pool[value + u64(i)]
    else:
        ids[at], ids[at + u64(1)], ids[at + u64(2)] = value & LOW_HALF, value >> u64(32), more & LOW_HALF
    return at + n


@kernel
def _encode_words(workspace, text, scanned, meanings, ids, id_stops, at):
    """Write the ids of a batch of words; returns where they end, or -1 - start of a word that has no ids.

    There must be room for two ids more. The inner loop is the hot one: it copies the ids of words that are in the
    cache, in the slot where they belong; if it looked for them in others, too, it would take 1.1 times as long. It is
    no kernel of its own, which would be called for each other word.
    """
    words, lanes, scratch, tables = workspace.words, workspace.lanes, workspace.scratch, workspace.tables
    start, ends, keys, pool = lanes[0, FIRST], lanes[0, ENDS:], workspace.keys, workspace.pool
    n, class_of, dropped = lanes[0, N_ENDS], workspace.table.class_of, workspace.table.dropped
    entries, long_words = words.entries, words.long_words
    flat = entries.reshape(-1)  # whose index is a shift, not a product with a stride
    k = n_keyed = base = 0
    while k < n:
        if k >= n_keyed:
            base, n_keyed = k, min(k + KEYS, n)
            _word_keys(text, ends[k - 1] if k else start, ends[k:], n_keyed - k, entries, keys)
        out, key, stop = u64(at), u64(4 * (k - base)), u64(4 * (n_keyed - base))
        while key < stop:
            first, high = u64(4) * keys[key + u64(2)], keys[key + u64(1)]
            value, more = flat[first + u64(VALUE)], flat[first + u64(MORE)]
            if (flat[first] ^ keys[key]) | (flat[first + u64(1)] ^ high):
                break
            if more & IN_POOL and high >= LONG:  # as the ids of long words are: most others need one look only
                j = base + i64(key >> u64(2))
                begin = ends[j - 1] if j else start
                if not _equal(text, begin, long_words, i64(more & IN_LONG_WORDS), i64(high & ~LONG)):
                    break
            out = _copy_ids(value, more, pool, ids, out)
            key += u64(4)
        at, k = i64(out), base + i64(key >> u64(2))
        if key == stop:
            continue
        begin = ends[k - 1] if k else start
        if scanned[begin] == END:
            meaning = meanings[workspace.n_ends]
            workspace.n_ends += 1
            if meaning >= 0:
                ids[at] = meaning
                at += 1
            elif meaning == BEGINS:
                id_stops[workspace.n_texts] = at
                workspace.n_texts += 1
            k += 1
            continue
        size = ends[k] - begin
        low, high, home = keys[key], keys[key + u64(1)], keys[key + u64(2)]
        if low == u64(END) and high == END_KEY:
            high = REAL_END_KEY
            home = _home_slot(low, high, len(entries))
        slot = _find_slot(entries, long_words, low, high, home, text, begin)
        if entries[slot, 1]:
            at, k = i64(_copy_ids(entries[slot, VALUE], entries[slot, MORE], pool, ids, u64(at))), k + 1
            continue
        is_dropped = _is_dropped(text, begin, ends[k], class_of, dropped)
        n_ids = 0 if is_dropped else _segment(text, begin, size, tables, scratch, ids, at)
        if n_ids < 0:
            return -1 - begin
        if size <= min(MAX_CACHED_BYTES, len(pool) >> 4):
            while (  # entries that are more do not give room for ids, or for long words
                2 * words.n_words >= len(entries) < workspace.max_entries
                or 4 * words.n_words >= 3 * len(entries)
                or workspace.n_pooled + n_ids > len(pool)
                or words.n_long_bytes + size + PADDING > len(long_words)
            ):
                _renew_cache(workspace)
                entries = words.entries
                flat = entries.reshape(-1)
                slot = _find_slot(entries, long_words, low, high, _home_slot(low, high, len(entries)), text, begin)
                n_keyed = k + 1  # for the others have other home slots
            _store_key(words, entries, long_words, slot, low, high, text, begin)
            _store_ids(workspace, entries[slot], pool, high >= LONG, n_ids, ids, at)
        at += n_ids
        k += 1
    return at


@kernel
def _set_special(workspace, special):
    """Let a workspace look for other special tokens: as an argument of each call they would cost 1.5 µs."""
    workspace.special = special


@kernel
def _encode_flat(workspace, text, scanned, meanings, ids, id_stops):
    """Write the ids of a flat text, and where those of each of its texts end; returns where all end.

    There must be room for as many ids as the text has bytes, and two more. Returns -1 - start of a word that has none.
    """
    lanes, marks, table, at = workspace.lanes, workspace.marks, workspace.table, i64(0)
    stop = _begin_scan(text, lanes)
    workspace.n_ends = workspace.n_texts = 0
    while lanes[0, POSITION] < stop and at >= 0:
        scanned = _scan_batch(scanned, stop, table, lanes, marks)
        at = _encode_words(workspace, text, scanned, meanings, ids, id_stops, at)
    return at


@kernel
def _encode_texts(workspace, data, stops, ids):
    """Encode texts that lie end to end in some bytes, and write over the end of each that of its ids; see above."""
    special = workspace.special
    text, has_end = _copy_texts(data, stops, i64(END))
    ends, meanings = np.empty(len(stops), np.int64), np.empty(len(stops), np.int64)
    for t in range(len(stops)):
        ends[t], meanings[t] = stops[t] + t, BEGINS
    text, found, _ = _cut_at_special(text, ends, meanings, special)
    scanned = text
    if has_end:
        scanned, _ = _copy_texts(data, stops, i64(INVALID_BYTE))
        scanned, _, _ = _cut_at_special(scanned, ends, meanings, special)
    return _encode_flat(workspace, text, scanned, found, ids, stops)


@kernel
def _join_tokens(ids, tokens):
    """Join the bytes of tokens; returns them, and -1, or the first index in `ids` of what is no id."""
    text, starts, sizes = tokens
    total = 0
    for k in range(len(ids)):
        id = i64(ids[k])
        if id >= len(sizes) or sizes[id] < 0:
            return text[:0], k
        total += sizes[id]
    out, at = np.empty(total + PADDING, np.uint8), 0
    for k in range(len(ids)):
        start, size = starts[ids[k]], sizes[ids[k]]
        store_u64(out, at, load_u64(text, start))
        store_u64(out, at + 8, load_u64(text, start + 8))
        for i in range(16, size):
            out[at + i] = text[start + i]
        at += size
    return out[:total], -1


# ─── WordPiece ────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A word is cut from the left into the longest tokens that there are. Behind its beginning they are those that have the
# prefix, "##", and are matched without it.


@struct
class WordPieceTables:
    """The tokens that may begin a word, and those that may continue it."""

    beginning: _Trie  # all tokens as they are: a "##" in the text is only text
    continuing: _Trie  # those with the prefix, without it
    unknown: int  # the id of a word that cannot be cut, or -1
    max_chars: int  # of a word; longer ones are unknown


def wordpiece_tables(model: Model) -> WordPieceTables:
    """Make the tables by which `segment_wordpiece` cuts words as a model does."""
    prefix, tokens = model.subword_prefix.encode(), {id: model.vocab[id] for id in model.ordinary}
    continuing = {id: token[len(prefix) :] for id, token in tokens.items() if token.startswith(prefix)}
    continuing = continuing if model.kind == "wordpiece" else {}  # then a token is a whole word
    unknown = -1 if model.unk_token is None else model.ids.get(model.unk_token.encode(), -1)
    return WordPieceTables(make_trie(tokens), make_trie(continuing), unknown, model.max_word_chars)


@kernel
def _is_longer(text, start, stop, n):
    """Check whether text[start : stop] has more than n characters."""
    for k in range(start, stop):
        n -= text[k] & 0xC0 != 0x80
    return n < 0


@kernel
def segment_wordpiece(text, start, size, tables, scratch, ids, at):
    """Cut the word text[start : start + size] into ids[at :]; returns their number, or -1 if it has no id.

    Tokens are whole characters; so words are cut between characters, too, and what is not UTF-8 is unknown.
    """
    position, stop, n, trie = start, start + size, 0, tables.beginning
    is_unknown = _is_longer(text, start, stop, tables.max_chars)
    while position < stop and not is_unknown:
        node, end, found = i64(0), position, -1
        for k in range(position, stop):
            node = _trie_child(node, text[k], trie.edges)
            if node < 0:
                break
            if trie.values[node] >= 0:
                end, found = k + 1, trie.values[node]
        ids[at + n], is_unknown = max(found, 0), found < 0
        position, n, trie = end, n + 1, tables.continuing
    if is_unknown:
        ids[at], n = max(tables.unknown, 0), 1 if tables.unknown >= 0 else -1
    return n


class LearnedWordPiece(NamedTuple):
    """Merges in the order in which they were made. Symbols 0 to A - 1 are the alphabet; merge k makes symbol A + k.

    >>> learned = learn_wordpiece(Words.from_counts({b"aab": 3, b"b": 1}), 5)
    >>> learned.tokens, learned.pairs.tolist()
    ([b'a', b'b', b'##a', b'##b', b'aa'], [[0, 2]])
    """

    pairs: np.ndarray  # int32[M, 2]      the two symbols joined
    counts: np.ndarray  # int64[M]        occurrences of the pair in the corpus when it was merged
    n_tokens: np.ndarray  # int64[M + 1]  symbols in the corpus before the first merge, and after each
    alphabet: Sequence[bytes]  # first those that begin words, then those that continue them, with the prefix
    prefix: bytes

    merges = None  # WordPiece does not merge

    @property
    def tokens(self) -> list[bytes]:
        """Spell the tokens, with the prefix where they continue words; what is spelled in two ways comes once."""
        tokens = list(self.alphabet)
        for left, right in self.pairs.tolist():
            tokens.append(tokens[left] + tokens[right][len(self.prefix) :])
        return list(dict.fromkeys(tokens))


def _mark_continuing(words: Words, prefix: str) -> tuple[Words, int]:
    """Give symbols that continue words numbers of their own; returns words, and how many symbols begin words.

    All characters are among those that may begin words, as Hugging Face's trainer has it. Both parts of the alphabet
    are sorted, by bytes, which for UTF-8 is by code point.
    """
    a = len(words.alphabet)
    order = np.array(sorted(range(a), key=words.alphabet.__getitem__), np.int64)
    marked = np.argsort(order)[words.symbols] + (a if prefix else 0)
    marked[words.offsets[:-1][np.diff(words.offsets) > 0]] %= a
    present = np.zeros(2 * a, bool)
    present[marked] = present[marked % a] = True
    symbols = (np.cumsum(present) - 1)[marked].astype(np.int32)
    alphabet = [words.alphabet[k] for k in order[np.flatnonzero(present) % a]]
    return words._replace(symbols=symbols, alphabet=alphabet), int(np.count_nonzero(present[:a]))


def learn_wordpiece(
    words: Words,
    n_symbols: int,
    *,
    score: str = "likelihood",
    min_frequency: int = 1,
    prefix: str = "##",
    progress: bool = False,
) -> LearnedWordPiece:
    """Learn tokens of characters, of which those that continue words have a prefix; n_symbols with the alphabet.

    The pair merges that has the greatest score: "count", its occurrences, as Hugging Face's WordPieceTrainer does it,
    with ties by ids; or "likelihood", count(ab) / (count(a) * count(b)) in float64, for the symbols that go together
    most (after Schuster and Nakajima 2012, "Japanese and Korean Voice Search"). Of equal scores the greater count goes
    first, then the greater bytes, without the prefix, left then right; of equal bytes what begins words. No pair merges
    that occurs less than `min_frequency` times: the likelihood alone prefers what occurs once.

    `words` hold plain characters; the alphabet is those that occur, and again, with the prefix, those that occur
    behind the first of a word. Their order, by bytes, decides about ties; Hugging Face's order of the latter is
    random, so that of tokens of equal counts theirs may have others. Raises InputError where there are no words, and
    where the alphabet has more than n_symbols.

    >>> words = Words.from_counts({b"low": 5, b"lower": 2, b"newest": 6, b"widest": 3})
    >>> learn_wordpiece(words, 20, score="count").tokens[-3:]
    [b'##w', b'##es', b'##est']
    """
    require_known("`score`", score, ("likelihood", "count"))
    marked, n_beginning = _mark_continuing(words, prefix)
    tie_break = "ids" if score == "count" else "bytes"
    learned = _run_learner(marked, n_symbols, tie_break, min_frequency, progress, score == "likelihood")
    alphabet = [prefix.encode() * (k >= n_beginning) + letter for k, letter in enumerate(marked.alphabet)]
    return LearnedWordPiece(*learned[:3], alphabet, prefix.encode())


# ─── Unigram ──────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A unigram model gives each token a probability, whatever is beside it; a way to cut a word is as probable as the
# product of its tokens (Kudo 2018, "Subword Regularization"). A *score* is the logarithm of a probability. All ways to
# cut a word are the paths through its *lattice*: a node before each character and behind the last one, and an edge for
# each token that is found there.
#
# While learning, tokens are only taken away: so of the tokens that begin at a place in the words only the longest is
# kept by place, and by token the next shorter one, which begins at the same places. The last one of such a chain is the
# character itself, which is always a token. With 0 and 1 for "a" and "b" and 2 for "ab", the word "aba" is
#
#     longest    2    1    0            shorter of 2    0        of 0 and 1    -1

MAX_TOKEN_CHARS = 64
SUB_ITERATIONS, SHRINKING_FACTOR = 2, 0.75  # as in SentencePiece
LATTICE_PARTS = 8  # that threads may work at; their number is fixed, since sums of floats depend on it
TINY, HUGE = 2.0**-100, 2.0**100  # probabilities below are scaled up, so that words of any length have one
LEAST_EXPECTED = 0.5  # times that a token is expected in the corpus; what is rarer is dropped, as in SentencePiece


class LearnedUnigram(NamedTuple):
    """Tokens with their scores, the best first.

    >>> learned = learn_unigram(Words.from_counts({b"abab": 9, b"ab": 5, b"ba": 1}), 258)
    >>> learned.tokens[:2], learned.scores[:2].round(2).tolist(), learned.merges
    ([b'abab', b'ab'], [-2.88, -3.27], None)
    """

    tokens: list[bytes]
    scores: np.ndarray  # float64[V]   logarithms of probabilities
    likelihoods: list[float]  # the logarithm of the corpus's probability in each round, before tokens were taken away
    alphabet: Sequence[bytes]

    merges = None


class _Lattice(NamedTuple):
    """The lattices of words, see above. A token has a greater number than the next shorter one."""

    longest: np.ndarray  # int32[N]      by place in the symbols: the longest token that begins there
    shorter: np.ndarray  # int32[V]      by token: the next shorter one, or -1
    sizes: np.ndarray  # int32[V]        in characters
    places: np.ndarray  # int64[V]       one where it begins
    offsets: np.ndarray  # int64[W + 1]  and
    counts: np.ndarray  # int64[W]       those of Words


@kernel
def _number_keys(keys):
    """Number keys below 2**63 in the order in which they are first seen, by a hash table: int64[N]."""
    n_slots, n = 1, 0
    while 3 * n_slots <= 4 * len(keys):
        n_slots *= 2
    table, mask = _on_huge_pages(np.empty((n_slots, 2), np.int64)), u64(n_slots - 1)
    for slot in range(n_slots):
        table[slot, 0] = -1
    numbers = np.empty(len(keys), np.int64)
    for k in range(len(keys)):
        prefetch(table, u64(2) * (_mix(u64(keys[min(k + 16, len(keys) - 1)]), u64(0)) & mask))
        slot = _mix(u64(keys[k]), u64(0)) & mask
        while table[slot, 0] >= 0 and table[slot, 0] != keys[k]:
            slot = (slot + u64(1)) & mask
        if table[slot, 0] < 0:
            table[slot, 0], table[slot, 1] = keys[k], n
            n += 1
        numbers[k] = table[slot, 1]
    return numbers


def _list_substrings(words: Words, longest: int) -> tuple[_Lattice, np.ndarray, np.ndarray]:
    """List the symbols of the alphabet, and the substrings of up to so many symbols that occur twice or more.

    Returns lattices with all of them, how often they occur, and how often the most frequent of those does that are
    longer by one symbol. Substrings are grown by a symbol at a time, and only where they occur twice.
    """
    a, sizes, alive = len(words.alphabet), np.diff(words.offsets), np.arange(len(words.symbols))
    counts, ends, found = np.repeat(words.counts, sizes), np.repeat(words.offsets[1:], sizes), words.symbols.copy()
    levels = [(np.full(a, -1), np.zeros(a, np.int64), np.bincount(words.symbols, counts, a))]
    n, n_levels = a, [a]
    for size in range(1, longest + 1):
        alive = alive[alive + size < ends[alive]]
        numbers = _number_keys(found[alive].astype(np.int64) << 32 | words.symbols[alive + size])
        totals = np.bincount(numbers, counts[alive])
        ids = np.cumsum(totals > 1) - 1
        repeated = (totals > 1)[numbers]
        alive, ids, totals = alive[repeated], ids[numbers[repeated]], totals[totals > 1]
        places = np.empty(len(totals), np.int64)
        places[ids] = alive
        levels.append((found[places], places, totals))
        found[alive] = n + ids
        n += len(totals)
        n_levels.append(len(totals))
    shorter, places, totals = map(np.concatenate, zip(*levels, strict=True))
    longer = np.zeros(n + 1)
    np.maximum.at(longer, shorter, totals)
    sizes = np.repeat(np.arange(1, longest + 2, dtype=np.int32), n_levels)
    return _Lattice(found, shorter.astype(np.int32), sizes, places, *words[1:3]), totals, longer[:n]


@kernel
def _expect(lattice, first, stop, probabilities):
    """Compute how often each token is expected in some words, and the logarithm of their probability.

    Forward and backward over each word. `backward` has the count and the probability of the whole word in it, so that
    forward * probability * backward is what an edge adds. What falls below TINY is scaled, with the nodes that tokens
    reach from there; on the way back at the same nodes.
    """
    longest, shorter, sizes, _, offsets, counts = lattice
    table = _on_huge_pages(np.empty((len(sizes), 2), np.float64))  # in one cache line: probability and expectation
    for id in range(len(sizes)):
        table[id, 0], table[id, 1] = probabilities[id], 0.0
    reach, likelihood, nodes = i64(sizes.max()), 0.0, np.empty((64, 2), np.float64)
    scaled = np.empty(64, np.bool_)
    for w in range(first, stop):
        start, n, n_scaled = offsets[w], offsets[w + 1] - offsets[w], 0
        if n >= len(scaled):
            nodes, scaled = np.empty((2 * n, 2), np.float64), np.empty(2 * n, np.bool_)
        forward, backward = nodes[:, 0], nodes[:, 1]
        for k in range(n + 1):
            forward[k] = 0.0
        forward[0] = 1.0
        for k in range(n):
            prefetch(table, 2 * longest[min(start + k + 16, len(longest) - 1)])
            scaled[k] = forward[k] < TINY
            if scaled[k]:
                n_scaled += 1
                for i in range(k, min(k + reach, n + 1)):
                    forward[i] *= HUGE
            id = i64(longest[start + k])
            while id >= 0:
                forward[k + i64(sizes[id])] += forward[k] * table[id, 0]
                id = i64(shorter[id])
        likelihood += counts[w] * (np.log(forward[n]) - n_scaled * np.log(HUGE))
        backward[n] = counts[w] / forward[n]
        for k in range(n - 1, -1, -1):
            id, backward[k] = i64(longest[start + k]), 0.0
            while id >= 0:
                onward = table[id, 0] * backward[k + i64(sizes[id])]
                backward[k] += onward
                table[id, 1] += forward[k] * onward
                id = i64(shorter[id])
            if scaled[k]:
                for i in range(k, min(k + reach, n + 1)):
                    backward[i] *= HUGE
    return table[:, 1].copy(), likelihood


@kernel
def _losses(lattice, n_alphabet, scores, expected):
    """Compute by how much the corpus becomes less probable without each token, as SentencePiece estimates it.

    All expected occurrences of a token become those tokens into which its own characters are best cut without it
    (Viterbi). -inf for a token that is never expected, or is cut itself; inf for the alphabet.
    """
    longest, shorter, sizes, places, _, _ = lattice
    losses, total = np.full(len(scores), -np.inf), expected.sum()
    best, last = np.empty(MAX_TOKEN_CHARS + 1), np.empty(MAX_TOKEN_CHARS + 1, np.int64)
    for id in range(len(scores)):
        n, count = i64(sizes[id]), expected[id]
        if id < n_alphabet:
            losses[id] = np.inf
            continue
        if count == 0:
            continue
        for k in range(1, n + 1):
            best[k] = -np.inf
        best[0] = 0.0
        for k in range(n):
            other = i64(longest[places[id] + k] if k else shorter[id])
            while other >= 0:
                end = k + i64(sizes[other])
                if end <= n and best[k] + scores[other] > best[end]:
                    best[end], last[end] = best[k] + scores[other], other
                other = i64(shorter[other])
        if best[n] > scores[id]:
            continue
        n_others, others = 0, 0.0
        while n > 0:
            others += np.log(expected[last[n]] + count)
            n_others += 1
            n -= i64(sizes[last[n]])
        others -= n_others * np.log(total + count * (n_others - 1))
        losses[id] = count * (np.log(count / total) - others)
    return losses


def _digamma(x: np.ndarray) -> np.ndarray:
    """Compute the derivative of the logarithm of the gamma function, by its recurrence and its series."""
    y = x + 6.5
    z = 1 / (y * y)
    series = np.log(y) + z * (1 / 24 - z * (7 / 960 - z * (31 / 8064 - z * 127 / 30720)))
    return series - sum(1 / (x + k) for k in range(7))


@kernel
def _fall_back(new_ids, shorter):
    """Give each token that has no new id, which is -1, that of the longest shorter one that has one, in place."""
    for id in range(len(shorter)):
        if new_ids[id] < 0:
            new_ids[id] = new_ids[shorter[id]]


def _best_first(values: np.ndarray, n: int) -> np.ndarray:
    """Find the indices of the n greatest values, the greatest first; of equal ones the first."""
    return np.argsort(-values, kind="stable")[:n]


class _UnigramLearner:
    """Hold the tokens that are left, their probabilities, and the lattices of the words."""

    def __init__(self, words: Words, seed_size: int, longest: int):
        """Begin with the alphabet and the substrings with the greatest number of characters times occurrences.

        A substring that cannot be longer without being rarer stands for those in it that are as frequent.
        """
        self.words, self.n_alphabet = _in_order(words), len(words.alphabet)  # so sums of floats are rounded alike
        self.lattice, totals, longer = _list_substrings(self.words, longest)
        sizes, a = self.lattice.sizes, self.n_alphabet
        weights = np.where((totals > longer) & (sizes <= longest), sizes * totals, 0.0)
        weights[:a] = np.maximum(totals[:a], LEAST_EXPECTED)
        seeds = a + _best_first(weights[a:], min(seed_size, np.count_nonzero(weights[a:])))
        self.probabilities = weights
        self.keep(np.append(np.arange(a), np.sort(seeds)))
        self.probabilities /= self.probabilities.sum()

    @property
    def n_tokens(self) -> int:
        return int(np.count_nonzero(self.probabilities))

    @property
    def scores(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(self.probabilities)

    def keep(self, kept: np.ndarray) -> None:
        """Forget all tokens but these, in their order; the alphabet must be among them."""
        longest, shorter, sizes, places, *_ = self.lattice
        new_ids = np.full(len(sizes) + 1, -1, np.int32)  # the last one is for the -1 behind the shortest
        new_ids[kept] = np.arange(len(kept))
        _fall_back(new_ids, shorter)
        arrays = new_ids[longest], new_ids[shorter[kept]], sizes[kept], places[kept]
        self.lattice = _Lattice(*arrays, *self.lattice[4:])
        self.probabilities = self.probabilities[kept]

    def expect(self) -> tuple[np.ndarray, float]:
        """Compute how often each token is expected, and the logarithm of the probability of the corpus."""
        bounds = np.linspace(0, len(self.words.counts), LATTICE_PARTS + 1).astype(np.int64).tolist()
        parts = Engine().map(
            lambda part: _expect(self.lattice, *part, self.probabilities), itertools.pairwise(bounds), threads=True
        )
        expected, likelihoods = zip(*parts, strict=True)
        return sum(expected), sum(likelihoods)

    def maximize(self) -> float:
        """Make one step of expectation maximization; returns the logarithm of the probability of the corpus before.

        The digamma function instead of the logarithm prefers few tokens (Liang and Klein 2007, "Structured Bayesian
        Nonparametric Models with Variational Inference"); SentencePiece does so.
        """
        expected, likelihood = self.expect()
        expected[: self.n_alphabet] = np.maximum(expected[: self.n_alphabet], LEAST_EXPECTED)
        self.expected = np.where(expected < LEAST_EXPECTED, 0.0, expected)
        scores = _digamma(np.maximum(expected, LEAST_EXPECTED)) - _digamma(self.expected.sum())
        self.probabilities = np.where(self.expected > 0, np.exp(scores), 0.0)
        return likelihood

    def prune(self, n: int) -> None:
        """Keep the alphabet and the n tokens, together, whose loss would cost the most."""
        losses = _losses(self.lattice, self.n_alphabet, self.scores, self.expected)
        self.keep(np.sort(_best_first(losses, min(n, np.count_nonzero(losses > -np.inf)))))

    def spell(self, id: int) -> bytes:
        """Return the bytes of a token."""
        if id < self.n_alphabet:
            return self.words.alphabet[id]
        start = self.lattice.places[id]
        symbols = self.words.symbols[start : start + self.lattice.sizes[id]].tolist()
        return b"".join(self.words.alphabet[symbol] for symbol in symbols)


def learn_unigram(
    words: Words, n_symbols: int, *, seed_size: int = 1_000_000, max_piece_length: int = 16, progress: bool = False
) -> LearnedUnigram:
    """Learn a vocabulary of `n_symbols` tokens, with those of the alphabet, and their probabilities (Kudo 2018).

    Begins with the `seed_size` substrings of up to `max_piece_length` symbols that cover the most of the corpus. Each
    round fits the probabilities in SUB_ITERATIONS steps of expectation maximization, and keeps the part
    SHRINKING_FACTOR of the tokens: those without which the corpus would be the least probable, and the alphabet. The
    last tenth goes by probability. So does SentencePiece, whose seeds are taken from the text before it is cut into
    words. Fewer tokens are returned where the words have no more. Raises InputError where there are no words, or an
    option cannot be.

    >>> words = Words.from_counts({b"low": 5, b"lower": 2, b"newest": 6, b"widest": 3})
    >>> learned = learn_unigram(words, 260)
    >>> sorted(learned.tokens, key=len)[-4:], len(learned.likelihoods)
    ([b'low', b'lower', b'newest', b'widest'], 1)
    """
    n, a = _check_words(words, n_symbols)
    require(n < 2**31, "words of 2**31 symbols are too many")
    limits = {"seed_size": (0, seed_size, 1 << 25), "max_piece_length": (1, max_piece_length, MAX_TOKEN_CHARS)}
    for name, (least, value, most) in limits.items():
        require(least <= value <= most, f"{name} is {value}: it must be {least} to {most:,}")
    learner = _UnigramLearner(words, seed_size, max_piece_length)
    goal, likelihoods = max(n_symbols * 11 // 10, a), []
    with Engine(progress=progress).progress_bar("prune", max(learner.n_tokens - goal, 0), " tokens") as bar:
        while True:
            for _ in range(SUB_ITERATIONS):
                likelihood = learner.maximize()
            likelihoods.append(likelihood)
            n = learner.n_tokens
            if n <= goal:
                break
            learner.prune(max(goal, int(SHRINKING_FACTOR * n)))
            bar.update(n - learner.n_tokens)
    scores = learner.scores
    rest = a + _best_first(scores[a:], n_symbols - a)
    chosen = np.append(np.arange(a), rest[scores[rest] > -np.inf])
    chosen = chosen[_best_first(scores[chosen], len(chosen))]
    return LearnedUnigram([learner.spell(id) for id in chosen.tolist()], scores[chosen], likelihoods, words.alphabet)


UNKNOWN_PENALTY = 10.0  # an unknown character scores so much less than the worst token
EDGE_BITS, EDGE_MASK = 24, (1 << 24) - 1  # of an edge: node << 24 | id; nodes are offsets in bytes from a word's start


@struct
class UnigramTables:
    """Tokens, and what they score."""

    trie: _Trie
    scores: np.ndarray  # float64[V + 1]  by id; the last is that of an unknown character
    byte_ids: np.ndarray  # int32[256]    the tokens "<0x00>" to "<0xFF>", or -1
    longest: int  # bytes of a token
    unk_id: int  # -1 if there is none
    fuse_unk: bool


def unigram_tables(model: Model) -> UnigramTables:
    """Make the tables by which `segment_unigram` cuts words as a model says.

    A token whose score is -inf is never chosen. Raises InputError if all are.

    Scores are summed in float64, each word on its own, as by Hugging Face. SentencePiece sums them in float32 over a
    whole text, so that how a sum is rounded, by what is before a word, may decide between two paths that score nearly
    the same, as "9" + "99" and "99" + "9": there it may choose the other one.
    """
    ids, scores, id_of = np.array(model.ordinary, np.int64), model.scores, model.ids
    chosen = ids[scores[ids] > -np.inf]
    require(len(chosen), "a unigram model needs tokens with scores")
    tokens = {id: model.vocab[id] for id in chosen.tolist()}
    byte_ids = np.array([id_of.get(token, -1) if model.byte_fallback else -1 for token in _FALLBACK_TOKENS], np.int32)
    unk_id = -1 if model.unk_token is None else id_of[model.unk_token.encode()]
    scores = np.append(scores.astype(np.float64), scores[chosen].min() - UNKNOWN_PENALTY)
    return UnigramTables(make_trie(tokens), scores, byte_ids, max(map(len, tokens.values())), unk_id, model.fuse_unk)


@inline_kernel
def _list_edges(text, start, node, size, edges, values, unknown, found):
    """List the edges from a node of a word, as end << EDGE_BITS | id; returns their number and the next node.

    They are the tokens that begin there, from the shortest on, and the character alone, if it is none of them. A byte
    that is not UTF-8 is such a character.
    """
    position, stop = start + node, start + size
    width = i64(1) if text[position] < 0x80 else _decode_character(text, position, stop) & 7
    state, end, n, is_known = i64(0), position, 0, False
    while end < stop:
        state = _trie_child(state, text[end], edges)
        if state < 0:
            break
        end += 1
        if values[state] >= 0:
            found[n] = (end - start) << EDGE_BITS | i64(values[state])
            n += 1
            is_known |= end == position + width
    if not is_known:
        found[n] = (node + width) << EDGE_BITS | unknown
        n += 1
    return n, node + width


@kernel
def _write_path(text, start, size, tables, last, ids, at):
    """Write the ids of the path that ends with the edge last[size], start << EDGE_BITS | id; returns their number.

    Unknown characters in a row, and unknown tokens that a text names, are one token if `fuse_unk` says so. They become
    the tokens of their bytes, if these all have one; without an unknown token the result is -1.
    """
    unknown, unk_id, byte_ids, n, node = len(tables.scores) - 1, tables.unk_id, tables.byte_ids, 0, size
    while node > 0:
        stop, id = node, last[node] & EDGE_MASK
        node = last[node] >> EDGE_BITS
        while tables.fuse_unk and id in (unknown, unk_id) and node > 0 and last[node] & EDGE_MASK in (unknown, unk_id):
            node, id = last[node] >> EDGE_BITS, unknown
        have_ids = id == unknown
        for k in range(start + node, start + stop):
            have_ids &= byte_ids[text[k]] >= 0
        if have_ids:
            for k in range(stop - 1, node - 1, -1):
                ids[at + n] = byte_ids[text[start + k]]
                n += 1
            continue
        if id == unknown:
            id = unk_id
        if id < 0:
            return -1
        ids[at + n] = id
        n += 1
    for k in range(n >> 1):  # they were written from the end of the word
        ids[at + k], ids[at + n - 1 - k] = ids[at + n - 1 - k], ids[at + k]
    return n


@kernel
def segment_unigram(text, start, size, tables, scratch, ids, at):
    """Cut the word text[start : start + size] into the ids of its best path, ids[at :] (Viterbi); see `_write_path`.

    Of paths with equal sums the one with the longest last edge is taken.
    """
    edges, values, scores = tables.trie.edges, tables.trie.values, tables.scores
    unknown, found, node = len(scores) - 1, np.empty(tables.longest + 1, np.int64), 0
    best, last = np.full(size + 1, -np.inf), np.empty(size + 1, np.int64)
    best[0] = 0.0
    while node < size:
        n, following = _list_edges(text, start, node, size, edges, values, unknown, found)
        for k in range(n):
            end, total = found[k] >> EDGE_BITS, best[node] + scores[found[k] & EDGE_MASK]
            if total > best[end]:
                best[end], last[end] = total, node << EDGE_BITS | (found[k] & EDGE_MASK)
        node = following
    return _write_path(text, start, size, tables, last, ids, at)


@kernel
def sample_unigram(text, start, size, tables, alpha, state, ids, at):
    """Cut a word at random: the probability of a path is in proportion to exp(alpha * score); see `segment_unigram`.

    Sums the probabilities of all paths to each node, and keeps a last edge: each one that comes replaces the one before
    it with the probability of its share in the sum (Chao 1982, "A general purpose unequal probability sampling plan").
    """
    edges, values, scores = tables.trie.edges, tables.trie.values, tables.scores
    unknown, found, node = len(scores) - 1, np.empty(tables.longest + 1, np.int64), 0
    sums, last = np.full(size + 1, -np.inf), np.empty(size + 1, np.int64)
    sums[0] = 0.0
    while node < size:
        n, following = _list_edges(text, start, node, size, edges, values, unknown, found)
        for k in range(n):
            end, id = found[k] >> EDGE_BITS, found[k] & EDGE_MASK
            total = sums[node] + alpha * scores[id]
            sums[end] = np.logaddexp(sums[end], total)
            if _random(state) < np.exp(total - sums[end]):
                last[end] = node << EDGE_BITS | id
        node = following
    return _write_path(text, start, size, tables, last, ids, at)


# ─── Formats ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# A reader makes a Model of files, and raises InputError for what it cannot do. A writer makes texts by file name,
# and raises InputError if the format cannot represent the model: all but huggingface are read back and compared.
#
#     format         files                          cannot say
#     huggingface    tokenizer.json and two more    two texts of one id
#     gpt2           vocab.json, merges.txt         pattern, normalizer, flags, unknown tokens
#     tiktoken       .tiktoken, and a .json         merges in another order than that of ids, normalizer, flags
#     sentencepiece  tokenizer.model                pretokens, merges in an order that no scores give
#     bert           vocab.txt                      all but a WordPiece with BERT's own steps

LARGEST_FILE = 1 << 28  # bytes of a model file: o200k_base has 4 million, and the largest tokenizer.json some 40


def _read_limited(path: Path) -> bytes:
    """Read a model file; raises ValueError if it is too large to be one."""
    with open(path, "rb") as file:
        data = file.read(LARGEST_FILE + 1)
    require(len(data) <= LARGEST_FILE, f"{path}: has more than {LARGEST_FILE >> 20} MB, which is no tokenizer")
    return data


def _decode_utf8(data: bytes, where: str) -> str:
    """Decode a file; raises ValueError for bytes that are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 at byte {error.start}") from None


class Encoding(NamedTuple):
    """A rank file that was published, and what it does not say."""

    pattern: str
    special_tokens: Mapping[str, int]
    digest: str  # SHA-256 of the file


def _llama3_specials(names: Mapping[int, str]) -> dict[str, int]:
    """Number Llama 3's 256 special tokens; those without a name are reserved, with 0, 1, 2 …"""
    others = (f"reserved_special_token_{k}" for k in itertools.count())
    return {f"<|{names.get(k) or next(others)}|>": 128000 + k for k in range(256)}


_R50K = Encoding("gpt2", {"<|endoftext|>": 50256}, "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930")
_O200K = Encoding(
    "o200k",
    {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
)
_HARMONY = {2: "return", 3: "constrain", 5: "channel", 6: "start", 7: "end", 8: "message", 12: "call"}
_LLAMA3 = {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id", 9: "eot_id"}
_LLAMA31 = _LLAMA3 | {4: "finetune_right_pad_id", 8: "eom_id", 10: "python_tag"}
_LLAMA3_FILE = "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55"

# Facts of tiktoken 0.14 and of Llama 3's own code. In o200k_harmony the id 200018 has two texts.
ENCODINGS = {
    "gpt2": _R50K,
    "r50k_base": _R50K,
    "p50k_base": _R50K._replace(digest="94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "cl100k_base": Encoding(
        "cl100k",
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": _O200K,
    "o200k_harmony": _O200K._replace(
        special_tokens={"<|startoftext|>": 199998}
        | _O200K.special_tokens
        | {f"<|{_HARMONY.get(k, f'reserved_{200000 + k}')}|>": 200000 + k for k in range(1088)}
    ),
    "llama3": Encoding("llama3", _llama3_specials(_LLAMA3), _LLAMA3_FILE),
    "llama3.1": Encoding("llama3", _llama3_specials(_LLAMA31), _LLAMA3_FILE),
}


def read_json(data: bytes, where: str) -> dict:
    """Parse a JSON object; raises InputError for what is none."""
    text = _decode_utf8(data, where)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error})") from None
    require(isinstance(content, dict), f"{where}: not a JSON object")
    return content


def _read_beside(path: Path) -> dict:
    """Read the JSON object of a file that may be beside another; empty if it is not."""
    return read_json(_read_limited(path), str(path)) if path.is_file() else {}


def _to_json(data: object, indent: int | None = None) -> str:
    """Write JSON as a file has it."""
    return json.dumps(data, ensure_ascii=False, indent=indent) + "\n"


@contextlib.contextmanager
def naming_file(where: object) -> Iterator[None]:
    """Say in an error which file is wrong, or what cannot be done."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error) if str(where) in str(error) else f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: it is nested too deeply") from None


def _read_vocab(names: object, alphabet: str = "characters", texts: Iterable[str] = ()) -> dict[int, bytes]:
    """Read a vocabulary, name -> id; the names in `texts` are text in any alphabet."""
    require(isinstance(names, dict), "its vocabulary is not an object of tokens and ids")
    for name, id in names.items():
        if not _is_id(id):
            raise InputError(f"{name!r} has the id {json.dumps(id)}: {_ID_RANGE}")
    texts, names = {*texts}, {name: id for name, id in names.items() if name}  # no text becomes an empty token
    rest = iter(_read_names([name for name in names if name not in texts], alphabet))
    vocab = {id: name.encode("utf-8", "surrogatepass") if name in texts else next(rest) for name, id in names.items()}
    if len(vocab) < len(names):
        raise InputError(f"several tokens have the id {_repeated(names.values())}")
    return vocab


def _read_merges(pairs: list, alphabet: str = "bytes", odd: Collection[str] = ()) -> list[Merge]:
    """Read pairs of names, as lists or with a space between, but those in which one is odd."""
    names = []
    for number, pair in enumerate(pairs):
        match pair.split(" ") if isinstance(pair, str) else pair:
            case [str(left), str(right)] if left and right:
                names += () if left in odd or right in odd else (left, right)
            case _:
                raise InputError(f"merge {number}: {pair!r} is not a merge, two tokens with a space between them")
    tokens = _read_names(names, alphabet)
    return list(zip(tokens[::2], tokens[1::2], strict=True))


def _name_of(model: Model) -> Callable[[bytes], str]:
    """Choose how files name tokens: byte by byte, or as the text that they are."""
    return gpt2_name if model.alphabet == "bytes" else bytes.decode


def _vocab_names(model: Model) -> dict[str, int]:
    """Name the tokens as files do, by id; special tokens by their text."""
    ordinary, name_of = set(model.ordinary), _name_of(model)
    names: dict[str, int] = {}
    for id, token in sorted(model.vocab.items()):
        name = name_of(token) if id in ordinary else token.decode()
        if name in names:
            raise InputError(
                f"the ids {names[name]} and {id} would both be written as {name!r}: rename the special token"
            )
        names[name] = id
    return names


def _as_merges(model: Model) -> tuple[list[Merge], list[bytes]]:
    """List the merges, even if the model has ranks; and the tokens that only a look at whole pretokens finds."""
    if model.merges is not None and not model.ignore_merges:
        return model.merges, []
    if model.scores is not None:
        return _merges_by_score(model), []
    vocab, (ids, pairs) = model.vocab, last_merges(model)
    is_made = pairs[:, 0] >= 0
    merges = model.merges
    if merges is None:
        merges = [(vocab[left], vocab[right]) for left, right in pairs[is_made].tolist()]
    return merges, [vocab[id] for id in ids[~is_made].tolist()]


def _merges_by_score(model: Model) -> list[Merge]:
    """List the pairs of tokens that join to a token, the best score first, as transformers' converters do.

    Of equal scores the one whose left token is longest is first. So runs of spaces, which have equal scores in Llama 2,
    grow from the left, as SentencePiece merges them.
    """
    ids = {token.decode(): id for token, id in model.ordinary_ids.items()}
    splits = [(name, n) for name in ids for n in range(1, len(name)) if name[:n] in ids and name[n:] in ids]
    splits.sort(key=lambda split: (model.scores[ids[split[0]]], split[1], len(split[0])), reverse=True)
    return [(name[:n].encode(), name[n:].encode()) for name, n in splits]


def _require_same(model: Model, other: Model) -> None:
    """Raise InputError unless a model that a file gives back, `other`, has the same ids for all texts.

    The vocabulary and the steps around it must be equal. Merges, ranks and scores say the same if each token is made of
    the same two in the end, in the same order of tokens, and if those that are never made are looked up, or not, alike.
    """
    normalized = [AddedToken(normalized=True)] * len(model.special_tokens)
    if not model.normalizer and [*model.flags.values()] == normalized:  # which then says nothing
        model = dataclasses.replace(model, flags={})
    for field in ("kind", "alphabet", "vocab", "special_tokens", "flags", "normalizer", "decoder", "unk_token",
                  "byte_fallback", "fuse_unk", "subword_prefix", "word_suffix",
                  "max_word_chars", "pattern"):  # fmt: skip
        ours, theirs = getattr(model, field), getattr(other, field)
        if field == "pattern":
            ours, theirs = Pattern(ours).steps, Pattern(theirs).steps
        if ours != theirs:
            raise InputError(f"it cannot say the {field} {ours!r}, only {theirs!r}"[:300])
    if model.kind == "bpe":
        for id, *_ in _merging(model) ^ _merging(other):
            raise InputError(f"it would make the token {readable(model.vocab[id])!r} otherwise, or in another order")


def _merging(model: Model) -> set[tuple[int, ...]]:
    """Describe how tokens are made: of each the id, the two ids that it is made of, and its place in the order.

    Tokens that are never made are among them, with -1, if whole pretokens are looked up.
    """
    ids, pairs = last_merges(model)
    is_made, order = pairs[:, 0] >= 0, np.full(len(ids), -1)
    if model.merges is not None:
        place = {pair: k for k, pair in reversed([*enumerate(model.merges)])}
        made = [(model.vocab.get(left), model.vocab.get(right)) for left, right in pairs.tolist()]
        ranks = np.array([place.get(pair, -1) for pair in made])
    else:
        ranks = ids if model.scores is None else -model.scores[ids]
    order[is_made] = np.unique(ranks[is_made], return_inverse=True)[1]
    is_seen = is_made | model.ignore_merges | (model.merges is model.scores is None)
    return {*map(tuple, np.column_stack((ids, pairs, order))[is_seen].tolist())}


# GPT-2's vocab.json and merges.txt


def read_gpt2(
    vocab_path: Path, merges_path: Path, special_tokens: SpecialTokens = None, pattern: PatternSource = "gpt2"
) -> Model:
    """Read GPT-2's two files. If no special tokens are given, they are the tokens that no merge makes, bytes aside."""
    names = read_json(_read_limited(vocab_path), str(vocab_path))
    text = _decode_utf8(_read_limited(merges_path), str(merges_path)).rstrip()
    with naming_file(f"{vocab_path}, {merges_path.name}"):
        return _gpt2_model(names, re.sub(r"\A#version.*\s*", "", text).splitlines(), special_tokens, pattern)


def _gpt2_model(names: dict, lines: list[str], special_tokens: SpecialTokens, pattern: PatternSource) -> Model:
    """Make the model of GPT-2's vocabulary and lines of merges."""
    merges = _read_merges(lines)
    if special_tokens is None:
        made = {*_BYTE_NAMES, *(line.replace(" ", "") for line in lines)}
        special_tokens = [name for name in names if name and name not in made]
    special_tokens = special_tokens if isinstance(special_tokens, Mapping) else _check_texts(special_tokens)
    vocab = _read_vocab(names, "bytes", special_tokens)
    return Model(vocab, merges, special_tokens, pattern, drops_unknown=not {*BYTES} <= {*vocab.values()})


# The other one of GPT-2's two files
def _read_gpt2_pair(file: Path, special_tokens: SpecialTokens = None, pattern: PatternSource | None = None) -> Model:
    """Read one of GPT-2's two files, and the other, which is beside it."""
    for endings in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        for ending in filter(file.name.endswith, endings):
            files = [file.with_name(file.name.removesuffix(ending) + other) for other in endings]
            for part in files:
                require(part.is_file(), f"{file}: of GPT-2's files, a vocabulary and merges, {part} is missing")
            return read_gpt2(*files, special_tokens, pattern or "gpt2")
    raise InputError(f"{file}: one of GPT-2's two files, whose names end in vocab.json and merges.txt")


@naming_file("GPT-2's files cannot hold this tokenizer")
def write_gpt2(model: Model) -> dict[str, str]:
    """Write vocab.json and merges.txt, from which `read_gpt2` makes the same ids if it is told the pattern."""
    marks = any(isinstance(step, Metaspace) for step in Pattern(model.pattern).steps)
    of_bytes = model.alphabet == "bytes" and not marks
    require(of_bytes, "its tokens are made of characters, or spaces become others, or text gets one before it")
    names, (merges, _) = _vocab_names(model), _as_merges(model)
    pairs = [f"{gpt2_name(left)} {gpt2_name(right)}" for left, right in merges]
    _require_same(model, _gpt2_model(names, pairs, None, model.pattern))
    return {"vocab.json": _to_json(names), "merges.txt": "\n".join(["#version: 0.2", *pairs, ""])}


# tiktoken's rank files: a line for each token, its bytes in base64 and its id


# A line of tiktoken's; in Whisper's file one has no token.
_RANK = rb"(?:=|(?:[A-Za-z\d+/]{4})*[A-Za-z\d+/]{2}(?:==|[A-Za-z\d+/][A-Za-z\d+/=])) \d{1,8}\r?\n"


def read_tiktoken(
    data: bytes,
    file: Path,
    encoding: str | None = None,
    pattern: PatternSource | None = None,
    special_tokens: SpecialTokens = None,
) -> Model:
    """Read a rank file; what it does not say is given, published, or in the .json beside it that `save` wrote."""
    data = data.rstrip() + b"\n"
    n_good = data.count(b"\n", 0, re.match(b"(?:" + _RANK + b")*", data).end())
    require(n_good == data.count(b"\n"), f"{file}, line {n_good + 1}: not a token in base64 and its id")
    fields, beside = data.split(), file.with_name(file.name + ".json")
    ids = [*map(int, fields[1::2])]
    vocab = dict(zip(ids, map(binascii.a2b_base64, fields[::2]), strict=True))
    if len(vocab) < len(ids):
        id = _repeated(ids)
        raise InputError(f"{file}, line {ids.index(id, ids.index(id) + 1) + 1}: the id {id} stands there twice")
    published = {}
    if encoding is None and pattern is None and beside.is_file():
        published = _read_beside(beside)
        complete = isinstance(published.get("pattern"), str) and isinstance(published.get("special_tokens"), dict)
        require(complete, f"{beside}: says neither the pattern nor the special tokens")
    elif encoding is not None or pattern is None:
        encoding = encoding or _find_encoding(data, file, special_tokens is not None)
        require_known("encoding", encoding, ENCODINGS)
        published = ENCODINGS[encoding]._asdict()
    if special_tokens is None:
        special_tokens = published.get("special_tokens")
    vocab = {id: token for id, token in vocab.items() if token}
    return Model(vocab, None, special_tokens, pattern or published["pattern"])


def _find_encoding(data: bytes, file: Path, has_specials: bool) -> str:
    """Look up a rank file among those published; several of one digest differ in their special tokens."""
    digest = hashlib.sha256(data).hexdigest()
    names = [name for name, encoding in ENCODINGS.items() if encoding.digest == digest]
    advice = f"name it (`pattern`), or the encoding (`encoding`): {', '.join(ENCODINGS)}"
    require(names, f"{file}: a rank file does not say its pattern: {advice}")
    if has_specials or all(ENCODINGS[name] == ENCODINGS[names[0]] for name in names):
        return names[0]
    differ = f"the same ranks are in {' and '.join(names)}, whose special tokens differ"
    require(file.stem in names, f"{file}: {differ}: name one (`encoding`)")
    return file.stem


@naming_file("tiktoken cannot do what this tokenizer does")
def tiktoken_ranks(model: Model) -> dict[bytes, int]:
    """Find the ids by which tiktoken merges as the model does; raises ValueError if there are none."""
    ranks, pattern = {model.vocab[id]: id for id in model.ordinary}, Pattern(model.pattern)
    require(ranks.keys() >= {*BYTES}, "some byte is not a token")
    require(isinstance(pattern.source, str), "it has several patterns")
    require(pattern.matches_everything, "its pattern may leave out some text, which tiktoken would drop")
    _require_same(model, Model({id: token for token, id in ranks.items()}, None, model.special_tokens, model.pattern))
    return ranks


def write_tiktoken(model: Model) -> dict[str, str]:
    """Write a rank file, and beside it the pattern and the special tokens in JSON."""
    ranks = sorted(tiktoken_ranks(model).items(), key=lambda item: item[1])
    beside = {"pattern": Pattern(model.pattern).source, "special_tokens": model.special_tokens}
    return {
        "tokenizer.tiktoken": "".join(f"{base64.b64encode(token).decode()} {id}\n" for token, id in ranks),
        "tokenizer.tiktoken.json": _to_json(beside, indent=2),
    }


# Mistral's tekken.json

_TEKKEN_SPECIALS = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]",
                    "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
                    "[TOOL_CONTENT]"]  # fmt: skip  # of files that do not list theirs


def read_tekken(content: dict) -> Model:
    """Read Mistral's ranks, which begin after the ids of the special tokens."""
    try:
        config, given = content["config"], content.get("special_tokens")
        n, size = config["default_num_special_tokens"], config["default_vocab_size"]
        special_tokens = {text: id for id, text in enumerate(_TEKKEN_SPECIALS)}
        if given is not None:
            special_tokens = {token["token_str"]: token["rank"] for token in given}
        special_tokens |= {f"<SPECIAL_{id}>": id for id in range(len(special_tokens), n)}
        tokens = content["vocab"][: size - n]
        vocab = {n + token["rank"]: base64.b64decode(token["token_bytes"]) for token in tokens}
        return Model(vocab, None, special_tokens, config["pattern"])
    except (AttributeError, KeyError, TypeError, binascii.Error) as error:
        raise InputError(f"not a tekken.json: {error!r}") from None


# Hugging Face's Split is matched by Oniguruma in Ruby's dialect, patterns here by `regex`. Most expressions mean the
# same to both. Some are rewritten. For all others that may differ there is a note.

_ESCAPED = r"\\(?:[sSdDnrtfvaA]|[pP]\{\w+\}|x[0-7][\dA-Fa-f]|u(?![dD][89a-fA-F])[\dA-Fa-f]{4}|[^\w])"
# The parts of an expression, the first that matches; and how `regex` writes the part: "" is the same, and None too, but
# with a note. Oniguruma takes ß for ss, and ligatures for these letters, where case is ignored.
_REGEX_PARTS = {
    r"\(\?i:(?:(?i:(?!ss|ff|fi|fl|st))[A-Za-z'|]|\[[A-Za-z]+\])+\)": "",
    rf"{_ESCAPED}|\[\^?(?:[^\]\[\\&-]|&(?!&)|-(?!-)|{_ESCAPED})+\]": "",
    r"\^": r"(?<![^\n])",
    r"\$": r"(?![^\n])",
    r"\\z": r"\Z",
    r"\\Z": r"(?=\n?\Z)",
    r"\\h": "[0-9A-Fa-f]",
    r"\\H": "[^0-9A-Fa-f]",
    r"\{1(?:,\d+)?\}\+": "+",  # a group of one to three that is repeated
    r"\{0?,\d+\}\+": "*",
    r"\\.|\[|\(\?[a-z-]+[:)]|\{\d+\}\?|\{[\d,]*\}\+": None,
    r"(?s:.)": "",
}
_REGEX_PART = regex.compile("|".join(f"({part})" for part in _REGEX_PARTS))


def _read_regex(text: str, where: str) -> str:
    """Write an expression of Hugging Face's engine as one of `regex`; a note says if it may mean something else."""
    rewritten, odd, replacements = "", [], [*_REGEX_PARTS.values()]
    for part in _REGEX_PART.finditer(text):
        replacement = replacements[part.lastindex - 1]
        rewritten += replacement or part[0]
        odd += [part[0]] * (replacement is None)
    with naming_file(where):
        _compile_regex(rewritten)
    if odd:
        note = f"Hugging Face's engine may read {odd[0]} in the pattern {text[:200]!r} otherwise than this module"
        warnings.warn(f"{where}: {note}: some ids may differ", stacklevel=5)
    return rewritten


# Hugging Face's tokenizer.json: the "model" of each kind


def write_bpe(model: Model) -> dict:
    """Write the "model" object of a BPE."""
    (merges, unreachable), name_of = _as_merges(model), _name_of(model)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": model.unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": model.word_suffix or None,
        "fuse_unk": model.fuse_unk,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": bool(unreachable) or (model.merges is not None and model.ignore_merges),
        "vocab": _vocab_names(model),
        "merges": [(name_of(left), name_of(right)) for left, right in merges],
    }


def read_bpe(data: dict, added: Sequence[str], alphabet: str) -> dict:
    """Read the "model" object of a BPE: the fields of Model that it decides."""
    for key in ("dropout", "continuing_subword_prefix"):
        require(not data.get(key), f"a model with {key} is not supported")
    require(isinstance(data.get("merges"), list), "its BPE has no list of merges")
    of_bytes, names, unknown = alphabet == "bytes", data.get("vocab"), data.get("unk_token")
    suffix = data.get("end_of_word_suffix") or ""
    # Names that are no bytes' are tokens that no text becomes.
    odd = {name for name in names or () if of_bytes and not _BYTE_NAMES.issuperset(name)}
    merges = _read_merges(data["merges"], alphabet, odd)
    require(len(set(merges)) == len(merges), "a merge stands there twice")
    fields = {key: bool(data.get(key)) for key in ("byte_fallback", "fuse_unk", "ignore_merges")} | {"merges": merges}
    looked_up = fields["ignore_merges"] or fields["byte_fallback"]
    require(not (suffix and looked_up), "end_of_word_suffix with ignore_merges or byte_fallback is not supported")
    if not of_bytes:
        drops = unknown is None and not fields["byte_fallback"]
        fields |= {"word_suffix": suffix, "drops_unknown": drops, "unk_token": unknown}
        return fields | {"vocab": _read_vocab(names)}
    # An added token may be the name of bytes that text becomes, rather than a text.
    plain, made = [*filter(_BYTE_NAMES.issuperset, added)], {*map(b"".join, merges), *BYTES}
    tokens = zip(plain, _read_names(plain), strict=True)
    texts = {*added}.difference(name for name, token in tokens if token in made or fields["ignore_merges"])
    vocab = _read_vocab(names, alphabet, texts | odd)
    end = suffix.encode()
    knows_all = {*BYTES, *(byte + end for byte in BYTES)} <= {*vocab.values()}
    unknown = None if knows_all or unknown not in names else unknown
    return fields | {
        "vocab": vocab,
        "word_suffix": suffix,
        "unk_token": unknown,
        "drops_unknown": not knows_all and unknown is None,
        "fuse_unk": fields["fuse_unk"] and unknown is not None,
        "byte_fallback": False,
    }


_WORDPIECE_FIELDS = {
    "unk_token": ("unk_token", "[UNK]"),
    "subword_prefix": ("continuing_subword_prefix", "##"),
    "max_word_chars": ("max_input_chars_per_word", 100),
}


def write_wordpiece(model: Model) -> dict:
    """Write the "model" object of a WordPiece, or of the longest match over bytes, where nothing is unknown."""
    unlimited = model.alphabet == "characters" or model.max_word_chars >= MAX_ID
    require(unlimited, f"a tokenizer.json counts bytes where max_word_chars {model.max_word_chars} counts characters")
    fields = {key: getattr(model, field) for field, (key, _) in _WORDPIECE_FIELDS.items()}
    unknown = model.unk_token or "<unk>"
    return {"type": "WordPiece", **fields, "unk_token": unknown, "vocab": _vocab_names(model)}


def read_wordpiece(data: dict, added: Sequence[str], alphabet: str) -> dict:
    """Read the "model" object of a WordPiece."""
    fields = {}
    for field, (key, default) in _WORDPIECE_FIELDS.items():
        fields[field], kind = data.get(key, default), type(default)
        right = type(fields[field]) is kind
        require(right, f"the {key} of a WordPiece is of type {kind.__name__}, not {json.dumps(data.get(key))[:100]}")
    vocab = _read_vocab(data.get("vocab"), alphabet, added)
    if alphabet == "bytes":
        unlimited = not fields["subword_prefix"] and fields["max_word_chars"] >= MAX_ID
        require(unlimited, "ByteLevel with WordPiece is not supported")
        if fields["unk_token"] not in data["vocab"]:
            fields["unk_token"] = None
    return fields | {"vocab": vocab, "merges": None}


def write_wordlevel(model: Model) -> dict:
    """Write the "model" object of a WordLevel, whose tokens are whole words."""
    return {"type": "WordLevel", "unk_token": model.unk_token or "<unk>", "vocab": _vocab_names(model)}


def read_wordlevel(data: dict, added: Sequence[str], alphabet: str) -> dict:
    """Read the "model" object of a WordLevel."""
    vocab, unknown = _read_vocab(data.get("vocab"), alphabet, added), data.get("unk_token")
    unknown = unknown if unknown in data["vocab"] else None
    return {"vocab": vocab, "merges": None, "unk_token": unknown, "max_word_chars": MAX_ID}


def write_unigram(model: Model) -> dict:
    """Write the "model" object of a Unigram, whose tokens are numbered from 0."""
    names = dict(itertools.islice(_vocab_names(model).items(), len(model.scores)))
    gapless = [*names.values()] == [*range(len(names))]
    require(gapless, "a tokenizer.json numbers the tokens of a Unigram from 0 on, without gaps")
    scores = np.where(np.isinf(model.scores), 0, model.scores).tolist()  # of tokens of bytes
    return {
        "type": "Unigram",
        "unk_id": names.get(model.unk_token),
        "vocab": [[name, scores[id]] for name, id in names.items()],
        "byte_fallback": model.byte_fallback,
    }


def read_unigram(data: dict, added: Sequence[str], alphabet: str) -> dict:
    """Read the "model" object of a Unigram."""
    require(alphabet == "characters", "a model of type Unigram with ByteLevel is not supported")
    pairs, unknown = data.get("vocab"), data.get("unk_id")
    require(isinstance(pairs, list), "the vocabulary of a Unigram is a list of tokens and scores")
    for pair in pairs:
        match pair:
            case [str(), score] if type(score) in (int, float) and abs(score) < 1e300:
                continue
        raise InputError(f"{json.dumps(pair)[:100]} is not a token and its score")
    is_there = unknown is None or (_is_id(unknown) and unknown < len(pairs))
    require(is_there, f"the unk_id {unknown!r} is not in the vocabulary of {len(pairs)}")
    return {
        "vocab": dict(enumerate(_read_names((name for name, _ in pairs), alphabet))),
        "merges": None,
        "scores": np.array([score for _, score in pairs], np.float64),
        "unk_token": None if unknown is None else pairs[unknown][0],
        "fuse_unk": True,
        "byte_fallback": bool(data.get("byte_fallback")),
    }


def _number_added(given: Mapping[str, object], names: Mapping[str, int]) -> dict[str, int]:
    """Number added tokens as Hugging Face does: as in the vocabulary, or on from its size. These must be `given`."""
    following, ids = itertools.count(len(names)), {}
    for text, id in given.items():
        ids[text] = names[text] if text in names else next(following)
        same = id == ids[text]
        require(same, f"the added token {text!r} has the ids {ids[text]} and {json.dumps(id)}: rename it")
    return ids


def write_huggingface(model: Model) -> dict[str, str]:
    """Write the three files of a tokenizer for transformers."""
    # Runs of one character have equal scores in Llama 2: see _merges_by_score.
    ids = {} if model.scores is None or model.kind != "bpe" else model.ordinary_ids
    scores = [model.scores[id] for token, id in ids.items() if len({*token.decode()}) > 1]
    if len({*scores}) < len(scores) or _USER_SYMBOL in model.flags.values():
        warnings.warn(
            "in a tokenizer.json some ids may differ: Hugging Face orders merges, and finds symbols, in another way",
            stacklevel=4,
        )
    roles = {name: token for name, token in model.config.items() if name.endswith("_token")}
    return {
        "tokenizer.json": _to_json(_to_tokenizer_json(model), indent=2),
        "tokenizer_config.json": _config_json(model),
        "special_tokens_map.json": _to_json(roles, indent=2),
    }


def _config_json(model: Model) -> str:
    """Write a tokenizer_config.json."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return _to_json(config | model.config | _bert_config(model), indent=2)


def _token_names(written: dict) -> dict[str, int]:
    """Map the names in the vocabulary of a "model" object to their ids."""
    vocab = written["vocab"]
    return vocab if isinstance(vocab, dict) else {name: id for id, (name, _) in enumerate(vocab)}


def _to_tokenizer_json(model: Model) -> dict:
    """Write a tokenizer.json, as the `tokenizers` package does."""
    written, flags = KINDS[model.kind].write(model), model.flags
    texts: dict[int, str] = {}
    for text, id in sorted(model.special_tokens.items(), key=lambda item: item[1]):
        if texts.setdefault(id, text) != text:
            note = f"a tokenizer.json has one text for an id: {text!r}, the second of {id}, is left out"
            warnings.warn(note, stacklevel=3)
    _number_added({text: id for id, text in texts.items()}, _token_names(written))
    decoder = [_BYTE_LEVEL] if model.alphabet == "bytes" else [*model.decoder] or [{"type": "Fuse"}]
    return {
        "version": "1.0",
        **{key: model.batching.get(key) for key in _BATCHING},
        "added_tokens": [
            {"id": id, "content": text, **_written_flags(flags.get(text, AddedToken()))} for id, text in texts.items()
        ],
        "normalizer": _in_sequence(model.normalizer, "normalizers"),
        "pre_tokenizer": _in_sequence(_write_pre_tokenizers(model), "pretokenizers"),
        "post_processor": model.post_processor,
        "decoder": _in_sequence([] if decoder == [_JOINED_BY_SPACES] else decoder, "decoders"),
        "model": written,
    }


def _in_sequence(steps: Sequence[dict], key: str) -> dict | None:
    """Write several steps as one Sequence."""
    return ({"type": "Sequence", key: [*steps]} if len(steps) > 1 else steps[0]) if steps else None


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_BYTE_LEVELS = [_BYTE_LEVEL | {"add_prefix_space": a, "use_regex": b} for b in (True, False) for a in (True, False)]
# Without a decoder, tokens are joined by spaces: as those of a WordPiece which all begin a word.
_JOINED_BY_SPACES = {"type": "WordPiece", "prefix": "\0", "cleanup": False}
_BEHAVIORS = {name.title().replace("_", ""): name for name in BEHAVIORS}


def _split_steps(pattern: Mapping[str, str], behavior: str = "Isolated", invert: bool = False) -> tuple:
    """Make the step of a Split."""
    ((kind, text),) = pattern.items()
    read = {"Regex": lambda text: _read_regex(text, "Split"), "String": regex.escape}[kind]
    return (Split(read(text), _BEHAVIORS[behavior], bool(invert)),)


# The steps of a pattern that a pre-tokenizer of a type is; its parameters are the fields.
_PRE_TOKENIZERS: dict[str, Callable[..., Sequence[PatternStep]]] = {
    "BertPreTokenizer": lambda: ("bert",),
    "Whitespace": lambda: ("whitespace",),
    "WhitespaceSplit": lambda: ("whitespace-split",),
    "Punctuation": lambda behavior="Isolated": (Split(PUNCTUATION, _BEHAVIORS[behavior]),),
    "Digits": lambda individual_digits: (r"\p{N}" if individual_digits else r"\p{N}+",),
    "CharDelimiterSplit": lambda delimiter: (Split(regex.escape(delimiter), "removed"),),
    "Split": _split_steps,
    "Metaspace": lambda replacement, add_prefix_space=True, split=True, prepend_scheme=None, **_: metaspace_steps(
        "".join(replacement), prepend_scheme or ("always" if add_prefix_space else "never"), bool(split)
    ),
    "ByteLevel": lambda add_prefix_space=True, use_regex=True, **_: (
        (Metaspace(" "),) * bool(add_prefix_space) + (PATTERNS["gpt2"],) * bool(use_regex)
    ),
}


def _read_pre_tokenizer(part: dict) -> tuple[PatternStep, ...]:
    """Read one pre-tokenizer as steps of a pattern."""
    fields = {name: field for name, field in part.items() if name != "type"}
    try:
        steps = _PRE_TOKENIZERS[part["type"]](**fields)
        return tuple(step for one in steps for step in _named_steps(one))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the pre_tokenizer {json.dumps(part)[:200]} is not supported: {error}") from None


def _read_pre_tokenizers(parts: Sequence[dict]) -> PatternSource:
    """Read the steps of a pattern. A ByteLevel may be the last."""
    types = [part["type"] for part in parts[:-1]]
    require("ByteLevel" not in types, "a ByteLevel that is not the last pre_tokenizer")
    steps = [step for part in parts for step in _read_pre_tokenizer(part)]
    if all(isinstance(step, Metaspace) for step in steps):
        steps.append("none")
    return steps if len(steps) > 1 else steps[0]


def _possible_parts(steps: tuple[PatternStep, ...]) -> Iterator[dict]:
    """Make the pre-tokenizers that the last of some steps may be. A Split can be any expression."""
    yield from ({"type": name} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"))
    yield from ({"type": "Punctuation", "behavior": behavior} for behavior in _BEHAVIORS)
    for mark, splits in ((steps[-2:][0], True), (steps[-1], False)):
        if isinstance(mark, Metaspace):
            yield {"type": "Metaspace", **mark._asdict(), "split": splits}
    step = steps[-1] if isinstance(steps[-1], Split) else Split(steps[-1])
    behavior = step.behavior.title().replace("_", "")
    yield {"type": "Split", "pattern": {"Regex": step.regex}, "behavior": behavior, "invert": step.invert}


def _write_pre_tokenizers(model: Model) -> list[dict]:
    """Write the steps of a pattern, from the last on: each time what is read as the steps at the end."""
    steps, written = tuple(step for step in Pattern(model.pattern).steps if step != PATTERNS["none"]), []
    while steps or (model.alphabet == "bytes" and not written):
        at_end = _BYTE_LEVELS if model.alphabet == "bytes" and not written else _possible_parts(steps)
        for part in at_end:
            read = _read_pre_tokenizer(part)
            if read == steps[len(steps) - len(read) :]:
                break
        else:
            raise InputError(f"{steps[-1]!r} means something else to Hugging Face: write $ as (?![\\s\\S]), say"[:300])
        steps = steps[: len(steps) - len(read)]
        written.insert(0, part)
    return written


_BATCHING = ("truncation", "padding")
_TYPES_BY_KEYS = {"merges": "BPE", "continuing_subword_prefix": "WordPiece", "unk_id": "Unigram"}


def read_huggingface(content: dict) -> Model:
    """Read a tokenizer.json; raises ValueError for what would encode otherwise here than there."""
    if "config" in content and "model" not in content:
        return read_tekken(content)
    written, normalizer = content.get("model"), _flattened(content.get("normalizer") or [], "normalizers")
    Normalizer(normalizer)
    require(isinstance(written, dict), "not a tokenizer.json: it has no model")
    by_keys = (name for key, name in _TYPES_BY_KEYS.items() if key in written)  # in files of before 2022
    type = str(written.get("type") or next(by_keys, ""))
    kind = type.lower()
    require(kind in KINDS, f"a model of type {type!r} is not supported, only BPE, WordPiece, WordLevel and Unigram")
    batching = {key: content[key] for key in _BATCHING if content.get(key)}
    if batching:
        note = f"{' and '.join(batching)} of a tokenizer.json: kept, but `encode` does not apply it"
        warnings.warn(note, stacklevel=5)
    parts = _flattened(content.get("pre_tokenizer") or [], "pretokenizers")
    alphabet = "bytes" if parts and parts[-1]["type"] == "ByteLevel" else "characters"
    ids, flags = _read_added_tokens(content.get("added_tokens") or [])
    fields = KINDS[kind].read(written, list(ids), alphabet)
    names = _token_names(written)
    model = Model(
        **fields,
        special_tokens=_number_added(ids, names),
        pattern=_read_pre_tokenizers(parts),
        kind=kind,
        flags=flags,
        alphabet=alphabet,
        normalizer=normalizer,
        decoder=_read_decoder(content.get("decoder"), alphabet),
        post_processor=content.get("post_processor"),
        batching=batching,
    )
    for text, flag in flags.items() if model.ignore_merges else ():
        # Found as a whole pretoken there, even if it is no single word: a control token that is not looked for.
        hidden = flag.single_word and text in names and ids[text] not in model.ordinary
        require(not hidden, f"single_word {text!r} with ignore_merges is not supported")
    return model


def _read_decoder(part: object, alphabet: str) -> list[dict]:
    """Read a decoder. That of bytes is ByteLevel, and none here."""
    steps = _flattened(part or [], "decoders")
    odd = [step for step in steps if (step["type"] == "ByteLevel") != (alphabet == "bytes")]
    require(not odd, f"a decoder ByteLevel goes with a pre_tokenizer ByteLevel, not {json.dumps(odd)[:100]}")
    steps = [] if alphabet == "bytes" else steps or [_JOINED_BY_SPACES]
    decoded_tokens({}, steps)
    return steps


_FLAGS = AddedToken._fields[:5]  # that a tokenizer.json has


def _written_flags(flags: AddedToken) -> dict[str, bool]:
    """Write the flags of a special token; a symbol of SentencePiece's is as transformers' converters have it."""
    plain = AddedToken(special=False) if flags.literal else flags
    return {name: getattr(plain, name) for name in _FLAGS}


def _read_added_tokens(added: object) -> tuple[dict[str, object], dict[str, AddedToken]]:
    """Read a list of added tokens: text -> id, as the file has it; and their flags."""
    try:
        added = [token for token in added if token["content"] != ""]
        ids = {token["content"]: token.get("id") for token in added}
        flags = [AddedToken(**{name: token[name] for name in _FLAGS if name in token}) for token in added]
    except (AttributeError, KeyError, TypeError):
        raise InputError("added_tokens is not a list of tokens") from None
    require(len(ids) == len(added), "a token is added twice")
    for text, found in zip(_check_texts(ids), flags, strict=True):
        require({*map(type, found)} == {bool}, f"the flags of {text!r} are odd")
    return ids, dict(zip(ids, flags, strict=True))


# SentencePiece's .model, and what transformers makes of it

MARK = "▁"  # that SentencePiece writes for a space
_SPACES = ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces")  # in its normalizer_spec
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # the types of its pieces
_FAMILIES = ("", "unigram", "bpe", "", "bpe")  # its types of models: words are not supported; characters do not merge
_MARKS_TO_SPACES = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
_SPACES_TO_MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}


def _model_proto(**fields: object):
    """Make a message of SentencePiece's definition."""
    return import_optional("sentencepiece.sentencepiece_model_pb2", "protobuf").ModelProto(**fields)


_HIDDEN = 0x10F000  # the first of private characters that no text has
_SPACES_TO_ONE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


_STRIP = {"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""}
_USER_SYMBOL = AddedToken(
    normalized=True, special=False, literal=True
)  # one that the user of SentencePiece has defined


def _sentencepiece_steps(
    charsmap: str, symbols: Sequence[str], prefix: bool, squeezes: bool, escapes: bool
) -> list[dict]:
    """Say by Hugging Face's steps what SentencePiece's normalizer does, as transformers' converters do.

    charsmap  a precompiled charsmap in base64, or nothing
    symbols   what it would change, but must not: these are other characters meanwhile
    prefix    a space is put before a text
    squeezes  spaces at both ends are left out, and several in a row are one
    escapes   a space becomes MARK
    """
    hidden = [(symbol, chr(_HIDDEN + k)) for k, symbol in enumerate(symbols)]
    return [
        *[{"type": "Replace", "pattern": {"String": symbol}, "content": char} for symbol, char in hidden],
        *[{"type": "Precompiled", "precompiled_charsmap": charsmap}] * bool(charsmap),
        *[{"type": "Replace", "pattern": {"String": char}, "content": symbol} for symbol, char in hidden],
        *[_STRIP, _SPACES_TO_ONE] * squeezes,
        *[{"type": "Prepend", "prepend": MARK if escapes else " "}] * prefix,
        *[_SPACES_TO_MARKS] * escapes,
    ]


def read_sentencepiece(data: bytes) -> Model:
    """Read a SentencePiece model, unigram or BPE.

    What a user has defined as symbols of a BPE is found first in normalized text, unless it is not allowed.
    """
    proto, whole = _model_proto(), False
    with contextlib.suppress(import_optional("google.protobuf.message").DecodeError):
        proto.ParseFromString(data)
        whole = len(proto.pieces) and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")
    require(whole, "no SentencePiece model, or it is cut off")
    trainer, spec = proto.trainer_spec, proto.normalizer_spec
    names, scores, types = zip(*[(piece.piece, piece.score, piece.type) for piece in proto.pieces], strict=True)
    kind, scores, types = _FAMILIES[trainer.model_type], np.array(scores, np.float32), np.array(types)
    special = (_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED)
    unknown, control, symbol_ids, unused = (np.flatnonzero(types == type).tolist() for type in special)
    symbols = [names[id] for id in symbol_ids]
    require(kind, "a SentencePiece model of words is not supported")
    require(bytes not in {*map(type, names)}, "not all of its tokens are UTF-8")
    require(not proto.denormalizer_spec.precompiled_charsmap, "a denormalizer is not supported")
    require(not unused, f"unused tokens are not supported, such as the ids {unused[:3]}")
    require(len(unknown) == 1, f"it has {len(unknown)} tokens for what is unknown, not one")
    require(not trainer.treat_whitespace_as_suffix, "treat_whitespace_as_suffix is not supported")
    charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
    mapping = Normalizer([{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else ())
    changed = [symbol for symbol in symbols if mapping.normalize(symbol.encode()) != symbol.encode()]
    if kind == "unigram":
        scores[types == _BYTE] = -np.inf
        scores[symbol_ids] = [0.1 * (len(symbol.encode()) - 1) for symbol in symbols]  # as sentencepiece 0.2.3
        symbol_ids, symbols = [], []  # which are found by these scores, and not before all other tokens
    normalizer = _sentencepiece_steps(charsmap, changed, *(getattr(spec, name) for name in _SPACES))
    Normalizer(normalizer)
    has_prefix = spec.add_dummy_prefix or spec.remove_extra_whitespaces
    roles = {role: getattr(trainer, f"{role[:3]}_id") for role in ROLES}
    return Model(
        dict(enumerate(map(str.encode, names))),
        [] if trainer.model_type == len(_FAMILIES) - 1 else None,
        {names[id]: id for id in sorted(unknown + control + symbol_ids)},
        "none",
        kind,
        flags=dict.fromkeys(symbols, _USER_SYMBOL),
        alphabet="characters",
        scores=scores,
        normalizer=normalizer,
        decoder=[  # as that of Llama 2
            *[_MARKS_TO_SPACES] * spec.escape_whitespaces,
            *[{"type": "ByteFallback"}] * trainer.byte_fallback,
            {"type": "Fuse"},
            *[{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * has_prefix,
        ],
        unk_token=names[unknown[0]],
        byte_fallback=trainer.byte_fallback,
        fuse_unk=True,
        config={role: names[id] for role, id in roles.items() if id in unknown + control},
    )


@naming_file("SentencePiece cannot do what this tokenizer does")
def write_sentencepiece(model: Model) -> dict[str, bytes]:
    """Write a SentencePiece model that has the same ids, but for special tokens, which it does not look for."""
    require(model.kind in _FAMILIES and model.alphabet == "characters", "its tokens are not SentencePiece's")
    require(model.byte_fallback or (model.unk_token and model.fuse_unk), "it has other tokens for what is unknown")
    has_flags = any(any(flags[:3]) for flags in model.flags.values())
    require(not has_flags, "its special tokens have flags")
    charsmap, symbols, *spaces = _sentencepiece_fields(model)
    vocab, unknown = dict(sorted(model.vocab.items())), model.unk_token or "<unk>"
    if model.unk_token is None:  # it needs one there, though nothing is unknown
        vocab[len(vocab)] = b"<unk>"
    ids = {token: id for id, token in vocab.items()} | model.ids
    if model.scores is None:
        merges, _ = _as_merges(model)
        rank_of = {left + right: rank for rank, (left, right) in reversed([*enumerate(merges)])}
        scores = {id: -rank_of.get(token, len(merges)) for id, token in vocab.items()}
    else:
        scores = dict(enumerate(model.scores.astype(np.float32).tolist()))
    types = dict.fromkeys(model.special_tokens.values(), _CONTROL)
    types |= {model.special_tokens[text]: _USER_DEFINED for text, flags in model.flags.items() if not flags.special}
    types |= {ids[symbol.encode()]: _USER_DEFINED for symbol in symbols}
    types |= {ids[token]: _BYTE for token in _FALLBACK_TOKENS if model.byte_fallback}
    types[ids[unknown.encode()]] = _UNKNOWN
    roles, config = {}, model.config | {"unk_token": unknown}
    for role in ROLES:
        text = config.get(role)
        roles[f"{role[:3]}_id"] = ids.get(text.encode(), -1) if isinstance(text, str) else -1
        if roles[f"{role[:3]}_id"] >= 0:
            roles[f"{role[:3]}_piece"] = text
    proto = _model_proto(
        pieces=[
            {"piece": token.decode(), "score": 0 if id in types else scores[id], "type": types.get(id, _NORMAL)}
            for id, token in vocab.items()
        ],
        trainer_spec={
            "model_type": _FAMILIES.index(model.kind),
            "vocab_size": len(vocab),
            "byte_fallback": model.byte_fallback,
            **roles,
        },
        normalizer_spec={
            "name": "custom" if charsmap else "identity",
            "precompiled_charsmap": base64.b64decode(charsmap),
            **dict(zip(_SPACES, spaces, strict=True)),
        },
    )
    data = proto.SerializeToString(deterministic=True)
    other = read_sentencepiece(data)
    how = {"merges": model.merges, "scores": model.scores, "ignore_merges": model.ignore_merges}
    _require_same(dataclasses.replace(other, vocab=vocab, **how), other)
    return {"tokenizer.model": data}


def _sentencepiece_fields(model: Model) -> tuple[str, list[str], bool, bool, bool]:
    """Find the arguments of `_sentencepiece_steps` that make a model's normalizer; raises ValueError if none do."""
    pattern, normalizer = {*Pattern(model.pattern).steps} - {PATTERNS["none"]}, list(model.normalizer)
    if Metaspace(MARK, "never") in pattern and not normalizer:
        pattern.remove(Metaspace(MARK, "never"))
        normalizer = [_SPACES_TO_MARKS]
    if not any(MARK in model.vocab[id].decode()[1:] for id in model.ordinary):  # these cut through no token
        pattern -= {Split(text, "merged_with_next") for text in (" ", r"\ ", MARK)}
    charsmap = "".join(step.get("precompiled_charsmap", "") for step in normalizer)
    replaced = [step for step in normalizer if step["type"] == "Replace" and step["content"] >= chr(_HIDDEN)]
    symbols = [step["pattern"].get("String", "") for step in replaced]
    for spaces in itertools.product((False, True), repeat=3):
        if normalizer == _sentencepiece_steps(charsmap, symbols, *spaces) and not pattern:
            return charsmap, symbols, *spaces
    raise InputError("its normalizer and its pattern are not SentencePiece's")


# vocab.txt of BERT: a token a line

_BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_bert(data: bytes, file: Path, config: Mapping[str, object]) -> Model:
    """Read the vocabulary of a BERT; tokenizer_config.json says, or else its tokens do, whether it is in lower case."""
    names = [line.rstrip() for line in _decode_utf8(data, str(file)).split("\n")]
    ids = {name: id for id, name in enumerate(names) if name}
    if len(ids) < sum(map(bool, names)):
        name = _repeated(filter(None, names))
        warnings.warn(f"{file}, line {ids[name] + 1}: {name!r} stands there twice: the last is taken", stacklevel=5)
    specials = {text: ids[text] for text in _BERT_SPECIALS if text in ids}
    lowercase = config.get("do_lower_case", all(n == n.lower() for n in ids if n not in specials))
    ends = {role: [text, specials[text]] for role, text in (("sep", "[SEP]"), ("cls", "[CLS]")) if text in specials}
    model = read_huggingface(
        {
            "model": {"type": "WordPiece", "vocab": ids},
            "added_tokens": [{"content": text, "id": id} for text, id in specials.items()],
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
                "strip_accents": config.get("strip_accents"),
                "lowercase": bool(lowercase),
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "post_processor": {"type": "BertProcessing", **ends} if len(ends) == 2 else None,
        }
    )
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    model.config = {role: text for role, text in roles.items() if text in specials}
    return model


def _bert_config(model: Model) -> dict:
    """Write what tokenizer_config.json says of a BERT's normalizer."""
    match model.kind, model.normalizer:
        case "wordpiece", [{"type": "BertNormalizer", **step}]:
            kept = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
            return {name: step[field] for name, field in kept.items()} | {
                "tokenize_chinese_chars": step["handle_chinese_chars"]
            }
    return {}


def write_bert(model: Model) -> dict[str, str]:
    """Write vocab.txt, and what is said beside it."""
    require(model.kind == "wordpiece", f"a vocab.txt cannot hold a model of kind {model.kind}")
    names, config = {id: token.decode("utf-8", "replace") for id, token in model.vocab.items()}, _bert_config(model)
    text = "".join(names.get(id, "") + "\n" for id in range(max(names, default=-1) + 1))
    with naming_file("a vocab.txt cannot hold this tokenizer"):
        _require_same(model, read_bert(text.encode(), Path("vocab.txt"), config))
    return {"vocab.txt": text, "tokenizer_config.json": _config_json(model)}


# What transformers reads beside a model, in tokenizer_config.json.
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
CONFIG_KEYS = (*ROLES, "model_max_length", "chat_template")

# Messages between <|im_start|> and <|im_end|>, tools as JSON, calls of tools between <tool_call> and </tool_call>.
CHATML = r"""
{%- macro opened(role) %}{{ '<|im_start|>' + role + '\n' }}{% endmacro %}
{%- set first = messages[0].content if messages and messages[0].role == 'system' else none %}
{%- if tools %}
    {{- opened('system') }}
    {%- if first is not none %}{{ first + '\n\n' }}{% endif %}
    {{- 'Functions may be called, each call as {"name": …, "arguments": …} between <tool_call> and </tool_call>:' }}
    {%- for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant', 'tool') %}
        {{- raise_exception('a message is from system, user, assistant or tool, not from ' + message.role) }}
    {%- endif %}
    {%- if not (loop.first and tools and message.role == 'system') %}
        {{- opened(message.role) + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\n' if message.content or not loop.first }}
            {{- '<tool_call>\n{"name": ' }}{{ call.name | tojson }}{{ ', "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ opened('assistant') }}{% endif %}
""".strip()


def transformers_config(
    special_tokens: Iterable[str],
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
    unk_token: str | None = None,
    model_max_length: int | None = None,
    chat_template: str | os.PathLike | None = None,
) -> dict:
    """Build the fields of tokenizer_config.json that are given: not None.

    special_tokens    those of the model
    bos_token         the special token that begins a text
    eos_token         the one that ends it
    pad_token         the one that fills up a batch
    unk_token         the one for what cannot be encoded
    model_max_length  tokens that the model has room for
    chat_template     "chatml", which needs the special tokens <|im_start|> and <|im_end|>, or a file in Jinja

    >>> transformers_config(["<|end|>"], eos_token="<|end|>", model_max_length=1024)
    {'eos_token': '<|end|>', 'model_max_length': 1024}
    """
    fields = {name: value for name, value in locals().items() if value is not None and name in CONFIG_KEYS}
    known = ", ".join(special_tokens) or "it has none"
    for role in {*ROLES} & fields.keys():
        is_known = fields[role] in special_tokens
        require(is_known, f"`{role}` {fields[role]!r} is not a special token of this tokenizer: {known}")
    if model_max_length is not None and model_max_length < 1:
        raise InputError(f"`model_max_length` is {model_max_length}: a model of so many tokens has no room for text")
    if chat_template == "chatml":
        has_both = {"<|im_start|>", "<|im_end|>"} <= {*special_tokens}
        require(has_both, "ChatML needs the special tokens '<|im_start|>' and '<|im_end|>'")
        fields["chat_template"] = CHATML
    elif chat_template is not None:
        fields["chat_template"] = _decode_utf8(_read_limited(Path(chat_template)), str(chat_template))
    return fields


# Files and folders


class Format(NamedTuple):
    """A format of files. What `load_model` is told goes to the reader if that has a parameter of the name."""

    read: Callable[..., Model]  # by data, file and config beside it, likewise
    write: Callable[[Model], dict[str, str | bytes]]
    files: tuple[str, ...]  # that it may write; the first says what is there
    sign: bytes  # an expression that matches the beginning of its files


_VOCAB = rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\d'  # of GPT-2: a token and its id
FORMATS = {
    "huggingface": Format(
        lambda data, file: read_huggingface(read_json(data, str(file))),
        write_huggingface,
        ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        rb"(?!" + _VOCAB + rb")\s*\{",
    ),
    "gpt2": Format(
        _read_gpt2_pair,
        write_gpt2,
        ("vocab.json", "merges.txt"),
        rb"#version|(?!" + _RANK + rb")\S+ \S+\r?\n|" + _VOCAB,
    ),
    "tiktoken": Format(read_tiktoken, write_tiktoken, ("tokenizer.tiktoken", "tokenizer.tiktoken.json"), _RANK),
    "sentencepiece": Format(read_sentencepiece, write_sentencepiece, ("tokenizer.model",), rb"\n"),
    "bert": Format(
        read_bert, write_bert, ("vocab.txt", "tokenizer_config.json"), rb"(?ms)(?:.*?\n)??(?:##|\[UNK\]\r?$)"
    ),
}


def load_model(
    path: str | os.PathLike,
    *,
    encoding: str | None = None,
    pattern: PatternSource | None = None,
    special_tokens: SpecialTokens = None,
) -> Model:
    """Read a model from a file or a folder: what it is, its content tells. See Tokenizer.load."""
    path = as_path(path)
    file = _find_model_file(path) if path.is_dir() else path
    require(file.is_file(), f"{path}: no such file or folder")
    data, config = _read_limited(file), _read_beside(file.with_name("tokenizer_config.json"))
    format = next((format for format in FORMATS.values() if regex.match(format.sign, data)), None)
    require(
        format,
        f"{file}: neither a tokenizer.json, nor vocab.json or merges.txt, nor a rank file, "
        "nor a SentencePiece model, nor BERT's vocab.txt",
    )
    options = {"encoding": encoding, "pattern": pattern, "special_tokens": special_tokens}
    for name in options.keys() - inspect.signature(format.read).parameters.keys():
        require(options[name] is None, f"{file}: a file like {format.files[0]} says that itself: leave `{name}` away")
    with naming_file(file):
        model = call_with(format.read, data=data, file=file, config=config, **options)
    model.config |= {name: config[name] for name in CONFIG_KEYS if name in config}
    if model.drops_unknown:
        note = "no token stands for what is unknown: it is left out, as by the tokenizers package"
        warnings.warn(f"{file}: {note}", stacklevel=3)
    return model


def _find_model_file(folder: Path) -> Path:
    """Find the file of a folder that is, or begins, a model; what `save` writes before all others."""
    written = [[format.files[0]] for format in FORMATS.values()]
    for names in (*written, ["encoder.json"], ["*.tiktoken", "*tokenizer.json"], ["*.model", "*vocab.txt"]):
        found = [file for name in names for file in folder.glob(name)]
        if len(found) == 1:
            return found[0]
    raise InputError(
        f"{folder}: no tokenizer.json here, nor vocab.json and merges.txt, nor vocab.txt, "
        "nor one .tiktoken or .model file"
    )


def save_model(model: Model, path: str | os.PathLike, format: str | None = None) -> None:
    """Write a model folder in one of FORMATS, or by default the first, and the second if it can be.

    A path that ends as the first file of the format does, model.tiktoken say, is the name of that file.

    Files of other FORMATS in a folder stay there: a warning names them, since `load_model` may read them.
    """
    folder = as_path(path)
    require_known("format", format or "huggingface", FORMATS)
    chosen = FORMATS[format or "huggingface"]
    texts, first = chosen.write(model), chosen.files[0]
    if folder.suffix == Path(first).suffix and not folder.is_dir():  # a file, and what belongs beside it
        require(format != "gpt2", f"{folder}: GPT-2's format has two files: name a folder for them")
        atomic_write_all(folder.parent, {name.replace(first, folder.name): text for name, text in texts.items()})
        return
    if format is None and model.merges is not None and not model.ignore_merges:
        with contextlib.suppress(InputError):
            texts |= FORMATS["gpt2"].write(model)
    atomic_write_all(folder, texts)
    firsts = [other.files[0] for other in FORMATS.values() if other.files[0] not in texts]
    if found := ", ".join(name for name in firsts if (folder / name).is_file()):
        warnings.warn(f"{folder}: {found} may hold another model: remove what is outdated", stacklevel=3)


# ─── Kinds ────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A kind of models, by name -> the functions that learn its vocabulary, segment words by it, and read and write it. All
# other sections ask KINDS. To add a kind is to write these functions in a section of their own, and a row here.


class Kind(NamedTuple):
    """The functions of a kind of models; the last four are optional."""

    learn: Callable  # (words, n_symbols, **options) -> Learned, or what has its tokens, merges and alphabet
    tables: Callable  # (model) -> a struct
    tables_type: type  # the class of that, by which Numba finds the kernels
    segment: Callable  # kernel (text, start, size, tables, scratch, ids, at) -> n ids written to ids[at:]; -1: no id
    write: Callable  # (model) -> the "model" object of a tokenizer.json
    read: Callable  # ("model" object, texts of added tokens, alphabet) -> fields of Model
    sample: Callable | None = None  # kernel (text, start, size, tables, alpha, random state, ids, at): as `segment`
    sample_tables: Callable | None = None  # (model) -> the tables for that
    exact_pattern: Callable | None = None  # (model) -> a pattern that cuts where no token reaches across


KINDS = {
    "bpe": Kind(
        learn,
        bpe_tables,
        BpeTables,
        segment_bpe,
        write_bpe,
        read_bpe,
        sample_bpe,
        functools.partial(bpe_tables, samples=True),
        exact_pattern=exact_pattern,
    ),
    "wordpiece": Kind(
        learn_wordpiece, wordpiece_tables, WordPieceTables, segment_wordpiece, write_wordpiece, read_wordpiece
    ),
    "wordlevel": Kind(
        learn_wordpiece, wordpiece_tables, WordPieceTables, segment_wordpiece, write_wordlevel, read_wordlevel
    ),
    "unigram": Kind(
        learn_unigram,
        unigram_tables,
        UnigramTables,
        segment_unigram,
        write_unigram,
        read_unigram,
        sample_unigram,
        unigram_tables,
        exact_pattern,
    ),
}


# ─── Tokenizer ────────────────────────────────────────────────────────────────────────────────────────────────────────

_BYTE_TOKEN = re.compile(r"\A<0x([+\dA-Fa-f][\dA-Fa-f])>\Z", re.ASCII)
_CLEANUP = {f" {text}": text for text in (".", "?", "!", ",", "' ", "n't", "'m", "do not", "'s", "'ve", "'re")}
_CLEANUP |= {" ' ": "'", " do not": " don't"}


def _decode_wordpiece(token: str, is_first: bool, prefix: str, cleanup: bool) -> str:
    """Decode a token of WordPiece."""
    if not is_first:
        token = token[len(prefix) :] if token.startswith(prefix) else " " + token
    for text, replacement in _CLEANUP.items() if cleanup else ():
        token = token.replace(text, replacement)
    return token


def _decode_strip(token: str, is_first: bool, content: str, start: int, stop: int) -> str:
    """Take up to so many of a character off the ends of a token."""
    one = re.escape(content)
    return re.sub(rf"\A(?:{one}){{0,{start}}}|(?:{one}){{0,{stop}}}\Z", "", token)


# What decodes a token, by the type of a step; its further parameters are the fields.
_DECODERS: dict[str, Callable[..., str]] = {
    "BPEDecoder": lambda token, is_first, suffix: token.replace(suffix, " "),  # but that of the last: see decode
    "ByteFallback": lambda token, is_first: _BYTE_TOKEN.sub(
        lambda match: bytes([int(match[1], 16)]).decode("utf-8", "surrogateescape"), token
    ),
    "Fuse": lambda token, is_first: token,
    "Metaspace": lambda token, is_first, replacement, prepend_scheme="always", **_: token.replace(
        replacement, "" if is_first and prepend_scheme != "never" else " "
    ),
    "Replace": lambda token, is_first, pattern, content: token.replace(pattern["String"], content),
    "Strip": _decode_strip,
    "WordPiece": _decode_wordpiece,
}


def decoded_tokens(
    vocab: Mapping[int, bytes], decoder: Sequence[dict]
) -> tuple[Mapping[int, bytes], Mapping[int, bytes]]:
    """Decode each token, as the first of a sequence and as a later one, by steps as a tokenizer.json writes them.

    Joined, they are what the `tokenizers` package decodes, where that is UTF-8. Behind ByteFallback and Fuse, which
    join tokens, a step must be one that can be done to each on its own: Replace of one ASCII character, or Strip of one
    at the start. Raises InputError for all others.

    >>> first, later = decoded_tokens({0: "▁a".encode(), 1: b"<0xE4>"}, [{"type": "Metaspace", "replacement": "▁"}])
    >>> first[0], later[0], later[1]
    (b'a', b' a', b'<0xE4>')
    """
    if not decoder:
        return vocab, vocab
    firsts = {id: token.decode("utf-8", "surrogateescape") for id, token in vocab.items()}
    later, are_joined = firsts, False
    for step in _flattened(decoder, "decoders"):
        fields = {name: field for name, field in step.items() if name != "type"}
        kind = step["type"]
        try:
            alone = not are_joined or _is_single_character(kind, firsts, **fields)
            require(alone, "it is behind one that joins tokens")
            decode = functools.partial(_DECODERS[kind], **fields)
            firsts = {id: decode(token, True) for id, token in firsts.items()}
            if not are_joined or kind == "Replace":
                later = {id: decode(token, False) for id, token in later.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"the decoder {json.dumps(step)[:100]} is not supported: {error}") from None
        are_joined = are_joined or kind in ("ByteFallback", "Fuse")
    encoded = [{id: t.encode("utf-8", "surrogateescape") for id, t in tokens.items()} for tokens in (firsts, later)]
    return encoded[0], encoded[1]


def _is_single_character(kind: str, firsts: Mapping[int, str], **fields) -> bool:
    """Tell whether a step behind one that joins tokens can be done to each on its own."""
    if kind == "Strip":
        one = fields["content"].isascii() and fields["start"] == 1 and fields["stop"] == 0
        return one and all(firsts.values())
    replaced = fields["pattern"]["String"] if kind == "Replace" else "_" * (kind == "Fuse")
    return len(replaced) == 1 and replaced.isascii()


class _Encoder:
    """What one thread encodes with: a workspace, and an array that takes the ids."""

    def __init__(self, model: Model, tables: object, pattern: Pattern, cache_size: int):
        self.model, self.special, self.stop = model, _special_table({}), np.empty(1, np.int64)
        pooled = max(16 * cache_size, 1 << 16)
        self.scan = _new_scan()
        self.workspace = _Workspace(
            tables,
            pattern.table,
            self.special,
            *self.scan,
            np.empty(4 * KEYS, np.uint64),
            np.empty(MAX_LINEAR_MERGE, np.uint64),
            _new_word_table(min(CACHE_WORDS, cache_size), pooled),
            np.empty(pooled, np.uint32),
            0,
            0,
            0,
            cache_size,
        )
        self.ids = np.empty(BLOCK_BYTES * 3 // 2 + 64, np.uint32)  # a page of it is memory when it is written to

    def encode(self, pretokenizer: Pretokenizer, data: bytes, stops: np.ndarray | None, begins: int) -> np.ndarray:
        """Encode texts as uint32[N]: each ends at one of `stops`, over which the end of its ids is written.

        Without `stops` the bytes are one text.
        """
        flat, room = None, len(data) + 4
        if stops is None:
            stops = self.stop
            stops[0] = len(data)
        if not pretokenizer.is_one_machine:
            flat, _, _ = pretokenizer.apply(self.scan, data, stops, begins)
            room = len(flat.text) + 4
        elif pretokenizer.special is not self.special:
            self.special = pretokenizer.special
            _set_special(self.workspace, self.special)
        ids = self.ids if room <= len(self.ids) else np.empty(room, np.uint32)
        n = _encode_flat(self.workspace, *flat, ids, stops) if flat else _encode_texts(self.workspace, data, stops, ids)
        if n < 0:
            flat, _, _ = pretokenizer.apply(self.scan, data, np.array([len(data)]), begins)
            raise _unknown_letter(self.model, b"".join(flat.parts()))
        if ids is self.ids:
            return ids[:n].copy()
        ids.resize(n, refcheck=False)  # no copy: a tenth of the time of a large text
        return ids


def _unknown_letter(model: Model, text: bytes) -> InputError:
    """Build the error for text that has a letter without a token."""
    if model.alphabet == "bytes":
        letters: Iterable[bytes] = map(BYTES.__getitem__, text)
    else:
        letters = (char.encode("utf-8", "surrogateescape") for char in text.decode("utf-8", "surrogateescape"))
    letter = next((letter for letter in letters if letter not in model.ids), None)
    if letter is None:
        return InputError("a word is not in the vocabulary, which has no token for the unknown")
    if model.alphabet == "bytes":
        return InputError(f"the byte 0x{letter[0]:02X} is not in the vocabulary")
    char = letter.decode("utf-8", "replace")
    return InputError(f"the character {char!r} is not in the vocabulary, which has no token for the unknown")


def _working_pattern(model: Model) -> Pattern:
    """Make the pattern of a model; one that takes whole texts for words is cut where no token reaches across."""
    pattern, exact = Pattern(model.pattern), KINDS[model.kind].exact_pattern
    takes_whole_texts = pattern.name == "none" or isinstance(pattern.stages[-1], Metaspace)
    if model.alphabet == "bytes" or not exact or not takes_whole_texts:
        return pattern
    return Pattern([*(step for step in pattern.steps if step != PATTERNS["none"]), exact(model)])


class Tokenizer:
    """Text to token ids and back.

    vocab           id -> bytes; ids may have gaps
    merges          pairs of bytes, the first to be merged first; or None, and any two neighbours whose bytes, joined,
                    are a token may merge, the token of the lowest id first, as tiktoken does
    special_tokens  strings, or strings and their ids; those that have no id get the ids after the last
    pattern         the name of a pattern, a regular expression, or several, each of which cuts what the last has left
    ignore_merges   a pretoken that is a token is that token, even where the merges do not get there
    flags           how special tokens are found, if not in the plain way: AddedToken for some of them
    cache_size      pretokens that each thread keeps the ids of, about; rounded up to a power of two

    Threads may share a tokenizer, and it can be pickled. Raises ValueError for a vocabulary that cannot be.

    >>> vocab = {0: b"<|end|>"} | {1 + b: bytes([b]) for b in range(256)} | {257: b"hi"}
    >>> tokenizer = Tokenizer(vocab, [(b"h", b"i")], ["<|end|>"])
    >>> tokenizer.encode("hi!<|end|>")
    [257, 34, 0]
    >>> tokenizer.decode([257, 34, 0])
    'hi!<|end|>'
    """

    @checked
    def __init__(
        self,
        vocab: Mapping[int, bytes],
        merges: Sequence[Merge] | None,
        special_tokens: SpecialTokens = None,
        pattern: str | Sequence[str] = "gpt2",
        *,
        ignore_merges: bool = False,
        flags: Mapping[str, AddedToken] | None = None,
        cache_size: int = 1 << 20,
    ):
        model = Model(vocab, merges, special_tokens, pattern, ignore_merges=ignore_merges, flags=flags)
        self._compile(model, cache_size)

    @classmethod
    def from_model(cls, model: Model, cache_size: int = 1 << 20) -> Tokenizer:
        """Make a tokenizer of a Model, of any kind."""
        tokenizer = cls.__new__(cls)
        tokenizer._compile(model, cache_size)
        return tokenizer

    def _compile(self, model: Model, cache_size: int) -> None:
        """Make the tables of a model."""
        require_known("kind of model", model.kind, KINDS)
        self.model = model
        self.pattern = _working_pattern(model)
        self._cache_size = 1 << max(2, cache_size - 1).bit_length()
        self._decoded = decoded_tokens(model.vocab, model.decoder)
        self._tables = KINDS[model.kind].tables(model)
        self._normalizer = Normalizer(model.normalizer)
        self._pretokenizers: dict[str, Pretokenizer] = {}
        self._pretokenizers = {allowed: self._pretokenizer(allowed) for allowed in ("all", "none")}
        self._idle: list[_Encoder] = []  # those that no thread is using
        self._chunk_sources: dict[tuple[str, ...], Source] = {}  # of encode_iterable, by special tokens

    @property
    def vocab(self) -> dict[int, bytes]:
        """The tokens by their ids, special tokens included."""
        return self.model.vocab

    @property
    def merges(self) -> list[Merge] | None:
        """The merges in their order, or None where the ids are the ranks."""
        return self.model.merges

    @property
    def special_tokens(self) -> dict[str, int]:
        """The ids of the special tokens."""
        return self.model.special_tokens

    @property
    def config(self) -> dict:
        """The content of tokenizer_config.json."""
        return self.model.config

    @property
    def digest(self) -> str:
        """A SHA-256 of all that decides about ids, in hexadecimal."""
        return self.model.fingerprint

    def __len__(self) -> int:
        """Count the tokens, special tokens included."""
        return len(self.vocab)

    @property
    def vocab_size(self) -> int:
        """The rows that a model's embedding needs: the largest id + 1, which is the number of tokens without gaps."""
        return max(self.vocab, default=-1) + 1

    def __repr__(self) -> str:
        pattern = Pattern(self.model.pattern)
        pattern = pattern.name or pattern.source
        return f"<Tokenizer: {len(self)} tokens, {len(self.special_tokens)} special, pattern {pattern}>"

    def __reduce__(self):
        return _unpickle, (self._pickled, self.model.config)

    @functools.cached_property
    def _token_bytes(self) -> TokenBytes:
        """The bytes of the tokens as they are decoded, which the first of a text may have otherwise."""
        return make_token_bytes(self._decoded[1])

    @functools.cached_property
    def _sample_tables(self) -> object:
        """The tables that `sample` needs."""
        return KINDS[self.model.kind].sample_tables(self.model)

    @functools.cached_property
    def _pickled(self) -> bytes:
        """The model but for `config`, which may change, and the cache size."""
        return zlib.compress(pickle.dumps((dataclasses.replace(self.model, config={}), self._cache_size)), 1)

    @classmethod
    def from_files(
        cls,
        vocab_filepath: str | os.PathLike,
        merges_filepath: str | os.PathLike,
        special_tokens: Iterable[str] | None = None,
        pattern: str = "gpt2",
    ) -> Tokenizer:
        """Load GPT-2's two files, vocab.json and merges.txt.

        If no special tokens are given, they are the tokens that no merge makes, the bytes apart.
        """
        return cls.from_model(read_gpt2(Path(vocab_filepath), Path(merges_filepath), special_tokens, pattern))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        *,
        encoding: str | None = None,
        pattern: str | None = None,
        special_tokens: SpecialTokens = None,
    ) -> Tokenizer:
        """Load a model from a file or a folder. The format is detected from the content.

        That is a tokenizer.json of Hugging Face's; GPT-2's vocab.json and merges.txt, whatever they are called; a rank
        file of tiktoken's; a model of SentencePiece's; or BERT's vocab.txt. For a rank file, `encoding` is a name in
        ENCODINGS, or `pattern` and `special_tokens` say what the file does not; neither is needed for a published one,
        or one that was saved here. Raises ValueError for a file that is none of these, and for what would encode
        otherwise here than there.
        """
        return cls.from_model(load_model(path, encoding=encoding, pattern=pattern, special_tokens=special_tokens))

    def save(self, path: str | os.PathLike, format: str | None = None) -> None:
        """Write a model folder.

        "huggingface"   tokenizer.json, tokenizer_config.json, special_tokens_map.json
        "gpt2"          vocab.json, merges.txt
        "tiktoken"      tokenizer.tiktoken, and the pattern and the special tokens in tokenizer.tiktoken.json
        None            the first, and the second if it can be

        Raises ValueError if the format cannot represent the model.
        """
        save_model(self.model, path, format)

    def to_huggingface(self):
        """Make a `tokenizers.Tokenizer` with the same ids."""
        return import_optional("tokenizers").Tokenizer.from_str(write_huggingface(self.model)["tokenizer.json"])

    def to_tiktoken(self, name: str = "bpe_numba"):
        """Make a `tiktoken.Encoding` with the same ids; raises ValueError if there can be none."""
        return import_optional("tiktoken").Encoding(
            name,
            pat_str=self.pattern.source,
            mergeable_ranks=tiktoken_ranks(self.model),
            special_tokens=self.special_tokens,
        )

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        return self.model.ids

    def token_to_id(self, token: bytes | str) -> int | None:
        """Look up the id of a token, or None."""
        if isinstance(token, str):
            return self.special_tokens.get(token, self._ids.get(token.encode()))
        return self._ids.get(token)

    def id_to_token(self, id: int) -> bytes:
        """Look up the bytes of a token; raises ValueError if there is no such id."""
        try:
            return self.vocab[_id_array([id]).item()]
        except KeyError:
            last = max(self.vocab, default=-1)
            raise InputError(f"id {id!r} is not in the vocabulary, whose ids end at {last}") from None

    def encode(self, text: str | bytes, allowed_special: str | Iterable[str] = "all") -> list[int]:
        """Encode a text, or bytes, valid UTF-8 or not, as a list of ids.

        allowed_special says which special tokens in the text become their ids: "all", "none", or some of them. The
        others are text like any other: nobody can forge a control token that is not allowed.
        """
        return self.encode_to_numpy(text, allowed_special).tolist()

    def encode_ordinary(self, text: str | bytes) -> list[int]:
        """Encode a text in which no special token is honoured."""
        return self.encode(text, "none")

    def encode_to_numpy(self, text: str | bytes, allowed_special: str | Iterable[str] = "all") -> np.ndarray:
        """Encode a text as uint32[N].

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_to_numpy("Hi")
        array([ 72, 105], dtype=uint32)
        """
        return self._encode(_text_bytes(text), allowed_special)

    def encode_texts(
        self, texts: Sequence[bytes], allowed_special: str | Iterable[str] = "all", begins: int = BEGINS
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts, in bytes, in this thread: their ids end to end, uint32[N], and their offsets, int64[T + 1].

        begins  CONTINUES, if the first text goes on from an earlier one; see Pretokenizer.apply
        """
        stops = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        ids = self._encode(b"".join(texts), allowed_special, stops, begins)
        return ids, np.append(0, stops)

    def _encode(
        self, data: bytes, allowed_special: str | Iterable[str], stops: np.ndarray | None = None, begins: int = BEGINS
    ) -> np.ndarray:
        """Encode texts that lie end to end as uint32[N]; see _Encoder.encode."""
        pretokenizer = self._pretokenizer(allowed_special)
        try:
            encoder = self._idle.pop()  # one that no other thread is using
        except IndexError:
            encoder = _Encoder(self.model, self._tables, self.pattern, self._cache_size)
        try:
            return encoder.encode(pretokenizer, data, stops, begins)
        finally:
            self._idle.append(encoder)

    @checked
    def sample(
        self, text: str | bytes, alpha: float = 0.1, seed: int = 0, allowed_special: str | Iterable[str] = "all"
    ) -> list[int]:
        """Encode a text at random, to train a model on more than one way to cut it; each seed gives one way.

        alpha  of a unigram model: a way is as probable as exp(alpha * score), so 0 takes all alike (Kudo 2018). Of a
               BPE: the probability with which a merge is left out each time, so 0 leaves none (Provilkov et al. 2020)

        Raises InputError for a model that knows one way only.

        >>> vocab = {b: bytes([b]) for b in range(256)} | {256: b"ab", 257: b"abab"}
        >>> tokenizer = Tokenizer(vocab, [(b"a", b"b"), (b"ab", b"ab")])
        >>> [tokenizer.sample("abab", 0.5, seed) for seed in range(3)]
        [[256, 97, 98], [257], [257]]
        """
        kind = KINDS[self.model.kind]
        require(kind.sample, f"a {self.model.kind} has one way to cut a word: there is nothing to sample")
        is_sound = math.isfinite(alpha) and (0 <= alpha <= 1 or self.model.kind == "unigram")
        require(is_sound, f"alpha is a probability, not {alpha}")
        flat = self._words(text, allowed_special)
        ids, state = np.empty(len(flat.text), np.uint32), np.array([seed % 2**64], np.uint64)
        n = _sample_words(*flat, self._sample_tables, float(alpha), state, ids)
        if n < 0:
            raise _unknown_letter(self.model, bytes(flat.text[-1 - n :]))
        return ids[:n].tolist()

    def _words(self, text: str | bytes, allowed_special: str | Iterable[str]) -> FlatText:
        """Cut a text into special tokens and words, with an END after each."""
        data, scan, pretokenizer = _text_bytes(text), _new_scan(), self._pretokenizer(allowed_special)
        flat, _, _ = pretokenizer.apply(scan, data, np.array([len(data)]))
        return flat.rewritten(_write_cuts, self.pattern.table, *scan)

    def encode_batch(
        self, texts: Iterable[str | bytes], allowed_special: str | Iterable[str] = "all", *, threads: int | None = None
    ) -> list[list[int]]:
        """Encode each text as a list of ids; large batches in several threads, one a core if not told otherwise.

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_batch(["Hi", "", "!"])
        [[72, 105], [], [33]]
        """
        ids, offsets = self.encode_batch_to_numpy(texts, allowed_special, threads=threads)
        return [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets.tolist())]

    @checked
    def encode_batch_to_numpy(
        self, texts: Iterable[str | bytes], allowed_special: str | Iterable[str] = "all", *, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode all texts: ids uint32[N], and where those of each begin and end, int64[T + 1].

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_batch_to_numpy(["Hi", "", "!"])
        (array([ 72, 105,  33], dtype=uint32), array([0, 2, 2, 3]))
        """
        require(not isinstance(texts, (str, bytes)), "encode_batch takes a list of texts: encode takes one")
        require(threads is None or threads >= 1, f"{threads} threads: at least one must do the work")
        if not isinstance(allowed_special, str):
            allowed_special = list(allowed_special)
        batches = _batched_by_size(map(_text_bytes, texts), len, BLOCK_BYTES)
        encode = functools.partial(self.encode_texts, allowed_special=allowed_special)
        encoded = list(Engine(threads).map(encode, batches, threads=True))
        ids = np.concatenate([np.zeros(0, np.uint32), *(ids for ids, _ in encoded)])
        return ids, np.cumsum(np.concatenate([[0], *(np.diff(offsets) for _, offsets in encoded)]))

    def encode_iterable(
        self, iterable: Iterable[str | bytes], allowed_special: str | Iterable[str] = "all"
    ) -> Iterator[int]:
        """Encode a text that comes in chunks, a file say: yields the same ids as of the whole text, in bounded memory.

        Where the pattern, or flags of special tokens, allow no cut, memory holds a whole document.
        """
        known = tuple(self._allowed(allowed_special))
        source = self._chunk_sources.setdefault(known, self.source((), known))  # a normalizer's takes 0.9 s to make
        chunks = map(_text_bytes, [iterable] if isinstance(iterable, (str, bytes)) else iterable)
        for data, begins, _ in source.cut(chunks, WINDOW_BYTES):
            yield from self.encode_texts([data], allowed_special, begins)[0].tolist()

    def source(
        self, inputs: Files, allowed_special: str | Iterable[str] = "all", text_field: str | None = None
    ) -> Source:
        """Make the Source by which files are cut so that their blocks have the same ids as the whole."""
        special, model = tuple(self._allowed(allowed_special)), self.model
        return Source(
            find_files(inputs), self.pattern, special, text_field, flags=model.flags, normalizer=model.normalizer
        )

    def compile_kernels(self) -> None:
        """Compile the kernels of encoding, or load them from the disk; processes forked later have them."""
        with contextlib.suppress(InputError):  # a small vocabulary may not have these letters
            self.encode_texts([b"one two", b"\xff"])

    def _pretokenizer(self, allowed_special: str | Iterable[str]) -> Pretokenizer:
        """Make what finds the special tokens that are allowed."""
        if isinstance(allowed_special, str) and allowed_special in self._pretokenizers:
            return self._pretokenizers[allowed_special]
        chosen = {token: self.special_tokens[token] for token in self._allowed(allowed_special)}
        return Pretokenizer(self.pattern, chosen, self.model.flags, self._normalizer)

    def _allowed(self, allowed_special: str | Iterable[str]) -> list[str]:
        """List the special tokens that are allowed; raises ValueError for any other name."""
        if isinstance(allowed_special, str):
            if allowed_special not in ("all", "none"):
                raise InputError(f"allowed_special is 'all', 'none' or a set of tokens, not {allowed_special!r}")
            return list(self.special_tokens) if allowed_special == "all" else []
        for token in (allowed := list(allowed_special)):
            if token not in self.special_tokens:
                known = ", ".join(self.special_tokens) or "it has none"
                raise InputError(f"{token!r} is not a special token of this tokenizer: {known}")
        return allowed

    def decode_bytes(self, ids: Iterable[int], *, continues: bool = False) -> bytes:
        """Join the bytes of some ids; raises ValueError for an id that is not in the vocabulary.

        continues  other ids came before them: what begins a text is left out there only
        """
        ids = _id_array(ids)
        text, unknown = _join_tokens(ids, self._token_bytes)
        if unknown >= 0:
            self.id_to_token(int(ids[unknown]))
        text = text.tobytes()
        if len(ids) and self.model.decoder and not continues:
            first, rest = (tokens[int(ids[0])] for tokens in self._decoded)
            text = first + text[len(rest) :]
        return text

    def decode(self, ids: Iterable[int]) -> str:
        """Decode some ids as text. What is not UTF-8 becomes U+FFFD."""
        text = self.decode_bytes(ids).decode("utf-8", "replace")
        ends_words = any(step["type"] == "BPEDecoder" for step in self.model.decoder)
        return text.removesuffix(" ") if ends_words else text

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """Decode several lists of ids."""
        return [self.decode(ids) for ids in batch]


@functools.lru_cache(maxsize=4)
def _unpickle_once(pickled: bytes) -> Tokenizer:
    """Make the tables of a tokenizer, which is sent with each piece of work, once in a process."""
    model, cache_size = pickle.loads(zlib.decompress(pickled))
    tokenizer = Tokenizer.from_model(model, cache_size)
    tokenizer.__dict__["_pickled"] = pickled
    return tokenizer


def _unpickle(pickled: bytes, config: dict) -> Tokenizer:
    """Make a tokenizer of its own that shares its tables, and the caches of idle threads, with the last of its kind."""
    known, tokenizer = _unpickle_once(pickled), Tokenizer.__new__(Tokenizer)
    tokenizer.__dict__ |= known.__dict__
    tokenizer.model = copy.copy(known.model)
    tokenizer.model.config = dict(config)
    return tokenizer


def _text_bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(_lone_surrogate_message(error)) from None
    except AttributeError:
        raise InputError(f"a text is str or bytes, not {type(text).__name__}") from None


def _id_array(ids: Iterable[int]) -> np.ndarray:
    """Make an array of ids, uint32; raises ValueError for what cannot be an id."""
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise InputError(f"ids are whole numbers in a row, not {ids.dtype} of shape {ids.shape}")
        if ids.dtype == np.uint32 or not ids.size or (ids.min() >= 0 and ids.max() < MAX_ID):
            return np.require(ids, np.uint32, ["C", "W"])
        ids = ids.tolist()
    require(isinstance(ids, Iterable), f"ids are a list or an array, not {ids!r}")
    ids = ids if isinstance(ids, (list, tuple)) else list(ids)
    for kind in set(map(type, ids)):
        if issubclass(kind, bool) or not issubclass(kind, (int, np.integer)):
            raise InputError(f"an id is a whole number, not {next(id for id in ids if type(id) is kind)!r}")
    try:
        return np.frombuffer(array("I", ids), np.uint32)
    except OverflowError:
        wrong = next(id for id in ids if not 0 <= id < MAX_ID)
        raise InputError(f"id {wrong!r} is not in the vocabulary") from None


# ─── Token files ──────────────────────────────────────────────────────────────────────────────────────────────────────

LLMC_HEADER_BYTES = 1024
LLMC_SIGNS = {"uint16": [20240520, 1], "uint32": [20240801, 7]}  # how its files begin, for GPT-2 and for Llama 3


def _npy_header(dtype: np.dtype, n: int) -> bytes:
    """Make the header of a .npy file of n numbers: 128 bytes for any n, since NumPy pads it for growth."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (n,)})
    return file.getvalue()


def _llmc_header(dtype: np.dtype, n: int) -> bytes:
    """Make the header of a file for llm.c: 256 numbers, the third of which is n."""
    require(n < 2**31, f"{n:,} tokens are more than llm.c counts in one file: write several")
    return np.array([*LLMC_SIGNS[dtype.name], n], "<i4").tobytes().ljust(LLMC_HEADER_BYTES, b"\0")


def _no_header(dtype: np.dtype, n: int) -> bytes:
    return b""


# How ids are written, the header of such files, and the ends of their names; standard output has no end.
_LAYOUTS = {
    "npy": (_npy_header, (".npy",)),
    "bin": (_no_header, (".bin", "")),
    "llm.c": (_llmc_header, (".bin",)),
    "text": (_no_header, (".txt", "")),
}


class Encoded(NamedTuple):
    """Describe a file of token ids. It is written beside the file as JSON; as a string it is a line for people."""

    tokens: int
    documents: int
    bytes: int  # of text
    dtype: str
    model: str  # Tokenizer.digest
    append: str | None = None  # the token at the end of each document; None: documents are texts, files and lines

    def __str__(self) -> str:
        per_token = self.bytes / max(self.tokens, 1)
        documents = number_of(self.documents, "document" if self.append else "text")
        of_text = f"of {number_of(self.bytes, 'byte')} in {documents}"
        return f"{number_of(self.tokens, 'token')} ({self.dtype}) {of_text}, {per_token:.2f} bytes per token"


class _EncodedBatch(NamedTuple):
    """The ids of some blocks, and what is counted of them."""

    ids: np.ndarray  # uint16 or uint32[N]
    ends: np.ndarray  # int64[D]   documents end before these positions in `ids`
    n_bytes: int  # of text
    n_read: int  # bytes on the disk
    last_id: int | None  # of the text that the last block ends in; None: it began in an earlier batch and has none here
    is_doubtful: bool  # the first id ends such a text: it goes if that ended so in the earlier batch


def _encode_blocks(
    tokenizer: Tokenizer,
    dtype: np.dtype,
    end_id: int | None,
    allowed_special: str | Sequence[str],
    source: Source,
    blocks: list[Block],
) -> _EncodedBatch:
    """Encode blocks as ids of this dtype: uint16 is half as much for a pipe.

    Without an end id, documents are texts: files, or lines of JSON. With one, documents end behind each such id, and
    one is inserted at the end of every text that has none there.
    """
    batches, ends, n_tokens, n_bytes, last_id, is_doubtful = [], [], 0, 0, None, False
    for block in blocks:
        texts = source.texts(block)
        last_id = -1 if block.begins == BEGINS else last_id
        ids, offsets = tokenizer.encode_texts(texts, allowed_special, block.begins)
        n_bytes += sum(map(len, texts))
        stops = offsets[1:] if block.behind == BEGINS else offsets[:0]
        if end_id is not None:
            ended = np.append(ids, 0)[stops - 1] == end_id
            ended &= stops > offsets[: len(stops)]  # an empty text has the last id of the text before it there
            if len(stops) and stops[0] == 0:  # what goes on here has no more ids
                ended[0] = last_id == end_id
                is_doubtful |= last_id is None
            last_id = int(ids[-1]) if len(ids) else last_id
            ids = np.insert(ids, stops[~ended], end_id)
            stops = np.flatnonzero(ids == end_id) + 1
        batches.append(ids.astype(dtype, copy=False))
        ends.append(stops + n_tokens)
        n_tokens += len(ids)
    n_read = sum(block.n_bytes for block in blocks)
    return _EncodedBatch(np.concatenate(batches), np.concatenate(ends), n_bytes, n_read, last_id, is_doubtful)


def _open_output(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Open a file that is written whole, or standard output."""
    return atomic_write(path) if path != STANDARD_STREAM else contextlib.nullcontext(sys.stdout.buffer)


def _sidecar(path: Path) -> Path:
    """Name the JSON that describes a file of ids."""
    return path.with_name(path.name + ".json")


def _as_lines(ids: np.ndarray, ends: np.ndarray) -> bytes:
    """Write ids as decimal numbers, a line for each document, which may go on in the next ids."""
    lines = [" ".join(map(str, part.tolist())) for part in np.split(ids, ends)]
    return ("\n".join(lines) + " " * bool(lines[-1])).encode()


@contextlib.contextmanager
def _array_writer(path: Path, dtype: np.dtype | type, layout: str = "auto") -> Iterator[Callable]:
    """Write numbers in pieces, to a file or to standard output: yields a function of the next array."""
    if layout == "auto":
        layout = path.suffix[1:] or "bin"
        require(layout in ("npy", "bin"), f"{path}: name a .npy file, or a .bin file for the bare numbers")
    require_known("`layout`", layout, _LAYOUTS)
    header, suffixes = _LAYOUTS[layout]
    require(path.suffix in suffixes, f"{path}: name a {suffixes[0]} file for {layout}")
    dtype, n = np.dtype(dtype).newbyteorder("<"), 0

    def write(numbers: np.ndarray, ends: np.ndarray = ()) -> None:
        """Write an array after those before it; documents end at `ends` in it."""
        nonlocal n
        n += len(numbers)
        file.write(_as_lines(numbers, ends) if layout == "text" else np.ascontiguousarray(numbers, dtype).data)
        file.flush()  # should the disk be full, it is now, and not when the other files have taken their names

    with _open_output(path) as file:
        file.write(header(dtype, 0))
        yield write
        if header(dtype, n):
            file.seek(0)
            file.write(header(dtype, n))


def _name_outputs(out: str | os.PathLike | None, val_fraction: float | None) -> list[Path]:
    """Name the file of ids, and that of the documents that are held out, if any are."""
    require(out is not None, "name `out`: a file for the ids, or - for standard output")
    path = as_path(out)
    if val_fraction is None:
        return [path]
    require(0 < val_fraction < 1, f"`val_fraction` is between 0 and 1, not {val_fraction}")
    before, found, behind = path.name.rpartition("train")
    require(found, f"{path}: name a file with 'train' in it for `val_fraction`: the other one has 'val' there")
    return [path, path.with_name(f"{before}val{behind}")]


def _hold_out(batch: _EncodedBatch, first: int, fraction: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Part a batch in what is for training and what is held out: the ids, and where documents end in them.

    first  the number of the document that the batch begins in, from 0. Of n documents, floor(n * fraction) are held
           out: document d if floor((d + 1) * fraction) is greater than floor(d * fraction). So a choice depends on
           nothing but the order of the documents
    """
    billionths = round(fraction * 10**9)  # so that nothing is rounded
    numbers = (np.arange(first, first + len(batch.ends) + 2) * billionths) // 10**9
    is_held_out = np.diff(numbers) > 0
    lengths = np.diff(batch.ends, prepend=0, append=len(batch.ids))  # of documents that end, and of the rest
    return [
        (batch.ids[np.repeat(chosen, lengths)], np.cumsum(lengths[:-1][chosen[:-1]]))
        for chosen in (~is_held_out, is_held_out)
    ]


@checked
def encode_files(
    tokenizer: Tokenizer,
    inputs: Files,
    out: str | os.PathLike | None = None,
    *,
    dtype: str | type | np.dtype = "auto",
    append: str | None = None,
    layout: str = "auto",
    val_fraction: float | None = None,
    document_index: str | os.PathLike | None = None,
    allowed_special: str | Iterable[str] = "all",
    workers: int | None = None,
    text_field: str | None = None,
    progress: bool = False,
    executor: Executor | None = None,
) -> Encoded:
    """Write the token ids of files, folders or globs to one file, in the order of the texts, and describe it.

    inputs           files, folders, globs, or - for standard input: text, lines of JSON (.jsonl), Parquet; text and
                     JSON may be packed by gzip, xz, bzip2 or zstandard
    out              a .npy file; a .bin file, for the bare numbers; or -, for those on standard output. A file gets a
                     description beside it, with .json behind its name
    dtype            of the ids: uint16, uint32, or auto, the smaller one that holds every id of the vocabulary
    append           a special token: every document ends with it. Documents are files and lines of .jsonl files, and
                     end at this token where it is in a text: it is not doubled
    layout           auto, by the name of the file; llm.c, which is a .bin file with its header of 1,024 bytes; or
                     text, decimal numbers, a line a document: a .txt file, or - for standard output
    val_fraction     as with nanoGPT, documents are held out: 0.0005 is the last of every 2,000, in the order in which
                     they are read. They go to the file that has `val` where the name of the other has `train`
    document_index   a .npy or .bin file of int64: document d is tokens[index[d] : index[d + 1]]
    allowed_special  the special tokens that are found in the texts: "all", "none", or some of them

    And text_field, as of a Source; workers, progress and executor, as of an Engine.

    Files take their names when they are whole. Raises InputError for what cannot be done.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("Hi!")
    ...     tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
    ...     print(encode_files(tokenizer, folder, Path(folder, "a.npy")))
    ...     np.load(Path(folder, "a.npy"))
    3 tokens (uint16) of 3 bytes in 1 text, 1.00 bytes per token
    array([ 72, 105,  33], dtype=uint16)
    """
    paths = _name_outputs(out, val_fraction)
    if document_index is not None:
        can_be_indexed = len(paths) == 1 and layout != "text"
        require(can_be_indexed, "`document_index` goes with `out`, but not with `val_fraction`, or the layout text")
        document_index = as_path(document_index)
        if document_index.resolve() in (paths[0].resolve(), _sidecar(paths[0]).resolve()):
            raise InputError(f"{document_index} is to be written twice: give the document index a name of its own")
    _require_other_files([*paths, document_index], find_files(inputs))
    id_type, engine = id_dtype(tokenizer.model, dtype), Engine(workers, progress, executor)
    allowed_special = allowed_special if isinstance(allowed_special, str) else list(allowed_special)
    source = tokenizer.source(inputs, allowed_special, text_field)
    if append is not None:
        tokenizer._allowed([append])
    tokenizer.compile_kernels()
    end_id = tokenizer.special_tokens.get(append)
    work = functools.partial(_encode_blocks, tokenizer, id_type, end_id, allowed_special)
    batches = source.map(engine, work)
    totals, n_bytes, last_id = np.zeros((2, 2), np.int64), 0, None  # tokens and documents of each file
    with contextlib.ExitStack() as stack:
        stack.enter_context(written_together())
        writers = [stack.enter_context(_array_writer(path, id_type, layout)) for path in paths]
        index = _array_writer(document_index, np.int64) if document_index else contextlib.nullcontext(lambda _: None)
        write_index = stack.enter_context(index)
        write_index(np.zeros(1, np.int64))
        bar = stack.enter_context(engine.progress_bar("encode", source.total_bytes, "B"))
        for batch in stack.enter_context(contextlib.closing(batches)):
            if batch.is_doubtful and last_id == end_id:
                batch = batch._replace(ids=batch.ids[1:], ends=batch.ends[1:] - 1)
            last_id = last_id if batch.last_id is None else batch.last_id
            write_index(batch.ends + totals[0, 0])
            first = totals[:, 1].sum()
            parts = [batch[:2]] if val_fraction is None else _hold_out(batch, first, val_fraction)
            for k, (ids, ends) in enumerate(parts):
                writers[k](ids, ends)
                totals[k] += len(ids), len(ends)
            n_bytes += batch.n_bytes
            bar.update(batch.n_read)
        source.check_unchanged()
        encoded = Encoded(*totals.sum(0).tolist(), n_bytes, id_type.name, tokenizer.digest, append)
        for path, (n_tokens, n_documents) in zip(paths, totals.tolist(), strict=False):
            description = encoded._asdict() | {"tokens": n_tokens, "documents": n_documents}
            if len(paths) == 2:
                del description["bytes"]  # which are not known of each
                hint = "documents are files, lines of .jsonl, and what ends with the token that `append` names"
                given = f"of {number_of(encoded.documents, 'document')} `val_fraction` holds out {totals[1, 1]}"
                require(n_documents, f"{given}: {hint}")
            if path != STANDARD_STREAM:
                atomic_write_all(path.parent, {_sidecar(path).name: _to_json(description, indent=2)})
    return encoded


def _require_other_files(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Raise InputError if a file that is to be written is one that is read."""
    for path in outputs:
        if path is not None and path.is_file():  # a device or a pipe may be both
            is_read = path.resolve() in map(Path.resolve, inputs)
            require(not is_read, f"{path}: is read, and would be replaced: name another file to write")


@checked
def read_ids(path: str | os.PathLike, dtype: str | None = None) -> np.ndarray:
    """Open the ids of a .npy or .bin file as an array that stays on the disk; raises InputError for what is none.

    dtype  uint16 or uint32, for a .bin file that has no .json beside it

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.bin")
    ...     _ = path.write_bytes(bytes([1, 0, 2, 0]))
    ...     read_ids(path, "uint16").tolist()
    [1, 2]
    """
    path, start = as_path(path), 0
    n_bytes, description = path.stat().st_size, _read_beside(_sidecar(path))
    with expecting_whole("array of ids", path):
        if path.suffix == ".npy":
            ids = np.lib.format.open_memmap(path, mode="r")
        else:
            header, dtype = np.fromfile(path, "<i4", 3).tolist(), description.get("dtype", dtype)
            for name, sign in LLMC_SIGNS.items():
                if header[:2] == sign and n_bytes == LLMC_HEADER_BYTES + np.dtype(name).itemsize * header[2]:
                    dtype, start = name, LLMC_HEADER_BYTES
            require(dtype in LLMC_SIGNS, "are its numbers uint16 or uint32? Name it with `dtype`")
            numbers = np.dtype(dtype).newbyteorder("<")
            ids = np.memmap(path, numbers, "r", start) if n_bytes > start else np.zeros(0, numbers)
        is_list = ids.ndim == 1 and ids.dtype.kind in "iu"
        require(is_list, f"an array of {ids.dtype} and shape {ids.shape} does not hold token ids")
    n_tokens = description.get("tokens", len(ids))
    is_whole = n_tokens == len(ids)
    require(is_whole, f"{path}: has {len(ids):,} ids, and {_sidecar(path).name} says {n_tokens}: encode the text again")
    return ids


_LIST_AS_LINES = bytes.maketrans(b"[],", b"   ")


def _read_id_batches(path: Path, dtype: str | None) -> Iterator[Iterable[int]]:
    """Read ids from a .npy or .bin file, or as decimal numbers from any other file, in batches."""
    if path != STANDARD_STREAM and path.suffix in (".npy", ".bin"):
        ids = read_ids(path, dtype)
        yield from (ids[start : start + BLOCK_BYTES] for start in range(0, len(ids), BLOCK_BYTES))
        return
    line, rest = 1, b""
    for chunk, _ in itertools.chain(_read_chunks(path, BLOCK_BYTES), [(b"\n", 0)]):
        text = rest + chunk.translate(_LIST_AS_LINES)
        if wrong := regex.search(rb"[^0-9\s]|[0-9]{19}", text):
            line += text.count(b"\n", 0, wrong.start())
            raise InputError(f"{path}, line {line}: not token ids, which are whole numbers")
        line += text.count(b"\n")
        words = text.split()
        rest = b"" if text[-1:].isspace() else words.pop()  # a number may go on in the next chunk
        yield list(map(int, words))


@checked
def decode_file(
    tokenizer: Tokenizer, tokens: str | os.PathLike, out: str | os.PathLike = "-", *, dtype: str | None = None
) -> None:
    """Write the text of a file of token ids, in bounded memory.

    tokens  a .npy or .bin file, a text with ids as decimal numbers (1 2, or [1, 2]), or - for standard input
    out     where the text goes: a file, which takes its name when it is whole, or - for standard output
    dtype   uint16 or uint32, for a .bin file that has no .json beside it
    """
    _require_other_files([Path(out)], [Path(tokens)])
    with _open_output(Path(out)) as file:
        continues = False
        for ids in _read_id_batches(Path(tokens), dtype):
            file.write(tokenizer.decode_bytes(ids, continues=continues))
            continues |= len(ids) > 0


# ─── Training ─────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Files, or words files -> a Training: a tokenizer, and what was measured. A Recipe holds the options that decide the
# model, and nothing that decides only where the text is and how fast it is read. `complete` checks one and fills in
# what its family of models has: the alphabet, and what goes with it (mark, unknown token, pattern). Words files decide
# the pattern, the normalizer and the special tokens, see `prepare`. After that every part of the training follows from
# the recipe alone:
#
#     recipe.source        pattern, normalizer, special tokens        -> how text becomes words
#     recipe.learn         model, alphabet, vocab_size, tie_break …   -> which tokens are learnt from the words
#     recipe.build         alphabet, mark, unk_token, byte_fallback … -> the Model around these tokens
#
# For `--model unigram --vocab-size 8000`: the alphabet is "characters", the mark "▁", the pattern GPT-2's and then ▁
# for each space, the unknown token "<unk>", which is a special token; `learn_unigram` learns 7,999 tokens.


class Family(NamedTuple):
    """The defaults of a family of models."""

    kind: str  # of the model, a name in KINDS
    alphabet: str
    pattern: str
    learner: str  # the kind whose `learn` is used
    mark: str = ""  # with characters
    unk_token: str = "<unk>"  # with characters
    subword_prefix: str = ""


FAMILIES = {
    "bpe": Family("bpe", "bytes", "gpt2", "bpe", mark="▁"),
    "wordpiece": Family("wordpiece", "characters", "bert", "wordpiece", unk_token="[UNK]", subword_prefix="##"),
    "unigram": Family("unigram", "characters", "gpt2", "unigram", mark="▁"),
    "longest": Family("wordpiece", "bytes", "gpt2", "bpe"),
}
BYTE_TOKENS = tuple(token.decode() for token in _FALLBACK_TOKENS)
_BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
NORMALIZERS = {name.lower(): {"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt")} | {
    "strip-accents": {"type": "StripAccents"},
    "bert": _BERT | {"lowercase": True},
    "bert-cased": _BERT | {"lowercase": False},
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options of `train` that decide which model is learnt; None is what `complete` fills in."""

    vocab_size: int
    special_tokens: Sequence[str]
    special_tokens_at: str = "first"
    model: str = "bpe"
    alphabet: str | None = None
    pattern: PatternSource | None = None  # without the mark
    mark: str | None = None
    normalizer: Sequence[str | dict] = ()
    coverage: float = 1.0
    byte_fallback: bool = False
    unk_token: str | None = None
    from_: str | os.PathLike | Model | None = None
    tie_break: str = "bytes"
    score: str = "count"
    min_frequency: int = 1
    max_words: int = MAX_WORDS

    @property
    def learner(self) -> Callable:
        """The function that learns a vocabulary from words."""
        return KINDS[FAMILIES[self.model].learner].learn

    @property
    def byte_tokens(self) -> tuple[str, ...]:
        """The tokens of single bytes in a vocabulary of characters."""
        return BYTE_TOKENS if self.byte_fallback else ()

    @property
    def options(self) -> dict:
        """The recipe as plain JSON."""
        base = self.from_ and self.from_.fingerprint
        return vars(self) | self.source([], None).settings | {"special_tokens": self.special_tokens, "from_": base}

    def source(self, files: Sequence[Path | Texts], text_field: str | None) -> Source:
        """Make the Source of the text. The names of byte tokens end documents: they must not be learnt."""
        special_tokens = [*self.special_tokens, *self.byte_tokens]
        return Source(files, Pattern(self.steps), special_tokens, text_field, normalizer=self.normalizer)

    @property
    def steps(self) -> PatternSource:
        """The pattern of the model. With the mark ▁ spaces come back; any other one stands where a word begins."""
        if not self.mark:
            return self.pattern
        return [*Pattern(self.pattern).steps, Metaspace(self.mark, "never" if self.mark == MARK else "always")]

    @property
    def decoder(self) -> list[dict]:
        """The steps that turn the tokens of the model into text."""
        prefix, join = FAMILIES[self.model].subword_prefix, [{"type": "ByteFallback"}, {"type": "Fuse"}]
        if self.alphabet == "bytes":
            return []
        if self.mark == MARK:
            return [_MARKS_TO_SPACES, *join]
        if self.mark:
            marks = {"type": "Metaspace", "replacement": self.mark, "prepend_scheme": "always", "split": True}
            return [marks, *join] if self.byte_fallback else [marks]
        if prefix:
            return [{"type": "WordPiece", "prefix": prefix, "cleanup": True}]
        return join if self.byte_fallback else join[1:]

    def learn(self, words: Words, progress: bool = False) -> Learned:
        """Learn from words over bytes."""
        n_symbols = self.vocab_size - len(self.special_tokens) - len(self.byte_tokens)
        if self.from_:
            words = words_of_model(self.from_, words)
            n_symbols = len(words.alphabet) + self.vocab_size - len(self.from_.vocab)
        elif self.alphabet == "characters":
            words = words.as_characters(self.coverage)
            require(
                len(words.alphabet) <= n_symbols,
                f"the text has {len(words.alphabet):,} different characters, more than the vocabulary has room for: "
                "raise `vocab_size`, or keep the usual ones (`coverage` 0.9995)",
            )
        return call_with(self.learner, words, n_symbols, progress=progress, **vars(self))

    def build(self, learned: Learned) -> Model:
        """Make the model of what was learnt."""
        if self.from_:
            return extend_model(self.from_, learned, self.pattern)
        vocab, merges = build_vocabulary(learned, self.special_tokens, self.special_tokens_at, self.byte_tokens)
        scores, family = getattr(learned, "scores", None), FAMILIES[self.model]
        if scores is not None:
            score_of = dict(zip(learned.tokens, scores.tolist(), strict=True))
            scores = np.array([score_of.get(token, 0.0) for token in vocab.values()])
        return Model(
            vocab,
            merges if family.kind == "bpe" else None,  # the longest match does not need them
            self.special_tokens,
            pattern=self.steps,
            scores=scores,
            kind=family.kind,
            alphabet=self.alphabet,
            normalizer=self.normalizer,
            decoder=self.decoder,
            unk_token=self.unk_token,
            byte_fallback=self.byte_fallback,
            fuse_unk=self.alphabet == "characters" and family.kind != "wordpiece",
            subword_prefix=family.subword_prefix,
            max_word_chars=MAX_ID if self.model == "longest" else 100,
        )


def complete(recipe: Recipe) -> Recipe:
    """Fill in what a recipe leaves open; raises InputError for options that do not go together.

    >>> recipe = complete(Recipe(300, ["<s>"], alphabet="characters"))
    >>> recipe.pattern, recipe.mark, recipe.unk_token, recipe.special_tokens
    ('gpt2', '▁', '<unk>', ['<s>', '<unk>'])
    """
    least = recipe.min_frequency
    require(0 <= least <= MAX_COUNT, f"`min_frequency` is {least}: it must be 0 to {MAX_COUNT:,}")
    require(recipe.max_words >= 0, f"`max_words` is {recipe.max_words}: it must be 0, for all, or more")
    require_known("family of models", recipe.model, FAMILIES)
    require_known("`special_tokens_at`", recipe.special_tokens_at, SPECIAL_TOKENS_AT)
    for name in {"tie_break", "score", "min_frequency"} - inspect.signature(recipe.learner).parameters.keys():
        value = getattr(recipe, name)
        require(value == getattr(Recipe, name), f"`{name}` {value!r} is not for this kind of model")
    recipe = dataclasses.replace(recipe, special_tokens=check_special_tokens(recipe.special_tokens))
    if recipe.from_ is not None:
        return _complete_from(recipe)
    family, special_tokens = FAMILIES[recipe.model], recipe.special_tokens
    alphabet, pattern = recipe.alphabet or family.alphabet, recipe.pattern or family.pattern
    mark, unk_token, n_letters = "", None, 256
    require_known("alphabet", alphabet, ALPHABETS)
    if alphabet == "bytes":
        plain = recipe.coverage == 1 and not recipe.byte_fallback
        require(plain, "`coverage` and `byte_fallback` go with characters: bytes are all known")
        require(family.alphabet == "bytes", f"a model of the family {recipe.model} is made of characters")
        require(not recipe.mark, "a mark goes with characters: alphabet bytes has none")
    else:
        require(0 < recipe.coverage <= 1, f"`coverage` is more than 0, and at most 1, not {recipe.coverage}")
        mark, n_letters = family.mark if recipe.mark is None else recipe.mark, 1
        require(len(mark) <= 1 and not mark.isspace(), f"a mark is one character that is no white space, not {mark!r}")
        if mark not in ("", MARK):
            pattern = recipe.pattern or "whitespace-split"
        if recipe.byte_fallback and family.kind != "unigram":  # a unigram names an unknown token always
            require(family.kind == "bpe", "`byte_fallback` is for bpe and unigram")
            require(recipe.unk_token is None, "with `byte_fallback` nothing is unknown: leave `unk_token` away")
        else:
            unk_token = recipe.unk_token or family.unk_token
            special_tokens = [*dict.fromkeys([*special_tokens, unk_token])]
    check_vocab_size(recipe.vocab_size, n_letters + len(special_tokens) + len(recipe.byte_tokens))
    return dataclasses.replace(
        recipe,
        special_tokens=special_tokens,
        alphabet=alphabet,
        pattern=pattern,
        mark=mark,
        normalizer=_named_normalizer(recipe.normalizer),
        unk_token=unk_token,
    )


def _complete_from(recipe: Recipe) -> Recipe:
    """Fill in the rest of a recipe that goes on from a model, whose pattern and merges may have to change."""
    require(recipe.model == "bpe", "there are merges to go on from in a BPE only")
    base = recipe.from_ if isinstance(recipe.from_, Model) else load_model(recipe.from_)
    require(base.kind == "bpe", f"there are merges to go on from in a BPE, not in a {base.kind}")
    pattern = recipe.pattern or base.pattern
    special_tokens = list(dict.fromkeys([*base.special_tokens, *recipe.special_tokens]))
    ids = base.special_tokens if special_tokens == [*base.special_tokens] else special_tokens
    merges = _as_merges(base)[0]
    base = dataclasses.replace(base, special_tokens=ids, pattern=pattern, merges=merges, ignore_merges=False)
    n = len(base.vocab)
    require(recipe.vocab_size > n, f"the model has {n:,} tokens already: a vocabulary must be larger")
    check_vocab_size(recipe.vocab_size, n)
    steps = {"pattern": pattern, "mark": "", "normalizer": base.normalizer, "alphabet": base.alphabet}
    return dataclasses.replace(recipe, from_=base, special_tokens=special_tokens, byte_fallback=False, **steps)


def _named_normalizer(normalizer: str | Sequence[str | dict]) -> list[dict]:
    """Look up the steps of a normalizer by their names."""
    steps = []
    for step in [normalizer] if isinstance(normalizer, str) else normalizer:
        if isinstance(step, str):
            require_known("normalizer", step, NORMALIZERS)
            step = NORMALIZERS[step]
        steps.append(step)
    return steps


def words_of_model(model: Model, words: Words) -> Words:
    """Segment words over the single bytes into the tokens of a BPE, which are their alphabet, in the order of ids.

    Letters that are no token split a word. What `learn` makes of the result are further merges, for `extend_model`:
    those that a training of the model on these words would have made next. The model's own pattern is not asked: words
    may reach across the ends of its pretokens (SuperBPE, Liu et al. 2025), and then its merges do, too, as they will
    when the new model encodes.

    >>> model = Model({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")])
    >>> words_of_model(model, Words.from_counts({b"abab": 2, b"ba": 1})).symbols
    array([2, 2, 1, 0], dtype=int32)
    """
    require(model.kind == "bpe", f"a model of the kind {model.kind!r} has no merges that others could follow")
    require(words.alphabet == BYTES, "only words over the 256 bytes can be segmented by a model")
    require(not model.word_suffix, "merges cannot follow on those of a model whose words end in a suffix")
    fallback = fallback_tokens(model)
    kept = [id for id in model.ordinary if model.vocab[id] not in fallback]
    symbol_of = np.full(MAX_ID + 1, -1, np.int32)
    symbol_of[kept] = np.arange(len(kept))
    ids, offsets = np.empty(len(words.symbols) + 2, np.uint32), np.zeros_like(words.offsets)
    text, scratch = _with_padding(words.symbols.astype(np.uint8)), np.empty(MAX_LINEAR_MERGE, np.uint64)
    tables = bpe_tables(model, unknown_letter=MAX_ID)
    n = _segment_words(text, words.offsets, tables, scratch, ids, offsets)
    return _split_at_unknown(symbol_of[ids[:n]], offsets, words.counts, [model.vocab[id] for id in kept])


def extend_model(model: Model, learned: Learned, pattern: PatternSource | None = None) -> Model:
    """Add the merges that were learnt on `words_of_model` to a model; returns a new one, with another pattern if given.

    All ids stay, those of special tokens, too; new tokens get those behind the largest. A model whose ids or scores are
    the ranks gets merges. Where a new merge makes a token that the old ones did not reach, it keeps its id.

    >>> model = Model({0: b"a", 1: b"b", 2: b"<s>"}, [], {"<s>": 2})
    >>> words = words_of_model(model, Words.from_counts({b"abab": 2, b"ba": 1}))
    >>> extended = extend_model(model, learn(words, 4))
    >>> extended.merges, extended.vocab[3], extended.vocab[4]
    ([(b'a', b'b'), (b'ab', b'ab')], b'ab', b'abab')
    """
    merges, unreachable = _as_merges(model)
    known = {model.vocab[id] for id in model.ordinary}
    new = (token for token in learned.tokens[len(learned.alphabet) :] if token not in known)
    return dataclasses.replace(
        model,
        vocab=model.vocab | dict(enumerate(new, max(model.vocab, default=-1) + 1)),
        merges=[*merges, *learned.merges],
        scores=None,
        ignore_merges=bool(unreachable) or model.ignore_merges,
        pattern=model.pattern if pattern is None else pattern,
    )


class Training(NamedTuple):
    """Everything that a training measured; as a string, what a person wants to know of it."""

    tokenizer: Tokenizer
    counted: CorpusCounts
    learned: Learned
    timings: dict[str, Timing]  # by stage
    files: Sequence[Path | Texts]  # what was read
    recipe: Recipe

    @property
    def record(self) -> dict:
        """Describe what made the model, in plain JSON: of equal records the models are. No time or path is in it."""
        made = {"config": self.tokenizer.config, "model": self.tokenizer.digest}
        return {"bpe_numba": __version__, "options": self.recipe.options, "corpus": self.counted.described} | made

    def __str__(self) -> str:
        return str(tabulate_training(self))

    __repr__ = __str__


def _warn(message: str) -> None:
    """Warn at the line that called this module."""
    frame, level = inspect.currentframe(), 1
    while frame.f_back and frame.f_globals is globals():
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _warn_if_short(vocab: Mapping[int, bytes], vocab_size: int) -> None:
    """Warn of a vocabulary that is smaller than asked for."""
    if len(vocab) < vocab_size:
        _warn(f"the text gives {len(vocab):,} tokens, fewer than the {vocab_size:,} asked for: it has no more")


def _warn_of_source(source: Source) -> None:
    """Warn of a slow pattern, and of what looks like special tokens in the first file, but was not named."""
    if source.pattern.warning:
        _warn(source.pattern.warning)
    if not _is_stream(source.files[0]):
        names = re.findall(rb"<\|\w{1,40}\|>", _read_part(source.files[0], 0, BLOCK_BYTES))
        counts = Counter(map(bytes.decode, names))
        unnamed = [name for name, n in counts.most_common() if n > 2 and name not in source.special_tokens]
        if unnamed:
            _warn(f"{', '.join(unnamed[:5])} in the text: learnt from as text, unless `special_tokens` names it")


def _name_some(files: Sequence[object]) -> str:
    """Name the first files."""
    return ", ".join(map(str, files[:3])) + ", …" * (len(files) > 3)


@checked
def count_files(
    inputs: Files,
    out: str | os.PathLike = "words.npz",
    *,
    special_tokens: Sequence[str] = (),
    pattern: PatternSource = "gpt2",
    normalizer: Sequence[str] = (),
    byte_fallback: bool = False,
    max_words: int = MAX_WORDS,
    text_field: str | None = None,
    workers: int | None = None,
    progress: bool = False,
    executor: Executor | None = None,
) -> CorpusCounts:
    """Count the pretokens of files, folders or globs in a words file, which `train` takes instead of the texts.

    inputs          files, folders, globs, or - for standard input, as `train` takes them
    out             the words file, .npz
    special_tokens  strings that end documents, and are not learnt from
    pattern         gpt2, cl100k, o200k, llama3, qwen2, nanochat, bert, whitespace, whitespace-split, none, or a regular
                    expression
    normalizer      changes text first: nfc, nfd, nfkc, nfkd, lowercase, strip-accents, nmt, bert or bert-cased
    byte_fallback   to train a model with it: what spells a byte token, as <0x0A>, ends a document too
    max_words       when more unique words than this were counted, the rarest are dropped; 0: they never are

    And text_field, as of a Source; workers, progress and executor, as of an Engine.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a.txt", "b.txt"):
    ...         _ = Path(folder, name).write_text("low low lower")
    ...         counted = count_files(folder, Path(folder, "words.npz"))
    ...     training = train(Path(folder, "words.npz"), 258)
    >>> counted.words.to_counts()[b" low"], counted.n_documents, training.tokenizer.merges
    (2, 2, [(b'o', b'w'), (b'l', b'ow')])
    """
    out, engine = as_path(out), Engine(workers, progress, executor)
    require(out.suffix == ".npz", f"{out}: name a .npz file for the words")
    check_writable(out.parent)
    special_tokens = [*check_special_tokens(special_tokens), *(BYTE_TOKENS if byte_fallback else ())]
    steps, pattern = _named_normalizer(normalizer), Pattern(pattern).parted[0]
    source = Source(find_files(inputs), pattern, special_tokens, text_field, normalizer=steps)
    _warn_of_source(source)
    with stage("compile"):
        compile_counting(source.pattern)
    with stage("scan") as spent:
        counted = count(source, engine, max_words=max_words)
        spent.n_bytes = counted.n_bytes
    with stage("save"):
        save_counts(out, counted, source.settings)
    return counted


@checked
def train(
    inputs: Files | None = None,
    vocab_size: int = 8192,
    special_tokens: Sequence[str] = (),
    *,
    texts: Iterable[str | bytes | Sequence[str | bytes]] | None = None,
    model: str = "bpe",
    alphabet: str | None = None,
    pattern: PatternSource | None = None,
    mark: str | None = None,
    normalizer: Sequence[str] = (),
    coverage: float = 1.0,
    byte_fallback: bool = False,
    unk_token: str | None = None,
    from_: str | os.PathLike | Model | None = None,
    tie_break: str = "bytes",
    score: str = "count",
    min_frequency: int = 1,
    max_words: int = MAX_WORDS,
    workers: int | None = None,
    text_field: str | None = None,
    progress: bool = False,
    executor: Executor | None = None,
    special_tokens_at: str = "first",
) -> Training:
    """Train on files, folders or globs, and return the tokenizer with all that was measured.

    inputs             files, folders, globs, or - for standard input: text, lines of JSON (.jsonl), Parquet; text and
                       JSON may be packed by gzip, xz, bzip2 or zstandard. Not given: the sources of Python's standard
                       library. Or words files (.npz) that `count` wrote, which say the pattern, the normalizer and the
                       special tokens
    vocab_size         tokens in all
    special_tokens     strings that end documents, and are not learnt from
    texts              texts to learn from instead of inputs, or lists of them; they are read once, in bounded memory
    model              bpe; wordpiece; unigram; or longest: the longest token of a vocabulary that bpe has learnt
    alphabet           what tokens are made of: bytes, or characters; the default is bytes with bpe and longest
    pattern            gpt2, cl100k, o200k, llama3, qwen2, nanochat, bert, whitespace, whitespace-split, none, or a
                       regular expression; the default is bert with wordpiece, else gpt2
    mark               with characters: ▁ is written for each space, and comes back as one; any other character marks
                       where a word begins, and white space is left out. The default is ▁ with bpe and unigram
    normalizer         changes text first: nfc, nfd, nfkc, nfkd, lowercase, strip-accents, nmt, bert or bert-cased
    coverage           with characters: the share of all occurrences that the characters in the vocabulary make up
    byte_fallback      with characters: one that is not in the vocabulary becomes tokens of its bytes
    unk_token          with characters and no byte fallback: what it becomes; the default is <unk> or, with wordpiece,
                       [UNK]
    from_              a model, whose merges are gone on from; its tokens keep their ids
    tie_break          which of two equally frequent pairs is merged first: bytes, the one with the greater bytes, or
                       ids, the one with the smaller ids (the rule of Hugging Face)
    score              which pair a wordpiece merges: the one of the greatest count (the way of Hugging Face), or of the
                       greatest likelihood, count(ab) / (count(a) * count(b)), which alone prefers what is seen once
    min_frequency      merge no pair that is rarer; 0 and 1 allow every pair
    max_words          when more unique words than this were counted, the rarest are dropped; 0: they never are
    special_tokens_at  which ids they get: first, after-bytes, or last (as in GPT-2)

    And text_field, as of a Source; workers, progress and executor, as of an Engine.

    Raises InputError, before any work, for what cannot be asked for; and OSError for what cannot be read.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("low low lower<|end|>newest")
    ...     training = train(folder, 260, ["<|end|>"])
    >>> training.learned.counts.tolist(), training.counted.n_documents
    ([3, 3, 2], 2)
    >>> train(texts=["low low lower", "newest"], vocab_size=260).learned.counts.tolist()
    [3, 3, 2, 1]
    """
    recipe = call_with(Recipe, **locals())
    return train_recipe(*prepare(recipe, inputs, texts), text_field, Engine(workers, progress, executor))


def prepare(
    recipe: Recipe, inputs: Files | None = None, texts: Iterable | None = None
) -> tuple[Recipe, Sequence[Path | Texts], Sequence[CorpusCounts]]:
    """Complete a recipe, and find what to learn from: files or texts; or words files, and the counts in them."""
    require(inputs is None or texts is None, "name inputs, or give texts, not both")
    require(not isinstance(texts, (str, bytes)), "texts are several, in a list say: this is one")
    if texts is not None:
        return complete(recipe), [Texts(texts)], ()
    files = standard_library() if inputs is None else find_files(inputs)
    others = [file for file in files if file.suffix != ".npz"]
    if len(others) == len(files):
        return complete(recipe), files, ()
    require(not others, f"{_name_some(others)}: count that, too, and name the counts of both")
    require(len({*files}) == len(files), "a words file is named twice: it would be learnt from twice")
    counted, settings = zip(*map(load_counts, files), strict=True)
    counting = settings[0] | {"pattern": _steps_of(settings[0])}
    counting["special_tokens"] = [token for token in counting["special_tokens"] if token not in BYTE_TOKENS]
    options = {name: getattr(recipe, name) or value for name, value in counting.items()}
    recipe = complete(dataclasses.replace(recipe, **options))
    for name, wanted in recipe.source([], None).settings.items():
        for file, theirs in zip(files, settings, strict=True):
            hint = f"{file}: was counted with other {name}, {theirs[name]}: count the texts again, with {wanted}"
            require(sorted(map(str, theirs[name])) == sorted(map(str, wanted)), hint)
    return recipe, files, counted


def train_recipe(
    recipe: Recipe,
    files: Sequence[Path | Texts],
    counts: Sequence[CorpusCounts],
    text_field: str | None,
    engine: Engine,
) -> Training:
    """Train by a complete recipe, on files, or on the counts of words files; see `prepare`."""
    timings: dict[str, Timing] = {}
    with stage("compile", timings):
        source = recipe.source([] if counts else files, text_field)
        if not counts:
            _warn_of_source(source)
        compile_counting(source.pattern)
        call_with(recipe.learner, Words.from_counts({b"aa": 1}), 257, **vars(recipe))  # a wrong rule costs no scan
    with stage("scan", timings) as spent:
        counted = count(source, engine, counts, recipe.max_words)
        spent.n_bytes = 0 if counts else counted.n_bytes
    require(len(counted.words.counts), f"no text to learn from in {_name_some(files)}")
    with stage("learn", timings):
        learned = recipe.learn(counted.words, engine.progress)
    with stage("vocabulary", timings):
        tokenizer = Tokenizer.from_model(recipe.build(learned))
    _warn_if_short(tokenizer.vocab, recipe.vocab_size)
    return Training(tokenizer, counted, learned, timings, files, recipe)


def train_bpe(
    input_path: Files | None = None, vocab_size: int = 8192, special_tokens: Sequence[str] = (), **options
) -> tuple[dict[int, bytes], list[Merge]]:
    """Train on a file, or several, or on `texts`, and return the vocabulary and the merges; options are as of `train`.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("low low lower<|end|>newest")
    ...     vocab, merges = train_bpe(path, 260, ["<|end|>"])
    >>> vocab[0], merges
    (b'<|end|>', [(b'o', b'w'), (b'l', b'ow'), (b' ', b'low')])
    >>> train_bpe(texts=["low low lower", "newest"], vocab_size=258)[1]
    [(b'o', b'w'), (b'l', b'ow')]
    """
    tokenizer = train(input_path, vocab_size, special_tokens, **options).tokenizer
    return tokenizer.vocab, tokenizer.merges


@checked
def train_bpe_from_counts(
    counts: Mapping[bytes, int],
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    *,
    tie_break: str = "bytes",
    min_frequency: int = 1,
) -> tuple[dict[int, bytes], list[Merge]]:
    """Train on pretokens that were counted elsewhere; see `learn` for the rules, `train` for the vocabulary.

    >>> vocab, merges = train_bpe_from_counts({b"hug": 10, b"pug": 5, b"hugs": 5}, 258)
    >>> merges, vocab[257]
    ([(b'u', b'g'), (b'h', b'ug')], b'hug')
    """
    recipe = complete(Recipe(vocab_size, special_tokens, tie_break=tie_break, min_frequency=min_frequency))
    for token in recipe.special_tokens:
        for word in counts:
            if token.encode() in word:
                raise InputError(f"the word {word!r} holds the special token {token!r}: cut texts there first")
    learned = recipe.learn(Words.from_counts(counts))
    vocab, merges = build_vocabulary(learned, recipe.special_tokens)
    _warn_if_short(vocab, vocab_size)
    return vocab, merges


# ─── Research ─────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Tokenizer, Words, Learned -> reports: dataclasses of plain arrays, whose string is their tables. A corpus is counted
# first, and each unique word is encoded once, by the model without its normalizer and pattern: its tokens count as
# often as the word was seen.

LONGEST_CELL = 60  # characters of a table's cell; the rest is cut off


class Table(NamedTuple):
    """A table of a report. As a string it is Markdown with aligned columns, to be read in a terminal or on a page.

    rows  of strings and numbers; columns of numbers stand on the right, and None and NaN are left empty

    >>> print(Table("Tokens", ("kind", "number"), [("letters", 1200), ("digits", 0.5)]))
    Tokens
    <BLANKLINE>
    | kind    | number |
    | ------- | -----: |
    | letters |  1,200 |
    | digits  |    0.5 |
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]

    def __str__(self) -> str:
        if not self.rows:
            return self.title
        columns = []
        for values in zip(self.header, *self.rows, strict=True):
            header, *cells = map(_cell, values)
            on_right = not any(isinstance(value, str) for value in values[1:])
            width = max(map(_cell_width, (header, *cells)))
            rule = "-" * (width - 1) + ":" if on_right else "-" * width
            columns.append([_fill(cell, width, on_right) for cell in (header, rule, *cells)])
        lines = (f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
        return "\n".join([self.title, "", *lines])


def _cell(value: str | float | None) -> str:
    """Write a value for a table: whole numbers whole, others with four digits; a bar would end the cell."""
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, str):
        text = value if len(value) <= LONGEST_CELL else value[: LONGEST_CELL - 1] + "…"
        return text.replace("|", "\\|")
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _cell_width(text: str) -> int:
    """Count the cells of a terminal that a text takes: two for a wide character, none for one that combines."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _fill(text: str, width: int, on_right: bool = False) -> str:
    """Fill a text up with spaces."""
    gap = " " * (width - _cell_width(text))
    return gap + text if on_right else text + gap


def tabulate_timings(seconds: float) -> Table:
    """Tabulate what the stages of this process took, of so many seconds in all."""
    stages = TIMINGS | {"other": Timing(seconds - sum(spent.seconds for spent in TIMINGS.values()), 0, peak_memory())}
    rows = []
    for name, spent in stages.items():
        rate, peak = spent.n_bytes / spent.seconds / 1e6 or None, spent.memory and round(spent.memory / 1e6)
        rows.append((name, round(spent.seconds, 3), rate, round(100 * spent.seconds / seconds, 1), peak))
    return Table(f"{seconds:.2f} seconds", ("stage", "seconds", "MB/s", "% of time", "peak MB"), rows)


def tabulate_counts(counted: CorpusCounts, files: Sequence[object], title: str = "Pretokens") -> Table:
    """Tabulate what was counted."""
    documents, inputs = number_of(counted.n_documents, "document"), number_of(len(files), "input")
    rows = [
        ("read", f"{number_of(counted.n_read, 'byte')} in {documents}"),
        ("from", f"{inputs}: {_name_some(files)}"),
        ("pretokens", f"{counted.n_pretokens:,}, {len(counted.words.counts):,} of them unique"),
    ]
    if counted.n_dropped:
        rows.append(("dropped", f"{counted.n_dropped:,} pretokens more, as the rarest; max_words keeps more"))
        rows.append(("counts", f"too small by {counted.max_error:,} at most, for what was dropped"))
    return Table(title, ("what", "value"), rows)


def tabulate_training(training: Training) -> Table:
    """Tabulate what was read, what was learnt, and what it cost."""
    counted, learned, model = training.counted, training.learned, training.tokenizer.model
    table = tabulate_counts(counted, training.files, "Training")
    rows = table.rows
    if hasattr(learned, "n_tokens"):  # a Unigram has no merges
        last, n_bytes = int(learned.counts[-1:].sum()), counted.n_bytes - counted.n_dropped_bytes
        rows.append(("merges", f"{len(learned.counts):,}; the last pair occurred {number_of(last, 'time')}"))
        rows.append(("bytes/token", f"{n_bytes / learned.n_tokens[-1]:.2f}"))
    rows.append(("tokens", f"{len(model.vocab):,}, {len(model.special_tokens)} of them special"))
    unseen = sorted({*model.special_tokens} - {model.unk_token} - counted.special_tokens.keys())
    if unseen:
        rows.append(("not in text", ", ".join(unseen)))
    rows += [(name, f"{spent.seconds:.2f} s") for name, spent in training.timings.items()]
    rows.append(("peak memory", f"{(peak_memory() or 0) / 1e6:,.0f} MB in the largest process"))
    return table


class Report:
    """What research returns: a dataclass of plain arrays, which as a string is its tables in Markdown."""

    def __str__(self) -> str:
        return "\n\n".join([self.title, *map(str, self.tables())])

    __repr__ = __str__


# What training learnt, beside its model

LEARNED_FILE, RECORD_FILE = "training.npz", "training.json"


def save_learned(folder: str | os.PathLike, training: Training) -> None:
    """Write what training learnt beside its model: its record, the merges with their counts, the bytes of its corpus.

    What was learnt by another training is removed. Only a BPE makes the tokens that its merges have counted.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("aaab aaab")
    ...     training = train(path, 258)
    ...     save_learned(folder, training)
    ...     learned, n_bytes = load_learned(folder, training.tokenizer.model)
    >>> learned.counts.tolist(), learned.n_tokens.tolist(), n_bytes
    ([4, 2], [9, 7, 5], 9)
    """
    file, learned, model = Path(folder, LEARNED_FILE), training.learned, training.tokenizer.model
    atomic_write_all(Path(folder), {RECORD_FILE: _to_json(training.record, indent=2)})
    if model.kind != "bpe":
        file.unlink(missing_ok=True)  # what another training has learnt
        return
    alphabet = json.dumps([letter.decode("latin-1") for letter in learned.alphabet])
    arrays = learned._replace(alphabet=alphabet)._asdict()
    n_bytes = training.counted.n_bytes - training.counted.n_dropped_bytes
    with atomic_write(file) as out:
        np.savez_compressed(out, **arrays, n_bytes=n_bytes, model=model.fingerprint)


def load_learned(folder: str | os.PathLike, model: Model) -> tuple[Learned, int]:
    """Read what training learnt from the folder of its model, and the bytes of its corpus.

    Raises InputError if there is nothing, or if it is of another model.
    """
    file = Path(folder, LEARNED_FILE)
    remedy = "only a BPE that `train` wrote has its merge counts; train one on the same text"
    require(file.is_file(), f"{folder}: no {LEARNED_FILE} here: {remedy}")
    try:
        zipfile.ZipFile(file).close()  # np.load takes any other file for a pickle
        with np.load(file, allow_pickle=False) as saved:
            arrays = dict(saved)
        require(str(arrays.pop("model")) == model.fingerprint, "it is of another model")
        n_bytes, letters = int(arrays.pop("n_bytes")), json.loads(str(arrays.pop("alphabet")))
        learned = Learned(**arrays, alphabet=[letter.encode("latin-1") for letter in letters])
        m, n_tokens = len(learned.pairs), learned.n_tokens
        fits = learned.counts.shape == (m,) and n_tokens.shape == (m + 1,) and n_tokens.dtype.kind == "i"
        fits = fits and min(n_bytes, *n_tokens) > 0 and learned.merges == model.merges[len(model.merges) - m :]
        require(fits, "its numbers do not fit together")
    except Exception as error:  # damaged files raise almost anything
        message = f"{file}: not what the training of this model saved ({error}): remove it, or train again"
        raise InputError(message) from None
    return learned, n_bytes


# Corpora, each unique word encoded once


class EncodedWords(NamedTuple):
    """The unique words of a corpus, encoded: word w became ids[offsets[w] : offsets[w + 1]], counts[w] times."""

    words: list[bytes]
    counts: np.ndarray  # int64[W]
    ids: np.ndarray  # uint32[N]
    offsets: np.ndarray  # int64[W + 1]
    n_bytes: int  # of text, without special tokens
    n_characters: int
    n_pretokens: int | None  # of the model's own pattern; where that takes whole texts, between white space

    @property
    def n_tokens(self) -> int:
        """Count the tokens of the corpus."""
        return int(np.dot(np.diff(self.offsets), self.counts))

    def frequencies(self, n_ids: int) -> np.ndarray:
        """Count how often each id occurs in the corpus, int64[n_ids]."""
        weights = np.repeat(self.counts, np.diff(self.offsets))  # float64 adds them exactly, below 2**53
        return np.bincount(self.ids, weights, n_ids).astype(np.int64)


def _word_encoder(tokenizer: Tokenizer) -> Tokenizer:
    """Make a tokenizer that encodes words that were normalized and cut already."""
    return Tokenizer.from_model(dataclasses.replace(tokenizer.model, pattern="none", normalizer=()))


def encode_corpus(
    tokenizer: Tokenizer, inputs: object, *, text_field: str | None = None, engine: Engine | None = None
) -> EncodedWords:
    """Count the words of a corpus, and encode each once; raises InputError if it has none.

    inputs      files, folders or globs
    And text_field, as of a Source; and an Engine.

    Bytes and characters are those of the text; characters that a normalizer changes count as it leaves them.

    >>> tokenizer = Tokenizer({b: bytes([b]) for b in range(256)} | {256: b"ab"}, [(b"a", b"b")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("ab\\nab\\nabc")
    ...     encoded = encode_corpus(tokenizer, folder)
    >>> encoded.n_tokens, encoded.frequencies(257)[[97, 99, 256]].tolist(), encoded.n_bytes
    (6, [0, 1, 3], 9)
    """
    source, pattern = tokenizer.source(inputs, "all", text_field), Pattern(tokenizer.model.pattern)
    is_whole = all(step == PATTERNS["none"] or isinstance(step, Metaspace) for step in pattern.steps)
    if not is_whole:  # the tokenizer itself may cut more finely
        source = dataclasses.replace(source, pattern=pattern)
    with stage("scan") as spent:
        counted = count(source, engine)
        words, n_pretokens, spent.n_bytes = counted.words, counted.n_pretokens, counted.n_bytes
        if is_whole:
            by_space = dataclasses.replace(source, pattern=Pattern("whitespace-split"), normalizer=())
            is_gone = any(map(_is_stream, source.files))
            n_pretokens = None if is_gone else count(by_space, engine).n_pretokens
    require(len(words.counts), f"no text to look at in {_name_some(source.files)}")
    with stage("encode"):
        texts = [*words.to_counts()]
        ids, offsets = _word_encoder(tokenizer).encode_batch_to_numpy(texts, "none")
    # A character has one byte that does not continue it. The mark ▁ is a space in the text.
    continues = np.frombuffer(b"".join(texts).replace(MARK.encode(), b"   "), np.int8) < -64
    n_continued = int(np.repeat(words.counts, np.diff(words.offsets))[continues].sum())
    n_bytes = counted.n_bytes
    return EncodedWords(texts, words.counts, ids, offsets, n_bytes, n_bytes - n_continued, n_pretokens)


RENYI_ORDER = 2.5  # for which Zouhar et al. found the best agreement with BLEU


def measure(encoded: EncodedWords, ids: Collection[int]) -> dict[str, float | None]:
    """Compute the usual measures of a tokenizer on a corpus; `ids` are those that text can become, V of them.

    With p the relative frequencies of the ids:

    bytes per token          of text: Gallé, "Investigating the Effectiveness of Byte Pair Encoding" (2019)
    characters per token     of text
    fertility                tokens per word: Rust et al., "How Good is Your Tokenizer?" (2021); a word is a pretoken
                             of the model's own pattern or, where that takes whole texts, what white space separates
    Rényi efficiency         -log2(sum p**2.5) / 1.5 over log2 V: Zouhar et al., "Tokenization and the Noiseless
                             Channel" (2023)
    vocabulary utilisation   the share of ids that occur

    >>> encoded = EncodedWords([b"ab", b"abc"], np.array([3, 2]), np.array([1, 1, 0]), np.array([0, 1, 3]), 12, 12, 5)
    >>> found = measure(encoded, range(2))
    >>> found["tokens"], round(found["bytes per token"], 3), found["fertility"]
    (7, 1.714, 1.4)
    """
    n, n_words = encoded.n_tokens, encoded.n_pretokens
    p = encoded.frequencies(max(ids) + 1)[[*ids]] / n
    return {
        "tokens": n,
        "bytes per token": encoded.n_bytes / n,
        "characters per token": encoded.n_characters / n,
        "fertility": n / n_words if n_words else None,
        "Rényi efficiency": float(np.log2(np.sum(p**RENYI_ORDER)) / (1 - RENYI_ORDER) / np.log2(max(len(ids), 2))),
        "vocabulary utilisation": np.count_nonzero(p) / len(ids),
    }


# inspect

# Kinds of tokens, the first that matches all of one.
KINDS_OF_TOKENS = {
    "white space": r"\s+",
    "word behind a space": r" [\p{L}\p{M}]+",
    "letters": r"[\p{L}\p{M}'’]+",
    "digits": r" ?\p{N}+",
    "punctuation, symbols": r"\s*[^\s\p{L}\p{N}]+\s*",
    "mixed": r"[\s\S]+",
}
RARE = 1000  # a token is hardly ever used if it was made of so many times more pairs than are left of it
ROWS = 12  # of a list in a table


def _classify(token: bytes) -> tuple[str, str]:
    """Find the kind and the script of a token: the first word of the names of its letters."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return ("byte" if len(token) == 1 else "parts of characters"), "none"
    kind = next(kind for kind, source in KINDS_OF_TOKENS.items() if regex.fullmatch(source, text))
    scripts = {unicodedata.name(char, "other").partition(" ")[0].capitalize() for char in text if char.isalpha()}
    return kind, "several" if len(scripts) > 1 else "".join(scripts).replace("Cjk", "Han") or "none"


def unreachable_tokens(tokenizer: Tokenizer) -> dict[int, list[int]]:
    """Find the tokens that their own bytes do not become: {id: the ids that these bytes become}.

    The bytes of a token are encoded as a text, and as one word, without the pattern and the normalizer; it is listed if
    it is not among the ids of either. Then no text at all becomes it, since what happens to bytes in a longer word
    until they are one token is decided by them alone: each merge that is made in them would have been made in them
    alone, in the same order; for Unigram, the same holds of best paths. Not listed is what only the pattern or the
    normalizer prevents, nor two kinds that only longer texts become: tokens that continue a word of a WordPiece, and,
    with byte fallback, bytes of characters that have no token.

    >>> tokens = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"bca"]
    >>> merges = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc"), (b"bc", b"a")]
    >>> unreachable_tokens(Tokenizer(dict(enumerate(tokens)), merges))
    {5: [3, 2]}
    """
    model, by_word, unreachable = tokenizer.model, _word_encoder(tokenizer), {}
    texts, prefix = decoded_tokens(model.vocab, model.decoder)[0], model.subword_prefix.encode()
    parts_of_characters = {*map(str.encode, BYTE_TOKENS[128:])} if model.byte_fallback else set()
    for id in model.ordinary:
        token = model.vocab[id]
        if token in parts_of_characters or (prefix and token.startswith(prefix)):
            continue
        ids = _ids_of(tokenizer, texts[id])
        if id not in ids and id not in _ids_of(by_word, token):
            unreachable[id] = ids
    return unreachable


def _ids_of(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """Encode a text; one that cannot be encoded, since a byte is not in the vocabulary, has no ids."""
    try:
        return tokenizer.encode_ordinary(text)
    except InputError:
        return []


class Glitch(NamedTuple):
    """A token that training made of many pairs, and that is hardly ever used: a candidate for a "glitch token".

    Land and Bartolo, "Fishing for Magikarp" (2024), find such tokens in models; here their counts tell where they went.
    """

    id: int
    made: int  # how many pairs became this token when it was merged
    used: int  # how often it is in the corpus
    taken: Counter[bytes]  # what later merges made of it, and of how many


def find_glitches(learned: Learned, ids: Mapping[bytes, int], frequencies: np.ndarray) -> list[Glitch]:
    """List tokens that were made RARE times as often as a corpus uses them, or more: those made most often first.

    frequencies  of the ids in the corpus. If that is not what was trained on, what was made counts by its share
    """
    made, n_letters = (-np.diff(learned.n_tokens)).tolist(), len(learned.alphabet)
    tokens, share = learned.tokens[n_letters:], frequencies.sum() / learned.n_tokens[-1]
    glitches = {}
    for symbol, (token, n) in enumerate(zip(tokens, made, strict=True), n_letters):
        if token in ids:
            used = int(frequencies[ids[token]])
            if max(used, 1) * RARE <= n * share:
                glitches[symbol] = Glitch(ids[token], n, used, Counter())
    for token, n, pair in zip(tokens, made, learned.pairs.tolist(), strict=True):
        for symbol in glitches.keys() & pair:
            glitches[symbol].taken[token] += n * pair.count(symbol)
    return sorted(glitches.values(), key=lambda glitch: -glitch.made)


@dataclasses.dataclass(eq=False, repr=False)
class Inspection(Report):
    """What a vocabulary is made of, and what a corpus uses of it. See `inspect_model`."""

    title: str
    tokens: dict[int, bytes]  # id -> decoded bytes, without special tokens
    counts: dict[str, Counter]  # how many tokens are of a kind, and of a script
    unreachable: dict[int, list[int]]  # see `unreachable_tokens`
    measures: dict[str, float | None]  # see `measure`; without a corpus, there are none
    frequencies: np.ndarray | None  # int64    of each id in the corpus
    glitches: list[Glitch] | None  # with a corpus and what training learnt

    def tables(self) -> list[Table]:
        tables, tokens = [], self.tokens
        for name, counts in self.counts.items():
            rows = [(key, n, 100 * n / len(tokens)) for key, n in counts.most_common()]
            tables.append(Table(f"Tokens by {name}", (name, "tokens", "%"), rows))
        shown = {id: (str(id), readable(token)) for id, token in tokens.items()}
        longest = sorted(tokens, key=lambda id: -len(tokens[id]))
        rows = [(*shown[id], len(tokens[id])) for id in longest[:ROWS]]
        tables.append(Table("Longest tokens", ("id", "token", "bytes"), rows))
        title = f"Tokens that no text can reach: {len(self.unreachable):,}"
        rows = [(*shown[id], "|".join(shown[k][1] for k in ids)) for id, ids in self.unreachable.items()]
        tables.append(Table(title, ("id", "token", "becomes"), rows[:ROWS]))
        if self.measures:
            tables.append(Table("Measures", ("measure", "value"), [*self.measures.items()]))
        if self.glitches is not None:
            rows = []
            for id, made, used, taken in self.glitches[:ROWS]:
                shares = ", ".join(f"{readable(token)} {100 * n // made} %" for token, n in taken.most_common(3))
                rows.append((*shown[id], made, used, shares))
            title = f"Candidates for glitch tokens: {len(self.glitches):,}"
            tables.append(Table(title, ("id", "token", "made", "used", "now in"), rows))
        return tables


@checked
def inspect_model(
    tokenizer: Tokenizer,
    inputs: object = None,
    *,
    learned: Learned | None = None,
    text_field: str | None = None,
    engine: Engine | None = None,
) -> Inspection:
    """Describe a vocabulary, and what a corpus uses of it.

    inputs      files, folders or globs. None: the vocabulary alone
    learned     what training learnt, for the candidates for glitch tokens, see `load_learned`

    And text_field, as of a Source; and an Engine.

    >>> tokenizer = Tokenizer(*train_bpe_from_counts({b"low": 5, b" lower": 2}, 260))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("low lower low")
    ...     inspection = inspect_model(tokenizer, folder)
    >>> inspection.measures["tokens"], inspection.counts["kind"]["letters"], inspection.unreachable
    (5, 57, {})
    """
    model = tokenizer.model
    decoded = decoded_tokens(model.vocab, model.decoder)[1]
    tokens = {id: decoded[id] for id in model.ordinary if decoded[id]}
    require(tokens, "the model has no token but special ones: there is nothing to inspect")
    kinds, scripts = zip(*map(_classify, tokens.values()), strict=True)
    with stage("search"):
        unreachable = unreachable_tokens(tokenizer)
    frequencies, measures, glitches = None, {}, None
    if inputs is not None:
        encoded = encode_corpus(tokenizer, inputs, text_field=text_field, engine=engine)
        possible = {*model.ordinary}
        if model.unk_token and not model.byte_fallback:
            possible.add(model.ids[model.unk_token.encode()])
        frequencies, measures = encoded.frequencies(max(model.vocab) + 1), measure(encoded, possible)
        glitches = find_glitches(learned, model.ids, frequencies) if learned else None
    return Inspection(
        f"{len(model.vocab):,} tokens, {len(tokenizer.special_tokens):,} of them special, {model.kind}",
        tokens,
        {"kind": Counter(kinds), "script": Counter(scripts)},
        unreachable,
        measures,
        frequencies,
        glitches,
    )


# curve

_SIZES = (512, *(1000 << k for k in range(15)))  # of vocabularies, that tables show


@dataclasses.dataclass(eq=False, repr=False)
class Curve(Report):
    """The tokens of training corpora against the size of the vocabulary, for every size. See `curve`.

    columns  by name, four arrays[M + 1], before the first merge and after each: the size of the vocabulary without
             special tokens, the tokens of the corpus, bytes per token, and the % of the tokens that 1,000 more save
    """

    title: str
    columns: dict[str, tuple[np.ndarray, ...]]

    def tables(self) -> list[Table]:
        tables, header = [], ("vocabulary", "tokens", "bytes/token", "% that 1,000 more save")
        for name, columns in self.columns.items():
            sizes = columns[0]
            is_shown = np.isin(sizes, [sizes[0], sizes[-1], *_SIZES])
            tables.append(Table(name, header, [*np.array(columns, object)[:, is_shown].T]))
        return tables

    def plot(self, path: str | os.PathLike) -> None:
        """Draw bytes per token, and what 1,000 tokens more save, to a .png, .svg or .pdf file."""
        matplotlib, suffix = import_optional("matplotlib"), Path(path).suffix
        require(suffix in (".png", ".svg", ".pdf"), f"{path}: name a .png, .svg or .pdf file")
        with matplotlib.rc_context({"font.size": 9, "text.parse_math": False}):  # names may hold dollar signs
            figure = import_optional("matplotlib.figure").Figure(figsize=(7, 3), layout="constrained")
            left, right = figure.subplots(1, 2)
            for name, (sizes, _, rates, saved) in self.columns.items():
                left.plot(sizes, rates, label=name)
                right.plot(sizes, saved)
            left.set(xscale="log", xlabel="vocabulary", ylabel="bytes per token")
            right.set(xscale="log", yscale="log", xlabel="vocabulary", ylabel="% of the tokens that 1,000 more save")
            left.legend()
            with atomic_write(Path(path)) as file:
                figure.savefig(file, format=suffix[1:], dpi=200)


@checked
def curve(models: Mapping[str, tuple[Learned, int]]) -> Curve:
    """Compute the tokens of the training corpus for every size of the vocabulary at once, from the counts of merges.

    models  name -> what `load_learned` returns

    >>> counts = {b"aaab": 3, b"ab": 1}
    >>> report = curve({"a": (learn(Words.from_counts(counts), 258), 14)})
    >>> [column.round(2).tolist() for column in report.columns["a"][:3]]
    [[256, 257, 258], [14, 11, 7], [1.0, 1.27, 2.0]]
    """
    columns = {}
    for name, (learned, n_bytes) in models.items():
        n_tokens = learned.n_tokens
        sizes, saved = len(learned.alphabet) + np.arange(len(n_tokens)), np.full(len(n_tokens), np.nan)
        saved[:-1000] = 100 - 100 * n_tokens[1000:] / n_tokens[:-1000]
        columns[name] = sizes, n_tokens, n_bytes / n_tokens, saved
    return Curve("Tokens of the training corpus by the size of the vocabulary, without special tokens", columns)


# compare

COMPARED_WORDS = 10_000  # the most frequent ones


class Difference(NamedTuple):
    """A word that models split differently."""

    word: bytes  # with the white space before it
    count: int
    pieces: list[list[bytes]]  # by model, without white space


@dataclasses.dataclass(eq=False, repr=False)
class Comparison(Report):
    """Models beside each other on the same corpora. See `compare`."""

    title: str
    models: list[str]
    corpora: list[str]
    bytes_per_token: np.ndarray  # float64[models, corpora]
    n_shared: np.ndarray  # int64[models, models]    tokens that are in both vocabularies, special tokens apart
    same: float  # the share of the words, by their occurrences, that all models split at the same places
    differences: list[Difference]  # the most frequent first

    def tables(self) -> list[Table]:
        rates, shared, words = [], [], []
        numbers = [str(k) for k in range(1, len(self.models) + 1)]
        for k, name in enumerate(self.models):
            n, row = self.n_shared[k, k], f"{k + 1} {name}"
            rates.append((row, *self.bytes_per_token[k]))
            shared.append((row, n, *(100 * self.n_shared[k] / n)))
        for word, n, pieces in self.differences[:ROWS]:
            words.append((readable(word), n, *("|".join(map(readable, tokens)) for tokens in pieces)))
        title = f"Words split alike by all: {100 * self.same:.1f} % of the {COMPARED_WORDS:,} most frequent, weighted"
        return [
            Table("Bytes per token", ("model", *self.corpora), rates),
            Table("% of the vocabulary that others have", ("model", "tokens", *numbers), shared),
            Table(title, ("word", "count", *numbers), words),
        ]


@checked
def compare(
    tokenizers: Mapping[str, Tokenizer],
    corpora: Mapping[str, object],
    *,
    text_field: str | None = None,
    engine: Engine | None = None,
) -> Comparison:
    """Compare models: bytes per token on each corpus, common tokens, and the words that they split differently.

    tokenizers  name -> Tokenizer
    corpora     name -> files, folders or globs

    And text_field, as of a Source; and an Engine.

    A word is what white space separates, whatever the models are. Each is encoded with the one character of white space
    that stands before it, and only the places inside a word count: some models put a space into the token, some do not.

    >>> small = Tokenizer(*train_bpe_from_counts({b"low": 5, b" lower": 2}, 258))
    >>> large = Tokenizer(*train_bpe_from_counts({b"low": 5, b" lower": 2}, 260))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("low lower low")
    ...     report = compare({"small": small, "large": large}, {"text": folder})
    >>> report.bytes_per_token[:, 0].round(2).tolist(), report.n_shared.tolist(), report.differences[0].pieces
    ([1.86, 2.6], [[258, 258], [258, 260]], [[b'low', b'e', b'r'], [b'lower']])
    """
    require(tokenizers and corpora, "to compare takes a model and a corpus, at least")
    special_tokens = sorted({token for tokenizer in tokenizers.values() for token in tokenizer.special_tokens})
    counts: Counter[bytes] = Counter()
    for corpus in corpora.values():
        source = Source(find_files(corpus), Pattern(r"\s?\S+"), special_tokens, text_field)
        counts.update(count(source, engine).words.to_counts())
    frequent = [word for word, _ in counts.most_common(2 * COMPARED_WORDS) if word.decode("utf-8", "replace").strip()]
    words = frequent[:COMPARED_WORDS]
    rates, vocabularies, splits = [], [], []
    for tokenizer in tokenizers.values():
        encoded = [encode_corpus(tokenizer, files, text_field=text_field, engine=engine) for files in corpora.values()]
        rates.append([corpus.n_bytes / corpus.n_tokens for corpus in encoded])
        tokens = decoded_tokens(tokenizer.vocab, tokenizer.model.decoder)[1]
        vocabularies.append({tokens[id] for id in tokenizer.model.ordinary})
        batch = tokenizer.encode_batch(words, "none")
        splits.append([[*filter(None, map(bytes.strip, decode_each(tokenizer, ids)))] for ids in batch])
    differences = []
    for word, *pieces in zip(words, *splits, strict=True):
        if len({tuple(map(len, tokens)) for tokens in pieces}) > 1:
            differences.append(Difference(word, counts[word], pieces))
    return Comparison(
        "Models compared",
        list(tokenizers),
        list(corpora),
        np.array(rates),
        np.array([[len(a & b) for b in vocabularies] for a in vocabularies]),
        1 - sum(d.count for d in differences) / sum(map(counts.__getitem__, words)),
        differences,
    )


# view

WIDTH = 80  # of what is printed for people, but for tables
GROUNDS = (153, 223, 157, 225, 229, 189)  # of tokens in turn, of a terminal's 256 colours: black is read on them


def decode_each(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    """Decode the ids of a text one by one."""
    first, later = tokenizer._decoded
    return [(later if k else first)[id] for k, id in enumerate(ids)]


@dataclasses.dataclass(eq=False, repr=False)
class View:
    """A text cut into tokens. See `view`."""

    title: str
    ids: np.ndarray  # uint32[N]
    tokens: list[bytes]

    def text(self, width: int = WIDTH, colour: bool = False) -> str:
        """Write tokens between bars, and their ids below; with `colour` on grounds of colours that change."""
        lines, used = [], width
        for k, (token, id) in enumerate(zip(self.tokens, map(str, self.ids), strict=True)):
            shown = readable(token)
            size = max(_cell_width(shown), len(id))
            if used + size >= width:
                lines += ["", ""]
                used = 0
            cell = _fill(shown, size)
            lines[-2] += f"\x1b[30;48;5;{GROUNDS[k % 6]}m{cell}\x1b[0m|" if colour else f"{cell}|"
            lines[-1] += id.ljust(size + 1)
            used = width if token.endswith(b"\n") else used + size + 1
        return "\n".join([*map(str.rstrip, lines), self.title])

    __str__ = __repr__ = text


@checked
def view(tokenizer: Tokenizer, text: str | bytes) -> View:
    r"""Cut a text into tokens, to be looked at.

    >>> print(view(Tokenizer(*train_bpe_from_counts({b"low": 5, b" lower": 2}, 260)), "low lower\n").text(40))
    low|␣  |lower|↵  |
    257 220 259   198
    10 bytes, 4 tokens
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    ids = tokenizer.encode_to_numpy(data)
    title = f"{number_of(len(data), 'byte')}, {number_of(len(ids), 'token')}"
    return View(title, ids, decode_each(tokenizer, ids.tolist()))


# bench: each tool in turn, in this process. A peer is given a training and documents that are UTF-8. It prepares its
# work, and returns the function that is timed, which returns lists: one of the merged tokens, or the ids of documents.


def _train_bpe_numba(training, documents):
    source, size = training.recipe.source(training.files, None), len(training.learned.tokens)
    return lambda: [learn(count(source).words, size, tie_break="ids").tokens[256:]]


def _train_tokenizers(training, documents):
    package, texts = import_optional("tokenizers"), [*map(bytes.decode, documents)]
    size, letters = len(training.learned.tokens), package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=letters)
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = training.tokenizer.to_huggingface().pre_tokenizer

    def work():
        tokenizer.train_from_iterator(texts, trainer)
        return [itertools.starmap(bytes.__add__, read_huggingface(json.loads(tokenizer.to_str())).merges)]

    return work


def _train_gigatoken(training, documents):
    require(training.recipe.pattern == "gpt2", "trains with GPT-2's pattern only")
    separator, learner = f"<|{os.urandom(8).hex()}|>", import_optional("gigatoken").gigatoken_rs.train_bpe
    end, size = separator.encode(), len(training.learned.tokens) + 1
    data = end.join(documents)
    return lambda: [itertools.starmap(bytes.__add__, learner(data, size, [separator], separator=end)[1])]


def _encode_bpe_numba(training, documents):
    tokenizer = Tokenizer.from_model(training.tokenizer.model)
    tokenizer.compile_kernels()
    return lambda: [tokenizer.encode_texts(documents, "none")[0]]


def _encode_tokenizers(training, documents):
    encode, texts = training.tokenizer.to_huggingface().encode_batch_fast, [*map(bytes.decode, documents)]
    return lambda: [encode([text], add_special_tokens=False)[0].ids for text in texts]  # of one text: in one thread


def _encode_tiktoken(training, documents):
    encode, texts = training.tokenizer.to_tiktoken().encode_ordinary_batch, [*map(bytes.decode, documents)]
    return lambda: encode(texts, num_threads=1)


def _encode_gigatoken(training, documents):
    definition = write_huggingface(training.tokenizer.model)["tokenizer.json"]
    encoder = import_optional("gigatoken").Tokenizer.from_json(definition).backend
    return lambda: encoder.encode_batch(documents, parallel=False)


_PEERS = {
    "train": {"bpe_numba": _train_bpe_numba, "gigatoken": _train_gigatoken, "tokenizers": _train_tokenizers},
    "encode": {
        "bpe_numba": _encode_bpe_numba,
        "gigatoken": _encode_gigatoken,
        "tokenizers": _encode_tokenizers,
        "tiktoken": _encode_tiktoken,
    },
}
ENCODED_BYTES = 20_000_000  # of the corpus, that are encoded: some peers make 3 MB/s


def _time_call(work: Callable) -> tuple[float, Sequence]:
    """Call a function; returns the seconds that it took, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


@checked
def bench(
    inputs: object = None,
    vocab_size: int = 8192,
    special_tokens: Sequence[str] = (),
    *,
    pattern: str = "gpt2",
    tools: Sequence[str] = (),
) -> Table:
    """Train and encode with every peer that is installed, one after another, and tabulate what each took.

    inputs          files, folders or globs. Not given: the sources of Python's standard library
    vocab_size      tokens in all
    special_tokens  strings that end documents, and are not learnt from
    pattern         a name, or a regular expression; some peers have their own
    tools           which peers; all that are installed, if not given

    A time of training is that of the call, with the text in memory (here: in files that were just read), and kernels
    loaded. All encode the first 20 MB in one thread with the tokenizer that was trained here, whose ids theirs must
    equal. Each does its work twice. Raises InputError for a tool that is not known.
    """
    for tool in tools:
        require_known("peer", tool, _PEERS["encode"])
    training = train(inputs, vocab_size, special_tokens, pattern=pattern, tie_break="ids")
    source, documents, rows, results = training.recipe.source(training.files, None), [], [], {}
    special = "|".join(sorted(map(re.escape, special_tokens), reverse=True)) or "(?!)"  # the longer of two first
    for text in itertools.chain.from_iterable(map(source.texts, source.blocks())):
        parts = re.split(special, text.decode("utf-8", "replace"))  # some peers take nothing but UTF-8
        documents += [part.encode() for part in parts if part]
    for job, peers in _PEERS.items():
        if job == "encode":
            documents = next(_batched_by_size(documents, len, ENCODED_BYTES))
        for tool, prepare in peers.items():
            if tool != "bpe_numba" and (tool not in (tools or peers) or not importlib.util.find_spec(tool)):
                continue
            first = second = rate = None
            try:
                work = prepare(training, documents)
                (first, _), (second, result) = _time_call(work), _time_call(work)
                rate, result = sum(map(len, documents)) / first / 1e6, [*itertools.chain.from_iterable(result)]
                ours, verdict = results.setdefault(job, result), "same"
                if result != ours:
                    differs = [a != b for a, b in itertools.zip_longest(result, ours)]
                    verdict = f"differs at {differs.index(True):,} of {len(ours):,}"
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of Rust is no Exception
                verdict = " ".join(str(error).split()) or type(error).__name__
            version = __version__ if tool == "bpe_numba" else importlib.metadata.version(tool)
            rows.append((job, f"{tool} {version}", first, second, rate, verdict))
    size = f"{vocab_size:,} tokens of {training.counted.n_bytes / 1e6:.1f} MB"
    title = f"{size}; {available_cores()} cores, {platform.platform()}, Numba {numba.__version__}"
    return Table(title, ("job", "tool", "seconds", "second pass", "MB/s", "result"), rows)


# ─── Command line ─────────────────────────────────────────────────────────────────────────────────────────────────────

# Arguments -> a call of one of the functions below. The options of a command are the keywords of its function, and the
# parameters with a default of the functions that it calls. Their names, types and defaults come from signatures, and
# their help from docstrings. For example, `train corpus.txt --vocab-size 32k` becomes
# `_train_command(["corpus.txt"], vocab_size=32000, …)`, where `vocab_size` and its help are those of `train`.
# _PYTHON_ONLY are parameters that are no options, since --no-special, --quiet or --workers stand for them.
_PYTHON_ONLY = {"allowed_special", "progress", "executor", "options", "learned", "engine", "texts"}
_GROUPS = {
    "how text is read": "text_field corpus no_special append pattern mark normalizer encoding",
    "what is learnt": "vocab_size special_tokens special_tokens_at model alphabet from_ tie_break score min_frequency "
    "max_words coverage byte_fallback unk_token",
    "what is written": "out to dtype layout val_fraction document_index plot",
    "for transformers": "bos_token eos_token pad_token model_max_length chat_template",
}
_EXAMPLE = re.compile(r"^ *\$ (.+)", re.MULTILINE)  # of a docstring: a command, without the program's name
_ROW = regex.compile(r"^(\w+)  +(.+(?:\n  +.+)*)", regex.MULTILINE)  # of a docstring: a parameter and what it means


def _load_model(model: str, *, encoding: str | None = None, pattern: str | None = None) -> Tokenizer:
    """Load the model of a command.

    model     a file or a folder, of any format
    encoding  what a rank file is: gpt2, cl100k_base, o200k_base, llama3 or another published one
    pattern   the pattern of a rank file, or of GPT-2's two files
    """
    with stage("load"):
        return Tokenizer.load(model, encoding=encoding, pattern=pattern)


def _typed_command() -> str:
    """Write how this program was called, as the beginning of what to type next."""
    if Path(sys.argv[0]).stem not in ("bpe_numba", "bpe-numba"):  # called from Python
        return "python bpe_numba.py"
    typed = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return shlex.join(typed) if sys.argv[0].endswith(".py") else Path(sys.argv[0]).name


def _train_command(inputs: Sequence[str] = (), *, out: str = "model", **options) -> None:
    """Learn a vocabulary from text.

    out  folder to write

    $ train corpus.txt --vocab-size 32k --special-token "<|endoftext|>" --out model
    $ train "shards/*.jsonl.gz" --model unigram --vocab-size 16k --out unigram
    """
    recipe, files, counts = prepare(call_with(Recipe, **options), inputs or None)
    config = call_with(transformers_config, **options | {"special_tokens": recipe.special_tokens})
    check_writable(as_path(out))  # what is wrong must not cost the training
    training = train_recipe(recipe, files, counts, options["text_field"], call_with(Engine, **options))
    with stage("save", training.timings), written_together():
        training.tokenizer.model.config |= config
        training.tokenizer.save(out)
        save_learned(out, training)
    if options["progress"]:
        print(training)
        print(f"\nWritten to {out}")
        print(f"\nNext:\n  echo 'Hello, world!' | {_typed_command()} encode {shlex.quote(out)} -")


def _count_command(inputs: Sequence[str], **options) -> None:
    """Count the pretokens of text, to train on them later, or elsewhere.

    $ count corpus.txt --special-token "<|endoftext|>" --out words.npz
    $ train words.npz more-words.npz --vocab-size 32k --out model
    """
    counted, out = call_with(count_files, inputs, **options), options["out"]
    if options["progress"]:
        print(tabulate_counts(counted, inputs))
        print(f"\nWritten to {out}: {number_of(os.path.getsize(out), 'byte')}")
        print(f"\nNext:\n  {_typed_command()} train {shlex.quote(out)}")


def _encode_command(model: str, inputs: Sequence[str], *, no_special: bool = False, **options) -> None:
    """Turn text into token ids.

    no_special  take special tokens in the text for ordinary text

    $ encode model corpus.txt --out tokens.npy --append "<|endoftext|>"
    $ encode model - < corpus.txt
    """
    out = options["out"]
    options["allowed_special"] = "none" if no_special else "all"
    tokenizer = call_with(_load_model, model, **options)
    if tokenizer.pattern.warning:
        warnings.warn(tokenizer.pattern.warning, stacklevel=2)
    with stage("compile"):
        tokenizer.compile_kernels()
    options["progress"] &= out is not None
    if out is None and options["layout"] == "auto":
        options |= {"out": "-", "layout": "text"}
    with stage("encode") as spent:
        encoded = call_with(encode_files, tokenizer, inputs, **options)
        spent.n_bytes = encoded.bytes
    if options["progress"]:
        seconds = TIMINGS["encode"].seconds
        written = " and ".join(map(str, _name_outputs(out, options["val_fraction"])))
        line = f"{seconds:.2f} s: {encoded.bytes / seconds / 1e6:,.1f} MB/s, written to {written}"
        print(encoded, line, sep="\n", file=sys.stderr if out == "-" else sys.stdout)


def _decode_command(model: str, tokens: str, **options) -> None:
    """Turn token ids into text.

    $ decode model tokens.npy --out corpus.again.txt
    $ decode model - < ids.txt
    """
    tokenizer, out = call_with(_load_model, model, **options), options["out"]
    with stage("decode"):
        call_with(decode_file, tokenizer, tokens, **options)
    if options["progress"] and out != "-":
        print(f"{number_of(os.path.getsize(out), 'byte')} of text, written to {out}")


def _convert_command(model: str, *, to: str, out: str, **options) -> None:
    """Write a model in another format.

    to   the format: huggingface, gpt2, tiktoken, sentencepiece or bert
    out  folder to write; or a file, if it ends as those of the format do: .json, .tiktoken, .model, .txt

    $ convert model --to tiktoken --out model.tiktoken
    $ convert o200k_base.tiktoken --to huggingface --out o200k
    """
    tokenizer = call_with(_load_model, model, **options)
    tokenizer.model.config |= call_with(transformers_config, tokenizer.special_tokens, **options)
    tokenizer.save(out, to)
    if options["progress"]:
        print(f"{len(tokenizer):,} tokens, {len(tokenizer.special_tokens)} of them special, written to {out}")


def _inspect_command(model: str, inputs: Sequence[str] = (), **options) -> None:
    """Describe a vocabulary, and what a corpus uses of it.

    $ inspect model
    $ inspect model corpus.txt
    """
    tokenizer, options["engine"] = call_with(_load_model, model, **options), call_with(Engine, **options)
    if Path(model, LEARNED_FILE).is_file():
        options["learned"] = load_learned(model, tokenizer.model)[0]
    print(call_with(inspect_model, tokenizer, inputs or None, **options))


def _curve_command(models: Sequence[str], *, plot: str | None = None, **options) -> None:
    """Compute how many tokens the training text has with each size of the vocabulary.

    models  folders that `train` wrote
    plot    draw the curves to a .png, .svg or .pdf file

    $ curve model
    $ curve english code --plot curve.png
    """
    report = curve({folder: load_learned(folder, load_model(folder)) for folder in models})
    if plot:
        report.plot(plot)
    print(report)


def _compare_command(models: Sequence[str], *, corpus: Sequence[str] = (), **options) -> None:
    """Compare models on corpora.

    models  files or folders, of any format
    corpus  files, a folder or a glob; not given: the sources of Python's standard library

    $ compare model cl100k_base.tiktoken
    $ compare model other-model --corpus english.txt --corpus code.txt
    """
    tokenizers, options["engine"] = {path: _load_model(path) for path in models}, call_with(Engine, **options)
    corpora = {path: path for path in corpus} or {"standard library": standard_library()}
    print(call_with(compare, tokenizers, corpora, **options))


def _view_command(model: str, text: Sequence[str] = (), **options) -> None:
    """Show a text cut into tokens.

    text  the text; not given: standard input

    $ view model "Hello, world"
    $ view model < corpus.txt
    """
    if len(text) == 1 and os.path.isfile(text[0]):
        warnings.warn(f"{text[0]} is shown as a text; the file is, with < before its name", stacklevel=2)
    data = os.fsencode(" ".join(text)) if text else sys.stdin.buffer.read()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print(view(call_with(_load_model, model, **options), data).text(shutil.get_terminal_size().columns, colour))


def _bench_command(inputs: Sequence[str] = (), **options) -> None:
    """Train and encode beside the peers that are installed.

    $ bench
    $ bench corpus.txt --vocab-size 32k
    """
    print(call_with(bench, inputs or None, **options))


_COMMANDS = {
    "train": (_train_command, train, transformers_config),
    "count": (_count_command, count_files),
    "encode": (_encode_command, _load_model, encode_files),
    "decode": (_decode_command, _load_model, decode_file),
    "convert": (_convert_command, _load_model, transformers_config),
    "inspect": (_inspect_command, _load_model, inspect_model, Engine),
    "curve": (_curve_command,),
    "compare": (_compare_command, compare, Engine),
    "view": (_view_command, _load_model),
    "bench": (_bench_command, bench),
}


def _whole_number(text: str) -> int:
    """Read a whole number, which may be written as 10k, 2M or 10,000.

    >>> _whole_number("10k"), _whole_number("10_000"), _whole_number("2M")
    (10000, 10000, 2000000)
    """
    match = re.fullmatch(r"(-?\d+(?:[_,]\d{3})*)([kmg]?)", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 4, 32000 or 32k")
    return int(re.sub("[_,]", "", match[1])) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2]]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> None:
        self.exit(2, f"bpe_numba: {message}; see {self.prog} --help\n")

    def refuse(self, unknown: str) -> None:
        """End with an error that names the option most like an unknown one."""
        near = difflib.get_close_matches(unknown.partition("=")[0], self._option_string_actions, 1)
        self.error(f"unrecognized argument: {unknown}" + "".join(f"; did you mean {option}?" for option in near))


def _add_argument(
    group: argparse._ArgumentGroup, parameter: inspect.Parameter, is_positional: bool, text: str
) -> argparse.Action:
    """Add the argument of the command line that sets a parameter."""
    name, default, kind = parameter.name.rstrip("_"), parameter.default, str(parameter.annotation)
    is_many, text = kind.startswith("Sequence[str]"), text.replace("%", "%%")
    if is_many:
        name = re.sub("(?<!u)s$", "", name)  # --special-token, but --corpus
    settings = {"metavar": name.split("_")[-1].upper()}
    if is_positional:
        if is_many:
            settings["nargs"] = "*" if default == () else "+"
        return group.add_argument(parameter.name, help=text, **settings)
    if kind == "bool":
        settings = {"action": "store_true"}
    elif is_many:
        settings |= {"action": "append", "default": []}
        text += "; may be repeated"
    else:
        settings |= {
            "type": {"int": _whole_number, "float": float}.get(kind.partition(" ")[0], str),
            "default": default,
        }
        settings["required"] = default is parameter.empty
        if default not in (None, parameter.empty):
            text += f" (default: {default})"
    return group.add_argument("--" + name.replace("_", "-"), dest=parameter.name, help=text, **settings)


def _add_arguments(command: _Parser, run: Callable, callees: Sequence[Callable]) -> dict[str, str]:
    """Add the arguments of a command; returns how each is written, by the name of its parameter.

    They are its own parameters, and those with a default of the functions that it calls.
    """
    texts, groups, flags = {}, {}, {}
    for function in (run, *callees, Source, Engine):
        rows = _ROW.findall(inspect.getdoc(function) or "")  # Python has no docstrings with -OO
        texts = {name: " ".join(text.split()) for name, text in rows} | texts
    for title, names in _GROUPS.items():
        groups |= dict.fromkeys(names.split(), command.add_argument_group(title))  # none is shown empty
    for function in (run, *callees):
        for name, parameter in inspect.signature(function).parameters.items():
            has_default = parameter.default is not parameter.empty
            if name not in (*_PYTHON_ONLY, *flags) and (function is run or has_default):
                is_positional = name in inspect.getfullargspec(run).args
                group = command if is_positional else groups.get(name, command)
                action = _add_argument(group, parameter, is_positional, texts.get(name, ""))
                flags[name] = action.option_strings[0] if action.option_strings else action.metavar
    return flags


def _make_parser() -> _Parser:
    """Make the parser of the command line from the signatures and docstrings of _COMMANDS."""
    parser = _Parser(prog=_typed_command(), description="Train and run subword tokenizers.")
    parser.add_argument("--version", action="version", version=f"bpe_numba {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run, *callees) in _COMMANDS.items():
        doc, form = inspect.getdoc(run) or "", argparse.RawDescriptionHelpFormatter
        title = doc.partition("\n")[0]
        examples = "\n".join(["examples:", *(f"  {_typed_command()} {line}" for line in _EXAMPLE.findall(doc))])
        command = commands.add_parser(name, help=title, description=title, epilog=examples, formatter_class=form)
        command.set_defaults(run=run, flags=_add_arguments(command, run, callees), refuse=command.refuse)
        command.add_argument("--quiet", dest="progress", action="store_false", help="no progress bars, no summary")
        command.add_argument("--timings", action="store_true", help="print what each stage took, on standard error")
    return parser


def _drop_unwritable_output() -> None:
    """Flush standard output, and where that fails drop the rest: at exit Python would try again, and complain."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, or 2 for bad input."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    start, (parsed, unknown) = time.perf_counter(), _make_parser().parse_known_args(arguments)
    options = vars(parsed)
    run, flags, timings, refuse = map(options.pop, ("run", "flags", "timings", "refuse"))
    if unknown:
        refuse(unknown[0])
    TIMINGS.clear()

    def say(message: object) -> None:
        """Print a line that names options, where functions name parameters."""
        line = re.sub(r"`(\w+)`", lambda name: flags.get(name[1], name[0]), " ".join(str(message).splitlines()))
        tqdm.write(f"bpe_numba: {line}", sys.stderr)  # which leaves bars whole

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may hold bytes that are not UTF-8
    try:
        for name, value in options.items():
            require(value != "" or name == "mark", f"`{name}` is empty: is a variable not set?")
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: say(f"note: {message}")
            run(**options)
        print(end="", flush=True)
        if timings:
            print(tabulate_timings(time.perf_counter() - start), file=sys.stderr)
        return 0
    except InputError as error:
        message = error
    except BrokenPipeError:  # head has seen enough
        return 0
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
    except UnicodeEncodeError as error:
        message = _lone_surrogate_message(error)
    except MemoryError:
        message = "out of memory"
    finally:
        _drop_unwritable_output()
    say(message)
    return 2


def run() -> int:
    """Run a command as a program: 130 is its exit status when it is interrupted, 143 by SIGTERM."""
    _end_when_asked()
    return main()
