"""Manifests against published schemas: Kubernetes' own, and Ray's of its cluster launcher."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

from specpipe.evaluation.schedule.eval_job import load_eval_job

KUBERNETES = "1.34"
CORE = {"batch/v1", "v1"}


def documents(infra: Path) -> list[dict[str, Any]]:
    files = sorted((infra / "kubernetes").glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def pod_templates(node: Any) -> Iterator[dict[str, Any]]:
    """Yields every pod template within a document."""
    if isinstance(node, dict):
        if "template" in node and "containers" in node["template"].get("spec", {}):
            yield node["template"]
        for value in node.values():
            yield from pod_templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_templates(value)


def validate(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_kubernetes_objects_match_its_schema(infra: Path) -> None:
    checked = [document for document in documents(infra) if document["apiVersion"] in CORE]
    assert {document["kind"] for document in checked} == {"CronJob", "PersistentVolumeClaim"}
    for document in checked:
        validate(document)


def test_unknown_field_does_not_match_the_schema(infra: Path) -> None:
    (cron,) = (document for document in documents(infra) if document["kind"] == "CronJob")
    wrong = copy.deepcopy(cron)
    wrong["spec"]["concurencyPolicy"] = wrong["spec"].pop("concurrencyPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)


def test_every_pod_is_valid_and_not_root(infra: Path) -> None:
    templates = [template for document in documents(infra) for template in pod_templates(document)]
    assert len(templates) == 5
    for template in templates:
        metadata = {"name": "pod", **template.get("metadata", {})}
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert all(c["securityContext"]["allowPrivilegeEscalation"] is False for c in template["spec"]["containers"])


def test_clusters_use_the_image_ray_version_and_tokens(infra: Path, ray_version: str) -> None:
    kinds = {document["kind"]: document["spec"] for document in documents(infra)}
    for spec in (kinds["RayCluster"], kinds["RayJob"]["rayClusterSpec"]):
        assert spec["rayVersion"] == ray_version
        assert spec["authOptions"] == {"mode": "token"}
    images = {c["image"] for d in documents(infra) for t in pod_templates(d) for c in t["spec"]["containers"]}
    launcher = yaml.safe_load((infra / "cluster.yaml").read_text(encoding="utf-8"))
    assert images == {launcher["docker"]["image"]}


def test_schedule_forbids_overlapping_evaluations(infra: Path) -> None:
    (cron,) = (document["spec"] for document in documents(infra) if document["kind"] == "CronJob")
    assert cron["concurrencyPolicy"] == "Forbid"


def test_launcher_file_matches_the_schema_of_ray(infra: Path) -> None:
    config = yaml.safe_load((infra / "cluster.yaml").read_text(encoding="utf-8"))
    validate_config(prepare_config(config))
    with pytest.raises(ValidationError):
        validate_config({**prepare_config(config), "head_node": "x"})


def test_nightly_job_loads_and_writes_to_shared_storage_only(infra: Path) -> None:
    job = load_eval_job(str(infra / "schedule/nightly.yaml"))
    assert job.folder.startswith("/shared/runs/nightly-")
    assert str(job.evaluation.history).startswith("/shared/")
