"""By which way GPUs are asked for: what the cluster has decides, never for less than was asked, and pods that run keep
theirs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from omni_operator.api.enums import SharingBackend, SharingStrategy
from omni_operator.api.reasons import Reason
from omni_operator.planning.cluster import Cluster, GpuNode, Surroundings, in_use, recalled, remembered, settled
from omni_operator.planning.layout import DevicePlugin, Layout, Problem, Severity
from omni_operator.planning.observed import ObservedPod
from omni_operator.rendering.plan import Plan, plan_for
from tests.planning.worlds import SETTINGS, World, look

DRA = Cluster(frozenset({"gpu.nvidia.com", "mig.nvidia.com"}))
H100 = {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


@pytest.fixture
def tiny(tiny: dict[str, Any]) -> dict[str, Any]:
    """With shares that halves of a card have room for."""
    tiny["spec"]["stages"][0]["gpuMemory"] = "40%"
    return tiny


def node(name: str, sharing: str = "none", replicas: int = 1, count: int = 1, **more: Any) -> GpuNode:
    resource = more.pop("resource", "nvidia.com/gpu")
    labels = {
        **H100,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": sharing,
        **more,
    }
    return GpuNode(name, {resource: count * replicas}, labels)


def offered(*nodes: GpuNode, classes: tuple[str, ...] = ()) -> Surroundings:
    return Surroundings(Cluster(frozenset(classes), nodes))


def planned(manifest: dict[str, Any], surroundings: Surroundings) -> Plan:
    found = plan_for(manifest, SETTINGS, surroundings)
    assert isinstance(found, Plan), [str(problem) for problem in found]
    return found


def refusals(manifest: dict[str, Any], surroundings: Surroundings) -> list[Problem]:
    found = plan_for(manifest, SETTINGS, surroundings)
    assert not isinstance(found, Plan)
    return [problem for problem in found if problem.severity is not Severity.WARNING]


def layout(manifest: dict[str, Any], surroundings: Surroundings) -> Layout:
    return planned(manifest, surroundings).layout


def missing(plan: Plan) -> list[str]:
    return [str(p) for p in plan.problems if p.reason is Reason.RESOURCE_NOT_ADVERTISED]


def sharing(manifest: dict[str, Any], **fields: Any) -> dict[str, Any]:
    manifest["spec"].setdefault("gpus", {})["sharing"] = fields
    return manifest


class TestAutoBackend:
    def test_dra_where_its_class_exists(self, tiny: dict[str, Any]) -> None:
        there = offered(node("gpu-1", "mps", 4), classes=("gpu.nvidia.com",))
        assert layout(tiny, there).backend is SharingBackend.DRA

    def test_the_device_plugin_where_nodes_advertise_it_and_there_is_no_class(self, tiny: dict[str, Any]) -> None:
        found = layout(tiny, offered(node("gpu-1", "mps", 2)))
        assert (found.backend, found.strategy) == (SharingBackend.DEVICE_PLUGIN, SharingStrategy.MPS)
        assert found.device_plugin == DevicePlugin(2, True, "nvidia.com/gpu", "mps", True)

    def test_without_either_the_status_says_so_and_pods_are_made_for_dra(self, tiny: dict[str, Any]) -> None:
        plan = planned(tiny, offered())
        assert plan.layout.backend is SharingBackend.DRA
        [words] = missing(plan)
        assert "no DeviceClass gpu.nvidia.com (there is none)" in words
        world = World()
        world.step(plan)
        scheduled = next(row for row in look(world, plan).conditions or [] if row.type == "Scheduled")
        assert (scheduled.status, scheduled.reason) == ("False", "ResourceNotAdvertised")

    def test_a_selector_means_dra(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["gpus"]["selector"] = "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"
        plan = planned(tiny, offered(node("gpu-1", "mps", 2)))
        assert plan.layout.backend is SharingBackend.DRA
        assert "Nodes advertise nvidia.com/gpu (mps; 79.6Gi; on gpu-1)" in missing(plan)[0]

    def test_unknown_surroundings_have_what_is_asked_for(self, tiny: dict[str, Any]) -> None:
        plan = planned(tiny, Surroundings())
        assert plan.layout.backend is SharingBackend.DRA
        assert missing(plan) == []


class TestNeverLess:
    def test_mps_is_not_taken_for_time_slicing(self, tiny: dict[str, Any]) -> None:
        plan = planned(sharing(tiny, strategy="MPS"), offered(node("gpu-1", "time-slicing", 4)))
        assert plan.layout.strategy is SharingStrategy.MPS
        [words] = missing(plan)
        assert "shared by mps" in words
        assert "nvidia.com/gpu (time-slicing; 79.6Gi; on gpu-1)" in words

    def test_a_whole_gpu_is_not_taken_for_a_part_of_one(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["stages"] = [{"name": "thinker", "gpus": [0]}, {"name": "talker", "gpus": [1]}]
        sharing(tiny)
        assert missing(planned(tiny, offered(node("gpu-1", "time-slicing", 4, count=2))))
        assert not missing(planned(tiny, offered(node("gpu-1", count=2))))

    def test_a_smaller_gpu_is_not_taken(self, tiny: dict[str, Any]) -> None:
        small = node("small", "mps", 4, **{"nvidia.com/gpu.memory": "40960"})
        [words] = missing(planned(tiny, offered(small)))
        assert "of 79.6Gi shared by mps" in words
        assert "40Gi" in words

    def test_shared_slots_need_nodes_with_one_gpu(self, tiny: dict[str, Any]) -> None:
        [problem] = refusals(tiny, offered(node("eight", "mps", 4, count=8)))
        assert problem.reason is Reason.SHARING_UNSUPPORTED
        assert "no two pods are sure to share one GPU" in problem.message

    def test_the_whole_pipeline_in_one_pod_needs_no_sharing(self, tiny: dict[str, Any]) -> None:
        for stage in sharing(tiny)["spec"]["stages"]:
            stage["process"] = "pipeline"
        found = layout(tiny, offered(node("eight", count=8)))
        assert (found.backend, found.strategy) == (SharingBackend.DEVICE_PLUGIN, SharingStrategy.NONE)
        assert not found.device_plugin.shared

    def test_a_part_that_was_asked_for_is_not_taken_for_a_whole_gpu(self, tiny: dict[str, Any]) -> None:
        for stage in sharing(tiny, strategy="MPS")["spec"]["stages"]:
            stage |= {"process": "pipeline", "gpuMemory": "5%"}
        nodes = (node("whole", count=8), node("parts", "mps", 4, count=8))
        found = layout(tiny, offered(*nodes)).device_plugin
        assert (found.sharing, found.replicas, found.one_gpu_nodes) == ("mps", 4, False)

    def test_equal_parts_are_judged_as_they_are(self, tiny: dict[str, Any]) -> None:
        problems = refusals(tiny, offered(node("gpu-1", "mps", 4)))
        assert {problem.reason for problem in problems} == {Reason.BUDGET_EXCEEDED}
        assert "equal parts under MPS give it 19.9Gi" in problems[0].message

    def test_the_coarsest_division_that_serves_is_chosen(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["stages"][0]["gpuMemory"] = "20%"
        nodes = [node("ten", "mps", 10), node("four", "mps", 4)]
        assert layout(tiny, offered(*nodes)).device_plugin.replicas == 4


class TestNames:
    def test_the_renamed_resource_is_found(self, tiny: dict[str, Any]) -> None:
        found = layout(tiny, offered(node("gpu-1", "mps", 2, resource="nvidia.com/gpu.shared")))
        assert found.device_plugin.resource == "nvidia.com/gpu.shared"

    def test_one_that_nobody_advertises_is_named_beside_what_is_there(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["gpus"]["resourceName"] = "nvidia.com/gpu"
        sharing(tiny, backend="DevicePlugin")
        [words] = missing(planned(tiny, offered(node("gpu-1", "mps", 2, resource="nvidia.com/gpu.shared"))))
        assert "No node offers nvidia.com/gpu" in words
        assert "Nodes advertise nvidia.com/gpu.shared (mps; 79.6Gi; on gpu-1)" in words

    def test_a_node_selector_of_the_user_counts(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["scheduling"] = {"nodeSelector": {"pool": "a"}}
        sharing(tiny, backend="DevicePlugin")
        assert missing(planned(tiny, offered(node("gpu-1", "mps", 2))))
        assert not missing(planned(tiny, offered(node("gpu-1", "mps", 2, pool="a"))))

    def test_a_class_that_is_not_there(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["gpus"]["deviceClassName"] = "gpu.example.com"
        [words] = missing(planned(tiny, Surroundings(DRA)))
        assert "no DeviceClass gpu.example.com (there are: gpu.nvidia.com, mig.nvidia.com)" in words

    @pytest.mark.parametrize("label", ["nvidia.com/gpu.memory", "nvidia.com/gpu.sharing-strategy"])
    def test_nodes_without_labels_still_have_whole_gpus(self, tiny: dict[str, Any], label: str) -> None:
        sharing(tiny)["spec"]["stages"] = [{"name": "thinker", "gpus": [0]}, {"name": "talker", "gpus": []}]
        bare = node("bare")
        found = layout(tiny, offered(replace(bare, labels={k: v for k, v in bare.labels.items() if k != label})))
        assert found.backend is SharingBackend.DEVICE_PLUGIN
        assert found.device_plugin.memory_known is (label != "nvidia.com/gpu.memory")


class TestMisplacedFields:
    def test_resource_name_is_for_the_device_plugin(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["gpus"]["resourceName"] = "nvidia.com/gpu"
        [problem] = refusals(tiny, Surroundings(DRA))
        assert (problem.reason, problem.field) == (Reason.INVALID_SPEC, "spec.gpus.resourceName")

    def test_selector_and_class_are_for_dra(self, tiny: dict[str, Any]) -> None:
        tiny["spec"]["gpus"] |= {"selector": "true", "deviceClassName": "x"}
        found = refusals(sharing(tiny, backend="DevicePlugin"), offered(node("gpu-1", "mps", 2)))
        assert [problem.field for problem in found] == ["spec.gpus.selector", "spec.gpus.deviceClassName"]

    @pytest.mark.parametrize(
        ("strategy", "backend", "words"),
        [("MPS", "DRA", "the strategy is MPS"), ("TimeSlicing", "DevicePlugin", "the backend is DevicePlugin")],
    )
    def test_an_interval_is_for_time_slicing_over_dra(
        self, tiny: dict[str, Any], strategy: str, backend: str, words: str
    ) -> None:
        found = refusals(sharing(tiny, strategy=strategy, backend=backend, interval="Long"), Surroundings())
        assert [problem.field for problem in found] == ["spec.gpus.sharing.interval"]
        assert words in found[0].message


class TestAutoStrategy:
    """As sglang-omni's own `mps: auto`."""

    def strategy(self, tiny: dict[str, Any], *stages: dict[str, Any]) -> SharingStrategy:
        tiny["spec"]["stages"] = list(stages)
        return layout(sharing(tiny), Surroundings()).strategy

    def test_two_processes_of_one_gpu_share_by_mps(self, tiny: dict[str, Any]) -> None:
        assert layout(sharing(tiny), Surroundings()).strategy is SharingStrategy.MPS

    def test_one_process_a_gpu_shares_nothing(self, tiny: dict[str, Any]) -> None:
        found = self.strategy(tiny, {"name": "thinker", "gpus": [0]}, {"name": "talker", "gpus": [1]})
        assert found is SharingStrategy.NONE

    def test_a_tensor_parallel_process_and_one_other_take_turns(self, tiny: dict[str, Any]) -> None:
        thinker = {"name": "thinker", "gpus": [0, 1], "gpuMemory": "60%"}
        found = self.strategy(tiny, thinker, {"name": "talker", "gpus": [1], "gpuMemory": "20%"})
        assert found is SharingStrategy.TIME_SLICING


