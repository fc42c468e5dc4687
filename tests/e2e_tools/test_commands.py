"""The command lines say what is wrong and what to do, without a traceback."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from e2e.cluster import ClusterError, Instance, external_kubeconfig
from e2e.cluster.__main__ import main
from e2e.cluster.binaries import _go_program
from e2e.cluster.gates import gates, written
from e2e.cluster.layout import CLUSTERS
from e2e.cluster.progress import Progress
from e2e.cluster.record import load
from e2e.cluster.requirements import check_node
from e2e.images.__main__ import chosen


@pytest.fixture(autouse=True)
def _no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)


def test_the_users_cluster_is_used_and_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/home/me/.kube/config:/other")
    assert main(["--quiet", "up"]) == 0
    assert capsys.readouterr().out == "/home/me/.kube/config\n"


def test_our_own_kubeconfig_is_not_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(CLUSTERS / "omni" / "kubeconfig"))
    assert external_kubeconfig() is None


def test_images_are_not_loaded_into_another_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/home/me/.kube/config")
    assert main(["load", "x.tar"]) == 1
    assert "remedy: push images to a registry" in capsys.readouterr().err


def test_a_cluster_that_is_not_running_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubeconfig", "--name", "no-such-cluster"]) == 1
    assert "remedy: python -m e2e.cluster up --name no-such-cluster" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "Omni", "1st", "a/b", "-x", "x" * 40])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a cluster"):
        Instance(name)


def test_missing_go_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ClusterError, match="Go is not installed") as raised:
        _go_program()
    assert "go.dev/dl" in raised.value.remedy


def test_a_node_without_root_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root") as raised:
        check_node(Progress(quiet=True))
    assert "api-up" in raised.value.remedy


def test_feature_gates_are_read_and_written() -> None:
    assert gates("B=false,A=true,") == {"A": True, "B": False}
    assert written(gates("B=false,A=true")) == "A=true,B=false"
    with pytest.raises(argparse.ArgumentTypeError, match="write A=true or A=false"):
        gates("A=yes")


def test_a_half_written_record_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.cluster.layout.CLUSTERS", tmp_path)
    instance = Instance("x")
    instance.folder.mkdir()
    assert load(instance) is None
    instance.record.write_text('{"init": {"pid"')
    assert load(instance) is None


def test_the_large_image_is_built_on_request_only() -> None:
    assert [recipe.tag for recipe in chosen([])] == ["base", "operator", "stage"]
    assert [recipe.tag for recipe in chosen(["stage-gpu"])] == ["stage-gpu"]
