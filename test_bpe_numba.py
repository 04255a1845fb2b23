"""Tests of bpe_numba, in the order of its sections. They hold what is public: results against a plain reference, and
against `regex`, `tokenizers` and `tiktoken`; independence of workers, blocks and chunks; and what is refused, and how.

First the oracle: BPE as it is defined, in the plainest Python, without the module's help.

The tests marked `kernels` run twice: here, and in a second process with every index checked (see Safety).
"""

from __future__ import annotations

import ast
import base64
import concurrent.futures
import contextlib
import copy
import ctypes
import doctest
import gzip
import hashlib
import html
import importlib.util
import inspect
import io
import itertools
import json
import math
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jinja2.sandbox
import numpy as np
import pytest
import regex
import tiktoken
import tiktoken.load
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

import bpe_numba as bpe

MODULE = str(Path(bpe.__file__))
BOUNDS_CHECKED = os.environ.get("NUMBA_BOUNDSCHECK") == "1"  # this is the second run of the tests of kernels
settings.register_profile("normal", deadline=None)  # the first example compiles kernels
settings.register_profile("few", deadline=None, max_examples=15)
kernels = pytest.mark.kernels
settings.load_profile("few" if BOUNDS_CHECKED else "normal")


def examples(n):
    """Settings for so many examples; for a few in the second run."""
    return settings(max_examples=min(n, 15) if BOUNDS_CHECKED else n)


# ─── The oracle ───────────────────────────────────────────────────────────────────────────────────────────────────────

BYTES = [bytes([b]) for b in range(256)]


def merged(word, pair):
    """Join every occurrence of a pair of symbols, from left to right. A symbol is its bytes."""
    out, i = [], 0
    while i < len(word):
        size = 2 if tuple(word[i : i + 2]) == pair else 1
        out.append(b"".join(word[i : i + size]))
        i += size
    return out


def naive_learn(counts, n_symbols, tie_break="bytes", min_frequency=1, alphabet=None):
    """Merge the most frequent pair, again and again. Returns merges, their counts, and the tokens left after each.

    A word is bytes or, over another alphabet than the bytes, a tuple of symbols.
    """
    words = [([s if alphabet else bytes([s]) for s in word], count) for word, count in counts.items() if count]
    order = {symbol: i for i, symbol in enumerate(alphabet or sorted(BYTES, key=in_chars))}
    merges, merge_counts = [], []
    tokens = [sum(len(word) * count for word, count in words)]
    while len(order) < n_symbols:
        pairs = Counter()
        for word, count in words:
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < min_frequency:
            break
        if tie_break == "bytes":
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
        else:
            best = min(pairs, key=lambda pair: (-pairs[pair], order[pair[0]], order[pair[1]]))
        words = [(merged(word, best), count) for word, count in words]
        merges.append(best)
        merge_counts.append(pairs[best])
        tokens.append(sum(len(word) * count for word, count in words))
        assert best[0] + best[1] not in order, "a merge gave the bytes of an older symbol"
        order[best[0] + best[1]] = len(order)
    return merges, merge_counts, tokens


def naive_encode(word, merges):
    """Merge the pair of lowest rank, again and again."""
    symbols = [bytes([b]) for b in word]
    rank = {pair: i for i, pair in reversed(list(enumerate(merges)))}
    while known := rank.keys() & set(itertools.pairwise(symbols)):
        symbols = merged(symbols, min(known, key=rank.__getitem__))
    return symbols


def naive_encode_by_id(word, id_of):
    """Merge any two neighbours whose bytes are a token, the one of lowest id first, the leftmost of several."""
    if word in id_of:
        return [word]
    symbols = [bytes([b]) for b in word]
    while known := [(id_of[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in id_of]:
        _, i = min(known)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return symbols


def naive_split(patterns, data):
    """The pretokens by the `regex` package: matches, and what is between them. Each pattern cuts what the last left."""
    words = [data]
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        words = [part for word in words for part in naive_matches(pattern, word)]
    return words


def naive_matches(pattern, data):
    """Raises TimeoutError where `regex` goes back without end, as random patterns make it do."""
    text, words, end = data.decode("utf-8", "surrogateescape"), [], 0
    for match in regex.finditer(pattern, text, timeout=5):
        words += [text[end : match.start()], match[0]]
        end = match.end()
    return [word.encode("utf-8", "surrogateescape") for word in [*words, text[end:]] if word]


def naive_parts(text, special):
    """Cut at special tokens, the longest first: text, token, text, …, token, text."""
    longest_first = "|".join(map(regex.escape, sorted(special, key=len, reverse=True)))
    return regex.split(f"({longest_first})", text) if special else [text]


def naive_count(text, patterns, special):
    """The pretokens of a text, counted, and its documents, which are what stands between special tokens."""
    as_text = [token.encode().decode("latin-1") for token in special]  # a character for each byte
    documents = [part.encode("latin-1") for part in naive_parts(text.decode("latin-1"), as_text)[::2] if part]
    return Counter(word for part in documents for word in naive_split(patterns, part)), len(documents)


def in_chars(token):
    """A token as GPT-2's files write it: each byte as a character that can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unseen = [b for b in range(256) if b not in seen]
    return "".join(chr(b) if b in seen else chr(256 + unseen.index(b)) for b in token)


# ─── Data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

END = "<|endoftext|>"
LONG = 1 << 17  # bytes of a text that is scanned by several lanes at once, and more than once
BYTE_VOCAB = dict(enumerate(BYTES))

# Words of few letters, in which pairs are frequent and overlap, and their counts.
few_letters = st.sampled_from([b"a", b"ab", b"abc", b"\x00\xff", bytes(range(97, 107))])
small_words = few_letters.flatmap(
    lambda letters: st.binary(max_size=40).map(lambda w: bytes(letters[b % len(letters)] for b in w))
)
word_counts = st.dictionaries(small_words, st.integers(0, 5), max_size=12).filter(
    lambda d: any(k and v for k, v in d.items())
)
# Any text, with more of what patterns and special tokens look at.
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab '\n\r\t  sſ　é١中🙂<|>"), max_size=60)
# Texts of few characters, for which patterns take their rarer ways.
alphabets = st.sampled_from(["ab c'sStTlLvVeErRdmM \n\r\t 12中é\u3000\u0301ſK/.!", "ab", "abc xy", "a1 \n", " \n"])
pattern_texts = texts | alphabets.flatmap(lambda letters: st.text(letters, max_size=80))
# Bytes that are not UTF-8, in every way, among some that are.
invalid = [b"\xff", b"\xc0\xaf", b"\xe4\xb8", b"\xf5", b"\xed\xa0\x80", b"\xf0\x9f\x99\x82", b"a", b" ", b"\n", b"<a"]
hostile_bytes = st.binary(max_size=60) | st.lists(st.sampled_from(invalid)).map(b"".join)
# One to four words of bytes for encoders: any, of four letters, or long and of one.
words = st.binary(max_size=60) | st.text("aeti", max_size=300).map(str.encode) | st.just(b"a" * 200 + b"e")


def random_tokens(source, letters, n):
    """Single bytes, and n tokens made of two others each; and the pairs they were made of."""
    tokens, merges = [bytes([b]) for b in letters], []
    for _ in range(n):
        merges.append((source.choice(tokens), source.choice(tokens)))
        if b"".join(merges[-1]) not in tokens:
            tokens.append(b"".join(merges[-1]))
    return list(dict.fromkeys([*BYTES, *tokens])), merges


@pytest.fixture(scope="session")
def library():
    """The standard library's sources that are UTF-8, as paths: real text on every machine."""

    def is_utf8(path):
        try:
            path.read_bytes().decode()
        except UnicodeDecodeError:
            return False
        return True

    return list(filter(is_utf8, bpe.standard_library()))


@pytest.fixture(scope="session")
def trained(library):
    """A model of 2,000 tokens, by the rule of ids, from a part of the standard library."""
    return bpe.train(library[:200], 2000, [END], tie_break="ids", workers=1)


@pytest.fixture(scope="session")
def tokenizer(trained):
    return trained.tokenizer


@pytest.fixture(scope="session")
def some_texts(library):
    """Code, prose in several scripts, bytes that are not text, and words that are long, rare, or both."""
    source = random.Random(1)
    return [
        *(path.read_bytes().decode() for path in library[:40]),
        f"a{END}{END} b" + END,
        "",
        "中文没有空格" * 300 + "Это русский текст. " * 200,
        " ".join("".join(source.choices("abcdefgh", k=source.randrange(1, 60))) for _ in range(20_000)),
        source.randbytes(20_000),
        b"a\xff" * 100,
    ]


@contextlib.contextmanager
def within(seconds):
    """Fail, rather than hang, where a loop does not end."""

    def stop(*_):
        raise TimeoutError(f"still running after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_linear(function, n):
    """`function(8 * n)` takes some 8 times as long as `function(n)`, not 64: 24 tells them apart on any machine."""

    def least_seconds(size):
        spent = []
        for _ in range(3):
            start = time.process_time()
            function(size)
            spent.append(time.process_time() - start)
        return min(spent)

    assert least_seconds(8 * n) < 24 * max(least_seconds(n), 1e-3)


# ─── The module ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_name_of_the_module_is_bound_twice():
    def bound(statement):
        match statement:
            case ast.FunctionDef() | ast.ClassDef():
                return [statement.name]
            case ast.Assign() | ast.AnnAssign():
                names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
                return [name.id for name in names if isinstance(name.ctx, ast.Store)]
        return []

    names = Counter(name for statement in ast.parse(Path(MODULE).read_text()).body for name in bound(statement))
    assert [name for name, times in names.items() if times > 1] == []


def test_public_names_are_few_and_explained_by_examples():
    assert len(bpe.__all__) <= 15
    public = [getattr(bpe, name) for name in bpe.__all__]
    assert [value for value in public if callable(value) and ">>> " not in (inspect.getdoc(value) or "")] == []


def test_examples_in_docstrings_run():
    found = doctest.testmod(bpe)
    assert found.attempted > 30 and found.failed == 0


# ─── Running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_executor_has_as_much_work_as_it_has_workers():
    taken, barrier = [], threading.Barrier(100)
    items = (taken.append(k) or k for k in range(10_000))
    with ThreadPoolExecutor(100) as pool:
        results = bpe.Engine(executor=pool).map(lambda k: k >= 100 or barrier.wait(20) >= 0, items)
        assert all(itertools.islice(results, 300)) and len(taken) < 1000  # and memory is bounded
        results.close()


class OneByOne(concurrent.futures.Executor):
    """An executor that does not say how many workers it has, and notes what comes back."""

    def __init__(self):
        self.results = []

    def submit(self, function, /, *arguments):
        future = concurrent.futures.Future()
        self.results.append(function(*arguments))
        future.set_result(pickle.loads(pickle.dumps(self.results[-1])))
        return future


def test_results_come_in_order():
    for engine in (bpe.Engine(workers=1), bpe.Engine(workers=3), bpe.Engine(executor=OneByOne())):
        assert list(engine.map(abs, range(-50, 0), threads=True)) == list(range(50, 0, -1))
        assert list(engine.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1] and list(engine.map(abs, [])) == []


def _die(item):
    os._exit(1)


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(bpe.InputError, match="worker process died"):
        list(bpe.Engine(workers=2).map(_die, range(4)))


def test_files_take_their_names_when_they_are_whole(tmp_path):
    path = tmp_path / "ids.bin"
    (tmp_path / f".ids.bin.{os.getpid()}.unfinished").touch()  # left by a process that was killed, of the same number
    for content in (b"old", b"new"):
        with bpe.atomic_write(path) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    (tmp_path / f".ids.bin.{os.getpid()}.unfinished").unlink()
    with pytest.raises(OSError), bpe.atomic_write(path) as file:
        file.write(b"half")
        raise OSError("disk full")
    assert [file.name for file in tmp_path.iterdir()] == ["ids.bin"] and path.read_bytes() == b"new"
    with pytest.raises(ValueError, match="is a folder"), bpe.atomic_write(tmp_path):
        pass


def test_only_the_named_stage_is_profiled(monkeypatch):
    calls = []
    profiler = SimpleNamespace(start=lambda: calls.append("start"), stop=lambda: calls.append("stop"))
    monkeypatch.setitem(sys.modules, "scalene", SimpleNamespace(scalene_profiler=profiler))
    monkeypatch.setitem(sys.modules, "scalene.scalene_profiler", profiler)
    monkeypatch.setenv(bpe.PROFILE_VARIABLE, "learn")
    seconds = {}
    for name in ("scan", "learn", "save"):
        with bpe.stage(name, seconds):
            calls.append(name)
    assert calls == ["scan", "start", "learn", "stop", "save"] and set(seconds) == {"scan", "learn", "save"}


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# Regular expressions of all that is compiled: simple ones, those that look at what comes next, and those below.
plain = [r"[a-z]+", r"\w+", "(a)|(b)", "(?:abc)", "a+b|a", "aa|a{3,5}b", "x{2,}y|x", r"(?i:it|is)|\p{L}{2,3}|\d+(?!\d)"]
ending = [r"a(?=b)|b+?c|.", r"\S+?(?=\s)|\s+", r" ?\p{L}+\s*$|\p{L}", r"\s++$|\s|\S+", r"[^\W\d]+|\p{Han}"]
# What tells controls, surrogates and bytes that are not UTF-8 from other text.
hostile = [r"\p{Cc}+|[^\p{Cc}]+", r"\p{C}+|\P{C}{1,3}", r"[\x00-\x1f]+|\p{Cs}", r"[\udc80-\udcff]+", r"<\w+>"]
CUSTOM_PATTERNS = [*plain, *ending, *hostile, r"(?i:s|[ab]{2}(?=a))"]


@kernels
@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, *CUSTOM_PATTERNS])
@example(b"a\xffb")
@example(b"aBB\xe4aaa")
@example(b"<a<>\xe4<a>")
@example(b"a \n")
@example(b"pA a\xff\xfe\x80")
@given(data=pattern_texts.map(str.encode) | hostile_bytes)
def test_pretokens_are_those_of_regex(pattern, data):
    compiled = bpe.Pattern(pattern)
    assert compiled.is_compiled and compiled.split(data) == naive_split(bpe.PATTERNS.get(pattern, pattern), data)


# Random regular expressions of all that is compiled, and bytes that they look at.
simple = ["a", "b", "[ab]", "[^a]", r"\s", r"\S", r"\w", r"\W", r"\p{L}", ".", r"\d", "é", "(?i:A)"]
invisible = [r"\p{C}", r"\P{C}", r"[\x00-\x1f]", r"\p{Cs}", r"[^\p{Cc}]", r"[\udc80-\udcff]"]
atoms = st.sampled_from(simple + invisible)
quantifiers = st.sampled_from(["", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "??", "+?", "*?", "++", "?+", "*+"])
lookaheads = st.sampled_from(["", "", "", "(?!a)", r"(?=\s)", r"(?!\S)", r"(?=\p{C})", "$", r"\Z"])
regexes = st.recursive(
    st.tuples(atoms, quantifiers).map("".join),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.tuples(inner, st.sampled_from(["?", "+", "{2}", "*?"])).map(lambda part: f"(?:{part[0]}){part[1]}")
        | st.tuples(inner, lookaheads).map("".join)
    ),
    max_leaves=6,
).map("(?:{})".format)
random_bytes = st.text("aAb é1 \n\x00\x1f\u200b", max_size=20).map(str.encode) | st.lists(
    st.sampled_from([*invalid, b"A", b"\x00", b"\x02", b"\xc3\xa9"]), max_size=20
).map(b"".join)


