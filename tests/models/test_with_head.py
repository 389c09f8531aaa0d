"""Heads on the families and on a user's own models; those of `transformers` with the same weights; and spans."""

import functools
import itertools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import torch
import transformers

import keras_transformer as kt
from keras_transformer.convert import bart, bert, gpt2, llama, t5
from keras_transformer.convert.rows import LINEAR, Row, dense, layer_norm, under
from keras_transformer.models.with_head import HEADS
from tests import reference
from tests.backend import numpy, predict, weight_gradients
from tests.models.encoder_decoders import copied, randomized
from tests.models.published import BERT, GPT_2, SIZES

V, D = 20, 8
TINY = {"num_layers": 1, "hidden_dim": D, "num_heads": 2, "intermediate_dim": 12}
CLASSES = {head: {"num_classes": 3} for head in HEADS if head.endswith("classification")}
IDS = np.array([[5, 6, 7, 8, 9], [5, 4, 2, 3, 6]])
HEAD_WEIGHTS = {
    "language_model": [],
    "masked_lm": [
        ("masked_lm_dense/kernel", (D, D)),
        ("masked_lm_dense/bias", (D,)),
        ("masked_lm_norm/gamma", (D,)),
        ("masked_lm_norm/beta", (D,)),
        ("masked_lm_bias/bias", (V,)),
    ],
    "next_sentence": [
        ("pooler/dense/kernel", (D, D)),
        ("pooler/dense/bias", (D,)),
        ("next_sentence/kernel", (D, 2)),
        ("next_sentence/bias", (2,)),
    ],
    "sequence_classification": [
        ("pooler/dense/kernel", (D, D)),
        ("pooler/dense/bias", (D,)),
        ("classifier/kernel", (D, 3)),
        ("classifier/bias", (3,)),
    ],
    "token_classification": [("classifier/kernel", (D, 3)), ("classifier/bias", (3,))],
    "question_answering": [("span/kernel", (D, 2)), ("span/bias", (2,))],
    "sentence_embedding": [],
}
HEAD_WEIGHTS["pretraining"] = HEAD_WEIGHTS["masked_lm"] + HEAD_WEIGHTS["next_sentence"]
HEAD_WEIGHTS["regression"] = HEAD_WEIGHTS["sequence_classification"][:2] + [
    ("classifier/kernel", (D, 1)),
    ("classifier/bias", (1,)),
]
HEAD_WEIGHTS["image_classification"] = HEAD_WEIGHTS["sequence_classification"][:2] + [
    ("logits/kernel", (D, 3)),
    ("logits/bias", (3,)),
]
SHAPES = {
    "language_model": (2, 5, V),
    "masked_lm": (2, 5, V),
    "next_sentence": (2, 2),
    "pretraining": {"masked_lm": (2, 5, V), "next_sentence": (2, 2)},
    "regression": (2, 1),
    "sequence_classification": (2, 3),
    "image_classification": (2, 3),
    "token_classification": (2, 5, 3),
    "question_answering": {"start": (2, 5), "end": (2, 5)},
    "sentence_embedding": (2, D),
}


def backbone(family="bert"):
    """A random model, built once; nothing here may change it."""
    return make_backbone(family)


@functools.cache
def make_backbone(family):
    sizes = {**TINY, "vocabulary_size": V}
    if family == "vit":
        model = kt.models.vit(None, 3, (4, 8), patch_size=4, **TINY)
    elif family == "llama":
        model = kt.models.llama(None, **sizes, pad_token_id=0, num_key_value_heads=1, tie_embeddings=False)
    elif family in ("t5", "bart"):
        special = {"pad_token_id": 0, "start_token_id": 1, "stop_token_id": 2}
        own = {"max_sequence_length": 9} if family == "bart" else {"relative_buckets": 8}
        model = getattr(kt.models, family)("tiny", **sizes, **special, **own)
    else:
        model = getattr(kt.models, family)(None, **sizes, max_sequence_length=9, pad_token_id=0)
    reference.randomize(model)
    return model


def own_weights(model, family):
    below = set(map(id, backbone(family).weights))
    return [weight for weight in model.weights if id(weight) not in below]


