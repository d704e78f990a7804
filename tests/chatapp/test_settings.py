"""The settings file: what is read, what is refused, what a write leaves alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chatapp import paths, settings
from chatapp.settings import FIELDS, Settings, SettingsError
from runtime.protocol import Sampling


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "settings.toml"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def values(found: Settings) -> dict[str, settings.Value]:
    return {name: getattr(found, name) for name in FIELDS}


def test_without_a_file_all_is_left_to_the_presets(path: Path) -> None:
    assert settings.load(path) == (Settings(), [])
    assert Settings().sampling() == Sampling()
    assert not path.exists()


def test_every_setting_is_described_in_one_sentence() -> None:
    for name, field in FIELDS.items():
        description = field.metadata["description"]
        assert description.endswith("."), name
        assert description.count(". ") == 0, name


def test_the_sampling_values_are_all_settings() -> None:
    assert {field.name for field in dataclasses.fields(Sampling)} <= FIELDS.keys()


def test_values_are_read_as_their_types(path: Path) -> None:
    write(path, 'model = "/m/q.gguf"\nthinking = false\ntemperature = 1\ntop_k = 20\nops = "cpu"\n')
    found, warnings = settings.load(path)
    assert warnings == []
    assert found == Settings(model="/m/q.gguf", thinking=False, temperature=1.0, top_k=20, ops="cpu")
    assert type(found.temperature) is float
    assert found.sampling() == Sampling(temperature=1.0, top_k=20)


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("top_p", "0,5", 0.5),
        ("top_k", " 7 ", 7),
        ("thinking", "ON", True),
        ("draft", "2", "2"),
        ("system", "a b", "a b"),
    ],
)
def test_a_word_is_read_as_the_setting_takes_it(name: str, word: str, value: settings.Value) -> None:
    assert settings.read(name, word) == value


@pytest.mark.parametrize(("name", "word"), [("top_p", "0"), ("top_k", "1.5"), ("thinking", "maybe"), ("ops", "gpu")])
def test_a_word_that_it_does_not_take_is_named(name: str, word: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} takes .*, not '{word}'"):
        settings.read(name, word)


@pytest.mark.parametrize("value", ["2", '"2"'])
def test_a_number_of_drafts_may_be_written_as_one(path: Path, value: str) -> None:
    write(path, f"draft = {value}\n")
    assert settings.load(path) == (Settings(draft="2"), [])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('thinking = "yes"', "thinking takes true or false, not 'yes'."),
        ("top_k = 1.5", "top_k takes a whole number of at least 0, not 1.5."),
        ("top_k = true", "top_k takes a whole number of at least 0, not True."),
        ("top_p = 1.2", "top_p takes a number above 0 and up to 1, not 1.2."),
        ("temperature = nan", "temperature takes a number from 0 to 5, not nan."),
        ("temperature = inf", "temperature takes a number from 0 to 5, not inf."),
        ("system = 3", "system takes a text, not 3."),
        ('ops = "gpu"', "ops takes one of auto, reference, cpu, triton, not 'gpu'."),
        ("memory_budget = -0.5", "memory_budget takes a number from 0 to 100000, not -0.5."),
        ("draft = 5", "draft takes one of auto, off, 1, 2, 3, 4, not 5."),
        ("draft = true", "draft takes one of auto, off, 1, 2, 3, 4, not True."),
        ("threads = [1]", "threads takes a whole number from 1 to 1024, not [1]."),
        (f"top_k = {10**400}", f"top_k takes a whole number from 0 to {2**63 - 1}, not 1{'0' * 56}…."),
        (f"temperature = {10**400}", f"temperature takes a number from 0 to 5, not 1{'0' * 56}…."),
        (f"top_k = {2**63}", f"top_k takes a whole number from 0 to {2**63 - 1}, not {2**63}."),
        ("top_k = -1", "top_k takes a whole number of at least 0, not -1."),
    ],
)
def test_a_wrong_value_is_named_and_the_rest_is_used(path: Path, line: str, sentence: str) -> None:
    write(path, f"{line}\nmax_tokens = 7\n")
    found, warnings = settings.load(path)
    assert warnings == [f"{path}: {sentence} The default is used."]
    assert found == Settings(max_tokens=7)


def test_an_unknown_key_is_named_and_ignored(path: Path) -> None:
    write(path, "temprature = 1.0\n[colours]\nred = 1\n")
    found, warnings = settings.load(path)
    assert found == Settings()
    assert warnings == [
        f"{path}: 'temprature' is not a setting; it is ignored.",
        f"{path}: 'colours' is not a setting; it is ignored.",
    ]


@pytest.mark.parametrize(
    "content",
    [b"theme = \n", b"\xff\xfe", b'theme = "a"\ntheme = "b"\n', b"top_k = " + b"9" * 5000, b"x = " + b"[" * 100_000],
)
def test_a_file_that_is_no_toml_is_a_warning_and_never_overwritten(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    found, [warning] = settings.load(path)
    assert found == Settings()
    assert warning.startswith(f"The settings file {path} is not valid TOML: ")
    with pytest.raises(SettingsError, match="is not valid TOML"):
        settings.update(path, {"theme": "dark"})
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_is_a_warning(path: Path) -> None:
    path.mkdir(parents=True)
    assert settings.load(path) == (
        Settings(),
        [f"The settings file {path} cannot be read: Is a directory. The default settings are used."],
    )


def test_a_write_keeps_comments_order_and_unknown_keys(path: Path) -> None:
    write(path, '# mine\ntheme = "light"  # by day\nfuture = 1\n\ntop_k = 20\n')
    found = settings.update(path, {"theme": "dark", "thinking": True})
    assert found == Settings(theme="dark", thinking=True, top_k=20)
    assert path.read_text() == '# mine\ntheme = "dark"  # by day\nfuture = 1\n\ntop_k = 20\nthinking = true\n'


def test_a_write_into_a_file_with_tables_stays_outside_them(path: Path) -> None:
    write(path, "[future]\nx = 1\n")
    assert settings.update(path, {"theme": "dark"}) == Settings(theme="dark")
    assert settings.load(path)[0].theme == "dark"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# mine\n[keys]\n", "top_k = 30\n\n# mine\n[keys]\n"),
        ("# all\n\n# mine\n# too\n[keys]\n", "# all\n\ntop_k = 30\n\n# mine\n# too\n[keys]\n"),
        ("seed = 1\n\n# mine\n[keys]\n", "seed = 1\ntop_k = 30\n\n# mine\n[keys]\n"),
        ("seed = 1  # one\n# mine\n [keys]\n", "seed = 1  # one\ntop_k = 30\n# mine\n [keys]\n"),
        ("future = [\n[1],\n# x\n]\n[keys]\n", "future = [\n[1],\n# x\n]\ntop_k = 30\n[keys]\n"),
        ('future = """\n[a]\n# b"""\n# c\n[keys]\n', 'future = """\n[a]\n# b"""\ntop_k = 30\n# c\n[keys]\n'),
        ("seed = 1\n# mine", "seed = 1\n# mine\ntop_k = 30\n"),
    ],
    ids=["comment", "two comments", "after a key", "close", "list", "text", "no table"],
)
def test_a_comment_above_a_table_stays_there(path: Path, before: str, after: str) -> None:
    write(path, before)
    assert settings.update(path, {"top_k": 30}).top_k == 30
    assert path.read_text() == after


