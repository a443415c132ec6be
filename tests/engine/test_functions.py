"""Training functions by name: which ones workers find again, and the sentence for those that they cannot."""

import os
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import trainings

from trainwright.engine.function_reference import FunctionReference, load_function
from trainwright.errors import EngineError

STUDY = """
study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min val_loss", searcher=tw.RandomSearcher())
study.run({train}, trials=2, engine=tw.Local(), progress=False)
print([trial.values["val_loss"] for trial in study.trials])
"""


def python(*arguments, folder, stdin=None, **files):
    """Write files of code into `folder`, run Python there, and return its exit status and what it said."""
    for name, code in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


class TestReferences:
    @pytest.mark.parametrize("function", [trainings.plain, trainings.Trainer.static, os.path.join])
    def test_top_level_names_are_found_again(self, function):
        assert FunctionReference.of(function).load() is function

    def test_lambdas_and_local_functions_are_refused_by_name(self):
        def local(trial):
            """Stay here."""

        for function in (lambda trial: None, local):
            with pytest.raises(
                EngineError, match=r"^train: .*<locals>.*move it to the top of a module, or use tw.Local"
            ):
                FunctionReference.of(function)

    @pytest.mark.parametrize(
        "function",
        [trainings.Trainer().method, trainings.Trainer(), partial(trainings.plain), trainings.decorated],
        ids=["bound method", "callable object", "partial", "undecorated twin"],
    )
    def test_names_that_lead_elsewhere_are_refused(self, function):
        """A worker would run something else under that name: refused, with the way out."""
        with pytest.raises(
            EngineError, match=r"^train: no name at the top of a module leads to .*; put a plain function"
        ):
            FunctionReference.of(function)


class TestScripts:
    def test_without_main_guard(self, tmp_path):
        """A worker loads the script up to study.run and no farther; what stands above is done there too."""
        code = """
            import os
            import trainwright as tw
            FACTOR = 0.5

            def train(trial):
                return FACTOR

            print("before")
        """
        status, out, err = python(
            "script.py", folder=tmp_path, script=textwrap.dedent(code) + STUDY.format(train="train")
        )
        assert (status, err) == (0, "")
        assert out.splitlines() == ["before", "before", "[0.5, 0.5]"]

    def test_with_main_guard_and_arguments(self, tmp_path):
        """The script's own arguments are there when a worker loads it."""
        code = """
            import argparse
            import trainwright as tw

            parser = argparse.ArgumentParser()
            parser.add_argument("--loss", type=float, required=True)
            loss = parser.parse_args().loss

            def train(trial):
                trial.report(val_loss=loss)

            if __name__ == "__main__":
        """
        script = textwrap.dedent(code) + textwrap.indent(STUDY.format(train="train"), "    ")
        status, out, err = python("script.py", "--loss", "0.25", folder=tmp_path, script=script)
        assert (status, out, err) == (0, "[0.25, 0.25]", "")

    def test_run_as_a_module(self, tmp_path):
        """`python -m package.module` works, with or without a guard, relative imports included."""
        code = "import trainwright as tw\nfrom .losses import loss\n\ndef train(trial):\n    return loss\n"
        status, out, err = python(
            "-m",
            "package.script",
            folder=tmp_path,
            package____init__="",
            package__losses="loss = 0.75",
            package__script=code + STUDY.format(train="train"),
        )
        assert (status, out, err) == (0, "[0.75, 0.75]", "")

    def test_a_module_on_a_path_that_the_script_sets(self, tmp_path):
        """Workers look where the driver looks."""
        code = "import sys\nimport trainwright as tw\nsys.path.append('hidden')\nimport mine\n"
        status, out, err = python(
            "script.py",
            folder=tmp_path,
            script=code + STUDY.format(train="mine.train"),
            hidden__mine="def train(trial):\n    return 0.125\n",
        )
        assert (status, out, err) == (0, "[0.125, 0.125]", "")

    def test_defined_after_the_first_run(self, tmp_path):
        """Without a guard a worker cannot see what follows the first run: the failure says what to do."""
        code = "import trainwright as tw\ndef train(trial):\n    return 1.0\n"
        after = "def other(trial):\n    return 2.0\n"
        script = code + STUDY.format(train="train") + after + STUDY.format(train="other")
        status, _, err = python("script.py", folder=tmp_path, script=script)
        assert status == 1
        assert "script.py defines no 'other' before its first study.run; define it above, or put the runs under" in err

    @pytest.mark.parametrize("how", ["-c", "-"])
    def test_typed_into_a_session(self, tmp_path, how):
        """A function without a file is refused before anything runs."""
        code = "import trainwright as tw\ndef train(trial):\n    return 1.0\n" + STUDY.format(train="train")
        arguments, stdin = (["-c", code], None) if how == "-c" else (["-"], code)
        status, out, err = python(*arguments, folder=tmp_path, stdin=stdin)
        assert (status, out) == (1, "")
        assert err.splitlines()[-1].startswith(
            "trainwright.errors.EngineError: train: train was typed into an interactive session"
        )


class TestNames:
    """What `load_function` makes of "module:function"."""

    @pytest.mark.parametrize(
        ("source", "sentence"),
        [
            ("import nowhere\n", r"ModuleNotFoundError: No module named 'nowhere' \(NAME\.py, line 1\)"),
            ("\ndef train(:\n", r"SyntaxError: invalid syntax \(NAME\.py, line 2\)"),
            ("def f():\n    1 / 0\nf()\n", r"ZeroDivisionError: division by zero \(NAME\.py, line 2\)"),
        ],
    )
    def test_a_module_that_fails(self, tmp_path, monkeypatch, source, sentence):
        """Its own mistake is told, with the line."""
        name = f"failing_{source.count(chr(32))}_{len(source)}"
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(EngineError, match=f"module {name!r} cannot be imported: " + sentence.replace("NAME", name)):
            load_function(f"{name}:train")

    def test_finds(self):
        assert load_function("os.path:join") is os.path.join

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("train", "train: got 'train'; allowed: 'module:function', such as 'my_project.training:train'"),
            (":train", "train: got ':train'; allowed: 'module:function', such as 'my_project.training:train'"),
            (5, "train: got 5; allowed: 'module:function', such as 'my_project.training:train'"),
            (".near:f", "train: '.near' is no module's name; allowed: 'module:function', found '.near:f'"),
            ("no_such:f", "train: there is no module 'no_such' on the path; put its file beside the study file"),
            ("os.no_such:f", "train: there is no module 'os.no_such' on the path; put its file beside the study file"),
            (
                "trainings:plan",
                "train: trainings has no 'plan'; functions there: Trainer, decorated, does, draws_of_torch, plain",
            ),
        ],
    )
    def test_sentences(self, text, sentence):
        with pytest.raises(EngineError) as caught:
            load_function(text)
        assert str(caught.value).startswith(sentence)
