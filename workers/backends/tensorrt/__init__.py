"""TensorRT: engines are run (backend.py), by the profile that fits (profiles.py), and built from ONNX files
(build.py)."""
