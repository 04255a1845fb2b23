"""Tests of bpe_numba. First the oracle: BPE as it is defined, in the plainest Python, without the module's help."""

import base64
import gzip
import itertools
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import jinja2.sandbox
import numpy as np
import pytest
import regex
import tiktoken
import tiktoken.load
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import bpe_numba as bpe

settings.register_profile("no deadline", deadline=None)  # the first example compiles kernels
settings.load_profile("no deadline")

# ─── The oracle ───────────────────────────────────────────────────────────────────────────────────────────────────────


def merged(word, pair):
    """Join every occurrence of a pair of symbols, from left to right. A symbol is its bytes."""
    out, i = [], 0
    while i < len(word):
        size = 2 if tuple(word[i : i + 2]) == pair else 1
        out.append(b"".join(word[i : i + size]))
        i += size
    return out


def naive_learn(counts, n_symbols, tie_break="bytes", min_frequency=1):
    """Merge the most frequent pair, again and again. Returns merges, their counts, and the tokens left after each."""
    words = [([bytes([b]) for b in word], count) for word, count in counts.items() if count]
    order = {bytes([b]): i for i, b in enumerate(sorted(range(256), key=hugging_face_char))}
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


def hugging_face_char(b):
    """The character that stands for a byte in GPT-2's files."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(b) if b in seen else chr(256 + [c for c in range(256) if c not in seen].index(b))


CHARS = [hugging_face_char(b) for b in range(256)]


def in_chars(token):
    return "".join(CHARS[b] for b in token)


# ─── Data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

END = "<|endoftext|>"

few_letters = st.sampled_from([b"a", b"ab", b"abc", b"\x00\xff", bytes(range(97, 107))])
small_words = few_letters.flatmap(
    lambda letters: st.binary(max_size=40).map(lambda w: bytes(letters[b % len(letters)] for b in w))
)
word_counts = st.dictionaries(small_words, st.integers(0, 5), max_size=12).filter(
    lambda d: any(k and v for k, v in d.items())
)
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab '\n\r\t  sſ　é١中🙂<|>"), max_size=60)


@pytest.fixture(scope="session")
def library():
    """The standard library's sources that are UTF-8, as paths: real text on every machine."""

    def is_utf8(path):
        try:
            path.read_bytes().decode()
        except UnicodeDecodeError:
            return False
        return True

    return [path for path in bpe.standard_library() if is_utf8(path)]


@pytest.fixture(scope="session")
def trained(library):
    """A model of 2,000 tokens, by the rule of ids, from a part of the standard library."""
    return bpe.train(library[:200], 2000, [END], tie_break="ids", workers=1)


@pytest.fixture(scope="session")
def tokenizer(trained):
    return trained.tokenizer


def run(*arguments, stdin=b"", **options):
    """Run the command line as a user does."""
    command = [sys.executable, str(Path(bpe.__file__)), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=300, **options)


def assert_refused(result, *parts):
    """Exit status 2, one line on standard error that says these things, no traceback."""
    message = result.stderr.decode()
    assert result.returncode == 2, message
    lines = [line for line in message.replace("\r", "\n").splitlines() if line.startswith("bpe_numba:")]
    assert len(lines) == 1 and "Traceback" not in message, message
    assert all(part in lines[0] for part in parts), lines[0]


# ─── Patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def naive_split(pattern, data):
    """The pretokens by the `regex` package: the matches, and what lies between them."""
    text, words, end = data.decode("utf-8", "surrogateescape"), [], 0
    for match in regex.finditer(pattern, text):
        words += [text[end : match.start()], match[0]]
        end = match.end()
    return [word.encode("utf-8", "surrogateescape") for word in [*words, text[end:]] if word]


CUSTOM_PATTERNS = [
    r"[a-z]+",
    r"\w+",
    r"(a)|(b)",
    r"(?:abc)",
    r"a+b|a",
    r"aa|a{3,5}b",
    r"a(?=b)|b+?c|.",
    r"x{2,}y|x",
    r"\S+?(?=\s)|\s+",
    r" ?\p{L}+\s*$|\p{L}",
    r"\s++$|\s|\S+",
    r"[^\W\d]+|\p{Han}",
    r"(?i:it|is)|\p{L}{2,3}|\d+(?!\d)",
]
invalid = [b"\xff", b"\xc0\xaf", b"\xe4\xb8", b"\xf5", b"\xed\xa0\x80", b"\xf0\x9f\x99\x82", b"a", b" ", b"\n"]
hostile_bytes = st.binary(max_size=60) | st.lists(st.sampled_from(invalid)).map(b"".join)
alphabets = st.sampled_from(["ab c'sStTlLvVeErRdmM \n\r\t 12中é\u3000\u0301ſK/.!", "ab", "abc xy", "a1 \n", " \n"])
pattern_texts = texts | alphabets.flatmap(lambda letters: st.text(letters, max_size=80))


@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, *CUSTOM_PATTERNS])
@given(data=pattern_texts.map(str.encode) | hostile_bytes)
def test_pretokens_are_those_of_regex(pattern, data):
    compiled = bpe.Pattern(pattern)
    assert compiled.scanner is not None
    assert compiled.split(data) == compiled._split_by_regex(data) == naive_split(compiled.text, data)


@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, *CUSTOM_PATTERNS])
def test_long_texts_are_scanned_by_all_cursors(pattern):
    compiled, source = bpe.Pattern(pattern), random.Random(3)
    for letters in ("ab c'sl \n\r\t 12中é\u3000\u0301ſK/.!", "the cat   sat\n        ", "x1\n"):
        data = "".join(source.choices(letters, k=3 * bpe.LANE)).encode() + bytes(source.choices(range(256), k=9))
        assert compiled.split(data * 2) == naive_split(compiled.text, data * 2)


@pytest.mark.parametrize("name", bpe.PATTERNS)
def test_every_character_is_scanned_as_regex_does(name):
    compiled = bpe.Pattern(name)
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for before, after in (("", ""), ("a", "b"), (" ", "1"), ("\n", "'")):
        text = "".join(f"{before}{char}{after}" for char in characters)
        assert compiled.split(text.encode()) == [word.encode() for word in regex.findall(compiled.text, text)]


atoms = st.sampled_from([r"a", r"b", r"[ab]", r"[^a]", r"\s", r"\S", r"\w", r"\p{L}", r".", r"\d", "é", r"(?i:A)"])
quantifiers = st.sampled_from(["", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "??", "+?", "*?", "++", "?+", "*+"])
lookaheads = st.sampled_from(["", "", "", "(?!a)", r"(?=\s)", r"(?!\S)", "$", r"\Z"])
regexes = st.recursive(
    st.tuples(atoms, quantifiers).map("".join),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.tuples(inner, st.sampled_from(["?", "+", "{2}", "*?"])).map(lambda part: f"(?:{part[0]}){part[1]}")
        | st.tuples(inner, lookaheads).map("".join)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(pattern=regexes.map("(?:{})".format), inputs=st.lists(st.text("aAb é1 \n", max_size=20), min_size=1, max_size=5))
def test_random_patterns_are_exact_or_left_to_regex(pattern, inputs):
    try:
        compiled = bpe.Pattern(pattern)
    except bpe.BadInput:
        assert regex.fullmatch(pattern, "") or not any(regex.search(pattern, text) for text in inputs)
        return
    for text in inputs:
        assert compiled.split(text.encode()) == naive_split(pattern, text.encode())


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
    ],
)
def test_what_is_not_compiled_is_said_and_works(pattern, why):
    compiled = bpe.Pattern(pattern)
    assert compiled.scanner is None and regex.search(why, compiled.remark)
    assert compiled.split(b"ab aa word \xff") == naive_split(pattern, b"ab aa word \xff")