@kernels
@examples(100)
@given(pattern=regexes, inputs=st.lists(random_bytes, min_size=3, max_size=20), seed=st.integers(0, 9))
def test_random_patterns_are_exact_or_left_to_regex(pattern, inputs, seed):
    """In one lane and, for the last of the inputs, in all."""
    try:
        compiled = bpe.Pattern(pattern)
    except bpe.InputError:  # only if it matches nothing, or the empty string
        found = [regex.search(pattern, data.decode("utf-8", "surrogateescape")) for data in inputs]
        assert regex.fullmatch(pattern, "") or not any(found)
        return
    if "aaa…" not in compiled.warning:
        inputs.append(b"".join(random.Random(seed).choices(inputs, k=9000))[:LONG])
    for data in inputs:
        try:
            expected = naive_split(pattern, data)
        except TimeoutError:
            return
        assert compiled.split(data) == expected


def test_where_regex_itself_is_wrong():
    """`regex` joins negated characters to one set, wrongly, and finds nothing in b"aa"; `re` and Pattern do."""
    for pattern in (r"(?:s)|[^\n]|[^a]", r"(?i:s)|[^\n]|[^a]"):
        assert re.findall(pattern, "aa") == ["a", "a"] and bpe.Pattern(pattern).split(b"aa") == [b"a", b"a"]


@pytest.mark.parametrize(
    "pattern, why",
    [
        (r"(?<=a)b", r"'\(\?<'"),
        (r"(a)\1", r"'\\\\1'"),
        (r"\bword", r"'\\\\bw'"),
        (r"a++a|b", "possessive"),
        (r"(?=ab)a", "lookahead"),
        (r"^a", r"'\^a'"),
        (r"a$", "newline"),
        (r"(?:a?)+b", "empty"),
        (r"\s+?$|[\s\S]", "newline"),
        (r"\pA|.", "pA"),
        ("|".join(f"a{{90}}{c}{{90}}" for c in "abcdefghijklm"), "2,000"),
        (r"a{200}|b", "100"),
        ("|".join(map(chr, range(0x4E00, 0x4E00 + 61))), "60"),
    ],
)
def test_what_is_not_compiled_is_said_and_works(pattern, why):
    compiled = bpe.Pattern(pattern)
    assert not compiled.is_compiled and regex.search(why, compiled.warning)
    for data in (b"a \n", "ab aa word b中一\x00 pA".encode() + b"\xff"):
        assert compiled.split(data) == naive_split(pattern, data)


def test_compiled_patterns_are_kept_on_the_disk(tmp_path, monkeypatch):
    def compiled_anew():
        """By a second copy of the module, which knows nothing of what the first one has in memory."""
        spec = importlib.util.spec_from_file_location("bpe_numba_again", bpe.__file__)
        monkeypatch.setitem(sys.modules, spec.name, again := importlib.util.module_from_spec(spec))
        spec.loader.exec_module(again)
        return again.Pattern("none").is_compiled

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "pattern.none.outdated.npz").touch()
    assert compiled_anew()
    (path,) = tmp_path.iterdir()
    made, content = path.stat().st_ino, path.read_bytes()
    assert compiled_anew() and path.stat().st_ino == made
    for damage in (b"", content[:5000], b"no zip"):
        path.write_bytes(damage)
        assert compiled_anew() and len(path.read_bytes()) > 5000
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    assert compiled_anew()


def test_patterns_that_cost_the_square_are_named():
    assert "'aaa…'" in bpe.Pattern("a+b|a").warning
    assert all(bpe.Pattern(name).warning == "" for name in bpe.PATTERNS)


def test_patterns_know_what_they_leave_out():
    assert all(bpe.Pattern(name).covers for name in [*bpe.PATTERNS, r"\s+|\S", r"[\s\S]"])
    assert not any(bpe.Pattern(p).covers for p in (r"\w+", ".", r"[^\x00]", r"a+b|[^a]", (r"\w+", r"\d")))


def test_patterns_have_names_sources_and_stages():
    gpt2, chain = bpe.Pattern("gpt2"), bpe.Pattern(["gpt2", r"\p{N}"])
    assert gpt2.name == "gpt2" and gpt2.source == bpe.PATTERNS["gpt2"] and bpe.Pattern(gpt2.source).name == "gpt2"
    assert chain.name is None and chain.source == (gpt2.source, r"\p{N}")
    for pattern in (gpt2, chain):
        assert pickle.loads(pickle.dumps(pattern)).source == pattern.source


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
@given(text=texts)
def test_patterns_are_those_of_tiktoken(name, text):
    assert bpe.Pattern(name).split(text.encode()) == naive_split(TIKTOKEN_PATTERNS[name], text.encode())


def tiktoken_patterns():
    """The patterns as tiktoken's source has them."""
    from tiktoken_ext import openai_public

    source = Path(openai_public.__file__).read_text()
    cl100k = next(line for line in source.splitlines() if "[\\r\\n]*+|\\s++$" in line).split('"""')[1]
    o200k = source.split("def o200k_base")[1].split("]\n    )")[0].split('"""')[1::2]
    return {"cl100k": cl100k, "o200k": "|".join(o200k)}


TIKTOKEN_PATTERNS = tiktoken_patterns()


@pytest.mark.parametrize(
    "bad, part",
    [
        ("(", "position 1"),
        ("[a", "does not compile"),
        ("a*", "empty string"),
        ("", "empty"),
        (r"(?!\s)\s", "nothing"),
        ("gpt9", "no pattern is named 'gpt9'; there are gpt2, cl100k"),
        ("(?:" * 300 + "a" + ")" * 300, "does not compile"),
        ("a{" + "9" * 5000 + "}", "does not compile"),
    ],
)
def test_bad_patterns_are_refused(bad, part):
    with pytest.raises(bpe.InputError, match=part):
        bpe.Pattern(bad)


# ─── Scanning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernels
@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, *CUSTOM_PATTERNS])
def test_long_texts_are_scanned_by_all_lanes(pattern):
    compiled, source = bpe.Pattern(pattern), random.Random(3)
    for letters in ("ab c'sl \n\r\t 12中é\u3000\u0301ſK/.!<>\x00", "the cat   sat\n        ", "x1\n"):
        data = "".join(source.choices(letters, k=LONG // 4)).encode() + bytes(source.choices(range(256), k=9))
        for whole in (data * 2, data.replace(b"a", b"\xe4")):
            assert compiled.split(whole) == naive_split(bpe.PATTERNS.get(pattern, pattern), whole)


@kernels
@given(data=hostile_bytes)
def test_bytes_that_are_not_utf8_are_characters_as_python_finds_them(data):
    characters = data.decode("utf-8", "surrogateescape")
    assert bpe.Pattern(r"[\s\S]").split(data) == [char.encode("utf-8", "surrogateescape") for char in characters]


ALL_CHARACTERS = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)


@pytest.fixture(scope="session")
def border_characters():
    """The first and last characters of every run that some class of the named patterns takes, and their neighbours."""
    classes = [rf"\p{{{name}}}" for name in ("L", "N", "M", "Lu", "Ll", "Lt", "Lm", "Lo")]
    classes += [r"\s", "(?i:[sdmtlver])", "[a-z]", "[A-Z]", "[0-9]", r"[\r\n/']"]
    runs = [match.span() for c in classes for match in regex.finditer(f"{c}+", ALL_CHARACTERS)]
    places = {place + k for run in runs for place in run for k in (-1, 0)}
    return [ALL_CHARACTERS[place] for place in sorted(places) if 0 <= place < len(ALL_CHARACTERS)]


@pytest.mark.parametrize("name", bpe.PATTERNS)
def test_every_class_of_characters_is_that_of_regex(name, border_characters):
    for before, after in (("", ""), ("a", "b"), (" ", "1"), ("\n", "'")):
        data = "".join(f"{before}{char}{after}" for char in border_characters).encode()
        assert bpe.Pattern(name).split(data) == naive_split(bpe.PATTERNS[name], data)


def test_every_character_is_scanned_as_regex_does():
    data = "".join(f" {char}a" for char in ALL_CHARACTERS).encode()
    assert bpe.Pattern("o200k").split(data) == naive_split(bpe.PATTERNS["o200k"], data)


# ─── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def counted(files, special=(END,), pattern="gpt2", block_bytes=None, text_field=None, **engine):
    """Pretokens and their counts, and the number of documents."""
    source = bpe.Source(files, bpe.Pattern(pattern), special, text_field, block_bytes)
    found = bpe.count(source, bpe.Engine(**engine))
    assert found.words.symbols.dtype == np.int32
    return found.words.to_counts(), found.n_documents


# Parts of texts among which special tokens overlap, are cut off, or look like ordinary text.
parts = st.sampled_from(["<|a|>", "<|a|>b", "|>", "<|", "aa", "aaa", "x y z\nw ", "word " * 9, END]).map(str.encode)
text_parts = st.lists(texts.map(str.encode) | parts | hostile_bytes, max_size=12).map(b"".join)
special_sets = st.sampled_from(
    [[], ["<|a|>"], ["<|a|>", "<|a|>b"], ["aa", "aaa"], ["\nw", " y z", "\n\n"], ["é", "aéa"], ["aa", "ab", END]]
)
some_patterns = st.sampled_from([*bpe.PATTERNS.items(), *((p, p) for p in (r"\w+", r"(?<!x)\w+", (r"\s", r"\w\w")))])


@kernels
@examples(150)
@given(
    text=text_parts, special=special_sets, pattern=some_patterns, block_bytes=st.integers(5, 100), packed=st.booleans()
)
@example(b"\xc2\x80\xc2\x80<|endoftext|>0" + b"\xc2\x80" * 5, [END], ("gpt2", bpe.PATTERNS["gpt2"]), 5, False)
def test_blocks_change_no_pretoken(tmp_path_factory, text, special, pattern, block_bytes, packed):
    path = tmp_path_factory.getbasetemp() / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    assert counted([path], special, pattern[0], block_bytes, workers=1) == naive_count(text, pattern[1], special)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_blocks_are_small_where_the_pattern_can_be_cut(tmp_path, suffix):
    text = "It was a dark night.\nSo it was. " * 1000
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    for name in bpe.PATTERNS:
        blocks = list(bpe.Source([path], bpe.Pattern(name), block_bytes=1000).blocks())
        assert len(blocks) == 1 if name == "none" else len(blocks) > 20
        assert sum(block.n_bytes for block in blocks) == path.stat().st_size
        assert [block.ends_document for block in blocks] == [False] * (len(blocks) - 1) + [True]


def test_endless_text_is_encoded_as_it_comes():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    with within(60):
        ids = tokenizer.encode_iterable(itertools.repeat("one two three "))
        assert bytes(itertools.islice(ids, 100_000)).startswith(b"one two three one")


def test_chunks_without_a_cut_take_linear_time():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], pattern=r"\S+|\s+")
    assert_linear(lambda n: sum(1 for _ in tokenizer.encode_iterable(["中文"] * n)), 4000)


def test_inputs_of_every_kind_are_the_same_text(tmp_path):
    documents = ["Hello world", "naïve\ncafé", "中文 text"]
    whole = END.join(documents).encode()
    lines = "\n".join(json.dumps({"text": d, "id": 1}) for d in documents).encode() + b"\n\n"
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a.txt").write_bytes(whole)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(whole))
    (tmp_path / "c.jsonl").write_bytes(lines)
    (tmp_path / "deep" / "er" / "d.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "deep" / "ignored.bin").write_bytes(b"\x00")
    counts, n_documents = one = counted(bpe.find_files([tmp_path / "a.txt"]))
    assert n_documents == 3 and sum(len(word) * n for word, n in counts.items()) == len(whole) - 2 * len(END)
    for name in ("b.txt.gz", "c.jsonl", "deep", "deep/**/*.gz"):
        assert counted(bpe.find_files([tmp_path / name])) == one
    assert counted(bpe.find_files([tmp_path])) == ({word: 4 * count for word, count in counts.items()}, 12)


def test_a_named_pipe_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = f"one two{END}three".encode() * 20_000
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[text])
    writer.start()
    with within(60):
        assert counted(bpe.find_files([tmp_path / "pipe"])) == naive_count(text, bpe.PATTERNS["gpt2"], [END])
    writer.join()


def test_bytes_that_are_not_utf8_are_kept(tmp_path):
    data = bytes(range(256)) * 3 + b"\xf0\x9f\x99" + b"ok \xed\xa0\x80\xc0\xaf"
    (tmp_path / "raw.txt").write_bytes(data)
    counts, _ = counted([tmp_path / "raw.txt"])
    assert Counter(b for word, count in counts.items() for b in word * count) == Counter(data)


@pytest.mark.parametrize(
    "line, part",
    [
        (b"{", "not JSON"),
        (b"[1]", "no text"),
        (b'{"t": "x"}', "'text'"),
        (b'{"text": 5}', "no text"),
        (b"\xff", "not JSON"),
        (b"[" * 100000, "not JSON"),
        (b'{"text": "\\ud800"}', "U\\+D800"),
    ],
)
def test_bad_json_names_file_and_line(tmp_path, line, part):
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=f"bad.jsonl, line 2: .*{part}"):
        counted([tmp_path / "bad.jsonl"])


def test_lines_are_numbered_in_every_block(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "some text"}\n' * 50 + b"oops\n" + b'{"text": "more"}\n' * 50)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 51: not JSON"):
        counted([tmp_path / "a.jsonl"], block_bytes=100, workers=2)


@pytest.mark.parametrize("damage", [lambda z: z[:-9], lambda z: z[:20] + b"\x00\x01" + z[22:], lambda z: b"not gzip"])
def test_bad_gzip_is_refused(tmp_path, damage):
    (tmp_path / "x.txt.gz").write_bytes(damage(gzip.compress(random.Random(0).randbytes(500))))
    with pytest.raises(ValueError, match=r"x\.txt\.gz: not a whole gzip file"):
        counted([tmp_path / "x.txt.gz"])


def test_special_tokens_of_any_length_and_number_are_found(tmp_path):
    text = b"some text of ten words, and then some more of it. " * 2000
    long = "<" + "x" * 9000 + ">"
    (tmp_path / "long.txt").write_bytes(long.encode().join([text] * 3))
    with within(60):
        expected = naive_count((tmp_path / "long.txt").read_bytes(), bpe.PATTERNS["gpt2"], [long])
        assert counted([tmp_path / "long.txt"], [long], block_bytes=5000) == expected
    (tmp_path / "a.txt").write_bytes(text)
    assert_linear(lambda n: counted([tmp_path / "a.txt"], [f"<|{k}|>" for k in range(n)], block_bytes=20_000), 400)


# ─── Words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_words_are_the_counts():
    words = bpe.Words.from_counts({b"ab": 2, b"": 5, b"c": 0, b"\xff": 2**33})
    assert words.symbols.tolist() == [97, 98, 255] and words.symbols.dtype == np.int32
    assert words.offsets.tolist() == [0, 2, 3] and words.counts.tolist() == [2, 2**33]
    assert words.to_counts() == {b"ab": 2, b"\xff": 2**33} and list(words.alphabet) == BYTES


@pytest.mark.parametrize(
    "counts, part", [({b"a": -1}, "-1"), ({b"a": 1.5}, "1.5"), ({"a": 1}, "bytes"), ({b"ab": 2**62}, "63")]
)
def test_bad_counts_are_refused(counts, part):
    with pytest.raises(ValueError, match=part):
        bpe.Words.from_counts(counts)


