"""`EncoderBlock` and `DecoderBlock` against NumPy: norms and residuals, masks, scores, dropout, configurations."""

import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, run, vectors
from tests.layers.configs import assert_config_holds

B, T, S, D, F = 2, 5, 7, 16, 24
PLACEMENTS = ("post", "pre", "sandwich", "output")
REAL = np.array([[True] * 5, [False, False, True, True, True]])
REAL_STATES = np.array([[True] * 6 + [False], [True] * 3 + [False] * 4])


def built(block_class=kt.layers.EncoderBlock, states=False, **options):
    """A block with random weights, and the weights."""
    layer = block_class(**{"num_heads": 2, "intermediate_dim": F, **options})
    layer.build(*([(None, None, D)] * (2 if states else 1)))
    return layer, reference.randomize(layer)[layer.name]


@pytest.mark.parametrize("placement, norm", zip(PLACEMENTS, ("layer", "rms", "layer", "rms")))
def test_blocks_equal_numpy(placement, norm):
    """B14: the query of cross-attention is the result of the first add and norm, and so on."""
    x, states = vectors(B, T, D), vectors(B, S, D)
    options = {"norm_placement": placement, "norm": norm, "activation": "gelu"}
    encoder, encoder_weights = built(**options)
    decoder, decoder_weights = built(kt.layers.DecoderBlock, **options)
    cross, cross_weights = built(kt.layers.DecoderBlock, states=True, **options)
    outputs = run(
        lambda x, states: (
            encoder(x, padding_mask=REAL),
            decoder(x, padding_mask=REAL),
            cross(x, states, padding_mask=REAL, encoder_padding_mask=REAL_STATES),
        ),
        *(x, states),
    )
    mask = reference.padding_mask(REAL, REAL)
    causal = mask & reference.causal_mask(T)
    memory = {"memory": states, "memory_mask": reference.padding_mask(REAL, REAL_STATES)}
    same = {"placement": placement, "activation": reference.gelu}
    expected = (
        reference.block(x, encoder_weights, mask, **same),
        reference.block(x, decoder_weights, causal, **same),
        reference.block(x, cross_weights, causal, **memory, **same),
    )
    for mine, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(mine[REAL], theirs[REAL], atol=1e-5)


@pytest.mark.parametrize("states", [False, True])
def test_sublayers_that_give_nothing(states):
    """B14: pre-norm is then the identity, post-norm one norm per sublayer."""
    block_class = kt.layers.DecoderBlock if states else kt.layers.EncoderBlock
    inputs = [vectors(B, T, D), vectors(B, S, D)][: 1 + states]
    for placement in ("pre", "post"):
        layer, _ = built(block_class, states=states, norm_placement=placement)
        for weight in layer.weights:
            if "attention_output" in weight.path or "/output/" in weight.path:
                weight.assign(np.zeros(weight.shape))
            if weight.name in ("gamma", "beta"):
                weight.assign(np.full(weight.shape, float(weight.name == "gamma")))
        output, expected = run(layer, *inputs), inputs[0]
        if placement == "pre":
            np.testing.assert_array_equal(output, expected)
        else:
            for _ in range(2 + states):
                expected = reference.layer_norm(expected.astype("float64"))
            np.testing.assert_allclose(output, expected, atol=1e-5)


def test_epsilon_reaches_every_norm():
    """B13: the first value of the norm of (1e-3, -1e-3, 2e-3, -2e-3) tells the epsilon."""
    x = np.array([[[1e-3, -1e-3, 2e-3, -2e-3]]])
    for options, expected in (({}, 0.282843), ({"norm_epsilon": 1e-6}, 0.534522)):
        layer = kt.layers.DecoderBlock(2, F, **options)
        layer.build((1, 1, 4), (1, 1, 4))
        norms = [part for part in layer._flatten_layers() if isinstance(part, keras.layers.LayerNormalization)]
        assert len(norms) == 3
        for norm in norms:
            np.testing.assert_allclose(numpy(norm(x))[0, 0, 0], expected, atol=2e-6)