def test_compiled_patterns_are_kept_on_the_disk(tmp_path, monkeypatch):
    text = bpe.PATTERNS["none"]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "pattern.none.outdated.npz").touch()
    made = bpe._scanner_of(text)
    (path,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(bpe, "_compile", lambda text: 1 / 0)
        known = bpe._scanner_of(text)
    assert all(np.array_equal(a, b) and type(a) is type(b) for a, b in zip(made, known, strict=True))
    for damage in (b"", path.read_bytes()[:5000], b"no zip"):
        path.write_bytes(damage)
        assert all(map(np.array_equal, made, bpe._scanner_of(text)))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    assert all(map(np.array_equal, made, bpe._scanner_of(text)))


def test_patterns_that_cost_the_square_are_named():
    assert "'aaa…'" in bpe.Pattern("a+b|a").remark
    assert all(bpe.Pattern(name).remark == "" for name in bpe.PATTERNS)


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
@given(text=texts)
def test_patterns_are_those_of_tiktoken(name, text):
    from tiktoken_ext import openai_public

    source = Path(openai_public.__file__).read_text()
    theirs = {
        "cl100k": next(line for line in source.splitlines() if "[\\r\\n]*+|\\s++$" in line).split('"""')[1],
        "o200k": "|".join(part for part in source.split("def o200k_base")[1].split("]\n    )")[0].split('"""')[1::2]),
    }[name]
    assert bpe.Pattern(name).split(text.encode()) == [word.encode() for word in regex.findall(theirs, text)]


@pytest.mark.parametrize("name", bpe.PATTERNS)
@given(text=texts | st.text("a '\n\r!/1é", max_size=30), data=st.data())
def test_cuts_change_no_pretoken(name, text, data):
    pattern = bpe.Pattern(name)
    start = data.draw(st.integers(0, len(text)))
    cut = pattern.last_cut(text, start, data.draw(st.integers(start, len(text))))
    whole, left, right = (part.encode() for part in (text, text[:cut], text[cut:]))
    assert pattern.split(left) + pattern.split(right) == pattern.split(whole)


def test_named_patterns_can_be_cut_in_ordinary_text():
    text, pattern = "It was a dark night.\nSo it was.", bpe.Pattern("gpt2")
    assert {text.index(" dark"), text.index("."), text.index(" was")} <= set(pattern.cuts(text).tolist())
    assert pattern.last_cut(text, 0, len(text)) == text.rindex(".")
    assert bpe.Pattern("none").last_cut(text, 0, len(text)) == 0


@pytest.mark.parametrize(
    "bad, part",
    [
        ("(", "position 1"),
        ("[a", "does not compile"),
        ("a*", "empty string"),
        ("", "empty"),
        (r"(?!\s)\s", "nothing"),
        ("gpt9", "no pattern is named 'gpt9'; there are gpt2, cl100k"),
    ],
)
def test_bad_patterns_are_refused(bad, part):
    with pytest.raises(ValueError, match=part):
        bpe.Pattern(bad)


# ─── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def split_all(chunks, pattern, special):
    splitter = bpe.Splitter(pattern, special)
    return [piece for chunk in chunks for piece in splitter.feed(chunk)] + splitter.close()


@given(
    text=st.lists(texts | st.sampled_from(["<|a|>", "<|a|>b", "|>", "<|", "aa", "aaa", "x y z\nw "]), max_size=12).map(
        "".join
    ),
    cuts=st.lists(st.integers(0, 100), max_size=8),
    special=st.sampled_from([[], ["<|a|>"], ["<|a|>", "<|a|>b"], ["aa", "aaa"], ["\nw", " y z"]]),
    name=st.sampled_from([*bpe.PATTERNS, r"\w+"]),
)
def test_splitter_does_not_depend_on_chunks(text, cuts, special, name):
    pattern = bpe.Pattern(name)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    chunks = [text[a:b] for a, b in itertools.pairwise(ends)]
    longest_first = "|".join(map(regex.escape, sorted(special, key=len, reverse=True)))
    whole = regex.split(f"({longest_first})", text) if special else [text]
    expected = [
        (word, i % 2 == 1)
        for i, part in enumerate(map(str.encode, whole))
        for word in ([part] if i % 2 else naive_split(pattern.text, part))
    ]
    pieces = split_all(chunks, pattern, special)
    found = [(w, s) for text, s in pieces for w in ([text.encode()] if s else pattern.split(text.encode()))]
    assert found == expected


def test_splitter_hands_out_long_text_before_its_end():
    splitter = bpe.Splitter(bpe.Pattern("gpt2"), [END])
    pieces = [piece for _ in range(1000) for piece in splitter.feed("one two three ")]
    assert sum(len(piece.text) for piece in pieces) > 13_000


def test_splitter_is_linear_without_cuts():
    splitter = bpe.Splitter(bpe.Pattern(r"\S+|\s+"), [END])
    looked_through = 0
    cut = splitter._cut

    def counting(final):
        nonlocal looked_through
        looked_through += splitter._size
        return cut(final)

    splitter._cut = counting
    for _ in range(1000):
        assert splitter.feed("中文") == []
    assert splitter.close() == [bpe.Piece("中文" * 1000)]
    assert looked_through < 4 * 2000


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

    def counted(*inputs):
        counted = bpe.count_pretokens(bpe.find_files(inputs), bpe.Pattern("gpt2"), [END])
        return bpe.counts_of(counted.words), counted.n_documents, counted.n_bytes

    one = counted(tmp_path / "a.txt")
    counts, n_documents, n_bytes = one
    assert n_documents == 3 and n_bytes == len(whole) - 2 * len(END)
    for name in ("b.txt.gz", "c.jsonl", "deep", "deep/**/*.gz"):
        assert counted(tmp_path / name) == one
    assert counted(tmp_path) == ({word: 4 * count for word, count in counts.items()}, 12, 4 * n_bytes)


def test_bytes_that_are_not_utf8_are_kept(tmp_path):
    data = bytes(range(256)) * 3 + b"\xf0\x9f\x99" + b"ok \xed\xa0\x80\xc0\xaf"
    (tmp_path / "raw.txt").write_bytes(data)
    counted = bpe.count_pretokens([tmp_path / "raw.txt"], bpe.Pattern("gpt2"))
    assert Counter(b for word, count in bpe.counts_of(counted.words).items() for b in word * count) == Counter(data)


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
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=f"bad.jsonl, line 2: .*{part}"):
        bpe.count_pretokens([path], bpe.Pattern("gpt2"))


@pytest.mark.parametrize("damage", [lambda z: z[:-9], lambda z: z[:20] + b"\x00\x01" + z[22:], lambda z: b"not gzip"])
def test_bad_gzip_is_refused(tmp_path, damage):
    (tmp_path / "x.txt.gz").write_bytes(damage(gzip.compress(random.Random(0).randbytes(500))))
    with pytest.raises(ValueError, match=r"x\.txt\.gz: not a whole gzip file"):
        bpe.count_pretokens([tmp_path / "x.txt.gz"], bpe.Pattern("gpt2"))


