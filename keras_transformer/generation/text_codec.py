"""One way to talk to the tokenizers of several libraries."""


class TextCodec:
    """Texts to id lists and back, by a tokenizer of this library, `tokenizers`, `transformers` or keras-hub.

    Told apart by their methods: `encode_batch` (`tokenizers`), `batch_decode` (`transformers`), `tokenize` and
    `detokenize` (keras-hub); any other needs `encode(list of str) -> list of id lists` and
    `decode(list of id lists) -> list of str`. Each adds the special tokens that it is set up to add.

    Attributes:
        start_token_id, stop_token_id: as the tokenizer names them, or None.
    """

    def __init__(self, tokenizer):
        self.start_token_id = getattr(tokenizer, "start_token_id", None)
        stops = (getattr(tokenizer, f"{name}_token_id", None) for name in ("stop", "eos", "end"))
        self.stop_token_id = next((token_id for token_id in stops if token_id is not None), None)
        if hasattr(tokenizer, "encode_batch"):
            self._encode = lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(texts)]
            self._decode = tokenizer.decode_batch
        elif hasattr(tokenizer, "batch_decode"):
            self._encode = lambda texts: tokenizer(texts)["input_ids"]
            self._decode = lambda rows: tokenizer.batch_decode(rows, skip_special_tokens=True)
        elif hasattr(tokenizer, "detokenize"):
            self._encode = lambda texts: [list(map(int, row)) for row in tokenizer.tokenize(texts)]
            self._decode = lambda rows: [tokenizer.detokenize(row) if row else "" for row in rows]
        elif hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode"):
            self._encode, self._decode = tokenizer.encode, tokenizer.decode
        else:
            raise ValueError(
                "`tokenizer` must be one of this library, `tokenizers`, `transformers` or keras-hub, or have `encode` "
                f"and `decode` of lists. Received: {type(tokenizer).__name__}"
            )

    def encode(self, texts):
        """One string or several -> list of id lists."""
        if texts is None or not hasattr(texts, "__iter__"):
            raise ValueError(f"`inputs` must be a string or a list of strings with `tokenizer`. Received: {texts!r}")
        return self._encode([texts] if isinstance(texts, str) else list(texts))

    def decode(self, rows):
        """List of id lists -> list of str."""
        return list(self._decode([list(map(int, row)) for row in rows]))
