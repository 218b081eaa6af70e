"""mmlu"""

TASKS = ()