# ─── Counting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_words_are_the_counts():
    words = bpe.words_from_counts({b"ab": 2, b"": 5, b"c": 0, b"\xff": 2**33})
    assert words.symbols.tolist() == [97, 98, 255] and words.symbols.dtype == np.int32
    assert words.offsets.tolist() == [0, 2, 3] and words.counts.tolist() == [2, 2**33]


@pytest.mark.parametrize(
    "counts, part", [({b"a": -1}, "-1"), ({b"a": 1.5}, "1.5"), ({"a": 1}, "bytes"), ({b"ab": 2**62}, "63")]
)
def test_bad_counts_are_refused(counts, part):
    with pytest.raises(ValueError, match=part):
        bpe.words_from_counts(counts)


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
    assert bpe.counts_of(counter.words()) == expected
    counter.add_words(counter.words())
    assert bpe.counts_of(counter.words()) == {word: 2 * count for word, count in expected.items()}


def test_tables_grow():
    source = random.Random(4)
    words = [source.randbytes(source.choice([3, 7, 8, 9, 15, 16, 17, 40])) for _ in range(150_000)]
    counter = bpe.WordCounter()
    counts = {word: k for k, word in enumerate(dict.fromkeys(words), 2**33)}
    counter.add_words(bpe.words_from_counts(counts))
    assert bpe.counts_of(counter.words()) == counts


def counted(paths, special=(END,), pattern="gpt2", **options):
    result = bpe.count_pretokens(paths, bpe.Pattern(pattern), special, **options)
    return bpe.counts_of(result.words), result.n_documents


def test_counts_do_not_depend_on_the_number_of_workers(library, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK", 1 << 16)
    files = library[:120]
    one, two, five = (counted(files, workers=n) for n in (1, 2, 5))
    assert one == two == five
    texts = [path.read_bytes() for path in files]
    expected = Counter(word for text in texts for word in naive_split(bpe.PATTERNS["gpt2"], text))
    assert one == (expected, sum(map(bool, texts)))


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k", "none", r"(?<!x)\w+"])
@pytest.mark.parametrize("block", [1 << 10, 5000, 1 << 16])
def test_counts_do_not_depend_on_blocks(pattern, block, tmp_path, monkeypatch, library):
    source = random.Random(5)
    text = b"".join(path.read_bytes() for path in library[:12])
    text = END.encode().join(text[k : k + source.randrange(20_000)] for k in range(0, len(text), 20_000))
    text = "中文，没有空格。\nЭто русский текст.\n".encode() * 200 + text + source.randbytes(200) + text[:40_000]
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    whole = [part for part in text.split(END.encode()) if part]
    expected = Counter(word for part in whole for word in naive_split(bpe.Pattern(pattern).text, part)), len(whole)
    monkeypatch.setattr(bpe, "BLOCK", block)
    assert counted([tmp_path / "a.txt"], pattern=pattern) == expected
    assert counted([tmp_path / "b.txt.gz"], pattern=pattern) == expected


@pytest.mark.parametrize("special", [[END], ["aa"], ["aa", "ab"], ["<a>", "<a>b"], ["\n", "\n\n"][1:]])
@pytest.mark.parametrize("pattern", ["gpt2", "none"])
def test_counts_do_not_depend_on_where_special_tokens_are(special, pattern, tmp_path, monkeypatch):
    source = random.Random(6)
    text = "".join(source.choices(["a", "b", "aa ", " b", "<a>", "\n\n", END, "cde f", "中"], k=40_000))
    (tmp_path / "a.txt").write_text(text)
    whole = [
        part for part in regex.split("|".join(sorted(map(regex.escape, special), key=len, reverse=True)), text) if part
    ]
    expected = (
        Counter(word for part in whole for word in naive_split(bpe.Pattern(pattern).text, part.encode())),
        len(whole),
    )
    monkeypatch.setattr(bpe, "BLOCK", 3000)
    assert counted([tmp_path / "a.txt"], special, pattern) == expected


def test_lines_are_numbered_in_every_block(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK", 100)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "some text"}\n' * 50 + b"oops\n" + b'{"text": "more"}\n' * 50)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 51: not JSON"):
        counted([tmp_path / "a.jsonl"], workers=2)


def _die(item):
    os._exit(1)


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(ValueError, match="worker process died"):
        list(bpe._map_in_order(_die, range(4), 2))


# ─── Learning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_bytes(merges):
    return bpe.build_vocabulary(merges)[1]


def assert_learns(counts, n_symbols, tie_break="bytes", min_frequency=1, number=np.int32):
    merges = bpe._learn(bpe.words_from_counts(counts), n_symbols, tie_break, min_frequency, False, number)
    assert (as_bytes(merges), merges.counts.tolist(), merges.tokens.tolist()) == naive_learn(
        counts, n_symbols, tie_break, min_frequency
    )


@settings(max_examples=300)
@given(
    counts=word_counts, extra=st.integers(0, 40), tie_break=st.sampled_from(["bytes", "ids"]), least=st.integers(0, 4)
)
def test_merges_are_those_of_the_oracle(counts, extra, tie_break, least):
    assert_learns(counts, 256 + extra, tie_break, least)


@pytest.mark.parametrize("number", [np.int32, np.int64])
@pytest.mark.parametrize("tie_break", ["bytes", "ids"])
def test_merges_of_long_words_are_those_of_the_oracle(tie_break, number):
    source = random.Random(1)
    counts = {
        bytes(source.choices(letters, k=k)): n
        for n, (letters, k) in enumerate([(b"ab", 999), (b"abcd", 700), (b"a", 500)], 1)
    }
    assert_learns(counts, 400, tie_break, number=number)


def test_ties_go_by_all_bytes_of_long_tokens():
    word = b"abcdefghijkl"
    assert_learns({word + b"x": 1, word + b"y": 1, word + b"\x00": 1, word: 1, word[:-1]: 3}, 290)


def test_counts_past_32_bits_are_right():
    counts = {b"ab": 2**31, b"abc": 2**33, b"xy": 2**40, b"z" * 9: 1}
    assert_learns(counts, 262)
    assert bpe.learn(bpe.words_from_counts(counts), 257).counts.tolist() == [2**40]


def test_arrays_grow():
    source = random.Random(2)
    words = [source.randbytes(200) for _ in range(15)] + [b"a" * 20_000]
    counts = dict.fromkeys(words, 1)
    state = bpe._new_state(bpe.words_from_counts(counts), 700, "bytes", np.int32)
    merges = bpe.learn(bpe.words_from_counts(counts), 700)
    assert sum(map(len, map(b"".join, as_bytes(merges)))) + 256 > len(state.symbols.token)
    assert (as_bytes(merges), merges.counts.tolist(), merges.tokens.tolist()) == naive_learn(counts, 700)


def test_learning_leaves_the_words_alone():
    words = bpe.words_from_counts({b"banana": 3, b"bandana": 2})
    before = [array.copy() for array in words]
    first, second = bpe.learn(words, 262), bpe.learn(words, 262)
    assert all(map(np.array_equal, words, before)) and all(map(np.array_equal, first, second))


def test_the_order_of_words_does_not_matter():
    counts = {bytes([97 + i % 3, 97 + i % 5, 97 + i % 2]) * (i % 4 + 1): i % 7 + 1 for i in range(50)}
    back = dict(reversed(counts.items()))
    assert all(
        map(np.array_equal, bpe.learn(bpe.words_from_counts(counts), 290), bpe.learn(bpe.words_from_counts(back), 290))
    )


@pytest.mark.parametrize("options, part", [({"tie_break": "none"}, "tie_break"), ({}, "no words")])
def test_learning_refuses(options, part):
    with pytest.raises(ValueError, match=part):
        bpe.learn(bpe.words_from_counts({b"ab": 1} if options else {}), 300, **options)


def hugging_face_trained(documents, vocab_size, special_tokens):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(documents, trainer)
    return json.loads(model.to_str())["model"]


def test_merges_and_ids_are_those_of_hugging_face(library):
    special = [END, "<|im_start|>"]
    theirs = hugging_face_trained((path.read_bytes().decode() for path in library), 8000, special)
    vocab, merges = bpe.train_bpe(library, 8000, special, tie_break="ids")
    assert [[in_chars(left), in_chars(right)] for left, right in merges] == theirs["merges"]
    assert {token.decode() if i < 2 else in_chars(token): i for i, token in vocab.items()} == theirs["vocab"]


# ─── Vocabulary ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_vocabulary_has_special_tokens_first_then_bytes_then_merges():
    vocab, merges = bpe.train_bpe_from_counts({b"aab": 2, b"ab": 1}, 260, ["<s>", "</s>"])
    assert list(vocab) == list(range(260)) and vocab[0] == b"<s>" and vocab[1] == b"</s>"
    assert [in_chars(vocab[i]) for i in range(2, 258)] == sorted(CHARS)
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
    ],
)
def test_impossible_vocabularies_are_refused(vocab_size, special, part):
    with pytest.raises(ValueError, match=part):
        bpe.train_bpe_from_counts({b"hello": 1}, vocab_size, special)


