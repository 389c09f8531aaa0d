"""Tiny random models of `transformers` and ours with the same weights, by the tables of `convert`."""

import functools
import tempfile
from typing import NamedTuple

import keras
import numpy as np
import safetensors.numpy
import torch
import transformers

import keras_transformer as kt
from keras_transformer.convert import (
    bert,
    distilbert,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    llama,
    mistral,
    mixtral,
    opt,
    phi3,
    qwen,
    table,
)
from keras_transformer.convert.config import builder_arguments

VOCABULARY_SIZE, LENGTH = 19, 9
SIZES = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 1,  # but 2 where depth matters
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
BERT = {**SIZES, "pad_token_id": 0}
del BERT["num_key_value_heads"]
GPT_2 = {"vocab_size": VOCABULARY_SIZE, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT_2 |= {"bos_token_id": None, "eos_token_id": None}
DISTILBERT = {"vocab_size": VOCABULARY_SIZE, "max_position_embeddings": 32, "n_layers": 2, "n_heads": 4, "dim": 16}
DISTILBERT |= {"hidden_dim": 20, "pad_token_id": 0}
OPT = {**BERT, "ffn_dim": 20, "bos_token_id": None, "eos_token_id": None}
del OPT["intermediate_size"]
TWO_LAYERS = {"num_hidden_layers": 2}
LOCAL_AND_GLOBAL = {**TWO_LAYERS, "layer_types": ["sliding_attention", "full_attention"]}


class Case(NamedTuple):
    """A model of theirs, and the family of ours with its table."""

    builder: str
    family: object
    config: object  # makes it
    options: dict

    @property
    def is_causal(self):
        return self.builder != "bert"

    @property
    def num_layers(self):
        names = ("num_hidden_layers", "n_layer", "n_layers")
        return next(self.options[name] for name in names if name in self.options)


def _llama(config, family=llama, **options):
    return Case("llama", family, config, {**SIZES, **options})


def _gemma(config, family, **options):
    return Case("llama", family, config, {**SIZES, "head_dim": 6, **options})


def _scaled(kind, **fields):
    rope = {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8, **fields}
    return {"rope_parameters": rope}


CASES = {
    "bert": Case("bert", bert, transformers.BertConfig, {**BERT, **TWO_LAYERS}),
    "bert, tanh gelu": Case(
        "bert", bert, transformers.BertConfig, {**BERT, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}
    ),
    "distilbert": Case("bert", distilbert, transformers.DistilBertConfig, DISTILBERT),
    "opt": Case("gpt", opt, transformers.OPTConfig, {**OPT, **TWO_LAYERS}),
    "opt, norms behind, no biases": Case(
        "gpt",
        opt,
        transformers.OPTConfig,
        {**OPT, "do_layer_norm_before": False, "enable_bias": False, "activation_function": "gelu"},
    ),
    "phi3": _llama(
        transformers.Phi3Config,
        phi3,
        sliding_window=3,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    ),
    "mixtral": _llama(transformers.MixtralConfig, mixtral, **TWO_LAYERS, num_local_experts=4, num_experts_per_tok=3),
    "gpt2": Case("gpt", gpt2, transformers.GPT2Config, {**GPT_2, "n_layer": 2}),
    "gpt2, inner size": Case(
        "gpt", gpt2, transformers.GPT2Config, {**GPT_2, "n_inner": 20, "activation_function": "gelu"}
    ),
    "gpt2, a head of its own": Case("gpt", gpt2, transformers.GPT2Config, {**GPT_2, "tie_word_embeddings": False}),
    "opt, a head of its own": Case("gpt", opt, transformers.OPTConfig, {**OPT, "tie_word_embeddings": False}),
    "llama": _llama(transformers.LlamaConfig, num_key_value_heads=4, **TWO_LAYERS),
    "llama, grouped, tied, biases": _llama(
        transformers.LlamaConfig, attention_bias=True, tie_word_embeddings=True, head_dim=6, rms_norm_eps=1e-2
    ),
    "llama, llama3 scaling": _llama(
        transformers.LlamaConfig, **_scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0)
    ),
    "llama, linear scaling": _llama(
        transformers.LlamaConfig, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 50.0}
    ),
    "llama, yarn": _llama(transformers.LlamaConfig, **_scaled("yarn")),
    "mistral, window": _llama(transformers.MistralConfig, mistral, sliding_window=3),
    "qwen2": _llama(transformers.Qwen2Config, qwen, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen2, some windows": _llama(
        transformers.Qwen2Config,
        qwen,
        **TWO_LAYERS,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
        tie_word_embeddings=True,
    ),
    "qwen3": _llama(transformers.Qwen3Config, qwen, head_dim=6, rms_norm_eps=1e-2),
    "gemma": _gemma(transformers.GemmaConfig, gemma, **TWO_LAYERS, rope_parameters={"rope_theta": 100.0}),
    "gemma2": _gemma(
        transformers.Gemma2Config,
        gemma2,
        query_pre_attn_scalar=5,
        sliding_window=3,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        **LOCAL_AND_GLOBAL,
    ),
    "gemma3": _gemma(
        transformers.Gemma3TextConfig,
        gemma3,
        query_pre_attn_scalar=5,
        sliding_window=3,
        **LOCAL_AND_GLOBAL,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
        },
    ),
}


