"""A published checkpoint folder as a model, and a model as such a folder."""

import contextlib
import importlib
from types import MappingProxyType

import keras

from keras_transformer import models
from keras_transformer.arguments import check_size
from keras_transformer.convert import choose_head, files, heads, pooling, table
from keras_transformer.convert.changes import config_with, up_to_date
from keras_transformer.convert.config import builder_arguments
from keras_transformer.convert.first_values import FirstValues, abandoned_on_error
from keras_transformer.convert.limits import check_sizes
from keras_transformer.convert.new_config import config_for
from keras_transformer.layers import read_card, read_head

# The module of `convert` with a family's table, and the builder that it is for.
BUILDERS = MappingProxyType(
    dict.fromkeys(("bert", "distilbert", "roberta"), "bert")
    | dict.fromkeys(("gpt2", "opt"), "gpt")
    | dict.fromkeys(("llama", "mistral", "qwen", "phi3", "mixtral", "gemma", "gemma2", "gemma3"), "llama")
    | dict.fromkeys(("bart", "marian"), "bart")
    | {"t5": "t5", "mt5": "t5", **dict.fromkeys(("deit", "vit"), "vit")}
)
TYPES = ("float32", "float16", "bfloat16")
OF_GENERATION = MappingProxyType({"eos_token_id": "stop_token_id", "decoder_start_token_id": "start_token_id"})


def load_pretrained(directory, head=None, dtype=None, **options):
    """The model that a folder of `transformers` or the Hugging Face hub holds, as a plain functional model.

    Nothing is downloaded and nothing in the folder is executed: `config.json` says how the family's builder is called,
    and the safetensors files, one or several with an index, hold the weights, of which every one must have its place.
    Tensors are read one after another, and variables begin with them, so loading takes the model's memory and one
    tensor more, and the time of reading.

    The families are BERT, RoBERTa, DistilBERT, GPT-2, OPT, Llama, Mistral, Mixtral, Phi-3, Qwen 2, Qwen 3, Gemma,
    Gemma 2, Gemma 3 (text), T5, mT5, BART, mBART, Marian, ViT and DeiT, with the heads of `transformers` for classes,
    tokens and answers, as far as `docs/checkpoints.md` lists them, and BERT's masked language model and next sentence.

    Args:
        directory: the folder.
        head: one of those of `kt.models.with_head`. None: the folder's own, by `architectures` of its config; False:
            none of a task, so that BERT gives its states; `"sentence_embedding"` pools them as a folder of
            sentence-transformers says. Where the folder has no weights of the head, they are new.
        dtype: of the model, a Keras dtype or policy; None: that of the tensors.
        **options: arguments of the builder beside or instead of those of the config, such as `dropout`,
            `pad_token_id` or `name`. `save_pretrained` writes them into the config, or refuses where it has no word
            for what they change.

    Returns:
        A `keras.Model` as `kt.models.bert`, `gpt`, `llama`, `t5`, `bart` or `vit` make it, or `with_head` on it.

    Raises:
        ValueError: a file is missing, broken or outside the folder; the family is not known, or has no such head; the
            config says something that the family's builder cannot do; a tensor is missing, of another shape, or has no
            place.

    Example:

    >>> import tempfile
    >>> import transformers
    >>> sizes = {"vocab_size": 9, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 2}
    >>> config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)
    >>> folder = tempfile.mkdtemp()
    >>> transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    >>> model = load_pretrained(folder)
    >>> model.name, model.count_params()
    ('gpt', 320)
    """
    config, generation = files.read_config(directory), files.read_generation(directory)
    tensors = files.Tensors(directory)
    family, builder = family_of(config)
    wanted = choose_head.find(family, config, head)
    with keras.StatelessScope():  # variables get their first values, those of the folder, as it ends
        with no_other_errors(config):
            arguments, elsewhere = arguments_of(family, config, generation, tensors, wanted)
            arguments |= options
            of_head = choose_head.options(wanted, config, head, directory)
            check_sizes({**arguments, **of_head}, tensors)
            model = builder(None, dtype=dtype or _dtype(tensors, family.IGNORED), **arguments)
            whole = models.with_head(model, **of_head) if of_head else model
        with abandoned_on_error(model), abandoned_on_error(whole):
            has_head = choose_head.is_in(tensors, wanted, asked=head)
            tables = choose_head.tables(family, config, wanted if has_head else None, head)
            values = values_for(whole if has_head else model, tensors, family, tables)
            first_values = FirstValues(whole, values)
    first_values.finish()
    prefix = getattr(family, "PREFIX", "")
    is_bare = prefix and not any(name.startswith(prefix) for name in tensors)
    told, untold = config_with(options, config, family.FIELDS)
    changed = {theirs: options[ours] for theirs, ours in OF_GENERATION.items() if ours in options}
    generation |= {theirs: value for theirs, value in changed.items() if theirs in generation}
    published = {"config": told, "is_bare": is_bare, "untold": untold, "generation": generation, "elsewhere": elsewhere}
    read_card(model)["published"] = published
    return whole


