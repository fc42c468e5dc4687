"""The stage container: a light supervisor, and around real sglang-omni the launcher, relay and front it starts.

Only `omni_stage.contract` is imported by the operator, which renders the file that a container reads.
"""
