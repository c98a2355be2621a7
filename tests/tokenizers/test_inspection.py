"""What a vocabulary makes of a text: figures counted by hand, and the program."""

import io
import json

import pytest

from keras_transformer.cli import inspect as program
from keras_transformer.tokenizers.inspection import Fragmented, inspect_vocabulary
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, as_tokenizers, save_tokenizers
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

PIECES = list("▁\\;0123456789ab") + ["▁ab", "bab"]


@pytest.fixture(scope="module")
def by_hand():
    header = {
        "format": "word pieces 1",
        "vocab_size": len(PIECES) + 4,
        "normalization": "nfc",
        "special": {"pad": 0, "bos": 1, "eos": 2, "unk": 3},
    }
    lines = [json.dumps(header), *PIECES]
    return WordPieceTokenizer("".join(f"{line}\n" for line in lines).encode())


def test_figures_are_those_counted_by_hand(by_hand):
    # ▁ab bab | ▁ab | ▁ a \ 8 3 6 4 ;
    found = inspect_vocabulary(by_hand, ["abbab  ab", "", "a€"])
    assert found.lines == 3
    assert (found.words, found.characters, found.pieces) == (3, 10, 11)
    assert found.fertility == 11 / 3
    assert found.characters_per_piece == 10 / 11
    assert found.coverage == 9 / 10
    assert found.fallback_rate == 6 / 11
    assert found.unknown_rate == 0
    assert (found.pieces_used, found.vocab_used) == (10, 10 / len(PIECES + [0] * 4))
    assert found.longest_pieces[:2] == ["bab", "▁ab"]
    assert found.most_fragmented[0] == Fragmented("a€", ["▁", "a", "\\", "8", "3", "6", "4", ";"], 1)


def test_a_backslash_is_no_code_point(by_hand):
    found = inspect_vocabulary(by_hand, ["a\\12;"])
    assert (found.coverage, found.fallback_rate, found.pieces) == (1, 0, 7 + 0)


@pytest.mark.slow
def test_bytes_and_unknown_pieces_are_counted():
    texts = ["ab ab ab"]
    with_bytes = SubwordTokenizer.train(texts, vocab_size=265)
    found = inspect_vocabulary(with_bytes, ["ab €"])  # ▁ab ▁ and three bytes
    assert (found.pieces, found.fallback_rate, found.unknown_rate) == (5, 3 / 5, 0)
    assert found.coverage == 3 / 4
    without = SubwordTokenizer.train(texts, vocab_size=9, byte_fallback=False)
    found = inspect_vocabulary(without, ["ab €"])
    assert (found.pieces, found.fallback_rate, found.unknown_rate) == (3, 0, 1 / 3)


def test_many_lines_are_the_sum_of_their_parts(by_hand):
    found = inspect_vocabulary(by_hand, (text for _ in range(1500) for text in ("ab", "b a")), top=1)
    assert (found.lines, found.words, found.pieces) == (3000, 4500, 1500 * 5)
    assert found.most_fragmented == [Fragmented("a", ["▁", "a"], 1500)]


def test_a_text_without_words_is_refused(by_hand):
    with pytest.raises(ValueError, match="must contain words. Received: 2 lines"):
        inspect_vocabulary(by_hand, ["", "  "])


@pytest.fixture
def vocabulary(by_hand, tmp_path):
    by_hand.save(tmp_path / "vocabulary")
    return str(tmp_path / "vocabulary")


def run(arguments, text=b""):
    return program.main(arguments, stdin=io.BytesIO(text))


def test_the_program_prints_a_table(vocabulary, tmp_path, capsys):
    (tmp_path / "one.txt").write_text("abbab ab\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("a€\n", encoding="utf-8")
    assert run([vocabulary, str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]) == 0
    printed = capsys.readouterr().out
    assert "2 lines, 3 words, 10 characters" in printed
    assert "fertility             3.667 pieces per word" in printed
    assert "coverage              90.0000%" in printed


def test_the_program_prints_json_of_standard_input(vocabulary, capsys):
    assert run([vocabulary, "--json", "--top", "1"], "abbab ab\r\na€".encode()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pieces"] == 11
    assert found["most_fragmented"][0]["word"] == "a€"


def test_the_program_takes_a_run_folder(by_hand, tmp_path, capsys):
    other = SubwordTokenizer.train(["ab ab ab"], vocab_size=265)
    (tmp_path / "two").mkdir()
    save_tokenizers(tmp_path / "two", Tokenizers(by_hand, other))
    for side, size in (("source", by_hand.vocab_size), ("target", 265)):
        assert run([str(tmp_path / "two"), "--side", side, "--json"], b"ab") == 0
        assert json.loads(capsys.readouterr().out)["vocab_size"] == size
    (tmp_path / "one").mkdir()
    save_tokenizers(tmp_path / "one", as_tokenizers(other))
    assert run([str(tmp_path / "one")], b"ab") == 0


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["absent"], b"a", "absent: cannot read the tokenizer model"),
        (["FOLDER"], b"a", "must hold tokenizer.model"),
        (["FOLDER/vocabulary"], b"", "must contain words"),
        (["FOLDER/vocabulary"], b"a\xff", "standard input: line 1: byte 2"),
        (["FOLDER/vocabulary", "FOLDER/absent"], b"", "absent: no such file"),
        (
            ["FOLDER/vocabulary", "--side", "source"],
            b"a",
            "vocabulary is one vocabulary. Remove this argument",
        ),
        (["FOLDER/text"], b"a", "text is not a SentencePiece model"),
    ],
)
def test_the_program_refuses_bad_input_in_one_line(vocabulary, tmp_path, capsys, arguments, text, message):
    (tmp_path / "text").write_text("a text", encoding="utf-8")
    assert run([one.replace("FOLDER", str(tmp_path)) for one in arguments], text) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("keras-transformer inspect: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_the_program_refuses_a_negative_number(vocabulary):
    with pytest.raises(SystemExit) as info:
        run([vocabulary, "--top", "-1"])
    assert info.value.code == 2
