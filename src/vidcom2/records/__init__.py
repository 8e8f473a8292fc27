"""The files that runs write and read again: answers, the run that they belong to, and where figures come from."""
