"""Train and run byte-pair-encoding (BPE) tokenizers, with kernels compiled by Numba.

    python bpe_numba.py train                                    # on the Python standard library's own sources
    python bpe_numba.py train corpus.txt --vocab-size 32000 --special-token "<|endoftext|>" --out model
    python bpe_numba.py encode model corpus.txt --out tokens.npy

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

    Patterns     a name or a regular expression -> where pretokens end, and where a text may be cut
    Reading      files, folders, globs, standard input -> blocks of whole pretokens
    Counting     blocks -> pretokens and their counts, in worker processes -> Words
    Learning     Words -> Merges, the one serial part
    Vocabulary   Merges -> the vocabulary: ids and bytes
    Encoding     Tokenizer: text -> ids -> text
    Files        tokenizer.json, vocab.json and merges.txt
    Training     all of the above, in one call
    Stages       seconds, memory and the Scalene profiler, stage by stage
    Command line
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import functools
import glob
import gzip
import heapq
import itertools
import json
import os
import shlex
import signal
import sys
import sysconfig
import tempfile
import time
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

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


class BadInput(ValueError):
    """What was asked for cannot be: the message says what, where, and what to do."""


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# In a form that Python's `regex` and Oniguruma (Hugging Face's engine) read alike. tiktoken's own text of cl100k has
# possessive quantifiers, which change no match, and `$` for "at the end of the text", here (?![\s\S]).
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+(?![\s\S])|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}

# Under each named pattern a pretoken must end, whatever stands further left or right, between a letter and a space with
# a letter behind it, and behind a newline that stands alone before a letter or a number.
_CUT = regex.compile(r"(?r)(?<=\p{L})(?= \p{L})|(?<=\S\n)(?=[\p{L}\p{N}])")


class Pattern:
    """A pretokenizing pattern.

    >>> list(Pattern("gpt2").pretokens("Hello  world!"))
    ['Hello', ' ', ' world', '!']
    >>> Pattern(r"[a-z]+").pretokens("ab12cd")  # what the pattern leaves out is kept
    ['ab', '12', 'cd']
    """

    def __init__(self, name_or_regex: str = "gpt2"):
        """Raises ValueError if the regular expression does not compile or matches the empty string."""
        self.text = PATTERNS.get(name_or_regex, name_or_regex)
        self.name = next((name for name, text in PATTERNS.items() if text == self.text), None)
        try:
            self.regex = regex.compile(self.text)
        except regex.error as error:
            where = "" if error.pos is None else f" at position {error.pos}"
            raise BadInput(
                f"the pattern {self.text!r} does not compile: {error.msg}{where} (known by name: {', '.join(PATTERNS)})"
            ) from None
        if self.regex.fullmatch(""):
            raise BadInput(f"the pattern {self.text!r} matches the empty string; a pretoken has at least one character")

    def __reduce__(self):
        return Pattern, (self.text,)

    def pretokens(self, text: str) -> list[str]:
        """Cut a text into pretokens; joined, they are the text."""
        found = self.regex.findall(text) if not self.regex.groups else []
        if sum(map(len, found)) == len(text):
            return found
        found, end = [], 0
        for match in self.regex.finditer(text):
            found += filter(None, (text[end : match.start()], match[0]))
            end = match.end()
        return [*found, text[end:]] if end < len(text) else found

    def last_cut(self, text: str, start: int, stop: int) -> int:
        """The last index between two where a text may be cut without changing a pretoken; 0 if none is known."""
        match = _CUT.search(text, start + 1, stop) if self.name else None
        return match.start() if match else 0


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
            yield (gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw), raw
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


def _json_texts(path: Path, text_field: str, advance: Callable[[int], object]) -> Iterator[bytes]:
    """The texts in a .jsonl file: one string in each line's object."""
    for number, line in enumerate(_read(path, True, advance), 1):
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


def read_texts(
    files: Iterable[Path], text_field: str | None = None, advance: Callable[[int], object] = lambda n: None
) -> Iterator[Iterable[bytes]]:
    """The texts in the files, each as its chunks: a line of a .jsonl file, or the whole of any other file.

    Standard input is read as .jsonl if a text field is named.
    """
    for path in files:
        if path.name.endswith((".jsonl", ".jsonl.gz")) or (path == STDIN and text_field):
            yield from ([text] for text in _json_texts(path, text_field or "text", advance))
        else:
            yield _read(path, False, advance)


