import numpy as np
import pytest

from octavo.sampling.noise import gumbel_noise, random_bits, splitmix64, uniform_noise

MASK = 2**64 - 1


def python_splitmix64(state: int, index: int) -> int:
    bits = (state + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def test_the_integers_are_those_of_splitmix64() -> None:
    # The outputs of the published algorithm for the seed 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(np.array([1234567], np.uint64), np.arange(5, dtype=np.uint64)).tolist() == expected


@pytest.mark.parametrize("seed", [0, 7, 2**63, MASK])
@pytest.mark.parametrize("position", [0, 3, 2**40])
def test_bits_are_a_stream_of_keys_per_seed_and_a_stream_of_bits_per_key(seed: int, position: int) -> None:
    token_ids = np.array([0, 1, 49151, 262143])
    key = python_splitmix64(seed, position)
    expected = [python_splitmix64(key, token_id) for token_id in token_ids.tolist()]
    assert random_bits(seed, position, token_ids).tolist() == expected


def test_a_tokens_noise_does_not_depend_on_which_tokens_it_is_asked_for_with() -> None:
    whole = uniform_noise(7, 11, np.arange(1000))
    some = np.array([998, 3, 500])
    assert uniform_noise(7, 11, some).tolist() == whole[some].tolist()


def test_uniform_noise_stays_strictly_between_0_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = np.array([0, MASK], np.uint64)
    monkeypatch.setattr("octavo.sampling.noise.random_bits", lambda *_: extremes)
    low, high = uniform_noise(0, 0, np.arange(2))
    assert 0 < low < high < 1
    assert np.isfinite(gumbel_noise(0, 0, np.arange(2))).all()


def test_noise_is_uniform() -> None:
    counts, _ = np.histogram(uniform_noise(1, 2, np.arange(100_000)), bins=100, range=(0, 1))
    chi_square = ((counts - 1000.0) ** 2 / 1000).sum()
    assert chi_square < 148.2  # 99 degrees of freedom, p = 0.001


def test_neighbouring_seeds_positions_and_tokens_are_uncorrelated() -> None:
    ids = np.arange(100_000)
    noise = uniform_noise(7, 100, ids)
    for other in (uniform_noise(8, 100, ids), uniform_noise(7, 101, ids), np.roll(noise, 1)):
        assert abs(np.corrcoef(noise, other)[0, 1]) < 0.0104  # 3.3 standard deviations


def test_gumbel_noise_has_the_gumbel_mean_and_variance() -> None:
    noise = gumbel_noise(5, 6, np.arange(100_000))
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.014)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.04)
