"""The one model that the tiny pipeline's engine knows.

SGLang imports each of its hundred and more models when it starts, unless a package of models is named to it: then it
looks there first. This one names its own Llama.
"""
