"""A process group that joins nobody."""


class StatelessProcessGroup:
    @classmethod
    def create(cls, host, port, rank, world_size):
        return cls()
