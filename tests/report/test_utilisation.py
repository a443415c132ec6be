"""Devices over time."""

from trainwright.ledger import fold
from trainwright.report.figures.utilisation import utilisation
from trainwright.report.overview import Overview


def test_devices_over_time(asha_study, tmp_path):
    """Where all runs name one device, slots stand for devices."""
    study = asha_study(tmp_path / "study", 12, workers=2)
    one = utilisation(Overview(fold(study.records)))
    assert one.title == "Workers"
    for record in study.records:
        if record.kind == "started":
            record.body["devices"] = ["cuda:0", "cuda:1"] if record.trial % 2 else ["cuda:1"]
    both = utilisation(Overview(fold(study.records)))
    assert both.title == "Devices"
    assert both.layout["yaxis"]["categoryarray"] == ["cuda:1", "cuda:0"]
