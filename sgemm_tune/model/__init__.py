"""What is known without running: occupancy, issue slots, waves, bytes; and a plan made from it."""
