"""Dependencies of a step: what each activity waits for, its replay, the longest path, slack."""
