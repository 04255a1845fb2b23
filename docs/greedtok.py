"""GreedTok, a family of tokenizers that are not made by merges.

Lim, Lim, Ho and Zheng, "A Partition Cover Approach to Tokenization" (2025). Each word is a row of
pieces, at first its bytes. Tokens are chosen one after another: always the one that saves the most
pieces of the corpus, if it joins the pieces wherever it fits. A word is cut in the same way: each
token, in the order in which they were chosen, joins the pieces wherever it fits.

    python docs/greedtok.py train corpus.txt --model greedtok --vocab-size 1000
    python docs/greedtok.py encode model corpus.txt
"""

import numpy as np

import bpe_numba
from bpe_numba import Trie, kernel, make_trie, read_vocab, struct, trie_child, vocab_names


@kernel
def fits(start, size, end_of_word, begins):
    """Check whether a token at `start` joins whole pieces; `begins` tells where pieces begin."""
    end = start + size
    return begins[start] and (end == end_of_word or begins[end])


@kernel
def list_places(longest, shorter):
    """List all places of each substring, ascending: those of s are places[first[s] : first[s + 1]].

    longest, shorter  those of `Substrings`
    """
    first = np.zeros(len(shorter) + 1, np.int64)
    for position in range(len(longest)):
        s = longest[position]
        while s >= 0:
            first[s + 1] += 1
            s = shorter[s]
    first = np.cumsum(first)
    places = np.empty(first[-1], np.int64)
    next_place = first.copy()
    for position in range(len(longest)):
        s = longest[position]
        while s >= 0:
            places[next_place[s]] = position
            next_place[s] += 1
            s = shorter[s]
    return first, places


@kernel
def saved_pieces(places, size, begins, word_of, ends, counts):
    """Count the pieces of the corpus that a token would save now."""
    saved = 0
    free = -1  # where the last joined place ends: others that overlap do not count
    for start in places:
        w = word_of[start]
        if start >= free and fits(start, size, ends[w], begins):
            n_pieces = 0
            for k in range(start, start + size):
                n_pieces += begins[k]
            saved += counts[w] * (n_pieces - 1)
            free = start + size
    return saved


@kernel
def choose_tokens(n_tokens, substrings, order, word_of, ends, counts):
    """Choose tokens among the substrings of words, int64[n_tokens] or fewer, in their order.

    substrings   the arrays of `Substrings`
    order        int64[S]: of equally good substrings the one with the least number is chosen
    word_of      int64[N]: the word of each position
    ends         int64[W]: where each word ends
    """
    sizes, shorter, longest = substrings
    first, places = list_places(longest, shorter)
    begins = np.ones(len(longest), np.bool_)
    saved = np.zeros(len(sizes), np.int64)
    changed_at = np.full(len(sizes), -1)  # the last step that changed a word of the substring
    for s in range(len(sizes)):
        saved[s] = saved_pieces(
            places[first[s] : first[s + 1]], sizes[s], begins, word_of, ends, counts
        )
    chosen = np.zeros(n_tokens, np.int64)
    for step in range(n_tokens):
        best = 0
        for s in range(len(sizes)):
            if saved[s] > saved[best] or (saved[s] == saved[best] and order[s] < order[best]):
                best = s
        if saved[best] <= 0:
            return chosen[:step]
        chosen[step] = best
        for start in places[first[best] : first[best + 1]]:
            w = word_of[start]
            if fits(start, sizes[best], ends[w], begins):
                begins[start + 1 : start + sizes[best]] = False
                for k in range(ends[w - 1] if w else 0, ends[w]):
                    s = longest[k]
                    while s >= 0:
                        changed_at[s] = step
                        s = shorter[s]
        for s in range(len(sizes)):
            if changed_at[s] == step:
                mine = places[first[s] : first[s + 1]]
                saved[s] = saved_pieces(mine, sizes[s], begins, word_of, ends, counts)
    return chosen


def learn_greedtok(words, n_symbols, *, longest: int = 16):
    """Choose the tokens that save the most pieces.

    longest  bytes of the longest token
    """
    found = words.substrings(longest, min_count=1)
    spelled = np.array(words.alphabet, object)[words.symbols]
    texts = [
        b"".join(spelled[place : place + size])
        for place, size in zip(found.places, found.sizes, strict=True)
    ]
    order = np.empty(len(texts), np.int64)
    order[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    word_of = np.repeat(np.arange(len(words.counts)), words.sizes)
    chosen = choose_tokens(
        n_symbols - len(words.alphabet),
        (found.sizes, found.shorter, found.longest),
        order,
        word_of,
        words.offsets[1:],
        words.counts,
    )
    return bpe_numba.Learned([*words.alphabet, *map(texts.__getitem__, chosen)], words.alphabet)


ID, START, SIZE = range(3)  # the columns of the tokens that match in a word


@struct
class GreedTokTables:
    trie: Trie


def greedtok_tables(model):
    return GreedTokTables(
        make_trie({token_id: model.vocab[token_id] for token_id in model.ordinary})
    )


@kernel
def segment_greedtok(text, start, size, tables, memory, ids, at):
    edges = tables.trie.edges
    values = tables.trie.values
    matches = np.empty((size * (size + 1) // 2, 3), np.int64)
    pieces = np.full(size, -1)  # the id of the piece that begins at each byte
    n = 0
    for k in range(size):
        node = 0
        end = k
        while node >= 0 and end < size:
            node = trie_child(node, text[start + end], edges)
            end += 1
            if node >= 0 and values[node] >= 0:
                if end == k + 1:
                    pieces[k] = values[node]
                else:
                    matches[n, ID] = values[node]
                    matches[n, START] = k
                    matches[n, SIZE] = end - k
                    n += 1
        if pieces[k] < 0:  # the byte is no token
            return -1
    begins = np.ones(size, np.bool_)
    for m in np.argsort(matches[:n, ID] * size + matches[:n, START]):
        k = matches[m, START]
        end = k + matches[m, SIZE]
        if fits(k, matches[m, SIZE], size, begins):
            begins[k + 1 : end] = False
            pieces[k] = matches[m, ID]
    n_ids = 0
    for k in range(size):
        if begins[k]:
            ids[at + n_ids] = pieces[k]
            n_ids += 1
    return n_ids


def write_greedtok(model):
    return {"type": "GreedTok", "vocab": vocab_names(model)}


def read_greedtok(data, added, alphabet):
    return {"vocab": read_vocab(data["vocab"], alphabet, added), "merges": None}


bpe_numba.KINDS["greedtok"] = bpe_numba.Kind(
    greedtok_tables, GreedTokTables, segment_greedtok, write_greedtok, read_greedtok
)
bpe_numba.FAMILIES["greedtok"] = bpe_numba.Family("greedtok", "bytes", "gpt2", learn_greedtok)

if __name__ == "__main__":
    bpe_numba.run()