class TestWhatRunsStays:
    def pods(self, plan: Plan) -> list[ObservedPod]:
        world = World()
        world.settle(plan)
        return [
            replace(pod, plugin=remembered(plan.layout.device_plugin) if plan.layout.on_device_plugin else None)
            for pod in world.pods.values()
        ]

    def test_dra_stays_when_its_class_goes(self, tiny: dict[str, Any]) -> None:
        known = in_use(self.pods(planned(tiny, Surroundings(DRA))))
        there = replace(known, cluster=Cluster(nodes=(node("gpu-1", "mps", 2),)))
        assert layout(tiny, there).backend is SharingBackend.DRA

    def test_the_plugin_s_pods_stay_as_they_are_when_nodes_come_and_go(self, tiny: dict[str, Any]) -> None:
        before = planned(tiny, offered(node("gpu-1", "mps", 2, resource="nvidia.com/gpu.shared")))
        known = in_use(self.pods(before))
        for cluster in (Cluster(), DRA, Cluster(nodes=(node("other", "mps", 3),))):
            after = planned(tiny, replace(known, cluster=cluster))
            assert after.layout.device_plugin == before.layout.device_plugin
            assert after.rendered.replicas == before.rendered.replicas

    def test_another_way_of_sharing_is_looked_for_anew(self, tiny: dict[str, Any]) -> None:
        known = in_use(self.pods(planned(tiny, offered(node("gpu-1", "mps", 2)))))
        changed = sharing(copy.deepcopy(tiny), strategy="TimeSlicing")
        there = replace(known, cluster=Cluster(nodes=(node("gpu-2", "time-slicing", 4),)))
        assert layout(changed, there).device_plugin.replicas == 4

    def test_the_cluster_is_asked_until_every_open_pod_has_its_node(self, tiny: dict[str, Any]) -> None:
        pods = self.pods(planned(tiny, Surroundings(DRA)))
        assert settled(pods)
        assert not settled([replace(pod, node=None) for pod in pods])
        assert not settled([replace(pods[0], node=None), *pods[1:]])
        assert settled([replace(pods[0], node=None, gated=True), *pods[1:]])

    def test_stages_on_the_cpu_that_run_say_nothing_of_the_gpus(self, tiny: dict[str, Any]) -> None:
        pods = self.pods(planned(tiny, Surroundings(DRA)))
        on_cpu = [replace(pod, claim=None) for pod in pods if pod.process in ("preprocessing", "decode")]
        waiting = [replace(pod, node=None, gated=True) for pod in pods if pod.process in ("thinker", "talker")]
        assert not settled([*on_cpu, *waiting])
        assert not settled(on_cpu)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}x", '{"other": 1}', "null"])
    def test_what_someone_else_wrote_is_no_memory(self, text: str) -> None:
        assert recalled(text) is None