@functools.cache
def headed(head, family="bert", **options):
    model = kt.models.with_head(backbone(family), head, **CLASSES.get(head, {}), **options)
    own = own_weights(model, family)
    for seed, weight in enumerate(own):
        if "seed" not in weight.path:
            weight.assign(np.random.default_rng(seed).normal(weight.name in ("gamma", "scale"), 0.5, weight.shape))
    return model


def mapped(function, *outputs):
    return keras.tree.map_structure(function, *outputs)


@pytest.mark.parametrize("head", HEADS)
def test_outputs_and_variables(head):
    """The paths are what checkpoints and users name weights by."""
    outputs = predict(headed(head), IDS)
    assert mapped(lambda x: x.shape, outputs) == SHAPES[head]
    assert {x.dtype.name for x in keras.tree.flatten(outputs)} == {"float32"}
    paths = [(w.path, tuple(w.shape)) for w in headed(head).weights if "seed_generator" not in w.path]
    below = [(w.path, tuple(w.shape)) for w in backbone().weights if "seed" not in w.path and "pooler" not in w.path]
    assert sorted(paths) == sorted(below + HEAD_WEIGHTS[head])
    assert kt.layers.read_head(headed(head))["head"] == head
    assert kt.layers.read_card(headed(head)) == kt.layers.read_card(backbone())
    assert isinstance(headed(head).layers[1], kt.layers.ModelCard)


@pytest.mark.parametrize("head", HEADS)
def test_padding_on_either_side_changes_nothing(head):
    expected = predict(headed(head), IDS)
    for before, after in ((0, 2), (2, 0), (1, 1)):
        found = predict(headed(head), np.pad(IDS, ((0, 0), (before, after))))

        def of_text(x, before=before):
            return x[:, before : before + 5] if x.ndim == 3 or x.shape[1] == 7 else x

        mapped(lambda x, y: np.testing.assert_allclose(of_text(x), y, atol=1e-5), found, expected)
        if head == "question_answering":
            hidden = mapped(lambda x, n=before: np.delete(x, range(n, n + 5), axis=1).max(), found)
            assert hidden["start"] == hidden["end"] == -1e9


def assert_gradients(model, inputs):
    inputs = mapped(keras.ops.convert_to_tensor, inputs)

    def loss():
        return sum(
            keras.ops.sum(keras.ops.square(x - 0.1 * keras.ops.sin(keras.ops.cumsum(keras.ops.ones_like(x), -1))))
            for x in keras.tree.flatten(model(inputs))
        )

    found = weight_gradients(model, loss)
    assert [path for path, gradient in found.items() if not np.abs(gradient).max() > 0] == []


@pytest.mark.parametrize("head", ["pretraining", "sequence_classification", "question_answering"])
def test_every_weight_learns(head):
    assert_gradients(headed(head), IDS)