# ─── Encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(text=texts | st.text("astndh e<|>of", max_size=40) | st.just(f"a{END}b{END}"), data=st.data())
def test_encode_is_the_oracle_and_hugging_face(tokenizer, hugging_face, text, data):
    ids = tokenizer.encode(text)
    assert ids == hugging_face.encode(text).ids
    expected = []
    for i, part in enumerate(text.split(END)):
        expected += [END.encode()] * (i > 0)
        for word in regex.findall(bpe.PATTERNS["gpt2"], part):
            expected += naive_encode(word.encode(), tokenizer.merges)
    assert [tokenizer.id_to_token(id) for id in ids] == expected
    assert tokenizer.decode(ids) == text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert list(tokenizer.encode_iterable(chunks)) == ids
    assert list(tokenizer.encode_iterable(bytes([b]) for b in text.encode())) == ids


@pytest.fixture(scope="session")
def hugging_face(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def random_tokens(source, letters, n):
    """Single bytes, and n tokens made of two others each; and the pairs they were made of."""
    tokens, merges = [bytes([b]) for b in letters], []
    for _ in range(n):
        merges.append((source.choice(tokens), source.choice(tokens)))
        if b"".join(merges[-1]) not in tokens:
            tokens.append(b"".join(merges[-1]))
    return list(dict.fromkeys([*(bytes([b]) for b in range(256)), *tokens])), merges


words = st.binary(max_size=60) | st.text("aeti", max_size=300).map(str.encode) | st.just(b"a" * 200 + b"e")


@settings(max_examples=200)
@given(data=words, seed=st.integers(0, 20))
def test_merging_is_the_oracle_for_any_list_of_merges(data, seed):
    tokens, merges = random_tokens(random.Random(seed), b"aeti", 60)
    tokenizer = bpe.Tokenizer(dict(enumerate(tokens)), merges, pattern="none")
    expected = naive_encode(data, merges)
    for _ in range(2):  # the second time from the cache
        assert [tokens[id] for id in tokenizer.encode(data)] == expected


@settings(max_examples=200)
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


@given(data=hostile_bytes | st.binary(max_size=40))
def test_bytes_that_are_not_utf8_are_replaced_as_python_finds_them(data):
    escaped = data.decode("utf-8", "surrogateescape")
    expected = b"".join(b"\xff" if 0xDC80 <= ord(char) <= 0xDCFF else char.encode() for char in escaped)
    assert bpe._as_utf8(bpe._padded(data))[: len(data)].tobytes() == expected


# ─── Tokenizer ────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    for path in library[40:80]:
        text = path.read_bytes().decode()
        assert tokenizer.encode(text) == theirs.encode(text).ids
    for text in ("I'M it'S we'll  \n\n  x \n", "end  \n ", "12345 a/b\n/c\r\n", "中文 нет É١２ e\u0301 ", " \t\n"):
        assert tokenizer.encode(text) == theirs.encode(text).ids


def test_encode_is_tiktoken_for_a_trained_model(tokenizer, library):
    special = {END: tokenizer.token_to_id(END)}
    ranks = {token: id for id, token in tokenizer.vocab.items() if id not in special.values()}
    theirs = tiktoken.Encoding("ours", pat_str=bpe.PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens=special)
    for path in library[200:300]:
        text = path.read_bytes().decode() + END
        assert tokenizer.encode(text) == theirs.encode(text, allowed_special="all")


def test_special_tokens_are_honoured_only_where_allowed():
    vocab = {b: bytes([b]) for b in range(256)} | {256: b"<a>", 257: b"<a><b>"}
    tokenizer = bpe.Tokenizer(vocab, [], ["<a>", "<a><b>", "<new>"])
    assert tokenizer.special_tokens == {"<a>": 256, "<a><b>": 257, "<new>": 258} and len(tokenizer) == 259
    text = "<a><a><b><new>"
    assert tokenizer.encode(text) == [256, 257, 258]
    assert tokenizer.encode(text, {"<a>"}) == [256, 256, *b"<b><new>"]
    assert tokenizer.encode_ordinary(text) == tokenizer.encode(text, "none") == list(text.encode())
    with pytest.raises(ValueError, match="'<c>' is not a special token"):
        tokenizer.encode(text, ["<c>"])


def test_long_words_do_not_take_the_square(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a" * 200_000)) == "a" * 200_000


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


@pytest.mark.parametrize("sizes", [(4, 1 << 17), (64, 1 << 14), (1 << 12, 1 << 18), (1 << 20, 1 << 20)])
def test_a_small_cache_changes_nothing(tokenizer, some_texts, monkeypatch, sizes):
    expected = tokenizer.encode_batch(some_texts)
    monkeypatch.setattr(bpe, "CACHED", sizes[0])
    monkeypatch.setattr(bpe, "POOLED", sizes[1])
    small = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, tokenizer.special_tokens, tokenizer.pattern.text)
    for _ in range(2):
        assert small.encode_batch(some_texts, threads=1) == expected


def test_batches_are_single_texts(tokenizer, some_texts, monkeypatch):
    expected = [tokenizer.encode(text) for text in some_texts]
    assert [list(tokenizer.encode_iterable([text])) for text in some_texts] == expected
    monkeypatch.setattr(bpe, "BLOCK", 5000)
    for threads in (None, 1, 3):
        assert tokenizer.encode_batch(some_texts, threads=threads) == expected
    ids, offsets = tokenizer.encode_batch_to_numpy(some_texts, {END})
    assert ids.dtype == np.uint32 and offsets.dtype == np.int64
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == expected
    ordinary = tokenizer.encode_batch(some_texts, "none")
    assert ordinary == [tokenizer.encode_ordinary(text) for text in some_texts] != expected
    texts = [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in some_texts]
    assert tokenizer.decode_batch(expected) == texts
    assert tokenizer.encode_batch([]) == [] and tokenizer.encode_batch_to_numpy([])[1].tolist() == [0]
    with pytest.raises(ValueError, match="list of texts"):
        tokenizer.encode_batch("one text")


@settings(max_examples=200)
@given(special=st.sets(st.text("ab<é", min_size=2, max_size=12), max_size=12), text=st.text("ab<é", max_size=80))
def test_special_tokens_are_found_as_regex_finds_them(special, text):
    vocab = {b: bytes([b]) for b in range(256)}
    tokenizer = bpe.Tokenizer(vocab, [], sorted(special))
    longest_first = "|".join(map(regex.escape, sorted(special, key=len, reverse=True))) or "(?!)"
    expected, end = [], 0
    for match in regex.finditer(longest_first, text):
        expected += [*text[end : match.start()].encode(), tokenizer.special_tokens[match[0]]]
        end = match.end()
    assert tokenizer.encode(text) == [*expected, *text[end:].encode()]
    assert tokenizer.encode(text * 100, special) == tokenizer.encode(text * 100)


def test_a_text_of_special_tokens_alone_is_encoded(tokenizer):
    assert tokenizer.encode(END * 1000) == [tokenizer.token_to_id(END)] * 1000


def test_threads_share_a_tokenizer(tokenizer, some_texts):
    expected = [tokenizer.encode(text) for text in some_texts]
    shared = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, tokenizer.special_tokens)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(shared.encode, some_texts)) == expected
    assert 1 <= len(shared._places) <= 8


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_use_a_tokenizer(tokenizer, some_texts, method):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        found = list(pool.map(tokenizer.encode, some_texts[-6:]))
    assert found == [tokenizer.encode(text) for text in some_texts[-6:]]


