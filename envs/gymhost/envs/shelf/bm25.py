"""BM25: which texts fit a query best, by the words that they share."""

import math
import re
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"\w+")


class Bm25:
    """An index of texts by their titles, in the form of Robertson and Zaragoza (2009).

    Args:
        texts: The texts by title.
        saturation: How soon more of the same word counts no more; called k1.
        by_length: How much long texts are held back, from 0 to 1; called b.
    """

    __slots__ = ("_weights",)

    def __init__(self, texts: Mapping[str, str], *, saturation: float = 1.2, by_length: float = 0.75) -> None:
        counts = {title: Counter(words(text)) for title, text in texts.items()}
        mean = sum(count.total() for count in counts.values()) / max(1, len(counts))
        having = Counter(word for count in counts.values() for word in count)
        # By word, what it adds to the score of each text that has it.
        self._weights: dict[str, dict[str, float]] = {word: {} for word in having}
        for title, count in counts.items():
            length = saturation * (1 - by_length + by_length * count.total() / (mean or 1.0))
            for word, times in count.items():
                rarity = math.log(1 + (len(counts) - having[word] + 0.5) / (having[word] + 0.5))
                self._weights[word][title] = rarity * times * (saturation + 1) / (times + length)

    def search(self, query: str, limit: int) -> list[str]:
        """Returns the titles of the texts that fit best, the best first; those that share no word are left out."""
        scores: dict[str, float] = {}
        for word in words(query):
            for title, weight in self._weights.get(word, {}).items():
                scores[title] = scores.get(title, 0.0) + weight
        return sorted(scores, key=lambda title: (-scores[title], title))[:limit]


def words(text: str) -> list[str]:
    """Returns the words of a text, in lower case."""
    return _WORD.findall(text.lower())
