"""Tensors between pods, and what becomes of a transfer whose other end goes away. Needs torch and sglang-omni."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang_omni")

from sglang_omni.comm.router import CommRouter  # noqa: E402
from sglang_omni.proto import DataAckMessage  # noqa: E402

from omni_stage.contract import StageConfig  # noqa: E402
from omni_stage.engine import relay as relays  # noqa: E402
from omni_stage.engine import transfers  # noqa: E402
from omni_stage.engine.relay import COUNTERS, TcpRelay  # noqa: E402
from omni_stage.engine.specs import relay_address  # noqa: E402
from omni_stage.engine.transfers import PeerLost, PodCommEngine  # noqa: E402
from omni_stage.engine.wire import RelayError, address_of  # noqa: E402

from .pods import free_ports  # noqa: E402


def make_relay() -> TcpRelay:
    """On a free port."""
    return TcpRelay("thinker_relay", f"127.0.0.1:{free_ports(1)[0]}", device="cuda:0")


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bfloat16", "float32"])
async def test_a_tensor_arrives_as_it_was_sent(dtype: str) -> None:
    sender, receiver = make_relay(), make_relay()
    tensor = (torch.arange(1000) % 100).to(getattr(torch, dtype)).reshape(10, 100).T
    put = await sender.put_async(tensor)
    size = put.metadata["transfer_info"]["size"]
    target = torch.zeros(size, dtype=torch.uint8)
    await (await receiver.get_async(put.metadata, target)).wait_for_completion(5)
    assert torch.equal(target.view(getattr(torch, dtype)).reshape(100, 10), tensor)
    sender.close()


async def test_memory_is_held_until_the_receiver_is_done() -> None:
    sender = make_relay()
    before = COUNTERS.held_bytes
    put = await sender.put_async(torch.zeros(1000, dtype=torch.uint8))
    assert COUNTERS.held_bytes == before + 1000
    put.mark_receiver_done()
    put.mark_receiver_done()
    await put.wait_for_completion(1)
    assert COUNTERS.held_bytes == before
    with pytest.raises(RelayError, match="does not hold the data any more"):
        await (await sender.get_async(put.metadata, torch.zeros(1000, dtype=torch.uint8))).wait_for_completion(5)
    sender.close()


async def test_a_failed_receiver_frees_memory_and_fails_nobody_else() -> None:
    sender = make_relay()
    put = await sender.put_async(torch.zeros(10, dtype=torch.uint8))
    put.mark_receiver_failed(RuntimeError("gone"))
    await put.wait_for_completion(1)
    assert sender.find(put.ticket) is None
    sender.close()


async def test_cleaning_up_a_request_that_was_read_leaves_its_output_alone() -> None:
    sender = make_relay()
    put = await sender.put_async(torch.zeros(10, dtype=torch.uint8), request_id="r1")
    sender.cleanup("r1")
    assert sender.find(put.ticket) is not None
    sender.close()


async def test_too_much_unacknowledged_data_makes_the_sender_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MAX_HELD_BYTES", 1500)
    sender = make_relay()
    first = await sender.put_async(torch.zeros(1000, dtype=torch.uint8))
    second = asyncio.create_task(sender.put_async(torch.zeros(1000, dtype=torch.uint8)))
    await asyncio.sleep(0.05)
    assert not second.done()
    first.mark_receiver_done()
    await asyncio.wait_for(second, 1)
    sender.close()


async def test_closing_forgets_what_is_held() -> None:
    before = COUNTERS.held_bytes
    sender = make_relay()
    await sender.put_async(torch.zeros(1000, dtype=torch.uint8))
    sender.close()
    assert COUNTERS.held_bytes == before


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, ("stage.host", 22000)),
        ({"OMNI_POD_IP": "10.0.0.7"}, ("10.0.0.7", 22000)),
        ({"OMNI_POD_IP": "fd00::7"}, ("fd00::7", 22000)),
    ],
)
def test_receivers_fetch_at_the_pods_own_address(environment: dict[str, str], address: tuple[str, int]) -> None:
    stage = StageConfig("thinker", "thinker", "stage.host", 21010, 21011, 22000)
    assert address_of(relay_address(stage, environment)) == address


class Engine:
    """A sender's transfer engine with one transfer under way."""

    def __init__(self, ack_timeout: float = 30.0) -> None:
        self.relay = make_relay()
        self.failures: list[BaseException | None] = []
        router = CommRouter(
            stage_name="thinker",
            gpu_id=None,
            same_process_targets=None,
            gpu_stage_names=None,
            remote_stage_names={"talker"},
            comm_config={"ack_timeout_s": ack_timeout},
            injected_relay=self.relay,
        )
        self.engine = PodCommEngine(router, task_done_callback=lambda task, _: self.failures.append(task.exception()))

    async def send(self, object_id: str = "r1:payload:thinker:talker") -> Any:
        """Promise data to the talker."""
        put = await self.relay.put_async(torch.zeros(10, dtype=torch.uint8))
        self.engine.register_pending(object_id, [put])
        return self.engine.arm_pending(object_id)

    def answer(self, success: bool, error: str | None = None) -> None:
        """The talker's acknowledgement."""
        self.engine.ack_transfer(
            DataAckMessage(
                request_id="r1",
                from_stage="talker",
                to_stage="thinker",
                object_id="r1:payload:thinker:talker",
                success=success,
                error=error,
            )
        )


async def test_an_acknowledged_transfer_is_over() -> None:
    under_test = Engine()
    task = await under_test.send()
    under_test.answer(True)
    assert await task is False
    assert under_test.engine.pending == {}
    assert under_test.failures == [None]


async def test_a_refused_transfer_is_the_requests_failure_not_the_stages() -> None:
    under_test = Engine()
    task = await under_test.send()
    under_test.answer(False, "relay read failed")
    assert await task is False
    assert under_test.failures == [None]
    assert under_test.relay._held == {}


async def test_a_neighbour_silent_for_too_long_ends_the_stage() -> None:
    under_test = Engine(ack_timeout=0.05)
    with pytest.raises(PeerLost, match="r1:payload:thinker:talker: not taken over"):
        await (await under_test.send())
    assert isinstance(under_test.failures[0], PeerLost)


async def test_an_abort_settles_the_requests_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "SETTLE_SECONDS", 0.05)
    under_test = Engine()
    aborted, other = await under_test.send(), await under_test.send("r10:payload:thinker:talker")
    under_test.engine.cleanup("r1")
    assert await asyncio.wait_for(aborted, 2) is False
    assert not other.done()
    assert under_test.failures == [None]
    other.cancel()
