"""What is printed while a run goes on, on a clock that the test turns."""

import io

from rich.console import Console

from practicum.cli.progress import Watch, clock_text


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(*, terminal: bool = False) -> tuple[Watch, Clock, io.StringIO]:
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, color_system=None)
    return Watch(console, stages={"sft": 30, "rl": 4}, clock=clock), clock, text


def test_a_training_step_gives_a_line_with_rates_and_time_left() -> None:
    shown, clock, text = watch()
    with shown:
        shown.stage("rl", 4)
        clock.now = 10.0
        shown.step(
            "rl", 0, {"reward": 0.25, "success": 0.125, "tokens": 900, "seconds_practise": 3}
        )
    line = text.getvalue().splitlines()[-1]
    assert line == "[0:10] rl 1/4  reward 0.25  success 12.5 %  300 tokens/s  0:30 left"


def test_time_left_counts_only_what_this_process_did() -> None:
    shown, clock, text = watch()
    with shown:
        shown.stage("rl", 4)
        clock.now = 10.0
        shown.step("rl", 2, {})  # went on after two steps
    assert text.getvalue().splitlines()[-1] == "[0:10] rl 3/4  0:10 left"


def test_a_stage_of_unknown_length_shows_its_bound_as_one() -> None:
    shown, clock, text = watch()
    with shown:
        shown.stage("sft", None)
        clock.now = 1.0
        shown.step("sft", 9, {"nll": 1.5})
        shown.step("sft", 9, {"val_nll": 1.25})
    lines = text.getvalue().splitlines()
    assert lines[-2] == "[0:01] sft 10 of at most 30  loss 1.5  at most 0:20 left"
    assert lines[-1] == "[0:01] sft 10 of at most 30  validation loss 1.25  at most 0:20 left"


def test_episodes_are_told_in_tenths_and_at_the_end() -> None:
    shown, clock, text = watch()
    with shown:
        shown.stage("evaluate base", 200)
        for count in range(1, 201):
            clock.now += 0.5
            shown.step("evaluate base", count, {"success": 0.5})
    lines = text.getvalue().splitlines()[1:]
    assert len(lines) == 10
    assert lines[-1].endswith("evaluate base 200/200  success 50.0 %")


def test_a_terminal_keeps_a_line_of_what_is_over() -> None:
    shown, clock, text = watch(terminal=True)
    with shown:
        shown.stage("evaluate base", 2)
        clock.now = 5.0
        shown.step("evaluate base", 2, {"success": 0.5})
        shown.note("[a note] with [red]brackets")
    assert "✓ evaluate base 2/2  in 0:05  success 50.0 %" in text.getvalue()
    assert "[a note] with [red]brackets" in text.getvalue()


def test_times_are_read_as_on_a_watch() -> None:
    assert [clock_text(s) for s in (7, 760, 3723)] == ["0:07", "12:40", "1:02:03"]
