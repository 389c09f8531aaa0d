"""`MixtureOfExperts` against a loop in NumPy and against transformers' Mixtral: routing, capacity, losses, decoding."""

import math

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, predict, run, vectors, weight_gradients
from tests.layers.configs import assert_config_holds

D, F, E = 6, 5, 4
MASK = np.array([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]], bool)


def randomized(**options):
    """A built layer and its random weights."""
    layer = kt.layers.MixtureOfExperts(**{"num_experts": E, "intermediate_dim": F, **options})
    layer.build((None, None, D))
    return layer, reference.randomize(layer, stddev=0.5)[layer.name]


def route(x, weights, layer):
    """Router logits and probabilities (T, E), experts and their weights (T, k) of tokens (T, D)."""
    logits = x @ weights["router_kernel"]
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    chosen = np.argsort(-probabilities, axis=-1)[:, : layer.num_experts_per_token]
    shares = np.take_along_axis(probabilities, chosen, axis=-1)
    if layer.normalize_weights:
        shares = shares / shares.sum(-1, keepdims=True)
    return logits, probabilities, chosen, shares


def expert(x, weights, e, activation=reference.silu):
    bias = {name: weights[f"{name}_bias"][e] if f"{name}_bias" in weights else 0 for name in ("intermediate", "output")}
    inner = x @ weights["intermediate_kernel"][e] + bias["intermediate"]
    if "gate_kernel" in weights:
        gate_bias = weights["gate_bias"][e] if "gate_bias" in weights else 0
        inner = activation(x @ weights["gate_kernel"][e] + gate_bias) * inner
    else:
        inner = activation(inner)
    return inner @ weights["output_kernel"][e] + bias["output"]


def mixture(x, weights, layer, capacity=math.inf, mask=None, activation=reference.silu):
    """The layer token by token: all first choices before all second ones, in the order of the batch."""
    tokens = x.reshape(-1, D).astype("float64")
    real = np.ones(len(tokens), bool) if mask is None else mask.reshape(-1)
    *_, chosen, shares = route(tokens, weights, layer)
    output, taken = np.zeros_like(tokens), np.zeros(E)
    for choice in range(chosen.shape[1]):
        for t, e in enumerate(chosen[:, choice]):
            if real[t] and taken[e] < capacity:
                taken[e] += 1
                output[t] += shares[t, choice] * expert(tokens[t], weights, e, activation)
    return output.reshape(x.shape)


