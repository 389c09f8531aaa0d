"""A head for a task, on any model of states."""

import keras

from keras_transformer import layers
from keras_transformer.arguments import check_size
from keras_transformer.layers.activations import get_activation
from keras_transformer.layers.common import check_choice, check_rate, derived_seed
from keras_transformer.layers.model_card import HeadCard
from keras_transformer.models.states import find_states

WITH_CLASSES = ("sequence_classification", "token_classification", "image_classification")
HEADS = ("language_model", "masked_lm", "next_sentence", "pretraining", *WITH_CLASSES, "regression")
HEADS += ("question_answering", "sentence_embedding")
POOLINGS = ("pooler", "stop_token", "mean", "max", "first", "last")
MASKED_POSITIONS = "masked_positions"
POOLED = ("sequence_classification", "regression", "sentence_embedding", "image_classification")


def with_head(
    backbone,
    head,
    num_classes=None,
    dropout=0.1,
    pooling=None,
    tie=None,
    masked_positions=False,
    mask_question=False,
    states=None,
    seed=None,
    dtype=None,
    name=None,
):
    """A model with a head for a task, on the states of another one, whose own head, if it has one, is left off.

    | head | output | layers with weights, from the states on |
    | --- | --- | --- |
    | `"language_model"` | (B, T, V) | the token table, or `logits` |
    | `"masked_lm"` | (B, T, V), or (B, P, V) | `masked_lm_dense`, `masked_lm_norm`, the token table, `masked_lm_bias` |
    | `"next_sentence"` | (B, 2), the first one is "follows" | `pooler`, `next_sentence` |
    | `"pretraining"` | `{"masked_lm": ..., "next_sentence": ...}` | those of both |
    | `"sequence_classification"` | (B, num_classes) | see `pooling`; `classifier` |
    | `"regression"` | (B, num_classes), 1 unless given | the same |
    | `"token_classification"` | (B, T, num_classes) | `classifier` |
    | `"question_answering"` | `{"start": (B, T), "end": (B, T)}` | `span` |
    | `"sentence_embedding"` | (B, D) of length 1 | see `pooling` |
    | `"image_classification"` | (B, num_classes) | `logits` |

    All outputs are float32, classes and tokens are logits, and padding counts nowhere. The layers are wired as in
    `transformers`' models for these tasks, so that their weights fit. Of an encoder-decoder the tokens are those of the
    target; for those of the source give `encoder_from_ids(model)`.

    The layers below the head are shared with `backbone`, not copied: both models have the same weights, bit for bit,
    and training one trains the other. `keras.models.clone_model(model)` and `set_weights` make one of its own. Only
    what the new head reads stays: the pooler of a BERT, for instance, is not in a model that tags tokens.

    Args:
        backbone: a model of `kt.models`, one that `with_head` made, or any functional or Sequential model whose output
            is (B, T, D), or comes from such states by a head.
        head: one of the above.
        num_classes: C, for the heads that need it; for an untied `"language_model"` or `"masked_lm"` the size of the
            vocabulary, if the model has no token table.
        dropout: rate on what the classifier, or the regression, reads.
        pooling: what becomes of the tokens where one vector is needed. `"mean"`, `"max"`, the `"first"` real token
            (BERT's `[CLS]`) or the `"last"`; `"pooler"`, a dense layer with tanh on the first one, which is the
            backbone's own if it has one; `"stop_token"`, the state where the source's last stop token stands (give
            BART its source, shifted by `kt.shift_right`, as the target, as published). None: `"mean"` for sentence
            embeddings, else as in the family: `"pooler"` for BERT, `"stop_token"` for encoder-decoders, the
            image's own for `vit`, `"last"` where decoder blocks are, and `"mean"` for any other encoder. Classifiers on
            encoder-decoders have a dense layer with tanh, `classifier_dense`, in front, and those on decoders no bias.
        tie: whether the token table makes the logits of a language model; None: as the backbone has it, else True.
        masked_positions: whether a masked language model has an input `masked_positions`, int (B, P), the places that
            become logits, with -1 for none.
        mask_question: whether no answer may lie in segment 0, but for its first token, which stands for no answer.
        states: name of the layer whose output the states are, where they cannot be told from a head.
        seed: seed of the dropouts.
        dtype: dtype or policy of the head's inner layers; None: that of the backbone's blocks.
        name: name of the model; None: that of the backbone.

    Returns:
        A `keras.Model` from the backbone's inputs to the above.

    Raises:
        ValueError: the head is not known, lacks its classes, has some that it does not take, or does not fit.

    Example:

    >>> bert = keras_transformer.models.bert("tiny", vocabulary_size=100)
    >>> tagger = with_head(bert, "token_classification", num_classes=9)
    >>> tagger.output_shape
    (None, None, 9)
    >>> sorted(with_head(tagger, "question_answering").output)
    ['end', 'start']
    """
    check_choice(HEADS, head=head)
    check_rate(dropout=dropout)
    if head in WITH_CLASSES or num_classes is not None:
        check_size(num_classes=num_classes)
    if num_classes is not None and head not in (*WITH_CLASSES, "regression", "language_model", "masked_lm"):
        raise ValueError(f"`num_classes` does not belong to head={head!r}. Received: num_classes={num_classes}")
    only = {"pooling": (pooling, POOLED), "tie": (tie, ("language_model", "masked_lm", "pretraining"))}
    only |= {"masked_positions": (masked_positions, ("masked_lm", "pretraining"))}
    only |= {"mask_question": (mask_question, ("question_answering",))}
    for argument, (value, heads) in only.items():
        if value and head not in heads:
            raise ValueError(f"`{argument}` does not belong to head={head!r}. Received: {argument}={value!r}")

    card = {"head": head, "num_classes": num_classes, "dropout": dropout, "pooling": pooling, "tie": tie}
    card |= {"masked_positions": masked_positions, "mask_question": mask_question}
    builder = _Head(backbone, find_states(backbone, states), card, seed, dtype)
    output = getattr(builder, head)()
    return keras.Model(builder.inputs, output, name=name or backbone.name)