class Piece(NamedTuple):
    """Text that can be scanned on its own: a pretoken ends where it begins, and where it ends."""

    text: str
    is_special: bool = False


class Splitter:
    """Cuts a text that comes in chunks into pieces: special tokens, and the stretches between them.

    A long stretch is cut where the pattern is known to allow it. The pretokens do not depend on the chunks. What waits
    for its end is a block or so if the pattern has a name and the text has words or lines; if not, a whole document.

    >>> splitter = Splitter(Pattern("gpt2"), ["<|end|>"])
    >>> [piece.text for chunk in ("one<|e", "nd|>two") for piece in splitter.feed(chunk)] + splitter.close()
    ['one', '<|end|>', Piece(text='two', is_special=False)]
    """

    def __init__(self, pattern: Pattern, special_tokens: Iterable[str]):
        self.pattern = pattern
        self.special = _special_regex(special_tokens)
        self.longest = max(map(len, special_tokens), default=1)
        self.documents = 0  # begun so far
        self._waiting: list[str] = []
        self._size = 0  # characters waiting
        self._enough = 1  # and how many are worth a look for a cut
        self._in_document = False

    def feed(self, chunk: str) -> list[Piece]:
        """Take a chunk; returns the pieces that are certain by now."""
        self._waiting.append(chunk)
        self._size += len(chunk)
        return self._cut(final=False) if self._size >= self._enough else []

    def close(self) -> list[Piece]:
        """What was waiting. The text ends here, and the next chunk begins another."""
        pieces = self._cut(final=True)
        self._in_document = False
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
            self._in_document = False
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
        self.documents += not self._in_document
        self._in_document = True
        return [Piece(text)]


def _blocks(pieces: Iterable[str], size: int) -> Iterator[list[str]]:
    """Gather pieces into lists of at least `size` characters, but for the last."""
    block, waiting = [], 0
    for piece in pieces:
        block.append(piece)
        waiting += len(piece)
        if waiting >= size:
            yield block
            block, waiting = [], 0
    if block:
        yield block


def _size(files: Iterable[Path]) -> int | None:
    """Bytes on the disk, if known."""
    return None if STDIN in files else sum(path.stat().st_size for path in files)


def _progress_bar(name: str, total: int | None, unit: str, shown: bool) -> tqdm:
    """A bar on standard error; in a log file, a line now and then."""
    seldom = {} if sys.stderr.isatty() else {"mininterval": 10.0}
    return tqdm(total=total, desc=name, unit=unit, unit_scale=True, disable=not shown, **seldom)


# ─── Counting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Words(NamedTuple):
    """Words as a CSR array: word w is symbols[offsets[w] : offsets[w + 1]] and was seen counts[w] times."""

    symbols: np.ndarray  # int32[N]
    offsets: np.ndarray  # int64[W + 1]
    counts: np.ndarray  # int64[W]


class Counted(NamedTuple):
    """What was read, and how often each pretoken stood there."""

    counts: dict[bytes, int]
    n_bytes: int
    n_documents: int
    n_pretokens: int


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


