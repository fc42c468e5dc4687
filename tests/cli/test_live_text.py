"""The live picture, the explanation and the report, of models in given states."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from omni_operator.cli.documents import BadInput
from omni_operator.cli.live_explain import explanation
from omni_operator.cli.live_logs import Wanted, pod_of
from omni_operator.cli.live_model import LiveModel
from omni_operator.cli.live_parse import clean, live_model
from omni_operator.cli.live_report import report, reports
from omni_operator.cli.live_text import status_lines, table_lines
from omni_operator.cli.live_waiting import span_of_time, waiting
from omni_operator.cli.live_watch import changes, changes_of_all, screen
from omni_operator.cli.paint import Canvas
from tests.cli.live_models import GIB, NOW, Readings, model, page, stored
from tests.conftest import example

STARTING = ("False", "Starting", "3 of 7 stages are ready.")
ON_THE_WAY = {
    "talker_ar": ("Starting", ""),
    "image_encoder": ("Gated", "waits for talker_ar on GPU 0"),
    "audio_encoder": ("Gated", "waits for talker_ar on GPU 0"),
    "code2wav": ("Gated", "waits for talker_ar on GPU 0"),
}


def shown(found: LiveModel, columns: int = 80, *, unicode: bool = True, replica: int | None = None) -> str:
    canvas = Canvas(columns, unicode=unicode)
    return canvas.draw(status_lines(found, NOW, canvas, replica))


def explained(found: LiveModel, flags: str = "") -> str:
    canvas = Canvas(100)
    return canvas.draw(explanation(found, NOW, canvas, flags))


def table(found: Sequence[LiveModel]) -> str:
    canvas = Canvas(120)
    return canvas.draw(table_lines(found, NOW, canvas, False))


PICTURE = """\
qwen3-omni  qwen3_omni/speech-colocated, sharing MPS/DRA, generation 1
… Not ready: Starting  3 of 7 stages are ready.

GPU 0  h100-80gb 79.6Gi   94% of 100% given away
  NVIDIA H100 80GB HBM3 79.6Gi, GPU-3fa1c2d4-0, on node-a
  ┌────────────────────────────────────────────────────────────────────────────┐
  │AABBCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCcDDDDDDDdEE·····│
  │    ▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀                             ▀▀▀▀▀▀▀▀       │
  └────────────────────────────────────────────────────────────────────────────┘
      STAGE            SHARE  DECLARED  MEASURED  STATE
    A image_encoder       2%     1.6Gi            Gated
    B audio_encoder       2%     1.6Gi            Gated
    C thinker            78%    62.1Gi      31Gi  Ready
    D talker_ar          10%     8.0Gi       9Gi  Starting
    E code2wav            2%     1.6Gi            Gated
    · free                6%     4.8Gi

Stages
  … Starting    talker_ar  weights 3 of 10
  … Gated       image_encoder, audio_encoder, code2wav  waits for talker_ar on
                GPU 0
  ✓ Ready       preprocessing, decode, thinker, front

Starting order
  GPU 0: thinker ✓ → talker_ar (Starting) → image_encoder → audio_encoder →
    code2wav

  CONDITION     STATUS  FOR  REASON
  Accepted      True    5m   Accepted
  Scheduled     True    5m   Scheduled
  SharingReady  True    5m   SharingReady
  StagesReady   True    5m   StagesReady
  Ready         False   5m   Starting
