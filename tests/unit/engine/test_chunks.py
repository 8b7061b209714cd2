"""Which steps do more than any before."""

from services.engine.scheduling.chunks import StepSizes, amounts_of, work_of
from services.engine.scheduling.limits import Limits
from tests.support.scheduler_cases import Case, pictures_of


def news(case: Case, steps: int) -> list[bool]:
    """Of so many steps of a scheduler, whether each is new."""
    sizes, found = StepSizes(), list[bool]()
    for _ in range(steps):
        sizes.begin()
        chunks = case.scheduler.schedule(lambda request: None, None, lambda request, matched: False)
        sizes.does(amounts_of(chunks, work_of(chunks)))
        found.append(sizes.new)
        for chunk in chunks:
            case.scheduler.computed(chunk.request, chunk.end)
            for request in chunk.samplers:
                request.tokens.append(1)
        sizes.end()
    return found


def test_a_context_that_grows_by_a_token_is_nothing_new() -> None:
    case = Case(Limits(8, 256))
    case.add(100)
    assert news(case, 50) == [True, True] + [False] * 48


def test_chunks_of_a_prompt_attend_to_more_and_more() -> None:
    case = Case(Limits(8, 64))
    case.add(64 * 12)
    found = news(case, 12)
    assert found[0] and found[1] and not found[-1]


def test_amounts_of_a_kind_add_up_and_others_are_new() -> None:
    sizes = StepSizes()
    for amounts, new in (
        ([{"a": 4}], True), ([{"a": 5}], False), ([{"a": 5}, {"a": 2}], True), ([{"a": 7}], False),
        ([{"b": 1}], True), ([{"b": 1, "a": 7}], False), ([], False),
    ):  # fmt: skip
        sizes.begin()
        for one in amounts:
            sizes.does(one)
        assert sizes.new is new, amounts
        sizes.end()
    sizes.does_else()
    assert sizes.new


def test_what_a_step_does_is_counted_by_kind() -> None:
    """A prompt with two pictures beside a request that decodes."""
    case = Case(Limits(8, 256))
    case.add(20)
    case.step()
    items = pictures_of([1, 2], 60)
    for item in items:
        case.store_picture(item)
    case.add(60, 1000, *items)
    case.scheduler.embeddings.poll()
    chunks = case.step()
    work = work_of(chunks)
    assert (work.computed, work.requests, work.context) == (60, 1, 21)
    amounts = amounts_of(chunks, work)
    counted = {name: amount for name, amount in amounts.items() if isinstance(name, str)}
    assert counted == {
        "prompt tokens": 60, "attended by prompts": 60 * 60, "media": 2,
        "requests that decode": 1, "their context": 21, "drafts": 0,
    }  # fmt: skip