def test_patterns_left_to_regex_encode_the_same(tokenizer, some_texts):
    left = bpe.Tokenizer(tokenizer.vocab, tokenizer.merges, [END], pattern=f"(?<=)(?:{tokenizer.pattern.text})")
    assert left.pattern.scanner is None
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


def test_a_byte_that_is_not_in_the_vocabulary_is_named():
    with pytest.raises(ValueError, match="0x62"):
        bpe.Tokenizer({0: b"a"}, []).encode("ab")


# ─── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_saved_models_load_again(tokenizer, tmp_path, library):
    tokenizer.save(tmp_path / "new" / "model")
    folder = tmp_path / "new" / "model"
    names = ["merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    loaded = bpe.Tokenizer.load(folder)
    from_two = bpe.Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt", [END])
    for other in (loaded, from_two, bpe.Tokenizer.load(folder / "tokenizer.json"), pickle.loads(pickle.dumps(loaded))):
        assert (other.vocab, other.merges, other.special_tokens) == (
            tokenizer.vocab,
            tokenizer.merges,
            tokenizer.special_tokens,
        )
    loaded.save(tmp_path / "again")
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("pattern", [*bpe.PATTERNS, r"\p{L}+|\s"])
def test_patterns_survive_saving(pattern, tmp_path):
    vocab, merges = bpe.train_bpe_from_counts({b"ab": 1}, 257)
    bpe.Tokenizer(vocab, merges, pattern=pattern).save(tmp_path)
    assert bpe.Tokenizer.load(tmp_path).pattern.text == bpe.Pattern(pattern).text


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
        ({"model__type": "Unigram"}, "not a BPE but 'Unigram'"),
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
        ({"model__merges": [["i", "n"], ["i", "n"]]}, "stands there twice"),
        ({"added_tokens": [{"content": END, "id": 7}]}, "the ids 0 and 7"),
        ({"added_tokens": [{"content": END, "id": 0}] * 2}, "added twice"),
        ({"added_tokens": [{"content": END, "id": 0, "lstrip": "yes"}]}, "odd"),
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
    with pytest.raises(ValueError, match=part):
        bpe.Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "name, data, part",
    [
        ("tokenizer.json", b"[" * 100_000, "neither|not JSON"),
        ("tokenizer.json", b'{"model": ' + b"[" * 100_000, "not JSON"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": ' + b"1" * 5000 + b"}}}", "not JSON"),
        ("tokenizer.json", b'{"model": {}, "model": {}}', "'model' stands there twice"),
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
    pattern = "gpt2" if any(word in part for word in ("twice", "same", "5,000")) else None
    with pytest.raises(ValueError, match=part):
        bpe.Tokenizer.load(tmp_path / name, pattern=pattern)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "LARGEST_FILE", 1 << 20)
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match="1 MB"):
        bpe.Tokenizer.load(tmp_path)


# What a tokenizer.json may say, and what it does to a text.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NO_REGEX = BYTE_LEVEL | {"use_regex": False}


def split_by(text):
    return {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS = [
    BYTE_LEVEL,
    BYTE_LEVEL | {"add_prefix_space": True},
    NO_REGEX,
    NO_REGEX | {"add_prefix_space": True},
    {"type": "Sequence", "pretokenizers": [split_by(bpe.PATTERNS["o200k"]), NO_REGEX]},
    {"type": "Sequence", "pretokenizers": [split_by(r"\p{N}{1,3}"), split_by(r"[一-龥]+|[a-e]+"), BYTE_LEVEL]},
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
    {"type": "Sequence", "pretokenizers": [split_by(r"\s+") | {"pattern": {"String": "th."}}, BYTE_LEVEL]},
]
ADDED = [
    {"content": "<mask>", "lstrip": True},
    {"content": "<r>", "rstrip": True},
    {"content": "<w>", "single_word": True},
    {"content": "<mask", "normalized": True},
    {"content": "th", "single_word": True, "normalized": True, "special": False},
    {"content": "<b>", "lstrip": True, "rstrip": True, "single_word": True},
]
added_texts = st.lists(
    st.sampled_from(
        ["<mask>", "<r>", "<w>", "<mask", "th", "<b>", " ", "  ", "\n", "a", "é", "12345", "the end", END, "."]
    )
).map("".join)


@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS)
@pytest.mark.parametrize("added, ignore_merges", [([], True), (ADDED, False)])
def test_every_kind_of_tokenizer_json_means_what_it_means_there(
    trained, tmp_path_factory, pre_tokenizer, added, ignore_merges
):
    folder = tmp_path_factory.mktemp("kind")
    trained.tokenizer.save(folder)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    data = json.loads((folder / "tokenizer.json").read_text())
    known = data["model"]["vocab"]
    known["th.th.th"] = len(known)  # no merge makes it
    new = itertools.count(len(known))
    data["added_tokens"] += [
        {"id": known[content] if (content := token["content"]) in known else next(new), **flags, **token}
        for token in added
    ]
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    data["model"]["ignore_merges"] = ignore_merges
    data["pre_tokenizer"] = pre_tokenizer
    (folder / "tokenizer.json").write_text(json.dumps(data))
    ours = bpe.Tokenizer.load(folder)
    ours.save(folder / "again", "huggingface")
    again = bpe.Tokenizer.load(folder / "again")
    theirs = [tokenizers.Tokenizer.from_file(str(folder / name)) for name in ("tokenizer.json", "again/tokenizer.json")]

    unpickled = pickle.loads(pickle.dumps(ours))

    @settings(max_examples=30)
    @given(text=added_texts | texts | st.just("th.th.th"))
    def equal(text):
        expected = theirs[0].encode(text).ids
        assert ours.encode(text) == again.encode(text) == theirs[1].encode(text).ids == expected
        assert list(ours.encode_iterable(text)) == expected
        assert unpickled.encode(text) == expected

    equal()
    (folder / "a.txt").write_text("the <mask>  end <r>  th\n12" * 300)
    bpe.encode_files(ours, folder / "a.txt", folder / "a.npy")
    assert np.load(folder / "a.npy").tolist() == theirs[0].encode((folder / "a.txt").read_text()).ids


