"""Tests of bpe_numba, in the order of its sections.

They compare results with a plain reference, and with `regex`, `tokenizers`, `tiktoken` and
`sentencepiece`. They check that workers, blocks and chunks change nothing, and that bad input is
refused in one line. The oracle comes first: BPE by its definition, in the plainest Python, without
the module's help.

The tests of kernels are marked `apart`, section by section or one by one. They run in a second
process beside the others, and there every index is checked (see the end of this file).
"""

from __future__ import annotations

import ast
import base64
import bz2
import concurrent.futures
import contextlib
import copy
import csv
import ctypes
import dataclasses
import dis
import doctest
import functools
import gc
import gzip
import hashlib
import html
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
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
import tracemalloc
import unicodedata
import warnings
import weakref
import zipfile
import zlib
from collections import Counter, namedtuple
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple
from unittest import mock

import jinja2.sandbox
import numba
import numpy as np
import pytest
import regex
import rustbpe
import scipy.special
import sentencepiece
import tiktoken
import tiktoken.load
import tokenization_scorer
import tokenizers
import transformers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex
from tokenizers import decoders as D
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as A
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers.models.auto import tokenization_auto as auto

import bpe_numba as bpe

MODULE = str(Path(bpe.__file__))
BOUNDS_CHECKED = os.environ.get("NUMBA_BOUNDSCHECK") == "1"  # this is the second process
# The sections of this file whose tests run in the second process; in others, single tests do.
CHECKED = ["Compiling", "Running", "Patterns", "Scanning", "Normalizing", "Reading", "Words"]
CHECKED += ["Learning", "Encoding", "WordPiece", "Unigram", "Differential", "Training"]


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
    """The sum of the numbers of each thing, from pairs of a thing and a number."""
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

    def __init__(
        self,
        counts,
        alphabet=BYTES,
        score="count",
        tie_break="bytes",
        min_frequency=1,
        longest_token=1 << 16,
    ):
        self.longest_token = longest_token
        self.words = [(list(word), n) for word, n in counts.items() if n]
        self.tokens = list(alphabet)
        self.score = score
        self.tie_break = tie_break
        self.min_frequency = min_frequency
        self.forbidden = set()
        self.order = {}
        if alphabet is BYTES and tie_break != "symbols":
            self.order = {b: k for k, b in enumerate(sorted(range(256), key=CHAR_OF.get))}

    def n_tokens(self):
        return sum(len(word) * n for word, n in self.words)

    def symbols(self):
        return tally((symbol, n) for word, n in self.words for symbol in word)

    def pairs(self):
        pairs = tally((pair, n) for word, n in self.words for pair in pairwise(word))
        return Counter({pair: n for pair, n in pairs.items() if not self.is_too_long(pair)})

    def is_too_long(self, pair):
        token = b"".join(self.tokens[symbol] for symbol in pair)
        return len(token if b"\xff" in self.tokens else token.decode()) > self.longest_token

    def scores(self):
        """The count and the score of each pair that occurs and is not forbidden."""
        symbols = self.symbols()
        n_tokens = self.n_tokens()
        scores = {}
        for (left, right), n in self.pairs().items():
            if (left, right) in self.forbidden:
                continue
            score = 0.0
            if n >= self.min_frequency:
                size = len(self.tokens[left] + self.tokens[right])
                score = naive_score(self.score, n, symbols[left], symbols[right], size, n_tokens)
            scores[left, right] = n, score
        return scores

    def best(self):
        scores = {pair: row[::-1] for pair, row in self.scores().items() if row[1] > 0}
        best = max(scores, key=lambda pair: (scores[pair], *map(self.rank, pair)), default=None)
        return best and (*best, *scores[best][::-1])

    def rank(self, symbol):
        number = -self.order.get(symbol, symbol)
        token = self.tokens[symbol]
        keys = {"bytes": token, "least-bytes": [*(-byte for byte in token), 1]}
        return keys.get(self.tie_break, b""), number

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
    while len(learner.tokens) < n_symbols and (best := learner.best()):
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
    if isinstance(steps, dict):
        steps = bpe.Pattern(steps).steps
    if type(steps) not in (tuple, list):
        steps = [steps]
    words = [data]
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
    word = word.replace(b" ", space)
    needs_mark = step.prepend_scheme == "always" or (step.prepend_scheme == "first" and begins_text)
    if needs_mark and word and not word.startswith(space):
        return space + word
    return word


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
    while at <= len(text) and (match := finder.search(text, at, timeout=5)):
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
    """The counts of a text's pretokens, and the number of documents between special tokens."""
    documents = [*filter(None, naive_parts_of_bytes(text, special)[::2])]
    counts = Counter(word for part in documents for word in naive_split(patterns, part))
    return counts, len(documents)


def naive_parts_of_bytes(data, special):
    """`naive_parts` of bytes, each of them as a character of Latin-1."""
    special = [token.encode().decode("latin-1") for token in special]
    return [part.encode("latin-1") for part in naive_parts(data.decode("latin-1"), special)]


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
few_numbers = few_letters.flatmap(lambda letters: st.lists(st.sampled_from(letters), max_size=40))
small_words = few_numbers.map(bytes)
tie_breaks = st.sampled_from(bpe.TIE_BREAKS)
any_counts = st.dictionaries(small_words, st.integers(0, 5), max_size=12)
word_counts = any_counts.filter(lambda counts: any(word and counts[word] for word in counts))
# Any text, with more of the characters that patterns and special tokens look at.
some_characters = st.sampled_from("ab '\n\r\t  sſ　é１中🙂<|>")
texts = st.text(st.characters(exclude_categories=["Cs"]) | some_characters, max_size=60)
# Texts of few characters, in which the rare cases of patterns are frequent.
alphabets = st.sampled_from(
    ["ab c'sStTlLvVeErRdmM \n\r\t 12中é\u3000\u0301ſK/.!", "ab", "abc xy", "a1* \t\n", " \n"]
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
    return random_tokens(source, [b"a", b"e", b"t", b"i"], n, BYTES)


def model_proto(pieces, kind, **spec):
    """A SentencePiece model of pieces (text, type, score), with these fields of its normalizer."""
    fields = [dict(zip(("piece", "type", "score"), piece, strict=True)) for piece in pieces]
    proto = sentencepiece_model_pb2.ModelProto(pieces=fields, normalizer_spec=spec)
    proto.trainer_spec.model_type = kind
    return proto


def huggingface_tokenizer(model, added=(), **parts):
    theirs = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(theirs, name, part)
    theirs.add_special_tokens([*added])
    return theirs


def ours_from(theirs):
    return bpe.Tokenizer.from_str(theirs.to_str())


def theirs_from(folder):
    return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")


def tiktoken_encoding(ranks, pattern, special_tokens=()):
    facts = {"mergeable_ranks": ranks, "special_tokens": dict(special_tokens)}
    return tiktoken.Encoding("t", pat_str=pattern, **facts)


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
    least = []
    for size in (n, 8 * n):
        spent = []
        for _ in range(3):
            start = time.process_time()
            function(size)
            spent.append(time.process_time() - start)
        least.append(min(spent))
    assert least[1] < 24 * max(least[0], 1e-3)


def refusal(message):
    return pytest.raises(bpe.InputError, match=message)


def note(message):
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


@pytest.mark.parametrize("path", [MODULE, __file__])
def test_no_name_is_bound_twice(path):
    """The first of two tests of one name would never run."""
    names = []
    for node in ast.parse(Path(path).read_text("utf-8")).body:
        targets = getattr(node, "targets", [])
        names += [node.name] if hasattr(node, "name") else map(ast.unparse, targets)
    assert len(names) > 500
    assert [name for name, times in Counter(names).items() if times > 1] == []


def test_public_names_are_few_and_explained_by_examples():
    assert len(bpe.__all__) <= 64 and dir(bpe) == sorted(bpe.__all__)
    # of a kind of one's own, whose file docs/inside.md has as a whole
    parts = {"kernel", "struct", "make_trie", "read_vocab", "trie_child", "vocab_names"}
    # the examples of the functions that return them
    results = {"Curve", "DecodeStream", "Encoded", "Report", "View"}
    for name in {*bpe.__all__} - parts - results:
        value = getattr(bpe, name)
        assert not callable(value) or ">>> " in inspect.getdoc(value), name


def test_names_that_the_pages_import_are_public():
    top = Path(MODULE).parent
    pages = (top / "README.md", *top.glob("docs/*.md"))
    lines = re.findall(
        r"^from bpe_numba import ([\w, ]+)$", "\n".join(map(Path.read_text, pages)), re.M
    )
    assert {"train"} < {*", ".join(lines).split(", ")} <= {*dir(bpe)}


def test_examples_in_docstrings_run():
    # kernels of the examples are not kept on the disk, so they are not the module's
    result = doctest.testmod(bpe, extraglobs={"__name__": __name__})
    assert result.attempted > 30 and result.failed == 0


BANNER = re.compile(r"^# ─── (.*?) ─+$", re.MULTILINE)


def names_in(code, *operations):
    """List the names with which a code object, or one inside it, does these operations."""
    for part in dis.get_instructions(code):
        if part.opname in operations:
            yield part.argval
        elif inspect.iscode(part.argval):
            yield from names_in(part.argval, *operations)


def test_each_section_uses_only_names_of_those_before_it():
    source = Path(MODULE).read_text("utf-8")
    lines = [source.count("\n", 0, banner.start()) for banner in BANNER.finditer(source)]
    sections = {}  # name -> the number of the section that binds it first
    uses = []
    for statement in ast.parse(source).body:
        section = sum(line < statement.lineno for line in lines)
        code = compile(ast.Module([statement], []), MODULE, "exec")
        for part in dis.get_instructions(code):
            if part.opname == "STORE_NAME":
                sections.setdefault(part.argval, section)
        uses += [(name, section) for name in names_in(code, "LOAD_GLOBAL", "LOAD_NAME")]
    assert len(lines) > 20 and len(uses) > 5_000
    assert [use for use in uses if sections.get(use[0], 0) > use[1]] == []


# ─── Calls ────────────────────────────────────────────────────────────────────────────────────────


def parameters_of(function):
    """The names of the parameters of a function, or of a class if it makes its objects itself."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a SimpleNamespace
        return []
    # from Python 3.13 on, the parameter of a SimpleNamespace has a name that no caller can use
    names = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
    return [name for name in names if name not in ("self", "args", "kwargs")]


def public_names():
    """The names that people use: functions, members of classes and of tables, and options."""
    names = {}
    for name in bpe.__all__:
        owner = getattr(bpe, name)
        names[name] = [*owner] if isinstance(owner, dict) else parameters_of(owner)
        for member in dir(owner) if inspect.isclass(owner) else ():
            is_own = not hasattr(tuple, member) and not hasattr(Exception, member)
            is_own = (is_own or member in vars(owner)) and member not in names[name]
            if member[0] != "_" and is_own:
                value = getattr(owner, member)
                names[f"{name}.{member}"] = parameters_of(value) if callable(value) else []
    for command in bpe.COMMANDS:
        options = bpe._make_parser(command)._option_string_actions
        names[f"$ {command}"] = [name for name in options if name.startswith("--")]
    return names


def test_public_names_stay():
    lines = Path(MODULE).with_name("docs").joinpath("names.txt").read_text().splitlines()
    listed = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    actual = public_names()
    assert [name for name in listed if name not in actual] == [], "a public name has gone"
    for name, parameters in listed.items():
        assert [each for each in actual[name] if each in parameters] == parameters, name
    assert {name: actual[name] for name in actual if listed.get(name) != actual[name]} == {}, (
        "new names: write them into docs/names.txt and CHANGELOG.md"
    )


# tables, decorators, kernels, whose types Numba checks, and objects that only this module makes
NO_DOORS = {
    "ENCODINGS",
    "FAMILIES",
    "KINDS",
    "PATTERNS",
    "InputError",
    "Report",
    "Curve",
    "View",
    "Trie",
    "kernel",
    "struct",
    "trie_child",
}


@pytest.mark.parametrize("name", sorted({*bpe.__all__} - NO_DOORS))
def test_wrong_types_are_refused_in_one_sentence(name):
    owner = getattr(bpe, name)
    functions = [owner]
    if inspect.isclass(owner):
        members = (getattr(owner, member) for member in vars(owner) if member[0] != "_")
        functions += [member for member in members if getattr(member, "is_checked", False)]
    odd = Odd()
    for function in functions:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name == "self" or parameter.kind is parameter.VAR_KEYWORD:
                continue
            annotation = str(parameter.annotation)
            if re.search("object|_empty", annotation):
                continue
            with refused_in_one_line(f"`{parameter.name}` is <Odd>: it must be "):
                function(**{parameter.name: odd})


class Odd:
    """An object of no type that a function takes."""

    def __repr__(self):
        return "<Odd>"


FEW = {b"low": 3}
TO_LEARN = {"texts": ["low low"], "vocab_size": 258}
# Calls with a wrong number or name, and their sentences.
WRONG_CALLS = [
    (lambda: bpe.train(counts=FEW, vocab_size=400.0), "`vocab_size` is 400.0: .* a whole number"),
    (lambda: bpe.train(counts=FEW, vocab_size=True), "`vocab_size` is True: .* a whole number"),
    (lambda: bpe.train(counts=FEW, vocabsize=400), "`vocabsize`; did you mean `vocab_size`?"),
    (lambda: bpe.train(counts=FEW, longest_tokn=4), "did you mean `longest_token`?"),
    (lambda: bpe.train(**TO_LEARN, longest_token=0), "`longest_token` is 0: .* of at least 1"),
    (lambda: bpe.train(**TO_LEARN, min_frequency=math.nan), "`min_frequency` is nan"),
    (lambda: bpe.train(**TO_LEARN, special_tokens="<s>"), "`special_tokens` is '<s>': .* strings"),
    (lambda: bpe.train(**TO_LEARN, special_tokens=["<s>", 5]), "`special_tokens` has 5"),
    (lambda: bpe.train(np.int64(5), 300), "`inputs` is .*5.*: it must be"),
    (lambda: bpe.train(**TO_LEARN, score=max), "a `score` is a function in Python, not <built-in"),
    (lambda: bpe.train(**TO_LEARN, out="\ud800"), "no half of a surrogate pair"),
    (lambda: bpe.train(**TO_LEARN, min_frequency=np.array(3)), r"`min_frequency` is array\(3\)"),
    (lambda: bpe.train(**TO_LEARN, chat_template=""), "the name of a file or folder is empty"),
    (lambda: bpe.compare([], "a.txt"), "`models` is empty: name one or more"),
    (lambda: bpe.compare([plain()], {"a": 5}), "the corpus 'a' is 5: no path"),
    (lambda: bpe.compare([plain()], out="a.xlsx"), "a.xlsx: name a .md, .tex or .csv file"),
    (lambda: bpe.compare([plain()], html="/"), "/: is a folder; name a file to write"),
    (lambda: bpe.compare([plain()], held_out="/no"), "/no: no such file or folder"),
    (lambda: bpe.compare([plain()], parallel=["/no"]), "/no: no such file or folder"),
    (lambda: bpe.curve("/no", held_out="/", corpus="/no"), "/no: no such file or folder"),
    (
        lambda: bpe.curve("/no", plot="a.xyz"),
        "no format of a plot is named 'xyz'; there are .* png",
    ),
    (lambda: bpe.view(plain(), "a", html="a\0b"), "a name of a file has no null character"),
    (lambda: plain().encode_batch(iter(["a", None])), "`texts` has .*None.*: it must be a list of"),
    (lambda: bpe.train(iter([5]), 300), "5 is no name of a file"),
    (lambda: bpe.train(**TO_LEARN, special_tokens=np.array(3)), r"`special_tokens` is array\(3\)"),
    (lambda: bpe.train(**TO_LEARN, special_tokens=["a\ud800"]), "half a surrogate pair"),
    (lambda: bpe.train(**TO_LEARN, coverage=0.5), "`coverage` goes with characters"),
    (lambda: bpe.train(**TO_LEARN, like=plain(), mark="_"), "`mark` does not go with `like`"),
    (
        lambda: bpe.train(**TO_LEARN, model="unigram", score="count"),
        "`score` is not for the family",
    ),
    (lambda: bpe.train(["a", "b"], weights=[0, 0]), "not all of them are 0"),
    (lambda: bpe.train(["a", "b"], weights=[1, -1]), "0 or more"),
    (lambda: bpe.train(iter(["a", "b"]), balance=0.5), "need a list of `inputs`"),
    (lambda: bpe.train(counts={b"low": math.nan}), "the count of b'low' is nan"),
    (lambda: bpe.train(counts={b"low": "3"}), "the count of b'low' is '3'"),
    (lambda: bpe.train(counts=[(b"low", 3, 4)]), r"`counts` has \(b'low', 3, 4\)"),
    (lambda: plain().encode(123), "`text` is 123: it must be a string or bytes"),
    (lambda: plain().encode_batch([5]), "`texts` has 5: it must be a list of strings or bytes"),
    (lambda: plain().encode_batch_padded(["a"], pad_id=-1), "`pad_id` is -1: .* from 0 to 4,29"),
    (lambda: plain().encode_batch_padded(["a"], pad_id=1.5), "`pad_id` is 1.5"),
    (lambda: plain().encode_batch_padded(["a"], max_length=1.5), "`max_length` is 1.5"),
    (lambda: plain().encode_batch_padded(["a"], min_length=10**15), "`min_length` 10+ needs"),
    (lambda: plain().sample("a", alpha=math.nan), "`alpha` is nan: it must be a number"),
    (lambda: plain().save("a\0b"), "no null character"),
    (lambda: bpe.Tokenizer({"a": b"a"}, []), "the token b'a' has the id 'a'"),
    (lambda: bpe.Tokenizer.from_merges([(b"a", 2)]), "`merges` has 2"),
    (lambda: bpe.Learner(bpe.Words.from_counts(FEW), 300).merge(1.0, 2), "`left` is 1.0"),
    (lambda: bpe.encode_files(plain(), "a", dtype="uint16"), "`dtype` has gone: the ids are"),
]


def test_merges_may_come_one_by_one():
    given = {"merges": [(b"a", b"b")], "special_tokens": ["<s>"], "without": [b"ab"]}
    for names in (["merges"], [*given]):
        expected = bpe.Tokenizer.from_merges(**{name: given[name] for name in names})
        made = bpe.Tokenizer.from_merges(**{name: iter(given[name]) for name in names})
        assert made.digest == expected.digest


@pytest.mark.parametrize("name", ["min_frequency", "longest_token", "vocab_size", "max_words"])
def test_numbers_of_numpy_are_those_of_python(name):
    kinds = (int, np.int32, np.uint64)
    taken = [bpe._Parameters(bpe.train, None, {}).take, bpe._Parameters(bpe.learn, None, {}).take]
    take = next(one for one in taken if name in one.__self__.kinds)
    assert [type(take(name, kind(300))) for kind in kinds] == [int] * 3
    made = [bpe.train(**TO_LEARN | {name: kind(300)}).tokenizer.digest for kind in kinds]
    assert made[1:] == made[:1] * 2


def test_an_array_is_a_list_of_special_tokens():
    for texts in (["<a>", "<b>"], []):
        tokenizer = bpe.train(**TO_LEARN | {"vocab_size": 262}, special_tokens=np.array(texts, str))
        assert [*tokenizer.tokenizer.special_tokens] == texts


@pytest.mark.parametrize("call, message", WRONG_CALLS, ids=[case[1] for case in WRONG_CALLS])
def test_wrong_calls_are_refused_by_a_short_traceback(call, message):
    with refused_in_one_line(message):
        call()
    with pytest.raises(bpe.InputError) as raised:
        call()
    own = [each for each in raised.traceback if str(each.path) == MODULE]
    assert len(own) <= 2 and raised.value.__suppress_context__


def test_none_stands_for_every_default():
    options = dict.fromkeys(["inputs", "special_tokens", "weights", "score", "max_words"])
    expected = bpe.train(**TO_LEARN).tokenizer.merges
    assert bpe.train(**TO_LEARN, **options, min_frequency=None).tokenizer.merges == expected
    assert bpe.train(None, 258, None, texts=["low low"]).tokenizer.merges == expected
    assert plain().encode("a", None) == plain().encode("a", add_special_tokens=None) == [97]


def test_former_names_warn_and_name_their_successors():
    words = bpe.Words.from_counts(FEW)
    with pytest.warns(FutureWarning, match=r"use Words.from_counts, and weighted"):
        assert bpe.Words.merge([words, words], [1, 2]).to_counts() == {b"low": 9}
    with pytest.warns(FutureWarning, match=r"train_bpe_from_counts will go: use train\(counts=…\)"):
        assert bpe.train_bpe_from_counts(FEW, 258)[1] == [(b"o", b"w"), (b"l", b"ow")]
    with pytest.warns(FutureWarning, match="`executor` is `workers` now") as warned:
        assert bpe.Engine(executor=2).workers == 2
    assert warned[0].filename == __file__


def test_a_words_file_is_loaded_by_its_former_name(tmp_path):
    (tmp_path / "a.txt").write_text("low low")
    counted = bpe.count_files(tmp_path, tmp_path / "words.npz")
    with pytest.warns(FutureWarning, match="load_counts"):
        assert bpe.Words.load(tmp_path / "words.npz").to_counts() == counted.words.to_counts()


@pytest.mark.apart
def test_the_count_of_one_pair_is_that_of_all():
    learner = bpe.Learner(bpe.Words.from_counts({b"abab": 3, b"aaab": 2, b"b": 1}), 300)
    for _ in range(4):
        left, right, count, _ = (column.tolist() for column in learner.pairs())
        counts = {pair[:2]: pair[2] for pair in zip(left, right, count, strict=True)}
        every = itertools.product(range(learner.n_symbols), repeat=2)
        assert all(learner.count(*pair) == counts.get(pair, 0) for pair in every)
        best = learner.best()
        learner.merge(best.left, best.right)


def test_the_help_of_train_names_all_choices():
    shown = " ".join(bpe._make_parser("train").format_help().split()).replace("- ", "-")
    for table in (bpe.SCORES, bpe.TIE_BREAKS, bpe.FAMILIES, bpe.PATTERNS, bpe.NORMALIZERS):
        for name in table:
            assert re.search(rf"\b{re.escape(name)}\b", shown), name


def test_the_extras_are_the_packages_of_the_tests():
    top = Path(MODULE).parent
    project = tomllib.loads((top / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = extras["all"][0].removeprefix("bpe-numba[").removesuffix("]").split(",")
    assert sorted([*names, "all", "test"]) == sorted(extras)
    lines = (top / "requirements.txt").read_text().splitlines()
    needed = [*project["dependencies"], *extras["test"][1:], *chain(*map(extras.get, names))]
    assert sorted(needed) == sorted(line for line in lines if line[0] != "#")


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


def test_no_field_of_a_record_is_hidden_by_an_attribute_of_numpy():
    types = [value for value in vars(bpe).values() if isinstance(value, np.dtype) and value.names]
    assert len(types) >= 5
    assert {*dir(np.record)}.isdisjoint(chain.from_iterable(value.names for value in types))


def test_python_calls_no_inner_kernel():
    """A call would end the process."""
    inner = set()
    used = set()
    for statement in ast.parse(Path(MODULE).read_text()).body:
        decorators = [ast.unparse(node) for node in getattr(statement, "decorator_list", [])]
        if decorators in (["inner_kernel"], ["inline_kernel"]):
            inner.add(statement.name)
        elif decorators not in (["kernel"], ["_compiler(cache=False, forceinline=True)"]):
            used |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    assert inner & used == {"begin_nothing"}  # which is handed to kernels


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
        where = {"cwd": tmp_path, "NUMBA_CACHE_DIR": tmp_path / "cache"}
        # Python's own cache would take two texts of the same size and second for one.
        done = python("-c", "import sums", *names, PYTHONDONTWRITEBYTECODE="1", **where)
        return done.stdout.decode().strip()

    assert run_file(SUMS, 1, "int", "float") == "[36, 18.0]"
    assert run_file(SUMS, 2, "int") == "[36]"
    assert run_file(SUMS, 2, "float") == "[18.0]"
    assert run_file(SUMS.replace("+ 0", "+ 1"), 2, "float", "int") == "[19.0, 37]"


def test_a_digest_changes_with_all_that_a_kernel_uses():
    digests = runpy.run_path(Path(MODULE).parent / "docs" / "develop.py")["digests"]
    source = Path(MODULE).read_text("utf-8").partition("# ─── WordPiece")[0]
    head = "def _apply_merge(number, learner"
    old, new = digests(source), digests(source.replace(head, head + ", more=1"))
    changed = {name for name in old if old[name] != new[name]}
    assert {"_apply_merge", "_merge_until", "_merge_pair"} <= changed
    assert not {"_add_first_pairs", "_segment", "_count_text"} & changed


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
    import distributed

    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    words = [tmp_path / "a.npz", tmp_path / "b.npz"]
    with cluster, distributed.Client(cluster) as client:
        training = bpe.train(library[:20], 300, workers=client.get_executor())
        halves = [library[:10], library[10:20]]
        client.gather(client.map(bpe.count_files, halves, words, workers=1))
    expected = bpe.train(library[:20], 300).tokenizer.merges
    assert training.tokenizer.merges == bpe.train(words, 300).tokenizer.merges == expected


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3}, {"workers": OneByOne()}])
def test_results_come_in_order(options):
    engine = bpe.Engine(**options)
    assert list(engine.map(abs, range(-50, 0), threads=True)) == [*range(50, 0, -1)]
    assert list(engine.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
    assert list(engine.map(abs, [])) == []


def test_a_large_pool_has_work_for_all_its_workers_and_no_more_workers_start():
    meeting = threading.Barrier(100)
    with ThreadPoolExecutor(100) as pool, within(20):
        assert len({*bpe.Engine(pool).map(lambda _: meeting.wait(10), range(300))}) == 100
    before = threading.active_count()
    running = bpe.Engine(1000).map(lambda _: threading.active_count(), range(3), threads=True)
    assert max(running) <= before + 3


def test_files_are_counted_and_encoded_by_the_executor_that_is_given(library, tmp_path):
    pool = OneByOne()
    tokenizer = bpe.train(library[:5], 300, workers=pool).tokenizer
    assert pool.results and tokenizer.merges == bpe.train(library[:5], 300).tokenizer.merges
    pool.results.clear()
    bpe.encode_files(tokenizer, library[:5], tmp_path / "a.npy", workers=pool)
    bpe.encode_files(tokenizer, library[:5], tmp_path / "b.npy", workers=1)
    assert pool.results
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def _die(item):
    os._exit(1)


def _die_while_sending(item):
    """Die with half a result in the pipe; a pool would wait for the other half for ever."""
    caller = sys._getframe()
    while "connection" not in caller.f_locals:
        caller = caller.f_back
    os.write(caller.f_locals["connection"].fileno(), b"\x00\x00\x10\x00half")
    os._exit(1)


@pytest.mark.parametrize("die", [_die, _die_while_sending])
def test_a_worker_that_dies_is_an_error(die):
    with within(20), refusal("worker process died"):
        list(bpe.Engine(workers=2).map(die, range(4)))


def test_workers_go_on_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handlers = [*bpe.Engine(workers=2).map(signal.getsignal, [signal.SIGHUP] * 2)]
    signal.signal(signal.SIGHUP, before)
    assert handlers == [signal.SIG_IGN] * 2


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


LIMITED = [(threading.Thread, "start", RuntimeError("can't start new thread"))]
LIMITED += [(os, "fork", OSError(11, "Resource temporarily unavailable"))]


@pytest.mark.parametrize("owner, name, error", LIMITED)
@pytest.mark.parametrize("after", range(6))
def test_a_limit_on_threads_or_processes_is_an_error(monkeypatch, owner, name, error, after):
    start = getattr(owner, name)
    started = itertools.count()

    def limited(*arguments):
        if next(started) < after:
            return start(*arguments)
        raise error

    monkeypatch.setattr(owner, name, limited)
    threads = owner is threading.Thread and after % 2
    with within(20), refusal("no workers can be started"):
        list(bpe.Engine(workers=6).map(time.sleep, [0.2] * 9, threads=threads))  # none is idle
    for child in multiprocessing.active_children():
        child.join(5)
    assert not multiprocessing.active_children()


def test_compilation_is_announced_once(capsys, monkeypatch):
    def announced(*functions):
        bpe.COMPILATIONS.is_said = False
        for function in functions:
            dispatcher = SimpleNamespace(py_func=function)
            bpe.COMPILATIONS.on_start(SimpleNamespace(data={"dispatcher": dispatcher}))
        return re.findall("compiling kernels, .*", capsys.readouterr().err)

    ours = [bpe._init_worker] * 2
    monkeypatch.setattr(bpe, "COMPILED_ANEW", set())
    assert announced(within, *ours) == ["compiling kernels, once for each kind of work"]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        bpe.COMPILATIONS.is_said = False
        assert (
            bpe.COMPILATIONS.on_start(SimpleNamespace(data={"dispatcher": bpe._merge_until}))
            is None
        )
    bpe.COMPILED_ANEW.add("count")
    (line,) = announced(*ours)
    assert "NUMBA_CACHE_DIR" in line and announced(within) == []


@pytest.fixture
def started(monkeypatch):
    """The processes that `compiled_beside` starts, on two cores."""
    processes = []
    start = subprocess.Popen

    def kept(*arguments, **options):
        processes.append(start(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    monkeypatch.setattr(numba.config, "NUMBA_DEFAULT_NUM_THREADS", 2)
    return processes


def compile_one():
    """Compile a kernel that the disk does not keep."""
    assert numba.njit(lambda n: n + 1)(1) == 2


@compiled
def test_a_second_process_does_its_call_while_a_kernel_compiles(tmp_path, started):
    with bpe.compiled_beside(f"Path({str(tmp_path / 'done')!r}).touch()", 2):
        compile_one()
        compile_one()
    assert [process.returncode for process in started] == [0]
    assert (tmp_path / "done").exists()


def test_no_second_process_starts_without_need(monkeypatch, started):
    monkeypatch.setattr(bpe, "COMPILED_ANEW", set())
    with bpe.compiled_beside("fail()", 2):
        pass  # nothing compiles
    with bpe.compiled_beside("fail()", 1):
        compile_one()
    bpe.COMPILED_ANEW.add("count")
    with bpe.compiled_beside("fail()", 2):
        compile_one()
    monkeypatch.setattr(bpe, "COMPILED_ANEW", set())
    monkeypatch.setattr(sys, "executable", "")
    with bpe.compiled_beside("fail()", 2):
        compile_one()
    assert not started


@compiled
def test_a_second_process_that_fails_changes_nothing(monkeypatch, started, capfd):
    with bpe.compiled_beside("fail()", 2):
        compile_one()
    assert [process.returncode for process in started] == [1]
    monkeypatch.setattr(subprocess, "Popen", mock.Mock(side_effect=OSError("no process")))
    with bpe.compiled_beside("fail()", 2):
        compile_one()
    assert capfd.readouterr() == ("", "")


@compiled
def test_the_second_process_ends_with_the_first_one(started):
    with within(20):
        with pytest.raises(KeyboardInterrupt), bpe.compiled_beside("time.sleep(60)", 2):
            compile_one()
            raise KeyboardInterrupt
        with bpe.compiled_beside("time.sleep(60)", 2):
            compile_one()
            started[1].stdin.close()  # as when this process is killed
    assert [process.returncode for process in started] == [-signal.SIGKILL, 1]


SAVED = "bpe_numba._init_worker-909.py311.nbi"
DISKS = [(1 << 30, "", True), (1 << 20, "", False), (0, SAVED, True), (None, "", False)]


@pytest.mark.parametrize("free, saved, is_kept", DISKS)
def test_kernels_that_cannot_be_kept_are_made_anew(tmp_path, monkeypatch, free, saved, is_kept):
    """On a full disk, unless they are there, and where nothing can be written."""
    (tmp_path / saved).touch()

    def njit(cache=False, **options):
        if cache and free is None:
            raise RuntimeError("cannot cache function: no locator available")
        stats = SimpleNamespace(cache_path=tmp_path if cache else None)
        return lambda function: SimpleNamespace(cache=cache, stats=stats)

    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr(bpe, "COMPILES", True)
    monkeypatch.setattr(bpe, "COMPILED_ANEW", set())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    compiled = bpe._compiler(True)
    compiled(abs)  # it is not of the module
    assert compiled(bpe._init_worker).cache == is_kept
    assert [*bpe.COMPILED_ANEW] == ["_init_worker"] * (not is_kept)


INTERRUPTING = """
import os, signal, sys, llvmlite.binding, bpe_numba

add = llvmlite.binding.ExecutionEngine.add_module
n = 0

def add_and_interrupt(engine, module):
    global n
    add(engine, module)
    n += 1
    os.kill(os.getpid(), signal.SIGINT)

llvmlite.binding.ExecutionEngine.add_module = add_and_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupts = 0
while True:
    try:
        words = bpe_numba.Words.from_counts({b"low": 5, b"lower": 2})
        print(len(words.digest), n > 0, interrupts > 0)
        break
    except KeyboardInterrupt:
        interrupts += 1
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def test_an_interrupt_waits_until_a_kernel_is_loaded():
    result = python("-c", INTERRUPTING)
    assert result.stdout == b"64 True True\n", result.stderr


@pytest.mark.parametrize("work", ["decode", "encode", "digest", "as_characters", "count"])
def test_an_interrupt_is_an_interrupt(work, tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("some text, and more of it\n" * 1000)
    source = bpe.Source([tmp_path / "a.txt"] * 5, bpe.Pattern("gpt2"))
    words = bpe.Words.from_counts({b"a": 1})
    call = {
        "decode": functools.partial(tokenizer.decode, tokenizer.encode("some text")),
        "encode": functools.partial(tokenizer.encode, "some text"),
        "digest": functools.partial(getattr, words, "digest"),
        "as_characters": words.as_characters,
        "count": functools.partial(bpe.count, source, bpe.Engine(1)),
    }[work]
    before = signal.getsignal(signal.SIGINT)
    expected = repr(call())  # the first call compiles
    n_interrupts = 0
    for _ in range(20):
        timer = threading.Timer(random.uniform(0.001, 0.02), signal.raise_signal, [signal.SIGINT])
        try:
            timer.start()
            while timer.is_alive():
                call()
            time.sleep(0.01)  # its handler runs in this thread, a little later
        except KeyboardInterrupt:
            n_interrupts += 1
    # Python drops one of some hundred: those in a `__del__` of another package
    assert n_interrupts >= 18
    assert signal.getsignal(signal.SIGINT) is before and repr(call()) == expected


def test_files_take_their_names_when_they_are_whole(tmp_path):
    """A link stays, and its target is replaced."""
    link = tmp_path / "link.bin"
    (tmp_path / "to").mkdir()
    link.symlink_to("to/ids.bin")
    for content in (b"old", b"new"):
        with bpe.atomic_write(link) as file:
            file.write(content)
            assert not link.exists() or link.read_bytes() == b"old"
        assert link.is_symlink() and files_in(tmp_path / "to") == {"ids.bin": content}
    (tmp_path / "other").touch()
    assert link.stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("name", ["ids.bin", "new/er/ids.bin", "folder/ids.bin"])
def test_files_that_are_not_whole_leave_nothing(tmp_path, name):
    (tmp_path / "ids.bin").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError), bpe.atomic_write(tmp_path / name) as file:
        file.write(b"half")
        raise OSError("disk full")
    bpe.check_writable(tmp_path)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["folder", "ids.bin"]
    (tmp_path / "b.json").mkdir()
    bpe.check_writable(tmp_path / "b.json")
    assert (tmp_path / "ids.bin").read_bytes() == b"old"
    with pytest.raises(ValueError, match="is a folder"), bpe.atomic_write(tmp_path):
        pass


def test_files_written_together_take_their_names_together(tmp_path, monkeypatch):
    bpe.atomic_write_all(tmp_path, {"a": "old", "b": "old"})
    with pytest.raises(OSError), bpe.written_together():
        bpe.atomic_write_all(tmp_path, {"a": "new", "new/c": b"new"})
        with bpe.atomic_write(tmp_path / "b"):
            raise OSError("disk full")
    assert files_in(tmp_path) == {"a": b"old", "b": b"old"}
    targets = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *names: targets.append(names[1]) or replace(*names))
    with bpe.written_together():
        bpe.atomic_write_all(tmp_path, {"a": "new", "b": "new"})
        bpe.atomic_write_all(tmp_path / "new", {"c": "new"})
        assert (tmp_path / "a").read_bytes() == b"old" and not targets
    assert [target.name for target in targets] == ["c", "b", "a"]
    assert not bpe.UNFINISHED
    assert [path.read_bytes() for path in sorted(tmp_path.rglob("?"))] == [b"new"] * 3


def test_a_pipe_gets_ids_and_no_file_beside_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.txt").write_text("ab")
    with within(20), ThreadPoolExecutor(1) as pool:
        ids = pool.submit((tmp_path / "pipe").read_text)
        bpe.encode_files(plain(), tmp_path / "a.txt", tmp_path / "pipe")
        assert ids.result() == "97 98\n"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "pipe"]


def test_threads_that_save_at_once_lose_no_file(tmp_path):
    def save(thread):
        for k in range(100):
            bpe.atomic_write_all(tmp_path / f"{thread}-{k}", dict.fromkeys("abc", ""))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a renaming
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    sys.setswitchinterval(interval)
    folders = [sorted(os.listdir(folder)) for folder in tmp_path.iterdir()]
    assert folders == [[*"abc"]] * 400
    assert not bpe.UNFINISHED


def test_a_signal_finishes_the_renaming_of_every_thread(tmp_path, monkeypatch):
    """Two threads have renamed none of their two files when the handler runs."""
    replace = os.replace
    begun = threading.Barrier(3)
    ended = threading.Event()

    def replace_later(source, target):
        if threading.current_thread() is not threading.main_thread() and not ended.is_set():
            begun.wait(10)
            ended.wait(10)
        with contextlib.suppress(FileNotFoundError):
            replace(source, target)

    monkeypatch.setattr(os, "replace", replace_later)
    with ThreadPoolExecutor(2) as pool:
        for name in "xy":
            pool.submit(bpe.atomic_write_all, tmp_path / name, {"a": "", "b": ""})
        begun.wait(10)
        bpe._end_files()
        names = [[*files_in(tmp_path / name)] for name in "xy"]
        ended.set()
    assert sorted(map(sorted, names)) == [["a", "b"]] * 2 and not files_in(tmp_path)


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────

# Regular expressions that are compiled.
CUSTOM_PATTERNS = [r"[a-z]+", r"\w+", "(a)|(b)", "(?:abc)", "a+b|a", "aa|a{3,5}b", "x{2,}y|x"]
CUSTOM_PATTERNS += [r"(?i:it|is)|\p{L}{2,3}|\d+(?!\d)", r"(?i:s|[ab]{2}(?=a))", r"[\s\S]"]
# The end of these depends on what follows.
CUSTOM_PATTERNS += [r"a(?=b)|b+?c|.", r"\S+?(?=\s)|\s+", r" ?\p{L}+\s+$|\p{L}", r"\s++$|\s|\S+"]
# These tell controls, surrogates and bytes that are not UTF-8 from other text.
CUSTOM_PATTERNS += [r"\p{Cc}+|[^\p{Cc}]+", r"\p{C}+|\P{C}{1,3}", r"[\x00-\x1f]+|\p{Cs}"]
CUSTOM_PATTERNS += [r"[\udc80-\udcff]+", r"<\w+>", r"[^\W\d]+|\p{Han}"]


@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, *CUSTOM_PATTERNS])
@example(b"a\xffb")
@example(b"aBB\xe4aaa")
@example(b"<a<>\xe4<a>")
@example(b"a \n")
@example(b"pA a\xff\xfe\x80")
@example(b"\xc1\x81\xe0\x81\x81\xf4\x90\x80\x80")  # too long, and above U+10FFFF
@given(data=pattern_texts.map(str.encode) | hostile_bytes)
def test_pretokens_are_those_of_regex(pattern, data):
    compiled = bpe.Pattern(pattern)
    assert not compiled.warning
    assert compiled.split(data) == naive_split(bpe.PATTERNS.get(pattern, pattern), data)


# Random regular expressions of all parts that are compiled, and bytes that matter to them.
atoms = ["a", "b", "[ab]", "[^a]", r"\s", r"\S", r"\w", r"\W", r"\p{L}", ".", r"\d", "é", "(?i:A)"]
atoms += [r"\p{C}", r"\P{C}", r"[\x00-\x1f]", r"\p{Cs}", r"[^\p{Cc}]", r"[\udc80-\udcff]"]
quantifiers = ["", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "??", "+?", "*?", "++", "?+", "*+"]
lookaheads = ["", "", "", "(?!a)", r"(?=\s)", r"(?!\S)", r"(?=\p{C})", "$", r"\Z"]


def larger_regexes(inner):
    """Sequences, alternatives, repetitions and lookaheads of these expressions."""
    parts = st.lists(inner, min_size=1, max_size=3)
    quantified = st.tuples(inner, st.sampled_from(["?", "+", "{2}", "*?"]))
    return (
        parts.map("".join)
        | parts.map(lambda parts: f"(?:{'|'.join(parts)})")
        | quantified.map(lambda part: f"(?:{part[0]}){part[1]}")
        | st.tuples(inner, st.sampled_from(lookaheads)).map("".join)
    )


repeated = st.tuples(st.sampled_from(atoms), st.sampled_from(quantifiers)).map("".join)
regexes = st.recursive(repeated, larger_regexes, max_leaves=6).map("(?:{})".format)
some_parts = st.sampled_from([*invalid, b"A", b"\x00", b"\x02", b"\xc3\xa9"])
random_bytes = st.text("aAb é1 \n\x00\x1f\u200b", max_size=20).map(str.encode)
random_bytes |= st.lists(some_parts, max_size=20).map(b"".join)


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
    except bpe.InputError:
        assert regex.fullmatch(pattern, "")
        return
    # The time of some patterns grows with the square of this size.
    inputs.append(b"".join(random.Random(seed).choices(inputs, k=9000))[: LONG // 16])
    with contextlib.suppress(TimeoutError):
        for data in inputs:
            assert naive_split(steps, data) == compiled.split(data)


NOT_COMPILED = {r"(?<=a)b": r"'\(\?<'", r"(a)\1": r"'\\\\1'", r"\bword": r"'\\\\bw'"}
NOT_COMPILED |= {r"^a": r"'\^a'", r"a$": r"'\$'", r"(?:ab)++a|b": r"'\+a", r"\pA|.": "pA"}
NOT_COMPILED |= {r"(?=ab)a": "lookahead", r"(?:a?)+b": "empty", r"\s+?$|[\s\S]": r"'\$\|"}
NOT_COMPILED |= {r"\s+$*|[\s\S]": r"'\$\*", r"[ab]*a[ab]{14}": "4,... states"}
NOT_COMPILED |= {r"(?:[ab]{1,50}c?){1,50}d": "5.. states"}
NOT_COMPILED |= {"|".join(map(chr, range(0x4E00, 0x4E00 + 61))): "60"}


@pytest.mark.parametrize("pattern", NOT_COMPILED)
def test_patterns_that_are_not_compiled_say_why_and_work(pattern, monkeypatch):
    monkeypatch.setattr(bpe, "MAX_SIZE", 100_000)
    compiled = bpe.Pattern(pattern)
    assert compiled.warning and regex.search(NOT_COMPILED[pattern], compiled.warning)
    for data in (b"a \n", "ab aa word b中一\x00 pA".encode() + b"\xff"):
        assert compiled.split(data) == naive_split(pattern, data)


# the first search takes more than a second, which is allowed
@pytest.mark.parametrize("pattern, n_allowed", [("(a|aa)+$", 30), ("(a|aa)+(?<=b)$", 25)])
def test_patterns_that_take_for_ever_are_stopped(pattern, n_allowed, monkeypatch):
    normalizer = bpe.Normalizer([replace(pattern, "", "Regex")])
    message = r"pattern '\(.*\$' takes more than 0 s for the 2,021 characters .* 'aaaa"
    for use in (bpe.Pattern(pattern).split, normalizer.normalize):
        monkeypatch.undo()
        assert use(b"aab") and use(b"a" * n_allowed + b"b\xff")
        monkeypatch.setattr(bpe, "REGEX_SECONDS", 0.01)
        with refusal(message):
            use(b"a" * 2000 + b"b" + "é".encode() * 20)


def test_compiled_patterns_are_kept_on_the_disk(tmp_path, monkeypatch):
    def compiled_anew():
        """Compile by a second copy of the module, which does not share the memory of the first."""
        spec = importlib.util.spec_from_file_location("bpe_numba_again", MODULE)
        again = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, bpe_numba_again=again):
            spec.loader.exec_module(again)
        return not again.Pattern("none").warning

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiled_anew()
    (path,) = tmp_path.iterdir()
    before = path.stat()
    assert compiled_anew() and path.stat().st_ino == before.st_ino
    for damage in (path.read_bytes()[:5000], b"no table"):
        path.write_bytes(damage)
        assert compiled_anew() and path.stat().st_size == before.st_size
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    assert compiled_anew()


DEEPSEEK_REGEXES = (r"\p{N}{1,3}", "[一-龥ァ-ー]+")
DEEPSEEK_REGEXES += (r"[^\r\n\p{L}\p{P}]?\p{L}+| ?\p{P}+|\s+(?!\S)|\s+",)
ONE_MACHINE = [("bert", r"\p{N}"), (r"\d", bpe.Split("a", "removed")), (r"\d", r"a\d|\d")]
ONE_MACHINE += [*((run, "ab+") for run in RUNS[2:]), ("bert", "gpt2"), DEEPSEEK_REGEXES]
# A last step cuts words that the first has left whole.
TWO_MACHINES = [("gpt2", r"\d"), (r"\d{1,3}", r"a\d|\d"), [*RUNS[:2], "a|b"], metaspace()]
SOME_OF_A_TEXT = ["bert", bpe.Split(r"[\s\S]", "removed"), r"[^\x00]", (r"[\s\S]", bpe.Metaspace())]


def test_patterns_know_what_they_leave_out_and_which_are_one_machine():
    assert all(bpe.Pattern(steps).matches_everything for steps in ("gpt2", "none", r"\s+|\S"))
    assert not any(bpe.Pattern(steps).matches_everything for steps in SOME_OF_A_TEXT)
    assert all(len(bpe.Pattern(steps).passes) == 1 for steps in ONE_MACHINE)
    assert all(len(bpe.Pattern(steps).passes) > 1 for steps in TWO_MACHINES)


GPT2 = bpe.PATTERNS["gpt2"]
BERT = bpe.Pattern("bert").source
NAMED = [("gpt2", "gpt2", GPT2), (GPT2, "gpt2", GPT2), (list(BERT), "bert", BERT)]
NAMED += [(["gpt2", r"\p{N}"], None, (GPT2, r"\p{N}")), (bpe.Split(r"\d"), None, r"\d")]
NAMED += [([bpe.Metaspace(), "bert"], None, (bpe.Metaspace(), *BERT))]


@pytest.mark.parametrize("steps, name, source", NAMED)
def test_patterns_have_names_and_sources(steps, name, source):
    pattern = bpe.Pattern(steps)
    assert (pattern.name, pattern.source) == (name, source)
    assert name is None or repr(pattern) == f"Pattern('{name}')"
    assert pickle.loads(pickle.dumps(pattern)).source == source


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
    (Split(Regex(r), how, invert), bpe.Split(r, how, invert))
    for r, how, invert in itertools.product(SPLIT_REGEXES, bpe.BEHAVIORS, [False, True])
    if r == "a" or (how != "removed" and (how != "contiguous" or r[:2] != "(?"))
]
METASPACES = [
    (P.Metaspace(*options), metaspace(*options))
    for options in itertools.product("▁_", bpe.PREPEND_SCHEMES, [False, True])
]
# Newer characters are left out: Rust has another version of Unicode.
assigned = st.characters(exclude_categories=["Cs", "Cn"])
split_texts = st.text(assigned | st.sampled_from("ab1c -.,\n\t▁_é中"), max_size=40)
split_texts |= st.text("ab1c ", max_size=40)


def hf_split(pre_tokenizer, text):
    return [word.encode() for word, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre_tokenizer, steps", CHARACTER_SPLITS + ANY_SPLITS)
@examples(12)
@given(texts=st.lists(split_texts, min_size=3, max_size=10), data=hostile_bytes)
def test_splits_are_those_of_hugging_face(pre_tokenizer, steps, texts, data):
    pattern = bpe.Pattern(steps)
    for text in texts:
        assert pattern.split(text.encode()) == hf_split(pre_tokenizer, text)
    if "?=" not in str(steps):
        assert pattern.split(data) == naive_split(pattern.source, data)


@pytest.mark.parametrize("pre_tokenizer, steps", CHARACTER_SPLITS)
def test_splits_at_characters_are_one_machine_and_know_every_character(pre_tokenizer, steps):
    pattern = bpe.Pattern(steps)
    assert len(pattern.passes) == 1
    for text in ("A".join(KNOWN_CHARACTERS), " A".join(KNOWN_CHARACTERS)):
        assert pattern.split(text.encode()) == hf_split(pre_tokenizer, text)


any_splits = st.sampled_from([*CHARACTER_SPLITS * 3, *ANY_SPLITS])


@examples(12)  # most compile a machine of their own
@given(
    before=st.lists(any_splits, max_size=3),
    metaspace=st.lists(st.sampled_from(METASPACES), max_size=1),
    behind=st.lists(any_splits, max_size=2),
    last=st.sampled_from([[], ["gpt2"], ["llama3"]]),
    text=split_texts,
    data=hostile_bytes,
)
@example([CHARACTER_SPLITS[2]], [METASPACES[5]], [], [], " one  two ▁three", b"")
@example([CHARACTER_SPLITS[0]], [METASPACES[3]], [], [], "one, two", b"")
@example(CHARACTER_SPLITS[:1], [METASPACES[8]], [], [], " 0", b"")
def test_chains_are_those_of_hugging_face(before, metaspace, behind, last, text, data):
    parts = before + metaspace + behind or CHARACTER_SPLITS[:1]
    parts += [(Split(Regex(bpe.PATTERNS[name]), "isolated"), name) for name in last]
    expected = hf_split(P.Sequence([pre_tokenizer for pre_tokenizer, _ in parts]), text)
    steps = []
    for _, part in parts:
        steps += part if type(part) is tuple else [part]
    pattern = bpe.Pattern(steps)
    assert pattern.split(text.encode()) == expected
    assert pattern.split(text.encode() + data) == naive_split(pattern.source, text.encode() + data)
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], pattern=steps)
    assert bytes(tokenizer.encode(text)) == b"".join(expected)


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
@given(text=texts)
def test_patterns_are_those_of_tiktoken(name, text):
    openai_public = importlib.import_module("tiktoken_ext.openai_public")
    with mock.patch.object(openai_public, "load_tiktoken_bpe"):  # it would load the ranks
        pattern = getattr(openai_public, f"{name}_base")()["pat_str"]
    assert bpe.Pattern(name).split(text) == naive_split(pattern, text.encode())


# `regex` joins negated characters to one set, wrongly. An escaped plus is a character and no run.
# More single characters than sets are several machines. A set may have many letters.
RARE = [(r"(?:s)|[^\n]|[^a]", "a|a"), (r"(?i:s)|[^\n]|[^a]", "a|a"), ([*"abcdef"], "a|b|c|d|e|f")]
RARE += [(bpe.Split(r"\+", "merged_with_previous"), "a+|+|b")]
RARE += [(bpe.Split("(?!x)[a-z]", "contiguous"), "a|x|bc")]
RARE += [(bpe.Split(f"[{''.join(map(chr, range(0x4E00, 0x9C20, 2)))}]|z+"), "zz|丂|丂|a丁七|上")]
RARE += [(bpe.Split("(?!x)[a-z]+", "merged_with_previous"), "x1axb|1c")]


@pytest.mark.parametrize("steps, words", RARE)
def test_words_that_are_rarely_met_are_right(steps, words, monkeypatch):
    monkeypatch.setattr(bpe, "MAX_SETS", 5)
    words = words.encode().split(b"|")
    assert bpe.Pattern(steps).split(b"".join(words)) == words


@pytest.mark.parametrize("source", [r"ab+c|\w|\s", "(?:ab)+c|[a-z]| ", "ab(?! )c|[abc]| "])
@given(st.text("abc 1", max_size=14))
def test_a_text_is_cut_where_a_longer_match_fails_in_each_context(source, text):
    pattern = bpe.Pattern(source)
    table = pattern.table
    assert table.must_split[table.class_of[ord("b")], table.class_of[ord(" ")]]
    for k, (x, y) in enumerate(itertools.pairwise(map(ord, text)), 1):
        if table.must_split[table.class_of[x], table.class_of[y]]:
            assert pattern.split(text) == pattern.split(text[:k]) + pattern.split(text[k:])


DIGITS_FROM_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
GROUPED = [
    DIGITS_FROM_RIGHT,
    bpe.PATTERNS["cl100k"].replace(r"\p{N}{1,3}", DIGITS_FROM_RIGHT),
    rf"\s+(?!\S)| ?\p{{L}}+|{DIGITS_FROM_RIGHT}|\s",
    (r"(?=(\d{3})+(?!\d))", r" ?\p{L}+|\d+"),
    r"(?<=\d)(?=(?:\d{3})+(?!\d))",
    (r"\s", r"[0-9]{1,2}(?=(?:[0-9]{2})*(?![0-9]))|a", r"\w"),
]
numbers_in_text = st.text("0123456789٣½a .\n", max_size=30) | texts


@pytest.mark.parametrize("source", GROUPED, ids=str)
@given(numbers_in_text)
@example("1 12 123 1234 1234567, a123456b")
@example("½12٣45" * 4 + "\udcfe123")
def test_digits_are_grouped_from_the_right(source, text):
    pattern = bpe.Pattern(source)
    data = as_bytes(text)
    assert pattern.split(data) == naive_split(pattern.steps, data)
    assert any(isinstance(each, bpe._GroupPass) for each in pattern.passes) and not pattern.warning


@pytest.mark.parametrize(
    "source", [rf"[a\d]b|{DIGITS_FROM_RIGHT}", DIGITS_FROM_RIGHT * 2, f"x{DIGITS_FROM_RIGHT}"]
)
@given(st.text("0123ab", max_size=12))
def test_digits_that_other_alternatives_take_are_left_to_regex(source, text):
    pattern = bpe.Pattern(source)
    assert pattern.split(text) == naive_split([source], text.encode())
    assert "left to the `regex` package" in pattern.warning


# ─── Scanning ─────────────────────────────────────────────────────────────────────────────────────


# Patterns that drop text, and those that replace spaces.
DROPPING = ["bert", "whitespace", ("whitespace-split", metaspace())]
DROPPING += [(bpe.Split("[ab]+", "removed"), "gpt2")]
SPACED = [metaspace("_", "first"), (bpe.Metaspace(" "), "gpt2")]
SPACED += [("gpt2", bpe.Metaspace("_", "never")), (bpe.Split(r"\s", "contiguous"), "gpt2")]
SCANNED = [*bpe.PATTERNS, *CUSTOM_PATTERNS, *DROPPING[2:], *SPACED]


@pytest.mark.parametrize("steps", SCANNED, ids=str)
def test_long_texts_are_scanned_by_all_lanes(steps):
    pattern = bpe.Pattern(steps)
    source = random.Random(3)
    many_letters = "ab c'sl \n\r\t 12中é\u3000\u0301ſK/.!<>\x00▁_"
    for letters in (many_letters, "the cat   sat\n        ", "x1\n", "x1*\n\t  "):
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
    documents = []
    while sum(map(len, documents)) < max(LONG, 5 * mean):
        mixture = source.choice([[3, 1, 1, 0, 0], [1, 0, 0, 0, 0], [9, 1, 1, 3, 0.03]])
        documents.append(b"".join(source.choices(parts, mixture, k=source.randrange(2 * mean))))
    each = [tokenizer.encode(document) for document in documents]
    assert tokenizer.encode_batch(documents, threads=1) == each
    text = end.join(documents)
    assert [*tokenizer.encode(text), 258] == [id for ids in each for id in [*ids, 258]]
    counter = bpe.WordCounter()
    counter.add_texts([text], bpe.Pretokenizer(tokenizer.pattern, {"<|end|>": 0}))
    expected = naive_count(text, bpe.PATTERNS["cl100k"], ["<|end|>"])[0]
    assert counter.words().to_counts() == expected


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k", "llama3", "qwen2"])
def test_indented_code_is_read_without_unresolved_entries(name):
    table = bpe.Pattern(name).table.table
    spaces = [" ", "    ", " " * 30, "\t ", "\t\t\t ", "\t\t   ", "  \t"]
    texts = map("".join, itertools.product(["x\n", "x\n\n"], spaces, "x1*\n"))
    for text in texts:
        entry = 0
        for byte in text.encode():
            entry = int(table[entry >> 8 << 8 | byte])
            assert entry & 0xE0 < bpe.INVALID_UTF8, text


def test_a_byte_that_looks_like_an_end_is_a_word():
    texts = [b"\xfe", b"", b"\xfe\xfea", b"\xff\xfe"]
    counter = bpe.WordCounter()
    other = bpe.WordCounter()
    counter.add_texts(texts, bpe.Pretokenizer(bpe.Pattern(r"[\s\S]")))
    other.add_words(counter.words())
    for words in (counter.words(), other.words()):
        assert words.to_counts() == {b"\xfe": 4, b"a": 1, b"\xff": 1}
    vocab = BYTE_VOCAB | {256: b"\xfea\xfe", 257: b"\xfda\xfd"}
    for merges in (None, []):
        options = {"pattern": "none", "ignore_merges": merges is not None}
        tokenizer = bpe.Tokenizer.from_model(bpe.Model(vocab, merges, **options))
        for _ in range(2):  # the second time from the cache
            assert tokenizer.encode_batch(texts) == [*map(list, texts)]
            assert tokenizer.encode_batch([b"\xfea\xfe", b"\xfda\xfd"]) == [[256], [257]]


@functools.cache
def border_characters():
    """The characters at the borders of each class in the named patterns, on both sides."""
    classes = [rf"\p{{{name}}}" for name in ("L", "N", "M", "Lu", "Ll", "Lt", "Lm", "Lo")]
    classes += [r"\s", "(?i:[sdmtlver])", "[a-z]", "[A-Z]", "[0-9]", r"[\r\n/']"]
    runs = [match.span() for c in classes for match in regex.finditer(f"{c}+", ALL_CHARACTERS)]
    places = {place + k for run in runs for place in run for k in (-1, 0)}
    return [ALL_CHARACTERS[place] for place in sorted(places) if 0 <= place < len(ALL_CHARACTERS)]


@pytest.mark.parametrize("flags", [*itertools.product([False, True], repeat=2)])
def test_tokens_of_normalized_text_end_documents_too(flags):
    added = {name: bpe.AddedToken(normalized=flag) for name, flag in zip("xy", flags, strict=True)}
    counter = bpe.WordCounter()
    counter.add_texts(
        [b"one-x-two-y-"], bpe.Pretokenizer(bpe.Pattern("-"), {"x": 1, "y": 2}, added)
    )
    assert (counter.n_documents, counter.n_bytes) == (3, 10)
    assert counter.special_ids == {1: 1, 2: 1}


@pytest.mark.parametrize("name", bpe.PATTERNS)
def test_every_class_of_characters_is_that_of_regex(name):
    for before, after in (("", ""), ("a", "b"), (" ", "1"), ("\n", "'")):
        data = "".join(f"{before}{char}{after}" for char in border_characters()).encode()
        assert bpe.Pattern(name).split(data) == naive_split(bpe.PATTERNS[name], data)


@given(size=st.integers(1, 20), place=st.integers(0, 19))
def test_bytes_are_compared_to_the_last(size, place):
    text = bytes(range(1, 24))
    array = bpe._with_padding(text)
    other = bytearray(text[2:])
    assert bpe._equal(array, 2, bpe._with_padding(bytes(other)), 0, size)
    other[place] ^= 0x80
    assert bpe._equal(array, 2, bpe._with_padding(bytes(other)), 0, size) == (place >= size)


# ─── Normalizing ──────────────────────────────────────────────────────────────────────────────────

# Characters of Unicode 3.2, which all tables know. Among the odd ones are marks of every kind,
# parts of grapheme clusters, white space, characters that grow, and those of longer keys.
OLD_CHARACTERS = [c for c in FILLED_PLANES if unicodedata.ucd_3_2_0.category(c) != "Cn"]
ODD = "\n\r\t  \x00\x01\x85\xa0\xad´`'aAeEiİſßΣά\u0301\u0308\u0327\u0345\u302e\u1734\u0600\u200d"
ODD += "\ufe0f©\u1100\u1161\u11a8가각क\u094d\u093cか\u3099\uff9e▁\ufdfa\ufeff\ufffd\u212b　中א"
ODD += "\u05b0\u1e9b\u0323\ue000\U0002000b🇩🙂"
odd_characters = st.sampled_from(ODD) | st.sampled_from(OLD_CHARACTERS)
odd_texts = st.text(odd_characters | st.characters(max_codepoint=0x17F), max_size=30)
odd_texts |= st.text("aá \u0301é\r\n`▁", max_size=30)
odd_texts |= st.text("aÀé \n\x00中İΣ\u0301\u0327\u302e\u1b44ẞ가𝐀\ufffd", max_size=40)


@functools.lru_cache
def normalizing_model(rule):
    """A SentencePiece model with these rules of normalization."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "jumps over lazy dogs"]),
        model_writer=out, vocab_size=40,
        hard_vocab_limit=False, minloglevel=3, normalization_rule_name=rule,
    )  # fmt: skip
    return out.getvalue()


def charsmap(rule):
    model = sentencepiece_model_pb2.ModelProto.FromString(normalizing_model(rule))
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


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
NORMALIZERS = {
    **{name: types(name) for name in SIMPLE},
    **{f"BERT {flags}": [bert(*flags)] for flags in itertools.product([True, False], repeat=4)},
    "BERT": [bert()],
    "strip": [strip(True, True)],
    **{f"strip {left}": [strip(left, not left)] for left in (True, False)},
    "several": [replace("``", '"'), replace("a\u0301", "")],
    "a regex": [replace(r" {2,}|[`-b]", "▁", "Regex")],
    "spaces": [replace(" {2,}", "▁", "Regex")],
    "beside letters": [replace(r"(?<!\w)e|e(?!\w)", "x", "Regex")],
    "ends of runs": [replace(r"\s+$", "<e>", "Regex"), replace(r"[a-c ]{2,}\z", "", "Regex")],
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
    # The steps of these take half a second.
    "precompiled": types("nmt_nfkc"),
    "folded": types("nfkc_cf"),
    "XLM-R": [
        *(*types("nfkc"), strip(False, True)),
        *(replace(" {2,}", "▁", "Regex"), *types("Lowercase")),
    ],
}


def theirs_of(**parts):
    """The tokenizer of the `tokenizers` package with these parts of a tokenizer.json."""
    data = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    return tokenizers.Tokenizer.from_str(json.dumps(data | parts))


@functools.lru_cache
def normalizers(name):
    """The normalizer of these steps here, and in `tokenizers` or, after "sp ", in sentencepiece."""
    if name.startswith("sp "):
        return sentencepiece_normalizers(name[3:])
    steps = list(NORMALIZERS[name])
    if "nfkc" in steps[0]["type"]:
        precompiled = charsmap(steps[0]["type"])
        steps[0] = {"type": "Precompiled", "precompiled_charsmap": precompiled}
    theirs = theirs_of(normalizer={"type": "Sequence", "normalizers": steps})
    return pickle.loads(pickle.dumps(bpe.Normalizer(steps))), theirs.normalizer


@pytest.mark.parametrize("name", NORMALIZERS)
@examples(15)
@given(text=odd_texts)
@example("e\u200b\u0301 x")
def test_normalizers_are_those_of_tokenizers(name, text):
    ours, theirs = normalizers(name)
    assert ours.normalize(text.encode()).decode() == theirs.normalize_str(text)


EACH_CHARACTER = ["NFC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BERT", "ALBERT"]


@pytest.mark.parametrize("name", [*EACH_CHARACTER, "precompiled", "Llama", "XLM-R"])
def test_characters_and_long_texts_are_normalized_as_in_tokenizers(name, some_texts):
    ours, theirs = normalizers(name)
    long_texts = ["\ufdfa" * 9000, "é\r\n" * 5000, "e\u0301\u0327 " * 5000, "a" * 64 + "\u0301"]
    texts = [*some_texts[:10], *long_texts, *OLD_CHARACTERS]
    flat = bpe.FlatText.join([text.encode() for text in texts], [bpe.BOUNDARY] * len(texts))
    normalized = [part.decode() for part in ours.apply(flat, bpe.BOUNDARY).texts()]
    assert normalized == [theirs.normalize_str(text) for text in texts]


@pytest.mark.parametrize(
    "name", ["NFC", "Lowercase", "BERT", "precompiled", "Nmt", "all but a set"]
)
@given(data=hostile_bytes)
def test_bytes_that_are_not_utf8_stay_as_they_are(name, data):
    ours, theirs = normalizers(name)
    parts = regex.split(r"([\udc80-\udcff]+)", as_text(data))
    parts[::2] = map(theirs.normalize_str, parts[::2])
    assert ours.normalize(data) == as_bytes("".join(parts))


NORMAL_FORMS = ["NFC", "NFD", "NFKC", "NFKD"]
# characters that are reordered, decomposed or composed in the newest Unicode that is here
MARKS = [char for char in map(chr, range(0x110000)) if unicodedata.combining(char)]
COMPOSED = [char for char in map(chr, range(0x110000)) if unicodedata.decomposition(char)]
mark_runs = st.text(st.sampled_from(MARKS), max_size=40)
mark_runs |= st.text(st.sampled_from([*COMPOSED, *MARKS, *"aeＡᄀ가ᅡᆨ\u0b47\u0b3e"]), max_size=9)


@pytest.mark.parametrize("form", [*NORMAL_FORMS, "Lowercase"])
def test_all_characters_have_the_forms_of_tokenizers(form):
    ours, theirs = normalizers(form)
    texts = [*FILLED_PLANES]
    texts += [
        f"a{first}{second}"
        for mark in MARKS
        for first, second in (mark + "\u0334", "\u0345" + mark)
    ]
    flat = bpe.FlatText.join([*map(str.encode, texts)], [bpe.BOUNDARY] * len(texts))
    changed = [part.decode() for part in ours.apply(flat, bpe.BOUNDARY).texts()]
    assert changed == [theirs.normalize_str(text) for text in texts]


@pytest.mark.parametrize("form", NORMAL_FORMS)
@examples(60)
@given(text=mark_runs)
@example("\u07f3\u07fd")  # which a newer Unicode than that of `tokenizers` reorders
@example("e" + "\u0301\u0323\u0344\u0f73" * 20)
def test_any_marks_have_the_normal_forms_of_tokenizers(form, text):
    ours, theirs = normalizers(form)
    assert ours.normalize(text.encode()).decode() == theirs.normalize_str(text)


REPEATED = [
    "a",
    " ",
    "é",
    "\u0301\u0323",
    "\u0344",
    "\u0f73\u0301",
    "가",
    "ᄀ",
    "\r\n",
    "中 ",
    "İ",
    "½",
    "\u200d",
]
LONG_RUNS = [*SIMPLE, "BERT", "strip", "several", "a regex", "spaces", "sets", "ALBERT", "XLM-R"]


@pytest.mark.parametrize("name", [*LONG_RUNS, "precompiled", "sp nmt_nfkc", "ends of runs"])
def test_time_is_linear_in_the_size_of_a_run(name):
    ours, _ = normalizers(name)
    assert_linear(lambda n: [ours.normalize(f"a{s * n}b".encode()) for s in REPEATED], 300)


BORDERS = [
    "\u0301",
    "\u0323",
    "e",
    "é",
    "\u0341",
    " ",
    "\r",
    "\n",
    "\u200d",
    "👩",
    "\u0600",
    "ᅡ",
    "가",
    "क्",
]
AT_BORDERS = [*SIMPLE, "BERT", "strip", "ends of runs", "beside letters", "precompiled"]
BORDER_PATTERNS = [
    "gpt2",
    r"\b\w+|\W",
    r"(?<=\s)\w+|\S|\s",
    r"^\s+|\w+$|.|\n",
    r"\w+(?!\w)|\W",
    r"\X",
]


@pytest.mark.parametrize("name", [*AT_BORDERS, "sp nmt_nfkc"])
@examples(20)
@given(
    texts=st.lists(st.lists(st.sampled_from(BORDERS), max_size=4).map("".join), max_size=9),
    pattern=st.sampled_from(BORDER_PATTERNS),
)
@example(["e\u0301", "\u0341\u0301"], "gpt2")
def test_no_text_of_a_batch_looks_at_its_neighbours(name, texts, pattern):
    normalizer = normalizers(name)[0]
    pattern = bpe.Pattern(pattern)
    meanings = [7, bpe.BOUNDARY] * len(texts)  # after each text there is a special token
    flat = bpe.FlatText.join([text.encode() for text in texts for _ in range(2)], meanings)
    flat = normalizer.apply(flat, bpe.BOUNDARY)
    alone = [normalizer.normalize(text.encode()) for text in texts for _ in range(2)]
    assert flat.texts() == alone
    pieces = bpe._apply_passes(pattern.passes, flat, bpe.BOUNDARY).texts()
    assert [*filter(None, pieces)] == [*chain(*map(pattern.split, alone))]


@pytest.mark.parametrize("char", "aé中🙂")
def test_a_character_becomes_a_text_of_any_size_beside_bytes_that_are_not_utf8(char):
    data = f"xé中🙂a{char} ".encode() * 2000 + bytes(range(128, 256))
    for content in ("", "1234567", "12345678", "🙂中"):
        step = {"type": "Replace", "pattern": {"String": char}, "content": content}
        expected = data.replace(char.encode(), content.encode())
        assert bpe.Normalizer([step]).normalize(data) == expected


def test_texts_are_normalized_on_their_own_and_special_tokens_not_at_all():
    normalizer = bpe.Normalizer([strip(True, True), *types("NFC", "Lowercase"), PREPEND])
    parts = ["AE", "\u0301B C ", "", "D\n"]
    meanings = [7, 8, bpe.BOUNDARY, bpe.BOUNDARY]
    for begins, first in ((bpe.BOUNDARY, "▁ae"), (bpe.CONTINUES, "ae")):
        flat = bpe.FlatText.join([*map(str.encode, parts)], meanings)
        normalized = normalizer.apply(flat, begins)
        assert [part.decode() for part in normalized.texts()] == [first, "▁\u0301b c", "", "▁d"]
        assert normalized.meanings.tolist() == meanings
    assert normalizer and not bpe.Normalizer([{"type": "Sequence", "normalizers": []}])


@functools.lru_cache
def sentencepiece_normalizers(rule, prefix=True, squeezes=True, escapes=True):
    """The normalizer of a SentencePiece model, as steps of Hugging Face and in its own package."""
    model = sentencepiece_model_pb2.ModelProto.FromString(normalizing_model(rule))
    model.normalizer_spec.add_dummy_prefix = prefix
    model.normalizer_spec.remove_extra_whitespaces = squeezes
    model.normalizer_spec.escape_whitespaces = escapes
    data = model.SerializeToString()
    steps = bpe.read_sentencepiece(data).normalizer
    return bpe.Normalizer(steps), sentencepiece.SentencePieceProcessor(model_proto=data)


sp_bytes = st.lists(st.sampled_from([b"\xe2", b"\x96", b"\x81", b"\xfe", b"\x01", b" ", b"a"]))
sp_texts = odd_texts | st.text("abcxeéﬁ２中 .▁\x01¨\u1112\u1161\u11ab", max_size=30)


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@given(
    data=sp_texts.map(str.encode) | sp_bytes.map(b"".join),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@example("\u1112\u1161\u11ab\u1100\u116e\u11a8".encode(), (True, True, True))
@example("▁▁\u0301".encode(), (True, True, True))
@example(" ▁a ▁ ".encode(), (True, True, True))
@example(b"\x01", (True, False, True))
def test_text_is_normalized_as_by_sentencepiece(rule, data, flags):
    """Both make U+FFFD of an invalid byte."""
    if rule == "nmt_nfkc":  # each of these models takes half a second to read
        flags = (True, flags[1], True)
    ours, theirs = sentencepiece_normalizers(rule, *flags)
    assert ours.normalize(data) == theirs.normalize(data)


@functools.lru_cache
def normalizers_with_symbols(rule, squeezes):
    """The normalizer of a SentencePiece model with symbols, here and in its package."""
    symbols = ["  ", "   ", " a", "b  ", "\u0301", "\u1161"]
    pieces = [("<unk>", 2, 0.0), *((symbol, 4, 0.0) for symbol in symbols), ("a", 1, -1.0)]
    proto = model_proto(pieces, 1)
    own = sentencepiece_model_pb2.ModelProto.FromString(normalizing_model(rule))
    proto.normalizer_spec.CopyFrom(own.normalizer_spec)
    proto.normalizer_spec.remove_extra_whitespaces = squeezes
    data = proto.SerializeToString()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    return bpe.Normalizer(bpe.read_sentencepiece(data).normalizer), theirs


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@given(text=st.text("ab \u3000\u0301ei\uac00\u1100\u1161\t", max_size=12), squeezes=st.booleans())
@example("a  b", True)
@example("i\u0301", True)  # a key of the charsmap reaches into the symbol
def test_symbols_of_spaces_and_accents_stay_as_in_sentencepiece(rule, text, squeezes):
    ours, theirs = normalizers_with_symbols(rule, squeezes)
    assert ours.normalize(text.encode()).decode() == theirs.normalize(text)


def places_to_cut(name, text, pattern):
    """The places in a text before which it may be cut."""
    padded = bpe._with_padding(text.encode())
    arrays = cut_arrays(name, pattern)
    ends = range(1, len(text.encode()))
    return [k for k in ends if bpe._next_split(padded, max(k - 4, 0), k + 1, *arrays) == k]


@functools.lru_cache(None)
def cut_arrays(name, pattern):
    return normalizers(name)[0].cut_arrays(bpe.Pattern(pattern))


CUT = ["NFC", "NFKC", "BERT", "ALBERT", "Llama", "several", "not one map", "precompiled", "strip"]
CUT += ["a regex", "spaces", "sets", "all but a set", "sp identity", "sp nmt_nfkc"]


@pytest.mark.parametrize("name", CUT)
@examples(8)  # each makes new tables of the places where text is cut
@given(odd_texts | pattern_texts, st.sampled_from(["gpt2", "o200k", r"▁?[^▁]+|▁", r"\w+|\s"]))
@example(text="A b", pattern="gpt2")  # one rule makes "b " of " b"
@example(text="x  y", pattern="[^ ]+| ")  # another makes one mark of two spaces
def test_text_is_cut_where_its_normal_form_would_be(name, text, pattern):
    normalizer, _ = normalizers(name)
    data = text.encode()
    parts = []
    begins = bpe.BOUNDARY
    for start, stop in pairwise([0, *places_to_cut(name, text, pattern), len(data)]):
        flat = bpe.FlatText.join([data[start:stop]], [bpe.BOUNDARY])
        parts += normalizer.apply(flat, begins).texts()
        begins = bpe.CONTINUES
    split = bpe.Pattern(pattern).split
    assert [*chain(*map(split, parts))] == split(normalizer.normalize(data))


@pytest.mark.parametrize("name", ["NFC", "BERT", "ALBERT", "Llama", "precompiled", "sets"])
def test_text_can_be_cut_between_words_and_not_before_what_is_composed(name):
    assert places_to_cut(name, "the cat", "gpt2") == [3]
    assert places_to_cut(name, "the été", "gpt2") == [3]
    assert places_to_cut("NFC", "1e\u0301", r"[a-z]+|[^a-z]+") == []


@examples(4)  # each takes half a second
@given(place=st.integers(0, 1 << 18), noise=st.binary(max_size=9))
def test_damaged_charsmaps_are_refused_or_read(place, noise):
    whole = base64.b64decode(charsmap("nfkc"))
    place %= len(whole)
    noisy = whole[:place] + noise + whole[place + len(noise) :]
    may_fail = contextlib.suppress(bpe.InputError)
    for data, expected in ((whole[:place], refusal("cut off")), (noisy, may_fail)):
        encoded = base64.b64encode(data).decode()
        with expected:
            bpe.Normalizer([{"type": "Precompiled", "precompiled_charsmap": encoded}])


METASPACE = metaspace()
STRIP_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA_PARTS = [replace("▁", " "), *types("ByteFallback", "Fuse"), STRIP_SPACE]
DECODERS = {
    "WordPiece": [{"type": "WordPiece", "prefix": "##", "cleanup": True}],
    "without cleanup": [{"type": "WordPiece", "prefix": "##", "cleanup": False}],
    **{name: [{**METASPACE, "prepend_scheme": name}] for name in ("always", "never")},
    "Llama": LLAMA_PARTS,
    "Gemma": LLAMA_PARTS[:-1],
    "replaced behind": [*types("ByteFallback", "Fuse"), replace("a", "bc")],
    "each stripped": [STRIP_SPACE | {"content": "a", "start": 2}, replace("##", "")],
    "the end": [STRIP_SPACE | {"content": "s", "start": 0, "stop": 1}],
    "no suffix": [{"type": "BPEDecoder", "suffix": "</w>"}],
}
DECODED = ["▁", "▁▁a", "##s", "a", "aaba", "n't", " n't", "do not", ".", "▁.", "<0x41>", "<0x+f>"]
DECODED += ["<0x4>", "<unk>", "中", "'s"]


JOINING = types("ByteFallback", "Fuse")


@pytest.mark.parametrize(
    "step", [replace("é", "e"), replace("aa", "b"), STRIP_SPACE | {"content": "é"}]
)
def test_a_step_that_may_look_at_several_tokens_is_refused_where_they_are_joined(step):
    vocab = {0: b"a", 1: b"<0xC3>", 2: b"<0xA9>"}  # both bytes are an é
    with refusal("is not supported after a step that joins tokens"):
        bpe.decoded_tokens(vocab, [*JOINING, step])


def test_the_start_is_stripped_only_where_every_token_has_one():
    steps = [replace("▁", ""), *JOINING, STRIP_SPACE]
    with refusal("is not supported after a step that joins tokens"):
        bpe.decoded_tokens({0: "▁".encode(), 1: b" a"}, steps)
    assert bpe.decoded_tokens({0: "▁b".encode(), 1: b" a"}, steps)[0] == {0: b"b", 1: b"a"}


def test_more_may_be_stripped_than_a_token_has():
    for side in ("start", "stop"):
        steps = [STRIP_SPACE | {"content": "a", "start": 0, "stop": 0, side: 2**60}]
        first, later = bpe.decoded_tokens({0: b"aaba", 1: b"aa"}, steps)
        assert first == later == {0: b"ba" if side == "start" else b"aab", 1: b""}


@pytest.mark.parametrize("name", DECODERS)
@given(tokens=st.lists(st.sampled_from(DECODED), min_size=1, max_size=8))
def test_decoders_are_those_of_tokenizers(name, tokens):
    vocab = {token: token.encode() for token in DECODED}
    first, later = bpe.decoded_tokens(vocab, DECODERS[name])
    theirs = theirs_of(decoder={"type": "Sequence", "decoders": DECODERS[name]})
    text = b"".join([first[tokens[0]], *map(later.get, tokens[1:])])
    assert text.decode() == theirs.decoder.decode(tokens)


# ─── Reading ──────────────────────────────────────────────────────────────────────────────────────


def counted(files, special=(END,), pattern="gpt2", block_bytes=None, workers=None, **options):
    """The counts of pretokens, and the number of documents."""
    options["block_bytes"] = block_bytes or bpe.BLOCK_BYTES
    result = bpe.count(bpe.Source(files, pattern, special, **options), bpe.Engine(workers))
    assert result.words.symbols.dtype == np.int32
    return result.words.to_counts(), result.n_documents


# Parts of texts among which special tokens overlap, are cut off, or look like ordinary text.
TEXT_PARTS = ["<|a|>", "<|a|>b", "|>", "<|", "aa", "aaa", "x y z\nw ", "word " * 9, END]
some_part = texts.map(str.encode) | st.sampled_from(TEXT_PARTS).map(str.encode) | hostile_bytes
text_parts = st.lists(some_part, max_size=12).map(b"".join)
SPECIAL_SETS = [[], ["<|a|>"], ["<|a|>", "<|a|>b"], ["aa", "aaa"], ["\nw", " y z", "\n\n"]]
SPECIAL_SETS += [["é", "aéa"], ["aa", "ab", END]]
special_sets = st.sampled_from(SPECIAL_SETS)
LISTED_PATTERNS = [*bpe.PATTERNS, r"\w+", r"(?<!x)\w+", (r"\s", r"\w\w"), *GROUPED[:2]]
some_patterns = st.sampled_from(LISTED_PATTERNS)


STRIPS = bpe.AddedToken(lstrip=True, rstrip=True)


def test_no_block_ends_where_a_token_looks_at_its_neighbours(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("ab   <m>   cd " * 50)
    for size in (1 << 20, *range(3, 20)):
        expected = dict.fromkeys([b"ab", b"cd", b" "], 50), 51
        options = {"added_tokens": {"<m>": STRIPS}, "block_bytes": size, "workers": 1}
        assert counted([path], ["<m>"], r"\s|\S+", **options) == expected
    path.write_text("ab<m>cd-" * 50)
    for size in range(3, 11):
        source = bpe.Source([path], r"\w+|\W+", ["<m>"], None, size, {"<m>": STRIPS})
        counts = bpe.count(source, bpe.Engine(1))
        assert counts.words.to_counts() == dict.fromkeys([b"ab", b"cd", b"-"], 50)
        assert counts.n_documents == 51 and len([*source.blocks()]) > 9


def test_no_block_ends_after_a_token_that_a_normalizer_may_change(tmp_path):
    (tmp_path / "a.txt").write_text("e\u0301 " * 50)
    options = {"added_tokens": {"e": bpe.AddedToken(normalized=True)}, "normalizer": types("NFC")}
    for size in (4, 6, 9):
        words = counted(tmp_path, ["e"], r"\s|\S+", size, 1, **options)
        assert words == ({"é".encode(): 50, b" ": 50}, 1)


def test_a_token_that_a_normalizer_removes_is_in_no_text():
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "ab": 2}, "a"))
    theirs.normalizer = N.Replace("x", "")
    theirs.add_tokens([tokenizers.AddedToken("x", normalized=True)])
    ours = ours_from(theirs)
    assert ours.encode("axb") == [2]  # theirs cuts "ab" into letters, and stops at an é


@examples(60)
@given(text_parts, special_sets, some_patterns, st.integers(5, 100), st.booleans())
@example(b"\xc2\x80\xc2\x80<|endoftext|>0" + b"\xc2\x80" * 5, [END], "gpt2", 5, False)
@example(b"a" * 41, ["aa"], "gpt2", 5, False)
@example(b"x ab cd ef gh y" * 9, ["ab cd ef gh", "cd"], "gpt2", 5, False)
@example(b"ab<|a|>cd" * 9, ["<|a|>"], "none", 20, False)
def test_blocks_change_no_pretoken(tmp_path_factory, text, special, pattern, block_bytes, packed):
    assume(bpe._recognize(text) is None)
    path = tmp_path_factory.getbasetemp() / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    expected = naive_count(text, bpe.Pattern(pattern).source, special)
    assert counted([path], special, pattern, block_bytes, workers=1) == expected


def put_another_there(path):
    """The other file has the same size and the same time."""
    before = path.stat()
    path.with_name("b.txt").write_text("more text\n" * 100)
    os.utime(path.with_name("b.txt"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_name("b.txt").replace(path)


FILE_CHANGES = [put_another_there, lambda path: path.write_text("more text\n" * 999)]
FILE_CHANGES += [lambda path: os.utime(path, ns=(0, 0))]  # of the same size
FILE_CHANGES += [lambda path: os.truncate(path, 9), lambda path: path.unlink(missing_ok=True)]


@pytest.mark.parametrize("change", FILE_CHANGES)
def test_a_file_that_changes_while_it_is_read_is_named(tokenizer, tmp_path, monkeypatch, change):
    path = tmp_path / "a.txt"
    path.write_text("some text\n" * 100)
    read = bpe.Block.read
    monkeypatch.setattr(bpe.Block, "read", lambda block: (read(block), change(path))[0])
    with pytest.raises((ValueError, OSError), match=r"a\.txt"):
        bpe.encode_files(tokenizer, path, tmp_path / "o.npy", workers=1)
    assert not (tmp_path / "o.npy").exists()


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
        assert {*openings} <= {bpe.CONTINUES} and last == bpe.BOUNDARY
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
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + lines)
    (tmp_path / "deep" / "er" / "d.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "deep" / "ignored.bin").write_bytes(b"\x00")
    expected = naive_count(whole, bpe.PATTERNS["gpt2"], [END])
    for name in ("a.txt", "b.txt.gz", "c.jsonl", "deep", "deep/**/*.gz"):
        for files in (tmp_path / name, str(tmp_path / name), iter([tmp_path / name])):
            assert counted(files) == expected
    assert counted(bpe.find_files([tmp_path]))[1] == 4 * len(documents)


@pytest.mark.parametrize("field", [None, "body"])
def test_a_named_pipe_is_read_and_as_json_if_a_text_field_is_named(tmp_path, field):
    os.mkfifo(tmp_path / "pipe")
    long = "long " * 20_000  # longer than a block
    lines = f'{{"body": "{long}"}}\n' + '{"body": "one two"}\n{"body": "three"}\n' * 4_000
    texts = [long, *["one two", "three"] * 4_000]
    with within(60), ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "pipe").write_text, lines)
        expected = naive_count(
            (END.join(texts) if field else lines).encode(), bpe.PATTERNS["gpt2"], [END]
        )
        files = bpe.find_files([tmp_path / "pipe"])
        assert counted(files, text_field=field, block_bytes=1 << 16, workers=1) == expected


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_packed_files_are_known_by_their_content(tmp_path, monkeypatch, pack):
    text = f"one two{END}three ".encode() * 5000
    path = tmp_path / "a.dat"
    path.write_bytes(pack(text) + pack(text))
    expected = naive_count(text * 2, bpe.PATTERNS["gpt2"], [END])
    assert counted([path], block_bytes=10_000) == expected
    with open(path, "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        assert counted([bpe.STANDARD_STREAM], block_bytes=10_000) == expected
    path.write_bytes(pack(text)[:-5])
    with pytest.raises(ValueError, match=r"a\.dat: not a whole (gzip|xz|bzip2) file"):
        counted([path])


def test_zstandard_is_read_or_refused(tmp_path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(bytes.fromhex("28b52ffd20073900006f6e652074776f"))  # "one two"
    has_package = any(map(importlib.util.find_spec, ("compression", "backports")))
    refused = refusal(r"a\.txt\.zst: .* pip install backports\.zstd")
    with contextlib.nullcontext() if has_package else refused:
        assert counted([path]) == ({b"one": 1, b" two": 1}, 1)


def test_row_groups_of_parquet_are_blocks(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    documents = [f"text {k} é" for k in range(10)]
    columns = {"body": documents, "n": list(range(10)), "nulls": ["ab"] * 5 + [None] * 5}
    parquet.write_table(sys.modules["pyarrow"].table(columns), path, row_group_size=4)
    blocks = list(bpe.Source([path], text_field="body").blocks())
    assert len(blocks) == 3 and sum(block.n_bytes for block in blocks) == path.stat().st_size
    expected = naive_count(END.join(documents).encode(), bpe.PATTERNS["gpt2"], [END])
    assert counted(bpe.find_files(tmp_path), text_field="body") == expected
    for field, message in [
        ("text", "no column 'text' .*body, n"),
        ("n", "a.parquet, row 1: a text is str or bytes, not int"),
    ]:
        with refusal(message):
            counted([path], text_field=field, workers=2)
    with note("left out, since they are null: 5 of .*a.parquet") as notes:
        assert counted([path], text_field="nulls", workers=2) == ({b"ab": 5}, 5)
    assert len(notes) == 1


DOUBTFUL = [
    ("a.txt", "Größe ".encode("latin-1") * 99, "its beginning is not UTF-8"),
    ("a.txt", "text".encode("utf-16"), "NUL bytes, as UTF-16 has"),
    ("a.txt", b'{"text": "one"}', "looks like JSON"),
    ("a.csv", b"id,text\n1,one\n", "a table is read as text"),
    ("a.txt", b'"id",text\n1,one\n', "a table is read as text"),
    ("a.txt", b"# sent_id = 1\n1" + b"\t_" * 9 + b"\n", "looks like CoNLL-U"),
    ("a.txt", b">sp|P1|A protein\nMKTAYIAKQRQISFVKSHFSRQ\n", "looks like FASTA"),
    ("a.txt", b"\xef\xbb\xbftext", "begins with a byte order mark"),
]


@pytest.mark.parametrize("name, data, doubt", DOUBTFUL)
def test_doubtful_text_gets_one_note(tmp_path, name, data, doubt):
    (tmp_path / name).write_bytes(data)
    with note(doubt) as notes:
        counted([tmp_path / name] * 3, workers=1)
    assert len(notes) == 1


def test_bad_lines_can_be_skipped_and_the_first_five_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 200)
    bad = [b'{"text": 3}', b"no json", b"\xff"]
    lines = [b'{"text": "ab"}', *bad, *[b"no json"] * 37]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines * 2))
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(lines[:6]))
    places = [f"{name}.jsonl, line {k}: " for name in "ab" for k in range(2, 7)]
    options = {"skip_bad_lines": True, "workers": 1}
    with note("skipped") as notes:
        training = bpe.train(tmp_path, 257, **options)

    def messages_of(notes):
        messages = [str(note.message) for note in notes]
        return [message for message in messages if "left out" not in message]

    messages = messages_of(notes)
    for part, message in zip([*places, "skipped in all: 80 lines of"], messages, strict=True):
        assert part in message
    assert training.counted.n_bad_lines == 85 and training.counted.words.to_counts() == {b"ab": 3}
    assert "| bad lines | 85 skipped " in re.sub(" +", " ", str(training.summary()))
    with note("skipped") as of_encoding:
        bpe.encode_files(training.tokenizer, tmp_path, tmp_path / "o.bin", **options)
    with note("skipped") as of_counting:
        bpe.count_files(tmp_path, tmp_path / "w.npz", **options)
    for others in (of_encoding, of_counting):
        assert messages_of(others) == messages
    assert bpe.train(tmp_path / "w.npz", 257, workers=1).counted.n_bad_lines == 85
    with refusal("a.jsonl, line 2: .*; with `skip_bad_lines`, train"):
        bpe.train(tmp_path, 257, workers=1)


# Files of the texts "a b", "é", none and "c", with the place of the third.
FIELD_LINES = '{"body": "a b", "text": "x"}\n{"body": "é"}\n\n{"body": 1}\n{"body": "c"}\n'
FIELD_TABLE = '\ufeffid,body\n1,a b\n\n2,"é"\n3\n4,c\n'
FIELDS = [("a.json", FIELD_LINES, "line 4"), ("a.txt", FIELD_LINES, "line 4")]
FIELDS += [("a.csv", FIELD_TABLE, "row 3"), ("a.tsv", FIELD_TABLE.replace(",", "\t"), "row 3")]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name, content, place", FIELDS)
def test_a_text_field_is_read_from_any_file(tmp_path, name, content, place, packed):
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    options = {"text_field": "body", "block_bytes": 3, "workers": 1}
    with refusal(rf"{path.name}, {place}: .*; with `skip_bad_lines`"):
        counted([path], **options)
    with note(f"skipped: .*{path.name}, {place}: "):
        words, n = counted([path], skip_bad_lines=True, **options)
    assert (words, n) == ({b"a": 1, b" b": 1, "é".encode(): 1, b"c": 1}, 3)
    if place == "row 3":
        with refusal(r"^[^:]*: no column 'x' .*id, body"):
            counted([path], text_field="x")


def test_texts_come_one_by_one_or_in_batches_of_any_kind():
    batches = [["ab", ["ab", "ab"]], [np.array(["ab", "ab"]), ("ab",)], iter(["ab"] * 3)]
    for texts in [*batches, [iter(["ab", "ab"]), np.array([b"ab"], object)]]:
        assert bpe.train(texts=texts, vocab_size=257, workers=1).counted.n_documents == 3
    source = bpe.Source([bpe.TextStream([""] * 50)], block_bytes=5)
    assert len([*source.blocks()]) == 10  # empty texts fill blocks as well


def test_a_text_in_memory_that_is_none_is_named_or_skipped(monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 20)
    texts = ["ab", *[["ab"] * 50] * 2, 7, "ab", {"text": "ab"}, math.nan, None]
    with refusal("texts in memory, text 102: a text is str or bytes, not int"):
        bpe.train(texts=texts, vocab_size=257)
    with note("text 104: .* not dict"), note("since they are null: 2 of texts in memory"):
        training = bpe.train(texts=texts, vocab_size=257, skip_bad_lines=True)
    assert training.counted.words.to_counts() == {b"ab": 102} and training.counted.n_bad_lines == 2


def test_urls_are_read_as_files_are(tmp_path, tokenizer):
    import fsspec
    from pyarrow import parquet

    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one two\n" * 9999))
    (tmp_path / "b.jsonl").write_text('{"text": "one two"}\n' * 99)
    table = sys.modules["pyarrow"].table({"text": ["one", "two"] * 9})
    parquet.write_table(table, tmp_path / "c.parquet", row_group_size=4)
    words = bpe.count_files(tmp_path / "b.jsonl", tmp_path / "w.npz").words
    fsspec.filesystem("memory").put(f"{tmp_path}/*", "memory://corpus/")
    assert bpe.train("memory://corpus/*.npz", 258).counted.words.to_counts() == words.to_counts()
    (tmp_path / "w.npz").unlink()
    fsspec.filesystem("memory").rm("memory://corpus/w.npz")
    fsspec.filesystem("memory").pipe("memory://corpus/deep/a.txt", b"deep")
    for name in ("*", "a.txt.gz", "*.jsonl", "?.parquet*"):
        expected = counted([tmp_path / name], block_bytes=1000)
        assert counted([f"memory://corpus/{name}"], block_bytes=1000) == expected
    chained = "simplecache::memory://corpus/b.jsonl"
    assert counted([chained]) == counted([tmp_path / "b.jsonl"])
    [url] = bpe.find_files(["simplecache::memory://corpus/b.*"])
    assert url.startswith("simplecache::memory:")
    out = tmp_path / "o.npy"
    encoded = bpe.encode_files(tokenizer, "memory://corpus/*.gz", out)
    assert encoded.bytes == 8 * 9999 and tokenizer.decode(np.load(out)) == "one two\n" * 9999
    for url, message in [
        ("memory://corpus/none", "^memory://corpus/none: cannot be read: FileNotFoundError"),
        ("memory://corpus/*.none", r"corpus/\*\.none: no file matches it"),
        ("memory://corpus/deep", r"corpus/deep: no file matches it; in a folder"),
        ("nope://a/b", "nope://a/b: cannot be read: .*not known: nope"),
    ]:
        with refusal(message):
            bpe.count(url)
    with refusal("memory://o.npy: only text to read may have a URL"):
        bpe.encode_files(tokenizer, tmp_path / "b.jsonl", "memory://o.npy")


class BreakingOff(http.server.BaseHTTPRequestHandler):
    """A server of a file of 3,000,000 bytes, of which it sends no more than `n_sent`."""

    n_sent = 10**7

    def do_GET(self):
        asked = self.headers.get("Range", "bytes=0-2999999").removeprefix("bytes=")
        start, last = map(int, asked.split("-"))
        stop = min(last + 1, 3_000_000)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/3000000")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write((b"word " * 600_000)[start : min(stop, self.n_sent)])

    do_HEAD = do_GET

    def log_message(self, *arguments):
        """Print nothing."""


def test_a_connection_that_breaks_off_is_an_error(tmp_path, tokenizer, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BreakingOff) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a.txt"
        assert bpe.encode_files(tokenizer, url, tmp_path / "o.npy").bytes == 3_000_000
        monkeypatch.setattr(BreakingOff, "n_sent", 1_000_000)
        for call in (bpe.count, lambda url: bpe.encode_files(tokenizer, url, tmp_path / "p.npy")):
            with within(30), refusal(f"{url}: (cannot be read|not a whole text file)"):
                call(url)
        server.shutdown()
    assert sorted(os.listdir(tmp_path)) == ["o.npy", "o.npy.json"]


def test_files_of_all_kinds_are_read_together_each_in_its_own_way(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = sys.modules["pyarrow"].table({"body": ["ab", None, "ab"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"body": "ab"}\n{"body": null}\n'))
    (tmp_path / "c.txt").write_text('ab\n{"body": "ab"}')
    (tmp_path / "d.csv").write_text("id,body\n1,ab\n")
    (tmp_path / "e.c").write_text("ab;\n")
    (tmp_path / "f.json.xz").write_bytes(lzma.compress(b'{"body": "ab"}\n'))
    (tmp_path / "g.dat").write_text('{"body": "ab"}\n')  # its first line has the field
    files = sorted(tmp_path.iterdir())
    with note("left out, since they are null: 1 of .*a.parquet, 1 of .*b.jsonl.gz") as notes:
        words, n_documents = counted(files, text_field="body", pattern=r"\w+")
    assert len(notes) == 1 and words[b"ab"] == 9 and words[b"body"] == 1 and n_documents == 8
    (tmp_path / "h.txt").write_text('{"ab": 1}\nab')  # no field, so it is text
    with note("looks like JSON"):
        assert counted([*files[-1:], tmp_path / "h.txt"], text_field="body")[1] == 2


def test_a_folder_names_the_files_that_it_leaves_out(tmp_path):
    for name in ("a.txt", "b.csv", "c.c", "d.json", "e.csv", "vocab.txt", ".f", "README"):
        (tmp_path / name).write_text("ab")
    with note(r"^5 files left out: \.c \.csv \.json README vocab\.txt; ") as notes:
        assert counted([tmp_path, tmp_path / "b.csv"])[1] == 2
    assert len([n for n in notes if "left out" in str(n.message)]) == 1
    with note("^9 files left out: .*…; "):
        for k in range(9):
            (tmp_path / f"g.{k}").write_text("ab")
        (tmp_path / "a.txt").rename(tmp_path / "h.txt")
        for name in ("b.csv", "c.c", "d.json", "e.csv", "vocab.txt", "README"):
            (tmp_path / name).unlink()
        assert bpe.find_files(tmp_path) == [tmp_path / "h.txt"]


def test_a_folder_names_links_and_pipes_that_it_leaves_out(tmp_path):
    folder = tmp_path / "corpus"
    write_folder(folder, {"a.txt": "ab"})
    (folder / "b.txt").symlink_to("missing.txt")
    (folder / "more").symlink_to(tmp_path)
    os.mkfifo(folder / "c.txt")
    with note("^3 files left out: broken-links linked-folders pipes; "):
        assert bpe.find_files(folder) == [folder / "a.txt"]


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 5\n"
PAGE = b"\n<!DOCTYPE html>\n<html><body>404</body></html>\n"
NO_TEXT = [
    *[(name, LFS_POINTER, "a Git LFS pointer.*git lfs pull") for name in ("a.txt", "a.parquet")],
    *[(name, PAGE, "an HTML page") for name in ("a.parquet", "a.txt.gz", "a.jsonl")],
    ("a.parquet", b"text", r"^[^:]*a\.parquet: not a Parquet file, which begins with PAR1"),
    ("a.parquet", b"", "not a Parquet file"),
    ("a.jsonl", b"text\n" * 9999, "no line at its beginning is a JSON object"),
    ("a.jsonl", b"text", "no line at its beginning is a JSON object"),
    ("a.jsonl", b'{"text": "ab', "no line at its beginning is a JSON object"),
    ("a.json", b'[{"text": "a"},\n {"text": "b"}]', "an array has to become such lines"),
    ("a.csv", b"text,text\na,b\n", "a.csv: several columns have the name 'text'"),
    ("a.csv", b"id,body\na,b\n", "a.csv: no column 'text' .*id, body"),
    ("a.c", b"int a;", "`text_field` is 'text', and no file has fields"),
]


@pytest.mark.parametrize("name, data, problem", NO_TEXT)
def test_a_file_that_is_not_what_its_name_says_is_refused_at_once(tmp_path, name, data, problem):
    (tmp_path / name).write_bytes(data)
    source = bpe.Source([tmp_path / name], text_field="text", skip_bad_lines=True)
    with refusal(problem):
        source.check()
    if name == "a.jsonl":
        (tmp_path / "b").mkdir()
        os.mkfifo(tmp_path / "b" / name)
        with within(60), ThreadPoolExecutor(1) as pool:
            pool.submit((tmp_path / "b" / name).write_bytes, data)
            with refusal(problem):
                counted([tmp_path / "b" / name], skip_bad_lines=True)


def test_lines_of_json_after_bad_ones_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"no json\n" * 9999 + b'{"text": "ab"}')
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "' + b"ab" * 9999 + b'"}')
    (tmp_path / "c.jsonl").write_bytes(b"\n")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b"no json\n" * 999 + b'{"text": "ab"}'))
    with note("skipped in all: 9,999 lines"):
        assert counted(tmp_path, block_bytes=3000, skip_bad_lines=True)[1] == 3


TABLES = [
    ("1,one\n2,a, b\n3,two\n", "row 2: line 3 of the file has 3 columns, the header 2 columns"),
    ("1,one\n2\n\n3,two\n", "row 2: line 3 of the file has 1 column, the header 2 columns"),
    ('1,one\n3,two\n4,"three\n5,four\n', "row 3: line 4 of the file opens a quote that is never"),
]


@pytest.mark.parametrize("rows, problem", TABLES)
def test_a_row_that_is_not_whole_is_named(tmp_path, rows, problem):
    (tmp_path / "a.csv").write_text("id,text\n" + rows)
    with refusal(f"a.csv, {problem}"):
        counted([tmp_path / "a.csv"], text_field="text")
    with note(f"skipped: .*a.csv, {problem}"):
        skipped = counted([tmp_path / "a.csv"], text_field="text", skip_bad_lines=True)
    assert skipped == ({b"one": 1, b"two": 1}, 2)


@pytest.mark.parametrize("pack", [lzma.compress, bz2.compress])
def test_packed_streams_are_read_to_the_end_or_refused(tmp_path, pack):
    path = tmp_path / "a.txt"
    path.write_bytes(pack(b"ab ") + bytes(8) + pack(b"ab " * 10**6) + bytes(4))
    assert counted([path], pattern=r"\w+")[0][b"ab"] == 10**6 + 1
    damaged = bytearray(pack(b"cd " * 999))
    damaged[20:30] = bytes(10)
    for end in (damaged, b"more", pack(b"cd")[:-5]):
        path.write_bytes(pack(b"ab ") + end)
        with refusal("a.txt: not a whole (xz|bzip2) file"):
            counted([path])


class ZstandardObject:
    """A stream of the package zstandard, as far as it is used: of a byte for its size, and text."""

    eof = False
    unused_data = b""

    def decompress(self, data):
        n = 5 + data[4]
        self.eof = True
        self.unused_data = data[n:]
        return data[5:n]


def test_zstandard_is_read_by_either_package(tmp_path, monkeypatch):
    asked = []

    def decompressor(**options):
        asked.append(options)
        return SimpleNamespace(decompressobj=ZstandardObject)

    library = SimpleNamespace(ZstdDecompressor=decompressor)
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "zstandard", library)
    (tmp_path / "a.txt").write_bytes(b"\x28\xb5\x2f\xfd\3one" + b"\x28\xb5\x2f\xfd\4 two")
    assert counted([tmp_path / "a.txt"]) == ({b"one": 1, b" two": 1}, 1)
    assert asked[0] == {"max_window_size": 2**31}


def test_archives_are_read_by_chained_urls(tmp_path):
    pytest.importorskip("fsspec")
    for name, text in [("a.jsonl", '{"text": "one two"}\n'), ("b.txt", "three")]:
        (tmp_path / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        for name in ("a.jsonl", "b.txt"):
            archive.write(tmp_path / name, name)
    with tarfile.open(tmp_path / "z.tar", "w") as archive:
        for name in ("a.jsonl", "b.txt"):
            archive.add(tmp_path / name, name)
    for kind in ("zip", "tar"):
        container = f"file://{tmp_path}/z.{kind}"
        assert counted([f"{kind}://a.jsonl::{container}"])[0] == {b"one": 1, b" two": 1}
        assert counted([f"{kind}://*::{container}"]) == ({b"one": 1, b" two": 1, b"three": 1}, 2)


def test_the_end_of_a_url_is_no_part_of_the_name(monkeypatch):
    for url in ("https://x.org/a.jsonl.gz?download=true", "zip://a.jsonl::https://x.org/b.zip?c#d"):
        assert bpe._suffix(url) == ".jsonl"
    assert bpe._suffix("simplecache::s3://x/a.b/c.JSONL#e") == ".jsonl"


def test_models_and_hidden_files_in_a_folder_are_no_text(trained, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "deep").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "hidden.txt").write_text("more")
    trained.save(tmp_path)
    bpe.encode_files(trained.tokenizer, tmp_path, tmp_path / "o.bin", workers=1)
    assert bpe.find_files(tmp_path) == [tmp_path / "a.txt"]
    (tmp_path / "a.txt").unlink()
    with refusal("no text in this folder"):
        bpe.find_files(tmp_path)
    folders = {str(tmp_path): os.scandir}  # no other one can be read
    monkeypatch.setattr(os, "scandir", lambda path: folders.get(str(path), open)(path))
    with pytest.raises(OSError, match="deep"):
        bpe.find_files(tmp_path)


# ─── Words ────────────────────────────────────────────────────────────────────────────────────────


def test_words_are_the_counts():
    words = bpe.Words.from_counts({b"ab": 2, b"": 5, b"c": 0, b"\xff": 2**33})
    assert words.symbols.tolist() == [97, 98, 255] and words.symbols.dtype == np.int32
    assert words.offsets.tolist() == [0, 2, 3] and words.counts.tolist() == [2, 2**33]
    assert words.to_counts() == {b"ab": 2, b"\xff": 2**33} and list(words.alphabet) == BYTES
    symbols = np.frombuffer(b"ababab", np.uint8).astype(np.int32)
    thrice = bpe.Words(symbols, np.array([0, 2, 4, 6]), np.array([1, 2, 3]))
    assert bpe.learn(thrice, 257).counts.tolist() == [6]


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
    source = bpe.Source([bpe.TextStream(parts)], "gpt2", block_bytes=1)
    counted = bpe.count(source, bpe.Engine(1), max_words=max_words)
    words = Counter()
    exact = Counter()
    dropped = Counter()
    error = 0
    for part in parts:
        exact.update(naive_split(bpe.PATTERNS["gpt2"], part.encode()))
        words.update(naive_split(bpe.PATTERNS["gpt2"], part.encode()))
        if len(words) > max_words:
            least = sorted(words.values(), reverse=True)[max(max_words // 2, 1)]
            rare = Counter({word: n for word, n in words.items() if n <= least})
            words -= rare
            dropped += rare
            error += least
    assert counted.words.to_counts() == words
    assert counted.n_dropped == dropped.total()
    assert counted.n_dropped_bytes == sum(n * len(word) for word, n in dropped.items())
    assert counted.max_error == error
    assert all(words[word] <= n <= words[word] + error for word, n in exact.items())
    by_two = bpe.count(source, bpe.Engine(2), max_words=max_words)
    assert by_two._replace(words=counted.words) == counted


def test_reports_tell_of_dropped_words(library, tmp_path):
    few = bpe.train(library[:30], 300, max_words=1000)
    assert few.counted.n_dropped and f"{few.counted.n_dropped:,} " in str(few.summary())
    bpe.count_files(library[:30], tmp_path / "few.npz", max_words=1000)
    assert few.counted.described == bpe.load_counts(tmp_path / "few.npz")[0].described


@examples(60)
@given(
    text=text_parts | pattern_texts.map(str.encode),
    special=special_sets,
    steps=st.sampled_from(DROPPING + SPACED),
    size=st.integers(5, 100),
)
@example(b"ab ab\n c" * 9, [], DROPPING[2], 5)
def test_words_that_steps_change_are_counted(tmp_path_factory, text, special, steps, size):
    """Blocks and chunks have a few bytes."""
    assume(bpe._recognize(text) is None)
    if steps in SPACED:  # a text between special tokens begins in another way
        special = []
    path = tmp_path_factory.getbasetemp() / "dropped.txt"
    path.write_bytes(text)
    source = bpe.Pattern(steps).source
    assert counted([path], special, steps, size, 1) == naive_count(text, source, special)
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], special, pattern=steps)
    ids = []
    for part in naive_parts_of_bytes(text, special):
        if part.decode(errors="replace") in special:
            ids.append(tokenizer.special_tokens[part.decode()])
        else:
            ids += b"".join(naive_split(source, part))
    assert tokenizer.encode(text) == ids == tokenizer.encode(text)
    chunks = (text[k : k + size] for k in range(0, len(text), size))
    assert list(tokenizer.encode_iterable(chunks)) == ids


metaspaces = st.sampled_from([bpe.Metaspace("▁", "never"), bpe.Metaspace("_"), bpe.Metaspace("▁")])


@given(
    counts=st.dictionaries(hostile_bytes | texts.map(str.encode), st.integers(0, 9), max_size=8),
    coverage=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    step=st.none() | metaspaces,
)
def test_words_of_characters_are_what_python_decodes(counts, coverage, step):
    spaced = {word: naive_metaspace(step, word, False) if step else word for word in counts}
    decoded = [(as_text(spaced[word]), n) for word, n in counts.items()]
    totals = tally((char, n) for text, n in decoded for char in regex.findall(r"\P{Cs}", text))
    before = 0
    frequent = {step.replacement} if step else set()
    for letter in sorted(+totals, key=lambda letter: (-totals[letter], letter)):
        if before < coverage * totals.total() or regex.match(r"[\x00-\x7f\s]", letter):
            frequent.add(letter)
        before += totals[letter]
    expected = Counter()
    for text, n in decoded:
        for is_kept, letters in itertools.groupby(text, frequent.__contains__):
            if is_kept and n:
                expected["".join(letters).encode()] += n
    words = bpe.Words.from_counts(counts).as_characters(step, coverage=coverage)
    assert words.alphabet == [letter.encode() for letter in sorted(frequent)]
    assert tally(zip(words.texts, words.counts.tolist(), strict=True)) == expected


def test_the_hash_and_the_file_of_words_are_of_each_with_its_count(tmp_path):
    counts = {b"a": 1, b"b": 2, b"ab": 3, b"\0a": 1, b"\0": 3, b"\0\0a": 1}
    counts[b"a long word" * 2] = 2**40
    words = bpe.Words.from_counts(counts)
    again = bpe.Words.from_counts(dict(reversed(counts.items())))
    bpe.save_counts(tmp_path / "a.npz", bpe.CorpusCounts(words, 1, 9), {})
    bpe.save_counts(tmp_path / "b.npz", bpe.CorpusCounts(again, 1, 9), {})
    assert again.digest == words.digest
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    for other in ({b"a": 2, b"b": 1}, {b"ab": 4}, {b"c": 1}):
        assert bpe.Words.from_counts(counts | other).digest != words.digest
    few, other = (bpe.Words.from_counts({word: 2}).as_characters() for word in (b"ab", b"cd"))
    assert few.digest != other.digest and few._replace(alphabet=other.alphabet) != few.digest


@given(word_counts, st.sampled_from([0, 1, 3, 0.5, 0.3, 2.5]))
@example({b"ab": 2**60 + 1}, 3)
def test_counts_times_a_weight_are_rounded_up_or_down(counts, weight):
    words = bpe.Words.from_counts(counts)
    weighted = words.weighted(weight).to_counts()
    assert weighted.keys() <= counts.keys() and 0 not in weighted.values()
    for word, n in words.to_counts().items():
        assert math.floor(n * weight) <= weighted.get(word, 0) <= math.ceil(n * weight)


@pytest.mark.parametrize("weight", [0.3, 1.4, 2.7])
def test_words_that_occur_once_have_their_weight_together(weight):
    words = bpe.Words.from_counts(dict.fromkeys(map(str, range(10_000)), 1))
    n = words.weighted(np.float64(weight)).counts.sum()
    assert n == pytest.approx(10_000 * weight, rel=0.05)


# Texts of words that are rounded to 0, or dropped, with a character that no other word has.
RARE_TEXTS = [b"ab " * 99 + b"\xc3\xa9t\xc3\xa9 ", b"cd " * 9 + "中文 naïve ".encode()]


@pytest.mark.parametrize("family", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("options", [{"weights": [0.05, 0.05]}, {"max_words": 2}, {"balance": 0.5}])
def test_an_alphabet_is_that_of_the_whole_text(tmp_path, family, options):
    paths = tmp_path / "a.txt", tmp_path / "b.txt"
    for path, text in zip(paths, RARE_TEXTS, strict=True):
        path.write_bytes(text)
    letters = {"model": family, "alphabet": "characters", "pattern": "gpt2", "coverage": 1}
    training = bpe.train(paths, 60, workers=1, **letters, **options)
    assert {"é", "中", "文", "ï", "v"} <= {
        token.decode() for token in training.tokenizer.vocab.values()
    }
    options = {"coverage": 0.9} | options
    few = bpe.train(paths, 60, workers=1, **letters | options).tokenizer
    assert "文".encode() not in few.vocab.values()


def test_an_alphabet_does_not_depend_on_dropped_words(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"".join(RARE_TEXTS))
    whole = bpe.count(tmp_path).words.as_characters().alphabet
    source = bpe.Source(tmp_path, block_bytes=5)
    counted = bpe.count(source, max_words=2)
    assert len(counted.words.counts) < 3
    assert counted.words.as_characters(None, counted.other_characters).alphabet == whole
    bpe.count_files(tmp_path, tmp_path / "w.npz", max_words=2)
    assert bpe.load_counts(tmp_path / "w.npz")[0].other_characters


@pytest.mark.filterwarnings("ignore:the text gives", "ignore:training")
@pytest.mark.parametrize("options", [{"weights": [1, 0.3]}, {"max_words": 3}], ids=str)
def test_a_wordpiece_knows_the_letters_of_dropped_words_in_both_forms(options, tmp_path):
    paths = tmp_path / "a.txt", tmp_path / "b.txt"
    paths[0].write_text("low low lower xa xa xa\n" * 5)
    paths[1].write_text("laxe\n")
    given = {"model": "wordpiece", "coverage": 1, "special_tokens": ["[UNK]"], "workers": 1}
    ours = bpe.train(paths, 60, **given, **options).tokenizer
    assert b"".join(map(ours.id_to_token, ours.encode("laxe"))).replace(b"##", b"") == b"laxe"


@pytest.mark.filterwarnings("ignore:the text gives", "ignore:training")
def test_a_wordpiece_that_goes_on_gets_the_missing_forms_of_its_letters():
    given = {"coverage": 1, "special_tokens": ["[UNK]"], "workers": 1}
    first = bpe.train(texts=["xa la el e " * 5], vocab_size=30, model="wordpiece", **given)
    assert first.tokenizer.token_to_id("##x") is None
    more = bpe.train(texts=["laxe laxe la"], vocab_size=40, from_=first.tokenizer, workers=1)
    ours = more.tokenizer
    assert ours.token_to_id("##x") and ours.token_to_id("[UNK]") not in ours.encode("laxe axe")


def test_figures_are_those_of_the_text_and_weighted_ones_say_so(tmp_path):
    paths = tmp_path / "a.txt", tmp_path / "b.txt"
    paths[0].write_text("ab " * 800)
    paths[1].write_text("cd " * 100)
    training = bpe.train(paths, 258, weights=[3, 0.5], workers=1)
    rows = {name.split(",")[0]: (name, value) for name, value in training.summary().rows}
    assert rows["read"] == ("read", "2,700 bytes in 2 documents")
    assert [name for name, _ in rows.values() if "weighted" in name] == [
        "pretokens, weighted",
        "bytes/token, weighted",
        "lost, weighted",
    ]
    assert rows["pretokens"][1].startswith("2,45") and training.lost == 0
    plain = bpe.train(paths, 258, workers=1)
    assert not any("weighted" in name for name, _ in plain.summary().rows)


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, 1e300, 2**63])
def test_a_weight_that_64_bits_cannot_hold_is_refused(weight):
    with refusal(rf"`?weight`? (is )?{re.escape(repr(weight))}.* (below 0 or too large|a number)"):
        bpe.Words.from_counts({b"ab": 3}).weighted(weight)


# Each family, and the unknown token that its words must not have.
SERVED = [({"model": "bpe"}, None), ({"model": "unigram", "pattern": "gpt2"}, "<unk>")]
SERVED += [({"model": "wordpiece", "pattern": "gpt2"}, "[UNK]"), ({"model": "longest"}, None)]
SERVED += [({"alphabet": "characters", "byte_fallback": True}, "<0x0A>")]


@pytest.mark.parametrize("family, unknown", SERVED)
def test_a_words_file_serves_a_family_unless_its_unknown_token_is_in_it(tmp_path, family, unknown):
    files = tmp_path / "a.txt", tmp_path / "w.npz"
    options = {"special_tokens": [END], "workers": 1}
    files[0].write_text(f"low lower lowest <low> {END} naïve <0x0" * 9)
    bpe.count_files(*files, **options)
    of_text, of_words = (bpe.train(file, 300, **options, **family) for file in files)
    assert of_words.tokenizer.to_str() == of_text.tokenizer.to_str()
    assert of_words.record == of_text.record
    for name in ("<unk>", "[UNK]", "<0x0A>"):
        files[0].write_text(f"low lower {name} lowest" * 9)
        bpe.count_files(*files, **options)
        if name == unknown:
            with refusal("was counted with the special_tokens"):
                bpe.train(files[1], 300, **options, **family)
        else:
            assert bpe.train(files[1], 300, **options, **family).tokenizer.encode(name)


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────


def history(learned):
    """Pairs, counts, numbers of tokens, and symbols, as `naive_learn` returns them."""
    arrays = learned.pairs, learned.counts, learned.n_tokens
    return *(array.tolist() for array in arrays), learned.tokens


# Scores that rise or fall, are negative, or need the counts of both symbols.
SCORES = [
    "count",
    "likelihood",
    lambda count, size: count * size,
    lambda count, size: count - 3,
    lambda count, size: min(count, 3),
    lambda count, left, right, size: float((count * 7 + left * 3 + right * 5) % 11) - 2.0,
    lambda count, left, right, size, n_tokens: float((count * 5 + left + size * n_tokens) % 7) - 1,
    lambda count, size, weight=3: count * size**weight,
]
some_options = {"score": st.just("count") | st.sampled_from(SCORES), "tie_break": tie_breaks}
some_frequency = {"min_frequency": st.integers(0, 4)}
some_options |= {"longest_token": st.just(1 << 16) | st.integers(1, 9)}


@examples(60)
@given(word_counts, st.integers(0, 40), st.fixed_dictionaries(some_options | some_frequency))
def test_merges_are_those_of_the_oracle(counts, extra, options):
    learned = bpe.learn(bpe.Words.from_counts(counts), 256 + extra, **options)
    assert history(learned) == naive_learn(counts, 256 + extra, **options)
    assert learned.tokens == [*BYTES, *map(b"".join, learned.merges)]


# The sums of a Unigram over these are rounded in another way if they are parted otherwise.
ROUNDED_WORDS = [b"aaaaa", b"aaaaaaaaaaaa", b"aaa", b"bbab", b"b", b"\0\0", b"acg", b"\xff", b""]
ROUNDED_WORDS += [b"afehadadhea"]


@given(counts=word_counts, rare=st.dictionaries(small_words, st.just(0)))
@example({b"ab": 2}, {b"abc": 0, b"d": 0})
@example({b"bbba": 3}, dict.fromkeys(ROUNDED_WORDS, 0))
def test_empty_words_and_those_that_occur_0_times_change_no_vocabulary(counts, rare):
    words = bpe.Words.from_counts(dict.fromkeys(rare | counts, 1))
    drawn = words._replace(counts=np.array([counts.get(word, 0) for word in words.texts]))
    for learn in (bpe.learn, bpe.learn_wordpiece, bpe.learn_unigram):
        assert learn(drawn, 300).tokens == learn(bpe.Words.from_counts(counts), 300).tokens
    offsets = np.append(words.offsets, words.offsets[-1])
    more = words._replace(offsets=offsets, counts=np.append(words.counts, 4))
    for learn in (bpe.learn, bpe.learn_wordpiece, bpe.learn_unigram):
        assert learn(more, 600).tokens == learn(words, 600).tokens


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
@given(word_counts, st.fixed_dictionaries(some_options), st.randoms(use_true_random=False))
def test_a_driven_learner_is_the_naive_one(counts, options, source):
    learner = bpe.Learner(bpe.Words.from_counts(counts), 300, **options)
    naive = NaiveLearner(counts, **options)
    for _ in range(12):
        pairs = naive.pairs()
        assert learner.n_symbols == len(naive.tokens)
        if source.random() < 0.6:  # merges and splits need not ask for the best pair
            assert learner.best() == naive.best()
        rows = [(*pair, *row) for pair, row in sorted(naive.scores().items())]
        assert [*zip(*(column.tolist() for column in learner.pairs()), strict=True)] == rows
        assert learner.n_tokens == naive.n_tokens()
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


def test_driven_merges_after_splits_count_past_32_bits():
    learner = bpe.Learner(bpe.Words.from_counts({b"abab": 2**40, b"b": 1}), 300)
    for k in range(40):  # the occurrences of each new pair need room
        assert learner.merge(97, 98) == 256 + k and learner.n_tokens == 2**41 + 1
        assert learner.split(256 + k, [97, 98]) == learner.best().count == 2**41


LEARNER_REFUSALS = [("merge", (99, 100), "forbidden"), ("merge_best", (999,), "room")]
LEARNER_REFUSALS += [("merge", (97, 999), "no symbol 999"), ("forbid", (-1, 97), "no symbol -1")]
LEARNER_REFUSALS += [
    ("token", (1.5,), "`symbol` is 1.5: it must be a whole number"),
    ("split", (256, [97, 99]), "cannot be"),
]


def test_a_refused_call_leaves_a_learner_as_it_was():
    learner = bpe.Learner(bpe.Words.from_counts({b"abcd": 3, b"a" * 99_999: 1}), 273)
    learner.merge(97, 98)
    learner.forbid(99, 100)
    before = repr((learner.best(), learner.learned(), learner.words()))
    for name, arguments, message in LEARNER_REFUSALS:
        with refusal(message):
            getattr(learner, name)(*arguments)
        assert before == repr((learner.best(), learner.learned(), learner.words()))
    learner.merge_best(273)
    with refusal("room"):
        learner.merge(97, 100)


def test_a_tokenizer_of_merges_cuts_words_as_the_learner_did(tmp_path):
    counts = {b"low": 5, b" lower": 2, b" newest": 6}
    learner = bpe.Learner(bpe.Words.from_counts(counts), 270)
    learner.merge(101, 119)
    learner.merge_best(265)
    bpe.Tokenizer.from_merges(learner, [END], pattern="none").save(tmp_path)
    tokenizer = bpe.Tokenizer.load(tmp_path)
    assert tokenizer.merges == learner.learned().merges
    assert learner.n_tokens == sum(len(tokenizer.encode(word)) * counts[word] for word in counts)
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


def test_two_ways_to_one_token_make_one_token():
    learner = bpe.Learner(bpe.Words.from_counts({b"abcd": 3}), 300)
    for pair in (b"b", b"c"), (b"a", b"bc"), (b"a", b"b"), (b"ab", b"c"), (b"abc", b"d"):
        symbols = {learner.token(k): k for k in range(learner.n_symbols)}
        learner.merge(*map(symbols.get, pair))
    of_learner = bpe.Tokenizer.from_merges(learner, pattern="none")
    of_list = bpe.Tokenizer.from_merges(learner.learned().merges, pattern="none")
    assert of_learner.vocab == of_list.vocab and len(of_learner) == 256 + 4
    theirs = of_learner.to_huggingface()
    for text in ("abcd", "abxbcxabc", "abcdabxbcx"):
        assert of_learner.encode(text) == of_list.encode(text) == theirs.encode(text).ids


# Characters with or without a mark: no symbol has the bytes of others together.
characters = st.lists(st.sampled_from("abcé中🙂ſ"), min_size=2, max_size=7, unique=True)
numbered = [f"#{k:03d}".encode() for k in range(900)]


@given(data=st.data(), characters=characters, tie_break=tie_breaks)
def test_merges_over_other_alphabets_are_those_of_the_oracle(data, characters, tie_break):
    marked = [mark + char.encode() for char in characters for mark in (b"", b"_")]
    alphabet = [*data.draw(st.permutations(marked)), *numbered[:300]]  # more symbols than bytes
    if data.draw(st.booleans()):  # two letters of the same bytes, of which the first goes first
        alphabet[1] = alphabet[0]
    n = len(alphabet)
    symbol = st.integers(0, 5) | st.integers(n - 5, n - 1)
    drawn_words = st.lists(symbol, min_size=1, max_size=12).map(tuple)
    counts = data.draw(st.dictionaries(drawn_words, st.integers(1, 5), min_size=1))
    learned = bpe.learn(words_of(counts, alphabet), n + 20, tie_break=tie_break)
    assert history(learned) == naive_learn(counts, n + 20, alphabet, tie_break=tie_break)


def test_more_pairs_than_their_table_holds_at_first_are_those_of_the_oracle():
    first, second = np.random.default_rng(0).integers(0, 900, (2, 36_000)).tolist()
    assert len({*pairwise(first), *pairwise(second)}) > 1 << 16
    counts = {tuple(first): 1, tuple(second): 2}
    learned = bpe.learn(words_of(counts, numbered), 903)
    assert history(learned) == naive_learn(counts, 903, numbered)


SOURCE = random.Random(2)
TIED = {b"abcdefghijkl" + end: 1 for end in (b"x", b"y", b"\0", b"")} | {b"abcdefghijk": 3}
# Counts of words in which something is large, and how many symbols are learnt of them.
LARGE_COUNTS = {
    "ties of long tokens": (TIED, 290),
    "counts past 32 bits": ({b"ab": 2**31, b"abc": 2**33, b"xy": 2**40, b"z" * 9: 1}, 262),
    "long words": ({bytes(SOURCE.choices(b"abcd"[:n], k=300 * n)): n for n in (1, 2, 4)}, 400),
    "arrays that grow": ({SOURCE.randbytes(200): 1 for _ in range(15)} | {b"a" * 20_000: 1}, 350),
}


@pytest.mark.parametrize("tie_break", ["bytes", "ids"])
@pytest.mark.parametrize("name", LARGE_COUNTS)
def test_merges_of_large_inputs_are_those_of_the_oracle(name, tie_break):
    counts, n_symbols = LARGE_COUNTS[name]
    learned = bpe.learn(bpe.Words.from_counts(counts), n_symbols, tie_break=tie_break)
    assert history(learned) == naive_learn(counts, n_symbols, tie_break=tie_break)


def test_merges_and_ids_are_those_of_rustbpe(library):
    texts = [path.read_text("utf-8", "replace") for path in library[:20]]
    theirs = rustbpe.Tokenizer()
    theirs.train_from_iterator(iter(texts), 900, pattern=bpe.PATTERNS["nanochat"])
    vocab = {id: bytes(token) for token, id in theirs.get_mergeable_ranks()}
    start = bpe.Tokenizer(BYTE_VOCAB, [], pattern="nanochat")
    ours = bpe.train(texts=texts, vocab_size=900, from_=start, tie_break="ids").tokenizer
    assert ours.vocab == vocab
    training = bpe.train(texts=texts, vocab_size=900, pattern="nanochat", tie_break="symbols")
    assert dict(enumerate(training.learned.tokens)) == vocab


def test_no_token_is_longer_than_65536_symbols():
    learned = bpe.learn(bpe.Words.from_counts({b"a" * 200_000: 1, b"b" * 70_000: 2}), 999)
    assert sorted(map(len, learned.tokens))[-3:] == [1 << 15, 1 << 16, 1 << 16]
    word = b"a" * (1 << 15) + b"b" * (1 << 15)
    learner = bpe.Learner(bpe.Words.from_counts({word: 1}), 300)
    sides = [97, 98]
    for _ in range(15):
        sides = [learner.merge(side, side) for side in sides]
    assert learner.split(learner.merge(*sides), sides) == learner.best().count == 1


def test_learning_depends_on_the_counts_alone_and_leaves_them_alone():
    source = random.Random(5)
    counts = {bytes(source.choices(b"abcde", k=2 + i % 9)): i % 7 + 1 for i in range(50)}
    words = bpe.Words.from_counts(counts)
    before = [np.array(array) for array in words]
    first = bpe.learn(words, 290)
    assert all(map(np.array_equal, words, before)) and first.merges
    other = bpe.Words.from_counts(dict(reversed(counts.items())))
    for again in (words, other):
        assert all(map(np.array_equal, first, bpe.learn(again, 290)))
    pairs = bpe.Learner(words, 300).pairs(), bpe.Learner(other, 300).pairs()
    assert all(map(np.array_equal, *pairs))
    assert bpe.learn(words, 300, min_frequency=10**30).merges == []


def test_merges_and_ids_are_those_of_hugging_face(library):
    special = [END, "<|im_start|>"]
    texts = [path.read_bytes().decode() for path in library[::12]]
    options = {"vocab_size": 4000, "special_tokens": special}
    options["initial_alphabet"] = ByteLevel.alphabet()
    theirs = trained_by_hugging_face("BPE", texts, ByteLevel(add_prefix_space=False), **options)
    vocab, merges = bpe.train_bpe(library[::12], 4000, special, tie_break="ids")
    model = json.loads(theirs.to_str())["model"]
    assert [[in_chars(left), in_chars(right)] for left, right in merges] == model["merges"]
    names = {token.decode() if i < 2 else in_chars(token): i for i, token in vocab.items()}
    assert names == model["vocab"]


def test_merges_over_characters_are_those_of_hugging_face(library):
    texts = [path.read_bytes().decode() for path in library[::24]]
    texts.append("Füße, 中文字中文, ça va? naïveté 🙂🙂" * 3)
    options = {"vocab_size": 2000, "special_tokens": ["<unk>", "</s>"]}
    theirs = trained_by_hugging_face("BPE", texts, P.WhitespaceSplit(), **options)
    words = bpe.Words.from_counts(Counter(word.encode() for text in texts for word in text.split()))
    learned = bpe.learn(words.as_characters(), 1998, tie_break="ids")
    vocab = bpe.build_vocabulary(learned, {"first": ["<unk>", "</s>"]})
    model = json.loads(theirs.to_str())["model"]
    assert [[left.decode(), right.decode()] for left, right in learned.merges] == model["merges"]
    assert {token.decode(): id for id, token in vocab.items()} == model["vocab"]


few_characters = st.text("abé中", max_size=12).map(str.encode)


@examples(60)
@given(
    counts=st.dictionaries(small_words | few_characters, st.integers(1, 5), min_size=1),
    tie_break=tie_breaks.filter(lambda rule: rule != "symbols"),  # of other words
    place=st.sampled_from(bpe.SPECIAL_TOKENS_AT),
    alphabet=st.sampled_from(["bytes", "characters"]),
    first=st.integers(0, 20),
    ranks=st.booleans(),
)
def test_going_on_is_training_in_one_go(counts, tie_break, place, alphabet, first, ranks):
    counts = {word.decode(errors="ignore").encode() or b"a": n for word, n in counts.items()}
    words = given = bpe.Words.from_counts(counts)
    if alphabet == "characters":
        words = given.as_characters()
    n = len(words.alphabet) + 40
    whole = bpe.learn(words, n, tie_break=tie_break)
    start = bpe.learn(words, n - 40 + first, tie_break=tie_break)
    vocab = bpe.build_vocabulary(start, {place: ["<s>", END]})
    merges = None if ranks else start.merges
    model = bpe.Model(vocab, merges, ["<s>", END], "none", alphabet=alphabet)
    model = dataclasses.replace(model, merges=bpe._as_merges(model)[0])
    learned = bpe.learn(bpe.words_of_model(model, given), n, tie_break=tie_break)
    assert learned.merges == whole.merges[first:]
    assert learned.n_tokens.tolist() == whole.n_tokens[len(start.merges) :].tolist()
    new = dict(enumerate(learned.tokens[len(learned.alphabet) :], len(vocab)))
    expected = dataclasses.replace(model, vocab=vocab | new, merges=whole.merges)
    assert bpe.extend_model(model, learned) == expected


@examples(50)
@given(
    text=st.lists(st.sampled_from(["the", "of", "12", "3", "a", ", "]), min_size=2, max_size=40),
    extra=st.integers(0, 15),
    longest=st.just(99) | st.integers(1, 9),
)
def test_going_on_reaches_across_the_ends_of_old_pretokens(text, extra, longest):
    text = " ".join(text).encode()
    old = bpe.learn(bpe.Words.from_counts(Counter(bpe.Pattern("gpt2").split(text))), 262)
    vocab = bpe.build_vocabulary(old, {})
    model = bpe.Model(vocab, old.merges, pattern="none")
    counts = Counter([text[: len(text) // 2], text[len(text) // 2 :], text])
    tokens = [vocab[id] for id in sorted(vocab)]
    size = len(tokens) + extra
    words = bpe.words_of_model(model, bpe.Words.from_counts(counts))
    options = {"tie_break": "ids", "longest_token": longest}
    learned = bpe.learn(words, size, **options)
    by_ids = {}
    for word, n in counts.items():
        by_ids[tuple(map(tokens.index, naive_encode(word, old.merges)))] = n
    assert history(learned) == naive_learn(by_ids, size, tokens, **options)
    extended = bpe.Tokenizer.from_model(bpe.extend_model(model, learned))
    n_ids = sum(len(extended.encode(word)) * count for word, count in counts.items())
    assert n_ids == learned.n_tokens[-1]


def test_units_of_several_letters_become_no_tokenizer():
    units = bpe.Words(np.array([0, 1, 0]), np.array([0, 3]), np.array([5]), [b"W-", b"AH-"])
    model = bpe.Model({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")])
    for words in (units, bpe.words_of_model(model, bpe.Words.from_counts({b"abab": 2}))):
        with refusal(r"no merge makes \['(W-|ab)'\] of the alphabet from its letters"):
            bpe.Tokenizer.from_merges(bpe.learn(words, 9))
    suffixed = units._replace(alphabet=[b"a", b"b</w>"], symbols=np.array([0, 0, 1]))
    fields = {"word_suffix": "</w>", "pattern": "none"}
    ours = bpe.Tokenizer.from_merges(bpe.learn(suffixed, 4), **fields)
    assert [*map(ours.id_to_token, ours.encode("aab"))] == [b"aab</w>"]


def test_letters_that_a_model_lacks_split_words():
    vocab = {0: b"a", 1: b"b", 2: b"?", 3: "é".encode()}
    model = bpe.Model(vocab, [], unk_token="?", alphabet="characters")
    counts = {"abéxb\U0001f642".encode(): 2, b"\xffa?": 1}
    words = bpe.words_of_model(model, bpe.Words.from_counts(counts))
    assert words.to_counts() == {"abé".encode(): 2, b"b": 2, b"a": 1}
    assert bpe.words_of_model(model, words).to_counts() == words.to_counts()
    bytes_only = bpe.words_of_model(bpe.Model({0: b"a"}, []), bpe.Words.from_counts({b"aba": 1}))
    assert bytes_only.symbols.tolist() == [0, 0] and bytes_only.offsets.tolist() == [0, 1, 2]


@given(st.dictionaries(st.binary(max_size=9), st.integers(1, 9), min_size=1), st.integers(1, 5))
def test_substrings_are_those_of_all_words(counts, min_count):
    words = bpe.Words.from_counts(counts)
    expected = Counter()
    for word, n in counts.items():
        for start, stop in itertools.combinations(range(len(word) + 1), 2):
            expected[word[start:stop]] += n * (stop - start <= 4)
    found = words.substrings(longest=4, min_count=min_count)
    texts = []
    for place, size in zip(found.places.tolist(), found.sizes.tolist(), strict=True):
        texts.append(b"".join(BYTES[symbol] for symbol in words.symbols[place : place + size]))
    assert dict(zip(texts, found.counts.tolist(), strict=True)) == {
        text: n for text, n in expected.items() if n >= min_count
    }
    for text, shorter in zip(texts, found.shorter.tolist(), strict=True):
        assert text[:-1] == (texts[shorter] if shorter >= 0 else b"")
    occurrences = Counter()
    for position, number in enumerate(found.longest.tolist()):
        while number >= 0:
            word = np.searchsorted(words.offsets, position, side="right") - 1
            occurrences[texts[number]] += int(words.counts[word])
            number = found.shorter[number]
    assert occurrences == dict(zip(texts, found.counts.tolist(), strict=True))


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 9), min_size=1),
    st.lists(st.integers(0, 10**6), max_size=12),
)
def test_changed_pairs_are_those_with_other_counts(counts, choices):
    learner = bpe.Learner(bpe.Words.from_counts({k.encode(): n for k, n in counts.items()}), 300)
    assert len(learner.changed_pairs().left) == 0

    def all_counts():
        left, right, count, _ = learner.pairs()
        return dict(
            zip(zip(left.tolist(), right.tolist(), strict=True), count.tolist(), strict=True)
        )

    now = all_counts()
    for choice in choices:
        pairs = sorted(now) or [(97, 98)]
        symbol = learner.merge(*pairs[choice % len(pairs)])
        assert learner.symbol(learner.token(symbol)) is not None
        before, now = now, all_counts()
        changed = learner.changed_pairs()
        rows = zip(
            changed.left.tolist(), changed.right.tolist(), changed.count.tolist(), strict=True
        )
        found = {(left, right): n for left, right, n in rows}
        assert before | found == before | {pair: now.get(pair, 0) for pair in found}
        different = {pair for pair in before | now if before.get(pair) != now.get(pair)}
        assert different <= {*found} and now.items() <= (before | found).items()


# ─── Models ───────────────────────────────────────────────────────────────────────────────────────


def test_vocabulary_has_special_tokens_first_then_bytes_then_merges():
    counts = {b"aab": 2, b"ab": 1}
    vocab, merges = bpe.train_bpe(counts=counts, vocab_size=260, special_tokens=["<s>", "</s>"])
    assert list(vocab) == list(range(260)) and vocab[0] == b"<s>" and vocab[1] == b"</s>"
    assert [in_chars(vocab[i]) for i in range(2, 258)] == sorted(map(in_chars, BYTES))
    assert merges == [(b"a", b"b"), (b"a", b"ab")] and [vocab[258], vocab[259]] == [b"ab", b"aab"]
    for at, ids in (("first", [0, 1]), ("after-bytes", [256, 257]), ("last", [258, 259])):
        options = {"special_tokens": ["<s>", "</s>"], "special_tokens_at": at, "workers": 1}
        tokenizer = bpe.train(texts=["aab aab ab"], vocab_size=260, **options).tokenizer
        assert list(tokenizer.special_tokens.values()) == ids


def test_the_fingerprint_is_of_all_that_decides_about_ids():
    flags = {"<a>": bpe.AddedToken(lstrip=True), "<b>": bpe.AddedToken(rstrip=True)}
    changes = [{}, {"merges": []}, {"merges": None}, {"special_tokens": ["<b>", "<a>"]}]
    changes += [{"pattern": "cl100k"}, {"pattern": [bpe.Metaspace(" "), "gpt2"]}]
    changes += [{"ignore_merges": True}, {"added_tokens": flags}]
    common = {"merges": [(b"a", b"b")], "special_tokens": ["<a>", "<b>"]}
    vocab = BYTE_VOCAB | {256: b"ab"}
    digests = [bpe.Tokenizer(vocab, **(common | change)).digest for change in changes]
    other_order = dict(reversed(flags.items()))
    assert bpe.Tokenizer(vocab, **common, added_tokens=other_order).digest == digests[-1]
    assert len(set(digests)) == len(changes)


CALL = {"function": {"name": "add", "arguments": {"a": 2}}}
CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
CONVERSATION += [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "5"}]
TURNS = ["system\nBe brief.", "user\n2 + 3?", "assistant\n<tool_call>\n{}\n</tool_call>", "tool\n5"]
TURNS[2] = TURNS[2].format(json.dumps(CALL["function"]))


def test_chatml_writes_conversations():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(bpe.CHATML)
    expected = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in TURNS)
    expected += "<|im_start|>assistant\n"
    assert template.render(messages=CONVERSATION, add_generation_prompt=True) == expected
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
    theirs = tiktoken_encoding(ranks, r"[\s\S]+", special)
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
    names = filter(None, dict.fromkeys(draw(st.permutations([*tokens, "[UNK]"]))))
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
def unigrams_of_hugging_face(draw):
    score_of = draw(score_tables)
    fallback = draw(st.booleans())
    unk = draw(st.sampled_from(["<unk>", None]))
    last = draw(st.sampled_from([0xC0, 0x100]))
    if fallback:
        score_of |= dict.fromkeys([f"<0x{byte:02X}>" for byte in range(last)], -20.0)
    model = unigram_model(score_of, unk_token=unk, byte_fallback=fallback, pattern="none")
    model.scores[0] = 0.0  # their <unk> is found in text
    vocab = [(model.vocab[id].decode(), float(model.scores[id])) for id in model.vocab]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, 0, fallback))
    text = draw(pattern_texts)
    texts = (text, draw(short_words), f"<unk>{text}é<0x41>"[: None if unk else 0])
    expected = [theirs.encode(text).ids for text in texts]
    if not unk:
        expected = [None if 0 in ids else ids for ids in expected]
    return bpe.Tokenizer.from_model(model), [*zip(texts, expected, strict=True)]


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
    memory = next(kind.memory() for kind in bpe.KINDS.values() if kind.segment is segment)
    n = segment(bpe._with_padding(data), 0, len(data), tables, memory, ids, 0)
    n = max(n, bpe.UNCACHED - n)  # ids that depend on the words before
    return ids[:n].tolist() if n >= 0 else n


RANDOM_MODELS = [merges_of_bytes, ranks_of_bytes, merges_of_characters, scores_of_characters]
RANDOM_MODELS += [wordpieces, unigrams_of_hugging_face]


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


@pytest.mark.parametrize("word", ["~", "~ab", "a~b", "ab~", "a~~b" * 40])
def test_a_word_with_a_letter_of_no_token_has_no_ids(word):
    tables = bpe.bpe_tables(bpe.Model({0: b"a", 1: b"b"}, [], alphabet="characters"))
    assert segmented(word.encode(), tables, bpe.segment_bpe) == -1


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
# The mark ends "a▁"; beside "d▁" no letter is alone; without scores, words are looked up whole.
TOGETHER = [([], {}, "ab|▁b|z|z|▁d|▁a"), (["a▁"], {}, "ab▁b|z|z|▁|d|▁a")]
TOGETHER += [([*map(bytes.decode, BYTE_TOKENS)], FALLS_BACK, "ab|▁b|z|z|▁d|▁a")]
TOGETHER += [([], {"fuse_unk": True}, "ab|▁bzz|▁d|▁a"), (["d▁"], {"drops_unknown": True}, None)]
TOGETHER += [([], {"drops_unknown": True}, "ab▁bzz▁|d|▁a"), ([], {"word_suffix": "</w>"}, None)]
TOGETHER += [(["<u>"], {"unk_token": "<u>", "merges": [(b"<u>", b"a")]}, None)]
TOGETHER += [([], {"scores": None}, None)]


@pytest.mark.parametrize("more, fields, words", TOGETHER)
def test_the_exact_pattern_keeps_together_what_may_be_one_token(more, fields, words):
    vocab = dict(enumerate(map(str.encode, ["▁", *"abd", "▁a", "ab", *more])))
    fields = {"merges": None, "scores": np.zeros(len(vocab), np.float32), **fields}
    pattern = bpe.exact_pattern(bpe.Model(vocab, alphabet="characters", **fields))
    if words is None:
        assert pattern == "none"
    else:
        assert "|".join(regex.findall(pattern, "ab▁bzz▁d▁a")) == words


@pytest.mark.parametrize("n, step", [(31, 1), (32, 7281), (33, 1), (2048, 910), (16384, 126)])
def test_a_table_that_is_full_of_merges_has_them_and_no_others(n, step):
    every_pair = [*itertools.product(BYTES, repeat=2)]
    pairs = every_pair[:: 65536 // n][:n]
    tokens = [*BYTES, *map(b"".join, pairs)]
    vocab = {step * k: token for k, token in enumerate(tokens)}
    assert bpe.MAX_ID - step * len(tokens) > 0
    ours = bpe.Tokenizer(vocab, pairs, pattern="none")
    ids = ours.encode_batch(tokens, "none")
    assert ids == [[id] for id in vocab]
    others = [*map(b"".join, {*every_pair}.difference(pairs))]
    assert {*map(len, ours.encode_batch(others, "none"))} == {2}


def test_a_token_may_have_the_last_id():
    last = bpe.MAX_ID - 1
    tokenizer = bpe.Tokenizer({**dict(enumerate(BYTES)), last: b"ab"}, None, pattern="none")
    assert tokenizer.encode("cab") == [99, last]


@examples(25)
@given(data=st.data(), seed=st.integers(0, 20))
def test_a_word_in_parts_has_the_ids_of_the_whole(data, seed):
    source = random.Random(seed)
    tokens, merges = random_tokens_of_bytes(source, 40)
    unit = st.one_of(st.sampled_from(tokens), st.sampled_from([b"aetix", b"\xff\xfe", b"x"]))
    word = b"".join(data.draw(st.lists(unit, max_size=30)))
    word += b"".join(source.choices(tokens[256:], k=99)) * data.draw(st.booleans())
    whole = source.sample(tokens, 3)  # a part that is one of these is not looked up whole
    for more in {}, {"ignore_merges": True}:
        vocab = dict(enumerate([*tokens, *{b"xae", b"aax"}.difference(tokens)]))
        ours = bpe.Tokenizer(vocab, merges, pattern="none", **more)
        for text in (word, word[:15], word[:16], word[:48], word[:49], *whole):
            expected = naive_encode(text, merges)
            if more and text in vocab.values():
                expected = [text]
            assert [vocab[id] for id in ours.encode(text, "none")] == expected


def test_a_special_token_that_merges_make_stays_in_one_part():
    vocab = dict(enumerate([*BYTES, b"qz", b"xqz"]))
    merges = [(b"q", b"z"), (b"x", b"qz")]
    with pytest.warns(UserWarning, match="can be produced"):
        ours = bpe.Tokenizer(vocab, merges, {"qz": 256, "xqz": 257}, pattern="none")
    assert ours.encode("axqz" + "b" * 20 + "qz", "none") == [97, 257, *[98] * 20, 256]


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


def test_tokens_that_cannot_fall_are_named():
    merges = [(b"a", b"b"), (b"ab", b"c")]
    for without, message in [([b"a"], "'a' has no parts"), ([b"xy"], "not in the vocabulary")]:
        with refusal(message):
            bpe.Tokenizer.from_merges(merges, without=without)
    learned = bpe.learn(words_of_characters({"ab": 2, "abc": 1}), 5)
    ours = bpe.Tokenizer.from_merges(learned, without=[b"abc"], pattern="none")
    assert [ours.vocab[id] for id in ours.encode("abcab")] == [b"ab", b"c", b"ab"]


def test_a_cache_may_be_out_of_entries_and_of_room_for_ids_at_once(monkeypatch):
    monkeypatch.setattr(bpe, "MAX_CACHE_ENTRIES", 1 << 15)
    digits = str.maketrans("0123456789", "abcdefghij")
    # 2**13 words of 64 ids fill both
    text = "".join(f" {n:05}".translate(digits) + "x" * 58 for n in range(8200))
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    assert tokenizer.encode(text) == list(text.encode())


@pytest.mark.parametrize("most", [4, 16, 64, 1024])
def test_a_cache_that_grows_and_begins_anew_changes_no_ids(most, monkeypatch):
    """It holds up to 15 bytes and three ids of a word in an entry, or all in other arrays."""
    monkeypatch.setattr(bpe, "CACHE_ENTRIES", 16)
    monkeypatch.setattr(bpe, "MAX_CACHE_ENTRIES", most)
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: b"00"}, [(b"0", b"0")])
    source = random.Random(1)
    for _ in range(60):
        numbers = [int(source.paretovariate(0.2)) % 10**20 for _ in range(100)]
        text = " ".join(f"{n}{'x' * (n % 40 * (n % 9 == 0))}" for n in numbers)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        ids = tokenizer.encode(text)
        assert ids == [
            *chain(*(tokenizer.sample(word, 0) for word in tokenizer.pattern.split(text)))
        ]


@bpe.kernel
def cache_state(workspace):
    """Words, bytes of long words, pooled ids and entries of a cache, and entries of the next."""
    words = workspace.words
    sizes = len(words.entries), len(workspace.larger)
    return words.n_words, words.n_long_bytes, workspace.n_pooled, *sizes


LONG_AND_TWICE = ["b" * 20, "a" * 16] * 2, (2, 36, 21, 64, 256)  # the second is one token
NUMBERS = [f"{n:03}" for n in range(192)]
FULL_POOL = [f"{n:4096}" for n in range(15)]


@compiled
@pytest.mark.parametrize("words, state", [
    LONG_AND_TWICE, (NUMBERS[:31], (31, 0, 0, 64, 256)), (NUMBERS[:32], (32, 0, 0, 256, 0)),
    (NUMBERS, (0, 0, 0, 64, 256)), (FULL_POOL, (0, 0, 0, 64, 256)),
])  # fmt: skip
def test_a_cache_has_a_word_once_and_is_renewed_when_it_is_full(words, state, monkeypatch):
    monkeypatch.setattr(bpe, "CACHE_ENTRIES", 64)
    monkeypatch.setattr(bpe, "MAX_CACHE_ENTRIES", 256)
    merges = [(b"a" * n, b"a" * n) for n in (1, 2, 4, 8)]
    tokenizer = bpe.Tokenizer.from_merges(merges, pattern="none")
    tokenizer.encode_batch(words, threads=1)
    [encoder] = tokenizer._idle
    assert cache_state(encoder.workspace) == state


names_of_few = st.lists(st.text("ab<é", min_size=2, max_size=12), max_size=12, unique=True)


@examples(60)
@given(names_of_few, st.text("ab<é", max_size=80))
@example(["ab<", "ab"], "ab<ab")
def test_special_tokens_are_found_as_regex_finds_them(special, text):
    first = len(special)  # the special tokens have the ids from 0 on
    vocab = {first + number: byte for number, byte in BYTE_VOCAB.items()}
    tokenizer = bpe.Tokenizer(vocab, [], {name: id for id, name in enumerate(special)})
    parts = naive_parts(text, special)
    parts[::2] = [[first + byte for byte in part.encode()] for part in parts[::2]]
    parts[1::2] = [[tokenizer.special_tokens[part]] for part in parts[1::2]]
    expected = [*chain(*parts)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text * 100, special) == tokenizer.encode(text * 100)
    assert list(tokenizer.encode_iterable(bytes([b]) for b in text.encode())) == expected


# Special tokens with flags that overlap each other, white space, letters and the texts around them.
FLAGGED = ["<m>", "<m", "m>", "ab", "<é>", " x", "x ", "__", "中中", "<m><", "\u3000a", "  "]
some_flags = st.builds(bpe.AddedToken, st.just(False), *[st.booleans()] * 4, literal=st.just(False))
flagged = st.dictionaries(st.sampled_from(FLAGGED), some_flags, min_size=1, max_size=6)
flagged_parts = [*"abmx<>é_ \n\t\x1c\x1f\x85\u3000\u200b中1'\u0301🙂"]
flagged_parts += ["<m>", " <m> ", "  ", "中中", "ab"]
flagged_texts = st.lists(st.sampled_from(flagged_parts), max_size=24).map("".join)


@examples(60)
@given(flags=flagged, inputs=st.lists(flagged_texts, min_size=1, max_size=5))
@example({"<m>": bpe.AddedToken(lstrip=True)}, ["<m> <m>", " <m>"])
@example({"  ": STRIPS}, ["    ", "     a  "])
def test_flagged_special_tokens_are_found_as_hugging_face_finds_them(flags, inputs):
    ours = bpe.Tokenizer(BYTE_VOCAB, [], list(flags), added_tokens=flags)
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
    flagged = bpe.Tokenizer(BYTE_VOCAB, [], list(flags), added_tokens=flags)
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
    for threads in (None, 3):
        assert tokenizer.encode_batch(some_texts, threads=threads) == expected
    for size in (16, 4096):
        monkeypatch.setattr(bpe, "MAX_CACHE_ENTRIES", size)
        small = bpe.Tokenizer.from_model(tokenizer.model)
        assert small.encode_batch(some_texts * 2, threads=1) == expected * 2
    for text, ids in zip(some_texts, expected, strict=True):
        chunks = (text[k : k + 999] for k in range(0, len(text), 999))
        assert [*tokenizer.encode_iterable(chunks)] == ids
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


@pytest.mark.parametrize("cut", [ByteLevel(False), P.WhitespaceSplit()])
def test_a_word_of_more_characters_or_bytes_than_allowed_is_unknown(cut):
    vocab = {name: k for k, name in enumerate(["[UNK]", "é", "##é", "Ã", "##Ã", "##©"])}
    options = {"unk_token": "[UNK]", "max_input_chars_per_word": 4}
    model = tokenizers.models.WordPiece(vocab, **options)
    theirs = huggingface_tokenizer(model, pre_tokenizer=cut)
    ours = ours_from(theirs)
    for n in range(1, 6):
        assert ours.encode("é" * n) == theirs.encode("é" * n).ids


def naive_likelihood(counts, n_symbols, **options):
    """The history of merges by likelihood. A symbol is a text, and whether it continues a word."""
    marked = {word: [(char, k > 0) for k, char in enumerate(word.decode())] for word in counts}
    later = {*chain(*marked.values())}
    symbols = sorted(later | {(char, False) for char, _ in later}, key=lambda symbol: symbol[::-1])
    number = {symbol: k for k, symbol in enumerate(symbols)}
    words = {tuple(map(number.get, marked[word])): n for word, n in counts.items()}
    options["score"] = "likelihood"
    alphabet = [char.encode() for char, _ in symbols]
    *merges, tokens = naive_learn(words, n_symbols, alphabet, **options)
    continues = [continues for _, continues in symbols]
    for left, _ in merges[0]:
        continues.append(continues[left])
    return *merges, [b"##" * later + token for later, token in zip(continues, tokens, strict=True)]


few_letters_of_words = st.sampled_from(["a", "ab", "aé", "abc", "abé中🙂", "abcdefghij"])
some_words = few_letters_of_words.map(lambda letters: st.text(letters, min_size=1, max_size=30))
any_count = st.integers(1, 5) | st.integers(1, 2**40)
counts_of_words = some_words.flatmap(
    lambda texts: st.dictionaries(texts.map(str.encode), any_count, min_size=1)
)


@examples(60)
@given(counts_of_words, st.integers(0, 60), st.integers(0, 4), st.just(99) | st.integers(1, 9))
def test_tokens_by_likelihood_are_those_of_the_oracle(counts, extra, least, longest):
    words = words_of_characters(counts)
    n_symbols = 2 * len(words.alphabet) + extra
    options = {"min_frequency": least, "longest_token": longest}
    learned = bpe.learn_wordpiece(words, n_symbols, score="likelihood", **options)
    assert history(learned) == naive_likelihood(counts, n_symbols, **options)


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


def test_text_that_looks_like_the_prefix_gives_a_token_once_but_each_merge_its_row():
    learned = bpe.learn_wordpiece(words_of_characters({b"##a": 9, b"ba": 5}), 8, score="count")
    n_merges = len(learned.tokens) - len(learned.alphabet)
    assert n_merges == len(learned.pairs) == len(learned.counts) == len(learned.n_tokens) - 1
    assert learned.tokens.count(b"##a") == 2
    vocab = bpe.build_vocabulary(learned, {})
    assert [*vocab.values()] == [*dict.fromkeys(learned.tokens)]


# ─── Unigram ──────────────────────────────────────────────────────────────────────────────────────


def naive_paths(word, score_of, unk_score):
    """All ways to cut a word, as (score, tokens), the best first.

    None is a character that is no token. Of equal scores the way with the longer last token goes
    first, and then the one whose rest goes first.
    """

    def paths(end):
        """The paths to a place, each with the sums and the sizes that decide on its order."""
        ways = [([(-0.0, 0)], [])] if end == 0 else []
        for start in range(end):
            token = word[start:end]
            if token in score_of or start + 1 == end:
                name = token if token in score_of else None
                score = score_of.get(token, unk_score)
                for order, tokens in paths(start):
                    ways.append(([(order[0][0] - score, start - end), *order], [*tokens, name]))
        return sorted(ways, key=lambda way: way[0])

    return [(-order[0][0], tokens) for order, tokens in paths(len(word))]


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


def test_a_token_that_is_never_chosen_is_no_run_of_unknown_characters():
    tables = bpe.unigram_tables(unigram_model({"a": -1.0, "xyz": -np.inf, "x": -np.inf}))
    assert segmented(b"x", tables, bpe.segment_unigram) == [0]


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


few_words = st.text("abé", min_size=1, max_size=12)
character_counts = st.dictionaries(few_words, st.integers(1, 4), min_size=1, max_size=12)
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


@given(character_counts, st.integers(0, 30), st.sampled_from([0.0, 4.0]))
def test_expectations_and_losses_are_those_of_the_oracle(counts, n_seeds, less):
    learner = bpe._UnigramLearner(words_of_characters(counts), n_seeds, 5)
    score_of = {learner.spell(id).decode(): score for id, score in enumerate(learner.scores)}
    expected = Counter()
    for word, count in counts.items():
        paths = naive_paths(word, score_of, 0.0)
        weights = np.exp([score for score, _ in paths])
        for weight, (_, path) in zip(weights, paths, strict=True):
            for token in path:
                expected[token] += count * weight / weights.sum()
    usage = learner.expect()
    assert np.allclose(usage, [expected[token] for token in score_of])
    a = learner.n_alphabet
    usage[a:] *= usage[a:] >= bpe.LEAST_EXPECTED  # as each step leaves them
    count_of = dict(zip(score_of, usage, strict=True))
    total = usage.sum()
    # a token that is less likely than its parts is cut itself
    score_of = {token: score - less * (len(token) > 1) for token, score in score_of.items()}
    losses = bpe._losses(learner.lattice, a, np.array([*score_of.values()]), usage)
    for token, loss in list(zip(score_of, losses, strict=True))[a:]:
        n = count_of[token]
        score, path = naive_paths(token, {t: s for t, s in score_of.items() if t != token}, 0.0)[0]
        if n == 0 or not np.isclose(score, score_of[token]):
            assert np.isneginf(loss) == (n == 0 or score > score_of[token])
        if not np.isneginf(loss):
            after = sum(np.log((count_of[t] + n) / (total + n * (len(path) - 1))) for t in path)
            assert np.isclose(loss, n * (np.log(n / total) - after))


def test_a_token_that_is_as_likely_as_its_parts_is_not_cut():
    learner = bpe._UnigramLearner(words_of_characters({"ab": 3}), 10, 5)
    scores = np.array([-1.0, -1.0, -2.0])
    losses = bpe._losses(learner.lattice, 2, scores, np.array([1.0, 1.0, 3.0]))
    assert np.isneginf(losses).tolist() == [True, True, False]


def test_probabilities_are_fitted_in_two_steps():
    words = words_of_characters({"abab": 9, "ab": 5, "ba": 1})
    learner = bpe._UnigramLearner(words, bpe.SEED_SIZE, bpe.MAX_TOKEN_CHARS)
    learner.maximize()
    learner.maximize()
    learned = bpe.learn_unigram(words, learner.n_tokens)
    assert learned.scores.tolist() == sorted(learner.scores, reverse=True)[: learner.n_tokens]


def test_words_of_any_length_have_expected_tokens():
    random_word = "".join(random.Random(0).choices("abcdefgh", k=5000))
    counts = {random_word: 3, "a" * 3000: 1, "h": 2}
    totals = tally((char, n) for word, n in counts.items() for char in word)
    learner = bpe._UnigramLearner(words_of_characters(counts), 0, 4)
    expected = learner.expect()
    assert np.allclose(expected, [totals[char] for char in "abcdefgh"])
    learner = bpe._UnigramLearner(words_of_characters(counts), 1000, 4)
    assert np.isclose(learner.expect() @ learner.lattice.sizes, totals.total())


def text_counts(paths):
    return Counter("▁" + word for path in paths for word in path.read_text("utf-8").split())


def test_learning_unigram_is_that_of_sentencepiece(library, tmp_path):
    """The tokens differ: "import", always before a space, is no seed of SentencePiece."""
    text = "".join(path.read_text("utf-8") for path in library[:30])
    options = {"vocab_size": 1001, "character_coverage": 1.0, "split_by_unicode_script": False}
    more = {**IDENTITY, "model_type": "unigram", "split_by_number": False}
    theirs, _ = trained_there(tmp_path, text.split("\n"), **options, **more)
    learned = bpe.learn_unigram(words_of_characters(text_counts(library[:30])), 1000)
    assert (np.diff(learned.scores) <= 0).all()
    assert {*learned.alphabet} < {*learned.tokens} and len({*learned.tokens}) == 1000
    same = {*learned.tokens} & {theirs.id_to_piece(id).encode() for id in range(1001)}
    assert len(same) > 0.65 * 1000


@given(x=st.floats(5e-324, 1e300) | st.floats(0.5, 2))
@example(x=1e-320)
def test_logarithms_and_powers_are_rounded_alike_by_all_processors(x):
    [log] = bpe._logs(np.array([x]))
    assert abs(log - math.log(x)) <= math.ulp(math.log(x))
    y = np.array([0.5 + min(x, 1e9)])
    assert np.isclose(bpe._digamma(y), scipy.special.digamma(y), rtol=1e-10)
    [power] = bpe._exps(np.array([math.log(x)]))
    assert abs(power - math.exp(math.log(x))) <= math.ulp(power)
    assert bpe._logs(np.zeros(1)) == [-np.inf] and bpe._exps(np.array([-np.inf])) == [0]


def test_learning_unigram_takes_no_logarithms_of_numpy(library, monkeypatch):
    for name in ("log", "exp"):
        monkeypatch.setattr(np, name, None)
    training = bpe.train(library[:3], 300, model="unigram", workers=1)
    assert len(training.tokenizer) == 300


def test_learning_unigram_does_not_depend_on_the_order_of_words(library):
    counts = [(word.encode(), n) for word, n in text_counts(library[:20]).items()]
    shuffled = random.Random(1).sample(counts, len(counts))
    words = [bpe.Words.from_counts(dict(some)) for some in (counts, shuffled)]
    # parts of words are equal words
    ours, other = (bpe.learn_unigram(some.as_characters(coverage=0.9), 500) for some in words)
    assert ours.tokens == other.tokens and (ours.scores == other.scores).all()


@functools.cache
def sums_through_text(in_single, byte_fallback):
    """A model with many nearly equal scores: two of our tokenizers, and the owner's function."""
    scores = {"▁": -2.3, "b": -3.7, "▁b": -6.0, "ab": -4.8}
    scores |= {"a" * n: -1.1 * n for n in range(1, 5)}
    scores |= {"x": -1.1, "yz": -2.2, "xyz": -3.3, "y": -5.0, "z": -9.0, "c": -3.3}  # c is sure
    if in_single:
        pieces = [("<unk>", 2, 0), *((token, 1, score) for token, score in scores.items())]
        names = [(token.decode(), 6, 0) for token in BYTE_TOKENS * byte_fallback]
        pieces += [("<x>", 4, 0), *names]
        proto = model_proto(pieces, 1, name="identity", remove_extra_whitespaces=False)
        proto.trainer_spec.byte_fallback = byte_fallback
        data = proto.SerializeToString()
        model = bpe.read_sentencepiece(data)
        encode = sentencepiece.SentencePieceProcessor(model_proto=data).encode
    else:
        names = [(token.decode(), -99.0) for token in BYTE_TOKENS * byte_fallback]
        theirs = unigram_there([*scores.items(), *names], byte_fallback)
        model = bpe.Tokenizer.from_str(theirs.to_str()).model

        def encode(text):
            return theirs.encode(text).ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "MAX_CACHE_ENTRIES", 4)
        small = bpe.Tokenizer.from_model(model)
        small.encode("a")  # makes its cache
    return small, bpe.Tokenizer.from_model(model), encode


def unigram_there(scores, byte_fallback=False, split=False):
    """A Unigram of `tokenizers` that takes a whole text as one word, or splits it at spaces."""
    vocab = [("<unk>", 0.0), *scores]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, 0, byte_fallback))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=split)
    theirs.add_special_tokens(["<x>"])
    # Some scores of more than 15 digits are read from a file as others, and ours come from it.
    return tokenizers.Tokenizer.from_str(theirs.to_str())


@given(st.text("aab é中", max_size=60), st.booleans(), st.booleans(), st.integers(0, 40))
@example("é " * 4000 + "aaaa", True, True, 0)  # sums beyond 100,000
@example("aaabé aa" * 9000, True, False, 1)
@example("aaabé aa" * 9000, False, False, 1)
@example("ab" * 30_000 + " aaa b", True, False, 1)
@example("ab" * 30_000 + " aaa b", False, True, 1)
@example("中" * 700 + "aaaa", True, False, 1)  # more unknown characters than one id counts
@example("xyz " * 3000, True, False, 1)
@example(("c" * 99 + "aaaa ") * 99, True, False, 1)
@example("é" * 40 + "a" + "c" * 31_000 + "aaaa " * 5, True, False, 1)
@example("bbbbbb" + "c" * 30_302 + "aaa", True, False, 0)  # a far sum in the last word
@example("c" * 30_300 + "aaaa" * 5, True, False, 1)
def test_unigram_sums_through_a_text_are_the_owners(text, in_single, fallback, n):
    text = text + " b<x>aa" * n + text
    small, large, encode = sums_through_text(in_single, fallback)
    expected = encode(text)
    assert small.encode(text) == large.encode(text) == expected
    assert large.encode_batch([text, "aa", "", text]) == [*map(encode, [text, "aa", "", text])]


close_scores = st.builds(lambda a, b: -a * 1.1 - b * 1e-12, st.integers(1, 6), st.integers(0, 3))
wide_scores = close_scores | equal_scores | st.sampled_from([-2e3, -1e7, 1e-9, 5.5, -1e12])


@examples(80)
@given(
    st.dictionaries(few_tokens, close_scores, min_size=4, max_size=14)
    | st.dictionaries(few_tokens, wide_scores, min_size=1, max_size=14),
    st.lists(st.tuples(st.text("aab▁é中🙂 ", max_size=12), st.integers(1, 900)), max_size=9),
    st.booleans(),
)
@example({"▁": -1.0, "a": -0.97, "aa": -2.0, "中": -1e15}, [("aa 中 aa", 1)], False)
@example({"9" * n: -2.9 - 1.3 * n - n**0.5 for n in range(1, 5)}, [("9", 38), (" 9999", 9)], True)
@example({"9" * n: -2.9 - 1.3 * n - n**0.5 for n in range(1, 5)}, [("9999x ", 40)], False)
@example({"▁": -1, "ab": -1, "a": -20, "bé": -20, "<x>": -100}, [("abé", 1)], False)
@example(dict.fromkeys("▁<unk>", -1), [("<unk>", 1)], False)  # is the unknown token
def test_unigram_sums_in_double_precision_are_those_of_hugging_face(score_of, pieces, split):
    theirs = unigram_there(score_of.items(), split=split)
    ours = bpe.Tokenizer.from_str(theirs.to_str())
    text = "".join(piece * n for piece, n in pieces)
    expected = theirs.encode(text).ids
    assert ours.encode(text) == ours.encode(text) == expected


@pytest.mark.parametrize("in_single", [True, False])
def test_blocks_of_a_file_have_the_sums_of_the_whole(in_single, tmp_path, monkeypatch):
    _, ours, encode = sums_through_text(in_single, False)
    text = "".join(random.Random(7).choices("aaab\n é", k=9000))
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 500)
    bpe.encode_files(ours, tmp_path / "a.txt", tmp_path / "a.npy", workers=2)
    assert np.load(tmp_path / "a.npy").tolist() == encode(text)
    monkeypatch.setattr(bpe, "WINDOW_BYTES", 50)
    ids = []
    for new_id in ours.encode_iterable([text]):
        ids.append(new_id)
        if len(ids) % 100 == 0:
            ours.encode("aab aaaa")  # another text in between has a sum of its own
    assert ids == encode(text)


# ─── Formats ──────────────────────────────────────────────────────────────────────────────────────

# Parts of a tokenizer.json, and texts that they treat specially.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
BYTE_LEVEL |= {"trim_offsets": True, "use_regex": True}
NO_REGEX = BYTE_LEVEL | {"use_regex": False}
PLAIN_TOKEN = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
PLAIN_TOKEN["special"] = True


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
SPACE_FIRST = {"add_prefix_space": True}
PRE_TOKENIZERS = [BYTE_LEVEL, NO_REGEX, BYTE_LEVEL | SPACE_FIRST, NO_REGEX | SPACE_FIRST]
PRE_TOKENIZERS += [
    in_sequence(split_by(bpe.PATTERNS["o200k"]), NO_REGEX),
    in_sequence(split_by(r"\p{N}{1,3}"), split_by(r"[一-龥]+|[a-e]+"), BYTE_LEVEL),
    in_sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
    in_sequence(split_by("th.", "String"), BYTE_LEVEL),
    in_sequence({"type": "FixedLength", "length": 4}, BYTE_LEVEL),
    in_sequence(split_by(r"\s+"), {"type": "FixedLength", "length": 30}, NO_REGEX),
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
        data["added_tokens"].append({"id": id, **PLAIN_TOKEN, **token})
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
BERT_CUT = P.BertPreTokenizer()
T5 = N.Sequence([N.Nmt(), N.NFKC()])
T5_CUT = Sequence([P.WhitespaceSplit(), P.Metaspace()])
CUTS = [P.Whitespace(), P.Punctuation("contiguous"), P.Digits(True), P.CharDelimiterSplit("x")]
NO_CUT = ByteLevel(False, use_regex=False)
QWEN_CUT = Sequence([Split(Regex(bpe.PATTERNS["qwen2"]), "isolated"), NO_CUT])
DEEPSEEK_SPLITS = ["[\r\n]", r"\s?[A-Za-z]+", r"\s?[!-/:-~]+", r"\s+$", "[一-龥]+"]
DEEPSEEK = [Split(Regex(text), "isolated") for text in DEEPSEEK_SPLITS]
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
    "bert": ("WordPiece", BERT_MODEL, BERT_PIECES, N.BertNormalizer(), BERT_CUT, D.WordPiece()),
    "cuts": ("WordPiece", BERT_MODEL, BERT_PIECES, N.Strip(), Sequence(CUTS), None),
    "qwen": ("BPE", {}, [END], N.NFC(), QWEN_CUT, BYTES_BACK),
    "deepseek": ("BPE", {}, [END], None, DEEPSEEK_CUT, BYTES_BACK),
    "letters": ("BPE", FUSED, PIECES, N.NFD(), LETTERS_CUT, D.BPEDecoder()),
    "suffix": ("BPE", UNK | SUFFIX, PIECES, None, BERT_CUT, D.BPEDecoder("</w>")),
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


@functools.cache
def trained_model(prose, options):
    """The content of a model that the `sentencepiece` package has trained; options are JSON."""
    out = io.BytesIO()
    common = {"vocab_size": 600, "hard_vocab_limit": False, "minloglevel": 2}
    common |= {"character_coverage": 0.999, "sentence_iterator": iter(prose), "model_writer": out}
    sentencepiece.SentencePieceTrainer.train(**common | json.loads(options))
    return out.getvalue()


def trained_there(folder, prose, **options):
    """A model trained by the `sentencepiece` package, and its file; equal ones are trained once."""
    file = folder / "m.model"
    file.write_bytes(trained_model(tuple(prose), json.dumps(options)))
    return sentencepiece.SentencePieceProcessor(model_file=str(file)), file


IDENTITY = {"normalization_rule_name": "identity"}
LLAMA = {**IDENTITY, "remove_extra_whitespaces": False, "byte_fallback": True}
OWN_SYMBOLS = {"user_defined_symbols": ["<a>", "def", "e▁x"]}
ODD_SYMBOLS = {"user_defined_symbols": ["…", "\n", "\t", "ﬁ", "<x>"]}
ODD_SYMBOLS["normalization_rule_name"] = "nmt_nfkc"
COMMON = [{}, LLAMA, OWN_SYMBOLS, ODD_SYMBOLS]
LLAMA_SYMBOLS = LLAMA | {"user_defined_symbols": ["<x>", "self"]}
OF_TYPES = {"bpe": [*COMMON, IDENTITY], "unigram": [*COMMON, LLAMA_SYMBOLS]}
OF_TYPES["bpe"] += [{"add_dummy_prefix": False, "split_by_whitespace": False}]
OF_TYPES["bpe"] += [{"normalization_rule_name": "nmt_nfkc_cf", "pad_id": 3}]
# Private characters of a text stand for no symbols.
PRIVATE = ["\U00100000", "\U00100001", "\U00100002", "\U00100003", "\U00100004"]
OF_TYPES["bpe"] += [{"user_defined_symbols": ["ﬁ", "<x>", "ｘ", PRIVATE[1]], "vocab_size": 400}]
OF_TYPES["unigram"] += [IDENTITY | {"add_dummy_prefix": False}]
OF_TYPES["unigram"] += [ODD_SYMBOLS | {"remove_extra_whitespaces": False}]
OF_TYPES["char"] = [{}, LLAMA_SYMBOLS]
SENTENCEPIECE = [{"model_type": kind, **more} for kind in OF_TYPES for more in OF_TYPES[kind]]


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
    lines = [line for path in library[:30] for line in path.read_text()[:3000].split("\n")]
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
    suffix = getattr(theirs.model, "end_of_word_suffix", None)
    if suffix and isinstance(theirs.decoder, D.ByteLevel):
        return lambda text: encode(text).ids, functools.partial(decode_as_clip, theirs, suffix)
    decode = functools.partial(theirs.decode, skip_special_tokens=False)
    return lambda text: encode(text).ids, decode


def decode_as_clip(theirs, suffix, ids):
    """Decode as CLIPTokenizer of transformers, which writes spaces for suffixes of bytes."""
    text = theirs.decode(ids, skip_special_tokens=False)
    return text.removesuffix(suffix).replace(suffix, " ")


def calls_at(folder, format):
    """The calls of the owner of a format, for the files in a folder."""
    if format == "huggingface":
        return huggingface_calls(theirs_from(folder))
    if format == "gpt2":
        model = tokenizers.models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt")
        return huggingface_calls(huggingface_tokenizer(model, [END], **OF_BYTE_LEVELS))
    described = read_json(folder / "tokenizer.tiktoken.json")
    ranks = tiktoken.load.load_tiktoken_bpe(str(folder / "tokenizer.tiktoken"))
    theirs = tiktoken_encoding(ranks, described["pattern"], described["special_tokens"])
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
    return Owned(ours, *huggingface_calls(theirs), n_examples=25)


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
    parts = st.lists(st.sampled_from([*symbols, *PRIVATE, *"xａ ", "the ", "<s>"])).map("".join)
    fields = {"texts": famous_texts | symbol_texts | parts, "n_examples": 30}
    if symbols and options["model_type"] != "unigram":
        with note("some ids may differ"):  # a tokenizer.json finds symbols in another way
            bpe.Tokenizer.load(file).save(here.folder / "hf")
        fields["formats"] = ()
    return owned_by_sentencepiece(file, **fields)


@pytest.mark.parametrize("options", SENTENCEPIECE, ids=str)
@pytest.mark.filterwarnings("ignore:some ids may differ", "ignore:coverage")
def test_a_model_of_sentencepiece_is_written_again_with_new_tokens(options, prose, tmp_path):
    theirs, file = trained_there(tmp_path, prose, **options)
    old = bpe.Tokenizer.load(file)
    old.save(tmp_path / "again.model", "sentencepiece")
    assert (tmp_path / "again.model").read_bytes() == file.read_bytes()
    if options["model_type"] == "char":
        return
    news = ["☃中文文字 ☃☃ self.the " * 9, *prose[:40]]
    grown = bpe.train(texts=news, vocab_size=len(old) + 30, from_=old, workers=1).tokenizer
    marked = bpe.train(
        texts=news, vocab_size=len(old) + 9, special_tokens=["<m>"], from_=old, workers=1
    ).tokenizer
    marked.save(tmp_path / "marked.model", "sentencepiece")
    grown = grown.with_special_tokens(["<new>"])
    grown.save(tmp_path / "folder")
    new = sentencepiece.SentencePieceProcessor(model_file=f"{tmp_path}/folder/tokenizer.model")
    assert new.is_control(len(old) + 30) and new.get_piece_size() == len(grown)
    n_kept = 0
    texts = [*news, *prose[::9], "  a \n\tﬁ…<x>def<new> ", "<0x0A>é\u0301ж"]
    for text, ids, old_ids in zip(texts, new.encode(texts), theirs.encode(texts), strict=True):
        assert ids == grown.encode(text, "none")
        if max(ids, default=0) < len(old):
            assert ids == old_ids
            n_kept += 1
    assert n_kept > 9 and max(new.encode(news[0])) >= len(old)
    if "unigram" in options.values() and "user_defined_symbols" in options:
        return  # these are learnt anew
    prose = prose[::4]
    like = bpe.train(texts=[*news, *prose], vocab_size=700, like=file, workers=1).tokenizer
    like.save(tmp_path / "like.model", "sentencepiece")
    new = sentencepiece.SentencePieceProcessor(model_file=f"{tmp_path}/like.model")
    assert [new.encode(text) for text in prose] == like.encode_batch(prose, "none")
    assert new.id_to_piece([0, 1, 2]) == theirs.id_to_piece([0, 1, 2]) and len(new) == len(like)
    with refusal("a .model cannot hold this tokenizer: it cannot represent the pattern"):
        changed = dataclasses.replace(grown.model, pattern="gpt2")
        bpe.save_model(changed, tmp_path / "no.model", "sentencepiece")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_names_of_sentencepiece_are_those_that_the_page_gives(kind, prose, tmp_path):
    """The rows of its table in docs/coming.md, in their order."""
    options = {"model_type": kind, "pad_id": 3, "byte_fallback": True}
    p, file = trained_there(tmp_path, prose, user_defined_symbols=["<m>"], **options)
    t = bpe.Tokenizer.load(file)
    texts = ["The old table, café 😀 <m>x", "<s> the end", ""]
    all_ids = range(len(p))
    the = p.piece_to_id("▁the")
    assert p.encode(texts) == [*map(t.encode_ordinary, texts)] == t.encode_batch(texts, "none")
    assert t.encode("<s>")[-1] == p.bos_id() not in p.encode("<s>")
    assert p.id_to_piece([*all_ids]) == [t.id_to_token(id).decode() for id in all_ids]
    theirs = p.encode("Café x", out_type="offset_mapping")["offsets"]
    starts = t.encode_with_offsets("Café x", characters=True)[1]
    assert starts == [start for start, _ in theirs]
    around = t.with_special_tokens([], "<s> $A </s>").encode("the", add_special_tokens=True)
    assert around == p.encode("the", add_bos=True, add_eos=True)
    ids = [1, the, p.unk_id(), p.piece_to_id("<m>"), 2]
    assert p.decode(ids) == "the ⁇ <m>" and t.decode(ids) == "<s> the<unk><m></s>"
    assert t.decode(ids, skip_special_tokens=True) == "the<m>"
    assert t.token_to_id("▁the") == p["▁the"] and t.token_bytes[the] == b" the"
    assert (t.token_to_id("no piece"), p.piece_to_id("no piece")) == (None, p.unk_id())
    assert len(t) == p.get_piece_size() == p.vocab_size()
    special = {id for id in all_ids if p.is_control(id) or p.is_unknown(id)}
    assert special == {*t.special_tokens.values()} - {t.special_tokens.get("<m>")}
    assert all(p.is_byte(id) == t.id_to_token(id).startswith(b"<0x") for id in all_ids)
    learnt = all_ids[4 + 1 + 256 :]
    assert [*map(p.get_score, learnt)] == t.model.scores[learnt.start :].tolist()
    roles = {role: getattr(p, f"{role}_id")() for role in ("bos", "eos", "pad", "unk")}
    assert roles == {role: t.token_to_id(t.config[f"{role}_token"]) for role in roles}
    assert t.model.proto == p.serialized_model_proto()


def model_of_pieces(here, pieces, kind):
    spec = {"add_dummy_prefix": kind == 1, "remove_extra_whitespaces": kind == 2}
    file = here.folder / "m.model"
    file.write_bytes(model_proto(pieces, kind, **spec).SerializeToString())
    parts = st.lists(st.sampled_from([" ", "  ", "und", "<ab>", "ab", "<", ">"]), max_size=12)
    return owned_by_sentencepiece(file, texts=parts.map("".join), n_examples=30, formats=())


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
NO_BYTES = bpe_model(ODD_NAMES, ["a ’", "a b", "â Ģ", "âĢ Ļ"])
# The score of an unknown character is 10 less: "ca" and "b" are better than "c" and "ab".
UNLIKELY_SCORES = {"<unk>": 0.0, "<s>": -100.0, "a": -12.0, "b": -12.0, "ca": -12.0, "ab": -1.0}
UNLIKELY = tokenizers.models.Unigram([*UNLIKELY_SCORES.items()], 0)
MARKED = bpe_model(["▁", "x", "<s>"], unk_token="<s>")
SPACED_TOKEN = tokenizers.AddedToken(" <s>", normalized=True)
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
    "names of no bytes": (NO_BYTES, ["<end>"], OF_BYTE_LEVELS, ["a", "b", "’", "<end>"]),
    "the worst score": (UNLIKELY, ["<s>", "<unk>"], {"decoder": D.Fuse()}, ["cab", *"abc"]),
    "a token of normalized text": (MARKED, [SPACED_TOKEN], TO_MARKS, ["x", " ", " <s>"]),
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
    options |= {name: [*value] for name, value in options.items() if type(value) is tuple}
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
    (own_merges, {"added_tokens": {END: STRIPS}}, "huggingface"),
    *((own_model, options) for options, _ in FAMILIES),
    *((own_model, {"special_tokens_at": at}) for at in ("after-bytes", "last")),
    *((edited_json, part, []) for part in PRE_TOKENIZERS),
    *((edited_json, part, ADDED) for part in PRE_TOKENIZERS),
    *((famous_model, name) for name in FAMOUS),
    *((small_model, name) for name in SMALL),
    *((sentencepiece_model, options) for options in SENTENCEPIECE),
    *((model_of_pieces, [*UND_PIECES, ("▁un", 1, score)], 1) for score in (-1.5, -0.01)),
    (model_of_pieces, AB_PIECES, 2),
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
        assert len(ours._idle) == 1  # all calls use one encoder
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


def test_a_model_of_characters_is_saved_without_a_note(tmp_path):
    with warnings.catch_warnings(record=True) as notes:
        bpe.Tokenizer({0: b"\n", 1: b"ab"}, [], alphabet="characters").save(tmp_path)
    assert notes == []  # on GPT-2's files, in which \n would be special


def test_saved_models_load_from_each_of_their_files_by_any_name(tokenizer, tmp_path):
    folder = tmp_path / "new" / "model"
    tokenizer.save(folder)
    names = {"merges.txt", "vocab.json", "tokenizer.json", "tokenizer_config.json"}
    assert files_in(folder).keys() == names | {"special_tokens_map.json"}
    (tmp_path / "a.json").mkdir()
    for path in (tmp_path / "a.json", tmp_path / "alone" / "tokenizer.json"):
        tokenizer.save(path, "huggingface")
    assert files_in(tmp_path / "a.json") == files_in(tmp_path / "alone")
    bpe.Tokenizer(BYTE_VOCAB, None).save(tmp_path / "of ranks")
    assert not (tmp_path / "of ranks" / "merges.txt").exists()
    tokenizer.save(tmp_path / "ranks" / "named.tiktoken", "tiktoken")
    assert sorted(files_in(tmp_path / "ranks")) == ["named.tiktoken", "named.tiktoken.json"]
    files = [folder / "tokenizer.json", tmp_path / "ranks" / "named.tiktoken"]
    merges_there = (folder / "merges.txt").read_text()
    files += [folder / "vocab.json", folder / "merges.txt"]
    for vocab, merges in [("encoder.json", "vocab.bpe"), ("x.vocab.json", "x.merges.txt")]:
        shutil.copy(folder / "vocab.json", tmp_path / vocab)
        (tmp_path / merges).write_text(merges_there.removeprefix("#version: 0.2\n"))
        files.append(tmp_path / vocab)
    loaded = [*map(bpe.Tokenizer.load, files)]
    loaded.append(bpe.Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt", [END]))
    with note(r"tokenizer\.json, vocab\.json may hold another model"):
        loaded[1].save(folder, "tiktoken")
    for other in loaded:
        other = bpe.Tokenizer.from_str(other.to_str())
        for name in ("vocab", "merges", "special_tokens"):
            assert getattr(other, name) == getattr(tokenizer, name)


@pytest.mark.parametrize("decoder", [None, BYTE_LEVEL | {"use_regex": False}])
def test_only_changed_parts_of_a_tokenizer_json_are_rewritten(decoder, tokenizer, tmp_path):
    parts = in_sequence(split_by(r"\p{N}$"), BYTE_LEVEL | {"trim_offsets": False})
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    part = {"decoder": decoder, "pre_tokenizer": parts, "truncation": truncation}
    part["normalizer"] = {"type": "Sequence", "normalizers": []}
    written(tmp_path, tokenizer, [{"content": "<new>"}], **part)
    read = read_json(tmp_path / "tokenizer.json")
    with note("truncation of the model: `encode` follows its own options"):
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
        theirs.no_truncation()  # it is kept, and not applied
        for text in ("one 12\n3x<new>", "x1 2\n", "e\u0301<newer>"):
            assert ours.encode(text) == theirs.encode(text).ids


BEGINS_TEXTS = A.TemplateProcessing("<s> $A", None, [("<s>", 0)])
ADDING = [A.TemplateProcessing("$A </s>", "$A <s> $B", [("<s>", 0), ("</s>", 1)])]
ADDING += [A.TemplateProcessing("$A", "$A <s> $B", [("<s>", 0)]), A.Sequence([A.ByteLevel()])]
ADDING += [A.BertProcessing(("<s>", 0), ("</s>", 1)), A.Sequence([A.ByteLevel(), BEGINS_TEXTS])]


@pytest.mark.parametrize("processor", ADDING)
def test_a_post_processor_that_adds_tokens_gets_a_note(processor):
    theirs = tokenizers.Tokenizer(bpe_model(["<s>", "</s>", "a"], unk_token="</s>"))
    theirs.post_processor = processor
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        ours = bpe.Tokenizer.from_str(theirs.to_str())
    assert ours.encode("aa") == [2, 2]
    is_noted = any(str(note.message).startswith("post_processor of the") for note in notes)
    assert is_noted == (theirs.encode("aa").ids != [2, 2])


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


def test_a_unigram_without_an_unknown_token_names_what_it_does_not_know(tmp_path):
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram([("a", -1.0), ("b", -2.0)], None))
    ours = bpe.Tokenizer.from_str(theirs.to_str())
    assert ours.encode("ab") == theirs.encode("ab").ids
    calls = [ours.encode, ours.encode_to_numpy, ours.encode_with_offsets]
    for call in [*calls, lambda text: ours.encode_batch(["a", text])]:
        with refusal("the character '中' is not in the vocabulary, which has no unknown token"):
            call("a中b")
    names = [("a", -1.0), *((name, -9.0) for name in FALLBACK)]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(names, None, True))
    theirs.decoder = D.Sequence([D.ByteFallback(), D.Fuse()])
    ours = bpe.Tokenizer.from_str(theirs.to_str())  # text becomes bytes; `tokenizers` refuses it
    assert ours.decode(ours.encode("a中b")) == "a中b"
    with refusal("Hugging Face finds no offsets: Encountered an unknown token"):
        ours.encode_with_offsets("a中b", characters=True)
    written = json.loads(theirs.to_str())
    written["model"]["vocab"] = []
    with refusal("a Unigram without tokens"):
        bpe.Tokenizer.from_str(json.dumps(written))


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


OTHER_NAMES = ["<0xe4>", "<0xb8>", "<0xE4>", "<0x+a>"]  # names of bytes as Rust reads them


@example(["<0xEF>", "<0xBF>", "<0xBD>", "a", "<0xEF>"])
@example(["<0xe4>", "<0xb8>", "a", "<0xe4>", "<0xB8>", "<0xad>"])
@given(st.lists(st.sampled_from(["a", "▁", *OTHER_NAMES, *FALLBACK[0x1E:0x22], *FALLBACK])))
def test_each_byte_of_a_damaged_run_is_decoded_as_in_hugging_face(tokens):
    vocab = ["a", "▁", *dict.fromkeys([*FALLBACK, *OTHER_NAMES, "<0xad>"])]
    theirs = huggingface_tokenizer(bpe_model(vocab), decoder=LLAMA_DECODER)
    ids = [*map(theirs.token_to_id, tokens)]
    model = bpe.read_huggingface(json.loads(theirs.to_str()))
    assert bpe.Tokenizer.from_model(model).decode(ids) == theirs.decode(ids)


FIRST_MARKS = {
    "kept": ({"type": "NFC"}, P.Digits(True)),
    "lower": ({"type": "Lowercase"}, P.Punctuation()),
    "refused": ({"type": "NFKD"}, P.Digits(True)),
    "replaced": (replace("a", "1b"), P.Digits(True)),
    "of one": (replace("a", "."), P.Punctuation()),
    "of several": (replace("ab", "."), P.Punctuation()),
    "removed": (replace("a", ""), P.Punctuation()),
}


@pytest.mark.parametrize("name", FIRST_MARKS)
@given(text=st.text("½aİé1b. \u0301", max_size=6))
@example("½")
def test_a_mark_is_first_only_where_hugging_face_puts_it(name, text):
    normalizer, cut = FIRST_MARKS[name]
    model = bpe_model(["<unk>", *"▁ab12½⁄iİé.\u0301\u0307"], unk_token="<unk>")
    parts = {"pre_tokenizer": Sequence([cut, P.Metaspace(prepend_scheme="first")])}
    theirs = huggingface_tokenizer(model, **parts)
    content = json.loads(theirs.to_str()) | {"normalizer": normalizer}
    if name in ("refused", "replaced"):
        with refusal("prepend_scheme first after .*inside the text that the normalizer makes"):
            bpe.read_huggingface(content)
    elif name in ("of several", "removed"):
        with refusal("a Metaspace with prepend_scheme first after Replace"):
            bpe.read_huggingface(content)
    else:
        theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
        ours = bpe.Tokenizer.from_model(bpe.read_huggingface(content))
        assert ours.encode(text) == theirs.encode(text).ids


@given(st.lists(st.floats(-30, -1e-9), min_size=1, max_size=20))
def test_scores_are_those_that_hugging_face_reads(scores):
    vocab = [[f"<{k}>", score] for k, score in enumerate(scores)]
    content = {"model": {"type": "Unigram", "unk_id": None, "vocab": vocab}}
    theirs = json.loads(tokenizers.Tokenizer.from_str(json.dumps(content)).to_str())
    ours = bpe.read_huggingface(content).scores
    parsed = [*map(bpe._as_parsed, ours.tolist())]
    assert parsed == [score for _, score in theirs["model"]["vocab"]]


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


DIALECTS = {"oniguruma": bpe._ONIGURUMA, "fancy": bpe._FANCY}


def unless_refused(rewrite, engine, source):
    """What becomes of an expression; None if it is refused."""
    with contextlib.suppress(bpe.InputError):
        return rewrite(source, DIALECTS[engine])
    return None


# Items of sets, and characters that they match; the engines read some of these in their own ways.
SET_ITEMS = [*"az-^&~]|é²", "a-z", "&&", "--", "~~", "[:alpha:]", "[:punct:]", "\u200d", " "]
SET_ITEMS += [r"\w", r"\W", r"\d", r"\S", r"\h", r"\H", r"\e", r"\n", r"\x41", r"\u00e9"]
SET_ITEMS += ["&&", r"\x{e9}", r"\]", r"\[", r"\-", r"\^", r"\\"]
SET_ITEMS += [r"\p{L}", r"\P{Lu}", r"\p{^N}", r"\p{Word}", r"\p{Graph}"]
set_parts = st.recursive(
    st.sampled_from(SET_ITEMS),
    lambda parts: st.tuples(
        st.sampled_from(["[", "[^"]), st.lists(parts, min_size=1, max_size=4).map("".join)
    ).map("{0[0]}{0[1]}]".format),
    max_leaves=8,
)
sets = set_parts.filter(lambda source: source[0] == "[" and source[1] != ":")
SET_TEXT = "".join(map(chr, [*range(0x180), *range(0x3C8, 0x3D0), 0x200D, 0x4E00, 0x1F642]))


@functools.lru_cache
def engine_of(name, pattern):
    """What an engine makes of an expression."""
    if name == "oniguruma":
        return Split(Regex(pattern), "removed", invert=True)
    return tiktoken_encoding({byte: id for id, byte in BYTE_VOCAB.items()}, pattern)


def matches_there(engine, pattern, text):
    """The matches of an expression, or the text that they take; None if the engine refuses it."""
    try:
        made = engine_of(engine, pattern)
        if engine == "oniguruma":
            return [piece for piece, _ in made.pre_tokenize_str(text)]
        return [bytes(made.encode_ordinary(text)).decode()]
    except BaseException:  # a panic of Rust is no Exception
        return None


def assert_matches(engine, source, read, texts):
    """An expression of an engine matches there what `read` matches here."""
    for text in texts:
        theirs = read and matches_there(engine, source, text)
        if theirs is not None and read:
            ours = [found[0] for found in regex.finditer(read, text) if found[0]]
            assert theirs in (ours, ["".join(ours)]), (read, text)


@pytest.mark.parametrize("engine", DIALECTS)
@example("[a-z&&[^aeiou]]")
@example(r"[^\W\d&&[\p{L}--a]]")
@example("[[^a][^b]]")
@given(sets)
def test_a_set_means_what_it_means_to_its_engine_or_is_refused(engine, source):
    assert_matches(engine, source, unless_refused(bpe._read_regex, engine, source), [SET_TEXT])


INTERSECTING = r"[\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lo}\p{M}&&[^\p{Han}]]+|[\p{Han}]+|[\s\S]"
OWN_WAYS = [INTERSECTING, "(?i:i)|.", "{,}|.", r"\Ga|.", r"a\K|.", r"(a)\1|.", "(?~a)|.", "(?s:.)"]
OWN_WAYS += ["(?x: a)|.", "(?i)s|.", "(?m)^a|.", "a{2}?|.", "a{2,}+|.", r"\bs|.", r"\Z|.", r"\z|."]
OWN_WAYS += [r"\h+|.", r"\pL+|.", r"\x{61}+|\x{1F642}|.", r"\e|.", r"[\w--a]+|.", "(?P<n>a)|."]
OWN_WAYS += ["(?m:.)", "(?>a+)|."]


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize("pattern", [*common, *rewritten, *anchors, *classes, *OWN_WAYS])
@pytest.mark.filterwarnings("ignore:Possible nested set")
@examples(12)
@given(st.lists(oniguruma_texts, min_size=9))
def test_expressions_mean_what_they_mean_to_each_engine_or_are_refused(engine, pattern, texts):
    texts += ["aa ab\nsß1²_ \n", "İis\r\nſS Aaaa{,}\x1b", "ab12 3\n\rhH-\U0001f642\n", "1234567"]
    read = unless_refused(bpe._read_regex, engine, pattern)
    written = unless_refused(bpe._write_regex, engine, pattern)
    assert_matches(engine, pattern, read, texts)
    assert_matches(engine, written, written and pattern, texts)
    assert read or engine == "fancy" or pattern not in common + rewritten
    assert written or engine == "fancy" or pattern not in common


def test_intersections_of_sets_are_compiled():
    assert not bpe.Pattern(bpe._read_regex(INTERSECTING, bpe._FANCY)).warning


@given(texts)
def test_ids_of_a_tekken_file_follow_its_special_tokens(tmp_path_factory, text):
    tokens = [*BYTE_VOCAB.values(), b"ab", "中".encode()[:2], "中".encode(), b" t", b"left out"]
    ranks = {token: 5 + rank for rank, token in enumerate(tokens[:-1])}
    special = {"<unk>": 0, "<s>": 1, "</s>": 2, "<SPECIAL_3>": 3, "<SPECIAL_4>": 4}
    theirs = tiktoken_encoding(ranks, r"\p{L}+|\P{L}+", special)
    encoded = [base64.b64encode(token).decode() for token in tokens]
    rows = [{"rank": k, "token_bytes": text} for k, text in enumerate(encoded)]
    facts = {"pattern": r"\p{L}+|\P{L}+", "default_vocab_size": 265}
    facts["default_num_special_tokens"] = 5
    named = [{"rank": rank, "token_str": text} for text, rank in special.items()][:3]
    folder = tmp_path_factory.mktemp("tekken")
    content = {"config": facts, "vocab": rows, "special_tokens": named}
    write_folder(folder, {"tekken.json": content})
    ours = bpe.Tokenizer.load(folder)
    assert ours.encode(text, "none") == theirs.encode_ordinary(text)
    assert ours.encode("<SPECIAL_3>a</s><SPECIAL_4>") == [3, 102, 2, 4] and len(ours) == 265
    assert ours.special_tokens == special and ours.config["eos_token"] == "</s>"
    content["config"] = facts | {"default_num_special_tokens": 1 << 31}
    write_folder(folder, {"tekken.json": content})
    with within(20), refusal("default_num_special_tokens is 2147483648: an id is a whole number"):
        bpe.Tokenizer.load(folder)


# Special tokens of published encodings.
PUBLISHED = [
    ("o200k_harmony", 1091, {"<|call|>": 200012, "<|reserved_201087|>": 201087, END: 199999}),
    ("o200k_harmony", 1091, {"<|endofprompt|>": 200018, "<|reserved_200018|>": 200018}),
    ("llama3", 256, {"<|reserved_special_token_4|>": 128008, "<|eot_id|>": 128009}),
    ("llama3.1", 256, {"<|eom_id|>": 128008, "<|reserved_special_token_247|>": 128255}),
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
    one = bpe.RankFile("gpt2", {END: 5000}, hashlib.sha256(ranks).hexdigest())
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
def test_ranks_and_merges_become_each_other_if_they_mean_the_same(data, seed):
    source = random.Random(seed)
    # no merge makes the last token
    tokens = [*random_tokens_of_bytes(source, 40)[0], b"tttiia"]
    source.shuffle(tokens)
    by_id = bpe.Tokenizer(dict(enumerate(tokens)), None, pattern="none")
    text = data.decode("utf-8", "ignore")
    for string in (text, "tttiia"):
        assert by_id.to_huggingface().encode(string).ids == by_id.encode(string)
    tokens, merges = random_tokens_of_bytes(source, 6)
    source.shuffle(merges)
    options = {"pattern": "none", "ignore_merges": seed % 2 == 0}
    tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), merges, **options)
    with contextlib.suppress(bpe.InputError):
        assert tokenizer.to_tiktoken().encode_ordinary(text) == tokenizer.encode(text)


def test_a_failed_save_leaves_nothing(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path)
    before = files_in(tmp_path)
    monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tokenizer.save(tmp_path)
    assert files_in(tmp_path) == before


def test_a_vocab_txt_without_settings_is_in_lower_case_if_it_has_no_capitals(tmp_path):
    cases = {"[UNUSED_0]\na\n##b\n<S>\nb ": [2, 2, 3, 0], "b\nA\na\n##b": [2, 3, 4, 0]}
    for names, ids in cases.items():
        (tmp_path / "vocab.txt").write_text("[UNK]\n" + names)
        assert bpe.Tokenizer.load(tmp_path).encode("A ab c") == ids
    (tmp_path / "vocab.txt").write_text("[UNK]\nÉ\n<B")
    assert bpe.Tokenizer.load(tmp_path).encode("É") == [1]


def test_a_rank_file_takes_what_it_lacks_from_beside_it_and_from_the_call(tmp_path):
    bpe.Tokenizer(BYTE_VOCAB, None, ["<s>"], "cl100k").save(tmp_path / "m.tiktoken", "tiktoken")
    loaded = bpe.Tokenizer.load(tmp_path / "m.tiktoken", pattern="gpt2")
    assert loaded.encode("<s>") == [256] and loaded.model.pattern == "gpt2"
    ranks = b"\xef\xbb\xbf" + (tmp_path / "m.tiktoken").read_bytes()
    (tmp_path / "tiktoken.model").write_bytes(ranks + b"= 257\n")  # Whisper's has an empty token
    decoder = {"300": added_there("<a>"), "290": added_there("<b>")}
    write_folder(tmp_path, {"tokenizer_config.json": {"added_tokens_decoder": decoder}})
    options = {"pattern": "gpt2", "special_tokens": {"<s>": 258}}
    ours = bpe.Tokenizer.load(tmp_path / "tiktoken.model", **options)
    assert ours.encode("<a>a<b><s>") == [300, 97, 290, 258]


def test_an_unmerged_name_of_other_text_is_an_ordinary_token(tmp_path):
    names = [*map(in_chars, bpe.BYTES), "<é>", "<|end|>", "Ġhi", "Ã©Ã©"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    ours = bpe.Tokenizer.load(tmp_path)
    assert ours.special_tokens == {"<é>": 256, "<|end|>": 257}
    assert ours.encode("Ġhi") == list("Ġhi".encode()) and ours.decode([256, 258, 259]) == "<é> hiéé"
    names += [f"<{k}>" for k in range(100)]
    (tmp_path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    with note("no merge makes many.*belong together"):
        bpe.Tokenizer.load(tmp_path)


def test_a_name_has_its_own_id_even_if_another_token_has_its_bytes(tmp_path):
    names = [*map(in_chars, bpe.BYTES), "  ", "ĠĠ"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ Ġ\n")
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "added_tokens_decoder": {"256": added_there("  ")},
    }
    write_folder(tmp_path, {"tokenizer_config.json": config})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = bpe.Tokenizer.load(tmp_path)
    assert ours.encode("a  b") == theirs("a  b").input_ids == [97, 256, 98]
    ours.save(tmp_path / "saved")
    assert bpe.Tokenizer.load(tmp_path / "saved").encode("a  b") == [97, 256, 98]


IN_BYTES = [*map(in_chars, BYTES), "ĠĠ", "Ġa", "Ã©", "café", "▁"]
WITH_ENDS = {name: id for id, name in enumerate([*IN_BYTES, *(f"##{name}" for name in IN_BYTES)])}
NAMED_IN_BYTES = {
    "BPE": bpe_model(IN_BYTES, ["Ġ Ġ", "Ġ a"]),
    "BPE that looks up": bpe_model(IN_BYTES, ignore_merges=True),
    "Unigram": tokenizers.models.Unigram([("<unk>", 0.0), *((name, -2.0) for name in IN_BYTES)], 0),
    "WordPiece": tokenizers.models.WordPiece(
        WITH_ENDS | {"<unk>": len(WITH_ENDS)}, unk_token="<unk>"
    ),
    "WordLevel": tokenizers.models.WordLevel(WITH_ENDS | {"<unk>": len(WITH_ENDS)}, "<unk>"),
}
NAMES_IN_TEXTS = ["é", "鼠", "¼", " ", "  ", "ĠĠ", "\n", "Ċ", " a", "Ġa", "café", "caf鼠", "▁", "x"]


@pytest.mark.parametrize("kind", NAMED_IN_BYTES)
@examples(12)
@given(
    added=st.lists(st.sampled_from(["é", "Ċ", "ĠĠ", "  ", "Ġa", "café", "▁", "ā"]), unique=True),
    text=st.lists(st.sampled_from(NAMES_IN_TEXTS)).map("".join),
)
@example(["é"], "鼠é")
@example(["Ċ", "Ġa"], "\n aĊĠa")
def test_an_added_token_leaves_the_bytes_that_its_name_stands_for(kind, added, text):
    theirs = huggingface_tokenizer(NAMED_IN_BYTES[kind], **OF_BYTE_LEVELS)
    theirs.add_tokens(added)
    ours = ours_from(theirs)
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_of_a_piece_that_is_listed_twice_text_becomes_the_last(tmp_path):
    pieces = [("a", -1.0), ("b", -1.5), ("c", -1.0), ("<unk>", 0.0), ("<unk>", -100.0), ("c", -4.0)]
    content = json.loads(tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 3)).to_str())
    content["added_tokens"] = [
        {"id": id, "special": True, **added_there(text)} for id, text in ((4, "<unk>"), (6, "<x>"))
    ]
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
    ours = bpe.Tokenizer.from_str(json.dumps(content))
    ids = theirs.encode("abxc<unk>x<x>").ids
    assert ours.encode("abxc<unk>x<x>") == ids == [0, 1, 3, 5, 4, 3, 6]
    ours.save(tmp_path)
    assert theirs_from(tmp_path).encode("abxc<unk>x<x>").ids == ids
    again = bpe.Tokenizer.load(tmp_path)
    assert again.encode("abxc<unk>x<x>") == ids and again.digest == ours.digest
    assert again.decode([2, 3, 4, 5], skip_special_tokens=False) == "c <unk> <unk> c"
    assert bpe.add_special_tokens(ours.model, {"<y>": bpe.PLAIN_TOKEN}).special_tokens["<y>"] == 7


def added_there(content, **flags):
    flags = dict.fromkeys(["lstrip", "rstrip", "normalized", "single_word"], False) | flags
    return {"content": content, "special": True} | flags


def token_there(content, **flags):
    return {"__type": "AddedToken", **added_there(content, **flags)}


STRIPPED = token_there("<mask>", lstrip=True)
FOLDERS = [
    {"added_tokens.json": {"<pad>": 257, "<new>": 258},
     "tokenizer_config.json": {"eos_token": END}},
    {"tokenizer_config.json": {"mask_token": STRIPPED, "extra_special_tokens": ["<e>", END]}},
    {"tokenizer_config.json": {"added_tokens_decoder": {
        "258": {"content": "lo", "kind": 1}, "257": added_there("<new>", rstrip=True)},
        "mask_token": STRIPPED | {"content": "<new>"}, "detail": {"content": "x"},
        "response_schema": {"role": "user", "content": "a"}, "padding_side": "left",
        "truncation_side": "left", "model_max_length": 9}},
    {"special_tokens_map.json": {"mask_token": added_there("<c>", rstrip=True),
                                 "additional_special_tokens": ["<a>", "<pad>"]}},
    {"tokenizer_config.json": {"pad_token": "<pad>", "image_token": "<i>", "sep_token": "Ġlo"},
     "chat_template.jinja": "{{ 1 }}"},
    {"chat_template.jinja": "{{ 1 }}", "additional_chat_templates/rag.jinja": "{{ 2 }}",
     "tokenizer_config.json": {"extra_special_tokens": {"image_token": "<i>"}}},
    {"tokenizer_config.json": {"add_bos_token": True, "bos_token": END, "add_eos_token": False}},
    {"tokenizer_config.json": {"add_eos_token": True}},
]  # fmt: skip
SETTINGS = ["special_tokens_map", "padding_side", "truncation_side", "chat_template"]
SETTINGS += ["model_max_length", "extra_special_tokens", "all_special_ids"]
BESIDE = "a <mask> lo<new> lo <pad><c> b<e><i> <a><b>Ġlo " + END


def write_folder(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)


@pytest.mark.parametrize("format", ["gpt2", "huggingface", "bert"])
@pytest.mark.parametrize("files", FOLDERS)
@pytest.mark.filterwarnings("ignore:post_processor", "ignore:.*may hold another", "ignore:.*names")
def test_what_lies_beside_a_vocabulary_is_read_and_written(format, files, tmp_path):
    kind = {"gpt2": "GPT2Tokenizer", "bert": "BertTokenizer"}.get(format, "TokenizersBackend")
    plain = bpe.Tokenizer(BYTE_VOCAB | {256: END.encode()}, [], [END])
    if format == "bert":
        (tmp_path / "vocab.txt").write_text("\n".join([*BERT_PIECES, *"abl", "##o"]))
    else:
        plain.save(tmp_path, format)
    written = {"tokenizer_class": kind} | files.get("tokenizer_config.json", {})
    write_folder(tmp_path, files | {"tokenizer_config.json": written})
    if format == "bert" and "sep_token" in written:
        return  # that class has a template of its own
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*added tokens have the ids")
        ours = bpe.Tokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours.save(tmp_path / "again")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    again = bpe.Tokenizer.load(tmp_path / "again")
    for options in ({"add_special_tokens": False}, {"add_special_tokens": True}):
        expected = theirs.encode(BESIDE, **options)
        assert expected == ours.encode(BESIDE, **options) == again.encode(BESIDE, **options)
        assert expected == saved.encode(BESIDE, **options)
        assert theirs.encode("a", "b", **options) == saved.encode("a", "b", **options)
        assert expected == ours.as_hf()(BESIDE, **options)["input_ids"]
    for name in SETTINGS:
        assert getattr(saved, name) == getattr(theirs, name)
    assert {**ours.config, "clean_up_tokenization_spaces": False} == again.config
    for path in tmp_path.glob("*.*"):  # a byte order mark is no text
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    marked = bpe.Tokenizer.load(tmp_path)
    assert (marked.digest, marked.config) == (ours.digest, ours.config)
    grown = ours.with_special_tokens(["<z>"]).as_hf()
    assert grown.special_tokens_map.items() >= bpe._roles(ours.config).items()
    assert grown.convert_tokens_to_ids("<z>") == len(theirs)


def test_settings_of_a_folder_that_are_not_obeyed_are_named(prose, tmp_path):
    _, file = trained_there(tmp_path, prose, model_type="unigram")
    settings = {"do_lower_case": True, "add_prefix_space": False, "split_special_tokens": True}
    settings |= {"add_eos_token": True, "eos_token": "</s>"}
    n = len(bpe.Tokenizer.load(file))
    write_folder(tmp_path, {"tokenizer_config.json": settings, "added_tokens.json": {"<a>": n + 5}})
    with pytest.warns() as notes:
        ours = bpe.Tokenizer.load(file)
    named = "\n".join(str(one.message) for one in notes)
    assert f"added tokens have the ids {{'<a>': {n}}}, but {{'<a>': {n + 5}}} beside it" in named
    assert all(name in named for name in [*settings][:3]) and ours.config == settings | ours.config
    assert ours.encode("<a>", add_special_tokens=True)[-2:] == [n, 2]
    wrong_files = {"added_tokens.json": ["a"], "tokenizer_config.json": {"added_tokens_decoder": 5}}
    for name, wrong in wrong_files.items():
        write_folder(tmp_path, {"added_tokens.json": {}, "tokenizer_config.json": {}, name: wrong})
        with refused_in_one_line(r"m\.model: wrong content|added_tokens.json: not a JSON object"):
            bpe.Tokenizer.load(file)


def test_models_in_one_folder_have_their_own_settings(tokenizer, tmp_path):
    first, second = (tokenizer.with_special_tokens([text]) for text in ("<1>", "<2>"))
    first.config["pad_token"] = "<1>"
    second.config.update(pad_token="<2>", chat_template="{{ 2 }}")
    assert "pad_token" not in tokenizer.config
    first.save(tmp_path / "a.json")
    second.save(tmp_path / "b.json")
    for tokenizer, name in ((first, "a.json"), (second, "b.json")):
        loaded = bpe.Tokenizer.load(tmp_path / name)
        assert loaded.digest == tokenizer.digest
        assert tokenizer.config.items() <= loaded.config.items()
    copied = copy.copy(first)
    copied.config["pad_token"] = END
    assert first.config["pad_token"] == "<1>"


def test_a_token_named_as_the_text_of_a_template_stays_a_token():
    model = bpe.Model({0: b"b"}, None, kind="wordlevel", alphabet="characters", pattern="none")
    tokenizer = bpe.Tokenizer.from_model(model).with_special_tokens(["A"], "A $A")
    assert tokenizer.encode("b", add_special_tokens=True) == [1, 0]
    assert tokenizer.to_huggingface().encode("b").ids == [1, 0]


def test_tokens_are_added_after_the_last_id_of_a_vocabulary_with_gaps():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {257: b"ab"}, [(b"a", b"b")])
    assert notes_of(lambda: tokenizer.with_special_tokens(template="$A")) == []
    with note("have ids from 258 on; in transformers some may differ"):
        tokenizer = tokenizer.with_special_tokens([END])
    assert tokenizer.encode("ab" + END) == [257, 258]
    assert tokenizer.to_huggingface().encode("ab" + END).ids == [257, 258]
    assert bpe.Tokenizer.from_str(tokenizer.to_str()).encode("ab" + END) == [257, 258]


def test_tokens_are_added_after_all_pieces_also_those_that_are_listed_twice():
    vocab = [("<unk>", 0.0), ("a", -1.0), ("a", -2.0), ("b", -3.0)]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, 0))
    old = ours_from(theirs)
    theirs.add_special_tokens(["<m>"])
    assert notes_of(lambda: old.with_special_tokens(["<m>"])) == []
    assert old.with_special_tokens(["<m>"]).encode("ab<m>") == theirs.encode("ab<m>").ids


BERT_SETTINGS = [{}, {"pad_token": "[MASK]"}, {"unk_token": "<x>"}, {"do_lower_case": False}]
BERT_SETTINGS += [{"cls_token": STRIPPED | {"content": "<x>", "lstrip": False}}]


@pytest.mark.parametrize("config", BERT_SETTINGS)
def test_roles_and_case_of_a_bert_are_those_of_its_settings(config, tmp_path):
    names = "\n".join([*BERT_PIECES, "<x>", *"Aab", "##b", "a"])  # the last of equal lines counts
    write_folder(tmp_path, {"vocab.txt": names, "tokenizer_config.json": config})
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    text = "A ab [PAD][UNK]<x> ? [MASK] [CLS] a"
    ours = bpe.Tokenizer.load(tmp_path)
    assert ours.encode(text, add_special_tokens=True) == theirs.encode(text)


ADDED_ROLES = [({"eos_token": "é"}, "ab"), ({"extra_special_tokens": {"image_token": "é"}}, "ab")]
ADDED_ROLES += [({"extra_special_tokens": ["é", "<new>"]}, "a\ufffdb")]
ADDED_ROLES += [({"additional_special_tokens": ["é"]}, "a\ufffdb")]


@pytest.mark.parametrize("roles, text", ADDED_ROLES)
def test_a_role_makes_an_added_token_special(roles, text, tokenizer, tmp_path):
    written(tmp_path, tokenizer, [{"content": "é", "special": False, "lstrip": True}])
    roles = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    write_folder(tmp_path, {"tokenizer_config.json": roles})
    ours = bpe.Tokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode("a éb")
    assert ids == theirs.encode("a éb") and ours.decode(ids, True) == text
    assert theirs.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("field", ["extra_special_tokens", "additional_special_tokens"])
def test_an_extra_token_of_added_tokens_json_is_special(field, tmp_path):
    ids = {name: id for id, name in enumerate([*map(in_chars, BYTES), END])}
    config = {"tokenizer_class": "GPT2Tokenizer", field: ["ab"]}
    files = {"vocab.json": ids, "added_tokens.json": {"ab": 257}, "tokenizer_config.json": config}
    write_folder(tmp_path, files)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.decode([99, 257], skip_special_tokens=True) == "c"
    assert bpe.Tokenizer.load(tmp_path).decode([99, 257], skip_special_tokens=True) == "c"


flags_there = st.fixed_dictionaries(
    dict.fromkeys(("special", "lstrip", "normalized"), st.booleans())
)
ROLES_THERE = [{"eos_token": "<a>"}, {"eos_token": STRIPPED | {"content": "<a>"}}]
ROLES_THERE += [{"extra_special_tokens": ["<a>"]}, {"extra_special_tokens": {"image_token": "<a>"}}]


@examples(25)
@given(
    listed=flags_there,
    roles=st.sampled_from(ROLES_THERE),
    decoder=st.none()
    | st.sampled_from(["<a>", "<b>"]).flatmap(lambda text: st.tuples(st.just(text), flags_there)),
)
@example(
    listed={"special": False, "lstrip": False, "normalized": False},
    roles={"eos_token": "<a>"},
    decoder=("<b>", {"special": True}),
)
@example(
    listed={"special": False, "lstrip": False, "normalized": False},
    roles={"extra_special_tokens": ["<a>"]},
    decoder=("<a>", {"special": False}),
)
@example(
    listed={"special": False, "lstrip": False, "normalized": False},
    roles={"eos_token": "<a>"},
    decoder=("<a>", {"normalized": True}),
)
@example(
    listed={"special": True, "lstrip": False, "normalized": False},
    roles={"extra_special_tokens": ["<a>"]},
    decoder=("<a>", {"special": False}),
)
def test_flags_of_an_added_token_are_those_of_transformers(
    listed, roles, decoder, tokenizer, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("flags")
    added = [{"content": "<a>", **listed}, {"content": "<b>"}]
    written(folder, tokenizer, added)
    edited(folder, normalizer={"type": "Lowercase"})  # <A> is <a> in normalized text
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    if decoder:
        text, flags = decoder
        id = str(theirs_from(folder).token_to_id(text))
        config["added_tokens_decoder"] = {id: added_there(text, **flags)}
    write_folder(folder, {"tokenizer_config.json": config})
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = bpe.Tokenizer.load(folder)
    ids = theirs.encode("x <a>y <A> <b>")
    assert ours.encode("x <a>y <A> <b>") == ids
    assert ours.decode(ids, True) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("has_decoder", [False, True])
def test_a_token_is_special_only_if_a_file_says_so(has_decoder, tokenizer, tmp_path):
    theirs = written(tmp_path, tokenizer, [{"content": "<a>", "special": False}])
    id = theirs.token_to_id("<a>")
    beside = {"added_tokens.json": {"<a>": id}}
    if has_decoder:
        config = {"added_tokens_decoder": {str(id): {"content": "<a>"}}}
        beside = {"tokenizer_config.json": config}
    write_folder(tmp_path, beside)
    ours = bpe.Tokenizer.load(tmp_path)
    assert ours.decode(ours.encode("x<a>"), skip_special_tokens=True) == "x<a>"
    assert id in ours.encode("x<a>")


@pytest.mark.parametrize("config", [{}, {"eos_token": "<A>"}, {"extra_special_tokens": ["<A>"]}])
def test_a_token_with_a_role_is_found_in_the_given_text(config, tmp_path):
    write_for_class(tmp_path, "BertTokenizer")  # whose normalizer makes it <a>
    n_lines = len((tmp_path / "vocab.txt").read_text("utf-8").rstrip("\n").split("\n"))
    write_folder(tmp_path, {"added_tokens.json": {"<A>": n_lines}, "tokenizer_config.json": config})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = bpe.Tokenizer.load(tmp_path)
    for text in ("hi <A> hi", "hi <a> hi", "<A><a>"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_added_tokens_are_found_before_sentencepiece_sees_the_text(prose, tmp_path):
    theirs, file = trained_there(tmp_path, prose, model_type="unigram")
    n = theirs.get_piece_size()
    write_folder(tmp_path, {"added_tokens.json": {"<ﬁ>": n}})  # its normal form is <fi>
    ours = bpe.Tokenizer.load(file)
    assert n in ours.encode("<ﬁ>") and n not in ours.encode("<fi>")


UNREAD = [
    ("tekken.json", '{"config": {}, "vocab": []}', "it has no model.*AutoTokenizer"),
    ("vocab.json", '{"a": 0, "b</w>": 1}', "the other is missing.*AutoTokenizer"),
    ("nothing.bin", "", "no tokenizer.json here.*AutoTokenizer"),
]
TEXTS = ["\nA text.\n", "\n\n", "\na\nb\n", "\n}\n}\n", "Two words\n\nA text.\n"]
UNREAD += [("a.txt", text, "this is not a tokenizer.json") for text in TEXTS]


@pytest.mark.parametrize("name,content,message", UNREAD)
def test_other_files_are_refused_with_a_way_to_load_them(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    path = tmp_path if name in ("vocab.json", "nothing.bin") else tmp_path / name
    with refused_in_one_line(message):
        bpe.Tokenizer.load(path)


@functools.lru_cache
def merge_tables(merges):
    """The rank of each pair, and the pair that becomes each token: the first of several."""
    rank = {pair: i for i, pair in reversed([*enumerate(merges)])}
    return rank, {left + right: (left, right) for left, right in reversed(merges)}


def by_subword_nmt(word, merges, used=None):
    """The tokens of a word as subword-nmt makes them: "@@" ends all but the last."""
    rank, parts = merge_tables(merges)
    symbols = naive_merge([*word[:-1], word[-1] + "</w>"], rank.get)

    def split(token):
        name = f"{token}@@".removesuffix("</w>@@")
        if used is None or name in used or token not in parts:
            return [name]
        return [name for part in parts[token] for name in split(part)]

    return [name for token in symbols for name in split(token)]


@pytest.mark.parametrize("threshold", [None, 1, 5, 40])
def test_codes_of_subword_nmt_have_its_tokens(threshold, prose, tmp_path):
    model = json.loads(famous("suffix", prose).to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    lines = ["#version: 0.2", *map(" ".join, merges), " ".join(merges[0])]
    merges.append(("a", "\u2028</w>"))  # a line for str.splitlines, and a letter in a word here
    merges = tuple(merges)
    lines.append(" ".join(merges[-1]))
    (tmp_path / "codes").write_text("\n".join(lines) + "\r\n", newline="")
    (tmp_path / "old").write_text("\n".join(lines[1:]))
    words = Counter([*" ".join(prose[::4]).split(), "a\u2028"])
    counts = Counter()
    for word, n in words.items():
        counts.update(dict.fromkeys(by_subword_nmt(word, merges), n))
    used = None
    ours = bpe.Tokenizer.load(tmp_path / "codes")
    if threshold:
        others = dict.fromkeys("жяюэцщ", 99)  # letters of no merge, in their order
        used = {token for token, n in counts.items() if n >= threshold}
        lines = [f"{token} {n}\n" for token, n in (counts | others).items()]
        (tmp_path / "v").write_text("".join(lines))
        ours = bpe.Tokenizer.from_files(tmp_path / "v", tmp_path / "codes", threshold=threshold)
        assert [*filter(others.__contains__, map(bytes.decode, ours.vocab.values()))] == [*others]
        with pytest.raises(bpe.InputError, match="codes of subword-nmt"):
            bpe.Tokenizer.from_files(tmp_path / "v", tmp_path / "old")
    ours.save(tmp_path / "saved", "huggingface")
    again = bpe.Tokenizer.load(tmp_path / "saved")
    names = {
        id: (token + b"@@").decode().removesuffix("</w>@@") for id, token in ours.vocab.items()
    }
    names[0] = "<unk>"
    known = {*names.values()}
    for word in words:
        ids = ours.encode(f" {word}\n")
        expected = by_subword_nmt(word, merges, used)
        assert ids == again.encode(word)
        assert [names[id] for id in ids] == [
            token if token in known else "<unk>" for token in expected
        ]
    assert ours.decode(ours.encode("self  the")) == "self the"


def test_a_folder_of_clip_has_the_ids_of_transformers(prose, tmp_path):
    letters = sorted(ByteLevel.alphabet())
    options = {"end_of_word_suffix": "</w>", "vocab_size": 900, "initial_alphabet": letters}
    cut = Sequence([Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"), "isolated"), NO_CUT])
    lower = [text.lower() for text in prose]
    model = {"end_of_word_suffix": "</w>"}
    theirs = trained_by_hugging_face("BPE", lower, cut, model, **options)
    merges = [tuple(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]
    names = [*letters, *(letter + "</w>" for letter in letters), *map("".join, merges)]
    names = [*dict.fromkeys(names), "<|startoftext|>", END]
    vocab = {name: id for id, name in enumerate(names)}
    lines = ["#version: 0.2", *map(" ".join, merges), ""]
    settings = {"tokenizer_class": "CLIPTokenizer"}
    files = {"vocab.json": vocab, "merges.txt": "\n".join(lines), "tokenizer_config.json": settings}
    write_folder(tmp_path, files)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = bpe.Tokenizer.load(tmp_path)
    for text in [*prose[:300], f"A  photo\n of{END}É e\u0301 ﬁ <|startoftext|>a</w>", "", " "]:
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == theirs(text)["input_ids"] and ours.decode(ids) == theirs.decode(ids)
        for skip in (True, False):
            assert ours.decode(ids[1:-1], skip) == theirs.decode(ids[1:-1], skip)
    for name in ("CLIPTokenizer", None):  # the tokens of the caller are new ones
        write_folder(tmp_path, {"tokenizer_config.json": {"tokenizer_class": name}})
        ours = bpe.Tokenizer.load(tmp_path, special_tokens=["<x>", END])
        text = f"a photo<x>of {END}a"
        theirs.add_special_tokens({"pad_token": "<x>"})
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    paths = tmp_path / "vocab.json", tmp_path / "merges.txt"
    assert bpe.Tokenizer.from_files(*paths, ["<x>"]).encode("Photo") == ours.encode("Photo")
    with refusal("as in CLIP's files, tokens end in </w>: omit `pattern`"):
        bpe.Tokenizer.load(tmp_path, pattern="gpt2")


@pytest.mark.filterwarnings("ignore:Recommended", "ignore:some ids may differ")
def test_a_folder_of_marian_has_the_ids_of_transformers(prose, tmp_path):
    pieces = {}
    for name, texts in [("target", [*map(str.upper, prose), "流氓皇帝 è ç"]), ("source", prose)]:
        model, file = trained_there(tmp_path, texts, character_coverage=1.0)
        file.rename(tmp_path / f"{name}.spm")
        pieces |= {model.id_to_piece(k): 0 for k in range(3, len(model))}
    names = ["</s>", "<unk>", *[*pieces][::-1], ">>fr<<", "氓皇", "<pad>"]
    for n_missing in (0, 30):
        vocab = {name: k for k, name in enumerate(names[:20] + names[20 + n_missing :])}
        write_folder(tmp_path, {"vocab.json": vocab})
        theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
        with note("vocab.json: language codes are found anywhere in a text"):
            ours = bpe.Tokenizer.load(tmp_path)
        tricky = [">>fr<< Aè 流氓皇帝 氓皇", "a</s>>>fr<<b", "è", "", "  a ", "氓皇帝 皇 AççBç"]
        for text in [*prose[:200], *map(str.upper, prose[:50]), *tricky]:
            assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"]
        ids = theirs("some text")["input_ids"]
        assert ours.decode(ids, True) == theirs.decode(ids, skip_special_tokens=True)
        for write in (functools.partial(ours.save, tmp_path / "saved"), ours.as_hf):
            with warnings.catch_warnings(action="error"), refusal("cannot hold a folder of Marian"):
                write()
        with refusal("going on from a folder of Marian"):
            bpe.train(texts=["a"], vocab_size=9999, from_=ours)


def test_what_is_no_file_in_a_folder_of_a_model_is_named(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("../blobs/1")):
        path = tmp_path / "tokenizer_config.json"
        path.unlink() if path.is_file() else path.rename(tmp_path.with_name(make.__name__))
        make(path)
        with note("tokenizer_config.json: this is no file, but a folder, a pipe, or a link that"):
            bpe.Tokenizer.load(tmp_path)
        path.rename(tmp_path.with_name(f"{tmp_path.name}-{make.__name__}"))
        path.touch()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "tokenizer.json").symlink_to("../blobs/1")
    with refused_in_one_line("again/tokenizer.json: this is no file, but .* leads nowhere"):
        bpe.Tokenizer.load(tmp_path / "again")


LETTERS = "abehilotrxyzA12'`\"."


def bytes_of_class(row):
    """A vocab.json and merges.txt whose tokens are bytes, or characters of words."""
    pairs = ["h i", "t h", "Ġ h", "th e", "Ġ a", "l l", "1 2"]
    letters = [*bpe._BYTE_NAMES]
    if row.model.get("end_of_word_suffix"):
        pairs = ["h i</w>", "t h", "th e</w>", "a b"]
        letters = [*(bpe._BYTE_NAMES if row.cuts == "clip" else LETTERS)]
        letters += [letter + "</w>" for letter in letters]
    roles = ["<s>", "<pad>", "</s>", "<|startoftranscript|>", "<|notimestamps|>"]
    roles += filter(None, row.roles.values())
    merged = [pair.replace(" ", "") for pair in pairs]
    names = dict.fromkeys([*roles, *sorted(letters), *merged])
    vocab = {name: id for id, name in enumerate(names)}
    return {"vocab.json": vocab, "merges.txt": "\n".join(["#version: 0.2", *pairs, ""])}


def lines_of_class(row):
    """A vocab.txt."""
    names = [*row.roles.values(), *LETTERS, *map("##{}".format, LETTERS), "hi", "the", "##re"]
    return {"vocab.txt": "\n".join(dict.fromkeys(names))}


def pieces_of_class(row, charsmap=b""):
    """A .model in which the tokens of a class lie as it expects them."""
    first = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    if row.roles.get("cls_token") == "[CLS]":
        first = [("<pad>", 3), (row.roles["unk_token"], 2), ("[CLS]", 3), ("[SEP]", 3)]
    elif "bos_token" not in row.roles and "cls_token" not in row.roles:
        first = [("<pad>", 3), ("</s>", 3), ("<unk>", 2)]
    names = ["▁", "▁hi", "▁the", "re", "▁a", "``", "▁▁", "é", "\u0301", *LETTERS]
    pieces = [(name, kind, 0.0) for name, kind in first]
    pieces += [(name, 1, -2 - k / 8) for k, name in enumerate(names)]
    is_bpe = row.cuts in ("llama", "gemma") or row.model.get("type") == "BPE"
    if is_bpe:
        names = ["▁t", "▁th", "▁the", "▁h", "▁hi", "ab", "▁", *LETTERS]
        pieces = [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0)]
        pieces += [(name, 6, 0.0) for name in FALLBACK]
        pieces += [(name, 1, -float(k)) for k, name in enumerate(names)]
    spec = {"precompiled_charsmap": charsmap, "add_dummy_prefix": True}
    proto = model_proto(pieces, 2 if is_bpe else 1, **spec)
    proto.trainer_spec.byte_fallback = is_bpe
    names = [name for name, *_ in pieces]
    proto.trainer_spec.unk_id = [kind for _, kind, _ in pieces].index(2)
    for role in ("bos", "eos", "pad"):
        name = row.roles.get(f"{role}_token")
        place = names.index(name) if name in names else -1
        setattr(proto.trainer_spec, f"{role}_id", place)
    return proto.SerializeToString()


@functools.lru_cache
def charsmap_there():
    proto = sentencepiece_model_pb2.ModelProto.FromString(normalizing_model("nmt_nfkc"))
    return proto.normalizer_spec.precompiled_charsmap


def write_for_class(folder, name):
    """Write a small vocabulary that a class of transformers reads."""
    row = bpe.CLASSES[name]
    if row.pieces or row.cuts in ("words", "marks", "llama", "gemma"):
        file = auto.tokenizer_class_from_name(name).vocab_files_names.get(
            "vocab_file", "tokenizer.model"
        )
        folder.mkdir(exist_ok=True)
        (folder / file).write_bytes(pieces_of_class(row, charsmap_there()))
    else:
        write_folder(folder, lines_of_class(row) if row.cuts == "bert" else bytes_of_class(row))
    model_types = [kind for kind, own in bpe._CLASS_BY_TYPE.items() if own == name]
    if model_types:
        write_folder(folder, {"config.json": {"model_type": model_types[0]}})
    else:
        write_folder(folder, {"tokenizer_config.json": {"tokenizer_class": name}})


CLASS_TEXTS = ["hi there", "  hi  the ", "Ünïcode É e\u0301 ﬁ 12 ½", "`` a '' ab", "", "a\n b\tc"]
CLASS_TEXTS += [
    "x<mask> y [MASK] the",
    "hi <mask>  the",
    "<s> a</s>the",
    "hi<|endoftext|>the [SEP] the",
    "don't",
]


def roles_of(tokenizer):
    names = transformers.PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES
    roles = {name: getattr(tokenizer, name, None) for name in names}
    return {name: text for name, text in roles.items() if text}


def assert_read_alike(folder):
    """Ours and AutoTokenizer's are the same tokenizer, and so is a saved copy; returns notes."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    with warnings.catch_warnings(record=True, action="always") as notes:
        ours = bpe.Tokenizer.load(folder)
        ours.save(folder / "again")
    saved = transformers.AutoTokenizer.from_pretrained(folder / "again")
    for add in (False, True):
        expected = [theirs.encode(text, add_special_tokens=add) for text in CLASS_TEXTS]
        assert ours.encode_batch(CLASS_TEXTS, add_special_tokens=add) == expected
        assert [saved.encode(text, add_special_tokens=add) for text in CLASS_TEXTS] == expected
    assert dict(theirs("a", "hi")) == dict(saved("a", "hi"))
    assert roles_of(theirs) == roles_of(saved)
    assert roles_of(theirs).items() <= ours.config.items()
    assert theirs.padding_side == saved.padding_side
    return "\n".join(str(one.message) for one in notes)


def test_types_of_models_have_the_classes_of_transformers():
    there = {
        kind: (name or "").removesuffix("Fast")
        for kind, name in auto.TOKENIZER_MAPPING_NAMES.items()
    }
    plain = ("TokenizersBackend", "MistralCommonBackend", "")
    for kind, name in bpe._CLASS_BY_TYPE.items():
        own = there.get(kind, name)
        assert name == ("PreTrainedTokenizerFast" if own in plain else own)
    known = bpe._OWN_CLASSES | {*bpe._PLAIN_CLASSES, *plain, "MarianTokenizer"}
    assert {*there.values()} <= known


# These take words and boxes instead of texts.
OF_BOXES = {"LayoutLMv2Tokenizer", "LayoutLMv3Tokenizer", "UdopTokenizer"}


@pytest.mark.parametrize("name", sorted(OF_BOXES))
def test_a_folder_of_words_and_boxes_means_what_its_class_makes_of_it(name, tmp_path):
    write_for_class(tmp_path, name)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "json")
    for folder in (tmp_path, tmp_path / "json"):
        ours = bpe.Tokenizer.load(folder)
        ours.save(folder / "again")
        saved = transformers.AutoTokenizer.from_pretrained(folder / "again")
        for text, add in itertools.product(CLASS_TEXTS, [False, True]):
            expected = theirs.backend_tokenizer.encode(text, add_special_tokens=add).ids
            assert ours.encode(text, add_special_tokens=add) == expected
            assert saved.backend_tokenizer.encode(text, add_special_tokens=add).ids == expected
        assert roles_of(theirs) == roles_of(saved)


# The files of these classes are like those of another one; some need more to be read there.
NOTED_CLASSES = {
    "EsmTokenizer": "BertTokenizer",
    "LayoutXLMTokenizer": "XLMRobertaTokenizer",
    "MLukeTokenizer": "XLMRobertaTokenizer",
    "MarkupLMTokenizer": "RobertaTokenizer",
    "NougatTokenizer": "GPT2Tokenizer",
    "RoFormerTokenizer": "BertTokenizer",
    "SeamlessM4TTokenizer": "NllbTokenizer",
}


@pytest.mark.parametrize("name", NOTED_CLASSES)
def test_a_folder_of_a_class_that_is_not_known_gets_a_note(name, tmp_path):
    write_for_class(tmp_path, NOTED_CLASSES[name])
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "json")
    for folder in (tmp_path, tmp_path / "json"):
        write_folder(folder, {"tokenizer_config.json": {"tokenizer_class": name}})
        with note(f"AutoTokenizer of transformers 5 gives other ids.*{name}"):
            ours = bpe.Tokenizer.load(folder)
        ours.save(folder / "again")
        saved = transformers.AutoTokenizer.from_pretrained(folder / "again").backend_tokenizer
        for text, add in itertools.product(CLASS_TEXTS[:3], [False, True]):
            ids = ours.encode(text, add_special_tokens=add)
            assert saved.encode(text, add_special_tokens=add).ids == ids


@pytest.mark.parametrize("name", sorted(bpe.CLASSES.keys() - OF_BOXES))
def test_a_folder_means_what_its_class_makes_of_it(name, tmp_path):
    write_for_class(tmp_path, name)
    is_model = bool([*tmp_path.glob("*.model")])
    if is_model and not bpe.CLASSES[name].pieces:
        with note(f"AutoTokenizer of transformers 5 gives other ids.*{name}"):
            bpe.Tokenizer.load(tmp_path)
    elif bpe.CLASSES[name].needs_json:
        assert not len(transformers.AutoTokenizer.from_pretrained(tmp_path)("hi")["input_ids"])
        with note(f"{name} of transformers 5 reads a tokenizer.json alone, which `save` writes"):
            bpe.Tokenizer.load(tmp_path)
    else:
        assert "AutoTokenizer" not in assert_read_alike(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "json")
    assert "AutoTokenizer" not in assert_read_alike(tmp_path / "json")


SWITCHES = ["add_prefix_space", "do_lower_case", "keep_accents", "strip_accents", "split_by_punct"]
SWITCHES += ["legacy", "add_bos_token", "add_eos_token", "tokenize_chinese_chars", "trim_offsets"]
flags_of_token = st.fixed_dictionaries(
    dict.fromkeys(("lstrip", "rstrip", "normalized"), st.booleans()),
    optional={"special": st.just(True)},
)


@st.composite
def edited_settings(draw, name):
    """One or two settings of a class as people write them into a tokenizer_config.json."""
    roles = bpe.CLASSES[name].roles
    texts = st.sampled_from(["<new>", "hi", *filter(None, roles.values())])
    tokens = texts | st.builds(
        lambda text, flags: token_there(text, **flags), texts, flags_of_token
    )
    lists = st.lists(tokens, max_size=2, unique_by=str)
    choices = dict.fromkeys(roles, tokens | st.none())
    choices |= dict.fromkeys(
        ("extra_special_tokens", "additional_special_tokens"), lists | st.none()
    )
    choices |= dict.fromkeys(("src_lang", "tgt_lang"), st.sampled_from(["fr_XX", "fra_Latn", "xx"]))
    choices |= dict.fromkeys(SWITCHES, st.sampled_from([True, False, None]))
    chosen = draw(st.lists(st.sampled_from([*choices]), min_size=1, max_size=2))
    return {setting: draw(choices[setting]) for setting in chosen}


def assert_edited_alike(folder):
    """The ids are those of AutoTokenizer, unless it refuses or a note names it."""
    theirs = there(transformers.AutoTokenizer.from_pretrained, folder)
    if theirs is None:
        return
    with warnings.catch_warnings(record=True, action="always") as notes:
        ours = bpe.Tokenizer.load(folder)
    if "AutoTokenizer of transformers 5" in "".join(str(one.message) for one in notes):
        return
    for text, add in itertools.product(CLASS_TEXTS, (False, True)):
        row = there(theirs.backend_tokenizer.encode, text, add_special_tokens=add)
        if row is not None:  # the library refuses some texts with `unk_token: null`
            assert ours.encode(text, add_special_tokens=add) == row.ids


def test_settings_that_are_edited_by_hand_mean_what_transformers_makes_of_them(tmp_path):
    names = sorted(bpe.CLASSES)
    for name in names:
        write_for_class(tmp_path / name, name)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        theirs.save_pretrained(tmp_path / name / "json")

    @settings(max_examples=max(30, settings().max_examples))
    @given(st.sampled_from(names), st.booleans(), st.data())
    def check(name, is_json, data):
        is_json |= bpe.CLASSES[name].needs_json
        folder = tmp_path / name / "json" if is_json else tmp_path / name
        file = folder / "tokenizer_config.json"
        before = file.read_bytes() if file.exists() else None
        config = json.loads(before or json.dumps({"tokenizer_class": name}))
        file.write_text(json.dumps(config | data.draw(edited_settings(name))))
        try:
            assert_edited_alike(folder)
        finally:
            file.write_bytes(before) if before else file.unlink()

    check()


# A folder whose settings were edited by hand: its class, and the settings.
EDITED = [
    ("DPRReaderTokenizer", {"strip_accents": False, "do_lower_case": False}),
    ("HerbertTokenizer", {"sep_token": "<new>"}),
    ("NllbTokenizer", {"src_lang": "xx", "eos_token": "<new>"}),
    ("LukeTokenizer", {"additional_special_tokens": ["<new>"]}),
    ("Qwen2Tokenizer", {"pad_token": token_there("hi", rstrip=True)}),
    ("RobertaTokenizer", {"bos_token": token_there("<s>", lstrip=True)}),
    ("T5Tokenizer", {"eos_token": "<new>"}),
    ("AlbertTokenizer", {"add_bos_token": True, "bos_token": "<new>"}),
    ("AlbertTokenizer", {"add_prefix_space": None}),
    ("BigBirdTokenizer", {"mask_token": "hi"}),
    ("CamembertTokenizer", {"pad_token": None}),
    ("BlenderbotTokenizer", {"add_eos_token": True, "eos_token": None}),
    ("CohereTokenizer", {"extra_special_tokens": [token_there("the", lstrip=True)]}),
    ("CohereTokenizer", {"extra_special_tokens": {"image_token": token_there("the", lstrip=True)}}),
    ("CohereTokenizer", {"image_token": token_there("the", lstrip=True)}),
    ("CohereTokenizer", {"image_token": {"content": "the"}}),  # without __type it is no token
    ("AlbertTokenizer", {"image_token": {"content": "the", "lstrip": True}}),
    (
        "AlbertTokenizer",
        {"extra_special_tokens": {"a": "the"}, "additional_special_tokens": ["hi"]},
    ),
    ("SplinterTokenizer", {"question_token": "hi"}),
    ("DebertaV2Tokenizer", {"sep_token": token_there("[SEP]", lstrip=True)}),
    ("DebertaV2Tokenizer", {"extra_special_tokens": [], "sep_token": "hi", "eos_token": "hi"}),
]


@pytest.mark.parametrize(("name", "edits"), EDITED)
def test_an_edited_setting_means_what_its_class_makes_of_it(name, edits, tmp_path):
    write_for_class(tmp_path, name)
    write_folder(tmp_path, {"tokenizer_config.json": {"tokenizer_class": name} | edits})
    if not (tmp_path / "sentencepiece.bpe.model").exists() or bpe.CLASSES[name].pieces:
        assert "AutoTokenizer" not in assert_read_alike(tmp_path)


def write_json_of_class(folder, name, **changes):
    """Write the tokenizer.json of a class, with other fields, and return its settings."""
    write_for_class(folder, name)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder / "json")
    content = read_json(folder / "json" / "tokenizer.json")
    write_folder(folder / "json", {"tokenizer.json": content | changes})
    return read_json(folder / "json" / "tokenizer_config.json")


@pytest.mark.parametrize("changes", [{}, {"added_tokens": None}, {"model": None}])
def test_a_file_of_a_class_may_list_no_added_tokens(changes, tmp_path):
    config = write_json_of_class(tmp_path, "RobertaTokenizer")
    config["added_tokens_decoder"] = {"0": token_there("<s>")}
    content = read_json(tmp_path / "json" / "tokenizer.json") | changes
    if not changes:
        del content["added_tokens"]
    write_folder(tmp_path / "json", {"tokenizer.json": content, "tokenizer_config.json": config})
    if "model" in changes:
        with refused_in_one_line("it has no model.*AutoTokenizer"):
            bpe.Tokenizer.load(tmp_path / "json")
        return
    assert bpe.Tokenizer.load(tmp_path / "json").encode("hi<s>")[-1] == 0


def test_beside_a_list_of_added_tokens_a_class_adds_no_others(tmp_path):
    listed = [{"id": 0, **token_there("<s>")}, {"id": 262, **token_there("hi", rstrip=True)}]
    config = write_json_of_class(tmp_path, "RobertaTokenizer", added_tokens=listed)
    config["added_tokens_decoder"] = {"0": token_there("<s>"), "500": token_there("the")}
    write_folder(tmp_path / "json", {"tokenizer_config.json": config})
    assert "AutoTokenizer" not in assert_read_alike(tmp_path / "json")


@pytest.mark.parametrize("nulls", [(), bpe._FURTHER[:1], bpe._FURTHER])
def test_the_language_codes_of_nllb_are_added_where_a_file_lacks_them(nulls, tmp_path):
    config = write_json_of_class(tmp_path, "NllbTokenizer", added_tokens=[])
    config.pop("extra_special_tokens")
    config |= {"src_lang": "fra_Latn"} | dict.fromkeys(nulls)
    write_folder(tmp_path / "json", {"tokenizer_config.json": config})
    assert "AutoTokenizer" not in assert_read_alike(tmp_path / "json")


# The settings of a folder, its special_tokens_map.json, and the texts that are tokens.
MAPPED = [
    ({"additional_special_tokens": ["hi"]}, {"additional_special_tokens": ["the"]}),
    ({"additional_special_tokens": ["hi"]}, {"extra_special_tokens": ["hi", "the"]}),
    ({"extra_special_tokens": ["hi"]}, {"extra_special_tokens": ["the"]}),
    ({"extra_special_tokens": {"a": "hi"}}, {"extra_special_tokens": ["the"]}),
    ({"extra_special_tokens": {"a": "hi"}}, {"extra_special_tokens": {"b": "the"}}),
    ({"extra_special_tokens": ["hi"]}, {"extra_special_tokens": {"b": "the"}}),
    ({"extra_special_tokens": ["hi"], "additional_special_tokens": {"b": "the"}}, {}),
    ({}, {"my_token": {"content": "the", "lstrip": True}}),
]


@pytest.mark.parametrize(("edits", "tokens"), MAPPED)
@pytest.mark.parametrize("name", ["RobertaTokenizer", "LlamaTokenizer", "LukeTokenizer"])
def test_a_special_tokens_map_is_joined_with_the_settings_as_there(name, edits, tokens, tmp_path):
    config = write_json_of_class(tmp_path, name)
    config.pop("extra_special_tokens", None)
    files = {"tokenizer_config.json": config | edits, "special_tokens_map.json": tokens}
    write_folder(tmp_path / "json", files)
    assert "AutoTokenizer" not in assert_read_alike(tmp_path / "json")


def test_a_token_of_a_folder_with_a_role_of_its_own_is_found_as_there(tmp_path):
    config = write_json_of_class(tmp_path, "BarthezTokenizer")
    files = {"tokenizer_config.json": config | {"my_token": "<new>"}}
    write_folder(tmp_path / "json", files | {"added_tokens.json": {"<new>": 400}})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "json")
    with note("added tokens have the ids .* beside it"):
        ours = bpe.Tokenizer.load(tmp_path / "json")
    for text in ("a  <new> hi", "<new>", " <new>a"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_what_is_no_token_is_named(tmp_path):
    write_for_class(tmp_path, "RobertaTokenizer")
    for token in (3, None, {"content": 3}, ["a"]):
        write_folder(tmp_path, {"tokenizer_config.json": {"extra_special_tokens": [token]}})
        with refused_in_one_line("extra_special_tokens: .* is no token"):
            bpe.Tokenizer.load(tmp_path)


def test_a_folder_whose_class_fills_gaps_gets_a_note(tmp_path):
    write_for_class(tmp_path, "CodeLlamaTokenizer")
    with note("CodeLlamaTokenizer of transformers takes <FILL_ME> in a text for a gap to fill"):
        bpe.Tokenizer.load(tmp_path)


def test_a_tokenizer_of_llama_with_bytes_keeps_its_steps_and_its_roles(tmp_path):
    write_json_of_class(tmp_path, "GPT2Tokenizer")
    folder = tmp_path / "json"
    for name in ("LlamaTokenizer", "LlamaTokenizerFast"):
        config = {"tokenizer_class": name, "eos_token": END, "extra_special_tokens": ["<new>"]}
        write_folder(folder, {"tokenizer_config.json": config})
        assert "AutoTokenizer" not in assert_read_alike(folder)
    (folder / "tokenizer_config.json").unlink()
    write_folder(folder, {"config.json": {"model_type": "idefics"}})
    with note("AutoTokenizer of transformers 5 gives other ids.*LlamaTokenizer"):
        bpe.Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("name", "edits"),
    [
        ("BertTokenizer", {"cls_token": None}),
        ("WhisperTokenizer", {"language": "en"}),
        ("T5Tokenizer", {"extra_ids": 0}),
    ],
)
def test_a_setting_that_is_not_obeyed_gets_a_note(name, edits, tmp_path):
    write_for_class(tmp_path, name)
    write_folder(tmp_path, {"tokenizer_config.json": {"tokenizer_class": name} | edits})
    with note(f"AutoTokenizer of transformers 5 gives other ids.*{name}"):
        bpe.Tokenizer.load(tmp_path)


def test_a_class_that_does_not_read_the_files_of_a_folder_gets_a_note(tmp_path):
    files = bytes_of_class(bpe.CLASSES["GPT2Tokenizer"])
    write_folder(tmp_path, files | {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}})
    with note("vocab.json: AutoTokenizer of transformers 5 gives other ids.*LlamaTokenizer"):
        bpe.Tokenizer.load(tmp_path)
    write_folder(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}})
    assert "AutoTokenizer" not in assert_read_alike(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with note("vocab.json: AutoTokenizer of transformers 5 reads tokenizer.model instead"):
        bpe.Tokenizer.load(tmp_path)


def test_another_unknown_token_beside_a_file_gets_a_note(tmp_path):
    write_for_class(tmp_path, "BertTokenizer")
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "json")
    config = {"tokenizer_class": "BertTokenizer", "unk_token": "[MASK]"}
    write_folder(tmp_path / "json", {"tokenizer_config.json": config})
    with note("AutoTokenizer of transformers 5 gives other ids.*BertTokenizer"):
        bpe.Tokenizer.load(tmp_path / "json")


def test_xlnet_never_keeps_accents(tmp_path):
    write_for_class(tmp_path, "XLNetTokenizer")
    config = {"tokenizer_class": "XLNetTokenizer", "keep_accents": True}
    write_folder(tmp_path, {"tokenizer_config.json": config})
    assert "AutoTokenizer" not in assert_read_alike(tmp_path)


def test_a_space_that_begins_each_text_stays(tmp_path):
    write_folder(tmp_path, bytes_of_class(bpe.CLASSES["GPT2Tokenizer"]))
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "\u3000", "add_bos_token": True}
    write_folder(tmp_path, {"tokenizer_config.json": config})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = bpe.Tokenizer.load(tmp_path)
    assert ours.encode("hi", add_special_tokens=True) == theirs.encode("hi")


def test_a_folder_of_m2m100_is_named(tmp_path, prose):
    trained_there(tmp_path, prose)[1].rename(tmp_path / "sentencepiece.bpe.model")
    write_folder(tmp_path, {"vocab.json": {"<s>": 0, "<unk>": 1}})
    with refusal("vocab.json: a folder of M2M100 or Speech2Text, whose vocab.json"):
        bpe.Tokenizer.load(tmp_path)


def test_a_model_of_llama_with_new_tokens_is_saved_with_its_ids(tmp_path):
    write_for_class(tmp_path, "LlamaTokenizer")
    with note("AutoTokenizer of transformers 5 gives other ids.*LlamaTokenizer"):
        ours = bpe.Tokenizer.load(tmp_path).with_special_tokens(["<|im_start|>"])
    ours.save(tmp_path / "again")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in ("<|im_start|>\n", "a<|im_start|> the", "the <|im_start|>the", " hi"):
        assert saved.encode(text, add_special_tokens=False) == ours.encode(text)


def test_a_damaged_file_beside_a_model_is_named_once(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with refusal(f"^{tmp_path}/tokenizer_config.json: wrong content"):
            bpe.Tokenizer.load(path)


def test_a_type_of_a_model_that_is_no_string_names_no_class(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    write_folder(tmp_path, {"config.json": {"model_type": ["gpt2"]}})
    assert bpe.Tokenizer.load(tmp_path).encode("ab") == tokenizer.encode("ab")


def test_a_class_that_changes_the_steps_of_a_file_gets_a_note_and_is_not_saved(tmp_path):
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "▁": 2}, []))
    theirs.normalizer = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])
    config = {"tokenizer_class": "LlamaTokenizer", "padding_side": "right"}
    write_folder(tmp_path, {"tokenizer.json": theirs.to_str(), "tokenizer_config.json": config})
    with note("tokenizer.json: AutoTokenizer of transformers 5 gives other ids.*LlamaTokenizer"):
        ours = bpe.Tokenizer.load(tmp_path)
    ours.save(tmp_path / "again")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in ("a b", " a", "a<s>b"):
        assert saved.encode(text) == ours.encode(text)
    assert saved.padding_side == "right" and saved.bos_token == "<s>"


def test_the_files_of_a_class_come_first(tmp_path):
    write_for_class(tmp_path, "XLMRobertaTokenizer")
    write_folder(tmp_path, bytes_of_class(bpe.CLASSES["GPT2Tokenizer"]))
    assert "AutoTokenizer" not in assert_read_alike(tmp_path)
    write_folder(tmp_path, {"config.json": {"model_type": "gpt2"}})
    assert bpe.Tokenizer.load(tmp_path).model.alphabet == "bytes"


def test_a_class_that_is_not_fast_has_no_swapped_tokenizer(tmp_path, prose):
    _, file = trained_there(tmp_path, prose, model_type="unigram")
    for name in ("source.spm", "target.spm"):
        shutil.copy(file, tmp_path / name)
    vocab = {"</s>": 0, "<unk>": 1, "▁the": 2, "<pad>": 3}
    write_folder(tmp_path, {"vocab.json": vocab, "config.json": {"model_type": "marian"}})
    write_folder(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "MarianTokenizer"}})
    ours = bpe.Tokenizer.load(tmp_path)
    with refusal("MarianTokenizer of transformers is not a fast tokenizer"):
        ours.as_hf()


def test_a_clip_tokenizer_of_transformers_decodes_as_it_did(tmp_path):
    write_for_class(tmp_path, "CLIPTokenizer")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = bpe.Tokenizer.load(theirs).as_hf()
    ids = theirs("hi the ab")["input_ids"]
    assert ours("hi the ab")["input_ids"] == ids and ours.decode(ids) == theirs.decode(ids)


def test_special_tokens_that_are_normalized_to_the_same_text_get_a_note():
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    theirs.normalizer = N.Lowercase()
    for text in ("AB", "ab"):
        theirs.add_tokens([tokenizers.AddedToken(text, normalized=True)])
    ours = bpe.Tokenizer.from_str(theirs.to_str())
    with note("'AB' and 'ab' are normalized to the same text: Hugging Face finds either"):
        assert ours.encode("aAb") == [0, 3]
    assert theirs.encode("aAb").ids in ([0, 2], [0, 3])


def test_a_special_token_that_is_normalized_to_nothing_gets_a_note():
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "x": 1}, []))
    theirs.normalizer = N.Replace("x", "")
    theirs.add_tokens([tokenizers.AddedToken("xx", normalized=True)])
    ours = bpe.Tokenizer.from_str(theirs.to_str())
    with note("the special token 'xx' is normalized to nothing: `encode` finds it nowhere"):
        assert ours.encode("axxa") == theirs.encode("axxa").ids == [0, 0]


def test_dropout_and_a_decoder_of_bytes_beside_characters_load():
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE({"h": 0, "Ġ": 1, "i": 2, "hi": 3, "é": 4}, [("h", "i")])
    )
    theirs.decoder = D.ByteLevel()
    content = json.loads(theirs.to_str())
    content["model"]["dropout"] = 0.5
    with note("dropout 0.5 of the model: `encode` leaves out no merge"):
        ours = bpe.Tokenizer.from_str(json.dumps(content))
    assert ours.encode("hiĠé") == theirs.encode("hiĠé").ids
    for ids in ([3, 1, 4], [4], [1, 3]):
        assert ours.decode(ids) == theirs.decode(ids)


@given(
    st.lists(st.integers(1, 4), min_size=5, max_size=5),
    st.lists(st.tuples(*[st.integers(0, 9)] * 2, st.booleans()), max_size=8),
    st.lists(st.text("abcdéx", max_size=12), max_size=4),
)
def test_tokens_that_share_an_id_are_those_of_hugging_face(ids, pairs, some_texts):
    vocab = {"<unk>": 0, **dict(zip("abcdé", ids, strict=True))}
    letters, merges = [*"abcdé"], []
    for left, right, is_shared in pairs:
        left, right = letters[left % len(letters)], letters[right % len(letters)]
        if left + right not in vocab:
            vocab[left + right] = max(vocab.values()) + (not is_shared)
            letters.append(left + right)
            merges.append((left, right))
    content = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>")).to_str())
    content["model"] |= {"vocab": vocab, "merges": merges}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
    with warnings.catch_warnings(record=True, action="always") as notes:
        ours = bpe.Tokenizer.from_str(json.dumps(content))
        assert bpe.Tokenizer.from_str(ours.to_str()).digest == ours.digest
    is_noted = any("several tokens have one id" in str(each.message) for each in notes)
    assert is_noted == (len({*vocab.values()}) < len(vocab))
    assert ours.get_vocab() == theirs.get_vocab()
    expected = [row.ids for row in theirs.encode_batch(some_texts)]
    assert ours.encode_batch(some_texts) == expected
    assert [ours.sample(text, alpha=0.0) for text in some_texts] == expected


@given(
    st.lists(st.sampled_from("▁abé\n\t中́🙂x"), min_size=4, max_size=30),
    st.sampled_from([[-1.0], [-1.0, -3.0, -2.0], range(0, -99, -1)]),
    st.lists(st.text("abé \n\t中́🙂xq", max_size=12), min_size=1, max_size=4),
)
def test_sentencepiece_merges_letters_that_are_no_tokens(letters, scores, some_texts):
    tokens = [*"▁abé"]
    for left, right in zip(letters[::2], letters[1::2], strict=False):
        tokens += {left + right, tokens[-1] + right} - {*tokens}
    pieces = [("<unk>", 2, 0), *((name, 6, 0) for name in FALLBACK)]
    scored = zip(tokens, itertools.cycle(scores), strict=False)
    pieces += [(token, 1, score) for token, score in scored]
    proto = model_proto(pieces, 2, add_dummy_prefix=True, remove_extra_whitespaces=False)
    proto.trainer_spec.byte_fallback = True
    data = proto.SerializeToString()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = bpe.Tokenizer.from_model(bpe.read_sentencepiece(data))
    expected = theirs.encode(some_texts)
    assert ours.encode_batch(some_texts, "none") == expected
    assert [ours.sample(text, alpha=0.0) for text in some_texts] == expected


def test_bytes_are_encoded_as_their_text_whatever_flags_tokens_have():
    plain, normalized = bpe.AddedToken(), bpe.AddedToken(normalized=True)
    for flags in ({"<a>": plain}, {"<a>": normalized}, {"<a>": plain, "<b>": normalized}):
        ours = bpe.Tokenizer(BYTE_VOCAB, [], [*flags], added_tokens=flags)
        for text in ("one two", "é<a>b<b>", ""):
            assert ours.encode(text.encode()) == ours.encode(text)


@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram"])
@given(
    st.lists(st.text("ab12ü¼²½中é ", max_size=12), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_digits_after_a_byte_level_cut_between_bytes(kind, some_texts, has_regex, individual):
    pieces = ["Ã¼", "ab", "12", "Ġa", "a1", "1a", "a¼", "¼a"]
    names = ["<unk>", *ByteLevel.alphabet(), *pieces, *map("##{}".format, pieces)]
    vocab = {name: id for id, name in enumerate(dict.fromkeys(names))}
    options = {"unk_token": "<unk>"}
    if kind == "BPE":
        options = {"merges": [("Ã", "¼"), ("a", "b"), ("1", "2"), ("Ġ", "a"), ("a", "1")]}
    if kind == "Unigram":
        vocab, options = [(name, -1.0 - id % 5) for name, id in vocab.items()], {"unk_id": 0}
    theirs = tokenizers.Tokenizer(getattr(tokenizers.models, kind)(vocab, **options))
    cut = [ByteLevel(False, use_regex=has_regex), P.Digits(individual)]
    theirs.pre_tokenizer = Sequence(cut)
    theirs.decoder = D.ByteLevel()
    ours = bpe.Tokenizer.from_str(theirs.to_str())
    expected = [row.ids for row in theirs.encode_batch(some_texts)]
    assert ours.encode_batch(some_texts) == [*map(ours.encode, some_texts)] == expected
    written = json.loads(ours.to_str())["pre_tokenizer"]
    assert written == json.loads(theirs.to_str())["pre_tokenizer"]


def test_one_id_and_rows_of_ids_are_decoded(tokenizer):
    assert tokenizer.decode(97) == tokenizer.decode(np.int64(97)) == tokenizer.decode([97])
    assert tokenizer.decode([[97, 98], [], [99]]) == tokenizer.decode_batch([[97, 98], [], [99]])


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


def test_names_of_the_hub(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path / "hub" / "ann" / "bees" / "resolve" / ("a" * 40))
    about = tmp_path / "hub" / "api" / "models" / "ann"
    for name, files in {"bees": ["tokenizer.json", "tokenizer_config.json"], "ants": ["b"]}.items():
        siblings = [{"rfilename": file} for file in files]
        facts = {"id": f"ann/{name}", "sha": "a" * 40, "siblings": siblings}
        tree = [{"type": "file", "path": file, "size": 1, "oid": "b" * 40} for file in files]
        write_folder(about / name, {"revision/main": facts, f"tree/{facts['sha']}": tree})
    handler = functools.partial(Hub, directory=tmp_path / "hub")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    places = {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": template}
    for constant, value in (places | {"HF_HUB_CACHE": f"{tmp_path}/cache"}).items():
        monkeypatch.setattr(f"huggingface_hub.constants.{constant}", value)
    for _ in range(2):
        assert bpe.Tokenizer.load("ann/bees").digest == tokenizer.digest
    assert Hub.asked.count("/api/models/ann/bees/revision/main") == 1
    with refusal("models--ann--ants.*no such file or folder"):
        bpe.Tokenizer.load("ann/ants")
    missing = "ann/wasps: no such file or folder; a name of the hub needs a network"
    with refusal(missing):
        bpe.Tokenizer.load("ann/wasps")
    server.shutdown()
    server.server_close()  # without a network: what is in the cache, and an answer at once
    with refusal(missing):
        bpe.Tokenizer.load("ann/wasps")
    assert bpe.Tokenizer.load("ann/bees").digest == tokenizer.digest


def test_a_name_of_the_hub_without_its_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refusal("pip install huggingface_hub .*; or download https://huggingface.co/ann/bees/"):
        bpe.Tokenizer.load("ann/bees")
    (tmp_path / "bob").mkdir()
    for name in ("bees", "./ann/bees", "ann/bees/cells", "/ann/bees", "bob/bees"):
        with refusal("no such file or folder$"):
            bpe.Tokenizer.load(name)


def test_a_class_with_texts_of_its_own_has_them_as_before(tmp_path):
    for name, texts in (
        ("CodeLlamaTokenizer", ["hi <FILL_ME> the", "hi"]),
        ("NllbTokenizer", ["hi"]),
    ):
        write_for_class(tmp_path / name, name)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        ours = bpe.Tokenizer.load(theirs).as_hf()
        for tokenizer in (theirs, ours):  # of NLLB: around the next text that is no target
            getattr(tokenizer, "set_tgt_lang_special_tokens", bpe.do_nothing)("fra_Latn")
        for text in texts:
            assert ours(text)["input_ids"] == theirs(text)["input_ids"]
            assert ours.encode(text) == theirs.encode(text)
        assert ours._ours is not None


def test_tokenizers_of_other_libraries_are_loaded(tokenizer, monkeypatch):
    roles = {"eos_token": END, "model_max_length": 99, "chat_template": "{{ messages }}"}
    backend = tokenizer.to_huggingface()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
    theirs(["a", "b c"], truncation=True, max_length=1)  # which its backend remembers
    with warnings.catch_warnings(action="error"):
        loaded = bpe.Tokenizer.load(theirs)
    assert loaded.config.items() > roles.items() and loaded.digest == tokenizer.digest
    assert bpe.Tokenizer.load(backend).digest == tokenizer.digest
    encoding = tokenizer.to_tiktoken()
    monkeypatch.setitem(
        tiktoken.registry.ENCODINGS, "published", tokenizer.to_tiktoken("published")
    )
    for other in (encoding, tiktoken.get_encoding("published")):
        loaded = bpe.Tokenizer.load(other)
        assert loaded.special_tokens == tokenizer.special_tokens
        assert loaded.encode(f"import this{END}") == tokenizer.encode(f"import this{END}")
    monkeypatch.setattr(tiktoken.Encoding, "__getstate__", lambda encoding: {"name": "other"})
    with refusal("not supported: tiktoken pickles it in another way: load its rank file"):
        bpe.Tokenizer.load(encoding)
    monkeypatch.undo()
    with refusal("a model is a path, a name of the hub, a tokenizers.Tokenizer"):
        bpe.Tokenizer.load(object())
    with refusal("a tokenizer of another library has its own: omit `pattern`"):
        bpe.Tokenizer.load(theirs, pattern="gpt2")
    ranks = {byte: id for id, byte in enumerate(BYTES)}
    with refusal("this tiktoken.Encoding is not supported: its pattern may leave text unmatched"):
        bpe.Tokenizer.load(tiktoken_encoding(ranks, r"\w+"))


def test_half_a_surrogate_pair_in_a_kept_field_is_written_again(tmp_path):
    bpe.Tokenizer({0: b"a"}, [], alphabet="characters").save(tmp_path / "a")
    settings = tmp_path / "a" / "tokenizer_config.json"
    settings.write_text('{"one": "\\ud800 a", "\\udcff": ["é"]}')
    bpe.Tokenizer.load(tmp_path / "a").save(tmp_path / "b")
    written = json.loads((tmp_path / "b" / settings.name).read_text())
    assert written["one"] == "\ud800 a" and written["\udcff"] == ["é"]
    settings.write_text('{"chat_template": "\\ud800 a"}')  # which has a file of its own
    with refusal("half a surrogate pair"):
        bpe.Tokenizer.load(tmp_path / "a").save(tmp_path / "c")


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
    help = pydoc.render_doc(bpe.Kind)
    kernels = {"segment": bpe.segment_bpe, "sample": bpe.sample_bpe, "read": bpe.read_bpe}
    kernels["begin_text"] = bpe.begin_unigram
    for name, kernel in kernels.items():
        signature = re.search(rf"{name}(\(.+\))\n", help)[1]
        assert f"`{name}` | " in INSIDE and f"`{signature}`" in INSIDE
        arguments = ", ".join(inspect.signature(inspect.unwrap(kernel)).parameters)
        assert f"{name}({arguments})" in bpe.Kind.__doc__
    assert "trie_child(node, byte, edges)" in pydoc.render_doc(bpe.Trie)


@pytest.fixture(scope="module")
def greedtok():
    """The file of that family in docs, imported; its rows are removed later."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("KINDS", "FAMILIES"):
            patch.setattr(bpe, name, getattr(bpe, name).copy())
        patch.syspath_prepend(Path(__file__).with_name("docs"))
        yield importlib.import_module("greedtok")
    del sys.modules["greedtok"]


def joined_everywhere(pieces, token):
    """Join pieces to a token wherever it fits, from left to right."""
    pieces = list(pieces)
    k = 0
    while k < len(pieces):
        size = next((n for n in range(2, 9) if b"".join(pieces[k : k + n]) == token), 1)
        pieces[k : k + size] = [b"".join(pieces[k : k + size])]
        k += 1
    return pieces


def plain_greedtok(counts, n):
    """Choose the tokens that save the most pieces, by the definition."""
    words = {word: [word[k : k + 1] for k in range(len(word))] for word in counts}
    candidates = {w[i:j] for w in counts for i, j in itertools.combinations(range(len(w) + 1), 2)}
    tokens = []
    while len(tokens) < n:
        saved = dict.fromkeys(sorted(token for token in candidates if len(token) > 1), 0)
        for token, (word, pieces) in itertools.product(saved, words.items()):
            saved[token] += counts[word] * (len(pieces) - len(joined_everywhere(pieces, token)))
        best = max(saved, key=saved.get, default=None)
        if not best or saved[best] <= 0:
            break
        tokens.append(best)
        words = {word: joined_everywhere(pieces, best) for word, pieces in words.items()}
    return tokens, words


@given(st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 9), min_size=1))
@examples(20)
def test_greedtok_chooses_and_cuts_by_its_definition(greedtok, counts):
    counts = {word.encode(): n for word, n in counts.items()}
    learned = greedtok.learn_greedtok(bpe.Words.from_counts(counts), 256 + 6)
    tokens, words = plain_greedtok(counts, 6)
    assert learned.tokens[256:] == tokens
    vocab = dict(enumerate(learned.tokens))
    ours = bpe.Tokenizer.from_model(bpe.Model(vocab, None, kind="greedtok", pattern="none"))
    for word, pieces in words.items():
        assert [vocab[id] for id in ours.encode(word)] == pieces


def test_greedtok_has_all_commands(greedtok, prose, tmp_path):
    training = bpe.train(texts=prose, vocab_size=400, model="greedtok")
    training.save(tmp_path / "model")
    ours = bpe.Tokenizer.load(tmp_path / "model")
    text = "\n".join(prose)
    assert ours.decode(ours.encode(text)) == text and len(ours) == 400
    assert ours.encode(text) == training.tokenizer.encode(text)


def test_a_kind_of_tokenizers_is_added_in_one_place(fewest, tmp_path):
    plain = bpe.Model(BYTE_VOCAB, None, {END: 256}, kind="fewest")
    model = dataclasses.replace(plain, extra={"of": [1, 2]}, unk_token=END, fuse_unk=True)
    ours = bpe.Tokenizer.from_model(model)
    ours.save(tmp_path / "model")
    loaded = bpe.Tokenizer.load(tmp_path / "model")
    assert loaded.digest == ours.digest != plain.digest
    assert loaded.model.kind == "fewest" and loaded.model.extra == {"of": [1, 2]}
    assert loaded.model.unk_token == END and loaded.model.fuse_unk
    text = f"Any text, {END}é and more." * 500
    (tmp_path / "a.txt").write_text(text)
    expected = bpe.Tokenizer(BYTE_VOCAB, [], {END: 256}).encode(text)
    for other in (loaded, pickle.loads(pickle.dumps(loaded))):
        assert other.encode(text) == list(other.encode_iterable([text])) == expected
    bpe.encode_files(loaded, tmp_path / "a.txt", tmp_path / "a.npy", workers=2)
    assert np.load(tmp_path / "a.npy").tolist() == expected


# ─── Tokenizer ────────────────────────────────────────────────────────────────────────────────────


def test_special_tokens_are_honoured_only_where_allowed():
    vocab = BYTE_VOCAB | {256: b"<a>", 257: b"<a><b>"}
    tokenizer = bpe.Tokenizer(vocab, [], ["<a>", "<a><b>", "<new>"])
    assert tokenizer.special_tokens == {"<a>": 256, "<a><b>": 257, "<new>": 258}
    assert len(tokenizer) == tokenizer.n_vocab == 259
    text = "<a><a><b><new>"
    assert tokenizer.encode(text * 1000) == tokenizer.sample(text * 1000) == [256, 257, 258] * 1000
    assert tokenizer.encode(text, {"<a>"}) == [256, 256, *b"<b><new>"]
    assert tokenizer.encode_ordinary(text) == tokenizer.encode(text, "none") == list(text.encode())
    assert bpe.Tokenizer({0: b"<a>", 1: b"b"}, [], ["<a>"]).sample("b<a>b") == [1, 0, 1]
    chosen = ["<a>"]
    assert tokenizer._prepare(("<a>", "<a>")) is tokenizer._prepare({"<a>": 1})  # made once
    assert tokenizer.encode("<a><new>", chosen) == [256, *b"<new>"]
    for texts in (chosen, []):
        assert tokenizer.encode(text, np.array(texts, str)) == tokenizer.encode(text, texts)
    chosen.append("<new>")  # what was made is not that of the list, but of its tokens
    assert tokenizer.encode("<a><new>", chosen) == [256, 258]
    # two texts of one id
    tokenizer = bpe.Tokenizer({0: b"<end>"}, [], {"<end>": 0, "<stop>": 0})
    assert tokenizer.encode("<stop><end>") == [0, 0] == tokenizer.encode("<stop><stop>", "<stop>")
    assert tokenizer.decode([0]) == "<end>"


def ids_by_each_call(tokenizer, text, chosen, folder):
    """The ids by every public call that encodes and may be told which special tokens count."""
    yield tokenizer.encode(text, chosen)
    yield tokenizer.encode_to_numpy(text, chosen)
    yield tokenizer.encode_texts([text.encode(), b"", text], chosen)[0]
    yield chain(*tokenizer.encode_batch([text] * 3, chosen))
    yield tokenizer.encode_batch_to_numpy([text] * 3, chosen, threads=2)[0]
    yield tokenizer.encode_batch_padded([text] * 2, None, chosen)[0].flat
    yield tokenizer.encode_iterable(text, chosen)
    yield tokenizer.encode_iterable([text], chosen)
    if tokenizer.model.kind != "wordpiece":
        yield tokenizer.sample(text, 0.3, 1, chosen)
    (folder / "a.txt").write_text(text)
    options = {"allowed_special": chosen, "workers": 1}
    if chosen == "none":
        yield tokenizer.encode_ordinary(text)
        options["workers"] += len(text) > 1000
    bpe.encode_files(tokenizer, folder / "a.txt", folder / "ids.npy", **options)
    yield np.load(folder / "ids.npy")


# Models whose tokens are parts of the special tokens.
LETTERS_OF_SPECIALS = {"merges": None, "alphabet": "characters"}
LETTERS_OF_SPECIALS["vocab"] = dict(enumerate(map(str.encode, [*"▁<>abes", "<e", "ab"])))
LETTERS_OF_SPECIALS["normalizer"] = [*types("Lowercase"), replace(" ", "▁")]
BYTES_OF_SPECIALS = {"vocab": BYTE_VOCAB | {256: b"<e", 257: b"<es"}, "merges": None}
FORGING_MODELS = {
    "bpe": BYTES_OF_SPECIALS | {"merges": [(b"<", b"e"), (b"<e", b"s")]},
    "ranks": BYTES_OF_SPECIALS,
    "letters": LETTERS_OF_SPECIALS | {"merges": [(b"<", b"e"), (b"a", b"b")]},
    "wordpiece": LETTERS_OF_SPECIALS | {"kind": "wordpiece"},
    "unigram": LETTERS_OF_SPECIALS | {"kind": "unigram", "scores": -np.arange(9.0)},
}
FORGED_TEXTS = ["<e>", "<a><e><s> <s>ab e> <e", "<<e>><e><e><s>", "<E> <S>" * 40, "<e> b " * 300]
SPECIAL_FLAGS = {"<s>": bpe.AddedToken(lstrip=True, rstrip=True)}
SPECIAL_FLAGS["e>"] = bpe.AddedToken(normalized=True)
NOT_SPECIAL = SPECIAL_FLAGS | {"ab e": bpe.AddedToken(special=False)}  # always found


@pytest.mark.parametrize("kind", FORGING_MODELS)
def test_no_call_makes_a_special_token_that_is_not_allowed(kind, tmp_path):
    specials = ["<e>", "<e><s>", "<s>", "e>"]
    tokens = {"special_tokens": [*specials, "ab e"], "added_tokens": NOT_SPECIAL}
    model = bpe.Model(**tokens, **FORGING_MODELS[kind])
    tokenizer = bpe.Tokenizer.from_model(model)
    choices = [("none", []), ([], []), ("all", specials)]
    choices += [(chosen, chosen) for chosen in (["<s>"], {"e>", "<e>"})]
    for text, (chosen, honoured) in itertools.product(FORGED_TEXTS, choices):
        forbidden = {model.special_tokens[token] for token in {*specials}.difference(honoured)}
        for ids in ids_by_each_call(tokenizer, text, chosen, tmp_path):
            used = {*map(int, ids)}
            assert used <= model.vocab.keys() and not used & forbidden, (text, chosen)
            assert (model.special_tokens["ab e"] in used) == ("ab e" in text), (text, chosen)


# Steps before a model -> whether one text without joined characters needs no flat text, which takes
# longer.
SHORT_WAYS = {
    "plain": ({}, True),
    "llama": ({"normalizer": [PREPEND, replace(" ", "▁")]}, True),
    "bert": ({"normalizer": [bert()], "pattern": "bert"}, True),
    "composed": ({"normalizer": types("NFC", "Lowercase")}, True),
    "stripped": ({"normalizer": [bpe._STRIP, bpe._SPACES_TO_ONE]}, True),
    "first": ({"pattern": [bpe.Metaspace("_", "first"), "_?[^_]+|_"]}, True),
    "always": ({"pattern": [bpe.Metaspace(" "), "gpt2"], "normalizer": types("NFD")}, True),
    "never": ({"pattern": [bpe.Metaspace("_", "never"), "none"]}, True),
    "words": ({"pattern": ["whitespace-split", metaspace()]}, True),
    "cut": ({"pattern": [bpe.Metaspace("_"), r"\d", "gpt2"]}, False),
}
SHORT_FLAGS = SPECIAL_FLAGS | {"<r>": bpe.AddedToken(rstrip=True), "é": bpe.AddedToken()}
few_specials = st.sets(st.sampled_from(["<s>", "e>", "<r>", "é", "E E"]))
short_pieces = st.sampled_from([*"aeE1 é\u0301中\r▁_\x00", " <s> ", "e>", "<r>", "a " * 2000])
joined_pieces = st.lists(short_pieces, max_size=9).map("".join)
short_texts = texts | joined_pieces | hostile_bytes | joined_pieces.map(str.encode)


@pytest.mark.parametrize("way", SHORT_WAYS)
@given(text=short_texts, specials=few_specials, allowed=st.sampled_from(["all", "none"]))
def test_a_short_text_is_encoded_as_in_a_list(way, text, specials, allowed):
    options, has_short_way = SHORT_WAYS[way]
    flags = {token: SHORT_FLAGS[token] for token in specials & SHORT_FLAGS.keys()}
    merges = [(b"a", b" "), (b"a", b"e"), (b"e", b"e"), (b"\xe2", b"\x96")]
    vocab = dict(enumerate([*BYTES, *map(b"".join, merges)]))
    model = bpe.Model(vocab, merges, sorted(specials), added_tokens=flags, **options)
    tokenizer = bpe.Tokenizer.from_model(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "MAX_CACHE_ENTRIES", 4)
        tokenizer.encode("")
    texts = [text, "a  e1", text, b"e\xfe", text]
    expected = tokenizer.encode_batch(texts, allowed, threads=1)
    assert [tokenizer.encode(text, allowed) for text in texts] == expected
    tokenizer.encode_texts = None  # which is called for a list
    if has_short_way and not specials:
        for text in ("a e", "a “É” e", "a e " * 2000):
            assert len(tokenizer.encode(text)) >= 2


def ids_in_a_list(tokenizer, text, allowed="all"):
    """The ids of a text by the kernel of many texts."""
    return tokenizer.encode_batch(["", text, "b"], allowed, threads=1)[1]


ONE_TEXT = "é<e>a b中<e" * 40 + "́a<|>\x00 " + "ab" * 30


@pytest.mark.parametrize("allowed", ["all", "none", "<|>"])
def test_a_text_of_any_length_has_the_ids_of_one_in_a_list(allowed):
    vocab = BYTE_VOCAB | {256: b"ab", 257: b" a", 258: b"<e>", 259: b"<|>"}
    merges = [(b"a", b"b"), (b" ", b"a")]
    tokenizer = bpe.Tokenizer(vocab, merges, ["<e>", "<|>"])
    data = ONE_TEXT.encode()
    for n in range(301):
        for first in (n % 7, len(data) - n):
            piece = data[first : first + n]
            text = piece.decode("utf-8", "ignore")
            for one in (piece, text):
                assert tokenizer.encode(one, allowed) == ids_in_a_list(tokenizer, one, allowed)


def test_a_text_longer_than_the_workspace_has_the_same_ids(monkeypatch):
    monkeypatch.setattr(bpe, "PART_BYTES", 64)
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {0: b"<e>"}, [], ["<e>"])
    for n in range(56, 140):
        for text in ("a" * n, "é" * (n // 2), b"a" * n, b"a\xfe" * (n // 2), "<e>" + "b" * (n - 3)):
            data = text if isinstance(text, bytes) else text.encode()
            assert tokenizer.encode(text) == [*data.replace(b"<e>", b"\0")]
            assert tokenizer.encode_to_numpy(text).tolist() == tokenizer.encode(text)


class UntrueBytes(bytes):
    """Bytes that say what is not true."""

    def __len__(self):
        return 1

    def __contains__(self, item):
        return False


class UntrueText(str):
    """A text that says what is not true."""

    def __len__(self):
        return 1

    def encode(self, *arguments):
        """Return other bytes."""
        return b"?"


def test_a_text_of_a_subclass_is_encoded_as_its_data():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    assert tokenizer.encode(UntrueBytes(b"ab\xfe")) == [*b"ab\xfe"]
    assert tokenizer.encode(UntrueBytes(b"ab")) == [*b"ab"]
    assert tokenizer.encode(UntrueText("é\0b")) == [*"é\0b".encode()]


@pytest.mark.parametrize("bad", ["\ud800", "a\udc80b" * 3000, ["a"], bytearray(b"a")])
def test_what_is_not_text_is_refused_alone_as_in_a_list(bad):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    for call in (tokenizer.encode, tokenizer.encode_to_numpy, tokenizer.encode_ordinary):
        with pytest.raises(
            ValueError,
            match=r"surrogates not allowed|a text is str or bytes|must be a string or bytes",
        ):
            call(bad)
    assert tokenizer.encode("ab") == [*b"ab"]


def test_threads_that_share_a_tokenizer_get_the_ids_of_their_own_texts():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: b"ab"}, [(b"a", b"b")])
    texts = [f"ab é{k} " * (k % 90) for k in range(300)]
    expected = [tokenizer.encode_texts([text])[0].tolist() for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(tokenizer.encode, texts * 3)] == expected * 3


list_pieces = st.sampled_from(["", "a", "é", b"\xfe", b"a\xff", "中 " * 70, "<e>", b"b<e>"])


@given(st.lists(list_pieces), st.sampled_from([200, 1 << 20]))
def test_texts_of_all_types_are_encoded_as_each_alone(pieces, part_bytes):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {0: b"<e>"}, [], ["<e>"])
    for kind in (str, bytes, object):
        texts = [text for text in pieces if isinstance(text, kind)]
        texts += [text * 300 for text in texts[:2]] + texts
        data = [text if isinstance(text, bytes) else text.encode() for text in texts]
        expected = [[*text.replace(b"<e>", b"\0")] for text in data]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bpe, "PART_BYTES", part_bytes)
            assert tokenizer.encode_batch(texts, threads=1) == expected
        assert [*tokenizer.encode_iterable(texts)] == [*chain(*expected)]


def test_a_text_is_refused_in_any_place():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [])
    half_a_pair = "a\ud800", "ud800' in position 1"
    for bad, message in (half_a_pair, (["a"], "str or bytes, not list")):
        for texts in ([bad], ["a", bad], [b"a", bad], [bad, b"a"], ["a" * 10**6, b"a", bad]):
            with refusal(message):
                tokenizer.encode_batch(texts, threads=1)
    with refusal("`texts` has None: it must be a list of strings or bytes"):
        tokenizer.encode_batch(["a", None])
    with refusal("ud800' in position 2500000"):
        tokenizer.encode("é" * 2_500_000 + "\ud800 two")


def in_a_pool(pool, function, items):
    with pool:
        return list(pool.map(function, items))


def test_ids_do_not_depend_on_threads_and_processes(tokenizer, some_texts, monkeypatch):
    expected = [tokenizer.encode(text) for text in some_texts]
    monkeypatch.setattr(bpe, "MAX_CACHE_ENTRIES", 64)
    small = bpe.Tokenizer.from_model(tokenizer.model)
    assert in_a_pool(ThreadPoolExecutor(8), small.encode, some_texts * 3) == expected * 3
    for method in ("fork", "spawn"):
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method))
        assert in_a_pool(pool, tokenizer.encode, some_texts) == expected


CHANGING_RULES = [
    "NFC",
    "NFKC",
    "NFD",
    "Lowercase",
    "StripAccents",
    "Nmt",
    "Prepend",
    "Strip",
    "blanks",
]
CHANGING_RULES += ["BERT", "joined", "spaces"]
CHANGING = {
    **{name: types(name) for name in SIMPLE},
    "Prepend": [PREPEND, replace(" ", "▁")],
    "Strip": [strip(True, True)],
    "blanks": [replace(r"\s+", " ", "Regex")],
    "BERT": [bert()],
    "joined": [replace("a b", "c")],
    "spaces": [replace("b", " ")],
}
CHANGING_PATTERNS = ["gpt2", "none", "bert", "whitespace-split", (r"\w(?=\w)", r"\p{L}+")]
CHANGING_PATTERNS += [(bpe.Metaspace("▁", scheme),) for scheme in ("first", "always", "never")]
pieces = st.sampled_from([" ", " a", " b", " a b", "  ", "\n", "\u3000", "A", "b.", "é", "▁"])
pieces |= st.sampled_from(["<s>", "<m>", " <s", "> ", "e\u0301", " \u0301", "a", "中", "\u200d"])
changing_texts = st.lists(pieces, max_size=12).map("".join) | odd_texts


@functools.lru_cache
def changing_tokenizer(rule, pattern):
    """A tokenizer of which a kernel does the last passes, and whose cache is soon full."""
    merges = [(b" ", b"a"), (b" a", b"b"), (b"e", b"\xcc"), (b"\xe2", b"\x96")]
    vocab = BYTE_VOCAB | dict(enumerate(map(b"".join, merges), 256))
    flags = {"<m>": bpe.AddedToken(lstrip=True, rstrip=True)}
    tokenizer = bpe.Tokenizer(vocab, merges, ["<s>", "<m>"], pattern,
                              added_tokens=flags, normalizer=CHANGING[rule])  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "MAX_CACHE_ENTRIES", 16)
        tokenizer.encode("a")
    return tokenizer


@examples(80)
@given(st.sampled_from([*CHANGING]), st.sampled_from(CHANGING_PATTERNS),
       st.lists(changing_texts, max_size=6), st.sampled_from(["all", "none"]))  # fmt: skip
@example("NFC", "gpt2", ["a  a", "a e\u0301 \u0301", "b\n a"], "all")
@example("Strip", (bpe.Metaspace("▁", "first"),), [" a", "a a", "<s> a", "a "], "all")
@example("joined", "none", ["a b", "a a b"], "all")
def test_a_text_has_the_same_ids_in_one_call_of_a_kernel(rule, pattern, texts, allowed):
    tokenizer = changing_tokenizer(rule, pattern)
    expected = [tokenizer.encode_texts([text], allowed)[0].tolist() for text in texts]
    assert [tokenizer.encode(text, allowed) for text in texts * 2] == expected * 2


def test_results_do_not_share_the_memory_of_a_thread():
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], ["<s>"])
    tokenizer.encode("x")
    # longer than the arrays of a thread, and than those of a scan
    texts = [b"x<s>", b"ab\n" * (1 << 20), b"", b"y\xff" * 300_000, b"z" * 20]
    arrays = [tokenizer.encode_to_numpy(text, "none") for text in texts]
    lists = [tokenizer.encode_ordinary(text) for text in texts]
    assert [bytes(ids) for ids in lists] == texts
    assert [bytes(ids.tolist()) for ids in arrays] == texts and arrays[0].dtype == np.uint32
    assert tokenizer.encode("x<s>") == [*b"x", 256]
    assert tokenizer.encode_ordinary("x<s>") == [*b"x<s>"]


def test_a_tokenizer_is_freed_without_a_search_for_garbage(tmp_path):
    small = bpe.Tokenizer({0: b"a"}, [], alphabet="characters", kind="wordpiece")
    text = small.to_str()

    def refuse(call, *arguments):
        with pytest.raises(bpe.InputError):
            call(*arguments)

    calls = [
        lambda t: t.save(tmp_path / "saved"),
        lambda t: refuse(t.save, tmp_path / "saved", "tiktoken"),
        lambda t: refuse(t.encode, "ab"),
        lambda t: refuse(t.encode_batch, ["a", 5]),
        lambda t: refuse(t.decode, [99]),
        lambda t: t.with_special_tokens(["<x>"]).encode("a<x>"),
        lambda t: copy.deepcopy(t).encode_batch(["a"] * 3),
    ]
    for call in calls:
        tokenizer = bpe.Tokenizer.from_str(text)
        reference = weakref.ref(tokenizer)
        gc.disable()
        try:
            call(tokenizer)
            del tokenizer
            assert reference() is None
        finally:
            gc.enable()


def test_copies_are_independent(tokenizer):
    ours = bpe.Tokenizer.from_model(tokenizer.model)
    first, second = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
    ours.model.config["model_max_length"] = 1
    third = copy.deepcopy(ours)
    first.model.config["model_max_length"] = 2
    assert second.model.config == {} and third.model.config == {"model_max_length": 1}
    assert second.encode("the end") == third.encode("the end") == ours.encode("the end")


def normalized_tokenizer(kind):
    """A tokenizer that lowers letters and drops accents and white space."""
    vocab = dict(enumerate(map(str.encode, ["[UNK]", "a", "b", "ab", "##b", "##a", "中"])))
    truncation = {"max_length": 1, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    fields = {"normalizer": [bpe.NORMALIZERS["bert"]], "alphabet": "characters"}
    fields |= {"unk_token": "[UNK]", "batching": {"truncation": truncation}}
    if kind == "wordpiece":
        fields["subword_prefix"] = "##"
    if kind == "unigram":
        fields |= {"scores": -np.arange(7.0), "fuse_unk": True}
    model = bpe.Model(vocab, None, ["[UNK]"], "whitespace-split", kind, **fields)
    return bpe.Tokenizer.from_model(model)


@pytest.mark.parametrize("kind", ["wordpiece", "wordlevel", "unigram"])
@given(text=st.text("aÁbB x中\u0301😀", max_size=12))
@examples(10)
def test_offsets_in_normalized_text_are_those_of_hugging_face(kind, text):
    ours = normalized_tokenizer(kind)
    theirs = ours.to_huggingface()
    theirs.no_truncation()
    expected = theirs.encode(text)
    starts = [start for start, _ in expected.offsets]
    assert ours.encode_with_offsets(text, characters=True) == (expected.ids, starts)
    places = [len(text[:start].encode()) for start in starts]
    assert ours.encode_with_offsets(text) == (expected.ids, places)


def test_offsets_of_words_alone():
    ours = normalized_tokenizer("wordlevel")
    with refusal("no offsets"):  # since Hugging Face has other ids
        ours.encode_with_offsets("[UNK]a", "none")
    with refusal("utf-8"):
        ours.encode_with_offsets(b"A\xff")
    # a space before a word is no character of it
    ours = bpe.Tokenizer.from_model(dataclasses.replace(ours.model, decoder=bpe.NO_DECODER))
    assert ours.encode_with_offsets("ab b") == ([3, 2], [0, 2])
    assert ours.encode_with_offsets("ab b", characters=True) == ([3, 2], [0, 3])


@given(text=st.text("aé中😀 <", max_size=9))
def test_offsets_in_characters(text):
    tokenizer = bpe.Tokenizer(BYTE_VOCAB | {256: "é中".encode()}, None, [])
    ids, places = tokenizer.encode_with_offsets(text, characters=True)
    assert places == tokenizer.to_tiktoken().decode_with_offsets(ids)[1]


STREAMED = ["a", "▁", "##b", "c</w>", "<s>", "\ufffd", "é"]
STREAMED += [*FALLBACK[0x9F:0xA1], *FALLBACK[0xC3:0xF1], "<0xe4>", "<0xb8>", "<0x+a>"]


@pytest.mark.parametrize("name", [*DECODERS, "bytes"])
@given(data=st.data(), skip=st.booleans())
def test_a_stream_gives_the_text_of_decode(data, skip, name):
    model = bpe.Model({**BYTE_VOCAB, 256: "é!".encode(), 257: b"<s>"}, None, ["<s>"])
    if name != "bytes":
        fields = {"alphabet": "characters", "decoder": DECODERS[name]}
        model = bpe.Model(dict(enumerate(map(str.encode, STREAMED))), [], ["<s>"], "none", **fields)
    tokenizer = bpe.Tokenizer.from_model(model)
    pieces = data.draw(st.lists(st.lists(st.sampled_from([*model.vocab]), max_size=3), max_size=9))
    stream = tokenizer.stream(skip)
    texts = [*map(stream.push, pieces), stream.finish()]
    assert "".join(texts) == tokenizer.decode([*chain(*pieces)], skip)
    with refusal("not in the vocabulary"):
        stream.push([9999])


def test_time_is_linear_in_the_ids_of_a_stream_and_in_its_runs_of_bytes():
    model = bpe_model(["a", "▁", *FALLBACK])
    tokenizer = bpe.Tokenizer.load(huggingface_tokenizer(model, decoder=LLAMA_DECODER))

    def push_each(n):
        stream = tokenizer.stream()
        assert len("".join(stream.push([id]) for id in [0] + [200] * n + [0])) == n + 2

    assert_linear(push_each, 500)


def test_a_stream_holds_text_until_it_is_whole():
    model = bpe_model(["a", "▁", *FALLBACK])
    tokenizer = bpe.Tokenizer.load(huggingface_tokenizer(model, decoder=LLAMA_DECODER))
    stream = tokenizer.stream()
    ids = [2 + byte for byte in "中".encode()]
    assert [*map(stream.push, [ids[:1], ids[1:], [0], [1], ids])] == ["", "", "中a", " ", ""]
    assert stream.push(ids[:0], is_last=None) == "" and stream.push([0], is_last=np.True_) == "中a"
    # the space of a BPEDecoder waits for the next token; there is none where a later step strips it
    suffix = {"type": "BPEDecoder", "suffix": "</w>"}
    for steps, text in [([suffix], " a"), ([suffix, STRIP_SPACE | {"start": 0, "stop": 1}], "a")]:
        fields = {"alphabet": "characters", "decoder": steps}
        model = bpe.Model({0: b"a", 1: b"b</w>"}, [], [], "none", **fields)
        stream = bpe.Tokenizer.from_model(model).stream()
        assert [*map(stream.push, [[0, 1], [0], [1]])] == ["ab", text, "b"]


SUFFIX_STEP = D.BPEDecoder("</w>")
SUFFIX_STEPS = {
    "alone": [SUFFIX_STEP],
    "marks": [D.Metaspace(), SUFFIX_STEP],
    "bytes": [SUFFIX_STEP, D.ByteFallback()],
    "no space": [SUFFIX_STEP, D.Fuse(), D.Strip(" ", 1, 0)],
    "replaced": [SUFFIX_STEP, D.Replace(" ", "_")],
    "empty": [D.BPEDecoder("")],
    "space": [D.WordPiece("##", False), D.BPEDecoder(" ")],
}


@pytest.mark.filterwarnings("ignore:.*no unknown token")
@pytest.mark.parametrize("steps", SUFFIX_STEPS.values(), ids=SUFFIX_STEPS)
def test_a_suffix_is_decoded_as_in_hugging_face_wherever_it_is(steps):
    names = ["a", "b", "é</w>", "</w>", "a</w>b", "a</w>b</w>", "</w></w>", "▁a</w>", "##b</w>"]
    names += ["<0x20>", " a", "/w>", "<"]
    model = tokenizers.models.BPE({name: id for id, name in enumerate(names)}, [])
    theirs = tokenizers.Tokenizer(model)
    theirs.decoder = D.Sequence(steps)
    ours = bpe.Tokenizer.load(theirs)

    @given(st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=5))
    def check(ids):
        text = theirs.decode(ids)
        assert ours.decode(ids) == text
        stream = ours.stream()
        assert "".join(map(stream.push, [[id] for id in ids])) + stream.finish() == text

    check()


@pytest.mark.filterwarnings("ignore:.*can be produced from ordinary text")
@pytest.mark.parametrize("added", [["<new>"], ["ab", "<new>"], ["Ġb"], [" b", "<end>", "é"]])
def test_new_special_tokens_get_the_ids_of_hugging_face(added):
    vocab = BYTE_VOCAB | {256: b"ab", 257: b" b"}
    ours = bpe.Tokenizer(vocab, [(b"a", b"b"), (b" ", b"b")], ["<end>"])
    again = bpe.Tokenizer.from_str(ours.to_str())
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
    before, after = template.replace(" ", "").split("$A")
    assert theirs.encode("ab", "c").ids == tokenizer.encode(f"{before}ab{after}c{after}")
    for wrong in ("<s>", "", "$A $A", "$A:1 </s>", "<s> $A <x>", "$A $B"):
        with refusal(r"`template` is \$A between special tokens"):
            tokenizer.with_special_tokens(template=wrong)


def template(single, **special_tokens):
    numbers = list(special_tokens.items())
    return A.TemplateProcessing(single=single, pair="$A $B:1", special_tokens=numbers)


POST_PROCESSORS = [
    A.BertProcessing(("SEP", 2), ("CLS", 1)),
    A.RobertaProcessing(("SEP", 2), ("CLS", 1)),
    template("$A:1 SEP", SEP=2),
    template("CLS CLS $A", CLS=1),
    A.ByteLevel(),
    A.Sequence([A.ByteLevel(), template("CLS $A SEP", CLS=1, SEP=2)]),
]


def post_processed(processor):
    """A tokenizer of Hugging Face with five tokens, and ours."""
    vocab = {name: id for id, name in enumerate(["UNK", "CLS", "SEP", "a", "b"])}
    model = tokenizers.models.WordLevel(vocab, unk_token="UNK")
    parts = {"pre_tokenizer": P.Whitespace(), "post_processor": processor}
    theirs = huggingface_tokenizer(model, ["CLS", "SEP"], **parts)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "post_processor")
        return theirs, ours_from(theirs)


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
    if len(expected[1]) == 2:  # without a token of the text
        with refusal("`max_length` 1 has no room"):
            ours.encode_batch_padded(["a"], 1, add_special_tokens=True)
    for size, side in itertools.product((3, 4, 99), ("right", "left")):
        theirs.enable_truncation(size)
        theirs.enable_padding(direction=side, pad_id=7)
        expected = theirs.encode_batch(some_texts)
        options = {"add_special_tokens": True, "pad_id": 7, "pad_left": side == "left"}
        rows, lengths = ours.encode_batch_padded(some_texts, size, **options)
        assert rows.tolist() == [row.ids for row in expected] and rows.dtype == np.uint32
        assert lengths.tolist() == [sum(row.attention_mask) for row in expected]
    for few, shape in {(): (0, 0), ("", ""): (2, 0), ("a",): (1, 0)}.items():
        assert ours.encode_batch_padded(few, 0)[0].shape == shape
    assert ours.encode_batch_padded(["a"], min_length=3)[0].shape == (1, 3)


BERT_PROCESSING = {"type": "BertProcessing", "cls": ["CLS", 1], "sep": ["SEP", 2]}
WRONG_PROCESSORS = [BERT_PROCESSING | {"cls": cls} for cls in (["CLS", 9], ["CLS", [1]], [])]
WRONG_PROCESSORS += [{"type": "Sequence", "processors": [BERT_PROCESSING] * 2}, {"type": "Pairs"}]
TEMPLATE = {"type": "TemplateProcessing", "special_tokens": {}}
WRONG_SINGLES = [[], [{"Sequence": {"id": "B"}}], [{"Sequence": {"id": "A"}}] * 2]
WRONG_PROCESSORS += [TEMPLATE, *(TEMPLATE | {"single": single} for single in WRONG_SINGLES)]


@pytest.mark.parametrize("processor", WRONG_PROCESSORS, ids=str)
def test_a_post_processor_that_does_more_is_refused_where_it_is_asked_for(processor):
    model = bpe.Model({0: b"a", 1: b"CLS", 2: b"SEP"}, [], post_processor=processor)
    ours = bpe.Tokenizer.from_model(model)
    assert ours.encode("a") == [0]
    for encode in (ours.encode, ours.encode_to_numpy):
        with refusal("post_processor .*not supported"):
            encode("a", add_special_tokens=True)


# Tokenizers of other libraries that encode here


def swappable(kind, tokenizer):
    """A tokenizer of `transformers`: of bytes, a BERT, or a T5."""
    data = ["Hello, hello world! It is what it is.", "中文 a b c d 1 2 3"] * 2
    if kind == "bytes":
        theirs = tokenizer.to_huggingface()
        roles = {"pad_token": END}
    elif kind == "bert":
        parts = P.BertPreTokenizer(), BERT_MODEL
        theirs = trained_by_hugging_face("WordPiece", data, *parts, special_tokens=BERT_PIECES)
        theirs.normalizer = N.BertNormalizer()
        theirs.post_processor = A.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        names = ["input_ids", "token_type_ids", "attention_mask"]
        roles = {"pad_token": "[PAD]", "model_input_names": names, **BERT_MODEL}
    else:
        options = {"special_tokens": ["<pad>", "</s>", "<unk>"], "unk_token": "<unk>"}
        theirs = trained_by_hugging_face("Unigram", data, P.Metaspace(), **options)
        theirs.post_processor = A.TemplateProcessing("$A </s>", None, [("</s>", 1)])
        roles = {"pad_token": "<pad>", "padding_side": "left", "model_max_length": 20}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=theirs, **roles)


@pytest.fixture(scope="session")
def swapped(tokenizer):
    """Tokenizers of `transformers`, each beside ours that is made of it."""
    theirs = {kind: swappable(kind, tokenizer) for kind in ("bytes", "bert", "t5")}
    return {kind: (owner, bpe.Tokenizer.load(owner).as_hf()) for kind, owner in theirs.items()}


def outcome(function, *arguments, **options):
    """The type and content of a result, or the error."""
    try:
        result = function(*arguments, **options)
    except Exception as error:
        return repr(error)
    return repr((type(result), getattr(result, "data", result)))


def assert_same_batch(theirs, ours, *inputs, **options):
    assert outcome(ours, *inputs, **options) == outcome(theirs, *inputs, **options)


CALL_OPTIONS = {
    "padding": st.sampled_from([False, True, "longest", "max_length"]),
    "truncation": st.sampled_from([None, False, True, "longest_first", "only_second"]),
    "max_length": st.sampled_from([None, 0, 1, 2, 4, 9, 70, np.int64(3), True]),
    "return_tensors": st.sampled_from([None, "np"]),
    "return_token_type_ids": st.sampled_from([None, False, True]),
    "return_attention_mask": st.sampled_from([None, False, True]),
}
flag_names = ["add_special_tokens", "return_length", "return_offsets_mapping"]
CALL_OPTIONS |= dict.fromkeys(flag_names, st.booleans())
call_options = st.fixed_dictionaries({}, optional=CALL_OPTIONS)
hostile_texts = texts | st.text("Helo, it\ud800<pad>[CLS]\x00中", max_size=30)
hostile_texts |= st.sampled_from(["", " ", END, "[CLS] a", "</s> </s>", "It is " * 9])


@pytest.mark.filterwarnings("error:post_processor")
def test_as_hf_gives_no_note_on_the_template_that_it_applies(tmp_path):
    options = {"special_tokens": [END], "template": f"$A {END}"}
    training = bpe.train(texts=["a b c"], vocab_size=257, **options)
    training.save(tmp_path)
    with pytest.warns(UserWarning, match="post_processor"):
        tokenizer = bpe.Tokenizer.load(tmp_path)
    assert tokenizer.as_hf()("a")["input_ids"][-1] == tokenizer.special_tokens[END]


def test_all_but_plain_texts_is_left_to_transformers(swapped, tmp_path):
    texts = ["Hello, it is 1 2", "", "c d"]
    for theirs, ours in swapped.values():
        assert type(ours).__name__ == type(theirs).__name__ and isinstance(ours, type(theirs))
        for side in ("left", "right"):
            theirs.truncation_side = ours.truncation_side = side
            assert_same_batch(theirs, ours, texts, padding=True, truncation=True, max_length=3)
            assert_same_batch(theirs, ours, [side, "\ud800"])
        batch = ours(texts, truncation=True, max_length=3)
        assert isinstance(batch.encodings, bpe._LateEncodings)  # they were not made there
        there = theirs(texts, truncation=True, max_length=3)
        for same in (batch, pickle.loads(pickle.dumps(batch)), batch.copy()):
            assert same.data == there.data and same.is_fast
            assert same.tokens(0) == there.tokens(0) and same[2].offsets == there[2].offsets
        assert ours.batch_decode(there["input_ids"]) == theirs.batch_decode(there["input_ids"])
        assert ours.tokenize(texts[0]) == theirs.tokenize(texts[0])
        assert_same_batch(theirs.encode, ours.encode, texts[0], truncation=True, max_length=2)
        assert_same_batch(theirs, ours, texts, text_target="")
        for tokenizer in (theirs, ours):  # the library warns once of a text that is too long
            tokenizer.model_max_length = 3
            tokenizer([*texts, texts[0]])
        assert ours.deprecation_warnings == theirs.deprecation_warnings != {}
        assert_same_batch(theirs, ours, texts, texts[::-1])
        assert_same_batch(theirs, ours, "Hello", "it is")
        collate = transformers.DataCollatorWithPadding(ours, return_tensors="np")
        padded = collate([ours(text) for text in texts])["input_ids"]
        assert np.array_equal(padded, theirs(texts, padding=True, return_tensors="np").input_ids)
        for tokenizer, name in ((ours, "ours"), (theirs, "theirs")):
            tokenizer.backend_tokenizer.no_truncation()  # each library's last call is another
            tokenizer.backend_tokenizer.no_padding()
            tokenizer.save_pretrained(tmp_path / name)
        assert files_in(tmp_path / "ours") == files_in(tmp_path / "theirs")


@pytest.mark.parametrize(
    "number", [0, 1, 3, sys.maxsize, 2**63, 2**70, int(1e30), np.int64(2), None]
)
def test_numbers_may_be_as_large_as_one_likes(number):
    end = 99 if number is None else min(int(number), 99)
    texts = [b"Hello", b"", b"it is"]
    assert plain().encode_batch(texts, max_length=number) == [[*text][:end] for text in texts]
    if number is not None:
        assert plain().sample("ab", 0.5, number) == plain().sample("ab", 0.5, int(number))


@pytest.mark.filterwarnings("ignore:post_processor")
def test_a_swapped_tokenizer_follows_its_backend_and_copies_of_it(tokenizer):
    texts = ["Hello <new> It is Ünited"] * 2
    names = [END, *map(in_chars, BYTES)]
    cut = P.Sequence([P.Punctuation(), P.ByteLevel(False)])
    model = tokenizers.models.BPE({name: k for k, name in enumerate(names)}, [])
    parts = {"normalizer": N.Lowercase(), "pre_tokenizer": cut, "model": model}
    for is_kept in (False, True):
        theirs = swappable("bytes", tokenizer)
        ours = bpe.Tokenizer.load(theirs).as_hf()
        kept = ours.backend_tokenizer
        for name, part in parts.items():
            setattr(theirs.backend_tokenizer, name, part)
            setattr(kept if is_kept else ours.backend_tokenizer, name, part)
            assert_same_batch(theirs, ours, texts)
            assert ours._ours is not None
        kept.add_tokens(["<new>"])
        theirs.backend_tokenizer.add_tokens(["<new>"])
        assert_same_batch(theirs, ours, texts)
    limits = {"truncation": True, "max_length": sys.maxsize}  # no limit
    assert_same_batch(theirs, ours, texts, **limits)
    copies = [copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    for other in copies:
        assert_same_batch(theirs, other, texts)
    theirs.add_tokens(["Hello"])
    for other in copies:
        other.add_tokens(["Hello"])
        assert_same_batch(theirs, other, texts)
    assert_same_batch(theirs, ours, texts)
    dropping = huggingface_tokenizer(tokenizers.models.BPE({"a": 0}, [], dropout=0.5))
    dropping = transformers.PreTrainedTokenizerFast(tokenizer_object=dropping)
    assert bpe.Tokenizer.load(dropping).as_hf()._current() is None


special_choices = st.just("all") | st.sets(st.sampled_from([END, "<s>", "a"]), max_size=2)
tiktoken_options = dict.fromkeys(["allowed_special", "disallowed_special"], special_choices)
forging_texts = st.lists(hostile_texts | st.sampled_from(["<s>", "a<s>" + END]), max_size=5)


@given(texts=forging_texts, options=st.fixed_dictionaries({}, optional=tiktoken_options))
def test_a_swapped_encoding_gives_what_tiktoken_gives(tokenizer, texts, options):
    ranks = {"mergeable_ranks": tokenizer.to_tiktoken().__getstate__()["mergeable_ranks"]}
    special = tokenizer.special_tokens | {"<s>": len(tokenizer) + 1}
    pattern = tokenizer.pattern.source
    theirs = tiktoken.Encoding("named", pat_str=pattern, special_tokens=special, **ranks)
    ours = bpe.Tokenizer.load(theirs).as_tiktoken()
    for other in (ours, pickle.loads(pickle.dumps(ours))):
        assert isinstance(other, tiktoken.Encoding) and other.name == "named"
        assert_same_batch(theirs.encode_batch, other.encode_batch, texts, **options)
        assert_same_batch(theirs.encode_ordinary_batch, other.encode_ordinary_batch, texts)


def tokens_of(tokenizer, text):
    """The tokens into which the steps of a derivation join the letters of a text."""
    text, *columns = tokenizer.derivation(text, "none")
    ends = {*itertools.accumulate(len(char.encode("utf-8", "replace")) for char in text.decode())}
    if tokenizer.model.alphabet == "bytes":
        ends = {*range(1, len(text) + 1)}
    for rank, start, middle, end in zip(*(column.tolist() for column in columns), strict=True):
        left, right = tokenizer.merges[rank]
        assert text[start:end] == left + right and text[start:middle] == left
        ends.remove(middle)
    return [text[start:end] for start, end in pairwise([0, *sorted(ends)])]


@pytest.mark.parametrize("kind", ["bpe", "ranks", "characters", "scores"])
def test_a_derivation_makes_the_tokens_of_a_text(kind, prose):
    alphabet = "characters" if kind in ("characters", "scores") else "bytes"
    options = {"alphabet": alphabet, "coverage": 1} if alphabet == "characters" else {}
    ours = bpe.train(texts=prose, vocab_size=1200, special_tokens=[END], **options).tokenizer
    model = ours.model
    if kind == "ranks":
        ours = bpe.Tokenizer.from_model(dataclasses.replace(model, merges=None))
    if kind == "scores":
        scores = -np.arange(max(ours.vocab) + 1, dtype=np.float32)
        ours = bpe.Tokenizer.from_model(dataclasses.replace(model, merges=None, scores=scores))
    assert kind == "scores" or ours.merges == model.merges
    for text in [*prose[:300], "aaaaaaa abababab", "", " ", "naïve 中文" * (alphabet == "bytes")]:
        assert tokens_of(ours, text) == [ours.vocab[id] for id in ours.encode(text, "none")]
    steps = ours.derivation(f"the{END}the")
    assert (
        steps.text == b"thethe"
        and steps.ranks.tolist() == [*steps.ranks[: len(steps.ranks) // 2]] * 2
    )
    with refusal("a derivation without merges"):
        bpe.Tokenizer({0: b"a"}, None, kind="wordpiece").derivation("a")


@given(st.data(), st.text("abc", max_size=12))
def test_a_derivation_is_exact_for_merges_in_any_order(data, text):
    tokens, merges = random_tokens(data.draw(st.randoms()), [b"a", b"b", b"c"], 8)
    vocab = dict(enumerate(dict.fromkeys([*tokens, *map(b"".join, merges)])))
    ours = bpe.Tokenizer(vocab, merges, pattern="none")
    assert tokens_of(ours, text) == [ours.vocab[id] for id in ours.encode(text)]


TRUNCATED = [{}, {"model": "longest"}, {"model": "wordpiece", "score": "count"}]
TRUNCATED.append({"alphabet": "characters", "byte_fallback": True})


@pytest.mark.parametrize("place", bpe.SPECIAL_TOKENS_AT)
@pytest.mark.parametrize("options", TRUNCATED, ids=str)
def test_a_truncated_model_is_that_of_a_shorter_training(library, options, place):
    options = {"special_tokens": [END, "<pad>"], "special_tokens_at": place, "workers": 1} | options
    ours = bpe.train(library[4], 640, **options).tokenizer
    expected = bpe.train(library[4], 600, **options).tokenizer
    few = ours.truncated(600)
    assert few.digest == expected.digest and len(expected) == 600
    assert ours.truncated(900).digest == ours.digest
    text = library[4].read_text() + END
    assert few.encode(text) == expected.encode(text)
    with refusal("it cannot have 10"):
        ours.truncated(10)


def test_a_truncated_model_without_merges_is_that_with_them(library):
    merged = bpe.train(library[4], 500, [END], workers=1, special_tokens_at="last").tokenizer
    text = library[4].read_text() + END
    vocab = {id: merged.vocab[id] for id in range(499)}
    for scores in (None, -np.arange(499, dtype=np.float32)):
        model = bpe.Model(vocab, None, {END: 499}, scores=scores)
        ours = bpe.Tokenizer.from_model(model).truncated(400)
        assert ours.encode(text) == merged.truncated(400).encode(text)
    with refusal("but the post_processor has them"):
        bpe.Tokenizer.from_model(model).with_special_tokens([], f"$A {END}").truncated(400)


def test_a_truncated_unigram_loses_the_tokens_of_the_lowest_scores(prose):
    text = "\n".join(prose)[:30_000]
    options = {"special_tokens": [END], "model": "unigram", "coverage": 1}
    ours = bpe.train(texts=[text], vocab_size=700, **options).tokenizer
    few = ours.truncated(500)
    assert len(few) == 500 and few.decode(few.encode(text)) == text
    scores = {ours.vocab[id]: ours.model.scores[id] for id in ours.model.ordinary}
    kept = {few.vocab[id]: few.model.scores[id] for id in few.model.ordinary}
    assert kept.items() <= scores.items()
    least = min(score for token, score in kept.items() if len(token.decode()) > 1)
    assert max(scores[token] for token in scores.keys() - kept.keys()) <= least


# ─── Differential ─────────────────────────────────────────────────────────────────────────────────

# Hypothesis makes tokenizers as people have them: a model, its steps and added tokens, and files
# around it; then texts, and calls with numbers at their extremes. The owner says what is right.

LIMITS = [None, 0, 1, 2, 3, 9, sys.maxsize, 10**30]
ODD_TOKENS = ["<s>", "</s>", "<x>", "<x> <s>", "  ", "\n", "!", "é", "ab", "9", " a", "<X>", "A"]
ODD_TOKENS += [" <x>", "<x>\n", "e\u0301", "\u0301", "<x><x>", "x>", "\u3000", "a "]
ODD_PARTS = ["    return a[9] + 0.99\n", "ab" * 60, "9" * 30, "Ġa", "##a", "<0x61>", "<unk>", "A"]
ODD_PARTS += "ab9 \n\t!éÉ▁中🙂\r\u0301\u3000ﬁ<>\u200b\ufeff\ue000\U00100000\U00100001\U0010fffd"
# Ends and beginnings of texts that would become one character, or change each other.
MEETING = ["", "e", "\u0301", "\u0341\u0301", "\u1100", "\u1161", "\u200d", "ab", " ", "½", "Σ"]
TEMPLATES = ["{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"]
TEMPLATES += ["é{{ eos_token }}"]


def precompiled():
    return N.Precompiled(base64.b64decode(charsmap("nmt_nfkc")))


# The parts of a tokenizer.json: those of well-known models, single ones, and up to three in turn.
ODD_STEPS = [N.NFC(), N.NFD(), N.NFKC(), N.NFKD(), N.Nmt(), N.StripAccents(), N.Lowercase()]
ODD_STEPS += [N.Strip(), N.Strip(True, False), N.Prepend("▁"), N.BertNormalizer()]
ODD_STEPS += [N.Replace(" ", "▁"), N.Replace(Regex(" {2,}"), " "), N.Replace(Regex("[ab]9?"), "b")]
odd_steps = st.sampled_from(ODD_STEPS) | st.builds(precompiled)
some_steps = st.lists(odd_steps, min_size=2, max_size=3).map(N.Sequence)
known_steps = [None, None, LLAMA_NORMALIZER, N.Sequence([N.NFD(), N.StripAccents()]), T5]
steps_before = st.sampled_from(known_steps) | odd_steps | some_steps
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
behaviors = st.sampled_from(BEHAVIORS)
cut_places = [" ", "ab", "9", "▁", Regex(r"\d"), Regex(r"\s+"), Regex("[ab]+"), Regex("b|(?=a)")]
odd_cuts = st.builds(Split, st.sampled_from(cut_places), behaviors, st.booleans())
schemes = st.sampled_from(["always", "first", "never"])
odd_cuts |= st.builds(P.Metaspace, st.sampled_from("▁▁_"), schemes, st.booleans())
odd_cuts |= behaviors.map(P.Punctuation)
odd_cuts |= st.sampled_from([*CUTS, P.WhitespaceSplit(), P.Digits(False), P.BertPreTokenizer()])
some_cuts = st.lists(odd_cuts, min_size=2, max_size=3).map(Sequence)
byte_levels = st.builds(ByteLevel, st.booleans(), use_regex=st.booleans())
cuts_to_bytes = st.tuples(odd_cuts, odd_cuts, byte_levels) | st.tuples(odd_cuts, byte_levels)
some_bytes = cuts_to_bytes.map(list).map(Sequence)
BYTE_CUTS = [QWEN_CUT, DEEPSEEK_CUT, NO_CUT, DIGIT_CUT]
BYTE_CUTS += [Sequence([ByteLevel(False), P.Digits(True)]), Sequence([NO_CUT, P.Digits(True)])]
BYTE_PARTS = {"pre_tokenizer": byte_levels | st.sampled_from(BYTE_CUTS) | some_bytes}
BYTE_PARTS["decoder"] = st.just(D.ByteLevel())
LETTER_CUTS = [None, P.Metaspace(), MISTRAL_CUT, T5_CUT, GEMMA_CUT]
LETTER_PARTS = {"pre_tokenizer": st.sampled_from(LETTER_CUTS) | odd_cuts | some_cuts}
LAST_STEPS = [D.Fuse(), D.Metaspace(), D.WordPiece(), D.ByteFallback(), D.BPEDecoder("</w>")]
LAST_STEPS += [D.Strip(" ", 1, 0), D.Strip("a", 0, 1), D.Replace("▁", " "), D.Replace("ab", "")]
LAST_STEPS += [D.Metaspace("_", "never"), D.WordPiece(cleanup=False)]
some_last = st.lists(st.sampled_from(LAST_STEPS), min_size=2, max_size=4).map(D.Sequence)
known_last = st.sampled_from([None, LLAMA_DECODER, GEMMA_DECODER])
LETTER_PARTS["decoder"] = known_last | st.sampled_from(LAST_STEPS) | some_last
# Constructs that engines may read differently.
CONSTRUCTS = [r"[\p{L}&&[^\p{Han}]]", r"\h", r"[[:alpha:]]", r"\p{Alphabetic}", r"(?i:ab)", r"\R"]
CONSTRUCTS += [r"\p{L}\p{M}*", r"\p{N}{1,3}", r"[^\S\n]", r"\X", r"[a-z--b]", r"[a||9]", r"\w"]
odd_parts = st.tuples(st.sampled_from(CONSTRUCTS), st.sampled_from(["", "+", "{1,3}"]))
odd_lists = st.lists(odd_parts.map("".join), min_size=1, max_size=2)
odd_patterns = odd_lists.map("|".join).map(r"{}|[\s\S]".format)
old_texts = st.text(st.sampled_from(OLD_CHARACTERS), max_size=20)
# Sums of these are rounded.
FEW_SCORES = [-1.1, -2.3, -0.7, -3.5, -10.37, 0.0, 1.5]
few_scores = st.lists(st.sampled_from(FEW_SCORES), min_size=1, max_size=6)
few_tokens_added = st.lists(st.sampled_from(ODD_TOKENS), max_size=4, unique=True)


@st.composite
def grown(draw, letters):
    """Letters and tokens, each made of two others, and the merges that make them."""
    tokens = list(letters)
    merges = []
    for pair in draw(st.lists(st.tuples(*[st.integers(0, 30)] * 2), max_size=12)):
        left, right = (tokens[number % len(tokens)] for number in pair)
        if left + right not in tokens:
            merges.append((left, right))
            tokens.append(left + right)
    return tokens, merges


@st.composite
def grown_bytes(draw):
    """Tokens and merges of bytes: their names, and tokens that are text."""
    tokens, merges = draw(grown([b"a", b"b", b"9", b" ", b"\n", b"\xc3", b"\xa9"]))
    names = [*dict.fromkeys(map(in_chars, [*BYTES, *tokens]))]
    merges = [tuple(map(in_chars, pair)) for pair in merges]
    return names, merges, [token.decode("utf-8", "ignore") for token in tokens]


@st.composite
def models_there(draw):
    """A model of the `tokenizers` package, choices for its other parts, and some of its tokens.

    Over bytes, over characters, and either may lack some of its letters.
    """
    kind = draw(st.sampled_from(["BPE", "BPE", "WordPiece", "WordLevel", "Unigram"]))
    special = draw(st.sampled_from([["<unk>"], ["<unk>", "<s>", "</s>", "!"]]))
    choices = draw(st.sampled_from([BYTE_PARTS, LETTER_PARTS]))
    fallback = draw(st.sampled_from([[], [], FALLBACK, FALLBACK[:200], FALLBACK[0xA0:]]))
    if choices is BYTE_PARTS:
        letters, merges, tokens = draw(grown_bytes())
        n_bytes = len(BYTES)
        some = st.lists(st.sampled_from(letters[:n_bytes]), max_size=3)
        lost = draw(st.sampled_from([(), (), letters[:n_bytes]]) | some)
        letters = [name for name in letters if name not in lost or draw(st.booleans())]
        names = [*letters, *special]
    else:
        letters, merges = draw(grown("ab9 \n▁é<"))
        tokens = letters
        names = [*special, *fallback, *letters]
    merges = [pair for pair in merges if {*pair, "".join(pair)} <= {*letters}]
    names += [f"##{name}" for name in letters if kind == "WordPiece"]
    suffix = draw(st.sampled_from([None, None, None, "</w>"])) if kind == "BPE" else None
    if suffix:
        names += [name + suffix for name in letters]
        merges += [(left, right + suffix) for left, right in merges]
    gap = draw(st.sampled_from([0] * 9 + [300]))
    vocab = {name: id + gap * (id > 20) for id, name in enumerate(dict.fromkeys(names))}
    return draw(models_of(kind, vocab, merges, suffix, bool(fallback))), choices, tokens


@st.composite
def models_of(draw, kind, vocab, merges, suffix, byte_fallback):
    """A model of the `tokenizers` package with this vocabulary."""
    unk = draw(st.sampled_from(["<unk>", "<unk>", "<unk>", None]))
    if kind == "Unigram":
        scored = [*zip(vocab, itertools.cycle(draw(few_scores)), strict=False)]
        unk_id = unk and [*vocab].index(unk)
        return tokenizers.models.Unigram(scored, unk_id, byte_fallback)
    if kind == "WordLevel":
        return tokenizers.models.WordLevel(vocab, unk_token="<unk>")
    if kind == "WordPiece":
        most = draw(st.sampled_from([100, 6]))
        return tokenizers.models.WordPiece(vocab, unk_token="<unk>", max_input_chars_per_word=most)
    flags = {name: draw(st.booleans()) for name in ("fuse_unk", "ignore_merges")}
    flags |= {"end_of_word_suffix": suffix} if suffix else {}
    return tokenizers.models.BPE(vocab, merges, unk_token=unk, byte_fallback=byte_fallback, **flags)


@st.composite
def with_added(draw, theirs):
    """Add tokens of all flags to a tokenizer, and perhaps a post_processor; returns their texts."""
    flags = dict.fromkeys(["normalized", "lstrip", "rstrip", "single_word"], st.booleans())
    flags = st.fixed_dictionaries({"special": st.booleans()}, optional=flags)
    added = draw(few_tokens_added)
    for text in added:
        theirs.add_tokens([tokenizers.AddedToken(text, **draw(flags))])
    named = [(text, theirs.token_to_id(text)) for text in added]
    if named and draw(st.booleans()):
        theirs.post_processor = draw(processors(named))
    return added


@st.composite
def processors(draw, named):
    """A post_processor that adds some of these tokens."""
    first, last = named[0], named[-1]
    single = draw(st.sampled_from(["{} $A", "$A {}", "{} $A {}"])).split()
    pair = draw(st.sampled_from(["$A $B", "$A {} $B:1 {}:1"])).split()
    single = [piece.replace("{}", first[0]) for piece in single]
    pair = [piece.replace("{}", last[0]) for piece in pair]
    template = A.TemplateProcessing(single, pair, named)
    roberta = A.RobertaProcessing(last, first, draw(st.booleans()), draw(st.booleans()))
    ways = [template, A.BertProcessing(last, first), roberta]
    ways += [A.Sequence([A.ByteLevel(trim_offsets=False), template])]
    return draw(st.sampled_from(ways))


@st.composite
def folders(draw, added, **config):
    """The files beside a vocabulary; `config` is a part of tokenizer_config.json."""
    names = st.sampled_from(["<new>", *added])
    roles = dict.fromkeys(["bos_token", "eos_token", "pad_token", "mask_token"], names)
    fields = {"model_max_length": st.sampled_from(LIMITS[2:])}
    fields["extra_special_tokens"] = st.lists(names, max_size=2, unique=True)
    fields["chat_template"] = st.sampled_from(TEMPLATES)
    for name in ("split_special_tokens", "add_bos_token", "add_eos_token"):
        fields[name] = st.booleans()
    for name in ("padding_side", "truncation_side"):
        fields[name] = st.sampled_from(["left", "right"])
    roles = {role: roles[role] for role in roles if role not in config}
    config |= draw(st.fixed_dictionaries({}, optional=roles | fields))
    files = {"special_tokens_map.json": st.fixed_dictionaries({}, optional=roles).map(json.dumps)}
    files["chat_template.jinja"] = st.sampled_from(TEMPLATES)
    files = draw(st.fixed_dictionaries({}, optional=files))
    return files | {"tokenizer_config.json": json.dumps(config)}


class HuggingFace:
    """The owner of a tokenizer.json, or of a folder: then it has a tokenizer of `transformers`."""

    format = there = None

    def __init__(self, folder):
        if (folder / "tokenizer_config.json").exists():
            self.there = transformers.AutoTokenizer.from_pretrained(folder)
        backend = self.there.backend_tokenizer if self.there else theirs_from(folder)
        self.written = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
        self.names = backend.get_vocab(with_added_tokens=False)

    def encode(self, texts, allowed, limit, add_special_tokens):
        """The ids if these special tokens are found; tokens that are not special always are."""
        written = copy.deepcopy(self.written)
        for token in written["added_tokens"]:
            token["special"] &= token["content"] not in allowed
            if token["special"] and allowed != "all" and token["content"] in self.names:
                return None  # here, no text becomes a control token that is not allowed
        theirs = tokenizers.Tokenizer.from_str(json.dumps(written))
        theirs.encode_special_tokens = allowed != "all"
        if limit is not None:
            theirs.enable_truncation(limit)
        rows = theirs.encode_batch(texts, add_special_tokens=add_special_tokens)
        return [row.ids for row in rows]

    def starts(self, text):
        """The ids of a text, and the character at which each begins."""
        theirs = tokenizers.Tokenizer.from_str(json.dumps(self.written))
        row = theirs.encode(text, add_special_tokens=False)
        return row.ids, [start for start, _ in row.offsets]

    def decode(self, ids, skip):
        theirs = tokenizers.Tokenizer.from_str(json.dumps(self.written))
        is_name = "é" not in self.names and theirs.token_to_id("é") in ids
        has_suffix = bool(self.written["model"].get("end_of_word_suffix"))
        if (is_name or has_suffix) and "ByteLevel" in str(theirs):
            return None  # é is the name of a byte there, and a text here; </w> is a space here
        return theirs.decode(ids, skip)


class Tiktoken:
    """The owner of a rank file."""

    format = "tiktoken"

    def __init__(self, ranks, pattern, special_tokens):
        options = {"mergeable_ranks": ranks, "special_tokens": special_tokens}
        self.there = tiktoken.Encoding("t", pat_str=pattern, **options)

    def encode(self, texts, allowed, limit, add_special_tokens):
        options = {"allowed_special": {*allowed} if type(allowed) is list else allowed}
        if allowed == "none":
            options["allowed_special"] = set()
        rows = self.there.encode_batch(texts, **options, disallowed_special=())
        return [ids[:limit] for ids in rows]

    def decode(self, ids, skip):
        return None if skip else self.there.decode(ids)


class SentencePiece:
    """The owner of a .model file, which finds symbols in a text, but no control tokens."""

    format = there = None

    def __init__(self, folder):
        self.model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")

    def encode(self, texts, allowed, limit, add_special_tokens):
        is_same = allowed == "none" and not add_special_tokens
        return [ids[:limit] for ids in self.model.encode(texts)] if is_same else None

    def decode(self, ids, skip):
        return None


# A folder, the owner of its files, parts of texts, options of `load`, and the file that is loaded.
Case = namedtuple("Case", "files owner parts options name", defaults=((), ""))


@st.composite
def huggingface_cases(draw):
    """A tokenizer.json, alone or in a folder."""
    model, choices, tokens = draw(models_there())
    theirs = tokenizers.Tokenizer(model)
    for name, parts in (choices | {"normalizer": steps_before}).items():
        part = draw(parts)
        if part is not None:
            setattr(theirs, name, part)
    if draw(st.sampled_from([False, False, False, True])):
        cut = Split(Regex(draw(odd_patterns)), "isolated")
        theirs.pre_tokenizer = Sequence([cut, NO_CUT] if choices is BYTE_PARTS else [cut])
    added = draw(with_added(theirs))
    files = {"tokenizer.json": theirs.to_str()}
    if draw(st.booleans()):
        late = PLAIN_TOKEN | {"content": "<late>", "special": draw(st.booleans())}
        late = {"added_tokens_decoder": {str(theirs.get_vocab_size()): late}}
        late = draw(st.sampled_from([{}, late]))
        files |= draw(folders(added, tokenizer_class="PreTrainedTokenizerFast", **late))
    return Case(files, HuggingFace, [*tokens, *added, "<late>"])


@st.composite
def gpt2_cases(draw):
    """GPT-2's two files in a folder."""
    names, merges, tokens = draw(grown_bytes())
    names.append(END)
    late = [text for text in draw(few_tokens_added) if text not in names]
    files = {"vocab.json": json.dumps({name: id for id, name in enumerate(names)})}
    files["merges.txt"] = "\n".join(["#version: 0.2", *map(" ".join, merges), ""])
    if late:
        ids = dict(zip(late, itertools.count(len(names)), strict=False))
        files["added_tokens.json"] = json.dumps(ids)
    files |= draw(folders([END, *late], tokenizer_class="GPT2Tokenizer"))
    return Case(files, HuggingFace, [*tokens, *late, END])


@st.composite
def bert_cases(draw):
    """BERT's vocab.txt in a folder."""
    tokens, _ = draw(grown(draw(st.sampled_from(["ab9é", "aB9É"]))))
    names = dict.fromkeys([*BERT_PIECES, *tokens, *map("##{}".format, tokens)])
    files = {"vocab.txt": draw(st.sampled_from(["\n", "\r\n"])).join([*names, ""])}
    config = draw(st.sampled_from([{}, {"do_lower_case": False}, {"do_lower_case": True}]))
    files |= draw(folders(BERT_PIECES, **config, tokenizer_class="BertTokenizer"))
    return Case(files, HuggingFace, [*tokens, *BERT_PIECES])


@st.composite
def tiktoken_cases(draw):
    """A rank file; its pattern and special tokens stand in a file beside it, or in the call."""
    names, _, tokens = draw(grown_bytes())
    ranks = {token: id for id, token in enumerate(bpe._read_names(names))}
    added = draw(few_tokens_added.filter(lambda added: "<x> <s>" not in added))  # <x> begins it
    special = {text: len(ranks) + 3 * k for k, text in enumerate(added)}
    named = st.sampled_from(EXPRESSIONS).map(bpe.PATTERNS.get)
    pattern = draw(named | named | named | odd_patterns)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    facts = {"pattern": pattern, "special_tokens": special}
    beside = {"m.tiktoken.json": json.dumps(facts)}
    ways = [({}, facts), (beside, {}), (beside, {"pattern": pattern})]
    beside, options = draw(st.sampled_from(ways))
    files = {"m.tiktoken": "".join(lines)} | beside
    parts = [*tokens, *special]
    return Case(files, lambda _: Tiktoken(ranks, **facts), parts, options, "m.tiktoken")


@st.composite
def sentencepiece_cases(draw):
    """A SentencePiece model of either type, with user-defined symbols."""
    some_symbols = st.sampled_from(["<x>", "a9", "▁▁", "\n", "é"])
    symbols = draw(st.lists(some_symbols, max_size=2, unique=True))
    tokens = [token for token in draw(grown("ab9▁é<"))[0] if token not in symbols]
    fallback = draw(st.booleans())
    control = draw(st.permutations([("<unk>", 2, 0), ("<s>", 3, 0), ("</s>", 3, 0), ("<p>", 3, 0)]))
    pieces = [*control[:2], *((text, 4, 0) for text in symbols), *control[2:]]
    pieces += [(name, 6, 0) for name in FALLBACK * fallback]
    scores = itertools.cycle(draw(few_scores))
    pieces += [(token, 1, score) for token, score in zip(tokens, scores, strict=False)]
    proto = model_proto(pieces, draw(st.sampled_from([1, 2])))
    proto.trainer_spec.byte_fallback = fallback
    ids = {text: id for id, (text, *_) in enumerate(pieces)}
    proto.trainer_spec.unk_id = ids["<unk>"]
    proto.trainer_spec.bos_id, proto.trainer_spec.pad_id = ids["<s>"], ids["<p>"]
    proto.trainer_spec.eos_id = draw(st.sampled_from([ids["</s>"], -1]))
    rule = normalizing_model(draw(st.sampled_from(["identity"] * 9 + ["nmt_nfkc"])))
    spec = sentencepiece_model_pb2.ModelProto.FromString(rule).normalizer_spec
    spec.add_dummy_prefix = draw(st.booleans())
    spec.remove_extra_whitespaces = draw(st.booleans())
    proto.normalizer_spec.CopyFrom(spec)
    files = {"tokenizer.model": proto.SerializeToString()}
    return Case(files, SentencePiece, [*tokens, *symbols, "<s>", "  "])


@st.composite
def mixed_cases(draw):
    """The files of two folders in one; those of the second take the place of the first's."""
    first = draw(gpt2_cases() | bert_cases() | sentencepiece_cases())
    second = draw(huggingface_cases() | gpt2_cases() | bert_cases())
    files = first.files | second.files
    assume("tokenizer_config.json" in files)  # else they are two models of equal right
    if "tokenizer_config.json" in first.files and draw(st.booleans()):
        files["tokenizer_config.json"] = first.files["tokenizer_config.json"]
    return Case(files, HuggingFace, [*first.parts, *second.parts])


CASES = huggingface_cases() | gpt2_cases() | bert_cases() | tiktoken_cases() | sentencepiece_cases()
CASES |= mixed_cases()
# What may happen to a tokenizer of `transformers` after it was loaded.
CHANGES = [
    lambda t: None,
    lambda t: t.add_tokens(["<late>", "b"]),
    lambda t: t.add_special_tokens({"pad_token": "!", "sep_token": "is"}),
    lambda t: setattr(t, "split_special_tokens", True),
    lambda t: setattr(t, "truncation_side", "left"),
    lambda t: setattr(t.backend_tokenizer, "post_processor", None),
    lambda t: t.backend_tokenizer.add_tokens(["9"]),
    lambda t: setattr(t.backend_tokenizer, "normalizer", N.Lowercase()),
    lambda t: setattr(t.backend_tokenizer, "pre_tokenizer", P.ByteLevel(True)),
    lambda t: setattr(t.backend_tokenizer, "post_processor", A.ByteLevel()),
]
swapped_options = call_options | st.just({"padding": "max_length", "max_length": 5})
FACTS = ["special_tokens_map", "all_special_tokens", "chat_template", "model_max_length"]
FACTS += ["padding_side", "truncation_side", "split_special_tokens"]


def there(call, *arguments, **options):
    """A result of the owner; None for an error or, in Rust, a panic."""
    try:
        return call(*arguments, **options)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise


def unpadded(rows, sizes):
    return [row[:size].tolist() for row, size in zip(rows, sizes, strict=True)]


def facts_of(tokenizer):
    return {name: getattr(tokenizer, name) for name in FACTS} | {"vocab": tokenizer.get_vocab()}


def changed(make, change, texts, options):
    """What a tokenizer of `transformers` gives after a change."""
    tokenizer = make()
    with contextlib.suppress(ValueError):
        change(tokenizer)
    return [outcome(tokenizer, inputs, **options) for inputs in (texts, texts[0])]


# A part of a note -> the calls whose results may differ for the reason that it names.
OF_SAVED = {"saved", "saved facts", "saved pair", "saved, changed"}
OF_OWNER = {"batch", "padded", "alone", "array", "chunks", "files", "offsets", "decode", "stream"}
OF_OWNER |= {"changed", *OF_SAVED} - {"saved"}
EXCUSED = {
    "in a tokenizer.json some ids may differ": OF_SAVED,
    "new tokens have ids from": OF_SAVED | {"changed"},
    "transformers changes what this folder says": {"changed", "saved, changed"},
    "AutoTokenizer of transformers 5 ": OF_OWNER,
    "are normalized to the same text": OF_OWNER | OF_SAVED,
    "is normalized to nothing": OF_OWNER | OF_SAVED,
}


def calls(ours, owner, parts, folder, draw):
    """Calls of ours by a name, and the results of the owner, of which None is not compared."""
    text = st.lists(st.sampled_from([*parts, *ODD_PARTS]), max_size=12).map("".join) | old_texts
    text |= st.sampled_from(MEETING)
    some = draw(st.lists(text.map(lambda text: text.replace("\0", "")), min_size=1, max_size=4))
    flags = ours.model.added_tokens
    special = [text for text in ours.special_tokens if text not in flags or flags[text].special]
    chosen = st.lists(st.sampled_from(special), max_size=2) if special else st.just([])
    is_piece = isinstance(owner, SentencePiece)
    allowed = "none" if is_piece else draw(st.sampled_from(["all", "none"]) | chosen)
    limit = draw(st.sampled_from(LIMITS[:-1]))
    add = {"add_special_tokens": draw(st.booleans())}
    expected = there(owner.encode, some, allowed, limit, **add)
    batch = ours.encode_batch
    yield "batch", lambda: batch(some, allowed, max_length=limit, **add), expected
    padded = ours.encode_batch_padded
    yield "padded", lambda: unpadded(*padded(some, limit, allowed, **add)), expected
    if limit is None:
        yield "alone", lambda: [ours.encode(text, allowed, **add) for text in some], expected
        array = ours.encode_to_numpy
        yield "array", lambda: [[*array(text, allowed, **add)] for text in some], expected
    expected = there(owner.encode, some, allowed, None, add_special_tokens=False)
    yield from calls_in_parts(ours, some, allowed, expected, folder, draw)
    if ours.model.alphabet == "characters" and hasattr(owner, "starts"):
        places = functools.partial(ours.encode_with_offsets, some[0], characters=True)
        yield "offsets", places, there(owner.starts, some[0])
    tokens = st.sampled_from(sorted(ours.vocab))
    if ours.special_tokens:
        tokens |= st.sampled_from([*ours.special_tokens.values()])
    ids = draw(st.lists(tokens, max_size=6))
    decoded = there(owner.decode, ids, False)
    yield "decode", lambda: ours.decode(ids), decoded
    yield "stream", lambda: streamed(ours, ids), decoded
    skipping = there(owner.decode, ids, True)
    yield "decode", lambda: ours.decode(ids, skip_special_tokens=True), skipping
    yield from calls_of_saved(ours, owner, some, allowed, folder, draw)


def streamed(ours, ids):
    stream = ours.stream()
    return "".join([*(stream.push([id]) for id in ids), stream.finish()])


def calls_in_parts(ours, some, allowed, expected, folder, draw):
    """Calls that get texts in parts: in chunks, and in files that are read in small blocks."""
    size = draw(st.integers(1, 9))
    chunks = [[text[k : k + size] for k in range(0, len(text), size)] for text in some]
    chunked = ours.encode_iterable
    yield "chunks", lambda: [[*chunked(parts, allowed)] for parts in chunks], expected
    paths = [folder / f"{k}.text" for k in range(len(some))]

    def in_files():
        for path, text in zip(paths, some, strict=True):
            path.write_bytes(text.encode())
        with mock.patch.object(bpe, "BLOCK_BYTES", 16):
            options = {"allowed_special": allowed, "workers": 1}
            bpe.encode_files(ours, paths, folder / "ids.npy", **options)
        return np.load(folder / "ids.npy").tolist()

    if draw(st.integers(0, 3)) == 0:
        yield "files", in_files, expected and [*chain(*expected)]


def calls_of_saved(ours, owner, some, allowed, folder, draw):
    """Calls of a tokenizer that is saved and loaded again, and of one that its library holds."""
    again = folder / "again"
    format = draw(st.sampled_from([owner.format, "huggingface"]))

    def reloaded():
        ours.save(again, format)
        return bpe.Tokenizer.load(again)

    expected = there(ours.encode_batch, some, allowed)  # None if a letter is unknown
    if isinstance(owner, SentencePiece) and "▁" in "".join(some):
        expected = None  # a tokenizer.json takes such a mark for no space
    yield "saved", lambda: reloaded().encode_batch(some, allowed), expected
    if isinstance(owner, Tiktoken):
        choices = [{}, {"allowed_special": "all"}, {"disallowed_special": ()}]
        options = draw(st.sampled_from(choices))
        expected = there(outcome, owner.there.encode_batch, some, **options)
        yield "swap", lambda: outcome(ours.as_tiktoken().encode_batch, some, **options), expected
    elif owner.there:
        if again.exists():  # otherwise the texts or the model are refused
            auto = transformers.AutoTokenizer.from_pretrained
            yield "saved facts", lambda: facts_of(auto(again)), facts_of(owner.there)
            pair = some[0], some[-1]
            yield "saved pair", lambda: outcome(auto(again), *pair), outcome(owner.there, *pair)
        change, options = draw(st.sampled_from(CHANGES)), draw(swapped_options)

        def after_change(make):
            return changed(make, change, some, options)

        expected = there(after_change, lambda: owner.there)
        if "`unk_id` is missing" in str(expected):  # text that ours may cut otherwise
            expected = None
        yield "saved, changed", lambda: after_change(bpe.Tokenizer.load(again).as_hf), expected
        yield "changed", lambda: after_change(ours.as_hf), expected


def is_excused(name, notes):
    said = [str(note.message) for note in notes]
    pairs = itertools.product(said, EXCUSED.items())
    return any(name in names and part in text for text, (part, names) in pairs)


def compare_with_owner(case, draw, folder, tally):
    """Write the files of a case, and make all calls; `tally` counts those that are refused."""
    tally["cases"] += 1
    for name, content in case.files.items():
        (folder / name).write_bytes(content if type(content) is bytes else content.encode())
    owner = there(case.owner, folder)
    assume(owner)
    with warnings.catch_warnings(record=True, action="always") as notes:
        try:
            ours = bpe.Tokenizer.load(folder / case.name, **dict(case.options))
        except bpe.InputError:
            tally["refused"] += 1
            return
        for name, call, expected in calls(ours, owner, case.parts, folder, draw):
            if expected is None:
                continue
            tally["calls"] += 1
            try:
                found = call()
            except bpe.InputError:
                tally["calls refused"] += 1
                continue
            if found != expected:
                assert is_excused(name, notes), (name, found, expected)
                tally["noted"] += 1


def test_differential(tmp_path):
    tally = Counter()
    is_long = settings.get_current_profile_name() == "long"

    # the same cases in each ordinary run; new ones in the long one
    @settings(max_examples=max(150, settings().max_examples), derandomize=not is_long)
    @given(case=CASES, data=st.data())
    def check(case, data):
        folder = tmp_path / str(tally["cases"])
        folder.mkdir()
        compare_with_owner(case, data.draw, folder, tally)
        shutil.rmtree(folder)

    check()
    assert tally["refused"] < 0.2 * tally["cases"]
    assert tally["calls refused"] + tally["noted"] < 0.1 * tally["calls"]


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
    documents = [*chain(*corpus[1])]
    source = bpe.PATTERNS.get(pattern, pattern)
    words = Counter(chain(*(naive_split(source, document) for document in documents)))
    return words, len(list(filter(None, documents)))


@pytest.fixture(params=[(1, 1 << 10), (3, 5000)], ids=str)
def workers(request, monkeypatch):
    """A number of workers, for blocks of so many bytes."""
    workers, block_bytes = request.param
    monkeypatch.setattr(bpe, "BLOCK_BYTES", block_bytes)
    return workers


DIGITS_FIRST = (r"\p{N}{1,3}", bpe.PATTERNS["gpt2"])


@pytest.mark.parametrize("pattern", ["gpt2", "o200k", "none", r"(?<!x)\w+", DIGITS_FIRST], ids=str)
@pytest.mark.filterwarnings("ignore:.*is not UTF-8", "ignore:.*is left to the `regex`")
def test_counts_do_not_depend_on_workers_and_blocks(pattern, workers, corpus):
    counts = counted(bpe.find_files(corpus[0]), pattern=pattern, workers=workers)
    assert counts == counted_naively(corpus, pattern)


@pytest.mark.filterwarnings("ignore:.*is not UTF-8", "ignore:.*no text")
def test_trainings_do_not_depend_on_workers_blocks_and_shards(workers, corpus, tmp_path):
    words, n_documents = counted_naively(corpus, "gpt2")
    expected = bpe.train_bpe(counts=words, vocab_size=500, special_tokens=[END])
    files = bpe.find_files(corpus[0])
    assert bpe.train_bpe(files[::-1], 500, [END], workers=workers) == expected
    from_texts = bpe.train(texts=iter(corpus[1]), vocab_size=499, workers=workers)
    assert from_texts.counted.n_documents == n_documents
    shards = [tmp_path / f"{k}.npz" for k in range(len(files))]
    for file, shard in zip(files, shards, strict=True):
        bpe.count_files(file, shard, special_tokens=[END], workers=workers)
    from_shards = bpe.train(shards, 500)
    assert from_texts.tokenizer.merges == from_shards.tokenizer.merges == expected[1]


def ids_of_documents(tokenizer, inputs, folder, **options):
    """The ids of each document in the files that are written, and the report."""
    paths = folder / "ids.npy", folder / "index.npy"
    report = bpe.encode_files(tokenizer, inputs, paths[0], document_index=paths[1], **options)
    ids, index = map(np.load, paths)
    assert ids.dtype == report.dtype and index.dtype == np.int64
    assert [len(ids), len(index) - 1] == [report.tokens, report.documents]
    return [ids[start:stop].tolist() for start, stop in pairwise(index)], report


@pytest.mark.filterwarnings("ignore:.*is not UTF-8")
def test_ids_do_not_depend_on_workers_and_blocks(workers, corpus, tokenizer, tmp_path):
    folder, documents_of = corpus
    end = tokenizer.token_to_id(END)
    expected = [[*tokenizer.encode(document), end] for document in chain(*documents_of)]
    ids, report = ids_of_documents(tokenizer, folder, tmp_path, append=END, workers=workers)
    assert ids == expected
    assert report[3:] == ("uint16", tokenizer.digest, END, 0)
    n_appended = len(expected) - 20 - 1 - 4  # the other ends are in the files
    n_bytes = len(tokenizer.decode_bytes(chain(*ids)))
    assert report.bytes == n_bytes - len(END) * n_appended
    assert read_json(tmp_path / "ids.npy.json").items() <= report._asdict().items()


ENDED = ["a b<|end|>c d<s>", "<s>a b<|end|><s><|end|>b", "", "<|end|>a", " ", "c d e <|end|> f "]
# Blocks without ids; the rest of the last but one and the last are one task.
ENDED += [" " * 9 + "a", " " * 99, "a<|end|>" + " " * 9 + "b", "a b<|end|>" + " " * 1600, "c"]


def test_a_file_that_becomes_shorter_while_it_is_read_is_named(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"some text")
    [block] = bpe.Source([file]).blocks()
    file.write_bytes(b"some")
    with refusal("a.txt: became shorter while it was read"):
        block.read()


def test_a_loop_of_links_is_named(tokenizer, tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(OSError, match="links"):
        bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "a" / "a.npy", workers=1)
    with pytest.raises((OSError, bpe.InputError), match=str(tmp_path / "a")):
        bpe.decode_file(tokenizer, tmp_path / "a", tmp_path / "b.txt")


@pytest.mark.parametrize("append", [None, "<|end|>"])
@pytest.mark.parametrize("block_bytes", [4, 9, 1000])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_each_document_ends_once(append, block_bytes, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", block_bytes)
    tokenizer = bpe.Tokenizer(BYTE_VOCAB, [], {"<|end|>": 256, "<s>": 257}, "whitespace-split")
    some_texts = [text for text in ENDED if text]
    contents = ENDED
    if suffix == ".jsonl":
        some_texts = ENDED * 2
        contents = ["".join(json.dumps({"text": text}) + "\n" for text in ENDED)] * 2
    files = [tmp_path / f"{k}{suffix}" for k in range(len(contents))]
    for path, content in zip(files, contents, strict=True):
        path.write_text(content)
    expected = ["".join(map(chr, tokenizer.encode(text))) for text in some_texts]
    if append:
        end = chr(256)
        parts = (re.findall(f"[^{end}]*{end}|[^{end}]+", ids) or [""] for ids in expected)
        expected = [part.removesuffix(end) + end for part in chain(*parts)]
    ids, _ = ids_of_documents(tokenizer, files, tmp_path, append=append, workers=1)
    assert ids == [[*map(ord, document)] for document in expected]


@pytest.mark.parametrize("block_bytes", [4, 1000])
def test_added_tokens_stand_around_each_text_in_a_file(block_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", block_bytes)
    _, ours = post_processed(POST_PROCESSORS[0])
    some_texts = ["a b a b a b a b a b", "a", "b b b b b b b b b b", "x CLS b"]
    for k, text in enumerate(some_texts):
        (tmp_path / f"{k}.txt").write_text(text)
    options = {"add_special_tokens": True, "append": "SEP", "workers": 1}
    ids, _ = ids_of_documents(ours, tmp_path, tmp_path, **options)
    assert ids == ours.encode_batch(some_texts, add_special_tokens=True)


def test_ids_are_lines_of_numbers_in_a_text_file(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 30)  # so a line is written in parts
    more = "more and more\n" * 20
    (tmp_path / "a.txt").write_text(f"some text{END}{END}{more}")
    bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "ids.txt", append=END)
    lines = (tmp_path / "ids.txt").read_text().splitlines()
    expected = [tokenizer.encode(text + END) for text in ("some text", "", more)]
    assert [[*map(int, line.split())] for line in lines] == expected
    bpe.decode_file(tokenizer, tmp_path / "ids.txt", tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_text() == f"some text{END}{END}{more}{END}"


def test_a_file_of_ids_is_decoded_as_one_text(tmp_path, monkeypatch):
    tokenizer = family_training(model="wordpiece", normalizer=("bert",)).tokenizer
    ids = tokenizer.encode("return the value of this function")
    np.save(tmp_path / "ids.npy", np.array(ids, np.uint16))
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 5)
    bpe.decode_file(tokenizer, tmp_path / "ids.npy", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == tokenizer.decode(ids)


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
    assert bpe.encode_files(plain(), tmp_path / "a.txt", tmp_path / "a.npy").dtype == "uint16"
    other = bpe.Tokenizer(BYTE_VOCAB | {70_000: b"ab"}, None)
    with note(r"a\.npy: another model wrote these ids"):
        bpe.decode_file(other, tmp_path / "a.npy", tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_text() == "cab"
    assert bpe.encode_files(other, tmp_path / "a.txt", tmp_path / "o.npy").dtype == "uint32"
    assert np.load(tmp_path / "o.npy").tolist() == [*b"c", 70_000]
    with note(r"e\.npy: no ids, since there is no text"):
        bpe.encode_files(plain(), tmp_path / "empty.txt", tmp_path / "e.npy")


def test_files_of_ids_are_not_mistaken_for_others(tmp_path):
    (tmp_path / "ids.npy.json").write_text("abc")
    with refusal("is an input"):  # it would be replaced by the description of the ids
        bpe.encode_files(plain(), tmp_path / "ids.npy.json", tmp_path / "ids.npy")
    with refusal("npy and"):
        bpe.read_ids(tmp_path / "ids.npy.json", "uint16")
    assert files_in(tmp_path) == {"ids.npy.json": b"abc"}


# ─── Training ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options, is_lossless", FAMILIES, ids=str)
def test_each_family_is_trained_gives_text_back_and_samples(options, is_lossless, library):
    training = family_training(**options)
    ours = training.tokenizer
    assert len(ours) == 1000 and "\n| tokens " in str(training.summary())
    strings = [library[3].read_text()]
    if ours.model.alphabet == "bytes" or ours.model.byte_fallback:  # it knows all characters
        strings += [f" two  spaces {END}{END} and é, 中文 ", "", "   ", "\n\n"]
    for string in strings:
        assert ours.decode(ours.encode(string)) == string or not is_lossless
    if ours.model.byte_fallback:
        ids = ours.encode("a中 é")
        assert regex.search(b"<0xE4>.?<0xB8>.?<0xAD>", b"".join(map(ours.id_to_token, ids)))
        assert ours.decode(ids) == "a中 é"
    used = {id for path in library[:40] for id in ours.encode_ordinary(path.read_bytes())}
    assert used.isdisjoint(bpe.unreachable_tokens(ours))
    text = f"def sample(self):{END} return self.words"
    if ours.model.kind == "wordpiece":
        with refusal("cuts a word in only one way"):
            ours.sample(text)
        return
    samples = [ours.sample(text, 0.5, seed) for seed in range(20)]
    assert len({*map(tuple, samples)}) > 5
    assert {*map(ours.decode, samples)} == {ours.decode(ours.encode(text))}
    assert ours.model.kind != "bpe" or ours.sample(text, 0) == ours.encode(text)


@pytest.mark.parametrize("family", ["bpe", "unigram"])
def test_texts_at_random_are_samples_of_each(family, library, tmp_path, monkeypatch):
    ours = family_training(model=family, alphabet="characters", byte_fallback=True).tokenizer
    texts = [library[4].read_text()[:3000], "", f"def a(){END}, b", "self" * 9, " x"]
    samples = [ours.sample(text, 0.3, k - 2) for k, text in enumerate(texts)]
    rows = [ours.sample(text, 0.3, 5 + k) for k, text in enumerate(texts[1:])]
    assert samples[0] != ours.sample(texts[0], 0.3, 9) and samples[0] != ours.encode(texts[0])
    monkeypatch.setattr(bpe, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(bpe, "PART_BYTES", 300)
    ours = bpe.Tokenizer.from_model(ours.model)
    for threads in (1, 2):
        assert ours.encode_batch(texts, alpha=0.3, seed=2**64 - 2, threads=threads) == samples
    files = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
    files[0].write_text("\n".join(json.dumps({"text": text}) for text in texts[1:]))
    files[1].write_text(texts[0])
    for workers in (1, 2):
        sampling = {"alpha": 0.3, "seed": 5, "workers": workers}
        found, _ = ids_of_documents(ours, files, tmp_path, **sampling)
        assert found[:-1] == rows
        assert ours.decode(found[-1]) == texts[0] and found[-1] != ours.encode(texts[0])
    small = [tmp_path / f"{k}.txt" for k in range(1000)]
    for path in small:
        path.write_text("self import of " * 5)
    one, two = (ids_of_documents(ours, small, tmp_path, alpha=0.3, workers=n)[0] for n in (1, 2))
    assert one == two and len({*map(tuple, one)}) > 50  # each file has a seed of its own
    for alpha in (math.nan, -1e308):  # with the second, each probability would be 0 or infinite
        with refusal("alpha is a probability|`alpha` is nan: it must be a number"):
            bpe.encode_files(ours, files, tmp_path / "a.npy", alpha=alpha)


@given(st.text("aé中, \n\t\u3000\xa0.1", max_size=30) | texts)
def test_every_space_comes_back_from_a_unigram(text):
    ours = family_training(model="unigram", byte_fallback=True, pattern=None).tokenizer
    assert ours.pattern.steps[0] == bpe.PATTERNS["spaces"]
    if "▁" not in text and not regex.search("<0x..>|<unk>", text):
        assert ours.decode(ours.encode(text)) == text


def test_a_unigram_cuts_unseen_text_about_as_finely_as_sentencepiece(library, tmp_path):
    lines = [" ".join(line.split()) for path in library[:30] for line in path.open()]
    (tmp_path / "a.txt").write_text("\n".join(filter(None, lines[::2])))
    options = {"vocab_size": 1000, "minloglevel": 2, "model_prefix": tmp_path / "sp"}
    sentencepiece.SentencePieceTrainer.train(input=tmp_path / "a.txt", **options)
    theirs = bpe.Tokenizer.load(tmp_path / "sp.model")
    ours = bpe.train(tmp_path / "a.txt", 1000, model="unigram", workers=1).tokenizer
    sizes = [sum(map(len, model.encode_batch(lines[1::2]))) for model in (ours, theirs)]
    # it is mostly less, and a few percent more on some parts of the library
    assert sizes[0] <= 1.05 * sizes[1]


def test_longest_tokens_have_marks_and_may_be_in_long_words():
    ours = family_training(model="longest", alphabet="characters", mark="_").tokenizer
    names = b"".join(map(ours.id_to_token, ours.encode("def  self.x\n return")))
    assert names == b"_def_self.x_return" and ours.decode(ours.encode("def  self")) == "def self"
    tokenizer = bpe.train(texts=["aaaa"], vocab_size=258, model="longest", workers=1).tokenizer
    assert len(tokenizer.encode("a" * 3_000_000)) == 3_000_000 / 4


def test_training_from_a_saved_model_is_training_in_one_go(library, tmp_path):
    options = {"tie_break": "ids", "workers": 1}
    small, large = (bpe.train(library[:20], size, [END], **options) for size in (500, 900))
    small.tokenizer.save(tmp_path)
    grown = bpe.train(library[:20], 900, from_=tmp_path, **options).tokenizer
    assert (grown.vocab, grown.merges) == (large.tokenizer.vocab, large.tokenizer.merges)
    options["pattern"] = r"\S+(?: \S+){0,3}|\s+"
    across = bpe.train(library[:20], 600, from_=tmp_path, **options).tokenizer
    assert small.tokenizer.vocab.items() <= across.vocab.items()
    assert any(b" " in token.strip() for token in across.vocab.values())


FROM = [{}, {"alphabet": "characters"}, {"model": "unigram"}, {"model": "wordpiece"}]
FROM += [{"model": "unigram", "byte_fallback": True}]


@pytest.mark.parametrize("options", FROM, ids=str)
def test_a_text_without_new_tokens_keeps_its_ids(options, library):
    old = family_training(**options).tokenizer
    news = [path.read_text() + "中文文字 中文文字 ☃☃" * 9 for path in library[30:40]]
    ours = bpe.train(texts=news, vocab_size=1100, from_=old).tokenizer
    assert old.vocab.items() <= ours.vocab.items() and len(ours) == 1100
    assert ours.special_tokens == old.special_tokens
    assert len(ours.encode(news[0])) < len(old.encode(news[0]))
    new_ids = ours.vocab.keys() - old.vocab.keys()
    new = {ours.token_bytes[id].strip() for id in new_ids} - {b""}  # spaces are in no word
    new = b"|".join(map(re.escape, new))
    words = {word for path in library[:30] for word in path.read_text().split()}
    kept = [word for word in words if not re.search(new, f" {word} ".encode())]
    assert len(kept) > 100 and ours.encode_batch(kept) == old.encode_batch(kept)
    theirs = ours.to_huggingface()
    for text in (news[0][:5000], news[1][-2000:]):
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text)


@pytest.mark.parametrize("options", [FROM[1], FROM[2], FROM[4]], ids=str)
def test_another_pattern_leaves_the_old_tokens_their_marks(options, library):
    old = family_training(**options).tokenizer
    news = "中文文字，中文文字 文字 ☃☃ " * 9
    cut = r" ?\p{Han}{1,4}| ?[^\s\p{Han}]+|\s+"
    ours = bpe.train(texts=[news], vocab_size=len(old) + 20, from_=old, pattern=cut).tokenizer
    texts = [path.read_text() for path in library[:3]]
    sizes = [sum(map(len, model.encode_batch(texts))) for model in (old, ours)]
    assert sizes[1] < 1.1 * sizes[0] and len(ours.encode(news)) < len(old.encode(news))
    theirs = ours.to_huggingface()
    for text in (news, *texts):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", FAMOUS)
def test_new_tokens_in_the_clothes_of_another_model(name, library):
    texts = [path.read_text() for path in library[30:40]]
    theirs = famous(name, texts[:5])
    if "suffix" in name or "words" in name:
        with refusal("no family of models learns a wordlevel|end in a suffix"):
            bpe.train(texts=texts, vocab_size=700, like=theirs)
        return
    ours = bpe.train(texts=texts[5:], vocab_size=700, like=bpe.Tokenizer.load(theirs)).tokenizer
    assert len(ours) == 700
    old, new = (json.loads(text) for text in (theirs.to_str(), ours.to_str()))
    for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        assert new[part] == old[part]
    added = [[{**token, "id": 0} for token in content["added_tokens"]] for content in (old, new)]
    assert added[0] == added[1]
    for content in (old, new):
        for field in ("vocab", "merges", "unk_id"):
            content["model"].pop(field, None)
    assert {**old["model"], **new["model"]} == {**new["model"], **old["model"]}
    theirs = ours.to_huggingface()
    for text in [*(text[:2000] for text in texts), "x <s> y", ""]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


WITH_LIMITS = [({}, 5), ({"model": "longest"}, 1), ({"alphabet": "characters"}, 1)]
WITH_LIMITS += [({"model": "wordpiece"}, 3), ({"model": "unigram"}, 4), ({"model": "unigram"}, 30)]


@pytest.mark.parametrize("options, longest", WITH_LIMITS, ids=str)
def test_tokens_have_the_required_characters_and_are_not_too_long(options, longest, library):
    texts = [path.read_text() + "☃" + "-" * 500 for path in library[:9]]
    is_of_bytes = options.get("model", "longest") == "longest" and "alphabet" not in options
    if not is_of_bytes:
        options |= {"required_chars": "☃中ß", "coverage": 0.9}
    options |= {"longest_token": longest, "vocab_size": 600}
    old = bpe.train(texts=texts, **options).tokenizer
    more = {"required_chars": "文☃"} if not is_of_bytes else {}
    new = bpe.train(texts=texts, from_=old, vocab_size=700, longest_token=longest, **more).tokenizer
    for ours in (old, new):
        tokens = [token for id, token in ours.vocab.items() if id in ours.model.ordinary]
        tokens = [token.removeprefix(b"##") for token in tokens]
        sizes = [len(token if is_of_bytes else token.decode()) for token in tokens]
        assert max(sizes) == longest
        text = "a☃ß☃中" if ours is old else "文☃ 文☃"
        assert is_of_bytes or ours.decode(ours.encode(text)).strip() == text


@pytest.mark.parametrize("weights", [(), (1, 2.5), (0.4, 0)], ids=str)
def test_languages_have_the_shares_that_are_asked_for(weights, library, tmp_path, command):
    balance = None if weights else 0.3
    paths = tmp_path / "a", tmp_path / "b"
    for path, files in zip(paths, (library[:9], library[9:12]), strict=True):
        path.mkdir()
        for file in files:
            (path / file.with_suffix(".txt").name).write_text(file.read_text())
    counts = [bpe.count(path).words.to_counts() for path in paths]
    sizes = [sum(len(word) * n for word, n in part.items()) for part in counts]
    by_hand = weights or [(size / max(sizes)) ** (0.3 - 1) for size in sizes]
    weighted = [bpe.Words.from_counts(n).weighted(w) for n, w in zip(counts, by_hand, strict=True)]
    words = bpe.Words.from_counts(pair for part in weighted for pair in part.to_counts().items())
    options = {"vocab_size": 500, "weights": weights, "balance": balance, "workers": 1}
    training = bpe.train(paths, **options)
    assert training.counted.words.digest == words.digest
    before, after = zip(*training.shares.values(), strict=True)
    assert before == pytest.approx(np.divide(sizes, sum(sizes)))
    wanted = np.multiply(sizes, by_hand)
    assert after == pytest.approx(wanted / wanted.sum(), abs=0.02)
    rows = training.summary().rows
    assert ("lost, weighted", "0 bytes") in rows
    assert [name for name, _ in rows].count("share") == 2
    line = "".join(f" --weight {weight}" for weight in weights) or " --balance 0.3"
    command(f"train a b --vocab-size 500 --out m{line}", cwd=tmp_path)
    assert bpe.Tokenizer.load(tmp_path / "m").digest == training.tokenizer.digest
    words = [path.with_suffix(".npz") for path in paths]
    for path, file in zip(paths, words, strict=True):
        bpe.count_files(path, file, workers=1)
    assert bpe.train(words, **options).record == training.record


def notes_of(call):
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        call()
    return [str(note.message) for note in notes]


@pytest.mark.parametrize("options", [{"alphabet": "characters"}, {"model": "unigram"}])
def test_a_mark_is_a_token_even_if_no_counted_word_has_a_space(options):
    tokenizer = bpe.train(counts={b"low": 5, b"lower": 2}, vocab_size=20, **options).tokenizer
    assert tokenizer.decode(tokenizer.encode("low lower")) == "low lower"


def test_counted_words_that_no_text_gives_get_a_note(library):
    def notes(counts, **options):
        return notes_of(lambda: bpe.train(counts=counts, vocab_size=400, workers=1, **options))

    assert "no counted word begins with a space" in notes({b"low": 5, b"lower": 2})[0]
    for options in ({"model": "wordpiece"}, {"pattern": "whitespace-split"}):
        assert not any("counted" in text for text in notes({b"low": 5, b"lower": 2}, **options))
    assert not any("counted" in text for text in notes({"▁low": 5}, pattern="spaces"))
    (text,) = [text for text in notes({b"low": 5, b" New York": 2}) if "counted" in text]
    assert text.startswith("1 of 2 counted words, such as ␣New␣York, are cut by the pattern")
    for pattern in ("gpt2", "o200k", "bert", "spaces"):
        counts = bpe.count(library[:3], pattern=pattern).words.to_counts()
        assert not any("counted" in text for text in notes(counts, pattern=pattern))


def test_a_size_after_plus_is_added_to_that_of_the_model(command, tmp_path):
    first = bpe.train(counts={b"low": 5, b" lower": 2}, vocab_size=258)
    text = " newest" * 9
    longer = bpe.train(texts=[text], vocab_size="+3", from_=first).tokenizer
    assert len(longer) == 261
    first.save(tmp_path / "first")
    (tmp_path / "a.txt").write_text(text)
    command("train a.txt --from first --vocab-size +3 --out more", cwd=tmp_path)
    assert bpe.Tokenizer.load(tmp_path / "more").digest == longer.digest
    for size, options in [("+3", {}), ("400", {"from_": first}), ("+", {"from_": first})]:
        with refusal(rf"`vocab_size` is '{re.escape(size)}': a number of tokens, or with `from_`"):
            bpe.train(texts=[text], vocab_size=size, **options)


def test_a_unigram_without_room_for_its_new_letters_is_refused(library):
    old = bpe.train(library[:1], 300, model="unigram", workers=1)
    text = " ".join(map(chr, range(0x4E00, 0x4E08))) * 2
    with within(60), refusal("the alphabet has 8 symbols, but the vocabulary has room for 3"):
        bpe.train(texts=[text], vocab_size="+3", from_=old, coverage=1)
    assert len(bpe.train(texts=[text], vocab_size="+8", from_=old, coverage=1).tokenizer) == 308


def test_bad_options_are_refused_before_texts_are_read(command, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "count", lambda *_, **__: 1 / 0)
    wordpiece = {"model": "wordpiece", "score": "best"}
    with refusal("no .tie_break. is named 'chars'; there are bytes, least"):
        bpe.train(texts=["some text"], tie_break="chars")
    for options in (wordpiece, {"special_tokens_at": "second"}):
        with refusal([*options][-1]):
            bpe.train(texts=["some text"], **options)
    (tmp_path / "a.txt").write_text("some text")
    assert_refused(command("train a.txt --out . --eos-token '<x>'", cwd=tmp_path), "<x>")


def test_a_long_pattern_is_shown_by_its_beginning():
    letters = {chr(code) for code in range(0x4E00, 0x5000)} | {"]", "\u0301"}
    pattern = bpe.Pattern(bpe._write_set(letters) + "+")
    assert len(repr(pattern)) < 330 and "\\U0000005d" in repr(pattern)
    assert pattern.split("丁]a") == ["丁]".encode(), b"a"]
    with refusal("`data` is 3: it must be a string or bytes"):
        pattern.split(3)


def test_a_saved_training_is_the_folder_of_the_command(command, library, tmp_path):
    for family in ("bpe", "unigram"):
        training = bpe.train(library[0], 400, [END], model=family, workers=1)
        training.save(tmp_path / "python")
        line = f"train {library[0]} --vocab-size 400 --special-token '{END}' --model={family} --out"
        assert command(line, tmp_path / "command").returncode == 0
        assert files_in(tmp_path / "python") == files_in(tmp_path / "command")
        # what is there of an earlier training has gone
        assert (tmp_path / "python" / bpe.LEARNED_FILE).exists() == (family == "bpe")
    with refusal("m.json: name a folder, not a file"):
        training.save(tmp_path / "m.json")
    assert_refused(command(line, tmp_path / "m.json"), "m.json: name a folder, not a file")
    assert not (tmp_path / "m.json").exists()


def test_results_are_a_page_and_not_a_wall(library):
    training = bpe.train(library[:5], 300)
    assert max(map(len, str(training.summary()).splitlines()[1:])) <= 80
    results = training.counted, training.counted.words, training.learned
    for result in (*results, training.tokenizer, training.tokenizer.source(library)):
        assert len(repr(result)) < 600
    training = family_training(model="unigram")
    assert repr(training) == f"<Training of {training.tokenizer!r}>"


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
        lambda: bpe.train_bpe(counts={b"ab": 1}, vocab_size=999),
    ):
        with pytest.warns(UserWarning) as caught:
            call()
        line = call.__code__.co_firstlineno
        assert {(w.filename, w.lineno) for w in caught} == {(__file__, line)}


# How texts are counted, and options of a training from these counts.
WITH_UNK = {"special_tokens": [END, "<unk>"]}
OF_BERT = {"special_tokens": [END, "[UNK]"], "pattern": "bert", "normalizer": ["bert"]}
COUNTINGS = [
    ({}, {"model": "longest", "min_frequency": 2}),
    ({"pattern": "cl100k", "normalizer": ["nfc", "lowercase"]}, {"tie_break": "ids"}),
    ({**WITH_UNK, "pattern": "spaces"}, {"model": "unigram"}),
    ({"special_tokens": [END, "<unk>", "<0x0A>"]}, {"model": "unigram", "byte_fallback": True}),
    (
        {"special_tokens": [END, "<0x0A>"]},
        {"alphabet": "characters", "byte_fallback": True, "coverage": 0.99},
    ),
    ({**WITH_UNK, "pattern": "whitespace-split"}, {"alphabet": "characters", "mark": "_"}),
    (OF_BERT, {"model": "wordpiece"}),
]


@pytest.mark.parametrize("counting, options", COUNTINGS, ids=str)
def test_training_from_counts_is_training_from_the_texts(library, tmp_path, counting, options):
    counting = {"special_tokens": [END], "pattern": "gpt2", "normalizer": []} | counting
    special_tokens = [name for name in counting["special_tokens"] if name != "<0x0A>"]
    text = f"Some text. {END}And {special_tokens[-1]} [UNK] more <0x0A>{END}"
    (tmp_path / "a.txt").write_text(text)
    files = [*library[:9], tmp_path / "a.txt"]
    words = [tmp_path / "1.npz", tmp_path / "2.npz"]
    for out, group in zip(words, (files[:4], files[4:]), strict=True):
        bpe.count_files(group, out, **counting, workers=1)
    settings = {name: counting[name] for name in ("pattern", "normalizer")}
    written = []
    ways = [(words, (), {}), (words, special_tokens, {}), (files, special_tokens, settings)]
    for inputs, tokens, more in ways:
        bpe.train(inputs, 800, tokens, **options | more, workers=1).save(tmp_path / "model")
        written.append(files_in(tmp_path / "model"))
        shutil.rmtree(tmp_path / "model")
    assert written[0] == written[1] == written[2] and "training.json" in written[0]


@pytest.mark.parametrize("options", [options for options, _ in FAMILIES], ids=str)
def test_a_training_on_counts_is_that_on_the_texts(options):
    of_texts = family_training(**options)
    counts = of_texts.counted.words.to_counts()
    halves = [(word, n - n // 2) for word, n in counts.items()]
    halves += [(word.decode(), n // 2) for word, n in counts.items()]  # all are UTF-8
    options = {"vocab_size": 1000, "special_tokens": [END]} | options
    options["normalizer"] = [*options.get("normalizer", ())]
    for words in (counts, halves):
        ours = bpe.train(counts=words, **options)
        assert ours.tokenizer.to_str() == of_texts.tokenizer.to_str()
        assert ours.n_tokens == of_texts.n_tokens


def test_a_file_of_counts_is_learnt_from_on_the_command_line(command, tmp_path):
    (tmp_path / "words.tsv").write_bytes("low\t5\r\n lower 2\n a b\t3\n é\t1\n".encode())
    command("train --counts words.tsv --vocab-size 259 --quiet --out model", cwd=tmp_path)
    counts = {"low": 5, " lower": 2, " a b": 3, " é": 1}
    _, merges = bpe.train_bpe(counts=counts, vocab_size=259)
    assert bpe.Tokenizer.load(tmp_path / "model").merges == merges


def test_the_record_of_a_training_is_plain_and_has_no_place_and_no_time(library, tmp_path):
    options = {"alphabet": "characters", "normalizer": ["nfc"]}
    records = []
    for k, more in ((1, b""), (2, b""), (3, b" the")):
        (tmp_path / f"{k}").mkdir()
        (tmp_path / f"{k}" / "a.txt").write_bytes(library[0].read_bytes() + more)
        records.append(bpe.train(tmp_path / f"{k}", 400, [END], workers=k, **options).record)
    one, two, other = records
    assert one == two == json.loads(json.dumps(one)) and one["bpe_numba"] == bpe.__version__
    assert one["corpus"]["n_bytes"] == library[0].stat().st_size
    assert one["corpus"]["words"] != other["corpus"]["words"]
    options = one["options"]
    assert options["special_tokens"] == [END, "<unk>"] and options["coverage"] == 0.9995
    assert options["normalizer"] == [{"type": "NFC"}] and options["model"] == "bpe"
    assert options["pattern"] == [bpe.PATTERNS["gpt2"]] and options["vocab_size"] == 400


@pytest.mark.parametrize("model", ["unigram", "wordpiece", "bpe"])
def test_rare_characters_are_no_tokens_but_ascii_and_white_space(model):
    rare = "37XQZ/%@$#+&?^~\t\r\n\x0b\u3000\u2028é"
    options = {"alphabet": "characters", "pattern": "gpt2", "unk_token": "<?>", "vocab_size": 200}
    options |= {"texts": ["the cat sat " * 9000 + rare], "model": model}
    with note("fewer than"):
        tokenizer = bpe.train(**options).tokenizer
        whole = bpe.train(**options, coverage=1.0).tokenizer
    assert [char for char in rare if tokenizer.token_to_id(char) is None] == ["é"]
    assert tokenizer.special_tokens["<?>"] in tokenizer.encode("é")
    assert whole.token_to_id("é") is not None


def test_a_wordpiece_encodes_the_words_that_it_was_trained_on():
    source = random.Random(1)
    proteins = ["".join(source.choices("ACDEFGHIKLMNPQRSTVWY", k=k)) for k in range(200, 330)]
    tokenizer = bpe.train(texts=proteins, vocab_size=300, model="wordpiece").tokenizer
    theirs = tokenizer.to_huggingface()
    for protein in proteins:
        tokens = theirs.encode(protein)
        assert tokenizer.encode(protein) == tokens.ids and "[UNK]" not in tokens.tokens
    assert tokenizer.encode("A" * 400) == theirs.encode("A" * 400).ids == [0]


def test_the_bar_of_a_unigram_ends_full(capsys, library):
    bpe.train(library[:5], 400, model="unigram", progress=True)
    assert re.findall("prune: +([0-9]+)%", capsys.readouterr().err)[-1] == "100"


def test_a_training_has_its_kernels_of_learning_compiled_beside(monkeypatch):
    calls = []

    def note_call(*arguments):
        calls.append(arguments)
        return contextlib.nullcontext()

    monkeypatch.setattr(bpe, "compiled_beside", note_call)
    training = bpe.train(texts=["ab ab"], vocab_size=257, workers=3)
    ((call, n),) = calls
    signatures = bpe._merge_until.signatures if bpe.COMPILES else None
    eval(call, vars(bpe))  # an expression of the module
    assert n == 3 and len(training.tokenizer) == 257
    assert not bpe.COMPILES or bpe._merge_until.signatures == signatures


# ─── Command line ─────────────────────────────────────────────────────────────────────────────────


def run(*arguments, **options):
    """Run the command line in a process of its own, as `python bpe_numba.py` does.

    Python keeps the bytecode of a module, but it would compile a program each time.
    """
    return python("-m", "bpe_numba", *arguments, **options)


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


def test_encode_and_decode_are_inverse(model, command, tmp_path):
    text = (model / "text.txt").read_bytes()
    ids = command("encode model text.txt --quiet", cwd=model).stdout
    assert command("decode model -", stdin=ids, cwd=model).stdout == text
    honoured = command("encode model -", stdin=END.encode(), cwd=model).stdout.split()
    line = "encode model - --allowed-special none"
    ordinary = command(line, stdin=END.encode(), cwd=model).stdout.split()
    assert honoured == [b"0"] and len(ordinary) > 1 and b"0" not in ordinary
    for ids in (b"[72, 105]", b"72,105", b"72 105"):
        done = command(f"decode model - --out {tmp_path}/a/b.txt", stdin=ids, cwd=model)
        assert done.returncode == 0 and len((tmp_path / "a/b.txt").read_bytes()) == 2


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
    lines = f"count . --special-token {END}", "train words.npz --vocab-size=260 --out=model"
    output = b"".join(command(line, cwd=tmp_path).stdout for line in lines)
    assert output.count(b"880 bytes in 40 documents") == 2
    assert b"80, 2 of them unique" in output and b"Written to words.npz" in output


def test_a_post_processor_is_written_and_used_by_commands(command, tmp_path):
    (tmp_path / "a.txt").write_text("low lower <s>")
    lines = ["train a.txt --special-token <s> --vocab-size 260 --template '<s> $A' --out m"]
    lines.append("convert m --to huggingface --out n --special-token </s> --template '<s> $A </s>'")
    lines += [f"encode {name} a.txt --add-special-tokens --out {name}.npy" for name in "mn"]
    for line in lines:
        assert command(line, cwd=tmp_path).returncode == 0, line
    for name, text in (("m", "<s>low lower <s>"), ("n", "<s>low lower <s></s>")):
        theirs = theirs_from(tmp_path / name)
        ids = np.load(tmp_path / f"{name}.npy").tolist()
        assert ids == theirs.encode("low lower <s>").ids
        assert theirs.decode(ids, skip_special_tokens=False) == text
    done = command("train a.txt --template '<x> $A' --out o", cwd=tmp_path)
    assert_refused(done, "--template is $A between special tokens", "not '<x> $A'")
    done = command("train a.txt --special-token '<x>' --template '<x> ' --out o", cwd=tmp_path)
    assert_refused(done, "single quotes keep the $A")
    assert not (tmp_path / "o").exists()


def test_roles_of_tokens_and_a_template_are_written_and_converted(command, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    options = [f"--special-token={token}" for token in tokens]
    roles = dict(zip(bpe.ROLES, [tokens[1], tokens[2], tokens[0], tokens[0]], strict=True))
    options += [f"--{role.replace('_', '-')}={token}" for role, token in roles.items()]
    options += ["--model-max-length=32768", "--chat-template=chatml"]
    train = "train a.txt --out mini --vocab-size 259"
    assert command(train, *options, cwd=tmp_path).returncode == 0
    done = command("convert mini --to huggingface --out converted", cwd=tmp_path)
    assert done.returncode == 0 and b"259 tokens" in done.stdout and b"to converted" in done.stdout
    config = roles | {"model_max_length": 32768, "chat_template": bpe.CHATML}
    for folder in (tmp_path / "mini", tmp_path / "converted"):
        assert config.items() <= read_json(folder / "tokenizer_config.json").items()
        assert read_json(folder / "special_tokens_map.json") == roles


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
    notes = [note for note in result.stderr.decode().splitlines() if "regex" in note]
    assert result.returncode == 0 and len(notes) == 1
    assert "left to the `regex` package" in notes[0]


@pytest.mark.parametrize("name", bpe.COMMANDS)
def test_help_has_two_examples_that_parse(name, command):
    output = command(f"{name} --help").stdout.decode()
    examples = output.partition("examples:\n")[2].splitlines()
    assert len(examples) >= 2 and "--old-scores" not in output  # which has no type
    assert all(len(line) <= 80 for line in output.splitlines() if line not in examples)
    for line in examples:
        words = re.split(" [<|] ", line.partition("bpe_numba.py ")[2])[0]
        name, *arguments = shlex.split(words)
        assert bpe._make_parser(name).parse_intermixed_args(arguments)


TOP = Path(MODULE).parent
PAGES = [str(page.relative_to(TOP)) for page in (TOP / "README.md", *sorted(TOP.glob("docs/*.md")))]
# Languages of blocks that are not run, and the reason.
NOT_RUN = {
    "text": "the lines that the block before it prints",
    "console": "Llama 2's model, and a corpus of five formats: their commands exist, see below",
}
# A block that is a module, and has tests of its own.
MODULE_OF_A_PAGE = "def learn_fewest"
# The lines printed in these pages are for texts that are no part of this project.
OF_OTHER_TEXTS = ["docs/evaluate.md", "docs/study.md"]
# Less work than in the pages, with the same statements.
SMALLER = {"16_000": "400", "32000": "400", "train --vocab": "train code.txt --vocab"}


class Block(NamedTuple):
    language: str
    content: str
    printed: list  # the lines of the block `text` that follows


def blocks_of(page):
    fenced = r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?"
    found = regex.findall(fenced, (TOP / page).read_text(), regex.DOTALL | regex.MULTILINE)
    for language, content, printed in found:
        if language not in NOT_RUN and MODULE_OF_A_PAGE not in content:
            for before, after in SMALLER.items():
                content = content.replace(before, after)
            yield Block(language, content, printed.splitlines())


def run_python(block, folder, names):
    """Run a block with some names, or a program in a process; returns the lines that it prints."""
    if "__main__" in block:
        (folder / "program.py").write_text(block)
        done = python("program.py", cwd=folder)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().splitlines()
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as output:
        exec(block, names)
    return output.getvalue().splitlines()


def run_shell(block, folder, command):
    """Run the lines of a block; returns the lines that they print."""
    bin_folders = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(bin_folders), "PYTHONPATH": str(TOP)}
    lines = [block] if block.startswith("for ") else block.replace("\\\n", "").splitlines()
    printed = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "bpe-numba":
            done = command(shlex.join(words[1:]), cwd=folder)
        else:
            shell = ["bash", "-euc", line]
            options = {"capture_output": True, "timeout": 300}
            done = subprocess.run(shell, cwd=folder, env=environment, **options)
        assert done.returncode == 0, (line, done.stderr)
        printed += done.stdout.decode().splitlines()
    return printed


def run_page(page, folder, command=None, names=None):
    """Run the blocks of a page in one folder; returns the lines that they print.

    The lines that follow a block are among those that it prints, in this order.

    names  the names of Python that its blocks have in common; by default each has its own
    """
    all_printed = []
    for block in blocks_of(page):
        if block.language == "python":
            printed = run_python(block.content, folder, {} if names is None else names)
        else:
            assert block.language == "sh"
            printed = run_shell(block.content, folder, command)
        rest = iter(printed)
        missing = [line for line in block.printed if line not in rest]
        assert page in OF_OTHER_TEXTS or not missing, (block, printed)
        all_printed += printed
    return all_printed


# Some lines of pyspark, which needs Java.
SPARK = """
class SparkContext:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def parallelize(self, items, n):
        self.items = items
        return self

    def foreach(self, function):
        for item in self.items:
            function(item)
"""


@pytest.fixture
def texts_of_pages(tmp_path):
    """A folder with the texts that the pages name."""
    corpus = ("The cat sat on the mat, and the dog lay beside it in the sun. " * 9 + END) * 20
    lines = (json.dumps({"text": f"文字處理 {k}: " + corpus[:60]}) for k in range(2000))
    jsonl = "\n".join(lines).encode()
    packed = gzip.compress(jsonl)
    names = "corpus.jsonl", "chinese.jsonl", "shards/1.jsonl", "shards/2.jsonl"
    files = dict.fromkeys(names, jsonl)
    files |= dict.fromkeys(("chinese.jsonl.gz", "shard-0001.jsonl.gz"), packed)
    names = "corpus.txt", "english.txt", "train.txt", "test.txt", "shards/a.txt"
    files |= dict.fromkeys(names, corpus.encode())
    files |= dict.fromkeys(("src/a/b.py", "code.txt"), Path(__file__).read_bytes()[:20_000])
    program = f"#!{sys.executable}\nimport sys\nsys.path.append({str(TOP)!r})\n"
    program += "from bpe_numba import run\nsys.exit(run())\n"
    files["bin/bpe-numba"] = program.encode()
    files["README.md"] = (TOP / "README.md").read_bytes()
    files["pyspark.py"] = SPARK.encode()
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "bin/bpe-numba").chmod(0o755)
    training = bpe.train(tmp_path / "corpus.txt", 280, [END], workers=1)
    training.tokenizer.save(tmp_path)
    for name in ("model", "other-model"):
        training.save(tmp_path / name)
    return tmp_path


# These have tests of their own, in Reports.
APART = ("bits.md", "evaluate.md", "research.md")
OTHERS = [page for page in PAGES if not page.endswith(APART)]


@pytest.mark.parametrize("page", [page for page in OTHERS if any(blocks_of(page))])
def test_pages_run_as_printed(page, command, texts_of_pages):
    run_page(page, texts_of_pages, command)


def commands_that_are_not_run():
    """Yield the words of the commands in blocks of a console and without a language."""
    for page in PAGES:
        for block in regex.findall(r"(?ms)^```(?:console)?\n(.*?)^```$", (TOP / page).read_text()):
            for line in block.replace("\\\n", "").splitlines():
                line = re.sub(r"^(\$ |\w+=\d )", "", line)
                if line.startswith(("bpe-numba ", "python ", "pytest ", "./")):
                    yield shlex.split(line, comments=True)


def test_commands_of_the_pages_exist():
    tests = [name for name in globals() if name.startswith("test_")]
    commands = [*commands_that_are_not_run()]
    assert len(commands) > 20
    for words in commands:
        files = [word for word in words if word.startswith(("docs/", "./"))]
        assert all((TOP / file).is_file() for file in files), words
        if "pytest" in words and "-k" in words:
            part = words[words.index("-k") + 1]
            assert part == "…" or any(part in name for name in tests), words
        elif {"bpe-numba", "bpe_numba.py"} & {*words[:2]}:
            name, *options = words[words[0] == "python" :][1:]
            assert bpe._make_parser(name).parse_intermixed_args(options)


def test_options_that_the_pages_name_exist():
    known = "".join(bpe._make_parser(name).format_help() for name in bpe.COMMANDS)
    known += (TOP / "profile.sh").read_text() + "--hypothesis-profile --hypothesis-seed"
    for page in PAGES:
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", (TOP / page).read_text())
        assert [option for option in options if option not in known] == [], page
        assert options or page != "README.md"


def test_a_notebook_of_the_pages_blocks_shows_their_results(tmp_path):
    import nbclient
    import nbformat

    top = Path(MODULE).parent
    cells = [f"import sys; sys.path.insert(0, {str(top)!r})"]
    blocks = regex.findall(r"```python\n(.*?)```", (top / "README.md").read_text(), regex.DOTALL)
    cells += blocks[:2]
    shown = ["training", "training.tokenizer", "inspect_model(tokenizer)", "curve(training)"]
    shown += ["curve(training).plot()", "compare([training, tokenizer], 'zen.txt')"]
    shown += ["view(tokenizer, 'Simple is better.')"]
    cells += ["from bpe_numba import compare, curve, inspect_model, view", *shown]
    (tmp_path / "README.md").write_bytes((top / "README.md").read_bytes())
    zen = [sys.executable, "-c", "import this"]
    (tmp_path / "zen.txt").write_bytes(subprocess.run(zen, capture_output=True).stdout)
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
    nbformat.write(notebook, tmp_path / "tour.ipynb")
    pages = [cell.outputs[-1].data for cell in notebook.cells[-len(shown) :]]
    assert "image/png" in pages.pop(4)
    assert all("<h" in page["text/html"] for page in pages)
    assert "bpe-400" in pages[3]["text/html"] and "bpe-400 (2)" in pages[4]["text/html"]


def names_of_headings(page):
    """The names by which links lead to the headings of a page, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_to_files_and_headings():
    top = Path(MODULE).parent
    for page in (top / "README.md", *top.glob("docs/*.md")):
        links = regex.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text())
        assert links or page.name != "README.md"
        for link, heading in links:
            target = page.parent / link if link else page
            assert target.is_file(), (page, link)
            assert not heading or heading in names_of_headings(target), (page, link, heading)


def test_a_note_says_that_a_model_is_replaced_when_the_text_is_read(command, tmp_path):
    line = "train a.txt --vocab-size=257 --quiet --out m"
    for text, is_noted in [("the cat", False), ("the cat", True), ("", False)]:
        (tmp_path / "a.txt").write_text(text)
        done = command(line, cwd=tmp_path)
        assert (b"m: the model in this folder will be replaced" in done.stderr) == is_noted


def test_inputs_may_follow_an_option(command, model):
    whole = command("inspect model text.txt", cwd=model).stdout
    assert command("inspect model --quiet text.txt", cwd=model).stdout == whole
    curves = command("curve model --quiet model", cwd=model)
    assert curves.returncode == 0 and curves.stdout == command("curve model", cwd=model).stdout
    done = command("decode model --quiet - more", cwd=model)
    assert_refused(done, "unrecognized arguments: more")
    done = command("inspect model --quiett", cwd=model)
    assert_refused(done, "--quiett; did you mean --quiet?")


def test_advice_fits_the_place(command, model):
    done = command("encode text.txt model", cwd=model)
    assert_refused(done, "this is not a tokenizer.json", "take the model before the texts")
    with refusal(r"into a file, or in Python into train\(texts=.* or Tokenizer.encode"):
        bpe.inspect_model(model / "model", "a text")
    with refusal("not <.{1,40}$"):
        bpe.Tokenizer.load(bpe.Words)


# ─── Programs ─────────────────────────────────────────────────────────────────────────────────────


IN_PLAIN_PYTHON = """
import sys, bpe_numba
tokenizer = bpe_numba.train(sys.argv[1], 300, workers=1).tokenizer
text = open(sys.argv[1]).read()
ids = tokenizer.encode(text)
normalizer = bpe_numba.Normalizer([{"type": "NFC"}])
pretokenizer = bpe_numba.Pretokenizer(tokenizer.pattern, normalizer=normalizer)
place = pretokenizer.find_cut(lambda *_: b"the cat sat here", 0, 1)
tied = {b"bbbaabb": 1, b"bbbbbbb": 4, b"a": 3, b"abaaabbba": 1}
tokens = bpe_numba.learn(bpe_numba.Words.from_counts(tied), 262, score="likelihood").tokens
same = tokenizer.decode(ids) == text
print(tokenizer.merges, tokens, same, ids, place[0], tokenizer.encode(b"\\x80"))
"""


def test_it_runs_as_plain_python_without_docstrings_and_asserts(tmp_path):
    path = tmp_path / "a.txt"
    lines = "It was the best of times, it was the worst of times. ¿Él? 中文\n" * 3
    path.write_text(lines + "ab" * 200)
    tokenizer = bpe.train(path, 300, workers=1).tokenizer
    tied = {b"bbbaabb": 1, b"bbbbbbb": 4, b"a": 3, b"abaaabbba": 1}
    *_, tokens = naive_learn(tied, 262, score="likelihood")
    ids = tokenizer.encode(path.read_text())
    done = python("-OO", "-c", IN_PLAIN_PYTHON, path, NUMBA_DISABLE_JIT=1)
    expected = f"{tokenizer.merges} {tokens} True {ids} 3 [222]\n"
    assert done.stdout.decode() == expected, done.stderr
    assert b"--vocab-size" in python("-OO", MODULE, "train", "--help").stdout


def test_the_example_of_a_profile_quotes_lines_of_the_module():
    text = (Path(MODULE).parent / "docs" / "profiling.md").read_text()
    quoted = re.findall(r"(?m)^ *[0-9.]+ +[0-9]+  (.+)$", text)
    lines = {line.strip() for line in Path(MODULE).read_text().splitlines()}
    assert quoted and lines.issuperset(quoted)


def rows_of(table):
    """The cells of a table in Markdown, without its header."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


@compiled
def test_a_profile_names_the_kernels_of_each_stage(tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest newest widest\n" * 99)
    script = Path(MODULE).with_name("profile.sh")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    options = {"env": os.environ | {"PATH": path}, "cwd": tmp_path, "timeout": 300}
    command = ["bash", script, "--kernels", "train", "a.txt"]
    done = subprocess.run(command, **options, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stages, kernels = done.stdout.split("\nKernels that Python calls")
    *rows, (*_, of_python, _) = rows_of(kernels)
    assert ("compile", "_count_text") in {(stage, kernel) for stage, kernel, *_ in rows}
    assert {float(row[3]) for row in rows} == {0.0}  # nothing was compiled
    total = float(of_python) + sum(float(cell) for row in rows for cell in row[3:6])
    assert total == pytest.approx(sum(float(row[1]) for row in rows_of(stages)), rel=0.2)


USE_FEWEST = """
import multiprocessing
import bpe_numba as bpe

if __name__ == "__main__":
    import fewest
    multiprocessing.set_start_method("spawn")
    print(bpe.encode_files(bpe.Tokenizer.load("model"), "a.jsonl", "a.npy", workers=2))
"""


@functools.cache
def naive_fewest(word, tokens):
    """The least number of tokens into which a word can be cut."""
    begins = [token for token in tokens if word.startswith(token)]
    return min((1 + naive_fewest(word[len(token) :], tokens) for token in begins), default=0)


def test_a_family_of_its_own_file_trains_and_encodes_in_spawned_workers(tmp_path):
    options = {"cwd": tmp_path, "NUMBA_DISABLE_JIT": 1}
    text = "low lower lowest newest widest é\n" * 9
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.jsonl").write_text((json.dumps({"text": text}) + "\n") * 99)
    (tmp_path / "fewest.py").write_text(FEWEST)
    (tmp_path / "use.py").write_text(USE_FEWEST)
    line = "fewest.py train a.txt --vocab-size 275 --longest 4 --model fewest"
    trained = python(*line.split(), **options)
    assert b"fewest.py encode model -" in trained.stdout, trained.stderr
    used = python("use.py", **options)
    assert b"99 texts" in used.stdout, used.stderr
    vocab = read_json(tmp_path / "model" / "tokenizer.json")["model"]["vocab"]
    assert max(map(len, vocab)) == 4
    tokens = {token_id: name for name, token_id in vocab.items()}
    ids = np.load(tmp_path / "a.npy").tolist()
    assert "".join(map(tokens.get, ids)) == in_chars(text.encode()) * 99
    words = [in_chars(word) for word in bpe.Pattern("gpt2").split(text.encode())]
    assert len(ids) == 99 * sum(naive_fewest(word, frozenset(vocab)) for word in words)
    with refusal("no kind of model is named 'fewest'; there are bpe"):
        bpe.Tokenizer.load(tmp_path / "model")


def test_train_reports_its_results(model, tmp_path):
    options = ["--vocab-size", 270, "--special-token", END, "--out", tmp_path / "model"]
    result = python(MODULE, "train", model / "text.txt", *options)
    output = result.stdout.decode()
    parts = ["2,550 bytes in 51 documents", "270, 1 of them special", "bytes/token"]
    assert all(part in output for part in parts)
    assert "scan:" in result.stderr.decode() and "learn:" in result.stderr.decode()
    typed = output.splitlines()[-1].replace("python bpe_numba.py", f"{sys.executable} {MODULE}")
    assert subprocess.run(typed, shell=True, capture_output=True, check=True).stdout.split()


def test_a_full_disk_leaves_nothing(model, tmp_path):
    (tmp_path / "text.txt").write_text("some text, and more of it\n" * 20_000)
    limit_sizes = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    command = ["encode", model / "model", "text.txt", "--out", "o.npy"]
    result = run(*command, cwd=tmp_path, preexec_fn=limit_sizes)
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


# Commands, their output, and how often and by which signal they are ended: by an impatient user,
# `kill`, a closed terminal, by force.
ENDINGS = [
    ("train --workers 2 --out", "model", 2, signal.SIGINT),
    ("count --workers 1 --out", "o.npz", 1, signal.SIGTERM),
    ("encode --workers 2 --out", "o.npy", 1, signal.SIGHUP),
    ("encode --workers 2 --out", "o.npy", 1, signal.SIGKILL),
]


@pytest.mark.parametrize("line, out, times, number", ENDINGS)
def test_a_signal_ends_a_command_in_a_line(model, much_text, tmp_path, line, out, times, number):
    """While kernels run, results are taken apart, workers start: a hundred moments were tried."""
    command = [sys.executable, "-m", "bpe_numba", *line.split(), str(tmp_path / out)]
    command += [str(model / "model")] * line.startswith("encode") + [str(much_text)]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    options["env"] = os.environ | {"PYTHONPATH": str(TOP)}
    process = subprocess.Popen(command, **options, start_new_session=True)
    output = b""
    while b"B/s" not in output and process.poll() is None:  # until it reads text
        output += os.read(process.stderr.fileno(), 1000)
    time.sleep(random.uniform(0, 0.5))
    end = os.kill if number == signal.SIGKILL else os.killpg  # workers see that it is killed
    for _ in range(times):
        end(process.pid, number)
        time.sleep(0.01)
    _, rest = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number and not [*tmp_path.glob("o.*")]
        return
    lines = rest.decode().replace("\r", "\n").splitlines()
    assert process.returncode == 128 + number, lines
    assert lines[-1].endswith("no partial files were left"), lines
    assert not any("Traceback" in line for line in lines)
    assert not [*tmp_path.iterdir()]


def test_a_script_that_imports_the_module_keeps_its_interrupts(tmp_path):
    script = tmp_path / "my_bpe_numba.py"
    script.write_text("import signal, bpe_numba\nprint(signal.getsignal(signal.SIGINT).__name__)")
    assert python(script).stdout == b"default_int_handler\n"


def test_an_interrupt_or_an_error_while_packages_load_is_no_traceback(tmp_path):
    (tmp_path / "numba.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    result = run("--version", PYTHONPATH=tmp_path)
    assert result.returncode == -signal.SIGINT and not result.stderr
    (tmp_path / "numba.py").write_text("raise OSError('no\\nmemory')\n")
    result = run("--version", PYTHONPATH=tmp_path)
    assert_refused(result, "a required package is missing, or memory ran out")


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


def test_a_process_refuses_in_one_line_whose_help_is_a_command(tmp_path):
    assert_refused(run("train", "nowhere.txt", cwd=tmp_path), "nowhere.txt", "no such file")
    message = python(MODULE, "encode", cwd=tmp_path).stderr.decode()
    help_command = message.rpartition("; see ")[2]
    help_page = subprocess.run(help_command, shell=True, capture_output=True, cwd=tmp_path)
    assert help_page.returncode == 0 and b"--allowed-special" in help_page.stdout


def test_closed_and_full_streams_are_no_traceback(model, tmp_path):
    np.save(tmp_path / "ids.npy", np.ones(200_000, np.uint16))
    command = f"{sys.executable} -m bpe_numba decode {model}/model "
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 100}
    options["env"] = os.environ | {"PYTHONPATH": str(TOP)}
    # the last pipe is closed, which is no error
    ends = ["- <&-", "ids.npy >&-", "ids.npy 2>&-", "ids.npy >/dev/full", "ids.npy | head -c 9"]
    for end in ends:
        result = subprocess.run(command + end, shell=True, cwd=tmp_path, **options)
        assert b"Traceback" not in result.stdout + result.stderr
    assert len(result.stdout) == 9 and result.stderr == b""


def test_kernels_compile_where_nothing_can_be_written(tmp_path):
    shutil.copy(MODULE, tmp_path / "bpe_numba.py")
    (tmp_path / "__pycache__").touch()  # it is no folder
    nowhere = dict.fromkeys(["HOME", "XDG_CACHE_HOME"], "/proc/nowhere")
    code = 'import bpe_numba; print(len(bpe_numba.Words.from_counts({b"ab": 1}).digest))'
    done = python("-c", code, cwd=tmp_path, PYTHONPATH=tmp_path, NUMBA_CACHE_DIR="", **nowhere)
    assert done.stdout == b"64\n", done.stderr.decode()


# ─── Research ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def some_prose(library):
    """A tokenizer of 1,500 tokens, what its training learnt, and a text it was trained on."""
    training = bpe.train(library[:40], 1500, [END], workers=1)
    return training.tokenizer, training, library[:40]


def naive_lost(tokenizer, texts):
    """The bytes of texts that are in no token, and those of them that are in unknown tokens."""
    model = tokenizer.model
    n_kept = n_in_words = 0
    for text in texts:
        for id in tokenizer.encode(text):
            token = tokenizer.decode_bytes([id], continues=True)
            if model.kind == "wordpiece" and model.subword_prefix:  # writes a space between words
                token = token.removeprefix(b" ")
            if model.byte_fallback or tokenizer.vocab[id] != str(model.unk_token).encode():
                n_kept += len(token)
        words = bpe.Pattern(model.pattern).split(tokenizer._normalizer.normalize(text))
        n_in_words += len(b"".join(words).replace("▁".encode(), b" "))
    n_bytes = sum(map(len, texts))
    n_lost = max(n_bytes - n_kept, 0)
    return n_lost, max(n_lost - max(n_bytes - n_in_words, 0), 0)


def naive_measures(tokenizer, texts):
    """Every measure by its definition, from the tokens of whole texts without END."""
    ids = [id for text in texts for id in tokenizer.encode(text)]
    counts = Counter(ids)
    v = len(tokenizer) - 1
    p = [n / len(ids) for n in counts.values()]
    renyi = math.log2(sum(x**2.5 for x in p)) / (1 - 2.5)
    n_lost, n_unknown = naive_lost(tokenizer, texts)
    return {
        "tokens": len(ids),
        "bytes per token": (sum(map(len, texts)) - n_lost) / len(ids),
        "lost bytes": n_lost,
        "unknown bytes": n_unknown,
        "fertility": len(ids) / sum(len(text.decode().split()) for text in texts),
        "average rank": sum(k * x for k, x in enumerate(sorted(p, reverse=True))),
        "Shannon entropy": -sum(x * math.log2(x) for x in p),
        "F95": sorted([*counts.values(), *[0] * (v - len(counts))])[-math.ceil(0.95 * v)],
        "percentile frequency": sum(sorted(p)[::-1][int(0.03 * len(p)) : int(0.83 * len(p))]),
        "Rényi efficiency": renyi / math.log2(v),
        "Rényi, of used ids": renyi / math.log2(len(counts)),
        "vocabulary utilisation": len(counts) / v,
    }


@pytest.mark.parametrize("merges", [True, False])
def test_unreachable_tokens_are_those_of_no_text(merges):
    source = random.Random(1)
    letters = [b"a", b"b", b" ", b"1"]
    texts = [b"".join(text) for n in range(1, 7) for text in itertools.product(letters, repeat=n)]
    n_unreachable = 0
    for _ in range(10):
        tokens, pairs = random_tokens(source, letters, 8)
        tokens = [token for token in tokens if len(token) <= 5]
        pairs = [pair for pair in pairs if pair[0] + pair[1] in tokens]
        for pattern in ("none", "gpt2"):
            ranks = pairs if merges else None
            tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), ranks, pattern=pattern)
            unreachable = bpe.unreachable_tokens(tokenizer)
            reached = {*chain.from_iterable(tokenizer.encode_batch(texts))}
            assert reached.isdisjoint(unreachable)
            assert pattern == "gpt2" or reached | unreachable.keys() == tokenizer.vocab.keys()
            for token, ids in unreachable.items():
                assert token not in ids and tokenizer.decode_bytes(ids) == tokenizer.vocab[token]
            n_unreachable += len(unreachable)
    assert n_unreachable or not merges


def test_tokens_whose_letters_are_missing_are_unreachable_unless_they_are_words():
    tokens, _ = random_tokens(random.Random(2), [b"a", b"b", b"c", b"d"], 300)
    vocab = {id: token for id, token in enumerate(tokens) if token not in (b"b", b"d")}
    tokenizer = bpe.Tokenizer(vocab, None, pattern="none")
    expected = {}
    for token_id, token in vocab.items():
        ids = []
        with contextlib.suppress(bpe.InputError):
            ids = tokenizer.encode(token)
        if token_id not in ids:
            expected[token_id] = ids
    assert bpe.unreachable_tokens(tokenizer) == expected


def test_a_token_that_becomes_the_unknown_token_is_listed_with_its_id():
    vocab = {0: b"[UNK]", 1: b"a", 2: b"b" * 101}  # words of more than 100 characters are unknown
    model = bpe.Model(vocab, None, ["[UNK]"], "bert", "wordpiece", alphabet="characters")
    model = dataclasses.replace(model, unk_token="[UNK]")
    assert "| [UNK]" in str(bpe.inspect_model(bpe.Tokenizer.from_model(model)))


RARE_LEFT_OUT = {"alphabet": "characters", "coverage": 0.9}
TRAINED_MODELS = [{}, {"pattern": "whitespace-split"}, {"model": "unigram"}, {"model": "longest"}]
TRAINED_MODELS += [{"normalizer": ["nfc", "strip-accents"], "pattern": "bert"}]
TRAINED_MODELS += [{"model": "unigram", "pattern": "whitespace-split", "mark": "_"}]
TRAINED_MODELS += [{"model": "wordpiece", "coverage": 0.9, "normalizer": ["bert"]}]
TRAINED_MODELS += [RARE_LEFT_OUT, RARE_LEFT_OUT | {"byte_fallback": True}]
TRAINED_MODELS += [{"alphabet": "characters", "mark": "_"}]


@pytest.mark.parametrize("options", TRAINED_MODELS, ids=str)
def test_bytes_per_token_are_the_same_in_all_places(library, some_prose, tmp_path, options):
    texts = [path.read_text() + " ÄÖ 中文 é" for path in library[:4]]
    file = tmp_path / "a.txt"
    file.write_text(END.join(texts))
    with warnings.catch_warnings(record=True) as caught:
        training = bpe.train(file, 400, [END], workers=1, **options)
    ids = [id for text in texts for id in training.tokenizer.encode(text)]
    n_bytes = len("".join(texts).encode())
    n_lost, n_unknown = naive_lost(training.tokenizer, [text.encode() for text in texts])
    rate = (n_bytes - n_lost) / len(ids)
    assert training.n_tokens == len(ids) and training.n_bytes == n_bytes - n_lost
    notes = [str(warning.message) for warning in caught]
    assert sum("training: " in note for note in notes) == (n_lost > 0)
    summary = str(training.summary())
    assert f"| bytes/token | {rate:.4g} " in summary
    assert f"| lost        | {n_lost:,} bytes" in summary
    assert ("less those that the normalizer adds" in summary) == ("normalizer" in options)
    folder = tmp_path / "model"
    some_prose[1].save(folder)
    training.tokenizer.save(folder)
    with refusal(r"training\.npz: belongs to another model"):
        bpe.curve(folder)
    (folder / "training.npz").write_bytes(b"PK")
    with refusal(r"training\.npz: not a whole record of a training"):
        bpe.curve(folder)
    training.save(folder)
    inspection = bpe.inspect_model(folder, file)
    names = ("bytes per token", "lost bytes", "unknown bytes")
    assert [inspection.measures[name] for name in names] == [rate, n_lost, n_unknown]
    report = bpe.compare([folder], [file])
    assert [[rate]] == report.bytes_per_token
    assert report.lost == pytest.approx(100 * n_lost / n_bytes)
    encoded = bpe.encode_files(folder, file, tmp_path / "a.npy", workers=1)
    assert read_json(tmp_path / "a.npy.json")["lost"] == encoded.lost == n_lost
    if training.tokenizer.model.kind == "bpe":
        ((sizes, _, rates, _),) = bpe.curve(folder).columns.values()
        assert rates[-1] == rate and sizes[-1] == len(training.tokenizer.model.ordinary)
    else:
        assert not (folder / "training.npz").exists()
        with refusal("no merge counts: name a BPE that `train` wrote"):
            bpe.curve([folder])


@pytest.fixture(scope="module")
def lossy_models(library):
    """A tokenizer of every kind, some of which lose text."""
    source = library[0].read_text() + " äöü 中文 가나 é"
    models = [bpe.train(texts=[source], vocab_size=400, **options) for options in TRAINED_MODELS]
    tokenizers = [training.tokenizer for training in models]
    scores = {"▁": -2, "▁a": -1, "a": -3, "é": -4, "中": -4}
    t5 = unigram_model(scores, unk_token="<unk>", fuse_unk=True, pattern="none")
    steps = [bpe.Split(r"\s", "removed"), bpe.Metaspace()]
    decoder = [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}]
    changes = {"pattern": steps, "decoder": decoder, "normalizer": [{"type": "NFKC"}]}
    t5 = dataclasses.replace(t5, **changes)
    words = dict(enumerate([b"[UNK]", b"low", "é".encode()]))
    word_level = bpe.Model(words, None, pattern="whitespace", kind="wordlevel", unk_token="[UNK]")
    for model in (t5, dataclasses.replace(word_level, alphabet="characters")):
        tokenizers.append(bpe.Tokenizer.from_model(model))
    return tokenizers


@given(text=odd_texts | st.text("low aé\n\t中\ufb01", max_size=40))
def test_lost_text_is_what_the_tokens_lack(lossy_models, tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "lost.txt"
    path.write_bytes(text.encode())
    for tokenizer in lossy_models:
        expected = naive_lost(tokenizer, [text.encode()])
        assert bpe.encode_files(tokenizer, path, path.with_suffix(".npy")).lost == expected[0]
        with contextlib.suppress(bpe.InputError):  # there may be no word
            encoded = bpe.encode_corpus(tokenizer, path, engine=bpe.Engine(1))
            measures = bpe.measure(tokenizer.model, encoded)
            assert (measures["lost bytes"], measures["unknown bytes"]) == expected


def test_a_training_a_tokenizer_and_a_path_are_models_alike(some_prose, tmp_path):
    tokenizer, training, files = some_prose
    path = tmp_path / "model"
    training.save(path)
    reports = []
    for model in (training, tokenizer, str(path), path):
        measures = bpe.inspect_model(model, files[0]).measures
        rates = bpe.compare(model, files[0]).bytes_per_token.tolist()
        bpe.encode_files(model, files[0], tmp_path / "a.npy", workers=1)
        bpe.decode_file(model, tmp_path / "a.npy", tmp_path / "a.txt")
        assert (tmp_path / "a.txt").read_bytes() == files[0].read_bytes()
        reports.append((measures, rates, bpe.view(model, "def f").ids.tolist()))
    assert all(report == reports[0] for report in reports)
    columns = bpe.curve([training, path]).columns
    assert [*columns] == ["bpe-1500", str(path)]
    assert all(map(np.array_equal, columns["bpe-1500"][:3], columns[str(path)]))
    for wrong in (tokenizer, {"1": training.learned}, [3]):
        with refusal("^(bpe-1500|1): no merge counts|^`models?` is (Learned|3)"):
            bpe.curve(wrong)


def test_tables_are_markdown_html_and_frames(reports):
    text = str(reports[3])
    assert "| model | 中文 \\| text |     b | the fewest | lost, % |" in text
    assert "| ----- | -----------: | ----: | ---------: | ------: |" in text
    for table in text.split("\n\n"):
        assert len({bpe._cell_width(line) for line in table.splitlines() if line[0] == "|"}) < 2
    number = {"id", "bytes", "tokens", "vocabulary", "bytes/token", "b"}
    for report in reports:
        assert cells_of(report._repr_html_(), "h4") == [table.title for table in report.tables]
        for table in report.tables:
            frame = table.to_pandas()
            assert frame.shape == (len(table.rows), len(table.header))
            assert [*frame.columns] == [*table.header]
            for name in number & {*frame.columns} if len(frame) else ():
                assert frame[name].dtype.kind in "if", name
    rows = [(50256, "<E4>|__init__", 50256), (2, "$x$ `y` #", 2)]
    table = bpe.Table("Tokens of <a>", ("id", "token", "n"), rows)
    assert str(table).endswith("|     2 | $x$ `y` #      |      2 |")
    cells = ["id", "token", "n", "50256", "<E4>|__init__", "50,256", "2", "$x$ `y` #", "2"]
    assert cells_of(table._repr_html_(), "th") == cells[:3]
    assert cells_of(table._repr_html_(), "td") == cells[3:]
    assert re.findall("text-align: ([a-z]+)", table._repr_html_()) == ["right", "left", "right"] * 3
    assert cells_of(table._repr_html_(), "h4") == ["Tokens of <a>"]


def test_models_are_compared(some_prose, tmp_path):
    tokenizer, _, files = some_prose
    cl100k = bpe.Tokenizer(*bpe.train_bpe(files[0], 600), pattern="cl100k")
    (tmp_path / "a.txt").write_text("one 12345 two\n    three\n" * 9)
    corpora = {"text": tmp_path / "a.txt", "code": files[0]}
    unnamed = bpe.compare(tokenizer, [[*corpora.values()], files[0]])
    assert unnamed.corpora == ["1", str(files[0])]
    report = bpe.compare({"a": tokenizer, "b": cl100k}, corpora)
    assert report.models == ["a", "b"] and report.corpora == ["text", "code"]
    texts = [path.read_bytes() for path in corpora.values()]
    n_tokens = [[len(model.encode(text)) for text in texts] for model in (tokenizer, cl100k)]
    assert report.n_tokens.tolist() == n_tokens
    for word, _, (left, right) in report.differences:
        assert b"".join(left) == b"".join(right) == word and left != right
    counts = [n for _, n, _ in report.differences]
    assert counts == sorted(counts, reverse=True)


def test_words_split_alike_are_those_cut_at_the_same_places_of_the_text(library, tmp_path):
    text = " ".join(re.findall(r"[a-z]{2,}", library[0].read_text())[:3000])
    (tmp_path / "a.txt").write_text(text)
    characters = {"alphabet": "characters"}
    options = {"bytes": {}, "marks": characters, "always": characters | {"mark": "_"}}
    options["unigram"] = {"model": "unigram"}
    models = {}
    for name, more in options.items():
        models[name] = bpe.train(library[:3], 600, workers=1, **more).tokenizer
    words = [match.span() for match in re.finditer(r"\S+", text)]
    for names in (["bytes", "marks"], ["marks", "unigram", "bytes"], ["bytes", "always"]):
        cuts = []  # the places where one token ends and another begins
        for name in names:
            tokens = bpe.decode_each(models[name], models[name].encode(text, "none"))
            cuts.append({*itertools.accumulate(map(len, tokens))})
        n_alike = 0
        for start, stop in words:
            inside = {frozenset(places & {*range(start + 1, stop)}) for places in cuts}
            n_alike += len(inside) == 1
        for order in (names, names[::-1]):
            report = bpe.compare({name: models[name] for name in order}, {"a": tmp_path / "a.txt"})
            assert 0 < report.same < 1 and report.same == pytest.approx(n_alike / len(words))


def test_all_words_are_compared_and_every_token_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "LISTED_WORDS", 5)
    plain = bpe.Tokenizer(BYTE_VOCAB, [])
    merging = bpe.Tokenizer(BYTE_VOCAB | {256: b"zz"}, [(b"z", b"z")])
    words = [f"w{k}" + "zz" * (k % 4 == 0) for k in range(40)]
    (tmp_path / "a.txt").write_text(" ".join(words))
    report = bpe.compare({"a": plain, "b": merging}, tmp_path / "a.txt")
    assert report.same == pytest.approx(0.75) and len(report.differences) == 5
    assert "Words split alike by all: 75.0 % of 40 words" in str(report)
    assert "the fewest" not in str(report)  # of one corpus
    assert "| ␣w12zz | 1 | ␣|w|1|2|z|z | ␣|w|1|2|zz" in re.sub(" +", " ", str(report)).replace(
        "\\", ""
    )


def test_fertility_of_a_text_without_spaces_is_marked(tmp_path):
    for name, text in [
        ("zh", "这是一个没有空格的句子，还有一个。" * 9),
        ("en", "one two three " * 9),
    ]:
        (tmp_path / name).write_text(text)
        rows = bpe.inspect_model(bpe.Tokenizer(BYTE_VOCAB, []), tmp_path / name).tables[-1].rows
        assert ("fertility (few spaces)" in dict(rows)) == (name == "zh")


def test_each_of_several_inputs_is_read_twice_in_all(tmp_path, monkeypatch):
    read = []
    texts_of = bpe.Source.texts
    monkeypatch.setattr(bpe.Source, "texts", lambda *a: read.append(a[1].path) or texts_of(*a))
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text("one two")
    bpe.inspect_model(bpe.Tokenizer(BYTE_VOCAB, []), paths, workers=1)
    assert Counter(read) == dict.fromkeys(paths, 2)  # for pretokens, and for words


@pytest.mark.parametrize("pattern", ["gpt2", "whitespace-split"])
@pytest.mark.parametrize("model", ["bytes", "bpe", "unigram", "wordpiece"])
def test_measures_equal_their_definitions(library, tmp_path, model, pattern):
    options = {"pattern": pattern, "workers": 1}
    if model != "bytes":
        options |= {"model": model, "alphabet": "characters", "coverage": 0.9}
        if pattern == "whitespace-split":
            options["mark"] = ""  # no space is left that ▁ could stand for
    tokenizer = bpe.train(library[:9], 500, [END], **options).tokenizer
    text = library[3].read_text() + " ÄÖ 中文 é" * 50
    (tmp_path / "a.txt").write_text(text)
    inspection = bpe.inspect_model(tokenizer, tmp_path / "a.txt")
    assert inspection.measures == pytest.approx(naive_measures(tokenizer, [text.encode()]))
    assert inspection.measures["Rényi efficiency"] < 1
    ids = tokenizer.encode(text)
    assert {id: n for id, n in enumerate(inspection.frequencies.tolist()) if n} == Counter(ids)
    few = "中文 def return"
    (tmp_path / "b.txt").write_text(few)
    (tmp_path / "c.txt").write_text("")
    of_three = bpe.inspect_model(tokenizer, [tmp_path / f"{name}.txt" for name in "abc"])
    rates = [naive_measures(tokenizer, [each.encode()])["bytes per token"] for each in (text, few)]
    assert of_three.measures["fewest bytes per token"] == pytest.approx(min(rates))
    assert model == "bytes" or tokenizer.token_to_id(tokenizer.model.unk_token) in ids


def test_a_view_and_a_page_show_every_token(some_prose, tmp_path):
    tokenizer, _, _ = some_prose
    text = "def f():\n\treturn '<i>é&中🙂' سلام \x00\x1b[31m\u202e\n".encode() + b"\xff"
    report = bpe.view(tokenizer, text)
    assert b"".join(report.tokens) == text and report.ids.tolist() == tokenizer.encode(text)
    for width in (12, 40, 80):
        lines = report.text(width).splitlines()
        assert all(bpe._cell_width(line) <= max(width, 12) for line in lines[:-1])
        cells = [piece.strip() for line in lines[:-1:2] for piece in line.split("|")[:-1]]
        assert cells == [bpe.readable(token) for token in report.tokens]
        assert [int(id) for line in lines[1:-1:2] for id in line.split()] == report.ids.tolist()
    assert "<1B>" in report.text(999) and "<E2>|<80>|<AE>|" in report.text(999)
    bpe.write_page(tmp_path / "a.html", report, bpe.Table("A <b>", ("x",), [("<i>",)]))
    page = (tmp_path / "a.html").read_text()
    assert cells_of(page, "span") == [*map(bpe.readable, report.tokens)]
    assert [*map(int, cells_of(page, "small"))] == report.ids.tolist()
    assert "<i>" not in page


@given(st.binary(min_size=1, max_size=30) | texts.filter(len).map(str.encode))
def test_readable_text_is_printable(token):
    assert bpe.readable(token).isprintable() and " " not in bpe.readable(token)


@pytest.fixture(scope="session")
def reports(some_prose):
    """One of each report."""
    tokenizer, training, files = some_prose
    corpora = {"中文 | text": files[0], "b": files[1]}
    return [
        bpe.inspect_model(training, files[:3]),
        bpe.inspect_model(tokenizer),
        bpe.curve([training, training]),
        bpe.compare({"one": tokenizer, "two": tokenizer}, corpora),
    ]


def test_curves_are_drawn(reports, tmp_path):
    few = bpe.train(counts={b"aab": 3}, vocab_size=258)
    # a few merges save nothing by 1,000 more
    for report, n_axes in ((bpe.curve({"$a$": few}), 1), (reports[2], 2)):
        figure = report.plot(tmp_path / "picture.svg")
        assert len(figure.axes) == n_axes and figure.get_figwidth() == 3.5 * n_axes
        least, most = figure.axes[0].get_xlim()
        assert sum(least <= tick <= most for tick in figure.axes[0].get_xticks()) > 1
        assert len(report.plot().axes[0].lines) == len(report.columns)
        assert (tmp_path / "picture.svg").read_text().startswith("<?xml")
        labels = figure.axes[0].get_xticklabels() + figure.axes[-1].get_yticklabels()
        assert labels and all(label.get_parse_math() for label in labels)  # 2^8 is a formula
    format = figure.axes[1].yaxis.get_major_formatter()
    assert [format(x) for x in (0.3, 5, 30)] == ["0.3", "5", "30"]  # and not 6 × 10⁰ or 1e-01
    name, _ = bpe.curve({"$a$": few, "b": few}).plot().axes[0].get_legend().get_texts()
    assert name.get_text() == r"\$a\$"  # $a$ is none


def test_a_curve_is_the_length_of_the_text_encoded_at_each_size(some_prose):
    tokenizer, training, files = some_prose
    sizes, n_tokens, rates, saved = bpe.curve({"a": training}).columns["a"]
    assert rates.tolist() == (sum(path.stat().st_size for path in files) / n_tokens).tolist()
    for size in (256, 257, 300, 511, 900, 256 + len(tokenizer.merges)):
        fewer = bpe.Tokenizer.from_merges(tokenizer.merges[: size - 256], pattern="gpt2")
        k = sizes.tolist().index(size)
        assert n_tokens[k] == sum(len(fewer.encode(path.read_bytes())) for path in files)
        assert n_tokens[k] == bpe.encode_corpus(fewer, files).n_tokens
    assert saved[7] == pytest.approx(100 * (1 - n_tokens[1007] / n_tokens[7]))
    assert np.isnan(saved).tolist() == [False] * (len(saved) - 1000) + [True] * 1000


def cells_of(page, *tags):
    """The text after each of these tags of a page."""
    found = re.findall(rf"<(?:{'|'.join(tags)})\b[^>]*>([^<]*)", page)
    return [html.unescape(text).strip("\n") for text in found]


@pytest.fixture
def bench(monkeypatch):
    """The benchmark, which is a script."""
    monkeypatch.syspath_prepend(Path(__file__).with_name("docs"))
    return importlib.import_module("bench")


def test_peers_do_the_same_work(bench, library, tmp_path):
    (tmp_path / "latin.txt").write_bytes(f"caf\xe9 {END}".encode("latin-1") * 50)  # is no UTF-8
    table, documents = bench.bench([*library[:30], tmp_path / "latin.txt"], 600)
    verdicts = {(row[0], row[1].split()[0]): row[-1] for row in table.rows}
    required = [("train", "bpe_numba"), ("train", "tokenizers")]
    required += [("encode", "bpe_numba"), ("encode", "tokenizers"), ("encode", "tiktoken")]
    assert dict.fromkeys(required, "same").items() <= verdicts.items()
    assert all(min(row[2:5]) > 0 for row in table.rows) and "| second pass |" in str(table)
    timed = {(row[0], row[1].split()[0]) for row in documents.rows if row[2] and row[3]}
    assert {row[-1] for row in documents.rows} == {"same"}
    assert {(500, "bpe_numba"), (500, "tokenizers"), (12, "tiktoken")} <= timed


VERDICTS = [(lambda tokens: [*tokens, b"more"], "differs")]
VERDICTS += [(lambda tokens: tokens.nothing, "'list' object has no attribute 'nothing'")]


@pytest.mark.parametrize("change, verdict", VERDICTS)
def test_the_verdict_on_a_peer_that_differs_or_fails(bench, library, monkeypatch, change, verdict):
    def prepare(training, documents):
        return lambda: [change(training.learned.tokens[256:])]

    trainers = {"bpe_numba": bench.PEERS["train"]["bpe_numba"], "numpy": prepare}
    monkeypatch.setattr(bench, "PEERS", {"train": trainers, "encode": {}})
    monkeypatch.setattr(bench, "DOCUMENT_PEERS", {"numpy": lambda tokenizer: tokenizer.nothing})
    (ours, theirs), documents = (table.rows for table in bench.bench(library[:3], 300))
    assert {row[-1] for row in documents} == {"'Tokenizer' object has no attribute 'nothing'"}
    assert (ours[-1], theirs[-1]) == ("same", verdict)


@pytest.mark.apart
@given(st.lists(st.text("abé ", min_size=1, max_size=3), max_size=9), st.text("abcé ", max_size=9))
def test_a_lattice_has_each_token_at_each_of_its_places(tokens, text):
    letters = [*map(str.encode, "abé ")]
    vocab = dict(enumerate(dict.fromkeys([*letters, *map(str.encode, tokens)])))
    tokenizer = bpe.Tokenizer.from_model(bpe.Model(vocab, [], alphabet="characters"))
    lattice = tokenizer.lattice(text)
    data = text.encode()
    expected = [
        sorted((k + len(token), id) for id, token in vocab.items() if data.startswith(token, k))
        for k in range(len(data))
    ]
    rows = [*zip(lattice.ends.tolist(), lattice.ids.tolist(), strict=True)]
    assert [rows[i:j] for i, j in pairwise(lattice.offsets)] == expected


def test_a_lattice_takes_tokens_as_they_are_decoded_inside_a_text():
    ours = family_training(model="bpe", alphabet="characters", byte_fallback=True).tokenizer
    lattice = ours.lattice("A \u0378")
    tokens = [ours.id_to_token(id) for id in lattice.ids.tolist()]
    assert tokens == [b"A", "▁".encode(), b"<0xCD>", b"<0xB8>"]
    assert lattice.ends.tolist() == [1, 2, 3, 4]


def test_views_of_a_pipe_and_reports_on_a_page(command, model, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    output = command("view model The cat", cwd=model).stdout.decode()
    assert output.endswith("7 bytes, 3 tokens\n") and "\x1b" not in output
    for line in ("view model", "view model -"):
        assert command(line, stdin=b"The cat", cwd=model).stdout.decode() == output
    (tmp_path / "a.txt").write_text("The cat")
    page = tmp_path / "a.html"
    line = f"view model 'The cat' --beside model --html {page}"
    output = command(line, cwd=model).stdout.decode()
    assert output.count("model: 7 bytes, 3 tokens") == 2
    assert output.endswith(f"\nWritten to {page}\n")
    assert cells_of(page.read_text(), "h4") == ["model: 7 bytes, 3 tokens"] * 2
    output = command(f"compare model --corpus {tmp_path / 'a.txt'} --html {page}", cwd=model).stdout
    titles = cells_of(page.read_text(), "h4")
    assert titles and all(title in output.decode() for title in titles)


def test_timings_are_a_table(command, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("low lower " * 999)
    result = command("train a.txt --vocab-size 260 --out model --timings --quiet", cwd=tmp_path)
    header, _, *rows = result.stderr.decode().splitlines()[2:]
    columns = ["stage", "seconds", "MB/s", "% of time"]
    assert re.findall(r"[\w%].*?(?= +\|)", header) == columns
    stages = ["compile", "scan", "learn", "vocabulary", "save", "other"]
    assert [row.split()[1] for row in rows] == stages and result.stdout == b""
    assert bpe.TIMINGS["scan"].n_bytes == text.stat().st_size and bpe.TIMINGS["learn"].seconds > 0
    result = command("inspect model a.txt --timings --quiet", cwd=tmp_path).stderr.decode()
    assert all(f"\n| {name} " in result for name in ("load", "search", "scan", "encode", "other"))


@compiled
def test_compiling_has_a_row_of_its_own_in_every_stage():
    bpe.TIMINGS.clear()
    start = time.perf_counter()
    with bpe.stage("search") as spent:
        numba.njit(lambda x: x + 1)(1)
    elapsed = time.perf_counter() - start
    assert [*bpe.TIMINGS] == ["compile", "search"]
    assert bpe.TIMINGS["search"].seconds == spent.seconds > 0
    assert 0 < bpe.TIMINGS["compile"].seconds + spent.seconds <= elapsed


SENTENCES = {
    "en": "The red book lies on the old table. It was raining when we came home late. "
    "Nobody knows where the small bird sleeps. She writes a long letter to her friend.",
    "de": "Das rote Buch liegt auf dem alten Tisch. Es regnete, als wir spät nach Hause kamen. "
    "Niemand weiß, wo der kleine Vogel schläft. Sie schreibt ihrer Freundin einen langen Brief.",
    "zh": "红色的书放在旧桌子上。 我们很晚回家时正在下雨。 没有人知道小鸟睡在哪里。 "
    "她给朋友写了一封长信。",
}


def test_the_page_on_evaluation_runs(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, text in SENTENCES.items():
        Path(f"{language}.txt").write_text("\n".join(re.split(r"(?<=[.。]) ", text)))
        Path(f"{language}.train.txt").write_text(END.join([text, text[9:], text[:90]]))
    Path("train.txt").write_text("".join([*SENTENCES.values(), library[0].read_text()]))
    names = {}
    run_page("docs/evaluate.md", tmp_path, names=names)
    text = Path("de.txt").read_text()
    for family, tokenizer in names["tokenizers"].items():
        measures = names["table"].loc[family, "German"]
        assert measures["tokens"] == len(tokenizer.encode(text))
        lone = [len(tokenizer.encode(word)) for word in text.split()]
        assert measures["fertility, lone words"] == sum(lone) / len(lone)
        assert measures["STRR, lone words"] == lone.count(1) / len(lone)
    ours = names["tokenizers"]["bpe"]
    lines = text.splitlines()
    report = names["report"]
    assert report.costs[0][1] == len(ours.encode(" ".join(lines)))
    assert (tmp_path / "languages.tex").is_file()
    assert names["by_lines"]["tokens"] == sum(len(ours.encode(line)) for line in lines)
    for costs, premiums, gini in zip(report.costs, report.premiums, report.gini, strict=True):
        assert premiums.tolist() == [cost / costs[0] for cost in costs]
        differences = [abs(x - y) for x in costs for y in costs]
        assert gini == pytest.approx(sum(differences) / (2 * len(costs) * sum(costs)))
    letters = bpe.Tokenizer.from_merges([(b" ", b"a"), (b"b", b"c")])
    scores = names["score_boundaries"](letters, [["ab", "c"], ["a", "bc", "d"], ["é"]])
    assert scores == (1 / 2, 2 / 3, 4 / 7)
    Path("grid/en-0-bpe.json").unlink()  # interrupted
    again = names["run_grid"](["en", "de"], [0, 1], ["bpe", "unigram"], [280, 300])
    assert again.equals(names["grid"]) and len(again) == 16
    assert names["two"].low < names["two"].high < 0  # BPE minus Unigram


def test_the_algorithms_of_the_page_on_research_run(library, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("".join(path.read_text() for path in library[:6]))
    Path("other.txt").write_text(library[7].read_text())
    names = {}
    (tmp_path / "try.py").write_text(next(blocks_of("docs/research.md")).content)
    run_page("docs/research.md", tmp_path, command, names)
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
    random, again = (names["learn_random"](words, 300, 7).learned().merges for _ in range(2))
    assert random == again != names["learn_random"](words, 300, 8).learned().merges
    greedy, beam = (names["learn_beam"](words, 262, width) for width in (1, 3))
    assert greedy.learned().counts[0] == bpe.learn(words, 257).counts[0]
    assert beam.n_symbols == 262 and beam.words().to_counts() == words.to_counts()
    text = Path("corpus.txt").read_text()
    tokenizer = bpe.Tokenizer.from_merges(names["learned"])
    counts = {tokenizer.vocab[id]: n for id, n in Counter(tokenizer.encode(text)).items()}
    assert counts.items() <= names["count_tokens"](tokenizer.model, words).items()
    for name in ("whole", "fair", "picky", "super", "scaffold", "trimmed", "lite"):
        tokenizer = bpe.Tokenizer.load(name)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_glitch_candidates_are_made_often_and_hardly_used(tmp_path):
    counts = {b"abc": 5000, b"abd": 3000, b"ab": 2, b"xy": 9}
    training = bpe.train(counts=counts, vocab_size=260)
    (tmp_path / "a.txt").write_text("abc " * 5000 + "abd " * 3000 + "ab ab xy")
    training.save(tmp_path / "model")
    for model in (training, tmp_path / "model"):
        report = bpe.inspect_model(model, tmp_path / "a.txt", workers=1)
        glitch_id = training.tokenizer.model.ids[b"ab"]
        assert report.glitches == [bpe.Glitch(glitch_id, 8002, 2)]
        assert "| ab    |     8,002 |           2 |" in str(report)
    assert bpe.inspect_model(training.tokenizer, tmp_path / "a.txt").glitches is None


@pytest.mark.parametrize("order", [0, 0.5, 1, 2, 2.5, 3, math.inf])
def test_entropies_are_those_of_tokenization_scorer(order, prose):
    texts = prose[::4]
    tokenizer = bpe.train(texts=texts, vocab_size=600).tokenizer
    ids, offsets = tokenizer.encode_batch_to_numpy(texts, "none")
    words = [*map(str.encode, texts)]
    encoded = bpe.EncodedWords(words, np.ones(len(words), int), ids, offsets, 1, n_kept=1)
    measures = bpe.measure(tokenizer.model, encoded, orders=[order])
    suffix = "" if order == 2.5 else f", order {order:g}"
    names = [name for name in measures if name.startswith("Rényi")]
    assert names == [f"Rényi efficiency{suffix}", f"Rényi, of used ids{suffix}"]
    rows = [[*map(str, ids.tolist())]]
    power = {"power": 100.0 if order == math.inf else float(order)}
    for name, size in zip(names, [{"vocab": len(tokenizer)}, {}], strict=True):
        metric = "shannon_efficiency" if order == 1 else "renyi"
        theirs = tokenization_scorer.score(rows, metric=metric, **power, **size)
        assert measures[name] == pytest.approx(theirs, rel=1e-9 if order < math.inf else 0.02)
    theirs = tokenization_scorer.score(
        rows, metric="percentile_freq", perc_start=0.03, perc_end=0.83
    )
    assert measures["percentile frequency"] == pytest.approx(theirs)
    with refusal("is no order of an entropy"):
        bpe.measure(tokenizer.model, encoded, orders=[-1])


def test_parallel_text_gives_premiums_gini_and_lengths(prose, tmp_path):
    texts = {"en": "a cat\nthe dog\n", "de": "eine Katze\nder Hund", "zh": "一只猫\n狗"}
    files = []
    for name, text in texts.items():
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text(text)
    models = [bpe.train(texts=prose, vocab_size=size).tokenizer for size in (300, 700)]
    report = bpe.compare(models, files[0], parallel=files, workers=1)
    joined = [text.strip().replace("\n", " ") for text in texts.values()]
    costs = [[len(model.encode(text)) for text in joined] for model in models]
    assert report.costs.tolist() == costs
    for row, model_costs in enumerate(costs):
        total = sum(abs(a - b) for a in model_costs for b in model_costs)
        assert report.gini[row] == pytest.approx(total / (2 * 3 * sum(model_costs)))
        assert report.premiums[row].tolist() == [n / model_costs[0] for n in model_costs]
        assert report.nsl[row].tolist() == [
            a / b for a, b in zip(model_costs, costs[0], strict=True)
        ]
    (tmp_path / "zh.txt").write_text("一只猫")
    with refusal("different numbers of lines"):
        bpe.compare(models, files[0], parallel=files)


def test_files_of_a_comparison_may_come_one_by_one(tmp_path):
    (tmp_path / "a.txt").write_text("ab\n")
    files = [tmp_path / "a.txt"]
    report = bpe.compare(iter([plain()]), iter(files), parallel=iter(files), held_out=iter(files))
    assert report.costs.tolist() == [[2]] and len(report.bits_per_byte) == 1


def test_tables_are_written_as_markdown_csv_and_latex(tmp_path):
    table = bpe.Table("T", ("a|b_c", "n"), [("x,y & \\", 1200), ("{z}~^", 0.123456)])
    report = bpe.Report(title="R", tables=[table, table])
    for suffix in (".md", ".csv", ".tex"):
        bpe.write_tables(tmp_path / f"t{suffix}", report)
    assert (tmp_path / "t.md").read_text() == f"{table}\n\n{table}\n"
    first = (tmp_path / "t.csv").read_text().split("\n\n")[0]
    assert [*csv.reader(io.StringIO(first))] == [
        ["a|b_c", "n"],
        ["x,y & \\", "1200"],
        ["{z}~^", "0.123456"],
    ]
    lines = (tmp_path / "t.tex").read_text().splitlines()
    assert lines[2:6] == [
        r"a|b\_c & n \\",
        r"\midrule",
        r"x,y \& \textbackslash{} & 1,200 \\",
        r"\{z\}\textasciitilde{}\textasciicircum{} & 0.1235 \\",
    ]
    with refusal("name a .md, .tex or .csv file"):
        bpe.write_tables(tmp_path / "t.pdf", report)


# bits per byte


def test_the_page_on_bits_per_byte_runs(prose, texts_of_pages, command):
    (texts_of_pages / "train.txt").write_text(END.join(prose[:2000]))
    letters = {*"".join(prose[:2000])}  # so that no character of the held-out text is lost
    held = [text for text in prose[2000:3000] if letters.issuperset(text)]
    (texts_of_pages / "test.txt").write_text(END.join(held))
    names = {}
    printed = run_page("docs/bits.md", texts_of_pages, command, names)
    reports = names["reports"].values()
    low, high = names["interval"]
    first, second = (report.bits_per_byte for report in reports)
    assert low < first - second < high
    assert all(report.lost == 0 for report in reports)
    assert any(line.startswith(f"bpe: {first:.3f} bits per byte") for line in printed)


def plain_bits(order, n_ids, learnt, held):
    """Interpolated Witten-Bell by its definition: the bits of each document, and every p(w | h)."""
    followers = {}  # context -> {id: count}
    for document in learnt:
        padded = (-1,) * (order - 1) + tuple(document)
        for at in range(order - 1, len(padded)):
            for size in range(order):
                counts = followers.setdefault(padded[at - size : at], Counter())
                counts[padded[at]] += 1

    def p(token_id, context):
        shorter = p(token_id, context[1:]) if context else 1 / n_ids
        counts = followers.get(context, {})
        if not counts:
            return shorter
        n = sum(counts.values())
        return (counts[token_id] + len(counts) * shorter) / (n + len(counts))

    bits = []
    for document in held:
        padded = (-1,) * (order - 1) + tuple(document)
        places = range(order - 1, len(padded))
        bits.append(-sum(math.log2(p(padded[at], padded[at - order + 1 : at])) for at in places))
    return bits, p, followers


DOCUMENTS = st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=6)


def end_to_end(documents):
    ids = np.array([*chain.from_iterable(documents)], np.uint32)
    return ids, np.cumsum([0, *map(len, documents)])


@pytest.mark.apart
@given(DOCUMENTS, DOCUMENTS, st.integers(1, 4))
def test_ngrams_give_the_bits_of_witten_and_bell(learnt, held, order):
    model = bpe.NgramModel(order, 7)
    for k in range(0, len(learnt), 2):  # in two steps and more
        model.learn(*end_to_end(learnt[k : k + 2]))
    bits, p, followers = plain_bits(order, 7, learnt, held)
    assert model.bits(*end_to_end(held)).tolist() == pytest.approx(bits, rel=1e-9)
    for context in followers:
        assert sum(p(token_id, context) for token_id in range(7)) == pytest.approx(1)


@pytest.mark.apart
def test_ngrams_fill_more_than_their_first_table():
    ids = np.random.default_rng(0).integers(0, 2**21 - 1, 60_000).astype(np.uint32)
    model = bpe.NgramModel(2, 1 << 21)
    model.learn(ids, np.array([0, 10, len(ids)]))
    documents = [ids[:10].tolist(), ids[10:].tolist()]
    bits, *_ = plain_bits(2, 1 << 21, documents, [documents[0], ids[30_000:30_100].tolist()])
    ends = [0, 10, 30_000, 30_100]
    assert model.bits(ids, np.array(ends))[[0, 2]].tolist()[0] == pytest.approx(bits[0], rel=1e-9)
    assert model.bits(ids[30_000:30_100], np.array([0, 100])) == pytest.approx(bits[1], rel=1e-9)


@pytest.mark.parametrize("order", [0, 65, 10**12, 2**63])
def test_an_order_of_ngrams_has_a_range(order):
    with refusal("`order` is .*: it must be a whole number from 1 to 64"):
        bpe.NgramModel(order, 5)


@pytest.mark.parametrize("offsets", [[], [1, 0], [0, 9], [-1, 2]])
def test_ngrams_refuse_offsets_that_are_none(offsets):
    with refusal("offsets ascend"):
        bpe.NgramModel(2, 5).learn(np.array([1, 2]), np.array(offsets))


@pytest.mark.parametrize("model", ["bpe", "unigram", "wordpiece"])
def test_bits_per_byte_are_the_same_for_files_and_texts(model, prose, tmp_path):
    text = "\n".join(prose)
    parts = [text[:20_000], text[20_000:30_000], "", "é ☃", text[30_000:40_000]]
    tokenizer = bpe.train(texts=parts, vocab_size=700, special_tokens=[END], model=model).tokenizer
    for name, texts in (("a", parts[:2]), ("b", parts[2:])):
        (tmp_path / f"{name}.txt").write_text(END.join(texts))
        lines = [json.dumps({"text": text}) for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    of_texts = bpe.bits_per_byte(tokenizer, parts[:2], parts[2:], texts=True)
    for form in ("txt", "jsonl"):
        files = [tmp_path / f"{name}.{form}" for name in "ab"]
        report = bpe.bits_per_byte(tokenizer, *files, workers=1)
        assert report.bits.tolist() == of_texts.bits.tolist()
        assert report.bits_per_byte == pytest.approx(of_texts.bits_per_byte, rel=1e-4)
    low, high = report.interval
    assert low <= report.bits_per_byte <= high and "bits per byte" in str(report)


def test_lost_text_is_no_gain_in_bits_per_byte():
    kept = bpe.Tokenizer({0: b"a", 1: b"b", 2: b"c"}, [])
    vocab = {0: b"a", 1: b"b", 2: b"?"}
    model = bpe.Model(vocab, [], alphabet="characters", unk_token="?")
    losing = bpe.Tokenizer.from_model(model)
    whole, less = (
        bpe.bits_per_byte(tokenizer, ["abc" * 9], ["abcabb"], texts=True)
        for tokenizer in (kept, losing)
    )
    assert whole.bits.tolist() == less.bits.tolist()
    assert (whole.lost, less.lost) == (0, 1)
    assert less.bits_per_byte == pytest.approx(whole.bits_per_byte * 6 / 5)


def test_compare_and_curve_show_bits_per_byte(prose, tmp_path):
    text = "\n".join(prose)
    (tmp_path / "a.txt").write_text(text[:60_000])
    (tmp_path / "b.txt").write_text(text[60_000:80_000])
    files = tmp_path / "a.txt", tmp_path / "b.txt"
    training = bpe.train(files[0], 1200, [END], workers=1)
    small = training.tokenizer.truncated(600)
    report = bpe.compare([training, small], files[0], held_out=files[1], workers=1)
    each = [bpe.bits_per_byte(t, *files).bits_per_byte for t in (training.tokenizer, small)]
    assert report.bits_per_byte.tolist() == each
    assert f"{each[0]:.4g}" in str(report)
    drawn = bpe.curve(training, corpus=files[0], held_out=files[1], plot=tmp_path / "c.svg")
    sizes, bits = next(iter(drawn.bits.values()))
    assert sizes == [256, 512, 1000, 1199] and bits[-1] == each[0]
    assert "bits per byte" in (tmp_path / "c.svg").read_text()
    with refusal("belong together"):
        bpe.curve(training, corpus=files[0])


# ─── Refusals ─────────────────────────────────────────────────────────────────────────────────────

TEXT_GZ = gzip.compress(b"text " * 99)
LINE = b'{"text": "some text"}\n'
# The files in a folder, for the calls and the commands below that are refused.
SOME_FILES = {
    "text.txt": b"some text\n",
    "other.txt": b"other text\n",
    "pad.txt": f"some text, and more{END}<pad>".encode(),
    "empty.txt": b"",
    "ends.txt": END.encode() * 3,
    "half.jsonl": LINE + b"{",
    "bytes.jsonl": LINE + b"\xff",
    "deep.jsonl": LINE + b"[" * 100_000,
    "field.jsonl": LINE + b'{"t": "x"}',
    "surrogate.jsonl": LINE + b'{"text": "\\ud800"}',
    "late.jsonl": LINE * 50 + b"oops\n" + LINE * 50,
    "late.jsonl.gz": gzip.compress(LINE * 50 + b"oops\n"),
    "long.txt": b"a" * 9_000_000,
    "long.txt.gz": gzip.compress(b"a" * 9_000_000, 1),
    "zip.txt": b"PK\x03\x04" * 9,
    "zip.txt.gz": gzip.compress(b"PK\x03\x04" * 9),
    "tar.txt": bytes(257) + b"ustar",
    "unpacked.txt.gz": b"some text",
    "flipped.txt.gz": TEXT_GZ[:20] + b"\0\1" + TEXT_GZ[22:],
    "folder/hidden/.a.txt": b"hidden",
    "bad.npy": b"nonsense\n",
    "odd.bin": b"abc",
    "a.tiktoken": b"IQ== 0\n",
}
# Files of models: their names, what is in them, and the message.
BAD_MODELS = [
    ("tokenizer.json", b'{"model": {"vocab": {"a": ' + b"1" * 5000 + b"}}}", "4300 digits"),
    ("tokenizer.json", b'{"model": "\xff"}', "0xff in position 11"),
    ("tokenizer.json", b"\0" * 5000, "this is not a tokenizer.json"),
    ("tokenizer.model", b"\n\x0e\n\x05<unk>\x15", "not a SentencePiece model, or cut off"),
    ("tokenizer.model", b"IQ== 0\n", "does not say its pattern"),
    ("a.tiktoken", b"IQ== 0\nIg== 0\n", "several tokens have the id 0"),
    ("a.tiktoken", b"IQ== 0\nI?== 1\n", "line 2: not a token"),
    ("a.tiktoken", b"IQ== 0\nI!g== 1\n", "line 2: not a token"),
    ("vocab.json", b'{"a": 0}', "merges.* is missing"),
]
FIRST_AFTER_STRIP = {"normalizer": strip(True, False)}
FIRST_AFTER_STRIP["pre_tokenizer"] = in_sequence(metaspace(scheme="first"), BYTE_LEVEL)
GPT2_WORDPIECE = {"type": "WordPiece", "vocab": {}, "continuing_subword_prefix": "Ġ"}
# Changes of a tokenizer.json, by the model that it is of, and the message.
BAD_CHANGES = [
    ("bytes", {"model": 5}, "no model"),
    ("bytes", {"model": GPT2_WORDPIECE}, "the prefix of a WordPiece must be ASCII"),
    ("bytes", {"model__vocab": {"a": True}, "added_tokens": []}, "b'a' has the id True"),
    ("bytes", {"model__vocab": {"a": 0, "b": 0}}, "several tokens have the id 0"),
    ("bytes", {"model__unk_token": []}, "wrong content: TypeError: .*list"),
    ("bytes", {"model__merges": ["a b c"]}, "a merge is two tokens"),
    ("bytes", {"model__merges": [["a", "日"]]}, "'日' in a token names no byte"),
    ("bytes", {"model__merges": [["i", "n"], ["i", "n"]]}, "a merge appears twice"),
    ("bytes", {"pre_tokenizer": in_sequence(*types("ByteLevel", "Whitespace"))}, "not the last"),
    ("bytes", {"pre_tokenizer": {"type": "UnicodeScripts"}}, "UnicodeScripts"),
    ("bytes", FIRST_AFTER_STRIP, "first after Strip"),
    ("bytes", {"added_tokens": [{"id": 0, "content": "a", "lstrip": "Foo"}]}, "{'lstrip': 'Foo'}"),
    ("bytes", {"added_tokens": [{"content": END, "id": 7}]}, "the ids 0 and 7"),
    ("bytes", {"added_tokens": [{"content": END, "id": 0, "single_word": True}]}, "single_word is"),
    ("llama", {"model__vocab": {"<unk>": 0}, "model__merges": []}, "<0x00>.*byte_fallback"),
    ("albert", {"model__vocab": [["<unk>", math.nan]]}, "needs a score: .* below inf"),
    ("albert", {"model__unk_id": -1}, "wrong content: KeyError"),
    ("albert", {"pre_tokenizer": BYTE_LEVEL, "model__byte_fallback": True}, "byte_fallback beside"),
    ("bert", {"model__vocab": ["a"]}, r"`names` is \['a'\]: it must be a dict"),
    ("bert", {"model__max_input_chars_per_word": "ten"}, "wrong content: ValueError.*'ten'"),
]


@pytest.fixture(scope="session")
def refused_files(model, prose, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    for k, (name, content, _) in enumerate(BAD_MODELS):
        (folder / f"{k}").mkdir()
        (folder / f"{k}" / name).write_bytes(content)
    for name, content in SOME_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    with open(folder / "large.json", "wb") as file:
        file.truncate(1 << 30)
    (folder / "model").symlink_to(model / "model")
    tokenizer.save(folder / "bytes")
    for name in ("llama", "albert", "bert"):
        (folder / name).mkdir()
        famous(name, prose[:300]).save(str(folder / name / "tokenizer.json"))
    np.save(folder / "floats.npy", np.zeros(3))
    np.save(folder / "large.npy", np.array([1, 100_000]))
    bpe.encode_files(plain(), folder / "text.txt", folder / "ids.bin")
    np.save(folder / "floats.npy", np.zeros(3))
    described = read_json(folder / "ids.bin.json") | {"tokens": 11}
    (folder / "ids.bin.json").write_text(json.dumps(described))
    (folder / "link.npy").symlink_to(folder / "odd.bin")
    counting = {"special_tokens": [END, "<pad>"]}
    bpe.count_files(folder / "pad.txt", folder / "words.npz", **counting)
    bpe.count_files(folder / "other.txt", folder / "cl100k.npz", **counting, pattern="cl100k")
    words = (folder / "words.npz").read_bytes()
    (folder / "flipped.npz").write_bytes(words.replace(b" text", b" tex!"))
    np.savez(folder / "pickled.npz", header=np.array([{}, None], object))
    with np.load(folder / "words.npz") as saved:
        arrays = dict(saved)
    np.savez(folder / "offsets.npz", **arrays | {"offsets": arrays["offsets"] + 10**12})
    np.savez(folder / "twice.npz", **arrays | {"counts": arrays["counts"] * 2})
    return folder


@pytest.fixture
def here(refused_files, monkeypatch):
    """That folder; the test runs in it, and leaves nothing."""
    before = sorted(refused_files.rglob("*"))
    monkeypatch.chdir(refused_files)
    yield refused_files
    assert sorted(refused_files.rglob("*")) == before


@contextlib.contextmanager
def refused_in_one_line(message):
    with pytest.raises((bpe.InputError, OSError), match=message) as raised:
        yield
    assert "\n" not in str(raised.value)


@functools.cache
def plain(pattern="gpt2"):
    return bpe.Tokenizer(BYTE_VOCAB, [], ["<s>"], pattern)


def of_letters(kind, **fields):
    """A tokenizer of two letters and a space."""
    letters = {"vocab": {0: b"a", 1: b"b", 2: b" "}, "merges": None, "alphabet": "characters"}
    return bpe.Tokenizer.from_model(bpe.Model(**letters | {"kind": kind} | fields))


def save(vocab, merges=(), special_tokens=None, format="huggingface", **options):
    bpe.Tokenizer(vocab, merges, special_tokens, **options).save("nowhere", format)


HELLO = {b"hello": 1}
WORDS = bpe.Words.from_counts(HELLO)
AB = BYTE_VOCAB | {256: b"ab"}
OF_CHARACTERS = {"alphabet": "characters"}
FLAGS = {"<a>": bpe.AddedToken(lstrip=True)}
ENDS = [*bpe.BYTES, *(byte + b"$" for byte in bpe.BYTES), b"ab$"]
SUFFIXED = bpe.Tokenizer(dict(enumerate(ENDS)), [(b"a", b"b$")], word_suffix="$")
# Calls with one argument: the arguments that are refused, and the messages.
REFUSED_ARGUMENTS = {
    bpe.Pattern: [
        ("(", "position 1"),
        ("a*", "empty string"),
        ([], '"none" leaves texts whole'),
        ("gpt9", "no pattern is named 'gpt9'; there are gpt2, cl100k"),
        ("(?:" * 300 + "a" + ")" * 300, "does not compile"),
        (bpe.Split("(?=x)", "contiguous"), "is not supported"),
        (bpe.Split("a", "dropped"), "no behavior is named 'dropped'; there are isolated, removed"),
        (bpe.Metaspace("ab"), "one character for a space, not 'ab'"),
    ],
    bpe.Normalizer: [
        ([{"no": "type"}], "a step without a type, .*not supported"),
        ([{"type": "Precompiled", "precompiled_charsmap": "AAA"}], "not supported: .*padding"),
        ([{"type": "Strip", "strip_left": True}], "Strip.*not supported: .*strip_right"),
        ([{"type": "Prepend", "prepend": 5}], "Prepend.*not supported: "),
        ([replace("", "a")], "Replace.*not supported: "),
        ([replace("a*", "a", "Regex")], "Replace.*not supported: .*empty string"),
    ],
    # Text.
    lambda name: counted([Path(name)], block_bytes=100, workers=2): [
        ("zip.txt", r"zip\.txt: a zip archive is not text"),
        ("tar.txt", r"tar\.txt: a tar archive is not text"),
        ("flipped.txt.gz", r"flipped\.txt\.gz: not a whole gzip file"),
        ("half.jsonl", r"half\.jsonl, line 2: not JSON"),
        ("bytes.jsonl", r"bytes\.jsonl, line 2: not JSON .*utf-8"),
        ("deep.jsonl", r"deep\.jsonl, line 2: not JSON"),
        ("field.jsonl", r"field\.jsonl, line 2: not JSON with a text in the field 'text'"),
        ("surrogate.jsonl", r"surrogate\.jsonl, line 2: .* surrogates not allowed"),
        ("late.jsonl", r"late\.jsonl, line 51: not JSON"),
        ("late.jsonl.gz", r"late\.jsonl\.gz, line 51: not JSON"),
    ],
    bpe.train_bpe: [
        ("", "is empty: is a variable not set"),
        ("Hello world. " * 999, "no such file.*; a text itself goes .* train.texts="),
        ("\0", "a name of a file has no null character"),
        ("empty.txt", r"no text to learn from in empty\.txt"),
    ],
    lambda options: bpe.train(**options): [
        ({"texts": "Hello"}, r"`texts` is 'Hello': it must be a list .*, such as \['Hello'\]"),
        ({"texts": ["Hello"], "inputs": "x"}, "`inputs`, `texts` and `counts` cannot be"),
        ({"counts": {"a<0x0A>": 1}, "alphabet": "characters", "byte_fallback": True}, "'<0x0A>'"),
        ({"counts": {"a<unk>": 1}, "model": "unigram"}, "the special token '<unk>'"),
        ({"counts": {}}, "no text to learn from in `counts`"),
        ({"counts": "text.txt"}, "text.txt: line 1 has no word, tab and count: b'"),
    ],
    # Words, and learning from them.
    bpe.Words.from_counts: [
        ({b"a": 1.5}, "the count of b'a' is 1.5"),
        ({"a\ud800": 1}, r"surrogates not allowed"),
        ({b"ab": 2**62}, r"add up to 2\*\*63 bytes"),
    ],
    lambda special: bpe.train(counts=HELLO, vocab_size=257, special_tokens=special): [
        (["<a>", "<b>"], "`vocab_size` is 257: .* 258"),
        (["x"], "single byte"),
        ("<a>", "list"),
        (["é"], "'é' is a single byte, or names one"),
    ],
    # Encoding and decoding.
    lambda steps: bpe.decoded_tokens({0: "▁".encode(), 1: b"a"}, steps): [
        ([*types("Fuse"), replace("aa", "b")], "Replace.*not supported after"),
        ([*types("Fuse"), STRIP_SPACE | {"start": 2}], "Strip.*not supported after"),
        ([METASPACE, *types("Fuse"), STRIP_SPACE], "Strip.*not supported after"),
    ],
    lambda ids: plain().decode(ids): [
        ([1, 257], "id 257 is not in the vocabulary, whose ids end at 256"),
        ([1, -1], r"\[1, -1\] is not a list of ids"),
        (np.array([1, 2**40]), "is not a list of ids"),
    ],
    # Files of models.
    bpe.Tokenizer.load: [
        *((f"{k}/{bad[0]}", bad[2]) for k, bad in enumerate(BAD_MODELS)),
        ("large.json", "1024 MB"),
    ],
    # Training, and other calls with options.
    lambda options: bpe.train(
        **{"inputs": "text.txt", "vocab_size": 1000, "workers": 1} | options
    ): [
        ({"model": "bert"}, "no family of models is named 'bert'"),
        ({"model": "wordpiece", "alphabet": "bytes"}, "family wordpiece is made of characters"),
        ({"model": "wordpiece", "byte_fallback": True}, "`byte_fallback` is for bpe and unigram"),
        ({"alphabet": "letters"}, "no alphabet is named 'letters'; there are bytes, characters"),
        *((OF_CHARACTERS | {"mark": mark}, "a mark is one character") for mark in ("ab", " ")),
        *((OF_CHARACTERS | {"coverage": n}, "a number from 0 to 1") for n in (1.1, math.nan)),
        (OF_CHARACTERS | {"byte_fallback": True, "unk_token": "?!"}, "nothing is unknown"),
        (OF_CHARACTERS | {"vocab_size": 5}, "vocabulary has room for"),
        ({"score": lambda count: count}, "2, 4 or 5 numbers, not 1"),
        ({"normalizer": ["nfx"]}, "no normalizer is named 'nfx'"),
        ({"balance": 0.5}, "`balance` and `weights` need a list of `inputs`"),
        *(({"inputs": ["text.txt"], "balance": n}, "a number from 0 to 1") for n in (-1, math.nan)),
    ],
    lambda options: bpe.train(["text.txt", "empty.txt"], 300, **options): [
        ({"balance": 0.5, "weights": [1, 2]}, "needs its `weights`, or all together a `balance`"),
        ({"weights": [1]}, "each of `inputs` needs its `weights`"),
        ({"weights": [1, 1]}, "no text to learn from in empty.txt"),
    ],
}
# Other calls, and the messages.
REFUSED_CALLS = [
    (lambda: bpe.count(iter(())), "no file is named"),
    (lambda: bpe.train(texts=["ab"], vocab_size=300, max_words=-1), "`max_words` is -1"),
    (lambda: bpe.train(texts={"text": ["a"]}), r"not a table, .* such as table\[\"text\"\]"),
    (lambda: bpe.train(texts=np.rec.fromarrays([["a"]], names="columns")), "not a table"),
    (lambda: bpe.encode_files(plain(), "text.txt", ""), "is empty: is a variable not set"),
    (lambda: bpe.train("ends.txt", 300, [END]), "no text to learn from in ends.txt"),
    (lambda: WORDS.as_characters().as_characters(), "not over the 256 bytes"),
    # Vocabularies.
    (lambda: save({0: b"a", 1: b"a"}), "several ids have the bytes 'a'"),
    (lambda: save({-1: b"a"}), "has the id -1"),
    (lambda: save({0: b"a"}, [(b"a", b"b")]), "a merge has or makes b'b'"),
    (lambda: save({0: b"a", 1: b"aa"}, [("a", "a")]), "merges are pairs"),
    (lambda: save(BYTE_VOCAB | {256: b" the"}, [], ["Ġthe"]), "would both be 'Ġthe'"),
    (lambda: save(AB, format="sp"), "there are huggingface, gpt2, tiktoken, sentencepiece"),
    (lambda: save(AB, format="sentencepiece"), "was not read from a .model"),
    (lambda: save(AB, format="gpt2", ignore_merges=True), "represent the special_tokens"),
    (lambda: save(BYTE_VOCAB, [], ["<a>"], "gpt2", added_tokens=FLAGS), "the added_tokens"),
    (lambda: save(AB, format="gpt2", pattern=[bpe.Metaspace(" "), "gpt2"]), "GPT-2"),
    (lambda: plain().save("vocab.json", "gpt2"), "two files: name a folder"),
    *((lambda to=to: SUFFIXED.save("nowhere", to), "represent the") for to in ("gpt2", "tiktoken")),
    (lambda: bpe.train(texts=["ab"], from_=SUFFIXED), "suffix"),
    (lambda: bpe.Tokenizer.load("llama").save("nowhere", "gpt2"), "tokens are made of characters"),
    (lambda: bpe.Tokenizer.load("bert").save("nowhere", "tiktoken"), "byte is not a token"),
    (lambda: of_letters("bpe", unk_token="?"), r"'\?' is not in the vocabulary: .unk_token."),
    (lambda: of_letters("unigram", scores=np.zeros(2)), "there must be 3 numbers"),
    (lambda: of_letters("unigram", scores=np.full(3, math.nan)), "3 numbers below inf"),
    (lambda: of_letters("unigram", scores=np.full(3, -math.inf)), "needs tokens with scores"),
    # Encoding and decoding.
    (lambda: bpe.Tokenizer({0: b"a"}, []).encode("ab"), "the byte 0x62 is not in"),
    (lambda: of_letters("bpe").encode("a b " * (1 << 17) + "~"), "the character '~' is not in"),
    (lambda: of_letters("bpe").sample("ab aéb"), "the character 'é' is not in"),
    (lambda: plain().encode("ab\ud83d"), "ud83d' in position 2"),
    (lambda: plain().encode_batch("one text"), r"a list of .*, such as \['one text'\]"),
    (lambda: bpe.Tokenizer({0: b"a"}, []).sample("~b"), "the byte 0x7E is not in"),
    (lambda: bpe.Tokenizer({2: b"a", 5: b"b"}, []).decode([2, 5, 3]), "id 3 is not in"),
    (lambda: bpe.read_ids("ids.bin"), "ids.bin: has 10 ids, and its .json file says 11"),
    (lambda: copy.copy(bpe.Learner(WORDS, 300)), "a Learner cannot be copied"),
    (
        lambda: of_letters("bpe", pattern={"type": "ByteLevel"}).to_str(),
        "a ByteLevel is for tokens of bytes",
    ),
    (lambda: bpe.train("text.txt", 300, model_max_length=0), "`model_max_length` is 0: it must"),
    (lambda: bpe.read_ids("floats.npy"), "float64 and shape .* are not token ids"),
    (lambda: bpe.encode_files("none", "text.txt", "o.npy"), "none: no such file"),
    # Files of models.
    (lambda: bpe.Tokenizer.load("a.tiktoken", encoding="gpt5"), "no encoding is named 'gpt5'"),
    (lambda: bpe.Tokenizer.load("bytes", pattern="gpt2"), "has its own: omit `pattern`"),
    (lambda: bpe.transformers_config(["<s>"], eos_token="<x>"), "no special token is named '<x>'"),
    (lambda: bpe.transformers_config(["<s>"], chat_template="chatml"), "im_start"),
    (lambda: bpe.compare(plain(), []), "no file is named"),
]
REFUSED_CALLS += [
    (functools.partial(call, argument), message)
    for call, cases in REFUSED_ARGUMENTS.items()
    for argument, message in cases
]


@pytest.mark.parametrize("call, message", REFUSED_CALLS, ids=[case[1] for case in REFUSED_CALLS])
def test_bad_calls_are_refused_in_one_line(call, message, here):
    with refused_in_one_line(message):
        call()


@pytest.mark.parametrize("name, change, message", BAD_CHANGES)
def test_a_wrong_tokenizer_json_is_refused_in_one_line(name, change, message, here, tmp_path):
    folder = shutil.copytree(here / name, tmp_path / name)
    if name != "bytes":
        change = {"added_tokens": []} | change
    edited(folder, **change)
    with refused_in_one_line(message):
        bpe.Tokenizer.load(folder)


@pytest.mark.parametrize("depth", [400, 900, 100_000])
def test_a_deeply_nested_tokenizer_json_is_refused(depth, tmp_path):
    nested = '{"type": "Sequence", "normalizers": [' * depth + '{"type": "Nope"}' + "]}" * depth
    text = f'{{"normalizer": {nested}, "model": {{"type": "BPE", "vocab": {{}}, "merges": []}}}}'
    (tmp_path / "tokenizer.json").write_text(text)
    with refused_in_one_line(r"tokenizer\.json: .*(Nope|recursion|not JSON)"):
        bpe.Tokenizer.load(tmp_path)
    with refused_in_one_line("the text: .*(Nope|recursion|not JSON)"):
        bpe.Tokenizer.from_str(text)


def test_equal_scores_and_squeezed_spaces_are_noted():
    pieces = [("<unk>", 2, 0), ("a", 1, -2), ("b", 1, -2), ("aa", 1, -1), ("aaa", 1, -1)]
    cases = [("ab", -3, False, False), ("ab", -1, False, True), ("ab", -3, True, True)]
    for token, score, squeezes, differs in cases:
        proto = model_proto([*pieces, (token, 1, score)], 2, remove_extra_whitespaces=squeezes)
        model = bpe.read_sentencepiece(proto.SerializeToString())
        assert bpe._differs_in_huggingface(model) == differs


def test_a_sentencepiece_model_that_is_not_supported_is_refused(prose, tmp_path):
    _, file = trained_there(tmp_path, prose, model_type="unigram")
    whole = file.read_bytes()
    for change, message in [
        (lambda p: setattr(p.trainer_spec, "model_type", 3), "words"),
        (lambda p: setattr(p.pieces[0], "type", 1), "expected 1, got 0"),
        (lambda p: setattr(p.pieces[9], "score", math.nan), "numbers below inf"),
        (lambda p: setattr(p.normalizer_spec, "precompiled_charsmap", b"\4\0\0\0ab"), "charsmap"),
        (lambda p: setattr(p.denormalizer_spec, "precompiled_charsmap", b"a"), "denormalizer"),
        (lambda p: p.ClearField("normalizer_spec"), "cut off"),
    ]:
        proto = sentencepiece_model_pb2.ModelProto.FromString(whole)
        change(proto)
        file.write_bytes(proto.SerializeToString())
        with refused_in_one_line(rf"m\.model: .*{message}"):
            bpe.Tokenizer.load(file)
    proto = model_proto([("<unk>", 2, 0), ("abcd", 1, -1)], 1, name="identity")
    for data, message in [
        (whole[:-1000], "cut off"),
        (proto.SerializeToString().replace(b"abcd", b"ab\xffd"), "SentencePiece model|'bytes'"),
    ]:
        file.write_bytes(data)
        with refused_in_one_line(message):
            bpe.Tokenizer.load(file)


# Command lines in that folder, and parts of their line on standard error.
REFUSED_COMMANDS = [
    ("train words.npz cl100k.npz", ["cl100k.npz", "the pattern"]),
    ("train words.npz text.txt", ["text.txt: text and words files cannot be mixed"]),
    ("train words.npz --normalizer nfc", ["words.npz", "the normalizer"]),
    ("train flipped.npz", ["flipped.npz: not a whole file of words"]),
    ("train pickled.npz", ["pickled.npz: not a whole file of words"]),
    ("train offsets.npz", ["offsets.npz: not a whole file of words"]),
    ("train twice.npz", ["twice.npz: not a whole file of words"]),
    ("count text.txt --out words.txt", ["words.txt: name a .npz file"]),
    ("convert a.tiktoken --to gpt2 --out o", ["a.tiktoken", "--pattern", "cl100k_base"]),
    ("train folder", ["folder", ".jsonl"]),
    ("train text.txt --pattern ''", ["--pattern is empty"]),
    ("train text.txt --out new --pattern \udcff", ["surrogates not allowed"]),
    ("train text.txt --workers 0", ["--workers is 0: it must be a whole number of at least 1"]),
    ("train text.txt --coverage 0.5 --out new", ["--coverage goes with characters"]),
    (
        "train text.txt --model unigram --tie-break ids --out new",
        ["--tie-break is not for the family unigram"],
    ),
    ("train text.txt --like bytes --alphabet bytes --out new", ["--alphabet does not go with"]),
    ("train text.txt --like bytes --from bytes", ["--like does not go with"]),
    ("train text.txt --chat-template chatm", ["chatm: No such file"]),
    ("train text.txt --model unigram --vocab-size 2 --out no", ["--vocab-size must be larger by "]),
    ("train text.txt --vocb-size 3", ["did you mean --vocab-size?", "train --help"]),
    ("encode model text.txt --no-special", ["--no-special has gone: --allowed-special is "]),
    ("encode model text.txt --val-fraction 0.1", ["--val-fraction has gone: --document-index"]),
    ("decode model ids.npy --encoding gpt2", ["--encoding has gone: the command convert takes it"]),
    ("count text.txt --byte-fallback", ["--byte-fallback has gone: --special-token takes"]),
    ("train text.txt --vocab-size 1kk", ["invalid number_of_tokens value: '1kk'"]),
    ("train long.txt --pattern none --out new", ["long.txt", "place where it can be cut"]),
    ("train long.txt.gz --pattern none --out new", ["long.txt.gz", "place where it can be cut"]),
    ("encode folder text.txt", ["folder", "no tokenizer.json"]),
    ("encode model text.txt --out new/", ["new: name a .npy file", ".bin", ".txt"]),
    ("encode model text.txt --out text.txt/o.npy", ["text.txt/o.npy: Not a directory"]),
    ("encode model text.txt --out o.npy --append '<x>'", ["'<x>'", END]),
    ("encode model text.txt --allowed-special '<x>'", ["no special token is named '<x>'", END]),
    ("encode model text.txt --out o.npy --document-index o.npy", ["o.npy", "twice"]),
    ("encode model odd.bin --out link.npy", ["is an input, or would be written twice"]),
    ("decode model large.npy --out large.npy", ["is an input, or would be written twice"]),
    ("decode model text.txt", ["text.txt: token ids must be whole numbers"]),
    ("decode model bad.npy", ["bad.npy: not a whole array of ids"]),
    ("decode model odd.bin", ["odd.bin", "--dtype"]),
    ("decode model floats.npy", ["float64"]),
    ("curve model --plot a.xyz", ["no format of a plot is named 'xyz'"]),
    ("inspect model empty.txt", ["no text to look at in empty.txt"]),
]


def test_train_says_so_if_no_file_is_named(command):
    printed = command("train --vocab-size 5").stderr
    assert b"note: no file is named: this learns from the source of Python's standard" in printed


def test_a_text_that_was_refused_is_not_kept():
    tokenizer = of_letters("bpe")
    tokenizer.encode("ab " * 9999)
    tracemalloc.start()
    with contextlib.suppress(bpe.InputError):
        tokenizer.encode("a" * (1 << 22) + "~")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 22


@pytest.mark.parametrize("line, parts", REFUSED_COMMANDS)
def test_bad_commands_are_refused_in_one_line(line, parts, command, here, monkeypatch):
    monkeypatch.setattr(bpe, "MAX_PART_BYTES", 1 << 23)
    assert_refused(command(line), *parts)


def test_without_protobuf_both_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    (tmp_path / "m.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0")
    with refusal("pip install --upgrade sentencepiece protobuf"):
        bpe.Tokenizer.load(tmp_path / "m.model")


def test_a_package_that_does_not_work_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('too old')")
    monkeypatch.syspath_prepend(tmp_path)
    with refusal("pip install --upgrade broken_package is needed: too old"):
        bpe.import_optional("broken_package")


# ─── The second process ───────────────────────────────────────────────────────────────────────────


def end_with_the_parent():
    """Linux: this process gets SIGTERM when the one that started it ends, however that ends."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


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
    module = folder / "bpe_numba.py"
    if not module.exists() or module.read_text() != source:
        module.write_text(source)  # else its kernels are compiled
    names = ["conftest.py", "pyproject.toml", "profile.sh", "README.md"]
    for name in (Path(__file__).name, *names):
        shutil.copy2(Path(__file__).with_name(name), folder)
    shutil.copytree(Path(__file__).with_name("docs"), folder / "docs", dirs_exist_ok=True)
    (folder / "__pycache__").mkdir(exist_ok=True)
    # this file as pytest has rewritten it, which takes some seconds
    for rewritten in Path(__file__).parent.glob("__pycache__/test_*-pytest-*.pyc"):
        shutil.copy(rewritten, folder / "__pycache__")
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"}
    environment["NUMBA_CACHE_DIR"] = str(folder / "cache")
    command = ["pytest", "-q", "-m", "apart", "-p", "no:cacheprovider", "--disable-warnings"]
    command += [f"--hypothesis-seed={request.config.getoption('--hypothesis-seed')}"]
    with open(folder / "output", "wb+") as output:
        options = {"stdout": output, "stderr": output, "env": environment, "cwd": folder}
        options["preexec_fn"] = end_with_the_parent
        process = subprocess.Popen([sys.executable, "-m", *command, Path(__file__).name], **options)
        yield process, folder / "output"
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def _apart(request, checked_run):
    """Leave the tests marked `apart` to the second process."""
    if checked_run and request.node.get_closest_marker("apart"):
        pytest.skip("runs in the second process")


@pytest.mark.skipif(BOUNDS_CHECKED, reason="this is that process")
def test_the_second_process_passes(checked_run, capsys):
    process, output = checked_run
    end = time.monotonic() + 1800
    with capsys.disabled(), output.open() as printed:
        print("\nThe second process, where every index is checked:")
        status = None
        while status is None and time.monotonic() < end:
            time.sleep(0.2)
            status = process.poll()
            print(printed.read(), end="", flush=True)  # since the last look
    assert status == 0, output.read_text()
    assert regex.search(r"\d+ passed", output.read_text())


# Mark the tests of the checked sections, which the banners in this file separate.
_, *parts = re.split("^# ─── (.+?) ─+$", Path(__file__).read_text("utf-8"), flags=re.MULTILINE)
for title, section in zip(parts[::2], parts[1::2], strict=True):
    if title in CHECKED:
        for name in re.findall(r"^def (test_\w+)", section, re.MULTILINE):
            pytest.mark.apart(globals()[name])