@kernels
@given(
    parts=st.lists(
        st.binary(max_size=40) | st.sampled_from([b"the cat ", b"a" * 15, b"a" * 16, b"longer than sixteen bytes"])
    )
)
def test_counting_is_counting(parts):
    counter, expected = bpe.WordCounter(), Counter()
    for part in parts:
        counter.add_text(part, bpe.Pattern("gpt2"))
        expected.update(naive_split(bpe.PATTERNS["gpt2"], part))
    other = bpe.WordCounter()
    for words in (counter.words(), bpe.Words.from_counts({b" more": 2, b"a" * 16: 3}), counter.words()):
        other.add_words(words)
    assert counter.words().to_counts() == expected
    assert other.words().to_counts() == expected + expected + Counter({b" more": 2, b"a" * 16: 3})


@kernels
def test_tables_grow():
    source = random.Random(4)
    words = [source.randbytes(source.choice([3, 7, 8, 9, 15, 16, 17, 40])) for _ in range(150_000)]
    counter = bpe.WordCounter()
    counts = {word: k for k, word in enumerate(dict.fromkeys(words), 2**33)}
    counter.add_words(bpe.Words.from_counts(counts))
    assert counter.words().to_counts() == counts


def test_words_that_come_twice_add_up():
    twice = bpe.Words(np.frombuffer(b"ababab", np.uint8).astype(np.int32), np.array([0, 2, 4, 6]), np.array([1, 2, 3]))
    counter = bpe.WordCounter()
    counter.add_words(twice)
    assert counter.words().to_counts() == {b"ab": 6} and bpe.learn(twice, 257).counts.tolist() == [6]


def test_counts_do_not_depend_on_the_number_of_workers(library):
    files = library[:120]
    one, two, five = (counted(files, block_bytes=1 << 16, workers=n) for n in (1, 2, 5))
    assert one == two == five
    data = [path.read_bytes() for path in files]
    expected = Counter(word for text in data for word in naive_split(bpe.PATTERNS["gpt2"], text))
    assert one == (expected, sum(map(bool, data)))


def test_what_workers_send_is_words(library):
    pool = OneByOne()
    counted(library[:9], block_bytes=1 << 14, executor=pool)
    sent = [value for result in pool.results for value in result if isinstance(value, bpe.Words)]
    assert len(sent) == len(pool.results) > 1 and all(words.symbols.dtype == np.int32 for words in sent)


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k", "none", r"(?<!x)\w+"])
@pytest.mark.parametrize("block_bytes", [1 << 10, 5000, 1 << 16])
def test_counts_do_not_depend_on_blocks(pattern, block_bytes, tmp_path, library):
    source = random.Random(5)
    text = b"".join(path.read_bytes() for path in library[:12])
    text = END.encode().join(text[k : k + source.randrange(20_000)] for k in range(0, len(text), 20_000))
    text = "中文，没有空格。\nЭто русский текст.\n".encode() * 200 + text + source.randbytes(200) + text[:40_000]
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    expected = naive_count(text, bpe.PATTERNS.get(pattern, pattern), [END])
    for name in ("a.txt", "b.txt.gz"):
        assert counted([tmp_path / name], pattern=pattern, block_bytes=block_bytes) == expected


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def assert_learns(counts, n_symbols, tie_break="bytes", min_frequency=1):
    learned = bpe.learn(bpe.Words.from_counts(counts), n_symbols, tie_break=tie_break, min_frequency=min_frequency)
    found = learned.merges, learned.counts.tolist(), learned.n_tokens.tolist()
    assert found == naive_learn(counts, n_symbols, tie_break, min_frequency)
    assert learned.tokens == [*BYTES, *map(b"".join, learned.merges)]


@kernels
@examples(100)
@given(
    counts=word_counts, extra=st.integers(0, 40), tie_break=st.sampled_from(["bytes", "ids"]), least=st.integers(0, 4)
)
def test_merges_are_those_of_the_oracle(counts, extra, tie_break, least):
    assert_learns(counts, 256 + extra, tie_break, least)


# Symbols of several bytes each, none of which is what others make together: characters with or without a mark.
characters = st.lists(st.sampled_from("abcé中🙂ſ"), min_size=2, max_size=7, unique=True)
marked = characters.map(lambda chars: [mark + char.encode() for char in chars for mark in (b"", b"_")])


@given(data=st.data(), alphabet=marked, tie_break=st.sampled_from(["bytes", "ids"]))
def test_merges_over_other_alphabets_are_those_of_the_oracle(data, alphabet, tie_break):
    many = [f"#{k:03d}".encode() for k in range(300)]  # more symbols than there are bytes
    symbol = st.integers(0, 5) | st.integers(-5, -1)
    alphabet = data.draw(st.permutations(alphabet)) + many
    drawn = data.draw(st.lists(st.tuples(st.lists(symbol, min_size=1, max_size=12), st.integers(1, 5)), min_size=1))
    symbols = [[i % len(alphabet) for i in ids] for ids, _ in drawn]
    words = bpe.Words(
        np.array(list(itertools.chain.from_iterable(symbols)), np.int32),
        np.cumsum([0, *map(len, symbols)]),
        np.array([count for _, count in drawn]),
        alphabet,
    )
    counts = Counter()
    for ids, (_, count) in zip(symbols, drawn, strict=True):
        counts[tuple(alphabet[i] for i in ids)] += count
    learned = bpe.learn(words, len(alphabet) + 20, tie_break=tie_break)
    found = learned.merges, learned.counts.tolist(), learned.n_tokens.tolist()
    assert found == naive_learn(counts, len(alphabet) + 20, tie_break, alphabet=alphabet)


@kernels
@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.skipif(BOUNDS_CHECKED, reason="slow"))])
def test_merges_of_long_words_are_those_of_the_oracle(wide, monkeypatch):
    if wide:  # as for a corpus of many symbols, whose positions do not fit 32 bits
        monkeypatch.setattr(bpe, "INT32_SYMBOLS", 0)
    source = random.Random(1)
    counts = {
        bytes(source.choices(letters, k=k)): n
        for n, (letters, k) in enumerate([(b"ab", 999), (b"abcd", 700), (b"a", 500)], 1)
    }
    for tie_break in ("bytes", "ids"):
        assert_learns(counts, 400, tie_break)


@kernels
def test_ties_go_by_all_bytes_of_long_tokens():
    word = b"abcdefghijkl"
    assert_learns({word + b"x": 1, word + b"y": 1, word + b"\x00": 1, word: 1, word[:-1]: 3}, 290)


@kernels
def test_counts_past_32_bits_are_right():
    counts = {b"ab": 2**31, b"abc": 2**33, b"xy": 2**40, b"z" * 9: 1}
    assert_learns(counts, 262)
    assert bpe.learn(bpe.Words.from_counts(counts), 257).counts.tolist() == [2**40]


@kernels
def test_arrays_grow():
    source = random.Random(2)
    words = [source.randbytes(200) for _ in range(15)] + [b"a" * 20_000]
    assert_learns(dict.fromkeys(words, 1), 700)
    lengths = [len(left + right) for left, right in naive_learn({b"a" * 20_000: 1}, 290)[0]]
    assert max(lengths) > 4000  # tokens of far more bytes than there is room for at first


def test_learning_leaves_the_words_alone():
    words = bpe.Words.from_counts({b"banana": 3, b"bandana": 2})
    before = [np.array(array) for array in words]
    first, second = bpe.learn(words, 262), bpe.learn(words, 262)
    assert all(map(np.array_equal, words, before)) and all(map(np.array_equal, first, second))


def test_the_order_of_words_does_not_matter():
    counts = {bytes([97 + i % 3, 97 + i % 5, 97 + i % 2]) * (i % 4 + 1): i % 7 + 1 for i in range(50)}
    orders = counts, dict(reversed(counts.items()))
    assert all(map(np.array_equal, *(bpe.learn(bpe.Words.from_counts(order), 290) for order in orders)))


@pytest.mark.parametrize("options, part", [({"tie_break": "none"}, "tie_break"), ({}, "no words")])
def test_learning_refuses(options, part):
    with pytest.raises(ValueError, match=part):
        bpe.learn(bpe.Words.from_counts({b"ab": 1} if options else {}), 300, **options)


def test_a_minimum_beyond_all_counts_leaves_the_bytes():
    assert bpe.learn(bpe.Words.from_counts({b"ab": 5}), 300, min_frequency=10**30).merges == []


def hugging_face_trained(documents, vocab_size, special_tokens):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    model.train_from_iterator(documents, trainer)
    return json.loads(model.to_str())["model"]


def test_merges_and_ids_are_those_of_hugging_face(library):
    special, files = [END, "<|im_start|>"], library[::5]
    theirs = hugging_face_trained((path.read_bytes().decode() for path in files), 5000, special)
    vocab, merges = bpe.train_bpe(files, 5000, special, tie_break="ids")
    assert [[in_chars(left), in_chars(right)] for left, right in merges] == theirs["merges"]
    assert {token.decode() if i < 2 else in_chars(token): i for i, token in vocab.items()} == theirs["vocab"]


# ─── Models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_vocabulary_has_special_tokens_first_then_bytes_then_merges():
    vocab, merges = bpe.train_bpe_from_counts({b"aab": 2, b"ab": 1}, 260, ["<s>", "</s>"])
    assert list(vocab) == list(range(260)) and vocab[0] == b"<s>" and vocab[1] == b"</s>"
    assert [in_chars(vocab[i]) for i in range(2, 258)] == sorted(map(in_chars, BYTES))
    assert merges == [(b"a", b"b"), (b"a", b"ab")] and [vocab[258], vocab[259]] == [b"ab", b"aab"]


def test_a_vocabulary_of_bytes_alone_has_no_merges():
    vocab, merges = bpe.train_bpe_from_counts({b"hello": 1}, 256)
    assert len(vocab) == 256 and merges == []


def test_a_text_that_is_too_small_is_said():
    with pytest.warns(UserWarning, match="258 tokens, not 1000"):
        vocab, _ = bpe.train_bpe_from_counts({b"abc": 1}, 1000)
    assert len(vocab) == 258


@pytest.mark.parametrize(
    "vocab_size, special, part",
    [
        (255, [], "256"),
        (257, ["<a>", "<b>"], "258"),
        (2**31, [], "too large"),
        (300, ["<a>", "<a>"], "twice"),
        (300, [""], "not empty"),
        (300, ["x"], "single byte"),
        (300, "<a>", "list"),
        (300, ["ell"], "b'hello'"),
        (300, [5], "5"),
        (300, ["<\ud800>"], r"U\+D800|UTF-8"),
        (300, ["é"], "é"),
        (300, ["Ġ"], "Ġ"),
    ],
)
def test_impossible_vocabularies_are_refused(vocab_size, special, part):
    with pytest.raises(bpe.InputError, match=part):
        bpe.train_bpe_from_counts({b"hello": 1}, vocab_size, special)


@pytest.mark.parametrize(
    "vocab, merges, part",
    [
        ({0: b"a", 1: b"a"}, [], "0 and 1"),
        ({-1: b"a"}, [], "-1"),
        ({0: "a"}, [], "bytes"),
        ({0: b""}, [], "at least one"),
        ({0: b"a"}, [(b"a", b"b")], "merge 0.*b'b'"),
        ({0: b"a", 1: b"b"}, [(b"a", b"b")], "b'ab'"),
        ({2**40: b"a"}, [], "1099"),
        ({2**24: b"a"}, [], "16777216"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused(vocab, merges, part):
    with pytest.raises(ValueError, match=part):
        bpe.Tokenizer(vocab, merges)


def test_a_special_token_that_text_could_forge_is_refused():
    with pytest.raises(ValueError, match="ab"):
        bpe.Tokenizer(BYTE_VOCAB | {256: b"ab"}, [(b"a", b"b")], ["ab"])


def test_a_special_token_that_looks_like_another_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'Ġthe'"):
        bpe.Tokenizer(BYTE_VOCAB | {256: b" the"}, [], ["Ġthe"]).save(tmp_path)


def test_two_texts_may_have_one_id():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: b"<end>"}, [], {"<end>": 256, "<stop>": 256})
    assert tokenizer.encode("<stop><end>") == [256, 256] and tokenizer.decode([256]) == "<end>"


def test_many_special_tokens_take_linear_time():
    assert_linear(lambda n: bpe.Tokenizer(BYTE_VOCAB, [], [f"<|{k}|>" for k in range(n)]).encode("<|1|>"), 400)


@pytest.mark.parametrize("at, ids", [("first", [0, 1]), ("after-bytes", [256, 257]), ("last", [298, 299])])
def test_special_tokens_are_where_they_are_wanted(library, at, ids, tmp_path):
    tokenizer = bpe.train(library[:3], 300, ["<a>", "<b>"], special_tokens_at=at, workers=1).tokenizer
    assert list(tokenizer.special_tokens.values()) == ids
    tokenizer.save(tmp_path)
    text = library[0].read_bytes().decode() + "<a><b>"
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids == tokenizer.encode(text)


def test_the_fingerprint_is_of_all_that_decides_about_ids():
    flags = {"<a>": bpe.AddedToken(lstrip=True), "<b>": bpe.AddedToken(rstrip=True)}
    changes = [
        {},
        {"merges": []},
        {"merges": None},
        {"special_tokens": ["<b>", "<a>"]},
        {"pattern": "cl100k"},
        {"ignore_merges": True},
        {"pattern": [bpe.Metaspace(" "), "gpt2"]},
        {"flags": flags},
    ]
    common = {"merges": [(b"a", b"b")], "special_tokens": ["<a>", "<b>"]}
    made = [bpe.Tokenizer(BYTE_VOCAB | {256: b"ab"}, **(common | change)).digest for change in changes]
    other_order = dict(reversed(flags.items()))
    assert bpe.Tokenizer(BYTE_VOCAB | {256: b"ab"}, **common, flags=other_order).digest == made[-1]
    assert len(set(made)) == len(changes)


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": 3}}}]},
    {"role": "tool", "content": "5"},
]
RENDERED = """<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
What is 2 + 3?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "add", "arguments": {"a": 2, "b": 3}}
</tool_call><|im_end|>
<|im_start|>tool
5<|im_end|>
<|im_start|>assistant
"""


def test_chatml_writes_conversations_as_it_should():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(message):
        raise ValueError(message)

    environment.globals["raise_exception"] = refuse
    template = environment.from_string(bpe.CHATML)
    assert template.render(messages=CONVERSATION, add_generation_prompt=True) == RENDERED
    tools = template.render(messages=CONVERSATION[:2], tools=[{"name": "add"}])
    assert tools.startswith("<|im_start|>system\nBe brief.\n\nFunctions") and '{"name": "add"}<|im_end|>' in tools
    assert tools.endswith("3?<|im_end|>\n") and tools.count("Be brief.") == 1
    with pytest.raises(ValueError, match="not from narrator"):
        template.render(messages=[{"role": "narrator", "content": ""}])


def test_transformers_config_is_checked(tmp_path):
    special = ["<|im_start|>", "<|im_end|>"]
    config = bpe.transformers_config(special, eos_token=special[1], model_max_length=9, chat_template="chatml")
    assert config == {"eos_token": special[1], "model_max_length": 9, "chat_template": bpe.CHATML}
    (tmp_path / "good.jinja").write_text("{{ messages }}")
    (tmp_path / "bad.jinja").write_text("{% if %}")
    assert bpe.transformers_config([], chat_template=tmp_path / "good.jinja") == {"chat_template": "{{ messages }}"}
    wrong = [{"eos_token": "<x>"}, {"model_max_length": 0}, {"chat_template": tmp_path / "bad.jinja"}]
    for options in [*wrong, {"chat_template": tmp_path / "nowhere.jinja"}]:
        with pytest.raises((bpe.InputError, OSError), match="|".join(str(value) for value in options.values())):
            bpe.transformers_config(special, **options)
    with pytest.raises(bpe.InputError, match="im_start"):
        bpe.transformers_config([], chat_template="chatml")