def test_scores():
    x, states = vectors(B, T, D), vectors(B, S, D)
    encoder, weights = built(norm_placement="pre")
    (output, scores), without_scores = run(
        lambda x: [encoder(x, padding_mask=REAL, return_attention_scores=asked) for asked in (True, False)], x
    )
    normed = reference.norm(x, weights["self_attention_norm"])
    mask = reference.padding_mask(REAL, REAL)
    expected = reference.multi_head_attention(normed, normed, weights["self_attention"], mask)[1]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_allclose(output, without_scores, atol=1e-5)

    decoder, weights = built(kt.layers.DecoderBlock, states=True)
    (output, scores, cross_scores), without_scores = run(
        lambda *x: [decoder(*x, return_attention_scores=asked) for asked in (True, False)], x, states
    )
    attended, expected = reference.multi_head_attention(x, x, weights["self_attention"], reference.causal_mask(T))
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    query = reference.norm(x + attended, weights["self_attention_norm"])
    expected = reference.multi_head_attention(query, states, weights["cross_attention"])[1]
    np.testing.assert_allclose(cross_scores, expected, atol=1e-5)
    np.testing.assert_allclose(output, without_scores, atol=1e-5)


def test_scores_shapes_are_known_symbolically():
    x, states = keras.Input((T, D)), keras.Input((None, D))

    def instances(*names):
        return {"intermediate_dim": F, **{name: kt.layers.MultiHeadAttention(2, 3) for name in names}}

    for options in ({"num_heads": 2, "intermediate_dim": F}, instances("attention")):
        output, scores, none = kt.layers.DecoderBlock(**options)(x, return_attention_scores=True)
        assert (output.shape, scores.shape, none) == ((None, T, D), (None, 2, T, T), None)
        outputs = run(keras.Model(x, [output, scores]), vectors(B, T, D))
        assert [y.shape for y in outputs] == [(B, T, D), (B, 2, T, T)]
    for options in ({"num_heads": 2, "intermediate_dim": F}, instances("attention", "cross_attention")):
        _, scores, cross_scores = kt.layers.DecoderBlock(**options)(x, states, return_attention_scores=True)
        assert (scores.shape, cross_scores.shape) == ((None, 2, T, T), (None, 2, T, None))
    output, scores = kt.layers.EncoderBlock(4, F)(states, return_attention_scores=True)
    assert (output.shape, scores.shape) == ((None, None, D), (None, 4, None, None))


def test_masks_arrive_implicitly_and_are_kept():
    ids, source = np.array([[3, 1, 2, 4, 5], [0, 0, 3, 1, 2]]), np.array([[1, 2, 3], [4, 0, 0]])
    embedding = keras.layers.Embedding(6, D, embeddings_initializer="normal", mask_zero=True)
    embedding.build()
    encoder, _ = built()
    decoder, _ = built(kt.layers.DecoderBlock, states=True)
    only_decoder, _ = built(kt.layers.DecoderBlock)

    def implicit(ids, source):
        x, states = embedding(ids), embedding(source)
        return encoder(x), decoder(x, states), only_decoder(x), decoder(x, encoder_output=states)

    def explicit(ids, source):
        x, states = (keras.ops.take(embedding.embeddings, i, axis=0) for i in (ids, source))
        real = {"padding_mask": ids != 0}
        masked = decoder(x, states, encoder_padding_mask=source != 0, **real)
        return encoder(x, **real), masked, only_decoder(x, **real), masked

    for mine, expected in zip(run(implicit, ids, source), run(explicit, ids, source), strict=True):
        np.testing.assert_allclose(mine[ids != 0], expected[ids != 0], atol=1e-5)
    for output in implicit(ids, source):
        np.testing.assert_array_equal(numpy(output._keras_mask), ids != 0)
    output, scores = encoder(embedding(ids), return_attention_scores=True)
    np.testing.assert_array_equal(numpy(output._keras_mask), ids != 0)
    assert (numpy(scores)[1, :, :, :2] == 0).all()


def test_attention_mask_and_causal_switch():
    x = vectors(B, T, D)
    encoder, weights = built()
    decoder, _ = built(kt.layers.DecoderBlock)
    decoder.set_weights(encoder.get_weights())
    causal = reference.causal_mask(T)
    window = causal & ~np.tril(np.ones((T, T), bool), -2)
    expected = {name: reference.block(x, weights, mask) for name, mask in (("causal", causal), ("window", window))}
    for name, output in zip(
        ("causal", "causal", "causal", "window", "window"),
        run(
            lambda x: (
                encoder(x, use_causal_mask=True),
                decoder(x),
                encoder(x, attention_mask=causal),
                decoder(x, attention_mask=window),
                encoder(x, attention_mask=np.broadcast_to(window, (B, 2, T, T))),
            ),
            x,
        ),
        strict=True,
    ):
        np.testing.assert_allclose(output, expected[name], atol=1e-5)
    np.testing.assert_allclose(*run(lambda x: (decoder(x, use_causal_mask=False), encoder(x)), x), atol=1e-5)


