"""TorchServe's protocol: its management API, as far as scripts written for it scale models of Shoal."""
