"""PID 1 of a stage container. Standard library only, never torch: it stays under 40 MB resident."""
