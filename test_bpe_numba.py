"""Tests of bpe_numba, in the order of its sections.

They compare results with a plain reference, and with `regex`, `tokenizers`, `tiktoken` and
`sentencepiece`. They check that workers, blocks and chunks change nothing, and that bad input is
refused in one line. First stands the oracle: BPE by its definition, in the plainest Python, without
the module's help.

The tests of kernels are marked `apart`, section by section. They run in a second process beside
the others, and there every index is checked (see the end of this file).
"""

from __future__ import annotations

import ast
import base64
import bz2
import concurrent.futures
import contextlib
import copy
import ctypes
import dataclasses
import doctest
import fractions
import functools
import gzip
import hashlib
import html.parser
import http.server
import importlib.util
import inspect
import io
import itertools
import json
import lzma
import math
import multiprocessing
import os
import pickle
import pydoc
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import jinja2.sandbox
import numba
import numpy as np
import pytest
import regex
import sentencepiece
import tiktoken
import tiktoken.load
import tokenizers
import transformers
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex
from tokenizers import decoders as D
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as A
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

import bpe_numba as bpe

MODULE = str(Path(bpe.__file__))
BOUNDS_CHECKED = os.environ.get("NUMBA_BOUNDSCHECK") == "1"  # this is the second process
slow = [HealthCheck.too_slow]  # the first example compiles kernels, and some make models
settings.register_profile("normal", deadline=None, max_examples=30, suppress_health_check=slow)
settings.load_profile("normal")
# The sections of this file whose tests run in the second process.
CHECKED = ["Compiling", "Running", "Patterns", "Scanning", "Normalizing", "Reading", "Words"]
CHECKED += ["Learning", "Encoding", "WordPiece", "Unigram"]


@pytest.fixture(scope="session", autouse=True)
def _memory_is_given_back():
    """Without this the C library keeps 2 GB of small pieces that a thousand tests have freed."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 1 << 18)  # M_MMAP_THRESHOLD: arrays of 256 KB are mapped, each on its own


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard():
    """Without this, processes ignore SIGINT in a background job, and SIGHUP under `nohup`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def examples(n):
    """Settings for so many examples."""
    return settings(max_examples=n)


# Marks tests of what only compiled kernels do.
compiled = pytest.mark.skipif(not bpe.COMPILES, reason="nothing is compiled")


# ─── The oracle ───────────────────────────────────────────────────────────────────────────────────

BYTES = [bytes([b]) for b in range(256)]


def merged(word, pair, whole):
    """Join every occurrence of a pair of symbols to `whole`, from left to right."""
    joined = []
    i = 0
    while i < len(word):
        if tuple(word[i : i + 2]) == pair:
            joined.append(whole)
            i += 2
        else:
            joined.append(word[i])
            i += 1
    return joined


def as_text(data):
    """Bytes as text: each byte that is not UTF-8 is half a surrogate pair."""
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text):
    """The inverse of `as_text`."""
    return text.encode("utf-8", "surrogateescape")


def tally(numbers):
    """The sums of the numbers of each thing, from pairs of a thing and a number."""
    sums = Counter()
    for thing, number in numbers:
        sums[thing] += number
    return sums


def naive_score(score, count, left, right, size, n_tokens):
    """The score of a pair from its count, those of its symbols, its size, and all tokens."""
    if score == "count":
        return float(count)
    if score == "likelihood":
        return count / (float(left) * float(right))
    numbers = (count, left, right, size, n_tokens)
    n = score.__code__.co_argcount - len(score.__defaults__ or ())
    if n == 2:
        numbers = (count, size)
    return score(*map(np.int64, numbers[:n]))


class NaiveLearner:
    """A Learner as it is defined: words are lists of symbols, and each call counts the pairs."""

    def __init__(self, counts, alphabet=BYTES, score="count", tie_break="bytes", min_frequency=1):
        self.words = [(list(word), n) for word, n in counts.items() if n]
        self.tokens = list(alphabet)
        self.score = score
        self.by_bytes = tie_break == "bytes"
        self.min_frequency = min_frequency
        self.forbidden = set()
        self.order = {}
        if alphabet is BYTES:
            self.order = {b: k for k, b in enumerate(sorted(range(256), key=CHAR_OF.get))}

    def n_tokens(self):
        return sum(len(word) * n for word, n in self.words)

    def symbols(self):
        return tally((symbol, n) for word, n in self.words for symbol in word)

    def pairs(self):
        return tally((pair, n) for word, n in self.words for pair in pairwise(word))

    def scores(self):
        """The count and the score of each pair that occurs and is not forbidden."""
        symbols = self.symbols()
        n_tokens = self.n_tokens()
        scores = {}
        for (left, right), n in self.pairs().items():
            size = len(self.tokens[left] + self.tokens[right])
            score = 0.0
            if n >= self.min_frequency:
                score = naive_score(self.score, n, symbols[left], symbols[right], size, n_tokens)
            if (left, right) not in self.forbidden:
                scores[left, right] = n, score
        return scores

    def best(self):
        scores = {pair: row[::-1] for pair, row in self.scores().items() if row[1] > 0}
        best = max(scores, key=lambda pair: (scores[pair], *map(self.rank, pair)), default=None)
        return best and (*best, *scores[best][::-1])

    def rank(self, symbol):
        number = -self.order.get(symbol, symbol)
        if self.by_bytes:
            return self.tokens[symbol], number
        return b"", number

    def merge(self, left, right):
        self.tokens.append(self.tokens[left] + self.tokens[right])
        symbol = len(self.tokens) - 1
        self.words = [(merged(word, (left, right), symbol), n) for word, n in self.words]
        return symbol

    def split(self, symbol, parts):
        total = self.symbols()[symbol]
        for word, _ in self.words:
            for i in reversed(range(len(word))):
                if word[i] == symbol:
                    word[i : i + 1] = parts
        return total


def naive_learn(counts, n_symbols, alphabet=BYTES, **options):
    """Merge the best pair, again and again.

    Returns the pairs, their counts, the number of tokens before the first merge and after each, and
    the bytes of all symbols.
    """
    learner = NaiveLearner(counts, alphabet, **options)
    pairs = []
    pair_counts = []
    n_tokens = [learner.n_tokens()]
    while len(learner.tokens) < n_symbols:
        best = learner.best()
        if best is None:
            break
        left, right, count, _ = best
        learner.merge(left, right)
        pairs.append([left, right])
        pair_counts.append(count)
        n_tokens.append(learner.n_tokens())
    return pairs, pair_counts, n_tokens, learner.tokens


def naive_merge(symbols, rank):
    """Merge the leftmost neighbours of the lowest rank, again and again; a rank may be None."""
    symbols = list(symbols)
    while True:
        ranks = [(rank(pair), i) for i, pair in enumerate(pairwise(symbols))]
        possible = [(rank, i) for rank, i in ranks if rank is not None]
        if not possible:
            return symbols
        _, i = min(possible)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def naive_encode(symbols, merges):
    """Merge symbols, or the bytes of a word, by the order of merges."""
    if isinstance(symbols, bytes):
        symbols = [bytes([b]) for b in symbols]
    return naive_merge(symbols, {pair: i for i, pair in reversed(list(enumerate(merges)))}.get)


def naive_letters(data, alphabet, unk=None, byte_fallback=False, fuse_unk=False):
    """The symbols that merging begins with over characters, where not all characters are known."""
    symbols = []
    was_unknown = False
    for letter in map(as_bytes, as_text(data)):
        if letter in alphabet:
            symbols.append(letter)
        elif byte_fallback:
            symbols += [b"<0x%02X>" % byte for byte in letter]
        elif not (was_unknown and fuse_unk):
            symbols.append(unk)
        was_unknown = letter not in alphabet
    return symbols


def naive_samples(symbols, rank, alpha):
    """The probability of each result of BPE-dropout, which leaves out a merge with chance alpha."""
    probabilities = Counter()
    pairs = enumerate(pairwise(symbols))
    possible = sorted((rank[pair], i) for i, pair in pairs if pair in rank)
    for k, (_, i) in enumerate(possible):
        after = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
        for result, probability in naive_samples(after, rank, alpha).items():
            probabilities[result] += alpha**k * (1 - alpha) * probability
    probabilities[symbols] += alpha ** len(possible)
    return probabilities


def assert_by_chance(numbers, expected, least=0):
    """Numbers differ from those expected by chance alone; of a thousand seeds one may fail."""
    assert sum(numbers) == pytest.approx(sum(expected))
    often = [(n, mean) for n, mean in zip(numbers, expected, strict=True) if mean > least]
    chi_square = sum((n - mean) ** 2 / mean for n, mean in often)
    freedom = len(often) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def naive_split(steps, data):
    """The pretokens by the `regex` package: each step cuts the words that the step before left."""
    words = [data]
    if isinstance(steps, dict):
        steps = bpe.Pattern(steps).steps
    if type(steps) not in (tuple, list):
        steps = [steps]
    for step in steps:
        if isinstance(step, bpe.Metaspace):
            words = [naive_metaspace(step, word, k == 0) for k, word in enumerate(words)]
        else:
            split = step if isinstance(step, bpe.Split) else bpe.Split(step)
            words = list(chain(*(naive_cut(split, word) for word in words)))
    return [*filter(None, words)]


def naive_cut(split, word):
    """The words that a Split makes of one, which may be empty."""
    if not word:
        return [word]
    return naive_behavior(naive_pieces(split.regex, word), split.behavior, split.invert)


def metaspace(char="▁", scheme="always", split=True):
    """The Metaspace of a tokenizer.json."""
    fields = {"replacement": char, "prepend_scheme": scheme, "split": split}
    return {"type": "Metaspace", **fields}


def naive_metaspace(step, word, begins_text):
    """A word whose spaces are replaced; it begins with the replacement, if the scheme says so."""
    space = step.replacement.encode()
    word = word.replace(b" ", step.replacement.encode())
    needs_mark = step.prepend_scheme == "always" or (step.prepend_scheme == "first" and begins_text)
    return space + word if needs_mark and word and not word.startswith(space) else word


def naive_behavior(pieces, behavior, invert):
    """The words that Hugging Face's Split makes of matches and of the text between them."""
    pieces = [(word, matched != invert) for word, matched in pieces]
    if behavior == "removed":
        is_first_dropped = pieces and pieces[0][1]  # the next word does not begin the text
        return [b""] * bool(is_first_dropped) + [word for word, matched in pieces if not matched]
    if behavior == "merged_with_next":  # the mirror image of the other
        mirrored = [(word[::-1], matched) for word, matched in pieces[::-1]]
        mirrored = naive_behavior(mirrored, "merged_with_previous", False)
        return [word[::-1] for word in mirrored[::-1]]
    words = []
    before = False
    for word, matched in pieces:
        is_contiguous = behavior == "contiguous" and matched == before
        is_merged = behavior == "merged_with_previous" and matched and not before
        if words and (is_contiguous or is_merged):
            words[-1] += word
        else:
            words.append(word)
        before = matched
    return words


def naive_pieces(pattern, data):
    """The matches and the text between them, and whether each is a match.

    Raises TimeoutError where `regex` backtracks without end, as it does for some random patterns.
    """
    text = as_text(data)
    finder = regex.compile(pattern)
    pieces = []
    end = 0
    at = 0
    while at <= len(text):
        match = finder.search(text, at, timeout=5)
        if not match:
            break
        if pieces and match.start() == match.end() == end:
            at += 1  # as in Oniguruma, no empty match stands directly behind another match
            continue
        pieces += [(text[end : match.start()], False), (match[0], True)]
        at = end = match.end()
    pieces.append((text[end:], False))
    return [(as_bytes(word), matched) for word, matched in pieces if word]


def naive_parts(text, special):
    """Cut at special tokens, the longest first: text, token, text, …, token, text."""
    longest_first = "|".join(map(regex.escape, sorted(special, key=len, reverse=True)))
    return regex.split(f"({longest_first})", text) if special else [text]


def naive_count(text, patterns, special):
    """The counts of a text's pretokens, and the number of its documents.

    Documents are the parts between special tokens.
    """
    as_text = [token.encode().decode("latin-1") for token in special]  # a character for each byte
    parts = naive_parts(text.decode("latin-1"), as_text)[::2]
    documents = [part.encode("latin-1") for part in parts if part]
    counts = Counter(word for part in documents for word in naive_split(patterns, part))
    return counts, len(documents)


SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
UNSEEN = [byte for byte in range(256) if byte not in SEEN]
CHAR_OF = {byte: chr(byte) for byte in SEEN} | {b: chr(256 + k) for k, b in enumerate(UNSEEN)}


def in_chars(token):
    """A token as in GPT-2's files: each byte is a visible character."""
    return "".join(CHAR_OF[b] for b in token)


# ─── Data ─────────────────────────────────────────────────────────────────────────────────────────

END = "<|endoftext|>"
# The bytes of a text that all lanes scan, and more than once.
LONG = 1 << (13 if BOUNDS_CHECKED else 17)
BYTE_VOCAB = dict(enumerate(BYTES))

ALL_CHARACTERS = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
# Almost all characters that have a meaning: the planes between these two parts are empty.
FILLED_PLANES = ALL_CHARACTERS[:0x34000] + "".join(map(chr, range(0xE0000, 0xE0200)))
KNOWN_CHARACTERS = "".join(c for c in FILLED_PLANES if unicodedata.category(c) != "Cn")
# Words of few letters, in which pairs are frequent and overlap, and their counts.
few_letters = st.sampled_from([b"a", b"ab", b"abc", b"\x00\xff", bytes(range(97, 107))])
small_words = few_letters.flatmap(
    lambda letters: st.lists(st.sampled_from(letters), max_size=40).map(bytes)
)
word_counts = st.dictionaries(small_words, st.integers(0, 5), max_size=12).filter(
    lambda counts: any(word and n for word, n in counts.items())
)
# Any text, with more of the characters that patterns and special tokens look at.
texts = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab '\n\r\t  sſ　é١中🙂<|>"),
    max_size=60,
)
# Texts of few characters, in which the rare cases of patterns are frequent.
alphabets = st.sampled_from(
    ["ab c'sStTlLvVeErRdmM \n\r\t 12中é\u3000\u0301ſK/.!", "ab", "abc xy", "a1 \n", " \n"]
)
pattern_texts = texts | alphabets.flatmap(lambda letters: st.text(letters, max_size=80))
# Bytes that are not UTF-8, in every way, among some that are.
invalid = [b"\xff", b"\xfe", b"\xc0\xaf", b"\xc1\x81", b"\xf4\x90\x80\x80", b"\xe4\xb8", b"\xf5"]
invalid += [b"\xed\xa0\x80", b"\xf0\x9f\x99\x82", b"a", b" ", b"\n", b"<a"]
hostile_bytes = st.binary(max_size=60) | st.lists(st.sampled_from(invalid)).map(b"".join)
# Words for encoders: any, of few letters, or long and of one.
words = st.binary(max_size=60) | st.text("aeti", max_size=300).map(str.encode)
words |= st.just(b"a" * 200 + b"e")
character_words = st.lists(st.sampled_from([*"ab▁▁éx中🙂 ", "中中"])).map("".join)
character_words |= st.text("ab▁", max_size=200) | texts
BYTE_TOKENS = [b"<0x%02X>" % byte for byte in range(256)]


def words_of(counts, alphabet):
    """Words over an alphabet, from the counts of lists of its symbols."""
    symbols = np.array([*chain.from_iterable(counts)], np.int32)
    offsets = np.cumsum([0, *map(len, counts)])
    return bpe.Words(symbols, offsets, np.array([*counts.values()], np.int64), alphabet)


def words_of_characters(counts):
    """Words over the characters of some words, {str or bytes: count}."""
    decoded = {word if isinstance(word, str) else word.decode(): n for word, n in counts.items()}
    alphabet = sorted({*chain.from_iterable(decoded)})
    number = {char: k for k, char in enumerate(alphabet)}
    by_number = {tuple(map(number.get, word)): n for word, n in decoded.items()}
    return words_of(by_number, [char.encode() for char in alphabet])


def random_tokens(source, letters, n, first=()):
    """Letters and up to n tokens, each made of two others, and these pairs."""
    tokens = list(letters)
    merges = []
    for _ in range(n):
        left = source.choice(tokens)
        right = source.choice(tokens)
        merges.append((left, right))
        if left + right not in tokens:
            tokens.append(left + right)
    return list(dict.fromkeys([*first, *tokens])), list(dict.fromkeys(merges))


def random_tokens_of_bytes(source, n):
    """All bytes, and tokens of four letters."""
    return random_tokens(source, [b"a", b"e", b"t", b"i"], n, BYTES)


def model_proto(pieces, kind, **spec):
    """A SentencePiece model of pieces (text, type, score), with these fields of its normalizer."""
    fields = [dict(zip(("piece", "type", "score"), piece, strict=True)) for piece in pieces]
    proto = sentencepiece_model_pb2.ModelProto(pieces=fields)
    proto.trainer_spec.model_type = kind
    for name, value in spec.items():
        setattr(proto.normalizer_spec, name, value)
    return proto


def huggingface_tokenizer(model, added=(), **parts):
    """A tokenizer of the `tokenizers` package, from its parts."""
    theirs = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(theirs, name, part)
    theirs.add_special_tokens([*added])
    return theirs


def ours_from(theirs):
    """Our tokenizer, from the tokenizer.json of one of the `tokenizers` package."""
    return bpe.Tokenizer.from_str(theirs.to_str())


def theirs_from(folder):
    """The inverse: theirs, from the tokenizer.json in a folder."""
    return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")


def trained_by_hugging_face(kind, texts, pre_tokenizer=None, model=(), **options):
    """A tokenizer of the `tokenizers` package; `model` are options of the model."""
    empty = getattr(tokenizers.models, kind)(**dict(model))
    theirs = huggingface_tokenizer(empty, pre_tokenizer=pre_tokenizer)
    trainer = getattr(tokenizers.trainers, f"{kind.replace('BPE', 'Bpe')}Trainer")
    theirs.train_from_iterator(texts, trainer(show_progress=False, **options))
    return theirs


@pytest.fixture(scope="session")
def library():
    return utf8_library()


@pytest.fixture(scope="session")
def trained(library):
    """A model of 2,000 tokens, by the rule of ids, from a part of the standard library."""
    return bpe.train(library[:200], 2000, [END], tie_break="ids", workers=1)


@pytest.fixture(scope="session")
def tokenizer(trained):
    return trained.tokenizer


@pytest.fixture(scope="session")
def some_texts(library):
    """Code, prose in several scripts, bytes that are not text, and long or rare words."""
    source = random.Random(1)
    sizes = source.choices(range(1, 60), k=5000)
    return [
        *(path.read_bytes().decode()[:5000] for path in library[:12]),
        f"a{END}{END} b" + END,
        "",
        "中文没有空格" * 300 + "Это русский текст. " * 200,
        " ".join("".join(source.choices("abcdefgh", k=size)) for size in sizes),
        source.randbytes(20_000),
        b"a\xff" * 100,
    ]


@contextlib.contextmanager
def within(seconds):
    """Fail where a loop does not end, rather than hang."""

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
    """`function(8 * n)` takes less than 24 times as long as `function(n)`: some 8 times, not 64."""

    def least_seconds(size):
        spent = []
        for _ in range(3):
            start = time.process_time()
            function(size)
            spent.append(time.process_time() - start)
        return min(spent)

    assert least_seconds(8 * n) < 24 * max(least_seconds(n), 1e-3)


def refusal(message):
    """Fail if there is no error of bad input with this message."""
    return pytest.raises(bpe.InputError, match=message)


def note(message):
    """Fail if there is no warning with this message."""
    return pytest.warns(UserWarning, match=message)


def read_json(path):
    return json.loads(path.read_text())


def python(*arguments, cwd=None, stdin=b"", preexec_fn=None, **environment):
    """Run Python in a process of its own, with changes of its environment."""
    command = [sys.executable, *map(str, arguments)]
    folder = {"PYTHONPATH": Path(MODULE).parent}
    changes = {name: str(value) for name, value in (folder | environment).items()}
    options = {"input": stdin, "capture_output": True, "timeout": 300, "preexec_fn": preexec_fn}
    return subprocess.run(command, cwd=cwd, env=os.environ | changes, **options)


# ─── The module ───────────────────────────────────────────────────────────────────────────────────


def test_no_name_of_the_module_is_bound_twice():
    names = Counter()
    for statement in ast.parse(Path(MODULE).read_text()).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names[statement.name] += 1
        elif isinstance(statement, ast.Assign):
            nodes = chain(*map(ast.walk, statement.targets))
            nodes = [node for node in nodes if isinstance(node, ast.Name)]
            names.update(node.id for node in nodes if isinstance(node.ctx, ast.Store))
    assert [name for name, times in names.items() if times > 1] == []


def test_public_names_are_few_and_explained_by_examples():
    assert len(bpe.__all__) <= 64 and dir(bpe) == sorted(bpe.__all__)
    # of a kind of one's own, whose file docs/inside.md has as a whole
    parts = {"kernel", "struct", "make_trie", "read_vocab", "trie_child", "vocab_names"}
    for name in {*bpe.__all__} - parts:
        value = getattr(bpe, name)
        assert not callable(value) or ">>> " in inspect.getdoc(value), name


def test_names_that_the_pages_import_are_public():
    top = Path(MODULE).parent
    for page in (top / "README.md", *top.glob("docs/*.md")):
        for names in re.findall(r"^from bpe_numba import ([\w, ]+)$", page.read_text(), re.M):
            assert {*names.split(", ")} <= {*dir(bpe)}, page


def test_examples_in_docstrings_run():
    # kernels of the examples are not kept on the disk, so they are not the module's
    result = doctest.testmod(bpe, extraglobs={"__name__": __name__})
    assert result.attempted > 30 and result.failed == 0


# ─── Compiling ────────────────────────────────────────────────────────────────────────────────────


@compiled
def test_an_array_stays_that_is_replaced_while_a_kernel_uses_it(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @bpe.struct
    class Box:
        array: np.ndarray

    @bpe.kernel
    def replace(box):
        box.array = np.zeros(1000, np.int64)

    @bpe.kernel
    def use(box, array):
        replace(box)
        n = len(np.full(1000, 7))  # it takes the memory that was given back
        return array.sum() + n

    @bpe.kernel
    def hand_over(box):
        return use(box, box.array), use(box, box.array)

    @bpe.kernel
    def new_box():
        return Box(np.full(1000, 1))

    assert hand_over(new_box()) == (2000, 1000)
    box = new_box()
    assert use(box, np.ones(1000, np.int64)) == 2000


def test_python_calls_no_inline_kernel():
    names = "kernel", "inline_kernel", "_compiler(cache=False, forceinline=True)"
    kernels = {name: {} for name in names}
    others = []
    for statement in ast.parse(Path(MODULE).read_text()).body:
        decorators = [ast.unparse(node) for node in getattr(statement, "decorator_list", [])]
        found = kernels.get("".join(decorators))
        if found is None:
            others.append(statement)
        else:
            found[statement.name] = statement
    nodes = itertools.chain.from_iterable(map(ast.walk, others))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert kernels["kernel"].keys() & used
    # which is handed to kernels
    assert kernels["inline_kernel"].keys() & used == {"begin_nothing"}


def test_what_training_without_special_tokens_does_not_need_is_not_compiled(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.delattr(bpe, "_fill_merges")
        patch.delattr(bpe, "_cut_at_special")
        tokenizer = bpe.train(texts=["low low lower"], vocab_size=258).tokenizer
        tokenizer.save(tmp_path / "model")
    assert tokenizer.encode("low") == bpe.Tokenizer.load(tmp_path / "model").encode("low")


@compiled
def test_the_cache_can_be_read_without_the_file_of_a_kind(fewest, monkeypatch):
    numba_type = fewest.FewestTables.numba_type([("trie", numba.int64[:])])
    pickled = pickle.dumps(numba_type)
    assert pickle.loads(pickled) == numba_type
    monkeypatch.delattr(fewest, type(numba_type).__name__)
    assert pickle.loads(pickled) != numba_type


SUMS = """
import sys
import numpy as np
from bpe_numba import kernel, struct

@struct
class Box:
    array: np.ndarray

@kernel
def total(box):
    return box.array.sum() + 0

boxes = {"int": Box(np.arange(9)), "float": Box(np.arange(9) / 2)}
print([total(boxes[name]) for name in sys.argv[1:]])
"""


@compiled
def test_cached_kernels_serve_a_file_until_its_text_changes(tmp_path):
    file = tmp_path / "sums.py"

    def run_file(text, seconds, *names):
        file.write_text(text)
        os.utime(file, (seconds, seconds))
        done = python("-c", "import sums", *names, cwd=tmp_path, NUMBA_CACHE_DIR=tmp_path / "cache")
        return done.stdout.decode().strip()

    assert run_file(SUMS, 1, "int", "float") == "[36, 18.0]"
    assert run_file(SUMS, 2, "int") == "[36]"
    assert run_file(SUMS, 2, "float") == "[18.0]"
    assert run_file(SUMS.replace("+ 0", "+ 1"), 2, "float", "int") == "[19.0, 37]"


# ─── Running ──────────────────────────────────────────────────────────────────────────────────────


class OneByOne(concurrent.futures.Executor):
    """An executor that does not say how many workers it has, and keeps the results."""

    def __init__(self):
        self.results = []

    def submit(self, function, /, *arguments):
        future = concurrent.futures.Future()
        self.results.append(function(*arguments))
        future.set_result(pickle.loads(pickle.dumps(self.results[-1])))
        return future


def test_a_dask_cluster_of_two_processes_trains(library, tmp_path):
    distributed = pytest.importorskip("distributed")
    expected = bpe.train(library[:20], 300).tokenizer.merges
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        training = bpe.train(library[:20], 300, executor=client.get_executor())
        halves = [library[:10], library[10:20]]
        words = [tmp_path / "a.npz", tmp_path / "b.npz"]
        client.gather(client.map(bpe.count_files, halves, words, workers=1))
    assert training.tokenizer.merges == bpe.train(words, 300).tokenizer.merges == expected


def test_results_come_in_order_by_an_executor_and_by_no_more_workers_than_work(library):
    pool = OneByOne()
    before = threading.active_count()
    for engine in (bpe.Engine(workers=1), bpe.Engine(workers=3), bpe.Engine(executor=pool)):
        assert list(engine.map(abs, range(-50, 0), threads=True)) == [*range(50, 0, -1)]
        assert list(engine.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
        assert list(engine.map(abs, [])) == []
    engine = bpe.Engine(workers=1000)
    counts = engine.map(lambda _: threading.active_count() - before, range(3), threads=True)
    assert max(counts) <= 3
    pool.results.clear()
    training = bpe.train(library[:5], 300, executor=pool)
    assert pool.results
    assert training.tokenizer.merges == bpe.train(library[:5], 300).tokenizer.merges


def test_files_are_encoded_by_the_executor_that_is_given(library, tmp_path):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    pool = OneByOne()
    bpe.encode_files(tokenizer, library[:5], tmp_path / "a.npy", executor=pool)
    assert pool.results
    bpe.encode_files(tokenizer, library[:5], tmp_path / "b.npy", workers=1)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_a_call_gets_its_parameters_and_no_other_option():
    def call(*arguments, workers=1, out="a"):
        return arguments, workers, out

    assert bpe.call_with(call, 5, workers=2, wrokers=3) == ((5,), 2, "a")
    with pytest.raises(TypeError, match="inputs"):
        bpe.call_with(bpe.find_files, input="a.txt")


def _die(item):
    os._exit(1)


def _die_while_sending(item):
    """Die with half a result in the pipe; a pool would wait for the other half for ever."""
    caller = sys._getframe()
    while "result_queue" not in caller.f_locals:
        caller = caller.f_back
    os.write(caller.f_locals["result_queue"]._writer.fileno(), b"\x00\x00\x10\x00half")
    os._exit(1)


@pytest.mark.parametrize("die", [_die, _die_while_sending])
def test_a_worker_that_dies_is_an_error(die):
    with within(20), refusal("worker process died"):
        list(bpe.Engine(workers=2).map(die, range(4)))


def _engine_works(queue):
    with refusal("no workers can be started"):
        list(bpe.Engine(workers=2).map(abs, [-1, -2]))
    queue.put(list(bpe.Engine(workers=2).map(abs, [-1, -2], threads=True)))


def test_a_daemonic_process_has_threads_only():
    queue = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=_engine_works, args=(queue,), daemon=True)
    process.start()
    assert queue.get() == [1, 2]
    process.join()


LIMITS = [(threading.Thread, "start", RuntimeError("can't start new thread"))]
LIMITS += [(os, "fork", OSError(11, "Resource temporarily unavailable"))]


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("after", range(6))
def test_a_limit_on_threads_or_processes_is_an_error(monkeypatch, process, after):
    owner, name, error = LIMITS[process]
    start = getattr(owner, name)
    started = itertools.count()

    def limited(*arguments):
        if next(started) < after // (1 + process):
            return start(*arguments)
        raise error

    monkeypatch.setattr(owner, name, limited)
    engine = bpe.Engine(workers=6)
    with within(20), refusal("no workers can be started"):
        list(engine.map(abs, range(9), threads=not process and after % 2))
    for child in multiprocessing.active_children():
        child.join(5)
    assert not multiprocessing.active_children()


def test_a_cache_that_cannot_be_written_gives_a_note(monkeypatch, capsys):
    def njit(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return abs

    monkeypatch.setattr(numba, "njit", lambda **options: lambda function: njit(**options))
    monkeypatch.setattr(bpe, "UNSAVED", set())
    bpe._compiler(True)(abs)  # it is not of the module, as one that was typed
    assert not bpe.UNSAVED
    bpe._compiler(True)(bpe._begin_workers)
    bpe._give_notice.cache_clear()
    started = SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=bpe._begin_workers)})
    bpe.COMPILATIONS.on_start(started)
    assert capsys.readouterr().err.count("NUMBA_CACHE_DIR") == bpe.COMPILES


@pytest.mark.parametrize("work", ["decode", "encode", "digest", "as_characters", "count"])
def test_an_interrupt_is_an_interrupt(work, tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("some text, and more of it\n" * 1000)
    source = bpe.Source([tmp_path / "a.txt"] * 5, bpe.Pattern("gpt2"))
    words = bpe.Words.from_counts({b"a": 1})
    ids = tokenizer.encode("some text")
    call = {
        "decode": lambda: tokenizer.decode(ids),
        "encode": lambda: tokenizer.encode("some text"),
        "digest": lambda: words.digest,
        "as_characters": words.as_characters,
        "count": lambda: bpe.count(source, bpe.Engine(1)),
    }[work]
    before = signal.getsignal(signal.SIGINT)
    expected = repr(call())  # the first call compiles
    for _ in range(20):
        timer = threading.Timer(random.uniform(0.001, 0.02), signal.raise_signal, [signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while timer.is_alive():
                call()
            time.sleep(0.01)  # its handler runs in this thread, a little later
    assert signal.getsignal(signal.SIGINT) is before and repr(call()) == expected


def test_compilation_is_announced_once(capsys, monkeypatch):
    ours = SimpleNamespace(data={"dispatcher": bpe._add_words})
    theirs = SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=within)})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bpe._give_notice.cache_clear()
    for started in (theirs, ours, ours):
        bpe.COMPILATIONS.on_start(started)
    assert capsys.readouterr().err.count("compiling kernels, once") == 1


SIDE_BY_SIDE = """
import sys
from functools import partial
import bpe_numba as bpe
if "frozen" in sys.argv:
    sys.frozen = True
words = bpe.Words.from_counts({b"a": 1})
jobs = [partial(bpe._in_order, words), partial(bpe.make_trie, {0: b"a"})]
bpe.compile_side_by_side(jobs, bpe.Engine(int(sys.argv[1]), progress=True), 500)
print(*(sum(kernel.stats.cache_hits.values()) for kernel in (bpe._hash_words, bpe._fill_trie)))
"""


@compiled
@pytest.mark.parametrize("arguments, n_loaded", [("2", b"1"), ("1", b"0"), ("2 frozen", b"0")])
def test_processes_compile_side_by_side(tmp_path, arguments, n_loaded):
    script = tmp_path / "script.py"  # without `if __name__ == "__main__":`
    script.write_text(SIDE_BY_SIDE)
    done = python(script, *arguments.split(), NUMBA_CACHE_DIR=tmp_path / "cache")
    assert done.stdout.split() == [b"0", n_loaded], done.stderr
    assert b"compile:   0%" in done.stderr and b"/500 " in done.stderr
    assert re.search(rb"compile: 100%.* ([\d.]+)/\1 ", done.stderr), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_jobs_run_once_if_nothing_is_to_compile(workers):
    done = []
    jobs = [functools.partial(done.append, k) for k in range(5)]
    bpe.compile_side_by_side(jobs, bpe.Engine(workers))
    assert sorted(done) == [*range(5)]


@compiled
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_that_compile_end_together(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, MODULE, "train", "--out", tmp_path / "model"],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert b"compile: " in process.stderr.readline()
    time.sleep(random.uniform(0.1, 2))
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)
    lines = process.stderr.read().split(b"\n")
    assert process.wait() in (130, -signal.SIGKILL)
    assert [b"interrupted" in line for line in lines].count(True) == (number == signal.SIGINT)
    assert b"Traceback" not in b"".join(lines)
    with within(10), pytest.raises(ProcessLookupError):
        while True:  # until no process of the group is alive
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def test_arguments_are_checked_by_their_annotations():
    @bpe.checked
    def call(a: int, b: float | None = None, c: str | os.PathLike = "", d: bool = False):
        return a, b, c, d

    assert call(np.int64(1), 2, Path("a"), d=True) == (1, 2, Path("a"), True)
    assert call(1, None)[1] is None
    wrong = [{"a": 1.0}, {"a": True}, {"a": None}]
    wrong += [{"a": 1, "b": "2"}, {"a": 1, "d": 1}, {"a": 1, "c": 3}]
    for options in wrong:
        with refusal(f"`{[*options][-1]}` must be"):
            call(**options)


def test_files_take_their_names_when_they_are_whole(tmp_path):
    path = tmp_path / "ids.bin"
    # A process of the same number that was killed left this file.
    (tmp_path / f".ids.bin.{os.getpid()}.unfinished").touch()
    for content in (b"old", b"new"):
        with bpe.atomic_write(path) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_files_that_are_not_whole_leave_nothing(tmp_path):
    (tmp_path / "ids.bin").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    for name in ("ids.bin", "new/er/ids.bin", "folder/ids.bin"):
        with pytest.raises(OSError), bpe.atomic_write(tmp_path / name) as file:
            file.write(b"half")
            raise OSError("disk full")
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["folder", "ids.bin"]
    assert (tmp_path / "ids.bin").read_bytes() == b"old"
    with pytest.raises(ValueError, match="is a folder"), bpe.atomic_write(tmp_path):
        pass


def test_files_written_together_take_their_names_together(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(b"old")
    with pytest.raises(OSError), bpe.written_together():
        bpe.atomic_write_all(tmp_path, {"a": "new", "new/c": b"new"})
        with bpe.atomic_write(tmp_path / "b") as file:
            file.write(b"half")
            raise OSError("disk full")
    assert files_in(tmp_path) == {"a": b"old", "b": b"old"}
    targets = []
    replace = os.replace

    def replace_and_note(source, target):
        targets.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_and_note)
    with bpe.written_together():
        bpe.atomic_write_all(tmp_path, {"a": "new", "b": "new"})
        with bpe.atomic_write(tmp_path / "new/c") as file:
            file.write(b"new")
        assert (tmp_path / "a").read_bytes() == b"old" and not targets
    assert targets == ["c", "b", "a"]
    assert not bpe.UNFINISHED
    assert [path.read_bytes() for path in sorted(tmp_path.rglob("?"))] == [b"new"] * 3


def test_threads_that_save_at_once_lose_no_file(tmp_path):
    def save(thread):
        for k in range(100):
            bpe.atomic_write_all(tmp_path / f"{thread}-{k}", dict.fromkeys("abc", str(thread)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a renaming
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(save, range(4)))
    finally:
        sys.setswitchinterval(interval)
    folders = {folder.name: sorted(os.listdir(folder)) for folder in tmp_path.iterdir()}
    assert folders == {f"{t}-{k}": [*"abc"] for t in range(4) for k in range(100)}
    assert not bpe.UNFINISHED


def test_a_signal_finishes_the_renaming_of_every_thread(tmp_path, monkeypatch):
    """Two threads have renamed none of their two files when the handler runs."""
    replace = os.replace
    begun = threading.Barrier(3)
    ended = threading.Event()

    def replace_later(source, target):
        if not ended.is_set() and threading.current_thread() in threads:
            begun.wait(10)
            ended.wait(10)
        with contextlib.suppress(FileNotFoundError):
            replace(source, target)

    monkeypatch.setattr(os, "replace", replace_later)
    threads = [
        threading.Thread(target=bpe.atomic_write_all, args=(tmp_path / name, {"a": "", "b": ""}))
        for name in "xy"
    ]
    for thread in threads:
        thread.start()
    begun.wait(10)
    bpe._end_files()
    ends = [[*files_in(tmp_path / name)] for name in "xy"], [*files_in(tmp_path)]
    ended.set()
    for thread in threads:
        thread.join()
    assert sorted(map(sorted, ends[0])) == [["a", "b"]] * 2 and not ends[1]


def test_a_log_has_lines_in_place_of_bars(capsys):
    with bpe.Engine(progress=True).progress_bar("scan", 10, "B") as bar:
        bar.update(4)
        bar.refresh()
        bar.update(6)
    *lines, end = capsys.readouterr().err.split("\n")
    assert len({*lines}) == len(lines) and not end and "\r" not in "".join(lines)
    assert "40%" in lines[1] and "100%" in lines[-1]


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────

# Regular expressions that are compiled: simple ones, and some whose end depends on what follows.
basic = [r"[a-z]+", r"\w+", "(a)|(b)", "(?:abc)", "a+b|a", "aa|a{3,5}b", "x{2,}y|x"]
basic += [r"(?i:it|is)|\p{L}{2,3}|\d+(?!\d)"]
ending = [r"a(?=b)|b+?c|.", r"\S+?(?=\s)|\s+", r" ?\p{L}+\s+$|\p{L}", r"\s++$|\s|\S+"]
ending += [r"[^\W\d]+|\p{Han}"]
# These tell controls, surrogates and bytes that are not UTF-8 from other text.
hostile = [r"\p{Cc}+|[^\p{Cc}]+", r"\p{C}+|\P{C}{1,3}", r"[\x00-\x1f]+|\p{Cs}"]
hostile += [r"[\udc80-\udcff]+", r"<\w+>"]
CUSTOM_PATTERNS = [*basic, *ending, *hostile, r"(?i:s|[ab]{2}(?=a))"]


@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, *CUSTOM_PATTERNS])
@example(b"a\xffb")
@example(b"aBB\xe4aaa")
@example(b"<a<>\xe4<a>")
@example(b"a \n")
@example(b"pA a\xff\xfe\x80")
@given(data=pattern_texts.map(str.encode) | hostile_bytes)
def test_pretokens_are_those_of_regex(pattern, data):
    compiled = bpe.Pattern(pattern)
    assert compiled.is_compiled
    assert compiled.split(data) == naive_split(bpe.PATTERNS.get(pattern, pattern), data)


# Random regular expressions of all parts that are compiled, and bytes that matter to them.
simple = ["a", "b", "[ab]", "[^a]", r"\s", r"\S", r"\w", r"\W", r"\p{L}", ".", r"\d", "é", "(?i:A)"]
invisible = [r"\p{C}", r"\P{C}", r"[\x00-\x1f]", r"\p{Cs}", r"[^\p{Cc}]", r"[\udc80-\udcff]"]
atoms = st.sampled_from(simple + invisible)
quantifiers = st.sampled_from(
    ["", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "??", "+?", "*?", "++", "?+", "*+"]
)
lookaheads = st.sampled_from(["", "", "", "(?!a)", r"(?=\s)", r"(?!\S)", r"(?=\p{C})", "$", r"\Z"])
regexes = st.recursive(
    st.tuples(atoms, quantifiers).map("".join),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.tuples(inner, st.sampled_from(["?", "+", "{2}", "*?"])).map(
            lambda part: f"(?:{part[0]}){part[1]}"
        )
        | st.tuples(inner, lookaheads).map("".join)
    ),
    max_leaves=6,
).map("(?:{})".format)
random_bytes = st.text("aAb é1 \n\x00\x1f\u200b", max_size=20).map(str.encode) | st.lists(
    st.sampled_from([*invalid, b"A", b"\x00", b"\x02", b"\xc3\xa9"]), max_size=20
).map(b"".join)


# Splits that become one machine with the next one. Some take whole runs; two characters decide
# about the others.
RUNS = [r"\d{1,3}", "[ab]{1,2}", "[Aé]+", bpe.Split(r"\s", "removed")]
RUNS += [bpe.Split(r"\w+", "removed", invert=True), bpe.Split(" ", "merged_with_previous")]
RUNS += [bpe.Split("a", "merged_with_next"), "b[^b]*", bpe.Split(r"[^\W\d]", "contiguous")]


@examples(60)
@given(
    earlier=st.lists(st.sampled_from(RUNS), max_size=2),
    pattern=regexes,
    inputs=st.lists(random_bytes, min_size=3, max_size=20),
    seed=st.integers(0, 9),
)
@example([], r"\s?\p{L}+", [b"a, b (c1 \xff d,  e"], 0)
@example([], r"(?:(?:(?:a?(?=\s)|[^a]))+)", [b"", b"1", b" "], 0)
@example([bpe.Split("a[^a]*", "removed")], "b", [b"xab"], 0)
@example([r"\d{1,3}", "[a-z]+"], r" ?\S+|\s+(?!\S)|\s", [b"12345a\xffb-c1 ", b" " * 40], 0)
def test_random_patterns_are_exact_or_left_to_regex(earlier, pattern, inputs, seed):
    """In one lane and, for the last of the inputs, in all."""
    steps = [*earlier, pattern]
    try:
        compiled = bpe.Pattern(steps)
    except bpe.InputError:  # it matches nothing, or the empty string
        matches = [regex.search(pattern, as_text(data)) for data in inputs]
        assert regex.fullmatch(pattern, "") or not any(matches)
        return
    # The time of some patterns grows with the square of this size.
    inputs.append(b"".join(random.Random(seed).choices(inputs, k=9000))[: LONG // 16])
    for data in inputs:
        try:
            expected = naive_split(steps, data)
        except TimeoutError:
            return
        assert compiled.split(data) == expected


def test_where_regex_itself_is_wrong():
    """Wrongly, `regex` joins negated characters to one set, and finds nothing in "aa"."""
    for pattern in (r"(?:s)|[^\n]|[^a]", r"(?i:s)|[^\n]|[^a]"):
        assert re.findall(pattern, "aa") == ["a", "a"]
        assert bpe.Pattern(pattern).split(b"aa") == [b"a", b"a"]


@pytest.mark.parametrize(
    "pattern, why",
    [
        (r"(?<=a)b", r"'\(\?<'"),
        (r"(a)\1", r"'\\\\1'"),
        (r"\bword", r"'\\\\bw'"),
        (r"(?:ab)++a|b", "possessive"),
        (r"(?=ab)a", "lookahead"),
        (r"^a", r"'\^a'"),
        (r"a$", r"'\$'"),
        (r"(?:a?)+b", "empty"),
        (r"\s+?$|[\s\S]", r"'\$\|"),
        (r"\s+$*|[\s\S]", r"'\$\*"),
        (r"\pA|.", "pA"),
        (r"[ab]*a[ab]{14}", "20,00. states"),
        (r"(?:[ab]{1,50}c?){1,50}d", "3,000,000 steps"),
        ("|".join(map(chr, range(0x4E00, 0x4E00 + 61))), "60"),
    ],
)
def test_patterns_that_are_not_compiled_say_why_and_work(pattern, why):
    compiled = bpe.Pattern(pattern)
    assert not compiled.is_compiled and regex.search(why, compiled.warning)
    for data in (b"a \n", "ab aa word b中一\x00 pA".encode() + b"\xff"):
        assert compiled.split(data) == naive_split(pattern, data)


@pytest.mark.parametrize(
    "normalizes, pattern", [(False, "(a+)+$"), (True, "(a|aa)+$"), (True, "(a|aa)+(?<=b)$")]
)
def test_patterns_that_take_for_ever_are_stopped(normalizes, pattern, monkeypatch):
    use = bpe.Pattern(pattern).split
    if normalizes:
        use = bpe.Normalizer([replace(pattern, "", "Regex")]).normalize
    assert use(b"aab") and use(b"a" * 30 + b"b\xff")
    monkeypatch.setattr(bpe, "REGEX_SECONDS", 0.01)
    message = r"pattern '\(.*\$' takes more than 0 s for the 2,021 characters .* 'aaaa"
    with refusal(message):
        use(b"a" * 2000 + b"b" + "é".encode() * 20)


def test_sets_that_take_long_to_look_up_are_left_to_regex(monkeypatch):
    monkeypatch.setattr(bpe, "REGEX_SECONDS", 0.01)
    pattern = bpe.Pattern("[" + "".join(map(chr, range(0x4E00, 0x4E00 + 20_000, 2))) + "]|z+")
    assert "takes long to look up" in pattern.warning
    assert pattern.split("zz丂丂a".encode())[-1] == b"a"


def test_compiled_patterns_are_kept_on_the_disk(tmp_path, monkeypatch):
    def compiled_anew():
        """Compile by a second copy of the module, which does not share the memory of the first."""
        spec = importlib.util.spec_from_file_location("bpe_numba_again", bpe.__file__)
        again = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, again)
        spec.loader.exec_module(again)
        return again.Pattern("none").is_compiled

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiled_anew()
    (path,) = tmp_path.iterdir()
    number = path.stat().st_ino
    content = path.read_bytes()
    assert compiled_anew() and path.stat().st_ino == number
    for damage in (content[:5000], b"no table"):
        path.write_bytes(damage)
        assert compiled_anew() and len(path.read_bytes()) > 5000
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    assert compiled_anew()


def test_patterns_know_what_they_leave_out_and_which_are_one_machine():
    regexes = [name for name, pattern in bpe.PATTERNS.items() if isinstance(pattern, str)]
    assert all(bpe.Pattern(name).matches_everything for name in [*regexes, r"\s+|\S", r"[\s\S]"])
    others = ["bert", "whitespace", bpe.Split(r"[\s\S]", "removed"), (r"[\s\S]", bpe.Metaspace())]
    partial = [r"\w+", ".", r"[^\x00]", r"a+b|[^a]", (r"\w+", r"\d")]
    assert not any(bpe.Pattern(pattern).matches_everything for pattern in others + partial)
    deepseek = (r"\p{N}{1,3}", "[一-龥ァ-ー]+", r"[^\r\n\p{L}\p{P}]?\p{L}+| ?\p{P}+|\s+(?!\S)|\s+")
    joined = [("bert", r"\p{N}"), (r"\d", bpe.Split("a", "removed")), (r"\d", r"a\d|\d")]
    for steps in [*joined, *((run, "ab+") for run in RUNS[2:]), ("bert", "gpt2"), deepseek]:
        assert bpe.Pattern(steps).is_one_machine
    # a last step that cuts what the first has left whole
    for steps in (("gpt2", r"\d"), (r"\d{1,3}", r"a\d|\d"), [*RUNS[:2], "a|b"], metaspace()):
        assert bpe.Pattern(steps).is_compiled and not bpe.Pattern(steps).is_one_machine


def test_patterns_have_names_and_sources():
    gpt2 = bpe.Pattern("gpt2")
    chained = bpe.Pattern(["gpt2", r"\p{N}"])
    bert = bpe.Pattern("bert")
    assert repr(bert) == "Pattern('bert')" and bpe.Pattern(list(bert.source)).name == "bert"
    assert bpe.Pattern(bpe.Split(r"\d")).source == r"\d"
    assert bpe.Pattern(bpe.Split("the")).source == bpe.Split("the")
    assert bpe.Pattern([bpe.Metaspace(), "bert"]).source == (bpe.Metaspace(), *bert.source)
    assert gpt2.name == "gpt2" and repr(gpt2) == "Pattern('gpt2')"
    assert gpt2.source == bpe.PATTERNS["gpt2"]
    assert bpe.Pattern(gpt2.source).name == "gpt2"
    assert chained.name is None and chained.source == (gpt2.source, r"\p{N}")
    for pattern in (gpt2, chained, bert, bpe.Pattern(metaspace())):
        assert pickle.loads(pickle.dumps(pattern)).source == pattern.source


# Pre-tokenizers of Hugging Face that look for single characters, and the same as our steps. Each is
# one machine.
CHARACTER_SPLITS = [
    (P.BertPreTokenizer(), "bert"),
    (P.Whitespace(), "whitespace"),
    (P.WhitespaceSplit(), "whitespace-split"),
    (P.Digits(individual_digits=True), r"\p{N}"),
    (P.Digits(individual_digits=False), bpe.Split(r"\p{N}", "contiguous")),
    (P.CharDelimiterSplit("."), bpe.Split(r"\.", "removed")),
    *((P.Punctuation(how), bpe.Split(bpe.PUNCTUATION, how)) for how in bpe.BEHAVIORS),
]
# For some behaviors these need more than a machine: two characters do not decide, or `regex` looks.
SPLIT_REGEXES = ["a", "[ab]+", "ab|b", r"\s+(?!\S)|\s", r"[a-z]\d*", "(?=b)", "(?<=a)b|(?=1)"]
SPLIT_REGEXES += ["b*?c", r"\p{N}{1,3}", r"[一-龥]+|[a-e]+", r"[^\r\n]+"]
ANY_SPLITS = [
    (Split(tokenizers.Regex(r), how, invert), bpe.Split(r, how, invert))
    for r, how, invert in itertools.product(SPLIT_REGEXES, bpe.BEHAVIORS, [False, True])
    if how == "isolated" or r in ("a", "[ab]+")
]
METASPACES = [
    (P.Metaspace(*options), metaspace(*options))
    for options in itertools.product("▁_", bpe.PREPEND_SCHEMES, [False, True])
]
UNSPLIT = P.Metaspace("_", "first", False), bpe.Metaspace("_", "first")
# Newer characters are left out: Rust has another version of Unicode.
assigned = st.characters(exclude_categories=["Cs", "Cn"])
split_texts = st.text(assigned | st.sampled_from("ab1c -.,\n\t▁_é中"), max_size=40) | st.text(
    "ab1c ", max_size=40
)


def hf_split(pre_tokenizer, text):
    return [word.encode() for word, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre_tokenizer, steps", CHARACTER_SPLITS)
@given(text=split_texts)
@example("A".join(KNOWN_CHARACTERS))
@example(" A".join(KNOWN_CHARACTERS))
def test_splits_at_characters_are_one_machine_as_exact_as_hugging_face(pre_tokenizer, steps, text):
    pattern = bpe.Pattern(steps)
    assert pattern.is_one_machine and pattern.split(text.encode()) == hf_split(pre_tokenizer, text)


@examples(12)  # of 5 texts or more
@pytest.mark.parametrize("pre_tokenizer, split", ANY_SPLITS)
@given(texts=st.lists(split_texts, min_size=5, max_size=10), data=hostile_bytes)
def test_every_behavior_is_that_of_hugging_face(pre_tokenizer, split, texts, data):
    pattern = bpe.Pattern(split)
    for text in texts:
        assert pattern.split(text.encode()) == hf_split(pre_tokenizer, text)
    if "?=" not in split.regex:
        assert pattern.split(data) == naive_split(split, data)


@examples(20)  # most compile a machine of their own
@given(
    before=st.lists(st.sampled_from([*CHARACTER_SPLITS * 3, *ANY_SPLITS]), max_size=3),
    metaspace=st.lists(st.sampled_from(METASPACES), max_size=1),
    behind=st.lists(st.sampled_from([*CHARACTER_SPLITS * 3, *ANY_SPLITS]), max_size=2),
    last=st.sampled_from([[], ["gpt2"], ["llama3"]]),
    text=split_texts,
    data=hostile_bytes,
)
@example([CHARACTER_SPLITS[2]], [METASPACES[5]], [], [], " one  two ▁three", b"")
@example([CHARACTER_SPLITS[0]], [METASPACES[3]], [], [], "one, two", b"")
@example(CHARACTER_SPLITS[:1], [UNSPLIT], [], [], " 0", b"")
def test_chains_are_those_of_hugging_face(before, metaspace, behind, last, text, data):
    parts = before + metaspace + behind or CHARACTER_SPLITS[:1]
    ends = [Split(Regex(bpe.PATTERNS[name]), "isolated") for name in last]
    pre_tokenizer = P.Sequence([pre_tokenizer for pre_tokenizer, _ in parts] + ends)
    steps = []
    for _, part in parts:
        steps += part if type(part) is tuple else [part]
    steps += last
    pattern = bpe.Pattern(steps)
    assert pattern.split(text.encode()) == hf_split(pre_tokenizer, text)
    assert pattern.split(text.encode() + data) == naive_split(pattern.source, text.encode() + data)
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], pattern=steps)
    assert bytes(tokenizer.encode(text)) == b"".join(hf_split(pre_tokenizer, text))


def test_metaspace_knows_where_a_text_begins():
    parts = ["a", "  b", "▁c", "d", "e "]
    meanings = [7, bpe.INSIDE, bpe.INSIDE, bpe.BEGINS, bpe.BEGINS]
    schemes = {"always": "▁a|▁▁b|▁c|▁d|▁e▁", "first": "▁a|▁▁b|▁c|d|▁e▁", "never": "a|▁▁b|▁c|d|e▁"}
    for scheme, expected in schemes.items():
        for begins, words in ((bpe.BEGINS, expected), (bpe.CONTINUES, expected.removeprefix("▁"))):
            flat = bpe.FlatText.join([*map(str.encode, parts)], meanings)
            spaced = bpe.Metaspace("▁", scheme).apply(None, flat, begins)
            assert b"|".join(spaced.parts()).decode() == words
            assert spaced.meanings.tolist() == meanings
    assert bpe.Pattern(bpe.Metaspace("▁")).split(b" " * 99 + b"x") == [("▁" * 99 + "x").encode()]


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
@given(text=texts)
def test_patterns_are_those_of_tiktoken(name, text):
    expected = naive_split(tiktoken_patterns()[name], text.encode())
    assert bpe.Pattern(name).split(text.encode()) == expected


@functools.cache
def tiktoken_patterns():
    """The patterns in the source of tiktoken."""
    from tiktoken_ext import openai_public

    source = Path(openai_public.__file__).read_text()
    line = next(line for line in source.splitlines() if "[\\r\\n]*+|\\s++$" in line)
    o200k = source.split("def o200k_base")[1].split("]\n    )")[0].split('"""')[1::2]
    return {"cl100k": line.split('"""')[1], "o200k": "|".join(o200k)}


@pytest.mark.parametrize("behavior", ["contiguous", "merged_with_previous"])
def test_a_run_behind_a_lookahead_is_refused(behavior):
    with refusal("is not supported"):
        bpe.Pattern(bpe.Split("(?!x)[a-z]+", behavior))
    assert bpe.Pattern(bpe.Split("(?!x)[a-z]", "contiguous")).split(b"axbc") == [b"a", b"x", b"bc"]


def test_more_single_characters_than_sets_are_several_machines():
    characters = [chr(0x4E00 + k) for k in range(bpe.MAX_SETS + 1)]
    text = "".join(characters).encode()
    assert bpe.Pattern(characters).split(text) == [char.encode() for char in characters]


# ─── Scanning ─────────────────────────────────────────────────────────────────────────────────────


# Patterns that drop text, and those that replace spaces.
DROPPING = ["bert", "whitespace", ("whitespace-split", metaspace())]
DROPPING += [(bpe.Split("[ab]+", "removed"), "gpt2")]
SPACED = [metaspace("_", "first"), (bpe.Metaspace(" "), "gpt2")]
SPACED += [("gpt2", bpe.Metaspace("_", "never")), (bpe.Split(r"\s", "contiguous"), "gpt2")]


@pytest.mark.parametrize(
    "steps", [*bpe.PATTERNS, *CUSTOM_PATTERNS, *DROPPING[2:], *SPACED], ids=str
)
def test_long_texts_are_scanned_by_all_lanes(steps):
    pattern = bpe.Pattern(steps)
    source = random.Random(3)
    many_letters = "ab c'sl \n\r\t 12中é\u3000\u0301ſK/.!<>\x00▁_"
    for letters in (many_letters, "the cat   sat\n        ", "x1\n"):
        data = "".join(source.choices(letters, k=LONG // 6)).encode() + source.randbytes(9)
        data += data.replace(b"a", b"\xe4")
        assert pattern.split(data) == naive_split(pattern.source, data)


@pytest.mark.parametrize("mean", [2, 60, 700, 9000])
def test_documents_of_any_size_are_scanned_side_by_side(mean):
    source = random.Random(mean)
    end = b"<|end|>"
    vocab = BYTE_VOCAB | {256: b" t", 257: b"  ", 258: end}
    tokenizer = bpe.Tokenizer(vocab, [(b" ", b"t"), (b" ", b" ")], {"<|end|>": 258}, "cl100k")
    parts = [b"the cat ", b"a", b" \n", "12中é ".encode(), b"\xff"]
    mixtures = [[3, 1, 1, 0, 0], [1, 0, 0, 0, 0], [9, 1, 1, 3, 0.03]]
    documents = []
    while sum(map(len, documents)) < max(LONG, 5 * mean):
        document = source.choices(parts, source.choice(mixtures), k=mean)
        documents.append(b"".join(document[: source.randrange(2 * mean)]))
    each = [tokenizer.encode(document) for document in documents]
    assert tokenizer.encode_batch(documents, threads=1) == each
    text = end.join(documents)
    assert [*tokenizer.encode(text), 258] == [id for ids in each for id in [*ids, 258]]
    counter = bpe.WordCounter()
    counter.add_texts([text], bpe.Pretokenizer(tokenizer.pattern, {"<|end|>": 0}))
    expected = naive_count(text, bpe.PATTERNS["cl100k"], ["<|end|>"])[0]
    assert counter.words().to_counts() == expected


def test_the_ends_of_words_follow_the_start_of_the_first():
    """So that words lie between numbers of one array."""
    others = [bpe.POSITION, bpe.ENTRY, bpe.AHEAD, bpe.LAST, bpe.N_ENDS]
    assert bpe.FIRST + 1 == bpe.ENDS == max(others) + 2


@given(parts=st.lists(hostile_bytes, max_size=9))
def test_flat_texts_hold_their_texts(parts):
    flat = bpe.FlatText.join(parts, range(len(parts)))
    assert flat.parts() == parts and flat.meanings.tolist() == [*range(len(parts))]
    assert np.count_nonzero(flat.scanned[: -bpe.PADDING] == bpe.END) == len(parts)


def test_a_byte_that_looks_like_an_end_is_a_word():
    texts = [b"\xfe", b"", b"\xfe\xfea", b"\xff\xfe"]
    counter = bpe.WordCounter()
    other = bpe.WordCounter()
    counter.add_texts(texts, bpe.Pretokenizer(bpe.Pattern(r"[\s\S]")))
    other.add_words(counter.words())
    for words in (counter.words(), other.words()):
        assert words.to_counts() == {b"\xfe": 4, b"a": 1, b"\xff": 1}
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], pattern=r"[\s\S]")
    for _ in range(2):  # the second time from the cache
        assert tokenizer.encode_batch(texts) == [*map(list, texts)]


@given(data=hostile_bytes)
@example(b"\xc1\x81\xf4\x90\x80\x80")  # too long for their characters, and above U+10FFFF
def test_bytes_that_are_not_utf8_are_characters_as_python_finds_them(data):
    assert bpe.Pattern(r"[\s\S]").split(data) == [*map(as_bytes, as_text(data))]


@pytest.fixture(scope="session")
def border_characters():
    """The characters at the borders of each class in the named patterns, on both sides."""
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


def test_a_character_that_is_cut_off_is_an_invalid_byte():
    text = bpe._with_padding("中".encode())
    assert bpe._decode_character(text, 0, 3) == ord("中") << 3 | 3
    assert bpe._decode_character(text, 0, 2) == bpe.SURROGATE_ESCAPE << 3 | 1


def test_bytes_are_compared_to_the_last():
    text = bytes(range(1, 24))
    for size in range(1, 20):
        array = bpe._with_padding(text)
        assert bpe._equal(array, 2, bpe._with_padding(text[2:]), 0, size)
        for k in range(size):
            other = bytearray(text[2 : 2 + size])
            other[k] ^= 1
            assert not bpe._equal(array, 2, bpe._with_padding(bytes(other)), 0, size)


# ─── Normalizing ──────────────────────────────────────────────────────────────────────────────────

# Characters of Unicode 3.2, which all tables know. Among the odd ones are marks of every kind,
# parts of grapheme clusters, white space, characters that grow, and those of longer keys.
OLD_CHARACTERS = [c for c in FILLED_PLANES if unicodedata.ucd_3_2_0.category(c) != "Cn"]
ODD = (
    "\n\r\t  "
    "\x00\x01\x85\xa0\xad´`'aAeEiİſßΣά\u0301\u0308\u0327\u0345\u302e\u1734\u0600\u200d\ufe0f©\u1100\u1161\u11a8"
)
ODD += "가각क\u094d\u093cか\u3099\uff9e▁\ufdfa\ufeff\ufffd\u212b　中א"
ODD += "\u05b0\u1e9b\u0323\ue000\U0002000b🇩🙂"
odd_texts = st.text(
    st.sampled_from(ODD) | st.sampled_from(OLD_CHARACTERS) | st.characters(max_codepoint=0x17F),
    max_size=30,
)
odd_texts |= st.text("aá \u0301é\r\n`▁", max_size=30)
odd_texts |= st.text(
    st.sampled_from("aÀé \n\x00中İΣ\u0301\u0327\u302e\u1b44ẞ가𝐀\ufffd"), max_size=40
)


def normalizing_model(rule):
    """A SentencePiece model with these rules of normalization."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "jumps over lazy dogs"]),
        model_writer=out, vocab_size=40,
        hard_vocab_limit=False, minloglevel=3, normalization_rule_name=rule,
    )  # fmt: skip
    return sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())


@functools.lru_cache
def charsmap(rule):
    return base64.b64encode(normalizing_model(rule).normalizer_spec.precompiled_charsmap).decode()


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def strip(left, right):
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def bert(clean=True, chinese=True, accents=None, lowercase=True):
    fields = {"clean_text": clean, "handle_chinese_chars": chinese}
    return {"type": "BertNormalizer", **fields, "strip_accents": accents, "lowercase": lowercase}


def types(*names):
    return [{"type": name} for name in names]


PREPEND = {"type": "Prepend", "prepend": "▁"}
SIMPLE = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"]
BERT_FLAGS = itertools.product([True, False], repeat=4)
NORMALIZERS = {
    **{name: types(name) for name in SIMPLE},
    **{f"BERT {n}": [bert(*flags)] for n, flags in enumerate(BERT_FLAGS)},
    "BERT": [bert()],
    "strip": [strip(True, True)],
    "strip the left": [strip(True, False)],
    "strip the right": [strip(False, True)],
    "a character": [replace(" ", "▁")],
    "several": [replace("``", '"'), replace("a\u0301", "")],
    "a regex": [replace(r" {2,}|[`-b]", "▁", "Regex")],
    "spaces": [replace(" {2,}", "▁", "Regex")],
    "sets": [
        *(replace("[\"'`´]", "{}'", "Regex"), replace(r"[\t\u00a0-\u00ad]", "", "Regex")),
        *(replace(r"(?=\w)[σk-m]", "<e>", "Regex"), *types("NFC"), replace("[中\r]", " ", "Regex")),
    ],
    "all but a set": [replace(r"[^\x00-\x7f]", "\u0301", "Regex")],
    "Llama": [PREPEND, replace(" ", "▁")],
    "ALBERT": [replace("``", '"'), replace("''", '"'), *types("NFKD", "StripAccents", "Lowercase")],
    "lower first": types("Lowercase", "NFD", "StripAccents"),
    "accents last": types("NFD", "Lowercase", "StripAccents"),
    "Nmt before": [*types("Nmt", "NFD"), bert()],
    "not one map": [
        *(*types("NFKD"), replace("a", "bb")),
        *(*types("StripAccents"), replace("bb", "c"), PREPEND),
    ],
    # The neighbours of a removed character come together.
    "clean before": [bert(True, False, False, False), *types("NFC")],
    "empty before": [*types("StripAccents"), PREPEND],
}
PRECOMPILED = {
    "precompiled": lambda: [{"type": "Precompiled", "precompiled_charsmap": charsmap("nmt_nfkc")}],
    "folded": lambda: [{"type": "Precompiled", "precompiled_charsmap": charsmap("nfkc_cf")}],
    "XLM-R": lambda: [
        {"type": "Precompiled", "precompiled_charsmap": charsmap("nfkc")},
        strip(False, True),
        replace(" {2,}", "▁", "Regex"),
        *types("Lowercase"),
    ],
}


@functools.lru_cache
def normalizers(name):
    """The normalizer of these steps here, and in `tokenizers` or, after "sp ", in sentencepiece."""
    if name.startswith("sp "):
        return sentencepiece_normalizers(name[3:])
    steps = NORMALIZERS[name] if name in NORMALIZERS else PRECOMPILED[name]()
    data = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    data["normalizer"] = {"type": "Sequence", "normalizers": list(steps)}
    return bpe.Normalizer(steps), tokenizers.Tokenizer.from_str(json.dumps(data)).normalizer


@pytest.mark.parametrize("name", [*NORMALIZERS, *PRECOMPILED])
@given(text=odd_texts)
@example("e\u200b\u0301 x")
def test_normalizers_are_those_of_tokenizers(name, text):
    ours, theirs = normalizers(name)
    assert ours.normalize(text.encode()).decode() == theirs.normalize_str(text)


@pytest.mark.parametrize(
    "name", ["NFC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BERT", "ALBERT", "precompiled"]
)
def test_each_character_is_normalized_as_in_tokenizers(name):
    ours, theirs = normalizers(name)
    parts = [char.encode() for char in OLD_CHARACTERS]
    flat = bpe.FlatText.join(parts, [bpe.INSIDE] * len(parts))
    normalized = [part.decode() for part in ours.apply(flat, bpe.BEGINS).parts()]
    assert normalized == [theirs.normalize_str(char) for char in OLD_CHARACTERS]


@pytest.mark.parametrize("name", ["NFC", "BERT", "ALBERT", "Llama", "precompiled", "XLM-R"])
def test_long_texts_are_normalized_as_in_tokenizers(name, some_texts):
    ours, theirs = normalizers(name)
    long_texts = ["\ufdfa" * 9000, "é\r\n" * 5000, "e\u0301\u0327 " * 5000, "a" * 64 + "\u0301"]
    for text in some_texts[:10] + long_texts:
        assert ours.normalize(text.encode()).decode() == theirs.normalize_str(text)


NOT_INVALID_BYTES = ["NFC", "Lowercase", "BERT", "ALBERT", "precompiled", "Nmt", "all but a set"]


@pytest.mark.parametrize("name", NOT_INVALID_BYTES)
@given(data=hostile_bytes)
def test_bytes_that_are_not_utf8_stay_as_they_are(name, data):
    ours, theirs = normalizers(name)
    parts = regex.split(r"([\udc80-\udcff]+)", as_text(data))
    parts[::2] = map(theirs.normalize_str, parts[::2])
    assert ours.normalize(data) == as_bytes("".join(parts))


def test_texts_are_normalized_on_their_own_and_special_tokens_not_at_all():
    normalizer = bpe.Normalizer([strip(True, True), *types("NFC", "Lowercase"), PREPEND])
    parts = ["AE", "\u0301B C ", "", "D\n"]
    meanings = [7, 8, bpe.BEGINS, bpe.BEGINS]
    for begins, first in ((bpe.BEGINS, "▁ae"), (bpe.CONTINUES, "ae")):
        flat = bpe.FlatText.join([*map(str.encode, parts)], meanings)
        normalized = normalizer.apply(flat, begins)
        assert [part.decode() for part in normalized.parts()] == [first, "▁\u0301b c", "", "▁d"]
        assert normalized.meanings.tolist() == meanings


@functools.lru_cache
def sentencepiece_normalizers(rule, prefix=True, squeezes=True, escapes=True):
    """The normalizer of a SentencePiece model, as steps of Hugging Face and in its own package."""
    model = normalizing_model(rule)
    spec = model.normalizer_spec
    spec.add_dummy_prefix = prefix
    spec.remove_extra_whitespaces = squeezes
    spec.escape_whitespaces = escapes
    data = model.SerializeToString()
    steps = bpe.read_sentencepiece(data).normalizer
    return bpe.Normalizer(steps), sentencepiece.SentencePieceProcessor(model_proto=data)


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@given(
    text=odd_texts | st.text("abcxeéﬁ２中 .▁\x01¨\u1112\u1161\u11ab", max_size=30),
    flags=st.sampled_from([*itertools.product([True, False], repeat=3)]),
)
@example(text="\u1112\u1161\u11ab\u1100\u116e\u11a8", flags=(True, True, True))
@example(text="▁▁\u0301", flags=(True, True, True))
@example(text=" ▁a ▁ ", flags=(True, True, True))
@example(text="\x01", flags=(True, False, True))
def test_text_is_normalized_as_by_sentencepiece(rule, text, flags):
    if rule == "nmt_nfkc":  # each of these models takes half a second to read
        flags = (True, flags[1], True)
    ours, theirs = sentencepiece_normalizers(rule, *flags)
    assert ours.normalize(text.encode()).decode() == theirs.normalize(text)


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@given(st.lists(st.sampled_from([b"\xe2", b"\x96", b"\x81", b"\xfe", b"\x01", b" ", b"a"])))
def test_invalid_bytes_become_u_fffd_as_in_sentencepiece(rule, parts):
    ours, theirs = sentencepiece_normalizers(rule)
    data = b"".join(parts)
    assert ours.normalize(data) == theirs.normalize(data)


CUT = ["NFC", "NFKC", "BERT", "ALBERT", "Llama", "several", "not one map", "precompiled", "strip"]
CUT += ["a regex", "spaces", "sets", "all but a set", "sp identity", "sp nmt_nfkc"]


@pytest.mark.parametrize("name", CUT)
@examples(8)  # each makes new tables of the places where text is cut
@given(
    text=odd_texts | pattern_texts,
    pattern=st.sampled_from(["gpt2", "o200k", r"▁?[^▁]+|▁", r"\w+|\s"]),
)
@example(text="A b", pattern="gpt2")  # one rule makes "b " of " b"
@example(text="x  y", pattern="[^ ]+| ")  # another makes one mark of two spaces
def test_text_is_cut_where_its_normal_form_would_be(name, text, pattern):
    normalizer, _ = normalizers(name)
    pattern = bpe.Pattern(pattern)
    data = text.encode()
    parts = []
    cuts = places_to_cut(data, cut_arrays(name, pattern.source))
    begins = bpe.BEGINS
    for start, stop in pairwise([0, *cuts, len(data)]):
        flat = normalizer.apply(bpe.FlatText.join([data[start:stop]], [bpe.BEGINS]), begins)
        parts += flat.parts()
        begins = bpe.CONTINUES
    words = [word for part in parts for word in pattern.split(part)]
    assert words == pattern.split(normalizer.normalize(data))


def places_to_cut(data, arrays):
    """The places in a text before which it may be cut."""
    text = bpe._with_padding(data)
    ends = range(1, len(data))
    return [k for k in ends if bpe._next_split(text, max(k - 4, 0), k + 1, *arrays) == k]


@functools.lru_cache(None)
def cut_arrays(name, source):
    return normalizers(name)[0].cut_arrays(bpe.Pattern(source))


@pytest.mark.parametrize("name", ["NFC", "BERT", "ALBERT", "Llama", "precompiled", "sets"])
def test_text_can_be_cut_between_words_and_not_before_what_is_composed(name):
    for text in ("the cat", "the été"):
        assert places_to_cut(text.encode(), cut_arrays(name, bpe.PATTERNS["gpt2"])) == [3]
    arrays = cut_arrays("NFC", r"[a-z]+|[^a-z]+")
    assert places_to_cut("1e\u0301".encode(), arrays) == []


def test_normalizers_are_values():
    normalizer = pickle.loads(pickle.dumps(normalizers("ALBERT")[0]))
    assert normalizer and not bpe.Normalizer([]) and list(normalizer.steps) == NORMALIZERS["ALBERT"]
    assert normalizer.normalize("``É''".encode()) == b'"e"'
    assert not bpe.Normalizer([{"type": "Sequence", "normalizers": []}])


@given(place=st.integers(0, 1 << 18), noise=st.binary(max_size=9))
@settings(max_examples=10)
def test_damaged_charsmaps_are_refused_or_read(place, noise):
    def read(data):
        encoded = base64.b64encode(data).decode()
        bpe.Normalizer([{"type": "Precompiled", "precompiled_charsmap": encoded}])

    whole = base64.b64decode(charsmap("nfkc"))
    place %= len(whole)
    with refusal("cut off"):
        read(whole[:place])
    with contextlib.suppress(bpe.InputError):
        read(whole[:place] + noise + whole[place + len(noise) :])


METASPACE = metaspace()
STRIP_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
DECODERS = {
    "WordPiece": [{"type": "WordPiece", "prefix": "##", "cleanup": True}],
    "without cleanup": [{"type": "WordPiece", "prefix": "##", "cleanup": False}],
    "Metaspace": [METASPACE],
    "never": [{**METASPACE, "prepend_scheme": "never"}],
    "Llama": [replace("▁", " "), *types("ByteFallback", "Fuse"), STRIP_SPACE],
    "Gemma": [replace("▁", " "), *types("ByteFallback", "Fuse")],
    "replaced behind": [*types("ByteFallback", "Fuse"), replace("a", "bc")],
    "each stripped": [{"type": "Strip", "content": "a", "start": 2, "stop": 0}, replace("##", "")],
    "the end": [{"type": "Strip", "content": "s", "start": 0, "stop": 1}],
    "no suffix": [{"type": "BPEDecoder", "suffix": "</w>"}],
}
DECODED = ["▁", "▁▁a", "##s", "a", "aaba", "n't", " n't", "do not", ".", "▁.", "<0x41>", "<0x+f>"]
DECODED += ["<0x4>", "<unk>", "中", "'s"]


@pytest.mark.parametrize("name", DECODERS)
@given(ids=st.lists(st.integers(0, len(DECODED) - 1), min_size=1, max_size=8))
def test_decoders_are_those_of_tokenizers(name, ids):
    vocab = {id: token.encode() for id, token in enumerate(DECODED)}
    first, later = bpe.decoded_tokens(vocab, DECODERS[name])
    data = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    data["decoder"] = {"type": "Sequence", "decoders": DECODERS[name]}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(data)).decoder
    text = b"".join([first[ids[0]], *(later[id] for id in ids[1:])])
    assert text.decode() == theirs.decode([DECODED[id] for id in ids])


# ─── Reading ──────────────────────────────────────────────────────────────────────────────────────


def counted(files, special=(END,), pattern="gpt2", block_bytes=None, text_field=None, **engine):
    """The counts of pretokens, and the number of documents."""
    block_bytes = block_bytes or bpe.BLOCK_BYTES
    source = bpe.Source(files, bpe.Pattern(pattern), special, text_field, block_bytes)
    result = bpe.count(source, bpe.Engine(**engine))
    assert result.words.symbols.dtype == np.int32
    return result.words.to_counts(), result.n_documents


# Parts of texts among which special tokens overlap, are cut off, or look like ordinary text.
parts = st.sampled_from(
    ["<|a|>", "<|a|>b", "|>", "<|", "aa", "aaa", "x y z\nw ", "word " * 9, END]
).map(str.encode)
text_parts = st.lists(texts.map(str.encode) | parts | hostile_bytes, max_size=12).map(b"".join)
SPECIAL_SETS = [[], ["<|a|>"], ["<|a|>", "<|a|>b"], ["aa", "aaa"], ["\nw", " y z", "\n\n"]]
SPECIAL_SETS += [["é", "aéa"], ["aa", "ab", END]]
special_sets = st.sampled_from(SPECIAL_SETS)
some_patterns = st.sampled_from([*bpe.PATTERNS, r"\w+", r"(?<!x)\w+", (r"\s", r"\w\w")])


STRIPS = bpe.AddedToken(lstrip=True, rstrip=True)


def test_no_block_ends_where_a_token_looks_at_its_neighbours(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("ab   <m>   cd " * 50)
    for size in (1 << 20, *range(3, 40)):
        options = {"flags": {"<m>": STRIPS}, "block_bytes": size}
        source = bpe.Source([path], bpe.Pattern(r"\s|\S+"), ["<m>"], **options)
        counted = bpe.count(source, bpe.Engine(1))
        assert counted.words.to_counts() == dict.fromkeys([b"ab", b"cd", b" "], 50)
        assert counted.special_tokens["<m>"] == 50


@examples(60)
@given(
    text=text_parts,
    special=special_sets,
    pattern=some_patterns,
    block_bytes=st.integers(5, 100),
    packed=st.booleans(),
)
@example(b"\xc2\x80\xc2\x80<|endoftext|>0" + b"\xc2\x80" * 5, [END], "gpt2", 5, False)
@example(b"a" * 41, ["aa"], "gpt2", 5, False)
@example(b"x ab cd ef gh y" * 9, ["ab cd ef gh", "cd"], "gpt2", 5, False)
def test_blocks_change_no_pretoken(tmp_path_factory, text, special, pattern, block_bytes, packed):
    assume(bpe._recognize(text) is None)
    path = tmp_path_factory.getbasetemp() / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    expected = naive_count(text, bpe.Pattern(pattern).source, special)
    assert counted([path], special, pattern, block_bytes, workers=1) == expected


@pytest.mark.parametrize("how", ["shrink", "grow", "vanish", "replace"])
@pytest.mark.parametrize("call", ["count", "encode"])
def test_a_file_that_changes_while_it_is_read_is_named(tokenizer, tmp_path, monkeypatch, call, how):
    path = tmp_path / "a.txt"
    other = tmp_path / "b.txt"
    before = bpe.Block.read
    path.write_text("some text\n" * 100)
    other.write_text("another text\n" * 100)
    change = {
        "shrink": lambda: os.truncate(path, 9),
        "grow": lambda: path.write_text("more text\n" * 999),
        "vanish": lambda: path.unlink(missing_ok=True),
        "replace": lambda: other.exists() and os.replace(other, path),
    }[how]
    monkeypatch.setattr(bpe.Block, "read", lambda block: (before(block), change())[0])
    raised = pytest.raises((ValueError, OSError), match=r"a\.txt")
    if how == "grow":
        raised = note(r"a\.txt: grew")
    with raised:
        if call == "count":
            bpe.count(bpe.Source([path], bpe.Pattern("gpt2")), bpe.Engine(1))
        else:
            bpe.encode_files(tokenizer, path, tmp_path / "o.npy", workers=1)
    assert (tmp_path / "o.npy").exists() == (call == "encode" and how == "grow")


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_blocks_are_small_where_the_pattern_can_be_cut(tmp_path, suffix):
    text = b"It was a dark night.\nSo it was. " * 1000
    pack = gzip.compress if suffix == ".txt.gz" else bytes
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack(text))
    for name in bpe.PATTERNS:
        blocks = list(bpe.Source([path], bpe.Pattern(name), block_bytes=1000).blocks())
        assert (len(blocks) == 1) == (name == "none") and len(blocks) not in range(2, 21)
        assert sum(block.n_bytes for block in blocks) == path.stat().st_size
        *openings, last = [block.next_opening for block in blocks]
        assert {*openings} <= {bpe.CONTINUES} and last == bpe.BEGINS
    path.write_bytes(pack(END.encode() * 2000))  # each special token begins where another ends
    assert len(list(bpe.Source([path], bpe.Pattern("none"), [END], block_bytes=1000).blocks())) > 20


def test_endless_text_is_encoded_as_it_comes():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    with within(60):
        ids = tokenizer.encode_iterable(itertools.repeat("one two three "))
        assert bytes(itertools.islice(ids, 100_000)).startswith(b"one two three one")


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
    counts, n_documents = naive_count(whole, bpe.PATTERNS["gpt2"], [END])
    for name in ("a.txt", "b.txt.gz", "c.jsonl", "deep", "deep/**/*.gz"):
        assert counted(bpe.find_files([tmp_path / name])) == (counts, n_documents)
    four_times = {word: 4 * count for word, count in counts.items()}
    assert counted(bpe.find_files([tmp_path])) == (four_times, 4 * n_documents)


def test_a_named_pipe_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = f"one two{END}three".encode() * 20_000
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[text])
    writer.start()
    with within(60):
        expected = naive_count(text, bpe.PATTERNS["gpt2"], [END])
        assert counted(bpe.find_files([tmp_path / "pipe"])) == expected
    writer.join()


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_packed_files_are_known_by_their_content(tmp_path, monkeypatch, pack):
    text = f"one two{END}three ".encode() * 5000
    (tmp_path / "a.dat").write_bytes(pack(text) + pack(text))
    expected = naive_count(text * 2, bpe.PATTERNS["gpt2"], [END])
    assert counted([tmp_path / "a.dat"], block_bytes=10_000) == expected
    with open(tmp_path / "a.dat", "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        assert counted([bpe.STANDARD_STREAM], block_bytes=10_000) == expected
    (tmp_path / "a.dat").write_bytes(pack(text)[:-5])
    with pytest.raises(ValueError, match=r"a\.dat: not a whole (gzip|xz|bzip2) file"):
        counted([tmp_path / "a.dat"])


def test_zstandard_is_read_or_refused(tmp_path):
    packed = bytes.fromhex("28b52ffd20073900006f6e652074776f")  # "one two"
    (tmp_path / "a.txt.zst").write_bytes(packed)
    if any(map(importlib.util.find_spec, ("compression", "backports"))):
        assert counted([tmp_path / "a.txt.zst"])[0] == {b"one": 1, b" two": 1}
    else:
        with refusal(r"a\.txt\.zst: .* pip install backports\.zstd"):
            counted([tmp_path / "a.txt.zst"])


def test_row_groups_of_parquet_are_blocks(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    documents = [f"text {k} é" for k in range(10)]
    table = sys.modules["pyarrow"].table({"body": documents, "n": list(range(10))})
    parquet.write_table(table, path, row_group_size=4)
    blocks = list(bpe.Source([path], bpe.Pattern(), text_field="body").blocks())
    assert len(blocks) == 3 and sum(block.n_bytes for block in blocks) == path.stat().st_size
    expected = naive_count(END.join(documents).encode(), bpe.PATTERNS["gpt2"], [END])
    assert counted(bpe.find_files(tmp_path), text_field="body") == expected
    messages = {None: "no column 'text' .*body, n", "n": "row group 0: no text in the field 'n'"}
    for field, message in messages.items():
        with refusal(message):
            counted([path], text_field=field)


@pytest.mark.parametrize(
    "name, data, doubt",
    [
        ("a.txt", "Größe ".encode("latin-1") * 99, "its beginning is not UTF-8"),
        ("a.txt", "text".encode("utf-16"), "NUL bytes, as UTF-16 has"),
        ("a.txt", b"text\0" * 99, "NUL bytes"),
        ("a.txt", b'{"text": "one"}', "looks like JSON"),
        ("a.csv", b"id,text\n1,one\n", "a table is read as text"),
    ],
)
def test_doubtful_text_gets_one_note(tmp_path, name, data, doubt):
    (tmp_path / name).write_bytes(data)
    with note(doubt) as notes:
        counted([tmp_path / name] * 3, workers=1)
    assert len(notes) == 1


def test_bad_lines_can_be_skipped_and_are_named(tmp_path):
    good = b'{"text": "ab"}\n'
    bad = b'{"text": 3}\nno json\n\xff\n'
    (tmp_path / "a.jsonl").write_bytes(good + bad + good)
    with note("skipped") as notes:
        result = bpe.count_files(tmp_path, tmp_path / "w.npz", skip_bad_lines=True, workers=1)
    assert result.words.to_counts() == {b"ab": 2}
    places = [re.findall("skipped: .*jsonl, line ([0-9]+)", str(note.message)) for note in notes]
    assert places == [["2"], ["3"], ["4"]]


def test_many_bad_lines_are_named_five_times_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 200)
    lines = [b'{"text": "ab"}', *[b"no json"] * 40]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines * 2))
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(lines[:4]))
    options = {"skip_bad_lines": True, "workers": 1}
    expected = [f"a.jsonl, line {k}: not JSON" for k in range(2, 7)]
    expected += [f"b.jsonl, line {k}: not JSON" for k in range(2, 5)]
    expected += ["skipped in all: 80 lines of"]
    with note("skipped") as notes:
        training = bpe.train(tmp_path, 257, **options)
    assert all(part in str(n.message) for part, n in zip(expected, notes, strict=True))
    assert training.counted.n_bad_lines == 83 and training.counted.words.to_counts() == {b"ab": 3}
    assert "| bad lines | 83 skipped " in re.sub(" +", " ", str(training.summary()))
    with note("skipped") as of_encoding:
        bpe.encode_files(training.tokenizer, tmp_path, tmp_path / "o.bin", **options)
    with note("skipped") as of_counting:
        bpe.count_files(tmp_path, tmp_path / "w.npz", **options)
    for others in (of_encoding, of_counting):
        assert [str(n.message) for n in others] == [str(n.message) for n in notes]
    assert bpe.train(tmp_path / "w.npz", 257, workers=1).counted.n_bad_lines == 83
    with refusal("a.jsonl, line 2: not JSON .*; with `skip_bad_lines`, train"):
        bpe.train(tmp_path, 257, workers=1)


def test_the_first_run_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = bpe.standard_library()
        assert next(bpe.Source(files, bpe.Pattern()).blocks()).path == files[0]


def test_models_and_hidden_files_in_a_folder_are_no_text(trained, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "hidden.txt").write_text("more")
    trained.save(tmp_path)
    bpe.encode_files(trained.tokenizer, tmp_path, tmp_path / "o.bin", workers=1)
    assert bpe.find_files(tmp_path) == [tmp_path / "a.txt"]
    (tmp_path / "a.txt").unlink()
    with refusal("no text in this folder"):
        bpe.find_files(tmp_path)


def test_piped_lines_are_json_if_a_text_field_is_named(tmp_path):
    lines = b'{"body": "one two"}\n{"body": "three"}\n'
    for field, expected in (
        ("body", ({b"one": 1, b" two": 1, b"three": 1}, 2)),
        (None, naive_count(lines, bpe.PATTERNS["gpt2"], [])),
    ):
        read, write = os.pipe()
        os.write(write, lines)
        os.close(write)
        assert counted([Path(f"/dev/fd/{read}")], [], text_field=field) == expected
        os.close(read)


def test_special_tokens_of_any_length_are_found(tmp_path):
    text = b"some text of ten words, and then some more of it. " * 2000
    long = "<" + "x" * 9000 + ">"
    (tmp_path / "long.txt").write_bytes(long.encode().join([text] * 3))
    with within(60):
        expected = naive_count((tmp_path / "long.txt").read_bytes(), bpe.PATTERNS["gpt2"], [long])
        assert counted([tmp_path / "long.txt"], [long], block_bytes=5000) == expected


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("some text")
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="sub"):
        bpe.find_files(tmp_path)


# ─── Words ────────────────────────────────────────────────────────────────────────────────────────


def test_words_are_the_counts():
    words = bpe.Words.from_counts({b"ab": 2, b"": 5, b"c": 0, b"\xff": 2**33})
    assert words.symbols.tolist() == [97, 98, 255] and words.symbols.dtype == np.int32
    assert words.offsets.tolist() == [0, 2, 3] and words.counts.tolist() == [2, 2**33]
    assert words.to_counts() == {b"ab": 2, b"\xff": 2**33} and list(words.alphabet) == BYTES
    symbols = np.frombuffer(b"ababab", np.uint8).astype(np.int32)
    twice = bpe.Words(symbols, np.array([0, 2, 4, 6]), np.array([1, 2, 3]))
    counter = bpe.WordCounter()
    counter.add_words(twice)
    assert counter.words().to_counts() == {b"ab": 6}
    assert bpe.learn(twice, 257).counts.tolist() == [6]


@given(
    parts=st.lists(
        st.binary(max_size=40)
        | st.sampled_from([b"the cat ", b"a" * 15, b"a" * 16, b"longer than sixteen bytes"])
    )
)
def test_counting_is_counting(parts):
    counter = bpe.WordCounter()
    expected = Counter()
    for part in parts:
        counter.add_texts([part], bpe.Pretokenizer(bpe.Pattern("gpt2")))
        expected.update(naive_split(bpe.PATTERNS["gpt2"], part))
    more = Counter({b" more": 2, b"a" * 16: 3})
    other = bpe.WordCounter()
    for words in (counter.words(), bpe.Words.from_counts(more), counter.words()):
        other.add_words(words)
    assert counter.words().to_counts() == expected
    assert other.words().to_counts() == expected + expected + more


def test_tables_grow():
    source = random.Random(4)
    sizes = source.choices([4, 7, 8, 9, 15, 16, 17, 40], k=150_000)
    counts = {word: k for k, word in enumerate(map(source.randbytes, sizes), 2**33)}
    first = dict(itertools.islice(counts.items(), 30_000))
    counter = bpe.WordCounter()
    for part in (first, counts):  # words of the first table are looked up in the second
        counter.add_words(bpe.Words.from_counts(part))
    assert counter.words().to_counts() == counts | {word: 2 * n for word, n in first.items()}


@given(parts=st.lists(st.text("ab \n", max_size=30), max_size=12), max_words=st.integers(1, 12))
def test_the_rarest_words_are_dropped_where_there_are_too_many(parts, max_words):
    """A literal version of the rule is applied after each task."""
    source = bpe.Source([bpe.TextStream(parts)], bpe.Pattern("gpt2"), block_bytes=1)
    counted = bpe.count(source, bpe.Engine(1), max_words=max_words)
    words = Counter()
    error = 0
    n_dropped = 0
    n_dropped_bytes = 0
    for part in parts:
        words.update(naive_split(bpe.PATTERNS["gpt2"], part.encode()))
        if len(words) > max_words:
            least = sorted(words.values(), reverse=True)[max(max_words // 2, 1)]
            rare = {word: n for word, n in words.items() if n <= least}
            n_dropped += sum(rare.values())
            n_dropped_bytes += sum(n * len(word) for word, n in rare.items())
            error += least
            words -= rare
    assert counted.words.to_counts() == words
    dropped = counted.n_dropped, counted.n_dropped_bytes, counted.max_error
    assert dropped == (n_dropped, n_dropped_bytes, error)
    by_two = bpe.count(source, bpe.Engine(2), max_words=max_words)
    assert by_two._replace(words=counted.words) == counted
    exact = sum((Counter(bpe.Pattern("gpt2").split(part.encode())) for part in parts), Counter())
    assert all(words[word] <= n <= words[word] + error for word, n in exact.items())


def test_reports_tell_of_dropped_words(library, tmp_path):
    few = bpe.train(library[:30], 300, max_words=1000)
    assert len(few.counted.words.counts) <= 1000
    assert f"{few.counted.n_dropped:,} " in str(few.summary())
    assert bpe.train(library[:30], 300, max_words=0).counted.n_dropped == 0
    bpe.count_files(library[:30], tmp_path / "few.npz", max_words=1000)
    assert few.counted.described == bpe.load_counts(tmp_path / "few.npz")[0].described


@examples(100)
@given(
    text=text_parts | pattern_texts.map(str.encode),
    special=special_sets,
    steps=st.sampled_from(DROPPING + SPACED),
    size=st.integers(5, 100),
)
@example(b"ab ab\n c" * 9, [], DROPPING[2], 5)
def test_words_that_steps_drop_or_change_are_counted_and_encoded(
    tmp_path_factory, text, special, steps, size
):
    """Blocks and chunks have a few bytes."""
    assume(bpe._recognize(text) is None)
    if steps in SPACED:  # a text between special tokens begins in another way
        special = []
    path = tmp_path_factory.getbasetemp() / "dropped.txt"
    path.write_bytes(text)
    pattern = bpe.Pattern(steps)
    expected = naive_count(text, pattern.source, special)
    assert counted([path], special, steps, size, workers=1) == expected
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], special, pattern=steps)
    as_latin = [token.encode().decode("latin-1") for token in special]
    parts = [part.encode("latin-1") for part in naive_parts(text.decode("latin-1"), as_latin)]
    parts[::2] = [b"".join(naive_split(pattern.source, part)) for part in parts[::2]]
    parts[1::2] = [[tokenizer.special_tokens[part.decode()]] for part in parts[1::2]]
    ids = [*chain(*parts)]
    assert tokenizer.encode(text) == ids == tokenizer.encode(text)
    chunks = (text[k : k + size] for k in range(0, len(text), size))
    assert list(tokenizer.encode_iterable(chunks)) == ids


@given(
    counts=st.dictionaries(hostile_bytes | texts.map(str.encode), st.integers(0, 9), max_size=8),
    coverage=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    step=st.sampled_from([None, *(bpe.Metaspace(*step) for step in (("▁", "never"), "_", "▁"))]),
)
def test_words_of_characters_are_what_python_decodes(counts, coverage, step):
    spaced = {word: naive_metaspace(step, word, False) if step else word for word in counts}
    decoded = [(as_text(spaced[word]), n) for word, n in counts.items()]
    totals = tally((char, n) for text, n in decoded for char in regex.findall(r"\P{Cs}", text))
    before = 0
    frequent = set()
    for letter in sorted(+totals, key=lambda letter: (-totals[letter], letter)):
        if before < coverage * totals.total():
            frequent.add(letter)
        before += totals[letter]
    parts = []
    for text, n in decoded:
        groups = itertools.groupby(text, frequent.__contains__)
        parts += [("".join(letters).encode(), n) for is_kept, letters in groups if is_kept]
    words = bpe.Words.from_counts(counts).as_characters(coverage, step)
    assert words.alphabet == [letter.encode() for letter in sorted(frequent)]
    places = pairwise(words.offsets)
    spelled = (b"".join(map(words.alphabet.__getitem__, words.symbols[i:j])) for i, j in places)
    assert tally(zip(spelled, words.counts.tolist(), strict=True)) == tally(parts)


def test_the_hash_and_the_file_of_words_are_of_each_with_its_count(tmp_path):
    counts = {b"a": 1, b"b": 2, b"ab": 3, b"\0a": 1, b"\0": 3, b"\0\0a": 1}
    counts[b"a long word" * 2] = 2**40
    words = bpe.Words.from_counts(counts)
    again = bpe.Words.from_counts(dict(reversed(counts.items())))
    for name, each in (("a.npz", words), ("b.npz", again)):
        bpe.save_counts(tmp_path / name, bpe.CorpusCounts(each, 1, 9), {})
    assert again.digest == words.digest
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    for other in ({b"a": 2, b"b": 1}, {b"ab": 4}, {b"c": 1}):
        assert bpe.Words.from_counts(counts | other).digest != words.digest


@given(
    corpora=st.lists(word_counts, max_size=3),
    weights=st.lists(st.sampled_from([0, 1, 3, 0.5, 0.3, 2.5]), min_size=3, max_size=3),
)
def test_words_of_several_corpora_are_added_up_by_weight(corpora, weights):
    parts = [bpe.Words.from_counts(counts) for counts in corpora]
    sums = tally(item for counts in corpora for item in counts.items())
    assert bpe.Words.merge(parts).to_counts() == {word: n for word, n in sums.items() if n and word}
    if len(parts) == 2:
        assert (parts[0] + parts[1]).digest == bpe.Words.merge(parts).digest
    weights = weights[: len(parts)]
    sums = tally(
        (word, round(n * weight))
        for counts, weight in zip(corpora, weights, strict=True)
        for word, n in counts.items()
    )
    weighted = bpe.Words.merge(parts, weights).to_counts()
    assert weighted == {word: n for word, n in sums.items() if n and word}


def test_counts_above_2_53_are_added_up_exactly():
    words = bpe.Words.from_counts({b"ab": 2**60 + 1})
    assert (words + words).to_counts() == {b"ab": 2**61 + 2}
    assert bpe.Words.merge([words], [3]).to_counts() == {b"ab": 3 * (2**60 + 1)}


def test_words_that_cannot_be_added_up_are_named():
    words = bpe.Words.from_counts({b"ab": 3})
    for corpora, weights, message in [
        ([words], [1, 2], "a weight for each corpus"),
        ([words], [-1], "the weight -1 is below 0"),
        ([words], [math.nan], "the weight nan"),
        ([words], [1e300], "too large"),
        ([{b"ab": 3}], [], "only Words"),
        ([words, words.as_characters()], [], "another alphabet"),
    ]:
        with refusal(message):
            bpe.Words.merge(corpora, weights)
    with refusal("only Words"):
        words + words.counts


SERVED = [
    {"model": "bpe"},
    {"model": "unigram", "pattern": "gpt2"},
    {"model": "wordpiece", "pattern": "gpt2"},
    {"model": "longest"},
    {"alphabet": "characters", "byte_fallback": True},
]


def test_a_words_file_serves_every_family(tmp_path):
    (tmp_path / "a.txt").write_text(f"low lower lowest <low> {END} naïve <0x0" * 9)
    options = {"vocab_size": 300, "special_tokens": [END], "workers": 1}
    bpe.count_files(tmp_path / "a.txt", tmp_path / "w.npz", special_tokens=[END], workers=1)
    for family in SERVED:
        of_text = bpe.train(tmp_path / "a.txt", **options, **family)
        of_words = bpe.train(tmp_path / "w.npz", **options, **family)
        assert of_words.tokenizer.to_str() == of_text.tokenizer.to_str()
        assert of_words.record == of_text.record


@pytest.mark.parametrize("name, refusing", [("<unk>", 1), ("[UNK]", 2), ("<0x0A>", 4)])
def test_a_family_refuses_words_of_a_text_with_its_unknown_token(tmp_path, name, refusing):
    (tmp_path / "a.txt").write_text(f"low lower {name} lowest" * 9)
    bpe.count_files(tmp_path / "a.txt", tmp_path / "w.npz", workers=1)
    counted, _ = bpe.load_counts(tmp_path / "w.npz")
    expected = naive_count((tmp_path / "a.txt").read_bytes(), bpe.PATTERNS["gpt2"], [])
    assert (counted.words.to_counts(), counted.n_documents) == expected
    for number, family in enumerate(SERVED):
        call = functools.partial(bpe.train, tmp_path / "w.npz", 300, workers=1, **family)
        if number == refusing:
            with refusal("was counted with the special_tokens"):
                call()
        else:
            assert call().tokenizer.encode(name)


def test_files_and_patterns_have_names(library, tmp_path):
    expected = bpe.count(bpe.Source([library[5], library[6]], bpe.Pattern("cl100k"))).words.digest
    names = [str(library[5]), library[6]]
    assert bpe.count(names, pattern="cl100k").words.digest == expected
    assert bpe.count(bpe.Source(names, "cl100k")).words.digest == expected
    bpe.count_files(names, tmp_path / "words.npz", pattern="cl100k")
    assert bpe.Words.load(str(tmp_path / "words.npz")).digest == expected
    with refusal("no such file"):
        bpe.Source("nothing.txt", "gpt2")


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────


def history(learned):
    """Pairs, counts, numbers of tokens, and symbols, as `naive_learn` returns them."""
    arrays = learned.pairs, learned.counts, learned.n_tokens
    return *(array.tolist() for array in arrays), learned.tokens


def assert_learns(counts, n_symbols, **options):
    learned = bpe.learn(bpe.Words.from_counts(counts), n_symbols, **options)
    assert history(learned) == naive_learn(counts, n_symbols, **options)
    assert learned.tokens == [*BYTES, *map(b"".join, learned.merges)]


# Scores that rise or fall, are negative, or need the counts of both symbols.
SCORES = [
    "count",
    "likelihood",
    lambda count, size: count * size,
    lambda count, size: count - 3,
    lambda count, left, right, size: float((count * 7 + left * 3 + right * 5) % 11) - 2.0,
    lambda count, left, right, size: size - count * count,
    lambda count, left, right, size, n_tokens: float((count * 5 + left + size * n_tokens) % 7) - 1,
    lambda count, size, weight=3: count * size**weight,
]


some_options = {
    "score": st.just("count") | st.sampled_from(SCORES),
    "tie_break": st.sampled_from(["bytes", "ids"]),
}


@examples(100)
@given(
    counts=word_counts,
    extra=st.integers(0, 40),
    options=st.fixed_dictionaries(some_options | {"min_frequency": st.integers(0, 4)}),
)
def test_merges_are_those_of_the_oracle(counts, extra, options):
    assert_learns(counts, 256 + extra, **options)


def change_at_random(learner, naive, source, pairs):
    """Do the same to a Learner and to a naive one."""
    wide = sorted(symbol for symbol in naive.symbols() if symbol > 255)
    if wide and source.random() < 0.3:
        symbol = source.choice(wide)
        token = naive.tokens[symbol]
        parts = []
        while token:
            fits = [s for s, t in enumerate(naive.tokens) if s != symbol and token.startswith(t)]
            parts.append(source.choice(fits))
            token = token[len(naive.tokens[parts[-1]]) :]
        assert learner.split(symbol, parts) == naive.split(symbol, parts)
        return
    pair = source.choice(sorted(pairs))
    if source.random() < 0.1:
        learner.forbid(*pair)
        naive.forbidden.add(pair)
    if pair in naive.forbidden:
        pair = naive.best()[:2] if naive.best() else (97, 97 + len(naive.tokens) % 2)
    if pair not in naive.forbidden and pairs[pair]:
        assert learner.merge(*pair) == naive.merge(*pair)


@examples(60)
@given(
    counts=word_counts,
    options=st.fixed_dictionaries(some_options),
    source=st.randoms(use_true_random=False),
)
def test_a_driven_learner_is_the_naive_one(counts, options, source):
    learner = bpe.Learner(bpe.Words.from_counts(counts), 300, **options)
    naive = NaiveLearner(counts, **options)
    for _ in range(12):
        pairs = naive.pairs()
        assert learner.n_symbols == len(naive.tokens)
        if source.random() < 0.6:  # merges and splits need not ask for the best pair
            assert learner.best() == naive.best()
        assert {pair: learner.count(*pair) for pair in pairs} == pairs
        rows = [(*pair, *row) for pair, row in sorted(naive.scores().items())]
        assert [*zip(*(column.tolist() for column in learner.pairs()), strict=True)] == rows
        assert learner.n_tokens == naive.n_tokens()
        if source.random() < 0.2:
            learner = learner.copy()
        if not pairs:
            break
        change_at_random(learner, naive, source, pairs)
    now = learner.words()
    symbols = [now.symbols[i:j].tolist() for i, j in pairwise(now.offsets)]
    ours = sorted(zip(symbols, now.counts.tolist(), strict=True))
    assert ours == sorted((word, n) for word, n in naive.words if word)


def test_pairs_of_a_symbol_that_is_gone_have_a_likelihood(monkeypatch):
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)  # a score cannot raise
    learner = bpe.Learner(bpe.Words.from_counts({b"abab": 3}), 300, score="likelihood")
    learner.split(learner.merge(97, 98), [97, 98])
    assert learner.best() == (97, 98, 6, 1 / 6) and errors == []


@pytest.mark.parametrize("score", ["count", "likelihood"])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))]
)
def test_a_copy_of_a_learner_goes_its_own_way(library, score, duplicate):
    words = bpe.count(bpe.Source([library[5]], bpe.Pattern())).words
    learner = bpe.Learner(words, 400, score=score)
    learner.merge_best(330)
    learner.split(300, [*learner.token(300)])
    best = learner.best()
    other = duplicate(learner)
    other.forbid(best.left, best.right)
    other.merge_best(400)
    assert learner.n_symbols == 330 and learner.best() == best
    twin = bpe.Learner(words, 400, score=score)
    twin.merge_best(330)
    twin.split(300, [*twin.token(300)])
    twin.forbid(best.left, best.right)
    twin.merge_best(400)
    assert other.n_symbols == 400 and all(map(np.array_equal, other.learned(), twin.learned()))
    assert other.words().to_counts() == twin.words().to_counts() == words.to_counts()
    learner.merge_best(400)
    assert learner.learned().merges[74:] != other.learned().merges[74:]


def test_pairs_are_in_the_same_order_in_any_order_of_the_words():
    counts = {bytes([a, b]): a % 7 + 1 for a in b"abcdefg" for b in b"xyz"}
    orders = [counts, dict(reversed(counts.items()))]
    first, second = (bpe.Learner(bpe.Words.from_counts(one), 300).pairs() for one in orders)
    assert all(map(np.array_equal, first, second)) and len(first.left) == 21


@pytest.mark.parametrize("wide", [False, True])
def test_driven_merges_after_splits_count_past_32_bits(wide, monkeypatch):
    if wide:
        monkeypatch.setattr(bpe, "INT32_SYMBOLS", 0)
    learner = bpe.Learner(bpe.Words.from_counts({b"abab": 2**40, b"b": 1}), 300)
    for k in range(40):  # the occurrences of each new pair need room
        assert learner.merge(97, 98) == 256 + k and learner.n_tokens == 2**41 + 1
        assert learner.split(256 + k, [97, 98]) == learner.count(97, 98) == 2**41


def test_a_refused_call_leaves_a_learner_as_it_was():
    learner = bpe.Learner(bpe.Words.from_counts({b"abcd": 3, b"a" * 99_999: 1}), 273)
    symbol = learner.merge(97, 98)
    learner.forbid(99, 100)
    for call, message in [
        (lambda: learner.merge(97, 98), "merged already"),
        (lambda: learner.merge(99, 100), "forbidden"),
        (lambda: learner.merge(97, 999), "no symbol 999"),
        (lambda: learner.count(-1, 97), "no symbol -1"),
        (lambda: learner.token(1.5), "no symbol 1.5"),
        (lambda: learner.split(symbol, [97, 99]), "cannot be split"),
        (lambda: learner.split(97, [97]), "cannot be split"),
        (lambda: learner.merge_best(999), "room"),
    ]:
        before = learner.best(), learner.learned(), learner.words()
        with refusal(message):
            call()
        assert repr(before) == repr((learner.best(), learner.learned(), learner.words()))
    learner.merge_best(273)
    with refusal("room"):
        learner.merge(97, 100)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_learner_that_was_interrupted_is_intact_or_refuses_work(error, monkeypatch):
    learner = bpe.Learner(bpe.Words.from_counts({b"ab": 1}), 300)

    def fail(*_):
        raise error

    with monkeypatch.context() as patched, pytest.raises(error):
        patched.setattr(bpe, "_merge_pair", fail)
        learner.merge(97, 98)
    if bpe.COMPILES and error is KeyboardInterrupt:  # it waits for the end of a compiled kernel
        assert learner.merge(97, 98) == 256
    else:
        with refusal("interrupted within a merge"):
            learner.best()


def test_a_tokenizer_of_merges_cuts_words_as_the_learner_did(tmp_path):
    counts = {b"low": 5, b" lower": 2, b" newest": 6}
    learner = bpe.Learner(bpe.Words.from_counts(counts), 270)
    learner.merge(101, 119)
    learner.merge_best(265)
    tokenizer = bpe.Tokenizer.from_merges(learner, [END], pattern="none")
    tokenizer.save(tmp_path)
    tokenizer = bpe.Tokenizer.load(tmp_path)
    n_tokens = sum(len(tokenizer.encode(word)) * n for word, n in counts.items())
    assert n_tokens == learner.n_tokens and tokenizer.merges == learner.learned().merges
    plain = bpe.Tokenizer.from_merges(tokenizer.merges, [END], pattern="none")
    assert plain.digest == tokenizer.digest
    learner.split(256, [101, 119])
    with refusal("merges alone do not encode"):
        bpe.Tokenizer.from_merges(learner)


def fails(count, size):
    if size > 2:
        raise ValueError
    return count


@pytest.mark.parametrize("score", [fails, lambda count, size: np.nan if size > 2 else count])
def test_a_score_that_fails_is_named_and_the_learner_goes_on_without_the_pair(score):
    words = bpe.Words.from_counts({b"ab": 5, b"abc": 3, b"xy": 1})
    learner = bpe.Learner(words, 300, score=score)
    with refusal(r"the score of .*b'ab', b'c'"):
        learner.merge_best(300)
    assert learner.n_symbols == 257
    learner.forbid(256, 99)
    learner.merge_best(300)
    assert learner.learned().merges == [(b"a", b"b"), (b"x", b"y")]


@pytest.mark.parametrize(
    "score",
    [
        lambda count, size: count * np.random.random(),
        lambda count, left, right, size: count + np.random.random(),
    ],
)
def test_a_score_that_is_no_function_of_its_arguments_is_refused(score):
    learner = bpe.Learner(bpe.Words.from_counts({b"abcabd": 5, b"abc": 3}), 300, score=score)
    with refusal("is another one when it is computed again"):
        learner.merge_best(300)
    learner = bpe.Learner(bpe.Words.from_counts({b"ab": 2}), 300, score=score)
    with refusal("is another one when it is computed again"):
        learner.best()


def test_two_ways_to_one_token_make_one_token():
    learner = bpe.Learner(bpe.Words.from_counts({b"abcd": 3}), 300)
    for left, right in (b"b", b"c"), (b"a", b"bc"), (b"a", b"b"), (b"ab", b"c"), (b"abc", b"d"):
        symbols = {learner.token(k): k for k in range(learner.n_symbols)}
        learner.merge(symbols[left], symbols[right])
    of_learner = bpe.Tokenizer.from_merges(learner, pattern="none")
    of_list = bpe.Tokenizer.from_merges(learner.learned().merges, pattern="none")
    assert of_learner.vocab == of_list.vocab and len(of_learner) == 256 + 4
    for text in ("abcd", "abxbcxabc"):
        assert of_learner.encode(text) == of_list.encode(text)
    theirs = of_learner.to_huggingface()
    assert theirs.encode("abcdabxbcx").ids == of_learner.encode("abcdabxbcx")


# Characters with or without a mark: no symbol has the bytes of others together.
characters = st.lists(st.sampled_from("abcé中🙂ſ"), min_size=2, max_size=7, unique=True)
marked = characters.map(
    lambda chars: [mark + char.encode() for char in chars for mark in (b"", b"_")]
)


@given(data=st.data(), alphabet=marked, tie_break=st.sampled_from(["bytes", "ids"]))
def test_merges_over_other_alphabets_are_those_of_the_oracle(data, alphabet, tie_break):
    many = [f"#{k:03d}".encode() for k in range(300)]  # more symbols than there are bytes
    alphabet = data.draw(st.permutations(alphabet)) + many
    n = len(alphabet)
    symbol = st.integers(0, 5) | st.integers(n - 5, n - 1)
    drawn_words = st.lists(symbol, min_size=1, max_size=12).map(tuple)
    counts = data.draw(st.dictionaries(drawn_words, st.integers(1, 5), min_size=1))
    learned = bpe.learn(words_of(counts, alphabet), n + 20, tie_break=tie_break)
    assert history(learned) == naive_learn(counts, n + 20, alphabet, tie_break=tie_break)


def test_more_pairs_than_their_table_holds_at_first_are_those_of_the_oracle():
    alphabet = [f"#{k:03d}".encode() for k in range(900)]
    first, second = np.random.default_rng(0).integers(0, 900, (2, 50_000)).tolist()
    assert len({*pairwise(first), *pairwise(second)}) > 1 << 16
    counts = {tuple(first): 1, tuple(second): 2}
    learned = bpe.learn(words_of(counts, alphabet), 908)
    assert history(learned) == naive_learn(counts, 908, alphabet)


SOURCE = random.Random(2)
TIED = {b"abcdefghijkl" + end: 1 for end in (b"x", b"y", b"\0", b"")} | {b"abcdefghijk": 3}
# Counts of words in which something is large, and how many symbols are learnt of them.
LARGE_COUNTS = {
    "ties of long tokens": (TIED, 290),
    "counts past 32 bits": ({b"ab": 2**31, b"abc": 2**33, b"xy": 2**40, b"z" * 9: 1}, 262),
    "long words": ({bytes(SOURCE.choices(b"abcd"[:n], k=300 * n)): n for n in (1, 2, 4)}, 400),
    "arrays that grow": ({SOURCE.randbytes(200): 1 for _ in range(15)} | {b"a" * 20_000: 1}, 700),
}


@pytest.mark.parametrize(
    "name, wide", [*((name, False) for name in LARGE_COUNTS), ("long words", True)]
)
@pytest.mark.parametrize("tie_break", ["bytes", "ids"])
def test_merges_of_large_inputs_are_those_of_the_oracle(name, wide, tie_break, monkeypatch):
    if wide:  # as in a corpus of so many symbols that positions do not fit 32 bits
        monkeypatch.setattr(bpe, "INT32_SYMBOLS", 0)
    assert_learns(*LARGE_COUNTS[name], tie_break=tie_break)


def test_no_token_is_longer_than_65536_symbols():
    learned = bpe.learn(bpe.Words.from_counts({b"a" * 200_000: 1, b"b" * 70_000: 2}), 999)
    assert sorted(map(len, learned.tokens))[-3:] == [1 << 15, 1 << 16, 1 << 16]


def test_a_token_of_65536_symbols_can_be_split_and_merged_again():
    word = b"a" * (1 << 15) + b"b" * (1 << 15)
    learner = bpe.Learner(bpe.Words.from_counts({word: 1}), 300)
    sides = [97, 98]
    for _ in range(15):
        sides = [learner.merge(side, side) for side in sides]
    assert learner.split(learner.merge(*sides), sides) == learner.count(*sides) == 1


def test_learning_depends_on_the_counts_alone_and_leaves_them_alone():
    source = random.Random(5)
    counts = {bytes(source.choices(b"abcde", k=2 + i % 9)): i % 7 + 1 for i in range(50)}
    words = bpe.Words.from_counts(counts)
    before = [np.array(array) for array in words]
    first = bpe.learn(words, 290)
    second = bpe.learn(words, 290)
    assert all(map(np.array_equal, words, before)) and all(map(np.array_equal, first, second))
    other = bpe.learn(bpe.Words.from_counts(dict(reversed(counts.items()))), 290)
    assert all(map(np.array_equal, first, other)) and first.merges
    assert bpe.learn(words, 300, min_frequency=10**30).merges == []


def hugging_face_trained(documents, vocab_size, special_tokens, pre_tokenizer=None):
    """The model of Hugging Face's trainer: of bytes or, with a pre-tokenizer, of characters."""
    options = {"vocab_size": vocab_size, "special_tokens": special_tokens}
    if not pre_tokenizer:
        options["initial_alphabet"] = ByteLevel.alphabet()
    theirs = trained_by_hugging_face(
        "BPE", documents, pre_tokenizer or ByteLevel(add_prefix_space=False), **options
    )
    return json.loads(theirs.to_str())["model"]


def test_merges_and_ids_are_those_of_hugging_face(library):
    special = [END, "<|im_start|>"]
    files = library[::12]
    theirs = hugging_face_trained((path.read_bytes().decode() for path in files), 4000, special)
    vocab, merges = bpe.train_bpe(files, 4000, special, tie_break="ids")
    assert [[in_chars(left), in_chars(right)] for left, right in merges] == theirs["merges"]
    names = {token.decode() if i < 2 else in_chars(token): i for i, token in vocab.items()}
    assert names == theirs["vocab"]


def test_merges_over_characters_are_those_of_hugging_face(library):
    texts = [path.read_bytes().decode() for path in library[::24]]
    texts.append("Füße, 中文字中文, ça va? naïveté 🙂🙂" * 3)
    theirs = hugging_face_trained(texts, 2000, ["<unk>", "</s>"], P.WhitespaceSplit())
    words = bpe.Words.from_counts(Counter(word.encode() for text in texts for word in text.split()))
    learned = bpe.learn(words.as_characters(), 1998, tie_break="ids")
    vocab = bpe.build_vocabulary(learned, ["<unk>", "</s>"])
    assert [[left.decode(), right.decode()] for left, right in learned.merges] == theirs["merges"]
    assert {token.decode(): id for id, token in vocab.items()} == theirs["vocab"]


few_characters = st.text("abé中", max_size=12).map(str.encode)
ways_to_go_on = st.tuples(
    st.sampled_from(["bytes", "ids"]),
    st.sampled_from(bpe.SPECIAL_TOKENS_AT),
    st.sampled_from(["bytes", "characters"]),
)


@examples(60)
@given(
    counts=st.dictionaries(small_words | few_characters, st.integers(1, 5), min_size=1),
    way=ways_to_go_on,
    first=st.integers(0, 20),
    ranks=st.booleans(),
)
def test_going_on_from_a_model_is_training_in_one_go(counts, way, first, ranks):
    tie_break, place, alphabet = way
    counts = {word.decode(errors="ignore").encode() or b"a": n for word, n in counts.items()}
    words = given = bpe.Words.from_counts(counts)
    if alphabet == "characters":
        words = given.as_characters()
    n = len(words.alphabet) + 40
    whole = bpe.learn(words, n, tie_break=tie_break)
    start = bpe.learn(words, n - 40 + first, tie_break=tie_break)
    vocab = bpe.build_vocabulary(start, ["<s>", END], place)
    merges = start.merges
    model = bpe.Model(vocab, None if ranks else merges, ["<s>", END], "none", alphabet=alphabet)
    model = dataclasses.replace(model, merges=bpe._as_merges(model)[0])
    learned = bpe.learn(bpe.words_of_model(model, given), n, tie_break=tie_break)
    assert learned.merges == whole.merges[first:]
    assert learned.n_tokens.tolist() == whole.n_tokens[len(merges) :].tolist()
    extended = bpe.extend_model(model, learned)
    assert extended.merges == whole.merges
    assert extended.pattern == "none"
    assert not extended.ignore_merges
    new = dict(enumerate(learned.tokens[len(learned.alphabet) :], len(vocab)))
    assert extended.vocab == vocab | new
    assert extended.special_tokens == model.special_tokens


@examples(50)
@given(
    text=st.lists(st.sampled_from(["the", "of", "12", "3", "a", ", "]), min_size=2, max_size=40),
    extra=st.integers(0, 15),
)
def test_going_on_reaches_across_the_ends_of_old_pretokens(text, extra):
    text = " ".join(text).encode()
    old = bpe.learn(bpe.Words.from_counts(Counter(bpe.Pattern("gpt2").split(text))), 262)
    vocab = bpe.build_vocabulary(old, [])
    merges = old.merges
    model = bpe.Model(vocab, merges, pattern="none")
    counts = Counter([text[: len(text) // 2], text[len(text) // 2 :], text])
    tokens = [vocab[id] for id in sorted(vocab)]
    words = bpe.words_of_model(model, bpe.Words.from_counts(counts))
    learned = bpe.learn(words, len(tokens) + extra, tie_break="ids")
    naive = (tuple(map(tokens.index, naive_encode(word, merges))) for word in counts)
    counts_of_ids = dict(zip(naive, counts.values(), strict=True))
    expected = naive_learn(counts_of_ids, len(tokens) + extra, tokens, tie_break="ids")
    assert history(learned) == expected
    extended = bpe.Tokenizer.from_model(bpe.extend_model(model, learned))
    n_ids = sum(len(extended.encode(word)) * count for word, count in counts.items())
    assert n_ids == learned.n_tokens[-1]


def test_letters_that_a_model_lacks_split_words():
    vocab = {0: b"a", 1: b"b", 2: b"?", 3: "é".encode()}
    model = bpe.Model(vocab, [], unk_token="?", alphabet="characters")
    counts = {"abéxb\U0001f642".encode(): 2, b"\xffa?": 1}
    words = bpe.words_of_model(model, bpe.Words.from_counts(counts))
    assert words.to_counts() == {"abé".encode(): 2, b"b": 2, b"a": 1}
    with pytest.raises(ValueError, match="256 bytes"):
        bpe.words_of_model(model, words)
    bytes_only = bpe.words_of_model(bpe.Model({0: b"a"}, []), bpe.Words.from_counts({b"aba": 1}))
    assert bytes_only.symbols.tolist() == [0, 0] and bytes_only.offsets.tolist() == [0, 1, 2]


# ─── Models ───────────────────────────────────────────────────────────────────────────────────────


def test_vocabulary_has_special_tokens_first_then_bytes_then_merges():
    vocab, merges = bpe.train_bpe_from_counts({b"aab": 2, b"ab": 1}, 260, ["<s>", "</s>"])
    assert list(vocab) == list(range(260)) and vocab[0] == b"<s>" and vocab[1] == b"</s>"
    assert [in_chars(vocab[i]) for i in range(2, 258)] == sorted(map(in_chars, BYTES))
    assert merges == [(b"a", b"b"), (b"a", b"ab")] and [vocab[258], vocab[259]] == [b"ab", b"aab"]
    for at, ids in (("first", [0, 1]), ("after-bytes", [256, 257]), ("last", [258, 259])):
        options = {"special_tokens": ["<s>", "</s>"], "special_tokens_at": at, "workers": 1}
        tokenizer = bpe.train(texts=["aab aab ab"], vocab_size=260, **options).tokenizer
        assert list(tokenizer.special_tokens.values()) == ids


def test_a_text_that_is_too_small_gives_a_warning():
    with note("258 tokens, fewer than the 1,000"):
        vocab, _ = bpe.train_bpe_from_counts({b"abc": 1}, 1000)
    assert len(vocab) == 258


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
    vocab = BYTE_VOCAB | {256: b"ab"}
    digests = [bpe.Tokenizer(vocab, **(common | change)).digest for change in changes]
    other_order = dict(reversed(flags.items()))
    assert bpe.Tokenizer(vocab, **common, flags=other_order).digest == digests[-1]
    assert len(set(digests)) == len(changes)


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]},
    {"role": "tool", "content": "5"},
]
RENDERED = """<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
What is 2 + 3?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "add", "arguments": {"a": 2}}
</tool_call><|im_end|>
<|im_start|>tool
5<|im_end|>
<|im_start|>assistant
"""


def test_chatml_writes_conversations():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(bpe.CHATML)
    assert template.render(messages=CONVERSATION, add_generation_prompt=True) == RENDERED
    tools = template.render(messages=CONVERSATION[:2], tools=[{"name": "add"}])
    assert tools.startswith("<|im_start|>system\nBe brief.\n\nFunctions")
    assert '{"name": "add"}<|im_end|>' in tools
    assert tools.endswith("3?<|im_end|>\n") and tools.count("Be brief.") == 1
    with pytest.raises(jinja2.UndefinedError, match="raise_exception"):
        template.render(messages=[{"role": "narrator", "content": ""}])


# ─── Encoding ─────────────────────────────────────────────────────────────────────────────────────


# Random models of each family, with words and their ids by the definition and by the owner.


@st.composite
def merges_of_bytes(draw):
    tokens, merges = random_tokens_of_bytes(random.Random(draw(st.integers(0, 20))), 60)
    word = draw(words)
    ids = [tokens.index(token) for token in naive_encode(word, merges)]
    # a merge that is given twice has its first rank
    given_twice = [*merges, *merges[::-2]]
    return bpe.Tokenizer(dict(enumerate(tokens)), given_twice, pattern="none"), [(word, ids)]


@st.composite
def ranks_of_bytes(draw):
    source = random.Random(draw(st.integers(0, 20)))
    word = draw(words)
    # the last most likely out of reach of the merges
    tokens = [*random_tokens_of_bytes(source, 40)[0], b"tttiia"]
    source.shuffle(tokens)
    ranks = {token: id for id, token in enumerate(tokens)}
    special = {END: 1000}
    theirs = tiktoken.Encoding(
        "t", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens=special
    )
    symbols = naive_merge([bytes([b]) for b in word], lambda pair: ranks.get(b"".join(pair)))
    text = word.decode("utf-8", "ignore") or "a"
    ids = [ranks[word]] if word in ranks else [ranks[symbol] for symbol in symbols]
    ours = bpe.Tokenizer(dict(enumerate(tokens)), None, special, pattern="none")
    return ours, [(word, ids), (text, theirs.encode_ordinary(text)), (END, [1000])]


@st.composite
def merges_of_characters(draw):
    letters = [letter.encode() for letter in "ab▁é中"]
    text = draw(character_words)
    tokens, merges = random_tokens(random.Random(draw(st.integers(0, 20))), letters, 40)
    tokens += [b"<unk>", *BYTE_TOKENS]
    unk = {"unk_token": "<unk>"}
    fallback = {"byte_fallback": True}
    unknown = draw(st.sampled_from([fallback, unk, unk | {"fuse_unk": True}, unk | fallback]))
    pairs = [(left.decode(), right.decode()) for left, right in merges]
    ids_of = {token.decode(): id for id, token in enumerate(tokens)}
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(ids_of, pairs, **unknown))
    options = unknown | {"pattern": "none", "alphabet": "characters"}
    model = bpe.Model(dict(enumerate(tokens)), merges, **options)
    data = draw(hostile_bytes)
    options = [name in unknown for name in ("byte_fallback", "fuse_unk")]
    symbols = naive_encode(naive_letters(data, tokens, b"<unk>", *options), merges)
    expected = [(text, theirs.encode(text).ids), (data, [*map(tokens.index, symbols)])]
    return bpe.Tokenizer.from_model(model), expected


@st.composite
def scores_of_characters(draw):
    """As SentencePiece has them: <unk>, tokens of equal scores, perhaps <0x00> and so on."""
    source = random.Random(draw(st.integers(0, 20)))
    byte_fallback = draw(st.booleans())
    most = draw(st.integers(1, 9))
    tokens, _ = random_tokens(source, "ab▁é中", 40)
    pieces = [("<unk>", 2, 0), *((token, 1, -source.randrange(most**3)) for token in tokens)]
    pieces += [(token.decode(), 6, 0) for token in BYTE_TOKENS * byte_fallback]
    spec = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
    proto = model_proto(pieces, 2, name="identity", **spec)
    proto.trainer_spec.byte_fallback = byte_fallback
    data = proto.SerializeToString()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    text = draw(character_words).replace("\0", "").replace(" ", "▁")
    return bpe.Tokenizer.from_model(bpe.read_sentencepiece(data)), [(text, theirs.encode(text))]


@st.composite
def wordpieces(draw):
    """Vocabularies of tokens that are prefixes of each other or look like the mark "##"."""
    prefix = draw(st.sampled_from(["##", "", "#", "a", "▁é"]))
    pieces = st.text("ab#é", min_size=1, max_size=5) | st.text("aé", min_size=1, max_size=9)
    begin = draw(st.lists(pieces, min_size=1, max_size=12, unique=True))
    tokens = [*begin, *(prefix + token.removeprefix(prefix) for token in begin)]
    tokens += draw(st.sampled_from(["", prefix]))
    names = filter(None, dict.fromkeys([*tokens, "[UNK]"]))
    vocab = {token: 3 * k for k, token in enumerate(names)}
    unk = draw(st.sampled_from([None, "[UNK]"]))
    most = draw(st.sampled_from([100, 100, 7]))
    joined = st.lists(st.sampled_from(begin), min_size=1, max_size=9).map("".join)
    options = {"unk_token": "[UNK]", "continuing_subword_prefix": prefix}
    options["max_input_chars_per_word"] = most
    theirs = tokenizers.models.WordPiece(vocab, **options)
    model = bpe.read_huggingface(json.loads(tokenizers.Tokenizer(theirs).to_str()))
    ours = bpe.Tokenizer.from_model(dataclasses.replace(model, unk_token=unk))
    expected = []
    for text in (draw(joined | pieces), draw(joined | st.text("abc#é", min_size=1, max_size=110))):
        expected.append((text.encode(), naive_wordpiece(text.encode(), vocab, prefix, unk, most)))
        if unk:
            expected.append((text, [token.id for token in theirs.tokenize(text)]))
    data = draw(hostile_bytes.filter(bool))
    return ours, [*expected, (data, naive_wordpiece(data, vocab, prefix, unk, most))]


@st.composite
def unigrams(draw):
    score_of = draw(score_tables)
    word = draw(short_words)
    paths = naive_paths(word, score_of, min(score_of.values()) - 10)
    id_of = {None: 0} | {token: 1 + k for k, token in enumerate(score_of)}
    expected = [id_of[token] for token in paths[0][1]]
    unk = draw(st.sampled_from(["<unk>", None]))
    model = unigram_model(score_of, unk_token=unk, fuse_unk=False, pattern="none")
    return bpe.Tokenizer.from_model(model), [(word, expected if unk or 0 not in expected else None)]


@st.composite
def unigrams_of_hugging_face(draw):
    score_of = draw(score_tables)
    fallback = draw(st.booleans())
    last = draw(st.sampled_from([0xC0, 0x100]))
    if fallback:
        score_of |= dict.fromkeys([f"<0x{byte:02X}>" for byte in range(last)], -20.0)
    model = unigram_model(score_of, byte_fallback=fallback, pattern="none")
    model.scores[0] = 0.0  # their <unk> is found in text
    vocab = [(model.vocab[id].decode(), float(model.scores[id])) for id in model.vocab]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, 0, fallback))
    text = draw(pattern_texts)
    texts = (text, draw(short_words), f"<unk>{text}é<0x41>")
    return bpe.Tokenizer.from_model(model), [(text, theirs.encode(text).ids) for text in texts]


def ids_of(tokenizer, word):
    """The ids of a word; in the second process, which compiles each family anew, by its kernel."""
    if not BOUNDS_CHECKED or tokenizer.model.kind == "bpe":
        return tokenizer.encode(word)
    kind = bpe.KINDS[tokenizer.model.kind]
    data = word if isinstance(word, bytes) else word.encode()
    ids = segmented(data, kind.tables(tokenizer.model), kind.segment)
    bpe.require(type(ids) is list, "no token")
    return ids


def segmented(data, tables, segment):
    """The ids of a word, or the negative number that says why there are none."""
    ids = np.empty(len(data) + 2, np.uint32)
    scratch = next(kind.scratch() for kind in bpe.KINDS.values() if kind.segment is segment)
    n = segment(bpe._with_padding(data), 0, len(data), tables, scratch, ids, 0)
    return ids[:n].tolist() if n >= 0 else n


RANDOM_MODELS = [merges_of_bytes, ranks_of_bytes, merges_of_characters, scores_of_characters]
RANDOM_MODELS += [wordpieces, unigrams, unigrams_of_hugging_face]


@pytest.mark.parametrize("models", RANDOM_MODELS, ids=lambda models: models.__name__)
@given(data=st.data())
def test_words_become_the_ids_of_the_definition_and_of_the_owner(models, data):
    ours, expected = data.draw(models())
    for word, ids in expected * 2:  # the second time from the cache
        if ids is None:
            with refusal(r"not in the vocabulary|no token"):
                ids_of(ours, word)
        else:
            assert ids_of(ours, word) == ids, word


def test_patterns_that_leave_whole_texts_become_the_exact_pattern():
    vocab = dict(enumerate(map(str.encode, ["▁", *"abc", "▁a", "ab"])))
    scores = -np.arange(len(vocab), dtype=np.float32)
    model = bpe.Model(vocab, None, pattern="gpt2", alphabet="characters", scores=scores)
    assert bpe.Tokenizer.from_model(model).pattern.name == "gpt2"
    mark = bpe.Metaspace("▁", "first")
    spaces = bpe.Split(" ", "merged_with_previous")
    for steps in ("none", [mark], [spaces], [bpe.Split("▁", "merged_with_next")]):
        model.pattern = steps
        pattern = bpe.Tokenizer.from_model(model).pattern
        assert pattern.steps[-1] == bpe.exact_pattern(model) != "none"
        assert [bool(step.table) for step in pattern.passes].count(True) == 1


FALLS_BACK = {"byte_fallback": True, "fuse_unk": True}


@pytest.mark.parametrize(
    "more, fields, words",
    [
        ([], {}, "ab|▁b|z|z|▁d|▁a"),
        (["a▁"], {}, "ab▁b|z|z|▁|d|▁a"),  # the mark ends a token
        ([*map(bytes.decode, BYTE_TOKENS)], FALLS_BACK, "ab|▁b|z|z|▁d|▁a"),
        ([], {"fuse_unk": True}, "ab|▁bzz|▁d|▁a"),
        ([], {"drops_unknown": True}, "ab▁bzz▁|d|▁a"),
        (["d▁"], {"drops_unknown": True}, None),  # no letter is alone
        ([], {"scores": None}, None),  # words are looked up whole
        ([], {"word_suffix": "</w>"}, None),
        (["<u>"], {"unk_token": "<u>", "merges": [(b"<u>", b"a")]}, None),
    ],
)
def test_the_exact_pattern_keeps_together_what_may_be_one_token(more, fields, words):
    vocab = dict(enumerate(map(str.encode, ["▁", *"abd", "▁a", "ab", *more])))
    fields = {"merges": None, "scores": np.zeros(len(vocab), np.float32), **fields}
    pattern = bpe.exact_pattern(bpe.Model(vocab, alphabet="characters", **fields))
    if words is None:
        assert pattern == "none"
    else:
        assert "|".join(regex.findall(pattern, "ab▁bzz▁d▁a")) == words


def sample(kernel, tables, data, alpha, state):
    """One result of a kernel that samples, as a tuple of ids."""
    ids = np.empty(len(data) + 2, np.uint32)
    n = kernel(bpe._with_padding(data), 0, len(data), tables, alpha, state, ids, 0)
    return tuple(ids[:n].tolist())


SAMPLED_MERGES = [(b"a", b"b"), (b"ab", b"c"), (b"b", b"c"), (b"a", b"a"), (b"aa", b"b")]
SAMPLED_MERGES += [(b"c", b"a"), (b"a", b"bc")]
SAMPLED_TOKENS = [b"a", b"b", b"c", *sorted({left + right for left, right in SAMPLED_MERGES})]


@pytest.mark.parametrize(
    "word, alpha", [(b"abc", 0.8), (b"aabca", 0.1), (b"aabca", 0.5), (b"abab", 0.5)]
)
@pytest.mark.parametrize("equal", [False, True])
def test_samples_have_the_distribution_of_bpe_dropout(word, alpha, equal):
    vocab = dict(enumerate(SAMPLED_TOKENS))
    ranks = {"merges": SAMPLED_MERGES}
    if equal:
        ranks = {"merges": None, "scores": np.zeros(len(vocab))}
    tables = bpe.bpe_tables(bpe.Model(vocab, **ranks), samples=True)
    state = np.array([7], np.uint64)
    n = 20_000
    samples = (sample(bpe.sample_bpe, tables, word, alpha, state) for _ in range(n))
    numbers = Counter(tuple(map(vocab.get, ids)) for ids in samples)
    rank = {pair: k for k, pair in enumerate(SAMPLED_MERGES)}
    if equal:
        pairs = itertools.product(SAMPLED_TOKENS, repeat=2)
        rank = {pair: 0 for pair in pairs if b"".join(pair) in SAMPLED_TOKENS}
    expected = naive_samples(tuple(bytes([b]) for b in word), rank, alpha)
    assert numbers.keys() <= expected.keys() and abs(sum(expected.values()) - 1) < 1e-9
    assert_by_chance([numbers[result] for result in expected], [n * p for p in expected.values()])


def naive_fall(token, merges, unused):
    """A token, or the parts of an unused one: the two tokens of its last merge, and their parts."""
    if token not in unused:
        return [token]
    halves = naive_encode(token, [pair for pair in merges if b"".join(pair) != token])
    return [part for half in halves for part in naive_fall(half, merges, unused)]


@examples(50)
@given(data=words, seed=st.integers(0, 20))
def test_unused_tokens_fall_into_their_parts(data, seed):
    source = random.Random(seed)
    tokens, merges = random_tokens_of_bytes(source, 60)
    made = [token for token in tokens if naive_encode(token, merges) == [token] and len(token) > 1]
    unused = set(source.sample(made, source.randrange(len(made))))
    ours = bpe.Tokenizer.from_merges(merges, [END], without=unused, pattern="none")
    whole = naive_encode(data, merges)
    expected = [*chain(*(naive_fall(token, merges, unused) for token in whole))]
    assert [ours.vocab[id] for id in ours.encode(data, "none")] == expected
    assert ours.sample(data, 0.0, allowed_special="none") == ours.encode(data, "none")
    assert [ours.vocab[id] for id in ours.sample(data, 1.0)] == [bytes([b]) for b in data]
    assert ours.decode_bytes(ours.sample(data, 0.5)) == data
    assert {ours.vocab[id] for id in ours.model.unused} == unused


def test_a_trimmed_model_is_a_model_like_others(library, tmp_path):
    text = library[3].read_text() + "中文 und Füße " * 99  # some unused tokens are no UTF-8
    learned = bpe.train(texts=[text], vocab_size=320, workers=1).learned
    ours = bpe.Tokenizer.from_merges(learned, [END], without=learned.tokens[260:300])
    ids = ours.encode(text)
    assert not {*ids} & {*ours.model.unused} and ours.decode(ids) == text
    assert ours.digest != bpe.Tokenizer.from_merges(learned, [END]).digest
    ours.save(tmp_path / "model")
    loaded = bpe.Tokenizer.load(tmp_path / "model")
    assert loaded.digest == ours.digest and loaded.model.unused == ours.model.unused
    for format in ("gpt2", "tiktoken"):
        with refusal("cannot hold this tokenizer|cannot represent this tokenizer"):
            ours.save(tmp_path / format, format)
    edited(tmp_path / "model", model__unused=[-1])
    with refusal("a list of the ids of unused tokens"):
        bpe.Tokenizer.load(tmp_path / "model")


def test_tokens_that_cannot_fall_are_named():
    merges = [(b"a", b"b"), (b"ab", b"c")]
    for without, message in [([b"a"], "'a' has no parts"), ([b"xy"], "not in the vocabulary")]:
        with refusal(message):
            bpe.Tokenizer.from_merges(merges, without=without)
    learned = bpe.learn(words_of_characters({"ab": 2, "abc": 1}), 5)
    ours = bpe.Tokenizer.from_merges(learned, without=[b"abc"], pattern="none")
    assert [ours.vocab[id] for id in ours.encode("abcab")] == [b"ab", b"c", b"ab"]


def test_a_cache_may_be_out_of_entries_and_of_room_for_ids_at_once():
    digits = str.maketrans("0123456789", "abcdefghij")
    # 2**13 words of 64 ids fill both
    text = "".join(f" {n:05}".translate(digits) + "x" * 58 for n in range(8200))
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], cache_size=1 << 15)
    assert tokenizer.encode(text) == list(text.encode())


@examples(60)
@given(
    special=st.sets(st.text("ab<é", min_size=2, max_size=12), max_size=12),
    text=st.text("ab<é", max_size=80),
)
def test_special_tokens_are_found_as_regex_finds_them(special, text):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], sorted(special))
    parts = naive_parts(text, special)
    parts[::2] = map(str.encode, parts[::2])
    parts[1::2] = [[tokenizer.special_tokens[part]] for part in parts[1::2]]
    expected = [*chain(*parts)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text * 100, special) == tokenizer.encode(text * 100)
    assert list(tokenizer.encode_iterable(bytes([b]) for b in text.encode())) == expected


# Special tokens with flags that overlap each other, white space, letters and the texts around them.
flagged = st.dictionaries(
    st.sampled_from(["<m>", "<m", "m>", "ab", "<é>", " x", "x ", "__", "中中", "<m><", "\u3000a"]),
    st.builds(bpe.AddedToken, st.just(False), *[st.booleans()] * 4, literal=st.just(False)),
    min_size=1,
    max_size=6,
)
flagged_parts = [*"abmx<>é_ \n\t\x1c\x1f\x85\u3000\u200b中1'\u0301🙂"]
flagged_parts += ["<m>", " <m> ", "  ", "中中", "ab"]
flagged_texts = st.lists(st.sampled_from(flagged_parts), max_size=24).map("".join)


@examples(60)
@given(flags=flagged, inputs=st.lists(flagged_texts, min_size=1, max_size=5))
@example({"<m>": bpe.AddedToken(lstrip=True)}, ["<m> <m>", " <m>"])
def test_flagged_special_tokens_are_found_as_hugging_face_finds_them(flags, inputs):
    ours = bpe.Tokenizer(BYTE_VOCAB, [], list(flags), flags=flags)
    bytes_only = tokenizers.models.BPE({in_chars(token): b for b, token in enumerate(BYTES)}, [])
    theirs = huggingface_tokenizer(bytes_only, pre_tokenizer=ByteLevel(False))
    added = [tokenizers.AddedToken(token, **flag._asdict()) for token, flag in flags.items()]
    theirs.add_tokens(added)
    expected = [theirs.encode(text).ids for text in inputs]
    assert [ours.encode(text) for text in inputs] == ours.encode_batch(inputs) == expected
    assert [list(ours.encode_iterable(text)) for text in inputs] == expected
    assert [encoding.ids for encoding in ours.to_huggingface().encode_batch(inputs)] == expected


# texts that end or begin in the middle of a character
halves = [b"\xe2", b"\xe2\x82", b"\xac", b"", b"a", b"\xc3"]


@given(parts=st.lists(st.sampled_from(halves)), name=st.sampled_from([*bpe.PATTERNS, r"\w+"]))
@example([b"\xe2\x82", b"\xac"], "gpt2")
@example([b"\xe2\x82", b"", b"\xac"], "none")
def test_texts_of_a_batch_do_not_touch(parts, name):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], pattern=name)
    with within(60):
        ids, offsets = tokenizer.encode_batch_to_numpy(parts)
    assert ids.tolist() == list(b"".join(parts))
    assert offsets.tolist() == np.cumsum([0, *map(len, parts)]).tolist()


@pytest.mark.parametrize("merges", [None, []])
def test_a_token_that_begins_with_the_byte_of_an_end_is_looked_up(merges):
    vocab = BYTE_VOCAB | {256: b"\xfea\xfe", 257: b"\xfda\xfd"}
    model = bpe.Model(vocab, merges, pattern="none", ignore_merges=merges is not None)
    tokenizer = bpe.Tokenizer.from_model(model)
    texts = [b"\xfea\xfe", b"\xfda\xfd", b"\xfe", b"\xfea"]
    assert tokenizer.encode_batch(texts) == [[256], [257], [0xFE], [0xFE, 97]]


@given(data=st.binary(max_size=80))
@example(b"a" * 200_000)
def test_any_bytes_survive(tokenizer, data):
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids) == data
    for again in (np.array(ids, np.uint16), np.array(ids, np.int64), iter(ids)):
        assert tokenizer.decode(again) == data.decode("utf-8", "replace")


def test_time_is_linear_in_the_size_of_a_text(tokenizer):
    assert_linear(lambda n: tokenizer.encode("ab" * n), 20_000)
    never_cut = plain(r"\S+|\s+")
    assert_linear(lambda n: [*never_cut.encode_iterable(["é中"] * n)], 4000)
    flags = {"<mask>": bpe.AddedToken(lstrip=True), "<m>": STRIPS}
    flagged = bpe.Tokenizer(BYTE_VOCAB, [], list(flags), flags=flags)
    assert_linear(lambda n: flagged.encode("<mask>x <mask> <m>   " * n), 1000)


def test_time_is_linear_in_the_number_of_special_tokens(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some text of ten words, and then some more of it. " * 2000)

    def special_tokens(n):
        return [f"<|{k}|>" for k in range(n)]

    def load_added_tokens(n):
        written(tmp_path, tokenizer, [{"content": token} for token in special_tokens(n)])
        assert len(bpe.Tokenizer.load(tmp_path).special_tokens) == n + 1

    assert_linear(load_added_tokens, 400)
    assert_linear(lambda n: counted([tmp_path / "a.txt"], special_tokens(n), "gpt2", 20_000), 400)


@functools.cache
def colliding_words(n):
    """Words that have one value of `low ^ high * C`, which was the hash once."""
    high = np.arange(n, dtype=np.uint64) | np.uint64(15 << 56)
    low = high * np.uint64(0x9E3779B97F4A7C15)
    words = np.stack([low, high], axis=1).astype("<u8")
    return bpe.Words.from_counts({word.tobytes()[:15]: 1 for word in words})


@functools.cache
def ordered_words(n):
    """Words in the order of a table of words."""
    counter = bpe.WordCounter()
    counter.add_words(bpe.Words.from_counts({b"%d" % k: 1 for k in range(n)}))
    return counter.words()


@pytest.mark.parametrize("make, n", [(colliding_words, 4000), (ordered_words, 20_000)])
def test_time_is_linear_in_the_number_of_words(make, n):
    assert_linear(lambda n: bpe.WordCounter().add_words(make(n)), n)


def test_batches_are_single_texts(tokenizer, some_texts, monkeypatch):
    expected = [tokenizer.encode(text) for text in some_texts]
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 5000)
    monkeypatch.setattr(bpe, "PART_BYTES", 300)
    for way in ("batches", "pieces", "a cache of 16", "a cache of 4,096"):
        ids_of_texts = WAYS_TO_ENCODE[way](tokenizer, some_texts)
        assert ids_of_texts == (expected * 2)[-len(ids_of_texts) :]
    ids, offsets = tokenizer.encode_batch_to_numpy(some_texts, {END})
    assert ids.dtype == np.uint32 and offsets.dtype == np.int64
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
    ordinary = tokenizer.encode_batch(some_texts, "none")
    assert ordinary == [tokenizer.encode_ordinary(text) for text in some_texts] != expected
    strings = [*map(tokenizer.decode, expected)]
    assert in_a_pool(ThreadPoolExecutor(8), tokenizer.decode, expected) == strings
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch_to_numpy([])[1].tolist() == [0]


# ─── WordPiece ────────────────────────────────────────────────────────────────────────────────────


def naive_wordpiece(word, vocab, prefix="##", unk=None, max_chars=100):
    """The longest token, again and again; unknown words, and words that are too long, are [unk]."""
    chars = as_text(word)
    tokens = []
    start = 0
    while start < len(chars):
        mark = prefix if start else ""
        ends = (end for end in range(len(chars), start, -1) if mark + chars[start:end] in vocab)
        end = next(ends, 0)
        if not end or len(chars) > max_chars:
            return None if unk is None else [vocab[unk]]
        tokens.append(vocab[mark + chars[start:end]])
        start = end
    return tokens


def naive_likelihood(counts, n_symbols, min_frequency=1):
    """The history of merges by likelihood. A symbol is a text, and whether it continues a word."""
    marked = {word: [(char, k > 0) for k, char in enumerate(word.decode())] for word in counts}
    later = {*chain(*marked.values())}
    symbols = sorted(later | {(char, False) for char, _ in later}, key=lambda symbol: symbol[::-1])
    number = {symbol: k for k, symbol in enumerate(symbols)}
    words = {tuple(map(number.get, marked[word])): n for word, n in counts.items()}
    options = {"score": "likelihood", "min_frequency": min_frequency}
    alphabet = [char.encode() for char, _ in symbols]
    *merges, tokens = naive_learn(words, n_symbols, alphabet, **options)
    continues = [continues for _, continues in symbols]
    for left, _ in merges[0]:
        continues.append(continues[left])
    return *merges, [b"##" * later + token for later, token in zip(continues, tokens, strict=True)]


few_letters_of_words = st.sampled_from(["a", "ab", "aé", "abc", "abé中🙂", "abcdefghij"])
counts_of_words = few_letters_of_words.flatmap(
    lambda letters: st.dictionaries(
        st.text(letters, min_size=1, max_size=30).map(str.encode),
        st.integers(1, 5) | st.integers(1, 2**40),
        min_size=1,
    )
)


@examples(60)
@given(counts=counts_of_words, extra=st.integers(0, 60), least=st.integers(0, 4))
def test_tokens_by_likelihood_are_those_of_the_oracle(counts, extra, least):
    words = words_of_characters(counts)
    n_symbols = 2 * len(words.alphabet) + extra
    learned = bpe.learn_wordpiece(words, n_symbols, min_frequency=least)
    assert history(learned) == naive_likelihood(counts, n_symbols, least)


def in_their_order(words, theirs):
    """Words whose alphabet has the order of Hugging Face's ids, which is random."""
    marked, n_beginning = bpe._mark_continuing(words)
    names = [b"##" * (k >= n_beginning) + token for k, token in enumerate(marked.alphabet)]
    order = sorted(range(len(names)), key=lambda k: theirs[names[k].decode()])
    alphabet = [marked.alphabet[k] for k in order]
    return marked._replace(
        symbols=np.argsort(order)[marked.symbols].astype(np.int32), alphabet=alphabet
    ), n_beginning


@pytest.mark.parametrize("least", [1, 500])
def test_the_vocabulary_is_that_of_hugging_faces_trainer(least, library, monkeypatch):
    text = b" ".join(path.read_bytes() for path in library[:60])
    text += "é中文 ñandú Straße über".encode() * 3
    words = [word for word in text.split() if b"#" not in word and word.decode().isprintable()]
    counts = Counter(words)
    texts = ((word.decode() + " ") * n for word, n in counts.items())
    model = {"unk_token": "[UNK]"}
    options = {"continuing_subword_prefix": "##", "vocab_size": 2000, "min_frequency": least}
    theirs = trained_by_hugging_face("WordPiece", texts, P.WhitespaceSplit(), model, **options)
    theirs = theirs.get_vocab()
    words = words_of_characters(counts)
    ours = bpe.learn_wordpiece(words, 2000, score="count", min_frequency=least)
    # of equal counts, in another order
    assert len(theirs.keys() ^ {token.decode() for token in ours.tokens}) <= 60
    marked = in_their_order(words, theirs)
    monkeypatch.setattr(bpe, "_mark_continuing", lambda *_: marked)
    ours = bpe.learn_wordpiece(words, 2000, score="count", min_frequency=least)
    assert {token.decode(): id for id, token in enumerate(ours.tokens)} == theirs


def test_text_that_looks_like_the_prefix_gives_a_token_once():
    learned = bpe.learn_wordpiece(words_of_characters({b"###": 3, b"a#": 1}), 8)
    assert len(set(learned.tokens)) == len(learned.tokens) and b"##" in learned.tokens


# ─── Unigram ──────────────────────────────────────────────────────────────────────────────────────


def naive_paths(word, score_of, unk_score):
    """All ways to cut a word, as (score, tokens), the best first.

    None is a character that is no token. Of equal scores the way with the longer last token goes
    first, and then the one whose rest goes first.
    """

    def paths(start):
        """The paths from a place on, as lists of (score, size, token)."""
        if start == len(word):
            return [[]]
        ends = [end for end in range(start + 1, len(word) + 1) if word[start:end] in score_of]
        steps = [(score_of[word[start:end]], end - start, word[start:end]) for end in ends]
        if start + 1 not in ends:
            steps.append((unk_score, 1, None))
        return [[step, *rest] for step in steps for rest in paths(start + step[1])]

    ways = []
    for path in paths(0):
        sums = itertools.accumulate((score for score, _, _ in path), initial=0.0)
        order = [(-total, -size) for total, (_, size, _) in zip([*sums][1:], path, strict=True)]
        ways.append((order[::-1], [token for _, _, token in path]))
    ways.sort(key=lambda way: way[0])
    return [(-order[0][0] if order else 0.0, tokens) for order, tokens in ways]


def unigram_model(score_of, **options):
    """A model of tokens and their scores, with <unk> as its first."""
    vocab = {0: b"<unk>"} | {1 + k: token.encode() for k, token in enumerate(score_of)}
    options = {"alphabet": "characters", "unk_token": "<unk>", "fuse_unk": True} | options
    scores = np.array([-np.inf, *score_of.values()])
    return bpe.Model(vocab, None, kind="unigram", scores=scores, **options)


few_tokens = st.text("aab▁é中🙂", min_size=1, max_size=4)
equal_scores = st.integers(-4, -1).map(float) | st.floats(-20, 0)
score_tables = st.dictionaries(few_tokens, equal_scores, min_size=1, max_size=12)
short_words = st.text("aab▁é中🙂", max_size=8)


@given(hostile_bytes)
def test_bytes_that_are_not_utf8_are_unknown_one_by_one(data):
    byte_names = {f"<0x{byte:02X}>": -np.inf for byte in range(256)}
    tables = bpe.unigram_tables(unigram_model({"é": -1.0} | byte_names, byte_fallback=True))
    parts = data.split("é".encode())
    expected = [id for part in parts for id in [1, *(2 + byte for byte in part)]][1:]
    assert segmented(data, tables, bpe.segment_unigram) == expected


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
def test_samples_of_a_unigram_have_their_distribution(alpha):
    score_of = {"a": -1.0, "é": -2.5, "aé": -2.0, "éa": -3.0, "aéa": -4.0, "éaé": -5.5}
    word = "aéaéxa"
    tables = bpe.unigram_tables(unigram_model(score_of))
    paths = naive_paths(word, score_of, -15.5)
    id_of = {None: 0} | {token: 1 + k for k, token in enumerate(score_of)}
    weights = np.exp([alpha * score for score, _ in paths])
    expected = 20_000 * weights / weights.sum()
    state = np.array([1], np.uint64)
    sample_once = functools.partial(sample, bpe.sample_unigram, tables, word.encode(), alpha)
    counts = Counter(sample_once(state) for _ in range(20_000))
    numbers = [counts[tuple(map(id_of.get, path))] for _, path in paths]
    assert_by_chance(numbers, expected.tolist(), 5)


def naive_substrings(counts, longest):
    """The substrings that occur twice or more and are not always followed by one character."""
    totals = Counter()
    followed = {}
    for word, count in counts.items():
        for start in range(len(word)):
            for end in range(start + 2, min(start + longest, len(word)) + 1):
                part = word[start:end]
                totals[part] += count
                # the end of a word is one character of its own in each word
                followed.setdefault(part, set()).add(word[end : end + 1] or (word, start))
    ends = {word[k:] for word in counts for k in range(len(word))}
    seeds = [part for part, n in totals.items() if n > 1]
    return {part: totals[part] for part in seeds if len(followed[part]) > 1 or part in ends}


character_counts = st.dictionaries(
    st.text("abé", min_size=1, max_size=12), st.integers(1, 4), min_size=1, max_size=12
)
wide_counts = st.dictionaries(st.text(min_size=1, max_size=9), st.integers(1, 9), min_size=1)


@given(character_counts | wide_counts, st.integers(1, 17))
def test_seeds_are_the_substrings_that_are_not_always_followed_by_one_character(counts, longest):
    learner = bpe._UnigramLearner(words_of_characters(counts), 1000, longest)
    seeds = naive_substrings(counts, longest)
    a = len(learner.words.alphabet)
    spelled = [learner.spell(id).decode() for id in range(a, len(learner.probabilities))]
    assert {*spelled} == seeds.keys() and len(spelled) == len(seeds)
    weights = learner.probabilities[a:] / learner.probabilities[0]
    first = sum(word.count(min("".join(counts))) * n for word, n in counts.items())
    assert np.allclose(weights * first, [len(part) * seeds[part] for part in spelled])


@given(character_counts, st.integers(0, 30))
def test_expectations_and_losses_are_those_of_the_oracle(counts, n_seeds):
    learner = bpe._UnigramLearner(words_of_characters(counts), n_seeds, 5)
    score_of = {learner.spell(id).decode(): score for id, score in enumerate(learner.scores)}
    expected = Counter()
    likelihood = 0.0
    for word, count in counts.items():
        paths = naive_paths(word, score_of, 0.0)
        weights = np.exp([score for score, _ in paths])
        likelihood += count * np.log(weights.sum())
        for weight, (_, path) in zip(weights, paths, strict=True):
            for token in path:
                expected[token] += count * weight / weights.sum()
    usage, total = learner.expect()
    assert np.allclose(usage, [expected[token] for token in score_of])
    assert np.isclose(total, likelihood)
    a = learner.n_alphabet
    count_of = dict(zip(score_of, usage, strict=True))
    total = usage.sum()
    losses = bpe._losses(learner.lattice, a, learner.scores, usage)
    for token, loss in list(zip(score_of, losses, strict=True))[a:]:
        n = count_of[token]
        score, path = naive_paths(token, {t: s for t, s in score_of.items() if t != token}, 0.0)[0]
        if n == 0 or not np.isclose(score, score_of[token]):
            assert np.isneginf(loss) == (n == 0 or score > score_of[token])
        if not np.isneginf(loss):
            after = sum(np.log((count_of[t] + n) / (total + n * (len(path) - 1))) for t in path)
            assert np.isclose(loss, n * (np.log(n / total) - after))


def test_words_of_any_length_have_a_likelihood():
    random_word = "".join(random.Random(0).choices("abcdefgh", k=5000))
    counts = {random_word: 3, "a" * 3000: 1, "h": 2}
    totals = tally((char, n) for word, n in counts.items() for char in word)
    learner = bpe._UnigramLearner(words_of_characters(counts), 0, 4)
    expected, likelihood = learner.expect()
    assert np.allclose(expected, [totals[char] for char in "abcdefgh"])
    assert np.isclose(likelihood, expected @ learner.scores)
    learner = bpe._UnigramLearner(words_of_characters(counts), 1000, 4)
    assert np.isclose(learner.expect()[0] @ learner.lattice.sizes, totals.total())


def text_counts(paths):
    return Counter("▁" + word for path in paths for word in path.read_text("utf-8").split())


def test_learning_unigram_is_that_of_sentencepiece(library, tmp_path):
    """The tokens differ: "import", always before a space, is no seed of SentencePiece."""
    text = "".join(path.read_text("utf-8") for path in library[:30])
    options = {"vocab_size": 1001, "character_coverage": 1.0, "split_by_unicode_script": False}
    more = {**IDENTITY, "model_type": "unigram", "split_by_number": False}
    theirs, _ = trained_there(tmp_path, text.split("\n"), **options, **more)
    learned = bpe.learn_unigram(words_of_characters(text_counts(library[:30])), 1000)
    assert learned.likelihoods[-1] < 0 and (np.diff(learned.scores) <= 0).all()
    assert {*learned.alphabet} < {*learned.tokens} and len({*learned.tokens}) == 1000
    same = {*learned.tokens} & {theirs.id_to_piece(id).encode() for id in range(1001)}
    assert len(same) > 0.65 * 1000


def test_learning_unigram_does_not_depend_on_the_order_of_words(library):
    counts = [(word.encode(), n) for word, n in text_counts(library[:20]).items()]
    shuffled = random.Random(1).sample(counts, len(counts))
    words = [bpe.Words.from_counts(dict(some)) for some in (counts, shuffled)]
    # parts of words are equal words
    ours, other = (bpe.learn_unigram(some.as_characters(0.9), 500) for some in words)
    assert ours.tokens == other.tokens and (ours.scores == other.scores).all()
    assert len(ours.likelihoods) > 1 and ours.likelihoods == other.likelihoods


@functools.cache
def single_sums(byte_fallback):
    """A model of SentencePiece with many nearly equal scores: two of our tokenizers, and theirs."""
    pieces = [("<unk>", 2, 0), ("▁", 1, -2.3), ("b", 1, -3.7), ("▁b", 1, -6.0), ("<x>", 4, 0)]
    pieces += [("a" * n, 1, -1.1 * n) for n in range(1, 5)] + [("ab", 1, -4.8)]
    pieces += [(token.decode(), 6, 0) for token in BYTE_TOKENS * byte_fallback]
    proto = model_proto(pieces, 1, name="identity", remove_extra_whitespaces=False)
    proto.trainer_spec.byte_fallback = byte_fallback
    data = proto.SerializeToString()
    model = bpe.read_sentencepiece(data)
    ours = [bpe.Tokenizer.from_model(model, cache_size) for cache_size in (4, 1 << 10)]
    return *ours, sentencepiece.SentencePieceProcessor(model_proto=data)


@given(st.text("aab é中", max_size=60), st.booleans(), st.integers(0, 40))
@example("é " * 4000 + "aaaa", True, 0)  # sums beyond 100,000
@example("aaabé aa" * 9000, False, 1)
@example("ab" * 30_000 + " aaa b", False, 1)
@example("中" * 700 + "aaaa", False, 1)  # more unknown characters than one id counts
def test_unigram_sums_in_single_precision_through_a_text_as_sentencepiece(text, fallback, n):
    text = text + " b<x>aa" * n + text
    small, large, theirs = single_sums(fallback)
    expected = theirs.encode(text)
    assert small.encode(text) == large.encode(text) == expected
    assert large.encode_batch([text, "aa", "", text]) == theirs.encode([text, "aa", "", text])


def test_blocks_of_a_file_have_the_single_precision_sums_of_the_whole(tmp_path, monkeypatch):
    _, ours, theirs = single_sums(False)
    text = "".join(random.Random(7).choices("aaab\n é", k=9000))
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 500)
    bpe.encode_files(ours, tmp_path / "a.txt", tmp_path / "a.npy", workers=2)
    assert np.load(tmp_path / "a.npy").tolist() == theirs.encode(text)
    monkeypatch.setattr(bpe, "WINDOW_BYTES", 50)
    ids = []
    for new_id in ours.encode_iterable([text]):
        ids.append(new_id)
        if len(ids) % 100 == 0:
            ours.encode("aab aaaa")  # another text in between has a sum of its own
    assert ids == theirs.encode(text)


def test_a_token_that_is_cut_itself_has_no_loss():
    learner = bpe._UnigramLearner(words_of_characters({"ab": 5, "cd": 5}), 100, 8)
    learner.maximize()
    ids = {learner.spell(id): id for id in range(learner.n_tokens)}
    scores = np.full(len(ids), -1.0)
    scores[ids[b"ab"]] = -3.0  # below a and b
    losses = bpe._losses(learner.lattice, 4, scores, np.ones(len(ids)))
    assert losses[ids[b"ab"]] == -np.inf and np.isfinite(losses[ids[b"cd"]])


# ─── Formats ──────────────────────────────────────────────────────────────────────────────────────

# Parts of a tokenizer.json, and texts that they treat specially.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
BYTE_LEVEL |= {"trim_offsets": True, "use_regex": True}
NO_REGEX = BYTE_LEVEL | {"use_regex": False}
NO_FLAGS = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
NO_FLAGS["special"] = True


def edited(folder, **changes):
    """A tokenizer.json with some keys changed; those of the model are written model__key."""
    data = read_json(folder / "tokenizer.json")
    for key, value in changes.items():
        part = data
        if key.startswith("model__"):
            part = data["model"]
        part[key.removeprefix("model__")] = value
    (folder / "tokenizer.json").write_text(json.dumps(data))


def split_by(text, kind="Regex"):
    return {"type": "Split", "pattern": {kind: text}, "behavior": "Isolated", "invert": False}


def in_sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


DIGITS = {"type": "Digits", "individual_digits": False}
PRE_TOKENIZERS = [
    BYTE_LEVEL,
    BYTE_LEVEL | {"add_prefix_space": True},
    NO_REGEX,
    NO_REGEX | {"add_prefix_space": True},
    in_sequence(split_by(bpe.PATTERNS["o200k"]), NO_REGEX),
    in_sequence(split_by(r"\p{N}{1,3}"), split_by(r"[一-龥]+|[a-e]+"), BYTE_LEVEL),
    in_sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
    in_sequence(split_by("th.", "String"), BYTE_LEVEL),
    in_sequence(split_by("gpt2"), split_by("none", "String"), NO_REGEX),
    in_sequence(DIGITS, NO_REGEX | {"trim_offsets": False}, split_by("[0-9][0-9][0-9]")),
]
ADDED = [
    {"content": "<mask>", "lstrip": True},
    {"content": "<r>", "rstrip": True},
    {"content": "<mask", "normalized": True},
    {"content": "th", "rstrip": True, "normalized": True, "special": False},
    {"content": "<b>", "lstrip": True, "rstrip": True},
]
# as in Phi, CodeGen and DeepSeek: tokens of the vocabulary, by their text or by their name
ADDED += [{"content": content, "special": False} for content in ("  ", "õ", "Ċ", "the")]
ordinary = [" ", "  ", "\n", "a", "é", "12345", "the end", END, ".", "\x1c", "\x1f", "\u3000"]
ordinary += ["none", "gpt2", "th.th.th"]
ordinary += [token["content"] for token in ADDED]
added_texts = st.lists(st.sampled_from(ordinary)).map("".join) | texts


def written(folder, tokenizer, added=(), **changes):
    """Write a tokenizer.json with more added tokens, in the vocabulary or not, and changes."""
    tokenizer.save(folder, "huggingface")
    data = read_json(folder / "tokenizer.json")
    vocab = data["model"]["vocab"]
    vocab["th.th.th"] = len(vocab)  # no merge makes it
    new = itertools.count(len(vocab))
    for token in added:
        id = vocab[token["content"]] if token["content"] in vocab else next(new)
        data["added_tokens"].append({"id": id, **NO_FLAGS, **token})
    data["added_tokens"].sort(key=lambda token: token["id"])
    edited(folder, model__vocab=vocab, added_tokens=data["added_tokens"], **changes)
    return theirs_from(folder)


PIECES = ["<unk>", "<s>", "</s>"]
BERT_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FALLBACK = [f"<0x{b:02X}>" for b in range(256)]
UNK = {"unk_token": "<unk>"}
FUSED = UNK | {"fuse_unk": True}
LLAMA_MODEL = FUSED | {"byte_fallback": True}
BERT_MODEL = {"unk_token": "[UNK]"}
SUFFIX = {"end_of_word_suffix": "</w>"}
OF_BYTE_LEVELS = {"pre_tokenizer": ByteLevel(False), "decoder": D.ByteLevel()}
LLAMA_STEPS = [D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]
LLAMA_NORMALIZER = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])
LLAMA_DECODER = D.Sequence(LLAMA_STEPS)
GEMMA_CUT = Split(" ", "merged_with_previous")
GEMMA_DECODER = D.Sequence(LLAMA_STEPS[:3])
MISTRAL_CUT = P.Metaspace(prepend_scheme="first", split=False)
ALBERT = [N.Replace("``", '"'), N.NFKD(), N.StripAccents(), N.Lowercase()]
ALBERT += [N.Replace(Regex(" {2,}"), " ")]
BERT = N.BertNormalizer()
T5 = N.Sequence([N.Nmt(), N.NFKC()])
T5_CUT = Sequence([P.WhitespaceSplit(), P.Metaspace()])
CUTS = [P.Whitespace(), P.Punctuation("contiguous"), P.Digits(True), P.CharDelimiterSplit("x")]
NO_CUT = ByteLevel(False, use_regex=False)
QWEN_CUT = Sequence([Split(Regex(bpe.PATTERNS["qwen2"]), "isolated"), NO_CUT])
DEEPSEEK = ["[\r\n]", r"\s?[A-Za-z]+", r"\s?[!-/:-~]+", r"\s+$", "[一-龥]+"]
DEEPSEEK = [Split(Regex(text), "isolated") for text in DEEPSEEK]
DEEPSEEK_CUT = Sequence([*DEEPSEEK, P.Digits(True), NO_CUT])
LETTERS_CUT = Split(Regex(r"\p{L}+"), "contiguous")
SIX = UNK | {"max_input_chars_per_word": 6}
BYTES_CUT = ByteLevel(False)
BYTES_BACK = D.ByteLevel()
# Well-known tokenizers, and kinds that were met in public repositories: the model and its options,
# special tokens, normalizer, pre-tokenizer and decoder.
FAMOUS = {
    "llama": ("BPE", LLAMA_MODEL, PIECES, LLAMA_NORMALIZER, None, LLAMA_DECODER),
    "mistral": ("BPE", LLAMA_MODEL, PIECES, None, MISTRAL_CUT, LLAMA_DECODER),
    "gemma": ("BPE", LLAMA_MODEL, PIECES, N.Replace(" ", "▁"), GEMMA_CUT, GEMMA_DECODER),
    "albert": ("Unigram", {}, PIECES, N.Sequence(ALBERT), P.Metaspace(), D.Metaspace()),
    "t5": ("Unigram", {}, PIECES, T5, T5_CUT, None),
    "bert": ("WordPiece", BERT_MODEL, BERT_PIECES, BERT, P.BertPreTokenizer(), D.WordPiece()),
    "cuts": ("WordPiece", BERT_MODEL, BERT_PIECES, N.Strip(), Sequence(CUTS), None),
    "qwen": ("BPE", {}, [END], N.NFC(), QWEN_CUT, BYTES_BACK),
    "deepseek": ("BPE", {}, [END], None, DEEPSEEK_CUT, BYTES_BACK),
    "letters": ("BPE", FUSED, PIECES, N.NFD(), LETTERS_CUT, D.BPEDecoder()),
    "suffix": ("BPE", UNK | SUFFIX, PIECES, None, P.BertPreTokenizer(), D.BPEDecoder("</w>")),
    "suffix, dropped": ("BPE", {"end_of_word_suffix": "<w>"}, [], None, P.Whitespace(), None),
    "suffix, whole texts": ("BPE", FUSED | SUFFIX, PIECES, None, None, None),
    "suffix of bytes": ("BPE", SUFFIX, [], None, BYTES_CUT, BYTES_BACK),
    "words": ("WordLevel", UNK, PIECES, None, P.Whitespace(), None),
    "words of bytes": ("WordLevel", UNK, PIECES, None, ByteLevel(True), BYTES_BACK),
    "longest tokens of bytes": ("WordPiece", SIX, PIECES, None, BYTES_CUT, BYTES_BACK),
    "probable tokens of bytes": ("Unigram", {}, PIECES, None, ByteLevel(True), BYTES_BACK),
    "dropped characters": ("BPE", {}, [], None, P.Whitespace(), D.Fuse()),
    "dropped characters of whole texts": ("BPE", {}, [], None, None, D.Fuse()),
    "dropped bytes": ("BPE", {}, [], None, BYTES_CUT, BYTES_BACK),
    "unknown bytes": ("BPE", FUSED, PIECES, None, ByteLevel(True), BYTES_BACK),
}


def famous(name, texts):
    """A tokenizer of the `tokenizers` package, as such a model has it, trained on texts."""
    kind, model, special, normalizer, pre_tokenizer, decoder = FAMOUS[name]
    options = {"vocab_size": 1000, "special_tokens": special}
    first_cut = pre_tokenizer
    if model == LLAMA_MODEL:
        options["special_tokens"] = PIECES + FALLBACK
        first_cut = P.Metaspace()
    if special == [END]:
        options["initial_alphabet"] = ByteLevel.alphabet()
    if kind == "Unigram":
        options |= UNK
    if "end_of_word_suffix" in model:
        options["end_of_word_suffix"] = model["end_of_word_suffix"]
    trained = trained_by_hugging_face(kind, texts, first_cut, model, **options)
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}
    return huggingface_tokenizer(trained.model, special, **parts)


def trained_there(folder, prose, **options):
    """A model trained by the `sentencepiece` package, and its file."""
    (folder / "prose.txt").write_text("\n".join(prose))
    common = {"vocab_size": 600, "hard_vocab_limit": False, "minloglevel": 2}
    common |= {"character_coverage": 0.999, "input": folder / "prose.txt"}
    sentencepiece.SentencePieceTrainer.train(model_prefix=folder / "m", **common | options)
    file = folder / "m.model"
    return sentencepiece.SentencePieceProcessor(model_file=str(file)), file


IDENTITY = {"normalization_rule_name": "identity"}
LLAMA = {**IDENTITY, "remove_extra_whitespaces": False, "byte_fallback": True}
OWN_SYMBOLS = {"user_defined_symbols": ["<a>", "def", "e▁x"]}
ODD_SYMBOLS = {"user_defined_symbols": ["…", "\n", "\t", "ﬁ", "<x>"]}
ODD_SYMBOLS["normalization_rule_name"] = "nmt_nfkc"
SENTENCEPIECE = [
    {"model_type": "bpe", **LLAMA},
    {"model_type": "bpe"},
    {"model_type": "bpe", "add_dummy_prefix": False, "split_by_whitespace": False},
    {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf", "pad_id": 3},
    {"model_type": "bpe", **IDENTITY},
    {"model_type": "unigram"},
    {"model_type": "unigram", **LLAMA},
    {"model_type": "unigram", **IDENTITY, "add_dummy_prefix": False},
    {"model_type": "unigram", **ODD_SYMBOLS, "remove_extra_whitespaces": False},
    {"model_type": "unigram", **LLAMA, "user_defined_symbols": ["<x>", "self"]},
    *({"model_type": kind, **OWN_SYMBOLS} for kind in ("bpe", "unigram")),
    *({"model_type": kind, **ODD_SYMBOLS} for kind in ("bpe", "unigram")),
    {"model_type": "char"},
    {"model_type": "char", **LLAMA, "user_defined_symbols": ["<x>"]},
]


@functools.cache
def utf8_library():
    """The standard library's sources that are UTF-8, as paths: real text on every machine."""
    paths = []
    for path in bpe.standard_library():
        with contextlib.suppress(UnicodeDecodeError):
            path.read_text("utf-8")
            paths.append(path)
    return paths


@pytest.fixture(scope="session")
def prose(library):
    """Lines of text in which there are more letters than those of English."""
    lines = [line for path in library[:60] for line in path.read_text()[:3000].split("\n")]
    return [*lines, *["naïve café", "中文 текст"] * 9]


@dataclasses.dataclass
class Owned:
    """A tokenizer, the calls of its owner, the formats that it can have, and texts for it."""

    ours: bpe.Tokenizer
    encode: Callable | None = None
    decode: Callable | None = None
    formats: tuple = ("huggingface",)
    texts: st.SearchStrategy = dataclasses.field(default_factory=lambda: famous_texts)
    may_differ: Callable = lambda text: False  # in a tokenizer.json
    may_decode: Callable = lambda text, ids: True
    is_exact: bool = False  # no Unigram may have another way with the same rounded score
    honoured: Collection = "all"  # the special tokens that the owner finds in a text
    n_examples: int = 10
    decoded: tuple = ()  # ids that no text becomes


def huggingface_calls(theirs):
    encode = functools.partial(theirs.encode, add_special_tokens=False)
    decode = functools.partial(theirs.decode, skip_special_tokens=False)
    return lambda text: encode(text).ids, decode


def calls_at(folder, format):
    """The calls of the owner of a format, for the files in a folder."""
    if format == "huggingface":
        return huggingface_calls(theirs_from(folder))
    if format == "gpt2":
        model = tokenizers.models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt")
        return huggingface_calls(huggingface_tokenizer(model, [END], **OF_BYTE_LEVELS))
    described = read_json(folder / "tokenizer.tiktoken.json")
    ranks = tiktoken.load.load_tiktoken_bpe(str(folder / "tokenizer.tiktoken"))
    options = {"mergeable_ranks": ranks, "special_tokens": described["special_tokens"]}
    theirs = tiktoken.Encoding("t", pat_str=described["pattern"], **options)
    return functools.partial(theirs.encode, allowed_special="all"), theirs.decode


def own_model(here, options):
    """A model that we train."""
    return Owned(family_training(**options).tokenizer)


def own_merges(here, options, *formats):
    """The merges of one training with other patterns, special tokens and flags."""
    options = {"special_tokens": [END]} | options
    ours = bpe.Tokenizer(here.tokenizer.vocab, here.tokenizer.merges, **options)
    return Owned(ours, formats=formats)


def edited_json(here, part, added):
    changes = {"model__ignore_merges": not added and "[0-9]" not in str(part)}
    theirs = written(here.folder, here.tokenizer, added, pre_tokenizer=part, **changes)
    return Owned(bpe.Tokenizer.load(here.folder), *huggingface_calls(theirs), texts=added_texts)


def famous_model(here, name):
    theirs = famous(name, here.prose)
    data = json.loads(theirs.to_str())
    if name in ("llama", "albert", "bert"):  # a type that is not written is told by its fields
        del data["model"]["type"]
    (here.folder / "tokenizer.json").write_text(json.dumps(data))
    ours = bpe.Tokenizer.load(here.folder)
    return Owned(ours, *huggingface_calls(theirs), n_examples=50)


def small_model(here, name):
    model, added, parts, pieces = SMALL[name]
    theirs = huggingface_tokenizer(model, added, **parts)
    theirs.save(str(here.folder / "tokenizer.json"))
    last = sorted(id for name, id in theirs.get_vocab(with_added_tokens=True).items() if name)[-3:]
    fields = {"n_examples": 30, "decoded": ([1, 0, 3], last)}
    fields["texts"] = st.lists(st.sampled_from(pieces), max_size=20).map("".join)
    return Owned(bpe.Tokenizer.load(here.folder), *huggingface_calls(theirs), **fields)


def owned_by_sentencepiece(file, **fields):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ours = bpe.Tokenizer.load(file)
    normalizer = bpe._to_tokenizer_json(ours.model)["normalizer"]
    in_json = bpe.Normalizer([normalizer] if normalizer else [])

    def may_differ(text):
        # Hugging Face finds the tokens of bytes in a text
        normalized = in_json.normalize(text.encode()).decode()
        return "<0x" in text or normalized != theirs.normalize(text)

    def may_decode(text, ids):
        # of its own: sentencepiece takes away more of them than Hugging Face
        marks = text.lstrip().startswith("▁")
        return theirs.unk_id() not in ids and not marks

    calls = {"may_differ": may_differ, "may_decode": may_decode}
    fields = {"is_exact": True, "honoured": "none"} | calls | fields
    return Owned(ours, theirs.encode, theirs.decode, **fields)


def sentencepiece_model(here, options):
    _, file = trained_there(here.folder, here.prose, **options)
    symbols = options.get("user_defined_symbols", [])
    parts = st.lists(st.sampled_from([*symbols, "x", " ", "the ", "<s>"])).map("".join)
    fields = {"texts": famous_texts | symbol_texts | parts, "n_examples": 60}
    if symbols and options["model_type"] != "unigram":
        with note("some ids may differ"):  # a tokenizer.json finds symbols in another way
            bpe.Tokenizer.load(file).save(here.folder / "hf")
        fields |= {"honoured": symbols, "formats": ()}
    return owned_by_sentencepiece(file, **fields)


def model_of_pieces(here, pieces, kind):
    spec = {"add_dummy_prefix": kind == 1, "remove_extra_whitespaces": kind == 2}
    file = here.folder / "m.model"
    file.write_bytes(model_proto(pieces, kind, **spec).SerializeToString())
    parts = st.lists(st.sampled_from([" ", "  ", "und", "<ab>", "ab", "<", ">"]), max_size=12)
    return owned_by_sentencepiece(file, texts=parts.map("".join), n_examples=30, formats=())


def bert_vocabulary(here, lowercase):
    trained = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
    trained.train_from_iterator(here.prose, vocab_size=800, show_progress=False)
    trained.save_model(str(here.folder))
    theirs = tokenizers.BertWordPieceTokenizer(str(here.folder / "vocab.txt"), lowercase=lowercase)
    ours = bpe.Tokenizer.load(here.folder)
    for text in ("a b", "Élan VITAL 中文 [MASK]", "x" * 100, "x" * 101, "[CLS] a"):
        assert ours.to_huggingface().encode(text).ids == theirs.encode(text).ids  # also [SEP]
    return Owned(ours, *huggingface_calls(theirs))


# Texts of the parts of SentencePiece's models.
symbol_texts = st.text("aeinort sdé.,…ﬁ<x>12\n\t中", max_size=60) | st.text("a \n\t…", max_size=20)
# Symbols compete by their length, whatever the other scores are.
UND_PIECES = [("<unk>", 2, 0), ("▁", 1, -2), ("un", 1, -2), ("d", 1, -2)]
UND_PIECES += [("▁" * n, 4, 0) for n in (2, 3, 4)]
# A token with unknown characters is never made.
AB_PIECES = [("<unk>", 2, 0), ("a", 1, -2), ("b", 1, -3), ("ab", 1, -1), ("<ab>", 1, 0)]


def bpe_model(names, merges=(), **options):
    """A BPE of the `tokenizers` package; each merge is a text of two names."""
    pairs = [tuple(merge.split()) for merge in merges]
    return tokenizers.models.BPE({name: id for id, name in enumerate(names)}, pairs, **options)


# The last name is that of ’.
ODD_NAMES = ["a", "’", "b", "ab", "a’", "", *"âĢĻ", "âĢ", "âĢĻ"]
ODD = bpe_model(ODD_NAMES, ["a ’", "a b", "â Ģ", "âĢ Ļ"])
# The score of an unknown character is 10 less: "ca" and "b" are better than "c" and "ab".
UNLIKELY = {"<unk>": 0.0, "<s>": -100.0, "a": -12.0, "b": -12.0, "ca": -12.0, "ab": -1.0}
UNLIKELY = tokenizers.models.Unigram([*UNLIKELY.items()], 0)
MARKED = bpe_model(["▁", "x", "<s>"], unk_token="<s>")
SPACED = tokenizers.AddedToken(" <s>", normalized=True)
TO_MARKS = {"normalizer": N.Replace(" ", "▁"), "decoder": GEMMA_DECODER}
DIGIT_MERGES = ["Ã ¼", "Ã ©", "Ġ 1", "1 2", "¼ 1", "a b", "12 3", "Ù £"]
DIGIT_NAMES = [*map(in_chars, BYTES), *(merge.replace(" ", "") for merge in DIGIT_MERGES)]
DIGITS_LAST = bpe_model(DIGIT_NAMES, DIGIT_MERGES)
THREE_DIGITS = Split(Regex("[0-9][0-9][0-9]"), "isolated")
DIGIT_CUT = Sequence([P.Punctuation("contiguous"), BYTES_CUT, P.Digits(False), THREE_DIGITS])
OF_DIGITS = {"pre_tokenizer": DIGIT_CUT, "decoder": BYTES_BACK}
FUSED_MARKS = TO_MARKS | {"decoder": D.Fuse()}
BYTE_SCORES = [(name, -1.0) for name in ["<unk>", *FALLBACK, *"▁ab<>0xA"]]
BYTES_FALL = tokenizers.models.Unigram(BYTE_SCORES, 0, True)
# Models by hand, their special tokens and other parts, and the parts of texts for them.
SMALL = {
    "names of no bytes": (ODD, ["<end>"], OF_BYTE_LEVELS, ["a", "b", "’", "<end>"]),
    "the worst score": (UNLIKELY, ["<s>", "<unk>"], {"decoder": D.Fuse()}, ["cab", *"abc"]),
    "a token of normalized text": (MARKED, [SPACED], TO_MARKS, ["x", " ", " <s>"]),
    "digits after a ByteLevel": (DIGITS_LAST, [], OF_DIGITS, "üòé½¼²³٣12345 ab.,!"),
    "names of bytes": (BYTES_FALL, [], FUSED_MARKS, ["<0x0A>", "0x0A", "ab", *"<a \né"]),
}

COVERED = {"byte_fallback": True, "coverage": 0.99}
# How each family is trained, and whether text comes back.
FAMILIES = [
    ({"model": "bpe", "alphabet": "characters", "byte_fallback": True}, True),
    ({"model": "bpe", "alphabet": "characters", "mark": ""}, True),
    ({"model": "bpe", "alphabet": "characters", "mark": "", **COVERED}, True),
    ({"model": "bpe", "alphabet": "characters", "mark": "_", **COVERED}, False),
    ({"model": "bpe", "normalizer": ("nfc",)}, False),
    ({"model": "unigram"}, True),
    ({"model": "unigram", **COVERED}, True),
    ({"model": "wordpiece", "score": "likelihood", "min_frequency": 3}, False),
    ({"model": "wordpiece", "normalizer": ("bert",)}, False),
    ({"model": "longest"}, True),
    ({"model": "longest", "alphabet": "characters", "mark": "_"}, False),
]


@functools.cache
def family_training(**options):
    options = {"vocab_size": 1000, "special_tokens": (END,)} | options
    options = {
        name: list(value) if type(value) is tuple else value for name, value in options.items()
    }
    return bpe.train(utf8_library()[:20], workers=1, **options)


WORD_PATTERNS = ["bert", "whitespace", "whitespace-split"]  # these are no expressions
EXPRESSIONS = [name for name in bpe.PATTERNS if name not in WORD_PATTERNS]
SPECIALS = {"special_tokens": [END, f"d{END}", f"{END} {END}", ">\n"]}
# Texts full of characters that normalizers, pre-tokenizers and special tokens look for.
famous_texts = st.text("ab Éé\u0301ﬁ中12٣ \n\t.,'x▁<>#\u3000", max_size=40)
famous_texts |= st.text(st.sampled_from(OLD_CHARACTERS), max_size=40)
famous_texts |= st.text("aeinort sdé.,'<unk/w>12\n", max_size=60)
famous_texts |= st.lists(
    st.sampled_from(["the ", "self", END, "<x>", " ", "\n", "é中", "1234", "[MASK]", "<s>"])
).map("".join)


# Functions that make a tokenizer and name its owner, and their arguments.
OWNED = [
    *((own_merges, {"pattern": name}, "huggingface", "tiktoken") for name in EXPRESSIONS),
    *((own_merges, {"pattern": name}, "huggingface") for name in WORD_PATTERNS),
    (own_merges, {}, "gpt2"),
    (own_merges, {"pattern": [r"\p{N}{1,3}", "gpt2"], **SPECIALS}, "huggingface"),
    (own_merges, {"pattern": [bpe.Metaspace(" "), "gpt2"]}, "huggingface"),
    (own_merges, {"pattern": r"(?<=)\w+|\W"}),
    (own_merges, {"pattern": r"\S+|\s+"}, "huggingface"),
    (own_merges, SPECIALS, "huggingface"),
    (own_merges, {"flags": {END: STRIPS}}, "huggingface"),
    *((own_model, options) for options, _ in FAMILIES),
    *((own_model, {"special_tokens_at": at}) for at in ("after-bytes", "last")),
    *((edited_json, part, []) for part in PRE_TOKENIZERS),
    *((edited_json, part, ADDED) for part in PRE_TOKENIZERS),
    *((famous_model, name) for name in FAMOUS),
    *((small_model, name) for name in SMALL),
    *((sentencepiece_model, options) for options in SENTENCEPIECE),
    *((model_of_pieces, [*UND_PIECES, ("▁un", 1, score)], 1) for score in (-1.5, -0.01)),
    (model_of_pieces, AB_PIECES, 2),
    *((bert_vocabulary, lowercase) for lowercase in (False, True)),
]


def name_of_owned(param):
    return " ".join([param[0].__name__, *map(str, param[1:])])[:60]


@pytest.fixture(scope="module", params=OWNED, ids=name_of_owned)
def owned(request, prose, tokenizer, tmp_path_factory):
    make, *arguments = request.param
    folder = tmp_path_factory.mktemp("owned")
    result = make(SimpleNamespace(prose=prose, tokenizer=tokenizer, folder=folder), *arguments)
    result.folder = folder
    return result


def assert_as_good(owned, ids, expected):
    """The ids are equal; those of a Unigram may have another way with the same rounded score."""
    model = owned.ours.model
    if ids != expected:
        assert model.kind == "unigram"
        sums = [math.fsum(map(model.scores.item, way)) for way in (ids, expected)]
        assert math.isclose(*sums, rel_tol=1e-6 * len(expected))
        texts = [b"".join(map(model.vocab.get, way)) for way in (ids, expected)]
        assert texts[0] == texts[1]


def assert_written_as_read(folder, again):
    """Two files tokenizer.json are equal; names that stand for no bytes may differ."""
    read, written = (read_json(path / "tokenizer.json") for path in (folder, again))
    vocabs = [data.pop("model")["vocab"] for data in (read, written)]
    assert written == read
    assert vocabs[0] == vocabs[1] or "’" in vocabs[0]


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.filterwarnings(
    "ignore:some ids may differ", "ignore:.*can be produced", "ignore:.*no unknown token"
)
def test_ids_and_texts_are_those_of_the_owner_in_each_format(owned, prose, tmp_path):
    ours = owned.ours
    unpickled = pickle.loads(pickle.dumps(ours))
    saved = {}
    for format in owned.formats:
        folder = tmp_path / format
        ours.save(folder, format)
        loaded = bpe.Tokenizer.load(folder)
        loaded.save(tmp_path / f"{format} again", format)
        assert files_in(tmp_path / f"{format} again") == files_in(folder)
        saved[format] = loaded, *calls_at(folder, format)
    if "huggingface" in saved:
        # the scores of SentencePiece become merges, or floats of another type
        assert owned.is_exact or saved["huggingface"][0].digest == ours.digest
        if (owned.folder / "tokenizer.json").is_file():
            assert_written_as_read(owned.folder, tmp_path / "huggingface")

    @examples(owned.n_examples)
    @given(text=owned.texts)
    @example("\n".join(prose)[:5000])
    @example("<0x0A> <s> é <unk>")
    @example("▁ 1")
    def equal(text):
        expected = ours.encode(text)
        honoured = ours.encode(text, owned.honoured)
        chunks = [*text] if len(text) < 99 else [text]
        assert expected == unpickled.encode(text) == list(ours.encode_iterable(chunks))
        assert honoured == list(ours.encode_iterable(chunks, owned.honoured))
        if owned.encode:
            ids = owned.encode(text)
            assert ids == honoured or not owned.is_exact
            assert_as_good(owned, ids, honoured)
            if owned.may_decode(text, honoured):
                assert owned.decode(honoured) == ours.decode(honoured)
        if owned.may_differ(text):
            return
        for format, (loaded, encode, decode) in saved.items():
            assert_as_good(owned, encode(text), expected)
            assert_as_good(owned, loaded.encode(text), expected)
            if format != "tiktoken" and owned.may_decode(text, expected):
                assert decode(expected) == ours.decode(expected)

    equal()
    for ids in owned.decoded:
        assert ours.decode(ids) == owned.decode(ids)


def test_files_chunks_and_batches_have_the_ids_of_the_text(owned, tmp_path, monkeypatch):
    pieces = ["the ", "def", END, " ", "\n", "é中", "e\u0301", "1234", "  ", "<|", "|>\n"]
    pieces += ["<mask> ", " some words"]
    text = "".join(random.Random(7).choices(pieces, k=3000))
    expected = owned.ours.encode(text)
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 700)
    (tmp_path / "a.txt").write_text(text)
    bpe.encode_files(owned.ours, tmp_path / "a.txt", tmp_path / "a.npy", workers=2)
    assert np.load(tmp_path / "a.npy").tolist() == expected
    data = text.encode()
    chunks = [data[k : k + 99] for k in range(0, len(data), 99)]
    assert list(owned.ours.encode_iterable(chunks)) == expected
    assert owned.ours.encode_batch([text] * 3, threads=2) == [expected] * 3


def test_saved_models_load_from_each_of_their_files_by_any_name(tokenizer, tmp_path):
    folder = tmp_path / "new" / "model"
    tokenizer.save(folder)
    names = {"merges.txt", "vocab.json", "tokenizer.json", "tokenizer_config.json"}
    assert files_in(folder).keys() == names | {"special_tokens_map.json"}
    tokenizer.save(tmp_path / "ranks" / "named.tiktoken", "tiktoken")
    assert sorted(files_in(tmp_path / "ranks")) == ["named.tiktoken", "named.tiktoken.json"]
    files = [folder / "tokenizer.json", tmp_path / "ranks" / "named.tiktoken"]
    for vocab, merges in [("encoder.json", "vocab.bpe"), ("x.vocab.json", "x.merges.txt")]:
        other = tmp_path / vocab
        other.mkdir()
        (other / vocab).write_bytes((folder / "vocab.json").read_bytes())
        (other / merges).write_text((folder / "merges.txt").read_text().split("\n", 1)[1])
        files += [other / vocab, other / merges]
    loaded = [*map(bpe.Tokenizer.load, files)]
    loaded.append(bpe.Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt", [END]))
    loaded[1].save(tmp_path / "back")
    loaded[1] = bpe.Tokenizer.load(tmp_path / "back")
    for other in loaded:
        for name in ("vocab", "merges", "special_tokens"):
            assert getattr(other, name) == getattr(tokenizer, name)


EMPTY = {"type": "Sequence", "normalizers": []}


@pytest.mark.parametrize("decoder", [None, BYTE_LEVEL | {"use_regex": False}])
def test_only_changed_parts_of_a_tokenizer_json_are_rewritten(decoder, tokenizer, tmp_path):
    parts = in_sequence(split_by(r"\p{N}$"), BYTE_LEVEL | {"trim_offsets": False})
    part = {"decoder": decoder, "normalizer": EMPTY, "pre_tokenizer": parts}
    written(tmp_path, tokenizer, [{"content": "<new>"}], **part)
    read = read_json(tmp_path / "tokenizer.json")
    model = bpe.Tokenizer.load(tmp_path).model
    for change, changed in [
        ({}, set()),
        ({"special_tokens": [*model.special_tokens, "<newer>"]}, {"added_tokens"}),
        ({"normalizer": [{"type": "NFC"}]}, {"normalizer"}),
        ({"pattern": r"\w+(?![\s\S])|\s+"}, {"pre_tokenizer"}),
        ({"pattern": ["x", *model.pattern]}, {"pre_tokenizer"}),
        ({"pattern": [*model.pattern, "x"]}, {"pre_tokenizer"}),
    ]:
        bpe.save_model(dataclasses.replace(model, **change), tmp_path / "again", "huggingface")
        again = read_json(tmp_path / "again" / "tokenizer.json")
        assert {key for key in read if again[key] != read[key]} == changed
        ours = bpe.Tokenizer.load(tmp_path / "again")
        theirs = theirs_from(tmp_path / "again")
        for text in ("one 12\n3x<new>", "x1 2\n", "e\u0301<newer>"):
            assert ours.encode(text) == theirs.encode(text).ids


def test_an_empty_name_and_added_tokens_stay_where_they_were(tmp_path):
    model = bpe_model(["a", "", "b", "ab"], ["a b"])
    huggingface_tokenizer(model, ["<end>"], **OF_BYTE_LEVELS).save(f"{tmp_path}/tokenizer.json")
    with note("it leaves out unknown letters"):
        bpe.Tokenizer.load(tmp_path).save(tmp_path / "again", "huggingface")
    assert_written_as_read(tmp_path, tmp_path / "again")


def test_truncation_and_padding_are_kept_and_not_applied(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    edited(tmp_path, truncation=truncation)
    with note("truncation of a tokenizer.json"):
        again = bpe.Tokenizer.load(tmp_path)
    assert again.encode("one two three four") == tokenizer.encode("one two three four")
    assert json.loads(again.to_str())["truncation"] == truncation


@pytest.mark.parametrize(
    "processor",
    [
        A.BertProcessing(("<s>", 0), ("</s>", 1)),
        A.TemplateProcessing("$A </s>", "$A <s> $B", [("<s>", 0), ("</s>", 1)]),
        A.TemplateProcessing("$A", "$A <s> $B", [("<s>", 0)]),
        A.Sequence([A.ByteLevel(), A.TemplateProcessing("<s> $A", None, [("<s>", 0)])]),
        A.Sequence([A.ByteLevel()]),
    ],
)
def test_a_post_processor_that_adds_tokens_gets_a_note(processor):
    theirs = tokenizers.Tokenizer(bpe_model(["<s>", "</s>", "a"], unk_token="</s>"))
    theirs.post_processor = processor
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        ours = bpe.Tokenizer.from_str(theirs.to_str())
    assert ours.encode("aa") == [2, 2]
    is_noted = any("post_processor (unless `add_special_tokens`" in str(n.message) for n in notes)
    assert is_noted == (theirs.encode("aa").ids != [2, 2])


def test_a_special_token_that_merges_make_gets_a_note():
    vocab = BYTE_VOCAB | {256: b"ab"}
    with note("'ab' can be produced from ordinary text"):
        tokenizer = bpe.Tokenizer(vocab, [(b"a", b"b")], ["ab"])
    assert tokenizer.encode("ab", "none") == tokenizer.encode("ab") == [256]


def test_a_mark_that_never_occurs_is_no_token():
    options = {"vocab_size": 12, "alphabet": "characters", "workers": 1}
    tokenizer = bpe.train(texts=["low", "lower"], **options).tokenizer
    assert tokenizer.decode(tokenizer.encode("lower")) == "lower"


def test_ignore_merges_looks_up_no_special_token(tokenizer, tmp_path):
    """Hugging Face looks up whole pretokens, so that text can forge a token that is not allowed."""
    changes = {"model__ignore_merges": True, "pre_tokenizer": NO_REGEX}
    theirs = written(tmp_path, tokenizer, [{"content": "<w>"}], **changes)
    ours = bpe.Tokenizer.load(tmp_path)
    for text in ("a<w>b", "<w>", "x<w>x", END, f"a{END}"):
        assert ours.encode(text) == theirs.encode(text).ids
    theirs.encode_special_tokens = True
    assert ours.encode(f"a{END}", "none") == theirs.encode(f"a{END}").ids
    assert theirs.encode(END).ids == [0] != ours.encode(END, "none")
    written(tmp_path, tokenizer, [{"content": "<one>", "single_word": True}], **changes)
    with refusal(r"token '<one>': single_word is not supported"):
        bpe.Tokenizer.load(tmp_path)


def test_a_missing_unk_token_is_an_error_of_texts_as_in_hugging_face():
    for model in (
        bpe_model(["a", "b", "ab"], ["a b"], unk_token="<unk>"),
        tokenizers.models.WordPiece({"a": 0, "##b": 2}, unk_token="[UNK]"),
        tokenizers.models.WordLevel({"ab": 0, "b": 1}, "<unk>"),
    ):
        theirs = tokenizers.Tokenizer(model)
        ours = ours_from(theirs)
        assert ours.encode("ab") == theirs.encode("ab").ids
        with pytest.raises(Exception, match=r"(?i)unk"):
            theirs.encode("abc")
        with refusal("is not in the vocabulary"):
            ours.encode("abc")


def test_of_a_token_that_is_added_twice_the_last_counts_as_in_hugging_face(tokenizer, tmp_path):
    written(tmp_path, tokenizer, [{"content": "<x>", "lstrip": True}])
    *others, last = read_json(tmp_path / "tokenizer.json")["added_tokens"]
    edited(tmp_path, added_tokens=[*others, last | {"lstrip": False}, last])
    ids = theirs_from(tmp_path).encode("a <x> b").ids
    assert bpe.Tokenizer.load(tmp_path).encode("a <x> b") == ids


@example(["<0xEF>", "<0xBF>", "<0xBD>", "a", "<0xEF>"])
@given(
    st.lists(
        st.sampled_from(["a", "▁", *FALLBACK[0x1E:0x22], *FALLBACK[0xE3:0xE5]])
        | st.sampled_from(FALLBACK)
    )
)
def test_each_byte_of_a_damaged_run_is_decoded_as_in_hugging_face(tokens):
    theirs = huggingface_tokenizer(bpe_model(["a", "▁", *FALLBACK]), decoder=LLAMA_DECODER)
    ids = [*map(theirs.token_to_id, tokens)]
    model = bpe.read_huggingface(json.loads(theirs.to_str()))
    assert bpe.Tokenizer.from_model(model).decode(ids) == theirs.decode(ids)


@given(st.lists(st.floats(-30, -1e-9), min_size=1, max_size=20))
def test_scores_are_those_that_hugging_face_reads(scores):
    vocab = [[f"<{k}>", score] for k, score in enumerate(scores)]
    content = {"model": {"type": "Unigram", "unk_id": None, "vocab": vocab}}
    theirs = json.loads(tokenizers.Tokenizer.from_str(json.dumps(content)).to_str())
    ours = bpe.read_huggingface(content).scores
    assert [*map(bpe._as_parsed, ours)] == [score for _, score in theirs["model"]["vocab"]]


# Regular expressions that Oniguruma, which Hugging Face uses, reads otherwise than `regex` does.
common = [r"\p{N}{1,3}|\P{N}+", r"\p{N}{1,3}|[^\s\p{N}]++|\s", r"(?<!x)[a-z]+|.", "a{,2}b|."]
common += [r"\w+|[^\w\s]+|\s+", r"[^\w\s]|[\w\s]", r"[\w$]+|[^\w]|\$", r"[-\w^]|-", r"\W+|\w"]
rewritten = [r"^a|[\s\S]", "a$|.", r"\s+\z|\S+", r"\s+\Z|\S+", r"\h+|\H", r"\p{N}{1,2}+|\P{N}"]
rewritten += [r"[\h]+|\H", r"[^\w\h^]|[\w-]+|.", r"[\\w$]|."]
anchors = [r"\s+$|\S+", r"\p{N}{2,3}+|\P{N}", "(?m:.)+", "(?s:.)+x", r"\Aa|.", r"\b\w+(?!x)|\W"]
classes = [r"[^a-z\d]+?", r"[^\W\d]+|.", "[[:alpha:]$]+", "[a-z&&[^b]]+", "(?i:ß)|.", "(?i:ſ)+"]
classes += [r"\R|.", "[[:alpha:]]+", r"\X", "'(?i:ll|s)"]
# Texts of the characters that those expressions look for.
oniguruma_texts = st.text("ab12 3\n\r\tsSßſéxX{,}h&\u3000中²_\u200d$^\\-", max_size=30)


def unless_noted(make, error):
    """Call `make`; None if it is refused, or if a note says that some ids may differ."""
    with warnings.catch_warnings(record=True) as notes, contextlib.suppress(error):
        warnings.simplefilter("always")
        result = make()
        return None if any("may read" in str(note.message) for note in notes) else result
    return None


@pytest.mark.parametrize("pattern", [*common, *rewritten, *anchors, *classes])
@pytest.mark.filterwarnings("ignore:Possible nested set")
def test_splits_mean_what_they_mean_to_oniguruma_or_are_noted(tokenizer, tmp_path_factory, pattern):
    folder = tmp_path_factory.mktemp("oniguruma")
    tokenizer.save(folder, "huggingface")
    edited(folder, pre_tokenizer=in_sequence(split_by(pattern), NO_REGEX))
    try:
        theirs = theirs_from(folder)
    except Exception:  # Oniguruma does not know it; tokenizers raises no other class
        theirs = None
    ours = unless_noted(lambda: bpe.Tokenizer.load(folder), bpe.InputError)
    assert ours or pattern not in common + rewritten
    # And the other way: the meaning of the pattern to `regex` is written, or refused by us or, as
    # above, by them.
    make = functools.partial(bpe.Tokenizer, tokenizer.vocab, tokenizer.merges, [END], pattern)
    written = unless_noted(lambda: make().to_huggingface(), Exception)
    assert written or pattern not in common
    own = written and make()

    @example("1234567")
    @example("a \n b\na")
    @example("ssSSßß")
    @given(text=oniguruma_texts)
    def equal(text):
        if ours and theirs:
            assert ours.encode(text) == theirs.encode(text).ids
        if written:
            assert written.encode(text).ids == own.encode(text)

    equal()


# Special tokens of published encodings.
PUBLISHED = [
    ("o200k_harmony", 1091, {END: 199999, "<|call|>": 200012, "<|reserved_201087|>": 201087}),
    ("o200k_harmony", 1091, {"<|endofprompt|>": 200018, "<|reserved_200018|>": 200018}),
    ("llama3", 256, {"<|reserved_special_token_4|>": 128008, "<|eot_id|>": 128009}),
    ("llama3", 256, {"<|reserved_special_token_250|>": 128255}),
    ("llama3.1", 256, {"<|finetune_right_pad_id|>": 128004, "<|eom_id|>": 128008}),
    ("llama3.1", 256, {"<|python_tag|>": 128010, "<|reserved_special_token_247|>": 128255}),
    ("cl100k_base", 5, {END: 100257}),
    ("o200k_base", 2, {END: 199999}),
    *((name, 1, {END: 50256}) for name in ("gpt2", "r50k_base", "p50k_base")),
]


@pytest.mark.parametrize("name, n, tokens", PUBLISHED)
def test_published_encodings_have_their_tokens(name, n, tokens):
    special_tokens = bpe.ENCODINGS[name].special_tokens
    assert tokens.items() <= special_tokens.items() and len(special_tokens) == n


def test_one_rank_file_with_two_sets_of_special_tokens_asks_which(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.model"
    ranks = bpe.write_tiktoken(tokenizer.model)["tokenizer.tiktoken"].encode()
    one = bpe.Encoding("gpt2", {END: 5000}, hashlib.sha256(ranks).hexdigest())
    monkeypatch.setitem(bpe.ENCODINGS, "one", one)
    for data in (ranks, ranks.replace(b"\n", b"\r\n")):
        path.write_bytes(data)
        assert bpe.Tokenizer.load(path).special_tokens == {END: 5000}
    monkeypatch.setitem(bpe.ENCODINGS, "two", one._replace(special_tokens={"<|x|>": 5000}))
    with refusal(r"one.*two"):
        bpe.Tokenizer.load(path)
    assert bpe.Tokenizer.load(path, encoding="two").special_tokens == {"<|x|>": 5000}


@examples(60)
@given(data=words, seed=st.integers(0, 30))
def test_ranks_become_merges_that_mean_the_same(data, seed):
    source = random.Random(seed)
    # no merge makes the last token
    tokens = [*random_tokens_of_bytes(source, 40)[0], b"tttiia"]
    source.shuffle(tokens)
    by_id = bpe.Tokenizer(dict(enumerate(tokens)), None, pattern="none")
    text = data.decode("utf-8", "ignore")
    for string in (text, "tttiia"):
        assert by_id.to_huggingface().encode(string).ids == by_id.encode(string)


@examples(60)
@given(data=words, seed=st.integers(0, 30))
def test_merges_become_ranks_only_if_they_mean_the_same(data, seed):
    source = random.Random(seed)
    tokens, merges = random_tokens_of_bytes(source, 6)
    source.shuffle(merges)
    options = {"pattern": "none", "ignore_merges": seed % 2 == 0}
    tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), merges, **options)
    with contextlib.suppress(bpe.InputError):
        theirs = tokenizer.to_tiktoken()
        text = data.decode("utf-8", "ignore")
        assert theirs.encode_ordinary(text) == tokenizer.encode(text)


def test_another_model_in_the_folder_is_named(tokenizer, tmp_path):
    tokenizer.save(tmp_path, "huggingface")
    with note(r"tokenizer\.json may hold another model"):
        tokenizer.save(tmp_path, "tiktoken")


def test_a_failed_save_leaves_nothing(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path)
    before = files_in(tmp_path)
    monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tokenizer.save(tmp_path)
    assert files_in(tmp_path) == before


def test_suffixes_of_words_cannot_be_in_other_formats(tmp_path):
    vocab = dict(enumerate([*bpe.BYTES, *(byte + b"$" for byte in bpe.BYTES), b"ab$"]))
    model = bpe.Model(vocab, [(b"a", b"b$")], word_suffix="$")
    for name in ("gpt2", "tiktoken"):
        with pytest.raises(bpe.InputError):
            bpe.Tokenizer.from_model(model).save(tmp_path, name)
    with refusal("suffix"):
        bpe.train(texts=["ab"], from_=model)


def test_the_last_of_equal_lines_of_a_vocab_txt_counts_and_the_config_says_its_case(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[SEP]\n[CLS]\na\n##a\nb\na\n")
    with note("line 7: 'a' appears twice: the last line counts"):
        ours = bpe.Tokenizer.load(tmp_path)
    theirs = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=True)
    expected = theirs.encode("a aa b", add_special_tokens=False).ids
    assert ours.encode("a aa b") == expected == [6, 6, 4, 5]
    (tmp_path / "vocab.txt").write_text("[UNK]\n[UNUSED_0]\na\n##b\n<S>\nb \n")
    assert bpe.Tokenizer.load(tmp_path).encode("A ab b") == [2, 2, 3, 0]
    (tmp_path / "vocab.txt").write_text("[UNK]\nA\na\n##b\n")
    assert bpe.Tokenizer.load(tmp_path).encode("A ab") == [1, 2, 3]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert bpe.Tokenizer.load(tmp_path).encode("A ab") == [2, 2, 3]


def test_a_rank_file_may_have_a_line_without_a_token(tmp_path):
    lines = [f"{base64.b64encode(byte).decode()} {id}\n" for id, byte in enumerate(bpe.BYTES)]
    (tmp_path / "a.tiktoken").write_text("".join(lines) + "= 256\n")
    options = {"pattern": "gpt2", "special_tokens": {"<s>": 257}}
    tokenizer = bpe.Tokenizer.load(tmp_path / "a.tiktoken", **options)
    assert tokenizer.encode("a<s>") == [97, 257]


def test_an_unmerged_name_of_other_text_is_an_ordinary_token(tmp_path):
    names = [*map(in_chars, bpe.BYTES), "<é>", "<|end|>", "Ġhi", "Ã©Ã©"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    ours = bpe.Tokenizer.load(tmp_path)
    assert ours.special_tokens == {"<é>": 256, "<|end|>": 257}
    assert ours.encode("Ġhi") == list("Ġhi".encode()) and ours.decode([256, 258, 259]) == "<é> hiéé"
    names += [f"<{k}>" for k in range(100)]
    (tmp_path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    with note("no merge makes 102 names.*belong together"):
        bpe.Tokenizer.load(tmp_path)


# Names of the hub, and tokenizers of other libraries


class Hub(http.server.SimpleHTTPRequestHandler):
    """A hub of the files in a folder."""

    asked: ClassVar[list[str]] = []

    def end_headers(self):
        self.asked.append(self.path)
        self.send_header("ETag", f'"{zlib.crc32(self.path.encode()):040x}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        super().end_headers()

    def log_message(self, *_):
        pass


LOADS = """
import sys
import bpe_numba as bpe
for name in sys.argv[1:]:
    try:
        print(len(bpe.Tokenizer.load(name)), flush=True)
    except bpe.InputError as error:
        print(error, flush=True)
"""


def test_names_of_the_hub(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "hub" / "ann" / "bees" / "resolve" / "main")
    about = tmp_path / "hub" / "api" / "models" / "ann" / "bees"
    about.parent.mkdir(parents=True)
    about.write_text('{"id": "ann/bees", "siblings": [{"rfilename": "tokenizer.json"}]}')
    handler = functools.partial(Hub, directory=tmp_path / "hub")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    places = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": tmp_path / "home"}

    def load(*names):
        result = python("-c", LOADS, *names, cwd=tmp_path, **places)
        return result.stdout.decode().splitlines()

    found, again, missing = load("ann/bees", "ann/bees", "ann/wasps")
    server.shutdown()
    server.server_close()
    assert found == again == str(len(tokenizer))
    assert Hub.asked.count("/api/models/ann/bees") == 1
    assert missing.startswith("ann/wasps: no such file or folder; a name of the hub needs")
    # without a network: what is in the cache, and an answer at once
    start = time.monotonic()
    found, missing = load("ann/bees", "ann/wasps")
    assert found == again and missing.startswith("ann/wasps: no such file or folder; a name")
    assert time.monotonic() - start < 20  # a download would be tried again for longer


def test_a_name_of_the_hub_without_its_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refusal("pip install huggingface_hub .*; or download https://huggingface.co/ann/bees/"):
        bpe.Tokenizer.load("ann/bees")
    (tmp_path / "bob").mkdir()
    for name in ("bees", "./ann/bees", "ann/bees/cells", "/ann/bees", "ann/bees.json", "bob/bees"):
        with refusal("no such file or folder$"):
            bpe.Tokenizer.load(name)


def test_tokenizers_of_other_libraries_are_loaded(tokenizer):
    roles = {"eos_token": END, "model_max_length": 99, "chat_template": "{{ messages }}"}
    backend = tokenizer.to_huggingface()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
    theirs(["a", "b c"], truncation=True, max_length=1)  # which its backend remembers
    with warnings.catch_warnings(action="error"):
        loaded = bpe.Tokenizer.load(theirs)
    assert loaded.config == roles and loaded.digest == tokenizer.digest
    assert bpe.Tokenizer.load(backend).digest == tokenizer.digest
    loaded = bpe.Tokenizer.load(tokenizer.to_tiktoken())
    assert loaded.special_tokens == tokenizer.special_tokens
    assert loaded.encode(f"import this{END}") == tokenizer.encode(f"import this{END}")
    with refusal("a model is a path, a name of the hub, a tokenizers.Tokenizer"):
        bpe.Tokenizer.load(object())
    with refusal("has its own"):
        bpe.Tokenizer.load(theirs, pattern="gpt2")
    ranks = {byte: id for id, byte in enumerate(BYTES)}
    with refusal("may leave text unmatched"):
        bpe.Tokenizer.load(
            tiktoken.Encoding("t", pat_str=r"\w+", mergeable_ranks=ranks, special_tokens={})
        )


# ─── Kinds ────────────────────────────────────────────────────────────────────────────────────────


# A family in a file of its own, as docs/inside.md shows it.
INSIDE = (Path(__file__).with_name("docs") / "inside.md").read_text()
FEWEST = re.search(r"```python\n(.*?)```", INSIDE, re.DOTALL)[1]


@pytest.fixture
def fewest(tmp_path, monkeypatch):
    """That file, imported."""
    (tmp_path / "fewest.py").write_text(FEWEST)
    for name in ("KINDS", "FAMILIES"):
        monkeypatch.setattr(bpe, name, getattr(bpe, name).copy())
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("fewest")
    del sys.modules["fewest"]


def test_help_and_the_page_have_the_signatures_of_a_kind():
    for name in ("segment", "read", "sample", "begin_text"):
        arguments = re.search(rf"{name}(\(.+\))\n", pydoc.render_doc(bpe.Kind))[1]
        assert f"`{name}` | " in INSIDE and f"`{arguments}`" in INSIDE
    kernels = {"segment": bpe.segment_bpe, "sample": bpe.sample_bpe, "read": bpe.read_bpe}
    for name, function in (kernels | {"begin_text": bpe.begin_unigram}).items():
        arguments = ", ".join(inspect.signature(inspect.unwrap(function)).parameters)
        assert f"{name}({arguments})" in bpe.Kind.__doc__
    assert "trie_child(node, byte, edges)" in pydoc.render_doc(bpe.Trie)


def test_a_kind_of_tokenizers_is_added_in_one_place(fewest, tmp_path):
    ours = bpe.Tokenizer.from_model(bpe.Model(BYTE_VOCAB, None, {END: 256}, kind="fewest"))
    text = f"Any text, {END}é and more." * 500
    expected = bpe.Tokenizer(BYTE_VOCAB, [], {END: 256}).encode(text)
    plain = ours.digest
    ours = bpe.Tokenizer.from_model(dataclasses.replace(ours.model, extra={"of": [1, 2]}))
    assert ours.digest != plain
    ours.save(tmp_path / "model")
    (tmp_path / "a.txt").write_text(text)
    loaded = bpe.Tokenizer.load(tmp_path / "model")
    assert loaded.model.kind == "fewest" and loaded.digest == ours.digest
    assert loaded.model.extra == ours.model.extra == {"of": [1, 2]}
    for other in (ours, loaded, pickle.loads(pickle.dumps(loaded))):
        assert other.encode(text) == list(other.encode_iterable([text])) == expected
        assert other.encode_batch([text]) == [expected]
    bpe.encode_files(loaded, tmp_path / "a.txt", tmp_path / "a.npy", workers=2)
    assert np.load(tmp_path / "a.npy").tolist() == expected


# ─── Tokenizer ────────────────────────────────────────────────────────────────────────────────────


def test_special_tokens_are_honoured_only_where_allowed():
    vocab = BYTE_VOCAB | {256: b"<a>", 257: b"<a><b>"}
    tokenizer = bpe.Tokenizer(vocab, [], ["<a>", "<a><b>", "<new>"])
    assert tokenizer.special_tokens == {"<a>": 256, "<a><b>": 257, "<new>": 258}
    assert len(tokenizer) == 259
    text = "<a><a><b><new>"
    assert tokenizer.encode(text) == tokenizer.sample(text, 0.5) == [256, 257, 258]
    assert tokenizer.encode(text * 1000) == [256, 257, 258] * 1000
    assert tokenizer.encode(text, {"<a>"}) == [256, 256, *b"<b><new>"]
    assert tokenizer.encode_ordinary(text) == tokenizer.encode(text, "none") == list(text.encode())
    # two texts of one id
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: b"<end>"}, [], {"<end>": 256, "<stop>": 256})
    assert tokenizer.encode("<stop><end>") == [256, 256] and tokenizer.decode([256]) == "<end>"
    assert bpe.Tokenizer({0: b"<a>", 1: b"b"}, [], ["<a>"]).sample("b<a>b") == [1, 0, 1]


def test_what_a_model_decides_is_computed_once():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: b"<a>", 257: b"<b>"}, [], ["<a>", "<b>"])
    assert tokenizer.digest is tokenizer.digest == bpe.Tokenizer.from_model(tokenizer.model).digest
    changed = dataclasses.replace(tokenizer.model, ignore_merges=True)
    assert changed.digest != tokenizer.digest
    chosen = ["<a>"]
    assert tokenizer.encode("<a><b>", chosen) == [256, *b"<b>"]
    for same in (("<a>",), {"<a>"}, {"<a>": 1}, ["<a>", "<a>"]):
        assert tokenizer._prepare(same) is tokenizer._prepare(chosen)
    chosen.append("<b>")  # what was prepared is not that of the list, but of its tokens
    assert tokenizer.encode("<a><b>", chosen) == [256, 257]
    assert tokenizer.encode("<a><b>", []) == [*b"<a><b>"]
    with refusal("no special token is named '<c>'"):
        tokenizer.encode("<a>", {"<a>", "<c>"})


# Every public call that encodes and may be told which special tokens count: (tokenizer, text,
# chosen, a folder) -> ids. Those in ALL_OR_NO_IDS are not told, or make no ids.
CALLS = {
    "encode": lambda t, text, chosen, _: t.encode(text, chosen),
    "encode_ordinary": lambda t, text, *_: t.encode_ordinary(text),
    "encode_to_numpy": lambda t, text, chosen, _: t.encode_to_numpy(text, chosen),
    "encode_texts": lambda t, text, chosen, _: t.encode_texts(
        [text.encode(), b"", text.encode()], chosen
    )[0],
    "encode_batch": lambda t, text, chosen, _: chain(*t.encode_batch([text] * 3, chosen)),
    "encode_batch_to_numpy": lambda t, text, chosen, _: t.encode_batch_to_numpy(
        [text] * 3, chosen, threads=2
    )[0],
    "encode_batch_padded": lambda t, text, chosen, _: chain(
        *(row[:n] for row, n in zip(*t.encode_batch_padded([text] * 2, 99, chosen), strict=True))
    ),
    "encode_iterable": lambda t, text, chosen, _: [
        *t.encode_iterable(text, chosen),
        *t.encode_iterable([text], chosen),
    ],
    "sample": lambda t, text, chosen, _: (
        t.sample(text, 0.3, 1, chosen) if t.model.kind != "wordpiece" else []
    ),
    "encode_files": lambda t, text, chosen, folder: written_ids(t, text, chosen, folder),
}
ALL_OR_NO_IDS = {"source", "encode_corpus", "encode_words", "encode_with_offsets"}


def written_ids(tokenizer, text, chosen, folder):
    """The ids of two files; by two workers where none is special."""
    texts = [folder / f"{name}.txt" for name in "ab"]
    for path in texts:
        path.write_text(text)
    workers = 1 + (chosen == "none" and len(text) > 1000)
    bpe.encode_files(tokenizer, texts, folder / "ids.npy", allowed_special=chosen, workers=workers)
    return np.load(folder / "ids.npy")


def test_every_call_that_encodes_is_tried_with_forged_special_tokens():
    names = {
        name
        for name, member in (vars(bpe.Tokenizer) | vars(bpe)).items()
        if not name.startswith("_") and inspect.isfunction(member)
        if name.startswith("encode") or "allowed_special" in inspect.signature(member).parameters
    }
    assert names == CALLS.keys() | ALL_OR_NO_IDS


LETTERS_OF_SPECIALS = {
    "vocab": {k: char.encode() for k, char in enumerate("▁<>abes")} | {7: b"<e", 8: b"ab"},
    "merges": None,
    "alphabet": "characters",
    "normalizer": [*types("Lowercase"), replace(" ", "▁")],
}
BYTES_OF_SPECIALS = {"vocab": BYTE_VOCAB | {256: b"<e", 257: b"<es"}, "merges": None}
# Models whose tokens are parts of the special tokens.
FORGING_MODELS = {
    "bpe": BYTES_OF_SPECIALS | {"merges": [(b"<", b"e"), (b"<e", b"s")]},
    "ranks": BYTES_OF_SPECIALS,
    "letters": LETTERS_OF_SPECIALS | {"merges": [(b"<", b"e"), (b"a", b"b")]},
    "wordpiece": LETTERS_OF_SPECIALS | {"kind": "wordpiece"},
    "unigram": LETTERS_OF_SPECIALS | {"kind": "unigram", "scores": -np.arange(9.0)},
}
SPECIAL_FLAGS = {"<s>": bpe.AddedToken(lstrip=True, rstrip=True)}
SPECIAL_FLAGS["e>"] = bpe.AddedToken(normalized=True)


@pytest.mark.parametrize("kind", FORGING_MODELS)
@pytest.mark.parametrize("name", [*CALLS])
def test_no_call_makes_a_special_token_that_is_not_allowed(name, kind, tmp_path):
    specials = ["<e>", "<e><s>", "<s>", "e>"]
    options = FORGING_MODELS[kind] | {"special_tokens": specials, "flags": SPECIAL_FLAGS}
    model = bpe.Model(**options)
    tokenizer = bpe.Tokenizer.from_model(model)
    for text in ("<e>", "a<e><s> <s>ab e> <e", "<<e>><e><e><s>", "<E> <S>" * 40, "<e> b " * 300):
        for chosen in ("none", [], ["<s>"], {"e>", "<e>"}, "all"):
            chosen = "none" if name == "encode_ordinary" else chosen
            honoured = {"all": model.special_tokens, "none": []}.get(str(chosen), chosen)
            forbidden = {id for token, id in model.special_tokens.items() if token not in honoured}
            ids = {*map(int, CALLS[name](tokenizer, text, chosen, tmp_path))}
            assert ids <= model.vocab.keys() and not ids & forbidden, (text, chosen)


# Steps before a model -> whether a short text of ASCII needs no flat text, which takes longer.
SHORT_WAYS = {
    "plain": ({}, True),
    "llama": ({"normalizer": [PREPEND, replace(" ", "▁")]}, True),
    "bert": ({"normalizer": [bert()], "pattern": "bert"}, True),
    "composed": ({"normalizer": types("NFC", "Lowercase")}, True),
    "stripped": ({"normalizer": [bpe._STRIP, bpe._SPACES_TO_ONE]}, True),
    "first": ({"pattern": [bpe.Metaspace("_", "first"), "_?[^_]+|_"]}, True),
    "always": ({"pattern": [bpe.Metaspace(" "), "gpt2"], "normalizer": types("NFD")}, True),
    "never": ({"pattern": [bpe.Metaspace("_", "never"), "none"]}, True),
    "cut": ({"pattern": [bpe.Metaspace("_"), r"\d", "gpt2"]}, False),
}
SHORT_FLAGS = SPECIAL_FLAGS | {"<r>": bpe.AddedToken(rstrip=True), "é": bpe.AddedToken()}
few_specials = st.sets(st.sampled_from(["<s>", "e>", "<r>", "é", "E E"]))
short_pieces = st.lists(
    st.sampled_from([*"aeE1 é\u0301中\r▁_\x00", "<s>", " <s> ", "e>", "<r>", "a " * 2000]),
    max_size=9,
)
short_texts = (
    texts | short_pieces.map("".join) | hostile_bytes | short_pieces.map("".join).map(str.encode)
)


@pytest.mark.parametrize("way", SHORT_WAYS)
@given(text=short_texts, specials=few_specials, allowed=st.sampled_from(["all", "none"]))
def test_a_short_text_is_encoded_as_in_a_list(way, text, specials, allowed):
    options, has_short_way = SHORT_WAYS[way]
    flags = {token: SHORT_FLAGS[token] for token in specials & SHORT_FLAGS.keys()}
    merges = [(b"a", b" "), (b"a", b"e"), (b"e", b"e"), (b"\xe2", b"\x96")]
    vocab = dict(enumerate([*BYTES, *map(b"".join, merges)]))
    options = {"special_tokens": sorted(specials), "flags": flags, **options}
    tokenizer = bpe.Tokenizer.from_model(bpe.Model(vocab, merges, **options), cache_size=4)
    texts = [text, "a  e1", text, b"e\xfe", text]
    assert [tokenizer.encode(text, allowed) for text in texts] == tokenizer.encode_batch(
        texts, allowed, threads=1
    )
    tokenizer.encode_texts = None  # which is called for a list
    if has_short_way and not specials:
        assert len(tokenizer.encode("a e")) >= 2


list_pieces = st.lists(
    st.sampled_from(["", "a", "é", b"\xfe", b"a\xff", "中 " * 70, "<e>", b"b<e>"])
)


@given(list_pieces, st.sampled_from([200, 1 << 20]))
def test_texts_of_all_types_are_encoded_as_each_alone(texts, part_bytes):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: b"<e>"}, [], ["<e>"])
    for kind in (str, bytes, object):
        chosen = [text for text in texts if isinstance(text, kind)]
        long = [text * 300 for text in chosen[:2]]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bpe, "PART_BYTES", part_bytes)
            batch = tokenizer.encode_batch([*chosen, *long, *chosen], threads=1)
        for text, ids in zip([*chosen, *long, *chosen], batch, strict=True):
            data = text if isinstance(text, bytes) else text.encode()
            parts = data.replace(b"<e>", b"\x00<e>\x00").split(b"\x00")
            assert ids == [*chain.from_iterable([256] if p == b"<e>" else p for p in parts)]


def test_a_text_is_refused_in_any_place():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    for bad, message in (
        (None, "not NoneType"),
        ("a\ud800", r"U\+D800 at index 1"),
        (["a"], "not list"),
    ):
        for texts in ([bad], ["a", bad], [b"a", bad], [bad, b"a"], ["a", b"a", bad]):
            for n_copies in (1, 10**6):
                texts = [text * n_copies if text == "a" else text for text in texts]
                with pytest.raises(bpe.InputError, match=message):
                    tokenizer.encode_batch(texts, threads=1)
    with pytest.raises(bpe.InputError, match=r"U\+D800 at index 2500000"):
        tokenizer.encode("é" * 2_500_000 + "\ud800")


def rebuilt(tokenizer, **options):
    return bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, tokenizer.special_tokens, **options)


def left_to_regex(tokenizer):
    left = rebuilt(tokenizer, pattern=f"(?<=)(?:{tokenizer.pattern.source})")
    assert not left.pattern.is_compiled
    return left


def in_pieces(text):
    return [text[k : k + 999] for k in range(0, len(text), 999)]


def in_a_pool(pool, function, items):
    with pool:
        return list(pool.map(function, items))


def in_a_process(method, function, items):
    context = multiprocessing.get_context(method)
    return in_a_pool(ProcessPoolExecutor(1, mp_context=context), function, items)


# Ways to encode texts, once or more often, or only the last of them.
WAYS_TO_ENCODE = {
    "batches": lambda t, texts: [*t.encode_batch(texts), *t.encode_batch(texts, threads=3)],
    "one thread": lambda t, texts: t.encode_batch(texts, threads=1),
    "pieces": lambda t, texts: [list(t.encode_iterable(in_pieces(text))) for text in texts],
    "left to regex": lambda t, texts: left_to_regex(t).encode_batch(texts[-12:]),
    "pieces left to regex": lambda t, texts: WAYS_TO_ENCODE["pieces"](
        left_to_regex(t), texts[-12:]
    ),
    "a cache of 16": lambda t, texts: rebuilt(t, cache_size=16).encode_batch(texts * 2, threads=1),
    "a cache of 4,096": lambda t, texts: rebuilt(t, cache_size=1 << 12).encode_batch(
        texts * 2, threads=1
    ),
    "threads": lambda t, texts: in_a_pool(ThreadPoolExecutor(8), rebuilt(t).encode, texts * 3),
    "threads and a cache of 64": lambda t, texts: in_a_pool(
        ThreadPoolExecutor(8), rebuilt(t, cache_size=64).encode, texts * 3
    ),
    "a forked process": lambda t, texts: in_a_process("fork", t.encode, texts[-6:]),
    "a new process": lambda t, texts: in_a_process("spawn", t.encode, texts[-6:]),
}


@pytest.mark.parametrize("way", WAYS_TO_ENCODE)
def test_ids_do_not_depend_on_batches_caches_threads_and_processes(
    way, tokenizer, some_texts, monkeypatch
):
    expected = [tokenizer.encode(text) for text in some_texts]
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 5000)
    monkeypatch.setattr(bpe, "PART_BYTES", 300)
    ids_of_texts = WAYS_TO_ENCODE[way](tokenizer, some_texts)
    assert ids_of_texts == (expected * 3)[-len(ids_of_texts) :] and len(ids_of_texts) > 5


def test_half_a_surrogate_pair_is_found_where_it_is_in_a_long_text(monkeypatch):
    monkeypatch.setattr(bpe, "PART_BYTES", 100)
    with pytest.raises(ValueError, match=r"U\+D800 at index 1200 of"):
        bpe.Tokenizer(BYTE_VOCAB, []).encode("café and " * 133 + "one\ud800 two")


def test_chunks_may_be_bytes_and_str():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    assert list(tokenizer.encode_iterable([b"\xe2", "abc", b"\x82"])) == list(b"\xe2abc\x82")


def test_results_do_not_share_the_memory_of_a_thread():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], ["<s>"])
    tokenizer.encode("x")
    large = b"ab\n" * (1 << 20)
    # longer than the arrays of a thread, and than those of a scan
    texts = [b"x<s>", large, b"", b"y\xff" * 300_000]
    arrays = [tokenizer.encode_to_numpy(text, "none") for text in texts]
    lists = [tokenizer.encode_ordinary(text) for text in (*texts, b"z" * 20)]
    for ids, text in zip(arrays, texts, strict=True):
        assert ids.dtype == np.uint32 and np.array_equal(ids, np.frombuffer(text, np.uint8))
    assert [bytes(ids) for ids in lists] == [*texts, b"z" * 20]
    assert tokenizer.encode("x<s>") == [*b"x", 256]
    assert tokenizer.encode_ordinary("x<s>") == [*b"x<s>"]
    with refusal("0x79"):
        bpe.Tokenizer({0: b"x"}, []).encode("xxy")


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
            copies = [*pool.map(lambda k: pickle.loads(pickled[k % 6]), range(100))]
    finally:
        threading.settrace(None)
    assert [tokenizer.token_to_id(b"b") for tokenizer in copies] == [1 + k % 6 for k in range(100)]


def test_copies_are_independent(tokenizer):
    ours = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, tokenizer.special_tokens)
    for copied in (lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy, copy.deepcopy):
        first = copied(ours)
        ours.model.config["model_max_length"] = ours.model.config.get("model_max_length", 0) + 1
        second = copied(ours)
        assert len({id(ours.model.config), id(first.model.config), id(second.model.config)}) == 3
        assert second.model.config == ours.model.config != first.model.config
        assert second.encode("the end") == ours.encode("the end")


def normalized_tokenizer(kind):
    """A tokenizer that lowers letters and drops accents and white space."""
    names = ["[UNK]", "a", "b", "ab", "##b", "##a", "中"]
    options = {"vocab": dict(enumerate(map(str.encode, names))), "merges": None, "kind": kind}
    options |= {"normalizer": [bpe.NORMALIZERS["bert"]], "unk_token": "[UNK]"}
    if kind == "unigram":
        options |= {"scores": -np.arange(len(names), dtype=float), "fuse_unk": True}
    model = bpe.Model(
        **options, special_tokens=["[UNK]"], pattern="whitespace-split", alphabet="characters"
    )
    model.batching = {"truncation": {"max_length": 1, "stride": 0, "strategy": "LongestFirst"}}
    model.batching["truncation"]["direction"] = "Right"
    model.subword_prefix = "##" * (kind == "wordpiece")
    return bpe.Tokenizer.from_model(model)


@pytest.mark.parametrize("kind", ["wordpiece", "wordlevel", "unigram"])
@given(text=st.text("aÁbB x中\u0301😀", max_size=12))
@examples(10)
def test_offsets_in_normalized_text_are_those_of_hugging_face(kind, text):
    ours = normalized_tokenizer(kind)
    theirs = ours.to_huggingface()
    theirs.no_truncation()
    expected = theirs.encode(text)
    ids, characters = ours.encode_with_offsets(text, characters=True)
    assert ids == expected.ids and characters == [start for start, _ in expected.offsets]
    _, places = ours.encode_with_offsets(text)
    assert places == [len(text[:start].encode()) for start in characters]


def test_a_space_before_a_word_is_no_character_of_it():
    ours = normalized_tokenizer("wordlevel")
    ours.model.decoder = (None,)
    ours = bpe.Tokenizer.from_model(ours.model)
    assert ours.encode_with_offsets("ab b") == ([3, 2], [0, 2])
    assert ours.encode_with_offsets("ab b", characters=True) == ([3, 2], [0, 3])


def test_there_are_no_offsets_if_hugging_face_has_other_ids():
    ours = normalized_tokenizer("wordlevel")
    with refusal("no offsets"):
        ours.encode_with_offsets("[UNK]a", "none")
    with refusal("not UTF-8"):
        ours.encode_with_offsets(b"A\xff")


@given(text=st.text("aé中😀 <", max_size=9))
def test_offsets_in_characters(text):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: "é中".encode()}, None, [])
    ids, places = tokenizer.encode_with_offsets(text, characters=True)
    assert places == tokenizer.to_tiktoken().decode_with_offsets(ids)[1]


def test_special_tokens_can_be_skipped():
    flags = {"<plain>": bpe.AddedToken(special=False)}
    names = ["<s>", "<plain>", "a", "##b"]
    model = bpe.Model(
        dict(enumerate(map(str.encode, names))),
        None,
        names[:2],
        "whitespace-split",
        "wordpiece",
        alphabet="characters",
        flags=flags,
        subword_prefix="##",
        decoder=[{"type": "WordPiece", "prefix": "##", "cleanup": True}],
    )
    ours = bpe.Tokenizer.from_model(model)
    for ids in ([], [0], [0, 3, 2], [1, 0, 3, 0], np.array([0, 2, 2, 0], np.uint32)):
        for skip in (True, False):
            expected = ours.to_huggingface().decode(list(ids), skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
            assert ours.decode_batch([ids] * 2, skip) == [expected] * 2


def test_a_special_token_that_is_found_in_another_form_is_not_skipped():
    names = ["<S>", "<e>", "<P>", "<p>", "a"]
    flags = {name: bpe.AddedToken(normalized=name != "<p>") for name in names[:4]}
    model = bpe.Model(
        dict(enumerate(map(str.encode, names))),
        [],
        names[:4],
        alphabet="characters",
        flags=flags,
        normalizer=[{"type": "Lowercase"}],
    )
    ours = bpe.Tokenizer.from_model(model)
    for ids in ([0, 4], [1, 4], [2, 4], [3, 4], [0, 1, 2, 3, 4]):
        assert ours.decode(ids, True) == ours.to_huggingface().decode(ids)


@pytest.mark.parametrize("added", [["<new>"], ["ab", "<new>"], ["Ġb"], [" b", "<end>", "é"]])
def test_new_special_tokens_get_the_ids_of_hugging_face(added):
    vocab = BYTE_VOCAB | {256: b"ab", 257: b" b"}
    merges = [(b"a", b"b"), (b" ", b"b")]
    ours = bpe.Tokenizer(vocab, merges, ["<end>"])
    again = bpe.Tokenizer.from_str(ours.to_str())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*can be produced from ordinary text")
        for old in (ours, ours.with_special_tokens(["<more>"]), again):
            theirs = old.to_huggingface()
            theirs.add_special_tokens(added)
            new = old.with_special_tokens(added)
            text = f"x ab{added[0]} b<end> " + added[-1]
            assert new.encode(text) == theirs.encode(text).ids
            assert new.get_vocab() == theirs.get_vocab()
            assert new.special_tokens.keys() == {*old.special_tokens, *added}
            assert bpe.Tokenizer.from_str(new.to_str()).digest == new.digest
    assert ours.special_tokens == {"<end>": 258}
    with refusal("given twice"):
        ours.with_special_tokens(["<x>", "<x>"])


@pytest.mark.parametrize("template", ["<s> $A </s>", "$A</s>", "<s> <s> $A", "$A"])
def test_a_template_is_applied_by_hugging_face(template):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], ["<s>", "</s>"])
    ours = tokenizer.with_special_tokens(template=template)
    theirs = ours.to_huggingface()
    assert ours.encode("ab", add_special_tokens=True) == theirs.encode("ab").ids
    before, after = template.split("$A")
    pair = [*tokenizer.encode(before.replace(" ", "") + "ab"), *tokenizer.encode(after.strip())]
    pair += [*b"c", *tokenizer.encode(after.strip())]
    assert theirs.encode("ab", "c").ids == pair
    for wrong in ("<s>", "", "$A $A", "$A:1 </s>", "<s> $A <x>", "$A $B"):
        with refusal(r"`template` is \$A between special tokens"):
            tokenizer.with_special_tokens(template=wrong)


def test_a_tokenizer_can_be_a_string(tokenizer):
    again = bpe.Tokenizer.from_str(tokenizer.to_str())
    assert again.digest == tokenizer.digest and again.n_vocab == tokenizer.vocab_size


def template(single, **special_tokens):
    numbers = list(special_tokens.items())
    return A.TemplateProcessing(single=single, pair="$A $B:1", special_tokens=numbers)


POST_PROCESSORS = [
    template("CLS $A SEP", CLS=1, SEP=2),
    template("$A:1 SEP", SEP=2),
    template("CLS CLS $A", CLS=1),
    A.BertProcessing(("SEP", 2), ("CLS", 1)),
    A.RobertaProcessing(("SEP", 2), ("CLS", 1)),
    A.ByteLevel(),
    A.Sequence([A.ByteLevel(), template("CLS $A", CLS=1)]),
]


def post_processed(processor):
    """A tokenizer of Hugging Face with five tokens, and ours."""
    vocab = {name: id for id, name in enumerate(["UNK", "CLS", "SEP", "a", "b"])}
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="UNK"))
    theirs.pre_tokenizer = P.Whitespace()
    theirs.add_special_tokens(["CLS", "SEP"])
    theirs.post_processor = processor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "post_processor")
        return theirs, bpe.Tokenizer.from_str(theirs.to_str())


@pytest.mark.parametrize("processor", POST_PROCESSORS, ids=lambda part: type(part).__name__)
def test_special_tokens_are_added_as_in_hugging_face(processor):
    theirs, ours = post_processed(processor)
    some_texts = ["a b a b a", "", "x CLS b", "a"]
    expected = [theirs.encode(text).ids for text in some_texts]
    bare = [theirs.encode(text, add_special_tokens=False).ids for text in some_texts]
    assert ours.encode_batch(some_texts) == bare
    assert ours.encode_batch(some_texts, add_special_tokens=True) == expected
    assert ours.encode_batch([], add_special_tokens=True) == []
    for text, ids in zip(some_texts, expected, strict=True):
        assert ours.encode(text, add_special_tokens=True) == ids
        assert ours.encode_to_numpy(text, add_special_tokens=True).tolist() == ids
        assert [*ours.encode_iterable([text[:2], text[2:]], add_special_tokens=True)] == ids
    for size, side in itertools.product((3, 4, 99), ("right", "left")):
        theirs.enable_truncation(size)
        theirs.enable_padding(direction=side, pad_id=7)
        expected = theirs.encode_batch(some_texts)
        rows, lengths = ours.encode_batch_padded(
            some_texts, size, add_special_tokens=True, pad_id=7, pad_left=side == "left"
        )
        assert rows.tolist() == [row.ids for row in expected] and rows.dtype == np.uint32
        assert lengths.tolist() == [sum(row.attention_mask) for row in expected]


def test_a_padded_batch_may_have_no_texts_and_no_ids(tokenizer):
    assert tokenizer.encode_batch_padded([])[0].shape == (0, 0)
    assert tokenizer.encode_batch_padded(["", ""])[0].shape == (2, 0)
    assert tokenizer.encode_batch_padded(["a", "b"], 0)[0].shape == (2, 0)
    assert tokenizer.encode_batch_padded(["a"], min_length=3)[0].shape == (1, 3)
    ours = post_processed(POST_PROCESSORS[0])[1]
    assert ours.encode_batch_padded(["a"], 2, add_special_tokens=True)[0].tolist() == [[1, 2]]
    with refusal("`max_length` 1 has no room"):
        ours.encode_batch_padded(["a"], 1, add_special_tokens=True)


BERT_PROCESSING = {"type": "BertProcessing", "cls": ["CLS", 1], "sep": ["SEP", 2]}
TEMPLATE = {"type": "TemplateProcessing", "special_tokens": {}}


@pytest.mark.parametrize(
    "processor",
    [
        BERT_PROCESSING | {"cls": ["CLS", 9]},
        BERT_PROCESSING | {"cls": ["CLS", [1]]},
        BERT_PROCESSING | {"cls": []},
        TEMPLATE,
        TEMPLATE | {"single": []},
        TEMPLATE | {"single": [{"Sequence": {"id": "B"}}]},
        TEMPLATE | {"single": [{"Sequence": {"id": "A"}}] * 2},
        {"type": "Sequence", "processors": [BERT_PROCESSING] * 2},
        {"type": "Pairs"},
    ],
    ids=str,
)
def test_a_post_processor_that_does_more_is_refused_where_it_is_asked_for(processor):
    model = bpe.Model(BYTE_VOCAB, [], post_processor=processor)
    if processor["type"] == "BertProcessing":
        model = bpe.Model({0: b"a", 1: b"CLS", 2: b"SEP"}, [], post_processor=processor)
    ours = bpe.Tokenizer.from_model(model)
    assert len(ours.encode("a")) == 1
    for encode in (ours.encode, ours.encode_batch, ours.encode_batch_padded):
        with refusal("post_processor .*not supported"):
            encode("a" if encode == ours.encode else ["a"], add_special_tokens=True)


def test_special_tokens_that_can_be_read_only_once_are_refused():
    tokenizer = bpe.Tokenizer({b: bytes([b]) for b in range(256)}, [], ["<|end|>"])
    with pytest.raises(bpe.InputError, match="special"):
        tokenizer.encode("a", iter(["<|end|>"]))
    for encode in (tokenizer.encode_batch, tokenizer.encode_iterable):
        with pytest.raises(bpe.InputError, match="special"):
            list(encode(["a"], iter(["<|end|>"])))


@pytest.mark.parametrize("encode", [bpe.Tokenizer.encode, bpe.Tokenizer.sample])
def test_an_unknown_letter_of_the_word_is_named(encode):
    vocab = {0: b"a", 1: b"aa"}
    model = bpe.Model(vocab, [(b"a", b"a")], None, "whitespace-split", alphabet="characters")
    with pytest.raises(bpe.InputError, match="the character 'x' is not in the vocabulary"):
        encode(bpe.Tokenizer.from_model(model), "aa a axb")


# Tokenizers of other libraries that encode here


def swappable(kind, tokenizer):
    """A tokenizer of `transformers`: of bytes, a BERT, or a T5."""
    if kind == "bytes":
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer.to_huggingface(), pad_token=END
        )
    data = ["Hello, hello world! It is what it is.", "中文 a b c d 1 2 3"] * 2
    if kind == "bert":
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        theirs = trained_by_hugging_face(
            "WordPiece", data, P.BertPreTokenizer(), {"unk_token": "[UNK]"}, special_tokens=specials
        )
        theirs.normalizer = N.BertNormalizer()
        theirs.post_processor = A.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        names = ["input_ids", "token_type_ids", "attention_mask"]
        roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_input_names": names}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=theirs, **roles)
    specials = ["<pad>", "</s>", "<unk>"]
    theirs = trained_by_hugging_face(
        "Unigram", data, P.Metaspace(), special_tokens=specials, unk_token="<unk>"
    )
    theirs.post_processor = A.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    roles = {"pad_token": "<pad>", "padding_side": "left", "model_max_length": 20}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=theirs, **roles)


@pytest.fixture(scope="session")
def swapped(tokenizer):
    """Tokenizers of `transformers`, each beside ours that is made of it."""
    pairs = {}
    for kind in ("bytes", "bert", "t5"):
        theirs = swappable(kind, tokenizer)
        pairs[kind] = theirs, bpe.Tokenizer.load(theirs).as_hf()
    return pairs


def batch_of(tokenizer, *inputs, **options):
    """The keys, types, shapes and values of a batch, or the error."""
    try:
        batch = tokenizer(*inputs, **options)
    except Exception as error:
        return type(error), str(error)
    values = {name: (type(rows), getattr(rows, "dtype", 0)) for name, rows in batch.items()}
    return type(batch), values, {name: np.array(rows, object) for name, rows in batch.items()}


def assert_same_batch(pair, *inputs, **options):
    theirs, ours = (batch_of(tokenizer, *inputs, **options) for tokenizer in pair)
    assert repr(ours) == repr(theirs)


call_options = st.fixed_dictionaries(
    {},
    optional={
        "padding": st.sampled_from([False, True, "longest", "max_length"]),
        "truncation": st.sampled_from([None, False, True, "longest_first", "only_second"]),
        "max_length": st.sampled_from([None, 0, 1, 2, 4, 9, 70]),
        "add_special_tokens": st.booleans(),
        "return_tensors": st.sampled_from([None, "np"]),
        "return_length": st.booleans(),
        "return_offsets_mapping": st.booleans(),
    },
)
hostile_texts = texts | st.text("Helo, it\ud800<pad>[CLS]\x00中", max_size=30)
hostile_texts |= st.sampled_from(["", " ", END, "[CLS] a", "</s> </s>", "It is " * 9])


@pytest.mark.parametrize("kind", ["bytes", "bert", "t5"])
@given(st.data())
@examples(60)
def test_a_swapped_tokenizer_gives_what_transformers_gives(swapped, kind, data):
    inputs = data.draw(hostile_texts | st.lists(hostile_texts, max_size=5).map(tuple))
    options = data.draw(call_options)
    for side in data.draw(st.sampled_from([("right", "left"), ("left", "right"), ("right",) * 2])):
        for tokenizer in swapped[kind]:
            tokenizer.truncation_side = side
        assert_same_batch(swapped[kind], inputs, **options)
    assert_same_batch(swapped[kind], inputs, "a pair", **options)


def test_all_but_plain_texts_is_left_to_transformers(swapped, tmp_path):
    for theirs, ours in swapped.values():
        theirs.truncation_side = ours.truncation_side = "right"
        texts = ["Hello, it is 1 2", "", "c d"]
        batch = ours(texts, truncation=True, max_length=3)
        assert isinstance(batch.encodings, bpe._LateEncodings)  # they were not made there
        there = theirs(texts, truncation=True, max_length=3)
        for same in (batch, pickle.loads(pickle.dumps(batch)), batch.copy()):
            assert same.data == there.data and same.is_fast
            assert same.tokens(0) == there.tokens(0) and same[2].offsets == there[2].offsets
            assert same.word_ids(0) == there.word_ids(0)
        assert type(ours).__name__ == type(theirs).__name__ and isinstance(ours, type(theirs))
        ids = there["input_ids"]
        assert ours.batch_decode(ids) == theirs.batch_decode(ids)
        assert ours.tokenize(texts[0]) == theirs.tokenize(texts[0])
        assert ours.encode(*texts[:2]) == theirs.encode(*texts[:2])
        collate = transformers.DataCollatorWithPadding(ours, return_tensors="np")
        padded = collate([ours(text) for text in texts])
        assert (
            padded["input_ids"] == theirs(texts, padding=True, return_tensors="np").input_ids
        ).all()
        for tokenizer, name in ((ours, "ours"), (theirs, "theirs")):
            tokenizer.backend_tokenizer.no_truncation()  # each library's last call is another
            tokenizer.backend_tokenizer.no_padding()
            tokenizer.save_pretrained(tmp_path / name)
        for file in (tmp_path / "theirs").iterdir():
            assert (tmp_path / "ours" / file.name).read_bytes() == file.read_bytes()


def test_a_swapped_tokenizer_follows_changes_and_can_be_copied(tokenizer):
    theirs = swappable("bert", tokenizer)
    ours = bpe.Tokenizer.load(theirs).as_hf()
    text = "Hello <new> it is [MASK]"
    for change in (
        lambda t: t.add_tokens(["<new>", "lo"]),
        lambda t: t.add_special_tokens({"sep_token": "is"}),
        lambda t: setattr(t.backend_tokenizer, "post_processor", None),
        lambda t: setattr(t, "split_special_tokens", True),
    ):
        change(theirs)
        change(ours)
        assert_same_batch((theirs, ours), [text, text])
    for copied in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert_same_batch((theirs, copied), [text, text])


def test_what_is_swapped_is_that_of_the_folder(swapped, tokenizer, tmp_path):
    theirs, _ = swapped["bert"]
    theirs.save_pretrained(tmp_path / "bert")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    for path in (tmp_path / "bert", tmp_path / "bert/tokenizer.json"):
        ours = bpe.Tokenizer.load(path).as_hf()
        assert ours.name_or_path == theirs.name_or_path
        assert_same_batch((theirs, ours), ["Hello", "it is what"], padding=True)
    # one that transformers has no files of is as saved
    tokenizer.save(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert_same_batch((theirs, tokenizer.as_hf()), ["import this", END], return_tensors="np")
    with refusal("dropout"):
        bpe.Tokenizer.load(huggingface_tokenizer(tokenizers.models.BPE(dropout=0.5))).as_hf()


def encoded_by(encoding, method, texts, **options):
    try:
        return getattr(encoding, method)(texts, **options)
    except Exception as error:
        return type(error), str(error)


@given(st.lists(hostile_texts | st.sampled_from(["<s>", "a<s>" + END]), max_size=5), st.data())
def test_a_swapped_encoding_gives_what_tiktoken_gives(tokenizer, texts, data):
    model = tokenizer.model
    specials = model.special_tokens | {"<s>": len(tokenizer) + 1}
    encoding = tokenizer.to_tiktoken("named")
    theirs = tiktoken.Encoding(
        "named",
        pat_str=encoding._pat_str,
        mergeable_ranks=encoding._mergeable_ranks,
        special_tokens=specials,
    )
    ours = bpe.Tokenizer.load(theirs).as_tiktoken()
    tokens = st.sets(st.sampled_from([END, "<s>", "a"]), max_size=2)
    options = {
        "allowed_special": data.draw(st.just("all") | tokens),
        "disallowed_special": data.draw(st.just("all") | tokens),
    }
    for encoded in (ours, pickle.loads(pickle.dumps(ours))):
        assert isinstance(encoded, tiktoken.Encoding) and encoded.name == "named"
        for arguments in (("encode_batch",), ("encode_ordinary_batch",)):
            expected = encoded_by(theirs, *arguments, texts)
            assert encoded_by(encoded, *arguments, texts) == expected
        expected = encoded_by(theirs, "encode_batch", texts, **options)
        assert encoded_by(encoded, "encode_batch", texts, **options) == expected


# ─── Token files ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def corpus(library, tmp_path_factory):
    """Files of every kind, and their documents, which end at special tokens, lines or files."""
    folder = tmp_path_factory.mktemp("corpus")
    source = random.Random(5)
    code = [path.read_text("utf-8")[:6000] for path in library[:30]]
    prose = "中文，没有空格。\nЭто русский текст.\n".encode() * 200
    prose += source.randbytes(200) + b"\xff bytes \xc3" * 500
    (folder / "a.txt").write_text(END.join(code[:20]) + END)
    lines = [json.dumps({"text": text}) + "\n" for text in [*code[20:], "", f"x{END}", ""]]
    (folder / "b.jsonl").write_text("".join(lines))
    (folder / "c.txt.gz").write_bytes(gzip.compress((END.join(code[:5]) + "no end").encode()))
    (folder / "d.txt").touch()
    (folder / "e.txt").write_bytes(prose)
    documents = [code[:20], *([text] for text in code[20:]), [""], ["x"], [""]]
    documents.append([*code[:4], code[4] + "no end"])
    return folder, (*(tuple(text.encode() for text in texts) for texts in documents), (prose,))


@functools.cache
def counted_naively(corpus, pattern):
    documents = [document for texts in corpus[1] for document in texts]
    source = bpe.PATTERNS.get(pattern, pattern)
    words = Counter(word for document in documents for word in naive_split(source, document))
    return words, len(list(filter(None, documents)))


@pytest.fixture(params=[(1, 1 << 10), (3, 5000)], ids=str)
def workers(request, monkeypatch):
    """A number of workers, for blocks of so many bytes."""
    workers, block_bytes = request.param
    monkeypatch.setattr(bpe, "BLOCK_BYTES", block_bytes)
    return workers


DIGITS_FIRST = (r"\p{N}{1,3}", bpe.PATTERNS["gpt2"])


@pytest.mark.parametrize(
    "pattern", ["gpt2", "cl100k", "o200k", "none", r"(?<!x)\w+", DIGITS_FIRST], ids=str
)
@pytest.mark.filterwarnings("ignore:.*is not UTF-8", "ignore:.*is left to the `regex`")
def test_counts_do_not_depend_on_workers_and_blocks(pattern, workers, corpus):
    counts = counted(bpe.find_files(corpus[0]), pattern=pattern, workers=workers)
    assert counts == counted_naively(corpus, pattern)


@pytest.mark.filterwarnings("ignore:.*is not UTF-8", "ignore:.*no text")
def test_trainings_do_not_depend_on_workers_blocks_and_shards(workers, corpus, tmp_path):
    words, n_documents = counted_naively(corpus, "gpt2")
    expected = bpe.train_bpe_from_counts(words, 500, [END])
    files = bpe.find_files(corpus[0])
    assert bpe.train_bpe(files[::-1], 500, [END], workers=workers) == expected
    from_texts = bpe.train(texts=iter(corpus[1]), vocab_size=499, workers=workers)
    assert from_texts.counted.n_documents == n_documents
    shards = [tmp_path / f"{k}.npz" for k in range(len(files))]
    for file, shard in zip(files, shards, strict=True):
        bpe.count_files(file, shard, special_tokens=[END], workers=workers)
    from_shards = bpe.train(shards, 500)
    assert from_texts.tokenizer.merges == from_shards.tokenizer.merges == expected[1]


@pytest.mark.filterwarnings("ignore:.*is not UTF-8")
def test_ids_do_not_depend_on_workers_and_blocks(workers, corpus, tokenizer, tmp_path):
    end = tokenizer.token_to_id(END)
    documents = chain.from_iterable(corpus[1])
    expected = [[*tokenizer.encode(document), end] for document in documents]
    paths = {"out": tmp_path / "o.npy", "document_index": tmp_path / "i.npy"}
    report = bpe.encode_files(tokenizer, corpus[0], **paths, append=END, workers=workers)
    ids = np.load(tmp_path / "o.npy")
    index = np.load(tmp_path / "i.npy")
    assert ids.dtype == np.uint16 and index.dtype == np.int64
    assert [ids[a:b].tolist() for a, b in pairwise(index)] == expected
    assert report == (len(ids), len(index) - 1, report.bytes, "uint16", tokenizer.digest, END)
    n_appended = len(expected) - 20 - 1 - 4  # the other ends are in the files
    assert report.bytes == len(tokenizer.decode_bytes(ids)) - len(END) * n_appended
    assert read_json(tmp_path / "o.npy.json") == report._asdict()


STARTED = ["a b<|end|>c d<s>", "<s>a b<|end|><s><|end|>b", "", "<|end|>a", " ", "c d e <|end|> f "]
# Blocks without ids; the rest of the last but one and the last are one task.
STARTED += [" " * 9 + "a", " " * 99, "a<|end|>" + " " * 9 + "b", "a b<|end|>" + " " * 1600, "c"]


def with_starts_and_ends(tokenizer, text, start, end):
    """The ids of a text whose documents begin with `start` and end with `end`, if these are ids."""
    documents = [tokenizer.encode(text)]
    if end is not None:
        documents = [[]]
        for id in tokenizer.encode(text):
            documents[-1].append(id)
            if id == end:
                documents.append([])
        if documents[-1]:
            documents[-1].append(end)
        elif len(documents) > 1:
            documents.pop()
        else:
            documents = [[end]]
    if start is not None:
        documents = [ids if ids[:1] == [start] else [start, *ids] for ids in documents]
    return documents


@pytest.mark.parametrize("append", [None, "<|end|>"])
@pytest.mark.parametrize("prepend", [None, "<s>"])
@pytest.mark.parametrize("block_bytes", [4, 9, 1000])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_documents_begin_and_end_with_the_tokens_asked_for(
    append, prepend, block_bytes, suffix, tmp_path, monkeypatch
):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", block_bytes)
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], ["<|end|>", "<s>"], "whitespace-split")
    numbers = [tokenizer.special_tokens.get(token) for token in (prepend, append)]
    files = [tmp_path / f"{k}{suffix}" for k in range(len(STARTED))]
    for path, text in zip(files, STARTED, strict=True):
        path.write_text(text)
        if suffix == ".jsonl":  # each file has all texts
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in STARTED))
    some_texts = STARTED * (suffix == ".jsonl") * len(files) or [text for text in STARTED if text]
    expected = [
        ids for text in some_texts for ids in with_starts_and_ends(tokenizer, text, *numbers)
    ]
    paths = {"out": tmp_path / "o.npy", "document_index": tmp_path / "i.npy"}
    bpe.encode_files(tokenizer, files, **paths, append=append, prepend=prepend, workers=1)
    index = np.load(tmp_path / "i.npy")
    ids = np.load(tmp_path / "o.npy")
    assert [ids[a:b].tolist() for a, b in pairwise(index)] == expected


@pytest.mark.parametrize("block_bytes", [4, 1000])
def test_added_tokens_stand_around_each_text_in_a_file(block_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", block_bytes)
    _, ours = post_processed(POST_PROCESSORS[0])
    some_texts = ["a b a b a b a b a b", "a", "b b b b b b b b b b", "x CLS b"]
    for k, text in enumerate(some_texts):
        (tmp_path / f"{k}.txt").write_text(text)
    options = {"add_special_tokens": True, "append": "SEP", "workers": 1}
    bpe.encode_files(ours, tmp_path, tmp_path / "o.npy", **options)
    expected = chain(*ours.encode_batch(some_texts, add_special_tokens=True))
    assert np.load(tmp_path / "o.npy").tolist() == [*expected]


def test_without_an_end_documents_are_texts(tokenizer, corpus, tmp_path):
    folder, documents_of = corpus
    outputs = {"out": tmp_path / "o.bin", "document_index": tmp_path / "i.bin"}
    bpe.encode_files(tokenizer, folder, **outputs, dtype="uint32", workers=2)
    ids = bpe.read_ids(tmp_path / "o.bin")
    index = np.fromfile(tmp_path / "i.bin", np.int64)
    assert ids.dtype == np.uint32 and len(index) == len(documents_of) + 1
    expected = [END.encode().join(documents) for documents in documents_of]
    expected[0] += END.encode()
    expected[-4] += END.encode()
    assert [tokenizer.decode_bytes(ids[a:b]) for a, b in pairwise(index)] == expected


@pytest.mark.parametrize("fraction", [0.0005, 0.1, 0.29, 0.75])
def test_documents_are_held_out_evenly(tokenizer, tmp_path, monkeypatch, fraction):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 5000)
    documents = [f"document {k} " * (k % 7) for k in range(2100)]
    (tmp_path / "a.txt").write_text(END.join(documents))
    options = {"append": END, "val_fraction": fraction, "workers": 2}
    bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "train.train.bin", **options)
    exact = fractions.Fraction(str(fraction))
    expected = [[], []]
    for k, document in enumerate(documents):
        part = math.floor((k + 1) * exact) - math.floor(k * exact)
        expected[part] += tokenizer.encode(document + END)
    paths = [tmp_path / f"train.{name}.bin" for name in ("train", "val")]
    assert [bpe.read_ids(path).tolist() for path in paths] == expected
    descriptions = [read_json(Path(f"{path}.json")) for path in paths]
    assert [description["tokens"] for description in descriptions] == list(map(len, expected))
    assert descriptions[1]["documents"] == math.floor(2100 * exact)


def test_ids_are_lines_of_numbers_in_a_text_file(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 30)  # so a line is written in parts
    more = "more and more\n" * 20
    (tmp_path / "a.txt").write_text(f"some text{END}{END}{more}")
    out = {"out": tmp_path / "ids.txt", "append": END}
    bpe.encode_files(tokenizer, tmp_path / "a.txt", **out)
    lines = [[*map(int, line.split())] for line in out["out"].read_text().splitlines()]
    assert lines == [tokenizer.encode(text + END) for text in ("some text", "", more)]
    bpe.decode_file(tokenizer, out["out"], tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_text() == f"some text{END}{END}{more}{END}"


def test_a_file_of_ids_is_decoded_as_one_text(tmp_path, monkeypatch):
    tokenizer = family_training(model="wordpiece", normalizer=("bert",)).tokenizer
    ids = tokenizer.encode("return the value of this function")
    np.save(tmp_path / "ids.npy", np.array(ids, np.uint16))
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 5)
    bpe.decode_file(tokenizer, tmp_path / "ids.npy", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == tokenizer.decode(ids)


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
        texts = read(source, block)
        return os._exit(1) if any(b"die" in text for text in texts) else texts

    monkeypatch.setattr(bpe, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(bpe.Source, "texts", read_or_die)
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n' * 2000 + '{"text": "die"}\n')
    out = {"out": tmp_path / "o.npy", "document_index": tmp_path / "i.npy"}
    with pytest.raises(ValueError, match="worker process died"):
        bpe.encode_files(tokenizer, tmp_path / "a.jsonl", **out, workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_ids_of_another_model_and_a_lack_of_text_are_noted(tmp_path):
    (tmp_path / "a.txt").write_text("cab")
    (tmp_path / "empty.txt").touch()
    bpe.encode_files(plain(), tmp_path / "a.txt", tmp_path / "a.npy")
    other = bpe.Tokenizer(BYTE_VOCAB | {256: b"ab"}, [(b"a", b"b")])
    with note(r"a\.npy: another model wrote these ids"):
        bpe.decode_file(other, tmp_path / "a.npy", tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_text() == "cab"
    with note(r"e\.npy: no ids, since there is no text"):
        bpe.encode_files(plain(), tmp_path / "empty.txt", tmp_path / "e.npy")


def test_the_description_of_ids_does_not_replace_an_input(tmp_path):
    text = tmp_path / "ids.npy.json"
    text.write_text("abc")
    tokenizer = bpe.Tokenizer({b: bytes([b]) for b in range(256)}, [])
    with pytest.raises(bpe.InputError, match="is an input"):
        bpe.encode_files(tokenizer, text, tmp_path / "ids.npy")
    assert text.read_text() == "abc"


def test_ids_in_a_text_are_not_read_as_an_array(tmp_path):
    ids = tmp_path / "ids.txt"
    ids.write_text("0 1 2 ")
    with pytest.raises(bpe.InputError, match="npy and"):
        bpe.read_ids(ids, "uint16")


# ─── Training ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options, is_lossless", FAMILIES, ids=str)
def test_each_family_is_trained_and_gives_text_back(options, is_lossless, library):
    training = family_training(**options)
    ours = training.tokenizer
    assert len(ours) == 1000 and "\n| tokens " in str(training.summary())
    strings = [library[3].read_text()[:5000]]
    if ours.model.alphabet == "bytes" or ours.model.byte_fallback:  # it knows all characters
        strings += [f" two  spaces {END}{END} and é, 中文 ", "", "   ", "\n\n"]
    for string in strings:
        assert ours.decode(ours.encode(string)) == string or not is_lossless
    used = {id for path in library[:40] for id in ours.encode_ordinary(path.read_bytes())}
    assert used.isdisjoint(bpe.unreachable_tokens(ours))


@pytest.mark.parametrize("options", [options for options, _ in FAMILIES], ids=str)
def test_each_family_samples_what_it_can(options):
    ours = family_training(**options).tokenizer
    text = f"def sample(self):{END} return self.words"
    if ours.model.kind == "wordpiece":
        with refusal("cuts a word in only one way"):
            ours.sample(text)
        with refusal("cuts a word in only one way"):
            ours.encode_batch([text], alpha=0.1)
        return
    samples = [ours.sample(text, 0.5, seed) for seed in range(20)]
    assert len({*map(tuple, samples)}) > 5
    assert {*map(ours.decode, samples)} == {ours.decode(ours.encode(text))}
    assert ours.model.kind != "bpe" or ours.sample(text, 0) == ours.encode(text)


@pytest.mark.parametrize("place", bpe.SPECIAL_TOKENS_AT)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alphabet": "characters", "byte_fallback": True},
        {"model": "wordpiece", "score": "count"},
        {"model": "longest"},
    ],
    ids=str,
)
def test_a_truncated_model_is_that_of_a_shorter_training(library, options, place):
    options = {"special_tokens": [END, "<pad>"], "special_tokens_at": place, "workers": 1} | options
    ours = bpe.train(library[4], 640, **options).tokenizer
    expected = bpe.train(library[4], 600, **options).tokenizer
    assert ours.truncated(600).digest == expected.digest and len(expected) == 600
    assert ours.truncated(900).digest == ours.digest
    text = library[4].read_text() + END
    assert ours.truncated(600).encode(text) == expected.encode(text)
    with refusal("cannot be truncated to 10 tokens: it may lose"):
        ours.truncated(10)


def test_a_truncated_model_without_merges_is_that_with_them(library):
    merged = bpe.train(library[4], 500, [END], workers=1, special_tokens_at="last").tokenizer
    text = library[4].read_text() + END
    vocab = {id: token for id, token in merged.vocab.items() if token != END.encode()}
    scores = np.zeros(len(vocab), np.float32) - np.arange(len(vocab))
    for fields in ({}, {"scores": scores}):
        model = bpe.Model(vocab, None, {END: len(vocab)}, **fields)
        ours = bpe.Tokenizer.from_model(model).truncated(400)
        assert ours.encode(text) == merged.truncated(400).encode(text)
    template = {"type": "RobertaProcessing", "sep": [END, 499], "cls": [END, 499]}
    template |= {"trim_offsets": True, "add_prefix_space": False}
    model = dataclasses.replace(model, post_processor=template)
    with refusal("but the post_processor has them"):
        bpe.Tokenizer.from_model(model).truncated(400)


def test_a_truncated_unigram_loses_the_tokens_of_the_lowest_scores(library):
    ours = family_training(model="unigram").tokenizer
    few = ours.truncated(400)
    text = library[3].read_text()
    assert len(few) == 400 and few.decode(few.encode(text)) == text
    scores = {token: ours.model.scores[id] for id, token in ours.vocab.items() if id < 990}
    kept = {few.vocab[id]: few.model.scores[id] for id in few.model.ordinary}
    assert all(scores[token] == score for token, score in kept.items())
    least = min(score for token, score in kept.items() if len(token.decode()) > 1)
    lost = scores.keys() - {*few.vocab.values()}
    assert len(lost) > 500 and max(map(scores.get, lost)) <= least
    direct = bpe.train(library[::12], 400, model="unigram", workers=1).tokenizer
    assert len(few.encode(text)) < 1.05 * len(direct.encode(text))


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_a_batch_or_a_file_at_random_is_a_sample_of_each_text(
    model, library, tmp_path, monkeypatch
):
    options = next(options for options, _ in FAMILIES if options.get("model", "bpe") == model)
    ours = family_training(**options).tokenizer
    texts = [library[3].read_text()[:3000], "", f"def a(){END}, b", "self" * 9, " x"]
    samples = [ours.sample(text, 0.3, k - 2) for k, text in enumerate(texts)]
    rows = [ours.sample(text, 0.3, 5 + k) for k, text in enumerate(texts[1:])]
    assert samples[0] != ours.sample(texts[0], 0.3, 9) and samples[0] != ours.encode(texts[0])
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(bpe, "PART_BYTES", 300)
    ours = bpe.Tokenizer.from_model(ours.model)
    for threads in (1, 2):
        assert ours.encode_batch(texts, alpha=0.3, seed=2**64 - 2, threads=threads) == samples
    lines = (json.dumps({"text": text}) for text in texts[1:])
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_text(texts[0])
    found = []
    for workers in (1, 2):
        files = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
        bpe.encode_files(ours, files, tmp_path / "a.npy", alpha=0.3, seed=5, workers=workers)
        found.append(np.load(tmp_path / "a.npy").tolist())
    assert found[0] == found[1]
    n = sum(map(len, rows))
    assert found[0][:n] == [*chain(*rows)]
    assert ours.decode(found[0][n:]) == texts[0] and found[0][n:] != ours.encode(texts[0])
    for alpha in (math.nan, -1e308):  # with the second, each probability would be 0 or infinite
        with refusal("alpha is a probability"):
            bpe.encode_files(ours, files, tmp_path / "a.npy", alpha=alpha)


@pytest.mark.parametrize("options", [{}, {"mark": "", **COVERED}, {"mark": "_", **COVERED}])
def test_an_unknown_character_becomes_its_bytes(options):
    options = {"model": "bpe", "alphabet": "characters", "byte_fallback": True} | options
    ours = family_training(**options).tokenizer
    ids = ours.encode("a中 é")
    assert regex.search(b"<0xE4>.?<0xB8>.?<0xAD>", b"".join(map(ours.id_to_token, ids)))
    assert ours.decode(ids) == "a中 é"


@given(st.text("aé中, \n\t\u3000\xa0.1", max_size=30) | texts)
def test_every_space_comes_back_from_a_unigram(text):
    ours = family_training(model="unigram", byte_fallback=True, pattern=None).tokenizer
    assert ours.pattern.steps[0] == bpe.PATTERNS["spaces"]
    if "▁" not in text and not regex.search("<0x..>|<unk>", text):
        assert ours.decode(ours.encode(text)) == text


def test_a_unigram_cuts_unseen_text_no_finer_than_sentencepiece(library, tmp_path):
    trainer = sentencepiece.SentencePieceTrainer
    lines = [" ".join(line.split()) for path in library[:30] for line in path.open()]
    (tmp_path / "a.txt").write_text("\n".join(filter(None, lines[::2])))
    options = {"vocab_size": 1000, "minloglevel": 2}
    trainer.train(input=tmp_path / "a.txt", model_prefix=tmp_path / "sp", **options)
    theirs = bpe.Tokenizer.load(tmp_path / "sp.model")
    ours = bpe.train(tmp_path / "a.txt", 1000, model="unigram", workers=1).tokenizer
    sizes = [len(list(chain(*model.encode_batch(lines[1::2])))) for model in (ours, theirs)]
    assert sizes[0] <= sizes[1]


def test_a_mark_says_where_words_begin():
    ours = family_training(model="longest", alphabet="characters", mark="_").tokenizer
    names = b"".join(map(ours.id_to_token, ours.encode("def  self.x\n return")))
    assert names == b"_def_self.x_return"
    assert ours.decode(ours.encode("def  self")) == "def self"


def test_arguments_of_a_training_are_checked_once_as_such_and_once_as_a_recipe(monkeypatch):
    checked = Counter()
    monkeypatch.setattr(bpe, "_check_type", lambda name, *_: checked.update([name]))
    bpe.train(texts=["low low lower"], vocab_size=258, workers=1)
    assert checked["coverage"] == 1 and checked["vocab_size"] == 2


def test_a_recipe_is_complete_and_plain(library):
    options = {"alphabet": "characters", "normalizer": ["nfc"], "workers": 1}
    recipe = bpe.train(library[:3], 400, [END], **options).recipe
    assert bpe.complete(recipe) == recipe
    with refusal("`coverage` must be of type float or NoneType, not 'all'"):
        bpe.complete(bpe.Recipe(300, coverage="all"))
    options = json.loads(json.dumps(recipe.options))
    assert options["special_tokens"] == [END, "<unk>"]
    assert options["normalizer"] == [{"type": "NFC"}]
    assert options["alphabet"] == "characters" and options["mark"] == "▁"
    assert options["pattern"] == [bpe.PATTERNS["gpt2"]]
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.mark = ""


def test_training_from_a_saved_model_is_training_in_one_go(library, tmp_path):
    options = {"tie_break": "ids", "workers": 1}
    small, large = (bpe.train(library[:20], size, [END], **options) for size in (500, 900))
    small.tokenizer.save(tmp_path)
    grown = bpe.train(library[:20], 900, from_=tmp_path, **options).tokenizer
    assert (grown.vocab, grown.merges) == (large.tokenizer.vocab, large.tokenizer.merges)
    options["pattern"] = r"\S+(?: \S+){0,3}|\s+"
    across = bpe.train(library[:20], 600, from_=tmp_path, **options).tokenizer
    assert {id: across.vocab[id] for id in small.tokenizer.vocab} == small.tokenizer.vocab
    assert any(b" " in token.strip() for token in across.vocab.values())


def test_bad_options_are_refused_before_texts_are_read():
    texts = iter(["some text"])
    for options in ({"tie_break": "chars"}, {"model": "wordpiece", "score": "best"}):
        with refusal([*options][-1]):
            bpe.train(texts=texts, **options)
    assert next(texts) == "some text"


def test_a_long_pattern_is_shown_by_its_ends():
    letters = {chr(code) for code in range(0x4E00, 0x5000)} | {"]", "\u0301"}
    pattern = bpe.Pattern(bpe._write_set(letters) + "+")
    assert len(repr(pattern)) < 330 and repr(pattern).endswith("俾俿]+')")
    assert "..." in repr(pattern) and "\\U0000005d" in repr(pattern)
    assert pattern.split("丁]a") == ["丁]".encode(), b"a"]


def test_a_saved_training_is_the_folder_of_the_command(command, library, tmp_path):
    for options in ({}, {"model": "unigram"}):
        training = bpe.train(library[0], 400, [END], workers=1, **options)
        training.save(tmp_path / "python")
        line = f"train {library[0]} --vocab-size 400 --special-token '{END}' --quiet --out"
        more = [f"--model={name}" for name in options.values()]
        assert command(line, tmp_path / "command", *more).returncode == 0
        assert files_in(tmp_path / "python") == files_in(tmp_path / "command")
    with refusal("m.json: name a folder, not a file"):
        training.save(tmp_path / "m.json")
    assert_refused(command(line, tmp_path / "m.json"), "m.json: name a folder, not a file")
    assert not (tmp_path / "m.json").exists()


def test_results_are_a_page_and_not_a_wall(library):
    training = bpe.train(library[:5], 300)
    assert max(map(len, str(training.summary()).splitlines()[1:])) <= 80
    results = training, training.counted, training.counted.words, training.learned
    for result in (*results, training.tokenizer, training.tokenizer.source(library)):
        assert len(repr(result)) < 600


def test_a_training_is_shown_without_encoding_its_text():
    training = family_training(model="unigram")
    vars(training).pop("n_tokens", None)
    assert repr(training) == str(training) == f"<Training of {training.tokenizer!r}>"
    assert "n_tokens" not in vars(training) and not hasattr(training, "_repr_markdown_")
    assert "| bytes/token | " in str(training.summary())


def test_reports_name_special_tokens_that_are_unseen_or_unnamed(tmp_path):
    (tmp_path / "a.txt").write_text(f"a text{END}" * 5)
    with note(re.escape(END)):
        assert "not in text" not in str(bpe.train(tmp_path, 260).summary())
    training = bpe.train(tmp_path, 260, [END, "<pad>"])
    assert re.search(r"\| not in text \| <pad> +\|", str(training.summary()))
    assert training.counted.n_read == 5 * (6 + len(END))
    assert training.counted.special_tokens == {END: 5}


def test_warnings_point_to_the_call(tmp_path):
    (tmp_path / "a.txt").write_text(f"a text{END}" * 5)
    (tmp_path / "a.csv").write_text("a,text\n" * 5)
    for call in (
        lambda: bpe.train(tmp_path, 9999),
        lambda: bpe.train(tmp_path / "a.csv", 258),
        lambda: bpe.Model({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")], {"ab": 2}),
        lambda: bpe.count_files(tmp_path, tmp_path / "words.npz"),
        lambda: bpe.train_bpe_from_counts({b"ab": 1}, 999),
    ):
        with pytest.warns(UserWarning) as caught:
            call()
        assert {warning.filename for warning in caught} == {__file__}


# How texts are counted, and options of a training from these counts.
OF_BERT = {"pattern": "bert", "normalizer": ["bert"]}
WITH_UNK = {"special_tokens": ["<unk>"]}
COUNTINGS = [
    ({}, {}),
    ({"pattern": "cl100k", "normalizer": ["nfc", "lowercase"]}, {"tie_break": "ids"}),
    ({}, {"model": "longest", "min_frequency": 2}),
    ({**WITH_UNK, "pattern": "spaces"}, {"model": "unigram"}),
    ({**WITH_UNK, "byte_fallback": True}, {"model": "unigram", "byte_fallback": True}),
    ({"byte_fallback": True}, {"alphabet": "characters", "byte_fallback": True, "coverage": 0.99}),
    ({**WITH_UNK, "pattern": "whitespace-split"}, {"alphabet": "characters", "mark": "_"}),
    ({"special_tokens": ["[UNK]"], **OF_BERT}, {"model": "wordpiece"}),
]


@pytest.mark.parametrize("counting, options", COUNTINGS, ids=str)
def test_training_from_counts_is_training_from_the_texts(library, tmp_path, counting, options):
    special_tokens = [END, *counting.get("special_tokens", [])]
    special = {"special_tokens": special_tokens}
    text = f"Some text. {END}And {special_tokens[-1]} [UNK] more <0x0A>{END}"
    (tmp_path / "a.txt").write_text(text)
    files = [*library[:9], tmp_path / "a.txt"]
    for name, group in (("1.npz", files[:4]), ("2.npz", files[4:])):
        bpe.count_files(group, tmp_path / name, **counting | special, workers=1)
    also = {"pattern": counting.get("pattern", "gpt2")}
    also["normalizer"] = counting.get("normalizer", [])
    words = [tmp_path / "1.npz", tmp_path / "2.npz"]
    written = []
    ways = [(words, (), {}), (words, special_tokens, {}), (files, special_tokens, also)]
    for inputs, tokens, more in ways:
        training = bpe.train(inputs, 800, tokens, **options | more, workers=1)
        training.save(tmp_path / f"{len(written)}")
        written.append(files_in(tmp_path / f"{len(written)}"))
    assert written[0] == written[1] == written[2] and "training.json" in written[0]


def test_the_record_of_a_training_has_no_place_and_no_time(library, tmp_path):
    for k in (1, 2):
        (tmp_path / f"{k}").mkdir()
        (tmp_path / f"{k}" / "a.txt").write_bytes(library[0].read_bytes())
    one, two = (bpe.train(tmp_path / f"{k}", 300, [END], workers=k).record for k in (1, 2))
    assert one == two == json.loads(json.dumps(one))
    assert one["corpus"]["n_bytes"] == library[0].stat().st_size
    assert one["bpe_numba"] == bpe.__version__ and one["options"]["vocab_size"] == 300
    (tmp_path / "2" / "a.txt").write_bytes(library[0].read_bytes() + b" the")
    assert bpe.train(tmp_path / "2", 300, [END]).record["corpus"]["words"] != one["corpus"]["words"]


def test_rare_characters_are_no_tokens_by_default():
    texts = ["the cat sat " * 3000 + "€"]
    with note("fewer than"):
        options = {"vocab_size": 100, "alphabet": "characters", "unk_token": "<?>"}
        tokenizer = bpe.train(texts=texts, **options).tokenizer
        whole = bpe.train(texts=texts, coverage=1.0, **options)
    assert "€".encode() in whole.tokenizer.vocab.values()
    assert "€".encode() not in tokenizer.vocab.values()
    assert tokenizer.encode("€") == [tokenizer.special_tokens["<?>"]]
    assert "| characters  | 8 are tokens" in str(whole.summary())


def test_the_bar_of_a_unigram_ends_full(capsys, library):
    bpe.train(library[:5], 400, model="unigram", progress=True)
    assert re.findall("prune: +([0-9]+)%", capsys.readouterr().err)[-1] == "100"


# ─── Command line ─────────────────────────────────────────────────────────────────────────────────


def run(*arguments, **options):
    """Run the command line as a user does, in a process of its own."""
    return python(MODULE, *arguments, **options)


@pytest.fixture
def command(capfdbinary, monkeypatch):
    """Run a command line in this process, a hundred times faster; the result is that of `run`."""

    def run_here(line, *more, stdin=b"", cwd=None):
        arguments = [*shlex.split(line), *map(str, more)]
        before = signal.getsignal(signal.SIGINT)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
            patch.chdir(cwd or Path.cwd())
            try:
                status = bpe.main(arguments)
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
    printed = message.replace("\r", "\n").splitlines()
    lines = [line for line in printed if line.startswith("bpe_numba:")]
    # where this test is the first
    lines = [line for line in lines if "compiling kernels" not in line]
    assert len(lines) == 1 and "Traceback" not in message, message
    assert all(part in lines[0] for part in parts), lines[0]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a model, as the command line writes it, and of its text."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "text.txt").write_text(f"The cat sat on the mat.{END}Der Hund saß.\n" * 50)
    options = ["--vocab-size=270", f"--special-token={END}", f"--out={folder}/model", "--quiet"]
    assert bpe.main(["train", f"{folder}/text.txt", *options]) == 0
    return folder


def test_encode_and_decode_are_inverse(model, command):
    text = (model / "text.txt").read_bytes()
    ids = command("encode model text.txt --quiet", cwd=model).stdout
    assert command("decode model -", stdin=ids, cwd=model).stdout == text
    honoured = command("encode model -", stdin=END.encode(), cwd=model).stdout.split()
    ordinary = command("encode model - --no-special", stdin=END.encode(), cwd=model).stdout.split()
    assert honoured == [b"0"] and len(ordinary) > 1 and b"0" not in ordinary


def test_numbers_without_a_header_have_the_type_that_is_named(model, command, tmp_path):
    text = (model / "text.txt").read_bytes()
    ids = tmp_path / "ids.bin"
    encoded = command(f"encode model - --out {ids} --append {END}", stdin=text, cwd=model)
    (tmp_path / "ids.bin.json").unlink()
    n = ids.stat().st_size // 2
    assert encoded.returncode == 0 and f"{n:,} tokens" in encoded.stdout.decode()
    back = command(f"decode model {ids} --dtype uint16", cwd=model).stdout
    assert back == text + END.encode()
    printed = command(f"encode model - --append {END}", stdin=text, cwd=model)
    assert len(printed.stdout.split()) == n and not printed.stderr
    assert not list(model.glob("*-.json"))


def test_count_reports_its_results(tmp_path, command):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"some text{END}" * 20)
    output = command(f"count . --special-token {END}", cwd=tmp_path).stdout.decode()
    parts = "880 bytes in 40 documents", "80, 2 of them unique", "Written to words.npz: "
    assert all(part in output for part in parts)
    result = command("train words.npz --vocab-size=260 --out=model", cwd=tmp_path)
    assert b"880 bytes in 40 documents" in result.stdout


def test_a_post_processor_is_written_and_used_by_commands(command, tmp_path):
    (tmp_path / "a.txt").write_text("low lower <s>")
    done = command(
        "train a.txt --special-token <s> --vocab-size 260 --template '<s> $A' --out m", cwd=tmp_path
    )
    assert done.returncode == 0
    line = "convert m --to huggingface --out n --special-token </s> --template '<s> $A </s>'"
    assert command(line, cwd=tmp_path).returncode == 0
    for folder, text in (("m", "<s>low lower <s>"), ("n", "<s>low lower <s></s>")):
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / folder / "tokenizer.json"))
        line = f"encode {folder} a.txt --add-special-tokens --out a.npy"
        assert command(line, cwd=tmp_path).returncode == 0
        ids = np.load(tmp_path / "a.npy").tolist()
        assert ids == theirs.encode("low lower <s>").ids
        assert theirs.decode(ids, skip_special_tokens=False) == text
    assert command("encode m a.txt --prepend <s> --out b.npy", cwd=tmp_path).returncode == 0
    assert np.load(tmp_path / "b.npy").tolist() == ids[:-1]
    done = command("train a.txt --template '<x> $A' --out o", cwd=tmp_path)
    assert done.returncode == 2 and b"--template is $A between special tokens" in done.stderr
    assert not (tmp_path / "o").exists()


def test_roles_of_tokens_and_a_template_are_written_and_converted(command, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special = [f"--special-token={token}" for token in tokens]
    roles = dict(zip(bpe.ROLES, [tokens[1], tokens[2], tokens[0], tokens[0]], strict=True))
    role_options = [f"--{role.replace('_', '-')}={token}" for role, token in roles.items()]
    train = "train a.txt --out mini --vocab-size 259 --model-max-length 32768"
    done = command(f"{train} --chat-template chatml", *special, *role_options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = command("convert mini --to huggingface --out converted", cwd=tmp_path)
    assert done.returncode == 0 and b"259 tokens" in done.stdout, done.stderr
    config = roles | {"model_max_length": 32768, "chat_template": bpe.CHATML}
    for folder in (tmp_path / "mini", tmp_path / "converted"):
        assert config.items() <= read_json(folder / "tokenizer_config.json").items()
        assert read_json(folder / "special_tokens_map.json") == roles


def test_a_wrong_config_is_refused_before_the_training(tmp_path, command, monkeypatch):
    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setattr(bpe, "count", lambda *_, **__: 1 / 0)
    with pytest.raises(ValueError, match="special_tokens_at"):
        bpe.train_bpe(tmp_path, 300, special_tokens_at="second")
    assert_refused(command("train a.txt --out . --eos-token '<x>'", cwd=tmp_path), "<x>")


def test_options_reach_the_training(command, tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest " * 5 + "rare")
    line = "train a.txt --vocab-size 1k --special-token '<a>' --special-tokens-at last --quiet"
    done = command(f"{line} --min-frequency 6 --out m", cwd=tmp_path)
    assert done.returncode == 0 and b"fewer than the 1,000 asked for" in done.stderr
    tokenizer = bpe.Tokenizer.load(tmp_path / "m")
    assert tokenizer.special_tokens == {"<a>": len(tokenizer) - 1}
    assert {b" low", b" lowest"} & {*tokenizer.vocab.values()} == {b" low"}


def test_a_pattern_that_is_not_compiled_gives_one_warning(model, command, tmp_path):
    line = rf"train text.txt --pattern '(?<!x)\w+|\W' --out {tmp_path} --quiet"
    result = command(line, cwd=model)
    notes = result.stderr.decode().splitlines()
    assert result.returncode == 0 and any("left to the `regex` package" in note for note in notes)
    assert sum("regex" in note for note in notes) == 1 and (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize("name", bpe._COMMANDS)
def test_help_has_two_examples_that_parse(name, command):
    output = command(f"{name} --help").stdout.decode()
    examples = output.partition("examples:\n")[2].splitlines()
    assert len(examples) == 2
    assert all(len(line) <= 80 for line in output.splitlines() if line not in examples)
    for line in examples:
        words = re.split(" [<|] ", line.partition("bpe_numba.py ")[2])[0]
        parser, arguments = bpe._choose_command(shlex.split(words))
        assert parser.parse_intermixed_args(arguments) and parser.run


@pytest.mark.parametrize("ids", [b"[72, 105]", b"72,105", b"72 105"])
def test_ids_may_be_a_list_and_folders_are_made(model, command, tmp_path, ids):
    done = command(f"decode model - --out {tmp_path}/a/b.txt", stdin=ids, cwd=model)
    assert done.returncode == 0 and len((tmp_path / "a/b.txt").read_bytes()) == 2


@pytest.mark.parametrize("page", ["README.md", "docs/recipes.md"])
def test_readme_runs_as_printed(page, command, tmp_path, capfdbinary):
    """Run the commands and the Python of a page in one folder, and compare the printed lines."""
    corpus = ("The cat sat on the mat, and the dog lay beside it in the sun. " * 9 + END) * 20
    lines = (json.dumps({"text": f"文字處理 {k}: " + corpus[:60]}) for k in range(2000))
    jsonl = "\n".join(lines).encode()
    names = "corpus.jsonl", "chinese.jsonl", "shards/1.jsonl", "shards/2.jsonl"
    files = {"corpus.txt": corpus.encode(), "src/a/b.py": Path(__file__).read_bytes()[:20_000]}
    files |= dict.fromkeys(names, jsonl)
    files["bin/bpe-numba"] = f'#!/bin/sh\nexec {sys.executable} {MODULE} "$@"\n'.encode()
    files["README.md"] = Path(MODULE).with_name("README.md").read_bytes()
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "bin/bpe-numba").chmod(0o755)
    bpe.train(tmp_path / "corpus.txt", 280, [END], workers=1).tokenizer.save(tmp_path)
    folders = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    path = os.pathsep.join(folders)
    options = {"cwd": tmp_path, "env": os.environ | {"PATH": path}, "timeout": 300}
    options["capture_output"] = True
    fenced = r"```(sh|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    blocks = regex.findall(fenced, (Path(MODULE).parent / page).read_text(), regex.DOTALL)
    assert {kind for kind, *_ in blocks} == {"sh", "python"}
    for kind, block, output in blocks:
        if kind == "python":
            with contextlib.chdir(tmp_path):
                exec(block, {})
            sys.stdout.flush()
            printed = capfdbinary.readouterr().out.decode().splitlines()
        else:
            printed = []
            lines = block.replace("\\\n", "").splitlines()
            for line in [block] if block.startswith("for ") else lines:
                words = shlex.split(line, comments=True)
                if words[0] == "bpe-numba":
                    result = command(shlex.join(words[1:]), cwd=tmp_path)
                else:
                    result = subprocess.run(["bash", "-euc", line], **options)
                assert result.returncode == 0, (line, result.stderr)
                printed += result.stdout.decode().splitlines()
        assert {*output.splitlines()} <= {*printed}, (block, printed)


def names_of_headings(page):
    """The names by which links lead to the headings of a page, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_to_files_and_headings():
    top = Path(MODULE).parent
    for page in (top / "README.md", *top.glob("docs/*.md")):
        for link, heading in regex.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
            target = page.parent / link if link else page
            assert target.is_file(), (page, link)
            assert not heading or heading in names_of_headings(target), (page, link, heading)


def test_a_model_that_is_replaced_gives_a_warning(command, tmp_path):
    (tmp_path / "a.txt").write_text("the cat")
    line = "train a.txt --vocab-size=257 --quiet --out m"
    assert b"replaced" not in command(line, cwd=tmp_path).stderr
    assert b"the model in this folder will be replaced" in command(line, cwd=tmp_path).stderr


def test_a_note_before_the_training_says_that_a_model_is_replaced(command, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("the cat")
    bpe.train(tmp_path / "a.txt", 257).save(tmp_path / "m")
    monkeypatch.setattr(bpe, "train_recipe", lambda *_: bpe.require(False, "later"))
    done = command("train a.txt --out m", cwd=tmp_path)
    assert re.search("m: the model in this folder will be replaced.*later", str(done.stderr))


def test_inputs_may_follow_an_option(command, model):
    whole = command("inspect model text.txt", cwd=model).stdout
    assert command("inspect model --quiet text.txt", cwd=model).stdout == whole
    curves = command("curve model --quiet model", cwd=model)
    assert curves.returncode == 0 and curves.stdout == command("curve model", cwd=model).stdout
    assert (
        b"unrecognized arguments: more" in command("decode model --quiet - more", cwd=model).stderr
    )
    assert b"--quiett; did you mean --quiet?" in command("inspect model --quiett", cwd=model).stderr


def test_the_share_that_is_held_out_is_told(command, model):
    options = f"--append '{END}' --val-fraction 0.1 --out train.bin"
    done = command(f"encode model text.txt {options}", cwd=model)
    n = len(bpe.read_ids(model / "val.bin"))
    assert f"{n:,} tokens, written to val.bin" in done.stdout.decode()


def test_advice_fits_the_place(command, model):
    done = command("view model text.txt", cwd=model)
    assert b"this is the name text.txt; for the file write < text.txt" in done.stderr
    swapped = command("encode text.txt model", cwd=model)
    assert_refused(swapped, "this is not a tokenizer.json", "take the model before the texts")
    for call in (lambda: bpe.inspect_model(model / "model", "a text"), lambda: bpe.train("a text")):
        with refusal("a text goes into a file, or in Python into `train` as texts="):
            call()
    with refusal("the alphabet has 256 symbols, .* ask for more symbols"):
        bpe.Learner(bpe.Words.from_counts({b"ab": 1}), 100)
    with refusal("not <.{1,40}$"):
        bpe.Tokenizer.load(bpe.Words)
    help = command("train --help").stdout.decode()
    assert "--special-tokens-at WHERE" in help and "--tie-break RULE" in help


def test_a_text_that_is_none_is_refused_in_a_list_as_well():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    for call in (tokenizer.encode_batch, tokenizer.encode_batch_to_numpy):
        for texts in ([5], ["a", None], [["a"]]):
            with refusal("a text is str or bytes"):
                call(texts)


def test_a_text_is_split_by_a_pattern_as_its_bytes_are():
    assert bpe.Pattern("gpt2").split("one é") == [b"one", " é".encode()]
    with refusal("a text is str or bytes"):
        bpe.Pattern("gpt2").split(3)


# ─── Programs ─────────────────────────────────────────────────────────────────────────────────────


IN_PLAIN_PYTHON = """
import sys, numpy, bpe_numba
tokenizer = bpe_numba.train(sys.argv[1], 300, workers=1).tokenizer
text = open(sys.argv[1]).read()
ids = tokenizer.encode(text)
normalizer = bpe_numba.Normalizer([{"type": "NFC"}])
pretokenizer = bpe_numba.Pretokenizer(tokenizer.pattern, normalizer=normalizer)
place = pretokenizer.find_cut(lambda *_: b"the cat sat here", 0, 1)
print(tokenizer.merges == eval(sys.argv[2]), tokenizer.decode(ids) == text, sum(ids), place[0])
"""


def test_kernels_run_as_plain_python(tmp_path):
    path = tmp_path / "a.txt"
    lines = "It was the best of times, it was the worst of times. ¿Él? 中文\n" * 3
    path.write_text(lines + "ab" * 200)
    tokenizer = bpe.train(path, 300, workers=1).tokenizer
    merges = repr(tokenizer.merges)
    done = python("-c", IN_PLAIN_PYTHON, path, merges, NUMBA_DISABLE_JIT=1)
    n = str(sum(tokenizer.encode(path.read_text()))).encode()
    assert done.stdout.split() == [b"True", b"True", n, b"3"], done.stderr


def rows_of(table):
    """The cells of a table in Markdown, without its header."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def test_the_example_of_a_profile_quotes_lines_of_the_module():
    text = (Path(MODULE).parent / "docs" / "profiling.md").read_text()
    quoted = re.findall(r"(?m)^ *[0-9.]+ +[0-9]+  (.+)$", text)
    lines = {line.strip() for line in Path(MODULE).read_text().splitlines()}
    assert quoted and lines.issuperset(quoted)


@compiled
def test_a_profile_names_the_kernels_of_each_stage(tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest newest widest\n" * 99)
    script = Path(MODULE).with_name("profile.sh")
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    done = subprocess.run(
        ["bash", script, "--kernels", "train", "a.txt"],
        cwd=tmp_path,
        env=os.environ | {"PATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    _, stages, kernels = re.split(
        r"(?m)^(?=[0-9.]+ seconds$|Kernels that Python calls)", done.stdout
    )
    seconds = {stage: float(seconds) for stage, seconds, *_ in rows_of(stages)}
    *rows, (*_, of_python, share) = rows_of(kernels)
    names = {(stage, kernel) for stage, kernel, *_ in rows}
    assert {("compile", "_count_text"), ("compile", "_WordTable")} <= names
    spent = Counter()
    compiled = 0
    for stage, _, n_calls, *parts, _ in rows:
        assert int(n_calls.replace(",", "")) > 0
        of_compiling, loaded, running = (float(part.replace(",", "")) for part in parts)
        compiled += of_compiling  # it counts as the stage "compile", wherever it is spent
        spent[stage] += loaded + running
    assert all(spent[stage] < seconds[stage] + 0.02 for stage in seconds)
    total = float(stages.split()[0])
    assert compiled + sum(spent.values()) + float(of_python) == pytest.approx(total, rel=0.2)
    assert 0 < float(share) < 100


USE_FEWEST = """
import multiprocessing
import bpe_numba as bpe

if __name__ == "__main__":
    import fewest
    multiprocessing.set_start_method("spawn")
    print(bpe.encode_files(bpe.Tokenizer.load("model"), "a.jsonl", "a.npy", workers=2))
"""


@functools.cache
def ways_to_cut(word, tokens):
    """The numbers of tokens into which a word can be cut."""
    if not word:
        return {0}
    begins = [token for token in tokens if word.startswith(token)]
    return {1 + n for token in begins for n in ways_to_cut(word[len(token) :], tokens)}


def naive_fewest(word, tokens):
    """The least number of tokens into which a word can be cut."""
    return min(ways_to_cut(word, frozenset(tokens)))


def test_a_family_of_its_own_file_trains_and_encodes_in_spawned_workers(tmp_path):
    options = {"cwd": tmp_path, "NUMBA_DISABLE_JIT": 1}
    text = "low lower lowest newest widest é\n" * 9
    files = {"a.txt": text, "fewest.py": FEWEST, "use.py": USE_FEWEST}
    files["a.jsonl"] = (json.dumps({"text": text}) + "\n") * 99
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    command = ["fewest.py", "train", "a.txt", "--vocab-size", "275", "--longest", "4", "--model"]
    trained = python(*command, "fewest", **options)
    assert trained.returncode == 0 and b"bytes/token" in trained.stdout, trained.stderr
    assert b"fewest.py encode model -" in trained.stdout
    refused = python(*command, "bpe", **options)
    assert b"--longest is no option of `train` with the family bpe" in refused.stderr
    used = python("use.py", **options)
    assert b"99 texts" in used.stdout, used.stderr
    vocab = read_json(tmp_path / "model" / "tokenizer.json")["model"]["vocab"]
    assert max(map(len, vocab)) == 4
    tokens = {token_id: name for name, token_id in vocab.items()}
    ids = np.load(tmp_path / "a.npy").tolist()
    assert "".join(map(tokens.get, ids)) == in_chars(text.encode()) * 99
    words = [in_chars(word) for word in bpe.Pattern("gpt2").split(text.encode())]
    assert len(ids) == 99 * sum(naive_fewest(word, vocab) for word in words) < 99 * len(text)
    with refusal("no kind of model is named 'fewest'; there are bpe"):
        bpe.Tokenizer.load(tmp_path / "model")


def test_train_reports_its_results(model, tmp_path):
    options = ["--vocab-size", 270, "--special-token", END, "--out", tmp_path / "model"]
    result = run("train", model / "text.txt", *options)
    output = result.stdout.decode()
    parts = ["2,550 bytes in 51 documents", "270, 1 of them special", "bytes/token", "peak memory"]
    assert all(part in output for part in parts)
    assert "scan:" in result.stderr.decode() and "learn:" in result.stderr.decode()
    typed = output.splitlines()[-1].replace("python bpe_numba.py", f"{sys.executable} {MODULE}")
    assert subprocess.run(typed, shell=True, capture_output=True, check=True).stdout.split()


def test_a_full_disk_leaves_nothing(model, tmp_path):
    (tmp_path / "text.txt").write_text("some text, and more of it\n" * 20_000)

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = ["encode", model / "model", "text.txt", "--out", "o.npy"]
    result = run(*command, cwd=tmp_path, preexec_fn=small_files)
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


def test_a_copy_by_another_name_runs_itself_where_python_knows_no_folder(tmp_path):
    source = Path(MODULE).read_text("utf-8")
    copied = re.sub("__version__ = .*", '__version__ = "trial"', source)
    (tmp_path / "trial.py").write_text(copied, "utf-8")
    done = python(tmp_path / "trial.py", "--version", PYTHONPATH="", PYTHONSAFEPATH=1)
    assert done.stdout.split()[-1] == b"trial"


def start_reading(*arguments):
    """Start a process of the command line, and wait until it reads text."""
    command = [sys.executable, MODULE, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    output = b""
    while b"B/s" not in output and process.poll() is None:
        output += os.read(process.stderr.fileno(), 1000)
    return process


# Commands, how often and by which signal they are ended: by an impatient user, `kill`, a closed
# terminal, by force.
ENDINGS = [
    (("train", "--workers", 2), 2, signal.SIGINT),
    (("count", "--workers", 1), 1, signal.SIGTERM),
    (("encode", "--workers", 2), 1, signal.SIGHUP),
    (("encode", "--workers", 2), 1, signal.SIGKILL),
]


@pytest.mark.parametrize("arguments, times, number", ENDINGS)
def test_a_signal_ends_a_command_with_one_line(
    model, much_text, tmp_path, arguments, times, number
):
    """While kernels run, results are taken apart, workers start: a hundred moments were tried."""
    inputs = [model / "model", much_text] if arguments[0] == "encode" else [much_text]
    out = {"train": "model", "count": "o.npz", "encode": "o.npy"}[arguments[0]]
    process = start_reading(*arguments, *inputs, "--out", tmp_path / out)
    time.sleep(random.uniform(0, 0.5))
    for _ in range(times):
        if number == signal.SIGKILL:
            process.kill()
        else:
            os.killpg(process.pid, number)
        time.sleep(0.01)
    _, rest = process.communicate(timeout=60)
    lines = rest.decode().replace("\r", "\n").splitlines()
    if number == signal.SIGKILL:
        assert process.returncode == -number and not [*tmp_path.glob("o.*")]
        return
    assert process.returncode == 128 + number, lines
    assert lines[-1].endswith("no partial files were left"), lines
    assert not any("Traceback" in line for line in lines)
    assert not [*tmp_path.iterdir()]


def test_a_script_that_imports_the_module_keeps_its_interrupts(tmp_path):
    script = tmp_path / "my_bpe_numba.py"
    script.write_text("import signal, bpe_numba\nprint(signal.getsignal(signal.SIGINT).__name__)")
    assert python(script).stdout == b"default_int_handler\n"


def test_an_interrupt_while_packages_load_is_silent(tmp_path):
    (tmp_path / "numba.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    result = run("--version", PYTHONPATH=tmp_path)
    assert result.returncode == -signal.SIGINT and not result.stderr


def test_a_package_that_cannot_be_loaded_is_one_line(tmp_path):
    (tmp_path / "numba.py").write_text("raise OSError('no\\nmemory')\n")
    result = run("--version", PYTHONPATH=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(b"bpe_numba: a required package is missing, or memory ran out")
    assert result.stderr.count(b"\n") == 1


def test_standard_input_is_read(model, command, tmp_path):
    text = (model / "text.txt").read_bytes()
    lines = "".join(json.dumps({"body": d}) + "\n" for d in text.decode().split(END)).encode()
    line = f"train - --vocab-size 270 --special-token '{END}' --quiet --out {tmp_path}"
    assert run(*shlex.split(f"{line}/a"), stdin=text).stderr == b""
    lines += b"no JSON\n"
    assert command(f"{line}/b --text-field body --skip-bad-lines", stdin=lines).returncode == 0
    for name in ("a", "b"):
        written = tmp_path / name / "tokenizer.json"
        assert read_json(written) == read_json(model / "model" / "tokenizer.json")


def test_it_runs_without_docstrings_and_asserts(model):
    assert b"--vocab-size" in python("-OO", MODULE, "train", "--help").stdout
    # else all kernels would be compiled again
    viewed = python("-OO", MODULE, "view", model / "model", "The cat", NUMBA_DISABLE_JIT=1)
    assert viewed.returncode == 0 and b"7 bytes" in viewed.stdout, viewed.stderr


def test_a_process_refuses_in_one_line_whose_help_is_a_command(tmp_path):
    assert_refused(run("train", "nowhere.txt", cwd=tmp_path), "nowhere.txt", "no such file")
    message = run("encode", cwd=tmp_path).stderr.decode()
    help_command = message.rpartition("; see ")[2]
    help_page = subprocess.run(help_command, shell=True, capture_output=True, cwd=tmp_path)
    assert help_page.returncode == 0 and b"--no-special" in help_page.stdout


def test_closed_and_full_streams_are_no_traceback(model, tmp_path):
    np.save(tmp_path / "ids.npy", np.ones(200_000, np.uint16))
    command = f"{sys.executable} {MODULE} decode {model}/model "
    ends = [" - <&-", f"{tmp_path}/ids.npy >&-", f"{tmp_path}/ids.npy 2>&-"]
    ends.append(f"{tmp_path}/ids.npy >/dev/full")
    ends.append(f"{tmp_path}/ids.npy | head -c 10")  # the pipe is closed, which is no error
    for end in ends:
        result = subprocess.run(
            command + end, shell=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=100
        )
        assert b"Traceback" not in result.stdout + result.stderr
    assert len(result.stdout) == 10 and result.stderr == b""


IN_A_READ_ONLY_FOLDER = """
import os, sys, pathlib, bpe_numba
if os.access(".", os.W_OK) or os.access(os.environ["HOME"], os.W_OK):
    sys.exit("this user may write anywhere")
assert len(bpe_numba.Words.from_counts({b"ab": 1}).digest) == 64  # by a small kernel
try:
    with bpe_numba.atomic_write(pathlib.Path("ids.npy").absolute()):
        pass
except PermissionError as error:
    print(error.filename)
"""


def test_kernels_compile_where_nothing_can_be_written(tmp_path):
    folder = tmp_path / "read only"
    home = tmp_path / "home"
    for place in (folder, home):
        place.mkdir()
        shutil.copy(MODULE, place / "bpe_numba.py")
        place.chmod(0o555)

    def obey_modes():
        """Root may write anywhere: without this capability (CAP_DAC_OVERRIDE) it may not."""
        if os.getuid() == 0:
            ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)

    environment = {"HOME": home, "XDG_CACHE_HOME": home, "PYTHONPATH": folder}
    environment["NUMBA_CACHE_DIR"] = ""
    options = {"cwd": folder, "preexec_fn": obey_modes}
    result = python("-c", IN_A_READ_ONLY_FOLDER, **options, **environment)
    if b"may write anywhere" in result.stderr:
        pytest.skip("no way to give up the right to write anywhere")
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode() == f"{folder}/ids.npy\n"


# ─── Research ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def some_prose(library):
    """A tokenizer of 1,500 tokens, what its training learnt, and a text it was trained on."""
    training = bpe.train(library[:40], 1500, [END], workers=1)
    return training.tokenizer, training, library[:40]


def test_curve_is_the_length_of_the_text_encoded_at_five_sizes(some_prose):
    _, training, files = some_prose
    report = bpe.curve({"some_prose": (training.learned, training.counted.n_bytes)})
    sizes, n_tokens, rates, saved = report.columns["some_prose"]
    merges = training.learned.merges
    for size in (256, 300, 511, 900, 256 + len(merges)):
        vocab = dict(enumerate([*BYTES, *(left + right for left, right in merges[: size - 256])]))
        tokenizer = bpe.Tokenizer(vocab, merges[: size - 256])
        k = sizes.tolist().index(size)
        assert n_tokens[k] == sum(len(tokenizer.encode(path.read_bytes())) for path in files)
        assert rates[k] == training.counted.n_bytes / n_tokens[k]
    assert saved[7] == pytest.approx(100 * (1 - n_tokens[1007] / n_tokens[7]))
    assert np.isnan(saved).tolist() == [False] * (len(saved) - 1000) + [True] * 1000


@pytest.mark.parametrize(
    "options",
    [
        {"alphabet": "characters"},
        {"alphabet": "characters", "pattern": "none"},
        {"model": "unigram"},
        {"model": "longest"},
    ],
)
def test_a_folder_has_what_its_model_learnt_or_nothing(library, tmp_path, options):
    bpe.train(library[:9], 700, workers=1).save(tmp_path)
    training = bpe.train(library[:9], 700, workers=1, **options)
    training.tokenizer.save(tmp_path)
    model = bpe.load_model(tmp_path)
    with refusal(r"training\.npz: belongs to another model"):
        bpe.load_learned(tmp_path, model)
    training.save(tmp_path)
    assert (tmp_path / "training.npz").is_file() == (model.kind == "bpe")
    if model.kind == "bpe":
        learned, n_bytes = bpe.load_learned(tmp_path, model)
        assert n_bytes == training.counted.n_bytes
        assert all(map(np.array_equal, learned, training.history[0]))
        assert learned.n_tokens[-1] == training.n_tokens  # with unknown characters


def test_damaged_bytes_of_a_saved_training_change_nothing_or_are_refused(some_prose, tmp_path):
    tokenizer, training, _ = some_prose
    training.save(tmp_path)
    whole = (tmp_path / "training.npz").read_bytes()
    n_refused = 0
    for place in range(0, len(whole), len(whole) // 40):
        data = bytearray(whole)
        data[place] ^= 0x55
        (tmp_path / "training.npz").write_bytes(data)
        try:
            learned, n_bytes = bpe.load_learned(tmp_path, tokenizer.model)
        except bpe.InputError as error:
            assert "training.npz: " in str(error) and "\n" not in str(error)
            n_refused += 1
        else:
            assert learned.tokens == training.learned.tokens and n_bytes == training.counted.n_bytes
    assert n_refused > 20


def naive_measures(tokenizer, texts):
    """Every measure by its definition, from the tokens of whole texts without END."""
    ids = [id for text in texts for id in tokenizer.encode(text)]
    counts = Counter(ids)
    v = len(tokenizer) - 1
    p = [n / len(ids) for n in counts.values()]
    renyi = math.log2(sum(x**2.5 for x in p)) / (1 - 2.5)
    return {
        "tokens": len(ids),
        "bytes per token": sum(map(len, texts)) / len(ids),
        "fertility": len(ids) / sum(len(text.decode().split()) for text in texts),
        "average rank": sum((k + 1) * x for k, x in enumerate(sorted(p, reverse=True))),
        "Shannon entropy": -sum(x * math.log2(x) for x in p),
        "Rényi efficiency": renyi / math.log2(v),
        "Rényi, of used ids": renyi / math.log2(len(counts)),
        "vocabulary utilisation": len(counts) / v,
    }


def test_words_of_a_corpus_are_each_encoded(some_prose):
    tokenizer, _, files = some_prose
    encoded = bpe.encode_corpus(tokenizer, files[3:5], engine=bpe.Engine(1))
    texts = [path.read_bytes() for path in files[3:5]]
    counts = Counter(word for text in texts for word in naive_split(bpe.PATTERNS["gpt2"], text))
    assert dict(zip(encoded.words, encoded.counts.tolist(), strict=True)) == counts
    tokens = chain(*(naive_encode(word, tokenizer.merges) for word in encoded.words))
    assert encoded.ids.tolist() == [*map(tokenizer.token_to_id, tokens)]
    assert encoded.n_bytes == sum(map(len, texts))


def test_bytes_of_a_corpus_are_those_of_its_text(library, tmp_path):
    tokenizer = bpe.train(
        library[:9], 500, [END], model="wordpiece", normalizer=["bert"], workers=1
    ).tokenizer
    (tmp_path / "a.txt").write_text(f"Ünï  A{END}中 ")
    encoded = bpe.encode_corpus(tokenizer, tmp_path, engine=bpe.Engine(1))
    assert encoded.n_bytes == len("Ünï  A中 ".encode())
    assert encoded.n_tokens == len(tokenizer.encode(f"Ünï  A{END}中 ")) - 1


def naive_reached(tokenizer, n_letters, size):
    """The ids in all texts of these letters up to a size."""
    letters = [tokenizer.vocab[id] for id in range(n_letters)]
    texts = (
        b"".join(text) for k in range(1, size + 1) for text in itertools.product(letters, repeat=k)
    )
    return {id for text in texts for id in tokenizer.encode(text)}


@pytest.mark.parametrize("merges", [True, False])
def test_unreachable_tokens_are_those_of_no_text(merges):
    source = random.Random(1)
    n_unreachable = 0
    for _ in range(10):
        tokens, pairs = random_tokens(source, [b"a", b"b", b" ", b"1"], 8)
        tokens = [token for token in tokens if len(token) <= 5 and set(token) <= {*b"ab 1"}]
        pairs = [pair for pair in dict.fromkeys(pairs) if pair[0] + pair[1] in tokens]
        for pattern in ("none", "gpt2"):
            ranks = pairs if merges else None
            tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), ranks, pattern=pattern)
            unreachable = bpe.unreachable_tokens(tokenizer)
            reached = naive_reached(tokenizer, 4, 6)
            assert reached.isdisjoint(unreachable)
            assert pattern == "gpt2" or reached | unreachable.keys() == tokenizer.vocab.keys()
            for token, ids in unreachable.items():
                assert token not in ids and tokenizer.decode_bytes(ids) == tokenizer.vocab[token]
            n_unreachable += len(unreachable)
    assert n_unreachable or not merges


def test_tokens_are_encoded_together_also_if_letters_are_missing(monkeypatch):
    source = random.Random(2)
    tokens, _ = random_tokens(source, [b"a", b"b", b"c", b"d"], 300)
    tokens = [token for token in tokens if token not in (b"b", b"d")]
    tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), None, pattern="none")
    expected = {}
    for token_id, token in enumerate(tokens):
        try:
            ids = tokenizer.encode(token)
        except bpe.InputError:
            ids = []
        if token_id not in ids:
            expected[token_id] = ids
    assert bpe.unreachable_tokens(tokenizer) == expected
    calls = []
    encode = bpe.Tokenizer.encode_texts

    def counted(*arguments, **options):
        calls.append(arguments)
        return encode(*arguments, **options)

    monkeypatch.setattr(bpe.Tokenizer, "encode_texts", counted)
    bpe.unreachable_tokens(bpe.Tokenizer(BYTE_VOCAB, []))
    assert len(calls) == 2


@given(text=odd_texts | pattern_texts)
def test_the_kind_of_a_token_is_the_first_that_matches_it(text):
    kinds = [k for k, source in bpe.KINDS_OF_TOKENS.items() if regex.fullmatch(source, text)]
    assert not text or bpe._classify(text.encode()) == kinds[0]


def test_a_token_that_becomes_the_unknown_token_is_listed_with_its_id():
    vocab = {0: b"[UNK]", 1: b"a", 2: b"b" * 101}  # words of more than 100 characters are unknown
    model = bpe.Model(vocab, None, ["[UNK]"], "bert", "wordpiece", alphabet="characters")
    model = dataclasses.replace(model, unk_token="[UNK]")
    assert "<id 0>" in str(bpe.inspect_model(bpe.Tokenizer.from_model(model)))


def test_counts_of_merges_add_up_to_the_uses_in_the_training_text(some_prose, monkeypatch):
    tokenizer, training, files = some_prose
    monkeypatch.setattr(bpe, "RARE", 0)  # all are listed
    counts = bpe.encode_corpus(tokenizer, files, engine=bpe.Engine(1)).frequencies(len(tokenizer))
    glitches = bpe.find_glitches(training.learned, tokenizer.model.ids, counts)
    assert len(glitches) == len(training.learned.pairs)
    for glitch in glitches:
        assert glitch.used == counts[glitch.id] == glitch.made - glitch.taken.total()


def test_glitch_candidates_tell_where_their_count_went():
    counts = {b"abc": 5000, b"abd": 3000, b"ab": 2, b"xy": 9}
    learned = bpe.learn(bpe.Words.from_counts(counts), 260)
    ids = {token: id for id, token in enumerate(learned.tokens)}
    uses = np.full(260, 9)
    uses[ids[b"ab"]] = 2
    (glitch,) = bpe.find_glitches(learned, ids, uses)
    assert glitch == (ids[b"ab"], 8002, 2, {b"abc": 5000, b"abd": 3000})
    assert bpe.find_glitches(learned, ids, np.full(260, 9)) == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alphabet": "characters", "coverage": 0.9},
        {"alphabet": "characters", "coverage": 0.9, "byte_fallback": True},
        {"alphabet": "characters", "mark": "_"},
        {"model": "wordpiece", "coverage": 0.9},
        {"model": "unigram"},
        {"model": "longest"},
    ],
    ids=str,
)
def test_bytes_per_token_are_the_same_in_all_places(library, tmp_path, options):
    texts = [path.read_text() + " ÄÖ 中文 é" for path in library[:4]]
    (tmp_path / "a.txt").write_text(END.join(texts))
    training = bpe.train(tmp_path / "a.txt", 400, [END], workers=1, **options)
    training.save(tmp_path / "model")
    ids = [id for text in texts for id in training.tokenizer.encode(text)]
    rate = sum(len(text.encode()) for text in texts) / len(ids)
    assert training.n_tokens == len(ids)
    assert f"| bytes/token | {rate:.4g} " in str(training.summary())
    inspection = bpe.inspect_model(tmp_path / "model", tmp_path / "a.txt")
    assert inspection.measures["bytes per token"] == rate
    comparison = bpe.compare([tmp_path / "model"], [tmp_path / "a.txt"])
    assert comparison.bytes_per_token.tolist() == [[rate]]
    if training.tokenizer.model.kind == "bpe":
        assert inspection.glitches is not None
        (columns,) = bpe.curve(tmp_path / "model").columns.values()
        assert columns[2][-1] == rate
    else:
        assert inspection.glitches is None
        with refusal("no merge counts: name a BPE that `train` wrote"):
            bpe.curve([tmp_path / "model"])


def test_a_training_a_tokenizer_and_a_path_are_models_alike(some_prose, tmp_path):
    tokenizer, training, files = some_prose
    training.save(tmp_path / "model")
    path = tmp_path / "model"
    reports = []
    for k, model in enumerate([training, tokenizer, str(path), path]):
        inspection = bpe.inspect_model(model, files[0], engine=bpe.Engine(1))
        assert (inspection.glitches is None) == (model is tokenizer)
        comparison = bpe.compare(model, files[0], engine=bpe.Engine(1))
        assert comparison.models == ["1" if k < 2 else str(path)]
        bpe.encode_files(model, files[0], tmp_path / "a.npy", workers=1)
        bpe.decode_file(model, tmp_path / "a.npy", tmp_path / "a.txt")
        assert (tmp_path / "a.txt").read_bytes() == files[0].read_bytes()
        view = bpe.view(model, "def f").ids.tolist()
        reports.append((inspection.measures, comparison.bytes_per_token.tolist(), view))
    assert all(report == reports[0] for report in reports)
    several = bpe.curve([training, path]).columns
    assert [*several] == ["1", str(path)]
    assert all(map(np.array_equal, several["1"][:3], several[str(path)]))
    assert np.array_equal(bpe.curve(training).columns["1"][1], several["1"][1])
    for wrong in (tokenizer, {"1": training.learned}, [3]):
        with refusal("^1: no merge counts"):
            bpe.curve(wrong)


def test_tables_are_frames_with_numbers(reports):
    pytest.importorskip("pandas")
    number = {"id", "bytes", "tokens", "%", "made", "used", "vocabulary", "bytes/token", "b"}
    seen = set()
    for table in chain.from_iterable(report.tables() for report in reports):
        frame = table.to_pandas()
        assert frame.shape == (len(table.rows), len(table.header))
        assert [*frame.columns] == [*table.header]
        for name in number & {*frame.columns} if len(frame) else ():
            assert frame[name].dtype.kind in "if", name
            seen.add(name)
    assert {"id", "bytes", "tokens", "vocabulary", "bytes/token", "b"} <= seen
    ids = bpe.Table("Tokens", ("id", "n"), [(50256, 50256)])
    assert str(ids).endswith("| 50256 | 50,256 |")
    assert "<td>50,256" in ids._repr_html_() and "50256<td>" in ids._repr_html_()


def test_models_are_compared(some_prose, tmp_path):
    tokenizer, _, files = some_prose
    cl100k = bpe.Tokenizer(*bpe.train_bpe(files[0], 600), pattern="cl100k")
    (tmp_path / "a.txt").write_text("one 12345 two\n    three\n" * 9)
    corpora = {"text": tmp_path / "a.txt", "code": files[0]}
    report = bpe.compare({"a": tokenizer, "b": cl100k}, corpora, engine=bpe.Engine(1))
    assert report.corpora == ["text", "code"]
    texts = [path.read_bytes() for path in corpora.values()]
    for model, costs, rates in zip(
        (tokenizer, cl100k), report.n_tokens, report.bytes_per_token, strict=True
    ):
        assert costs.tolist() == [len(model.encode(text)) for text in texts]
        assert rates.tolist() == [len(text) / n for text, n in zip(texts, costs, strict=True)]
    for word, _, pieces in report.differences:
        assert [b"".join(part) for part in pieces] == [word.strip()] * 2 and pieces[0] != pieces[1]
    counts = [n for _, n, _ in report.differences]
    assert counts == sorted(counts, reverse=True)


def naive_cuts(tokenizer, text):
    """The places in a text where one token ends and another begins."""
    sizes = [len(piece) for piece in bpe.decode_each(tokenizer, tokenizer.encode(text, "none"))]
    return {*itertools.accumulate(sizes)}


def test_words_split_alike_are_those_cut_at_the_same_places_of_the_text(library, tmp_path):
    data = b" ".join(path.read_bytes() for path in library[:3]).decode().encode()
    text = " ".join(regex.findall(r"[a-z]{2,}", data.decode())[:3000])
    (tmp_path / "a.txt").write_text(text)
    options = {"workers": 1, "alphabet": "characters"}
    models = {
        "bytes": bpe.train(library[:9], 600, workers=1).tokenizer,
        "marks": bpe.train(library[:9], 600, **options).tokenizer,
        "unigram": bpe.train(library[:9], 600, model="unigram", workers=1).tokenizer,
        "always": bpe.train(library[:9], 600, mark="_", **options).tokenizer,
    }
    words = [match.span() for match in re.finditer(r"\S+", text)]
    for names in (["bytes", "marks"], ["marks", "unigram", "bytes"], ["bytes", "always"]):
        cuts = [naive_cuts(models[name], text) for name in names]
        n_alike = 0
        for start, stop in words:
            first, *others = [{k for k in places if start < k < stop} for places in cuts]
            n_alike += all(inside == first for inside in others)
        expected = n_alike / len(words)
        for order in (names, names[::-1]):
            report = bpe.compare({name: models[name] for name in order}, {"a": tmp_path / "a.txt"})
            assert 0 < expected < 1 and report.same == pytest.approx(expected)


@pytest.mark.parametrize("pattern", ["gpt2", "whitespace-split"])
@pytest.mark.parametrize("model", ["bytes", "bpe", "unigram", "wordpiece"])
def test_measures_equal_their_definitions(library, some_prose, tmp_path, model, pattern):
    options = {"alphabet": "characters", "coverage": 0.9, "pattern": pattern, "workers": 1}
    if pattern == "whitespace-split":
        options["mark"] = ""  # no space is left that ▁ could stand for
    if model == "bytes":
        tokenizer = bpe.train(library[:9], 500, [END], pattern=pattern, workers=1).tokenizer
    else:
        tokenizer = bpe.train(library[:9], 500, [END], model=model, **options).tokenizer
    text = library[3].read_text() + " ÄÖ 中文 é" * 50
    (tmp_path / "a.txt").write_text(text)
    inspection = bpe.inspect_model(tokenizer, tmp_path / "a.txt")
    assert inspection.measures == pytest.approx(naive_measures(tokenizer, [text.encode()]))
    assert inspection.measures["Rényi efficiency"] < 1
    ids = tokenizer.encode(text)
    assert {id: n for id, n in enumerate(inspection.frequencies.tolist()) if n} == Counter(ids)
    assert model == "bytes" or tokenizer.token_to_id(tokenizer.model.unk_token) in ids


def test_a_view_shows_every_token(some_prose):
    tokenizer, _, _ = some_prose
    text = "def f():\n\treturn 'é中🙂' \x1b[31m\u202e\n".encode() + b"\xff"
    report = bpe.view(tokenizer, text)
    assert b"".join(report.tokens) == text and report.ids.tolist() == tokenizer.encode(text)
    for width in (12, 40, 80):
        lines = report.text(width).splitlines()
        assert all(bpe._cell_width(line) <= max(width, 12) for line in lines[:-1])
        cells = [piece.strip() for line in lines[:-1:2] for piece in line.split("|")[:-1]]
        assert cells == [bpe.readable(token) for token in report.tokens]
        assert [int(id) for line in lines[1:-1:2] for id in line.split()] == report.ids.tolist()
    assert "\x1b" not in report.text(80)
    assert "<1B>" in report.text(80)
    assert "\u202e" not in report.text(80) and "<E2>|<80>|<AE>|" in report.text(80)


def test_a_page_shows_every_token(some_prose, tmp_path):
    tokenizer, _, _ = some_prose
    text = "<script>a & b</script> 中文 سلام 🙂\x00\u202e".encode() + b"\n\xff"
    report = bpe.view(tokenizer, text)
    bpe.write_page(tmp_path / "a.html", report, bpe.Table("A <b>", ("x",), [("<i>",)]))
    page = Cells((tmp_path / "a.html").read_text())
    assert "".join(page.of("span", "br")) == "".join(map(bpe.readable, report.tokens))
    titles = [int(attrs["title"]) for tag, attrs in page.tags if tag == "span"]
    assert titles == report.ids.tolist()
    assert "script" not in {tag for tag, _ in page.tags}


@given(st.binary(min_size=1, max_size=30) | texts.filter(len).map(str.encode))
def test_readable_text_is_printable(token):
    assert bpe.readable(token).isprintable() and " " not in bpe.readable(token)


@pytest.fixture(scope="session")
def reports(some_prose):
    """One of each report."""
    tokenizer, training, files = some_prose
    learned = (training.learned, training.counted.n_bytes)
    engine = bpe.Engine(1)
    return [
        bpe.inspect_model(training, files[:3], engine=engine),
        bpe.inspect_model(tokenizer),
        bpe.curve({"one": learned, "two": learned}),
        bpe.compare(
            {"one": tokenizer, "two": tokenizer},
            {"中文 | text": files[0], "b": files[1]},
            engine=engine,
        ),
    ]


@pytest.mark.parametrize(
    "suffix, begin", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_curves_are_drawn(reports, tmp_path, suffix, begin):
    pytest.importorskip("matplotlib")
    few = bpe.curve({"$a$": (bpe.learn(bpe.Words.from_counts({b"aab": 3}), 258), 9)})
    for report in (reports[2], few):
        figure = report.plot(tmp_path / f"picture.{suffix}")
        assert len(figure.axes) == 2 and len(report.plot().axes[0].lines) == len(report.columns)
        assert (tmp_path / f"picture.{suffix}").read_bytes().startswith(begin)
        labels = figure.axes[0].get_xticklabels() + figure.axes[1].get_yticklabels()
        assert labels and all(label.get_parse_math() for label in labels)  # 2^8 is a formula
    (name,) = figure.axes[0].get_legend().get_texts()
    assert name.get_text() == r"\$a\$"  # $a$ is none


def test_sizes_on_a_corpus_are_those_of_models_with_fewer_merges(some_prose, tmp_path):
    tokenizer, _, files = some_prose
    encoded = bpe.encode_corpus(tokenizer, files[5])
    n_tokens = bpe.tokens_by_size(tokenizer.model, encoded.frequencies(tokenizer.vocab_size))
    for n_merges in (0, 1, 7, 100, len(tokenizer.merges)):
        fewer = bpe.Tokenizer.from_merges(tokenizer.merges[:n_merges], pattern="gpt2")
        assert n_tokens[n_merges] == len(fewer.encode(files[5].read_text()))
    report = bpe.curve({"a": tokenizer}, files[5])
    assert report.columns["a"][1].tolist() == n_tokens.tolist()


def test_the_curve_on_the_corpus_of_a_training_is_that_of_the_training(command, model):
    (model / "a.txt").write_text("The cat sat on the mat. " * 3)
    command("train a.txt --vocab-size 262 --out here", cwd=model)
    here = command("curve here", cwd=model).stdout
    assert command("curve here --corpus a.txt", cwd=model).stdout == here


def test_sizes_need_one_way_to_each_token():
    model = bpe.Tokenizer.from_merges([(b"a", b"b"), (b"b", b"c"), (b"ab", b"c")]).model
    assert bpe.tokens_by_size(model, np.bincount([258, 256], minlength=259)).tolist() == [
        5,
        3,
        3,
        2,
    ]
    vocab = dict(enumerate([b"a", b"b", b"ab", b"aba"]))
    twice = [(b"a", b"b"), (b"ab", b"a"), (b"b", b"a"), (b"a", b"ba")]
    with pytest.raises(bpe.InputError, match="no way back"):
        bpe.tokens_by_size(bpe.Tokenizer(vocab | {4: b"ba"}, twice).model, np.zeros(5, int))
    with pytest.raises(bpe.InputError, match="by its merges alone"):
        bpe.tokens_by_size(bpe.Tokenizer(vocab, None).model, np.zeros(4, int))


def test_tables_are_markdown_in_columns(reports):
    text = str(reports[3])
    assert "| model | 中文 \\| text |     b |" in text
    assert "| ----- | -----------: | ----: |" in text
    for table in text.split("\n\n"):
        assert len({bpe._cell_width(line) for line in table.splitlines() if line[0] == "|"}) < 2


class Cells(html.parser.HTMLParser):
    """The tags of a page, and the text between them."""

    def __init__(self, page: str):
        super().__init__()
        self.tags = []
        self.texts = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def of(self, *tags: str) -> list[str]:
        pairs = zip(self.tags, self.texts, strict=True)
        return [text.strip("\n") for (tag, _), text in pairs if tag in tags]


def test_a_notebook_shows_tables_as_they_are(reports):
    table = bpe.Table("Tokens of <a>", ("token", "n"), [("<E4>|__init__", 1), ("$x$ `y` #", 2)])
    cells = Cells(table._repr_html_())
    assert cells.of("h4") == ["Tokens of <a>"]
    assert cells.of("td") == ["token", "n", "<E4>|__init__", "1", "$x$ `y` #", "2"]
    for report in reports:
        assert Cells(report._repr_html_()).of("h4") == [table.title for table in report.tables()]
        for row in chain.from_iterable(table.rows for table in report.tables()):
            assert all(isinstance(cell, (str, int, float, np.number, type(None))) for cell in row)


@pytest.fixture(scope="session")
def bench():
    """The benchmark, which is a script."""
    path = Path(__file__).with_name("docs") / "bench.py"
    spec = importlib.util.spec_from_file_location("bench", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_peers_do_the_same_work(bench, library, tmp_path):
    (tmp_path / "latin.txt").write_bytes(f"caf\xe9 {END}".encode("latin-1") * 50)  # is no UTF-8
    table = bench.bench([*library[:30], tmp_path / "latin.txt"], 600)
    verdicts = {(row[0], row[1].split()[0]): row[-1] for row in table.rows}
    encode = [("encode", tool) for tool in ("bpe_numba", "tokenizers", "tiktoken")]
    train = [("train", tool) for tool in ("bpe_numba", "tokenizers")]
    # the other peers are not required, and may be installed
    assert dict.fromkeys(train + encode, "same").items() <= verdicts.items()
    assert {*verdicts} <= {(job, tool) for job in bench.PEERS for tool in bench.PEERS[job]}
    assert all(min(row[2:5]) > 0 for row in table.rows) and "| second pass |" in str(table)


@pytest.mark.parametrize(
    "change, verdict",
    [
        (lambda tokens: tokens, "same"),
        (lambda tokens: [tokens[0], *tokens[2:]], "differs"),
        (lambda tokens: [*tokens, b"more"], "differs"),
        (lambda tokens: tokens.nothing, "'list' object has no attribute 'nothing'"),
    ],
)
def test_the_verdict_on_a_peer_that_differs_or_fails(bench, library, monkeypatch, change, verdict):
    def prepare(training, documents):
        return lambda: [change(training.learned.tokens[256:])]

    trainers = {"bpe_numba": bench.PEERS["train"]["bpe_numba"], "numpy": prepare}
    encoders = dict.fromkeys(["bpe_numba", "numpy"], bench._encode_bpe_numba)
    monkeypatch.setitem(bench.PEERS, "train", trainers)
    monkeypatch.setitem(bench.PEERS, "encode", encoders)
    rows = bench.bench(library[:3], 300).rows
    assert [row[0] for row in rows] == ["train", "train", "encode", "encode"]
    assert rows[1][-1] == verdict
    assert (rows[1][2] is None) == ("nothing" in verdict)


def test_view_reads_its_text_from_a_pipe(command, model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    output = command("view model The cat", cwd=model).stdout.decode()
    assert output.endswith("7 bytes, 3 tokens\n") and "\x1b" not in output
    assert command("view model", stdin=b"The cat", cwd=model).stdout.decode() == output


def test_models_are_viewed_beside_each_other(command, model, tmp_path):
    page = tmp_path / "a.html"
    line = f"view model 'The cat' --beside model --html {page}"
    output = command(line, cwd=model).stdout.decode()
    half = len(output) // 2
    assert output[:half] == output[half:] and "model: 7 bytes, 3 tokens" in output
    assert Cells(page.read_text()).of("h4") == ["model: 7 bytes, 3 tokens"] * 2


def test_a_comparison_is_written_to_a_page(command, model, tmp_path):
    (tmp_path / "a.txt").write_text("The cat")
    page = tmp_path / "a.html"
    output = command(f"compare model --corpus {tmp_path / 'a.txt'} --html {page}", cwd=model).stdout
    assert all(title in output.decode() for title in Cells(page.read_text()).of("h4"))


def test_timings_are_a_table(command, some_prose, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("low lower " * 999)
    result = command("train a.txt --vocab-size 260 --out model --timings --quiet", cwd=tmp_path)
    assert result.stdout == b""
    header, _, *rows = result.stderr.decode().splitlines()[2:]
    columns = ["stage", "seconds", "MB/s", "% of time", "peak MB"]
    assert re.findall(r"[\w%].*?(?= +\|)", header) == columns
    stages = ["compile", "scan", "learn", "vocabulary", "save", "other"]
    assert [row.split()[1] for row in rows] == stages
    assert bpe.TIMINGS["scan"].n_bytes == text.stat().st_size and bpe.TIMINGS["learn"].seconds > 0
    result = command("inspect model a.txt --timings --quiet", cwd=tmp_path).stderr.decode()
    assert all(f"\n| {name} " in result for name in ("load", "search", "scan", "encode", "other"))


@compiled
def test_compiling_has_a_row_of_its_own_in_every_stage():
    bpe.TIMINGS.clear()
    start = time.perf_counter()
    with bpe.stage("search") as spent:
        bpe.numba.njit(lambda x: x + 1)(1)
    elapsed = time.perf_counter() - start
    assert [*bpe.TIMINGS] == ["compile", "search"]
    assert bpe.TIMINGS["search"].seconds == spent.seconds > 0
    assert 0 < bpe.TIMINGS["compile"].seconds + spent.seconds <= elapsed
    compiled = bpe.TIMINGS["compile"].seconds
    with bpe.stage("compile") as spent:
        bpe.numba.njit(lambda x: x + 2)(1)
    assert bpe.TIMINGS["compile"].seconds == compiled + spent.seconds


def test_a_missing_matplotlib_is_named(command, some_prose, tmp_path, monkeypatch):
    some_prose[1].save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    result = command("curve model --plot a.png", cwd=tmp_path)
    assert_refused(result, "this needs a package that is missing: pip install matplotlib")


def run_page(name: str, **names) -> dict:
    """Run the blocks of Python of a page in docs; returns their names."""
    page = Path(__file__).with_name("docs") / name
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block.replace("16_000", "400"), names)
    return names


SENTENCES = {
    "en": "The red book lies on the old table. It was raining when we came home late. "
    "Nobody knows where the small bird sleeps. She writes a long letter to her friend.",
    "de": "Das rote Buch liegt auf dem alten Tisch. Es regnete, als wir spät nach Hause kamen. "
    "Niemand weiß, wo der kleine Vogel schläft. Sie schreibt ihrer Freundin einen langen Brief.",
    "zh": "红色的书放在旧桌子上。 我们很晚回家时正在下雨。 没有人知道小鸟睡在哪里。 "
    "她给朋友写了一封长信。",
}


def naive_gini(costs):
    """The mean difference of two costs, relative to twice their mean."""
    differences = [abs(x - y) for x in costs for y in costs]
    return sum(differences) / (2 * len(costs) * sum(costs))


def test_the_page_on_evaluation_runs(library, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for language, text in SENTENCES.items():
        Path(f"{language}.txt").write_text("\n".join(re.split(r"(?<=[.。]) ", text)))
        Path(f"{language}.train.txt").write_text(END.join([text, text[9:], text[:90]]))
    Path("train.txt").write_text("".join([*SENTENCES.values(), library[0].read_text()]))
    names = run_page("evaluate.md")
    text = Path("de.txt").read_text()
    for family, tokenizer in names["tokenizers"].items():
        measures = names["table"].loc[family, "German"]
        n_tokens = len(tokenizer.encode(text))
        assert measures["tokens"] == n_tokens
        assert measures["fertility"] == n_tokens / len(text.split())
        lone = [len(tokenizer.encode(word)) for word in text.split()]
        assert measures["fertility, lone words"] == sum(lone) / len(lone)
        assert measures["STRR, lone words"] == lone.count(1) / len(lone)
        words = naive_split(bpe.PATTERNS["gpt2"], text.encode())
        if family == "bpe":
            single = sum(len(tokenizer.encode(word)) == 1 for word in words)
            assert names["by_pretokens"] == (n_tokens / len(words), single / len(words))
    assert names["table"].shape == (9, 10)
    for costs, premiums, gini in zip(*map(names.get, ("costs", "premiums", "gini")), strict=True):
        assert premiums.tolist() == [cost / costs[0] for cost in costs]
        assert gini == pytest.approx(naive_gini(costs))
    assert names["shared"][0][0] == len(names["tokenizers"]["bpe"])
    assert names["shared"][0][1] == names["shared"][1][0] < len(names["tokenizers"]["wordpiece"])
    assert names["two"].low < names["two"].high
    rate = names["n_bytes"].sum() / names["bpe"].sum()
    assert names["one"].low <= rate <= names["one"].high
    letters = bpe.Tokenizer.from_merges([(b" ", b"a"), (b"b", b"c")])
    scores = names["score_boundaries"](letters, [["ab", "c"], ["a", "bc", "d"], ["é"]])
    assert scores == (1 / 2, 2 / 3, 4 / 7)
    assert Path("languages.svg").read_text().startswith("<?xml")
    assert len(names["grid"]) == 16 and len([*Path("grid").glob("*.json")]) == 8
    largest = names["train"]("grid/de-1.txt", 300, [END], model="bpe", workers=1).tokenizer
    row = names["grid"].query("language == 'de' and seed == 1 and family == 'bpe' and size == 300")
    assert row["tokens"].item() == len(largest.encode(text))
    Path("grid/en-0-bpe.json").unlink()  # interrupted
    again = names["run_grid"](["en", "de"], [0, 1], ["bpe", "unigram"], [280, 300])
    assert again.equals(names["grid"])
    assert "BPE minus Unigram: -" in capsys.readouterr().out


def test_the_algorithms_of_the_page_on_research_run(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("".join(path.read_text() for path in library[:6]))
    Path("other.txt").write_text(library[7].read_text())
    names = run_page("research.md")
    words = names["words"]
    for allows in (names["without_digits"], names["up_to_8_bytes"], names["of_whole_characters"]):
        learned = names["learn_allowed"](words, 400, allows).learned()
        assert len(learned.merges) == 144 and all(itertools.starmap(allows, learned.merges))
    learner, symbols = names["learn_picky"](words, 400, 0.6)
    assert len(symbols) <= 400 < learner.n_symbols and learner.has_split
    assert learner.words().to_counts() == words.to_counts()
    cuts = dict(names["list_cuts"](learner))
    assert sum(len(cuts[word]) * n for word, n in words.to_counts().items()) == learner.n_tokens
    learner, hidden = names["learn_scaffold"](words, 400)
    assert hidden and learner.n_symbols - len(hidden) == 400
    assert learner.learned().merges == bpe.learn(words, learner.n_symbols, tie_break="ids").merges
    assert names["tokenizer"].model.kind == "bpe" and len(names["short"].learned().merges) > 50
    random, again = (names["learn_random"](words, 300, 7).learned().merges for _ in range(2))
    assert random == again != names["learn_random"](words, 300, 8).learned().merges
    greedy, beam = (names["learn_beam"](words, 262, width) for width in (1, 3))
    assert greedy.learned().counts[0] == bpe.learn(words, 257).counts[0]
    assert beam.n_symbols == 262 and beam.words().to_counts() == words.to_counts()
    text = Path("corpus.txt").read_text()
    counts = Counter(bpe.Tokenizer.from_merges(names["learned"]).encode(text))
    tokens = bpe.Tokenizer.from_merges(names["learned"]).vocab
    assert {tokens[id]: n for id, n in counts.items()}.items() <= names["counts"].items()
    assert names["rare"] and names["residues"]
    for name in ("whole", "fair", "picky", "super", "scaffold", "trimmed", "lite"):
        tokenizer = bpe.Tokenizer.load(name)
        assert tokenizer.decode(tokenizer.encode(text)) == text


# ─── Refusals ─────────────────────────────────────────────────────────────────────────────────────

TEXT_GZ = gzip.compress(b"text " * 99)
# The files in a folder, for the calls and the commands below that are refused.
SOME_FILES = {
    "text.txt": b"some text\n",
    "other.txt": b"other text\n",
    "pad.txt": f"some text, and more{END}<pad>".encode(),
    "empty.txt": b"",
    "ends.txt": END.encode() * 3,
    "late.jsonl": b'{"text": "some text"}\n' * 50 + b"oops\n" + b'{"text": "more"}\n' * 50,
    "late.jsonl.gz": gzip.compress(b'{"text": "some text"}\n' * 50 + b"oops\n"),
    "long.txt": b"a" * 9_000_000,
    "long.txt.gz": gzip.compress(b"a" * 9_000_000, 1),
    "long.jsonl": b'{"text": "' + b"a" * 9_000_000 + b'"}',
    "zip.txt.gz": gzip.compress(b"PK\x03\x04" * 9),
    "unpacked.txt.gz": b"some text",
    "flipped.txt.gz": TEXT_GZ[:20] + b"\0\1" + TEXT_GZ[22:],
    "some/a.txt": b"some text",
    "some/b.txt": b"PK\x03\x04" * 9,
    "folder/hidden/.a.txt": b"hidden",
    "bad.npy": b"nonsense\n",
    "odd.bin": b"abc",
    "a.tiktoken": b"IQ== 0\n",
    "empty.npz": b"",
    "short/training.npz": b"PK",
    "array/training.npz": b"\x93NUMPY",
    "none/training.npz": b"",
}
# The first bytes of files that are no text.
NO_TEXTS = {"zip": b"PK\x03\x04", "PDF": b"%PDF-1", "NumPy": b"\x93NUMPY"}
NO_TEXTS["tar"] = bytes(257) + b"ustar"
BAD_LINES = {
    "not JSON": b"{",
    "no text": b"[1]",
    "'text'": b'{"t": "x"}',
    "not JSON .*": b"\xff",
    r"not JSON \(": b"[" * 100000,
    r"U\+D800": b'{"text": "\\ud800"}',
}
# Files of models: their names, what is in them, and the pattern that is named with them.
BAD_MODELS = [
    ("tokenizer.json", b'{"model": {"vocab": {"a": ' + b"1" * 5000 + b"}}}", "not JSON", None),
    ("tokenizer.json", b'{"model": "\xff"}', "not UTF-8 at byte 11", None),
    ("tokenizer.json", b"\0" * 5000, "this is not a tokenizer.json", None),
    ("tokenizer.model", b"\n\x0e\n\x05<unk>\x15", "SentencePiece", None),
    ("vocab.txt", b"[UNK]\n\xff\n", "not UTF-8", None),
    ("tokenizer.model", b"IQ== 0\n", "does not say its pattern", None),
    ("a.tiktoken", b"IQ== 0\nIg== 0\n", "the id 0 appears twice", "gpt2"),
    ("a.tiktoken", b"IQ== 0\nIQ== 1\n", "same bytes", "gpt2"),
    ("a.tiktoken", b"IQ== 0\nI?== 1\n", "line 2: not a token", None),
    ("a.tiktoken", b"IQ== 0\nIg== 99999999999\n", "line 2", None),
    ("vocab.json", b'{"a": 0}', "merges.* is missing", None),
    ("merges.txt", b"#version: 0.2\na b\n", "vocabulary.* is missing", None),
]
STRIP = {"type": "Strip", "strip_left": True, "strip_right": False}
FIRST = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
FIRST_OF_BYTES = in_sequence(FIRST, BYTE_LEVEL)
ODD_REPLACE = {"type": "Replace", "pattern": {"String": {"a": 1}}, "content": " "}
ODD_CONTENT = {"type": "Replace", "pattern": {"Regex": "b"}, "content": {"a": 1}}
NAN = float("nan")
INFINITY = float("inf")
# Changes of a tokenizer.json, by the model that it is of.
BAD_CHANGES = {
    "bytes": [
        ({"model": 5}, "no model"),
        ({"model__type": "Unigram"}, "Unigram"),
        ({"model__type": "WordPiece"}, "WordPiece"),
        (
            {"model": {"type": "WordPiece", "vocab": {}, "continuing_subword_prefix": "Ġ"}},
            "the prefix of a WordPiece must be ASCII",
        ),
        ({"model__dropout": 0.1}, "dropout"),
        ({"normalizer": {"type": "Sequence"}}, "without normalizers"),
        ({"normalizer": ODD_CONTENT}, "Replace.*not supported: .*dict"),
        ({"pre_tokenizer": in_sequence(*types("ByteLevel", "Whitespace"))}, "not the last"),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "UnicodeScripts"),
        ({"normalizer": STRIP, "pre_tokenizer": FIRST_OF_BYTES}, "first after Strip"),
        ({"pre_tokenizer": None}, "decoder ByteLevel"),
        ({"pre_tokenizer": split_by("(?:(?:(?:ab?){1000}){1000}){1000}")}, "counts of groups"),
        ({"decoder": {"type": "Metaspace"}}, "decoder.*Metaspace"),
        ({"model__vocab": {"é": -5}}, "-5"),
        ({"model__vocab": {"a": 0, "b": 0}}, "the id 0"),
        ({"model__vocab": 3}, "vocabulary"),
        ({"model__unk_token": []}, r"the unk_token of a model is a string, not \[\]"),
        ({"model__merges": [["a"]]}, "merge 0"),
        ({"model__merges": ["a b c"]}, "merge 0"),
        ({"model__merges": [["a", "日"]]}, "日"),
        ({"model__merges": [["i", "n"], ["i", "n"]]}, "twice"),
        ({"added_tokens": [{"content": END, "id": 7}]}, "the ids 0 and 7"),
        ({"added_tokens": [{"content": END, "id": 0, "lstrip": "yes"}]}, "must be true or false"),
        ({"added_tokens": 1}, "added_tokens"),
        ({"added_tokens": [{"content": "<x>"}]}, "null"),
        ({"model__vocab": {"a": True}}, "id"),
    ],
    "llama": [
        ({"model__vocab": {"<unk>": 0, "a": 1}, "model__merges": []}, "<0x00>.*byte_fallback"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, ODD_REPLACE]}}, "decoder"),
    ],
    "albert": [
        *(({"model__vocab": [["<unk>", n]]}, "and its score") for n in ("0", NAN)),
        ({"model__vocab": {"<unk>": 0}}, "list of tokens and scores"),
        ({"model__unk_id": 5000}, "unk_id 5000"),
        (
            {"pre_tokenizer": BYTE_LEVEL, "model__byte_fallback": True},
            "Unigram with byte_fallback beside a ByteLevel",
        ),
    ],
    "bert": [
        ({"model__vocab": ["a"]}, "object of tokens and ids"),
        ({"model__max_input_chars_per_word": "100"}, "max_input_chars_per_word"),
    ],
}
# Folder, the folder that is changed, the change, and the pattern of the message.
CHANGED = [
    (f"{name} {k}", name, change, part)
    for name, changes in BAD_CHANGES.items()
    for k, (change, part) in enumerate(changes)
]
BAD_PROTOS = [
    (lambda p: setattr(p.trainer_spec, "model_type", 3), "words"),
    (lambda p: setattr(p.pieces[9], "type", 5), "unused"),
    (lambda p: setattr(p.pieces[9], "score", NAN), "not a number"),
    (lambda p: setattr(p.pieces[0], "type", 1), "0 unknown tokens"),
    (lambda p: setattr(p.trainer_spec, "byte_fallback", True), "<0x00>"),
    (lambda p: setattr(p.trainer_spec, "treat_whitespace_as_suffix", True), "whitespace_as_suffix"),
    (lambda p: setattr(p.normalizer_spec, "precompiled_charsmap", b"\4\0\0\0ab"), "charsmap"),
    (lambda p: setattr(p.denormalizer_spec, "precompiled_charsmap", b"a"), "denormalizer"),
    (lambda p: p.ClearField("normalizer_spec"), "cut off"),
]


@pytest.fixture(scope="session")
def here(model, prose, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    for name, content in SOME_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for name, content in NO_TEXTS.items():
        (folder / f"{name}.txt").write_bytes(content * 9)
    for k, line in enumerate(BAD_LINES.values()):
        (folder / f"{k}.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    for k, (name, content, *_) in enumerate(BAD_MODELS):
        (folder / f"bad {k}").mkdir()
        (folder / f"bad {k}" / name).write_bytes(content)
    (folder / "large").mkdir()
    with open(folder / "large" / "tokenizer.json", "wb") as file:
        file.truncate(1 << 30)
    for depth in DEPTHS:
        nested = '{"type": "Sequence", "normalizers": [' * depth + '{"type": "Nope"}' + "]}" * depth
        text = f'{{"normalizer": {nested}, "model": {{"type": "BPE"}}}}'
        (folder / f"{depth}.json").write_text(text)
    (folder / "model").symlink_to(model / "model")
    tokenizer.save(folder / "bytes")
    for name in ("llama", "albert", "bert"):
        (folder / name).mkdir()
        famous(name, prose[:300]).save(str(folder / name / "tokenizer.json"))
    for name, family, change, _ in CHANGED:
        shutil.copytree(folder / family, folder / name)
        edited(folder / name, **({} if family == "bytes" else {"added_tokens": []}) | change)
    _, file = trained_there(folder, prose, model_type="unigram")
    whole = file.read_bytes()
    for k, size in enumerate((2, 100, len(whole) - 1000)):
        (folder / f"short {k}.model").write_bytes(whole[:size])
    for k, (change, _) in enumerate(BAD_PROTOS):
        proto = sentencepiece_model_pb2.ModelProto.FromString(whole)
        change(proto)
        (folder / f"proto {k}.model").write_bytes(proto.SerializeToString())
    proto = model_proto([("<unk>", 2, 0), ("abcd", 1, -1)], 1, name="identity")
    (folder / "bytes.model").write_bytes(proto.SerializeToString().replace(b"abcd", b"ab\xffd"))
    np.save(folder / "floats.npy", np.zeros(3))
    np.save(folder / "large.npy", np.array([1, 100_000]))
    for name in ("ids.bin", "ids.npy"):
        bpe.encode_files(bpe.Tokenizer(BYTE_VOCAB, []), folder / "text.txt", folder / name)
        assert bpe.read_ids(folder / name).tolist() == [*b"some text\n"]
        described = read_json(folder / f"{name}.json") | {"tokens": 11}
        (folder / f"{name}.json").write_text(json.dumps(described))
    (folder / "link.npy").symlink_to(folder / "odd.bin")
    counting = {"special_tokens": [END, "<pad>"]}
    bpe.count_files(folder / "pad.txt", folder / "words.npz", **counting)
    bpe.count_files(folder / "other.txt", folder / "cl100k.npz", **counting, pattern="cl100k")
    bpe.count_files(folder / "other.txt", folder / "plain.npz")
    (folder / "unknown.txt").write_text("an <unk> word")
    bpe.count_files(folder / "unknown.txt", folder / "unknown.npz")
    words = (folder / "words.npz").read_bytes()
    (folder / "flipped.npz").write_bytes(words.replace(b" text", b" tex!"))
    np.savez(folder / "foreign.npz", a=np.zeros(3))
    np.savez(folder / "pickled.npz", header=np.array([{}, None], object))
    with open(folder / "array.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with np.load(folder / "words.npz") as saved:
        arrays = dict(saved)
    np.savez(folder / "offsets.npz", **arrays | {"offsets": arrays["offsets"] + 10**12})
    np.savez(folder / "twice.npz", **arrays | {"counts": arrays["counts"] * 2})
    return folder


def in_decoders(*steps):
    return [{"type": "Sequence", "decoders": [*steps]}]


WORDS = bpe.Words.from_counts({b"hello": 1})
LETTERS = {"vocab": {0: b"a", 1: b"b", 2: b"c"}, "merges": None, "alphabet": "characters"}
EMPTY_NAMES = [bpe.find_files, bpe.train, bpe.Tokenizer.load, bpe.read_ids]
EMPTY_NAMES += [
    lambda name: plain().save(name),
    lambda name: bpe.encode_files(plain(), name, "o.npy"),
    lambda name: bpe.encode_files(plain(), "x", name),
]
WRONG_TYPE = " (is named by a|must be of type) "
DEPTHS = [400, 900, 100_000]


@functools.cache
def plain(pattern="gpt2"):
    return bpe.Tokenizer(BYTE_VOCAB, [], ["<s>"], pattern)


# Calls with that folder and values; for each call its values, and last a part of the message.
MANY_REFUSED_CALLS = {
    lambda here, pattern: bpe.Pattern(pattern): [
        ("(", "position 1"),
        ("a*", "empty string"),
        (r"(?!\s)\s", "nothing"),
        ("gpt9", "no pattern is named 'gpt9'; there are gpt2, cl100k"),
        ("(?:" * 300 + "a" + ")" * 300, "does not compile"),
        ("a{" + "9" * 5000 + "}", "does not compile"),
        ("\udcff+", "does not compile"),
        ("(?:(?:(?:a?){1000}){1000}){1000}", "counts of groups multiply to more than 1,000,000"),
        (bpe.Split("a", "dropped"), "no behavior is named 'dropped'; there are isolated, removed"),
        (bpe.Split("a*", "removed"), "empty string"),
        (bpe.Metaspace("ab"), "one character for a space, not 'ab'"),
        (bpe.Metaspace("_", "last"), "no prepend scheme is named 'last'; there are never"),
        ([1], "not int"),
    ],
    lambda here, step: bpe.Normalizer([step]): [
        ({"type": "ByteLevel"}, "ByteLevel.*not supported"),
        ({"no": "type"}, "not supported"),
        ({"type": "Precompiled", "precompiled_charsmap": "AAA"}, "not supported: .*padding"),
        ({"type": "Precompiled", "precompiled_charsmap": ""}, "cut off"),
        ({"type": "Strip", "strip_left": True}, "Strip.*not supported: .*strip_right"),
        ({"type": "Prepend", "prepend": 5}, "Prepend.*not supported: "),
        (replace("", "a"), "Replace.*not supported: "),
        (replace("a*", "a", "Regex"), "Replace.*not supported: .*empty string"),
        (replace("a", "a", "Glob"), "Replace.*not supported: .*Glob"),
    ],
    lambda here, *steps: bpe.decoded_tokens({0: "▁".encode(), 1: b"a"}, in_decoders(*steps)): [
        (*types("CTC"), "CTC.*not supported"),
        (*types("Strip"), "Strip.*not supported"),
        (*types("Fuse"), replace("aa", "b"), "Replace.*not supported"),
        (*types("Fuse"), STRIP_SPACE | {"start": 2}, "Strip.*not supported"),
        (METASPACE, *types("Fuse"), STRIP_SPACE, "Strip.*not supported"),
        (replace("a", "b", "Regex"), "Replace.*not supported"),
    ],
    # Files of text.
    lambda here, name: counted([here / name], block_bytes=100, workers=2): [
        *((f"{name}.txt", rf"{name}\.txt: an? {name}.* is not text") for name in NO_TEXTS),
        ("zip.txt.gz", r"zip\.txt\.gz: a zip archive is not text"),
        ("unpacked.txt.gz", "is not packed, as its name says"),
        *((f"{k}.jsonl", rf"{k}\.jsonl, line 2: .*{part}") for k, part in enumerate(BAD_LINES)),
        ("late.jsonl", r"late\.jsonl, line 51: not JSON"),
        ("late.jsonl.gz", r"late\.jsonl\.gz, line 51: not JSON"),
        ("flipped.txt.gz", r"flipped\.txt\.gz: not a whole gzip file"),
    ],
    lambda here, name: next(bpe.Source([*here.glob(name)], bpe.Pattern()).blocks()): [
        ("some/*", r"b\.txt: a zip archive is not text")
    ],
    lambda here, use: use(""): [(use, "is empty") for use in EMPTY_NAMES],
    lambda here, use: use([""]): [
        (use, "is empty: is a variable not set") for use in EMPTY_NAMES[:2]
    ],
    lambda here, name: bpe.train(here / name, 300, [END]): [
        ("empty.txt", r"no text to learn from in .*\.txt"),
        ("ends.txt", r"no text to learn from in .*\.txt"),
    ],
    lambda here, text: bpe.train_bpe(text, 300): [
        ("Hello", r"no such file.*; a text goes into a file, or .* texts="),
        ("Hello world. " * 999, r"no such file.*; a text goes into a file, or .* texts="),
        ("\0", r"no such file.*; a text goes into a file, or .* texts="),
    ],
    lambda here, options: bpe.train(**options): [
        ({"texts": "Hello"}, "texts"),
        ({"texts": ["Hello"], "inputs": "x"}, "texts"),
        ({"texts": [5]}, "text"),
        ({"inputs": 3}, WRONG_TYPE),
        ({"inputs": [3]}, WRONG_TYPE),
    ],
    # Words, and learning from them.
    lambda here, counts: bpe.Words.from_counts(counts): [
        ({b"a": -1}, "-1"),
        ({b"a": 1.5}, "1.5"),
        ({"a": 1}, "bytes"),
        ({b"ab": 2**62}, "63"),
    ],
    lambda here, options: WORDS.as_characters(**options).as_characters(): [
        ({"coverage": 1.5}, "from 0 to 1"),
        ({}, "256 bytes"),
    ],
    lambda here, words, tie_break: bpe.learn(words, 300, tie_break=tie_break): [
        (WORDS, "none", "tie_break"),
        (bpe.Words.from_counts({}), "bytes", "no words"),
        ({b"a": 1}, "bytes", WRONG_TYPE),
    ],
    lambda here, counts, size, score: bpe.learn_wordpiece(
        words_of_characters(counts), size, score=score
    ): [
        ({b"ab": 1}, 9, "best", "score"),
        ({}, 9, "count", "no words"),
        ({b"abcd": 1}, 3, "count", "the alphabet has 7"),
    ],
    lambda here, counts, options: bpe.learn_unigram(
        words_of_characters(counts), **{"n_symbols": 9} | options
    ): [({}, {}, "no words"), ({"ab": 1}, {"n_symbols": 1}, "the alphabet has 2")],
    # Vocabularies.
    lambda here, size, special: bpe.train_bpe_from_counts({b"hello": 1}, size, special): [
        (255, [], "256"),
        (257, ["<a>", "<b>"], "258"),
        (2**31, [], "must be 256 to 16,777,216"),
        (300, ["<a>", "<a>"], "twice"),
        (300, [""], "not empty"),
        (300, ["x"], "single byte"),
        (300, "<a>", "list"),
        (300, ["ell"], "b'hello'"),
        (300, [5], "5"),
        (300, ["<\ud800>"], r"U\+D800|UTF-8"),
        (300, ["é"], "é"),
    ],
    lambda here, *fields: bpe.Tokenizer(*fields).save(here / "nowhere"): [
        ({0: b"a", 1: b"a"}, [], r"\[0, 1\]"),
        ({-1: b"a"}, [], "-1"),
        ({0: "a"}, [], "bytes"),
        ({0: b""}, [], "at least one"),
        ({0: b"a"}, [(b"a", b"b")], "a merge has or makes b'b'"),
        ({0: b"a", 1: b"b"}, [(b"a", b"b")], "b'ab'"),
        ({2**24: b"a"}, [], "16777216"),
        ([b"a"], [], WRONG_TYPE),
        ({0: b"a", 1: b"aa"}, [("a", "a")], "merges are pairs"),
        ({0: b"a", 1: b"aa"}, [(b"a",)], "merges are pairs"),
        (BYTE_VOCAB | {256: b" the"}, [], ["Ġthe"], "'Ġthe'"),
        (BYTE_VOCAB, [], ["a"], "single byte"),
    ],
    lambda here, kind, fields: bpe.KINDS[kind].tables(
        bpe.Model(**LETTERS | {"kind": kind} | fields)
    ): [
        ("bpe", {"unk_token": "?", "scores": np.arange(3.0)}, r"'\?' is not in the vocabulary"),
        ("bpe", {"vocab": {0: b"a", 1: b"ad"}, "scores": np.arange(2.0)}, "the token 'ad' is"),
        ("bpe", {"scores": np.array([1.0])}, "id 2, has no score"),
        ("bpe", {"scores": np.array([1.0, NAN, 0.0])}, "not a number"),
        ("unigram", {}, "a score for each token"),
        ("unigram", {"scores": np.array([0.0, -1.0])}, "'c', id 2, has no score: there are 2"),
        ("unigram", {"scores": np.array([0.0, NAN, -1.0])}, "'b', id 1, is nan, which is no"),
        ("unigram", {"scores": np.array([0.0, -1.0, INFINITY])}, "'c', id 2, is inf"),
        ("unigram", {"scores": np.full(3, -INFINITY)}, "needs tokens with scores"),
    ],
    lambda here, words: bpe.words_of_model(bpe.Model(BYTE_VOCAB, []), words): [
        (WORDS.as_characters(), "256 bytes")
    ],
    # Encoding and decoding.
    lambda here, fields, text: bpe.Tokenizer.from_model(
        bpe.Model({0: b"a", 1: b" "}, [], **fields)
    ).encode(text): [
        ({}, "ab", "0x62"),
        ({}, "a " * (1 << 18) + "~", "the byte 0x7E is not in"),
        ({"alphabet": "characters"}, "aé", "'é' is not in"),
        ({}, "ab\ud83d", r"U\+D83D at index 2"),
    ],
    lambda _, text: bpe.Tokenizer({0: b"a"}, []).sample(text): [("~b", "the byte 0x7E is not in")],
    lambda here, chosen: plain().encode("<c>", chosen): [
        (["<c>"], "no special token is named '<c>'")
    ],
    lambda here, texts: plain().encode_batch(texts): [("one text", "list of texts")],
    lambda here, ids: plain().decode(ids): [
        *(([1, id], re.escape(repr(id))) for id in (257, -1, "a", 2**70)),
        *((np.array([1, id]), str(id)) for id in (257, -1, 2**40)),
        (np.zeros(2), "float64"),
        *((ids, "id") for ids in ([0] * 99 + [1.0], "12", None)),
    ],
    lambda _, ids: bpe.Tokenizer({2: b"a", 5: b"b"}, []).decode(ids): [([2, 5, 3], "id 3 is not")],
    lambda here, id: plain().id_to_token(id): [(id, "id") for id in (1.0, 257)],
    lambda here, out, options: bpe.encode_files(
        plain(), here / "text.txt", here / out, **options
    ): [
        ("train.bin", {"val_fraction": 0.1}, "of 1 document .* holds out 0: documents are files"),
        ("o.bin", {"val_fraction": 0.1}, "with 'train' in it"),
    ],
    lambda here, name: bpe.read_ids(here / name): [
        (name, f"{name}: has 10 ids") for name in ("ids.bin", "ids.npy")
    ],
    # Files of models.
    lambda here, name, options: bpe.Tokenizer.load(here / name, **options): [
        *((f"bad {k}/{bad[0]}", {"pattern": bad[3]}, bad[2]) for k, bad in enumerate(BAD_MODELS)),
        *((name, {}, part) for name, _, _, part in CHANGED),
        *((f"{n}.json", {}, rf"{n}\.json: .*(Nope|nested too deep|not JSON)") for n in DEPTHS),
        *((f"short {k}.model", {}, rf"short {k}\.model: .*cut off") for k in range(3)),
        *((f"proto {k}.model", {}, rf"{k}\.model: .*{bad[1]}") for k, bad in enumerate(BAD_PROTOS)),
        ("bytes.model", {}, r"bytes\.model: .*(tokens are UTF-8|SentencePiece model)"),
        ("large", {}, "256 MB"),
        ("a.tiktoken", {"encoding": "gpt5"}, "no encoding is named 'gpt5'"),
        ("bytes", {"pattern": "gpt2"}, "pattern"),
        ("bytes", {"special_tokens": ["<x>"]}, "special_tokens"),
    ],
    lambda here, options: bpe.Tokenizer(BYTE_VOCAB | {256: b"ab"}, [], **options).save(
        here / "nowhere", "gpt2"
    ): [
        ({"ignore_merges": True}, "GPT-2"),
        ({"special_tokens": ["<a>"], "flags": {"<a>": bpe.AddedToken(lstrip=True)}}, "GPT-2"),
        ({"pattern": [bpe.Metaspace(" "), "gpt2"]}, "GPT-2"),
    ],
    lambda here, pattern: bpe.save_model(
        bpe.Model({0: b"a"}, [], pattern=pattern, alphabet="characters", unk_token="a"),
        here / "nowhere",
    ): [(BYTE_LEVEL, "ByteLevel is for tokens of bytes")],
    lambda here, format: plain().save(here / "nowhere", format): [
        ("sentencepiece", "no format is named 'sentencepiece'; there are huggingface, gpt2")
    ],
    lambda here, pattern: bpe.Tokenizer(BYTE_VOCAB, None, pattern=pattern).to_tiktoken(): [
        (r"\w+", "may leave text unmatched")
    ],
    lambda here, name: plain().save(here / name, "gpt2"): [("vocab.json", "two files: name a")],
    lambda here, name, format: bpe.Tokenizer.load(here / name).save(here / "nowhere", format): [
        (name, format, "characters|kind|byte is not a token")
        for name in ("llama", "albert", "bert")
        for format in ("gpt2", "tiktoken")
    ],
    # Training, and other calls with options.
    lambda here, options: bpe.train(
        here / "text.txt", **{"vocab_size": 1000, "workers": 1} | options
    ): [
        ({"model": "bert"}, "no family of models is named 'bert'"),
        ({"alphabet": "letters"}, "no alphabet is named 'letters'; there are bytes, characters"),
        ({"mark": "▁"}, "`mark` go with the alphabet characters"),
        ({"alphabet": "characters", "mark": "ab"}, "a mark is one character"),
        ({"alphabet": "characters", "coverage": 0.0}, "`coverage` is more than 0"),
        ({"model": "wordpiece", "alphabet": "bytes"}, "family wordpiece is made of characters"),
        ({"model": "wordpiece", "byte_fallback": True}, "`byte_fallback` is for bpe and unigram"),
        (
            {"alphabet": "characters", "byte_fallback": True, "unk_token": "?!"},
            "nothing is unknown",
        ),
        ({"model": "unigram", "tie_break": "ids"}, "`tie_break` is no option"),
        ({"score": "best"}, "no `score` is named 'best'"),
        ({"score": lambda count: count}, "2, 4 or 5 numbers, not 1"),
        ({"score": lambda count, size: len(bpe)}, "cannot be compiled: "),
        ({"normalizer": ["nfx"]}, "no normalizer is named 'nfx'"),
        ({"longest": 3}, "`longest` is no option of `train` with the family bpe"),
        *(
            ({"model": model, "alphabet": "characters", "vocab_size": 5}, "vocabulary has room for")
            for model in ("bpe", "wordpiece", "unigram")
        ),
        (
            {"model": "unigram", "from_": plain().model},
            "only a BPE has merges that training can continue",
        ),
        ({"from_": "no-such-model"}, "no such file"),
        ({"special_tokens_at": "second"}, "special_tokens_at"),
        ({"vocab_size": "300"}, "`vocab_size` must be of type int"),
    ],
    lambda here, call: call(plain()): [
        (lambda _: bpe.train_bpe_from_counts(3, 300), WRONG_TYPE),
        (lambda _: bpe.Tokenizer.load(3), "a model is a path"),
        (lambda tokenizer: tokenizer.save(3), WRONG_TYPE),
        (lambda tokenizer: tokenizer.sample("a", "x"), WRONG_TYPE),
        (lambda _: bpe.encode_files("none", "text.txt", "o.npy"), "none: no such file"),
        (lambda _: bpe.encode_files(3, "text.txt", "o.npy"), WRONG_TYPE),
        (lambda _: bpe.inspect_model(3), WRONG_TYPE),
        (lambda _: bpe.inspect_model("no-such-model"), "no-such-model: no such file or folder"),
        (lambda tokenizer: bpe.curve(tokenizer), "no merge counts: name a BPE that `train` wrote"),
        (lambda tokenizer: bpe.compare(tokenizer, []), "at least one model and one corpus"),
        (lambda _: bpe.compare([], []), "at least one model and one corpus"),
        (lambda tokenizer: bpe.view(tokenizer, 3), WRONG_TYPE),
        (lambda _: bpe.count("a.txt"), "no such file"),
    ],
    lambda here, options: bpe.transformers_config(["<s>"], **options): [
        ({"eos_token": "<x>"}, "<x>"),
        ({"model_max_length": 0}, "0"),
        ({"chat_template": Path("nowhere.jinja")}, r"nowhere\.jinja"),
        ({"chat_template": "chatml"}, "im_start"),
    ],
    lambda here, name: bpe.load_learned(here / name, plain().model): [
        ("short", r"training\.npz: not a whole record of a training"),
        ("array", r"training\.npz: not a whole record of a training"),
        ("none", r"training\.npz: not a whole record of a training"),
    ],
    lambda here, name: bpe.curve({"x": (bpe.learn(WORDS, 258), 5)}).plot(here / name): [
        ("a.xyz", r"name a \.png, \.svg or \.pdf file")
    ],
}
REFUSED_CALLS = [
    pytest.param(call, values, part, id=part)
    for call, cases in MANY_REFUSED_CALLS.items()
    for *values, part in cases
]


@pytest.mark.parametrize("call, values, part", REFUSED_CALLS)
def test_bad_calls_are_refused_in_one_line(call, values, part, here):
    before = sorted(here.rglob("*"))
    with pytest.raises((bpe.InputError, OSError), match=part) as raised, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(here, *values)
    assert "\n" not in str(raised.value) and sorted(here.rglob("*")) == before


# Command lines in that folder, and parts of their line on standard error.
REFUSED_COMMANDS = [
    ("train words.npz cl100k.npz", ["cl100k.npz", "the pattern"]),
    ("train words.npz plain.npz", ["plain.npz", "the special_tokens", "<pad>"]),
    ("train words.npz words.npz", ["twice"]),
    ("train words.npz text.txt", ["text.txt: text and words files cannot be mixed"]),
    ("train words.npz --normalizer nfc", ["words.npz", "the normalizer"]),
    (f"train words.npz --special-token {END}", ["words.npz", "the special_tokens"]),
    ("train unknown.npz --model unigram", ["unknown.npz", "the special_tokens", "<unk>"]),
    *(
        (f"train {name}.npz", [f"{name}.npz", "not a whole file of words"])
        for name in ("empty", "flipped", "foreign", "pickled", "array", "offsets", "twice")
    ),
    ("count text.txt --out words.txt", ["words.txt", ".npz"]),
    ("count words.npz", ["words.npz", "zip archive"]),
    ("count nowhere.txt", ["nowhere.txt"]),
    ("convert a.tiktoken --to gpt2 --out o", ["a.tiktoken", "--pattern", "cl100k_base"]),
    ("encode model text.txt --out text.txt/o.npy", ["text.txt/o.npy: Not a directory"]),
    ("train folder", ["folder", ".jsonl"]),
    ("train text.txt --pattern ''", ["--pattern is empty"]),
    ("train text.txt --min-frequency -1", ["--min-frequency is -1", "0 to "]),
    (f"train text.txt --min-frequency {10**30}", ["--min-frequency is ", "0 to "]),
    ("train text.txt --workers 0", ["0 workers"]),
    ("train text.txt --workers lots", ["argument --workers: 'lots' is not", "such as 4"]),
    ("train text.txt --coverage 0.5", ["--coverage, --byte-fallback and --mark go with"]),
    ("train text.txt --special-tokens '<a>'", ["did you mean --special-token?"]),
    ("train text.txt --vocab 300", ["arguments: --vocab 300; did you mean --vocab-size?"]),
    ("train text.txt --vocb-size 3", ["did you mean --vocab-size?", "train --help"]),
    *(
        (f"train text.txt --vocab-size {wrong}", [f"'{wrong}' is not a whole number"])
        for wrong in ("1kk", "1.5", "1.2345k")
    ),
    ("train text.txt --out text.txt/model", ["text.txt"]),
    *(
        (f"train {name} --pattern none --out new", ["place where it can be cut", name])
        for name in ("long.txt", "long.txt.gz", "long.jsonl")
    ),
    ("encode folder text.txt", ["folder", "no tokenizer.json"]),
    ("encode model text.txt --out folder", ["folder"]),
    ("encode model text.txt --out o.dat", ["o.dat", ".npy", ".bin"]),
    ("encode model text.txt --out tokens", ["tokens: name a .npy file", ".bin", ".txt"]),
    ("encode model text.txt --out new/", ["new: name a .npy file", ".bin", ".txt"]),
    ("encode model text.txt --out o.npy --document-index i", ["i: name a .npy file"]),
    ("encode model text.txt --out o.npy --append '<x>'", ["'<x>'", END]),
    (
        "encode model text.txt --out=train.npy --document-index=i.npy --val-fraction=0.5",
        ["--document-index does not go with --val-fraction"],
    ),
    ("encode model text.txt --out o.npy --document-index o.npy", ["o.npy", "twice"]),
    ("encode model text.txt --encoding gpt2", ["omit --encoding"]),
    *(
        (f"encode model odd.bin --out {out}", ["is an input, or would be written twice"])
        for out in ("odd.bin", "link.npy")
    ),
    ("decode model large.npy --out large.npy", ["is an input, or would be written twice"]),
    ("decode model text.txt", ["text.txt: token ids must be whole numbers"]),
    ("decode model bad.npy", ["bad.npy: not a whole array of ids"]),
    ("decode model odd.bin --dtype uint16", ["odd.bin", "array"]),
    ("decode model odd.bin", ["odd.bin", "--dtype"]),
    ("decode model floats.npy", ["floats.npy", "float64"]),
    ("decode model large.npy", ["id 100000"]),
    ("view model --plot=a.png", ["--plot=a.png"]),
    ("frain", ["frain"]),
    ("inspect model empty.txt", ["no text to look at in", "empty.txt"]),
    ("compare model --corpus empty.txt", ["no text to look at in", "empty.txt"]),
    ("curve bytes", ["bytes: no merge counts", "`train`", "--corpus"]),
]


@pytest.mark.parametrize("line, parts", REFUSED_COMMANDS)
def test_bad_commands_are_refused_in_one_line(line, parts, command, here, monkeypatch):
    monkeypatch.setattr(bpe, "MAX_PART_BYTES", 1 << 23)
    before = sorted(here.rglob("*"))
    assert_refused(command(line, cwd=here), *parts)
    assert sorted(here.rglob("*")) == before


def test_a_pattern_that_no_file_can_hold_is_refused(command, here):
    result = command("train text.txt --pattern \udcff --out m", cwd=here)
    assert result.returncode == 2
    assert b"surrogates not allowed" in result.stderr
    assert not (here / "m").exists()


def test_without_protobuf_both_packages_are_named(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with refusal("pip install sentencepiece protobuf"):
        bpe.Tokenizer.load(here / "m.model")


def test_a_package_that_does_not_work_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('too old')")
    monkeypatch.syspath_prepend(tmp_path)
    with refusal(r"pip install --upgrade broken_package \(too old\)"):
        bpe.import_optional("broken_package")


# ─── The second process ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session", autouse=True)
def checked_run(request, tmp_path_factory):
    """The second process, which runs the tests marked `apart`: every index is checked.

    Its kernels are hardly optimized, and its cache is its own, since others ignore the checks. Its
    lanes are a hundred times shorter, so that small texts have all the edges where a lane or a
    batch ends. If only some tests are chosen, no second process starts, and they all run here.
    """
    names = {item.name for item in request.session.items}
    if test_the_second_process_passes.__name__ not in names:
        yield None
        return
    cache = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(cache) / "checked" if cache else tmp_path_factory.mktemp("checked")
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(MODULE).read_text()
    for name, least in (("LANE_BYTES", 256), ("MIN_LANE_BYTES", 16), ("MARKED_BYTES", 128)):
        source, n = re.subn(rf"^{name} = [\d <]+", f"{name} = {least} ", source, flags=re.MULTILINE)
        assert n == 1
    if not (folder / "bpe_numba.py").exists() or (folder / "bpe_numba.py").read_text() != source:
        (folder / "bpe_numba.py").write_text(source)  # else its kernels are compiled
    for name in (Path(__file__).name, "pyproject.toml", "profile.sh"):
        shutil.copy(Path(__file__).with_name(name), folder)
    shutil.copytree(Path(__file__).with_name("docs"), folder / "docs", dirs_exist_ok=True)
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"}
    environment["NUMBA_CACHE_DIR"] = str(folder / "cache")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "apart", "-p", "no:cacheprovider"]
    command.append(Path(__file__).name)
    with open(folder / "output", "wb+") as output:
        outputs = {"stdout": output, "stderr": output}
        process = subprocess.Popen(command, **outputs, env=environment, cwd=folder)
        yield process, folder / "output"
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def _apart(request, checked_run):
    """Leave the tests marked `apart` to the second process."""
    if checked_run and request.node.get_closest_marker("apart"):
        pytest.skip("runs in the second process")


@pytest.mark.skipif(BOUNDS_CHECKED, reason="this is that process")
def test_the_second_process_passes(checked_run):
    process, output = checked_run
    assert process.wait(timeout=1800) == 0, output.read_text()
    assert regex.search(r"\d+ passed", output.read_text())


def _mark_sections():
    """Mark the tests of the checked sections, which the banners in this file separate."""
    source = Path(__file__).read_text("utf-8")
    _, *parts = re.split("^# ─── (.+?) ─+$", source, flags=re.MULTILINE)
    for title, section in zip(parts[::2], parts[1::2], strict=True):
        if title in CHECKED:
            for name in re.findall(r"^def (test_\w+)", section, re.MULTILINE):
                pytest.mark.apart(globals()[name])


_mark_sections()