def test_none_takes_a_key_out(path: Path) -> None:
    settings.update(path, {"seed": 7, "theme": "dark"})
    assert settings.update(path, {"seed": None}) == Settings(theme="dark")
    assert path.read_text() == 'theme = "dark"\n'


def test_what_changes_nothing_is_not_written(path: Path) -> None:
    settings.update(path, {"theme": "dark"})
    before = path.stat()
    assert settings.update(path, {"theme": "dark", "seed": None}) == Settings(theme="dark")
    assert path.stat().st_ino == before.st_ino


def test_two_windows_writing_different_settings_keep_both(path: Path) -> None:
    settings.update(path, {"theme": "dark"})
    settings.update(path, {"top_k": 5})
    assert settings.load(path)[0] == Settings(theme="dark", top_k=5)


def test_every_setting_survives_its_file(path: Path) -> None:
    examples: dict[type, settings.Value] = {str: 'a"b\\\n# 世 \t', int: 20, float: 0.5, bool: False}
    kinds = {name: settings.kind(name) for name in FIELDS}
    changes = {name: words[-1] if words else examples[kind] for name, (kind, words) in kinds.items()}
    assert values(settings.update(path, changes)) == changes
    assert values(settings.load(path)[0]) == changes


@pytest.mark.parametrize(("name", "value"), [("top_p", 2.0), ("thinking", "on"), ("colour", "red"), ("ops", None)])
def test_a_wrong_value_is_not_written(path: Path, name: str, value: settings.Value) -> None:
    with pytest.raises(SettingsError, match=name):
        settings.update(path, {"theme": "dark", name: value})
    assert not path.exists()


def test_the_table_of_keys_is_read_and_survives_a_write(path: Path) -> None:
    write(path, '[keys]\n"chat.new" = "f2"  # as elsewhere\n')
    assert settings.load(path) == (Settings(keys={"chat.new": "f2"}), [])
    settings.update(path, {"theme": "dark"})
    assert settings.load(path) == (Settings(theme="dark", keys={"chat.new": "f2"}), [])
    assert "# as elsewhere" in path.read_text()


def test_keys_that_are_no_table_are_told(path: Path) -> None:
    write(path, 'keys = "vim"\n')
    assert settings.load(path) == (Settings(), [f"{path}: keys is a table, [keys], and nothing else; it is ignored."])


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("top_k = 1\n")
    path.parent.mkdir()
    path.symlink_to(real)
    settings.update(path, {"top_k": 2})
    assert path.is_symlink()
    assert real.read_text() == "top_k = 2\n"


def test_a_write_leaves_no_other_files(path: Path) -> None:
    settings.update(path, {"theme": "dark"})
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(SettingsError, match=r"cannot be (read|written): .*\."):
        settings.update(tmp_path / "link" / "settings.toml", {"theme": "dark"})


def test_one_variable_moves_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWENCHAT_HOME", str(tmp_path))
    assert paths.settings_path() == tmp_path / "settings.toml"
    assert paths.database_path() == tmp_path / "conversations.db"
    assert paths.log_path() == tmp_path / "worker.log"
    assert paths.snapshots_path() == tmp_path / "snapshots"
    monkeypatch.delenv("QWENCHAT_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    assert "qwenchat" in paths.settings_path().parts
    assert "qwenchat" in paths.database_path().parts


def test_what_holds_where_nothing_is_set_is_told() -> None:
    assert all(field.default is not None or field.metadata["unset"] for field in FIELDS.values())
