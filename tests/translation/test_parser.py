"""`Parser`: one tree over exactly the words of each sentence, whatever the model says."""

import json
import math

import pytest

from keras_transformer.cli.parse import json_line
from keras_transformer.config.presets import preset, with_vocab_size
from keras_transformer.config.settings import replace
from keras_transformer.model.transformer import Transformer
from keras_transformer.text.trees import read_tree, words
from keras_transformer.tokenizers import SubwordTokenizer, Tokenizers
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.translation.parser import Parsed, Parser
from keras_transformer.translation.translator import Translator

TREES = [
    "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NP (DT the) (NN cat)) (PP (IN near) (NP (NNS birds))))))",
    "(FRAG (NP (NNS birds)) (. .))",
]
SENTENCES = ["the dog sees the cat near birds", "birds .", "", "the cat ( birds ) sees the dog", "dog"]
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2}


@pytest.fixture(scope="module")
def tokenizers():
    texts = [" ".join(words(read_tree(tree))) for tree in TREES]
    return Tokenizers(SubwordTokenizer.train(texts * 9, vocab_size=290), TreeTokenizer.train(TREES))


@pytest.fixture(scope="module")
def config(tokenizers):
    config = replace(preset("parsing_small"), model=SIZES, search={"beam_size": 3, "max_length_offset": 23})
    return with_vocab_size(config, *tokenizers.sizes)


@pytest.fixture(scope="module")
def parser(config, tokenizers):
    return Parser(Transformer(config.model), tokenizers, config.search)


@pytest.mark.slow
def test_every_sentence_gets_a_tree_over_its_words(parser):
    results = parser.parse(SENTENCES)
    wanted = [sentence.replace("(", "-LRB-").replace(")", "-RRB-").split() for sentence in SENTENCES]
    for parsed, expected in zip(results, wanted, strict=True):
        if not expected:
            assert (parsed.tree, parsed.text, parsed.flags) == (None, "", ["blank"])
            continue
        assert words(parsed.tree) == expected
        assert read_tree(parsed.text) == parsed.tree
        assert parsed.mended  # random weights
        assert parsed.score < 0


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("search", [{"beam_size": 1}, {}, {"beam_size": 7}, {"sampling": True}])
def test_with_the_grammar_nothing_needs_mending(parser, search):
    results = parser.parse(SENTENCES, tree_grammar=True, max_length_offset=1, **search)
    assert [parsed.mended for parsed in results] == [()] * len(SENTENCES)
    trees = [parsed.text for parsed in results]
    assert [len(words(read_tree(tree))) if tree else 0 for tree in trees] == [7, 2, 0, 8, 1]
    free = parser.parse(SENTENCES, max_length_offset=1, **search)
    assert [parsed.text for parsed in free] != trees


def test_the_grammar_does_not_depend_on_the_rest_of_the_batch(parser):
    together = parser.parse(SENTENCES, tree_grammar=True)
    alone = [parser.parse([sentence], tree_grammar=True)[0] for sentence in SENTENCES]
    assert [parsed.text for parsed in together] == [parsed.text for parsed in alone]


@pytest.mark.slow
def test_the_grammar_is_for_trees(config, tokenizers):
    model = Transformer(replace(config.model, target_vocab_size=config.model.source_vocab_size))
    translator = Translator(model, Tokenizers(tokenizers.source, tokenizers.source))
    with pytest.raises(ValueError, match="`tree_grammar` needs a model trained on trees"):
        translator.translate(["dog"], tree_grammar=True)


def test_minimum_bayes_risk_decoding_is_for_texts(parser):
    with pytest.raises(ValueError, match="`mbr` compares texts and cannot parse"):
        parser.parse(["dog"], mbr=True)


def test_words_may_be_given_as_lists(parser):
    given = parser.parse([sentence.split() for sentence in SENTENCES])
    assert given == parser.parse(SENTENCES)
    with pytest.raises(TypeError, match="`sentences` must be a list of str. Received: one str"):
        parser.parse("the dog")
    with pytest.raises(TypeError, match="A sentence must be str or a list of words. Received: None"):
        parser.parse([None])
    with pytest.raises(ValueError, match="A word must be text without spaces. Received: 'two words'"):
        parser.parse([["two words"]])


def test_a_no_break_space_is_a_character_of_its_word(parser):
    (parsed,) = parser.parse(["the 5\u00a0mm dog"])
    assert words(parsed.tree) == ["the", "5\u00a0mm", "dog"]


def test_a_sentence_over_the_limit_gets_a_flat_tree(parser):
    long, short = parser.parse(["dog " * 50, "birds ."], max_source_length=20)
    assert (long.flags, short.flags) == (["too_long"], ["mended"])
    assert long.text == f"(S{' (XX dog)' * 50})"
    assert short == parser.parse(["birds ."])[0]


def test_a_translation_model_is_no_parser(config, tokenizers):
    model = replace(config.model, target_vocab_size=config.model.source_vocab_size)
    with pytest.raises(ValueError, match="This model translates; a parser needs one trained on trees"):
        Parser(Transformer(model), Tokenizers(tokenizers.source, tokenizers.source))


@pytest.mark.slow
def test_a_sentence_has_one_tree_whatever_the_search_settings(config, tokenizers):
    model = Transformer(config.model)
    one, several = (Parser(model, tokenizers, replace(config.search, n_best=number)) for number in (1, 3))
    assert several.parse(SENTENCES) == one.parse(SENTENCES)
    assert several.parse(SENTENCES, beam_size=1) == one.parse(SENTENCES, beam_size=1)


@pytest.mark.slow
def test_with_the_grammar_a_sentence_needs_three_more_positions_than_words(config, tokenizers):
    model = replace(config.model, positions="learned", max_positions=17)
    parser = Parser(Transformer(model), tokenizers, config.search)
    fits, too_long = parser.parse([". " * 14, ". " * 15], tree_grammar=True)
    assert (fits.flags, too_long.flags) == ([], ["too_long"])
    assert math.isfinite(fits.score)
    assert math.isfinite(too_long.score)
    assert too_long.text == f"(S{' (XX .)' * 15})"


def test_a_score_that_json_cannot_write_is_null():
    line = json_line(3, Parsed(None, -math.inf, (), False, 0))
    assert json.loads(line)["score"] is None
    assert json.loads(json_line(3, Parsed(None, -1.5, (), False, 0)))["score"] == -1.5
