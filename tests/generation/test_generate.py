"""`generate` is right to the token: cases B07, B20, B29 and B41 and their kinds."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation.loop import Loop
from tests.generation.models import VOCABULARY_SIZE, Stub, greedy_by_hand, ragged, stacked_gpt, translator

PROMPTS = ragged((5, 1, 9, 3))


@pytest.mark.parametrize(("pad_token_id", "position"), [(None, "sinusoidal"), (0, "learned")])
def test_decoder_only_equals_the_full_forward(pad_token_id, position):
    model = stacked_gpt(pad_token_id, position)
    texts = kt.generate(model, PROMPTS, 12)
    assert texts.dtype == np.int32 and texts.shape == (4, 9 + 12)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        expected = prompt + greedy_by_hand(model, prompt, 12)
        assert text[: len(expected)].tolist() == expected
        assert (text[len(expected) :] == 0).all()


@pytest.mark.parametrize(
    "options", [{}, {"norm_placement": "pre", "share_embeddings": None, "pad_token_id": None, "num_layers": 1}]
)
def test_encoder_decoder_equals_the_full_forward(options):
    model = translator(**options)
    texts = kt.generate(model, PROMPTS, 12)
    for source, text in zip(PROMPTS, texts, strict=True):
        expected = greedy_by_hand(model, [1], 12, stop=[2], source=source)
        assert text[: len(expected)].tolist() == expected
        assert (text[len(expected) :] == 0).all()


def test_cache_on_and_off_give_the_same_text_for_every_split_of_the_cache():
    model = stacked_gpt()
    long = kt.generate(model, PROMPTS, 60)  # the cache is doubled on the way
    assert (long == kt.generate(model, PROMPTS, 60, cache=False)).all()


def test_a_row_alone_is_the_row_in_any_batch_and_order():
    model = translator()
    together = kt.generate(model, PROMPTS, 10, stop_token_id=[])
    assert (kt.generate(model, PROMPTS, 10, stop_token_id=[], batch_size=1) == together).all()
    assert (kt.generate(model, PROMPTS[::-1], 10, stop_token_id=[]) == together[::-1]).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_arrays_with_padding_on_either_side(side):
    model = stacked_gpt(pad_token_id=None)
    ids, mask = kt.data.pad_batch(PROMPTS, pad_token_id=7, side=side)
    texts = kt.generate(model, ids, 8, padding_mask=mask, pad_token_id=7)
    assert (texts[:, : ids.shape[1]] == ids).all()
    lists = kt.generate(model, PROMPTS, 8)
    for prompt, array_row, list_row in zip(PROMPTS, texts, lists, strict=True):
        assert array_row[ids.shape[1] :].tolist() == list_row[len(prompt) : len(prompt) + 8].tolist()


def test_the_id_that_the_model_masks_is_padding_at_the_ends_and_a_hole_in_between():
    model = stacked_gpt(pad_token_id=0, position="learned")
    prompt = [5, 0, 6, 7]
    bare = kt.generate(model, [prompt], 8)[0, 4:]
    assert bare.tolist() == greedy_by_hand(model, prompt, 8)
    for array in ([[0, 0, *prompt]], [[*prompt, 0, 0]]):
        array = np.asarray(array)
        assert (kt.generate(model, array, 8)[0, array.shape[1] :] == bare).all()
        assert (kt.generate(model, array.tolist(), 8)[0, array.shape[1] :] == bare).all()


def test_grouped_heads_windows_and_gates_decode_through_the_cache():
    attention = kt.layers.MultiHeadAttention(4, 8, num_key_value_heads=2, sliding_window=3, use_gate=True)
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
    block = kt.layers.DecoderBlock(
        attention=attention,
        feed_forward=kt.layers.FeedForward(24, "silu", gated=True),
        norm="rms",
        norm_placement="pre",
    )
    model = keras.Model(ids, table(block(table(ids)), reverse=True))
    texts = kt.generate(model, PROMPTS, 10)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert text[len(prompt) : len(prompt) + 10].tolist() == greedy_by_hand(model, prompt, 10)


def test_a_model_from_a_file_writes_the_same(tmp_path):
    model = translator()
    model.save(tmp_path / "translator.keras")
    loaded = keras.models.load_model(tmp_path / "translator.keras")
    assert (kt.generate(loaded, PROMPTS, 10) == kt.generate(model, PROMPTS, 10)).all()


def test_further_training_is_seen():
    model = keras.models.clone_model(stacked_gpt())
    kt.generate(model, PROMPTS, 6)
    model.set_weights([0.5 * weight + 0.1 for weight in model.get_weights()])
    texts = kt.generate(model, PROMPTS, 6)
    assert texts[0, 5:11].tolist() == greedy_by_hand(model, PROMPTS[0], 6)


class TestEnd:
    """B20: the end of a sequence."""

    def test_rows_stop_at_their_stop_token_and_the_loop_with_the_last_row(self):
        stop = 2
        script = np.full((2, 60), 9)
        script[0, 1], script[1, 4] = stop, stop  # row 0 ends at its second token, row 1 at its fifth
        model = Stub(script, prompt_length=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = kt.generate(model, [[3, stop, 4], [5, 6, 7]], 50, stop_token_id=stop, return_dict=True)
        assert result["lengths"] == [2, 5]
        assert result["token_ids"].tolist() == [[3, 2, 4, 9, 2, 0, 0, 0], [5, 6, 7, 9, 9, 9, 9, 2]]

    def test_without_a_stop_token_it_writes_exactly_as_many_as_asked(self):
        model = stacked_gpt()
        assert kt.generate(model, PROMPTS, 50, return_dict=True)["lengths"] == [50] * 4

    def test_zero_new_tokens_give_the_prompt(self):
        assert kt.generate(stacked_gpt(), [[5, 6], [7]], 0).tolist() == [[5, 6], [7, 0]]

    def test_pad_equal_to_stop_two_stop_ids_and_a_stop_id_in_the_prompt(self):
        model = stacked_gpt()
        free = kt.generate(model, [PROMPTS[0]], 12)[0, 5:].tolist()
        stops = [free[3], free[6]]
        first = min(free.index(token) for token in stops)
        result = kt.generate(model, [PROMPTS[0]], 12, stop_token_id=stops, pad_token_id=stops[0], return_dict=True)
        assert result["lengths"] == [first + 1]
        assert result["token_ids"][0, 5:].tolist() == free[: first + 1]
        prompt = [free[3], *PROMPTS[0]]
        result = kt.generate(model, [prompt], 12, stop_token_id=free[3], return_dict=True)
        expected = greedy_by_hand(model, prompt, 12, stop=[free[3]])
        assert result["token_ids"][0, 6:].tolist() == expected

    def test_the_loop_runs_no_further_than_the_last_row(self):
        model = stacked_gpt()
        free = kt.generate(model, [PROMPTS[0]], 12)[0, 5:].tolist()
        stop = free[4]
        steps = free.index(stop)
        steps_run = []
        known = model._decoding
        loop = known.loops[known.decoders["auto", None], Loop]
        chunk = loop._chunk

        def counting(*arguments, **options):
            result = chunk(*arguments, **options)
            steps_run.append(int(ops.convert_to_numpy(result[2])))
            return result

        loop._chunk = counting
        kt.generate(model, [PROMPTS[0]], 50, stop_token_id=stop)
        loop._chunk = chunk
        assert sum(steps_run) == steps  # the first token comes with the prompt


COUNTS = []


class Counter(keras.layers.Layer):
    """Counts how often Python runs its call: traces where code is compiled."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs):
        COUNTS.append(1)  # not on the layer: Keras would wrap the list
        return inputs


