"""The counter-based random numbers that every fused mask is made of."""

import pytest
import torch

from ugnn_fast._random import keep_from, philox

# Known answers of Random123, the authors' implementation: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, words):
    c0, c1, c2, c3 = counter
    found = philox(key[0] | key[1] << 32, torch.tensor([c0]), torch.tensor([c1]), torch.tensor([c2]), c3)
    assert tuple(int(word) for word in found) == words


@pytest.mark.parametrize("drop", [0.0, 0.25, 0.8])
def test_share_of_kept_values(drop):
    words = philox(7, torch.arange(20000), torch.zeros(20000, dtype=torch.int64), 0, 0)
    for word in words:
        kept = (word >= keep_from(drop)).double().mean()
        assert abs(kept - (1 - drop)) < 5 * (0.25 / 20000) ** 0.5
