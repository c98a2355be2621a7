"""A program as a user may write it, with mistakes that a type checker must find: see tests/test_types.py."""

import keras_transformer as kt
from keras_transformer.translation import beam_search

kt.ModelConfig(d_modell=3)  # error: call-arg
kt.ModelConfig(d_model="3")  # error: arg-type
kt.Translator.load("run").translate("A text")  # error: arg-type
kt.EpochPlaner  # noqa: B018  # error: attr-defined
length: int = kt.preset("demo").model.d_model
text: str = kt.Translator.load("run").translate(["A text"])[0]
ids: list[list[int]] = kt.SubwordTokenizer.load("vocabulary").encode(["A text"])
number: int = kt.SubwordTokenizer.load("vocabulary").encode(["A text"])  # error: assignment
kt.train(kt.preset("demo")).run  # noqa: B018  # error: call-arg, union-attr
hypotheses = beam_search(5)  # error: call-arg, arg-type
