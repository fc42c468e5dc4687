"""The operator's own process against a real API server. Nodes are not needed: the tests say what kubelet would."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import control_plane
from tests.api.conftest import NODE, Api, operator, wait_for
from tests.conftest import example

pytestmark = pytest.mark.api

CHILDREN = ("pods", "resourceclaims", "services", "networkpolicies")


def declared(name: str, **spec: Any) -> dict[str, Any]:
    manifest = example(name)
    manifest["metadata"] = {"name": manifest["metadata"]["name"]}
    manifest["spec"] |= spec
    return manifest


def create(api: Api, manifest: dict[str, Any]) -> None:
    done = api.apply(manifest)
    assert done.returncode == 0, done.stderr


def condition(api: Api, name: str, kind: str) -> dict[str, Any]:
    status = (api.get("omnimodels", name) or {}).get("status") or {}
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def children(api: Api) -> dict[str, set[str]]:
    return {kind: {item["metadata"]["name"] for item in api.get(kind)} - {"kubernetes"} for kind in CHILDREN}


def play_kubelet(api: Api, only: str = "") -> None:
    """Ready for every pod without a gate, since there is no node here to make it so."""
    for pod in api.get("pods"):
        if pod["spec"].get("schedulingGates") or only not in pod["metadata"]["name"]:
            continue
        if not pod["spec"].get("nodeName"):
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod["metadata"]["name"]},
                "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
            }
            api.call("POST", f"{api.path('pods', pod['metadata']['name'])}/binding", binding)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T12:00:00Z"}
        api.patch_status("pods", pod["metadata"]["name"], {"phase": "Running", "conditions": [ready]})


def allocate(api: Api, claim: str) -> None:
    """What the scheduler writes."""
    result = {"request": "slot0", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
    api.patch_status("resourceclaims", claim, {"allocation": {"devices": {"results": [result]}}})


def play_until_ready(api: Api, name: str, seconds: float = 40.0) -> None:
    def played() -> bool:
        for claim in api.get("resourceclaims"):
            gated = [p for p in api.get("pods") if p["spec"].get("schedulingGates")]
            if not claim.get("status", {}).get("allocation") and len(gated) < len(api.get("pods")) - 1:
                allocate(api, claim["metadata"]["name"])
        play_kubelet(api)
        return condition(api, name, "Ready").get("status") == "True"

    wait_for(f"{name} is Ready", played, seconds)


def test_apply_makes_claim_pods_services_and_policy(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("qwen3-omni-h100-colocated"))
    wait_for("8 pods", lambda: len(api.get("pods")) == 8)
    found = children(api)
    assert found["resourceclaims"] == {"qwen3-omni-0"}
    assert found["services"] == {"qwen3-omni", "qwen3-omni-peers"}
    assert found["networkpolicies"] == {"qwen3-omni"}
    claim = api.get("resourceclaims", "qwen3-omni-0")["spec"]["devices"]
    assert [request["name"] for request in claim["requests"]] == ["slot0"]
    mps = claim["config"][0]["opaque"]["parameters"]["sharing"]
    assert mps == {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "63616Mi"}}, "78 % of 81,559 MiB"
    wait_for("accepted", lambda: condition(api, "qwen3-omni", "Accepted").get("status") == "True")


def test_first_stage_may_start_and_later_ones_wait(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("qwen3-omni-h100-colocated"))

    def gates() -> dict[str, bool]:
        return {
            p["metadata"]["labels"]["omnimodel.io/process"]: bool(p["spec"].get("schedulingGates"))
            for p in api.get("pods")
            if "omnimodel.io/process" in p["metadata"]["labels"]
        }

    wait_for("the thinker's gate opens", lambda: gates().get("thinker") is False)
    time.sleep(1)
    assert {name for name, gated in gates().items() if not gated} == {"thinker"}
    stages = api.get("omnimodels", "qwen3-omni")["status"]["stages"]
    talker = next(row for row in stages if row["name"] == "talker_ar")
    assert (talker["state"], talker["reason"]) == ("Gated", "waits for thinker on GPU 0")
    allocate(api, "qwen3-omni-0")
    play_kubelet(api, "thinker")
    wait_for("the talker's gate opens", lambda: gates()["talker_ar"] is False)
    assert gates()["image_encoder"] is True


def test_all_ready_is_said_in_status_and_columns(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("qwen3-omni-h100-colocated"))
    play_until_ready(api, "qwen3-omni")
    columns = api.must("get", "omnimodel", "qwen3-omni").splitlines()
    assert columns[0].split() == ["NAME", "READY", "REASON", "STAGES", "GPUS", "AGE"]
    assert columns[1].split()[1:6] == ["True", "Ready", "7/7", "0:", "94%"]

    def events() -> list[str]:
        return api.must("get", "events", "-o", "jsonpath={.items[*].reason}").split()

    wait_for("Ready is told last", lambda: "Ready" in events())
    for reason in ("Accepted", "Scheduled", "SharingReady", "StagesReady", "Ready"):
        assert events().count(reason) == 1, events()


def test_overbooked_is_refused_and_nothing_is_made(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("qwen3-omni-h100-overbooked"))
    accepted = wait_for("a verdict", lambda: condition(api, "qwen3-omni-overbooked", "Accepted"))
    assert (accepted["status"], accepted["reason"]) == ("False", "BudgetExceeded")
    for words in ("GPU 0", "104% of 100%", "thinker 88%", "4% (about 3.2Gi) too many", "to 84%"):
        assert words in accepted["message"]
    assert children(api) == {kind: set() for kind in CHILDREN}


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown pipeline", {"model": {"id": "a/b", "pipeline": "qwen4_omni", "cache": {"emptyDir": {}}}},
     "UnknownPipeline", "Did you mean qwen3_omni"),
    ("unknown model", {"model": {"id": "a/b", "cache": {"emptyDir": {}}}}, "UnknownPipeline", "spec.model.pipeline"),
    ("unknown variant", {"model": {"id": "Qwen/Qwen3-Omni-30B-A3B-Instruct", "variant": "speach",
                                   "cache": {"emptyDir": {}}}}, "UnknownVariant", "Did you mean speech"),
    ("unknown stage", {"stages": [{"name": "thinkr", "gpuMemory": "5%"}]}, "UnknownStage", "Did you mean thinker"),
    ("unknown card", {"gpus": {"card": "h100"}}, "UnknownCard", "h100-80gb"),
    ("skipped slot", {"stages": [{"name": "talker_ar", "gpus": [2], "gpuMemory": "10%"}]}, "SlotSkipped", "GPU 1"),
    ("ranks of the catalogue's slot", {"stages": [{"name": "thinker", "tensorParallelSize": 2}]}, "DeviceCountMismatch",
     "List 2 gpus"),
    ("no layout", {"stages": []}, "BudgetMissing", "gpuMemory"),
    ("apart", {"model": {"id": "Qwen/Qwen3-Omni-30B-A3B-Instruct", "variant": "speech", "cache": {"emptyDir": {}}},
               "stages": [{"name": n, "gpus": [0], "gpuMemory": "10%"} for n in
                          ("image_encoder", "audio_encoder", "thinker", "talker_ar")]},
     "LayoutUnsupported", "speech-colocated"),
]  # fmt: skip


def test_bad_declarations_each_get_their_reason_and_others_go_on(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    for i, (_, spec, _, _) in enumerate(BAD):
        manifest = declared("qwen3-omni-h100-colocated", **spec)
        manifest["metadata"]["name"] = f"bad-{i}"
        create(api, manifest)
    create(api, declared("tiny-omni"))
    for i, (what, _, reason, words) in enumerate(BAD):
        accepted = wait_for(f"a verdict on {what}", lambda i=i: condition(api, f"bad-{i}", "Accepted"))
        assert (accepted["status"], accepted["reason"]) == ("False", reason), what
        assert words in accepted["message"], what
    wait_for("the good one is made", lambda: len(api.get("pods")) == 5)
    assert {p["metadata"]["labels"]["omnimodel.io/name"] for p in api.get("pods")} == {"tiny-omni"}


def test_without_its_crd_it_ends_and_says_so(tmp_path: Path) -> None:
    with control_plane(tmp_path / "bare") as kubeconfig, operator(Api(kubeconfig), tmp_path / "log") as process:
        assert process.wait(60) == 1
    assert "the cluster has no kind OmniModel; install it with the chart" in (tmp_path / "log").read_text()


def test_unchanged_means_no_write(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    time.sleep(1)

    def versions() -> dict[str, str]:
        kinds = ("omnimodels", *CHILDREN)
        return {
            f"{kind}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for kind in kinds
            for item in api.get(kind)
        }

    before = versions()
    api.must("annotate", "pod", "tiny-omni-0-decode", "someone=else")
    time.sleep(2)
    after = versions()
    assert {key for key in before if before[key] != after[key]} == {"pods/tiny-omni-0-decode"}


def test_deleting_it_removes_all_children(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("tiny-omni"))
    wait_for("all pods", lambda: len(api.get("pods")) == 5)
    api.must("delete", "omnimodel", "tiny-omni")
    wait_for("nothing left", lambda: children(api) == {kind: set() for kind in CHILDREN}, 60)


def test_an_object_of_someone_else_is_not_taken_over(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "tiny-omni"},
        "spec": {"selector": {"app": "else"}, "ports": [{"port": 80}]},
    }
    create(api, foreign)
    create(api, declared("tiny-omni"))
    ready = wait_for("told so", lambda: (c := condition(api, "tiny-omni", "Ready")).get("reason") == "NameTaken" and c)
    assert "Service tiny-omni" in ready["message"]
    assert api.get("services", "tiny-omni")["spec"]["selector"] == {"app": "else"}


def test_foreign_pods_with_our_labels_are_left_alone(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    labels = {"omnimodel.io/name": "tiny-omni", "omnimodel.io/replica": "7", "omnimodel.io/component": "stage"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stray", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    create(api, pod)
    create(api, declared("tiny-omni"))
    wait_for("our pods", lambda: len(api.get("pods")) == 6)
    time.sleep(1)
    assert api.get("pods", "stray")["metadata"].get("deletionTimestamp") is None


def test_deleted_children_come_back(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    api.must("delete", "service/tiny-omni", "networkpolicy/tiny-omni", "--wait=false")
    api.must("delete", "pod", "tiny-omni-0-talker", "--grace-period=0", "--force")
    wait_for("all are back", lambda: api.get("services", "tiny-omni") and len(api.get("pods")) == 5)
    play_until_ready(api, "tiny-omni")


def test_killed_at_any_moment_it_ends_in_the_same_state(api: Api, tmp_path: Path) -> None:
    create(api, declared("tiny-omni"))
    chance = random.Random(5)
    for _ in range(6):
        with operator(api, tmp_path / "log") as process:
            time.sleep(1.0 + chance.random() * 1.2)
            process.send_signal(signal.SIGKILL)
            process.wait()
        play_kubelet(api)
    with operator(api, tmp_path / "log"):
        play_until_ready(api, "tiny-omni")
    assert {k: len(v) for k, v in children(api).items()} == {
        "pods": 5,
        "resourceclaims": 1,
        "services": 2,
        "networkpolicies": 1,
    }


def test_a_second_operator_waits_for_the_lease(api: Api, tmp_path: Path) -> None:
    lease = {"OMNI_LEASE_NAMESPACE": api.namespace}
    with operator(api, tmp_path / "a.log", OMNI_POD_NAME="a", **lease) as first:
        wait_for("a leads", lambda: "leading" in (tmp_path / "a.log").read_text())
        with operator(api, tmp_path / "b.log", OMNI_POD_NAME="b", **lease):
            time.sleep(3)
            assert "leading" not in (tmp_path / "b.log").read_text()
            first.send_signal(signal.SIGTERM)
            first.wait(20)
            wait_for("b leads", lambda: "leading" in (tmp_path / "b.log").read_text(), 20)
