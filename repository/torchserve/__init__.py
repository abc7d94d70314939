"""TorchServe's model stores: archives and folders, unpacked and turned into ordinary model versions. In the poller."""
