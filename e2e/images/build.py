"""Build the project's images from their real Dockerfiles, on a base made here, each once for its content.

buildah works in a store of its own under the ignored cache (so nothing of the user's is touched), keeps the layers of
unchanged instructions, and puts each image into one OCI layout, from which nodes are served.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import CACHE, REPOSITORY
from e2e.cluster.locks import exclusive
from e2e.cluster.progress import Progress
from e2e.cluster.requirements import install, missing_commands
from e2e.images import package_access
from e2e.images.base import base_key, bootstrap
from e2e.images.context import context, declared
from e2e.images.layout import Layout
from e2e.images.oci import ImageConfig, write_archive

IMAGES = CACHE / "images"
COMMANDS = {"buildah": "buildah", "skopeo": "skopeo"}
POLICY = {"default": [{"type": "insecureAcceptAnything"}]}  # images come from this machine, not from a registry


@dataclass(frozen=True)
class Recipe:
    """An image: its tag in the layout, its name in a cluster, and how it is built.

    One that is `on_request` is built only when it is named: the stage image for GPUs has 14 GB, puppets are for tests.
    """

    tag: str
    dockerfile: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    on_request: bool = False

    @property
    def name(self) -> str:
        return f"localhost/omni-{self.tag}:dev"


BASE = Recipe("base")
STAGE = "stage_image/Dockerfile"
RECIPES = {
    each.tag: each
    for each in (
        BASE,
        Recipe("operator", "operator/Dockerfile"),
        Recipe("puppet", "e2e/puppet/Dockerfile", on_request=True),
        Recipe("stage", STAGE, {"LOCK": "stage_image/requirements-cpu.txt"}),
        Recipe("stage-gpu", STAGE, {"LOCK": "stage_image/requirements-gpu.txt"}, on_request=True),
    )
}


class Builder:
    """Builds into `folder`: buildah's store, the OCI layout, and a note of the content each image was built from."""

    def __init__(self, folder: Path = IMAGES, repository: Path = REPOSITORY, progress: Progress | None = None) -> None:
        self.folder = folder
        self.repository = repository
        self.layout = Layout(folder / "oci")
        self._progress = progress or Progress(quiet=True)
        folder.mkdir(parents=True, exist_ok=True)

    def build(self, recipe: Recipe) -> str:
        """Build an image unless it is there; returns its manifest's digest. A ClusterError has the end of the log."""
        if os.geteuid() != 0:
            raise ClusterError("images are built as root", "run it with sudo, or name images that are built elsewhere")
        install(set(missing_commands(COMMANDS).values()), self._progress)
        with exclusive(self.folder / "lock", "builds images", self._progress):
            return self._build_base() if recipe.dockerfile is None else self._build_recipe(recipe, recipe.dockerfile)

    def prune(self) -> None:
        """Empty buildah's store, which keeps the layers of every earlier build; the images that are built stay."""
        with exclusive(self.folder / "lock", "builds images", self._progress):
            self._watch(self._buildah("rmi", "--all", "--force"), "removing buildah's layers")

    def _build_recipe(self, recipe: Recipe, dockerfile: str) -> str:
        base = self._build_base()
        found = context(self.repository, dockerfile, recipe.arguments)
        key = found.key(base=base, arguments=json.dumps(dict(recipe.arguments), sort_keys=True))
        if not self._is_built(recipe, key):
            with tempfile.TemporaryDirectory(prefix="omni-image-") as temporary:
                gathered, access = Path(temporary, "context"), Path(temporary, "access")
                gathered.mkdir()
                access.mkdir(mode=0o755)
                found.gather(gathered)
                self._build_dockerfile(recipe, gathered, package_access.prepare(access))
            self._export(recipe, key)
        return str(self.layout.manifests()[recipe.tag]["digest"])

    def _build_base(self) -> str:
        key = base_key()
        if not self._is_built(BASE, key):
            with tempfile.TemporaryDirectory(prefix="omni-base-", dir=self.folder) as temporary:
                tar, archive = Path(temporary, "root.tar"), Path(temporary, "image.tar")
                bootstrap(tar, self._progress)
                write_archive(archive, BASE.name, [tar], ImageConfig(command=["bash"]))
                self._take_base(f"oci-archive:{archive}")
            self._export(BASE, key)
        return str(self.layout.manifests()[BASE.tag]["digest"])

    def _base_in_store(self) -> None:
        """The base may be in the layout and not in buildah's store, which `prune` empties."""
        known = self._buildah("images", "--quiet", BASE.name)
        if subprocess.run(known, capture_output=True, check=False).returncode:
            source = f"oci:{self.layout.folder}:{BASE.tag}"
            self._watch([*self._skopeo_copy(), source, self._stored(BASE)], "taking the base image in")

    def _take_base(self, source: str) -> None:
        pulled = self._watch(self._buildah("pull", "--quiet", source), "taking the base image in")
        self._watch(self._buildah("tag", pulled[-1], BASE.name), f"naming it {BASE.name}")

    def _build_dockerfile(self, recipe: Recipe, gathered: Path, access: package_access.Access) -> None:
        self._base_in_store()
        arguments = {**recipe.arguments, "BASE_IMAGE": BASE.name}
        options = ["--isolation=chroot", "--network=host", "--pull-never", "--layers", "--timestamp=0"]
        options += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        dockerfile = gathered / str(recipe.dockerfile)
        options += access.options(declared(dockerfile.read_text()))
        options += [f"--file={dockerfile}", f"--tag={recipe.name}", str(gathered)]
        self._watch(self._buildah("build", *options), f"building {recipe.name} from {recipe.dockerfile}")

    def _export(self, recipe: Recipe, key: str) -> None:
        (self.folder / f"{recipe.tag}.key").unlink(missing_ok=True)
        target = f"oci:{self.layout.folder}:{recipe.tag}"
        copy = [*self._skopeo_copy(), "--dest-oci-accept-uncompressed-layers", self._stored(recipe), target]
        self._watch(copy, f"exporting {recipe.name}")
        self.layout.remove_unused()
        (self.folder / f"{recipe.tag}.key").write_text(key)

    def _is_built(self, recipe: Recipe, key: str) -> bool:
        note = self.folder / f"{recipe.tag}.key"
        return note.exists() and note.read_text() == key and recipe.tag in self.layout.manifests()

    def _skopeo_copy(self) -> list[str]:
        return ["skopeo", f"--policy={self._policy()}", "copy", "--quiet"]

    def _stored(self, recipe: Recipe) -> str:
        """An image in buildah's store, in skopeo's words."""
        return f"containers-storage:[overlay@{self._store}+{self._run_folder}]{recipe.name}"

    @property
    def _store(self) -> Path:
        return self.folder / "store"

    @property
    def _run_folder(self) -> Path:
        return self.folder / "store-run"

    def _policy(self) -> Path:
        path = self.folder / "policy.json"
        path.write_text(json.dumps(POLICY))
        return path

    def _buildah(self, *command: str) -> list[str]:
        """buildah with a store and, for the commands that fetch, a policy of our own."""
        store = [f"--root={self._store}", f"--runroot={self._run_folder}", "--storage-driver=overlay"]
        policy = [f"--signature-policy={self._policy()}"] if command[0] in ("pull", "build") else []
        return ["buildah", *store, command[0], *policy, *command[1:]]

    def _watch(self, command: Sequence[str], title: str) -> list[str]:
        """Run a command and show what it prints; returns its last lines."""
        tail: list[str] = []
        with (
            self._progress.step(title) as step,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            ) as process,
        ):
            for line in process.stdout or ():
                if line.strip():
                    tail = [*tail[-40:], line.rstrip()]
                    step.show(tail[-1])
        if process.returncode:
            raise ClusterError(
                f"{command[0]} failed while {title}",
                "read its output above: a failed RUN is the Dockerfile's, a failed mount the machine's",
                [line[:300] for line in tail[-15:]],
            )
        return tail
