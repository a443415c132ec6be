"""Code blocks of a page: found, run in a directory of their own, compared with the output that the page shows.

A page is Markdown. Its fenced blocks mean:

    ```python       runs, all of a page in one namespace; with a `__main__` guard: as a script of its own
    ```text         right after a python block: what that printed, and the sentence of the error that ended it
    ```console      lines after "$ " run in a shell; the lines below them are what they print, errors too
    ```diff         is applied to a file that the page has shown before; the result is the file of its second line
    `name.py`:      alone on the line before a block: the block is that file; if examples/ has one, they must be equal
    <!-- not run: reason -->        on the line before a block: it is left alone
    <!-- numbers vary: reason -->   on the line before an output: any numbers will do where it shows one or a list

Blocks of other kinds are not run. In outputs `...` stands for anything, the number in a time such as "0.4 s" for any
number, and lines of progress ("[3/20] trial 2 stopped ...") for one or more of them, as they depend on timing.

    python tests/docs/blocks.py --check docs/guide/space.md    compares, and exits with 1 at the first difference
    python tests/docs/blocks.py docs/guide/space.md            writes the outputs of the page anew
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 240

_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(?P<name>[\w./-]+\.(?:py|toml))`:")
_SKIPPED = re.compile(r"<!-- not run: \S.*-->")
_VARYING = re.compile(r"<!-- numbers vary: \S.*-->")
_NUMBER = r"(?<![\w.])-?\d+(,\d{3})*(\.\d+)?(e-?\d+)?"
_PROGRESS = re.compile(r"(^\[\d+(/\d+)?\] trial .*\n(\.\.\.\n(?=\[\d))?)+", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"  # never an output to show
_END = "\x1e"  # between the outputs of two commands


@dataclass
class Block:
    """A fenced block, where it lies in the page, and the line of text before it."""

    kind: str
    body: str
    line: int
    start: int
    end: int
    before: str

    @property
    def file(self):
        found = _FILE.fullmatch(self.before)
        return found["name"] if found else None

    @property
    def varying(self):
        return _VARYING.fullmatch(self.before) is not None


@dataclass
class Mismatch(AssertionError):
    page: Path
    line: int
    expected: str
    got: str

    def __str__(self):
        return f"{self.page}:{self.line}: the page shows\n{self.expected}\nbut the block gave\n{self.got}"


def blocks_of(text):
    """Return the blocks of a page, those that are not to be run left out."""
    found = []
    for match in _FENCE.finditer(text):
        lines = text[: match.start()].rstrip("\n").splitlines() or [""]
        block = Block(
            kind=match["kind"],
            body=match["body"],
            line=text.count("\n", 0, match.start()) + 1,
            start=match.start("body"),
            end=match.end("body"),
            before=lines[-1].strip(),
        )
        if not _SKIPPED.fullmatch(block.before):
            found.append(block)
    return found


@dataclass
class Runner:
    """Runs the blocks of one page in `folder`; with `write` it notes the outputs instead of comparing them."""

    page: Path
    folder: Path
    write: bool = False
    changes: list[tuple[int, int, str]] = field(default_factory=list)

    def run(self):
        blocks = blocks_of(self.page.read_text(encoding="utf-8"))
        module = types.ModuleType("page")  # dataclasses look their module up
        sys.modules[module.__name__] = module
        sys.path.insert(0, str(self.folder))
        with contextlib.chdir(self.folder):
            for i, block in enumerate(blocks):
                self._run_block(block, blocks[i + 1] if i + 1 < len(blocks) else None, module.__dict__)

    def _run_block(self, block, following, namespace):
        if block.file is not None:
            self._save(block)
        elif block.kind == "python":
            shown = following is not None and following.kind == "text" and following.file is None
            got, error = self._script(block) if "__main__" in block.body else self._execute(block, namespace)
            if error is not None and (not shown or not _of_trainwright(error)):
                raise Mismatch(self.page, block.line, "no error, or one of Trainwright's own", got)
            if shown:
                self._compare(following, got)
        elif block.kind == "console":
            self._console(block)
        elif block.kind == "diff":
            self._patch(block)

    def _save(self, block):
        example = ROOT / "examples" / block.file
        if example.is_file() and example.read_text(encoding="utf-8") != block.body:
            raise Mismatch(self.page, block.line, block.body, f"which differs from examples/{block.file}")
        (self.folder / block.file).write_text(block.body, encoding="utf-8")

    def _patch(self, block):
        old, new = (line.split()[1] for line in block.body.splitlines()[:2])
        lines, result, at = (self.folder / old).read_text(encoding="utf-8").splitlines(), [], 0
        for line in block.body.splitlines()[2:]:
            if line.startswith("@@"):
                start = int(re.match(r"@@ -(\d+)", line)[1]) - 1
                result, at = result + lines[at:start], start
            elif line.startswith("+"):
                result.append(line[1:])
            elif lines[at] != line[1:]:
                raise Mismatch(self.page, block.line, line[1:], lines[at])
            else:
                result, at = result + ([] if line.startswith("-") else [lines[at]]), at + 1
        (self.folder / new).write_text("\n".join([*result, *lines[at:], ""]), encoding="utf-8")

    def _execute(self, block, namespace):
        out, error = io.StringIO(), None
        code = compile("\n" * block.line + block.body, str(self.page), "exec")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                exec(code, namespace)  # noqa: S102 -- that is what the page is for
            except Exception as caught:  # noqa: BLE001 -- the page may show what it raises
                error = caught
                out.write(f"{type(caught).__name__}: {caught}\n")
        return out.getvalue(), error

    def _script(self, block):
        path = self.folder / f"block_{block.line}.py"
        path.write_text(block.body, encoding="utf-8")
        done = self._shell(f"python {path.name}")
        return done.stdout, RuntimeError(done.stdout) if done.returncode else None

    def _console(self, block):
        commands = []  # (command, expected output)
        for line in block.body.splitlines(keepends=True):
            if line.startswith("$ "):
                commands.append([line[2:].rstrip("\n"), ""])
            elif not commands:
                raise Mismatch(self.page, block.line, "a line '$ command'", line)
            elif commands[-1][0].endswith("\\") and not commands[-1][1]:
                commands[-1][0] += "\n" + line.rstrip("\n")
            else:
                commands[-1][1] += line
        script = "".join(f"{command}\nstatus=$?; printf '{_END}'; (exit $status)\n" for command, _ in commands)
        outputs = self._shell(script).stdout.split(_END)[:-1]
        outputs += ["the shell ended before this command\n"] * (len(commands) - len(outputs))
        texts = []
        for (command, expected), got in zip(commands, outputs, strict=True):
            fits = matches(expected, got, varying=block.varying)
            if not fits and (not self.write or _TRACEBACK in got):
                raise Mismatch(self.page, block.line, f"$ {command}\n{expected}", got)
            texts.append(f"$ {command}\n{expected if fits else tidy(got)}")
        if self.write:
            self.changes.append((block.start, block.end, "".join(texts)))

    def _shell(self, script):
        return subprocess.run(
            ["bash", "-c", script],  # noqa: S607 -- the reader's own
            cwd=self.folder,
            env=environment(self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    def _compare(self, block, got):
        if matches(block.body, got, varying=block.varying):
            return
        if not self.write:
            raise Mismatch(self.page, block.line, block.body, got)
        self.changes.append((block.start, block.end, tidy(got)))

    def rewritten(self):
        """Return the page with the outputs that its blocks gave."""
        text = self.page.read_text(encoding="utf-8")
        for start, end, new in sorted(self.changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text


def environment(folder):
    """Return the environment of a page's shell: this interpreter as `python`, and the `trainwright` of this tree."""
    commands = folder / ".commands"
    if not commands.is_dir():
        commands.mkdir()
        programs = {
            "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
            "trainwright": f"#!{sys.executable}\nfrom trainwright.cli import main\n\nmain()\n",
        }
        for name, text in programs.items():
            (commands / name).write_text(text, encoding="utf-8")
            (commands / name).chmod(0o755)
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # tears lines
    return {
        **inherited,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "COLUMNS": "100",
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads of small models stand in each other's way on a busy machine
    }


