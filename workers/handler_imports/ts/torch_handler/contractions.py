"""English contractions and what they are short for; text handlers expand them."""

_NOT = (
    "are", "could", "did", "does", "do", "had", "has", "have", "is", "might", "must", "need", "should", "was", "were",
    "would",
)  # fmt: skip
_PRONOUNS = {
    "i": ("'m am", "'ll will", "'ve have", "'d would"),
    **dict.fromkeys(("you", "we", "they"), ("'re are", "'ll will", "'ve have", "'d would")),
    **dict.fromkeys(("he", "she", "it", "that", "there", "who", "what"), ("'s is", "'ll will", "'d would")),
    **dict.fromkeys(("where", "when", "how", "why", "here"), ("'s is",)),
    **dict.fromkeys(("could", "would", "should", "might", "must"), ("'ve have",)),
}

#: Contraction → words, in lower case.
CONTRACTION_MAP = {
    **{f"{verb}n't": f"{verb} not" for verb in _NOT},
    **{
        f"{word}{ending.split()[0]}": f"{word} {ending.split()[1]}"
        for word, endings in _PRONOUNS.items()
        for ending in endings
    },
    "ain't": "is not", "can't": "cannot", "won't": "will not", "shan't": "shall not", "let's": "let us",
    "ma'am": "madam", "o'clock": "of the clock", "y'all": "you all", "'cause": "because", "so's": "so is",
}  # fmt: skip
