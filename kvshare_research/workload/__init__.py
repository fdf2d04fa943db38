"""What is asked, by whom and when: prompts with a dialled overlap, parties and their scopes, arrival times."""
