"""The form of an API key: what is refused without a look at the database."""

import math
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model import keys
from ondot.model.keys import checksum_of, holds_a_key, looks_like_a_key, new_key
from tests.proves import proves

ID = UUID("019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a")


@proves("T1")
def test_a_key_shows_its_prefix_and_its_id_and_has_160_random_bits() -> None:
    made = {new_key(ID) for _ in range(100)}
    assert len(made) == 100
    for key in made:
        assert key.startswith(f"ondk_{ID.hex}_")
        assert len(key) == keys.LENGTH
        assert looks_like_a_key(key)
    assert keys.RANDOM_LENGTH * math.log2(len(keys.ALPHABET)) >= 160


@proves("T1")
@given(position=st.integers(0, keys.LENGTH - 1), character=st.characters())
def test_a_key_with_one_wrong_character_fails_its_checksum(position: int, character: str) -> None:
    key = new_key(ID)
    wrong = key[:position] + character + key[position + 1 :]
    assert looks_like_a_key(wrong) == (wrong == key)


@proves("T1")
@given(position=st.integers(0, keys.LENGTH - 2))
def test_a_key_with_two_characters_exchanged_fails_its_checksum(position: int) -> None:
    key = new_key(ID)
    wrong = key[:position] + key[position + 1] + key[position] + key[position + 2 :]
    assert looks_like_a_key(wrong) == (wrong == key)


@pytest.mark.parametrize(
    "change",
    [
        str.upper,
        str.lower,
        lambda key: key[:-1],
        lambda key: key[1:],
        lambda key: key + "0",
        lambda key: f" {key}",
        lambda key: f"{key}\n",
        lambda key: f"{key}\0",
        lambda key: key.replace("ondk_", "οndk_", 1),  # a Greek letter
        lambda key: key.replace("ondk_", "ondot_", 1)[:25],
        lambda key: key.replace("_", "-"),
        lambda key: key + key,
        lambda _key: "",
        lambda _key: "ondk_",
        lambda _key: "ondk_" + "0" * 32 + "_" + "٣" * 33,
    ],
)
@proves("T1")
def test_text_that_is_almost_a_key_is_none(change: object) -> None:
    assert callable(change)
    assert not looks_like_a_key(change(new_key(ID)))


@proves("T1")
def test_keys_of_earlier_releases_are_known_by_their_form() -> None:
    assert looks_like_a_key("ondot_" + "aB3_-" * 5)
    assert not looks_like_a_key("ondot_" + "a" * 19)
    assert not looks_like_a_key("ondot_" + "a" * 101)
    assert not looks_like_a_key("ondot_token_" + "a" * 43), "the token of a home is no key"


@proves("T1")
def test_a_key_inside_a_text_is_found() -> None:
    key = new_key(ID)
    assert holds_a_key(f"api_key={key}&x=1")
    assert not holds_a_key(f"api_key={key[:-1]}")
    assert not holds_a_key("ondk_")


def test_the_checksum_is_crc_32_to_the_base_of_62() -> None:
    assert checksum_of("") == "000000"
    number = 0
    for digit in checksum_of("123456789"):
        number = number * 62 + keys.ALPHABET.index(digit)
    assert number == 0xCBF43926  # the check value that CRC-32 is published with
