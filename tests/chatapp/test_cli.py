"""The command line: words and options, what completes them, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chatapp import __main__, cli, paths, settings
from chatapp.cli import UsageError
from chatapp.local import LocalBackend
from chatapp.options import ChatOptions
from chatapp.settings import Settings
from chatapp.store import Store
from runtime.protocol import Load, Sampling


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user stands, with a model and a text file in it."""
    (tmp_path / "q.gguf").touch()
    (tmp_path / "blob").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def built_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the model that comes with the package."""
    path = folder / "tiny.gguf"
    path.touch()
    monkeypatch.setattr(paths, "BUILT_IN_MODEL", path)
    return path


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [
        ([], None, ""),
        (["q.gguf"], "q.gguf", ""),
        (["blob", "hi"], "blob", "hi"),
        (["hello", "there"], None, "hello there"),
        (["hello", "q.gguf", "there"], "q.gguf", "hello there"),
        (["missing.GGUF", "hi"], "missing.GGUF", "hi"),
        (["-m", "blob", "q.gguf"], "blob", "q.gguf"),
        (["q.gguf", "other.gguf"], "q.gguf", "other.gguf"),
        (["q.gguf", "--seed", "1", "hi"], "q.gguf", "hi"),
        (["--", "-5 + 3?"], None, "-5 + 3?"),
        (["x" * 5000], None, "x" * 5000),
        (["a\0b"], None, "a\0b"),
    ],
)
def test_the_first_word_that_is_a_file_or_ends_in_gguf_is_the_model(
    folder: Path, words: list[str], model: str | None, prompt: str
) -> None:
    found = cli.parse(words)
    assert found.model == (model and str(folder / model))
    assert (found.prompt, found.one_shot) == (prompt, False)


def test_a_model_is_absolute_and_a_tilde_is_the_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert cli.parse(["-m", "~/q.gguf"]).model == str(folder / "q.gguf")


def test_p_asks_for_one_answer(folder: Path) -> None:
    found = cli.parse(["q.gguf", "-p", "q.gguf"])
    assert (found.model, found.prompt, found.one_shot) == (str(folder / "q.gguf"), "q.gguf", True)


def test_resume_takes_a_name_but_no_model(folder: Path) -> None:
    assert cli.parse([]).resume is None
    assert cli.parse(["--resume"]).resume == ""
    assert cli.parse(["--resume", "work"]).resume == "work"
    found = cli.parse(["--resume", "q.gguf"])
    assert (found.resume, found.model) == ("", str(folder / "q.gguf"))


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert cli.parse(["-p", b"caf\xe9".decode("utf-8", "surrogateescape")]).prompt == "caf\ufffd"


def test_options_are_settings(folder: Path) -> None:
    given = (
        "--temperature 0.5 --top-p 0.9 --top-k 40 --min-p 0.1 --presence-penalty 1.5 --repetition-penalty 1.1 --seed 7"
        " --max-tokens 99 --thinking off --thinking-budget 50 --system brief --context 2048 --ops cpu --threads 3"
        " --kv q8 --draft 3 --draft-vocabulary 9"
    )
    options = cli.complete(cli.parse(given.split()), Settings(), {})
    assert options.sampling == Sampling(0.5, 0.9, 40, 0.1, 1.5, 1.1, 7, 99)
    assert (options.thinking, options.thinking_budget, options.drafts) == (False, 50, 3)
    assert (options.system, options.system_override) == ("brief", "brief")
    assert options.load("/m") == Load("/m", 2048, "cpu", 3, kv_type="q8", draft_vocabulary=9)


@pytest.mark.parametrize(("word", "drafts"), [("auto", None), ("off", 0), ("1", 1), ("4", 4)])
def test_drafts_are_a_number_or_as_many_as_pay(word: str, drafts: int | None) -> None:
    assert cli.complete(cli.parse(["--draft", word]), Settings(draft="2"), {}).drafts == drafts


def test_budgets_of_the_settings_are_in_gigabytes() -> None:
    load = cli.complete(cli.parse([]), Settings(memory_budget=1.5, snapshot_budget=20.0), {}).load("/m")
    assert (load.memory_budget, load.snapshot_budget) == (1_500_000_000, 20_000_000_000)


def test_what_the_command_line_leaves_open_the_settings_say(built_in: Path) -> None:
    saved = Settings(temperature=0.1, top_k=5, thinking=True, system="saved", context_length=512, theme="dark")
    options = cli.complete(cli.parse(["--top-k", "9", "--thinking", "off"]), saved, {})
    assert options == ChatOptions(
        model=str(built_in),
        local_model=str(built_in),
        sampling=Sampling(temperature=0.1, top_k=9),
        thinking=False,
        given=options.given,
        system="saved",
        context_length=512,
        theme="dark",
    )
    assert set(options.given) == {"top_k", "thinking"}


def test_an_empty_system_prompt_overrides_that_of_the_settings() -> None:
    options = cli.complete(cli.parse(["--system", ""]), Settings(system="saved"), {})
    assert (options.system, options.system_override) == ("", "")


@pytest.mark.parametrize(
    ("words", "environment", "saved", "model"),
    [
        (["q.gguf"], "/e.gguf", "/s.gguf", "q.gguf"),
        ([], "/e.gguf", "/s.gguf", "/e.gguf"),
        ([], "", "/s.gguf", "/s.gguf"),
        ([], "relative.gguf", None, "relative.gguf"),
        ([], "", None, "tiny.gguf"),
        (["-m", "built-in"], "/e.gguf", "/s.gguf", "tiny.gguf"),
        ([], "/e.gguf", "built-in", "/e.gguf"),
        ([], "", "built-in", "tiny.gguf"),
    ],
)
def test_the_model_named_goes_before_the_environment_before_the_settings_before_the_built_in_one(
    folder: Path, words: list[str], environment: str, saved: str | None, model: str | None, built_in: Path
) -> None:
    options = cli.complete(cli.parse(words), Settings(model=saved), {"QWENCHAT_MODEL": environment})
    assert options.model == (model and str(folder / model))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--temperature", "hot"], "--temperature takes a number from 0 to 5, not 'hot'."),
        (["--temperature", "nan"], "--temperature takes a number from 0 to 5, not 'nan'."),
        (["--temperature=-1"], "--temperature takes a number from 0 to 5, not '-1'."),
        (["--top-p", "1.1"], "--top-p takes a number above 0 and up to 1, not '1.1'."),
        (["--top-k", "2.5"], "--top-k takes a whole number of at least 0, not '2.5'."),
        (["--max-tokens", "0"], "--max-tokens takes a whole number of at least 1, not '0'."),
        (["--context", "1"], "--context takes a whole number of at least 16, not '1'."),
        (["--context", f"{2**63}"], f"--context takes a whole number from 16 to {2**63 - 1}, not '{2**63}'."),
        (["--ops", "gpu"], "--ops takes one of auto, reference, cpu, triton, not 'gpu'."),
        (["--kv", "q4"], "--kv takes one of auto, q8, f16, f32, not 'q4'."),
        (["--draft", "5"], "--draft takes one of auto, off, 1, 2, 3, 4, not '5'."),
        (["--thinking", "maybe"], "--thinking takes on or off, not 'maybe'."),
        (["-p"], "-p/--prompt expected one argument."),
        (["--temp", "1"], "Unrecognized arguments: --temp"),
        (["-p", "one", "two"], "The prompt is given twice: by -p and as 'two'."),
    ],
)
def test_what_cannot_be_followed_is_a_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        cli.parse(words)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("words", [["missing.gguf"], ["-m", "missing"], ["-m", "x" * 5000]])
def test_a_named_model_must_exist(folder: Path, words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^There is no file /.*\.$"):
        cli.complete(cli.parse(words), Settings(), {})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-m", "."], r"^/.* is a folder, and not a model file\.$"),
        (["-m", ""], r"^--model takes a name, and here is none\.$"),
        (["-p", "hi", "--conversation", " "], r"^--conversation takes a name, and here is none\.$"),
    ],
)
def test_a_name_that_names_nothing_is_refused(folder: Path, words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        cli.complete(cli.parse(words), Settings(), {})


def test_every_setting_of_a_reply_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parse(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(Sampling):
        assert "--" + field.name.replace("_", "-") in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parse(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("qwenchat ")


# From the command line to the screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeApp:
    """What the chat is made of, without showing it."""

    return_code = 0

    def __init__(
        self, backend: LocalBackend, store: Store, saved: Settings, options: ChatOptions, keep: Callable[..., Any]
    ) -> None:
        OPENED[:] = [(saved, options)]
        KEEP[:] = [keep]

    def run(self) -> None:
        pass


OPENED: list[tuple[Settings, ChatOptions]] = []
KEEP: list[Callable[..., Any]] = []
Run = Callable[..., int]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The program in a terminal, with a home of its own, and an app that only notes what it is given."""
    module = types.ModuleType("chatapp.app")
    vars(module)["QwenChat"] = FakeApp
    monkeypatch.setitem(sys.modules, "chatapp.app", module)
    monkeypatch.setenv("QWENCHAT_HOME", str(folder / "home"))
    monkeypatch.delenv("QWENCHAT_MODEL", raising=False)

    def main(*words: str) -> int:
        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(sys, "stdout", Terminal())
        return __main__.main(words)

    return main