def test_composition_from_instances():
    """Grouped heads and a gated network, with a head size that is free of the feature dim."""
    x = vectors(B, T, D)
    layer = kt.layers.DecoderBlock(
        attention=kt.layers.MultiHeadAttention(4, 3, num_key_value_heads=2, use_bias=False),
        cross_attention=kt.layers.MultiHeadAttention(1, 5),
        feed_forward=kt.layers.FeedForward(F, activation="silu", gated=True),
        norm="rms",
        norm_placement="pre",
    )
    layer.build(x.shape, (B, S, 3))
    by_name = reference.randomize(layer)[layer.name]
    weights = {
        **by_name,
        "self_attention": by_name[layer.self_attention.name],
        "cross_attention": by_name[layer.cross_attention.name],
        "feed_forward": by_name[layer.feed_forward.name],
    }
    states = vectors(B, S, 3)
    expected = reference.block(
        x, weights, reference.causal_mask(T), "pre", reference.silu, memory=states, memory_mask=True
    )
    np.testing.assert_allclose(run(layer, x, states), expected, atol=1e-5)
    free = kt.layers.EncoderBlock(3, F, key_dim=D)
    free.build(x.shape)
    assert free.self_attention.query_dense.kernel.shape == (D, 3, D)
    assert run(free, x).shape == x.shape


def test_a_norm_layer_is_the_pattern_of_every_slot():
    layer = kt.layers.EncoderBlock(2, F, norm_placement="sandwich", norm=keras.layers.LayerNormalization(epsilon=0.5))
    layer.build((None, None, D))
    norms = [part for part in layer._flatten_layers() if isinstance(part, keras.layers.LayerNormalization)]
    assert len(norms) == 4 and {norm.epsilon for norm in norms} == {0.5}
    assert len({id(norm.gamma) for norm in norms}) == 4
    config = layer.get_config()
    assert kt.layers.EncoderBlock.from_config(config).get_config() == config


SITES = {
    "residual after attention": {"dropout": 0.2},
    "residual after feed-forward": {"dropout": 0.2},
    "inner": {"feed_forward_dropout": 0.2},
    "attention probabilities": {"attention": kt.layers.MultiHeadAttention(1, 50, dropout=0.2, seed=2)},
}


@pytest.mark.parametrize("site", SITES)
def test_each_dropout_site_drops_its_share(site):
    """B09: one site at a time, before any later norm or activation, in 2000 draws; none at inference."""
    options = {"num_heads": 1, **SITES[site]}
    if "attention" in options:
        options["num_heads"] = None
        options["attention"] = kt.layers.MultiHeadAttention.from_config(options["attention"].get_config())
    layer = kt.layers.EncoderBlock(
        intermediate_dim=50, norm_placement="pre", activation="linear", use_bias=False, seed=1, **options
    )
    layer.build((None, None, 50))
    identity = np.eye(50)
    for weight in layer.weights:
        if weight.name == "kernel":
            weight.assign(np.zeros(weight.shape))
        if weight.name == "gamma":  # every norm then gives ones, whatever it is given
            weight.assign(np.zeros(weight.shape))
        if weight.name == "beta":
            weight.assign(np.ones(weight.shape))
    attends = site in ("residual after attention", "attention probabilities")
    for projection in (
        [layer.self_attention.value_dense, layer.self_attention.output_dense]
        if attends
        else [layer.feed_forward.intermediate_dense, layer.feed_forward.output_dense]
    ):
        projection.kernel.assign(identity.reshape(projection.kernel.shape))
    if site == "residual after attention":
        layer.self_attention.dropout = 0.0  # the number sets both; here only the residual one is wanted
    # a row of one position attends to itself alone, so a dropped probability clears the whole row
    x = np.zeros((2000, 1, 50) if site == "attention probabilities" else (40, 1, 50), "float32")
    kept, output = run(lambda x: (layer(x), layer(x, training=True)), x)
    np.testing.assert_allclose(kept, 1, atol=1e-6)
    if site == "attention probabilities":
        assert (output == output[:, :, :1]).all()
        output = output[:, :, 0]
    assert output.size == 2000
    assert abs((output == 0).mean() - 0.2) < 3 * np.sqrt(0.2 * 0.8 / 2000)
    np.testing.assert_allclose(output[output != 0], 1 / 0.8, rtol=1e-5)


