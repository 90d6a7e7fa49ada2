"""What integrations of single controllers share: a driver holds the steps, and calls ranks, rollouts and queues.

A framework's integration says which of its functions these are, in tables of timers, methods and names of numbers.
``docs/integrations.md`` shows one that is whole.
"""