def options() -> ChatOptions:
    """What the app was opened with."""
    return OPENED[0][1]


def test_in_a_terminal_the_chat_opens_with_what_was_asked_for(run: Run, folder: Path) -> None:
    assert run("q.gguf", "hello", "--temperature", "0") == 0
    assert (options().model, options().prompt) == (str(folder / "q.gguf"), "hello")
    assert options().sampling.temperature == 0.0
    assert (options().conversation_id, options().notices, OPENED[0][0]) == (None, (), Settings())


def test_the_chat_keeps_states_on_disk_and_choices_in_the_settings(run: Run, folder: Path) -> None:
    run()
    assert options().snapshots == str(folder / "home" / "snapshots")
    KEEP[0]({"model": "/m.gguf"})
    assert settings.load(folder / "home" / "settings.toml")[0] == Settings(model="/m.gguf")


@pytest.mark.parametrize(("words", "named"), [(["q.gguf"], True), (["-m", "q.gguf"], True), ([], False)])
def test_a_model_of_the_environment_is_not_one_that_was_named(
    run: Run, words: list[str], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWENCHAT_MODEL", "q.gguf")
    run(*words)
    assert options().model_named is named


def test_the_chat_opens_with_the_built_in_model_and_does_not_take_it_for_chosen(run: Run, built_in: Path) -> None:
    assert run() == 0
    assert (options().model, options().model_named) == (str(built_in), False)


def test_the_chat_opens_without_a_model_too(run: Run, built_in: Path) -> None:
    built_in.unlink()
    assert run() == 0
    assert options().model is None


def test_resume_opens_the_latest_or_the_named_conversation(run: Run, folder: Path) -> None:
    store = Store(folder / "home" / "conversations.db")
    named, latest = store.create(name="work"), store.create()
    for conversation in (named, latest):
        store.add(conversation.id, None, "user", "hello")
    store.close()
    run("--resume")
    assert options().conversation_id == latest.id
    run("--resume", "work")
    assert options().conversation_id == named.id
    run("--conversation", "work")
    assert options().conversation_id == named.id


def test_resume_takes_a_title_and_tells_of_several(run: Run, folder: Path, capsys: Any) -> None:
    with closing(Store(folder / "home" / "conversations.db")) as store:
        one = store.create("My name is Marigold.")
        store.create("Rivers")
        store.create("Rivers")
    assert run("--resume", "my name") == 0
    assert options().conversation_id == one.id
    assert run("--resume", "rivers") == 2
    assert "'rivers' fits 2 conversations" in capsys.readouterr().err


def test_resume_without_a_conversation_begins_one(run: Run) -> None:
    assert run("--resume") == 0
    assert options().conversation_id is None
    assert options().notices == ("There is no earlier conversation: this is a new one.",)


def test_resume_of_an_unknown_conversation_is_a_sentence(run: Run, capsys: Any) -> None:
    assert run("--resume", "lost") == 2
    assert capsys.readouterr().err == "qwenchat: There is no conversation 'lost'.\n"


def test_the_chat_is_told_of_wrong_settings_and_of_a_damaged_file(run: Run, folder: Path) -> None:
    (folder / "home").mkdir()
    settings.update(folder / "home" / "settings.toml", {"top_k": 7})
    with (folder / "home" / "settings.toml").open("a") as file:
        file.write("colour = 1\n")
    (folder / "home" / "conversations.db").write_bytes(b"damaged" * 1000)
    assert run() == 0
    warning, notice = options().notices
    assert "'colour' is not a setting" in warning
    assert "was damaged" in notice
    assert options().sampling.top_k == 7


def test_a_data_folder_that_cannot_be_made_is_a_sentence(run: Run, folder: Path, capsys: Any) -> None:
    (folder / "home").touch()
    assert run() == 1
    assert capsys.readouterr().err == f"qwenchat: The folder {folder / 'home'} cannot be made: File exists.\n"


# Programs of their own


@pytest.mark.slow
def test_bench_measures_in_a_process_of_its_own_and_passes_its_exit_code_on(tmp_path: Path) -> None:
    def qwenchat(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "chatapp", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__init__.py").write_text("raise SystemExit('not ours')")
    helped = qwenchat("bench", "resume", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: qwenchat bench resume")
    wrong = qwenchat("bench", "nonsense")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "no benchmark and no file 'nonsense'; benchmarks are resume, draft, memory, speed" in wrong.stderr


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", 143)])
def test_a_bench_that_ends_by_itself_or_by_a_signal(end: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[-3:] == ["-m", "runtime.bench", "word"]
        return start([sys.executable, "-c", f"import os, sys; {end}"], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    assert __main__.main(["bench", "word"]) == code


def test_ctrl_c_in_a_bench_is_the_benchs_own_to_follow() -> None:
    """The terminal sends it to both; the exit code is that of the bench."""
    bench = "import signal, sys; signal.signal(2, lambda *_: sys.exit(7)); print('up', flush=True); signal.pause()"
    code = (
        "import subprocess, sys; from chatapp import __main__; start = subprocess.Popen;"
        f"subprocess.Popen = lambda command, **options: start([sys.executable, '-c', {bench!r}], **options);"
        "sys.exit(__main__.main(['bench']))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(20) == 7
    child.stdout.close()


def test_an_unforeseen_error_is_a_sentence_and_its_trace_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(words: object) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr("chatapp.cli.parse", broken)
    monkeypatch.setenv("QWENCHAT_HOME", str(tmp_path))
    assert __main__.main(["-p", "hi"]) == 1
    said = capsys.readouterr().err
    assert said == "qwenchat: It stopped on an unexpected error (RuntimeError: nobody thought of this).\n"
    assert "Traceback" in (tmp_path / "worker.log").read_text()


def test_with_no_model_at_all_there_is_a_sentence_on_how_to_get_one(
    built_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built_in.unlink()
    monkeypatch.setenv("QWENCHAT_HOME", str(built_in.parent))
    monkeypatch.delenv("QWENCHAT_MODEL", raising=False)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert __main__.main(["-p", "hi"]) == 2
    assert "qwenchat models advise" in capsys.readouterr().err


def test_a_broken_settings_file_is_named_even_where_no_model_opens(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('model = "m.gguf"\nmodel = "n.gguf"\n')
    found = subprocess.run(
        [sys.executable, "-P", "-m", "chatapp", "-p", "hi"],
        env={**os.environ, "QWENCHAT_HOME": str(tmp_path), "QWENCHAT_MODEL": "missing.gguf"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert found.returncode == 2
    assert "settings.toml" in found.stderr
    assert "There is no file" in found.stderr


def test_settings_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("\ufefftemperature = 0.5\n", encoding="utf-8")
    found, warnings = settings.load(path)
    assert (found.temperature, warnings) == (0.5, [])
