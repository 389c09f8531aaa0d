"""The table of families says what the builders do; what a family costs."""

import functools
import re
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer.generation.anatomy import walk
from keras_transformer.models.sizes import SIZES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
HEAD, _, *LINES = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line[:1] == "|"]
ROWS = {row[0].strip("`"): dict(zip(HEAD, row, strict=True)) for row in LINES}

OF_TWO_VOCABULARIES = {"transformer": {"num_heads": 2, "intermediate_dim": 8}, "rnn": {}}


@functools.cache
def tiny(family):
    """The smallest model with every other choice as it comes."""
    build = getattr(kt.models, family)
    if family in OF_TWO_VOCABULARIES:
        return build(9, 9, num_layers=1, hidden_dim=8, **OF_TWO_VOCABULARIES[family])
    if family == "vit":
        return build("ti16", num_classes=2, image_size=16, num_layers=1)
    return build("tiny", vocabulary_size=9, num_layers=1)


def blocks(family):
    return [x for x in walk(tiny(family)) if isinstance(x, (kt.layers.EncoderBlock, kt.layers.DecoderBlock))]


def positions(family):
    """Every way in which the model knows positions."""
    found = {x.position for x in walk(tiny(family)) if isinstance(x, kt.layers.PositionalEmbedding)} - {None}
    kinds = {kt.layers.RelativePositionBias: "relative", kt.layers.Rotary: "rotary", kt.layers.Recurrent: "recurrent"}
    return found | {name for kind, name in kinds.items() if any(isinstance(x, kind) for x in walk(tiny(family)))}


def kind_of_norm(block):
    norm = block.norm
    return norm if isinstance(norm, str) else {"RMSNorm": "rms"}[norm["class_name"]]


def test_every_family_has_a_row():
    of_models = {"encoder_from_ids", "decoder_from_ids", "resize_vit", "with_head", "best_span", "Spans"}
    named = set(kt.models.__all__) - of_models
    assert named <= set(ROWS) and set(SIZES) <= set(ROWS)
    assert set(ROWS) == {"transformer", "rnn", "bert", "gpt", "t5", "bart", "vit", "llama"}


@pytest.mark.parametrize("family", ROWS)
def test_a_row_says_what_its_builder_does(family):
    row, found = ROWS[family], blocks(family)
    assert re.findall("`(.+?)`", row["sizes"]) == list(SIZES.get(family, ()))
    kinds = {"EncoderBlock": "encoder", "DecoderBlock": "decoder"}
    names = [kinds[name] for name in sorted({type(block).__name__ for block in found}, reverse=True)]
    assert row["blocks"] == (", ".join(names) or "recurrent")
    norms = {f"{kind_of_norm(block)}, {block.norm_placement}" for block in found}
    assert {row["norm, where"]} == (norms or {"none"})
    assert {row["positions"]} == positions(family)
    networks = [block.feed_forward for block in found]
    networks = {network.activation.__name__ + ", gated" * network.gated for network in networks}
    assert {row["feed-forward"]} == (networks or {"none"})
    assert ("the source" in row["who sees whom"]) == (len(tiny(family).inputs) == 2)
    assert ("the past" in row["who sees whom"]) == (names != ["encoder"])
    tied = not any(x.name == "logits" for x in walk(tiny(family)))
    says = ("also the head", "the table is the head", "is the head")
    assert family in ("bert", "vit") or any(words in row["embeddings and head"] for words in says) == tied


@pytest.mark.parametrize("family", ["bert", "gpt", "t5", "bart", "vit", "llama"])
def test_a_builder_costs_fewer_than_100_lines(family):
    """Of code: the file without its texts."""
    text = (ROOT / "keras_transformer" / "models" / f"{family}.py").read_text(encoding="utf-8")
    code = [line for line in re.sub(r'^ *""".*?"""$', "", text, flags=re.MULTILINE | re.DOTALL).splitlines() if line]
    assert len(code) < 100


def test_the_exercise_costs_fewer_than_100_lines():
    text = (ROOT / "docs" / "add_a_family.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert 40 < len(code.splitlines()) < 100
