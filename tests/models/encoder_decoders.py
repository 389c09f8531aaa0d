"""What encoder-decoders are asked; T5 and BART also to be `transformers`' models with the same weights."""

import re

import keras
import numpy as np
import torch

import keras_transformer as kt
from keras_transformer.convert import table
from keras_transformer.convert.config import builder_arguments
from tests import reference
from tests.backend import predict, run, weight_gradients
from tests.generation import hf


def randomized(theirs):
    """A model of theirs with weights that differ everywhere, norms and biases included; what is tied stays so."""
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        noise = torch.empty_like(parameter).normal_(0, 0.3, generator=generator)
        is_gain = parameter.ndim == 1 and bool((parameter == 1).all())
        parameter.data = noise + is_gain
    return theirs.eval()


def state(theirs):
    return {name: x.detach().numpy().copy() for name, x in theirs.state_dict().items()}


def copied(theirs, module, build):
    """Our model, from their config and their tensors by the family's table alone."""
    model = build(None, **builder_arguments(theirs.config.to_dict(), module.FIELDS))
    load(model, state(theirs), module)
    return model


def load(model, tensors, module):
    table.load(model, tensors, module.ROWS, module.IGNORED, tied=module.TIED, zeros=getattr(module, "ZEROS", ()))


def assert_equal_forward(theirs, ours, sources, targets, states_too=False):
    """Logits, and encoder states, of ragged rows: padded on the right, sources with a mask for theirs."""
    pad = theirs.config.pad_token_id
    source, real = kt.data.pad_batch(sources, pad)
    target, is_token = kt.data.pad_batch(targets, pad)
    with torch.no_grad():
        output = theirs(
            input_ids=torch.tensor(source, dtype=torch.long),
            attention_mask=torch.tensor(real),
            decoder_input_ids=torch.tensor(target, dtype=torch.long),
        )
    logits = predict(ours, {"encoder_token_ids": source, "decoder_token_ids": target})
    assert logits.dtype == "float32"
    assert np.abs(logits - output.logits.numpy())[is_token].max() <= 1e-4
    assert np.abs(output.logits.numpy()).max() > 0.3  # that zeros would not pass
    if states_too:
        states = predict(kt.models.encoder_from_ids(ours), source)
        assert np.abs(states - output.encoder_last_hidden_state.numpy())[real].max() <= 1e-4


def assert_goes_back(theirs, ours, module):
    """Every tensor that their file has comes back bit for bit, but for second names and a bias of zeros."""
    tensors, saved = state(theirs), table.save(ours, module.ROWS)
    for name, tensor in saved.items():
        assert tensor.dtype == tensors[name].dtype
        np.testing.assert_array_equal(tensor, tensors[name])
    twins = dict(module.TIED)
    left = {name for name in set(tensors) - set(saved) if not any(re.fullmatch(x, name) for x in module.IGNORED)}
    assert left <= {*twins, "final_logits_bias"}
    assert all((tensors[name] == tensors[twins[name]]).all() for name in left if name in twins)


def assert_same_texts(theirs, ours, sources, num_beams, pad_is_written):
    """`pad_is_written`: whether the padding id is a token like any other in the targets of both."""
    told = {"max_new_tokens": 7, "do_sample": False, "num_beams": num_beams, "num_return_sequences": num_beams}
    pad, stop = theirs.config.pad_token_id, theirs.config.eos_token_id
    bad = {} if pad_is_written else {"bad_words_ids": [[pad]]}
    options = {"num_beams": num_beams, "num_return_sequences": num_beams, "return_dict": True}
    result = kt.generate(ours, sources, 7, **options, **({} if pad_is_written else {"bad_words_ids": [pad]}))
    for i, (texts, scores) in enumerate(hf.generate(theirs, sources, **told, **bad)):
        for k, text in enumerate(texts):
            text = text[: text.index(stop) + 1] if stop in text else text
            place = i * num_beams + k
            assert result["token_ids"][place, : result["lengths"][place]].tolist() == text
        if scores is not None:
            mine = result["scores"][i * num_beams : (i + 1) * num_beams]
            np.testing.assert_allclose(mine, scores.numpy(), rtol=1e-4, atol=1e-4)


def assert_every_weight_learns(model, sources, targets, pad):
    """Gradients of the loss of one batch."""
    reference.randomize(model)
    source, labels = kt.data.pad_batch(sources, pad)[0], kt.data.pad_batch(targets, pad)[0]
    card = kt.layers.read_card(model)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": kt.shift_right(labels, card["start_token_id"], pad)}
    loss, weights = kt.training.MaskedCrossentropy(), (labels != pad).astype("float32")
    found = weight_gradients(model, lambda: loss(labels, model(inputs), sample_weight=weights))
    assert len(found) == len(model.weights) - sum("seed_generator" in w.path for w in model.weights)
    zero = {path for path, gradient in found.items() if not np.abs(gradient).max() > 1e-7}
    assert all(path.endswith("attention/key/bias") for path in zero)  # the softmax takes it out


def count(build, size):
    """The parameters of a published size with one layer on each side, counted without being allocated."""
    with keras.StatelessScope(initialize_variables=False):
        return build(size, num_layers=1).count_params()


def in_halves(model, source, target):
    """What the encoder gives of a source, and the decoder of that and a target, each as a model of its own."""
    encoder, decoder = kt.models.encoder_from_ids(model), kt.models.decoder_from_ids(model)

    def call(source, target):
        states = encoder(source)
        return states, decoder({"decoder_token_ids": target, "encoder_states": states})

    return run(call, source, target)
