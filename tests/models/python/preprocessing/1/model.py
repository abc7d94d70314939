import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils
from wordpiece import load_vocabulary, tokenize


class TritonPythonModel:
    """Text in, padded token ids out."""

    def initialize(self, args):
        self.model_config = json.loads(args["model_config"])
        path = os.path.join(args["model_repository"], args["model_version"], "vocab.txt")
        self.vocabulary = load_vocabulary(path)
        self.ids_dtype = pb_utils.triton_string_to_numpy(
            pb_utils.get_output_config_by_name(self.model_config, "INPUT_IDS")["data_type"]
        )

    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            tokens = [self.encode(row[0].decode("utf-8")) for row in text]
            longest = max(len(row) for row in tokens)
            padded = [row + ["[PAD]"] * (longest - len(row)) for row in tokens]
            ids = np.array([[self.vocabulary[token] for token in row] for row in padded], dtype=self.ids_dtype)
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("INPUT_IDS", ids),
                        pb_utils.Tensor("TOKENS", np.array(padded, dtype=np.object_)),
                    ]
                )
            )
        return responses

    def encode(self, text):
        words = text.lower().split()
        return ["[CLS]", *(token for word in words for token in tokenize(word, self.vocabulary)), "[SEP]"]
