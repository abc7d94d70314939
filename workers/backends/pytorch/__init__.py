"""The pytorch backend: TorchScript, torch.export and AOTInductor archives, and modules written in Python."""