def _of_trainwright(error):
    return any(kind.__name__ == "TrainwrightError" for kind in type(error).__mro__)


def tidy(text):
    """Return an output without blanks at the ends of its lines and without lines above or below it."""
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def matches(expected, got, *, varying=False):
    """Return whether an output is the one expected; with `varying`, whatever its numbers are."""
    texts = [_plain(text) for text in (expected, got)]
    if varying:
        texts = [re.sub(r"\b0(, 0)*,?(?=[])])", "0", re.sub(_NUMBER, "0", text)) for text in texts]
    pattern = re.escape(texts[0]).replace(r"\.\.\.", r"[\s\S]*?")
    return re.fullmatch(pattern, texts[1]) is not None


def _plain(text):
    text = _PROGRESS.sub("[progress]\n", tidy(text))
    return re.sub(r"(?<![\w.])\d+(\.\d+)?(?= s\b)", "0", text)


def main(arguments):
    """Check pages, or write their outputs anew; return the exit status."""
    check = "--check" in arguments
    sys.path.insert(0, str(ROOT / "src"))
    for name in [name for name in arguments if name != "--check"]:
        with tempfile.TemporaryDirectory() as place:
            runner = Runner(Path(name).resolve(), Path(place), write=not check)
            try:
                runner.run()
            except Mismatch as mismatch:
                sys.stderr.write(f"{mismatch}\n")
                return 1
            if not check:
                runner.page.write_text(runner.rewritten(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
