"""What a container reads of its machine."""

from __future__ import annotations

from pathlib import Path

from omni_stage.supervisor.surroundings import device_uuids


def test_uuids_come_once_and_in_the_order_of_their_ordinals(tmp_path: Path) -> None:
    for name in ("10-GPU-a.json", "2-GPU-b-1.json", ".half.json.unfinished", "x.json"):
        (tmp_path / name).write_text("{}")
    environment = {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b-1"}
    assert device_uuids(environment, tmp_path) == ["GPU-b-1", "GPU-a"]
    assert device_uuids(environment, tmp_path / "nothing") == ["GPU-a", "GPU-b-1"]
    assert device_uuids({"NVIDIA_VISIBLE_DEVICES": "void"}, tmp_path / "nothing") == []
