"""Prometheus and Grafana: every query parses and uses metrics and labels that specpipe exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from specpipe.telemetry.metrics import METRICS

SERIES = {
    f"{metric.exported}{suffix}": {*metric.labels, *(["le"] if suffix == "_bucket" else [])}
    for metric in METRICS
    for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}


def dashboard(infra: Path) -> dict[str, Any]:
    return json.loads((infra / "monitoring/grafana.json").read_text(encoding="utf-8"))


def queries(infra: Path) -> Iterator[str]:
    for panel in dashboard(infra)["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    alerts = yaml.safe_load((infra / "monitoring/alerts.yml").read_text(encoding="utf-8"))
    yield from (rule["expr"] for group in alerts["groups"] for rule in group["rules"])


def check(query: str) -> set[str]:
    """Returns the series that a query reads. Raises for a series or a label that is not exported."""
    shown = str(promql_parser.parse(query.replace("$run", "any")))
    read = set(re.findall(r"\bray_\w+", shown))
    assert read and read <= SERIES.keys(), f"{query}: {read - SERIES.keys()}"
    known = set.union(*(SERIES[name] for name in read))
    grouped = [
        label.strip()
        for labels in re.findall(r"\b(?:by|ignoring|on) \(([^)]*)\)", shown)
        for label in labels.split(",")
    ]
    matched = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", shown)
    assert {*grouped, *matched} <= known, f"{query}: {({*grouped, *matched}) - known}"
    return read


def test_every_query_reads_exported_series(infra: Path) -> None:
    read = set.union(*(check(query) for query in queries(infra)))
    shown = {name.removesuffix("_bucket") for name in read}
    assert shown == {metric.exported for metric in METRICS}  # and all of it is looked at somewhere


@pytest.mark.parametrize(
    "query", ["sum(ray_specpipe_token_total)", "sum by (shard) (ray_specpipe_k)", 'ray_specpipe_k{shard="3"}']
)
def test_query_of_an_unknown_series_is_found(query: str) -> None:
    with pytest.raises(AssertionError):
        check(query)


def test_panels_have_unique_ids_and_do_not_overlap(infra: Path) -> None:
    panels = dashboard(infra)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken) and max(x for x, _ in taken) < 24


def test_legends_and_alerts_name_existing_labels(infra: Path) -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    text = (infra / "monitoring/alerts.yml").read_text(encoding="utf-8")
    legends = [target["legendFormat"] for panel in dashboard(infra)["panels"] for target in panel["targets"]]
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
    assert {name for legend in legends for name in re.findall(r"{{(\w+)}}", legend)} <= labels


def test_prometheus_scrapes_ray_target_list_and_pod_port(infra: Path) -> None:
    config = yaml.safe_load((infra / "monitoring/prometheus.yml").read_text(encoding="utf-8"))
    assert [job["job_name"] for job in config["scrape_configs"]] == ["ray", "ray-pods"]
    assert config["rule_files"] == ["alerts.yml"]
    (pods,) = (job["kubernetes_sd_configs"][0]["selectors"][0] for job in config["scrape_configs"][1:])
    for file in ("raycluster", "rayjob"):
        text = (infra / f"kubernetes/{file}.yaml").read_text(encoding="utf-8")
        assert text.count(f"labels: {{{pods['label'].replace('=', ': ')}}}") == 2 and text.count("name: metrics") == 2