CASES = {
    "as Mixtral": {},
    "one expert, as Switch": {"num_experts_per_token": 1, "normalize_weights": False, "gated": False},
    "three, with biases": {"num_experts_per_token": 3, "use_bias": True, "normalize_weights": False},
    "plain, with biases": {"gated": False, "use_bias": True, "activation": "relu"},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_equals_numpy(options):
    layer, weights = randomized(**options)
    activation = reference.relu if options.get("activation") == "relu" else reference.silu
    x = vectors(2, 5, D)
    expected = mixture(x, weights, layer, activation=activation)
    np.testing.assert_allclose(run(layer, x), expected, atol=1e-5)
    # one token: with one expert out of four, that one alone
    np.testing.assert_allclose(run(layer, x[:1, :1]), expected[:1, :1], atol=1e-5)


def test_many_experts_and_few_tokens():
    """Two tokens of 16 experts read the kernels of their four; more of them share all products."""
    layer = kt.layers.MixtureOfExperts(16, F, use_bias=True)
    layer.build((None, None, D))
    reference.randomize(layer)
    x = vectors(4, 4, D)
    few = np.concatenate([run(layer, x[i : i + 1, j : j + 2]) for i in range(4) for j in (0, 2)]).reshape(x.shape)
    np.testing.assert_allclose(run(layer, x), few, atol=1e-5)


def mixtral(**options):
    import torch
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(0)
    sizes = {"hidden_size": D, "intermediate_size": F, "num_local_experts": E, "num_experts_per_tok": 2}
    block = MixtralSparseMoeBlock(MixtralConfig(**sizes, **options)).eval()
    for parameter in block.parameters():
        parameter.data.normal_(0, 0.5)
    return block


def test_equals_mixtral():
    import torch
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    block = mixtral()
    layer, _ = randomized(load_balancing_loss=0.5)
    state = {name: value.numpy() for name, value in block.state_dict().items()}
    gate, intermediate = np.split(state["experts.gate_up_proj"], 2, axis=1)
    values = [state["gate.weight"].T, *(w.transpose(0, 2, 1) for w in (gate, intermediate, state["experts.down_proj"]))]
    layer.set_weights(values)
    x = vectors(2, 5, D)
    with torch.no_grad():
        expected = block(torch.from_numpy(x)).numpy()
        logits = torch.from_numpy(x.reshape(-1, D)) @ block.gate.weight.T
    np.testing.assert_allclose(run(layer, x), expected, atol=1e-5)
    for mask in (None, MASK):
        attention_mask = None if mask is None else torch.from_numpy(mask.astype("int64"))
        loss = load_balancing_loss_func((logits,), E, 2, attention_mask).numpy()
        np.testing.assert_allclose(losses(layer, x, mask), 0.5 * loss, rtol=1e-5)


def losses(layer, x, mask=None, training=True):
    """The sum of what a call adds to the loss."""

    def call(x):
        layer(x, mask=mask, training=training)
        return sum(layer.losses, keras.ops.zeros(()))

    mask = None if mask is None else keras.ops.convert_to_tensor(mask)
    if keras.backend.backend() != "jax":
        return numpy(call(keras.ops.convert_to_tensor(x)))
    values = [w.value for w in layer.trainable_variables], [w.value for w in layer.non_trainable_variables]
    _, _, found = layer.stateless_call(*values, x, mask=mask, training=training, return_losses=True)
    return numpy(sum(found, keras.ops.zeros(())))


def test_losses_equal_numpy():
    layer, weights = randomized(load_balancing_loss=0.1, router_z_loss=0.01)
    x = vectors(2, 5, D)
    for mask in (None, MASK):
        tokens = x.reshape(-1, D)[slice(None) if mask is None else mask.reshape(-1)].astype("float64")
        logits, probabilities, chosen, _ = route(tokens, weights, layer)
        sent = np.array([(chosen == e).any(-1).mean() for e in range(E)])
        expected = 0.1 * E * (sent * probabilities.mean(0)).sum()
        expected += 0.01 * (np.log(np.exp(logits).sum(-1)) ** 2).mean()
        np.testing.assert_allclose(losses(layer, x, mask), expected, rtol=1e-5)
    assert losses(layer, x, training=False) == 0
    assert losses(layer, x, np.zeros_like(MASK)) == 0  # nothing but padding


def test_an_even_spread_has_the_least_balancing_loss():
    layer, _ = randomized(load_balancing_loss=1.0)
    layer.router_kernel.assign(np.zeros((D, E)))
    np.testing.assert_allclose(losses(layer, vectors(2, 5, D)), 2, rtol=1e-5)  # k


@pytest.mark.parametrize("capacity_factor, masked", [(0.25, False), (0.5, True), (1.0, True), (4.0, False)])
def test_capacity_in_training(capacity_factor, masked):
    layer, weights = randomized(capacity_factor=capacity_factor, use_bias=True)
    x = vectors(2, 5, D)
    mask = MASK if masked else None
    capacity = math.ceil(capacity_factor * 2 * 10 / E)

    def call(x, mask):
        return layer(x, mask=mask if masked else None, training=True), layer(x, mask=mask)

    output, at_inference = run(call, x, MASK)
    expected = mixture(x, weights, layer, capacity, mask)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    if capacity_factor != 1:  # below it there is not room for all, and four times as much is room for whatever comes
        dropped = abs(expected - mixture(x, weights, layer, math.inf, mask)).max() > 1e-3
        assert dropped == (capacity_factor < 1)
    np.testing.assert_allclose(at_inference, mixture(x, weights, layer), atol=1e-5)


def test_capacity_is_rounded_up_only_where_it_is_no_whole_number():
    layer = kt.layers.MixtureOfExperts(10, F, capacity_factor=1.1)
    assert [layer._capacity(n) for n in (1, 50, 51)] == [1, 11, 12]  # 0.22, 11.000000000000002, 11.22


def test_batch_mates_and_padding_change_nothing():
    layer, _ = randomized()
    x = vectors(3, 5, D)
    padded = np.pad(x, ((0, 0), (2, 1), (0, 0)))
    expected, turned, alone, inside = run(lambda *inputs: [layer(x) for x in inputs], x, x[::-1].copy(), x[1:2], padded)
    np.testing.assert_allclose(turned, expected[::-1], atol=1e-6)
    np.testing.assert_allclose(alone, expected[1:2], atol=1e-6)
    np.testing.assert_allclose(inside[:, 2:-1], expected, atol=1e-6)


def test_an_expert_that_overflows_keeps_it_to_itself():
    layer, _ = randomized(num_experts_per_token=1, normalize_weights=False, gated=False, activation="relu")
    router = np.zeros((D, E), "float32")
    router[0] = [9, -9, -9, -9]
    layer.router_kernel.assign(router)
    layer.output_kernel.assign(np.where(np.arange(E)[:, None, None] == 1, np.inf, numpy(layer.output_kernel)))
    assert np.isfinite(run(layer, 1 + abs(vectors(2, 5, D)))).all()


def test_a_block_hands_its_mask_on():
    """Padding counts neither for the balancing loss nor for the capacity."""
    x = vectors(2, 5, D)
    for options in ({"load_balancing_loss": 1.0}, {"capacity_factor": 0.5}):
        experts = kt.layers.MixtureOfExperts(E, F, **options)
        block = kt.layers.EncoderBlock(2, feed_forward=experts, norm_placement="pre")
        block.build((None, None, D))
        reference.randomize(block)
        other = np.where(MASK[..., None], x, 7).astype("float32")

        def output_and_loss(x, mask, block=block):
            return block(x, padding_mask=mask, training=True), sum(block.losses, keras.ops.zeros(()))

        (output, loss), (same_output, same_loss) = (run(output_and_loss, inputs, MASK) for inputs in (x, other))
        np.testing.assert_allclose(output[MASK], same_output[MASK], atol=1e-5)
        np.testing.assert_allclose(loss, same_loss, atol=1e-5)
        assert (loss > 0) == ("load_balancing_loss" in options)


@pytest.mark.parametrize(
    "options", [{}, {"capacity_factor": 1.0}, {"num_experts_per_token": 1, "normalize_weights": False}], ids=str
)
def test_gradients(options):
    """Every expert that a token goes to learns, and so does the router."""
    layer, weights = randomized(**options)
    x = vectors(1, 3, D)
    tensor = keras.ops.convert_to_tensor(x)
    found = weight_gradients(layer, lambda: keras.ops.sum(keras.ops.square(layer(tensor, training=True))))
    assert len(found) == len(layer.weights)
    used = np.isin(np.arange(E), route(x.reshape(-1, D), weights, layer)[2])
    for path, gradient in found.items():
        assert np.isfinite(gradient).all()
        if path.endswith("router_kernel"):
            assert abs(gradient).max() > 1e-5
        elif "capacity_factor" not in options:
            assert ((abs(gradient).max((1, 2)) > 0) == used).all(), path


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_policies(policy):
    exact, _ = randomized()
    layer, _ = randomized(dtype=policy)
    assert keras.backend.standardize_dtype(layer.router_kernel.dtype) == "float32"
    x = numpy(keras.ops.cast(keras.ops.cast(vectors(2, 5, D), layer.compute_dtype), "float32"))  # routed alike
    output = layer(x)
    assert keras.backend.standardize_dtype(output.dtype) == policy.replace("mixed_", "")
    np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), run(exact, x), atol=0.05)


