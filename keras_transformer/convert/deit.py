"""DeiT: the Vision Transformer with a second token, for distillation."""

from keras_transformer.convert import heads, vit
from keras_transformer.convert.config import always
from keras_transformer.convert.rows import LEADING, Row, dense

MODEL_TYPES = ("deit",)
KIND, HEADS = "ForImageClassification", heads.NONE

FIELDS = [*vit.FIELDS, *always(distillation_token=True)]

ROWS = [
    *(row._replace(theirs="deit." + row.theirs.removeprefix("vit.")) for row in vit.ROWS if "logits" not in row.ours),
    Row("deit.embeddings.distillation_token", "distillation_token/tokens", LEADING),
    *(row._replace(unless="distillation_logits/kernel") for row in dense("classifier", "logits")),
    *(row._replace(when="distillation_logits/kernel") for row in dense("cls_classifier", "logits")),
    *dense("distillation_classifier", "distillation_logits"),
]

# What the class of theirs is called with such an option.
KINDS = {"distillation_head": "ForImageClassificationWithTeacher"}
OPTIONAL = {"distillation_head": "distillation_classifier.weight"}
IGNORED = []