@functools.cache
def theirs(name):
    """The random model of `transformers`."""
    case = CASES[name]
    torch.manual_seed(0)
    config = case.config(**case.options, attn_implementation="eager")
    kind = transformers.AutoModelForCausalLM if case.is_causal else transformers.AutoModel
    model = kind.from_config(config, dtype=torch.float32).eval()
    zero_centered = case.family in (gemma, gemma2, gemma3)
    for path, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.3)
        if "norm" in path.lower() and path.endswith("weight") and not zero_centered:
            parameter.data += 1
    model.generation_config = transformers.GenerationConfig(eos_token_id=None, pad_token_id=0)
    return model


@functools.cache
def tensors(name):
    """The weights of theirs, as a file holds them; in memory some have other names."""
    with tempfile.TemporaryDirectory() as folder:
        theirs(name).save_pretrained(folder)
        return safetensors.numpy.load_file(f"{folder}/model.safetensors")


def arguments(name):
    """What the table makes of their config."""
    return builder_arguments(theirs(name).config.to_dict(), CASES[name].family.FIELDS)


@functools.cache
def ours(name, **options):
    """Our model with their weights; tests leave it as they found it. 0 is padding, which theirs are told by a mask."""
    case = CASES[name]
    model = getattr(kt.models, case.builder)(None, **{"pad_token_id": 0, **arguments(name), **options})
    load(model, tensors(name), case.family)
    return model


def load(model, values, family):
    """The tensors into the model."""
    table.load(model, values, family.ROWS, family.IGNORED, family.PREFIX, family.TIED)


@functools.cache
def with_states(name):
    """`ours` with all states: `{"outputs": ..., "states": [embedded, behind each block]}`."""
    model, kind = ours(name), "decoder" if CASES[name].is_causal else "encoder"
    first = "embedding" if CASES[name].is_causal else "embedding_dropout"
    places = [first, *(f"{kind}_block_{i}" for i in range(CASES[name].num_layers))]
    return keras.Model(
        model.inputs[0], {"outputs": model.output, "states": [model.get_layer(x).output for x in places]}
    )


def batch(name):
    """Ids (B, T) with padding on the right, where positions are told from the mask on the left, too; and the tokens."""
    ids = np.random.default_rng(1).integers(1, VOCABULARY_SIZE, (3, LENGTH)).astype("int32")
    ids[1, 5:] = 0
    if CASES[name].builder == "llama" or CASES[name].family is opt:
        ids[2, :3] = 0
    return ids, ids != 0