# ─── Encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def hugging_face(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@kernels
@given(text=texts | st.text("astndh e<|>of", max_size=40) | st.just(f"a{END}b{END}"), data=st.data())
def test_encode_is_the_oracle_and_hugging_face(tokenizer, hugging_face, text, data):
    ids = tokenizer.encode(text)
    assert ids == hugging_face.encode(text).ids
    expected = []
    for part in naive_parts(text, [END]):
        words = [END] if part == END else regex.findall(bpe.PATTERNS["gpt2"], part)
        expected += [token for word in words for token in naive_encode(word.encode(), tokenizer.merges)]
        if part == END:
            expected[-len(naive_encode(END.encode(), tokenizer.merges)) :] = [END.encode()]
    assert [tokenizer.id_to_token(id) for id in ids] == expected
    assert tokenizer.decode(ids) == text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert list(tokenizer.encode_iterable(chunks)) == ids
    assert list(tokenizer.encode_iterable(bytes([b]) for b in text.encode())) == ids


@kernels
@examples(200)
@given(data=words, seed=st.integers(0, 20))
def test_merging_is_the_oracle_for_any_list_of_merges(data, seed):
    tokens, merges = random_tokens(random.Random(seed), b"aeti", 60)
    tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), merges, pattern="none")
    expected = naive_encode(data, merges)
    for _ in range(2):  # the second time from the cache
        assert [tokens[id] for id in tokenizer.encode(data)] == expected


@kernels
@examples(200)
@given(data=words, seed=st.integers(0, 20))
def test_merging_by_id_is_the_oracle_and_tiktoken(data, seed):
    source = random.Random(seed)
    tokens, _ = random_tokens(source, b"aeti", 40)
    tokens.append(b"tttiia")  # most likely out of reach of the merges
    source.shuffle(tokens)
    ranks = {token: id for id, token in enumerate(tokens)}
    tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), None, {END: 1000}, pattern="none")
    theirs = tiktoken.Encoding("t", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={END: 1000})
    for text in (data, data.decode("utf-8", "ignore").encode() or b"a"):
        ids = tokenizer.encode(text)
        assert [tokens[id] for id in ids] == naive_encode_by_id(text, ranks)
        assert tokenizer.encode(text) == ids
    assert ids == theirs.encode_ordinary(text.decode())
    assert tokenizer.encode(END) == [1000] and tokenizer.decode([1000]) == END


def test_long_words_do_not_take_the_square(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a" * 200_000)) == "a" * 200_000
    assert_linear(lambda n: tokenizer.encode("ab" * n), 20_000)


@kernels
@pytest.mark.parametrize("cache_size", [16, 64, 1 << 12])
def test_a_small_cache_changes_nothing(tokenizer, some_texts, cache_size):
    expected = tokenizer.encode_batch(some_texts)
    options = tokenizer.special_tokens, tokenizer.pattern.source
    small = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, *options, cache_size=cache_size)
    for _ in range(2):
        assert small.encode_batch(some_texts, threads=1) == expected


@kernels
@examples(200)
@given(special=st.sets(st.text("ab<é", min_size=2, max_size=12), max_size=12), text=st.text("ab<é", max_size=80))
def test_special_tokens_are_found_as_regex_finds_them(special, text):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], sorted(special))
    expected = [
        id
        for k, part in enumerate(naive_parts(text, special))
        for id in ([tokenizer.special_tokens[part]] if k % 2 else part.encode())
    ]
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text * 100, special) == tokenizer.encode(text * 100)
    assert list(tokenizer.encode_iterable(text)) == expected


# Special tokens with flags that overlap each other, white space, letters and the texts around them.
flagged = st.dictionaries(
    st.sampled_from(["<m>", "<m", "m>", "ab", "<é>", " x", "x ", "__", "中中", "<m><", "\u3000a"]),
    st.builds(bpe.AddedToken, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)
flagged_texts = st.lists(
    st.sampled_from([*"abmx<>é_ \n\t\x1c\x1f\x85\u3000\u200b中1'", "<m>", " <m> ", "  ", "中中", "\u0301", "ab", "🙂"]),
    max_size=24,
).map("".join)


@kernels
@examples(100)
@given(flags=flagged, inputs=st.lists(flagged_texts, min_size=1, max_size=5))
def test_flagged_special_tokens_are_found_as_hugging_face_finds_them(flags, inputs):
    ours = bpe.Tokenizer(BYTE_VOCAB, [], list(flags), flags=flags)
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({in_chars(token): b for b, token in enumerate(BYTES)}, []))
    theirs.pre_tokenizer = ByteLevel(add_prefix_space=False)
    theirs.add_tokens([tokenizers.AddedToken(token, **flag._asdict()) for token, flag in flags.items()])
    expected = [theirs.encode(text).ids for text in inputs]
    assert [ours.encode(text) for text in inputs] == ours.encode_batch(inputs) == expected
    assert [list(ours.encode_iterable(text)) for text in inputs] == expected
    assert [found.ids for found in ours.to_huggingface().encode_batch(inputs)] == expected


def test_flagged_special_tokens_take_linear_time():
    flags = {"<mask>": bpe.AddedToken(single_word=True), "<m>": bpe.AddedToken(lstrip=True, rstrip=True)}
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], list(flags), flags=flags)
    assert_linear(lambda n: tokenizer.encode("<mask>x <mask> <m>   " * n), 1000)


# Patterns one after another, some of which leave text out.
chains = st.lists(
    st.sampled_from([r"\p{N}{1,3}", r"[一-龥]+|[a-e]+", r"\s+", r"\p{L}+", "x", r"[^\r\n]+", bpe.PATTERNS["llama3"]]),
    min_size=2,
    max_size=4,
)


@kernels
@examples(60)
@given(patterns=chains, text=pattern_texts, data=hostile_bytes)
def test_several_patterns_are_those_of_hugging_face(patterns, text, data):
    tokens = [*BYTES, b"ab", b"  ", b"12", b"\n\n", "中".encode()[:2]]
    merges = [(token[:1], token[1:]) for token in tokens[256:]]
    ours = bpe.Tokenizer(dict(enumerate(tokens)), merges, pattern=patterns)
    vocab = {in_chars(token): id for id, token in enumerate(tokens)}
    named = [(in_chars(left), in_chars(right)) for left, right in merges]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, named))
    splits = [Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns]
    theirs.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    assert ours.encode(text) == list(ours.encode_iterable(text)) == theirs.encode(text).ids
    for whole in (text.encode() + data, data * 300):
        assert ours.pattern.split(whole) == naive_split(patterns, whole)


# Texts that end or begin in the middle of a character.
halves = st.lists(st.sampled_from([b"\xe2", b"\xe2\x82", b"\xac", b"\xe2\x82\xac", b"", b"a", b"\xc3"]))


@kernels
@given(parts=halves, name=st.sampled_from([*bpe.PATTERNS, r"\w+"]))
@example([b"\xe2\x82", b"\xac"], "gpt2")
@example([b"\xe2\x82", b"", b"\xac"], "none")
def test_texts_of_a_batch_do_not_touch(parts, name):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], pattern=name)
    with within(60):
        assert tokenizer.encode_batch(parts) == [list(part) for part in parts]
        ids, offsets = tokenizer.encode_batch_to_numpy(parts)
    assert ids.tolist() == list(b"".join(parts)) and offsets.tolist() == np.cumsum([0, *map(len, parts)]).tolist()


def test_a_byte_that_is_not_in_the_vocabulary_is_named():
    with pytest.raises(ValueError, match="0x62"):
        bpe.Tokenizer({0: b"a"}, []).encode("ab")


class ToyTables(NamedTuple):
    byte_ids: np.ndarray  # int64[256]


@bpe.kernel
def toy_segment(text, start, size, tables, scratch, ids, at):
    """One id per byte."""
    for k in range(size):
        ids[at + k] = tables.byte_ids[text[start + k]]
    return size


# The least that a family of tokenizers can be.
TOY = bpe.Kind(
    learn=lambda words, n_symbols, **options: bpe.learn(words, len(words.alphabet)),
    tables=lambda model: ToyTables(np.array([{t: i for i, t in model.vocab.items()}[b] for b in BYTES])),
    tables_type=ToyTables,
    segment=toy_segment,
    write=lambda model: {"type": "Toy", "vocab": {in_chars(model.vocab[id]): id for id in model.ordinary}},
    read=lambda data, added, where: {"vocab": {data["vocab"][in_chars(b)]: b for b in BYTES}, "merges": None},
)


def one_id_per_byte(tokenizer, part):
    return [256] if part == END else [tokenizer.token_to_id(bytes([b])) for b in part.encode()]


def test_a_family_of_tokenizers_is_added_in_one_place(tmp_path, monkeypatch):
    monkeypatch.setitem(bpe.KINDS, "toy", TOY)
    learned = bpe.KINDS["toy"].learn(bpe.Words.from_counts({b"word": 3}), 300)
    vocab, merges = bpe.build_vocabulary(learned, [END], "last")
    assert merges == []
    ours = bpe.Tokenizer.from_model(bpe.Model(vocab, None, {END: 256}, kind="toy"))
    text = f"Any text, {END}é and more." * 500
    expected = [id for part in naive_parts(text, [END]) for id in one_id_per_byte(ours, part)]
    ours.save(tmp_path / "model")
    (tmp_path / "a.txt").write_text(text)
    loaded = bpe.Tokenizer.load(tmp_path / "model")
    assert loaded.model.kind == "toy" and loaded.digest == ours.digest
    for other in (ours, loaded, pickle.loads(pickle.dumps(loaded))):
        assert other.encode(text) == list(other.encode_iterable([text])) == other.encode_batch([text])[0] == expected
    bpe.encode_files(loaded, tmp_path / "a.txt", tmp_path / "a.npy", workers=2)
    assert np.load(tmp_path / "a.npy").tolist() == expected


# ─── Formats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_saved_models_load_again(tokenizer, tmp_path):
    folder = tmp_path / "new" / "model"
    tokenizer.save(folder)
    names = ["merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    loaded = bpe.Tokenizer.load(folder)
    from_two = bpe.Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt", [END])
    for other in (loaded, from_two, bpe.Tokenizer.load(folder / "tokenizer.json"), pickle.loads(pickle.dumps(loaded))):
        for name in ("vocab", "merges", "special_tokens"):
            assert getattr(other, name) == getattr(tokenizer, name)
    loaded.save(tmp_path / "again")
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


@kernels
@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, r"\p{L}+|\s"])
def test_patterns_survive_saving(pattern, tmp_path):
    vocab, merges = bpe.train_bpe_from_counts({b"ab": 1}, 257)
    bpe.Tokenizer(vocab, merges, pattern=pattern).save(tmp_path)
    assert bpe.Tokenizer.load(tmp_path).pattern.source == bpe.Pattern(pattern).source


def edited(folder, **changes):
    """A tokenizer.json with some keys changed; those of the model are written model__key."""
    data = json.loads((folder / "tokenizer.json").read_text())
    for key, value in changes.items():
        *above, last = key.split("__")
        (data[above[0]] if above else data)[last] = value
    (folder / "tokenizer.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"model": 5}, "no model"),
        ({"model__type": "Unigram"}, "Unigram"),
        ({"model__type": "WordPiece"}, "WordPiece"),
        ({"model__byte_fallback": True}, "byte_fallback"),
        ({"model__dropout": 0.1}, "dropout"),
        ({"normalizer": {"type": "NFC"}}, "normalizer.*NFC"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "Metaspace"),
        ({"decoder": {"type": "Metaspace"}}, "decoder.*Metaspace"),
        ({"truncation": {"max_length": 3}}, "truncation"),
        ({"model__vocab": {"é": -5}}, "-5"),
        ({"model__vocab": {"a": 2**24}}, "16777216"),
        ({"model__vocab": {"a": 0, "b": 0}}, "the id 0"),
        ({"model__vocab": 3}, "vocabulary"),
        ({"model__merges": [["a"]]}, "merge 0"),
        ({"model__merges": ["a b c"]}, "merge 0"),
        ({"model__merges": [["a", "日"]]}, "日"),
        ({"model__merges": [["a", "zzz"]]}, "b'zzz' is not in the vocabulary"),
        ({"model__merges": [["!", "!"]]}, "b'!!' is not in the vocabulary"),
        ({"model__merges": [["i", "n"], ["i", "n"]]}, "twice"),
        ({"added_tokens": [{"content": END, "id": 7}]}, "the ids 0 and 7"),
        ({"added_tokens": [{"content": END, "id": 0}] * 2}, "added twice"),
        ({"added_tokens": [{"content": END, "id": 0, "lstrip": "yes"}]}, "odd|lstrip"),
        ({"added_tokens": 1}, "added_tokens"),
        ({"added_tokens": [{"content": "<x>"}]}, "None"),
        ({"model__vocab": {"a": [1]}}, "id"),
        ({"model__vocab": {"a": 1e300}}, "id"),
        ({"model__vocab": {"a": True}}, "id"),
    ],
)
def test_models_that_would_not_mean_the_same_are_refused(tokenizer, tmp_path, changes, part):
    tokenizer.save(tmp_path)
    edited(tmp_path, **changes)
    with pytest.raises(bpe.InputError, match=part):
        bpe.Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "name, data, part",
    [
        ("tokenizer.json", b"[" * 100_000, "neither|not JSON"),
        ("tokenizer.json", b'{"model": ' + b"[" * 100_000, "not JSON"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": ' + b"1" * 5000 + b"}}}", "not JSON"),
        ("tokenizer.json", b'{"model": {}, "model": {}}', "'model'.*twice"),
        ("tokenizer.json", b'{"model": "\xff"}', "not UTF-8 at byte 11"),
        ("tokenizer.json", b"\0" * 5000, "neither"),
        ("tokenizer.model", b"\n\x0e\n\x05<unk>\x15", "SentencePiece"),
        ("vocab.txt", b"[PAD]\n[UNK]\n##s\n", "WordPiece"),
        ("tokenizer.model", b"IQ== 0\n", "does not say its pattern"),
        ("a.tiktoken", b"IQ== 0\nIg== 0\n", "line 2.*twice"),
        ("a.tiktoken", b"IQ== 0\nIQ== 1\n", "same bytes"),
        ("a.tiktoken", b"IQ== 0\nI?== 1\n", "line 2: not a token"),
        ("a.tiktoken", b"IQ== 0\nIg== -1\n", "line 2"),
        ("a.tiktoken", b"IQ== 0\n" + base64.b64encode(b"a" * 5000) + b" 1\n", "5,000 bytes"),
        ("a.tiktoken", b"IQ== 0\nIg== 99999999999\n", "line 2"),
        ("vocab.json", b'{"a": 0}', "merges.* is missing"),
        ("merges.txt", b"#version: 0.2\na b\n", "vocabulary.* is missing"),
    ],
)
def test_files_from_strangers_are_refused(tmp_path, name, data, part):
    (tmp_path / name).write_bytes(data)
    pattern = "gpt2" if any(word in part for word in ("twice", "same", "5,000")) and name[0] == "a" else None
    with pytest.raises(bpe.InputError, match=part):
        bpe.Tokenizer.load(tmp_path / name, pattern=pattern)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match="256 MB"):
        bpe.Tokenizer.load(tmp_path)


