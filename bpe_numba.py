"""Train and run byte-pair-encoding (BPE) tokenizers, with kernels compiled by Numba.

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

    document        a text on its own: a file, a line of a .jsonl, or what stands between two special tokens
    pretoken        a piece of a document that the pattern cuts out; no token reaches across its ends
    word            a pretoken as a sequence of symbols, with the count of its occurrences
    symbol          a number for a string of bytes while learning: 0 to 255 are the single bytes
    pair            two neighbouring symbols of a word
    merge           a pair that became one symbol; its rank is its number in the list of merges
    token, id       an entry of the vocabulary, as bytes, and its number
    special token   a token that stands for itself in a text: never split, never merged, never learnt from

and the letters in shapes: W words, N symbols in all words, M merges, V symbols or tokens, P pairs.

The way of the data, which is the order of the sections

    Patterns     a name, or a regular expression -> its parts
    Compiling    its parts -> a machine over bytes that says where pretokens end
    Scanning     text -> where pretokens end, and where the text may be cut
    Reading      files, folders, globs, standard input -> blocks that can be scanned on their own
    Counting     blocks -> Words, in worker processes
    Learning     Words -> Merges, the one serial part
    Vocabulary   Merges -> the vocabulary: ids and bytes
    Encoding     words -> ids, by kernels with a cache
    Tokenizer    text -> ids -> text
    Files        the formats of Hugging Face, GPT-2, tiktoken and transformers
    Training     from files to a tokenizer, in one call
    Corpora      from files to files of token ids, by many workers
    Stages       seconds, memory and the Scalene profiler, stage by stage
    Command line
"""

from __future__ import annotations

import argparse
import base64
import codecs
import contextlib
import errno
import functools
import glob
import gzip
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import pickle
import re
import shlex
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
import zipfile
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple

import numba
import numpy as np
import regex
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from tqdm import tqdm

__version__ = "0.1.0"

# No signatures: they would compile at import. A cached kernel does not see a change in another file: hence one module.
kernel = numba.njit(cache=True, nogil=True)
inlined = numba.njit(cache=True, nogil=True, forceinline=True)  # for a kernel that is called once a word, or oftener


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for array[index] to be in the cache soon. The index must be inside the array."""

    def emit(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, flag(0), flag(3), flag(1)])  # to read, keep in all levels, data
        return context.get_dummy_value()

    return numba.void(array, numba.intp), emit


@intrinsic
def load8(typing_context, array, index):
    """The 8 bytes at array[index :] as a little-endian uint64. They must be inside the array, of uint8."""

    def emit(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word = ir.IntType(64)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), word.as_pointer())
        return builder.load(address, align=1)

    return numba.uint64(array, numba.intp), emit


@intrinsic
def store8(typing_context, array, index, word):
    """Write a uint64 as 8 bytes to array[index :], little-endian. They must be inside the array, of uint8."""

    def emit(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(arguments[2], address, align=1)
        return context.get_dummy_value()

    return numba.void(array, numba.intp, numba.uint64), emit


@intrinsic
def pointer(typing_context, address):
    """An address as a pointer, for numba.carray."""

    def emit(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return numba.types.voidptr(numba.int64), emit


@intrinsic
def lowest_bit(typing_context, word):
    """The number of the lowest bit that is set in a uint64; 64 for 0."""

    def emit(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return numba.uint64(numba.uint64), emit


@intrinsic
def highest_bit(typing_context, word):
    """The number of the highest bit that is set in a uint64, which must not be 0."""

    def emit(context, builder, signature, arguments):
        return builder.sub(ir.IntType(64)(63), builder.ctlz(arguments[0], ir.IntType(1)(0)))

    return numba.uint64(numba.uint64), emit


class BadInput(ValueError):
    """What was asked for cannot be: the message says what, where, and what to do."""


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# The texts are those of the tools' own sources, but for cl100k: tiktoken's possessive quantifiers, which change no
# match, are plain here, and `$`, there the end of the text, is (?![\s\S]): so Hugging Face's engine reads it alike.
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
}

# Parts of a pattern, as tuples: ("one", text) any one character that the text matches, ("ahead", text, wanted) the next
# character is, or is not, such a one; ("end",) the text ends; ("all", parts), ("any", parts); and
# ("repeat", part, least, most, lazy, possessive), with None for no limit.
Part = tuple

_GROUP = regex.compile(r"\((?:\?(?P<look>[=!])|\?(?P<fold>i?):|(?!\?))")
_ESCAPE = regex.compile(
    r"\\(?:[pP](?:\{\^?[\w\s=:&.-]+\}|[A-Z])|[sSdDwW]|x[\dA-Fa-f]{2}|u[\dA-Fa-f]{4}|[nrtfva]|[^\w])"
)
_SET = regex.compile(r"\[\^?\]?(?:\\[pPx]\{[^}]*\}|\\.|[^\]\\\[])*\]")
_QUANTIFIER = regex.compile(r"(?:[*+?]|\{(?P<least>\d+)(?:,(?P<most>\d*))?\})(?P<kind>[?+]?)")


class Unsupported(ValueError):
    """The pattern cannot be compiled here, and is left to the `regex` package."""


class _Parser:
    """Reads the regular expressions that `regex` has accepted; raises Unsupported for what is not regular, or rare."""

    def __init__(self, text: str):
        self.text, self.at, self.fold = text, 0, False

    def parse(self) -> Part:
        part = self.alternatives()
        if self.at < len(self.text):
            self.refuse("a )")
        return part

    def refuse(self, what: str):
        raise Unsupported(f"{what} at position {self.at}")

    def take(self, expected: str | regex.Pattern):
        """What stands at this place, if it is as expected; else nothing."""
        if isinstance(expected, str):
            found = self.text.startswith(expected, self.at)
            self.at += len(expected) if found else 0
            return found
        found = expected.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def alternatives(self) -> Part:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        return ("any", parts) if len(parts) > 1 else parts[0]

    def sequence(self) -> Part:
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            part = self.item()
            if part == ("end",) and not (parts and _takes_newlines(parts[-1])):
                self.refuse("a $ that may stand before a last newline")
            while quantifier := self.take(_QUANTIFIER):
                part = self.repeated(part, quantifier)
            parts.append(part)
        return ("all", parts) if len(parts) != 1 else parts[0]

    def repeated(self, part: Part, quantifier: regex.Match) -> Part:
        if part[0] in ("ahead", "end") or _may_be_empty(part):
            self.refuse("a quantifier on what may be empty,")
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(quantifier[0][0], (None, None))
        if least is None:
            least = int(quantifier["least"])
            most = (
                {None: least, "": None}.get(quantifier["most"]) if not quantifier["most"] else int(quantifier["most"])
            )
        if max(least, most or 0) > 100:
            self.refuse("a count over 100")
        if most is not None and most < least:
            self.refuse("a count that goes down")
        if quantifier["kind"] == "+" and part[0] != "one":
            self.refuse("a possessive quantifier on more than one character")
        return ("repeat", part, least, most, quantifier["kind"] == "?", quantifier["kind"] == "+")

    def item(self) -> Part:
        if group := self.take(_GROUP):
            fold = self.fold
            self.fold = fold or bool(group["fold"])
            part = self.alternatives()
            self.fold = fold
            if not self.take(")"):
                self.refuse("an open group")
            if not group["look"]:
                return part
            if part[0] != "one":
                self.refuse("a lookahead at more than one character")
            return ("ahead", part[1], group["look"] == "=")
        if self.take("$") or self.take(r"\Z"):
            return ("end",)
        found = self.take(_SET) or self.take(_ESCAPE)
        if found:
            source = found[0]
        elif (char := self.text[self.at]) in r"\[(^*+?{":
            self.refuse(f"{self.text[self.at : self.at + 3]!r}")
        else:
            source = "." if char == "." else regex.escape(char)
            self.at += 1
        return ("one", f"(?i:{source})" if self.fold else source)


def _takes_newlines(part: Part) -> bool:
    return part[0] == "repeat" and part[3] is None and part[1][0] == "one" and bool(regex.fullmatch(part[1][1], "\n"))


def _may_be_empty(part: Part) -> bool:
    match part:
        case ("one", *_):
            return False
        case ("all", parts):
            return all(map(_may_be_empty, parts))
        case ("any", parts):
            return any(map(_may_be_empty, parts))
        case ("repeat", inner, least, *_):
            return least == 0 or _may_be_empty(inner)
    return True


# ─── Compiling ────────────────────────────────────────────────────────────────────────────────────────────────────────

# A program for a machine with ordered threads (Pike's, as Cox describes it in "Regular Expression Matching: the Virtual
# Machine Approach"): ("one", atom) takes a character; ("ahead", atom, wanted) looks at the next, where None is the end
# of the text; ("split", first, second) goes on at both, preferring the first; ("match",).
Step = tuple


class _Program(NamedTuple):
    steps: list[Step]
    atoms: dict[str, int]  # what the one-character parts match, as regular expressions -> their numbers
    possessive: list[tuple[int, int]]  # (atom, the step behind it) of possessive quantifiers


def _translate(part: Part) -> _Program:
    program = _Program([], {}, [])
    _append(part, program)
    program.steps.append(("match",))
    return program


def _append(part: Part, program: _Program) -> None:
    steps, atoms, possessive = program
    if len(steps) > 2000:
        raise Unsupported("a pattern of more than 2,000 steps")
    match part:
        case ("one", source):
            steps.append(("one", atoms.setdefault(source, len(atoms))))
        case ("ahead", source, wanted):
            steps.append(("ahead", atoms.setdefault(source, len(atoms)), wanted))
        case ("end",):
            steps.append(("ahead", None, True))
        case ("all", parts):
            for inner in parts:
                _append(inner, program)
        case ("any", parts):
            ends = []
            for inner in parts[:-1]:
                fork = len(steps)
                steps.append(())
                _append(inner, program)
                ends.append(len(steps))
                steps.append(())
                steps[fork] = ("split", fork + 1, len(steps))
            _append(parts[-1], program)
            for end in ends:
                steps[end] = ("split", len(steps), len(steps))
        case ("repeat", inner, least, most, lazy, is_possessive):
            for _ in range(least):
                _append(inner, program)
            forks = []
            for _ in range(1 if most is None else most - least):
                forks.append(len(steps))
                steps.append(())
                _append(inner, program)
            if most is None:
                steps.append(("split", forks[0], forks[0]))
            for fork in forks:
                steps[fork] = ("split", len(steps), fork + 1) if lazy else ("split", fork + 1, len(steps))
            if is_possessive:
                possessive.append((atoms[inner[1]], len(steps)))


CODE_POINTS = 0x110000
NOT_UTF8 = 0xDC80  # bytes that are not UTF-8 are matched as the lone surrogates that Python makes of them


@functools.lru_cache(maxsize=256)
def _matching(source: str) -> np.ndarray:
    """Which code points a one-character expression matches, bool[0x110000]. We ask `regex`: its Unicode is ours."""
    found = np.zeros(CODE_POINTS, bool)
    for match in regex.finditer(f"(?:{source})+", _all_characters()):
        found[match.start() : match.end()] = True
    return found


@functools.lru_cache(maxsize=1)
def _all_characters() -> str:
    return "".join(map(chr, range(CODE_POINTS)))


class _Machine:
    """The deterministic machine of a pattern over classes of code points.

    A state is what is left of the pattern: the threads of the program in their order, those below a match cut off. So
    the last match seen before the state is empty is the one that Perl's leftmost-first rule chooses. A match is seen
    when the class of the next character is known, or the end of the text (class C): lookaheads are decided by then.
    """

    def __init__(self, program: _Program):
        self.steps = program.steps
        bits = np.zeros(CODE_POINTS, np.uint64)
        for source in program.atoms:
            bits = bits * np.uint64(2) + _matching(source)
        if len(program.atoms) > 60:
            raise Unsupported("more than 60 kinds of characters")
        bits[0xD800:0xE000] = bits[NOT_UTF8]  # of surrogates, none is in a text but those that stand for bytes
        starts = np.flatnonzero(np.append(True, bits[1:] != bits[:-1]))  # runs of equal code points are few
        _, run_of_class, class_of_run = np.unique(bits[starts], return_index=True, return_inverse=True)
        self.n_classes = len(run_of_class)
        if self.n_classes > 250:
            raise Unsupported("more than 250 classes of characters")
        self.class_of = np.repeat(class_of_run.astype(np.uint8), np.diff(np.append(starts, CODE_POINTS)))
        example = starts[run_of_class]
        self.takes = np.array([_matching(source)[example] for source in program.atoms]).reshape(-1, self.n_classes)
        self.ids: dict[tuple, int] = {(0,): 0}
        self.next = functools.lru_cache(maxsize=None)(self._next)
        for atom, behind in program.possessive:
            self._check_possessive(atom, behind)

    def _next(self, state: tuple[int, ...], char_class: int) -> tuple[bool, tuple[int, ...]]:
        """Whether a match ends before a character of this class, and the state behind it."""
        seen: set[int] = set()
        after: dict[int, None] = {}
        waiting = list(reversed(state))
        is_end = char_class == self.n_classes
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            match self.steps[at]:
                case ("match",):
                    return True, tuple(after)
                case ("one", atom):
                    if not is_end and self.takes[atom, char_class]:
                        after[at + 1] = None
                case ("ahead", atom, wanted):
                    holds = is_end if atom is None else (not is_end and bool(self.takes[atom, char_class])) == wanted
                    if holds:
                        waiting.append(at + 1)
                case ("split", first, second):
                    waiting += (second, first)
        return False, tuple(after)

    def _check_possessive(self, atom: int, behind: int) -> None:
        """A possessive quantifier is the same as a greedy one if what follows can never use a character given back."""
        goes_on = any(self.next((behind,), c) != (False, ()) for c in np.flatnonzero(self.takes[atom]).tolist())
        if goes_on and not self._always_matches(behind):
            raise Unsupported("a possessive quantifier that changes the result")

    def _always_matches(self, at: int) -> bool:
        """The pattern may end here, whatever follows."""
        match self.steps[at]:
            case ("match",):
                return True
            case ("split", first, second):
                return any(self._always_matches(step) for step in (first, second) if step > at)
        return False

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """`after` and `matches` of a Scanner, for all states, which get numbers; 0 is the first."""
        after, matches = [], []
        states = [(0,)]
        for state in states:
            row = [self.next(state, c) for c in range(self.n_classes + 1)]
            for _, then in row:
                if then and then not in self.ids:
                    self.ids[then] = len(states)
                    states.append(then)
            if len(states) > 5000:
                raise Unsupported("a pattern of more than 5,000 states")
            after.append([self.ids.get(then, -1) for _, then in row])
            matches.append([matched for matched, _ in row])
        return np.array(after, np.int16), np.array(matches, np.bool_)


class Scanner(NamedTuple):
    """A pattern, compiled. D states, C classes of characters (class C is the end of the text), R rows of the table.

    The table is a machine over bytes. Its state is a row; entry row * 256 + byte has the next row in the bits of ROW,
    and in those of END how many bytes back, counted from behind this byte, a pretoken ends, if one does. So it runs
    over the text without ever going back. The bits of LOOK are for what is rare: how many bytes back a second pretoken
    ends; ASK, a pretoken has ended where the table cannot say, but the other arrays can; NOT_TEXT, this is not UTF-8.
    """

    table: np.ndarray  # uint32[R * 256]
    n_states: int  # the first rows; in those behind them a character is not complete
    class_of: np.ndarray  # uint8[0x110000]      code point -> class
    after: np.ndarray  # int16[D, C + 1]         state, class -> state, or -1
    matches: np.ndarray  # bool[D, C + 1]        state, class -> the pattern has matched before this character
    safe: np.ndarray  # bool[C, C]               between such characters a text may be cut, whatever else there is


ROW, ENDS, END = 0xFFFFFF00, 0xFF, 0x1F
LOOK = 0xE0
ASK, NOT_TEXT = 7 << 5, 6 << 5
FARTHEST, NEAR = 31, 5
LONGEST_RUN = 17  # bytes that a state remembers: lines of code that are indented by up to 16 spaces need no ASK
PADDING = 16  # bytes behind a text that kernels may read, though not use
REPLACED = 0xFF  # a byte that is never in UTF-8 stands for each byte that is not; the table knows it as a character


def _compile(text: str) -> Scanner:
    """Compile a pattern; raises Unsupported where that cannot be done exactly."""
    machine = _Machine(_translate(_Parser(text).parse()))
    after, matches = machine.tables()
    if matches[0].any():
        raise Unsupported("it matches the empty string before some characters")
    code_points = np.arange(CODE_POINTS)
    sizes = 1 + (code_points >= 0x80) + (code_points >= 0x800) + (code_points >= 0x10000)
    is_text = (code_points < 0xD800) | (code_points >= 0xE000)
    kinds = np.flatnonzero(np.bincount(machine.class_of[is_text] * np.int64(8) + sizes[is_text]))
    unknown = int(machine.class_of[NOT_UTF8])
    letters = sorted({*((int(kind) >> 3, int(kind) & 7) for kind in kinds), (unknown, 1)})
    entries = _fuse(after, matches, letters)
    table = _byte_table(entries, letters, machine.class_of, unknown)
    return Scanner(table, len(entries), machine.class_of, after, matches, _safe_pairs(after, matches))


def _safe_pairs(after: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Classes x, y such that every state behind an x has matched before a y, or at the end, and takes no y."""
    n = after.shape[1] - 1
    safe = np.zeros((n, n), np.bool_)
    for x in range(n):
        behind = np.unique(after[:, x])
        behind = behind[behind >= 0]
        if after[0, x] >= 0:
            safe[x] = (matches[behind, :n] & (after[behind, :n] < 0) & matches[behind, n:]).all(axis=0)
    return safe


def _fuse(after: np.ndarray, matches: np.ndarray, letters: list[tuple[int, int]]) -> np.ndarray:
    """A machine that goes on behind the end of a pretoken; entries as in Scanner's table, int64[states, letters].

    A letter is a class with a size in bytes. A state here is: a state of the pattern's machine; the letters read since
    the last match or, before a match, since the start, if they are all the same, or MANY; and whether it has matched,
    or not, or not and there are characters before it that the pattern leaves out.
    """
    MANY = ((-1, 0),)
    NEW, MATCHED, LEFT_OUT = range(3)

    def n_bytes(letters):
        return sum(size for _, size in letters)

    def feed(state, letter):
        """The state behind a letter, and how many bytes before its end pretokens end; None if that is not known."""
        at, pending, status = state
        then, matched = int(after[at, letter[0]]), bool(matches[at, letter[0]])
        if then >= 0 and not matched:
            pending = (*pending, letter)
            return (then, pending if len(set(pending)) == 1 and n_bytes(pending) < LONGEST_RUN else MANY, status), []
        if matched and (status != LEFT_OUT or pending != MANY):
            ends = [n_bytes(pending) + letter[1]] if status == LEFT_OUT else []
            return ((then, (letter,), MATCHED), ends) if then >= 0 else feed_all(NEW, (letter,), [*ends, letter[1]])
        if pending == MANY:
            return None
        if status == MATCHED:
            return feed_all(NEW, (*pending, letter), [n_bytes(pending) + letter[1]])
        return feed_all(LEFT_OUT, (*pending[1:], letter), []) if pending else ((0, (), LEFT_OUT), [])

    def feed_all(status, letters, ends):
        """Start afresh with these letters; add the ends of their pretokens to `ends`."""
        state = (0, (), status)
        for k, letter in enumerate(letters):
            result = feed(state, letter)
            if result is None:
                return None
            state, more = result
            ends += [end + n_bytes(letters[k + 1 :]) for end in more]
        return state, ends

    numbers = {(0, (), NEW): 0}
    states = list(numbers)
    entries = []
    for state in states:
        row = []
        for letter in letters:
            result = feed(state, letter)
            ends = [0] if result is None or not result[1] else result[1]
            if result is None or len(ends) > 2 or ends[0] > FARTHEST or (len(ends) == 2 and ends[1] > NEAR):
                row.append(ASK)
                continue
            if result[0] not in numbers:
                numbers[result[0]] = len(states)
                states.append(result[0])
            row.append(numbers[result[0]] << 8 | (ends[1] << 5 if len(ends) == 2 else 0) | ends[0])
        entries.append(row)
        if len(states) > 20_000:
            raise Unsupported("a pattern of more than 20,000 states")
    return _minimized(np.array(entries, np.int64).reshape(len(states), len(letters)))


def _minimized(entries: np.ndarray) -> np.ndarray:
    """The machine with equal states made one (Moore's refinement); state 0 stays the first."""
    then, ends = entries >> 8, entries & 0xFF
    _, group = np.unique(ends, axis=0, return_inverse=True)
    group, n_groups = group.reshape(-1), 0
    while group.max() + 1 > n_groups:
        n_groups = group.max() + 1
        _, group = np.unique(np.column_stack([group, group[then]]), axis=0, return_inverse=True)
        group = group.reshape(-1)
    _, first = np.unique(group, return_index=True)
    rank = np.empty(n_groups, np.int64)
    rank[np.argsort(first)] = np.arange(n_groups)
    return rank[group[then[np.sort(first)]]] << 8 | ends[np.sort(first)]


def _byte_table(entries: np.ndarray, letters: list[tuple[int, int]], class_of: np.ndarray, unknown: int) -> np.ndarray:
    """Spell the letters as UTF-8: a row for each state, and rows for what may follow a first, second and third byte."""
    column = np.zeros((5, int(class_of.max()) + 1), np.int64)  # by size and class
    for k, (char_class, size) in enumerate(letters):
        column[size, char_class] = k
    blocks, block_of = np.unique(class_of.reshape(-1, 64), axis=0, return_inverse=True)  # what a last byte decides
    block_of = block_of.reshape(-1)
    n = len(entries)
    rows = [np.full(256, NOT_TEXT, np.uint32) for _ in range(n)]
    known: dict[bytes, int] = {}

    def row_of(continued: np.ndarray) -> int:
        """An entry that leads to the row with these entries, uint32[64], for the bytes 0x80 to 0xBF."""
        number = known.setdefault(continued.tobytes(), len(rows))
        if number == len(rows):
            rows.append(np.full(256, NOT_TEXT, np.uint32))
            rows[number][0x80:0xC0] = continued
        return number << 8

    ranges = {2: slice(0x2, 0x20), 3: slice(0x20, 0x400), 4: slice(0x400, 0x4400)}  # of blocks, by size of characters
    used = {size: np.unique(block_of[blocks_of], return_inverse=True) for size, blocks_of in ranges.items()}

    def spell(of_letter: np.ndarray, size: int) -> np.ndarray:
        """Entries for all blocks of 64 characters that have so many bytes."""
        different, which = used[size]
        return np.array([row_of(of_letter[column[size, blocks[b]]]) for b in different], np.uint32)[which]

    for row, of_letter in zip(rows[:n], entries.astype(np.uint32), strict=True):
        row[:0x80] = of_letter[column[1, class_of[:0x80]]]
        row[REPLACED] = of_letter[column[1, unknown]]
        row[0xC2:0xE0] = spell(of_letter, 2)
        three = np.full(0x400, NOT_TEXT, np.uint32)
        three[ranges[3]] = spell(of_letter, 3)
        three[0x360:0x380] = NOT_TEXT  # surrogates
        row[0xE0:0xF0] = [row_of(three[k : k + 64]) for k in range(0, 0x400, 64)]
        four = np.full(0x5000, NOT_TEXT, np.uint32)
        four[ranges[4]] = spell(of_letter, 4)
        for lead in range(5):
            thirds = four[0x1000 * lead : 0x1000 * (lead + 1)].reshape(64, 64)
            row[0xF0 + lead] = row_of(
                np.array([row_of(third) if third[0] != NOT_TEXT else NOT_TEXT for third in thirds], np.uint32)
            )
    if len(rows) >= 1 << 24:
        raise Unsupported("a table of more than 16 million rows")
    return np.concatenate(rows)


# ─── Scanning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel
def _char_size(text, at, stop):
    """How many bytes the character at this place has; text is UTF-8, or has REPLACED where it is not."""
    lead = text[at]
    return min(stop - at, 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)) if lead != REPLACED else 1


@kernel
def _char_class(text, at, size, class_of):
    if size == 1:
        return class_of[text[at]] if text[at] < 0x80 else class_of[NOT_UTF8]
    code_point = np.int64(text[at]) & (0x7F >> size)
    for k in range(1, size):
        code_point = code_point << 6 | (np.int64(text[at + k]) & 0x3F)
    return class_of[min(code_point, CODE_POINTS - 1)]


@kernel
def _match(text, start, stop, class_of, after, matches):
    """Where the match that begins at `start` ends; `start` if there is none. The definition, a character at a time."""
    at, state, end = start, np.int64(0), start
    while at < stop:
        if text[at] < 0x80:
            size, char_class = 1, np.int64(class_of[text[at]])
        else:
            size = _char_size(text, at, stop)
            char_class = np.int64(_char_class(text, at, size, class_of))
        if matches[state, char_class]:
            end = at
        state = np.int64(after[state, char_class])
        if state < 0:
            return end
        at += size
    return at if matches[state, after.shape[1] - 1] else end


