"""The ledger of what containers take of invented GPUs: per card, per process, freed with the process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.fake_gpu import client
from e2e.fake_gpu.client import Memory, NoDaemon, OutOfMemory
from e2e.fake_gpu.memory import usage
from e2e.fake_gpu.memory_server import run
from tests.e2e_tools.pods import until

GIB = 2**30
CARD = 32 * GIB


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A ledger at work, and beside it the marker of one card of 32 GiB."""
    (tmp_path / "markers").mkdir()
    marker = {"invented": True, "minor": 0, "uuid": "GPU-a", "memory": CARD}
    (tmp_path / "markers" / "0-GPU-a.json").write_text(json.dumps(marker))
    loop = asyncio.new_event_loop()
    task = loop.create_task(run(tmp_path))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    until("the ledger listens", (tmp_path / "memory" / "ledger.sock").exists)
    yield tmp_path
    loop.call_soon_threadsafe(task.cancel)
    thread.join()


def connect(folder: Path, name: str = "thinker", **environment: str) -> Memory:
    return Memory.connect(name, folder / "memory" / "ledger.sock", folder / "markers", environment)


def mps(folder: Path, limit: str = "16384M") -> str:
    """The pipe folder of a control daemon with this limit."""
    pipe = folder / "pipe"
    pipe.mkdir()
    (pipe / "control").touch()
    (pipe / "invented-daemon.json").write_text(json.dumps({"limits": {"GPU-a": limit}}))
    return str(pipe)


def record(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "memory.jsonl").read_text().splitlines()]


def test_without_mps_each_sees_what_the_card_has_left(folder: Path) -> None:
    with connect(folder) as thinker, connect(folder, "talker") as talker:
        thinker.alloc(20 * GIB)
        assert talker.info() == client.Info(total=CARD, free=12 * GIB, limit=None, used=20 * GIB), "one process here"
        with pytest.raises(OutOfMemory, match=r"talker asks for 13.00 GiB of GPU-a: 12.00 GiB is free within the card"):
            talker.alloc(13 * GIB)
        talker.alloc(12 * GIB)
        assert thinker.info().free == 0


def test_the_limit_of_mps_variable_or_daemon_is_the_lesser_and_total_stays_the_cards(folder: Path) -> None:
    pipe = mps(folder)
    with connect(folder, CUDA_MPS_PIPE_DIRECTORY=pipe) as by_daemon:
        assert by_daemon.info() == client.Info(CARD, 16 * GIB, 16 * GIB, 0)
    for variable, limit in (("0=8G", 8), ("0=8192M", 8), ("0=24GB", 16), ("1=1G", 16)):
        both = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": variable}
        with connect(folder, **both) as tightened:
            assert tightened.info().limit == limit * GIB, variable
    with connect(folder, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G") as without_daemon:
        assert without_daemon.info().limit is None


def test_a_process_has_one_limit_over_all_its_connections(folder: Path) -> None:
    pipe = mps(folder)
    with connect(folder, CUDA_MPS_PIPE_DIRECTORY=pipe) as one, connect(folder, CUDA_MPS_PIPE_DIRECTORY=pipe) as two:
        one.alloc(10 * GIB)
        with pytest.raises(OutOfMemory, match=r"its MPS limit of 16.00 GiB, 10.00 GiB is its own already"):
            two.alloc(7 * GIB)


def test_without_its_daemon_no_client_connects(folder: Path) -> None:
    pipe = mps(folder)
    (Path(pipe) / "control").unlink()
    with pytest.raises(NoDaemon, match="failed to connect to the MPS control daemon"):
        connect(folder, CUDA_MPS_PIPE_DIRECTORY=pipe)


def test_what_a_process_holds_is_free_when_it_is_killed(folder: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from e2e.fake_gpu.client import Memory
memory = Memory.connect("talker", Path({str(folder)!r}) / "memory/ledger.sock", Path({str(folder)!r}) / "markers", {{}})
memory.alloc(5 * 2**30)
print("holds", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as talker:
        assert talker.stdout
        assert talker.stdout.readline() == "holds\n"
        with connect(folder) as thinker:
            assert thinker.info() == client.Info(CARD, 27 * GIB, None, 0)
            talker.kill()
            talker.wait()
            until("all is free", lambda: thinker.info().free == CARD)


def test_a_block_is_freed_once_and_by_its_holder(folder: Path) -> None:
    with connect(folder) as thinker, connect(folder, "talker") as talker:
        block = thinker.alloc(GIB)
        with pytest.raises(ValueError, match="no such block"):
            talker.free(block)
        thinker.free(block)
        with pytest.raises(ValueError, match="no such block"):
            thinker.free(block)
        assert thinker.info().free == CARD


def test_the_record_tells_the_peak_of_each_card_and_client_and_every_refusal(folder: Path) -> None:
    with connect(folder) as thinker, connect(folder, "talker") as talker:
        block = thinker.alloc(20 * GIB)
        thinker.free(block)
        thinker.alloc(6 * GIB)
        later = time.time()
        with pytest.raises(OutOfMemory):
            talker.alloc(30 * GIB)
        (of,) = usage(record(folder)).values()
        assert (of.peak, of.now, of.clients["thinker"]) == (20 * GIB, 6 * GIB, 20 * GIB)
        [refusal] = of.refusals
        assert (refusal["client"], refusal["bytes"], refusal["invented"]) == ("talker", 30 * GIB, True)
        assert refusal["process"] == os.getpid()
        assert usage(record(folder), later)["GPU-a"].peak == 6 * GIB, "what was held before counts as held"


def test_the_client_needs_the_standard_library_alone_and_speaks_on_a_pipe(folder: Path) -> None:
    copied = folder / "anywhere.py"
    text = Path(client.__file__).read_text()
    text = text.replace("/run/invented-gpus", str(folder / "markers"))
    copied.write_text(text.replace("/run/invented-gpu-memory", str(folder / "memory")))
    commands = f"info\nalloc {30 * GIB}\nalloc {3 * GIB}\nfree 1\ninfo\n"
    done = subprocess.run([sys.executable, "-I", "-S", copied], input=commands, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0]["free"] == answers[4]["free"] == CARD
    assert answers[1] == {"block": 1}
    assert answers[2]["error"] == "out of memory"
