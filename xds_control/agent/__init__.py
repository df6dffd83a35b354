"""The GPU agent: NVML to Fleet.Report."""
