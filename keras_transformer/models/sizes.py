"""The published sizes of all families, in one table: family -> size -> the builder's arguments."""


def _vit(patch_size, num_layers, hidden_dim, num_heads, intermediate_dim):
    return {
        "patch_size": patch_size,
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
    }


def _stack(num_layers, hidden_dim, num_heads):
    """BERT and GPT-2: the inner size of the feed-forward networks is four times the outer."""
    intermediate_dim = 4 * hidden_dim
    return {
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
    }


def _llama(vocabulary_size, num_layers, num_heads, num_key_value_heads, hidden_dim, intermediate_dim, **options):
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_key_value_heads": num_key_value_heads,
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        **options,
    }


def _stretched(factor):
    """Llama 3's rotary scaling."""
    fields = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "factor": factor, **fields}


LLAMA_3 = {"rotary_base": 500000.0}
QWEN = {"rotary_base": 1000000.0, "norm_epsilon": 1e-6}
QWEN_2 = {**QWEN, "use_bias": ("query", "key", "value")}
QWEN_3 = {**QWEN, "qk_norm": True, "key_dim": 128}


def _gemma(hidden_dim, query_scalar, **options):
    gemma = {"norm_placement": "sandwich", "zero_centered": True, "norm_epsilon": 1e-6, "activation": "gelu_tanh"}
    scales = {"embedding_scale": hidden_dim**0.5, "query_scale": query_scalar**-0.5}
    return {**gemma, **scales, "tie_embeddings": True, **options}


def _gemma2(hidden_dim, query_scalar=256, key_dim=256):
    caps = {"attention_soft_cap": 50.0, "logits_soft_cap": 30.0, "sliding_window": 4096}
    layer_types = ("sliding_attention", "full_attention")
    return _gemma(hidden_dim, query_scalar, key_dim=key_dim, layer_types=layer_types, **caps)


def _gemma3(hidden_dim, query_scalar=256, key_dim=256, sliding_window=1024, **options):
    rotary = {"rotary_base": 1000000.0, "local_rotary_base": 10000.0}
    options = {"rotary_scaling": {"rope_type": "linear", "factor": 8.0}, **rotary, "qk_norm": True, **options}
    options |= {"sliding_window": sliding_window, "layer_types": ("sliding_attention",) * 5 + ("full_attention",)}
    return _gemma(hidden_dim, query_scalar, key_dim=key_dim, **options)


def _encoder_decoder(num_layers, hidden_dim, num_heads, intermediate_dim, **others):
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "num_heads": num_heads}
    return {**sizes, "intermediate_dim": intermediate_dim, **others}


V1_1 = {"gated": True, "tie_embeddings": False}

