"""Ids of requests."""

import uuid


def random_uuid():
    return uuid.uuid4().hex
