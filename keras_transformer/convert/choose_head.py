"""Which head a folder's model has, which one is asked for, and what that means for its table and its config."""

import re
import warnings
from types import MappingProxyType

from keras_transformer.convert.heads import SENTENCES
from keras_transformer.convert.pooling import read_pooling

# What `transformers` calls the classes of each type; where they have another name with a head of a task, that too.
CLASSES = MappingProxyType(
    {
        **{"bert": "Bert", "gpt2": "GPT2", "opt": "OPT", "t5": "T5", "bart": "Bart", "mbart": "MBart", "vit": "ViT"},
        **{"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma"},
        **{"gemma2": "Gemma2", "gemma3_text": "Gemma3", "phi3": "Phi3", "mixtral": "Mixtral", "marian": "Marian"},
        **{"distilbert": "DistilBert", "roberta": "Roberta", "deit": "DeiT", "mt5": "MT5", "camembert": "Camembert"},
        "xlm-roberta": "XLMRoberta",
    }
)
OF_TASKS = MappingProxyType({"gemma3_text": "Gemma3Text"})


KIND = re.compile(r"(For[A-Z]\w*|(LMHead|MT)?Model)$")
# What the builders make without `with_head`, by the family's own kind.
OWN = MappingProxyType(
    {
        "Model": None,
        "LMHeadModel": "language_model",
        "MTModel": "language_model",
        "ForCausalLM": "language_model",
        "ForConditionalGeneration": "language_model",
        "ForImageClassification": "image_classification",
    }
)
OF_CLASSES = ("sequence_classification", "token_classification", "regression", "image_classification")


def kind_of(config):
    """What kind of model `architectures` says that a folder holds, such as "ForMaskedLM"; None if it says nothing."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    found = KIND.search(name) if isinstance(name, str) else None
    return found and found[0]


def find(family, config, asked):
    """The `Head` that was asked for by its name, or None: that of the folder; False or none there: None.

    Raises:
        ValueError: the family has no such head, or the folder one that is not read.
    """
    if asked is False or (asked is not None and asked == OWN[family.KIND]):
        return None
    if asked is None:
        kind, known = kind_of(config), sorted({family.KIND, *family.HEADS, *_variants(family)})
        if kind not in (*known, None, "Model"):
            hint = " head=False reads it without its head." if family.KIND == "Model" else ""
            raise ValueError(
                f"The config says that the folder holds a {config['architectures'][0]}; of the type "
                f"{config['model_type']!r} are read: {', '.join(known)}.{hint}"
            )
        return _checked(family.HEADS.get(kind), config)
    known = {head.ours: head for head in family.HEADS.values()}
    if asked == SENTENCES.ours and family.KIND == "Model":
        return SENTENCES
    wanted = _as_theirs(asked)
    if wanted not in known:
        names = sorted({*known, OWN[family.KIND] or SENTENCES.ours})
        raise ValueError(
            f"`head` of a checkpoint of the type {config['model_type']!r} must be one of {names}, None or False. "
            f"Received: head={asked!r}"
        )
    return _checked(known[wanted], config)


def _checked(head, config):
    """The head, refused where the config asks for what ours does not do."""
    if head is not None and head.needs is not None:
        entry, value = head.needs
        if config.get(entry, value) != value:
            raise ValueError(
                f"With the head {head.ours!r} `{entry}` of the config must be {value!r}. Received: {config[entry]!r}"
            )
    return head


def _variants(family):
    """Kinds of the family's own model that an option makes."""
    return getattr(family, "KINDS", {}).values()


def is_in(tensors, head, asked):
    """Whether a folder's tensors have the weights of the `Head`.

    Raises:
        ValueError: they do not although the config says so and nobody asked for a new one, which else is said.
    """
    if head is None or not head.rows or any(row.theirs in tensors for row in head.rows):
        return head is not None and bool(head.rows)
    if asked is None:
        raise ValueError(
            f"The config says that the folder holds a model with the head {head.ours!r}, of which it has no weights. "
            f"Give head={head.ours!r} for new ones, or head=False."
        )
    warnings.warn(f"The folder has no weights of the head {asked!r}: they are new, and to be trained.", stacklevel=3)
    return False


