"""From a compiled candidate to a measurement or a reason: validate, time, in a process of its own."""
