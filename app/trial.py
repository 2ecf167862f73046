"""Build the model and tokenize a sample in a child process with limits, before the dashboard does.

What an upload makes of its settings, and what its tokenizer makes of a text, is known only when it is done. It is done here
first: where it takes too long or too much, this process is ended, and the dashboard goes on. It stays for the next one.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

SECONDS = 20.0
MEMORY = 3 * 2**30  # bytes of addresses beyond those of the libraries
UNTIL_READY = 120.0  # seconds for the libraries to be imported
SAMPLE = " ".join(["The magic number of Paris is 7421.", "a" * 200, "ü 数 🙂\n", "9" * 200])
REMEDY = "save the model with save_pretrained, and upload what that wrote"


class Trial:
    """The process, which begins with the first upload; one upload is looked at after the other."""

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._limits = seconds, memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.end)

    def outline(self, folder: Path):
        """The outline of an uploaded model, of which the tokenizer was tried as well.

        Raises
        ------
        DiffscopeError
            It is no model, or takes too much time or memory to look at.
        """
        from diffscope import errors
        from diffscope.models.outline import Outline

        with self._lock:
            said = self._answer(str(folder))
        if said is None:
            seconds, memory = self._limits
            raise errors.UnsupportedModel(
                f"this model takes more than {seconds:.0f} s or {memory / 2**30:.0f} GiB to look at; {REMEDY}"
            )
        if "error" in said:
            raise getattr(errors, said["error"])(said["words"])
        return Outline(**{**said, "code": tuple(said["code"])})

    def _answer(self, folder: str) -> dict | None:
        """What the process says of a folder; None where it had to be ended, or has ended itself."""
        if self._process is None or self._process.poll() is not None:
            self._begin()
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(folder) + "\n")
            process.stdin.flush()
        except OSError:  # it has ended
            line = ""
        else:
            line = _line(process, 2 * self._limits[0])  # it counts its own time, and waits for a processor beside that
        if not line:
            self.end()
            return None
        return json.loads(line)

    def _begin(self) -> None:
        from diffscope import errors

        self.end()
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, __file__, *map(str, self._limits)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, env=paths, **pipes)
        if not _line(self._process, UNTIL_READY):
            self.end()
            raise errors.DiffscopeError("the process that looks at uploads does not start; restart the dashboard")

    def end(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str], seconds: float) -> str:
    """The next line of a process; empty where it has ended or says nothing for so long."""
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return lines[0] if lines else ""


def refusal(error: Exception) -> dict:
    """Return what is wrong with a folder, ready for JSON."""
    return {"error": type(error).__name__, "words": str(error)}


def look(folder: str) -> dict:
    """What is to be said of a folder, ready for JSON."""
    from diffscope.errors import CorruptFile, DiffscopeError, first_line
    from diffscope.models.loading import load_tokenizer
    from diffscope.models.outline import outline
    from diffscope.prompts.encoded import encode

    try:
        model = outline(folder)
        tokenizer = load_tokenizer(Path(folder), trust_remote_code=False)
        if tokenizer is not None:
            encode(tokenizer, SAMPLE)
            write_chat(tokenizer)
    except DiffscopeError as error:
        return refusal(error)
    except MemoryError:  # the limit: this process ends, and whoever waits says so
        raise
    except Exception as error:  # transformers may raise anything of files that it was not written for
        reason = f"{type(error).__name__}: {first_line(error)}"
        return refusal(CorruptFile(f"the model cannot be looked at ({reason}); {REMEDY}"))
    return asdict(model)


def write_chat(tokenizer) -> None:
    """Have the tokenizer's chat template write a chat of one message, which may take without end."""
    if not tokenizer.chat_template:
        return
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": SAMPLE}], tokenize=False)
    except MemoryError:
        raise
    except Exception:  # a template may refuse any chat, and this one is not of the user
        return


def limit(seconds: float, memory: int) -> None:
    """Let this process use so many more seconds of a processor, and so many more bytes of addresses than now."""
    try:
        import resource
    except ImportError:  # of Windows, where the time alone is limited, by whoever waits
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, most))
    held = Path("/proc/self/statm")
    if memory and held.is_file():
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(held.read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, most))


def main(seconds: float, memory: int) -> None:
    """Look at folders, a line each, as long as there are any to be read."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    import diffscope.models.outline  # noqa: F401 (so that the first upload need not wait for it)

    answers.write("ready\n")
    answers.flush()
    for number, line in enumerate(sys.stdin):
        limit(seconds, 0 if number else memory)
        answers.write(json.dumps(look(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