def test_compiled_once_for_all_that_changes_from_call_to_call():
    """B29. On torch nothing is compiled: there are only the forwards themselves to count."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
    x = Counter()(table(ids))
    model = keras.Model(ids, table(kt.layers.DecoderBlock(2, 32)(x), reverse=True))
    kt.generate(model, ragged((5, 7)), 1)  # the check of the model, as a layer of the user is in it
    del COUNTS[:]
    kt.generate(model, ragged((5, 7)), 10)
    traces = len(COUNTS)
    for _ in range(3):
        kt.generate(model, ragged((5, 7)), 10)
    for lengths in ((5, 6), (6, 7), (7, 8), (3, 2)):
        kt.generate(model, ragged(lengths), 10)
    kt.generate(model, ragged((5, 7)), 30, stop_token_id=[4, 5])
    kt.generate(model, ragged((5, 7, 9)), 10)  # four rows, as three and four share a shape
    kt.generate(model, ragged((5, 7, 9, 4)), 10)
    again = len(COUNTS) - traces
    if keras.config.backend() == "torch":
        assert again == 7 * 10 + 30 + 2 * 10  # one forward for each token
    else:
        assert 1 <= traces <= 2 and 1 <= again <= 3  # the step for two rows; prompt and step for four rows


class TestForeignLayers:
    """What mixes positions behind the cache's back is found out, said and decoded right."""

    def stack(self, layer):
        ids = keras.Input((None,), dtype="int32")
        x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)(ids)
        x = kt.layers.DecoderBlock(2, 32)(layer(x))
        return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))

    @pytest.mark.parametrize("name", ["lstm", "conv"])
    def test_recurrent_and_convolutional(self, name):
        layer = {
            "lstm": lambda: keras.layers.LSTM(16, return_sequences=True),
            "conv": lambda: keras.layers.Conv1D(16, 3, padding="causal"),
        }[name]()
        model = self.stack(layer)
        with pytest.warns(UserWarning, match=layer.name):
            texts = kt.generate(model, PROMPTS, 8)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # it is said once
            kt.generate(model, PROMPTS, 8)
        for prompt, text in zip(PROMPTS, texts, strict=True):
            assert text[len(prompt) : len(prompt) + 8].tolist() == greedy_by_hand(model, prompt, 8)
        with pytest.raises(ValueError, match=layer.name):
            kt.generate(model, PROMPTS, 8, cache=True)

    def test_position_wise_layers_of_the_user_are_cached(self):
        class Scale(keras.layers.Layer):
            def call(self, x):
                return x * 2.0

        model = self.stack(Scale())
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            texts = kt.generate(model, PROMPTS, 8, cache=True)
        assert texts[0, 5:13].tolist() == greedy_by_hand(model, PROMPTS[0], 8)

    def test_a_subclassed_model(self):
        class Subclassed(keras.Model):
            def __init__(self):
                super().__init__()
                self.table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
                self.block = kt.layers.DecoderBlock(2, 32)

            def call(self, token_ids):
                return self.table(self.block(self.table(token_ids)), reverse=True)

        model = Subclassed()
        model(np.asarray([[1, 2]]))
        texts = kt.generate(model, PROMPTS, 8, cache=True)
        assert texts[0, 5:13].tolist() == greedy_by_hand(model, PROMPTS[0], 8)

    def test_fixed_length_input_is_decoded_in_full(self):
        ids = keras.Input((20,), dtype="int32")
        table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
        fixed = keras.Model(ids, table(kt.layers.DecoderBlock(2, 32)(table(ids)), reverse=True))
        free_ids = keras.Input((None,), dtype="int32")
        free = keras.Model(free_ids, table(fixed.layers[2](table(free_ids)), reverse=True))
        with pytest.warns(UserWarning, match="fixed length 20"):
            texts = kt.generate(fixed, PROMPTS, 8)
        assert (texts == kt.generate(free, PROMPTS, 8)).all()
        with pytest.raises(ValueError, match="20"):
            kt.generate(fixed, PROMPTS, 15)

    def test_operations_between_the_layers(self):
        """Positions of a user's own, counted by `keras.ops`, and a shift of the tokens by one."""

        def counted(ids):
            positions = ops.cumsum(ops.ones_like(ids), axis=1) - 1
            return keras.layers.Embedding(VOCABULARY_SIZE, 16)(ids) + keras.layers.Embedding(64, 16)(positions)

        def shifted(ids):
            x = keras.layers.Embedding(VOCABULARY_SIZE, 16)(ids)
            return x + ops.pad(x[:, :-1], [(0, 0), (1, 0), (0, 0)])

        for embed in (counted, shifted):
            ids = keras.Input((None,), dtype="int32")
            x = kt.layers.DecoderBlock(2, 32)(embed(ids))
            model = keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))
            with pytest.warns(UserWarning, match="in full"):
                texts = kt.generate(model, PROMPTS, 6)
            for prompt, text in zip(PROMPTS, texts, strict=True):
                assert text[len(prompt) : len(prompt) + 6].tolist() == greedy_by_hand(model, prompt, 6)

    def test_a_layer_that_cannot_take_one_token(self):
        class NeedsTwo(keras.layers.Layer):
            def call(self, x):
                if x.shape[1] == 1:
                    raise RuntimeError("two are needed")
                return x

        model = self.stack(NeedsTwo())
        with pytest.warns(UserWarning, match="two are needed"):
            texts = kt.generate(model, PROMPTS, 6)
        assert texts[0, 5:11].tolist() == greedy_by_hand(model, PROMPTS[0], 6)

    def test_a_layer_that_looks_both_ways(self):
        model = self.stack(keras.layers.Conv1D(16, 3, padding="same"))
        with pytest.raises(ValueError, match="both ways"):
            kt.generate(model, PROMPTS, 4)

    @pytest.mark.parametrize("masks", [True, False])
    def test_an_encoder_decoder_of_other_layers(self, masks):
        """Sources share a batch only where padding behind them changes nothing."""
        source = keras.Input((None,), dtype="int32", name="encoder_token_ids")
        target = keras.Input((None,), dtype="int32", name="decoder_token_ids")
        table = keras.layers.Embedding(VOCABULARY_SIZE, 16, mask_zero=masks)
        state = keras.layers.GRU(16)(table(source))
        x = keras.layers.GRU(16, return_sequences=True)(table(target), initial_state=state)
        model = keras.Model([source, target], keras.layers.Dense(VOCABULARY_SIZE)(x))
        sources = ragged((5, 3, 5, 4))
        with pytest.warns(UserWarning, match="sub-models"):
            texts = kt.generate(model, sources, 6, start_token_id=1)
        for row, text in zip(sources, texts, strict=True):
            assert text.tolist() == greedy_by_hand(model, [1], 6, source=row)


