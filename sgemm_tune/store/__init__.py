"""What is kept: configurations as YAML, results as a table, and where each number comes from."""