def test_published_encodings_have_their_tokens():
    ends = [encoding.special_tokens.get(END) for encoding in bpe.ENCODINGS.values()]
    assert ends == [50256, 50256, 50256, 100257, 199999, 199999, None]
    harmony, llama = bpe.ENCODINGS["o200k_harmony"].special_tokens, bpe.ENCODINGS["llama3"].special_tokens
    assert len(harmony) == 1090 and harmony["<|call|>"] == 200012 and harmony["<|reserved_201087|>"] == 201087
    assert len(llama) == 256 and llama["<|reserved_special_token_4|>"] == 128008 and llama["<|eot_id|>"] == 128009
    assert llama["<|reserved_special_token_250|>"] == 128255


def test_rank_files_are_those_of_tiktoken(tokenizer, tmp_path, some_texts):
    strings = [text for text in some_texts if isinstance(text, str)]
    expected = tokenizer.encode_batch(strings)
    tokenizer.save(tmp_path, "tiktoken")
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "tokenizer.tiktoken"))
    theirs = tiktoken.Encoding("t", pat_str=tokenizer.pattern.text, mergeable_ranks=ranks, special_tokens={END: 0})
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


@settings(max_examples=100)
@given(data=words, seed=st.integers(0, 30))
def test_ranks_become_merges_that_mean_the_same(data, seed):
    source = random.Random(seed)
    tokens, _ = random_tokens(source, b"aeti", 40)
    source.shuffle(tokens)
    by_id = bpe.Tokenizer(dict(enumerate(tokens)), None, pattern="none")
    merges, unreached = bpe._merges_of(by_id)
    listed = bpe.Tokenizer(dict(enumerate(tokens)), merges, pattern="none", ignore_merges=bool(unreached))
    assert listed.encode(data) == by_id.encode(data)


@settings(max_examples=100)
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


@pytest.mark.parametrize("at, ids", [("first", [0, 1]), ("after-bytes", [256, 257]), ("last", [298, 299])])
def test_special_tokens_stand_where_they_are_wanted(library, at, ids, tmp_path):
    tokenizer = bpe.train(library[:3], 300, ["<a>", "<b>"], special_tokens_at=at, workers=1).tokenizer
    assert list(tokenizer.special_tokens.values()) == ids
    tokenizer.save(tmp_path)
    text = library[0].read_bytes().decode() + "<a><b>"
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids == tokenizer.encode(text)


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}],
    },
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


def test_chatml_is_what_it_is():
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


def test_a_special_token_that_looks_like_another_is_refused(tmp_path):
    vocab = {b: bytes([b]) for b in range(256)} | {256: b" the"}
    with pytest.raises(ValueError, match="written as 'Ġthe'"):
        bpe.Tokenizer(vocab, [], ["Ġthe"]).save(tmp_path)


def test_a_failed_save_leaves_nothing(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(bpe, "_gpt2_files", lambda tokenizer: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tokenizer.save(tmp_path)
    with pytest.raises(OSError), bpe._replacing(tmp_path / "vocab.json") as file:
        file.write(b"half")
        raise OSError("disk full")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# ─── Training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_training_does_not_depend_on_workers_or_blocks(library, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK", 1 << 15)
    files = [str(path) for path in library[:60]]
    one, two, five = (bpe.train_bpe(files, 1500, [END], workers=n) for n in (1, 2, 5))
    back = bpe.train_bpe(files[::-1], 1500, [END], workers=1)
    assert one == two == five == back


def test_curve_of_tokens_is_the_length_of_the_encoded_text(trained, library):
    encoded = sum(len(trained.tokenizer.encode(path.read_bytes())) for path in library[:200])
    assert trained.merges.tokens[-1] == encoded and trained.merges.tokens[0] == trained.counted.n_bytes


@pytest.mark.parametrize("data", [b"", END.encode() * 3])
def test_no_text_is_refused(tmp_path, data):
    (tmp_path / "empty.txt").write_bytes(data)
    with pytest.raises(ValueError, match=r"no text to learn from in .*empty\.txt"):
        bpe.train_bpe(tmp_path / "empty.txt", 300, [END])


# ─── Corpora ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def corpus(tmp_path, library):
    """Files of every kind, with documents that end in special tokens, in lines, and in files."""
    code = [path.read_bytes().decode() for path in library[:30]]
    (tmp_path / "a.txt").write_text(END.join(code[:20]) + END)
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in [*code[20:], "", f"x{END}"])
    )
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress((END.join(code[:5]) + "no end").encode()))
    (tmp_path / "d.txt").touch()
    (tmp_path / "e.txt").write_bytes(b"\xff bytes \xc3" * 500)
    texts = [code[:20], *([text] for text in code[20:]), [""], ["x"], [*code[:4], code[4] + "no end"]]
    return tmp_path, [*texts, [b"\xff bytes \xc3" * 500]]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("block", [1 << 10, 1 << 16])
def test_token_files_hold_every_document_once(tokenizer, corpus, monkeypatch, workers, block):
    monkeypatch.setattr(bpe, "BLOCK", block)
    folder, texts = corpus
    end = tokenizer.token_to_id(END)
    documents = [[*tokenizer.encode(document), end] for text in texts for document in text]
    found = bpe.encode_files(
        tokenizer, folder, folder / "o.npy", append=END, document_index=folder / "i.npy", workers=workers
    )
    # Without lines of JSON the work is done by threads.
    bpe.encode_files(tokenizer, folder / "*.txt*", folder / "t.npy", append=END, workers=workers)
    by_threads = [[*tokenizer.encode(d), end] for text in [texts[0], *texts[-2:]] for d in text]
    assert np.load(folder / "t.npy").tolist() == list(itertools.chain.from_iterable(by_threads))
    ids, index = np.load(folder / "o.npy", mmap_mode="r"), np.load(folder / "i.npy")
    assert ids.dtype == np.uint16 and index.dtype == np.int64
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(index)] == documents
    assert found == (len(ids), len(documents), found.bytes, "uint16", tokenizer.digest)
    assert found.bytes == len(tokenizer.decode_bytes(ids)) - len(END) * (len(documents) - 20 - 1 - 4)
    assert json.loads((folder / "o.npy.json").read_text()) == found._asdict()


