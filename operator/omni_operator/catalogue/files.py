"""Reads the catalogue's data files, which are part of the package and never change while it runs."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import yaml


def data_text(name: str) -> str:
    """The text of a file in the data folder."""
    return (files("omni_operator.catalogue") / "data" / name).read_text(encoding="utf-8")


def data_json(name: str) -> Any:
    """A JSON file of the data folder."""
    return json.loads(data_text(name))


def data_yaml(name: str) -> Any:
    """A YAML file of the data folder."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is nine times as fast, where it is there
    return yaml.load(data_text(name), Loader=loader)
