"""What is said of figures is so: alerts, the Grafana dashboard and the guide name what servers tell, and all of it."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gymhost.client import Error, connect
from gymhost.v1 import operations_pb2 as pb
from gymhost.v1 import operations_pb2_grpc as rpc
from gymhost.v1 import rollouts_pb2
from support.raw import channel_to
from support.rollouts_process import RolloutsProcess, rollouts_stub, submission
from support.server import ServerProcess

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
GUIDE = (ROOT / "docs" / "guides" / "watching.md").read_text()

# What Prometheus adds, and what parts of a histogram have.
ADDED = {"instance", "job", "le"}
PARTS = re.compile(r"_(bucket|sum|count)$")
NAME = re.compile(r"\b((?:gymhost|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
LISTED = re.compile(r"\b(?:by|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


async def played(environments: str, rollouts: str) -> None:
    """Has both servers count something in as many ways as is easily done."""

    async with connect(environments) as server, server.session("test/Raises-v0") as session:
        await session.reset(seed=1)
        await session.step(1)
        with pytest.raises(Error):
            await session.step("raise")
    async with rollouts_stub(rollouts) as stub:
        job = (await stub.SubmitJob(submission("nowhere", env_id="test/Nothing-v0"))).job
        stream = stub.StreamResults(rollouts_pb2.StreamResultsRequest(job_ids=[job.id]))
        assert [result async for response in stream for result in response.results]


async def told_by(address: str) -> dict[str, set[str]]:
    """The metrics that a server tells, with the labels that they have; none where nothing was counted yet."""
    async with channel_to(address) as channel:
        stub: Any = rpc.OperationsServiceStub(channel)
        text = (await stub.GetMetrics(pb.GetMetricsRequest())).text
    return {
        family.name + "_total" * (family.type == "counter"): {
            label for sample in family.samples for label in sample.labels
        }
        - ADDED
        for family in text_string_to_metric_families(text)
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """What an environment server tells, and a rollout service."""
    with (
        ServerProcess(workers=1) as environments,
        RolloutsProcess(
            tmp_path_factory.mktemp("rollouts"),
            environments=[environments.address],
            generators=["http://127.0.0.1:9"],
            paths=[],
        ) as rollouts,
    ):

        async def ask() -> dict[str, set[str]]:
            await played(environments.address, rollouts.address)
            own, of_rollouts = await told_by(environments.address), await told_by(rollouts.address)
            assert not own.keys() & of_rollouts.keys(), "at /metrics both are one text"
            return own | of_rollouts

        yield asyncio.run(ask())


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return json.loads((EXAMPLES / "grafana.json").read_text())["panels"]


def rows(section: str) -> list[list[str]]:
    """The rows of the tables in a section of the guide."""
    body = re.split(rf"^##+ {section}$", GUIDE, flags=re.MULTILINE)[1]
    body = re.split(r"^##", body, flags=re.MULTILINE)[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def documented() -> dict[str, set[str]]:
    """The metrics that the guide has, with their labels."""
    found = [row for section in ("Environment servers", "Rollout services", "Processes") for row in rows(section)]
    assert len({row[0] for row in found}) == len(found)
    return {row[0].strip("`"): {label.strip() for label in row[1].split(",") if label.strip()} for row in found}


def expressions() -> list[str]:
    """All that is asked of Prometheus."""
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
    asked = [rule["expr"] for rule in alerts()]
    asked += [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert selector is not None
            asked.append(selector[1])
    asked += [row[1].strip("`") for row in rows("Questions")]
    return [re.sub(r"\$__rate_interval", "5m", one) for one in asked]


def test_all_that_is_told_is_in_the_guide_and_nothing_else(told: dict[str, set[str]]) -> None:
    guide = documented()
    assert set(told) == set(guide)
    # A metric of which nothing was counted yet has no labels here.
    assert {name: labels for name, labels in guide.items() if told[name]} == {
        name: labels for name, labels in told.items() if labels
    }
    assert sum(map(bool, told.values())) > 20


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_parses_and_asks_for_what_there_is(expression: str) -> None:
    promql_parser.parse(expression)
    guide = documented()
    known = set(ADDED)
    found = NAME.findall(expression)
    for name, matchers in found:
        base = PARTS.sub("", name) if name not in guide else name
        assert base in guide, name
        known |= guide[base]
        assert set(MATCHER.findall(matchers)) <= guide[base] | ADDED, (name, matchers)
    assert found or 'up{job="gymhost"}' in expression
    for labels in LISTED.findall(expression):
        assert {label.strip() for label in labels.split(",")} - {""} <= known, labels


def test_alerts_say_what_they_are_about() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        # What a summary names is left by the expression.
        for label in re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values())):
            by = re.search(r"by \(([^)]*)\)", rule["expr"])
            left = re.split(r"[ ,]+", by[1]) if by else {*ADDED}.union(*documented().values())
            assert label in left, (rule["alert"], label)
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["gymhost"]


def test_the_grafana_dashboard_has_its_rows_and_no_panel_lies_on_another() -> None:
    titles = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert titles == ["Now", "Environments", "Workers", "Sandboxes", "Rollouts", "Generators"]
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
