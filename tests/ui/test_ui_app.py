"""What the page's server tells, to whom, and what it refuses."""

import json
import shutil

import pytest

from trainwright.errors import InputError
from trainwright.http_security import Guard
from trainwright.ledger import DirectoryLedger
from trainwright.ui.study_follower import StudyFollower, StudyRegistry

httpx = pytest.importorskip("httpx", reason="needs httpx")
pytest.importorskip("fastapi", reason="needs the extra ui")

from trainwright.ui.app import POLICY, application  # noqa: E402 -- after the check


class Client:
    """Asks an application without a socket."""

    def __init__(self, app, base="http://127.0.0.1:8765"):
        self.app, self.base = app, base

    def ask(self, path, method="GET", **headers):
        import asyncio

        async def once():
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url=self.base) as client:
                return await client.request(method, path, headers=headers)

        return asyncio.run(once())

    def told(self, path):
        answer = self.ask(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def client(registry, until):
    made = Client(
        Guard(application(registry), host="127.0.0.1", token=None, headers={"content-security-policy": POLICY})
    )
    until(lambda: made.told("/api/studies")["studies"][0]["loaded"])
    return made


@pytest.fixture
def base(client):
    return f"/api/studies/{client.told('/api/studies')['studies'][0]['id']}"


class TestWhatIsTold:
    def test_studies_under_a_folder_have_names_of_our_own(self, client):
        told = client.told("/api/studies")
        assert not told["single"]
        [study] = told["studies"]
        assert (study["name"], study["trials"], study["results"]) == ("digits", 14, 12)
        assert "/" not in study["id"]

    def test_a_study(self, client, base):
        told = client.told(base)
        assert told["objectives"] == ["min val_loss"]
        assert told["counts"] == {"complete": 12, "running": 1, "failed": 1}
        assert told["best"]["trial"] == 0
        assert told["failures"][0]["message"] == "<b>no</b> & way"
        assert told["parameters"] == ["lr", "optimizer"]

    def test_rows_are_sorted_filtered_and_cut(self, client, base):
        told = client.told(f"{base}/trials?sort=rank&limit=3")
        assert [row["trial"] for row in told["rows"]] == [0, 1, 2]
        assert (told["total"], told["matching"]) == (14, 14)
        told = client.told(f"{base}/trials?sort=val_loss&descending=true&words=complete%20val_loss%3C0.3&offset=1")
        assert [row["trial"] for row in told["rows"]] == [3, 2, 1, 0]
        assert client.told(f"{base}/trials?words=12")["rows"][0]["devices"] == ["cuda:0", "cuda:1"]

    @pytest.mark.parametrize(
        ("query", "why"),
        [
            ("sort=nothing", "'nothing' is no column; there are trial, state"),
            ("words=lr%3Cabc", "'abc' is no number"),
            ("words=%3F%3F", "'??' is no filter; write NAME<VALUE"),
            ("words=" + "+".join(["1"] * 11), "the filter has 11 terms; allowed: 10"),
        ],
    )
    def test_a_query_that_makes_no_sense_is_refused_in_a_sentence(self, client, base, query, why):
        answer = client.ask(f"{base}/trials?{query}")
        assert answer.status_code == 400
        assert why in answer.json()["error"]

    def test_a_trial_with_its_attempts_verdicts_and_curve(self, client, base):
        told = client.told(f"{base}/trials/12")
        assert [each["end"] for each in told["attempts"]] == ["resized", None]
        assert told["attempts"][1]["devices"] == ["cuda:0", "cuda:1"]
        assert told["curve"]["epoch"] == [1, 2, 3]
        assert told["decisions"] == [
            {"epoch": 1, "rule": "ASHA", "verdict": "continue", "value": 0.9, "threshold": 1.2}
        ]
        assert (told["before"], told["after"]) == (11, 13)
        assert client.ask(f"{base}/trials/99").status_code == 404

    @pytest.mark.parametrize("view", ["progress", "curves", "parallel", "scatter", "cluster", "ensembles"])
    def test_views_are_figures(self, client, base, view):
        told = client.told(f"{base}/views/{view}")
        assert all({"name", "title", "caption", "data", "layout", "height"} <= set(each) for each in told["figures"])
        assert bool(told["figures"]) is (view != "ensembles")

    def test_figures_of_chosen_trials(self, client, base):
        curves = client.told(f"{base}/views/curves?words=3,5,12")["figures"][0]
        numbers = {one for trace in curves["data"] for one in trace["customdata"] if one is not None}
        assert numbers == {3, 5, 12}
        assert curves["caption"].startswith("3 trials, one line each.")
        few = client.told(f"{base}/views/parallel?words=val_loss%3C0.3")["figures"][0]
        assert few["caption"].startswith("5 results")
        assert client.ask(f"{base}/views/curves?words=%3F%3F").status_code == 400

    def test_results_by_chosen_axes(self, client, base):
        told = client.told(f"{base}/views/scatter")
        assert told["axes"] == ["lr", "optimizer", "val_loss", "val_accuracy", "epochs", "seconds"]
        assert told["figures"][0]["title"] == "val_loss against lr"
        told = client.told(f"{base}/views/scatter?across=val_loss&up=val_accuracy&words=1,2")
        [points] = told["figures"][0]["data"]
        assert points["customdata"] == [1, 2]
        assert points["x"] == [0.26, 0.27]
        assert points["y"] == [0.74, 0.73]
        refused = client.ask(f"{base}/views/scatter?across=rate")
        assert refused.status_code == 400
        assert "nothing is named 'rate'; there are: lr, optimizer, val_loss" in refused.json()["error"]

    def test_studies_beside_each_other(self, client, base, tmp_path, Scribe, until):
        other = Scribe(tmp_path / "more" / "letters")
        for number in range(4):
            other.trial(number)
        strange = Scribe(tmp_path / "strange", ["max val_accuracy"])
        strange.trial(0)
        told = until(lambda: (got := client.told("/api/studies")["studies"]) and len(got) == 3 and got)
        ids = {each["name"]: each["id"] for each in told}
        until(lambda: all(each["loaded"] for each in client.told("/api/studies")["studies"]))
        both = client.told(f"/api/views/comparison?studies={ids['digits']},{ids['more/letters']}")["figures"]
        assert [figure["name"] for figure in both] == ["comparison", "edf"]
        assert sorted(len(trace["x"]) for trace in both[0]["data"]) == [5, 13]
        refused = client.ask(f"/api/views/comparison?studies={ids['digits']},{ids['strange']}")
        assert refused.status_code == 400
        assert "compare studies of one" in refused.json()["error"]
        assert client.ask("/api/views/comparison?studies=none").status_code == 404

    def test_what_takes_long_is_worked_out_beside(self, client, base, until):
        assert client.told(f"{base}/views/importance")["pending"]
        told = until(lambda: (got := client.told(f"{base}/views/importance")) and not got["pending"] and got)
        assert told["figures"] == []
        assert told["notes"] == ["12 results at epoch 4 do not tell yet which parameters move val_loss."]

    def test_numbers_that_are_not_finite_are_null(self, client, base, small, until):
        small.start(20)
        small.report(20, 1, float("nan"))
        rows = until(lambda: client.told(f"{base}/trials?words=20")["rows"])
        until(lambda: client.told(f"{base}/trials?words=20")["rows"][0]["epochs"] == 1)
        assert rows[0]["values"] == [None]


class TestLive:
    def test_what_another_process_writes_is_there_within_a_moment(self, client, base, small, until):
        before = client.told(base)["revision"]
        small.trial(30)
        until(lambda: client.told(base)["counts"]["complete"] == 13)
        assert client.told(base)["revision"] > before

    def test_a_torn_ledger_is_told_and_shown(self, client, base, small, until):
        journal = next((small.directory / "ledger" / "journal").iterdir())
        with journal.open("ab") as file:
            file.write(b"00000000 {no record\n")
        until(lambda: client.told(base)["dropped_count"] == 1)
        assert journal.name in client.told(base)["dropped"][0]
        assert client.told(base)["trials"] == 14

    def test_a_study_that_vanishes_is_told_and_one_that_comes_instead_is_shown(
        self, client, base, small, Scribe, until
    ):
        shutil.rmtree(small.directory)
        told = until(lambda: (got := client.told(base))["error"] and got)
        assert "cannot read" in told["error"] or "no study" in told["error"]
        assert told["trials"] == 14
        assert client.ask(f"{base}/trials/12/log?lease=2").json()["text"] == ""
        Scribe(small.directory).trial(0)
        until(lambda: client.told(base)["trials"] == 1)
        assert client.told(base)["error"] is None

    def test_a_record_that_no_version_has_written_is_left_out_and_named(self, tmp_path):
        from trainwright.ledger import Record

        ledger = DirectoryLedger(tmp_path / "ledger", create=True)
        ledger.append([Record("reported", {"nonsense": 1}, 3, 1)])
        follower = StudyFollower(tmp_path, "odd")
        follower.catch_up()
        assert follower.error is None
        assert ["epoch is missing" in str(one) for one in follower.dropped] == [True]
        follower.close()

    def test_a_newer_ledger_is_told(self, tmp_path):
        DirectoryLedger(tmp_path / "ledger", create=True).close()
        path = tmp_path / "ledger" / "study.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
        follower = StudyFollower(tmp_path, "new")
        follower.catch_up()
        assert "upgrade trainwright" in follower.error


class TestSecurity:
    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
    def test_nothing_can_be_changed(self, client, base, method):
        for path in ("/", base, f"{base}/trials", f"{base}/trials/1", "/api/studies"):
            assert client.ask(path, method).status_code == 405

    def test_no_route_takes_another_method_than_get(self, registry):
        methods = {method for route in application(registry).routes for method in getattr(route, "methods", ())}
        assert methods == {"GET"}

    @pytest.mark.parametrize(
        "path",
        [
            "/static/..%2f..%2fapp.py",
            "/static/app.py",
            "/static/../app.py",
            "/static/%2e%2e/app.py",
            "/etc/passwd",
            "/api/studies/..%2f..",
            "/api/studies/%2fetc",
        ],
    )
    def test_no_path_leads_to_a_file(self, client, path):
        assert client.ask(path).status_code == 404

    @pytest.mark.parametrize("query", ["lease=../../secret", "lease=-1", "lease=1&rank=x", "lease=1.5"])
    def test_a_log_is_named_by_numbers_alone(self, client, base, query):
        assert client.ask(f"{base}/trials/12/log?{query}").status_code == 422

    def test_a_log_is_read_from_the_folder_of_logs_alone(self, client, base, small, tmp_path):
        told = client.told(f"{base}/trials/12/log?lease=2")
        assert told["text"] == "epoch 1\nepoch 2 <i>done</i>\n"
        secret = tmp_path / "secret"
        secret.write_text("secret")
        link = small.directory / "logs" / "trial-000012" / "lease-7.log"
        link.symlink_to(secret)
        assert client.told(f"{base}/trials/12/log?lease=7")["text"] == ""

    def test_of_a_long_log_the_end_is_sent(self, client, base, small):
        path = small.directory / "logs" / "trial-000012" / "lease-2.log"
        path.write_bytes(b"".join(b"line %06d \xff\n" % number for number in range(20_000)))
        told = client.told(f"{base}/trials/12/log?lease=2")
        assert len(told["text"]) <= 65536
        assert told["text"].startswith("line ")
        assert told["text"].endswith("line 019999 \ufffd\n")
        assert not told["whole"]

    def test_the_page_may_load_its_own_files_and_nothing_in_line(self, client):
        answer = client.ask("/")
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "<script>" not in answer.text
        assert " style=" not in answer.text
        assert "http://" not in answer.text
        assert "https://" not in answer.text

    def test_every_file_of_the_page_is_served_with_its_kind(self, client):
        for name, kind in (("app.js", "text/javascript"), ("page.css", "text/css"), ("chart.js", "text/javascript")):
            answer = client.ask(f"/static/{name}")
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            assert "import" in answer.text or kind == "text/css"

    def test_a_foreign_name_and_a_missing_token_are_refused(self, registry):
        app = application(registry)
        assert Client(Guard(app, host="127.0.0.1", token=None), "http://evil.example").ask("/").status_code == 400
        guarded = Client(Guard(app, host="0.0.0.0", token="t" * 20))  # noqa: S104 -- of this test
        assert guarded.ask("/api/studies").status_code == 401
        assert guarded.ask("/api/studies", authorization=f"Bearer {'t' * 20}").status_code == 200

    def test_queries_have_limits(self, client, base):
        assert client.ask(f"{base}/trials?limit=100000").status_code == 422
        assert client.ask(f"{base}/trials?words={'x' * 400}").status_code == 422
        assert client.ask(f"{base}/trials/{10**30}/log").status_code == 422


class TestShelf:
    def test_a_directory_without_a_study_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"no study in it, nor up to 3 folders down; allowed: "):
            StudyRegistry(tmp_path)
        with pytest.raises(InputError, match="there is no such directory"):
            StudyRegistry(tmp_path / "nowhere")

    def test_one_study_is_shown_at_once(self, small):
        registry = StudyRegistry(small.directory)
        assert registry.single
        assert [each.name for each in registry.studies().values()] == ["digits"]
        registry.close()

    def test_studies_are_found_three_folders_down_and_no_deeper(self, tmp_path):
        for place in ("a", "b/c/d", "b/c/e/f"):
            DirectoryLedger(tmp_path / place / "ledger", create=True).close()
        registry = StudyRegistry(tmp_path)
        assert sorted(each.name for each in registry.studies().values()) == ["a", "b/c/d"]
        assert registry.find("../a") is None
        registry.close()