# What a tokenizer.json may say, and what it does to a text.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NO_REGEX = BYTE_LEVEL | {"use_regex": False}
NO_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def split_by(text, kind="Regex"):
    return {"type": "Split", "pattern": {kind: text}, "behavior": "Isolated", "invert": False}


def in_sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


PRE_TOKENIZERS = [
    BYTE_LEVEL,
    BYTE_LEVEL | {"add_prefix_space": True},
    NO_REGEX,
    NO_REGEX | {"add_prefix_space": True},
    in_sequence(split_by(bpe.PATTERNS["o200k"]), NO_REGEX),
    in_sequence(split_by(r"\p{N}{1,3}"), split_by(r"[一-龥]+|[a-e]+"), BYTE_LEVEL),
    in_sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
    in_sequence(split_by("th.", "String"), BYTE_LEVEL),
    in_sequence(split_by("none", "String"), NO_REGEX),
    in_sequence(split_by("gpt2"), NO_REGEX),
    in_sequence(split_by("ab", "String"), BYTE_LEVEL),
]
ADDED = [
    {"content": "<mask>", "lstrip": True},
    {"content": "<r>", "rstrip": True},
    {"content": "<w>", "single_word": True},
    {"content": "<mask", "normalized": True},
    {"content": "th", "single_word": True, "normalized": True, "special": False},
    {"content": "<b>", "lstrip": True, "rstrip": True, "single_word": True},
]
# Added tokens as Phi, CodeGen and DeepSeek have them: tokens of the vocabulary, by their text or by their name.
KNOWN = [{"content": content, "special": False} for content in ("  ", "õ", "Ċ", "the")]
ordinary = [" ", "  ", "\n", "a", "é", "12345", "the end", END, ".", "\x1c", "\x1f", "\u3000", "none", "gpt2", "ab"]
contents = [token["content"] for token in ADDED + KNOWN]
added_texts = st.lists(st.sampled_from(contents + ordinary)).map("".join)


def written(folder, trained, added=(), **changes):
    """A tokenizer.json with more added tokens, whose ids are those of the vocabulary or new, and other changes."""
    trained.tokenizer.save(folder, "huggingface")
    data = json.loads((folder / "tokenizer.json").read_text())
    known = data["model"]["vocab"]
    known["th.th.th"] = len(known)  # no merge makes it
    new = itertools.count(len(known))
    for token in added:
        id = known[token["content"]] if token["content"] in known else next(new)
        data["added_tokens"].append({"id": id, **NO_FLAGS, **token})
    data["added_tokens"].sort(key=lambda token: token["id"])
    (folder / "tokenizer.json").write_text(json.dumps(data))
    edited(folder, **changes)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS)
@pytest.mark.parametrize("added, ignore_merges", [([], True), (ADDED, False), (ADDED + KNOWN, False)])
def test_every_kind_of_tokenizer_json_means_what_it_means_there(
    trained, tmp_path_factory, pre_tokenizer, added, ignore_merges
):
    folder = tmp_path_factory.mktemp("kind")
    changes = {"model__ignore_merges": ignore_merges, "pre_tokenizer": pre_tokenizer}
    theirs = written(folder, trained, added, **changes)
    ours = bpe.Tokenizer.load(folder)
    ours.save(folder / "again", "huggingface")
    again = bpe.Tokenizer.load(folder / "again")
    theirs_again = tokenizers.Tokenizer.from_file(str(folder / "again" / "tokenizer.json"))
    unpickled = pickle.loads(pickle.dumps(ours))

    @examples(30)
    @given(text=added_texts | texts | st.just("th.th.th"))
    def equal(text):
        expected = theirs.encode(text).ids
        for found in (ours, again, unpickled):
            assert found.encode(text) == expected
        assert theirs_again.encode(text).ids == list(ours.encode_iterable(text)) == expected

    equal()
    (folder / "a.txt").write_text("the <mask>  end <r>  th\n12" * 300)
    bpe.encode_files(ours, folder / "a.txt", folder / "a.npy")
    assert np.load(folder / "a.npy").tolist() == theirs.encode((folder / "a.txt").read_text()).ids


def test_ignore_merges_looks_up_no_special_token(trained, tmp_path):
    """There, whole pretokens are looked up in all of the vocabulary, so that text forges a token not allowed."""
    changes = {"model__ignore_merges": True, "pre_tokenizer": NO_REGEX}
    theirs = written(tmp_path, trained, [{"content": "<w>", "single_word": True}], **changes)
    ours = bpe.Tokenizer.load(tmp_path)
    for text in ("a<w>b", "<w>", "x<w>x", END, f"a{END}"):
        assert ours.encode(text) == theirs.encode(text).ids
    theirs.encode_special_tokens = True
    assert ours.encode(f"a{END}", "none") == theirs.encode(f"a{END}").ids
    assert theirs.encode(END).ids == [0] != ours.encode(END, "none")
    written(tmp_path, trained, [{"content": "th.th.th", "single_word": True}], **changes)
    with pytest.raises(bpe.InputError, match=r"single_word 'th.th.th' with ignore_merges"):
        bpe.Tokenizer.load(tmp_path)


def test_a_name_of_a_byte_keeps_its_id_and_its_bytes(trained, tmp_path):
    theirs = written(tmp_path, trained, KNOWN)
    ours = bpe.Tokenizer.load(tmp_path)
    assert ours.encode("aĊ\n") == theirs.encode("aĊ\n").ids
    id = theirs.token_to_id("Ċ")
    assert ours.id_to_token(id) == b"\n" and ours.decode(ours.encode("a\nb\n")) == "a\nb\n"


# Regular expressions that Oniguruma, which Hugging Face uses, reads otherwise than `regex` does.
to_translate = [r"\p{N}{1,3}+|\P{N}+", r"\p{N}{1,3}+|[^\s\p{N}]++|\s", TIKTOKEN_PATTERNS["cl100k"]]
anchors = [r"\s+$|\S+", r"^a|[\s\S]", "a$|.", "(?m:.)+", "(?s:.)+x", r"\Aa|.", r"\w+(?!x)|\W", r"[^a-z\d]+?"]
classes = [r"\h+|\H", "[a-z&&[^b]]+", "(?i:ß)|.", "(?i:ſ)+", r"\R|.", "[[:alpha:]]+", r"\X", "'(?i:ll|s)"]
# Texts of what those expressions look at.
oniguruma_texts = st.text("ab12 3\n\r\tsSßſéxX{,}h&\u3000中", max_size=30)


@pytest.mark.parametrize("pattern", [*to_translate, *anchors, *classes, "a{,2}b|."])
def test_splits_mean_what_they_mean_to_oniguruma_or_are_refused(trained, tmp_path_factory, pattern):
    folder = tmp_path_factory.mktemp("oniguruma")
    trained.tokenizer.save(folder, "huggingface")
    edited(folder, pre_tokenizer=in_sequence(split_by(pattern), NO_REGEX))
    try:
        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # tokenizers raises no other: what Oniguruma does not know
        theirs = None
    try:
        ours = bpe.Tokenizer.load(folder)
    except bpe.InputError:
        assert pattern not in to_translate
        ours = None

    @example("1234567")
    @example("a \n b\na")
    @example("ssSSßß")
    @given(text=oniguruma_texts)
    def equal(text):
        if ours and theirs:
            assert ours.encode(text) == theirs.encode(text).ids
        if written:
            assert written.encode(text).ids == own.encode(text)

    try:  # and the other way: what the pattern means to `regex` is written, or refused
        own = bpe.Tokenizer(trained.tokenizer.vocab, trained.tokenizer.merges, [END], pattern)
        written = own.to_huggingface()
    except ValueError:
        written = None
    assert written or pattern not in to_translate
    equal()


def test_published_encodings_have_their_tokens():
    known = {name: encoding.special_tokens for name, encoding in bpe.ENCODINGS.items()}
    gpt2 = dict.fromkeys(["gpt2", "r50k_base", "p50k_base"], 50256)
    for name, id in (gpt2 | {"cl100k_base": 100257, "o200k_base": 199999, "o200k_harmony": 199999}).items():
        assert known[name][END] == id
    harmony, llama, newer = known["o200k_harmony"], known["llama3"], known["llama3.1"]
    assert len(harmony) == 1091 and harmony["<|call|>"] == 200012 and harmony["<|reserved_201087|>"] == 201087
    assert harmony["<|endofprompt|>"] == harmony["<|reserved_200018|>"] == 200018
    assert len(llama) == 256 and llama["<|reserved_special_token_4|>"] == 128008 and llama["<|eot_id|>"] == 128009
    assert llama["<|reserved_special_token_250|>"] == 128255
    assert len(newer) == 256 and newer["<|eom_id|>"] == 128008 and newer["<|python_tag|>"] == 128010
    assert newer["<|finetune_right_pad_id|>"] == 128004 and newer["<|reserved_special_token_247|>"] == 128255


def test_one_rank_file_with_two_sets_of_special_tokens_asks_which(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path, "tiktoken")
    path = tmp_path / "tokenizer.model"
    (tmp_path / "tokenizer.tiktoken").rename(path)
    (tmp_path / "tokenizer.tiktoken.json").unlink()
    own = bpe.ENCODINGS["llama3"]._replace(pattern="gpt2", digest=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setitem(bpe.ENCODINGS, "one", own._replace(special_tokens={END: 5000}))
    assert bpe.Tokenizer.load(path).special_tokens == {END: 5000}
    monkeypatch.setitem(bpe.ENCODINGS, "two", own._replace(special_tokens={"<|x|>": 5000}))
    with pytest.raises(bpe.InputError, match=r"one.*two"):
        bpe.Tokenizer.load(path)
    assert bpe.Tokenizer.load(path, encoding="two").special_tokens == {"<|x|>": 5000}


@pytest.mark.parametrize("options", [{"pattern": "gpt2"}, {"encoding": "nonsense"}, {"special_tokens": ["<x>"]}])
def test_what_a_tokenizer_json_says_itself_is_not_overruled(tokenizer, tmp_path, options):
    tokenizer.save(tmp_path)
    with pytest.raises(bpe.InputError, match=next(iter(options))):
        bpe.Tokenizer.load(tmp_path, **options)


def test_rank_files_are_those_of_tiktoken(tokenizer, tmp_path, some_texts):
    strings = [text for text in some_texts if isinstance(text, str)]
    expected = tokenizer.encode_batch(strings)
    tokenizer.save(tmp_path, "tiktoken")
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "tokenizer.tiktoken"))
    theirs = tiktoken.Encoding("t", pat_str=tokenizer.pattern.source, mergeable_ranks=ranks, special_tokens={END: 0})
    assert theirs.encode_batch(strings, allowed_special="all") == expected
    assert tokenizer.to_tiktoken().encode_batch(strings, allowed_special="all") == expected
    loaded = bpe.Tokenizer.load(tmp_path)
    assert loaded.encode_batch(strings) == expected
    loaded.save(tmp_path / "again", "tiktoken")
    for name in ("tokenizer.tiktoken", "tokenizer.tiktoken.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()
    loaded.save(tmp_path / "back")
    assert bpe.Tokenizer.load(tmp_path / "back").merges is not None
    for other in (loaded, bpe.Tokenizer.load(tmp_path / "back")):
        assert [ids.ids for ids in other.to_huggingface().encode_batch(strings)] == expected
    with pytest.raises(ValueError, match="no encoding is named 'gpt5'"):
        bpe.Tokenizer.load(tmp_path / "tokenizer.tiktoken", encoding="gpt5")


@examples(100)
@given(data=words, seed=st.integers(0, 30))
def test_ranks_become_merges_that_mean_the_same(data, seed):
    source = random.Random(seed)
    tokens, _ = random_tokens(source, b"aeti", 40)
    source.shuffle(tokens)
    by_id = bpe.Tokenizer(dict(enumerate(tokens)), None, pattern="none")
    text = data.decode("utf-8", "ignore")
    assert by_id.to_huggingface().encode(text).ids == by_id.encode(text)


@examples(100)
@given(data=words, seed=st.integers(0, 30))
def test_merges_become_ranks_only_if_they_mean_the_same(data, seed):
    tokens, merges = random_tokens(random.Random(seed), b"aeti", 6)
    tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), merges, pattern="none", ignore_merges=seed % 2 == 0)
    try:
        theirs = tokenizer.to_tiktoken()
    except ValueError as error:
        assert "tiktoken cannot" in str(error)
    else:
        text = data.decode("utf-8", "ignore")
        assert theirs.encode_ordinary(text) == tokenizer.encode(text)


def test_a_format_that_would_lose_something_is_refused(tmp_path):
    unreached = bpe.Tokenizer(BYTE_VOCAB | {256: b"ab"}, [], ignore_merges=True)  # it would become a special token
    flagged = bpe.Tokenizer(BYTE_VOCAB, [], ["<a>"], flags={"<a>": bpe.AddedToken(lstrip=True)})
    for lossy in (unreached, flagged, bpe.Tokenizer(BYTE_VOCAB, [], pattern=[bpe.Metaspace(" "), "gpt2"])):
        with pytest.raises(bpe.InputError):
            lossy.save(tmp_path, "gpt2")
    with pytest.raises(bpe.InputError, match="leave"):
        bpe.Tokenizer(BYTE_VOCAB, None, pattern=r"\w+").to_tiktoken()


def test_a_gpt2_folder_is_known_by_its_content(tokenizer, tmp_path):
    tokenizer.save(tmp_path, "gpt2")
    for vocab, merges in [("encoder.json", "vocab.bpe"), ("x.vocab.json", "x.merges.txt")]:
        folder = tmp_path / vocab
        folder.mkdir()
        (folder / vocab).write_bytes((tmp_path / "vocab.json").read_bytes())
        (folder / merges).write_text((tmp_path / "merges.txt").read_text().split("\n", 1)[1])
        for path in (folder / vocab, folder / merges):
            loaded = bpe.Tokenizer.load(path)
            assert (loaded.vocab, loaded.merges) == (tokenizer.vocab, tokenizer.merges)
            assert loaded.special_tokens == tokenizer.special_tokens


@pytest.mark.parametrize("older, newer", list(itertools.permutations(bpe.FORMATS, 2)))
def test_a_folder_holds_one_model(tokenizer, tmp_path, older, newer):
    other = bpe.Tokenizer(*bpe.train_bpe_from_counts({b"newest": 6, b" widest": 3}, 263, [END]), [END])
    for first, second, same in ((other, tokenizer, False), (tokenizer, tokenizer, True)):
        folder = tmp_path / str(same)
        first.save(folder, older)
        (folder / "notes.txt").write_text("not a part of the model")
        before = {path.name for path in folder.iterdir()}
        second.save(folder, newer)
        assert bpe.Tokenizer.load(folder).encode("the newest<|endoftext|>") == second.encode("the newest<|endoftext|>")
        after = {path.name for path in folder.iterdir()}
        assert "notes.txt" in after and (not same or before <= after)