def language_model(**options):
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.layers.PositionalEmbedding(20, 16, pad_token_id=0)
    x = embedding(ids)
    experts = kt.layers.MixtureOfExperts(E, 12, **options)
    x = kt.layers.DecoderBlock(2, feed_forward=experts, norm_placement="pre")(x)
    model = keras.Model(ids, embedding(keras.layers.LayerNormalization()(x), reverse=True))
    reference.randomize(model, stddev=0.3)
    return model


def test_texts_are_written_through_the_cache():
    model = language_model(capacity_factor=0.5)
    prompts = [[3, 4, 5, 6], [7]]
    texts = kt.generate(model, prompts, 5)
    for prompt, text, most_probable in zip(prompts, texts, predict(model, texts).argmax(-1), strict=True):
        end = len(prompt) + 5
        assert text[len(prompt) : end].tolist() == most_probable[len(prompt) - 1 : end - 1].tolist()


def test_fit_adds_the_losses():
    ids = np.random.default_rng(0).integers(1, 20, (4, 6))
    ids[1, 4:] = 0
    model = language_model(load_balancing_loss=10.0, capacity_factor=1.25)
    metrics = [kt.training.TokenCrossentropy()]
    model.compile(keras.optimizers.SGD(0.0), kt.training.MaskedCrossentropy(), weighted_metrics=metrics)
    history = model.fit(ids, np.roll(ids, -1, 1), batch_size=4, verbose=0).history
    added = history["loss"][0] - history["token_crossentropy"][0]
    assert 10 * 1.5 < added < 10 * 4  # between k, or hardly less, and E