def save_pretrained(model, directory, max_shard_size=5 * 10**9):
    """Write a model as a folder that `transformers` and every engine that reads its files loads.

    The model is one that `load_pretrained` or a builder of `kt.models` made, also after `fit`, after `.keras` files, as
    a clone or with another head. What was loaded carries the config that it came with, and its weights come back bit
    for bit; for what was built a config is found that says the same, of the first type of the family that can. Adapters
    (LoRA) are added to what is written; `save_adapter` writes them alone. A model with the head `sentence_embedding`
    becomes a folder of sentence-transformers.

    Args:
        model: the model.
        directory: the folder, which must not exist yet. It appears whole or not at all.
        max_shard_size: int, bytes of one file's tensors; above that there are several files and an index.

    Raises:
        ValueError: the folder exists, or the model is of no family, was made with options that no config of its family
            can say, or has got weights that no tensor holds, such as scales of int8 or adapters of a token table.

    Example:

    >>> import os, tempfile, transformers
    >>> config = transformers.T5Config(vocab_size=9, d_model=4, d_kv=2, d_ff=8, num_layers=1, num_heads=2)
    >>> theirs, ours = (os.path.join(tempfile.mkdtemp(), name) for name in ("theirs", "ours"))
    >>> transformers.T5ForConditionalGeneration(config).save_pretrained(theirs)
    >>> save_pretrained(load_pretrained(theirs), ours)
    >>> sorted(os.listdir(ours))
    ['config.json', 'model.safetensors']
    """
    check_size(max_shard_size=max_shard_size)
    card = read_card(model)
    published = card.get("published") or {"config": config_for(model, BUILDERS)}
    if published.get("untold"):
        raise ValueError(
            f"The model was loaded with {', '.join(published['untold'])}, which no config of the type "
            f"{published['config']['model_type']!r} can say: what reads the folder would be another model."
        )
    family, _ = family_of(published["config"])
    head, config = choose_head.written(family, published["config"], read_head(model))
    if "published" in card:
        config = up_to_date(config, family.FIELDS, published.get("elsewhere", {}), card)
    tensors = table.save(model, choose_head.rows(family.ROWS, head, head))
    if published.get("is_bare") and head in (None, heads.SENTENCES):
        tensors = {name.removeprefix(family.PREFIX): x for name, x in tensors.items()}
    dtype = next(iter(tensors.values())).dtype  # of the first table: some layers compute in 32 bits whatever it is
    tensors = {name: x.astype(dtype, copy=False) for name, x in tensors.items()}
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype)
    others = {files.GENERATION: published["generation"]} if published.get("generation") else {}
    if head is heads.SENTENCES:
        others |= pooling.written(read_head(model)["pooling"], model.output_shape[-1])
    files.write_folder(directory, config, tensors, max_shard_size, others)


def values_for(model, tensors, family, tables):
    """What a folder's tensors say for a model by the tables of a family, a module of `convert`, and of its head."""
    told = {"prefix": getattr(family, "PREFIX", ""), "zeros": getattr(family, "ZEROS", ())}
    return table.values_of(model, tensors, **tables, **told)


@contextlib.contextmanager
def no_other_errors(config):
    """A `ValueError` in place of what values of another kind lead to."""
    try:
        yield
    except (TypeError, AttributeError, KeyError, IndexError, ArithmeticError) as error:
        raise ValueError(f"{files.CONFIG} says what no {config.get('model_type')!r} can be: {error}") from error


def arguments_of(family, config, generation, tensors, head):
    """The arguments of the builder for a folder, and those among them that its config alone does not say."""
    arguments = builder_arguments(config, family.FIELDS)
    elsewhere = _of_folder(family, tensors, arguments, head, config) | _of_generation(generation, family)
    elsewhere |= _without_unknown_ids(arguments | elsewhere)
    return arguments | elsewhere, elsewhere


def _of_folder(family, tensors, arguments, head, config):
    """Options of the builder that the tensors speak for, or that the head needs."""
    prefix = getattr(family, "PREFIX", "")
    found = {
        option: name in tensors or name.removeprefix(prefix) in tensors
        for option, name in getattr(family, "OPTIONAL", {}).items()
    }
    name, options = getattr(family, "HEADLESS", (None, {}))
    if name is not None and arguments.get("tie_embeddings") is False and name not in tensors:
        found |= options
    if head is not None and config.get("pad_token_id") is not None:  # to find a text's last token
        found["pad_token_id"] = config["pad_token_id"]
    return found


def _without_unknown_ids(arguments):
    """The ids that begin, end or pad a text without those that are no rows of the table: no text has them.

    The configs of small models often keep the ids of a large vocabulary.
    """
    found, size = {}, arguments.get("vocabulary_size")
    if not isinstance(size, int):  # of images, or to be refused by the builder
        return found
    for name in ("start_token_id", "stop_token_id", "pad_token_id"):
        value = arguments.get(name)
        ids = value if isinstance(value, list) else [value]
        known = [i for i in ids if not isinstance(i, int) or 0 <= i < size]
        if len(known) < len(ids):
            found[name] = known or None
    return found


def _of_generation(generation, family):
    """The ids that begin and end a text where `generation_config.json` says other ones than the config."""
    known = {field.ours for field in family.FIELDS}
    return {
        ours: generation[theirs]
        for theirs, ours in OF_GENERATION.items()
        if ours in known and generation.get(theirs) is not None
    }


def family_of(config):
    """The module and the builder for a config."""
    known = {}
    for module, builder in BUILDERS.items():
        family = importlib.import_module(f"keras_transformer.convert.{module}")
        known |= dict.fromkeys(family.MODEL_TYPES, (family, getattr(models, builder)))
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f"`model_type` of {files.CONFIG} must be one of {sorted(known)}. Received: {kind!r}")
    return known[kind]


def _dtype(tensors, ignored):
    found = tensors.float_dtype(ignored)
    return found if found in TYPES else "float32"
