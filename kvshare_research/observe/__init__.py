"""Watching a fleet of engines that publish KV events over ZMQ: `python -m kvshare_research.observe --help`."""
