"""Train and run subword tokenizers (BPE, WordPiece and Unigram) with kernels compiled by Numba.

    python bpe_numba.py train                  # learns from the source of Python's standard library
    python bpe_numba.py train corpus.txt --vocab-size 32000 --out model
    python bpe_numba.py encode model corpus.txt --out tokens.npy
    python bpe_numba.py convert model --to tiktoken --out model.tiktoken

    >>> counts = {b"low": 5, b" lower": 2, b" newest": 6, b" widest": 3}
    >>> tokenizer = train(counts=counts, vocab_size=262).tokenizer
    >>> tokenizer.encode("lowest")
    [259, 257]
    >>> [tokenizer.id_to_token(id) for id in tokenizer.encode("lowest")]
    [b'low', b'est']

Glossary

    document        a file, a line of a .jsonl file, or the text between two special tokens
    pretoken        a piece of a document, cut out by the pattern; no token crosses its ends
    step            a part of a pattern or a normalizer; it changes the result of the one before
    flat text       texts in one array of bytes; the byte END (0xFE) stands where a text ends, and
                    over each special token
    word            a distinct pretoken, as a sequence of symbols, with the count of its occurrences
    symbol          a number for some bytes during learning; the first are bytes or characters
    pair            two adjacent symbols of a word
    merge           a pair that became one symbol; its rank is its position in the list of merges
    token, id       an entry of the vocabulary (its bytes), and the number of that entry
    special token   a token that is matched as a whole: it is never split, merged or learnt from
    family          how a vocabulary is learnt; for example, "longest" learns as a BPE does
    kind            how a model cuts words into tokens: BPE, trimmed BPE, WordPiece, WordLevel or
                    Unigram

Letters in shapes: W words, N symbols in all words, M merges, V symbols or tokens, P pairs, T texts.

Sections, in the order in which the data passes through them

    Compiling       functions -> kernels and structs; the few instructions that Numba lacks
    Calls           errors and notes; public functions, whose arguments are checked
    Running         workers, interrupts, progress, stages, files written whole or not at all
    Bytes           kernels for bytes and characters, and a trie; all sections use them
    Steps           the parts of a pattern: expressions, Splits, Metaspaces; steps in tokenizer.json
    Patterns        steps -> a table over bytes that finds pretokens
    Scanning        flat text, in which END stands where a text ends -> the ends of its pretokens
    Special tokens  flat text -> flat text with END over each special token; where a text may be cut
    Normalizing     flat text -> flat text in a normal form, in lower case, without accents
    Pretokenizing   texts -> parts -> one flat text, ready for the last step of a pattern
    Reading         files, folders, globs, standard input -> blocks that are scanned independently
    Words           blocks -> Words, counted by several workers in hash tables of byte strings
    Learning        Words -> merges of the best pairs, or of pairs that a caller chooses; serial
    Models          a tokenizer as data (vocabulary, merges, special tokens, pattern), and checks
    Encoding        words -> ids, through a cache; ids -> bytes
    WordPiece       words -> their longest tokens; Words -> tokens, by likelihood or by count
    Unigram         Words -> tokens with probabilities; words -> ids, by the most probable path
    Decoding        tokens -> the texts for which they stand, by the steps of a decoder
    Formats         a Model <-> files of Hugging Face, GPT-2, tiktoken; of others -> a Model
    Kinds           the functions of BPE, WordPiece, WordLevel and Unigram, by name
    Tokenizer       text -> ids -> text
    Token files     files of text -> files of token ids, by several workers; and back
    Training        files -> a tokenizer, in one call
    Research        tokenizers, corpora and training histories -> tables and pictures
    Command line    arguments -> one of the functions above
"""

from __future__ import annotations

import gc
import os
import signal
import sys

# If this file is a program (`python bpe_numba.py` or `bpe-numba`), three things come first:
#
# - NumPy starts no threads of its own: it would not use them, and Python ends if none can start.
# - An interrupt during the imports ends the process without a traceback.
# - `python bpe_numba.py` imports the file as a module, and runs that module. The workers import it,
#   too, and Numba caches the kernels of a module and of __main__ separately. A copy of the file has
#   another name, and `python -P` does not search its folder.

if os.path.basename(str(*sys.argv[:1])) in ("bpe_numba.py", "bpe-numba"):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.SIG_DFL)

if __name__ == "__main__":
    import importlib

    folder, name = os.path.split(os.path.realpath(__file__))
    sys.path.append(folder)
    sys.exit(importlib.import_module(os.path.splitext(name)[0]).run())

# Importing makes 150,000 objects that stay, and Python would search them for garbage several times.
if _COLLECTS := gc.isenabled():
    gc.disable()

import argparse
import atexit
import base64
import binascii
import bz2
import codecs
import contextlib
import copy
import csv
import ctypes
import dataclasses
import difflib
import errno
import functools
import glob
import gzip
import hashlib
import heapq
import html
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
import operator
import pickle
import re
import reprlib
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import time
import traceback
import typing
import unicodedata
import warnings
import zlib
from array import array
from collections import Counter, UserList, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from operator import attrgetter, index, methodcaller
from pathlib import Path
from types import FunctionType, MappingProxyType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, NamedTuple, TypeVar

try:
    import numba
    import numpy as np
    import regex
    from llvmlite import ir
    from numba.core import event
    from numba.experimental import structref
    from numba.extending import intrinsic, overload
    from tqdm import tqdm
except (ImportError, MemoryError, OSError) as error:
    if _COLLECTS:
        gc.enable()
    if not str(*sys.argv[:1]).endswith(("bpe_numba.py", "bpe-numba")):
        raise
    message = "a required package is missing, or memory ran out"
    print(f"bpe_numba: {message}: {error!r:.200}", file=sys.stderr)
    sys.exit(2)

__version__ = "0.3.0"
__all__ = [
    "ENCODINGS",
    "FAMILIES",
    "KINDS",
    "PATTERNS",
    "AddedToken",
    "CorpusCounts",
    "Curve",
    "DecodeStream",
    "Encoded",
    "EncodedWords",
    "Engine",
    "Family",
    "InputError",
    "Kind",
    "Lattice",
    "Learned",
    "Learner",
    "Metaspace",
    "Model",
    "NgramModel",
    "Normalizer",
    "Pair",
    "Pattern",
    "Report",
    "Source",
    "Split",
    "Start",
    "Table",
    "Tokenizer",
    "Training",
    "Trie",
    "View",
    "Words",
    "bits_per_byte",
    "compare",
    "count",
    "count_files",
    "curve",
    "decode_file",
    "encode_corpus",
    "encode_files",
    "extend_model",
    "find_files",
    "inspect_model",
    "kernel",
    "learn",
    "load_counts",
    "make_trie",
    "measure",
    "read_ids",
    "read_vocab",
    "struct",
    "train",
    "train_bpe",
    "trie_child",
    "view",
    "vocab_names",
    "words_of_model",
]


def __dir__() -> list[str]:
    """List the names that completion in a notebook should offer."""
    return sorted(__all__)


# A variable that starts at 0 and is passed to a kernel starts as ZERO, an int64: a literal 0 would
# compile the kernel twice. ONE is a uint64, like the numbers to which kernels add it.
u8 = np.uint8
u32 = np.uint32
u64 = np.uint64
i64 = np.int64
ALL_ONES = u64(2**64 - 1)
ZERO = i64(0)
ONE = u64(1)
Function = TypeVar("Function", bound=Callable)
Text = str | bytes
PathName = str | os.PathLike
Allowed = str | Collection[str]  # special tokens: "all", "none", one of them, or several
PADDING = 16  # bytes after a text: kernels may read them, but ignore their values
COMPILES = not numba.config.DISABLE_JIT  # otherwise kernels are plain Python, for debuggers
if not COMPILES:
    np.seterr(over="ignore")  # hashes are computed modulo 2**64


MANY_OBJECTS = 10_000  # a search of fewer takes less than a millisecond


def _collect_again():
    """Let Python search for garbage again, in its own time.

    If there are many new objects, all existing objects move to the oldest generation without a
    search. They stay where they are if the program has put some out of reach by `gc.freeze`, since
    counting those takes long.
    """
    if gc.get_count()[0] > MANY_OBJECTS and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
    gc.enable()


@contextlib.contextmanager
def collecting_later(most_stay=True):
    """Search for no garbage while a block makes many objects.

    most_stay  most of these objects are in use after the block, too, so they are not searched then
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects and most_stay:
            _collect_again()
        elif collects:
            gc.enable()


# ─── Compiling ────────────────────────────────────────────────────────────────────────────────────
#
# A kernel is a function that Numba compiles at its first call and caches on the disk. The cache
# does not notice changes in other files, which is one reason why there is only one module. There
# are five decorators:
#
#     @kernel               # called from Python and from kernels; compiled for its arguments' types
#     @inner_kernel         # called from kernels; a call from Python would end the process
#     @inline_kernel        # the same, and copied into each kernel that calls it
#     @struct               # a class of arrays and numbers: one argument, which can be changed
#     @_intrinsic(plain)    # emits one instruction; `plain` does the same in Python
#
# With NUMBA_DISABLE_JIT=1 all of them are plain Python, and give the same results.
#
# Numba counts the references to arrays and structs wherever it cannot prove that counting is
# needless, and counting takes longer than the work on a short word. So the arrays of a kernel that
# is called for each word are `borrowed`; a kernel of a BPE also has one exit, and its loops have no
# break.

COMPILED_ANEW: set[str] = set()  # kernels of this module that each process compiles again
CACHE_SPACE = 1 << 26  # bytes that the kernels need on the disk


def _compiler(cache, **options):
    """Make a decorator for kernels, which release Python's lock.

    cache  whether the disk keeps the kernel. If two processes compiled one kernel for different
           types at the same time, their files could be lost or mixed up. So a kernel that several
           others call with different types is not kept
    """
    # A cfunc wrapper serves kernels in variables. Each wrapper takes a tenth of the time of
    # compiling.
    options.update(nogil=True, no_cfunc_wrapper=True)

    def compile_lazily(function):
        """Compile a function when it is called for the first time."""
        if not COMPILES:
            return function
        try:
            compiled = numba.njit(cache=cache, **options)(function)
            folder = compiled.stats.cache_path  # None without a cache
            saved = f"{folder}/*.{function.__name__}-*.nbi"
            if folder and shutil.disk_usage(folder).free < CACHE_SPACE and not glob.glob(saved):
                raise RuntimeError("the disk is full, and the kernel is not saved")
            return compiled
        except RuntimeError:  # no folder for the cache is writable, or the source is in no file
            if function.__module__ == __name__:
                COMPILED_ANEW.add(function.__name__)
            return numba.njit(**options)(function)

    return compile_lazily


inner_kernel = _compiler(cache=True, no_cpython_wrapper=True)
inline_kernel = _compiler(cache=False, no_cpython_wrapper=True, forceinline=True)


def kernel(function: Function) -> Function:
    """Compile a function by Numba when it is called, once for each set of types of its arguments.

    The disk keeps the compiled kernel until the file of the function changes. A kernel releases
    Python's lock. With NUMBA_DISABLE_JIT=1 it stays a plain function.

    >>> @kernel
    ... def count_spaces(text):
    ...     n = 0
    ...     for byte in text:
    ...         if byte == 32:
    ...             n += 1
    ...     return n
    >>> count_spaces(np.frombuffer(b"to be or not", np.uint8))
    3
    """
    return _compiler(cache=True)(function)


def entry_point(function, *arguments):
    """Return the compiled function for arguments of these types.

    Calling it saves the time in which Numba looks up the types. For a short text, that is a third
    of the time.

    >>> entry_point(kernel(lambda n: n + 1), 1)(2)
    3
    """
    return function.compile(tuple(map(numba.typeof, arguments))) if COMPILES else function


def _source_digest(module):
    """Return a digest of a module's file; "" for a notebook or a frozen program."""
    try:
        source = Path(sys.modules[module].__file__).read_bytes()
    except (AttributeError, OSError):
        return ""
    return f"{zlib.crc32(source):08x}"


def _struct_type(module, name, fields):
    """Find the Numba type of a struct that was pickled into the cache on the disk.

    If the file that defines it is missing or has changed, the result is a type that no argument
    has.
    """
    try:
        return getattr(importlib.import_module(module), name)(fields)
    except (AttributeError, ImportError):
        return numba.types.Opaque(f"{module}.{name}")


def struct(fields: type) -> type:
    """Turn a class of annotated fields into one that kernels take by reference.

    Kernels may replace its fields: they can put a longer array in the place of one that is too
    short. Python passes an instance at once, and a named tuple array by array. Python creates
    instances, as those of a dataclass, but does not read their fields.
    """
    record = dataclasses.dataclass(eq=False)(fields)
    if not COMPILES:
        return record
    module = fields.__module__
    # The caches of other files know the type by its name, so a changed file needs another name. A
    # file keeps the name if only its time has changed, since Numba still uses its kernels.
    # docs/develop.py also keeps the name, since it keeps kernels while other parts of the file
    # change.
    digest = os.environ.get("BPE_NUMBA_STRUCTS") or _source_digest(module)
    type_name = f"{fields.__name__}Type{digest}"

    @structref.register
    class StructType(numba.types.StructRef):  # of the instances in kernels
        def __reduce__(self):
            return _struct_type, (module, type_name, tuple(self.field_dict.items()))

    class Proxy(structref.StructRefProxy):  # of the instances in Python
        __slots__ = ()
        numba_type = StructType

        def __new__(cls, *values, **named):
            return create(*vars(record(*values, **named)).values())

    def new(*values):
        return Proxy(*values)

    StructType.__name__ = StructType.__qualname__ = type_name  # Numba knows the type by these
    setattr(sys.modules[module], type_name, StructType)
    functools.update_wrapper(Proxy, fields, updated=())
    Proxy.__signature__ = inspect.signature(record)
    structref.define_proxy(Proxy, StructType, list(fields.__annotations__))
    new.__qualname__ = f"{type_name}.new"  # the name of its file in the cache
    create = kernel(new)
    return Proxy


def _intrinsic(plain):
    """Make a decorator for functions that emit instructions, or else are replaced by `plain`."""
    return intrinsic if COMPILES else lambda function: plain


_INT8 = ir.IntType(8)
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)


def _address(context, builder, signature, arguments, value_type):
    """Emit the address of array[index], the first two arguments, as a pointer to this type."""
    array_type, *_ = signature.args
    array, index, *_ = arguments
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), value_type.as_pointer())


@_intrinsic(lambda array, index: None)
def prefetch(typing_context, array, index):
    """Ask the processor to load an item into its cache; the index is one of the flattened array."""

    def emit(context, builder, signature, arguments):
        address = _address(context, builder, signature, arguments, _INT8)
        types = address.type, _INT32, _INT32, _INT32
        function_type = ir.FunctionType(ir.VoidType(), types)
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), function_type)
        # the numbers mean: it will be read, it stays in all levels of the cache, it is data
        builder.call(function, [address, _INT32(0), _INT32(3), _INT32(1)])
        return context.get_dummy_value()

    return numba.void(array, numba.intp), emit


@_intrinsic(lambda array: array)
def borrowed(typing_context, array):
    """Return an array, or a tuple of arrays, to which Numba counts no references.

    The array must live longer than the call of a kernel, as the arguments of the kernel do.
    """

    def lend(context, builder, array_type, value):
        if isinstance(array_type, numba.types.BaseTuple):
            for k, part_type in enumerate(array_type):
                part = builder.extract_value(value, k)
                part = lend(context, builder, part_type, part)
                value = builder.insert_value(value, part, k)
            return value
        view = context.make_array(array_type)(context, builder, value)
        view.meminfo = view.meminfo.type(None)
        return view._getvalue()

    def emit(context, builder, signature, arguments):
        return lend(context, builder, array, *arguments)

    return array(array), emit


@_intrinsic(lambda array, index: array.reshape(-1)[index : index + 8].view(u64)[0])
def load_u64(typing_context, array, index):
    """Load 8 bytes at array[index :] as a little-endian uint64; all must lie in the array."""

    def emit(context, builder, signature, arguments):
        address = _address(context, builder, signature, arguments, _INT64)
        return builder.load(address, align=1)

    return numba.uint64(array, numba.intp), emit


@_intrinsic(lambda array, index, word: array[index : index + 8].view(u64).fill(word))
def store_u64(typing_context, array, index, word):
    """Write a uint64 as 8 little-endian bytes to array[index :]; all must lie in the array."""

    def emit(context, builder, signature, arguments):
        address = _address(context, builder, signature, arguments, _INT64)
        builder.store(arguments[2], address, align=1)
        return context.get_dummy_value()

    return numba.void(array, numba.intp, numba.uint64), emit


def _compare_plainly(array, index, least):
    flags = array.reshape(-1)[index : index + 64] >= least
    return np.packbits(flags, bitorder="little").view(u64)[0]


@_intrinsic(_compare_plainly)
def bytes_from(typing_context, array, index, least):
    """Compare the 64 bytes at array[index :] with `least`: bit k is set if byte k is not less.

    Returns a uint64. The index is one of the flattened array, and all 64 bytes must lie inside it.
    """

    def emit(context, builder, signature, arguments):
        vector = ir.VectorType(_INT8, 64)
        address = _address(context, builder, signature, arguments, vector)
        data = builder.load(address, align=1)
        # a shuffle by zeros copies the first item of a vector to all others
        nothing = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_INT32, 64), None)
        first = builder.insert_element(nothing, arguments[2], _INT32(0))
        all_least = builder.shuffle_vector(first, first, zeros)
        flags = builder.icmp_unsigned(">=", data, all_least)
        return builder.bitcast(flags, _INT64)

    return numba.uint64(array, numba.intp, numba.uint8), emit


@_intrinsic(lambda: u64(0x9E3779B97F4A7C15))
def process_seed(typing_context):
    """Return the address of a system function, a number that differs between runs."""

    def emit(context, builder, signature, arguments):
        function_type = ir.FunctionType(_INT64, ())
        function = builder.module.declare_intrinsic("qsort", (), function_type)
        return builder.ptrtoint(function, _INT64)

    return numba.uint64(), emit


if COMPILES:
    count_bits = numba.types.ExternalFunction("llvm.ctpop.i64", numba.uint64(numba.uint64))
else:

    def count_bits(word):
        """Count the bits that are set in a uint64."""
        return u64(int(word).bit_count())


@inline_kernel
def lowest_bit(word):
    """Find the lowest bit that is set in a uint64, by one instruction; 64 if no bit is set."""
    return count_bits(~word & (word - ONE))


@inline_kernel
def _reserve(array, n):
    """Return the array, or a longer copy if it has fewer than n entries."""
    if n <= len(array):
        return array
    longer = np.empty(max(n, len(array) * 3 // 2), array.dtype)
    # `longer[:n] = array` takes long to compile, because of its error message
    for k in range(len(array)):
        longer[k] = array[k]
    return longer


if COMPILES:
    _size_t = numba.uintp
    copy_memory = numba.types.ExternalFunction("memcpy", _size_t(_size_t, _size_t, _size_t))
else:
    copy_memory = ctypes.memmove  # (address, address to copy from, number of bytes)


def _record(**fields):
    """Make the type of a table of records, which loads one cache line for all fields of an entry.

    Learning waits for cache lines more than for anything else. Without a compiler, an
    attribute of NumPy's records hides a field of the same name, such as `size`.
    """
    return np.dtype((np.record, list(fields.items())))


_madvise = numba.types.ExternalFunction("madvise", numba.intc(numba.uintp, numba.uintp, numba.intc))
HUGE_PAGES = 14 if COMPILES and sys.platform == "linux" else 0  # MADV_HUGEPAGE


@inline_kernel
def _on_huge_pages(array):
    """Request huge pages for an array of 4 MB or more, as NumPy does, before it is written to."""
    if HUGE_PAGES and array.nbytes >= 1 << 22:
        first_page = (array.ctypes.data + 4095) & ~4095
        _madvise(first_page, array.nbytes - 4096, HUGE_PAGES)
    return array


HUGE_PAGE = 1 << 21  # bytes


def _side_by_side(*tables):
    """Copy tables into one block on huge pages, since a look-up also waits for its page.

    >>> _side_by_side(np.arange(3), np.zeros(2))
    [array([0, 1, 2]), array([0., 0.])]
    """
    sizes = [table.nbytes + -table.nbytes % 64 for table in tables]
    n_pages = 1 + sum(sizes) // HUGE_PAGE
    block = np.empty((n_pages + 1) * HUGE_PAGE, u8)  # NumPy asks for huge pages from 4 MB on
    start = -block.ctypes.data % HUGE_PAGE
    copies = []
    for table, size in zip(tables, sizes, strict=True):
        copies.append(block[start : start + table.nbytes].view(table.dtype))
        copies[-1][:] = table
        start += size
    return copies


# glibc returns the memory of each large array to the system until an array of almost 32 MB has been
# freed; see mallopt(3). So one is freed here, and blocks then use the same memory again.
with contextlib.suppress(MemoryError):
    np.empty((1 << 25) - (1 << 13), u8)


# ─── Calls ────────────────────────────────────────────────────────────────────────────────────────
#
# A call of a public function -> the same call with right arguments, or one sentence. Annotations
# say what a parameter takes, and `@public` checks the arguments of each call against them:
#
#     train("a.txt", 400.0)   ->   InputError: `vocab_size` is 400.0: it must be a whole number
#
# So a function does no work for a wrong call, and need not check types itself. Two aliases of types
# have a range: a Positive is a whole number, 1 or more. A wrong call and a missing file raise
# InputError; advice about anything else is a note.


class InputError(ValueError):
    """Invalid input: the message names the file, line or option, and the remedy.

    >>> Words.from_counts({b"ab": -1})
    Traceback (most recent call last):
    ...
    bpe_numba.InputError: the count of b'ab' is -1: it must be a whole number, 0 or more
    """

    _names_file = False  # the message begins with the name of a file


def require(condition, message):
    """Raise InputError with this message unless the condition holds."""
    if not condition:
        raise InputError(message)


def do_nothing(*_):
    """Accept any arguments: this stands for a progress bar or a writer that is missing."""


def note(text, category=UserWarning):
    """Warn the user; the warning points to the line that called this module."""
    frames = traceback.walk_stack(inspect.currentframe())
    # a generated __init__ has the globals of this module, too
    is_own = [frame.f_globals is globals() for frame, _ in frames]
    warnings.warn(text, category, stacklevel=len(is_own) + 1 - is_own[::-1].index(True))


def note_lost(name, n_bytes, n_kept):
    """Warn of the bytes of a text that are in no token, and return their number."""
    n_lost = int(n_bytes - n_kept)
    if n_lost:
        note(f"{name}: {100 * n_lost / n_bytes:.2g} % of the text is in no token: {n_lost:,} bytes")
    return n_lost


class naming_file(contextlib.ContextDecorator):
    """Put the name of a file, or a clause with the cause, before the message of an error.

    So a reader trusts the content of a file, and does not check types: errors of any kind become
    an InputError that names this problem.

    This is a class because, in Python 3.13, the frame of a generator that replaces an error would
    hold that error.
    """

    def __init__(self, where, problem="wrong content"):
        self.where = where
        self.problem = problem

    def __enter__(self):
        pass

    def __exit__(self, kind, error, frames):
        if isinstance(error, InputError):
            if not (error._names_file or str(self.where) in str(error)):
                raise _naming_error(self.where, error) from None
        # a `filename` is that of an error which already names the file
        elif isinstance(error, Exception) and not getattr(error, "filename", None):
            reason = f"{type(error).__name__}: {error}"
            raise _naming_error(self.where, f"{self.problem}: {reason:.200}") from error


def _naming_error(where, message):
    """Make an InputError whose message begins with the name of a file, or with a clause.

    No variable of the frame that raises an error may hold the error: it holds the frame, and so all
    arguments, until Python searches for garbage.
    """
    error = InputError(f"{where}: {message}")
    error._names_file = isinstance(where, Path)
    return error


def require_known(what, name, names):
    """Raise InputError, with the list of valid names, for a name that is not one of them."""
    require(name in names, f"no {what} is named {name!r}; there are {', '.join(names) or 'none'}")


def interrupt_in(error):
    """Return the interrupt that Numba turned into an error; or the error itself if it is another.

    Numba turns an interrupt into a SystemError while it unpacks the arguments of a kernel, and into
    a TypeError while it makes a struct.
    """
    if isinstance(error, TypeError) and "_numba_box_" in str(error):
        return KeyboardInterrupt()
    while isinstance(error, SystemError) and error.__cause__:
        error = error.__cause__
    return error


def interruptible(function: Function) -> Function:
    """Let an interrupt raise KeyboardInterrupt in a function that calls kernels."""

    @functools.wraps(function)
    def call(*arguments, **options):
        try:
            return function(*arguments, **options)
        except (SystemError, TypeError) as error:
            if interrupt_in(error) is error:
                raise
            raise interrupt_in(error) from None

    return call


# The annotation of a number may have a range:


class Range(NamedTuple):
    """The numbers that a parameter takes: from `least` to `most`, and never NaN."""

    least: float
    most: float = math.inf

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"of at least {self.least:,}"
        return f"from {self.least:,} to {self.most:,}"


Natural = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
Id = Annotated[int, Range(0, 2**32 - 1)]
Order = Annotated[int, Range(1, 64)]  # of n-grams: longer ones only repeat the text
Share = Annotated[float, Range(0, 1)]
# The words for a type in a message, in the singular and in the plural. A string that may be a path
# counts as a path.
_NOUNS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "True or False"),
    str: ("a string", "strings"),
    bytes: ("bytes", "bytes"),
    os.PathLike: ("a path", "paths"),
    Callable: ("a function", "functions"),
    Mapping: ("a dict", "dicts"),
    np.ndarray: ("an array", "arrays"),
    tuple: ("a pair", "pairs"),
    NoneType: ("None", "None"),
}
_LISTS = (list, tuple, Sequence, Collection, Iterable, Iterator)
_CHECKED_ITEMS = (int, float, str)  # the types of items that are checked in each call


@functools.cache
def _types_of(kind):
    """List the types of an annotation: those of a union, or the type itself."""
    if typing.get_origin(kind) in (UnionType, typing.Union):
        return tuple(each for part in typing.get_args(kind) for each in _types_of(part))
    return (kind.__bound__,) if isinstance(kind, TypeVar) else (kind,)


@functools.cache
def _parts_of(kind):
    """Return the class of a type such as Sequence[str], and the types in its brackets."""
    return typing.get_origin(kind) or kind, typing.get_args(kind)


@functools.cache
def _sure_types(kind):
    """List the classes whose objects fit an annotation without a further look."""
    sure = set()
    for part in _types_of(kind):
        origin, items = _parts_of(part)
        if origin in _LISTS and origin is not tuple and {*items}.isdisjoint(_CHECKED_ITEMS):
            sure |= {list, tuple}
        elif origin is Mapping:
            sure.add(dict)
        elif isinstance(origin, type) and origin not in (float, *_LISTS):
            sure.add(origin)
    return frozenset(sure)


def _noun_of(kind, plural=False):
    """Name the values of an annotation in words; None is left out if there are others."""
    kinds = _types_of(kind)
    hidden = {NoneType, str} if os.PathLike in kinds else {NoneType}
    nouns = []
    for part in [part for part in kinds if part not in hidden] or kinds:
        origin, parts = _parts_of(part)
        if origin is Annotated:
            nouns.append(f"{_noun_of(parts[0], plural)} {parts[1]}")
        elif origin in _LISTS and origin is not tuple:
            of_items = ""
            if parts and not plural:
                is_same = {*_types_of(parts[0])} < {*_types_of(kind)}
                of_items = " of these" if is_same else f" of {_noun_of(parts[0], True)}"
            nouns.append("lists" if plural else f"a list{of_items}")
        elif origin in _NOUNS:
            nouns.append(_NOUNS[origin][plural])
        else:
            name = origin.__name__
            article = "an " if name[0] in "AEIO" else "a "
            nouns.append(f"{name}s" if plural else article + name)
    *first, last = dict.fromkeys(nouns)
    return f"{', '.join(first)} or {last}" if first else last


def _is_number(value, convert):
    """Whether a value is a number that `operator.index` or `float` converts."""
    if isinstance(value, bool | np.bool_ | np.ndarray | Text):
        return False
    try:
        return bool(convert(value) == value)  # False for NaN
    except (TypeError, ValueError, OverflowError):
        return False


def _fits(value, kind):
    """Whether a value is of a single type, whatever the items of a list are."""
    if kind is object:
        return True
    if kind is int:
        return _is_number(value, index)
    if kind is float:
        return _is_number(value, float)
    if kind is bool:
        return isinstance(value, bool | np.bool_) or (_is_number(value, index) and value in (0, 1))
    if kind is Callable:
        return callable(value)
    if kind in _LISTS:
        is_list = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
        is_scalar = getattr(value, "ndim", 1) == 0  # of NumPy
        return is_list and not is_scalar and not isinstance(value, Text)
    return isinstance(value, kind)


def _misfits(value, kind, is_deep=False):
    """Return a list with the wrong value, or with its first wrong item; empty if all fits.

    Items of a list are checked if they are strings or numbers; if `is_deep`, all items are checked.
    The items of an Iterable may come only once, so the function checks them itself.
    """
    kinds = _types_of(kind)
    if len(kinds) > 1:
        found = [_misfits(value, part, is_deep) for part in kinds]
        items = [wrong for wrong in found if wrong and wrong[0] is not value]
        return [] if [] in found else (items or found)[0]
    origin, parts = _parts_of(kinds[0])
    if origin is Annotated:
        base, limits = parts
        fits = not _misfits(value, base) and limits.least <= value <= limits.most
        return [] if fits else [value]
    if not _fits(value, origin):
        return [value]
    if not parts or not isinstance(value, Collection) or origin is Callable:
        return []
    if origin is Mapping or origin is dict:
        pairs = value.items() if is_deep else ()
        wrong = (w for pair in pairs for w in map(_misfits, pair, parts, (True, True)))
    elif origin is tuple:
        wrong = map(_misfits, value, parts, itertools.repeat(is_deep))
        wrong = [[value]] if len(value) != len(parts) else wrong
    elif is_deep or (origin is not Iterable and parts[0] in _CHECKED_ITEMS):
        wrong = (_misfits(item, parts[0], is_deep) for item in value)
    else:
        wrong = ()
    return next(filter(None, wrong), [])


def require_parameters(function, given, names):
    """Raise InputError for a name that is not a parameter of a function."""
    for name in given:
        similar = difflib.get_close_matches(name, names, 1)
        hint = "".join(f"; did you mean `{other}`?" for other in similar)
        require(name in names, f"{function} has no parameter `{name}`{hint}")


class _Parameters:
    """The parameters of a function, against which its calls are checked.

    owner   the class of the fields, if this is the constructor of a record
    former  names that parameters had -> their names now, or a sentence on what to do
    """

    def __init__(self, function, owner, former):
        hints = typing.get_type_hints(owner or function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        self.name = function.__qualname__.removesuffix(".__init__").removesuffix(".__new__")
        self.former = former
        self.kinds = {}
        self.defaults = {}
        self.positional = []
        self.takes_others = False  # whether another function checks further names
        for parameter in parameters:
            name = parameter.name
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                self.takes_others |= parameter.kind is parameter.VAR_KEYWORD
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self.positional.append(name)
            self.kinds[name] = hints.get(name, object)
            if parameter.default is not parameter.empty:
                self.defaults[name] = parameter.default
        # None for a parameter that takes any value
        self.sure = {
            name: None if kind is object else _sure_types(kind) for name, kind in self.kinds.items()
        }
        self.sure_positional = [self.sure[name] for name in self.positional]
        self.sure |= dict.fromkeys(former, ())

    def take(self, name, value, is_deep=False):
        """Return an argument, or the default for None; raises InputError for a wrong one."""
        kind = self.kinds[name]
        if not (wrong := _misfits(value, kind, is_deep)):
            # for another type of number, Numba would compile kernels anew
            return value.item() if isinstance(value, np.generic) else value
        if value is None and name in self.defaults:
            return self.defaults[name]
        verb = "is" if wrong[0] is value else "has"
        shown = reprlib.repr(wrong[0])
        needed = _noun_of(kind)
        if isinstance(value, Text) and " list " in f" {needed} ":
            needed += f", such as [{shown}]"
        raise InputError(f"`{name}` {verb} {shown}: it must be {needed}")

    def take_option(self, name, value):
        """Return the present name and the value of an argument that is given by name."""
        if name in self.kinds:
            return name, self.take(name, value)
        if name in self.former:
            new = self.former[name]
            require(new in self.kinds, f"`{name}` has gone: {new}")
            note(f"`{name}` is `{new}` now, and the old name will go", FutureWarning)
            return new, self.take(new, value)
        if not self.takes_others:
            require_parameters(self.name, [name], self.kinds)
        return name, value

    def check(self, arguments, options):
        """Check the arguments of a call; returns the arguments for the function."""
        if self.are_sure(arguments, options):
            return arguments, options
        n = len(self.positional)
        taken = [*map(self.take, self.positional, arguments), *arguments[n:]]
        return taken, dict(itertools.starmap(self.take_option, options.items()))

    def are_sure(self, arguments, options):
        """Whether the classes of all arguments already tell that they fit."""
        for value, classes in zip(arguments, self.sure_positional, strict=False):
            if classes is not None and type(value) not in classes:
                return False
        for name, value in options.items():
            classes = self.sure.get(name, None if self.takes_others else ())
            if classes is not None and type(value) not in classes:
                return False
        return True

    def check_items(self, arguments, options):
        """Check also the items of all lists, after a call has failed."""
        given = {**dict(zip(self.positional, arguments, strict=False)), **options}
        for name in self.kinds.keys() & given:
            self.take(name, given[name], is_deep=True)


@functools.cache
def parameters_of(function):
    """Read the parameters of a function, with the values of their annotations."""
    return _Parameters(inspect.unwrap(function), None, {})


def check_options(function, options):
    """Check options by their names and annotations before the function is called with them."""
    parameters_of(function).check((), options)


def problem_of(error, parameters, arguments, options):
    """Find what is wrong with a call that failed; or return the error itself.

    An InputError loses its traceback, since it is for the person who made the call.
    """
    if isinstance(error, InputError):
        return error.with_traceback(None)
    try:
        parameters.check_items(arguments, options)
    except InputError as wrong:
        return wrong.with_traceback(None)
    return interrupt_in(error)


def checks_itself(function: Function) -> Function:
    """Mark a public method that looks for wrong arguments only if it fails: a call takes 1 µs."""
    function.is_checked = False
    return function


def public(function=None, /, *, former=MappingProxyType({}), owner=None):
    """Check the calls of a public function, or those of all public methods of a class.

    Arguments are checked by their annotations: a wrong type, a number out of its range and an
    unknown name raise InputError before any work. None stands for the default of any parameter. The
    traceback of an InputError ends here. An interrupt raises KeyboardInterrupt.

    former  names that parameters had -> their names now, or a sentence on what to do
    owner   the class of the fields, if this is the constructor of a record

    >>> @public
    ... def halve(n: Positive = 2):
    ...     return n / 2
    >>> halve(None)
    1.0
    >>> halve(0)
    Traceback (most recent call last):
    ...
    bpe_numba.InputError: `n` is 0: it must be a whole number of at least 1
    """
    if function is None:
        return functools.partial(public, former=former, owner=owner)
    if isinstance(function, type):
        return _with_public_methods(function, former)
    parameters = None

    @functools.wraps(function)
    def call(*arguments, **options):
        nonlocal parameters
        if parameters is None:  # at the first call: all annotations have values now
            parameters = _Parameters(function, owner, former)
        try:
            arguments, options = parameters.check(arguments, options)
            return function(*arguments, **options)
        except Exception as error:
            problem = problem_of(error, parameters, arguments, options)
            try:
                if problem is error and not isinstance(error, InputError):
                    raise
                raise problem from None
            finally:
                del problem  # or the error would keep this frame, and so the arguments

    call.is_checked = True
    call.former = former
    return call


def _with_public_methods(cls, former):
    """Make the constructor and the public methods of a class public, if they are not yet.

    former  of the constructor; see `public`
    """
    is_record = issubclass(cls, tuple) or dataclasses.is_dataclass(cls)
    for name, member in [*vars(cls).items()]:
        function = getattr(member, "__func__", member)  # of a class method
        makes = name in ("__init__", "__new__")
        is_door = isinstance(function, FunctionType) and (makes or name[0] != "_")
        if is_door and not hasattr(function, "is_checked"):
            names = former if makes else MappingProxyType({})
            door = public(function, former=names, owner=cls if makes and is_record else None)
            setattr(cls, name, door if member is function else type(member)(door))
    return cls


def deprecated(successor):
    """Decorate a function that will go: each call warns, and names the successor."""

    def decorate(function):
        @functools.wraps(function)
        def call(*arguments, **options):
            note(f"{function.__qualname__} will go: use {successor}", FutureWarning)
            return function(*arguments, **options)

        return call

    return decorate


# ─── Running ──────────────────────────────────────────────────────────────────────────────────────
#
# Every command runs in this way. The parent process cuts the files into blocks, and workers count
# or encode the blocks. The parent adds up the results or writes them, always in the order of the
# blocks, so that no result depends on the number of workers:
#
#     list(Engine(workers=2).map(abs, [-1, 2, -3]))   ->   [1, 2, 3]
#
# A file is written under a hidden temporary name, and renamed when it is complete. A signal such as
# SIGINT ends the program at once: its handler removes the unfinished files, writes one line and
# exits.


def number_of(n, noun):
    """Write a number and a noun: 1 file, 2 files."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def brief_repr(result):
    """Write a result with a few characters of each field, however large the fields are."""
    names = inspect.signature(type(result)).parameters
    fields = [f"{name}={reprlib.repr(getattr(result, name))}" for name in names]
    return f"{type(result).__name__}({', '.join(fields)})"


def import_optional(name, *others):
    """Import an optional package; or raise InputError that says how to install it and others."""
    packages = " ".join([name.partition(".")[0], *others])
    try:
        return importlib.import_module(name)
    except Exception as error:  # protobuf refuses a package that a newer protobuf has made
        raise InputError(f"pip install --upgrade {packages} is needed: {error}") from None


# The files that all threads are writing: {temporary name: None}. While a whole group of complete
# files is renamed, their values are the names that they get: a handler of a signal then completes
# the renaming. The keys are strings, whose hashes need no Python code, so that neither a signal nor
# another thread can come in the middle of a change.
UNFINISHED = {}
# Its attribute `group` has the complete files of a `written_together`: {temporary name: path}.
_WRITING = threading.local()


def _remove(temporary):
    """Remove an unfinished file, if it is still there."""
    with contextlib.suppress(OSError):
        os.unlink(temporary)
    UNFINISHED.pop(temporary, None)


def _end_files():
    """Finish each renaming that has begun, and remove all other unfinished files."""
    for temporary, path in [*UNFINISHED.items()]:
        if path:
            with contextlib.suppress(OSError):  # the file has its name already
                os.replace(temporary, path)
        _remove(temporary)


@contextlib.contextmanager
def written_together():
    """Rename all files that `atomic_write` writes in a block when the block succeeds.

    Files are renamed in reverse: write the file that readers look for first, and it appears last. A
    signal during the renaming lets it finish.
    """
    if getattr(_WRITING, "group", None) is not None:  # a block around this one renames the files
        yield
        return
    group = _WRITING.group = {}
    try:
        yield
        for path in group.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        UNFINISHED.update(group)
        for temporary, path in reversed(group.items()):
            os.replace(temporary, path)
    finally:
        _WRITING.group = None
        for temporary in group:
            _remove(temporary)


def is_device(path):
    """Whether a path is a device, a pipe, or a name of a file that is open (/dev/stdin)."""
    is_open_file = os.path.dirname(path) in ("/dev", "/dev/fd")
    return path.exists() and (is_open_file or not path.is_file())


def _is_full(error):
    """Check whether an error says that no more can be written to a disk or a device."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_write(path):
    """Open a binary file that is renamed to `path` when the block succeeds.

    Until then its name is hidden, random, and ends in ".unfinished". So a killed process leaves no
    file that looks complete, and no name that a later process could collide with. If the block
    fails, the file is removed. A missing folder is created when the file is complete. In a block of
    `written_together` the file is renamed at the end of that block.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "a.txt")) as file:
    ...         _ = file.write(b"all")
    ...     Path(folder, "a.txt").read_bytes(), os.listdir(folder)
    (b'all', ['a.txt'])
    """
    require(not path.is_dir(), f"{path}: is a folder; name a file to write")
    # a device or a pipe is written to: replacing /dev/null would remove it
    if is_device(path):
        try:
            with open(path, "wb") as file:
                yield file
        except OSError as error:
            error.filename = str(path) if _is_full(error) else error.filename
            raise
        return
    name = str(path)
    path = Path(os.path.realpath(path))  # a symbolic link stays, and its target is replaced
    folder = next(filter(os.path.lexists, path.absolute().parents))
    # the name takes less than 255 bytes in UTF-8
    temporary = str(folder / f".{path.name[:50]}.{os.urandom(8).hex()}.unfinished")
    UNFINISHED[temporary] = None
    with written_together():
        try:
            with open(temporary, "xb") as file:  # mkstemp would set mode 600 whatever the umask is
                yield file
        except BaseException as error:
            _remove(temporary)
            # the error of a failed write names no file, and that of opening names the hidden one
            if _is_full(error) or getattr(error, "filename", None) == temporary:
                error.filename = name
            raise
        _WRITING.group[temporary] = path


def check_writable(folder):
    """Raise an error, before any work, if no file can be created in a folder or as a new folder."""
    require(folder.suffix != ".json" or folder.is_dir(), f"{folder}: name a folder, not a file")
    try:
        # an error in the block leaves no file
        with contextlib.suppress(LookupError), atomic_write(folder / os.urandom(8).hex()):
            raise LookupError("nothing is to be written")
    except OSError as error:
        error.filename = str(folder)
        raise


def check_writable_file(path):
    """Raise an error, before any work, if a file cannot be written."""
    require(not path.is_dir(), f"{path}: is a folder; name a file to write")
    if not is_device(path):
        check_writable(path.parent)


def atomic_write_all(folder, files):
    """Write files that belong together, {name: content}; see `written_together`."""
    with written_together():
        for name, content in files.items():
            if isinstance(content, str):
                with naming_file(folder / name, "half a surrogate pair, which is no text"):
                    content = content.encode()
            with atomic_write(folder / name) as file:
                file.write(content)


@dataclasses.dataclass
class Timing:
    """The time that a stage took."""

    seconds: float = 0.0
    n_bytes: int = 0  # of text, if the stage reports them


TIMINGS = defaultdict(Timing)  # the stages of this process, in order


@contextlib.contextmanager
def stage(name):
    """Measure the time of a block, and add it to TIMINGS[name].

    The block may set `n_bytes`. The time of compiling kernels is not added to this stage, but to
    the stage "compile".

    >>> with stage("sleep") as spent:
    ...     time.sleep(0.01)
    ...     spent.n_bytes = 5
    >>> spent.seconds > 0.009, TIMINGS["sleep"].n_bytes
    (True, 5)
    """
    spent = Timing()
    compiling = event.TimingListener()
    start = time.perf_counter()
    try:
        with event.install_listener("numba:compile", compiling):
            yield spent
    finally:
        spent.seconds = time.perf_counter() - start
        if compiling.done:
            spent.seconds -= compiling.duration
            TIMINGS["compile"].seconds += compiling.duration
        total = TIMINGS[name]
        total.seconds += spent.seconds
        total.n_bytes += spent.n_bytes


class _HeldInterrupt(event.Listener):
    """Holds an interrupt back while Numba compiles or loads a kernel in the main thread.

    An exception there would leave a kernel half loaded, and later calls would fail or end the
    process.
    """

    depth = 0  # the number of events in progress
    is_held = False
    handler = None  # the handler that is called in the end

    def on_start(self, _):
        """Replace the handler of the signal at the first of several nested events."""
        if threading.current_thread() is not threading.main_thread():
            return
        if not self.depth and callable(handler := signal.getsignal(signal.SIGINT)):
            self.handler = handler
            signal.signal(signal.SIGINT, self.hold)
        self.depth += 1

    def hold(self, *_):
        self.is_held = True

    def on_end(self, _):
        """Put the handler back after the last event, and call it if a signal came."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.depth -= 1
        if self.depth or not self.handler:
            return
        signal.signal(signal.SIGINT, self.handler)
        self.handler = None
        if self.is_held:
            self.is_held = False
            signal.raise_signal(signal.SIGINT)


_HELD_INTERRUPT = _HeldInterrupt()
event.register("numba:compiler_lock", _HELD_INTERRUPT)  # held while kernels compile or load

# The signals that ask a process to end; some systems lack some of them.
_ENDINGS = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]


def _end_when_asked():
    """Let a signal end the program and its workers at once, without unfinished files.

    The handler raises no exception, since compiled code or the fork of a process could lose it. So
    no kernel can be left half loaded, and no interrupt is held back. A signal that is already
    ignored, as under `nohup`, stays ignored.
    """
    program = os.getpid()
    event.unregister("numba:compiler_lock", _HELD_INTERRUPT)

    def end(number, _):
        for other in _ENDINGS:
            signal.signal(other, signal.SIG_IGN)
        if os.getpid() == program:  # not a worker that has just been forked
            _end_files()
            os.write(2, b"\nbpe_numba: interrupted; no partial files were left\n")
        os._exit(128 + number)

    for number in _ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def _init_worker():
    """Let a worker exit when its parent ends or is killed, and let it ignore SIGINT.

    A terminal sends SIGINT to every process, and the parent decides what happens.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def exit_with_parent():
        multiprocessing.parent_process().join()
        os._exit(1)

    try:
        threading.Thread(target=exit_with_parent, daemon=True).start()
    except RuntimeError:  # due to a limit on threads, which the parent reports
        os._exit(1)


class _CompilationNotice(event.Listener):
    """Says once, on a terminal or in a log, that kernels compile."""

    is_said = False

    def on_start(self, started):
        """Print the notice when the first kernel of this module begins to compile."""
        is_own = started.data["dispatcher"].py_func.__module__ == __name__
        if self.is_said or not is_own or multiprocessing.parent_process():
            return
        how_often = "once for each kind of work"
        if COMPILED_ANEW:
            how_often = (
                "at each start: set NUMBA_CACHE_DIR to a folder that can be written, with 64 MB"
            )
        self.is_said = True
        if sys.stderr:  # None under pythonw
            print(f"bpe_numba: compiling kernels, {how_often}", file=sys.stderr, flush=True)

    def on_end(self, ended):
        """Do nothing; every listener must have this method."""


class _CompilingCollectsLater(event.Listener):
    """Compiles each kernel in a block of `collecting_later`, which saves a tenth of the time."""

    def __init__(self):
        self.blocks = []  # a kernel waits for the kernels that it calls

    def on_start(self, started):
        """Enter a block when a kernel begins to compile."""
        self.blocks.append(collecting_later(most_stay=False))
        self.blocks[-1].__enter__()

    def on_end(self, ended):
        """Leave the block when the kernel is compiled."""
        self.blocks.pop().__exit__(None, None, None)


COMPILATIONS = _CompilationNotice()
event.register("numba:compile", COMPILATIONS)
event.register("numba:compile", _CompilingCollectsLater())


def end_with_input():
    """End this process when its standard input ends, a pipe from the process that started it."""

    def wait():
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class _SecondProcess(event.Listener):
    """Starts a process when the first kernel begins to compile in this one."""

    process = None

    def __init__(self, code):
        self.code = code  # "" when it has started

    def on_start(self, started):
        """Start the process; if that fails, this process does all the work itself."""
        code, self.code = self.code, ""
        if code:
            nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
            with contextlib.suppress(OSError):
                self.process = subprocess.Popen(
                    [sys.executable, "-c", code], stdin=subprocess.PIPE, **nowhere
                )

    def on_end(self, ended):
        """Do nothing; every listener must have this method."""


@contextlib.contextmanager
def compiled_beside(call, n_workers):
    """Compile other kernels in a second process, if a block compiles kernels.

    The block should have no kernel in common with `call`, an expression of this module. At its end
    the block waits for the process, but no longer than two minutes; the other kernels are then on
    the disk. A thread would not help, since Numba compiles one kernel at a time.
    """
    is_python = "python" in os.path.basename(sys.executable or "") and not hasattr(sys, "frozen")
    n_workers = min(n_workers, numba.config.NUMBA_DEFAULT_NUM_THREADS)
    if n_workers == 1 or COMPILED_ANEW or not is_python:
        yield
        return
    load = f"import sys; sys.path[:] = {[*map(str, sys.path)]}; import {__name__} as module"
    second = _SecondProcess(f"{load}; module.end_with_input(); module.{call}")
    try:
        with event.install_listener("numba:compile", second):
            yield
        if second.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                second.process.wait(120)
    finally:
        if second.process:
            second.process.kill()
            second.process.communicate()


def _do_tasks(connection):
    """Do the tasks that come through a pipe, in a worker process, until the process is killed."""
    _init_worker()
    while True:
        function, item = connection.recv()
        try:
            answer = pickle.dumps((function(item), None), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # of the function, or of a result that cannot be pickled
            if not isinstance(error, InputError):
                error.add_note(traceback.format_exc())
            answer = pickle.dumps((None, error))
        connection.send_bytes(answer)


class _Workers:
    """A pool of threads, which do tasks themselves or have a process of their own do them.

    A ProcessPoolExecutor waits for ever if a process is killed while it sends a result, or if the
    system cannot start all processes and threads. Here the pipe of a killed process ends, and so
    does the wait of its thread.
    """

    def __init__(self, n):
        self.threads = ThreadPoolExecutor(n)
        self.processes = []
        self.idle = []  # the pipes of the processes that have no task

    def start_processes(self, n):
        """Start processes for all tasks that follow; raises InputError if the system cannot."""
        atexit.register(self._kill_processes)  # or Python would wait for them when it ends
        try:
            for _ in range(n):
                connection, other_end = multiprocessing.Pipe()
                process = multiprocessing.Process(target=_do_tasks, args=[other_end])
                process.start()
                other_end.close()  # so that only the process has it
                self.processes.append(process)
                self.idle.append(connection)
        except Exception as error:  # in a daemonic process, or under a low `ulimit`
            raise _no_workers(error) from None

    def submit(self, function, item):
        """Begin a task; raises InputError if a thread is missing and cannot be started."""
        if self.processes:
            function = functools.partial(self._call_in_process, function)
        try:
            return self.threads.submit(function, item)
        except RuntimeError as error:
            raise _no_workers(error) from None

    def _call_in_process(self, function, item):
        """Have a process do a task; raises BrokenExecutor if it has died."""
        connection = self.idle.pop()
        try:
            connection.send((function, item))
            result, error = connection.recv()
        except (EOFError, OSError) as broken:
            raise BrokenExecutor("a worker process died") from broken
        finally:
            self.idle.append(connection)
        if error:
            try:
                raise error
            finally:
                del error  # or it would keep this frame
        return result

    def _kill_processes(self):
        for process in self.processes:
            process.kill()

    def shutdown(self):
        """End all workers. Threads finish their tasks, but processes are killed."""
        self._kill_processes()
        self.threads.shutdown(cancel_futures=True)
        for process in self.processes:
            process.join()
        atexit.unregister(self._kill_processes)


def _no_workers(error):
    """Build the error for workers that cannot be started."""
    return InputError(f"no workers can be started ({error}): set `workers` to 1")


POOL_TASKS = 256  # in progress at a time, since a pool does not tell how many workers it has


@public(former={"executor": "workers"})
@dataclasses.dataclass(frozen=True)
class Engine:
    """How work runs: the number of workers, and progress bars. No result depends on it.

    workers     number of threads, or of processes for JSON; by default one for each core. Or a pool
                of concurrent.futures or a compatible one (loky, Dask, MPI), whose workers must find
                the files under the same names
    progress    draw progress bars on standard error

    Raises InputError for fewer workers than one.

    >>> list(Engine(workers=1).map(abs, [-1, 2]))
    [1, 2]
    """

    workers: Positive | Executor | None = None
    progress: bool = False

    @property
    def n_workers(self) -> int:
        """The number of workers: as requested, or one for each core that this process may use."""
        if isinstance(self.workers, numbers.Integral):
            return min(self.workers, sys.maxsize)
        return numba.config.NUMBA_DEFAULT_NUM_THREADS

    def map(self, function: Callable, items: Iterable, threads: bool = False) -> Iterator:
        """Apply a function to items in worker processes or threads; yields results in their order.

        Two items for each worker are in progress at a time, or POOL_TASKS in a pool that is given.
        A single item, or a single worker, runs in this thread. Close the iterator to stop the
        workers.
        """
        items = iter(items)
        first_items = [*itertools.islice(items, self.n_workers)]
        items = itertools.chain(first_items, items)
        n = len(first_items)  # more workers would have no item
        owns_pool = not isinstance(self.workers, Executor)
        if n < 2 and owns_pool:
            yield from map(function, items)
            return
        pool = _Workers(n) if owns_pool else self.workers
        most_running = 2 * n if owns_pool else POOL_TASKS
        running = deque()  # the tasks in progress, in the order of their items
        try:
            if owns_pool and not threads:
                pool.start_processes(n)
            for item in items:
                if len(running) >= most_running:
                    yield running.popleft().result()
                running.append(pool.submit(function, item))
            while running:
                yield running.popleft().result()
        except BrokenExecutor:
            raise InputError(
                "a worker process died: use fewer `workers` if memory is limited; a script needs "
                "`if __name__ == '__main__':`"
            ) from None
        finally:
            if owns_pool:
                pool.shutdown()
            for future in running:  # a pool that was given goes on without them
                future.cancel()

    def progress_bar(self, name: str, total: int | None, unit: str):
        """Open a progress bar on standard error, which is drawn every 10 s in a log file."""
        if not self.progress:  # the `__del__` of a tqdm would swallow an interrupt
            return contextlib.nullcontext(SimpleNamespace(update=do_nothing))
        return tqdm(
            desc=name,
            total=total,
            unit=unit,
            unit_scale=True,
            disable=total == 0,
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
        )


# Tables, in which most results are shown

LONGEST_CELL = 60  # characters of a cell; the rest is cut off


def _cell(value, column):
    """Write a value for a table: whole numbers with all digits, others with four."""
    if column == "id":
        return str(value)
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}"
    if not isinstance(value, str):
        return f"{value:,}"
    if len(value) > LONGEST_CELL:
        return value[: LONGEST_CELL - 1] + "…"
    return value


def _cell_width(text):
    """Count the columns of a text on a terminal: a wide character has two, a combining one none."""
    base = [c for c in text if not unicodedata.combining(c)]
    return len(base) + sum(unicodedata.east_asian_width(c) in "WF" for c in base)


def _fill(cell, width, on_right=False):
    """Fill a cell up with spaces."""
    gap = " " * (width - _cell_width(cell))
    return gap + cell if on_right else cell + gap


def _latex_character(match):
    """Write a character that is special in LaTeX."""
    names = {"\\": "textbackslash", "^": "textasciicircum", "~": "textasciitilde"}
    char = match[0]
    return rf"\{names[char]}{{}}" if char in names else f"\\{char}"


@public
class Table(NamedTuple):
    """A table of a report; as a string it is Markdown with aligned columns.

    rows  strings and numbers; columns of numbers are aligned to the right, and None and NaN stay
          empty. The column "id" is written without commas

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

    def _columns(self):
        """Yield the cells of each column, its name first, and whether they are aligned right."""
        for name, *values in zip(self.header, *self.rows, strict=True):
            on_right = bool(values) and str not in map(type, values)
            yield [_cell(value, name) for value in (name, *values)], on_right

    def __str__(self) -> str:
        columns = []
        for cells, on_right in self._columns() if self.rows else ():
            cells = [cell.replace("|", "\\|") for cell in cells]
            width = max(map(_cell_width, cells))
            cells.insert(1, "-" * (width - 1) + ":" if on_right else "-" * width)
            columns.append([_fill(cell, width, on_right) for cell in cells])
        lines = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
        return "\n".join([self.title, "", *lines]).rstrip()

    __repr__ = __str__

    def to_pandas(self):
        """Return the rows as a DataFrame; its columns of numbers are numbers."""
        pandas = import_optional("pandas")
        return pandas.DataFrame([*self.rows], columns=[*self.header])

    def to_csv(self) -> str:
        """Write the table as CSV, with all digits of its numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return text.getvalue()

    def to_latex(self) -> str:
        r"""Write the table for LaTeX, with the lines of the package booktabs.

        >>> print(Table("Tokens", ("kind", "number"), [("a_b", 1200)]).to_latex())
        \begin{tabular}{lr}
        \toprule
        kind & number \\
        \midrule
        a\_b & 1,200 \\
        \bottomrule
        \end{tabular}
        """
        columns, on_right = zip(*self._columns(), strict=True)
        lines = []
        for row in zip(*columns, strict=True):
            cells = (re.sub(r"[\\{}$&#^_%~]", _latex_character, cell) for cell in row)
            lines.append(" & ".join(cells) + r" \\")
        head, *body = lines
        begin = rf"\begin{{tabular}}{{{''.join('lr'[right] for right in on_right)}}}"
        parts = [begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        return "\n".join(parts)

    def _repr_html_(self):
        columns = []
        for cells, on_right in self._columns():
            start = f' style="text-align: {"right" if on_right else "left"}">'
            cells = [start + html.escape(cell) for cell in cells]
            columns.append(["<th" + cells[0], *("<td" + cell for cell in cells[1:])])
        rows = map("".join, zip(*columns, strict=True))
        table = "\n<tr>".join(["<table>", *rows]) + "</table>"
        return f"<h4>{html.escape(self.title)}</h4>" + table * bool(self.rows)


# ─── Bytes ────────────────────────────────────────────────────────────────────────────────────────
#
# Kernels decode, copy and compare bytes, and walk down a trie of tokens. A text is an array of
# uint8 with PADDING after it, so that kernels may read 8 bytes at a time beyond its end. A decoded
# character is one number, its code point and its size in bytes. An invalid byte is decoded as a
# lone surrogate, as in Python's `surrogateescape`:
#
#     _decode_character("é" …)   ->   0xE9 << 3 | 2
#     _decode_character(b"\xFF") ->   SURROGATE_ESCAPE << 3 | 1


class _AllBytes(tuple):
    """The 256 bytes, which `help` should not list."""

    def __repr__(self):
        return "BYTES"


BYTES = _AllBytes(bytes([b]) for b in range(256))
N_CODE_POINTS = 0x110000
SURROGATE_ESCAPE = 0xDC80
# UTF-8 never contains these two bytes.
END = 0xFE  # ends a text, or stands for a special token; see Scanning
INVALID_BYTE = 0xFF  # replaces each byte that is not part of a character


def _text_bytes(text):
    """Return a text as UTF-8; or raise InputError."""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise InputError(f"a text is str or bytes, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(error) from None


# (text, address of a number) -> the address of its UTF-8, whose size is written to the number
_utf8_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyUnicode_AsUTF8AndSize", ctypes.pythonapi)
)
# bytes -> their address
_bytes_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


def _view_utf8(text):
    """View a text as UTF-8 without a copy, while the text lives; or raise InputError.

    A str of ASCII is UTF-8 already. Python encodes any other str once, and keeps the result in it.
    """
    if isinstance(text, bytes):
        return memoryview(text)
    size = ctypes.c_ssize_t()
    try:
        address = _utf8_address(text, ctypes.addressof(size))
    except UnicodeEncodeError as error:
        raise InputError(error) from None
    return memoryview((ctypes.c_char * size.value).from_address(address)).cast("B")


def _with_padding(data):
    """Copy bytes, or an array of them, into an array of uint8 that ends with PADDING."""
    text = np.zeros(len(data) + PADDING, u8)
    text[: len(data)] = np.frombuffer(data, u8)
    return text


@inner_kernel
def _decode_character(text, position, stop):
    """Decode the character at a position: code point << 3 | number of bytes.

    INVALID_BYTE is itself invalid, so it can replace invalid bytes, and no character changes.
    """
    escaped = i64(SURROGATE_ESCAPE << 3 | 1)
    lead = i64(text[position])
    if lead < 0x80:
        return lead << 3 | 1
    size = 2 + (lead >= 0xE0) + (lead >= 0xF0)  # as the upper bits of the first byte tell
    if lead < 0xC2 or lead > 0xF4 or position + size > stop:
        return escaped
    code_point = lead & (0x7F >> size)
    for k in range(1, size):
        byte = i64(text[position + k])
        if byte & 0xC0 != 0x80:
            return escaped
        code_point = code_point << 6 | (byte & 0x3F)
    is_overlong = code_point >> (5 * size - 4) == 0  # size - 1 bytes would do: 7, 11 or 16 bits
    is_surrogate = code_point >> 11 == 0x1B
    if is_overlong or is_surrogate or code_point > 0x10FFFF:
        return escaped
    return code_point << 3 | size


@inner_kernel
def _character_before(text, start, stop):
    """Decode the last character of text[start : stop], as `_decode_character` does."""
    begin = stop - 1
    while begin > start and stop - begin < 4 and text[begin] & 0xC0 == 0x80:
        begin -= 1
    character = _decode_character(text, begin, stop)
    if character & 7 == stop - begin:
        return character
    return i64(SURROGATE_ESCAPE << 3 | 1)


@kernel
def _equal(text, start, other, other_start, size):
    """Compare `size` bytes of two texts, which end with PADDING."""
    for k in range(0, size, 8):
        mask = ALL_ONES >> u64(64 - 8 * min(size - k, 8))  # of the bytes that are compared
        difference = load_u64(text, start + k) ^ load_u64(other, other_start + k)
        if difference & mask:
            return False
    return True


@inline_kernel
def _copy_bytes(source, start, stop, out, n):
    """Copy source[start : stop] to out[n :], both with PADDING; returns the end of the copy."""
    for k in range(start, stop, 8):
        store_u64(out, n + k - start, load_u64(source, k))
    return n + stop - start


@inline_kernel
def _copy_word(source, start, stop, out, n):
    """Copy as `_copy_bytes` does, up to 16 bytes without a branch; 16 bytes are always written."""
    store_u64(out, n, load_u64(source, start))
    store_u64(out, n + 8, load_u64(source, start + 8))
    if stop > start + 16:
        _copy_bytes(source, start + 16, stop, out, n + 16)
    return n + stop - start


# Tokens as a trie. Node 0 is the root. An edge is one number in a hash table with linear probing
# that is at most half full; so a look-up touches one cache line. No edge leads to the root, and 0
# is a free slot:
#
#     node << 36 | byte << 28 | child         the key is the part before the child
CHILD_BITS = u64(28)
CHILD_MASK = u64(2**28 - 1)
NO_CHILD = i64(-1)


@struct
class Trie:
    """The ids of tokens, by their bytes; `make_trie` makes it, for kernels.

    From node 0, the root, `trie_child(node, byte, edges)` leads to the next node, or to -1 if no
    token continues with this byte.

    >>> trie = make_trie({0: b"a", 1: b"ab"})
    >>> @kernel
    ... def find(text, trie):
    ...     node = 0
    ...     for byte in text:
    ...         node = trie_child(node, byte, trie.edges)
    ...     return trie.values[node]
    >>> int(find(np.frombuffer(b"ab", np.uint8), trie))
    1
    """

    edges: np.ndarray  # uint64[H]    a hash table, for `trie_child`
    values: np.ndarray  # int32[K]    node -> the id of the token that ends there, or -1


@inline_kernel
def _trie_slot(key, edges):
    """Look up an edge by its key: returns its slot, or the free slot where it belongs."""
    mask = u64(len(edges) - 1)
    home = key * u64(0x9E3779B97F4A7C15) >> u64(32)
    slot = home & mask
    while edges[slot] and edges[slot] >> CHILD_BITS != key:
        slot = (slot + ONE) & mask
    return slot


@_compiler(cache=False, forceinline=True)  # Python may call it, too
def trie_child(node, byte, edges):
    """Look up the node that an edge leads to; -1 if the edge does not exist."""
    key = u64(node) << u64(8) | u64(byte)
    edge = edges[_trie_slot(key, edges)]
    return i64(edge & CHILD_MASK) if edge else NO_CHILD


@kernel
def _fill_trie(text, ends, ids, edges, values):
    """Add tokens to an empty trie; returns the number of nodes.

    text    uint8[…]: the tokens, end to end
    ends    int64[V]: where each one ends
    ids     int32[V]
    edges, values: as in a Trie, with enough room; `edges` is all 0 and `values` all -1
    """
    n_nodes = 1
    start = 0
    for t in range(len(ids)):
        node = ZERO
        for k in range(start, ends[t]):
            key = u64(node) << u64(8) | u64(text[k])
            slot = _trie_slot(key, edges)
            if not edges[slot]:
                edges[slot] = key << CHILD_BITS | u64(n_nodes)
                n_nodes += 1
            node = i64(edges[slot] & CHILD_MASK)
        if values[node] < 0:
            values[node] = ids[t]
        start = ends[t]
    return n_nodes


@public
def make_trie(tokens: Mapping[int, bytes]) -> Trie:
    """Make a trie of tokens, {id: bytes}; if several have the same bytes, the first one counts."""
    ids = np.fromiter(tokens, np.int32)
    sizes = np.fromiter(map(len, tokens.values()), i64)
    text = _with_padding(b"".join(tokens.values()))
    ends = sizes.cumsum()
    # The first round has room for a node for each byte, and counts the nodes. The second one has
    # tables of the right size.
    n_nodes = len(text)
    for _ in range(2):
        n_slots = 1 << (2 * n_nodes).bit_length()
        edges = np.zeros(n_slots, u64)
        values = np.full(n_nodes, -1, np.int32)
        n_nodes = _fill_trie(text, ends, ids, edges, values)
    return Trie(edges, values)


@inner_kernel
def _find_byte(text, position, stop, byte):
    """Find the first byte of this value at or after a position, or `stop`, 64 bytes at a time."""
    while position + 64 <= stop:
        from_byte = bytes_from(text, position, u8(byte))
        equal = from_byte & ~bytes_from(text, position, u8(byte + 1))
        if equal:
            return position + i64(lowest_bit(equal))
        position += 64
    while position < stop and text[position] != byte:
        position += 1
    return position


_SEEN = str.maketrans({" ": "␣", "\n": "↵", "\t": "→"})


def readable(token):
    r"""Write a token with visible spaces; control characters and invalid bytes become codes.

    >>> print(readable("é one\n".encode()), readable(b"\xe4\xb8"), readable(b"\x1b"))
    é␣one↵ <E4><B8> <1B>
    >>> print(readable("\u202e".encode()))
    <U+202E>
    """
    text = "".join(map(_printable, token.decode("utf-8", "surrogateescape").translate(_SEEN)))
    if unicodedata.category(text[:1] or " ") == "Mn":
        text = "◌" + text  # a mark would be drawn over the character before it
    return text


def _printable(char):
    """Write a character that is not printable as a code, such as <1B>."""
    if char.isprintable():
        return char
    code = ord(char)
    if "\udc80" <= char <= "\udcff":
        code &= 0xFF  # an invalid byte, which `surrogateescape` has made a lone surrogate
    return f"<{code:02X}>" if code < 256 else f"<U+{code:04X}>"


# ─── Steps ────────────────────────────────────────────────────────────────────────────────────────
#
# A pattern is a list of steps, and each step splits the pieces of the previous one. A step is a
# regular expression, a Split or a Metaspace. A name in PATTERNS means one step or several, and so
# does the pre_tokenizer of a tokenizer.json. Its normalizer and its decoder have other steps: see
# Normalizing and Decoding.

BEHAVIORS = ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous")


@public
class Split(NamedTuple):
    r"""A step of a Pattern that cuts where an expression matches, as Hugging Face's `Split` does.

    regex     the expression that is searched for, from left to right
    behavior  the treatment of matches. Each is a pretoken ("isolated"), or is dropped ("removed").
              In a run of adjacent matches, the first is joined to the text before it
              ("merged_with_previous"), the last to the text after it ("merged_with_next"), or all
              are joined to each other ("contiguous")
    invert    whether the text between matches is treated as a match, and matches as the text
              between them

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
        """An expression whose matches, and the text between them, are the same pieces.

        If matches are joined to the text beside them, it takes both: the underscore merged with the
        next text becomes _[^_]*|[^_]+.
        """
        if self.behavior in ("isolated", "removed"):
            return self.regex
        if self.behavior == "contiguous":
            return f"(?:{self.regex})+"
        match = f"(?:{self.regex})"
        other = rf"(?:(?!{self.regex})[\s\S])"
        if self.joins_before:
            return f"{other}*{match}|{other}+"
        return f"{match}{other}*|{other}+"

    @property
    def joins_before(self) -> bool:
        """Whether a match that is joined to the text beside it takes the text before it."""
        return (self.behavior == "merged_with_previous") != self.invert


MARK = "▁"  # SentencePiece writes it for a space


@public
class Metaspace(NamedTuple):
    """A step of a Pattern that replaces spaces by a mark, and may put it before pretokens.

    replacement     the mark, one character
    prepend_scheme  "always": before every pretoken that does not begin with it; "first": before the
                    first one of the text, if it does not begin with it; or "never"

    >>> Pattern([Metaspace("_", "first"), "_[^_]*|[^_]+"]).split(b"one two")
    [b'_one', b'_two']
    """

    replacement: str = MARK
    prepend_scheme: str = "always"


PREPEND_SCHEMES = ("never", "first", "always")
NEVER = 0  # for kernels, the position in PREPEND_SCHEMES
ALWAYS = 2

# Punctuation is the same as in `tokenizers`: the printable characters of ASCII except letters and
# digits, and the punctuation of Unicode 8. Later versions of Unicode dropped two characters, U+166D
# and U+111C9, and added these.
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

# The expressions are those of the tokenizers with these names. Only in cl100k, possessive
# quantifiers became greedy ones, which match the same, and `$` became (?![\s\S]), since `$` also
# matches before a newline in Oniguruma, the engine of Hugging Face.
#
# "spaces" is our own. A word begins with the space before it, as in SentencePiece, but all spaces
# are kept, and scripts, digits and punctuation are not separated. The tokens of a Unigram are
# longer with it than with "gpt2".
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+(?![\s\S])|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "nanochat": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "spaces": r" ?\S+|\s+(?!\S)|\s+",
    "none": r"[\s\S]+",
    "bert": {"type": "BertPreTokenizer"},
    "whitespace": {"type": "Whitespace"},
    "whitespace-split": {"type": "WhitespaceSplit"},
}


PatternStep = str | Split | Metaspace | dict
PatternSource = PatternStep | Sequence[PatternStep]
NormalizerSource = Sequence[str | dict]  # names, and steps of a tokenizer.json
# A string like this is the name of a pattern. It is an expression only as the regex of a Split.
_LIKE_A_NAME = regex.compile(r"[A-Za-z][A-Za-z\d_-]+")


def _plain_steps(step):
    """List the plain steps for which a step stands; raises InputError if it is not valid.

    JSON stands for the steps of a pre_tokenizer. A Split that isolates becomes its regex, which
    means the same, so that equal patterns have equal steps.
    """
    match step:
        case dict():
            return _pre_tokenizer_steps(step)
        case Split():
            require_known("behavior", step.behavior, BEHAVIORS)
            if step.behavior == "isolated" and not _LIKE_A_NAME.fullmatch(step.regex):
                step = step.regex
        case Metaspace():
            require_known("prepend scheme", step.prepend_scheme, PREPEND_SCHEMES)
            mark = step.replacement
            require(len(mark) == 1, f"Metaspace writes one character for a space, not {mark!r}")
        case str() if _LIKE_A_NAME.fullmatch(step):
            require_known("pattern", step, [*PATTERNS, "or a regular expression"])
    return (step,)


# The steps of a tokenizer.json


def _flattened(part, key):
    """List the steps of a part of a tokenizer.json; a Sequence in it lists steps under `key`."""
    match part:
        case list() | tuple():
            return [step for item in part for step in _flattened(item, key)]
        case {"type": "Sequence"} if isinstance(part.get(key), list | tuple):
            return _flattened(part[key], key)
        case {"type": str(name)} if name != "Sequence":
            return [part]
    raise InputError(
        f"a step without a type, or a Sequence without {key}, is not supported: {part!r:.100}"
    )


def _call_step(part, functions, step, *arguments):
    """Call the function for the type of a step of a tokenizer.json; returns its result as a list.

    The other fields of the step are passed by name. `part` names a part of the file, for a message.
    """
    fields = dict(step)
    try:
        function = functions[fields.pop("type")]
        return list(function(*arguments, **fields))
    except Exception as error:
        raise InputError(f"the {part} {step!r:.100} is not supported: {error}") from None


# An expression of another engine is rewritten for `regex`, and back. Hugging Face uses Oniguruma,
# with Ruby's dialect, and tiktoken uses fancy-regex. Most expressions mean the same to all three
# engines, and some are rewritten. All others are refused.
#
# This grammar and the one of `_parse` below differ on purpose. This one takes every expression that
# can be translated, such as a lookbehind, and rewrites it piece by piece, without regard to its
# structure. `_parse` takes only expressions that become a table, and builds their structure.

# Within a set, which is an expression in brackets, \w of Oniguruma matches these characters.
# Outside of a set it also matches six numbers. The \w of `regex` matches two joiners as well. So it
# is written for Oniguruma as a set that has them, and read back as \w.
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"
_WORD_SET = r"\[\^?\\p\{Word\}\\u200c\\u200d\]"
# These match an escape, and a part of a set, that mean the same to all engines.
_SAME_ESCAPE = (
    r"\\(?:[sSdDnrtfva]|[pP]\{\^?(?!(?i:word|graph|print|x_?digit)\})\w+\}"
    r"|x[0-7][\dA-Fa-f]|u(?![dD][89a-fA-F])[\dA-Fa-f]{4}|[^\w])"
)
_ITEM = rf"[^\]\[\\&~-]|&(?!&)|~(?!~)|-(?!-|\[|&&|\\[whe])|{_SAME_ESCAPE}|\\[whe](?!-[^\]])"
_ANY_SET = r"(?P<set>\[\^?\]?(?:\\.|[^\]\[\\]|(?&set))*\])"
_SET_PART = regex.compile(
    rf"&&|\\[WH]|(?:\A\]|\A-(?!-)|{_ITEM}|{_WORD_SET})(?:{_ITEM}|{_WORD_SET})*|{_ANY_SET}"
    r"|(?P<other>[\s\S])"
)


class _Dialect(NamedTuple):
    """The expressions that `regex` reads in place of an engine's own."""

    parts: dict  # a regular expression -> the replacement of its matches; None: they stay
    items: dict  # an escape in a set -> items of a set, or another set
    escapes: dict  # an escape of `regex` -> the engine's own


# When case is ignored, Oniguruma matches ß with ss, and a ligature with its letters; `regex`
# matches i with İ. The first entry takes only groups that contain none of these.
_SAME_PARTS = {
    r"\(\?i:(?:(?i:(?!ss|ff|fl|st|i))[A-Za-z'|]|\[[A-HJ-Za-hj-z]+\])+\)": None,
    rf"\\A|{_SAME_ESCAPE}": None,
    r"\((?!\?)|\(\?(?:[:=!>]|<[=!]|P?<[A-Za-z]\w*>)": None,
    r"[*+?][+?]?|\{\d+,?\}|\{\d*,\d+\}\??": None,
    r"[^\\\[({*+?^$]": None,
    r"\\h": "[0-9A-Fa-f]",
    r"\\H": "[^0-9A-Fa-f]",
    r"\\e": r"\x1b",
    r"\\z": r"\Z",
}
_SAME_ITEMS = {r"\h": "0-9A-Fa-f", r"\H": "[^0-9A-Fa-f]", r"\e": r"\x1b"}
# ^ and $ are the beginning and the end of each line; + after a count repeats it.
_ONIGURUMA = _Dialect(
    {
        r"\[\\p\{Word\}\\u200c\\u200d\]": r"\w",
        r"\[\^\\p\{Word\}\\u200c\\u200d\]": r"\W",
        r"\^": r"(?<![^\n])",
        r"\$": r"(?![^\n])",
        r"\\Z": r"(?=\n?\Z)",
        r"\\w": f"[{_WORD}²³¹¼½¾]",
        r"\\W": f"[^{_WORD}²³¹¼½¾]",
        r"\(\?m:": "(?s:",
        r"\{1(?:,\d*)?\}\+": "+",
        r"\{0?,\d+\}\+": "*",
        r"\{\d+,?\d*\}\+|\{\d+\}\?": "",  # is refused
        **_SAME_PARTS,
    },
    {
        r"[\p{Word}\u200c\u200d]": r"\w",
        r"[^\p{Word}\u200c\u200d]": r"\W",
        r"\w": _WORD,
        r"\W": f"[^{_WORD}]",
        **_SAME_ITEMS,
    },
    {r"\w": r"[\p{Word}\u200c\u200d]", r"\W": r"[^\p{Word}\u200c\u200d]"},
)
_FANCY = _Dialect(
    {r"\^|\\[wWbB]|\(\?s:|\{\d+(?:,\d*)?\}\+": None, r"\$": r"\Z", **_SAME_PARTS},
    _SAME_ITEMS,
    {r"\Z": r"\z"},
)


def _replace_escapes(text, replacements):
    """Replace some escapes, and sets that stand for them, in an expression."""
    escapes = rf"{_WORD_SET}|\\(?s:.)"
    return regex.sub(escapes, lambda part: replacements.get(part[0], part[0]), text)


def _union(sets):
    """Unite sets by lookaheads, since `regex` takes [^a]|[^b] for [^ab]."""
    if len(sets) == 1:
        return sets[0]
    none = "".join(f"(?!{one})" for one in sets)
    return rf"(?!{none}[\s\S])[\s\S]"


def _read_set(text, dialect):
    """Rewrite a set of another engine for `regex`, which has no nested sets and no intersections.

    Lookaheads take their place. The result is "" if the set is not supported.

    >>> _read_set(r"[a-z&&[^aeiou]]", _FANCY)
    '(?:(?=[^aeiou])[a-z])'
    """
    negation = "^" * text.startswith("[^")
    body = text[1 + len(negation) : -1]
    parts = list(_SET_PART.finditer(body))
    operands = [[]]  # of the intersections: the sets that each one unites
    for part in parts:
        read = dialect.items.get(part[0])
        if part["other"]:
            return ""
        if part[0] == "&&":
            operands.append([])
            continue
        if part["set"] and not read:
            read = "" if part[0].startswith("[:") else _read_set(part[0], dialect)
        elif not read or read[0] != "[":
            read = read or _replace_escapes(part[0], dialect.items)
            if len(parts) == 1:
                return f"[{negation}{read}]"
            read = rf"[\{read}]" if read.startswith("^") else f"[{read}]"
        operands[-1].append(read)
    if [] in operands or not all(map(all, operands)):
        return ""
    *looks, first = map(_union, reversed(operands))
    source = "".join(f"(?={look})" for look in looks) + first
    return rf"(?:(?!{source})[\s\S])" if negation else f"(?:{source})"


def _read_regex(text, dialect=_ONIGURUMA):
    """Rewrite an expression of another engine for `regex`; raises InputError if it may differ."""

    def without_braces(escape):
        code = int(escape[1] or "0", 16)
        if code >= 0x80:
            return chr(code)
        return rf"\x{code:02x}" if code else escape[0]

    text = re.sub(r"\\x\{([\dA-Fa-f]+)\}|\\(?s:.)", without_braces, text)
    sources = [*(f"({source})" for source in dialect.parts), _ANY_SET, r"([\s\S])"]
    replacements = [*dialect.parts.values(), "", ""]
    rewritten = ""
    for part in regex.finditer("|".join(sources), text):
        read = replacements[part.lastindex - 1]
        if part["set"]:
            read = _read_set(part[0], dialect)
        elif read is None:
            read = part[0]
        require(
            read,
            f"the pattern {text[:200]!r} is not supported: {text[part.start() :]!r:.20} may mean "
            "something else to `regex`",
        )
        rewritten += read
    return rewritten


def _write_regex(source, dialect=_ONIGURUMA):
    """Rewrite an expression of `regex` for another engine, if that is possible."""
    written = _replace_escapes(source, dialect.escapes)
    with contextlib.suppress(InputError):
        if _read_regex(written, dialect) == source:
            return written
    raise InputError(f"another engine reads {source!r} differently: write $ as (?![\\s\\S])"[:300])


# The steps of a pattern for a pre_tokenizer

_BEHAVIORS = {name.title().replace("_", ""): name for name in BEHAVIORS}


def _split_steps(pattern, behavior, invert):
    """Make the step of a Split."""
    if "String" in pattern:
        source = regex.escape(pattern["String"])
    else:
        source = _read_regex(pattern["Regex"])
    yield Split(source, _BEHAVIORS[behavior], invert)


def _metaspace_steps(replacement, add_prefix_space=True, split=True, prepend_scheme=None, **_):
    """Make the steps of a Metaspace; if it splits, a pretoken begins at each replacement."""
    old_scheme = "always" if add_prefix_space else "never"  # in files from before 2023
    yield Metaspace(replacement, prepend_scheme or old_scheme)
    if split:
        yield Split(regex.escape(replacement), "merged_with_next")


def _byte_level_steps(add_prefix_space=True, use_regex=True, **_):
    """Make the steps of a ByteLevel."""
    if add_prefix_space:
        yield Metaspace(" ")
    if use_regex:
        yield PATTERNS["gpt2"]


# The function for a type of pre-tokenizer makes the steps of a pattern. Its parameters are the
# fields of the pre-tokenizer. Rust's \s and \w match the same characters as here, except for those
# that are newer than Unicode 16.
_PRE_TOKENIZERS = {
    "BertPreTokenizer": lambda: (Split(r"\s", "removed"), PUNCTUATION),
    "Whitespace": lambda: (Split(r"\w+|[^\w\s]+", "removed", invert=True),),
    "WhitespaceSplit": lambda: (Split(r"\s", "removed"),),
    "Punctuation": lambda behavior="Isolated": (Split(PUNCTUATION, _BEHAVIORS[behavior]),),
    "Digits": lambda individual_digits: (r"\p{N}" if individual_digits else r"\p{N}+",),
    "CharDelimiterSplit": lambda delimiter: (Split(regex.escape(delimiter), "removed"),),
    "FixedLength": lambda length=5: (rf"[\s\S]{{1,{length}}}",),
    "Split": _split_steps,
    "Metaspace": _metaspace_steps,
    "ByteLevel": _byte_level_steps,
}
_DIGITS = {"type": "Digits", "individual_digits": False}


class ByteDigits(NamedTuple):
    """Cut off bytes whose names are numbers, as a Digits after a ByteLevel does."""

    individual: bool = True  # each such byte, or runs of them


def _pre_tokenizer_steps(pre_tokenizer):
    """Make the steps of a pattern for a pre_tokenizer.

    Digits after a ByteLevel cuts the names of bytes, and not the text. If it is the last part, it
    cuts between bytes; otherwise it is left out, see `_check_after_bytes`. If no step is left that
    could cut, the pattern "none" is the last step.
    """
    steps = []
    has_byte_level = False
    parts = _flattened(pre_tokenizer, "pretokenizers")
    for k, part in enumerate(parts):
        if has_byte_level and part["type"] == "Digits":
            if k == len(parts) - 1:
                steps.append(ByteDigits(part.get("individual_digits", False)))
            continue
        for step in _call_step("pre_tokenizer", _PRE_TOKENIZERS, part):
            steps += _plain_steps(step)
        has_byte_level |= part["type"] == "ByteLevel"
    if all(isinstance(step, Metaspace | ByteDigits) for step in steps):
        steps.append(PATTERNS["none"])
    return tuple(steps)


PATTERN_NAMES = {_plain_steps(entry): name for name, entry in PATTERNS.items()}


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────
#
# A pattern is compiled from its steps, and cuts text into pretokens. Text between matches is kept:
#
#     Pattern(r"\d+|a").split(b"12a!3")   ->   [b"12", b"a", b"!", b"3"]
#
# An expression is compiled through five forms:
#
#     expression   "\d+|a"
#     parts        either, repeat, class, …            `_parse`
#     machine      states x {digit, a, other, END}     `_step` (classes have one size in UTF-8)
#     transducer   an entry for each state and class   `_streaming_transducer`: never goes back
#     table        uint32[R * 256]                     `_utf8_table`: 256 entries for each state
#
# Scanning reads the table: one look-up for each byte. An expression that is not regular, such as
# one with a lookbehind, is left to the `regex` package. Each pass over the text is done by a table,
# by that package or by a Metaspace. Consecutive steps share a pass if one machine can do them all.
#
# A part is a tuple. Parts that are matched one after another are a sequence, which is a tuple, too:
#
#     ("class", source)               take a character that the one-character expression matches
#     ("lookahead", source, wanted)   go on if the next character matches, or does not match, as
#                                     wanted
#     ("either", sequence, …)         match one of the sequences; earlier ones are preferred
#     ("repeat", sequence, least, most, mode)
#                                     match the sequence from `least` to `most` times. The mode is
#                                     "" to prefer more, "?" to prefer fewer, and "+" to go on until
#                                     the sequence matches no more

_GROUP = r"\((?:\?(?P<look>[=!])|\?(?P<fold>i?):|(?!\?))"
_ESCAPE = (
    r"\\(?:[pP](?:\{\^?[\w\s=:&.-]+\}|[LMNPSZC])|[sSdDwW]"
    r"|x[\dA-Fa-f]{2}|u[\dA-Fa-f]{4}|[nrtfva]|[^\w])"
)
_SET = r"\[\^?\]?(?:\\[pPx]\{[^}]*\}|\\.|[^\]\\\[])*\]"
_COUNT = r"(?P<count>[*+?]|\{\d{1,3}(?:,\d{0,3})?\})"
# Here `$` is the end of the text, since \s+ leaves no newline before it.
_LAST_SPACES = r"\\s\+\+?\$(?![*+?{])"
_TOKEN = regex.compile(
    rf"(?P<bar>\|)|(?P<open>{_GROUP})"
    rf"|(?:(?P<close>\))|(?P<spaces>{_LAST_SPACES})|(?P<end>\\Z))(?:{_COUNT}(?P<mode>\??))?"
    rf"|(?P<character>{_SET}|{_ESCAPE}|[^\\\[(^$*+?{{])(?:{_COUNT}(?P<mode>[?+]?))?"
)
_COUNTS = {"*": "0,", "+": "1,", "?": "0,1"}


class Unsupported(ValueError):
    """The pattern cannot be compiled to a table, and is left to the `regex` package."""


def _parse(source, sources):
    """Parse an expression that `regex` accepts; `sources` gets its one-character expressions."""

    def refuse_if(condition, construct):
        if condition:
            raise Unsupported(f"{construct} at position {position}")

    def character(kind, expression, *wanted):
        if fold:
            expression = f"(?i:{expression})"
        sources[expression] = None
        return ((kind, expression, *wanted),)

    position = 0
    fold = False
    sequences = [()]  # the alternatives of the innermost group
    groups = []  # those around it: their alternatives, `fold`, and the token that opened the next
    while position < len(source):
        token = _TOKEN.match(source, position)
        refuse_if(not token, repr(source[position : position + 3]))
        position = token.end()
        if token["bar"]:
            sequences.append(())
            continue
        if token["open"]:
            groups.append((sequences, fold, token))
            fold = fold or token["fold"] == "i"
            sequences = [()]
            continue
        if token["close"]:
            part = _alternatives(sequences)
            sequences, fold, opened = groups.pop()
            if opened["look"]:
                match part:
                    case (("repeat", first, 1, *_),):  # the first of a run tells
                        part = first
                refuse_if(not _takes_one_character(part), "a lookahead at more than one character")
                inner = source[opened.end() : token.start()]
                part = character("lookahead", inner, opened["look"] == "=")
        elif token["character"]:
            part = character("class", token["character"])
        else:
            part = character("lookahead", r"[\s\S]", False)
            if token["spaces"]:
                part = ("repeat", character("class", r"\s"), 1, math.inf, ""), *part
        if token["count"]:
            refuse_if(_may_be_empty(part), "a quantifier on a part that may be empty")
            count = _COUNTS.get(token["count"], token["count"].strip("{}"))
            limits = count.split(",")  # one or two numbers; the second may be missing
            least = int(limits[0])
            most = float(limits[-1] or "inf")
            part = (("repeat", part, least, most, token["mode"]),)
        sequences[-1] += part
    return _alternatives(sequences)


def _alternatives(sequences):
    """Make a sequence that matches one of some sequences."""
    if len(sequences) == 1:
        return sequences[0]
    return (("either", *sequences),)


def _takes_one_character(sequence):
    """Check whether a sequence takes a single character, with or without lookaheads at it."""
    *looks, (kind, *_) = sequence or [("none",)]
    return kind == "class" and all(look[0] == "lookahead" for look in looks)


def _classes_in(sequence):
    """List the one-character expressions of the characters that a sequence may take."""
    for kind, *rest in sequence:
        if kind == "class":
            yield rest[0]
        elif kind == "either":
            yield from itertools.chain.from_iterable(map(_classes_in, rest))
        elif kind == "repeat":
            yield from _classes_in(rest[0])


def _may_be_empty(sequence):
    """Check whether a sequence matches without taking a character."""
    for kind, first, *others in sequence:
        if kind == "class":
            return False
        if kind == "either" and not any(map(_may_be_empty, [first, *others])):
            return False
        if kind == "repeat" and others[0]:  # the least number of times
            return False
    return True


_LISTED = re.compile(r"\[\^?(?:\w|\\U[\da-f]{8})+\]")


@functools.lru_cache(maxsize=256)
def _code_points_matching(source):
    """Find the code points that a one-character expression matches, bool[0x110000].

    The `regex` package decides, so that both use the same version of Unicode. It compares each
    character with all characters of a list, which takes seconds for Chinese; `re` looks it up.
    """
    matches = np.zeros(N_CODE_POINTS, bool)
    engine = re if _LISTED.fullmatch(source) else regex
    for run in engine.finditer(f"(?:{source})+", _all_characters()):
        matches[run.start() : run.end()] = True
    return matches


@functools.cache
def _all_characters():
    """Join the characters of all code points."""
    codes = np.arange(N_CODE_POINTS, dtype="<u4")
    return codes.tobytes().decode("utf-32-le", "surrogatepass")


MAX_SETS = 60  # sets of characters: one bit each
SIZE_BIT = 61  # above them, the lowest bit of the number of bytes


def _find_classes(sources):
    """Find the classes of code points that these one-character expressions tell apart.

    All code points of a class have the same size in UTF-8. The last class is END, where the text
    ends: it has no code point, and takes one byte. Returns

    class_of    uint16[0x110000]
    examples    a code point of each class
    sizes       in bytes
    matching    the one-character expressions that match a class; none of them matches END
    """
    if len(sources) > MAX_SETS:
        raise Unsupported(f"more than {MAX_SETS} sets of characters")
    # The code points from one of these to the next have one size in UTF-8. A lone surrogate means
    # an invalid byte, and a text has only 128 of them.
    borders = np.array([0, 0x80, 0x800, 0xD800, 0xE000, 0x10000])
    sets = [_code_points_matching(source) for source in sources]
    for matches in sets:
        if len({*matches[0xDC80:0xDD00].tolist()}) > 1:
            raise Unsupported("a class that distinguishes between invalid bytes")
    changes = [1 + np.flatnonzero(matches[1:] != matches[:-1]) for matches in sets]
    # Neighbours are mostly alike: these are the runs of code points that no set tells apart.
    starts = np.unique(np.concatenate([borders, *changes]))
    starts = starts[(starts <= 0xD800) | (starts >= 0xE000)]
    sizes = np.array([1, 2, 3, 1, 3, 4], u64)[np.searchsorted(borders, starts, "right") - 1]
    # The bits of a run: one for each set that contains it, and above them its size.
    bits = sizes << u64(SIZE_BIT)
    looked_at = np.where(starts == 0xD800, SURROGATE_ESCAPE, starts)
    for bit, matches in enumerate(sets):
        bits |= matches[looked_at].astype(u64) << u64(bit)
    classes, firsts, class_of_run = np.unique(bits, return_index=True, return_inverse=True)
    class_of = np.repeat(class_of_run.astype(np.uint16), np.diff(starts, append=N_CODE_POINTS))
    examples = starts[firsts]
    matching = [
        {source for bit, source in enumerate(sources) if of_class >> bit & 1}
        for of_class in classes.tolist()
    ]
    return class_of, examples, [*sizes[firsts].tolist(), 1], [*matching, {"END"}]


def _step(state, matching):
    """Read a character. `matching` has the one-character expressions that match it.

    Returns whether a match ends before the character, and the next state. A state is a tuple of
    sequences: each is a way to go on, the preferred one first. These are the ordered threads of
    Pike's machine; see Cox, "Regular Expression Matching: the Virtual Machine Approach". Ways after
    one that has matched are dropped, so the last match is the one that Perl finds. A match is
    recognized one character later, when lookaheads can be decided.
    """
    seen = set()
    after = {}  # the ways to go on, in their order
    waiting = list(reversed(state))
    while waiting:
        way = waiting.pop()
        if not way:
            return True, tuple(after)
        if way in seen:
            continue
        seen.add(way)
        rest = way[1:]
        match way[0]:
            case ("class", source) if source in matching:
                after[rest] = None
            case ("lookahead", source, wanted) if (source in matching) == wanted:
                waiting.append(rest)
            case ("either", *sequences):
                waiting += [sequence + rest for sequence in reversed(sequences)]
            case ("repeat", *repeat):
                waiting += _ways_to_repeat(*repeat, rest)
    return False, tuple(after)


def _ways_to_repeat(sequence, least, most, mode, rest):
    """List the ways to go on at a "repeat" part that a rest follows, the preferred one last."""
    if not most:
        return [rest]
    again = ("repeat", sequence, max(least - 1, 0), most - 1, mode)
    more = (*sequence, again, *rest)
    if least:
        return [more]
    if mode == "?":
        return [more, rest]
    if mode == "+":
        rest = (("lookahead", sequence[0][1], False), *rest)
    return [rest, more]


MAX_SIZE = 1_000_000  # of a machine: letters times the sizes of its states; o200k needs 157,000


def _number_states(first, row):
    """Number the states of a machine in the order in which they are reached, from 0 on.

    row(state) lists, for each letter, the output of the machine and the next state; or () where no
    match goes on. Returns the outputs, and the numbers of the next states, or -1: two arrays of
    states by letters.
    """
    states = [first]
    numbers = {(): -1, first: 0}
    outputs = []
    following = []
    size = 0
    for state in states:
        state_outputs, next_states = zip(*row(state), strict=True)
        for other in next_states:
            if other not in numbers:
                numbers[other] = len(states)
                states.append(other)
        size += len(next_states) * len(state)
        if size > MAX_SIZE:
            raise Unsupported(f"a machine of more than {len(states):,} states")
        outputs.append(state_outputs)
        following.append([numbers[other] for other in next_states])
    return np.array(outputs), np.array(following)


class ScanTable(NamedTuple):
    r"""A compiled pattern: a machine over bytes that never goes back.

    It has D states, C classes of characters (class C is END), and R rows of the table. A state of
    the machine over bytes is a row, and the entry at row * 256 + byte is

        31 … 8     next row, already times 256
        7 … 5      rare: MORE_ENDS, by their index; INVALID_UTF8; UNRESOLVED
        4 … 0      the number of bytes back at which a pretoken ends, counted from after this byte;
                   0: none ends

    With the pattern `\S+|\s+(?!\S)|\s`, on the text "ab  c", where a dot is a space:

        byte       a    b    .    .    c    END   END
        entry      0    0    1    0    2,1   1     1
        ends                 2         3,4   5     6          5 - 2 = 3; 5 - 1 = 4; 6 of END itself

    At the first space "ab" has ended, one byte back. The byte `c` decides that `\s+(?!\S)` had to
    give back a space: a pretoken ended 2 bytes back, and a single space, matched by `\s`, ended 1
    byte back. END ends the pretoken before it, and is a pretoken itself. An entry is UNRESOLVED if
    its ends are not among MORE_ENDS, or one is too far back, or the state would have to remember
    too many characters. The other arrays then decide: they are the machine over characters (see
    `_match_end`).
    """

    table: np.ndarray  # uint32[R * 256]
    class_of: np.ndarray  # uint16[0x110000]    code point -> class
    next_state: np.ndarray  # int32[D, C + 1]   state, class -> state, or -1
    accepts: np.ndarray  # bool[D, C + 1]       whether a match ends before a character, in a state
    # bool[C, C]  whether a pretoken ends between such characters in every context. The machine over
    # characters reads END there, since a pretoken of an earlier Split may end there, too
    must_split: np.ndarray
    dropped: np.ndarray  # bool[C]   whether a pretoken is dropped, by its first character; or empty


ROW_MASK = u32(0xFFFFFF00)
BACK_MASK = u32(0x1F)
RARE_STEP = u32(0x20)
MORE_SHIFT = 5  # of the index of MORE_ENDS in an entry
UNRESOLVED = u32(7 << MORE_SHIFT)
INVALID_UTF8 = u32(6 << MORE_SHIFT)
# The further ends that an entry can tell after its first one, in bytes back. The index of a single
# further end is its distance. The last case is a digit after a newline and spaces, with the pattern
# of cl100k.
MORE_ENDS = (), (1,), (2,), (3,), (4,), (2, 1)
THREE_ENDS = u64(5)  # the index of the last case
MAX_BACK = 31
# A state remembers fewer bytes than these: enough for code that is indented by 30 spaces.
MAX_PENDING_BYTES = 31


def _compile_pattern(source, passes=()):
    """Compile an expression to a table; raises Unsupported if that cannot be done exactly.

    passes  the passes of the Splits that become one machine; the expression contains that of the
            last one. The machine reads END where one of the others surely cuts. A pretoken is
            dropped if one of them drops pretokens that begin with such a character
    """
    sources = {}
    sequence = _parse(source, sources)
    for cut_pass in passes:  # so that each class of the machine is part of one class of the pass
        _parse(cut_pass.split.pieces, sources)
    class_of, examples, sizes, matching = _find_classes(sources)
    n = len(examples)
    cuts = np.zeros((n, n), bool)
    dropped = np.zeros(n, bool)
    for cut_pass in passes:
        table = cut_pass.table
        theirs = table.class_of[examples]
        if cut_pass is not passes[-1]:
            cuts |= table.must_split[np.ix_(theirs, theirs)]
        if len(table.dropped):
            dropped |= table.dropped[theirs]
    # END is a match by itself only in the first state, to which no text leads back.
    first = ((("class", "END"),), sequence)
    accepts, next_state = _number_states(
        first, lambda state: [_step(state, of_class) for of_class in matching]
    )
    if accepts[0].any():
        raise Unsupported("it matches the empty string before some characters")
    accepts[0, -1] = True  # text without a match ends at END, and not at the character after it
    entries = _streaming_transducer(next_state, accepts, cuts, sizes)
    splits = [contexts.all(axis=0) for contexts in _splits_after(next_state, accepts)]
    return ScanTable(
        _utf8_table(entries, class_of),
        class_of,
        next_state.astype(np.int32),
        accepts,
        np.array(splits) | cuts,
        dropped if dropped.any() else dropped[:0],
    )


def _sure_starts(next_state, accepts):
    """Find the classes with which a match surely begins, by arrays of a ScanTable: bool[C + 1]."""
    # The states from which a match surely follows are fewer in each round. Index -1 means none.
    sure = np.append(np.ones(len(accepts), bool), False)
    n_before = None
    while sure.sum() != n_before:
        n_before = sure.sum()
        sure[:-1] = (accepts | sure[next_state]).all(axis=1)
    return sure[next_state[0]]


def _splits_after(next_state, accepts):
    """List for each class x whether a pretoken surely ends between x and each class y.

    Each item of the list is bool[contexts, C]. A context of x is a state after x. The pretoken ends
    if this state accepts before y and before END, and does not take y. If no match begins with x,
    text without a match is a context, too: it ends if y alone is a match, whatever follows. If a
    state fails before both, x is read again in another context or joins text without a match.
    """
    first = next_state[0]
    in_gap = (first >= 0) & accepts[first].all(axis=1)
    in_match = (next_state < 0) & (accepts == accepts[:, -1:]) & (accepts | in_gap)
    splits = np.vstack([in_match, in_gap])[:, :-1]  # so the state -1 is text without a match
    states_after = next_state.T[:-1]  # for each x; the first one is reached from the start
    return [splits[[after[0], *after[after >= 0]]] for after in states_after]


FRESH, ACCEPTED, GAP = range(3)


class _Reading(NamedTuple):
    r"""A state of a transducer: the part of the current pretoken that it has read.

    With the pattern `\S+|\s+(?!\S)|\s`, two spaces (dots here) have been read. Now a c is read, and
    makes the machine give back the second space. The last of `unread` is always read next:

        unread   inner   pending   status     ends
        c        \s+     .         ACCEPTED          the first space is a match
        c .      start             FRESH      2      it is a pretoken; the second one is read again
        c        \s+     .         FRESH      2
        c        start             FRESH      2, 1   the second one is a pretoken; c is read again
                 \S+     c         FRESH      2, 1
    """

    inner: int = 0  # a state of the pattern's machine
    # The characters that may have to be read again: those since the last match or, without a match,
    # since the start. They are all alike, or are read as if they were; otherwise this is MANY.
    pending: tuple = ()
    # ACCEPTED after a match; FRESH before one; GAP before one, after characters without a match
    status: int = FRESH
    row: tuple = ()  # the row of `cuts` for the last character


# In place of characters, the transducer reads CUT where the text ends between two of them: an END
# without bytes. MANY stands for characters that are too many or too different to be remembered.
CUT = -1
MANY = -2


def _streaming_transducer(next_state, accepts, cuts, sizes):
    """Compose a pattern's machine with its own restart; returns entries, int64[states, C + 1].

    The entries are those of a ScanTable. The transducer emits the end of each pretoken, and reads
    again the characters after it, which its state remembers. So scanning never moves backwards.
    Here a character is the number of its class.

    next_state, accepts   those of a ScanTable
    cuts                  bool[C, C]: whether the text ends between two characters
    sizes                 the bytes of each character
    """
    rows = list(map(tuple, np.pad(cuts, (0, 1)).tolist()))
    # The last two sizes are those of MANY, too far back for an entry to tell, and of CUT.
    next_state = np.pad(next_state, ((0, 1), (0, 0)), constant_values=-1)  # from the state -1
    machine = next_state, accepts, rows, [*sizes, MAX_BACK + 1, 0]

    def row(state):
        return [_advance(machine, state, char) for char in range(len(sizes))]

    ends, following = _number_states(_Reading(row=rows[-1]), row)
    return np.maximum(following, 0) << 8 | ends


def _advance(machine, state, char):
    """Read a character in a state: returns the lower bits of the entry, and the next state.

    This is the definition of pretokens, one character at a time. While the pattern's machine goes
    on, characters are pending. If it stops after a match, the match is a pretoken, and the
    characters after it are read again. If it stops without a match, the first character joins the
    text between matches, the gap, and the others are read again.

    The state is a _Reading. After an UNRESOLVED entry there is no state, which is written as ().
    """
    next_state, accepts, rows, sizes = machine
    inner, pending, status, row = state
    unread = [char]  # the last one is read next
    if row[char]:
        unread.append(CUT)
    row = rows[char]
    ends = []  # of pretokens, in bytes before the end of `char`

    def end_before(chars):
        back = [*chars, *unread]
        ends.append(sum(sizes[char] for char in back))

    while unread:
        char = unread.pop()
        if char == CUT and not inner:  # at most a gap is open
            if status == GAP:
                end_before(())
            status = FRESH
            continue
        chars = (*pending, char)
        if accepts[inner, char]:
            # A match ends before this character; a gap before the match is a pretoken.
            if status == GAP:
                end_before(chars)
            chars = (char,)
            status = ACCEPTED
        inner = int(next_state[inner, char])
        if inner >= 0:
            # The machine goes on, and these characters wait.
            pending = (char,) * len(chars)
            is_known = pending == chars or (status == ACCEPTED and _reads_as_copies(machine, chars))
            if not is_known or len(chars) * sizes[char] >= MAX_PENDING_BYTES:
                pending = (MANY,)
            if status == GAP and MANY not in chars and accepts[inner].all():
                end_before(chars)  # the match is already sure
                status = FRESH
            continue
        if MANY in chars:
            return int(UNRESOLVED), ()
        inner = 0
        pending = ()
        if status == ACCEPTED:
            # The machine stops: the last match is a pretoken, and the rest is read again.
            end_before(chars)
            status = FRESH
        else:
            # The machine stops without a match: the first character joins the gap.
            chars = chars[1:]
            status = GAP
        unread += reversed(chars)
    first = max(ends, default=0)
    more = tuple(ends[1:])
    # The bytes of a longer character have rows of their own for each distance.
    if more not in MORE_ENDS or first > MAX_BACK // sizes[char]:
        return int(UNRESOLVED), ()
    return MORE_ENDS.index(more) << MORE_SHIFT | first, _Reading(inner, pending, status, row)


def _reads_as_copies(machine, chars):
    """Check whether the machine cannot tell some characters from as many copies of the last one.

    All but the last one are alike. The machine cannot tell them apart if all characters have the
    same size, a match ends before the last one in both cases, and the same state follows.
    """
    next_state, accepts, _, sizes = machine
    first, *_, last = chars

    def read_last_after(char):
        state = 0
        for _ in chars[1:]:
            state = next_state[state, char]
        return accepts[state, last], next_state[state, last]

    has_one_size = sizes[first] == sizes[last]
    return has_one_size and read_last_after(first) == read_last_after(last) >= (True, 0)


def _utf8_table(entries, class_of):
    """Expand the entries of a transducer from classes to bytes, uint32[R * 256].

    There is a row for each state, and there are rows for the bytes that continue a character.
    """
    empty = np.full(256, INVALID_UTF8, u32)
    rows = [empty.copy() for _ in entries]
    entry_of = {empty[:64].tobytes(): INVALID_UTF8}
    # The classes of code points, as far as four bytes reach; an invalid one has its own class.
    no_class = entries.shape[1]
    multibyte = np.pad(class_of, (0, 0x30000), constant_values=no_class)
    multibyte[:0x80] = no_class
    multibyte[0xD800:0xE000] = no_class
    # The last byte of a character tells 64 code points apart, the byte before it 64 such blocks,
    # and so on. Few blocks differ, and few rows of them. A character is valid only in its shortest
    # form, so longer ones have the first, invalid block in place of others.
    blocks, block_of = _different_rows(multibyte.reshape(-1, 64))
    of_three = np.append(np.full(0x20, block_of[0]), block_of[0x20:0x400])  # up to U+FFFF
    of_four = np.append(np.full(0x400, block_of[0]), block_of[0x400:])
    groups, group_of = _different_rows(np.append(of_three, of_four).reshape(-1, 64))

    def row_entries(continued):
        """Make an entry for each row of 64 entries, which leads to a row of the table with them."""
        links = []
        keys = continued.tobytes()
        for start in range(0, len(keys), 64 * 4):
            key = keys[start : start + 64 * 4]
            if key not in entry_of:
                entry_of[key] = len(rows) << 8
                rows.append(empty.copy())
                rows[-1][0x80:0xC0] = np.frombuffer(key, u32)  # by the byte that continues
            links.append(entry_of[key])
        return np.array(links, u32)

    for state, of_class in enumerate(entries.astype(u32)):
        row = rows[state]
        row[END] = of_class[-1]
        row[:0x80] = of_class[class_of[:0x80]]
        row[INVALID_BYTE] = of_class[class_of[SURROGATE_ESCAPE]]
        of_block = row_entries(np.append(of_class, INVALID_UTF8)[blocks])
        of_group = row_entries(of_block[groups])[group_of]
        row[0xC0:0xE0] = of_block[block_of[:0x20]]  # U+0080 to U+07FF: two bytes
        row[0xE0:0xF0] = of_group[:0x10]
        row[0xF0:0xF5] = row_entries(of_group[0x10:])
    return np.concatenate(rows)


def _different_rows(array):
    """List the rows of a matrix that differ, and for each row the number of its equal."""
    # Rows that are single items are sorted five times as fast as rows of numbers.
    items = np.ascontiguousarray(array).view(f"V{array.shape[1] * array.itemsize}").ravel()
    different, number_of = np.unique(items, return_inverse=True)
    return different.view(array.dtype).reshape(-1, array.shape[1]), number_of


def _is_one_character(source):
    """Check whether an expression, which `regex` accepts, matches single characters."""
    with contextlib.suppress(Unsupported):
        return _takes_one_character(_parse(source, {}))
    return False


def _write_set(characters, negated=False):
    """Write a set of characters as an expression."""
    codes = "".join(
        char if char.isalnum() else rf"\U{ord(char):08x}" for char in sorted(characters)
    )
    return f"[{'^' * negated}{codes}]"


def _matching(source):
    """List the characters that match a one-character expression."""
    return list(map(chr, np.flatnonzero(_code_points_matching(source)).tolist()))


def _compile_regex(source):
    """Compile by the `regex` package; raises InputError if the empty string matches."""
    shown = repr(source[:200])
    try:
        if any("&&" in found[0] for found in regex.finditer(rf"\\.|{_ANY_SET}", source)):
            raise ValueError("sets do not intersect by && here: write (?:(?=[^b])[a-z])")
        compiled = regex.compile(source)
        source.encode()  # a file of a model could not hold a lone surrogate
    except Exception as error:
        raise InputError(f"the pattern {shown} does not compile: {error}") from None
    require(
        not compiled.fullmatch(""),
        f"the pattern {shown} matches the empty string; it must take at least one character",
    )
    return compiled


# Patterns without needless backtracking take at most 0.7 s for 1,000,000 characters.
REGEX_SECONDS = 10


@contextlib.contextmanager
def _time_limit(source, text):
    """Yield the seconds that a search of `regex` may take; a TimeoutError becomes an InputError.

    The limit is REGEX_SECONDS, and as much again for each 1,000,000 characters of the text.
    """
    seconds = REGEX_SECONDS * (1 + len(text) / 1e6)
    try:
        yield seconds
    except TimeoutError:
        raise InputError(
            f"the pattern {source[:200]!r} takes more than {seconds:.0f} s for the {len(text):,} "
            f"characters of a text that begins {text[:40]!r}: it backtracks too much, as (a+)+$ "
            "does; rewrite it"
        ) from None


# ─── Scanning ─────────────────────────────────────────────────────────────────────────────────────
#
# Flat text -> the ends of its pretokens. A flat text is any number of texts in one array of bytes.
# The byte END, 0xFE, is never in UTF-8; it stands where a text ends and over each special token.
# The array `meanings` says what each END stands for. The texts "to be", "" and "or<eos>not", where
# <eos> has the id 7 and # is END:
#
#     text        t o . b e # # o r # n o t # # # …  a dot is a space; the PADDING is END as well
#     ends        2, 5, 6, 7, 9, 10, 13, 14          of "to", " be", END, END, "or", END, "not", END
#     meanings    BOUNDARY, BOUNDARY, 7, BOUNDARY    two texts end, <eos>, and a text ends
#
# So the inner loops of scanning, counting and encoding need no test for the end of a text. The
# table of a pattern has END as one more class of characters, which ends every match, as the end of
# a text does. Counting takes END for a word, and subtracts all ENDs when it returns the words. The
# cache of encoding never has it, so a word that is missing there may be END, whose meaning is then
# looked up.
#
# Six lanes read one text side by side, each from a position where a pretoken must end:
#
#     |lane 0     |lane 1     |lane 2      |lane 3     |lane 4     |lane 5     |  the next batch …
#
# Invalid bytes, among them real bytes 0xFE, are scanned as INVALID_BYTE in a copy. So there are two
# arrays, the true bytes and the scanned ones; for most texts they are the same array.
#
# The arguments of kernels, here and in the sections below:
#
#     text, scanned   uint8[n + PADDING]         the true bytes of a flat text; the scanned ones
#     meanings        int64[E]                   the meaning of each END
#     start, stop     int                        text[start : stop], as in a slice of Python
#     table           ScanTable                  a compiled pattern
#     class_of        uint16[0x110000]           code point -> class, of that table
#     must_split      bool[C, C]                 the classes between which a pretoken must end
#     lanes           int64[LANES, ENDS + …]     the state of each lane and its ends; see `Scan`
#     marks           uint8[LANES * MARK_ROW]    the lower bytes of entries
#     k               int                        the number of a lane
#     memory          uint64[…]                  the space that a kernel needs for a word
#     ids, at         uint32[…], int             ids are written from ids[at] on

# The meaning of an END: the id of a special token, or one of these. They also tell how a block
# begins.
INSIDE = -1  # the text goes on, after a cut by a step of the pattern or after a special token
BOUNDARY = -2  # one text ends, and another begins
CONTINUES = -3  # a block begins in the middle of a text: nothing may be put before it


class FlatText(NamedTuple):
    """Texts in one array, and the meanings of its ENDs; see above."""

    text: np.ndarray  # uint8[…]      the true bytes, and PADDING
    scanned: np.ndarray  # uint8[…]   the same array; or a copy without real bytes 0xFE
    meanings: np.ndarray  # int64[E]  the meaning of each END, except those of the padding

    @classmethod
    def join(cls, texts, meanings):
        """Write texts, which are bytes, with an END after each."""
        end = BYTES[END]
        text = np.frombuffer(bytearray(end).join([*texts, end * PADDING]), u8)
        scanned = text
        if np.count_nonzero(text == END) > len(texts) + PADDING:  # real bytes 0xFE are among them
            without = [bytes(data).replace(end, BYTES[INVALID_BYTE]) for data in texts]
            scanned = cls.join(without, meanings).text
        return cls(text, scanned, np.asarray(meanings, i64))

    def ends(self):
        """Find the positions of the ENDs."""
        return np.flatnonzero(self.scanned[:-PADDING] == END)

    def texts(self):
        """List the texts between ENDs."""
        data = self.text.tobytes()
        ends = [-1, *self.ends().tolist()]
        bounds = itertools.pairwise(ends)
        return [data[before + 1 : end] for before, end in bounds]

    def changed(self, change):
        """Make a new flat text of the pieces, one or more, that a function makes of each text."""
        texts = []
        meanings = []
        for data, meaning in zip(self.texts(), self.meanings.tolist(), strict=True):
            pieces = change(data)
            texts += pieces
            meanings += [INSIDE] * (len(pieces) - 1) + [meaning]
        return FlatText.join(texts, meanings)

    def rewritten(self, write, *arguments):
        """Make a new flat text by `write`.

        If the two arrays of this one differ, `write` is called for each.
        """
        text, meanings = write(*self, *arguments)
        scanned = text
        if self.text is not self.scanned:
            scanned, _ = write(self.scanned, self.scanned, self.meanings, *arguments)
        return FlatText(text, scanned, meanings)


def _on_bytes(change):
    """Make a function, str -> pieces, one for bytes; invalid bytes are lone surrogates."""

    def change_bytes(data):
        pieces = change(data.decode("utf-8", "surrogateescape"))
        return [piece.encode("utf-8", "surrogateescape") for piece in pieces]

    return change_bytes


@inner_kernel
def _add_padding(text, n):
    """Write END over the PADDING after n bytes; returns the text."""
    for k in range(n, n + PADDING):
        text[k] = END
    return text[: n + PADDING]


@inner_kernel
def _mark_invalid(text, start, stop):
    """Write INVALID_BYTE over each invalid byte of text[start : stop], except END."""
    position = start
    while position < stop:
        character = _decode_character(text, position, stop)
        if character >> 3 == SURROGATE_ESCAPE and text[position] != END:
            text[position] = INVALID_BYTE
        position += character & 7


@inline_kernel
def _next_class(text, position, before, class_of, must_split):
    """Find the class of a character, and its size in bytes: class << 3 | size.

    `before` is the class of the character before it, or -1 if there is none. The class is that of
    END, the last one, where the text ends and where a pretoken must end between the two.
    """
    end_class = len(must_split)
    character = _decode_character(text, position, position + 4)
    char_class = i64(class_of[character >> 3])
    must_end = before >= 0 and must_split[before, char_class]
    if must_end or text[position] == END:
        char_class = end_class
    size = character & 7
    return char_class << 3 | size


@inline_kernel
def _match_end(text, start, table):
    """Find the end of the match that begins at `start`; or `start` if no match begins there.

    This is the definition of a match, one character at a time.
    """
    end_class = len(table.must_split)
    position = start
    state = ZERO
    end = start
    char_class = i64(-1)
    while state >= 0 and char_class < end_class:
        class_and_size = _next_class(text, position, char_class, table.class_of, table.must_split)
        char_class = class_and_size >> 3
        if table.accepts[state, char_class]:
            end = position
        state = i64(table.next_state[state, char_class])
        position += class_and_size & 7
    return end


@inline_kernel
def _pretoken_end(text, start, table):
    """Find the end of the pretoken at `start`: END, a match, or the text before the next match."""
    end_class = len(table.must_split)
    end = _match_end(text, start, table)
    if end == start:
        class_and_size = _next_class(text, start, i64(-1), table.class_of, table.must_split)
        has_ended = text[start] == END
        end += class_and_size & 7
        while not has_ended:
            class_and_size = _next_class(
                text, end, class_and_size >> 3, table.class_of, table.must_split
            )
            has_ended = class_and_size >> 3 == end_class
            has_ended = has_ended or _match_end(text, end, table) > end
            if not has_ended:
                end += class_and_size & 7
    return end


@kernel
def _next_split(text, position, until, class_of, must_split):
    """Find the first position, at or after one, where a pretoken ends in every context; or -1.

    That is at an END, or between two characters. Characters may reach beyond `until`, which is not
    the end of the text.
    """
    text = borrowed(text)
    class_of = borrowed(class_of)
    must_split = borrowed(must_split)
    end_class = len(must_split)
    before = i64(-1)
    while position < until and text[position] & 0xC0 == 0x80:  # inside a character
        position += 1
    while position < until:
        class_and_size = _next_class(text, position, before, class_of, must_split)
        before = class_and_size >> 3
        if before == end_class:
            return position
        position += class_and_size & 7
    return -1


LANES = 6  # a single lane waits for its loads
LANE_BYTES = 1 << 13  # of a lane in one batch; the ends of more would not fit into the L1 cache
MIN_LANE_BYTES = 64  # with fewer bytes for each, several lanes are slower
MARKED_BYTES = 256  # the bytes that a lane reads before its ends are collected
MARK_ROW = MARKED_BYTES + 64  # bytes of `marks` for each lane
BATCH_BYTES = LANES * LANE_BYTES
MAX_ENDS = 2 * BATCH_BYTES  # in one batch, with some reserve

# The state of a lane is a row of `lanes`, int64[LANES, ENDS + 2 * MAX_ENDS], with these columns. It
# is one array, since Python takes time to pass each array to a kernel.
#
#     POSITION    how far it has read                   LAST        how far it has to read
#     ENTRY       the entry of the last byte, or 0      N_ENDS      how many ends it has found
#     FIRST       where its first pretoken begins       ENDS …      the ends
#
# So pretoken k of a lane begins at lanes[lane, FIRST + k], and ends at lanes[lane, ENDS + k].
POSITION, ENTRY, LAST, N_ENDS, FIRST, ENDS = range(6)


class Scan(NamedTuple):
    """The workspace of scanning, which is used again for the next text."""

    lanes: np.ndarray
    marks: np.ndarray  # uint8[LANES * MARK_ROW]  the lower bytes of entries


def _new_scan():
    lanes = np.empty((LANES, ENDS + 2 * MAX_ENDS), i64)
    return Scan(lanes, np.zeros(LANES * MARK_ROW, u8))


_SCANNING = threading.local()  # its `scan` is the Scan of the thread


def _thread_scan():
    """Return the Scan of this thread, for kernels that end before another one begins."""
    if not hasattr(_SCANNING, "scan"):
        _SCANNING.scan = _new_scan()
    return _SCANNING.scan


@inline_kernel
def _begin_lane(k, position, lanes):
    """Begin to scan at a position, where a pretoken begins."""
    lanes[k, FIRST] = position
    lanes[k, POSITION] = position
    lanes[k, ENTRY] = 0
    lanes[k, N_ENDS] = 0


@inline_kernel
def _last_end(k, lanes):
    """Return where the last pretoken of lane k ended; before that, where its first one begins."""
    return lanes[k, FIRST + lanes[k, N_ENDS]]


@inline_kernel
def _resolve(k, text, table, lanes):
    """Find the end that an UNRESOLVED entry of lane k cannot tell, by the definition.

    The lane goes on from there, before or after its position.
    """
    end = _pretoken_end(text, _last_end(k, lanes), table)
    lanes[k, N_ENDS] += 1
    lanes[k, FIRST + lanes[k, N_ENDS]] = end
    lanes[k, POSITION] = end
    lanes[k, ENTRY] = 0


@inline_kernel
def _lane(k, lanes):
    """Return the position and the entry of lane k."""
    return u64(lanes[k, POSITION]), u32(lanes[k, ENTRY])


@inline_kernel
def _read_byte(k, i, position, entry, text, table, marks):
    """Look up the entry for byte i of lane k, and mark its lower byte; returns the entry.

    `marks` is flat, so that its address takes a single register for all lanes: the loop of
    `_read_together` has none to spare.
    """
    entry = table[u64(entry & ROW_MASK) | u64(text[position + i])]
    marks[u64(k * MARK_ROW) + i] = u8(entry)
    return entry


@inline_kernel
def _read_alone(k, text, count, table, lanes, marks):
    """Read the next `count` bytes of lane k: see `_read_together`."""
    position, entry = _lane(k, lanes)
    for i in range(count):
        entry = _read_byte(k, u64(i), position, entry, text, table, marks)
    lanes[k, ENTRY] = entry


@inline_kernel
def _read_together(text, count, table, lanes, marks):
    """Read the next `count` bytes of each lane; its last entry goes to ENTRY."""
    p0, e0 = _lane(0, lanes)
    p1, e1 = _lane(1, lanes)
    p2, e2 = _lane(2, lanes)
    p3, e3 = _lane(3, lanes)
    p4, e4 = _lane(4, lanes)
    p5, e5 = _lane(5, lanes)
    for k in range(count):
        i = u64(k)
        e0 = _read_byte(0, i, p0, e0, text, table, marks)
        e1 = _read_byte(1, i, p1, e1, text, table, marks)
        e2 = _read_byte(2, i, p2, e2, text, table, marks)
        e3 = _read_byte(3, i, p3, e3, text, table, marks)
        e4 = _read_byte(4, i, p4, e4, text, table, marks)
        e5 = _read_byte(5, i, p5, e5, text, table, marks)
    lanes[0, ENTRY] = e0
    lanes[1, ENTRY] = e1
    lanes[2, ENTRY] = e2
    lanes[3, ENTRY] = e3
    lanes[4, ENTRY] = e4
    lanes[5, ENTRY] = e5


@inline_kernel
def _add_marked_ends(k, count, lanes, marks):
    """Append the ends in the first `count` marks of lane k, which has read them.

    A mark is the lower byte of an entry. Below RARE_STEP it is the distance back to an end, or 0.
    Such ends are written eight at a time, and the surplus is overwritten later. So no branch
    depends on each single end. From RARE_STEP on, its upper bits are an index in MORE_ENDS. Returns
    how many marks come before the first one that is UNRESOLVED or INVALID_UTF8; the ends after it
    are not added.
    """
    ends = lanes[k, ENDS:]
    n = u64(lanes[k, N_ENDS])
    group = ZERO
    while group < count:
        row = u64(k * MARK_ROW + group)
        position = u64(lanes[k, POSITION] + group + 1)  # after the first byte of the group
        is_read = ALL_ONES >> u64(64 - min(count - group, 64))
        marked = bytes_from(marks, row, u8(1)) & is_read
        if bytes_from(marks, row, u8(RARE_STEP)) & is_read:  # a byte tells several ends, or none
            while marked:
                i = lowest_bit(marked)
                mark = u64(marks[row + i])
                more = mark >> u64(MORE_SHIFT)  # the distance back to a second end; 0; or from 5 on
                here = position + i
                ends[n] = here - (mark & u64(BACK_MASK))
                ends[n + ONE] = i64(here - more)
                n += ONE + u64(more > 0)
                marked &= marked - ONE
                if more == THREE_ENDS:  # branches, since these are few
                    ends[n - ONE] = here - u64(2)
                    ends[n] = here - ONE
                    n += ONE
                elif more > THREE_ENDS:  # it tells no ends: the two that were written do not count
                    n -= u64(2)
                    count = group + i64(i)
                    marked = u64(0)
        else:
            stop = n + count_bits(marked)
            while n < stop:
                for surplus in range(8):
                    i = lowest_bit(marked)
                    ends[n + u64(surplus)] = i64(position + i) - i64(marks[row + i])
                    marked &= marked - ONE
                n += u64(8)
            n = stop
        group += 64
    lanes[k, N_ENDS] = n
    return count


@inline_kernel
def _run_lanes(first, stop, text, table, lanes, marks):
    """Move lanes[first : stop], one or all, until one reaches its last byte, or has MAX_ENDS.

    First the entries of some bytes are read, and the lower byte of each is kept; then 64 of these
    are compared at once to find the ends. That takes three quarters of the time of a loop that
    writes an end at every byte. Returns False if the text is not UTF-8.
    """
    valid = True
    count = i64(1)  # of the bytes that each lane reads next
    while valid and count > 0:
        count = i64(MARKED_BYTES)
        for k in range(first, stop):
            n_unread = lanes[k, LAST] - lanes[k, POSITION]
            # a lane that `_resolve` has moved far back may find more ends than a batch has bytes
            count = min(count, n_unread, MAX_ENDS - lanes[k, N_ENDS])
        count = max(count, ZERO)
        if stop > first + 1:
            _read_together(text, count, table.table, lanes, marks)
        else:
            _read_alone(first, text, count, table.table, lanes, marks)
        for k in range(first, stop):
            n = _add_marked_ends(k, count, lanes, marks)
            lanes[k, POSITION] += n
            if n < count:
                valid = valid and marks[k * MARK_ROW + n] >= UNRESOLVED  # or it is INVALID_UTF8
                if valid:
                    _resolve(k, text, table, lanes)
    return valid


@inline_kernel
def _share_lanes(text, stop, table, lanes):
    """Share the next batch among the lanes; returns the number of lanes that are used.

    Lanes begin where pretokens must end. The next character reveals that, so a lane reads it, too.
    A single lane is used for few bytes, inside of a long pretoken, and where such positions are
    missing.
    """
    position = lanes[0, POSITION]
    stop = min(stop, position + BATCH_BYTES)
    size = (stop - position) // LANES
    n_lanes = LANES
    n_open = position - _last_end(ZERO, lanes)  # bytes of a pretoken that has not ended
    if size < MIN_LANE_BYTES or n_open > LANE_BYTES:
        n_lanes = 1
    for k in range(1, n_lanes):
        position += size
        start = _next_split(text, position, position + size, table.class_of, table.must_split)
        if start < 0:
            n_lanes = 1
            break
        next_character = _decode_character(text, start, start + 4)
        lanes[k - 1, LAST] = start + (next_character & 7)
        _begin_lane(k, start, lanes)
    lanes[n_lanes - 1, LAST] = stop
    return n_lanes


@inline_kernel
def _begin_scan(text, lanes):
    """Begin to scan a flat text; returns where to stop: after the first END of the padding."""
    _begin_lane(ZERO, ZERO, lanes)
    return len(text) - PADDING + 1


@inline_kernel
def _run_batch(text, stop, table, lanes, marks):
    """Let the lanes read the next batch; returns their number, or 0 if the text is not UTF-8.

    Several lanes first move together, in turn 0. Then each moves to its last byte: lane k in turn
    k + 1.
    """
    lanes[0, FIRST] = _last_end(ZERO, lanes)
    lanes[0, N_ENDS] = 0
    n_lanes = _share_lanes(text, stop, table, lanes)
    valid = True
    first_turn = i64(n_lanes == 1)  # a single lane has no turn 0
    for turn in range(first_turn, n_lanes + 1):
        is_together = turn == 0
        first = ZERO if is_together else i64(turn - 1)
        last = n_lanes - 1 if is_together else first
        valid = valid and _run_lanes(first, last + 1, text, table, lanes, marks)
    return n_lanes * valid


@inline_kernel
def _join_lanes(n_lanes, lanes):
    """Leave the ends of all lanes in lane 0, which goes on where the last lane is."""
    for k in range(1, n_lanes):
        ends = lanes[0, ENDS + lanes[0, N_ENDS] :]
        more_ends = lanes[k, ENDS:]
        for i in range(lanes[k, N_ENDS]):
            ends[i] = more_ends[i]
        lanes[0, N_ENDS] += lanes[k, N_ENDS]
    lanes[0, POSITION] = lanes[n_lanes - 1, POSITION]
    lanes[0, ENTRY] = lanes[n_lanes - 1, ENTRY]


@inner_kernel
def _scan_batch(text, stop, table, lanes, marks):
    """Scan the next batch, and leave its ends in lane 0; returns the text.

    If the text is not UTF-8, the batch is scanned again in a copy with INVALID_BYTE, which is
    returned.
    """
    table = borrowed(table)
    lanes = borrowed(lanes)
    marks = borrowed(marks)
    n_lanes = ZERO
    while n_lanes == 0:  # a second time if the text is not UTF-8
        n_lanes = _run_batch(borrowed(text), stop, table, lanes, marks)
        if n_lanes == 0:
            text = text.copy()
            _mark_invalid(text, lanes[0, FIRST], stop)
            _begin_lane(ZERO, lanes[0, FIRST], lanes)
    _join_lanes(n_lanes, lanes)
    return text


@inline_kernel
def _is_dropped(text, start, stop, class_of, dropped):
    """Check whether a pretoken is dropped."""
    is_dropped = False
    if len(dropped) > 0:
        character = _decode_character(text, start, stop)
        is_dropped = dropped[class_of[character >> 3]]
    return is_dropped


@kernel
def _write_cuts(text, scanned, meanings, table, lanes, marks):
    """Write an END between pretokens, and leave out the dropped ones; returns text and meanings.

    A pretoken that does not begin its text has an END before it, even if all pretokens before it
    are dropped.
    """
    class_of = table.class_of
    dropped = table.dropped
    stop = _begin_scan(text, lanes)
    out = _on_huge_pages(np.empty(2 * len(text), u8))
    n_out = ZERO
    new_meanings = np.empty(len(meanings) + 64, i64)
    n_new = 0  # meanings that are written
    n_ended = 0  # texts that have ended: the next END has this meaning
    first = 0  # where the current text begins
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
                new_meanings = _reserve(new_meanings, n_new + 1)
                new_meanings[n_new] = meanings[n_ended] if is_end else INSIDE
                n_new += 1
            if is_end:
                n_ended += 1
                first = end
            elif is_kept:
                n_out = _copy_bytes(text, start, end, out, n_out)
            start = end
    return _add_padding(out, n_out), new_meanings[:n_new]


@inline_kernel
def _find_possible_spaces(text, start, stop):
    """Mark those of the next 64 bytes, up to `stop`, which may begin white space: returns bits.

    Every byte may begin white space, except the printable characters of ASCII.
    """
    if start + 64 <= stop:
        return ~bytes_from(text, start, u8(0x21)) | bytes_from(text, start, u8(0x80))
    bits = u64(0)
    for k in range(stop - start):
        is_printable = 0x21 <= text[start + k] < 0x80
        bits |= u64(not is_printable) << u64(k)
    return bits


@inline_kernel
def _find_white_space(text, base, bits, stop, class_of, dropped):
    """Find the next white space, which is dropped.

    bits  mark the bytes of text[base : base + 64] that are still to be looked at, as from
          `_find_possible_spaces`

    Returns where it begins and where it ends, or `stop` and stop + 1 if there is none; and the next
    values of `base` and `bits`.
    """
    position = stop
    following = stop + 1
    is_dropped = False
    while base < stop and not is_dropped:
        while bits and not is_dropped:
            position = base + i64(lowest_bit(bits))
            bits &= bits - ONE
            character = i64(text[position]) << 3 | 1
            if character >= 0x80 << 3:
                character = _decode_character(text, position, stop)
                n_read = u64(position - base + (character & 7))
                # two shifts: one by 64 bits or more would have no defined result
                bits &= ALL_ONES << min(n_read, u64(63)) << u64(n_read > u64(63))
            following = position + (character & 7)
            is_dropped = dropped[class_of[character >> 3]]
        if not is_dropped:
            base += 64
            bits = _find_possible_spaces(text, base, stop)
    if not is_dropped:
        position = stop
        following = stop + 1
    return position, following, base, bits


@inner_kernel
def _count_run(scanned, position, stop, in_run):
    """Count the characters of the run that begins at a position."""
    n = 0
    character = _decode_character(scanned, position, stop)
    while position < stop and scanned[position] != END and in_run[character >> 3]:
        n += 1
        position += character & 7
        character = _decode_character(scanned, position, stop)
    return n


@kernel
def _write_groups(text, scanned, meanings, in_run, size, at_start):
    """Write an END between groups of `size` characters, counted from the end of each run.

    in_run    bool[0x110000]: the characters of runs
    at_start  also before a run that consists of whole groups

    Returns text and meanings.
    """
    stop = len(text) - PADDING
    out = _on_huge_pages(np.empty(2 * len(text), u8))
    new_meanings = np.empty(len(meanings) + 64, i64)
    n_out = ZERO
    n_new = 0  # meanings that are written
    n_ended = 0  # texts that have ended: the next END has this meaning
    n_left = 0  # the characters of the current run from here on
    may_cut = False  # whether this text goes on, and a group may end here
    position = ZERO
    start = position  # of the text that is not yet copied
    while position < stop:
        character = _decode_character(scanned, position, stop)
        is_end = scanned[position] == END
        if n_left == 0 and in_run[character >> 3]:
            n_left = _count_run(scanned, position, stop, in_run)
            may_cut = may_cut and at_start
        is_cut = may_cut and n_left > 0 and n_left % size == 0
        if is_end or is_cut:
            n_out = _copy_bytes(text, start, position, out, n_out)
            out[n_out] = END
            n_out += 1
            new_meanings = _reserve(new_meanings, n_new + 1)
            new_meanings[n_new] = meanings[n_ended] if is_end else INSIDE
            n_new += 1
            n_ended += is_end
            start = position + is_end
        may_cut = not is_end
        n_left = max(n_left - 1, 0)
        position += character & 7
    return _add_padding(out, n_out), new_meanings[:n_new]


@kernel
def _write_spaces(text, scanned, meanings, mark, scheme, opening, table):
    """Write a mark for each space, and before texts and pretokens that lack it.

    opening  the meaning of the END before the first text
    scheme   that of a Metaspace, which says what needs a mark before it
    table    that of a Split that drops white space: then no mark is written for a space, and each
             piece of text between white space needs a mark before it; or a table that drops nothing

    Returns text and meanings.
    """
    class_of = borrowed(table.class_of)
    dropped = borrowed(table.dropped)
    text = borrowed(text)
    scanned = borrowed(scanned)
    mark = borrowed(mark)
    size = len(mark) - PADDING
    drops = len(dropped) > 0
    result = _on_huge_pages(np.empty((len(text) + len(meanings)) * (1 + size), u8))
    out = borrowed(result)
    n = ZERO
    start = ZERO
    meaning = opening
    for m in range(len(meanings)):
        end = _find_byte(scanned, start, len(text), i64(END))
        needs_mark = meaning == BOUNDARY and scheme != NEVER
        needs_mark |= meaning == INSIDE and scheme == ALWAYS
        base = start
        bits = _find_possible_spaces(text, start, end)
        while start <= end:
            stop = end
            following = end + 1
            if drops:
                stop, following, base, bits = _find_white_space(
                    text, base, bits, end, class_of, dropped
                )
            elif mark[0] != 0x20:  # or a space stays
                stop = _find_byte(text, start, end, i64(0x20))
                following = stop + 1
            has_mark = text[start] == mark[0] and _equal(text, start, mark, ZERO, size)
            if needs_mark and start < stop and not has_mark:
                n = _copy_bytes(mark, ZERO, size, out, n)
            n = _copy_word(text, start, stop, out, n)
            if stop < end and not drops:  # a space is here
                n = _copy_bytes(mark, ZERO, size, out, n)
            needs_mark = drops
            start = following
        out[n] = END
        n += 1
        meaning = min(meanings[m], INSIDE)
    return _add_padding(result, n), meanings


# ─── Special tokens ───────────────────────────────────────────────────────────────────────────────
#
# Flat text -> flat text in which END stands over each special token, and its id in the meanings.
# The text is searched from left to right, for the longest token first. With <eos> of id 7, and #
# for END:
#
#     to<eos>be#    ->    to#be#    meanings 7, BOUNDARY
#
# A token of Hugging Face may have flags: it may take the white space around it.
#
# The section also finds where a file may be cut into blocks that give the same pretokens as the
# whole file: after a special token, or where the pattern ends a pretoken in every context.


@struct
class _SpecialTable:
    """Special tokens, by number."""

    trie: Trie  # their numbers
    ids: np.ndarray  # int64[S]
    sizes: np.ndarray  # int64[S]      in bytes
    leads: np.ndarray  # bool[256]     whether a token begins with this byte
    lead: int  # the byte that all tokens begin with; -1: they differ; 0xFD: no tokens
    strips: np.ndarray  # bool[S, 2]   whether it takes the white space before it, and after it
    spaces: np.ndarray  # bool[0x110000]  white space, if any token takes it
    longest: int  # bytes of the longest token
    cuts: bool  # a text may be cut after tokens: none has flags or is found in normalized text


@public
class AddedToken(NamedTuple):
    """The way in which Hugging Face finds a token in a text.

    >>> AddedToken(lstrip=True)[:3]
    (False, True, False)
    """

    single_word: bool = False  # only where no letter or digit is next to it: not supported
    lstrip: bool = False  # together with the white space before it
    rstrip: bool = False  # together with the white space after it
    normalized: bool = False  # in normalized text, after the tokens that are not
    special: bool = True  # a control token, found only if it is allowed; others always are
    literal: bool = False  # not normalized itself, as SentencePiece's symbols; ours alone


PLAIN_TOKEN = AddedToken()


def _special_table(ids, added_tokens, normalizer=None):
    """Make the table of some special tokens, for text that a normalizer has changed or not."""
    tokens = {}  # the bytes in the text -> the name
    for name in ids:
        token = name.encode()
        if normalizer and not added_tokens.get(name, PLAIN_TOKEN).literal:
            token = normalizer.normalize(token)
        if not token:
            note(
                f"the special token {name!r} is normalized to nothing: `encode` finds it nowhere, "
                "and Hugging Face fails on some texts: remove it"
            )
        elif token in tokens:
            note(
                f"the special tokens {tokens[token]!r} and {name!r} are normalized to the same "
                f"text: Hugging Face finds either, by chance, and `encode` finds {name!r}"
            )
        tokens[token] = name
    tokens.pop(b"", None)
    flagged = [added_tokens.get(name, PLAIN_TOKEN) for name in tokens.values()]
    first_bytes = {token[0] for token in tokens}
    strips = np.array([(flag.lstrip, flag.rstrip) for flag in flagged], bool).reshape(-1, 2)
    spaces = np.zeros(N_CODE_POINTS, bool)
    if strips.any():  # \s of Rust's regular expressions, which Hugging Face uses here
        spaces = _code_points_matching(r"\p{White_Space}")
    return _SpecialTable(
        make_trie(dict(enumerate(tokens))),
        np.array([ids[name] for name in tokens.values()], i64),
        np.fromiter(map(len, tokens), i64),
        np.isin(np.arange(256), list(first_bytes)),
        -1 if len(first_bytes) > 1 else max(first_bytes, default=0xFD),
        strips,
        spaces,
        max(map(len, tokens), default=0),
        not strips.any() and not any(flag.normalized for flag in flagged),
    )


@inner_kernel
def _special_at(text, position, special):
    """Find the longest special token at a position; returns its number, or -1."""
    trie = special.trie
    stop = len(text) - PADDING
    node = ZERO
    number = i64(-1)
    while node >= 0 and position < stop:
        node = trie_child(node, text[position], trie.edges)
        if node >= 0 and trie.values[node] >= 0:
            number = i64(trie.values[node])
        position += 1
    return number


@inner_kernel
def _next_special(text, position, special):
    """Find the first special token at or after a position; returns its start, or the text's end."""
    leads = special.leads
    lead = special.lead
    stop = len(text) - PADDING
    while position < stop:
        if lead >= 0:
            position = _find_byte(text, position, stop, lead)
        while position < stop and not leads[text[position]]:
            position += 1
        if position < stop and _special_at(text, position, special) >= 0:
            return position
        position += 1
    return stop


@inner_kernel
def _spaces_around(text, position, spaces):
    """Return the sizes of the white space before a position, and after it."""
    before = _character_before(text, ZERO, position)
    after = _decode_character(text, position, position + 4)
    return (before & 7) * spaces[before >> 3], (after & 7) * spaces[after >> 3]


@kernel
def _cut_at_special(text, scanned, meanings, special):
    """Write END over each special token; returns text and meanings.

    The text is searched from left to right, for the longest token first. The flags of a token
    extend it over the white space around it, as `find_matches` in the `tokenizers` package does. No
    token contains the byte END or extends over it, so each lies within one text.
    """
    n_text = len(text) - PADDING
    position = _next_special(text, ZERO, special)
    if position == n_text:
        return text, meanings
    spaces = special.spaces
    out = _on_huge_pages(np.empty(len(text), u8))
    n_out = ZERO
    n_copied = ZERO  # bytes of the text that are in `out`, or under a token
    new_meanings = np.empty(len(text), i64)
    n_new = 0
    n_ended = 0  # texts whose END lies before `position`; the next one is at `text_end`
    text_end = _find_byte(scanned, ZERO, len(scanned), i64(END))
    while position < n_text:
        number = _special_at(text, position, special)
        start = position
        position += special.sizes[number]
        end = position
        size = i64(special.strips[number, 0])
        while size and start > n_copied:
            size, _ = _spaces_around(text, start, spaces)
            start -= size
        size = i64(special.strips[number, 1])
        while size:
            _, size = _spaces_around(text, end, spaces)
            end += size
        # A token may lie in the white space that belongs to the token before it.
        if n_copied < start:
            n_out = _copy_bytes(text, n_copied, start, out, n_out)
        while text_end < start:
            new_meanings[n_new] = meanings[n_ended]
            n_new += 1
            n_ended += 1
            text_end = _find_byte(scanned, text_end + 1, len(scanned), i64(END))
        # If this does not hold, its text belongs to the token before it.
        if end > n_copied or not special.strips[number, 0]:
            new_meanings[n_new] = special.ids[number]
            n_new += 1
            out[n_out] = END
            n_out += 1
        n_copied = end
        position = _next_special(text, position, special)
    for k in range(n_ended, len(meanings)):
        new_meanings[n_new] = meanings[k]
        n_new += 1
    n_out = _copy_bytes(text, n_copied, n_text, out, n_out)
    return _add_padding(out, n_out), new_meanings[:n_new]


@kernel
def _find_cut(text, start, stop, class_of, must_split, special):
    """Find the first position, at or after `start`, where a cut changes no token and no pretoken.

    That is after a special token, if its table `cuts`; or where the pattern ends a pretoken in
    every context. A special token is not matched if an earlier one overlaps it, so no token may
    overlap the cut. Returns the position, or -1; and INSIDE after a special token, or CONTINUES.
    """
    spaces = special.spaces
    split = _next_split(text, start, stop, class_of, must_split)
    token_end = ZERO  # of the tokens that begin before the position
    for position in range(max(0, start - special.longest), stop):
        number = _special_at(text, position, special)
        if position >= start and number >= 0 and special.cuts and token_end <= position:
            return position + special.sizes[number], INSIDE
        if position == split:
            before, after = _spaces_around(text, split, spaces)
            if number < 0 and token_end < split and before + after == 0:  # or a token takes them
                return split, CONTINUES
            split = _next_split(text, split, stop, class_of, must_split)
        if number >= 0:
            token_end = max(token_end, position + special.sizes[number])
    return -1, CONTINUES


# ─── Normalizing ──────────────────────────────────────────────────────────────────────────────────
#
# Flat text -> flat text as a model expects it. The steps are those of a tokenizer.json. Most of
# them change characters one by one. Some characters change with their neighbours; they are called
# joined:
#
#     "CAFE" + U+0301 + " NOIR"   ->  NFC  ->  Lowercase  ->   "café noir", where é is one character
#
# Consecutive steps that change characters become one _MapPass. A kernel finds the runs of joined
# characters, each with a neighbour on both sides ("E" + U+0301 + " "). Python changes these runs by
# one step after another, and a kernel maps all other characters by a table. Every other step is a
# _TextPass, a Python function of a whole text.
#
# The `changes` of a pass tell where a text may be cut into pieces that are normalized on their own;
# with others: code point -> the text that it becomes if its neighbours stay; or "" if that depends
# on the text around it. All other characters stay, except before a joined one, and a text may be
# cut beside them. A pass whose `changes` are None makes no such promise.


class _CharacterStep(NamedTuple):
    """A step that changes characters one by one, except joined ones."""

    changes: dict  # code point -> text, as for str.translate
    joined: Collection = ()  # characters that change with their neighbours
    change: Callable = None  # changes runs with END_CHAR between them; None: str.translate
    decomposes: bool = False  # NFD or NFKD


def _compose(steps):
    """Compose steps: returns the replacements of characters, and the joined characters.

    The steps are added from the last to the first. Then `changes` are the replacements by all
    later steps, and `joined` are the characters that one of them joins. A character is also joined
    if its replacement contains a joined one, or if it is removed, so that later steps see its
    neighbours side by side. A decomposition only reorders the characters that it joins. So these
    are joined only if no later step removes them.
    """
    changes = {}
    joined = set()
    for step in reversed(steps):
        before = step.changes
        joining = {char for char in joined if ord(char) not in before}
        if joined:  # by later steps
            for code, text in before.items():
                is_removed = not text
                if is_removed or not joined.isdisjoint(text):
                    joining.add(chr(code))
        if changes:  # of later steps
            before = {code: text.translate(changes) for code, text in before.items()}
        changes = changes | before
        for char in step.joined:
            if not step.decomposes or changes.get(ord(char), char):
                joining.add(char)
        joined = joining
    return changes, joined


JOINED = -1
END_CHAR = BYTES[END].decode("utf-8", "surrogateescape")  # where a run ends


@struct
class _CharacterMap:
    """The replacements of characters, for kernels."""

    # int32[0x110000]  the number of the replacement, from 1 on; 0: the character stays; or JOINED
    entries: np.ndarray
    # uint64[256]  the bytes that replace a byte, whatever is beside it, and size << 56; ALL_ONES:
    # a character that begins with this byte may have a replacement
    short_texts: np.ndarray
    keeps_sizes: bool  # each printable character of ASCII becomes one byte
    texts: np.ndarray  # uint8[…]           replacements, end to end, and PADDING
    offsets: np.ndarray  # int64[R + 2]     replacement r is texts[offsets[r] : offsets[r + 1]]
    leads: np.ndarray  # bool[256]          whether a joined character may begin with this byte
    plain_start: int  # no joined character begins with a byte from `plain_start` on, up to
    plain_stop: int  # before `plain_stop`
    longest: int  # the most bytes that replace one byte of a text, 1 or more


def _character_map(changes, joined):
    """Make the table of a _MapPass."""
    as_utf8 = "utf-8", "surrogateescape"
    texts = [text.encode(*as_utf8) for text in changes.values()]
    sizes = [*map(len, texts)]
    entries = np.zeros(N_CODE_POINTS, np.int32)
    entries[list(changes)] = np.arange(1, len(changes) + 1)
    short = {code: changes.get(code, chr(code)).encode(*as_utf8) for code in range(0x80)}
    if SURROGATE_ESCAPE not in changes:  # otherwise any of the other bytes may change, if invalid
        changed = "".join(map(chr, changes)).encode("utf-8", "surrogatepass")  # much faster at once
        firsts = {*changed} - {*range(0x80, 0xC0)}  # without the bytes that continue a character
        short |= {byte: BYTES[byte] for byte in {*range(0x80, 256)} - firsts}
    short[END] = BYTES[END]
    short_texts = np.full(256, ALL_ONES)
    for byte, data in short.items():
        if len(data) < 8:
            short_texts[byte] = int.from_bytes(data, "little") | len(data) << 56
    entries[[*map(ord, joined)]] = JOINED
    leads = np.zeros(256, bool)
    leads[[char.encode(*as_utf8)[0] for char in joined]] = True
    # the longest range of bytes with which no joined character begins
    bounds = [-1, *np.flatnonzero(leads).tolist(), 0xFF]
    ranges = [(after - before, before + 1, after) for before, after in itertools.pairwise(bounds)]
    _, *plain_range = max(ranges)
    return _CharacterMap(
        entries,
        short_texts,
        all(len(short.get(byte, b"")) == 1 for byte in range(0x20, 0x7F)),
        _with_padding(b"".join(texts)),
        np.cumsum([0, 0, *sizes]),
        leads,
        *plain_range,
        max([1, *sizes]),
    )


@inner_kernel
def _next_joined(text, position, table):
    """Find the first joined character at or after a position; returns its start, or the text's end.

    `table` is a _CharacterMap.
    """
    entries = borrowed(table.entries)
    leads = borrowed(table.leads)
    first = u8(table.plain_start)
    last = u8(table.plain_stop)
    stop = len(text) - PADDING
    while position < stop:
        window_end = min(position + 64, stop)
        if position + 64 <= stop:
            others = ~bytes_from(text, position, first) | bytes_from(text, position, last)
            position += i64(lowest_bit(others))
        while position < window_end and not leads[text[position]]:
            position += 1
        if position < window_end:
            character = _decode_character(text, position, stop)
            if entries[character >> 3] == JOINED:
                return position
            position += character & 7
    return stop


@kernel
def _find_joined(text, table):
    """Find runs of joined characters, each with the character before it and the one after it.

    Returns the start and the end of each run, int64[J, 2], and their texts, uint8[…], with END
    after each. The last run is empty, and lies at the end of the text. A byte 0xFE ends a run even
    if it is not END, since an invalid byte does not change its neighbours.
    """
    runs = np.empty((16, 2), i64)
    n = 0
    stop = len(text) - PADDING
    last = i64(-1)  # where the last run ends
    position = _next_joined(text, ZERO, table)
    while position < stop:
        start = position
        position += _decode_character(text, position, stop) & 7
        if start > last:
            if text[start - 1] != END:
                start -= _character_before(text, last, start) & 7
            if n + 1 == len(runs):
                runs = np.concatenate((runs, runs))
            runs[n, 0] = start
            n += 1
        last = position
        if text[position] != END:
            last += _decode_character(text, position, stop) & 7
        runs[n - 1, 1] = last
        position = _next_joined(text, position, table)
    runs[n] = stop  # the empty one
    n += 1
    joined = np.empty(len(text) + n, u8)
    size = ZERO
    for k in range(n):
        size = _copy_bytes(text, runs[k, 0], runs[k, 1], joined, size)
        joined[size] = END
        size += 1
    return runs[:n], joined[:size]


@inline_kernel
def _map_bytes(text, position, limit, short_texts, keeps_sizes, out, n):
    """Map bytes up to one that is not in `short_texts`: returns its position, and where `out` ends.

    If the table `keeps_sizes`, a byte that becomes several stops it, too: a branch that is
    predicted takes less time than to wait for each size.
    """
    position = u64(position)
    n = u64(n)
    short = short_texts[text[position]]
    if keeps_sizes:
        while position < u64(limit) and short >> u64(56) == ONE:
            out[n] = u8(short)
            position += ONE
            n += ONE
            short = short_texts[text[position]]
    else:
        while position < u64(limit) and short != ALL_ONES:
            store_u64(out, i64(n), short)
            position += ONE
            n += short >> u64(56)
            short = short_texts[text[position]]
    return i64(position), i64(n)


MAPPED_BYTES = 1 << 12  # bytes that are mapped before there must be room for more replacements


@kernel
def _map_characters(text, runs, changed, changed_ends, table):
    """Map the characters of a text by a table, and replace its runs; returns the text with PADDING.

    runs          int64[J, 2], from `_find_joined`
    changed       uint8[…]: the texts that replace the runs, with END after each
    changed_ends  int64[…]: the positions of these ENDs; those of the padding may follow
    """
    entries = borrowed(table.entries)
    short_texts = borrowed(table.short_texts)
    keeps_sizes = table.keeps_sizes
    texts = borrowed(table.texts)
    offsets = borrowed(table.offsets)
    text = borrowed(text)
    # There is room for replacements of the last bytes; without it, `_reserve` would copy a text
    # that does not grow.
    reserve = MAPPED_BYTES * table.longest + 4 * PADDING
    out = _on_huge_pages(np.empty(len(text) + reserve, u8))
    n = position = written = ZERO
    for q in range(len(runs)):
        while position < runs[q, 0]:
            limit = min(runs[q, 0], position + MAPPED_BYTES)
            most = (limit - position) * table.longest
            out = _reserve(out, n + most + 2 * PADDING)
            room = borrowed(out)
            if len(offsets) == 2:  # no character has a replacement
                n = _copy_bytes(text, position, limit, room, n)
                position = limit
            while position < limit:
                position, n = _map_bytes(text, position, limit, short_texts, keeps_sizes, room, n)
                if position == limit:
                    continue
                character = _decode_character(text, position, position + 4)
                number = entries[character >> 3]
                size = character & 7
                if number:
                    n = _copy_bytes(texts, offsets[number], offsets[number + 1], room, n)
                else:
                    n = _copy_bytes(text, position, position + size, room, n)
                position += size
        end = changed_ends[q]
        out = _reserve(out, n + end - written + 2 * PADDING)
        n = _copy_bytes(changed, written, end, out, n)
        written = end + 1
        position = runs[q, 1]
    return _add_padding(_reserve(out, n + PADDING), n)


@kernel
def _map_unjoined(text, table):
    """Map the characters of a text as `_map_characters` does; empty if it has a joined one."""
    if _next_joined(text, ZERO, table) < len(text) - PADDING:
        return text[:0]
    runs = np.full((1, 2), len(text) - PADDING)  # an empty one
    changed = np.full(1 + PADDING, u8(END))
    return _map_characters(text, runs, changed, np.zeros(1, i64), table)


@functools.cache
def _no_map():
    """Make the table that changes no character."""
    return _character_map({}, ())


MAX_CHANGED = 1 << 12  # characters that Python changes in less time than the call of a kernel takes


class _MapPass:
    """Change characters by several steps at once."""

    table = None

    def __init__(self, steps):
        changes, joined = _compose(steps)
        self.steps = steps
        self.map = _character_map(changes, joined)
        self.maps = bool(changes)  # any character outside of the runs
        self.changes = changes | dict.fromkeys(map(ord, joined), "")
        self.changes_invalid = SURROGATE_ESCAPE in self.changes
        # A lone surrogate means an invalid byte, which no str has.
        self._of_str = {code: text for code, text in changes.items() if code >> 11 != 0x1B}
        # Most characters of ASCII are not joined. All others may be: an expression finds them.
        unjoined = "".join({*map(chr, range(0x80))} - joined)
        self._may_be_joined = joined and re.compile(f"[^{re.escape(unjoined)}]")

    @functools.cached_property
    def _map_unjoined(self):
        return entry_point(_map_unjoined, _with_padding(b""), self.map)

    def apply(self, flat, opening):
        """Change all characters of a flat text."""
        if self.changes_invalid:  # no invalid byte stays, so the true ones are not needed
            flat = flat._replace(text=flat.scanned)
        return flat.rewritten(self._write)

    def _write(self, text, scanned, meanings):
        """Write the fields of a flat text anew, as a kernel does for FlatText.rewritten."""
        runs, joined = _find_joined(text, self.map)
        if not self.maps and len(runs) == 1:
            return text, meanings
        changed = joined.tobytes().decode("utf-8", "surrogateescape")
        for step in self.steps:
            changed = step.change(changed) if step.change else changed.translate(step.changes)
        changed = _with_padding(changed.encode("utf-8", "surrogateescape"))
        ends = np.flatnonzero(changed == END)
        return _map_characters(text, runs, changed, ends, self.map), meanings

    def apply_to_text(self, text):
        """Change one text as `apply` does; None if characters may change with their neighbours."""
        is_long = len(text) > MAX_CHANGED
        if is_long or (self._may_be_joined and self._may_be_joined.search(text)):
            try:
                changed = self._map_unjoined(_with_padding(text.encode()), self.map)
            except UnicodeEncodeError:
                return None
            return changed[:-PADDING].tobytes().decode() if len(changed) else None
        if len(self._of_str) == 1:  # much faster than str.translate
            [(code, replacement)] = self._of_str.items()
            return text.replace(chr(code), replacement)
        return text.translate(self._of_str) if self._of_str else text


class _TextPass(NamedTuple):
    """Change texts as a whole."""

    change: Callable = None  # text -> text; None: only the prefix is added
    prefix: str = ""  # for each text that begins here and is not empty
    changes: Mapping = None
    table = None

    def apply(self, flat, opening):
        """Change the texts between ENDs."""
        # only the first text may go on from an earlier block
        openings = itertools.chain([opening], itertools.repeat(INSIDE))
        return flat.changed(_on_bytes(lambda text: [self.apply_to_text(text, next(openings))]))

    def apply_to_text(self, text, opening=BOUNDARY):
        """Change one text."""
        goes_on = opening == CONTINUES  # a block may begin inside a text
        if self.change:
            before = "." if goes_on else ""  # so no step takes the start for that of a text
            text = self.change(before + text)[len(before) :]
        return self.prefix + text if text and not goes_on else text


def _uniform_step(source, text=""):
    """Make the step that replaces characters that match an expression; {} stands for each."""
    return _CharacterStep({ord(char): text.format(char) for char in _matching(source)})


# The normal forms are those of Unicode 9, as in `tokenizers`. Each character that is newer and that
# Python may reorder or decompose, up to Unicode 18, lies in one of these ranges.
_AFTER_UNICODE_9 = (
    "\u0558\u058b\u058c\u05c8\u05c9\u07fd\u0897-\u08d3\u09fe\u0c3c\u0d3b\u0d3c\u0eba\u1715"
    "\u1abf-\u1af0\u1df6-\u1dfa\u209d-\u209f\u32ff\ua7f1-\ua7f4\ua82c\uab69\U000105c9-\U000105e4"
    "\U00010781-\U00010785\U00010787-\U000107b0\U000107b2-\U000107bf\U00010d24-\U00010d27"
    "\U00010d69-\U00010d6d\U00010eab\U00010eac\U00010ecb-\U00010ecf\U00010ef0-\U00010eff"
    "\U00010f46-\U00010f50\U00010f82-\U00010f85\U00011070\U0001133b\U00011382-\U00011385"
    "\U0001138b\U0001138e\U00011390\U00011391\U000113c2\U000113c5\U000113c7\U000113c8"
    "\U000113ce-\U000113d0\U0001145e\U00011839\U0001183a\U00011935\U00011938\U0001193d-\U00011943"
    "\U000119e0\U00011a34-\U00011a47\U00011a99\U00011d42-\U00011d45\U00011d97\U00011f41\U00011f42"
    "\U0001611e\U00016121-\U0001612f\U00016d67-\U00016d6a\U00016ff0\U00016ff1"
    "\U0001b123-\U0001b126\U0001ccd6-\U0001ccf9\U0001d127\U0001d128\U0001d250-\U0001d281"
    "\U0001d6a6\U0001df95\U0001dfcd-\U0001dfff\U0001e030-\U0001e06d\U0001e08f"
    "\U0001e130-\U0001e136\U0001e2ae\U0001e2ec-\U0001e2ef\U0001e4ec-\U0001e4ef"
    "\U0001e5ee\U0001e5ef\U0001e6e3-\U0001e6f5\U0001f16c\U0001fbf0-\U0001fbf9"
)
MANY_MARKS = 32  # such long runs are sorted here, since the time of Python grows with the square
_MARK, _NEWER = 1, 2  # kinds of characters


def _code_points(text):
    """List the code points of a text, uint32[N]; invalid bytes are lone surrogates, and END is 0.

    A surrogate takes Python some time, and there is an END after each run.
    """
    text = text.replace(END_CHAR, "\0")
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@functools.lru_cache
def _normal_form(form):
    """Make the step for a normal form of Unicode.

    Characters that may be reordered or composed are joined. These are the accents, the characters
    that begin with one and, if the form composes, all characters that its quick check (Unicode
    Standard Annex 15) leaves open. A form that composes changes joined characters only, and so has
    no `changes`.
    """
    newer = f"[{_AFTER_UNICODE_9}]"
    normalize = functools.partial(unicodedata.normalize, form)
    changed = _matching(rf"(?!{newer})[^\p{{{form}_QC=Y}}]")
    accents = _matching(rf"(?!{newer})[^\p{{CCC=0}}]")
    begin = [char for char in changed if unicodedata.combining(normalize(char)[0])]
    marks = [*accents, *begin]
    decompositions = {
        ord(mark): unicodedata.normalize(form.replace("C", "D"), mark) for mark in marks
    }
    kinds = np.zeros(N_CODE_POINTS, u8)
    kinds[[*map(ord, marks)]] = _MARK
    kinds[_code_points_matching(newer)] = _NEWER

    def sort_marks(text, is_mark):
        """Decompose the marks of long runs, and sort them."""
        others = np.flatnonzero(~is_mark)
        starts = np.append(0, others + 1)
        ends = np.append(others, len(text))
        parts = []
        done = 0
        for k in np.flatnonzero(ends - starts >= MANY_MARKS).tolist():
            decomposed = text[starts[k] : ends[k]].translate(decompositions)
            parts += [text[done : starts[k]], *sorted(decomposed, key=unicodedata.combining)]
            done = ends[k]
        return "".join([*parts, text[done:]])

    def change(text):
        found = kinds[_code_points(text)]
        if BYTES[_MARK] * MANY_MARKS in found.tobytes():
            text = sort_marks(text, found == _MARK)
            found = kinds[_code_points(text)]
        if found.max(initial=0) < _NEWER:
            return normalize(text)
        parts = []
        done = 0
        for place in np.flatnonzero(found == _NEWER).tolist():
            parts += [normalize(text[done:place]), text[place]]
            done = place + 1
        return "".join([*parts, normalize(text[done:])])

    if "C" in form:
        return _CharacterStep({}, {*changed, *accents}, change)
    changes = {ord(char): normalize(char) for char in changed}
    return _CharacterStep(changes, {*begin, *accents}, change, decomposes=True)


MAX_REPLACEMENT = 100  # bytes; the replacements of Unicode's normal forms have at most 33
# The prefixes of all keys together have at most this many bytes. SentencePiece's own charsmaps have
# 1,500,000.
MAX_CHARSMAP_BYTES = 1 << 23


@functools.lru_cache(maxsize=4)
def _read_charsmap(text):
    """Read the keys and replacements of a precompiled charsmap in base64; or raise InputError.

    The charsmap consists of the size of a trie in bytes, uint32; the trie; and the replacements,
    with a NUL after each. The trie is a double array of Darts-clone (Yata 2008). The unit of a node
    is a uint32 at some place, with the byte b that leads to it in bits 0 to 7, and in bit 8 whether
    a key ends here. Its offset is in bits 10 to 30, and is 256 times as large if bit 9 is set.

    Let `base` be the place of a node ^ its offset: its child by the byte b is at base ^ b. If a key
    ends at the node, the unit at `base` gives the position of the replacement; its bit 31 is set.
    """
    blob = base64.b64decode(text, validate=True)
    size = int.from_bytes(blob[:4], "little")
    try:
        units = np.frombuffer(blob, "<u4", size // 4, 4).astype(i64)
        keys, starts = _keys_of_trie(units)
        texts = blob[4 + size :]
        replacements = {
            start: texts[start : texts.index(b"\0", start, start + MAX_REPLACEMENT)].decode()
            for start in {*starts}
        }
    except (IndexError, ValueError):
        raise InputError(
            f"the precompiled charsmap is damaged, or cut off: it has {len(blob):,} bytes"
        ) from None
    return dict(zip(keys, map(replacements.__getitem__, starts), strict=True))


def _keys_of_trie(units):
    """List the keys of a double array, and the positions of their replacements, level by level.

    Raises IndexError or ValueError for units, int64[…], that are not such a trie.
    """
    labels = units & 0x800000FF
    places = np.flatnonzero((labels > 0) & (labels < 256))
    bases = places ^ labels[places]
    places = places[np.argsort(bases, kind="stable")]
    bases.sort()
    keys = []
    starts = []
    n_bytes = 0
    nodes = np.zeros(1, i64)
    prefixes = np.zeros((1, 0), u8)  # the bytes that lead to each node
    while len(nodes):
        node_units = units[nodes]
        shifts = node_units >> 6 & 8  # 8 if bit 9 is set: the offset is 256 times as large
        node_bases = nodes ^ node_units >> 10 << shifts
        is_key = node_units & 1 << 8 > 0
        text = np.pad(prefixes[is_key], ((0, 0), (0, 1))).tobytes()  # a NUL after each key
        keys += text.decode().split("\0")[:-1]
        starts += (units[node_bases[is_key]] & 0x7FFFFFFF).tolist()
        firsts = np.searchsorted(bases, node_bases)
        n_children = np.searchsorted(bases, node_bases, "right") - firsts
        n_bytes += int(n_children.sum()) * prefixes.shape[1]
        require(n_bytes <= MAX_CHARSMAP_BYTES, "a circle")
        # the ranges from `firsts` on, of `n_children` places each, end to end
        skipped = firsts - np.cumsum(n_children) + n_children
        nodes = places[np.repeat(skipped, n_children) + np.arange(n_children.sum())]
        parents = np.repeat(prefixes, n_children, axis=0)
        prefixes = np.column_stack((parents, labels[nodes].astype(u8)))
    return keys, starts


def _any_of(texts):
    """Write an expression for any of some texts, the longest first."""
    longest_first = sorted(filter(None, texts), key=len, reverse=True)
    return "|".join(map(re.escape, longest_first)) or "(?!)"


def _charsmap_step(changes, joined, clusters, change_cluster):
    """Make a step of a charsmap, which changes each cluster of characters on its own.

    changes   keys and replacements
    clusters  a compiled expression that cuts a run into clusters
    """
    single = {ord(key): text for key, text in changes.items() if len(key) == 1}
    change_cluster = functools.lru_cache(1 << 16)(change_cluster)

    def change(text):
        runs = map(clusters.findall, text.split(END_CHAR))
        return END_CHAR.join("".join(map(change_cluster, run)) for run in runs)

    return _CharacterStep(single, joined, change)


MAX_CLUSTER_BYTES = 5  # of grapheme clusters that the crate spm_precompiled replaces as a whole


def _precompiled_step(precompiled_charsmap):
    """Make the step Precompiled, which works by grapheme cluster."""
    changes = _read_charsmap(precompiled_charsmap)

    def change_cluster(cluster):
        # a short cluster becomes the replacement of its shortest prefix that is a key
        if len(cluster.encode("utf-8", "surrogateescape")) <= MAX_CLUSTER_BYTES:
            for prefix in itertools.accumulate(cluster):
                if prefix in changes:
                    return changes[prefix]
        return "".join([changes.get(char, char) for char in cluster])

    joined = _matching(r"[^\p{GCB=Other}\p{GCB=CN}\p{GCB=LF}\p{GCB=LV}\p{GCB=LVT}]")
    return _charsmap_step(changes, joined, regex.compile(r"\X"), change_cluster)


class _LongestMatches:
    """Cut a text into SentencePiece's matches, from left to right.

    At each position that is the longest symbol, or else the longest key of the charsmap, or else
    one character. Symbols stay, and keys get their replacements.
    """

    def __init__(self, charsmap, symbols):
        self.changes = _read_charsmap(charsmap) if charsmap else {}
        self.symbols = {*symbols}
        keys = [*self.changes, *symbols]
        self.longest = max(map(len, keys), default=1)
        self.tails = {*"".join([key[1:] for key in keys])}

    def find(self, text):
        """Yield the texts that the matches become."""
        at = 0
        while at < len(text):
            prefixes = [text[at:end] for end in range(at + self.longest, at, -1)]
            symbol = next(filter(self.symbols.__contains__, prefixes), None)
            key = symbol or next(filter(self.changes.__contains__, prefixes), text[at])
            yield symbol or self.changes.get(key, key)
            at += len(key)

    def step(self):
        """Make the step that changes each character together with the tails of keys after it."""
        clusters = re.compile(f"(?s:.)(?:{_any_of(self.tails)})*")
        return _charsmap_step(
            self.changes | dict(zip(self.symbols, self.symbols, strict=True)),
            self.tails,
            clusters,
            lambda cluster: "".join(self.find(cluster)),
        )


def _squeezed(parts, ending):
    """Join texts without the spaces after another space, at the start, and at the end."""
    kept = []
    after_space = True
    for part in parts:
        text = part.lstrip(" ") if after_space else part
        if text:
            kept.append(text)
            after_space = text.endswith(" ")
    return "".join(kept).rstrip(ending)


def _sentencepiece_steps(charsmap, symbols, prefix, squeezes, escapes):
    """Make the steps of SentencePiece's normalizer, which Hugging Face does not have.

    charsmap  a precompiled charsmap in base64, or ""
    symbols   symbols that the charsmap must not change
    prefix    put a space before a text
    squeezes  remove spaces at both ends, and replace several spaces by one; those within a symbol
              stay
    escapes   replace spaces by ▁

    An invalid byte becomes U+FFFD.
    """
    space = " " if prefix else ""
    ending = " ▁" if escapes else " "
    matches = _LongestMatches(charsmap, symbols)

    def squeeze(text):
        return re.sub("  +", " ", text.strip(" ")).rstrip(ending)

    def squeeze_around_symbols(text):
        return _squeezed(matches.find(text), ending)

    if squeezes and " " in "".join(symbols):
        yield _TextPass(squeeze_around_symbols, space)  # by the charsmap, too
    else:
        if not squeezes:
            yield _TextPass(prefix=space, changes={})
        if charsmap:
            yield matches.step()
        if squeezes:  # the space comes last, or it would be removed
            yield _TextPass(squeeze, space, str.maketrans(" ▁", " ▁"))
    # The lone surrogates mean invalid bytes; 0xFE is only END here, see _MapPass.apply.
    escaped = {*range(0xDC80, 0xDD00)} - {0xDC00 + END}
    yield _CharacterStep(dict.fromkeys(escaped, "\ufffd"))
    if escapes:
        yield _CharacterStep({0x20: "▁"})


# These are newer than the tables of `tokenizers`.
_NEWER_FORMATS = "\u0890\u0891\u08e2\U000110cd\U00013430-\U0001343f"
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f"
_IDEOGRAPHS += "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"


# Lower case is that of Unicode 17, as in `tokenizers`. These capital letters are newer than Unicode
# 14, which the oldest Python has. Those of _AFTER_UNICODE_17 are newer than Unicode 17.
_NEWER_CAPITALS = dict(
    zip(
        "\u1c89\ua7cb\ua7cc\ua7ce\ua7d2\ua7d4\ua7da\ua7dc",
        "\u1c8a\u0264\ua7cd\ua7cf\ua7d3\ua7d5\ua7db\u019b",
        strict=True,
    )
)
_NEWER_CAPITALS |= {chr(code): chr(code + 0x20) for code in range(0x10D50, 0x10D66)}
_NEWER_CAPITALS |= {chr(code): chr(code + 0x1B) for code in range(0x16EA0, 0x16EB9)}
_AFTER_UNICODE_17 = "\ua7dd\ua7e2\uab6c\uab6d\U0001df40-\U0001df7e"


def _lowercase_step():
    """Make the step that brings characters to lower case, each on its own, even Σ."""
    changed = _matching(rf"(?![{_AFTER_UNICODE_17}])\p{{Changes_When_Lowercased}}")
    lower = {char: char.lower() for char in changed} | _NEWER_CAPITALS
    return _CharacterStep(str.maketrans(lower))


def _prepend_steps(prepend):
    """Make the step Prepend, which puts a text before each text."""
    require(isinstance(prepend, str), f"{prepend!r} is no string")
    return [_TextPass(prefix=prepend, changes={})]


def _bert_steps(clean_text, handle_chinese_chars, strip_accents, lowercase):
    """Make the steps of BERT's normalizer."""
    if clean_text:
        yield _uniform_step(rf"(?![\t\n\r{_NEWER_FORMATS}])[\p{{Cc}}\p{{Cf}}\p{{Co}}\ufffd]")
        yield _uniform_step(r"[\t\n\r\p{White_Space}]", " ")
    if handle_chinese_chars:
        yield _uniform_step(f"[{_IDEOGRAPHS}]", " {} ")
    if strip_accents is None:
        strip_accents = lowercase
    if strip_accents:
        yield _normal_form("NFD")
        yield _uniform_step(r"(?![\u1885\u1886])[\p{Mn}\u1734]")  # the accents of Unicode in 2015
    if lowercase:
        yield _lowercase_step()


_ONE_CHARACTER = r"(?:\\[sdw]| |\[(?:[^\[\]\\&]|\\[sdw])+\])"  # in an expression
_STRIP = {"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""}


def _replace_steps(pattern, content):
    """Make the step Replace, which replaces a text or the matches of an expression."""
    [(kind, source)] = pattern.items()
    require_known("pattern", kind, ("String", "Regex"))
    (source + content).encode()  # fails for other types than str, and for lone surrogates
    if kind == "Regex":
        return [_replace_matches(source, content)]
    if len(source) == 1:
        return [_CharacterStep({ord(source): content})]
    # no text is cut beside these characters, and the first one depends on the text after it
    changes = str.maketrans(source, source) | {ord(source[0]): ""}
    return [_TextPass(methodcaller("replace", source, content), changes=changes)]


def _replace_matches(source, content):
    """Make the step that replaces matches; the most frequent expressions need no `regex`."""
    if source == _STRIP["pattern"]["Regex"] and not content:
        return _TextPass(methodcaller("strip", " "), changes={0x20: " "})
    run = re.fullmatch(r"(\\s| )(\+|\{2,\})", source)
    if run:  # `re` is several times as fast as `regex`
        characters = "".join(_matching(run[1]))
        is_certain = run[2] == "+" or content == characters
        changes = dict.fromkeys(map(ord, characters), content if is_certain else "")
        runs = re.compile(_write_set(characters) + run[2])
        escaped = content.replace("\\", r"\\")
        return _TextPass(functools.partial(runs.sub, escaped), changes=changes)
    if re.fullmatch(rf"{_ONE_CHARACTER}(\+|\{{2,\}})(\$|\\[zZ])", source):
        # A match may begin only where a run does, so the run is searched for its end only once.
        source = f"(?<!{re.match(_ONE_CHARACTER, source)[0]}){source}"
    expression = _compile_regex(_read_regex(source))
    if _is_one_character(expression.pattern):
        codes = map(ord, _matching(expression.pattern))
        return _CharacterStep({code: content for code in codes if not 0xD800 <= code < 0xE000})

    def replace(text):
        with _time_limit(source, text) as seconds:
            return expression.sub(lambda match: content, text, timeout=seconds)

    return _TextPass(replace)


def _strip_steps(strip_left, strip_right):
    """Make the step Strip."""
    spaces = "".join(_matching(r"\p{White_Space}"))
    left = spaces if strip_left else ""
    right = spaces if strip_right else ""

    def change(text):
        return text.lstrip(left).rstrip(right)

    return [_TextPass(change, changes=str.maketrans(spaces, spaces))]


# The function that makes the steps of a type; its parameters are the fields in the file.
_NORMALIZERS = {
    **{form: lambda form=form: [_normal_form(form)] for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "Lowercase": lambda: [_lowercase_step()],
    "Strip": _strip_steps,
    "StripAccents": lambda: [_uniform_step(r"\p{M}")],
    "Replace": _replace_steps,
    "Prepend": _prepend_steps,
    "BertNormalizer": _bert_steps,
    "Nmt": lambda: [
        _uniform_step(r"[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]"),
        _uniform_step(r"[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]", " "),
    ],
    "Precompiled": lambda precompiled_charsmap: [_precompiled_step(precompiled_charsmap)],
    "SentencePiece": _sentencepiece_steps,
}


@functools.lru_cache(8)
def _normalizer_passes(steps):
    """Make the passes for steps in JSON: consecutive steps over characters become one pass."""
    made = []  # each is a _CharacterStep, or already a _TextPass
    for step in _flattened(json.loads(steps), "normalizers"):
        made += _call_step("normalizer", _NORMALIZERS, step)
    passes = []
    runs = itertools.groupby(made, lambda step: isinstance(step, _CharacterStep))
    for by_character, run in runs:
        passes += [_MapPass([*run])] if by_character else run
    return passes


_BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
}
NORMALIZERS = {
    name.lower(): {"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt")
} | {
    "strip-accents": {"type": "StripAccents"},
    "bert": _BERT | {"lowercase": True},
    "bert-cased": _BERT | {"lowercase": False},
}


def _named_normalizer(normalizer):
    """Look up the steps of a normalizer by their names."""
    steps = []
    for step in [normalizer] if isinstance(normalizer, str) else normalizer:
        if isinstance(step, str):
            require_known("normalizer", step, NORMALIZERS)
            step = NORMALIZERS[step]
        steps.append(step)
    return steps


# ─── Pretokenizing ────────────────────────────────────────────────────────────────────────────────
#
# Texts -> one flat text, ready for the last step of the pattern. A list of *passes* makes it: each
# takes a flat text, and returns the next one. For a tokenizer with the special token <eos> of id 7,
# the normalizer Lowercase and the pattern [Metaspace("_"), "_[^_]*"], where # is END:
#
#     the text             Hi you<eos>Oh
#     FlatText.join        Hi you<eos>Oh#     meanings BOUNDARY
#     _SpecialPass         Hi you#Oh#         meanings 7, BOUNDARY
#     the normalizer       hi you#oh#         a _MapPass here; a _TextPass for some of its steps
#     _SpecialPass                            only for tokens that are found in normalized text
#     the pattern          _hi_you#_oh#       a _SpacesPass for a Metaspace, a _CutPass for Splits
#     its last pass        _hi _you # _oh #   not applied here: counting and encoding find these
#                                             pretokens by its table, as they need them
#
# A pass has
#
#     apply(flat, opening)    -> the next flat text; `opening` tells how the first text begins
#     apply_to_text(text)     -> the same for one str, or None if Python cannot do it, or would take
#                             long; see also _TextPasses
#     table                   the ScanTable that cuts text, or None
#     changes                 without a table: the characters that it changes; see Normalizing
#     warning                 for a pass of a pattern: a remark for the user, or ""
#
# A long text is first cut into parts, which have the same pretokens as the whole.


class _SpecialPass(NamedTuple):
    """Write END over special tokens."""

    special: _SpecialTable
    expression: str  # matches the tokens; a text without a match has none
    changes: Mapping | None
    table = None

    def apply(self, flat, opening):
        """Find the tokens."""
        return flat.rewritten(_cut_at_special, self.special)

    def apply_to_text(self, text):
        """Return a text that has no token."""
        return None if re.search(self.expression, text) else text


def _special_passes(ids, added_tokens, normalizer=None):
    """List the pass that finds special tokens; the list is empty if there are no tokens.

    normalizer  the one that has changed the text in which they are found
    """
    if not ids:
        return []
    special = _special_table(ids, added_tokens, normalizer)
    if normalizer:
        # The given text does not show these tokens: any text may have one, and none is cut.
        return [_SpecialPass(special, expression="", changes=None)]
    return [_SpecialPass(special, _any_of(ids), changes={})]


@functools.cache
def _no_special():
    """Make the table of no tokens."""
    return _special_table({}, {})


# T5 does this: each piece between white space gets a mark, and a pretoken begins at each mark.
_WORD_STEPS = (Split(r"\s", "removed"), *_metaspace_steps(MARK))


class _SpacesPass(NamedTuple):
    """Do a Metaspace; or the first two of _WORD_STEPS, in one pass."""

    step: Metaspace
    table: ScanTable | None = None  # of a Split that removes white space
    warning = ""

    @property
    def changes(self):
        return {0x20: self.step.replacement}

    def arguments(self, opening):
        """List the last arguments of `_write_spaces`."""
        mark = _with_padding(self.step.replacement.encode())
        scheme = PREPEND_SCHEMES.index(self.step.prepend_scheme)
        if self.table:
            opening = INSIDE  # as after any Split, see `_apply_passes`
        return mark, scheme, opening, self.table or Pattern("none").table

    def apply(self, flat, opening):
        """Replace spaces, and put the mark before pretokens as the scheme says."""
        return flat.rewritten(_write_spaces, *self.arguments(opening))

    def apply_to_text(self, text):
        """Return None: a kernel does this."""


class _CutPass(NamedTuple):
    """Do some Splits of a Pattern, by a table or, without one, by `regex`."""

    table: ScanTable | None
    split: Split = None  # the last of them
    warning: str = ""
    changes = None

    def apply_to_text(self, text):
        """Return None: one text becomes several."""

    def apply(self, flat, opening):
        """Write END between pretokens."""
        if self.table:
            return flat.rewritten(_write_cuts, self.table, *_thread_scan())
        return flat.changed(_on_bytes(self._cut))

    def _cut(self, text):
        """Cut a text where matches of the expression begin or end, as the behavior says."""
        is_isolated = self.split.behavior == "isolated"
        cuts_before = is_isolated or not self.split.joins_before
        cuts_after = is_isolated or self.split.joins_before
        borders = {0, len(text)}
        position = 0
        end = 0  # the end of the last match; an empty match is ignored there, as in Oniguruma
        search = regex.compile(self.split.regex).search
        with _time_limit(self.split.regex, text) as seconds:
            while position < len(text) and (match := search(text, position, timeout=seconds)):
                if match[0] or match.end() > end:
                    if cuts_before:
                        borders.add(match.start())
                    if cuts_after:
                        borders.add(match.end())
                end = match.end()
                position = end + (not match[0])
        return [text[start:stop] for start, stop in itertools.pairwise(sorted(borders))] or [text]


# These match expressions that cut digits from the right: 1|234|567. In the first, an alternative
# among others matches a group. The second matches the empty string before each group, or only
# within a run.
_ONE = rf"(?P<one>{_SET}|{_ESCAPE})"
_GROUPS_ALTERNATIVE = regex.compile(
    rf"(?<=\A|\|){_ONE}\{{1,(?P<size>\d)\}}"
    r"(?P<look>\(\?=\((?:\?:)?(?P=one)\{(?P=size)\}\)\*\(\?!(?P=one)\)\))(?=\||\Z)"
)
_GROUPS_BETWEEN = regex.compile(
    rf"(?P<inside>\(\?<={_ONE}\))?\(\?=\((?:\?:)?{_ONE}\{{(?P<size>\d)\}}\)\+\(\?!(?P=one)\)\)"
)


_OTHER = r"\x00"  # stands for the alternative of groups, when the others are parsed


class _GroupPass(NamedTuple):
    """Cut runs of certain characters into groups, which are counted from the end of the run.

    Singh and Strouse cut numbers in this way: "Tokenization counts: the impact of tokenization on
    arithmetic in frontier LLMs" (2024).
    """

    one: str  # an expression that matches one of these characters
    size: int  # of a group, in characters
    at_start: bool  # also cut before a run that consists of whole groups
    table = None
    changes = MappingProxyType({})
    warning = ""

    def apply(self, flat, opening):
        """Write END between groups."""
        in_run = _code_points_matching(self.one)
        return flat.rewritten(_write_groups, in_run, self.size, self.at_start)

    def apply_to_text(self, text):
        """Return a text that has no run of several groups."""
        n = self.size + (not self.at_start)
        return None if regex.search(rf"(?:{self.one}){{{n}}}", text) else text


def _split_groups(split):
    """Divide a Split into a _GroupPass, which cuts runs from the right, and a Split of the rest.

    Either is None if there is no such part. An alternative takes groups from the right only if no
    other one takes a character of a run, so that each run is matched from its start.
    """
    if split.behavior != "isolated" or split.invert:
        return None, split
    if between := _GROUPS_BETWEEN.fullmatch(split.regex):
        ones = {*between.captures("one")}
        if len(ones) == 1:
            return _GroupPass(*ones, int(between["size"]), not between["inside"]), None
    found = [*_GROUPS_ALTERNATIVE.finditer(split.regex)]
    if len(found) != 1:
        return None, split
    (group,) = found
    source = split.regex[: group.start("look")] + split.regex[group.end("look") :]
    try:
        others = _parse(split.regex[: group.start()] + _OTHER + split.regex[group.end() :], {})
    except Unsupported:
        return None, split
    in_run = _code_points_matching(group["one"])
    if any((_code_points_matching(one) & in_run).any() for one in _classes_in(others)):
        return None, split
    return _GroupPass(group["one"], int(group["size"]), False), split._replace(regex=source)


def _compile_split(split):
    """Compile a Split to a table if possible; the `regex` package accepts its expression."""
    shown = split.regex[:200]
    try:
        table = _compile_pattern(split.pieces)
    except Unsupported as error:
        require(
            split.behavior not in ("removed", "contiguous"),
            f"a Split that is {split.behavior} by {shown!r} is not supported: {error}",
        )
        warning = "the pattern is left to the `regex` package, which is some 50 times slower"
        return _CutPass(None, split, f"{warning}: {error}")
    if split.behavior == "removed":
        sure_starts = _sure_starts(table.next_state, table.accepts)
        starts = table.next_state[0] >= 0
        require(
            np.array_equal(starts, sure_starts),
            f"a Split that removes {shown!r} is not supported: a single character must decide",
        )
        table = table._replace(dropped=starts[:-1] ^ split.invert)
    return _CutPass(table, split)


def _leaves_whole(table, characters):
    """Check that no text of these characters, bool[0x110000], contains a match."""
    classes = np.unique(table.class_of[characters])
    next_state = table.next_state[:, classes].tolist()
    states = [0]  # the states that the text reaches, one after another
    for state in states:
        states += {*next_state[state]} - {-1, *states}
    return not table.accepts[states[1:]].any()


def _is_alternative(table, later_tables):
    r"""Find out how a Split takes part in one machine with later ones: as an alternative, or not.

    It does not if two characters always tell whether it cuts between them: the machine then knows
    all of its cuts. Otherwise, as for \d{1,3}, it does. Raises Unsupported if neither is exact.

    Two conditions are about runs: texts of the characters with which a match may begin. A Split
    that drops its matches or is an alternative must take each whole run, since its pieces are then
    dropped or matched alike. No later Split may match a part of the runs of an alternative.
    """
    if not (table and all(later_tables) and table.accepts[1:].all()):
        raise Unsupported
    begins_match = table.next_state[0, :-1] >= 0  # bool[C]
    begins_run = begins_match[table.class_of]  # bool[0x110000]
    takes_runs = table.must_split[begins_match[:, None] != begins_match].all()
    contexts = _splits_after(table.next_state, table.accepts)
    two_decide = all((splits == splits[0]).all() for splits in contexts)
    drops = len(table.dropped) > 0
    if (drops or not two_decide) and not takes_runs:
        raise Unsupported
    if not two_decide and not all(_leaves_whole(later, begins_run) for later in later_tables):
        raise Unsupported
    return not two_decide


def _join(passes):
    """Make one machine of Splits; raises Unsupported if it would not cut as they do, in turn.

    It is the machine of the last Split, in which the text ends where an earlier one surely cuts.
    The expressions of some earlier ones become alternatives of the last one.
    """
    *earlier, last = passes
    expressions = []
    for k, cut_pass in enumerate(earlier, 1):
        later_tables = [later.table for later in passes[k:]]
        if _is_alternative(cut_pass.table, later_tables):
            expressions.append(cut_pass.split.pieces)
    expressions.append(last.split.pieces)
    table = _compile_pattern("|".join(expressions), passes)
    return _CutPass(table, last.split)


def _join_first(passes):
    """Join as many of the first passes as possible; returns the joined pass, and the others."""
    for n in range(len(passes), 1, -1):
        with contextlib.suppress(Unsupported):
            return _join(passes[:n]), passes[n:]
    return passes[0], passes[1:]


def _compile_splits(steps):
    """Compile consecutive Splits; as many as possible become one machine."""
    passes = []
    for step in steps:
        split = step if isinstance(step, Split) else Split(step)
        _compile_regex(split.regex)
        groups, rest = _split_groups(split)
        if groups:
            passes.append(groups)
        if rest:
            passes.append(_compile_split(rest))
    joined = []
    for can_join, run in itertools.groupby(passes, lambda each: isinstance(each, _CutPass)):
        others = [*run]
        while can_join and others:
            first, others = _join_first(others)
            joined.append(first)
        joined += others
    return tuple(joined)


SOURCE_HASH = _source_digest(__name__)  # at import, since the file may change later


@functools.lru_cache(maxsize=64)
def _cut_passes(steps):
    """Compile consecutive Splits; the table of a named pattern is cached on the disk.

    The file is ignored if it is damaged, as its checksums tell, or if other versions wrote it.
    """
    name = PATTERN_NAMES.get(steps)
    if not name:
        return _compile_splits(steps)
    folder = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).with_name("__pycache__")
    path = Path(folder, f"pattern.{name}.npz")
    versions = repr((steps, regex.__version__, SOURCE_HASH))
    # A damaged file may raise any exception.
    with contextlib.suppress(Exception), np.load(path) as saved:
        if saved["versions"] == versions:
            return (_CutPass(ScanTable(*map(saved.__getitem__, ScanTable._fields))),)
    passes = _compile_splits(steps)
    with contextlib.suppress(OSError, InputError), atomic_write(path) as file:
        np.savez(file, versions=versions, **passes[0].table._asdict())
    return passes


def _apply_passes(passes, flat, opening):
    """Apply passes to a flat text, one after another."""
    for each in passes:
        flat = each.apply(flat, opening)
        if opening == CONTINUES and isinstance(each, _CutPass):
            opening = INSIDE  # a block begins where the first Split ends a pretoken
    return flat


# The names of these bytes are digits or other numbers, such as ¼ for 0xBC.
_NUMBER_BYTES = rb"0-9\xb2\xb3\xb9\xbc-\xbe"


class _ByteDigitsPass(NamedTuple):
    """Cut off bytes whose names are numbers, also within a character."""

    individual: bool  # cut off each such byte, or runs of them
    table = None
    changes = None
    warning = ""

    def apply_to_text(self, text):
        """Return None: one text becomes several."""

    def apply(self, flat, opening):
        """Write END around these bytes."""
        some = b"" if self.individual else b"+"
        pieces = re.compile(rb"[%b]%b|[^%b]+" % (_NUMBER_BYTES, some, _NUMBER_BYTES))
        return flat.changed(lambda data: pieces.findall(data) or [b""])


def _pass_of_step(step):
    """Make the pass of a step that is neither an expression nor a Split."""
    return _SpacesPass(step) if isinstance(step, Metaspace) else _ByteDigitsPass(step.individual)


@public
class Pattern:
    r"""A pretokenizing pattern: a name in PATTERNS, or steps that cut in turn.

    A step is a regular expression, which the `regex` package defines; a Split; a Metaspace; or a
    pre_tokenizer of a tokenizer.json as a dict, whose expressions are those of Hugging Face.

    parts        the steps as they were given, with the entries of PATTERNS for names
    steps        the regular expressions, Splits and Metaspaces that they stand for
    source       the step, or the tuple of steps if there are several
    name         its name in PATTERNS, or None
    warning      a remark for the user if the `regex` package does some of the work, or ""

    A search by `regex` may take 10 seconds, and 10 more for each 1,000,000 characters of the text.
    After that, InputError names the pattern and the text. Invalid bytes are matched as the lone
    surrogates of `surrogateescape`. Raises InputError for an expression that does not compile, or
    that matches the empty string.

    >>> Pattern("gpt2").split(b"Hello  world!")
    [b'Hello', b' ', b' world', b'!']
    >>> Pattern(r"[a-z]+").split(b"ab12cd")  # text between matches is kept
    [b'ab', b'12', b'cd']
    >>> Pattern([r"\d", r"[a-z]+|\d+"]).split(b"ab12")
    [b'ab', b'1', b'2']
    """

    def __init__(self, source: PatternSource = "gpt2"):
        sources = [source] if isinstance(source, PatternStep) else source
        self.parts = [
            PATTERNS.get(step, step) if isinstance(step, str) else step for step in sources
        ]
        require(self.parts, 'a pattern has no steps: "none" leaves texts whole')
        self.steps = tuple(itertools.chain.from_iterable(map(_plain_steps, self.parts)))
        self.source = self.steps[0] if len(self.steps) == 1 else self.steps
        self.name = PATTERN_NAMES.get(self.steps)
        self.passes = []
        runs = itertools.groupby(self.steps, lambda step: isinstance(step, str | Split))
        for is_cut, run in runs:
            self.passes += _cut_passes(tuple(run)) if is_cut else map(_pass_of_step, run)
        self.warning = "; ".join(each.warning for each in self.passes if each.warning)
        if not self.table:
            # Another pass finds the pieces that the others have cut.
            self.passes += _cut_passes((PATTERNS["none"],))
        if self.steps[:3] == _WORD_STEPS:  # one pass does the first two steps
            self.passes[:2] = [_SpacesPass(Metaspace(), self.passes[0].table)]

    def __reduce__(self):
        return Pattern, (self.parts,)

    def __repr__(self) -> str:
        return f"Pattern({self.name or self.source!r:.300})"

    @property
    def table(self) -> ScanTable:
        """The table of the last pass, which scans the pieces that all others have cut."""
        return self.passes[-1].table

    @property
    def matches_everything(self) -> bool:
        """Whether every character of every text is in a match."""
        is_compiled_regex = isinstance(self.source, str) and len(self.passes) == 1
        table = self.table
        return is_compiled_regex and bool(_sure_starts(table.next_state, table.accepts).all())

    def split(self, data: Text) -> list[bytes]:
        """Cut a text into pretokens, without the dropped ones."""
        flat = FlatText.join([_text_bytes(data)], [BOUNDARY])
        return list(filter(None, _apply_passes(self.passes, flat, BOUNDARY).texts()))


def _cut_arrays(passes):
    """Make the arrays that tell where a text may be cut before it goes through passes.

    They are the class of each character, and the pairs of classes between which text may be cut.
    Where the first table always cuts, all passes do: later ones only add cuts. If the passes before
    it change characters, there are three more classes: these characters, the newline and the space.
    Then a text may be cut between a character that stays and a newline or a space, if the table
    must split the changed text there; and between two characters that stay, if nothing is joined.
    """
    changing = [
        *itertools.takewhile(lambda each: not each.table and each.changes is not None, passes)
    ]
    changes = [each.changes for each in changing]
    following = passes[len(changing)]
    table = following.table or Pattern("none").table  # which never cuts
    class_of = table.class_of
    must_split = table.must_split
    if not any(changes):
        return class_of, must_split
    n = len(must_split)
    classes = class_of.copy()
    classes[[*itertools.chain(*changes)]] = n  # a class that never splits
    joins = any("" in change.values() for change in changes)
    splits = np.pad(must_split & (not joins), (0, 3))
    for k, char in enumerate("\n ", n + 1):
        classes[ord(char)] = k
        changed = functools.reduce(str.translate, changes, char)
        if len(changed) == 1:
            splits[:n, k] = must_split[:, class_of[ord(changed)]]
    return classes, splits


@public
class Normalizer:
    """Change text before it is cut into pretokens, by the steps of a tokenizer.json.

    NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, BertNormalizer, Nmt,
    Precompiled and Sequence do the same as in the `tokenizers` package, separately for each piece
    of text between special tokens. Only characters that are newer than the tables of that package
    may differ; some of them date from 2015. Invalid bytes stay unchanged. Raises InputError for
    other steps.

    >>> steps = [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    >>> Normalizer(steps).normalize("Élan".encode())
    b'elan'
    """

    def __init__(self, steps: Sequence[dict] = ()):
        self.steps = tuple(steps)
        self.passes = _normalizer_passes(json.dumps(self.steps))

    def __reduce__(self):
        return Normalizer, (self.steps,)

    def __bool__(self) -> bool:
        return bool(self.passes)

    def apply(self, flat, opening):
        """Normalize the texts between the ENDs of a flat text."""
        return _apply_passes(self.passes, flat, opening)

    def normalize(self, data: bytes) -> bytes:
        """Normalize one text."""
        flat = FlatText.join([data], [BOUNDARY])
        return self.apply(flat, BOUNDARY).texts()[0]

    def cut_arrays(self, pattern):
        """Make the arrays that tell where text may be cut before it is normalized."""
        return _cut_arrays([*self.passes, *pattern.passes])


MAX_PART_BYTES = 1 << 28  # text without a position where it can be cut
WINDOW_BYTES = 1 << 16  # the first text that is searched for a cut
PAIR_BYTES = 8  # two characters in UTF-8, which decide whether a pretoken ends between them


@struct
class _TextPasses:
    """The passes that `_change_text` applies to one text, in this order.

    The flags tell whether there is such a pass, since reading a table takes longer.
    """

    has_given: bool  # the first search for special tokens
    maps: bool
    marks: bool
    given_special: _SpecialTable  # special tokens of the given text
    map: _CharacterMap
    special: _SpecialTable  # special tokens that are found after it
    mark: np.ndarray  # uint8[…]  of a Metaspace, and PADDING
    scheme: int  # the other arguments of `_write_spaces`
    opening: int
    splits: ScanTable


def _text_passes(passes):
    """Remove the last passes that a kernel can do from a list of passes.

    A kernel can do all passes, unless one needs Python or there are two maps. Returns a
    _TextPasses, or None if there is at most one search for special tokens; and the table of the
    last such search, or of no tokens.
    """

    def take(kind):
        return passes.pop() if passes and isinstance(passes[-1], kind) else None

    spaces = take(_SpacesPass)
    special = take(_SpecialPass)
    mapping = take(_MapPass)
    given = take(_SpecialPass)
    table = special.special if special else _no_special()
    if not (given or mapping or spaces):
        return None, table
    no_spaces = np.empty(0, u8), 0, BOUNDARY, Pattern("none").table
    passes = _TextPasses(
        bool(given),
        bool(mapping),
        bool(spaces),
        given.special if given else _no_special(),
        mapping.map if mapping else _no_map(),
        table,
        *(spaces.arguments(BOUNDARY) if spaces else no_spaces),
    )
    return passes, table


@inner_kernel
def _change_text(text, meanings, passes):
    """Apply passes to one flat text without invalid bytes: returns the next text and its meanings.

    The text is empty if a character may change with its neighbours.
    """
    if passes.has_given:
        text, meanings = _cut_at_special(text, text, meanings, passes.given_special)
    if passes.maps:
        text = _map_unjoined(text, passes.map)
        if not len(text):
            return text, meanings
    text, meanings = _cut_at_special(text, text, meanings, passes.special)
    if passes.marks:
        text, meanings = _write_spaces(
            text, text, meanings, passes.mark, passes.scheme, passes.opening, passes.splits
        )
    return text, meanings


class Pretokenizer:
    """Cut and normalize texts, and apply all steps of a pattern but the last.

    Texts are cut at special tokens. `special_tokens` has their ids, and `added_tokens` tells how
    they are found, if not in the plain way. The text between them is normalized.

    >>> pretokenizer = Pretokenizer(Pattern([Metaspace("_"), "_[^_]*"]), {"<|end|>": 7})
    >>> flat, original = pretokenizer.apply([b"a b<|end|>"])
    >>> flat.texts(), flat.meanings.tolist(), original.texts()
    ([b'_a_b', b''], [7, -2], [b'a b', b''])
    """

    def __init__(
        self, pattern, special_tokens=(), added_tokens=MappingProxyType({}), normalizer=None
    ):
        normalizer = normalizer or Normalizer()
        self.pattern = pattern
        self.special_tokens = special_tokens
        self._added_tokens = added_tokens
        in_given_text = dict(special_tokens)
        in_normalized_text = {}
        for token in special_tokens:
            if added_tokens.get(token, PLAIN_TOKEN).normalized:
                in_normalized_text[token] = in_given_text.pop(token)
        before = _special_passes(in_given_text, added_tokens)
        after = _special_passes(in_normalized_text, added_tokens, normalizer)
        if not normalizer:
            before += after
            after = []
        self._passes_to_normalizer = before
        self._passes_from_normalizer = [*normalizer.passes, *after, *pattern.passes[:-1]]
        # `apply_to_text` leaves the last passes to kernels: `_text_passes` takes them from the list
        self._passes_of_text = before + self._passes_from_normalizer
        self.text_passes, self.special_of_text = _text_passes(self._passes_of_text)
        self._changes_text = bool(self._passes_of_text or self._passes_from_normalizer)

    def apply_to_text(self, text):
        """Change one text, str or bytes, as `apply` does, but leave the last passes to kernels.

        They are `text_passes` or, if that is None, the search for tokens of `special_of_text`.

        Returns None if Python cannot do that quickly.
        """
        if not self._changes_text:  # a kernel searches for special tokens, in any bytes
            return text
        if not isinstance(text, str):
            return None  # bytes may be invalid
        for each in self._passes_of_text:
            text = each.apply_to_text(text)
            if text is None:
                return None
        return text

    def apply(self, texts, opening=BOUNDARY):
        """Make a flat text of texts, for the last step of the pattern.

        opening  how the first text begins: BOUNDARY, or another value if it continues an earlier
                 block

        Returns the flat text, and the flat text before normalization.
        """
        original = FlatText.join(texts, [BOUNDARY] * len(texts))
        original = _apply_passes(self._passes_to_normalizer, original, opening)
        return _apply_passes(self._passes_from_normalizer, original, opening), original

    @functools.cached_property
    def _cutting(self):
        """The margin of a window, see `find_cut`, and the last arguments of `_find_cut`."""
        sizes = map(len, map(str.encode, self.special_tokens))
        margin = PAIR_BYTES + max(sizes, default=0)
        passes = [
            *self._passes_to_normalizer,
            *self._passes_from_normalizer,
            self.pattern.passes[-1],
        ]
        arrays = _cut_arrays(passes)
        return margin, *arrays, _special_table(self.special_tokens, self._added_tokens)

    @interruptible
    def find_cut(self, read, start, size, by_lines=False, where=None):
        """Find the end of the part of a text that begins at `start` and has `size` bytes or more.

        read      (position, size) -> a window of the text, which is shorter where the text ends
        by_lines  cut only after a line
        where     the name of a text that may not have longer parts than MAX_PART_BYTES

        Returns the position, which may lie after the end of the text, and how the next part
        begins; see Block.
        """
        # The special tokens and characters on both sides determine whether a cut is valid. So a
        # window is searched without a margin on each side, and windows overlap by a pair of
        # characters.
        margin, *arguments = self._cutting
        position = start + size
        while not where or position - start <= MAX_PART_BYTES:
            window_start = max(start, position - margin)
            first = position - window_start
            window = read(window_start, first + WINDOW_BYTES + margin)
            last = len(window) - margin
            if by_lines:
                cut = window.find(b"\n", first) + 1
                opening = BOUNDARY
            else:
                text = _with_padding(window.replace(BYTES[END], BYTES[INVALID_BYTE]))
                cut, opening = _find_cut(text, first, last, *arguments)
            if cut > 0:
                return window_start + cut, opening
            if last < first + WINDOW_BYTES:  # the text ends in this window
                return window_start + len(window), BOUNDARY
            position = window_start + last - PAIR_BYTES
        raise InputError(
            f"{where}: {MAX_PART_BYTES >> 20} MB of text without a place where it can be cut: "
            "add line breaks, or name another pattern or a special token"
        )

    def find_parts(self, read, size, opening=BOUNDARY, by_lines=False, where=None):
        """Cut a text into parts of `size` bytes or slightly more; see `find_cut`.

        Yields where each part begins and ends, and how it and the next part begin. The last
        position may lie after the end of the text.
        """
        start = 0
        while read(start, 1):
            stop, next_opening = self.find_cut(read, start, size, by_lines, where)
            yield start, stop, opening, next_opening
            start = stop
            opening = next_opening

    def cut(self, chunks, size, by_lines=False, where="the text"):
        """Cut a text that comes in chunks, as `find_parts` does.

        Yields each part, how it begins, and how the next part does. Memory holds a chunk, a part
        and a window; or a whole document, where the pattern allows no cut.
        """
        data = bytearray()  # the text that is read, and not yet yielded
        n_before = 0
        chunks = filter(None, chunks)

        def read(position, n):
            position -= n_before
            while len(data) < position + n and (chunk := next(chunks, None)):
                data.extend(chunk)
            return bytes(data[position : position + n])

        for start, stop, *openings in self.find_parts(read, size, BOUNDARY, by_lines, where):
            part = bytes(memoryview(data)[: stop - start])
            del data[: stop - start]
            n_before = stop
            yield part, *openings


# ─── Reading ──────────────────────────────────────────────────────────────────────────────────────
#
# Files -> blocks of about 4 MB that can be scanned independently. The parent searches for the ends
# of blocks: each is the first position after 4 MB where a cut changes no pretoken. A block of a
# plain file has only positions in the file; the worker that scans it reads its bytes. The only
# block of a file with the text "to be":
#
#     Block(path, start=0, stop=5, data=None)   ->  a worker  ->   [b"to be"]
#
# A pipe, a packed file or a URL is read from its beginning, so the parent reads it and puts the
# bytes into the block. In a file of JSON, blocks end after a line; in a Parquet file, a block is a
# row group; the worker decodes both. A block of a table or of texts in memory contains its texts.
# The workers number bad lines from the beginning of their block, and the parent adds the number of
# the items before it.
#
# Each file is read in its own way, so one command takes files of all kinds. The name of a file
# decides how it is read. If a text field is named, the first line decides for a file with another
# name.

_LINE_SUFFIXES = (".jsonl", ".ndjson")  # files of lines of JSON
SUFFIXES = (".txt", *_LINE_SUFFIXES, ".parquet")  # of the files that are taken from a folder
PACKED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")  # after one of SUFFIXES
BLOCK_BYTES = 1 << 22  # text that is read and scanned at once
PART_BYTES = 1 << 20  # text that is encoded at once: it fits into the caches of a core
HEAD_BYTES = 1 << 12  # the head of a file, which reveals its type
MAX_BAD_BYTES = 1 << 20  # bytes without a line of JSON, at most, at the beginning of such a file
PACKED_BYTES = 1 << 14  # bytes of a packed file that are unpacked at once
_SEPARATORS = {".csv": ",", ".tsv": "\t"}  # of the columns of a table
MAX_NAMED_LINES = 5  # bad lines of a file that are named one by one
MAX_NAMED_KINDS = 8  # kinds of files left out that are named one by one
STANDARD_STREAM = Path("-")

Files = PathName | Iterable[PathName]  # files, folders, globs, URLs, or - for standard input

# the first bytes of files that are not text: packed files and Parquet are read, others are refused
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
    "an Arrow file": rb"ARROW1|\xff{4}(?s:...)\x00",
    "a NumPy array": rb"\x93NUMPY",
    "an SQLite database": rb"SQLite format 3\x00",
    "a program": rb"\x7fELF",
    "an image": rb"\x89PNG|\xff\xd8\xff|GIF8[79]a",
}
_POINTER = {"a Git LFS pointer": rb"version https://git-lfs\.github\.com/spec/"}
_POINTER_REMEDY = "a Git LFS pointer, not the file itself: `git lfs pull` replaces it"
_HTML = {"an HTML page": rb"(?i)\s*<(?:!doctype html|html)\b"}

_AS_TABLE = (
    "a table is read as text, with its separators; `text_field` reads a column of .csv or .tsv"
)
# a note on a file that may not be plain text -> an expression for its first bytes
_DOUBTS = {
    "looks like JSON, and is read as text: `text_field` reads lines of JSON; an array has to "
    "become such lines": rb'(?:\xef\xbb\xbf)?\s*\[?\s*\{\s*"',
    "begins with a byte order mark, which is read as text": rb"\xef\xbb\xbf",
    "looks like FASTA, and its headers are read as text": rb">.*\n[A-Za-z*-]{10,}\r?\n",
    "looks like CoNLL-U, and is read as text": rb"(?:#.*\n)*1(?:-\d+)?\t(?:.*\t){8}.*\n",
    _AS_TABLE: rb'[\w".-]+([,;\t])[\w".-]+(?:\1[\w".-]+)*\r?\n.*\1',
    "looks like an HTML page, and its tags are read as text": _HTML["an HTML page"],
}


STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))  # stands for its files, too


def standard_library():
    """List the source files of Python's standard library in a fixed order.

    Installed packages are left out, and so are tests with source files in other encodings than
    UTF-8, since the first run would warn of them.
    """
    # bom.py is a test that begins with a byte order mark
    of_tests = {"encoded_modules", "tokenizedata", "bom.py"}
    omitted = {"site-packages", "dist-packages", "__pycache__", *of_tests}
    paths = []
    for folder, folders, names in os.walk(STANDARD_LIBRARY):
        folders[:] = {*folders} - omitted  # these are walked next
        kept = {*names} - omitted
        paths += [Path(folder, name) for name in kept if name.endswith(".py")]
    return sorted(paths)


@public
def find_files(inputs: Files | Iterable[TextStream]) -> list[Path | str | TextStream]:
    """Expand files, folders, globs, URLs and "-" (standard input) to files; a URL stays a str.

    A folder stands for its files, at any depth and sorted, whose names end in one of SUFFIXES,
    perhaps followed by one of PACKED_SUFFIXES. A note counts its other files, among them vocab.txt
    and merges.txt, which belong to models. Hidden files are left out without a note.
    Raises InputError if a file is missing, or none is named.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("text"), Path(folder, ".a.txt").write_text("?")
    ...     [path.name for path in find_files(folder)]
    ['a.txt']
    """
    files, left_out = expand_inputs(inputs)
    if left_out:
        kinds = sorted(left_out, key=lambda kind: (-left_out[kind], kind))
        names = " ".join([*kinds[:MAX_NAMED_KINDS], *["…"] * (len(kinds) > MAX_NAMED_KINDS)])
        n = number_of(left_out.total(), "file")
        note(f"{n} left out: {names}; a folder gives its {' '.join(SUFFIXES)}, 'FOLDER/**' all")
    return files


def expand_inputs(inputs):
    """Find files as `find_files` does; returns them, and a Counter of the kinds of the others."""
    files = []
    left_out = {}  # path -> its kind
    for path in [inputs] if isinstance(inputs, PathName) else inputs:
        if isinstance(path, TextStream):
            files.append(path)
        elif "://" in str(path):
            files += _remote_files(str(path))
        else:
            files += _local_files(as_path(path), left_out)
    require(files, "no file is named: the list of files is empty")
    named = {path for path in files if isinstance(path, Path)}  # a file of a folder, too
    others = left_out.keys() - named
    return files, Counter(left_out[path] for path in others)


def as_path(name):
    """Make a Path; raises InputError for an empty name, which Python would take for this folder."""
    require(isinstance(name, PathName), f"{name!r:.99} is no name of a file")
    require(os.fspath(name), "the name of a file or folder is empty: is a variable not set?")
    require("://" not in str(name), f"{name}: only text to read may have a URL")
    require("\0" not in str(name), f"{str(name)!r}: a name of a file has no null character")
    half = re.search("[\ud800-\udc7f\udd00-\udfff]", str(name))  # others stand for bytes
    require(not half, f"{str(name)!r}: a name of a file has no half of a surrogate pair")
    return Path(name)


def _local_files(path, left_out):
    """List the files for which a path stands: a file, a folder, a glob or standard input.

    left_out  the other files in a folder, path -> kind, to which this function adds
    """
    name = str(path)
    if os.path.isdir(name):
        files = _corpus_files(path, left_out)
        problem = f"no text in this folder: no name ends in {', '.join(SUFFIXES)}"
    elif path == STANDARD_STREAM or os.path.exists(name):  # False for a text that is not a path
        return [path]
    else:
        files = filter(Path.is_file, map(Path, glob.glob(name, recursive=True)))
        problem = (
            "no such file or folder, and no file matches it; a text itself goes into a file, or in "
            "Python into train(texts=[…]) or Tokenizer.encode"
        )
    files = sorted(files)
    require(files, f"{name[:80]}: {problem}")
    return files


def _remote_files(url):
    """List the URLs that match a URL with an asterisk, or the URL itself."""
    with naming_file(url, "cannot be read"):
        system, path = import_optional("fsspec.core").url_to_fs(url)
        found = system.glob(path, detail=True) if "*" in url else {url: system.info(path)}
        names = sorted(name for name, info in found.items() if info["type"] == "file")
        require(names, "no file matches it; in a folder, all files match folder/**")
        return [_url_of(name, url, system) for name in names]


def _url_of(name, url, system):
    """Return the URL of a file that a URL with an asterisk matches."""
    if name == url:
        return url
    # In zip://*::file://a.zip, only the first part with a path has the asterisk.
    before, protocol, rest = re.fullmatch(r"((?:[^:]+::)*)([^:]+://)(.*)", url).groups()
    _, chain, container = rest.partition("::")
    if not before and not chain:
        return system.unstrip_protocol(name)
    return before + protocol + name.removeprefix(protocol) + chain + container


def _corpus_files(folder, left_out):
    """List the files of a folder that are text by their names, and not parts of a model."""

    def fail(error):  # or `os.walk` would leave out a folder that cannot be read
        try:
            raise error
        finally:
            del error  # or it would keep this frame

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "."]
        for path in map(Path(parent).joinpath, folders):
            if path.is_symlink():
                left_out[path] = "linked-folders"
        for path in map(Path(parent).joinpath, names):
            if path.name[0] == ".":
                continue
            if not path.is_file():
                left_out[path] = "broken-links" if path.is_symlink() else "pipes"
                continue
            of_model = path.name in ("vocab.txt", "merges.txt")
            suffix = _suffix(path)
            if suffix in SUFFIXES and not of_model:
                yield path
            else:
                left_out[path] = path.name if of_model else suffix or path.name


def _suffix(path):
    """Return the suffix of a file or a URL in lower case, without that of a packed file."""
    name = str(path).lower()
    if "://" in name:
        name = next(part for part in name.split("::") if "://" in part)
        name = re.sub(r"[?#].*", "", name)
    suffixes = Path(name).suffixes
    return ["", *(suffix for suffix in suffixes if suffix not in PACKED_SUFFIXES)][-1]


def _has_packed_name(path):
    """Whether the name of a file is that of a packed file."""
    return Path(str(path).lower()).suffix in PACKED_SUFFIXES


def _is_pipe(path):
    """Whether a file can be opened only once, or is another file in each process (/dev/stdin)."""
    return path == STANDARD_STREAM or (isinstance(path, Path) and is_device(path))


def _is_stream(path):
    """Whether a file, or texts in memory, must be read from the beginning, by one process."""
    return isinstance(path, TextStream | str) or _is_pipe(path)


def _recognize(head, signs=_SIGNS):
    """Return the type of a file that begins with these bytes; None if it may be text."""
    return next((name for name, sign in signs.items() if re.match(sign, head)), None)


class _ZstandardStream:
    """A stream of the package zstandard, with the methods of those in Python's library."""

    needs_input = True  # it keeps no input

    def __init__(self, library):
        self.stream = library.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def decompress(self, data, _):
        return self.stream.decompress(data)

    def __getattr__(self, name):
        return getattr(self.stream, name)


def _zstandard_stream():
    """Begin to unpack a stream of zstandard, whatever its window."""
    for name in ("compression.zstd", "backports.zstd"):  # of Python 3.14, and before it
        with contextlib.suppress(ImportError):
            zstd = importlib.import_module(name)
            window = zstd.DecompressionParameter.window_log_max
            return zstd.ZstdDecompressor(options={window: window.bounds()[1]})
    with contextlib.suppress(ImportError):
        return _ZstandardStream(importlib.import_module("zstandard"))
    raise InputError(
        "unpacking zstandard needs Python 3.14 or a package: pip install backports.zstd"
    )


def _unpack(raw, new_stream):
    """Unpack a file of one stream or several, perhaps with zeros between them; yields its bytes.

    The readers of Python's library stop silently at zeros, and at a later stream that is damaged.
    """
    stream = new_stream()
    while data := raw.read(PACKED_BYTES):
        while data:
            if stream.eof:
                data = data.lstrip(b"\0")
                if not data:
                    break
                stream = new_stream()
            yield stream.decompress(data, BLOCK_BYTES)
            while not (stream.eof or stream.needs_input):
                yield stream.decompress(b"", BLOCK_BYTES)
            data = stream.unused_data if stream.eof else b""
    if not stream.eof:
        raise EOFError("the file ends too early")


class _Pieces(io.RawIOBase):
    """An iterator of bytes as a file."""

    def __init__(self, pieces):
        self.pieces = filter(None, pieces)
        self.rest = memoryview(b"")

    def readable(self):
        return True

    def readinto(self, buffer):
        """Fill a buffer with the next bytes; returns their number."""
        self.rest = self.rest or memoryview(next(self.pieces, b""))
        n = min(len(buffer), len(self.rest))
        buffer[:n] = self.rest[:n]
        self.rest = self.rest[n:]
        return n


_NEW_STREAMS = {
    "xz": lzma.LZMADecompressor,
    "bzip2": bz2.BZ2Decompressor,
    "zstandard": _zstandard_stream,
}


def _unpacked(raw, file_type):
    """Open a packed file of this type as a file of its content; other files stay as they are."""
    if file_type == "gzip":
        return gzip.open(raw)
    if file_type in _NEW_STREAMS:
        return io.BufferedReader(_Pieces(_unpack(raw, _NEW_STREAMS[file_type])))
    return raw


@contextlib.contextmanager
def _open_raw(path):
    """Open a file, standard input or, with fsspec, a URL."""
    if path == STANDARD_STREAM:
        yield sys.stdin.buffer
        return
    if "://" not in str(path):
        with open(path, "rb") as raw:
            yield raw
        return
    with naming_file(path, "cannot be read"):
        opened = import_optional("fsspec.core").open(path)  # it keeps an archive open
        raw = io.BufferedReader(opened.open())
        raw.peek()  # some errors come at the first request
    with raw:
        yield raw


@contextlib.contextmanager
def _opened(path):
    """Open a file that is read from its beginning; yields it unpacked, and as it is."""
    with _open_raw(path) as raw:
        file_type = _recognize(raw.peek(HEAD_BYTES))
        with naming_file(path, f"not a whole {file_type or 'text'} file"):
            yield _unpacked(raw, file_type), raw


def _read_part(path, start, n_bytes):
    """Open a file and read some of its bytes."""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(n_bytes)


class Block(NamedTuple):
    """Text that can be scanned independently. It is one of these:

        a part of a plain file     a worker reads the bytes from `start` to `stop`
        a part of a stream         `data` has its bytes, since only the parent can read them
        several texts              `data` has a list of them, such as the rows of a table
        a row group of Parquet     a worker reads it

    The first two are one text, or lines of JSON with a text each; see `unit`.

    `opening` tells how the block begins, and `next_opening` how the next one does: with another
    text (BOUNDARY); with another document of the same text, after a special token (INSIDE); or
    within the same document (CONTINUES).
    """

    path: Path
    start: int  # bytes on the disk
    stop: int
    opening: int = BOUNDARY
    next_opening: int = BOUNDARY
    data: bytes | list | None = None  # a text, or several texts; None: a worker reads the file
    unit: str = ""  # "line" of JSON, "row", or "text", if the block has several texts
    row_group: int = 0  # of a Parquet file
    # from `Source.texts`: why an item has no text; "" if it has one, None if it is a null
    reasons: list | None = None
    number: int = 0  # the number of all blocks before it

    @property
    def n_bytes(self):
        """The number of bytes on the disk."""
        return self.stop - self.start

    def read(self):
        if self.data is not None:
            return self.data
        data = _read_part(self.path, self.start, self.n_bytes)
        is_whole = len(data) == self.n_bytes
        require(is_whole, f"{self.path}: became shorter while it was read: read a copy of it")
        return data


class _Null(Exception):
    """An item that has no text, and need not have one."""


def _item_text(item):
    """Return the text of a row, or one in memory, as UTF-8; raises _Null or InputError without one.

    An item may be an InputError that tells why a row has no text.
    """
    if isinstance(item, InputError):
        try:
            raise item
        finally:
            del item  # or it would keep this frame
    if item is None or (isinstance(item, float) and math.isnan(item)):  # as in pandas
        raise _Null
    return _text_bytes(item)


def _line_text(text_field, line):
    """Return the text of a line of JSON; None if the line is empty. Raises as `_item_text` does."""
    if not line.strip():
        return None
    try:
        return _item_text(json.loads(line.decode().removeprefix("\ufeff"))[text_field])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        reason = f"not JSON with a text in the field {text_field!r} (`text_field` names another)"
        raise InputError(f"{reason}: {error}") from None


def _read_object(line):
    """Read a line that is a JSON object; returns an empty one for any other line."""
    try:
        value = json.loads(line.decode().removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _begins_object(line):
    """Whether a line may be a JSON object, by its beginning alone."""
    return re.match(rb'(?:\xef\xbb\xbf)?\s*\{\s*"', line) is not None


def _has_field(head, text_field):
    """Whether the first line of a file is a JSON object with this field."""
    first, *others = head.split(b"\n", 1)
    return text_field in _read_object(first) or (not others and _begins_object(first))


def _has_objects(head, is_whole):
    """Whether the beginning of a file has a line that is or may be a JSON object, or has no text.

    The beginning may be the whole file. A file that begins with a list is not a file of lines.
    """
    if head.lstrip()[:1] == b"[":
        return False
    *lines, last = head.split(b"\n")
    may_end = _begins_object(last) and not is_whole
    return may_end or any(map(_read_object, [*lines, last])) or not head.strip()


def _check_column(text_field, names):
    """Raise InputError unless a single column has this name."""
    listed = ", ".join(names)
    require(
        text_field in names, f"no column {text_field!r} (`text_field` names one of {listed:.300})"
    )
    require(names.count(text_field) == 1, f"several columns have the name {text_field!r}: {listed}")


def _table_column(lines, separator, text_field):
    """Read the texts of a column of a table; a row that is not whole becomes an InputError."""
    is_read = False

    def counted_lines():
        nonlocal is_read
        yield from lines
        is_read = True

    rows = csv.reader(counted_lines(), delimiter=separator)
    header = next(rows, [])
    _check_column(text_field, header)
    column = header.index(text_field)
    while True:
        where = f"line {rows.line_num + 1} of the file"
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield InputError(f"{where}: {error}")
            continue
        if row is None:
            return
        if is_read:  # a row ends with a line, unless a quote is open
            yield InputError(f"{where} opens a quote that is never closed")
        elif len(row) == len(header):
            yield row[column]
        elif row:
            expected = number_of(len(header), "column")
            yield InputError(f"{where} has {number_of(len(row), 'column')}, the header {expected}")


@contextlib.contextmanager
def _parquet(path):
    """Open a Parquet file; yields it and its size in bytes."""
    with (
        naming_file(path, "not a whole Parquet file"),
        _open_raw(path) as raw,
        import_optional("pyarrow.parquet").ParquetFile(raw) as file,
    ):
        yield file, raw.seek(0, io.SEEK_END)


def _read_column(block, text_field):
    """Read the texts of a row group of a Parquet file."""
    with _parquet(block.path) as (file, _):
        table = file.read_row_group(block.row_group, [text_field], use_threads=False)
        return table[text_field].to_pylist()


class TextStream(NamedTuple):
    """Texts in memory, strings or batches of strings; a Source reads them once, as a stream."""

    texts: Iterable[Text | Iterable[Text]]

    def __str__(self):
        return "texts in memory"


@public(former={"flags": "added_tokens"})
@dataclasses.dataclass
class Source:
    """The texts to read, and how to read them; worker processes get it, too.

    files           files, folders, globs and URLs, as for `find_files`; or a list of TextStreams
    pattern         the Pattern that cuts texts into pretokens, or its source; blocks end where it
                    always ends one
    special_tokens  tokens that end documents
    text_field      the field of a line of JSON, or the column of a Parquet file, that has the text;
                    "text" by default. If it is set, a .csv or .tsv file is read by its columns; a
                    .json file, standard input, and any file whose first line is a JSON object with
                    this field are lines of JSON; other files stay text
    block_bytes     bytes of text in a block; BLOCK_BYTES by default. No result depends on it
    added_tokens    how special tokens are found, if not in the plain way
    normalizer      steps of a Normalizer, which change texts before they are cut
    skip_bad_lines  skip lines that are not JSON, rows with too many or too few columns, and lines,
                    rows and texts without a text; warnings name the first five of a file, and
                    count all. A text that is null is left out anyway, and counted in a warning

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.jsonl")
    ...     _ = path.write_text('{"text": "one"}\\n{"text": "two"}\\n')
    ...     source = Source(folder, "gpt2")
    ...     [source.texts(block) for block in source.blocks()]
    [[b'one', b'two']]
    """

    files: Iterable[Path | str | TextStream] | Files | None
    pattern: Pattern | PatternSource = "gpt2"
    special_tokens: Sequence[str] = ()
    text_field: str | None = None
    block_bytes: int = dataclasses.field(default_factory=lambda: BLOCK_BYTES)
    added_tokens: Mapping[str, AddedToken] = dataclasses.field(default_factory=dict)
    normalizer: Sequence[dict] = ()
    skip_bad_lines: bool = False

    def __post_init__(self):
        self.files = [] if self.files is None else find_files(self.files)
        if not isinstance(self.pattern, Pattern):
            self.pattern = Pattern(self.pattern)
        self._states = {}  # of the files before they are read
        self._kinds = {}  # of the files, see `_kind`
        self._has_doubt = False  # whether a note on doubtful text was given

    @functools.cached_property
    def pretokenizer(self) -> Pretokenizer:
        """The Pretokenizer of these texts; special tokens are numbered in their order."""
        numbers = {token: number for number, token in enumerate(self.special_tokens)}
        return Pretokenizer(self.pattern, numbers, self.added_tokens, Normalizer(self.normalizer))

    __repr__ = brief_repr

    @property
    def settings(self) -> dict:
        """All that decides how a text becomes words, as JSON. Counts of equal settings add up."""
        pattern = [
            step if isinstance(step, str) else [type(step).__name__, *step]
            for step in self.pattern.steps
        ]
        return {
            "pattern": pattern,
            "special_tokens": [*self.special_tokens],
            "normalizer": _flattened(self.normalizer, "normalizers"),
        }

    @property
    def total_bytes(self) -> int | None:
        """The number of bytes on the disk; None if a file is a pipe."""
        if any(map(_is_stream, self.files)):
            return None
        return sum(path.stat().st_size for path in self.files)

    def is_json(self, path: Path | str | TextStream) -> bool:
        """Whether each line of a file is JSON, by its name or its first line."""
        return self._kind(path)[0] == "line"

    def check(self) -> None:
        """Examine all files, before any work.

        Raises InputError for a file that cannot be text, and for a text field if no file has any.
        """
        units = [self._kind(path)[0] for path in self.files]
        require(
            not self.text_field or any(units),
            f"`text_field` is {self.text_field!r}, and no file has fields: they are in .csv and "
            ".tsv files, in Parquet, and in lines of JSON that are objects",
        )

    def part(self, files: Sequence[Path | str | TextStream]) -> Source:
        """Return a Source of some of the files, which are not examined again."""
        part = copy.copy(self)
        part.files = files
        return part

    def _share(self, other):
        """Take over the findings of another Source about the files."""
        self._kinds = other._kinds
        self._has_doubt = other._has_doubt

    def _kind(self, path):
        """Return the unit of the texts of a file, and whether the file is packed.

        The unit is that of its Blocks, but "row group" for Parquet. A file that can be opened twice
        is examined once.
        """
        if isinstance(path, TextStream):
            return "text", False
        if path not in self._kinds:
            unit = self._unit_by_name(path)
            is_packed = False
            if not _is_pipe(path):
                unit, is_packed = self._look_into(path, unit)
            self._kinds[path] = unit or "", is_packed
        return self._kinds[path]

    def _unit_by_name(self, path):
        """Return the unit of the texts of a file by its name; None if its first line decides."""
        suffix = _suffix(path)
        is_pipe = _is_pipe(path)
        if suffix in _LINE_SUFFIXES:
            return "line"
        if suffix == ".parquet" and not is_pipe:
            return "row group"
        if self.text_field and suffix in _SEPARATORS:
            return "row"
        if self.text_field and (suffix == ".json" or is_pipe):
            return "line"
        return None if self.text_field else ""

    def _look_into(self, path, unit):
        """Check the head of a file; returns the unit of its texts, and whether it is packed."""
        with _opened(path) as (file, raw):
            head = file.read(HEAD_BYTES)
            is_packed = file is not raw
            if not is_packed and _recognize(head) == "Parquet":
                return "row group", is_packed
            if unit is None:
                unit = "line" * _has_field(head, self.text_field)
            self._check_head(path, head, unit, is_packed)
            require(unit != "row group", f"{path}: not a Parquet file, which begins with PAR1")
            if unit == "line":
                if not _has_objects(head, False):
                    head += file.read(MAX_BAD_BYTES)
                self._check_lines(path, head, is_whole=not file.read(1))
        if unit == "row":
            with contextlib.closing(self._table_texts(path)) as texts:
                next(texts, None)  # checks the header
        return unit, is_packed

    def suits_threads(self, engine: Engine) -> bool:
        """Return whether threads are better than processes.

        Threads count faster than processes, since they send nothing through pipes. But JSON and
        patterns of the `regex` package hold Python's lock. With many threads, the rest of the work
        holds it too long, too. And a slow pattern can be stopped only with its process.
        """
        return (
            engine.n_workers <= 8
            and not self.pattern.warning
            and not any(map(self.is_json, self.files))
        )

    def texts(self, block: Block) -> list[bytes]:
        """Read the texts of a block: a single one, or one from each line or row.

        Items without a text are left out; `block.reasons` tells why.
        """
        if not block.unit:
            return [block.read()]
        text_field = self.text_field or "text"
        text_of = _item_text
        if block.unit == "line":
            text_of = functools.partial(_line_text, text_field)
            items = block.read().removesuffix(b"\n").split(b"\n")
        else:
            items = block.data or _read_column(block, text_field)
        texts = []
        for item in items:
            reason = ""
            try:
                texts.append(text_of(item))
            except _Null:
                reason = None
            except InputError as error:
                reason = str(error)
            block.reasons.append(reason)
        return [text for text in texts if text is not None]

    def blocks(self) -> Iterator[Block]:
        """Cut all files into blocks of about `block_bytes` that can be processed in any order."""
        # All files are examined first, so a bad file fails before hours of work.
        blocks_of_files = [self._blocks_of(path) for path in self.files]
        for number, block in enumerate(itertools.chain.from_iterable(blocks_of_files)):
            yield block._replace(number=number, reasons=[])

    def _blocks_of(self, path):
        """Examine a file, and return an iterator of its blocks."""
        if isinstance(path, TextStream):
            return self._text_blocks(path)
        if not _is_stream(path):
            self._states.setdefault(path, path.stat())
        unit, is_packed = self._kind(path)
        if unit == "row group":
            return _row_groups(path, self.text_field or "text")
        if unit == "row":
            return self._item_blocks(path, "row", self._table_texts(path))
        if is_packed or _is_stream(path):
            return self._stream_blocks(path)
        return self._file_blocks(path)

    def _check_head(self, path, head, unit, is_packed=False):
        """Raise InputError for a file that is not text; warn of the first that may not be text."""
        require(_recognize(head, _POINTER) is None, f"{path}: {_POINTER_REMEDY}")
        file_type = _recognize(head)
        remedy = "unpack it, or convert it to text, first"
        if _recognize(head, _HTML) and (unit or (_has_packed_name(path) and not is_packed)):
            file_type = "an HTML page"
            remedy = "was the download refused?"
        require(file_type is None, f"{path}: {file_type} is not text: {remedy}")
        if self._has_doubt or unit:
            return
        doubt = _recognize(head, _DOUBTS)
        if _suffix(path) in _SEPARATORS:
            doubt = _AS_TABLE
        if _suffix(path) in (".html", ".htm"):
            doubt = None
        if len(re.findall("[\0\ufffd]", head.decode("utf-8", "replace"))) > len(head) / 100:
            doubt = (
                "its beginning is not UTF-8, or has NUL bytes, as UTF-16 has; its bytes are read "
                "(iconv converts it to UTF-8)"
            )
        if doubt:
            self._has_doubt = True
            note(f"{path}: {doubt}")

    def _check_lines(self, path, head, is_whole):
        """Raise InputError unless one of the first lines of a file is a JSON object."""
        require(
            _has_objects(head, is_whole),
            f"{path}: no line at its beginning is a JSON object: an array has to become such lines,"
            " and text needs another name, as .txt",
        )

    def _check_unchanged(self):
        """Raise InputError if a file changed while it was read."""
        state = attrgetter("st_ino", "st_size", "st_mtime_ns")
        for path, before in self._states.items():
            require(
                state(path.stat()) == state(before),
                f"{path}: changed while it was being read; start again when it is complete",
            )

    def map(self, engine: Engine, work: Callable, task_bytes: int | None = None) -> Iterator:
        """Let the workers of an engine apply work(source, blocks); yields results in order of text.

        task_bytes  the least number of bytes in a task, so that several small files are one task

        Each task gets a source without files, since each block names its file. Warnings name the
        first lines that were skipped, and `n_bad_lines` counts those of each file.
        """

        def size_of(block):
            return max(len(block.data or b""), block.n_bytes)

        work = functools.partial(_run_task, work, dataclasses.replace(self, files=None))
        tasks = _batched_by_size(self.blocks(), size_of, task_bytes or self.block_bytes)
        self.n_bad_lines = Counter()
        nulls = Counter()
        number = 0  # the number of earlier items of the same file
        with contextlib.closing(engine.map(work, tasks, self.suits_threads(engine))) as results:
            for result, blocks in results:
                for block in blocks:
                    number *= block.start > 0
                    for reason in block.reasons:
                        number += 1
                        nulls[block.path] += reason is None
                        if reason:
                            self._note_bad(block.path, f"{block.unit} {number}: {reason}")
                yield result
        for path, n in self.n_bad_lines.items():
            if n > MAX_NAMED_LINES:
                note(f"skipped in all: {n:,} lines of {path}")
        named = [f"{n:,} of {path}" for path, n in nulls.items() if n]
        if named:
            note(f"left out, since they are null: {', '.join(named)}"[:300])
        self._check_unchanged()

    def _note_bad(self, path, problem):
        """Warn of an item without a text, or raise InputError."""
        remedy = "with `skip_bad_lines`, train, count and encode skip this"
        require(self.skip_bad_lines, f"{path}, {problem}; {remedy}")
        self.n_bad_lines[path] += 1
        if self.n_bad_lines[path] <= MAX_NAMED_LINES:
            note(f"skipped: {path}, {problem}")

    def _text_blocks(self, stream):
        """Gather texts in memory, or batches of them, into blocks."""
        batches = (
            item if isinstance(item, Iterable) and not isinstance(item, Text | Mapping) else [item]
            for item in stream.texts
        )
        return self._item_blocks(Path(str(stream)), "text", itertools.chain.from_iterable(batches))

    def _item_blocks(self, path, unit, items):
        """Gather items, which should be texts, into blocks."""

        def size_of(item):
            return 1 + (len(item) if isinstance(item, Text) else 0)

        start = 0
        for batch in _batched_by_size(items, size_of, self.block_bytes):
            stop = start + sum(map(size_of, batch))
            yield Block(path, start, stop, data=batch, unit=unit)
            start = stop

    def _table_texts(self, path):
        """Read the texts of a column of a file with commas or tabs."""
        csv.field_size_limit(MAX_PART_BYTES)
        with naming_file(path, "not a whole table"), _opened(path) as (file, _):
            lines = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
            yield from _table_column(lines, _SEPARATORS[_suffix(path)], self.text_field)

    def _file_blocks(self, path):
        """Cut a file into blocks, which workers read themselves."""
        size = self._states[path].st_size
        is_json = self.is_json(path)
        read = functools.partial(_read_part, path)
        parts = [(0, size, BOUNDARY, BOUNDARY)]
        if size > self.block_bytes:
            parts = self.pretokenizer.find_parts(read, self.block_bytes, BOUNDARY, is_json, path)
        for start, stop, *openings in parts:
            if start >= size:  # the file is empty, or has grown
                break
            yield Block(path, start, min(stop, size), *openings, unit="line" if is_json else "")

    def _stream_blocks(self, path):
        """Read a file that can be read only from its beginning; its text is put into the blocks."""
        is_json = self.is_json(path)
        start = 0
        stop = 0

        def read():
            nonlocal stop
            with _opened(path) as (file, raw):
                while chunk := file.read(self.block_bytes):
                    if not stop and _is_pipe(path):  # other files have been examined
                        is_packed = file is not raw
                        self._check_head(path, chunk[:HEAD_BYTES], "line" * is_json, is_packed)
                        if is_json:
                            is_whole = len(chunk) < self.block_bytes
                            self._check_lines(path, chunk, is_whole)
                    stop = raw.tell() if raw.seekable() else stop + len(chunk)
                    yield chunk

        for data, *openings in self.pretokenizer.cut(read(), self.block_bytes, is_json, path):
            yield Block(path, start, stop, *openings, data, unit="line" if is_json else "")
            start = stop


def _run_task(work, source, blocks):
    """Do work(source, blocks) in a worker; also returns the blocks without their data."""
    return work(source, blocks), [block._replace(data=None) for block in blocks]


def _row_groups(path, text_field):
    """Make a block of each row group of a Parquet file, with an equal share of its bytes."""
    with _parquet(path) as (file, size):
        _check_column(text_field, file.schema_arrow.names)
        n = file.num_row_groups
    return [
        Block(path, size * k // n, size * (k + 1) // n, unit="row", row_group=k) for k in range(n)
    ]


def _batched_by_size(items, size_of, limit):
    """Gather items into lists whose sizes add up to the limit or slightly more."""
    batch = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= limit:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


# ─── Words ────────────────────────────────────────────────────────────────────────────────────────
#
# Blocks -> Words. A worker scans its blocks and counts their pretokens in its own hash table of
# byte strings. It returns the table as Words, which are plain arrays: all bytes end to end, the
# offset of each word, and its count. The parent adds them to its own table, and finally returns
# Words as well:
#
#     "to be or not to be"  ->  symbols "to be or not to", offsets 0 2 5 8 12 15, counts 1 2 1 1 1
#
# So "to", " be", " or", " not" and " to" are five words (their order in a table differs between
# runs). A words file keeps Words on the disk, so that several machines can count and one can
# learn.

Merge = tuple[bytes, bytes]  # the two tokens that became one
Counts = Mapping[Text, int] | Iterable[tuple[Text, int]]  # words and their counts
TASK_BYTES = 1 << 24  # text that a worker counts at once, unless a block is longer
DECODED_WORDS = 1 << 20  # words whose characters are counted at once
MAX_WORDS = 40_000_000  # counting this many words and learning from them takes 8 GB


class Substrings(NamedTuple):
    """The distinct substrings of words; see `Words.substrings`."""

    places: np.ndarray  # int64[S]   where its first occurrence begins in `Words.symbols`
    sizes: np.ndarray  # int32[S]    its symbols
    counts: np.ndarray  # int64[S]   its occurrences in the corpus
    shorter: np.ndarray  # int32[S]  the number of the substring without its last symbol, or -1
    # int32[N]: the longest one that begins at each symbol of the words; `shorter` has the others
    longest: np.ndarray


@public
class Words(NamedTuple):
    """Words as a CSR array: word w is symbols[offsets[w] : offsets[w + 1]].

    It occurs counts[w] times.

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
    def from_counts(cls, counts: Counts) -> Words:
        """Make Words from pretokens and their counts: a mapping, or pairs, which are added up.

        A pretoken is bytes or a string, and a count is a whole number, 0 or more.
        """
        totals = Counter()
        for word, n in counts.items() if isinstance(counts, Mapping) else counts:
            if not (isinstance(n, numbers.Real) and n >= 0 and n % 1 == 0):
                message = f"the count of {word!r} is {n!r}: it must be a whole number, 0 or more"
                raise InputError(message)
            totals[_text_bytes(word)] += int(n)
        del totals[b""]
        totals = +totals
        n_bytes = sum(len(word) * n for word, n in totals.items())
        require(n_bytes < 2**63, "the counts add up to 2**63 bytes or more: 64 bits cannot hold it")
        symbols = np.frombuffer(b"".join(totals), u8).astype(np.int32)
        return cls(symbols, _offsets([*map(len, totals)]), np.array([*totals.values()], i64))

    @classmethod
    @deprecated("Words.from_counts, and weighted for each weight")
    def merge(cls, corpora: Sequence[Words], weights: Sequence[float] = ()) -> Words:
        """Add up the words of several corpora, over the single bytes."""
        require(len(weights) in (0, len(corpora)), "there must be a weight for each corpus")
        weighted = map(Words.weighted, corpora, weights) if weights else corpora
        return cls.from_counts(pair for words in weighted for pair in words.to_counts().items())

    @staticmethod
    @deprecated("load_counts(path)[0].words")
    def load(path: PathName) -> Words:
        """Read the words of a words file."""
        return load_counts(path)[0].words

    def weighted(self, weight: float) -> Words:
        """Multiply all counts by a weight.

        A hash of the word decides whether a product is rounded up or down, so the sum of many is
        nearly the product, even if most words occur once. A word whose count is 0 then is left out.

        >>> Words.from_counts({b"a": 5, b"b": 1}).weighted(0.3).to_counts()
        {b'a': 2}
        """
        _, counts = self._multiplied(weight)
        return _select_words(self._replace(counts=counts), np.flatnonzero(counts))

    def _multiplied(self, weight):
        """Multiply all counts by a weight; returns the products, and these as whole numbers."""
        greatest = float(self.counts.max(initial=0)) * weight
        require(0 <= greatest < 2**63, f"the weight {weight!r} is below 0 or too large")
        products = self.counts * weight
        counts = products.astype(i64)
        counts += products - counts > self.hashes / 2.0**64
        return products, counts

    def substrings(self, longest: Positive = 16, min_count: Positive = 2) -> Substrings:
        """List the distinct substrings of the words, with their counts; shorter ones come first.

        Methods that choose tokens among candidates begin with these: a Unigram, GreedTok (Lim et
        al. 2025), PathPiece (Schmidt et al. 2024), SaGe (Yehezkel and Pinter 2023).

        longest    the most symbols of a substring. Time and memory are proportional to it, times
                   the symbols of all words
        min_count  the least occurrences in the corpus, overlapping ones included; a greater number
                   leaves far fewer substrings

        >>> words = Words.from_counts({b"abab": 2, b"b": 5})
        >>> found = words.substrings(longest=2, min_count=3)
        >>> found.places.tolist(), found.sizes.tolist(), found.counts.tolist()
        ([0, 1, 0], [1, 1, 2], [4, 9, 4])
        """
        found = _list_substrings(self, longest, min_count)
        is_kept = found.counts >= min_count  # letters may occur less often
        numbers = np.where(is_kept, np.cumsum(is_kept) - 1, -1).astype(np.int32)
        numbers = np.append(numbers, np.int32(-1))  # that of no substring, which is -1
        return Substrings(
            places=found.places[is_kept],
            sizes=found.sizes[is_kept],
            counts=found.counts[is_kept],
            shorter=numbers[found.shorter[is_kept]],
            longest=numbers[found.longest],
        )

    def to_counts(self) -> dict[bytes, int]:
        """Make a dict of the words, as bytes, and their counts."""
        return dict(zip(self.texts, self.counts.tolist(), strict=True))

    @property
    def texts(self) -> list[bytes]:
        """The words as bytes."""
        tokens = [self.alphabet[symbol] for symbol in self.symbols.tolist()]
        offsets = self.offsets.tolist()
        return [b"".join(tokens[start:end]) for start, end in itertools.pairwise(offsets)]

    @property
    def sizes(self) -> np.ndarray:
        """The number of symbols of each word, int64[W]."""
        return np.diff(self.offsets)

    @property
    def n_tokens(self) -> int:
        """The number of symbols of the corpus: the sizes of the words times their counts."""
        return int(self.sizes @ self.counts)

    @property
    def hashes(self) -> np.ndarray:
        """A hash of each word, uint64[W]."""
        sizes = self.sizes.astype(u64)  # hashes begin with them, or the symbol 0 would hash to 0
        return _hash_words(self.symbols, self.offsets, sizes)

    @property
    @interruptible
    def digest(self) -> str:
        """The SHA-256 of the words and their counts, in hexadecimal, whatever their order.

        The alphabet is a part of it, unless it consists of the bytes.
        """
        counts = self.counts.astype(u64)
        hashes = np.sort(_hash_words(self.symbols, self.offsets, counts))
        digest = hashlib.sha256(hashes.astype("<u8").data)
        if tuple(self.alphabet) != BYTES:
            digest.update(repr([*self.alphabet]).encode())
        return digest.hexdigest()

    def as_characters(
        self,
        metaspace: Metaspace | None = None,
        others: Mapping[str, float] = MappingProxyType({}),
        *,
        coverage: Share = 1.0,
        required_chars: str | Iterable[str] = (),
    ) -> Words:
        """Decode words over the single bytes as words over characters, in the order of code points.

        metaspace       replaces the spaces first, and may put its character before each word that
                        lacks it; this character is kept, too
        others          characters of the text that these words lack, and how often; see
                        `CorpusCounts.other_characters`
        coverage        the most frequent characters are kept until they make up this share of all
                        occurrences; on a tie the smaller code point comes first. ASCII and white
                        space are always kept
        required_chars  characters that are kept, even if they do not occur

        A word is split at characters that are not kept and at invalid bytes, and each part gets the
        count of the word. The rule of coverage is that of SentencePiece, which keeps neither ASCII
        nor white space. The order is that of Hugging Face's trainers, and decides ties.

        >>> words = Words.from_counts({"naïve".encode(): 1, b"vane": 2}).as_characters(coverage=0.9)
        >>> words.alphabet, words.to_counts()
        ([b'a', b'e', b'n', b'v'], {b'na': 1, b've': 1, b'vane': 2})
        """
        require(
            self.alphabet == BYTES,
            "these words are not over the 256 bytes: they have characters already",
        )
        marks = {" ": metaspace.replacement} if metaspace else {}
        required = np.array([*map(ord, [*required_chars, *marks.values()])], i64)
        code_points, offsets = _decode_words(self, metaspace)
        counts = np.repeat(self.counts, np.diff(offsets))
        totals = np.bincount(code_points, counts, N_CODE_POINTS)
        totals[0xD800:0xE000] = 0  # invalid bytes
        for char, n in others.items():
            totals[ord(marks.get(char, char))] += n
        by_frequency = _best_first(totals, 0)
        # a character is left out if those before it suffice
        before = np.cumsum(totals[by_frequency]) - totals[by_frequency]
        is_kept = (before < coverage * totals.sum()) | (coverage == 1)
        is_kept |= _code_points_matching(r"[\x00-\x7f\s]")[by_frequency]
        letters = np.union1d(by_frequency[is_kept], required)
        rare = by_frequency[~np.isin(by_frequency, letters)]
        if len(rare):
            share = 100 * totals[rare].sum() / totals.sum()
            shown = readable("".join(map(chr, rare)).encode())
            note(f"coverage: {share:.2g} % of the characters are no tokens: {shown[:60]}")
        symbol_of = np.full(N_CODE_POINTS, -1, np.int32)
        symbol_of[letters] = np.arange(len(letters))
        alphabet = [chr(code_point).encode() for code_point in letters.tolist()]
        return _split_at_unknown(symbol_of[code_points], offsets, self.counts, alphabet)


def _offsets(sizes):
    """Compute where words of these sizes begin, and where the last one ends: int64[W + 1]."""
    return np.append(0, np.cumsum(sizes, dtype=i64))


def _best_first(values, least=-np.inf):
    """List the indices of the values above `least`, the greatest first; ties keep their order."""
    n = np.count_nonzero(values > least)
    return np.argsort(-values, kind="stable")[:n]


def _decode_words(words, metaspace):
    """Decode words over the single bytes: returns code points, and the offsets of words in them.

    A Metaspace changes the words first, as if none began a text. An invalid byte becomes a lone
    surrogate, and so does the END that is put after each word.
    """
    data = words.symbols.astype(u8)
    data[data == END] = INVALID_BYTE
    text = _with_padding(np.insert(data, words.offsets[1:], END))
    if metaspace:
        meanings = np.full_like(words.counts, INSIDE)
        text = _SpacesPass(metaspace).apply(FlatText(text, text, meanings), INSIDE).text
    decoded = text[:-PADDING].tobytes().decode("utf-8", "surrogateescape")
    code_points = np.frombuffer(decoded.encode("utf-32-le", "surrogatepass"), "<u4")
    is_end = code_points == 0xDC00 + END
    sizes = np.diff(np.flatnonzero(is_end), prepend=-1) - 1
    return code_points[~is_end], _offsets(sizes)


def _count_characters(words, counts):
    """Add up counts of words, float64[W], for each of their characters: {character: sum}."""
    totals = np.zeros(N_CODE_POINTS)
    for start in range(0, len(counts), DECODED_WORDS):
        part = np.arange(start, min(start + DECODED_WORDS, len(counts)))
        code_points, offsets = _decode_words(_select_words(words, part), None)
        totals += np.bincount(code_points, np.repeat(counts[part], np.diff(offsets)), N_CODE_POINTS)
    totals[0xD800:0xE000] = 0  # invalid bytes
    found = np.flatnonzero(totals)
    return dict(zip(map(chr, found.tolist()), totals[found].tolist(), strict=True))


def _split_at_unknown(symbols, offsets, counts, alphabet):
    """Split words at unknown symbols, -1; each part has the count of its word, and is a word."""
    is_known = symbols >= 0
    n_known = _offsets(is_known)  # before each symbol, and in all
    may_begin = np.append(True, ~is_known)  # after an unknown symbol, or where a word begins
    may_begin[offsets] = True
    starts = np.flatnonzero(is_known & may_begin[:-1])
    part_offsets = np.append(n_known[starts], n_known[-1])
    words = np.searchsorted(offsets, starts, "right") - 1
    return Words(symbols[is_known], part_offsets, counts[words], alphabet)


def tabulate_counts(counted, title="Pretokens"):
    """Tabulate the size of a corpus and its counts."""
    n_bytes = number_of(counted.n_read, "byte")
    n_documents = number_of(counted.n_documents, "document")
    n_unique = len(counted.words.counts)
    rows = [
        ("read", f"{n_bytes} in {n_documents}"),
        (
            counted._says_weighted("pretokens"),
            f"{counted.n_pretokens:,}, {n_unique:,} of them unique",
        ),
    ]
    if counted.n_dropped:
        error = f"{counted.n_dropped:,} pretokens; counts are up to {counted.max_error:,} too small"
        rows.append(("dropped", error))
    if counted.n_bad_lines:
        rows.append(("bad lines", f"{counted.n_bad_lines:,} skipped"))
    return Table(title, ("what", "value"), rows)


@public
class CorpusCounts(NamedTuple):
    """The pretokens of a corpus with their counts, and the size of the corpus.

    >>> CorpusCounts(Words.from_counts({b"low": 5}), n_documents=1, n_bytes=15).n_pretokens
    5
    """

    words: Words
    n_documents: int = 0
    n_bytes: int = 0  # of text before normalization, without special tokens
    special_tokens: Mapping[str, int] = MappingProxyType({})  # the count of each
    n_dropped: int = 0  # occurrences of the rarest words, which were dropped; see `count`
    n_dropped_bytes: int = 0  # the bytes of these occurrences
    max_error: int = 0  # the most by which the count of a word can be too small
    n_bad_lines: int = 0  # that were skipped
    n_weighted_bytes: int = 0  # of text, times the weights of the words; 0 without weights
    # The characters of dropped words, with the sums of their counts; and the amounts by which
    # rounding changed the sums of weighted words. So an alphabet is that of the whole text.
    other_characters: Mapping[str, float] = MappingProxyType({})

    __repr__ = brief_repr

    def __str__(self) -> str:
        return str(tabulate_counts(self))

    @property
    def n_read(self):
        """The number of bytes that were read, including special tokens."""
        special = (len(token.encode()) * n for token, n in self.special_tokens.items())
        return sum(special, self.n_bytes)

    @property
    def n_pretokens(self):
        return int(self.words.counts.sum())

    @property
    def n_text_bytes(self):
        """The number of bytes of text for which the words stand, with their weights."""
        return (self.n_weighted_bytes or self.n_bytes) - self.n_dropped_bytes

    def _says_weighted(self, name):
        """Return the name of a figure, and whether it is weighted."""
        return f"{name}, weighted" if self.n_weighted_bytes else name

    def weighted(self, weight: float) -> CorpusCounts:
        """Multiply the counts of words by a weight, as `Words.weighted` does."""
        whole = _in_order(self.words)  # the order decides how sums are rounded
        products, counts = whole._multiplied(weight)
        others = Counter({char: n * weight for char, n in self.other_characters.items()})
        if not np.array_equal(products, counts):
            others.update(_count_characters(whole, products - counts))
        words = whole.weighted(weight)
        n_others = self.n_bytes - self.words.n_tokens  # that are in no word
        return self._replace(
            words=words,
            n_weighted_bytes=words.n_tokens + round(n_others * weight),
            n_dropped_bytes=round(self.n_dropped_bytes * weight),
            other_characters=others,
        )

    @property
    def described(self):
        """All fields as plain JSON, with a hash in place of the words."""
        return self._asdict() | {
            "words": self.words.digest,
            "special_tokens": dict(sorted(self.special_tokens.items())),
            "other_characters": dict(sorted(self.other_characters.items())),
        }


# The fields of CorpusCounts that are added up.
_SUMMED_FIELDS = (
    "n_documents",
    "n_bytes",
    "n_bad_lines",
    "n_dropped",
    "n_dropped_bytes",
    "max_error",
    "n_weighted_bytes",
)

# The table of words uses linear probing, and is at most half full; the cache of encoding is a
# similar table, up to three quarters full. An entry is four numbers of 64 bits, and a slot is its
# place. In a table of 8 entries "the" (home slot 2) was counted 5 times, " cat" (home 2, which is
# taken, so slot 3) twice, "internationalization" (home 6) once:
#
#     slot    key: 8 bytes        7 bytes and size            value   more
#     0, 1    -                   0: free
#     2       "the"               "", 3                       5       0
#     3       " cat"              "", 4                       2       0
#     6       its hash            LONG | 20                   1       0: its place in long_words
#
# So a word of up to INLINE_BYTES is equal to another if their keys are equal. Only longer words,
# which are rare, are compared by their bytes; `more` of other words has no meaning. The value is a
# count, the id of a token, or the ids of a pretoken.
INLINE_BYTES = 15
LONG = u64(0xFF) << u64(56)
PLACE_MASK = u64(2**48 - 1)  # the place of a long word; encoding uses the upper bits of `more`
# columns of the entries
VALUE = 2
MORE = 3


@struct
class _WordTable:
    """A hash table of byte strings; see above."""

    entries: np.ndarray  # uint64[H, 4]  H is a power of two
    long_words: np.ndarray  # uint8[…]   end to end, and PADDING
    n_words: int = 0
    n_long_bytes: int = 0


@inner_kernel
def _new_entries(n):
    entries = _on_huge_pages(np.empty((n, 4), u64))
    entries[:] = 0
    return entries


def _new_word_table(n_entries, n_long_bytes):
    return _WordTable(np.zeros((n_entries, 4), u64), np.empty(n_long_bytes + PADDING, u8))


@inner_kernel
def _mix(low, high):
    """Hash two numbers of 64 bits; use the upper bits of the hash, which are mixed best."""
    x = (low ^ (high * u64(0x9E3779B97F4A7C15))) * u64(0xD6E8FEB86659FD93)
    return (x ^ (x >> u64(32))) * u64(0xD6E8FEB86659FD93)


@inner_kernel
def _hash_key(low, high):
    """Hash two numbers of 64 bits with a seed; use the upper bits of the hash.

    The seed differs between runs, so nobody can write a text whose words all collide. It determines
    the order of the words in a table, never a result.
    """
    seed = process_seed() * u64(0x9E3779B97F4A7C15) | ONE
    return (low ^ (high * seed)) * seed


@inner_kernel
def _home_slot(low, high, n_entries):
    """Return the slot in which the search for a key begins."""
    return _hash_key(low, high) >> (u64(64) - count_bits(u64(n_entries - 1)))


@inner_kernel
def _hash_long(text, start, size):
    """Hash the bytes of a long word."""
    hashed = u64(size)
    for k in range(0, size - 7, 8):
        hashed = _hash_key(hashed, load_u64(text, start + k))
        hashed ^= hashed >> u64(32)
    return _hash_key(hashed, load_u64(text, start + size - 8))


# n -> masks for the two halves of the key of a word of n bytes.
_KEY_MASKS = (255 * np.tri(16, k=-1)).astype(u8).view("<u8")


@inline_kernel
def _word_key(text, start, size):
    """Make the key of a word of `size` bytes; `size` is a uint64."""
    if size > u64(INLINE_BYTES):
        return _hash_long(text, start, i64(size)), LONG | size
    low = load_u64(text, start) & _KEY_MASKS[size, 0]
    high = load_u64(text, start + 8) & _KEY_MASKS[size, 1]
    return low, high | size << u64(56)


KEYS = 128  # keys made at once, before any is looked up: they fit into the L1 cache


@inner_kernel
def _word_keys(text, start, ends, n, entries, keys):
    """Write the keys and the home slots of up to KEYS words that lie end to end.

    text     uint8[…]: the first word begins at `start`
    ends     int64[n]: where each word ends
    entries  uint64[H, 4], which are prefetched, since a look-up waits for them
    keys     uint64[4 KEYS]: the two halves of a key, the slot, and a free place for each word
    """
    k = u64(0)
    while k < u64(n):  # an unsigned index needs no test whether it counts from the end
        end = ends[k]
        low, high = _word_key(text, start, u64(end - start))
        slot = _home_slot(low, high, len(entries))
        prefetch(entries, u64(4) * slot)
        at = u64(4) * k
        keys[at] = low
        keys[at + ONE] = high
        keys[at + u64(2)] = slot
        start = end
        k += ONE


@inline_kernel
def _find_slot(entries, long_words, low, high, slot, text, start):
    """Look up a key from its home slot on: returns its slot, or the free slot where it belongs."""
    mask = u64(len(entries) - 1)
    is_other = True
    while entries[slot, 1] and is_other:
        is_other = entries[slot, 0] != low or entries[slot, 1] != high
        if high >= LONG and not is_other:  # a hash: compare the bytes
            place = i64(entries[slot, MORE] & PLACE_MASK)
            is_other = not _equal(text, start, long_words, place, i64(high & ~LONG))
        if is_other:
            slot = (slot + ONE) & mask
    return slot


@inline_kernel
def _find_value(text, start, size, entries, long_words):
    """Look up the value of text[start : start + size]; -1 if these bytes are not in the table."""
    low, high = _word_key(text, start, u64(size))
    home = _home_slot(low, high, len(entries))
    slot = _find_slot(entries, long_words, low, high, home, text, start)
    return i64(entries[slot, VALUE]) if entries[slot, 1] else i64(-1)


@inline_kernel
def _store_key(entries, long_words, n_long_bytes, slot, low, high, text, start):
    """Write a key into a free slot, and append the bytes of a long word; both must have room.

    Returns the number of bytes of all long words. No argument is a struct, whose references Numba
    would count.
    """
    size = i64(high & ~LONG) * i64(high >= LONG)  # 0 for a short word
    entries[slot, 0] = low
    entries[slot, 1] = high
    entries[slot, MORE] = u64(n_long_bytes)
    return _copy_bytes(text, start, start + size, long_words, n_long_bytes)


@inline_kernel
def _copy_entry(entries, k, larger, n_cleared):
    """Copy entry k, if it has a word, into the entries of a larger table.

    The entries from `n_cleared` on may hold anything, since a cache becomes larger in steps. A word
    that would come there is left out.
    """
    if entries[k, 1]:
        slot = _home_slot(entries[k, 0], entries[k, 1], len(larger))
        while slot < u64(n_cleared) and larger[slot, 1]:
            slot = (slot + ONE) & u64(len(larger) - 1)
        if slot < u64(n_cleared):
            for column in range(4):
                larger[slot, column] = entries[k, column]


@inner_kernel
def _resize(table, n_entries):
    """Move all words into a table of `n_entries` entries."""
    entries = table.entries
    larger = _new_entries(n_entries)
    for k in range(len(entries)):
        _copy_entry(entries, k, larger, n_entries)
    table.entries = larger


@kernel
def _reserve_words(table, n, n_long_bytes):
    """Make room for n more words, and for `n_long_bytes` more bytes of long words."""
    size = len(table.entries)
    while 2 * (table.n_words + n) > size:
        size *= 2
    if size > len(table.entries):
        _resize(table, size)
    need = table.n_long_bytes + n_long_bytes + PADDING
    table.long_words = _reserve(table.long_words, need)


@kernel
def _count_unique(table):
    """Return the number of words in a table, since Python cannot read the fields of a struct."""
    return table.n_words


@kernel
def _add_words(table, text, start, ends, n, weights, keys):
    """Add the weights of n words that lie end to end in a text, as for `_word_keys`.

    `weights` is int64[n], or int64[1], one for all. END is a word, too, with the same key as a real
    byte 0xFE.
    """
    for first in range(0, n, KEYS):
        last = min(first + KEYS, n)
        _reserve_words(table, last - first, ends[last - 1] - start)
        entries = table.entries
        long_words = table.long_words
        _word_keys(text, start, ends[first:], last - first, entries, keys)
        for k in range(first, last):
            at = 4 * (k - first)
            low = keys[at]
            high = keys[at + 1]
            slot = _find_slot(entries, long_words, low, high, keys[at + 2], text, start)
            if not entries[slot, 1]:
                n_long_bytes = table.n_long_bytes
                table.n_long_bytes = _store_key(
                    entries, long_words, n_long_bytes, slot, low, high, text, start
                )
                table.n_words += 1
            entries[slot, VALUE] += u64(weights[min(k, len(weights) - 1)])
            start = ends[k]


@kernel
def _count_text(table, text, scanned, scan_table, lanes, marks, keys, once):
    """Scan and count a flat text; `once` is a weight of 1, and the others are as in "Scanning"."""
    stop = _begin_scan(text, lanes)
    while lanes[0, POSITION] < stop:
        scanned = _scan_batch(scanned, stop, scan_table, lanes, marks)
        first = lanes[0, FIRST]
        ends = lanes[0, ENDS:]
        _add_words(table, text, first, ends, lanes[0, N_ENDS], once, keys)


@kernel
def _export_words(table, class_of, dropped):
    """Copy the words of a table, in its order, except those that a ScanTable drops.

    Returns their bytes, uint8[N], offsets, int64[W + 1], and counts, int64[W].
    """
    entries = table.entries
    long_words = table.long_words
    n = table.n_words
    text = np.empty(table.n_long_bytes + INLINE_BYTES * n + PADDING, u8)
    offsets = np.empty(n + 1, i64)
    counts = np.empty(n, i64)
    offsets[0] = 0
    w = end = ZERO
    for k in range(len(entries)):
        high = entries[k, 1]
        count = i64(entries[k, VALUE])
        if not count:  # a free slot, or END
            continue
        if high >= LONG:
            first = i64(entries[k, MORE])
            size = i64(high & ~LONG)
            _copy_bytes(long_words, first, first + size, text, end)
        else:
            size = i64(high >> u64(56))
            store_u64(text, end, entries[k, 0])
            store_u64(text, end + 8, high)
        if _is_dropped(text, end, end + size, class_of, dropped):
            continue
        counts[w] = count
        w += 1
        end += size
        offsets[w] = end
    return text[:end], offsets[: w + 1], counts[:w]


class WordCounter:
    """Count words, and add up counts. All texts must have one pattern if it drops pretokens.

    >>> counter = WordCounter()
    >>> counter.add_texts([b"to be or not to be"], Pretokenizer(Pattern("gpt2")))
    >>> counter.add_words(Words.from_counts({b"to": 2, b" be": 1}))
    >>> counter.words().to_counts()[b"to"], counter.words().to_counts()[b" be"]
    (3, 3)
    """

    def __init__(self):
        self.table = _new_word_table(1 << 16, 1 << 16)
        self._keys = np.empty(4 * KEYS, u64)  # for _word_keys
        self._dropped = np.zeros(0, np.uint16), np.zeros(0, bool)  # for _export_words
        self.special_ids = Counter()
        self.n_documents = 0
        self.n_bytes = 0  # of texts, without special tokens

    def add_texts(self, texts, pretokenizer, opening=BOUNDARY):
        """Count the pretokens, the documents and the bytes of texts.

        A special token ends a document. `opening` is as in Pretokenizer.apply.
        """
        flat, original = pretokenizer.apply(texts, opening)
        table = pretokenizer.pattern.table
        arguments = table, *_thread_scan(), self._keys, np.ones(1, i64)
        _count_text(self.table, flat.text, flat.scanned, *arguments)
        n_ends = np.array([len(flat.meanings)])  # they were counted, but are not words
        self.add_words(Words(np.array([END]), np.array([0, 1]), -n_ends))
        self._dropped = table.class_of, table.dropped
        meanings = original.meanings
        self.special_ids.update(meanings[meanings >= 0].tolist())
        is_document = np.diff(original.ends(), prepend=-1) > 1  # a text that is not empty
        self.n_documents += int(np.count_nonzero(is_document))
        self.n_bytes += len(original.text) - PADDING - len(meanings)

    def add_words(self, words):
        """Add words over the single bytes that were counted elsewhere."""
        text = _with_padding(words.symbols.astype(u8, copy=False))
        n = len(words.counts)
        # Words may come in the order of their hashes. They would fill the beginning of a table that
        # grows meanwhile, with long probes. So there is room for all of them first.
        _reserve_words(self.table, n, 0)
        _add_words(self.table, text, 0, words.offsets[1:], n, words.counts, self._keys)

    def words(self, dtype=np.int32):
        """Return the words so far, in no particular order; those of uint8 are for `add_words`."""
        text, offsets, counts = _export_words(self.table, *self._dropped)
        return Words(text.astype(dtype, copy=False), offsets, counts)


def _drop_rarest(words, max_words):
    """Drop the rarest words, so that at most half of `max_words` are left, or one word.

    All words of the same count are dropped, or none. Returns the others, and the losses as
    fields of CorpusCounts; `max_error` is the count of the most frequent dropped word.

    >>> words = Words.from_counts({b"a": 7, b"b": 5, b"cd": 1, b"e": 1})
    >>> frequent, dropped = _drop_rarest(words, 3)
    >>> frequent.to_counts(), dropped
    ({b'a': 7}, {'n_dropped': 7, 'n_dropped_bytes': 8, 'max_error': 5})
    """
    place = -1 - max(max_words // 2, 1)
    greatest = np.partition(words.counts, place)[place]
    frequent = _select_words(words, np.flatnonzero(words.counts > greatest))
    return frequent, {
        "n_dropped": int(words.counts.sum() - frequent.counts.sum()),
        "n_dropped_bytes": words.n_tokens - frequent.n_tokens,
        "max_error": int(greatest),
    }


def _count_task(source, blocks):
    """Count the pretokens of some blocks; returns the counts, and the bytes read from the disk."""
    counter = WordCounter()
    for block in blocks:
        counter.add_texts(source.texts(block), source.pretokenizer, block.opening)
        counter.n_documents -= block.next_opening == CONTINUES  # the next block counts this one
    special = {source.special_tokens[number]: n for number, n in counter.special_ids.items()}
    fields = {"special_tokens": special, "other_characters": {}}
    counted = CorpusCounts(counter.words(u8), counter.n_documents, counter.n_bytes, **fields)
    return counted, sum(block.n_bytes for block in blocks)


@public
def count(
    source: Source | Files,
    engine: Engine | None = None,
    before: Iterable[CorpusCounts] = (),
    max_words: Natural = 0,
    *,
    pattern: PatternSource = "gpt2",
) -> CorpusCounts:
    """Count the pretokens of files; the result is the same for any number of workers.

    source     a Source; or files, folders and globs, which `pattern` cuts into pretokens
    before     earlier counts with equal `Source.settings`, which are added to the new ones
    max_words  if there are more words than this, the rarest are dropped; 0: no word is dropped

    Words are dropped after each task, and the tasks depend on the files and on `block_bytes` alone.
    For the error see Manku and Motwani (2002), "Approximate Frequency Counts over Data Streams".

    >>> with tempfile.NamedTemporaryFile(suffix=".txt") as file:
    ...     _ = file.write(b"one two two"), file.flush()
    ...     counted = count(file.name, pattern="gpt2")
    >>> counted.words.to_counts()[b" two"], counted.n_documents
    (2, 1)
    """
    engine = engine or Engine()
    if not isinstance(source, Source):
        source = Source(source, pattern)
    counter = WordCounter()
    special_tokens = Counter()
    others = Counter()
    totals = Counter()
    # few large tasks, since one process adds up their counts; but several for each worker
    task_bytes = max(min((source.total_bytes or 0) // 16, TASK_BYTES), source.block_bytes)
    with (
        engine.progress_bar("scan", source.total_bytes, "B") as bar,
        contextlib.closing(source.map(engine, _count_task, task_bytes)) as parts,
    ):
        for part, n_bytes in itertools.chain(zip(before, itertools.repeat(0)), parts):
            counter.add_words(part.words)
            special_tokens.update(part.special_tokens)
            others.update(part.other_characters)
            totals.update({name: getattr(part, name) for name in _SUMMED_FIELDS})
            if max_words and _count_unique(counter.table) > max_words:
                words = counter.words(u8)
                frequent, dropped = _drop_rarest(words, max_words)
                totals.update(dropped)
                rare = _select_words(words, np.flatnonzero(words.counts <= dropped["max_error"]))
                others.update(_count_characters(rare, rare.counts))
                counter = WordCounter()
                counter.add_words(frequent)
            bar.update(n_bytes)
    totals["n_bad_lines"] += source.n_bad_lines.total()
    fields = {"special_tokens": special_tokens, "other_characters": others}
    return CorpusCounts(counter.words(), **fields, **totals)


def compile_counting(source):
    """Compile the kernels of counting a Source, or load them, before processes are forked."""
    source.pretokenizer.find_cut(lambda position, size: b"one", 0, 1)
    counter = WordCounter()
    counter.add_texts([b"one two"], source.pretokenizer)
    counter.words()


def read_counts(path):
    """Read lines of a word, a tab or a space, and its count; yields pairs of word and count.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "words.tsv")
    ...     _ = path.write_text("low\\t5\\n lower\\t2\\n")
    ...     list(read_counts(path))
    [(b'low', 5), (b' lower', 2)]
    """
    with _opened(path) as (file, _):
        lines = file.read().splitlines()
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(rb"(.*)[\t ](\d+)", line)
        if match is None:
            raise InputError(f"{path}: line {number} has no word, tab and count: {line!r:.80}")
        yield match[1], int(match[2])


# Words files: `count_files` writes them, and `train` learns from them.


@kernel
def _hash_words(symbols, offsets, hashes):
    """Hash each word, from the number in `hashes` on, uint64[W]; returns `hashes`."""
    for w in range(len(hashes)):
        for k in range(offsets[w], offsets[w + 1]):
            hashes[w] = _mix(hashes[w], u64(symbols[k]))
    return hashes


def _select_words(words, numbers):
    """Take the words with these numbers, in this order."""
    sizes = words.sizes[numbers]
    offsets = _offsets(sizes)
    shifts = words.offsets[numbers] - offsets[:-1]
    places = np.arange(offsets[-1])
    places += np.repeat(shifts, sizes)
    return Words(words.symbols[places], offsets, words.counts[numbers], words.alphabet)


def _occurring(words):
    """Leave out empty words, and words whose count is 0."""
    return _select_words(words, np.flatnonzero((words.counts > 0) & (words.sizes > 0)))


def _in_order(words):
    """Sort words by their hashes and counts; their order in a table differs between processes."""
    return _select_words(words, np.lexsort((words.counts, words.hashes)))


def _read_arrays(path):
    """Read a .npz file."""
    with _open_raw(path) as raw:
        return dict(np.lib.npyio.NpzFile(raw))


def save_counts(path, counted, settings):
    """Write a words file for counts of a Source with these settings; equal counts, equal bytes."""
    words = _in_order(counted.words)
    header = json.dumps({"counted": counted.described, "settings": settings})
    with atomic_write(path) as file:
        np.savez(
            file,
            header=np.array(header.encode()),
            symbols=words.symbols.astype(u8),
            offsets=words.offsets,
            counts=words.counts,
        )


@public
def load_counts(path: PathName) -> tuple[CorpusCounts, dict]:
    """Read the counts and the settings of a words file.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("low low")
    ...     _ = count_files(folder, Path(folder, "words.npz"))
    ...     counted, settings = load_counts(Path(folder, "words.npz"))
    >>> counted.words.to_counts(), settings["special_tokens"]
    ({b'low': 1, b' low': 1}, [])

    Raises InputError for other files, and for a damaged one.
    """
    with naming_file(path, "not a whole file of words, as `count` writes it"):
        saved = _read_arrays(path)
        header = json.loads(saved["header"].item())
        described = header["counted"]
        words = Words(saved["symbols"].astype(np.int32), saved["offsets"], saved["counts"])
        is_whole = words.offsets[-1] == len(words.symbols) and (words.sizes > 0).all()
        if not is_whole or words.digest != described["words"]:
            raise ValueError("its words do not match their hash")
        return CorpusCounts(**described | {"words": words}), header["settings"]


# Pairs of symbols, or of a substring and the symbol after it


@inline_kernel
def _find_pair(left, right, slots, pairs):
    """Look up a pair in a hash table: returns its slot, or the free slot where it belongs.

    pairs  records that have `left` and `right`
    slots  int32[…]: the numbers of pairs, or -1 in a free slot; the length is a power of two
    """
    slot = _home_slot(u64(left), u64(right), len(slots))
    while slots[slot] >= 0 and (
        pairs[slots[slot]].left != left or pairs[slots[slot]].right != right
    ):
        slot = (slot + ONE) & u64(len(slots) - 1)
    return slot


_SUBSTRING = _record(
    right="int32",  # its last symbol
    left="int32",  # the number of the substring without it
)


@kernel
def _number_pairs(pairs):
    """Number pairs, _SUBSTRING[N], from 0 on in the order of their first occurrences: int64[N]."""
    n_slots = 2
    n = 0
    while 3 * n_slots <= 4 * len(pairs):
        n_slots *= 2
    slots = np.full(n_slots, -1, np.int32)
    numbers = np.empty(len(pairs), i64)
    for k in range(len(pairs)):
        slot = _find_pair(i64(pairs[k].left), i64(pairs[k].right), slots, pairs)
        if slots[slot] < 0:
            slots[slot] = k
            numbers[k] = n
            n += 1
        else:
            numbers[k] = numbers[slots[slot]]
    return numbers


def _list_substrings(words, longest, min_count):
    """List the alphabet, and the substrings of words that occur `min_count` times or more.

    longest  the most symbols of a substring

    Returns Substrings that begin with the whole alphabet. They grow by one symbol at a time, and
    only if they occur often enough.
    """
    n = len(words.alphabet)  # substrings so far
    symbols = words.symbols
    # These have an entry for each position in the words.
    longest_at = symbols.copy()  # the longest substring so far that begins there
    counts = np.repeat(words.counts, words.sizes)
    ends = np.repeat(words.offsets[1:], words.sizes)
    starts = np.arange(len(symbols))  # the positions where those of the last size begin
    totals = np.bincount(symbols, counts, n)
    places = np.full(n, -1)
    places[symbols[::-1]] = starts[::-1]  # of several, the first one stays
    levels = [(places, np.ones(n, i64), totals, np.full(n, -1))]  # each has all of one size
    for size in range(1, min(longest, words.sizes.max(initial=0))):
        # The candidates are those of the last size, each with the symbol after it.
        starts = starts[starts + size < ends[starts]]
        pairs = longest_at[starts].astype(i64) << 32 | symbols[starts + size]
        candidates = _number_pairs(pairs.view(_SUBSTRING))
        totals = np.bincount(candidates, counts[starts])
        # Those that occur often enough get the next numbers.
        is_frequent = totals >= min_count
        number_of = n + np.cumsum(is_frequent) - 1
        stays = is_frequent[candidates]
        starts = starts[stays]
        numbers = number_of[candidates[stays]]
        totals = totals[is_frequent]
        places = np.empty(len(totals), i64)
        places[numbers[::-1] - n] = starts[::-1]
        levels.append((places, np.full_like(places, size + 1), totals, longest_at[places]))
        longest_at[starts] = numbers
        n += len(totals)
    places, sizes, totals, shorter = map(np.concatenate, zip(*levels, strict=True))
    counts = totals.astype(i64)  # sums in float64 are exact below 2**53
    shorter = shorter.astype(np.int32)
    return Substrings(places, sizes.astype(np.int32), counts, shorter, longest_at)


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────
#
# Words -> Learned: merge the most frequent pair of adjacent symbols, again and again. A *cell*
# is the place of one symbol of the alphabet, a *width* is a number of cells, a *position* is the
# index of a cell, an *occurrence* of a pair is the position where its left symbol begins, and a
# *frequency class* consists of all words with the same count.
#
# All words lie in one array of cells, with WORD_END before, between and after them. A symbol that
# covers w cells is written into the first and the last of them (boundary tags: Knuth, The Art of
# Computer Programming, 2.5). So each of its neighbours is one cell away, without links. "lowest",
# first as bytes, then after each of three merges:
#
#     position         0       1       2       3       4       5       6       7
#                  WORD_END    l       o       w       e       s       t    WORD_END
#     e  + s       WORD_END    l       o       w       es      es      t    WORD_END
#     es + t       WORD_END    l       o       w       est  INTERIOR   est  WORD_END
#     w  + est     WORD_END    l       o      west  INTERIOR INTERIOR  west  WORD_END
#
# The second merge makes est, 3 cells wide, at position 4. Its left neighbour is a w, which ends in
# cell 4 - 1. Its right neighbour would begin in cell 4 + 3, but the word ends there. So the new
# pair (w, est) occurs at position 4 - 1, since w is 1 cell wide. That position is also in the list
# of (w, es), as a stale occurrence: cell 3 has w, but cell 3 + 1 does not have es. The count of (w,
# es) falls by the first count of (w, est), so no pair has to be counted anew.
#
# `Learner` is the interface, and `_Learner` is its state. `learn` always merges the best pair.

# The bytes in the order in which GPT-2 displays them and Hugging Face numbers them: first those
# with a visible character in Latin-1, then the others.
BYTE_ORDER = sorted(range(256), key=lambda number: number == 0x20 or not chr(number).isprintable())

WORD_END = -1  # in cells, between two words
INTERIOR = -2  # in cells, inside a symbol of three cells or more, not at its ends
LEFT = i64(0)
RIGHT = i64(1)
FORBIDDEN = -1  # the `start` of a pair that cannot merge
OUTDATED = -1  # the length of a list that lacks occurrences, which a split has made
LEAST_SCORE = 5e-324  # the least number above 0
MERGES_PER_ROUND = 256  # between rounds the progress bar moves, and Ctrl-C takes effect
# Bytes or characters of a token. Without this limit, a text of one letter would give tokens of half
# its length.
LONGEST_LEARNT = 1 << 16
MAX_CELLS = 2**31 - 1  # int32 holds any position


@public
class Learned(NamedTuple):
    """Tokens, and how they were learnt; None for a field that the family does not have.

    If tokens are made by merges, they are in the order of the symbols: first the alphabet, then one
    for each merge. A Unigram has its best tokens first. A WordPiece has pairs, but no merges, since
    a word is not cut by them.

    >>> learned = learn(Words.from_counts({b"aaab": 3, b"ab": 1}), 258)
    >>> learned.merges, learned.tokens[-2:]
    ([(b'a', b'a'), (b'a', b'b')], [b'aa', b'ab'])
    """

    tokens: list[bytes]
    alphabet: Sequence[bytes]
    merges: list[Merge] | None = None  # pairs of bytes
    scores: np.ndarray | None = None  # float64[V]   logarithms of the tokens' probabilities
    pairs: np.ndarray | None = None  # int32[M, 2]   the two symbols that merged
    counts: np.ndarray | None = None  # int64[M]  occurrences of the pair when it was merged
    n_tokens: np.ndarray | None = None  # int64[M + 1]  of the corpus, at first and after each merge
    longest_word: int = 0  # its characters, in the corpus of a WordPiece

    __repr__ = brief_repr


_CLASS = _record(
    stop="int64",  # where the words of the next class begin
    count="int64",  # the count of each of its words
)
_SYMBOL = _record(
    left="int32",  # the pair that was merged; 0, 0 for the alphabet
    right="int32",
    count="int64",  # occurrences of this pair in the corpus when it was merged
    n_tokens="int64",  # symbols in the corpus after this merge
    width="int64",  # cells
    length="int64",  # bytes, or characters
    start="int64",  # its bytes are spelled[start : start + n_bytes]; the next symbol's follow
    n_bytes="int64",
    rank="int64",  # on a tie the smaller rank goes first; with equal ranks, the bytes decide
)
_PAIR = _record(
    left="int32",
    right="int32",
    count="int64",  # in the corpus
    # occurrences[start : start + length], ascending: all occurrences, and stale ones
    start="int64",  # or FORBIDDEN
    length="int64",  # or OUTDATED
)
_QUEUED = _record(score="float64", count="int64", pair="int64")
_NEIGHBOUR = _record(
    n_occurrences="int64",  # in all words, next to one symbol on one side; 0 when not in use
    count="int64",  # in the corpus: occurrences times counts of words; 0 when not in use
    write_at="int64",  # where to write the next occurrence of the pair with this neighbour
    offset="int64",  # from the position of the symbol back to that of the pair
)


@struct
class _Learner:
    """The state of the merge loop. Kernels modify it, and replace arrays that are too short.

    All occurrences of a pair are created by the merge that makes its newer symbol. So each list of
    occurrences is written once, and a count only falls. When a and b are merged into ab, the count
    of (x, a) falls by the first count of (x, ab), and the count of (b, y) falls by the first count
    of (ab, y). So counts are exact at the price of one look-up for each new pair, and a list is
    read once, when its pair is merged.

    Most pairs are rare, so the heap has only those whose score is at least a threshold: about ten
    thousand pairs, not millions. It is not updated when a count falls: a pair that reaches the top
    with an outdated count moves down. A score that depends on the totals of the two symbols may
    rise as well. A merge changes the counts and the totals only of pairs that have one of the two
    merged symbols. So all of these are pushed again. Entries with too low a score are dropped when
    they reach the top.

    After a split a pair may gain occurrences. It is then pushed again, and its list is outdated:
    when the pair merges, its occurrences are searched for in all cells.
    """

    cells: np.ndarray  # int32[C]  all words, the most frequent first; see above
    classes: np.ndarray  # _CLASS[F]
    symbols: np.ndarray  # _SYMBOL[V + 1]
    spelled: np.ndarray  # uint8[…]        the bytes of all symbols, and PADDING
    pairs: np.ndarray  # _PAIR[P]
    slots: np.ndarray  # int32[…]      a hash table of pairs, by symbols; -1 in a free slot
    heap: np.ndarray  # _QUEUED[H]  the best pair is the first
    # a merge adds at most two for each symbol that it removes; splits add more
    occurrences: np.ndarray  # int32[3 C]
    # for one symbol, on its left and on its right: the record of each neighbour; the neighbour at
    # each occurrence; and the list of all, each one once
    neighbours: np.ndarray  # _NEIGHBOUR[2, V]
    beside: np.ndarray  # int32[2, C / 2]
    distinct: np.ndarray  # int32[2, V]
    totals: np.ndarray  # int64[V + 1]  the counts of symbols; not valid if the score needs none
    # lists of the pairs of a symbol, if the score needs them. Entry 2 k + side is pair k
    heads: np.ndarray  # int64[V + 1]   symbol -> its first entry, or -1
    links: np.ndarray  # int64[2 P]     entry -> the next one, or -1
    n_symbols: np.ndarray  # int64[1]      an array, since Python reads it, too
    score: Callable  # a cfunc: all of them have one type, so the kernels are compiled once
    by_count: bool  # the score of a pair is its count
    by_tokens: bool  # the score depends on the number of tokens in the corpus
    greatest_first: bool  # the greatest bytes, not the least ones
    min_frequency: int
    longest_token: int  # its bytes, or characters
    n_pairs: int = 0
    n_occurrences: int = 0
    threshold: float = np.inf  # the least score of pairs in the heap
    heap_size: int = 0
    n_linked: int = 0  # the number of pairs that are in the lists; these are the first ones
    first_new: int = 0  # the number of the first pair that the last merge has made


@inner_kernel
def _precedes(pair, other, learner):
    """Tell whether `pair` goes before `other`, of equal count: compare the left symbols first.

    If the least bytes go first, the greater ones are looked for in the other pair.
    """
    pairs = learner.pairs
    symbols = learner.symbols
    spelled = learner.spelled
    a = pairs[pair].left
    b = pairs[other].left
    if a == b:
        a = pairs[pair].right
        b = pairs[other].right
    if a == b or symbols[a].rank != symbols[b].rank:
        return symbols[a].rank < symbols[b].rank
    if not learner.greatest_first:
        a, b = b, a
    i = symbols[a].start
    j = symbols[b].start
    i_end = i + symbols[a].n_bytes
    j_end = j + symbols[b].n_bytes
    while i < i_end and j < j_end and spelled[i] == spelled[j]:
        i += 1
        j += 1
    if j == j_end:
        # two symbols of an alphabet may have the same bytes
        return i < i_end or (a < b) == learner.greatest_first
    return i < i_end and spelled[i] > spelled[j]


@inline_kernel
def _score(pair, learner):
    """Return the score of a pair: 0 if it is rare or forbidden, inf if it is NaN."""
    if pair.count < learner.min_frequency or pair.start < 0:
        return 0.0
    if learner.by_count:
        return np.float64(pair.count)
    a = pair.left
    b = pair.right
    symbols = learner.symbols
    totals = learner.totals
    size = symbols[a].n_bytes + symbols[b].n_bytes
    n_tokens = symbols[learner.n_symbols[0] - 1].n_tokens
    score = learner.score(pair.count, totals[a], totals[b], size, n_tokens)
    return score if score < np.inf else np.inf


@inline_kernel
def _goes_first(score, count, pair, other, learner):
    """Tell whether a pair goes before a queued one: the greater score, then the greater count."""
    if score != other.score:
        return score > other.score
    if count != other.count:
        return count > other.count
    return _precedes(pair, other.pair, learner)


@inner_kernel
def _sift_up(place, pair, score, count, learner):
    """Put a pair at a free place of the heap, and move it up while it goes before its parent."""
    heap = learner.heap
    while place > 0:
        parent = (place - 1) >> 1
        if not _goes_first(score, count, pair, heap[parent], learner):
            break
        heap[place] = heap[parent]
        place = parent
    entry = heap[place]
    entry.score = score
    entry.count = count
    entry.pair = pair


@inner_kernel
def _push_if_due(number, learner):
    """Push a pair onto the heap unless its score is below the threshold."""
    pair = learner.pairs[number]
    score = _score(pair, learner)
    if score >= learner.threshold:
        learner.heap = _reserve(learner.heap, learner.heap_size + 1)
        learner.heap_size += 1
        _sift_up(learner.heap_size - 1, number, score, pair.count, learner)


@inner_kernel
def _pop(learner):
    """Remove the first pair: the free place moves down to a leaf, and the last pair gets it."""
    learner.heap_size -= 1
    heap = learner.heap
    size = learner.heap_size
    place = 0
    child = 1
    while child < size:
        if child + 1 < size:
            other = heap[child + 1]
            child += _goes_first(other.score, other.count, other.pair, heap[child], learner)
        heap[place] = heap[child]
        place = child
        child = 2 * child + 1
    last = heap[size]
    _sift_up(place, last.pair, last.score, last.count, learner)


@inner_kernel
def _push_due_pairs(first, learner):
    """Push the pairs from number `first` on, unless their scores are below the threshold."""
    pairs = learner.pairs
    by_count = learner.by_count
    threshold = learner.threshold
    for number in range(first, learner.n_pairs):
        # The count is tested here, since each call with the learner counts a reference to it.
        if not by_count or pairs[number].count >= threshold:
            _push_if_due(number, learner)


@inner_kernel
def _refill_heap(learner):
    """Set the threshold to half of the greatest score, and make the heap of the pairs above it."""
    pairs = learner.pairs
    greatest = 0.0
    for pair in range(learner.n_pairs):
        greatest = max(greatest, _score(pairs[pair], learner))
    learner.threshold = max(greatest / 2, LEAST_SCORE)
    learner.heap_size = 0
    _push_due_pairs(ZERO, learner)


@inline_kernel
def _find_class(position, first, classes):
    """Find the frequency class of the word in this cell, from number `first` on, by bisection."""
    last = len(classes) - 1
    while first < last:
        middle = (first + last) >> 1
        if classes[middle].stop <= position:
            first = middle + 1
        else:
            last = middle
    return first


@inner_kernel
def _reserve_pairs(n, learner):
    """Make room for n more pairs."""
    learner.pairs = pairs = _reserve(learner.pairs, learner.n_pairs + n)
    size = len(learner.slots)
    while 2 * (learner.n_pairs + n) > size:
        size *= 2
    if size > len(learner.slots):
        slots = np.full(size, -1, np.int32)
        for number in range(learner.n_pairs):
            pair = pairs[number]
            slots[_find_pair(i64(pair.left), i64(pair.right), slots, pairs)] = number
        learner.slots = slots


@inline_kernel
def _forbid_if_long(pair, learner):
    """Forbid a pair whose token would be too long."""
    symbols = learner.symbols
    if symbols[pair.left].length + symbols[pair.right].length > learner.longest_token:
        pair.start = FORBIDDEN


@kernel
def _pair_number(left, right, learner):
    """Return the number of a pair, which gets a record if it never occurred; the table may move."""
    _reserve_pairs(i64(1), learner)
    slots = learner.slots
    slot = _find_pair(left, right, slots, learner.pairs)
    if slots[slot] < 0:
        slots[slot] = learner.n_pairs
        new = learner.pairs[learner.n_pairs]
        new.left = left
        new.right = right
        new.count = new.start = new.length = 0
        _forbid_if_long(new, learner)
        learner.n_pairs += 1
    return i64(slots[slot])


@inner_kernel
def _list_occurrences(pair, learner):
    """List the positions of a pair, ascending, with stale ones."""
    cells = learner.cells
    if pair.length != OUTDATED:
        return learner.occurrences[pair.start : pair.start + pair.length]
    width = learner.symbols[pair.left].width
    is_pair = (cells[:-width] == pair.left) & (cells[width:] == pair.right)
    return np.flatnonzero(is_pair).astype(np.int32)


@inner_kernel
def _merge_places(pair, c, occurrences, learner):
    """Write c over a pair, and count the neighbours: returns the distinct ones, left and right.

    pair         its record; its count and its length become those of c
    occurrences  int32[…]: its positions, which become those of c; stale ones are dropped

    The positions are read from left to right: in "aaa" the second occurrence of (a, a) is stale
    when its turn comes. Two adjacent c are counted once, as the right neighbour of the first c; the
    left neighbour of the second one counts as WORD_END.
    """
    cells = learner.cells
    classes = learner.classes
    a = pair.left
    b = pair.right
    width_a = learner.symbols[a].width
    width = learner.symbols[c].width
    neighbours = learner.neighbours
    beside = learner.beside
    distinct = learner.distinct
    n_distinct = np.zeros(2, i64)
    n = total = count = 0
    class_number = class_stop = 0
    for k in range(len(occurrences)):
        # Both ends are loaded early, so that no step waits for them.
        if k + 16 < len(occurrences):
            ahead = occurrences[k + 16]
            prefetch(cells, ahead - 1)
            prefetch(cells, min(ahead + width, len(cells) - 1))
        position = occurrences[k]
        middle = position + width_a
        after = position + width
        is_a = cells[position] == a and cells[middle - 1] == a
        if not is_a or cells[middle] != b:
            continue
        cells[middle - 1] = cells[middle] = INTERIOR
        cells[position] = cells[after - 1] = c
        if position >= class_stop:
            class_number = _find_class(position, class_number, classes)
            class_stop = classes[class_number].stop
            count = classes[class_number].count
        total += count
        x = cells[position - 1]
        y = cells[after]
        beside[LEFT, n] = WORD_END if x == c else x
        beside[RIGHT, n] = c if y == a and cells[after + width_a] == b else y
        for side in range(2):
            x = beside[side, n]
            if x != WORD_END:
                neighbour = neighbours[side, x]
                distinct[side, n_distinct[side]] = x  # stays if x is new, and is counted
                n_distinct[side] += neighbour.n_occurrences == 0
                neighbour.n_occurrences += 1
                neighbour.count += count
        occurrences[n] = position
        n += 1
    pair.length = n
    pair.count = total
    return n_distinct


@inline_kernel
def _left_to_right(x, side, symbol):
    """Return x and a symbol from left to right; x is on this side of the symbol."""
    return (x, symbol) if side == LEFT else (symbol, x)


@inner_kernel
def _add_new_pairs(side, c, n_distinct, positions, learner):
    """Add the pairs of symbol c, at these positions, and its counted neighbours on one side."""
    _reserve_pairs(n_distinct, learner)
    symbols = learner.symbols
    pairs = learner.pairs
    slots = learner.slots
    stop = learner.n_occurrences
    neighbours = learner.neighbours[side]
    beside = learner.beside[side]
    distinct = learner.distinct[side]
    occurrences = learner.occurrences
    # This part of c was beside the neighbour.
    part = i64(symbols[c].left if side == LEFT else symbols[c].right)
    for k in range(n_distinct):
        x = i64(distinct[k])
        neighbour = neighbours[x]
        # Before the merge the neighbour was x or, if it is a second c on the right, the left of c.
        # The pair of both loses these occurrences.
        before = i64(symbols[c].left) if x == c else x
        left, right = _left_to_right(before, side, part)
        loser = slots[_find_pair(left, right, slots, pairs)]
        pairs[loser].count -= neighbour.count
        left, right = _left_to_right(x, side, c)
        slots[_find_pair(left, right, slots, pairs)] = learner.n_pairs
        new = pairs[learner.n_pairs]
        learner.n_pairs += 1
        new.left = left
        new.right = right
        new.count = neighbour.count
        new.start = stop
        new.length = neighbour.n_occurrences
        _forbid_if_long(new, learner)
        neighbour.write_at = stop
        neighbour.offset = symbols[x].width * (side == LEFT)
        stop += neighbour.n_occurrences
        neighbour.n_occurrences = neighbour.count = 0
    learner.n_occurrences = stop
    for k in range(len(positions)):
        if beside[k] != WORD_END:
            neighbour = neighbours[beside[k]]
            occurrences[neighbour.write_at] = positions[k] - neighbour.offset
            neighbour.write_at += 1


@kernel
def _add_first_pairs(learner):
    """Add the pairs of the alphabet: first count each pair, then write its occurrences.

    The memory for all pairs and their neighbours is reserved here: NumPy would request huge pages,
    which the first learning of a process would wait for.
    """
    cells = learner.cells
    classes = learner.classes
    occurrences = learner.occurrences = _reserve(learner.occurrences, 3 * len(cells))
    learner.beside = np.empty((2, len(cells) // 2), np.int32)
    learner.pairs = pairs = _reserve(learner.pairs, len(cells) // 4 + 65536)
    _reserve_pairs(i64(1 << 16), learner)  # in their hash table; there is more room in `pairs`
    slots = learner.slots
    class_number = 0
    pair_of = np.full(len(cells), -1, np.int32)  # at each position
    for position in range(1, len(cells) - 1):
        class_number += classes[class_number].stop <= position
        left = i64(cells[position])
        right = i64(cells[position + 1])
        if left == WORD_END or right == WORD_END:
            continue
        number = i64(slots[_find_pair(left, right, slots, pairs)])
        if number < 0:
            number = _pair_number(left, right, learner)
            pairs = learner.pairs
            slots = learner.slots
        pair = pairs[number]
        pair.count += classes[class_number].count
        pair.length += 1
        pair_of[position] = number
    # Each list is filled from its end.
    for number in range(learner.n_pairs):
        learner.n_occurrences += pairs[number].length
        pairs[number].start = learner.n_occurrences
    for position in range(len(cells) - 1, 0, -1):
        if pair_of[position] >= 0:
            pair = pairs[pair_of[position]]
            pair.start -= 1
            occurrences[pair.start] = position
    # A forbidden pair has FORBIDDEN in place of its start.
    for number in range(learner.n_pairs):
        _forbid_if_long(pairs[number], learner)


@inner_kernel
def _new_symbol(a, b, learner):
    """Add the symbol that joins a and b; returns its number."""
    symbols = learner.symbols
    c = learner.n_symbols[0]
    learner.n_symbols[0] += 1
    new = symbols[c]
    new.left = a
    new.right = b
    new.width = symbols[a].width + symbols[b].width
    new.length = symbols[a].length + symbols[b].length
    new.n_bytes = symbols[a].n_bytes + symbols[b].n_bytes
    end = new.start
    learner.spelled = _reserve(learner.spelled, end + new.n_bytes + PADDING)
    spelled = learner.spelled
    for symbol in (a, b):
        start = symbols[symbol].start
        end = _copy_bytes(spelled, start, start + symbols[symbol].n_bytes, spelled, end)
    symbols[c + 1].start = end
    return c


@inner_kernel
def _link_pairs(learner):
    """Put new pairs into the lists of their two symbols."""
    learner.links = _reserve(learner.links, 2 * learner.n_pairs)
    pairs = learner.pairs
    heads = learner.heads
    links = learner.links
    for k in range(2 * learner.n_linked, 2 * learner.n_pairs):
        pair = pairs[k >> 1]
        symbol = pair.right if k & 1 else pair.left
        links[k] = heads[symbol]
        heads[symbol] = k
    learner.n_linked = learner.n_pairs


@inner_kernel
def _push_again(symbol, learner):
    """Push the pairs of a symbol whose total has changed, as scores may rise."""
    links = learner.links
    k = learner.heads[symbol]
    while k >= 0:
        _push_if_due(k >> 1, learner)
        k = links[k]


@kernel
def _apply_merge(number, learner):
    """Merge a pair everywhere. Its record is not used after new pairs: the table may have moved."""
    symbols = learner.symbols
    pair = learner.pairs[number]
    totals = learner.totals
    a = i64(pair.left)
    b = i64(pair.right)
    c = _new_symbol(a, b, learner)
    symbols[c].count = pair.count
    positions = _list_occurrences(pair, learner)
    n_distinct = _merge_places(pair, c, positions, learner)
    positions = positions[: pair.length]
    symbols[c].n_tokens = symbols[c - 1].n_tokens - pair.count
    totals[c] = pair.count
    totals[a] -= pair.count
    totals[b] -= pair.count
    most = learner.n_occurrences + 2 * len(positions)  # may exceed the room after splits
    learner.occurrences = _reserve(learner.occurrences, most)
    learner.first_new = first_new = learner.n_pairs
    _add_new_pairs(LEFT, c, n_distinct[LEFT], positions, learner)
    _add_new_pairs(RIGHT, c, n_distinct[RIGHT], positions, learner)
    _push_due_pairs(first_new, learner)
    learner.pairs[number].count = 0  # it was the count of c so far
    if len(learner.heads):
        _link_pairs(learner)
        _push_again(a, learner)
        if a != b:
            _push_again(b, learner)
    if learner.by_tokens:
        learner.heap_size = 0  # all scores have changed


@kernel
def _merge_until(goal, learner):
    """Merge the best pair until there are `goal` symbols, no pair is left, or its score is inf.

    Returns the fields of the next Pair; -1, -1, 0, 0 if there is none.
    """
    while True:
        # In a heap as large as this, most entries are outdated.
        if learner.heap_size == 0 or learner.heap_size > learner.n_pairs:
            _refill_heap(learner)
            if learner.heap_size == 0:
                return -1, -1, 0, 0.0
        first = learner.heap[0]
        queued = first.score
        number = first.pair
        pair = learner.pairs[number]
        score = _score(pair, learner)
        is_best = score == queued and pair.count == first.count
        if is_best and (learner.n_symbols[0] >= goal or score == np.inf):
            return int(pair.left), int(pair.right), int(pair.count), float(score)
        _pop(learner)
        if is_best:
            _apply_merge(number, learner)
        elif score <= queued:  # otherwise the heap has the pair with the greater score as well
            _push_if_due(number, learner)


@kernel
def _merge_pair(left, right, learner):
    """Merge two symbols: returns whether they can merge."""
    number = _pair_number(left, right, learner)
    can_merge = learner.pairs[number].start >= 0
    if can_merge:
        _apply_merge(number, learner)
    return can_merge


@kernel
def _changed_pairs(learner):
    """List the pairs whose counts the last merge changed, _PAIR[…].

    They are the merged pair (a, b), the new pairs of its symbol c, and for each of these the pair
    that lost its occurrences: (x, a) for (x, c), and (b, y) for (c, y).
    """
    pairs = learner.pairs
    slots = learner.slots
    c = learner.n_symbols[0] - 1
    a = i64(learner.symbols[c].left)
    b = i64(learner.symbols[c].right)
    n_new = learner.n_pairs - learner.first_new
    changed = np.empty(2 * n_new + 1, _PAIR)
    changed[0] = pairs[slots[_find_pair(a, b, slots, pairs)]]
    for k in range(n_new):
        new = pairs[learner.first_new + k]
        left = i64(new.left)
        right = a
        if left == c:
            left = b
            right = a if new.right == c else i64(new.right)
        changed[2 * k + 1] = new
        changed[2 * k + 2] = pairs[slots[_find_pair(left, right, slots, pairs)]]
    return changed


@kernel
def _count_pair(left, right, learner):
    """Return the count of a pair, without a new record for one that never occurred."""
    if learner.n_pairs == 0:
        return ZERO
    number = learner.slots[_find_pair(left, right, learner.slots, learner.pairs)]
    return learner.pairs[number].count if number >= 0 else ZERO


@kernel
def _list_pairs(learner):
    """Return all pairs, _PAIR[P]: a view, not a copy."""
    return learner.pairs[: learner.n_pairs]


@kernel
def _score_pairs(pairs, learner):
    """Compute the scores of pairs, float64[P]."""
    scores = np.empty(len(pairs))
    for k in range(len(pairs)):
        scores[k] = _score(pairs[k], learner)
    return scores


@inner_kernel
def _change_count(left, right, change, learner):
    """Change the count of a pair at the place of a split."""
    if left == WORD_END or right == WORD_END:
        return
    number = _pair_number(left, right, learner)
    pair = learner.pairs[number]
    pair.count += change
    pair.length = OUTDATED
    _push_if_due(number, learner)


@kernel
def _split_symbol(symbol, parts, learner):
    """Write other symbols, int64[…], over a symbol; returns how often it was in the corpus."""
    cells = learner.cells
    symbols = learner.symbols
    totals = learner.totals
    width = symbols[symbol].width
    total = 0
    for position in range(len(cells)):
        if cells[position] != symbol:
            continue
        count = learner.classes[_find_class(position, ZERO, learner.classes)].count
        left = i64(cells[position - 1])
        after = i64(cells[position + width])
        _change_count(left, symbol, -count, learner)
        _change_count(symbol, after, -count, learner)
        for part in parts:
            cells[position] = part
            position += symbols[part].width  # moves the position within this iteration only
            cells[position - 1] = part
            _change_count(left, part, count, learner)
            left = part
        _change_count(left, after, count, learner)
        total += count
    symbols[learner.n_symbols[0] - 1].n_tokens += (len(parts) - 1) * total
    totals[symbol] = 0
    for part in parts:
        totals[part] += total
    if len(learner.heads):  # any score may have changed, so the heap is made again
        learner.heap_size = 0
        learner.threshold = np.inf
    return int(total)


@kernel
def _copy_words(symbols, offsets, order, cells):
    """Copy words in an order, int64[W], into cells full of WORD_END, which stay between words."""
    position = 1
    for word in order:
        for n in range(offsets[word], offsets[word + 1]):
            cells[position] = symbols[n]
            position += 1
        position += 1


def _make_cells(words):
    """Write words, the most frequent first, into cells: returns these, and _CLASS[F]."""
    order = np.argsort(-words.counts, kind="stable")
    cells = np.full(1 + len(words.symbols) + len(order), WORD_END, np.int32)
    _copy_words(words.symbols, words.offsets, order, cells)
    counts = words.counts[order]
    stops = np.cumsum(words.sizes[order] + 1) + 1
    last = np.flatnonzero(np.append(np.diff(counts), 1))  # the last word of each class
    classes = np.empty(len(last), _CLASS)
    classes["stop"] = stops[last]
    classes["count"] = counts[last]
    return cells, classes


def _make_symbols(words, n_symbols, tie_break):
    """Make the table of symbols, which has the alphabet and room for `n_symbols`."""
    alphabet = words.alphabet
    a = len(alphabet)
    symbols = np.zeros(n_symbols + 1, _SYMBOL)
    letters = symbols[:a]
    letters["width"] = 1
    letters["n_bytes"] = [*map(len, alphabet)]
    letters["length"] = letters["n_bytes"]
    if {*alphabet}.isdisjoint(BYTES[128:]):  # else the tokens are made of bytes
        letters["length"] = [len(token.decode("utf-8", "replace")) for token in alphabet]
    symbols["start"][1 : a + 1] = np.cumsum(letters["n_bytes"])
    letters["n_tokens"][-1] = words.n_tokens  # before the first merge
    if tie_break in ("ids", "symbols"):
        symbols["rank"] = range(len(symbols))
        if tie_break == "ids" and tuple(alphabet) == BYTES:
            letters["rank"][BYTE_ORDER] = range(a)
    return symbols


def _check_words(words, n_symbols):
    """Raise InputError for words that cannot be learnt from, or too few symbols."""
    a = len(words.alphabet)
    require(len(words.symbols), "there are no words to learn from")
    n = len(words.symbols) + len(words.counts)
    require(n < MAX_CELLS, "there are too many distinct words: `max_words` drops rare ones")
    fits = 0 <= words.symbols.min() <= words.symbols.max() < a
    require(fits, f"the symbols of words must be 0 to {a - 1}, their alphabet")
    _require_room(a, n_symbols)


def _require_room(n_letters, n_symbols):
    """Raise InputError if an alphabet of `n_letters` does not fit among `n_symbols` symbols."""
    require(
        n_symbols >= n_letters,
        f"the alphabet has {n_letters:,} symbols, but the vocabulary has room for "
        f"{max(n_symbols, 0):,}: `vocab_size` must be larger by {n_letters - n_symbols:,} or, for "
        "characters, `coverage` lower",
    )


def _likelihood(count, left, right, size, n_tokens=0):
    """The score of Schuster and Nakajima (2012), "Japanese and Korean Voice Search"."""
    return count / (float(left) * float(right))


TIE_BREAKS = ("bytes", "least-bytes", "ids", "symbols")
SCORES = {"count": None, "likelihood": _likelihood}  # None: no function is called
_SCORE_TYPE = "float64(int64, int64, int64, int64, int64)"


@functools.cache
def _compile_score(score):
    """Compile a score to a function that kernels call by its address; also counts its parameters.

    The function takes all five numbers, and returns inf if the score raises an error.
    """
    function = inspect.unwrap(score)  # Numba may have compiled it already
    require(hasattr(function, "__code__"), f"a `score` is a function in Python, not {score!r:.99}")
    n = function.__code__.co_argcount - len(function.__defaults__ or ())
    require(n in (2, 4, 5), f"a `score` takes 2, 4 or 5 numbers, not {n}")
    if score in SCORES.values() and COMPILES:  # a score of this module takes all five numbers
        with contextlib.suppress(RuntimeError):  # no folder for the cache is writable
            return numba.cfunc(_SCORE_TYPE, cache=True, error_model="numpy")(score), n
    compiled = numba.njit(error_model="numpy")(function)

    def call(count, left, right, size, n_tokens):
        try:
            if n == 2:
                return float(compiled(count, size))
            if n == 4:
                return float(compiled(count, left, right, size))
            return float(compiled(count, left, right, size, n_tokens))
        except Exception:
            return np.inf

    return (numba.cfunc(_SCORE_TYPE)(call) if COMPILES else call), n


@public
class Pair(NamedTuple):
    """Two adjacent symbols, the count of the pair in the corpus, and its score.

    For several pairs, each field is an array.

    >>> Learner(Words.from_counts({b"ab": 3}), 300).best()
    Pair(left=97, right=98, count=3, score=3.0)
    """

    left: int | np.ndarray  # or int32[P]
    right: int | np.ndarray  # or int32[P]
    count: int | np.ndarray  # or int64[P]
    score: float | np.ndarray  # or float64[P]


@public
class Learner:
    """Words on which you choose the merges, for training algorithms of your own.

    `learn` merges the best pair again and again.

    words          the words of a corpus, which stay as they are
    n_symbols      how many symbols there may be, including the alphabet
    score          the pair with the greatest score is the best. "count" is the number of its
                   occurrences; "likelihood" is count(ab) / (count(a) * count(b)) in float64; or a
                   function of two or four numbers, see below
    tie_break      the order of pairs with equal scores and counts. "bytes": the greatest left bytes
                   first, then the greatest right bytes (the rule of Stanford's CS336); of equal
                   bytes the smaller id. "least-bytes": the smallest left bytes first, then the
                   smallest right bytes, as a heap of (-count, pair) has them. "ids": the smallest
                   left id first, then the smallest right id (the rule of Hugging Face, which
                   numbers the bytes in BYTE_ORDER). "symbols": the same with the numbers of the
                   symbols (the rule of rustbpe, which numbers the bytes from 0 to 255)
    min_frequency  a pair that occurs less often in the corpus has the score 0
    longest_token  a pair whose token would be longer cannot merge: bytes, or characters if the
                   alphabet has none of the bytes from 0x80 on; at most LONGEST_LEARNT

    A score of your own is a Python function that Numba can compile, with these parameters, whatever
    their names are, and perhaps others that have defaults:

    score(count, size)  the occurrences of the pair in the corpus, and the bytes of both symbols.
                   The score must not fall when the count rises. It costs almost nothing
    score(count, left, right, size)  also the occurrences of the two symbols. The score may rise and
                   fall with each number. Each merge computes the scores of all pairs with the two
                   symbols, so learning takes much longer
    score(count, left, right, size, n_tokens)  also the tokens of the whole corpus, as for an
                   entropy. Each merge computes the scores of all pairs, which become more: 1,000
                   merges on 1 MB of text take 1.5 s, not 0.02, and 3,000 take 7

    The score must depend on its arguments alone, not on a random number. A global variable keeps
    the value that it had when the score was first used. A pair whose score is 0 or less is
    never the best, and without a best pair learning ends. If the score of a pair is NaN or inf, or
    raises an error, then `best` and `merge_best` raise InputError instead of choosing a pair.

    A learner is for one thread at a time. Any pair may merge at any time, even where it does not
    occur. So learners of several corpora stay in step if each merge is made in all of them: a
    symbol then has one number in all. Merges and splits can be made again on other words.

    Wrong arguments raise InputError and change nothing: a symbol that does not exist, a pair that
    is forbidden or longer than `longest_token`, and more symbols than `n_symbols`. After an
    interrupt the learner can be used, and `n_symbols` tells how many merges it made. Do not use it
    after a MemoryError, or after an interrupt of kernels that are not compiled. It cannot be
    copied: make the same merges in a new one.

    In this BPE, no token has a byte after a "b":

    >>> learner = Learner(Words.from_counts({b"abab": 3, b"aaab": 2}), 300)
    >>> while pair := learner.best():
    ...     if b"b" in learner.token(pair.left):
    ...         learner.forbid(pair.left, pair.right)
    ...     else:
    ...         symbol = learner.merge(pair.left, pair.right)
    >>> learner.learned().merges, learner.n_tokens
    ([(b'a', b'b'), (b'a', b'ab'), (b'a', b'aab')], 8)
    >>> words = Words.from_counts({b"xyxyz": 3, b"ab": 5})
    >>> Learner(words, 300, score=lambda count, size: count * size**2).best()
    Pair(left=120, right=121, count=6, score=24.0)
    """

    def __init__(
        self,
        words: Words,
        n_symbols: int,
        *,
        score: str | Callable = "count",
        tie_break: str = "bytes",
        min_frequency: int = 1,
        longest_token: Positive = LONGEST_LEARNT,
    ):
        if isinstance(score, str):
            require_known("`score`", score, SCORES)
            score = SCORES[score]
        require_known("`tie_break`", tie_break, TIE_BREAKS)
        _check_words(words, n_symbols)
        self.alphabet = words.alphabet
        self.has_split = False
        self._tokens = list(words.alphabet)
        self._symbols_by_token = {}  # of the first `_n_named` symbols
        self._n_named = 0
        self._counts = words.counts
        # Python cannot read the fields of the state. It reads those arrays that no kernel replaces.
        self._n_symbols = np.array([len(words.alphabet)])
        self._symbols = _make_symbols(words, n_symbols, tie_break)
        self._cells, classes = _make_cells(words)
        n = len(self._symbols)
        totals = np.zeros(n, i64)
        if score:
            np.add.at(totals, words.symbols, np.repeat(words.counts, words.sizes))
        function, n_arguments = _compile_score(score or _likelihood)
        needs_lists = score and n_arguments > 2
        self._state = _Learner(
            cells=self._cells,
            classes=classes,
            symbols=self._symbols,
            spelled=np.frombuffer(b"".join(words.alphabet), u8).copy(),
            pairs=np.empty(0, _PAIR),
            slots=np.full(2, -1, np.int32),
            heap=np.empty(65536, _QUEUED),
            occurrences=np.empty(0, np.int32),
            neighbours=np.zeros((2, n), _NEIGHBOUR),
            beside=np.empty((2, 0), np.int32),
            distinct=np.empty((2, n), np.int32),
            totals=totals,
            heads=np.full(n if needs_lists else 0, -1),
            links=np.empty(0, i64),
            n_symbols=self._n_symbols,
            score=function,
            by_count=score is None,
            by_tokens=n_arguments == 5,
            greatest_first=tie_break == "bytes",
            min_frequency=min(max(min_frequency, 1), 2**63 - 1),
            longest_token=min(longest_token, LONGEST_LEARNT),
        )
        _add_first_pairs(self._state)

    def __reduce__(self):
        raise InputError("a Learner cannot be copied: make the same merges in a new one")

    @property
    def n_symbols(self) -> int:
        """The number of symbols: the alphabet, and one for each merge."""
        return int(self._n_symbols[0])

    @property
    def n_tokens(self) -> int:
        """The number of tokens in the corpus: the sizes of the words times their counts."""
        return int(self._symbols["n_tokens"][self.n_symbols - 1])

    def token(self, symbol: int) -> bytes:
        """Return the bytes of a symbol."""
        return self._all_tokens()[self._check_symbol(symbol)]

    def symbol(self, token: bytes) -> int | None:
        """Return the symbol with these bytes, the first of several; or None.

        >>> learner = Learner(Words.from_counts({b"ab": 3}), 300)
        >>> learner.merge(97, 98), learner.symbol(b"ab"), learner.symbol(b"ba")
        (256, 256, None)
        """
        tokens = self._all_tokens()
        for number in range(self._n_named, len(tokens)):
            self._symbols_by_token.setdefault(tokens[number], number)
        self._n_named = len(tokens)
        return self._symbols_by_token.get(token)

    def best(self) -> Pair | None:
        """Find the pair of the greatest score, or None if no pair has a score above 0.

        >>> Learner(Words.from_counts({b"aab": 3}), 300).best()
        Pair(left=97, right=98, count=3, score=3.0)
        """
        return self._merge_until(0)

    def pairs(self) -> Pair:
        """List all pairs that occur and may merge, as arrays, in the order of their symbols.

        So you can sample from them, or take the best ten. A score of 0 or less hides a pair from
        `best`, and a score of NaN is inf.

        >>> pairs = Learner(Words.from_counts({b"aab": 3, b"ba": 1}), 300).pairs()
        >>> pairs.left.tolist(), pairs.right.tolist(), pairs.count.tolist(), pairs.score.tolist()
        ([97, 97, 98], [97, 98, 97], [3, 3, 1], [3.0, 3.0, 1.0])
        """
        pairs = _list_pairs(self._state)
        return self._as_arrays(pairs[(pairs["count"] > 0) & (pairs["start"] >= 0)])

    def changed_pairs(self) -> Pair:
        """List the pairs whose counts the last merge has changed, as arrays like those of `pairs`.

        A count is 0 if the pair has vanished, as the merged pair has. Forbidden pairs, whose score
        is 0, are among them. So counts can be kept up to date without a list of all pairs.

        >>> learner = Learner(Words.from_counts({b"cab": 3, b"ab": 1}), 300)
        >>> symbol = learner.merge(97, 98)
        >>> changed = learner.changed_pairs()
        >>> changed.left.tolist(), changed.right.tolist(), changed.count.tolist()
        ([97, 99, 99], [98, 97, 256], [0, 0, 3])
        """
        if self.n_symbols == len(self.alphabet):
            return self._as_arrays(_list_pairs(self._state)[:0])
        return self._as_arrays(np.unique(_changed_pairs(self._state)))

    def _as_arrays(self, pairs):
        """Return records of pairs as arrays, in the order of their symbols."""
        pairs = pairs[np.lexsort((pairs["right"], pairs["left"]))]
        columns = (pairs[name] for name in Pair._fields[:3])
        return Pair._make([*columns, _score_pairs(pairs, self._state)])

    def merge(self, left: int, right: int) -> int:
        """Merge two symbols wherever they are adjacent, from left to right; returns the new symbol.

        >>> learner = Learner(Words.from_counts({b"aaab": 3}), 300)
        >>> learner.merge(97, 97), learner.words().to_counts(), learner.n_tokens
        (256, {b'aaab': 3}, 9)
        """
        self._check_room(self.n_symbols + 1)
        can_merge = self._run_on_pair(_merge_pair, left, right)
        require(can_merge, f"the pair {left}, {right} is forbidden, or too long")
        return self.n_symbols - 1

    def count(self, left: int, right: int) -> int:
        """Count a pair in the corpus as it is now; 0 if its token would be longer than allowed.

        It does not list all pairs, as `pairs` does.

        >>> learner = Learner(Words.from_counts({b"aab": 3}), 300)
        >>> learner.count(97, 98), learner.merge(97, 97), learner.count(97, 98)
        (3, 256, 0)
        """
        return int(self._run_on_pair(_count_pair, left, right))

    def forbid(self, left: int, right: int) -> None:
        """Exclude a pair for good: it is never the best, and cannot merge."""
        number = self._run_on_pair(_pair_number, left, right)
        pairs = _list_pairs(self._state)
        pairs["start"][number] = FORBIDDEN

    def merge_best(self, n_symbols: int, *, progress: bool = False) -> None:
        """Merge the best pair again and again, until there are `n_symbols`, or none is left."""
        self._check_room(n_symbols)
        done = self.n_symbols
        with Engine(progress=progress).progress_bar("learn", n_symbols - done, " merges") as bar:
            while done < n_symbols:
                pair = self._merge_until(min(done + MERGES_PER_ROUND, n_symbols))
                bar.update(self.n_symbols - done)
                done = self.n_symbols if pair else n_symbols

    def split(self, symbol: int, parts: Sequence[int]) -> int:
        """Replace a symbol, wherever it is, by others that have its bytes together.

        Returns how often it was in the corpus.

        A symbol of the alphabet cannot be split. A single part may be another symbol of the same
        bytes. Each split reads all words.

        >>> learner = Learner(Words.from_counts({b"aab": 3}), 300)
        >>> symbol = learner.merge(97, 98)
        >>> learner.split(symbol, [97, 98]), learner.n_tokens, learner.best().count
        (3, 9, 3)
        """
        token = self.token(symbol)
        tokens = [*map(self.token, parts)]
        parts = np.array(parts, i64)
        widths = self._symbols["width"]
        has_bytes = b"".join(tokens) == token and widths[parts].sum() == widths[symbol]
        require(has_bytes, f"the symbol {symbol}, {token}, cannot be split into {tokens}")
        self.has_split = True
        return int(_split_symbol(int(symbol), parts, self._state))

    def words(self) -> Words:
        """Return the words as they are now, over all symbols, the most frequent word first."""
        cells = self._cells
        cells = cells[cells != INTERIOR]
        # A symbol of two cells or more is in two of these. Only the first one is kept.
        is_wide = self._symbols["width"][cells] > 1
        is_second = is_wide & (np.cumsum(is_wide) % 2 == 0)
        kept = cells[~is_second]
        is_symbol = kept != WORD_END
        offsets = np.cumsum(is_symbol)[~is_symbol]
        counts = -np.sort(-self._counts)
        return Words(kept[is_symbol], offsets, counts, list(self._all_tokens()))

    def learned(self) -> Learned:
        """Return the merges and their counts; after a split, merges alone cut words differently.

        >>> learner = Learner(Words.from_counts({b"ab": 3}), 300)
        >>> learner.merge(97, 98), learner.learned().merges
        (256, [(b'a', b'b')])
        """
        a = len(self.alphabet)
        n = self.n_symbols
        new = self._symbols[a:n]
        pairs = np.stack([new["left"], new["right"]], axis=1)
        tokens = list(self._all_tokens())
        return Learned(
            tokens,
            self.alphabet,
            [(tokens[left], tokens[right]) for left, right in pairs.tolist()],
            pairs=pairs,
            counts=new["count"].copy(),
            n_tokens=self._symbols["n_tokens"][a - 1 : n].copy(),
        )

    def _merge_until(self, goal):
        """Merge the best pair until there are `goal` symbols; returns the next best pair."""
        pair = Pair._make(_merge_until(goal, self._state))
        if pair.score == np.inf:
            tokens = self.token(pair.left), self.token(pair.right)
            raise InputError(f"the score of {tokens} is not a finite number, or raised an error")
        return pair if pair.left >= 0 else None

    def _all_tokens(self):
        """Return the bytes of all symbols; those of new symbols are first added to the list."""
        tokens = self._tokens
        for new in self._symbols[len(tokens) : self.n_symbols]:
            tokens.append(tokens[new["left"]] + tokens[new["right"]])
        return tokens

    def _check_room(self, n_symbols):
        """Check that there is room for `n_symbols` symbols."""
        most = len(self._symbols) - 1
        require(n_symbols <= most, f"this learner has room for `n_symbols` {most:,} only")

    def _check_symbol(self, symbol):
        """Check that a symbol exists; returns it as a plain int."""
        exists = 0 <= symbol < self.n_symbols
        require(exists, f"no symbol {symbol!r}: there are 0 to {self.n_symbols - 1}")
        return int(symbol)

    def _run_on_pair(self, kernel, left, right):
        """Call a kernel on two symbols, which must exist."""
        return kernel(self._check_symbol(left), self._check_symbol(right), self._state)


@public
def learn(
    words: Words,
    n_symbols: int,
    *,
    score: str | Callable = "count",
    tie_break: str = "bytes",
    min_frequency: int = 1,
    longest_token: Positive = LONGEST_LEARNT,
    progress: bool = False,
) -> Learned:
    """Merge the best pair until there are `n_symbols` symbols, which include the alphabet.

    The options are those of `Learner`. The time of a merge is proportional to the occurrences of
    its pair, not to the length of all words. Raises InputError if there are no words, or if a
    symbol is not in the alphabet.

    >>> learned = learn(Words.from_counts({b"aaab": 3, b"ab": 1}), 258)
    >>> learned.pairs.tolist(), learned.counts.tolist(), learned.n_tokens.tolist()
    ([[97, 97], [97, 98]], [6, 4], [14, 11, 7])
    """
    # each merge removes at least one symbol from the words
    n_symbols = min(n_symbols, len(words.alphabet) + len(words.symbols))
    learner = Learner(
        words,
        n_symbols,
        score=score,
        tie_break=tie_break,
        min_frequency=min_frequency,
        longest_token=longest_token,
    )
    learner.merge_best(n_symbols, progress=progress)
    return learner.learned()


# ─── Models ───────────────────────────────────────────────────────────────────────────────────────
#
# A Model is a tokenizer as data: Training makes it, files store it, and a Tokenizer compiles it. A
# small one is
#
#     Model({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")], ["<|end|>"])   # <|end|> gets the id 3
#
# Its constructor checks the following, so that no other section needs to:
#
# - Ids are below MAX_ID and may have gaps. A token has at least one byte.
# - Two ordinary tokens differ in their bytes. A special or unused token may have the bytes of an
#   ordinary one.
# - Each special token has an id in the vocabulary.
# - Merges are pairs of bytes. Without merges, two tokens merge if they join to a token, in the
#   order of scores or ids.
# - Scores are floats below inf, one for each ordinary token. A Unigram must have scores.
# - Tokens of characters are UTF-8. The unknown token and the 256 byte tokens are in the vocabulary
#   if they are used.
#
# Files name tokens in characters: GPT-2's bytes_to_unicode writes a visible byte as itself, and
# each other byte as one of the 68 characters from U+0100 on.

MAX_ID = (1 << 21) - 1  # tables grow with the largest id; no known vocabulary is half as large
ANY_SIZE = 1 << 30  # of a word without a limit, in bytes or characters
Vocab = dict[int, bytes]  # id -> token
Ids = dict[str, int]  # the name of a token in a file, or the text of a special token -> its id
SpecialTokens = Iterable[str] | Mapping[str, int] | None  # texts, or {text: id}
_ID_RANGE = f"an id is a whole number from 0 to {MAX_ID - 1:,}"

# byte -> code point: the 188 visible bytes keep their characters; the other 68 get the next ones
_BYTES_TO_UNICODE = {byte: byte for byte in BYTE_ORDER[:188]}
_BYTES_TO_UNICODE |= zip(BYTE_ORDER[188:], range(256, 324), strict=True)
_NO_BYTE = 0xFFFF
_UNICODE_TO_BYTES = dict.fromkeys(BYTE_ORDER, _NO_BYTE)
_UNICODE_TO_BYTES |= {code: byte for byte, code in _BYTES_TO_UNICODE.items()}
_BYTE_NAMES = frozenset(map(chr, _BYTES_TO_UNICODE.values()))


def gpt2_name(token):
    """Write bytes as visible characters, one for each byte."""
    return token.decode("latin-1").translate(_BYTES_TO_UNICODE)


def _read_names(names, alphabet="bytes"):
    """Read the names of tokens, which are UTF-8 or have one character for each byte."""
    if alphabet == "characters":
        return [name.encode("utf-8", "surrogatepass") for name in names]
    names = list(names)
    text = "".join(names)  # all are read at once, which is faster
    try:
        tokens = text.translate(_UNICODE_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError as error:
        char = text[error.start]
        raise InputError(
            f"{char!r} in a token names no byte: this is not a byte-level BPE"
        ) from None
    ends = itertools.accumulate(map(len, names), initial=0)
    return [tokens[start:end] for start, end in itertools.pairwise(ends)]


def _template_sides(single, special_tokens, **_):
    """List the ids before and after the text of a template, which is its Sequence."""
    sides = [[]]
    for piece in single:
        if piece.get("Sequence", {}).get("id") == "A":
            sides.append([])
        else:  # a second text raises KeyError
            sides[-1] += special_tokens[piece["SpecialToken"]["id"]]["ids"]
    before, after = sides
    return before, after


# type of a step of a post_processor -> the function that reads its other fields
_POST_PROCESSORS = dict.fromkeys(
    ("BertProcessing", "RobertaProcessing"), lambda cls, sep, **_: ([cls[1]], [sep[1]])
)
_POST_PROCESSORS["TemplateProcessing"] = _template_sides


# the names of the tokens for the bytes of unknown characters
_FALLBACK_TOKENS = [f"<0x{b:02X}>".encode() for b in range(256)]


def fallback_tokens(model):
    """Return the tokens that stand for unknown characters."""
    tokens = set()
    if model.alphabet == "characters":
        if model.byte_fallback:
            tokens.update(_FALLBACK_TOKENS)
        if model.unk_token:
            tokens.add(model.unk_token.encode())
    return tokens


NO_DECODER = (None,)  # the `decoder` of a model whose tokenizer.json has none


@public(former={"flags": "added_tokens"})
@dataclasses.dataclass(repr=False)
class Model:
    """A tokenizer as validated data.

    Tokens

    vocab           id -> bytes; ids may have gaps
    special_tokens  text -> id; or a list, whose tokens get the ids of their bytes in the
                    vocabulary, or the next ids
    added_tokens    how special tokens are found, if not in the plain way
    alphabet        "bytes" or "characters": tokens are made of bytes; or they are UTF-8, and
                    characters may be unknown
    unused          the ids of tokens that no text becomes
    synonyms        bytes -> id: further tokens of a BPE of characters, which text becomes as well;
                    an id is decoded as its token in `vocab`

    A text becomes words

    normalizer      steps of a Normalizer, as in a tokenizer.json
    pattern         the name of a pattern, a regular expression, or a list of steps that cut in turn

    Words become ids

    kind            a name in KINDS
    merges          pairs of bytes, in the order of their ranks; None: any two tokens that join to a
                    token merge, in the order of its score or id
    scores          float32[V] or float64[V], by id: logarithms of probabilities (Unigram); for a
                    BPE without merges, the highest score merges first
    ignore_merges   a pretoken that is a token becomes that token, even if the merges do not make it
    unk_token       the token of unknown characters or words, or None
    unk_id          its id, if text becomes another token with the same bytes
    byte_fallback   unknown characters become tokens of their bytes, <0x00> to <0xFF>
    fuse_unk        consecutive unknown characters become one token
    drops_unknown   a BPE without unk_token leaves out letters that have no token; otherwise it
                    refuses text with them
    word_suffix     the suffix of the last letter of a word in a BPE, and of tokens that end words
    subword_prefix  the prefix of tokens of a WordPiece that continue a word
    max_word_chars  longer words are unknown to a WordPiece; bytes if tokens are made of bytes
    extra           data of a kind of your own, as JSON; a tokenizer.json has it in its "model"

    Around the ids of a text, and back to text

    post_processor  the post_processor of tokenizer.json; see `added_ids`
    decoder         steps from tokens to text, as in a tokenizer.json; NO_DECODER if that has
                    none, empty if the bytes of tokens are only joined

    Kept for files and other tools

    config          the content of tokenizer_config.json
    batching        the truncation and padding of tokenizer.json
    added_from      special tokens from this id on are not in the vocabulary of tokenizer.json, but
                    only among its added tokens
    proto           the content of the .model of SentencePiece that the model was read from

    The text of a special token mostly equals the bytes of its id, but some files have tokens like
    "Ċ" with the id of a line feed. Raises ValueError for an invalid model.

    >>> Model({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")], ["<|end|>"]).special_tokens
    {'<|end|>': 3}
    """

    vocab: Mapping[int, bytes]  # a dict in the model
    merges: Sequence[Merge] | None  # a list in the model
    special_tokens: SpecialTokens = dataclasses.field(default_factory=dict)  # a dict in the model
    pattern: PatternSource = "gpt2"
    kind: str = "bpe"
    ignore_merges: bool = False
    added_tokens: Mapping[str, AddedToken] = dataclasses.field(default_factory=dict)
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
    added_from: int = MAX_ID
    unused: Collection[int] = ()
    extra: dict = dataclasses.field(default_factory=dict)
    proto: bytes = b""
    unk_id: int | None = None
    synonyms: Mapping[bytes, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.vocab = dict(self.vocab)
        _validate_tokens(self.vocab)
        self.special_tokens = _special_ids(self.vocab, self.special_tokens or ())
        if self.merges is not None:
            self.merges = [*map(tuple, self.merges)]
            types = {*map(type, itertools.chain.from_iterable(self.merges))}
            require(types <= {bytes}, "merges are pairs of bytes, as (b'a', b'b')")
        self.added_tokens = {
            text: added
            for text, added in (self.added_tokens or {}).items()
            if text in self.special_tokens and added != PLAIN_TOKEN
        }
        for text, added in self.added_tokens.items():
            require(not added.single_word, f"the token {text!r}: single_word is not supported")
        self.normalizer = tuple(self.normalizer)
        self.decoder = tuple(self.decoder)
        self.unused = sorted(self.vocab.keys() & {*self.unused})
        self.synonyms = dict(self.synonyms)
        self.config = copy.deepcopy(self.config)
        _note_forgeable(self)
        _validate_distinct(self)
        _validate_scores(self)
        _validate_alphabet(self)

    @functools.cached_property
    def ordinary(self) -> list[int]:
        """The ids that text can become without special tokens, in ascending order.

        Those of special tokens are among them only if they are in the vocabulary of the model, and
        no other token has the same bytes. In a BPE these tokens are made by merges or are single
        letters; other models find the tokens that were added with `special: false`.
        """
        vocab = self.vocab
        special = {
            vocab[token_id]: token_id
            for text, token_id in self.special_tokens.items()
            if vocab[token_id] == text.encode()
        }
        found = {text.encode() for text, added in self.added_tokens.items() if not added.special}
        if self.kind in ("bpe", "trimmed"):
            letters = map(vocab.get, _letters(special, self.alphabet).values())
            made = itertools.starmap(operator.add, self.merges or ())
            found = special.keys() & itertools.chain(letters, made)
        end = self.added_from if self.scores is None else len(self.scores)
        n_ids = Counter(filter(special.__contains__, vocab.values()))
        others = {
            token_id
            for token, token_id in special.items()
            if token not in found or token_id >= end or n_ids[token] > 1
        }
        return sorted(vocab.keys() - others.union(self.unused))

    @functools.cached_property
    def ids(self) -> dict[bytes, int]:
        """The id of each token; of several ids with the same bytes, the ordinary one."""
        others = sorted(self.vocab.keys() - self.ordinary)
        token_ids = [*others, *self.ordinary]
        tokens = map(self.vocab.__getitem__, token_ids)
        return self.synonyms | dict(zip(tokens, token_ids, strict=True))

    @property
    def unknown_id(self) -> int | None:
        """The id of unknown characters or words, or None."""
        if self.unk_id is None and self.unk_token:
            return self.ids.get(self.unk_token.encode())
        return self.unk_id

    @property
    def found_as_unknown(self) -> list[int]:
        """The unused ids that a Unigram finds in text, and then writes as unknown: Marian's.

        It does not find a token that has the bytes of another one: plain text beside the names of
        bytes, or the earlier one of two equal pieces.
        """
        if self.kind != "unigram" or self.alphabet == "bytes":
            return []
        return [key for key in self.unused if self.ids[self.vocab[key]] == key]

    @functools.cached_property
    def ordinary_ids(self) -> dict[bytes, int]:
        """The id of each ordinary token; without merges, tokens of unknown characters have none."""
        unknown = fallback_tokens(self) if self.merges is None else ()
        vocab = self.vocab
        others = vocab.keys() - self.ordinary
        ids = self.ids.copy()  # much faster than to add one id after another
        for token in {*map(vocab.get, others), *unknown}:
            if token in unknown or ids[token] in others:
                ids.pop(token, None)
        return ids

    @property
    def normalizer_steps(self) -> list[dict]:
        """The steps of the normalizer, without any Sequence."""
        return _flattened(self.normalizer, "normalizers")

    @property
    def decoder_steps(self) -> list[dict]:
        """The steps of the decoder, without any Sequence."""
        if self.alphabet == "bytes":  # ByteLevel only reads their names; CLIP has a suffix
            if self.word_suffix:
                return [{"type": "BPEDecoder", "suffix": self.word_suffix}]
            return []
        if self.decoder == NO_DECODER:
            # tokens are joined by spaces, like those of a WordPiece that all begin a word
            return [{"type": "WordPiece", "prefix": "\0", "cleanup": False}]
        return _flattened(self.decoder, "decoders")

    @functools.cached_property
    def added_ids(self) -> tuple[list[int], list[int]]:
        """The ids that the post_processor puts before and after one text, if it does no more."""
        sides = [
            _call_step("post_processor", _POST_PROCESSORS, step)
            for step in _flattened(self.post_processor or [], "processors")
            if step["type"] != "ByteLevel"
        ]
        (before, after), *others = sides or [([], [])]
        # A step after a template would take its tokens for texts of their own.
        are_tokens = all(_is_id(key) and key in self.vocab for key in before + after)
        require(
            are_tokens and not others,
            "this post_processor is not supported: it must put tokens of the vocabulary around one "
            "text, in one step",
        )
        return before, after

    @functools.cached_property
    def letters(self) -> dict[int, int]:
        """The ids of single bytes, or of single characters by code point."""
        return _letters(self.ordinary_ids, self.alphabet)

    @property
    def looks_up_words(self) -> bool:
        """Whether a pretoken that is a token becomes that token, as a BPE of ranks requires."""
        return self.ignore_merges or (self.merges is None and self.scores is None)

    @property
    def sums_in_single(self) -> bool:
        """Whether scores are summed in float32, as in SentencePiece."""
        return self.kind == "unigram" and self.scores.dtype == np.float32

    @property
    def sums_through_text(self) -> bool:
        """Whether scores are summed through a whole text of characters, since no step cuts it."""
        steps = {*Pattern(self.pattern).steps} - {PATTERNS["none"]}
        of_characters = self.kind == "unigram" and self.alphabet == "characters"
        return of_characters and {*map(type, steps)} <= {Metaspace}

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all fields that determine ids: a SHA-256 in hexadecimal."""
        names = ["merges", "kind", "ignore_merges", "alphabet", "normalizer", "unk_token",
                 "byte_fallback", "fuse_unk", "subword_prefix", "max_word_chars"]  # fmt: skip
        # These came later and count only if they are set, so that other models keep their digests.
        newer_names = ("word_suffix", "drops_unknown", "unused", "synonyms", "extra")
        fields = vars(self) | {"normalizer": tuple(self.normalizer_steps)}
        names += filter(fields.get, newer_names)
        names += ["unk_id"] * (self.unk_id is not None)
        tables = sorted(self.vocab.items()), sorted(self.special_tokens.items())
        scores = self.scores
        if scores is not None:
            scores = scores.dtype.str, scores.tolist()
        added_tokens = sorted((text, tuple(added)) for text, added in self.added_tokens.items())
        plain = [(name, fields[name]) for name in names]
        text = repr((plain, (*tables, Pattern(self.pattern).source), scores, added_tokens))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _letters(ids, alphabet):
    """Select the single bytes, or the single characters by code point."""
    if alphabet == "bytes":
        return {token[0]: ids[token] for token in BYTES if token in ids}
    return {
        ord(text): token_id
        for token, token_id in ids.items()
        if len(token) <= 4 and len(text := token.decode()) == 1
    }


def _is_id(token_id):
    """Check whether an id is a whole number in the range of ids."""
    return type(token_id) is int and 0 <= token_id < MAX_ID


def _validate_tokens(vocab):
    """Check that ids are whole numbers, and that tokens are bytes."""
    types = {*map(type, vocab)}, {*map(type, vocab.values())}
    if types == ({int}, {bytes}) and all(vocab.values()) and 0 <= min(vocab) <= max(vocab) < MAX_ID:
        return  # all at once, which is faster
    for token_id, token in vocab.items():
        if not _is_id(token_id) or type(token) is not bytes or not token:
            raise InputError(f"the token {token!r} has the id {token_id!r}: {_ID_RANGE}")


def _special_ids(vocab, given):
    """Return the id of each special token, and add missing tokens to the vocabulary."""
    texts = _check_texts(given)
    if isinstance(given, Mapping):
        ids = dict(given)
    else:
        next_ids = itertools.count(max(vocab, default=-1) + 1)
        own_ids = {token: token_id for token_id, token in vocab.items()}
        numbers = defaultdict(next_ids.__next__, own_ids)
        ids = {text: numbers[text.encode()] for text in texts}
    for text, token_id in ids.items():
        token = vocab.setdefault(token_id, text.encode())
        # The id may have a second text, and the text may be the GPT-2 name of the bytes.
        has_text = ids.get(token.decode("utf-8", "replace")) == token_id
        require(
            has_text or gpt2_name(token) == text,
            f"the special token {text!r} has the id {token_id}, which belongs to "
            f"{readable(token)!r}",
        )
    return ids


def _note_forgeable(model):
    """Warn if text can become a control token."""
    ordinary = {*model.ordinary}
    for text, token_id in model.special_tokens.items():
        is_control = model.added_tokens.get(text, PLAIN_TOKEN).special
        if is_control and token_id in ordinary and model.vocab[token_id] == text.encode():
            note(f"the special token {text!r} can be produced from ordinary text, by its letters")


def _validate_distinct(model):
    """Check that no two ordinary tokens have the same bytes."""
    if len(model.ids) == len(model.vocab):
        return
    tokens = [model.vocab[token_id] for token_id in model.ordinary]
    if len({*tokens}) < len(tokens):
        raise InputError(f"several ids have the bytes {readable(_repeated(tokens))!r}")
    is_supported = model.kind == "bpe" and model.alphabet == "characters"
    known = {*model.ordinary}.issuperset(model.synonyms.values())
    require(
        (is_supported and known) or not model.synonyms,
        "`synonyms` are tokens of a BPE of characters, and have the ids of ordinary tokens",
    )


def _repeated(items):
    """Find an item that appears twice."""
    return Counter(items).most_common(1)[0][0]


ALPHABETS = ("bytes", "characters")


def _validate_scores(model):
    """Check that every ordinary token has a score, and make the scores an array of floats."""
    if model.scores is None and model.kind != "unigram":
        return
    scores = np.asarray([] if model.scores is None else model.scores)
    if scores.dtype != np.float32:
        scores = scores.astype(np.float64)
    model.scores = scores
    n = max(model.ordinary, default=-1) + 1
    require(
        len(scores) >= n and (scores < np.inf).all(),
        f"each token needs a score: there must be {n} numbers below inf, by id",
    )


def _validate_alphabet(model):
    """Check that tokens of characters are UTF-8, and that those for unknown characters exist."""
    require_known("alphabet", model.alphabet, ALPHABETS)
    for token in model.vocab.values() if model.alphabet == "characters" else ():
        try:
            token.decode()
        except UnicodeDecodeError:
            raise InputError(
                f"the token {readable(token)!r} is not UTF-8, but the alphabet is characters"
            ) from None
    missing = fallback_tokens(model).difference(model.vocab.values())
    if model.kind == "unigram" and not model.sums_in_single:
        missing.difference_update(_FALLBACK_TOKENS)  # Hugging Face does without them
    if missing:
        token = min(missing).decode()
        raise InputError(
            f"{token!r} is not in the vocabulary: `unk_token` or `byte_fallback` needs it"
        )


def _check_texts(special_tokens):
    """Check that special tokens are distinct strings that can be encoded in UTF-8."""
    require(
        not isinstance(special_tokens, Text),
        f"special tokens are a list of strings, not {special_tokens!r}",
    )
    special_tokens = list(special_tokens)
    for text in special_tokens:
        require(
            isinstance(text, str) and text,
            f"a special token is a string that is not empty, not {text!r}",
        )
        is_text = not re.search("[\ud800-\udfff]", text)
        require(is_text, f"the special token {text!r} has half a surrogate pair, which is no text")
    for text, n in Counter(special_tokens).items():
        require(n == 1, f"the special token {text!r} is given twice")
    return special_tokens


SPECIAL_TOKENS_AT = ("first", "after-bytes", "last")


def build_vocabulary(learned, special_tokens, byte_tokens=()):
    """Number the tokens: first the alphabet (bytes in BYTE_ORDER), then the merged tokens in order.

    special_tokens  the special tokens by their places, which are "first", as by Hugging Face's
                    trainer; "after-bytes", which is after the alphabet; or "last", as in GPT-2
    byte_tokens     names of the 256 bytes in a vocabulary of characters; they come before the
                    alphabet

    Two ways to make the same bytes, such as a + bc and ab + c, make one token.
    """
    alphabet = learned.alphabet
    tokens = [*dict.fromkeys(learned.tokens)]
    letters = tokens[: len(alphabet)]
    if tuple(alphabet) == BYTES:
        letters = [tokens[byte] for byte in BYTE_ORDER]
    first, after_bytes, last = [
        [text.encode() for text in special_tokens.get(place, ())] for place in SPECIAL_TOKENS_AT
    ]
    byte_tokens = map(str.encode, byte_tokens)
    merged = tokens[len(alphabet) :]
    return dict(enumerate([*first, *byte_tokens, *letters, *after_bytes, *merged, *last]))


# ─── Encoding ─────────────────────────────────────────────────────────────────────────────────────
#
# A Model, and flat text -> ids. `bpe_tables` makes tables of the model once: the ids of letters,
# the pairs that merge, and the words that are looked up whole. A BPE turns each letter of a word
# into its id, and then merges the pair of lowest rank, again and again. With the tokenizer at the
# top of this file, the word "lowest" becomes:
#
#     letters   l o w e s t     ->   l o w e st   ->   l o w est   ->   l ow est   ->   low est
#     ids       75 78 86 68 82 83                                                      259 257
#
# Kernels of all kinds of models have these parameters:
#
#     text      uint8[…], and PADDING; a word is text[start : start + size]
#     tables    BpeTables, or those of another kind
#     memory    uint64[2 * MAX_BOUNDED_BYTES], for one word
#     ids, at   uint32[…], the result, and the index where the next id goes. There is room for as
#               many ids as the word has bytes
#
# A single text takes one call of a kernel, since a call takes longer than some words do. Python
# passes the address of its UTF-8. The kernel copies it into the workspace, writes END after it, and
# cuts out special tokens; if other passes come before the last step of the pattern, another kernel
# does that first. With <eos> of id 7 and # for END:
#
#     "lowest<eos>" at 0x7f…, 11 bytes   ->   lowest##   meanings 7, BOUNDARY   ->   259 257 7
#
# Python makes a flat text only of several texts, or of one of more than PART_BYTES.
#
# The ids of most words come from a cache, which is a table of words as in Words. The kernels call
# each other so:
#
#     _take_text                  puts a text into the workspace
#     _take_changed               puts a text at an address there, after passes
#     _encode_flat                encodes it; also a text at an address
#         _scan_batch             finds the ends of the next words
#         _encode_words           encodes them
#             _copy_hits          copies the ids of words that are in the cache
#             _end_text           writes what END stands for: a special token, or the end of a text
#             _begin_text         prepares a model whose words depend on those before them
#             _segment            cuts a word that is not in the cache; it is `segment_bpe` or
#                                 another kind's kernel
#                 _merge_sure makes the sure merges of a long part; or _letters_to_ids
#                 _merge_short makes the others; or _merge_long, if more than MAX_LINEAR_MERGE
#                 letters are left
#             _store_ids          writes its ids into the cache
#         _renew_cache            makes a full cache larger, or empties it

# The entry of a merge: the rank and, in the lower ID_BITS, the resulting id. That of a pair which
# does not merge is NO_MERGE or another one from NO_RANK on.
ID_BITS = u64(21)
ID_MASK = (ONE << ID_BITS) - ONE
NO_RANK = ID_MASK << ID_BITS
NO_MERGE = ALL_ONES
NO_TOKEN = NO_MERGE - ONE  # no token has these two bytes side by side
LOOK_UP = NO_MERGE - u64(2)  # look up the letters of the two bytes
# In the table of merges, the bit OTHER_SLOT of an entry tells which of its two slots it is in. The
# bits above it are a part of its key.
OTHER_SLOT = ONE << u64(42)
KEY_PART = ALL_ONES << u64(43)
LOW_HALF = u64(2**32 - 1)
# `unk_id` is one of these if unknown letters have no id: a word with one is refused (NO_ID), or the
# letter is left out (DROPPED)
NO_ID = -1
DROPPED = -2
# Both ids of a merge have this value if only its result is given; `_fill_merges` finds the pair.
ANY_PAIR = -1
# the longest word that is merged by comparing all its pairs, in letters; a heap merges longer ones
MAX_LINEAR_MERGE = 48
# bytes of the parts of a word whose sure merges are made first; shorter ones have too few
MIN_BOUNDED_BYTES = 10
MAX_BOUNDED_BYTES = 1 << 10
NO_BOUND = ID_MASK  # no merge has this rank
CACHE_ENTRIES = 1 << 14  # entries of a new cache; a larger table than the words need is slower
MAX_CACHE_ENTRIES = 1 << 20  # of the cache of each thread
MAX_CACHED_BYTES = 1 << 12  # of a word; longer words take too much space
UNCACHED = -2  # for n ids that the cache must not keep, `segment` returns UNCACHED - n


class TokenBytes(NamedTuple):
    """The bytes of the tokens by their ids."""

    bytes: np.ndarray  # uint8[…]     end to end, and PADDING
    starts: np.ndarray  # int64[V]    where each token begins
    sizes: np.ndarray  # int64[V]     its number of bytes; -1 for an id that is not in use


@struct
class BpeTables:
    """The ids of letters, the pairs of ids that merge, and the words that are looked up whole.

    The letters of a word are its bytes or its characters.
    """

    # int32[256], by byte, or int32[0x110000], by code point: the id of the letter, or -1
    letter_ids: np.ndarray
    last_ids: np.ndarray  # the same for the last letter of a word
    # int32[256]  the ids of <0x00> to <0xFF> for unknown characters, or -1
    fallback_ids: np.ndarray
    unk_id: int  # the id of unknown characters otherwise, or NO_ID, or DROPPED
    fuse_unk: bool  # consecutive unknown characters become one id
    # uint64[H]  cuckoo hash table (Pagh and Rodler 2001): entries, each with a part of its key
    merges: np.ndarray
    # word -> id + 1: words that are looked up whole, since merges do not make these tokens
    tokens: _WordTable
    # int64[V, 2], by id: the parts of an unused token, or of a letter that is no token, or -1;
    # empty if there are no such ids
    parts: np.ndarray
    # uint64[65536], at a << 8 | b: the entry of the letters of two bytes, or LOOK_UP, or NO_TOKEN
    byte_pairs: np.ndarray
    # uint32[65536] or empty, at a << 8 | b: the lowest rank of a merge of a token that ends
    # in the byte a and a token that begins with the byte b; or NO_BOUND
    bounds: np.ndarray


def make_token_bytes(vocab):
    """Write the tokens of a vocabulary into arrays."""
    ids = np.array([*vocab], i64)
    lengths = np.array([*map(len, vocab.values())], i64)
    n = ids.max(initial=0) + 1
    starts, sizes = np.full((2, n), -1)
    starts[ids] = np.cumsum(lengths) - lengths
    sizes[ids] = lengths
    return TokenBytes(_with_padding(b"".join(vocab.values())), starts, sizes)


def _letter_table(letters, n):
    """Write the ids of letters into an array, int32[n]; -1 for all other letters."""
    table = np.full(n, -1, np.int32)
    table[[*letters]] = [*letters.values()]
    return table


def _marked_letters(model):
    """Map letters to the ids of their tokens with the prefix and the suffix of the model.

    They continue a word of a WordPiece, as ##a, or end a word of a BPE, as a</w>.
    """
    prefix = model.subword_prefix.encode()
    suffix = model.word_suffix.encode()
    names = {}
    for token, token_id in model.ids.items():
        if token.startswith(prefix) and token.endswith(suffix):
            names[token.removeprefix(prefix).removesuffix(suffix)] = token_id
    return _letters(names, model.alphabet)


def missing_letters(model):
    """Map characters that are not tokens, but parts of merges, to further ids; by code point.

    SentencePiece merges such a character with its neighbours before it finds that it is unknown.
    Raises InputError if it would not become the tokens of its bytes then.
    """
    if model.alphabet == "bytes" or model.merges is not None or model.scores is None:
        return {}
    texts = {token.decode() for token in model.ordinary_ids}
    letters = {*map(chr, model.letters)}
    missing = set()
    for text in texts:
        if letters.issuperset(text):
            continue
        splits = ((text[:k], text[k:]) for k in range(1, len(text)))
        if any(all(len(part) == 1 or part in texts for part in split) for split in splits):
            require(
                model.byte_fallback,
                f"a character of the token {text!r} is neither a token itself nor made of byte "
                "tokens: the sentencepiece package reads such a model",
            )
            missing.update({*text} - letters)
    codes = sorted(map(ord, missing))
    return dict(zip(codes, itertools.count(max(model.vocab) + 1), strict=False))


def _parts_of_letters(further, fallback_ids):
    """List the two parts of each of these letters, which are the tokens of its bytes, by id.

    A letter of one byte has -1 in place of the second part. In a letter of more than two bytes, the
    second part stands for all bytes after the first one; it gets a further id, and has parts
    itself.
    """
    parts = {}
    next_id = max(further.values(), default=-1) + 1
    for code_point, token_id in further.items():
        first, *others = fallback_ids[[*chr(code_point).encode()]].tolist()
        for k, other in enumerate(others):
            is_last = k == len(others) - 1
            parts[token_id] = first, other if is_last else next_id
            token_id, first = next_id, other
            next_id += not is_last
        if not others:
            parts[token_id] = first, -1
    return parts


def _possible_merges(model, samples, further):
    """List the merges of a model, int64[M, 4]: left, right, result and rank.

    further  those of `missing_letters`

    If the model has no list of merges, the rank of a row is that of its score or, without scores,
    the id of its result. There is a row for each token, and its pair is ANY_PAIR. For sampling,
    there is a row for each way to make a token from two others.
    """
    if model.merges is not None:
        rows = _merges_as_ids(model.merges, model.ids)
        if model.synonyms:  # of two merges of the same ids, Hugging Face keeps the last one
            pairs = map(tuple, rows[:, :2].tolist())
            rows = rows[[*{pair: k for k, pair in enumerate(pairs)}.values()]]
        return rows
    ids = model.ordinary_ids
    if samples:
        rows = _all_splits(ids | {chr(code).encode(): further[code] for code in further})
    else:
        merged = [*ids.values()]
        if model.alphabet == "characters":
            letters = {*map(chr, [*model.letters, *further])}
            merged = [ids[token] for token in ids if letters.issuperset(token.decode())]
        rows = np.repeat(np.array(merged, i64), 4).reshape(-1, 4)
        rows[:, :2] = ANY_PAIR
    if model.scores is not None:  # equal scores have the same rank
        _, ranks = np.unique(-model.scores, return_inverse=True)
        rows[:, 3] = ranks[rows[:, 2]]
    return rows


def _letter_fields(model, further):
    """Make the fields of BpeTables that turn letters, and those of `further`, into ids."""
    n = N_CODE_POINTS if model.alphabet == "characters" else 256
    letter_ids = last_ids = _letter_table(model.letters | further, n)
    if model.word_suffix:
        last_ids = _letter_table(_marked_letters(model), n)
    fallback_ids = np.full(256, -1, np.int32)
    if model.alphabet == "characters" and model.byte_fallback:
        fallback_ids[:] = [model.ids[token] for token in _FALLBACK_TOKENS]
    unk_id = DROPPED if model.drops_unknown else NO_ID
    if model.unk_token:
        unk_id = model.unknown_id
    return {
        "letter_ids": letter_ids,
        "last_ids": last_ids,
        "fallback_ids": fallback_ids,
        "unk_id": unk_id,
        "fuse_unk": model.fuse_unk,
    }


def _enter_merges(rows, enters_all_pairs, tokens, n_merges, fields):
    """Make BpeTables of some fields and `merges`, a hash table with as many slots as it needs.

    rows, enters_all_pairs, tokens  see `_fill_merges`
    n_merges                        the number of merges that are expected

    Returns the tables, and the pair that makes each token, int64[V, 2], or -1.
    """
    # for n slots, `_merge_key` needs ids below 2 ** ((log2(n) + 21) // 2)
    least_bits = 2 * len(tokens.sizes).bit_length() - 21
    n_slots = 1 << max(6, (2 * n_merges - 1).bit_length(), least_bits)
    is_filled = False
    names = ("merges", "byte_pairs", "bounds")
    while not is_filled:
        fields["merges"] = np.full(n_slots, NO_MERGE)
        copies = _side_by_side(*map(fields.get, names))
        tables = BpeTables(**fields | dict(zip(names, copies, strict=True)))
        pairs, is_filled = _fill_merges(rows, enters_all_pairs, tokens, tables)
        n_slots *= 2
    return tables, pairs


def _needs_all_pairs(model, samples):
    """Whether BpeTables need all merges of a token, or only the one that makes it from its bytes.

    One pair makes each token, as `_fill_merges` proves, unless merges are left out at random, or
    the bytes of the token hide an unknown character or the end of a word.
    """
    of_characters = model.alphabet == "characters"
    return any((samples, of_characters, model.unk_token, model.word_suffix))


def _joined_ids(model):
    """List the ids of the tokens of several letters, in order; special tokens are left out."""
    is_joined = np.zeros(max(model.vocab, default=-1) + 1, bool)
    is_joined[[*model.ordinary_ids.values()]] = True
    is_joined[[*model.letters.values()]] = False
    return np.flatnonzero(is_joined)


def _fill_sure(model, rows, pairs, tokens, tables):
    """Fill the fields of BpeTables that tell which merges are sure: `bounds` and `byte_pairs`."""
    _fill_bounds(rows, pairs, tokens, tables)
    text = np.frombuffer(b"\xff".join(model.ids), u8).astype(np.uint16)
    is_inside = np.bincount(text[:-1] << 8 | text[1:], minlength=1 << 16) > 0
    _fill_byte_pairs(is_inside, tables)


def _fill_unused(model, rows, pairs, parts):
    """Write the parts of each unused token of a trimmed BPE: the pair that makes it, by id.

    If words have a suffix, the first merge of a token counts, and also becomes its pair in `pairs`.
    """
    if model.word_suffix:
        last_first = rows[np.argsort(-rows[:, 3])]  # so that the first merge of a token stays
        pairs[last_first[:, 2]] = last_first[:, :2]
    for token_id in model.unused:
        token = readable(model.vocab[token_id])
        require(pairs[token_id, 0] >= 0, f"the token {token!r} has no parts: no merge makes it")
    parts[model.unused] = pairs[model.unused]


@interruptible
def _bpe_tables_and_pairs(model, samples=False):
    """Make the tables of `bpe_tables`, and find the pair that makes each token, int64[V, 2].

    A token that no pair makes has -1.
    """
    further = missing_letters(model)
    tokens = make_token_bytes(model.vocab | {further[code]: chr(code).encode() for code in further})
    rows = _possible_merges(model, samples, further)
    results = rows[:, 2]
    rows = rows[np.lexsort((results, tokens.sizes[results]))]
    enters_all_pairs = _needs_all_pairs(model, samples)
    n_merges = len(rows) if enters_all_pairs else min(len(rows), len(model.ids))
    has_sure_merges = not enters_all_pairs and len(model.letters) == 256
    fields = _letter_fields(model, further)
    more_parts = _parts_of_letters(further, fields["fallback_ids"])
    n_parts = max(more_parts, default=-1) + 1
    parts = np.full((len(tokens.sizes) if model.kind == "trimmed" else n_parts, 2), -1)
    whole_words = WordCounter()  # with an id in the place of the count
    fields |= {
        "tokens": whole_words.table,
        "parts": parts,
        "byte_pairs": np.full(1 << 16, LOOK_UP),
        "bounds": np.zeros(has_sure_merges << 16, u32),  # until they are filled, no merge is sure
    }
    tables, pairs = _enter_merges(rows, enters_all_pairs, tokens, n_merges, fields)
    if has_sure_merges:
        _fill_sure(model, rows, pairs, tokens, tables)
    # merges are entered before the letters without a token, and unused tokens, fall into parts
    parts[[*more_parts]] = np.array([*more_parts.values()], i64).reshape(-1, 2)
    if model.kind == "trimmed":
        _fill_unused(model, rows, pairs, parts)
    joined = _joined_ids(model)
    unmade = joined[pairs[joined, 0] < 0].tolist()
    if model.looks_up_words and unmade:
        # the count is the id + 1, since no word has the count 0
        whole_words.add_words(Words.from_counts({model.vocab[k]: k + 1 for k in unmade}))
    return tables, pairs


def bpe_tables(model, samples=False):
    """Make the tables of `segment_bpe` for a model; raises InputError for merges of unknown tokens.

    In a trimmed BPE, unused tokens fall into their parts: the two tokens that became the token, and
    their parts if they are unused as well. Raises InputError if no merge makes such a token.

    samples   make tables for `sample_bpe`, with all pairs that may merge when others are left out
              at random
    """
    return _bpe_tables_and_pairs(model, samples)[0]


def last_merges(model):
    """List the merge that makes each token, in the order of ids, and the tokens that none makes.

    The bytes of a token alone decide how they are merged into it; see the proof in `_fill_merges`.
    """
    vocab = model.vocab
    _, pairs = _bpe_tables_and_pairs(model)
    joined = _joined_ids(model)
    is_made = pairs[joined, 0] >= 0
    made = pairs[joined[is_made]]
    made = made[(made <= max(vocab)).all(1)]  # those of `missing_letters` are not tokens
    merges = [(vocab[left], vocab[right]) for left, right in made.tolist()]
    tokens = [vocab[token_id] for token_id in joined[~is_made].tolist()]
    return merges, tokens


def _all_splits(id_of):
    """List all ways to make one of these tokens from two others.

    Returns left, right, result, and result again, int64[M, 4]. For o200k this takes a second, and
    only the first `sample` of a BPE needs it.
    """
    rows = []
    for token, token_id in id_of.items():
        for k in range(1, len(token)):
            left = id_of.get(token[:k])
            right = id_of.get(token[k:])
            if left is not None and right is not None:
                rows.append((left, right, token_id, token_id))
    return np.array(rows, i64).reshape(-1, 4)


def _merges_as_ids(merges, id_of):
    """Look up merges in a vocabulary: left, right, result, and rank; int64[M, 4]."""
    require(len(merges) < MAX_ID, f"a BPE has fewer than {MAX_ID:,} merges")
    lefts = [left for left, _ in merges]
    rights = [right for _, right in merges]
    rows = np.empty((len(merges), 4), i64)
    try:
        for column, tokens in enumerate((lefts, rights, map(operator.add, lefts, rights))):
            rows[:, column] = np.fromiter(map(id_of.__getitem__, tokens), i64, len(merges))
    except KeyError as error:
        raise InputError(f"a merge has or makes {error}, which is not in the vocabulary") from None
    rows[:, 3] = np.arange(len(merges))
    return rows


@inline_kernel
def _merge_key(left, right, merges):
    """Mix two ids: returns their first slot in `BpeTables.merges`, and the KEY_PART of their entry.

    Mixing is multiplication by an odd number, so no other pair has the same slot and part.
    """
    bits = count_bits(u64(len(merges) - 1))
    id_bits = (bits + u64(21)) >> ONE
    pair = u64(left) << id_bits | u64(right)
    key = (pair << (u64(64) - u64(2) * id_bits)) * u64(0x9E3779B97F4A7C15)
    return key >> (u64(64) - bits), key << bits


@inline_kernel
def _other_slot(slot, key_part, merges):
    """Return the other slot of a key."""
    bits = count_bits(u64(len(merges) - 1))
    return slot ^ (key_part * u64(0xD6E8FEB86659FD93) >> (u64(64) - bits))


@inline_kernel
def _find_merge(left, right, merges):
    """Look up the entry of a pair of ids, uint64; one from NO_RANK on if it does not merge.

    Most pairs do not merge, but a branch could not be predicted. So there is none: the part of the
    key of another pair leaves high bits.
    """
    slot, key_part = _merge_key(left, right, merges)
    other = _other_slot(slot, key_part, merges)
    return min(merges[slot] ^ key_part, merges[other] ^ key_part ^ OTHER_SLOT)


@inner_kernel
def _enter_merge(left, right, entry, merges):
    """Add the entry of two ids that are not in `BpeTables.merges`; returns whether there was room.

    It takes its slot from another entry, which moves to its other slot, and so on.
    """
    slot, key_part = _merge_key(left, right, merges)
    entry |= key_part
    n = len(merges)
    while entry != NO_MERGE and n:
        moved = merges[slot]
        merges[slot] = entry
        entry = moved
        if entry != NO_MERGE:
            entry ^= OTHER_SLOT
        slot = _other_slot(slot, entry & KEY_PART, merges)
        n -= 1
    return entry == NO_MERGE


@inline_kernel
def _letters_to_ids(text, start, size, tables, ids, at):
    """Write the ids of the bytes or characters of a word; returns their number, or -1.

    An unknown character, or an invalid byte, becomes the tokens of its bytes or `unk_id`, or is
    left out, as the model says. If it must have an id, and has none, the result is -1. There are
    never more ids than bytes. A letter is code << 3 | size, as from `_decode_character`.
    """
    letter_ids = borrowed(tables.letter_ids)
    last_ids = borrowed(tables.last_ids)
    fallback_ids = borrowed(tables.fallback_ids)
    unk_id = tables.unk_id
    fuse_unk = tables.fuse_unk
    position = start
    stop = start + size
    n = at
    was_unknown = False
    while position < stop:
        letter = i64(text[position]) << 3 | 1
        if len(letter_ids) > 256:
            letter = _decode_character(text, position, stop)
        token_id = letter_ids[letter >> 3]
        end = position + (letter & 7)
        if end == stop:
            token_id = last_ids[letter >> 3]
        if token_id >= 0:
            ids[n] = token_id
            n += 1
        elif fallback_ids[0] >= 0:
            for k in range(position, end):
                ids[n] = fallback_ids[text[k]]
                n += 1
        elif unk_id == NO_ID:
            n = at - 1
            end = stop
        elif unk_id != DROPPED and not (was_unknown and fuse_unk):
            ids[n] = unk_id
            n += 1
        was_unknown = token_id < 0
        position = end
    return n - at


@inline_kernel
def _keep_or_merge(bound_before, bound_after, token_id, entry, n, was_sure, ids, at, bounds):
    """Write the next id of `_merge_sure`: that of the merge, if it is sure; returns whether it is.

    The id after a merge is a part of it, so the next one is written in its place.
    """
    rank = entry >> ID_BITS
    is_sure = u64(rank < bound_before) & u64(rank < bound_after)
    ids[at + n] = entry & ID_MASK if is_sure else token_id
    bounds[n] = bound_before
    return n + ONE - was_sure, is_sure


@inline_kernel
def _merge_sure(text, start, size, tables, memory, ids, at):
    """Make the sure merges of a part of a word of bytes; returns the number of ids.

    The bound between two symbols is the lowest rank of any merge that has them, or what becomes of
    them, on its two sides: the bytes beside it tell the bound. A merge is sure if its rank is below
    the bounds on both of its sides, since then it comes before all that could take one of its
    symbols away. So all sure merges are made in one pass, again and again until there are none. For
    example, with the ranks es 0, est 1, lo 2, low 3:

        letters  l o w e s t       bounds  lo 2, ow 3, we -, es 0, st 1
        sure     es: 0 < 1         ->      l o w es t
        sure     est, lo           ->      lo w est
        sure     low               ->      low est

    The first pass reads the entries and bounds of pairs of bytes from tables; the later ones look
    merges up. Apart from the ends of the loops, no branch depends on the text. The three bounds are
    those before, inside and after the pair of ids k and k + 1. memory[k] becomes the entry of this
    pair, and bounds[k] is the bound before the id k.
    """
    byte_pairs = borrowed(tables.byte_pairs)
    lowest_ranks = borrowed(tables.bounds)
    letter_ids = borrowed(tables.letter_ids)
    merges = borrowed(tables.merges)
    bounds = memory[MAX_BOUNDED_BYTES:]
    first = u64(at)
    last = u64(size - 1)
    n = u64(0)
    was_sure = u64(0)
    bound_before = NO_BOUND
    letter = i64(text[start])
    pair = letter << 8 | text[start + 1]
    bound_inside = u64(lowest_ranks[pair]) if last else NO_BOUND
    for k in range(last):
        entry = byte_pairs[pair]
        token_id = u64(letter_ids[letter])
        letter = pair & 255
        pair = letter << 8 | text[start + i64(k) + 2]
        bound_after = u64(lowest_ranks[pair]) if u64(k) + ONE < last else NO_BOUND
        n, was_sure = _keep_or_merge(
            bound_before, bound_after, token_id, entry, n, was_sure, ids, first, bounds
        )
        bound_before = bound_inside
        bound_inside = bound_after
    ids[first + n] = letter_ids[letter]
    bounds[n] = bound_before
    n += ONE - was_sure
    n_before = n + ONE
    while n > ONE and n < n_before:
        bounds[n] = NO_BOUND
        n_before = n
        n = u64(0)
        was_sure = u64(0)
        token_id = u64(ids[first])
        bound_before = bounds[0]
        bound_inside = bounds[1]
        for k in range(n_before - ONE):
            next_id = u64(ids[first + u64(k) + ONE])
            bound_after = bounds[u64(k) + u64(2)]
            entry = _find_merge(token_id, next_id, merges)
            memory[u64(k)] = entry
            n, was_sure = _keep_or_merge(
                bound_before, bound_after, token_id, entry, n, was_sure, ids, first, bounds
            )
            token_id = next_id
            bound_before = bound_inside
            bound_inside = bound_after
        ids[first + n] = token_id
        bounds[n] = bound_before
        n += ONE - was_sure
    return i64(n)


@inline_kernel
def _merge_short(n, text, start, has_entries, byte_pairs, merges, memory, ids, at):
    """Merge the pair of lowest rank, the leftmost of several, again and again.

        while pair := min(pairs that merge, by rank and position):
            join(pair)

    Returns the number of ids that are left. ids[at : at + n] are the ids of the letters; `merges`
    and `byte_pairs` are those of BpeTables. memory[k] is the entry of the ids k and k + 1, already
    at the beginning if it `has_entries`; otherwise the ids are of the bytes at text[start]. A merge
    leaves a gap at i; each round closes it, and finds the next pair on the way. That takes n²
    steps, but no more time than a heap for up to MAX_LINEAR_MERGE letters.
    """
    first = u64(at)
    last = u64(max(n - 1, 0))
    lowest = NO_RANK  # the lowest rank, and its position in the lower bits
    for k in range(last):
        if not has_entries:
            entry = byte_pairs[i64(text[start + k]) << 8 | text[start + k + 1]]
            if entry == LOOK_UP:
                entry = _find_merge(ids[first + u64(k)], ids[first + u64(k) + ONE], merges)
            memory[u64(k)] = entry
        entry = memory[u64(k)]
        lowest = min(lowest, entry & ~ID_MASK | u64(k))
    while lowest < NO_RANK:
        i = lowest & ID_MASK
        token_id = u32(memory[i] & ID_MASK)
        ids[first + i + ONE] = token_id
        last -= ONE
        if i < last:
            right = ids[first + i + u64(2)]
            memory[i + ONE] = _find_merge(token_id, right, merges)
        if i:
            left = ids[first + i - ONE]
            memory[i - ONE] = _find_merge(left, token_id, merges)
        lowest = NO_RANK
        for k in range(last):
            j = u64(k) + u64(u64(k) >= i)
            entry = memory[j]
            memory[u64(k)] = entry
            ids[first + u64(k)] = ids[first + j]
            lowest = min(lowest, entry & ~ID_MASK | u64(k))
        ids[first + last] = ids[first + last + ONE]
    return min(n, i64(last) + 1)


@inline_kernel
def _queue_merge(left, right, merges, symbols, entries, heap):
    """Look up the merge of two neighbours, and push it if it exists.

    The arrays are those of `_merge_long`: symbols, uint32[N]; entries, uint64[N]; and the heap.
    """
    entries[left] = _find_merge(symbols[left], symbols[right], merges)
    if entries[left] < NO_RANK:
        heapq.heappush(heap, entries[left] >> ID_BITS << u64(32) | u64(left))


@inner_kernel
def _merge_long(n, tables, alpha, state, ids, at):
    """Merge as `_merge_short` does, but in n log n steps for a word of n letters.

    An item of the heap has the rank of a pair in its upper half, and the position of its first
    symbol in the lower half. The symbols are a linked list: before[k] and after[k] are the
    neighbours of k. With alpha > 0, each merge that is chosen is left out with this probability,
    until another one is made. `state`, uint64[1], is that of `_random`.
    """
    before = np.empty(n, i64)
    after = np.empty(n, i64)
    entries = np.empty(n, u64)  # of each symbol and the next one
    left_out = [NO_MERGE]  # and the items that were left out since the last merge
    heap = left_out[:0]
    # The loops are slower if they read these arrays from the struct.
    symbols = ids[at : at + n]
    merges = borrowed(tables.merges)
    for k in range(n):  # np.arange and np.full take longer to compile
        before[k] = k - 1
        after[k] = k + 1
        entries[k] = NO_MERGE
        if k:
            _queue_merge(k - 1, k, merges, symbols, entries, heap)
    while len(heap):
        item = heapq.heappop(heap)
        i = i64(item & LOW_HALF)
        # Skip the item if one of its symbols was merged meanwhile, or if it is a duplicate, due to
        # equal ranks.
        if entries[i] >> ID_BITS != item >> u64(32) or item == left_out[-1]:
            continue
        if alpha > 0.0 and _random(state) < alpha:
            left_out.append(item)
            continue
        while len(left_out) > 1:
            heapq.heappush(heap, left_out.pop())
        j = after[i]
        k = after[j]
        symbols[i] = entries[i] & ID_MASK
        after[i] = k
        entries[i] = NO_MERGE
        entries[j] = NO_MERGE
        if k < n:
            before[k] = i
            _queue_merge(i, k, merges, symbols, entries, heap)
        if i:
            _queue_merge(before[i], i, merges, symbols, entries, heap)
    n_left = 0
    k = 0
    while k < n:
        symbols[n_left] = symbols[k]
        n_left += 1
        k = after[k]
    return n_left


@inner_kernel
def _random(state):
    """Draw a float64 in [0, 1): the upper 53 bits of SplitMix64 (Steele, Lea and Flood 2014).

    state is uint64[1].
    """
    state[0] += u64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> u64(27))) * u64(0x94D049BB133111EB)
    x ^= x >> u64(31)
    return np.float64(x >> u64(11)) * 2.0**-53


@inline_kernel
def _write_parts(n, parts, ids, at, size):
    """Write the parts of unused tokens in the place of ids[at : at + n]; returns the number of ids.

    `parts` is that of BpeTables, int64[V, 2] or empty. The ids are taken from the end. The id of an
    unused token gives way to its one or two parts, which are taken next. The id of a used token
    moves to the end of ids[at : at + size], before the ids that are already there. There is room
    for all ids, since each stands for at least one of the `size` bytes of the word.
    """
    # Without unused tokens there is nothing to do. But a branch for this case would make Numba
    # count references.
    stop = at + n * i64(len(parts) > 0)
    first = at + size
    while stop > at:
        stop -= 1
        token_id = ids[stop]
        if parts[token_id, 0] >= 0:
            ids[stop] = parts[token_id, 0]
            stop += 1
            if parts[token_id, 1] >= 0:
                ids[stop] = parts[token_id, 1]
                stop += 1
        else:
            first -= 1
            ids[first] = token_id
    n_moved = at + size - first
    for k in range(n_moved):
        ids[at + k] = ids[first + k]
    return n_moved or n


@kernel
def segment_bpe(text, start, size, tables, memory, ids, at):
    """Cut the word text[start : start + size] into ids[at :].

    Returns their number, or -1 if a letter has no id; the word has a single part then. A word of
    bytes is merged in parts, between which no token has the two adjacent bytes: see the proof of
    `exact_pattern`.
    """
    n_words = tables.tokens.n_words
    entries = borrowed(tables.tokens.entries)
    long_words = borrowed(tables.tokens.long_words)
    text = borrowed(text)
    ids = borrowed(ids)
    merges = borrowed(tables.merges)
    byte_pairs = borrowed(tables.byte_pairs)
    memory = borrowed(memory)
    n = ZERO
    end = start
    stop = start + size
    if n_words:
        token_id = _find_value(text, start, size, entries, long_words) - 1
        if token_id >= 0:
            ids[at] = token_id
            n += 1
            end = stop
    while end < stop:
        first = end
        end += 1
        while end < stop and byte_pairs[i64(text[end - 1]) << 8 | text[end]] != NO_TOKEN:
            end += 1
        size_part = end - first
        has_bounds = MIN_BOUNDED_BYTES <= size_part < MAX_BOUNDED_BYTES and len(tables.bounds) > 0
        if has_bounds:
            n_part = _merge_sure(text, first, size_part, tables, memory, ids, at + n)
        else:
            n_part = _letters_to_ids(text, first, size_part, tables, ids, at + n)
        if n_part <= MAX_LINEAR_MERGE:
            n_part = _merge_short(
                n_part, text, first, has_bounds, byte_pairs, merges, memory, ids, at + n
            )
        else:
            n_part = _merge_long(n_part, tables, 0.0, memory, ids, at + n)
        n += n_part
    return _write_parts(n, borrowed(tables.parts), ids, at, size)


@kernel
def _fill_byte_pairs(is_inside, tables):
    """Fill `BpeTables.byte_pairs`; is_inside[a << 8 | b]: whether some token has these bytes."""
    letter_ids = tables.letter_ids
    for k in range(len(is_inside)):
        entry = NO_TOKEN
        if is_inside[k]:
            entry = _find_merge(letter_ids[k >> 8], letter_ids[k & 255], tables.merges)
            entry = entry if entry < NO_RANK else NO_MERGE
        tables.byte_pairs[k] = entry


@kernel
def _fill_bounds(rows, pairs, tokens, tables):
    """Fill `BpeTables.bounds`; rows and pairs are those of `_fill_merges`."""
    text, starts, sizes = tokens
    bounds = tables.bounds
    bounds[:] = NO_BOUND
    for m in range(len(rows)):
        left = pairs[rows[m, 2], 0]
        right = pairs[rows[m, 2], 1]
        if left >= 0:
            pair = i64(text[starts[left] + sizes[left] - 1]) << 8 | text[starts[right]]
            bounds[pair] = min(i64(bounds[pair]), rows[m, 3])


@kernel
def _fill_merges(rows, enters_all_pairs, tokens, tables):
    """Enter merges into the tables.

    Returns the pair that makes each token, int64[V, 2], or -1; and whether all merges had room.

    rows       int64[M, 4]: two ids, or ANY_PAIR, the resulting id, and the rank; merges of shorter
               tokens come first
    enters_all_pairs  enter all pairs of ids; otherwise only those that make a token
    tokens     TokenBytes

    Several pairs could make the same token, but only one of them ever does. To find it, the kernel
    segments the bytes of the token by the merges of shorter tokens, which are already in the
    tables: two tokens are left, and are the pair. It enters this pair alone: 200,000 of the 446,000
    pairs of o200k. A table half as large makes merging twice as fast.

    Proof. Let a pair become a token somewhere in a word. All merges in its bytes until then took
    place within these bytes, and each had the lowest rank, the leftmost of several, also among the
    pairs in these bytes. So they are the merges of these bytes as a word of their own, and the last
    one is the merge of this pair.
    """
    text, starts, sizes = tokens
    ids = np.empty(len(text) + 2, u32)
    memory = np.empty(2 * MAX_BOUNDED_BYTES, u64)
    pairs = np.full((len(sizes), 2), -1)
    n = 0
    last_token = -1
    merges = tables.merges
    is_filled = True
    for m in range(len(rows)):
        left = rows[m, 0]
        right = rows[m, 1]
        token_id = rows[m, 2]
        entry = u64(rows[m, 3]) << ID_BITS | u64(token_id)
        if token_id != last_token:
            start = starts[token_id]
            n = segment_bpe(text, start, sizes[token_id], tables, memory, ids, ZERO)
            last_token = token_id
        is_pair = left == ids[0] and right == ids[1]
        if n == 2 and (is_pair or left == ANY_PAIR):
            left = pairs[token_id, 0] = i64(ids[0])
            right = pairs[token_id, 1] = i64(ids[1])
        elif left == ANY_PAIR or not enters_all_pairs:
            continue
        if _find_merge(left, right, merges) >= NO_RANK:  # a pair may come twice, the best first
            is_filled &= _enter_merge(left, right, entry, merges)
    return pairs, is_filled


@kernel
def sample_bpe(text, start, size, tables, alpha, state, ids, at):
    """Cut a word as `segment_bpe` does, but leave out merges at random.

    Returns the number of ids, or -1. This is BPE-dropout (Provilkov, Emelianenko and Voita 2020).
    Each search for the pair of lowest rank leaves out each candidate with the probability alpha,
    and merging ends when none is left. So alpha 0 gives the ids of `segment_bpe`, and alpha 1 those
    of the letters. With alpha > 0 no word is looked up whole. `state`, uint64[1], is that of
    `_random`.
    """
    if not alpha > 0.0:
        return segment_bpe(text, start, size, tables, np.empty(2 * MAX_BOUNDED_BYTES, u64), ids, at)
    n = _letters_to_ids(text, start, size, tables, ids, at)
    if n > 0:
        n = _merge_long(n, tables, alpha, state, ids, at)
    return _write_parts(n, tables.parts, ids, at, size)


def exact_pattern(model):
    r"""Compute a regular expression that cuts text only where no token of a model of characters
    crosses the cut.

    Models of SentencePiece take a whole text as one word. With this pattern, its pretokens can be
    segmented one by one and kept in the cache:

        ▁*(?:[set]+|[\s\S])

    1. The set in brackets has the characters that are adjacent to another one in some token.
    2. The mark is ▁ or, in a model without it, the space. It does not count as a neighbour if no
       token has another character before it. Otherwise it is a character like any other, and the
       pattern lacks ▁*.
    3. Unknown characters are cut off, unless they depend on their neighbours: if they are left out,
       or if several become one token. Then the set has all characters but the letters that are
       adjacent to no other.
    4. The pattern is "none" if a part on its own could be segmented differently: if words are
       looked up whole or have a suffix, or if tokens of unknown characters merge; or if the set
       would have all characters.
    5. It is "none", too, for a Unigram whose own pattern cuts texts. Rounding decides between ways
       with equal sums, such as "9" + "99" and "99" + "9", and it depends on the sum of the pretoken
       up to there. Through a whole text, that sum goes on from part to part, in a RunningSum.

    Proof. Let the pattern cut between x and y. Either one of them shares no token with other
    characters except the mark; or y is the mark, and x is not. In no token does x come before y, so
    no segment crosses the cut. A merge across the cut would make such a token, and merges on one
    side do not depend on the other side. A longest match ends at the cut. A sum of scores is the
    sum of both sides, and it is greatest if both are. An unknown character becomes the same in each
    part. If unknown characters are left out or become one token, a known letter is beside each cut,
    and no token reaches over it.

    >>> vocab = dict(enumerate("▁ a b c d ▁a ab".encode().split()))
    >>> merges = [("▁".encode(), b"a"), (b"a", b"b")]
    >>> pattern = exact_pattern(Model(vocab, merges, alphabet="characters"))
    >>> regex.findall(pattern, "▁ab▁acd▁▁")
    ['▁ab', '▁a', 'c', 'd', '▁▁']
    """
    merged = {*itertools.chain(*(model.merges or ()))}
    merges_unknown = fallback_tokens(model) & merged
    sums_in_pretokens = model.kind == "unigram" and not model.sums_through_text
    depends_on_more = merges_unknown or model.synonyms  # than the bytes of the tokens
    if model.looks_up_words or model.word_suffix or depends_on_more or sums_in_pretokens:
        return "none"
    letters = {*map(chr, model.letters)}
    tokens = _made_tokens(model)
    texts = [token.decode("utf-8", "replace") for token in tokens]
    pairs = {pair for text in texts for pair in itertools.pairwise(text)}
    joins_unknown = _joins_unknown(model, tokens)
    mark = "▁" if "▁" in letters else " "
    is_inside = any(left != mark == right for left, right in pairs)
    if mark not in letters or model.drops_unknown or is_inside:
        mark = ""
    joined = {char for pair in pairs if mark not in pair for char in pair}
    characters = letters - joined if joins_unknown else joined
    if joins_unknown and not characters:
        return "none"
    run = ""
    if characters:
        run = _write_set(characters, negated=joins_unknown) + "+|"
    return rf"{mark and mark + '*'}(?:{run}[\U00000000-\U0010ffff])"


def _made_tokens(model):
    """Collect the tokens that text becomes, except characters that only stand alone."""
    if model.kind == "unigram":  # also the names of byte tokens, which a text may have
        ids = [*model.ordinary, *model.found_as_unknown]
        possible = (k for k in ids if model.scores[k] > -np.inf)
        return {*map(model.vocab.get, possible)}
    if model.merges is None:
        return {*model.ordinary_ids}
    return {*map(b"".join, model.merges)}


def _joins_unknown(model, tokens):
    """Check whether unknown characters are left out, or become one token with their neighbours."""
    falls_back = model.byte_fallback and fallback_tokens(model) <= model.ids.keys()
    # a text may have the unknown token itself, which then becomes one token with them
    is_written = model.kind == "unigram" and str(model.unk_token).encode() in tokens
    return model.drops_unknown or (model.fuse_unk and (is_written or not falls_back))


@inline_kernel
def begin_nothing(text, start, is_new, tables, memory, ids, at):
    """Do nothing: in most kinds of models, the ids of a word depend on no word before it."""


@public
class Kind(NamedTuple):
    """The functions of a kind of model; the last four are optional.

    tables(model)      makes a struct of everything that the kernels need. A kind with `sample` also
                       takes `samples`; True asks for the tables of `sample`
    tables_type        the class of the struct; Numba chooses the kernels by it
    segment(text, start, size, tables, memory, ids, at)
                       a kernel. It writes the ids of the word text[start : start + size], uint8, to
                       ids[at :], uint32, where there is room for an id for each byte. Returns their
                       number n, or -1 if some letter has no id, or UNCACHED - n if the ids depend
                       on the words before, so that no other word may get them from the cache
    write(model)       makes the "model" object of a tokenizer.json, whose "type" is the name of the
                       kind
    read(data, added, alphabet)
                       returns fields of Model from that object, the texts of added tokens, and
                       "bytes" or "characters"
    sample(text, start, size, tables, alpha, state, ids, at)
                       a kernel like `segment` that cuts at random; `state` is uint64[…] for
                       `_random`
    exact_pattern(model)
                       returns a pattern that cuts only where no token crosses the cut
    memory()           makes the argument `memory`, which each thread has; by default space for
                       any use within one word, uint64[2 * MAX_BOUNDED_BYTES]
    begin_text(text, start, is_new, tables, memory, ids, at)
                       a kernel for models whose words depend on those before them. It is called
                       where a text begins, and after a special token, at text[start] and ids[at].
                       If an earlier text goes on there, `is_new` is False

    >>> KINDS["wordlevel"].write(Model({0: b"a"}, None, kind="wordlevel", alphabet="characters"))
    {'type': 'WordLevel', 'unk_token': '<unk>', 'vocab': {'a': 0}}
    """

    tables: Callable
    tables_type: type
    segment: Callable
    write: Callable
    read: Callable
    sample: Callable | None = None
    exact_pattern: Callable | None = None
    memory: Callable = functools.partial(np.empty, 2 * MAX_BOUNDED_BYTES, u64)
    begin_text: Callable = begin_nothing


KINDS = {}  # name -> Kind; the section Kinds fills it


def _kernel_of_kind(name):
    """Make a function for kernels that finds a kernel of a kind of model, the field `name` of Kind.

    `_segment(tables)` is `segment_bpe` if the tables are BpeTables. The Numba type of the tables
    decides this when the caller is compiled. So no loop tests for the kind, and only the kinds in
    use are compiled.
    """

    def find(tables):
        kind = next(kind for kind in KINDS.values() if kind.tables_type is type(tables))
        return getattr(kind, name)

    @overload(find)
    def choose(tables):
        kind = next(kind for kind in KINDS.values() if kind.tables_type.numba_type is type(tables))
        chosen = getattr(kind, name)
        return lambda tables: chosen

    return find


_segment = _kernel_of_kind("segment")
_begin_text = _kernel_of_kind("begin_text")
_sample = _kernel_of_kind("sample")


# An entry of the cache is one of the table of words. Its columns `value` and `more` hold the ids,
# or where they are:
#
#     up to 3 ids, 15 bytes    value: id, id << 32           more: id | number << 48
#     otherwise                value: place in the pool      more: IN_POOL | number << 48 |
#                                                                  place in long_words
#
# So the entry of "lowest", the ids 259 and 257, has the value 259 | 257 << 32, and 2 << 48 as
# `more`.
#
# A cache of n entries is full with n / 2 words, and then becomes four times as large. Doing so at
# once would take some milliseconds. So the larger table is made ready in steps, with each word that
# is stored:
#
#     the first n / 4 words     nothing
#     the last n / 4 words      each clears 16 entries of the larger table, which are 4 n, and
#                               copies 4 entries of the cache there
#
# A cache of the largest size is full with three quarters of its entries. Then it begins anew, as
# small as at first, since clearing a large table would take some milliseconds, too.
IN_POOL = u64(1 << 63)
N_IDS_SHIFT = u64(48)
N_IDS_MASK = u64(2**15 - 1)


@struct
class _Workspace:
    """The tables and the memory of one encoding thread.

    Memory is used again, since fresh memory doubles the time.
    """

    tables: BpeTables  # or those of another kind of model
    table: ScanTable
    lanes: np.ndarray  # see Scan
    marks: np.ndarray
    keys: np.ndarray  # uint64[4 * KEYS], for _word_keys
    memory: np.ndarray  # uint64[…], or other memory that the kind of model needs; see Kind
    words: _WordTable  # the cache
    larger: np.ndarray  # uint64[4 H, 4], the entries of the next one; empty at the largest size
    pool: np.ndarray  # uint32[…], ids of words that have more than three ids, or are long
    n_ends: int  # ENDs so far
    n_texts: int  # texts that have ended
    n_pooled: int  # ids in the pool
    n_encoded: int  # words of the batch that are done, with the ENDs
    min_entries: int  # of the cache at first
    max_entries: int  # of the cache
    special: _SpecialTable  # tokens that are cut out of a text that is not flat
    text: np.ndarray  # see FlatText
    scanned: np.ndarray
    meanings: np.ndarray
    ids: np.ndarray  # uint32[…]       the result
    id_stops: np.ndarray  # int64[T]   where the ids of each text end


@kernel
def _new_larger(n, max_entries):
    """Make the entries for the successor of a cache of n entries, uint64[…, 4], on huge pages.

    They are not initialized.
    """
    size = min(4 * n, max_entries) * (n < max_entries)
    block = _on_huge_pages(np.empty(32 * size + 2 * HUGE_PAGE, u8))
    start = -i64(block.ctypes.data) % HUGE_PAGE
    return block[start : start + 32 * size].view(u64).reshape((size, 4))


# the entries that are cleared in advance, as room for words beside their home slots
CLEARED_AHEAD = 64


@inline_kernel
def _clear_entries(entries, start, stop):
    """Clear the entries from `start` to `stop`."""
    for k in range(start, stop):
        for column in range(4):
            entries[k, column] = 0


@inline_kernel
def _prepare_larger(n_words, slot, entries, larger):
    """Make a step towards the larger table, after word number `n_words` was stored in a slot.

    Home slots have the same order in both tables. So a part of the larger one is cleared, and then
    gets its words while the processor's cache still has it.
    """
    n = len(entries)
    first = 4 * (n_words - n // 4)  # from the n / 4-th word on, each word moves four entries
    if first >= 0 and len(larger):
        ratio = len(larger) // n
        n_cleared = min(ratio * (first + 4) + CLEARED_AHEAD, len(larger))
        _clear_entries(larger, ratio * first + CLEARED_AHEAD * (first > 0), n_cleared)
        if slot < first:  # the others are copied now or later
            _copy_entry(entries, slot, larger, n_cleared)
        for k in range(first, first + 4):
            _copy_entry(entries, k, larger, n_cleared)


@inner_kernel
def _renew_cache(workspace):
    """Make the cache larger; at its limit, or with a full pool, begin a small one."""
    words = workspace.words
    if len(workspace.larger) and 2 * words.n_words >= len(words.entries):
        words.entries = workspace.larger
    else:
        words.entries = _new_entries(workspace.min_entries)
        words.n_words = words.n_long_bytes = workspace.n_pooled = 0
    workspace.larger = _new_larger(len(words.entries), workspace.max_entries)


@inline_kernel
def _store_ids(entries, slot, pool, n_pooled, n, ids, at):
    """Write n ids, ids[at :], into an entry of the cache that has its key, or into the pool.

    entries   uint64[H, 4]
    pool      uint32[…], which must have room
    n_pooled  the number of ids in the pool; the new number is returned
    """
    if n > 3 or entries[slot, 1] >= LONG:
        entries[slot, VALUE] = u64(n_pooled)
        entries[slot, MORE] |= IN_POOL
        for k in range(n):
            pool[n_pooled + k] = ids[at + k]
        n_pooled += n
    else:  # always three ids; the first n are valid
        second = u64(ids[at + 1])
        entries[slot, VALUE] = u64(ids[at]) | second << u64(32)
        entries[slot, MORE] = u64(ids[at + 2])
    entries[slot, MORE] |= u64(n) << N_IDS_SHIFT
    return n_pooled


@inline_kernel
def _copy_ids(value, more, pool, ids, at):
    """Copy the ids of an entry of the cache, its `value` and `more`; returns where they end.

    All numbers are uint64. There must be room for the ids, at least for 3.
    """
    n = more >> N_IDS_SHIFT & N_IDS_MASK
    ids[at] = value & LOW_HALF
    ids[at + ONE] = value >> u64(32)
    ids[at + u64(2)] = more & LOW_HALF
    if more & IN_POOL:
        i = u64(0)
        while i < n:  # by twos: LLVM unrolls a loop of single ids, which is slower for a few
            ids[at + i] = pool[value + i]
            ids[at + i + ONE] = pool[value + i + ONE]
            i += u64(2)
    return at + n


@inline_kernel
def _copy_hits(keys, key, stop, flat, pool, ids, at):
    """Copy the ids of words in their home slots in the cache, up to the first word that is not.

    This is the hot loop, so it searches no other slots.

    keys  uint64[4 * KEYS], from `_word_keys`; those of the words are keys[key : stop]
    flat  uint64[4 * H], the entries of the cache: an index into it needs a shift, not a product
          with a stride

    Returns where in `keys` it stopped, and where the ids end; all numbers are uint64.
    """
    is_hit = True
    while is_hit and key < stop:
        first = u64(4) * keys[key + u64(2)]
        high = keys[key + ONE]
        value = flat[first + u64(VALUE)]
        more = flat[first + u64(MORE)]
        other = flat[first] ^ keys[key]
        other |= flat[first + ONE] ^ high
        is_hit = not (other | (high >> u64(63)))  # a long word needs a second look
        if is_hit:
            at = _copy_ids(value, more, pool, ids, at)
            key += u64(4)
    return key, at


@inline_kernel
def _end_text(workspace, meanings, ids, at):
    """Write the id of a special token, or where the ids of a text end; returns where ids end."""
    meaning = meanings[workspace.n_ends]
    workspace.n_ends += 1
    if meaning >= 0:
        ids[at] = meaning
        at += 1
    elif meaning == BOUNDARY:
        workspace.id_stops[workspace.n_texts] = at
        workspace.n_texts += 1
    return at


@inline_kernel
def _begin_after_end(workspace, meanings, text, start, ids, at):
    """Prepare the model for the text that begins after an END."""
    tables = workspace.tables
    is_new = workspace.n_ends < len(meanings)  # the last text may go on in the next part
    _begin_text(tables)(text, start, is_new, tables, workspace.memory, ids, at)


@inline_kernel
def _segment_kept(workspace, text, start, size, ids, at):
    """Cut a word by the kernel of its kind; returns the number of ids, 0 for a dropped word."""
    tables = workspace.tables
    class_of = borrowed(workspace.table.class_of)
    dropped = borrowed(workspace.table.dropped)
    n = ZERO
    if not _is_dropped(text, start, start + size, class_of, dropped):
        n = _segment(tables)(text, start, size, tables, workspace.memory, ids, at)
    return n


@inline_kernel
def _most_words(n_entries, max_entries):
    """Return the number of words that fill a cache."""
    most = n_entries // 2
    if n_entries == max_entries:
        most += most // 2
    return most


@inner_kernel
def _encode_words(workspace, text, scanned, meanings, at):
    """Write the ids of a batch of words, from word number `n_encoded` on, until the cache is full.

    The arguments are those of `_encode_flat`. Returns where the ids end, or -1 - start of a word
    that cannot be encoded. There must be room for two ids more. Word k is text[bounds[k] :
    bounds[k + 1]]. Keys are made for up to KEYS words at once, the words `base` to `n_keyed`. `key`
    is the place of the key of word k among them.
    """
    text = borrowed(text)
    scanned = borrowed(scanned)
    meanings = borrowed(meanings)
    ids = borrowed(workspace.ids)
    words = workspace.words
    keys = borrowed(workspace.keys)
    pool = borrowed(workspace.pool)
    larger = borrowed(workspace.larger)
    entries = borrowed(words.entries)
    long_words = borrowed(words.long_words)
    flat = entries.reshape(-1)
    n = workspace.lanes[0, N_ENDS]
    bounds = borrowed(workspace.lanes)[0, FIRST:]
    k = n_keyed = base = workspace.n_encoded
    n_long = words.n_long_bytes
    n_pooled = workspace.n_pooled
    most_words = _most_words(len(entries), workspace.max_entries)
    room = len(pool) - MAX_CACHED_BYTES - 1  # as much as for the bytes of long words
    while k < n and at >= 0 and words.n_words < most_words and max(n_long, n_pooled) <= room:
        if k >= n_keyed:
            base = k
            n_keyed = min(k + KEYS, n)
            _word_keys(text, bounds[k], bounds[k + 1 :], n_keyed - k, entries, keys)
        key = u64(4 * (k - base))
        key, out = _copy_hits(keys, key, u64(4 * (n_keyed - base)), flat, pool, ids, u64(at))
        at = i64(out)
        k = base + i64(key >> u64(2))
        if k == n_keyed:
            continue
        start = bounds[k]
        k += 1
        if scanned[start] == END:
            at = _end_text(workspace, meanings, ids, at)
            _begin_after_end(workspace, meanings, text, bounds[k], ids, at)
            continue
        low = keys[key]
        high = keys[key + ONE]
        slot = _find_slot(entries, long_words, low, high, keys[key + u64(2)], text, start)
        if entries[slot, 1]:
            at = i64(_copy_ids(entries[slot, VALUE], entries[slot, MORE], pool, ids, u64(at)))
            continue
        size = bounds[k] - start
        n_ids = _segment_kept(workspace, text, start, size, ids, at)
        is_byte_fe = size == 1 and text[start] == END  # its key is that of END
        if n_ids >= 0 and size <= MAX_CACHED_BYTES and not is_byte_fe:
            words.n_words += 1
            n_long = _store_key(entries, long_words, n_long, slot, low, high, text, start)
            n_pooled = _store_ids(entries, slot, pool, n_pooled, n_ids, ids, at)
            _prepare_larger(words.n_words - 1, i64(slot), entries, larger)
        at += max(n_ids, UNCACHED - n_ids)
        if n_ids == -1:
            at = -1 - start
    words.n_long_bytes = n_long
    workspace.n_pooled = n_pooled
    workspace.n_encoded = k
    return at


@kernel
def _sample_words(workspace, tables, alpha, state, at):
    """Cut words, which have an END after each, at random; the rest is as in `_encode_flat`.

    tables  those of `sample`
    state   uint64[2]: that of `_random`, and the seed of the first text; each text has the next one
    """
    text = workspace.text
    scanned = workspace.scanned
    meanings = workspace.meanings
    ids = workspace.ids
    workspace.n_ends = workspace.n_texts = 0
    start = ZERO
    for end in range(len(text) - PADDING):
        if scanned[end] != END:
            continue
        if start < end:
            n = _sample(tables)(text, start, end - start, tables, alpha, state, ids, at)
            if n < 0:
                return -1 - start
            at += n
        n_texts = workspace.n_texts
        at = _end_text(workspace, meanings, ids, at)
        # the last text may go on in the next part
        if n_texts < workspace.n_texts and workspace.n_ends < len(meanings):
            state[0] = state[1] + u64(workspace.n_texts)
        start = end + 1
    return at


@kernel
def _take_text(workspace, special, text, scanned, meanings, ids, id_stops):
    """Put a flat text and the arrays for its ids into a workspace: see `_encode_flat`."""
    workspace.special = special
    workspace.text = text
    workspace.scanned = scanned
    workspace.meanings = meanings
    workspace.ids = ids
    workspace.id_stops = id_stops


@kernel
def _take_changed(workspace, address, n_raw, passes):
    """Put the text at an address into a workspace, after passes; returns whether that is possible.

    It is not possible if a character may change with its neighbours, or if there is no room for the
    ids. This is a kernel of its own, so that only tokenizers with such passes compile them.
    """
    text = np.empty(n_raw + 1 + PADDING, u8)
    copy_memory(text.ctypes.data, address, n_raw)
    text[n_raw] = END
    text, meanings = _change_text(_add_padding(text, n_raw + 1), np.full(1, BOUNDARY), passes)
    if not len(text) or len(text) > len(workspace.ids):
        return False
    workspace.text = text
    workspace.scanned = text
    workspace.meanings = meanings
    return True


@kernel
def _encode_flat(workspace, address, n_raw, opening, at):
    """Write the ids of the text of a workspace to ids[at :], and the ends of each text's ids.

    There must be room for as many ids as the text has bytes. Returns the end of all ids, or
    -1 - start of a word that cannot be encoded.

    When the cache is full, it is renewed in the middle of a batch of words.

    address  where a single text lies that is not flat yet, and must have no real byte 0xFE
    n_raw    the number of its bytes; -1 for a flat text
    opening  how the first text begins
    """
    lanes = borrowed(workspace.lanes)
    marks = borrowed(workspace.marks)
    table = borrowed(workspace.table)
    text = workspace.text
    scanned = workspace.scanned
    meanings = workspace.meanings
    if n_raw >= 0:
        copy_memory(text.ctypes.data, address, n_raw)
        text[n_raw] = END
        text = _add_padding(text, n_raw + 1)
        text, meanings = _cut_at_special(text, text, meanings, workspace.special)
        scanned = text
    is_new = opening != CONTINUES
    _begin_text(workspace.tables)(
        text, ZERO, is_new, workspace.tables, workspace.memory, workspace.ids, at
    )
    stop = _begin_scan(text, lanes)
    workspace.n_ends = workspace.n_texts = workspace.n_encoded = 0
    while at >= 0 and (workspace.n_encoded < lanes[0, N_ENDS] or lanes[0, POSITION] < stop):
        if workspace.n_encoded < lanes[0, N_ENDS]:
            _renew_cache(workspace)
        else:
            scanned = _scan_batch(scanned, stop, table, lanes, marks)
            workspace.n_encoded = 0
        at = _encode_words(workspace, text, scanned, meanings, at)
    return at


@kernel
def _join_tokens(ids, tokens):
    """Join the bytes of tokens; returns them and -1, or the index of the first invalid id."""
    text, starts, sizes = tokens
    total = 0
    for k in range(len(ids)):
        token_id = i64(ids[k])
        if token_id >= len(sizes) or sizes[token_id] < 0:
            return text[:0], k
        total += sizes[token_id]
    out = np.empty(total + PADDING, u8)
    at = ZERO
    for k in range(len(ids)):
        start = starts[ids[k]]
        at = _copy_bytes(text, start, start + sizes[ids[k]], out, at)
    return out[:total], -1


# ─── WordPiece ────────────────────────────────────────────────────────────────────────────────────
#
# Word -> ids: the word is cut from the left, each time into the longest token that fits. The first
# token has no prefix; the later ones have the prefix "##" in the vocabulary, and are matched
# without it:
#
#     tokens low, ##e, ##est, [UNK]     "lowest"  ->  low ##est
#                                       "lower"   ->  [UNK], since ##r is missing
#
# Words -> Learned: learning merges pairs as for a BPE, by their counts or by their likelihoods.


@struct
class WordPieceTables:
    """The tokens that may begin a word, and the tokens that may continue it."""

    beginning: Trie  # all tokens as they are, since "##" in a text is plain text
    continuing: Trie  # the tokens with the prefix, which is removed
    unknown: int  # the id of words that cannot be cut, or -1
    max_chars: int  # of a word; longer ones are unknown
    of_bytes: bool  # bytes are its characters


def wordpiece_tables(model):
    """Make the tables of `segment_wordpiece` for a model."""
    prefix = model.subword_prefix.encode()
    tokens = {token_id: model.vocab[token_id] for token_id in model.ordinary}
    continuing = {
        token_id: token.removeprefix(prefix)
        for token_id, token in tokens.items()
        if model.kind == "wordpiece" and token.startswith(prefix)  # a WordLevel has whole words
    }
    unknown = -1 if model.unknown_id is None else model.unknown_id
    tries = make_trie(tokens), make_trie(continuing)
    return WordPieceTables(*tries, unknown, model.max_word_chars, model.alphabet == "bytes")


@kernel
def segment_wordpiece(text, start, size, tables, memory, ids, at):
    """Cut a word into its longest tokens; Kind describes the arguments.

    Tokens of characters are UTF-8, so words are cut only between characters, and a word with
    invalid bytes is unknown.
    """
    position = start
    stop = start + size
    n = 0
    n_chars = 0
    trie = tables.beginning
    for k in range(start, stop):
        n_chars += tables.of_bytes or text[k] & 0xC0 != 0x80
    is_unknown = n_chars > tables.max_chars
    while position < stop and not is_unknown:
        node = ZERO
        end = position
        token_id = -1
        for k in range(position, stop):
            node = trie_child(node, text[k], trie.edges)
            if node < 0:
                break
            if trie.values[node] >= 0:
                end = k + 1
                token_id = trie.values[node]
        ids[at + n] = max(token_id, 0)
        is_unknown = token_id < 0
        position = end
        n = n + 1
        trie = tables.continuing
    if is_unknown:
        ids[at] = max(tables.unknown, 0)
        n = 1 if tables.unknown >= 0 else -1
    return n


PREFIX = b"##"  # of the tokens that continue a word


def _mark_continuing(words, required_chars=""):
    """Number the symbols that begin words, which are all characters, before the others.

    Required characters do both. Returns words, and the number of symbols that begin words.
    """
    a = len(words.alphabet)
    words = _occurring(words)
    marked = words.symbols + a
    marked[words.offsets[:-1]] -= a
    present = np.zeros(2 * a, bool)
    present[marked] = present[marked % a] = True
    required = np.isin(words.alphabet, [*map(str.encode, required_chars)])
    present |= np.tile(required, 2)
    symbols = (np.cumsum(present) - 1)[marked].astype(np.int32)
    alphabet = [words.alphabet[k % a] for k in np.flatnonzero(present)]
    return words._replace(symbols=symbols, alphabet=alphabet), int(present[:a].sum())


@public
def learn_wordpiece(
    words,
    n_symbols,
    *,
    score: str | Callable = "count",
    min_frequency: int = 1,
    longest_token: Positive = LONGEST_LEARNT,
    required_chars: str | Iterable[str] = "",
    n_beginning: int | None = None,
    progress: bool = False,
):
    """Learn `n_symbols` tokens of characters, including the alphabet.

    score          the pair with the greatest score merges, as in a `Learner`; no size contains the
                   prefix. With "count", ties are broken by ids, as in Hugging Face's
                   WordPieceTrainer. With "likelihood", after Schuster and Nakajima (2012),
                   "Japanese and Korean Voice Search", or with a function, on a tie the greater
                   count goes first, then the greater bytes without the prefix, left then right,
                   then symbols that begin words
    min_frequency  rarer pairs do not merge; without a limit, the likelihood prefers pairs that
                   occur once
    longest_token  the most characters of a token, without the prefix
    required_chars characters of the alphabet of `words` that become tokens with and without the
                   prefix, even if they do not occur
    n_beginning    the number of symbols that begin words; they and the others, which continue
                   words, are tokens of a model without the prefix

    `words` hold plain characters. Tokens that continue words have the prefix. The alphabet has all
    characters that occur, and with the prefix the ones that occur after the first character of a
    word, both in the order of the alphabet of `words`, which decides ties by ids. Hugging Face
    orders the ones with the prefix at random, so ties may give other tokens there. Raises
    InputError if there are no words, or if the alphabet has more than `n_symbols` symbols.

    >>> words = Words.from_counts({b"low": 5, b"lower": 2, b"newest": 6, b"widest": 3})
    >>> learn_wordpiece(words, 20).tokens[-3:]
    [b'##w', b'##es', b'##est']
    >>> learned = learn_wordpiece(Words.from_counts({b"aab": 3, b"b": 1}), 5, score="likelihood")
    >>> learned.tokens, learned.pairs.tolist()
    ([b'a', b'b', b'##a', b'##b', b'aa'], [[0, 2]])
    """
    marked = words
    if n_beginning is None:
        marked, n_beginning = _mark_continuing(words, required_chars)
    learned = learn(
        marked,
        n_symbols,
        score=score,
        tie_break="ids" if score == "count" else "bytes",
        min_frequency=min_frequency,
        longest_token=longest_token,
        progress=progress,
    )
    prefixes = [PREFIX * (k >= n_beginning) for k in range(len(marked.alphabet))]
    for left, _ in learned.pairs.tolist():
        prefixes.append(prefixes[left])
    tokens = [*map(bytes.__add__, prefixes, learned.tokens)]
    return learned._replace(
        tokens=tokens,  # two symbols may be the same token
        alphabet=tokens[: len(marked.alphabet)],
        merges=None,
        longest_word=int(words.sizes.max(initial=0)),
    )


# ─── Unigram ──────────────────────────────────────────────────────────────────────────────────────
#
# A Unigram model gives each token a probability that does not depend on its neighbours. The
# probability of a way to cut a word is the product of those of its tokens (Kudo 2018, "Subword
# Regularization"). A *score* is the logarithm of a probability. The ways to cut a word are the
# paths through its *lattice*, which has a node before each character and after the last one, and an
# edge for each token that matches there. There are two tasks:
#
#     segmenting   word -> ids: the path with the greatest sum of scores (Viterbi)
#     learning     Words -> tokens and scores: begin with many frequent substrings; in each round
#                  estimate how often each token is used (EM), and remove the tokens whose loss
#                  costs the least probability
#
# Learning only removes tokens, so its lattices need little space. For each position in the words
# they hold the longest token that begins there, and for each token the next shorter one, which
# begins at the same positions. Such a chain ends with the character itself, which is always a
# token. With 0 for "a", 1 for "b" and 2 for "ab", the word "aba" is
#
#     longest    2    1    0            shorter of 2    0        of 0 and 1    -1

# These five have the values of SentencePiece.
MAX_TOKEN_CHARS = 16
SEED_SIZE = 1_000_000
SUB_ITERATIONS = 2
SHRINKING_FACTOR = 0.75
LEAST_EXPECTED = 0.5  # occurrences; tokens with fewer are dropped
LATTICE_PARTS = 8  # for threads; the number is fixed, since sums of floats depend on it
# Probabilities below TINY are scaled up by HUGE, so that words may have any length.
TINY = 2.0**-100
HUGE = 2.0**100


class _Lattice(NamedTuple):
    """The lattices of words; see above. A token has a greater number than the next shorter one."""

    longest: np.ndarray  # int32[N]      position -> the longest token that begins there
    shorter: np.ndarray  # int32[V]      token -> the next shorter one, or -1
    sizes: np.ndarray  # int32[V]        token -> its number of characters
    places: np.ndarray  # int64[V]       token -> a position where it begins
    offsets: np.ndarray  # int64[W + 1]  as in Words
    counts: np.ndarray  # int64[W]       as in Words


@kernel
def _expect(lattice, probabilities, words):
    """Compute the expected counts of tokens in some words, float64[V].

    probabilities   float64[V], of the tokens
    words           the number of the first word, and the number after the last one

    This is the forward-backward algorithm. `backward` includes the count of the word divided by its
    probability, so an edge adds forward * probability * backward. If a value is below TINY, all
    nodes that are reached are scaled up; the backward pass does so at the same nodes.
    """
    longest, shorter, sizes, _, offsets, counts = lattice
    # A row lies in one cache line. It has the probability and the expectation of a token.
    table = np.zeros((len(sizes), 2))
    for token in range(len(sizes)):
        table[token, 0] = probabilities[token]
    reach = sizes.max()
    n_nodes = ZERO
    for w in range(len(counts)):
        n_nodes = max(n_nodes, offsets[w + 1] - offsets[w])
    n_nodes += 1 + reach  # room to scale after the last node
    forward = np.empty(n_nodes)
    backward = np.empty(n_nodes)
    scaled = np.empty(n_nodes, np.bool_)
    for w in range(words[0], words[1]):
        start = offsets[w]
        n = offsets[w + 1] - offsets[w]
        forward[: n + 1] = 0.0
        forward[0] = 1.0
        for k in range(n):
            scaled[k] = forward[k] < TINY
            if scaled[k]:
                for node in range(k, k + reach):
                    forward[node] *= HUGE
            token = longest[start + k]
            while token >= 0:
                forward[k + sizes[token]] += forward[k] * table[token, 0]
                token = shorter[token]
        backward[n] = counts[w] / forward[n]
        for k in range(n - 1, -1, -1):
            token = longest[start + k]
            backward[k] = 0.0
            while token >= 0:
                onward = table[token, 0] * backward[k + sizes[token]]
                backward[k] += onward
                table[token, 1] += forward[k] * onward
                token = shorter[token]
            if scaled[k]:
                for node in range(k, k + reach):
                    backward[node] *= HUGE
    return table[:, 1].copy()


# Logarithms and powers for learning, by the formulas of fdlibm (Sun Microsystems 1993). They have
# only operations that all processors round alike; np.log and np.exp differ in the last bit.
_LOG_TERMS = (0.1479819860511658591, 0.1531383769920937332, 0.1818357216161805012,
    0.2222219843214978396, 0.2857142874366239149, 0.3999999999940941908,
    0.6666666666666735130)  # fmt: skip
_EXP_TERMS = (4.13813679705723846039e-08, -1.65339022054652515390e-06, 6.61375632143793436117e-05,
    -2.77777777770155933842e-03, 1.66666666666666019037e-01)  # fmt: skip
_LN_2 = 6.93147180369123816490e-01  # its upper bits, and its lower ones
_LN_2_REST = 1.90821492927058770002e-10


@inner_kernel
def _log(x):
    """Compute the natural logarithm of a float from 0 to below inf."""
    if x == 0:
        return -np.inf
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa *= 2
        exponent -= 1
    f = mantissa - 1
    s = f / (2 + f)
    square = s * s
    terms = 0.0
    for term in _LOG_TERMS:
        terms = (terms + term) * square
    half = f * f / 2
    return exponent * _LN_2 - ((half - (s * (half + terms) + exponent * _LN_2_REST)) - f)


@inner_kernel
def _exp(x):
    """Compute e to the power of a float below 700."""
    if x < -745:
        return 0.0
    exponent = round(x / (_LN_2 + _LN_2_REST))
    upper = x - exponent * _LN_2
    lower = exponent * _LN_2_REST
    f = upper - lower
    square = f * f
    terms = 0.0
    for term in _EXP_TERMS:
        terms = (terms + term) * square
    c = f - terms
    return math.ldexp(1 - ((lower - f * c / (2 - c)) - upper), exponent)


@kernel
def _logs(values):
    """Compute the logarithm of each value, float64[N]."""
    return np.array([_log(value) for value in values])


@kernel
def _exps(values):
    """Compute e to the power of each value, float64[N]."""
    return np.array([_exp(value) for value in values])


@kernel
def _losses(lattice, n_alphabet, scores, expected):
    """Estimate the loss of log probability of the corpus without each token, as SentencePiece does.

    scores, expected   float64[V]: of the tokens

    Returns float64[V]. All expected occurrences of a token become the tokens into which its own
    characters are best cut without it (Viterbi). The loss is -inf for a token that is never
    expected or is itself cut, and for the alphabet.
    """
    longest, shorter, sizes, places, _, _ = lattice
    losses = np.full(len(scores), -np.inf)
    total = expected.sum()
    longest_size = i64(sizes.max())
    best = np.empty(longest_size + 1)
    last = np.empty(longest_size + 1, i64)
    for token in range(n_alphabet, len(scores)):
        n = i64(sizes[token])
        count = expected[token]
        if count == 0:
            continue
        best[:] = -np.inf
        best[0] = 0.0
        for k in range(n):
            other = longest[places[token] + k]
            if k == 0:
                other = shorter[token]
            while other >= 0:
                end = k + sizes[other]
                score = best[k] + scores[other]
                if end <= n and score > best[end]:
                    best[end] = score
                    last[end] = other
                other = shorter[other]
        if best[n] > scores[token]:
            continue
        n_others = 0
        others = 0.0
        while n > 0:
            other = last[n]
            others += _log(expected[other] + count)
            n_others += 1
            n -= sizes[other]
        others -= n_others * _log(total + count * (n_others - 1))
        losses[token] = count * (_log(count / total) - others)
    return losses


def _digamma(x):
    """Compute the digamma function, the derivative of log gamma."""
    # The recurrence leads to a number that is large enough for the asymptotic series.
    y = x + 6.5
    terms = [-127 / 30720, 31 / 8064, -7 / 960, 1 / 24, 0]
    series = _logs(y) + np.polyval(terms, 1 / (y * y))
    return series - sum(1 / (x + k) for k in range(7))


def _find_substrings(tokens, words, lattice):
    """Find tokens among the substrings of `_list_substrings`: int64[T], negative for the others."""
    symbol_of = {letter.decode(): symbol for symbol, letter in enumerate(words.alphabet)}
    # The number of a substring without its last symbol, and this symbol, make the key of the whole.
    last_symbols = words.symbols[lattice.places + lattice.sizes - 1]
    last_symbols[: len(symbol_of)] = np.arange(len(symbol_of))
    keys = lattice.shorter.astype(i64) << 32 | last_symbols
    order = np.argsort(keys)

    def longer(number, letter):
        """Return the number of a substring with a letter added; -1 is the empty one, -2 no one."""
        key = number << 32 | symbol_of.get(letter, -1)
        place = keys.searchsorted(key, sorter=order)  # after all others for the greatest key
        row = order[place % len(keys)]
        return row if keys[row] == key else -2

    return np.array([functools.reduce(longer, token.decode(), -1) for token in tokens])


def _weigh_seeds(substrings, longest):
    """Compute the occurrences of substrings times their sizes, float64[S]; or -inf for no seed.

    A seed has `longest` symbols at most, and no single character always follows it.
    """
    totals = substrings.counts.astype(np.float64)
    most_continued = np.zeros(len(totals) + 1)  # the last is that of no substring, -1
    np.maximum.at(most_continued, substrings.shorter, totals)
    is_seed = (totals > most_continued[:-1]) & (substrings.sizes <= longest)
    return np.where(is_seed, substrings.sizes * totals, -np.inf)


class _UnigramLearner:
    """The remaining tokens, their probabilities, and the lattices of the words."""

    def __init__(self, words, seed_size, longest, engine=None, scores=()):
        """Begin with the alphabet, and the substrings with the greatest occurrences times size.

        scores  tokens that stay, and their scores
        """
        self.engine = engine or Engine()
        self.words = _in_order(_occurring(words))  # the order and the number decide the rounding
        self.n_alphabet = a = len(words.alphabet)
        # one symbol more than a token may have, so that it is known which ones continue a token
        substrings = _list_substrings(self.words, longest + 1, 2)
        self.lattice = _Lattice(
            longest=substrings.longest,
            shorter=substrings.shorter,
            sizes=substrings.sizes,
            places=substrings.places,
            offsets=self.words.offsets,
            counts=self.words.counts,
        )
        weights = _weigh_seeds(substrings, longest)
        weights[:a] = np.maximum(substrings.counts[:a], LEAST_EXPECTED)
        self.fixed = np.full(len(weights), np.nan)  # the probabilities that stay
        if scores:
            numbers = _find_substrings(scores, self.words, self.lattice)
            occurs = numbers >= 0
            self.fixed[numbers[occurs]] = _exps(np.array([*scores.values()]))[occurs]
        self.n_fixed = int(np.count_nonzero(self.fixed >= 0))
        # the tokens that are always kept: the fixed ones and the alphabet
        self.n_needed = self.n_fixed + int(np.count_nonzero(np.isnan(self.fixed[:a])))
        self.probabilities = np.maximum(weights, 0.0)
        self.keep(weights, a + self.n_fixed + seed_size)
        self.probabilities /= self.probabilities.sum()
        self.probabilities = np.where(self.fixed >= 0, self.fixed, self.probabilities)

    @property
    def n_tokens(self):
        return np.count_nonzero(self.probabilities)

    @property
    def scores(self):
        return _logs(self.probabilities)

    def keep(self, values, n):
        """Keep n tokens: the alphabet, the fixed ones, and the ones with the greatest values."""
        values = np.where(self.fixed >= 0, np.inf, values)
        values[: self.n_alphabet] = np.inf
        ids = np.sort(_best_first(values)[:n])
        lattice = self.lattice
        shorter = lattice.shorter
        new_ids = np.full(len(shorter) + 1, -1, np.int32)  # the last is that of no token, -1
        new_ids[ids] = np.arange(len(ids))
        forgotten = np.flatnonzero(new_ids[:-1] < 0)
        while len(forgotten):  # each gets the new id of the longest shorter token that is kept
            new_ids[forgotten] = new_ids[shorter[forgotten]]
            forgotten = forgotten[new_ids[forgotten] < 0]
        self.lattice = lattice._replace(
            longest=new_ids[lattice.longest],
            shorter=new_ids[shorter[ids]],
            sizes=lattice.sizes[ids],
            places=lattice.places[ids],
        )
        self.probabilities = self.probabilities[ids]
        self.fixed = self.fixed[ids]

    def expect(self):
        """Compute the expected count of each token."""
        bounds = np.linspace(0, len(self.words.counts), LATTICE_PARTS + 1).astype(i64)
        parts = itertools.pairwise(bounds.tolist())
        work = functools.partial(_expect, self.lattice, self.probabilities)
        return sum(self.engine.map(work, parts, threads=True))

    def maximize(self):
        """Make a step of expectation maximization.

        As in SentencePiece, the digamma function replaces the logarithm, which favours fewer tokens
        (Liang and Klein 2007, "Structured Bayesian Nonparametric Models with Variational
        Inference").
        """
        expected = self.expect()
        letters = expected[: self.n_alphabet]
        np.maximum(letters, LEAST_EXPECTED, out=letters)
        expected[expected < LEAST_EXPECTED] = 0.0  # digamma(0) is -inf
        with np.errstate(divide="ignore"):
            logs = _digamma(expected) - _digamma(np.array([expected.sum()]))
        self.expected = expected
        self.probabilities = np.where(self.fixed >= 0, self.fixed, _exps(logs))

    def spell(self, token):
        """Return the bytes of a token."""
        if token < self.n_alphabet:
            return self.words.alphabet[token]
        start = self.lattice.places[token]
        symbols = self.words.symbols[start : start + self.lattice.sizes[token]]
        return b"".join(self.words.alphabet[symbol] for symbol in symbols.tolist())


@public
def learn_unigram(
    words,
    n_symbols,
    *,
    longest_token: Positive = MAX_TOKEN_CHARS,
    old_scores: Mapping[bytes, float] | None = None,
    workers: Positive | Executor | None = None,
    progress: bool = False,
):
    """Learn `n_symbols` tokens, including the alphabet, and their probabilities (Kudo 2018).

    longest_token  the most characters of a token
    old_scores     tokens of a model and their scores: both stay, these tokens are among the
                   `n_symbols`, and probabilities are fitted for new tokens alone

    Learning begins with the SEED_SIZE substrings of up to `longest_token` symbols that cover the
    most of the corpus; there may be fewer. Each round fits the probabilities in SUB_ITERATIONS
    steps of expectation maximization. It then keeps the fraction SHRINKING_FACTOR of the tokens:
    the alphabet, and the tokens whose removal would cost the most probability. The last tenth of
    the tokens is removed by probability. SentencePiece does the same, but takes its seeds from the
    text before it is cut into words. `workers` and `progress` are as in an Engine. Raises
    InputError if there are no words.

    >>> words = Words.from_counts({b"low": 5, b"lower": 2, b"newest": 6, b"widest": 3})
    >>> learned = learn_unigram(words, 260)
    >>> sorted(learned.tokens, key=len)[-4:]
    [b'low', b'lower', b'newest', b'widest']
    >>> learned = learn_unigram(Words.from_counts({b"abab": 9, b"ab": 5, b"ba": 1}), 258)
    >>> learned.tokens[:2], learned.scores[:2].round(2).tolist(), learned.merges
    ([b'abab', b'ab'], [-2.88, -3.27], None)
    """
    _check_words(words, n_symbols)
    engine = Engine(workers, progress)
    scores = old_scores or {}
    learner = _UnigramLearner(words, SEED_SIZE, longest_token, engine, scores)
    _require_room(learner.n_needed - learner.n_fixed, n_symbols - len(scores))
    n_symbols -= len(scores) - learner.n_fixed  # old tokens that do not occur are left out
    goal = learner.n_fixed + (n_symbols - learner.n_fixed) * 11 // 10
    n = max(learner.n_tokens, goal)
    with engine.progress_bar("prune", n - goal, " tokens") as bar:
        while True:
            for _ in range(SUB_ITERATIONS):
                learner.maximize()
            bar.update(n - max(learner.n_tokens, goal))
            n = learner.n_tokens
            if n <= goal:
                break
            losses = _losses(learner.lattice, learner.n_alphabet, learner.scores, learner.expected)
            learner.keep(losses, max(goal, int(SHRINKING_FACTOR * n)))
    learner.keep(learner.scores, n_symbols)
    order = _best_first(learner.scores)
    tokens = [*map(learner.spell, order.tolist())]
    return Learned(tokens, words.alphabet, scores=learner.scores[order])


# Segmenting. Scores of float64 are summed in float64, as in Hugging Face, and scores of float32 in
# float32, as in SentencePiece. The sum goes through a pretoken, or through a whole text if the
# pattern does not cut it. Rounding decides between paths with nearly equal sums, such as "9" + "99"
# and "99" + "9", so it depends on the text before them.
#
# A word of N bytes within a text is *sure* if its best path is the best one, whatever sum came
# before it. While no sum is further from 0 than a limit, each token adds an error of at most half
# the spacing of floats there. A path has N tokens at most, so errors change the difference of two
# paths by N spacings at most, and by as much after another sum. So the two can change places only
# if their sums differ by 2 * N spacings or less.

UNKNOWN_PENALTY = 10.0  # the score of an unknown character is that of the worst token minus this
# In SentencePiece, a sum that is further from 0 than this is subtracted from all later sums.
MAX_SUM = 100_000.0
MAX_SURE_BYTES = 64  # of a word
# By the type of the scores: the limit, and a number of bytes. A sum is near if no text of so many
# bytes leads from it to the limit. In single precision these are the bytes of a word, and in double
# precision those of a whole text. With scores far from 0, no sum is near then, and no word is sure.
_LIMITS = {"float32": (MAX_SUM, MAX_SURE_BYTES), "float64": (1e12, 2**30)}


@struct
class UnigramTables:
    """Tokens and their scores."""

    trie: Trie
    runs: Trie  # of tokens with the score -inf: only a whole run of unknown characters becomes one
    scores: np.ndarray  # float64[V + 1]  by id; the last one is the score of an unknown character
    written: np.ndarray  # int64[V + 1]   the ids that they become: unk_id for unused tokens
    byte_ids: np.ndarray  # int32[256]    the ids of "<0x00>" to "<0xFF>", or -1
    longest: int  # bytes of the longest token
    unk_id: int  # -1 for none
    fuse_unk: bool
    of_bytes: bool  # bytes are the characters that may be unknown
    in_single: bool  # sums are float32, as in SentencePiece
    through_text: bool  # sums go through a whole text
    near: float  # a sum nearer to 0 is near; see _LIMITS
    rounding: float  # the best path of N bytes is sure if it leads by more than N times this


@struct
class RunningSum:
    """The sum of the scores of a text, up to some word of it."""

    total: float = 0.0
    n_bytes: int = 0  # text[:n_bytes] is in it
    n_ids: int = 0  # ids[:n_ids] are in it


def _as_parsed(score):
    """Round a score as Hugging Face reads it: decimal digits, divided by a power of ten.

    >>> _as_parsed(-3.8403830528259277)
    -3.840383052825928
    """
    digits = repr(score)
    if "e" in digits:
        digits = np.format_float_positional(score)
    whole, _, fraction = digits.removesuffix(".0").partition(".")
    return float(whole + fraction) / float(f"1e{len(fraction)}")


def unigram_tables(model: Model, samples: bool = False) -> UnigramTables:
    """Make the tables of `segment_unigram` and `sample_unigram`, which are the same.

    Raises InputError if all scores are -inf.
    """
    unused = model.found_as_unknown
    ids = np.array([*model.ordinary, *unused], i64)
    scores = model.scores
    chosen = ids[scores[ids] > -np.inf]
    require(len(chosen), "a unigram model needs tokens with scores")
    if model.sums_in_single:
        finite = scores[chosen]
    else:  # Hugging Face also counts special tokens for the worst score
        scores = np.array([*map(_as_parsed, scores.tolist())])
        finite = scores[scores > -np.inf]
    tokens = {token_id: model.vocab[token_id] for token_id in chosen.tolist()}
    runs = {token_id: model.vocab[token_id] for token_id in unused if token_id not in tokens}
    fallback_ids = model.ids if model.byte_fallback else {}
    unknown = finite.min() - scores.dtype.type(UNKNOWN_PENALTY)
    unk_id = -1 if model.unknown_id is None else model.unknown_id
    limit, n_bytes = _LIMITS[scores.dtype.name]
    rounding = 2 * np.spacing(scores.dtype.type(limit))
    scores = np.append(scores.astype(np.float64), unknown)
    if unk_id not in tokens:
        scores[unk_id] = unknown
    byte_ids = [fallback_ids.get(token, -1) for token in _FALLBACK_TOKENS]
    written = np.arange(len(scores))
    written[[*tokens.keys() & {*unused}, -1]] = unk_id
    return UnigramTables(
        trie=make_trie(tokens),
        runs=make_trie(runs),
        scores=scores,
        written=written,
        byte_ids=np.array(byte_ids, np.int32),
        longest=max(map(len, tokens.values())),
        unk_id=unk_id,
        fuse_unk=model.fuse_unk,
        of_bytes=model.alphabet == "bytes",
        in_single=model.sums_in_single,
        through_text=model.sums_through_text,
        near=float(limit - n_bytes * (np.abs(finite).max() + UNKNOWN_PENALTY)),
        rounding=float(rounding),
    )


@inline_kernel
def _next_edge(child, byte, is_character, edges, values, unknown):
    """Go on from `child`, a node of the trie of the tokens, by a byte.

    Returns the next node of the trie, or NO_CHILD; and the token of the edge in the lattice that
    ends here, or -1 without one. An edge that is one character, but no token, is `unknown`.
    """
    child = trie_child(child, byte, edges)
    token_id = i64(-1)
    if is_character:
        token_id = unknown
    if child >= 0 and values[child] >= 0:
        token_id = i64(values[child])
    return child, token_id


@inner_kernel
def _find_path(word, tables, total, alpha=1.0, state=None):
    """Find the best path of a word, uint8[N] (Viterbi); or a path at random, see `sample_unigram`.

    The nodes are the offsets from 0 to N. Of paths with equal sums, the best is the one with the
    longest last edge. `total` is the sum before the word. Returns

    - `path`, int64[2, N + 1]: of each node, the start and the token of the last edge on its path;
    - the sum after the word;
    - whether it is sure without unknown characters, so that the scores of its ids give the sum.
    """
    edges = tables.trie.edges
    values = tables.trie.values
    scores = tables.scores
    in_single = tables.in_single and state is None
    through_text = tables.through_text
    unknown = len(scores) - 1
    size = len(word)
    lattice = np.empty((4, size + 1))
    lattice[:2] = -np.inf
    sums = lattice[0]
    gaps = lattice[1]  # the second best sum minus the best one, or nearer to 0
    path = lattice[2:].view(i64)
    sums[0] = total
    is_sure = abs(total) < tables.near and size <= MAX_SURE_BYTES
    node = ZERO
    while node < size:
        if in_single and abs(sums[node]) > MAX_SUM:
            # SentencePiece subtracts a far sum from all later ones: from those with an edge so far.
            before = sums[node]
            for k in range(node, min(node + tables.longest, size) + 1):
                sums[k] = np.float32(sums[k] - before)
        following = node + 1  # the next character; an invalid byte is one
        if not tables.of_bytes:
            following = node + (_decode_character(word, node, size) & 7)
        end = node
        child = ZERO
        while end < size and (child >= 0 or end < following):
            is_character = end + 1 == following
            child, token_id = _next_edge(child, word[end], is_character, edges, values, unknown)
            end += 1
            if token_id >= 0:
                total = sums[node] + alpha * scores[token_id]
                if in_single:
                    total = float(np.float32(total))
                if through_text:
                    gaps[end] = max(gaps[end], -abs(total - sums[end]))
                if state is None:
                    is_chosen = total > sums[end]
                    sums[end] = max(total, sums[end])
                else:
                    sums[end] = np.logaddexp(total, sums[end])
                    is_chosen = _random(state) < np.exp(total - sums[end])
                if is_chosen:
                    path[0, end] = node
                    path[1, end] = token_id
        node = following
    while node > 0:
        is_sure &= gaps[node] < -tables.rounding * size
        is_sure &= tables.written[path[1, node]] != tables.unk_id
        node = path[0, node]
    return path, sums[size], is_sure or not through_text


@inner_kernel
def _write_path(word, tables, path, ids, at):
    """Write the ids of a word from the path of `_find_path`; returns their number.

    With `fuse_unk`, consecutive unknown characters, and unknown tokens that are written in the
    text, become one token. Unknown characters become the tokens of their bytes if all of these
    exist, and otherwise a token of `runs` or the unknown token. Without one the result is -1.
    """
    unknown = len(tables.scores) - 1
    unknown_ids = (unknown, tables.unk_id)
    edges = borrowed(tables.runs.edges)
    values = borrowed(tables.runs.values)
    byte_ids = tables.byte_ids
    node = len(word)
    stop = at + node
    # The path is followed from its end. It has room, since each id stands for at least one byte.
    first = stop
    while node > 0:
        end = node
        token_id = path[1, node]
        node = path[0, node]
        can_fuse = tables.fuse_unk and token_id in unknown_ids
        while can_fuse and node > 0 and path[1, node] in unknown_ids:
            token_id = unknown
            node = path[0, node]
        has_bytes = token_id == unknown
        for k in range(node, end):
            has_bytes &= byte_ids[word[k]] >= 0
        if token_id == unknown and len(values) > 1:  # `runs` has a token
            child = ZERO
            for k in range(node, end):
                child, token_id = _next_edge(child, word[k], k + 1 == end, edges, values, unknown)
        token_id = tables.written[token_id]
        if has_bytes:
            first -= end - node
            for k in range(node, end):
                ids[first + k - node] = byte_ids[word[k]]
        elif token_id < 0:
            return -1
        else:
            first -= 1
            ids[first] = token_id
    for k in range(first, stop):
        ids[at + k - first] = ids[k]
    return stop - first


@kernel
def sample_unigram(text, start, size, tables, alpha, state, ids, at):
    """Cut a word at random: a path has a probability proportional to exp(alpha * score).

    At each node, the probabilities of all paths to it are summed, and each new edge replaces the
    last one with the probability of its share in the sum (Chao 1982, "A general purpose unequal
    probability sampling plan").
    """
    word = text[start : start + size]
    path, _, _ = _find_path(word, tables, 0.0, alpha, state)
    return _write_path(word, tables, path, ids, at)


@kernel
def begin_unigram(text, start, is_new, tables, memory, ids, at):
    """Begin a new text at text[start] and ids[at], or add up the scores of the words before.

    Words that are not sure are not cached. For cached words, the scores of their ids are added
    here, to the RunningSum `memory`, before another word is cut. If MAX_SUM may be reached, the
    best path through these words is found again.
    """
    total = memory.total
    is_near = True
    if is_new:
        total = 0.0
    elif tables.through_text:
        for k in range(memory.n_ids, at):
            is_near &= abs(total) < tables.near
            total += tables.scores[ids[k]]
            if tables.in_single:
                total = float(np.float32(total))
    if not is_near:
        _, total, _ = _find_path(text[memory.n_bytes : start], tables, memory.total)
    memory.total = total
    memory.n_bytes = start
    memory.n_ids = at


@kernel
def segment_unigram(text, start, size, tables, memory, ids, at):
    """Cut a word into the ids of its best path, as Kind describes; `memory` is a RunningSum."""
    word = text[start : start + size]
    total = 0.0
    if tables.through_text:
        begin_unigram(text, start, np.bool_(False), tables, memory, ids, at)
        total = memory.total
    path, memory.total, is_sure = _find_path(word, tables, total)
    n = _write_path(word, tables, path, ids, at)
    memory.n_bytes = start + size
    memory.n_ids = at + n
    return n if is_sure else UNCACHED - n


# ─── Decoding ─────────────────────────────────────────────────────────────────────────────────────
#
# Vocabulary, steps of a decoder -> two texts for each token: one as the first token of a text, and
# one as a later token. So decoding ids means joining texts:
#
#     {0: "▁to", 1: "▁be"}, Metaspace   ->   {0: "to", 1: "be"}, {0: " to", 1: " be"}
#     [0, 1]                            ->   "to" + " be"

_HEX_DIGITS = "0123456789ABCDEFabcdef"
# The name of a byte -> the byte, as text. Rust reads a plus sign in a number, too.
_NAMED_BYTES = {
    f"<0x{first}{last}>": bytes([int(first + last, 16)]).decode("utf-8", "surrogateescape")
    for first in "+" + _HEX_DIGITS
    for last in _HEX_DIGITS
}
_CLEANUP = {
    " .": ".",
    " ?": "?",
    " !": "!",
    " ,": ",",
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " do not": " don't",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}


def _decode_wordpiece(token, is_first, prefix, cleanup):
    """Decode a token of WordPiece."""
    if not is_first:  # a token has a space before it unless it continues a word
        token = f" {token}".removeprefix(f" {prefix}")
    if cleanup:
        for text, replacement in _CLEANUP.items():
            token = token.replace(text, replacement)
    return token


def _decode_metaspace(token, is_first, replacement, prepend_scheme="always", **_):
    """Replace each mark by a space; in the first token remove it, unless none was put there."""
    if is_first and prepend_scheme != "never":
        return token.replace(replacement, "")
    return token.replace(replacement, " ")


def _decode_strip(token, is_first, content, start, stop):
    """Remove a character up to `start` times from the start of a token, and `stop` from its end."""
    for _ in range(min(start, len(token))):
        token = token.removeprefix(content)
    for _ in range(min(stop, len(token))):
        token = token.removesuffix(content)
    return token


def _decode_byte(token, is_first):
    """Replace the name of a byte, such as <0xE4>, by the byte."""
    return _NAMED_BYTES.get(token, token)


def _decode_names(token, is_first, **_):
    """Read a token whose characters all name bytes; others stay as they are."""
    if not _BYTE_NAMES.issuperset(token):
        return token
    return _read_names([token])[0].decode("utf-8", "surrogateescape")


def _decode_tokens(decode, tokens, is_first, **fields):
    """Call a function of one token for each of several tokens."""
    return [decode(token, is_first, **fields) for token in tokens]


# The function that decodes a token, by the type of a step; its further parameters are the fields. A
# BPEDecoder writes no spaces in the last token of a text, see `decoded_endings`.
_TOKEN_DECODERS = {
    "BPEDecoder": lambda text, is_first, suffix: text.replace(suffix, " "),
    "ByteFallback": _decode_byte,
    "ByteLevel": _decode_names,
    "Fuse": lambda text, is_first: text,
    "Metaspace": _decode_metaspace,
    "Replace": lambda text, _, pattern, content: text.replace(pattern["String"], content),
    "Strip": _decode_strip,
    "WordPiece": _decode_wordpiece,
}


# These steps decode the first token of a text differently.
_OTHER_AT_FIRST = ("Metaspace", "WordPiece")
_DECODERS = {
    name: functools.partial(_decode_tokens, decode) for name, decode in _TOKEN_DECODERS.items()
}


def _decodes_separately(step, tokens):
    """Check whether a step decodes joined tokens as it decodes each token on its own."""
    match step:
        case {"type": "Fuse"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(replaced)}}:
            return len(replaced) == 1 and replaced.isascii()
        case {"type": "Strip", "content": str(content), "start": 1, "stop": 0}:
            return content.isascii() and all(tokens)
    return False


def decoded_tokens(vocab, decoder, *, is_last=False):
    """Decode each token by the steps of a decoder, as the first of a text and as a later one.

    Where a token is the last of a text, a BPEDecoder removes its suffix.

    If the text that the `tokenizers` package decodes is UTF-8, the joined results equal it.
    ByteFallback and Fuse join tokens. A step after them must be applicable to each token on its
    own: Replace of one ASCII character, or Strip of one at the start. Raises InputError for all
    other steps.

    >>> steps = [{"type": "Metaspace", "replacement": "▁"}]
    >>> first, later = decoded_tokens({0: "▁a".encode(), 1: b"<0xE4>"}, steps)
    >>> first[0], later[0], later[1]
    (b'a', b' a', b'<0xE4>')
    """
    if not decoder:
        return vocab, vocab
    as_first = [token.decode("utf-8", "surrogateescape") for token in vocab.values()]
    as_later = as_first
    are_joined = False
    for step in _flattened(decoder, "decoders"):
        if is_last and step["type"] == "BPEDecoder":
            suffix = {"String": step["suffix"]}
            step = {"type": "Replace", "pattern": suffix, "content": ""}
        require(
            not are_joined or is_last or _decodes_separately(step, as_first),
            f"the decoder {step!r:.100} is not supported after a step that joins tokens",
        )
        decoded = _call_step("decoder", _DECODERS, step, as_first, True)
        if not are_joined or step["type"] == "Replace":
            are_same = as_later is as_first and step["type"] not in _OTHER_AT_FIRST
            as_later = (
                decoded if are_same else _call_step("decoder", _DECODERS, step, as_later, False)
            )
        as_first = decoded
        are_joined |= step["type"] in ("ByteFallback", "ByteLevel", "Fuse")
    encode = operator.methodcaller("encode", "utf-8", "surrogateescape")
    return [dict(zip(vocab, map(encode, texts), strict=True)) for texts in (as_first, as_later)]


def decoded_endings(vocab, decoder, decoded):
    """Find the tokens that a BPEDecoder decodes otherwise where a text ends.

    Returns two dictionaries, for the first token of a text and for later ones: id -> how the
    decoded token ends if another one follows, and how if none does.

    decoded  as from `decoded_tokens`

    >>> vocab, steps = {0: b"a</w>"}, [{"type": "BPEDecoder", "suffix": "</w>"}]
    >>> decoded_endings(vocab, steps, decoded_tokens(vocab, steps))
    ({0: (' ', '')}, {0: (' ', '')})
    """
    endings = {}, {}
    if "BPEDecoder" not in [step["type"] for step in decoder]:
        return endings
    at_end = decoded_tokens(vocab, decoder, is_last=True)
    for table, texts, last_texts in zip(endings, decoded, at_end, strict=True):
        for token_id, text in texts.items():
            last_text = last_texts[token_id]
            if text != last_text:
                n_equal = sum(itertools.takewhile(bool, map(operator.eq, text, last_text)))
                both = text[n_equal:], last_text[n_equal:]
                table[token_id] = tuple(one.decode("utf-8", "replace") for one in both)
    return endings


# ─── Formats ──────────────────────────────────────────────────────────────────────────────────────
#
# A Model <-> files. A reader makes a Model from the content of files, and raises InputError for
# unsupported features. A writer makes the content of files, by name, and raises InputError if the
# format cannot represent the model. Before a writer returns the content of a format other than
# huggingface, it reads the content back and compares the models (`_require_same`).
#
#     format         files                          cannot represent
#     huggingface    tokenizer.json and two more    two texts of one id
#     gpt2           vocab.json, merges.txt         pattern, normalizer, flags, unknown tokens
#     tiktoken       .tiktoken, and a .json         merges not in order of ids, normalizer, flags
#     sentencepiece  .model                         all but a .model that was read, and new tokens
#
# BERT's vocab.txt and Mistral's tekken.json are only read.
#
# The name of a token is the string that stands for it in a file. Tokens of characters are their
# own names. In the name of a token of bytes, each byte is one of GPT-2's characters: {"Ġhi": 300}
# stands for 300: b" hi". A special token is named by its text.

LARGEST_FILE = 1 << 28  # bytes of a model file; the largest tokenizer.json has some 40 million


def _read_limited(path):
    """Read a model file; raises InputError if it is too large to be one."""
    size = os.path.getsize(path)
    require(size <= LARGEST_FILE, f"{path}: has {size >> 20} MB: it is not a tokenizer")
    return Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)


def _read_text(path):
    """Read a file of text in UTF-8."""
    with naming_file(path):
        return _read_limited(path).decode()


class RankFile(NamedTuple):
    """A rank file that was published for tiktoken, and the facts that the file does not contain."""

    pattern: str
    special_tokens: Ids
    digest: str  # SHA-256 of the file


# Published encodings. Each has a name, the name of its pattern, the digest of its file, and its
# special tokens: an id, and the names of the tokens from there on, where a:2:5 means a2 a3 a4.
# These facts come from tiktoken 0.14 and from Llama 3's own code. In o200k_harmony the id 200018
# has two texts: <|endofprompt|> and <|reserved_200018|>.
_PUBLISHED = """
gpt2 gpt2 306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930
50256 endoftext

r50k_base gpt2 306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930
50256 endoftext

p50k_base gpt2 94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069
50256 endoftext

cl100k_base cl100k 223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7
100257 endoftext fim_prefix fim_middle fim_suffix 100276 endofprompt

o200k_base o200k 446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d
199999 endoftext 200018 endofprompt

o200k_harmony o200k 446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d
199998 startoftext endoftext reserved_:200000:200002 return constrain reserved_200004 channel start
end message reserved_:200009:200012 call reserved_:200013:201088 200018 endofprompt

llama3 llama3 82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55
128000 begin_of_text end_of_text reserved_special_token_:0:4 start_header_id end_header_id
reserved_special_token_4 eot_id reserved_special_token_:5:251

llama3.1 llama3 82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55
128000 begin_of_text end_of_text reserved_special_token_:0:2 finetune_right_pad_id
reserved_special_token_2 start_header_id end_header_id eom_id eot_id python_tag
reserved_special_token_:3:248
"""


def _published(entry):
    """Read an entry of _PUBLISHED; returns its name and a RankFile."""
    name, pattern, digest, *words = entry.split()
    special_tokens = {}
    for word in words:
        stem, *bounds = word.split(":")
        numbers = range(*map(int, bounds)) if bounds else [""]
        if word.isdigit():
            ids = itertools.count(int(word))
        else:
            special_tokens |= {f"<|{stem}{number}|>": next(ids) for number in numbers}
    return name, RankFile(pattern, special_tokens, digest)


ENCODINGS = dict(map(_published, _PUBLISHED.split("\n\n")))


def read_json(data, where):
    """Parse a JSON object; raises InputError for other content."""
    with naming_file(where):
        content = json.loads(data.decode())
        require(isinstance(content, dict), "not a JSON object")
    return content


def _sidecar(path):
    """Return the name of the JSON file that describes a rank file, or a file of ids."""
    return path.with_name(path.name + ".json")


_NO_FILE = "this is no file, but a folder, a pipe, or a link that leads nowhere"


def _read_beside(path):
    """Read the JSON object of an optional file; empty if the file is missing."""
    if path.is_file():
        return read_json(_read_limited(path), path)
    if os.path.lexists(path):
        note(f"{path}: {_NO_FILE}, so it is not read")
    return {}


def _to_json(data, indent=2):
    """Write the JSON of a file; a value that is not JSON, such as an object, becomes a string.

    Half a surrogate pair, which no file can hold, stays the escape that it was.
    """

    def plain(value):
        return value.tolist() if hasattr(value, "tolist") else repr(value)

    written = json.dumps(data, ensure_ascii=False, indent=indent, default=plain)
    return written.encode("utf-8", "backslashreplace").decode() + "\n"


_TRY_TRANSFORMERS = (
    "; if transformers reads it, give its fast tokenizer: "
    "Tokenizer.load(transformers.AutoTokenizer.from_pretrained(folder))"
)


def _refuse(is_there, feature):
    """Raise InputError if a model has a feature that is not supported."""
    require(not is_there, f"{feature} is not supported")


def _by_id(ids, tokens):
    """Return id -> token, without an empty token, which no text becomes."""
    if len(set(ids)) < len(ids):
        raise InputError(f"several tokens have the id {_repeated(ids)}")
    vocab = dict(zip(ids, tokens, strict=True))
    if all(vocab.values()):
        return vocab
    return {token_id: token for token_id, token in vocab.items() if token}


@public
def read_vocab(names: Ids, alphabet: str = "characters", texts: Iterable[str] = ()) -> Vocab:
    """Read a vocabulary from a file; returns id -> token, without an empty token.

    names     name -> id
    alphabet  of the model: it tells how names are read
    texts     names that are read as plain text in any alphabet
    """
    tokens = _tokens_by_name(names, alphabet, names.keys() & texts)
    return _by_id([*names.values()], map(tokens.get, names))


def _tokens_by_name(names, alphabet, texts):
    """Read names in their order; returns name -> token. `texts` are read as plain text."""
    others = [*itertools.filterfalse(texts.__contains__, names)]
    tokens = dict(zip(others, _read_names(others, alphabet), strict=True))
    tokens |= zip(texts, _read_names(texts, "characters"), strict=True)
    return tokens


def _plain_names(names, alphabet):
    """Select the names that are plain text, since they do not stand for bytes as all others do.

    No text becomes their tokens. Cohere's are emoji, beside the tokens of their bytes.
    """
    if alphabet != "bytes" or _BYTE_NAMES.issuperset("".join(names)):
        return set()
    return {*itertools.filterfalse(_BYTE_NAMES.issuperset, names)}


def _names_of_merges(pairs):
    """List both names of each merge, ["a", "b"] or "a b", end to end."""
    if {*map(type, pairs)} == {str}:
        n_spaces = map(str.count, pairs, itertools.repeat(" "))
        if {*n_spaces} == {1}:
            return " ".join(pairs).split(" ")  # one call is faster than one for each pair
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in pairs]
    wrong = [pair for pair in pairs if len(pair) != 2]
    require(not wrong, f"a merge is two tokens with a space between them, not {wrong[:1]}")
    return [*itertools.chain(*pairs)]


def _read_merges(pairs, alphabet="bytes", skipped=frozenset(), tokens=MappingProxyType({})):
    """Read merges; returns pairs of tokens, without those of a skipped name.

    tokens  name -> token, if they are known
    """
    names = _names_of_merges(pairs)
    if skipped:
        pairs = zip(names[::2], names[1::2], strict=True)
        names = [*itertools.chain(*filter(skipped.isdisjoint, pairs))]
    try:
        both = [*map(tokens.__getitem__, names)]
    except KeyError:
        both = _read_names(names, alphabet)
    return [*zip(both[::2], both[1::2], strict=True)]


def _name_of(model):
    """Return the function that names tokens in files: byte by byte, or as text."""
    return gpt2_name if model.alphabet == "bytes" else bytes.decode


@public
def vocab_names(model: Model) -> Ids:
    """Name the tokens as in files, in the order of ids; a special token is named by its text."""
    ids = {}
    for token_id, name in reversed(_names_by_id(model)):
        # a Unigram that lists a piece twice does not use the earlier one
        if name in ids and token_id not in model.unused:
            raise InputError(
                f"the ids {token_id} and {ids[name]} would both be {name!r} there: give one of "
                "the tokens another text"
            )
        ids.setdefault(name, token_id)
    return dict(reversed(ids.items())) | {
        token.decode(): token_id for token, token_id in model.synonyms.items()
    }


def _names_by_id(model):
    """List all ids and the names of their tokens."""
    ordinary = set(model.ordinary)
    name_of = _name_of(model)
    return [
        (token_id, name_of(token) if token_id in ordinary else token.decode())
        for token_id, token in sorted(model.vocab.items())
    ]


def _names_without_added(model):
    """Name the tokens in the vocabulary of a tokenizer.json.

    The file that the model was read from may list its last special tokens only among the added
    tokens. They have the ids from `added_from` on, and are left out here as well, unless the ids
    have gaps.
    """
    names = vocab_names(model)
    end = model.added_from
    own = {name: token_id for name, token_id in names.items() if token_id < end}
    has_gaps = len(own) < end or max(model.vocab, default=-1) >= len(names)
    return names if has_gaps or max(model.ordinary, default=-1) >= end else own


def _as_merges(model):
    """List the merges of any BPE, and tell whether it first looks up a pretoken as a whole.

    If the model has no list of merges, they follow from its scores or ids. Then it looks up whole
    pretokens if it has tokens that no merge makes.
    """
    if model.merges is not None:
        return model.merges, model.ignore_merges
    if model.scores is not None:
        return _merges_by_score(model), False
    merges, whole_words = last_merges(model)
    return merges, bool(whole_words)


def _merges_by_score(model):
    """List the pairs of tokens that join to a token, the best score first.

    On a tie the longest left token comes first, as in transformers' converters. So runs of spaces,
    which have equal scores in Llama 2, grow from the left, as SentencePiece merges them.
    """
    tokens = model.vocab

    def preference(row):
        left, _, result, _ = row
        texts = [tokens[k].decode("utf-8", "replace") for k in (left, result)]
        return model.scores[result], *map(len, texts)

    rows = sorted(_all_splits(model.ordinary_ids).tolist(), key=preference, reverse=True)
    return [(tokens[left], tokens[right]) for left, right, *_ in rows]


def _require_same(model, other):
    """Raise InputError unless a model that was read back from a file gives the same ids.

    The vocabulary and all steps must be equal. In a BPE, merges, ranks and scores are equivalent if
    each token has the same last merge, if tokens are made in the same order, and if both models
    look up the same tokens that no merge makes.
    """
    if not model.normalizer_steps:  # then the flag `normalized` does nothing
        added = {text: own._replace(normalized=False) for text, own in model.added_tokens.items()}
        model = dataclasses.replace(model, added_tokens=added)
    for field in ("kind", "alphabet", "vocab", "special_tokens", "added_tokens", "normalizer_steps",
                  "unk_token", "byte_fallback", "fuse_unk", "word_suffix", "pattern"):  # fmt: skip
        ours = getattr(model, field)
        theirs = getattr(other, field)
        if ours != theirs:
            raise InputError(f"it cannot represent the {field} {ours!r:.130}, only {theirs!r:.130}")
    if model.kind == "unigram":
        ids = model.ordinary
        is_same = np.array_equal(model.scores[ids], other.scores[ids])
    else:
        is_same = _as_merges(model) == _as_merges(other) or _last_merges_by_rank(
            model
        ) == _last_merges_by_rank(other)
    require(is_same, "it would make some tokens differently or in another order")


def _last_merges_by_rank(model):
    """List the last merge of each token by rank, and the tokens that are only looked up."""
    last, whole_words = last_merges(model)
    last = set(last)
    merges, looks_up = _as_merges(model)
    return [merge for merge in merges if merge in last], looks_up and whole_words


# A vocabulary and its merges in two files: GPT-2's vocab.json and merges.txt; the same files for a
# class of transformers, such as CLIP's; Marian's folder; and the codes of subword-nmt


@dataclasses.dataclass
class VocabFiles:
    """The content of two such files, or of one of them, and everything else that is known."""

    path: Path  # of the vocabulary
    where: str  # the names of the files, for messages
    vocabulary: str  # vocab.json; or tokens and their counts, which may be empty
    merges: str = ""  # merges.txt, or codes
    source: bytes | None = None  # Marian's source.spm
    config: dict = dataclasses.field(default_factory=dict)  # as from `_read_config`
    special_tokens: SpecialTokens = None  # those that the caller names
    pattern: object = None  # the one that the caller names
    threshold: int = 0  # the least count of a token that is used

    @functools.cached_property
    def names(self):
        """The object in vocab.json: name -> id."""
        return read_json(self.vocabulary.encode(), self.path)


def read_codes(codes, vocabulary="", threshold=0):
    """Read the codes of subword-nmt, which are merges of letters in words between spaces.

    vocabulary  lines of a token and its count, as `subword-nmt get-vocab` writes them: tokens that
                are not there fall into their parts again
    threshold   the least count of a token in it that is used
    """
    version, *lines = re.split(r"\r?\n", codes)
    require(version.startswith("#version: 0.2"), "codes of subword-nmt begin with #version: 0.2")
    merges = [*dict.fromkeys(_read_merges(lines, "characters"))]
    tokens = map(b"".join, merges)
    names = {token: (token + b"@@").removesuffix(b"</w>@@") for token in tokens}
    used = dict.fromkeys(names.values())
    if vocabulary:
        rows = [line.rsplit(" ", 1) for line in vocabulary.split("\n") if line]
        used = {token.encode(): count for token, count in rows if int(count) >= threshold}
    letters = dict.fromkeys(b"".join([*itertools.chain(*merges), *used]).decode())
    ends = [f"{letter}</w>" for letter in letters]
    tokens = dict.fromkeys([*map(str.encode, ["<unk>", *letters, *ends]), *names])
    vocab = dict(enumerate(tokens))
    unused = [k for k, token in vocab.items() if token in names and names[token] not in used]
    return Model(
        vocab,
        merges,
        pattern=Split("[ \r\n]", "removed"),
        kind="trimmed" if unused else "bpe",
        alphabet="characters",
        decoder=[{"type": "BPEDecoder", "suffix": "</w>"}],
        unk_token="<unk>",
        word_suffix="</w>",
        unused=unused,
    )


def _gpt2_model(names, lines, special_tokens, pattern):
    """Make a model from GPT-2's vocabulary, name -> id, and lines of merges.

    By default the special tokens are the names that no merge makes. Exceptions are single bytes,
    and names such as Ġhi, which stand for other text.
    """
    if special_tokens is None:
        made = {line.replace(" ", "") for line in lines} | _BYTE_NAMES | {""}
        special_tokens = [name for name in names if name not in made and not _names_text(name)]
    is_table = isinstance(special_tokens, Mapping)
    texts = _check_texts(special_tokens)
    fields = read_bpe({"vocab": names, "merges": lines}, texts, "bytes")
    if not is_table:
        # A name has its own id, even if another token has the bytes of this text.
        own = {text: names[text] for text in texts if text in names}
        others = [text for text in texts if text not in names]
        special_tokens = own | _special_ids(fields["vocab"], others)
    return Model(**fields, special_tokens=special_tokens, pattern=pattern)


def _names_text(name):
    """Check whether a name stands for a text other than itself, as Ġhi for a space and hi."""
    with contextlib.suppress(ValueError):
        _read_names([name])[0].decode()
        return not name.isascii()
    return False


def _lines_of_merges(files):
    """List the lines of a merges.txt below its version."""
    return re.sub(r"\A#version.*\s*", "", files.merges).splitlines()


def _ends_words(files):
    """Check whether letters have another name at the end of a word, as in CLIP's two files."""
    return {"a</w>", "b</w>"} <= files.names.keys()


def _read_gpt2_files(files):
    """Read GPT-2's two files."""
    cut = _BYTE_LEVEL if files.config.get("add_prefix_space") else "gpt2"
    merges = _lines_of_merges(files)
    model = _gpt2_model(files.names, merges, files.special_tokens, files.pattern or cut)
    if files.special_tokens is None and len(model.special_tokens) > len(files.names) // 8:
        note(f"{files.where}: no merge makes many of the names: do these files belong together?")
    return model


def _is_of_pair_class(files):
    """Check whether a class of transformers makes the steps around the two files."""
    row = _class_for(files.config, *_CUTS_OF_PAIRS)
    is_known = files.special_tokens is None and files.pattern is None
    return row and (is_known or row.model == _OF_WORDS)


def _read_by_pair_class(files):
    """Read the two files as the class of `config` does, and add the tokens of the caller."""
    require(files.pattern is None, "as in CLIP's files, tokens end in </w>: omit `pattern`")
    files.config |= CLASSES[_class_name(files.config)].roles | files.config
    vocabulary = {"vocab": files.names, "merges": _lines_of_merges(files)}
    model = _read_by_class(files.config, vocabulary)
    given = files.special_tokens
    if given is None:
        return model
    tokens = dict.fromkeys(_check_texts(given), PLAIN_TOKEN)
    return add_special_tokens(model, tokens, given if isinstance(given, Mapping) else {})


def _is_clip(files):
    """Check whether these are CLIP's two files, with nothing beside them that names a class."""
    return _ends_words(files) and not files.config.get("tokenizer_class")


def _read_clip(files):
    """Read CLIP's two files; the config gets the name of its class."""
    files.config["tokenizer_class"] = "CLIPTokenizer"
    return _read_by_pair_class(files)


def _is_of_subword_nmt(files):
    """Check whether the merges are codes, whose vocabulary is not JSON or is missing."""
    return not files.vocabulary.lstrip().startswith("{")


def _read_subword_nmt(files):
    """Read the codes of subword-nmt, and their vocabulary if there is one."""
    return read_codes(files.merges, files.vocabulary, files.threshold)


def _is_marian(files):
    """Check whether these are the files of a folder of Marian."""
    return files.source is not None


def _read_marian(files):
    """Read Marian's folder: the pieces of source.spm have their ids in vocab.json.

    Pieces that are not there get further ids, and become unknown tokens. All other tokens belong to
    the target language: only a run of characters that source.spm lacks may be one.
    """
    source = read_sentencepiece(files.source)
    is_other = source.kind != "unigram" or source.byte_fallback
    _refuse(
        is_other or files.config.get("separate_vocabs"),
        "a folder of Marian with a BPE, byte_fallback or separate_vocabs",
    )
    names = files.names
    special = [name for name in names if re.fullmatch("</s>|<unk>|<pad>|>>.*<<", name)]
    if any(name[0] == ">" for name in special):
        note(
            f"{files.where}: language codes are found anywhere in a text; MarianTokenizer of "
            "transformers finds them where a text begins, and an unlisted one is <unk> there"
        )
    vocab = read_vocab(names)
    scores = {source.vocab[k]: source.scores[k] for k in source.ordinary}
    further = dict(enumerate(sorted(scores.keys() - {*vocab.values()}), max(vocab) + 1))
    others = [k for k, token in vocab.items() if token not in scores]
    vocab |= further
    return dataclasses.replace(
        source,
        vocab=vocab,
        special_tokens={name: names[name] for name in special},
        added_tokens={name: AddedToken(special=name[0] == "<") for name in special},
        scores=np.float32([scores.get(vocab.get(k), -np.inf) for k in range(max(vocab) + 1)]),
        config={"add_eos_token": True, "eos_token": "</s>"},
        unused=[*others, *further],
        proto=b"",
    )


# The files are in the first format that recognizes them.
_VOCAB_FORMATS = (
    (_is_marian, _read_marian),
    (_is_of_subword_nmt, _read_subword_nmt),
    (_is_clip, _read_clip),
    (_is_of_pair_class, _read_by_pair_class),
    (lambda _: True, _read_gpt2_files),
)


def read_vocab_files(files):
    """Read VocabFiles of any format."""
    with naming_file(files.where):
        return next(read(files) for recognizes, read in _VOCAB_FORMATS if recognizes(files))


def open_pair(vocab_path, merges_path, **known):
    """Open a vocabulary and its merges; returns VocabFiles, to which `known` gives other fields."""
    merges = _read_text(merges_path).rstrip("\r\n ")
    where = f"{vocab_path}, {merges_path.name}"
    return VocabFiles(vocab_path, where, _read_text(vocab_path), merges, **known)


def _find_vocab_files(data, file, config, special_tokens, pattern):
    """Open the files that belong to `file` in its folder; returns VocabFiles."""
    source = file.with_name("source.spm")
    if source.is_file():
        return VocabFiles(
            file, str(file), data.decode(), source=_read_limited(source), config=config
        )
    known = {"special_tokens": special_tokens, "pattern": pattern, "config": config}
    for vocab, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        start = file.name.removesuffix(vocab).removesuffix(merges)
        pair = [file.with_name(start + vocab), file.with_name(start + merges)]
        if file in pair and all(map(Path.is_file, pair)):
            return open_pair(*pair, **known)
    if re.match(rb"(?s)#version: 0\.2.*</w>", data):
        return VocabFiles(file, str(file), "", data.decode().rstrip("\r\n "))
    numbered = file.name.endswith("vocab.json") and [*file.parent.glob("*.model")]
    require(
        not numbered,
        f"{file}: a folder of M2M100 or Speech2Text, whose vocab.json numbers the pieces of a "
        ".model, is not supported; the .model alone loads, with other ids",
    )
    raise InputError(
        f"{file}: not a tokenizer.json, since it has no model; and if it is one of GPT-2's two "
        "files, a vocabulary and merges with names that end in vocab.json and merges.txt, the "
        f"other is missing{_TRY_TRANSFORMERS}"
    )


def read_gpt2(data, file, config, special_tokens=None, pattern=None):
    """Read one of GPT-2's two files, or of a similar format, and the others in its folder."""
    return read_vocab_files(_find_vocab_files(data, file, config, special_tokens, pattern))


@naming_file("GPT-2's files cannot hold this tokenizer")
def write_gpt2(model):
    """Write vocab.json and merges.txt; with the same pattern, `read_gpt2` gives the same ids."""
    has_marks = Metaspace in map(type, Pattern(model.pattern).steps)
    is_of_bytes = model.alphabet == "bytes" and not has_marks
    require(is_of_bytes, "its tokens are made of characters, or its pattern replaces spaces")
    names = vocab_names(model)
    pairs = list(map(" ".join, write_bpe(model)["merges"]))
    _require_same(model, _gpt2_model(names, pairs, None, model.pattern))
    merges = "\n".join(["#version: 0.2", *pairs, ""])
    return {"vocab.json": _to_json(names, None), "merges.txt": merges}


# tiktoken's rank files: a line for each token, its bytes in base64 and its id, which is its rank


# A line of a rank file. Whisper's file has a line for an empty token, which is written as "=".
_RANK = rb"(?:=|(?:[A-Za-z\d+/]{4})*[A-Za-z\d+/]{2}(?:==|[A-Za-z\d+/][A-Za-z\d+/=])) \d{1,8}\r?\n"


def read_tiktoken(data, file, config, encoding=None, **given):
    """Read a rank file, which lacks its pattern and its special tokens.

    The caller gives them, or they come from the .json file that `save` wrote, or from the RankFile
    that is named or has the same digest.

    given  pattern and special_tokens, or one of them
    """
    data = data.rstrip() + b"\n"
    end = re.match(b"(?:" + _RANK + b")*+", data).end()  # of the good lines
    line = data.count(b"\n", 0, end) + 1
    require(end == len(data), f"line {line}: not a token in base64 and its id")
    words = data.split()  # in turn a token and its rank
    vocab = _by_id([*map(int, words[1::2])], map(binascii.a2b_base64, words[::2]))
    facts = _read_beside(_sidecar(file))
    if encoding is not None:
        require_known("encoding", encoding, ENCODINGS)
        facts = ENCODINGS[encoding]._asdict()
    elif not facts and "pattern" not in given:
        facts = _find_encoding(data, file)._asdict()
    facts |= given
    pattern = facts["pattern"]
    if isinstance(pattern, str) and not _LIKE_A_NAME.fullmatch(pattern):
        pattern = _read_regex(pattern, _FANCY)
    return Model(vocab, None, facts.get("special_tokens"), pattern)


# The special tokens of a tekken.json that lists none.
_TEKKEN_TOKENS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)


def read_tekken(data, file, _):
    """Read Mistral's tekken.json: ranks in JSON. The ids of special tokens come first."""
    content = read_json(data, file)
    facts = content["config"]
    n_special = facts["default_num_special_tokens"]
    require(
        _is_id(n_special), f"{file}: default_num_special_tokens is {n_special!r:.99}: {_ID_RANGE}"
    )
    names = [token["token_str"] for token in content.get("special_tokens") or ()]
    names = names or _TEKKEN_TOKENS.split()
    names += [f"<SPECIAL_{number}>" for number in range(len(names), n_special)]
    special_tokens = dict(zip(names, range(n_special), strict=False))
    vocab = {
        n_special + token["rank"]: base64.b64decode(token["token_bytes"])
        for token in content["vocab"][: facts["default_vocab_size"] - n_special]
    }
    return Model(
        vocab,
        None,
        special_tokens,
        _read_regex(facts["pattern"], _FANCY),
        config={"bos_token": "<s>", "eos_token": "</s>"},
    )


def _find_encoding(data, file):
    """Find the RankFile of a published rank file, by its digest.

    Several encodings have one file, but different special tokens. Then the name of the file
    decides.
    """
    digest = hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()
    of_file = {name: own for name, own in ENCODINGS.items() if own.digest == digest}
    encodings = [of_file[file.stem]] if file.stem in of_file else [*of_file.values()]
    require(
        len({*map(repr, encodings)}) == 1,
        f"{file}: a rank file does not say its pattern and special tokens: name them (`pattern`), "
        f"or the encoding (`encoding`): {', '.join(of_file or ENCODINGS)}",
    )
    return encodings[0]


def _ids_as_ranks(model):
    """Return the ids of all tokens, if they are ranks that give the same ids in tiktoken."""
    ranks = model.ordinary_ids
    pattern = Pattern(model.pattern)
    require(ranks.keys() >= set(BYTES), "some byte is not a token")
    require(isinstance(pattern.source, str), "it has several patterns")
    if not pattern.matches_everything:
        raise InputError("its pattern may leave text unmatched, which tiktoken would drop")
    # tiktoken has no merges: two tokens merge if they join to a token, the lowest id first.
    vocab = {rank: token for token, rank in ranks.items()}
    _require_same(model, Model(vocab, None, model.special_tokens, model.pattern))
    return ranks


@naming_file("tiktoken cannot represent this tokenizer")
def tiktoken_ranks(model):
    """Return the ranks with which tiktoken gives the same ids; raises ValueError if none do."""
    return _ids_as_ranks(model)


def write_tiktoken(model):
    """Write a rank file, and a .json file with the pattern and the special tokens."""
    lines = [
        f"{base64.b64encode(token).decode()} {rank}\n"
        for token, rank in tiktoken_ranks(model).items()
    ]
    pattern = _write_regex(Pattern(model.pattern).source, _FANCY)
    facts = {"pattern": pattern, "special_tokens": model.special_tokens}
    return {"tokenizer.tiktoken": "".join(lines), "tokenizer.tiktoken.json": _to_json(facts)}


# Hugging Face's tokenizer.json: the "model" object of each kind. A writer makes this object from a
# Model. A reader takes the object, the texts of the added tokens and the alphabet, and returns
# fields of Model by name.


def write_bpe(model):
    """Write the "model" object of a BPE."""
    merges, looks_up = _as_merges(model)
    name_of = _name_of(model)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": model.unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": model.word_suffix or None,
        "fuse_unk": model.fuse_unk,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": looks_up,
        "vocab": _names_without_added(model),
        "merges": [(name_of(left), name_of(right)) for left, right in merges],
    }


def _synonyms(names, first):
    """Select the names that share an id with another one, which is of `first` or comes earlier."""
    ids = [*names.values()]
    if len({*ids}) == len(ids):
        return {}
    ordered = sorted(names, key=lambda name: name not in first)
    own = {names[name]: name for name in reversed(ordered)}
    others = {name: names[name] for name in names if own[names[name]] != name}
    shared = {own[token_id]: token_id for token_id in others.values()}
    note(f"several tokens have one id: `decode` makes {shared!r:.99} of them")
    return others


def read_bpe(data, added, alphabet):
    """Read the "model" object of a BPE, or of a trimmed one, which lists its unused ids."""
    names = data["vocab"]
    of_bytes = alphabet == "bytes"
    suffix = data.get("end_of_word_suffix") or ""
    looks_up = bool(data.get("ignore_merges"))
    byte_fallback = bool(data.get("byte_fallback")) and not of_bytes
    _refuse(data.get("continuing_subword_prefix"), "a BPE with continuing_subword_prefix")
    if data.get("dropout"):
        note(f"dropout {data['dropout']} of the model: `encode` leaves out no merge; see `sample`")
    _refuse(
        suffix and (looks_up or byte_fallback),
        "a BPE with end_of_word_suffix and with ignore_merges or byte_fallback",
    )
    plain = _plain_names(names, alphabet)
    tokens = _tokens_by_name(names, alphabet, plain)
    merges = _read_merges(data["merges"], alphabet, plain, tokens)
    require(len(set(merges)) == len(merges), "a merge appears twice")
    if of_bytes and not looks_up:
        # An added token names bytes only if a merge makes these bytes, or if they are one byte.
        by_name = [*filter(_BYTE_NAMES.issuperset, names.keys() & added)]
        given = {tokens[name]: name for name in by_name}
        made = given.keys() & itertools.chain(BYTES, itertools.starmap(operator.add, merges))
        tokens |= {name: name.encode() for token, name in given.items() if token not in made}
    synonyms = {} if of_bytes else _synonyms(names, {*added, data.get("unk_token")})
    own = {name: names[name] for name in names if name not in synonyms} if synonyms else names
    vocab = _by_id([*own.values()], map(tokens.get, own))
    letters = {*BYTES, *(byte + suffix.encode() for byte in BYTES)}
    knows_all = of_bytes and letters <= set(vocab.values())
    unknown = data.get("unk_token")
    drops_unknown = unknown is None and not (knows_all or byte_fallback)
    # Hugging Face, too, reads a model whose unk_token is missing, and refuses unknown text.
    if unknown not in names or knows_all:
        unknown = None
    return {
        "vocab": vocab,
        "synonyms": {tokens[name]: token_id for name, token_id in synonyms.items()},
        "merges": merges,
        "word_suffix": suffix,
        "unk_token": unknown,
        "drops_unknown": drops_unknown,
        "fuse_unk": bool(data.get("fuse_unk")) and not (of_bytes and unknown is None),
        "byte_fallback": byte_fallback,
        "ignore_merges": looks_up,
        "unused": data.get("unused", [names[name] for name in plain.difference(added, [unknown])]),
    }


def write_trimmed(model):
    """Write the "model" object of a trimmed BPE, which is a BPE and the ids of unused tokens."""
    # Unused tokens are named like all others.
    used = dataclasses.replace(model, unused=())
    return write_bpe(used) | {"type": "Trimmed", "unused": model.unused}


def write_wordpiece(model):
    """Write the "model" object of a WordPiece."""
    return {
        "type": "WordPiece",
        "unk_token": model.unk_token or "<unk>",
        "continuing_subword_prefix": model.subword_prefix,
        "max_input_chars_per_word": model.max_word_chars,
        "vocab": _names_without_added(model),
    }


def read_wordpiece(data, added, alphabet):
    """Read the "model" object of a WordPiece."""
    prefix = data.get("continuing_subword_prefix", "##")
    if not prefix.isascii() and alphabet == "bytes":
        raise InputError("beside a ByteLevel, the prefix of a WordPiece must be ASCII")
    names = data["vocab"]
    plain = _plain_names(names, alphabet)
    unknown = data.get("unk_token", "[UNK]")
    return {
        "vocab": read_vocab(names, alphabet, plain),
        "merges": None,
        "unk_token": unknown if unknown in names else None,
        "unused": [names[name] for name in plain.difference(added, [unknown])],
        "subword_prefix": prefix,
        "max_word_chars": int(data.get("max_input_chars_per_word", 100)),
    }


def write_wordlevel(model):
    """Write the "model" object of a WordLevel, whose tokens are whole words."""
    return {
        "type": "WordLevel",
        "unk_token": model.unk_token or "<unk>",
        "vocab": _names_without_added(model),
    }


def read_wordlevel(data, added, alphabet):
    """Read the "model" object of a WordLevel: a WordPiece that knows only whole words."""
    as_wordpiece = {"continuing_subword_prefix": "", "max_input_chars_per_word": ANY_SIZE}
    return read_wordpiece({"unk_token": None} | data | as_wordpiece, added, alphabet)


def write_unigram(model):
    """Write the "model" object of a Unigram, whose tokens must be numbered from 0 without gaps."""
    require(
        not model.found_as_unknown,
        "a tokenizer.json cannot hold a folder of Marian, in which some pieces become unknown: "
        "keep its own files, which MarianTokenizer of transformers reads",
    )
    vocab_names(model)  # raises InputError if two tokens have one name
    # The later tokens have no score: they are added tokens.
    names = dict(_names_by_id(model)[: len(model.scores)])
    require(
        list(names) == list(range(len(names))),
        "a tokenizer.json numbers the tokens of a Unigram from 0 on, without gaps",
    )
    # The names of bytes have the score -inf, which JSON cannot hold.
    scores = np.nan_to_num(model.scores, neginf=0).tolist()
    return {
        "type": "Unigram",
        "unk_id": model.unknown_id if model.unknown_id in names else None,
        "vocab": list(zip(names.values(), scores, strict=False)),
        "byte_fallback": model.byte_fallback,
    }


def read_unigram(data, added, alphabet):
    """Read the "model" object of a Unigram."""
    byte_fallback = bool(data.get("byte_fallback"))
    _refuse(
        byte_fallback and alphabet == "bytes", "a Unigram with byte_fallback beside a ByteLevel"
    )
    require(data["vocab"], "a Unigram without tokens")
    names, scores = zip(*data["vocab"], strict=True)
    ids = _token_names(data)  # a piece that is listed twice has its last id here
    plain = _plain_names(ids, alphabet)
    vocab = read_vocab(ids, alphabet, plain)
    unk_id = data.get("unk_id")
    unknown = None if unk_id is None else dict(enumerate(names))[unk_id]
    repeated = {k: vocab[ids[name]] for k, name in enumerate(names) if ids[name] != k and name}
    return {
        "vocab": vocab | repeated,
        "merges": None,
        "scores": np.array(scores, np.float64),
        "unk_token": unknown,
        "unk_id": unk_id if unk_id in repeated else None,
        "fuse_unk": True,
        "byte_fallback": byte_fallback,
        "unused": [*repeated, *(ids[name] for name in plain.difference(added, [unknown]))],
    }


def _token_names(model_object):
    """Map the names in the vocabulary of a "model" object to their ids."""
    vocab = model_object["vocab"]
    if isinstance(vocab, dict):
        return vocab
    return {name: token_id for token_id, (name, _) in enumerate(vocab)}


def _check_added_ids(ids, names, n_names):
    """Check that added tokens, text -> id, have the ids that Hugging Face gives them.

    A token that is in the vocabulary (`names`, name -> id) has its id there. The others are
    numbered from the size of the vocabulary on, in which a name may be listed twice.
    """
    own_ids = defaultdict(itertools.count(n_names).__next__, names)
    for text, given in ids.items():
        own_id = own_ids[text]
        require(
            given == own_id,
            f"the added token {text!r} has the ids {own_id} and {given!r:.99}: rename it",
        )


def template_processing(template, special_tokens, begins_both=False):
    """Make the post_processor of a template: special tokens around $A, with spaces between them.

    The tokens that follow the first text of a pair also follow the second. With `begins_both`,
    those before the first text are before the second as well.
    """
    before, text, after = template.partition("$A")
    before, after = before.split(), after.split()
    require(
        text and special_tokens.keys() >= {*before, *after},
        "a `template` is $A between special tokens of this tokenizer, with spaces between them, "
        f"not {template!r}: in a shell, single quotes keep the $A",
    )
    return _processor_around(before, after, special_tokens, begins_both)


def _processor_around(before, after, special_tokens, begins_both):
    """Make the post_processor of the tokens before and after a text, see `template_processing`."""
    single = [*((name, 0) for name in before), ("$A", 0), *((name, 0) for name in after)]
    before = before if begins_both else []
    second = [*((name, 1) for name in before), ("$B", 1), *((name, 1) for name in after)]
    return _processor(single, single + second, special_tokens)


def _processor(single, pair, special_tokens):
    """Make the post_processor of two templates: names of tokens, $A and $B, with types."""

    def pieces(template):
        for name, type_id in template:
            if name in ("$A", "$B"):
                yield {"Sequence": {"id": name[1], "type_id": type_id}}
            else:
                yield {"SpecialToken": {"id": name, "type_id": type_id}}

    names = dict.fromkeys(name for name, _ in single + pair if name not in ("$A", "$B"))
    return {
        "type": "TemplateProcessing",
        "single": [*pieces(single)],
        "pair": [*pieces(pair)],
        "special_tokens": {
            name: {"id": name, "ids": [special_tokens[name]], "tokens": [name]} for name in names
        },
    }


def _has_equal_scores(model):
    """Check whether tokens have equal scores, so that they may merge in another order.

    Runs of one character do not count, since `_merges_by_score` orders them. They have equal scores
    in Llama 2.
    """
    scored = set()  # scores, each with a text or the character of a run
    for token, token_id in model.ordinary_ids.items():
        text = token.decode()
        if len(text) > 1:
            scored.add((model.scores[token_id], text[0] if len({*text}) == 1 else text))
    return len({score for score, _ in scored}) < len(scored)


def _differs_in_huggingface(model):
    """Check whether a model has features of SentencePiece that a tokenizer.json lacks."""
    return (
        (model.kind == "bpe" and model.scores is not None and _has_equal_scores(model))
        or any(step.get("charsmap") or step.get("squeezes") for step in model.normalizer)
        or (model.kind == "bpe" and missing_letters(model))
        or _USER_SYMBOL in model.added_tokens.values()
        or model.sums_in_single
    )


def add_special_tokens(model, tokens, own_ids=MappingProxyType({})):
    """Add special tokens, text -> AddedToken, as Hugging Face does; returns another model.

    The name of a token keeps its id. Others get the next ids, after a vocabulary without gaps, or
    else after the last id. An added token keeps its flags, but becomes special if one of `tokens`
    is.

    own_ids  text -> id, for the tokens of a rank file
    """
    names = vocab_names(model)
    n_repeated = len(model.vocab) + len(model.synonyms) - len(names)
    n_own = len(_names_without_added(model)) + n_repeated
    next_id = max([n_own - 1, *model.special_tokens.values()]) + 1
    own_ids = names | model.special_tokens | own_ids
    if next_id in model.vocab and not tokens.keys() <= own_ids.keys():
        next_id = max(model.vocab) + 1
        note(f"new tokens have ids from {next_id} on; in transformers some may differ")
    ids = defaultdict(itertools.count(next_id).__next__, own_ids)
    given = {text: ids[text] for text in tokens}
    added_tokens = dict(tokens)
    for text, own in model.added_tokens.items():
        added_tokens[text] = own._replace(special=own.special or tokens.get(text, own).special)
    return dataclasses.replace(
        model, special_tokens=given | model.special_tokens, added_tokens=added_tokens
    )


def note_differences(model):
    """Warn that a tokenizer.json of this model may give other ids."""
    if _differs_in_huggingface(model):
        note(
            "in a tokenizer.json some ids may differ: Hugging Face normalizes, adds scores, orders "
            "merges and finds symbols differently"
        )


def write_huggingface(model):
    """Write the files of a tokenizer for transformers."""
    content = _to_json(_to_tokenizer_json(model))
    note_differences(model)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= model.config
    name = _class_name(config)
    row = CLASSES.get(name)
    if name in _OWN_CLASSES and not (row and _is_of_class(row, model)):
        # AutoTokenizer takes the steps of the tokenizer.json for this class alone
        facts = row.facts if row else {}
        config = dict(facts) | config | {"tokenizer_class": "PreTrainedTokenizerFast"}
    template = config.get("chat_template")
    config = _with_flags(config, model)
    # AutoTokenizer would pass other roles in special_tokens_map.json to the class
    roles = {role: config[role] for role in _ROLE_ORDER if isinstance(config.get(role), str)}
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": _to_json(config),
        "special_tokens_map.json": _to_json(roles),
        **({"chat_template.jinja": template} if isinstance(template, str) else {}),
    }


def _with_flags(config, model):
    """Write further special tokens with flags as objects; returns another config.

    Some classes of transformers remove the flags of those that are strings, whatever the
    tokenizer.json says. The tokens of their usual roles keep the flags that they have there.
    """

    def written(text):
        own = model.added_tokens.get(text, PLAIN_TOKEN)
        if own._replace(literal=False) == PLAIN_TOKEN or text not in model.special_tokens:
            return text
        flags = dict(zip(_FLAGS, own, strict=False))
        return {"__type": "AddedToken", "content": text, **flags}

    roles = _roles(config)
    further = {role: written(roles[role]) for role in roles.keys() - {*_ROLE_ORDER}}
    for name in _FURTHER:
        part = config.get(name)
        if isinstance(part, dict):
            further[name] = {
                role: written(text) if isinstance(text, str) else text
                for role, text in part.items()
            }
        elif part:
            further[name] = [written(text) for text in part]
    return config | further


def _to_tokenizer_json(model):
    """Make the content of a tokenizer.json, as the `tokenizers` package writes it."""
    written = KINDS[model.kind].write(model)
    if model.kind not in _HUGGINGFACE_KINDS:
        written = {name: getattr(model, name) for name in _PLAIN_FIELDS} | written
    if model.extra:
        written["extra"] = model.extra
    texts = {}
    for text, token_id in sorted(model.special_tokens.items(), key=lambda item: item[1]):
        if texts.setdefault(token_id, text) != text:
            note(
                f"a tokenizer.json has one text for each id: {text!r}, the second text of "
                f"{token_id}, is left out"
            )
    ids = {text: token_id for token_id, text in texts.items()}
    _check_added_ids(ids, _token_names(written), len(written["vocab"]))
    added = []
    for token_id, text in texts.items():
        own = model.added_tokens.get(text, PLAIN_TOKEN)
        if own.literal:  # a symbol of SentencePiece gets the flags of transformers' converters
            own = AddedToken(special=False)
        added.append({"id": token_id, "content": text, **dict(zip(_FLAGS, own, strict=False))})
    normalizer = model.normalizer
    if normalizer and normalizer[0]["type"] == "SentencePiece":
        normalizer = _as_huggingface_steps(normalizer[0])
    return {
        "version": "1.0",
        **{key: model.batching.get(key) for key in _BATCHING},
        "added_tokens": added,
        "normalizer": _in_sequence(normalizer, "normalizers"),
        "pre_tokenizer": _in_sequence(_pre_tokenizers(model), "pretokenizers"),
        "post_processor": model.post_processor,
        "decoder": _in_sequence(model.decoder or [_NEW_DECODERS[model.alphabet]], "decoders"),
        "model": written,
    }


def _in_sequence(steps, key):
    """Write several steps as a Sequence, a single one as it is, and none as None."""
    if len(steps) > 1:
        return {"type": "Sequence", key: list(steps)}
    return next(iter(steps), None)


_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}

# alphabet -> the decoder of a model that has none
_NEW_DECODERS = {"bytes": _BYTE_LEVEL, "characters": {"type": "Fuse"}}


def _check_after_bytes(parts, kind, fields):
    """Check the pre-tokenizers after a ByteLevel, which writes each byte as a character, its name.

    Only Digits and one Split may cut between names there. If Digits is the last step, a pass does
    so. Otherwise it cuts around runs of numbers. Some names are numbers, such as ¼ for the byte
    0xBC, so it also cuts a character such as "ü", whose name is "Ã¼". No text becomes a token that
    Digits would cut: the merges of such tokens are taken out of `fields`, which are those of Model.
    """
    is_plain = kind == "bpe" and not fields["ignore_merges"]
    if len(parts) == 1 and parts[0]["type"] == "Digits":
        return
    for part in parts:
        _refuse(
            not is_plain or part not in (_DIGITS, _pre_tokenizer(Split("[0-9][0-9][0-9]"))),
            f"a ByteLevel that is not the last pre_tokenizer, but before {part!r:.100},",
        )
    if _DIGITS in parts:
        uncut = re.compile(rb"[%b]+|[^%b]+" % (_NUMBER_BYTES, _NUMBER_BYTES))
        fields["merges"] = [merge for merge in fields["merges"] if uncut.fullmatch(b"".join(merge))]


def _pre_tokenizers(model):
    """Write the parts of a pattern as pre-tokenizers; those that are JSON stay as they are.

    Tokens of bytes need a ByteLevel in the last part. If another part has one, all steps are
    written anew. A ByteLevel can also cut by the expression of "gpt2".
    """
    pattern = Pattern(model.pattern)
    none = PATTERNS["none"]
    parts = [part for part in pattern.parts if part != none]
    if any(map(_has_byte_level, parts[:-1])):
        parts = [step for step in pattern.steps if step != none]
    of_bytes = any(map(_has_byte_level, parts))
    if model.alphabet != "bytes":
        require(not of_bytes, "a pattern with a ByteLevel is for tokens of bytes")
    elif not of_bytes:
        cuts_last = parts[-1:] == [PATTERNS["gpt2"]]
        if cuts_last:
            parts.pop()
        parts.append(_BYTE_LEVEL | {"add_prefix_space": False, "use_regex": cuts_last})
    return [_pre_tokenizer(part) for part in parts]


def _has_byte_level(part):
    """Check whether a part of a pattern is JSON with a ByteLevel."""
    if not isinstance(part, dict):
        return False
    return any(step["type"] == "ByteLevel" for step in _flattened(part, "pretokenizers"))


def _pre_tokenizer(part):
    """Write a part of a pattern as a pre-tokenizer."""
    if isinstance(part, dict):
        return part
    if isinstance(part, Metaspace):
        return {"type": "Metaspace", **part._asdict(), "split": False}
    split = part if isinstance(part, Split) else Split(part)
    return {
        "type": "Split",
        "pattern": {"Regex": _write_regex(split.regex)},
        "behavior": split.behavior.title().replace("_", ""),
        "invert": split.invert,
    }


_HUGGINGFACE_KINDS = (
    "bpe",
    "wordpiece",
    "wordlevel",
    "unigram",
)  # kinds that `tokenizers` has, too
# fields of Model that a tokenizer.json has for all other kinds, whatever their functions write
_PLAIN_FIELDS = ("unk_token", "byte_fallback", "fuse_unk", "drops_unknown", "ignore_merges",
          "word_suffix", "subword_prefix", "max_word_chars")  # fmt: skip
_BATCHING = ("truncation", "padding")
# These normalizers may insert or remove the first character of a text. In Hugging Face, a piece
# gets the mark of a Metaspace "first" only if it begins with the first character of the text before
# it was normalized.
_CHANGING_THE_START = {"BertNormalizer", "Nmt", "Prepend", "Strip", "StripAccents"}

# A key that only this type of a "model" object has, in files from before 2022 without a type.
_TYPES_BY_KEYS = {"merges": "BPE", "continuing_subword_prefix": "WordPiece", "unk_id": "Unigram"}


def _cuts_in_character(normalizer, parts):
    """Check whether these pre-tokenizers may cut inside the text that one character becomes."""
    normalizer = Normalizer(normalizer)
    steps = _flattened(normalizer.steps, "normalizers")
    texts = [step["content"] for step in steps if step["type"] == "Replace"]
    codes = {*itertools.chain(*(step.changes or () for step in normalizer.passes))}
    texts += [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    flat = FlatText.join([*map(str.encode, texts)], [BOUNDARY] * len(texts))
    flat = _apply_passes(Pattern(parts).passes, normalizer.apply(flat, BOUNDARY), BOUNDARY)
    return len(flat.meanings) > len(texts)


def _may_change_the_start(step):
    """Check whether a normalizer may remove the first character of a text, or join it to others.

    Precompiled may remove a control character; docs/exactness.md says so.
    """
    if step["type"] != "Replace":
        return step["type"] in _CHANGING_THE_START
    pattern = step["pattern"]
    expression = pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])
    return not step["content"] or not _is_one_character(expression)


def _check_first_mark(normalizer, parts):
    """Refuse a Metaspace "first" if it cannot tell which piece is the first of a text."""
    steps = _flattened(normalizer, "normalizers")
    movers = {step["type"] for step in steps if _may_change_the_start(step)}
    marks = [k for k, part in enumerate(parts) if part.get("prepend_scheme") == "first"]
    _refuse(marks and movers, f"a Metaspace with prepend_scheme first after {', '.join(movers)}")
    if marks and marks[-1] > 0 and normalizer:
        before = parts[: marks[-1]]
        _refuse(
            _cuts_in_character(normalizer, before),
            f"a Metaspace with prepend_scheme first after {before!r:.200}, which may cut inside "
            "the text that the normalizer makes of one character,",
        )


def _note_kept_parts(model):
    """Note the parts of a tokenizer.json that are kept, but do not change what `encode` does."""
    kept = [*model.batching]
    added_ids = [True]  # a post_processor that `encode` would refuse is kept, too
    with contextlib.suppress(InputError):
        added_ids = model.added_ids
    if any(added_ids):
        kept.append("post_processor")
    if kept:
        note(
            f"{' and '.join(kept)} of the model: `encode` follows its own options instead, "
            "such as `add_special_tokens`"
        )


def read_huggingface(content):
    """Read a tokenizer.json; raises ValueError for features that would give other ids here."""
    model_object = content.get("model")
    require(
        isinstance(model_object, dict), f"not a tokenizer.json: it has no model{_TRY_TRANSFORMERS}"
    )
    by_keys = [name for key, name in _TYPES_BY_KEYS.items() if key in model_object]
    kind = (model_object.get("type") or [*by_keys, ""][0]).lower()
    require_known("kind of model", kind, KINDS)
    batching = {key: content[key] for key in _BATCHING if content.get(key)}
    normalizer = list(filter(None, [content.get("normalizer")]))
    parts = _flattened(content.get("pre_tokenizer") or [], "pretokenizers")
    _check_first_mark(normalizer, parts)
    types = [part["type"] for part in parts]
    alphabet = "bytes" if "ByteLevel" in types else "characters"
    added = {token["content"]: token for token in content.get("added_tokens") or ()}
    added.pop("", None)
    added_tokens = {text: _read_flags(token) for text, token in added.items()}
    ids = {text: token["id"] for text, token in added.items()}
    fields = KINDS[kind].read(model_object, list(ids), alphabet)
    fields = {name: model_object[name] for name in _PLAIN_FIELDS if name in model_object} | fields
    if alphabet == "bytes":
        _check_after_bytes(parts[types.index("ByteLevel") + 1 :], kind, fields)
    names = _token_names(model_object)
    n_names = len(model_object["vocab"])
    _check_added_ids(ids, names, n_names)
    has_gaps = max(names.values(), default=-1) >= n_names
    model = Model(
        **fields,
        special_tokens=ids,
        pattern=Pattern(content.get("pre_tokenizer") or "none").parts,
        kind=kind,
        added_tokens=added_tokens,
        alphabet=alphabet,
        normalizer=Normalizer(normalizer).steps,  # raises InputError for unsupported steps
        decoder=_read_decoder(content.get("decoder"), alphabet),
        post_processor=content.get("post_processor"),
        batching=batching,
        added_from=MAX_ID if has_gaps else n_names,
        extra=model_object.get("extra", {}),
    )
    _note_kept_parts(model)
    return model


def _as_class_adds(content, config):
    """Leave out the added tokens of a tokenizer.json that the class of its folder adds anew.

    A class that makes its own steps has the tokens of the vocabulary. Beside an
    added_tokens_decoder, it adds only the tokens that the settings name, in their order.
    """
    row = CLASSES.get(_class_name(config))
    listed = content.get("added_tokens")
    has_both = listed and isinstance(content.get("model"), dict)  # or there is nothing to leave out
    if not row or row.keeps_steps or not config["has_added_tokens_decoder"] or not has_both:
        return content
    with_role, further = _named_tokens(config, row)
    named = {*config["added_tokens_decoder"].values(), *(text for _, text in with_role + further)}
    kept = named & _token_names(content["model"]).keys()
    return content | {"added_tokens": [token for token in listed if token["content"] in kept]}


def _read_decoder(part, alphabet):
    """Check a decoder, which is ByteLevel for tokens of bytes alone, and put it into a list."""
    steps = _flattened(part or [], "decoders")
    for step in steps if alphabet == "bytes" else ():
        require(
            step["type"] == "ByteLevel",
            f"a pre_tokenizer ByteLevel goes with a decoder ByteLevel, not with {step!r:.100}",
        )
    if alphabet != "bytes":
        decoded_tokens({}, steps)  # raises InputError for unsupported steps
    return [part]


_FLAGS = AddedToken._fields[:5]  # in a tokenizer.json


def _read_flags(token):
    """Read an AddedToken from an object."""
    flags = {name: token[name] for name in _FLAGS if name in token}
    is_read = {*flags.values()} <= {True, False}
    require(is_read, f"a flag of an added token is not true or false: {flags}")
    return AddedToken(**flags)


# SentencePiece's .model: a message of Protocol Buffers, named ModelProto. It has pieces, which are
# the tokens, and the settings of the training (TrainerSpec) and of the normalizer (NormalizerSpec).

# the types of pieces
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
# A type of model of SentencePiece -> its kind. A model of characters (4) is a BPE without merges. A
# model of words (3) is not supported.
_SENTENCEPIECE_KINDS = {1: "unigram", 2: "bpe", 4: "bpe"}
_MARKS_TO_SPACES = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
_SPACES_TO_MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
_SPACES_TO_ONE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
_USER_SYMBOL = AddedToken(normalized=True, special=False, literal=True)  # of user_defined_symbols


def _as_huggingface_steps(normalizer):
    """Express SentencePiece's normalizer by Hugging Face's steps, which change symbols as well."""
    charsmap = normalizer["charsmap"]
    escapes = normalizer["escapes"]
    steps = [
        charsmap and {"type": "Precompiled", "precompiled_charsmap": charsmap},
        *[_STRIP, _SPACES_TO_ONE] * normalizer["squeezes"],
        normalizer["prefix"] and {"type": "Prepend", "prepend": MARK if escapes else " "},
        escapes and _SPACES_TO_MARKS,
    ]
    return list(filter(None, steps))


def _sentencepiece_decoder(proto):
    """List the steps of the decoder for a ModelProto, as in Llama 2's tokenizer.json."""
    spec = proto.normalizer_spec
    steps = [
        spec.escape_whitespaces and _MARKS_TO_SPACES,
        proto.trainer_spec.byte_fallback and {"type": "ByteFallback"},
        {"type": "Fuse"},
        (spec.add_dummy_prefix or spec.remove_extra_whitespaces)
        and {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return list(filter(None, steps))


def _sentencepiece_roles(trainer, names, special_tokens):
    """List the special tokens by their roles, as in a tokenizer_config.json."""
    config = {}
    for role in ROLES:
        # The field for bos_token is bos_id, which is -1 if the model has no such token.
        token_id = getattr(trainer, role.replace("_token", "_id"))
        if token_id in special_tokens.values():
            config[role] = names[token_id]
    return config


def read_sentencepiece(data, _=None, config=MappingProxyType({})):
    """Read a SentencePiece model, Unigram or BPE; or its pieces as the class of `config` does.

    The user-defined symbols of a BPE become special tokens, which are found in normalized text
    before anything else. In a Unigram they are ordinary tokens, which their scores find.
    """
    proto = _parse_sentencepiece(data)
    trainer = proto.trainer_spec
    kind = _SENTENCEPIECE_KINDS[trainer.model_type]
    row = CLASSES.get(_class_name(config))
    if row and row.pieces:
        return _read_pieces(proto, row, config)
    names = [piece.piece for piece in proto.pieces]
    scores = np.array([piece.score for piece in proto.pieces], np.float32)
    ids = defaultdict(dict)  # type of pieces -> piece -> id
    for token_id, piece in enumerate(proto.pieces):
        ids[piece.type][piece.piece] = token_id
    special_tokens = ids[_UNKNOWN] | ids[_CONTROL]
    config = {} if row else _sentencepiece_roles(trainer, names, special_tokens)
    symbols = ids[_USER_DEFINED]
    added_tokens = {}
    if kind == "unigram":
        scores[list(ids[_BYTE].values())] = -np.inf  # the text <0x0A> does not become that token
        # sentencepiece 0.2.3 gives symbols these scores.
        scores[list(symbols.values())] = [0.1 * (len(symbol.encode()) - 1) for symbol in symbols]
    else:
        special_tokens |= symbols
        added_tokens = dict.fromkeys(symbols, _USER_SYMBOL)
    [unknown] = ids[_UNKNOWN]
    spec = proto.normalizer_spec
    charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
    normalizer = {
        "type": "SentencePiece",
        "charsmap": charsmap,
        # A charsmap does not change symbols; spaces are squeezed before and after them.
        "symbols": [*symbols] if charsmap or " " in "".join(symbols) else [],
        "prefix": spec.add_dummy_prefix,
        "squeezes": spec.remove_extra_whitespaces,
        "escapes": spec.escape_whitespaces,
    }
    return Model(
        dict(enumerate(map(str.encode, names))),
        [] if trainer.model_type == 4 else None,
        special_tokens,
        "none",
        kind,
        added_tokens=added_tokens,
        alphabet="characters",
        scores=scores,
        normalizer=Normalizer([normalizer]).steps,
        decoder=_sentencepiece_decoder(proto),
        unk_token=unknown,
        byte_fallback=trainer.byte_fallback,
        fuse_unk=True,
        config=config,
        proto=data,
    )


@naming_file("a .model cannot hold this tokenizer")
def write_sentencepiece(model):
    """Write again the .model that was read, with the tokens of this model as its pieces.

    Names that were pieces keep their types. A new special token becomes a control token, which
    SentencePiece does not find in a text. New tokens of a BPE are worse than all old ones, in the
    order of ids.
    """
    require(
        model.proto,
        "it was not read from a .model; a folder that has such a file may have a tokenizer.json, "
        "too, so name the file",
    )
    proto = _parse_sentencepiece(model.proto)
    types = {piece.piece: piece.type for piece in proto.pieces}
    names = [model.vocab[token_id].decode() for token_id in range(len(model.vocab))]
    n_kept = sum(itertools.takewhile(bool, map(str.__eq__, types, names)))
    del proto.pieces[n_kept:]
    score = np.float32(min(piece.score for piece in proto.pieces))
    types = {model.vocab[token_id].decode(): _NORMAL for token_id in model.ordinary} | types
    for name in names[n_kept:]:
        score = min(score - 1, np.nextafter(score, -np.inf, dtype=np.float32))
        proto.pieces.add(piece=name, type=types.get(name, _CONTROL), score=score)
    if model.kind == "unigram":
        for piece, score in zip(proto.pieces, model.scores, strict=False):
            if piece.type == _NORMAL:
                piece.score = score
    proto.trainer_spec.vocab_size = len(names)
    data = proto.SerializeToString()
    _require_same(model, read_sentencepiece(data))
    return {"tokenizer.model": data}


def _parse_sentencepiece(data):
    """Parse a ModelProto of SentencePiece, and check that its features are supported."""
    proto = import_optional("sentencepiece.sentencepiece_model_pb2", "protobuf").ModelProto()
    try:
        proto.ParseFromString(data)
    except import_optional("google.protobuf.message").DecodeError:
        proto.Clear()
    require(
        proto.HasField("trainer_spec") and proto.HasField("normalizer_spec"),
        "not a SentencePiece model, or cut off",
    )
    trainer = proto.trainer_spec
    features = {
        "words": trainer.model_type not in _SENTENCEPIECE_KINDS,
        "a denormalizer": proto.denormalizer_spec.precompiled_charsmap,
        "an unused token": any(piece.type == _UNUSED for piece in proto.pieces),
        "treat_whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
    }
    for feature, is_there in features.items():
        _refuse(is_there, f"a SentencePiece model with {feature}")
    return proto


# Classes of transformers. A folder's vocabulary lacks the steps around it, and the class that reads
# it in transformers makes them: tokenizer_config.json names the class, or config.json does by the
# type of its model. A row of CLASSES describes the steps of a class. They become the content of a
# tokenizer.json, which `read_huggingface` reads:
#
#     vocab.txt, "BertTokenizer"   ->   {"model": …, "normalizer": …, "pre_tokenizer": …}

# The class of each type of model, by transformers 5: `name:` begins the types of a class. Backend
# takes a tokenizer.json as it is.
_MODEL_TYPES = """
Albert: albert yoso Backend: EvollaModel aria beam bigbird_pegasus canary cohere_asr ernie4_5
ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr
got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared
hyperclovax internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next
mimo_v2_flash minicpm3 minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral
mistral3 mistral_large4 mixtral modernbert modernbert-decoder molmo2 nemo_speechlm nemotron
nystromformer olmo2 olmo3 olmo_hybrid omniasr paddleocr_vl pegasus_x persimmon phi3 phimoe
pix2struct pixtral pocket_tts smolvlm stablelm umt5 vipllava voxtral voxtral_realtime
xlm-roberta-xl Bart: florence2 Barthez: Bartpho: Bert: align bark bert blip bros chinese_clip
convbert distilbert electra ernie flava git grounding-dino layoutlm megatron-bert mm-grounding-dino
nomic_bert squeezebert tvp vilt visual_bert BertGeneration: bert-generation BertJapanese: Bertweet:
BigBird: big_bird BioGpt: biogpt Blenderbot: blenderbot BlenderbotSmall: blenderbot-small ByT5:
CLIP: aimv2 clip clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3 sam3_video xclip CTRL:
ctrl Camembert: camembert Canine: canine Clvp: clvp CodeLlama: Cohere: aya_vision cohere cohere2
Cpm: CpmAnt: cpmant DPRQuestionEncoder: dpr Deberta: deberta DebertaV2: deberta-v2 Dia: dia Esm:
esm Esmc: esmc esmfold2 FNet: fnet FSMT: fsmt Flaubert: flaubert Funnel: funnel GPT2: blip-2
codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo jais2 opt
phi starcoder2 GPTNeoX: falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm
GPTNeoXJapanese: gpt_neox_japanese GPTSw3: gpt-sw3 Gemma: diffusion_gemma gemma gemma2 gemma3
gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma zaya Herbert: LED: led Lasr:
lasr_ctc lasr_encoder LayoutLMv2: layoutlmv2 LayoutLMv3: layoutlmv3 LayoutXLM: layoutxlm Llama:
idefics idefics2 Luke: luke Lxmert: lxmert M2M100: m2m_100 MBart: mbart MBart50: MLuke: MPNet:
mpnet Marian: marian MarkupLM: markuplm Mgpstr: mgp-str MobileBert: mobilebert Mvp: mvp MyT5: Nllb:
nllb-moe Nougat: nougat pp_formulanet OpenAIGPT: openai-gpt PLBart: plbart Parakeet:
granite_speech5_ctc nemotron3_5_asr nemotron_asr_streaming omniasr_ctc parakeet_ctc parakeet_rnnt
parakeet_tdt Pegasus: pegasus Perceiver: perceiver Phobert: ProphetNet: prophetnet Qwen2:
audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr
moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe
qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice
Qwen3_5: qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp Rag: rag Reformer: reformer
RemBert: rembert RoCBert: roc_bert RoFormer: roformer Roberta: bart bridgetower clap data2vec-text
ibert lilt longformer mra roberta roberta-prelayernorm SeamlessM4T: seamless_m4t seamless_m4t_v2
Siglip: siglip Siglip2: siglip2 Speech2Text: speech_to_text SpeechT5: speecht5 Splinter: splinter
T5: mt5 musicgen musicgen_melody switch_transformers t5 Tapas: tapas Tipsv2: tipsv2 Udop: udop
VideoPrism: videoprism Vits: vits Wav2Vec2CTC: data2vec-audio hubert unispeech unispeech-sat
wav2vec2 wav2vec2-bert wav2vec2-conformer Wav2Vec2PhonemeCTC: Whisper: whisper XGLM: xglm XLM: xlm
XLMRoberta: gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod XLNet: xlnet
"""


def _classes_by_type():
    """Read _MODEL_TYPES: type of a model -> name of its class."""
    names = {}
    for word in _MODEL_TYPES.split():
        if word.endswith(":"):
            own = "PreTrainedTokenizerFast" if word == "Backend:" else f"{word[:-1]}Tokenizer"
        else:
            names[word] = own
    return names


_CLASS_BY_TYPE = _classes_by_type()
# With these types, the class that a tokenizer_config.json names is known to be wrong.
_CORRECTED_TYPES = {
    "hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp",
    "siglip2",
}  # fmt: skip
_PLAIN_CLASSES = (
    "PreTrainedTokenizerFast",
    "PreTrainedTokenizer",
    "PythonBackend",
    "TokenizersBackend",
    "BloomTokenizer",
    "ParakeetTokenizer",
)


class _TokenizerClass(NamedTuple):
    """The steps and tokens that a class of transformers adds to the vocabulary of a folder.

    In templates and `pieces`, the name of a role stands for its token, and src_lang for that
    setting; other words stand for themselves. A number after a colon is the type of a token, and
    one after an equals sign is its id, whatever id the token has.
    """

    roles: dict  # the tokens of roles that a folder does not name
    cuts: str  # names the pre_tokenizer and the decoder, see `_class_cuts`
    normalizer: str = ""  # names of steps, see `_class_normalizer`
    template: str = ""  # around one text; if empty, add_bos_token and add_eos_token make it
    pair: str = ""  # around two texts
    settings: dict = MappingProxyType({})  # those that differ from _CLASS_SETTINGS
    model: dict = MappingProxyType({})  # fields of the "model" object
    pieces: str = ""  # the tokens by their ids; 3: are those of a .model from 3 on
    extra: Collection[str] = ()  # further special tokens
    joins_lists: bool = False  # both lists of further special tokens count
    extra_beside: bool = True  # they are added to the pieces of a .model, too
    mask: AddedToken = PLAIN_TOKEN  # how the mask token is found
    facts: dict = MappingProxyType({})  # required in a tokenizer_config.json without the class
    knows_unknown: bool = False  # a BPE has the unknown token of the roles
    keeps_steps: bool = False  # the steps of a tokenizer.json stay
    needs_json: bool = False  # it reads no other file
    null_is_extra: bool = False  # null in place of further special tokens stands for `extra`
    renews: bool = False  # its special tokens lose the flags that a folder gives them
    yields: bool = False  # add_bos_token and add_eos_token take the place of its template
    ignores: Collection[str] = ()  # settings that the class does not read
    untold: dict = MappingProxyType({})  # others than these values change ids there, not here


_CLASS_SETTINGS = {
    "add_prefix_space": False,
    "do_lower_case": True,
    "keep_accents": False,
    "legacy": True,
    "split_by_punct": False,
    "src_lang": "en_XX",
    "strip_accents": None,
    "tokenize_chinese_chars": True,
}


def _roles_of(text):
    """Read "unk=<unk> eos=</s>": role -> text."""
    pairs = (word.split("=", 1) for word in text.split())
    return {f"{role}_token": token for role, token in pairs}


_ENDS = _roles_of("bos=<|endoftext|> eos=<|endoftext|> unk=<|endoftext|>")
_ROLES_OF_QWEN = _ENDS | {"bos_token": None, "pad_token": "<|endoftext|>"}
BERT_ROLES = _roles_of("pad=[PAD] unk=[UNK] cls=[CLS] sep=[SEP] mask=[MASK]")
_ROLES_OF_ROBERTA = _roles_of("bos=<s> eos=</s> unk=<unk> sep=</s> pad=<pad> cls=<s> mask=<mask>")
_ROLES_OF_ALBERT = BERT_ROLES | _roles_of("bos=[CLS] eos=[SEP] unk=<unk> pad=<pad>")
_ROLES_OF_XLNET = _roles_of("bos=<s> eos=</s> unk=<unk> sep=<sep> pad=<pad> cls=<cls> mask=<mask>")
_ROLES_OF_T5 = _roles_of("eos=</s> unk=<unk> pad=<pad>")
_ROLES_OF_LLAMA = _roles_of("bos=<s> eos=</s> unk=<unk>")
_ROLES_OF_GEMMA = _roles_of("bos=<bos> eos=<eos> unk=<unk> pad=<pad> mask=<mask>")
_ROLES_OF_COHERE = _roles_of(
    "bos=<BOS_TOKEN> eos=<|END_OF_TURN_TOKEN|> unk=<UNK> sep=<SEP> pad=<PAD> cls=<CLS> "
    "mask=<MASK_TOKEN>"
)
_BERT_TEMPLATES = "cls $A sep", "cls $A sep $B:1 sep:1"
_ROBERTA_TEMPLATES = "cls $A sep", "cls $A sep sep $B sep"
_AFTER_SPACE = AddedToken(lstrip=True)
_EXTRA_IDS = [f"<extra_id_{number}>" for number in range(100)]
_MBART_CODES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART50_CODES = (
    f"{_MBART_CODES} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN "
    "pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
_NLLB_CODES = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab
ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn
ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl
cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn
dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn
fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn
heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn
jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn
kaz_Cyrl kbp_Latn kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn
lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn
luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn mni_Beng
khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn nus_Latn
nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab
quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn
slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn
sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi
taq_Latn taq_Tfng tpi_Latn tsn_Latn tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab
ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn
yue_Hant zho_Hans zho_Hant zul_Latn
"""
_PREFIXED = {"add_prefix_space": True}
_NO_PREFIX = ("add_prefix_space",)
_PREFIXED_CASED = _PREFIXED | {"do_lower_case": False}
_TYPED = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
_LEFT_SIDE = {"padding_side": "left"}
_OF_WORDS = {"end_of_word_suffix": "</w>"}
_OF_BYTES_TOO = {"fuse_unk": True, "byte_fallback": True}

_GPT2 = _TokenizerClass(_ENDS, "bytes")
_ROBERTA = _TokenizerClass(_ROLES_OF_ROBERTA, "bytes", "", *_ROBERTA_TEMPLATES)
_BERT_CLASS = _TokenizerClass(BERT_ROLES, "bert", "bert", *_BERT_TEMPLATES, facts=_TYPED)
_DPR = _BERT_CLASS._replace(ignores=("do_lower_case",))  # it is always in lower case
_ALBERT = _TokenizerClass(
    _ROLES_OF_ALBERT,
    "words",
    "quotes accents lower precompiled",
    *_BERT_TEMPLATES,
    settings=_PREFIXED,
    model={"unk_id": 1},
    pieces="0:",
    yields=True,
)
_T5 = _TokenizerClass(
    _ROLES_OF_T5,
    "words",
    "precompiled",
    "$A eos",
    "$A eos $B eos",
    settings=_PREFIXED,
    model={"unk_id": 2},
    pieces=" ".join(["0:", *reversed(_EXTRA_IDS)]),
    extra=_EXTRA_IDS,
    ignores=_NO_PREFIX,
    untold={"extra_ids": 100},
)
_XLM_ROBERTA = _TokenizerClass(
    _ROLES_OF_ROBERTA,
    "words",
    "precompiled",
    "bos $A eos",
    "bos $A eos eos $B eos",
    settings=_PREFIXED,
    model={"unk_id": 3},
    pieces="bos pad eos unk 3: mask",
)
_LLAMA = _TokenizerClass(
    _ROLES_OF_LLAMA,
    "llama",
    settings=_PREFIXED | {"legacy": False},
    model=_OF_BYTES_TOO,
    facts=_LEFT_SIDE,
)
_GEMMA = _TokenizerClass(
    _ROLES_OF_GEMMA, "gemma", "to-marks", model=_OF_BYTES_TOO, facts=_LEFT_SIDE, knows_unknown=True
)
CLASSES = {
    "AlbertTokenizer": _ALBERT,
    "BartTokenizer": _ROBERTA,
    "BarthezTokenizer": _TokenizerClass(
        _ROLES_OF_ROBERTA,
        "marks",
        "blanks nfc strip-right",
        settings=_PREFIXED,
        model={"unk_id": 3},
        pieces="0:",
        mask=_AFTER_SPACE,
    ),
    "BertTokenizer": _BERT_CLASS,
    "BigBirdTokenizer": _TokenizerClass(
        BERT_ROLES | _roles_of("bos=<s> eos=</s> unk=<unk> pad=<pad>"),
        "marks",
        "marked-spaces",
        *_BERT_TEMPLATES,
        settings=_PREFIXED,
        pieces="0:",
        mask=_AFTER_SPACE,
    ),
    "BlenderbotTokenizer": _TokenizerClass(
        _ROLES_OF_ROBERTA, "bytes", settings=_PREFIXED, mask=_AFTER_SPACE
    ),
    "CLIPTokenizer": _TokenizerClass(
        _ENDS | _roles_of("bos=<|startoftext|> pad=<|endoftext|>"),
        "clip",
        "nfc blank lowercase",
        "bos $A eos",
        "bos $A eos eos $B eos",
        model=_OF_WORDS,
        knows_unknown=True,
    ),
    "CamembertTokenizer": _XLM_ROBERTA._replace(
        model={},
        pieces="<s>NOTUSED pad </s>NOTUSED unk <unk>NOTUSED 1: mask",
        extra=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
        extra_beside=False,
        mask=_AFTER_SPACE,
    ),
    "CodeGenTokenizer": _GPT2,
    "CodeLlamaTokenizer": _LLAMA._replace(
        roles=_ROLES_OF_LLAMA
        | _roles_of("prefix=▁<PRE> middle=▁<MID> suffix=▁<SUF> eot=▁<EOT> fill=<FILL_ME>"),
        extra=("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>", "<FILL_ME>"),
        settings=_LLAMA.settings | {"add_bos_token": True},
        knows_unknown=True,
    ),
    "CohereTokenizer": _TokenizerClass(_ROLES_OF_COHERE, "digits", "nfc", facts=_LEFT_SIDE),
    "ConvBertTokenizer": _BERT_CLASS._replace(keeps_steps=True),
    "DPRContextEncoderTokenizer": _DPR,
    "DPRQuestionEncoderTokenizer": _DPR,
    "DPRReaderTokenizer": _DPR,
    "DebertaTokenizer": _TokenizerClass(
        BERT_ROLES | _roles_of("bos=[CLS] eos=[SEP]"),
        "bytes",
        "",
        *_ROBERTA_TEMPLATES,
        facts=_TYPED,
    ),
    "DebertaV2Tokenizer": _TokenizerClass(
        _ROLES_OF_ALBERT | _roles_of("unk=[UNK] pad=[PAD]"),
        "deberta",
        "lower blanks nfc strip-right",
        *_BERT_TEMPLATES,
        settings=_PREFIXED_CASED,
        pieces="0:",
        facts=_TYPED,
    ),
    "DistilBertTokenizer": _BERT_CLASS._replace(facts={}),
    "ElectraTokenizer": _BERT_CLASS,
    "FNetTokenizer": _TokenizerClass(
        _ROLES_OF_ALBERT,
        "words",
        facts={"model_input_names": ["input_ids", "token_type_ids"]},
        keeps_steps=True,
    ),
    "FunnelTokenizer": _BERT_CLASS._replace(
        roles=_ROLES_OF_XLNET,
        template="cls:2 $A sep",
        pair="cls:2 $A sep $B:1 sep:1",
        untold={"clean_text": True},
    ),
    "GPT2Tokenizer": _GPT2,
    "GPTNeoXTokenizer": _TokenizerClass(
        _ENDS | {"pad_token": "<|padding|>"}, "bytes", "nfc", "$A", "$A $B:1"
    ),
    "GemmaTokenizer": _GEMMA,
    "HerbertTokenizer": _TokenizerClass(
        _roles_of("unk=<unk> sep=</s> pad=<pad> cls=<s> mask=<mask>"),
        "suffix",
        "herbert",
        "cls=0 $A sep=2",
        "cls=0 $A sep=2 $B sep=2",
        model=_OF_WORDS,
        knows_unknown=True,
    ),
    "LEDTokenizer": _ROBERTA,
    "LasrTokenizer": _T5._replace(model={"unk_id": 3}, pieces="0:"),
    "LayoutLMTokenizer": _BERT_CLASS,
    "LayoutLMv2Tokenizer": _BERT_CLASS._replace(facts={}),
    "LayoutLMv3Tokenizer": _ROBERTA._replace(settings=_PREFIXED),
    "LlamaTokenizer": _LLAMA,
    "LongformerTokenizer": _ROBERTA,
    "LukeTokenizer": _ROBERTA._replace(
        roles=_ROLES_OF_ROBERTA
        | _roles_of(
            "entity_1=<ent> entity_2=<ent2> entity_unk=[UNK] entity_pad=[PAD] entity_mask=[MASK] "
            "entity_mask2=[MASK2]"
        ),
        extra=("<ent>", "<ent2>"),
        joins_lists=True,
    ),
    "LxmertTokenizer": _BERT_CLASS,
    "MBartTokenizer": _XLM_ROBERTA._replace(
        normalizer="",
        template="$A eos src_lang",
        pair="$A $B eos src_lang",
        pieces=f"bos pad eos unk 3: {_MBART_CODES} mask",
        extra=_MBART_CODES.split(),
        mask=_AFTER_SPACE,
        ignores=_NO_PREFIX,
    ),
    "MBart50Tokenizer": _TokenizerClass(
        _roles_of("eos=</s> unk=<unk> sep=</s> pad=<pad> cls=<s> mask=<mask>"),
        "marks",
        "precompiled one-space",
        "src_lang $A eos",
        "src_lang $A $B eos",
        settings=_PREFIXED,
        model={"unk_id": 3},
        pieces=f"cls pad eos unk 3: {_MBART50_CODES} mask",
        extra=_MBART50_CODES.split(),
        mask=_AFTER_SPACE,
        ignores=_NO_PREFIX,
    ),
    "MPNetTokenizer": _TokenizerClass(
        _ROLES_OF_ROBERTA | {"unk_token": "[UNK]"},
        "bert",
        "bert",
        *_ROBERTA_TEMPLATES,
        mask=_AFTER_SPACE,
    ),
    "MobileBertTokenizer": _BERT_CLASS,
    "MvpTokenizer": _ROBERTA,
    "NllbTokenizer": _TokenizerClass(
        _ROLES_OF_ROBERTA,
        "marks",
        "precompiled one-space",
        "src_lang $A eos",
        "src_lang $A $B eos",
        settings=_PREFIXED | {"src_lang": "eng_Latn"},
        model={"type": "BPE", "fuse_unk": True},
        extra=_NLLB_CODES.split(),
        null_is_extra=True,
        mask=AddedToken(lstrip=True, normalized=True),
        knows_unknown=True,
        ignores=_NO_PREFIX,
        untold={"legacy_behaviour": False},
    ),
    "OpenAIGPTTokenizer": _TokenizerClass(
        {"unk_token": "<unk>"}, "suffix", "uncased", model=_OF_WORDS, knows_unknown=True
    ),
    "PegasusTokenizer": _TokenizerClass(
        _ROLES_OF_T5 | {"mask_token": "<mask_2>"},
        "marks",
        "precompiled one-space",
        "$A eos",
        "$A $B eos",
        settings=_PREFIXED,
        extra=["<mask_1>", *(f"<unk_{number}>" for number in range(2, 103))],
        ignores=_NO_PREFIX,
        untold={"offset": 103, "mask_token_sent": "<mask_1>"},
    ),
    "Phi3Tokenizer": _LLAMA,
    "Qwen2Tokenizer": _TokenizerClass(_ROLES_OF_QWEN, "qwen2", "nfc", renews=True),
    "Qwen3_5Tokenizer": _TokenizerClass(_ROLES_OF_QWEN, "qwen3.5", "nfc", needs_json=True),
    "ReformerTokenizer": _TokenizerClass(
        _roles_of("eos=</s> unk=<unk>"),
        "marks",
        "precompiled one-space",
        settings=_PREFIXED,
        model={"type": "BPE", "fuse_unk": True},
        knows_unknown=True,
        ignores=_NO_PREFIX,
    ),
    "RemBertTokenizer": _ALBERT._replace(
        cuts="marks",
        normalizer="quotes one-space accents lower precompiled",
        settings=_PREFIXED_CASED | {"keep_accents": True},
        model={"unk_id": 2},
        pieces="",
    ),
    "RobertaTokenizer": _ROBERTA,
    "Siglip2Tokenizer": _GEMMA._replace(normalizer="lowercase to-marks"),
    "SplinterTokenizer": _BERT_CLASS._replace(
        roles=BERT_ROLES | {"question_token": "[QUESTION]"},
        pair="cls $A [QUESTION] . sep $B:1 sep:1",
        facts={},
    ),
    "SqueezeBertTokenizer": _BERT_CLASS,
    "T5Tokenizer": _T5,
    "UdopTokenizer": _T5._replace(
        roles=_ROLES_OF_T5 | {"sep_token": "</s>"}, normalizer="", model={}, pieces="0:", extra=()
    ),
    "VideoPrismTokenizer": _T5._replace(template="", pair=""),
    "WhisperTokenizer": _GPT2._replace(
        template="<|startoftranscript|> <|notimestamps|> $A eos",
        pair="<|startoftranscript|> <|notimestamps|> $A $B:1 eos:1",
        untold={"language": None, "task": None, "predict_timestamps": False},
    ),
    "XGLMTokenizer": _TokenizerClass(
        _roles_of("bos=<s> eos=</s> unk=<unk> sep=</s> pad=<pad> cls=<s>"),
        "marks",
        "precompiled one-space",
        "eos $A",
        "eos $A eos eos $B",
        settings=_PREFIXED,
        model={"unk_id": 3},
        pieces="0:",
        extra=[f"<madeupword{number}>" for number in range(7)],
    ),
    "XLMRobertaTokenizer": _XLM_ROBERTA,
    "XLNetTokenizer": _TokenizerClass(
        _ROLES_OF_XLNET,
        "words",
        "quotes accents lower precompiled",
        "$A sep cls:2",
        "$A sep $B:1 sep:1 cls:2",
        settings=_PREFIXED_CASED,
        model={},
        pieces="0:",
        extra=("<eop>", "<eod>"),
        extra_beside=False,
        mask=_AFTER_SPACE,
        facts=_LEFT_SIDE,
        ignores=("add_prefix_space", "keep_accents"),
    ),
}
_CLIP = Split(
    r"<\|startoftext\|>|<\|endoftext\|>"
    r"|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "removed",
    invert=True,
)
_QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GEMMA_DECODER = [_MARKS_TO_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]
_LLAMA_DECODER = [*_GEMMA_DECODER, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
# fields of a BertNormalizer -> settings
_BERT_FIELDS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
# `_read_marian` does what MarianTokenizer does.
_OWN_CLASSES = {f"{name}Tokenizer" for name in re.findall(r"(\w+):", _MODEL_TYPES)} | {*CLASSES}
_OWN_CLASSES -= {*_PLAIN_CLASSES, "BackendTokenizer", "MarianTokenizer"}
_CUTS_OF_PAIRS = ("bytes", "clip", "digits", "qwen2", "qwen3.5", "suffix")  # of vocab.json
_CLASS_KINDS = dict.fromkeys(("words", "marks", "deberta"), "Unigram") | {"bert": "WordPiece"}


def _class_name(config):
    """Return the name of the class that a config names, as transformers 5 has it."""
    name = config.get("tokenizer_class")
    if not isinstance(name, str):
        return ""
    return name if name in _PLAIN_CLASSES else name.removesuffix("Fast")


def _class_for(config, *cuts):
    """Return the row of the class that `config` names, if it cuts in one of these ways, or None."""
    row = CLASSES.get(_class_name(config))
    return row if row and row.cuts in cuts else None


def _name_class(file, config, data=b""):
    """Put the class by which AutoTokenizer reads the folder of a file into `config`.

    data  the content of a tokenizer.json: one with bytes, as Llama 3 has, keeps its steps
    """
    about = {}
    with contextlib.suppress(InputError):  # it may belong to another program
        about = _read_beside(file.with_name("config.json"))
    model_type = about.get("model_type")
    model_type = model_type if isinstance(model_type, str) else None
    own = _CLASS_BY_TYPE.get(model_type)
    given = config.get("tokenizer_class") or about.get("tokenizer_class")
    is_wrong = own in _PLAIN_CLASSES or model_type in _CORRECTED_TYPES
    name = own if own and is_wrong else given or own
    if given in ("LlamaTokenizer", "LlamaTokenizerFast") and b'"ByteLevel"' in data:
        name = None
    if name or given or model_type:
        config["tokenizer_class"] = name or "PreTrainedTokenizerFast"


def _names_class(file):
    """Check whether a file beside that of a model names a class, so that AutoTokenizer reads it."""
    config = {}
    _name_class(file, config)
    return bool(config) or file.with_name("tokenizer_config.json").is_file()


def _settings_of(row, config):
    """Return the settings of a class; a setting in the folder takes precedence."""
    null_is_default = {"src_lang"}
    if row.cuts in ("llama", "qwen2", "qwen3.5"):
        null_is_default.add("add_prefix_space")
    given = {
        name: value
        for name, value in config.items()
        if name not in row.ignores and not (value is None and name in null_is_default)
    }
    return _CLASS_SETTINGS | row.settings | given


def _class_normalizer(row, settings, charsmap):
    """List the steps of the normalizer of a class."""
    lowercase = {"type": "Lowercase"}
    bert = _BERT | {field: settings[name] for field, name in _BERT_FIELDS.items()}
    accents = [{"type": "NFKD"}, {"type": "StripAccents"}]
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    steps = {
        "accents": [] if settings["keep_accents"] else accents,
        "bert": [bert],
        "blank": [_replace_step(r"\s+", " ")],
        "blanks": [_replace_step(r"\s{2,}|[\n\r\t]", " ")],
        "herbert": [_BERT | {"lowercase": False, "strip_accents": False}],
        "lower": [lowercase] if settings["do_lower_case"] else [],
        "lowercase": [lowercase],
        "marked-spaces": [
            {"type": "Strip", "strip_left": False, "strip_right": False},
            _replace_step(" {2,}", MARK),
        ],
        "nfc": [{"type": "NFC"}],
        "one-space": [_SPACES_TO_ONE],
        "precompiled": [precompiled] if charsmap else [],
        "quotes": [
            {"type": "Replace", "pattern": {"String": quotes}, "content": '"'}
            for quotes in ("``", "''")
        ],
        "strip-right": [{"type": "Strip", "strip_left": False, "strip_right": True}],
        "to-marks": [_SPACES_TO_MARKS],
        "uncased": [_BERT | {"lowercase": True}],
    }
    return [step for name in row.normalizer.split() for step in steps[name]]


def _replace_step(expression, content):
    """Make the step of a normalizer that replaces the matches of an expression."""
    return {"type": "Replace", "pattern": {"Regex": expression}, "content": content}


def _class_cuts(row, settings):
    """List the pre-tokenizers and the decoders of a class."""
    has_prefix = bool(settings["add_prefix_space"])
    byte_level = _BYTE_LEVEL | {"add_prefix_space": has_prefix}
    uncut = byte_level | {"use_regex": False}
    later = "first" if row.cuts == "deberta" else "never"
    marks = {
        "type": "Metaspace",
        "replacement": MARK,
        "prepend_scheme": "always" if has_prefix else later,
        "split": True,
    }
    bert = {"type": "BertPreTokenizer"}
    match row.cuts:
        case "bytes":
            return [byte_level], [_BYTE_LEVEL]
        case "digits":
            return [_DIGITS | {"individual_digits": True}, byte_level], [_BYTE_LEVEL]
        case "qwen2":
            return [_pre_tokenizer(PATTERNS["qwen2"]), uncut], [_BYTE_LEVEL]
        case "qwen3.5":
            return [_pre_tokenizer(_QWEN3_5), uncut], [_BYTE_LEVEL]
        case "clip":
            return [_pre_tokenizer(_CLIP), _BYTE_LEVEL | {"add_prefix_space": False}], [_BYTE_LEVEL]
        case "bert":
            return [bert], [{"type": "WordPiece", "prefix": "##", "cleanup": True}]
        case "suffix":
            return [bert], [{"type": "BPEDecoder", "suffix": "</w>"}]
        case "words":
            return [{"type": "WhitespaceSplit"}, marks], [marks]
        case "gemma":
            split = _pre_tokenizer(Split(" ", "merged_with_previous"))
            return [split | {"pattern": {"String": " "}}], _GEMMA_DECODER
        case "llama":
            scheme = marks["prepend_scheme"]
            if has_prefix and not settings["legacy"]:
                scheme = "first"
            uncut = marks | {"prepend_scheme": scheme, "split": False}
            return [uncut], _LLAMA_DECODER if has_prefix else _GEMMA_DECODER
    if row.cuts == "deberta" and settings["split_by_punct"]:
        return [{"type": "Punctuation", "behavior": "Isolated"}, marks], [marks]
    return [marks], [marks]


def _class_content(row, config, vocabulary, charsmap=""):
    """Make the content of a tokenizer.json as a class does.

    vocabulary  fields of the "model" object
    charsmap    that of a Precompiled, in base64
    """
    settings = _settings_of(row, config)
    cuts, decoders = _class_cuts(row, settings)
    model_object = {"type": _CLASS_KINDS.get(row.cuts, "BPE")} | vocabulary | row.model
    names = _token_names(model_object)
    unknown = config.get("unk_token")
    if model_object["type"] == "Unigram":
        model_object.setdefault("unk_id", names.get(unknown))
    elif row.knows_unknown or model_object["type"] == "WordPiece":
        model_object["unk_token"] = unknown
    return {
        "normalizer": _in_sequence(_class_normalizer(row, settings, charsmap), "normalizers"),
        "pre_tokenizer": _in_sequence(cuts, "pretokenizers"),
        "decoder": _in_sequence(decoders, "decoders"),
        "model": model_object,
    }


def _read_by_class(config, vocabulary, charsmap="", added=()):
    """Read a vocabulary as the class that `config` names does.

    added  further special tokens of the vocabulary, by their flags
    """
    row = CLASSES[_class_name(config)]
    content = _class_content(row, config, vocabulary, charsmap)
    names = _token_names(content["model"])
    tokens = dict.fromkeys(_roles(config).values(), PLAIN_TOKEN) | dict(added)
    content["added_tokens"] = [
        {"id": names[text], "content": text} | dict(zip(_FLAGS, own, strict=False))
        for text, own in tokens.items()
        if text in names
    ]
    return read_huggingface(content)


def _is_of_class(row, model):
    """Check whether a class, given the vocabulary of a model, makes the same model."""
    if row.keeps_steps:
        return not model.proto
    steps = model.normalizer_steps
    charsmaps = (step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled")
    content = _class_content(row, model.config, {"vocab": {}}, next(charsmaps, ""))
    theirs = content["model"]
    fields = {
        "byte_fallback": False,
        "fuse_unk": theirs["type"] == "Unigram",
        "ignore_merges": False,
        "word_suffix": theirs.get("end_of_word_suffix", ""),
    }
    has_same_unknown = True
    if model.kind in ("unigram", "wordpiece") or (row.knows_unknown and model.unk_token):
        has_same_unknown = model.unk_token == model.config.get("unk_token")
    if "unk_id" in row.model:
        unknown = (model.unk_token or "").encode()
        has_same_unknown = model.ids.get(unknown) == row.model["unk_id"]
    return (
        theirs["type"].lower() == model.kind
        and steps == _flattened(content["normalizer"] or [], "normalizers")
        and Pattern(content["pre_tokenizer"]).steps == Pattern(model.pattern).steps
        and all(getattr(model, name) == theirs.get(name, fields[name]) for name in fields)
        and (
            model.kind != "wordpiece" or (model.subword_prefix, model.max_word_chars) == ("##", 100)
        )
        and has_same_unknown
    )


def _pieces_of_class(row, config, pieces):
    """List the names and scores of a .model in the order of the ids that a class gives them."""
    listed = []
    for word in row.pieces.split():
        if word.endswith(":"):
            listed += pieces[int(word[:-1]) :]
        else:
            role = f"{word}_token"
            listed.append((str(config[role]) if role in row.roles else word, 0.0))
    return listed


def _read_pieces(proto, row, config):
    """Read the pieces of a .model as a class does, which numbers them in its own way."""
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    fields = {"vocab": _pieces_of_class(row, config, pieces)}
    if config.get("unk_token") not in _token_names(fields):
        fields["unk_id"] = proto.trainer_spec.unk_id
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    added = {}
    if "control_pieces" in config:  # transformers adds them after all others
        flags = {_CONTROL: PLAIN_TOKEN, _USER_DEFINED: AddedToken(special=False)}
        added = {piece.piece: flags[piece.type] for piece in proto.pieces if piece.type in flags}
        config["control_pieces"] += [text for text in added if added[text].special]
    return _read_by_class(config, fields, charsmap, added)


def _class_processor(row, model):
    """Make the post_processor of a class, or None if a token of its template is missing."""
    settings = _settings_of(row, model.config)
    fixed = {}  # the ids that a template names

    def pieces(template):
        for word in template.split():
            name, _, number = word.partition(":")
            name, _, own_id = name.partition("=")
            named = settings.get(f"{name}_token") or settings.get(name)
            name = named if isinstance(named, str) else name
            if own_id:
                fixed[name] = int(own_id)
            yield name, int(number or 0)

    def id_of(name):
        return model.special_tokens.get(name, model.ids.get(name.encode()))

    templates = [[*pieces(template)] for template in (row.template, row.pair)]
    names = {name for name, _ in itertools.chain(*templates)} - {"$A", "$B"}
    ids = {name: id_of(name) for name in names} | fixed
    language = settings["src_lang"]
    if language in names and ids[language] is None:  # an unknown language is the unknown token
        ids[language] = id_of(str(settings.get("unk_token")))
    return None if None in ids.values() else _processor(*templates, ids)


# BERT's vocab.txt: a token on each line


def read_bert(data, file, config):
    """Read the vocabulary of a BERT, or of another class with such a file.

    If nothing names a class, or one that is not known, this is a BERT: `config` gets the roles that
    the vocabulary has, and text is brought to lower case, unless a token without brackets has a
    capital letter.
    """
    names = re.split(r"\r?\n", data.decode())
    ids = {name: token_id for token_id, name in enumerate(names) if name}
    by_class = config
    if not _class_for(config, "bert"):
        plain = [name for name in ids if not re.fullmatch(r"\[.*\]|<.*>", name)]
        is_configured = _beside(file, "tokenizer_config.json").is_file()
        is_lower = is_configured or plain == [*map(str.lower, plain)]
        roles = {role: text for role, text in BERT_ROLES.items() if text in ids}
        config |= roles | {"do_lower_case": is_lower} | config
        by_class = config | {"tokenizer_class": "BertTokenizer"}
        if _class_name(config) not in _OWN_CLASSES:
            config["tokenizer_class"] = "BertTokenizer"
    return _read_by_class(by_class, {"vocab": ids})


# Files beside a vocabulary, as transformers reads them. All settings are kept, and written again.

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
# settings that change ids in transformers, but not here; a .model has more of them
_UNHEEDED = {"split_special_tokens": True}
_UNHEEDED_OF_PIECES = _UNHEEDED | {"add_prefix_space": False, "do_lower_case": True}
# the settings with further special tokens: the second one counts if the first is missing
_FURTHER = ("extra_special_tokens", "additional_special_tokens")
# transformers adds missing tokens in this order, then those with other roles of the class, and then
# those with others
_ROLE_ORDER = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
               "mask_token")  # fmt: skip


def _beside(file, name):
    """Name a file beside that of a model; a.json may have its own, a.tokenizer_config.json."""
    own = file.with_name(f"{file.stem}.{name}")
    return own if own.exists() else file.with_name(name)


def _is_token(setting, value):
    """Check whether a setting is a token: its text, or an object with flags.

    Outside of the usual roles, transformers marks such an object.
    """
    if isinstance(value, dict):
        return setting in _ROLE_ORDER or value.get("__type") == "AddedToken"
    return isinstance(value, str)


def _roles(config):
    """Select the special tokens with a role, such as eos_token."""
    return {
        role: token
        for role, token in config.items()
        if role.endswith("_token") and _is_token(role, token)
    }


def _add_token_map(config, tokens):
    """Put the content of a special_tokens_map.json into `config`."""
    first, second = _FURTHER
    new = {name: token for name, token in tokens.items() if config.get(name) != token}
    if not new.keys().isdisjoint(_FURTHER) and not config.get(first) and second in config:
        config[first] = config.pop(second)
    own = config.get(first) or []
    further = new.get(first) or []
    if isinstance(further, dict):  # it takes the place of a list
        new[first] = (own if isinstance(own, dict) else {}) | further
    elif isinstance(own, dict) and further:
        new |= {first: own, second: further}
    elif further:
        new[first] = [*own, *(token for token in further if token not in own)]
    for name, token in new.items():
        is_object = isinstance(token, dict) and name not in _FURTHER
        config[name] = {"__type": "AddedToken"} | token if is_object else token


def _add_chat_templates(file, config):
    """Put the chat templates in files of their own into `config`."""
    template = _beside(file, "chat_template.jinja")
    if template.is_file():
        config["chat_template"] = _read_text(template)
    others = sorted(file.parent.glob("additional_chat_templates/*.jinja"))
    if others:
        texts = {"default": config["chat_template"]}
        texts |= {path.stem: _read_text(path) for path in others}
        config["chat_template"] = [{"name": name, "template": texts[name]} for name in texts]


def _read_config(file):
    """Read the settings beside a model, all as if they were in tokenizer_config.json.

    The text of a token takes the place of its object. Returns the settings and the flags of the
    objects: (setting, text) -> AddedToken.
    """
    config = _read_beside(_beside(file, "tokenizer_config.json"))
    config["has_added_tokens_decoder"] = config.get("added_tokens_decoder") is not None
    if not config["has_added_tokens_decoder"]:
        _add_token_map(config, _read_beside(_beside(file, "special_tokens_map.json")))
        names = _read_beside(_beside(file, "added_tokens.json"))
        tokens = {names[text]: {"content": text, "normalized": True} for text in names}
        config["added_tokens_decoder"] = tokens
    roles = _roles(config)
    named = [token["content"] if isinstance(token, dict) else token for token in roles.values()]
    flags = {}

    def text_of(setting, token):
        """Return the text of a token; an object also has flags, which are kept."""
        if isinstance(token, str):
            return token
        is_object = isinstance(token, dict) and isinstance(token.get("content"), str)
        require(is_object, f"{setting}: {token!r:.100} is no token")
        text = token["content"]
        is_special = bool(token.get("special"))
        plain = {"special": is_special, "normalized": not (is_special or text in named)}
        flags[setting, text] = _read_flags(plain | token)
        return text

    decoder = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {
        key: text_of("added_tokens_decoder", token) for key, token in decoder.items()
    }
    for name in _FURTHER:
        part = config.get(name)
        if isinstance(part, dict):
            config[name] = {
                role: text_of(role, token) if _is_token(role, token) else token
                for role, token in part.items()
            }
        elif part:
            config[name] = [text_of(name, token) for token in part]
    config |= {role: text_of(role, token) for role, token in roles.items()}
    _add_chat_templates(file, config)
    return config, flags


def _named_tokens(config, row):
    """List the special tokens with a role, as transformers adds them, and further ones.

    Each is its setting and its text. A further one with a name of its own gets a role in `config`.

    row  of the class that `config` names, or None
    """
    roles = _roles(config)
    names = [name for name in _FURTHER if config.get(name) and not isinstance(config[name], dict)]
    for name in _FURTHER[:1] if names[:1] == [*_FURTHER[:1]] else _FURTHER:
        if isinstance(config.get(name), dict):
            roles |= {role: text for role, text in config[name].items() if isinstance(text, str)}
    config |= roles
    names = names if row and row.joins_lists else names[:1]
    in_order = dict.fromkeys((*_ROLE_ORDER, *(row.roles if row else ()), *roles))
    order = [role for role in in_order if role in roles]
    with_role = [(role, roles[role]) for role in order]
    return with_role, [(name, text) for name in names for text in config[name]]


class _TokensBeside(NamedTuple):
    """The special tokens in the settings beside a model."""

    added: dict  # text -> AddedToken, of an added_tokens_decoder or else an added_tokens.json
    has_decoder: bool  # whether it is the former, which decides alone on the flags of its tokens
    with_role: list  # as from `_named_tokens`
    further: list  # likewise
    flags: dict  # as from `_read_config`

    @property
    def with_setting(self):
        """The texts of all tokens that a setting names."""
        return [text for _, text in self.with_role + self.further]

    @property
    def roles(self):
        """The texts of the tokens with a role."""
        return {text for _, text in self.with_role}


def _tokens_to_add(beside):
    """Return the tokens that transformers adds to a vocabulary, text -> AddedToken.

    A token that has several settings has the flags of the last one, unless it is in `added`.
    """
    roles = beside.roles
    usual = {text for role, text in beside.with_role if role in _ROLE_ORDER}
    known = usual | {text for _, text in beside.further}
    tokens = {}
    for text, own in beside.added.items():
        is_special = own.special or text in (roles if beside.has_decoder else known)
        normalized = own.normalized and (beside.has_decoder or not is_special)
        tokens[text] = own._replace(special=is_special, normalized=normalized)
    settings = beside.with_role + beside.further
    flagged = [(text, beside.flags.get((name, text))) for name, text in settings]
    # transformers leaves out a second equal one: a string and an object differ
    for text, own in dict.fromkeys(flagged):
        if text not in beside.added:
            own = own or PLAIN_TOKEN
            tokens[text] = own._replace(special=own.special or text in roles)
    return tokens


def _changed_flags(listed, tokens, beside):
    """Return the flags that settings change of tokens in a tokenizer.json, text -> AddedToken.

    listed  the tokens in the tokenizer.json
    tokens  those of `_tokens_to_add`
    """
    changed = {}
    roles = beside.roles
    for text in listed.keys() & tokens:
        own = listed[text]
        if not beside.has_decoder:  # a role only makes a token special
            changed[text] = own._replace(special=own.special or text in roles)
        elif text in beside.added:  # roles of other tokens do nothing
            new = tokens[text]
            changed[text] = new._replace(special=own.special or new.special)
    return changed


def _with_listed_flags(model, tokens, beside, makes_tokens):
    """Give the special tokens that a model has the flags beside it; returns another model.

    tokens        those of `_tokens_to_add`
    makes_tokens  the class of the folder makes its added tokens anew
    """
    listed = {text: model.added_tokens.get(text, PLAIN_TOKEN) for text in model.special_tokens}
    if makes_tokens:
        changed = {text: own for text, own in tokens.items() if text in listed}
    else:
        changed = _changed_flags(listed, tokens, beside)
    if all(changed[text] == listed[text] for text in changed):
        return model
    return dataclasses.replace(model, added_tokens=model.added_tokens | listed | changed)


def _with_folder(model, file, config, flags, is_complete=True):
    """Give a model the tokens and settings of `_read_config`; returns another model.

    A token that the model lists gets other flags, and a token that it lacks is added.

    is_complete  the model is a tokenizer.json, which lists its added tokens; see `load_model`
    """
    added = config.pop("added_tokens_decoder")
    has_decoder = config.pop("has_added_tokens_decoder")
    ids = {added[key]: int(key) for key in sorted(added, key=int) if added[key]}
    row = CLASSES.get(_class_name(config))
    makes_steps = bool(row) and not row.keeps_steps
    controls = config.pop("control_pieces", [])
    with_role, further = _named_tokens(config, row)
    further += [("control_pieces", text) for text in controls]
    flags = flags | {("control_pieces", text): PLAIN_TOKEN for text in controls}
    if is_complete and not makes_steps:
        further = [(name, text) for name, text in further if text not in model.added_tokens]
    added_flags = {text: flags["added_tokens_decoder", text] for text in ids}
    beside = _TokensBeside(added_flags, has_decoder, with_role, further, flags)
    tokens = _tokens_to_add(beside)
    if row and row.renews:
        tokens |= dict.fromkeys(beside.with_setting, PLAIN_TOKEN)
    if is_complete:
        makes_tokens = makes_steps and (has_decoder or row.renews)
        model = _with_listed_flags(model, tokens, beside, makes_tokens)
        tokens = {text: own for text, own in tokens.items() if text not in model.special_tokens}
    if "SentencePiece" in [step["type"] for step in model.normalizer]:
        # transformers finds them before SentencePiece sees the text
        tokens = {text: own._replace(normalized=False) for text, own in tokens.items()}
    if tokens:
        is_ranked = model.kind == "bpe" and model.merges is None and model.scores is None
        model = add_special_tokens(model, tokens, ids if is_ranked else {})
    others = dict(ids.items() - model.special_tokens.items())
    if others:
        own = {text: model.special_tokens[text] for text in others}
        note(f"{file}: added tokens have the ids {own!r:.99}, but {others!r:.99} beside it")
    model.config |= config
    return model


def _sides_of(model, post_processor):
    """Return the ids that a post_processor puts around one text; None if it is not supported."""
    model = copy.copy(model)
    vars(model).pop("added_ids", None)
    model.post_processor = post_processor
    with contextlib.suppress(InputError):
        return model.added_ids


def _complete_config(row, config, flags, is_complete):
    """Give settings the roles and further special tokens of a class.

    is_complete  the model is a tokenizer.json
    """
    for role, text in row.roles.items():
        config.setdefault(role, text)
    flags.setdefault(("mask_token", config.get("mask_token")), row.mask)
    first, second = _FURTHER
    if row.pieces and not is_complete and config.get(first) and isinstance(config[first], dict):
        config.pop(second, None)  # the pieces of a .model take its place
    # a list beside it, or null, takes the place of those of the class and of a .model
    lists = [config[name] for name in _FURTHER if not isinstance(config.get(name, {}), dict)]
    if lists and not (row.null_is_extra and lists.count(None) == len(lists)):
        return
    config["control_pieces"] = []
    if row.extra and (is_complete or row.extra_beside):
        config["additional_special_tokens"] = [*row.extra]


_ADD_SETTINGS = ("add_bos_token", "add_eos_token")


def _added_by_settings(settings, default):
    """List the tokens that _ADD_SETTINGS put before a text, and those after it: one, or none.

    default  the token of a role that the settings do not name, or None
    """
    sides = []
    for role in ("bos_token", "eos_token"):
        token = settings.get(role, default)
        sides.append([token] if token and settings.get(f"add_{role}") else [])
    return sides


def _add_template(model, is_complete):
    """Make the post_processor of a class, or of `add_bos_token` and `add_eos_token`.

    is_complete  the model is a tokenizer.json, which has a post_processor if it needs one
    """
    row = CLASSES.get(_class_name(model.config))
    if not is_complete and model.kind == "wordpiece" and not (row and row.cuts == "bert"):
        row = _BERT_CLASS  # as `read_bert` reads the files of other classes
    has_setting = not model.config.keys().isdisjoint(_ADD_SETTINGS)
    yields = row and row.yields and not is_complete and has_setting
    # $A alone adds nothing: the settings beside a vocabulary decide
    has_template = row and row.template and (is_complete or row.template != "$A")
    if has_template and not yields:
        made = _class_processor(row, model)
        is_own = is_complete and _sides_of(model, made) == _sides_of(model, model.post_processor)
        if made and not is_own:
            model.post_processor = made
    else:
        settings = _settings_of(row, model.config) if row else model.config
        adds_always = row and any(map(row.settings.get, _ADD_SETTINGS))
        if is_complete and adds_always:  # beside a tokenizer.json, the folder has no say
            settings = settings | {"add_eos_token": False} | row.settings
        before, after = _added_by_settings(settings, None if row else "<|endoftext|>")
        if yields or adds_always or (before + after and not is_complete):
            missing = {*before, *after} - model.special_tokens.keys()
            require(not missing, f"{missing!r:.99} belongs to each text, but is no special token")
            model.post_processor = _processor_around(before, after, model.special_tokens, True)
    vars(model).pop("added_ids", None)  # those of another post_processor


# A template in Jinja for a chat. It puts each message between <|im_start|> and <|im_end|>, lists
# tools as JSON, and puts each call of a tool between <tool_call> and </tool_call>.
CHATML = r"""
{%- macro opened(role) %}{{ '<|im_start|>' + role + '\n' }}{% endmacro %}
{%- set first = messages[0].content if messages and messages[0].role == 'system' else none %}
{%- if tools %}
    {{- opened('system') }}
    {%- if first is not none %}{{ first + '\n\n' }}{% endif %}
    {{- 'Functions may be called, each call as {"name": …, "arguments": …} ' }}
    {{- 'between <tool_call> and </tool_call>:' }}
    {%- for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant', 'tool') %}
        {%- set roles = 'system, user, assistant or tool' %}
        {{- raise_exception('a message is from ' + roles + ', not from ' + message.role) }}
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


@public
def transformers_config(
    special_tokens: Iterable[str],
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
    unk_token: str | None = None,
    sep_token: str | None = None,
    cls_token: str | None = None,
    mask_token: str | None = None,
    model_max_length: Positive | None = None,
    chat_template: PathName | None = None,
) -> dict:
    """Build the given fields of tokenizer_config.json; None means not given.

    special_tokens    the special tokens of the model
    bos_token         the special token that begins a text
    eos_token         the special token that ends a text
    pad_token         the special token that fills up a batch
    unk_token         the special token for text that cannot be encoded
    sep_token         the special token between two texts, and after them
    cls_token         the special token before a text, whose vector stands for the text
    mask_token        the special token in place of a token to predict
    model_max_length  the number of tokens that the model has room for
    chat_template     "chatml", which needs the special tokens <|im_start|> and <|im_end|>, or a
                      file in Jinja

    >>> transformers_config(["<|end|>"], eos_token="<|end|>", model_max_length=1024)
    {'eos_token': '<|end|>', 'model_max_length': 1024}
    """
    fields = {}
    of_bert = {"sep_token": sep_token, "cls_token": cls_token, "mask_token": mask_token}
    roles = dict(zip(ROLES, (bos_token, eos_token, pad_token, unk_token), strict=True)) | of_bert
    for role, text in roles.items():
        if text is not None:
            require_known("special token", text, special_tokens)
            fields[role] = text
    if model_max_length is not None:
        fields["model_max_length"] = model_max_length
    if chat_template == "chatml":
        if not {"<|im_start|>", "<|im_end|>"} <= set(special_tokens):
            raise InputError("ChatML needs the special tokens '<|im_start|>' and '<|im_end|>'")
        fields["chat_template"] = CHATML
    elif chat_template is not None:
        fields["chat_template"] = _read_text(as_path(chat_template))
    return fields


# Files, folders, names of the hub, and tokenizers of other libraries


class Format(NamedTuple):
    """A format of files."""

    # The parameters are the bytes of the file, its path, and a config as from `_read_config`.
    read: Callable
    write: Callable | None  # (model) -> {name of a file: content}; None: it is only read
    file: str  # the name of its first file
    sign: bytes  # an expression that matches the beginning of its files
    options: Collection[str] = ()  # those of `load_model` that `read` has, too


_NO_MODEL = (
    "this is not a tokenizer.json, vocab.json, merges.txt, rank file, SentencePiece model or "
    "vocab.txt; commands take the model before the texts"
)
# GPT-2's vocab.json begins with a name and an id.
_VOCAB = rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\d'
_TEKKEN = rb'(?s)\s*\{.{0,4000}?"default_num_special_tokens"'
# A file has the first format whose sign matches.
FORMATS = {
    "huggingface": Format(
        lambda data, file, config: read_huggingface(_as_class_adds(read_json(data, file), config)),
        write_huggingface,
        "tokenizer.json",
        rb"(?!" + _VOCAB + rb"|" + _TEKKEN + rb")\s*\{",
    ),
    "tekken": Format(read_tekken, None, "tekken.json", _TEKKEN),
    "gpt2": Format(
        read_gpt2, write_gpt2, "vocab.json", rb"#version|" + _VOCAB, {"pattern", "special_tokens"}
    ),
    "tiktoken": Format(
        read_tiktoken,
        write_tiktoken,
        "tokenizer.tiktoken",
        _RANK,
        {"encoding", "pattern", "special_tokens"},
    ),
    # A ModelProto begins with its pieces. The tag of this field is the byte of a newline; those of
    # the score and the type of the first piece are 0x15 and 0x18.
    "sentencepiece": Format(
        read_sentencepiece, write_sentencepiece, "tokenizer.model", rb"(?s)\n.{1,200}?[\x15\x18]"
    ),
    "bert": Format(read_bert, None, "vocab.txt", rb"(?ms)(?:.*?\n)??(?:##|\[UNK\]\r?$)"),
}
WRITTEN_FORMATS = [name for name in FORMATS if FORMATS[name].write]


# transformers takes one of these files before those of a class, unless there is a tokenizer.json.
_TAKEN_FIRST = ("tekken.json", "tokenizer.model", "tiktoken.model")


def _has_template_of(row, model):
    """Check whether the template of a class is known, with all of its tokens."""
    is_told = all(
        model.config.get(name, row.untold[name]) == row.untold[name] for name in row.untold
    )
    return is_told and (not row.template or _class_processor(row, model) is not None)


def _note_class(model, file, form):
    """Say that AutoTokenizer gives other ids for a folder, by its class or by another file."""
    name = _class_name(model.config)
    row = CLASSES.get(name)
    is_listed = form.file == "tokenizer.json"
    others = [] if is_listed or not name else [file.with_name(other) for other in _TAKEN_FIRST]
    for other in others:
        if file.name not in _TAKEN_FIRST and other.is_file():
            note(
                f"{file}: AutoTokenizer of transformers 5 reads {other.name} instead: move it away"
            )
            return
    is_same = row and _is_of_class(row, model) and _has_template_of(row, model)
    if row and row.needs_json and not is_listed:
        note(
            f"{file}: the class {name} of transformers 5 reads a tokenizer.json alone, which "
            "`save` writes: AutoTokenizer finds no tokens here"
        )
    elif name in _OWN_CLASSES and not is_same:
        note(
            f"{file}: AutoTokenizer of transformers 5 gives other ids for some texts, by the class "
            f"{name}; Tokenizer.load(AutoTokenizer.from_pretrained(folder)) has those"
        )
    if row and "fill_token" in row.roles:
        note(
            f"{file}: {name} of transformers takes {row.roles['fill_token']} in a text for a gap "
            "to fill, and puts the parts beside it in another order, as `as_hf()` does, too"
        )


def find_model(name):
    """Find the file of a model by a path or, if there is none, by a name of Hugging Face's hub.

    Tokenizers of other libraries are returned as they are. In a folder, the names that `save`
    writes are tried first, one by one. Otherwise the folder must have a single file of a model.
    """
    if not isinstance(name, PathName):
        return name
    path = as_path(name)
    if path.is_file():
        return path
    if not path.is_dir():
        require(not os.path.lexists(path), f"{path}: {_NO_FILE}")
        return _find_on_hub(str(name))
    config = _read_beside(path / "tokenizer_config.json")
    _name_class(path / "tokenizer.json", config)
    row = CLASSES.get(_class_name(config))
    of_class = []  # the vocabulary that the class of the folder reads
    if row:
        of_class = ["*.model"] if row.pieces or row.cuts in ("llama", "gemma") else ["vocab.*"]
    groups = [["tokenizer.json"], of_class, *([form.file] for form in FORMATS.values())]
    groups.append(["encoder.json", "*.tiktoken", "*tokenizer.json", "*.model", "*vocab.txt"])
    for patterns in groups:
        files = [file for pattern in patterns for file in path.glob(pattern)]
        if len(files) == 1:
            return find_model(files[0])
    raise InputError(
        f"{path}: no tokenizer.json here, nor a single file of another format{_TRY_TRANSFORMERS}"
    )


def load_model(path, **options):
    """Read a model from a file, folder, the hub, or a library's tokenizer; see Tokenizer.load."""
    options = {name: value for name, value in options.items() if value is not None}
    file = find_model(path)
    if not isinstance(file, Path):
        for name in options:
            raise InputError(f"a tokenizer of another library has its own: omit `{name}`")
        return _model_of(file)
    data = _read_limited(file)
    form = next((form for form in FORMATS.values() if regex.match(form.sign, data)), None)
    require(_recognize(data, _POINTER) is None, f"{file}: {_POINTER_REMEDY}")
    require(form, f"{file}: {_NO_MODEL}")
    for name in options.keys() - form.options:
        raise InputError(f"{file}: a file like {form.file} has its own: omit `{name}`")
    with naming_file(file):
        config, flags = _read_config(file)
        is_complete = form.file == "tokenizer.json"  # others lack the steps around a vocabulary
        _name_class(file, config, data if is_complete else b"")
        row = CLASSES.get(_class_name(config))
        if row and not options:
            _complete_config(row, config, flags, is_complete)
        model = form.read(data, file, config, **options)
        model = _with_folder(model, file, config, flags, is_complete)
        _add_template(model, is_complete)
    _note_class(model, file, form)
    values = _UNHEEDED_OF_PIECES if form.read is read_sentencepiece else _UNHEEDED
    unheeded = [name for name, value in values.items() if config.get(name) is value]
    if unheeded:
        note(f"{', '.join(unheeded)} of a tokenizer_config.json: kept, but not applied by `encode`")
    if model.drops_unknown:
        note(
            f"{file}: the model has no unknown token: it leaves out unknown letters, as Hugging "
            "Face does"
        )
    return model


# The files that are downloaded from a repository of the hub.
_HUB_FILES = ("tokenizer.json", "tekken.json", "vocab.json", "tokenizer.model", "vocab.txt",
              "spiece.model", "sentencepiece.bpe.model", "merges.txt", "tokenizer_config.json",
              "config.json", "source.spm", "added_tokens.json", "special_tokens_map.json",
              "chat_template.jinja", "additional_chat_templates/*.jinja")  # fmt: skip


def _find_on_hub(name):
    """Find the file of a model by a name of the hub, such as openai-community/gpt2.

    The network is asked unless the cache of huggingface_hub has both a tokenizer.json and its
    settings; without a network any vocabulary in the cache will do. A name whose first part is a
    folder here is a mistyped path.
    """
    missing = f"{name}: no such file or folder"
    suffixes = {Path(form.file).suffix for form in FORMATS.values()}
    is_path = os.path.exists(os.path.dirname(name)) or Path(name).suffix in suffixes
    require(re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) and not is_path, missing)
    try:
        hub = importlib.import_module("huggingface_hub")
        download = functools.partial(hub.snapshot_download, name, allow_patterns=_HUB_FILES)
        with contextlib.suppress(OSError):
            file = Path(download(local_files_only=True), "tokenizer.json")
            if file.is_file() and file.with_name("tokenizer_config.json").is_file():
                return file
        folder = download()
    except Exception as error:  # the version of the package decides which errors it raises
        reason = " ".join(str(error).split())
        raise InputError(
            f"{missing}; a name of the hub needs a network and pip install huggingface_hub "
            f"({reason:.200}); or download https://huggingface.co/{name}/resolve/main/tokenizer.json"
        ) from None
    with naming_file(name):
        return find_model(folder)


class _OfLibrary(type):
    """Recognizes objects by the names of their classes' packages, which may not be installed."""

    def __instancecheck__(cls, value):
        packages = {base.__module__.partition(".")[0] for base in type(value).__mro__}
        return not packages.isdisjoint(("tokenizers", "transformers", "tiktoken"))


class LibraryTokenizer(metaclass=_OfLibrary):
    """A tokenizer of the packages tokenizers, transformers or tiktoken."""


_NOUNS[LibraryTokenizer] = ("a tokenizer of another library", "tokenizers of other libraries")


def is_encoding(tokenizer):
    """Check whether a tokenizer is a tiktoken.Encoding."""
    return isinstance(tokenizer, LibraryTokenizer) and hasattr(tokenizer, "encode_ordinary")


def _model_of_encoding(encoding):
    """Make the model of a tiktoken.Encoding, from the arguments by which Python pickles it."""
    arguments = encoding.__getstate__()
    if isinstance(arguments, str):  # the name of a published one; a copy of it has the arguments
        arguments = copy.copy(encoding).__getstate__()
    with naming_file("this tiktoken.Encoding is not supported"):
        try:
            ranks = arguments["mergeable_ranks"]
            special_tokens = arguments["special_tokens"]
            pattern = arguments["pat_str"]
        except (KeyError, TypeError):
            raise InputError("tiktoken pickles it in another way: load its rank file") from None
        vocab = {token_id: token for token, token_id in ranks.items()}
        model = Model(vocab, None, special_tokens, _read_regex(pattern, _FANCY))
        _ids_as_ranks(model)  # raises InputError for a pattern that leaves out text
    return model


def _model_of(tokenizer):
    """Make the model of a tokenizer of tokenizers, transformers or tiktoken."""
    if is_encoding(tokenizer):
        return _model_of_encoding(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    require(
        hasattr(backend, "to_str"),
        "a model is a path, a name of the hub, a tokenizers.Tokenizer, a fast tokenizer of "
        f"transformers or a tiktoken.Encoding, not {tokenizer!r:.80}",
    )
    content = json.loads(backend.to_str())
    if backend is tokenizer:
        return read_huggingface(content)
    content |= dict.fromkeys(_BATCHING)  # left over from the last call of the tokenizer
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        config = Path(folder, "tokenizer_config.json")
        return _with_folder(read_huggingface(content), config, *_read_config(config))


def save_model(model, path, format=None):
    """Write a model folder in one of WRITTEN_FORMATS.

    By default that is tokenizer.json, and GPT-2's two files or a .model if that is possible. A path
    with the suffix of the first file of the format, such as model.tiktoken, is the name of that
    file. Files of other FORMATS stay in the folder. A warning names them, since `load_model` may
    read them.
    """
    path = as_path(path)
    name = format or "huggingface"
    require_known("format", name, WRITTEN_FORMATS)
    form = FORMATS[name]
    texts = form.write(model)
    if path.suffix == Path(form.file).suffix and not path.is_dir():
        # The path names the first file, and the others go next to it.
        require(format != "gpt2", f"{path}: GPT-2's format has two files: name a folder for them")
        # Two models in one folder share no file.
        prefix = "" if path.name == form.file else f"{path.stem}."
        names = [prefix + file for file in texts]
        # tokenizer.tiktoken.json describes tokenizer.tiktoken, and follows its name.
        names = [name.replace(prefix + form.file, path.name) for name in names]
        atomic_write_all(path.parent, dict(zip(names, texts.values(), strict=True)))
        return
    if format is None and not model.looks_up_words:
        for write in (write_gpt2, write_sentencepiece):
            with contextlib.suppress(InputError):
                texts |= write(model)
    atomic_write_all(path, texts)
    others = [form.file for form in FORMATS.values() if form.file not in texts]
    others = [file for file in others if (path / file).is_file()]
    if others:
        note(f"{path}: {', '.join(others)} may hold another model: remove outdated files")


# ─── Kinds ────────────────────────────────────────────────────────────────────────────────────────
#
# The name of a kind of model -> the functions that segment words, and read and write the model. All
# other sections use KINDS. A new kind is a row here, which a file of your own may add; see
# docs/inside.md:
#
#     KINDS["bpe"].tables(model)   ->   BpeTables, for which `segment_bpe` is called

KINDS |= {
    "bpe": Kind(bpe_tables, BpeTables, segment_bpe, write_bpe, read_bpe, sample_bpe, exact_pattern),
    "wordpiece": Kind(
        wordpiece_tables, WordPieceTables, segment_wordpiece, write_wordpiece, read_wordpiece
    ),
    "wordlevel": Kind(
        wordpiece_tables, WordPieceTables, segment_wordpiece, write_wordlevel, read_wordlevel
    ),
    "unigram": Kind(
        unigram_tables,
        UnigramTables,
        segment_unigram,
        write_unigram,
        read_unigram,
        sample_unigram,
        exact_pattern,
        RunningSum,
        begin_unigram,
    ),
}
KINDS["trimmed"] = KINDS["bpe"]._replace(write=write_trimmed)


# ─── Tokenizer ────────────────────────────────────────────────────────────────────────────────────
#
# Text -> ids -> text. A Tokenizer owns a Model, and everything that is computed from it once: the
# Pattern, the tables of its kind, the Pretokenizers and the decoded tokens. These do not change, so
# threads may share them. An _Encoder owns everything that changes: the cache and the arrays. A call
# takes an idle encoder, or makes one, and gives it back:
#
#     tokenizer.encode("hi!")       ->   an _Encoder    ->   [257, 34]
#     tokenizer.decode([257, 34])   ->   b"hi" + b"!"   ->   "hi!"             without an encoder
#
# A pickled Tokenizer is its Model. A worker process makes the tables once, for all copies that it
# receives.

Arrays = tuple[np.ndarray, np.ndarray]  # ids end to end, uint32[N], and their offsets, int64[T + 1]


def surround(ids, offsets, before, after, max_length=None):
    """Insert ids before and after each text; returns all ids and their offsets.

    The last ids of a text are left out, so that it has no more than `max_length` with the new ones.

    >>> surround(np.array([5, 6, 7]), np.array([0, 2, 2, 3]), [1], [2], 3)
    (array([1, 5, 2, 1, 2, 1, 7, 2]), array([0, 3, 5, 8]))
    """
    # At each offset one text ends and another begins. Ids outside of all texts are cut off.
    row = [*after, *before]
    if not row and max_length is None:
        return ids, offsets
    if max_length is not None:
        room = max_length - len(row)
        require(room >= 0, f"`max_length` {max_length} has no room for the special tokens")
        is_kept = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets)) < room
        ids = ids[is_kept]
        offsets = _offsets(is_kept)[offsets]
    places = np.repeat(offsets, len(row))
    longer = np.insert(ids, places, np.tile(row, len(offsets)))
    offsets = offsets + len(row) * np.arange(len(offsets))
    return longer[len(after) : len(longer) - len(before)], offsets


def pad_ids(ids, offsets, min_length, pad_id, pad_left):
    """Make a matrix with the ids of a text in each row.

    >>> pad_ids(np.array([5, 6, 7]), np.array([0, 2, 3]), 0, 9, True)
    array([[5, 6],
           [9, 7]])
    """
    sizes = np.diff(offsets)
    columns = np.arange(sizes.max(initial=min_length))
    if pad_left:
        columns = columns[::-1]
    is_id = columns < sizes[:, None]
    rows = np.full(is_id.shape, pad_id, ids.dtype)
    rows[is_id] = ids
    return rows


def split_ids(ids, offsets):
    """Return the ids of each text as a list.

    >>> split_ids(np.array([5, 6, 7]), np.array([0, 2, 2, 3]))
    [[5, 6], [], [7]]
    """
    view = memoryview(ids)  # a slice of it is made in less time than one of an array
    return [view[start:stop].tolist() for start, stop in itertools.pairwise(offsets.tolist())]


class Derivation(NamedTuple):
    """The merges that made the tokens of a text, one after another.

    Merge k has the rank ranks[k], and joined text[starts[k] : middles[k]] to
    text[middles[k] : ends[k]].
    """

    text: bytes  # without special tokens, as the normalizer and the pattern leave it
    ranks: np.ndarray  # int64[M]
    starts: np.ndarray  # int64[M]
    middles: np.ndarray  # int64[M]
    ends: np.ndarray  # int64[M]


def _letters_of(word, model):
    """List the letters of a word as a BPE sees them: the token of each, and where it ends."""
    suffix = model.word_suffix.encode()
    parts = [word[k : k + 1] for k in range(len(word))]
    if model.alphabet == "characters":
        text = word.decode("utf-8", "surrogateescape")
        parts = [character.encode("utf-8", "surrogateescape") for character in text]
    unknown = (model.unk_token or "").encode()
    letters = []
    end = 0
    for part in parts:
        end += len(part)
        token = part + suffix if end == len(word) else part
        if token in model.ordinary_ids:
            letters.append((token, end))
        elif model.byte_fallback:
            first = end - len(part) + 1
            letters += [(_FALLBACK_TOKENS[byte], first + k) for k, byte in enumerate(part)]
        elif model.fuse_unk and letters and letters[-1][0] == unknown:
            letters[-1] = unknown, end
        elif unknown:
            letters.append((unknown, end))
    return letters


def derive_word(word, model, ranks):
    """List the merges that make the tokens of a word, in their order: (rank, start, middle, end).

    This is the definition of a BPE: merge the pair of lowest rank, the leftmost of several, again
    and again.

    ranks  pair of bytes -> (its order, its rank)
    """
    letters = _letters_of(word, model)
    parts = [token for token, _ in letters]
    places = [0, *(end for _, end in letters)]
    steps = []
    while True:
        pairs = enumerate(itertools.pairwise(parts))
        candidates = [(*ranks[pair], k) for k, pair in pairs if pair in ranks]
        if not candidates:
            return steps
        _, rank, k = min(candidates, key=lambda found: (found[0], found[2]))
        steps.append((rank, *places[k : k + 3]))
        parts[k : k + 2] = [parts[k] + parts[k + 1]]
        del places[k + 1]


@public
class Lattice(NamedTuple):
    """The tokens that begin at each byte of a text: an edge for each, from there to its end.

    The edges from position k are the rows offsets[k] to offsets[k + 1], the shortest token first.
    So each way to cut the text into tokens is a path from position 0 to the end.

    >>> lattice = Tokenizer({0: b"a", 1: b"b", 2: b"ab"}, None).lattice("abb")
    >>> lattice.offsets.tolist(), lattice.ends.tolist(), lattice.ids.tolist()
    ([0, 2, 3, 4], [1, 2, 2, 3], [0, 2, 1, 1])
    """

    offsets: np.ndarray  # int64[N + 1]  for N bytes of text
    ends: np.ndarray  # int64[E]
    ids: np.ndarray  # uint32[E]


@kernel
def _list_edges(text, trie):
    """List the tokens that begin at each byte of a text: returns the arrays of a Lattice."""
    offsets = np.zeros(len(text) + 1, i64)
    ends = np.empty(64, i64)
    ids = np.empty(64, u32)
    n = 0
    for k in range(len(text)):
        node = ZERO
        for end in range(k, len(text)):
            node = trie_child(node, text[end], trie.edges)
            if node < 0:
                break
            if trie.values[node] >= 0:
                ends = _reserve(ends, n + 1)
                ids = _reserve(ids, n + 1)
                ends[n] = end + 1
                ids[n] = trie.values[node]
                n += 1
        offsets[k + 1] = n
    return offsets, ends[:n], ids[:n]


def decode_each(tokenizer, ids):
    """Decode the ids of a text one by one."""
    as_first, as_later = tokenizer._decoded
    return [*map(as_first.get, ids[:1]), *map(as_later.get, ids[1:])]


class _Encoder:
    """The state of one encoding thread."""

    def __init__(self, model, tables, pattern):
        self.model = model
        self._room = PART_BYTES
        text = np.empty(self._room + 2 * PADDING, u8)
        self._own_ids = np.empty(len(text), u32)
        self._own = text, text, np.array([BOUNDARY]), self._own_ids, np.empty(1, i64)
        self._pretokenizer = None  # the one whose passes and tokens are in the workspace
        n_entries = min(CACHE_ENTRIES, MAX_CACHE_ENTRIES)
        pool = np.empty(max(16 * MAX_CACHE_ENTRIES, 1 << 16), u32)
        self.workspace = _Workspace(
            tables,
            pattern.table,
            *_new_scan(),
            np.empty(4 * KEYS, u64),
            KINDS[model.kind].memory(),
            _new_word_table(n_entries, len(pool)),
            _new_larger(n_entries, MAX_CACHE_ENTRIES),
            pool,
            *[0] * 4,  # nothing is encoded yet
            n_entries,
            MAX_CACHE_ENTRIES,
            _no_special(),
            *self._own,
        )
        self._size = ctypes.c_ssize_t()
        self._size_address = ctypes.addressof(self._size)
        self._encode_flat = entry_point(_encode_flat, self.workspace, 0, 0, BOUNDARY, 0)

    @functools.cached_property
    def _take_changed(self):
        passes, _ = _text_passes([_SpacesPass(Metaspace())])
        return entry_point(_take_changed, self.workspace, 0, 0, passes)

    def encode_one(self, text, pretokenizer, convert):
        """Encode one text, str or bytes, after Pretokenizer.apply_to_text: by one kernel, or two.

        The next call uses the array of ids again, so `convert`, a function of arrays, makes the
        result. Returns None for a text that needs `encode`: one that has more than PART_BYTES, a
        byte 0xFE, characters that may change with their neighbours, or a letter without a token;
        and for anything that is not text, which `encode` refuses.
        """
        if isinstance(text, bytes):
            address = _bytes_address(text)
            n = bytes.__len__(text)
            is_plain = not bytes.__contains__(text, END)
        else:
            try:
                address = _utf8_address(text, self._size_address)
            except (TypeError, UnicodeEncodeError):
                return None
            n = self._size.value
            is_plain = True
        if n > self._room or not is_plain:
            return None
        passes = pretokenizer.text_passes
        if pretokenizer is not self._pretokenizer:
            _take_text(self.workspace, pretokenizer.special_of_text, *self._own)
            self._pretokenizer = pretokenizer
        if passes is not None:
            if not self._take_changed(self.workspace, address, n, passes):
                return None
            n = -1  # the text is in the workspace, and flat
        n = self._encode_flat(self.workspace, address, n, BOUNDARY, 0)
        return convert(self._own_ids[:n]) if n >= 0 else None

    def encode(self, texts, pretokenizer, parts, sampling=None):
        """Encode texts, in parts from `Tokenizer._parts`; returns the ids and their offsets.

        sampling  the tables, alpha and seed with which words are cut at random
        """
        offsets = np.zeros(len(texts) + 1, i64)
        ids = np.empty(sum(map(len, texts)) + len(offsets) + PADDING, u32)
        n = 0
        self._pretokenizer = None
        if sampling:
            tables, alpha, seed = sampling
            state = np.full(2, seed % 2**64, u64)
        try:
            for n_before, texts, opening in parts:
                flat, _ = pretokenizer.apply(texts, opening)
                if n + len(flat.text) > len(ids):
                    shorter = ids
                    ids = np.empty(2 * (n + len(flat.text)), u32)  # `resize` would write zeros
                    ids[:n] = shorter[:n]
                # Each part overwrites the end of its text, and the last part writes the right one.
                stops = offsets[n_before + 1 :]
                if sampling:
                    flat = pretokenizer.pattern.passes[-1].apply(flat, opening)
                _take_text(self.workspace, pretokenizer.special_of_text, *flat, ids, stops)
                if sampling:
                    if opening == BOUNDARY:
                        state[:] = (seed + n_before) % 2**64
                    n = _sample_words(self.workspace, tables, alpha, state, n)
                else:
                    n = self._encode_flat(self.workspace, 0, -1, opening, n)
                if n < 0:
                    raise _unknown_letter(self.model, flat, -1 - n)
        finally:  # the workspace lets go of the text and the ids
            _take_text(self.workspace, pretokenizer.special_of_text, *self._own)
        ids.resize(n, refcheck=False)  # without a copy
        return ids, offsets


def _unknown_letter(model, flat, start):
    """Build the error for a word that begins at `start` and has a letter without a token."""
    stop = start + flat.scanned[start:].tobytes().index(END)
    text = flat.text[start:stop].tobytes()
    if model.alphabet == "bytes":
        unknown = [f"the byte 0x{byte:02X}" for byte in text if byte not in model.letters]
    else:
        letters = text.decode("utf-8", "surrogateescape")
        unknown = [f"the character {c!r}" for c in letters if ord(c) not in model.letters]
    name = next(iter(unknown), "a word")
    return InputError(f"{name} is not in the vocabulary, which has no unknown token")


def _working_pattern(model):
    """Make the pattern of a model.

    Its pieces are cut further where no token crosses the cut, unless that would take another pass.
    Some patterns leave whole texts.
    """
    pattern = Pattern(model.pattern)
    exact_pattern = KINDS[model.kind].exact_pattern
    if exact_pattern and model.alphabet != "bytes":
        steps = [step for step in pattern.steps if step != PATTERNS["none"]]
        exact = Pattern([*steps, exact_pattern(model)])
        if len(exact.passes) == len(pattern.passes):
            return exact
    return pattern


def truncate(model, vocab_size):
    """Return a model with fewer tokens; see `Tokenizer.truncated`."""
    fixed = {
        *model.special_tokens.values(),
        *map(model.ids.get, fallback_tokens(model)),
        model.ids.get((model.unk_token or "").encode()),
        *model.letters.values(),
        *_marked_letters(model).values(),
    }
    others = sorted(model.vocab.keys() - fixed)
    if model.scores is not None:
        others.sort(key=lambda token_id: -model.scores[token_id])
    n_kept = len(others) + vocab_size - len(model.vocab)
    require(
        n_kept >= 0 and not model.unused,
        f"this {model.kind} has {len(model.vocab):,} tokens, of which it may lose {len(others):,}: "
        f"it cannot have {vocab_size:,}",
    )
    kept = sorted(model.vocab.keys() - others[n_kept:])
    new_ids = {token_id: number for number, token_id in enumerate(kept)}
    special_tokens = {text: new_ids[k] for text, k in model.special_tokens.items()}
    require(
        special_tokens == model.special_tokens or model.added_ids == ([], []),
        "the ids of special tokens would change, but the post_processor has them, too",
    )
    vocab = {new_ids[k]: model.vocab[k] for k in kept}
    tokens = {*vocab.values()}
    merges = model.merges
    if merges:
        merges = [pair for pair in merges if tokens.issuperset([*pair, b"".join(pair)])]
    scores = model.scores
    if scores is not None:
        scores = scores[[k for k in kept if k < len(scores)]]
    return dataclasses.replace(
        model,
        vocab=vocab,
        merges=merges,
        scores=scores,
        special_tokens=special_tokens,
        batching={},
        added_from=sum(k < model.added_from for k in kept),
        proto=b"",
    )


@public
class Tokenizer:
    """Text to token ids and back.

    vocab           id -> bytes; ids may have gaps
    merges          pairs of bytes, in the order of their ranks; None: any two neighbours that join
                    to a token merge, the token of the lowest id first, as in tiktoken
    special_tokens  strings, or {string: id}; strings that are not in the vocabulary get the next
                    ids
    pattern         the name of a pattern, a regular expression, or a list of steps that cut in turn
    fields          further fields of a Model, such as ignore_merges and added_tokens

    Threads may share a tokenizer, and it can be pickled. Raises ValueError for an invalid
    vocabulary.

    >>> vocab = {0: b"<|end|>"} | {1 + b: bytes([b]) for b in range(256)} | {257: b"hi"}
    >>> tokenizer = Tokenizer(vocab, [(b"h", b"i")], ["<|end|>"])
    >>> tokenizer.encode("hi!<|end|>")
    [257, 34, 0]
    >>> tokenizer.decode([257, 34, 0])
    'hi!<|end|>'
    """

    def __init__(
        self,
        vocab: Mapping[int, bytes],
        merges: Sequence[Merge] | None,
        special_tokens: SpecialTokens = None,
        pattern: PatternSource = "gpt2",
        **fields: object,
    ):
        self._compile(Model(vocab, merges, special_tokens, pattern, **fields))

    @classmethod
    def from_merges(
        cls,
        merges: Learner | Learned | Sequence[Merge],  # a list is over the single bytes
        special_tokens: Sequence[str] = (),
        *,
        without: Collection[bytes] = (),
        **fields: object,
    ) -> Tokenizer:
        """Make a BPE of the merges of a Learner, of Learned, or of a list of pairs of bytes.

        without  tokens that fall into their parts after all merges: the two tokens that became
                 them, and their parts if they are to fall, too (Trimmed BPE, Cognetta et al. 2024;
                 Scaffold-BPE, Lian et al. 2024). They get the last ids, which no text becomes
        fields   further fields of the Model, such as `pattern`, or `decoder` for tokens of
                 characters

        Ids are given as by `train`. An alphabet other than the bytes is one of characters: units of
        several letters, such as phonemes, are written as one character each. A vocabulary without
        merges needs no call: `Tokenizer(vocab, None)`, or a Model of the kind "wordpiece" for the
        longest match. After splits, merges alone cut words in another way than the Learner did, so
        such a Learner raises InputError. Make its merges and splits again in a Learner of other
        words, and read its `words`.

        >>> learner = Learner(Words.from_counts({b"low": 5, b" lower": 2}), 258)
        >>> learner.merge_best(258)
        >>> tokenizer = Tokenizer.from_merges(learner, ["<|end|>"])
        >>> tokenizer.merges, tokenizer.encode("low<|end|>")
        ([(b'o', b'w'), (b'l', b'ow')], [258, 0])
        >>> Tokenizer.from_merges([(b"a", b"b"), (b"ab", b"ab")]).encode("abab")
        [257]
        >>> Tokenizer.from_merges([(b"a", b"b"), (b"ab", b"ab")], without=[b"abab"]).encode("abab")
        [256, 256]
        """
        if isinstance(merges, Learner):
            require(
                not merges.has_split,
                "merges alone do not encode as a Learner that has split tokens does",
            )
            merges = merges.learned()
        if not isinstance(merges, Learned):
            merges = [*merges]
            merges = Learned([*BYTES, *map(b"".join, merges)], BYTES, merges)
        special_tokens = [*special_tokens]
        vocab = build_vocabulary(merges, {"first": special_tokens})
        if tuple(merges.alphabet) != BYTES:
            fields = {"alphabet": "characters", **fields}
            suffix = fields.get("word_suffix", "")
            letters = [letter.decode().removesuffix(suffix) for letter in merges.alphabet]
            units = [letter for letter in letters if len(letter) > 1]
            require(
                not units,
                f"no merge makes {units[:1]} of the alphabet from its letters: write such a unit "
                "as one character; for tokens of `words_of_model` use `extend_model`",
            )
        unused = {*without}
        if unused:
            require(unused <= {*vocab.values()}, "some token of `without` is not in the vocabulary")
            vocab = dict(enumerate(sorted(vocab.values(), key=unused.__contains__)))
            fields = {"kind": "trimmed", "unused": [*vocab][-len(unused) :], **fields}
        return cls.from_model(Model(vocab, merges.merges, special_tokens, **fields))

    @classmethod
    def from_model(cls, model: Model, *, is_checked: bool = False) -> Tokenizer:
        """Make a tokenizer from a Model of any kind.

        is_checked  the model is known to be right, so that its tables are made when they are needed
        """
        tokenizer = cls.__new__(cls)
        tokenizer._compile(model, is_checked)
        return tokenizer

    @interruptible
    def _compile(self, model, is_checked=False):
        """Compute what the tokenizer needs from its model."""
        require_known("kind of model", model.kind, KINDS)
        self.model = model
        self.pattern = _working_pattern(model)
        self._normalizer = Normalizer(model.normalizer)
        tokens = dict(model.vocab)
        for text, added in model.added_tokens.items():
            if added.normalized and not added.literal:  # such a token is found in normalized text
                tokens[model.special_tokens[text]] = self._normalizer.normalize(text.encode())
        self._decoded = decoded_tokens(tokens, model.decoder_steps)
        self._endings = decoded_endings(tokens, model.decoder_steps, self._decoded)
        self._prepared = {}  # by special tokens
        if not is_checked:
            _ = self._tables  # raises InputError for a wrong model
        self._idle = []  # encoders that no thread is using
        self._origin = None  # the file, or the tokenizer of another library, that was loaded

    def truncated(self, vocab_size: int) -> Tokenizer:
        """Make a tokenizer with the first tokens of this one, in their order, without gaps in ids.

        It loses the last ids, as if training had ended there, and the merges that need them; a
        Unigram loses the tokens with the lowest scores. Letters, special tokens and the tokens of
        unknown characters stay. Nothing is lost if there are no more tokens than `vocab_size`.
        Raises InputError for a size at which one of those would be lost.

        >>> tokenizer = Tokenizer.from_merges([(b"a", b"b"), (b"ab", b"ab")], ["<|end|>"])
        >>> tokenizer.truncated(258).merges, tokenizer.truncated(258).encode("abab<|end|>")
        ([(b'a', b'b')], [257, 257, 0])
        """
        return Tokenizer.from_model(truncate(self.model, vocab_size))

    vocab = property(
        attrgetter("model.vocab"), doc="The tokens by their ids, including special tokens."
    )

    @functools.cached_property
    def merges(self) -> list[Merge] | None:
        """The merges of a BPE in order, as pairs of bytes; None for other kinds.

        If ids or scores decide, as in a rank file or a `.model`, these are the merges that `to_str`
        writes: see `Model.merges` for those that were given.

        >>> Tokenizer({0: b"a", 1: b"b", 2: b"ab"}, None).merges
        [(b'a', b'b')]
        """
        if self.model.merges is None and KINDS[self.model.kind].segment is segment_bpe:
            return _as_merges(self.model)[0]
        return self.model.merges

    special_tokens = property(
        attrgetter("model.special_tokens"), doc="The ids of the special tokens."
    )
    config = property(attrgetter("model.config"), doc="The content of tokenizer_config.json.")
    digest = property(
        attrgetter("model.digest"), doc="A SHA-256, in hexadecimal, of all that decides about ids."
    )

    def __len__(self):
        """The number of tokens, including special tokens."""
        return len(self.vocab)

    @property
    def vocab_size(self) -> int:
        """The number of rows that an embedding needs: the largest id + 1."""
        return max(self.vocab, default=-1) + 1

    n_vocab = vocab_size  # the name of tiktoken

    def __repr__(self):
        return f"<Tokenizer: {len(self)} tokens, {len(self.special_tokens)} special>"

    def _repr_html_(self):
        model = self.model
        rows = [
            ("kind", model.kind),
            ("tokens", len(self)),
            ("special tokens", ", ".join(self.special_tokens)),
            ("pattern", str(model.pattern)),
        ]
        return Table("Tokenizer", ("what", "value"), rows)._repr_html_()

    def __reduce__(self):
        return _unpickle, (self._pickled, self.model.config)

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """The bytes of each token inside a text, by its id; the first of a text may lack a space.

        >>> steps = [{"type": "Metaspace", "replacement": "▁"}]
        >>> model = Model({0: "▁a".encode()}, [], alphabet="characters", decoder=steps)
        >>> Tokenizer.from_model(model).token_bytes
        {0: b' a'}
        """
        return self._decoded[1]

    @functools.cached_property
    def _byte_table(self):
        """The bytes of the tokens as arrays."""
        return make_token_bytes(self.token_bytes)

    @functools.cached_property
    def _trie(self):
        """The ordinary tokens, for `lattice`."""
        ids = reversed(self.model.ordinary)  # so <0x41> comes after A
        return make_trie({token_id: self.token_bytes[token_id] for token_id in ids})

    @functools.cached_property
    def text_sizes(self) -> np.ndarray:
        """The bytes of text that each id stands for, int64[V].

        `decode` writes this many bytes for the id inside a text; the unknown token has 0. A mark is
        one byte, the space. But the space that a WordPiece writes between any two words is in no
        token. The other bytes of a text are *lost*: the pattern or the normalizer has dropped them,
        or they are unknown. A character that the normalizer changes counts with the size of the new
        one.

        >>> Tokenizer({0: b"low", 1: b"er"}, None).text_sizes
        array([3, 2])
        """
        model = self.model
        text, starts, sizes = self._byte_table
        sizes = sizes.copy()
        if any(step["type"] == "WordPiece" for step in model.decoder_steps):
            sizes -= text[starts] == ord(" ")
        if model.unk_token and not model.byte_fallback:
            sizes[model.unknown_id] = 0
        return sizes

    @functools.cached_property
    def _by_word(self):
        """The tokenizer for words that are already normalized and cut."""
        return Tokenizer.from_model(dataclasses.replace(self.model, pattern="none", normalizer=()))

    @functools.cached_property
    def _skipped_ids(self):
        """The ids that `decode` may skip: special tokens, but none with `special: false`.

        Hugging Face also keeps a token that it finds in normalized text in another form.
        """
        normalize = self._normalizer.normalize
        added_tokens = self.model.added_tokens
        return [
            token_id
            for text, token_id in self.special_tokens.items()
            if (added := added_tokens.get(text, PLAIN_TOKEN)).special
            if not added.normalized or normalize(text.encode()).decode() in self.special_tokens
        ]

    @functools.cached_property
    def _huggingface(self):
        """A `tokenizers.Tokenizer` of whole texts."""
        theirs = self._as_huggingface()
        theirs.no_truncation()
        theirs.no_padding()
        return theirs

    @functools.cached_property
    def _tables(self):
        """The tables for `encode`."""
        return KINDS[self.model.kind].tables(self.model)

    @functools.cached_property
    def _sample_tables(self):
        """The tables for `sample`."""
        return KINDS[self.model.kind].tables(self.model, samples=True)

    @functools.cached_property
    def _pickled(self):
        """The model without its `config`, which may change, and the class of its tables.

        Reading the class imports its file, which may add the kind of the model to KINDS.
        """
        model = dataclasses.replace(self.model, config={})
        state = model, KINDS[model.kind].tables_type
        return zlib.compress(pickle.dumps(state), 1)

    @classmethod
    def from_files(
        cls,
        vocab_filepath: PathName,
        merges_filepath: PathName,
        special_tokens: SpecialTokens = None,
        threshold: Natural = 0,
    ) -> Tokenizer:
        """Load two files: GPT-2's or CLIP's vocab.json and merges.txt; or subword-nmt's.

        By default the special tokens are the names that no merge makes, except single bytes. The
        vocabulary of subword-nmt has a token and its count on each line, and its codes are the
        merges. Tokens with a smaller count than `threshold` fall into their parts.
        """
        files = open_pair(
            Path(vocab_filepath),
            Path(merges_filepath),
            special_tokens=special_tokens,
            threshold=threshold,
        )
        return cls.from_model(read_vocab_files(files))

    @classmethod
    @collecting_later()
    def load(
        cls,
        path: PathName | object,
        *,
        encoding: str | None = None,
        pattern: str | None = None,
        special_tokens: SpecialTokens = None,
    ) -> Tokenizer:
        """Load a model. The format of files is detected from their content.

        path  a file or a folder; or a name of the hub, such as "openai-community/gpt2", in the
              cache of huggingface_hub or on the network; or a tokenizers.Tokenizer, a fast
              tokenizer of transformers, a tiktoken.Encoding

        A file is a tokenizer.json of Hugging Face; GPT-2's or CLIP's vocab.json and merges.txt, or
        encoder.json and vocab.bpe; a rank file of tiktoken; a model of SentencePiece; the codes of
        subword-nmt; or BERT's vocab.txt. A rank file lacks a pattern and special tokens: `encoding`
        is a name in ENCODINGS, or `pattern` and `special_tokens` give them. Published rank files,
        and those that were saved here, need neither. Files beside it add tokens, roles and
        settings, as in transformers: tokenizer_config.json, special_tokens_map.json,
        added_tokens.json and chat templates; all of them are written again by `save`. Raises
        ValueError for other files, and for features that would give other ids here.
        """
        origin = find_model(path)
        tokenizer = cls.from_model(
            load_model(origin, encoding=encoding, pattern=pattern, special_tokens=special_tokens)
        )
        tokenizer._origin = origin
        return tokenizer

    def save(self, path: PathName, format: str | None = None) -> None:
        """Write a model folder.

        "huggingface"   tokenizer.json, tokenizer_config.json, special_tokens_map.json, and
                        chat_template.jinja
        "gpt2"          vocab.json, merges.txt
        "tiktoken"      tokenizer.tiktoken, and the pattern and the special tokens in
                        tokenizer.tiktoken.json
        "sentencepiece" tokenizer.model, if the tokenizer was read from a .model; with new tokens
        None            the files of "huggingface" and, where possible, those of "gpt2" and
                        "sentencepiece"

        A path such as "a.json" is the name of the first file; the others are then a.* as well.
        Raises ValueError if the format cannot represent the model.
        """
        save_model(self.model, path, format)

    @classmethod
    @collecting_later()
    def from_str(cls, text: str) -> Tokenizer:
        """Read the content of a tokenizer.json."""
        with naming_file("the text"):
            model = read_huggingface(read_json(_text_bytes(text), "the text"))
        return cls.from_model(model)

    def to_str(self) -> str:
        """Write the content of a tokenizer.json."""
        content = _to_json(_to_tokenizer_json(self.model))
        note_differences(self.model)
        return content

    def to_huggingface(self):
        """Make a `tokenizers.Tokenizer` with the same ids; raises InputError if there is none."""
        theirs = self._as_huggingface()
        note_differences(self.model)
        return theirs

    def _as_huggingface(self):
        """Make a `tokenizers.Tokenizer`, without a note if some of its ids may differ."""
        library = import_optional("tokenizers")
        written = _to_json(_to_tokenizer_json(self.model))
        try:
            return library.Tokenizer.from_str(written)
        except Exception as error:  # it raises no other class
            raise InputError(f"`tokenizers` cannot read a {self.model.kind}: {error}") from None

    def to_tiktoken(self, name: str = "bpe_numba"):
        """Make a `tiktoken.Encoding` with the same ids; raises ValueError if that is impossible."""
        return import_optional("tiktoken").Encoding(
            name,
            pat_str=_write_regex(self.pattern.source, _FANCY),
            mergeable_ranks=tiktoken_ranks(self.model),
            special_tokens=self.special_tokens,
        )

    def get_vocab(self) -> Ids:
        """Return the names of the tokens, as in a tokenizer.json, and their ids."""
        return vocab_names(self.model)

    def with_special_tokens(
        self, special_tokens: Sequence[str] = (), template: str | None = None
    ) -> Tokenizer:
        """Return a tokenizer that has these special tokens, too.

        They get their ids as by `add_special_tokens` of Hugging Face: the name of a token keeps its
        id, and others get the next ids.

        template  the tokens around a text, for `add_special_tokens` and for transformers, such as
                  "[CLS] $A [SEP]"

        >>> tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
        >>> tokenizer = tokenizer.with_special_tokens(["<s>", "</s>"], "<s> $A </s>")
        >>> tokenizer.encode("Hi", add_special_tokens=True)
        [256, 72, 105, 257]
        """
        texts = _check_texts(special_tokens)
        model = add_special_tokens(self.model, dict.fromkeys(texts, PLAIN_TOKEN))
        if template is not None:
            model.post_processor = template_processing(template, model.special_tokens)
        return Tokenizer.from_model(model)

    def as_hf(self):
        """Make a tokenizer of transformers that encodes plain texts here, with the same results.

        A tokenizer that was loaded from a folder becomes the one that AutoTokenizer loads from
        there. One that was loaded from a tokenizer of transformers becomes a copy of that. Any
        other becomes the one that `save` would write. A text or a list of texts is encoded here,
        with the options add_special_tokens, padding, truncation, max_length and return_tensors. The
        library does everything else, and encodes if the class of the tokenizer has a way of its own
        to do so, as for texts with boxes.

        >>> vocab = {b: bytes([b]) for b in range(256)}
        >>> tokenizer = Tokenizer(vocab, [], ["<pad>"])
        >>> tokenizer.config["pad_token"] = "<pad>"
        >>> tokenizer.as_hf()(["Hi!", "?"], padding=True)["input_ids"]
        [[72, 105, 33], [63, 256, 256]]
        """
        transformers = import_optional("transformers")
        origin = self._origin
        if hasattr(origin, "backend_tokenizer"):
            original = _copy_of_fast(origin)
        elif getattr(origin, "name", None) in _HUB_FILES and _names_class(origin):
            original = transformers.AutoTokenizer.from_pretrained(origin.parent)
            require(
                hasattr(original, "backend_tokenizer"),
                f"{type(original).__name__} of transformers is not a fast tokenizer, so texts "
                "cannot be encoded here: use AutoTokenizer.from_pretrained",
            )
        else:
            original = transformers.PreTrainedTokenizerFast(
                tokenizer_object=self.to_huggingface(), **self.config
            )
        swapped = _swapped(_FastTexts, type(original), vars(original))
        theirs = swapped._current()  # now, since copies of it take some time
        if theirs and isinstance(origin, Path):
            with contextlib.suppress(InputError):
                with warnings.catch_warnings(action="ignore"):  # `load` gave these notes
                    own = read_huggingface(_to_tokenizer_json(self.model))
                ours, others = ((model.digest, model.added_ids) for model in (own, theirs.model))
                if ours != others:
                    note("transformers changes what this folder says: some ids differ")
        return swapped

    def as_tiktoken(self, name: str = "bpe_numba"):
        """Make a `tiktoken.Encoding` whose batches are encoded here, with the same results.

        All its other methods are tiktoken's. Raises ValueError if tiktoken cannot have the same
        ids.

        >>> encoding = Tokenizer({b: bytes([b]) for b in range(256)}, None).as_tiktoken()
        >>> encoding.encode_batch(["Hi", "!"])
        [[72, 105], [33]]
        """
        encoding = self._origin
        if not is_encoding(encoding):
            encoding = self.to_tiktoken(name)
        return _swapped(_EncodingBatches, type(encoding), vars(encoding) | {"_ours": self})

    def token_to_id(self, token: bytes | str) -> int | None:
        """Look up the id of a token, or None."""
        return self.special_tokens.get(token, self.model.ids.get(_text_bytes(token)))

    def id_to_token(self, id: int) -> bytes:
        """Look up the bytes of a token; raises ValueError for an unknown id."""
        if id not in self.vocab:
            raise InputError(
                f"id {id!r} is not in the vocabulary, whose ids end at {self.vocab_size - 1}"
            )
        return self.vocab[id]

    @checks_itself
    def encode(
        self, text: Text, allowed_special: Allowed = "all", *, add_special_tokens: bool = False
    ) -> list[int]:
        """Encode a text, or bytes that may be invalid UTF-8, as a list of ids.

        allowed_special     the special tokens that become their ids: "all", "none", or some of
                            them. All others are ordinary text, so nobody can forge a control token
                            that is not allowed. Added tokens with `special: false` are always found
        add_special_tokens  put the tokens of the model's post_processor, such as [CLS] and [SEP],
                            before and after the text, as Hugging Face does by default
        """
        ids = self._encode_one(text, allowed_special, np.ndarray.tolist)
        if ids is None:
            ids = self.encode_texts([text], allowed_special)[0].tolist()
        if add_special_tokens:
            before, after = self.model.added_ids
            ids = before + ids + after
        return ids

    def _encode_one(self, text, allowed_special, convert):
        """Encode a text by kernels alone, see _Encoder; None if that is impossible."""
        try:
            pretokenizer = self._prepare(allowed_special)
            data = pretokenizer.apply_to_text(text)
            ids = None
            if data is not None:
                encoder = self._take_encoder()
                ids = encoder.encode_one(data, pretokenizer, convert)
                self._idle.append(encoder)
            if ids is None:
                check_options(Tokenizer.encode, {"text": text})
            return ids
        except (InputError, SystemError, TypeError) as error:  # as in `public`, which takes longer
            given = {"text": text, "allowed_special": allowed_special}
            raise problem_of(error, parameters_of(Tokenizer.encode), (), given) from None

    def encode_with_offsets(
        self, text: Text, allowed_special: Allowed = "all", *, characters: bool = False
    ) -> tuple[list[int], list[int]]:
        """Encode a text. Returns the ids, and the byte of the text at which each of them begins.

        characters  count characters instead of bytes; a token that begins within a character gets
                    the number of this character. If tokens are made of characters, the offsets are
                    those of Hugging Face, in which a space before a word may belong to no token

        If the tokens do not add up to the text, as after a normalizer, the offsets are those of
        Hugging Face, too. The `tokenizers` package finds them. Raises InputError if its ids differ.

        >>> tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
        >>> tokenizer.encode_with_offsets("é!")
        ([195, 169, 33], [0, 1, 2])
        >>> tokenizer.encode_with_offsets("é!", characters=True)
        ([195, 169, 33], [0, 0, 1])
        """
        data = _text_bytes(text)
        ids = self.encode(data, allowed_special)
        tokens = decode_each(self, ids)
        # the first bytes of the characters, and the end of the text
        firsts = np.flatnonzero(np.frombuffer(data + b"\n", u8) & 0xC0 != 0x80)
        if b"".join(tokens) == data and (self.model.alphabet == "bytes" or not characters):
            places = _offsets([*map(len, tokens)])[:-1]
        else:
            with naming_file("the text"):
                text = data.decode()
            try:
                theirs = self._huggingface.encode(text, add_special_tokens=False)
            except Exception as error:  # `tokenizers` raises no class of its own
                raise InputError(f"Hugging Face finds no offsets: {error}") from None
            require(theirs.ids == ids, "Hugging Face has other ids: there are no offsets")
            places = firsts[[start for start, _ in theirs.offsets]]
        if characters:
            places = np.searchsorted(firsts, places, "right") - 1
        return ids, places.tolist()

    def derivation(self, text: Text, allowed_special: Allowed = "all") -> Derivation:
        """Tell how a BPE makes the tokens of a text: which merges joined which places, in order.

        The words of the text come one after another. A merge is identified by its rank, its index
        in `merges`. Words that are looked up whole have no merges, and unused tokens of a trimmed
        BPE fall into their parts later. Raises InputError for other kinds of models.

        >>> tokenizer = Tokenizer.from_merges([(b"o", b"w"), (b"l", b"ow")])
        >>> steps = tokenizer.derivation("slow")
        >>> steps.ranks.tolist(), steps.starts.tolist(), steps.middles.tolist(), steps.ends.tolist()
        ([0, 1], [2, 1], [3, 2], [4, 4])
        """
        _refuse(KINDS[self.model.kind].segment is not segment_bpe, "a derivation without merges")
        pretokenizer = self._prepare(allowed_special)
        flat, _ = pretokenizer.apply([_text_bytes(text)])
        words = [*filter(None, self.pattern.passes[-1].apply(flat, BOUNDARY).texts())]
        ranks, whole_words = self._ranks
        steps = []
        start = 0
        for word in words:
            if word not in whole_words:
                for rank, *places in derive_word(word, self.model, ranks):
                    steps.append((rank, *(start + place for place in places)))
            start += len(word)
        columns = np.array(steps, i64).reshape(-1, 4).T.copy()
        return Derivation(b"".join(words), *columns)

    @functools.cached_property
    def _ranks(self):
        """The merges for `derive_word`, and words that are looked up, since no merge makes them.

        The merges are a dict: pair of bytes -> (its order, its rank).
        """
        model = self.model
        ranks = {pair: (rank, rank) for rank, pair in reversed([*enumerate(self.merges)])}
        if model.merges is None and model.scores is not None:
            for pair, (rank, _) in ranks.items():
                ranks[pair] = -model.scores[model.ids[b"".join(pair)]], rank
        whole_words = set()
        if model.looks_up_words:
            _, tokens = last_merges(model)
            whole_words.update(tokens)
        return ranks, whole_words

    def lattice(self, text: Text) -> Lattice:
        """List the tokens that begin at each byte of a text, whether `encode` takes them or not.

        They are compared as `token_bytes` has them, and only with ordinary text: the normalizer,
        the pattern and special tokens are not used. Of several tokens with the same bytes, the one
        with the greatest id is listed.
        """
        return Lattice(*_list_edges(np.frombuffer(_text_bytes(text), u8), self._trie))

    @checks_itself
    def encode_ordinary(self, text: Text) -> list[int]:
        """Encode a text as ordinary text, without special tokens."""
        return self.encode(text, "none")

    @checks_itself
    def encode_to_numpy(
        self, text: Text, allowed_special: Allowed = "all", **options: object
    ) -> np.ndarray:
        """Encode a text as uint32[N], with the options of `encode_texts`.

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_to_numpy("Hi")
        array([ 72, 105], dtype=uint32)
        """
        ids = None
        if not options:
            ids = self._encode_one(text, allowed_special, np.ndarray.copy)
        if ids is None:
            ids, _ = self.encode_texts([text], allowed_special, **options)
        return ids

    def _take_encoder(self):
        """Take an encoder that no thread is using, or make one."""
        try:
            return self._idle.pop()
        except IndexError:
            return _Encoder(self.model, self._tables, self.pattern)

    def encode_texts(
        self,
        texts: Sequence[Text],
        allowed_special: Allowed = "all",
        opening: int = BOUNDARY,
        *,
        add_special_tokens: bool = False,
        max_length: Natural | None = None,
        alpha: float | None = None,
        seed: int = 0,
    ) -> Arrays:
        """Encode texts in this thread. All other calls for several texts pass their options on.

        opening             CONTINUES if the first text continues an earlier one; see
                            Pretokenizer.apply
        add_special_tokens  as in `encode`
        max_length          the last ids of a longer text are left out, but no ids that
                            add_special_tokens puts around it
        alpha               cut words at random, as `sample` does
        seed                text number k, from 0, is cut as by `sample` with the seed `seed` + k

        Returns the ids of the texts end to end, uint32[N], and their offsets, int64[T + 1].
        """
        sampling = self._sampling(alpha, seed)
        pretokenizer = self._prepare(allowed_special)
        parts = self._parts(texts, pretokenizer, opening)
        encoder = self._take_encoder()
        try:
            ids, offsets = encoder.encode(texts, pretokenizer, parts, sampling)
        finally:
            self._idle.append(encoder)
        added_ids = self.model.added_ids if add_special_tokens else ([], [])
        return surround(ids, offsets, *added_ids, max_length)

    def _parts(self, texts, pretokenizer, opening):
        """Gather short texts into parts of about PART_BYTES, and cut long ones if possible.

        Yields the number of texts before each part, its texts, and how the first one begins.
        """
        n_before = 0
        for batch in _batched_by_size(texts, len, PART_BYTES):
            long = b""
            # A normalizer takes up to 0.9 s to tell where text may be cut.
            if len(batch[-1]) >= 2 * PART_BYTES and not self._normalizer:
                long = _view_utf8(batch.pop())
            if batch:
                yield n_before, [*map(_text_bytes, batch)], opening
                opening = BOUNDARY
            n_before += len(batch)
            parts = pretokenizer.find_parts(
                lambda start, n, text=long: bytes(text[start : start + n]), PART_BYTES, opening
            )
            for start, stop, begins, _ in parts:
                yield n_before, [long[start:stop]], begins
            n_before += len(long) > 0
            opening = BOUNDARY

    def sample(
        self, text: Text, alpha: float = 0.1, seed: int = 0, allowed_special: Allowed = "all"
    ) -> list[int]:
        """Encode a text at random; each seed gives one way to cut it.

        This is for training a model on several ways.

        alpha  for a Unigram: the probability of a way is proportional to exp(alpha * score), so
               with 0 all ways have the same probability (Kudo 2018). For a BPE: the probability
               with which a merge is left out each time, so 0 leaves out no merge (Provilkov et al.
               2020)

        Raises InputError for a model that cuts in only one way.

        >>> vocab = {b: bytes([b]) for b in range(256)} | {256: b"ab", 257: b"abab"}
        >>> tokenizer = Tokenizer(vocab, [(b"a", b"b"), (b"ab", b"ab")])
        >>> [tokenizer.sample("abab", 0.5, seed) for seed in range(3)]
        [[256, 97, 98], [257], [257]]
        """
        return self.encode_texts([text], allowed_special, alpha=alpha, seed=seed)[0].tolist()

    def _sampling(self, alpha, seed):
        """Return the last argument of _Encoder.encode.

        Raises InputError if words cannot be cut at random, with this alpha.
        """
        if alpha is None:
            return None
        kind = self.model.kind
        require(
            KINDS[kind].sample,
            f"a model of the kind {kind} cuts a word in only one way: there is nothing to sample",
        )
        require(
            0 <= alpha <= 1 or (kind == "unigram" and abs(alpha) < 1e100),
            f"alpha is a probability, or with a unigram a power of it, not {alpha}",
        )
        return self._sample_tables, float(alpha), int(seed)

    def encode_batch(
        self, texts: Iterable[Text], allowed_special: Allowed = "all", **options: object
    ) -> list[list[int]]:
        """Encode each text as a list of ids.

        options  threads, for large batches, by default one for each core; and add_special_tokens,
                 max_length, alpha and seed, as in `encode_texts`

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_batch(["Hi", "", "!"])
        [[72, 105], [], [33]]
        >>> tokenizer = Tokenizer.from_merges([(b"a", b"b")], pattern="none")
        >>> [len(ids) for ids in tokenizer.encode_batch(["abab"] * 9, alpha=0.5)]
        [3, 2, 2, 2, 2, 3, 3, 4, 2]
        """
        return split_ids(*self.encode_batch_to_numpy(texts, allowed_special, **options))

    def encode_batch_to_numpy(
        self,
        texts: Iterable[Text],
        allowed_special: Allowed = "all",
        *,
        seed: int = 0,
        threads: Positive | None = None,
        **options: object,
    ) -> Arrays:
        """Encode all texts, with the options of `encode_batch`.

        Returns the ids of the texts end to end, uint32[N], and their offsets, int64[T + 1].

        >>> tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
        >>> tokenizer.encode_batch_to_numpy(["Hi", "", "!"])
        (array([ 72, 105,  33], dtype=uint32), array([0, 2, 2, 3]))
        """
        require(
            not isinstance(texts, Text),
            "encode_batch takes a list of texts: use encode for one text",
        )
        engine = Engine(threads)
        options["allowed_special"] = allowed_special
        if not isinstance(texts, Collection):  # then its items are not checked yet
            texts = [*texts]
            wrong = [text for text in texts if not isinstance(text, Text)]
            require(not wrong, f"`texts` has {wrong[:1]}: it must be a list of strings or bytes")
        texts = [*texts]
        batches = [*_batched_by_size(texts, len, PART_BYTES)]
        if engine.n_workers == 1 or len(batches) < 2:
            return self.encode_texts(texts, seed=seed, **options)  # without a copy of the ids
        jobs = zip(batches, itertools.accumulate(map(len, batches), initial=seed), strict=False)
        parts = engine.map(
            lambda job: self.encode_texts(job[0], seed=job[1], **options), jobs, threads=True
        )
        ids, offsets = zip(*parts, strict=True)
        sizes = np.concatenate([*map(np.diff, offsets)])
        return np.concatenate(ids), _offsets(sizes)

    def encode_batch_padded(
        self,
        texts: Iterable[Text],
        max_length: Natural | None = None,
        allowed_special: Allowed = "all",
        *,
        min_length: Natural = 0,
        pad_id: Id = 0,
        pad_left: bool = False,
        **options: object,
    ) -> Arrays:
        """Encode each text as a row of a matrix, which is as wide as its longest row.

        Returns the ids, uint32[T, L], and the lengths of the rows without padding, int64[T].

        min_length  the matrix is at least as wide
        pad_id      the id of padding
        pad_left    whether padding is at the beginning of a row, not at its end
        options     those of `encode_batch`

        >>> tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
        >>> tokenizer.encode_batch_padded(["Hi!", "", "?"], 2)
        (array([[ 72, 105],
               [  0,   0],
               [ 63,   0]], dtype=uint32), array([2, 0, 1]))
        """
        ids, offsets = self.encode_batch_to_numpy(
            texts, allowed_special, max_length=max_length, **options
        )
        try:
            rows = pad_ids(ids, offsets, min_length, pad_id, pad_left)
        except (MemoryError, ValueError, OverflowError) as error:
            raise InputError(
                f"a matrix with `min_length` {min_length} needs memory: {error}"
            ) from None
        return rows, np.diff(offsets)

    def encode_iterable(
        self, iterable: Iterable[Text] | str, allowed_special: Allowed = "all"
    ) -> Iterator[int]:
        """Encode a text that comes in chunks, such as a file, and yield the ids of the whole text.

        Memory is bounded. But a whole document is held if the pattern or the flags of special
        tokens allow no cut.
        """
        pretokenizer = self._prepare(allowed_special)
        # One encoder does the whole text, so that the sums of another one cannot come between.
        own = _copied(self, _idle=[self._take_encoder()])
        try:
            for data, opening, _ in pretokenizer.cut(map(_text_bytes, iterable), WINDOW_BYTES):
                yield from own.encode_texts([data], allowed_special, opening)[0].tolist()
        finally:
            self._idle += own._idle

    def source(
        self,
        inputs: Files,
        allowed_special: Allowed = "all",
        text_field: str | None = None,
        skip_bad_lines: bool = False,
    ) -> Source:
        """Make a Source that cuts files so that their blocks have the same ids as the whole."""
        model = self.model
        return Source(
            inputs,
            self.pattern,
            tuple(self._prepare(allowed_special).special_tokens),
            text_field,
            added_tokens=model.added_tokens,
            normalizer=model.normalizer,
            skip_bad_lines=skip_bad_lines,
        )

    def _prepare(self, allowed_special):
        """Make the Pretokenizer that finds the allowed special tokens, or return an earlier one.

        Added tokens that are not special belong to ordinary text, so they are always found. Raises
        InputError for unknown names.
        """
        try:
            return self._prepared[allowed_special]
        except (KeyError, TypeError):  # TypeError: a list, for example
            key = allowed_special
        if key is None:
            key = "all"  # its default
        elif not isinstance(key, str) or key not in ("all", "none"):
            key = frozenset([key] if isinstance(key, str) else key)
        if key not in self._prepared:
            special_tokens = self.special_tokens
            allowed = {"all": special_tokens, "none": ()}.get(key, key)
            for token in {*allowed} - special_tokens.keys():
                require_known("special token", token, special_tokens)
            added_tokens = self.model.added_tokens
            ids = {
                text: token_id
                for text, token_id in special_tokens.items()
                if text in allowed or not added_tokens.get(text, PLAIN_TOKEN).special
            }
            self._prepared[key] = Pretokenizer(self.pattern, ids, added_tokens, self._normalizer)
        return self._prepared[key]

    @checks_itself
    @interruptible
    def decode_bytes(self, ids: Iterable[int], *, continues: bool = False) -> bytes:
        """Join the bytes of some ids; raises ValueError for an id that is not in the vocabulary.

        continues  whether other ids came before; then the first of these ids is not decoded as the
                   first of a text
        """
        ids = _id_array(ids)
        text, unknown = _join_tokens(ids, self._byte_table)
        if unknown >= 0:
            self.id_to_token(int(ids[unknown]))  # raises InputError
        text = text.tobytes()
        if len(ids) and self.model.decoder_steps and not continues:
            as_first, as_later = self._decoded
            first_id = int(ids[0])
            text = as_first[first_id] + text.removeprefix(as_later[first_id])
        return text

    @checks_itself
    def decode(
        self, ids: int | Iterable[int] | Sequence[Iterable[int]], skip_special_tokens: bool = False
    ) -> str | list[str]:
        """Decode some ids, or a single one, as text; rows of ids as a list, as in transformers 5.

        Invalid UTF-8 becomes U+FFFD. A run of tokens like <0xE4> that is not UTF-8 becomes one
        U+FFFD for each byte, as in Hugging Face.

        skip_special_tokens  leave out the special tokens; in Hugging Face this is the default
        """
        if isinstance(ids, numbers.Integral):
            ids = [ids]
        elif (
            isinstance(ids, list | tuple) and ids and isinstance(ids[0], list | tuple | np.ndarray)
        ):
            return self.decode_batch(ids, skip_special_tokens)
        return DecodeStream(self, skip_special_tokens).push(ids, is_last=True)

    def stream(self, skip_special_tokens: bool = False) -> DecodeStream:
        """Decode ids that come one after another, as a model makes them; see DecodeStream.

        >>> tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
        >>> stream = tokenizer.stream()
        >>> [stream.push([id]) for id in "é!".encode()], stream.finish()
        (['', 'é', '!'], '')
        """
        return DecodeStream(self, skip_special_tokens)

    def decode_batch(
        self, batch: Iterable[Iterable[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """Decode several lists of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in batch]


@public
class DecodeStream:
    """Ids that come in pieces -> text that no later id changes; `Tokenizer.stream` makes it.

    All results together are the text that `decode` gives for all ids. So the bytes of a character
    are held until it is complete, a run of tokens like <0xE4> until it ends, and the spaces of a
    BPEDecoder until another token follows.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool):
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer._skipped_ids if skip_special_tokens else []
        self._decode_utf8 = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held_ids = []  # of a run of bytes
        self._ending = "", ""  # of the last token, as from `decoded_endings`
        self._continues = False  # whether there was an id
        types = [step["type"] for step in tokenizer.model.decoder_steps]
        names = _NAMED_BYTES if "ByteFallback" in types else ()
        self._byte_names = frozenset(map(str.encode, names))

    def finish(self) -> str:
        """Return the rest of the text."""
        return self.push((), is_last=True)

    @checks_itself
    def push(self, ids: Iterable[int], *, is_last: bool = False) -> str:
        """Take the next ids, and return the text that is whole; raises ValueError for wrong ids."""
        ids = _id_array(ids)
        if self._skipped_ids:
            ids = ids[~np.isin(ids, self._skipped_ids)]
        vocab = self._tokenizer.vocab
        n = len(ids)
        while n and not is_last and vocab.get(ids[n - 1]) in self._byte_names:
            n -= 1
        if not n and not is_last:
            self._held_ids.extend(ids.tolist())
            return ""
        n += len(self._held_ids)
        ids = np.append(np.array(self._held_ids, u32), ids)
        continued = self._continues
        data = self._tokenizer.decode_bytes(ids[:n], continues=continued)
        text = self._decode_utf8(data, bool(is_last))
        if self._byte_names and "\ufffd" in text:
            text = "".join(self._decode_runs(ids[:n]))
        self._held_ids = ids[n:].tolist()
        if n:
            endings = self._tokenizer._endings[continued or n > 1]
            self._continues = True
            text = self._ending[0] + text
            self._ending = endings.get(int(ids[n - 1]), ("", ""))
            text = text.removesuffix(self._ending[0])
        if is_last:
            text += self._ending[1]
            self._ending = "", ""
        return text

    def _decode_runs(self, ids):
        """Decode runs of tokens like <0xE4> apart from others; each byte may become U+FFFD."""
        vocab = self._tokenizer.vocab
        runs = itertools.groupby(ids.tolist(), lambda key: vocab[key] in self._byte_names)
        for _, run in runs:
            run_ids = list(run)
            data = self._tokenizer.decode_bytes(run_ids, continues=self._continues)
            self._continues = True
            text = data.decode("utf-8", "replace")
            if text.encode() != data:  # bytes; other tokens of such a model are UTF-8
                text = "\ufffd" * len(run_ids)
            yield text


@functools.lru_cache(maxsize=4)
def _unpickle_once(pickled):
    """Make a tokenizer once in each process, although it is sent with every task."""
    model, _ = pickle.loads(zlib.decompress(pickled))
    return Tokenizer.from_model(model)


def _copied(tokenizer, **changes):
    """Copy a tokenizer with some changes; it shares everything else."""
    other = Tokenizer.__new__(Tokenizer)
    vars(other).update(vars(tokenizer), **changes)
    return other


def _unpickle(pickled, config):
    """Make a tokenizer that has a config of its own, and shares everything else with its copies."""
    tokenizer = _unpickle_once(pickled)
    model = copy.copy(tokenizer.model)  # it is known to be right
    model.config = copy.deepcopy(config)
    return _copied(tokenizer, model=model)


# Tokenizers of other libraries that encode here: their class is a subclass of the library's, in
# which a mixin replaces some methods. The mixin leaves all other calls to the library.


def _swapped(mixin, owner, fields):
    """Make an object that has the methods of `mixin` and then those of `owner`, a class."""
    swapped = object.__new__(type(owner.__name__, (mixin, owner), {}))
    vars(swapped).update(fields)
    return swapped


class _Swapped:
    """The base of mixins: objects are pickled as those of the library, with `_ours`."""

    def __reduce__(self):
        return _swapped, (*type(self).__bases__, {"_ours": self._ours}), self.__getstate__()


class _EncodingBatches(_Swapped):
    """The methods of a tiktoken.Encoding that encode here."""

    def encode_ordinary_batch(self, text, *, num_threads=8):
        """Encode texts without special tokens."""
        return self.encode_batch(text, num_threads=num_threads, disallowed_special=())

    def encode_batch(self, text, **options):
        """Encode texts without special tokens here; others are left to the library."""
        texts = list(text)
        disallowed = options.get("disallowed_special", "all")
        if disallowed in ("all", ()) and {*map(type, texts)} == {str}:
            with contextlib.suppress(InputError):  # the library refuses a text in its own words
                ids, offsets = self._ours.encode_batch_to_numpy(texts)
                if not np.isin(ids, [*self._ours.special_tokens.values()]).any():
                    return split_ids(ids, offsets)
        return super().encode_batch(texts, **options)


class _LateEncodings(UserList):
    """The `encodings` of a BatchEncoding, which the library makes when they are asked for."""

    def __init__(self, library):
        self.library = library

    @functools.cached_property
    def data(self):
        """The encodings, with words and offsets."""
        return self.library().encodings

    def __reduce__(self):
        return list, (self.data,)


def _copy_of_fast(owner):
    """Copy a fast tokenizer of transformers."""
    if "decode" not in vars(owner.backend_tokenizer):
        return copy.deepcopy(owner)
    with tempfile.TemporaryDirectory() as folder:  # a CLIPTokenizer, which replaces this method
        owner.save_pretrained(folder)
        return type(owner).from_pretrained(folder)


def _references(owner):
    """Count the references to the library's tokenizer; a caller who holds one may change it."""
    backend = owner._backend
    return sys.getrefcount(backend)


# options of a call that may be on; all others of the library must be off
_OPTIONS_HERE = {
    "add_special_tokens",
    "max_length",
    "padding",
    "return_tensors",
    "truncation",
    "verbose",
}
_OWN_REFERENCES = _references(SimpleNamespace(_backend=object()))  # 3, or 2 in Python 3.14
_NO_LENGTH = 10**20  # a greater model_max_length stands for none


class _Strategy(NamedTuple):
    """The meaning of the options of a call of transformers for the rows of ids."""

    pads: bool
    width: int | None  # of padded rows; None: that of the longest
    max_length: int | None
    truncates: bool  # to max_length


class _FastTexts(_Swapped):
    """The methods of a fast tokenizer of transformers that encode here; see `Tokenizer.as_hf`."""

    _state = None  # that of the library's tokenizer for which `_ours` was made
    _written = None  # a hash of all its parts, which takes some time
    _has_warned = False  # of a text that is too long for its model

    def __call__(self, text=None, text_pair=None, *arguments, **options):
        """Encode a text or a list of texts here; everything else is left to the library."""
        call = super().__call__
        if hasattr(type(self), "set_src_lang_special_tokens"):
            call("")  # puts the tokens of the language of the input around texts
        library = functools.partial(call, text, text_pair, *arguments, **options)
        is_plain = text_pair is None and not arguments and self._inherits("__call__")
        encoding = self._encode_here(text, options, library) if is_plain else None
        return library() if encoding is None else encoding

    def encode(self, text, text_pair=None, *arguments, **options):
        """Return only the ids of a text."""
        library = functools.partial(super().encode, text, text_pair, *arguments, **options)
        is_plain = text_pair is None and not arguments and self._inherits("encode")
        encoding = self._encode_here(text, options, library) if is_plain else None
        return library() if encoding is None else encoding["input_ids"]

    def add_tokens(self, *arguments, **options):
        """Add tokens, which `_ours` lacks."""
        self._written = None
        return super().add_tokens(*arguments, **options)

    @property
    def backend_tokenizer(self):
        """The library's tokenizer, which the caller may change."""
        self._written = None
        return self._backend

    @property
    def _backend(self):
        return super().backend_tokenizer

    def _inherits(self, name):
        """Whether the class of the library has only inherited a method."""
        _, owner = type(self).__bases__
        base = import_optional("transformers").PreTrainedTokenizerFast
        return getattr(owner, name) is getattr(base, name)

    def _current(self):
        """Make a Tokenizer of the library's tokenizer as it is now, or return an earlier one.

        Returns None if this module cannot read it, if it gives tokens a type other than 0, or if it
        leaves out merges at random.
        """
        if self._written is None or _references(self) > _OWN_REFERENCES:
            self._written = hash(self._backend.to_str())
        backend = self._backend
        processor = backend.post_processor  # the only part that transformers changes itself
        state = self._written, processor and processor.__getstate__()
        if state != self._state:
            self._state = state
            self._ours = None
            types = super().__call__("a", return_token_type_ids=True)["token_type_ids"]
            has_dropout = getattr(backend.model, "dropout", None)
            if not any(types) and not has_dropout:
                # a note on a setting of the library is for `load`
                with warnings.catch_warnings(action="ignore"), contextlib.suppress(InputError):
                    self._ours = Tokenizer.from_model(_model_of(backend))
        return self._ours

    def _encode_here(self, text, options, library):
        """Encode a text or a list of texts; returns None if that is left to the library."""
        strategy = self._strategy(**options) if self._knows_call(text, options) else None
        if strategy and self._current():
            with contextlib.suppress(InputError):  # the library refuses a text in its own words
                return self._encode_rows(text, library, strategy, **options)
        return None

    def _knows_call(self, text, options):
        """Whether `_encode_rows` does what the library does for this text and these options."""
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, list | tuple) or {*map(type, texts)} != {str}:
            return False
        gap = getattr(self, "fill_token", None)  # CodeLlama cuts a text there
        if gap and any(gap in text for text in texts):
            return False
        if any(options[name] for name in options.keys() - _OPTIONS_HERE):
            return False
        chosen = ("return_token_type_ids", "return_attention_mask", "text_target")
        if any(options.get(name) is not None for name in chosen) or self.pad_token_type_id:
            return False
        return not (self.split_special_tokens and "split_special_tokens" not in options)

    def _strategy(self, padding=False, truncation=None, max_length=None, **_):
        """Read the options of the library; returns None if it would refuse them or give a note."""
        padding = getattr(padding, "value", padding)  # of an Enum
        truncation = getattr(truncation, "value", truncation)
        if not isinstance(padding, bool | str) or not isinstance(truncation, bool | str | None):
            return None
        pads = padding in (True, "longest", "max_length")
        to_max_length = padding == "max_length"
        truncates = truncation in (True, "longest_first", "only_first")
        if not pads and padding not in (False, "do_not_pad"):
            return None
        if not truncates and truncation not in (None, False, "do_not_truncate"):
            return None
        if not isinstance(max_length, int | None) or (pads and self.pad_token_id is None):
            return None
        if max_length is not None:
            truncates |= padding is False and truncation is None
            if padding is True and not truncates:  # the library says that it has no effect
                return None
        elif truncates or to_max_length:
            if self.model_max_length > _NO_LENGTH:
                truncates = False
                pads &= not to_max_length
            else:
                max_length = self.model_max_length
        if truncates and self.truncation_side != "right":
            return None
        return _Strategy(pads, max_length if to_max_length else None, max_length, truncates)

    def _encode_rows(
        self,
        text,
        library,
        strategy,
        add_special_tokens=True,
        return_tensors=None,
        verbose=True,
        **others,
    ):
        """Encode a text or texts; returns None if rows to be padded are longer than their width.

        others  options that are off or belong to the strategy
        """
        texts = [text] if isinstance(text, str) else text
        options = {"add_special_tokens": add_special_tokens}
        if strategy.truncates:
            options["max_length"] = strategy.max_length
        if strategy.pads:
            sizes, data = self._encode_padded(texts, strategy.width or 0, options)
            if strategy.width is not None and data["input_ids"].shape[1] > strategy.width:
                return None
            if return_tensors is None:
                data = {name: rows.tolist() for name, rows in data.items()}
        else:
            sizes, data = self._encode_lists(texts, options)
        if verbose and strategy.max_length is None:
            self._warn_if_long(texts, sizes, add_special_tokens)
        if isinstance(text, str) and return_tensors is None:
            data = {name: rows[0] for name, rows in data.items()}
        return import_optional("transformers").BatchEncoding(
            data, _LateEncodings(library), return_tensors, n_sequences=1
        )

    def _warn_if_long(self, texts, sizes, add_special_tokens):
        """Let the library warn once of a text that is too long for its model."""
        longest = max(sizes)
        if longest > self.model_max_length and not self._has_warned:
            self._has_warned = True
            super().__call__(texts[sizes.index(longest)], add_special_tokens=add_special_tokens)

    def _select_columns(self, input_ids, token_type_ids, attention_mask):
        """Select the columns that a call returns, by their names."""
        columns = {"token_type_ids": token_type_ids, "attention_mask": attention_mask}
        others = {name: rows for name, rows in columns.items() if name in self.model_input_names}
        return {"input_ids": input_ids} | others

    def _encode_lists(self, texts, options):
        """Encode each text as a list; returns the numbers of their ids, and the columns."""
        if len(texts) == 1 and "max_length" not in options:
            rows = [self._ours.encode(texts[0], **options)]  # much faster than a batch of one
        else:
            rows = self._ours.encode_batch(texts, **options)
        sizes = [*map(len, rows)]
        columns = rows, [[0] * n for n in sizes], [[1] * n for n in sizes]
        return sizes, self._select_columns(*columns)

    def _encode_padded(self, texts, width, options):
        """Encode each text as a row of int64 matrices that have at least `width` columns.

        Returns the numbers of their ids, and the matrices.
        """
        ids, offsets = self._ours.encode_batch_to_numpy(texts, **options)
        is_left = self.padding_side == "left"
        columns = ((ids, self.pad_token_id), (0 * ids, 0), (0 * ids + 1, 0))
        matrices = [
            pad_ids(values.astype(i64), offsets, width, pad_id, is_left)
            for values, pad_id in columns
        ]
        return np.diff(offsets).tolist(), self._select_columns(*matrices)


def _id_array(ids):
    """Make an array of ids, uint32; raises ValueError if one cannot be an id."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu":
        numbers = np.require(ids, u32, ["C", "W"])
        if numbers is ids or np.array_equal(numbers, ids):
            return numbers
    try:
        ids = [*ids]
        return np.frombuffer(array("I", ids), u32)
    except (OverflowError, TypeError) as error:
        raise InputError(
            f"{reprlib.repr(ids)} is not a list of ids ({error}): {_ID_RANGE}"
        ) from None


@public
def open_model(model: AnyModel) -> Tokenizer:
    """Return a tokenizer, that of a training, of a Model, or of a path."""
    model = getattr(model, "tokenizer", model)
    if isinstance(model, Model):
        return Tokenizer.from_model(model)
    if isinstance(model, Tokenizer):
        return model
    with stage("load"):
        return Tokenizer.load(model)


@public
class EncodedWords(NamedTuple):
    """The unique pretokens of a corpus, encoded: word w became ids[offsets[w] : offsets[w + 1]].

    >>> encoded = EncodedWords([b"ab"], np.array([3]), np.array([1, 0]), np.array([0, 2]))
    >>> encoded.n_tokens, encoded.frequencies().tolist()
    (6, [3, 3])
    """

    words: list[bytes]
    counts: np.ndarray  # int64[W]
    ids: np.ndarray  # uint32[N]
    offsets: np.ndarray  # int64[W + 1]
    n_bytes: int = 0  # of text, without special tokens
    n_words: int | None = None  # between white space, with repetitions
    n_kept: int = 0  # bytes that are in tokens; see `Tokenizer.text_sizes`

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the corpus."""
        return int(np.dot(np.diff(self.offsets), self.counts))

    def frequencies(self, n_ids: int = 0) -> np.ndarray:
        """Count the occurrences of each id in the corpus: int64[n_ids], or as long as needed."""
        # Sums in float64 are exact below 2**53.
        weights = np.repeat(self.counts, np.diff(self.offsets))
        return np.bincount(self.ids, weights, n_ids).astype(i64)


def encode_words(tokenizer, words, n_bytes):
    """Encode each of the words of a corpus of `n_bytes` once; returns EncodedWords."""
    words = _in_order(words)  # words in the order of their hash would fill the cache slowly
    texts = words.texts
    ids, offsets = tokenizer.encode_texts(texts, "none")
    encoded = EncodedWords(texts, words.counts, ids, offsets, n_bytes)
    sizes = tokenizer.text_sizes
    n_kept = int(encoded.frequencies(len(sizes)) @ sizes)
    return encoded._replace(n_kept=min(n_bytes, n_kept))


# ─── Token files ──────────────────────────────────────────────────────────────────────────────────
#
# Files of text -> a file of token ids. Workers encode blocks, and the parent writes their ids in
# the order of the text. `encode_files(tokenizer, "a.txt", "a.npy")`, where a.txt has the text "Hi!"
# and each byte is a token, writes:
#
#     a.npy         a header, then the ids 72 105 33 as uint16; as uint32 if an id is above 65,535
#     a.npy.json    {"tokens": 3, "documents": 1, "bytes": 3, "dtype": "uint16", "model": its
#                   digest, "lost": 0, …}
#
# A .bin file has no header. A .txt file has decimal numbers, with a document on each line; standard
# output, pipes and devices get the same. With `append`, each document ends with a token. A
# document index holds the offsets of the documents, here 0 and 3. The files have temporary names,
# and are renamed together when all are complete.


@public
class Encoded(NamedTuple):
    """The description of a file of token ids, written next to it as JSON; a string of one line."""

    tokens: int
    documents: int
    bytes: int  # of text
    dtype: str
    model: str  # Tokenizer.digest
    append: str | None  # the token at the end of each document; None: documents are files and lines
    lost: int  # bytes of text that are in no token; see `Tokenizer.text_sizes`

    def __str__(self) -> str:
        tokens = number_of(self.tokens, "token")
        documents = number_of(self.documents, "document" if self.append else "text")
        size = number_of(self.bytes, "byte")
        return f"{tokens} ({self.dtype}) of {size} in {documents}"


class _EncodedBlocks(NamedTuple):
    """The ids of the blocks of a task, and their numbers of bytes."""

    ids: np.ndarray  # uint16 or uint32[N]
    ends: np.ndarray  # int64[D]   where texts, and later documents, end in `ids`
    n_bytes: int  # of text
    n_kept: int  # of these bytes, in tokens
    n_read: int  # bytes on the disk
    begins: bool  # whether the first block begins with a text, not within one


def _encode_blocks(tokenizer, options, seed, added_ids, dtype, source, blocks):
    """Encode blocks as ids of this dtype, since uint16 halves the data that workers send.

    Only the first block may begin within a text, and only the last one may end within a text: such
    a block is a task by itself, or ends one. So one call encodes all blocks, which may be small.

    options    of `encode_texts`
    seed       the first one; each task has a seed of its own
    added_ids  the ids before and after each text
    """
    model = tokenizer.model
    losing = model.normalizer, model.unk_token, model.drops_unknown
    # For models that lose nothing, the bytes in tokens are not counted: that would take 6 % more.
    may_lose = any(losing) or not tokenizer.pattern.matches_everything
    before, after = added_ids
    first = blocks[0]
    begins = first.opening == BOUNDARY
    goes_on = blocks[-1].next_opening != BOUNDARY
    texts = [text for block in blocks for text in source.texts(block)]
    own = {"opening": first.opening, "seed": seed + (first.number << 32)}
    ids, offsets = tokenizer.encode_texts(texts, **options | own)
    n_bytes = n_kept = sum(map(len, texts))
    if may_lose:
        n_kept = int(tokenizer.text_sizes[ids].sum())
    ids, offsets = surround(ids, offsets, before, after)
    start = 0 if begins else len(before)
    stop = len(ids) - len(after) if goes_on else len(ids)
    ids = ids[start:stop].astype(dtype, copy=False)
    ends = offsets[1 : len(offsets) - goes_on] - start
    n_read = sum(block.n_bytes for block in blocks)
    return _EncodedBlocks(ids, ends, n_bytes, n_kept, n_read, begins)


def _encode_source(tokenizer, source, engine, dtype, options, seed=0, added_ids=((), ())):
    """Encode the blocks of a Source by workers; see `_encode_blocks`. Yields the results in order.

    If scores are summed through a whole text, a block needs the sum of the blocks before it. So one
    encoder in this process encodes all of them.
    """
    if tokenizer.model.sums_through_text and not all(map(source.is_json, source.files)):
        engine = Engine(1, engine.progress)
        tokenizer = _copied(tokenizer, _idle=[])
    with contextlib.suppress(InputError):  # a small vocabulary may not have these letters
        # compiles for all workers
        tokenizer.encode_texts([b"one two", b"\xff"], alpha=options.get("alpha"))
    work = functools.partial(_encode_blocks, tokenizer, options, seed, added_ids, dtype)
    return source.map(engine, work)


def _open_output(path):
    """Open a file by `atomic_write`, or standard output."""
    if path == STANDARD_STREAM:
        return contextlib.nullcontext(sys.stdout.buffer)
    return atomic_write(path)


@contextlib.contextmanager
def _array_writer(path, dtype):
    """Write arrays to a file or to standard output; yields the function that writes the next."""
    is_pipe = _is_stream(path)
    require(
        path.suffix in (".npy", ".bin", ".txt") or is_pipe,
        f"{path}: name a .npy file, a .bin file for numbers alone, or a .txt file",
    )
    n = 0

    def write_header():
        # It has the same size for any n, since NumPy pads it for growth.
        if path.suffix == ".npy":
            file.seek(0)
            fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (n,)}
            np.lib.format.write_array_header_1_0(file, fields)

    def write(numbers, ends=()):
        """Write the next array; documents end at `ends` in it."""
        nonlocal n
        n += len(numbers)
        if path.suffix in (".npy", ".bin"):
            file.write(np.ascontiguousarray(numbers, dtype).data)
        else:
            documents = np.split(numbers, ends)
            lines = [" ".join(map(str, document.tolist())) for document in documents]
            if lines[-1]:
                lines[-1] += " "  # the last document may go on
            file.write("\n".join(lines).encode())
        file.flush()  # if the disk is full, fail now, before other files have taken their names

    with _open_output(path) as file:
        write_header()
        yield write
        write_header()


def _check_outputs(outputs, inputs):
    """Raise InputError if a file would be both read and written, or written twice."""
    # unlike `Path.resolve`, this takes a loop of links, which fails where the file is opened
    taken = {os.path.realpath(path) for path in inputs if not _is_stream(path)}  # not of a pipe
    for path in outputs:
        name = os.path.realpath(path)
        require(
            name not in taken, f"{path}: is an input, or would be written twice; choose another"
        )
        taken.add(name)


def _end_documents(blocks, end_id):
    """Insert the end of each text that lacks it; a document ends after each such id."""
    last_id = None  # of the text so far
    for block in blocks:
        ids = block.ids
        ends = block.ends
        if block.begins:
            last_id = None
        lacks_end = np.append(ids, 0)[ends - 1] != end_id
        lacks_end |= np.diff(ends, prepend=0) == 0  # the id before an empty text belongs to another
        lacks_end[:1] &= (ends[:1] > 0) | (last_id != end_id)  # or it began in an earlier block
        ids = np.insert(ids, ends[lacks_end], end_id)
        if len(ids):
            last_id = ids[-1]
        yield block._replace(ids=ids, ends=np.flatnonzero(ids == end_id) + 1)


# The successors of former parameters of commands
_OF_CONVERT = dict.fromkeys(
    ("encoding", "pattern"), "the command convert takes it, once, and so does Tokenizer.load"
)


@public(
    former={
        "tokenizer": "model",
        "executor": "workers",
        "dtype": "the ids are uint16 if all fit, else uint32",
        "prepend": "`add_special_tokens` begins each text as the template of the model says",
        "val_fraction": "`document_index` tells where documents begin, to divide them",
        "no_special": '`allowed_special` is "none"',
        **_OF_CONVERT,
    }
)
def encode_files(
    model: AnyModel,
    inputs: Files,
    out: PathName = "-",
    *,
    append: str | None = None,
    add_special_tokens: bool = False,
    document_index: PathName | None = None,
    alpha: float | None = None,
    seed: int = 0,
    allowed_special: Allowed = "all",
    workers: Positive | Executor | None = None,
    text_field: str | None = None,
    skip_bad_lines: bool = False,
    progress: bool = False,
) -> Encoded:
    """Turn text into token ids, in one file; returns its description.

    model            a file or a folder of any format, or a Tokenizer
    inputs           files, folders (their files in the order of their paths), globs, URLs that
                     fsspec opens (s3://, gs://, hf://datasets/, https://), or - for standard input:
                     text, lines of JSON (.jsonl), or Parquet; text and JSON may be packed by gzip,
                     xz, bzip2 or zstandard
    out              a .npy file; a .bin file for numbers without a header; or a .txt file for
                     decimal numbers with a document on each line, or - for these on standard
                     output. A file gets a description next to it, with .json added to its name
    append           special token that ends every document. Documents are files, lines of .jsonl
                     files and rows of Parquet files, and may be empty; this token in a text also
                     ends one, and is not written twice
    add_special_tokens  put the tokens of the model's post_processor, such as [CLS] and [SEP] or
                     <s>, before and after each file, line or row
    document_index   a .npy or .bin file of int64: document d is tokens[index[d] : index[d + 1]]. A
                     line that has the token of `append` inside is several documents
    alpha            cut words at random, to train a model on several ways: with a BPE, the
                     probability with which a merge is left out each time (BPE-dropout); with a
                     unigram, the power of the probabilities
    seed             of alpha; each seed gives one way, whatever the number of workers
    allowed_special  the special tokens that are found in the texts: all, none, one or some of them

    Also text_field and skip_bad_lines, as in a Source; workers and progress, as in an Engine.
    Raises InputError for invalid options and inputs.

    $ encode model corpus.txt --out tokens.npy --append "<|endoftext|>"
    $ encode model - < corpus.txt

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("Hi!")
    ...     tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
    ...     print(encode_files(tokenizer, folder, Path(folder, "a.npy")))
    ...     np.load(Path(folder, "a.npy"))
    3 tokens (uint16) of 3 bytes in 1 text
    array([ 72, 105,  33], dtype=uint16)
    """
    tokenizer = open_model(model)
    model = tokenizer.model
    if tokenizer.pattern.warning:
        note(tokenizer.pattern.warning)
    path = as_path(out)
    id_type = np.min_scalar_type(max(tokenizer.vocab_size - 1, 256))  # uint16 or uint32
    engine = Engine(workers, progress)
    source = tokenizer.source(inputs, allowed_special, text_field, skip_bad_lines)
    source.check()
    outputs = [path, _sidecar(path)]
    index_writer = contextlib.nullcontext(do_nothing)
    if document_index is not None:
        outputs.append(as_path(document_index))
        index_writer = _array_writer(outputs[-1], i64)
    _check_outputs(outputs, source.files)
    if append is not None:
        require_known("special token", append, model.special_tokens)
    added_ids = model.added_ids if add_special_tokens else ([], [])
    options = {"allowed_special": allowed_special, "alpha": alpha}
    encoded = _encode_source(tokenizer, source, engine, id_type, options, seed, added_ids)
    n_tokens = n_documents = n_bytes = n_kept = 0
    with written_together(), contextlib.ExitStack() as stack, index_writer as write_index:
        write = stack.enter_context(_array_writer(path, id_type))
        write_index(np.zeros(1, i64))
        bar = stack.enter_context(engine.progress_bar("encode", source.total_bytes, "B"))
        blocks = stack.enter_context(contextlib.closing(encoded))
        if append is not None:
            blocks = _end_documents(blocks, model.special_tokens[append])
        for block in blocks:
            write_index(block.ends + n_tokens)
            write(block.ids, block.ends)
            n_tokens += len(block.ids)
            n_documents += len(block.ends)
            n_bytes += block.n_bytes
            n_kept += block.n_kept
            bar.update(block.n_read)
        n_lost = note_lost(out, n_bytes, min(n_bytes, n_kept))
        settings = id_type.name, tokenizer.digest, append, n_lost
        encoded = Encoded(n_tokens, n_documents, n_bytes, *settings)
        if not n_tokens:
            note(f"{path}: no ids, since there is no text to encode")
        if not _is_stream(path):
            atomic_write_all(path.parent, {_sidecar(path).name: _to_json(encoded._asdict())})
    return encoded


@public
def read_ids(path: PathName, dtype: str | None = None) -> np.ndarray:
    """Open the ids of a .npy or .bin file as an array that stays on the disk.

    Raises InputError for other files.

    dtype  uint16 or uint32, for a .bin file without a .json file

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.bin")
    ...     _ = path.write_bytes(bytes([1, 0, 2, 0]))
    ...     read_ids(path, "uint16").tolist()
    [1, 2]
    """
    path = as_path(path)
    require(path.suffix in (".npy", ".bin"), f"{path}: ids are read from .npy and .bin files")
    description = _read_beside(_sidecar(path))
    with naming_file(path, "not a whole array of ids"):
        if path.suffix == ".npy":
            ids = np.lib.format.open_memmap(path, mode="r")
        else:
            dtype = description.get("dtype", dtype)
            require(dtype in ("uint16", "uint32"), "are its numbers uint16 or uint32? Set `dtype`")
            ids = np.zeros(0, dtype)
            if path.stat().st_size:  # an empty file cannot be mapped
                ids = np.memmap(path, dtype, "r")
        require(
            ids.ndim == 1 and ids.dtype.kind in "iu",
            f"numbers of type {ids.dtype} and shape {ids.shape} are not token ids",
        )
        n = description.get("tokens", len(ids))
        require(
            len(ids) == n,
            f"has {len(ids):,} ids, and its .json file says {n}: encode the text again",
        )
    return ids


_LIST_AS_SPACES = bytes.maketrans(b"[],", b"   ")


def _read_id_batches(path, dtype):
    """Read ids in batches from a .npy or .bin file, or as decimal numbers from any other file."""
    if path.suffix in (".npy", ".bin"):
        ids = read_ids(path, dtype)
        for start in range(0, len(ids), BLOCK_BYTES):
            yield ids[start : start + BLOCK_BYTES]
        return
    with _opened(path) as (file, _):
        for lines in _batched_by_size(file, len, BLOCK_BYTES):
            try:
                fields = b"".join(lines).translate(_LIST_AS_SPACES).split()
                yield [*map(int, fields)]
            except ValueError as error:
                raise InputError(f"token ids must be whole numbers: {error}") from None


@public(former={"tokenizer": "model", **_OF_CONVERT})
def decode_file(
    model: AnyModel, tokens: PathName, out: PathName = "-", *, dtype: str | None = None
) -> None:
    """Turn token ids into text, in bounded memory.

    A line of decimal numbers is read as a whole.

    model   a file or a folder of any format, or a Tokenizer
    tokens  a .npy or .bin file, any other file with ids as decimal numbers (1 2, or [1, 2]), or -
            for these on standard input
    out     the file for the text, which is written under a temporary name and renamed when it is
            complete; or - for standard output
    dtype   uint16 or uint32, for a .bin file without a .json file

    $ decode model tokens.npy --out corpus.again.txt
    $ decode model - < ids.txt

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "ids.txt").write_text("72 105")
    ...     tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
    ...     decode_file(tokenizer, Path(folder, "ids.txt"), Path(folder, "a.txt"))
    ...     Path(folder, "a.txt").read_text()
    'Hi'
    """
    tokenizer = open_model(model)
    digest = tokenizer.digest
    path = as_path(tokens)
    output = as_path(out)
    _check_outputs([output], [path])
    description = _read_beside(_sidecar(path))
    if description.get("model", digest) != digest:
        note(f"{tokens}: another model wrote these ids, or this one has changed since")
    with stage("decode"), _open_output(output) as file:
        continues = False
        for ids in _read_id_batches(path, dtype):
            file.write(tokenizer.decode_bytes(ids, continues=continues))
            continues |= len(ids) > 0


# ─── Training ─────────────────────────────────────────────────────────────────────────────────────
#
# Files, or words files -> a Training: a tokenizer with all measurements. A training begins with a
# Start, which is a Model without learnt tokens or one whose tokens stay:
#
#     untrained     options of `train`  -> Start: how text is cut, and what surrounds the tokens
#     start_like    another model       -> Start: the same as in that model, without its tokens
#     start_from    another model       -> Start: that model, whose tokens stay
#     count         text                -> words
#     Start.learn   words               -> tokens, by the function of the family
#     Start.build   tokens              -> the Model with these tokens
#
# For example, `--model unigram --vocab-size 8000` has the alphabet "characters", the mark "▁", the
# pattern "spaces" followed by ▁ for each space, and the unknown token "<unk>", which is a special
# token. `learn_unigram` then learns 7,999 tokens.


LEARNED_FILE = "training.npz"
RECORD_FILE = "training.json"


@public(former={"executor": "workers"})
def train(
    inputs: Files = STANDARD_LIBRARY,
    vocab_size: int | str = 8192,
    special_tokens: Sequence[str] = (),
    *,
    texts: Iterable[Text | Sequence[Text]] | None = None,
    counts: PathName | Counts | None = None,
    like: AnyModel | None = None,
    from_: AnyModel | None = None,
    balance: Share | None = None,
    weights: Sequence[float] = (),
    max_words: Natural = MAX_WORDS,
    out: PathName | None = None,
    template: str | None = None,
    text_field: str | None = None,
    skip_bad_lines: bool = False,
    workers: Positive | Executor | None = None,
    progress: bool = False,
    **options: object,
) -> Training:
    """Learn a vocabulary from text; returns the tokenizer with all measurements.

    inputs             files, folders (their files in the order of their paths), globs, URLs that
                       fsspec opens (s3://, gs://, hf://datasets/, https://), or - for standard
                       input: text, lines of JSON (.jsonl), or Parquet; text and JSON may be packed
                       by gzip, xz, bzip2 or zstandard.
                       Default: the source of Python's standard library. Or words files (.npz) of
                       `count`, which contain the pattern, the normalizer and the special tokens
    vocab_size         number of tokens in all; or, with from_, the text "+2000" for 2,000 more
                       than the model has
    special_tokens     strings that end documents and are not learnt from
    texts              texts to learn from instead of inputs, or lists of them; they are read once,
                       in bounded memory
    counts             words and their counts to learn from instead of inputs: a file with a word,
                       a tab and its count in each line; in Python also a mapping, or pairs. Words
                       are pretokens as the pattern cuts them out of normalized text: one that
                       follows a space begins with it
    like               a model whose kind, pattern, normalizer, decoder, special tokens, template
                       and settings the new one gets; only its vocabulary is learnt anew
    from_              a model whose training is continued: its tokens keep their ids and scores,
                       and new ones get the last ids. A text without the new tokens keeps its ids
    balance            each of the inputs is a language, and its share of the bytes becomes
                       proportional to share ** balance: 1 changes nothing, and 0 makes all shares
                       equal. The counts of words are multiplied, see `Words.weighted` (Conneau and
                       Lample 2019, "Cross-lingual Language Model Pretraining")
    weights            the factors of the counts of the inputs, by hand, in their order
    max_words          drop the rarest words when there are more unique words than this; 0: never
                       drop any
    out                folder to write, as `Training.save` does

    Also template, as in `convert`; text_field and skip_bad_lines, as in a Source; workers and
    progress, as in an Engine. The other options are those of `transformers_config`, such as
    eos_token, and these; some of them go with `from_` and `like`:

    model              bpe, the default; wordpiece; unigram; or longest, which learns as bpe does
                       and takes the longest tokens
    alphabet           tokens are made of bytes or characters; the default is bytes with bpe and
                       longest
    pattern            gpt2, cl100k, o200k, llama3, qwen2, nanochat, bert, whitespace,
                       whitespace-split, spaces, none, or a regular expression; the default is
                       bert with wordpiece, spaces with unigram, else gpt2
    mark               with characters: ▁ replaces each space and is decoded to one; any other
                       character marks the beginning of a word, and white space is dropped. The
                       default is ▁ with bpe and unigram
    normalizer         changes the text first: nfc, nfd, nfkc, nfkd, lowercase, strip-accents, nmt,
                       bert or bert-cased
    coverage           with characters: only the most frequent ones, which make up this share of the
                       text, become tokens, and all of ASCII and white space; the default is
                       0.9995, as in SentencePiece
    required_chars     with characters: these become tokens, too, even if they do not occur
    byte_fallback      with characters: unknown characters become tokens of their bytes
    unk_token          with characters and no byte fallback: the token of unknown characters; the
                       default is <unk> or, with wordpiece, [UNK]
    special_tokens_at  the ids of special tokens: first, the default, after-bytes, or last (as in
                       GPT-2)
    tie_break          the order of equally frequent pairs: bytes, the default, the greater bytes
                       first; least-bytes, the smaller bytes first; ids, the smaller ids first; or
                       symbols, the older symbols first, and of bytes those with smaller numbers
                       (the rule of Hugging Face)
    score              the pair that merges: the one with the greatest count, the default (as in
                       Hugging Face), or with the greatest likelihood,
                       count(ab) / (count(a) * count(b)), which prefers rare pairs; in Python also a
                       function, see `Learner`
    min_frequency      do not merge rarer pairs; 0 and 1 allow every pair
    longest_token      the most bytes of a token or, with characters, the most characters, without
                       the prefix of wordpiece; the default is 16 with unigram, else 65,536

    Raises InputError for invalid options, before any work, and OSError for unreadable files.

    $ train corpus.txt --vocab-size 32k --special-token "<|endoftext|>" --out model
    $ train "shards/*.jsonl.gz" --model unigram --vocab-size 16k --out unigram
    $ train english.txt german.txt --balance 0.3 --out balanced
    $ train corpus.txt --like openai-community/gpt2 --vocab-size 32k --out mine

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("low low lower<|end|>newest")
    ...     training = train(folder, 260, ["<|end|>"])
    >>> training.learned.counts.tolist(), training.counted.n_documents
    ([3, 3, 2], 2)
    """
    engine = Engine(workers, progress)
    _check_names(options)
    weights = [*weights]
    _check_weights(inputs, balance, weights)
    files, words_files, settings = _find_texts(inputs, texts, counts)
    start = _begin(special_tokens, like, from_, settings, template, options)
    letters = {"coverage": COVERAGE, "required_chars": ""}
    if start.model.alphabet == "characters":
        letters |= _pop_options_of(options, Words.as_characters)
    _check_learner_options(start, options, from_ is not None or like is not None)
    vocab_size = start._full_size(vocab_size)
    source = start.source(None if words_files else files, text_field, skip_bad_lines)
    source.check()
    _check_settings(files, words_files, settings, source)
    if counts is not None:
        _note_unlike_text(words_files[0].words, source.pattern)
    if out is not None:
        check_writable(as_path(out))
    workers = engine.n_workers
    with stage("compile"):
        start.compile(source, letters, options, workers)
    with stage("scan") as spent:
        inputs = files if words_files else inputs
        counted, shares = _count_inputs(
            source, inputs, words_files, balance, weights, engine, max_words
        )
        spent.n_bytes = counted.n_bytes if source.files else 0
    require(len(counted.words.counts), f"no text to learn from in {_name_some(files)}")
    if out and Path(out, "tokenizer.json").exists():
        note(f"{out}: the model in this folder will be replaced when the new one is complete")
    with stage("learn"):
        more = {"workers": workers, "progress": progress}
        others = {"others": counted.other_characters}
        learned = start.learn(counted.words, vocab_size, letters | others, options, **more)
    with stage("vocabulary"):
        tokenizer = Tokenizer.from_model(start.build(learned), is_checked=True)
    if len(tokenizer) < vocab_size:
        note(f"the text gives {len(tokenizer):,} tokens, fewer than the {vocab_size:,} asked for")
    options |= {"vocab_size": vocab_size, "coverage": letters["coverage"], "max_words": max_words}
    options |= letters | {"balance": balance, "weights": [*weights]}
    sizes = _sizes(tokenizer, counted, learned, start.metaspace)
    training = Training(tokenizer, counted, learned, source, start, options, shares, *sizes)
    if out is not None:
        with stage("save"):
            training.save(out)
    return training


def _pop_options_of(options, function):
    """Remove the options that are parameters of a function from a dict, and return them."""
    names = inspect.signature(function).parameters.keys() & options.keys()
    return {name: options.pop(name) for name in names}


def _functions_of_options():
    """List the functions that take options of a training, apart from `train` itself."""
    learners = [family.learn for family in FAMILIES.values()]
    return [untrained, Words.as_characters, *learners, transformers_config]


def _options_of(function):
    """List the parameters of a function that are given by name."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _check_names(options):
    """Raise InputError for an option that no function of a training has."""
    names = {*inspect.signature(train).parameters}
    names.update(itertools.chain.from_iterable(map(_options_of, _functions_of_options())))
    require_parameters("train", options, names)


def _check_learner_options(start, options, has_model):
    """Check the options that are left, which are those of the learner.

    Raises InputError for an option that goes with another alphabet, start or family.
    """
    learner = FAMILIES[start.family].learn
    for name in options.keys() - _options_of(learner):
        reason = f"is not for the family {start.family}"
        if name in _options_of(Words.as_characters):
            reason = "goes with characters, and the tokens of this model are made of bytes"
        elif has_model:
            reason = "does not go with `like` or `from_`: their model has its own"
        raise InputError(f"`{name}` {reason}")
    check_options(learner, options)


def _check_weights(inputs, balance, weights):
    """Raise InputError for weights that do not go with the inputs."""
    if balance is None and not len(weights):
        return
    require(
        not isinstance(inputs, PathName) and isinstance(inputs, Collection),
        "`balance` and `weights` need a list of `inputs`",
    )
    n = len(inputs) if balance is None else 0
    require(len(weights) == n, "each of `inputs` needs its `weights`, or all together a `balance`")
    message = "`weights` are numbers, 0 or more, and not all of them are 0"
    require(not n or (min(weights) >= 0 and max(weights) > 0), message)


def _begin(special_tokens, like, from_, settings, template, options):
    """Make the Start of a training; the options that it takes are removed."""
    special_tokens = [*special_tokens]
    require(like is None or from_ is None, "`like` does not go with `from_`")
    roles = _pop_options_of(options, transformers_config)
    if from_ is not None:
        start = start_from(from_, special_tokens, **_pop_options_of(options, start_from))
    elif like is not None:
        start = start_like(like, special_tokens)
    else:
        given = _open_settings(settings) | _pop_options_of(options, untrained)
        if special_tokens:
            given["special_tokens"] = special_tokens
        start = untrained(**given, unk_token=roles.get("unk_token"))
    model = start.model
    if start.family == "wordpiece" and like is None and from_ is None:  # as transformers has them
        names = {role: text for role, text in BERT_ROLES.items() if text in model.special_tokens}
        roles = names | roles
    model.config |= transformers_config(model.special_tokens, **roles)
    if template is not None:
        model.post_processor = template_processing(template, model.special_tokens)
    return start


@public
class Family(NamedTuple):
    """The function that learns the models of a family, and their defaults.

    Keyword parameters of `learn` are options of `train` as well.

    >>> FAMILIES["longest"].learn(Words.from_counts({b"aaab": 3}), 257).merges
    [(b'a', b'a')]
    """

    kind: str  # of the model, a name in KINDS
    alphabet: str
    pattern: str
    learn: Callable  # (words, n_symbols, **options) -> Learned
    mark: str = ""  # with the alphabet "characters"
    unk_token: str = "<unk>"  # with the alphabet "characters"
    subword_prefix: str = ""
    max_word_chars: int = 100  # see Model


FAMILIES = {
    "bpe": Family("bpe", "bytes", "gpt2", learn, mark=MARK),
    "wordpiece": Family(
        "wordpiece", "characters", "bert", learn_wordpiece, unk_token="[UNK]", subword_prefix="##"
    ),
    "unigram": Family("unigram", "characters", "spaces", learn_unigram, mark=MARK),
    "longest": Family("wordpiece", "bytes", "gpt2", learn, max_word_chars=ANY_SIZE),
}
COVERAGE = 0.9995  # the share of a text in characters that become tokens, as in SentencePiece
BYTE_TOKENS = tuple(token.decode() for token in _FALLBACK_TOKENS)


def learn_a_word(family):
    """Compile the kernels of learning, or load them."""
    FAMILIES[family].learn(Words.from_counts({b"aa": 1}), 257)


@public
class Start(NamedTuple):
    """A model before a training learns its tokens.

    >>> start = untrained(["<s>"])
    >>> learned = start.learn(Words.from_counts({b"low": 2}), 259, {}, {})
    >>> start.build(learned).merges
    [(b'o', b'w'), (b'l', b'ow')]
    """

    model: Model  # its tokens are special tokens and byte tokens; or all tokens, which stay
    family: str
    # where special tokens get their ids, see `build_vocabulary`; None if all tokens stay
    places: Mapping[str, Sequence[str]] | None
    pattern: PatternSource  # cuts text into words
    metaspace: Metaspace | None = None  # the step of the model that marks these words

    @property
    def keeps_tokens(self) -> bool:
        """Whether the model has learnt tokens, which stay."""
        return self.places is None

    def source(self, files, text_field, skip_bad_lines):
        """Make the Source of the text."""
        model = self.model
        # The names of byte tokens end documents, since they must not be learnt.
        tokens = [*model.special_tokens]
        if model.byte_fallback and not self.keeps_tokens:
            tokens += BYTE_TOKENS
        return Source(
            files,
            self.pattern,
            tokens,
            text_field,
            added_tokens=model.added_tokens,
            normalizer=model.normalizer,
            skip_bad_lines=skip_bad_lines,
        )

    def _full_size(self, vocab_size):
        """Return the number of tokens in all."""
        if isinstance(vocab_size, str):
            n_more = re.fullmatch(r"\+(\d+)", vocab_size)
            require(
                n_more and self.keeps_tokens,
                f"`vocab_size` is {vocab_size!r}: a number of tokens, or with `from_` as many more "
                'as in "+2000"',
            )
            vocab_size = len(self.model.vocab) + int(n_more[1])
        self.check(vocab_size)
        return vocab_size

    def check(self, vocab_size):
        """Raise InputError for a size that is too small or too large."""
        n_least = len(self.model.vocab) + 1
        if self.model.alphabet == "bytes" and not self.keeps_tokens:
            n_least += 255
        require(
            n_least <= vocab_size <= MAX_ID,
            f"`vocab_size` is {vocab_size}: with this alphabet, these special tokens or this model "
            f"it must be a whole number from {n_least} to {MAX_ID:,}",
        )

    def compile(self, source, letters, options, workers):
        """Compile the kernels of counting and, by a small training, of learning."""
        if source.files:
            _warn_of_source(source)
        with compiled_beside(f"learn_a_word({self.family!r})", workers):
            compile_counting(source)
        word = Words.from_counts({b"aa": 1})  # bad options raise an error
        if self.model.alphabet == "characters":
            word.as_characters(self.metaspace, **letters)
        self.learn_symbols(word, 257, options, workers=workers)

    def learn_symbols(self, words, n_symbols, options, **more):
        """Call the learner of the family with its options, and those of `more` that it takes."""
        learner = FAMILIES[self.family].learn
        return learner(words, n_symbols, **options, **_pop_options_of(more, learner))

    def learn(self, words, vocab_size, letters, options, **more):
        """Learn from words over bytes.

        letters  options of `Words.as_characters`
        options  of `learn_symbols`, and `more`
        """
        model = self.model
        n_symbols = vocab_size - len(model.vocab)
        old = {}
        if self.keeps_tokens:
            words, n_old, old = _words_to_go_on(model, words, **letters)
            n_symbols += n_old
            if options.get("tie_break") == "ids":  # the symbols have the order of the model's ids
                old["tie_break"] = "symbols"
        elif model.alphabet == "characters":
            words = words.as_characters(self.metaspace, **letters)
            # Words that were dropped may have begun with these characters, or gone on with them.
            both = {*letters.get("required_chars", ""), *letters.get("others", ())}
            unseen = np.bincount(words.symbols, minlength=len(words.alphabet)) == 0
            both.update(words.alphabet[k].decode() for k in np.flatnonzero(unseen))
            more["required_chars"] = sorted(both)
        return self.learn_symbols(words, n_symbols, options | old, **more)

    def build(self, learned):
        """Make the model with the learnt tokens."""
        model = self.model
        if self.keeps_tokens:
            return extend_model(model, learned)
        byte_tokens = BYTE_TOKENS if model.byte_fallback else ()
        vocab = build_vocabulary(learned, self.places, byte_tokens)
        scores = None
        if learned.scores is not None:
            # A score of -inf keeps SentencePiece from finding the names of bytes in a text.
            score_of = dict.fromkeys(_FALLBACK_TOKENS, -np.inf if model.sums_in_single else 0.0)
            score_of |= zip(learned.tokens, learned.scores.tolist(), strict=True)
            scores = [score_of.get(token, 0.0) for token in vocab.values()]
            scores = np.array(scores, model.scores.dtype)
        ids = {token: token_id for token_id, token in vocab.items()}
        return dataclasses.replace(
            model,
            vocab=vocab,
            merges=learned.merges if model.kind == "bpe" else None,
            special_tokens=[*model.special_tokens],
            scores=scores,
            max_word_chars=max(model.max_word_chars, learned.longest_word),
            post_processor=_with_ids(model.post_processor, ids),
        )


@public
def untrained(
    special_tokens: Sequence[str] = (),
    *,
    model: str = "bpe",
    alphabet: str | None = None,
    pattern: PatternSource | None = None,
    mark: str | None = None,
    normalizer: NormalizerSource = (),
    byte_fallback: bool = False,
    unk_token: str | None = None,
    special_tokens_at: str = "first",
):
    """Start with a model without tokens; the options are those of `train`.

    Raises InputError for options that cannot be combined.

    >>> start = untrained(["<s>"], alphabet="characters")
    >>> [*start.model.special_tokens], start.pattern, start.metaspace.replacement
    (['<s>', '<unk>'], 'gpt2', '▁')
    >>> untrained(["x"])
    Traceback (most recent call last):
    ...
    bpe_numba.InputError: the special token 'x' is a single byte, or names one: use a longer one
    """
    require_known("family of models", model, FAMILIES)
    require_known("`special_tokens_at`", special_tokens_at, SPECIAL_TOKENS_AT)
    defaults = FAMILIES[model]
    alphabet = alphabet or defaults.alphabet
    special_tokens = _check_learnt_texts(special_tokens)
    fields = {}
    metaspace = None
    if alphabet == "bytes":
        require(not byte_fallback and not mark, "`byte_fallback` and `mark` go with characters")
        is_of_bytes = defaults.alphabet == "bytes"
        require(is_of_bytes, f"a model of the family {model} is made of characters")
        unk_token = None
        mark = ""
    else:
        mark = defaults.mark if mark is None else mark
        is_mark = len(mark) < 2 and not mark.isspace()
        require(is_mark, f"a mark is one character, not white space: {mark!r}")
        if mark:  # ▁ replaces a space, and any other mark begins each word
            metaspace = Metaspace(mark, "never" if mark == MARK else "always")
        if defaults.kind == "unigram" or not byte_fallback:
            unk_token = unk_token or defaults.unk_token
            special_tokens = [*dict.fromkeys([*special_tokens, unk_token])]
        else:
            require(defaults.kind == "bpe", "`byte_fallback` is for bpe and unigram")
            require(unk_token is None, "with `byte_fallback` nothing is unknown: omit `unk_token`")
        fields["decoder"] = _decoder(metaspace, defaults.subword_prefix, byte_fallback)
        fields["fuse_unk"] = defaults.kind != "wordpiece"
    pattern = pattern or (defaults.pattern if mark in ("", MARK) else "whitespace-split")
    byte_tokens = BYTE_TOKENS if byte_fallback else ()
    vocab = dict(enumerate(map(str.encode, [*special_tokens, *byte_tokens])))
    if defaults.kind == "unigram":
        fields["scores"] = np.zeros(len(vocab))
    base = Model(
        vocab,
        [] if defaults.kind == "bpe" else None,
        special_tokens,
        _with_mark(pattern, metaspace),
        defaults.kind,
        alphabet=alphabet,
        normalizer=_named_normalizer(normalizer),
        unk_token=unk_token,
        byte_fallback=byte_fallback,
        subword_prefix=defaults.subword_prefix,
        max_word_chars=defaults.max_word_chars,
        **fields,
    )
    return Start(base, model, {special_tokens_at: special_tokens}, pattern, metaspace)


def _check_learnt_texts(special_tokens):
    """Check the special tokens of a new model; no learnt token may have the same name."""
    special_tokens = _check_texts(special_tokens)
    for text in special_tokens:
        is_long = len(text.encode()) > 1 and text not in _BYTE_NAMES
        message = f"the special token {text!r} is a single byte, or names one: use a longer one"
        require(is_long, message)
    return special_tokens


def _with_mark(pattern, metaspace=None):
    """Return the steps of a pattern and a mark, which comes last, but before "none" in a file."""
    if metaspace is None:
        return pattern
    parts = [part for part in Pattern(pattern).parts if part != PATTERNS["none"]]
    return [*parts, metaspace] if parts else [metaspace, "none"]


def _decoder(metaspace, prefix, byte_fallback):
    """List the steps that turn tokens of characters into text."""
    join = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if metaspace and metaspace.replacement == MARK:
        return [_MARKS_TO_SPACES, *join]
    if metaspace:
        marks = {"type": "Metaspace", **metaspace._asdict(), "split": True}
        return [marks, *join] if byte_fallback else [marks]
    if prefix:
        return [{"type": "WordPiece", "prefix": prefix, "cleanup": True}]
    return join if byte_fallback else join[1:]


def _family_of(model):
    """Find the family that learns models of this kind, and of this alphabet if there are two."""
    names = [name for name, family in FAMILIES.items() if family.kind == model.kind]
    require(names, f"no family of models learns a {model.kind}")
    require(not model.word_suffix, "the words of this model end in a suffix, which is not learnt")
    return max(names, key=lambda name: FAMILIES[name].alphabet == model.alphabet)


def _word_pattern(model):
    """Return the pattern of the words to learn from, where the model may not cut a text.

    SentencePiece learns from words that begin with a mark, and looks for tokens in whole texts.
    """
    normalizer = json.dumps(model.normalizer_steps)
    has_marks = json.dumps(MARK) in normalizer or "SentencePiece" in normalizer
    is_whole = Pattern(model.pattern).steps == Pattern("none").steps
    return Split(MARK, "merged_with_next") if is_whole and has_marks else model.pattern


@public
def start_like(like: AnyModel, special_tokens: Sequence[str] = ()) -> Start:
    """Start with a model without its learnt tokens.

    Its special tokens stay, and `special_tokens` are added to the first ones. They get the ids
    before those of the learnt tokens, or after them, as in the model.

    >>> old = Tokenizer.from_merges([(b"a", b"b")], ["<s>"])
    >>> start = start_like(old)
    >>> start.model.vocab, start.places
    ({0: b'<s>'}, {'first': ['<s>'], 'last': []})
    """
    model = open_model(like).model
    family = _family_of(model)
    half = len(model.vocab) / 2
    ids = model.special_tokens
    in_order = sorted(ids, key=ids.get)
    last = [text for text in in_order if ids[text] >= half]
    texts = [*in_order, *_check_learnt_texts(special_tokens), model.unk_token]
    first = [text for text in dict.fromkeys(texts) if text and text not in last]
    byte_tokens = BYTE_TOKENS if model.byte_fallback else ()
    names = [*first, *byte_tokens, *last]
    base = dataclasses.replace(
        model,
        vocab=dict(enumerate(map(str.encode, names))),
        merges=[] if model.kind == "bpe" else None,
        special_tokens=[*first, *last],
        scores=np.zeros(len(names), model.scores.dtype) if model.kind == "unigram" else None,
        added_from=MAX_ID,
        unused=(),
        unk_id=None,
    )
    return Start(base, family, {"first": first, "last": last}, _word_pattern(base))


@public
def start_from(
    from_: AnyModel, special_tokens: Sequence[str] = (), pattern: PatternSource | None = None
) -> Start:
    """Start with a model whose tokens stay.

    >>> start_from(Tokenizer.from_merges([(b"a", b"b")])).keeps_tokens
    True
    """
    model = open_model(from_).model
    _refuse(model.found_as_unknown, "going on from a folder of Marian")
    _refuse(model.synonyms, "going on from a model with several tokens of one id")
    family = _family_of(model)
    fields = {}
    if model.kind == "bpe":
        merges, _ = _as_merges(model)
        fields |= {"merges": merges, "scores": None, "ignore_merges": False}
    if pattern:
        steps = Pattern(model.pattern).steps
        marks = [step for step in steps if isinstance(step, Metaspace) and step.replacement != " "]
        fields["pattern"] = _with_mark(pattern, *marks[-1:])  # the old tokens have the mark
    new = [text for text in special_tokens if text not in model.special_tokens]
    if new:
        fields["special_tokens"] = [*model.special_tokens, *_check_learnt_texts(new)]
    base = dataclasses.replace(model, **fields)
    return Start(base, family, None, _word_pattern(base))


def _with_ids(part, ids):
    """Copy a part of a tokenizer.json, and replace the ids of the tokens that it names."""

    def renew(fields):
        for role in ("cls", "sep"):  # as in RobertaProcessing
            match fields.get(role):
                case [name, int()] if name.encode() in ids:
                    fields[role] = [name, ids[name.encode()]]
        if "tokens" in fields:  # as in TemplateProcessing
            fields["ids"] = [ids[name.encode()] for name in fields["tokens"]]
        return fields

    return json.loads(json.dumps(part), object_hook=renew)


def _words_to_go_on(model, words, others=MappingProxyType({}), coverage=1.0, required_chars=""):
    """Prepare words over bytes, and other characters, for learning that goes on from a model.

    Returns the words, the number of tokens of the model that the learner counts, and options for
    the learner. Characters that the model lacks become symbols.
    """
    id_of = model.ordinary_ids
    prefix = model.subword_prefix.encode()
    letters = []
    continuing = []  # letters of which a word may need the form with the prefix
    if model.alphabet == "characters":
        required = [*map(chr, model.letters), *required_chars]
        characters = words.as_characters(None, others, coverage=coverage, required_chars=required)
        letters = [letter for letter in characters.alphabet if letter not in id_of]
        inside = np.unique(np.delete(characters.symbols, characters.offsets[:-1]))
        continuing += [characters.alphabet[k] for k in inside]
    if model.kind == "unigram":
        scores = {token: float(model.scores[token_id]) for token, token_id in id_of.items()}
        return characters, len(scores), {"old_scores": scores}
    continuing = map(prefix.__add__, letters + continuing)
    new = [token for token in dict.fromkeys([*letters, *continuing]) if token not in id_of]
    words = words_of_model(model, words, new)
    more = {}
    if prefix:
        more["n_beginning"] = sum(not token.startswith(prefix) for token in [*id_of, *new])
    return words, len(words.alphabet) - len(new), more


_NO_LETTER = "\ufdd0?"  # for letters that a model lacks; no text has this character


def with_unknown(model, letters=(), **fields):
    """Copy a model with these letters as tokens, and a token for all letters that it lacks."""
    new = [*letters, _NO_LETTER.encode()]
    vocab = model.vocab | dict(enumerate(new, max(model.vocab, default=-1) + 1))
    special_tokens = model.special_tokens | {_NO_LETTER: max(vocab)}
    fields |= {"vocab": vocab, "special_tokens": special_tokens}
    return dataclasses.replace(model, unk_token=model.unk_token or _NO_LETTER, **fields)


@public
def words_of_model(model: Model, words: Words, letters: Sequence[bytes] = ()) -> Words:
    """Segment words into the tokens of a BPE or a WordPiece.

    These tokens become the alphabet of the words, in the order of their ids, and then `letters`,
    characters that the model lacks. Any other such character splits a word. From the result,
    `learn` learns the merges that the training of the model would have made next, and
    `extend_model` adds them.
    The pattern of the model is not used: a word may reach over the ends of its pretokens, and then
    new merges do so, too (SuperBPE, Liu et al. 2025). Tokens that continue a word of a WordPiece
    come last, without their prefix.

    >>> model = Model({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")])
    >>> words_of_model(model, Words.from_counts({b"abab": 2, b"ba": 1})).symbols
    array([2, 2, 1, 0], dtype=int32)
    """
    extended = with_unknown(model, letters, pattern="none", normalizer=())
    prefix = model.subword_prefix.encode()
    fallback = fallback_tokens(extended)
    ids = extended.ordinary_ids
    tokens = [token for token in ids if token not in fallback]
    tokens.sort(key=lambda token: token.startswith(prefix))
    symbol_of = np.full(max(extended.vocab) + 1, -1, np.int32)
    symbol_of[[*map(ids.get, tokens)]] = np.arange(len(tokens))
    ids, offsets = Tokenizer.from_model(extended).encode_texts(words.texts, "none")
    alphabet = [token.removeprefix(prefix) for token in tokens]
    return _split_at_unknown(symbol_of[ids], offsets, words.counts, alphabet)


@public
def extend_model(model: Model, learned: Learned) -> Model:
    """Return a model that also has the tokens that were learnt on its `words_of_model`.

    All ids and scores stay, also those of special tokens, and new tokens get the next ids. If a new
    merge makes a token that the old merges did not reach, the token keeps its id.

    >>> model = Model({0: b"a", 1: b"b", 2: b"<s>"}, [], {"<s>": 2})
    >>> words = words_of_model(model, Words.from_counts({b"abab": 2, b"ba": 1}))
    >>> extended = extend_model(model, learn(words, 4))
    >>> extended.merges, extended.vocab[3], extended.vocab[4]
    ([(b'a', b'b'), (b'ab', b'ab')], b'ab', b'abab')
    """
    id_of = model.ordinary_ids
    new_tokens = [token for token in learned.tokens if token not in id_of]
    next_id = max(model.vocab, default=-1) + 1
    fields = {"vocab": model.vocab | dict(enumerate(new_tokens, next_id))}
    if model.kind == "bpe":
        fields["merges"] = [*model.merges, *learned.merges]
    if learned.scores is not None:
        score_of = dict(zip(learned.tokens, learned.scores.tolist(), strict=True))
        old_scores = model.scores[[*id_of.values()]]
        # no score is lower than before, since that of an unknown character depends on the lowest
        least = old_scores[old_scores > -np.inf].min()
        new_scores = np.maximum([score_of[token] for token in new_tokens], least)
        between = np.zeros(next_id - len(model.scores))  # of tokens that were added later
        scores = np.concatenate([model.scores, between, new_scores])
        fields["scores"] = scores.astype(model.scores.dtype)
    return dataclasses.replace(model, **fields)


def _sizes(tokenizer, counted, learned, metaspace):
    """Count the tokens of a training, the bytes of its text in them, and the lost ones.

    A BPE over bytes has counted its tokens. With other models each word is encoded, since
    characters may be unknown, and longest tokens do not follow the merges.
    """
    model = tokenizer.model
    words = counted.words
    n_text = counted.n_text_bytes
    if model.kind == "bpe" and model.alphabet == "bytes":
        n_tokens = int(learned.n_tokens[-1])
        n_kept = min(n_text, words.n_tokens)
    else:
        steps = [step for step in (metaspace, "none") if step]
        model = dataclasses.replace(model, pattern=steps, normalizer=(), drops_unknown=True)
        encoded = encode_words(Tokenizer.from_model(model), words, n_text)
        n_tokens = encoded.n_tokens
        n_kept = encoded.n_kept
    return n_tokens, n_kept, note_lost("training", n_text, n_kept)


@public
@dataclasses.dataclass(eq=False, repr=False)
class Training:
    """The result of a training: a tokenizer and all measurements. See `summary`.

    >>> training = train(texts=["low low lower"], vocab_size=258)
    >>> len(training.tokenizer), training.n_tokens, training.summary().header
    (258, 7, ('what', 'value'))
    """

    tokenizer: Tokenizer
    counted: CorpusCounts
    learned: Learned
    source: Source
    start: Start
    options: Mapping[str, object]  # of the learner, and its limits
    # language -> its share of the bytes, before and after it was weighted
    shares: Mapping[str, Sequence[float]]
    n_tokens: int  # of the corpus
    n_bytes: int  # of the corpus, in tokens
    lost: int  # its other bytes

    @property
    def history(self) -> tuple[np.ndarray, int] | None:
        """The tokens of the corpus after each number of merges of a BPE, and the bytes in them."""
        if self.tokenizer.model.kind != "bpe":
            return None
        n_tokens = self.learned.n_tokens
        n_unknown = self.n_tokens - n_tokens[-1]  # tokens of unknown characters
        return n_tokens + n_unknown, self.n_bytes

    def save(self, folder: PathName) -> None:
        """Write the folder of a model as the command `train` does.

        It has the record of the training and, for a BPE, the merges with their counts. The record
        and the merges of an earlier training are removed.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train(texts=["low low lower"], vocab_size=258).save(folder)
        ...     sorted(os.listdir(folder))[-2:], curve(folder).columns[folder][1].tolist()
        (['training.npz', 'vocab.json'], [13, 10, 7])
        """
        check_writable(as_path(folder))
        with written_together():
            self.tokenizer.save(folder)
            atomic_write_all(Path(folder), {RECORD_FILE: _to_json(self.record)})
            file = Path(folder, LEARNED_FILE)
            if not self.history:
                file.unlink(missing_ok=True)
                return
            learned = self.learned
            n_tokens, n_bytes = self.history
            letters = [letter.decode("latin-1") for letter in learned.alphabet]
            with atomic_write(file) as out:
                np.savez_compressed(
                    out,
                    pairs=learned.pairs,
                    counts=learned.counts,
                    n_tokens=n_tokens,
                    alphabet=json.dumps(letters),
                    n_bytes=n_bytes,
                    model=self.tokenizer.digest,
                )

    @property
    def record(self) -> dict:
        """Everything that decided the model, as plain JSON without times or paths.

        Equal records mean equal models, unless a score is another function of the same name.
        """
        start = self.start
        options = {"model": start.family, **self.options, **self.source.settings}
        score = options.get("score", "count")
        options["score"] = getattr(score, "__qualname__", score)
        options["special_tokens"] = [*start.model.special_tokens]  # without byte tokens
        options["start"] = start.model.digest
        return {
            "bpe_numba": __version__,
            "options": options,
            "corpus": self.counted.described,
            "config": self.tokenizer.config,
            "model": self.tokenizer.digest,
        }

    def __repr__(self) -> str:
        return f"<Training of {self.tokenizer}>"

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self):
        return self.summary()._repr_html_()

    def summary(self) -> Table:
        """Tabulate the measurements."""
        learned = self.learned
        model = self.tokenizer.model
        special_tokens = model.special_tokens
        table = tabulate_counts(self.counted, "Training")
        rows = table.rows
        for name, (before, after) in self.shares.items():
            rows.append(("share", f"{before:.1%}, weighted {after:.1%}: {name}"))
        if learned.counts is not None:  # a Unigram has no merges
            last = number_of(int(learned.counts[-1:].sum()), "time")
            rows.append(("merges", f"{len(learned.counts):,}; the last pair occurred {last}"))
        says_weighted = self.counted._says_weighted
        rows.append((says_weighted("bytes/token"), self.n_bytes / self.n_tokens))
        lost = number_of(self.lost, "byte")
        if model.normalizer:  # BERT's puts spaces around 中, which may hide as many lost bytes
            lost += ", less those that the normalizer adds"
        rows.append((says_weighted("lost"), lost))
        rows.append(("tokens", f"{len(model.vocab):,}, {len(special_tokens)} of them special"))
        unseen = special_tokens.keys() - self.counted.special_tokens - {model.unk_token}
        if unseen:
            rows.append(("not in text", ", ".join(sorted(unseen))))
        return table


AnyModel = Tokenizer | Training | Model | PathName | LibraryTokenizer  # the last two are loaded
Models = AnyModel | Iterable[AnyModel] | Mapping[str, AnyModel]


def _warn_of_source(source):
    """Warn of a slow pattern, and of strings in the first file that look like special tokens."""
    if source.pattern.warning:
        note(source.pattern.warning)
    if not _is_stream(source.files[0]):
        texts = re.findall(rb"<\|\w{1,40}\|>", _read_part(source.files[0], 0, BLOCK_BYTES))
        counts = Counter(map(bytes.decode, texts))
        often = [name for name, n in counts.most_common(5) if n > 2]
        names = [name for name in often if name not in source.special_tokens]
        if names:
            note(f"{', '.join(names)} in the text: plain text, unless `special_tokens` names it")


def _name_some(files):
    """Write the names of the first files."""
    return f"{', '.join(map(str, files)):.300}"


@public(former={"executor": "workers", "byte_fallback": "`special_tokens` takes names of bytes"})
def count_files(
    inputs: Files,
    out: PathName = "words.npz",
    *,
    special_tokens: Sequence[str] = (),
    pattern: PatternSource = "gpt2",
    normalizer: Sequence[str] = (),
    max_words: Natural = MAX_WORDS,
    text_field: str | None = None,
    skip_bad_lines: bool = False,
    workers: Positive | Executor | None = None,
    progress: bool = False,
) -> CorpusCounts:
    """Count the pretokens of text, to train on them later or elsewhere.

    `train` takes words files instead of the texts, for models of any family. If the name of an
    unknown token or of a byte, such as <unk>, is plain text in the files, they are counted twice,
    and a family that needs the name refuses the words file, unless it was counted with this name as
    a special token. It also refuses the words of a pipe, which cannot be read twice.

    inputs         files, folders, globs, URLs, or - for standard input, as for `train`
    out            the words file, .npz
    pattern        gpt2, cl100k, o200k, llama3, qwen2, nanochat, bert, whitespace, whitespace-split,
                   spaces, none, or a regular expression

    Also special_tokens, normalizer and max_words, as in `train`; text_field and skip_bad_lines, as
    in a Source; workers and progress, as in an Engine.

    $ count corpus.txt --special-token "<|endoftext|>" --out words.npz
    $ train words.npz more-words.npz --vocab-size 32k --out model

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a.txt", "b.txt"):
    ...         _ = Path(folder, name).write_text("low low lower")
    ...         counted = count_files(folder, Path(folder, "words.npz"))
    ...     training = train(Path(folder, "words.npz"), 258)
    >>> counted.words.to_counts()[b" low"], counted.n_documents, training.tokenizer.merges
    (2, 2, [(b'o', b'w'), (b'l', b'ow')])
    """
    out = as_path(out)
    require(out.suffix == ".npz", f"{out}: name a .npz file for the words")
    check_writable(out.parent)
    engine = Engine(workers, progress)
    source = Source(
        inputs,
        pattern,
        _check_learnt_texts(special_tokens),
        text_field,
        normalizer=_named_normalizer(normalizer),
        skip_bad_lines=skip_bad_lines,
    )
    source.check()
    with stage("compile"):
        _warn_of_source(source)
        compile_counting(source)
    absent = {*BYTE_TOKENS, *(family.unk_token for family in FAMILIES.values())}
    absent.difference_update(source.special_tokens)
    if source.total_bytes is None:  # a pipe cannot be read again
        absent.clear()
    with stage("scan") as spent:
        with_names = dataclasses.replace(source, special_tokens=[*source.special_tokens, *absent])
        counted = count(with_names, engine, max_words=max_words)
        occurring = absent & counted.special_tokens.keys()
        if occurring:
            counted = count(source, engine, max_words=max_words)
        spent.n_bytes = counted.n_bytes
    with stage("save"):
        save_counts(out, counted, source.settings | {"absent": sorted(absent - occurring)})
    return counted


def _find_texts(inputs, texts, counts):
    """Find the files, the texts or the counts to learn from.

    Returns the files or texts, the CorpusCounts of words files or of `counts`, and the settings of
    words files.
    """
    n_given = (inputs is not STANDARD_LIBRARY) + (texts is not None) + (counts is not None)
    require(n_given <= 1, "`inputs`, `texts` and `counts` cannot be combined")
    if counts is not None:
        words = Words.from_counts(read_counts(counts) if isinstance(counts, PathName) else counts)
        return ["`counts`"], [CorpusCounts(words, 0, words.n_tokens)], ()
    if texts is not None:
        require(
            not isinstance(texts, Text | Mapping) and not hasattr(texts, "columns"),
            "`texts` is a list of texts, or their iterator: not a single text, and not a table, "
            'whose column is passed, such as table["text"]',
        )
        return [TextStream(texts)], (), ()
    if inputs is STANDARD_LIBRARY:
        note("no file is named: this learns from the source of Python's standard library")
        return standard_library(), (), ()
    files = find_files(inputs)
    others = [file for file in files if not str(file).endswith(".npz")]
    if others == files:
        return files, (), ()
    require(
        not others,
        f"{_name_some(others)}: text and words files cannot be mixed: run `count` on the text, too",
    )
    return files, *zip(*map(load_counts, files), strict=True)


def _count_inputs(source, inputs, words_files, balance, weights, engine, max_words):
    """Count the inputs, or each by itself if its counts are multiplied by a weight: see `train`.

    Returns their sum, and a dict of the share of each weighted input before and after.
    """
    if balance is None and not len(weights):
        return count(source, engine, words_files, max_words), {}
    names = [*map(str, inputs)]
    texts = [] if words_files else [source.part(expand_inputs(path)[0]) for path in inputs]
    parts = words_files or [count(text, engine, (), max_words) for text in texts]
    sizes = np.array([part.words.n_tokens for part in parts])
    require(sizes.all(), f"no text to learn from in {names[sizes.argmin()]}")
    if balance is not None:
        weights = (sizes / sizes.max()) ** (balance - 1)  # the counts of the largest one stay
    parts = [*map(CorpusCounts.weighted, parts, weights)]
    after = np.array([part.words.n_tokens for part in parts])
    shares = np.stack([sizes / sizes.sum(), after / after.sum()], axis=1)
    nothing = dataclasses.replace(source, files=None)
    counted = count(nothing, engine, parts, max_words)
    return counted, dict(zip(names, shares.tolist(), strict=True))


def _note_unlike_text(words, pattern):
    """Warn of counted words that a Pattern would not cut out of a text."""
    counter = WordCounter()
    counter.add_texts([b"one two", *words.texts], Pretokenizer(pattern))
    found = counter.words().to_counts()
    cut = sorted(word for word in words.texts if word not in found)
    begin = sum(word[:1].isspace() or word.startswith(MARK.encode()) for word in words.texts)
    if not begin and b" two" in found:
        note(
            "no counted word begins with a space, as most words of a text do with this pattern: "
            "count ' low' where a space is before low, or name another pattern"
        )
    if cut:
        n = f"{len(cut):,} of {number_of(len(words.counts), 'counted word')}"
        note(
            f"{n}, such as {readable(cut[0])[:40]}, are cut by the pattern in a text: the figures "
            "of this training are those of whole words"
        )


def _open_settings(settings):
    """Return the pattern, the special tokens and the normalizer of words files as options."""
    if not settings:
        return {}
    first, *_ = settings
    classes = {"Split": Split, "Metaspace": Metaspace}
    steps = [
        step if isinstance(step, str) else classes[step[0]](*step[1:]) for step in first["pattern"]
    ]
    names = [name for name in first["special_tokens"] if name not in BYTE_TOKENS]
    pattern = PATTERN_NAMES.get(tuple(steps), steps)
    return {"pattern": pattern, "special_tokens": names, "normalizer": first["normalizer"]}


def _check_settings(files, counts, settings, source):
    """Raise InputError for counts of other words than those of the source."""
    if counts and not settings:
        text = b"\xff".join(counts[0].words.texts)
        for token in source.special_tokens:
            message = f"words contain the special token {token!r}: cut texts there, then count them"
            require(token.encode() not in text, message)
    for file, counted, saved in zip(files, counts, settings, strict=False):
        for name, expected in source.settings.items():
            own = saved[name]
            differs = own != expected
            if name == "special_tokens":  # tokens that are not in the text change nothing
                unseen = {*saved.get("absent", ()), *own} - counted.special_tokens.keys()
                differs = ({*own} ^ {*expected}) - unseen
            message = f"was counted with the {name} {own}: count the texts again, with {expected}"
            require(not differs, f"{file}: {message}")


@public
def train_bpe(
    input_path: Files = STANDARD_LIBRARY,
    vocab_size: int = 8192,
    special_tokens: Sequence[str] = (),
    **options,
) -> tuple[dict[int, bytes], list[Merge]]:
    """Train as `train` does, with its options, and return the vocabulary and the merges.

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


@public
@deprecated("train(counts=…)")
def train_bpe_from_counts(
    counts: Counts, vocab_size: int, special_tokens: Sequence[str] = (), **options: object
) -> tuple[dict[int, bytes], list[Merge]]:
    """Train on pretokens that were counted elsewhere; returns the vocabulary and the merges."""
    options |= {"counts": counts, "vocab_size": vocab_size, "special_tokens": special_tokens}
    return train_bpe(**options)


@public
def convert(
    model: AnyModel,
    out: PathName,
    to: str,
    *,
    special_tokens: Sequence[str] = (),
    template: str | None = None,
    encoding: str | None = None,
    pattern: str | None = None,
    **settings: object,
) -> Tokenizer:
    """Write a model in another format.

    model           a file or a folder of any format
    out             folder to write; or a file with the suffix of the format: .json, .tiktoken,
                    .model
    to              the format: huggingface, gpt2, tiktoken or sentencepiece
    special_tokens  a special token to add; it gets the next id, if it is new
    template        the special tokens that AutoTokenizer puts around a text, such as
                    '[CLS] $A [SEP]'
    encoding        the encoding of a rank file: gpt2, cl100k_base, o200k_base, llama3 or another
                    published one
    pattern         the pattern of a rank file, or of GPT-2's two files

    Also all options of `transformers_config`.

    $ convert model --to tiktoken --out model.tiktoken
    $ convert o200k_base.tiktoken --to huggingface --out o200k

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tokenizer = Tokenizer({b: bytes([b]) for b in range(256)}, [])
    ...     len(convert(tokenizer, folder, "gpt2", special_tokens=["<s>"]))
    257
    """
    if isinstance(model, PathName):
        model = Tokenizer.load(model, encoding=encoding, pattern=pattern)
    tokenizer = open_model(model).with_special_tokens(special_tokens, template)
    tokenizer.model.config |= transformers_config(tokenizer.special_tokens, **settings)
    tokenizer.save(out, to)
    return tokenizer


# ─── Research ─────────────────────────────────────────────────────────────────────────────────────
#
# Tokenizers, corpora, Learned -> reports: plain arrays by name. As strings they are tables in
# Markdown. A corpus is counted first. Then each unique word is encoded once, by the model
# without its normalizer and pattern, and its tokens are weighted with the count of the word. For a
# model that merges only "ab", the corpus "ab\nab\nabc" gives
#
#     EncodedWords    the words "ab", "\n" and "abc" with the counts 2, 2 and 1, and their ids
#     measure         6 tokens for 9 bytes, so 1.5 bytes per token
#
# The functions are inspect_model (a vocabulary), curve (sizes of vocabularies), compare (models)
# and view (a text).


def tabulate_timings(seconds):
    """Tabulate the stages of this process, which took `seconds` in all."""
    other = seconds - sum(spent.seconds for spent in TIMINGS.values())
    timings = TIMINGS | {"other": Timing(other)}
    rows = []
    for name, spent in timings.items():
        rate = spent.n_bytes / spent.seconds / 1e6 or None
        rows.append((name, spent.seconds, rate, 100 * spent.seconds / seconds))
    return Table(f"{seconds:.2f} seconds", ("stage", "seconds", "MB/s", "% of time"), rows)


class Report(SimpleNamespace):
    """The result of research: a title, Tables, and the plain arrays that they show."""

    def __str__(self) -> str:
        return "\n\n".join([self.title, *map(str, self.tables)])

    __repr__ = __str__

    def _repr_html_(self):
        title = f"<h3>{html.escape(self.title)}</h3>"
        return "\n".join([title, *(table._repr_html_() for table in self.tables)])


_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>bpe_numba</title>
<style>
body { margin: 2em auto; max-width: 60em; padding: 0 1em; font: 16px/1.6 sans-serif }
table { border-collapse: collapse }
th, td { padding: 0 1em 0 0; border-bottom: 1px solid #ccc }
</style>
"""


def write_page(path, *reports):
    """Write reports as one page of HTML, which needs no other file.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "view.html")
    ...     write_page(path, view(Tokenizer({60: b"<"}, []), "<"))
    ...     "&lt;<br><small>60</small>" in path.read_text()
    True
    """
    page = _PAGE + "\n".join(report._repr_html_() for report in reports)
    with atomic_write(as_path(path)) as file:
        file.write(page.encode(errors="backslashreplace"))  # names of files may have invalid bytes


_TABLE_WRITERS = {".md": Table.__str__, ".csv": Table.to_csv, ".tex": Table.to_latex}


def table_writer(path):
    """Return the function that writes a table as the name of a file says."""
    require(path.suffix in _TABLE_WRITERS, f"{path}: name a .md, .tex or .csv file")
    return _TABLE_WRITERS[path.suffix]


def write_tables(path, report):
    """Write the tables of a report as Markdown, LaTeX or CSV, as the name of the file says."""
    path = as_path(path)
    written = "\n\n".join(map(table_writer(path), report.tables))
    with atomic_write(path) as file:
        file.write(f"{written}\n".encode(errors="backslashreplace"))


# The history of a training, in the folder of its model


def _find_history(given, model):
    """Return the tokens of the corpus for each number of merges, and the bytes in them, or None.

    `given` is a training, or the folder of one, whose model is `model`.
    """
    if not isinstance(given, PathName):
        return getattr(given, "history", None)
    file = Path(given, LEARNED_FILE)
    if not file.is_file():
        return None
    with naming_file(file, "not a whole record of a training"):
        saved = _read_arrays(file)
        require(str(saved["model"]) == model.digest, "belongs to another model: delete it")
        return saved["n_tokens"], int(saved["n_bytes"])


def _by_name(items):
    """Name paths by themselves, models by kind and size; a mapping has names already."""
    if isinstance(items, Mapping):
        return items
    if isinstance(items, AnyModel):
        items = [items]
    named = {}
    for number, item in enumerate(items, 1):
        name = str(item)
        if isinstance(item, list | tuple):  # the files of one corpus
            name = str(number)
        elif not isinstance(item, PathName):
            tokenizer = open_model(item)
            name = f"{tokenizer.model.kind}-{len(tokenizer)}"
            if name in named:
                name = f"{name} ({number})"
        named[name] = item
    return named


@public
def encode_corpus(
    tokenizer: Tokenizer,
    inputs: object,
    *,
    text_field: str | None = None,
    engine: Engine | None = None,
    has_words: bool = True,
) -> EncodedWords:
    """Count the pretokens of a corpus, and encode each once; raises InputError if it has none.

    inputs     files, folders or globs
    has_words  also count the words between white space, if the corpus can be read again

    Also text_field, as in a Source; and an Engine. Bytes are those of the text before
    normalization. If the pattern takes whole texts, these may be cut where no token can lie.

    >>> tokenizer = Tokenizer({b: bytes([b]) for b in range(256)} | {256: b"ab"}, [(b"a", b"b")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("ab\\nab\\nabc")
    ...     encoded = encode_corpus(tokenizer, folder)
    >>> encoded.n_tokens, encoded.frequencies(257)[[97, 99, 256]].tolist(), encoded.n_bytes
    (6, [0, 1, 3], 9)
    """
    source = tokenizer.source(inputs, "all", text_field)
    source.check()
    with stage("scan") as spent:
        counted, n_words = _count_corpus(source, engine, has_words)
        spent.n_bytes = counted.n_bytes
    return _encode_counted(tokenizer, counted, source.files)._replace(n_words=n_words)


def _count_corpus(source, engine, has_words=True):
    """Count the pretokens of a corpus; also its words, unless it can be read only once."""
    counted = count(source, engine)
    if not has_words or source.total_bytes is None:
        return counted, None
    by_spaces = dataclasses.replace(source, pattern="whitespace-split", normalizer=())
    by_spaces._share(source)
    return counted, count(by_spaces, engine).n_pretokens


def _encode_counted(tokenizer, counted, files):
    """Encode the words of CorpusCounts of files; raises InputError if there are none."""
    require(counted.n_pretokens, f"no text to look at in {_name_some(files)}")
    with stage("encode"):
        return encode_words(tokenizer._by_word, counted.words, counted.n_bytes)


RENYI_ORDER = 2.5  # Zouhar et al. found the best agreement with BLEU for this order
PERCENTILES = 0.03, 0.83  # of the frequencies that Zouhar et al. sum


def _renyi_entropy(p, order):
    """Compute the entropy of an order in bits; 1 gives that of Shannon, and inf the min-entropy."""
    if order == 1:
        return float(-np.sum(p * np.log2(p)))
    if order == np.inf:
        return float(-np.log2(p.max()))
    return float(np.log2(np.sum(p**order)) / (1 - order))


@public
def measure(
    model: Model, encoded: EncodedWords, orders: Sequence[float] = (RENYI_ORDER,)
) -> dict[str, float]:
    """Compute the usual measures of a model on a corpus; V is the number of ids of text.

    V counts all ids but those of special tokens; an unknown token is one that text becomes.
    Fertility is missing for a corpus that can be read only once, and means little for a text with
    few spaces, such as Chinese. With p the relative frequencies of the ids, the greatest first:

    bytes per token          of text that is in tokens: Gallé, "Investigating the Effectiveness of
                             Byte Pair Encoding" (2019), if no text is lost
    lost bytes               bytes of text that are in no token; see `Tokenizer.text_sizes`
    unknown bytes            those of them that are in words: unknown tokens stand for them. The
                             pattern or the normalizer has dropped the others
    fertility                tokens per word between white space: Rust et al., "How Good is Your
                             Tokenizer?" (2021)
    average rank             sum p[k] * k, with k from 0 on: Limisiewicz et al., "Tokenization
                             Impacts Multilingual Language Modeling" (2023)
    Shannon entropy          -sum p * log2 p, in bits per token: Shannon (1948)
    F95                      the least count of an id among the 95 % of all V ids that occur most:
                             Gowda and May, "Finding the Optimal Vocabulary Size for Neural Machine
                             Translation" (2020)
    percentile frequency     sum p[k], for k from 3 % to 83 % of the ids that occur: Zouhar et al.
    Rényi efficiency         -log2(sum p**2.5) / 1.5 over log2 V: Zouhar et al., "Tokenization and
                             the Noiseless Channel" (2023)
    Rényi, of used ids       the same over the logarithm of the number of ids that occur, as the
                             package tokenization-scorer computes it
    vocabulary utilisation   the share of ids that occur

    Other `orders` of Rényi's entropy than 2.5 are part of the name: "Rényi efficiency, order 2". An
    order is at least 0; 1 is Shannon's entropy, and inf the min-entropy.

    >>> model = Tokenizer({0: b"c", 1: b"ab"}, None).model
    >>> ids, offsets = np.array([1, 1, 0]), np.array([0, 1, 3])
    >>> encoded = EncodedWords([b"ab", b"abc"], np.array([3, 2]), ids, offsets, 12, n_kept=12)
    >>> measures = measure(model, encoded)
    >>> [round(measures[name], 3) for name in ("tokens", "bytes per token", "average rank")]
    [7, 1.714, 0.286]
    """
    n = encoded.n_tokens
    ids = set(model.ordinary)
    if model.unk_token and not model.byte_fallback:
        ids.add(model.unknown_id)
    p = np.sort(encoded.frequencies())[::-1] / n
    p = p[p > 0]
    n_used = len(p)
    first, last = (int(share * n_used) for share in PERCENTILES)
    sizes = [len(word.replace(MARK.encode(), b" ")) for word in encoded.words]
    in_words = min(encoded.n_bytes, int(encoded.counts @ sizes))
    measures = {
        "tokens": n,
        "bytes per token": encoded.n_kept / n,
        "lost bytes": encoded.n_bytes - encoded.n_kept,
        "unknown bytes": max(in_words - encoded.n_kept, 0),
    }
    if encoded.n_words:
        measures["fertility"] = n / encoded.n_words
    n_common = math.ceil(0.95 * len(ids))
    efficiencies = {}
    for order in orders:
        require(order >= 0, f"`orders`: {order} is no order of an entropy, which is at least 0")
        entropy = _renyi_entropy(p, order)
        suffix = "" if order == RENYI_ORDER else f", order {order:g}"
        efficiencies["Rényi efficiency" + suffix] = entropy / math.log2(max(len(ids), 2))
        efficiencies["Rényi, of used ids" + suffix] = entropy / math.log2(max(n_used, 2))
    return measures | {
        "average rank": float(np.dot(p, np.arange(n_used))),
        "Shannon entropy": _renyi_entropy(p, 1),
        "F95": round(n * p[n_common - 1]) if n_common <= n_used else 0,
        "percentile frequency": float(p[first:last].sum()),
        **efficiencies,
        "vocabulary utilisation": n_used / len(ids),
    }


# bits per byte

# The n-grams of a text form a trie. A *context* is a sequence of fewer than n ids, and has a
# number. An edge leads from a context to an id that followed it: the edge from the context "a b" to
# c is the n-gram "a b c". A shorter one is a context itself. The contexts 0 to n - 1 consist of so
# many boundaries, with which a document begins.
_EDGE = _record(
    key="uint64",  # the number of the context, and the id in the lower ID_BITS; or NO_EDGE
    count="uint32",
    context="uint32",  # the number of the longer context
)
_CONTEXT = _record(
    count="int64",  # of the edges, together
    distinct="int64",  # the number of different edges
)
NO_EDGE = ALL_ONES
NO_CONTEXT = u32(2**32 - 1)
ROOM = 1 << 12  # the number of ids for whose n-grams room is made at once


@struct
class _Ngrams:
    """The trie of n-grams; see above."""

    edges: np.ndarray  # _EDGE[H]      a hash table with linear probing; H is a power of two
    contexts: np.ndarray  # _CONTEXT[…]
    order: int  # n
    n_contexts: int
    n_edges: int = 0


@inline_kernel
def _find_edge(key, edges):
    """Look up an edge: returns its slot, or the free slot where it belongs."""
    slot = _home_slot(key, u64(0), len(edges))
    while edges[slot].key != key and edges[slot].key != NO_EDGE:
        slot = (slot + ONE) & u64(len(edges) - 1)
    return slot


@kernel
def _empty_edges(n):
    """Make an empty table with room for n edges."""
    edges = _on_huge_pages(np.empty(n, _EDGE))
    for k in range(n):
        edges[k].key = NO_EDGE
    return edges


@inner_kernel
def _reserve_edges(n, ngrams):
    """Make room for n more edges, and for as many contexts."""
    contexts = _reserve(ngrams.contexts, ngrams.n_contexts + n)
    for k in range(len(ngrams.contexts), len(contexts)):
        contexts[k].count = contexts[k].distinct = 0
    ngrams.contexts = contexts
    size = len(ngrams.edges)
    while 3 * (ngrams.n_edges + n) > 2 * size:
        size *= 2
    if size > len(ngrams.edges):
        edges = _empty_edges(size)
        for k in range(len(ngrams.edges)):
            edge = ngrams.edges[k]
            if edge.key != NO_EDGE:
                edges[_find_edge(edge.key, edges)] = edge
        ngrams.edges = edges


@kernel
def _count_ngrams(ids, offsets, ngrams):
    """Count the n-grams of documents; document d is ids[offsets[d] : offsets[d + 1]].

    `current[k]` is the context of the k ids before the next one.
    """
    order = ngrams.order
    edges = ngrams.edges
    contexts = ngrams.contexts
    room = 0
    current = np.empty(order + 1, u32)
    keys = np.empty(order, u64)
    for document in range(len(offsets) - 1):
        for k in range(order + 1):
            current[k] = k
        for position in range(offsets[document], offsets[document + 1]):
            if room == 0:
                room = ROOM
                _reserve_edges(room * order, ngrams)
                edges = ngrams.edges
                contexts = ngrams.contexts
            room -= 1
            for k in range(order):
                keys[k] = u64(current[k]) << ID_BITS | u64(ids[position])
                prefetch(edges, i64(_home_slot(keys[k], u64(0), len(edges))))
            for k in range(order - 1, -1, -1):
                number = current[k]
                key = keys[k]
                edge = edges[_find_edge(key, edges)]
                if edge.key == NO_EDGE:
                    edge.key = key
                    edge.count = 0
                    ngrams.n_edges += 1
                    contexts[number].distinct += 1
                    if k < order - 1:
                        edge.context = ngrams.n_contexts
                        ngrams.n_contexts += 1
                edge.count += 1
                contexts[number].count += 1
                current[k + 1] = edge.context


@kernel
def _measure_bits(ids, offsets, n_ids, ngrams):
    """Sum -log2 of the probability of each id by document, float64[D]; see NgramModel."""
    order = ngrams.order
    edges = ngrams.edges
    contexts = ngrams.contexts
    bits = np.zeros(len(offsets) - 1)
    current = np.empty(order + 1, u32)
    following = np.empty(order + 1, u32)
    for document in range(len(bits)):
        for k in range(order + 1):
            current[k] = k
        for position in range(offsets[document], offsets[document + 1]):
            p = 1 / n_ids
            following[:] = NO_CONTEXT
            for k in range(order):
                number = current[k]
                if number == NO_CONTEXT or contexts[number].count == 0:
                    break
                edge = edges[_find_edge(u64(number) << ID_BITS | u64(ids[position]), edges)]
                count = 0
                if edge.key != NO_EDGE:
                    count = edge.count
                    following[k + 1] = edge.context
                distinct = contexts[number].distinct
                p = (count + distinct * p) / (contexts[number].count + distinct)
            following[0] = 0
            for k in range(order + 1):
                current[k] = following[k]
            bits[document] -= np.log2(p)
    return bits


@public
class NgramModel:
    """A language model of token ids: interpolated Witten-Bell over sequences of `order` ids.

    Bell, Cleary and Witten, "Text Compression" (1990). With c(h w) the number of times that the id
    w followed the ids h, c(h) their sum over all w, T(h) the number of different w, and h' the ids
    h without the first one,

        p(w | h) = (c(h w) + T(h) p(w | h')) / (c(h) + T(h))

    or p(w | h') where c(h) is 0. If h has no id, 1 / n_ids takes the place of p(w | h'). A document
    begins with order - 1 boundaries, and its end is not predicted. The table takes 24 bytes for
    each slot, and a third to two thirds of its slots have an n-gram.

    >>> model = NgramModel(2, n_ids=4)
    >>> model.learn(np.array([0, 1, 0, 1]), np.array([0, 4]))
    >>> model.bits(np.array([0, 1]), np.array([0, 2])).round(4).tolist()
    [0.8094]
    """

    def __init__(self, order: Order, n_ids: Positive):
        self.order = order
        self.n_ids = n_ids
        contexts = np.zeros(order, _CONTEXT)
        self._ngrams = _Ngrams(_empty_edges(1 << 16), contexts, order, order)

    def learn(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        """Count documents: document d is ids[offsets[d] : offsets[d + 1]]."""
        _count_ngrams(*self._check(ids, offsets), self._ngrams)

    def bits(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the bits that each document takes, float64[D]."""
        return _measure_bits(*self._check(ids, offsets), self.n_ids, self._ngrams)

    def _check(self, ids, offsets):
        """Return the arrays as kernels take them."""
        ids = np.ascontiguousarray(ids, u32)
        offsets = np.ascontiguousarray(offsets, i64)
        is_in_order = len(offsets) and offsets[0] >= 0 and (np.diff(offsets) >= 0).all()
        require(is_in_order and offsets[-1] <= len(ids), "offsets ascend, from 0 to len(ids)")
        require(ids.max(initial=0) < MAX_ID, _ID_RANGE)
        return ids, offsets


class _Documents(NamedTuple):
    """The ids of documents, end to end, without special tokens; no document is empty."""

    ids: np.ndarray  # uint32[N]
    offsets: np.ndarray  # int64[D + 1]
    sizes: np.ndarray  # float64[D]  bytes of text in the tokens of each
    n_lost: int  # bytes of text that are in no token


def _encode_documents(tokenizer, inputs, texts, text_field, engine):
    """Encode files, or texts; special tokens end documents, too."""
    blocks = []
    if texts:
        data = [*map(_text_bytes, inputs)]
        ids, offsets = tokenizer.encode_batch_to_numpy(data)
        blocks = [_EncodedBlocks(ids, offsets[1:], sum(map(len, data)), 0, 0, True)]
    else:
        source = tokenizer.source(inputs, "all", text_field)
        with contextlib.closing(
            _encode_source(tokenizer, source, engine, u32, {"allowed_special": "all"})
        ) as encoded:
            blocks = [*encoded]
    n_bytes = sum(block.n_bytes for block in blocks)
    ids = np.concatenate([block.ids for block in blocks] or [np.zeros(0, u32)])
    starts = np.cumsum([0, *(len(block.ids) for block in blocks)])
    ends = [block.ends + start for block, start in zip(blocks, starts, strict=False)]
    special_tokens = tokenizer.model.special_tokens
    # unknown text is text, though its token may be special
    ends_text = [special_tokens[name] for name in {*special_tokens} - {tokenizer.model.unk_token}]
    is_special = np.isin(ids, ends_text)
    places = np.concatenate([[0, len(ids)], *ends, np.flatnonzero(is_special)]).astype(i64)
    n_before = np.cumsum(~is_special)  # ids of text
    offsets = np.unique(np.append(0, n_before)[places])
    sizes = tokenizer.text_sizes[ids]
    n_kept = int(sizes.sum())
    ids = ids[~is_special]
    sizes = np.add.reduceat(sizes[~is_special], offsets[:-1]) if len(ids) else np.zeros(0)
    # a mark before the first word of a text is not a byte of it
    sizes = sizes * min(1.0, n_bytes / max(n_kept, 1))
    return _Documents(ids.astype(u32), offsets, sizes, max(n_bytes - n_kept, 0))


@public
def bits_per_byte(
    model: AnyModel,
    train: Files | Iterable[Text],
    held_out: Files | Iterable[Text],
    order: Order = 3,
    *,
    texts: bool = False,
    text_field: str | None = None,
    workers: Positive | Executor | None = None,
    progress: bool = False,
) -> Report:
    """Learn a small language model from the tokens of a text, and measure how well it predicts.

    The fewer bits it needs for a byte of other text, the more it has learnt from such tokens: see
    NgramModel. All models are measured over bytes, so tokenizers of any size can be compared. Bytes
    are those in tokens, so lost text is no gain. Documents are files, lines of JSON and rows, and
    special tokens end them.

    train     the text that it learns from: files, folders or globs
    held_out  the text that it predicts
    order     the number of ids in an n-gram
    texts     both are documents themselves, not the names of files

    Also text_field, as in a Source; workers and progress, as in an Engine. The report has

    bits_per_byte  of all documents
    interval       two numbers: a 95 % interval, from 1,000 resamples of the documents by SciPy;
                   NaN for a single document
    bits           float64[D], of each document
    n_bytes        float64[D], in the tokens of each
    lost           bytes of the held-out text that are in no token

    >>> tokenizer = Tokenizer({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")])
    >>> report = bits_per_byte(tokenizer, ["abab", "abb"], ["ab", "abb"], order=2, texts=True)
    >>> round(report.bits_per_byte, 3), report.n_bytes.tolist(), report.bits.round(2).tolist()
    (0.353, [2.0, 3.0], [0.2, 1.56])
    """
    tokenizer = open_model(model)
    engine = Engine(workers, progress)
    with stage("encode"):
        learnt = _encode_documents(tokenizer, train, texts, text_field, engine)
        held = _encode_documents(tokenizer, held_out, texts, text_field, engine)
    require(len(learnt.ids), "there is no text to learn from")
    require(held.sizes.sum() > 0, "the held-out text has no tokens")
    ngrams = NgramModel(order, len(tokenizer))
    with stage("n-grams"):
        ngrams.learn(learnt.ids, learnt.offsets)
        bits = ngrams.bits(held.ids, held.offsets)
    value = float(bits.sum() / held.sizes.sum())
    low, high = _bootstrap_ratio(bits, held.sizes)
    measures = {
        "bits per byte": value,
        "95 % from": low,
        "to": high,
        "tokens": len(held.ids),
        "documents": len(bits),
        "lost bytes": held.n_lost,
        "tokens learnt from": len(learnt.ids),
    }
    return Report(
        title=f"{tokenizer.model.kind}-{len(tokenizer)}, n-grams of {order} tokens",
        tables=[Table("Held-out text", ("measure", "value"), [*measures.items()])],
        bits_per_byte=value,
        interval=(low, high),
        bits=bits,
        n_bytes=held.sizes,
        lost=held.n_lost,
    )


def _ratio_of_sums(above, below, axis=-1):
    """Divide the sum of one array by that of another."""
    return above.sum(axis) / below.sum(axis)


def _bootstrap_ratio(above, below):
    """Return a 95 % interval of the ratio of two sums over documents; NaN for a single document."""
    if len(above) < 2:
        return np.nan, np.nan
    resample = import_optional("scipy.stats").bootstrap
    options = {"paired": True, "n_resamples": 1000, "method": "percentile", "rng": 0}
    batch = max(1, 10_000_000 // len(above))
    with np.errstate(all="ignore"):  # documents in a resample may have no bytes at all
        result = resample((above, below), _ratio_of_sums, batch=batch, **options)
    interval = result.confidence_interval
    return float(interval.low), float(interval.high)


# inspect

ROWS = 12  # the most rows of a list in a table


def unreachable_tokens(tokenizer):
    """Find the tokens that are not made from their own bytes: {id: the ids of these bytes}.

    The bytes of a token are encoded as a single word, without pattern and normalizer. If the result
    does not contain the token, no text at all becomes it: how bytes are merged to a token depends
    on these bytes alone, even in a longer word (see `_fill_merges`), and the same holds for the
    best paths of a Unigram. Two types are not listed: tokens that continue a word of a WordPiece,
    since only longer texts become them, and, with byte fallback, the tokens of bytes. No ids are
    returned for a token with a letter that is not in the vocabulary.

    >>> tokens = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"bca"]
    >>> merges = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc"), (b"bc", b"a")]
    >>> unreachable_tokens(Tokenizer(dict(enumerate(tokens)), merges))
    {5: [3, 2]}
    """
    model = tokenizer.model
    prefix = model.subword_prefix.encode()
    omitted = {*_FALLBACK_TOKENS} if model.byte_fallback else set()
    if prefix:
        omitted.update(token for token in model.ordinary_ids if token.startswith(prefix))
    ids_of_text = [token_id for token_id in model.ordinary if model.vocab[token_id] not in omitted]
    words = [*map(model.vocab.get, ids_of_text)]
    unknown_id = None
    try:
        encoded = tokenizer._by_word.encode_texts(words, "none")
    except InputError:  # there is such a letter
        extended = with_unknown(tokenizer._by_word.model)
        unknown_id = extended.special_tokens[_NO_LETTER]
        encoded = Tokenizer.from_model(extended).encode_texts(words, "none")
    lost = {}
    for token_id, ids in zip(ids_of_text, split_ids(*encoded), strict=True):
        if token_id not in ids:
            lost[token_id] = [] if unknown_id in ids else ids
    return lost


RARE = 1000  # how many times more often a candidate for a glitch token was made than it is used


class Glitch(NamedTuple):
    """A candidate for a "glitch token": training made it from many pairs, and hardly any are left.

    Later merges have taken them into longer tokens. A language model that seldom meets a token does
    not learn it: Land and Bartolo, "Fishing for Magikarp" (2024).
    """

    id: int
    made: int  # the number of pairs that became this token when it was merged
    used: int  # the number of its occurrences in the text


def find_glitches(model, n_tokens, frequencies):
    """List tokens that merges made RARE times as often as a text uses them; the most made first.

    n_tokens     int64[M + 1], of the corpus of the training, before the first merge and after each
    frequencies  of the ids in a text. It may have another size than the corpus, so the numbers of
                 the training are scaled to it
    """
    times_made = -np.diff(n_tokens)
    share = frequencies.sum() / n_tokens[-1]
    glitches = []
    # after `train(from_=…)`, only the last merges were made then
    for pair, n in zip(model.merges[-len(times_made) :], times_made.tolist(), strict=True):
        token_id = model.ids[b"".join(pair)]
        used = int(frequencies[token_id])
        if max(used, 1) * RARE <= n * share:
            glitches.append(Glitch(token_id, n, used))
    return sorted(glitches, key=lambda glitch: -glitch.made)


@public(
    former={
        "tokenizer": "model",
        "executor": "workers",
        "engine": "pass `workers` and `progress`",
        **_OF_CONVERT,
    }
)
def inspect_model(
    model: AnyModel,
    inputs: Files | None = None,
    *,
    text_field: str | None = None,
    workers: Positive | Executor | None = None,
    progress: bool = False,
) -> Report:
    """Describe a vocabulary, and how a corpus uses it.

    model   a file or a folder of any format, a Tokenizer, or the result of `train`. A BPE that
            `train` wrote has the counts of its merges, which tell candidates for glitch tokens
    inputs  files, folders or globs; without them, the report is on the vocabulary alone. If there
            are several, the measures also have the fewest bytes per token

    Also text_field, as in a Source; workers and progress, as in an Engine. The report has

    tokens       {id: decoded bytes}, without special tokens
    unreachable  see `unreachable_tokens`
    measures     see `measure`; empty without inputs
    frequencies  of each id in the inputs, int64[V]; None without inputs
    glitches     a list of Glitch; None without inputs or counts of merges

    $ inspect model
    $ inspect model corpus.txt

    >>> tokenizer = train(counts={b"low": 5, b" lower": 2}, vocab_size=260).tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("low lower low")
    ...     report = inspect_model(tokenizer, folder)
    >>> report.measures["tokens"], report.tokens[257], report.unreachable
    (5, b'low', {})
    """
    tokenizer = open_model(model)
    history = _find_history(model, tokenizer.model)
    model = tokenizer.model
    _, decoded = tokenizer._decoded
    tokens = {token_id: decoded[token_id] for token_id in model.ordinary if decoded[token_id]}
    with stage("search"):
        unreachable = unreachable_tokens(tokenizer)

    def name_of(token_id):
        return readable(decoded[token_id] or model.vocab[token_id])

    longest = sorted(tokens, key=lambda token_id: -len(tokens[token_id]))[:ROWS]
    longest = [(token_id, name_of(token_id), len(tokens[token_id])) for token_id in longest]
    lost = []
    for token_id, ids in itertools.islice(unreachable.items(), ROWS):
        lost.append((token_id, name_of(token_id), "|".join(map(name_of, ids))))
    title = f"Tokens that no text can reach: {len(unreachable):,}"
    n_special = len(model.special_tokens)
    report = Report(
        title=f"{len(tokenizer):,} tokens, {n_special:,} of them special, {model.kind}",
        tables=[
            Table("Longest tokens", ("id", "token", "bytes"), longest),
            Table(title, ("id", "token", "becomes"), lost),
        ],
        tokens=tokens,
        unreachable=unreachable,
        measures={},
        frequencies=None,
        glitches=None,
    )
    if inputs is None:
        return report
    inputs = [inputs] if isinstance(inputs, PathName) else [*inputs]
    encoded, rates = _encode_parts(tokenizer, inputs, text_field, Engine(workers, progress))
    note_lost(report.title, encoded.n_bytes, encoded.n_kept)
    report.measures = measure(model, encoded)
    report.frequencies = encoded.frequencies(tokenizer.vocab_size)
    if len(inputs) > 1:
        report.measures["fewest bytes per token"] = min(rates)
    report.tables.append(_tabulate_measures(report.measures, encoded))
    if history and model.merges:
        report.glitches = find_glitches(model, history[0], report.frequencies)
        rows = []
        for glitch in report.glitches[:ROWS]:
            rows.append((glitch.id, name_of(glitch.id), glitch.made, glitch.used))
        title = f"Made often, hardly used: {len(report.glitches):,}"
        report.tables.append(Table(title, ("id", "token", "when made", "in the text"), rows))
    return report


def _encode_parts(tokenizer, inputs, text_field, engine):
    """Encode the words of several inputs, each of which is read as a corpus.

    Returns EncodedWords of all, and the bytes per token of each input that has text.
    """
    source = tokenizer.source(inputs, "all", text_field)
    source.check()
    with stage("scan") as spent:
        texts = [source.part(expand_inputs(path)[0]) for path in inputs]
        counted = [_count_corpus(text, engine) for text in texts]
        parts, numbers_of_words = zip(*counted, strict=True)
        in_all = count(source.part([]), engine, parts)
        spent.n_bytes = in_all.n_bytes
    encoded = _encode_counted(tokenizer, in_all, source.files)
    rates = []
    for part in parts if len(parts) > 1 else ():
        if part.n_pretokens:
            of_part = _encode_counted(tokenizer, part, source.files)
            rates.append(of_part.n_kept / of_part.n_tokens)
    n_words = None if None in numbers_of_words else sum(numbers_of_words)
    return encoded._replace(n_words=n_words), rates


MANY_CHARS = 15  # per word between white space: few words of any language are as long


def _tabulate_measures(measures, encoded):
    """Tabulate measures, with a mark where white space does not separate words, as in Chinese."""
    rows = dict(measures)
    n_chars = [len(word.decode(errors="ignore")) for word in encoded.words]
    if encoded.n_words and int(encoded.counts @ n_chars) > MANY_CHARS * encoded.n_words:
        names = {"fertility": "fertility (few spaces)"}
        rows = {names.get(name, name): value for name, value in measures.items()}
    return Table("Measures", ("measure", "value"), [*rows.items()])


# curve

_SIZES = (512, *(1000 << k for k in range(15)))  # the sizes of vocabularies that tables show


@public
class Curve(Report):
    """The number of tokens of training corpora for every size of the vocabulary. See `curve`.

    columns  {name: four arrays[M + 1]}, before the first merge and after each one: the size of the
             vocabulary without special tokens, the tokens of the corpus, bytes per token, and the %
             of tokens that 1,000 more would save
    bits     {name: (sizes, bits per byte)} for the sizes of the table; empty without held-out text
    """

    def plot(self, path: PathName | None = None):
        """Draw bytes per token, the saving by 1,000 more, and bits per byte if they are there.

        Returns the figure of matplotlib.

        A notebook shows the figure. With a path it is written to a .png, .svg or .pdf file, or to
        another one that matplotlib knows.
        """
        pyplot = import_optional("matplotlib.pyplot")
        all_sizes = [sizes for sizes, *_ in self.columns.values()]
        saves = max(map(len, all_sizes)) > 1000  # else nothing is saved by 1,000 more
        n = 1 + saves + bool(self.bits)
        with pyplot.rc_context({"font.size": 9, "svg.hashsalt": "curve"}):
            options = {"figsize": (3.5 * n, 3), "layout": "constrained", "squeeze": False}
            figure, [panels] = pyplot.subplots(1, n, **options)
            pyplot.close(figure)  # else a notebook shows it twice
            for axes in panels:
                axes.set_xlabel("vocabulary")
                if any(sizes[-1] >= 2 * sizes[0] for sizes in all_sizes):
                    axes.set_xscale("log", base=2)
            panels[0].set_ylabel("bytes per token")
            for name, (sizes, _, rates, _) in self.columns.items():
                panels[0].plot(sizes, rates, label=name.replace("$", r"\$"))  # $ begins a formula
            panels[0].legend()
            if saves:
                self._plot_savings(panels[1])
            if self.bits:
                panels[-1].set_ylabel("bits per byte of held-out text")
                for sizes, bits in self.bits.values():
                    panels[-1].plot(sizes, bits, "o-", markersize=3)
            if path:
                with atomic_write(Path(path)) as file:
                    figure.savefig(file, format=Path(path).suffix[1:], dpi=200)
        return figure

    def _plot_savings(self, axes):
        """Draw the tokens that 1,000 more would save."""
        axes.set(yscale="log", ylabel="% of the tokens that 1,000 more save")
        for sizes, _, _, saved in self.columns.values():
            axes.plot(sizes, saved)
        places = import_optional("matplotlib.ticker").LogLocator(subs=(1, 2, 3, 5))
        axes.yaxis.set_major_locator(places)
        axes.yaxis.set_major_formatter("{x:g}")  # else 6 × 10¹
        axes.minorticks_off()


@public(former={"engine": "pass `workers`", **_OF_CONVERT})
def curve(
    models: Models,
    *,
    corpus: Files | None = None,
    held_out: Files | None = None,
    order: Order = 3,
    plot: PathName | None = None,
    text_field: str | None = None,
    workers: Positive | Executor | None = None,
) -> Curve:
    """Compute the tokens of a BPE's training text for each size of its vocabulary.

    models    the result of `train`, the folder in which it was saved, or several; or {name: one of
              these}
    corpus    text from which n-grams of tokens are learnt: for some sizes, see `bits_per_byte`
    held_out  the text that they predict
    order     the number of tokens in such an n-gram
    plot      draw the curves to a .png, .svg or .pdf file

    Also text_field, as in a Source; and workers, as in an Engine.

    $ curve model
    $ curve english code --plot curve.png
    $ curve model --corpus train.txt --held-out test.txt

    >>> training = train(counts={b"aaab": 3, b"ab": 1}, vocab_size=258)
    >>> report = curve({"a": training})
    >>> [column.round(2).tolist() for column in report.columns["a"][:3]]
    [[256, 257, 258], [14, 11, 7], [1.0, 1.27, 2.0]]
    """
    require(
        (corpus is None) == (held_out is None),
        "`corpus` and `held_out` belong together: n-grams of one text predict the other",
    )
    if plot is not None:
        plot = as_path(plot)
        kinds = import_optional("matplotlib.backend_bases").FigureCanvasBase.filetypes
        require_known("format of a plot", plot.suffix[1:], kinds)
        check_writable_file(plot)
    if held_out is not None:
        corpus, held_out = find_files(corpus), find_files(held_out)
    columns = {}
    bits = {}
    tables = []
    header = ["vocabulary", "tokens", "bytes/token", "% that 1,000 more save"]
    if held_out is not None:
        header.append("bits/byte")
    for name, given in _by_name(models).items():
        tokenizer = open_model(given)
        model = tokenizer.model
        history = _find_history(given, model)
        require(history, f"{name}: no merge counts: name a BPE that `train` wrote")
        n_tokens, n_bytes = history
        n_sizes = len(n_tokens)
        sizes = len(model.ordinary) - n_sizes + 1 + np.arange(n_sizes)
        saved = np.full(n_sizes, np.nan)
        saved[:-1000] = 100 - 100 * n_tokens[1000:] / n_tokens[:-1000]
        columns[name] = sizes, n_tokens, n_bytes / n_tokens, saved
        is_shown = np.isin(sizes, [sizes[0], sizes[-1], *_SIZES])
        shown = [column[is_shown].tolist() for column in columns[name]]
        if held_out is not None:
            options = {"text_field": text_field, "workers": workers}
            shown.append([])
            for size in shown[0]:
                small = tokenizer.truncated(size + len(model.special_tokens))
                predicted = bits_per_byte(small, corpus, held_out, order, **options)
                shown[-1].append(predicted.bits_per_byte)
            bits[name] = shown[0], shown[-1]
        tables.append(Table(name, header, [*zip(*shown, strict=True)]))
    title = "Tokens of the corpus by the size of the vocabulary, without special tokens"
    report = Curve(title=title, tables=tables, columns=columns, bits=bits)
    if plot:
        report.plot(plot)
    return report


# compare

LISTED_WORDS = 10_000  # the most frequent ones of those that are split differently


def _check_report_files(out, html):
    """Check, before any work, that a report can be written to these files; either may be None."""
    if out is not None:
        table_writer(as_path(out))
        check_writable_file(as_path(out))
    if html is not None:
        check_writable_file(as_path(html))


def _corpora_by_name(corpus):
    """List the inputs of each corpus by its name; without one, those of the standard library."""
    if corpus is None:
        return {"standard library": standard_library()}
    corpora = {}
    for name, inputs in _by_name(corpus).items():
        inputs = [inputs] if isinstance(inputs, PathName) else inputs
        require(isinstance(inputs, Iterable), f"the corpus {name!r} is {inputs!r:.99}: no path")
        corpora[name] = [*inputs]
    return corpora


@public(
    former={
        "tokenizers": "models",
        "corpora": "corpus",
        "engine": "pass `workers` and `progress`",
        **_OF_CONVERT,
    }
)
def compare(
    models: Models,
    corpus: Files | Mapping[str, Files] | None = None,
    *,
    parallel: Files = (),
    held_out: Files | None = None,
    order: Order = 3,
    out: PathName | None = None,
    html: PathName | None = None,
    text_field: str | None = None,
    workers: Positive | Executor | None = None,
    progress: bool = False,
) -> Report:
    """Compare models: bytes per token, and words that they split differently.

    models  each is a file or a folder of any format, a Tokenizer, or the result of `train`; or
            {name: one of these}
    corpus  paths, where each is a corpus; or {name: files, folders or globs}; by default the source
            of Python's standard library
    parallel  files in several languages: line k of each file is the same sentence
    held_out  other text, which n-grams of tokens of the corpora predict: see `bits_per_byte`
    order   the number of tokens in such an n-gram
    out     also write the tables to this file: .md, .tex (for LaTeX with booktabs), or .csv
    html    also write the tables to this page

    Also text_field, as in a Source; workers and progress, as in an Engine. Words are separated by
    white space, whatever the patterns of the models are. A word is encoded with the one character
    of white space before it. Only cuts inside the word count, as not all models put the space into
    the token. The report has

    models           their names
    corpora          their names
    n_tokens         int64[models, corpora]
    bytes_per_token  float64[models, corpora], of the text that is in tokens
    lost             float64[models, corpora], the % of the bytes that are in no token
    same             the share of words, weighted by counts, that all models split alike
    differences      words split differently, the 10,000 most frequent ones: a list of (word, count,
                     [its tokens by each model])
    bits_per_byte    float64[models], of the held-out text; None without one
    costs            int64[models, languages], the tokens of the parallel sentences, joined by
                     spaces
    premiums         float64[models, languages], the costs over that of the first language: Petrov
                     et al., "Language Model Tokenizers Introduce Unfairness Between Languages"
                     (2023)
    gini             float64[models], sum |c[j] - c[k]| / (2 n sum c) over the costs of n languages:
                     0 if all are equal; Foroutan et al., "Parity-Aware Byte-Pair Encoding" (2025)
    nsl              float64[models, languages], the normalized sequence length, which is the cost
                     over that of the first model: Dagan et al., "Getting the Most out of Your
                     Tokenizer for Pre-training and Domain Adaptation" (2024)

    $ compare model cl100k_base.tiktoken
    $ compare model other-model --corpus english.txt --corpus code.txt
    $ compare model other-model --corpus train.txt --held-out test.txt
    $ compare model other-model --parallel en.txt --parallel de.txt --out table.tex

    >>> small = train(counts={b"low": 5, b" lower": 2}, vocab_size=258).tokenizer
    >>> large = train(counts={b"low": 5, b" lower": 2}, vocab_size=260).tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("low lower low")
    ...     report = compare({"small": small, "large": large}, {"text": folder})
    >>> report.bytes_per_token[:, 0].round(2).tolist(), report.differences
    ([1.86, 2.6], [(b' lower', 1, [[b' ', b'low', b'e', b'r'], [b' ', b'lower']])])
    """
    tokenizers = {name: open_model(model) for name, model in _by_name(models).items()}
    require(tokenizers, "`models` is empty: name one or more")
    _check_report_files(out, html)
    parallel = parallel if isinstance(parallel, PathName) else [*parallel]
    parallel = find_files(parallel) if parallel else []
    if held_out is not None:
        held_out = find_files(held_out)
    corpora = _corpora_by_name(corpus)
    special_tokens = {text for model in tokenizers.values() for text in model.special_tokens}
    files = find_files(itertools.chain.from_iterable(corpora.values()))
    source = Source(files, r"\s?\S+", sorted(special_tokens), text_field)
    source.check()
    corpora = {name: expand_inputs(inputs)[0] for name, inputs in corpora.items()}
    engine = Engine(workers, progress)
    n_tokens, n_bytes, n_kept = _corpus_sizes(tokenizers, corpora, source, engine)
    rates = n_kept / n_tokens
    with stage("words"):
        n_words, differences, same = _compare_words([*tokenizers.values()], source, engine)
    shown = []
    for word, n, pieces in differences[:ROWS]:
        shown.append((readable(word), n, *("|".join(map(readable, tokens)) for tokens in pieces)))
    columns = dict(zip(corpora, rates.T, strict=True))
    if len(corpora) > 1:
        columns["the fewest"] = rates.min(axis=1)
    columns["lost, %"] = 100 - 100 * n_kept.sum(axis=1) / n_bytes.sum(axis=1)
    header = ("model", *columns)
    rows = [*zip(tokenizers, *columns.values(), strict=True)]
    title = f"Words split alike by all: {100 * same:.1f} % of {number_of(n_words, 'word')}"
    report = Report(
        title="Models compared",
        tables=[
            Table("Bytes per token", header, rows),
            Table(title, ("word", "count", *tokenizers), shown),
        ],
        models=[*tokenizers],
        corpora=[*corpora],
        n_tokens=n_tokens,
        bytes_per_token=rates,
        lost=100 - 100 * n_kept / n_bytes,
        same=same,
        differences=differences,
        bits_per_byte=None,
        costs=None,
        premiums=None,
        gini=None,
        nsl=None,
    )
    if parallel:
        _add_parallel(report, tokenizers, parallel)
    if held_out is not None:
        options = {"text_field": text_field, "workers": workers}
        _add_bits(report, tokenizers, (files, held_out, order), options)
    if out is not None:
        write_tables(out, report)
    if html:
        write_page(html, report)
    return report


def _add_bits(report, tokenizers, texts, options):
    """Add the bits per byte of each model to the report of `compare`."""
    values = []
    rows = []
    for name, tokenizer in tokenizers.items():
        measured = bits_per_byte(tokenizer, *texts, **options)
        values.append(measured.bits_per_byte)
        rows.append((name, measured.bits_per_byte, *measured.interval, measured.lost))
    report.bits_per_byte = np.array(values)
    header = ("model", "bits per byte", "95 % from", "to", "lost bytes")
    report.tables.append(Table("Held-out text, by n-grams of tokens", header, rows))


def _add_parallel(report, tokenizers, files):
    """Add the costs of languages to the report of `compare`."""
    texts = [b" ".join(_read_sentences(file)) for file in files]
    n_lines = {len(_read_sentences(file)) for file in files}
    require(len(n_lines) == 1, "`parallel`: the files have different numbers of lines")
    rows = [
        [len(tokenizer.encode_to_numpy(text, "none")) for text in texts]
        for tokenizer in tokenizers.values()
    ]
    report.costs = costs = np.array(rows, i64)
    require(costs.all(), "`parallel`: a file has no text")
    report.premiums = premiums = costs / costs[:, :1]
    report.nsl = nsl = costs / costs[0]
    n = len(files)
    # in ascending order, cost k is the greater one in k pairs, and the smaller one in n - 1 - k
    report.gini = np.sort(costs) @ np.arange(1 - n, n, 2) / (n * costs.sum(axis=1))
    names = [file.name for file in files]
    for title, values in (
        ("Tokens of parallel text", costs),
        (f"Premium over {names[0]}", premiums),
        (f"Sequence length, normalized by {next(iter(tokenizers))}", nsl),
    ):
        header = ["model", *names]
        columns = [[*tokenizers], *values.T.tolist()]
        if values is premiums:
            header.append("Gini")
            columns.append(report.gini.tolist())
        report.tables.append(Table(title, header, [*zip(*columns, strict=True)]))


def _read_sentences(file):
    """Read the lines of a file of text, which may be packed; the last may lack its end."""
    with _opened(file) as (opened, _):
        return opened.read().removesuffix(b"\n").split(b"\n")


def _corpus_sizes(tokenizers, corpora, source, engine):
    """Encode each corpus, some files of a Source, by each model.

    Returns the tokens, the bytes, and the bytes that are in tokens: int64[3, models, corpora].
    """
    sizes = np.zeros((3, len(tokenizers), len(corpora)), i64)
    for row, (name, tokenizer) in enumerate(tokenizers.items()):
        for column, files in enumerate(corpora.values()):
            text = tokenizer.source(files, "all", source.text_field)
            text._share(source)
            with stage("scan") as spent:
                counted, _ = _count_corpus(text, engine, has_words=False)
                spent.n_bytes = counted.n_bytes
            encoded = _encode_counted(tokenizer, counted, files)
            sizes[:, row, column] = encoded.n_tokens, encoded.n_bytes, encoded.n_kept
        _, n_bytes, n_kept = sizes[:, row].sum(axis=1)
        note_lost(name, n_bytes, n_kept)
    return sizes


def _compare_words(tokenizers, source, engine):
    """Find words that models split differently.

    Returns the number of words in the text; a list of (word, count, [its tokens by each model]) of
    the most frequent different ones; and the share of all others, by counts.
    """
    counted = _in_order(count(source, engine).words)
    texts = counted.texts
    numbers = [w for w, text in enumerate(texts) if text.strip()]
    words = [texts[w] for w in numbers]
    counts = counted.counts[numbers]
    first, *others = (_sizes_of_pieces(tokenizer, words) for tokenizer in tokenizers)
    differs = np.zeros(len(words), bool)
    for other in others:
        differs |= _differ(first, other)
    share = 1 - counts[differs].sum() / max(counts.sum(), 1)
    different = sorted(np.flatnonzero(differs).tolist(), key=lambda w: (-counts[w], words[w]))
    listed = [words[w] for w in different[:LISTED_WORDS]]
    splits = []  # for each model, the tokens of each word
    for tokenizer in tokenizers:
        ids_of_words = tokenizer.encode_batch(listed, "none")
        splits.append([[*filter(None, decode_each(tokenizer, ids))] for ids in ids_of_words])
    of_listed = counts[different[:LISTED_WORDS]].tolist()
    pieces_of_words = map(list, zip(*splits, strict=True))
    differences = [*zip(listed, of_listed, pieces_of_words, strict=True)]
    return int(counts.sum()), differences, float(share)


def _sizes_of_pieces(tokenizer, words):
    """Encode words; returns the sizes of their tokens without white space at the ends.

    Tokens of white space alone are left out. Also returns the number of sizes of each word.
    """
    ids, offsets = tokenizer.encode_batch_to_numpy(words, "none")
    n_tokens = np.diff(offsets)
    as_first, as_later = (
        np.array([len((decoded.get(k) or b"").strip()) for k in range(tokenizer.vocab_size)])
        for decoded in tokenizer._decoded
    )
    sizes = as_later[ids]
    firsts = offsets[:-1][n_tokens > 0]
    sizes[firsts] = as_first[ids[firsts]]
    word_of = np.repeat(np.arange(len(words)), n_tokens)[sizes > 0]
    return sizes[sizes > 0], np.bincount(word_of, minlength=len(words))


def _differ(split, other):
    """Whether each word has other pieces in another model; see `_sizes_of_pieces`."""
    sizes, n_pieces = split
    other_sizes, n_other_pieces = other
    differs = n_pieces != n_other_pieces
    is_other_size = (
        sizes[np.repeat(~differs, n_pieces)] != other_sizes[np.repeat(~differs, n_other_pieces)]
    )
    alike = np.flatnonzero(~differs)
    differs[np.repeat(alike, n_pieces[alike])[is_other_size]] = True
    return differs


# view

WIDTH = 80  # of lines for people, except in tables
# A token and its id below, with a border that is seen without colours, too.
_SPAN = (
    '<span style="display: inline-block; vertical-align: top; border-left: 1px solid; '
    'padding: 0 .2em; color: #000; background: hsl({} 90% 88%)">{}<br><small>{}</small></span>{}'
)


@public
class View(SimpleNamespace):
    """A text cut into tokens. See `view`.

    ids     uint32[N]
    tokens  the decoded bytes of each
    beside  the same text cut by other models: a list of Views
    """

    def text(self, width: int = WIDTH) -> str:
        """Write tokens between bars, and their ids below."""
        lines = []
        is_new = True
        for token, number in zip(self.tokens, map(str, self.ids), strict=True):
            shown = readable(token)
            size = max(_cell_width(shown), len(number))
            if is_new or len(lines[-1]) + size >= width:
                lines += ["", ""]
            lines[-2] += _fill(shown, size) + "|"
            lines[-1] += number.ljust(size + 1)
            is_new = token.endswith(b"\n")
        shown = [*map(str.rstrip, lines), self.title]
        return "\n".join(shown + [view.text(width) for view in self.beside])

    def __str__(self) -> str:
        return self.text(shutil.get_terminal_size().columns)

    __repr__ = __str__

    def _repr_html_(self):
        """Write the tokens on colours, with their ids below."""
        spans = []
        for token, number in zip(self.tokens, self.ids.tolist(), strict=True):
            hue = number * 137 % 360  # neighbouring ids have different colours
            shown = html.escape(readable(token))
            spans.append(_SPAN.format(hue, shown, number, "<br>" * token.endswith(b"\n")))
        shown = f"<h4>{html.escape(self.title)}</h4><div dir=auto>{''.join(spans)}</div>"
        return "\n".join([shown, *(view._repr_html_() for view in self.beside)])


@public(former={"tokenizer": "model", **_OF_CONVERT})
def view(
    model: AnyModel, text: Text | None = None, *, beside: Models = (), html: PathName | None = None
) -> View:
    r"""Show a text cut into tokens.

    model   a file or a folder of any format, a Tokenizer, or the result of `train`
    text    the text; without one, or with - on the command line, standard input
    beside  another model, whose tokens are shown below
    html    also write the tokens to this page, in colours

    $ view model "Hello, world"
    $ view model --beside other-model --html view.html < corpus.txt

    >>> tokenizer = train(counts={b"low": 5, b" lower": 2}, vocab_size=260).tokenizer
    >>> print(view(tokenizer, "low lower\n").text(40))
    low|␣  |lower|↵  |
    257 220 259   198
    bpe-260: 10 bytes, 4 tokens
    """
    data = sys.stdin.buffer.read() if text is None else _text_bytes(text)
    views = []
    for name, given in [*_by_name(model).items(), *_by_name(beside).items()]:
        tokenizer = open_model(given)
        ids = tokenizer.encode_to_numpy(data)
        title = f"{name}: {number_of(len(data), 'byte')}, {number_of(len(ids), 'token')}"
        tokens = decode_each(tokenizer, ids.tolist())
        views.append(View(title=title, ids=ids, tokens=tokens, beside=[]))
    if html:
        write_page(html, *views)
    views[0].beside = views[1:]
    return views[0]


# ─── Command line ─────────────────────────────────────────────────────────────────────────────────
#
# Arguments -> a call of a public function, whose result is printed. The parameters of the function
# are the arguments of its command. Names, types and defaults come from its signature, and the help
# comes from docstrings:
#
#     train corpus.txt --vocab-size 32k   ->   train(inputs=["corpus.txt"], vocab_size=32000)
#
# `train` and `convert` pass other options on to functions, whose signatures have their types. A
# parameter is a string or a list of strings unless its type is a number or bool. Messages name
# parameters `like_this`, and `main` prints them as options. A ValueError or an OSError becomes one
# line on standard error, and the exit status 2; so does a TypeError, which names an option that a
# function does not take.

COMMANDS = {
    "train": train,
    "count": count_files,
    "encode": encode_files,
    "decode": decode_file,
    "convert": convert,
    "inspect": inspect_model,
    "curve": curve,
    "compare": compare,
    "view": view,
}
_POSITIONAL = ("model", "models", "inputs", "tokens", "text")  # these are not options
_PYTHON_ONLY = ("texts", "progress", "n_beginning", "old_scores")
_MANY = (
    "Sequence[str]",
    "NormalizerSource",
    "Sequence[float]",
    "Files",
    "Models",
    "Text",
)  # the types of lists
# In docstrings: a command, without the program's name; and a parameter with its help.
_EXAMPLE = re.compile(r"^ *\$ (.+)", re.MULTILINE)
_ROW = regex.compile(r"^(\w+)  +(.+(?:\n  +.+)*)", regex.MULTILINE)
_program = "python bpe_numba.py"  # the words by which a user calls it; `run` knows them


def whole_number(text):
    """Read a whole number, which may be written as 10k, 2M or 10,000.

    >>> whole_number("10k"), whole_number("10_000"), whole_number("2M")
    (10000, 10000, 2000000)
    """
    power = " kmg".find(text[-1:].lower())
    digits = text[: len(text) - (power > 0)].replace(",", "")
    return int(digits) * 1000 ** max(power, 0)


def number_of_tokens(text):
    """Read a whole number; a number after + stays text, since a model's size is added to it.

    >>> number_of_tokens("10k"), number_of_tokens("+2k")
    (10000, '+2000')
    """
    number = whole_number(text.removeprefix("+"))
    return f"+{number}" if text.startswith("+") else number


# the types of options that are not strings
_TYPES = dict.fromkeys(["int", "Natural", "Positive", "Order"], whole_number)
_TYPES |= dict.fromkeys(["float", "Share", "Sequence[float]"], float)
_TYPES["int | str"] = number_of_tokens


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def named(self, message):
        """Replace the names of parameters in a message by those of options."""
        return re.sub(r"`(\w+)`", lambda name: self.flags.get(name[1], name[0]), message)

    def error(self, message):
        """Exit with an error; for an unknown option it names its successor, or a similar one."""
        unknown = re.sub("unrecognized arguments: ([^ =]*).*", r"\1", message)
        options = [*self.flags.values(), "--quiet", "--timings", "--help"]
        if successor := self.former.get(unknown):
            message = f"{unknown} has gone: {self.named(successor)}"
        else:
            for similar in difflib.get_close_matches(unknown, options, 1, 0.75):
                message += f"; did you mean {similar}?"
        self.exit(2, f"bpe_numba: {message}; see {self.prog} --help\n")


def _doc(function):
    """Return the docstring of a function; with -OO, Python has none."""
    return inspect.getdoc(function) or ""


def _add_argument(parser, parameter, text, is_option):
    """Add the argument that sets a parameter; without it, the parameter keeps its default."""
    name = parameter.name
    default = parameter.default
    is_needed = default is parameter.empty
    kind = getattr(parameter.annotation, "__name__", str(parameter.annotation)).partition(" ")[0]
    option = "--" + name.rstrip("_").replace("_", "-")
    read = _TYPES.get(parameter.annotation) or _TYPES.get(kind, str)
    settings = {"help": text, "metavar": name.upper(), "type": read}
    if kind == "bool":
        settings = {"help": text, "action": "store_true"}
    elif kind in _MANY and is_option:
        option = re.sub("(?<!u)s$", "", option)  # --special-token, but --corpus
        settings |= {"action": "append", "help": f"{text}; may be repeated"}
    elif kind in _MANY:
        settings["nargs"] = "+" if is_needed else "*"
    elif default not in (None, "", parameter.empty) and "default" not in text:
        settings["help"] = f"{text} (default: {default})"
    if is_option:
        parser.add_argument(option, dest=name, required=is_needed, **settings)
        return option
    parser.add_argument(name, **settings)
    return name.upper()


def _make_parser(name):
    """Make the parser of a command; its `flags` tell how each argument is written."""
    command = COMMANDS[name]
    functions = [command]
    if name == "train":
        functions += _functions_of_options()
    if name == "convert":
        functions.append(transformers_config)
    doc = _doc(command)
    texts = {}
    for function in [Engine, Source, convert, train, *functions[::-1]]:
        texts.update(_ROW.findall(_doc(function)))
    parser = _Parser(
        prog=f"{_program} {name}",
        description=doc.partition("\n")[0],
        epilog="\n".join(
            ["examples:", *(f"  {_program} {line}" for line in _EXAMPLE.findall(doc))]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    former = getattr(command, "former", {})
    parser.former = {"--" + key.replace("_", "-"): former[key] for key in former}
    parser.flags = {}
    for function in functions:
        for key, parameter in inspect.signature(function).parameters.items():
            is_own = function is command and parameter.kind is not parameter.VAR_KEYWORD
            is_added = parameter.kind is parameter.KEYWORD_ONLY
            if (is_own or is_added) and key not in {*parser.flags, *_PYTHON_ONLY}:
                text = " ".join(texts.get(key, "").split()).replace("%", "%%")
                is_option = key not in _POSITIONAL or (name == "train" and key == "model")
                parser.flags[key] = _add_argument(parser, parameter, text, is_option)
    switch = {"action": "store_true", "default": False}
    parser.add_argument("--quiet", help="no progress bars, no summary", **switch)
    text = "print the time of each stage on standard error"
    parser.add_argument("--timings", help=text, **switch)
    return parser


def _print_commands(name):
    """Print the names of all commands; returns the exit status, which is 2 for an unknown name."""
    if name == "--version":
        print(f"bpe_numba {__version__}")
        return 0
    if name in ("-h", "--help"):
        print(f"usage: {_program} COMMAND …\n")
        for command, function in COMMANDS.items():
            print(f"  {command:9}{_doc(function).splitlines()[0]}")
        return 0
    print(f"bpe_numba: no command {name!r}: there are {', '.join(COMMANDS)}", file=sys.stderr)
    return 2


def _replace_closed_streams():
    """Open the standard streams that the caller has closed, and let any name be printed."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may have invalid bytes


def _call(name, options):
    """Call the function of a command with the options of its parser, and print the result."""
    start = time.perf_counter()
    function = COMMANDS[name]
    parameters = inspect.signature(function).parameters
    for option, value in options.items():
        require(value != "" or option == "mark", f"`{option}` is empty: is a variable not set?")
    timings = options.pop("timings")
    is_quiet = options.pop("quiet")
    if "text" in options:
        text = " ".join(options["text"])
        options["text"] = None if text == "-" else text  # or standard input
    if "out" in parameters:
        default = "model" if name == "train" else parameters["out"].default
        options.setdefault("out", default)
    out = options.get("out")
    progress = not is_quiet and out != "-"
    if "progress" in parameters:
        options["progress"] = progress
    result = function(**options)
    if result is not None and (progress or not out):
        print(result)
    for path in filter(None, map(options.get, ("out", "html", "plot"))):
        if progress:
            print(f"\nWritten to {path}")
    if progress and name == "train":
        command = f"{_program} encode {shlex.quote(out)} -"
        print(f"\nNext:\n  echo 'Hello, world!' | {command}")
    print(end="", flush=True)
    if timings:
        print(tabulate_timings(time.perf_counter() - start), file=sys.stderr)


def main(arguments=None):
    """Run the command line and return its exit status: 0, or 2 for bad input."""
    _replace_closed_streams()
    name, *arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name not in COMMANDS:
        return _print_commands(name)
    parser = _make_parser(name)
    options = vars(parser.parse_intermixed_args(arguments))
    TIMINGS.clear()

    def say(message):
        """Print a message as one line, with the names of parameters replaced by options."""
        line = parser.named(" ".join(str(message).splitlines()))
        tqdm.write(f"bpe_numba: {line}", sys.stderr)  # keeps progress bars intact

    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: say(f"note: {message}")
            _call(name, options)
        return 0
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        return 0
    except (ValueError, OSError, MemoryError, TypeError) as error:
        message = getattr(error, "strerror", None) or str(error) or "out of memory"
        if getattr(error, "filename", None):
            message = f"{error.filename}: {message}"
    finally:
        try:
            print(end="", flush=True)
        except OSError:  # drop the rest: Python would try again at exit, and print an error
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, sys.stdout.fileno())
    say(message)
    return 2


def run():
    """Run a command as a program; its exit status is 130 after an interrupt, 143 after SIGTERM."""
    global _program
    script = sys.argv[0]
    _program = Path(script).name
    if script.endswith(".py"):
        n_words = len(sys.orig_argv) - len(sys.argv) + 1
        _program = shlex.join(sys.orig_argv[:n_words])
    _end_when_asked()
    return main()


if _COLLECTS:
    _collect_again()
