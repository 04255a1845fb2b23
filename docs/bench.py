#!/usr/bin/env python3
"""Train and encode with bpe_numba and every installed peer, one after another, and print the times.

    python docs/bench.py                                  # the source of Python's standard library
    python docs/bench.py corpus.txt --vocab-size 32000

Training is timed with the text in memory (for bpe_numba: in files that were just read) and with
loaded kernels. All tools encode the first 20 MB in one thread with the tokenizer that was trained
here, and must give the same ids. Each tool does its work twice. The pattern is GPT-2's, and special
tokens are ordinary text.

A second table has the microseconds in which each tool encodes one document, after 1 MB of other
text: a new one, and one that it has had before. The tools take turns.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import time

import numba
import numpy as np

import bpe_numba as bpe

ENCODED_BYTES = 20_000_000  # of the corpus are encoded, since some peers reach only 3 MB/s
DOCUMENT_SIZES = 12, 500, 1_000, 4_000, 20_000  # characters
WARMING_SIZE = 1_000_000  # characters that come before the documents
TURNS = 9

# A function below gets a training and documents in UTF-8. It prepares the work of a tool, and
# returns the function that is timed. This function returns lists: of the merged tokens, or of ids.


def _tokens(merges):
    return [itertools.starmap(bytes.__add__, merges)]


def _train_bpe_numba(training, documents):
    source = training.source
    size = len(training.learned.tokens)
    return lambda: [bpe.learn(bpe.count(source).words, size, tie_break="ids").tokens[256:]]


def _train_gigatoken(training, documents):
    import gigatoken

    separator = f"<|{os.urandom(8).hex()}|>"
    data = separator.encode().join(documents)
    size = len(training.learned.tokens) + 1
    train = gigatoken.gigatoken_rs.train_bpe
    return lambda: _tokens(train(data, size, [separator], separator=separator.encode())[1])


def _train_tokenizers(training, documents):
    import tokenizers

    texts = [*map(bytes.decode, documents)]
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    options = {"show_progress": False, "initial_alphabet": letters}
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=len(training.learned.tokens), **options)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = training.tokenizer.to_huggingface().pre_tokenizer

    def work():
        tokenizer.train_from_iterator(texts, trainer)
        return _tokens(bpe.read_huggingface(json.loads(tokenizer.to_str())).merges)

    return work


def _encode_bpe_numba(training, documents):
    tokenizer = bpe.Tokenizer.from_model(training.tokenizer.model)
    tokenizer.encode_texts([b"one two", b"\xff"])
    return lambda: [tokenizer.encode_texts(documents, "none")[0]]


def _encode_gigatoken(training, documents):
    import gigatoken

    definition = training.tokenizer.to_huggingface().to_str()
    encoder = gigatoken.Tokenizer.from_json(definition).backend
    return lambda: encoder.encode_batch(documents, parallel=False)


def _encode_tokenizers(training, documents):
    encode = training.tokenizer.to_huggingface().encode_batch_fast
    texts = [*map(bytes.decode, documents)]
    # one text, so one thread
    return lambda: [encode([text], add_special_tokens=False)[0].ids for text in texts]


def _encode_tiktoken(training, documents):
    encode = training.tokenizer.to_tiktoken().encode_ordinary_batch
    texts = [*map(bytes.decode, documents)]
    return lambda: encode(texts, num_threads=1)


PEERS = {
    "train": {
        "bpe_numba": _train_bpe_numba,
        "gigatoken": _train_gigatoken,
        "tokenizers": _train_tokenizers,
    },
    "encode": {
        "bpe_numba": _encode_bpe_numba,
        "gigatoken": _encode_gigatoken,
        "tokenizers": _encode_tokenizers,
        "tiktoken": _encode_tiktoken,
    },
}


# A function below gets a tokenizer, and returns a function that encodes one str.


def _document_bpe_numba(tokenizer):
    tokenizer = bpe.Tokenizer.from_model(tokenizer.model)
    return lambda text: tokenizer.encode_to_numpy(text, "none")


def _document_gigatoken(tokenizer):
    import gigatoken

    return gigatoken.Tokenizer.from_json(tokenizer.to_str()).backend.encode


def _document_fastokens(tokenizer):
    import fastokens

    return fastokens.Tokenizer.from_json_str(tokenizer.to_str()).encode


def _document_tokenizers(tokenizer):
    encode = tokenizer.to_huggingface().encode
    return lambda text: encode(text, add_special_tokens=False).ids


def _document_tiktoken(tokenizer):
    return tokenizer.to_tiktoken().encode_ordinary


DOCUMENT_PEERS = {
    "bpe_numba": _document_bpe_numba,
    "gigatoken": _document_gigatoken,
    "fastokens": _document_fastokens,
    "tokenizers": _document_tokenizers,
    "tiktoken": _document_tiktoken,
}


def _name_and_version(tool):
    version = importlib.metadata.version(tool) if tool != "bpe_numba" else bpe.__version__
    return f"{tool} {version}"


def _one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


def _microseconds(encode, documents):
    start = time.perf_counter()
    for document in documents:
        encode(document)
    return (time.perf_counter() - start) / len(documents) * 1e6


def _time_documents(encoders, text):
    """Time the documents of a text; returns the lower quartiles of the turns, by size and tool.

    A result has two numbers, for new documents and for the same ones again. A size is left out if
    the text is too short.
    """
    n_warming = min(WARMING_SIZE, len(text) // 2)
    for encode in encoders.values():
        for start in range(0, n_warming, DOCUMENT_SIZES[-1]):
            encode(text[start : start + DOCUMENT_SIZES[-1]])
    text = text[n_warming:]
    share = len(text) // len(DOCUMENT_SIZES) // TURNS
    times = {}
    for size in DOCUMENT_SIZES:
        n_documents = min(share // size, 100)
        for _ in range(TURNS if n_documents else 0):
            documents = [text[k * size : (k + 1) * size] for k in range(n_documents)]
            text = text[n_documents * size :]
            for tool, encode in encoders.items():
                pair = [_microseconds(encode, documents) for _ in range(2)]
                times.setdefault((size, tool), []).append(pair)
    return {key: np.quantile(pairs, 0.25, axis=0).tolist() for key, pairs in times.items()}


def bench_documents(tokenizer, text):
    """Let all installed tools encode one document after another, in turns: tabulate their times."""
    encoders = {}
    verdicts = {}
    sample = text[: DOCUMENT_SIZES[-1]]
    for tool, prepare in DOCUMENT_PEERS.items():
        if importlib.util.find_spec(tool):
            try:
                encode = prepare(tokenizer)
                is_same = [*encode(sample)] == tokenizer.encode(sample, "none")
                verdicts[tool] = "same" if is_same else "differs"
                encoders[tool] = encode
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of Rust is not an Exception
                verdicts[tool] = _one_line(error)
    times = _time_documents(encoders, text)
    rows = []
    for size in DOCUMENT_SIZES:
        for tool, verdict in verdicts.items():
            new, again = times.get((size, tool), (None, None))
            rows.append((size, _name_and_version(tool), new, again, verdict))
    columns = "characters", "tool", "new, µs", "again, µs", "ids"
    return bpe.Table("one document at a time", columns, rows)


def timed_twice(prepare, training, documents):
    """Do the work of a tool twice; returns the seconds of each time, and the result."""
    work, seconds = prepare(training, documents), []
    for _ in range(2):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return seconds, [*itertools.chain.from_iterable(result)]


def bench(inputs=None, vocab_size=8192):
    """Let all installed tools work in turn, in this process: tabulate the times of two tasks.

    The first table is of the whole corpus, and the second one of single documents.
    """
    training = bpe.train(inputs, vocab_size, tie_break="ids")
    source = training.source
    texts = itertools.chain.from_iterable(map(source.texts, source.blocks()))
    # some peers accept only UTF-8
    documents = [text.decode("utf-8", "replace").encode() for text in texts]
    rows = []
    for job, peers in PEERS.items():
        expected = None
        if job == "encode":
            ends = np.cumsum([len(document) for document in documents])
            documents = documents[: 1 + int(np.searchsorted(ends, ENCODED_BYTES))]
        n_bytes = sum(map(len, documents))
        for tool, prepare in peers.items():
            if not importlib.util.find_spec(tool):
                continue
            first = second = rate = None
            try:
                (first, second), result = timed_twice(prepare, training, documents)
                rate = n_bytes / first / 1e6
                expected = expected or result
                verdict = "same" if result == expected else "differs"
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of Rust is not an Exception
                verdict = _one_line(error)
            rows.append((job, _name_and_version(tool), first, second, rate, verdict))
    size = f"{vocab_size:,} tokens of {training.counted.n_bytes / 1e6:.1f} MB"
    title = f"{size}; {platform.platform()}, Numba {numba.__version__}"
    columns = "job", "tool", "seconds", "second pass", "MB/s", "result"
    text = "".join(document.decode() for document in documents)
    return bpe.Table(title, columns, rows), bench_documents(training.tokenizer, text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", nargs="*", help="files, folders or globs")
    parser.add_argument("--vocab-size", type=int, default=8192, help="number of tokens in all")
    options = parser.parse_args()
    try:
        print(*bench(options.inputs or None, options.vocab_size), sep="\n\n")
    except (bpe.InputError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
