"""What several servers count, as one text for Prometheus."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["CONTENT_TYPE", "joined"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def joined(texts: Mapping[str, str]) -> str:
    """Joins texts of several servers. What more than one of them counts has the label `server` then.

    Args:
        texts: In Prometheus' text format, by the servers' names.
    """
    if len(texts) == 1:
        return next(iter(texts.values()))
    families: dict[str, list[tuple[str, Metric]]] = {}
    for server, text in texts.items():
        for family in text_string_to_metric_families(text):
            families.setdefault(family.name, []).append((server, family))
    registry = CollectorRegistry()
    registry.register(_Families([_one(members) for members in families.values()]))
    return generate_latest(registry).decode()


class _Families:
    """A collector of families that are there."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Returns them."""
        return self._families


def _one(members: list[tuple[str, Metric]]) -> Metric:
    first = members[0][1]
    if len(members) == 1:
        return first
    merged = Metric(first.name, first.documentation, first.type)
    for server, family in members:
        for sample in family.samples:
            merged.samples.append(sample._replace(labels={**sample.labels, "server": server}))
    return merged