class _Head:
    """One head in the making; its methods are the heads, and give the outputs."""

    def __init__(self, backbone, states, card, seed, dtype):
        self.backbone, self.family = backbone, layers.read_card(backbone)
        inputs = backbone.input if hasattr(backbone, "operations") else backbone.inputs[0]  # of a Sequential one
        self.inputs = _without(inputs, MASKED_POSITIONS)
        self.by_name = {tensor.name: tensor for tensor in backbone.inputs}
        self.encoder_decoder = {"encoder_token_ids", "decoder_token_ids"} <= set(self.by_name)
        self.seed, self.dtype = seed, dtype or _policy(backbone)
        if card["head"] in POOLED:
            card["pooling"] = card["pooling"] or self.default_pooling(card["head"])
            check_choice(POOLINGS, pooling=card["pooling"])
        if card["head"] == "regression":
            card["num_classes"] = card["num_classes"] or 1
        self.card = card
        self.states = HeadCard(card, name="head_card")(states)
        if self.encoder_decoder and self.family.get("family") == "t5" and card["head"] != "language_model":
            is_scaled = self.family["tie_embeddings"] and self.family.get("scale_logits", True)
            self.states = self.unscaled(self.states) if is_scaled else self.states

    # what heads are made of

    def dense(self, units, name, x, **options):
        return keras.layers.Dense(units, name=name, **{"dtype": "float32", **options})(x)

    def dropped(self, x, name="classifier_dropout"):
        rate = self.card["dropout"]
        options = {"seed": derived_seed(self.seed, name), "dtype": self.dtype, "name": name}
        return keras.layers.Dropout(rate, **options)(x) if rate else x

    def unscaled(self, x):
        """T5 divides what its token table is to read by sqrt(D), which no other head wants."""
        options = {"scale": x.shape[-1] ** 0.5, "dtype": self.dtype, "name": "states_scale"}
        return layers.PositionalEmbedding(None, x.shape[-1], position=None, **options)(x)

    def has_layer(self, *kinds):
        return next((layer for layer in self.backbone.layers if isinstance(layer, kinds)), None)

    @property
    def is_decoder(self):
        return not self.encoder_decoder and self.has_layer(layers.DecoderBlock, layers.Recurrent) is not None

    @property
    def is_bert(self):
        return self.family.get("family") == "bert" or self.has_layer(layers.Pooler) is not None

    def default_pooling(self, head):
        if self.family.get("family") == "vit":
            return {"class_token": "first", "mean": "mean"}[self.family["pooling"]]
        if head == "sentence_embedding":
            return "mean"
        if self.encoder_decoder:
            return "stop_token" if self.family.get("stop_token_id") is not None else "last"
        return "pooler" if self.is_bert else "last" if self.is_decoder else "mean"

    def pooled(self, pooling):
        if pooling == "pooler":
            own = self.has_layer(layers.Pooler)
            if own is None:
                activation = self.family.get("pooler_activation", "tanh")
                own = layers.Pooler(self.states.shape[-1], activation, dtype=self.dtype, name="pooler")
            return own(self.states)
        if pooling == "stop_token":
            stop = self.family.get("stop_token_id")
            if not self.encoder_decoder or stop is None:
                raise ValueError(
                    '`pooling="stop_token"` needs an encoder-decoder whose card knows its `stop_token_id`. '
                    f"Received: inputs {list(self.by_name)}, stop_token_id={stop!r}"
                )
            source = self.by_name["encoder_token_ids"]
            return layers.StateAtToken(stop, dtype=self.dtype, name="pooling")([self.states, source])
        return layers.SequencePooling(pooling, dtype=self.dtype, name="pooling")(self.states)

    def to_vocabulary(self, x, name, bias_name=None):
        """Logits by the token table, with a bias of their own, or by a matrix of their own."""
        tie = self.family.get("tie_embeddings", self.family.get("share_embeddings", True) is not None)
        tie = bool(tie) if self.card["tie"] is None else self.card["tie"]
        table = _token_table(self.backbone, self.states.shape[-1])
        if not tie:
            size = self.card["num_classes"] or (table and table.vocabulary_size)
            check_size(num_classes=size)
            return self.dense(size, name, x, use_bias=bias_name is not None)
        if table is None:
            raise ValueError(
                f"{self.backbone.name} has no token table of {self.states.shape[-1]} features among its layers to "
                "make logits with. Give `tie=False` and `num_classes=`, the size of the vocabulary."
            )
        if self.card["num_classes"] not in (None, table.vocabulary_size):
            raise ValueError(
                f"A tied head has a logit for each of the {table.vocabulary_size} rows of the token table. "
                f"Give `tie=False` for another number. Received: num_classes={self.card['num_classes']}"
            )
        x = table(x, reverse=True)
        return layers.AddBias(name=bias_name)(x) if bias_name else x

    # the heads

    def language_model(self):
        logits = self.to_vocabulary(self.states, "logits")
        cap = self.family.get("logits_soft_cap")
        return layers.SoftCap(cap, name="soft_cap")(logits) if cap else logits

    def masked_lm(self):
        x = self.states
        if self.card["masked_positions"]:
            places = keras.Input((None,), dtype="int32", name=MASKED_POSITIONS)
            self.inputs = _with_input(self.inputs, places)
            x = layers.TokensAt(dtype=self.dtype, name="masked_tokens")([x, places])
        activation, epsilon = _style(self.backbone)
        x = self.dense(x.shape[-1], "masked_lm_dense", x, activation=activation, dtype=self.dtype)
        x = keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype, name="masked_lm_norm")(x)
        return self.to_vocabulary(x, "masked_lm_logits", "masked_lm_bias")

    def next_sentence(self):
        return self.dense(2, "next_sentence", self.pooled("pooler"))

    def pretraining(self):
        return {"masked_lm": self.masked_lm(), "next_sentence": self.next_sentence()}

    def sequence_classification(self):
        x = self.dropped(self.pooled(self.card["pooling"]))
        if self.encoder_decoder:
            x = self.dense(x.shape[-1], "classifier_dense", x, activation="tanh", dtype=self.dtype)
            x = self.dropped(x, "classifier_dense_dropout")
        return self.dense(self.card["num_classes"], "classifier", x, use_bias=not self.is_decoder)

    regression = sequence_classification

    def token_classification(self):
        return self.dense(self.card["num_classes"], "classifier", self.dropped(self.states))

    def question_answering(self):
        segments, mask_question = self.by_name.get("segment_ids"), self.card["mask_question"]
        if mask_question and segments is None:
            raise ValueError(
                "`mask_question=True` needs a model with an input `segment_ids`, such as `bert(with_segments=True)`. "
                f"Received: inputs {list(self.by_name)}"
            )
        x = self.dense(2, "span", self.states)
        start, end = layers.SpanLogits(name="span_logits")(x, *([segments] if mask_question else []))
        return {"start": start, "end": end}

    def sentence_embedding(self):
        return keras.layers.UnitNormalization(dtype="float32", name="unit_length")(self.pooled(self.card["pooling"]))

    def image_classification(self):
        return self.dense(self.card["num_classes"], "logits", self.dropped(self.pooled(self.card["pooling"])))