def test_without_an_end_documents_are_texts(tokenizer, corpus):
    folder, texts = corpus
    with ProcessPoolExecutor(2) as pool:
        bpe.encode_files(
            tokenizer, folder, folder / "o.bin", document_index=folder / "i.bin", dtype="uint32", executor=pool
        )
    ids, index = bpe.read_ids(folder / "o.bin"), np.fromfile(folder / "i.bin", np.int64)
    assert ids.dtype == np.uint32 and len(index) == len(texts) + 1
    parts = [tokenizer.decode_bytes(ids[a:b]) for a, b in itertools.pairwise(index)]
    expected = [END.encode().join(d if isinstance(d, bytes) else d.encode() for d in text) for text in texts]
    expected[0] += END.encode()
    expected[-3] += END.encode()
    assert parts == expected


def test_a_larger_vocabulary_takes_larger_numbers(tmp_path):
    vocab = {b: bytes([b]) for b in range(256)} | {70_000: b"the"}
    tokenizer = bpe.Tokenizer(vocab, None)
    (tmp_path / "a.txt").write_text("in the end")
    assert bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "a.npy").dtype == "uint32"
    assert np.load(tmp_path / "a.npy").tolist() == tokenizer.encode("in the end")
    with pytest.raises(ValueError, match="uint16 does not hold the id 70,000"):
        bpe.encode_files(tokenizer, tmp_path / "a.txt", tmp_path / "b.npy", dtype="uint16")
    assert not (tmp_path / "b.npy").exists()


def _die_at_last(tokenizer, last, allowed, text_field, blocks):
    if any(b"die" in text for block in blocks for text in bpe._texts_of(block, text_field)):
        os._exit(1)
    return _encode_blocks(tokenizer, last, allowed, text_field, blocks)


_encode_blocks = bpe._encode_blocks


def test_nothing_is_left_when_a_worker_dies(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "BLOCK", 1000)
    monkeypatch.setattr(bpe, "_encode_blocks", _die_at_last)
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n' * 2000 + '{"text": "die"}\n')
    out = {"out": tmp_path / "o.npy", "document_index": tmp_path / "i.npy"}
    with pytest.raises(ValueError, match="worker process died"):
        bpe.encode_files(tokenizer, tmp_path / "a.jsonl", **out, workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


# ─── Stages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_named_stage_is_profiled(monkeypatch):
    calls = []

    class Profiler:
        start = staticmethod(lambda: calls.append("start"))
        stop = staticmethod(lambda: calls.append("stop"))

    monkeypatch.setattr(bpe, "_scalene", lambda: Profiler)
    monkeypatch.setenv(bpe.PROFILE, "learn")
    seconds = {}
    for name in ("scan", "learn", "save"):
        with bpe.stage(name, seconds):
            calls.append(name)
    assert calls == ["scan", "start", "learn", "stop", "save"] and set(seconds) == {"scan", "learn", "save"}


# ─── Command line ─────────────────────────────────────────────────────────────────────────────────────────────────────


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
    for part in (
        "1,900 bytes in 51 documents",
        "270 tokens, 1 of them special",
        "bytes per token",
        "peak memory",
        "encode",
    ):
        assert part in shown
    assert "scan:" in result.stderr.decode() and "learn:" in result.stderr.decode()
    next_command = shown.splitlines()[-1].replace("python bpe_numba.py", f"{sys.executable} {bpe.__file__}")
    assert subprocess.run(next_command, shell=True, capture_output=True, check=True).stdout.split()


def test_encode_and_decode_are_inverse(model):
    folder, _ = model
    ids = run("encode", folder / "model", folder / "text.txt", "--quiet").stdout
    assert run("decode", folder / "model", "-", stdin=ids).stdout == (folder / "text.txt").read_bytes()
    shown = run("encode", folder / "model", folder / "text.txt", "--out", folder / "ids.npy")
    array = np.load(folder / "ids.npy", mmap_mode="r")
    assert array.dtype == np.uint16 and array.tolist() == list(map(int, ids.split()))
    assert f"{len(array):,} tokens" in shown.stdout.decode()
    assert run("decode", folder / "model", folder / "ids.npy", "--out", folder / "back.txt").returncode == 0
    assert (folder / "back.txt").read_bytes() == (folder / "text.txt").read_bytes()


def test_raw_numbers_come_and_go_through_pipes(model, tmp_path):
    folder, _ = model
    text = (folder / "text.txt").read_bytes()
    raw = run("encode", folder / "model", "-", "--out", "-", "--append", END, stdin=text)
    (tmp_path / "ids.bin").write_bytes(raw.stdout)
    assert raw.returncode == 0 and f"{len(raw.stdout) // 2:,} tokens" in raw.stderr.decode()
    back = run("decode", folder / "model", tmp_path / "ids.bin", "--dtype", "uint16").stdout
    assert back == text + END.encode() and not list(Path.cwd().glob("*-.json"))
    assert_refused(run("decode", folder / "model", tmp_path / "ids.bin"), "ids.bin", "--dtype")


def test_a_full_disk_leaves_nothing(model, tmp_path):
    folder, _ = model
    (tmp_path / "text.txt").write_text("some text, and more of it\n" * 20_000)

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    result = run("encode", folder / "model", "text.txt", "--out", "o.npy", cwd=tmp_path, preexec_fn=small_files)
    assert_refused(result, "o.npy", "File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_killed_run_leaves_nothing_that_looks_finished(model, tmp_path):
    folder, _ = model
    (tmp_path / "0.txt").write_text("some text, and more of it\n" * 200_000)
    for k in range(1, 40):
        os.link(tmp_path / "0.txt", tmp_path / f"{k}.txt")
    command = [sys.executable, bpe.__file__, "encode", folder / "model", tmp_path, "--out", tmp_path / "o.npy"]
    process = subprocess.Popen([*map(str, command), "--workers", "2"], stderr=subprocess.PIPE)
    seen = b""
    while b"B/s" not in seen and process.poll() is None:
        seen += os.read(process.stderr.fileno(), 1000)
    process.kill()
    process.communicate(timeout=60)  # until the workers, too, have closed their standard error
    assert process.returncode < 0
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".npy", ".json")]


@pytest.mark.parametrize("command", ["train", "encode"])
def test_two_interrupts_end_it_with_one_line(model, tmp_path, command):
    folder, _ = model
    (tmp_path / "0.txt").write_text("some text, and more of it\n" * 200_000)
    for k in range(1, 40):
        os.link(tmp_path / "0.txt", tmp_path / f"{k}.txt")
    what = ["train", tmp_path] if command == "train" else ["encode", folder / "model", tmp_path]
    out = ["--out", tmp_path / "o.npy", "--workers", 2]
    process = subprocess.Popen(
        list(map(str, [sys.executable, bpe.__file__, *what, *out])), stderr=subprocess.PIPE, start_new_session=True
    )
    seen = b""
    while b"B/s" not in seen and process.poll() is None:  # until its work has begun
        seen += os.read(process.stderr.fileno(), 1000)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.01)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130 and rest.decode().splitlines()[-1].endswith("interrupted; nothing was written")
    assert not [path for path in tmp_path.iterdir() if path.is_file() and path.suffix != ".txt"]