@kernel
def _pretoken_end(text, start, stop, class_of, after, matches):
    """Where the pretoken that begins at `start` ends: a match, or what lies before the next one."""
    end = _match(text, start, stop, class_of, after, matches)
    at = start
    while end == at < stop:
        at += _char_size(text, at, stop)
        if at < stop and _match(text, at, stop, class_of, after, matches) > at:
            return at
        end = at
    return end


LANES = 4  # cursors; one alone waits for its load most of the time, and makes 530 MB/s; four in one loop 1,150
LANE = 1 << 13  # bytes that each of them scans in one go: the ends stay in the second cache
SHORT_LANE = 256  # bytes for which it is worth while
ENOUGH = LANES * LANE  # ends that a cursor finds before it waits for them to be taken


class _Cursors(NamedTuple):
    """K cursors. Cursor k has read up to at[k], and found that pretokens end at ends[k, : filled[k]]."""

    begin: np.ndarray  # int64[K]      where its first pretoken begins
    at: np.ndarray  # int64[K]
    entry: np.ndarray  # uint32[K]     the entry of the table that led here
    filled: np.ndarray  # int64[K]
    ends: np.ndarray  # int64[K, …]


def _new_cursors(n_bytes: int = 1 << 30) -> _Cursors:
    """Cursors for a text of so many bytes."""
    begin, at, filled = np.zeros((3, LANES), np.int64)
    ends = np.zeros((LANES, min(n_bytes + 64, 2 * ENOUGH)), np.int64)
    return _Cursors(begin, at, np.zeros(LANES, np.uint32), filled, ends)


@kernel
def _settle(k, text, stop, scanner, cursors):
    """The table asks at text[at - 1]: find the ends before `at` by the definition, and catch up with the table.

    If the pretoken there goes on behind `at`, as what the pattern leaves out can do, cursor k is moved to its end.
    """
    table, _, class_of, after, matches, _ = scanner
    ends, n, at = cursors.ends[k], cursors.filled[k], cursors.at[k]
    start = ends[n - 1] if n else cursors.begin[k]
    entry, p = np.uint32(ASK), start
    while n < ENOUGH:
        if entry & np.uint32(LOOK) == np.uint32(ASK):
            start = p = _pretoken_end(text, start, stop, class_of, after, matches)
            ends[n] = start
            n += 1
            entry = np.uint32(0)
        elif entry & np.uint32(ENDS):
            start = p - np.int64(entry & np.uint32(END))
            ends[n] = start
            n += 1
            second = np.int64(entry & np.uint32(LOOK)) >> 5
            if second:
                start = p - second
                ends[n] = start
                n += 1
        if p >= at:
            break
        entry = table[np.uint64(entry & np.uint32(ROW)) | np.uint64(text[p])]
        p += 1
    if entry & np.uint32(LOOK) == np.uint32(ASK):  # there are ENOUGH
        entry, p = np.uint32(0), start
    cursors.at[k], cursors.entry[k], cursors.filled[k] = p, entry & np.uint32(ROW), n


@kernel
def _handle(k, text, stop, scanner, cursors):
    """Do for cursor k what the upper bits of its entry say; returns False if the text is not UTF-8 before it."""
    entry = cursors.entry[k]
    high = entry & np.uint32(LOOK)
    if high == np.uint32(ASK):
        _settle(k, text, stop, scanner, cursors)
    elif high == np.uint32(NOT_TEXT):
        return False
    elif high:
        cursors.ends[k, cursors.filled[k]] = cursors.at[k] - np.int64(entry & np.uint32(END))
        cursors.filled[k] += 1
        cursors.entry[k] = (entry & np.uint32(ROW)) | (high >> np.uint32(5))
    return True


@kernel
def _advance(k, text, until, stop, scanner, cursors):
    """Move cursor k to `until`, or beyond, or until it has ENOUGH ends; returns False if the text is not UTF-8."""
    table, ends = scanner.table, cursors.ends[k]
    while cursors.at[k] < until and cursors.filled[k] < ENOUGH:
        at, entry, n = (np.uint64(cursors.at[k]), cursors.entry[k], np.uint64(cursors.filled[k]))
        for _ in range(min(until - cursors.at[k], ENOUGH)):
            entry = table[np.uint64(entry & np.uint32(ROW)) | np.uint64(text[at])]
            at += np.uint64(1)
            if entry & np.uint32(LOOK):
                break
            back = np.uint64(entry & np.uint32(END))
            ends[n] = at - back
            n += np.uint64(back != 0)
        cursors.at[k], cursors.entry[k], cursors.filled[k] = at, entry, n
        if entry & np.uint32(LOOK):
            if not _handle(k, text, stop, scanner, cursors):
                return False
            back = np.int64(cursors.entry[k] & np.uint32(END))
            if back:
                ends[cursors.filled[k]] = cursors.at[k] - back
                cursors.filled[k] += 1
    return True


@kernel
def _run_lanes(text, count, table, cursors):
    """Move all cursors over `count` bytes each, all in one loop, or up to where `_handle` has to look.

    Returns how many bytes are left. Every cursor writes an end at every byte, and keeps it if the table says so: no
    branch is taken but where two pretokens end.
    """
    at, entry, filled, room = (cursors.at, cursors.entry, cursors.filled, cursors.ends.shape[1])
    ends = cursors.ends.reshape(-1)  # one array and one index spare registers
    p0, p1, p2, p3 = (np.uint64(at[0]), np.uint64(at[1]), np.uint64(at[2]), np.uint64(at[3]))
    n0, n1 = np.uint64(filled[0]), np.uint64(filled[1] + room)
    n2, n3 = np.uint64(filled[2] + 2 * room), np.uint64(filled[3] + 3 * room)
    e0, e1, e2, e3 = entry[0], entry[1], entry[2], entry[3]
    row, low, high, zero = np.uint32(ROW), np.uint32(END), np.uint32(LOOK), np.uint32(0)
    one, five = np.uint64(1), np.uint32(5)
    i, stop = np.uint64(0), np.uint64(count)
    while i < stop:
        e0 = table[np.uint64(e0 & row) | np.uint64(text[p0 + i])]
        e1 = table[np.uint64(e1 & row) | np.uint64(text[p1 + i])]
        e2 = table[np.uint64(e2 & row) | np.uint64(text[p2 + i])]
        e3 = table[np.uint64(e3 & row) | np.uint64(text[p3 + i])]
        i += np.uint64(1)
        if (e0 | e1 | e2 | e3) & high:
            if (e0 | e1 | e2 | e3) & high >= np.uint32(NOT_TEXT):
                break
            if e0 & high:
                ends[n0], n0, e0 = (p0 + i - np.uint64(e0 & low), n0 + one, (e0 & row) | (e0 & high) >> five)
            if e1 & high:
                ends[n1], n1, e1 = (p1 + i - np.uint64(e1 & low), n1 + one, (e1 & row) | (e1 & high) >> five)
            if e2 & high:
                ends[n2], n2, e2 = (p2 + i - np.uint64(e2 & low), n2 + one, (e2 & row) | (e2 & high) >> five)
            if e3 & high:
                ends[n3], n3, e3 = (p3 + i - np.uint64(e3 & low), n3 + one, (e3 & row) | (e3 & high) >> five)
        ends[n0] = p0 + i - np.uint64(e0 & low)
        ends[n1] = p1 + i - np.uint64(e1 & low)
        ends[n2] = p2 + i - np.uint64(e2 & low)
        ends[n3] = p3 + i - np.uint64(e3 & low)
        n0, n1 = n0 + np.uint64(e0 & low != zero), n1 + np.uint64(e1 & low != zero)
        n2, n3 = n2 + np.uint64(e2 & low != zero), n3 + np.uint64(e3 & low != zero)
    at[0], at[1], at[2], at[3] = p0 + i, p1 + i, p2 + i, p3 + i
    entry[0], entry[1], entry[2], entry[3] = e0, e1, e2, e3
    filled[0], filled[1] = n0, n1 - np.uint64(room)
    filled[2], filled[3] = n2 - np.uint64(2 * room), n3 - np.uint64(3 * room)
    return count - np.int64(i)


@kernel
def _scan_lanes(text, lane, stop, scanner, cursors):
    """Move all cursors over so many bytes each, or fewer; returns False if the text is not UTF-8."""
    at, entry, filled = cursors.at, cursors.entry, cursors.filled
    left, moved = lane, False
    while left > 0 and not moved:
        left = _run_lanes(text, left, scanner.table, cursors)
        if (entry[0] | entry[1] | entry[2] | entry[3]) & np.uint32(LOOK):
            for k in range(LANES):
                if entry[k] & np.uint32(LOOK):
                    before = at[k]
                    if not _handle(k, text, stop, scanner, cursors):
                        return False
                    moved = moved or at[k] != before
                back = np.int64(entry[k] & np.uint32(END))
                if back:
                    cursors.ends[k, filled[k]] = at[k] - back
                    filled[k] += 1
    return True


@kernel
def _place_lanes(text, lane, cursors):
    """Put the other cursors so many bytes apart behind cursor 0, as if a pretoken began there."""
    for k in range(1, LANES):
        at = cursors.at[0] + k * lane
        while text[at] & 0xC0 == 0x80 and at < cursors.at[0] + k * lane + 3:
            at += 1
        cursors.begin[k] = cursors.at[k] = at
        cursors.entry[k] = cursors.filled[k] = 0


@kernel
def _take_lane(k, text, stop, scanner, cursors):
    """Take over the ends of cursor k from where they agree with those of cursor 0, which moves on until they do.

    Where both say that a pretoken ends, they agree from there on: what follows depends on the text behind it alone.
    So cursors may start anywhere, with any pattern; most agree after a word or two.
    """
    ends, at, filled, theirs = (cursors.ends[0], cursors.at, cursors.filled, cursors.ends[k])
    mine, i, burst = filled[0] - 1, 0, 32
    while True:
        while mine < filled[0]:
            end = ends[mine] if mine >= 0 else cursors.begin[0]
            while i < filled[k] and theirs[i] < end:
                i += 1
            agreed = i < filled[k] and theirs[i] == end
            if agreed or end == cursors.begin[k]:
                mine += 1
                i += agreed
                for j in range(filled[k] - i):
                    ends[mine + j] = theirs[i + j]
                at[0], cursors.entry[0], filled[0] = (at[k], cursors.entry[k], mine + filled[k] - i)
                return True
            mine += 1
        if at[0] >= at[k] or filled[0] >= ENOUGH:
            return True
        if not _advance(0, text, min(at[0] + burst, at[k]), stop, scanner, cursors):
            return False
        burst *= 2


@kernel
def _scan_some(text, stop, scanner, cursors):
    """Go on with the text, some LANES * LANE bytes, or to its end. The new ends are those of cursor 0.

    Returns whether there is more to do: 1, 0, or -1 if the text is not UTF-8.
    """
    if cursors.filled[0]:
        cursors.begin[0] = cursors.ends[0, cursors.filled[0] - 1]
        cursors.filled[0] = 0
    lane = min(LANE, (stop - cursors.at[0] - 8) // LANES)
    if lane >= SHORT_LANE:
        _place_lanes(text, lane, cursors)
        if not _scan_lanes(text, lane, stop, scanner, cursors):
            return -1
        for k in range(1, LANES):
            if (
                cursors.filled[0] < ENOUGH
                and cursors.at[k] > cursors.at[0]
                and not _take_lane(k, text, stop, scanner, cursors)
            ):
                return -1
        return 1
    if not _advance(0, text, stop, stop, scanner, cursors):
        return -1
    if cursors.at[0] < stop:
        return 1
    if np.int64(cursors.entry[0] >> np.uint32(8)) >= scanner.n_states:
        return -1
    n = cursors.filled[0]
    last = cursors.ends[0, n - 1] if n else cursors.begin[0]
    while last < stop and n < ENOUGH:
        last = _pretoken_end(text, last, stop, scanner.class_of, scanner.after, scanner.matches)
        cursors.ends[0, n] = last
        n += 1
    cursors.filled[0] = n
    return 1 if last < stop else 0


@kernel
def _begin_scan(start, cursors):
    cursors.begin[0] = cursors.at[0] = start
    cursors.entry[0] = cursors.filled[0] = 0


@kernel
def _scan(text, start, stop, scanner, cursors, ends):
    """Write where the pretokens of text[start : stop] end; returns their number, or -1 if the text is not UTF-8."""
    _begin_scan(start, cursors)
    n = 0
    while True:
        more = _scan_some(text, stop, scanner, cursors)
        if more < 0:
            return -1
        for k in range(cursors.filled[0]):
            ends[n + k] = cursors.ends[0, k]
        n += cursors.filled[0]
        if more == 0:
            return n


@kernel
def _replace_invalid(text, stop):
    """Write REPLACED over each byte of text[: stop] that is not part of a character in UTF-8."""
    at = 0
    while at < stop:
        if at + 8 <= stop and not load8(text, at) & np.uint64(0x8080808080808080):
            at += 8
            continue
        lead = text[at]
        size = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
        valid = lead < 0x80 or (0xC2 <= lead <= 0xF4 and at + size <= stop)
        if valid and size > 1:
            # no longer than need be, no surrogate, no more than U+10FFFF: the second byte tells
            least = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
            most = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
            valid = least <= text[at + 1] <= most
            for k in range(2, size):
                valid = valid and text[at + k] & 0xC0 == 0x80
        if not valid:
            text[at] = REPLACED
            size = 1
        at += size


class Pattern:
    """A pretokenizing pattern: a name in PATTERNS, or a regular expression, compiled if it can be.

    `scanner` is None where it cannot be, and the `regex` package is used; `remark` says why, or warns of slow patterns.

    >>> Pattern("gpt2").split(b"Hello  world!")
    [b'Hello', b' ', b' world', b'!']
    >>> Pattern(r"[a-z]+").split(b"ab12cd")  # what the pattern leaves out is kept
    [b'ab', b'12', b'cd']
    """

    def __init__(self, name_or_regex: str | Sequence[str] = "gpt2"):
        """Raises ValueError if a regular expression does not compile or matches the empty string.

        Of several, each cuts what those before it have left together.
        """
        self.chain: list[Pattern] = []
        if not isinstance(name_or_regex, str):
            self.chain = [Pattern(text) for text in name_or_regex]
            self.text, self.name, self.scanner = tuple(pattern.text for pattern in self.chain), None, None
            self.remark = "several patterns are applied one by one, which is some 50 times slower than one"
            return
        self.text = PATTERNS.get(name_or_regex, name_or_regex)
        self.name = next((name for name, text in PATTERNS.items() if text == self.text), None)
        if regex.fullmatch(r"[A-Za-z][A-Za-z\d_-]+", self.text):
            raise BadInput(
                f"no pattern is named {self.text!r}; there are {', '.join(PATTERNS)}, or a regular expression"
            )
        try:
            self.regex = regex.compile(self.text)
        except regex.error as error:
            where = "" if error.pos is None else f" at position {error.pos}"
            raise BadInput(f"the pattern {self.text!r} does not compile: {error.msg}{where}") from None
        if self.regex.fullmatch(""):
            raise BadInput(f"the pattern {self.text!r} matches the empty string; a pretoken has at least one character")
        self.scanner, self.remark = _compiled(self.text)
        if self.scanner and not self.scanner.matches.any():
            raise BadInput(f"the pattern {self.text!r} matches nothing")

    def __reduce__(self):
        return Pattern, (self.text,)

    def split(self, data: bytes) -> list[bytes]:
        """Cut bytes into pretokens; joined, they are the bytes. What is not UTF-8 is matched as lone surrogates."""
        if self.chain:
            words = [data] if data else []
            for pattern in self.chain:
                words = [part for word in words for part in pattern.split(word)]
            return words
        if self.scanner is None:
            return self._split_by_regex(data)
        ends = self.ends(data).tolist()
        return [data[start:end] for start, end in itertools.pairwise([0, *ends])]

    def ends(self, data: bytes) -> np.ndarray:
        """Where the pretokens of a text end; int64. The pattern must have been compiled."""
        ends = np.empty(len(data) + 1, np.int64)
        cursors = _new_cursors(len(data))
        text = _padded(data)
        n = _scan(text, 0, len(data), self.scanner, cursors, ends)
        if n < 0:
            n = _scan(_as_utf8(text), 0, len(data), self.scanner, cursors, ends)
        return ends[:n]

    def _split_by_regex(self, data: bytes) -> list[bytes]:
        text = data.decode("utf-8", "surrogateescape")
        found, end = [], 0
        for match in self.regex.finditer(text):
            found += filter(None, (text[end : match.start()], match[0]))
            end = match.end()
        return [word.encode("utf-8", "surrogateescape") for word in (*found, text[end:]) if word]

    def cuts(self, text: str) -> np.ndarray:
        """Where a text may be cut without changing a pretoken, as far as the pattern alone can tell; int64."""
        if self.scanner is None:
            return np.zeros(0, np.int64)
        code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        classes = self.scanner.class_of[code_points]
        return np.flatnonzero(self.scanner.safe[classes[:-1], classes[1:]]) + 1

    def last_cut(self, text: str, start: int, stop: int) -> int:
        """The last of `cuts` between two indices, or 0; looked for near the end first."""
        reach = 1 << 10
        while stop > start:
            window = max(start, stop - reach)
            cuts = self.cuts(text[window:stop])
            if len(cuts) or window == start:
                return window + int(cuts[-1]) if len(cuts) else 0
            reach *= 4
        return 0


def _scanner_of(text: str) -> Scanner:
    """What `_compile` gives; for a named pattern from a file beside Numba's cache, which spares some 0.5 s."""
    name = next((name for name, known in PATTERNS.items() if known == text), None)
    if name is None:
        return _compile(text)
    source = Path(__file__)
    told = repr((text, regex.__version__, np.__version__, sys.byteorder)).encode() + source.read_bytes()
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or source.with_name("__pycache__"))
    path = folder / f"pattern.{name}.{hashlib.sha256(told).hexdigest()[:32]}.npz"
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(path) as known:
        return Scanner(**{field: known[field] for field in Scanner._fields} | {"n_states": int(known["n_states"])})
    scanner = _compile(text)
    with contextlib.suppress(OSError, BadInput):
        for outdated in folder.glob(f"pattern.{name}.*.npz"):
            outdated.unlink(missing_ok=True)
        with _replacing(path) as file:
            np.savez(file, **scanner._asdict())
    return scanner


@functools.lru_cache(maxsize=16)
def _compiled(text: str) -> tuple[Scanner | None, str]:
    """The scanner of a pattern, or None; and what its user should know."""
    try:
        scanner = _scanner_of(text)
    except Unsupported as error:
        return None, f"the pattern is left to the `regex` package, which is some 50 times slower: {error}"
    char_class = _costs_the_square(scanner)
    if char_class is None:
        return scanner, ""
    example = chr(int(np.flatnonzero(scanner.class_of == char_class)[0])) * 3
    return scanner, f"the pattern reads text like {example + '…'!r} again and again: n bytes of it can take n² steps"


def _costs_the_square(scanner: Scanner) -> int | None:
    """A class of characters of which a run goes on and on without a match: it is given back, and read again."""
    for c in range(scanner.after.shape[1] - 1):
        run, state = [], 0
        while state >= 0 and state not in run:
            run.append(state)
            state = int(scanner.after[state, c])
        if state >= 0 and not scanner.matches[run[run.index(state) :], c].any():
            return c
    return None


def _as_utf8(text: np.ndarray) -> np.ndarray:
    """A copy of a text and its PADDING with REPLACED for each byte that is not UTF-8."""
    shown = text.copy()
    _replace_invalid(shown, len(shown) - PADDING)
    return shown


def _padded(data: bytes | np.ndarray) -> np.ndarray:
    """A copy as uint8 with PADDING behind."""
    text = np.zeros(len(data) + PADDING, np.uint8)
    text[: len(data)] = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    return text


def _special_bytes(special_tokens: Iterable[str]) -> regex.Pattern | None:
    longest_first = sorted((token.encode() for token in special_tokens), key=len, reverse=True)
    return re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None


def _special_regex(special_tokens: Iterable[str]) -> regex.Pattern | None:
    """A pattern that finds special tokens, the longest first where several begin; None where there are none."""
    longest_first = sorted(special_tokens, key=len, reverse=True)
    return regex.compile("|".join(map(regex.escape, longest_first))) if longest_first else None


def _checked_specials(special_tokens: Iterable[str]) -> list[str]:
    if isinstance(special_tokens, str):
        raise BadInput(f"special tokens are a list of strings, not the one string {special_tokens!r}")
    special_tokens = list(special_tokens)
    for token in special_tokens:
        if not isinstance(token, str) or not token:
            raise BadInput(f"a special token is a string that is not empty, not {token!r}")
        if len(_to_bytes(token)) == 1:
            raise BadInput(f"the special token {token!r} is a single byte, which every vocabulary has already")
        if special_tokens.count(token) > 1:
            raise BadInput(f"the special token {token!r} is given twice")
    return special_tokens


# ─── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")  # what is taken from a folder
BLOCK = 1 << 22  # bytes of text in one piece of work
STDIN = Path("-")


def _to_text(data: bytes) -> str:
    """Bytes as text. A byte that is not UTF-8 becomes a lone surrogate, which `_to_bytes` turns back into the byte."""
    return data.decode("utf-8", "surrogateescape")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _surrogate(error: UnicodeEncodeError) -> str:
    return (
        f"U+{ord(error.object[error.start]):04X} at index {error.start} of the text is half a surrogate pair, not text"
    )


def _decoded(chunks: Iterable[str | bytes]) -> Iterator[str]:
    """Chunks of text or of bytes as text, cut between characters; raises ValueError for a lone surrogate in a text."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for chunk in chunks:
        if isinstance(chunk, str):
            try:
                chunk.encode()
            except UnicodeEncodeError as error:
                raise BadInput(_surrogate(error)) from None
            yield chunk
        else:
            yield decoder.decode(chunk)
    yield decoder.decode(b"", True)


def standard_library() -> list[Path]:
    """The sources of Python's standard library, without what is installed beside it, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    apart = {"site-packages", "dist-packages", "__pycache__"}
    files = sorted(path for path in root.rglob("*.py") if apart.isdisjoint(path.relative_to(root).parts))
    if not files:
        raise BadInput(f"this Python has no sources in {root}: name a file to train on")
    return files


def find_files(inputs: Iterable[str | os.PathLike]) -> list[Path]:
    """Expand files, folders, globs and "-" (standard input) to files; raises ValueError for what is not there.

    From folders, at any depth, the files whose names end in one of SUFFIXES are taken, sorted.
    """
    files = []
    for given in map(os.fspath, inputs):
        path = Path(given)
        if given == "-" or path.is_file() or path.is_fifo():
            found = [path]
        elif path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
            if not found:
                raise BadInput(f"{given}: no file in this folder ends in {', '.join(SUFFIXES)}")
        else:
            found = sorted(Path(name) for name in glob.glob(given, recursive=True) if os.path.isfile(name))
            if not found:
                raise BadInput(f"{given}: no such file or folder, and no file matches it")
        files += found
    return files


@contextlib.contextmanager
def _opened(path: Path):
    """A file for reading bytes, uncompressed if it is a .gz; and the file on the disk, to ask how far it was read."""
    if path == STDIN:
        yield sys.stdin.buffer, None
        return
    with open(path, "rb") as raw:
        try:
            yield ((gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw), raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadInput(f"{path}: not a whole gzip file ({error})") from None


def _read(path: Path, by_line: bool, advance: Callable[[int], object]) -> Iterator[bytes]:
    """The bytes of a file, by lines or by blocks. `advance` hears how many were read from the disk."""
    with _opened(path) as (file, raw):
        position = 0
        for part in file if by_line else iter(lambda: file.read(BLOCK), b""):
            reached = raw.tell() if raw else position + len(part)
            advance(reached - position)
            position = reached
            yield part


def _json_texts(path: Path, lines: Iterable[bytes], text_field: str, first_line: int = 1) -> Iterator[bytes]:
    """The texts in some lines of a .jsonl file: one string in each line's object."""
    for number, line in enumerate(lines, first_line):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path}, line {number}: not JSON ({error})") from None
        text = record.get(text_field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise BadInput(f"{path}, line {number}: no text in the field {text_field!r} (--text-field names another)")
        try:
            yield text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"{path}, line {number}: {_surrogate(error)}") from None


def _is_json(path: Path, text_field: str | None) -> bool:
    """Whether a file has a text in each line; standard input has if a text field is named."""
    return path.name.endswith((".jsonl", ".jsonl.gz")) or (path == STDIN and text_field is not None)


def read_texts(
    files: Iterable[Path], text_field: str | None = None, advance: Callable[[int], object] = lambda n: None
) -> Iterator[Iterable[bytes]]:
    """The texts in the files, each as its chunks: a line of a .jsonl file, or the whole of any other file."""
    for path in files:
        if _is_json(path, text_field):
            yield from ([text] for text in _json_texts(path, _read(path, True, advance), text_field or "text"))
        else:
            yield _read(path, False, advance)


class Piece(NamedTuple):
    """Text that can be scanned on its own: a pretoken ends where it begins, and where it ends."""

    text: str
    is_special: bool = False