def _as_theirs(name):
    """`transformers` has one head for classes and for numbers."""
    return "sequence_classification" if name == "regression" else name


def options(head, config, asked, directory):
    """Arguments of `with_head` for the `Head` of a folder, or one that was asked for by its name; `{}` without one."""
    if head is None:
        return {}
    classes = _num_classes(config)
    is_number = config.get("problem_type") == "regression" or classes == 1
    name = asked or ("regression" if head.ours == "sequence_classification" and is_number else head.ours)
    found = {"head": name, "num_classes": classes if name in OF_CLASSES else None}
    dropout = config.get("classifier_dropout", config.get("seq_classif_dropout"))
    found |= {} if dropout is None else {"dropout": dropout}
    return {**found, "pooling": read_pooling(directory)} if head is SENTENCES else found


def _num_classes(config):
    return config.get("num_labels") or len(config.get("id2label") or ()) or 2


def tables(family, config, head, asked):
    """What `table.load` takes for a folder's tensors, in a model with the `Head`, or None: a dict.

    Heads are only left off where another one, or none, was asked for: else a tensor without a place is an error.
    """
    folder = family.HEADS.get(kind_of(config))
    others = []
    if asked is not None:
        others = [row for other in family.HEADS.values() for row in other.rows]
        others += [] if head is None else [row for row in family.ROWS if _is_own(row)]
    tied = [tuple(map(_around(folder), pair)) for pair in getattr(family, "TIED", ())]
    return {
        "rows": rows(family.ROWS, folder, head),
        "ignored": [*family.IGNORED, *(re.escape(row.theirs) for row in others)],
        "tied": [*tied, *(() if head is None else head.tied)],
    }


def rows(below, outer, head):
    """The rows of a model with the `Head`, or None; logits of its own, and what the head has instead, are left off.

    `outer` is the `Head`, or None, that decides what the other tensors are called.
    """
    of_head = () if head is None else head.rows
    replaced = {path for row in of_head for path in row.paths}
    kept = [row for row in below if not (replaced & {*row.paths} or (head is not None and _is_own(row)))]
    return [*(row._replace(theirs=_around(outer)(row.theirs)) for row in kept), *of_head]


def _around(head):
    return (lambda name: name) if head is None else head.around


def _is_own(row):
    """Whether a row is of the logits that a builder makes."""
    return row.paths[0].startswith("logits/")


def written(family, config, card):
    """The `Head` of a model whose head has this card, or None; and the config that says so.

    Raises:
        ValueError: there is no such model.
    """
    name = card.get("head")
    if name == SENTENCES.ours and family.KIND == "Model":
        _, config = written(family, config, {})
        return SENTENCES, config
    kinds = [kind for kind, head in family.HEADS.items() if head.ours == _as_theirs(name)]
    if name is not None and name != OWN[family.KIND] and not kinds:
        raise ValueError(f"`transformers` has no model of the type {config['model_type']!r} with a head {name!r}.")
    stays = name is None and kind_of(config) in ("Model", *_variants(family))
    kind, config = kinds[0] if kinds else None if stays else family.KIND, dict(config)
    if kind is not None:
        config["architectures"] = [_renamed(config, kind)]
    classes = card.get("num_classes")
    is_said = bool({"num_labels", "id2label"} & config.keys())  # classes differ in how many they have by default
    if name in OF_CLASSES and not (is_said and classes == _num_classes(config)):
        labels = {str(i): f"LABEL_{i}" for i in range(classes)}
        config |= {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
        config.pop("num_labels", None)
    if name == "regression":
        config["problem_type"] = "regression"
    elif name is not None and config.get("problem_type") == "regression":
        config["problem_type"] = None
    return _checked(family.HEADS[kinds[0]], config) if kinds else None, config


def _renamed(config, kind):
    """The name of the class with another kind behind it."""
    if kind_of(config) is None or config["model_type"] in OF_TASKS:
        return class_name(config["model_type"], kind)
    return KIND.sub(kind, config["architectures"][0])


def class_name(model_type, kind):
    """What `transformers` calls a model of this type and kind: `class_name("bert", "Model")`."""
    name = OF_TASKS.get(model_type) if kind not in OWN else None
    return (name or CLASSES[model_type]) + kind