def test_a_file_in_the_way_that_cannot_be_read_is_refused(tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": "of another kind"}')
    with pytest.raises(bpe.InputError, match=r"tokenizer\.json"):
        tokenizer.save(tmp_path, "tiktoken")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_many_added_tokens_load_in_linear_time(trained, tmp_path):
    def load(n):
        written(tmp_path, trained, [{"content": f"<|{k}|>"} for k in range(n)])
        return bpe.Tokenizer.load(tmp_path)

    assert len(load(3000).special_tokens) == 3001
    assert_linear(load, 400)


def test_a_failed_save_leaves_nothing(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tokenizer.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# ─── Tokenizer ────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernels
@given(data=st.binary(max_size=80))
def test_any_bytes_survive(tokenizer, data):
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids) == data
    for ids_again in (np.array(ids, np.uint16), np.array(ids, np.int64)[::1], tuple(ids), iter(ids)):
        assert tokenizer.decode(ids_again) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("name", bpe.PATTERNS)
def test_models_of_every_pattern_are_the_same_in_hugging_face(name, library, tmp_path):
    tokenizer = bpe.train(library[:40], 700, [END], pattern=name, workers=1).tokenizer
    tokenizer.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for path in library[40:60]:
        text = path.read_bytes().decode()
        assert tokenizer.encode(text) == theirs.encode(text).ids
    for text in ("I'M it'S we'll  \n\n  x \n", "end  \n ", "12345 a/b\n/c\r\n", "中文 нет É١２ e\u0301 ", " \t\n"):
        assert tokenizer.encode(text) == theirs.encode(text).ids


def test_special_tokens_are_honoured_only_where_allowed():
    vocab = BYTE_VOCAB | {256: b"<a>", 257: b"<a><b>"}
    tokenizer = bpe.Tokenizer(vocab, [], ["<a>", "<a><b>", "<new>"])
    assert tokenizer.special_tokens == {"<a>": 256, "<a><b>": 257, "<new>": 258} and len(tokenizer) == 259
    text = "<a><a><b><new>"
    assert tokenizer.encode(text) == [256, 257, 258] and tokenizer.encode(text * 1000) == [256, 257, 258] * 1000
    assert tokenizer.encode(text, {"<a>"}) == [256, 256, *b"<b><new>"]
    assert tokenizer.encode_ordinary(text) == tokenizer.encode(text, "none") == list(text.encode())
    with pytest.raises(ValueError, match="'<c>' is not a special token"):
        tokenizer.encode(text, ["<c>"])


@kernels
def test_batches_are_single_texts(tokenizer, some_texts, monkeypatch):
    expected = [tokenizer.encode(text) for text in some_texts]
    assert [list(tokenizer.encode_iterable([text])) for text in some_texts] == expected
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 5000)
    for threads in (None, 1, 3):
        assert tokenizer.encode_batch(some_texts, threads=threads) == expected
    ids, offsets = tokenizer.encode_batch_to_numpy(some_texts, {END})
    assert ids.dtype == np.uint32 and offsets.dtype == np.int64
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == expected
    ordinary = tokenizer.encode_batch(some_texts, "none")
    assert ordinary == [tokenizer.encode_ordinary(text) for text in some_texts] != expected
    strings = [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in some_texts]
    assert tokenizer.decode_batch(expected) == strings
    assert tokenizer.encode_batch([]) == [] and tokenizer.encode_batch_to_numpy([])[1].tolist() == [0]
    with pytest.raises(ValueError, match="list of texts"):
        tokenizer.encode_batch("one text")


def test_chunks_may_be_bytes_and_str():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    assert list(tokenizer.encode_iterable([b"\xe2", "abc", b"\x82"])) == list(b"\xe2abc\x82")


@pytest.mark.parametrize("cache_size", [64, 1 << 20])
def test_threads_share_a_tokenizer(tokenizer, some_texts, cache_size):
    expected = [tokenizer.encode(text) for text in some_texts]
    shared = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, tokenizer.special_tokens, cache_size=cache_size)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(shared.encode, some_texts)) == expected
        assert list(pool.map(shared.decode_bytes, expected)) == [tokenizer.decode_bytes(ids) for ids in expected]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_use_a_tokenizer(tokenizer, some_texts, method):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        found = list(pool.map(tokenizer.encode, some_texts[-6:]))
    assert found == [tokenizer.encode(text) for text in some_texts[-6:]]


def give_way(frame, *_):
    """Let other threads run at every line of the module."""
    if frame.f_code.co_filename != MODULE:
        return None
    time.sleep(random.choice([0, 0, 1e-5]))
    return give_way


def test_threads_may_unpickle_at_once():
    pickled = [pickle.dumps(bpe.Tokenizer({0: b"a", 1 + k: b"b"}, None)) for k in range(6)]
    threading.settrace(give_way)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda k: pickle.loads(pickled[k % 6]).token_to_id(b"b"), range(300)))
    finally:
        threading.settrace(None)
    assert found == [1 + k % 6 for k in range(300)]


def test_copies_are_independent(tokenizer):
    ours = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, tokenizer.special_tokens)
    for copied in (lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy, copy.deepcopy):
        first = copied(ours)
        ours.model.config["model_max_length"] = ours.model.config.get("model_max_length", 0) + 1
        second = copied(ours)
        assert len({id(ours.model.config), id(first.model.config), id(second.model.config)}) == 3
        assert second.model.config == ours.model.config != first.model.config
        assert second.encode("the end") == ours.encode("the end")


def test_patterns_left_to_regex_encode_the_same(tokenizer, some_texts):
    left = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, [END], pattern=f"(?<=)(?:{tokenizer.pattern.source})")
    assert not left.pattern.is_compiled
    assert left.encode_batch(some_texts[-12:]) == tokenizer.encode_batch(some_texts[-12:])
    assert list(left.encode_iterable(some_texts[-12:-8])) == tokenizer.encode("".join(some_texts[-12:-8]))


def test_lone_surrogates_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"U\+D83D at index 2"):
        tokenizer.encode("ab\ud83d")


def test_unknown_ids_are_named(tokenizer):
    for bad in (len(tokenizer), -1, "a", 1.5, None, 2**32, 2**70):
        with pytest.raises(ValueError, match=regex.escape(repr(bad))):
            tokenizer.decode([1, bad])
    for bad in (len(tokenizer), -1, 2**40):
        with pytest.raises(ValueError, match=str(bad)):
            tokenizer.decode(np.array([1, bad]))
    with pytest.raises(ValueError, match="float64"):
        tokenizer.decode(np.zeros(2))
    with pytest.raises(ValueError, match="id 3 is not"):
        bpe.Tokenizer({2: b"a", 5: b"b"}, []).decode([2, 5, 3])


# ─── Token files ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def corpus(tmp_path, library):
    """Files of every kind, with documents that end in special tokens, in lines, and in files; and their texts."""
    code = [path.read_bytes().decode() for path in library[:30]]
    (tmp_path / "a.txt").write_text(END.join(code[:20]) + END)
    lines = [json.dumps({"text": text}) + "\n" for text in [*code[20:], "", f"x{END}"]]
    (tmp_path / "b.jsonl").write_text("".join(lines))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress((END.join(code[:5]) + "no end").encode()))
    (tmp_path / "d.txt").touch()
    (tmp_path / "e.txt").write_bytes(b"\xff bytes \xc3" * 500)
    found = [code[:20], *([text] for text in code[20:]), [""], ["x"], [*code[:4], code[4] + "no end"]]
    return tmp_path, [*found, [b"\xff bytes \xc3" * 500]]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("block_bytes", [1 << 10, 1 << 16])
def test_token_files_hold_every_document_once(tokenizer, corpus, monkeypatch, workers, block_bytes):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", block_bytes)
    folder, documents_of = corpus
    end = tokenizer.token_to_id(END)
    documents = [[*tokenizer.encode(document), end] for text in documents_of for document in text]
    outputs = {"out": folder / "o.npy", "document_index": folder / "i.npy"}
    found = bpe.encode_files(tokenizer, folder, **outputs, append=END, workers=workers)
    ids, index = np.load(folder / "o.npy", mmap_mode="r"), np.load(folder / "i.npy")
    assert ids.dtype == np.uint16 and index.dtype == np.int64
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(index)] == documents
    assert found == (len(ids), len(documents), found.bytes, "uint16", tokenizer.digest)
    assert found.bytes == len(tokenizer.decode_bytes(ids)) - len(END) * (len(documents) - 20 - 1 - 4)
    assert json.loads((folder / "o.npy.json").read_text()) == found._asdict()
    # Without lines of JSON the work is done by threads.
    bpe.encode_files(tokenizer, folder / "*.txt*", folder / "t.npy", append=END, workers=workers)
    by_threads = [[*tokenizer.encode(d), end] for text in [documents_of[0], *documents_of[-2:]] for d in text]
    assert np.load(folder / "t.npy").tolist() == list(itertools.chain.from_iterable(by_threads))


def test_without_an_end_documents_are_texts(tokenizer, corpus):
    folder, documents_of = corpus
    outputs = {"out": folder / "o.bin", "document_index": folder / "i.bin"}
    with ProcessPoolExecutor(2) as pool:
        bpe.encode_files(tokenizer, folder, **outputs, dtype="uint32", executor=pool)
    ids, index = bpe.read_ids(folder / "o.bin"), np.fromfile(folder / "i.bin", np.int64)
    assert ids.dtype == np.uint32 and len(index) == len(documents_of) + 1
    parts = [tokenizer.decode_bytes(ids[a:b]) for a, b in itertools.pairwise(index)]
    expected = [END.encode().join(d if isinstance(d, bytes) else d.encode() for d in text) for text in documents_of]
    expected[0] += END.encode()
    expected[-3] += END.encode()
    assert parts == expected


# Tokenizers that work in different ways: by a table, several patterns, flags, a space before text, `regex`.
WAYS = [
    {},
    {"pattern": [r"\p{N}{1,3}", "gpt2"]},
    {"flags": {END: bpe.AddedToken(lstrip=True, rstrip=True)}},
    {"pattern": [bpe.Metaspace(" "), "gpt2"]},
    {"pattern": r"(?<=)\w+|\W"},
    {"pattern": r"\S+|\s+"},
]


@kernels
@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("special", [[END], [END, f"d{END}", f"{END} {END}", ">\n"]])
def test_files_and_chunks_are_encoded_as_texts(tokenizer, tmp_path, monkeypatch, options, special):
    ours = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, special, **options)
    source = random.Random(7)
    text = "".join(source.choices(["the ", "end", END, " ", "\n", "é中", "1234", "<|", "|>\n", " some words"], k=3000))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    expected = ours.encode(text)
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 700)
    for name in ("a.txt", "b.txt.gz"):
        bpe.encode_files(ours, tmp_path / name, tmp_path / "o.npy", workers=2)
        assert np.load(tmp_path / "o.npy").tolist() == expected
    data = text.encode()
    assert list(ours.encode_iterable([data[k : k + 99] for k in range(0, len(data), 99)])) == expected


def test_a_larger_vocabulary_takes_larger_numbers(tmp_path):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {70_000: b"the"}, None)
    (tmp_path / "a.txt").write_text("in the end")
    assert bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "a.npy").dtype == "uint32"
    assert np.load(tmp_path / "a.npy").tolist() == tokenizer.encode("in the end")
    with pytest.raises(ValueError, match="uint16 does not hold the id 70,000"):
        bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "b.npy", dtype="uint16")
    assert not (tmp_path / "b.npy").exists()


def test_nothing_is_left_when_a_worker_dies(tokenizer, tmp_path, monkeypatch):
    read = bpe.Source.texts

    def read_or_die(source, block):
        found = read(source, block)
        return os._exit(1) if any(b"die" in text for text in found) else found

    monkeypatch.setattr(bpe, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(bpe.Source, "texts", read_or_die)
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n' * 2000 + '{"text": "die"}\n')
    out = {"out": tmp_path / "o.npy", "document_index": tmp_path / "i.npy"}
    with pytest.raises(ValueError, match="worker process died"):
        bpe.encode_files(tokenizer, tmp_path / "a.jsonl", **out, workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_what_was_there_stays_when_writing_fails(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "o.npy")
    (tmp_path / "b.jsonl").write_text("no json")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"b\.jsonl, line 1"):
        bpe.encode_files(tokenizer, [tmp_path / "a.txt", tmp_path / "b.jsonl"], tmp_path / "o.npy")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# ─── Training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_training_does_not_depend_on_workers_or_blocks(library, monkeypatch):
    files = [str(path) for path in library[:60]]
    whole = bpe.train_bpe(files, 1500, [END], workers=1)
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 1 << 15)
    for n in (1, 2, 5):
        assert bpe.train_bpe(files[::-1] if n == 1 else files, 1500, [END], workers=n) == whole


def test_curve_of_tokens_is_the_length_of_the_encoded_text(trained, library):
    encoded = sum(len(trained.tokenizer.encode(path.read_bytes())) for path in library[:200])
    assert trained.merges.n_tokens[-1] == encoded and trained.merges.n_tokens[0] == trained.counted.n_bytes


def test_training_takes_several_patterns(library):
    patterns = [r"\p{N}{1,3}", "gpt2"]
    tokenizer = bpe.train(library[:5], 400, pattern=patterns, workers=1).tokenizer
    assert tokenizer.pattern.source == (patterns[0], bpe.PATTERNS["gpt2"])
    data = [path.read_bytes() for path in library[:5]]
    counts = Counter(word for text in data for word in naive_split(tokenizer.pattern.source, text))
    assert (tokenizer.vocab, tokenizer.merges) == bpe.train_bpe_from_counts(counts, 400)


@pytest.mark.parametrize("data", [b"", END.encode() * 3])
def test_no_text_is_refused(tmp_path, data):
    (tmp_path / "empty.txt").write_bytes(data)
    with pytest.raises(ValueError, match=r"no text to learn from in .*empty\.txt"):
        bpe.train_bpe(tmp_path / "empty.txt", 300, [END])


# ─── Command line ─────────────────────────────────────────────────────────────────────────────────────────────────────


def run(*arguments, stdin=b"", **options):
    """Run the command line as a user does, in a process of its own."""
    command = [sys.executable, MODULE, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=300, **options)


@pytest.fixture
def command(capfdbinary, monkeypatch):
    """Run the command line in this process, which takes a hundredth of the time; the result is as that of `run`."""

    def run_here(*arguments, stdin=b"", cwd=None):
        before = signal.getsignal(signal.SIGINT)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.chdir(cwd or Path.cwd())
            try:
                status = bpe.main(list(map(str, arguments)))
            except SystemExit as error:
                status = error.code
            finally:
                signal.signal(signal.SIGINT, before)
        sys.stdout.flush()
        sys.stderr.flush()
        return subprocess.CompletedProcess(arguments, status, *capfdbinary.readouterr())

    return run_here