class Splitter:
    """Cuts a text that comes in chunks into pieces: special tokens, and the stretches between them.

    A long stretch is cut where the pattern allows it. The pretokens do not depend on the chunks.
    What waits for its end is a chunk or two where such cuts are found; where there are none, a whole document.

    >>> splitter = Splitter(Pattern("gpt2"), ["<|end|>"])
    >>> [piece.text for chunk in ("one<|e", "nd|>two") for piece in splitter.feed(chunk)] + splitter.close()
    ['one', '<|end|>', Piece(text='two', is_special=False)]
    """

    def __init__(self, pattern: Pattern, special_tokens: Iterable[str]):
        self.pattern = pattern
        self.special = _special_regex(special_tokens)
        self.longest = max(map(len, special_tokens), default=1)
        self._waiting: list[str] = []
        self._size = 0  # characters waiting
        self._enough = 1  # and how many are worth a look for a cut
        self.in_document = False  # what comes next goes on with what came last

    def feed(self, chunk: str) -> list[Piece]:
        """Take a chunk; returns the pieces that are certain by now."""
        self._waiting.append(chunk)
        self._size += len(chunk)
        return self._cut(final=False) if self._size >= self._enough else []

    def close(self) -> list[Piece]:
        """What was waiting. The text ends here, and the next chunk begins another."""
        pieces = self._cut(final=True)
        self.in_document = False
        return pieces

    def _cut(self, final: bool) -> list[Piece]:
        text = "".join(self._waiting)
        certain = len(text) if final else len(text) - self.longest + 1  # a special token may go on behind the chunk
        pieces, end = [], 0
        for match in self.special.finditer(text) if self.special else ():
            if match.start() >= certain:
                break
            pieces += self._stretch(text[end : match.start()])
            pieces.append(Piece(match[0], is_special=True))
            self.in_document = False
            end = match.end()
        cut = len(text) if final else self.pattern.last_cut(text, end, certain)
        if cut > end:
            pieces += self._stretch(text[end:cut])
            end = cut
        self._waiting, self._size = [text[end:]], len(text) - end
        self._enough = 2 * self._size  # text without cuts is looked through twice at most, not once a chunk
        return pieces

    def _stretch(self, text: str) -> list[Piece]:
        if not text:
            return []
        self.in_document = True
        return [Piece(text)]


class Block(NamedTuple):
    """Texts that can be scanned on their own: a part of a file, from one byte to another, or texts that were read."""

    path: Path
    start: int
    stop: int
    goes_on: bool = False  # with what stood between special tokens at the end of the block before
    ends: bool = True  # the text ends here; else it goes on in the next block
    texts: list[bytes] | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes on the disk."""
        return self.stop - self.start


def read_blocks(
    files: Iterable[Path], pattern: Pattern, special_tokens: Sequence[str] = (), text_field: str | None = None
) -> Iterator[Block]:
    """All texts in the files, in blocks that can be worked at in any order, of BLOCK bytes where that can be had."""
    for path in files:
        if path.is_file() and not path.name.endswith(".gz"):
            yield from _file_blocks(path, pattern, special_tokens)
        else:
            yield from _stream_blocks(path, pattern, special_tokens, text_field)


def _file_blocks(path: Path, pattern: Pattern, special_tokens: Sequence[str]) -> Iterator[Block]:
    """A file in parts: workers read their own."""
    start, size, goes_on = 0, path.stat().st_size, False
    while start < size:
        stop, next_goes_on = size, False
        if size - start > BLOCK + BLOCK // 2:
            with open(path, "rb") as file:
                file.seek(start + BLOCK)
                if _is_json(path, None):
                    file.readline()
                    stop = file.tell()
                else:
                    stop, next_goes_on = _find_cut(file, pattern, special_tokens)
        yield Block(path, start, stop, goes_on, stop == size or _is_json(path, None))
        start, goes_on = stop, next_goes_on


def _find_cut(file: IO[bytes], pattern: Pattern, special_tokens: Sequence[str]) -> tuple[int, bool]:
    """The next place in a file where it can be cut: behind a special token, or where the pattern allows it; or the end.

    Also returns whether a document goes on there. Where special tokens can overlap, what looks like one may be none.
    """
    longest = max(map(len, special_tokens), default=0)
    special = None if _can_overlap(special_tokens) else _special_regex(special_tokens)
    while (special or pattern.scanner) and (data := file.read(1 << 16)):
        text = _to_text(data)
        start = file.tell() - len(data)
        if special and (match := special.search(text)):
            return start + len(_to_bytes(text[: match.end()])), False
        for cut in pattern.cuts(text):
            near = text[max(0, cut - longest) : cut + longest]
            if longest + 4 < cut < len(text) - longest - 4 and not any(token in near for token in special_tokens):
                return start + len(_to_bytes(text[:cut])), True
        if len(data) < 1 << 16:
            break
        file.seek(-8 * (longest + 4), os.SEEK_CUR)
    return file.seek(0, os.SEEK_END), False


def _can_overlap(tokens: Sequence[str]) -> bool:
    """A token stands in another, or ends with what another, or itself, begins with."""
    return any(
        (a != b and a in b) or any(b.startswith(a[-n:]) for n in range(1, len(a))) for a in tokens for b in tokens
    )


def _stream_blocks(
    path: Path, pattern: Pattern, special_tokens: Sequence[str], text_field: str | None
) -> Iterator[Block]:
    """A file that can only be read from its beginning: here, and workers get the text."""
    position = taken = size = 0
    texts: list[bytes] = []

    def advance(n: int) -> None:
        nonlocal position
        position += n

    if _is_json(path, text_field):
        for text in _json_texts(path, _read(path, True, advance), text_field or "text"):
            texts.append(text)
            size += len(text)
            if size >= BLOCK:
                yield Block(path, taken, position, texts=texts)
                texts, taken, size = [], position, 0
        yield Block(path, taken, position, texts=texts)
        return
    splitter = Splitter(pattern, special_tokens)
    waiting = None  # for the next, to know whether it is the last
    for text in itertools.chain(_decoded(_read(path, False, advance)), [None]):
        goes_on = splitter.in_document
        pieces = splitter.close() if text is None else splitter.feed(text)
        if data := b"".join(_to_bytes(piece.text) for piece in pieces):
            if waiting:
                yield waiting
            waiting = Block(path, taken, position, goes_on, ends=False, texts=[data])
            taken = position
    if waiting:
        yield waiting._replace(stop=position, ends=True)


def _gathered(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Blocks in lists of BLOCK bytes or somewhat more, so that small files are not each a piece of work."""
    gathered: list[Block] = []
    size = 0
    for block in blocks:
        gathered.append(block)
        size += max(block.n_bytes, sum(map(len, block.texts or ())))
        if size >= BLOCK:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _size(files: Iterable[Path]) -> int | None:
    """Bytes on the disk, if known."""
    return None if STDIN in files else sum(path.stat().st_size for path in files)


def _progress_bar(name: str, total: int | None, unit: str, shown: bool) -> tqdm:
    """A bar on standard error; in a log file, a line now and then."""
    seldom = {} if sys.stderr.isatty() else {"mininterval": 10.0}
    return tqdm(total=total, desc=name, unit=unit, unit_scale=True, disable=not shown, **seldom)


# ─── Counting ─────────────────────────────────────────────────────────────────────────────────────────────────────────

ALL_ONES = np.uint64(2**64 - 1)
SHORT = 15  # bytes that fit two uint64, with their number in the last byte: words of a text are rarely longer


class Words(NamedTuple):
    """Words as a CSR array: word w is symbols[offsets[w] : offsets[w + 1]] and was seen counts[w] times."""

    symbols: np.ndarray  # int32[N]
    offsets: np.ndarray  # int64[W + 1]
    counts: np.ndarray  # int64[W]


class Counted(NamedTuple):
    """What was read, and how often each pretoken stood there."""

    words: Words
    n_documents: int

    @property
    def n_pretokens(self) -> int:
        return int(self.words.counts.sum())

    @property
    def n_bytes(self) -> int:
        """Bytes of text, without special tokens."""
        return int(np.dot(np.diff(self.words.offsets), self.words.counts))


class _Tally(NamedTuple):
    """Two hash tables with open addressing, half full at most: short words by their bytes, others by their place."""

    short: np.ndarray  # uint64[H, 4]   bytes 0 to 7; bytes 8 to 14 and the number of bytes; count; unused
    long: np.ndarray  # int64[J, 4]     where the word begins in `text`; how many bytes it has; count; hash
    text: np.ndarray  # uint8[…]        the long words, end to end, and PADDING
    used: np.ndarray  # int64[3]        entries of `short`, of `long`, bytes of `text`


def _new_tally() -> _Tally:
    return _Tally(
        np.zeros((1 << 16, 4), np.uint64),
        np.zeros((1 << 12, 4), np.int64),
        np.zeros(1 << 16, np.uint8),
        np.zeros(3, np.int64),
    )