@pytest.mark.parametrize(
    "family, head, pooling",
    [
        ("gpt", "sequence_classification", "last"),
        ("llama", "regression", "last"),
        ("t5", "sequence_classification", "stop_token"),
        ("bart", "regression", "stop_token"),
        ("vit", "image_classification", "first"),
    ],
)
def test_every_family(family, head, pooling):
    """Pooled as in the family, and padded on either side, or on the right for encoder-decoders, to the same."""
    model = headed(head, family)
    assert kt.layers.read_head(model)["pooling"] == pooling
    own = [w.path for w in own_weights(model, family) if "seed" not in w.path]
    expected = {"gpt": ["kernel"], "llama": ["kernel"]}.get(family, ["kernel", "bias"])
    name = "logits" if family == "vit" else "classifier"
    assert own[-len(expected) :] == [f"{name}/{kind}" for kind in expected]
    inputs = [IDS, IDS[:, [0, 0, 1, 2, 3]]] if family in ("t5", "bart") else IDS
    if family == "vit":
        inputs = np.random.default_rng(0).normal(size=(2, 4, 8, 3)).astype("float32")
    if family not in ("llama", "bart"):  # whose heads are those of the other two
        assert_gradients(model, inputs)
    if family == "vit":
        return
    outputs = predict(model, inputs)
    assert np.abs(outputs).max() > 1e-2
    for sides in ((0, 2), (2, 0))[: 1 if family in ("t5", "bart") else 2]:
        padded = mapped(lambda x, sides=sides: np.pad(x, ((0, 0), sides)), inputs)
        np.testing.assert_allclose(predict(model, padded), outputs, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt", "llama", "t5", "bart"])
def test_a_language_model_comes_back(family):
    """Another head and back: the same layers, the same numbers, and texts are written as before."""
    first = backbone(family)
    before = [numpy(w) for w in first.weights]
    other = kt.models.with_head(first, "token_classification", num_classes=3)
    again = kt.models.with_head(other, "language_model")
    if family == "llama":  # the matrix of its own is gone with the first head
        assert again.count_params() == first.count_params()
        again.get_layer("logits").kernel.assign(first.get_layer("logits").kernel)
    else:
        assert set(map(id, again.weights)) == set(map(id, first.weights))
    assert all((numpy(w) == x).all() for w, x in zip(first.weights, before, strict=True))
    inputs = [IDS, IDS] if family in ("t5", "bart") else IDS
    np.testing.assert_array_equal(predict(again, inputs), predict(first, inputs))
    assert other.count_params() == again.count_params() + 3 * D + 3 - (V * D if family == "llama" else 0)


def test_a_head_on_an_encoder_alone():
    encoder = kt.models.encoder_from_ids(backbone("t5"))
    tagger = kt.models.with_head(encoder, "token_classification", num_classes=3)
    kernel, bias = tagger.get_layer("classifier").get_weights()
    np.testing.assert_allclose(predict(tagger, IDS), predict(encoder, IDS) @ kernel + bias, atol=1e-5)


def test_writing_goes_on_with_a_new_head():
    """The halves that `generate` cuts an encoder-decoder into are the same."""
    other = kt.models.with_head(backbone("bart"), "token_classification", num_classes=3)
    again = kt.models.with_head(other, "language_model")
    states = predict(kt.models.encoder_from_ids(again), IDS)
    logits = predict(kt.models.decoder_from_ids(again), {"decoder_token_ids": IDS, "encoder_states": states})
    np.testing.assert_allclose(logits, predict(backbone("bart"), [IDS, IDS]), atol=1e-5)


def test_weights_below_are_shared_and_clones_have_their_own():
    first = headed("masked_lm")
    second = kt.models.with_head(first, "sequence_classification", num_classes=2)
    shared = [layer for layer in first.layers if layer in second.layers and layer.weights]
    assert [layer.name for layer in shared] == [
        "embedding",
        "segment_embedding",
        "embedding_norm",
        "encoder_block_0",
    ]
    clone = keras.models.clone_model(second)
    clone.set_weights(second.get_weights())
    np.testing.assert_array_equal(predict(clone, IDS), predict(second, IDS))
    assert not set(map(id, clone.weights)) & set(map(id, second.weights))
    kept = kt.models.with_head(headed("pretraining"), "next_sentence")
    assert kept.get_layer("pooler") is backbone().get_layer("pooler")
    np.testing.assert_array_equal(predict(kept, IDS).shape, (2, 2))


def test_some_places_of_a_masked_language_model():
    model = headed("masked_lm", masked_positions=True)
    places = np.array([[1, 3], [4, -1]])
    found = predict(model, {"token_ids": IDS, "masked_positions": places})
    other = headed("masked_lm")
    for layer in ("masked_lm_dense", "masked_lm_norm", "masked_lm_bias"):
        other.get_layer(layer).set_weights(model.get_layer(layer).get_weights())
    expected = predict(other, IDS)
    np.testing.assert_allclose(found[0], expected[0, [1, 3]], atol=1e-5)
    np.testing.assert_allclose(found[1, 0], expected[1, 4], atol=1e-5)
    assert model.output._keras_mask is not None
    assert set(model.input) == {"token_ids", "masked_positions"}
    assert kt.models.with_head(model, "regression").input is backbone().input  # the places are gone with their head


def test_uniform_logits_cost_the_logarithm_of_their_number():
    model = kt.models.with_head(backbone(), "token_classification", num_classes=7, dropout=0)
    model.get_layer("classifier").set_weights([np.zeros((D, 7)), np.zeros(7)])
    loss = kt.training.MaskedCrossentropy()
    assert float(loss(np.array([[0, 1, 2, 3, 6]] * 2), predict(model, IDS))) == pytest.approx(np.log(7))


def test_embeddings_have_length_1_and_are_of_the_tokens_alone():
    states = predict(backbone(), IDS)["sequence_output"]
    for pooling, pooled in (("mean", states.mean(1)), ("max", states.max(1)), ("last", states[:, -1])):
        model = kt.models.with_head(backbone(), "sentence_embedding", pooling=pooling)
        expected = pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)
        np.testing.assert_allclose(predict(model, np.pad(IDS, ((0, 0), (1, 2)))), expected, atol=1e-5)


