"""`qwenchat`, or `python -m chatapp`: the command line becomes the chat, or one answer on stdout."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp import cli, paths, settings
from chatapp.backend import Backend
from chatapp.backends import Backends
from chatapp.cli import Arguments, UsageError
from chatapp.local import WORKER, LocalBackend, environment
from chatapp.log import Log
from chatapp.options import ChatOptions
from chatapp.quick_start import quick_start
from chatapp.remote import profiles
from chatapp.remote.address import is_address
from chatapp.sanitize import clean
from chatapp.settings import Settings
from chatapp.store import AmbiguousError, Store, StoreError
from chatapp.switching import Switching
from chatapp.thread import source_of

if TYPE_CHECKING:
    from chatapp.app import QwenChat

# A program of the user's choice in place of the worker, as a shell would split it: for tests, and for other engines.
WORKER_VARIABLE = "QWENCHAT_WORKER"


def run_module(module: str, words: Sequence[str]) -> int:
    """A part of the runtime that speaks to the terminal itself, in a process of its own."""
    command = [sys.executable, "-P", "-m", module, *words]
    # The terminal sends Ctrl+C to the child as well, which ends as it likes.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.run(command, env=environment()).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def look_after_models(words: Sequence[str]) -> int:
    """`qwenchat models …`, which looks into the folders of the settings as well."""
    folders = settings.load(paths.settings_path())[0].model_folders
    if folders:
        os.environ.setdefault("QWENCHAT_MODEL_FOLDERS", folders)
    return run_module("runtime.hub", words)


def _exchange(name: str, words: Sequence[str]) -> int:
    """Conversations into files and back."""
    program = importlib.import_module("chatapp.exchange.program")
    return int(getattr(program, name)(words))


def look_after_machine(words: Sequence[str]) -> int:
    """`qwenchat doctor`."""
    from chatapp import doctor

    return doctor.run(words)


def bench(words: Sequence[str]) -> int:
    """The benchmarks: of the screen in this process, those of the runtime in one of its own."""
    if words[:1] == ["ui"]:
        from chatapp.bench import ui

        return ui.main(words[1:])
    return run_module("runtime.bench", words)


# First words that are not a prompt but a program of their own, given the words after it.
SUBCOMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "bench": bench,
    "models": look_after_models,
    "doctor": look_after_machine,
    "export": lambda words: _exchange("export", words),
    "import": lambda words: _exchange("import_", words),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 for a failure, 2 for a command line that cannot be followed, 128 + n for signal n."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    try:
        if words and words[0] in SUBCOMMANDS:
            return SUBCOMMANDS[words[0]](words[1:])
        return _run(cli.parse(words))
    except (UsageError, StoreError) as error:
        print(f"qwenchat: {clean(str(error))}", file=sys.stderr)
        if "--json" in words:
            print(json.dumps({"error": str(error)}, indent=2))
        return 2 if isinstance(error, UsageError | AmbiguousError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        return 128 + signal.SIGPIPE
    except Exception as error:
        _report(error)
        return 1
    finally:
        _leave_quietly()


def _report(error: Exception) -> None:
    """A fault of ours, or of the machine, that nobody foresaw: a sentence, and its trace in the log."""
    with contextlib.suppress(Exception):
        Log(paths.log_path()).note("".join(traceback.format_exception(error)))
    with contextlib.suppress(OSError):
        print(
            f"qwenchat: It stopped on an unexpected error ({type(error).__name__}: {clean(str(error))}).",
            file=sys.stderr,
        )


def _run(arguments: Arguments) -> int:
    saved, warnings = settings.load(paths.settings_path())
    servers, problems = profiles.load(saved.servers)
    options = dataclasses.replace(
        cli.complete(arguments, saved, os.environ),
        notices=(*warnings, *problems),
        servers={name: profile.url for name, profile in servers.items()},
    )
    screen = sys.stdin.isatty() and sys.stdout.isatty() and not arguments.one_shot and not arguments.json
    if not screen:
        return _answer(arguments, options, servers)
    if os.environ.get("TERM") == "dumb":
        raise UsageError("This terminal (TERM=dumb) cannot show the chat; -p TEXT answers without it.")
    return _chat(arguments, options, saved, servers)


def _chat(arguments: Arguments, options: ChatOptions, saved: Settings, servers: Mapping[str, profiles.Profile]) -> int:
    gc.disable()  # all that is made up to the first paint stays, so looking for garbage only delays it
    with ThreadPoolExecutor(1) as beside:
        opening = beside.submit(Store, paths.database_path())  # it waits for the disk, and for more if it is new
        screen = _screen()  # its import takes longer than all else here
        store = opening.result()
    options = _with_conversation(options, arguments, store)
    options = dataclasses.replace(options, snapshots=str(paths.snapshots_path()))
    if arguments.conversation:
        options = dataclasses.replace(options, conversation_id=store.named(arguments.conversation).id)
    options = _where_it_was(options, store)
    if sys.__stderr__ is None or not sys.__stderr__.isatty():  # there Textual draws, and `2>file` shall keep the screen
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]
    app = screen(_backend(servers), store, saved, options, keep=partial(settings.update, paths.settings_path()))
    app.run()
    store.close()
    return app.return_code or 0


def _screen() -> type[QwenChat]:
    with quick_start():
        from chatapp.app import QwenChat

        return QwenChat


def _answer(arguments: Arguments, options: ChatOptions, servers: Mapping[str, profiles.Profile]) -> int:
    from chatapp.oneshot import OneShot, Output

    output = Output(sys.stdout, sys.stderr, as_json=arguments.json)
    prompt, notices = _prompt(options.prompt)
    for notice in (*options.notices, *notices):
        output.notice(notice)
    options = dataclasses.replace(options, notices=())
    store = None
    if arguments.conversation or arguments.resume is not None:
        store = Store(paths.database_path())
        options = _with_conversation(options, arguments, store)
        options = dataclasses.replace(options, snapshots=str(paths.snapshots_path()))
        if found := store.by_name(arguments.conversation) if arguments.conversation else None:
            options = dataclasses.replace(options, conversation_id=found.id)
        options = _where_it_was(options, store)
    if options.model is None:
        raise UsageError(cli.NO_MODEL)
    if not is_address(options.model) and not Path(options.model).is_file():
        raise UsageError(cli.no_file(options.model))
    if options.model == paths.built_in_model():
        output.notice(cli.BUILT_IN)
    for notice in options.notices:
        output.notice(notice)
    try:
        backend = _backend(servers, hold=not arguments.json)
        return asyncio.run(OneShot(backend, options, output, store, arguments.conversation or "").run(prompt))
    finally:
        if store is not None:
            store.close()


def _prompt(asked: str) -> tuple[str, list[str]]:
    """The question and, below it, the text that is piped in; and sentences about that text."""
    notices = []
    try:
        piped = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    except OSError as error:
        raise UsageError(f"The text on stdin cannot be read: {error.strerror}.") from error
    try:
        text = piped.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = piped.decode("utf-8-sig", "replace")
        notices.append("The text on stdin is not UTF-8: what could not be read is replaced by \ufffd.")
    prompt = "\n\n".join(part for part in (asked.strip(), text.rstrip()) if part.strip())
    if not prompt:
        raise UsageError("There is no prompt: give one with -p, as a word, or on stdin.")
    return prompt, notices


def _with_conversation(options: ChatOptions, arguments: Arguments, store: Store) -> ChatOptions:
    """The options with the conversation that --resume asks for, and with what the store has to say."""
    notices = [*options.notices, *([store.notice] if store.notice else [])]
    found = None
    if arguments.resume is not None:
        if arguments.conversation:
            raise UsageError("--resume and --conversation exclude each other.")
        found = store.find(arguments.resume) if arguments.resume else store.latest()
        if found is None and arguments.resume:
            raise UsageError(f"There is no conversation {arguments.resume!r}.")
        if found is None:
            notices.append("There is no earlier conversation: this is a new one.")
    return dataclasses.replace(options, conversation_id=found.id if found else None, notices=tuple(notices))


def _where_it_was(options: ChatOptions, store: Store) -> ChatOptions:
    """Unless the command line names a model: a conversation with a server goes on there."""
    if options.model_named or options.conversation_id is None:
        return options
    source = source_of(store.thread(options.conversation_id))
    return dataclasses.replace(options, model=source) if source and is_address(source) else options


def _backend(servers: Mapping[str, profiles.Profile], *, hold: bool = False) -> Backends:
    """This machine, and servers once one is asked for; `hold`: see `RemoteBackend`."""
    command = shlex.split(os.environ.get(WORKER_VARIABLE, "")) or WORKER

    def remote() -> Backend:
        from chatapp.remote.backend import RemoteBackend

        return RemoteBackend(servers, os.environ, Log(paths.log_path()), hold=hold)

    return Backends(
        Switching(lambda: LocalBackend(command, paths.log_path(), snapshots=paths.snapshots_path())), remote
    )


def _open_standard_streams() -> None:
    """A closed stdin reads as empty, and what is written to a closed stdout is dropped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _leave_quietly() -> None:
    """What nobody reads any more must not raise once again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
