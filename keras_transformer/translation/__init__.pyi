from keras_transformer.translation.alignment import format_pharaoh as format_pharaoh
from keras_transformer.translation.alignment import hard_alignment as hard_alignment
from keras_transformer.translation.alignment import soft_alignment as soft_alignment
from keras_transformer.translation.alignment import word_numbers as word_numbers
from keras_transformer.translation.constraints import Constraint as Constraint
from keras_transformer.translation.ensemble import search_ids as search_ids
from keras_transformer.translation.parser import Parsed as Parsed
from keras_transformer.translation.parser import Parser as Parser
from keras_transformer.translation.phrase_texts import PhrasesError as PhrasesError
from keras_transformer.translation.phrases import Phrases as Phrases
from keras_transformer.translation.rules import Rules as Rules
from keras_transformer.translation.rules import length_penalty as length_penalty
from keras_transformer.translation.scorer import Scored as Scored
from keras_transformer.translation.scorer import Scorer as Scorer
from keras_transformer.translation.scorer import perplexity as perplexity
from keras_transformer.translation.search import Hypotheses as Hypotheses
from keras_transformer.translation.search import Step as Step
from keras_transformer.translation.search import beam_search as beam_search
from keras_transformer.translation.search import greedy_search as greedy_search
from keras_transformer.translation.search import sample as sample
from keras_transformer.translation.texts import NBest as NBest
from keras_transformer.translation.texts import Translation as Translation
from keras_transformer.translation.translator import Translator as Translator
from keras_transformer.translation.tree_grammar import TreeGrammar as TreeGrammar

__all__ = [
    "Constraint",
    "Hypotheses",
    "NBest",
    "Parsed",
    "Parser",
    "Phrases",
    "PhrasesError",
    "Rules",
    "Scored",
    "Scorer",
    "Step",
    "Translation",
    "Translator",
    "TreeGrammar",
    "beam_search",
    "format_pharaoh",
    "greedy_search",
    "hard_alignment",
    "length_penalty",
    "perplexity",
    "sample",
    "search_ids",
    "soft_alignment",
    "word_numbers",
]
