"""The HorizontalPodAutoscaler of docs/operations.md scales an OmniModel, by what its fronts report."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.api.conftest import Api, Manifest, wait_for
from tests.api.custom_metrics import metrics_api
from tests.api.test_operator import create, declared, play_kubelet
from tests.conftest import ROOT

pytestmark = pytest.mark.api


def documented() -> Manifest:
    """The manifest that the page shows."""
    blocks = (ROOT / "docs/operations.md").read_text().split("```yaml\n")[1:]
    manifests = [yaml.safe_load(block.partition("```")[0]) for block in blocks]
    found: Manifest = next(each for each in manifests if each["kind"] == "HorizontalPodAutoscaler")
    return found


def test_the_documented_autoscaler_follows_the_fronts(
    api: Api, running_operator: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    hpa = documented()
    hpa["spec"]["scaleTargetRef"]["name"] = "tiny-omni"
    [metric] = hpa["spec"]["metrics"]
    name, target = metric["pods"]["metric"]["name"], int(metric["pods"]["target"]["averageValue"])
    create(api, declared("tiny-omni"))
    wait_for("its front is made", lambda: api.get("pods", "tiny-omni-0--front"))
    play_kubelet(api, "front")
    # Twice the target on one front wants two replicas; counting stage pods too, it would want ten.
    with metrics_api(api, tmp_path, name, str(2 * target)):
        create(api, hpa)
        wait_for(
            "a second replica is asked for", lambda: api.get("omnimodels", "tiny-omni")["spec"]["replicas"] == 2, 60
        )
        wait_for("its front is made", lambda: api.get("pods", "tiny-omni-1--front"))
