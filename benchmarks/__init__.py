"""Programs that measure this project itself; run them as scripts."""
