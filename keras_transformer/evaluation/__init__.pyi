from keras_transformer.evaluation.bleu import Scores as Scores
from keras_transformer.evaluation.bleu import bleu_scorer as bleu_scorer
from keras_transformer.evaluation.bleu import check_lines as check_lines
from keras_transformer.evaluation.bleu import corpus_scores as corpus_scores
from keras_transformer.evaluation.bleu import exact_match as exact_match
from keras_transformer.evaluation.bleu import multi_bleu as multi_bleu
from keras_transformer.evaluation.bleu import token_bleu as token_bleu
from keras_transformer.evaluation.bleu import token_scorer as token_scorer
from keras_transformer.evaluation.brackets import BracketScores as BracketScores
from keras_transformer.evaluation.brackets import LabelScore as LabelScore
from keras_transformer.evaluation.brackets import SentenceScore as SentenceScore
from keras_transformer.evaluation.brackets import TreeScores as TreeScores
from keras_transformer.evaluation.brackets import bracket_scores as bracket_scores
from keras_transformer.evaluation.report import Comparison as Comparison
from keras_transformer.evaluation.report import Figure as Figure
from keras_transformer.evaluation.report import NamedLines as NamedLines
from keras_transformer.evaluation.report import compare as compare
from keras_transformer.evaluation.tree_report import NamedTrees as NamedTrees
from keras_transformer.evaluation.tree_report import TreeComparison as TreeComparison
from keras_transformer.evaluation.tree_report import compare_trees as compare_trees

__all__ = [
    "BracketScores",
    "Comparison",
    "Figure",
    "LabelScore",
    "NamedLines",
    "NamedTrees",
    "Scores",
    "SentenceScore",
    "TreeComparison",
    "TreeScores",
    "bleu_scorer",
    "bracket_scores",
    "check_lines",
    "compare",
    "compare_trees",
    "corpus_scores",
    "exact_match",
    "multi_bleu",
    "token_bleu",
    "token_scorer",
]
