"""ROUGE, by `rouge-score`, for texts of any alphabet."""

import re

import numpy as np
from rouge_score.rouge_scorer import RougeScorer


class Words:
    """For ROUGE, words of any letters."""

    @staticmethod
    def tokenize(text):
        return re.findall(r"\w+", text.lower())


def rouge(predictions, references):
    """Mean F of ROUGE-1, ROUGE-2 and ROUGE-L, times 100."""
    letters = [x for text in references for x in text if x.isalpha()]
    is_english = sum(x.isascii() for x in letters) > 0.99 * len(letters)
    options = {"use_stemmer": True} if is_english else {"tokenizer": Words}
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], **options)
    scores = [scorer.score(reference, text) for reference, text in zip(references, predictions, strict=True)]
    return "  ".join(f"{100 * np.mean([row[name].fmeasure for row in scores]):.2f}" for name in scores[0])