def test_answers_lie_outside_the_question():
    bert_with_segments = kt.models.bert(None, V, 9, **TINY, with_segments=True, pooler=False)
    model = kt.models.with_head(bert_with_segments, "question_answering", mask_question=True)
    segments = np.array([[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0]])
    found = predict(model, {"token_ids": np.pad(IDS, ((0, 0), (0, 1))), "segment_ids": segments})
    expected = [[1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 1, 0]]
    assert ((found["start"] > -1e8) == expected).all() and ((found["end"] > -1e8) == expected).all()
    with pytest.raises(ValueError, match="segment_ids"):
        kt.models.with_head(backbone(), "question_answering", mask_question=True)


def test_16_bits():
    """What is inside a head is as the blocks are; what comes out is float32."""
    small = kt.models.bert(None, V, 9, **TINY, dtype="mixed_bfloat16")
    for head in ("pretraining", "sequence_classification", "question_answering", "sentence_embedding"):
        model = kt.models.with_head(small, head, **CLASSES.get(head, {}))
        assert {x.dtype for x in keras.tree.flatten(model.output)} == {"float32"}
        own = {layer.name: layer.compute_dtype for layer in model.layers[model.layers.index(small.layers[-2]) + 1 :]}
        inner = {name for name, dtype in own.items() if dtype == "bfloat16"}
        assert inner >= {"masked_lm_dense", "masked_lm_norm", "pooler", "classifier_dropout", "pooling"} & set(own)


def test_encoder_decoders_without_a_stop_token():
    """The last token of the target is classified, behind a dense layer."""
    sizes = {"num_layers": 1, "hidden_dim": D}
    others = kt.models.transformer(V, V, num_heads=2, intermediate_dim=12, **sizes), kt.models.rnn(V, V, **sizes)
    for model in others:
        classifier = kt.models.with_head(model, "sequence_classification", num_classes=3)
        assert kt.layers.read_head(classifier)["pooling"] == "last" and classifier.output_shape == (None, 3)
        assert [layer.name for layer in classifier.layers][-5:] == [
            *("pooling", "classifier_dropout", "classifier_dense", "classifier_dense_dropout", "classifier")
        ]
        again = kt.models.with_head(classifier, "language_model")
        assert again.output_shape == model.output_shape and again.count_params() == model.count_params()


def test_heads_with_two_outputs_train():
    model = kt.models.with_head(
        kt.models.bert(None, V, 9, **TINY, dropout=0.0), "pretraining", masked_positions=True, seed=0
    )
    losses = {"masked_lm": kt.training.MaskedCrossentropy(), "next_sentence": kt.training.MaskedCrossentropy()}
    # six steps take less time than a graph of them on TensorFlow
    model.compile(keras.optimizers.Adam(0.01), losses, run_eagerly=keras.backend.backend() == "tensorflow")
    inputs = {"token_ids": IDS, "masked_positions": np.array([[1, 3], [4, -1]])}
    labels = {"masked_lm": np.array([[6, 8], [6, 0]]), "next_sentence": np.array([0, 1])}
    history = model.fit(inputs, labels, epochs=6, verbose=0).history["loss"]
    assert history[-1] < 0.9 * history[0]
    layer = model.get_layer("masked_tokens")
    assert type(layer).from_config(layer.get_config()).dtype_policy == layer.dtype_policy


# models of a user


