"""A communicator that hands nothing on: the engine here has no weights."""


class PyNcclCommunicator:
    def __init__(self, group, device):
        pass

    def broadcast(self, tensor, src, stream=None):
        pass
