"""How fast headway is here: its rounds beside a plain training loop, one fresh process a subject, turn by turn."""
