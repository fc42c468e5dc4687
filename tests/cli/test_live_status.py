"""What the live picture takes from the status itself: measured memory, who keeps a share, restarts, the revision."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.cli.live_model import LiveModel, Readings
from omni_operator.cli.live_parse import live_model
from omni_operator.cli.live_report import report
from tests.cli.live_models import GIB, model, page, stored
from tests.cli.test_live_text import explained, shown
from tests.conftest import example

READY = ("True", "Ready", "Serving on 1 of 1 replicas.")
RESTARTS = [
    {"replica": 0, "restarts": 2, "lastRestart": "2026-11-29T12:07:00Z", "reason": "thinker ended with exit code 72"}
]


def seen(rows: dict[str, dict[str, Any]], **status: Any) -> LiveModel:
    """The colocated model with more in the rows of its stages, and in its status."""
    manifest = stored({}, READY)
    for row in manifest["status"]["stages"]:
        row |= rows.get(row["name"], {})
    manifest["status"] |= status
    return live_model(manifest, Readings())


def measured(gib: int, kind: str = "torch", by: str = "MPS") -> dict[str, Any]:
    return {"measuredMemoryBytes": gib * GIB, "measuredMemoryKind": kind, "enforcedBy": by}


def test_declared_stands_beside_what_the_operator_measured_and_who_keeps_it() -> None:
    text = shown(seen({"thinker": measured(60), "code2wav": measured(1, by="nothing")}))
    assert "      STAGE            SHARE  DECLARED  MEASURED  KEPT BY  STATE\n" in text
    assert "    C thinker            78%    62.1Gi      60Gi  MPS      Ready\n" in text
    assert "    E code2wav            2%     1.6Gi       1Gi  nothing  Ready\n" in text
    assert "    D talker_ar          10%     8.0Gi                     Ready\n" in text
    assert "│    ▀▀▀▀▀▀▀▀▀▀" in text


def test_a_stage_s_own_word_is_newer() -> None:
    manifest = stored({}, READY)
    row = next(row for row in manifest["status"]["stages"] if row["name"] == "thinker")
    row |= measured(60)
    for own, told in ((page(62), 62 * GIB), (page(1, on_gpu=False), None)):
        found = live_model(manifest, Readings(pages={row["pod"]: own}))
        stage = next(stage for stage in found.stages if stage.name == "thinker")
        assert stage.measured == told


def test_host_memory_is_told_too() -> None:
    found = seen({"decode": measured(2, "resident", "")})
    assert "decode  2Gi of host memory" in shown(found)
    rows = {row["name"]: row for row in report(found)["stages"]}
    assert (rows["decode"]["hostMemoryBytes"], rows["decode"]["measuredBytes"]) == (2 * GIB, None)


def test_restarts_of_the_group_and_the_revision_are_told() -> None:
    found = seen({}, groupRestarts=RESTARTS, revision=7)
    for text in (shown(found, 100), explained(found)):
        assert "Restarted together\n  2 times, last 3m ago  thinker ended with exit code 72\n" in text
    assert "generation 1, revision 7\n" in shown(found, 100)
    assert report(found)["revision"] == 7
    assert report(found)["groupRestarts"][0]["restarts"] == 2


def test_of_a_refused_edit_what_runs_is_shown_and_the_way_back() -> None:
    manifest = stored({}, ("False", "BudgetExceeded", "GPU 0 is overbooked."))
    runs = dict(manifest["spec"])
    manifest["spec"] = runs | {"stages": [row | {"gpuMemory": "95%"} for row in runs["stages"]]}
    manifest["metadata"]["generation"] = manifest["status"]["observedGeneration"] = 2
    manifest["status"] |= {"revision": 1}
    manifest["status"]["conditions"][0] |= {"status": "False", "reason": "BudgetExceeded"}
    found = live_model(manifest, Readings(accepted=runs))
    text = shown(found, 100)
    assert "GPU 0  h100-80gb 79.6Gi   94% of 100% given away" in text
    assert "Shown is what runs, revision 1. Generation 2 is refused" in text
    assert "kubectl omni rollout undo qwen3-omni" in text.replace("\n    ", " ")
    assert "What to change\n  BudgetExceeded in spec.stages: " in explained(found)


def test_a_model_without_gpus_has_no_cards() -> None:
    manifest = example("tiny-omni")
    manifest["metadata"] |= {"generation": 1}
    rows = [
        {"name": name, "replica": 0, "pod": name, "state": "Ready", "restarts": 0} | measured(1, "resident", "")
        for name in ("preprocessing", "thinker")
    ]
    manifest["status"] = {"observedGeneration": 1, "sharing": "None", "stages": rows}
    manifest["spec"]["stages"] = [{"name": name, "gpus": []} for name in ("thinker", "talker")]
    text = shown(live_model(manifest, Readings()))
    assert "GPU 0" not in text
    assert "✓ Ready       preprocessing, thinker  1Gi of host memory" in text


def test_one_that_is_not_attached_is_told_where_to_look() -> None:
    why = "MpsNotAttached: sharing is MPS, but the control daemon is not there"
    text = explained(model({"thinker": ("Starting", why)}, ready=("False", "Starting", "6 of 7 stages are ready.")))
    assert "See why the MPS control daemon of its GPU is not there on node node-a" in text
    assert "kubectl get pods -A -o wide | grep mps-control-daemon\n" in text


@pytest.mark.parametrize("odd", [None, "60", -1, True, 1.5, [], {}])
def test_what_someone_wrote_into_the_status_breaks_nothing(odd: Any) -> None:
    rows = {"thinker": {"measuredMemoryBytes": odd, "measuredMemoryKind": odd, "enforcedBy": odd}}
    found = seen(rows, revision=odd, groupRestarts=[{"replica": odd, "restarts": odd, "lastRestart": odd}, odd])
    assert "thinker" in shown(found)
    assert "Restarted together" in explained(found)
    assert report(found)["revision"] is None