class TestSpecialIds:
    """What stands on padding, and which id it is, changes nothing."""

    @pytest.mark.parametrize(
        "options", [{"pad_token_id": None}, {"position": "learned", "max_sequence_length": 20}], ids=str
    )
    def test_sources_of_any_length(self, options):
        """Also of as many tokens as there are positions, and where no id is masked; with and without a cache."""
        model = translator(share_embeddings="all", num_layers=1, **options)
        sources = ragged((5, 18))
        texts = [kt.generate(model, sources, 5, stop_token_id=[], cache=cache) for cache in (True, False)]
        for i, source in enumerate(sources):
            expected = greedy_by_hand(model, [1], 5, source=source, room=20)
            assert [text[i].tolist() for text in texts] == [expected, expected]

    def test_a_start_token_that_the_model_masks(self):
        """A row counts from its first token that is not masked, with and without a cache."""
        model = kt.models.transformer(VOCABULARY_SIZE, VOCABULARY_SIZE, 1, 2, 16, 32, start_token_id=0)
        sources = ragged((5, 3))
        texts = [kt.generate(model, sources, 8, stop_token_id=[], cache=cache) for cache in (True, False)]
        assert (texts[0] == texts[1]).all()
        assert texts[0][0].tolist() == greedy_by_hand(model, [0], 8, source=sources[0])
        gpt, prompt = stacked_gpt(0), np.asarray([[0, 0, 5, 6, 7]])
        texts = [
            kt.generate(gpt, prompt, 6, padding_mask=np.ones((1, 5), bool), cache=cache) for cache in (True, False)
        ]
        assert (texts[0] == texts[1]).all()

    def test_the_masked_id_fills_up(self):
        """Fed back, the texts are what they were: 0 would be read as a word."""
        model = stacked_gpt(pad_token_id=VOCABULARY_SIZE - 1)
        texts = kt.generate(model, PROMPTS, 4)
        assert (texts[:, -1] == VOCABULARY_SIZE - 1).any()
        for row, prompt in zip(texts, PROMPTS, strict=True):
            assert (row[len(prompt) + 4 :] == VOCABULARY_SIZE - 1).all()

    @pytest.mark.parametrize("pad_token_id", [-1, 50257])
    @pytest.mark.parametrize("cache", [True, False])
    def test_a_pad_id_that_is_not_in_the_vocabulary(self, pad_token_id, cache):
        texts = kt.generate(stacked_gpt(), PROMPTS, 4, pad_token_id=pad_token_id, cache=cache)
        expected = kt.generate(stacked_gpt(), PROMPTS, 4)
        for prompt, text, right in zip(PROMPTS, texts, expected, strict=True):
            end = len(prompt) + 4
            assert text[:end].tolist() == right[:end].tolist()
            assert (text[end:] == pad_token_id).all()

    def test_source_and_target_vocabularies_of_different_size(self):
        model = kt.models.transformer(30, 12, 1, 2, 8, 16, start_token_id=11, share_embeddings="target")
        kt.generate(model, [[29, 3]], 2)
        with pytest.raises(ValueError, match="30"):
            kt.generate(model, [[30, 3]], 2)
        with pytest.raises(ValueError, match="start_token_id=12"):
            kt.generate(model, [[3]], 2, start_token_id=12)