def test_a_recipe_is_one_command(tmp_path, library):
    lines = [json.dumps({"text": path.read_bytes().decode()}) for path in library[:20]]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    roles = ["--bos-token", tokens[1], "--eos-token", tokens[2], "--pad-token", tokens[0], "--unk-token", tokens[0]]
    special = [word for token in tokens for word in ("--special-token", token)]
    more = ["--vocab-size", 600, "--tie-break", "ids", "--model-max-length", 32768, "--chat-template", "chatml"]
    result = run("train", "data.jsonl", *special, *roles, *more, "--out", "mini", "--quiet", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    theirs = hugging_face_trained([json.loads(line)["text"] for line in lines], 600, tokens)
    ours = json.loads((tmp_path / "mini" / "tokenizer.json").read_text())
    assert ours["model"]["vocab"] == theirs["vocab"]
    config = json.loads((tmp_path / "mini" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>" and config["model_max_length"] == 32768
    assert config["chat_template"] == bpe.CHATML
    mapped = json.loads((tmp_path / "mini" / "special_tokens_map.json").read_text())
    assert mapped == {name: config[name] for name in bpe.ROLES}
    for to in bpe.FORMATS:
        converted = run("convert", "mini", "--to", to, "--out", to, cwd=tmp_path)
        assert converted.returncode == 0 and "600 tokens" in converted.stdout.decode(), converted.stderr
        loaded = bpe.Tokenizer.load(tmp_path / to)
        assert loaded.encode(lines[0] + tokens[1]) == bpe.Tokenizer.load(tmp_path / "mini").encode(lines[0] + tokens[1])
    assert json.loads((tmp_path / "huggingface" / "tokenizer_config.json").read_text()) == config


@pytest.mark.parametrize("wrong", [["--eos-token", "<x>"], ["--chat-template", "chatml"], ["--model-max-length", "0"]])
def test_what_cannot_be_told_is_refused_before_the_training(tmp_path, monkeypatch, capsys, wrong):
    with pytest.raises(ValueError, match="special_tokens_at"):
        bpe.train_bpe(tmp_path, 300, special_tokens_at="second")
    monkeypatch.setattr(bpe, "train", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(bpe.signal, "signal", lambda *_: None)
    assert bpe.main(["train", "--out", str(tmp_path), *wrong]) == 2 and capsys.readouterr().err.count("\n") == 1


def test_standard_input_is_read(model, tmp_path):
    folder, _ = model
    text = (folder / "text.txt").read_bytes()
    lines = "".join(json.dumps({"body": d}) + "\n" for d in text.decode().split(END)).encode()
    options = ("--vocab-size", 270, "--special-token", END, "--quiet")
    assert run("train", "-", "--out", tmp_path / "a", *options, stdin=text).stderr == b""
    assert run("train", "-", "--out", tmp_path / "b", "--text-field", "body", *options, stdin=lines).returncode == 0
    for name in ("a", "b"):
        assert (tmp_path / name / "tokenizer.json").read_bytes() == (folder / "model" / "tokenizer.json").read_bytes()


def test_a_pattern_that_is_not_compiled_is_said_once(model, tmp_path):
    folder, _ = model
    result = run("train", folder / "text.txt", "--pattern", r"(?<!x)\w+|\W", "--out", tmp_path, "--quiet")
    notes = result.stderr.decode().splitlines()
    assert result.returncode == 0 and any("left to the `regex` package" in note for note in notes)
    assert sum("regex" in note for note in notes) == 1 and (tmp_path / "tokenizer.json").exists()


def test_special_tokens_can_be_ordinary_text(model):
    folder, _ = model
    honoured = run("encode", folder / "model", "-", stdin=END.encode()).stdout.split()
    ordinary = run("encode", folder / "model", "-", "--no-special", stdin=END.encode()).stdout.split()
    assert honoured == [b"0"] and len(ordinary) > 1 and b"0" not in ordinary


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (("train", "nowhere.txt"), ["nowhere.txt", "no such file"]),
        (("train", "empty.txt"), ["empty.txt", "no text"]),
        (("train", "folder"), ["folder", ".jsonl"]),
        (("train", "bad.jsonl"), ["bad.jsonl, line 1", "not JSON"]),
        (("train", "text.txt", "--vocab-size", "10"), ["10", "256"]),
        (("train", "text.txt", "--special-token", "<a>", "--special-token", "<a>"), ["'<a>'", "twice"]),
        (("train", "text.txt", "--special-token", ""), ["empty"]),
        (("train", "text.txt", "--pattern", "(["), ["does not compile", "position"]),
        (("train", "text.txt", "--pattern", "gpt5"), ["gpt5", "gpt2, cl100k, o200k"]),
        (("train", "text.txt", "--workers", "0"), ["0 workers"]),
        (("train", "text.txt", "--out", "text.txt"), ["text.txt"]),
        (("train", "text.txt", "--out", "text.txt/model"), ["text.txt"]),
        (("train", "text.txt", "--eos-token", "<x>"), ["eos_token", "'<x>'"]),
        (("train", "text.txt", "--chat-template", "chatml"), ["ChatML", "<|im_start|>"]),
        (("train", "text.txt", "--chat-template", "nowhere.jinja"), ["nowhere.jinja"]),
        (("convert", "model", "--to", "tiktoken", "--out", "text.txt"), ["text.txt"]),
        (("convert", "a.tiktoken", "--to", "gpt2", "--out", "o"), ["a.tiktoken", "--pattern", "cl100k_base"]),
        (("encode", "folder", "text.txt"), ["folder", "no tokenizer.json"]),
        (("encode", "bad.jsonl", "text.txt"), ["bad.jsonl", "not JSON"]),
        (("encode", "model", "text.txt", "--out", "folder"), ["folder"]),
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
def test_bad_input_is_one_clear_line(arguments, parts, model, tmp_path):
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
    before = sorted(tmp_path.rglob("*"))
    assert_refused(run(*arguments, cwd=tmp_path), *parts)
    made = set(tmp_path.rglob("*")) - set(before)
    assert all(path.is_dir() and not list(path.iterdir()) for path in made)


def test_a_closed_pipe_is_no_error(model):
    folder, _ = model
    command = f"{sys.executable} {bpe.__file__} encode {folder}/model {folder}/text.txt --quiet | head -c 10"
    result = subprocess.run(command, shell=True, capture_output=True)
    assert len(result.stdout) == 10 and result.stderr == b""


def test_readme_examples_run(tmp_path):
    readme = Path(bpe.__file__).with_name("README.md").read_text()
    blocks = regex.findall(r"```python\n(.*?)```", readme, regex.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run(
            [sys.executable, "-c", block],
            cwd=tmp_path,
            check=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": str(Path(bpe.__file__).parent)},
        )


# ─── Safety ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_kernels_stay_inside_their_arrays(tmp_path):
    """The tests of the kernels again, with every index checked, and a fresh cache, since a warm one ignores that."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    if os.environ.get("NUMBA_BOUNDSCHECK") == "1":
        pytest.skip("this is that run")
    tests = "oracle or ties_go or grow or past_32 or of_regex or all_cursors or counting or small_cache or survive"
    tests += " or regex_finds"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", tests]
    result = subprocess.run(command, capture_output=True, env=environment, timeout=600, cwd=Path(__file__).parent)
    assert result.returncode == 0, result.stdout.decode()
