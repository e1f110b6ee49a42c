"""Only the same kernels are compared: of equal names, shapes and FLOPs. The rest is more work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query
from tests.training import Rank, opened, step
from tests.wording import Wording

Tokens = Callable[[int, int], int]


def trained(
    folder: Path, tokens: Tokens, experts: Tokens | None = None, slow: int | None = None
) -> Run:
    """Eight steps from 10 on of four ranks, with tokens by rank and step."""
    ranks = [Rank(number, 4) for number in range(4)]
    for number in range(10, 18):
        begins = [each.now for each in ranks]
        for each in ranks:
            each.slower = 1.2 if each.rank == slow else 1.0
            if experts is not None:
                with each.note_around("forward"), each.note_around("Layer0"):
                    each.product("mlp_gp", experts(each.rank, number))
        step(ranks, number, [tokens(each.rank, number) for each in ranks])
        for each, begin in zip(ranks, begins, strict=True):
            each.read_back()
            each.note(f"ProfilerStep#{number}", begin, each.now)
    return opened(ranks, folder)


def said(run: Run) -> tuple[list[str], str]:
    """The findings, each with its title and its figures, and the headline of the ranks."""
    found = query(run, parse("R?view=findings"))
    details = [str(found.values["detail"].cell(row)) for row in range(len(found))]
    texts = [
        f"{title}\n{detail}"
        for title, detail, rule in zip(found.labels, details, rules(run), strict=True)
        if rule != "missing"
    ]
    return texts, " ".join(query(run, parse("R?view=ranks")).headline)


def rules(run: Run) -> list[str]:
    frame = query(run, parse("R?view=findings"))
    return [str(frame.values["rule"].cell(row)) for row in range(len(frame))]


def test_longer_sequences_of_a_gpu_are_more_tokens(tmp_path: Path) -> None:
    longer = {12, 16}
    run = trained(tmp_path, lambda rank, at: 1300 if rank == 1 and at in longer else 1000)
    texts, headline = said(run)
    for text in (texts[0], headline):
        assert all(each in text for each in ("GPU 1", "1.3× the tokens", "steps 12 and 16"))
        assert "same kernels" not in text
    columns = query(run, parse("R?view=ranks&columns=slower_pct,extra_work_ns"))
    assert columns.row(1)["slower_pct"] == pytest.approx(0, abs=0.5)


def test_longer_sequences_of_all_gpus_are_more_tokens(tmp_path: Path, wording: Wording) -> None:
    texts, _ = said(trained(tmp_path, lambda _, at: 1300 if at in {12, 16} else 1000))
    (text,) = texts
    title, detail = text.splitlines()
    wording(title, "1.3× the tokens")
    wording(detail, "1.3× the tokens")
    assert "12" in texts[0] and "16" in texts[0]


def test_the_load_of_an_expert_is_more_work(tmp_path: Path, wording: Wording) -> None:
    """Every rank's experts have another load each time, those of rank 3 four times as much."""

    def load(rank: int, at: int) -> int:
        return 500 + 7 * ((rank + 3 * at) % 5) + 3000 * (rank == 3)

    run = trained(tmp_path, lambda *_: 1000, load)
    texts, headline = said(run)
    # What only GPU 3 has too much is the more precise cause; the experts' whole time is around it.
    wording.among(texts[0], "GPU 3 has more work")
    wording.among(texts[1], "1 kernel only there")
    layer = query(run, parse("R?view=findings")).row(1)
    assert layer["rule"] == "layer" and layer["part_of"] == 1
    assert "GPU 3" in headline and "more work" in headline
    assert "same kernels" not in " ".join([*texts, headline])


def test_a_gpu_that_takes_longer_for_the_same_is_still_slow(
    tmp_path: Path, wording: Wording
) -> None:
    texts, headline = said(trained(tmp_path, lambda *_: 1000, slow=2))
    wording.among(texts[0], "GPU 2", "20.0 % longer")
    wording(headline, "20.0 %")
