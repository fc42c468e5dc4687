"""Container images made on this machine: a Debian base, the project's Dockerfiles on it, and busybox."""
