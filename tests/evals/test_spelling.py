"""Spelling accuracy by hand."""

from sbdjax.evals.spelling import spelling, vocabulary


def test_only_words_between_two_spaces_count():
  known = vocabulary("the cat sat on  the mat")
  assert known == {"the", "cat", "sat", "on", "mat"}
  got = spelling(["he cat sti on th", "the cat", " the  mat ", "xyz", "a dog cat b"], known)
  # "cat", "sti", "on"; nothing; "the", "mat"; nothing; "dog", "cat".
  assert got == (5, 7) and got.accuracy == 5 / 7


def test_texts_without_words_have_no_accuracy_to_speak_of():
  assert spelling(["abc", "", " "], {"abc"}).accuracy == 0.0
