"""RoBERTa and what is wired like it: BERT whose tables of positions begin behind the padding."""

from keras_transformer.convert import bert, heads
from keras_transformer.convert.config import Field

MODEL_TYPES = ("roberta", "xlm-roberta", "camembert")
KIND, HEADS = "Model", heads.ROBERTA
PREFIX = "roberta."

FIELDS = [
    *(field for field in bert.FIELDS if field.theirs != "max_position_embeddings"),
    Field("max_position_embeddings", "max_sequence_length", plus=-2),  # they count the rows of the table
    Field("pad_token_id", "position_offset", {1: 2}, 1),
    Field("pad_token_id", "pad_token_id", default=1),
]

ROWS = [row._replace(theirs=PREFIX + row.theirs.removeprefix(bert.PREFIX)) for row in bert.ROWS]

OPTIONAL = {"pooler": "roberta.pooler.dense.weight"}
IGNORED = [r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*", r"roberta\.pooler\..*"]
IGNORED += [r"roberta\.embeddings\.position_ids"]
TIED = []
