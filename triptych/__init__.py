"""The command `triptych`: starts each process by a short name, or a whole stack on this machine."""
