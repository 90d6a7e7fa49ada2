"""The reward of an answer: the share of its tokens that are even. OpenRLHF calls it for each answer."""


def reward_func(queries, prompts, labels):
    scores = [sum(ord(letter) % 2 for letter in query) / max(1, len(query)) for query in queries]
    return {"rewards": scores[0], "scores": scores[0], "extra_logs": {}}
