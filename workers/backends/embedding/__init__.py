"""The embedding backend: outputs are rows of tables, looked up by the ids in inputs. See docs/embedding.md."""
