"""The rollout's invariants, read off a cluster in memory that does what each step says."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest

from omni_operator.planning.observed import ChildKind
from tests.planning.worlds import World, plan_of


def changed(manifest: dict[str, Any], generation: int = 2, **shares: str) -> dict[str, Any]:
    result = copy.deepcopy(manifest)
    result["metadata"]["generation"] = generation
    for stage in result["spec"]["stages"]:
        stage["gpuMemory"] = shares.get(stage["name"], stage["gpuMemory"])
    return result


def test_everything_is_made_in_one_step_with_the_claim_before_its_pods(colocated: dict[str, Any]) -> None:
    world = World()
    world.step(plan_of(colocated))
    assert [line.split()[1] for line in world.log].count("Pod") == 8
    assert world.log.index("apply ResourceClaim qwen3-omni-0") < world.log.index("apply Pod qwen3-omni-0-thinker")
    assert {kind for kind, _ in world.others} == {ChildKind.SERVICE, ChildKind.NETWORK_POLICY}


def test_stages_of_one_gpu_start_one_after_another_biggest_first(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.step(plan)
    for _ in range(10):
        world.step(plan)
        world.schedule()
        world.step(plan)
        running = [p for p in world.pods.values() if p.node and p.component == "stage" and not p.ready]
        on_gpu = [p for p in running if p.process not in ("preprocessing", "decode")]
        assert len(on_gpu) <= 1, "two engines that start at once mis-measure each other"
        world.become_ready()
    opened = [line.split()[1].removeprefix("qwen3-omni-0-") for line in world.log if line.startswith("open")]
    gpu_stages = [name for name in opened if name not in ("preprocessing", "decode")]
    assert gpu_stages == ["thinker", "talker-ar", "image-encoder", "audio-encoder", "code2wav"]
    assert opened[0] == "thinker", "the first pod of a claim fixes the node: it must be the biggest"


def test_a_stage_that_is_never_ready_keeps_later_gates_closed(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    for _ in range(10):
        world.step(plan)
        world.schedule()
        world.become_ready(*[n for n, p in world.pods.items() if p.node and "thinker" not in n])
    gated = {p.process for p in world.pods.values() if p.gated}
    assert gated == {"talker_ar", "image_encoder", "audio_encoder", "code2wav"}


def test_start_order_wins_over_size(colocated: dict[str, Any]) -> None:
    colocated["spec"]["stages"][4]["startOrder"] = 1
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    opened = [line.split()[1] for line in world.log if line.startswith("open")]
    assert opened[0] == "qwen3-omni-0-code2wav"


def test_at_rest_nothing_is_written(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    assert world.step(plan).empty


def test_a_new_generation_that_changes_no_pod_restarts_nothing(colocated: dict[str, Any]) -> None:
    world = World()
    world.settle(plan_of(colocated))
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.settle(plan_of(changed(colocated)))
    assert {name: pod.uid for name, pod in world.pods.items()} == before


def test_a_changed_engine_argument_replaces_only_pods_and_keeps_the_claim(colocated: dict[str, Any]) -> None:
    world = World()
    world.settle(plan_of(colocated))
    claim = world.claims["qwen3-omni-0"].uid
    new = changed(colocated)
    new["spec"]["stages"][2]["engineArgs"] = {"max_running_requests": 8}
    world.settle(plan_of(new))
    assert world.claims["qwen3-omni-0"].uid == claim


RESTARTS: list[tuple[dict[str, str], set[str]]] = [
    ({"thinker": "75%"}, {"thinker"}),
    ({"talker_ar": "12%"}, {"talker-ar"}),
    ({"thinker": "74%", "talker_ar": "14%"}, {"thinker", "talker-ar"}),
    ({"code2wav": "3%", "image_encoder": "3%"}, {"code2wav", "image-encoder"}),
]


@pytest.mark.parametrize(("shares", "restarted"), RESTARTS, ids=[", ".join(shares) for shares, _ in RESTARTS])
def test_a_changed_share_restarts_that_stage_alone(
    colocated: dict[str, Any], shares: dict[str, str], restarted: set[str]
) -> None:
    world = World()
    world.settle(plan_of(colocated))
    pods = {name: pod.uid for name, pod in world.pods.items()}
    claims = dict(world.claims)
    world.settle(plan_of(changed(colocated, **shares)))
    anew = {name.removeprefix("qwen3-omni-0-") for name, pod in world.pods.items() if pods[name] != pod.uid}
    assert anew == restarted
    assert world.claims == claims, "their MPS daemon allows as much, and each pod takes less of it"


def test_after_shares_shrank_they_may_grow_to_what_the_daemon_allows(colocated: dict[str, Any]) -> None:
    world = World()
    world.settle(plan_of(colocated))
    claim = world.claims["qwen3-omni-0"].uid
    world.settle(plan_of(changed(colocated, thinker="74%")))
    world.settle(plan_of(changed(colocated, 3, thinker="78%")))
    assert world.claims["qwen3-omni-0"].uid == claim


def test_a_share_above_the_daemon_s_limit_replaces_the_claim_when_no_pod_is_left(colocated: dict[str, Any]) -> None:
    world = World()
    world.settle(plan_of(colocated))
    claim = world.claims["qwen3-omni-0"].uid
    plan = plan_of(changed(colocated, thinker="80%"))
    world.step(plan)
    assert all(pod.deleting for pod in world.pods.values() if pod.component == "stage")
    assert world.claims["qwen3-omni-0"].uid == claim, "pods still hold it"
    world.settle(plan)
    assert world.claims["qwen3-omni-0"].uid != claim
    assert all(pod.ready for pod in world.pods.values())


def test_replicas_are_replaced_one_at_a_time(colocated: dict[str, Any]) -> None:
    colocated["spec"]["replicas"] = 3
    world = World()
    world.settle(plan_of(colocated))
    plan = plan_of(changed(colocated, thinker="75%"))
    for _ in range(60):
        world.step(plan)
        down = {pod.replica for pod in world.pods.values() if pod.deleting or not pod.ready}
        down |= {0, 1, 2} - {pod.replica for pod in world.pods.values()}
        assert len(down) <= 1
        world.finish_deletions()
        world.schedule()
        world.become_ready()
    assert world.step(plan).empty
    assert {pod.hash for pod in world.pods.values()} == {
        child.hash for children in plan.rendered.replicas.values() for child in children if child.kind is ChildKind.POD
    }


def test_a_replica_that_someone_takes_down_counts_as_down(colocated: dict[str, Any]) -> None:
    colocated["spec"]["replicas"] = 2
    world = World()
    world.settle(plan_of(colocated))
    plan = plan_of(changed(colocated, thinker="75%"))
    for name, pod in world.pods.items():
        if pod.replica == 0:
            world.pods[name] = replace(pod, deleting=True)
    world.step(plan)
    assert not any(pod.deleting for pod in world.pods.values() if pod.replica == 1)


def test_scaling_down_takes_pods_before_the_claim(colocated: dict[str, Any]) -> None:
    colocated["spec"]["replicas"] = 2
    world = World()
    world.settle(plan_of(colocated))
    colocated["spec"]["replicas"] = 1
    plan = plan_of(colocated)
    world.step(plan)
    assert "qwen3-omni-1" in world.claims
    world.settle(plan)
    assert set(world.claims) == {"qwen3-omni-0"}
    assert {pod.replica for pod in world.pods.values()} == {0}


@pytest.mark.parametrize("lost", ["qwen3-omni-0-thinker", "qwen3-omni-0-code2wav", "qwen3-omni-0--front"])
def test_a_deleted_pod_is_made_again(colocated: dict[str, Any], lost: str) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    kept = {name: pod.uid for name, pod in world.pods.items() if name != lost}
    del world.pods[lost]
    world.settle(plan)
    assert {name: pod.uid for name, pod in world.pods.items() if name != lost} == kept
    assert world.pods[lost].ready


def test_an_evicted_pod_is_replaced(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    old = world.pods["qwen3-omni-0-thinker"]
    world.pods[old.name] = replace(old, phase="Failed", ready=False)
    world.settle(plan)
    assert world.pods[old.name].uid != old.uid


def test_any_state_reached_by_interrupted_steps_comes_to_the_same_rest(colocated: dict[str, Any]) -> None:
    """The operator is killed between any two writes: each run loses a random part of its steps' writes."""
    colocated["spec"]["replicas"] = 2
    first, second = plan_of(colocated), plan_of(changed(colocated, thinker="75%"))
    calm = World()
    calm.settle(second)
    for seed in range(60):
        chance = random.Random(seed)
        world = World()
        for number in range(chance.randint(0, 25)):
            plan = first if number < 12 else second
            whole, made = world.observed(), world.made
            step = world.step(plan)
            if not step.empty and chance.random() < 0.5:
                world.pods, world.claims = dict(whole.pods), dict(whole.claims)
                world.others, world.made = dict(whole.others), made
                kept = list(step.apply)[: chance.randint(0, len(step.apply))]
                for child in kept:
                    world._apply(child)
            chance.choice([world.finish_deletions, world.schedule, world.become_ready])()
        world.settle(second)
        assert {name: pod.hash for name, pod in world.pods.items()} == {n: p.hash for n, p in calm.pods.items()}
        assert {c.hash for c in world.claims.values()} == {c.hash for c in calm.claims.values()}


def test_a_stage_that_a_restart_would_not_cure_stays_down_and_only_its_change_replaces_it(
    colocated: dict[str, Any],
) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    name = "qwen3-omni-0-talker-ar"
    world.pods[name] = replace(world.pods[name], ready=False, stopped=True, phase="Failed", exit_code=71)
    assert world.step(plan).empty
    raised = changed(colocated, talker_ar="12%", thinker="76%")
    world.step(plan_of(raised))
    assert world.pods[name].deleting
    world.settle(plan_of(raised))
    assert world.pods[name].ready
