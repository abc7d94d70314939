"""GET /metrics: the families of metrics, where their figures come from, and the text of the answer."""
