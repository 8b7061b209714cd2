"""Answers in other words: true ones are right, and no false one passes."""

import pytest

from benchmarks.common.judging import agrees, same
from benchmarks.common.pictures import KINDS, questions

DESCRIBED = "A red circle and an orange digit 7 on a grey background."
CIRCLES = "A red circle and a blue circle on a white background."
CROSSED = "A red circle, a red square, a blue circle and a blue square on a white background."

RIGHT = {
    ("describe", DESCRIBED): (
        "The image shows a red circle and an orange number 7 on a gray background.",
        "A **red circle** in the upper left, and a large orange 7, against a plain grey backdrop.",
        "An orange digit seven and a red disc on grey.",
        "The circle is red and the digit 7 is orange. The background is gray.",
        "1. A red circle\n2. An orange number \"7\"\n\nThe background is grey.",
        "A red circle (top left), an orange digit: 7, on a grey canvas, with no other shapes.",
        "Circle: red. Digit 7: orange. Background: grey.",
    ),
    ("describe", CIRCLES): (
        "Two circles, one red and one blue, on a white background.",
        "There are two circles on a white background. One is red and the other is blue.",
        "Red and blue circles on white.",
        "The picture has two circles on a white background: one red circle and one blue circle.",
        "There isn't any square. I see a blue circle and a red circle on a white background.",
    ),
    ("describe", "A pink star and a green cross on a black background."): (
        "A five-pointed pink star and a green plus sign on a black background.",
    ),
    ("count", "There are 2 circles."): (
        "2", "two", "Two.", "There are two circles in the image.", "I can see 2 red circles.",
        "There are **2** circles: a red circle and a blue circle.",
        "There is one red circle and one blue circle.",
        "There are 2 circles, one red and one blue.",
        "There are 2 circles and 3 squares.", "Two circles, not three.",
    ),
    ("count", "There are no circles."): (
        "0", "None.", "Zero", "There are zero circles.", "I don't see any circles.",
        "There aren't any circles, but there are 2 squares.", "no circles",
    ),
    ("count", "There is 1 circle."): ("One", "There is only one circle.", "There is a red circle."),
    ("count", "There are 3 objects."): ("Three shapes.", "3 objects: two circles and a star"),
    ("colour", "The circle is red."): (
        "Red", "It is red.", "RED!", "The color of the circle is red.", "It isn't blue, but red.",
        "The circle in the image is red.", "The circle on the white background is red.",
        "The circle is red and the square is blue.", "It's a red circle next to a blue square.",
    ),
    ("colour", "The digit is purple."): ("The number 7 is violet.", "a purple 7", "Purple."),
    ("shape", "The blue object is a cross."): ("A plus sign.", "It is a blue cross, not a star."),
    ("digit", "The digit is 7."): ("7", "Seven.", "The number is 7", "a red 7 on white"),
    ("digit", "There is no digit."): ("None.", "There isn't any digit.", "There are no numbers."),
    ("background", "The background is grey."): (
        "Gray.", "The background color is gray.", "A red circle on a grey background.",
    ),
    ("position", "The star is at the top left."): ("In the upper-left corner.", "top left"),
    ("position", "The star is at the centre."): ("In the middle.", "The star is in the center."),
    ("position", "The star is at the top."): ("At the top center.",),
    ("yesno", "No."): ("No, there is no star.", "There are no stars."),
    ("yesno", "Yes."): ("Yes, there is a star.",),
    ("two_images", "The first image."): ("first", "Image 1", "The 1st one, not the second."),
    ("one_of_two", DESCRIBED): (
        "The second image has a red circle and an orange 7 on a grey background.",
    ),
    ("text", "The capital of France is Paris."): ("Paris", "It is **Paris**."),
    ("text", "3 plus 4 is 7."): ("7", "3 + 4 = 7", "The sum of 3 and 4 is seven."),
    ("text", "A week has 7 days."): ("There are seven days in a week.",),
    ("text", "No."): ("No, fire is hot.",),
}  # fmt: skip

