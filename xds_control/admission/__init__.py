"""Who may go to the picker now, who waits, and who is refused. Pure."""
