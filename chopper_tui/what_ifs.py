"""Changes that a person puts into words, as questions for the replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chopper_core.analyses.asked import is_question
from chopper_core.model.run import Run
from chopper_core.util.patterns import late
from chopper_tui.concepts import in_usual_words, said_concepts
from chopper_tui.search import Offer

_NUMBER: Final = r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?"
_CLOCK: Final = late(
    rf"({_NUMBER})\s*([mg])hz\b|\bclocks?\s*(?:[=:]|(?:were|was|is|of|at|to)\s)?\s*({_NUMBER})"
)
_AT_CLOCK: Final = late(rf"\b(?:at|of) (?:an? )?(?:clocks? of )?(?:{_NUMBER})\s*[mg]hz")
_BARE: Final = late(rf"{_NUMBER}")
_CLOCKS_MHZ: Final = (300, 5000)
"""Clocks of GPUs: other numbers without a unit are none."""
_FACTOR: Final = late(r"[x×](\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*(?:x|×|times)(?:\s|$)")
_SHARE: Final = late(r"(\d+(?:\.\d+)?)\s*%")
_TWICE: Final = late(r"\b(?:twice|double|doubled|half|halved)\b")
_NO: Final = late(
    r"\b(?:without|no|removed?|ideal|perfect|zero|free|eliminat\w*|fix\w*|if not for)\b"
)
_SUPPOSED: Final = late(
    r"\bat (?:the )?(?:nominal|full|max\w*|boost) clock"
    r"|\bif\b|\bremov\w*|\bwould\b|\bcould\b|\bsuppos\w*|\binstead\b|\bwithout\b|\bwhat-if\b"
    r"|\bhow (?:long|fast)\b|\bpredict\w*|\bsimulat\w*|\breplay\w*"
    r"|\bsaves? (?:if|with)\b|\btwice\b|\bdoubled?\b|\bhalf\b|\bas peers\b|\bhalved\b"
)
"""How people begin what isn't so."""
_AS_OTHERS: Final = late(
    r"\b(?:as|like)\b.*\b(?:others?|peers|rest|everyone|normal)\b"
    r"|\bnormal\b|\bhealthy\b|\bnot slow\b"
)
_GPU: Final = late(r"\b(?:gpu|rank)\s*(\d+)\b")
_LAYER: Final = late(r"\blayer\s*(\d+)\b")
_WHY: Final = "How long a step would take, by replay."


def asked_what_ifs(run: Run, text: str) -> Iterator[Offer]:
    """What a text supposes, each as an entry that replays the steps so: `what if the clock were
    1900 mhz`, `the step without the straggler`, `with twice the bandwidth`."""
    said = in_usual_words(text)
    if is_question(said):
        yield Offer(f"What if: {said}", _WHY, "what_if", said)
        return
    clock = _clock(said)
    is_supposed = bool(_SUPPOSED.search(said))
    if clock and (is_supposed or _is_clock_alone(said) or _AT_CLOCK.search(said)):
        yield Offer(
            f"What if the clock were {clock:,.10g} MHz", _WHY, "what_if",
            f"{_who(said)}clock={clock:g}",
        )  # fmt: skip
    elif is_supposed:
        for title, question in _changes(run, said):
            yield Offer(f"What if {title}", _WHY, "what_if", question)


def _clock(text: str) -> float:
    """The clock that a text names, in MHz; 0 without."""
    found = _CLOCK.search(text)
    if found is not None:
        number = float((found[1] or found[3]).replace(",", ""))
        return number * (1000 if found[2] == "g" else 1)
    return float(text.replace(",", "")) if _is_clock_alone(text) else 0.0


def _is_clock_alone(text: str) -> bool:
    bare = _BARE.fullmatch(text)
    if bare is not None:
        return _CLOCKS_MHZ[0] <= float(bare[0].replace(",", "")) <= _CLOCKS_MHZ[1]
    return _CLOCK.fullmatch(text) is not None


def _who(text: str) -> str:
    found = _GPU.search(text)
    return f"gpu:{found[1]} " if found else ""


def _changes(run: Run, text: str) -> Iterator[tuple[str, str]]:
    """What is supposed, in words and as a question, what is meant most likely first."""
    said, gpu, layer = said_concepts(text), _GPU.search(text), _LAYER.search(text)
    factor, named = _times(text), _named(run, text)
    is_gone = bool(_NO.search(text))
    if gpu and not factor:
        yield f"GPU {gpu[1]} were as fast as the others", f"gpu:{gpu[1]} as peers"
    elif layer and not factor:
        yield f"layer {layer[1]} took as long as the others", f"layer:{layer[1]} as peers"
    elif {"late", "others"} & said.keys() or ("slow" in text and (is_gone or "gpu" in text)):
        yield "no GPU were slower than the others", "no stragglers"
    is_full = is_gone or "nominal" in said or "full" in text
    if is_full and ({"clock", "throttled"} & said.keys()):
        chip = run.hardware
        if chip is not None and chip.clock_mhz:
            most = f"{chip.clock_mhz:g}"
            yield (
                f"the clock were the nominal {chip.clock_mhz:,.10g} MHz",
                f"{_who(text)}clock={most}",
            )
    if "bandwidth" in said and "memory" in said and factor:
        yield f"what memory bounds took x{factor}", f"memory x{factor}"
    elif "comm" in said or ("bandwidth" in said and factor):
        if factor:
            yield f"communication took x{factor}", f"comm x{factor}"
        if "overlap" in said or is_gone:
            yield "communication were hidden", "comm hidden"
        if is_gone:
            yield "there were no contention", "no contention"
    elif "memory" in said and factor:
        yield f"what memory bounds took x{factor}", f"memory x{factor}"
    if "overlap" in said and "comm" not in said and is_gone:
        yield "there were no contention", "no contention"
    if "host" in said or "gap" in said or "launching" in said:
        if factor:
            yield f"the hosts took x{factor}", f"host x{factor}"
        else:
            yield "the GPUs never waited for their hosts", "no host gaps"
    if named and factor:
        yield f"{named} took x{factor}", f"{named} x{factor}"
    elif named and ("roof" in said or "peak" in said or "ideal" in text):
        yield f"{named} ran at the peak", f"{named} at peak"


def _times(text: str) -> str:
    """The factor of the time that a text supposes: `twice as fast` is 0.5; empty without."""
    if found := _TWICE.search(text):
        is_slower = "slow" in text or "half the speed" in text or "half the bandwidth" in text
        return "2" if is_slower else "0.5"
    if found := _FACTOR.search(text):
        return f"{float(found[1]):.4g}" if found[1] else f"{1 / max(float(found[2]), 1e-3):.4g}"
    if found := _SHARE.search(text):
        share = float(found[1]) / 100
        if "slower" in text or "longer" in text:
            return f"{1 + share:.4g}"
        if "faster" in text or "quicker" in text:
            return f"{1 / (1 + share):.4g}"
        if ("less" in text or "shorter" in text) and share < 1:
            return f"{1 - share:.4g}"
    return ""


def _named(run: Run, text: str) -> str:
    """The operation that a text names, as a question takes it; empty without."""
    operations = {each.lower(): each for each in run.table.operations}
    return next((operations[word] for word in text.split() if word in operations), "")
