"""The built-in handler `text_classifier`: the probabilities of a text's classes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ts.handler_utils.timer import timed
from ts.torch_handler.text_handler import TextHandler
from ts.utils.util import map_class_to_label


class TextClassifier(TextHandler):
    """A handler for batches of one text, which it answers with {label: probability} of all classes. The model takes the
    numbers of the text's words and pairs of words, and the offset 0; its layer `embedding` turns these numbers into
    vectors."""

    ngrams = 2

    @timed
    def preprocess(self, data: Any) -> tuple[Any, list[str]]:
        """The numbers of the first request's words and pairs of words, as a tensor, and the words and pairs
        themselves."""
        import torch

        row = data[0]
        text = row.get("data") or row.get("body") or ""
        if isinstance(text, (bytes, bytearray)):
            text = text.decode("utf-8")
        text = self._remove_html_tags(text).lower()
        text = self._expand_contractions(text)
        text = self._remove_punctuation(self._remove_accented_characters(text))
        words = self._tokenize(text)
        tokens = [*words, *(" ".join(pair) for pair in pairwise(words))]
        numbers = [self._number_of(token) for token in tokens]
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.device), tokens

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        numbers, _ = data
        return super().inference(numbers, torch.zeros(1, dtype=torch.int64, device=self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        import torch

        return map_class_to_label(torch.nn.functional.softmax(data, dim=1).tolist(), self.mapping)

    def get_insights(self, text_preprocess: Any, _: Any, target: int = 0) -> list[Any]:
        """How much each token has contributed to the score of the class `target`. Raises ImportError without captum."""
        import torch

        if self.lig is None:
            from captum.attr import LayerIntegratedGradients  # type: ignore[import-not-found]  # a user's choice

            self.lig = LayerIntegratedGradients(self.model, self.model.embedding)
        numbers, tokens = text_preprocess
        offsets = torch.zeros(1, dtype=torch.int64, device=self.device)
        attributions, delta = self.lig.attribute(
            numbers,
            baselines=torch.zeros_like(numbers),
            additional_forward_args=(offsets,),
            return_convergence_delta=True,
            target=target,
        )
        answer = {
            "words": tokens,
            "importances": self.summarize_attributions(attributions).detach().cpu().tolist(),
            "delta": float(delta[0].item()),
        }
        return [answer]
