"""What the scripts share that train a BERT: the model and its vocabulary, rows of ids as its inputs, words, classes."""

import re

import keras
import numpy as np

import keras_transformer as kt
import reading

WORD = re.compile(r"\w+|[^\w\s]")


def load(path, args, head=None):
    """(model, tokenizer) of a file, with this head or any; `--max-tokens` gives way to the number of its positions.

    A published folder is as good as a file where sentences become vectors.
    """
    if path.is_dir() and head == "sentence_embedding":
        model = kt.convert.load_pretrained(path, head, with_segments=True)
        tokenizer = PublishedTokenizer(kt.convert.load_tokenizer(path))
    else:
        model, tokenizer = kt.data.load_text_model(path)
    card = kt.layers.read_card(model)
    if card.get("family") != "bert" or "segment_ids" not in [x.name for x in model.inputs]:
        raise ValueError(f"{path} holds no BERT with segments, such as masked_lm.py writes")
    if head not in (None, kt.layers.read_head(model).get("head")):
        raise ValueError(f"{path} holds a model for another task. Needed is one with the head {head!r}")
    args.max_tokens = min(args.max_tokens, card["max_sequence_length"])
    return model, tokenizer


class PublishedTokenizer:
    """A published BERT's tokenizer by the names of those that are trained here."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        ids = [tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[PAD]")]
        self.start_token_id, self.stop_token_id, self.pad_token_id = ids

    def encode(self, texts):
        return [found.ids for found in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def start(texts, args):
    """(model, tokenizer) to train: those of `--from`, else new ones, with a vocabulary of the texts and a mask."""
    if getattr(args, "pretrained", None):
        return load(args.pretrained, args)
    tokenizer = kt.data.train_tokenizer(texts, args.vocabulary_size, extra_tokens=1)
    model = kt.models.bert(
        None,
        tokenizer.vocabulary_size,
        args.max_tokens,
        num_layers=args.layers,
        hidden_dim=args.hidden_dim,
        num_heads=args.heads,
        intermediate_dim=4 * args.hidden_dim,
        dropout=args.dropout,
        with_segments=True,
        norm_placement="pre",
    )
    return model, tokenizer


def inputs(rows, tokenizer, length=None):
    """Rows of ids as what the model reads, (N, T) each: what stands behind the first stop token is of segment 1."""
    ids, _ = kt.data.pad_batch(rows, tokenizer.pad_token_id, length)
    stops = ids == tokenizer.stop_token_id
    return {"token_ids": ids, "segment_ids": (np.cumsum(stops, axis=1) > stops).astype("int32")}


def encode(texts, tokenizer, args):
    """Texts as what the model reads; it is said how many are longer than `--max-tokens`."""
    rows, room = tokenizer.encode(texts), args.max_tokens - 2
    if too_long := sum(len(row) > room for row in rows):
        print(f"{too_long:,} of {len(rows):,} texts have more than {room} tokens: their ends are not read")
    rows = [[tokenizer.start_token_id, *row[:room], tokenizer.stop_token_id] for row in rows]
    return inputs(rows, tokenizer)


def encode_words(rows, tokenizer):
    """For each list of words the list of their ids, so that it is known which of them belong to a word."""
    words = sorted({word for row in rows for word in row})
    ids = dict(zip(words, tokenizer.encode(words)))
    return [[ids[word] for word in row] for row in rows]


class NoisyBatches(keras.utils.PyDataset):
    """Batches of rows, in another order in every epoch, of whose tokens a share `--noise` is unknown, each time others.

    A model that cannot rely on any one token learns to use the others, and knows its rows less by heart.
    """

    def __init__(self, inputs, labels, weights, tokenizer, args):
        super().__init__()
        self.inputs, self.labels, self.weights, self.size = inputs, labels, weights, args.batch_size
        self.unknown, self.random = tokenizer.unknown_token_id, np.random.default_rng(args.seed)
        special = [tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.stop_token_id]
        self.noise = args.noise * ~np.isin(inputs["token_ids"], special)
        self.order = self.random.permutation(len(self.noise))

    def __len__(self):
        return max(1, len(self.order) // self.size)  # whole batches: what is left out in one epoch comes in another

    def __getitem__(self, index):
        rows = self.order[index * self.size : (index + 1) * self.size]
        inputs, labels, weights = keras.tree.map_structure(lambda x: x[rows], (self.inputs, self.labels, self.weights))
        is_noise = self.random.random(inputs["token_ids"].shape) < self.noise[rows]
        return {**inputs, "token_ids": np.where(is_noise, self.unknown, inputs["token_ids"])}, labels, weights

    def on_epoch_end(self):
        self.order = self.random.permutation(self.order)


def save(model, tokenizer, path, **settings):
    """Write the model, its tokenizer, and what else has to be known to use it, such as the names of its classes."""
    kt.data.save_text_model(model, tokenizer, path)
    reading.write_settings(path, **settings)