def stack(last=()):
    ids = keras.Input((None,), dtype="int32", name="words")
    embedding = kt.layers.PositionalEmbedding(V, D, name="table")
    x = kt.layers.EncoderBlock(2, 12, name="block")(embedding(ids))
    for layer in last:
        x = layer(x)
    return keras.Model(ids, x, name="mine"), embedding


def test_a_stack_by_hand():
    model, table = stack()
    states = predict(model, IDS)
    tagger = kt.models.with_head(model, "token_classification", num_classes=3, name="tagger")
    kernel, bias = tagger.get_layer("classifier").get_weights()
    np.testing.assert_allclose(predict(tagger, IDS), states @ kernel + bias, atol=1e-5)
    assert tagger.name == "tagger"
    assert kt.layers.read_head(kt.models.with_head(tagger, "regression"))["pooling"] == "mean"
    logits = predict(kt.models.with_head(tagger, "language_model"), IDS)
    np.testing.assert_allclose(logits, states @ numpy(table.embeddings).T, atol=1e-5)


def test_a_sequential_model():
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            kt.layers.PositionalEmbedding(V, D),
            kt.layers.DecoderBlock(2, 12),
        ]
    )
    tagger = kt.models.with_head(model, "token_classification", num_classes=3)
    kernel, bias = tagger.get_layer("classifier").get_weights()
    np.testing.assert_allclose(predict(tagger, IDS), predict(model, IDS) @ kernel + bias, atol=1e-5)
    assert kt.layers.read_head(kt.models.with_head(model, "regression"))["pooling"] == "last"


LAST = {
    "untied": [keras.layers.Dense(V, name="to_words")],
    "softmax": [keras.layers.Dense(V), keras.layers.Softmax()],
    "pooled": [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(D, "relu"), keras.layers.Dense(4)],
}


@pytest.mark.parametrize("last", LAST)
def test_heads_by_hand_are_left_off(last):
    model, _ = stack([type(layer).from_config(layer.get_config()) for layer in LAST[last]])
    assert [x.name for x in kt.models.with_head(model, "question_answering").layers] == [
        *("words", "table", *(x.name for x in model.layers if type(x).__name__ == "NotEqual")),
        *("block", "head_card", "span", "span_logits"),
    ]


def test_states_that_cannot_be_told_are_named():
    model, _ = stack([keras.layers.Dense(4, name="who_knows")])
    with pytest.raises(ValueError, match="who_knows.*states="):
        kt.models.with_head(model, "regression")
    for name, size in (("who_knows", 4), ("block", D)):
        tagger = kt.models.with_head(model, "token_classification", num_classes=3, states=name)
        assert tagger.get_layer("classifier").kernel.shape == (size, 3)
    with pytest.raises(ValueError, match="states='missing'"):
        kt.models.with_head(model, "regression", states="missing")


