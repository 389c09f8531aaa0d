"""The published sizes of all families, in one table: family -> size -> the builder's arguments."""


def _vit(patch_size, num_layers, hidden_dim, num_heads, intermediate_dim):
    return {
        "patch_size": patch_size,
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
    }


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
    rows = SIZES[family]
    given = {name: value for name, value in given.items() if value is not None}
    if size is None:
        missing = [name for name in next(iter(rows.values())) if name not in given]
        if missing:
            raise ValueError(f"With size=None every size must be given. Missing for {family}: {', '.join(missing)}")
        return given
    if size not in rows:
        known = ", ".join(map(repr, rows))
        raise ValueError(f"`size` of {family} must be one of {known}, or None. Received: size={size!r}")
    return {**rows[size], **given}