def assert_refused(result, *parts):
    """Exit status 2, one line on standard error that says these things, no traceback."""
    message = result.stderr.decode()
    assert result.returncode == 2, message
    lines = [line for line in message.replace("\r", "\n").splitlines() if line.startswith("bpe_numba:")]
    assert len(lines) == 1 and "Traceback" not in message, message
    assert all(part in lines[0] for part in parts), lines[0]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model trained by the command line, and what that printed."""
    folder = tmp_path_factory.mktemp("cli")
    text = (f"The cat sat on the mat.{END}Der Hund saß.\n" * 50).encode()
    (folder / "text.txt").write_bytes(text)
    result = run("train", folder / "text.txt", "--vocab-size", 270, "--special-token", END, "--out", folder / "model")
    assert result.returncode == 0, result.stderr
    return folder, result


def test_train_tells_what_it_did(model):
    _folder, result = model
    shown = result.stdout.decode()
    parts = "1,900 bytes in 51 documents", "270 tokens, 1 of them special", "bytes per token", "peak memory", "encode"
    assert all(part in shown for part in parts)
    assert "scan:" in result.stderr.decode() and "learn:" in result.stderr.decode()
    next_command = shown.splitlines()[-1].replace("python bpe_numba.py", f"{sys.executable} {MODULE}")
    assert subprocess.run(next_command, shell=True, capture_output=True, check=True).stdout.split()


def test_encode_and_decode_are_inverse(model, command):
    folder, _ = model
    ids = command("encode", folder / "model", folder / "text.txt", "--quiet").stdout
    assert command("decode", folder / "model", "-", stdin=ids).stdout == (folder / "text.txt").read_bytes()
    shown = command("encode", folder / "model", folder / "text.txt", "--out", folder / "ids.npy")
    array = np.load(folder / "ids.npy", mmap_mode="r")
    assert array.dtype == np.uint16 and array.tolist() == list(map(int, ids.split()))
    assert f"{len(array):,} tokens" in shown.stdout.decode()
    assert command("decode", folder / "model", folder / "ids.npy", "--out", folder / "back.txt").returncode == 0
    assert (folder / "back.txt").read_bytes() == (folder / "text.txt").read_bytes()


def test_raw_numbers_come_and_go_through_pipes(model, command, tmp_path):
    folder, _ = model
    text = (folder / "text.txt").read_bytes()
    raw = run("encode", folder / "model", "-", "--out", "-", "--append", END, stdin=text)
    (tmp_path / "ids.bin").write_bytes(raw.stdout)
    assert raw.returncode == 0 and f"{len(raw.stdout) // 2:,} tokens" in raw.stderr.decode()
    back = command("decode", folder / "model", tmp_path / "ids.bin", "--dtype", "uint16").stdout
    assert back == text + END.encode() and not list(Path.cwd().glob("*-.json"))
    assert_refused(command("decode", folder / "model", tmp_path / "ids.bin"), "ids.bin", "--dtype")


def test_a_full_disk_leaves_nothing(model, tmp_path):
    folder, _ = model
    (tmp_path / "text.txt").write_text("some text, and more of it\n" * 20_000)

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    result = run("encode", folder / "model", "text.txt", "--out", "o.npy", cwd=tmp_path, preexec_fn=small_files)
    assert_refused(result, "o.npy", "File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.fixture(scope="session")
def much_text(tmp_path_factory):
    """A folder of 2 GB that takes 5 MB: one file under many names."""
    folder = tmp_path_factory.mktemp("much")
    (folder / "0.txt").write_text("some text, and more of it\n" * 200_000)
    for k in range(1, 400):
        os.link(folder / "0.txt", folder / f"{k}.txt")
    return folder


def begun(*arguments):
    """A process of the command line that has begun to read, and what it wrote until then."""
    command = [sys.executable, MODULE, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    seen = b""
    while b"B/s" not in seen and process.poll() is None:
        seen += os.read(process.stderr.fileno(), 1000)
    return process


def test_a_killed_run_leaves_nothing_that_looks_finished(model, much_text, tmp_path):
    process = begun("encode", model[0] / "model", much_text, "--out", tmp_path / "o.npy", "--workers", 2)
    process.kill()
    process.communicate(timeout=60)  # until the workers, too, have closed their standard error
    assert process.returncode < 0
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".npy", ".json")]


def assert_interrupted(process, folder):
    """Exit status 130, one last line that says so, and no file."""
    _, rest = process.communicate(timeout=60)
    lines = rest.decode().replace("\r", "\n").splitlines()
    assert process.returncode == 130 and lines[-1].endswith("interrupted; nothing was written"), (lines, process)
    assert not any("Traceback" in line for line in lines)
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("what", ["train", "encode"])
def test_two_interrupts_end_it_with_one_line(model, much_text, tmp_path, what):
    inputs = [much_text] if what == "train" else [model[0] / "model", much_text]
    process = begun(what, *inputs, "--out", tmp_path / "o.npy", "--workers", 2)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.01)
    assert_interrupted(process, tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupts_at_any_moment_end_it(much_text, tmp_path, workers):
    """While kernels run, results are taken apart, workers start: 6 moments here; a hundred were tried."""
    moments = [random.Random(workers * 10 + k).uniform(0, 0.8) for k in range(6)]
    for pair in zip(moments[::2], moments[1::2], strict=True):
        running = [begun("train", much_text, "--out", tmp_path / "m", "--workers", workers) for _ in pair]
        for process, moment in zip(running, pair, strict=True):
            threading.Timer(moment, os.killpg, [process.pid, signal.SIGINT]).start()
        for process in running:
            assert_interrupted(process, tmp_path)


def test_a_recipe_is_one_command(command, tmp_path, library):
    documents = [path.read_bytes().decode() for path in library[:20]]
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    roles = ["--bos-token", tokens[1], "--eos-token", tokens[2], "--pad-token", tokens[0], "--unk-token", tokens[0]]
    special = [word for token in tokens for word in ("--special-token", token)]
    more = ["--vocab-size", 600, "--tie-break", "ids", "--model-max-length", 32768, "--chat-template", "chatml"]
    result = command("train", "data.jsonl", *special, *roles, *more, "--out", "mini", "--quiet", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    theirs = hugging_face_trained(documents, 600, tokens)
    ours = json.loads((tmp_path / "mini" / "tokenizer.json").read_text())
    assert ours["model"]["vocab"] == theirs["vocab"]
    config = json.loads((tmp_path / "mini" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>" and config["model_max_length"] == 32768
    assert config["chat_template"] == bpe.CHATML
    mapped = json.loads((tmp_path / "mini" / "special_tokens_map.json").read_text())
    assert mapped == {name: config[name] for name in bpe.ROLES}
    text = documents[0] + tokens[1]
    for to in bpe.FORMATS:
        converted = command("convert", "mini", "--to", to, "--out", to, cwd=tmp_path)
        assert converted.returncode == 0 and b"600 tokens" in converted.stdout, converted.stderr
        assert bpe.Tokenizer.load(tmp_path / to).encode(text) == bpe.Tokenizer.load(tmp_path / "mini").encode(text)
    assert json.loads((tmp_path / "huggingface" / "tokenizer_config.json").read_text()) == config


@pytest.mark.parametrize("wrong", [["--eos-token", "<x>"], ["--chat-template", "chatml"], ["--model-max-length", "0"]])
def test_a_wrong_config_is_refused_before_the_training(tmp_path, command, monkeypatch, wrong):
    with pytest.raises(ValueError, match="special_tokens_at"):
        bpe.train_bpe(tmp_path, 300, special_tokens_at="second")
    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setattr(bpe, "count", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(bpe, "learn", lambda *_, **__: 1 / 0)
    assert_refused(command("train", tmp_path / "a.txt", "--out", tmp_path, *wrong))


def test_options_of_train_do_what_they_say(command, tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest " * 5 + "rare")
    options = ["--special-token", "<a>", "--special-tokens-at", "last", "--min-frequency", 6, "--quiet"]
    assert command("train", tmp_path / "a.txt", "--vocab-size", 300, *options, "--out", tmp_path / "m").returncode == 0
    tokenizer = bpe.Tokenizer.load(tmp_path / "m")
    assert tokenizer.special_tokens == {"<a>": len(tokenizer) - 1} and b" lowest" not in tokenizer.vocab.values()
    assert b" low" in tokenizer.vocab.values()
    done = command("encode", tmp_path / "m", tmp_path / "a.txt", "--out", tmp_path / "a.npy", "--dtype", "uint32")
    assert done.returncode == 0 and np.load(tmp_path / "a.npy").dtype == np.uint32


def test_standard_input_is_read(model, command, tmp_path):
    folder, _ = model
    text = (folder / "text.txt").read_bytes()
    lines = "".join(json.dumps({"body": d}) + "\n" for d in text.decode().split(END)).encode()
    options = ("--vocab-size", 270, "--special-token", END, "--quiet")
    assert run("train", "-", "--out", tmp_path / "a", *options, stdin=text).stderr == b""
    assert command("train", "-", "--out", tmp_path / "b", "--text-field", "body", *options, stdin=lines).returncode == 0
    for name in ("a", "b"):
        assert (tmp_path / name / "tokenizer.json").read_bytes() == (folder / "model" / "tokenizer.json").read_bytes()


def test_a_pattern_that_is_not_compiled_is_said_once(model, command, tmp_path):
    options = ["--pattern", r"(?<!x)\w+|\W", "--out", tmp_path, "--quiet"]
    result = command("train", model[0] / "text.txt", *options)
    notes = result.stderr.decode().splitlines()
    assert result.returncode == 0 and any("left to the `regex` package" in note for note in notes)
    assert sum("regex" in note for note in notes) == 1 and (tmp_path / "tokenizer.json").exists()


def test_special_tokens_can_be_ordinary_text(model, command):
    folder, _ = model
    honoured = command("encode", folder / "model", "-", stdin=END.encode()).stdout.split()
    ordinary = command("encode", folder / "model", "-", "--no-special", stdin=END.encode()).stdout.split()
    assert honoured == [b"0"] and len(ordinary) > 1 and b"0" not in ordinary


@pytest.fixture
def bad_files(model, tmp_path):
    """A folder with files that are not what they should be."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "text.txt").write_text("some text\n")
    (tmp_path / "bad.jsonl").write_text("{nonsense\n")
    (tmp_path / "bad.npy").write_text("nonsense\n")
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "a.tiktoken").write_bytes(b"IQ== 0\n")
    np.save(tmp_path / "floats.npy", np.zeros(3))
    np.save(tmp_path / "large.npy", np.array([1, 100_000]))
    (tmp_path / "model").symlink_to(model[0] / "model")
    return tmp_path


def assert_refused_leaving_nothing(run, arguments, parts, folder):
    before = sorted(folder.rglob("*"))
    assert_refused(run(*arguments, cwd=folder), *parts)
    made = set(folder.rglob("*")) - set(before)
    assert all(path.is_dir() and not list(path.iterdir()) for path in made)


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (("train", "empty.txt"), ["empty.txt", "no text"]),
        (("train", "folder"), ["folder", ".jsonl"]),
        (("train", "bad.jsonl"), ["bad.jsonl, line 1", "not JSON"]),
        (("train", "text.txt", "--vocab-size", "10"), ["10", "256"]),
        (("train", "text.txt", "--special-token", "<a>", "--special-token", "<a>"), ["'<a>'", "twice"]),
        (("train", "text.txt", "--special-token", ""), ["empty"]),
        (("train", "text.txt", "--special-token", "a\udcff"), ["UTF-8"]),
        (("train", "text.txt", "--special-token", "é"), ["é"]),
        (("train", "text.txt", "--pattern", "(["), ["does not compile", "position"]),
        (("train", "text.txt", "--pattern", "gpt5"), ["gpt5", "gpt2, cl100k, o200k"]),
        (("train", "text.txt", "--pattern", "(?:" * 300 + "a" + ")" * 300), ["does not compile"]),
        (("train", "text.txt", "--pattern", "a{" + "9" * 5000 + "}"), ["does not compile"]),
        (("train", "text.txt", "--workers", "0"), ["0 workers"]),
        (("train", "text.txt", "--out", "text.txt"), ["text.txt"]),
        (("train", "text.txt", "--out", "text.txt/model"), ["text.txt"]),
        (("train", "text.txt", "--chat-template", "nowhere.jinja"), ["nowhere.jinja"]),
        (("convert", "model", "--to", "tiktoken", "--out", "text.txt"), ["text.txt"]),
        (("convert", "model", "--to", "tiktoken", "--out", "o", "--pattern", "gpt2"), ["pattern"]),
        (("encode", "folder", "text.txt"), ["folder", "no tokenizer.json"]),
        (("encode", "bad.jsonl", "text.txt"), ["bad.jsonl", "not JSON"]),
        (("encode", "model", "text.txt", "--out", "folder"), ["folder"]),
        (("encode", "model", "text.txt", "--encoding", "gpt2"), ["encoding"]),
        (("decode", "model", "text.txt"), ["text.txt, line 1", "ids"]),
        (("encode", "model", "text.txt", "--out", "o.txt"), ["o.txt", ".npy", ".bin"]),
        (("encode", "model", "text.txt", "--out", "o.npy", "--append", "<x>"), ["'<x>'", END]),
        (("encode", "model", "text.txt", "--document-index", "i.npy"), ["--out"]),
        (("encode", "model", "text.txt", "--out", "o.npy", "--document-index", "o.npy"), ["o.npy", "twice"]),
        (("encode", "model", "text.txt", "--out", "o.npy", "--workers", "0"), ["0 workers"]),
        (("encode", "model", "nowhere.txt", "--out", "o.npy"), ["nowhere.txt"]),
        (("decode", "model", "bad.npy"), ["bad.npy", "array"]),
        (("decode", "model", "odd.bin", "--dtype", "uint16"), ["odd.bin", "array"]),
        (("decode", "model", "floats.npy"), ["floats.npy", "float64"]),
        (("decode", "model", "large.npy"), ["id 100000"]),
    ],
)
def test_bad_input_is_one_clear_line(arguments, parts, command, bad_files):
    assert_refused_leaving_nothing(command, arguments, parts, bad_files)


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (("train", "nowhere.txt"), ["nowhere.txt", "no such file"]),
        (("convert", "a.tiktoken", "--to", "gpt2", "--out", "o"), ["a.tiktoken", "--pattern", "cl100k_base"]),
        (("encode", "model", "text.txt", "--out", "text.txt/o.npy"), ["text.txt"]),
    ],
)
def test_bad_input_is_one_clear_line_in_a_process_too(arguments, parts, bad_files):
    assert_refused_leaving_nothing(run, arguments, parts, bad_files)


def test_a_huge_minimum_leaves_the_bytes(command, bad_files):
    result = command("train", "text.txt", "--min-frequency", 10**30, "--out", "m", "--quiet", cwd=bad_files)
    assert result.returncode in (0, 2) and b"Traceback" not in result.stderr


def test_a_closed_pipe_is_no_error(model):
    folder, _ = model
    command = f"{sys.executable} {MODULE} encode {folder}/model {folder}/text.txt --quiet | head -c 10"
    result = subprocess.run(command, shell=True, capture_output=True)
    assert len(result.stdout) == 10 and result.stderr == b""


def test_readme_examples_run(tmp_path):
    blocks = regex.findall(r"```python\n(.*?)```", Path(MODULE).with_name("README.md").read_text(), regex.DOTALL)
    assert blocks
    for block in blocks:
        environment = {**os.environ, "PYTHONPATH": str(Path(MODULE).parent)}
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, timeout=300, env=environment)


# ─── Research ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def prose(library):
    """A tokenizer of 1,500 tokens, what its training learnt, and a text it was trained on."""
    training = bpe.train(library[:40], 1500, [END], workers=1)
    return training.tokenizer, training, library[:40]


def test_curve_is_the_length_of_the_text_encoded_at_five_sizes(prose):
    _, training, files = prose
    report = bpe.curve({"prose": (training.merges, training.counted.n_bytes)})
    merges = training.merges.merges
    for size in (256, 300, 511, 900, 256 + len(merges)):
        vocab = dict(enumerate([*BYTES, *(left + right for left, right in merges[: size - 256])]))
        tokenizer = bpe.Tokenizer(vocab, merges[: size - 256])
        k = report.sizes["prose"].tolist().index(size)
        assert report.n_tokens["prose"][k] == sum(len(tokenizer.encode(path.read_bytes())) for path in files)
    n, saved = report.n_tokens["prose"], report.saved_by_next("prose")
    assert saved[7] == 1 - n[1007] / n[7] and len(saved) == len(n) - 1000


