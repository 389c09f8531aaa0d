"""Heads for tasks: what `transformers` calls them, and where their tensors go."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from keras_transformer.convert.rows import LINEAR, Row, dense, layer_norm


class Head(NamedTuple):
    """A head of a family.

    Attributes:
        ours: its name for `with_head`.
        rows: of the table, those of the head's own tensors.
        tied: pairs of names; the first holds what the second does.
        prefix: what stands in front of all other names where there is this head, in place of `replaces`.
        needs: (entry of the config, the one value with which ours is the same), or None.
    """

    ours: str
    rows: Sequence = ()
    tied: Sequence = ()
    prefix: str = ""
    replaces: str = ""
    needs: tuple | None = None

    def around(self, name):
        """The name of another tensor where there is this head."""
        return self.prefix + name.removeprefix(self.replaces)


CLASSIFIER = dense("classifier", "classifier")
SPAN = dense("qa_outputs", "span")
DENSE_CLASSIFIER = [
    *dense("classification_head.dense", "classifier_dense"),
    *dense("classification_head.out_proj", "classifier"),
]
MASKED_LM = [
    *dense("cls.predictions.transform.dense", "masked_lm_dense"),
    *layer_norm("cls.predictions.transform.LayerNorm", "masked_lm_norm"),
    Row("cls.predictions.bias", "masked_lm_bias/bias"),
]
NEXT_SENTENCE = dense("cls.seq_relationship", "next_sentence")
TIED_MASKED_LM = [
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
]

# By what follows the name of the family in `architectures`.
BERT = MappingProxyType(
    {
        "ForMaskedLM": Head("masked_lm", MASKED_LM, TIED_MASKED_LM),
        "ForNextSentencePrediction": Head("next_sentence", NEXT_SENTENCE),
        "ForPreTraining": Head("pretraining", MASKED_LM + NEXT_SENTENCE, TIED_MASKED_LM),
        "ForSequenceClassification": Head("sequence_classification", CLASSIFIER),
        "ForTokenClassification": Head("token_classification", CLASSIFIER),
        "ForQuestionAnswering": Head("question_answering", SPAN),
    }
)
ROBERTA = MappingProxyType(
    {
        "ForMaskedLM": Head(
            "masked_lm",
            [
                *dense("lm_head.dense", "masked_lm_dense"),
                *layer_norm("lm_head.layer_norm", "masked_lm_norm"),
                Row("lm_head.bias", "masked_lm_bias/bias"),
            ],
            [
                ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
                ("lm_head.decoder.bias", "lm_head.bias"),
            ],
            needs=("hidden_act", "gelu"),  # theirs has it in this head whatever the blocks have
        ),
        # What theirs has in front of the classes is a pooler.
        "ForSequenceClassification": Head(
            "sequence_classification",
            [*dense("classifier.dense", "pooler/dense"), *dense("classifier.out_proj", "classifier")],
        ),
        "ForTokenClassification": BERT["ForTokenClassification"],
        "ForQuestionAnswering": BERT["ForQuestionAnswering"],
    }
)
DISTILBERT = MappingProxyType(
    {
        "ForMaskedLM": Head(
            "masked_lm",
            [
                *dense("vocab_transform", "masked_lm_dense"),
                *layer_norm("vocab_layer_norm", "masked_lm_norm"),
                Row("vocab_projector.bias", "masked_lm_bias/bias"),
            ],
            [("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight")],
        ),
        "ForSequenceClassification": Head(
            "sequence_classification", [*dense("pre_classifier", "pooler/dense"), *CLASSIFIER]
        ),
        "ForTokenClassification": BERT["ForTokenClassification"],
        "ForQuestionAnswering": BERT["ForQuestionAnswering"],
    }
)
SCORE = [Row("score.weight", "classifier/kernel", LINEAR)]
GPT_2 = MappingProxyType(
    {
        "ForSequenceClassification": Head("sequence_classification", SCORE),
        "ForTokenClassification": Head("token_classification", CLASSIFIER),
        "ForQuestionAnswering": Head("question_answering", SPAN),
    }
)
LLAMA = MappingProxyType(
    {
        "ForSequenceClassification": Head("sequence_classification", SCORE),
        "ForTokenClassification": Head("token_classification", dense("score", "classifier")),
    }
)
GEMMA_3 = MappingProxyType({"ForSequenceClassification": LLAMA["ForSequenceClassification"]})
LLAMA_WITH_ANSWERS = MappingProxyType(
    {**LLAMA, "ForQuestionAnswering": Head("question_answering", SPAN, prefix="transformer.", replaces="model.")}
)
MISTRAL = MappingProxyType({**LLAMA, "ForQuestionAnswering": Head("question_answering", SPAN)})
OPT = MappingProxyType(
    {
        "ForSequenceClassification": Head("sequence_classification", SCORE),
        "ForQuestionAnswering": Head("question_answering", SPAN),
    }
)
BART = MappingProxyType(
    {
        "ForSequenceClassification": Head("sequence_classification", DENSE_CLASSIFIER),
        "ForQuestionAnswering": Head("question_answering", SPAN),
    }
)
T5 = MappingProxyType(
    {
        "ForSequenceClassification": Head("sequence_classification", DENSE_CLASSIFIER, prefix="transformer."),
        "ForQuestionAnswering": Head("question_answering", SPAN),
    }
)
NONE = MappingProxyType({})
SENTENCES = Head("sentence_embedding")  # of any family that gives states; it has no weights