def _count_block(pattern: Pattern, block: list[str]) -> dict[bytes, int]:
    """Count the pretokens of some pieces."""
    counts: Counter[str] = Counter()
    for text in block:
        pretokens = pattern.pretokens(text)
        counts.update(pretokens)
    return {_to_bytes(word): count for word, count in counts.items()}


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the parent's word is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _map_in_order(function: Callable, items: Iterable, workers: int) -> Iterator:
    """Like map(), in worker processes, a few items at a time. One item, or one worker, needs no process."""
    items = iter(items)
    first = list(itertools.islice(items, 2))
    items = itertools.chain(first, items)
    if workers == 1 or len(first) < 2:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(workers, initializer=_ignore_interrupts) as pool:
        running: deque[Future] = deque()
        try:
            for item in items:
                running.append(pool.submit(function, item))
                if len(running) > 2 * workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except BrokenProcessPool:
            raise BadInput("a worker process died, perhaps for want of memory: try fewer (--workers)") from None
        finally:
            pool.shutdown(cancel_futures=True)


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
    splitter = Splitter(pattern, special_tokens)

    def stretches(advance: Callable[[int], object]) -> Iterator[str]:
        for chunks in read_texts(files, text_field, advance):
            for text in _decoded(chunks):
                yield from (piece.text for piece in splitter.feed(text) if not piece.is_special)
            yield from (piece.text for piece in splitter.close() if not piece.is_special)

    total: Counter[bytes] = Counter()
    with _progress_bar("scan", _size(files), "B", progress) as bar:
        blocks = _blocks(stretches(bar.update), BLOCK)
        for counts in _map_in_order(functools.partial(_count_block, pattern), blocks, workers):
            total.update(counts)
    n_bytes = sum(len(word) * count for word, count in total.items())
    return Counted(total, n_bytes, splitter.documents, total.total())


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# GPT-2's way to write a byte as a character that can be seen: itself, or one of the 68 from U+0100. Hugging Face orders
# the bytes by these characters.
_SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_ORDER = [*_SEEN, *sorted({*range(256)} - {*_SEEN})]
_CHAR_OF = dict(zip(BYTE_ORDER, [*_SEEN, *range(0x100, 0x144)], strict=True))
_BYTE_OF = {chr(char): b for b, char in _CHAR_OF.items()}

BORDER, BURIED = -1, -2  # in the text: between two words; inside a symbol, at neither end
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
    neighbour: np.ndarray  # int32[…]      the neighbour at each place


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
def _join(pair, c, text, width, pairs, places, at):
    """Write symbol c over a pair, from left to right, and list its places instead of the pair's."""
    slots, group_of, group_end, group_count = text
    a, b = pairs.half[LEFT, pair], pairs.half[RIGHT, pair]
    width_a, width_b = width[a], width[b]
    first = kept = pairs.first[pair]
    total = count = end = 0
    for k in range(first, first + pairs.size[pair]):
        place = places[k]
        middle = place + width_a
        if slots[place] == a and slots[middle] == b:  # "aaa" is two pairs, and room for one merge
            slots[middle - 1] = slots[middle] = BURIED
            slots[place] = slots[middle + width_b - 1] = c
            if place >= end:
                group = _group(place, group_of, group_end)
                end, count = group_end[group], group_count[group]
            total += count
            places[kept] = place
            kept += 1
    pairs.size[pair] = kept - first
    at.tokens -= total


@kernel
def _survey(side, c, where, text, width, scratch):
    """Look at the neighbour of c on one side of all places `where`; returns how many are different.

    Where c stands next to c, both new, this is one pair: the left neighbour of the second is passed over.
    """
    slots, group_of, group_end, group_count = text
    seen, total, neighbour = scratch.seen, scratch.total, scratch.neighbour
    width_c = width[c]
    different = count = end = 0
    for k in range(len(where)):
        place = where[k]
        x = slots[place + width_c] if side == RIGHT else slots[place - 1]
        if x == c and side == LEFT and k > 0 and where[k - 1] == place - width_c:
            x = BORDER
        neighbour[k] = x
        if x != BORDER:
            if place >= end:
                group = _group(place, group_of, group_end)
                end, count = group_end[group], group_count[group]
            if seen[x] == 0:
                scratch.touched[different] = x
                different += 1
            seen[x] += 1
            total[x] += count
    return different


@kernel
def _bear(side, c, where, s):
    """Make the pairs of c, which stands at the places `where`, with its neighbours on one side."""
    pairs, places, scratch, width, at = s.pairs, s.places, s.scratch, s.symbols.width, s.at[0]
    seen, total, cursor, neighbour = scratch.seen, scratch.total, scratch.cursor, scratch.neighbour
    born = at.pairs
    for t in range(_survey(side, c, where, s.text, width, scratch)):
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
def _begin(byte_end, where, s):
    """Make the pairs of the bytes; byte b stands at the places where[byte_end[b - 1] : byte_end[b]]."""
    start = 0
    for b in range(256):
        _bear(RIGHT, b, where[start : byte_end[b]], s)
        start = byte_end[b]


