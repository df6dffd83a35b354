"""Policy: the YAML that users push, as typed sections."""