class Unbuilt(keras.Model):
    """A subclassed model whose `call` takes training for granted; `built` says whether to call it first."""

    def __init__(self):
        super().__init__()
        self.table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
        self.block = kt.layers.DecoderBlock(2, 32, dropout=0.5)
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, token_ids, training=True):
        x = self.block(self.table(token_ids), training=training)
        return self.table(self.dropout(x, training=training), reverse=True)


class TestModelsAsTheyCome:
    def test_inside_a_callback_of_fit(self):
        """It sees the weights as they are after each batch."""
        model = kt.models.transformer(VOCABULARY_SIZE, VOCABULARY_SIZE, 1, 2, 8, 16, start_token_id=1, dropout=0.0)
        model.compile(keras.optimizers.SGD(5.0), kt.training.MaskedCrossentropy())
        inputs, told = ragged((5, 3)), []

        def write():
            return kt.generate(model, inputs, 4, stop_token_id=[], return_dict=True)["log_probs"]

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: told.append(write()))
        x = np.random.default_rng(0).integers(3, VOCABULARY_SIZE, (6, 4))
        model.fit([x, x], x, batch_size=2, epochs=1, verbose=0, callbacks=[callback])
        np.testing.assert_allclose(told[-1], write(), atol=1e-5)
        assert abs(np.subtract(told[-1], told[0])).max() > 1e-3

    def test_a_model_that_was_never_called(self):
        """Its weights are made before anything is compiled; dropout is off whatever its `call` takes for granted."""
        model = Unbuilt()
        texts = kt.generate(model, PROMPTS[:1], 6, cache=True)
        expected = greedy_by_hand(lambda ids: model(ids, training=False), PROMPTS[0], 6)
        assert texts[0, 5:].tolist() == expected

    def test_a_sequential_model_without_input_still_trains(self):
        table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
        model = keras.Sequential([table, kt.layers.DecoderBlock(2, 32), keras.layers.Dense(VOCABULARY_SIZE)])
        texts = kt.generate(model, PROMPTS, 4)
        assert texts[0, 5:9].tolist() == greedy_by_hand(model, PROMPTS[0], 4)
        model.compile("sgd", kt.training.MaskedCrossentropy())
        model.fit(np.ones((2, 4), "int32"), np.ones((2, 4), "int32"), verbose=0)

    def test_any_callable(self):
        """It may work on NumPy, and is called once for each token."""
        calls = []

        def successor(ids):
            calls.append(1)
            return np.eye(10, dtype="float32")[(ops.convert_to_numpy(ids) + 1) % 10]

        with pytest.warns(UserWarning, match="not a Keras model"):
            assert kt.generate(successor, [[1, 2]], 5, stop_token_id=5).tolist() == [[1, 2, 3, 4, 5]]
        assert len(calls) == 3

    @pytest.mark.parametrize("outputs", [lambda x: {"a": x}, lambda x: x[:, 0]])
    def test_outputs_that_are_no_logits(self, outputs):
        ids = keras.Input((None,), dtype="int32")
        x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)(ids)
        model = keras.Model(ids, outputs(kt.layers.DecoderBlock(2, 32)(x)))
        with pytest.raises(ValueError, match="logits of shape"):
            kt.generate(model, PROMPTS, 2)


