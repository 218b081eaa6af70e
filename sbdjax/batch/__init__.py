"""Many prompts at once: requests, from Python or a file, and results by id."""
