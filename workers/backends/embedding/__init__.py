"""The embedding backend: outputs are rows of tables, looked up by the ids in inputs. See docs/embedding.md."""

from shoal.workers.backends.embedding.backend import EmbeddingBackend

__all__ = ["EmbeddingBackend"]