def test_dropout_is_off_at_inference_and_a_seed_repeats_it():
    """B09."""
    options = {"dropout": 0.5, "feed_forward_dropout": 0.5}
    x, states = vectors(B, T, D), vectors(B, S, D)
    dropping, _ = built(kt.layers.DecoderBlock, states=True, **options)
    plain, _ = built(kt.layers.DecoderBlock, states=True)
    first, second, without_dropout, trained, again = run(
        lambda *x: (
            dropping(*x),
            dropping(*x),
            plain(*x),
            dropping(*x, training=True),
            dropping(*x, training=True),
        ),
        *(x, states),
    )
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, without_dropout, atol=1e-5)
    assert abs(trained - again).max() > 1e-2 and abs(trained - first).max() > 1e-2
    seeded = [built(dropout=0.5, seed=7)[0] for _ in range(2)]
    np.testing.assert_array_equal(*run(lambda x: [layer(x, training=True) for layer in seeded], x))


def test_dropouts_of_one_seed_do_not_repeat_each_other():
    """Else both residual dropouts of a block would always drop the same places."""
    layer = kt.layers.EncoderBlock(1, D, dropout=0.5, feed_forward_dropout=0.5, seed=1)
    layer.build((None, None, D))
    x = np.ones((1, 30, D), "float32")
    dropped = [
        numpy(part(x, training=True)) == 0
        for part in layer._flatten_layers()
        if isinstance(part, keras.layers.Dropout) and part.rate
    ]
    assert len(dropped) == 4
    for i, first in enumerate(dropped):
        for second in dropped[i + 1 :]:
            assert 0.3 < (first == second).mean() < 0.7


def test_training_reaches_a_block_inside_a_layer_that_does_not_forward_it():
    """B09."""

    class Wrapper(keras.layers.Layer):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def call(self, x):
            return self.block(x)

    inputs = keras.Input((T, D))
    block = kt.layers.EncoderBlock(2, F, dropout=0.5)
    model = keras.Model(inputs, Wrapper(block)(inputs))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = vectors(B, T, D)
    target = model.predict(x, verbose=0)
    assert model.evaluate(x, target, verbose=0) < 1e-9
    assert model.fit(x, target, verbose=0).history["loss"][0] > 1e-2


BLOCKS = (kt.layers.EncoderBlock, kt.layers.DecoderBlock)


def options_of(block_class, given):
    """A value that is not the default for every argument; the sublayers as numbers or as layers."""
    options = {
        "dropout": 0.25,
        "norm_placement": "sandwich",
        "key_dim": 5,
        "activation": "gelu",
        "feed_forward_dropout": 0.125,
        "use_bias": False,
        "norm": "rms",
        "norm_epsilon": 0.5,
        "layer_scale": 0.1,
        "stochastic_depth": 0.125,
        "seed": 3,
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.5),
        "bias_initializer": keras.initializers.Constant(0.5),
        "kernel_regularizer": keras.regularizers.L2(0.5),
        "bias_regularizer": keras.regularizers.L1(0.25),
        "kernel_constraint": keras.constraints.MaxNorm(3),
        "bias_constraint": keras.constraints.NonNeg(),
        "name": "block",
        "dtype": "mixed_bfloat16",
    }
    if given == "numbers":
        return {"num_heads": 2, "intermediate_dim": F, **options}
    del options["key_dim"], options["feed_forward_dropout"]  # they are for what numbers make
    options["attention"] = kt.layers.MultiHeadAttention(4, 3, num_key_value_heads=2, name="heads")
    options["feed_forward"] = kt.layers.FeedForward(F, "silu", gated=True, name="inner")
    if block_class is kt.layers.DecoderBlock:
        options["cross_attention"] = kt.layers.MultiHeadAttention(3, 2, name="cross")
    return options


@pytest.mark.parametrize("given", ["numbers", "layers"])
@pytest.mark.parametrize("block_class", BLOCKS)
def test_config_keeps_every_argument(block_class, given):
    layers = {"attention", "feed_forward", "cross_attention"}
    ignored = layers if given == "numbers" else {"num_heads", "intermediate_dim", "key_dim", "feed_forward_dropout"}
    options = options_of(block_class, given)
    assert_config_holds(block_class, options, {*ignored, "parallel"})  # which takes no cross-attention
    # A block that is built says the same, and so does what is built from its configuration.
    first = block_class(**options_of(block_class, given))
    config = first.get_config()
    again = block_class.from_config(config)
    for layer in (first, again):
        layer.build(*[(None, None, D)] * (1 + (layer.cross_attention is not None if "cross" in options else 0)))
        assert layer.get_config() == config
    assert [(w.path, w.shape) for w in first.weights] == [(w.path, w.shape) for w in again.weights]