def test_models_without_states():
    ids = keras.Input((None,), dtype="int32")
    one_hot = keras.layers.CategoryEncoding(V)(ids)
    both = [kt.layers.EncoderBlock(2, 12)(kt.layers.PositionalEmbedding(V, D)(ids)) for _ in range(2)]
    image = keras.Input((4, 4, 3))
    filtered = keras.layers.Conv2D(3, 2)(image)
    for model in (keras.Model(ids, one_hot), keras.Model(ids, both), keras.Model(image, filtered)):
        with pytest.raises(ValueError, match="states"):
            kt.models.with_head(model, "regression")
    with pytest.raises(ValueError, match="functional"):
        kt.models.with_head(keras.layers.Dense(3), "regression")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"head": "poetry"}, "head='poetry'"),
        ({"head": "token_classification"}, "num_classes=None"),
        ({"head": "question_answering", "num_classes": 2}, "num_classes=2"),
        ({"head": "regression", "dropout": 1.0}, "dropout=1.0"),
        ({"head": "token_classification", "num_classes": 2, "pooling": "mean"}, "pooling='mean'"),
        ({"head": "regression", "pooling": "middle"}, "pooling='middle'"),
        ({"head": "regression", "pooling": "stop_token"}, "stop_token_id"),
        ({"head": "regression", "masked_positions": True}, "masked_positions=True"),
        ({"head": "regression", "tie": True}, "tie=True"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        kt.models.with_head(backbone(), **options)


def test_tying():
    vectors_in, size = keras.Input((None, D)), {"num_classes": V}
    foreign = keras.Model(vectors_in, kt.layers.EncoderBlock(2, 12)(vectors_in))
    with pytest.raises(ValueError, match="tie=False"):
        kt.models.with_head(foreign, "language_model")
    assert kt.models.with_head(foreign, "language_model", tie=False, **size).output_shape == (None, None, V)
    untied = kt.models.with_head(backbone(), "masked_lm", tie=False)
    assert [w.path for w in untied.weights][-2:] == ["masked_lm_logits/kernel", "masked_lm_logits/bias"]


# the same heads in `transformers`

HEAD_ROWS = [
    *dense("cls.predictions.transform.dense", "masked_lm_dense"),
    *layer_norm("cls.predictions.transform.LayerNorm", "masked_lm_norm"),
    Row("cls.predictions.bias", "masked_lm_bias/bias"),
    *dense("cls.seq_relationship", "next_sentence"),
    *dense("qa_outputs", "span"),
]
SCORE = [Row("score.weight", "classifier/kernel", LINEAR)]
DENSE_HEAD = [
    *dense("classification_head.dense", "classifier_dense"),
    *dense("classification_head.out_proj", "classifier"),
]
BERT_ROWS = [*HEAD_ROWS, *dense("classifier", "classifier")]
SMALL_BERT = {**BERT}
SMALL_GPT = {**GPT_2, "pad_token_id": 0}
SMALL_LLAMA = {**SIZES, "pad_token_id": 0}
SMALL_BART = {"vocab_size": V, "d_model": D, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SMALL_BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "pad_token_id": 0}
SMALL_BART |= {"max_position_embeddings": 9, "bos_token_id": 1, "eos_token_id": 2}
SMALL_BART |= {"decoder_start_token_id": 2}
SMALL_T5 = {"vocab_size": V, "d_model": D, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
SMALL_T5 |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "classifier_dropout": 0.0}
THEIRS = {
    "bert, masked_lm": ("BertForMaskedLM", SMALL_BERT, bert, BERT_ROWS),
    "bert, next_sentence": ("BertForNextSentencePrediction", SMALL_BERT, bert, BERT_ROWS),
    "bert, pretraining": ("BertForPreTraining", SMALL_BERT, bert, BERT_ROWS),
    "bert, sequence_classification": ("BertForSequenceClassification", SMALL_BERT, bert, BERT_ROWS),
    "bert, token_classification": ("BertForTokenClassification", SMALL_BERT, bert, BERT_ROWS),
    "bert, question_answering": ("BertForQuestionAnswering", SMALL_BERT, bert, BERT_ROWS),
    "gpt, sequence_classification": ("GPT2ForSequenceClassification", SMALL_GPT, gpt2, SCORE),
    "gpt, token_classification": ("GPT2ForTokenClassification", SMALL_GPT, gpt2, BERT_ROWS),
    "llama, sequence_classification": ("LlamaForSequenceClassification", SMALL_LLAMA, llama, SCORE),
    "bart, sequence_classification": ("BartForSequenceClassification", SMALL_BART, bart, DENSE_HEAD),
    "bart, question_answering": ("BartForQuestionAnswering", SMALL_BART, bart, HEAD_ROWS),
    "t5, sequence_classification": ("T5ForSequenceClassification", SMALL_T5, t5, DENSE_HEAD),
}


@pytest.mark.parametrize("name", THEIRS)
def test_outputs_equal_transformers(name):
    """Rows of two lengths, the last token of each the one that ends a text."""
    (family, head), (kind, sizes, module, rows) = name.split(", "), THEIRS[name]
    kind = getattr(transformers, kind)
    sizes = {**sizes, "num_labels": 2 if head == "question_answering" else 3}
    theirs = randomized(kind(kind.config_class(**sizes, attn_implementation="eager")))
    prefix = "transformer." if family == "t5" else ""
    rows = [row for row in under(prefix, "", module.ROWS) if row.paths[0] != "logits/kernel"] + rows
    tied = [(prefix + one, prefix + other) for one, other in getattr(module, "TIED", ())]
    table = {"FIELDS": module.FIELDS, "ROWS": rows, "IGNORED": [r"cls\.predictions\.decoder\..*"], "TIED": tied}

    def build(size, **arguments):
        if family in ("gpt", "llama"):
            arguments["pad_token_id"] = 0
        return kt.models.with_head(getattr(kt.models, family)(size, **arguments), head, **CLASSES.get(head, {}))

    ours = copied(theirs, SimpleNamespace(**table), build)
    ids = np.array([[5, 6, 7, 2, 0, 0], [3, 4, 5, 6, 7, 2]])
    given, inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(ids > 0).long()}, ids
    if family in ("bart", "t5"):
        start = sizes["decoder_start_token_id"]
        shifted = np.concatenate([np.full((2, 1), start), ids[:, :-1]], axis=1)
        given["decoder_input_ids"] = torch.tensor(shifted)
        inputs = [ids, shifted]
    with torch.no_grad():
        output = theirs(**given)
    expected = {
        "pretraining": lambda: {"masked_lm": output.prediction_logits, "next_sentence": output.seq_relationship_logits},
        "question_answering": lambda: {"start": output.start_logits, "end": output.end_logits},
    }.get(head, lambda: output.logits)()
    real = (shifted if family == "bart" else ids) > 0  # ours hides padding in answers

    def compare(found, right):
        right = right.numpy()
        if right.shape[1] == ids.shape[1]:
            found, right = found[real], right[real]
        assert np.abs(right).max() > 0.1
        np.testing.assert_allclose(found, right, atol=1e-4)

    mapped(compare, predict(ours, inputs), expected)


