"""PURE: the device plugin's configuration on a command line."""

from __future__ import annotations

import argparse

from e2e.fake_gpu.device_plugin import POLICIES, SHARINGS, DevicePluginConfig

CHOICES = {None: None, "true": True, "false": False}


def add_plugin_options(parser: argparse.ArgumentParser) -> None:
    """The options that `plugin_config` reads."""
    parser.add_argument(
        "--device-plugin",
        choices=SHARINGS,
        help="offer the GPUs through the device plugin, shared this way, not by DRA",
    )
    parser.add_argument("--replicas", type=int, default=1, help="the device plugin's replicas of each GPU")
    parser.add_argument("--rename-by-default", action="store_true", help="call shared GPUs nvidia.com/gpu.shared")
    parser.add_argument("--fail-requests-greater-than-one", choices=("true", "false"))
    parser.add_argument("--allocation-policy", choices=POLICIES, default=POLICIES[0])


def plugin_config(parsed: argparse.Namespace) -> DevicePluginConfig | None:
    """What was asked for; None where the GPUs are offered by DRA. Raises Invalid where the plugin would not start."""
    if parsed.device_plugin is None:
        return None
    return DevicePluginConfig(
        parsed.device_plugin,
        parsed.replicas,
        parsed.rename_by_default,
        CHOICES[parsed.fail_requests_greater_than_one],
        parsed.allocation_policy,
    )


def written(config: DevicePluginConfig | None) -> list[str]:
    """The reverse of `plugin_config`."""
    if config is None:
        return []
    options = [f"--device-plugin={config.sharing}", f"--replicas={config.replicas}"]
    options += ["--rename-by-default"] if config.rename else []
    if config.fail_above_one is not None:
        options.append(f"--fail-requests-greater-than-one={str(config.fail_above_one).lower()}")
    return [*options, f"--allocation-policy={config.policy}"]
