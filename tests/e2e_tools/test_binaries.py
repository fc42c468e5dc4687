"""Builds are pinned, and are made again exactly when something that shapes them changes."""

from __future__ import annotations

import re

import pytest

from e2e.cluster.binaries import SETS, ModuleSet, content_key, linker_flags, pinned_version
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import MODULES


def go_mod(module_set: ModuleSet) -> str:
    return (MODULES / module_set.name / "go.mod").read_text()


@pytest.mark.parametrize("module_set", SETS.values(), ids=SETS)
def test_every_set_pins_its_module_and_has_sums(module_set: ModuleSet) -> None:
    assert re.fullmatch(r"v\d+\.\d+\.\d+", pinned_version(go_mod(module_set), module_set.module))
    assert (MODULES / module_set.name / "go.sum").stat().st_size > 0


@pytest.mark.parametrize("module_set", SETS.values(), ids=SETS)
def test_every_program_comes_from_a_tool_line(module_set: ModuleSet) -> None:
    tools = re.findall(r"^(?:tool |\t)(\S+/\S+)$", go_mod(module_set), re.MULTILINE)
    names = {re.sub(r"/v\d+$", "", tool).rpartition("/")[2] for tool in tools}
    assert {module_set.renamed.get(name, name) for name in names} == set(module_set.programs)


def test_kubernetes_and_its_staging_modules_are_of_one_release() -> None:
    text = go_mod(SETS["kubernetes"])
    release = pinned_version(text, "k8s.io/kubernetes").removeprefix("v1.")
    replaced = set(re.findall(r"=> k8s\.io/\S+ v0\.(\S+)", text))
    assert replaced == {release}


def test_a_version_is_found_in_a_block_and_on_a_line() -> None:
    assert pinned_version("require (\n\ta.io/b v1.2.3\n)\n", "a.io/b") == "v1.2.3"
    assert pinned_version("require a.io/b v1.2.4\n", "a.io/b") == "v1.2.4"
    with pytest.raises(ClusterError, match="does not require"):
        pinned_version("require a.io/bc v1.2.4\n", "a.io/b")


def test_helm_is_stamped_with_the_kubernetes_that_it_meets() -> None:
    flags = linker_flags(SETS["helm"], "v3.19.5", "v1.36.3")
    assert "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36" in flags
    assert "-X helm.sh/helm/v3/internal/version.version=v3.19.5" in flags


def test_a_key_depends_on_every_part_and_not_on_their_order() -> None:
    key = content_key({"go.mod": "a", "flags": "b"})
    assert key == content_key({"flags": "b", "go.mod": "a"})
    assert key != content_key({"go.mod": "a", "flags": "c"})
    assert key != content_key({"go.mod": "ab", "flags": ""})
