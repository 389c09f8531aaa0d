"""Beam search over a table of all texts, written down step by step in plain Python."""

import collections
import itertools

import numpy as np

from tests.backend import predict


def table(model, prompt, size, length, source=None):
    """`text -> log-probabilities (V,) of the next token` for all texts of less than `length` tokens, in float64."""
    texts = list(itertools.product(range(size), repeat=length))
    inputs = np.asarray([[*prompt, *text] for text in texts])
    if source is not None:
        inputs = {"encoder_token_ids": np.asarray([source] * len(texts)), "decoder_token_ids": inputs}
    logits = predict(model, inputs).astype("float64")[:, len(prompt) - 1 : -1]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return {text[:n]: rows[n] for text, rows in zip(texts, log_probs, strict=True) for n in range(length)}


def all_texts(log_probs, size, length, stop, length_penalty, worth=lambda text: 0.0):
    """`(score, text)`, the best first, of all texts that end with a stop token or are of full length."""
    found = {}
    for text in itertools.product(range(size), repeat=length):
        end = next((n for n in range(1, length + 1) if text[n - 1] in stop), length)
        text = text[:end]
        total = sum(log_probs[text[:n]][text[n]] for n in range(end))
        found[text] = total / end**length_penalty + worth(text)
    return sorted(((score, text) for text, score in found.items()), reverse=True)


def beam_search(
    log_probs,
    length,
    num_beams,
    stop=(),
    length_penalty=1.0,
    early_stopping=False,
    num_groups=1,
    diversity_penalty=0.0,
    worth=lambda text: 0.0,
):
    """`(score, text)`, the best first; `worth` is what is added to the score of a text, finished or not."""
    size = num_beams // num_groups
    groups = [{"running": [(0.0, ())], "finished": []} for _ in range(num_groups)]
    for step in range(1, length + 1):
        count = collections.Counter()
        for group in (group for group in groups if group["running"]):
            candidates = [
                (total + log_prob - diversity_penalty * count[token], (*text, token))
                for total, text in group["running"]
                for token, log_prob in enumerate(log_probs[text])
            ]

            def score(candidate, step=step):
                return candidate[0] / step**length_penalty + worth(candidate[1])

            candidates.sort(key=score, reverse=True)
            ends = [text[-1] in stop or step == length for _, text in candidates]
            new = [(score(x), x[1]) for x, end in zip(candidates[:size], ends[:size], strict=True) if end]
            finished = sorted(group["finished"] + new, reverse=True)[:size]
            running = [(total, text) for total, text in candidates if text[-1] not in stop][:size]
            count.update(text[-1] for _, text in running)
            if len(finished) == size and running:
                best = score(running[0])
                if early_stopping == "never":
                    longest = length if length_penalty > 0 else step
                    best = max(total for total, _ in running) / longest**length_penalty
                if early_stopping is True or best <= finished[-1][0]:
                    running = []
            group |= {"running": running, "finished": finished}
    return sorted((found for group in groups for found in group["finished"]), reverse=True)


def new_texts(result, prompt_lengths):
    """The new tokens of each result as tuples; the lengths of their prompts may be one for all."""
    fronts = np.broadcast_to(prompt_lengths, len(result["lengths"]))
    rows = zip(result["token_ids"], fronts, result["lengths"], strict=True)
    return [tuple(row[front : front + count].tolist()) for row, front, count in rows]