WRONG = {
    ("describe", DESCRIBED): (
        "", "A picture.", "A red circle and an orange digit 7.", "A red circle on grey.",
        "A red circle and a digit 7 on a grey background.",
        "An orange circle and a red digit 7 on a grey background.",
        "A red circle and an orange digit 1 on a grey background.",
        "A red circle and an orange digit 7 on a white background.",
        "A red circle, an orange digit 7 and a star on a grey background.",
        "No red circle and no orange digit 7 on a grey background.",
        "Red, green, blue, yellow, orange, purple, pink circle, digit 7, grey background.",
        "Three red circles and an orange digit 7 on a grey background.",
        "The circle is orange and the digit 7 is red. The background is grey.",
        "A red or green circle and an orange digit 7 on a grey background.",
    ),
    ("describe", "A red circle on a white background."): (
        "A red circle and a red circle on a white background.",
    ),
    ("describe", CROSSED): (
        "A red circle and a blue square on a white background.",
        "A blue circle and a red square on a white background.",
    ),
    ("describe", CIRCLES): ("Three circles, one red and one blue, on a white background.",),
    ("count", "There are 2 circles."): (
        "", "3", "There are circles.", "2 squares", "There are two or three circles.",
        "There are not 2 circles.", "There is one circle.", "22", "0 1 2 3 4", "none",
        "one red circle, one blue circle and one green circle", "I see a digit 2.",
    ),
    ("count", "There are no circles."): ("There are circles.", "There are no squares.", "1"),
    ("count", "There is 1 circle."): (
        "There is one red circle and one blue circle.", "There is not one circle.", "no circle",
    ),
    ("colour", "The circle is red."): (
        "blue", "The circle is not red.", "The circle isn't red.", "Red or blue.", "It is reddish.",
        "red, green, blue, yellow, orange, purple, pink", "The circle is red and white.",
        "The circle is blue and the square is red.", "A red square.", "The circle is brown or red.",
        "I cannot say whether the circle is red.",
    ),
    ("shape", "The blue object is a cross."): ("A cross or a star.", "It isn't a cross.", "square"),
    ("digit", "The digit is 7."): ("7 or 1", "It is not a 7.", "There is no digit.", "17"),
    ("digit", "There is no digit."): ("7", "A digit."),
    ("background", "The background is grey."): (
        "The background is white.", "white, black, grey", "A grey circle.", "It is not grey.",
    ),
    ("position", "The star is at the top left."): ("top", "left", "top right", "top left right"),
    ("position", "The star is at the top."): ("top left", "centre"),
    ("yesno", "No."): ("Yes.", "Yes and no.", "I am not sure.", "Nothing."),
    ("yesno", "Yes."): ("No.", "yesterday"),
    ("two_images", "The first image."): ("second", "both", "The first and the second."),
    ("text", "The capital of France is Paris."): ("Rome", "It is not Paris.", "Paris or Rome"),
    ("text", "3 plus 4 is 7."): ("3 plus 4 is 8.", "6 or 7", "3 plus 4"),
    ("text", "I see no image."): ("No.",),
    ("", "Paris."): ("It is Paris.",),
}  # fmt: skip


def cases(table: dict[tuple[str, str], tuple[str, ...]]) -> list[tuple[str, str, str]]:
    return [(*question, answer) for question, answers in table.items() for answer in answers]


@pytest.mark.parametrize(("kind", "expected", "answer"), cases(RIGHT))
def test_a_true_answer_in_other_words_is_right(kind: str, expected: str, answer: str) -> None:
    assert agrees(kind, answer, expected)


@pytest.mark.parametrize(("kind", "expected", "answer"), cases(WRONG))
def test_a_false_answer_is_wrong(kind: str, expected: str, answer: str) -> None:
    assert not agrees(kind, answer, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_very_sentence_is_right_and_that_of_another_question_is_not(kind: str) -> None:
    asked = list(questions(kind, 30))
    assert all(question.matches(question.answer) for question in asked)
    if kind in ("describe", "one_of_two"):
        assert not any(a.matches(b.answer) for a in asked for b in asked if a.answer != b.answer)
    if kind in ("count", "background"):
        ends = {question.answer.split()[-1] for question in asked}
        assert len(ends) > 1
        assert not any(a.matches(b.answer) for a in asked for b in asked if a.answer != b.answer)


@pytest.mark.parametrize("answer", ["9" * 10_000, "#" * 99, "\x00\ud800", "#9999999"])
def test_gibberish_is_a_miss(answer: str) -> None:
    assert not any(agrees(kind, answer, question.answer) for kind in KINDS
                   for question in questions(kind, 3))  # fmt: skip


def test_broken_text_is_a_miss_unless_it_is_just_cut_off() -> None:
    assert not agrees("colour", "d\N{REPLACEMENT CHARACTER}s red k", "The circle is red.")
    assert agrees("colour", "It is red \N{REPLACEMENT CHARACTER}", "The circle is red.")


def test_a_greeting_has_no_facts() -> None:
    greetings = {q.answer for q in questions("text", 200) if not q.has_facts}
    assert "Hello! How can I help you?" in greetings
    assert "The capital of France is Paris." not in greetings
    assert all(question.has_facts for kind in KINDS[:-1] for question in questions(kind, 30))


def test_same_ignores_case_spaces_and_a_full_stop_only() -> None:
    assert same(" there are 3\n circles", "There are 3 circles.")
    assert not same("There are 3 circles.", "There are 2 circles.")