def test_dropout_and_initializers():
    layer = kt.layers.MixtureOfExperts(E, F, dropout=0.5, seed=1)
    x = vectors(2, 5, D)
    np.testing.assert_array_equal(numpy(layer(x)), numpy(layer(x)))
    assert abs(numpy(layer(x, training=True)) - numpy(layer(x, training=True))).max() > 1e-4
    layer = kt.layers.MixtureOfExperts(E, 50, kernel_initializer=keras.initializers.GlorotUniform(seed=3))
    layer.build((None, None, 30))
    kernel = numpy(layer.intermediate_kernel)
    assert abs(kernel[0] - kernel[1]).max() > 1e-3 and abs(kernel - numpy(layer.gate_kernel)).max() > 1e-3
    limit = math.sqrt(6 / (30 + 50))  # of one expert's matrix
    assert limit * 0.98 < abs(kernel).max() <= limit


def test_constraints_act_on_each_expert():
    constraint = keras.constraints.UnitNorm(axis=0)
    layer, _ = randomized(kernel_constraint=constraint)
    kernel = layer.intermediate_kernel
    np.testing.assert_allclose(np.linalg.norm(numpy(kernel.constraint(kernel)), axis=1), 1, atol=1e-5)


def test_config_keeps_every_argument():
    options = {
        "num_experts": 5,
        "intermediate_dim": 12,
        "num_experts_per_token": 3,
        "activation": "relu",
        "gated": False,
        "capacity_factor": 1.25,
        "load_balancing_loss": 0.01,
        "normalize_weights": False,
        "router_z_loss": 0.001,
        "dropout": 0.25,
        "use_bias": True,
        "seed": 3,
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.5),
        "bias_initializer": keras.initializers.Constant(0.5),
        "kernel_regularizer": keras.regularizers.L2(0.5),
        "bias_regularizer": keras.regularizers.L1(0.25),
        "kernel_constraint": keras.constraints.MaxNorm(3),
        "bias_constraint": keras.constraints.NonNeg(),
        "name": "experts",
        "dtype": "mixed_bfloat16",
    }
    assert_config_holds(kt.layers.MixtureOfExperts, options)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_experts": 0}, ["num_experts", "0"]),
        ({"num_experts_per_token": 5}, ["num_experts_per_token=5", "num_experts=4"]),
        ({"num_experts_per_token": 1}, ["num_experts_per_token=1", "normalize_weights=False"]),
        ({"capacity_factor": 0}, ["capacity_factor", "0"]),
        ({"load_balancing_loss": -1}, ["load_balancing_loss", "-1"]),
        ({"router_z_loss": math.inf}, ["router_z_loss", "inf"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
    ],
)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.layers.MixtureOfExperts(**{"num_experts": E, "intermediate_dim": F, **options})
    assert all(word in str(error.value) for word in words)