@kernel
def _merge(pair, s, merges):
    """Merge a pair, whose count is up to date, everywhere."""
    symbols, pairs, at = s.symbols, s.pairs, s.at[0]
    a, b = pairs.half[LEFT, pair], pairs.half[RIGHT, pair]
    c = _mint(a, b, symbols, at)
    m = c - 256
    merges.pairs[m, LEFT], merges.pairs[m, RIGHT], merges.counts[m] = a, b, pairs.count[pair]
    pairs.count[pair] = 0
    _join(pair, c, s.text, symbols.width, pairs, s.places, at)
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
def _sort_slots(slots, byte_end, where):
    """List the slots by the byte that stands there. `byte_end`, all 0 before, says where each byte's list ends."""
    for symbol in slots:
        if symbol != BORDER:
            byte_end[symbol] += 1
    start = 0
    for b in range(256):
        start, byte_end[b] = start + byte_end[b], start
    for slot in range(len(slots)):
        symbol = slots[slot]
        if symbol != BORDER:
            where[byte_end[symbol]] = slot
            byte_end[symbol] += 1


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
    byte_end, where = np.zeros(256, np.int64), np.empty(n, number)
    _sort_slots(text.slots, byte_end, where)
    scratch = _Scratch(
        seen=np.zeros(n_symbols, number),
        total=np.zeros(n_symbols, np.int64),
        cursor=np.empty(n_symbols, np.int64),
        touched=np.empty(n_symbols, np.int32),
        neighbour=np.empty(np.diff(byte_end, prepend=0).max(), np.int32),
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
    at["symbols"], at["floor"], at["by_ids"] = 256, np.iinfo(np.int64).max, tie_break == "ids"
    at["tokens"] = np.dot(np.diff(words.offsets), words.counts)
    places = np.empty(3 * n, number)  # enough: a merge adds two for each symbol that it takes away
    state = _State(text, symbols, pairs, places, scratch, at)
    _begin(byte_end, where, state)
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
    words: Words,
    n_symbols: int,
    *,
    tie_break: str = "bytes",
    min_frequency: int = 1,
    progress: bool = False,
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


def compile_kernels(progress: bool = False) -> None:
    """Compile the kernels of learning now, or load them from the cache, so that the first call finds them ready."""
    with _progress_bar("compile", 1, " set of kernels", progress) as bar:
        learn(words_from_counts({b"ab": 1}), 257)
        bar.update()


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


def build_vocabulary(
    merges: Merges, special_tokens: Sequence[str] = ()
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    """Number the tokens as Hugging Face does: special tokens, the bytes in BYTE_ORDER, then what was merged.

    Returns the vocabulary, id -> bytes, and the merges as pairs of bytes.
    """
    tokens = [bytes([b]) for b in range(256)]
    listed = []
    for left, right in merges.pairs.tolist():
        listed.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
    in_order = [*(token.encode() for token in special_tokens), *(tokens[b] for b in BYTE_ORDER), *tokens[256:]]
    return dict(enumerate(in_order)), listed


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

CACHED_WORDS = 1 << 18  # pretokens whose ids are remembered, some 50 MB


class Tokenizer:
    """Text to token ids and back.

    vocab           id -> bytes; ids may have gaps
    merges          pairs of bytes, the first to be merged first
    special_tokens  strings; those that are not in the vocabulary get the ids behind the last
    pattern         the name of a pattern, or a regular expression

    Raises ValueError for a vocabulary that cannot be.

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
        merges: Sequence[tuple[bytes, bytes]],
        special_tokens: Iterable[str] | None = None,
        pattern: str = "gpt2",
    ):
        self.pattern = Pattern(pattern)
        self.vocab = _checked_vocab(vocab)
        self.merges = [(left, right) for left, right in merges]
        self._id_of = {token: id for id, token in self.vocab.items()}
        self.special_tokens: dict[str, int] = {}
        for token in _checked_specials(special_tokens or ()):
            id = self._id_of.setdefault(token.encode(), max(self.vocab, default=-1) + 1)
            self.vocab[id] = token.encode()
            self.special_tokens[token] = id
        self._byte_ids = [self._id_of.get(bytes([b])) for b in range(256)]
        self._ranks, self._merged = _rank_table(self.merges, self._id_of)
        self._cache: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """The number of tokens, special tokens included."""
        return len(self.vocab)

    def __repr__(self) -> str:
        return f"<Tokenizer: {len(self)} tokens, {len(self.special_tokens)} special, pattern {self.pattern}>"

    def __reduce__(self):
        return Tokenizer, (self.vocab, self.merges, list(self.special_tokens), self.pattern.text)

    @classmethod
    def from_files(
        cls,
        vocab_path: str | os.PathLike,
        merges_path: str | os.PathLike,
        special_tokens: Iterable[str] | None = None,
        pattern: str = "gpt2",
    ) -> Tokenizer:
        """Load GPT-2's two files, vocab.json and merges.txt."""
        special_tokens = _checked_specials(special_tokens or ())
        vocab = _vocab_from_json(_json_file(Path(vocab_path)), special_tokens, str(vocab_path))
        return cls(vocab, _merges_from_text(Path(merges_path)), special_tokens, pattern)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Tokenizer:
        """Load a folder written by `save`, or a tokenizer.json of Hugging Face's with a byte-level BPE model."""
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise BadInput(f"{path}: no tokenizer.json here")
        return _from_huggingface(_json_file(file), str(file))

    def save(self, folder: str | os.PathLike) -> None:
        """Write tokenizer.json (Hugging Face's format, the whole model), vocab.json and merges.txt (GPT-2's)."""
        names = _token_names(self)
        pairs = [(_to_chars(left), _to_chars(right)) for left, right in self.merges]
        _write_files(
            Path(folder),
            {
                "tokenizer.json": _dump(_to_huggingface(self, names, pairs), indent=2),
                "vocab.json": _dump(names),
                "merges.txt": "".join(["#version: 0.2\n", *(f"{left} {right}\n" for left, right in pairs)]),
            },
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
        return list(self.encode_iterable([text], allowed_special))

    def encode_ordinary(self, text: str | bytes) -> list[int]:
        """The ids of a text in which no special token is honoured."""
        return self.encode(text, "none")

    def encode_iterable(
        self, chunks: Iterable[str | bytes], allowed_special: str | Iterable[str] = "all"
    ) -> Iterator[int]:
        """The ids of a text that comes in chunks, a file say: the same as of the whole text, in bounded memory.

        What `Splitter` says about memory holds here.
        """
        if isinstance(chunks, (str, bytes)):
            chunks = [chunks]
        splitter = Splitter(self.pattern, self._allowed(allowed_special))
        for text in _decoded(chunks):
            yield from self._encode_pieces(splitter.feed(text))
        yield from self._encode_pieces(splitter.close())

    def _allowed(self, allowed_special: str | Iterable[str]) -> list[str]:
        if allowed_special in ("all", "none"):
            return list(self.special_tokens) if allowed_special == "all" else []
        if isinstance(allowed_special, str):
            raise BadInput(f"allowed_special is 'all', 'none' or a set of tokens, not {allowed_special!r}")
        for token in (allowed := list(allowed_special)):
            if token not in self.special_tokens:
                raise BadInput(f"{token!r} is not a special token of this tokenizer: {', '.join(self.special_tokens)}")
        return allowed

    def _encode_pieces(self, pieces: Iterable[Piece]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            if piece.is_special:
                ids.append(self.special_tokens[piece.text])
                continue
            pretokens = self.pattern.pretokens(piece.text)
            for pretoken in pretokens:
                found = self._cache.get(pretoken)
                if found is None:
                    found = self._merge(_to_bytes(pretoken))
                    if len(self._cache) >= CACHED_WORDS:
                        self._cache.clear()
                    self._cache[pretoken] = found
                ids += found
        return ids

    def _merge(self, word: bytes) -> list[int]:
        """The ids of a pretoken: the pair of lowest rank merges first, the leftmost of several. Takes n log n steps."""
        ids = [self._byte_ids[b] for b in word]
        if None in ids:
            raise BadInput(f"the byte 0x{word[ids.index(None)]:02X} is not in the vocabulary")
        n, ranks, merged = len(ids), self._ranks, self._merged
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        heap = [(rank, i) for i in range(n - 1) if (rank := ranks.get((ids[i], ids[i + 1]))) is not None]
        heapq.heapify(heap)
        while heap:
            rank, i = heapq.heappop(heap)
            j = after[i]
            if j == n or ranks.get((ids[i], ids[j])) != rank:  # one of the two was merged meanwhile
                continue
            ids[i], ids[j] = merged[rank], None
            after[i] = k = after[j]
            if k < n:
                before[k] = i
            for left, right in ((before[i], i), (i, k)):
                if left >= 0 and right < n and (rank := ranks.get((ids[left], ids[right]))) is not None:
                    heapq.heappush(heap, (rank, left))
        return [id for id in ids if id is not None]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of some ids; raises ValueError for an id that is not in the vocabulary."""
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        return b"".join(map(self.id_to_token, ids))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids. What is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")


def _checked_vocab(vocab: Mapping[int, bytes]) -> dict[int, bytes]:
    """A copy, after a look at every entry."""
    seen: dict[bytes, int] = {}
    for id, token in vocab.items():
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < 2**31:
            raise BadInput(f"a token id is a whole number from 0 to 2**31 - 1, not {id!r} (token {token!r})")
        if not isinstance(token, bytes) or not token:
            raise BadInput(f"a token is bytes, at least one: id {id} has {token!r}")
        if token in seen:
            raise BadInput(f"the ids {seen[token]} and {id} have the same bytes, {token!r}")
        seen[token] = id
    return dict(vocab)


def _rank_table(
    merges: Sequence[tuple[bytes, bytes]], id_of: Mapping[bytes, int]
) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Pair of ids -> rank, and rank -> the id that the pair becomes."""
    ranks: dict[tuple[int, int], int] = {}
    merged = []
    for rank, (left, right) in enumerate(merges):
        for token in (left, right, left + right):
            if token not in id_of:
                raise BadInput(f"merge {rank}, of {left!r} and {right!r}: {token!r} is not in the vocabulary")
        ranks.setdefault((id_of[left], id_of[right]), rank)
        merged.append(id_of[left + right])
    return ranks, merged


# ─── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


def _vocab_from_json(names: object, special_tokens: Iterable[str], where: str) -> dict[int, bytes]:
    """The inverse of `_token_names`."""
    if not isinstance(names, dict):
        raise BadInput(f"{where}: a vocabulary is an object of tokens and ids")
    special = set(special_tokens)
    vocab: dict[int, bytes] = {}
    for name, id in names.items():
        if not isinstance(id, int):
            raise BadInput(f"{where}: {name!r} has the id {id!r}, which is not a whole number")
        if vocab.setdefault(id, token := name.encode() if name in special else _from_chars(name, where)) is not token:
            raise BadInput(f"{where}: {name!r} has the id {id!r}, which is that of {vocab[id]!r}")
    return vocab


def _merges_from_text(path: Path) -> list[tuple[bytes, bytes]]:
    """Read merges.txt: two tokens a line, below a line with the version, which may be missing."""
    merges = []
    for number, line in enumerate(_utf8(path).split("\n"), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        where = f"{path}, line {number}"
        merges.append(_merge_from_names(line.rstrip("\r").split(" "), where))
    return merges


def _merge_from_names(names: object, where: str) -> tuple[bytes, bytes]:
    if not isinstance(names, list) or len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"{where}: {names!r} is not a merge, two tokens with a space between them")
    return _from_chars(names[0], where), _from_chars(names[1], where)


def _utf8(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}") from None


def _json_file(path: Path) -> object:
    try:
        return json.loads(_utf8(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON ({error})") from None


def _to_huggingface(tokenizer: Tokenizer, names: dict[str, int], pairs: list[tuple[str, str]]) -> dict:
    """A tokenizer.json, as the `tokenizers` package writes it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    pre_tokenizer: dict = byte_level
    if tokenizer.pattern.name != "gpt2":
        split = {"type": "Split", "pattern": {"Regex": tokenizer.pattern.text}, "behavior": "Isolated", "invert": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, byte_level | {"use_regex": False}]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": token, **flags, "special": True}
            for token, id in sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": names,
            "merges": pairs,
        },
    }


def _from_huggingface(data: object, where: str) -> Tokenizer:
    """Read a tokenizer.json; raises ValueError for what would encode otherwise here than there."""

    def refuse(unless: bool, what: str) -> None:
        if not unless:
            raise BadInput(f"{where}: {what}")

    refuse(isinstance(data, dict) and isinstance(data.get("model"), dict), "not a tokenizer.json: it has no model")
    model = data["model"]
    refuse(model.get("type", "BPE") == "BPE" and isinstance(model.get("merges"), list), "its model is not a BPE")
    for key in (
        "dropout",
        "unk_token",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "byte_fallback",
        "ignore_merges",
    ):
        refuse(not model.get(key), f"a model with {key} is not supported")
    refuse(not data.get("normalizer"), "a normalizer is not supported")
    added = data.get("added_tokens") or []
    refuse(
        isinstance(added, list) and all(isinstance(t, dict) and isinstance(t.get("content"), str) for t in added),
        "added_tokens is not a list of tokens",
    )
    for token in added:
        for key in ("single_word", "lstrip", "rstrip"):
            refuse(not token.get(key), f"the added token {token['content']!r} is {key}, which is not supported")
    special = {token["content"]: token.get("id") for token in added}
    names = model.get("vocab")
    refuse(isinstance(names, dict), "its vocabulary is not an object of tokens and ids")
    for content, id in special.items():
        refuse(names.get(content, id) == id, f"the added token {content!r} has the ids {names.get(content)} and {id}")
    vocab = _vocab_from_json(names | special, special, where)
    merges = [
        _merge_from_names(merge.split(" ") if isinstance(merge, str) else merge, f"{where}, merge {rank}")
        for rank, merge in enumerate(model["merges"])
    ]
    return Tokenizer(vocab, merges, list(special), _pattern_from_huggingface(data.get("pre_tokenizer"), where))


def _pattern_from_huggingface(pre_tokenizer: object, where: str) -> str:
    """The pattern of ByteLevel, or of a Split by a regular expression with ByteLevel behind it."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False} if pre_tokenizer.get("use_regex", True):
            return "gpt2"
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(text)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return text
    raise BadInput(f"{where}: a pre_tokenizer that is not supported: {json.dumps(pre_tokenizer)[:200]}")


def _dump(data: object, indent: int | None = None) -> str:
    return json.dumps(data, ensure_ascii=False, indent=indent) + "\n"


@contextlib.contextmanager
def _replacing(path: Path):
    """A file for writing bytes that takes the place of `path` when the block ends well, and else leaves no trace."""
    if path.is_dir():
        raise BadInput(f"{path}: is a folder; name a file to write")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "xb") as file:
            yield file
        os.replace(unfinished, path)
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
) -> Trained:
    """Train on files, folders or globs, and return the tokenizer with all that was measured.

    special_tokens  end documents: they are not learnt from; they get the first ids
    pattern         a name in PATTERNS, or a regular expression
    tie_break       "bytes" or "ids"; min_frequency: pairs that are rarer are not merged; see `learn`
    workers         processes that scan; None for one a core. The result is the same for any number
    text_field      where a line of a .jsonl file has its text; "text" if not given
    progress        draw progress bars

    Raises ValueError for input that cannot be, and OSError for what cannot be read.
    """
    special_tokens = _checked_specials(special_tokens)
    _check_size(vocab_size, special_tokens)
    if workers is not None and workers < 1:
        raise BadInput(f"{workers} workers: at least one must do the work")
    compiled = Pattern(pattern)
    files = find_files([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)
    seconds: dict[str, float] = {}
    with stage("scan", seconds):
        counted = count_pretokens(
            files,
            compiled,
            special_tokens,
            workers=workers or available_cores(),
            text_field=text_field,
            progress=progress,
        )
    if not counted.counts:
        raise BadInput(f"no text to learn from in {', '.join(map(str, files[:3]))}{' …' if len(files) > 3 else ''}")
    with stage("compile", seconds):
        compile_kernels(progress)
    with stage("words", seconds):
        words = words_from_counts(counted.counts)
    with stage("learn", seconds):
        merges = learn(
            words,
            vocab_size - len(special_tokens),
            tie_break=tie_break,
            min_frequency=min_frequency,
            progress=progress,
        )
    with stage("vocabulary", seconds):
        vocab, listed = build_vocabulary(merges, special_tokens)
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
        ("pretokens", f"{counted.n_pretokens:,}, of which {len(counted.counts):,} differ"),
        (
            "merges",
            f"{len(merges.counts):,}; the last pair stood {merges.counts[-1]:,} times" if len(merges.counts) else "0",
        ),
        ("vocabulary", f"{len(tokenizer):,} tokens, {len(special)} of them special"),
        ("compression", _compression(merges, n_bytes)),
        ("longest", " ".join(repr(_shortened(token.decode("utf-8", "replace"))) for token in longest)),
        ("seconds", ", ".join(f"{name} {spent:.2f}" for name, spent in trained.seconds.items())),
        ("peak memory", f"{peak / 1e6:,.0f} MB in the largest process" if peak else "unknown"),
        ("written", f"{out / 'tokenizer.json'}, vocab.json, merges.txt"),
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
    )
    with stage("save", trained.seconds):
        trained.tokenizer.save(options.out)
    if not options.quiet:
        named = " ".join(options.inputs) or f"the {len(inputs):,} sources of Python's standard library"
        print(_summary(trained, named, options.out, options.vocab_size))


def _make_folder(folder: Path) -> None:
    """Find out before the work whether its result can be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _encode_command(options: argparse.Namespace) -> None:
    tokenizer = Tokenizer.load(options.model)
    allowed = "none" if options.no_special else "all"
    files = find_files(options.inputs)
    seconds: dict[str, float] = {}
    with _progress_bar("encode", _size(files), "B", not options.quiet) as bar, stage("encode", seconds):
        texts = read_texts(files, options.text_field, bar.update)
        encoded = (tokenizer.encode_iterable(chunks, allowed) for chunks in texts)
        if options.out:
            n_tokens = _write_npy(options.out, encoded, max(tokenizer.vocab))
        else:
            for ids in encoded:
                print(*ids)
    if options.out and not options.quiet:
        print(f"{n_tokens:,} tokens in {seconds['encode']:.2f} s, written to {options.out}")


def _write_npy(path: Path, encoded: Iterable[Iterable[int]], largest_id: int) -> int:
    """Write ids as one array of the smallest type that holds the vocabulary; returns their number."""
    dtype = np.dtype(np.uint16 if largest_id < 2**16 else np.uint32)
    header = {"descr": dtype.str, "fortran_order": False}
    n_tokens = 0
    with _replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, header | {"shape": (0,)})
        start = file.tell()
        ids = itertools.chain.from_iterable(encoded)
        while len(block := np.fromiter(itertools.islice(ids, BLOCK), dtype)):
            file.write(block.data)
            n_tokens += len(block)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header | {"shape": (n_tokens,)})  # NumPy pads it for growth
        assert file.tell() == start
    return n_tokens


def _decode_command(options: argparse.Namespace) -> None:
    tokenizer = Tokenizer.load(options.model)
    target = _replacing(options.out) if options.out else contextlib.nullcontext(sys.stdout.buffer)
    with target as file:
        for ids in _read_ids(options.tokens):
            file.write(tokenizer.decode_bytes(ids))


def _read_ids(path: Path) -> Iterator[Iterable[int]]:
    """Ids from a .npy file, or as numbers in a text, in blocks."""
    if path != STDIN and path.name.endswith(".npy"):
        try:
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise BadInput(f"{path}: not a NumPy array ({error})") from None
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise BadInput(f"{path}: an array of {ids.dtype} and shape {ids.shape} does not hold token ids")
        yield from (ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))
        return
    for number, line in enumerate(_read(path, True, lambda n: None), 1):
        try:
            yield list(map(int, line.split()))
        except ValueError:
            raise BadInput(f"{path}, line {number}: not token ids, which are whole numbers") from None


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
    encode.add_argument("model", type=Path, metavar="MODEL", help="a folder written by train, or a tokenizer.json")
    encode.add_argument("inputs", nargs="+", metavar="INPUT", help=reads)
    encode.add_argument(
        "--out", type=Path, metavar="FILE", help="a .npy file (default: print ids, a line for each text)"
    )
    encode.add_argument("--no-special", action="store_true", help="take special tokens in the text for ordinary text")

    for command in (train, encode):
        command.add_argument("--text-field", metavar="NAME", help="where a .jsonl line has its text (default: text)")
        command.add_argument("--quiet", action="store_true", help="no progress bars, no summary")

    decode = commands.add_parser("decode", help="turn token ids into text")
    decode.set_defaults(run=_decode_command)
    decode.add_argument("model", type=Path, metavar="MODEL", help="a folder written by train, or a tokenizer.json")
    decode.add_argument(
        "tokens", type=Path, metavar="TOKENS", help="a .npy file, a text with ids, or - for standard input"
    )
    decode.add_argument("--out", type=Path, metavar="FILE", help="where the text goes (default: standard output)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 2 for bad input, 130 when interrupted."""
    options = _parser().parse_args(arguments)
    try:
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