SIZES = {
    # Ti and S: Touvron et al. 2020 (https://arxiv.org/abs/2012.12877); the others: Dosovitskiy et al. 2020, table 1.
    "vit": {
        "ti16": _vit(16, 12, 192, 3, 768),
        "s16": _vit(16, 12, 384, 6, 1536),
        "s32": _vit(32, 12, 384, 6, 1536),
        "b16": _vit(16, 12, 768, 12, 3072),
        "b32": _vit(32, 12, 768, 12, 3072),
        "l16": _vit(16, 24, 1024, 16, 4096),
        "l32": _vit(32, 24, 1024, 16, 4096),
        "h14": _vit(14, 32, 1280, 16, 5120),
    },
    # base and large: Devlin et al. 2018; the smaller: Turc et al. 2019 (https://arxiv.org/abs/1908.08962).
    "bert": {
        "tiny": _stack(2, 128, 2),
        "mini": _stack(4, 256, 4),
        "small": _stack(4, 512, 8),
        "medium": _stack(8, 512, 8),
        "base": _stack(12, 768, 12),
        "large": _stack(24, 1024, 16),
    },
    # Radford et al. 2019, table 2; tiny is ours.
    "gpt": {
        "tiny": _stack(2, 128, 2),
        "small": _stack(12, 768, 12),
        "medium": _stack(24, 1024, 16),
        "large": _stack(36, 1280, 20),
        "xl": _stack(48, 1600, 25),
    },
    # tiny is ours. Llama 2 and 3 (https://arxiv.org/abs/2307.09288, 2407.21783), Mistral (2310.06825), Mixtral
    # (2401.04088), Phi-3 (2404.14219), Qwen 2 and 3 (2407.10671, 2505.09388), Gemma 2 and 3 (2408.00118, 2503.19786).
    "llama": {
        "tiny": _llama(32000, 2, 4, 2, 128, 352),
        "7b": _llama(32000, 32, 32, 32, 4096, 11008),
        "13b": _llama(32000, 40, 40, 40, 5120, 13824),
        "70b": _llama(32000, 80, 64, 8, 8192, 28672),
        "llama3_8b": _llama(128256, 32, 32, 8, 4096, 14336, **LLAMA_3),
        "llama3_70b": _llama(128256, 80, 64, 8, 8192, 28672, **LLAMA_3),
        "llama3.1_8b": _llama(128256, 32, 32, 8, 4096, 14336, **LLAMA_3, rotary_scaling=_stretched(8.0)),
        "llama3.2_1b": _llama(
            *(128256, 16, 32, 8, 2048, 8192), **LLAMA_3, rotary_scaling=_stretched(32.0), tie_embeddings=True
        ),
        "llama3.2_3b": _llama(
            *(128256, 28, 24, 8, 3072, 8192), **LLAMA_3, rotary_scaling=_stretched(32.0), tie_embeddings=True
        ),
        "mistral_7b": _llama(32000, 32, 32, 8, 4096, 14336, sliding_window=4096),
        "mixtral_8x7b": _llama(32000, 32, 32, 8, 4096, 14336, rotary_base=1000000.0, num_experts=8),
        "phi3_mini": _llama(32064, 32, 32, 32, 3072, 8192, sliding_window=2047),
        "qwen2_0.5b": _llama(151936, 24, 14, 2, 896, 4864, **QWEN_2, tie_embeddings=True),
        "qwen2_1.5b": _llama(151936, 28, 12, 2, 1536, 8960, **QWEN_2, tie_embeddings=True),
        "qwen2_7b": _llama(152064, 28, 28, 4, 3584, 18944, **QWEN_2),
        "qwen3_0.6b": _llama(151936, 28, 16, 8, 1024, 3072, **QWEN_3, tie_embeddings=True),
        "qwen3_1.7b": _llama(151936, 28, 16, 8, 2048, 6144, **QWEN_3, tie_embeddings=True),
        "qwen3_4b": _llama(151936, 36, 32, 8, 2560, 9728, **QWEN_3, tie_embeddings=True),
        "qwen3_8b": _llama(151936, 36, 32, 8, 4096, 12288, **QWEN_3),
        "gemma2_2b": _llama(256000, 26, 8, 4, 2304, 9216, **_gemma2(2304)),
        "gemma2_9b": _llama(256000, 42, 16, 8, 3584, 14336, **_gemma2(3584)),
        "gemma2_27b": _llama(256000, 46, 32, 16, 4608, 36864, **_gemma2(4608, query_scalar=144, key_dim=128)),
        "gemma3_1b": _llama(*(262144, 26, 4, 1, 1152, 6912), **_gemma3(1152, sliding_window=512, rotary_scaling=None)),
        "gemma3_4b": _llama(262208, 34, 8, 4, 2560, 10240, **_gemma3(2560)),
        "gemma3_12b": _llama(262208, 48, 16, 8, 3840, 15360, **_gemma3(3840)),
        "gemma3_27b": _llama(262208, 62, 32, 16, 5376, 21504, **_gemma3(5376, query_scalar=168, key_dim=128)),
    },
    # Raffel et al. 2020, section 3.7; v1.1: its released checkpoints, of which FLAN-T5 has the sizes.
    "t5": {
        "tiny": _encoder_decoder(2, 32, 2, 64, key_dim=16),
        "small": _encoder_decoder(6, 512, 8, 2048, key_dim=64),
        "base": _encoder_decoder(12, 768, 12, 3072, key_dim=64),
        "large": _encoder_decoder(24, 1024, 16, 4096, key_dim=64),
        "3b": _encoder_decoder(24, 1024, 32, 16384, key_dim=128),
        "11b": _encoder_decoder(24, 1024, 128, 65536, key_dim=128),
        "v1_1_small": _encoder_decoder(8, 512, 6, 1024, key_dim=64, **V1_1),
        "v1_1_base": _encoder_decoder(12, 768, 12, 2048, key_dim=64, **V1_1),
        "v1_1_large": _encoder_decoder(24, 1024, 16, 2816, key_dim=64, **V1_1),
        "v1_1_xl": _encoder_decoder(24, 2048, 32, 5120, key_dim=64, **V1_1),
        "v1_1_xxl": _encoder_decoder(24, 4096, 64, 10240, key_dim=64, **V1_1),
    },
    # Lewis et al. 2019, section 2.1
    "bart": {
        "tiny": _encoder_decoder(2, 32, 2, 64),
        "base": _encoder_decoder(6, 768, 12, 3072),
        "large": _encoder_decoder(12, 1024, 16, 4096),
    },
}

# What a row need not say.
DEFAULTS = {
    "t5": {"gated": False, "tie_embeddings": True},
    "llama": {
        "num_key_value_heads": None,
        "key_dim": None,
        "rotary_base": 10000.0,
        "rotary_fraction": 1.0,
        "rotary_scaling": None,
        "local_rotary_base": None,
        "sliding_window": None,
        "layer_types": ("sliding_attention",),  # none of which has a window by default
        "use_bias": False,
        "qk_norm": False,
        "query_scale": None,
        "attention_soft_cap": None,
        "logits_soft_cap": None,
        "norm_placement": "pre",
        "norm_epsilon": 1e-5,
        "zero_centered": False,
        "embedding_scale": None,
        "activation": "silu",
        "num_experts": None,
        "num_experts_per_token": 2,
        "load_balancing_loss": 0.0,
        "tie_embeddings": False,
    },
}


def sizes_of(family, size, **given):
    """A row of the table, with what is given in place of what is published.

    Args:
        family: name of the family.
        size: name of the row. None: there is no row, and every size must be given.
        **given: sizes; None says that one is not given.

    Returns:
        dict of the family's sizes and of whatever else was given.

    Raises:
        ValueError: an unknown size (the error lists the known ones), or with `size=None` sizes that are missing.

    Example: `sizes_of("vit", "b16", num_layers=2)["num_layers"]  # 2`
    """
    rows, defaults = SIZES[family], DEFAULTS.get(family, {})
    given = {name: value for name, value in given.items() if value is not None}
    if size is None:
        missing = [name for name in next(iter(rows.values())) if name not in {**defaults, **given}]
        if missing:
            raise ValueError(f"With size=None every size must be given. Missing for {family}: {', '.join(missing)}")
        return {**defaults, **given}
    if size not in rows:
        known = ", ".join(map(repr, rows))
        raise ValueError(f"`size` of {family} must be one of {known}, or None. Received: size={size!r}")
    return {**defaults, **rows[size], **given}
