"""The base of handlers of texts: the vocabulary, the cleaning of texts, and the words that tokens stand for."""

from __future__ import annotations

import logging
import os
import re
import string
import unicodedata
from typing import TYPE_CHECKING, Any

from ts.torch_handler.base_handler import LOAD_OBJECTS, BaseHandler
from ts.torch_handler.contractions import CONTRACTION_MAP
from ts.utils.util import CLEANUP_REGEX

if TYPE_CHECKING:
    from ts.context import Context

logger = logging.getLogger(__name__)

_CONTRACTION = re.compile("|".join(sorted(map(re.escape, CONTRACTION_MAP), key=len, reverse=True)), re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextHandler(BaseHandler):
    """A handler of texts, whose archive has a vocabulary: a mapping of tokens to numbers, saved by torch.save."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.lig: Any = None  # captum's LayerIntegratedGradients of the model; None until the first explanation

    def initialize(self, context: Context) -> None:
        """Load model and vocabulary. Raises RuntimeError if there is no vocabulary, or if it is an object of a class
        that torch refuses to load."""
        super().initialize(context)
        import torch

        path = self.get_source_vocab_path(context)
        loads_objects = os.environ.get(LOAD_OBJECTS, "").lower() in ("1", "true", "yes")
        try:
            self.source_vocab = torch.load(path, weights_only=not loads_objects)
        except FileNotFoundError:
            raise RuntimeError(f"the archive has no vocabulary '{path}'") from None
        except Exception as error:
            raise RuntimeError(
                f"the vocabulary '{path}' cannot be loaded: {error}. If it is a pickled object, as torchtext's are, "
                f"save its get_stoi() instead, or set the environment variable {LOAD_OBJECTS}=1 if you trust the file"
            ) from error

    def get_source_vocab_path(self, ctx: Context) -> str:
        """The path of the vocabulary: the manifest's sourceVocab, or source_vocab.pt."""
        name = (ctx.manifest or {}).get("model", {}).get("sourceVocab") or "source_vocab.pt"
        return os.path.join(str(ctx.system_properties.get("model_dir")), name)

    def get_word_token(self, input_tokens: Any) -> list[str]:
        """The vocabulary's tokens for these numbers."""
        numbers = input_tokens.tolist() if hasattr(input_tokens, "tolist") else input_tokens
        lookup = getattr(self.source_vocab, "lookup_tokens", None)
        if lookup is not None:
            return list(lookup(numbers))
        words = {number: token for token, number in self.source_vocab.items()}
        return [words.get(number, "<unk>") for number in numbers]

    def summarize_attributions(self, attributions: Any) -> Any:
        """The contribution of each token, from those of the values in its vector (`attributions`): their sum, divided
        by the norm of the sums of all tokens."""
        import torch

        shares = attributions.sum(dim=-1).squeeze(0)
        return shares / torch.norm(shares)

    def _number_of(self, token: str) -> int:
        """The number of a token in the vocabulary; for an unknown token the number of `<unk>`, or 0 if the vocabulary
        has no `<unk>`."""
        vocabulary: Any = self.source_vocab
        if isinstance(vocabulary, dict) and token not in vocabulary:
            return int(vocabulary.get("<unk>") or 0)
        return int(vocabulary[token])

    def _remove_html_tags(self, text: str) -> str:
        return CLEANUP_REGEX.sub("", text)

    def _expand_contractions(self, text: str) -> str:
        return _CONTRACTION.sub(lambda found: CONTRACTION_MAP[found[0].lower()], text)

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(_PUNCTUATION)

    def _tokenize(self, text: str) -> list[str]:
        return text.lower().split()
