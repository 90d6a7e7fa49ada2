"""A reward that a model of random weights can get: digits, and more for the sum that was asked for."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    right = float(ground_truth in solution_str)
    return {"score": right + 0.1 * sum(letter.isdigit() for letter in solution_str), "acc": right}
