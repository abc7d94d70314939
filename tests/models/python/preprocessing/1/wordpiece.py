"""Lies beside model.py, which imports it by its plain name."""


def load_vocabulary(path):
    with open(path, encoding="utf-8") as file:
        return {token.rstrip("\n"): index for index, token in enumerate(file)}


def tokenize(word, vocabulary):
    """Greedy, longest match first."""
    tokens, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start:
            token = ("##" if start else "") + word[start:end]
            if token in vocabulary:
                break
            end -= 1
        if end == start:
            return ["[UNK]"]
        tokens.append(token)
        start = end
    return tokens
