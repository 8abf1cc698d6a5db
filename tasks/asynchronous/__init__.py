"""Asynchronous rounds: the order in which updates arrive, and a parameter server that takes them one by one."""
