"""Tiny random models of `transformers` and stacks of our blocks with the same weights."""

import functools

import keras
import numpy as np
import torch
import transformers

import keras_transformer as kt

VOCABULARY_SIZE = 19


def _value(x):
    return x.detach().numpy()


def _assign_dense(ours, theirs, shape=None):
    """A torch `Linear`, whose weight is transposed."""
    weight = _value(theirs.weight).T
    ours.kernel.assign(weight if shape is None else weight.reshape(shape))
    bias = _value(theirs.bias)
    ours.bias.assign(bias.reshape(ours.bias.shape))


def _assign_norm(ours, theirs):
    ours.gamma.assign(_value(theirs.weight))
    ours.beta.assign(_value(theirs.bias))


@functools.cache
def gpt2():
    """`(theirs, ours)`: a GPT-2 language model."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY_SIZE,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        activation_function="gelu",
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, 64, position="learned", pad_token_id=None)
    blocks = [kt.layers.DecoderBlock(2, 64, norm_placement="pre", activation="gelu") for _ in range(2)]
    norm = keras.layers.LayerNormalization(epsilon=1e-5)
    x = table(ids)
    for block in blocks:
        x = block(x)
    ours = keras.Model(ids, table(norm(x), reverse=True))
    table.embeddings.assign(_value(theirs.transformer.wte.weight))
    table.position_embeddings.assign(_value(theirs.transformer.wpe.weight))
    _assign_norm(norm, theirs.transformer.ln_f)
    for block, layer in zip(blocks, theirs.transformer.h, strict=True):
        attention = block.self_attention
        kernels = np.split(_value(layer.attn.c_attn.weight), 3, axis=1)
        biases = np.split(_value(layer.attn.c_attn.bias), 3)
        for dense, kernel, bias in zip(
            (attention.query_dense, attention.key_dense, attention.value_dense), kernels, biases, strict=True
        ):
            dense.kernel.assign(kernel.reshape(dense.kernel.shape))
            dense.bias.assign(bias.reshape(dense.bias.shape))
        for dense, conv in (
            (attention.output_dense, layer.attn.c_proj),
            (block.feed_forward.intermediate_dense, layer.mlp.c_fc),
            (block.feed_forward.output_dense, layer.mlp.c_proj),
        ):
            dense.kernel.assign(_value(conv.weight).reshape(dense.kernel.shape))
            dense.bias.assign(_value(conv.bias))
        _assign_norm(block.self_attention_norm, layer.ln_1)
        _assign_norm(block.feed_forward_norm, layer.ln_2)
    return theirs, ours


@functools.cache
def marian():
    """`(theirs, ours)`: an encoder-decoder with sinusoidal positions and post-norm; 0 is padding, 1 starts, 2 stops."""
    torch.manual_seed(1)
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY_SIZE,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=64,
        init_std=0.5,
        pad_token_id=0,
        decoder_start_token_id=1,
        eos_token_id=2,
        bos_token_id=None,
        forced_eos_token_id=None,
    )
    theirs = transformers.MarianMTModel(config).eval()
    ours = kt.models.transformer(
        VOCABULARY_SIZE, VOCABULARY_SIZE, 2, 2, 16, 32, share_embeddings="all", start_token_id=1, stop_token_id=2
    )
    table = _value(theirs.model.shared.weight).copy()
    table[0] = 0.3  # theirs has zeros for padding, which would tie its logit
    with torch.no_grad():
        theirs.model.shared.weight.copy_(torch.tensor(table))
        theirs.lm_head.weight.copy_(torch.tensor(table))
        positions = keras.ops.convert_to_numpy(
            kt.layers.PositionalEmbedding(None, 16)(np.zeros((1, 64, 16), "float32"))
        )[0]
        for part in (theirs.model.encoder, theirs.model.decoder):
            part.embed_tokens.weight.copy_(torch.tensor(table))
            part.embed_positions.weight.copy_(torch.tensor(np.array(positions)))
    ours.get_layer("embedding").embeddings.assign(table)
    for side, part in (("encoder", theirs.model.encoder), ("decoder", theirs.model.decoder)):
        for i, layer in enumerate(part.layers):
            block = ours.get_layer(side).get_layer(f"{side}_block_{i}")
            _assign_attention(block.self_attention, layer.self_attn)
            _assign_norm(block.self_attention_norm, layer.self_attn_layer_norm)
            if side == "decoder":
                _assign_attention(block.cross_attention, layer.encoder_attn)
                _assign_norm(block.cross_attention_norm, layer.encoder_attn_layer_norm)
            _assign_dense(block.feed_forward.intermediate_dense, layer.fc1)
            _assign_dense(block.feed_forward.output_dense, layer.fc2)
            _assign_norm(block.feed_forward_norm, layer.final_layer_norm)
    return theirs, ours


def _assign_attention(ours, theirs):
    for name, linear in (("query", theirs.q_proj), ("key", theirs.k_proj), ("value", theirs.v_proj)):
        dense = getattr(ours, f"{name}_dense")
        _assign_dense(dense, linear, dense.kernel.shape)
    _assign_dense(ours.output_dense, theirs.out_proj, ours.output_dense.kernel.shape)


def generate(theirs, rows, **options):
    """Rows of new tokens by `transformers`, each by itself; a list of lists for each row, up to the stop token."""
    results = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            output = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, output_scores=True, **options
            )
        skip = 1 if theirs.config.is_encoder_decoder else len(row)
        results.append((output.sequences[:, skip:].tolist(), getattr(output, "sequences_scores", None)))
    return results