"""


def test_the_picture_of_a_model_that_starts() -> None:
    found = model(
        ON_THE_WAY, ready=STARTING, pages={"thinker": page(31), "talker_ar": page(9, detail="weights 3 of 10")}
    )
    assert shown(found) == PICTURE


@pytest.mark.parametrize("columns", [80, 120, 160])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_longer_than_the_terminal(columns: int, unicode: bool) -> None:
    found = model(ON_THE_WAY, ready=STARTING, pages={"thinker": page(31)}, notes=("words " * 40,))
    text = shown(found, columns, unicode=unicode)
    assert not [line for line in text.splitlines() if len(line) > columns]
    assert unicode or not set(text) & set("│┌▀✓→")


def test_a_ready_model_says_where_it_serves() -> None:
    text = shown(model())
    assert "✓ Ready  Serving on 1 of 1 replicas.  http://qwen3-omni.default.svc:8000/v1" in text.replace("\n  ", "  ")
    assert "Starting order" not in text


def test_without_measurements_there_is_no_second_row_and_the_note_says_why() -> None:
    text = shown(model(notes=("No measured memory: you may not get pods/proxy.",)))
    assert "▀" not in text
    assert "note: No measured memory: you may not get pods/proxy." in text


def test_host_memory_is_never_drawn_on_a_card() -> None:
    found = model(pages={"thinker": page(1.5, on_gpu=False)})
    assert "▀" not in shown(found)
    assert "thinker  1536Mi of host memory" in shown(found)


def test_a_stage_that_is_no_client_of_mps_is_told() -> None:
    assert "not attached to MPS" in shown(model(pages={"thinker": page(31, mps=False)}))
    assert "not attached" not in shown(model(pages={"thinker": page(31)}))


def test_several_replicas_are_told_apart_and_one_can_be_chosen() -> None:
    found = model(ON_THE_WAY, ready=STARTING, replicas=2)
    text = shown(found)
    assert "GPU 0 of replica 0" in text
    assert "GPU 0 of replica 1" in text
    assert "talker_ar/0, talker_ar/1" in text
    only = shown(found, replica=1)
    assert "replica 0" not in only
    assert "talker_ar/0" not in only


def test_many_cards_are_not_all_drawn() -> None:
    assert "and 4 more GPUs: --replica shows those of one" in shown(model(replicas=12))


def test_what_no_operator_has_seen() -> None:
    manifest = example("qwen3-omni-h100-colocated")
    found = live_model(manifest, Readings())
    assert "does omni-operator run, and watch namespace default?" in shown(found).replace("\n  ", " ")
    assert "kubectl get pods -A -l app.kubernetes.io/name=omni-operator" in explained(found)
    edited = model(observed_generation=0)
    assert not edited.ready
    assert "has seen generation 0 and not 1 yet" in shown(edited, 120)


def test_a_refused_edit_leaves_what_ran_and_says_so() -> None:
    stages = [{"name": "thinker", "gpuMemory": "99%"}]
    manifest = stored(
        {}, ("False", "BudgetExceeded", "Too much. Generation 1 is left running."), spec={"stages": stages}
    )
    manifest["status"]["conditions"][0] |= {"status": "False", "reason": "BudgetExceeded", "message": "Too much."}
    text = shown(live_model(manifest, Readings()), 120)
    assert "Not ready: BudgetExceeded  Too much. Generation 1 is left running." in text
    assert "The cards show generation 1, which is refused" in text


def test_a_spec_that_this_version_cannot_read_is_shown_without_cards() -> None:
    found = model(spec={"fieldOfTheFuture": 1})
    text = shown(found)
    assert "No cards are drawn" in text
    assert "✓ Ready" in text


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "a\r\nb\tc", "\x9b31m", "bell\x07"])
def test_text_of_the_cluster_cannot_steer_the_terminal(text: str) -> None:
    found = model({"thinker": ("Failed", text)}, ready=("False", "StageFailed", text))
    for drawn in (shown(found), explained(found), table([found]), *changes(None, found)):
        assert not [c for c in drawn if c != "\n" and not c.isprintable()]
    assert clean("a\nb") == "a b"


OUT = "OutOfBudget: asked for more GPU memory than its share (exit code 71)"


def test_explain_says_how_far_a_stage_can_be_raised() -> None:
    found = model({"talker_ar": ("Restarting", OUT)}, ready=("False", "OutOfBudget", "6 of 7."))
    text = explained(found, " -n team")
    assert "Raise gpuMemory of talker_ar from 10%: its GPU has room up to 16%" in text
    assert "kubectl omni logs qwen3-omni talker_ar --previous -n team" in text


def test_explain_of_a_full_gpu_names_whom_to_lower() -> None:
    shares = {"image_encoder": "2%", "audio_encoder": "2%", "thinker": "84%", "talker_ar": "10%", "code2wav": "2%"}
    stages = [{"name": name, "gpus": [0], "gpuMemory": share} for name, share in shares.items()]
    found = model(
        {"talker_ar": ("Restarting", OUT)}, ready=("False", "OutOfBudget", "6 of 7."), spec={"stages": stages}
    )
    assert "its GPU is full, so lower another stage's first (thinker 84%" in explained(found)


def test_explain_of_a_refused_one_offers_what_the_rules_accept() -> None:
    manifest = example("qwen3-omni-h100-overbooked")
    message = "spec.stages: GPU 0 is overbooked"
    conditions = [
        {"type": kind, "status": "False", "reason": "BudgetExceeded", "message": message + more}
        for kind, more in (("Accepted", "."), ("Ready", ". Nothing was created."))
    ]
    manifest["status"] = {"observedGeneration": 1, "conditions": conditions}
    text = explained(live_model(manifest, Readings()), " -n team")
    assert "✗ Ready  BudgetExceeded: as above. Nothing was created." in text
    assert "1. Lower gpuMemory of thinker from 88% to 84%" in text
    assert "spec.stages[name=thinker].gpuMemory: 84%" in text
    assert "-o yaml -n team | kubectl omni plan - --set 'stages[name=thinker].gpuMemory=84%'" in text


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("Starting", "ImagePullBackOff: Back-off pulling image", "spec.imagePullSecrets"),
        (
            "Pending",
            "0/3 nodes are available: 3 cannot allocate all claims",
            "describe resourceclaims -l omnimodel.io/name=qwen3-omni,omnimodel.io/replica=0",
        ),
        ("Restarting", "BadConfig: its configuration is not usable (exit code 78)", "engineArgs of thinker"),
        ("Restarting", "GpuFault: a fatal CUDA error (exit code 72)", "GPU of node node-a is suspect"),
        ("Restarting", "StageStartTimeout: was not ready (exit code 75)", "startupTimeout, which had 30m"),
        ("Failed", "StageFailed: its engine ended (exit code 73)", "kubectl omni logs qwen3-omni thinker"),
        ("Missing", "", "the operator makes it anew"),
    ],
)  # fmt: skip
def test_each_reason_has_its_advice(state: str, reason: str, words: str) -> None:
    found = model({"thinker": (state, reason)}, ready=("False", "StageFailed", "x"))
    assert words in " ".join(explained(found).split())


@pytest.mark.parametrize("reason", ["NameTaken", "WriteRefused", "MpsUnavailable", "ScaledToZero", "FrontNotReady"])
def test_each_reason_of_the_whole_has_its_advice(reason: str) -> None:
    assert "\n  1. " in explained(model(ready=("False", reason, "x")))


def test_where_nothing_is_wrong_nothing_is_advised() -> None:
    assert "What to change\n  Nothing." in explained(model())
    assert "Nothing yet" in explained(model(ON_THE_WAY, ready=STARTING))


def test_a_table_has_a_row_for_each_model_and_short_reasons() -> None:
    text = table([model(), model(ready=("False", "Starting", "words " * 100))])
    head, first, *rest = text.splitlines()
    assert head.split() == ["NAME", "READY", "STAGES", "GPUS", "AGE", "WHY"]
    assert first.split() == ["qwen3-omni", "True", "7/7", "0:", "94%", "10m", "Ready"]
    assert text.rstrip().endswith("…")
    assert len(rest) < 5


def test_the_report_has_measured_beside_declared() -> None:
    found = model(ON_THE_WAY, ready=STARTING, pages={"thinker": page(31), "decode": page(1, on_gpu=False)})
    data = json.loads(json.dumps(report(found)))
    rows = {row["name"]: row for row in data["stages"]}
    assert rows["thinker"]["measuredBytes"] == 31 * GIB
    assert rows["thinker"]["gpuMemory"] == "78%"
    assert (rows["decode"]["measuredBytes"], rows["decode"]["hostMemoryBytes"]) == (None, GIB)
    order = ["thinker", "talker_ar", "image_encoder", "audio_encoder", "code2wav"]
    assert data["startingOrder"] == [{"replica": 0, "slots": [0], "stages": order, "waitingFor": "talker_ar"}]
    assert (data["ready"], data["reason"]) == (False, "Starting")
    assert [row["name"] for row in reports([found])["omniModels"]] == ["qwen3-omni"]


def test_memory_over_several_gpus_is_per_gpu() -> None:
    stages = [{"name": "thinker", "gpus": [0, 1]}]
    manifest = stored({}, STARTING, spec={"stages": stages})
    row = next(row for row in manifest["status"]["stages"] if row["name"] == "thinker")
    row["slots"] = [0, 1]
    found = live_model(manifest, Readings(pages={row["pod"]: page(30)}))
    assert next(stage for stage in found.stages if stage.name == "thinker").measured == 15 * GIB


def test_nothing_waits_once_all_are_ready() -> None:
    assert waiting(model()) == ()
    queue = waiting(model(ON_THE_WAY))[0]
    assert queue.now is not None
    assert queue.now.name == "talker_ar"


def test_a_watch_that_is_no_terminal_prints_changes_only() -> None:
    before, after = model(ON_THE_WAY, ready=STARTING), model()
    assert len(changes(None, before)) == 9, "the verdict, seven stages and the front"
    assert changes(before, before) == []
    told = changes(before, after)
    assert told[0] == "qwen3-omni: Ready 7/7"
    assert "talker_ar: Starting → Ready" in told
    assert changes_of_all([before], [after]) == ["default/qwen3-omni: Ready 7/7"]
    assert changes_of_all([before], []) == ["default/qwen3-omni: deleted"]


def test_a_screen_is_cut_to_the_terminal() -> None:
    canvas = Canvas(80)
    text = screen(status_lines(model(), NOW, canvas), canvas, 12)
    assert text.count("\n") == 11
    assert "more lines below" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (1800, "30m"), (3600, "1h"), (12000, "3h20m"), (86400, "1d"),
     (187200, "2d4h"), (8640000, "100d")],
)  # fmt: skip
def test_spans_of_time_are_kubectls(seconds: int, text: str) -> None:
    assert span_of_time(seconds) == text


def test_logs_find_the_pod_of_a_stage_or_name_the_nearest() -> None:
    found = model(replicas=2)
    assert pod_of(found, Wanted("qwen3-omni", "talker_ar")) == "qwen3-omni-0-talker-ar"
    assert pod_of(found, Wanted("qwen3-omni", "talker_ar", 1)) == "qwen3-omni-1-talker-ar"
    assert pod_of(found, Wanted("qwen3-omni", "front", 1)) == "qwen3-omni-1--front"
    with pytest.raises(BadInput, match="did you mean talker_ar"):
        pod_of(found, Wanted("qwen3-omni", "talker-ar"))
    with pytest.raises(BadInput, match="no replica 7; there are: 0, 1"):
        pod_of(found, Wanted("qwen3-omni", "thinker", 7))
