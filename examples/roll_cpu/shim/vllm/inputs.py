"""Names of vLLM."""


class TokensPrompt(dict):
    pass
