"""Can this model be decoded, and how? Asked once per model, answered by trying it on a short random text."""

import numpy as np
from keras import ops

from keras_transformer.ops.cache import CannotCache, LooksBothWays

LENGTH = 6
SOURCE_LENGTH = 4
PADDING = 3


class Probe:
    """Runs two decoders of one model on the same short text.

    Args:
        full: the `FullForward` of the model, against which everything is measured.
        ids: ids to draw from; padding is not among them.
        pad_token_id: the id that stands on padding.
        tolerance: allowed difference of the logits, as a share of the largest.
    """

    def __init__(self, full, ids, pad_token_id, tolerance):
        random = np.random.default_rng(0)
        self.full, self.pad_token_id, self.tolerance = full, pad_token_id, tolerance
        self.source_ids = random.choice(ids, (1, SOURCE_LENGTH)) if full.is_encoder_decoder else None
        self.token_ids = random.choice(ids, (1, LENGTH))
        self.other_ids = random.choice(ids, (1, LENGTH))

    def reason_against_cache(self, cached):
        """None if prefill and steps through the cache give the logits of the full forward, else why not."""
        half = LENGTH // 2
        try:
            logits, state = cached.start(self._batch(self.token_ids[:, :half], PADDING, PADDING), LENGTH + PADDING)
            if not state["cache"]["layers"]:
                return "none of its layers keeps a cache"
            for i in range(half, LENGTH):
                logits, state = cached.step(state, _int32(self.token_ids[:, i]), _int32([i]))
        except LooksBothWays:
            raise
        except CannotCache as error:
            return str(error)
        except Exception as error:  # whatever a foreign layer makes of a text of one token
            return f"a step of one token fails ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        error = self._error(logits, self._full_logits(self.token_ids))
        return None if error <= self.tolerance else f"through a cache its logits differ by {error:.1e} of the largest"

    def looks_ahead(self):
        """Whether the logits of a token change with the tokens behind it, even in the full forward."""
        half = LENGTH // 2
        changed = np.concatenate([self.token_ids[:, :half], self.other_ids[:, half:]], axis=1)
        one, other = (self._full_logits(ids, last=half - 1) for ids in (self.token_ids, changed))
        return self._error(one, other) > self.tolerance

    def sees_source_padding(self):
        """Whether the full forward of an encoder-decoder changes with padding behind the source."""
        padded = self._full_logits(self.token_ids, source_padding=PADDING)
        return self._error(padded, self._full_logits(self.token_ids)) > self.tolerance

    def _full_logits(self, token_ids, last=None, source_padding=0):
        return self.full.start(self._batch(token_ids, 0, source_padding, last), LENGTH)[0]

    def _batch(self, token_ids, padding, source_padding, last=None):
        last = token_ids.shape[1] - 1 if last is None else last
        batch = {"last": _int32([last])}
        sides = [("token_ids", "positions", token_ids, padding)]
        if self.source_ids is not None:
            sides.append(("source_ids", "source_positions", self.source_ids, source_padding))
        for ids_name, positions_name, ids, width in sides:
            positions = np.arange(ids.shape[1])[None]
            batch[ids_name] = _int32(np.pad(ids, [(0, 0), (0, width)], constant_values=self.pad_token_id))
            batch[positions_name] = _int32(np.pad(positions, [(0, 0), (0, width)], constant_values=-1))
        return batch

    @staticmethod
    def _error(logits, expected):
        logits, expected = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (logits, expected))
        return float(np.abs(logits - expected).max() / max(np.abs(expected).max(), 1e-30))


def _int32(x):
    return ops.convert_to_tensor(np.asarray(x, "int32"))
