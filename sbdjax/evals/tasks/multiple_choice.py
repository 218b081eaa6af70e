"""multiple_choice"""

TASKS = ()