def test_the_head_of_vit_is_its_own():
    model = kt.models.with_head(backbone("vit"), "image_classification", num_classes=3, dropout=0.0)
    model.get_layer("logits").set_weights(backbone("vit").get_layer("logits").get_weights())
    images = np.random.default_rng(0).normal(size=(2, 4, 8, 3)).astype("float32")
    np.testing.assert_array_equal(predict(model, images), predict(backbone("vit"), images))


# spans


def by_force(start, end, mask, max_length, n_best):
    pairs = itertools.product(range(len(start)), repeat=2)
    legal = [(i, j) for i, j in pairs if i <= j < i + max_length and mask[i] and mask[j]]
    legal = sorted(legal, key=lambda span: -(start[span[0]] + end[span[1]]))[:n_best]
    return [(i, j, start[i] + end[j]) for i, j in legal] + [(-1, -1, -np.inf)] * (n_best - len(legal))


@pytest.mark.parametrize("max_length, n_best", [(1, 1), (3, 4), (7, 2), (30, 40)])
def test_best_spans_by_force(max_length, n_best):
    rng = np.random.default_rng(max_length)
    start, end = rng.integers(-3, 4, (2, 20, 7)).astype("float32")  # with ties
    mask = rng.random((20, 7)) < 0.7
    found = kt.models.best_span(start, end, mask, max_length, n_best)
    assert found.start.shape == found.end.shape == found.score.shape == (20, n_best)
    for i in range(20):
        expected = by_force(start[i], end[i], mask[i], max_length, n_best)
        assert list(zip(found.start[i], found.end[i], found.score[i], strict=True)) == expected
    single = kt.models.best_span(start[0], end[0], mask[0], max_length, n_best)
    assert all((x == y[0]).all() for x, y in zip(single, found, strict=True))


def test_spans_of_logits_that_hide_and_of_nan():
    hidden = np.array([[-1e9, 2.0, 1.0, -1e9]])
    assert kt.models.best_span(hidden, hidden[:, ::-1])[:2] == (np.array([[1]]), np.array([[2]]))
    start = np.array([[np.nan, 1.0]])
    assert kt.models.best_span(start, start, [[False, True]]).score.tolist() == [[2.0]]
    with pytest.raises(ValueError, match="NaN"):
        kt.models.best_span(start, start)
    with pytest.raises(ValueError, match="one shape"):
        kt.models.best_span(start, start[0])
    with pytest.raises(ValueError, match="max_length"):
        kt.models.best_span(start, start, max_length=0)
