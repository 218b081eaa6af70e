"""language_modeling"""

TASKS = ()
