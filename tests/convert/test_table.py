"""The engine of the tables: every change back and forth, and all that must not pass in silence."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.convert import rows, table
from keras_transformer.convert.config import Field, always, builder_arguments, same
from keras_transformer.convert.rows import LINEAR, Row, dense, fused, layer_norm, under
from tests.backend import numpy

D, N, H, P, C = 4, 2, 3, 5, 7

# Our shape, their shape, and where theirs has what ours has at an index.
CHANGES = {
    "FLAT": ((N, H), (N * H,), lambda n, h: n * H + h),
    "TABLE": ((P, D), (P, D), lambda p, d: (p, d)),
    "LINEAR": ((D, N, H), (N * H, D), lambda d, n, h: (n * H + h, d)),
    "FROM_HEADS": ((N, H, D), (D, N * H), lambda n, h, d: (d, n * H + h)),
    "LEADING": ((P, D), (1, P, D), lambda p, d: (0, p, d)),
    "CONV1D": ((D, N, H), (D, N * H), lambda d, n, h: (d, n * H + h)),
    "CONV1D_FROM_HEADS": ((N, H, D), (N * H, D), lambda n, h, d: (n * H + h, d)),
    "PATCHES": ((P, P, C, D), (D, C, P, P), lambda row, column, c, d: (d, c, row, column)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name):
    """Each number is where its indices say."""
    change, (shape, their_shape, place) = getattr(rows, name), CHANGES[name]
    assert change.their_shape(shape) == their_shape
    theirs = np.random.default_rng(0).normal(size=their_shape).astype("float32")
    ours = change.to_ours(theirs, shape)
    assert ours.shape == shape
    assert all(ours[index] == theirs[place(*index)] for index in np.ndindex(shape))
    back = change.to_theirs(ours)
    assert back.shape == their_shape and back.dtype == "float32"
    np.testing.assert_array_equal(back, theirs)


def test_every_change_is_tried():
    assert {name for name, x in vars(rows).items() if isinstance(x, rows.Change)} == CHANGES.keys()


ROWS = under(
    "model.",
    "",
    [
        *under("layer.{i}.", "block_{i}_", [*fused("both", ["first", "second"]), *layer_norm("norm", "norm")]),
        *dense("last", "last"),
        *dense("unused", "nowhere"),
    ],
)


@pytest.fixture(scope="module")
def model():
    """Two blocks of two dense layers next to each other and a norm, then a dense layer without a bias."""
    inputs = x = keras.Input((3,))
    for i in range(2):
        first, second = (
            keras.layers.Dense(size, name=f"block_{i}_{name}")(x) for size, name in ((2, "first"), (1, "second"))
        )
        x = keras.layers.Concatenate()([first, second])
        x = keras.layers.LayerNormalization(name=f"block_{i}_norm")(x)
    x = keras.layers.Dropout(0.5, seed=1)(x)
    return keras.Model(inputs, keras.layers.Dense(4, use_bias=False, name="last")(x))


def checkpoint(seed=0):
    """Tensors for that model."""
    random = np.random.default_rng(seed)
    shapes = {"model.last.weight": (4, 3)}
    for i in range(2):
        shapes |= {f"model.layer.{i}.both.weight": (3, 3), f"model.layer.{i}.both.bias": (3,)}
        shapes |= {f"model.layer.{i}.norm.weight": (3,), f"model.layer.{i}.norm.bias": (3,)}
    return {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def load(model, tensors, **options):
    table.load(model, tensors, ROWS, **{"prefix": "model.", **options})


def assert_saves(model, tensors):
    saved = table.save(model, ROWS)
    assert saved.keys() == tensors.keys()
    for name, value in saved.items():
        np.testing.assert_array_equal(value, tensors[name])


def test_loading_and_saving(model):
    tensors = checkpoint()
    load(model, tensors)
    values = {variable.path: numpy(variable) for variable in model.variables}
    both, bias = tensors["model.layer.1.both.weight"], tensors["model.layer.1.both.bias"]
    np.testing.assert_array_equal(values["block_1_first/kernel"], both[:2].T)
    np.testing.assert_array_equal(values["block_1_second/kernel"], both[2:].T)
    np.testing.assert_array_equal(values["block_1_second/bias"], bias[2:])
    assert_saves(model, tensors)


def test_names_without_the_prefix_and_names_that_are_ignored(model):
    tensors = checkpoint(1)
    bare = {name.removeprefix("model."): value for name, value in tensors.items()}
    load(model, {**bare, "layer.0.mask": np.ones(1), "head.bias": np.ones(1)}, ignored=[r"model\..*mask", r"head\..*"])
    assert_saves(model, tensors)
    with pytest.raises(ValueError, match="with and without 'model.'.*last.weight"):
        load(model, {**tensors, "last.weight": tensors["model.last.weight"]})


def test_older_names_of_norms(model):
    tensors = checkpoint(3)
    older = {
        name.replace("norm.weight", "norm.gamma").replace("norm.bias", "norm.beta"): x for name, x in tensors.items()
    }
    assert "model.layer.1.norm.gamma" in older
    for names in (older, {name.removeprefix("model."): x for name, x in older.items()}):
        load(model, {name: np.zeros_like(x) for name, x in tensors.items()})
        load(model, names)
        assert_saves(model, tensors)
    with pytest.raises(ValueError, match="twice.*model.layer.1.norm.gamma.*model.layer.1.norm.weight"):
        load(model, {**tensors, "model.layer.1.norm.gamma": tensors["model.layer.1.norm.weight"]})


def test_a_tensor_for_each_expert():
    """Ours are one variable with an axis of experts; two that are fused are so in each of them."""
    layer = kt.layers.MixtureOfExperts(3, 5, name="experts")
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, layer(inputs))
    rows = [
        Row("router.weight", "experts/router_kernel", LINEAR),
        Row("{e}.both", ("experts/gate_kernel", "experts/intermediate_kernel"), LINEAR),
        Row("{e}.down", "experts/output_kernel", LINEAR),
    ]
    random, shapes = np.random.default_rng(0), {"router.weight": (3, 4)}
    shapes |= {f"{i}.both": (10, 4) for i in range(3)} | {f"{i}.down": (4, 5) for i in range(3)}
    tensors = {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    table.load(model, tensors, rows)
    for i in range(3):
        np.testing.assert_array_equal(numpy(layer.gate_kernel)[i], tensors[f"{i}.both"][:5].T)
        np.testing.assert_array_equal(numpy(layer.intermediate_kernel)[i], tensors[f"{i}.both"][5:].T)
        np.testing.assert_array_equal(numpy(layer.output_kernel)[i], tensors[f"{i}.down"].T)
    saved = table.save(model, rows)
    assert saved.keys() == tensors.keys() and all((saved[name] == x).all() for name, x in tensors.items())
    for change, message in (
        ({"2.down": None}, "no tensor '2.down'"),
        ({"1.down": np.ones((5, 4))}, r"'1.down' must have shape \(4, 5\)"),
        ({"3.down": np.ones((4, 5))}, "no place for these tensors: .'3.down'"),
    ):
        wrong = {name: x for name, x in {**tensors, **change}.items() if x is not None}
        with pytest.raises(ValueError, match=message):
            table.load(model, wrong, rows)


def test_tensors_that_are_there_twice(model):
    tensors = checkpoint(2)
    tied = [("head.weight", "model.last.weight")]
    load(model, {**tensors, "head.weight": tensors["model.last.weight"]}, tied=tied)
    assert_saves(model, tensors)
    with pytest.raises(ValueError, match="'head.weight' is not 'model.last.weight'"):
        load(model, {**tensors, "head.weight": tensors["model.last.weight"] + 1}, tied=tied)
    with pytest.raises(ValueError, match="no place for these tensors: .'head.weight'"):
        load(model, {**tensors, "head.weight": tensors["model.last.weight"]})


WRONG = {
    "missing": (lambda x: x.pop("model.layer.1.norm.bias"), "no tensor 'model.layer.1.norm.bias'.*block_1_norm/beta"),
    "unused": (lambda x: x.update({"model.more": np.ones(2)}), "no place for these tensors: .'model.more'"),
    "transposed": (
        lambda x: x.update({"model.last.weight": x["model.last.weight"].T}),
        r"'model.last.weight' must have shape \(4, 3\). Received: \(3, 4\)",
    ),
    "short": (
        lambda x: x.update({"model.layer.0.both.bias": np.ones(2)}),
        r"'model.layer.0.both.bias' must have shape \(3,\). Received: \(2,\)",
    ),
    "a layer more": (lambda x: x.update({"model.layer.2.norm.bias": np.ones(3)}), "'model.layer.2.norm.bias'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_checkpoint_that_does_not_fit_changes_nothing(model, name):
    before = [numpy(variable) for variable in model.variables]
    spoil, message = WRONG[name]
    tensors = checkpoint(3)
    spoil(tensors)
    with pytest.raises(ValueError, match=message):
        load(model, tensors)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(numpy(variable), value)


@pytest.mark.parametrize(
    "rows, message",
    [
        (ROWS[1:], "no row for these variables.*block_0_first/kernel"),
        ([*ROWS, Row("again", "last/kernel")], "last/kernel is in two rows: model.last.weight and again"),
        ([Row("fused", ("last/kernel", "last/bias")), *ROWS[:-4]], "of which the model lacks .'last/bias'"),
    ],
)
def test_a_table_that_does_not_fit(model, rows, message):
    for use in (lambda: table.load(model, checkpoint(), rows), lambda: table.save(model, rows)):
        with pytest.raises(ValueError, match=message):
            use()


FIELDS = [
    *always(placement="pre"),
    *same(width="hidden_dim", rope="rotary_base"),
    Field("width", "intermediate_dim", times=4),
    Field("inner", "intermediate_dim"),
    Field("scalar", "scale", power=-0.5, default=16),
    Field("nested.rope", "rotary_base"),
    Field("act", "activation", {"gelu_new": "gelu_tanh"}, "gelu_new"),
    Field("kind", None, {None: None, "plain": None}),
    Field("window", "layer_types", {None: None, 3: "local"}, unless="nested.types"),
]


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"width": 8}, {"hidden_dim": 8, "intermediate_dim": 32, "scale": 0.25}),
        ({"inner": 3, "scalar": 4, "kind": "plain"}, {"intermediate_dim": 3, "scale": 0.5}),
        ({"rope": 5.0, "nested": None}, {"rotary_base": 5.0, "scale": 0.25}),
        ({"rope": 5.0, "nested": {"rope": 7.0}}, {"rotary_base": 7.0, "scale": 0.25}),
        ({"window": 3}, {"layer_types": "local", "scale": 0.25}),
        ({"window": 4, "nested": {"types": 1}}, {"scale": 0.25}),
    ],
)
def test_arguments_of_a_config(config, expected):
    assert builder_arguments(config, FIELDS) == {"placement": "pre", "activation": "gelu_tanh", **expected}


@pytest.mark.parametrize("config", [{"act": "mish"}, {"kind": "odd"}, {"window": 4}])
def test_what_a_builder_cannot_follow_is_an_error(config):
    (name, value), *_ = config.items()
    with pytest.raises(ValueError, match=f"`{name}` of the config must be one of .*Received: {value!r}"):
        builder_arguments(config, FIELDS)


def test_a_value_of_another_kind():
    fields = [Field("activation", "activation", {"gelu": "gelu"})]
    for value in (["gelu"], {"gelu": 1}, 3):
        with pytest.raises(ValueError, match="`activation` of the config must be one of 'gelu'"):
            builder_arguments({"activation": value}, fields)
