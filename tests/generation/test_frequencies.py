"""Drawn texts have the frequencies of their exact distribution, for every filter, also after penalties and bans (B25).

The model is a table: the logits of the next token by the last one. The exact distribution is computed here once more,
in float64 from the definitions, token by token.
"""

import functools

import keras
import numpy as np
import pytest
from scipy import stats

import keras_transformer as kt

SIZE, PROMPT, DRAWS = 6, [2, 0, 3, 2], 20_000
TABLE = np.random.default_rng(5).normal(0.0, 1.3, (SIZE, SIZE)).astype("float32")
ALL_FILTERS = {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.95}


@functools.cache
def model():
    table = keras.layers.Embedding(SIZE, SIZE)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), table])
    table.set_weights([TABLE])
    return model


def normalised(probabilities):
    return probabilities / probabilities.sum()


def kept(order, mass, limit):
    """The first so many of the order: while the mass before one is below the limit; at least one."""
    keep, before = np.zeros(SIZE, bool), 0.0
    for index in order:
        if before < limit or not keep.any():
            keep[index] = True
        before += mass[index]
    return keep


def filtered(logits, options):
    """Probabilities (V,), by the definition of each filter, in the documented order."""
    p = normalised(np.exp(logits / options.get("temperature", 1.0)))
    by_probability = np.argsort(-p)
    if "top_k" in options:
        p = normalised(np.where(np.isin(np.arange(SIZE), by_probability[: options["top_k"]]), p, 0.0))
    if "top_p" in options:
        p = normalised(np.where(kept(by_probability, p, options["top_p"]), p, 0.0))
    if "min_p" in options:
        p = normalised(np.where(p >= options["min_p"] * p.max(), p, 0.0))
    if "typical_p" in options:
        surprise = np.array([-np.log(x) if x > 0 else np.inf for x in p])
        entropy = sum(x * s for x, s in zip(p, surprise) if x > 0)
        p = normalised(np.where(kept(np.argsort(abs(surprise - entropy)), p, options["typical_p"]), p, 0.0))
    return p


def constrained(logits, text, options):
    """Logits (V,) after penalties and bans."""
    logits = logits.astype("float64")
    for token in range(SIZE):
        count = text.count(token)
        if count:
            factor = options.get("repetition_penalty", 1.0)
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
            logits[token] -= options.get("presence_penalty", 0.0) + count * options.get("frequency_penalty", 0.0)
    n = options.get("no_repeat_ngram_size", 0)
    seen = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)} if n else set()
    for token in range(SIZE):
        repeats = n and (*text[len(text) - n + 1 :], token) in seen
        is_bad = any([*text, token][-len(word) :] == word for word in options.get("bad_words_ids", []))
        if repeats or is_bad or token not in options.get("allowed_token_ids", range(SIZE)):
            logits[token] = -np.inf
    return logits


def exact(options, prompt=PROMPT):
    """The probability of each pair of new tokens, (V, V)."""
    joint = np.zeros((SIZE, SIZE))
    first = filtered(constrained(TABLE[prompt[-1]], prompt, options), options)
    for token in range(SIZE):
        if first[token] > 0:
            text = [*prompt, token]
            joint[token] = first[token] * filtered(constrained(TABLE[token], text, options), options)
    return joint


def assert_drawn_from(expected, pairs):
    """Chi-square below its 0.999 quantile; what is impossible is never drawn."""
    counts = np.zeros(expected.shape)
    np.add.at(counts, tuple(np.asarray(pairs).T), 1)
    expected = expected * len(pairs)
    assert (counts[expected == 0] == 0).all()
    likely = expected > 5
    rest = [counts[~likely].sum(), expected[~likely].sum()]  # of which there are too few to look at each
    counts, expected = (np.append(x[likely], r) for x, r in zip((counts, expected), rest))
    statistic = ((counts - expected)[expected > 5] ** 2 / expected[expected > 5]).sum()
    assert statistic < stats.chi2.ppf(0.999, max(1, (expected > 5).sum() - 1))


def draw(prompts=(PROMPT,), draws=DRAWS, tokens=2, **options):
    """New tokens (prompts, draws, tokens)."""
    options = {"sampler": "sample", "seed": 11, "stop_token_id": [], **options}
    texts = kt.generate(model(), list(prompts), tokens, num_return_sequences=draws, **options)
    new = [text[len(prompts[i // draws]) :][:tokens] for i, text in enumerate(texts)]
    return np.reshape(new, (len(prompts), draws, tokens))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.5},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.15},
        {"typical_p": 0.6},
        {"temperature": 1.7, "top_p": 0.8},
        {"top_k": 4, "typical_p": 0.8},
        ALL_FILTERS,
        {"repetition_penalty": 1.8, "presence_penalty": 0.4, "frequency_penalty": 0.3},
        {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2, **ALL_FILTERS},
        {"bad_words_ids": [[3, 2, 1], [4]], "no_repeat_ngram_size": 1, "top_p": 0.9},
        {"allowed_token_ids": [0, 1, 4, 5], "bad_words_ids": [[0, 5]], "min_p": 0.1},
    ],
    ids=str,
)
def test_of_every_filter(options):
    expected = exact(options)
    assert options == {} or abs(expected - exact({})).max() > 0.01  # the option does something to this table
    assert_drawn_from(expected, draw(**options)[0])


def test_of_other_values_in_the_same_compiled_loop():
    for options in ({"top_p": 0.5, "temperature": 0.8}, {"top_p": 0.95, "temperature": 1.9}):
        assert_drawn_from(exact(options), draw(**options)[0])


def test_rows_and_samples_and_steps_are_independent():
    """Equal prompts draw texts that have nothing to do with each other, wherever they stand."""
    rows = draw([PROMPT] * 3, draws=7_000)
    first = exact({}).sum(1)
    for one, other in ((rows[0], rows[1]), (rows[1], rows[2]), (rows[0, :-1], rows[0, 1:])):
        assert_drawn_from(np.outer(first, first), np.stack([one[:, 0], other[:, 0]], axis=1)[::2])
    assert_drawn_from(exact({}), np.concatenate(rows))


def test_a_row_draws_the_same_whatever_stands_beside_it():
    mates = [[1], [5, 5, 5, 1, 0, 0], [4, 3]]
    alone = draw(draws=50, tokens=20)
    assert (draw([PROMPT, *mates], draws=50, tokens=20)[0] == alone[0]).all()
    assert (draw([PROMPT, *mates[::-1]], draws=50, tokens=20, batch_size=1)[0] == alone[0]).all()


def test_a_seed_gives_its_text_and_every_other_call_another():
    same = [draw(draws=3, tokens=30) for _ in range(2)]
    assert (same[0] == same[1]).all()
    others = [draw(draws=3, tokens=30, seed=seed) for seed in (None, None, 12)]
    for i, one in enumerate([same[0], *others]):
        assert all((one != other).any() for other in [same[0], *others][i + 1 :])
    assert len({tuple(text) for rows in [same[0], *others] for text in rows[0].tolist()}) == 12
