"""The budget rules, by subject. Each is a small function from a layout to the problems it finds; none knows another.

The one chain that runs them stands in `omni_operator.planning.budget`.
"""