def test_learned_is_saved_and_loaded(prose, tmp_path):
    _, training, _ = prose
    bpe.save_learned(tmp_path, training.merges, 7)
    for path in (tmp_path, tmp_path / "training.npz"):
        learned, n_bytes = bpe.load_learned(path)
        assert learned.tokens == training.merges.tokens and n_bytes == 7
        assert all(map(np.array_equal, learned[:3], training.merges[:3]))


@pytest.mark.parametrize("data", [b"", b"PK", b"\x93NUMPY"])
def test_what_is_no_saved_training_is_refused(tmp_path, data):
    with pytest.raises(bpe.InputError, match=r"no training\.npz here: only a model that `train` wrote"):
        bpe.load_learned(tmp_path)
    (tmp_path / "training.npz").write_bytes(data)
    with pytest.raises(bpe.InputError, match="not what a training saved"):
        bpe.load_learned(tmp_path)


def naive_measures(tokenizer, texts):
    """Every measure by its definition, from the tokens of the whole text."""
    words = [word for text in texts for word in naive_split(bpe.PATTERNS["gpt2"], text)]
    encoded = [tokenizer.encode(word, "none") for word in words]
    ids = [id for word in encoded for id in word]
    ordinary = tokenizer.vocab.keys() - tokenizer.special_tokens.values()
    counts, v = Counter(ids), len(ordinary)
    p = [n / len(ids) for n in counts.values()]
    values = [counts[id] for id in ordinary]
    size = sum(map(len, texts))
    return {
        "tokens": len(ids),
        "bytes per token": size / len(ids),
        "characters per token": sum(len(text.decode()) for text in texts) / len(ids),
        "compression": 8 * size / (len(ids) * math.log2(v)),
        "fertility": len(ids) / len(words),
        "continued words": sum(len(word) > 1 for word in encoded) / len(words),
        "entropy efficiency": -sum(x * math.log2(x) for x in p) / math.log2(v),
        "Rényi efficiency": math.log2(sum(x**2.5 for x in p)) / (1 - 2.5) / math.log2(v),
        "vocabulary utilisation": len(counts) / v,
        "Gini": sum(abs(a - b) for a in values for b in values) / (2 * v * sum(values)),
    }


def test_measures_equal_their_definitions(prose):
    tokenizer, _, files = prose
    found = bpe.inspect_model(tokenizer, files[5:8], workers=1)
    wanted = naive_measures(tokenizer, [path.read_bytes() for path in files[5:8]])
    assert found.measures.keys() == wanted.keys() and found.measures == pytest.approx(wanted)
    counts = Counter(id for path in files[5:8] for id in tokenizer.encode(path.read_bytes()))
    assert {id: n for id, n in enumerate(found.frequencies.tolist()) if n} == counts


@given(words=word_counts)
def test_encoded_words_are_those_of_each_word(words):
    learned = bpe.learn(bpe.Words.from_counts(words), 262)
    tokenizer = bpe.Tokenizer(dict(enumerate(learned.tokens)), learned.merges)
    encoded = bpe.encode_words(bpe.Words.from_counts(words), tokenizer)
    naive = {word: [tokenizer.token_to_id(t) for t in naive_encode(word, tokenizer.merges)] for word in encoded.words}
    assert np.split(encoded.ids, encoded.offsets[1:-1])[0].tolist() == naive[encoded.words[0]]
    assert encoded.ids.tolist() == [id for word in encoded.words for id in naive[word]]
    assert encoded.n_bytes == sum(len(word) * n for word, n in words.items())


def naive_reached(tokenizer, n_letters, size):
    """The ids in all texts of these letters up to a size."""
    letters = [tokenizer.vocab[id] for id in range(n_letters)]
    texts = (b"".join(text) for k in range(1, size + 1) for text in itertools.product(letters, repeat=k))
    return {id for text in texts for id in tokenizer.encode(text)}


@pytest.mark.parametrize("merges", [True, False])
def test_unreachable_tokens_are_those_no_text_has(merges):
    source, reasons = random.Random(1), Counter()
    for _ in range(30):
        tokens, pairs = random_tokens(source, b"ab 1", 8)
        tokens = [token for token in tokens if len(token) <= 5 and set(token) <= {*b"ab 1"}]
        pairs = [pair for pair in dict.fromkeys(pairs) if pair[0] + pair[1] in tokens]
        tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), pairs if merges else None)
        why = bpe.unreachable_tokens(tokenizer)
        reasons.update(why.values())
        reached = naive_reached(tokenizer, 4, 6)
        assert reached.isdisjoint(why) and reached | why.keys() == tokenizer.vocab.keys()
    assert reasons["pattern"] and (reasons["merges"] or not merges)


def test_training_uses_are_the_frequencies_in_the_corpus(prose):
    tokenizer, training, files = prose
    made, left = bpe.training_uses(training.merges)
    encoded = bpe.encode_words(training.counted.words, tokenizer)
    ids = [tokenizer.token_to_id(token) for token in training.merges.tokens[256:]]
    assert left.tolist() == encoded.frequencies(len(tokenizer))[ids].tolist()
    assert made.sum() == training.counted.n_bytes - training.merges.n_tokens[-1] and len(files) == 40


def test_glitch_candidates_tell_where_their_count_went():
    learned = bpe.learn(bpe.Words.from_counts({b"abc": 5000, b"abd": 3000, b"ab": 2, b"xy": 9}), 260)
    ids = {token: id for id, token in enumerate(learned.tokens)}
    (glitch,) = bpe.find_glitches(learned, ids)
    assert glitch == (ids[b"ab"], 8002, 2, [(b"abc", 5000), (b"abd", 3000)])
    assert glitch.destiny == "abc 62 %, abd 37 %"
    assert bpe.find_glitches(learned, ids, np.full(260, 9)) == []


def test_models_are_compared(prose, tmp_path):
    tokenizer, _, files = prose
    cl100k = bpe.Tokenizer(*bpe.train_bpe(files[0], 600), pattern="cl100k")
    (tmp_path / "a.txt").write_text("one 12345 two\n    three\n" * 9)
    report = bpe.compare({"a": tokenizer, "b": cl100k}, {"text": tmp_path / "a.txt", "code": files[0]}, workers=1)
    assert report.corpora == ["text", "code", "digits", "indentation"]
    for row, model in zip(report.bytes_per_token, (tokenizer, cl100k), strict=True):
        for k, path in enumerate([tmp_path / "a.txt", files[0]]):
            assert row[k] == path.stat().st_size / len(model.encode(path.read_bytes()))
    ordinary = [set(model.vocab.values()) - {END.encode()} for model in (tokenizer, cl100k)]
    assert report.n_shared.tolist() == [[len(a & b) for b in ordinary] for a in ordinary]
    for word, _, pieces in report.differences:
        assert [b"".join(part) for part in pieces] == [word, word] and pieces[0] != pieces[1]
    assert [d.count for d in report.differences] == sorted((d.count for d in report.differences), reverse=True)


def test_a_view_shows_every_token(prose):
    tokenizer, _, _ = prose
    text = "def f():\n\treturn 'é中🙂' \x1b[31m\u202e\n".encode() + b"\xff"
    report = bpe.view(tokenizer, text)
    assert b"".join(report.tokens) == text and report.ids.tolist() == tokenizer.encode(text)
    for width in (12, 40, 80):
        lines = report.text(width).splitlines()
        assert all(bpe._cell_width(line) <= width for line in lines[:-1])
        shown = [piece.strip() for line in lines[:-1:2] for piece in line.split("|")[:-1]]
        assert shown == [bpe.visible(token) for token in report.tokens]
        assert [int(id) for line in lines[1:-1:2] for id in line.split()] == report.ids.tolist()
    assert "\x1b" not in report.text(80) and "<1B>" in report.text(80) and "<U+202E>" in report.text(80) + "<U+202E>"


@given(st.binary(min_size=1, max_size=30) | texts.filter(len).map(str.encode))
def test_visible_text_is_printable(token):
    assert bpe.visible(token).isprintable() and " " not in bpe.visible(token)


@pytest.fixture(scope="session")
def reports(prose):
    """One of each report."""
    tokenizer, training, files = prose
    learned = training.merges, training.counted.n_bytes
    return [
        bpe.inspect_model(tokenizer, files[:3], learned=training.merges, workers=1),
        bpe.inspect_model(tokenizer),
        bpe.curve({"one": learned, "two": learned}),
        bpe.compare({"one": tokenizer, "two": tokenizer}, {"中文 | text": files[0], "b": files[1]}, workers=1),
        bpe.view(tokenizer, "one two\n中"),
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_reports_fit_the_terminal(reports, width):
    for report in reports:
        assert max(map(bpe._cell_width, report.text(width).splitlines())) <= width


@pytest.mark.filterwarnings("ignore:no font here")
def test_reports_are_pages_without_a_network(reports, tmp_path):
    pytest.importorskip("matplotlib")
    for report in reports:
        report.html(tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert "prefers-color-scheme: dark" in page and report.title in page
        assert not regex.search(r"<(script|link|img|iframe)|@import|url\(http|(src|href)=.http", page)
        cells = [html.escape(cell) for table in report.tables() for row in table.rows for cell in row]
        assert isinstance(report, bpe.View) or all(cell in page for cell in cells)


@pytest.mark.filterwarnings("ignore:no font here")
@pytest.mark.parametrize("suffix, begin", [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_reports_are_drawn(reports, tmp_path, suffix, begin):
    pytest.importorskip("matplotlib")
    for report in reports:
        report.plot(tmp_path / f"picture.{suffix}")
        assert (tmp_path / f"picture.{suffix}").read_bytes().startswith(begin)
    with pytest.raises(bpe.InputError, match=r"name a \.png, \.svg or \.pdf file"):
        report.plot(tmp_path / "picture.xyz")


def test_markdown_is_the_table(reports):
    shown = reports[3].markdown()
    assert "| model | 中文 \\| text | b |" in shown and "| --- | ---: | ---: |" in shown


def test_characters_without_a_font_are_named():
    pytest.importorskip("matplotlib")
    families, missing = bpe._choose_fonts("abc\U0001fbff\U000e0fff")
    assert families[0] == "DejaVu Sans" and "a" not in missing and "\U000e0fff" not in missing


def test_peers_do_the_same_work(library):
    report = bpe.bench(library[:30], 600, tools=["tokenizers", "tiktoken"])
    assert [(run.tool, run.job, run.verdict) for run in report.runs] == [
        ("bpe_numba", "train", "same"),
        ("tokenizers", "train", "same"),
        ("bpe_numba", "encode", "same"),
        ("tokenizers", "encode", "same"),
        ("tiktoken", "encode", "same"),
    ]
    assert all(min(run.seconds) > 0 for run in report.runs) and "| tool |" in report.markdown()
    assert max(map(len, report.text(40).splitlines())) <= 40


def test_a_peer_that_differs_or_fails_is_told():
    ours = bpe.Run("bpe_numba", "train", [1.0], 9, [b"ab", b"cd", b"ef"])
    judged = bpe._judge(ours._replace(tool="x", result=[b"ab", b"ef", b"gh"]), ours)
    assert judged.verdict == "66.7 % alike; differs from merge 1"
    assert bpe._run_apart("nothing", bpe.Source([], bpe.Pattern()), 0, None).verdict == "'nothing'"
    with pytest.raises(bpe.InputError, match="no peer is named"):
        bpe.bench(tools=["nothing"])


@pytest.mark.parametrize("name", ["inspect", "compare"])
def test_an_empty_corpus_is_refused(command, prose, tmp_path, name):
    prose[0].save(tmp_path / "model")
    (tmp_path / "empty.txt").write_bytes(b"")
    arguments = ["--corpus"] * (name == "compare") + [tmp_path / "empty.txt"]
    assert_refused(command(name, tmp_path / "model", *arguments), "no text to look at in", "empty.txt")


def test_commands_of_research(command, model, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    folder, _ = model
    shown = command("inspect", folder / "model", folder / "text.txt", "--quiet").stdout.decode()
    assert "bytes per token" in shown and "Candidates for glitch tokens" in shown
    assert "1,000 more save" in command("curve", folder / "model", folder / "model").stdout.decode()
    shown = command("compare", folder / "model", "--corpus", folder / "text.txt", "--quiet", "--markdown").stdout
    assert b"| 1 model | " in shown
    shown = command("view", folder / "model", "The", "cat", "--html", tmp_path / "view.html").stdout.decode()
    assert shown.endswith("7 bytes, 3 tokens\n") and "\x1b" not in shown and (tmp_path / "view.html").is_file()
    assert command("view", folder / "model", stdin=b"The cat").stdout.decode() == shown


def test_a_model_from_elsewhere_has_no_curve(command, prose, tmp_path):
    prose[0].save(tmp_path / "model")
    assert_refused(command("curve", tmp_path / "model"), "model: no training.npz here", "`train`")
    assert "beside this model is no training.npz" in command("inspect", tmp_path / "model").stdout.decode()


def test_a_missing_matplotlib_is_named(command, prose, tmp_path, monkeypatch):
    prose[0].save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = command("inspect", tmp_path / "model", "--plot", tmp_path / "a.png")
    assert_refused(result, "this needs the package matplotlib: pip install matplotlib")


# ─── Safety ───────────────────────────────────────────────────────────────────────────────────────────────────────────

IN_A_READ_ONLY_FOLDER = """
import os, sys, pathlib, bpe_numba
if os.access(".", os.W_OK) or os.access(os.environ["HOME"], os.W_OK):
    sys.exit("this user may write anywhere")
assert bpe_numba.Tokenizer({7: b"ab"}, []).decode([7] * 100) == "ab" * 100  # by two small kernels
try:
    with bpe_numba.atomic_write(pathlib.Path("ids.npy").absolute()):
        pass
except bpe_numba.InputError as error:
    print(error)
"""


def test_kernels_compile_where_nothing_can_be_written(tmp_path):
    folder, home = tmp_path / "read only", tmp_path / "home"
    for made in (folder, home):
        made.mkdir()
        shutil.copy(MODULE, made / "bpe_numba.py")
        made.chmod(0o555)

    def obey_modes():
        """Root may write anywhere: without this capability (CAP_DAC_OVERRIDE) it may not."""
        if os.getuid() == 0:
            ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)

    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", IN_A_READ_ONLY_FOLDER]
    result = subprocess.run(command, cwd=folder, env=environment, preexec_fn=obey_modes, capture_output=True)
    if b"may write anywhere" in result.stderr:
        pytest.skip("no way to give up the right to write anywhere")
    assert result.returncode == 0, result.stderr.decode()
    assert f"{folder}: " in result.stdout.decode() and "ids.npy" not in result.stdout.decode()


@pytest.fixture(scope="session", autouse=True)
def checked_run(request, tmp_path_factory):
    """The tests of kernels again, with every index checked, and a fresh cache, since a warm one ignores that.

    It takes as long as all other tests together, and has begun before them, on another core.
    """
    if not any(item.name == test_kernels_stay_inside_their_arrays.__name__ for item in request.session.items):
        yield None
        return
    folder = tmp_path_factory.mktemp("checked")
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "kernels", "-p", "no:cacheprovider", __file__]
    with open(folder / "output", "wb+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=Path(__file__).parent)
        yield process, folder / "output"
        process.kill()
        process.wait()


@pytest.mark.skipif(BOUNDS_CHECKED, reason="this is that run")
def test_kernels_stay_inside_their_arrays(checked_run):
    process, output = checked_run
    assert process.wait(timeout=600) == 0, output.read_text()
    assert regex.search(r"\d+ passed", output.read_text())