def _without(inputs, name):
    """The inputs but the one of that name, which belongs to a head that is left off."""
    if isinstance(inputs, dict) and name in inputs:
        inputs = {key: tensor for key, tensor in inputs.items() if key != name}
        return inputs if len(inputs) > 1 else next(iter(inputs.values()))
    return [x for x in inputs if x.name != name] if isinstance(inputs, (list, tuple)) else inputs


def _with_input(inputs, more):
    """The backbone's inputs and another one."""
    if isinstance(inputs, (list, tuple)):
        return [*inputs, more]
    named = inputs if isinstance(inputs, dict) else {inputs.name: inputs}
    return {**named, more.name: more}


def _blocks(model):
    for layer in model.layers:
        if isinstance(layer, (layers.EncoderBlock, layers.DecoderBlock)):
            yield layer
        elif isinstance(layer, keras.Model):
            yield from _blocks(layer)


def _policy(model):
    """The dtype policy of a model's blocks, else Keras' own."""
    return next((block.dtype_policy for block in _blocks(model)), None)


def _style(model):
    """The activation and the epsilon of norms that a model's blocks have."""
    for block in _blocks(model):
        activation = getattr(block.feed_forward, "activation", None)
        if activation is not None:
            return activation, getattr(block, "norm_epsilon", 1e-12)
    return get_activation("gelu"), 1e-12


def _token_table(model, hidden_dim):
    """The layer whose table makes logits: the target's, if there are two."""
    tables = [x for x in model.layers if isinstance(x, layers.PositionalEmbedding) and x.vocabulary_size]
    tables = [table for table in tables if table.hidden_dim == hidden_dim]
    of_target = [table for table in tables if table.name == "target_embedding"]
    return next(iter(of_target or tables), None)
