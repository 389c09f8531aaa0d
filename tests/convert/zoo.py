"""One small random model of `transformers` for each family and head, and what it and ours make of the same inputs."""

import importlib

import numpy as np
import torch
import transformers

from keras_transformer.convert.choose_head import class_name
from keras_transformer.convert.pretrained import BUILDERS
from tests.backend import predict

IDS = np.array([[5, 6, 7, 2, 0, 0], [3, 4, 5, 6, 7, 2]])
BERT = {"vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
BERT |= {"pad_token_id": 0, "max_position_embeddings": 12}
ROBERTA = {**BERT, "pad_token_id": 1, "type_vocab_size": 1}
DISTILBERT = {"vocab_size": 19, "dim": 16, "hidden_dim": 20, "n_layers": 1, "n_heads": 2, "pad_token_id": 0}
DISTILBERT |= {"max_position_embeddings": 12}
OPT = {**{k: x for k, x in BERT.items() if k != "intermediate_size"}, "ffn_dim": 20}
MIXTRAL = {**BERT, "num_key_value_heads": 1, "num_local_experts": 4}
LLAMA = {**BERT, "num_key_value_heads": 1, "head_dim": 8}
GPT_2 = {"vocab_size": 19, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
BART = {"vocab_size": 19, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 12}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
BART |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
T5 = {"vocab_size": 19, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 20, "pad_token_id": 0}
T5 |= {"eos_token_id": 2, "decoder_start_token_id": 0}
MARIAN = {**BART, "decoder_start_token_id": 0}
VIT = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VIT |= {"intermediate_size": 20}
FAMILIES = {  # as their builders make them, by the class of theirs
    **{"BertModel": BERT, "RobertaModel": ROBERTA, "DistilBertModel": DISTILBERT, "GPT2LMHeadModel": GPT_2},
    **{f"{name}ForCausalLM": LLAMA for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Phi3")},
    **{f"{name}ForCausalLM": LLAMA for name in ("Gemma", "Gemma2", "Gemma3")},
    **{"OPTForCausalLM": OPT, "MixtralForCausalLM": MIXTRAL, "T5ForConditionalGeneration": T5},
    "MT5ForConditionalGeneration": T5,
    **{"BartForConditionalGeneration": BART, "MBartForConditionalGeneration": BART, "MarianMTModel": MARIAN},
    **{"ViTForImageClassification": VIT, "DeiTForImageClassification": VIT},
    "DeiTForImageClassificationWithTeacher": VIT,
}


def _kinds():
    """Each head that a type's table knows, by the class of theirs that its folders name."""
    types = {getattr(transformers, name).config_class.model_type: sizes for name, sizes in FAMILIES.items()}
    types |= {"xlm-roberta": ROBERTA, "camembert": ROBERTA}
    families = [importlib.import_module(f"keras_transformer.convert.{name}") for name in BUILDERS]
    return {
        class_name(kind, head): types[kind]
        for family in families
        for kind in family.MODEL_TYPES
        for head in family.HEADS
    }


KINDS = _kinds()


def theirs(name, **options):
    """The random model of a class of theirs."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    labels = {"num_labels": 3} if "Classification" in name else {}
    model = kind(kind.config_class(**{**FAMILIES, **KINDS}[name], **{**labels, **options})).eval()
    for x in filter(lambda x: x.requires_grad, model.parameters()):  # sinusoids are no weights
        torch.nn.init.normal_(x, std=0.3)
    return model


def outputs(model, right):
    """Pairs of an output of ours and theirs on real tokens: logits, states, start and end, or tokens and sentence."""
    if hasattr(right.config, "image_size"):
        images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
        given, inputs, real = {"pixel_values": torch.tensor(images.transpose(0, 3, 1, 2))}, images, None
    else:
        given, inputs, real = _texts(right.config)
    with torch.no_grad():
        expected = right(**given)
    names = ("prediction_logits", "seq_relationship_logits", "start_logits", "end_logits", "logits")
    expected = [x.numpy() for x in (getattr(expected, name, None) for name in names) if x is not None] or [
        expected.last_hidden_state.numpy()
    ]
    found = predict(model, inputs)
    order = ("sequence_output", "masked_lm", "next_sentence", "start", "end")
    found = [found[name] for name in order if name in found] if isinstance(found, dict) else [found]
    is_of_tokens = [theirs.shape[:2] == IDS.shape for theirs in expected]
    return [
        (mine[real], theirs[real]) if of_tokens else (mine, theirs)
        for mine, theirs, of_tokens in zip(found, expected, is_of_tokens, strict=True)
    ]


def _texts(config):
    """Their inputs, ours, and where tokens are."""
    pad = config.pad_token_id
    ids = np.where(IDS == 0, pad, IDS)
    given, inputs, real = {"input_ids": torch.tensor(ids)}, ids, ids != pad
    given["attention_mask"] = torch.tensor(real).long()
    if config.is_encoder_decoder:
        shifted = np.concatenate([np.full((2, 1), config.decoder_start_token_id), ids[:, :-1]], axis=1)
        given["decoder_input_ids"], inputs, real = torch.tensor(shifted), [ids, shifted], shifted != pad
    return given, inputs, real
