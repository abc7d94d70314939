"""A pipeline of three models, written as plain code: Triton's business logic scripting (BLS).

The tensors of one model go to the next where they lie; nothing is copied on the way through this model. `execute` is a
coroutine, so while one text waits for a model, this instance takes up others.
"""

from __future__ import annotations  # Triton has no pb_utils.InferenceRequest while it completes configurations

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`text` -> tokenizer -> encoder -> postprocessing -> `label` and `probability`."""

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """All requests at once: the models that are called see them together and can batch them."""
        return await asyncio.gather(*map(self._classify, requests))

    async def _classify(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        try:
            tokens = await call("tokenizer", request.inputs(), ["input_ids", "attention_mask"])
            logits = await call("encoder", tokens, ["logits"])
            return pb_utils.InferenceResponse(await call("postprocessing", logits, ["label", "probability"]))
        except StepFailed as failed:
            return pb_utils.InferenceResponse(error=failed.error)


class StepFailed(Exception):
    """A model of the pipeline answered with an error, which is passed on with its code."""

    def __init__(self, error: pb_utils.TritonError) -> None:
        super().__init__(error.message())
        self.error = error


async def call(model: str, inputs: list[pb_utils.Tensor], outputs: list[str]) -> list[pb_utils.Tensor]:
    """The outputs of another model."""
    request = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=outputs)
    response = await request.async_exec()
    if response.has_error():
        raise StepFailed(response.error())
    return response.output_tensors()
