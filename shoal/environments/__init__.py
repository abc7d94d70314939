"""Python environments of models: which one a model asks for, how it is made, and how a worker starts in it."""