INSTANCES = {
    "attention": lambda: kt.layers.MultiHeadAttention(2, D // 2),
    "feed_forward": lambda: kt.layers.FeedForward(F),
}


@pytest.mark.parametrize("name", INSTANCES)
@pytest.mark.parametrize("block_class", BLOCKS)
def test_one_layer_in_two_blocks_is_refused(block_class, name):
    """Shared weights would save and not load."""
    numbers = {"num_heads": 2, "intermediate_dim": F}
    del numbers[{"attention": "num_heads", "feed_forward": "intermediate_dim"}[name]]
    layer = INSTANCES[name]()
    first = block_class(**numbers, **{name: layer}, name="first")
    with pytest.raises(ValueError, match=rf"`{name}` of second .*{layer.name}.*first"):
        block_class(**numbers, **{name: layer}, name="second")
    x = vectors(B, T, D)
    first.build(x.shape)
    expected = run(first, x)  # still of use
    copy = block_class(**numbers, **{name: type(layer).from_config(layer.get_config())})
    assert copy(keras.Input((T, D))).shape == (None, T, D)
    inputs = keras.Input((T, D))
    clone = keras.models.clone_model(keras.Model(inputs, first(inputs)))
    clone.set_weights(first.get_weights())
    np.testing.assert_allclose(run(clone, x), expected, atol=1e-6)


def test_one_attention_for_both_places_of_a_decoder_block_is_refused():
    layer = INSTANCES["attention"]()
    with pytest.raises(ValueError, match="`cross_attention` of .*`attention`"):
        kt.layers.DecoderBlock(intermediate_dim=F, attention=layer, cross_attention=layer)


def test_a_layer_that_already_has_weights_may_be_given_to_one_block(tmp_path):
    layer = INSTANCES["attention"]()
    layer.build((B, T, D))
    weights = reference.randomize(layer)[layer.name]
    inputs = keras.Input((T, D))
    block = kt.layers.EncoderBlock(attention=layer, intermediate_dim=F, norm_placement="pre")
    model = keras.Model(inputs, block(inputs, return_attention_scores=True))
    x = vectors(B, T, D)
    normed = reference.layer_norm(x.astype("float64"))
    expected = reference.multi_head_attention(normed, normed, weights)[1]
    outputs = run(model, x)
    np.testing.assert_allclose(outputs[1], expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    for mine, theirs in zip(run(keras.models.load_model(tmp_path / "model.keras"), x), outputs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize(
    "placement, policy, other",
    [
        ("post", "mixed_bfloat16", "float32"),
        ("pre", "mixed_bfloat16", "float32"),
        ("sandwich", "mixed_bfloat16", "float32"),
        ("post", "float32", "mixed_bfloat16"),
        ("pre", "float32", "mixed_bfloat16"),
        ("output", "float32", "mixed_bfloat16"),
    ],
)
def test_layers_of_another_dtype(placement, policy, other):
    """Whatever is put into a block, it gives what its own policy promises."""

    def block(policy, other):
        return kt.layers.DecoderBlock(
            attention=kt.layers.MultiHeadAttention(2, 3, dtype=other),
            cross_attention=kt.layers.MultiHeadAttention(2, 3, dtype=other),
            feed_forward=kt.layers.FeedForward(F, dtype=other),
            norm=keras.layers.LayerNormalization(epsilon=1e-5, dtype=other),
            norm_placement=placement,
            dtype=policy,
        )

    exact, layer = block("float32", "float32"), block(policy, other)
    for x in (exact, layer):
        x.build((B, T, D), (B, S, D))
    reference.randomize(exact)
    layer.set_weights(exact.get_weights())
    x, states = vectors(B, T, D), vectors(B, S, D)
    specs = layer(keras.Input((T, D)), keras.Input((S, D)), return_attention_scores=True)
    assert specs[0].dtype == layer.compute_dtype

    def call(x, states):
        outputs = layer(x, states, return_attention_scores=True)
        for output, spec in zip(outputs, specs, strict=True):
            assert keras.backend.standardize_dtype(output.dtype) == spec.dtype
        return keras.ops.cast(outputs[0], "float32"), exact(x, states)

    np.testing.assert_allclose(*run(call, x, states), atol=0.1)


def test_one_initializer_with_a_seed_draws_another_kernel_for_each_sublayer():
    layer = kt.layers.DecoderBlock(2, D, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    layer.build((None, None, D), (None, None, D))
    kernels = [numpy(w).ravel() for w in layer.weights if w.name == "kernel"]
    assert len(kernels) == 10
    for i, first in enumerate(kernels):
        for second in kernels[i + 1 :]:
            assert abs(first - second).max() > 1e-3


def test_sizes_may_be_numpy_integers():
    numbers = {"num_heads": 2, "intermediate_dim": F, "key_dim": 3, "seed": 1, "name": "block"}
    layer = kt.layers.EncoderBlock(**{name: x if name == "name" else np.int64(x) for name, x in numbers.items()})
    assert json.dumps(layer.get_config()) == json.dumps(kt.layers.EncoderBlock(**numbers).get_config())
    assert layer(vectors(B, T, D)).shape == (B, T, D)


REFUSED = {
    "num_heads": ({"num_heads": 0}, ["num_heads", "0"]),
    "no heads": ({"num_heads": None}, ["num_heads", "attention"]),
    "both": ({"attention": kt.layers.MultiHeadAttention(2, 3)}, ["num_heads=2", "attention"]),
    "no width": ({"intermediate_dim": None}, ["intermediate_dim", "feed_forward"]),
    "both widths": ({"feed_forward": kt.layers.FeedForward(3)}, ["intermediate_dim=24", "feed_forward"]),
    "key_dim": ({"key_dim": 0}, ["key_dim", "0"]),
    "dropout": ({"dropout": 2}, ["dropout", "2"]),
    "inner dropout": ({"feed_forward_dropout": -1}, ["feed_forward_dropout", "-1"]),
    "placement": ({"norm_placement": "middle"}, ["norm_placement", "middle", "sandwich"]),
    "norm": ({"norm": "batch"}, ["norm", "batch", "rms"]),
    "epsilon": ({"norm_epsilon": -1}, ["norm_epsilon", "-1"]),
    "activation": ({"activation": "swoosh"}, ["swoosh"]),
}


@pytest.mark.parametrize("block_class", [kt.layers.EncoderBlock, kt.layers.DecoderBlock])
@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(block_class, options, words):
    with pytest.raises(ValueError) as error:
        block_class(**{"num_heads": 2, "intermediate_dim": F, **options})
    assert all(word in str(error.value) for word in words), error.value


def test_refused_calls():
    x, states = vectors(B, T, D), vectors(B, S, D)
    for call, words in (
        (lambda: kt.layers.EncoderBlock(3, F)(x), ["hidden_dim=16", "num_heads=3"]),
        (lambda: kt.layers.DecoderBlock(3, F)(x, states), ["hidden_dim=16", "num_heads=3"]),
        (lambda: kt.layers.EncoderBlock(2, F)(x[0]), ["(5, 16)"]),
        (lambda: kt.layers.EncoderBlock(2, F)(x[None]), ["(1, 2, 5, 16)"]),
        (lambda: kt.layers.EncoderBlock(2, F)(keras.Input((None, None))), ["(None, None, None)"]),
        (lambda: built(kt.layers.DecoderBlock)[0](x, states), ["encoder_output"]),
        (lambda: built(kt.layers.DecoderBlock, states=True)[0](x), ["encoder_output"]),
        (
            lambda: kt.layers.DecoderBlock(attention=kt.layers.MultiHeadAttention(2, 3), intermediate_dim=F)(x, states),
            ["cross_attention"],
        ),
        (lambda: kt.layers.EncoderBlock(2, F)(x, attention_mask=np.ones((T, T + 1), bool)), ["attention_mask", "6"]),
        (lambda: kt.layers.EncoderBlock(2, F)(x, padding_mask=np.ones((B, T + 1), bool)), ["padding_mask", "6", "5"]),
        (
            lambda: kt.layers.DecoderBlock(2, F)(x, states, encoder_padding_mask=np.ones((B, T), bool)),
            ["encoder_padding_mask", "5", "7"],
        ),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("block", [kt.layers.EncoderBlock, kt.layers.DecoderBlock])
def test_a_built_block_refuses_another_rank(block):
    layer, attention = block(2, 8), kt.layers.MultiHeadAttention(2, 4)
    layer(vectors(2, 3, 4)), attention(vectors(2, 3, 4))
    for shape in ((4,), (3, 4), (2, 3, 3, 4)):
        with pytest.raises(ValueError, match="batch, length, features"):
            layer(vectors(*shape))
        with pytest.raises(ValueError, match="must have 3 dimensions"):
            attention(vectors(*shape))