@kernel
def _mixed(low, high):
    """A hash of two words of 64 bits, good in its upper bits."""
    x = (low ^ (high * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
    return (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)


@kernel
def _slot(hashed, size):
    return np.int64(hashed >> np.uint64(32)) & (size - 1)


@kernel
def _hash_bytes(text, start, size):
    hashed = np.uint64(size)
    for k in range(0, size - 7, 8):
        hashed = _mixed(hashed, load8(text, start + k))
    return _mixed(hashed, load8(text, start + size - 8))


@kernel
def _with_room_for_short(tally, n):
    """The tally with room for n more short words."""
    size = len(tally.short)
    if 2 * (tally.used[0] + n) <= size:
        return tally
    while 2 * (tally.used[0] + n) > size:
        size *= 2
    short = np.zeros((size, 4), np.uint64)
    for k in range(len(tally.short)):
        low, high, count = tally.short[k, 0], tally.short[k, 1], tally.short[k, 2]
        if high:
            slot = _slot(_mixed(low, high), size)
            while short[slot, 1]:
                slot = (slot + 1) & (size - 1)
            short[slot, 0], short[slot, 1], short[slot, 2] = low, high, count
    return _Tally(short, tally.long, tally.text, tally.used)


@kernel
def _with_room_for_long(tally, n, n_bytes):
    """The tally with room for n more long words of so many bytes."""
    long, text, used = tally.long, tally.text, tally.used
    size = len(long)
    while 2 * (used[1] + n) > size:
        size *= 2
    if size > len(long):
        long = np.zeros((size, 4), np.int64)
        for k in range(len(tally.long)):
            if tally.long[k, 1]:
                slot = _slot(np.uint64(tally.long[k, 3]), size)
                while long[slot, 1]:
                    slot = (slot + 1) & (size - 1)
                long[slot] = tally.long[k]
    if used[2] + n_bytes + PADDING > len(text):
        text = np.zeros(2 * (used[2] + n_bytes + PADDING), np.uint8)
        text[: used[2]] = tally.text[: used[2]]
    return _Tally(tally.short, long, text, used)


@kernel
def _count_long(text, start, ends, n, weights, tally, is_short):
    """Count the words of more than SHORT bytes among n words."""
    long, known, used = tally.long, tally.text, tally.used
    mask, one = len(long) - 1, len(weights) == 1
    for k in range(n):
        if is_short[k]:
            continue
        begin = ends[k - 1] if k else start
        size = ends[k] - begin
        hashed = np.int64(_hash_bytes(text, begin, size))
        slot = _slot(np.uint64(hashed), len(long))
        while long[slot, 1] and not (
            long[slot, 3] == hashed and long[slot, 1] == size and _same(text, begin, known, long[slot, 0], size)
        ):
            slot = (slot + 1) & mask
        if long[slot, 1] == 0:
            for i in range(size):
                known[used[2] + i] = text[begin + i]
            long[slot, 0], long[slot, 1], long[slot, 3] = used[2], size, hashed
            used[1] += 1
            used[2] += size
        long[slot, 2] += weights[0 if one else k]


@kernel
def _same(text, start, other, other_start, size):
    for k in range(0, size - 7, 8):
        if load8(text, start + k) != load8(other, other_start + k):
            return False
    return load8(text, start + size - 8) == load8(other, other_start + size - 8)


@kernel
def _make_keys(text, start, ends, n, mask, keys):
    """Write two words of bytes and a slot for each of n words; returns how many words are too long for that."""
    n_long = 0
    for k in range(n):
        size = np.uint64(ends[k] - start)
        low_bits = min(size, np.uint64(8)) * np.uint64(8)
        high_bits = min(size - min(size, np.uint64(8)), np.uint64(7)) * np.uint64(8)
        low = load8(text, start) & (ALL_ONES >> (np.uint64(64) - low_bits))
        high = load8(text, start + 8) & ((np.uint64(1) << high_bits) - np.uint64(1)) | size << np.uint64(56)
        is_long = size > np.uint64(SHORT)
        keys[0, k] = low
        keys[1, k] = np.uint64(0) if is_long else high
        keys[2, k] = _mixed(low, high) >> np.uint64(32) & mask
        n_long += is_long
        start = ends[k]
    return n_long


@kernel
def _count_short(n, weights, short, used, keys):
    """Count the words of up to SHORT bytes among n words."""
    lows, highs, slots = keys[0], keys[1], keys[2]
    mask = np.uint64(len(short) - 1)
    one = len(weights) == 1
    for k in range(n):
        prefetch(short, np.uint64(4) * slots[k + 12])
        low, high, slot = lows[k], highs[k], slots[k]
        if not high:
            continue
        while short[slot, 1] and (short[slot, 0] != low or short[slot, 1] != high):
            slot = (slot + np.uint64(1)) & mask
        if not short[slot, 1]:
            short[slot, 0], short[slot, 1] = low, high
            used[0] += 1
        short[slot, 2] += np.uint64(weights[0 if one else k])


@kernel
def _count_words(text, start, ends, n, weights, tally, keys):
    """Count n words that lie end to end in a text, each once or, with as many weights, as often as those say."""
    tally = _with_room_for_short(tally, n)
    n_long = _make_keys(text, start, ends, n, np.uint64(len(tally.short) - 1), keys)
    _count_short(n, weights, tally.short, tally.used, keys)
    if n_long:
        n_bytes = 0
        for k in range(n):
            if keys[1, k] == 0:
                n_bytes += ends[k] - (ends[k - 1] if k else start)
        tally = _with_room_for_long(tally, n_long, n_bytes)
        _count_long(text, start, ends, n, weights, tally, keys[1])
    return tally


@kernel
def _count_pieces(text, shown, pieces, scanner, cursors, tally, keys):
    """Scan and count pieces, int64[P, 2]: where each begins and ends. `shown` is the text as the scanner shall see it.

    Ends early where it is not UTF-8. The pieces are shortened by what was counted: all are empty when all is done.
    """
    once = np.ones(1, np.int64)
    for k in range(len(pieces)):
        stop = pieces[k, 1]
        _begin_scan(pieces[k, 0], cursors)
        more = 1 if pieces[k, 0] < stop else 0
        while more == 1:
            more = _scan_some(shown, stop, scanner, cursors)
            if more < 0:
                return tally
            n = cursors.filled[0]
            if n:
                tally = _count_words(text, cursors.begin[0], cursors.ends[0], n, once, tally, keys)
                pieces[k, 0] = cursors.ends[0, n - 1]
    return tally


@kernel
def _collect(tally, symbols, offsets, counts):
    """Write out the words of a tally, in the order of its tables."""
    w = end = 0
    for k in range(len(tally.short)):
        size = np.int64(tally.short[k, 1] >> np.uint64(56))
        if size:
            for i in range(size):
                symbols[end + i] = (tally.short[k, i >> 3] >> np.uint64(8 * (i & 7))) & np.uint64(0xFF)
            end += size
            counts[w] = tally.short[k, 2]
            w += 1
            offsets[w] = end
    for k in range(len(tally.long)):
        size = tally.long[k, 1]
        if size:
            for i in range(size):
                symbols[end + i] = tally.text[tally.long[k, 0] + i]
            end += size
            counts[w] = tally.long[k, 2]
            w += 1
            offsets[w] = end


class WordCounter:
    """Counts words; what several have counted adds up.

    >>> counter = WordCounter()
    >>> counter.add_text(b"to be or not to be", Pattern("gpt2"))
    >>> counter.add_words(words_from_counts({b"to": 2, b" be": 1}))
    >>> counts_of(counter.words())[b"to"], counts_of(counter.words())[b" be"]
    (3, 3)
    """

    def __init__(self):
        self._tally = _new_tally()
        self._cursors = _new_cursors()
        self._keys = np.zeros((3, 2 * ENOUGH + 16), np.uint64)

    def add_text(self, data: bytes, pattern: Pattern, pieces: np.ndarray | None = None) -> None:
        """Count the pretokens of a text, or of its pieces: int64[P, 2], where each begins and ends."""
        pieces = np.array([[0, len(data)]]) if pieces is None else pieces
        if pattern.scanner is None:
            self.add_words(words_from_counts(Counter(w for a, b in pieces for w in pattern.split(data[a:b]))))
            return
        text = _padded(data)
        self._count(text, text, pieces, pattern)
        if (pieces[:, 0] < pieces[:, 1]).any():
            self._count(text, _as_utf8(text), pieces, pattern)

    def _count(self, text: np.ndarray, shown: np.ndarray, pieces: np.ndarray, pattern: Pattern) -> None:
        self._tally = _count_pieces(text, shown, pieces, pattern.scanner, self._cursors, self._tally, self._keys)

    def add_words(self, words: Words) -> None:
        """Add words that were counted elsewhere."""
        text = _padded(words.symbols.astype(np.uint8, copy=False))
        for k in range(0, len(words.counts), ENOUGH):
            ends, counts = (words.offsets[k + 1 : k + 1 + ENOUGH], words.counts[k : k + ENOUGH])
            self._tally = _count_words(text, words.offsets[k], ends, len(ends), counts, self._tally, self._keys)

    def words(self) -> Words:
        """The words so far, in no particular order."""
        used, short, long = self._tally.used, self._tally.short, self._tally.long
        w = int(used[0] + used[1])
        n = int((short[:, 1] >> np.uint64(56)).sum()) + int(long[:, 1].sum())
        words = Words(np.empty(n, np.int32), np.zeros(w + 1, np.int64), np.empty(w, np.int64))
        _collect(self._tally, *words)
        return words


def words_from_counts(counts: Mapping[bytes, int]) -> Words:
    """Make Words of pretokens and their counts; raises ValueError for a count that is negative or not a whole number.

    >>> words_from_counts({b"ab": 3, b"c": 2**40}).symbols
    array([97, 98, 99], dtype=int32)
    """
    for word, count in counts.items():
        if not isinstance(word, bytes):
            raise BadInput(f"words are bytes, not {type(word).__name__}: {word!r}")
        if not isinstance(count, (int, np.integer)) or count < 0:
            raise BadInput(f"the count of {word!r} is {count!r}: it must be a whole number, 0 or more")
    if sum(len(word) * int(count) for word, count in counts.items()) >= 2**63:
        raise BadInput("the counts add up to 2**63 bytes or more, which 64 bits cannot hold")
    kept = {word: count for word, count in counts.items() if word and count}
    offsets = np.zeros(len(kept) + 1, np.int64)
    np.cumsum([len(word) for word in kept], out=offsets[1:])
    symbols = np.frombuffer(b"".join(kept), np.uint8).astype(np.int32)
    return Words(symbols, offsets, np.fromiter(kept.values(), np.int64, len(kept)))


def counts_of(words: Words) -> dict[bytes, int]:
    """The inverse of words_from_counts."""
    text, offsets = words.symbols.astype(np.uint8).tobytes(), words.offsets.tolist()
    return {text[a:b]: count for a, b, count in zip(offsets[:-1], offsets[1:], words.counts.tolist(), strict=True)}


def _begin_worker() -> None:
    """Ctrl-C reaches every process of a terminal; the parent's word is enough. When it dies, its workers end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=[multiprocessing.parent_process()], daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _map_in_order(
    function: Callable, items: Iterable, workers: int, executor: Executor | None = None, threads: bool = False
) -> Iterator:
    """Like map(), in worker processes, threads, or an executor, a few items at a time. One item needs none of them."""
    items = iter(items)
    first = list(itertools.islice(items, 2))
    items = itertools.chain(first, items)
    if executor is None and (workers == 1 or len(first) < 2):
        yield from map(function, items)
        return
    if executor:
        pool = executor
    else:
        pool = ThreadPoolExecutor(workers) if threads else ProcessPoolExecutor(workers, initializer=_begin_worker)
    running: deque[Future] = deque()
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) > 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    except BrokenExecutor:
        raise BadInput("a worker process died, perhaps for want of memory: try fewer (--workers)") from None
    finally:
        for future in running:
            future.cancel()
        if executor is None:
            pool.shutdown(cancel_futures=True)


def _texts_of(block: Block, text_field: str | None) -> list[bytes]:
    """The texts of a block, read from its file if need be."""
    if block.texts is not None:
        return block.texts
    with open(block.path, "rb") as file:
        file.seek(block.start)
        data = file.read(block.n_bytes)
        if not _is_json(block.path, None):
            return [data]
        lines = data.split(b"\n")
        try:
            return list(_json_texts(block.path, lines, text_field or "text"))
        except BadInput:  # say the number of the line in the file
            file.seek(0)
            before = iter(lambda: file.read(min(BLOCK, block.start - file.tell())), b"")
            return list(
                _json_texts(block.path, lines, text_field or "text", 1 + sum(part.count(b"\n") for part in before))
            )


def _count_blocks(
    pattern: Pattern, special_tokens: Sequence[str], text_field: str | None, blocks: list[Block]
) -> tuple[Words, int, int]:
    """Count the pretokens of some blocks; returns the words, the documents, and the bytes on the disk."""
    counter = WordCounter()
    special = _special_bytes(special_tokens)
    n_documents = 0
    for block in blocks:
        texts = _texts_of(block, text_field)
        data = b"".join(texts)
        pieces, start = [], 0
        for text in texts:
            end = start + len(text)
            for match in special.finditer(data, start, end) if special else ():
                pieces.append((start, match.start()))
                start = match.end()
            pieces.append((start, end))
            start = end
        goes_on = block.goes_on and pieces[0][0] < pieces[0][1]
        pieces = np.array([(a, b) for a, b in pieces if a < b], np.int64).reshape(-1, 2)
        n_documents += len(pieces) - goes_on
        counter.add_text(data, pattern, pieces)
    words = counter.words()
    words = words._replace(symbols=words.symbols.astype(np.uint8))  # a quarter of the way through the pipe
    return words, n_documents, sum(block.n_bytes for block in blocks)


def count_pretokens(
    files: Sequence[Path],
    pattern: Pattern,
    special_tokens: Sequence[str] = (),
    *,
    workers: int = 1,
    text_field: str | None = None,
    progress: bool = False,
) -> Counted:
    """Count the pretokens of files in worker processes. The result is the same for any number of them."""
    total, n_documents = WordCounter(), 0
    work = functools.partial(_count_blocks, pattern, special_tokens, text_field)
    with _progress_bar("scan", _size(files), "B", progress) as bar:
        blocks = _gathered(read_blocks(files, pattern, special_tokens, text_field))
        with contextlib.closing(_map_in_order(work, blocks, workers)) as parts:
            for words, documents, n_bytes in parts:
                total.add_words(words)
                n_documents += documents
                bar.update(n_bytes)
    return Counted(total.words(), n_documents)


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# GPT-2's way to write a byte as a character that can be seen: itself, or one of the 68 from U+0100. Hugging Face orders
# the bytes by these characters.
_SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_ORDER = [*_SEEN, *sorted({*range(256)} - {*_SEEN})]
_CHAR_OF = dict(zip(BYTE_ORDER, [*_SEEN, *range(0x100, 0x144)], strict=True))
_BYTE_OF = {chr(char): b for b, char in _CHAR_OF.items()}

BORDER, BURIED = (-1, -2)  # in the text: between two words; inside a symbol, at neither end
LEFT, RIGHT = 0, 1
DONE, PAUSED, FULL = 0, 1, 2  # why _merge_pairs came back

_SCALARS = (
    "symbols",
    "pairs",
    "places",
    "heap",
    "floor",
    "tokens",
    "by_ids",
    "need_pairs",
    "need_places",
    "need_bytes",
)


class Merges(NamedTuple):
    """M merges in the order in which they were made. Symbols 0 to 255 are the bytes; merge k makes symbol 256 + k."""

    pairs: np.ndarray  # int32[M, 2]   the two symbols joined
    counts: np.ndarray  # int64[M]     how often the pair stood in the corpus when it was chosen
    tokens: np.ndarray  # int64[M + 1] tokens in the corpus before the first merge, and after each


class _Text(NamedTuple):
    """All words, the most frequent first, with a BORDER before, between and behind them.

    A symbol of w bytes has w slots, and its number stands in the first and the last: so both neighbours of a symbol are
    one look away, without links.
    """

    slots: np.ndarray  # int32[S]
    group_of: np.ndarray  # int32[S / 64]  the group of every 64th slot; the words of a group have the same count
    group_end: np.ndarray  # int64[G]      the first slot behind the group
    group_count: np.ndarray  # int64[G]


class _Symbols(NamedTuple):
    width: np.ndarray  # int32[V]          bytes, and slots
    key: np.ndarray  # uint64[V]           on a tie the smaller goes first; if they are equal, the greater bytes do
    token: np.ndarray  # uint8[…]          the bytes of symbol c are token[start[c] : start[c + 1]]
    start: np.ndarray  # int64[V + 1]


class _Pairs(NamedTuple):
    half: np.ndarray  # int32[2, P]        the LEFT and the RIGHT symbol
    count: np.ndarray  # int64[P]          no less than the present count; 0 when merged
    first: np.ndarray  # int64[P]          its places are places[first : first + size], ascending
    size: np.ndarray  # int32[P]
    heap_count: np.ndarray  # int64[P]     a heap of the pairs whose count is no less than the floor
    heap_pair: np.ndarray  # int32[P]


class _Scratch(NamedTuple):
    """For one merge."""

    seen: np.ndarray  # int32[V]           how many places a neighbour has; 0 between merges
    total: np.ndarray  # int64[V]          the sum of their counts; 0 between merges
    cursor: np.ndarray  # int64[V]         where its next place goes
    touched: np.ndarray  # int32[V]        the neighbours, each once
    neighbour: np.ndarray  # int32[2, …]   the LEFT and RIGHT neighbour at each place of the new symbol


class _State(NamedTuple):
    """What the merge loop knows, modified in place. S slots, G groups, V symbols, P pairs, L places.

    A pair is born with all its places in the merge that mints its younger symbol, and never again: its list is written
    once, and its count only falls. So counts are not kept up to date; a pair is *recounted* when it comes to the top of
    the heap. There are no sets, no updates of neighbours, and no table from pairs to counts. Recounting looks at some 4
    places for each place that is merged.

    Never again, because no merge gives the bytes of an older symbol. Between two ends of symbols, the symbols depend on
    the bytes alone: a merge across an end would have removed it, and a run of equal symbols is merged from the left, so
    an end inside it has an even number of them before it. Thus when a symbol is minted, all its bytes that lie between
    ends of symbols are that pair, and become it.
    """

    text: _Text
    symbols: _Symbols
    pairs: _Pairs
    places: np.ndarray  # int32[L]         slots where the left half of a pair begins, or began
    scratch: _Scratch
    at: np.ndarray  # _SCALARS[1]          how far the arrays are filled


@kernel
def _goes_first(pair, other, half, symbols):
    """Of two pairs with the same count, `pair` is merged first: the left halves decide, or else the right ones."""
    side = LEFT if half[LEFT, pair] != half[LEFT, other] else RIGHT
    a, b = half[side, pair], half[side, other]
    if symbols.key[a] != symbols.key[b] or a == b:
        return symbols.key[a] < symbols.key[b]
    a_start, b_start = symbols.start[a], symbols.start[b]
    for k in range(min(symbols.width[a], symbols.width[b])):
        if symbols.token[a_start + k] != symbols.token[b_start + k]:
            return symbols.token[a_start + k] > symbols.token[b_start + k]
    return symbols.width[a] > symbols.width[b]


@kernel
def _sift_up(child, count, pair, pairs, symbols):
    """Put a pair into the heap, at `child` or as far above as it belongs."""
    keys, heap, half = pairs.heap_count, pairs.heap_pair, pairs.half
    while child > 0:
        parent = (child - 1) >> 1
        if count < keys[parent] or (count == keys[parent] and not _goes_first(pair, heap[parent], half, symbols)):
            break
        keys[child], heap[child] = keys[parent], heap[parent]
        child = parent
    keys[child], heap[child] = count, pair


@kernel
def _sift_down(size, count, pair, pairs, symbols):
    """Put a pair into a heap of this size, whose top is free, at the top or as far below as it belongs."""
    keys, heap, half = pairs.heap_count, pairs.heap_pair, pairs.half
    parent, child = 0, 1
    while child < size:
        other = child + 1
        if other < size and (
            keys[other] > keys[child]
            or (keys[other] == keys[child] and _goes_first(heap[other], heap[child], half, symbols))
        ):
            child = other
        if count > keys[child] or (count == keys[child] and _goes_first(pair, heap[child], half, symbols)):
            break
        keys[parent], heap[parent] = keys[child], heap[child]
        parent, child = child, 2 * child + 1
    keys[parent], heap[parent] = count, pair


@kernel
def _push(pair, pairs, symbols, at):
    at.heap += 1
    _sift_up(at.heap - 1, pairs.count[pair], pair, pairs, symbols)


@kernel
def _pop(pairs, symbols, at):
    at.heap -= 1
    _sift_down(at.heap, pairs.heap_count[at.heap], pairs.heap_pair[at.heap], pairs, symbols)


@kernel
def _fill_heap(pairs, symbols, at, min_frequency):
    """With the heap empty, lower the floor to a quarter of the greatest count below it, and push what is above.

    Most pairs are rare and never get there: the heap has some ten thousand of them rather than millions.
    """
    greatest = 0
    for pair in range(at.pairs):
        if pairs.count[pair] < at.floor:
            greatest = max(greatest, pairs.count[pair])
    ceiling = at.floor
    at.floor = max(min_frequency, greatest // 4)
    for pair in range(at.pairs):
        if at.floor <= pairs.count[pair] < ceiling:
            _push(pair, pairs, symbols, at)


@kernel
def _group(slot, group_of, group_end):
    """The group of words that has this slot."""
    group = group_of[slot >> 6]
    while group_end[group] <= slot:
        group += 1
    return group


@kernel
def _recount(pair, text, width, pairs, places):
    """Bring the count of a pair up to date, and drop the places that are no longer of the pair."""
    slots, group_of, group_end, group_count = text
    a, b = pairs.half[LEFT, pair], pairs.half[RIGHT, pair]
    width_a = width[a]
    kept = pairs.first[pair]
    stop = kept + pairs.size[pair]
    total = count = end = 0
    for k in range(kept, stop):
        if k + 16 < stop:
            prefetch(slots, places[k + 16])  # 15 % of the whole of learning
        place = places[k]
        if slots[place] == a and slots[place + width_a] == b:
            if place >= end:
                group = _group(place, group_of, group_end)
                end, count = group_end[group], group_count[group]
            total += count
            places[kept] = place
            kept += 1
    pairs.size[pair] = kept - pairs.first[pair]
    pairs.count[pair] = total


@kernel
def _join(pair, c, text, width, pairs, places, neighbour):
    """Write symbol c over a pair, from left to right; list its places instead of the pair's, and note its neighbours.

    Returns how many tokens of the corpus this has taken away. Where c stands next to c, the two are one pair: it is
    noted at the first, as its right neighbour.
    """
    slots, group_of, group_end, group_count = text
    a, b = pairs.half[LEFT, pair], pairs.half[RIGHT, pair]
    width_a, width_c = width[a], width[c]
    first, stop = pairs.first[pair], pairs.first[pair] + pairs.size[pair]
    n = total = count = end = behind = 0
    for k in range(first, stop):
        if k + 16 < stop:
            prefetch(slots, places[k + 16])
        place = places[k]
        middle = place + width_a
        if slots[place] == a and slots[middle] == b:  # "aaa" is two pairs, and room for one merge
            neighbour[LEFT, n], neighbour[RIGHT, n] = slots[place - 1], slots[place + width_c]
            if n and place == behind:
                neighbour[LEFT, n], neighbour[RIGHT, n - 1] = BORDER, c
            behind = place + width_c
            slots[middle - 1] = slots[middle] = BURIED
            slots[place] = slots[behind - 1] = c
            if place >= end:
                group = _group(place, group_of, group_end)
                end, count = group_end[group], group_count[group]
            total += count
            places[first + n] = place
            n += 1
    pairs.size[pair] = n
    return total


@kernel
def _survey(neighbour, where, text, scratch):
    """Sum up the places and counts of each neighbour in `seen` and `total`; returns how many are different."""
    _, group_of, group_end, group_count = text
    seen, total, touched = scratch.seen, scratch.total, scratch.touched
    different = count = end = 0
    for k in range(len(where)):
        x = neighbour[k]
        if x != BORDER:
            if where[k] >= end:
                group = _group(where[k], group_of, group_end)
                end, count = group_end[group], group_count[group]
            if seen[x] == 0:
                touched[different] = x
                different += 1
            seen[x] += 1
            total[x] += count
    return different


@kernel
def _bear(side, c, where, s):
    """Make the pairs of c, which stands at the places `where`, with its neighbours on one side."""
    pairs, places, scratch, width, at = s.pairs, s.places, s.scratch, s.symbols.width, s.at[0]
    seen, total, cursor, neighbour = scratch.seen, scratch.total, scratch.cursor, scratch.neighbour[side]
    born = at.pairs
    for t in range(_survey(neighbour, where, s.text, scratch)):
        x = scratch.touched[t]
        pair = at.pairs
        pairs.half[side, pair], pairs.half[1 - side, pair] = x, c
        pairs.first[pair], pairs.size[pair], pairs.count[pair] = at.places, seen[x], total[x]
        cursor[x] = at.places
        at.places += seen[x]
        at.pairs += 1
        seen[x] = total[x] = 0
    for k in range(len(where)):
        x = neighbour[k]
        if x != BORDER:
            places[cursor[x]] = where[k] if side == RIGHT else where[k] - width[x]
            cursor[x] += 1
    for pair in range(born, at.pairs):
        if pairs.count[pair] >= at.floor:
            _push(pair, pairs, s.symbols, at)


@kernel
def _mint(a, b, symbols, at):
    """Add the symbol whose bytes are those of a and b; returns its number."""
    token, start = symbols.token, symbols.start
    c = at.symbols
    at.symbols += 1
    symbols.width[c] = symbols.width[a] + symbols.width[b]
    end = start[c]
    for symbol in (a, b):
        for k in range(start[symbol], start[symbol + 1]):
            token[end] = token[k]
            end += 1
    start[c + 1] = end
    symbols.key[c] = c
    if not at.by_ids:
        key = np.uint64(0)
        for k in range(start[c], start[c] + 8):
            key = (key << np.uint64(8)) | np.uint64(token[k] if k < end else 0)
        symbols.key[c] = ~key
    return c


@kernel
def _merge(pair, s, merges):
    """Merge a pair, whose count is up to date, everywhere."""
    symbols, pairs, at = s.symbols, s.pairs, s.at[0]
    a, b = pairs.half[LEFT, pair], pairs.half[RIGHT, pair]
    c = _mint(a, b, symbols, at)
    m = c - 256
    merges.pairs[m, LEFT], merges.pairs[m, RIGHT], merges.counts[m] = (a, b, pairs.count[pair])
    pairs.count[pair] = 0
    at.tokens -= _join(pair, c, s.text, symbols.width, pairs, s.places, s.scratch.neighbour)
    merges.tokens[m + 1] = at.tokens
    where = s.places[pairs.first[pair] : pairs.first[pair] + pairs.size[pair]]
    for side in range(2):
        _bear(side, c, where, s)


@kernel
def _has_room(pair, s):
    """The arrays can take what merging this pair may add. If not, `need_…` says how long they must be."""
    symbols, pairs, at = s.symbols, s.pairs, s.at[0]
    a, b = pairs.half[LEFT, pair], pairs.half[RIGHT, pair]
    at.need_bytes = symbols.start[at.symbols] + symbols.width[a] + symbols.width[b]
    at.need_pairs = at.pairs + 2 * min(pairs.size[pair], at.symbols + 1)
    at.need_places = at.places + 2 * pairs.size[pair]
    return at.need_bytes <= len(symbols.token) and at.need_pairs <= len(pairs.count) and at.need_places <= len(s.places)


@kernel
def _merge_pairs(s, merges, goal, min_frequency):
    """Merge the best pair until there are `goal` symbols (PAUSED), no pair is left (DONE), or an array is FULL."""
    text, symbols, pairs, places, at = s.text, s.symbols, s.pairs, s.places, s.at[0]
    while at.symbols < goal:
        if at.heap == 0:
            _fill_heap(pairs, symbols, at, min_frequency)
            if at.heap == 0:
                return DONE
        claimed, pair = pairs.heap_count[0], pairs.heap_pair[0]
        _pop(pairs, symbols, at)
        _recount(pair, text, symbols.width, pairs, places)
        is_best = claimed == pairs.count[pair]
        if is_best and _has_room(pair, s):
            _merge(pair, s, merges)
            continue
        if pairs.count[pair] >= at.floor:
            _push(pair, pairs, symbols, at)
        if is_best:
            return FULL
    return PAUSED


@kernel
def _write_words(words, order, ends, slots):
    """Copy words into the text, in this order, each before the border that is before its end."""
    symbols, offsets, _ = words
    for k in range(len(order)):
        first, stop = offsets[order[k]], offsets[order[k] + 1]
        for n in range(first, stop):
            slots[ends[k] - 1 + n - stop] = symbols[n]


@kernel
def _count_pairs(text, seen, total):
    """How many places the pairs of bytes have, and the sum of their counts; int64[256 * 256], 0 before."""
    slots, _, group_end, group_count = text
    group = 0
    for slot in range(len(slots) - 1):
        if slot >= group_end[group]:
            group += 1
        a, b = slots[slot], slots[slot + 1]
        if a != BORDER and b != BORDER:
            seen[256 * a + b] += 1
            total[256 * a + b] += group_count[group]


@kernel
def _list_pairs(seen, total, s):
    """Make the pairs of bytes, with their places: what `_bear` does for other symbols, in one go over the text."""
    slots, pairs, places, at = s.text.slots, s.pairs, s.places, s.at[0]
    cursor = np.empty(len(seen), np.int64)
    for ab in range(len(seen)):
        cursor[ab] = at.places
        if seen[ab]:
            pair = at.pairs
            pairs.half[LEFT, pair], pairs.half[RIGHT, pair] = ab >> 8, ab & 0xFF
            pairs.first[pair], pairs.size[pair], pairs.count[pair] = at.places, seen[ab], total[ab]
            at.pairs += 1
            at.places += seen[ab]
    for slot in range(len(slots) - 1):
        a, b = slots[slot], slots[slot + 1]
        if a != BORDER and b != BORDER:
            ab = 256 * a + b
            places[cursor[ab]] = slot
            cursor[ab] += 1


def _lay_out(words: Words, number: type) -> _Text:
    order = np.argsort(-words.counts, kind="stable")
    ends = np.cumsum(np.diff(words.offsets)[order] + 1) + 1  # behind the word and its border
    slots = np.full(1 + len(words.symbols) + len(order), BORDER, np.int32)
    _write_words(words, order, ends, slots)
    counts = words.counts[order]
    last = np.append(np.flatnonzero(np.diff(counts)), len(counts) - 1)  # the last word of each group
    group_of = np.searchsorted(ends[last], np.arange(0, len(slots), 64), side="right").astype(number)
    return _Text(slots, group_of, ends[last], counts[last])


def _new_state(words: Words, n_symbols: int, tie_break: str, number: type) -> _State:
    """The state before the first merge. `number` is the type of slots and pairs."""
    n = len(words.symbols)
    text = _lay_out(words, number)
    symbols = _Symbols(
        width=np.ones(n_symbols, number),
        key=np.zeros(n_symbols, np.uint64),
        token=np.arange(16 * n_symbols).astype(np.uint8),
        start=np.arange(n_symbols + 1),
    )
    if tie_break == "ids":
        symbols.key[BYTE_ORDER] = range(256)
    else:
        symbols.key[:256] = ~(np.arange(256, dtype=np.uint64) << np.uint64(56))
    seen, total = np.zeros((2, 256 * 256), np.int64)
    _count_pairs(text, seen, total)
    scratch = _Scratch(
        seen=np.zeros(n_symbols, number),
        total=np.zeros(n_symbols, np.int64),
        cursor=np.empty(n_symbols, np.int64),
        touched=np.empty(n_symbols, np.int32),
        neighbour=np.empty((2, seen.max()), np.int32),
    )
    p = min(n, 1 << 16) + n // 8 + 256  # the pairs of bytes, and room for as many more as are born in most texts
    pairs = _Pairs(
        half=np.empty((2, p), np.int32),
        count=np.empty(p, np.int64),
        first=np.empty(p, np.int64),
        size=np.empty(p, number),
        heap_count=np.empty(p, np.int64),
        heap_pair=np.empty(p, number),
    )
    at = np.zeros(1, [(name, np.int64) for name in _SCALARS])
    at["symbols"], at["floor"], at["by_ids"] = (256, np.iinfo(np.int64).max, tie_break == "ids")
    at["tokens"] = np.dot(np.diff(words.offsets), words.counts)
    places = np.empty(3 * n, number)  # enough: a merge adds two for each symbol that it takes away
    state = _State(text, symbols, pairs, places, scratch, at)
    _list_pairs(seen, total, state)
    return state


def _grown(array: np.ndarray, need: int) -> np.ndarray:
    """The array, or a longer copy if its last axis is shorter than needed."""
    if array.shape[-1] >= need:
        return array
    longer = np.empty((*array.shape[:-1], max(need, array.shape[-1] * 3 // 2)), array.dtype)
    longer[..., : array.shape[-1]] = array
    return longer


def _with_room(state: _State) -> _State:
    """The same, in arrays as long as `_has_room` asked for."""
    at = state.at[0]
    return state._replace(
        symbols=state.symbols._replace(token=_grown(state.symbols.token, at["need_bytes"])),
        pairs=_Pairs(*(_grown(array, at["need_pairs"]) for array in state.pairs)),
    )


def learn(
    words: Words, n_symbols: int, *, tie_break: str = "bytes", min_frequency: int = 1, progress: bool = False
) -> Merges:
    """Merge the most frequent pair again and again, until there are `n_symbols` symbols (the 256 bytes among them).

    Of pairs with equal counts the one goes first whose left bytes are the greatest, then whose right bytes are
    (`tie_break="bytes"`, the rule of Stanford's CS336), or whose ids are the smallest, left then right ("ids", the rule
    of Hugging Face). Ends early when no pair is left that stands `min_frequency` times in the corpus.

    Linear in the occurrences of what is merged, not in the length of the words.

    >>> merges = learn(words_from_counts({b"aaab": 3, b"ab": 1}), 258)
    >>> merges.pairs.tolist(), merges.counts.tolist(), merges.tokens.tolist()
    ([[97, 97], [97, 98]], [6, 4], [14, 11, 7])
    """
    if len(words.symbols) and not 0 <= words.symbols.min() <= words.symbols.max() < 256:
        raise BadInput("the symbols of words must be bytes, 0 to 255")
    if tie_break not in ("bytes", "ids"):
        raise BadInput(f"tie_break is 'bytes' or 'ids', not {tie_break!r}")
    if not len(words.symbols):
        raise BadInput("there are no words to learn from")
    n_symbols = min(n_symbols, 256 + len(words.symbols))  # a merge takes a symbol away, at least
    number = np.int32 if len(words.symbols) < 2**29 else np.int64
    return _learn(words, n_symbols, tie_break, min_frequency, progress, number)


def _learn(words: Words, n_symbols: int, rule: str, min_frequency: int, progress: bool, number: type) -> Merges:
    """`learn`, with a type for slots and pairs: 32 bits are faster, but not enough for 2**29 symbols."""
    state = _new_state(words, n_symbols, rule, number)
    m = n_symbols - 256
    merges = Merges(np.empty((m, 2), np.int32), np.empty(m, np.int64), np.empty(m + 1, np.int64))
    merges.tokens[0] = state.at[0]["tokens"]
    status, m = PAUSED, 0
    with _progress_bar("learn", n_symbols - 256, " merges", progress) as bar:
        while status != DONE and m < n_symbols - 256:
            status = _merge_pairs(state, merges, min(256 + m + 256, n_symbols), max(min_frequency, 1))
            if status == FULL:
                state = _with_room(state)
            m = int(state.at[0]["symbols"]) - 256
            bar.update(m - bar.n)
    return Merges(merges.pairs[:m], merges.counts[:m], merges.tokens[: m + 1])


# ─── Vocabulary ───────────────────────────────────────────────────────────────────────────────────────────────────────


SPECIAL_TOKENS_AT = ("first", "after-bytes", "last")


def build_vocabulary(
    merges: Merges, special_tokens: Sequence[str] = (), special_tokens_at: str = "first"
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    """Number the tokens: the bytes in BYTE_ORDER, then what was merged; and the special tokens among them.

    They are "first", as Hugging Face's trainer has them, "after-bytes", or "last", as in GPT-2. Returns the vocabulary,
    id -> bytes, and the merges as pairs of bytes.
    """
    _check_place(special_tokens_at)
    tokens = [bytes([b]) for b in range(256)]
    listed = []
    for left, right in merges.pairs.tolist():
        listed.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
    in_order = [*(tokens[b] for b in BYTE_ORDER), *tokens[256:]]
    at = {"first": 0, "after-bytes": 256, "last": len(in_order)}[special_tokens_at]
    in_order[at:at] = [token.encode() for token in special_tokens]
    return dict(enumerate(in_order)), listed


def _check_place(special_tokens_at: str) -> None:
    if special_tokens_at not in SPECIAL_TOKENS_AT:
        raise BadInput(f"special_tokens_at is {', '.join(SPECIAL_TOKENS_AT)}, not {special_tokens_at!r}")


def _check_size(vocab_size: int, special_tokens: Sequence[str]) -> None:
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise BadInput(f"a vocabulary of {vocab_size} is too small: 256 bytes and the special tokens make {least}")
    if vocab_size > 2**30:
        raise BadInput(f"a vocabulary of {vocab_size} is too large: ids end at 2**30")


def _warn_if_short(vocab: Mapping[int, bytes], vocab_size: int) -> None:
    if len(vocab) < vocab_size:
        warnings.warn(f"the text gives {len(vocab)} tokens, not {vocab_size}: no pair is left to merge", stacklevel=3)


def train_bpe_from_counts(
    counts: Mapping[bytes, int],
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    *,
    tie_break: str = "bytes",
    min_frequency: int = 1,
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    """Train on pretokens that were counted elsewhere; see `learn` for the rules, `build_vocabulary` for the result.

    >>> vocab, merges = train_bpe_from_counts({b"hug": 10, b"pug": 5, b"hugs": 5}, 258)
    >>> merges, vocab[257]
    ([(b'u', b'g'), (b'h', b'ug')], b'hug')
    """
    special_tokens = _checked_specials(special_tokens)
    _check_size(vocab_size, special_tokens)
    for token in special_tokens:
        for word in counts:
            if token.encode() in word:
                raise BadInput(
                    f"the word {word!r} holds the special token {token!r}: cut texts at special tokens first"
                )
    merges = learn(
        words_from_counts(counts), vocab_size - len(special_tokens), tie_break=tie_break, min_frequency=min_frequency
    )
    vocab, listed = build_vocabulary(merges, special_tokens)
    _warn_if_short(vocab, vocab_size)
    return vocab, listed


# ─── Encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MOST_IDS = 1 << 24  # ids are below: no vocabulary has a tenth of that, and tables grow with the largest id
NONE = ALL_ONES  # no rank: the pair does not merge
SCANNED = 64  # bytes of a word whose pairs are all looked at for the lowest rank; longer words have a heap
FIRST, CACHED = 1 << 14, 1 << 20  # entries of a cache at first, and at most; it is half full, then three quarters
LONGEST_TOKEN = 1 << 12  # bytes, where there are no merges and all ways to cut a token in two are looked at
SHORT_TEXT = 1 << 12  # bytes of a text for which the time of the call itself counts
POOLED = 1 << 24  # ids of words that have more than three, and bytes of long words, that a cache has room for


class _Tokens(NamedTuple):
    """The tokens by their ids, and a hash table of ids by bytes, half full at most."""

    text: np.ndarray  # uint8[…]     the tokens, end to end, and PADDING
    starts: np.ndarray  # int64[V]   where each begins
    sizes: np.ndarray  # int64[V]    how many bytes it has; 0 for an id that there is not
    slots: np.ndarray  # int32[H]    ids, or -1; empty if a word need not be looked for as a whole


class _Ranks(NamedTuple):
    """Which pairs merge. An entry has the rank in its upper half and the id they become in the lower; or is NONE."""

    byte_ids: np.ndarray  # int32[256]       the id of each byte, or -1
    byte_pairs: np.ndarray  # uint64[65536]  the entries of pairs of bytes
    pairs: np.ndarray  # uint64[H, 2]        hash table: two ids in one word, and their entry; half full at most
    filter: np.ndarray  # uint64[H / 8]      a bit for each hash that is in it: 3 of 4 pairs are not, and end here


class _Specials(NamedTuple):
    """Special tokens, sorted by their first two bytes, then the longest first."""

    text: np.ndarray  # uint8[…]       end to end, and PADDING
    ends: np.ndarray  # int64[S + 1]   special token s is text[ends[s] : ends[s + 1]]
    ids: np.ndarray  # int64[S]
    first: np.ndarray  # int64[257]    those from first[b] to first[b + 1] begin with the byte b


class _Cache(NamedTuple):
    """Words and their ids, in a hash table with open addressing.

    When `entries` are half full, they are to grow; when they may not, or the other arrays are full, all is forgotten.
    """

    # uint64[C, 4]: the key of a short word, or of a long one its hash and size; then two ids, the third id and their
    # number; or, with IN_POOL, where the ids stand in `pool`, where a long word stands in `text`, and the number.
    entries: np.ndarray
    pool: np.ndarray  # uint32[…]
    text: np.ndarray  # uint8[…]
    used: np.ndarray  # int64[4]   entries, ids, bytes; and the most entries there may be


class _Merging(NamedTuple):
    """Where a short word is merged, by the place of its symbols' first bytes."""

    symbols: np.ndarray  # uint32[SCANNED]
    joined: np.ndarray  # uint32[SCANNED]  what this symbol and the next become
    values: np.ndarray  # uint64[SCANNED]  the rank of that, and the place itself; or NONE


HALF = np.uint64(32)
LOW = np.uint64(2**32 - 1)
IN_POOL = np.uint64(1 << 63)


def _table_size(n: int) -> int:
    """Slots for n entries, so that half of them at most are taken."""
    return 1 << max(6, (2 * n - 1).bit_length())


@kernel
def _key(text, start, size):
    """The two words of bytes of a short word, as `_make_keys` has them; the hash and the size of a long one."""
    if size > SHORT:
        return _hash_bytes(text, start, size), np.uint64(0xFF) << np.uint64(56) | np.uint64(size)
    low = load8(text, start) & (ALL_ONES >> np.uint64(64 - 8 * min(size, 8)))
    high = load8(text, start + 8) & ((np.uint64(1) << np.uint64(8 * max(size - 8, 0))) - np.uint64(1))
    return low, high | np.uint64(size) << np.uint64(56)


@kernel
def _same_bytes(text, start, other, other_start, size):
    if size >= 8:
        return _same(text, start, other, other_start, size)
    return (load8(text, start) ^ load8(other, other_start)) << np.uint64(64 - 8 * size) == 0


@kernel
def _find_token(text, start, size, tokens):
    """The id of these bytes, or -1. The table of tokens must not be empty."""
    slots = tokens.slots
    low, high = _key(text, start, size)
    slot = _slot(_mixed(low, high), len(slots))
    while slots[slot] >= 0:
        id = np.int64(slots[slot])
        if tokens.sizes[id] == size and _same_bytes(text, start, tokens.text, tokens.starts[id], size):
            return id
        slot = (slot + 1) & (len(slots) - 1)
    return np.int64(-1)


@kernel
def _index_tokens(ids, tokens):
    """Enter ids into the table of tokens."""
    slots = tokens.slots
    for id in ids:
        low, high = _key(tokens.text, tokens.starts[id], tokens.sizes[id])
        slot = _slot(_mixed(low, high), len(slots))
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = id


@kernel
def _list_splits(ids, tokens, splits):
    """All ways to make a token of two: write left, right and token while there is room; returns how many there are."""
    n = 0
    for id in ids:
        start, size = tokens.starts[id], tokens.sizes[id]
        for middle in range(1, size):
            left = _find_token(tokens.text, start, middle, tokens)
            right = _find_token(tokens.text, start + middle, size - middle, tokens) if left >= 0 else left
            if right >= 0:
                if n < len(splits):
                    splits[n, 0], splits[n, 1], splits[n, 2] = left, right, id
                n += 1
    return n


@inlined
def _rank_of(left, right, pairs, filter):
    """The entry of a pair of ids, or NONE."""
    key = left << HALF | right
    hashed = key * np.uint64(0x9E3779B97F4A7C15)
    bit = hashed >> np.uint64(40) & np.uint64(64 * len(filter) - 1)
    if not filter[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1):
        return NONE
    mask = np.uint64(len(pairs) - 1)
    slot = hashed >> HALF & mask
    while pairs[slot, 0] != key:
        if pairs[slot, 0] == NONE:
            return NONE
        slot = (slot + np.uint64(1)) & mask
    return pairs[slot, 1]


@kernel
def _fill_ranks(merges, by_id, ranks):
    """Enter merges, int64[M, 3]: two ids and the id they become. Their rank is their number or, by_id, that id."""
    byte_ids, byte_pairs, pairs, filter = ranks
    mask = np.uint64(len(pairs) - 1)
    for m in range(len(merges)):
        left, right, id = np.uint64(merges[m, 0]), np.uint64(merges[m, 1]), np.uint64(merges[m, 2])
        if _rank_of(left, right, pairs, filter) == NONE:
            key = left << HALF | right
            hashed = key * np.uint64(0x9E3779B97F4A7C15)
            bit = hashed >> np.uint64(40) & np.uint64(64 * len(filter) - 1)
            filter[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
            slot = hashed >> HALF & mask
            while pairs[slot, 0] != NONE:
                slot = (slot + np.uint64(1)) & mask
            pairs[slot, 0] = key
            pairs[slot, 1] = (id if by_id else np.uint64(m)) << HALF | id
    for a in range(256):
        for b in range(256):
            if byte_ids[a] >= 0 and byte_ids[b] >= 0:
                byte_pairs[256 * a + b] = _rank_of(np.uint64(byte_ids[a]), np.uint64(byte_ids[b]), pairs, filter)


@inlined
def _merge_short(text, start, size, byte_ids, byte_pairs, pairs, filter, symbols, joined, values, out, at):
    """Write the ids of a word of up to SCANNED bytes to out[at :]; returns their number, or -1 if a byte has no id.

    The pair of lowest rank merges first, the leftmost of several: the least of `values`. Symbols keep their places; a
    bit of `alive` tells which are left.
    """
    one = np.uint64(1)
    padded = (size + 7) & -8  # whole vectors
    for k in range(padded):
        values[k] = NONE
    for k in range(size):
        if byte_ids[text[start + k]] < 0:
            return -1
        symbols[k] = byte_ids[text[start + k]]
    for k in range(size - 1):
        entry = byte_pairs[np.int64(text[start + k]) << 8 | np.int64(text[start + k + 1])]
        joined[k] = entry & LOW
        values[k] = entry & ~LOW | np.uint64(k) if entry != NONE else NONE
    alive = ALL_ONES >> np.uint64(64 - size)
    while True:
        least = NONE
        for k in range(padded):
            least = min(least, values[k])
        if least == NONE:
            break
        i = least & LOW
        after = alive & ~((one << i) | ((one << i) - one))
        values[lowest_bit(after)] = NONE
        alive ^= after & (~after + one)
        after &= after - one
        before = alive & ((one << i) - one)
        symbol = np.uint64(joined[i])
        symbols[i] = symbol
        entry = _rank_of(symbol, np.uint64(symbols[lowest_bit(after)]), pairs, filter) if after else NONE
        joined[i] = entry & LOW
        values[i] = entry & ~LOW | i if entry != NONE else NONE
        if before:
            h = highest_bit(before)
            entry = _rank_of(np.uint64(symbols[h]), symbol, pairs, filter)
            joined[h] = entry & LOW
            values[h] = entry & ~LOW | h if entry != NONE else NONE
    n = 0
    while alive:
        out[at + n] = symbols[lowest_bit(alive)]
        alive &= alive - one
        n += 1
    return n


@kernel
def _heap_push(heap, size, item):
    """Add an item to a heap of so many, the least on top."""
    at = size
    while at and heap[(at - 1) >> 1] > item:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = item


@kernel
def _heap_pop(heap, size):
    """Take the least of so many items away."""
    least, item, at, child = heap[0], heap[size - 1], 0, 1
    while child < size - 1:
        child += child + 1 < size - 1 and heap[child + 1] < heap[child]
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = item
    return least


@inlined
def _but(entry, without):
    return NONE if entry & LOW == without else entry


@kernel
def _merge_long(text, start, size, without, ranks, out, at):
    """What `_merge_short` does, for a word of any length in n log n steps: ranks and places wait in a heap.

    No pair becomes the token `without`, if there is such.
    """
    byte_ids, byte_pairs, pairs, filter = ranks
    symbols, before, after = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.uint32)
    entries = np.full(size, NONE, np.uint64)
    heap, waiting = np.empty(2 * size, np.uint64), 0  # a merge takes one away and adds two at most
    for k in range(size):
        if byte_ids[text[start + k]] < 0:
            return -1
        symbols[k], before[k], after[k] = byte_ids[text[start + k]], k - 1, k + 1
    for k in range(size - 1):
        entries[k] = _but(byte_pairs[np.int64(text[start + k]) << 8 | np.int64(text[start + k + 1])], without)
        if entries[k] != NONE:
            _heap_push(heap, waiting, entries[k] & ~LOW | np.uint64(k))
            waiting += 1
    while waiting:
        item = _heap_pop(heap, waiting)
        waiting -= 1
        i = np.int64(item & LOW)
        if entries[i] == NONE or (entries[i] ^ item) >> HALF:  # one of the two was merged meanwhile
            continue
        j = np.int64(after[i])
        k = np.int64(after[j])
        symbols[i], after[i], entries[i], entries[j] = entries[i] & LOW, k, NONE, NONE
        if k < size:
            before[k] = i
            entries[i] = _but(_rank_of(np.uint64(symbols[i]), np.uint64(symbols[k]), pairs, filter), without)
            if entries[i] != NONE:
                _heap_push(heap, waiting, entries[i] & ~LOW | np.uint64(i))
                waiting += 1
        if i:
            h = np.int64(before[i])
            entries[h] = _but(_rank_of(np.uint64(symbols[h]), np.uint64(symbols[i]), pairs, filter), without)
            if entries[h] != NONE:
                _heap_push(heap, waiting, entries[h] & ~LOW | np.uint64(h))
                waiting += 1
    n = k = 0
    while k < size:
        out[at + n] = symbols[k]
        n += 1
        k = np.int64(after[k])
    return n


@kernel
def _last_pairs(ids, tokens, ranks, pairs, out):
    """Write the two ids that become each of these tokens in the end, int64[…, 2]; -1 where the merges do not get there.

    There is but one such pair. What happens to the bytes of a token, until it is one, is decided by them alone: each
    merge that is made in them would have been made in them alone, in the same order.
    """
    for k in range(len(ids)):
        pairs[k] = -1
        start, size = tokens.starts[ids[k]], tokens.sizes[ids[k]]
        n = _merge_long(tokens.text, start, size, np.uint64(ids[k]), ranks, out, 0)
        if n == 2:
            entry = _rank_of(np.uint64(out[0]), np.uint64(out[1]), ranks.pairs, ranks.filter)
            if entry & LOW == np.uint64(ids[k]):
                pairs[k, 0], pairs[k, 1] = out[0], out[1]


@inlined
def _recall_words(k, n, lows, highs, slots, entries, pool, out, at):
    """Write the ids of the words from k on, up to the first that is long or not in the cache; its slot is updated.

    Returns which that is, or n; and where the ids end. There must be room for two ids more.
    """
    mask, at = np.uint64(len(entries) - 1), np.uint64(at)
    while k < n:
        prefetch(entries, np.uint64(4) * slots[k + 12])
        low, high, slot = lows[k], highs[k], slots[k]
        while entries[slot, 1] and (entries[slot, 0] != low or entries[slot, 1] != high):
            slot = (slot + np.uint64(1)) & mask
        if not entries[slot, 1]:
            slots[k] = slot
            break
        ids, more = entries[slot, 2], entries[slot, 3]
        n_ids = (more & ~IN_POOL) >> HALF
        if more & IN_POOL:
            for i in range(n_ids):
                out[at + i] = pool[(ids & LOW) + i]
        else:
            out[at], out[at + np.uint64(1)], out[at + np.uint64(2)] = ids & LOW, ids >> HALF, more & LOW
        at += n_ids
        k += 1
    return k, np.int64(at)


@inlined
def _find_long(slot, low, high, text, start, size, entries, known):
    """The entry of a long word, or the free one where it belongs."""
    while entries[slot, 1]:
        alike = entries[slot, 0] == low and entries[slot, 1] == high
        if alike and _same(text, start, known, np.int64(entries[slot, 2] >> HALF), size):
            break
        slot = (slot + 1) & (len(entries) - 1)
    return slot


@inlined
def _remember(slot, low, high, text, start, size, ids, at, n, entries, pool, known, used):
    """Put a word with n ids, ids[at :], into a free entry."""
    third, flag = np.uint64(0), np.uint64(0)
    if n <= 3 and size <= SHORT:
        value = np.uint64(ids[at])
        if n > 1:
            value |= np.uint64(ids[at + 1]) << HALF
        if n > 2:
            third = np.uint64(ids[at + 2])
    else:
        flag, value = IN_POOL, np.uint64(used[2]) << HALF | np.uint64(used[1])
        for k in range(n):
            pool[used[1] + k] = ids[at + k]
        used[1] += n
        if size > SHORT:
            for k in range(size):
                known[used[2] + k] = text[start + k]
            used[2] += size
    entries[slot, 0], entries[slot, 1], entries[slot, 2] = low, high, value
    entries[slot, 3] = third | np.uint64(n) << HALF | flag
    used[0] += 1


@kernel
def _encode_words(text, start, ends, n, keys, tokens, ranks, cache, merging, out, at):
    """Write the ids of n words that lie end to end in a text, up to where the cache is to grow.

    Returns how many words are done, and where their ids end; or -1 - k if a byte of word k has no id. There must be
    room for as many ids as the words have bytes, and two more.
    """
    byte_ids, byte_pairs, pairs, filter = ranks
    entries, pool, known, used = cache
    symbols, joined, values = merging
    lows, highs, slots = keys[0], keys[1], keys[2]
    mask, whole, k = len(entries) - 1, len(tokens.slots) > 0, 0
    _make_keys(text, start, ends, n, np.uint64(mask), keys)
    while True:
        k, at = _recall_words(k, n, lows, highs, slots, entries, pool, out, at)
        if k == n or (2 * used[0] >= len(entries) and len(entries) < used[3]):
            return k, at
        begin = ends[k - 1] if k else start
        size, low, high, slot = ends[k] - begin, lows[k], highs[k], np.int64(slots[k])
        n_ids = 0
        if size > SHORT:
            low, high = _key(text, begin, size)
            slot = _find_long(_slot(_mixed(low, high), len(entries)), low, high, text, begin, size, entries, known)
            n_ids = np.int64((entries[slot, 3] & ~IN_POOL) >> HALF)
            for i in range(n_ids):
                out[at + i] = pool[np.int64(entries[slot, 2] & LOW) + i]
        if n_ids == 0:
            id = _find_token(text, begin, size, tokens) if whole else np.int64(-1)
            if id >= 0:
                out[at], n_ids = id, 1
            elif size <= SCANNED:
                n_ids = _merge_short(
                    text, begin, size, byte_ids, byte_pairs, pairs, filter, symbols, joined, values, out, at
                )
            else:
                n_ids = _merge_long(text, begin, size, NONE, ranks, out, at)
            if n_ids < 0:
                return -1 - k, at
            if size <= len(known) >> 12:  # longer ones are not worth their place
                if (
                    4 * used[0] >= 3 * len(entries)
                    or used[1] + n_ids > len(pool)
                    or used[2] + size + PADDING > len(known)
                ):
                    entries[:], used[:3] = np.uint64(0), 0
                    slot = _slot(_mixed(low, high), len(entries))
                _remember(slot, low, high, text, begin, size, out, at, n_ids, entries, pool, known, used)
        at += n_ids
        k += 1


@kernel
def _special_at(text, at, stop, specials):
    """Which special token stands at this place, the longest of several; or -1."""
    known, ends, _, first = specials
    s, end = first[text[at]], first[text[at] + 1]
    if s == end or at + 1 == stop:
        return -1
    above = end
    while s < above:  # the first whose second byte is right: some models have a thousand that begin alike
        middle = (s + above) >> 1
        if known[ends[middle] + 1] < text[at + 1]:
            s = middle + 1
        else:
            above = middle
    while s < end and known[ends[s] + 1] == text[at + 1]:
        size = ends[s + 1] - ends[s]
        if at + size <= stop and _same_bytes(text, at, known, ends[s], size):
            return s
        s += 1
    return -1


@kernel
def _cut_at_specials(text, start, stop, specials, pieces, n):
    """Add the pieces of text[start : stop] to n pieces, uncut but at special tokens; returns their number.

    It is more than there is room for if some were not written.
    """
    known, ends, ids, first = specials
    ones, tops = ALL_ONES // np.uint64(255), ALL_ONES // np.uint64(255) << np.uint64(7)
    begin = start
    at = start if len(ids) else stop
    common = len(ids) > 0 and first[known[0] + 1] - first[known[0]] == len(ids)
    pattern = np.uint64(known[0]) * ones  # 8 times the first byte of all special tokens
    while at < stop:
        if common:
            while at + 8 <= stop:
                different = load8(text, at) ^ pattern
                if (different - ones) & ~different & tops:  # one of them is 0
                    break
                at += 8
            while at < stop and text[at] != known[0]:
                at += 1
            if at == stop:
                break
        found = _special_at(text, at, stop, specials)
        if found < 0:
            at += 1
            continue
        if n + 2 < len(pieces):
            if begin < at:
                pieces[n, 0], pieces[n, 1], pieces[n, 2] = begin, at, -1
            pieces[n + (begin < at), 0] = at
            pieces[n + (begin < at), 1] = at + ends[found + 1] - ends[found]
            pieces[n + (begin < at), 2] = ids[found]
        n += 1 + (begin < at)
        at += ends[found + 1] - ends[found]
        begin = at
    if begin < stop:
        if n < len(pieces):
            pieces[n, 0], pieces[n, 1], pieces[n, 2] = begin, stop, -1
        n += 1
    return n


@kernel
def _rehash(entries, larger):
    """Enter all words into a larger table, which is empty."""
    for k in range(len(entries)):
        if entries[k, 1]:
            slot = _slot(_mixed(entries[k, 0], entries[k, 1]), len(larger))
            while larger[slot, 1]:
                slot = (slot + 1) & (len(larger) - 1)
            larger[slot] = entries[k]


@inlined
def _array(handles, k, dtype):
    """The k-th array of `_handles`."""
    return numba.carray(pointer(handles[k, 0]), (handles[k, 1],), dtype)


@inlined
def _table(handles, k, width, dtype):
    """The k-th array of `_handles`, in rows."""
    return numba.carray(pointer(handles[k, 0]), (handles[k, 1] // width, width), dtype)


DONE, NO_ROOM, NOT_UTF8, NO_ID, GROW = range(5)


@kernel
def _encode_pieces(text, shown, pieces, scanner, tokens, ranks, desk, out, at):
    """Write the ids of pieces, int64[P, 4]: where each begins and ends; its id if it is a special token, or -1; and,
    written here, where its ids end. `shown` is the text as the scanner shall see it.

    `at` has the piece to go on with, where its ids go, and how much room is wanted. If the answer is not DONE, call
    again when what was missing is there: room, `shown` in UTF-8, or a larger cache.
    """
    cursors, keys, cache, merging = desk
    o = at[1]
    for p in range(at[0], len(pieces)):
        at[0] = p
        stop = pieces[p, 1]
        if pieces[p, 2] >= 0:
            at[2] = 1
            if o == len(out):
                return NO_ROOM
            out[o] = pieces[p, 2]
            o += 1
        elif pieces[p, 0] < stop:
            _begin_scan(pieces[p, 0], cursors)
            more = 1
            while more == 1:
                at[1] = o
                more = _scan_some(shown, stop, scanner, cursors)
                if more < 0:
                    return NOT_UTF8
                n = cursors.filled[0]
                if n:
                    begin, end = cursors.begin[0], cursors.ends[0, n - 1]
                    at[2] = end - begin + 2
                    if o + at[2] > len(out):
                        return NO_ROOM
                    ends = cursors.ends[0]
                    done, o = _encode_words(text, begin, ends, n, keys, tokens, ranks, cache, merging, out, o)
                    if done < 0:
                        return NO_ID
                    if done:
                        pieces[p, 0] = ends[done - 1]
                    if done < n:
                        at[1] = o
                        return GROW
        pieces[p, 3] = at[1] = o
    at[0] = len(pieces)
    return DONE


@kernel
def _decoded_size(ids, sizes):
    """How many bytes the tokens have; or -1 - k if ids[k] is not an id."""
    total = np.int64(0)
    for k in range(len(ids)):
        id = np.int64(ids[k])
        if id >= len(sizes) or sizes[id] == 0:
            return -1 - k
        total += sizes[id]
    return total


@kernel
def _write_tokens(ids, tokens, out):
    """Write the bytes of ids, end to end. There must be PADDING behind them."""
    text, starts, sizes, _ = tokens
    at = 0
    for k in range(len(ids)):
        start, size = starts[ids[k]], sizes[ids[k]]
        store8(out, at, load8(text, start))
        store8(out, at + 8, load8(text, start + 8))
        for i in range(16, size):
            out[at + i] = text[start + i]
        at += size


class _Desk(NamedTuple):
    """What one thread encodes with."""

    cursors: _Cursors
    keys: np.ndarray  # uint64[3, …], see _make_keys
    cache: _Cache
    merging: _Merging


class _Sheet(NamedTuple):
    """Where a text is encoded that is not too long: fresh memory for each would take as long as its encoding."""

    text: np.ndarray  # uint8[…]     for 2 * BLOCK bytes, or SHORT_TEXT, and PADDING
    pieces: np.ndarray  # int64[…, 4], see _encode_pieces
    out: np.ndarray  # uint32[…]
    at: np.ndarray  # int64[3]


@kernel
def _encode_short(data, handles):
    """Encode up to SHORT_TEXT bytes with the arrays of `_handles`; returns how many ids, or -1 if that does not do."""
    h = handles
    width, n_states = h[0, 0], h[0, 1]
    classes, safe = _array(h, 2, np.uint8), _table(h, 5, width - 1, np.bool_)
    after, matches = _table(h, 3, width, np.int16), _table(h, 4, width, np.bool_)
    scanner = Scanner(_array(h, 1, np.uint32), n_states, classes, after, matches, safe)
    tokens = _Tokens(_array(h, 6, np.uint8), _array(h, 7, np.int64), _array(h, 8, np.int64), _array(h, 9, np.int32))
    pairs, filter = _table(h, 12, 2, np.uint64), _array(h, 13, np.uint64)
    ranks = _Ranks(_array(h, 10, np.int32), _array(h, 11, np.uint64), pairs, filter)
    known, ends = _array(h, 14, np.uint8), _array(h, 15, np.int64)
    specials = _Specials(known, ends, _array(h, 16, np.int64), _array(h, 17, np.int64))
    begin, at, entry = _array(h, 18, np.int64), _array(h, 19, np.int64), _array(h, 20, np.uint32)
    cursors = _Cursors(begin, at, entry, _array(h, 21, np.int64), _table(h, 22, h[22, 1] // LANES, np.int64))
    entries, pool, words = _table(h, 24, 4, np.uint64), _array(h, 25, np.uint32), _array(h, 26, np.uint8)
    cache = _Cache(entries, pool, words, _array(h, 27, np.int64))
    merging = _Merging(_array(h, 28, np.uint32), _array(h, 29, np.uint32), _array(h, 30, np.uint64))
    desk = _Desk(cursors, _table(h, 23, h[23, 1] // 3, np.uint64), cache, merging)
    text, pieces, out = _array(h, 31, np.uint8), _table(h, 32, 4, np.int64), _array(h, 33, np.uint32)
    reached = _array(h, 34, np.int64)

    size = len(data)
    for k in range(size):
        text[k] = data[k]
    n = _cut_at_specials(text, 0, size, specials, pieces, 0)
    if n > len(pieces) - 2:
        return np.int64(-1)
    reached[0] = reached[1] = 0
    if _encode_pieces(text, text, pieces[:n], scanner, tokens, ranks, desk, out, reached) != DONE:
        return np.int64(-1)
    return reached[1]


def _new_desk() -> _Desk:
    """The memory is taken as it is used: some 4 MB, and up to 112 MB of cache."""
    return _Desk(
        _new_cursors(),
        np.zeros((3, 2 * ENOUGH + 16), np.uint64),
        _Cache(
            np.zeros((min(FIRST, CACHED), 4), np.uint64),
            np.zeros(POOLED, np.uint32),
            np.zeros(POOLED, np.uint8),
            np.array([0, 0, 0, CACHED]),
        ),
        _Merging(np.zeros(SCANNED, np.uint32), np.zeros(SCANNED, np.uint32), np.zeros(SCANNED, np.uint64)),
    )


def _new_sheet() -> _Sheet:
    return _Sheet(
        np.zeros(max(2 * BLOCK, SHORT_TEXT) + PADDING, np.uint8),
        np.zeros((64 + BLOCK // 64, 4), np.int64),
        np.zeros(max(BLOCK, 2 * SHORT_TEXT), np.uint32),
        np.zeros(3, np.int64),
    )


def _handles(scanner: Scanner, tokens: _Tokens, ranks: _Ranks, specials: _Specials, desk: _Desk, sheet: _Sheet):
    """Where all these arrays stand, and their sizes: int64[35, 2]. They must outlive it.

    As arguments they would cost 40 ns each, in named tuples 130: more than to encode a dozen bytes.
    """
    table, n_states, *others = scanner
    arrays = [table, *others, *tokens, *ranks, *specials, *desk.cursors, desk.keys, *desk.cache, *desk.merging, *sheet]
    return np.array(
        [(scanner.after.shape[1], n_states), *((array.ctypes.data, array.size) for array in arrays)], np.int64
    )


def _new_tokens(vocab: Mapping[int, bytes]) -> _Tokens:
    """The tokens, without the table."""
    ids = np.fromiter(vocab, np.int64, len(vocab))
    lengths = np.fromiter(map(len, vocab.values()), np.int64, len(vocab))
    starts, sizes = np.zeros((2, max(vocab, default=0) + 1), np.int64)
    starts[ids], sizes[ids] = np.cumsum(lengths) - lengths, lengths
    return _Tokens(_padded(b"".join(vocab.values())), starts, sizes, np.zeros(0, np.int32))


def _indexed(tokens: _Tokens, ids: Sequence[int]) -> _Tokens:
    """The tokens with a table of these ids."""
    tokens = tokens._replace(slots=np.full(_table_size(len(ids)), -1, np.int32))
    _index_tokens(np.array(ids, np.int64), tokens)
    return tokens


def _splits(tokens: _Tokens, ids: Sequence[int]) -> np.ndarray:
    """All ways to make one of these tokens of two of the table: int64[…, 3], by the token, then the place."""
    ids = np.array(ids, np.int64)
    splits = np.empty((_list_splits(ids, tokens, np.empty((0, 3), np.int64)), 3), np.int64)
    _list_splits(ids, tokens, splits)
    return splits


def _new_ranks(byte_ids: Sequence[int], merges: np.ndarray, by_id: bool) -> _Ranks:
    size = _table_size(len(merges))
    ranks = _Ranks(
        np.array(byte_ids, np.int32),
        np.full(1 << 16, NONE, np.uint64),
        np.full((size, 2), NONE, np.uint64),
        np.zeros(size >> 3, np.uint64),
    )
    _fill_ranks(merges, by_id, ranks)
    return ranks


def _new_specials(special_tokens: Mapping[str, int]) -> _Specials:
    in_order = sorted((token.encode()[:2], -len(token.encode()), token) for token in special_tokens)
    tokens = [token.encode() for *_, token in in_order]
    return _Specials(
        _padded(b"".join(tokens)),
        np.cumsum([0, *map(len, tokens)]),
        np.array([special_tokens[token] for *_, token in in_order], np.int64),
        np.searchsorted([token[0] for token in tokens], np.arange(257)),
    )


# ─── Tokenizer ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Place:
    """All that one thread encodes with, and what `_encode_short` is told of it."""

    def __init__(self, *common: NamedTuple, specials: Mapping[str, _Specials]):
        self.common, self.specials = common, specials
        self.sheet = _new_sheet()
        self._settle(_new_desk())

    def _settle(self, desk: _Desk) -> None:
        self.desk = desk
        self.handles = {name: _handles(*self.common, which, desk, self.sheet) for name, which in self.specials.items()}

    def grow(self) -> None:
        """Make the cache four times as large."""
        cache = self.desk.cache
        larger = np.zeros((min(4 * len(cache.entries), cache.used[3]), 4), np.uint64)
        _rehash(cache.entries, larger)
        self._settle(self.desk._replace(cache=cache._replace(entries=larger)))


class Flags(NamedTuple):
    """How Hugging Face finds a special token in a text."""

    single_word: bool = False  # only where no letter or digit stands beside it
    lstrip: bool = False  # with the white space before it
    rstrip: bool = False  # and behind it
    normalized: bool = False  # after all that are not
    special: bool = True  # left out by what is to leave special tokens out: nothing here does


class Tokenizer:
    """Text to token ids and back.

    vocab           id -> bytes; ids may have gaps
    merges          pairs of bytes, the first to be merged first; or None, and any two neighbours whose bytes, joined,
                    are a token may merge, the token of the lowest id first, as tiktoken does
    special_tokens  strings, or strings and their ids; those that have no id get the ids behind the last
    pattern         the name of a pattern, a regular expression, or several, each of which cuts what the last has left
    ignore_merges   a pretoken that is a token is that token, even where the merges do not get there
    add_prefix_space  text that does not begin with a space is encoded as if it did
    flags           how special tokens are found, if not in the plain way

    Threads may share a tokenizer, and it can be pickled. Raises ValueError for a vocabulary that cannot be.

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
        merges: Sequence[tuple[bytes, bytes]] | None,
        special_tokens: Iterable[str] | Mapping[str, int] | None = None,
        pattern: str | Sequence[str] = "gpt2",
        *,
        ignore_merges: bool = False,
        add_prefix_space: bool = False,
        flags: Mapping[str, Flags] | None = None,
    ):
        self.pattern = Pattern(pattern)
        self.vocab, self.special_tokens = _with_specials(vocab, special_tokens or ())
        self.merges = None if merges is None else [(left, right) for left, right in merges]
        self.ignore_merges = ignore_merges or merges is None
        self.add_prefix_space = add_prefix_space
        self.flags = {token: flag for token, flag in (flags or {}).items() if token in self.special_tokens}
        self.config: dict = {}  # what tokenizer_config.json shall say
        self.post_processor: dict | None = None  # what tokenizer.json says of it; used by others
        self._id_of = {token: id for id, token in self.vocab.items()}
        self._tokens = _new_tokens(self.vocab)
        byte_ids = [self._id_of.get(bytes([b]), -1) for b in range(256)]
        special = set(self.special_tokens.values()) - {self._id_of.get(a + b) for a, b in self.merges or ()}
        ordinary = sorted(id for id in self.vocab if id not in special)
        if self.ignore_merges:
            self._tokens = _indexed(self._tokens, ordinary)
        if self.merges is None:
            for id in ordinary:
                if len(self.vocab[id]) > LONGEST_TOKEN:
                    raise BadInput(f"token {id} has {len(self.vocab[id]):,} bytes; without merges there may be 4,096")
            self._ranks = _new_ranks(byte_ids, _splits(self._tokens, ordinary), True)
        else:
            self._ranks = _new_ranks(byte_ids, _merged_ids(self.merges, self._id_of), False)
        # What the pattern leaves to `regex` comes in pretokens, and is not cut any further.
        self._scanner = self.pattern.scanner or Pattern("none").scanner
        self._specials = {"all": _new_specials(self.special_tokens), "none": _new_specials({})}
        self._is_plain = not add_prefix_space and not _need_care(self.special_tokens, self.flags)
        self._places: list[_Place] = []  # those that no thread is using

    def __len__(self) -> int:
        """The number of tokens, special tokens included."""
        return len(self.vocab)

    def __repr__(self) -> str:
        pattern = self.pattern.name or self.pattern.text
        return f"<Tokenizer: {len(self)} tokens, {len(self.special_tokens)} special, pattern {pattern}>"

    def __reduce__(self):
        return _unpickled, (self._pickled,)

    def _state(self) -> tuple[tuple, dict]:
        """What to make the same tokenizer with."""
        names = "ignore_merges", "add_prefix_space", "flags"
        return (self.vocab, self.merges, self.special_tokens, self.pattern.text), {k: getattr(self, k) for k in names}

    @functools.cached_property
    def _pickled(self) -> bytes:
        return zlib.compress(pickle.dumps((self._state(), self.config, self.post_processor)), 1)

    @functools.cached_property
    def digest(self) -> str:
        """A SHA-256 of all that decides about ids, in hexadecimal."""
        (vocab, merges, special_tokens, pattern), options = self._state()
        model = sorted(vocab.items()), merges, sorted(special_tokens.items()), pattern, sorted(options.items())
        return hashlib.sha256(repr(model).encode()).hexdigest()

    @classmethod
    def from_files(
        cls,
        vocab_path: str | os.PathLike,
        merges_path: str | os.PathLike,
        special_tokens: Iterable[str] | None = None,
        pattern: str = "gpt2",
    ) -> Tokenizer:
        """Load GPT-2's two files, vocab.json and merges.txt.

        If no special tokens are given, they are the tokens that no merge makes, the bytes apart.
        """
        return _from_gpt2(Path(vocab_path), Path(merges_path), special_tokens, pattern)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        *,
        encoding: str | None = None,
        pattern: str | None = None,
        special_tokens: Iterable[str] | Mapping[str, int] | None = None,
    ) -> Tokenizer:
        """Load a model from a file or a folder: what it is, its content tells.

        That is a tokenizer.json of Hugging Face's with a byte-level BPE; GPT-2's vocab.json and merges.txt, whatever
        they are called; or a rank file of tiktoken's. For a rank file, `encoding` is a name in ENCODINGS, or `pattern`
        and `special_tokens` say what the file does not; neither is needed for a published one, or one that was saved
        here. Raises ValueError for a file that is none of these, and for what would encode otherwise here than there.
        """
        return _load(Path(path), encoding, pattern, special_tokens)

    def save(self, path: str | os.PathLike, format: str | None = None) -> None:
        """Write a model folder.

        "huggingface"   tokenizer.json, tokenizer_config.json, special_tokens_map.json
        "gpt2"          vocab.json, merges.txt
        "tiktoken"      tokenizer.tiktoken, and the pattern and the special tokens in tokenizer.tiktoken.json
        None            the first, and the second if it can be

        Raises ValueError for what the format cannot hold.
        """
        if format not in (None, *FORMATS):
            raise BadInput(f"the formats are {', '.join(FORMATS)}, not {format!r}")
        if format is None:
            plain = self.merges is not None and not self.ignore_merges
            texts = _huggingface_files(self) | (_gpt2_files(self) if plain else {})
        else:
            texts = FORMATS[format](self)
        _write_files(Path(path), texts)

    def to_huggingface(self):
        """A `tokenizers.Tokenizer` with the same ids."""
        tokenizers = _imported("tokenizers")
        return tokenizers.Tokenizer.from_str(_huggingface_files(self)["tokenizer.json"])

    def to_tiktoken(self, name: str = "bpe_numba"):
        """A `tiktoken.Encoding` with the same ids; raises ValueError if there can be none."""
        tiktoken = _imported("tiktoken")
        ranks = _tiktoken_ranks(self)
        return tiktoken.Encoding(
            name, pat_str=self.pattern.text, mergeable_ranks=ranks, special_tokens=self.special_tokens
        )

    def token_to_id(self, token: bytes | str) -> int | None:
        """The id of a token, or None."""
        return self._id_of.get(token.encode() if isinstance(token, str) else token)

    def id_to_token(self, id: int) -> bytes:
        """The bytes of a token; raises ValueError if there is no such id."""
        try:
            return self.vocab[id]
        except (KeyError, TypeError):
            raise BadInput(f"id {id!r} is not in the vocabulary, whose ids end at {max(self.vocab)}") from None

    def encode(self, text: str | bytes, allowed_special: str | Iterable[str] = "all") -> list[int]:
        """The ids of a text, or of bytes, valid UTF-8 or not.

        allowed_special says which special tokens in the text become their ids: "all", "none", or some of them. The
        others are text like any other: nobody can forge a control token that is not allowed.
        """
        return self._encode_text(text, allowed_special, np.ndarray.tolist)

    def encode_ordinary(self, text: str | bytes) -> list[int]:
        """The ids of a text in which no special token is honoured."""
        return self.encode(text, "none")

    def encode_to_numpy(self, text: str | bytes, allowed_special: str | Iterable[str] = "all") -> np.ndarray:
        """What `encode` gives, as uint32[N].

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_to_numpy("Hi")
        array([ 72, 105], dtype=uint32)
        """
        return self._encode_text(text, allowed_special, np.ndarray.copy)

    def encode_batch(
        self, texts: Iterable[str | bytes], allowed_special: str | Iterable[str] = "all", *, threads: int | None = None
    ) -> list[list[int]]:
        """The ids of each text; large batches in several threads, one a core if not told otherwise.

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_batch(["Hi", "", "!"])
        [[72, 105], [], [33]]
        """
        ids, offsets = self.encode_batch_to_numpy(texts, allowed_special, threads=threads)
        ids, offsets = ids.tolist(), offsets.tolist()
        return [ids[start:stop] for start, stop in itertools.pairwise(offsets)]

    def encode_batch_to_numpy(
        self, texts: Iterable[str | bytes], allowed_special: str | Iterable[str] = "all", *, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, uint32[N], and where those of each begin and end, int64[T + 1].

        >>> Tokenizer({b: bytes([b]) for b in range(256)}, []).encode_batch_to_numpy(["Hi", "", "!"])
        (array([ 72, 105,  33], dtype=uint32), array([0, 2, 2, 3]))
        """
        if isinstance(texts, (str, bytes)):
            raise BadInput("encode_batch takes a list of texts: encode takes one")
        if threads is not None and threads < 1:
            raise BadInput(f"{threads} threads: at least one must do the work")
        if not isinstance(allowed_special, str):
            allowed_special = list(allowed_special)
        batches = list(_batches(map(_text_bytes, texts)))
        encode = functools.partial(self._encode_texts, allowed_special=allowed_special)
        if len(batches) < 2 or threads == 1:
            encoded = list(map(encode, batches))
        else:
            with ThreadPoolExecutor(threads or available_cores()) as pool:
                encoded = list(pool.map(encode, batches))
        lengths = [np.diff(offsets) for _, offsets in encoded]
        return (
            np.concatenate([ids for ids, _ in encoded] or [np.zeros(0, np.uint32)]),
            np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
        )

    def encode_iterable(
        self, chunks: Iterable[str | bytes], allowed_special: str | Iterable[str] = "all"
    ) -> Iterator[int]:
        """The ids of a text that comes in chunks, a file say: the same as of the whole text, in bounded memory.

        What `Splitter` says about memory holds here.
        """
        if isinstance(chunks, (str, bytes)):
            chunks = [chunks]
        if not self._is_plain:
            yield from self.encode("".join(_decoded(chunks)).encode("utf-8", "surrogateescape"), allowed_special)
            return
        splitter = Splitter(self.pattern, self._allowed(allowed_special))
        for text in _decoded(chunks):
            yield from self._encode_stretch(splitter.feed(text))
        yield from self._encode_stretch(splitter.close())

    def _encode_text(self, text: str | bytes, allowed_special: str | Iterable[str], taken: Callable):
        """The ids of a text, as `taken` takes them from an array; a short one without ado."""
        data = text.encode() if isinstance(text, str) and text.isascii() else _text_bytes(text)
        if len(data) <= SHORT_TEXT and isinstance(allowed_special, str):
            try:
                place = self._places.pop()
            except IndexError:
                place = self._new_place()
            handles = place.handles.get(allowed_special)
            n = -1 if handles is None else _encode_short(data, handles)
            ids = taken(place.sheet.out[:n]) if n >= 0 else None
            self._places.append(place)
            if ids is not None:
                return ids
        ids = self._encode_texts([data], allowed_special)[0]
        return ids.tolist() if taken is np.ndarray.tolist else ids

    def _new_place(self) -> _Place:
        usual = self._specials if self.pattern.scanner and self._is_plain else {}
        return _Place(self._scanner, self._tokens, self._ranks, specials=usual)

    @contextlib.contextmanager
    def _at_place(self) -> Iterator[_Place]:
        try:
            place = self._places.pop()
        except IndexError:
            place = self._new_place()
        yield place
        self._places.append(place)

    def compile_kernels(self) -> None:
        """Compile the kernels of encoding, or load them from the cache; processes that are forked later have them."""
        self.encode_batch([b"one two\xff"])
        _rehash(np.zeros((2, 4), np.uint64), np.zeros((4, 4), np.uint64))

    def _encode_stretch(self, found: Sequence[Piece]) -> list[int]:
        texts = [_to_bytes(piece.text) for piece in found]
        ends = np.cumsum([0, *map(len, texts)])
        pieces = np.zeros((len(texts), 4), np.int64)
        pieces[:, 0], pieces[:, 1] = ends[:-1], ends[1:]
        pieces[:, 2] = [self.special_tokens[piece.text] if piece.is_special else -1 for piece in found]
        with self._at_place() as place:
            return self._encode_pieces(_padded(b"".join(texts)), pieces, [len(pieces)], place)[0].tolist()

    def _encode_texts(
        self, texts: Sequence[bytes], allowed_special: str | Iterable[str], number: np.dtype | type = np.uint32
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, end to end, and their offsets."""
        if not self._is_plain:
            return self._encode_with_care(texts, allowed_special, number)
        specials = self._specials_of(allowed_special)
        size = sum(map(len, texts))
        with self._at_place() as place:
            sheet = place.sheet
            fits = size + PADDING <= len(sheet.text)
            text = sheet.text[: size + PADDING] if fits else np.empty(size + PADDING, np.uint8)
            text[:size] = np.frombuffer(texts[0] if len(texts) == 1 else b"".join(texts), np.uint8)
            text[size:] = 0
            pieces, last, start = sheet.pieces, [0], 0
            for part in texts:
                n = _cut_at_specials(text, start, start + len(part), specials, pieces, last[-1])
                while n > len(pieces) - 2:
                    pieces = np.concatenate([pieces, np.zeros((n, 4), np.int64)])
                    n = _cut_at_specials(text, start, start + len(part), specials, pieces, last[-1])
                last.append(n)
                start += len(part)
            return self._encode_pieces(text, pieces, last, place, number)

    def _encode_with_care(
        self, texts: Sequence[bytes], allowed_special: str | Iterable[str], number: np.dtype | type
    ) -> tuple[np.ndarray, np.ndarray]:
        """`_encode_texts` where special tokens have flags, or text is to begin with a space."""
        flags = {token: self.flags.get(token, Flags()) for token in self._allowed(allowed_special)}
        found, last = [], [0]
        for text in texts:
            for part, token in _split_at_added(_to_text(text), flags):
                prefix = " " if self.add_prefix_space and token is None and not part.startswith(" ") else ""
                found.append((_to_bytes(prefix + part), -1 if token is None else self.special_tokens[token]))
            last.append(len(found))
        ends = np.cumsum([0, *(len(data) for data, _ in found)])
        pieces = np.zeros((len(found), 4), np.int64)
        pieces[:, 0], pieces[:, 1], pieces[:, 2] = ends[:-1], ends[1:], [id for _, id in found]
        with self._at_place() as place:
            return self._encode_pieces(_padded(b"".join(data for data, _ in found)), pieces, last, place, number)

    def _encode_pieces(
        self,
        text: np.ndarray,
        pieces: np.ndarray,
        last: Sequence[int],
        place: _Place,
        number: np.dtype | type = np.uint32,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ids of pieces, see the kernel of this name, and where they are after so many pieces."""
        if len(text) >= 1 << 32:
            raise BadInput("more than 4 GB of text at once: encode_iterable takes it in chunks")
        pieces = pieces[: last[-1]]
        if self.pattern.scanner is None:
            pieces, last = self._cut_by_regex(text, pieces, last)
        out = place.sheet.out if len(text) <= len(place.sheet.text) else np.empty(len(text) // 3, np.uint32)
        at, shown = np.zeros(3, np.int64), text
        while True:
            status = _encode_pieces(text, shown, pieces, self._scanner, self._tokens, self._ranks, place.desk, out, at)
            if status == DONE:
                break
            if status == NO_ROOM:
                larger = np.empty(max(len(out) * 3 // 2, at[1] + at[2]), np.uint32)
                larger[: at[1]] = out[: at[1]]
                out = larger
            elif status == NOT_UTF8:
                shown = _as_utf8(text)
            elif status == GROW:
                place.grow()
            else:
                self._refuse_byte(text, pieces[at[0]])
        if out is not place.sheet.out and number == out.dtype:
            out.resize(at[1], refcheck=False)
            ids = out
        else:
            ids = out[: at[1]].astype(number)
        return ids, np.concatenate([np.zeros(1, np.int64), pieces[:, 3]])[last]

    def _refuse_byte(self, text: np.ndarray, piece: np.ndarray):
        known = self._ranks.byte_ids[text[piece[0] : piece[1]]] >= 0
        byte = text[piece[0] + int(np.argmin(known))]
        raise BadInput(f"the byte 0x{byte:02X} is not in the vocabulary")

    def _cut_by_regex(self, text: np.ndarray, pieces: np.ndarray, last: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Pieces that are pretokens, and how many there are at the end of each text."""
        data, cut, reached = text.tobytes(), [], [0]
        for start, stop, id, _ in pieces.tolist():
            ends = [stop]
            if id < 0:
                ends = np.cumsum([start, *map(len, self.pattern.split(data[start:stop]))])[1:]
            for end in ends:
                cut.append((start, end, id, 0))
                start = end
            reached.append(len(cut))
        return np.array(cut, np.int64).reshape(-1, 4), [reached[n] for n in last]

    def _specials_of(self, allowed_special: str | Iterable[str]) -> _Specials:
        if isinstance(allowed_special, str) and allowed_special in self._specials:
            return self._specials[allowed_special]
        return _new_specials({token: self.special_tokens[token] for token in self._allowed(allowed_special)})

    def _allowed(self, allowed_special: str | Iterable[str]) -> list[str]:
        if isinstance(allowed_special, str):
            if allowed_special not in ("all", "none"):
                raise BadInput(f"allowed_special is 'all', 'none' or a set of tokens, not {allowed_special!r}")
            return list(self.special_tokens) if allowed_special == "all" else []
        for token in (allowed := list(allowed_special)):
            if token not in self.special_tokens:
                raise BadInput(f"{token!r} is not a special token of this tokenizer: {', '.join(self.special_tokens)}")
        return allowed

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of some ids; raises ValueError for an id that is not in the vocabulary."""
        few = self._decoded_few(ids)
        return self._decoded(ids).tobytes() if few is None else few

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids. What is not UTF-8 becomes U+FFFD."""
        few = self._decoded_few(ids)
        return str(self._decoded(ids).data, "utf-8", "replace") if few is None else few.decode("utf-8", "replace")

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """The texts of several lists of ids."""
        return [self.decode(ids) for ids in batch]

    def _decoded_few(self, ids: Iterable[int]) -> bytes | None:
        """A short list, without the 3 µs that it takes to call two kernels; None for all else."""
        if not isinstance(ids, list) or len(ids) > 64:
            return None
        try:
            return b"".join([self.vocab[id] for id in ids])
        except (KeyError, TypeError):
            return None  # to be told what is wrong

    def _decoded(self, ids: Iterable[int]) -> np.ndarray:
        ids = _id_array(ids)
        size = _decoded_size(ids, self._tokens.sizes)
        if size < 0:
            self.id_to_token(int(ids[-1 - size]))
        text = np.empty(size + PADDING, np.uint8)
        _write_tokens(ids, self._tokens, text)
        return text[:size]


_unpickled_before: dict[bytes, Tokenizer] = {}


def _unpickled(pickled: bytes) -> Tokenizer:
    """A tokenizer is sent with each piece of work, and made once in a process; the last few are kept."""
    if pickled not in _unpickled_before:
        (arguments, options), config, post_processor = pickle.loads(zlib.decompress(pickled))
        tokenizer = Tokenizer(*arguments, **options)
        tokenizer.config, tokenizer.post_processor, tokenizer._pickled = config, post_processor, pickled
        _keep(pickled, tokenizer)
    return _unpickled_before[pickled]


def _keep(pickled: bytes, tokenizer: Tokenizer) -> None:
    while len(_unpickled_before) >= 4:
        del _unpickled_before[next(iter(_unpickled_before))]
    _unpickled_before[pickled] = tokenizer


def _need_care(special_tokens: Iterable[str], flags: Mapping[str, Flags]) -> bool:
    """Whether to look for special tokens, the longest first, is not enough."""
    plain = {Flags(normalized=n, special=s) for n in (False, True) for s in (False, True)}
    mixed = len({flags.get(token, Flags()).normalized for token in special_tokens}) > 1
    return not plain.issuperset(flags.values()) or (mixed and _can_overlap(list(special_tokens)))


def _split_at_added(text: str, flags: Mapping[str, Flags]) -> Iterator[tuple[str, str | None]]:
    """Cut a text at special tokens as Hugging Face does: those that are not `normalized` first."""
    parts: list[tuple[str, str | None]] = [(text, None)]
    for normalized in (False, True):
        wanted = [token for token, flag in flags.items() if flag.normalized == normalized]
        if wanted:
            pattern = _special_regex(wanted)
            cut = ([(part, token)] if token else _split_once(part, pattern, flags) for part, token in parts)
            parts = list(itertools.chain.from_iterable(cut))
    return ((part, token) for part, token in parts if part)


def _split_once(text: str, pattern: regex.Pattern, flags: Mapping[str, Flags]) -> Iterator[tuple[str, str | None]]:
    end = 0
    for match in pattern.finditer(text):
        flag, start, stop = flags[match[0]], match.start(), match.end()
        if flag.single_word and (regex.search(r"\w\Z", text[:start]) or regex.match(r"\w", text[stop:])):
            continue
        if flag.lstrip:
            start = max(end, len(text[:start].rstrip()))
        if flag.rstrip:
            stop += len(text[stop:]) - len(text[stop:].lstrip())
        yield text[end:start], None
        yield text[start:stop], match[0]
        end = stop
    yield text[end:], None


def _imported(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise BadInput(f"this needs the package {name}: pip install {name}") from None


def _text_bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(_surrogate(error)) from None
    except AttributeError:
        raise BadInput(f"a text is str or bytes, not {type(text).__name__}") from None


def _batches(texts: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Texts in lists of BLOCK bytes, or somewhat more."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BLOCK:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _id_array(ids: Iterable[int]) -> np.ndarray:
    """Ids as uint32; raises ValueError for what cannot be an id."""
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise BadInput(f"ids are whole numbers in a row, not {ids.dtype} of shape {ids.shape}")
        if ids.dtype != np.uint32 and ids.size and not (ids.min() >= 0 and ids.max() < MOST_IDS):
            raise BadInput(f"id {next(id for id in ids.tolist() if not 0 <= id < MOST_IDS)} is not in the vocabulary")
        return np.require(ids, np.uint32, ["C", "W"])
    ids = ids if isinstance(ids, (list, tuple)) else list(ids)
    try:
        return np.frombuffer(array("I", ids), np.uint32)
    except (TypeError, OverflowError):
        wrong = next(id for id in ids if not isinstance(id, (int, np.integer)) or not 0 <= id < MOST_IDS)
        raise BadInput(f"id {wrong!r} is not in the vocabulary") from None


_IDS = f"an id is a whole number from 0 to {MOST_IDS - 1:,}"


def _is_id(id: object) -> bool:
    return isinstance(id, int) and not isinstance(id, bool) and 0 <= id < MOST_IDS


def _checked_vocab(vocab: Mapping[int, bytes]) -> dict[int, bytes]:
    """A copy, after a look at every entry."""
    seen: dict[bytes, int] = {}
    for id, token in vocab.items():
        if not _is_id(id):
            raise BadInput(f"the token {token!r} has the id {id!r}: {_IDS}")
        if not isinstance(token, bytes) or not token:
            raise BadInput(f"a token is bytes, at least one: id {id} has {token!r}")
        if token in seen:
            raise BadInput(f"the ids {seen[token]} and {id} have the same bytes, {token!r}")
        seen[token] = id
    return dict(vocab)


def _with_specials(
    vocab: Mapping[int, bytes], special_tokens: Iterable[str] | Mapping[str, int]
) -> tuple[dict[int, bytes], dict[str, int]]:
    """The vocabulary with the special tokens, and their ids: given, or found in the vocabulary, or behind its last."""
    vocab = _checked_vocab(vocab)
    given = special_tokens if isinstance(special_tokens, Mapping) else {}
    id_of = {token: id for id, token in vocab.items()}
    ids, following = {}, max(vocab, default=-1) + 1
    for token in _checked_specials(special_tokens):
        known = id_of.get(token.encode())
        id = given.get(token, following if known is None else known)
        if not _is_id(id):
            raise BadInput(f"the special token {token!r} has the id {id!r}: {_IDS}")
        if id != known and known is not None:
            raise BadInput(f"the special token {token!r} has the ids {known} and {id}")
        if vocab.setdefault(id, token.encode()) != token.encode():
            raise BadInput(f"the special token {token!r} has the id {id}, which is that of {vocab[id]!r}")
        ids[token] = id_of[token.encode()] = id
        following = max(following, id + 1)
    return vocab, ids


def _merged_ids(merges: Sequence[tuple[bytes, bytes]], id_of: Mapping[bytes, int]) -> np.ndarray:
    """Merges as ids: left, right, and what they become; int64[M, 3]."""
    merged = []
    for rank, (left, right) in enumerate(merges):
        for token in (left, right, left + right):
            if token not in id_of:
                raise BadInput(f"merge {rank}, of {left!r} and {right!r}: {token!r} is not in the vocabulary")
        merged.append((id_of[left], id_of[right], id_of[left + right]))
    return np.array(merged, np.int64).reshape(-1, 3)


# ─── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────

LARGEST_FILE = 1 << 28  # bytes of a model file: o200k_base has 4 million, and the largest tokenizer.json some 40


class Encoding(NamedTuple):
    """A rank file that was published, and what it does not say."""

    pattern: str
    special_tokens: Mapping[str, int]
    digest: str  # SHA-256 of the file


def _numbered(names: Iterable[str], first: int) -> dict[str, int]:
    return dict(zip(names, itertools.count(first), strict=False))


_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_R50K = Encoding("gpt2", {"<|endoftext|>": 50256}, "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930")
_O200K = Encoding(
    "o200k",
    {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
)
_HARMONY = {200002: "return", 200003: "constrain", 200005: "channel", 200006: "start", 200007: "end", 200008: "message"}
_HARMONY |= {200012: "call", 200018: "endofprompt"}
_LLAMA3 = {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id", 9: "eot_id"}
_reserved = itertools.count()

# Facts of tiktoken 0.14 and of Llama 3's own code.
ENCODINGS = {
    "gpt2": _R50K,
    "r50k_base": _R50K,
    "p50k_base": _R50K._replace(digest="94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "cl100k_base": Encoding(
        "cl100k",
        _numbered(("<|endoftext|>", *_FIM), 100257) | {"<|endofprompt|>": 100276},
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": _O200K,
    "o200k_harmony": _O200K._replace(
        special_tokens={"<|startoftext|>": 199998, "<|endoftext|>": 199999}
        | {f"<|{_HARMONY.get(id, f'reserved_{id}')}|>": id for id in range(200000, 201088)}
    ),
    "llama3": Encoding(
        "llama3",
        {
            f"<|{_LLAMA3[n] if n in _LLAMA3 else f'reserved_special_token_{next(_reserved)}'}|>": 128000 + n
            for n in range(256)
        },
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    ),
}


def _to_chars(token: bytes) -> str:
    return token.decode("latin-1").translate(_CHAR_OF)


def _from_chars(chars: str, where: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, chars))
    except KeyError as error:
        raise BadInput(
            f"{where}: {error.args[0]!r} in {chars!r} does not stand for a byte: not a byte-level BPE"
        ) from None


def _token_names(tokenizer: Tokenizer) -> dict[str, int]:
    """The vocabulary as files have it: special tokens as they are, all others in BYTE_CHARS; by id."""
    special = {id: token for token, id in tokenizer.special_tokens.items()}
    names: dict[str, int] = {}
    for id, token in sorted(tokenizer.vocab.items()):
        name = special.get(id) or _to_chars(token)
        if name in names:
            raise BadInput(
                f"the ids {names[name]} and {id} would both be written as {name!r}: rename the special token"
            )
        names[name] = id
    return names


def _load(
    path: Path, encoding: str | None, pattern: str | None, special_tokens: Iterable[str] | Mapping[str, int] | None
) -> Tokenizer:
    """See Tokenizer.load."""
    file = _model_in(path) if path.is_dir() else path
    if not file.is_file():
        raise BadInput(f"{path}: no such file or folder")
    data = _model_bytes(file)
    if data.lstrip()[:1] == b"{":
        content = _json(data, str(file))
        if not all(isinstance(value, int) for value in content.values()):
            tokenizer = _from_huggingface(content, str(file))
        else:
            merges = _partner(file, ("vocab", "merges"), ("encoder.json", "vocab.bpe"), "merges")
            tokenizer = _from_gpt2(file, merges, special_tokens, pattern or "gpt2")
    elif regex.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", data):
        tokenizer = _from_ranks(data, file, encoding, pattern, special_tokens)
    elif regex.match(rb"#version|\S+ \S+\r?\n", data):
        vocab = _partner(file, ("merges", "vocab"), ("vocab.bpe", "encoder.json"), "vocabulary")
        tokenizer = _from_gpt2(vocab, file, special_tokens, pattern or "gpt2")
    elif b"\n##" in data:
        raise BadInput(f"{file}: looks like a vocabulary of WordPiece (BERT's), which is not supported")
    elif data[:1] == b"\n":
        raise BadInput(f"{file}: looks like a SentencePiece model, which is not supported")
    else:
        raise BadInput(f"{file}: neither a tokenizer.json, nor vocab.json or merges.txt, nor a rank file")
    if (config := file.with_name("tokenizer_config.json")).is_file():
        content = _json(_model_bytes(config), str(config))
        tokenizer.config = {name: content[name] for name in _CONFIG if name in content}
    return tokenizer


def _model_in(folder: Path) -> Path:
    """The file of a folder that is, or begins, a model."""
    for name in ("tokenizer.json", "vocab.json", "encoder.json", "tokenizer.tiktoken", "tokenizer.model"):
        if (folder / name).is_file():
            return folder / name
    found = sorted(folder.glob("*.tiktoken")) + sorted(folder.glob("*tokenizer.json"))
    if len(found) != 1:
        raise BadInput(f"{folder}: no tokenizer.json here, nor vocab.json and merges.txt, nor one .tiktoken file")
    return found[0]


def _partner(file: Path, names: tuple[str, str], published: tuple[str, str], what: str) -> Path:
    """The other of GPT-2's two files."""
    name = published[1] if file.name == published[0] else file.name.replace(*names)
    for suffix in (file.suffix, ".txt", ".json", ".bpe"):
        other = file.with_name(name).with_suffix(suffix)
        if other.is_file() and other != file:
            return other
    raise BadInput(f"{file}: the {what} that belongs to it is missing: no {file.with_name(name).stem}.* beside it")


def _model_bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise BadInput(f"{path}: has more than {LARGEST_FILE >> 20} MB, which is no tokenizer")
    return data


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}: not UTF-8 at byte {error.start}") from None


def _json(data: bytes, where: str) -> dict:
    """A JSON object; raises ValueError for what is none, or has a name twice."""

    def once(pairs: list[tuple[str, object]]) -> dict:
        content = dict(pairs)
        if len(content) < len(pairs):
            name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise BadInput(f"{where}: {name!r} stands there twice")
        return content

    try:
        content = json.loads(_utf8(data, where), object_pairs_hook=once)
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise BadInput(f"{where}: not a JSON object")
    return content


def _vocab_from_json(names: object, special_tokens: Iterable[str], where: str) -> dict[int, bytes]:
    """The inverse of `_token_names`."""
    if not isinstance(names, dict):
        raise BadInput(f"{where}: a vocabulary is an object of tokens and ids")
    special = set(special_tokens)
    vocab: dict[int, bytes] = {}
    for name, id in names.items():
        if not _is_id(id):
            raise BadInput(f"{where}: {name!r} has the id {id!r}: {_IDS}")
        if vocab.setdefault(id, token := name.encode() if name in special else _from_chars(name, where)) is not token:
            raise BadInput(f"{where}: {name!r} has the id {id!r}, which is that of {vocab[id]!r}")
    return vocab


def _merges_from_text(text: str, where: str) -> list[tuple[bytes, bytes]]:
    """Read merges.txt: two tokens a line, below a line with the version, which may be missing."""
    merges = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not (number == 1 and line.startswith("#version")):
            merges.append(_merge_from_names(line.rstrip("\r").split(" "), f"{where}, line {number}"))
    return merges


def _merge_from_names(names: object, where: str) -> tuple[bytes, bytes]:
    if not isinstance(names, list) or len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"{where}: {names!r} is not a merge, two tokens with a space between them")
    return _from_chars(names[0], where), _from_chars(names[1], where)


def _from_gpt2(
    vocab_path: Path, merges_path: Path, special_tokens: Iterable[str] | Mapping[str, int] | None, pattern: str
) -> Tokenizer:
    names = _json(_model_bytes(vocab_path), str(vocab_path))
    merges = _merges_from_text(_utf8(_model_bytes(merges_path), str(merges_path)), str(merges_path))
    if special_tokens is None:
        made = {_to_chars(left + right) for left, right in merges}
        special_tokens = [name for name in names if name not in made and not (len(name) == 1 and name in _BYTE_OF)]
    vocab = _vocab_from_json(names, special_tokens, str(vocab_path))
    return Tokenizer(vocab, merges, special_tokens, pattern)


def _gpt2_files(tokenizer: Tokenizer) -> dict[str, str]:
    merges, unreached = _merges_of(tokenizer)
    if unreached:
        raise BadInput(f"GPT-2's files cannot say that {unreached[0]!r} is a token, which no merges make")
    pairs = ((_to_chars(left), _to_chars(right)) for left, right in merges)
    return {
        "vocab.json": _dump(_token_names(tokenizer)),
        "merges.txt": "".join(["#version: 0.2\n", *(f"{left} {right}\n" for left, right in pairs)]),
    }


def _merges_of(tokenizer: Tokenizer) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The merges, listed even if the tokenizer has ranks; and the tokens that only a look at whole pretokens finds."""
    if tokenizer.merges is not None and not tokenizer.ignore_merges:
        return tokenizer.merges, []
    special, vocab = set(tokenizer.special_tokens.values()), tokenizer.vocab
    ids = np.array(sorted(id for id, token in vocab.items() if id not in special and len(token) > 1), np.int64)
    pairs = _pairs_that_make(ids, tokenizer)
    unreached = [vocab[id] for id in ids[pairs[:, 0] < 0].tolist()]
    if tokenizer.merges is not None:
        return tokenizer.merges, unreached
    return [(vocab[left], vocab[right]) for left, right in pairs[pairs[:, 0] >= 0].tolist()], unreached


def _pairs_that_make(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """See `_last_pairs`."""
    pairs = np.empty((len(ids), 2), np.int64)
    out = np.empty(max(map(len, tokenizer.vocab.values())), np.uint32)
    _last_pairs(ids, tokenizer._tokens, tokenizer._ranks, pairs, out)
    return pairs


def _from_ranks(
    data: bytes,
    file: Path,
    encoding: str | None,
    pattern: str | None,
    special_tokens: Iterable[str] | Mapping[str, int] | None,
) -> Tokenizer:
    """Read a rank file: a line for each token, its bytes in base64 and its id."""
    vocab: dict[int, bytes] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            token, id = line.split()
            token, id = base64.b64decode(token, validate=True), int(id)
        except ValueError:
            raise BadInput(f"{file}, line {number}: not a token in base64 and its id") from None
        if not _is_id(id) or id in vocab:
            raise BadInput(f"{file}, line {number}: the id {id} {'stands there twice' if id in vocab else ': ' + _IDS}")
        vocab[id] = token
    about = file.with_name(file.name + ".json")
    canonical = "".join(f"{base64.b64encode(token).decode()} {id}\n" for id, token in sorted(vocab.items()))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    if encoding is None and pattern is None:
        if about.is_file():
            content = _json(_model_bytes(about), str(about))
            pattern, special_tokens = content.get("pattern"), content.get("special_tokens")
            if not isinstance(pattern, str) or not isinstance(special_tokens, dict):
                raise BadInput(f"{about}: says neither the pattern nor the special tokens")
        else:
            encoding = next((name for name, known in ENCODINGS.items() if known.digest == digest), None)
    if encoding is not None:
        if encoding not in ENCODINGS:
            raise BadInput(f"no encoding is named {encoding!r}; there are {', '.join(ENCODINGS)}")
        pattern = pattern or ENCODINGS[encoding].pattern
        special_tokens = ENCODINGS[encoding].special_tokens if special_tokens is None else special_tokens
    if pattern is None:
        raise BadInput(
            f"{file}: a rank file does not say its pattern: name it (pattern=…, --pattern), "
            f"or the encoding (encoding=…, --encoding): {', '.join(ENCODINGS)}"
        )
    return Tokenizer(vocab, None, special_tokens, pattern)


def _tiktoken_ranks(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The ids by which tiktoken merges as the tokenizer does; raises ValueError if there are none."""
    special = set(tokenizer.special_tokens.values())
    ranks = {token: id for id, token in tokenizer.vocab.items() if id not in special}

    def refuse(unless: bool, why: str) -> None:
        if not unless:
            raise BadInput(f"tiktoken cannot do what this tokenizer does: {why}")

    refuse(all(bytes([b]) in ranks for b in range(256)), "some byte is not a token")
    refuse(tokenizer._is_plain, "its special tokens have flags, or text gets a space before it")
    refuse(not tokenizer.pattern.chain, "it has several patterns")
    if tokenizer.merges is not None:
        ids = np.array(sorted(id for token, id in ranks.items() if len(token) > 1), np.int64)
        by_id = Tokenizer({id: token for token, id in ranks.items()}, None, pattern="none")
        ours, theirs = _pairs_that_make(ids, tokenizer), _pairs_that_make(ids, by_id)
        for id, pair in zip(ids.tolist(), ours[:, 0].tolist(), strict=True):
            refuse(pair >= 0 or tokenizer.ignore_merges, f"{tokenizer.vocab[id]!r} is a token that no merges make")
        ranked = {pair: rank for rank, pair in reversed(list(enumerate(tokenizer.merges)))}
        vocab = tokenizer.vocab
        order = [ranked[vocab[left], vocab[right]] for left, right in ours[ours[:, 0] >= 0].tolist()]
        refuse(order == sorted(order), "its ids are not in the order of its merges")
        refuse((ours == theirs).all(), "ids alone would merge otherwise")
    return ranks


def _tiktoken_files(tokenizer: Tokenizer) -> dict[str, str]:
    ranks = sorted(_tiktoken_ranks(tokenizer).items(), key=lambda item: item[1])
    about = {"pattern": tokenizer.pattern.text, "special_tokens": tokenizer.special_tokens}
    return {
        "tokenizer.tiktoken": "".join(f"{base64.b64encode(token).decode()} {id}\n" for token, id in ranks),
        "tokenizer.tiktoken.json": _dump(about, indent=2),
    }


def _huggingface_files(tokenizer: Tokenizer) -> dict[str, str]:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | tokenizer.config
    roles = {name: token for name, token in tokenizer.config.items() if name.endswith("_token")}
    return {
        "tokenizer.json": _dump(_to_huggingface(tokenizer), indent=2),
        "tokenizer_config.json": _dump(config, indent=2),
        "special_tokens_map.json": _dump(roles, indent=2),
    }


def _to_huggingface(tokenizer: Tokenizer) -> dict:
    """A tokenizer.json, as the `tokenizers` package writes it."""
    merges, unreached = _merges_of(tokenizer)
    prefix = tokenizer.add_prefix_space
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    pre_tokenizer: dict = byte_level
    if tokenizer.pattern.name == "none":
        pre_tokenizer = byte_level | {"use_regex": False}
    elif tokenizer.pattern.name != "gpt2":
        if prefix:
            raise BadInput("a tokenizer.json adds a space before text with the patterns gpt2 and none only")
        texts = tokenizer.pattern.text if tokenizer.pattern.chain else [tokenizer.pattern.text]
        splits = [
            {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False} for text in texts
        ]
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [*splits, byte_level | {"use_regex": False}]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": token, **tokenizer.flags.get(token, Flags())._asdict()}
            for token, id in sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": tokenizer.post_processor,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": bool(unreached) or (tokenizer.merges is not None and tokenizer.ignore_merges),
            "vocab": _token_names(tokenizer),
            "merges": [(_to_chars(left), _to_chars(right)) for left, right in merges],
        },
    }


def _from_huggingface(data: dict, where: str) -> Tokenizer:
    """Read a tokenizer.json; raises ValueError for what would encode otherwise here than there."""

    def refuse(unless: object, what: str) -> None:
        if not unless:
            raise BadInput(f"{where}: {what}")

    model = data.get("model")
    refuse(isinstance(model, dict), "not a tokenizer.json: it has no model")
    kind = model.get("type", "BPE")
    refuse(kind == "BPE" and isinstance(model.get("merges"), list), f"its model is not a BPE but {kind!r}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        refuse(not model.get(key), f"a model with {key} is not supported")
    normalizer = data.get("normalizer")
    refuse(
        not normalizer or normalizer == {"type": "Sequence", "normalizers": []},
        f"a normalizer is not supported: {json.dumps(normalizer)[:100]}",
    )
    for key in ("truncation", "padding"):
        refuse(not data.get(key), f"{key} is not supported: what it adds or takes away is not the text's")
    decoder = data.get("decoder")
    refuse(
        not decoder or (isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"),
        f"a decoder that is not ByteLevel is not supported: {json.dumps(decoder)[:100]}",
    )
    post_processor = data.get("post_processor")
    refuse(post_processor is None or isinstance(post_processor, dict), "its post_processor is not an object")
    added = data.get("added_tokens") or []
    refuse(
        isinstance(added, list) and all(isinstance(t, dict) and isinstance(t.get("content"), str) for t in added),
        "added_tokens is not a list of tokens",
    )
    special, flags = {token["content"]: token.get("id") for token in added}, {}
    refuse(len(special) == len(added), "a token is added twice")
    for token in added:
        values = {name: token.get(name, default) for name, default in Flags._field_defaults.items()}
        refuse(all(isinstance(value, bool) for value in values.values()), f"the flags of {token['content']!r} are odd")
        if (flag := Flags(**values)) != Flags():
            flags[token["content"]] = flag
    names = model.get("vocab")
    refuse(isinstance(names, dict), "its vocabulary is not an object of tokens and ids")
    vocab = _vocab_from_json(names, special, where)
    following = len(names)  # what is not in the vocabulary is numbered there anew, whatever the file says
    for content, id in special.items():
        wanted = names.get(content, following)
        refuse(_is_id(id) and wanted == id, f"the added token {content!r} has the ids {wanted} and {id!r}")
        refuse(content in names or id not in vocab, f"the added token {content!r} has the id of {vocab.get(id)!r}")
        vocab[id] = content.encode()
        following = max(following, id + 1)
    merges = [
        _merge_from_names(merge.split(" ") if isinstance(merge, str) else merge, f"{where}, merge {rank}")
        for rank, merge in enumerate(model["merges"])
    ]
    refuse(len(set(merges)) == len(merges), "a merge stands there twice")
    pattern, add_prefix_space = _pattern_from_huggingface(data.get("pre_tokenizer"), where)
    tokenizer = Tokenizer(
        vocab,
        merges,
        list(special),
        pattern,
        ignore_merges=bool(model.get("ignore_merges")),
        add_prefix_space=add_prefix_space,
        flags=flags,
    )
    refuse(
        model.get("unk_token") is None or -1 not in tokenizer._ranks.byte_ids,
        "an unk_token is not supported where bytes are missing in the vocabulary",
    )
    tokenizer.post_processor = post_processor
    return tokenizer


def _pattern_from_huggingface(pre_tokenizer: object, where: str) -> tuple[str | list[str], bool]:
    """The patterns of Splits by regular expressions and of ByteLevel; and whether that puts a space before text."""
    parts = pre_tokenizer
    if isinstance(pre_tokenizer, dict):
        parts = pre_tokenizer.get("pretokenizers") if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    patterns = []
    if isinstance(parts, list) and parts:
        for part in parts[:-1]:
            match part:
                case {"type": "Split", "pattern": {"Regex": str(text)}, "behavior": "Isolated", "invert": False}:
                    patterns.append(text)
                case {"type": "Split", "pattern": {"String": str(text)}, "behavior": "Isolated", "invert": False}:
                    patterns.append(regex.escape(text))
                case {"type": "Digits", "individual_digits": bool(single)}:
                    patterns.append(r"\p{N}" if single else r"\p{N}+")
                case _:
                    break
        last = parts[-1]
        if len(patterns) == len(parts) - 1 and isinstance(last, dict) and last.get("type") == "ByteLevel":
            prefix, by_regex = last.get("add_prefix_space", True), last.get("use_regex", True)
            patterns += ["gpt2"] * bool(by_regex)
            if patterns in ([], ["gpt2"]) or not prefix:
                return (patterns if len(patterns) > 1 else patterns[0] if patterns else "none"), bool(prefix)
    raise BadInput(f"{where}: a pre_tokenizer that is not supported: {json.dumps(pre_tokenizer)[:200]}")


FORMATS = {"huggingface": _huggingface_files, "gpt2": _gpt2_files, "tiktoken": _tiktoken_files}
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
_CONFIG = (*ROLES, "model_max_length", "chat_template")  # what is kept of a tokenizer_config.json

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


def configure(
    tokenizer: Tokenizer,
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
    unk_token: str | None = None,
    model_max_length: int | None = None,
    chat_template: str | os.PathLike | None = None,
) -> None:
    """Say what transformers shall know: it is saved in tokenizer_config.json. `None` leaves things as they are.

    chat_template   "chatml", which needs the special tokens <|im_start|> and <|im_end|>, or a file in Jinja
    """
    roles = (bos_token, eos_token, pad_token, unk_token)
    tokenizer.config |= _config(tokenizer.special_tokens, *roles, model_max_length, chat_template)


def _config(
    special_tokens: Iterable[str],
    bos_token: str | None,
    eos_token: str | None,
    pad_token: str | None,
    unk_token: str | None,
    model_max_length: int | None,
    chat_template: str | os.PathLike | None,
) -> dict:
    """See `configure`."""
    roles = dict(zip(ROLES, (bos_token, eos_token, pad_token, unk_token), strict=True))
    for role, token in roles.items():
        if token is not None and token not in special_tokens:
            known = ", ".join(special_tokens) or "it has none"
            raise BadInput(f"the {role} {token!r} is not a special token of this tokenizer: {known}")
    if model_max_length is not None and model_max_length < 1:
        raise BadInput(f"a model of {model_max_length} tokens has no room for text")
    template = None
    if chat_template == "chatml":
        template = CHATML
        for token in ("<|im_start|>", "<|im_end|>"):
            if token not in special_tokens:
                raise BadInput(f"ChatML needs the special token {token!r}")
    elif chat_template is not None:
        template = _utf8(_model_bytes(Path(chat_template)), str(chat_template))
    told = roles | {"model_max_length": model_max_length, "chat_template": template}
    return {name: value for name, value in told.items() if value is not None}


def _dump(data: object, indent: int | None = None) -> str:
    return json.dumps(data, ensure_ascii=False, indent=indent) + "\n"


@contextlib.contextmanager
def _replacing(path: Path):
    """A file for writing bytes that takes the place of `path` when the block ends well, and else leaves no trace."""
    if path.is_dir():
        raise BadInput(f"{path}: is a folder; name a file to write")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        file = open(unfinished, "xb")  # noqa: SIM115
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None
    try:
        with file:
            yield file
        os.replace(unfinished, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # from a write, which does not name its file
            error.filename = str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def _write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files that belong together: none takes its name before all are written."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for name, text in texts.items():
            stack.enter_context(_replacing(folder / name)).write(text.encode())


# ─── Training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Trained(NamedTuple):
    """All that a training finds out."""

    tokenizer: Tokenizer
    counted: Counted
    merges: Merges
    seconds: dict[str, float]  # by stage


def compile_kernels(pattern: Pattern | None = None) -> None:
    """Compile the kernels of training, or load them from the cache, so that the first call finds them ready.

    Processes that are forked later have them, too.
    """
    counter = WordCounter()
    counter.add_text(b"one two", pattern or Pattern())
    counter.add_words(counter.words())
    learn(counter.words(), 257)


def train(
    inputs: str | os.PathLike | Iterable[str | os.PathLike],
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    *,
    pattern: str = "gpt2",
    tie_break: str = "bytes",
    min_frequency: int = 1,
    workers: int | None = None,
    text_field: str | None = None,
    progress: bool = False,
    special_tokens_at: str = "first",
) -> Trained:
    """Train on files, folders or globs, and return the tokenizer with all that was measured.

    special_tokens  end documents: they are not learnt from
    special_tokens_at  which ids they get; see build_vocabulary
    pattern         a name in PATTERNS, or a regular expression
    tie_break       "bytes" or "ids"; min_frequency: pairs that are rarer are not merged; see `learn`
    workers         processes that scan; None for one a core. The result is the same for any number
    text_field      where a line of a .jsonl file has its text; "text" if not given
    progress        draw progress bars

    Raises ValueError for input that cannot be, and OSError for what cannot be read.
    """
    special_tokens = _checked_specials(special_tokens)
    _check_place(special_tokens_at)
    _check_size(vocab_size, special_tokens)
    workers = _checked_workers(workers)
    files = find_files([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)
    seconds: dict[str, float] = {}
    with stage("compile", seconds):
        compiled = Pattern(pattern)
        if compiled.remark:
            warnings.warn(compiled.remark, stacklevel=2)
        with _progress_bar("compile", 1, " set of kernels", progress) as bar:
            compile_kernels(compiled)
            bar.update()
    with stage("scan", seconds):
        counted = count_pretokens(
            files, compiled, special_tokens, workers=workers, text_field=text_field, progress=progress
        )
    if not len(counted.words.counts):
        raise BadInput(f"no text to learn from in {', '.join(map(str, files[:3]))}{' …' if len(files) > 3 else ''}")
    with stage("learn", seconds):
        merges = learn(
            counted.words,
            vocab_size - len(special_tokens),
            tie_break=tie_break,
            min_frequency=min_frequency,
            progress=progress,
        )
    with stage("vocabulary", seconds):
        vocab, listed = build_vocabulary(merges, special_tokens, special_tokens_at)
        tokenizer = Tokenizer(vocab, listed, special_tokens, pattern)
    return Trained(tokenizer, counted, merges, seconds)


def train_bpe(
    input_path: str | os.PathLike | Iterable[str | os.PathLike],
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    **options,
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    """Train on a file, or several, and return the vocabulary and the merges; the options are those of `train`.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".txt") as file:
    ...     _ = file.write(b"low low lower<|end|>newest"), file.flush()
    ...     vocab, merges = train_bpe(file.name, 260, ["<|end|>"])
    >>> vocab[0], merges
    (b'<|end|>', [(b'o', b'w'), (b'l', b'ow'), (b' ', b'low')])
    """
    tokenizer = train(input_path, vocab_size, special_tokens, **options).tokenizer
    _warn_if_short(tokenizer.vocab, vocab_size)
    return tokenizer.vocab, tokenizer.merges


# ─── Corpora ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Encoded(NamedTuple):
    """What a file of token ids holds; written beside it as JSON."""

    tokens: int
    documents: int
    bytes: int  # of text
    dtype: str
    model: str  # Tokenizer.digest


def encode_files(
    tokenizer: Tokenizer,
    inputs: str | os.PathLike | Iterable[str | os.PathLike],
    out: str | os.PathLike,
    *,
    dtype: str = "auto",
    append: str | None = None,
    document_index: str | os.PathLike | None = None,
    allowed_special: str | Iterable[str] = "all",
    workers: int | None = None,
    executor: Executor | None = None,
    text_field: str | None = None,
    progress: bool = False,
) -> Encoded:
    """Write the token ids of files, folders or globs to one file, in the order of the texts.

    out             a .npy file, or a .bin file with the bare numbers; and, beside it, the same name with .json behind
    dtype           "uint16", "uint32", or "auto": the smaller one that holds every id of the vocabulary
    append          a special token: every document ends with it. Documents are files and lines of .jsonl files, and end
                    at this token, if it stands in a text: it is not doubled
    document_index  a .npy or .bin file of int64: document d is tokens[index[d] : index[d + 1]]
    workers         threads or processes; None for one a core. The result is the same for any number
    executor        a pool of concurrent.futures, or of its kind, to work in instead

    Memory is bounded. Files take their names when they are whole. Raises ValueError for what cannot be.
    """
    files = find_files([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)
    number = _id_type(dtype, tokenizer)
    out = Path(out)
    if document_index and Path(document_index) in (out, _about(out)):
        raise BadInput(f"{document_index} is to be written twice: give the document index a name of its own")
    with contextlib.ExitStack() as stack:
        write = stack.enter_context(_numbers_file(out, number))
        write_index = stack.enter_context(_numbers_file(Path(document_index), np.int64)) if document_index else None
        about = stack.enter_context(_replacing(_about(out))) if out != STDIN else None
        bar = stack.enter_context(_progress_bar("encode", _size(files), "B", progress))
        n_tokens = n_documents = n_bytes = 0
        if write_index:
            write_index(np.zeros(1, np.int64))
        parts = _encoded_blocks(tokenizer, files, append, allowed_special, text_field, workers, executor)
        for part in stack.enter_context(contextlib.closing(parts)):
            write(part.ids.astype(number, copy=False))
            if write_index:
                write_index(part.ends + n_tokens)
            n_tokens, n_documents, n_bytes = (
                n_tokens + len(part.ids),
                n_documents + len(part.ends),
                n_bytes + part.n_bytes,
            )
            bar.set_postfix_str(f"{_thousands(n_tokens / max(bar.format_dict['elapsed'], 1e-3))} tokens/s", False)
            bar.update(part.n_read)
        encoded = Encoded(n_tokens, n_documents, n_bytes, number.name, tokenizer.digest)
        if about:
            about.write((json.dumps(encoded._asdict(), indent=2) + "\n").encode())
    return encoded


class _Part(NamedTuple):
    """What some blocks become."""

    ids: np.ndarray  # uint16 or uint32[N]
    ends: np.ndarray  # int64[D]   where documents end in them
    n_bytes: int  # of text
    n_read: int  # bytes from the disk


def _encoded_blocks(
    tokenizer: Tokenizer,
    files: Sequence[Path],
    append: str | None,
    allowed_special: str | Iterable[str],
    text_field: str | None,
    workers: int | None,
    executor: Executor | None = None,
) -> Iterator[_Part]:
    """Files as token ids, in order."""
    workers = _checked_workers(workers)
    allowed = tokenizer._allowed(allowed_special)
    last = None if append is None else tokenizer.special_tokens.get(append)
    if last is None and append is not None:
        known = ", ".join(tokenizer.special_tokens) or "it has none"
        raise BadInput(f"{append!r} is not a special token of this tokenizer: {known}")
    tokenizer.compile_kernels()
    # Kernels work without Python's lock, and threads send nothing through pipes: two are 1.66 times as fast as one,
    # processes 1.5. What holds the lock is JSON, `regex`, special tokens with flags; and all the rest if they are many.
    is_json = any(_is_json(path, text_field) for path in files)
    threads = workers <= 8 and tokenizer._is_plain and tokenizer.pattern.scanner is not None and not is_json
    if workers > 1 and not threads:  # known before processes are forked
        _keep(tokenizer._pickled, tokenizer)
    work = functools.partial(_encode_blocks, tokenizer, last, allowed, text_field)
    cut_by, cut_at = (tokenizer.pattern, allowed) if tokenizer._is_plain else (Pattern(()), ())
    blocks = _gathered(read_blocks(files, cut_by, cut_at, text_field))
    return _map_in_order(work, blocks, workers, executor, threads)


def _encode_blocks(
    tokenizer: Tokenizer, last: int | None, allowed_special: Sequence[str], text_field: str | None, blocks: list[Block]
) -> _Part:
    """Encode some blocks. Documents end with the id `last`, if it is given, and else with their texts."""
    number = _id_type("auto", tokenizer)  # fewer bytes for the pipe
    parts, ends, n_tokens, n_bytes = [], [], 0, 0
    for block in blocks:
        texts = _texts_of(block, text_field)
        if not texts:
            continue
        ids, offsets = tokenizer._encode_texts(texts, allowed_special, number)
        n_bytes += sum(map(len, texts))
        if last is None:
            at = offsets[1:] if block.ends else offsets[:0]
        else:
            if block.ends:
                starts, stops = offsets[:-1], offsets[1:]
                whole = (starts < stops) & (ids[np.maximum(stops, 1) - 1] == last) if len(ids) else starts < stops
                ids = np.insert(ids, stops[~whole], last)
            at = np.flatnonzero(ids == last) + 1
        parts.append(ids)
        ends.append(at + n_tokens)
        n_tokens += len(ids)
    ids = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, number), *parts])
    return _Part(ids, np.concatenate([np.zeros(0, np.int64), *ends]), n_bytes, sum(block.n_bytes for block in blocks))


def _id_type(name: str, tokenizer: Tokenizer) -> np.dtype:
    largest = max(tokenizer.vocab, default=0)
    if name == "auto":
        return np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
    if name not in ("uint16", "uint32"):
        raise BadInput(f"the type of ids is auto, uint16 or uint32, not {name!r}")
    if largest > np.iinfo(name).max:
        raise BadInput(f"{name} does not hold the id {largest:,} of this vocabulary: use uint32")
    return np.dtype(name)


def _about(path: Path) -> Path:
    """The JSON that tells about a file of ids."""
    return path.with_name(path.name + ".json")


@contextlib.contextmanager
def _numbers_file(path: Path, dtype: np.dtype | type):
    """Write a .npy or .bin file, or "-" (standard output) in pieces: yields a function that takes the next array."""
    if path != STDIN and path.suffix not in (".npy", ".bin"):
        raise BadInput(f"{path}: name a .npy file, or a .bin file for the bare numbers")
    dtype, n = np.dtype(dtype), 0
    header = {"descr": dtype.newbyteorder("<").str, "fortran_order": False}

    def write(numbers: np.ndarray) -> None:
        nonlocal n
        file.write(np.ascontiguousarray(numbers, dtype.newbyteorder("<")).data)
        n += len(numbers)

    with _replacing(path) if path != STDIN else contextlib.nullcontext(sys.stdout.buffer) as file:
        if path.suffix == ".npy":
            np.lib.format.write_array_header_1_0(file, header | {"shape": (0,)})
            start = file.tell()
        yield write
        if path.suffix == ".npy":
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header | {"shape": (n,)})  # NumPy pads it for growth
            assert file.tell() == start


def read_ids(path: str | os.PathLike, dtype: str | None = None) -> np.ndarray:
    """The ids of a .npy or .bin file, as an array that stays on the disk; raises ValueError for what is none.

    The type of a .bin file is told by the .json beside it, or else by `dtype`.
    """
    path = Path(path)
    try:
        if path.suffix == ".npy":
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            if _about(path).is_file():
                dtype = _json(_model_bytes(_about(path)), str(_about(path))).get("dtype")
            if dtype not in ("uint16", "uint32"):
                raise BadInput(f"{path}: are its numbers uint16 or uint32? Say it with --dtype")
            ids = np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r") if path.stat().st_size else np.zeros(0, dtype)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"{path}: not an array of ids ({error})") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BadInput(f"{path}: an array of {ids.dtype} and shape {ids.shape} does not hold token ids")
    return ids


# ─── Stages ───────────────────────────────────────────────────────────────────────────────────────────────────────────

PROFILE = "BPE_NUMBA_PROFILE"  # the environment variable that names the one stage Scalene is to record


@contextlib.contextmanager
def stage(name: str, seconds: dict[str, float]):
    """Time a stage. Under `scalene run --off` with BPE_NUMBA_PROFILE=name, Scalene records this stage and no other.

    >>> seconds = {}
    >>> with stage("sleep", seconds):
    ...     time.sleep(0.01)
    >>> seconds["sleep"] > 0.009
    True
    """
    profiler = _scalene() if os.environ.get(PROFILE) == name else None
    if profiler:
        profiler.start()
        time.sleep(0.3)  # Scalene charges its own beginning, some 0.2 s, to the line that comes next: to this one
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        if profiler:
            profiler.stop()


def _scalene():
    try:
        from scalene import scalene_profiler
    except ImportError:
        raise BadInput(f"{PROFILE} is set, but Scalene is not installed: pip install scalene") from None
    return scalene_profiler


def peak_memory() -> int | None:
    """The most bytes that this process, or one of its workers, has held; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak * (1 if sys.platform == "darwin" else 1024)


def _checked_workers(workers: int | None) -> int:
    """As many as were asked for, or one a core."""
    if workers is not None and workers < 1:
        raise BadInput(f"{workers} workers: at least one must do the work")
    return workers or available_cores()


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ─── Command line ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _summary(trained: Trained, inputs: str, out: Path, vocab_size: int) -> str:
    """What a person wants to know when a training is over."""
    tokenizer, counted, merges = trained.tokenizer, trained.counted, trained.merges
    n_bytes = counted.n_bytes
    special = set(tokenizer.special_tokens.values())
    ordinary = (token for id, token in tokenizer.vocab.items() if id not in special)
    longest = sorted(ordinary, key=lambda token: (-len(token), token))[:8]
    peak = peak_memory()
    rows = [
        ("read", f"{n_bytes:,} bytes in {counted.n_documents:,} documents, from {inputs}"),
        ("pretokens", f"{counted.n_pretokens:,}, of which {len(counted.words.counts):,} differ"),
        (
            "merges",
            f"{len(merges.counts):,}; the last pair stood {merges.counts[-1]:,} times" if len(merges.counts) else "0",
        ),
        ("vocabulary", f"{len(tokenizer):,} tokens, {len(special)} of them special"),
        ("compression", _compression(merges, n_bytes)),
        ("longest", " ".join(repr(_shortened(token.decode("utf-8", "replace"))) for token in longest)),
        ("seconds", ", ".join(f"{name} {spent:.2f}" for name, spent in trained.seconds.items())),
        ("peak memory", f"{peak / 1e6:,.0f} MB in the largest process" if peak else "unknown"),
        ("written", f"{out}: tokenizer.json and what transformers wants, vocab.json and merges.txt"),
    ]
    if len(tokenizer) < vocab_size:
        rows.insert(4, ("", f"fewer than the {vocab_size:,} asked for: no pair is left that may be merged"))
    lines = [f"{name:12s} {text}" for name, text in rows]
    return "\n".join(
        [*lines, "", "Next:", f"  echo 'Hello, world!' | python bpe_numba.py encode {shlex.quote(str(out))} -"]
    )


def _compression(merges: Merges, n_bytes: int) -> str:
    """Bytes per token, and what half and a quarter of the merges would give."""
    m = len(merges.counts)
    now, half, quarter = (n_bytes / merges.tokens[k] for k in (m, m // 2, m // 4))
    return f"{now:.2f} bytes per token ({half:.2f} with half the merges, {quarter:.2f} with a quarter)"


def _shortened(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:20]}…×{len(text)}"


def _train_command(options: argparse.Namespace) -> None:
    _make_folder(options.out)
    config = _told(options.special_token, options)  # a wrong name here must not cost the training
    inputs = options.inputs or standard_library()
    trained = train(
        inputs,
        options.vocab_size,
        options.special_token,
        pattern=options.pattern,
        tie_break=options.tie_break,
        min_frequency=options.min_frequency,
        workers=options.workers,
        text_field=options.text_field,
        progress=not options.quiet,
        special_tokens_at=options.special_tokens_at,
    )
    with stage("save", trained.seconds):
        trained.tokenizer.config = config
        trained.tokenizer.save(options.out)
    if not options.quiet:
        named = " ".join(options.inputs) or f"the {len(inputs):,} sources of Python's standard library"
        print(_summary(trained, named, options.out, options.vocab_size))


def _make_folder(folder: Path) -> None:
    """Find out before the work whether its result can be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _told(special_tokens: Iterable[str], options: argparse.Namespace) -> dict:
    return _config(special_tokens, **{name: getattr(options, name) for name in _CONFIG})


def _loaded(options: argparse.Namespace) -> Tokenizer:
    return Tokenizer.load(options.model, encoding=options.encoding, pattern=options.pattern)


def _convert_command(options: argparse.Namespace) -> None:
    tokenizer = _loaded(options)
    tokenizer.config |= _told(tokenizer.special_tokens, options)
    tokenizer.save(options.out, options.to)
    if not options.quiet:
        print(f"{len(tokenizer):,} tokens, {len(tokenizer.special_tokens)} of them special, written to {options.out}")


def _encode_command(options: argparse.Namespace) -> None:
    tokenizer = _loaded(options)
    allowed = "none" if options.no_special else "all"
    if tokenizer.pattern.remark:
        warnings.warn(tokenizer.pattern.remark, stacklevel=2)
    seconds: dict[str, float] = {}
    with stage("compile", seconds):
        tokenizer.compile_kernels()
    if not options.out:
        if options.document_index:
            raise BadInput("--document-index goes with --out")
        _print_ids(tokenizer, options, allowed)
        return
    with stage("encode", seconds):
        encoded = encode_files(
            tokenizer,
            options.inputs,
            options.out,
            dtype=options.dtype,
            append=options.append,
            document_index=options.document_index,
            allowed_special=allowed,
            workers=options.workers,
            text_field=options.text_field,
            progress=not options.quiet,
        )
    if not options.quiet:
        spent, n_bytes = max(seconds["encode"], 1e-3), encoded.bytes
        print(
            f"{encoded.tokens:,} tokens ({encoded.dtype}) of {encoded.documents:,} documents and {n_bytes:,} bytes, "
            f"{n_bytes / max(encoded.tokens, 1):.2f} bytes per token\n"
            f"{spent:.2f} s: {n_bytes / spent / 1e6:,.1f} MB/s, {_thousands(encoded.tokens / spent)} tokens/s, "
            f"written to {options.out}",
            file=sys.stderr if options.out == STDIN else sys.stdout,
        )


def _print_ids(tokenizer: Tokenizer, options: argparse.Namespace, allowed: str) -> None:
    """Ids as numbers in text, a line for each document."""
    files, gap = find_files(options.inputs), ""
    parts = _encoded_blocks(tokenizer, files, options.append, allowed, options.text_field, options.workers)
    for part in parts:
        start = 0
        for stop in part.ends.tolist():
            print(gap + " ".join(map(str, part.ids[start:stop].tolist())))
            start, gap = stop, ""
        if start < len(part.ids):  # the document goes on
            print(gap + " ".join(map(str, part.ids[start:].tolist())), end="")
            gap = " "


def _decode_command(options: argparse.Namespace) -> None:
    tokenizer = _loaded(options)
    blocks = _read_ids(options.tokens, options.dtype)
    target = _replacing(options.out) if options.out else contextlib.nullcontext(sys.stdout.buffer)
    with target as file:
        for ids in blocks:
            file.write(tokenizer.decode_bytes(ids))


def _read_ids(path: Path, dtype: str | None) -> Iterator[Iterable[int]]:
    """Ids from a .npy or .bin file, or as numbers in a text, in blocks."""
    if path != STDIN and path.suffix in (".npy", ".bin"):
        ids = read_ids(path, dtype)
        yield from (ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))
        return
    for number, line in enumerate(_read(path, True, lambda n: None), 1):
        try:
            yield list(map(int, line.split()))
        except ValueError:
            raise BadInput(f"{path}, line {number}: not token ids, which are whole numbers") from None


def _thousands(n: float) -> str:
    """A rate that can be read: 12.3M."""
    return tqdm.format_sizeof(n)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bpe_numba", description="Train and run byte-level BPE tokenizers.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    reads = "a file, a folder, a glob, or - for standard input; .jsonl and .gz by their names"

    train = commands.add_parser("train", help="learn a vocabulary from text")
    train.set_defaults(run=_train_command)
    train.add_argument("inputs", nargs="*", metavar="INPUT", help=f"{reads} (default: Python's standard library)")
    train.add_argument(
        "--vocab-size", type=int, default=8192, metavar="N", help="tokens, all told (default: %(default)s)"
    )
    train.add_argument(
        "--special-token", action="append", default=[], metavar="T", help="ends documents; may be repeated"
    )
    train.add_argument(
        "--pattern", default="gpt2", metavar="P", help=f"{', '.join(PATTERNS)}, or a regular expression (default: gpt2)"
    )
    train.add_argument(
        "--tie-break", choices=("bytes", "ids"), default="bytes", help="ids is Hugging Face's (default: bytes)"
    )
    train.add_argument("--min-frequency", type=int, default=1, metavar="N", help="merge no rarer pair (default: 1)")
    train.add_argument("--workers", type=int, metavar="N", help="processes that scan (default: one a core)")
    train.add_argument(
        "--out", type=Path, default=Path("model"), metavar="DIR", help="folder to write (default: model)"
    )

    encode = commands.add_parser("encode", help="turn text into token ids")
    encode.set_defaults(run=_encode_command)
    encode.add_argument("model", type=Path, metavar="MODEL", help="a file or a folder, of any format")
    encode.add_argument("inputs", nargs="+", metavar="INPUT", help=reads)
    encode.add_argument(
        "--out", type=Path, metavar="FILE", help="a .npy file, or .bin for bare numbers (default: print ids)"
    )
    encode.add_argument(
        "--dtype", choices=("auto", "uint16", "uint32"), default="auto", help="of the ids (default: what holds them)"
    )
    encode.add_argument("--append", metavar="T", help="a special token: every document ends with it")
    encode.add_argument(
        "--document-index", type=Path, metavar="FILE", help="where documents begin and end: int64, .npy or .bin"
    )
    encode.add_argument("--workers", type=int, metavar="N", help="threads or processes (default: one a core)")
    encode.add_argument("--no-special", action="store_true", help="take special tokens in the text for ordinary text")

    convert = commands.add_parser("convert", help="write a model in another format")
    convert.set_defaults(run=_convert_command)
    convert.add_argument("model", type=Path, metavar="MODEL", help="a file or a folder, of any format")
    convert.add_argument("--to", choices=FORMATS, required=True, help="the format")
    convert.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    convert.add_argument("--quiet", action="store_true", help="no summary")

    for command in (train, convert):
        for role in ROLES:
            name = role.replace("_", "-")
            command.add_argument(f"--{name}", metavar="T", help=f"the special token that is transformers' {role}")
        command.add_argument("--model-max-length", type=int, metavar="N", help="tokens that the model has room for")
        command.add_argument("--chat-template", metavar="FILE", help="chatml, or a file in Jinja")
    train.add_argument(
        "--special-tokens-at", choices=SPECIAL_TOKENS_AT, default="first", help="which ids they get (default: first)"
    )

    for command in (train, encode):
        command.add_argument("--text-field", metavar="NAME", help="where a .jsonl line has its text (default: text)")
        command.add_argument("--quiet", action="store_true", help="no progress bars, no summary")

    decode = commands.add_parser("decode", help="turn token ids into text")
    decode.set_defaults(run=_decode_command)
    decode.add_argument("model", type=Path, metavar="MODEL", help="a file or a folder, of any format")
    decode.add_argument(
        "tokens", type=Path, metavar="TOKENS", help="a .npy or .bin file, a text with ids, or - for standard input"
    )
    decode.add_argument("--dtype", choices=("uint16", "uint32"), help="of a .bin file that has no .json beside it")
    decode.add_argument("--out", type=Path, metavar="FILE", help="where the text goes (default: standard output)")

    for command in (encode, decode, convert):
        command.add_argument("--encoding", metavar="NAME", help=f"what a rank file is: {', '.join(ENCODINGS)}")
        command.add_argument("--pattern", metavar="P", help="the pattern of a rank file, or of GPT-2's two files")
    return parser


def _interrupt_once(*_: object) -> None:
    """A second Ctrl-C must not stop the clearing up that the first began: worker processes would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 2 for bad input, 130 when interrupted."""
    options = _parser().parse_args(arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt_once)
    try:
        with warnings.catch_warnings(record=False):
            warnings.showwarning = lambda message, *_: print(f"bpe_numba: note: {message}", file=sys.stderr)
            options.run(options)
        sys.stdout.flush()
    except BadInput as error:
        message = str(error)
    except BrokenPipeError:  # head has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except MemoryError:
        message = "out of memory"
    except KeyboardInterrupt:
        print("bpe_numba: interrupted; nothing was written", file=sys.stderr)
        return 130
    else:
        return 0
    print(f"bpe_numba: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    # Kernels of __main__ and of the imported module are cached apart, and workers import the module: run that one.
    import bpe_numba

    sys.exit(bpe_numba.main())
