"""The model mlp for servers that bring their own ONNX Runtime, with the session options of Shoal's worker."""

import onnxruntime

from bench.workloads import MLP, MLP_THREADS


def open_session() -> onnxruntime.InferenceSession:
    """A session for batches of FP32[n, 512]."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = MLP_THREADS
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(MLP), options, providers=["CPUExecutionProvider"])
