"""Samples are honest: disturbed ones do not count, calls take turns, peak memory is that of the call."""

from pathlib import Path

import pytest
import torch

from bench import timing


def test_disturbed_samples_do_not_count():
    samples = timing.Samples(calls=1, taken=[(0.0, 2.0)] * 8 + [(0.5, 90.0)] * 2)
    assert samples.quantiles() == (2, 2, 2)
    assert len(samples.counted) == 8
    assert samples.rejected_share == pytest.approx(0.2)


def test_least_disturbed_samples_count_where_too_few_are_clean():
    samples = timing.Samples(calls=1, taken=[(0.1 * i, 1.0 + i) for i in range(20)])
    assert samples.clean == 1
    assert samples.counted == [1.0 + i for i in range(timing.MIN_SAMPLES)]


def test_calls_take_turns_from_another_start_each_round(monkeypatch):
    monkeypatch.setattr(timing, "waited_ns", lambda: 0)
    monkeypatch.setattr(timing, "_SAMPLE_SECONDS", 0)  # one call is one sample
    monkeypatch.setattr(timing, "_WARM_SECONDS", 0)
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    result = timing.measure(calls, repeats=7, seconds=60)
    assert "".join(order[-21:]) == "abcbcacababcbcacababc"
    assert all(samples.clean == 7 for samples in result.values())


def test_short_calls_are_warmed_before_each_sample(monkeypatch):
    done = []
    samples = timing.samples_of(lambda: done.append(None))
    assert samples.warmed and samples.calls > 1
    done.clear()
    timing.take(lambda: done.append(None), samples)
    assert len(done) == samples.calls + 1
    monkeypatch.setattr(timing, "_seconds", lambda call: 0.2)
    assert timing.samples_of(lambda: None) == timing.Samples(1, warmed=False)


def test_busy_machine_ends_the_run_all_the_same(monkeypatch):
    clock = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr(timing, "waited_ns", lambda: next(clock))  # a second of waiting in every sample
    result = timing.measure({"a": lambda: None}, repeats=7, seconds=60)["a"]
    assert result.clean == 0 and result.rejected_share == 1
    assert result.count == timing.MAX_ATTEMPTS * 7
    assert len(result.counted) == timing.MIN_SAMPLES


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads /proc")
def test_peak_memory_of_a_known_call():
    def call():
        torch.ones(25_000_000)  # 100 MB that are gone when the call ends
        return torch.ones(5_000_000)

    assert timing.peak_extra_bytes(call) == pytest.approx(100e6, rel=0.1)