class Letters:
    """A tokenizer of the letters a to t."""

    def encode(self, texts):
        return [[ord(letter) - ord("a") + 3 for letter in text] for text in texts]

    def decode(self, rows):
        return ["".join(chr(token + ord("a") - 3) for token in row) for row in rows]


def test_text_in_text_out():
    model = stacked_gpt()
    texts = kt.generate(model, ["abc", "hello"], 4, tokenizer=Letters())
    ids = kt.generate(model, Letters().encode(["abc", "hello"]), 4)
    assert texts == Letters().decode([ids[0, :7].tolist(), ids[1].tolist()])
    result = kt.generate(model, "abc", 4, tokenizer=Letters(), return_dict=True)
    assert result["texts"] == texts[:1] and result["token_ids"].tolist() == [ids[0, :7].tolist()]


class TestBadInput:
    def test_ids_outside_the_vocabulary(self):
        with pytest.raises(ValueError, match=f"{VOCABULARY_SIZE}.*{VOCABULARY_SIZE - 1}"):
            kt.generate(stacked_gpt(), [[5, VOCABULARY_SIZE]], 4)
        with pytest.raises(ValueError, match=str(2**32 + 5)):
            kt.generate(stacked_gpt(), [[2**32 + 5, 6]], 4)
        with pytest.raises(ValueError, match="-1"):
            kt.generate(stacked_gpt(), [[5, -1]], 4)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ([], "empty"),
            ([[5], []], r"inputs\[1\]"),
            ([[1.5, 2.0]], "integer"),
            (np.zeros((2, 3, 4), "int32"), "shape"),
            (np.zeros((2, 0), "int32"), "at least one"),
        ],
    )
    def test_shapes_and_types(self, inputs, message):
        with pytest.raises(ValueError, match=message):
            kt.generate(stacked_gpt(), inputs, 4)

    def test_options(self):
        model = stacked_gpt()
        with pytest.raises(ValueError, match="sampler"):
            kt.generate(model, PROMPTS, 4, sampler="magic")
        with pytest.raises(ValueError, match="max_new_tokens"):
            kt.generate(model, PROMPTS, -1)
        wrong = {"stop_token_id": (5.5, 2**40, [[5]]), "pad_token_id": (2.5,)}
        for argument, value in ((argument, value) for argument, values in wrong.items() for value in values):
            with pytest.raises(ValueError, match=argument):
                kt.generate(model, PROMPTS, 4, **{argument: value})
        assert kt.generate(model, PROMPTS, 4, stop_token_id=np.array(5)).shape[0] == 4
        with pytest.raises(ValueError, match="cache='off'"):
            kt.generate(model, PROMPTS, 4, cache="off")
        with pytest.raises(ValueError, match="batch_size=0"):
            kt.generate(model, PROMPTS, 4, batch_size=0)
        with pytest.raises(ValueError, match="padding_mask"):
            kt.generate(model, np.ones((2, 3), "int32"), 4, padding_mask=np.ones((2, 4), bool))
        with pytest.raises(ValueError, match="start_token_id"):
            kt.generate(kt.models.transformer(VOCABULARY_SIZE, 9, 1, 2, 8, 16), PROMPTS, 4)

    def test_more_tokens_than_learned_positions(self):
        model, prompts = stacked_gpt(0, "learned"), ragged((5, 3))
        assert kt.generate(model, prompts, 60).shape == (2, 65)  # the last token is not read any more
        with pytest.raises(ValueError, match="64"):
            kt.generate(model, prompts, 61)

    def test_a_model_that_looks_both_ways(self):
        ids = keras.Input((None,), dtype="int32")
        table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16)
        model = keras.Model(ids, table(kt.layers.EncoderBlock(2, 32)(table(ids)), reverse=True))
        with pytest.raises(ValueError, match="both ways"):
            kt.generate(model, PROMPTS, 4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"inputs": None}, "`inputs` must be an array of token ids, or a list"),
        ({"inputs": 5}, "`inputs` must be an array of token ids, or a list"),
        ({"inputs": {"token_ids": [1]}}, "`inputs` must be an array of token ids, or a list"),
        ({"inputs": [1, [2]]}, r"`inputs\[0\]` must hold"),
        ({"inputs": [[[1], [2, 3]]]}, r"`inputs\[0\]` must hold integer token ids"),
        ({"stop_token_id": VOCABULARY_SIZE}, "`stop_token_id` must be a token id from 0 to"),
        ({"assistant_model": 3}, "`assistant_model` must be a Keras model"),
        ({"bad_words_ids": 5}, "`bad_words_ids` must be a list of id lists"),
        ({"stop_strings": 5}, "`stop_strings` must be strings"),
        ({"logits_processors": 5}, "`logits_processors` must be functions"),
        ({"logits_processors": lambda logits, text: logits[:, :3]}, "'<lambda>' must return logits of shape"),
        ({"logits_processors": lambda logits, text: None}, "'<lambda>' must return logits of shape .*None"),
    ],
    ids=lambda x: x if isinstance(x, str) else next(iter(x)),
)
def test_what_cannot_be_asked(arguments, message):
    with pytest.raises(ValueError, match=message):
        kt.generate(stacked_gpt(), **{"inputs": [[1, 2]], "max_new_tokens": 3, **arguments})


