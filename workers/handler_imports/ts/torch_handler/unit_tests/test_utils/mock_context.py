"""A context for users' own tests of their handlers, without a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ts.context import Context, RequestHeaders, RequestProcessor
from ts.metrics.metrics_store import MetricsStore
from ts.utils.util import get_yaml_config


class MockContext(Context):
    """The context of a model in `model_dir`, with one request whose `explain` header says whether it asks for an
    explanation."""

    def __init__(
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = None,
        gpu_id: int | str | None = None,
        model_name: str = "mock",
        model_yaml_config_file: str | None = None,
    ) -> None:
        described: dict[str, Any] = {"modelName": model_name}
        if model_pt_file:
            described["serializedFile"] = model_pt_file
        if model_file:
            described["modelFile"] = model_file
        config = {}
        if model_yaml_config_file:
            config = get_yaml_config(os.path.join(model_dir, model_yaml_config_file))
        gpu = None if gpu_id is None else int(gpu_id)
        metrics = MetricsStore(model_name=model_name)
        super().__init__(
            model_name, model_dir, {"model": described}, 1, gpu, "0.12.0", metrics=metrics, model_yaml_config=config
        )
        self.explain = False
        self.request_ids = {0: "0"}
        self.request_processor = [RequestProcessor(RequestHeaders())]

    def get_request_header(self, idx: int, key: str) -> Any:
        """A header of the request; `explain` is the attribute of this name."""
        return str(self.explain) if key == "explain" else super().get_request_header(idx, key)

    def get_all_request_header(self, idx: int) -> Mapping[str, Any]:
        return RequestHeaders({**super().get_all_request_header(idx), "explain": str(self.explain)})
