"""TensorRT: backend.py runs engines, profiles.py chooses the optimization profile that fits a batch, build.py builds
engines from ONNX files."""
