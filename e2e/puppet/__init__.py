"""An image in which the engine is a puppet, so that faults, delays and allocations come when a test wants them.

Real: the container, the supervisor as PID 1, the pod's file, `/readyz` and `/stage`, the classification of an ending
and its exit code, the front's watch over its stages. A puppet: what the engine process does, here by environment
variables of its stage (`spec.stages[].env`) and by orders that `kubectl exec` writes into a file; see `strings`.
"""