def test_one_processor_or_none_needs_no_list():
    texts = [kt.generate(stacked_gpt(), [[1, 2]], 3, logits_processors=given) for given in (None, (), _last_ten)]
    assert (texts[0] == texts[1]).all() and (texts[2][:, 2:] >= VOCABULARY_SIZE - 10).all()


def _last_ten(logits, text):
    return keras.ops.where(keras.ops.arange(logits.shape[-1]) < logits.shape[-1] - 10, float("-inf"), logits)


WAYS = [{}, {"temperature": 0.1}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [*WAYS, {"cache": False}], ids=str)
def test_logits_that_are_no_numbers(value, options):
    """From the first token on, and once the text has come to a token whose row of the table is broken."""
    ids = keras.Input((None,), dtype="int32")
    table = keras.layers.Embedding(4, 4)
    model = keras.Model(ids, table(ids))
    weights = 5.0 * np.eye(4)[[1, 2, 3, 0]]  # 0, 1, 2, 3 and again
    weights[3, 2] = value
    table.set_weights([weights])
    for prompt in ([3], [0, 1]):
        with pytest.raises(ValueError, match="NaN or infinite"):
            kt.generate(model, [[2, 1], prompt], 9, **options)
    assert kt.generate(model, [[0, 1]], 2, stop_token_id=3, **options).tolist() in ([[0, 1, 2, 3]], [[0, 1, 2, 3, 0]])
